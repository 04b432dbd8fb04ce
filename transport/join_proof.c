#include "join_proof.h"

#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <sys/random.h>

typedef struct packer {
  uint8_t bytes[512];
  size_t len;
} packer;

_Static_assert(sizeof((weft_join_hello *)0)->url + 4 * sizeof(uint64_t) +
                       2 * (size_t)WEFTI_NONCE + 64 <
                   sizeof((packer *)0)->bytes,
               "the facts fit");

static void put(packer *p, const void *data, size_t len)
{
  p->bytes[p->len++] = (uint8_t)(len >> 8);
  p->bytes[p->len++] = (uint8_t)len;
  memcpy(p->bytes + p->len, data, len);
  p->len += len;
}

static void put_u64(packer *p, uint64_t v)
{
  uint8_t b[8];
  for (unsigned i = 0; i < 8; i++) {
    b[i] = (uint8_t)(v >> (8 * i));
  }
  put(p, b, sizeof b);
}

bool wefti_join_proof(const char *token, wefti_join_role role,
                      const wefti_join_facts *facts, uint8_t out[WEFTI_PROOF])
{
  static const char engine[] = "weft join 1 engine";
  static const char worker[] = "weft join 1 worker";
  const char *key = token == NULL ? "" : token;
  const size_t key_len = strlen(key);
  packer p = { .len = 0 };
  if (role == WEFTI_JOIN_ENGINE) {
    put(&p, engine, sizeof engine);
  } else {
    put(&p, worker, sizeof worker);
  }
  put(&p, facts->worker_nonce, WEFTI_NONCE);
  put(&p, facts->engine_nonce, WEFTI_NONCE);
  put(&p, facts->hello.url, strnlen(facts->hello.url, sizeof facts->hello.url));
  put_u64(&p, facts->hello.rank);
  put_u64(&p, facts->hello.world_size);
  put_u64(&p, facts->hello.pid);
  put_u64(&p, facts->hello.incarnation);
  unsigned len = 0;
  return key_len <= INT_MAX &&
         HMAC(EVP_sha256(), key, (int)key_len, p.bytes, p.len, out, &len) != NULL &&
         len == WEFTI_PROOF;
}

bool wefti_join_proof_same(const uint8_t a[WEFTI_PROOF], const uint8_t b[WEFTI_PROOF])
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
