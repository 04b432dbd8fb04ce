#include "engine_core.h"

#include "engine.h"

#include <stdio.h>

void engine_move(weft_ctx *ctx, engine *e, wefti_session_state to)
{
  const weft_err err = wefti_session_move(&e->session.state, to);
  WEFT_ASSERT(err == WEFT_OK);
  (void)err;
  engine_event_status(ctx, e);
}

/* ---- timers */

static void on_lease(weft_ctx *ctx, engine *e, uint64_t id)
{
  if (e->session.lease_timer != id || e->session.state != WEFTI_OPEN) {
    return;
  }
  char reason[128];
  (void)snprintf(reason, sizeof reason,
                 "no call came within the session's lease of %.0f s",
                 (double)e->args.lease_ms / 1000.0);
  engine_abort_begin(ctx, e, NULL, reason);
}

static void on_timer(weft_ctx *ctx, engine *e, const weft_timer_msg *t)
{
  const uint32_t low = (uint32_t)t->tag;
  switch (t->tag >> 32) {
  case TIMER_CALL_DUE:
    engine_call_due(ctx, e, t->id);
    break;
  case TIMER_LEASE:
    on_lease(ctx, e, t->id);
    break;
  case TIMER_BEAT:
    engine_beat(ctx, e, low);
    break;
  case TIMER_FENCE:
    engine_fence_due(ctx, e, low, t->id);
    break;
  case TIMER_ISSUE:
    e->issue_timer = e->issue_timer == t->id ? 0 : e->issue_timer;
    if (e->session.state == WEFTI_FINISHING && (uint32_t)e->session.epoch == low) {
      engine_installed(ctx, e);
    }
    break;
  case TIMER_RECORD:
    engine_record_again(ctx, e);
    break;
  case TIMER_SETTLED:
    engine_event_status(ctx, e);
    engine_wake_waiting(ctx, e);
    break;
  case TIMER_CUT:
    engine_upstream_cut_due(ctx, e, t->id);
    break;
  case TIMER_READS:
    engine_hold_due(ctx, e, t->id);
    break;
  case TIMER_KEPT:
    engine_vote_due(ctx, e, t->id);
    break;
  case TIMER_DRAIN:
    engine_inplace_drain_due(ctx, e, t->id);
    break;
  case TIMER_PAUSE:
    engine_pause_due(ctx, e, t->id);
    break;
  default:
    break;
  }
}

/* ---- the actor */

static void default_ms(uint32_t *value, uint32_t otherwise)
{
  if (*value == 0) {
    *value = otherwise;
  }
}

static void copy_to(char *out, size_t cap, const char **s)
{
  (void)snprintf(out, cap, "%s", *s == NULL ? "" : *s);
  *s = out;
}

static weft_err engine_core_init(weft_ctx *ctx, void *self, const void *args)
{
  engine *e = self;
  e->args = *(const wefti_engine_args *)args;
  wefti_engine_args *a = &e->args;
  copy_to(e->engine_id, sizeof e->engine_id, &a->engine_id);
  copy_to(e->backend, sizeof e->backend, &a->backend);
  copy_to(e->events_url, sizeof e->events_url, &a->events_url);
  copy_to(e->snapshot_url, sizeof e->snapshot_url, &a->snapshot_url);
  copy_to(e->control_url, sizeof e->control_url, &a->control_url);
  default_ms(&a->tp, 1);
  default_ms(&a->pp, 1);
  default_ms(&a->dp_size, 1);
  default_ms(&a->init_ms, WEFTI_LONG_CALL_MS);
  default_ms(&a->start_ms, 30000);
  default_ms(&a->update_ms, WEFTI_LONG_CALL_MS);
  default_ms(&a->finish_ms, 60000);
  /* A replica has a record to write and ranks of its own to wait for. */
  default_ms(&a->publish_ms, a->replicas == 0 ? 2000 : 6000);
  default_ms(&a->lease_ms, 600000);
  default_ms(&a->beat_ms, 500);
  default_ms(&a->grant_ms, WEFTI_GRANT_MS);
  default_ms(&a->fence_ms, WEFTI_FENCE_MS);
  if (__builtin_mul_overflow(a->tp, a->pp, &e->world) || e->world > ENGINE_WORLD_MAX ||
      a->replicas > ENGINE_WORLD_MAX ||
      ((a->replicas != 0 || a->member) && a->journal == 0) ||
      (a->replicas != 0 && a->member)) {
    return WEFT_E_INVAL;
  }
  e->world = a->replicas != 0 ? a->replicas : e->world;
  e->boot_ms = weft_now_ms(ctx);
  e->paused_at_ms = e->boot_ms;
  (void)snprintf(e->visible.version, sizeof e->visible.version, "default");
  e->visible.sequence = a->last_sequence; /* numbers go on, weights do not */
  e->ended_by = "";
  e->round.replies = weft_alloc(ctx, e->world * sizeof *e->round.replies);
  if (e->round.replies == NULL || engine_idem_init(ctx, e) != WEFT_OK ||
      engine_metrics_init(ctx, e) != WEFT_OK || engine_history_init(ctx, e) != WEFT_OK) {
    return WEFT_E_NOMEM;
  }
  weft_err err = engine_members_init(ctx, e);
  if (err == WEFT_OK && a->replicas != 0) {
    err = engine_fleet_init(ctx, e, args);
  }
  if (err == WEFT_OK) {
    engine_event_status(ctx, e);
  }
  return err;
}

static void engine_core_fini(weft_ctx *ctx, void *self)
{
  engine *e = self;
  engine_call *call;
  while ((call = e->waiting) != NULL) {
    e->waiting = call->next;
    engine_call_free(ctx, e, call);
  }
  engine_call_free(ctx, e, e->call);
  engine_call_free(ctx, e, e->change.call);
  engine_call_free(ctx, e, e->abort_call);
  engine_check_fini(ctx, e);
  engine_fleet_fini(ctx, e);
  engine_upstream_fini(e);
  engine_hold_fini(ctx, e);
  engine_idem_fini(ctx, e);
  engine_history_fini(ctx, e);
  engine_metrics_fini(ctx, e);
  weft_buf_unref(e->last.missing_names);
  for (uint32_t i = 0; e->round.replies != NULL && i < e->world; i++) {
    weft_buf_unref(e->round.replies[i].json);
  }
  weft_free(ctx, e->round.replies);
  weft_free(ctx, e->members);
}

/* Answers to our own questions: of the journal, the round, the heartbeats, the checks. */
static void on_answer(weft_ctx *ctx, engine *e, const weft_msg *msg)
{
  if (e->change.pending && msg->corr == e->change.corr && msg->corr != 0) {
    if (msg->type == WEFT_MSG_JOURNAL_DONE) {
      const weft_journal_done *d = (const weft_journal_done *)msg;
      engine_record_done(ctx, e, (weft_err)d->err, d->text.p == NULL ? "" : d->text.p);
    } else {
      engine_record_done(ctx, e, WEFT_E_DOWN, "the journal has not answered");
    }
    return;
  }
  if (!engine_vote_answer(ctx, e, msg) && !engine_round_answer(ctx, e, msg) &&
      !engine_beat_answer(ctx, e, msg) && !engine_cast_answer(ctx, e, msg) &&
      !engine_lend_answer(ctx, e, msg)) {
    (void)engine_check_answer(ctx, e, msg);
  }
}

static weft_err take_message(weft_ctx *ctx, engine *e, const weft_msg *msg)
{
  if (msg->type == WEFT_MSG_ASK_FAILED || (msg->flags & WEFT_MSG_F_REPLY) != 0) {
    on_answer(ctx, e, msg); /* whatever its type is */
    return WEFT_OK;
  }
  if (engine_call_kind_of(msg) != CALL_KINDS) {
    engine_call *call = engine_call_open(ctx, e, msg);
    if (call != NULL) {
      engine_dispatch(ctx, e, call);
    }
    return WEFT_OK;
  }
  switch (msg->type) {
  case WEFT_MSG_CLIENT_QUERY:
    engine_query(ctx, e, (const weft_client_query *)msg);
    return WEFT_OK;
  case WEFT_MSG_RESTORE_NOTE: {
    const weft_restore_note *m = (const weft_restore_note *)msg;
    e->restore = m->state;
    (void)snprintf(e->restore_text, sizeof e->restore_text, "%s",
                   m->text.p == NULL ? "" : m->text.p);
    engine_event_status(ctx, e);
    return WEFT_OK;
  }
  case WEFT_MSG_CLIENT_GONE:
    engine_caller_gone(ctx, e, ((const weft_client_gone *)msg)->caller);
    return WEFT_OK;
  case WEFT_MSG_MEMBER_UP:
    engine_on_member_up(ctx, e, (const weft_member_up *)msg);
    return WEFT_OK;
  case WEFT_MSG_REPLICA_NOTE:
    engine_fleet_noted(ctx, e, (const weft_replica_note *)msg);
    return WEFT_OK;
  case WEFT_MSG_MEMBER_DOWN:
    engine_on_member_down(ctx, e, (const weft_member_down *)msg);
    return WEFT_OK;
  case WEFT_MSG_TIMER:
    on_timer(ctx, e, (const weft_timer_msg *)msg);
    return WEFT_OK;
  case WEFT_MSG_STOP:
    engine_wait_over(ctx, e);
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    if (e->args.member) {
      engine_upstream_frame(ctx, e, msg);
    }
    return WEFT_OK; /* others, late or from newer peers, are not ours to die of */
  }
}

static weft_err engine_core_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  if (msg->type != WEFT_MSG_CLIENT_QUERY) {
    ((engine *)self)->metrics.turns++;
  }
  const weft_err err = take_message(ctx, self, msg);
  if (msg->type == WEFT_MSG_STOP) {
    return err; /* nothing is begun any more */
  }
  engine_hold_look(ctx, self);
  engine_rearm(ctx, self);
  return err;
}

const weft_actor_class wefti_engine_core_class = {
  .name = "engine",
  .state_size = sizeof(engine),
  .init = engine_core_init,
  .fini = engine_core_fini,
  .on = engine_core_on,
};
