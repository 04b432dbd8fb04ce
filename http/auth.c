#include "conn.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { DIGEST = 32, CREDENTIALS_MAX = 1024 };

/* Digests are compared, not texts: neither the length nor a common prefix shows in the
 * time. */
struct wefti_auth {
  EVP_MD *sha256;
  EVP_MD_CTX *ctx;
  unsigned char token[DIGEST];
};

static bool digest(wefti_auth *a, const void *text, size_t len, unsigned char out[DIGEST])
{
  unsigned n = 0;
  return EVP_DigestInit_ex(a->ctx, a->sha256, NULL) == 1 &&
         EVP_DigestUpdate(a->ctx, text, len) == 1 &&
         EVP_DigestFinal_ex(a->ctx, out, &n) == 1 && n == DIGEST;
}

weft_err wefti_auth_create(const char *token, wefti_auth **out)
{
  if (token[0] == '\0') {
    return WEFT_E_INVAL; /* an empty token would let everybody in who knows no token */
  }
  wefti_auth *a = calloc(1, sizeof *a);
  if (a == NULL) {
    return WEFT_E_NOMEM;
  }
  a->sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
  a->ctx = EVP_MD_CTX_new();
  if (a->sha256 == NULL || a->ctx == NULL || !digest(a, token, strlen(token), a->token)) {
    wefti_auth_destroy(a);
    return WEFT_E_NOMEM;
  }
  *out = a;
  return WEFT_OK;
}

void wefti_auth_destroy(wefti_auth *auth)
{
  if (auth != NULL) {
    EVP_MD_CTX_free(auth->ctx);
    EVP_MD_free(auth->sha256);
    OPENSSL_cleanse(auth->token, sizeof auth->token);
    free(auth);
  }
}

static int sextet(char ch)
{
  if (ch >= 'A' && ch <= 'Z') {
    return ch - 'A';
  }
  if (ch >= 'a' && ch <= 'z') {
    return ch - 'a' + 26;
  }
  if (ch >= '0' && ch <= '9') {
    return ch - '0' + 52;
  }
  return ch == '+' ? 62 : ch == '/' ? 63 : -1;
}

/* Bytes decoded into out, or -1.  Padding may be missing. */
static long base64(const char *in, size_t len, unsigned char *out, size_t cap)
{
  while (len > 0 && in[len - 1] == '=') {
    len--;
  }
  size_t n = 0;
  unsigned acc = 0;
  unsigned bits = 0;
  for (size_t i = 0; i < len; i++) {
    const int v = sextet(in[i]);
    if (v < 0 || n == cap) {
      return -1;
    }
    acc = (acc << 6 | (unsigned)v) & 0xffffU;
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      out[n++] = (unsigned char)(acc >> bits);
    }
  }
  return (long)n;
}

static bool compare(wefti_auth *a, const void *secret, size_t len)
{
  unsigned char got[DIGEST];
  return digest(a, secret, len, got) && CRYPTO_memcmp(got, a->token, DIGEST) == 0;
}

static bool basic_ok(wefti_auth *a, const char *value, size_t len)
{
  unsigned char plain[CREDENTIALS_MAX];
  const long n = base64(value, len, plain, sizeof plain);
  const unsigned char *colon = n <= 0 ? NULL : memchr(plain, ':', (size_t)n);
  const bool ok =
      colon != NULL && compare(a, colon + 1, (size_t)n - 1 - (size_t)(colon - plain));
  OPENSSL_cleanse(plain, sizeof plain);
  return ok;
}

bool wefti_auth_ok(wefti_auth *auth, const char *value, size_t len)
{
  const char *blank = memchr(value, ' ', len);
  if (blank == NULL) {
    return false;
  }
  const size_t scheme = (size_t)(blank - value);
  size_t at = scheme;
  while (at < len && value[at] == ' ') {
    at++;
  }
  if (scheme == sizeof "Bearer" - 1 && strncasecmp(value, "Bearer", scheme) == 0) {
    return compare(auth, value + at, len - at);
  }
  return scheme == sizeof "Basic" - 1 && strncasecmp(value, "Basic", scheme) == 0 &&
         basic_ok(auth, value + at, len - at);
}
