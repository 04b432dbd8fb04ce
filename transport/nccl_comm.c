#include "nccl_comm.h"

#include "weft/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORD = sizeof(float), WORDS_BYTES = 2 * WORD };

/* ---- giving up */

/* Belongs to the helper and to the group; the last one frees it. */
struct wefti_abort {
  pthread_mutex_t lock; /* for what follows */
  pthread_cond_t ended;
  bool done;
  unsigned owners;
  /* constant */
  int (*abort)(wefti_comm comm);
  int (*use)(int device);
  int device;
  wefti_comm comm;
};

static void let_go(wefti_abort *a)
{
  (void)pthread_mutex_lock(&a->lock);
  const bool last = --a->owners == 0;
  (void)pthread_mutex_unlock(&a->lock);
  if (last) {
    (void)pthread_cond_destroy(&a->ended);
    (void)pthread_mutex_destroy(&a->lock);
    free(a);
  }
}

static void *abort_main(void *arg)
{
  wefti_abort *a = arg;
  (void)a->use(a->device); /* per thread */
  (void)a->abort(a->comm);
  (void)pthread_mutex_lock(&a->lock);
  a->done = true;
  (void)pthread_cond_signal(&a->ended);
  (void)pthread_mutex_unlock(&a->lock);
  let_go(a);
  return NULL;
}

static wefti_abort *abort_make(const wefti_group *group)
{
  wefti_abort *a = calloc(1, sizeof *a);
  if (a == NULL) {
    return NULL;
  }
  *a = (wefti_abort){ .owners = 2,
                      .abort = group->nccl.CommAbort,
                      .use = group->gpu->cuda.SetDevice,
                      .device = group->gpu->device,
                      .comm = group->comm };
  const bool lock = pthread_mutex_init(&a->lock, NULL) == 0;
  const bool cond = lock && weft_cond_init(&a->ended) == WEFT_OK;
  if (!cond) {
    if (lock) {
      (void)pthread_mutex_destroy(&a->lock);
    }
    free(a);
    return NULL;
  }
  return a;
}

static bool abort_wait(wefti_group *group, uint64_t patience_ms)
{
  wefti_abort *a = group->stuck;
  const uint64_t until_ms = weft_clock_ms() + patience_ms;
  (void)pthread_mutex_lock(&a->lock);
  while (!a->done && weft_cond_wait_until(&a->ended, &a->lock, until_ms)) {
  }
  const bool done = a->done;
  (void)pthread_mutex_unlock(&a->lock);
  if (done) {
    let_go(a);
    group->stuck = NULL;
  }
  return done;
}

bool wefti_group_abort(wefti_group *group, uint64_t patience_ms)
{
  if (group->comm == NULL) {
    return group->stuck == NULL || abort_wait(group, patience_ms);
  }
  wefti_abort *a = abort_make(group);
  pthread_t helper;
  if (a == NULL || pthread_create(&helper, NULL, abort_main, a) != 0) {
    /* No memory for a helper: here, then.  It may take long, it may not be left out. */
    if (a != NULL) {
      a->owners = 1;
      let_go(a);
    }
    (void)group->nccl.CommAbort(group->comm);
    group->comm = NULL;
    return true;
  }
  (void)pthread_detach(helper);
  group->comm = NULL;
  group->stuck = a;
  return abort_wait(group, patience_ms);
}

void wefti_group_abort_wait(wefti_group *group)
{
  while (!wefti_group_abort(group, 1000)) {
  }
}

void wefti_group_close(wefti_group *group)
{
  const wefti_cuda *c = group->gpu != NULL ? &group->gpu->cuda : NULL;
  if (group->stuck != NULL) { /* the helper frees it, if it ever ends; the kernels of the
                                 communicator may still run: nothing of the device's is
                                 touched, the process is about to end */
    let_go(group->stuck);
  } else if (c != NULL) {
    if (group->words != NULL) {
      (void)c->Free(group->words);
    }
    if (group->done != NULL) {
      (void)c->EventDestroy(group->done);
    }
    if (group->stream != NULL) {
      (void)c->StreamDestroy(group->stream);
    }
  }
  wefti_nccl_close(&group->nccl);
  *group = (wefti_group){ 0 };
}

/* ---- waiting */

weft_err wefti_group_check(void *arg, weft_why *why)
{
  const wefti_group *group = arg;
  int state = WEFTI_NCCL_OK;
  const int code = group->nccl.CommGetAsyncError(group->comm, &state);
  if (code != WEFTI_NCCL_OK) {
    return wefti_nccl_fail(&group->nccl, group->comm, code, why, "ncclCommGetAsyncError");
  }
  return state == WEFTI_NCCL_OK || state == WEFTI_NCCL_IN_PROGRESS
             ? WEFT_OK
             : wefti_nccl_fail(&group->nccl, group->comm, state, why, "the communicator");
}

weft_err wefti_group_settle(wefti_group *group, int code, wefti_wait *w, const char *what,
                            weft_why *why)
{
  while (code == WEFTI_NCCL_IN_PROGRESS) {
    const int asked = group->nccl.CommGetAsyncError(group->comm, &code);
    if (asked != WEFTI_NCCL_OK) {
      return wefti_nccl_fail(&group->nccl, group->comm, asked, why,
                             "ncclCommGetAsyncError");
    }
    const weft_err err =
        code == WEFTI_NCCL_IN_PROGRESS ? wefti_wait_turn(w, why) : WEFT_OK;
    if (err != WEFT_OK) {
      return err;
    }
  }
  return code == WEFTI_NCCL_OK
             ? WEFT_OK
             : wefti_nccl_fail(&group->nccl, group->comm, code, why, what);
}

/* ---- joining */

static weft_err prepare(wefti_group *group, weft_why *why)
{
  const wefti_cuda *c = &group->gpu->cuda;
  weft_err err = wefti_gpu_enter(group->gpu, why);
  if (err == WEFT_OK && group->stream == NULL) {
    err = wefti_cuda_check(
        c, c->StreamCreateWithFlags(&group->stream, WEFTI_STREAM_NONBLOCKING), why,
        "cudaStreamCreateWithFlags");
  }
  if (err == WEFT_OK && group->done == NULL) {
    err =
        wefti_cuda_check(c, c->EventCreateWithFlags(&group->done, WEFTI_EVENT_NO_TIMING),
                         why, "cudaEventCreateWithFlags");
  }
  if (err == WEFT_OK && group->words == NULL) {
    err = wefti_cuda_check(c, c->Malloc(&group->words, WORDS_BYTES), why, "cudaMalloc");
  }
  return err;
}

/* vLLM's communicator makes one all_reduce of one float32 when it is made.  Every rank
 * must, or all of them wait for ever. */
static weft_err warm_up(wefti_group *group, wefti_wait *w, weft_why *why)
{
  const wefti_cuda *c = &group->gpu->cuda;
  weft_err err = wefti_cuda_check(
      c, c->MemsetAsync(group->words, 0, WORDS_BYTES, group->stream), why, "warm-up");
  if (err != WEFT_OK) {
    return err;
  }
  const int code = group->nccl.AllReduce(group->words, (char *)group->words + WORD, 1,
                                         WEFTI_NCCL_FLOAT32, WEFTI_NCCL_SUM, group->comm,
                                         group->stream);
  err = wefti_group_settle(group, code, w, "ncclAllReduce (warm-up)", why);
  if (err == WEFT_OK) {
    err = wefti_cuda_check(c, c->EventRecord(group->done, group->stream), why,
                           "cudaEventRecord");
  }
  if (err == WEFT_OK) {
    w->check = wefti_group_check;
    w->check_arg = group;
    err = wefti_gpu_wait_event(group->gpu, group->done, w, why);
    w->check = NULL;
  }
  return err;
}

weft_err wefti_group_join(wefti_group *group, const wefti_nccl_id *id, int rank,
                          int ranks, wefti_wait *w, weft_why *why)
{
  weft_err err = prepare(group, why);
  if (err != WEFT_OK) {
    return err;
  }
  wefti_nccl_config config = { .size = sizeof config,
                               .magic = WEFTI_NCCL_MAGIC,
                               .version = WEFTI_NCCL_CONFIG_VERSION,
                               .blocking = 0,
                               .cga_cluster = WEFTI_NCCL_UNSET,
                               .min_ctas = WEFTI_NCCL_UNSET,
                               .max_ctas = WEFTI_NCCL_UNSET,
                               .split_share = WEFTI_NCCL_UNSET,
                               .traffic_class = WEFTI_NCCL_UNSET,
                               .collnet = WEFTI_NCCL_UNSET,
                               .cta_policy = WEFTI_NCCL_UNSET,
                               .shrink_share = WEFTI_NCCL_UNSET,
                               .nvls_ctas = WEFTI_NCCL_UNSET,
                               .channels_per_peer = WEFTI_NCCL_UNSET,
                               .nvlink_sched = WEFTI_NCCL_UNSET };
  group->rank = rank;
  group->ranks = ranks;
  weft_why inner = { 0 };
  const int code =
      group->nccl.CommInitRankConfig(&group->comm, ranks, *id, rank, &config);
  const char *phase = "joining";
  err = wefti_group_settle(group, code, w, "ncclCommInitRankConfig", &inner);
  if (err == WEFT_OK && !group->no_warm_up) {
    phase = "warm-up all_reduce";
    err = warm_up(group, w, &inner);
  }
  if (err == WEFT_OK) {
    return WEFT_OK;
  }
  char version[WEFTI_NCCL_VERSION_TEXT];
  wefti_nccl_version_text(group->nccl.version, version);
  return weft_whyf(why, err, "%s as rank %d of %d (NCCL %s here): %.380s", phase, rank,
                   ranks, version, inner.text);
}
