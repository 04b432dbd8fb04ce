/* The walk of an update, top to bottom: init, start, update, finish → record → publish →
 * visible; abort at the end.  Each step begins a round over all ranks and names the
 * function that goes on when the round is over. */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t left_ms(weft_ctx *ctx, const engine_call *call)
{
  const uint64_t now = weft_now_ms(ctx);
  return call->due_ms > now ? call->due_ms - now : 1;
}

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
  (void)snprintf(a.message + at, sizeof a.message - at, "%s",
                 to_client ? "; weights and version are unchanged, the session is over"
                           : "");
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
  e->session.list_form = false;
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
  engine_round_begin(ctx, e, PHASE_ACCEPT, left_ms(ctx, call), accepted);
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
  engine_publish_session(ctx, e, "started", NULL);
  engine_answer_ok(ctx, e, call);
  engine_wake_waiting(ctx, e);
}

void engine_start_begin(weft_ctx *ctx, engine *e, engine_call *call)
{
  session_begin(ctx, e, call, WEFTI_STARTING);
  engine_round_begin(ctx, e, PHASE_START, left_ms(ctx, call), started);
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
  engine_publish_session(ctx, e, "progress", NULL);
  engine_answer_ok(ctx, e, call);
  engine_wake_waiting(ctx, e);
}

void engine_update_go(weft_ctx *ctx, engine *e)
{
  engine_round_begin(ctx, e, PHASE_GO, left_ms(ctx, e->call),
                     e->session.state == WEFTI_INIT ? init_ready : transferred);
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
  engine_round_begin(ctx, e, PHASE_ACCEPT, left_ms(ctx, call), accepted);
}

/* ---- finish: all install, one record, all publish, visible */

/* Finish time kept for what follows the record.  Half of a deadline that is short itself,
 * so that a caller in a hurry can finish at all. */
static uint64_t reserve_ms(const engine_call *call)
{
  if (call->ask.type != 0) {
    return 0; /* the coordinator has kept its share */
  }
  const uint64_t half = (call->due_ms - call->started_ms) / 2;
  return half < ENGINE_COMMIT_RESERVE_MS ? half : ENGINE_COMMIT_RESERVE_MS;
}

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

/* false after the session was dropped: a rank has died since it answered FINISH, and what
 * it had installed is gone with it. */
static bool all_still_hold_it(weft_ctx *ctx, engine *e)
{
  for (uint32_t i = 0; i < e->world; i++) {
    const engine_member *m = &e->members[i];
    const engine_reply *r = &e->round.replies[i];
    if (engine_member_usable(m) && m->incarnation == r->incarnation &&
        r->state == REPLY_OK) {
      continue;
    }
    char culprits[32];
    (void)snprintf(culprits, sizeof culprits, "%s %" PRIu32, engine_unit(e), i);
    engine_answer a = { .err = WEFT_E_DOWN,
                        .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                        .phase = engine_phase_name(PHASE_FINISH),
                        .culprits = culprits };
    (void)snprintf(a.message, sizeof a.message,
                   "%s failed: %s went down after it had installed the "
                   "weights (%s); weights and version are unchanged, the session is over",
                   engine_call_name(CALL_FINISH), culprits, m->why);
    engine_op_failed(ctx, e, &a);
    return false;
  }
  return true;
}

/* An engine that takes joins may have had another life a moment ago, whose grants still
 * run. */
static uint64_t earlier_grants_ms(weft_ctx *ctx, const engine *e)
{
  const uint64_t over = e->boot_ms + e->args.grant_ms;
  const uint64_t now = weft_now_ms(ctx);
  return e->joined_ever && now < over ? over - now : 0;
}

void engine_installed(weft_ctx *ctx, engine *e)
{
  if (!e->session.upstream) {
    engine_issue(ctx, e);
    return;
  }
  const uint64_t wait = earlier_grants_ms(ctx, e);
  if (wait > 0) {
    e->issue_timer =
        weft_timer_start(ctx, wait, ENGINE_TAG(TIMER_ISSUE, e->session.epoch));
  } else if (e->up.vote.boot == 0 && all_still_hold_it(ctx, e)) {
    engine_vote_begin(ctx, e);
  }
}

void engine_finish_begin(weft_ctx *ctx, engine *e, engine_call *call)
{
  leave_open(ctx, e, call, WEFTI_FINISHING);
  const uint64_t left = left_ms(ctx, call);
  call->due_timer = weft_timer_start(ctx, left, ENGINE_TAG(TIMER_CALL_DUE, 0));
  const uint64_t kept = reserve_ms(call);
  engine_round_begin(ctx, e, PHASE_FINISH, left > kept ? left - kept : 1, finished);
}

/* The change that this finish will make; its number is taken here and never again. */
static void next_weights(weft_ctx *ctx, engine *e, engine_visible *next)
{
  for (uint32_t i = 0; i < e->world; i++) {
    e->members[i].next_digest_hi = e->round.replies[i].digest_hi;
    e->members[i].next_digest_lo = e->round.replies[i].digest_lo;
    e->members[i].next_tensors = e->round.replies[i].tensors;
    e->members[i].next_bytes = e->round.replies[i].bytes;
  }
  *next = e->visible;
  next->sequence = e->visible.sequence + 1;
  next->weights_sequence = next->sequence;
  engine_sets_next(e, next);
  next->at_ms = weft_wall_ms(ctx);
}

static void record(weft_ctx *ctx, engine *e)
{
  if (e->args.journal == 0) {
    engine_record_done(ctx, e, WEFT_OK, "");
    return;
  }
  const engine_visible *n = &e->change.next;
  const engine_set *set = &n->sets[e->change.which];
  const engine_vote *v = e->change.label ? NULL : &e->up.vote;
  const bool voted = v != NULL && v->given && !v->lost;
  e->change.corr = weft_ask(
      ctx, e->args.journal,
      weft_msg_make(
          ctx,
          &(weft_journal_append){ .h.type = WEFT_MSG_JOURNAL_APPEND,
                                  .kind = e->change.label ? WEFT_RECORD_COMMIT_LABEL
                                                          : WEFT_RECORD_COMMIT_WEIGHTS,
                                  .epoch = e->change.label ? 0 : e->session.epoch,
                                  .sequence = n->sequence,
                                  .weights_sequence = n->weights_sequence,
                                  .version = { n->version, (uint32_t)strlen(n->version) },
                                  .digest_hi = set->digest_hi,
                                  .digest_lo = set->digest_lo,
                                  .at_ms = n->at_ms,
                                  .elapsed_ms = e->change.elapsed_ms,
                                  .tensors = set->tensors,
                                  .bytes = set->bytes,
                                  .draft = e->change.which == SET_DRAFT,
                                  .alone = e->change.alone,
                                  .declared = n->declared,
                                  .operation = { e->change.operation,
                                                 (uint32_t)strlen(e->change.operation) },
                                  .sources = e->change.sources,
                                  .fleet = { voted ? v->fleet : NULL,
                                             voted ? (uint32_t)strlen(v->fleet) : 0 },
                                  .fleet_boot = voted ? v->boot : 0,
                                  .fleet_epoch = voted ? v->epoch : 0,
                                  .fleet_sequence = voted ? e->up.next_sequence : 0 }
               .h),
      0);
}

/* From here on nothing aborts. */
void engine_issue(weft_ctx *ctx, engine *e)
{
  WEFT_ASSERT(e->session.state == WEFTI_FINISHING && e->call != NULL);
  if (e->change.pending) {
    return; /* a label's record is being written; its end calls again */
  }
  const uint64_t wait = earlier_grants_ms(ctx, e);
  if (left_ms(ctx, e->call) < reserve_ms(e->call) / 2 + wait) {
    engine_answer a = { .err = WEFT_E_TIMEOUT,
                        .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                        .phase = engine_phase_name(PHASE_FINISH) };
    (void)snprintf(
        a.message, sizeof a.message,
        "%s failed: too little of its deadline is left to commit safely; weights "
        "and version are unchanged, give it more time",
        engine_call_name(CALL_FINISH));
    engine_op_failed(ctx, e, &a);
    return;
  }
  if (wait > 0) {
    e->issue_timer =
        weft_timer_start(ctx, wait, ENGINE_TAG(TIMER_ISSUE, e->session.epoch));
    return;
  }
  if (!all_still_hold_it(ctx, e)) {
    return;
  }
  const engine_call *call = e->call;
  engine_commit_begin(ctx, e, call->has_version ? call->version : e->visible.version,
                      call->has_version || e->visible.declared);
}

void engine_commit_begin(weft_ctx *ctx, engine *e, const char *version, bool declared)
{
  engine_move(ctx, e, WEFTI_COMMITTING);
  e->change = (engine_change){ .pending = true,
                               .elapsed_ms = weft_now_ms(ctx) - e->session.opened_ms,
                               .operation = engine_call_name(CALL_FINISH),
                               .which = e->session.which,
                               .alone = e->session.alone,
                               .sources = engine_sources_of_finish(e) };
  engine_visible *next = &e->change.next;
  next_weights(ctx, e, next);
  next->declared = declared;
  (void)snprintf(next->version, sizeof next->version, "%s", version);
  record(ctx, e);
}

void engine_become_visible(weft_ctx *ctx, engine *e, const char *fenced)
{
  const engine_visible previous = e->visible;
  const bool label = e->change.label;
  engine_call *call = label ? e->change.call : e->call;
  e->visible = e->change.next;
  engine_history_commit(ctx, e, &e->change);
  if (!label) {
    engine_sets_visible(ctx, e, &e->change);
    engine_sources_reset(ctx, e);
  }
  const engine_which which = e->change.which;
  e->change = (engine_change){ .pending = false };
  if (e->args.on_visible != NULL) {
    e->args.on_visible(e->args.on_visible_arg,
                       &(wefti_visible){ e->visible.sequence, e->visible.weights_sequence,
                                         e->visible.digest_hi, e->visible.digest_lo,
                                         e->visible.version });
  }
  for (uint32_t i = 0; i < e->world && !label; i++) {
    e->members[i].digest_hi = e->members[i].next_digest_hi;
    e->members[i].digest_lo = e->members[i].next_digest_lo;
  }
  if (!label) {
    e->call = NULL;
    e->last.elapsed_ms = weft_now_ms(ctx) - e->session.opened_ms;
    engine_metrics_visible(e);
    engine_move(ctx, e, WEFTI_IDLE);
  }
  engine_publish_commit(ctx, e, &previous, label, which);
  if (e->fleet.replicas != NULL) {
    engine_fleet_beat_all(ctx, e);
  }
  engine_upstream_judge(ctx, e);
  if (call != NULL) {
    engine_answer_call(ctx, e, call,
                       &(engine_answer){ .err = WEFT_OK, .fenced = fenced });
  }
  engine_admit_arrivals(ctx, e);
  if (e->session.state == WEFTI_FINISHING && e->round.phase == PHASE_NONE &&
      !e->session.upstream) {
    engine_issue(ctx, e); /* a finish that found the label's record under way */
  }
  engine_wake_waiting(ctx, e);
}

static void published(weft_ctx *ctx, engine *e, bool all_ok)
{
  (void)all_ok; /* a round of PUBLISH ends when all have confirmed or are fenced */
  char fenced[256] = "";
  size_t at = 0;
  for (uint32_t i = 0; i < e->world; i++) {
    char rank[16];
    (void)snprintf(rank, sizeof rank, "%s%" PRIu32, at == 0 ? "" : ",", i);
    if (e->round.replies[i].err != WEFT_OK && at + strlen(rank) < sizeof fenced) {
      memcpy(fenced + at, rank, strlen(rank) + 1); /* whole numbers only */
      at += strlen(rank);
    }
  }
  if (e->session.upstream) {
    engine_upstream_published(ctx, e);
  } else {
    engine_become_visible(ctx, e, fenced);
  }
}

void engine_record_done(weft_ctx *ctx, engine *e, weft_err err, const char *text)
{
  e->change.corr = 0;
  if (err != WEFT_OK) {
    /* Whether the record is on disk is unknown, so it must be brought there: the journal
     * takes a new segment, the same record is asked for again. */
    weft_log(ctx, WEFT_LOG_ERROR, "commit record %" PRIu64 " is not durable, again: %s",
             e->change.next.sequence, text);
    e->change.stuck = true;
    e->change.corr_timer = weft_timer_start(ctx, 200, ENGINE_TAG(TIMER_RECORD, 0));
    return;
  }
  e->change.recorded = true;
  e->change.stuck = false;
  if (e->change.label && e->fleet.replicas != NULL) {
    engine_cast_begin(ctx, e, e->change.call);
    return;
  }
  if (e->change.label) {
    engine_become_visible(ctx, e, "");
    return;
  }
  engine_round_begin(ctx, e, PHASE_PUBLISH, e->args.publish_ms, published);
}

void engine_record_again(weft_ctx *ctx, engine *e)
{
  e->change.corr_timer = 0;
  if (e->change.pending && !e->change.recorded && e->change.corr == 0) {
    record(ctx, e);
  }
}

void engine_op_due(weft_ctx *ctx, engine *e, engine_call *call)
{
  call->due_timer = 0;
  if (call == e->call && e->session.state == WEFTI_FINISHING) {
    /* The record of a label before it has not become durable. */
    engine_answer late = { .err = WEFT_E_TIMEOUT,
                           .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                           .phase = engine_phase_name(PHASE_FINISH) };
    (void)snprintf(
        late.message, sizeof late.message,
        "%s failed: its deadline came before its record could be issued; weights "
        "and version are unchanged, the session is over",
        engine_call_name(call->kind));
    engine_op_failed(ctx, e, &late);
    return;
  }
  engine_answer a = { .err = WEFT_E_TIMEOUT,
                      .outcome = WEFT_OUTCOME_UNKNOWN,
                      .phase = e->change.recorded ? engine_phase_name(PHASE_PUBLISH)
                                                  : "record" };
  (void)snprintf(
      a.message, sizeof a.message,
      "%s: the commit record was issued but the change is not visible yet; it will "
      "be: ask GET /weight_info",
      engine_call_name(call->kind));
  engine_answer_early(ctx, e, call, &a);
}

/* ---- label: a change without weights */

void engine_label_begin(weft_ctx *ctx, engine *e, engine_call *call)
{
  call->begun = true;
  e->change = (engine_change){ .pending = true,
                               .label = true,
                               .call = call,
                               .next = e->visible,
                               .operation = engine_call_name(CALL_LABEL),
                               .elapsed_ms = weft_now_ms(ctx) - call->started_ms };
  engine_visible *next = &e->change.next;
  next->sequence = e->visible.sequence + 1;
  next->at_ms = weft_wall_ms(ctx);
  next->declared = true;
  (void)snprintf(next->version, sizeof next->version, "%s", call->version);
  call->due_timer =
      weft_timer_start(ctx, left_ms(ctx, call), ENGINE_TAG(TIMER_CALL_DUE, 1));
  record(ctx, e);
}

/* ---- abort: nobody keeps anything of the epoch */

static void aborted(weft_ctx *ctx, engine *e, bool all_ok)
{
  (void)all_ok; /* ends when all have let go or are fenced */
  engine_call *by = e->abort_call;
  e->abort_call = NULL;
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
    by->due_timer =
        weft_timer_start(ctx, left_ms(ctx, by), ENGINE_TAG(TIMER_CALL_DUE, 3));
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
    engine_publish_session(ctx, e, "aborted", reason);
  }
  e->ended_by = "";
  engine_sources_reset(ctx, e);
  engine_vote_over(ctx, e, false);
  engine_round_begin(ctx, e, PHASE_ABORT,
                     e->fleet.replicas == NULL ? ENGINE_ABORT_MS : ENGINE_ABORT_FLEET_MS,
                     aborted);
}
