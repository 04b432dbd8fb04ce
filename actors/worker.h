/* worker.h -- private to actors/.  One rank: the worker actor that answers the engine at
 * once, and the device actor on a thread of its own that does what may block. */
#ifndef WEFT_ACTORS_WORKER_H
#define WEFT_ACTORS_WORKER_H

#include "weft/actor.h"
#include "weft/messages.h"
#include "weft/runtime.h"
#include "weft/store.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct wefti_device wefti_device; /* what worker and device thread share */

typedef struct wefti_device_opts {
  size_t size;
  const char *backend;      /* of WEFT_TRANSFER_NAMES; NULL = "host" */
  const char *weights_root; /* NULL = any file */
  const char *tcp_allow;    /* comma-separated host list beyond loopback, NULL = none */
  unsigned threads;         /* copy threads, 0 = 1 */
  uint32_t no_progress_ms;  /* 0 = 120,000 */
  uint32_t tp, pp;          /* of the engine: names the shard in the checker's keys */
  unsigned snapshots_max;   /* 0 = 4 */
  bool needs_grant;
  /* GPU backends; see weft/device_table.h */
  const char *cudart, *nccl; /* NULL = usual names */
  uint32_t rank;             /* chooses the GPU unless has_gpu */
  bool has_gpu;
  uint32_t gpu;
  bool allow_ipc_pickle;
  const char *manifest; /* path; NULL = any tensors */
  bool draft;           /* there is a draft model's set, too */
  const char *draft_manifest;
  const char *tp_plan; /* path, see weft/tp_plan.h: GPU backends over NCCL; NULL = none */
  bool inplace;        /* updates are written over the live tensors */
} wefti_device_opts;

/* Store, memory and backend of one rank.  The caller destroys it after both actors ended.
 */
weft_err wefti_device_create(const wefti_device_opts *opts, wefti_device **out,
                             weft_why *why) WEFT_MUST_USE;
void wefti_device_destroy(wefti_device *device);
weft_store *wefti_device_store(wefti_device *device);
/* Frames of an engine that reached the worker so far.  Any thread. */
uint64_t wefti_device_heard(wefti_device *device);
/* GPU and libraries in words, "" for host memory. */
const char *wefti_device_about(const wefti_device *device);

/* Called on the device thread when a snapshot was installed (published later by its
 * weights_sequence) or dropped: who exports descriptors listens here.  May be NULL. */
typedef void wefti_export_fn(void *arg, uint64_t epoch, const weft_snapshot *snapshot);
void wefti_device_on_install(wefti_device *device, wefti_export_fn *fn, void *arg);

enum {
  /* Questions that a worker may leave unanswered for long: one that is worked on, those
   * that wait, and the askers of an abort. */
  WEFTI_WORKER_HELD_MAX = 1 + 8 + 4,
  /* Of a worker's port: room beside them for what is answered at once, always. */
  WEFTI_WORKER_CONTEXTS = WEFTI_WORKER_HELD_MAX + 7
};

typedef struct wefti_worker_args {
  wefti_device *device;
  weft_actor_id device_actor; /* of wefti_device_class, on a loop of its own */
  uint32_t rank;
  uint64_t incarnation;
} wefti_worker_args;

extern const weft_actor_class wefti_worker_class; /* args: wefti_worker_args */
extern const weft_actor_class wefti_device_class; /* args: wefti_device * */

#endif /* WEFT_ACTORS_WORKER_H */
