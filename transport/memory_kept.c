#define _GNU_SOURCE /* F_GET_SEALS, fallocate */
#include "weft/checked.h"
#include "weft/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Slabs of somebody who is no more.  What lies in them stays where it is, so nothing is
 * cut from them but what the caller points at. */

#define GRANULE (UINT64_C(64) << 10) /* pages go back in these */
#define PIECE (UINT64_C(256) << 20)  /* of them at a time: a cancel waits for no more */
#define FIRST_ID (UINT32_C(1) << 31) /* host memory counts from 1 */

typedef struct kept_slab {
  struct kept_slab *next;
  uint32_t id;
  int fd;
  uint8_t *base;
  uint64_t bytes;
  uint64_t extents;
  bool alone;      /* nobody else reads what no extent covers */
  bool punched;    /* nothing has become free since */
  uint32_t uses[]; /* [bytes / GRANULE, rounded up] extents that touch it */
} kept_slab;

typedef struct kept_memory {
  weft_memory pub;
  pthread_mutex_t lock; /* over all of it; held for moments */
  kept_slab *slabs;
  bool sealed;
  bool writable;
  uint32_t last_id;
  weft_memory_stats stats;
} kept_memory;

static kept_memory *kept(weft_memory *m)
{
  return (kept_memory *)m; /* pub is the first member */
}

static kept_slab *find(const kept_memory *k, uint32_t id)
{
  for (kept_slab *s = k->slabs; s != NULL; s = s->next) {
    if (s->id == id) {
      return s;
    }
  }
  return NULL;
}

static void count(kept_slab *s, uint64_t offset, uint64_t bytes, bool more)
{
  for (uint64_t g = offset / GRANULE; g <= (offset + bytes - 1) / GRANULE; g++) {
    s->uses[g] += more ? 1 : UINT32_MAX; /* modulo: one less */
  }
}

static void close_slab(kept_slab *s)
{
  (void)munmap(s->base, s->bytes);
  (void)close(s->fd);
  free(s);
}

/* The lock is held.  Takes s out of the list. */
static void unlink_slab(kept_memory *k, const kept_slab *s)
{
  for (kept_slab **at = &k->slabs; *at != NULL; at = &(*at)->next) {
    if (*at == s) {
      *at = s->next;
      break;
    }
  }
  k->stats.slabs--;
  k->stats.mapped -= s->bytes;
}

static weft_err kept_reserve(weft_memory *m, uint64_t bytes, weft_why *why)
{
  (void)m, (void)bytes, (void)why;
  return WEFT_OK;
}

static weft_err kept_alloc(weft_memory *m, uint64_t bytes, weft_extent *out,
                           weft_why *why)
{
  (void)m, (void)bytes, (void)out;
  return weft_whyf(why, WEFT_E_UNSUPPORTED, "kept memory: nothing new is put there");
}

static void kept_free(weft_memory *m, const weft_extent *extent)
{
  kept_memory *k = kept(m);
  kept_slab *over = NULL;
  if (extent->slab == 0) {
    return;
  }
  (void)pthread_mutex_lock(&k->lock);
  kept_slab *s = find(k, extent->slab);
  if (s != NULL) {
    count(s, extent->offset, extent->bytes, false);
    s->punched = false;
    k->stats.extents--;
    k->stats.used -= extent->bytes;
    if (--s->extents == 0 && k->sealed) {
      unlink_slab(k, s);
      over = s;
    }
  }
  (void)pthread_mutex_unlock(&k->lock);
  if (over != NULL) {
    close_slab(over);
  }
}

static bool cancelled(const kept_memory *k)
{
  return k->pub.cancel != NULL &&
         atomic_load_explicit(k->pub.cancel, memory_order_relaxed);
}

/* The lock is held: an extent may not be given to a new owner meanwhile, and there are
 * few that are not the caller's. */
static void punch(const kept_memory *k, kept_slab *s)
{
  const uint64_t granules = (s->bytes + GRANULE - 1) / GRANULE;
  uint64_t from = 0;
  while (from < granules && !cancelled(k)) {
    uint64_t to = from;
    while (to < granules && to - from < PIECE / GRANULE && s->uses[to] == 0) {
      to++;
    }
    if (to > from &&
        fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)(from * GRANULE), (off_t)((to - from) * GRANULE)) != 0) {
      return;
    }
    from = to > from ? to : to + 1;
  }
  s->punched = !cancelled(k);
}

static void kept_trim(weft_memory *m, uint64_t keep)
{
  kept_memory *k = kept(m);
  (void)keep; /* what is free here is of use to nobody */
  (void)pthread_mutex_lock(&k->lock);
  for (kept_slab *s = k->slabs; s != NULL; s = s->next) {
    if (k->sealed && s->alone && !s->punched) {
      punch(k, s);
    }
  }
  (void)pthread_mutex_unlock(&k->lock);
}

static int kept_slab_fd(weft_memory *m, uint32_t id, uint64_t *bytes)
{
  kept_memory *k = kept(m);
  (void)pthread_mutex_lock(&k->lock);
  const kept_slab *s = find(k, id);
  const int fd = s != NULL ? s->fd : -1;
  if (s != NULL) {
    *bytes = s->bytes;
  }
  (void)pthread_mutex_unlock(&k->lock);
  return fd;
}

static void kept_stats(weft_memory *m, weft_memory_stats *out)
{
  kept_memory *k = kept(m);
  (void)pthread_mutex_lock(&k->lock);
  *out = k->stats;
  (void)pthread_mutex_unlock(&k->lock);
}

static void kept_mark(weft_memory *m, uint32_t id, bool dirty)
{
  kept_memory *k = kept(m);
  (void)pthread_mutex_lock(&k->lock);
  for (kept_slab *s = k->writable ? k->slabs : NULL; s != NULL; s = s->next) {
    if (id == 0 || s->id == id) {
      weft_slab_mark(s->base, s->bytes, dirty);
    }
  }
  (void)pthread_mutex_unlock(&k->lock);
}

static void kept_destroy(weft_memory *m)
{
  kept_memory *k = kept(m);
  while (k->slabs != NULL) {
    kept_slab *s = k->slabs;
    k->slabs = s->next;
    close_slab(s);
  }
  (void)pthread_mutex_destroy(&k->lock);
  free(k);
}

static const weft_memory_ops kept_ops = {
  .name = "kept",
  .reserve = kept_reserve,
  .alloc = kept_alloc,
  .free = kept_free,
  .trim = kept_trim,
  .slab_fd = kept_slab_fd,
  .stats = kept_stats,
  .destroy = kept_destroy,
  .mark = kept_mark,
};

void weft_memory_kept_writable(weft_memory *m)
{
  kept(m)->writable = true;
}

weft_err weft_memory_kept_create(weft_memory **out)
{
  kept_memory *k = calloc(1, sizeof *k);
  if (k == NULL) {
    return WEFT_E_NOMEM;
  }
  if (pthread_mutex_init(&k->lock, NULL) != 0) {
    free(k);
    return WEFT_E_NOMEM;
  }
  k->pub.ops = &kept_ops;
  k->last_id = FIRST_ID;
  *out = &k->pub;
  return WEFT_OK;
}

/* A file that could shrink would end its readers with a signal. */
static weft_err check_file(int fd, uint64_t bytes, weft_why *why)
{
  struct stat st;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return weft_whyf(why, WEFT_E_INVAL, "kept memory: a slab's file could shrink");
  }
  if (fstat(fd, &st) != 0 || st.st_size <= 0 || bytes == 0 || bytes > SIZE_MAX / 2 ||
      (uint64_t)st.st_size < bytes) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "kept memory: a slab of %zu bytes is said to be in a file of %zd",
                     (size_t)bytes, (ssize_t)st.st_size);
  }
  return WEFT_OK;
}

weft_err weft_memory_kept_add(weft_memory *m, int fd, uint64_t bytes, bool alone,
                              uint32_t *id, weft_why *why)
{
  kept_memory *k = kept(m);
  const weft_err err = check_file(fd, bytes, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (k->writable && bytes < WEFT_SLAB_MARK_BYTES) {
    return weft_whyf(why, WEFT_E_INVAL, "kept memory: a slab without a mark");
  }
  if (k->last_id == UINT32_MAX) {
    return weft_whyf(why, WEFT_E_LIMIT, "kept memory: out of slab ids");
  }
  kept_slab *s =
      calloc(1, sizeof *s + (size_t)((bytes - 1) / GRANULE + 1) * sizeof s->uses[0]);
  if (s == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "kept memory: no memory for a slab's table");
  }
  const int how = k->writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void *base = mmap(NULL, (size_t)bytes, how, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    const int e = errno;
    free(s);
    return weft_whyf(why, WEFT_E_SYS, "kept memory: mmap of %zu bytes: errno %d",
                     (size_t)bytes, e);
  }
  s->fd = fd;
  s->base = base;
  s->bytes = bytes;
  s->alone = alone;
  if (k->writable) { /* trim leaves the mark alone */
    count(s, bytes - WEFT_SLAB_MARK_BYTES, WEFT_SLAB_MARK_BYTES, true);
  }
  (void)pthread_mutex_lock(&k->lock);
  s->id = ++k->last_id;
  s->next = k->slabs;
  k->slabs = s;
  k->sealed = false;
  k->stats.slabs++;
  k->stats.mapped += bytes;
  (void)pthread_mutex_unlock(&k->lock);
  *id = s->id;
  return WEFT_OK;
}

weft_err weft_memory_kept_at(weft_memory *m, uint32_t id, uint64_t offset, uint64_t bytes,
                             weft_extent *out)
{
  kept_memory *k = kept(m);
  weft_err err = WEFT_E_INVAL;
  if (bytes == 0) {
    *out = (weft_extent){ 0 };
    return WEFT_OK;
  }
  (void)pthread_mutex_lock(&k->lock);
  kept_slab *s = find(k, id);
  if (s != NULL && offset <= s->bytes && bytes <= s->bytes - offset) {
    count(s, offset, bytes, true);
    s->extents++;
    k->stats.extents++;
    k->stats.used += bytes;
    *out = (weft_extent){
      .slab = id, .offset = offset, .bytes = bytes, .ptr = s->base + offset
    };
    err = WEFT_OK;
  }
  (void)pthread_mutex_unlock(&k->lock);
  return err;
}

void weft_memory_kept_seal(weft_memory *m)
{
  kept_memory *k = kept(m);
  kept_slab *over = NULL;
  (void)pthread_mutex_lock(&k->lock);
  k->sealed = true;
  for (kept_slab *s = k->slabs, *next; s != NULL; s = next) {
    next = s->next;
    if (s->extents == 0) {
      unlink_slab(k, s);
      s->next = over;
      over = s;
    }
  }
  (void)pthread_mutex_unlock(&k->lock);
  while (over != NULL) {
    kept_slab *s = over;
    over = s->next;
    close_slab(s);
  }
}
