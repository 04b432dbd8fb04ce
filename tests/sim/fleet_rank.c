/* A rank of a replica: the worker's protocol without bytes. */
#include "fleet_parties.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENV(q)                                                                           \
  .boot = (q)->boot, .incarnation = (q)->incarnation, .epoch = (q)->epoch, .op = (q)->op

static void rank_refuse(weft_ctx *ctx, const weft_w_go *q, weft_err err, const char *text)
{
  const weft_w_refused m = { .h.type = WEFT_MSG_W_REFUSED,
                             ENV(q),
                             .err = err,
                             .text = { text, (uint32_t)strlen(text) } };
  (void)weft_reply(ctx, weft_return_of(&q->h), weft_msg_make(ctx, &m.h));
}

static void rank_ok(weft_ctx *ctx, const fleet_rank *r, const weft_w_go *q)
{
  const weft_w_ok m = { .h.type = WEFT_MSG_W_OK,
                        ENV(q),
                        .tensors = 1,
                        .bytes = 8,
                        .elapsed_us = 5,
                        .poisoned = r->dirty };
  (void)weft_reply(ctx, weft_return_of(&q->h), weft_msg_make(ctx, &m.h));
}

static void rank_state(weft_ctx *ctx, const fleet_rank *r, weft_return to,
                       const weft_w_go *q)
{
  const weft_w_state m = { .h.type = WEFT_MSG_W_STATE,
                           ENV(q),
                           .weights_sequence = r->dirty != 0 ? 0 : r->sequence,
                           .digest_hi = r->dirty != 0 ? 0 : r->live,
                           .digest_lo = r->dirty != 0 ? 0 : r->live,
                           .poisoned = r->dirty,
                           .stamp_ns = weft_boottime_ns(ctx),
                           .pid = 1 };
  (void)weft_reply(ctx, to, weft_msg_make(ctx, &m.h));
}

static void rank_publish(weft_ctx *ctx, const fleet_rank_args *s, fleet_rank *r,
                         const weft_w_publish *m)
{
  const weft_w_go *q = (const weft_w_go *)m;
  if (m->sequence > r->sequence && (r->epoch != m->epoch || r->installed == 0)) {
    rank_refuse(ctx, q, WEFT_E_STALE, "nothing of that epoch is installed");
    return;
  }
  if (m->sequence > r->sequence && s->e->w->strict &&
      !fleet_is_recorded(s->e->w, r->installed)) {
    fleet_break(s->e->w, "I1: replica %u publishes what is not recorded", s->e->index);
  }
  if (m->sequence > r->sequence) {
    r->live = r->installed;
    r->sequence = m->sequence;
    r->dirty = 0;
    r->ended = r->epoch;
    r->epoch = 0;
    r->installed = 0;
  }
  rank_ok(ctx, r, q);
}

static void rank_finish(weft_ctx *ctx, fleet_rank *r, const weft_w_go *q)
{
  r->installed = r->staged ^ r->flip;
  const weft_w_finished m = { .h.type = WEFT_MSG_W_FINISHED,
                              ENV(q),
                              .digest_hi = r->installed,
                              .digest_lo = r->installed,
                              .tensors = 1,
                              .bytes = 8,
                              .received = 1,
                              .received_bytes = 8 };
  (void)weft_reply(ctx, weft_return_of(&q->h), weft_msg_make(ctx, &m.h));
}

/* Ranks of two replicas with one number would hide each other's checksums, and take each
 * other's place in a sender's process group. */
static void check_place(const fleet_rank_args *s, const fleet_rank *r)
{
  const wefti_upstream *u = &s->e->upstream;
  if (u->size != 0 && r->dp != u->rank) {
    fleet_break(s->e->w, "rank %u of replica %u of %u has dp_index %u in a session",
                s->rank, u->rank, u->size, r->dp);
  }
}

static void rank_session(weft_ctx *ctx, const fleet_rank_args *s, fleet_rank *r,
                         const weft_msg *msg)
{
  const weft_w_go *q = (const weft_w_go *)msg;
  check_place(s, r);
  if (q->epoch <= r->ended) {
    rank_refuse(ctx, q, WEFT_E_STALE, "that epoch has ended");
  } else if (msg->type == WEFT_MSG_W_START) {
    r->epoch = q->epoch;
    r->staged = r->live;
    rank_ok(ctx, r, q);
  } else if (msg->type == WEFT_MSG_W_ACCEPT &&
             ((const weft_w_accept *)msg)->what == WEFT_TRANSFER_INIT) {
    rank_ok(ctx, r, q);
  } else if (msg->type == WEFT_MSG_W_GO &&
             ((const weft_w_go *)msg)->what == WEFT_TRANSFER_INIT) {
    rank_ok(ctx, r, q);
  } else if (r->epoch != q->epoch) {
    rank_refuse(ctx, q, WEFT_E_STATE, "no session");
  } else if (msg->type == WEFT_MSG_W_ACCEPT) {
    const weft_buf *info = ((const weft_w_accept *)msg)->info;
    r->staged = fleet_hash(info->data, info->len);
    rank_ok(ctx, r, q);
  } else if (msg->type == WEFT_MSG_W_GO) {
    r->dirty = s->e->w->inplace ? q->epoch : 0;
    rank_ok(ctx, r, q);
  } else {
    rank_finish(ctx, r, q);
  }
}

static void rank_adopt(fleet_rank *r, const weft_w_go *q)
{
  if (r->boot != q->boot) {
    r->boot = q->boot;
    r->sequence = 0;
    r->live = 0;
    r->ended = 0;
  }
  if (r->epoch != 0 && r->epoch <= q->epoch) {
    r->epoch = 0;
    r->installed = 0;
  }
  r->ended = q->epoch > r->ended ? q->epoch : r->ended;
  r->dp = ((const weft_w_adopt *)q)->dp_index;
}

static void rank_query(weft_ctx *ctx, const fleet_rank_args *s, const fleet_rank *r,
                       const weft_w_query *m)
{
  char text[96];
  const int n = m->what == WEFT_QUERY_WEIGHTS
                    ? snprintf(text, sizeof text,
                               "[{\"name\":\"w\",\"bytes\":%" PRIx64 "}]", r->live)
                    : snprintf(text, sizeof text, "{\"dp%u:w%u\":\"%" PRIx64 "\"}", r->dp,
                               s->rank, r->live);
  weft_buf *json = weft_buf_create(text, (size_t)n);
  const weft_w_answer a = { .h.type = WEFT_MSG_W_ANSWER, ENV(m), .json = json };
  (void)weft_reply(ctx, weft_return_of(&m->h), weft_msg_make(ctx, &a.h));
  weft_buf_unref(json);
}

/* An adoption is not always answered at once: meanwhile the fleet's own may come. */
static void rank_adopt_late(weft_ctx *ctx, const fleet_rank_args *s, fleet_rank *r,
                            const weft_w_go *q)
{
  rank_adopt(r, q);
  if (s->e->w->late_frames && weft_random(ctx) % 4 == 0) {
    r->late = weft_return_of(&q->h);
    r->late_of = *(const weft_w_adopt *)q;
    (void)weft_timer_start(ctx, 1 + weft_random(ctx) % 300, 0);
  } else {
    rank_state(ctx, r, weft_return_of(&q->h), q);
  }
}

/* … but before what was asked after it. */
static void rank_catch_up(weft_ctx *ctx, fleet_rank *r)
{
  if (r->late_of.h.type != 0) {
    rank_state(ctx, r, r->late, (const weft_w_go *)&r->late_of);
    r->late_of.h.type = 0;
  }
}

static weft_err rank_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  const fleet_rank_args *s = self;
  fleet_rank *r = &s->e->ranks[s->rank];
  const weft_w_go *q = (const weft_w_go *)msg;
  if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  }
  if (r->incarnation != s->incarnation) {
    return WEFT_OK;
  }
  rank_catch_up(ctx, r);
  if (msg->type < WEFT_MSG_W_ADOPT || msg->type > WEFT_MSG_W_QUERY ||
      msg->type == r->mute) {
    return WEFT_OK;
  }
  if (msg->type == r->refuse) {
    r->refuse = 0;
    rank_refuse(ctx, q, WEFT_E_FAILED, "made to refuse");
    return WEFT_OK;
  }
  if (msg->type == r->die) {
    r->die = 0;
    weft_stop(ctx, WEFT_E_FAILED);
    return WEFT_OK;
  }
  switch (msg->type) {
  case WEFT_MSG_W_ADOPT:
    rank_adopt_late(ctx, s, r, q);
    break;
  case WEFT_MSG_W_BEAT: {
    const weft_w_beat *b = (const weft_w_beat *)msg;
    const uint64_t until = b->echo_ns + (uint64_t)b->grant_ms * 1000000;
    r->until_ns = b->grant != 0 && until > r->until_ns ? until : r->until_ns;
    rank_state(ctx, r, weft_return_of(&q->h), q);
    break;
  }
  case WEFT_MSG_W_PUBLISH:
    rank_publish(ctx, s, r, (const weft_w_publish *)msg);
    break;
  case WEFT_MSG_W_ABORT:
    r->epoch = r->epoch <= q->epoch ? 0 : r->epoch;
    r->installed = r->epoch == 0 ? 0 : r->installed;
    r->ended = q->epoch > r->ended ? q->epoch : r->ended;
    rank_ok(ctx, r, q);
    break;
  case WEFT_MSG_W_QUERY:
    rank_query(ctx, s, r, (const weft_w_query *)msg);
    break;
  default:
    rank_session(ctx, s, r, msg);
    break;
  }
  return WEFT_OK;
}

static weft_err copy_self(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  *(fleet_rank_args *)self = *(const fleet_rank_args *)args;
  return WEFT_OK;
}

const weft_actor_class fleet_rank_class = { "rank", sizeof(fleet_rank_args), copy_self,
                                            NULL, rank_on };
