/* export_priv.h -- between export_map.c, export_pin.c, export_keep.c and export_bury.c:
 * what a parent knows of the installed weights of its workers, the living and those of
 * before.  Not here: what travels (exports.h). */
#ifndef WEFT_ACTORS_EXPORT_PRIV_H
#define WEFT_ACTORS_EXPORT_PRIV_H

#include "exports.h"

#include <pthread.h>
#include <stdatomic.h>

enum { IMPORT_RETIRED = 1, IMPORT_CLOSED = 2, IMPORT_READER = 4 };

typedef struct export_mapping { /* of one slab of one worker life */
  struct export_mapping *next;
  uint64_t id, incarnation, bytes;
  void *base;
  int fd;
  unsigned refs;
} export_mapping;

typedef struct export_undertaker export_undertaker;
typedef struct export_seat export_seat;
typedef struct export_import {
  struct export_import *next;
  export_seat *seat;
  uint64_t incarnation, epoch;
  weft_snapshot snapshot; /* weights_sequence 0: not visible yet */
  weft_tensor *tensors;
  uint8_t *table; /* names and shapes point into it */
  int table_fd;
  uint64_t table_bytes;
  bool bad; /* under seat->opening: the table was read and lies */
  /* The table was read and is good.  Release after, acquire before tensors are used. */
  atomic_bool open;
  export_mapping **mappings; /* [mapping_count], a reference each */
  size_t mapping_count;
  /* IMPORT_READER for each; RETIRED: it goes with its last reader; CLOSED beside it:
   * dropped or unreadable, nobody joins that reader; CLOSED alone: kept for the rank's
   * next life, read by nobody new.  Added to under lock, readers leave without: acq_rel,
   * so that who frees it has seen them end. */
  atomic_uint use;
} export_import;

struct export_seat {
  wefti_imports *all;
  uint32_t rank;
  pthread_mutex_t lock;     /* over imports and who comes to read them */
  pthread_mutex_t opening;  /* over table, tensors and bad of those that are pinned */
  bool held;                /* pins are refused; under lock */
  export_import *imports;   /* newest first */
  export_mapping *mappings; /* loop 0's, as is what follows */
  export_mapping **waiting; /* of SLABS messages, a reference each */
  size_t waiting_count;
  export_import *lent; /* what this rank's worker copies, read; NULL = nothing */
  uint64_t lent_to;    /* its incarnation */
};

struct wefti_imports {
  weft_runtime *rt;
  wefti_imports_ops ops;
  uint32_t world_size;
  _Atomic uint64_t visible; /* weights_sequence that was said last.  Relaxed: a number */
  export_seat *seats;
  export_undertaker *undertaker;
};

static inline bool export_is_retired(const export_import *im)
{
  return (atomic_load_explicit(&im->use, memory_order_relaxed) & IMPORT_RETIRED) != 0;
}
static inline bool export_has_digest(const export_import *im, const uint64_t digest[2])
{
  return im->snapshot.digest_hi == digest[0] && im->snapshot.digest_lo == digest[1];
}

/* ---- export_map.c */
/* Loop 0: frees what is retired and not read, and tells the worker.  arg: a seat. */
void export_sweep(void *arg);

/* ---- export_pin.c; any thread */
/* Its bytes are, or were, written over in place and not published. */
bool export_is_dirty(const export_import *im);
/* A reader's end; close: nobody is to come after it. */
void export_leave(export_import *im, bool close);

/* ---- export_keep.c; loop 0 */
void export_want(export_seat *s, uint64_t incarnation, const wefti_export_msg *msg);
void export_had(export_seat *s, uint64_t incarnation, const wefti_export_msg *msg);
/* The life of incarnation has ended: what may be wanted again is kept. */
void export_keep(export_seat *s, uint64_t incarnation);

/* ---- export_bury.c */
weft_err export_undertaker_create(export_undertaker **out) WEFT_MUST_USE;
/* Loop 0: unmaps, closes and frees m, sooner or later. */
void export_bury(export_undertaker *u, export_mapping *m);
void export_undertaker_destroy(export_undertaker *u); /* when all is done; NULL: no-op */

#endif /* WEFT_ACTORS_EXPORT_PRIV_H */
