/* The readers' side: no lock, no allocation. */
#define _GNU_SOURCE /* CLOCK_BOOTTIME */
#include "weight_slots.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Where a reader may lose its race; a test puts a whole commit in here. */
#ifndef PIN_WINDOW
#define PIN_WINDOW(store) ((void)0)
#endif

uint64_t wefti_boottime_ns(void *arg)
{
  (void)arg;
  struct timespec ts = { 0 };
  if (clock_gettime(CLOCK_BOOTTIME, &ts) != 0) {
    return UINT64_MAX; /* no clock, no grant */
  }
  return (uint64_t)ts.tv_sec * 1000000000U + (uint64_t)ts.tv_nsec;
}

void wefti_store_set_clock(weft_store *store, wefti_clock_fn *clock, void *arg)
{
  store->clock = clock;
  store->clock_arg = arg;
}

void wefti_slot_leave(slot *s)
{
  atomic_fetch_sub_explicit(&s->refs, 1, memory_order_seq_cst);
}

/* Add, then look again.  The writer changes current first and reads refs later, both
 * seq_cst: if we still see the old word, our reference came before its change, so reap
 * sees it and leaves the snapshot alone. */
static weft_err pin_default(weft_store *store, const weft_snapshot **out)
{
  uint64_t word = atomic_load_explicit(&store->current, memory_order_acquire);
  for (;;) {
    const unsigned index = (unsigned)(word & SLOT_MASK);
    if (index >= SLOTS_MAX) {
      return index == SLOT_HELD ? WEFT_E_UNAVAIL : WEFT_E_NOT_YET;
    }
    slot *s = &store->slots[index];
    PIN_WINDOW(store);
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_seq_cst);
    const uint64_t again = atomic_load_explicit(&store->current, memory_order_seq_cst);
    if (again == word) {
      *out = &s->snap->pub;
      return WEFT_OK;
    }
    wefti_slot_leave(s);
    word = again;
  }
}

/* The default says what is newest here.  Older ones are found by their slot's number,
 * which plays the part of current: reap closes refs that are 0, and clears it before it
 * opens them again, so that nobody who came after the closing gets in. */
static weft_err pin_exact(weft_store *store, uint64_t sequence, const weft_snapshot **out)
{
  const weft_snapshot *live;
  const weft_err err = pin_default(store, &live);
  if (err != WEFT_OK) {
    return err;
  }
  const uint64_t newest = live->weights_sequence;
  if (sequence == newest) {
    *out = live;
    return WEFT_OK;
  }
  weft_store_unpin(store, live);
  if (sequence > newest) {
    return WEFT_E_NOT_YET;
  }
  for (unsigned i = 0; i < store->slot_count; i++) {
    slot *s = &store->slots[i];
    if (atomic_load_explicit(&s->sequence, memory_order_relaxed) != sequence) {
      continue;
    }
    PIN_WINDOW(store);
    const unsigned before = atomic_fetch_add_explicit(&s->refs, 1, memory_order_seq_cst);
    if ((before & SLOT_CLOSED) == 0 &&
        atomic_load_explicit(&s->sequence, memory_order_seq_cst) == sequence) {
      *out = &s->snap->pub;
      return WEFT_OK;
    }
    wefti_slot_leave(s);
  }
  return WEFT_E_GONE;
}

weft_err weft_store_pin(weft_store *store, uint64_t weights_sequence,
                        const weft_snapshot **out)
{
  if (store->needs_grant &&
      store->clock(store->clock_arg) >=
          atomic_load_explicit(&store->grant_until_ns, memory_order_relaxed)) {
    return WEFT_E_UNAVAIL;
  }
  return weights_sequence == 0 ? pin_default(store, out)
                               : pin_exact(store, weights_sequence, out);
}

void weft_store_unpin(weft_store *store, const weft_snapshot *snapshot)
{
  if (snapshot) {
    const snap *s = (const snap *)(const void *)snapshot;
    wefti_slot_leave(&store->slots[s->slot]);
  }
}

static int by_name(const void *key, const void *tensor)
{
  return strcmp(key, ((const weft_tensor *)tensor)->name);
}

const weft_tensor *weft_snapshot_find(const weft_snapshot *snapshot, const char *name)
{
  return snapshot->tensor_count == 0
             ? NULL
             : bsearch(name, snapshot->tensors, snapshot->tensor_count,
                       sizeof(weft_tensor), by_name);
}

wefti_cell *wefti_snapshot_cell(const weft_snapshot *snapshot, size_t i)
{
  return ((const snap *)(const void *)snapshot)->cells[i];
}
