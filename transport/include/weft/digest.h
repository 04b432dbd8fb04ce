/* weft/digest.h -- digests of tensors and of sets of tensors.  XXH3-128 finds damage and
 * mix-ups; it is no defence against somebody who wants a collision.  SHA-256 is here for
 * the weight checker, whose contract asks for it. */
#ifndef WEFT_DIGEST_H
#define WEFT_DIGEST_H

#include "weft/atomics.h"
#include "weft/base.h"
#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_digest {
  uint64_t hi, lo;
} weft_digest;

enum {
  WEFT_DIGEST_BYTES = 16,
  WEFT_DIGEST_TEXT = 42, /* "xxh3-128:" + 32 hexadecimal digits + NUL */
  WEFT_SHA256_BYTES = 32,
  WEFT_SHA256_TEXT = 65
};

/* One value at a time; not shared between threads while in use.  NULL = out of memory. */
typedef struct weft_hasher weft_hasher;
WEFT_API weft_hasher *weft_hasher_create(void);
WEFT_API void weft_hasher_destroy(weft_hasher *h); /* NULL is a no-op */
WEFT_API void weft_hasher_reset(weft_hasher *h);   /* also needed before reuse */
WEFT_API void weft_hasher_update(weft_hasher *h, const void *data, size_t len);
WEFT_API weft_digest weft_hasher_value(const weft_hasher *h);

WEFT_API weft_digest weft_digest_of(const void *data, size_t len);

/* Digests of pieces of memory, several at once: of large ones up to threads at a time,
 * the calling thread among them (0 = 1).  Every few MiB cancel (may be NULL) is read and
 * the bytes hashed are added to done (may be NULL), both relaxed.  Errors: CANCELLED,
 * NOMEM. */
typedef struct weft_piece {
  const void *data; /* [bytes] */
  uint64_t bytes;
} weft_piece;
WEFT_API weft_err weft_digest_pieces(const weft_piece *pieces, size_t count,
                                     unsigned threads, const atomic_bool *cancel,
                                     atomic_uint_fast64_t *done, weft_digest *out)
    WEFT_MUST_USE;

/* Digest of a set: weft_hasher_reset, then one call per tensor in byte order of the names
 * (no two equal), then weft_hasher_value.  What is hashed for each tensor, little-endian:
 *   u32 bytes of the name, the name, u32 bytes of the dtype's torch name, that name,
 *   u32 dimensions, i64 each dimension, 16 bytes digest of the tensor's bytes in
 *   canonical (big-endian, high half first) form.
 * The empty set is XXH3-128 of nothing. */
WEFT_API void weft_hasher_add_tensor(weft_hasher *h, const char *name, const char *dtype,
                                     unsigned ndim, const int64_t *shape,
                                     weft_digest digest);

static inline bool weft_digest_equal(weft_digest a, weft_digest b)
{
  return a.hi == b.hi && a.lo == b.lo;
}
/* Canonical form: what `xxhsum -H2` prints. */
WEFT_API void weft_digest_store(weft_digest d, uint8_t out[WEFT_DIGEST_BYTES]);
WEFT_API weft_digest weft_digest_load(const uint8_t in[WEFT_DIGEST_BYTES]);
WEFT_API void weft_digest_text(weft_digest d, char out[WEFT_DIGEST_TEXT]);
WEFT_API bool weft_digest_parse(const char *text, weft_digest *out);

/* Errors: FAILED (libcrypto refused, e.g. out of memory).  text may be NULL. */
WEFT_API weft_err weft_sha256(const void *data, size_t len,
                              uint8_t out[WEFT_SHA256_BYTES], char text[WEFT_SHA256_TEXT])
    WEFT_MUST_USE;

/* The same, looking at cancel (relaxed; NULL = none) every few MiB.  Errors: FAILED,
 * CANCELLED. */
WEFT_API weft_err weft_sha256_until(const void *data, size_t len,
                                    const atomic_bool *cancel,
                                    uint8_t out[WEFT_SHA256_BYTES],
                                    char text[WEFT_SHA256_TEXT]) WEFT_MUST_USE;

WEFT_END_DECLS

#endif /* WEFT_DIGEST_H */
