/* Timers that found no memory are started again after every message: without them a
 * session would have no lease, a call no deadline, a record no second attempt. */
#include "engine.h"

static void rearm_call(weft_ctx *ctx, engine_call *call)
{
  if (call != NULL && call->due_timer == 0 && !call->answered) {
    call->due_timer = weft_timer_start(ctx, engine_call_left_ms(ctx, call),
                                       ENGINE_TAG(TIMER_CALL_DUE, 0));
  }
}

static void rearm_change(weft_ctx *ctx, engine *e)
{
  if (!e->change.pending) {
    return;
  }
  rearm_call(ctx, e->change.label ? e->change.call : e->call);
  if (!e->change.recorded && e->change.corr == 0 && e->change.corr_timer == 0) {
    engine_record_again(ctx, e);
  }
}

void engine_rearm(weft_ctx *ctx, engine *e)
{
  engine_members_rearm(ctx, e);
  rearm_change(ctx, e);
  engine_upstream_rearm(ctx, e);
  engine_vote_rearm(ctx, e);
  engine_inplace_rearm(ctx, e);
  rearm_call(ctx, e->abort_call);
  for (engine_call *call = e->waiting; call != NULL; call = call->next) {
    rearm_call(ctx, call);
  }
  if (e->session.state == WEFTI_OPEN && e->session.lease_timer == 0 &&
      !e->session.upstream) {
    e->session.lease_timer = weft_timer_start(ctx, e->args.lease_ms,
                                              ENGINE_TAG(TIMER_LEASE, e->session.epoch));
  }
  /* All have finished, and the wait for an earlier life's grants has no timer. */
  if (e->session.state == WEFTI_FINISHING && e->round.phase == PHASE_NONE &&
      !e->change.pending && e->issue_timer == 0) {
    engine_installed(ctx, e);
  }
  engine_lend_look(ctx, e);
  engine_wait_look(ctx, e);
}
