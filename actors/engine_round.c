#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TICK_MS = 2 }; /* two clocks that are rounded */

const char *engine_phase_name(engine_phase phase)
{
  static const char *const names[] = {
    [PHASE_NONE] = "",       [PHASE_START] = "start",   [PHASE_ACCEPT] = "accept",
    [PHASE_GO] = "transfer", [PHASE_FINISH] = "finish", [PHASE_PUBLISH] = "publish",
    [PHASE_ABORT] = "abort",
  };
  return names[phase];
}

#define ENVELOPE(e, m, op_)                                                              \
  .boot = (e)->args.boot_id, .incarnation = (m)->incarnation, .epoch = (e)->round.epoch, \
  .op = (op_)

static weft_str text_of(const char *s)
{
  return (weft_str){ s, s == NULL ? 0 : (uint32_t)strlen(s) };
}

static weft_msg *start_of(weft_ctx *ctx, const engine *e, const engine_member *m,
                          uint64_t op)
{
  const char *version = e->visible.version;
  weft_buf *text = weft_buf_create(version, strlen(version) + 1);
  weft_msg *msg = NULL;
  if (text != NULL) {
    msg = weft_msg_make(
        ctx,
        &(weft_w_start){ .h.type = WEFT_MSG_W_START,
                         ENVELOPE(e, m, op),
                         .draft = e->session.which == SET_DRAFT,
                         .base_sequence = e->visible.weights_sequence,
                         .base_digest_hi = m->digest_hi,
                         .base_digest_lo = m->digest_lo,
                         .alone = e->session.alone,
                         .inplace = e->args.inplace,
                         .timeout_ms = (uint32_t)(e->round.due_ms - e->round.began_ms),
                         .version = text }
             .h);
  }
  weft_buf_unref(text);
  return msg;
}

/* The one message of this round for rank.  NULL = out of memory. */
static weft_msg *question(weft_ctx *ctx, engine *e, const engine_member *m, uint64_t op)
{
  const uint32_t left_ms = (uint32_t)(e->round.due_ms - e->round.began_ms);
  const uint32_t what =
      e->session.state == WEFTI_INIT ? WEFT_TRANSFER_INIT : WEFT_TRANSFER_UPDATE;
  switch (e->round.phase) {
  case PHASE_START:
    return start_of(ctx, e, m, op);
  case PHASE_ACCEPT:
    WEFT_ASSERT(e->call != NULL);
    return weft_msg_make(ctx, &(weft_w_accept){ .h.type = WEFT_MSG_W_ACCEPT,
                                                ENVELOPE(e, m, op),
                                                .what = what,
                                                .timeout_ms = left_ms,
                                                .info = e->call->info }
                                   .h);
  case PHASE_GO:
    return weft_msg_make(ctx, &(weft_w_go){ .h.type = WEFT_MSG_W_GO,
                                            ENVELOPE(e, m, op),
                                            .what = what,
                                            .timeout_ms = left_ms }
                                   .h);
  case PHASE_FINISH:
    WEFT_ASSERT(e->call != NULL);
    return weft_msg_make(
        ctx, &(weft_w_finish){ .h.type = WEFT_MSG_W_FINISH,
                               ENVELOPE(e, m, op),
                               .strict = e->call->strict || e->args.strict_coverage,
                               .timeout_ms = left_ms,
                               .has_version = e->call->has_version,
                               .version = text_of(e->call->version) }
                  .h);
  case PHASE_PUBLISH:
    return weft_msg_make(ctx,
                         &(weft_w_publish){ .h.type = WEFT_MSG_W_PUBLISH,
                                            ENVELOPE(e, m, op),
                                            .sequence = e->change.next.weights_sequence,
                                            .version = text_of(e->change.next.version),
                                            .declared = e->change.next.declared }
                              .h);
  case PHASE_ABORT:
    return weft_msg_make(
        ctx,
        &(weft_w_abort){ .h.type = WEFT_MSG_W_ABORT,
                         ENVELOPE(e, m, op),
                         .reason = { e->last_abort, (uint32_t)strlen(e->last_abort) } }
             .h);
  case PHASE_NONE:
    break;
  }
  return NULL;
}

static void reply_clear(engine_reply *r)
{
  weft_buf_unref(r->json);
  *r = (engine_reply){ .state = REPLY_NONE };
}

static void reply_fail(engine_reply *r, weft_err err, const char *text)
{
  r->state = REPLY_FAILED;
  r->err = err;
  (void)snprintf(r->text, sizeof r->text, "%s", text);
}

/* An absent rank needs no PUBLISH and no ABORT: nothing of it can serve anybody. */
static bool absence_is_fine(engine_phase phase)
{
  return phase == PHASE_PUBLISH || phase == PHASE_ABORT;
}

static void ask(weft_ctx *ctx, engine *e, uint32_t rank)
{
  engine_member *m = &e->members[rank];
  engine_reply *r = &e->round.replies[rank];
  reply_clear(r);
  r->incarnation = m->incarnation;
  if (!engine_member_usable(m)) {
    const bool holds_nothing = m->state == MEMBER_ABSENT || m->state == MEMBER_ADOPTING;
    if (holds_nothing && absence_is_fine(e->round.phase)) {
      r->state = REPLY_OK;
      r->err = WEFT_E_DOWN;
      return;
    }
    if (m->state == MEMBER_LOST && absence_is_fine(e->round.phase)) {
      r->state = REPLY_ASKED; /* ends when it is fenced */
      e->round.open++;
      return;
    }
    reply_fail(r, WEFT_E_DOWN, m->why[0] == '\0' ? "has not joined" : m->why);
    return;
  }
  r->state = REPLY_ASKED;
  r->op = ++e->op_last;
  r->corr = weft_ask(ctx, m->actor, question(ctx, e, m, r->op),
                     e->round.due_ms - e->round.began_ms);
  e->round.open++;
}

static bool any_failed(const engine *e)
{
  for (uint32_t i = 0; i < e->world; i++) {
    if (e->round.replies[i].state == REPLY_REFUSED ||
        e->round.replies[i].state == REPLY_FAILED) {
      return true;
    }
  }
  return false;
}

static void stop_asking(weft_ctx *ctx, engine *e)
{
  for (uint32_t i = 0; i < e->world; i++) {
    if (e->round.replies[i].corr != 0) {
      weft_ask_cancel(ctx, e->round.replies[i].corr);
      e->round.replies[i].corr = 0;
    }
  }
}

static void end_if_over(weft_ctx *ctx, engine *e)
{
  if (e->round.phase == PHASE_NONE) {
    return;
  }
  const bool failed = any_failed(e);
  if (e->round.open > 0 && !(failed && !e->round.to_end)) {
    return;
  }
  stop_asking(ctx, e);
  engine_round_fn *done = e->round.done;
  e->round.done = NULL;
  const engine_phase phase = e->round.phase;
  done(ctx, e, !failed);
  /* Replies stay readable until the next round; only the phase says that this one is
   * over, unless done has begun another. */
  if (e->round.done == NULL && e->round.phase == phase) {
    e->round.phase = PHASE_NONE;
  }
}

void engine_round_begin(weft_ctx *ctx, engine *e, engine_phase phase, uint64_t timeout_ms,
                        engine_round_fn *done)
{
  e->round.phase = phase;
  e->round.done = done;
  e->round.epoch = e->session.epoch;
  e->round.began_ms = weft_now_ms(ctx);
  e->round.due_ms = e->round.began_ms + timeout_ms;
  e->round.open = 0;
  e->round.to_end = phase == PHASE_FINISH || absence_is_fine(phase);
  if (e->call != NULL) {
    e->call->asked = true;
  }
  bool refused = false;
  for (uint32_t rank = 0; rank < e->world; rank++) {
    /* With a rank known to be down, no other may enter a phase it could not leave. */
    engine_reply *r = &e->round.replies[rank];
    reply_clear(r);
    refused =
        refused || (!engine_member_usable(&e->members[rank]) && !absence_is_fine(phase));
  }
  for (uint32_t rank = 0; rank < e->world; rank++) {
    if (!refused || !engine_member_usable(&e->members[rank])) {
      ask(ctx, e, rank);
    }
  }
  end_if_over(ctx, e);
}

void engine_round_cancel(weft_ctx *ctx, engine *e)
{
  stop_asking(ctx, e);
  e->round.phase = PHASE_NONE;
  e->round.done = NULL;
  e->round.open = 0;
}

static engine_reply *reply_of(engine *e, uint64_t corr, uint32_t *rank)
{
  if (e->round.phase == PHASE_NONE || corr == 0) {
    return NULL;
  }
  for (uint32_t i = 0; i < e->world; i++) {
    if (e->round.replies[i].corr == corr) {
      *rank = i;
      return &e->round.replies[i];
    }
  }
  return NULL;
}

static void take_ok(engine_reply *r, const weft_w_ok *m)
{
  r->state = REPLY_OK;
  r->tensors = m->tensors;
  r->bytes = m->bytes;
  r->poisoned = m->poisoned;
  r->elapsed_us = m->elapsed_us;
}

static void take_finished(const engine *e, engine_reply *r, const weft_w_finished *m)
{
  r->state = REPLY_OK;
  r->digest_hi = m->digest_hi;
  r->digest_lo = m->digest_lo;
  r->tensors = m->tensors;
  r->bytes = m->bytes;
  r->received = m->received;
  r->received_bytes = m->received_bytes;
  r->missing = m->missing;
  r->set = e->args.draft
               ? (engine_set){ m->set_tensors, m->set_bytes, m->set_digest_hi,
                               m->set_digest_lo }
               : (engine_set){ m->tensors, m->bytes, m->digest_hi, m->digest_lo };
  r->json = weft_buf_ref(m->missing_names);
  r->elapsed_us = m->elapsed_us;
}

/* What a worker objects to when asked to ACCEPT is the caller's input: one code for all
 * of it.  Later it is a failure, whatever its name. */
static weft_err refusal_of(engine_phase phase, weft_err err)
{
  switch ((int)err) {
  case WEFT_E_INVAL:
  case WEFT_E_OVERFLOW:
  case WEFT_E_TRUNCATED:
  case WEFT_E_TRAILING:
  case WEFT_E_PROTO:
  case WEFT_E_EXISTS:
  case WEFT_E_NOTFOUND:
  case WEFT_E_UNSUPPORTED:
    return phase == PHASE_ACCEPT ? WEFT_E_INVAL : WEFT_E_FAILED;
  case WEFT_OK:
  case WEFT_E_LIMIT: /* of this machine, not of the request */
    return WEFT_E_FAILED;
  default:
    return err;
  }
}

static void take_refused(engine_phase phase, engine_reply *r, const weft_w_refused *m)
{
  r->state = REPLY_REFUSED;
  r->err = refusal_of(phase, (weft_err)m->err);
  r->correctable = m->correctable != 0;
  (void)snprintf(r->text, sizeof r->text, "%.*s", (int)m->text.len,
                 m->text.p == NULL ? "" : m->text.p);
}

/* The envelope is checked although answers are matched by question: a peer that answers
 * with another life's numbers has not done what was asked. */
static void take_answer(const engine *e, engine_reply *r, const weft_msg *msg)
{
  const weft_w_ok *env = (const weft_w_ok *)msg; /* all of them begin with the envelope */
  const bool known = msg->type == WEFT_MSG_W_OK || msg->type == WEFT_MSG_W_FINISHED ||
                     msg->type == WEFT_MSG_W_REFUSED;
  if (!known || env->boot != e->args.boot_id || env->incarnation != r->incarnation ||
      env->op != r->op) {
    reply_fail(r, WEFT_E_PROTO, "answered with another operation's envelope");
  } else if (msg->type == WEFT_MSG_W_REFUSED) {
    take_refused(e->round.phase, r, (const weft_w_refused *)msg);
  } else if ((e->round.phase == PHASE_FINISH) != (msg->type == WEFT_MSG_W_FINISHED)) {
    reply_fail(r, WEFT_E_PROTO, "answered with the wrong kind of message");
  } else if (msg->type == WEFT_MSG_W_FINISHED) {
    take_finished(e, r, (const weft_w_finished *)msg);
  } else {
    take_ok(r, (const weft_w_ok *)msg);
  }
}

/* Heartbeats are half a second apart; an answer says at once where the worker is now. */
static void note_phase(engine_member *m, engine_phase phase)
{
  static const uint32_t after[] = {
    [PHASE_START] = WEFT_WORKER_OPEN,   [PHASE_ACCEPT] = WEFT_WORKER_ACCEPTED,
    [PHASE_GO] = WEFT_WORKER_OPEN,      [PHASE_FINISH] = WEFT_WORKER_INSTALLED,
    [PHASE_PUBLISH] = WEFT_WORKER_IDLE, [PHASE_ABORT] = WEFT_WORKER_IDLE,
  };
  m->reported.phase = after[phase];
  m->reported.received = 0;
  m->reported.expected = 0;
}

bool engine_round_answer(weft_ctx *ctx, engine *e, const weft_msg *msg)
{
  uint32_t rank = 0;
  engine_reply *r = reply_of(e, msg->corr, &rank);
  if (r == NULL) {
    return false;
  }
  r->corr = 0;
  if (msg->type == WEFT_MSG_ASK_FAILED) {
    const weft_err why = (weft_err)((const weft_ask_failed_msg *)msg)->reason;
    reply_fail(r, why,
               why == WEFT_E_TIMEOUT ? "has not answered in time" : weft_strerror(why));
  } else {
    take_answer(e, r, msg);
  }
  if (r->state != REPLY_OK && absence_is_fine(e->round.phase)) {
    char why[128];
    (void)snprintf(why, sizeof why, "did not confirm %s: %.80s",
                   engine_phase_name(e->round.phase), r->text);
    r->state = REPLY_ASKED; /* stays open until it is fenced */
    engine_fence(ctx, e, rank, why);
    return true;
  }
  if (r->state == REPLY_OK) {
    note_phase(&e->members[rank], e->round.phase);
  }
  if (r->state == REPLY_OK && e->round.phase == PHASE_ABORT) {
    engine_inplace_report(ctx, e, &e->members[rank], r->poisoned);
  }
  if (e->round.phase == PHASE_PUBLISH) {
    engine_member_published(e, rank);
    engine_fleet_published(e, &e->members[rank]);
  }
  e->round.open--;
  end_if_over(ctx, e);
  return true;
}

void engine_round_lost(weft_ctx *ctx, engine *e, uint32_t rank, const char *why)
{
  engine_reply *r = &e->round.replies[rank];
  if (e->round.phase == PHASE_NONE && e->session.state == WEFTI_FINISHING) {
    reply_fail(r, WEFT_E_DOWN, why); /* the commit, not issued yet, counts on it */
    return;
  }
  if (e->round.phase == PHASE_NONE || absence_is_fine(e->round.phase) ||
      (r->state != REPLY_ASKED && r->state != REPLY_OK)) {
    return;
  }
  if (r->state == REPLY_ASKED) {
    weft_ask_cancel(ctx, r->corr);
    r->corr = 0;
    e->round.open--;
  }
  reply_fail(r, WEFT_E_DOWN,
             why); /* also one that had answered: it died with its answer */
  end_if_over(ctx, e);
}

void engine_round_fenced(weft_ctx *ctx, engine *e, uint32_t rank)
{
  engine_reply *r = &e->round.replies[rank];
  if (e->round.phase == PHASE_NONE || r->state != REPLY_ASKED ||
      !absence_is_fine(e->round.phase)) {
    return;
  }
  if (r->corr != 0) {
    weft_ask_cancel(ctx, r->corr);
    r->corr = 0;
  }
  r->state = REPLY_OK;
  r->err = WEFT_E_DOWN; /* OK by absence: how finish knows whom to name in Weft-Fenced */
  e->round.open--;
  end_if_over(ctx, e);
}

static void add_rank(const engine *e, char *list, size_t cap, uint32_t rank)
{
  const size_t at = strlen(list);
  (void)snprintf(list + at, cap - at, "%s%s %" PRIu32, at == 0 ? "" : ", ",
                 engine_unit(e), rank);
}

/* What a rank that is late was at, as far as its last heartbeat says. */
static void doing(weft_ctx *ctx, const engine *e, const engine_member *m, char *out,
                  size_t cap)
{
  const weft_w_state *r = &m->reported;
  const bool hashes = r->phase == WEFT_WORKER_FINISHING && r->expected > 0;
  const bool counts = hashes || e->round.phase == PHASE_GO;
  char bytes[96] = "";
  if (counts) {
    (void)snprintf(bytes, sizeof bytes, " and had %s %" PRIu64 " of %" PRIu64 " bytes",
                   hashes ? "hashed" : "received", r->received, r->expected);
  }
  (void)snprintf(out, cap, "heard %.1f s ago, was %s%s",
                 (double)(weft_now_ms(ctx) - m->stamp_at_ms) / 1000.0,
                 weft_worker_phase_name(r->phase), bytes);
}

/* What is known of a rank that did not come to an end: the answer has room for one. */
static void log_late(weft_ctx *ctx, const engine *e, uint32_t rank)
{
  const weft_w_state *r = &e->members[rank].reported;
  weft_log(ctx, WEFT_LOG_WARN,
           "late in %s %s=%" PRIu32 " phase=%s received=%" PRIu64 " expected=%" PRIu64
           " after_ms=%" PRIu64,
           engine_phase_name(e->round.phase), engine_unit(e), rank,
           weft_worker_phase_name(r->phase), r->received, r->expected,
           weft_now_ms(ctx) - e->round.began_ms);
}

void engine_round_blame(weft_ctx *ctx, const engine *e, engine_answer *a, char *culprits,
                        size_t cap)
{
  const engine_reply *first = NULL;
  uint32_t first_rank = 0;
  culprits[0] = '\0';
  for (uint32_t i = 0; i < e->world; i++) {
    const engine_reply *r = &e->round.replies[i];
    /* Questions that end together are told one by one, the first a millisecond early: the
     * others are late all the same. */
    const bool late =
        r->state == REPLY_ASKED && weft_now_ms(ctx) + TICK_MS >= e->round.due_ms;
    if (r->state != REPLY_REFUSED && r->state != REPLY_FAILED && !late) {
      continue;
    }
    add_rank(e, culprits, cap, i);
    if (late || r->err == WEFT_E_TIMEOUT) {
      log_late(ctx, e, i);
    }
    if (first == NULL || (first->state == REPLY_ASKED && !late)) {
      first = r;
      first_rank = i;
    }
  }
  const char *text =
      first == NULL || first->text[0] == '\0' ? "has not answered in time" : first->text;
  const engine_member *m = &e->members[first_rank];
  a->err = first == NULL || first->err == WEFT_OK ? WEFT_E_TIMEOUT : first->err;
  a->phase = engine_phase_name(e->round.phase);
  a->culprits = culprits;
  const size_t at = strlen(a->message);
  (void)snprintf(a->message + at, sizeof a->message - at, "%s %" PRIu32 ": %s",
                 engine_unit(e), first_rank, text);
  if (a->err == WEFT_E_TIMEOUT) {
    char at_work[128];
    const size_t end = strlen(a->message);
    doing(ctx, e, m, at_work, sizeof at_work);
    (void)snprintf(a->message + end, sizeof a->message - end,
                   " (late: %.120s; %s %" PRIu32 ", %s, after %.1f s)", culprits,
                   engine_unit(e), first_rank, at_work,
                   (double)(weft_now_ms(ctx) - e->round.began_ms) / 1000.0);
  }
}
