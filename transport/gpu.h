/* gpu.h -- what the GPU backends share: a device with its streams, waiting without
 * blocking, and digests of device memory.  Not for other folders; not here: NCCL, IPC. */
#ifndef WEFT_TRANSPORT_GPU_H
#define WEFT_TRANSPORT_GPU_H

#include "cuda_table.h"
#include "weft/digest.h"
#include "weft/transfer.h"

#include <stdbool.h>
#include <stdint.h>

enum {
  WEFTI_STAGES = 2,              /* pinned blocks: one is filled, one is used */
  WEFTI_STAGE_BYTES = 4 << 20,   /* of each */
  WEFTI_GPU_NO_PROGRESS = 120000 /* ms */
};

typedef struct wefti_digests wefti_digests;

typedef struct wefti_gpu {
  wefti_cuda cuda;
  int device, count;
  char name[WEFT_DEVICE_TEXT], uuid[WEFT_GPU_UUID_TEXT];
  uint64_t no_progress_ms;
  unsigned threads;    /* that hash */
  wefti_stream copies; /* between device and host */
  uint8_t *stage[WEFTI_STAGES];
  wefti_event filled[WEFTI_STAGES];
  weft_hasher *hasher;
  wefti_digests *digests; /* NULL = not needed yet */
} wefti_gpu;

/* One operation that is waited for.  check (may be NULL) says whether it has failed
 * meanwhile. */
typedef weft_err wefti_check_fn(void *arg, weft_why *why);
typedef struct wefti_wait {
  const atomic_bool *cancel;
  weft_progress_fn *progress;
  void *progress_arg;
  uint64_t bytes;    /* done so far, for progress */
  uint64_t due_ms;   /* CLOCK_MONOTONIC; 0 = none */
  uint64_t limit_ms; /* without a step; 0 = none */
  uint64_t step_ms;  /* when the last step was */
  uint64_t said_ms;  /* when progress was last called */
  unsigned turns;    /* since the last step: polls get rarer */
  wefti_check_fn *check;
  void *check_arg;
  wefti_gpu *behind; /* whose digests go on meanwhile; NULL = nobody's */
} wefti_wait;

/* Device and limits of opts, which may be NULL inside.  Errors: as weft_device_probe. */
weft_err wefti_gpu_open(const weft_transfer_opts *opts, wefti_gpu *out, weft_why *why)
    WEFT_MUST_USE;
void wefti_gpu_close(wefti_gpu *gpu); /* of a zeroed one: no-op */
/* Makes the device the thread's, and the stream if it is not there yet. */
weft_err wefti_gpu_enter(wefti_gpu *gpu, weft_why *why) WEFT_MUST_USE;
/* After enter: stage and filled, for who copies through them. */
weft_err wefti_gpu_stages(wefti_gpu *gpu, weft_why *why) WEFT_MUST_USE;
void wefti_gpu_info(const wefti_gpu *gpu, weft_device_info *out);

/* Notes that something moved. */
void wefti_wait_step(wefti_wait *w, uint64_t bytes);
/* One turn of a poll: sleeps a little, calls progress, looks at cancel, check and both
 * limits.  Errors: CANCELLED, TIMEOUT (why->text: how long), what check gave. */
weft_err wefti_wait_turn(wefti_wait *w, weft_why *why) WEFT_MUST_USE;
weft_err wefti_gpu_wait_event(const wefti_gpu *gpu, wefti_event e, wefti_wait *w,
                              weft_why *why) WEFT_MUST_USE;
/* Until nothing runs on s, however long.  For the way out: no cancel, no limit. */
void wefti_gpu_drain(const wefti_gpu *gpu, wefti_stream s);

/* ---- digests of tensors in device memory (gpu_digest.c).  All on the device thread. */

/* Threads and pinned blocks, after enter.  Errors: NOMEM, FAILED. */
weft_err wefti_gpu_digests_ready(wefti_gpu *gpu, weft_why *why) WEFT_MUST_USE;
void wefti_gpu_digests_free(wefti_gpu *gpu); /* no-op where there are none */
/* After digests_ready.  from [count]: where each lies, NULL where it has no bytes; what
 * writes there must have completed.  out [count] is filled by turns and settle: both stay
 * until settle has succeeded, or forget.  tensors and from are the caller's again. */
weft_err wefti_gpu_digest_add(wefti_gpu *gpu, const weft_plan_tensor *tensors,
                              void *const *from, size_t count, weft_digest *out,
                              weft_why *why) WEFT_MUST_USE;
/* Goes on with what was added, without waiting.  true: something has moved. */
bool wefti_gpu_digest_turn(wefti_gpu *gpu);
/* Is there a use for more turns?  After a failure, which settle tells, there is not. */
bool wefti_gpu_digest_more(const wefti_gpu *gpu);
/* Until all is done.  Steps w by bytes.  After an error: forget. */
weft_err wefti_gpu_digest_settle(wefti_gpu *gpu, wefti_wait *w, weft_why *why)
    WEFT_MUST_USE;
/* Drops what was added and is not done.  Returns when nobody reads from and writes to out
 * any more. */
void wefti_gpu_digest_forget(wefti_gpu *gpu);
/* All of it at once: ready, add, settle; what was added before is settled too. */
weft_err wefti_gpu_digest(wefti_gpu *gpu, const weft_plan_tensor *tensors,
                          void *const *from, size_t count, wefti_wait *w,
                          weft_digest *out, weft_why *why) WEFT_MUST_USE;

/* What the operations of weft_transfer_ops do on a GPU. */
bool wefti_gpu_advance(wefti_gpu *gpu);
weft_err wefti_gpu_settle(wefti_gpu *gpu, const atomic_bool *cancel,
                          weft_progress_fn *progress, void *arg, weft_why *why)
    WEFT_MUST_USE;

/* FAILED, with the reason: the context is gone, only another process gets a new one. */
weft_err wefti_gpu_alive(const wefti_gpu *gpu, weft_why *why) WEFT_MUST_USE;

void wefti_gpu_nap(void); /* some microseconds */

#endif /* WEFT_TRANSPORT_GPU_H */
