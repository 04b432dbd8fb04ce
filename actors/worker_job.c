#include "worker_priv.h"

#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>

bool worker_job_is_question(weft_device_job job)
{
  return job == WEFT_DEVICE_WEIGHTS || job == WEFT_DEVICE_CHECKSUM ||
         job == WEFT_DEVICE_RESET || job == WEFT_DEVICE_REAP ||
         job == WEFT_DEVICE_RECALL || job == WEFT_DEVICE_FETCH;
}

bool worker_is_free(const worker *w)
{
  return w->corr == 0 && !w->draining && !worker_recalls(w) &&
         w->phase != WEFT_WORKER_ABORTING;
}

void worker_run(weft_ctx *ctx, worker *w, weft_device_job job, const worker_ask *ask)
{
  WEFT_ASSERT(w->corr == 0);
  const weft_device_run m = { .h.type = WEFT_MSG_DEVICE_RUN,
                              .job = (uint32_t)job,
                              .epoch = w->epoch,
                              .what = ask ? ask->what : 0,
                              .timeout_ms = ask ? ask->timeout_ms : 0,
                              .rank = w->rank,
                              .world_size = w->world_size,
                              .dp_index = w->dp_index,
                              .strict = ask ? ask->strict : 0,
                              .info = ask ? ask->info : NULL,
                              .draft = ask ? ask->draft : 0,
                              .alone = ask ? ask->alone : 0,
                              .digest_hi = ask ? ask->digest_hi : 0,
                              .digest_lo = ask ? ask->digest_lo : 0 };
  const wefti_device *device = w->args.device;
  if (device->catch_up && (job == WEFT_DEVICE_OPEN || job == WEFT_DEVICE_RESET ||
                           job == WEFT_DEVICE_RECALL || job == WEFT_DEVICE_FETCH)) {
    device->catch_up(device->catch_up_arg);
  }
  w->job = job;
  w->asked = ask ? *ask : (worker_ask){ 0 };
  w->asked.arg = (weft_str){ 0 }; /* borrowed: only who asked is needed later */
  w->asked.info = NULL;
  /* The last job has ended, so nobody reads it now. */
  atomic_store_explicit(&w->args.device->cancel, false, memory_order_relaxed);
  w->corr = weft_ask(ctx, w->args.device_actor, weft_msg_make(ctx, &m.h), 0);
}

/* ---- frames that wait */

static void kept_free(worker_ask *ask)
{
  weft_buf_unref(ask->info);
  *ask = (worker_ask){ 0 };
}

void worker_keep(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  if (w->waiting_count == WORKER_WAITING_MAX) {
    worker_refuse(ctx, ask, WEFT_E_UNAVAIL, "rank %" PRIu32 ": %d calls wait already",
                  w->rank, WORKER_WAITING_MAX);
    return;
  }
  worker_ask *kept = &w->waiting[w->waiting_count++];
  *kept = *ask;
  kept->arg = (weft_str){ 0 }; /* no frame that waits has one */
  kept->info = weft_buf_ref(ask->info);
  if (w->corr != 0 && w->job == WEFT_DEVICE_REAP) { /* can be done later */
    atomic_store_explicit(&w->args.device->cancel, true, memory_order_relaxed);
    w->untidy = true;
  }
  if (w->fetch.running) { /* can be lent again; a trainer does not wait for it */
    atomic_store_explicit(&w->args.device->cancel, true, memory_order_relaxed);
  }
}

void worker_kept_clear(worker *w)
{
  while (w->waiting_count > 0) {
    kept_free(&w->waiting[--w->waiting_count]);
  }
}

/* What waited is looked at as if it came now: meanwhile its epoch may have ended. */
void worker_pump(weft_ctx *ctx, worker *w)
{
  while (worker_is_free(w) && w->waiting_count > 0) {
    worker_ask first = w->waiting[0];
    w->waiting_count--;
    memmove(w->waiting, w->waiting + 1, w->waiting_count * sizeof w->waiting[0]);
    worker_dispatch(ctx, w, &first);
    kept_free(&first);
  }
}

/* ---- the end of a session */

static void end_session(worker *w)
{
  if (w->epoch > w->ended) {
    w->ended = w->epoch;
  }
  w->epoch = 0;
  w->is_init = false;
  w->phase = WEFT_WORKER_IDLE;
}

void worker_drop(weft_ctx *ctx, worker *w, uint64_t epoch)
{
  w->phase = WEFT_WORKER_ABORTING;
  w->abort_epoch = epoch;
  if (w->draining) {
    worker_drain_end(ctx, w);
    worker_refuse(ctx, &w->asked, WEFT_E_CANCELLED, "epoch %" PRIu64 " was aborted",
                  w->asked.epoch);
  }
  if (w->corr != 0) {
    atomic_store_explicit(&w->args.device->cancel, true, memory_order_relaxed);
  } else {
    worker_run(ctx, w, WEFT_DEVICE_ABANDON, NULL);
  }
}

/* The device thread has let go.  abort_epoch 0: the session was another engine's, whose
 * numbers mean nothing to this one. */
static void abort_end(weft_ctx *ctx, worker *w)
{
  w->epoch = 0;
  w->is_init = false;
  w->phase = WEFT_WORKER_IDLE;
  if (w->abort_epoch > w->ended) {
    w->ended = w->abort_epoch;
  }
  w->abort_epoch = 0;
  w->untidy = true;
  worker_said_clear(w);
  for (unsigned i = 0; i < w->abort_count; i++) {
    worker_ok(ctx, w, &w->aborts[i]);
  }
  w->abort_count = 0;
}

/* ---- answers of the device thread */

static void question_done(weft_ctx *ctx, const worker_ask *asked,
                          const weft_device_done *done)
{
  if (done->err != WEFT_OK) {
    const weft_err err = (weft_err)done->err;
    const bool said = done->text.len > 0;
    worker_refuse(ctx, asked, err, "%.*s", said ? (int)done->text.len : INT_MAX,
                  said ? done->text.p : weft_strerror(err));
  } else {
    worker_json(ctx, asked, done->json);
  }
}

static void session_done(weft_ctx *ctx, worker *w, const worker_ask *asked,
                         const weft_device_done *done)
{
  const bool ok = done->err == WEFT_OK;
  if (!ok && !(w->job == WEFT_DEVICE_FINISH && done->correctable)) {
    weft_log(ctx, WEFT_LOG_WARN, "session ended: %.*s rank=%" PRIu32 " epoch=%" PRIu64,
             (int)done->text.len, done->text.p ? done->text.p : "", w->rank, w->epoch);
    end_session(w);
    w->untidy = true;
  } else if (w->job == WEFT_DEVICE_ACCEPT) {
    w->phase = WEFT_WORKER_ACCEPTED;
  } else if (w->job == WEFT_DEVICE_FINISH && ok) {
    w->phase = WEFT_WORKER_INSTALLED;
  } else if (w->job == WEFT_DEVICE_GO && w->is_init) {
    end_session(w); /* an init is one accept and one go */
  } else {
    w->phase = WEFT_WORKER_OPEN;
  }
  worker_say(ctx, w, asked, done);
}

weft_err worker_job_done(weft_ctx *ctx, worker *w, const weft_device_done *done)
{
  if (w->corr == 0 || done->h.corr != w->corr) {
    return WEFT_OK; /* not what is waited for */
  }
  const worker_ask asked = w->asked;
  w->corr = 0;
  if (w->job == WEFT_DEVICE_RECALL) {
    worker_recall_done(ctx, w, (weft_err)done->err, done->text);
  } else if (w->job == WEFT_DEVICE_FETCH) {
    worker_fetch_done(ctx, w, &asked, (weft_err)done->err, done->text);
  } else if (worker_job_is_question(w->job)) {
    question_done(ctx, &asked, done);
  } else if (w->job == WEFT_DEVICE_ABANDON) {
    abort_end(ctx, w);
  } else if (w->phase == WEFT_WORKER_ABORTING) {
    worker_refuse(ctx, &asked, WEFT_E_CANCELLED, "epoch %" PRIu64 " was aborted",
                  asked.epoch);
  } else {
    session_done(ctx, w, &asked, done);
  }
  if (w->phase == WEFT_WORKER_ABORTING) {
    worker_run(ctx, w, WEFT_DEVICE_ABANDON, NULL);
  }
  worker_pump(ctx, w);
  return WEFT_OK;
}

/* The device thread has not seen the job.  What it holds of the session has to go all the
 * same, and that must get through: it is tried until it does. */
weft_err worker_job_failed(weft_ctx *ctx, worker *w, const weft_ask_failed_msg *failed)
{
  if (w->corr == 0 || failed->h.corr != w->corr) {
    return WEFT_OK;
  }
  const weft_err reason = (weft_err)failed->reason;
  const worker_ask asked = w->asked;
  w->corr = 0;
  if (reason == WEFT_E_DOWN) {
    return WEFT_E_DOWN;
  }
  if (w->job == WEFT_DEVICE_RECALL) {
    worker_recall_done(ctx, w, reason, (weft_str){ 0 });
  } else if (w->job == WEFT_DEVICE_FETCH) {
    worker_fetch_done(ctx, w, &asked, reason, (weft_str){ 0 });
  } else if (w->job != WEFT_DEVICE_ABANDON) {
    worker_refuse(ctx, &asked, reason, "rank %" PRIu32 ": device thread not reached: %s",
                  w->rank, weft_strerror(reason));
  }
  if (!worker_job_is_question(w->job) && w->phase != WEFT_WORKER_ABORTING) {
    w->phase = WEFT_WORKER_ABORTING;
    w->abort_epoch = w->epoch;
  }
  if (w->phase == WEFT_WORKER_ABORTING &&
      weft_timer_start(ctx, WORKER_RETRY_MS, WORKER_TIMER_RETRY) == 0) {
    return WEFT_E_NOMEM; /* could never let go: better replaced */
  }
  worker_pump(ctx, w);
  return WEFT_OK;
}
