/* From installed to visible, top to bottom: decide → record → publish → visible; a label,
 * which has no weights to publish, at the end. */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Finish time kept for what follows the record.  Half of a deadline that is short itself,
 * so that a caller in a hurry can finish at all. */
uint64_t engine_commit_reserve_ms(const engine_call *call)
{
  if (call->ask.type != 0) {
    return 0; /* the coordinator has kept its share */
  }
  const uint64_t half = (call->due_ms - call->started_ms) / 2;
  return half < ENGINE_COMMIT_RESERVE_MS ? half : ENGINE_COMMIT_RESERVE_MS;
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
                   "weights (%s); %s, the session is over",
                   engine_call_name(CALL_FINISH), culprits, m->why, engine_unchanged(e));
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
  const bool voted = v != NULL && v->state == VOTE_GIVEN;
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

/* The last look: from engine_commit_begin on nothing aborts. */
static void issue(weft_ctx *ctx, engine *e)
{
  WEFT_ASSERT(e->session.state == WEFTI_FINISHING && e->call != NULL);
  if (e->change.pending) {
    return; /* a label's record is being written; its end calls again */
  }
  const uint64_t wait = earlier_grants_ms(ctx, e);
  if (engine_call_left_ms(ctx, e->call) < engine_commit_reserve_ms(e->call) / 2 + wait) {
    engine_answer a = { .err = WEFT_E_TIMEOUT,
                        .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                        .phase = engine_phase_name(PHASE_FINISH) };
    (void)snprintf(
        a.message, sizeof a.message,
        "%s failed: too little of its deadline is left to commit safely; %s, give it "
        "more time",
        engine_call_name(CALL_FINISH), engine_unchanged(e));
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

void engine_installed(weft_ctx *ctx, engine *e)
{
  if (!e->session.upstream) {
    issue(ctx, e);
    return;
  }
  const uint64_t wait = earlier_grants_ms(ctx, e);
  if (wait > 0) {
    e->issue_timer =
        weft_timer_start(ctx, wait, ENGINE_TAG(TIMER_ISSUE, e->session.epoch));
  } else if (e->up.vote.state == VOTE_NONE && all_still_hold_it(ctx, e)) {
    engine_vote_begin(ctx, e);
  }
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

/* unnamed: a label that took its number, and names nothing.  A coordinator does not hear
 * that: it would cut off a member that has nothing to name. */
static void answer_visible(weft_ctx *ctx, engine *e, engine_call *call,
                           const char *fenced, bool unnamed)
{
  char why[ENGINE_POISON_TEXT];
  if (call == NULL) {
    return;
  }
  if (!unnamed || call->ask.type != 0) {
    engine_answer_call(ctx, e, call,
                       &(engine_answer){ .err = WEFT_OK, .fenced = fenced });
    return;
  }
  engine_inplace_why(e, why, sizeof why);
  engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                    "%s: change %" PRIu64 " was recorded, but no version is live any "
                    "more that it could name: %s",
                    engine_call_name(call->kind), e->visible.sequence, why);
}

void engine_become_visible(weft_ctx *ctx, engine *e, const char *fenced)
{
  const engine_visible previous = e->visible;
  const bool label = e->change.label;
  const bool unshown = engine_upstream_unshown(e);
  engine_call *call = label ? e->change.call : e->call;
  e->visible = e->change.next;
  engine_history_commit(ctx, e, &e->change);
  const bool unnamed = label && engine_inplace_unnamed(e);
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
  if (unshown) {
    engine_upstream_tell(e); /* before the event: who has that may pin it */
  }
  if (!label) {
    engine_inplace_healed(ctx, e);
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
  engine_event_commit(ctx, e, &previous, label, which);
  if (e->fleet.replicas != NULL) {
    engine_beat_all(ctx, e);
  }
  engine_upstream_judge(ctx, e);
  answer_visible(ctx, e, call, fenced, unnamed);
  engine_admit_arrivals(ctx, e);
  if (e->session.state == WEFTI_FINISHING && e->round.phase == PHASE_NONE &&
      !e->session.upstream) {
    issue(ctx, e); /* a finish that found the label's record under way */
  }
  engine_wake_waiting(ctx, e);
}

void engine_fenced_add(char *list, size_t cap, uint32_t rank)
{
  char text[16];
  const size_t at = strlen(list);
  (void)snprintf(text, sizeof text, "%s%" PRIu32, at == 0 ? "" : ",", rank);
  if (at + strlen(text) < cap) { /* whole numbers only */
    memcpy(list + at, text, strlen(text) + 1);
  }
}

static void published(weft_ctx *ctx, engine *e, bool all_ok)
{
  (void)all_ok; /* a round of PUBLISH ends when all have confirmed or are fenced */
  char fenced[256] = "";
  for (uint32_t i = 0; i < e->world; i++) {
    if (e->round.replies[i].err != WEFT_OK) {
      engine_fenced_add(fenced, sizeof fenced, i);
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
    e->change.corr_timer =
        weft_timer_start(ctx, ENGINE_RECORD_MS, ENGINE_TAG(TIMER_RECORD, 0));
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
    /* The record of a label before it, or its vote, has not become durable. */
    engine_answer late = { .err = WEFT_E_TIMEOUT,
                           .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                           .phase = engine_phase_name(PHASE_FINISH) };
    engine_vote_late(ctx, e);
    if (call->ask.type != 0) { /* a coordinator says the rest */
      (void)snprintf(late.message, sizeof late.message,
                     "its vote could not be made durable in time: see to its state "
                     "directory");
    } else {
      (void)snprintf(
          late.message, sizeof late.message,
          "%s failed: its deadline came before its record could be issued; %s, the "
          "session is over",
          engine_call_name(call->kind), engine_unchanged(e));
    }
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
  call->due_timer = weft_timer_start(ctx, engine_call_left_ms(ctx, call),
                                     ENGINE_TAG(TIMER_CALL_DUE, 0));
  record(ctx, e);
}
