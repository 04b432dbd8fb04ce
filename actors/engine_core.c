#include "engine_core.h"

#include "engine.h"
#include "weft/transfer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void engine_move(weft_ctx *ctx, engine *e, wefti_session_state to)
{
  const weft_err err = wefti_session_move(&e->session.state, to);
  WEFT_ASSERT(err == WEFT_OK);
  (void)err;
  engine_publish_status(ctx, e);
}

/* ---- who may do what now */

/* " (held by …)": who has the session and since when. */
static const char *holder(weft_ctx *ctx, const engine *e, char *out, size_t cap)
{
  char id[64];
  engine_session_id(e, e->session.epoch, id, sizeof id);
  (void)snprintf(out, cap,
                 " (session %s, %s, held by connection %" PRIu64 " for %.1f s%s%s)", id,
                 wefti_session_state_name(e->session.state), e->session.caller,
                 (double)(weft_now_ms(ctx) - e->session.opened_ms) / 1000.0,
                 e->call == NULL ? "" : ", running ",
                 e->call == NULL ? "" : engine_call_name(e->call->kind));
  return out;
}

/* " (session … was aborted: …)" for callers that come back to a session that is no more.
 */
static const char *epitaph(const engine *e, char *out, size_t cap)
{
  out[0] = '\0';
  if (e->last_abort_epoch != 0 && e->last_abort_epoch == e->session.epoch) {
    char id[64];
    engine_session_id(e, e->last_abort_epoch, id, sizeof id);
    (void)snprintf(out, cap, " (session %s was aborted: %.300s)", id, e->last_abort);
  }
  return out;
}

static bool expected_fails(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (!call->has_expected || strcmp(call->expected, e->visible.version) == 0) {
    return false;
  }
  engine_answer_err(ctx, e, call, WEFT_E_PRECOND,
                    "%s: expected_version '%.200s' does not match the visible '%.200s'; "
                    "nothing was changed",
                    engine_call_name(call->kind), call->expected, e->visible.version);
  return true;
}

void engine_fail_running(weft_ctx *ctx, engine *e, const char *why)
{
  engine_answer a = { .err = WEFT_E_CONFLICT,
                      .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                      .phase = engine_phase_name(e->round.phase) };
  (void)snprintf(a.message, sizeof a.message, "%s: %s; %s",
                 engine_call_name(e->call->kind), why, engine_unchanged(e));
  engine_call *call = e->call;
  e->call = NULL;
  engine_answer_call(ctx, e, call, &a);
}

/* true after the refusal of a call that carries the id of a session that is over. */
static bool is_too_late(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (call->session_epoch == 0 ||
      (call->session_epoch == e->session.epoch && e->session.state != WEFTI_IDLE)) {
    return false;
  }
  engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                    "%s: that Weft-Session is over; leave the header out or start a new "
                    "weight update",
                    engine_call_name(call->kind));
  return true;
}

static void dispatch_init(weft_ctx *ctx, engine *e, engine_call *call)
{
  const wefti_session_state s = e->session.state;
  if (is_too_late(ctx, e, call)) {
    return;
  }
  if (s == WEFTI_IDLE) {
    engine_init_begin(ctx, e, call);
    return;
  }
  if (s == WEFTI_COMMITTING || s == WEFTI_ABORTING) {
    engine_wait_for_turn(ctx, e, call);
    return;
  }
  if (e->call != NULL && engine_call_wanted(e->call)) {
    char who[256];
    engine_answer_err(
        ctx, e, call, WEFT_E_CONFLICT,
        "init_weight_transfer_engine called while a weight update is under way%s",
        holder(ctx, e, who, sizeof who));
    return;
  }
  if (e->waiting_count >= ENGINE_WAITING_MAX) {
    engine_wait_for_turn(
        ctx, e, call); /* is refused there; then nothing is to be aborted for it */
    return;
  }
  /* Takeover: a trainer that was killed comes back, and stock trainers cannot abort. */
  if (e->call != NULL) {
    engine_fail_running(ctx, e, "taken over by a new init_weight_transfer_engine");
  }
  engine_wait_for_turn(ctx, e, call);
  e->ended_by = engine_call_name(CALL_INIT);
  engine_abort_begin(ctx, e, NULL, "taken over by a new init_weight_transfer_engine");
}

static void dispatch_start(weft_ctx *ctx, engine *e, engine_call *call)
{
  const wefti_session_state s = e->session.state;
  const weft_transfer_ops *transfer = weft_transfer_named(e->backend);
  if (call->draft && transfer != NULL && transfer->no_draft != NULL) {
    engine_answer_err(ctx, e, call, WEFT_E_UNSUPPORTED, "%s", transfer->no_draft);
  } else if (call->draft && !e->args.draft) {
    engine_answer_err(
        ctx, e, call, WEFT_E_UNSUPPORTED,
        "Draft model weight update requested, but no draft model is configured.");
  } else if (s == WEFTI_IDLE && call->draft && engine_set_is_lost(e, SET_MAIN)) {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "start_draft_weight_update: not every rank has the main model's "
                      "weights; push all of those first (start_weight_update)");
  } else if (s == WEFTI_IDLE) {
    if (engine_pause_lets_start(ctx, e, call)) {
      engine_start_begin(ctx, e, call);
    }
  } else if (s == WEFTI_COMMITTING || s == WEFTI_ABORTING) {
    engine_wait_for_turn(ctx, e, call);
  } else {
    char who[256];
    engine_answer_err(
        ctx, e, call, WEFT_E_CONFLICT,
        "start_weight_update called while a weight update is already active. Call "
        "finish_weight_update first.%s",
        holder(ctx, e, who, sizeof who));
  }
}

/* Update and finish: both need the open session, and the caller's own. */
static bool needs_open(weft_ctx *ctx, engine *e, engine_call *call, const char *not_open)
{
  const wefti_session_state s = e->session.state;
  char text[ENGINE_TEXT_MAX];
  if (s == WEFTI_OPEN) {
    if (call->session_epoch != 0 && call->session_epoch != e->session.epoch) {
      engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                        "%s: that Weft-Session is over, another one is open%s",
                        engine_call_name(call->kind), holder(ctx, e, text, sizeof text));
      return false;
    }
    return true;
  }
  const bool busy =
      s == WEFTI_STARTING || s == WEFTI_TRANSFERRING || s == WEFTI_FINISHING;
  if (busy) {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "%s called while another call of the session is under way%s",
                      engine_call_name(call->kind), holder(ctx, e, text, sizeof text));
  } else {
    engine_answer_err(ctx, e, call, WEFT_E_STATE, "%s%s", not_open,
                      epitaph(e, text, sizeof text));
  }
  return false;
}

static void dispatch_label(weft_ctx *ctx, engine *e, engine_call *call)
{
  const wefti_session_state s = e->session.state;
  if (is_too_late(ctx, e, call)) {
    return;
  }
  if (e->change.pending || s == WEFTI_FINISHING || s == WEFTI_PREPARED ||
      s == WEFTI_COMMITTING) {
    engine_wait_for_turn(ctx, e, call);
  } else if (!expected_fails(ctx, e, call)) {
    engine_label_begin(ctx, e, call);
  }
}

static void dispatch_abort(weft_ctx *ctx, engine *e, engine_call *call)
{
  const wefti_session_state s = e->session.state;
  if (s == WEFTI_IDLE) {
    engine_answer_ok(ctx, e, call); /* nothing is open: what was wanted is so */
    return;
  }
  if (call->session_epoch != 0 && call->session_epoch != e->session.epoch) {
    char who[256];
    engine_answer_err(
        ctx, e, call, WEFT_E_CONFLICT,
        "abort_weight_update: that Weft-Session is over, another one is open%s",
        holder(ctx, e, who, sizeof who));
    return;
  }
  if (s == WEFTI_COMMITTING || s == WEFTI_ABORTING) {
    engine_wait_for_turn(ctx, e, call);
    return;
  }
  const char *reason = call->reason != NULL && call->reason[0] != '\0'
                           ? call->reason
                           : "abort_weight_update was called";
  if (e->call != NULL) {
    engine_fail_running(ctx, e, reason);
  }
  engine_abort_begin(ctx, e, call, reason);
}

void engine_cache_reset(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (e->session.state == WEFTI_IDLE || e->session.state == WEFTI_INIT) {
    if (e->fleet.replicas != NULL) {
      engine_cast_begin(ctx, e, call);
    } else {
      engine_answer_ok(ctx, e, call);
    }
    return;
  }
  char who[256];
  engine_answer_err(
      ctx, e, call, WEFT_E_CONFLICT,
      "a cache cannot be reset while a weight update is open%s; reset it after "
      "finish_weight_update",
      holder(ctx, e, who, sizeof who));
}

/* The record of a change cannot be written: nothing more may be begun until it is. */
static bool journal_stuck(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (!e->change.stuck || call->kind == CALL_PAUSE || call->kind == CALL_CHECK) {
    return false;
  }
  engine_answer_err(ctx, e, call, WEFT_E_UNAVAIL,
                    "%s: the commit record of change %" PRIu64
                    " is not durable yet; see to the state directory, then try again",
                    engine_call_name(call->kind), e->change.next.sequence);
  return true;
}

/* Members take a coordinator's next step as a sign that the change before it is visible.
 */
static bool must_settle_first(weft_ctx *ctx, const engine *e, const engine_call *call)
{
  return !engine_fleet_settled(ctx, e) &&
         (call->kind == CALL_START || call->kind == CALL_LABEL);
}

void engine_dispatch(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (journal_stuck(ctx, e, call) || engine_upstream_forbids(ctx, e, call)) {
    return;
  }
  if (call->ask.type != 0) {
    engine_upstream_dispatch(ctx, e, call);
    return;
  }
  if (must_settle_first(ctx, e, call)) {
    engine_wait_for_turn(ctx, e, call);
    return;
  }
  switch (call->kind) {
  case CALL_INIT:
    dispatch_init(ctx, e, call);
    break;
  case CALL_START:
  case CALL_START_DRAFT:
    dispatch_start(ctx, e, call);
    break;
  case CALL_UPDATE:
    if (needs_open(ctx, e, call,
                   "start_weight_update must be called before update_weights.")) {
      engine_update_begin(ctx, e, call);
    }
    break;
  case CALL_FINISH:
    if (e->fleet.replicas != NULL && e->change.pending && e->change.label) {
      engine_wait_for_turn(ctx, e, call); /* replicas take one change after the other */
    } else if (needs_open(ctx, e, call,
                          "finish_weight_update called without a matching "
                          "start_weight_update.") &&
               !expected_fails(ctx, e, call)) {
      engine_finish_begin(ctx, e, call);
    }
    break;
  case CALL_LABEL:
    dispatch_label(ctx, e, call);
    break;
  case CALL_ABORT:
    dispatch_abort(ctx, e, call);
    break;
  case CALL_PAUSE:
    engine_pause_begin(ctx, e, call);
    break;
  case CALL_CHECK:
    engine_check_begin(ctx, e, call);
    break;
  case CALL_CACHE:
    engine_cache_reset(ctx, e, call);
    break;
  case CALL_RESOLVE:
    engine_resolve_begin(ctx, e, call);
    break;
  case CALL_QUERY:
  case CALL_KINDS:
    break;
  }
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
    engine_publish_status(ctx, e);
    engine_wake_waiting(ctx, e);
    break;
  case TIMER_CUT:
    engine_upstream_cut_due(ctx, e, t->id);
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
  default_ms(&a->init_ms, 280000);
  default_ms(&a->start_ms, 30000);
  default_ms(&a->update_ms, 280000);
  default_ms(&a->finish_ms, 60000);
  /* A replica has a record to write and ranks of its own to wait for. */
  default_ms(&a->publish_ms, a->replicas == 0 ? 2000 : 6000);
  default_ms(&a->lease_ms, 600000);
  default_ms(&a->beat_ms, 500);
  default_ms(&a->grant_ms, 2000);
  default_ms(&a->fence_ms, 2250);
  if (__builtin_mul_overflow(a->tp, a->pp, &e->world) || e->world > 4096 ||
      a->replicas > 4096 || ((a->replicas != 0 || a->member) && a->journal == 0) ||
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
    engine_publish_status(ctx, e);
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
      !engine_beat_answer(ctx, e, msg) && !engine_cast_answer(ctx, e, msg)) {
    (void)engine_check_answer(ctx, e, msg);
  }
}

static weft_err take_message(weft_ctx *ctx, engine *e, const weft_msg *msg)
{
  switch (msg->type) {
  case WEFT_MSG_CLIENT_QUERY:
    engine_query(ctx, e, (const weft_client_query *)msg);
    return WEFT_OK;
  case WEFT_MSG_CLIENT_INIT:
  case WEFT_MSG_CLIENT_START:
  case WEFT_MSG_CLIENT_UPDATE:
  case WEFT_MSG_CLIENT_FINISH:
  case WEFT_MSG_CLIENT_LABEL:
  case WEFT_MSG_CLIENT_ABORT:
  case WEFT_MSG_CLIENT_PAUSE:
  case WEFT_MSG_CLIENT_CHECK:
  case WEFT_MSG_CLIENT_CACHE:
  case WEFT_MSG_CLIENT_RESOLVE: {
    engine_call *call = engine_call_open(ctx, e, msg);
    if (call != NULL) {
      engine_dispatch(ctx, e, call);
    }
    return WEFT_OK;
  }
  case WEFT_MSG_RESTORE_NOTE: {
    const weft_restore_note *m = (const weft_restore_note *)msg;
    e->restore = m->state;
    (void)snprintf(e->restore_text, sizeof e->restore_text, "%s",
                   m->text.p == NULL ? "" : m->text.p);
    engine_publish_status(ctx, e);
    return WEFT_OK;
  }
  case WEFT_MSG_CLIENT_GONE:
    engine_caller_gone(ctx, e, ((const weft_client_gone *)msg)->caller);
    return WEFT_OK;
  case WEFT_MSG_MEMBER_UP:
    engine_on_member_up(ctx, e, (const weft_member_up *)msg);
    return WEFT_OK;
  case WEFT_MSG_MEMBER_DOWN:
    engine_on_member_down(ctx, e, (const weft_member_down *)msg);
    return WEFT_OK;
  case WEFT_MSG_TIMER:
    on_timer(ctx, e, (const weft_timer_msg *)msg);
    return WEFT_OK;
  case WEFT_MSG_STOP:
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    if (msg->type == WEFT_MSG_ASK_FAILED || (msg->flags & WEFT_MSG_F_REPLY) != 0) {
      on_answer(ctx, e, msg);
    } else if (e->args.member) {
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
