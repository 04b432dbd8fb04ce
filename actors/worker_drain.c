/* Readers before an update in place: paused by the session, apart from any pause of a
 * client's, and waited for. */
#include "worker_priv.h"

#include <inttypes.h>

/* The engine's patience is as long; the refusal has to be there before its end. */
static uint64_t patience_ms(const worker_ask *ask)
{
  const uint64_t spare = ask->timeout_ms / 8;
  return ask->timeout_ms - (spare < 1000 ? spare : 1000);
}

void worker_drain(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  wefti_store_pause(w->args.device->store, true);
  w->pause_epoch = ask->epoch;
  w->draining = true;
  w->asked = *ask;
  w->drain_due_ms = weft_now_ms(ctx) + patience_ms(ask);
  worker_drain_look(ctx, w);
}

void worker_drain_end(weft_ctx *ctx, worker *w)
{
  weft_timer_cancel(ctx, w->drain_timer);
  w->drain_timer = 0;
  w->draining = false;
}

void worker_drain_look(weft_ctx *ctx, worker *w)
{
  char holders[WEFT_WHY_MAX / 2];
  const uint32_t readers =
      wefti_store_readers(w->args.device->store, holders, sizeof holders);
  const worker_ask ask = w->asked;
  w->drain_timer = 0;
  if (readers == 0) {
    worker_drain_end(ctx, w);
    worker_run(ctx, w, WEFT_DEVICE_OPEN, &ask);
    return;
  }
  if (weft_now_ms(ctx) < w->drain_due_ms) {
    w->drain_timer = weft_timer_start(ctx, WORKER_DRAIN_MS, WORKER_TIMER_RETRY);
  }
  if (w->drain_timer == 0) { /* late, or without a timer to go on by */
    worker_drain_end(ctx, w);
    w->epoch = 0;
    w->ended = ask.epoch > w->ended ? ask.epoch : w->ended;
    w->phase = WEFT_WORKER_IDLE;
    worker_refuse(ctx, &ask, WEFT_E_CONFLICT,
                  "rank %" PRIu32 ": %" PRIu32 " reader%s still hold%s what is to be "
                  "written over: %s; unpin and start again",
                  w->rank, readers, readers == 1 ? "" : "s", readers == 1 ? "s" : "",
                  holders);
    worker_pump(ctx, w);
  }
}

void worker_resume(worker *w, uint64_t epoch)
{
  if (w->pause_epoch != 0 && epoch >= w->pause_epoch && w->epoch == 0 &&
      w->phase == WEFT_WORKER_IDLE) {
    w->pause_epoch = 0;
    wefti_store_pause(w->args.device->store, false);
  }
}
