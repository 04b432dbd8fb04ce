/* The vote of a member of a fleet: durable before the coordinator hears of it, and from
 * then on nothing of the member's own decides.  How the doubt ends: by the coordinator's
 * PUBLISH, ABORT or RESOLVE, or by an operator in its place. */
#include "engine.h"
#include "weft/journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LATE_MS = 1000 /* a vote that is not written by then is not soon */ };

bool engine_vote_in_doubt(const engine_vote *v)
{
  return v->state == VOTE_GIVEN || v->state == VOTE_LOST;
}

bool engine_vote_is_ours(const engine_vote *v)
{
  return v->state == VOTE_ASKED || v->state == VOTE_GIVEN;
}

/* ---- what the journal knows of an earlier life */

void engine_vote_init(engine *e, const weft_journal_record *r)
{
  engine_vote *v = &e->up.vote;
  if (r->kind == WEFT_JOURNAL_VOTE) {
    *v = (engine_vote){ .state = e->args.member ? VOTE_LOST : VOTE_NONE,
                        .boot = r->fleet_boot,
                        .epoch = r->fleet_epoch,
                        .digest_hi = r->digest_hi,
                        .digest_lo = r->digest_lo,
                        .declared = r->declared };
    (void)snprintf(v->fleet, sizeof v->fleet, "%s", r->fleet);
    (void)snprintf(v->version, sizeof v->version, "%s", r->version);
  } else if (v->boot != 0 && r->fleet_boot == v->boot && r->fleet_epoch == v->epoch) {
    *v = (engine_vote){ .state = VOTE_NONE };
  }
}

/* ---- a journal that takes none */

static void unwritten(weft_ctx *ctx, engine *e, const char *why)
{
  engine_unwritten *u = &e->up.unwritten;
  if (!u->is) {
    weft_log(ctx, WEFT_LOG_ERROR,
             "the state directory takes no records: %s; no update is begun until it does",
             why);
  }
  u->is = true;
  (void)snprintf(u->why, sizeof u->why, "%s", why);
}

static void written(weft_ctx *ctx, engine *e)
{
  engine_unwritten *u = &e->up.unwritten;
  weft_log(ctx, WEFT_LOG_INFO, "the state directory takes records again");
  weft_timer_cancel(ctx, u->timer);
  weft_msg_drop(weft_messages(), u->record);
  *u = (engine_unwritten){ .is = false };
}

static void ask_again(weft_ctx *ctx, engine *e)
{
  engine_unwritten *u = &e->up.unwritten;
  u->corr = weft_ask(ctx, e->args.journal, weft_msg_make(ctx, u->record), 0); /* a copy */
}

void engine_vote_late(weft_ctx *ctx, engine *e)
{
  if (e->up.vote.state == VOTE_ASKED && e->up.vote.corr != 0) {
    unwritten(ctx, e, "the last vote is not written yet");
  }
}

bool engine_vote_keeps(weft_ctx *ctx, engine *e, const weft_journal_append *record)
{
  engine_unwritten *u = &e->up.unwritten;
  if (weft_now_ms(ctx) - e->up.vote.asked_ms >= LATE_MS) {
    engine_vote_late(ctx, e);
  }
  if (!u->is || u->record != NULL) {
    return false;
  }
  u->record = weft_msg_dup(weft_messages(), &record->h);
  if (u->record == NULL) {
    u->is = false; /* nothing would end it */
    return false;
  }
  ask_again(ctx, e);
  return true;
}

static void kept_answer(weft_ctx *ctx, engine *e, const weft_msg *msg)
{
  engine_unwritten *u = &e->up.unwritten;
  const weft_journal_done *done = (const weft_journal_done *)msg;
  u->corr = 0;
  if (msg->type == WEFT_MSG_JOURNAL_DONE && done->err == WEFT_OK) {
    written(ctx, e);
    return;
  }
  if (msg->type == WEFT_MSG_JOURNAL_DONE) {
    unwritten(ctx, e, done->text.p == NULL ? "" : done->text.p);
  }
  u->timer = weft_timer_start(ctx, ENGINE_RECORD_MS, ENGINE_TAG(TIMER_KEPT, 0));
}

void engine_vote_due(weft_ctx *ctx, engine *e, uint64_t timer)
{
  engine_unwritten *u = &e->up.unwritten;
  if (u->is && u->timer == timer) {
    u->timer = 0;
    ask_again(ctx, e);
  }
}

void engine_vote_rearm(weft_ctx *ctx, engine *e)
{
  engine_unwritten *u = &e->up.unwritten;
  if (u->is && u->record != NULL && u->corr == 0 && u->timer == 0) {
    u->timer = weft_timer_start(ctx, ENGINE_RECORD_MS, ENGINE_TAG(TIMER_KEPT, 0));
  }
}

void engine_vote_fini(engine *e)
{
  weft_msg_drop(weft_messages(), e->up.unwritten.record);
}

bool engine_vote_forbids(weft_ctx *ctx, engine *e, engine_call *call)
{
  const engine_unwritten *u = &e->up.unwritten;
  if (!u->is || (call->kind != CALL_START && call->kind != CALL_START_DRAFT)) {
    return false;
  }
  engine_answer_err(
      ctx, e, call, WEFT_E_UNAVAIL,
      "%sthe state directory takes no records: %s; see to it, then try again",
      call->ask.type != 0 ? "" : "start_weight_update: ", u->why);
  return true;
}

/* ---- giving it */

void engine_vote_begin(weft_ctx *ctx, engine *e)
{
  const engine_upstream *up = &e->up;
  engine_vote *v = &e->up.vote;
  const engine_call *call = e->call;
  *v = (engine_vote){ .state = VOTE_ASKED,
                      .boot = up->coordinator.boot,
                      .epoch = up->epoch,
                      .asked_ms = weft_now_ms(ctx),
                      .declared = call->has_version || e->visible.declared };
  engine_set_digest(e, true, &v->digest_hi, &v->digest_lo);
  (void)snprintf(v->fleet, sizeof v->fleet, "%s", up->fleet);
  (void)snprintf(v->version, sizeof v->version, "%s",
                 call->has_version ? call->version : e->visible.version);
  const char *operation = engine_call_name(CALL_FINISH);
  const weft_journal_append m = {
    .h.type = WEFT_MSG_JOURNAL_APPEND,
    .kind = WEFT_RECORD_VOTE,
    .epoch = e->session.epoch,
    .version = { v->version, (uint32_t)strlen(v->version) },
    .digest_hi = v->digest_hi,
    .digest_lo = v->digest_lo,
    .at_ms = weft_wall_ms(ctx),
    .elapsed_ms = weft_now_ms(ctx) - e->session.opened_ms,
    .tensors = e->round.replies[0].tensors,
    .bytes = e->round.replies[0].bytes,
    .declared = v->declared,
    .operation = { operation, (uint32_t)strlen(operation) },
    .fleet = { v->fleet, (uint32_t)strlen(v->fleet) },
    .fleet_boot = v->boot,
    .fleet_epoch = v->epoch,
  };
  v->corr = weft_ask(ctx, e->args.journal, weft_msg_make(ctx, &m.h), 0);
}

/* Whether its record is on the disk or not: it was not given, so the coordinator cannot
 * have counted on it. */
static void not_durable(weft_ctx *ctx, engine *e, const char *text)
{
  engine_answer a = { .err = WEFT_E_UNAVAIL, .outcome = WEFT_OUTCOME_NOT_COMMITTED };
  unwritten(ctx, e, text);
  (void)snprintf(a.message, sizeof a.message,
                 "the vote cannot be made durable: %.300s; see to the state directory, "
                 "then try again",
                 text);
  engine_op_failed(ctx, e, &a);
}

bool engine_vote_answer(weft_ctx *ctx, engine *e, const weft_msg *msg)
{
  engine_vote *v = &e->up.vote;
  if (msg->corr != 0 && msg->corr == e->up.unwritten.corr) {
    kept_answer(ctx, e, msg);
    return true;
  }
  if (v->corr == 0 || msg->corr != v->corr) {
    return false;
  }
  v->corr = 0;
  if (msg->type != WEFT_MSG_JOURNAL_DONE) {
    not_durable(ctx, e, "the journal has not answered");
    return true;
  }
  const weft_journal_done *done = (const weft_journal_done *)msg;
  if (done->err != WEFT_OK) {
    not_durable(ctx, e, done->text.p == NULL ? "" : done->text.p);
    return true;
  }
  v->state = VOTE_GIVEN;
  engine_call *call = e->call;
  e->call = NULL;
  engine_move(ctx, e, WEFTI_PREPARED);
  weft_log(ctx, WEFT_LOG_INFO,
           "prepared: the coordinator decides fleet=%s boot=%016" PRIx64
           " epoch=%" PRIu64,
           v->fleet, v->boot, v->epoch);
  engine_upstream_tell(e);
  engine_answer_ok(ctx, e, call);
  engine_wake_waiting(ctx, e);
  return true;
}

/* ---- its end */

static void forget(weft_ctx *ctx, engine *e, bool committed)
{
  engine_upstream *up = &e->up;
  weft_ask_cancel(ctx, up->vote.corr);
  up->last_boot = up->vote.boot;
  up->last_epoch = up->vote.epoch;
  up->aborted_last = !committed;
  up->vote = (engine_vote){ .state = VOTE_NONE };
  engine_upstream_tell(e);
}

void engine_vote_over(weft_ctx *ctx, engine *e, bool committed)
{
  if (engine_vote_is_ours(&e->up.vote)) {
    forget(ctx, e, committed);
  }
}

/* What had been installed went with an earlier life, so nothing changes here either way.
 */
static void lost_over(weft_ctx *ctx, engine *e, bool committed)
{
  engine_history_resolved(ctx, e,
                          committed ? "its fleet has committed it; here a restart came "
                                      "between, and the weights are gone"
                                    : "its fleet has not committed it");
  forget(ctx, e, committed);
  engine_event_status(ctx, e);
}

void engine_vote_commit(weft_ctx *ctx, engine *e, uint64_t sequence, weft_str version,
                        bool declared)
{
  char text[ENGINE_VERSION_MAX + 1];
  (void)snprintf(text, sizeof text, "%.*s", (int)version.len,
                 version.p == NULL ? "" : version.p);
  e->up.next_sequence = sequence;
  engine_commit_begin(ctx, e, text, declared);
}

void engine_vote_resolve(weft_ctx *ctx, engine *e, const engine_ask *ask,
                         const weft_w_resolve *m)
{
  engine_upstream *up = &e->up;
  const engine_vote *v = &up->vote;
  const bool committed = m->committed != 0;
  const bool open =
      engine_vote_in_doubt(v) && v->boot == m->doubt_boot && v->epoch == m->doubt_epoch;
  const bool over = up->last_boot == m->doubt_boot && up->last_epoch == m->doubt_epoch &&
                    up->last_boot != 0;
  if (!open && over && up->aborted_last == !committed) {
    engine_upstream_ok(ctx, ask); /* has happened */
  } else if (!open) {
    engine_upstream_refuse(
        ctx, ask, WEFT_E_STALE,
        "nothing is in doubt about epoch %" PRIu64 " of coordinator boot %" PRIx64 "%s",
        m->doubt_epoch, m->doubt_boot, over ? ": it was ended the other way" : "");
  } else if (e->session.state == WEFTI_COMMITTING && committed) {
    engine_upstream_again(ctx, &up->asked, ask);
  } else if (e->session.state == WEFTI_COMMITTING) {
    engine_upstream_refuse(ctx, ask, WEFT_E_STATE, "it is being committed already");
  } else if (v->state == VOTE_LOST) {
    lost_over(ctx, e, committed);
    engine_upstream_ok(ctx, ask);
  } else if (committed) {
    up->asked = *ask;
    engine_vote_commit(ctx, e, m->sequence, m->version, m->declared != 0);
  } else {
    up->abort = *ask;
    engine_upstream_drop(ctx, e, "the coordinator had not committed it");
  }
}

/* ---- by an operator */

void engine_resolve_begin(weft_ctx *ctx, engine *e, engine_call *call)
{
  const engine_vote *v = &e->up.vote;
  char reason[256];
  if (!e->args.member || !engine_vote_in_doubt(v) ||
      e->session.state == WEFTI_COMMITTING) {
    engine_answer_err(ctx, e, call, WEFT_E_STATE, "%s: nothing is in doubt here",
                      engine_call_name(call->kind));
    return;
  }
  if (e->up.until_ns > weft_boottime_ns(ctx)) {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "%s: the coordinator of fleet %s is connected and will decide",
                      engine_call_name(call->kind), e->up.fleet);
    return;
  }
  (void)snprintf(reason, sizeof reason,
                 "an operator has decided that fleet %.128s did not commit it", v->fleet);
  weft_log(ctx, WEFT_LOG_WARN,
           "an operator %s what is in doubt fleet=%s boot=%016" PRIx64 " epoch=%" PRIu64,
           call->commit ? "commits" : "aborts", v->fleet, v->boot, v->epoch);
  call->begun = true;
  if (v->state == VOTE_LOST) {
    lost_over(ctx, e, call->commit);
    engine_answer_ok(ctx, e, call);
  } else if (!call->commit) {
    engine_abort_begin(ctx, e, call, reason);
  } else {
    const weft_str version = { v->version, (uint32_t)strlen(v->version) };
    const bool declared = v->declared;
    call->due_timer = weft_timer_start(ctx, engine_call_left_ms(ctx, call),
                                       ENGINE_TAG(TIMER_CALL_DUE, 0));
    e->call = call;
    engine_vote_commit(ctx, e, 0, version, declared);
  }
}
