/* weft/gpu_source.h -- a trainer's end of the GPU backends: tensors of a safetensors file
 * in device memory, and their way to the workers, over NCCL as rank 0 or by CUDA IPC
 * handles.  Blocking calls, one thread at a time; not for a loop.  Not here: the HTTP
 * calls beside which all this happens. */
#ifndef WEFT_GPU_SOURCE_H
#define WEFT_GPU_SOURCE_H

#include "weft/atomics.h"
#include "weft/base.h"
#include "weft/device_table.h"
#include "weft/err.h"
#include "weft/safetensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_gpu_source weft_gpu_source; /* one GPU */

typedef struct weft_gpu_source_opts {
  size_t size;                    /* sizeof(weft_gpu_source_opts) */
  const weft_device_opts *device; /* borrows for the call */
  bool nccl;                      /* with an NCCL id, whose root this process then is */
  /* May be NULL; read, relaxed, by every wait until destroy: CANCELLED. */
  const atomic_bool *cancel;
} weft_gpu_source_opts;

/* Opens the libraries and the device.  weft_device_clear_env comes before threads.
 * Errors: as weft_device_probe, NOMEM, FAILED (ncclGetUniqueId). */
WEFT_API weft_err weft_gpu_source_create(const weft_gpu_source_opts *opts,
                                         weft_gpu_source **out, weft_why *why)
    WEFT_MUST_USE WEFT_NONNULL(1, 2);
/* Gives up the communicator, closes the store, frees the memory: no worker may read it
 * any more.  NULL is a no-op.  false: ncclCommAbort does not come back; what hangs on the
 * device was left as it is, and the process should end with _exit. */
WEFT_API bool weft_gpu_source_destroy(weft_gpu_source *source);
/* Valid until destroy. */
WEFT_API const weft_device_info *weft_gpu_source_info(const weft_gpu_source *source)
    WEFT_NONNULL(1);

/* ---- what is sent */

/* Memory for loads of up to bytes, so that its address stays.  Nothing may be loaded. */
WEFT_API weft_err weft_gpu_source_reserve(weft_gpu_source *source, uint64_t bytes,
                                          weft_why *why) WEFT_MUST_USE WEFT_NONNULL(1);
/* Brings tensors first to first + count - 1 of a file into device memory, in place of
 * what was there.  dense: back to back, as packed transfers want them; else each aligned.
 * Borrows fd for the call, st until the next load or destroy.  Errors: NOMEM, TRUNCATED,
 * SYS, FAILED, CANCELLED. */
typedef struct weft_gpu_load {
  int fd;
  const weft_safetensors *st;
  size_t first, count;
  bool dense;
} weft_gpu_load;
WEFT_API weft_err weft_gpu_source_load(weft_gpu_source *source, const weft_gpu_load *load,
                                       weft_why *why) WEFT_MUST_USE WEFT_NONNULL(1, 2);

/* ---- NCCL: rank 0 of ranks */

enum { WEFT_NCCL_ID_TEXT = 173 }; /* with the NUL */
/* nccl_unique_id_b64 for init_info. */
WEFT_API void weft_gpu_source_id(const weft_gpu_source *source,
                                 char out[WEFT_NCCL_ID_TEXT]) WEFT_NONNULL(1);
/* Or: a TCPStore, served on a thread of its own, in which the others find the id where
 * vLLM's trainer puts it.  Ends when all have joined.  host numeric, NULL = 127.0.0.1;
 * port 0 = any, *bound says which. */
WEFT_API weft_err weft_gpu_source_serve(weft_gpu_source *source, const char *host,
                                        uint16_t port, uint16_t *bound, weft_why *why)
    WEFT_MUST_USE WEFT_NONNULL(1, 4);
/* Joins and makes the warm-up all_reduce.  To be called while the workers are told to
 * init.  Errors: TIMEOUT, CANCELLED, FAILED, DOWN; there is no communicator then, and the
 * id is used up. */
WEFT_API weft_err weft_gpu_source_join(weft_gpu_source *source, unsigned ranks,
                                       uint64_t timeout_ms, weft_why *why)
    WEFT_MUST_USE WEFT_NONNULL(1);
/* Broadcasts what was loaded, in its order: one by one, or (loaded dense) packed: a chunk
 * ends with the tensor that takes it over buffer_bytes.  Done when all of it has been
 * sent.  After an error the communicator was aborted, so that the others fail too. */
typedef struct weft_gpu_packing {
  bool packed;
  uint64_t buffer_bytes;
} weft_gpu_packing;
WEFT_API weft_err weft_gpu_source_broadcast(weft_gpu_source *source,
                                            const weft_gpu_packing *packing,
                                            uint64_t timeout_ms, weft_why *why)
    WEFT_MUST_USE WEFT_NONNULL(1, 2);

/* ---- CUDA IPC */

/* ipc_handles_pickled for what the sources hold, one for each GPU, all loaded with the
 * same tensors.  buffer_bytes 0: a list with an entry for each tensor.  Else one entry
 * for the first so many bytes of memory (reserved): made once, sent with every chunk.
 * All writes have completed: no events.  *out is malloc'd.  Errors: UNSUPPORTED (no IPC
 * in this libcudart, no UUID), FAILED, SYS, NOMEM. */
WEFT_API weft_err weft_gpu_sources_export(weft_gpu_source *const *sources, size_t count,
                                          uint64_t buffer_bytes, char **out,
                                          weft_why *why) WEFT_MUST_USE WEFT_NONNULL(1, 4);

WEFT_END_DECLS

#endif /* WEFT_GPU_SOURCE_H */
