#include "fleet_world.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fleet_break(fleet_world *w, const char *fmt, ...)
{
  if (w->broken) {
    return;
  }
  va_list ap;
  va_start(ap, fmt);
  (void)vsnprintf(w->why, sizeof w->why, fmt, ap);
  va_end(ap);
  w->broken = true;
}

static void to_kill(fleet_world *w, unsigned engine)
{
  if (w->kill_count < sizeof w->kill / sizeof w->kill[0]) {
    w->kill[w->kill_count++] = engine;
  }
}

static uint64_t hash(const void *data, size_t len)
{
  const uint8_t *p = data;
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < len; i++) {
    h = (h ^ p[i]) * 0x100000001b3u;
  }
  return h;
}

/* ---- a rank: the worker's protocol without bytes */

typedef struct rank_self {
  fleet_engine *e;
  unsigned rank;
  uint64_t incarnation;
} rank_self;

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

static void rank_ok(weft_ctx *ctx, const weft_w_go *q)
{
  const weft_w_ok m = {
    .h.type = WEFT_MSG_W_OK, ENV(q), .tensors = 1, .bytes = 8, .elapsed_us = 5
  };
  (void)weft_reply(ctx, weft_return_of(&q->h), weft_msg_make(ctx, &m.h));
}

static void rank_state(weft_ctx *ctx, const fleet_rank *r, const weft_w_go *q)
{
  const weft_w_state m = { .h.type = WEFT_MSG_W_STATE,
                           ENV(q),
                           .weights_sequence = r->sequence,
                           .digest_hi = r->live,
                           .digest_lo = r->live,
                           .stamp_ns = weft_boottime_ns(ctx),
                           .pid = 1 };
  (void)weft_reply(ctx, weft_return_of(&q->h), weft_msg_make(ctx, &m.h));
}

static void rank_publish(weft_ctx *ctx, fleet_rank *r, const weft_w_publish *m)
{
  const weft_w_go *q = (const weft_w_go *)m;
  if (m->sequence > r->sequence && (r->epoch != m->epoch || r->installed == 0)) {
    rank_refuse(ctx, q, WEFT_E_STALE, "nothing of that epoch is installed");
    return;
  }
  if (m->sequence > r->sequence) {
    r->live = r->installed;
    r->sequence = m->sequence;
    r->ended = r->epoch;
    r->epoch = 0;
    r->installed = 0;
  }
  rank_ok(ctx, q);
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

static void rank_session(weft_ctx *ctx, fleet_rank *r, const weft_msg *msg)
{
  const weft_w_go *q = (const weft_w_go *)msg;
  if (q->epoch <= r->ended) {
    rank_refuse(ctx, q, WEFT_E_STALE, "that epoch has ended");
  } else if (msg->type == WEFT_MSG_W_START) {
    r->epoch = q->epoch;
    r->staged = r->live;
    rank_ok(ctx, q);
  } else if (msg->type == WEFT_MSG_W_ACCEPT &&
             ((const weft_w_accept *)msg)->what == WEFT_TRANSFER_INIT) {
    rank_ok(ctx, q);
  } else if (msg->type == WEFT_MSG_W_GO &&
             ((const weft_w_go *)msg)->what == WEFT_TRANSFER_INIT) {
    rank_ok(ctx, q);
  } else if (r->epoch != q->epoch) {
    rank_refuse(ctx, q, WEFT_E_STATE, "no session");
  } else if (msg->type == WEFT_MSG_W_ACCEPT) {
    const weft_buf *info = ((const weft_w_accept *)msg)->info;
    r->staged = hash(info->data, info->len);
    rank_ok(ctx, q);
  } else if (msg->type == WEFT_MSG_W_GO) {
    rank_ok(ctx, q);
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

static void rank_query(weft_ctx *ctx, const rank_self *s, const fleet_rank *r,
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

static weft_err rank_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  const rank_self *s = self;
  fleet_rank *r = &s->e->ranks[s->rank];
  const weft_w_go *q = (const weft_w_go *)msg;
  if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  }
  if (msg->type < WEFT_MSG_W_ADOPT || msg->type > WEFT_MSG_W_QUERY ||
      r->incarnation != s->incarnation || msg->type == r->mute) {
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
    rank_adopt(r, q);
    rank_state(ctx, r, q);
    break;
  case WEFT_MSG_W_BEAT: {
    const weft_w_beat *b = (const weft_w_beat *)msg;
    const uint64_t until = b->echo_ns + (uint64_t)b->grant_ms * 1000000;
    r->until_ns = b->grant != 0 && until > r->until_ns ? until : r->until_ns;
    rank_state(ctx, r, q);
    break;
  }
  case WEFT_MSG_W_PUBLISH:
    rank_publish(ctx, r, (const weft_w_publish *)msg);
    break;
  case WEFT_MSG_W_ABORT:
    r->epoch = r->epoch <= q->epoch ? 0 : r->epoch;
    r->installed = r->epoch == 0 ? 0 : r->installed;
    r->ended = q->epoch > r->ended ? q->epoch : r->ended;
    rank_ok(ctx, q);
    break;
  case WEFT_MSG_W_QUERY:
    rank_query(ctx, s, r, (const weft_w_query *)msg);
    break;
  default:
    rank_session(ctx, r, msg);
    break;
  }
  return WEFT_OK;
}

static weft_err copy_self(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  *(rank_self *)self = *(const rank_self *)args;
  return WEFT_OK;
}

static const weft_actor_class rank_class = { "rank", sizeof(rank_self), copy_self, NULL,
                                             rank_on };

/* ---- a journal: records that outlive the engine */

static void record_free(weft_journal_record *r)
{
  free((char *)(uintptr_t)r->version);
  free((char *)(uintptr_t)r->operation);
  free((char *)(uintptr_t)r->text);
  free((char *)(uintptr_t)r->fleet);
}

static char *text_of(weft_str s)
{
  char *copy = calloc(1, (size_t)s.len + 1);
  if (copy == NULL) {
    abort();
  }
  if (s.len > 0) {
    memcpy(copy, s.p, s.len);
  }
  return copy;
}

static void journal_keep(fleet_engine *e, const weft_journal_append *m)
{
  fleet_journal *j = &e->journal;
  const bool commit =
      m->kind == WEFT_RECORD_COMMIT_WEIGHTS || m->kind == WEFT_RECORD_COMMIT_LABEL;
  for (unsigned i = 0; i < j->count && commit; i++) {
    if (j->records[i].sequence == m->sequence && j->durable[i]) {
      return; /* asked again: it is there */
    }
  }
  if (j->count == FLEET_RECORDS_MAX) {
    fleet_break(e->w, "the test's journal is full");
    return;
  }
  j->records[j->count] = (weft_journal_record){ .kind = (weft_journal_kind)m->kind,
                                                .declared = m->declared != 0,
                                                .boot_id = e->boot,
                                                .epoch = m->epoch,
                                                .sequence = m->sequence,
                                                .weights_sequence = m->weights_sequence,
                                                .digest_hi = m->digest_hi,
                                                .digest_lo = m->digest_lo,
                                                .at_ms = m->at_ms,
                                                .tensors = m->tensors,
                                                .bytes = m->bytes,
                                                .version = text_of(m->version),
                                                .operation = text_of(m->operation),
                                                .text = text_of(m->text),
                                                .fleet = text_of(m->fleet),
                                                .fleet_boot = m->fleet_boot,
                                                .fleet_epoch = m->fleet_epoch,
                                                .fleet_sequence = m->fleet_sequence };
  j->durable[j->count++] = false;
}

static void journal_answer(weft_ctx *ctx, fleet_engine *e, weft_return to)
{
  fleet_journal *j = &e->journal;
  const weft_journal_done done = { .h.type = WEFT_MSG_JOURNAL_DONE,
                                   .err = j->fail_once ? WEFT_E_SYS : WEFT_OK,
                                   .text = WEFT_STR("fsync failed") };
  for (unsigned i = 0; i < j->count && !j->fail_once; i++) {
    j->durable[i] = true;
  }
  j->fail_once = false;
  (void)weft_reply(ctx, to, weft_msg_make(ctx, &done.h));
}

static weft_err journal_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  fleet_engine *e = *(fleet_engine *const *)self;
  if (msg->type == WEFT_MSG_JOURNAL_APPEND) {
    journal_keep(e, (const weft_journal_append *)msg);
    if (msg->corr != 0 && e->journal.hang) {
      e->journal.held = weft_return_of(msg);
    } else if (msg->corr != 0) {
      journal_answer(ctx, e, weft_return_of(msg));
    }
  } else if (msg->type == WEFT_MSG_CLIENT_GONE) { /* the test lets go of it */
    if (e->journal.held.corr != 0) {
      journal_answer(ctx, e, e->journal.held);
      e->journal.held = (weft_return){ 0 };
    }
  }
  return WEFT_OK;
}

static weft_err take_pointer(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  *(void **)self = *(void *const *)args;
  return WEFT_OK;
}

static const weft_actor_class journal_class = { "journal", sizeof(void *), take_pointer,
                                                NULL, journal_on };

/* What a restart finds: what was said to be durable. */
static void journal_crash(fleet_journal *j)
{
  unsigned kept = 0;
  for (unsigned i = 0; i < j->count; i++) {
    if (j->durable[i]) {
      j->records[kept] = j->records[i];
      j->durable[kept++] = true;
    } else {
      record_free(&j->records[i]);
    }
  }
  j->count = kept;
  j->held = (weft_return){ 0 };
}

/* ---- a link: questions go through, unless the test has other plans */

enum { LINK_OPEN_MAX = 64 };

typedef struct link_self {
  fleet_engine *e;
  struct {
    weft_return back;
    uint64_t corr;
    uint16_t type;
    weft_msg *answer; /* slow: on its way back */
  } open[LINK_OPEN_MAX];
} link_self;

static void link_pass(weft_ctx *ctx, link_self *s, const weft_msg *msg, weft_return back)
{
  for (unsigned i = 0; i < LINK_OPEN_MAX; i++) {
    if (s->open[i].type == 0) {
      weft_msg *copy = weft_msg_make(ctx, msg);
      copy->corr = 0;
      copy->due_ms = 0;
      s->open[i].back = back;
      s->open[i].type = msg->type;
      s->open[i].corr = weft_ask(ctx, s->e->actor, copy, 60000);
      return;
    }
  }
  fleet_break(s->e->w, "the test's link is full");
}

static void link_question(weft_ctx *ctx, link_self *s, const weft_msg *msg)
{
  fleet_engine *e = s->e;
  const uint16_t type = msg->type;
  if (e->cut || !e->alive) {
    return;
  }
  if (type == e->coordinator_crash) {
    e->coordinator_crash = 0;
    to_kill(e->w, FLEET_COORDINATOR);
  }
  if (type == e->lose_question) {
    e->lose_question = 0;
    return;
  }
  if (type == e->crash_before) {
    e->crash_before = 0;
    to_kill(e->w, e->index);
    return;
  }
  if (type == e->double_question) {
    e->double_question = 0;
    link_pass(ctx, s, msg, (weft_return){ 0 });
  }
  link_pass(ctx, s, msg, weft_return_of(msg));
}

static void link_answer(weft_ctx *ctx, link_self *s, const weft_msg *msg)
{
  fleet_engine *e = s->e;
  for (unsigned i = 0; i < LINK_OPEN_MAX; i++) {
    if (s->open[i].type == 0 || s->open[i].corr != msg->corr) {
      continue;
    }
    const uint16_t type = s->open[i].type;
    const weft_return back = s->open[i].back;
    s->open[i].type = 0;
    if (type == e->crash_after) {
      e->crash_after = 0;
      to_kill(e->w, e->index);
      return;
    }
    if (e->cut || msg->type == WEFT_MSG_ASK_FAILED) {
      return;
    }
    if (type == e->lose_answer) {
      e->lose_answer = 0;
      return;
    }
    weft_msg *copy = weft_msg_make(ctx, msg);
    (void)weft_reply(ctx, back, copy);
    return;
  }
}

static weft_err link_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  link_self *s = self;
  if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
  } else if (msg->type == WEFT_MSG_ASK_FAILED || (msg->flags & WEFT_MSG_F_REPLY) != 0) {
    link_answer(ctx, s, msg);
  } else if (msg->corr != 0) {
    link_question(ctx, s, msg);
  }
  return WEFT_OK;
}

static const weft_actor_class link_class = { "link", sizeof(link_self), take_pointer,
                                             NULL, link_on };

/* ---- the coordinator's supervisor: invites, tells who came and went */

enum { INVITE_MS = 300 };

typedef struct super_self {
  fleet_world *w;
} super_self;

static void tell_down(weft_ctx *ctx, fleet_world *w, unsigned i, const char *why)
{
  const weft_member_down m = { .h.type = WEFT_MSG_MEMBER_DOWN,
                               .h.flags = WEFT_MSG_F_RESERVED,
                               .rank = i,
                               .incarnation = w->engines[i].link_boot,
                               .why = { why, (uint32_t)strlen(why) } };
  (void)weft_send(ctx, w->engines[FLEET_COORDINATOR].actor, weft_msg_make(ctx, &m.h));
}

static void invite(weft_ctx *ctx, fleet_world *w, unsigned i)
{
  fleet_engine *e = &w->engines[i];
  fleet_engine *self = e;
  if (e->link != 0 || !e->alive || e->cut || (w->no_rejoin & (1u << i)) != 0 ||
      !w->engines[FLEET_COORDINATOR].alive ||
      weft_spawn(ctx, &link_class, &self, NULL, &e->link) != WEFT_OK) {
    return;
  }
  const weft_member_up m = { .h.type = WEFT_MSG_MEMBER_UP,
                             .h.flags = WEFT_MSG_F_RESERVED,
                             .rank = i,
                             .incarnation = e->boot,
                             .kind = WEFT_MEMBER_JOINED,
                             .actor = e->link,
                             .pid = 1 };
  e->link_boot = e->boot;
  (void)weft_send(ctx, w->engines[FLEET_COORDINATOR].actor, weft_msg_make(ctx, &m.h));
}

static weft_err super_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  fleet_world *w = ((super_self *)self)->w;
  if (msg->type == WEFT_MSG_TIMER) {
    for (unsigned i = 0; i < w->replicas; i++) {
      fleet_engine *e = &w->engines[i];
      if (e->link != 0 && (!e->alive || e->link_boot != e->boot)) {
        weft_stop_other(ctx, e->link);
        e->link = 0;
        tell_down(ctx, w, i, "its connection closed");
      }
      invite(ctx, w, i);
    }
    (void)weft_timer_start(ctx, INVITE_MS, 0);
  } else if (msg->type == WEFT_MSG_MEMBER_FENCE) {
    const weft_member_fence *m = (const weft_member_fence *)msg;
    fleet_engine *e = &w->engines[m->rank];
    if (e->link != 0 && e->link_boot == m->incarnation) {
      weft_stop_other(ctx, e->link);
      e->link = 0;
      tell_down(ctx, w, m->rank, "was dropped");
    }
  }
  return WEFT_OK;
}

static weft_err super_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)take_pointer(ctx, self, args);
  return weft_timer_start(ctx, 1, 0) != 0 ? WEFT_OK : WEFT_E_NOMEM;
}

static const weft_actor_class super_class = { "super", sizeof(super_self), super_init,
                                              NULL, super_on };

/* ---- clients: CLIENT_GONE's caller is the engine that the next message is for */

typedef struct client_self {
  fleet_world *w;
  unsigned index;
  weft_actor_id to;
} client_self;

static void copy_str(char *out, size_t cap, weft_str s)
{
  (void)snprintf(out, cap, "%.*s", (int)s.len, s.p == NULL ? "" : s.p);
}

static weft_err client_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  client_self *s = self;
  fleet_answer *a = &s->w->answers[s->index];
  if (msg->type == WEFT_MSG_CLIENT_DONE) {
    const weft_client_done *d = (const weft_client_done *)msg;
    a->came = true;
    a->err = (weft_err)d->err;
    a->outcome = (weft_outcome)d->outcome;
    a->sequence = d->sequence;
    a->at_ms = weft_now_ms(ctx);
    copy_str(a->message, sizeof a->message, d->message);
    copy_str(a->culprits, sizeof a->culprits, d->culprits);
    copy_str(a->version, sizeof a->version, d->version);
    copy_str(a->fenced, sizeof a->fenced, d->fenced);
    copy_str(a->session, sizeof a->session, d->session);
    (void)snprintf(a->body, sizeof a->body, "%.*s",
                   d->body == NULL ? 0 : (int)d->body->len,
                   d->body == NULL ? "" : (const char *)d->body->data);
  } else if (msg->type == WEFT_MSG_ASK_FAILED) {
    a->came = true; /* its engine has crashed */
    a->err = (weft_err)((const weft_ask_failed_msg *)msg)->reason;
    a->outcome = WEFT_OUTCOME_UNKNOWN;
    if (a->err == WEFT_E_TIMEOUT) {
      fleet_break(s->w, "I5: client %u was never answered", s->index);
    }
  } else if (msg->type == WEFT_MSG_CLIENT_GONE) {
    s->to = ((const weft_client_gone *)msg)->caller;
  } else if (msg->type < WEFT_MSG_CLIENT_DONE || msg->type == WEFT_MSG_CLIENT_RESOLVE) {
    a->asked_ms = weft_now_ms(ctx);
    (void)weft_ask(ctx, s->to, weft_msg_make(ctx, msg), 400000);
  }
  return WEFT_OK;
}

static weft_err client_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  *(client_self *)self = *(const client_self *)args;
  return WEFT_OK;
}

static const weft_actor_class client_class = { "client", sizeof(client_self), client_init,
                                               NULL, client_on };

/* ---- invariants */

bool fleet_serves(const fleet_world *w, unsigned replica, unsigned rank)
{
  const fleet_rank *r = &w->engines[replica].ranks[rank];
  return r->alive && r->sequence != 0 && weft_sim_now_ms(w->sim) * 1000000 < r->until_ns;
}

static int age_of(const fleet_world *w, uint64_t content)
{
  for (unsigned i = w->change_count; i > 0; i--) {
    if (w->changes[i - 1] == content) {
      return (int)i;
    }
  }
  return 0;
}

/* What an earlier life of the coordinator has recorded is shown without its being told of
 * again. */
static void note_recorded(fleet_world *w, uint64_t content)
{
  const fleet_journal *j = &w->engines[FLEET_COORDINATOR].journal;
  for (unsigned i = 0; i < j->count && age_of(w, content) == 0; i++) {
    if (j->records[i].kind == WEFT_JOURNAL_WEIGHTS && j->durable[i] &&
        j->records[i].digest_hi == content && w->change_count < FLEET_CHANGES_MAX) {
      w->changes[w->change_count++] = content;
    }
  }
}

static void on_visible(void *arg, const wefti_visible *v)
{
  fleet_engine *e = arg;
  fleet_world *w = e->w;
  const uint64_t before = e->shown == 0 ? e->first_sequence - 1 : e->visible.sequence;
  if (v->sequence != before + 1) {
    fleet_break(w, "I4: engine %u shows %" PRIu64 " after %" PRIu64, e->index,
                v->sequence, before);
  }
  if (e->index == FLEET_COORDINATOR && w->change_count < FLEET_CHANGES_MAX &&
      v->weights_sequence == v->sequence) {
    w->changes[w->change_count++] = v->digest_hi;
  } else {
    note_recorded(w, v->digest_hi);
  }
  if (e->index != FLEET_COORDINATOR && w->change_count > 0 &&
      w->engines[FLEET_COORDINATOR].alive &&
      e->upstream.boot == w->engines[FLEET_COORDINATOR].boot &&
      v->weights_sequence == v->sequence && age_of(w, v->digest_hi) == 0) {
    fleet_break(w, "replica %u shows what the coordinator has not", e->index);
  }
  e->visible = *v;
  (void)snprintf(e->version, sizeof e->version, "%s", v->version);
  e->visible.version = e->version;
  e->shown++;
}

static void on_upstream(void *arg, const wefti_upstream *u)
{
  fleet_engine *e = arg;
  e->upstream = *u;
}

/* I8: what is visible at the coordinator is not served older by any rank of any replica.
 */
static void check_step(void *arg, const weft_msg *delivered)
{
  fleet_world *w = arg;
  (void)delivered;
  for (unsigned i = 0; i < w->replicas && w->change_count > 0; i++) {
    for (unsigned k = 0; k < w->ranks; k++) {
      const fleet_rank *r = &w->engines[i].ranks[k];
      const int age = age_of(w, r->live);
      if (fleet_serves(w, i, k) && age != 0 && age < (int)w->change_count &&
          r->live != w->changes[w->change_count - 1]) {
        fleet_break(w, "I8: change %u is visible, replica %u rank %u serves change %d",
                    w->change_count, i, k, age);
      }
    }
  }
}

/* ---- the world */

static weft_err bring_rank(fleet_world *w, fleet_engine *e, unsigned rank)
{
  fleet_rank *r = &e->ranks[rank];
  const rank_self args = { e, rank, ++w->lives * 64 + rank };
  *r = (fleet_rank){ .incarnation = args.incarnation, .alive = true };
  const weft_err err = weft_sim_spawn(w->sim, &rank_class, &args, NULL, &r->actor);
  const weft_member_up up = { .h.type = WEFT_MSG_MEMBER_UP,
                              .rank = rank,
                              .incarnation = r->incarnation,
                              .kind = WEFT_MEMBER_THREAD,
                              .actor = r->actor,
                              .pid = 1 };
  return err != WEFT_OK ? err : weft_sim_send(w->sim, e->actor, &up.h);
}

static uint64_t last_sequence(const fleet_journal *j)
{
  uint64_t last = 0;
  for (unsigned i = 0; i < j->count; i++) {
    last = j->records[i].sequence > last ? j->records[i].sequence : last;
  }
  return last;
}

void fleet_restart(fleet_world *w, unsigned index)
{
  fleet_engine *e = &w->engines[index];
  const bool coordinator = index == FLEET_COORDINATOR;
  fleet_engine *self = e;
  const weft_journal_record *history[FLEET_RECORDS_MAX];
  char id[32];
  for (unsigned i = 0; i < e->journal.count; i++) {
    history[i] = &e->journal.records[i];
  }
  (void)snprintf(id, sizeof id, "replica-%u", index);
  e->boot = 0x1000 * (index + 1) + ++e->journal.lives;
  e->first_sequence = last_sequence(&e->journal) + 1;
  e->shown = 0;
  e->upstream = (wefti_upstream){ .fleet = "" };
  weft_err err = weft_sim_spawn(w->sim, &journal_class, &self, NULL, &e->journal_actor);
  const wefti_engine_args args = { .boot_id = e->boot,
                                   .engine_id = coordinator ? w->fleet_id : id,
                                   .tp = w->ranks,
                                   .backend = "host",
                                   .journal = e->journal_actor,
                                   .last_sequence = e->first_sequence - 1,
                                   .history = history,
                                   .history_count = e->journal.count,
                                   .on_visible = on_visible,
                                   .on_visible_arg = e,
                                   .replicas = coordinator ? w->replicas : 0,
                                   .member = !coordinator,
                                   .on_upstream = on_upstream,
                                   .on_upstream_arg = e };
  if (err == WEFT_OK) {
    err = weft_sim_spawn(w->sim, &wefti_engine_core_class, &args, NULL, &e->actor);
  }
  e->alive = err == WEFT_OK;
  for (unsigned i = 0; i < w->ranks && err == WEFT_OK && !coordinator; i++) {
    err = bring_rank(w, e, i);
  }
  fleet_world *world = w;
  if (err == WEFT_OK && coordinator) {
    err = weft_sim_spawn(w->sim, &super_class, &world, NULL, &w->supervisor);
  }
  if (err != WEFT_OK) {
    fleet_break(w, "cannot start engine %u: %s", index, weft_err_name(err));
  }
}

void fleet_crash(fleet_world *w, unsigned index)
{
  fleet_engine *e = &w->engines[index];
  if (!e->alive) {
    return;
  }
  e->alive = false;
  weft_sim_kill(w->sim, e->actor);
  weft_sim_kill(w->sim, e->journal_actor);
  journal_crash(&e->journal);
  for (unsigned i = 0; i < w->ranks && index != FLEET_COORDINATOR; i++) {
    if (e->ranks[i].alive) {
      weft_sim_kill(w->sim, e->ranks[i].actor);
      e->ranks[i].alive = false;
    }
  }
  if (index == FLEET_COORDINATOR) { /* the links are its children's */
    weft_sim_kill(w->sim, w->supervisor);
    for (unsigned i = 0; i < w->replicas; i++) {
      w->engines[i].link = 0;
    }
  }
}

void fleet_kill_rank(fleet_world *w, unsigned replica, unsigned rank)
{
  fleet_engine *e = &w->engines[replica];
  fleet_rank *r = &e->ranks[rank];
  const weft_member_down down = { .h.type = WEFT_MSG_MEMBER_DOWN,
                                  .rank = rank,
                                  .incarnation = r->incarnation,
                                  .fenced = 1,
                                  .why = WEFT_STR("its process exited") };
  weft_sim_kill(w->sim, r->actor);
  r->alive = false;
  if (weft_sim_send(w->sim, e->actor, &down.h) != WEFT_OK ||
      bring_rank(w, e, rank) != WEFT_OK) {
    fleet_break(w, "cannot replace a rank");
  }
}

void fleet_cut(fleet_world *w, unsigned replica, bool cut)
{
  w->engines[replica].cut = cut;
}

void fleet_release_journal(fleet_world *w, unsigned engine)
{
  const weft_client_gone go = { .h.type = WEFT_MSG_CLIENT_GONE };
  w->engines[engine].journal.hang = false;
  (void)weft_sim_send(w->sim, w->engines[engine].journal_actor, &go.h);
}

static void reap(fleet_world *w)
{
  while (w->kill_count > 0) {
    fleet_crash(w, (unsigned)w->kill[--w->kill_count]);
  }
  for (unsigned i = 0; i < w->replicas; i++) {
    for (unsigned k = 0; k < w->ranks; k++) {
      const fleet_rank *r = &w->engines[i].ranks[k];
      if (w->engines[i].alive && r->alive && !weft_sim_alive(w->sim, r->actor)) {
        fleet_kill_rank(w, i, k);
      }
    }
  }
}

void fleet_run(fleet_world *w, uint64_t for_ms)
{
  const uint64_t until = weft_sim_now_ms(w->sim) + for_ms;
  while (!w->broken && weft_sim_now_ms(w->sim) < until) {
    while (!w->broken && weft_sim_step(w->sim)) {
      reap(w);
    }
    weft_sim_run(w->sim, weft_sim_now_ms(w->sim) + 1);
    reap(w);
  }
}

void fleet_start(fleet_world *w, const fleet_opts *opts)
{
  *w = (fleet_world){ .replicas = opts->replicas == 0 ? 2 : opts->replicas,
                      .ranks = opts->ranks == 0 ? 1 : opts->ranks,
                      .fleet_id = "fleet" };
  const weft_sim_opts so = { .size = sizeof so,
                             .seed = opts->seed,
                             .catalogue = weft_messages(),
                             .step = check_step,
                             .arg = w,
                             .trace = opts->trace };
  if (weft_sim_create(&so, &w->sim) != WEFT_OK) {
    fleet_break(w, "no simulator");
    return;
  }
  for (unsigned i = 0; i < FLEET_ENGINES; i++) {
    w->engines[i].w = w;
    w->engines[i].index = i;
  }
  for (unsigned i = 0; i < w->replicas; i++) {
    fleet_restart(w, i);
  }
  fleet_restart(w, FLEET_COORDINATOR);
  for (unsigned i = 0; i < FLEET_CLIENTS; i++) {
    const client_self args = { w, i, 0 };
    if (weft_sim_spawn(w->sim, &client_class, &args, NULL, &w->clients[i]) != WEFT_OK) {
      fleet_break(w, "no client");
    }
  }
  fleet_run(w, 3000);
}

void fleet_stop(fleet_world *w)
{
  weft_sim_destroy(w->sim);
  w->sim = NULL;
  for (unsigned i = 0; i < FLEET_ENGINES; i++) {
    fleet_journal *j = &w->engines[i].journal;
    while (j->count > 0) {
      record_free(&j->records[--j->count]);
    }
  }
}

/* ---- calls */

void fleet_post(fleet_world *w, unsigned client, unsigned engine, const weft_msg *msg)
{
  const weft_client_gone to = { .h.type = WEFT_MSG_CLIENT_GONE,
                                .caller = w->engines[engine].actor };
  w->answers[client].came = false;
  if (weft_sim_send(w->sim, w->clients[client], &to.h) != WEFT_OK ||
      weft_sim_send(w->sim, w->clients[client], msg) != WEFT_OK) {
    fleet_break(w, "client %u cannot send", client);
  }
}

const fleet_answer *fleet_call(fleet_world *w, unsigned client, unsigned engine,
                               const weft_msg *msg)
{
  fleet_post(w, client, engine, msg);
  while (!w->broken && !w->answers[client].came) {
    fleet_run(w, 1);
  }
  return &w->answers[client];
}

const fleet_answer *fleet_begin(fleet_world *w, unsigned engine)
{
  const weft_client_start m = { .h.type = WEFT_MSG_CLIENT_START, .caller = 100 };
  return fleet_call(w, 0, engine, &m.h);
}

const fleet_answer *fleet_update(fleet_world *w, unsigned engine, const char *info)
{
  weft_buf *buf = weft_buf_create(info, strlen(info));
  const weft_client_update m = { .h.type = WEFT_MSG_CLIENT_UPDATE,
                                 .caller = 100,
                                 .info = buf };
  const fleet_answer *a = fleet_call(w, 0, engine, &m.h);
  weft_buf_unref(buf);
  return a;
}

const fleet_answer *fleet_finish(fleet_world *w, unsigned engine, const char *version)
{
  const weft_client_finish m = {
    .h.type = WEFT_MSG_CLIENT_FINISH,
    .caller = 100,
    .has_version = version != NULL,
    .version = { version, version == NULL ? 0 : (uint32_t)strlen(version) }
  };
  return fleet_call(w, 0, engine, &m.h);
}

const fleet_answer *fleet_query(fleet_world *w, unsigned engine, weft_query what)
{
  const weft_client_query m = { .h.type = WEFT_MSG_CLIENT_QUERY, .what = what };
  return fleet_call(w, 2, engine, &m.h);
}

const fleet_answer *fleet_resolve(fleet_world *w, unsigned engine, bool commit)
{
  const weft_client_resolve m = { .h.type = WEFT_MSG_CLIENT_RESOLVE,
                                  .caller = 101,
                                  .commit = commit };
  return fleet_call(w, 1, engine, &m.h);
}
