/* The parent's end: what its workers have installed is mapped, one of them becomes what
 * is visible, the others go.  All on loop 0, the lock against the readers (export_pin.c).
 */
#define _GNU_SOURCE
#include "export_priv.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SLABS_WAITING_MAX = 65536 };

/* ---- slabs */

static void unmap(export_seat *s, export_mapping *m)
{
  if (--m->refs > 0) {
    return;
  }
  for (export_mapping **at = &s->mappings; *at; at = &(*at)->next) {
    if (*at == m) {
      *at = m->next;
      break;
    }
  }
  export_bury(s->all->undertaker, m);
}

/* A reference to the mapping of slab, made from *fd (which is taken) if there is none.
 * Refuses a file that could shrink under the readers. */
static export_mapping *map_slab(export_seat *s, uint64_t incarnation,
                                const wefti_export_slab *slab, int *fd)
{
  for (export_mapping *m = s->mappings; m; m = m->next) {
    if (m->id == slab->id && m->incarnation == incarnation) {
      m->refs++;
      return m;
    }
  }
  struct stat st;
  const int seals = fcntl(*fd, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(*fd, &st) != 0 || st.st_size <= 0 ||
      (uint64_t)st.st_size < slab->bytes || slab->bytes == 0) {
    return NULL;
  }
  export_mapping *m = calloc(1, sizeof *m);
  if (!m) {
    return NULL;
  }
  m->base = mmap(NULL, slab->bytes, PROT_READ, MAP_SHARED, *fd, 0);
  if (m->base == MAP_FAILED) {
    free(m);
    return NULL;
  }
  m->fd = *fd;
  *fd = -1;
  m->id = slab->id;
  m->incarnation = incarnation;
  m->bytes = slab->bytes;
  m->refs = 1;
  m->next = s->mappings;
  s->mappings = m;
  return m;
}

static void drop_waiting(export_seat *s)
{
  for (size_t i = 0; i < s->waiting_count; i++) {
    unmap(s, s->waiting[i]);
  }
  free(s->waiting);
  s->waiting = NULL;
  s->waiting_count = 0;
}

static bool take_slabs(export_seat *s, uint64_t incarnation, const wefti_export_msg *msg,
                       int *fds, size_t nfds)
{
  if (nfds != msg->slab_count || s->waiting_count + nfds > SLABS_WAITING_MAX) {
    return false;
  }
  export_mapping **grown =
      realloc(s->waiting, (s->waiting_count + nfds + 1) * sizeof(export_mapping *));
  if (!grown) {
    return false;
  }
  s->waiting = grown;
  for (size_t i = 0; i < nfds; i++) {
    export_mapping *m = map_slab(s, incarnation, &msg->slabs[i], &fds[i]);
    if (!m) {
      return false;
    }
    s->waiting[s->waiting_count++] = m;
  }
  return true;
}

/* ---- imports */

/* Nobody reads it and it is in no list. */
static void free_import(export_import *im)
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
void export_sweep(void *arg)
{
  export_seat *s = arg;
  export_import *ended = NULL;
  (void)pthread_mutex_lock(&s->lock);
  for (export_import **at = &s->imports; *at;) {
    export_import *im = *at;
    const unsigned use = atomic_load_explicit(&im->use, memory_order_acquire);
    if ((use & ~(unsigned)IMPORT_CLOSED) == IMPORT_RETIRED) {
      *at = im->next;
      im->next = ended;
      ended = im;
    } else {
      at = &im->next;
    }
  }
  (void)pthread_mutex_unlock(&s->lock);
  while (ended) {
    export_import *im = ended;
    ended = im->next;
    s->all->ops.release(s->all->ops.arg, s->rank, im->incarnation, im->epoch);
    free_import(im);
  }
}

/* fds: the table's, then the slabs'. */
static bool take_install(export_seat *s, uint64_t incarnation,
                         const wefti_export_msg *msg, int *fds, size_t nfds)
{
  if (nfds != (size_t)msg->slab_count + 1 || !wefti_export_has_table(fds[0], msg) ||
      !take_slabs(s, incarnation, msg, fds + 1, nfds - 1)) {
    return false;
  }
  export_import *im = calloc(1, sizeof *im);
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

static void retire(export_seat *s, uint64_t incarnation, uint64_t epoch)
{
  (void)pthread_mutex_lock(&s->lock);
  for (export_import *im = s->imports; im; im = im->next) {
    if (im->incarnation == incarnation && im->epoch == epoch) {
      atomic_fetch_or_explicit(&im->use, IMPORT_RETIRED | IMPORT_CLOSED,
                               memory_order_relaxed);
    }
  }
  (void)pthread_mutex_unlock(&s->lock);
  export_sweep(s);
}

void wefti_imports_message(wefti_imports *all, uint32_t rank, uint64_t incarnation,
                           const wefti_heard *heard)
{
  export_seat *s = &all->seats[rank];
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
    case WEFTI_EXPORT_WANT:
      export_want(s, incarnation, &msg);
      used = true;
      break;
    case WEFTI_EXPORT_HAD:
      export_had(s, incarnation, &msg);
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
  export_keep(&all->seats[rank], incarnation);
}

/* The lock is held. */
static bool is_candidate(const export_import *im)
{
  return im && im->snapshot.weights_sequence == 0 && !export_is_retired(im);
}

/* Of ranks that hold shards of their own the digest of all is none of theirs. */
static bool some_rank_holds(wefti_imports *all, const uint64_t digest[2])
{
  bool found = all->world_size == 1;
  for (uint32_t r = 0; r < all->world_size && !found; r++) {
    export_seat *s = &all->seats[r];
    (void)pthread_mutex_lock(&s->lock);
    found = is_candidate(s->imports) && export_has_digest(s->imports, digest);
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
    export_seat *s = &all->seats[r];
    (void)pthread_mutex_lock(&s->lock);
    export_import *newest = s->imports;
    if (is_candidate(newest) && (!by_digest || export_has_digest(newest, digest))) {
      newest->snapshot.weights_sequence = weights_sequence;
    }
    (void)pthread_mutex_unlock(&s->lock);
  }
}

void wefti_imports_settle(wefti_imports *all, uint64_t weights_sequence)
{
  for (uint32_t r = 0; r < all->world_size; r++) {
    export_seat *s = &all->seats[r];
    (void)pthread_mutex_lock(&s->lock);
    for (export_import *im = s->imports; im; im = im->next) {
      /* 0: only the newest can become visible yet. */
      if (im->snapshot.weights_sequence < weights_sequence &&
          (im->snapshot.weights_sequence != 0 || im != s->imports)) {
        atomic_fetch_or_explicit(&im->use, IMPORT_RETIRED, memory_order_relaxed);
      }
    }
    (void)pthread_mutex_unlock(&s->lock);
    export_sweep(s);
  }
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
  if (!all->seats || export_undertaker_create(&all->undertaker) != WEFT_OK) {
    free(all->seats);
    free(all);
    return WEFT_E_NOMEM;
  }
  while (all->world_size < world_size) {
    export_seat *s = &all->seats[all->world_size];
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
    export_seat *s = &all->seats[r];
    drop_waiting(s);
    while (s->imports) {
      export_import *im = s->imports;
      s->imports = im->next;
      free_import(im);
    }
    (void)pthread_mutex_destroy(&s->opening);
    (void)pthread_mutex_destroy(&s->lock);
  }
  export_undertaker_destroy(all->undertaker);
  free(all->seats);
  free(all);
}
