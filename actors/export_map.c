#define _GNU_SOURCE
#include "exports.h"
#include "weft/checked.h"
#include "weft/dtype.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The parent's end: maps, reads the table for the first reader, hands out pins. */

enum { SLABS_WAITING_MAX = 65536, RETIRED = 1, CLOSED = 2, READER = 4 };
static const uint64_t table_max = UINT64_C(1) << 30; /* bytes */

typedef struct mapping { /* of one slab of one worker life */
  struct mapping *next;
  uint64_t id, incarnation, bytes;
  void *base;
  unsigned refs;
} mapping;

typedef struct seat seat;
typedef struct import {
  struct import *next;
  seat *seat;
  uint64_t incarnation, epoch;
  weft_snapshot snapshot; /* weights_sequence 0: not visible yet */
  weft_tensor *tensors;
  uint8_t *table; /* names and shapes point into it */
  int table_fd;   /* until it is read */
  uint64_t table_bytes;
  /* The table was read and is good.  Release after, acquire before tensors are used. */
  atomic_bool open;
  mapping **mappings; /* [mapping_count], a reference each */
  size_t mapping_count;
  /* READER for each; RETIRED: it goes with its last reader; CLOSED beside it: dropped,
   * gone or unreadable, nobody joins that reader.  Added to under lock,
   * readers leave without: acq_rel, so that who frees it has seen them end. */
  atomic_uint use;
} import;

struct seat {
  wefti_imports *all;
  uint32_t rank;
  pthread_mutex_t lock;    /* over imports and who comes to read them */
  pthread_mutex_t opening; /* over table, tensors and table_fd of those that are pinned */
  import *imports;         /* newest first */
  mapping *mappings;       /* loop 0's, as is what follows */
  mapping **waiting;       /* of SLABS messages, a reference each */
  size_t waiting_count;
};

struct wefti_imports {
  weft_runtime *rt;
  wefti_imports_ops ops;
  uint32_t world_size;
  _Atomic uint64_t visible; /* weights_sequence that was said last.  Relaxed: a number */
  seat *seats;
};

static bool is_retired(const import *im)
{
  return (atomic_load_explicit(&im->use, memory_order_relaxed) & RETIRED) != 0;
}

/* ---- slabs */

static void unmap(seat *s, mapping *m)
{
  if (--m->refs > 0) {
    return;
  }
  for (mapping **at = &s->mappings; *at; at = &(*at)->next) {
    if (*at == m) {
      *at = m->next;
      break;
    }
  }
  (void)munmap(m->base, m->bytes);
  free(m);
}

/* A reference to the mapping of slab, made from fd if there is none.  Refuses a file that
 * could shrink under the readers. */
static mapping *map_slab(seat *s, uint64_t incarnation, const wefti_export_slab *slab,
                         int fd)
{
  for (mapping *m = s->mappings; m; m = m->next) {
    if (m->id == slab->id && m->incarnation == incarnation) {
      m->refs++;
      return m;
    }
  }
  struct stat st;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) != 0 || st.st_size <= 0 ||
      (uint64_t)st.st_size < slab->bytes || slab->bytes == 0) {
    return NULL;
  }
  mapping *m = calloc(1, sizeof *m);
  if (!m) {
    return NULL;
  }
  m->base = mmap(NULL, slab->bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (m->base == MAP_FAILED) {
    free(m);
    return NULL;
  }
  m->id = slab->id;
  m->incarnation = incarnation;
  m->bytes = slab->bytes;
  m->refs = 1;
  m->next = s->mappings;
  s->mappings = m;
  return m;
}

static void drop_waiting(seat *s)
{
  for (size_t i = 0; i < s->waiting_count; i++) {
    unmap(s, s->waiting[i]);
  }
  free(s->waiting);
  s->waiting = NULL;
  s->waiting_count = 0;
}

static bool take_slabs(seat *s, uint64_t incarnation, const wefti_export_msg *msg,
                       const int *fds, size_t nfds)
{
  if (nfds != msg->slab_count || s->waiting_count + nfds > SLABS_WAITING_MAX) {
    return false;
  }
  mapping **grown =
      realloc(s->waiting, (s->waiting_count + nfds + 1) * sizeof(mapping *));
  if (!grown) {
    return false;
  }
  s->waiting = grown;
  for (size_t i = 0; i < nfds; i++) {
    mapping *m = map_slab(s, incarnation, &msg->slabs[i], fds[i]);
    if (!m) {
      return false;
    }
    s->waiting[s->waiting_count++] = m;
  }
  return true;
}

/* ---- imports */

/* Nobody reads it and it is in no list. */
static void free_import(import *im)
{
  for (size_t i = 0; i < im->mapping_count; i++) {
    unmap(im->seat, im->mappings[i]);
  }
  free(im->mappings);
  if (im->table_fd >= 0) {
    (void)close(im->table_fd);
  }
  free(im->tensors);
  free(im->table);
  free(im);
}

/* Loop 0: frees what is retired and not read, and tells the worker. */
static void sweep(void *arg)
{
  seat *s = arg;
  import *ended = NULL;
  (void)pthread_mutex_lock(&s->lock);
  for (import **at = &s->imports; *at;) {
    import *im = *at;
    const unsigned use = atomic_load_explicit(&im->use, memory_order_acquire);
    if ((use & ~(unsigned)CLOSED) == RETIRED) {
      *at = im->next;
      im->next = ended;
      ended = im;
    } else {
      at = &im->next;
    }
  }
  (void)pthread_mutex_unlock(&s->lock);
  while (ended) {
    import *im = ended;
    ended = im->next;
    s->all->ops.release(s->all->ops.arg, s->rank, im->incarnation, im->epoch);
    free_import(im);
  }
}

static uint8_t *read_table(int fd, uint64_t bytes)
{
  uint8_t *table = malloc((size_t)bytes + 1);
  size_t at = 0;
  while (table && at < bytes) {
    const ssize_t n = pread(fd, table + at, (size_t)bytes - at, (off_t)at);
    if (n == 0 || (n < 0 && errno != EINTR)) {
      free(table);
      return NULL;
    }
    at += n > 0 ? (size_t)n : 0;
  }
  return table;
}

static const mapping *find_mapping(const import *im, uint64_t slab)
{
  for (size_t i = 0; i < im->mapping_count; i++) {
    if (im->mappings[i]->id == slab) {
      return im->mappings[i];
    }
  }
  return NULL;
}

static bool read_tensor(const import *im, const wefti_export_record *r, weft_tensor *out)
{
  const uint64_t table_bytes = im->table_bytes;
  const mapping *m = r->bytes > 0 ? find_mapping(im, r->slab) : NULL;
  if (r->ndim > WEFT_NDIM_MAX || r->name_at >= table_bytes ||
      r->name_len >= table_bytes - r->name_at ||
      im->table[r->name_at + r->name_len] != 0 || r->shape_at % sizeof(int64_t) != 0 ||
      r->shape_at > table_bytes ||
      r->ndim * sizeof(int64_t) > table_bytes - r->shape_at ||
      memchr(r->dtype, 0, sizeof r->dtype) == NULL) {
    return false;
  }
  if (r->bytes > 0 && (!m || r->offset > m->bytes || r->bytes > m->bytes - r->offset)) {
    return false;
  }
  const void *shape = im->table + r->shape_at; /* malloc's alignment, a multiple of 8 */
  *out = (weft_tensor){ .name = (const char *)im->table + r->name_at,
                        .dtype = weft_dtype_name(weft_dtype_parse(r->dtype)),
                        .shape = shape,
                        .ndim = r->ndim,
                        .bytes = r->bytes,
                        .data = m ? (const uint8_t *)m->base + r->offset : NULL };
  memcpy(out->digest, r->digest, sizeof out->digest);
  return out->dtype != NULL;
}

static bool read_tensors(import *im)
{
  const size_t count = im->snapshot.tensor_count;
  im->tensors = calloc(count + 1, sizeof *im->tensors);
  if (!im->tensors) {
    return false;
  }
  for (size_t i = 0; i < count; i++) {
    wefti_export_record r;
    memcpy(&r, im->table + i * sizeof r, sizeof r);
    if (!read_tensor(im, &r, &im->tensors[i])) {
      return false;
    }
  }
  im->snapshot.tensors = im->tensors;
  return true;
}

/* The first reader's work, and not loop 0's: a daemon holds tables that nobody in it ever
 * reads, and a commit need not wait for 10,000 rows.  Any thread, with a reader's
 * reference.  False: the table lies, or there is no memory. */
static bool open_import(import *im)
{
  if (atomic_load_explicit(&im->open, memory_order_acquire)) {
    return true;
  }
  (void)pthread_mutex_lock(&im->seat->opening);
  bool good = atomic_load_explicit(&im->open, memory_order_relaxed);
  if (!good && im->table_fd >= 0) {
    im->table = read_table(im->table_fd, im->table_bytes);
    good = im->table && read_tensors(im);
    (void)close(im->table_fd);
    im->table_fd = -1;
    atomic_store_explicit(&im->open, good, memory_order_release);
  }
  (void)pthread_mutex_unlock(&im->seat->opening);
  return good;
}

/* What can be seen without reading it. */
static bool has_table(int fd, const wefti_export_msg *msg)
{
  struct stat st;
  size_t records;
  return msg->table_bytes <= table_max &&
         weft_size_mul(msg->tensors, sizeof(wefti_export_record), &records) == WEFT_OK &&
         records <= msg->table_bytes && fstat(fd, &st) == 0 && st.st_size >= 0 &&
         (uint64_t)st.st_size >= msg->table_bytes;
}

/* fds: the table's, then the slabs'. */
static bool take_install(seat *s, uint64_t incarnation, const wefti_export_msg *msg,
                         int *fds, size_t nfds)
{
  if (nfds != (size_t)msg->slab_count + 1 || !has_table(fds[0], msg) ||
      !take_slabs(s, incarnation, msg, fds + 1, nfds - 1)) {
    return false;
  }
  import *im = calloc(1, sizeof *im);
  if (!im) {
    return false;
  }
  im->seat = s;
  im->incarnation = incarnation;
  im->epoch = msg->epoch;
  im->snapshot = (weft_snapshot){ .digest_hi = msg->digest_hi,
                                  .digest_lo = msg->digest_lo,
                                  .tensor_count = msg->tensors,
                                  .bytes = msg->bytes };
  im->table_bytes = msg->table_bytes;
  im->table_fd = fds[0];
  fds[0] = -1;
  im->mappings = s->waiting;
  im->mapping_count = s->waiting_count;
  s->waiting = NULL;
  s->waiting_count = 0;
  (void)pthread_mutex_lock(&s->lock);
  im->next = s->imports;
  s->imports = im;
  (void)pthread_mutex_unlock(&s->lock);
  return true;
}

/* epoch 0: all of that life. */
static void retire(seat *s, uint64_t incarnation, uint64_t epoch)
{
  (void)pthread_mutex_lock(&s->lock);
  for (import *im = s->imports; im; im = im->next) {
    if (im->incarnation == incarnation && (epoch == 0 || im->epoch == epoch)) {
      atomic_fetch_or_explicit(&im->use, RETIRED | CLOSED, memory_order_relaxed);
    }
  }
  (void)pthread_mutex_unlock(&s->lock);
  sweep(s);
}

void wefti_imports_message(wefti_imports *all, uint32_t rank, uint64_t incarnation,
                           const wefti_heard *heard)
{
  seat *s = &all->seats[rank];
  wefti_export_msg msg;
  bool used = false;
  if (wefti_export_read(heard->data, heard->len, &msg)) {
    switch (msg.kind) {
    case WEFTI_EXPORT_SLABS:
      used = take_slabs(s, incarnation, &msg, heard->fds, heard->nfds);
      break;
    case WEFTI_EXPORT_INSTALL:
      used = take_install(s, incarnation, &msg, heard->fds, heard->nfds);
      if (!used) { /* it need not hold what cannot be read */
        all->ops.release(all->ops.arg, rank, incarnation, msg.epoch);
      }
      break;
    case WEFTI_EXPORT_DROP:
      retire(s, incarnation, msg.epoch);
      used = true;
      break;
    default:
      break;
    }
  }
  if (!used) {
    drop_waiting(s);
  }
  for (size_t i = 0; i < heard->nfds; i++) {
    if (heard->fds[i] >= 0) {
      (void)close(heard->fds[i]);
    }
  }
}

void wefti_imports_gone(wefti_imports *all, uint32_t rank, uint64_t incarnation)
{
  drop_waiting(&all->seats[rank]);
  retire(&all->seats[rank], incarnation, 0);
}

/* The lock is held. */
static bool is_candidate(const import *im)
{
  return im && im->snapshot.weights_sequence == 0 && !is_retired(im);
}

static bool has_digest(const import *im, const uint64_t digest[2])
{
  return im->snapshot.digest_hi == digest[0] && im->snapshot.digest_lo == digest[1];
}

/* Of ranks that hold shards of their own the digest of all is none of theirs. */
static bool some_rank_holds(wefti_imports *all, const uint64_t digest[2])
{
  bool found = all->world_size == 1;
  for (uint32_t r = 0; r < all->world_size && !found; r++) {
    seat *s = &all->seats[r];
    (void)pthread_mutex_lock(&s->lock);
    found = is_candidate(s->imports) && has_digest(s->imports, digest);
    (void)pthread_mutex_unlock(&s->lock);
  }
  return found;
}

void wefti_imports_visible(wefti_imports *all, uint64_t weights_sequence,
                           const uint64_t digest[2])
{
  if (weights_sequence == atomic_load_explicit(&all->visible, memory_order_relaxed)) {
    return;
  }
  atomic_store_explicit(&all->visible, weights_sequence, memory_order_relaxed);
  const bool by_digest = some_rank_holds(all, digest);
  for (uint32_t r = 0; r < all->world_size; r++) {
    seat *s = &all->seats[r];
    (void)pthread_mutex_lock(&s->lock);
    import *newest = s->imports;
    if (is_candidate(newest) && (!by_digest || has_digest(newest, digest))) {
      newest->snapshot.weights_sequence = weights_sequence;
    }
    (void)pthread_mutex_unlock(&s->lock);
  }
}

void wefti_imports_settle(wefti_imports *all, uint64_t weights_sequence)
{
  for (uint32_t r = 0; r < all->world_size; r++) {
    seat *s = &all->seats[r];
    (void)pthread_mutex_lock(&s->lock);
    for (import *im = s->imports; im; im = im->next) {
      /* 0: only the newest can become visible yet. */
      if (im->snapshot.weights_sequence < weights_sequence &&
          (im->snapshot.weights_sequence != 0 || im != s->imports)) {
        atomic_fetch_or_explicit(&im->use, RETIRED, memory_order_relaxed);
      }
    }
    (void)pthread_mutex_unlock(&s->lock);
    sweep(s);
  }
}

/* ---- pins */

static void leave(import *im, bool close)
{
  seat *s = im->seat; /* it may be freed as soon as we have left */
  if (close) {
    atomic_fetch_or_explicit(&im->use, RETIRED | CLOSED, memory_order_relaxed);
  }
  const unsigned was = atomic_fetch_sub_explicit(&im->use, READER, memory_order_acq_rel);
  if ((was & ~(unsigned)CLOSED) == (READER | RETIRED) &&
      weft_loop_call(weft_runtime_loop(s->all->rt, 0), sweep, s) != WEFT_OK) {
    return; /* the loop has ended: destroy frees it */
  }
}

/* The lock is held.  An older one that is still read can be read by more, as in a store
 * of this process. */
static bool can_join(const import *im, uint64_t weights_sequence)
{
  const unsigned use = atomic_load_explicit(&im->use, memory_order_relaxed);
  return im->snapshot.weights_sequence == weights_sequence && (use & CLOSED) == 0 &&
         ((use & RETIRED) == 0 || use >= READER);
}

weft_err wefti_imports_pin(wefti_imports *all, uint32_t rank, uint64_t weights_sequence,
                           const weft_snapshot **out, void **holder)
{
  seat *s = &all->seats[rank];
  import *found = NULL;
  (void)pthread_mutex_lock(&s->lock);
  for (import *im = s->imports; im; im = im->next) {
    if (can_join(im, weights_sequence)) {
      atomic_fetch_add_explicit(&im->use, READER, memory_order_relaxed);
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
    leave(found, true);
    return WEFT_E_UNAVAIL;
  }
  *out = &found->snapshot;
  *holder = found;
  return WEFT_OK;
}

void wefti_imports_unpin(void *holder)
{
  leave(holder, false);
}

/* ---- life */

weft_err wefti_imports_create(weft_runtime *rt, uint32_t world_size,
                              const wefti_imports_ops *ops, wefti_imports **out)
{
  wefti_imports *all = calloc(1, sizeof *all);
  if (!all) {
    return WEFT_E_NOMEM;
  }
  all->rt = rt;
  all->ops = *ops;
  all->seats = calloc(world_size, sizeof *all->seats);
  if (!all->seats) {
    free(all);
    return WEFT_E_NOMEM;
  }
  while (all->world_size < world_size) {
    seat *s = &all->seats[all->world_size];
    if (pthread_mutex_init(&s->lock, NULL) != 0) {
      break;
    }
    if (pthread_mutex_init(&s->opening, NULL) != 0) {
      (void)pthread_mutex_destroy(&s->lock);
      break;
    }
    s->all = all;
    s->rank = all->world_size++;
  }
  if (all->world_size < world_size) {
    wefti_imports_destroy(all);
    return WEFT_E_NOMEM;
  }
  *out = all;
  return WEFT_OK;
}

void wefti_imports_destroy(wefti_imports *all)
{
  if (!all) {
    return;
  }
  for (uint32_t r = 0; r < all->world_size; r++) {
    seat *s = &all->seats[r];
    drop_waiting(s);
    while (s->imports) {
      import *im = s->imports;
      s->imports = im->next;
      free_import(im);
    }
    (void)pthread_mutex_destroy(&s->opening);
    (void)pthread_mutex_destroy(&s->lock);
  }
  free(all->seats);
  free(all);
}
