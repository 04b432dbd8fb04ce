/* visible.h -- private to actors/.  What the engine has made visible, readable from any
 * thread without a lock: written by the engine before anybody is told.  Not the engine's
 * own state (engine_state.h). */
#ifndef WEFT_ACTORS_VISIBLE_H
#define WEFT_ACTORS_VISIBLE_H

#include "engine_core.h"
#include "weft/weft.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
  WEFTI_VISIBLE_KEPT = 32, /* weight sequences whose version string is still known */
  WEFTI_VERSION_WORDS = WEFT_VERSION_MAX / 8
};

/* One weights_sequence.  A seqlock: turn is odd while the one writer is inside; the words
 * are atomics so that a torn read is a retry and no data race. */
typedef struct wefti_visible_slot {
  _Atomic uint32_t turn;
  _Atomic uint32_t version_len;
  _Atomic uint64_t weights_sequence, digest_hi, digest_lo;
  _Atomic uint64_t version[WEFTI_VERSION_WORDS];
} wefti_visible_slot;

typedef struct wefti_visible_ring { /* zeroed memory is an empty one */
  _Atomic uint32_t current; /* slot; release after it was written, acquire to read */
  wefti_visible_slot slots[WEFTI_VISIBLE_KEPT];
} wefti_visible_ring;

typedef struct wefti_visible_at {
  uint64_t weights_sequence, digest_hi, digest_lo;
} wefti_visible_at;

/* The engine's loop only. */
void wefti_visible_set(wefti_visible_ring *ring, const wefti_visible *visible);
/* Any thread.  version: [WEFT_VERSION_MAX + 1], NUL-terminated. */
void wefti_visible_get(wefti_visible_ring *ring, wefti_visible_at *out, char *version);
/* The same for a sequence that may be an older one; false = not known any more. */
bool wefti_visible_find(wefti_visible_ring *ring, uint64_t weights_sequence,
                        wefti_visible_at *out, char *version);

#endif /* WEFT_ACTORS_VISIBLE_H */
