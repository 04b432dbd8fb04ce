/* source_priv.h -- what the files of the trainer's end share (weft/gpu_source.h).  Not
 * for other folders. */
#ifndef WEFT_TRANSPORT_SOURCE_PRIV_H
#define WEFT_TRANSPORT_SOURCE_PRIV_H

#include "nccl_comm.h"
#include "weft/gpu_source.h"
#include "weft/runtime.h"
#include "weft/tcpstore.h"

enum { WEFTI_SOURCE_ABORT_MS = 10000 /* patience with ncclCommAbort */ };

typedef struct wefti_counters wefti_counters; /* one file of reference counters */

struct weft_gpu_source {
  wefti_gpu gpu;
  wefti_group group;
  bool nccl;
  wefti_nccl_id id;
  const atomic_bool *cancel; /* may be NULL */
  weft_device_info info;
  /* the store of weft_gpu_source_serve */
  weft_runtime *rt;
  weft_tcpstore_server *store;
  /* device memory */
  char *memory;
  uint64_t capacity;
  /* what is loaded */
  const weft_st_tensor *tensors; /* [count] */
  size_t count;
  uint64_t *at; /* [count] bytes into memory */
  bool dense;
  wefti_counters *counters;
};

void wefti_source_close_store(weft_gpu_source *s);
void wefti_source_close_counters(weft_gpu_source *s);

#endif /* WEFT_TRANSPORT_SOURCE_PRIV_H */
