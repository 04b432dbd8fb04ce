/* The worker actor: the protocol between engine and one rank.  It never blocks; whatever
 * may, runs as one job at a time on the device thread. */
#include "worker.h"

#include "worker_priv.h"

#include <inttypes.h>
#include <stdatomic.h>

/* ---- unpacking */

#define UNPACK(lower)                                                                    \
  const weft_##lower *m = (const weft_##lower *)msg;                                     \
  ask->boot = m->boot;                                                                   \
  ask->incarnation = m->incarnation;                                                     \
  ask->epoch = m->epoch;                                                                 \
  ask->op = m->op

static bool unpack_session(const weft_msg *msg, worker_ask *ask)
{
  if (msg->type == WEFT_MSG_W_START) {
    UNPACK(w_start);
    ask->draft = m->draft;
    ask->alone = m->alone;
    ask->sequence = m->base_sequence;
    ask->digest_hi = m->base_digest_hi;
    ask->digest_lo = m->base_digest_lo;
    ask->inplace = m->inplace;
    ask->timeout_ms = m->timeout_ms;
    ask->info = m->version;
  } else if (msg->type == WEFT_MSG_W_ACCEPT) {
    UNPACK(w_accept);
    ask->what = m->what;
    ask->timeout_ms = m->timeout_ms;
    ask->info = m->info;
  } else if (msg->type == WEFT_MSG_W_GO) {
    UNPACK(w_go);
    ask->what = m->what;
    ask->timeout_ms = m->timeout_ms;
  } else if (msg->type == WEFT_MSG_W_FINISH) {
    UNPACK(w_finish);
    ask->strict = m->strict;
    ask->timeout_ms = m->timeout_ms;
  } else {
    return false;
  }
  return true;
}

static bool unpack_lent(const weft_msg *msg, worker_ask *ask)
{
  if (msg->type == WEFT_MSG_W_LEND) {
    UNPACK(w_lend);
    ask->sequence = m->sequence;
    ask->digest_hi = m->digest_hi;
    ask->digest_lo = m->digest_lo;
    ask->arg = m->towards;
  } else if (msg->type == WEFT_MSG_W_FETCH) {
    UNPACK(w_fetch);
    ask->sequence = m->sequence;
    ask->digest_hi = m->digest_hi;
    ask->digest_lo = m->digest_lo;
    ask->timeout_ms = m->timeout_ms;
    ask->info = m->info;
  } else {
    return false;
  }
  return true;
}

static bool unpack(const weft_msg *msg, worker_ask *ask)
{
  *ask = (worker_ask){ .type = msg->type, .back = weft_return_of(msg) };
  if (unpack_session(msg, ask)) {
    return true;
  }
  if (msg->type == WEFT_MSG_W_ADOPT) {
    UNPACK(w_adopt);
    ask->sequence = m->sequence;
    ask->digest_hi = m->digest_hi;
    ask->digest_lo = m->digest_lo;
  } else if (msg->type == WEFT_MSG_W_BEAT) {
    UNPACK(w_beat);
  } else if (msg->type == WEFT_MSG_W_PUBLISH) {
    UNPACK(w_publish);
    ask->sequence = m->sequence;
  } else if (msg->type == WEFT_MSG_W_ABORT) {
    UNPACK(w_abort);
    ask->arg = m->reason;
  } else if (msg->type == WEFT_MSG_W_QUERY) {
    UNPACK(w_query);
    ask->what = m->what;
  } else {
    return unpack_lent(msg, ask);
  }
  return true;
}

/* ---- who speaks */

static bool of_this_life(weft_ctx *ctx, const worker *w, const worker_ask *ask)
{
  if (ask->incarnation != w->args.incarnation) {
    worker_refuse(ctx, ask, WEFT_E_STALE,
                  "rank %" PRIu32 ": meant for incarnation %" PRIx64 ", this is %" PRIx64,
                  w->rank, ask->incarnation, w->args.incarnation);
    return false;
  }
  if (ask->type != WEFT_MSG_W_ADOPT &&
      (w->engine.boot == 0 || ask->boot != w->engine.boot)) {
    worker_refuse(ctx, ask, WEFT_E_STALE,
                  "rank %" PRIu32 ": from engine boot %" PRIx64 ", adopted by %" PRIx64,
                  w->rank, ask->boot, w->engine.boot);
    return false;
  }
  return true;
}

/* Another engine, or another life of ours: what it did not publish does not exist. */
static void new_boot(weft_ctx *ctx, worker *w, uint64_t boot)
{
  if (w->engine.boot != 0) {
    weft_log(ctx, WEFT_LOG_WARN,
             "new engine boot, everything dropped rank=%" PRIu32 " boot=%" PRIx64,
             w->rank, boot);
    wefti_store_forget(w->args.device->store);
    w->pause_epoch = 0;
    w->ended = 0;
    w->adopted_op = 0;
    w->session_op = 0;
    w->lent_op = 0;
    worker_said_clear(w);
    if (w->phase == WEFT_WORKER_ABORTING) {
      w->abort_epoch = 0;
    } else if (w->phase != WEFT_WORKER_IDLE) {
      worker_drop(ctx, w, 0);
    }
  }
  wefti_leader_follow(&w->engine, boot);
}

/* We were fenced and come back: whatever the engine began with us before has ended for
 * it, although no ABORT may have reached us. */
static void end_before_adoption(weft_ctx *ctx, worker *w, uint64_t epoch)
{
  if (w->phase == WEFT_WORKER_ABORTING) {
    w->abort_epoch = epoch > w->abort_epoch ? epoch : w->abort_epoch;
  } else if (w->epoch != 0 && w->epoch <= epoch) {
    worker_drop(ctx, w, epoch);
  } else if (epoch > w->ended) {
    w->ended = epoch;
  }
}

static void on_adopt(weft_ctx *ctx, worker *w, const worker_ask *ask,
                     const weft_w_adopt *m)
{
  if (ask->boot == 0 || m->rank != w->args.rank || m->rank >= m->world_size) {
    worker_refuse(ctx, ask, WEFT_E_INVAL,
                  "this is rank %" PRIu32 ", adopted as rank %" PRIu32 " of %" PRIu32,
                  w->args.rank, m->rank, m->world_size);
    return;
  }
  if (wefti_leader_is_former(&w->engine, ask->boot)) {
    worker_refuse(ctx, ask, WEFT_E_STALE,
                  "rank %" PRIu32 ": engine boot %" PRIx64 " was followed by %" PRIx64,
                  w->rank, ask->boot, w->engine.boot);
    return;
  }
  if (!wefti_leader_may_lead(&w->engine, ask->boot, m->echo_ns)) {
    worker_state(ctx, w, ask); /* which asks it for a proof */
    return;
  }
  if (ask->boot != w->engine.boot) {
    new_boot(ctx, w, ask->boot);
  }
  if (ask->op <= w->adopted_op) {
    worker_state(ctx, w, ask); /* a late copy of an adoption that was */
    return;
  }
  w->adopted_op = ask->op;
  end_before_adoption(ctx, w, ask->epoch);
  w->world_size = m->world_size;
  w->dp_index = m->dp_index;
  /* Readers get nothing that is older than what this engine has published. */
  wefti_store_state st;
  wefti_store_state_get(w->args.device->store, &st);
  const bool behind = st.weights_sequence != 0 &&
                      (st.weights_sequence != ask->sequence ||
                       st.digest_hi != ask->digest_hi || st.digest_lo != ask->digest_lo);
  wefti_store_hold(w->args.device->store, behind);
  worker_fetch_end(w);
  worker_recall_begin(ctx, w, ask);
  worker_state(ctx, w, ask);
}

static void on_beat(weft_ctx *ctx, worker *w, const worker_ask *ask, const weft_w_beat *m)
{
  wefti_device *device = w->args.device;
  /* A stamp from the future is not one of ours. */
  if (m->grant && m->echo_ns != 0 && m->echo_ns <= weft_boottime_ns(ctx)) {
    const uint64_t ns = (uint64_t)m->grant_ms * 1000000;
    wefti_store_grant(device->store,
                      m->echo_ns + (ns < WORKER_GRANT_NS ? ns : WORKER_GRANT_NS));
  }
  worker_resume(w, m->resume);
  worker_state(ctx, w, ask);
  if (worker_is_free(w) && (w->untidy || wefti_store_reapable(device->store))) {
    w->untidy = false;
    worker_run(ctx, w, WEFT_DEVICE_REAP, NULL);
  }
}

/* ---- questions */

static void on_query(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  weft_device_job job;
  if (ask->what == WEFT_QUERY_WEIGHTS) {
    job = WEFT_DEVICE_WEIGHTS;
  } else if (ask->what == WEFT_QUERY_CHECKSUM) {
    job = WEFT_DEVICE_CHECKSUM;
  } else if (ask->what == WEFT_QUERY_RESET) {
    job = WEFT_DEVICE_RESET;
  } else {
    worker_refuse(ctx, ask, WEFT_E_UNSUPPORTED,
                  "a worker has no answer to question %" PRIu32, ask->what);
    return;
  }
  if (job == WEFT_DEVICE_RESET && w->epoch != 0) {
    worker_refuse(ctx, ask, WEFT_E_CONFLICT,
                  "rank %" PRIu32 ": no reset while epoch %" PRIu64 " is %s", w->rank,
                  w->epoch, weft_worker_phase_name(w->phase));
  } else if (w->fetch.running) {
    worker_refuse(ctx, ask, WEFT_E_UNAVAIL,
                  "rank %" PRIu32
                  " gets its weights from another rank; ask again when it "
                  "has them",
                  w->rank);
  } else if (worker_is_free(w)) {
    worker_run(ctx, w, job, ask);
  } else if (w->phase != WEFT_WORKER_ABORTING && !w->draining &&
             (worker_recalls(w) || worker_job_is_question(w->job))) {
    worker_keep(ctx, w, ask);
  } else {
    worker_refuse(ctx, ask, WEFT_E_UNAVAIL,
                  "rank %" PRIu32 " is %s; ask again when that has ended", w->rank,
                  w->draining ? "waiting for its readers"
                              : weft_worker_phase_name(w->phase));
  }
}

void worker_dispatch(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  if (!of_this_life(ctx, w, ask)) {
    return;
  }
  if (ask->type == WEFT_MSG_W_QUERY) {
    on_query(ctx, w, ask);
  } else if (ask->type == WEFT_MSG_W_LEND) {
    worker_lend(ctx, w, ask);
  } else if (ask->type == WEFT_MSG_W_FETCH) {
    worker_fetch_begin(ctx, w, ask);
  } else if (ask->type != WEFT_MSG_W_PUBLISH && ask->type != WEFT_MSG_W_ABORT) {
    worker_on_session(ctx, w, ask);
  } else if (ask->epoch == 0) {
    worker_refuse(ctx, ask, WEFT_E_INVAL, "rank %" PRIu32 ": epoch 0 is none", w->rank);
  } else if (ask->type == WEFT_MSG_W_PUBLISH) {
    worker_on_publish(ctx, w, ask);
  } else {
    worker_on_abort(ctx, w, ask);
  }
}

/* ---- the actor */

static weft_err worker_init(weft_ctx *ctx, void *self, const void *args)
{
  worker *w = self;
  w->args = *(const wefti_worker_args *)args;
  w->rank = w->args.rank;
  return weft_monitor(ctx, w->args.device_actor);
}

static void worker_fini(weft_ctx *ctx, void *self)
{
  (void)ctx;
  worker *w = self;
  /* The device thread may be in a transfer that nobody waits for any more. */
  atomic_store_explicit(&w->args.device->cancel, true, memory_order_relaxed);
  worker_said_clear(w);
  worker_kept_clear(w);
}

static weft_err on_engine(weft_ctx *ctx, worker *w, const weft_msg *msg)
{
  worker_ask ask;
  (void)atomic_fetch_add_explicit(&w->args.device->heard, 1, memory_order_relaxed);
  if (!unpack(msg, &ask)) {
    /* A link passes on whatever its peer sends: not a reason to end. */
    worker_refuse(ctx, &ask, WEFT_E_UNSUPPORTED, "message type %u is not for a worker",
                  (unsigned)msg->type);
  } else if (msg->type == WEFT_MSG_W_ADOPT) {
    if (of_this_life(ctx, w, &ask)) {
      on_adopt(ctx, w, &ask, (const weft_w_adopt *)msg);
    }
  } else if (msg->type == WEFT_MSG_W_BEAT) {
    if (of_this_life(ctx, w, &ask)) {
      on_beat(ctx, w, &ask, (const weft_w_beat *)msg);
    }
  } else {
    worker_dispatch(ctx, w, &ask);
  }
  return WEFT_OK;
}

static weft_err worker_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  worker *w = self;
  switch (msg->type) {
  case WEFT_MSG_DEVICE_DONE:
    return worker_job_done(ctx, w, (const weft_device_done *)msg);
  case WEFT_MSG_ASK_FAILED:
    return worker_job_failed(ctx, w, (const weft_ask_failed_msg *)msg);
  case WEFT_MSG_TIMER:
    if (((const weft_timer_msg *)msg)->tag == WORKER_TIMER_RECALL) {
      worker_recall_due(ctx, w, ((const weft_timer_msg *)msg)->id);
    } else if (w->draining && ((const weft_timer_msg *)msg)->id == w->drain_timer) {
      worker_drain_look(ctx, w);
    } else if (w->corr == 0 && w->phase == WEFT_WORKER_ABORTING) {
      worker_run(ctx, w, WEFT_DEVICE_ABANDON, NULL); /* which did not get through */
    }
    return WEFT_OK;
  case WEFT_MSG_KEPT_OFFER:
    worker_recall_offer(ctx, w, ((const weft_kept_offer *)msg)->found != 0);
    return WEFT_OK;
  case WEFT_MSG_DOWN: /* nothing can be let go of without the device thread */
    return ((const weft_down_msg *)msg)->who == w->args.device_actor ? WEFT_E_DOWN
                                                                     : WEFT_OK;
  case WEFT_MSG_STOP:
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    return on_engine(ctx, w, msg);
  }
}

const weft_actor_class wefti_worker_class = { .name = "worker",
                                              .state_size = sizeof(worker),
                                              .init = worker_init,
                                              .fini = worker_fini,
                                              .on = worker_on };
