#include "world.h"

#include "clerk.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void world_break(world *w, const char *fmt, ...)
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

static uint64_t mix(uint64_t h, const void *data, size_t len)
{
  const uint8_t *p = data;
  for (size_t i = 0; i < len; i++) {
    h = (h ^ p[i]) * 0x100000001b3u;
  }
  return h;
}

/* ---- simulated worker: the protocol as architecture §3 asks for it, without bytes */

typedef struct sim_worker {
  world *w;
  uint32_t rank;
  uint64_t incarnation;
  bool joined;
  weft_msg *held; /* answered later: FAULT_SLOW */
} sim_worker;

typedef struct sim_worker_args {
  world *w;
  uint32_t rank;
  uint64_t incarnation;
} sim_worker_args;

#define ENV_OF(q)                                                                        \
  .boot = (q)->boot, .incarnation = (q)->incarnation, .epoch = (q)->epoch, .op = (q)->op

static void refuse(weft_ctx *ctx, const weft_w_go *q, weft_err err, bool correctable,
                   const char *text)
{
  (void)weft_reply(
      ctx, weft_return_of(&q->h),
      weft_msg_make(ctx, &(weft_w_refused){ .h.type = WEFT_MSG_W_REFUSED,
                                            ENV_OF(q),
                                            .err = err,
                                            .correctable = correctable,
                                            .text = { text, (uint32_t)strlen(text) } }
                              .h));
}

static void ok(weft_ctx *ctx, const world_worker *me, const weft_w_go *q)
{
  (void)weft_reply(ctx, weft_return_of(&q->h),
                   weft_msg_make(ctx, &(weft_w_ok){ .h.type = WEFT_MSG_W_OK,
                                                    ENV_OF(q),
                                                    .tensors = 1,
                                                    .bytes = 8,
                                                    .poisoned = me->dirty }
                                           .h));
}

static void begin_to_map(weft_ctx *ctx, world_worker *me, const weft_w_adopt *m)
{
  me->maps_until_ms = 0;
  if (me->maps_ms > 0 && m->sequence != 0 && me->live_sequence == 0) {
    me->maps_until_ms = weft_now_ms(ctx) + me->maps_ms;
    me->maps_sequence = m->sequence;
    me->maps_digest = m->digest_hi;
  }
}

static void state(weft_ctx *ctx, world_worker *me, const weft_w_go *q)
{
  if (me->maps_until_ms != 0 && weft_now_ms(ctx) >= me->maps_until_ms) {
    me->maps_until_ms = 0;
    me->live_sequence = me->maps_fails ? 0 : me->maps_sequence;
    me->live = me->maps_fails ? 0 : me->maps_digest;
  }
  const bool whole = me->dirty == 0;
  (void)weft_reply(
      ctx, weft_return_of(&q->h),
      weft_msg_make(ctx,
                    &(weft_w_state){ .h.type = WEFT_MSG_W_STATE,
                                     ENV_OF(q),
                                     .phase = me->maps_until_ms != 0 ? WEFT_WORKER_MAPPING
                                                                     : me->phase,
                                     .received = me->received,
                                     .expected = me->expected,
                                     .weights_sequence = whole ? me->live_sequence : 0,
                                     .digest_hi = whole ? me->live : 0,
                                     .digest_lo = whole ? me->live : 0,
                                     .poisoned = me->dirty,
                                     .stamp_ns = weft_boottime_ns(ctx),
                                     .pid = 1 }
                         .h));
}

static void drop_epoch(world_worker *me, uint64_t epoch)
{
  me->open_epoch = 0;
  me->has_staged = false;
  me->installed_epoch = 0;
  if (epoch > me->ended_epoch) {
    me->ended_epoch = epoch;
  }
}

/* I1: the first PUBLISH of a sequence may only come when every rank that can serve
 * anybody has installed it (or publishes it already). */
static void check_all_installed(world *w, const weft_w_publish *p)
{
  for (uint32_t i = 0; i < w->ranks; i++) {
    const world_worker *o = &w->workers[i];
    const bool serves = o->alive && o->live_sequence != 0;
    if (serves && o->installed_epoch != p->epoch && o->live_sequence < p->sequence) {
      world_break(w, "I1: %llu is published but rank %u has not installed it",
                  (unsigned long long)p->sequence, i);
    }
  }
}

static void on_publish(weft_ctx *ctx, world *w, world_worker *me, const weft_w_publish *p)
{
  me->publishes++;
  if (p->sequence <= me->live_sequence) {
    ok(ctx, me, (const weft_w_go *)p);
    return;
  }
  if (me->installed_epoch != p->epoch) {
    refuse(ctx, (const weft_w_go *)p, WEFT_E_STALE, false,
           "nothing of that epoch is installed");
    return;
  }
  check_all_installed(w, p);
  me->live = me->installed;
  memcpy(me->sets, me->new_sets, sizeof me->sets);
  me->live_sequence = p->sequence;
  me->dirty = 0;
  drop_epoch(me, p->epoch);
  ok(ctx, me, (const weft_w_go *)p);
}

/* What was staged beside the other set, unless that one ends.  true: there are both.  A
 * main set alone is known by its own hash. */
static bool install_sets(world_worker *me)
{
  const bool keep = !me->alone && !me->needs_full;
  me->new_sets[me->draft] = me->staged;
  me->new_sets[!me->draft] = keep ? me->sets[!me->draft] : 0;
  const bool both = me->new_sets[0] != 0 && me->new_sets[1] != 0;
  me->installed =
      both ? mix(me->new_sets[0], &me->new_sets[1], sizeof me->new_sets[1]) : me->staged;
  return both;
}

static void on_session(weft_ctx *ctx, const world *w, world_worker *me,
                       const weft_msg *msg)
{
  const weft_w_go *q = (const weft_w_go *)msg;
  switch (msg->type) {
  case WEFT_MSG_W_START:
    me->open_epoch = q->epoch;
    me->needs_full = ((const weft_w_start *)msg)->base_sequence != me->live_sequence;
    me->staged = me->needs_full ? 0 : me->live;
    me->draft = ((const weft_w_start *)msg)->draft != 0;
    me->alone = ((const weft_w_start *)msg)->alone != 0;
    me->has_staged = true;
    ok(ctx, me, q);
    break;
  case WEFT_MSG_W_ACCEPT: {
    const weft_w_accept *a = (const weft_w_accept *)msg;
    me->accepts++;
    if (a->what == WEFT_TRANSFER_UPDATE && me->open_epoch != a->epoch) {
      refuse(ctx, q, WEFT_E_STATE, false, "no session");
      return;
    }
    if (a->what == WEFT_TRANSFER_UPDATE) {
      me->staged = mix(0xcbf29ce484222325u, a->info->data, a->info->len);
    }
    ok(ctx, me, q);
    break;
  }
  case WEFT_MSG_W_GO:
    me->goes++;
    me->entered++;
    if (w->inplace && ((const weft_w_go *)msg)->what == WEFT_TRANSFER_UPDATE) {
      me->dirty = q->epoch;
    }
    ok(ctx, me, q);
    break;
  default: { /* W_FINISH */
    me->finishes++;
    if (me->open_epoch != q->epoch) {
      refuse(ctx, q, WEFT_E_STATE, false, "no session");
      return;
    }
    me->installed_epoch = q->epoch;
    const bool both = install_sets(me);
    (void)weft_reply(ctx, weft_return_of(&q->h),
                     weft_msg_make(ctx, &(weft_w_finished){ .h.type = WEFT_MSG_W_FINISHED,
                                                            ENV_OF(q),
                                                            .digest_hi = me->installed,
                                                            .digest_lo = me->installed,
                                                            .tensors = both ? 2 : 1,
                                                            .bytes = both ? 16 : 8,
                                                            .set_tensors = 1,
                                                            .set_bytes = 8,
                                                            .set_digest_hi = me->staged,
                                                            .set_digest_lo = me->staged }
                                             .h));
    break;
  }
  }
}

/* true: the fault has dealt with the message. */
static bool misbehave(weft_ctx *ctx, sim_worker *s, world_worker *me, const weft_msg *msg)
{
  const world_fault f = me->fault;
  if (f.type == 0 || f.type != msg->type) {
    return false;
  }
  if (f.once) {
    me->fault.type = 0;
  }
  switch (f.kind) {
  case FAULT_REFUSE:
    refuse(ctx, (const weft_w_go *)msg, WEFT_E_FAILED, false, "made to refuse");
    return true;
  case FAULT_CORRECTABLE:
    refuse(ctx, (const weft_w_go *)msg, WEFT_E_FAILED, true, "1 tensor did not come: w");
    return true;
  case FAULT_MUTE:
    return true;
  case FAULT_CRASH:
    weft_stop(ctx, WEFT_E_FAILED);
    return true;
  case FAULT_FREEZE:
    me->frozen = true;
    weft_sim_freeze(s->w->sim, me->actor, true);
    return true;
  case FAULT_SLOW: {
    s->held = weft_msg_dup(weft_messages(), msg);
    (void)weft_timer_start(ctx, f.slow_ms, 1);
    return true;
  }
  }
  return false;
}

static weft_err sim_worker_on(weft_ctx *ctx, void *self, const weft_msg *msg);

/* One tensor per rank, whatever is asked for. */
static void answer_checksum(weft_ctx *ctx, const sim_worker *s, const weft_w_go *q)
{
  char text[64];
  const int n = snprintf(text, sizeof text, "{\"w%" PRIu32 "\":\"%" PRIx64 "\"}", s->rank,
                         s->w->workers[s->rank].live);
  weft_buf *json = weft_buf_create(text, (size_t)n);
  const weft_w_answer m = { .h = { .type = WEFT_MSG_W_ANSWER }, ENV_OF(q), .json = json };
  (void)weft_reply(ctx, weft_return_of(&q->h), weft_msg_make(ctx, &m.h));
  weft_buf_unref(json);
}

static bool is_loan(const weft_msg *msg)
{
  return msg->type == WEFT_MSG_W_LEND || msg->type == WEFT_MSG_W_FETCH;
}

/* The bytes of a set are its hash: whoever fetches has it by the engine's word. */
static void lend(weft_ctx *ctx, const sim_worker *s, world_worker *me,
                 const weft_msg *msg)
{
  const weft_w_go *q = (const weft_w_go *)msg;
  if (msg->type == WEFT_MSG_W_FETCH) {
    const weft_w_fetch *f = (const weft_w_fetch *)msg;
    me->live_sequence = f->sequence;
    me->live = f->digest_hi;
    ok(ctx, me, q);
  } else if (me->cannot_lend) {
    refuse(ctx, q, WEFT_E_UNSUPPORTED, false, "GPU memory");
  } else if (me->live_sequence != ((const weft_w_lend *)msg)->sequence) {
    refuse(ctx, q, WEFT_E_CONFLICT, false, "another set");
  } else {
    answer_checksum(ctx, s, q);
  }
}

static void serve(weft_ctx *ctx, sim_worker *s, const weft_msg *msg)
{
  world_worker *me = &s->w->workers[s->rank];
  const weft_w_go *q = (const weft_w_go *)msg;
  if (q->incarnation != s->incarnation) {
    refuse(ctx, q, WEFT_E_STALE, false, "meant for another incarnation");
    return;
  }
  if (msg->type == WEFT_MSG_W_ADOPT) {
    me->boot = q->boot;
    begin_to_map(ctx, me, (const weft_w_adopt *)msg);
    state(ctx, me, q);
    return;
  }
  if (msg->type == WEFT_MSG_W_BEAT) {
    const weft_w_beat *b = (const weft_w_beat *)msg;
    const uint64_t until = b->echo_ns / 1000000 + 2000;
    if (b->grant != 0 && until > me->grant_until_ms) {
      me->grant_until_ms = until;
    }
    state(ctx, me, q);
    return;
  }
  if (msg->type == WEFT_MSG_W_QUERY) {
    answer_checksum(ctx, s, q);
    return;
  }
  if (is_loan(msg)) {
    lend(ctx, s, me, msg);
    return;
  }
  if (msg->type == WEFT_MSG_W_PUBLISH) {
    on_publish(ctx, s->w, me, (const weft_w_publish *)msg);
    return;
  }
  if (msg->type == WEFT_MSG_W_ABORT) {
    me->aborts++;
    drop_epoch(me, q->epoch);
    ok(ctx, me, q);
    return;
  }
  if (q->epoch != 0 && q->epoch <= me->ended_epoch) {
    refuse(ctx, q, WEFT_E_STALE, false, "that epoch has ended");
    return;
  }
  on_session(ctx, s->w, me, msg);
}

static weft_err sim_worker_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  sim_worker *s = self;
  world_worker *me = &s->w->workers[s->rank];
  if (msg->type == WEFT_MSG_TIMER) {
    weft_msg *held = s->held;
    s->held = NULL;
    if (held != NULL) {
      serve(ctx, s, held);
      weft_msg_drop(weft_messages(), held);
    }
    return WEFT_OK;
  }
  if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  }
  me->lends += msg->type == WEFT_MSG_W_LEND;
  me->fetches += msg->type == WEFT_MSG_W_FETCH;
  if (((msg->type >= WEFT_MSG_W_ADOPT && msg->type <= WEFT_MSG_W_QUERY) ||
       is_loan(msg)) &&
      !misbehave(ctx, s, me, msg)) {
    serve(ctx, s, msg);
  }
  return WEFT_OK;
}

static weft_err sim_worker_init(weft_ctx *ctx, void *self, const void *args)
{
  const sim_worker_args *a = args;
  sim_worker *s = self;
  s->w = a->w;
  s->rank = a->rank;
  s->incarnation = a->incarnation;
  world_worker *me = &a->w->workers[a->rank];
  const world_worker was = *me;
  *me = (world_worker){ .actor = weft_self(ctx),
                        .incarnation = a->incarnation,
                        .alive = true,
                        .accepts = was.accepts,
                        .goes = was.goes,
                        .finishes = was.finishes,
                        .publishes = was.publishes,
                        .aborts = was.aborts,
                        .entered = was.entered,
                        .maps_ms = was.maps_ms,
                        .lends = was.lends,
                        .fetches = was.fetches,
                        .cannot_lend = was.cannot_lend,
                        .dirty = was.forgets_memory ? 0 : was.dirty,
                        .maps_fails = was.maps_fails };
  return WEFT_OK;
}

static void sim_worker_fini(weft_ctx *ctx, void *self)
{
  sim_worker *s = self;
  (void)ctx;
  if (s->held != NULL) {
    weft_msg_drop(weft_messages(), s->held);
  }
}

static const weft_actor_class sim_worker_class = { "sim_worker", sizeof(sim_worker),
                                                   sim_worker_init, sim_worker_fini,
                                                   sim_worker_on };

/* ---- simulated supervisor: starts workers, reports their death, restarts, fences */

typedef struct sim_supervisor {
  world *w;
  bool joined;
  uint64_t incarnations;
} sim_supervisor;

typedef struct sim_supervisor_args {
  world *w;
  bool joined;
} sim_supervisor_args;

static void bring_up(weft_ctx *ctx, sim_supervisor *s, uint32_t rank)
{
  world *w = s->w;
  const sim_worker_args args = { w, rank, ++s->incarnations * 16 + rank };
  weft_actor_id id;
  if (weft_spawn(ctx, &sim_worker_class, &args, NULL, &id) != WEFT_OK) {
    (void)weft_timer_start(ctx, 50, rank);
    return;
  }
  (void)weft_send(
      ctx, w->engine,
      weft_msg_make(ctx, &(weft_member_up){ .h.type = WEFT_MSG_MEMBER_UP,
                                            .h.flags = WEFT_MSG_F_RESERVED,
                                            .rank = rank,
                                            .incarnation = args.incarnation,
                                            .kind = s->joined ? WEFT_MEMBER_JOINED
                                                              : WEFT_MEMBER_CHILD,
                                            .actor = id,
                                            .pid = 1 }
                              .h));
}

static void report_down(weft_ctx *ctx, sim_supervisor *s, uint32_t rank, bool fenced)
{
  (void)weft_send(
      ctx, s->w->engine,
      weft_msg_make(ctx,
                    &(weft_member_down){ .h.type = WEFT_MSG_MEMBER_DOWN,
                                         .h.flags = WEFT_MSG_F_RESERVED,
                                         .rank = rank,
                                         .incarnation = s->w->workers[rank].incarnation,
                                         .fenced = fenced,
                                         .why = WEFT_STR("its process exited") }
                         .h));
}

static weft_err sim_supervisor_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  sim_supervisor *s = self;
  world *w = s->w;
  if (msg->type == WEFT_MSG_TIMER) {
    bring_up(ctx, s, (uint32_t)((const weft_timer_msg *)msg)->tag);
  } else if (msg->type == WEFT_MSG_DOWN) {
    const weft_down_msg *d = (const weft_down_msg *)msg;
    for (uint32_t i = 0; i < w->ranks; i++) {
      if (w->workers[i].actor == d->who && w->workers[i].alive) {
        w->workers[i].alive = false;
        report_down(ctx, s, i, true);
        (void)weft_timer_start(ctx, 50, i);
      }
    }
  } else if (msg->type == WEFT_MSG_MEMBER_FENCE) {
    const weft_member_fence *f = (const weft_member_fence *)msg;
    world_worker *worker = &w->workers[f->rank];
    if (worker->incarnation == f->incarnation && worker->alive && w->kill_count < 8) {
      w->kill_list[w->kill_count++] = worker->actor;
    } else if (worker->incarnation == f->incarnation) {
      report_down(ctx, s, f->rank, true);
    }
  }
  return WEFT_OK;
}

static weft_err sim_supervisor_init(weft_ctx *ctx, void *self, const void *args)
{
  sim_supervisor *s = self;
  const sim_supervisor_args *a = args;
  s->w = a->w;
  s->joined = a->joined;
  for (uint32_t i = 0; i < a->w->ranks; i++) {
    bring_up(ctx, s, i);
  }
  return WEFT_OK;
}

static const weft_actor_class sim_supervisor_class = {
  "sim_supervisor", sizeof(sim_supervisor), sim_supervisor_init, NULL, sim_supervisor_on
};

/* ---- simulated journal, publisher, clients */

typedef struct sim_journal {
  world *w;
  weft_return waiting;
} sim_journal;

static void journal_answer(weft_ctx *ctx, sim_journal *s, weft_return to)
{
  const bool fail = s->w->journal_fails_once;
  s->w->journal_fails_once = false;
  (void)weft_reply(
      ctx, to,
      weft_msg_make(ctx, &(weft_journal_done){ .h.type = WEFT_MSG_JOURNAL_DONE,
                                               .err = fail ? WEFT_E_SYS : WEFT_OK,
                                               .text = WEFT_STR("fsync failed") }
                              .h));
}

static weft_err sim_journal_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  sim_journal *s = self;
  if (msg->type == WEFT_MSG_TIMER) {
    journal_answer(ctx, s, s->waiting);
  } else if (msg->type == WEFT_MSG_JOURNAL_APPEND && msg->corr != 0) { /* no history */
    s->w->record = *(const weft_journal_append *)msg;
    s->w->record.version = s->w->record.operation = s->w->record.text = (weft_str){ 0 };
    s->w->record.sources = NULL;
    if (s->w->journal_slow) {
      s->waiting = weft_return_of(msg);
      (void)weft_timer_start(ctx, 700, 0);
    } else {
      journal_answer(ctx, s, weft_return_of(msg));
    }
  }
  return WEFT_OK;
}

static weft_err take_world(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  *(world **)self = *(world *const *)args; /* first member of each */
  return WEFT_OK;
}

static const weft_actor_class sim_journal_class = { "sim_journal", sizeof(sim_journal),
                                                    take_world, NULL, sim_journal_on };

typedef struct sim_publisher {
  world *w;
} sim_publisher;

static weft_err sim_publisher_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  world *w = ((sim_publisher *)self)->w;
  (void)ctx;
  if (msg->type == WEFT_MSG_EVENT && ((const weft_event *)msg)->sequence != 0) {
    const weft_event *ev = (const weft_event *)msg;
    if (ev->sequence != w->last_event_sequence + 1) {
      world_break(w, "I4: event %llu after %llu", (unsigned long long)ev->sequence,
                  (unsigned long long)w->last_event_sequence);
    }
    w->last_event_sequence = ev->sequence;
    w->commit_events++;
  }
  return WEFT_OK;
}

static const weft_actor_class sim_publisher_class = { "sim_publisher",
                                                      sizeof(sim_publisher), take_world,
                                                      NULL, sim_publisher_on };

typedef struct sim_client {
  world *w;
  unsigned index;
} sim_client;

static void copy_str(char *out, size_t cap, weft_str s)
{
  (void)snprintf(out, cap, "%.*s", (int)s.len, s.p == NULL ? "" : s.p);
}

static bool is_call(uint16_t type)
{
  const weft_msg_desc *desc = weft_msg_desc_of(weft_messages(), type);
  return desc != NULL && desc->from == WEFT_ROLE_CLIENT;
}

static weft_err sim_client_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  sim_client *s = self;
  world_answer *a = &s->w->answers[s->index];
  if (msg->type == WEFT_MSG_CLIENT_DONE) {
    const weft_client_done *d = (const weft_client_done *)msg;
    a->came = true;
    a->count++;
    a->err = (weft_err)d->err;
    a->outcome = (weft_outcome)d->outcome;
    a->at_ms = weft_now_ms(ctx);
    a->sequence = d->sequence;
    copy_str(a->message, sizeof a->message, d->message);
    copy_str(a->operation, sizeof a->operation, d->operation);
    copy_str(a->phase, sizeof a->phase, d->phase);
    copy_str(a->culprits, sizeof a->culprits, d->culprits);
    copy_str(a->session, sizeof a->session, d->session);
    copy_str(a->version, sizeof a->version, d->version);
    copy_str(a->fenced, sizeof a->fenced, d->fenced);
    (void)snprintf(a->body, sizeof a->body, "%.*s",
                   d->body == NULL ? 0 : (int)d->body->len,
                   d->body == NULL ? "" : (const char *)d->body->data);
  } else if (msg->type == WEFT_MSG_ASK_FAILED) {
    world_break(s->w, "I5: client %u was never answered", s->index);
  } else if (msg->type == WEFT_MSG_CLIENT_GONE) {
    (void)weft_send(ctx, s->w->engine, weft_msg_make(ctx, msg));
  } else if (is_call(msg->type)) {
    a->came = false;
    a->asked_ms = weft_now_ms(ctx);
    (void)weft_ask(ctx, s->w->engine, weft_msg_make(ctx, msg), 400000);
  }
  return WEFT_OK;
}

static weft_err sim_client_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  *(sim_client *)self = *(const sim_client *)args;
  return WEFT_OK;
}

static const weft_actor_class sim_client_class = { "sim_client", sizeof(sim_client),
                                                   sim_client_init, NULL, sim_client_on };

/* ---- invariants */

/* A read of rank's default now: would it be answered, and with what. */
static bool serves(const world *w, const world_worker *o)
{
  return o->alive && o->live_sequence != 0 && o->dirty == 0 &&
         weft_sim_now_ms(w->sim) < o->grant_until_ms;
}

static void on_visible(void *arg, const wefti_visible *v)
{
  world *w = arg;
  if (v->sequence != w->visible.sequence + 1) {
    world_break(w, "I4: %llu visible after %llu", (unsigned long long)v->sequence,
                (unsigned long long)w->visible.sequence);
  }
  const bool label = v->weights_sequence == w->visible.weights_sequence;
  for (uint32_t i = 0; label && i < w->ranks; i++) {
    if (w->workers[i].dirty != 0 && strcmp(v->version, "default") != 0) {
      world_break(w, "I3: '%s' names what rank %u is writing over", v->version, i);
    }
  }
  w->visible = *v;
  (void)snprintf(w->visible_version, sizeof w->visible_version, "%s", v->version);
  w->visible.version = w->visible_version;
  w->visible_count++;
}

static void check_step(void *arg, const weft_msg *delivered)
{
  world *w = arg;
  (void)delivered;
  for (uint32_t i = 0; i < w->ranks; i++) {
    const world_worker *o = &w->workers[i];
    if (!serves(w, o)) {
      continue;
    }
    if (o->live_sequence < w->visible.weights_sequence) {
      world_break(w, "I8: %llu is visible, rank %u still serves %llu",
                  (unsigned long long)w->visible.weights_sequence, i,
                  (unsigned long long)o->live_sequence);
    }
    if (!w->shards && o->live_sequence == w->visible.weights_sequence &&
        o->live != w->visible.digest_hi) {
      world_break(w, "I3: rank %u serves other bytes under %llu", i,
                  (unsigned long long)o->live_sequence);
    }
  }
}

/* ---- the world */

void world_start(world *w, const world_opts *opts)
{
  *w = (world){ .ranks = opts->ranks == 0 ? 2 : opts->ranks, .inplace = opts->inplace };
  const weft_sim_opts so = { .size = sizeof so,
                             .seed = opts->seed,
                             .catalogue = weft_messages(),
                             .fate = opts->fate,
                             .step = check_step,
                             .arg = w,
                             .trace = opts->trace };
  world *self = w;
  weft_err err = weft_sim_create(&so, &w->sim);
  if (err == WEFT_OK) {
    err = weft_sim_spawn(w->sim, &sim_publisher_class, &self, NULL, &w->publisher);
  }
  if (err == WEFT_OK && opts->with_journal) {
    err = weft_sim_spawn(w->sim, &sim_journal_class, &self, NULL, &w->journal);
  }
  if (err == WEFT_OK && opts->with_clerk) {
    const weft_spawn_opts one = { .mailbox = WEFTI_CLERK_MAILBOX, .batch = 1 };
    err = weft_sim_spawn(w->sim, &wefti_clerk_class, NULL, &one, &w->clerk);
  }
  const wefti_engine_args ea = { .boot_id = 0xb007,
                                 .engine_id = "sim",
                                 .tp = w->ranks,
                                 .backend = "host",
                                 .publisher = w->publisher,
                                 .journal = w->journal,
                                 .clerk = w->clerk,
                                 .allow_weight_reset = true,
                                 .require_pause = opts->require_pause,
                                 .pause_lease_ms = opts->pause_lease_ms,
                                 .lease_ms = opts->lease_ms,
                                 .draft = opts->draft,
                                 .inplace = opts->inplace,
                                 .history = opts->history,
                                 .history_count = opts->history_count,
                                 .on_visible = on_visible,
                                 .on_visible_arg = w };
  if (err == WEFT_OK) {
    err = weft_sim_spawn(w->sim, &wefti_engine_core_class, &ea, NULL, &w->engine);
  }
  const sim_supervisor_args sa = { w, opts->joined };
  if (err == WEFT_OK) {
    err = weft_sim_spawn(w->sim, &sim_supervisor_class, &sa, NULL, &w->supervisor);
  }
  for (unsigned i = 0; i < WORLD_CLIENTS && err == WEFT_OK; i++) {
    const sim_client ca = { w, i };
    err = weft_sim_spawn(w->sim, &sim_client_class, &ca, NULL, &w->clients[i]);
  }
  if (err != WEFT_OK) {
    world_break(w, "cannot build the world: %s", weft_err_name(err));
    return;
  }
  world_run(w, 3000);
}

void world_stop(world *w)
{
  weft_sim_destroy(w->sim);
  w->sim = NULL;
}

/* Kills what the supervisor was told to fence: between steps, as the kernel would. */
static void reap(world *w)
{
  while (w->kill_count > 0) {
    weft_sim_kill(w->sim, w->kill_list[--w->kill_count]);
  }
}

void world_run(world *w, uint64_t for_ms)
{
  const uint64_t until = weft_sim_now_ms(w->sim) + for_ms;
  while (!w->broken && weft_sim_now_ms(w->sim) < until) {
    while (!w->broken && weft_sim_step(w->sim)) {
      reap(w);
    }
    /* Idle: a millisecond at a time, so that kills come when they are due. */
    weft_sim_run(w->sim, weft_sim_now_ms(w->sim) + 1);
    reap(w);
  }
}

void world_post(world *w, unsigned client, const weft_msg *msg)
{
  w->answers[client].came = false;
  if (weft_sim_send(w->sim, w->clients[client], msg) != WEFT_OK) {
    world_break(w, "client %u cannot send", client);
  }
}

const world_answer *world_call(world *w, unsigned client, const weft_msg *msg,
                               uint64_t for_ms)
{
  world_post(w, client, msg);
  const uint64_t until = weft_sim_now_ms(w->sim) + for_ms;
  while (!w->broken && !w->answers[client].came && weft_sim_now_ms(w->sim) < until) {
    world_run(w, 1);
  }
  return &w->answers[client];
}

bool world_all_ready(const world *w)
{
  for (uint32_t i = 0; i < w->ranks; i++) {
    if (!w->workers[i].alive || w->workers[i].boot == 0) {
      return false;
    }
  }
  return true;
}

#define CALLER(client) .caller = (client) + 100u
enum { PATIENCE_MS = 320000 };

static const world_answer *with_info(world *w, unsigned client, uint16_t type,
                                     const char *info, uint32_t timeout_ms)
{
  weft_buf *buf = weft_buf_create(info, strlen(info));
  const weft_client_update m = {
    .h.type = type, CALLER(client), .timeout_ms = timeout_ms, .info = buf
  };
  const world_answer *a = world_call(w, client, &m.h, PATIENCE_MS);
  weft_buf_unref(buf);
  return a;
}

const world_answer *world_init(world *w, unsigned client)
{
  return with_info(w, client, WEFT_MSG_CLIENT_INIT, "{}", 0);
}

const world_answer *world_begin(world *w, unsigned client)
{
  const weft_client_start m = { .h.type = WEFT_MSG_CLIENT_START, CALLER(client) };
  return world_call(w, client, &m.h, PATIENCE_MS);
}

const world_answer *world_update(world *w, unsigned client, const char *info,
                                 uint32_t timeout_ms)
{
  return with_info(w, client, WEFT_MSG_CLIENT_UPDATE, info, timeout_ms);
}

const world_answer *world_finish(world *w, unsigned client, const char *version,
                                 uint32_t timeout_ms)
{
  const weft_client_finish m = {
    .h.type = WEFT_MSG_CLIENT_FINISH,
    CALLER(client),
    .timeout_ms = timeout_ms,
    .has_version = version != NULL,
    .version = { version, version == NULL ? 0 : (uint32_t)strlen(version) }
  };
  return world_call(w, client, &m.h, PATIENCE_MS);
}

const world_answer *world_query(world *w, unsigned client, weft_query what)
{
  const weft_client_query m = { .h.type = WEFT_MSG_CLIENT_QUERY, .what = what };
  return world_call(w, client, &m.h, PATIENCE_MS);
}
