/* Input: key, NUL, query. */
#include "weft/http.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  char *text = malloc(size + 1);
  if (text == NULL) {
    return 0;
  }
  memcpy(text, data, size);
  text[size] = '\0';
  const size_t key = strlen(text);
  const char *query = key < size ? text + key + 1 : "";
  for (size_t cap = 0; cap < 64; cap += 21) {
    char out[64];
    memset(out, 1, sizeof out);
    const weft_err err = weft_http_query(query, text, out, cap);
    if (err == WEFT_OK && (cap == 0 || memchr(out, 0, cap) == NULL)) {
      abort();
    }
  }
  free(text);
  return 0;
}
