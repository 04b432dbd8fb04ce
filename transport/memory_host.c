#include "extent_map.h"
#include "memory_room.h"
#include "slab.h"
#include "weft/checked.h"
#include "weft/memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define GRANULE WEFTI_SLAB_GRANULE
#define SLAB_ALIGN (2 * MIB) /* a huge page */
#define SLAB_DEFAULT (64 * MIB)
#define PUNCH_MIN MIB
#define PIECE (256 * MIB) /* of pages at a time: a cancel waits for no more */
#define ASK_ROOM                                                                         \
  (16 * MIB) /* of pages at a time, from which the machine is asked first */

typedef struct host_memory {
  weft_memory pub;
  uint64_t slab_bytes, max_bytes;
  uint32_t last_id;
  /* Held for moments only; pages are taken and given back outside of it.  Slabs come and
   * go on the owner thread, so that thread reads the table without it. */
  pthread_mutex_t lock;
  wefti_extent_map map;
  wefti_slab **slabs; /* [slab_count] by id */
  size_t slab_count, slab_cap;
  weft_memory_stats stats;
} host_memory;

static host_memory *host(weft_memory *m)
{
  return (host_memory *)m; /* pub is the first member */
}

static void lock(host_memory *h)
{
  (void)pthread_mutex_lock(&h->lock);
}

static void unlock(host_memory *h)
{
  (void)pthread_mutex_unlock(&h->lock);
}

static bool cancelled(const host_memory *h)
{
  return h->pub.cancel != NULL &&
         atomic_load_explicit(h->pub.cancel, memory_order_relaxed);
}

static weft_err round_up(uint64_t v, uint64_t to, uint64_t *out)
{
  uint64_t r;
  if (weft_size_add(v, to - 1, &r) != WEFT_OK || r > (uint64_t)INT64_MAX) {
    return WEFT_E_OVERFLOW;
  }
  *out = r / to * to;
  return WEFT_OK;
}

static wefti_slab *find_slab(const host_memory *h, uint32_t id)
{
  size_t low = 0;
  size_t high = h->slab_count;
  while (low < high) {
    const size_t mid = low + (high - low) / 2;
    if (h->slabs[mid]->id < id) {
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  return low < h->slab_count && h->slabs[low]->id == id ? h->slabs[low] : NULL;
}

static void host_mark(weft_memory *m, uint32_t id, bool dirty)
{
  host_memory *h = host(m);
  lock(h);
  for (size_t i = 0; i < h->slab_count; i++) {
    if (id == 0 || h->slabs[i]->id == id) {
      weft_slab_mark(h->slabs[i]->base, h->slabs[i]->bytes + WEFT_SLAB_MARK_BYTES, dirty);
    }
  }
  unlock(h);
}

static weft_err grow_table(host_memory *h)
{
  if (h->slab_count < h->slab_cap) {
    return WEFT_OK;
  }
  const size_t cap = h->slab_cap == 0 ? 16 : h->slab_cap * 2;
  wefti_slab **bigger = realloc(h->slabs, cap * sizeof(wefti_slab *));
  if (bigger == NULL) {
    return WEFT_E_NOMEM;
  }
  h->slabs = bigger;
  h->slab_cap = cap;
  return WEFT_OK;
}

/* Adds a slab of at least bytes. */
static weft_err add_slab(host_memory *h, uint64_t bytes, weft_why *why)
{
  /* Growing in proportion keeps the descriptors few. */
  uint64_t want = bytes > h->slab_bytes ? bytes : h->slab_bytes;
  if (want < h->stats.mapped / 8) {
    want = h->stats.mapped / 8;
  }
  if (round_up(want, SLAB_ALIGN, &want) != WEFT_OK) {
    return weft_whyf(why, WEFT_E_OVERFLOW, "host memory: %zu bytes", (size_t)bytes);
  }
  if (h->last_id == INT32_MAX) { /* the upper half is kept memory's */
    return weft_whyf(why, WEFT_E_LIMIT, "host memory: out of slab ids");
  }
  wefti_slab *s = NULL;
  weft_err err = wefti_memory_room("", bytes, why);
  if (err == WEFT_OK) {
    err = wefti_slab_open(h->last_id + 1, want, &s, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  lock(h);
  err = grow_table(h);
  if (err == WEFT_OK) {
    err = wefti_extent_add_slab(&h->map, s->id, want);
  }
  if (err == WEFT_OK) {
    h->last_id = s->id;
    h->slabs[h->slab_count++] = s;
    h->stats.slabs++;
    h->stats.mapped += want;
  }
  unlock(h);
  if (err != WEFT_OK) {
    wefti_slab_close(s);
    return weft_whyf(why, err, "host memory: no memory for a slab's entry");
  }
  return WEFT_OK;
}

static weft_err back(host_memory *h, wefti_slab *s, uint64_t offset, uint64_t bytes,
                     weft_why *why)
{
  const uint64_t end = (offset + bytes - 1) / GRANULE + 1;
  uint64_t g = offset / GRANULE;
  while (g < end) {
    uint64_t to = g;
    while (to < end && !s->granules[to] && to - g < PIECE / GRANULE) {
      to++;
    }
    const uint64_t len = (to - g) * GRANULE;
    if (len == 0) {
      g++;
      continue;
    }
    if (h->max_bytes > 0 &&
        (h->stats.backed > h->max_bytes || len > h->max_bytes - h->stats.backed)) {
      return weft_whyf(why, WEFT_E_LIMIT,
                       "host memory: %zu bytes more are over the limit of %zu (%zu held)",
                       (size_t)len, (size_t)h->max_bytes, (size_t)h->stats.backed);
    }
    weft_err err = cancelled(h)
                       ? weft_whyf(why, WEFT_E_CANCELLED, "host memory: cancelled")
                   : len < ASK_ROOM ? WEFT_OK
                                    : wefti_memory_room("", len, why);
    if (err == WEFT_OK) {
      err = wefti_slab_take(s, g * GRANULE, len, why);
    }
    if (err != WEFT_OK) {
      return err;
    }
    memset(s->granules + g, 1, to - g);
    s->backed += len;
    lock(h);
    h->stats.backed += len;
    h->stats.fresh += len;
    unlock(h);
    g = to;
  }
  return WEFT_OK;
}

static weft_err host_reserve(weft_memory *m, uint64_t bytes, weft_why *why)
{
  host_memory *h = host(m);
  lock(h);
  const uint64_t left = h->stats.mapped - h->stats.used;
  unlock(h);
  return bytes <= left ? WEFT_OK : add_slab(h, bytes - left, why);
}

/* First fit in address order: when updates of the same tensors in the same order
 * alternate, each finds the places of the one before last again.  (What is free is then
 * what was free for that one less what the other holds, and those places were not the
 * other's; an earlier place that fits now would have fitted then.) */
static weft_err take(host_memory *h, uint64_t bytes, weft_extent *out)
{
  lock(h);
  const weft_err err = wefti_extent_take(&h->map, bytes, &out->slab, &out->offset);
  if (err == WEFT_OK) {
    h->stats.used += bytes;
    h->stats.extents++;
  }
  unlock(h);
  return err;
}

static void give_back(host_memory *h, uint32_t slab_id, uint64_t offset, uint64_t bytes)
{
  lock(h);
  wefti_extent_return(&h->map, slab_id, offset, bytes);
  h->stats.used -= bytes;
  h->stats.extents--;
  unlock(h);
}

static weft_err host_alloc(weft_memory *m, uint64_t bytes, weft_extent *out,
                           weft_why *why)
{
  host_memory *h = host(m);
  weft_extent e = { .bytes = bytes };
  uint64_t rounded;
  if (round_up(bytes, WEFT_EXTENT_ALIGN, &rounded) != WEFT_OK) {
    return weft_whyf(why, WEFT_E_OVERFLOW, "host memory: %zu bytes", (size_t)bytes);
  }
  if (bytes > 0) {
    weft_err err = take(h, rounded, &e);
    if (err == WEFT_E_NOTFOUND) {
      err = add_slab(h, rounded, why);
      if (err != WEFT_OK) {
        return err;
      }
      err = take(h, rounded, &e);
    }
    if (err != WEFT_OK) {
      return weft_whyf(why, err, "host memory: no memory for an extent's entry");
    }
    wefti_slab *s = find_slab(h, e.slab);
    err = back(h, s, e.offset, rounded, why);
    if (err != WEFT_OK) {
      give_back(h, e.slab, e.offset, rounded);
      return err;
    }
    e.ptr = s->base + e.offset;
  }
  *out = e;
  return WEFT_OK;
}

static void host_free(weft_memory *m, const weft_extent *extent)
{
  if (extent->slab != 0) {
    uint64_t rounded = 0;
    (void)round_up(extent->bytes, WEFT_EXTENT_ALIGN, &rounded);
    give_back(host(m), extent->slab, extent->offset, rounded);
  }
}

static uint64_t free_backed(host_memory *h)
{
  lock(h);
  const uint64_t v =
      h->stats.backed > h->stats.used ? h->stats.backed - h->stats.used : 0;
  unlock(h);
  return v;
}

/* Gives back the whole granules inside a free piece, which only this thread could take,
 * unless it is told to leave off. */
static void punch(host_memory *h, wefti_slab *s, uint64_t offset, uint64_t bytes)
{
  const uint64_t end = (offset + bytes) / GRANULE;
  uint64_t from = (offset + GRANULE - 1) / GRANULE;
  while (from < end && !cancelled(h)) {
    const uint64_t to = end - from > PIECE / GRANULE ? from + PIECE / GRANULE : end;
    uint64_t had = 0;
    for (uint64_t g = from; g < to; g++) {
      had += s->granules[g];
    }
    if (had > 0) {
      if (!wefti_slab_give(s, from * GRANULE, (to - from) * GRANULE)) {
        return;
      }
      memset(s->granules + from, 0, to - from);
      s->backed -= had * GRANULE;
      lock(h);
      h->stats.backed -= had * GRANULE;
      unlock(h);
    }
    from = to;
  }
}

static bool can_drop(host_memory *h, const wefti_slab *s, uint64_t keep)
{
  const uint64_t spare = free_backed(h);
  lock(h);
  const wefti_free_node *n = wefti_extent_next(&h->map, s->id, 0);
  const bool unused = n != NULL && n->slab == s->id && n->bytes == s->bytes;
  unlock(h);
  return unused && spare >= s->backed && spare - s->backed >= keep;
}

static void drop_free_slabs(host_memory *h, uint64_t keep)
{
  for (size_t i = h->slab_count; i-- > 0 && !cancelled(h);) {
    wefti_slab *s = h->slabs[i];
    if (!can_drop(h, s, keep)) {
      continue;
    }
    punch(h, s, 0, s->bytes); /* closing it would free its pages in one go */
    if (cancelled(h)) {
      return;
    }
    lock(h);
    wefti_extent_remove_slab(&h->map, s->id);
    memmove(h->slabs + i, h->slabs + i + 1,
            (h->slab_count - i - 1) * sizeof(wefti_slab *));
    h->slab_count--;
    h->stats.slabs--;
    h->stats.mapped -= s->bytes;
    h->stats.backed -= s->backed;
    unlock(h);
    wefti_slab_close(s);
  }
}

static void host_trim(weft_memory *m, uint64_t keep)
{
  host_memory *h = host(m);
  drop_free_slabs(h, keep);
  lock(h);
  wefti_extent_trim(&h->map);
  unlock(h);
  /* Some slack, or granules at the edges would come and go with every update. */
  const uint64_t slack = keep == 0 ? 0 : keep / 8 + 4 * MIB;
  for (size_t i = h->slab_count; i-- > 0;) {
    wefti_slab *s = h->slabs[i];
    uint64_t offset = 0;
    while (free_backed(h) > keep && free_backed(h) - keep > slack && !cancelled(h)) {
      lock(h);
      const wefti_free_node *n = wefti_extent_next(&h->map, s->id, offset);
      const bool here = n != NULL && n->slab == s->id;
      const uint64_t at = here ? n->offset : 0;
      const uint64_t bytes = here ? n->bytes : 0;
      unlock(h);
      if (!here) {
        break;
      }
      if (bytes >= PUNCH_MIN) {
        punch(h, s, at, bytes);
      }
      offset = at + bytes;
    }
  }
}

static int host_slab_fd(weft_memory *m, uint32_t slab_id, uint64_t *bytes)
{
  host_memory *h = host(m);
  int fd = -1;
  lock(h);
  const wefti_slab *s = find_slab(h, slab_id);
  if (s != NULL) {
    fd = s->fd;
    *bytes = s->bytes + WEFT_SLAB_MARK_BYTES;
  }
  unlock(h);
  return fd;
}

static void host_stats(weft_memory *m, weft_memory_stats *out)
{
  lock(host(m));
  *out = host(m)->stats;
  unlock(host(m));
}

static void host_destroy(weft_memory *m)
{
  host_memory *h = host(m);
  for (size_t i = 0; i < h->slab_count; i++) {
    wefti_slab_close(h->slabs[i]);
  }
  free(h->slabs);
  wefti_extent_fini(&h->map);
  (void)pthread_mutex_destroy(&h->lock);
  free(h);
}

static const weft_memory_ops host_ops = {
  .name = "host",
  .reserve = host_reserve,
  .alloc = host_alloc,
  .free = host_free,
  .trim = host_trim,
  .slab_fd = host_slab_fd,
  .stats = host_stats,
  .destroy = host_destroy,
  .mark = host_mark,
};

weft_err weft_memory_host_create(const weft_memory_host_opts *opts, weft_memory **out)
{
  if (opts != NULL && opts->size != sizeof *opts) {
    return WEFT_E_INVAL;
  }
  host_memory *h = calloc(1, sizeof *h);
  if (h == NULL) {
    return WEFT_E_NOMEM;
  }
  if (pthread_mutex_init(&h->lock, NULL) != 0) {
    free(h);
    return WEFT_E_NOMEM;
  }
  h->pub.ops = &host_ops;
  h->slab_bytes = opts == NULL || opts->slab_bytes == 0 ? SLAB_DEFAULT : opts->slab_bytes;
  h->max_bytes = opts == NULL ? 0 : opts->max_bytes;
  *out = &h->pub;
  return WEFT_OK;
}
