/* nccl_table.h -- libnccl by dlopen: the functions that weft calls, with our own
 * declarations of their types (checked against NVIDIA's in device_abi.c where those are
 * installed).  Not for other folders; no NCCL header is needed to include it. */
#ifndef WEFT_TRANSPORT_NCCL_TABLE_H
#define WEFT_TRANSPORT_NCCL_TABLE_H

#include "cuda_table.h"

#include <limits.h>

typedef struct wefti_nccl_comm *wefti_comm; /* ncclComm_t */
typedef struct wefti_nccl_id {              /* passed by value */
  char bytes[128];
} wefti_nccl_id;

enum { /* ncclResult_t */
       WEFTI_NCCL_OK = 0,
       WEFTI_NCCL_CUDA = 1,
       WEFTI_NCCL_SYSTEM = 2,
       WEFTI_NCCL_INTERNAL = 3,
       WEFTI_NCCL_ARGUMENT = 4,
       WEFTI_NCCL_USAGE = 5,
       WEFTI_NCCL_REMOTE = 6,
       WEFTI_NCCL_IN_PROGRESS = 7
};
enum { WEFTI_NCCL_UINT8 = 1, WEFTI_NCCL_FLOAT32 = 7, WEFTI_NCCL_SUM = 0 };

/* ncclConfig_t as of 2.28.  Fields are only ever appended and a library takes the smaller
 * of the two sizes, so this fits older and newer ones while what we do not set says so.
 */
typedef struct wefti_nccl_config {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster, min_ctas, max_ctas;
  const char *net_name;
  int split_share, traffic_class;
  const char *comm_name;
  int collnet, cta_policy, shrink_share, nvls_ctas, channels_per_peer, nvlink_sched;
} wefti_nccl_config;
#define WEFTI_NCCL_MAGIC 0xcafebeefu
#define WEFTI_NCCL_UNSET INT_MIN
#define WEFTI_NCCL_CONFIG_VERSION 22809u

/* clang-format off */
/*  need, name behind "nccl", arguments */
#define WEFTI_NCCL_TABLE(X)                                                              \
  X(1, GetVersion,         (int *version))                                               \
  X(0, GetUniqueId,        (wefti_nccl_id *id))                                          \
  X(1, CommInitRankConfig, (wefti_comm *comm, int ranks, wefti_nccl_id id, int rank, wefti_nccl_config *config)) \
  X(1, CommGetAsyncError,  (wefti_comm comm, int *err))                                  \
  X(1, Broadcast,          (const void *from, void *to, size_t count, int type, int root, wefti_comm comm, wefti_stream s)) \
  X(1, AllReduce,          (const void *from, void *to, size_t count, int type, int op, wefti_comm comm, wefti_stream s)) \
  X(1, CommAbort,          (wefti_comm comm))                                            \
  X(0, CommFinalize,       (wefti_comm comm))                                            \
  X(0, CommDestroy,        (wefti_comm comm))
/* clang-format on */

typedef struct wefti_nccl {
#define WEFTI_X(need, name, args) int(*name) args;
  WEFTI_NCCL_TABLE(WEFTI_X)
#undef WEFTI_X
  const char *(*GetErrorString)(int err);
  const char *(*GetLastError)(wefti_comm comm); /* NULL before 2.13 */
  void *library;
  char path[WEFT_DEVICE_TEXT];
  int version; /* 22809 = 2.28.9 */
} wefti_nccl;

enum { WEFTI_NCCL_VERSION_TEXT = 24 };
weft_err wefti_nccl_open(const char *path, wefti_nccl *out, weft_why *why) WEFT_MUST_USE;
void wefti_nccl_close(wefti_nccl *nccl);
void wefti_nccl_version_text(int version, char out[WEFTI_NCCL_VERSION_TEXT]);
/* Fills why with what, the number, NCCL's text and its last error; comm may be NULL. */
weft_err wefti_nccl_fail(const wefti_nccl *nccl, wefti_comm comm, int code, weft_why *why,
                         const char *what);

#endif /* WEFT_TRANSPORT_NCCL_TABLE_H */
