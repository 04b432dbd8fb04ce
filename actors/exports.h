/* exports.h -- private to actors/.  A worker process's installed weights, readable from
 * its parent: the worker sends slab descriptors and a table of tensors over its lifeline
 * and holds the bytes until the parent lets go; the parent maps them read-only, and hands
 * them to the next life of a worker that died.  Not here: which of them is visible (the
 * engine says), and pins of worker threads (weft/store.h). */
#ifndef WEFT_ACTORS_EXPORTS_H
#define WEFT_ACTORS_EXPORTS_H

#include "weft/process.h"
#include "weft/runtime.h"
#include "weft/store.h"
#include "worker.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- what travels; both ends are of one build or refuse each other by the version */
enum {
  WEFTI_EXPORT_MAGIC = 0x70786577, /* "wexp" */
  WEFTI_EXPORT_VERSION = 2,
  WEFTI_EXPORT_SLABS_MAX = 200 /* of one message; more come in messages before */
};
/* Of WANT: what lies in the rank's own slabs will not do.  Of OFFER: the slabs belong to
 * somebody else who lives and are to be copied; nobody reads what the table does not
 * name.
 */
enum { WEFTI_EXPORT_NOT_OWN = 1, WEFTI_EXPORT_BORROWED = 1, WEFTI_EXPORT_ALONE = 2 };
typedef enum wefti_export_kind {
  WEFTI_EXPORT_SLABS,   /* worker: descriptors of slabs of the table that follows */
  WEFTI_EXPORT_INSTALL, /* worker: the table's descriptor, then more slabs */
  WEFTI_EXPORT_DROP,    /* worker: epoch is no more */
  WEFTI_EXPORT_RELEASE, /* parent: epoch's bytes are not read any more */
  /* worker: weights_sequence is to be served and is not here; who has a set of digest?
   * 0: nothing is wanted, nothing need be kept, there is no answer. */
  WEFTI_EXPORT_WANT,
  WEFTI_EXPORT_OFFER_SLABS, /* parent: as SLABS */
  WEFTI_EXPORT_OFFER,       /* parent: as INSTALL; without descriptors: nobody has it */
  /* worker: the offer of digest is served as weights_sequence and was sent as epoch;
   * 0: it was no good. */
  WEFTI_EXPORT_HAD
} wefti_export_kind;

typedef struct wefti_export_slab {
  uint64_t id, bytes;
} wefti_export_slab;

typedef struct wefti_export_msg {
  uint32_t magic, version, kind, slab_count;
  uint64_t epoch, digest_hi, digest_lo, tensors, bytes, table_bytes;
  uint64_t weights_sequence, flags;
  wefti_export_slab slabs[WEFTI_EXPORT_SLABS_MAX]; /* [slab_count] travel */
} wefti_export_msg;

/* The table: [tensors] records, then the bytes that they point into. */
typedef struct wefti_export_record {
  uint64_t slab, offset, bytes; /* slab 0: no bytes */
  uint64_t name_at, shape_at;   /* from the table's start; shapes are 8-byte aligned */
  uint32_t name_len, ndim;
  char dtype[24];
  uint8_t digest[16];
} wefti_export_record;

/* Length of the part of a message that travels. */
size_t wefti_export_len(const wefti_export_msg *msg);
/* data[len] copied into *msg if it is a whole message. */
bool wefti_export_read(const void *data, size_t len, wefti_export_msg *msg);
/* ---- the table, read with mistrust (export_table.c) */
/* What can be seen without reading it. */
bool wefti_export_has_table(int fd, const wefti_export_msg *msg);
uint8_t *wefti_export_table(int fd,
                            uint64_t bytes); /* NULL: no memory, or not all there */
/* Record i of a table of msg's size.  false: it lies.  Where its bytes are is r's word
 * alone: out->data stays NULL.  *out points into table. */
bool wefti_export_row(const uint8_t *table, uint64_t table_bytes, size_t i,
                      wefti_export_record *r, weft_tensor *out);

/* ---- the worker's end */
typedef struct wefti_exporter wefti_exporter;
/* Listens to the device from now on.  Before the actors run; line may come later. */
weft_err wefti_exporter_create(weft_runtime *rt, wefti_device *device,
                               wefti_exporter **out) WEFT_MUST_USE;
/* Loop 0. */
void wefti_exporter_set_line(wefti_exporter *x, weft_lifeline *line);
void wefti_exporter_message(wefti_exporter *x, const void *data, size_t len);
/* After the actors ended, before the device goes. */
void wefti_exporter_destroy(wefti_exporter *x);

/* ---- the same for what the worker's last life left (export_take.c): is the device's
 * keeper from now on.  Before the actors run; line and worker may come later. */
typedef struct wefti_taker wefti_taker;
weft_err wefti_taker_create(weft_runtime *rt, wefti_device *device, wefti_taker **out)
    WEFT_MUST_USE;
/* Loop 0.  worker: who hears of offers. */
void wefti_taker_set_line(wefti_taker *t, weft_lifeline *line, weft_actor_id worker);
/* Any message of the parent's; fds are taken. */
void wefti_taker_message(wefti_taker *t, const void *data, size_t len, int *fds,
                         size_t nfds);
void wefti_taker_destroy(wefti_taker *t); /* as the exporter */

/* ---- the parent's end, of all ranks */
typedef struct wefti_imports wefti_imports;
typedef struct wefti_imports_ops {
  /* Loop 0: tells the worker of that life; no effect when it is gone. */
  void (*release)(void *arg, uint32_t rank, uint64_t incarnation, uint64_t epoch);
  /* Loop 0: one message to the worker of that life.  Errors: CLOSED, FULL.  NULL: nothing
   * can be offered. */
  weft_err (*send)(void *arg, uint32_t rank, uint64_t incarnation,
                   const wefti_export_msg *msg, const int *fds, size_t nfds);
  void *arg;
} wefti_imports_ops;
weft_err wefti_imports_create(weft_runtime *rt, uint32_t world_size,
                              const wefti_imports_ops *ops, wefti_imports **out)
    WEFT_MUST_USE;
void wefti_imports_destroy(wefti_imports *all); /* nothing may be pinned */
/* A message of a worker's lifeline. */
typedef struct wefti_heard {
  const void *data;
  size_t len;
  int *fds; /* [nfds], taken */
  size_t nfds;
} wefti_heard;
/* Loop 0, these four.  An unusable message is as good as none: what it was
 * about cannot be pinned. */
void wefti_imports_message(wefti_imports *all, uint32_t rank, uint64_t incarnation,
                           const wefti_heard *heard);
/* That life has ended.  What is visible of it, and what may become so yet, is kept for
 * the next one: until that has it or wants something else, or it cannot be wanted any
 * more. */
void wefti_imports_gone(wefti_imports *all, uint32_t rank, uint64_t incarnation);
/* The newest of each rank is what weights_sequence means, said for the first time; said
 * again (the label has changed) it has no effect: what came since is not visible yet.
 * digest: high half, low half, of what became visible.  A rank that holds something else
 * although others hold that cannot be pinned. */
void wefti_imports_visible(wefti_imports *all, uint64_t weights_sequence,
                           const uint64_t digest[2]);
/* All older ones go, with their readers, and those that cannot become visible any more.
 */
void wefti_imports_settle(wefti_imports *all, uint64_t weights_sequence);
/* true: pins get UNAVAIL until false. */
void wefti_imports_hold(wefti_imports *all, bool held);
/* Pins held, and of which rank and weights, in words. */
uint32_t wefti_imports_readers(wefti_imports *all, char *text, size_t cap);
/* Any thread.  *holder is for unpin.  The first pin of an import reads its table. Errors:
 * GONE (older than what is visible, and no reader holds it), UNAVAIL (also: its worker
 * writes over it, or did and was not published, as the slab's mark says). */
weft_err wefti_imports_pin(wefti_imports *all, uint32_t rank, uint64_t weights_sequence,
                           const weft_snapshot **out, void **holder) WEFT_MUST_USE;
void wefti_imports_unpin(void *holder);

#endif /* WEFT_ACTORS_EXPORTS_H */
