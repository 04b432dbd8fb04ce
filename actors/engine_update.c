/* The walk of an update, top to bottom: init, start, update, finish; what follows when
 * all ranks have installed it is in engine_commit.c; abort at the end.  Each step begins
 * a round over all ranks and names the function that goes on when the round is over. */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The round just ended badly: tell the caller who and why, and drop the session. */
static void round_failed(weft_ctx *ctx, engine *e)
{
  engine_answer a = { .outcome = WEFT_OUTCOME_NOT_COMMITTED };
  char culprits[256];
  const bool to_client = e->call->ask.type == 0; /* a coordinator says the rest */
  if (to_client) {
    (void)snprintf(a.message, sizeof a.message, "%s failed in phase %s on ",
                   engine_call_name(e->call->kind), engine_phase_name(e->round.phase));
  }
  engine_round_blame(ctx, e, &a, culprits, sizeof culprits);
  const size_t at = strlen(a.message);
  if (to_client) {
    (void)snprintf(a.message + at, sizeof a.message - at, "; %s, the session is over",
                   engine_unchanged(e));
  }
  const bool start = e->call->kind == CALL_START || e->call->kind == CALL_START_DRAFT;
  if (start && a.err == WEFT_E_DOWN) {
    a.err = WEFT_E_UNAVAIL;
    e->call->begun = false; /* it may be tried again */
  }
  engine_op_failed(ctx, e, &a);
}

void engine_op_failed(weft_ctx *ctx, engine *e, const engine_answer *a)
{
  char reason[ENGINE_TEXT_MAX];
  (void)snprintf(reason, sizeof reason, "%s", a->message);
  engine_call *call = e->call;
  e->call = NULL;
  e->ended_by = engine_call_name(call->kind);
  engine_answer_call(ctx, e, call, a);
  engine_abort_begin(ctx, e, NULL, reason);
}

static void session_begin(weft_ctx *ctx, engine *e, engine_call *call,
                          wefti_session_state state)
{
  e->session.epoch = ++e->epoch_last;
  e->session.which = call->draft ? SET_DRAFT : SET_MAIN;
  e->session.alone = !call->draft && engine_set_is_lost(e, SET_DRAFT);
  e->session.upstream = call->ask.type != 0;
  e->session.list_form = e->args.sliced;
  e->session.opened_ms = weft_now_ms(ctx);
  e->session.caller = call->caller;
  e->session.updates = 0;
  e->session.received_bytes = 0;
  e->session.received_tensors = 0;
  engine_sources_reset(ctx, e);
  engine_metrics_session(e);
  engine_metrics_begun(e, call);
  e->call = call;
  engine_move(ctx, e, state);
}

/* ---- init: accept on all, then all set up together */

static void accepted(weft_ctx *ctx, engine *e, bool all_ok)
{
  if (!all_ok) {
    round_failed(ctx, e);
  } else if (e->session.upstream) {
    engine_upstream_accepted(ctx, e);
  } else {
    engine_update_go(ctx, e);
  }
}

static void init_ready(weft_ctx *ctx, engine *e, bool all_ok)
{
  if (!all_ok) {
    round_failed(ctx, e);
    return;
  }
  engine_call *call = e->call;
  e->call = NULL;
  engine_move(ctx, e, WEFTI_IDLE);
  engine_answer_ok(ctx, e, call);
  engine_wake_waiting(ctx, e);
}

void engine_init_begin(weft_ctx *ctx, engine *e, engine_call *call)
{
  session_begin(ctx, e, call, WEFTI_INIT);
  engine_round_begin(ctx, e, PHASE_ACCEPT, engine_call_left_ms(ctx, call), accepted);
}

/* ---- start */

static void to_open(weft_ctx *ctx, engine *e)
{
  engine_move(ctx, e, WEFTI_OPEN);
  if (!e->session.upstream) {
    e->session.lease_timer = weft_timer_start(ctx, e->args.lease_ms,
                                              ENGINE_TAG(TIMER_LEASE, e->session.epoch));
  }
}

static void leave_open(weft_ctx *ctx, engine *e, engine_call *call,
                       wefti_session_state to)
{
  weft_timer_cancel(ctx, e->session.lease_timer);
  e->session.lease_timer = 0;
  call->begun = true;
  engine_metrics_begun(e, call);
  e->call = call;
  engine_move(ctx, e, to);
}

static void started(weft_ctx *ctx, engine *e, bool all_ok)
{
  if (!all_ok) {
    round_failed(ctx, e);
    return;
  }
  engine_call *call = e->call;
  e->call = NULL;
  to_open(ctx, e);
  engine_history_begun(ctx, e);
  engine_event_session(ctx, e, "started", NULL);
  engine_answer_ok(ctx, e, call);
  engine_wake_waiting(ctx, e);
}

void engine_start_round(weft_ctx *ctx, engine *e)
{
  engine_round_begin(ctx, e, PHASE_START, engine_call_left_ms(ctx, e->call), started);
}

void engine_start_begin(weft_ctx *ctx, engine *e, engine_call *call)
{
  session_begin(ctx, e, call, WEFTI_STARTING);
  engine_inplace_start(ctx, e);
}

/* ---- update: nobody enters a collective before all have accepted */

static void transferred(weft_ctx *ctx, engine *e, bool all_ok)
{
  if (!all_ok) {
    round_failed(ctx, e);
    return;
  }
  engine_call *call = e->call;
  e->call = NULL;
  e->session.updates++;
  engine_metrics_received(e);
  engine_sources_add(ctx, e, call->info);
  e->session.received_tensors += e->round.replies[0].tensors;
  e->session.received_bytes += e->round.replies[0].bytes;
  to_open(ctx, e);
  engine_event_session(ctx, e, "progress", NULL);
  engine_answer_ok(ctx, e, call);
  engine_wake_waiting(ctx, e);
}

void engine_update_go(weft_ctx *ctx, engine *e)
{
  engine_inplace_go(e);
  engine_round_begin(ctx, e, PHASE_GO, engine_call_left_ms(ctx, e->call),
                     e->session.state == WEFTI_INIT ? init_ready : transferred);
  if (e->inplace.wrote) {
    engine_wake_waiting(ctx, e); /* labels hear that there is nothing to name */
  }
}

/* One entry per rank: update_info is a list, so they need not get the same bytes.  Each
 * of a coordinator's replicas gets the whole list. */
static bool is_list(const weft_buf *info)
{
  size_t i = 0;
  while (i < info->len && strchr(" \t\r\n", info->data[i]) != NULL &&
         info->data[i] != 0) {
    i++;
  }
  return i < info->len && info->data[i] == '[';
}

void engine_update_begin(weft_ctx *ctx, engine *e, engine_call *call)
{
  e->session.list_form =
      e->session.list_form || (e->fleet.replicas == NULL && is_list(call->info));
  leave_open(ctx, e, call, WEFTI_TRANSFERRING);
  engine_round_begin(ctx, e, PHASE_ACCEPT, engine_call_left_ms(ctx, call), accepted);
}

/* ---- finish: all install */

static bool all_refused_correctably(const engine *e)
{
  for (uint32_t i = 0; i < e->world; i++) {
    if (e->round.replies[i].state != REPLY_REFUSED || !e->round.replies[i].correctable) {
      return false;
    }
  }
  return true;
}

/* The session stays open: the caller may send what is missing and finish again. */
static void finish_refused(weft_ctx *ctx, engine *e)
{
  engine_call *call = e->call;
  e->call = NULL;
  call->begun = false; /* the same finish may succeed when the rest has come */
  to_open(ctx, e);
  engine_answer a = { .err = WEFT_E_CONFLICT,
                      .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                      .phase = engine_phase_name(PHASE_FINISH),
                      .correctable = true };
  const char *text = e->round.replies[0].text;
  if (call->ask.type != 0) {
    (void)snprintf(a.message, sizeof a.message, "%s", text);
  } else {
    (void)snprintf(a.message, sizeof a.message,
                   "%s refused: %.400s; the session stays open",
                   engine_call_name(call->kind), text);
  }
  engine_answer_call(ctx, e, call, &a);
  engine_wake_waiting(ctx, e);
}

static void finished(weft_ctx *ctx, engine *e, bool all_ok)
{
  if (!all_ok && all_refused_correctably(e)) {
    finish_refused(ctx, e);
    return;
  }
  if (!all_ok) {
    round_failed(ctx, e);
    return;
  }
  if (!engine_sets_are_whole(ctx, e) || !engine_digests_agree(ctx, e) ||
      !engine_digest_is_wanted(ctx, e) || !engine_upstream_wants(ctx, e)) {
    return;
  }
  engine_metrics_applied(e);
  const engine_reply *r = &e->round.replies[0];
  weft_buf_unref(e->last.missing_names);
  e->last = (engine_last){ .received = r->received,
                           .received_bytes = r->received_bytes,
                           .missing = r->missing,
                           .missing_names = weft_buf_ref(r->json) };
  engine_installed(ctx, e);
}

void engine_finish_begin(weft_ctx *ctx, engine *e, engine_call *call)
{
  leave_open(ctx, e, call, WEFTI_FINISHING);
  const uint64_t left = engine_call_left_ms(ctx, call);
  call->due_timer = weft_timer_start(ctx, left, ENGINE_TAG(TIMER_CALL_DUE, 0));
  const uint64_t kept = engine_commit_reserve_ms(call);
  engine_round_begin(ctx, e, PHASE_FINISH, left > kept ? left - kept : 1, finished);
}

/* ---- abort: nobody keeps anything of the epoch */

static void aborted(weft_ctx *ctx, engine *e, bool all_ok)
{
  (void)all_ok; /* ends when all have let go or are fenced */
  engine_call *by = e->abort_call;
  e->abort_call = NULL;
  engine_inplace_end(ctx, e);
  engine_move(ctx, e, WEFTI_IDLE);
  engine_upstream_aborted(ctx, e);
  engine_admit_arrivals(ctx, e);
  if (by != NULL) {
    engine_answer_ok(ctx, e, by);
  }
  engine_wake_waiting(ctx, e);
}

void engine_abort_begin(weft_ctx *ctx, engine *e, engine_call *by, const char *reason)
{
  WEFT_ASSERT(e->call == NULL);
  engine_round_cancel(ctx, e);
  weft_timer_cancel(ctx, e->session.lease_timer);
  e->session.lease_timer = 0;
  e->abort_call = by;
  if (by != NULL) {
    by->asked = true;
    by->due_timer = weft_timer_start(ctx, engine_call_left_ms(ctx, by),
                                     ENGINE_TAG(TIMER_CALL_DUE, 0));
  }
  (void)snprintf(e->last_abort, sizeof e->last_abort, "%s", reason);
  e->last_abort_epoch = e->session.epoch;
  const bool was_init = e->session.state == WEFTI_INIT;
  engine_move(ctx, e, WEFTI_ABORTING);
  weft_log(ctx, WEFT_LOG_WARN, "abort: %s epoch=%" PRIu64, reason, e->session.epoch);
  if (!was_init) {
    e->metrics.aborted++;
    engine_history_aborted(ctx, e, by == NULL ? e->ended_by : engine_call_name(by->kind),
                           e->last_abort);
    engine_event_session(ctx, e, "aborted", reason);
  }
  e->ended_by = "";
  engine_sources_reset(ctx, e);
  engine_vote_over(ctx, e, false);
  engine_round_begin(ctx, e, PHASE_ABORT,
                     e->fleet.replicas == NULL ? ENGINE_ABORT_MS : ENGINE_ABORT_FLEET_MS,
                     aborted);
}
