#include "proof.h"

#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <sys/random.h>

void wefti_pack(wefti_packed *p, const void *data, size_t len)
{
  if (len > UINT16_MAX || len + 2 > sizeof p->bytes - p->len) {
    p->overflow = true;
    return;
  }
  p->bytes[p->len++] = (uint8_t)(len >> 8);
  p->bytes[p->len++] = (uint8_t)len;
  if (len > 0) {
    memcpy(p->bytes + p->len, data, len);
    p->len += len;
  }
}

void wefti_pack_str(wefti_packed *p, const char *text)
{
  wefti_pack(p, text, strlen(text));
}

void wefti_pack_u64(wefti_packed *p, uint64_t v)
{
  uint8_t b[8];
  for (unsigned i = 0; i < 8; i++) {
    b[i] = (uint8_t)(v >> (8 * i));
  }
  wefti_pack(p, b, sizeof b);
}

bool wefti_proof(const char *token, const wefti_packed *packed, uint8_t out[WEFTI_PROOF])
{
  const char *key = token == NULL ? "" : token;
  const size_t key_len = strlen(key);
  unsigned len = 0;
  return !packed->overflow && key_len <= INT_MAX &&
         HMAC(EVP_sha256(), key, (int)key_len, packed->bytes, packed->len, out, &len) !=
             NULL &&
         len == WEFTI_PROOF;
}

bool wefti_proof_same(const uint8_t a[WEFTI_PROOF], const uint8_t b[WEFTI_PROOF])
{
  return CRYPTO_memcmp(a, b, WEFTI_PROOF) ==
         0; /* takes the same time wherever they differ */
}

bool wefti_nonce(uint8_t out[WEFTI_NONCE])
{
  return getrandom(out, WEFTI_NONCE, 0) == WEFTI_NONCE;
}

void wefti_hex(const uint8_t in[WEFTI_NONCE], char out[WEFTI_HEX])
{
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < WEFTI_NONCE; i++) {
    out[2 * i] = digits[in[i] >> 4];
    out[2 * i + 1] = digits[in[i] & 15];
  }
  out[WEFTI_HEX - 1] = '\0';
}

static int digit(char c)
{
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool wefti_unhex(const char *text, uint8_t out[WEFTI_NONCE])
{
  if (text == NULL || strnlen(text, WEFTI_HEX) != WEFTI_HEX - 1) {
    return false;
  }
  for (size_t i = 0; i < WEFTI_NONCE; i++) {
    const int hi = digit(text[2 * i]);
    const int lo = digit(text[2 * i + 1]);
    if (hi < 0 || lo < 0) {
      return false;
    }
    out[i] = (uint8_t)(hi * 16 + lo);
  }
  return true;
}
