/* weft/pickle.h -- what trainers pickle for us: NCCL ids, barrier words, CUDA IPC
 * handles. Read by an inert machine that builds a tree and calls nothing.  Not a general
 * pickle library: a value of any other shape is refused by the name of what was found. */
#ifndef WEFT_PICKLE_H
#define WEFT_PICKLE_H

#include "weft/base.h"
#include "weft/dtype.h"
#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

enum {
  WEFT_NCCL_ID = 128,            /* bytes of a ncclUniqueId */
  WEFT_NCCL_ID_VALUE_MAX = 4096, /* bytes of a store value that may hold one */
  WEFT_NCCL_ID_PICKLE_MAX = 512, /* bytes that weft_nccl_id_write may need */
  WEFT_PICKLED_TEXT_MAX = 255,   /* bytes of a barrier word */
  WEFT_IPC_HANDLE = 64,          /* bytes of a cudaIpcMemHandle_t, cudaIpcEventHandle_t */
  WEFT_IPC_PICKLE_MAX = 64 << 20, /* bytes, after base64 */
  WEFT_IPC_PARAMS_MAX = 1 << 18,
  WEFT_IPC_GPUS_MAX = 64, /* entries of one dict */
  WEFT_IPC_UUID_MAX = 63, /* bytes of a dict's key */
  WEFT_IPC_COUNTER_MAX = 47,
  WEFT_IPC_COUNTER_SLOTS = 10000
};

/* Everything here: any thread, no state, never evaluates anything.  why may be NULL. */

/* ---- the NCCL id */

/* The id in a store's value: 128 raw bytes, or a pickle (protocol 3 to 5) of them, of a
 * ctypes ncclUniqueId or of nccl4py's UniqueId.  Errors: LIMIT, PROTO, TRUNCATED,
 * TRAILING, UNSUPPORTED (protocol 2 and older), DENIED (a global that is not on the
 * list), NOMEM.  Source: contracts, ctypes.Structure.__reduce__. */
WEFT_API weft_err weft_nccl_id_read(const void *value, size_t len,
                                    uint8_t out[WEFT_NCCL_ID], weft_why *why)
    WEFT_MUST_USE WEFT_NONNULL(3);
/* nccl_unique_id_b64 of init_info.  Errors: INVAL. */
WEFT_API weft_err weft_nccl_id_from_base64(const char *text, size_t len,
                                           uint8_t out[WEFT_NCCL_ID], weft_why *why)
    WEFT_MUST_USE WEFT_NONNULL(3);
/* Does the id look like one of NCCL's: a socket address with a port and zeros behind?
 * address: "host:port" of the bootstrap root, for logs.  Errors: PROTO. */
enum { WEFT_NCCL_ADDRESS_MAX = 64 };
WEFT_API weft_err weft_nccl_id_check(const uint8_t id[WEFT_NCCL_ID],
                                     char address[WEFT_NCCL_ADDRESS_MAX], weft_why *why)
    WEFT_MUST_USE WEFT_NONNULL(1, 2);

/* The modules that hold the peer's class ncclUniqueId. */
#define WEFT_NCCL_MODULE_VLLM "vllm.distributed.device_communicators.pynccl_wrapper"
#define WEFT_NCCL_MODULE_SGLANG                                                          \
  "sglang.srt.distributed.device_communicators.pynccl_wrapper"
/* What Python's pickle.dumps makes of a ncclUniqueId of that module (protocol 4).
 * Errors: LIMIT (cap), INVAL (module is empty or over 255 bytes). */
WEFT_API weft_err weft_nccl_id_write(const char *module, const uint8_t id[WEFT_NCCL_ID],
                                     void *out, size_t cap, size_t *len)
    WEFT_MUST_USE WEFT_NONNULL(1, 2, 3, 5);

/* ---- words of vLLM's store barrier: a str, or None (text NULL) */

WEFT_API weft_err weft_pickled_text_read(const void *value, size_t len,
                                         char out[WEFT_PICKLED_TEXT_MAX + 1],
                                         weft_why *why) WEFT_MUST_USE WEFT_NONNULL(3);
WEFT_API weft_err weft_pickled_text_write(const char *text, void *out, size_t cap,
                                          size_t *len) WEFT_MUST_USE WEFT_NONNULL(2, 4);

/* ---- CUDA IPC handles */

/* One tensor of another process, as torch's reduce_tensor describes it. */
typedef struct weft_ipc_tensor {
  weft_dtype dtype;
  unsigned ndim;
  int64_t shape[WEFT_DIMS_MAX];  /* elements */
  int64_t stride[WEFT_DIMS_MAX]; /* elements, >= 0 */
  bool contiguous;               /* row-major without gaps */
  uint64_t bytes;                /* of the dense tensor */
  uint64_t at;     /* bytes into the storage; at + extent <= storage_bytes */
  bool has_handle; /* false: an empty storage */
  uint8_t handle[WEFT_IPC_HANDLE];
  uint64_t storage_at;    /* bytes from what the handle opens to the storage */
  uint64_t storage_bytes; /* storage_at + storage_bytes does not wrap */
  /* POSIX shared memory "/torch_<pid>_<n>_<n>" with the sender's counters; "" = none. */
  char counter[WEFT_IPC_COUNTER_MAX + 1];
  unsigned counter_slot; /* < WEFT_IPC_COUNTER_SLOTS */
  bool event_sync;       /* wait for event before reading */
  bool has_event;
  uint8_t event[WEFT_IPC_HANDLE];
} weft_ipc_tensor;

typedef struct weft_ipc_handles {
  bool packed;              /* one buffer for all parameters: count is 1 */
  size_t count;             /* parameters, in the sender's order */
  weft_ipc_tensor *tensors; /* [count], those of the own GPU */
} weft_ipc_handles;

/* Decodes ipc_handles_pickled behind its base64: a list of {uuid: args} or one such dict
 * (packed), args with or without the rebuild function.  Every entry is validated, also
 * those of other GPUs.
 *
 * uuid  own GPU's, with or without "GPU-"; NULL: each dict has exactly one entry, take it
 * out   caller frees with weft_ipc_handles_free
 *
 * Errors: as weft_nccl_id_read, and NOTFOUND (no entry for uuid; names those there are),
 * UNSUPPORTED (expandable segments, a newer handle). */
WEFT_API weft_err weft_ipc_handles_read(const void *pickle, size_t len, const char *uuid,
                                        weft_ipc_handles *out, weft_why *why)
    WEFT_MUST_USE WEFT_NONNULL(4);
/* The same from base64 text. */
WEFT_API weft_err weft_ipc_handles_from_base64(const char *text, size_t len,
                                               const char *uuid, weft_ipc_handles *out,
                                               weft_why *why)
    WEFT_MUST_USE WEFT_NONNULL(4);
WEFT_API void weft_ipc_handles_free(weft_ipc_handles *handles); /* NULL is a no-op */

/* The other way: a pickle (protocol 4) that torch's reader takes too, with handles of
 * version 2 and the arguments without the rebuild function, as vLLM's trainer sends now.
 * handles->tensors is [gpus * count] here: those of uuids[0], then of uuids[1] and so on.
 * packed: count is 1.  *out is malloc'd.  Errors: INVAL (a text too long, no GPU), LIMIT,
 * NOMEM. */
WEFT_API weft_err weft_ipc_handles_write(const char *const *uuids, size_t gpus,
                                         const weft_ipc_handles *handles, uint8_t **out,
                                         size_t *len)
    WEFT_MUST_USE WEFT_NONNULL(1, 3, 4, 5);

/* Same GPU?  Ignores case and an optional "GPU-" in front of either. */
WEFT_API bool weft_gpu_uuid_equal(const char *a, size_t a_len, const char *b,
                                  size_t b_len) WEFT_NONNULL(1, 3);

WEFT_END_DECLS

#endif /* WEFT_PICKLE_H */
