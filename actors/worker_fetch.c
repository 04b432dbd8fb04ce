/* A worker that gives what it serves to another rank, and one that takes such: it serves
 * that once it was found to be what the engine has published. */
#include "worker_priv.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

/* ---- giving */

static void give(weft_ctx *ctx, worker *w, const worker_ask *ask, const weft_snapshot *s)
{
  const wefti_lender *lender = w->args.device->lender;
  char towards[256];
  weft_why why = { .err = WEFT_OK };
  weft_buf *info = NULL;
  const int n = snprintf(towards, sizeof towards, "%.*s", (int)ask->arg.len,
                         ask->arg.len > 0 ? ask->arg.p : "");
  const weft_err err = n < (int)sizeof towards
                           ? lender->lend(lender->arg, s, towards, &info, &why)
                           : weft_whyf(&why, WEFT_E_LIMIT, "the URL is too long");
  if (err != WEFT_OK) {
    weft_store_unpin(w->args.device->store, s);
    worker_refuse(ctx, ask, err, "rank %" PRIu32 " cannot lend: %.400s", w->rank,
                  why.text);
    return;
  }
  w->lent_op = ask->op;
  weft_log(ctx, WEFT_LOG_INFO,
           "lends its weights rank=%" PRIu32 " weights_sequence=%" PRIu64, w->rank,
           s->weights_sequence);
  worker_json(ctx, ask, info);
  weft_buf_unref(info);
}

void worker_lend(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  const wefti_device *device = w->args.device;
  if (device->lender == NULL) {
    worker_refuse(ctx, ask, WEFT_E_UNSUPPORTED,
                  "rank %" PRIu32 " cannot lend weights of this memory", w->rank);
    return;
  }
  if (w->phase != WEFT_WORKER_IDLE || ask->epoch < w->ended) {
    worker_refuse(ctx, ask, WEFT_E_STATE, "rank %" PRIu32 ": nothing is lent while %s",
                  w->rank, weft_worker_phase_name(w->phase));
    return;
  }
  if (ask->op <= w->lent_op) { /* or a late frame would end the loan that came after it */
    worker_refuse(ctx, ask, WEFT_E_STALE, "rank %" PRIu32 ": a loan came after this one",
                  w->rank);
    return;
  }
  wefti_store_state st;
  wefti_store_state_get(device->store, &st);
  const weft_snapshot *s = wefti_store_base(device->store);
  if (s == NULL || st.dirty != 0 || s->weights_sequence != ask->sequence ||
      s->digest_hi != ask->digest_hi || s->digest_lo != ask->digest_lo) {
    weft_store_unpin(device->store, s);
    worker_refuse(ctx, ask, WEFT_E_CONFLICT,
                  "rank %" PRIu32 ": what is served here is another set", w->rank);
    return;
  }
  give(ctx, w, ask, s);
}

void worker_lend_stop(const worker *w)
{
  const wefti_lender *lender = w->args.device->lender;
  if (lender != NULL) {
    lender->stop(lender->arg);
  }
}

/* ---- taking */

/* A second copy of the frame that is worked on waits in its place. */
static bool is_again(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  if (!w->fetch.running || w->asked.op != ask->op) {
    return false;
  }
  if (w->asked.back.to != ask->back.to || w->asked.back.corr != ask->back.corr) {
    worker_refuse(ctx, &w->asked, WEFT_E_CANCELLED, "asked again, answered there");
    w->asked.back = ask->back;
  }
  return true;
}

/* Frames overtake each other: one that is older than a session that was here is of the
 * past, whatever it wants. */
static bool may_fetch(weft_ctx *ctx, const worker *w, const worker_ask *ask)
{
  if (w->args.device->lender == NULL) {
    worker_refuse(ctx, ask, WEFT_E_UNSUPPORTED,
                  "rank %" PRIu32 " cannot take weights into this memory", w->rank);
  } else if (ask->sequence == 0 || ask->info == NULL) {
    worker_refuse(ctx, ask, WEFT_E_INVAL, "rank %" PRIu32 ": nothing to fetch", w->rank);
  } else if (ask->epoch < w->ended || ask->op < w->session_op) {
    worker_refuse(ctx, ask, WEFT_E_STALE, "rank %" PRIu32 ": a session came between",
                  w->rank);
  } else if (w->phase != WEFT_WORKER_IDLE) {
    worker_refuse(ctx, ask, WEFT_E_STATE, "rank %" PRIu32 ": nothing is fetched while %s",
                  w->rank, weft_worker_phase_name(w->phase));
  } else {
    return true;
  }
  return false;
}

void worker_fetch_begin(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  wefti_store_state st;
  wefti_store_state_get(w->args.device->store, &st);
  if (is_again(ctx, w, ask) || !may_fetch(ctx, w, ask)) {
    return;
  }
  if (st.weights_sequence == ask->sequence && st.digest_hi == ask->digest_hi &&
      st.digest_lo == ask->digest_lo) {
    worker_ok(ctx, w, ask); /* has happened */
  } else if (st.weights_sequence >= ask->sequence) {
    worker_refuse(ctx, ask, WEFT_E_STALE, "rank %" PRIu32 " has newer weights", w->rank);
  } else if (w->corr != 0 && w->job == WEFT_DEVICE_REAP) {
    worker_keep(ctx, w, ask); /* of what a fetch that has failed left, say */
  } else if (!worker_is_free(w)) {
    /* The next attempt will find the device thread free. */
    worker_refuse(ctx, ask, WEFT_E_UNAVAIL, "rank %" PRIu32 ": the device thread is busy",
                  w->rank);
  } else {
    w->fetch = (worker_fetch){ .running = true,
                               .sequence = ask->sequence,
                               .digest = { ask->digest_hi, ask->digest_lo } };
    worker_run(ctx, w, WEFT_DEVICE_FETCH, ask);
  }
}

void worker_fetch_end(worker *w)
{
  if (w->fetch.running) {
    w->fetch.running = false;
    atomic_store_explicit(&w->args.device->cancel, true, memory_order_relaxed);
  }
}

void worker_fetch_done(weft_ctx *ctx, worker *w, const worker_ask *asked, weft_err err,
                       weft_str text)
{
  const worker_fetch f = w->fetch;
  w->fetch = (worker_fetch){ .running = false };
  w->untidy = true;
  if (!f.running) { /* another adoption came */
    worker_recall_forget(w);
    worker_refuse(ctx, asked, WEFT_E_CANCELLED, "rank %" PRIu32 " was adopted anew",
                  w->rank);
    return;
  }
  if (err == WEFT_OK) {
    err = worker_serve(w, WEFTI_RECALL_EPOCH, f.sequence);
  }
  if (err != WEFT_OK) {
    worker_recall_forget(w);
    worker_refuse(ctx, asked, err, "%.*s", text.len > 0 ? (int)text.len : WEFT_WHY_MAX,
                  text.len > 0 ? text.p : weft_strerror(err));
    return;
  }
  weft_log(ctx, WEFT_LOG_INFO,
           "has got its weights from another rank rank=%" PRIu32
           " weights_sequence=%" PRIu64,
           w->rank, f.sequence);
  worker_ok(ctx, w, asked);
}
