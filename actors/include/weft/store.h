/* weft/store.h -- the weights of one worker: immutable snapshots, one of them the
 * default, readers that pin them.  Not here: how bytes arrive (weft/transfer.h) and who
 * decides that a snapshot becomes the default (the engine, through the worker actor). */
#ifndef WEFT_STORE_H
#define WEFT_STORE_H

#include "weft/atomics.h"
#include "weft/base.h"
#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

enum { WEFT_NDIM_MAX = 8 };

/* One tensor of a snapshot.  Everything borrows from the snapshot: valid while pinned. */
typedef struct weft_tensor {
  const char *name;
  const char *dtype;    /* torch name, e.g. "bfloat16"; static */
  const int64_t *shape; /* [ndim] elements; row-major */
  unsigned ndim;        /* 0 = scalar */
  uint64_t bytes;
  const void *data;   /* [bytes], 64-byte aligned, read-only; NULL when bytes == 0.  An
                         address of the snapshot's device, not to be touched by the host
                         unless device is -1 */
  uint8_t digest[16]; /* XXH3-128, big-endian canonical form */
} weft_tensor;

/* What readers see.  Immutable. */
typedef struct weft_snapshot {
  uint64_t weights_sequence;     /* 0: installed, not published yet */
  uint64_t digest_hi, digest_lo; /* of the set, see weft/digest.h */
  size_t tensor_count;
  uint64_t bytes;             /* of all tensors */
  const weft_tensor *tensors; /* [tensor_count], in byte order of their names */
  int device; /* -1 = host memory, else where data lies, as CUDA counts in this process.
                 Shadow staging: the addresses change with every update; in place
                 they stay, and what reads there ends before the unpin */
} weft_snapshot;

typedef struct weft_store weft_store;

typedef struct weft_store_opts {
  size_t size; /* sizeof(weft_store_opts) */
  unsigned
      snapshots_max; /* live, installed and retained ones together; 0 = 4, at most 16 */
  bool needs_grant;  /* pins compare CLOCK_BOOTTIME with the grant */
} weft_store_opts;

WEFT_API weft_err weft_store_create(const weft_store_opts *opts, weft_store **out)
    WEFT_MUST_USE;
/* No pins may be held.  NULL is a no-op. */
WEFT_API void weft_store_destroy(weft_store *store);

/* Any thread, wait-free when nothing is being published.  weights_sequence 0 = the
 * default. Errors: NOT_YET (not published here, or nothing is), GONE (no longer held),
 * UNAVAIL (no grant, or poisoned). */
WEFT_API weft_err weft_store_pin(weft_store *store, uint64_t weights_sequence,
                                 const weft_snapshot **out) WEFT_MUST_USE;
WEFT_API void weft_store_unpin(weft_store *store, const weft_snapshot *snapshot);
/* Tensor by name in a pinned snapshot, or NULL. O(log n). */
WEFT_API const weft_tensor *weft_snapshot_find(const weft_snapshot *snapshot,
                                               const char *name);

WEFT_END_DECLS

#endif /* WEFT_STORE_H */
