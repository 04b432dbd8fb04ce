/* Pause is a flag of the engine for those who generate: it is told, timed, and, where the
 * configuration wants it, asked for before weights may change. */
#include "engine.h"

#include <stdio.h>

bool engine_is_paused(const engine *e, uint64_t *since_ms)
{
  bool any = e->paused;
  *since_ms = e->paused_at_ms;
  for (uint32_t i = 0; e->fleet.replicas != NULL && !e->paused && i < e->world; i++) {
    const engine_replica *r = &e->fleet.replicas[i];
    if (engine_member_usable(&e->members[i]) && r->paused) {
      *since_ms = any && *since_ms < r->paused_ms ? *since_ms : r->paused_ms;
      any = true;
    }
  }
  return any;
}

/* All that a start would be told to have been paused. */
static bool readers_are_paused(const engine *e)
{
  bool all = e->fleet.replicas != NULL;
  for (uint32_t i = 0; all && i < e->world; i++) {
    all = engine_member_usable(&e->members[i]) && e->fleet.replicas[i].paused;
  }
  return e->paused || all;
}

/* false: no pause, or none that a lease ends. */
static bool is_leased(weft_ctx *ctx, const engine *e, uint64_t *for_ms)
{
  uint64_t since_ms;
  const bool paused = engine_is_paused(e, &since_ms);
  *for_ms = weft_now_ms(ctx) - since_ms;
  return paused && e->args.pause_lease_ms != 0;
}

bool engine_serves(weft_ctx *ctx, const engine *e, char *reason, size_t cap)
{
  uint64_t for_ms;
  if (!is_leased(ctx, e, &for_ms) || for_ms < e->args.pause_lease_ms) {
    return engine_upstream_serves(ctx, e, reason, cap) &&
           engine_ready(ctx, e, reason, cap);
  }
  (void)snprintf(reason, cap,
                 "paused for %.0f s, longer than --pause-lease allows (%.0f s): resume",
                 (double)for_ms / 1000.0, (double)e->args.pause_lease_ms / 1000.0);
  return false;
}

void engine_pause_arm(weft_ctx *ctx, engine *e)
{
  uint64_t for_ms;
  weft_timer_cancel(ctx, e->pause_timer);
  e->pause_timer = 0;
  if (is_leased(ctx, e, &for_ms) && for_ms < e->args.pause_lease_ms) {
    e->pause_timer = weft_timer_start(ctx, e->args.pause_lease_ms - for_ms,
                                      ENGINE_TAG(TIMER_PAUSE, 0));
  }
}

void engine_pause_due(weft_ctx *ctx, engine *e, uint64_t timer)
{
  char reason[160];
  if (e->pause_timer != timer) {
    return;
  }
  e->pause_timer = 0;
  engine_pause_arm(ctx, e); /* who was paused first may have gone on meanwhile */
  if (!engine_serves(ctx, e, reason, sizeof reason)) {
    weft_log(ctx, WEFT_LOG_WARN, "not ready: %s", reason);
    engine_event_status(ctx, e);
  }
}

/* A set that this life has not loaded yet has no readers to be paused. */
static bool has_readers(const engine *e, const engine_call *call)
{
  return !call->restores ||
         e->visible.sets[call->draft ? SET_DRAFT : SET_MAIN].tensors > 0;
}

bool engine_pause_lets_start(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (readers_are_paused(e) || !has_readers(e, call)) {
    return true;
  }
  if (e->args.require_pause) {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "%s called while not paused; the server was started with "
                      "--require-pause: POST /pause first",
                      engine_call_name(call->kind));
    return false;
  }
  if (!e->told_unpaused && !e->args.inplace) {
    e->told_unpaused = true;
    weft_log(ctx, WEFT_LOG_INFO,
             "weights are updated while not paused; readers keep what they have pinned "
             "(said once)");
  }
  return true;
}

void engine_pause_begin(weft_ctx *ctx, engine *e, engine_call *call)
{
  const bool pause = call->action == WEFT_PAUSE;
  if (!pause && e->args.require_pause && e->session.state != WEFTI_IDLE &&
      e->session.state != WEFTI_INIT) {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "a weight update is open (%s); the server was started with "
                      "--require-pause: finish or abort it, then resume",
                      wefti_session_state_name(e->session.state));
    return;
  }
  char unfit[200];
  if (!pause && engine_inplace_unfit(e, unfit, sizeof unfit)) {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT, "resume refused: %s", unfit);
    return;
  }
  if (e->paused != pause) {
    e->paused = pause;
    e->paused_at_ms = weft_now_ms(ctx);
    (void)snprintf(e->pause_mode, sizeof e->pause_mode, "%s", pause ? call->reason : "");
    engine_pause_arm(ctx, e);
    engine_event_status(ctx, e);
  }
  if (e->fleet.replicas != NULL) {
    engine_cast_begin(ctx, e, call);
  } else {
    engine_answer_ok(ctx, e, call);
  }
}
