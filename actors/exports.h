/* exports.h -- private to actors/.  A worker process's installed weights, readable from
 * its parent: the worker sends slab descriptors and a table of tensors over its lifeline
 * and holds the bytes until the parent lets go; the parent maps them read-only.  Not
 * here: which of them is visible (the engine says), and pins of worker threads
 * (weft/store.h). */
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
  WEFTI_EXPORT_VERSION = 1,
  WEFTI_EXPORT_SLABS_MAX = 200 /* of one message; more come in messages before */
};
typedef enum wefti_export_kind {
  WEFTI_EXPORT_SLABS,   /* worker: descriptors of slabs of the table that follows */
  WEFTI_EXPORT_INSTALL, /* worker: the table's descriptor, then more slabs */
  WEFTI_EXPORT_DROP,    /* worker: epoch is no more */
  WEFTI_EXPORT_RELEASE  /* parent: epoch's bytes are not read any more */
} wefti_export_kind;

typedef struct wefti_export_slab {
  uint64_t id, bytes;
} wefti_export_slab;

typedef struct wefti_export_msg {
  uint32_t magic, version, kind, slab_count;
  uint64_t epoch, digest_hi, digest_lo, tensors, bytes, table_bytes;
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

/* ---- the parent's end, of all ranks */
typedef struct wefti_imports wefti_imports;
typedef struct wefti_imports_ops {
  /* Loop 0: tells the worker of that life; no effect when it is gone. */
  void (*release)(void *arg, uint32_t rank, uint64_t incarnation, uint64_t epoch);
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
/* Any thread.  *holder is for unpin.  The first pin of an import reads its table. Errors:
 * GONE (older than what is visible, and no reader holds it), UNAVAIL. */
weft_err wefti_imports_pin(wefti_imports *all, uint32_t rank, uint64_t weights_sequence,
                           const weft_snapshot **out, void **holder) WEFT_MUST_USE;
void wefti_imports_unpin(void *holder);

#endif /* WEFT_ACTORS_EXPORTS_H */
