/* host_priv.h -- what the files of the host backend share: the plan with its source, and
 * how blocks are copied and hashed.  Not for other folders. */
#ifndef WEFT_TRANSPORT_HOST_PRIV_H
#define WEFT_TRANSPORT_HOST_PRIV_H

#include "weft/json.h"
#include "weft/safetensors.h"
#include "weft/transfer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* Fits the second-level cache of anything current, and is large enough that the calls for
 * it do not count (measured: tests/bench/bench_host.c). */
#define WEFTI_HOST_BLOCK ((size_t)256 << 10)
#define WEFTI_POLL_MS 50

typedef struct wefti_host {
  char *root;   /* resolved, without a slash at its end ("" for "/"); NULL = anywhere */
  char **allow; /* [allow_count] */
  size_t allow_count;
  unsigned threads;
  uint64_t no_progress_ms;
} wefti_host;

typedef enum wefti_source_kind {
  WEFTI_SOURCE_NONE, /* a plan without tensors */
  WEFTI_SOURCE_FILE,
  WEFTI_SOURCE_SHM,
  WEFTI_SOURCE_TCP
} wefti_source_kind;

typedef struct wefti_host_plan {
  weft_plan pub;
  wefti_source_kind kind;
  weft_plan_tensor *tensors; /* [count] */
  uint64_t *at;              /* [count] offset in the file or segment */
  int64_t *dims;
  weft_json *json;      /* owns names and the source's strings */
  weft_safetensors *st; /* owns names when the file gave them */
  const char *label;    /* path, segment or address, for error texts */
  int fd;               /* file or segment, else -1 */
  struct stat seen;     /* of fd at accept */
  const char *token;    /* tcp */
  weft_transfer_who who;
} wefti_host_plan;

/* One receive under way. */
typedef struct wefti_host_job {
  wefti_host_plan *plan;
  void *const *dst;
  weft_digest *digests;
  const atomic_bool *cancel;
  weft_progress_fn *progress;
  void *progress_arg;
  const wefti_host *host;
  atomic_uint_fast64_t bytes; /* so far; relaxed, for show */
  atomic_size_t next;         /* tensor nobody has begun; relaxed, only a ticket */
  atomic_bool writes;         /* on_write was called; release, acquire before a write */
  atomic_bool stop;           /* somebody failed; relaxed, only a hint */
  pthread_mutex_t lock;       /* for what follows */
  pthread_cond_t ended;
  unsigned running;
  weft_why why; /* the first failure; why.err is WEFT_OK while there is none */
} wefti_host_job;

/* Lists of update_info: fills tensors of plan from names, dtype_names and shapes.
 * Errors carry the contract's texts. */
weft_err wefti_host_lists(wefti_host_plan *plan, const weft_json *names,
                          const weft_json *dtype_names, const weft_json *shapes,
                          weft_why *why) WEFT_MUST_USE;

/* Sources.  source is the object of update_info, info the whole of it. */
weft_err wefti_host_file_accept(const wefti_host *h, wefti_host_plan *plan,
                                const weft_json *source, const weft_json *info,
                                weft_why *why) WEFT_MUST_USE;
weft_err wefti_host_shm_accept(wefti_host_plan *plan, const weft_json *source,
                               weft_why *why) WEFT_MUST_USE;
weft_err wefti_host_tcp_accept(const wefti_host *h, wefti_host_plan *plan,
                               const weft_json *source, weft_why *why) WEFT_MUST_USE;

/* Before each write to dst; locked: other threads may be at it too. */
void wefti_host_before_write(wefti_host_job *job, bool locked);

/* Both with job's progress and cancel. */
weft_err wefti_host_copy(wefti_host_job *job, weft_why *why) WEFT_MUST_USE;
weft_err wefti_host_tcp_receive(wefti_host_job *job, weft_why *why) WEFT_MUST_USE;

bool wefti_cancelled(const atomic_bool *cancel);

#endif /* WEFT_TRANSPORT_HOST_PRIV_H */
