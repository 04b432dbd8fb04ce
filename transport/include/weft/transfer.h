/* weft/transfer.h -- how bytes of new weights arrive: the interface of a backend, and the
 * host backend.  Not here: where the bytes go (weft/memory.h), sessions and versions.
 *
 * Every call is made on the worker's device thread and may block; nothing else of weft
 * may call it.  Order: open; for each new trainer check_init and then init, and release
 * when it is let go; per update accept, then receive or not, and abandon; where digests
 * come behind receive, advance while there is time, and settle or forget at the end of
 * a session; close at the end. */
#ifndef WEFT_TRANSFER_H
#define WEFT_TRANSFER_H

#include "weft/atomics.h"
#include "weft/base.h"
#include "weft/device_table.h"
#include "weft/digest.h"
#include "weft/dtype.h"
#include "weft/err.h"
#include "weft/tp_plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_plan_tensor {
  const char *name;     /* at least one byte; no two of a plan are equal */
  const int64_t *shape; /* [ndim] elements, each >= 0 */
  uint64_t bytes;       /* of shape and dtype */
  weft_dtype dtype;
  unsigned ndim; /* 0 = scalar */
  bool patched;  /* some of its elements come; the others are those of plan.base */
  /* The shape that comes, when only a slice of it is kept (shape, bytes); else NULL. */
  const int64_t *full;
  uint64_t full_bytes;
  unsigned slice_dim, slice_index, slice_of;
} weft_plan_tensor;

/* What an update will bring, checked as far as it can be before bytes move.  Owned by the
 * backend that made it; everything in it lives until abandon. */
typedef struct weft_plan {
  const weft_plan_tensor *tensors; /* [count] in the order of update_info */
  size_t count;                    /* 0 is legal */
  uint64_t bytes;                  /* of all */
  /* Set between accept and receive by whoever gives bytes to write over that are of use
   * as they are: called by receive, on any thread, once, when it has the first byte and
   * has written none (nccl: before it has any, where there is no room to take the first
   * broadcast beside).  NULL = nobody needs to know. */
  void (*on_write)(void *arg);
  void *on_write_arg;
  /* Some tensors are patched.  base is set between accept and receive by whoever gives
   * room, [count] in the memory of dst: what a patched one is like otherwise.  Only read,
   * but where it is the tensor's own dst. */
  bool patches;
  const void *const *base;
  const char *base_version; /* that it says it builds on; NULL = it does not say */
} weft_plan;

typedef struct weft_transfer_opts {
  size_t size;              /* sizeof(weft_transfer_opts) */
  const char *weights_root; /* files must lie below; NULL = anywhere */
  const char *const
      *tcp_allow; /* [tcp_allow_count] "host" or "host:port" beyond loopback */
  size_t tcp_allow_count;
  /* That copy (host; 0 or 1 = the calling thread) or hash (GPU backends; 0 = 1), each at
   * nice +10. */
  unsigned threads;
  uint64_t no_progress_ms;        /* 0 = 120,000 */
  const weft_device_opts *device; /* of the GPU backends; NULL = all defaults */
  bool allow_ipc_pickle;          /* ipc_handles_pickled may be read */
  /* nccl, sparse_nccl: keep of each tensor the slice of rank tp_index of tp_of; outlives
   * the backend.  NULL = all of it. */
  const weft_tp_plan *tp_plan;
  unsigned tp_index, tp_of;
} weft_transfer_opts;

/* Who is asking, for update_info in list form and for handshakes. */
typedef struct weft_transfer_who {
  uint64_t epoch; /* of the session */
  unsigned rank, world_size;
  unsigned dp_index;   /* data-parallel replica */
  uint32_t timeout_ms; /* of init, 0 = the backend's own limit */
  bool draft;          /* the session writes the draft model's set */
} weft_transfer_who;

/* Called on the thread that called receive, at least every 50 ms while bytes move or are
 * waited for: bytes of this plan so far.  A heartbeat as well. */
typedef void weft_progress_fn(void *arg, uint64_t bytes);

typedef struct weft_transfer_ops {
  const char *name; /* as in --backend */
  /* Borrows opts for the call. */
  weft_err (*open)(const weft_transfer_opts *opts, void **state, weft_why *why);
  /* init_info is the client's JSON object; its text is borrowed for the call. */
  weft_err (*init)(void *state, const char *init_info, size_t len,
                   const weft_transfer_who *who, const atomic_bool *cancel,
                   weft_why *why);
  /* update_info is the client's JSON: an object, or a list of which the entry
   * dp_index * world_size + rank is meant (a list of one if there is one worker).
   * Checks everything that can be known now; reads no weights. */
  weft_err (*accept)(void *state, const char *update_info, size_t len,
                     const weft_transfer_who *who, weft_plan **plan, weft_why *why);
  /* Brings the bytes.  dst [count] has room for each tensor (NULL where it has no bytes),
   * written also on failure; digests [count] of each are filled, see settle.  cancel (may
   * be NULL) is read, relaxed, at least every few MiB and every 50 ms: CANCELLED.  Once
   * per plan. Returns only when nothing writes to dst any more. */
  weft_err (*receive)(void *state, weft_plan *plan, void *const *dst,
                      weft_digest *digests, const atomic_bool *cancel,
                      weft_progress_fn *progress, void *arg, weft_why *why);
  void (*abandon)(void *state, weft_plan *plan); /* frees plan, NULL is a no-op */
  void (*close)(void *state);                    /* NULL is a no-op */
  /* NULL where there is nothing to do.  What init would refuse at once, without anybody
   * else: called on every worker before any of them enters init. */
  weft_err (*check_init)(void *state, const char *init_info, size_t len,
                         const weft_transfer_who *who, weft_why *why);
  void (*info)(void *state, weft_device_info *out); /* NULL: no device */
  bool nccl;                                        /* needs libnccl */
  /* The trainer of the last init is let go; what it shared is given back.  NULL where
   * there is nothing to do. */
  weft_err (*release)(void *state, weft_why *why);
  const char *no_draft; /* what a draft session is refused with; NULL: it is not */
  /* All three or none.  NULL: digests are there when receive returns.  Else they may come
   * behind it, while later plans are accepted and received: what receive has written and
   * digests stay, unchanged by others, until settle or forget.  A failed receive is a
   * forget. */
  /* Goes on with them without waiting.  true: call it again, in a millisecond or so. */
  bool (*advance)(void *state);
  /* Until all digests are there; cancel and progress as of receive, which counts bytes
   * hashed.  A failure is a forget. */
  weft_err (*settle)(void *state, const atomic_bool *cancel, weft_progress_fn *progress,
                     void *arg, weft_why *why);
  /* Drops those that are not there yet.  Returns when nothing reads from a dst or writes
   * to digests any more. */
  void (*forget)(void *state);
  /* After a failure: whether this process can do anything more with its device.  NULL:
   * it always can. */
  weft_err (*alive)(void *state, weft_why *why);
} weft_transfer_ops;

/* The host backend.  init_info {}.  update_info:
 *   {"source":{"kind":"safetensors","path":"/abs/file"}}
 *       names (optional) selects tensors of the file, dtype_names and shapes (optional,
 *       with names) are checked against it.
 *   {"source":{"kind":"shm","name":"/segment","offsets":[...]}, "names", "dtype_names",
 *    "shapes"}   offsets in bytes, one per name, need not be aligned and may overlap.
 *   {"source":{"kind":"tcp","address":"host:port","token":"..."}, "names", "dtype_names",
 *    "shapes"}   see below.
 * source may be absent when names is an empty list.  Bytes are copied with pread or recv
 * in blocks that are hashed while in cache; files and segments are never mapped.
 *
 * A file that changes (size or mtime) between accept and the last byte is an error.  A
 * read that the kernel does not come back from (a dead network file system) cannot be
 * interrupted: the progress calls stop, and whoever watches them replaces the process.
 *
 * tcp: the worker connects and sends one line of JSON ended by \n
 *   {"weft":1,"token":T,"epoch":E,"rank":R,"world_size":W,"dp_index":D,"tensors":N,
 *    "bytes":B}
 * (D is the number of a fleet's replica) and gets one line, {"weft":1,"ok":true} or
 * {"weft":1,"ok":false,"error":"..."}, followed by exactly B bytes: the tensors in the
 * order of names, row-major, little-endian, without padding.  When it has them it sends
 * {"weft":1,"received":B}\n and closes.  Lines have at most 4,096 bytes with the \n.
 * Beyond loopback the address as written must be in tcp_allow. */
WEFT_API const weft_transfer_ops *weft_transfer_host(void);

enum { WEFT_HOST_LINE_MAX = 4096 };

/* The GPU backends.  dst of receive is memory of the device that opts name
 * (weft/memory.h, weft_memory_cuda_create); digests are of the bytes as they lie there,
 * so every byte is copied back once through pinned blocks and hashed by opts.threads
 * threads, several tensors at once.  receive does not wait for that, settle does.  All
 * calls of CUDA and NCCL are the calling thread's.
 *
 * nccl: one rank of the trainer's communicator, which is made by init and belongs to the
 * calling thread.  init_info and update_info are those of vLLM's nccl backend, of all its
 * releases; rank = rank_offset + dp_index * world_size + rank.
 *
 * After a failure, a cancellation or an abandoned plan the communicator is aborted, so
 * that the trainer fails too instead of waiting: the next update needs an init before it
 * (STATE says so).  ncclCommAbort runs on a thread of its own.  Where it does not come
 * back, init refuses (UNAVAIL), and a receive that was under way does not return and
 * makes no progress calls: whoever watches them replaces the process. */
WEFT_API const weft_transfer_ops *weft_transfer_nccl(void);

/* sparse_nccl: nccl, and beside whole tensors patches of them: update_info has
 * num_updates_list, how many elements of each tensor come, and shapes are those of the
 * whole tensors.  For each in order one broadcast of the indices (int32, row-major flat)
 * and one of the values.  All of a call are there before the first is applied, block by
 * block through pinned memory: a tensor that is patched crosses to the host once, for its
 * digest, and those blocks back that changed.  An index that is negative, too large or
 * given twice fails the update by its tensor's name.  base_version of update_info may
 * name the version that it builds on: nothing moves when that is another one. */
WEFT_API const weft_transfer_ops *weft_transfer_sparse_nccl(void);

/* ipc: the trainer is on the same GPU and names its tensors by CUDA IPC handles.
 * init_info {"packed":bool} (not needed: handles say what they are); update_info is that
 * of vLLM's ipc backend with ipc_handles_pickled, read without evaluating anything and
 * only with opts.allow_ipc_pickle (DENIED).  When receive returns, every byte has been
 * copied and the trainer's reference counters are counted down, once for each export. */
WEFT_API const weft_transfer_ops *weft_transfer_ipc(void);

/* By its name in ops; NULL = host.  NULL: there is no such backend. */
WEFT_API const weft_transfer_ops *weft_transfer_named(const char *name);
#define WEFT_TRANSFER_NAMES "host, nccl, sparse_nccl, ipc"

WEFT_END_DECLS

#endif /* WEFT_TRANSFER_H */
