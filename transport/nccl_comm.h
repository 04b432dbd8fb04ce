/* nccl_comm.h -- one NCCL communicator of one thread: joining, waiting and giving up,
 * none of which ever blocks inside NCCL.  Not here: what is sent (transfer_nccl.c). */
#ifndef WEFT_TRANSPORT_NCCL_COMM_H
#define WEFT_TRANSPORT_NCCL_COMM_H

#include "gpu.h"
#include "nccl_table.h"

typedef struct wefti_abort wefti_abort; /* an ncclCommAbort under way */

typedef struct wefti_group {
  wefti_gpu *gpu;
  wefti_nccl nccl;
  wefti_comm comm; /* NULL = none */
  int rank, ranks;
  bool no_warm_up;     /* of joining: the trainer makes none */
  wefti_stream stream; /* of warm-ups and unpacked broadcasts */
  wefti_event done;
  void *words;        /* two floats of device memory: warm-up, and count 0 */
  wefti_abort *stuck; /* did not come back yet */
} wefti_group;

/* Joins ranks others as rank and makes the warm-up all_reduce, but for no_warm_up.  group
 * has no communicator. w: limits and cancel; its check is set here.  On failure there is
 * none either. */
weft_err wefti_group_join(wefti_group *group, const wefti_nccl_id *id, int rank,
                          int ranks, wefti_wait *w, weft_why *why) WEFT_MUST_USE;
/* To be called with what a NCCL function returned: waits while it is in progress. */
weft_err wefti_group_settle(wefti_group *group, int code, wefti_wait *w, const char *what,
                            weft_why *why) WEFT_MUST_USE;
/* A wefti_check_fn; arg is the group. */
weft_err wefti_group_check(void *arg, weft_why *why) WEFT_MUST_USE;
/* Gives the communicator up, on a thread of its own, and waits so long: false = it did
 * not come back, see stuck.  Without a communicator: is one stuck? */
bool wefti_group_abort(wefti_group *group, uint64_t patience_ms);
/* Until it came back, however long. */
void wefti_group_abort_wait(wefti_group *group);
/* Also without wefti_group_join; abort comes first. */
void wefti_group_close(wefti_group *group);

#endif /* WEFT_TRANSPORT_NCCL_COMM_H */
