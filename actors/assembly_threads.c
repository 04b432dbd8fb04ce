#define _GNU_SOURCE
#include "assembly_members.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

/* Workers that are threads of this process. */

static void be_nice(void *arg)
{
  (void)arg;
  enum { DEVICE_NICE = 5 };
  /* On Linux this is the calling thread's alone.  A refusal costs latency, nothing else.
   */
  (void)setpriority(PRIO_PROCESS, 0, DEVICE_NICE);
}

void wefti_lower_priority(weft_runtime *rt, unsigned loop)
{
  if (weft_loop_call(weft_runtime_loop(rt, loop), be_nice, NULL) != WEFT_OK) {
    return; /* it goes on at the usual one */
  }
}

void wefti_members_started(wefti_members *m)
{
  for (uint32_t r = 0; m->threads && r < m->world_size; r++) {
    wefti_lower_priority(m->rt, 2 + 2 * r);
  }
}

weft_err wefti_threads_create(wefti_members *m, weft_why *why)
{
  m->threads = calloc(m->world_size, sizeof *m->threads);
  if (!m->threads) {
    return weft_whyf(why, WEFT_E_NOMEM, "worker threads: out of memory");
  }
  wefti_device_opts opts = { .size = sizeof opts,
                             .backend = m->backend,
                             .weights_root = m->weights_root,
                             .tcp_allow = m->tcp_allow,
                             .threads = m->copy_threads,
                             .tp = m->tp,
                             .pp = m->pp,
                             .needs_grant = true,
                             .cudart = m->cudart,
                             .nccl = m->nccl,
                             .allow_ipc_pickle = m->allow_ipc_pickle,
                             .tp_plan = m->tp_plan,
                             .manifest = m->manifest,
                             .draft = m->draft,
                             .draft_manifest = m->draft_manifest,

                             .inplace = m->inplace };
  for (uint32_t r = 0; r < m->world_size; r++) {
    opts.rank = r;
    const weft_err err = wefti_device_create(&opts, &m->threads[r].device, why);
    if (err != WEFT_OK) {
      return err;
    }
    m->threads[r].store = wefti_device_store(m->threads[r].device);
  }
  return WEFT_OK;
}

static weft_err begin_one(wefti_members *m, uint32_t rank)
{
  wefti_thread_worker *w = &m->threads[rank];
  uint64_t incarnation = 0;
  weft_err err = wefti_random(&incarnation, sizeof incarnation);
  if (err == WEFT_OK) {
    err = weft_runtime_spawn(m->rt, 2 + 2 * rank, &wefti_device_class, w->device, NULL,
                             &w->device_actor);
  }
  if (err != WEFT_OK) {
    return err;
  }
  const wefti_worker_args args = { .device = w->device,
                                   .device_actor = w->device_actor,
                                   .rank = rank,
                                   .incarnation = incarnation };
  err = weft_runtime_spawn(m->rt, 1 + 2 * rank, &wefti_worker_class, &args, NULL,
                           &w->actor);
  if (err != WEFT_OK) {
    return err;
  }
  char url[64];
  (void)snprintf(url, sizeof url, "%s%" PRIu64, WEFTI_ACTOR_URL, w->actor);
  const weft_proc_ready ready = {
    .h = { .type = WEFT_MSG_PROC_READY, .flags = WEFT_MSG_F_RESERVED },
    .rank = rank,
    .world_size = m->world_size,
    .incarnation = incarnation,
    .kind = WEFT_MEMBER_THREAD,
    .pid = (uint32_t)getpid(),
    .url = wefti_str(url),
  };
  return wefti_post(m->rt, m->supervisor, &ready.h);
}

weft_err wefti_threads_begin(wefti_members *m, weft_why *why)
{
  for (uint32_t r = 0; r < m->world_size; r++) {
    const weft_err err = begin_one(m, r);
    if (err != WEFT_OK) {
      return weft_whyf(why, err, "worker thread %" PRIu32 ": cannot start: %s", r,
                       weft_strerror(err));
    }
  }
  return WEFT_OK;
}

void wefti_threads_destroy(wefti_members *m)
{
  wefti_members_let_go(m);
  for (uint32_t r = 0; m->threads && r < m->world_size; r++) {
    wefti_device_destroy(m->threads[r].device);
  }
  free(m->threads);
  m->threads = NULL;
}
