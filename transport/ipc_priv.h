/* ipc_priv.h -- what the files of the ipc backend share.  Not for other folders; not
 * here: the pickle (weft/pickle.h), the device (gpu.h). */
#ifndef WEFT_TRANSPORT_IPC_PRIV_H
#define WEFT_TRANSPORT_IPC_PRIV_H

#include "gpu.h"
#include "plan_lists.h"
#include "weft/json.h"
#include "weft/pickle.h"
#include "weft/transfer.h"

#include <stdbool.h>
#include <stdint.h>

#define WEFTI_IPC_ENGINE "IPCWeightTransferEngine"

/* One cudaMalloc of the trainer, mapped here. */
typedef struct wefti_mapping {
  struct wefti_mapping *next;
  uint8_t handle[WEFT_IPC_HANDLE];
  void *base;
} wefti_mapping;

typedef struct wefti_ipc_state {
  wefti_gpu gpu;
  bool allow_pickle;
  wefti_stream reads;
  wefti_event read;
  wefti_mapping *mappings;
  uint64_t epoch; /* whose mappings these are */
} wefti_ipc_state;

typedef struct wefti_ipc_plan {
  weft_plan pub; /* first member */
  wefti_lists lists;
  weft_json *json; /* owns the names */
  weft_ipc_handles handles;
  bool released; /* the trainer's counters know that we are done */
} wefti_ipc_plan;

/* update_info.  uuid "" = not known.  *out is written only on WEFT_OK. */
weft_err wefti_ipc_plan_make(const wefti_ipc_state *st, const char *text, size_t len,
                             const weft_transfer_who *who, wefti_ipc_plan **out,
                             weft_why *why) WEFT_MUST_USE;
void wefti_ipc_plan_free(wefti_ipc_plan *plan); /* NULL is a no-op; releases */
/* Counts down each export's counter in the trainer's shared memory, once.  A trainer that
 * is gone has none. */
void wefti_ipc_release(wefti_ipc_plan *plan);

/* Where t lies here; opens what is not open yet. */
weft_err wefti_ipc_map(wefti_ipc_state *st, const weft_ipc_tensor *t, const char **out,
                       weft_why *why) WEFT_MUST_USE;
void wefti_ipc_unmap_all(wefti_ipc_state *st);
/* Until the trainer's work on t is done. */
weft_err wefti_ipc_wait(wefti_ipc_state *st, const weft_ipc_tensor *t, wefti_wait *w,
                        weft_why *why) WEFT_MUST_USE;
/* UNSUPPORTED: t is in more pieces than are copied. */
weft_err wefti_ipc_copyable(const weft_ipc_tensor *t, weft_why *why) WEFT_MUST_USE;
/* Queues the copy of t (dense afterwards) to dst on the reads stream. */
weft_err wefti_ipc_copy(wefti_ipc_state *st, const weft_ipc_tensor *t, const char *from,
                        void *dst, weft_why *why) WEFT_MUST_USE;

#endif /* WEFT_TRANSPORT_IPC_PRIV_H */
