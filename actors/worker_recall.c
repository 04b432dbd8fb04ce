/* A worker that the engine adopts without weights although some are visible: asks its
 * keeper for those, and serves them once they were found to be what the engine named.
 * NONE → ASKED (adoption) → RUNNING (offer) → NONE, or once more ASKED (it was damaged:
 * another one). */
#include "worker_priv.h"

#include <inttypes.h>
#include <stdio.h>

enum { ASK_MS = 2000 };

bool worker_recalls(const worker *w)
{
  return w->recall.state != RECALL_NONE || w->fetch.running;
}

static void end(weft_ctx *ctx, worker *w, const char *why)
{
  weft_timer_cancel(ctx, w->recall.timer);
  w->recall = (worker_recall){ .state = RECALL_NONE };
  if (why != NULL) {
    weft_log(ctx, WEFT_LOG_WARN, "the weights do not come back: %s rank=%" PRIu32, why,
             w->rank);
  }
}

static void ask(weft_ctx *ctx, worker *w, bool not_own)
{
  const wefti_keeper *keeper = w->args.device->keeper;
  worker_recall *r = &w->recall;
  r->not_own = not_own;
  if (!keeper->want(keeper->arg, r->sequence, r->digest, not_own)) {
    end(ctx, w, "nobody is there to ask");
    return;
  }
  r->state = RECALL_ASKED;
  r->timer = weft_timer_start(ctx, ASK_MS, WORKER_TIMER_RECALL);
  if (r->timer == 0) {
    end(ctx, w, "out of memory");
  }
}

void worker_recall_begin(weft_ctx *ctx, worker *w, const worker_ask *adopt)
{
  const wefti_device *device = w->args.device;
  wefti_store_state st;
  wefti_store_state_get(device->store, &st);
  end(ctx, w, NULL);
  if (device->keeper == NULL || st.weights_sequence != 0 || w->corr != 0 ||
      w->phase != WEFT_WORKER_IDLE) {
    return;
  }
  w->recall.sequence = adopt->sequence;
  w->recall.digest[0] = adopt->digest_hi;
  w->recall.digest[1] = adopt->digest_lo;
  if (adopt->sequence == 0) { /* nothing need be kept for us */
    (void)device->keeper->want(device->keeper->arg, 0, w->recall.digest, false);
    return;
  }
  ask(ctx, w, false);
}

void worker_recall_offer(weft_ctx *ctx, worker *w, bool found)
{
  worker_recall *r = &w->recall;
  if (r->state != RECALL_ASKED) {
    return; /* too late, or nobody has asked */
  }
  weft_timer_cancel(ctx, r->timer);
  r->timer = 0;
  if (!found || w->corr != 0) {
    end(ctx, w, "nobody has kept them");
    worker_pump(ctx, w);
    return;
  }
  r->state = RECALL_RUNNING;
  const worker_ask run = { .digest_hi = r->digest[0], .digest_lo = r->digest[1] };
  worker_run(ctx, w, WEFT_DEVICE_RECALL, &run);
}

void worker_recall_due(weft_ctx *ctx, worker *w, uint64_t timer)
{
  if (w->recall.state == RECALL_ASKED && timer == w->recall.timer) {
    end(ctx, w, "nobody has answered");
    worker_pump(ctx, w);
  }
}

void worker_recall_forget(const worker *w)
{
  wefti_device *device = w->args.device;
  wefti_store_drop(device->store, WEFTI_RECALL_EPOCH);
  if (device->on_install != NULL) {
    device->on_install(device->on_install_arg, WEFTI_RECALL_EPOCH, NULL);
  }
}

static void serve(weft_ctx *ctx, worker *w)
{
  const wefti_keeper *keeper = w->args.device->keeper;
  const worker_recall r = w->recall;
  end(ctx, w, NULL);
  w->untidy = true;
  if (worker_serve(w, WEFTI_RECALL_EPOCH, r.sequence) != WEFT_OK) {
    worker_recall_forget(w);
    return;
  }
  weft_log(ctx, WEFT_LOG_INFO,
           "has the weights of its last life again rank=%" PRIu32
           " weights_sequence=%" PRIu64,
           w->rank, r.sequence);
  keeper->had(keeper->arg, r.sequence, r.digest);
}

void worker_recall_done(weft_ctx *ctx, worker *w, weft_err err, weft_str text)
{
  const wefti_keeper *keeper = w->args.device->keeper;
  worker_recall *r = &w->recall;
  if (r->state != RECALL_RUNNING) { /* another engine's */
    worker_recall_forget(w);
    return;
  }
  if (err == WEFT_OK) {
    serve(ctx, w);
    return;
  }
  char why[WEFT_WHY_MAX];
  (void)snprintf(why, sizeof why, "%.*s", (int)text.len, text.len > 0 ? text.p : "");
  if (err == WEFT_E_FAILED && !r->not_own) {
    weft_log(ctx, WEFT_LOG_WARN, "%s; a replica's will do rank=%" PRIu32, why, w->rank);
    ask(ctx, w, true);
    return;
  }
  keeper->had(keeper->arg, 0, r->digest);
  end(ctx, w, text.len > 0 ? why : weft_strerror(err));
}
