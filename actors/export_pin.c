/* The readers of what a parent maps of its workers: the table is read for the first of
 * them, pins are handed out and come back.  Any thread. */
#include "export_priv.h"
#include "weft/memory.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the table */

static const export_mapping *find_mapping(const export_import *im, uint64_t slab)
{
  for (size_t i = 0; i < im->mapping_count; i++) {
    if (im->mappings[i]->id == slab) {
      return im->mappings[i];
    }
  }
  return NULL;
}

static bool read_tensors(export_import *im)
{
  const size_t count = im->snapshot.tensor_count;
  im->tensors = calloc(count + 1, sizeof *im->tensors);
  if (!im->tensors) {
    return false;
  }
  for (size_t i = 0; i < count; i++) {
    wefti_export_record r;
    weft_tensor *t = &im->tensors[i];
    if (!wefti_export_row(im->table, im->table_bytes, i, &r, t)) {
      return false;
    }
    const export_mapping *m = r.bytes > 0 ? find_mapping(im, r.slab) : NULL;
    const uint64_t room =
        m && m->bytes > WEFT_SLAB_MARK_BYTES ? m->bytes - WEFT_SLAB_MARK_BYTES : 0;
    if (r.bytes > 0 && (!m || r.offset > room || r.bytes > room - r.offset)) {
      return false;
    }
    t->data = m ? (const uint8_t *)m->base + r.offset : NULL;
  }
  im->snapshot.tensors = im->tensors;
  return true;
}

/* The first reader's work, and not loop 0's: a daemon holds tables that nobody in it ever
 * reads, and a commit need not wait for 10,000 rows.  Any thread, with a reader's
 * reference.  False: the table lies, or there is no memory. */
static bool open_import(export_import *im)
{
  if (atomic_load_explicit(&im->open, memory_order_acquire)) {
    return true;
  }
  (void)pthread_mutex_lock(&im->seat->opening);
  bool good = atomic_load_explicit(&im->open, memory_order_relaxed);
  if (!good && !im->bad) {
    im->table = wefti_export_table(im->table_fd, im->table_bytes);
    good = im->table && read_tensors(im);
    im->bad = !good;
    atomic_store_explicit(&im->open, good, memory_order_release);
  }
  (void)pthread_mutex_unlock(&im->seat->opening);
  return good;
}

/* ---- pins */

void export_leave(export_import *im, bool close)
{
  export_seat *s = im->seat; /* it may be freed as soon as we have left */
  if (close) {
    atomic_fetch_or_explicit(&im->use, IMPORT_RETIRED | IMPORT_CLOSED,
                             memory_order_relaxed);
  }
  const unsigned was =
      atomic_fetch_sub_explicit(&im->use, IMPORT_READER, memory_order_acq_rel);
  if ((was & ~(unsigned)IMPORT_CLOSED) == (IMPORT_READER | IMPORT_RETIRED) &&
      weft_loop_call(weft_runtime_loop(s->all->rt, 0), export_sweep, s) != WEFT_OK) {
    return; /* the loop has ended: destroy frees it */
  }
}

/* The lock is held.  An older one that is still read can be read by more, as in a store
 * of this process. */
static bool can_join(const export_import *im, uint64_t weights_sequence)
{
  const unsigned use = atomic_load_explicit(&im->use, memory_order_relaxed);
  return im->snapshot.weights_sequence == weights_sequence &&
         (use & IMPORT_CLOSED) == 0 &&
         ((use & IMPORT_RETIRED) == 0 || use >= IMPORT_READER);
}

/* Of the bytes themselves, also when the worker is no more. */
bool export_is_dirty(const export_import *im)
{
  for (size_t i = 0; i < im->mapping_count; i++) {
    if (weft_slab_dirty(im->mappings[i]->base, im->mappings[i]->bytes)) {
      return true;
    }
  }
  return false;
}

void wefti_imports_hold(wefti_imports *all, bool held)
{
  for (uint32_t r = 0; r < all->world_size; r++) {
    (void)pthread_mutex_lock(&all->seats[r].lock);
    all->seats[r].held = held;
    (void)pthread_mutex_unlock(&all->seats[r].lock);
  }
}

uint32_t wefti_imports_readers(wefti_imports *all, char *text, size_t cap)
{
  uint32_t readers = 0;
  size_t len = 0;
  text[0] = '\0';
  for (uint32_t r = 0; r < all->world_size; r++) {
    export_seat *s = &all->seats[r];
    (void)pthread_mutex_lock(&s->lock);
    for (const export_import *im = s->imports; im; im = im->next) {
      const unsigned n =
          atomic_load_explicit(&im->use, memory_order_acquire) / IMPORT_READER;
      if (n > 0 && len < cap) {
        const int more = snprintf(
            text + len, cap - len, "%srank %" PRIu32 " sequence %" PRIu64 " by %u",
            len == 0 ? "" : ", ", r, im->snapshot.weights_sequence, n);
        len += more > 0 ? (size_t)more : 0;
      }
      readers += n;
    }
    (void)pthread_mutex_unlock(&s->lock);
  }
  return readers;
}

weft_err wefti_imports_pin(wefti_imports *all, uint32_t rank, uint64_t weights_sequence,
                           const weft_snapshot **out, void **holder)
{
  export_seat *s = &all->seats[rank];
  export_import *found = NULL;
  (void)pthread_mutex_lock(&s->lock);
  for (export_import *im = s->held ? NULL : s->imports; im; im = im->next) {
    if (can_join(im, weights_sequence) && !export_is_dirty(im)) {
      atomic_fetch_add_explicit(&im->use, IMPORT_READER, memory_order_relaxed);
      found = im;
      break;
    }
  }
  (void)pthread_mutex_unlock(&s->lock);
  if (!found) { /* what is visible is missing only where its worker is */
    return weights_sequence < atomic_load_explicit(&all->visible, memory_order_relaxed)
               ? WEFT_E_GONE
               : WEFT_E_UNAVAIL;
  }
  if (!open_import(found)) { /* the worker need not hold what cannot be read */
    export_leave(found, true);
    return WEFT_E_UNAVAIL;
  }
  *out = &found->snapshot;
  *holder = found;
  return WEFT_OK;
}

void wefti_imports_unpin(void *holder)
{
  export_leave(holder, false);
}
