/* A joined worker that came back has nobody who kept its weights: another rank that holds
 * the same set lends them.  That one is asked first; its answer says where they are to be
 * had, and that goes to the one that lacks them.  Only between sessions: a session ends a
 * loan, on both sides, by its first frame. */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
  LEND_MS = 10000, /* until a lender that does not answer is left */
  AGAIN_MS = 1000, /* after the first failure; doubled by each */
  AGAIN_MAX_MS = 60000
};

static engine_lent *lent_of(engine_member *m)
{
  if (m->lent.incarnation != m->incarnation) {
    m->lent = (engine_lent){ .incarnation = m->incarnation,
                             .last_lender = m->rank,
                             .lender_incarnation = m->incarnation };
  }
  return &m->lent;
}

/* ---- who may */

/* A coordinator's members are engines: none of them lends to another. */
static bool may_lend_now(const engine *e)
{
  return e->fleet.replicas == NULL && e->session.state == WEFTI_IDLE &&
         !(e->change.pending && !e->change.label) && e->visible.weights_sequence != 0 &&
         e->inplace.poisoned == 0 && !e->was_reset;
}

static bool same_set(const engine_member *a, const engine_member *b)
{
  return a->digest_hi == b->digest_hi && a->digest_lo == b->digest_lo;
}

static bool over_tcp(const engine_member *m)
{
  return strncmp(m->url, "tcp://", 6) == 0;
}

/* Whoever is not reached over tcp is on this machine: it comes to a loopback address,
 * which is another one's elsewhere. */
static bool reaches(const engine_member *from, const engine_member *to)
{
  return over_tcp(from) || !over_tcp(to) || strncmp(to->url, "tcp://127.", 10) == 0;
}

static bool could_lend(const engine_member *m, const engine_member *to)
{
  return m->state == MEMBER_READY && m->rank != to->rank && same_set(m, to) &&
         reaches(to, m) &&
         !(m->lent.incarnation == m->incarnation && m->lent.cannot_lend);
}

/* Its children's weights come back by their parent. */
static bool lacks(const engine_member *m)
{
  return m->state == MEMBER_BEHIND && m->kind == WEFT_MEMBER_JOINED;
}

static engine_member *choose_lender(engine *e, engine_member *to)
{
  for (uint32_t i = 1; i <= e->world; i++) {
    engine_member *m = &e->members[(lent_of(to)->last_lender + i) % e->world];
    if (could_lend(m, to)) {
      return m;
    }
  }
  return NULL;
}

/* ---- the end of a loan */

static void end(weft_ctx *ctx, engine *e)
{
  weft_ask_cancel(ctx, e->loan.corr);
  e->loan = (engine_loan){ .stage = LOAN_NONE };
}

static bool is_still(const engine *e, uint32_t rank, uint64_t incarnation)
{
  return e->members[rank].incarnation == incarnation &&
         engine_member_usable(&e->members[rank]);
}

static void failed(weft_ctx *ctx, engine *e, const char *why, uint32_t why_len)
{
  engine_loan loan = e->loan;
  end(ctx, e);
  if (!is_still(e, loan.borrower, loan.borrower_incarnation)) {
    return;
  }
  engine_lent *l = lent_of(&e->members[loan.borrower]);
  const uint64_t wait =
      l->failures > 6 ? AGAIN_MAX_MS : (uint64_t)AGAIN_MS << l->failures;
  l->failures++;
  l->not_before_ms = weft_now_ms(ctx) + (wait < AGAIN_MAX_MS ? wait : AGAIN_MAX_MS);
  (void)snprintf(l->why, sizeof l->why, "%.*s", (int)why_len, why);
  weft_log(ctx, WEFT_LOG_WARN,
           "rank %" PRIu32 " did not get its weights from rank %" PRIu32
           ": %s; again within %" PRIu64 " ms",
           loan.borrower, loan.lender, l->why, l->not_before_ms - weft_now_ms(ctx));
  engine_event_status(ctx, e);
}

static void failed_for(weft_ctx *ctx, engine *e, const char *why)
{
  failed(ctx, e, why, (uint32_t)strlen(why));
}

/* ---- its two questions */

static void ask_lender(weft_ctx *ctx, engine *e, engine_member *to,
                       const engine_member *m)
{
  const char *towards = over_tcp(to) ? to->url : "";
  e->loan = (engine_loan){ .stage = LOAN_ASKED,
                           .borrower = to->rank,
                           .lender = m->rank,
                           .borrower_incarnation = to->incarnation,
                           .lender_incarnation = m->incarnation,
                           .op = ++e->op_last };
  lent_of(to)->last_lender = m->rank;
  lent_of(to)->lender_incarnation = m->incarnation;
  lent_of(to)->fetched = false;
  e->loan.corr = weft_ask(
      ctx, m->actor,
      weft_msg_make(ctx,
                    &(weft_w_lend){ .h.type = WEFT_MSG_W_LEND,
                                    .boot = e->args.boot_id,
                                    .incarnation = m->incarnation,
                                    .epoch = e->epoch_last,
                                    .op = e->loan.op,
                                    .sequence = e->visible.weights_sequence,
                                    .digest_hi = to->digest_hi,
                                    .digest_lo = to->digest_lo,
                                    .towards = { towards, (uint32_t)strlen(towards) } }
                         .h),
      LEND_MS);
}

static void ask_borrower(weft_ctx *ctx, engine *e, weft_buf *info)
{
  const engine_member *to = &e->members[e->loan.borrower];
  e->loan.stage = LOAN_FETCHED;
  e->loan.op = ++e->op_last;
  e->loan.corr = weft_ask(
      ctx, to->actor,
      weft_msg_make(ctx, &(weft_w_fetch){ .h.type = WEFT_MSG_W_FETCH,
                                          .boot = e->args.boot_id,
                                          .incarnation = to->incarnation,
                                          .epoch = e->epoch_last,
                                          .op = e->loan.op,
                                          .sequence = e->visible.weights_sequence,
                                          .digest_hi = to->digest_hi,
                                          .digest_lo = to->digest_lo,
                                          .timeout_ms = WEFTI_LOAN_MS,
                                          .info = info }
                              .h),
      WEFTI_LOAN_MS + LEND_MS);
  weft_log(ctx, WEFT_LOG_INFO, "rank %" PRIu32 " gets its weights from rank %" PRIu32,
           e->loan.borrower, e->loan.lender);
  engine_event_status(ctx, e);
}

static void on_refused(weft_ctx *ctx, engine *e, const weft_w_refused *r)
{
  if (r->err == WEFT_E_UNSUPPORTED) {
    if (e->loan.stage == LOAN_ASKED) {
      lent_of(&e->members[e->loan.lender])->cannot_lend = true;
    } else {
      lent_of(&e->members[e->loan.borrower])->cannot_fetch = true;
    }
  }
  failed(ctx, e, r->text.len > 0 ? r->text.p : "refused",
         r->text.len > 0 ? r->text.len : (uint32_t)strlen("refused"));
}

/* Its next heartbeat says that it has them. */
static void got_them(weft_ctx *ctx, engine *e)
{
  const uint32_t rank = e->loan.borrower;
  end(ctx, e);
  engine_lent *l = lent_of(&e->members[rank]);
  l->failures = 0;
  l->fetched = true;
  l->why[0] = '\0';
  l->not_before_ms = weft_now_ms(ctx) + AGAIN_MS + 4 * (uint64_t)e->args.beat_ms;
  engine_beat(ctx, e, rank);
}

static bool is_of_loan(const engine *e, uint64_t boot, uint64_t incarnation, uint64_t op)
{
  const engine_loan *l = &e->loan;
  return boot == e->args.boot_id && op == l->op &&
         incarnation ==
             (l->stage == LOAN_ASKED ? l->lender_incarnation : l->borrower_incarnation);
}

bool engine_lend_answer(weft_ctx *ctx, engine *e, const weft_msg *msg)
{
  if (e->loan.stage == LOAN_NONE || e->loan.corr == 0 || msg->corr != e->loan.corr) {
    return false;
  }
  e->loan.corr = 0;
  const weft_w_refused *r = (const weft_w_refused *)msg;
  const weft_w_answer *a = (const weft_w_answer *)msg;
  const weft_w_ok *ok = (const weft_w_ok *)msg;
  if (msg->type == WEFT_MSG_W_REFUSED && is_of_loan(e, r->boot, r->incarnation, r->op)) {
    on_refused(ctx, e, r);
  } else if (e->loan.stage == LOAN_ASKED && msg->type == WEFT_MSG_W_ANSWER &&
             is_of_loan(e, a->boot, a->incarnation, a->op) && a->json != NULL) {
    ask_borrower(ctx, e, a->json);
  } else if (e->loan.stage == LOAN_FETCHED && msg->type == WEFT_MSG_W_OK &&
             is_of_loan(e, ok->boot, ok->incarnation, ok->op)) {
    got_them(ctx, e);
  } else {
    failed_for(ctx, e,
               e->loan.stage == LOAN_ASKED ? "the lender does not answer"
                                           : "it does not answer");
  }
  return true;
}

/* ---- when */

/* A lender that has died since was the reason of the failure, most likely, and the next
 * one knows nothing of it. */
static bool has_to_wait(weft_ctx *ctx, const engine *e, const engine_lent *l)
{
  return weft_now_ms(ctx) < l->not_before_ms &&
         (l->fetched || is_still(e, l->last_lender, l->lender_incarnation));
}

/* The lender's end is seen by the one that it lends to, which says so, too: it waits for
 * nothing. */
static void look_at_loan(weft_ctx *ctx, engine *e)
{
  const engine_loan *l = &e->loan;
  if (!is_still(e, l->borrower, l->borrower_incarnation) ||
      e->members[l->borrower].state == MEMBER_READY) {
    end(ctx, e);
  } else if (!may_lend_now(e)) { /* nobody's failure */
    lent_of(&e->members[l->borrower])->not_before_ms = weft_now_ms(ctx) + AGAIN_MS;
    end(ctx, e);
  } else if (l->stage == LOAN_ASKED && !is_still(e, l->lender, l->lender_incarnation)) {
    failed_for(ctx, e, "the lender is down");
  } else if (l->corr == 0) {
    failed_for(ctx, e, "out of memory");
  }
}

void engine_lend_look(weft_ctx *ctx, engine *e)
{
  if (e->loan.stage != LOAN_NONE) {
    look_at_loan(ctx, e);
  }
  for (uint32_t i = 0; i < e->world && e->loan.stage == LOAN_NONE; i++) {
    engine_member *to = &e->members[i];
    if (!lacks(to) || !may_lend_now(e)) {
      continue;
    }
    const engine_lent *l = lent_of(to);
    if (l->cannot_fetch || has_to_wait(ctx, e, l) ||
        to->reported.phase != WEFT_WORKER_IDLE) {
      continue;
    }
    const engine_member *lender = choose_lender(e, to);
    if (lender != NULL) {
      ask_lender(ctx, e, to, lender);
    }
  }
}

/* ---- for people */

/* Does a rank hold the set that said it cannot lend it? */
static bool none_can(const engine *e, const engine_member *m)
{
  bool refused = false;
  for (uint32_t i = 0; i < e->world; i++) {
    const engine_member *o = &e->members[i];
    if (o->rank == m->rank || o->state != MEMBER_READY || !same_set(o, m)) {
      continue;
    }
    if (could_lend(o, m)) {
      return false;
    }
    refused = true;
  }
  return refused;
}

void engine_lend_text(const engine *e, const engine_member *m, char *out, size_t cap)
{
  const bool known = m->lent.incarnation == m->incarnation;
  if (e->loan.stage == LOAN_FETCHED && e->loan.borrower == m->rank) {
    (void)snprintf(out, cap, "it gets its weights from rank %" PRIu32, e->loan.lender);
  } else if (m->reported.phase == WEFT_WORKER_MAPPING) {
    (void)snprintf(out, cap, "it maps its weights again");
  } else if (lacks(m) && e->fleet.replicas == NULL &&
             ((known && m->lent.cannot_fetch) || none_can(e, m))) {
    (void)snprintf(out, cap,
                   "no rank can lend it its weights: a full update brings it back");
  } else if (lacks(m) && known && m->lent.why[0] != '\0') {
    (void)snprintf(out, cap,
                   "it has no weights, and did not get them from rank %" PRIu32
                   ": %s; it is tried again, or a full update brings it back",
                   m->lent.last_lender, m->lent.why);
  } else {
    (void)snprintf(out, cap, "it has no weights; a full update brings it back");
  }
}
