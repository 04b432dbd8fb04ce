#include "pickle_tree.h"

#include <limits.h>
#include <openssl/evp.h>
#include <stdlib.h>

static bool in_alphabet(char c)
{
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
         c == '+' || c == '/';
}

/* EVP_DecodeBlock skips white space, and counts padding as bytes. */
weft_err wefti_base64(const char *text, size_t len, size_t max, uint8_t **out,
                      size_t *out_len)
{
  size_t padding = 0;
  while (padding < 2 && padding < len && text[len - 1 - padding] == '=') {
    padding++;
  }
  if (len % 4 != 0) {
    return WEFT_E_INVAL;
  }
  if (len > INT_MAX || len / 4 * 3 - padding > max) {
    return WEFT_E_LIMIT;
  }
  for (size_t i = 0; i < len - padding; i++) {
    if (!in_alphabet(text[i])) {
      return WEFT_E_INVAL;
    }
  }
  uint8_t *bytes = malloc(len / 4 * 3 + 1);
  if (bytes == NULL) {
    return WEFT_E_NOMEM;
  }
  if (len > 0 && EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)len) !=
                     (int)(len / 4 * 3)) {
    free(bytes);
    return WEFT_E_INVAL;
  }
  *out = bytes;
  *out_len = len / 4 * 3 - padding;
  return WEFT_OK;
}

void wefti_base64_write(const uint8_t *data, size_t len, char *out)
{
  enum { STEP = 3 << 20 }; /* EVP_EncodeBlock counts in ints */
  *out = '\0';
  while (len > 0) {
    const size_t n = len < STEP ? len : STEP;
    out += EVP_EncodeBlock((unsigned char *)out, data, (int)n);
    data += n;
    len -= n;
  }
}
