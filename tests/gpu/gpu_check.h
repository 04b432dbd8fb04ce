/* gpu_check.h -- what weft_gpu_check's files share: one machine with one GPU, or the
 * stand-ins.  Each check prints one JSON object.  Not a unit test: run.py calls it. */
#ifndef WEFT_GPU_CHECK_H
#define WEFT_GPU_CHECK_H

#include "gpu.h"
#include "weft/gpu_source.h"
#include "weft/json.h"
#include "weft/memory.h"
#include "weft/safetensors.h"

#include <sys/types.h>

enum { NO_GPU = 77, ROUNDS = 5, TENSORS_MAX = 1024, ID_WAIT_MS = 60000 };

typedef struct check {
  weft_device_opts device;
  const char *name;
  int fd; /* of a file that lies in memory */
  weft_safetensors *st;
  weft_digest want[TENSORS_MAX];
} check;

/* Ends the process, with what went wrong as JSON. */
void check_die(const check *c, const char *what, const weft_why *why)
    __attribute__((noreturn));
double check_now_s(void);

/* A child that runs fn(c, fd) and then exits; fd: the other end of *fd. */
typedef void check_fn(const check *c, int fd);
pid_t check_fork(const check *c, check_fn *fn, int *fd);
void check_join(const check *c, pid_t child);
/* Whole pieces over such an fd. */
void check_tell(const check *c, int fd, const void *data, size_t len);
void check_hear(const check *c, int fd, void *data, size_t len);

/* The workers' side of a backend, with room for every tensor. */
typedef struct receiver {
  const check *c;
  const weft_transfer_ops *ops;
  void *state;
  weft_memory *memory;
  weft_extent extents[TENSORS_MAX];
  void *dst[TENSORS_MAX];
} receiver;
void receiver_open(receiver *r, const check *c, const weft_transfer_ops *ops);
void receiver_close(receiver *r);
/* update_info of all tensors; handles may be NULL.  malloc'd. */
char *check_update_info(const check *c, const char *handles);
weft_plan *receiver_accept(receiver *r, const char *info);
/* Seconds of receive, and from its beginning until the digests, which are compared, were
 * there. */
typedef struct receive_time {
  double receive, digested;
} receive_time;
receive_time receiver_receive(receiver *r, weft_plan *plan);
receive_time receive_less(receive_time a, receive_time b); /* the best of each */
#define RECEIVE_NEVER ((receive_time){ 1e9, 1e9 })

/* gpu_check.c */
unsigned check_threads(void); /* that hash, as of the only worker of a machine */
weft_gpu_source *check_source(const check *c, bool nccl, bool dense);
/* gpu_check_ipc.c */
void check_ipc(const check *c);
/* gpu_check_nccl.c */
void check_alone(const check *c);
void check_pair(const check *c);
void check_abort_join(const check *c);
void check_abort_broadcast(const check *c);

#endif /* WEFT_GPU_CHECK_H */
