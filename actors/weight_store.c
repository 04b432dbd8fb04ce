#include "weight_store.h"

#include "weft/checked.h"
#include "weight_slots.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void lock(weft_store *store)
{
  (void)pthread_mutex_lock(&store->lock); /* cannot fail for a default mutex */
}

static void unlock(weft_store *store)
{
  (void)pthread_mutex_unlock(&store->lock);
}

static void snap_free(snap *s)
{
  if (!s) {
    return;
  }
  for (size_t i = 0; i < s->pub.tensor_count; i++) {
    wefti_cell_unref(s->cells[i]);
  }
  free(s->cells);
  free(s);
}

static snap *snap_create(const wefti_entry *entries, size_t count,
                         const uint64_t digest[2])
{
  size_t table, size;
  if (weft_size_mul(count, sizeof(weft_tensor), &table) != WEFT_OK ||
      weft_size_add(sizeof(snap), table, &size) != WEFT_OK) {
    return NULL;
  }
  snap *s = malloc(size);
  wefti_cell **cells = calloc(count > 0 ? count : 1, sizeof(wefti_cell *));
  if (!s || !cells) {
    free(s);
    free(cells);
    return NULL;
  }
  s->pub =
      (weft_snapshot){ .digest_hi = digest[0],
                       .digest_lo = digest[1],
                       .tensor_count = count,
                       .tensors = s->tensors,
                       .device = count > 0 ? wefti_cell_device(entries[0].cell) : -1 };
  s->cells = cells;
  for (size_t i = 0; i < count; i++) {
    s->tensors[i] = entries[i].t;
    s->pub.bytes += entries[i].t.bytes;
    cells[i] = wefti_cell_ref(entries[i].cell);
  }
  return s;
}

/* Functions named _locked want the lock. */

/* Readers follow from here on. */
static void point_locked(weft_store *store, unsigned index)
{
  const uint64_t word = atomic_load_explicit(&store->current, memory_order_relaxed);
  const uint64_t next = (word >> SLOT_BITS) + 1;
  atomic_store_explicit(&store->current, next << SLOT_BITS | index, memory_order_seq_cst);
}

/* The store's own reference goes; readers keep theirs. */
static void retire_locked(weft_store *store, unsigned index)
{
  slot *s = &store->slots[index];
  s->state = SLOT_RETIRED;
  wefti_slot_leave(s);
}

/* Takes a retired slot's snapshot out if nobody has it.  NULL = somebody does. */
static snap *take_locked(slot *s)
{
  unsigned nobody = 0;
  if (s->state != SLOT_RETIRED ||
      !atomic_compare_exchange_strong_explicit(
          &s->refs, &nobody, SLOT_CLOSED, memory_order_seq_cst, memory_order_seq_cst)) {
    return NULL;
  }
  atomic_store_explicit(&s->sequence, 0, memory_order_seq_cst);
  atomic_fetch_sub_explicit(&s->refs, SLOT_CLOSED, memory_order_seq_cst);
  snap *taken = s->snap;
  s->snap = NULL;
  s->state = SLOT_FREE;
  return taken;
}

static unsigned free_slot_locked(const weft_store *store)
{
  for (unsigned i = 0; i < store->slot_count; i++) {
    if (store->slots[i].state == SLOT_FREE) {
      return i;
    }
  }
  return SLOT_NONE;
}

static unsigned installed_locked(const weft_store *store, uint64_t epoch)
{
  for (unsigned i = 0; i < store->slot_count; i++) {
    if (store->slots[i].state == SLOT_INSTALLED && store->slots[i].epoch == epoch) {
      return i;
    }
  }
  return SLOT_NONE;
}

static void fill_locked(weft_store *store, unsigned index, snap *s, uint64_t epoch)
{
  slot *at = &store->slots[index];
  s->slot = index;
  at->snap = s;
  at->epoch = epoch;
  at->state = SLOT_INSTALLED;
  atomic_fetch_add_explicit(&at->refs, 1, memory_order_seq_cst);
}

void wefti_store_reap(weft_store *store)
{
  snap *taken[SLOTS_MAX];
  unsigned count = 0;
  lock(store);
  for (unsigned i = 0; i < store->slot_count; i++) {
    snap *s = take_locked(&store->slots[i]);
    if (s) {
      taken[count++] = s;
    }
  }
  unlock(store);
  while (count > 0) {
    snap_free(taken[--count]);
  }
}

bool wefti_store_reapable(weft_store *store)
{
  bool found = false;
  lock(store);
  for (unsigned i = 0; i < store->slot_count && !found; i++) {
    const slot *s = &store->slots[i];
    found = s->state == SLOT_RETIRED &&
            atomic_load_explicit(&s->refs, memory_order_relaxed) == 0;
  }
  unlock(store);
  return found;
}

weft_err wefti_store_install(weft_store *store, uint64_t epoch,
                             const wefti_entry *entries, size_t count,
                             const uint64_t digest[2], const weft_snapshot **out)
{
  wefti_store_reap(store);
  snap *s = snap_create(entries, count, digest);
  if (!s) {
    return WEFT_E_NOMEM;
  }
  lock(store);
  const unsigned index = free_slot_locked(store);
  const bool twice = installed_locked(store, epoch) != SLOT_NONE;
  if (!twice && index != SLOT_NONE) {
    fill_locked(store, index, s, epoch);
  }
  unlock(store);
  if (twice || index == SLOT_NONE) {
    snap_free(s);
    return twice ? WEFT_E_EXISTS : WEFT_E_UNAVAIL;
  }
  *out = &s->pub;
  return WEFT_OK;
}

static void publish_locked(weft_store *store, unsigned index, uint64_t sequence,
                           unsigned held)
{
  slot *s = &store->slots[index];
  const unsigned old = store->live;
  if (store->dirty != 0 && held == 0 && old != SLOT_NONE) {
    /* Written over: nobody, however late, gets it by its number. */
    atomic_store_explicit(&store->slots[old].sequence, 0, memory_order_seq_cst);
  }
  s->snap->pub.weights_sequence = sequence;
  s->state = SLOT_DEFAULT;
  atomic_store_explicit(&s->sequence, sequence, memory_order_seq_cst);
  store->live = index;
  store->held = held;
  store->dirty = (held & HOLD_DIRTY) != 0 ? store->dirty : 0;
  point_locked(store, held != 0 ? SLOT_HELD : index);
  store->newest = sequence;
  if (old != SLOT_NONE) {
    retire_locked(store, old);
  }
}

weft_err wefti_store_publish(weft_store *store, uint64_t epoch, uint64_t sequence)
{
  weft_err err = WEFT_OK;
  lock(store);
  if (sequence > store->newest) {
    const unsigned index = installed_locked(store, epoch);
    if (index == SLOT_NONE) {
      err = WEFT_E_STATE;
    } else {
      publish_locked(store, index, sequence, 0);
    }
  }
  unlock(store);
  return err;
}

void wefti_store_drop(weft_store *store, uint64_t epoch)
{
  lock(store);
  const unsigned index = installed_locked(store, epoch);
  if (index != SLOT_NONE) {
    retire_locked(store, index);
  }
  unlock(store);
  wefti_store_reap(store);
}

weft_err wefti_store_swap(weft_store *store, const wefti_entry *entries, size_t count,
                          const uint64_t digest[2])
{
  wefti_store_reap(store);
  snap *s = snap_create(entries, count, digest);
  if (!s) {
    return WEFT_E_NOMEM;
  }
  weft_err err = WEFT_OK;
  lock(store);
  const unsigned index = free_slot_locked(store);
  if (store->live == SLOT_NONE) {
    err = WEFT_E_NOT_YET;
  } else if (index == SLOT_NONE) {
    err = WEFT_E_UNAVAIL;
  } else {
    slot *old = &store->slots[store->live];
    const uint64_t sequence = atomic_load_explicit(&old->sequence, memory_order_relaxed);
    atomic_store_explicit(&old->sequence, 0,
                          memory_order_seq_cst); /* not by number either */
    fill_locked(store, index, s, 0);
    publish_locked(store, index, sequence, store->held);
  }
  unlock(store);
  if (err != WEFT_OK) {
    snap_free(s);
  }
  return err;
}

void wefti_store_forget(weft_store *store)
{
  lock(store);
  store->held = 0;
  store->dirty = 0;
  store->live = SLOT_NONE;
  point_locked(store, SLOT_NONE);
  store->newest = 0;
  atomic_store_explicit(&store->grant_until_ns, 0, memory_order_relaxed);
  for (unsigned i = 0; i < store->slot_count; i++) {
    slot *s = &store->slots[i];
    atomic_store_explicit(&s->sequence, 0, memory_order_seq_cst);
    if (s->state == SLOT_INSTALLED || s->state == SLOT_DEFAULT) {
      retire_locked(store, i);
    }
  }
  unlock(store);
}

static void hold_locked(weft_store *store, unsigned held)
{
  if (held != store->held) {
    store->held = held;
    point_locked(store, held != 0 ? SLOT_HELD : store->live);
  }
}

void wefti_store_hold(weft_store *store, bool held)
{
  lock(store);
  hold_locked(store,
              held ? store->held | HOLD_BEHIND : store->held & ~(unsigned)HOLD_BEHIND);
  unlock(store);
}

void wefti_store_pause(weft_store *store, bool paused)
{
  lock(store);
  hold_locked(store,
              paused ? store->held | HOLD_PAUSE : store->held & ~(unsigned)HOLD_PAUSE);
  unlock(store);
}

void wefti_store_dirty(weft_store *store, uint64_t epoch)
{
  lock(store);
  if (store->live != SLOT_NONE) { /* else it was forgotten meanwhile */
    store->dirty = epoch > store->dirty ? epoch : store->dirty;
    hold_locked(store, store->held | HOLD_DIRTY);
  }
  unlock(store);
}

void wefti_store_grant(weft_store *store, uint64_t until_ns)
{
  lock(store);
  if (until_ns > atomic_load_explicit(&store->grant_until_ns, memory_order_relaxed)) {
    atomic_store_explicit(&store->grant_until_ns, until_ns, memory_order_relaxed);
  }
  unlock(store);
}

/* Readers of a slot, without the store's own reference. */
static uint32_t readers_locked(const slot *s)
{
  const unsigned refs = atomic_load_explicit(&s->refs, memory_order_relaxed);
  const unsigned own = s->state == SLOT_INSTALLED || s->state == SLOT_DEFAULT ? 1 : 0;
  return s->state != SLOT_FREE && refs > own ? refs - own : 0;
}

static void say_holders(const slot *s, uint32_t readers, char *text, size_t cap)
{
  const uint32_t mapped = atomic_load_explicit(&s->mapped, memory_order_relaxed);
  const uint32_t here = readers > mapped ? readers - mapped : 0;
  char some[32] = "";
  if (here > 0) {
    (void)snprintf(some, sizeof some, "%" PRIu32 " reader%s", here, here == 1 ? "" : "s");
  }
  (void)snprintf(
      text, cap, "sequence %" PRIu64 " by %s%s%s", s->snap->pub.weights_sequence, some,
      here > 0 && mapped > 0 ? " and " : "", mapped > 0 ? "the engine's process" : "");
}

static void list_holders(const slot *s, uint32_t readers, char *text, size_t cap)
{
  const size_t len = strlen(text);
  char one[96];
  say_holders(s, readers, one, sizeof one);
  (void)snprintf(text + len, cap - len, "%s%s", len == 0 ? "" : ", ", one);
}

/* Not of the default: its readers keep nothing from going. */
static void holders_locked(const weft_store *store, char *text, size_t cap)
{
  text[0] = '\0';
  for (unsigned i = 0; i < store->slot_count; i++) {
    const slot *s = &store->slots[i];
    const uint32_t readers = readers_locked(s);
    if (readers > 0 && s->state != SLOT_DEFAULT) {
      list_holders(s, readers, text, cap);
    }
  }
}

uint32_t wefti_store_readers(weft_store *store, char *text, size_t cap)
{
  uint32_t all = 0;
  text[0] = '\0';
  lock(store);
  for (unsigned i = 0; i < store->slot_count; i++) {
    const slot *s = &store->slots[i];
    const uint32_t readers = readers_locked(s);
    const uint32_t mapped = atomic_load_explicit(&s->mapped, memory_order_relaxed);
    if (readers > mapped) { /* who started this process asks its own readers */
      all += readers - mapped;
      list_holders(s, readers, text, cap);
    }
  }
  unlock(store);
  return all;
}

weft_err wefti_store_room(weft_store *store, weft_why *why)
{
  wefti_store_reap(store);
  char holders[WEFT_WHY_MAX / 2];
  lock(store);
  const bool room = free_slot_locked(store) != SLOT_NONE;
  holders_locked(store, holders, sizeof holders);
  unlock(store);
  return room ? WEFT_OK
              : weft_whyf(
                    why, WEFT_E_UNAVAIL,
                    "%u snapshots are held, which is the limit: %s; unpin them first",
                    store->slot_count, holders);
}

const weft_snapshot *wefti_store_base(weft_store *store)
{
  const weft_snapshot *base = NULL;
  lock(store);
  if (store->live != SLOT_NONE) {
    slot *s = &store->slots[store->live];
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_seq_cst);
    base = &s->snap->pub;
  }
  unlock(store);
  return base;
}

void wefti_store_share(weft_store *store, const weft_snapshot *snapshot)
{
  slot *s = &store->slots[((const snap *)(const void *)snapshot)->slot];
  atomic_fetch_add_explicit(&s->refs, 1, memory_order_seq_cst);
  atomic_fetch_add_explicit(&s->mapped, 1, memory_order_relaxed);
}

void wefti_store_unshare(weft_store *store, const weft_snapshot *snapshot)
{
  slot *s = &store->slots[((const snap *)(const void *)snapshot)->slot];
  atomic_fetch_sub_explicit(&s->mapped, 1, memory_order_relaxed);
  wefti_slot_leave(s);
}

void wefti_store_state_get(weft_store *store, wefti_store_state *out)
{
  *out = (wefti_store_state){ 0 };
  lock(store);
  for (unsigned i = 0; i < store->slot_count; i++) {
    out->readers += readers_locked(&store->slots[i]);
    out->snapshots += store->slots[i].state != SLOT_FREE;
  }
  out->dirty = store->dirty;
  if (store->live != SLOT_NONE && store->dirty == 0) {
    const weft_snapshot *live = &store->slots[store->live].snap->pub;
    out->weights_sequence = live->weights_sequence;
    out->digest_hi = live->digest_hi;
    out->digest_lo = live->digest_lo;
    out->tensors = live->tensor_count;
    out->bytes = live->bytes;
  }
  out->held = store->held != 0;
  unlock(store);
}

weft_err weft_store_create(const weft_store_opts *opts, weft_store **out)
{
  if (opts->size < sizeof(weft_store_opts) || opts->snapshots_max > SLOTS_MAX ||
      (opts->snapshots_max != 0 && opts->snapshots_max < SLOTS_MIN)) {
    return WEFT_E_INVAL;
  }
  weft_store *store = aligned_alloc(_Alignof(weft_store), sizeof(weft_store));
  if (!store) {
    return WEFT_E_NOMEM;
  }
  memset(store, 0, sizeof *store);
  if (pthread_mutex_init(&store->lock, NULL) != 0) {
    free(store);
    return WEFT_E_SYS;
  }
  atomic_init(&store->current, SLOT_NONE);
  store->slot_count = opts->snapshots_max == 0 ? SLOTS_DEFAULT : opts->snapshots_max;
  store->live = SLOT_NONE;
  store->needs_grant = opts->needs_grant;
  store->clock = wefti_boottime_ns;
  *out = store;
  return WEFT_OK;
}

void weft_store_destroy(weft_store *store)
{
  if (!store) {
    return;
  }
  for (unsigned i = 0; i < store->slot_count; i++) {
    snap_free(store->slots[i].snap);
  }
  (void)pthread_mutex_destroy(&store->lock);
  free(store);
}
