/* hashers.h -- threads that take digests of what lies in blocks of host memory, for one
 * thread that fills the blocks.  Not for other folders; not here: where the bytes come
 * from (gpu_digest.c). */
#ifndef WEFT_TRANSPORT_HASHERS_H
#define WEFT_TRANSPORT_HASHERS_H

#include "weft/digest.h"

#include <stddef.h>
#include <stdint.h>

enum { WEFTI_HASHERS_MAX = 16, WEFTI_HASHER_BLOCKS = 2 };

/* Something to be hashed; out is written by the thread that comes to its end. */
typedef struct wefti_hash_item {
  const void *from; /* nothing here reads it */
  uint64_t bytes;   /* > 0 */
  weft_digest *out;
} wefti_hash_item;

/* Items in a row, back to back: the first from at on, the last perhaps not to its end. */
typedef struct wefti_hash_block {
  const uint8_t *data; /* [used] */
  size_t used;
  const wefti_hash_item *items; /* stay until the block is done */
  uint64_t at;
} wefti_hash_block;

typedef struct wefti_hashers wefti_hashers;

/* threads: 1..WEFTI_HASHERS_MAX; there may be fewer.  Errors: NOMEM (none at all). */
weft_err wefti_hashers_create(unsigned threads, wefti_hashers **out) WEFT_MUST_USE;
/* Joins them; blocks that they were given are hashed before.  NULL is a no-op. */
void wefti_hashers_destroy(wefti_hashers *h);
unsigned wefti_hashers_count(const wefti_hashers *h);
/* To thread i, which takes its blocks in order: an item that goes on in another block
 * must come to the same thread.  No more than WEFTI_HASHER_BLOCKS that are not done. */
void wefti_hashers_give(wefti_hashers *h, unsigned i, const wefti_hash_block *block);
/* How many of its blocks thread i has done so far: their data and items are not read any
 * more, and what ended in them is in out. */
uint64_t wefti_hashers_done(wefti_hashers *h, unsigned i);

#endif /* WEFT_TRANSPORT_HASHERS_H */
