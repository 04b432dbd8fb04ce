/* A session as the worker actor goes through it: start, accept, go, finish, and how it
 * ends.  The order of frames, their repeats and their lateness are dealt with here; the
 * work is the device thread's. */
#include "worker_priv.h"

#include <inttypes.h>
#include <string.h>

/* ---- sessions; the device thread is free in all of these */

static void wrong_phase(weft_ctx *ctx, const worker *w, const worker_ask *ask,
                        const char *what)
{
  if (w->epoch == 0) {
    worker_refuse(ctx, ask, WEFT_E_STATE,
                  "rank %" PRIu32 ": %s of epoch %" PRIu64 ", but nothing is open",
                  w->rank, what, ask->epoch);
  } else {
    worker_refuse(ctx, ask, WEFT_E_STATE,
                  "rank %" PRIu32 ": %s of epoch %" PRIu64 ", but epoch %" PRIu64
                  " is %s",
                  w->rank, what, ask->epoch, w->epoch, weft_worker_phase_name(w->phase));
  }
}

static void on_start(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  const weft_transfer_ops *transfer = w->args.device->transfer;
  if (ask->draft && transfer && transfer->no_draft) {
    worker_refuse(ctx, ask, WEFT_E_UNSUPPORTED, "%s", transfer->no_draft);
  } else if (ask->draft && !w->args.device->draft) {
    worker_refuse(
        ctx, ask, WEFT_E_UNSUPPORTED,
        "Draft model weight update requested, but no draft model is configured.");
  } else if (w->epoch != 0) {
    wrong_phase(ctx, w, ask, "start");
  } else if ((ask->inplace != 0) != w->args.device->inplace) {
    worker_refuse(ctx, ask, WEFT_E_UNSUPPORTED,
                  "rank %" PRIu32 " was started with --staging %s, its engine was not",
                  w->rank, w->args.device->inplace ? "inplace" : "shadow");
  } else {
    wefti_store_state st;
    wefti_store_state_get(w->args.device->store, &st);
    worker_ask open = *ask;
    /* 1: the live set here is not what the session builds on; a partial update must not
     * be mixed with it. */
    open.strict = st.dirty != 0 || st.weights_sequence != ask->sequence ||
                  st.digest_hi != ask->digest_hi || st.digest_lo != ask->digest_lo;
    w->epoch = ask->epoch;
    w->phase = WEFT_WORKER_OPEN;
    if (ask->inplace) {
      open.info = NULL; /* borrowed: gone when readers have let go */
      worker_drain(ctx, w, &open);
    } else {
      worker_run(ctx, w, WEFT_DEVICE_OPEN, &open);
    }
  }
}

static void on_accept(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  const bool init = ask->what == WEFT_TRANSFER_INIT;
  if (!init && ask->what != WEFT_TRANSFER_UPDATE) {
    worker_refuse(ctx, ask, WEFT_E_PROTO, "accept of unknown kind %" PRIu32, ask->what);
  } else if (init ? w->epoch != 0
                  : w->phase != WEFT_WORKER_OPEN || w->epoch != ask->epoch) {
    wrong_phase(ctx, w, ask, init ? "init" : "update");
  } else {
    w->epoch = ask->epoch;
    w->is_init = init;
    w->phase = WEFT_WORKER_ACCEPTING;
    worker_run(ctx, w, WEFT_DEVICE_ACCEPT, ask);
  }
}

static void on_go(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  const uint32_t accepted = w->is_init ? WEFT_TRANSFER_INIT : WEFT_TRANSFER_UPDATE;
  if (w->phase != WEFT_WORKER_ACCEPTED || w->epoch != ask->epoch ||
      ask->what != accepted) {
    wrong_phase(ctx, w, ask, "go");
  } else {
    w->phase = WEFT_WORKER_RECEIVING;
    worker_run(ctx, w, WEFT_DEVICE_GO, ask);
  }
}

static void on_finish(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  if (w->epoch == ask->epoch && w->phase == WEFT_WORKER_INSTALLED) {
    worker_say_again(ctx, w, ask); /* asked anew by an engine that missed the answer */
  } else if (w->phase != WEFT_WORKER_OPEN || w->epoch != ask->epoch || w->is_init) {
    wrong_phase(ctx, w, ask, "finish");
  } else {
    w->phase = WEFT_WORKER_FINISHING;
    worker_run(ctx, w, WEFT_DEVICE_FINISH, ask);
  }
}

static bool same_return(weft_return a, weft_return b)
{
  return a.to == b.to && a.corr == b.corr;
}

/* The device thread is not free.  A second copy of the frame it works on waits with it.
 */
static void on_busy(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  if ((w->corr != 0 || w->draining) && w->asked.type == ask->type &&
      w->asked.op == ask->op && w->asked.epoch == ask->epoch) {
    if (!same_return(w->asked.back, ask->back)) {
      worker_refuse(ctx, &w->asked, WEFT_E_CANCELLED, "asked again, answered there");
      w->asked.back = ask->back;
    }
  } else if (w->phase == WEFT_WORKER_ABORTING || worker_recalls(w) ||
             (w->corr != 0 && worker_job_is_question(w->job))) {
    worker_keep(ctx, w, ask);
  } else {
    wrong_phase(ctx, w, ask, "another call");
  }
}

static void run_session(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  w->session_op = ask->op;
  if (ask->type == WEFT_MSG_W_START) {
    worker_lend_stop(w);
    on_start(ctx, w, ask);
  } else if (ask->type == WEFT_MSG_W_ACCEPT) {
    on_accept(ctx, w, ask);
  } else if (ask->type == WEFT_MSG_W_GO) {
    on_go(ctx, w, ask);
  } else {
    on_finish(ctx, w, ask);
  }
}

void worker_on_session(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  const uint64_t ended = w->phase == WEFT_WORKER_ABORTING && w->abort_epoch > w->ended
                             ? w->abort_epoch
                             : w->ended;
  if (ask->epoch != 0 && w->said.type != 0 && w->said.op == ask->op &&
      w->said.epoch == ask->epoch) {
    worker_say_again(ctx, w, ask);
  } else if (ask->epoch <= ended) {
    worker_refuse(ctx, ask, WEFT_E_STALE,
                  "rank %" PRIu32 ": epoch %" PRIu64 ", but %" PRIu64 " has ended here",
                  w->rank, ask->epoch, ended);
  } else if (ask->op < w->session_op) {
    worker_refuse(ctx, ask, WEFT_E_STALE,
                  "rank %" PRIu32 ": a later operation came first",
                  w->rank); /* a late copy: the engine asks one thing after the other */
  } else if (!worker_is_free(w)) {
    on_busy(ctx, w, ask);
  } else {
    run_session(ctx, w, ask);
  }
}

/* ---- the end of sessions */

weft_err worker_serve(worker *w, uint64_t epoch, uint64_t sequence)
{
  wefti_device *device = w->args.device;
  if (device->inplace) { /* before readers come; all of it lies there */
    wefti_inplace_clear(device);
  }
  return wefti_store_publish(device->store, epoch, sequence);
}

void worker_on_publish(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  weft_store *store = w->args.device->store;
  wefti_store_state st;
  wefti_store_state_get(store, &st);
  if (ask->sequence <= st.weights_sequence) {
    worker_ok(ctx, w, ask); /* has happened */
  } else if (ask->epoch <= w->ended) {
    worker_refuse(ctx, ask, WEFT_E_STALE,
                  "rank %" PRIu32 ": publish of epoch %" PRIu64 ", but %" PRIu64
                  " has ended here",
                  w->rank, ask->epoch, w->ended);
  } else if (w->phase != WEFT_WORKER_INSTALLED || w->epoch != ask->epoch ||
             worker_serve(w, ask->epoch, ask->sequence) != WEFT_OK) {
    wrong_phase(ctx, w, ask, "publish");
  } else {
    weft_log(ctx, WEFT_LOG_INFO,
             "published rank=%" PRIu32 " epoch=%" PRIu64 " weights_sequence=%" PRIu64,
             w->rank, ask->epoch, ask->sequence);
    w->ended = w->epoch;
    w->pause_epoch = 0;
    w->epoch = 0;
    w->phase = WEFT_WORKER_IDLE;
    w->untidy = true;
    worker_said_clear(w);
    worker_ok(ctx, w, ask);
  }
}

static void wait_for_abort(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  for (unsigned i = 0; i < w->abort_count; i++) {
    if (same_return(w->aborts[i].back, ask->back)) {
      return;
    }
  }
  if (w->abort_count == WORKER_ABORTS_MAX) {
    worker_refuse(ctx, &w->aborts[0], WEFT_E_CANCELLED, "asked again, answered there");
    w->abort_count--;
    memmove(w->aborts, w->aborts + 1, w->abort_count * sizeof w->aborts[0]);
  }
  worker_ask *kept = &w->aborts[w->abort_count++];
  *kept = *ask;
  kept->arg = (weft_str){ 0 };
}

void worker_on_abort(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  if (ask->epoch <= w->ended) {
    worker_ok(ctx, w, ask);
  } else if (w->phase == WEFT_WORKER_ABORTING) {
    w->abort_epoch = ask->epoch > w->abort_epoch ? ask->epoch : w->abort_epoch;
    wait_for_abort(ctx, w, ask);
  } else if (w->epoch == 0 || ask->epoch < w->epoch) {
    w->ended = ask->epoch; /* nothing of it here, and nothing of it will be taken in */
    worker_ok(ctx, w, ask);
  } else {
    weft_log(ctx, WEFT_LOG_INFO,
             "abort in phase %s: %.*s rank=%" PRIu32 " epoch=%" PRIu64,
             weft_worker_phase_name(w->phase), (int)ask->arg.len,
             ask->arg.p ? ask->arg.p : "", w->rank, ask->epoch);
    wait_for_abort(ctx, w, ask);
    worker_drop(ctx, w, ask->epoch);
  }
}
