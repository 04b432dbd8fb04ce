#include "weft/digest.h"

#include <assert.h>
#include <openssl/evp.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY /* XXH3_state_t as a complete type */
#include <xxhash.h>
/* The library's own choice of AVX2 or AVX-512 at run time, where it is packaged. */
#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif
#endif

struct weft_hasher {
  alignas(64) XXH3_state_t state;
};

static weft_digest from_xxh(XXH128_hash_t h)
{
  return (weft_digest){ h.high64, h.low64 };
}

weft_hasher *weft_hasher_create(void)
{
  weft_hasher *h = aligned_alloc(alignof(weft_hasher), sizeof *h);
  if (h != NULL) {
    weft_hasher_reset(h);
  }
  return h;
}

void weft_hasher_destroy(weft_hasher *h)
{
  free(h);
}

void weft_hasher_reset(weft_hasher *h)
{
  memset(&h->state, 0, sizeof h->state); /* reset reads the seed that was there before */
  (void)XXH3_128bits_reset(&h->state);
}

void weft_hasher_update(weft_hasher *h, const void *data, size_t len)
{
  if (len > 0) {
    (void)XXH3_128bits_update(&h->state, data, len);
  }
}

weft_digest weft_hasher_value(const weft_hasher *h)
{
  return from_xxh(XXH3_128bits_digest(&h->state));
}

weft_digest weft_digest_of(const void *data, size_t len)
{
  return from_xxh(XXH3_128bits(len == 0 ? "" : data, len));
}

static size_t put_le(uint8_t *to, uint64_t v, unsigned bytes)
{
  for (unsigned i = 0; i < bytes; i++) {
    to[i] = (uint8_t)(v >> (8 * i));
  }
  return bytes;
}

/* Rows are short: put together first, each is one update and not seven. */
typedef struct row {
  size_t len;
  uint8_t bytes[512];
} row;

static void row_add(weft_hasher *h, row *r, const void *data, size_t len)
{
  if (len > sizeof r->bytes - r->len) {
    weft_hasher_update(h, r->bytes, r->len);
    r->len = 0;
  }
  if (len > sizeof r->bytes) {
    weft_hasher_update(h, data, len);
  } else {
    memcpy(r->bytes + r->len, data, len);
    r->len += len;
  }
}

void weft_hasher_add_tensor(weft_hasher *h, const char *name, const char *dtype,
                            unsigned ndim, const int64_t *shape, weft_digest digest)
{
  uint8_t le[8];
  uint8_t canonical[WEFT_DIGEST_BYTES];
  const size_t name_len = strlen(name);
  const size_t dtype_len = strlen(dtype);
  row r; /* its bytes are written before they are read */
  r.len = 0;
  row_add(h, &r, le, put_le(le, name_len, 4));
  row_add(h, &r, name, name_len);
  row_add(h, &r, le, put_le(le, dtype_len, 4));
  row_add(h, &r, dtype, dtype_len);
  row_add(h, &r, le, put_le(le, ndim, 4));
  for (unsigned i = 0; i < ndim; i++) {
    row_add(h, &r, le, put_le(le, (uint64_t)shape[i], 8));
  }
  weft_digest_store(digest, canonical);
  row_add(h, &r, canonical, sizeof canonical);
  weft_hasher_update(h, r.bytes, r.len);
}

void weft_digest_store(weft_digest d, uint8_t out[WEFT_DIGEST_BYTES])
{
  for (int i = 0; i < 8; i++) {
    out[i] = (uint8_t)(d.hi >> (56 - 8 * i));
    out[8 + i] = (uint8_t)(d.lo >> (56 - 8 * i));
  }
}

weft_digest weft_digest_load(const uint8_t in[WEFT_DIGEST_BYTES])
{
  weft_digest d = { 0, 0 };
  for (int i = 0; i < 8; i++) {
    d.hi = d.hi << 8 | in[i];
    d.lo = d.lo << 8 | in[8 + i];
  }
  return d;
}

static void hex(const uint8_t *bytes, size_t n, char *out)
{
  static const char digits[] = "0123456789abcdef";
  for (size_t i = 0; i < n; i++) {
    out[2 * i] = digits[bytes[i] >> 4];
    out[2 * i + 1] = digits[bytes[i] & 15];
  }
  out[2 * n] = '\0';
}

static const char prefix[] = "xxh3-128:";
enum { PREFIX_LEN = sizeof prefix - 1 };
static_assert(PREFIX_LEN + 2 * WEFT_DIGEST_BYTES + 1 == WEFT_DIGEST_TEXT, "text size");

void weft_digest_text(weft_digest d, char out[WEFT_DIGEST_TEXT])
{
  uint8_t canonical[WEFT_DIGEST_BYTES];
  weft_digest_store(d, canonical);
  memcpy(out, prefix, PREFIX_LEN);
  hex(canonical, sizeof canonical, out + PREFIX_LEN);
}

bool weft_digest_parse(const char *text, weft_digest *out)
{
  if (strncmp(text, prefix, PREFIX_LEN) != 0 || strlen(text) != WEFT_DIGEST_TEXT - 1) {
    return false;
  }
  uint64_t half[2] = { 0, 0 };
  for (size_t i = 0; i < (size_t)2 * WEFT_DIGEST_BYTES; i++) {
    const char c = text[PREFIX_LEN + i];
    unsigned digit;
    if (c >= '0' && c <= '9') {
      digit = (unsigned)(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = (unsigned)(c - 'a') + 10;
    } else {
      return false;
    }
    half[i / 16] = half[i / 16] << 4 | digit;
  }
  *out = (weft_digest){ half[0], half[1] };
  return true;
}

enum { SHA_PIECE = 4 << 20 }; /* bytes between two looks at cancel */

static weft_err sha_all(EVP_MD_CTX *sha, const uint8_t *data, size_t len,
                        const atomic_bool *cancel)
{
  if (EVP_DigestInit_ex(sha, EVP_sha256(), NULL) != 1) {
    return WEFT_E_FAILED;
  }
  for (size_t at = 0; at < len; at += SHA_PIECE) {
    const size_t n = len - at < SHA_PIECE ? len - at : SHA_PIECE;
    if (cancel != NULL && atomic_load_explicit(cancel, memory_order_relaxed)) {
      return WEFT_E_CANCELLED;
    }
    if (EVP_DigestUpdate(sha, data + at, n) != 1) {
      return WEFT_E_FAILED;
    }
  }
  return WEFT_OK;
}

weft_err weft_sha256_until(const void *data, size_t len, const atomic_bool *cancel,
                           uint8_t out[WEFT_SHA256_BYTES], char text[WEFT_SHA256_TEXT])
{
  unsigned n = 0;
  EVP_MD_CTX *sha = EVP_MD_CTX_new();
  weft_err err = sha != NULL ? sha_all(sha, data, len, cancel) : WEFT_E_FAILED;
  if (err == WEFT_OK &&
      (EVP_DigestFinal_ex(sha, out, &n) != 1 || n != WEFT_SHA256_BYTES)) {
    err = WEFT_E_FAILED;
  }
  EVP_MD_CTX_free(sha);
  if (err == WEFT_OK && text != NULL) {
    hex(out, WEFT_SHA256_BYTES, text);
  }
  return err;
}

weft_err weft_sha256(const void *data, size_t len, uint8_t out[WEFT_SHA256_BYTES],
                     char text[WEFT_SHA256_TEXT])
{
  return weft_sha256_until(data, len, NULL, out, text);
}
