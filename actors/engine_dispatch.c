/* Who may do what now: each call begins, waits for its turn, or is refused by the state
 * of the session that it found. */
#include "engine.h"
#include "weft/transfer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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
  engine_call *call = e->call;
  /* The trainer at the coordinator has done nothing wrong when a replica gives up. */
  engine_answer a = { .err = call->ask.type != 0 ? WEFT_E_FAILED : WEFT_E_CONFLICT,
                      .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                      .phase = engine_phase_name(e->round.phase) };
  if (call->ask.type != 0) { /* a coordinator says the rest */
    (void)snprintf(a.message, sizeof a.message, "%s", why);
  } else {
    (void)snprintf(a.message, sizeof a.message, "%s: %s; %s",
                   engine_call_name(call->kind), why, engine_unchanged(e));
  }
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
  char why[ENGINE_TEXT_MAX];
  engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                    "%s: that Weft-Session is over; leave the header out or start a new "
                    "weight update%s",
                    engine_call_name(call->kind),
                    engine_session_fate(e, call, why, sizeof why));
  return true;
}

/* true after the refusal of a call whose session is over, while another one has begun. */
static bool is_anothers(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (call->session_epoch == 0 || call->session_epoch == e->session.epoch) {
    return false;
  }
  char text[256];
  char why[ENGINE_TEXT_MAX];
  engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                    "%s: that Weft-Session is over%s, another one is open%s",
                    engine_call_name(call->kind),
                    engine_session_fate(e, call, why, sizeof why),
                    holder(ctx, e, text, sizeof text));
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
  char why[128];
  (void)snprintf(why, sizeof why,
                 "taken over by a new init_weight_transfer_engine of connection %" PRIu64,
                 call->caller);
  if (e->call != NULL) {
    engine_fail_running(ctx, e, why);
  }
  engine_wait_for_turn(ctx, e, call);
  e->ended_by = engine_call_name(CALL_INIT);
  engine_abort_begin(ctx, e, NULL, why);
}

static void dispatch_shutdown(weft_ctx *ctx, engine *e, engine_call *call)
{
  const wefti_session_state s = e->session.state;
  if (is_too_late(ctx, e, call)) {
    return;
  }
  if (s == WEFTI_IDLE) {
    engine_init_begin(ctx, e, call);
  } else if (s == WEFTI_COMMITTING || s == WEFTI_ABORTING) {
    engine_wait_for_turn(ctx, e, call);
  } else {
    char who[256];
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "Cannot release a trainer connection during a weight update%s",
                      holder(ctx, e, who, sizeof who));
  }
}

/* What a session does to the other set of a rank that lacks it cannot be undone, so it is
 * not decided while that rank gets it back. */
static bool waits_for_sets(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (!engine_set_is_lost(e, call->draft ? SET_MAIN : SET_DRAFT) ||
      !engine_sets_come_back(ctx, e)) {
    return false;
  }
  e->start_waits = true;
  engine_wait_for_turn(ctx, e, call);
  return true;
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
  } else if (s == WEFTI_IDLE && waits_for_sets(ctx, e, call)) {
    return;
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
  const bool busy =
      s == WEFTI_STARTING || s == WEFTI_TRANSFERRING || s == WEFTI_FINISHING;
  char text[ENGINE_TEXT_MAX];
  if ((s == WEFTI_OPEN || busy) && is_anothers(ctx, e, call)) {
    return false;
  }
  if (s == WEFTI_OPEN) {
    return true;
  }
  if (busy) {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "%s called while another call of the session is under way%s",
                      engine_call_name(call->kind), holder(ctx, e, text, sizeof text));
  } else {
    engine_answer_err(ctx, e, call, WEFT_E_STATE, "%s%s", not_open,
                      engine_session_fate(e, call, text, sizeof text));
  }
  return false;
}

static void dispatch_label(weft_ctx *ctx, engine *e, engine_call *call)
{
  const wefti_session_state s = e->session.state;
  if (is_too_late(ctx, e, call)) {
    return;
  }
  char why[ENGINE_POISON_TEXT];
  if (e->change.pending || s == WEFTI_FINISHING || s == WEFTI_PREPARED ||
      s == WEFTI_COMMITTING || engine_inplace_label_waits(e)) {
    engine_wait_for_turn(ctx, e, call);
  } else if (engine_inplace_unfit(e, why, sizeof why)) {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "%s: no version is live that could be named: %s",
                      engine_call_name(call->kind), why);
  } else if (!expected_fails(ctx, e, call)) {
    engine_label_begin(ctx, e, call);
  }
}

static void dispatch_abort(weft_ctx *ctx, engine *e, engine_call *call)
{
  const wefti_session_state s = e->session.state;
  if (s == WEFTI_IDLE) {
    char why[ENGINE_TEXT_MAX];
    if (call->session_epoch == 0 || engine_session_was_aborted(e, call)) {
      engine_answer_ok(ctx, e, call); /* nothing is open: what was wanted is so */
    } else {
      engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                        "abort_weight_update: that Weft-Session is over, nothing of it "
                        "is left to abort%s",
                        engine_session_fate(e, call, why, sizeof why));
    }
    return;
  }
  if (is_anothers(ctx, e, call)) {
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
  if (journal_stuck(ctx, e, call) || engine_upstream_forbids(ctx, e, call) ||
      engine_vote_forbids(ctx, e, call)) {
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
  case CALL_SHUTDOWN:
    dispatch_shutdown(ctx, e, call);
    break;
  case CALL_START:
  case CALL_START_DRAFT:
    dispatch_start(ctx, e, call);
    break;
  case CALL_UPDATE:
    if (engine_inplace_update_waits(e)) {
      engine_wait_for_turn(ctx, e, call);
    } else if (needs_open(ctx, e, call,
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
