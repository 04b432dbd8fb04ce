/* weight_store.h -- private to actors/.  The writer's side of a weight store: cells (one
 * tensor's bytes, shared by reference count between snapshots), installing beside the
 * default, publishing, dropping.  Not here: pins (weft/store.h), where bytes come from.
 */
#ifndef WEFT_ACTORS_WEIGHT_STORE_H
#define WEFT_ACTORS_WEIGHT_STORE_H

#include "weft/memory.h"
#include "weft/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Name, shape and bytes of one tensor.  Immutable once it is part of a snapshot. */
typedef struct wefti_cell wefti_cell;
/* A tensor and the cell that its name, shape and data point into. */
typedef struct wefti_entry {
  weft_tensor t;
  wefti_cell *cell;
} wefti_entry;

/* Makes a cell with one reference: *out is want with copies of its name and shape, and
 * with extent's bytes as data.  Takes extent on WEFT_OK; it goes back to memory (borrowed
 * until the last cell is gone) with the last reference.  Errors: NOMEM, OVERFLOW. */
weft_err wefti_cell_create(const weft_tensor *want, weft_memory *memory,
                           const weft_extent *extent, wefti_entry *out) WEFT_MUST_USE;
/* The same bytes under another name: *out is of with a copy of name, and holds a
 * reference to of's cell.  Errors: NOMEM, OVERFLOW. */
weft_err wefti_cell_alias(const char *name, const wefti_entry *of, wefti_entry *out)
    WEFT_MUST_USE;
/* Another tensor over the very bytes of of, whose extent is as large: *out is want with
 * copies of its name and shape.  Errors: NOMEM, OVERFLOW. */
weft_err wefti_cell_over(const weft_tensor *want, wefti_cell *of, wefti_entry *out)
    WEFT_MUST_USE;
const weft_extent *wefti_cell_extent(const wefti_cell *cell);
weft_memory *wefti_cell_memory(const wefti_cell *cell);
int wefti_cell_device(const wefti_cell *cell); /* -1 = host memory */
wefti_cell *wefti_cell_ref(wefti_cell *cell);
void wefti_cell_unref(wefti_cell *cell); /* any thread; NULL is a no-op */

/* ---- all below: any thread that is not a reader's, serialised by the store */

/* Puts a new snapshot beside the default; shares the cells of entries, which are in name
 * order.  *out stays valid until drop or, after publish, while pinned.
 * Errors: NOMEM, UNAVAIL (no slot), EXISTS (epoch has installed one). */
weft_err wefti_store_install(weft_store *store, uint64_t epoch,
                             const wefti_entry *entries, size_t count,
                             const uint64_t digest[2], const weft_snapshot **out)
    WEFT_MUST_USE;
/* Makes what epoch installed the default under sequence; OK without effect when sequence
 * is not newer than the default's.  Errors: STATE (epoch has installed nothing). */
weft_err wefti_store_publish(weft_store *store, uint64_t epoch, uint64_t sequence)
    WEFT_MUST_USE;
/* Drops what epoch installed and nobody published; no effect otherwise. */
void wefti_store_drop(weft_store *store, uint64_t epoch);
/* Swaps the default for other bytes under the same sequence (the checker's reset).
 * Readers that hold the old one keep it.  Errors: NOMEM, UNAVAIL (no slot), NOT_YET (no
 * default). */
weft_err wefti_store_swap(weft_store *store, const wefti_entry *entries, size_t count,
                          const uint64_t digest[2]) WEFT_MUST_USE;
/* A new engine: nothing counts as installed or published any more, pins are refused, the
 * grant is void.  Held snapshots stay with their readers. */
void wefti_store_forget(weft_store *store);
/* true: pins get UNAVAIL although there may be a default, until false or a publish. */
void wefti_store_hold(weft_store *store, bool held);
/* The same, for as long as an in-place update is open: apart from hold. */
void wefti_store_pause(weft_store *store, bool paused);
/* Epoch is about to write over bytes of the default: pins get UNAVAIL, whatever becomes
 * of the epoch, until a publish or forget; state says so.  Any thread. */
void wefti_store_dirty(weft_store *store, uint64_t epoch);
/* How many of this process read which snapshot, in words; 0 = nobody does. */
uint32_t wefti_store_readers(weft_store *store, char *text, size_t cap);
/* Readers may be served until until_ns of CLOCK_BOOTTIME.  Only ever extends. */
void wefti_store_grant(weft_store *store, uint64_t until_ns);
/* Frees retired snapshots without readers.  Not for a reader's thread. */
void wefti_store_reap(weft_store *store);
bool wefti_store_reapable(weft_store *store);
/* Is there a slot for one more snapshot?  UNAVAIL with who holds them otherwise. */
weft_err wefti_store_room(weft_store *store, weft_why *why) WEFT_MUST_USE;

/* The default, pinned whether or not readers are served; NULL when there is none.
 * Let go with weft_store_unpin. */
const weft_snapshot *wefti_store_base(weft_store *store);
/* The process that started this one maps snapshot, which is known to be there, from now
 * until unshare: one reader, whoever reads it there. */
void wefti_store_share(weft_store *store, const weft_snapshot *snapshot);
void wefti_store_unshare(weft_store *store, const weft_snapshot *snapshot);
/* The cell behind tensor i. */
wefti_cell *wefti_snapshot_cell(const weft_snapshot *snapshot, size_t i);

typedef struct wefti_store_state {
  uint64_t weights_sequence, digest_hi,
      digest_lo; /* of the default; 0 = none, or dirty */
  uint64_t tensors, bytes;
  uint32_t readers;   /* pins held, of any snapshot */
  uint32_t snapshots; /* held in all */
  bool held;
  uint64_t dirty; /* epoch that wrote over the default and was not published; 0 = none */
} wefti_store_state;
void wefti_store_state_get(weft_store *store, wefti_store_state *out);

/* For tests: pins read this clock in place of CLOCK_BOOTTIME.  Before any pin. */
typedef uint64_t wefti_clock_fn(void *arg);
void wefti_store_set_clock(weft_store *store, wefti_clock_fn *clock, void *arg);

#endif /* WEFT_ACTORS_WEIGHT_STORE_H */
