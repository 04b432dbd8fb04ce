/* Calls that wait for their turn, and the ends of waiting: a deadline, a caller that went
 * away, the end of the engine. */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void engine_wait_for_turn(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (e->waiting_count >= ENGINE_WAITING_MAX) {
    engine_answer_err(ctx, e, call, WEFT_E_UNAVAIL,
                      "%s: %d calls wait already; try again",
                      engine_call_name(call->kind), ENGINE_WAITING_MAX);
    return;
  }
  engine_call **at = &e->waiting;
  while (*at != NULL) {
    at = &(*at)->next;
  }
  call->next = NULL;
  *at = call;
  e->waiting_count++;
  call->due_timer = weft_timer_start(ctx, engine_call_left_ms(ctx, call),
                                     ENGINE_TAG(TIMER_CALL_DUE, 0));
}

void engine_wake_waiting(weft_ctx *ctx, engine *e)
{
  engine_call *list = e->waiting;
  e->waiting = NULL;
  e->waiting_count = 0;
  while (list != NULL) {
    engine_call *call = list;
    list = call->next;
    call->next = NULL;
    weft_timer_cancel(ctx, call->due_timer);
    call->due_timer = 0;
    engine_dispatch(ctx, e, call); /* may put it back at the end, in the same order */
  }
}

void engine_wait_look(weft_ctx *ctx, engine *e)
{
  if (e->start_waits && !engine_sets_come_back(ctx, e)) {
    e->start_waits = false;
    engine_wake_waiting(ctx, e);
  }
}

/* Takes out of the waiting list the first call that pick wants.  NULL = none. */
static engine_call *take_waiting(engine *e, bool (*pick)(const engine_call *, uint64_t),
                                 uint64_t arg)
{
  for (engine_call **at = &e->waiting; *at != NULL; at = &(*at)->next) {
    if (pick((*at), arg)) {
      engine_call *call = *at;
      *at = call->next;
      e->waiting_count--;
      return call;
    }
  }
  return NULL;
}

static bool is_due(const engine_call *call, uint64_t timer)
{
  return call->due_timer == timer;
}

static bool is_unwanted(const engine_call *call, uint64_t unused)
{
  (void)unused;
  return !engine_call_wanted(call);
}

static bool is_upstream(const engine_call *call, uint64_t unused)
{
  (void)unused;
  return call->ask.type != 0 && engine_call_of_session(call->kind);
}

void engine_wait_drop_upstream(weft_ctx *ctx, engine *e, const char *why)
{
  engine_call *call;
  while ((call = take_waiting(e, is_upstream, 0)) != NULL) {
    engine_answer_err(ctx, e, call, WEFT_E_CANCELLED, "%s", why);
  }
}

/* What a call waits for. */
static const char *under_way(weft_ctx *ctx, const engine *e)
{
  if (e->session.state == WEFTI_IDLE && engine_sets_come_back(ctx, e)) {
    return "a rank gets its weights again";
  }
  return e->change.pending && e->change.label
             ? "a label is on its way"
             : wefti_session_state_name(e->session.state);
}

void engine_call_due(weft_ctx *ctx, engine *e, uint64_t timer)
{
  if (e->call != NULL && e->call->due_timer == timer) {
    engine_op_due(ctx, e, e->call);
    return;
  }
  if (e->change.call != NULL && e->change.call->due_timer == timer) {
    engine_op_due(ctx, e, e->change.call);
    return;
  }
  if (e->abort_call != NULL && e->abort_call->due_timer == timer) {
    engine_call *by = e->abort_call;
    e->abort_call = NULL;
    by->due_timer = 0;
    engine_answer_err(ctx, e, by, WEFT_E_TIMEOUT,
                      "%s: not every %s has let go yet; one that does not will be "
                      "fenced, and the session ends all the same",
                      engine_call_name(by->kind), engine_unit(e));
    return;
  }
  if (engine_idem_due(ctx, e, timer)) {
    return;
  }
  engine_call *call = take_waiting(e, is_due, timer);
  if (call != NULL) {
    call->due_timer = 0;
    engine_answer_err(ctx, e, call, WEFT_E_TIMEOUT,
                      "%s: waited in vain for the end of what is under way (%s)",
                      engine_call_name(call->kind), under_way(ctx, e));
  }
}

void engine_caller_gone(weft_ctx *ctx, engine *e, uint64_t caller)
{
  if (caller == 0) {
    return;
  }
  if (e->call != NULL && e->call->caller == caller) {
    e->call->caller_gone = true;
  }
  engine_call *call;
  for (call = e->waiting; call != NULL; call = call->next) {
    call->caller_gone = call->caller_gone || call->caller == caller;
  }
  engine_idem_gone(ctx, e, caller);
  /* What has not begun will not: nobody could know that it did. */
  while ((call = take_waiting(e, is_unwanted, 0)) != NULL) {
    engine_answer_err(ctx, e, call, WEFT_E_CANCELLED, "%s: the caller is gone",
                      engine_call_name(call->kind));
  }
}

/* ---- the end of the engine */

static void answer_over(weft_ctx *ctx, engine *e, engine_call *call, const char *phase)
{
  if (call->ask.type != 0 ||
      !(engine_call_of_session(call->kind) || engine_call_changes(call->kind))) {
    return; /* changes nothing, or is a coordinator's, who sees its link go */
  }
  engine_answer a = { .err = WEFT_E_UNAVAIL,
                      .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                      .phase = phase };
  (void)snprintf(a.message, sizeof a.message,
                 "%s: the engine is shutting down; nothing was committed",
                 engine_call_name(call->kind));
  engine_answer_early(ctx, e, call, &a);
}

/* "replica 0, replica 2": who has not answered in the round under way. */
static void missing(const engine *e, char *out, size_t cap)
{
  out[0] = '\0';
  for (uint32_t i = 0; e->round.phase != PHASE_NONE && i < e->world; i++) {
    const size_t at = strlen(out);
    if (e->round.replies[i].state == REPLY_ASKED) {
      (void)snprintf(out + at, cap - at, "%s%s %" PRIu32, at == 0 ? "" : ", ",
                     engine_unit(e), i);
    }
  }
}

/* What may be committed, or will be: the record was issued, or replicas that have voted
 * keep what they have, and an operator may still commit it there. */
static void answer_unknown(weft_ctx *ctx, engine *e, engine_call *call)
{
  char who[256] = "";
  const bool label = call == e->change.call; /* beside whatever round there is */
  const bool issued = label || e->session.state == WEFTI_COMMITTING;
  if (!label) {
    missing(e, who, sizeof who);
  }
  engine_answer a = { .err = WEFT_E_UNAVAIL,
                      .outcome = WEFT_OUTCOME_UNKNOWN,
                      .phase = !issued              ? engine_phase_name(PHASE_FINISH)
                               : e->change.recorded ? engine_phase_name(PHASE_PUBLISH)
                                                    : "record",
                      .culprits = who };
  (void)snprintf(
      a.message, sizeof a.message,
      "%s: the engine is shutting down in phase %s%s%.120s; %s",
      engine_call_name(call->kind), a.phase, who[0] == '\0' ? "" : ", not answered by ",
      who,
      issued ? "the commit record was issued: ask GET /weight_versions when it is back"
             : "replicas that have voted keep what they have: this coordinator ends that "
               "when it is back");
  engine_answer_early(ctx, e, call, &a);
}

void engine_wait_over(weft_ctx *ctx, engine *e)
{
  const bool may_commit =
      e->session.state == WEFTI_COMMITTING ||
      (e->session.state == WEFTI_FINISHING && e->fleet.replicas != NULL);
  if (e->call != NULL && may_commit && e->call->ask.type == 0) {
    answer_unknown(ctx, e, e->call);
  } else if (e->call != NULL && !may_commit) {
    answer_over(ctx, e, e->call, engine_phase_name(e->round.phase));
  }
  if (e->change.call != NULL && e->change.call->ask.type == 0) {
    answer_unknown(ctx, e, e->change.call);
  }
  for (engine_call *call = e->waiting; call != NULL; call = call->next) {
    answer_over(ctx, e, call, "");
  }
}
