/* Journal, clients and the watcher behind the publisher. */
#include "full_http.h"
#include "weft/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- journal: what is on disk is full_boot.durable */

enum { SLOW_MS = 900, ASK_MS = 400000 };

static void journal_say(weft_ctx *ctx, full *w, weft_return to, uint64_t sequence)
{
  full_journal *j = &w->journal;
  full_boot *b = full_now(w);
  const bool failed = j->fails_once || j->torn_once;
  /* After a failed fsync nobody knows whether it is there; a torn one is not. */
  if (!failed || (j->fails_once && full_random(w, 2) == 0)) {
    if (sequence > b->durable + 1) {
      full_break(w, "I4: record %" PRIu64 " follows %" PRIu64 " in the journal", sequence,
                 b->durable);
    }
    b->durable = sequence > b->durable ? sequence : b->durable;
  }
  j->fails_once = false;
  j->torn_once = false;
  const weft_journal_done done = { .h.type = WEFT_MSG_JOURNAL_DONE,
                                   .err = failed ? WEFT_E_SYS : WEFT_OK,
                                   .text = WEFT_STR("fsync failed") };
  (void)weft_reply(ctx, to, weft_msg_make(ctx, &done.h));
}

static void journal_append(weft_ctx *ctx, full *w, const weft_journal_append *m)
{
  full_journal *j = &w->journal;
  full_boot *b = full_now(w);
  const bool commit =
      m->kind == WEFT_RECORD_COMMIT_WEIGHTS || m->kind == WEFT_RECORD_COMMIT_LABEL;
  if (!commit) { /* history only: never late */
    const weft_journal_done done = { .h.type = WEFT_MSG_JOURNAL_DONE };
    (void)weft_reply(ctx, weft_return_of(&m->h), weft_msg_make(ctx, &done.h));
    return;
  }
  if (m->sequence != b->visible + 1) {
    full_break(w, "I4: record %" PRIu64 " is asked for while %" PRIu64 " is visible",
               m->sequence, b->visible);
  }
  b->last_issued = m->sequence;
  if (!j->slow && !j->hangs) {
    journal_say(ctx, w, weft_return_of(&m->h), m->sequence);
    return;
  }
  if (j->held && !j->hangs) {
    full_break(w, "I4: a record is asked for before the last one was answered");
  }
  j->held = true;
  j->to = weft_return_of(&m->h);
  j->sequence = m->sequence;
  if (!j->hangs && weft_timer_start(ctx, 1 + full_random(w, SLOW_MS), 0) == 0) {
    j->held = false;
    journal_say(ctx, w, j->to, j->sequence);
  }
}

static weft_err journal_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  full *w = *(full **)self;
  if (msg->type == WEFT_MSG_JOURNAL_APPEND) {
    journal_append(ctx, w, (const weft_journal_append *)msg);
  } else if (msg->type == WEFT_MSG_TIMER || msg->type == WEFT_MSG_CLIENT_GONE) {
    if (w->journal.held && !w->journal.hangs) {
      w->journal.held = false;
      journal_say(ctx, w, w->journal.to, w->journal.sequence);
    }
  }
  return WEFT_OK;
}

static weft_err take_world(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  memcpy(self, args, sizeof(full *));
  return WEFT_OK;
}

const weft_actor_class full_journal_class = { "journal", sizeof(full *), take_world, NULL,
                                              journal_on };

void full_journal_heal(full *w)
{
  const weft_client_gone go_on = { .h.type = WEFT_MSG_CLIENT_GONE };
  w->journal.slow = false;
  w->journal.hangs = false;
  w->journal.fails_once = false;
  w->journal.torn_once = false;
  if (w->journal_actor != 0 &&
      weft_sim_send(w->sim, w->journal_actor, &go_on.h) != WEFT_OK &&
      weft_sim_send(w->sim, w->journal_actor, &go_on.h) !=
          WEFT_OK) { /* once is injected */
    full_break(w, "the journal cannot be healed");
  }
}

/* ---- the watcher: what went out by the publisher's operation */

static uint64_t u64_of(const weft_json *o, const char *key)
{
  int64_t v = 0;
  const weft_json *n = weft_json_get(o, key);
  return n != NULL && weft_json_i64(n, &v) ? (uint64_t)v : 0;
}

void full_on_event(void *arg, const char *topic, uint64_t sequence, const weft_buf *json)
{
  full *w = arg;
  full_boot *b = full_now(w);
  if (sequence == 0) {
    return;
  }
  if (sequence != b->next_event && !(w->allocs_failed > 0 && sequence > b->next_event)) {
    full_break(w, "I4: event %" PRIu64 ", the watcher waits for %" PRIu64 " (%s)",
               sequence, b->next_event, topic);
  }
  if (sequence > b->visible) {
    full_break(w, "I2: event %" PRIu64 " while %" PRIu64 " is visible", sequence,
               b->visible);
  }
  b->next_event = sequence + 1;
  weft_json *o = NULL;
  weft_why why;
  if (weft_json_parse(json->data, json->len, NULL, &o, &why) == WEFT_OK &&
      u64_of(o, "sequence") != sequence) {
    full_break(w, "I4: event %" PRIu64 " says it is another one", sequence);
  }
  weft_json_free(o);
}

/* ---- clients */

typedef struct sim_client {
  full *w;
  unsigned index;
} sim_client;

static void copy(char *out, size_t cap, weft_str s)
{
  (void)snprintf(out, cap, "%.*s", (int)s.len, s.p == NULL ? "" : s.p);
}

static void client_done(full *w, sim_client *s, const weft_client_done *d)
{
  full_client *c = &w->clients[s->index];
  full_call *call = &w->calls[c->call];
  if (!c->pending || d->h.corr != c->corr) {
    full_break(w, "I5: client %u is answered twice", s->index);
    return;
  }
  c->pending = false;
  call->open = false;
  call->answered_ms = weft_sim_now_ms(w->sim);
  call->step_to = w->steps;
  call->err = (weft_err)d->err;
  call->outcome = (weft_outcome)d->outcome;
  call->sequence = d->sequence;
  copy(call->got_version, sizeof call->got_version, d->version);
  copy(call->got_session, sizeof call->got_session, d->session);
  copy(call->message, sizeof call->message, d->message);
  if (d->session.len > 0) {
    copy(c->session, sizeof c->session, d->session);
  }
  full_check_answer(w, call, false);
  if (call->type == WEFT_MSG_CLIENT_QUERY && call->has_expected && d->body != NULL) {
    full_check_status(w, d->body);
  }
}

static weft_err client_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  sim_client *s = self;
  full *w = s->w;
  full_client *c = &w->clients[s->index];
  if (msg->type == WEFT_MSG_CLIENT_DONE) {
    client_done(w, s, (const weft_client_done *)msg);
  } else if (msg->type == WEFT_MSG_ASK_FAILED) {
    /* The engine's process died, or its answer or our question found no memory. */
    const bool down = ((const weft_ask_failed_msg *)msg)->reason != WEFT_E_TIMEOUT;
    if (!down) {
      full_break(w, "I5: client %u was never answered", s->index);
    }
    c->pending = false;
    w->calls[c->call].open = false;
    w->calls[c->call].err = WEFT_E_DOWN;
    w->calls[c->call].outcome = WEFT_OUTCOME_UNKNOWN;
    w->calls[c->call].answered_ms = weft_sim_now_ms(w->sim);
    w->calls[c->call].step_to = w->steps;
  } else if (msg->type == WEFT_MSG_CLIENT_GONE) {
    (void)weft_send(ctx, w->engine, weft_msg_make(ctx, msg));
  } else if (msg->type > 0 && msg->type < WEFT_MSG_CLIENT_DONE) {
    w->calls[c->call].step_from = w->steps;
    c->corr = weft_ask(ctx, w->engine, weft_msg_make(ctx, msg), ASK_MS);
  }
  return WEFT_OK;
}

static weft_err client_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  *(sim_client *)self = *(const sim_client *)args;
  return WEFT_OK;
}

const weft_actor_class full_client_class = { "client", sizeof(sim_client), client_init,
                                             NULL, client_on };

static weft_str str_of(const char *s)
{
  return (weft_str){ s, (uint32_t)strlen(s) };
}

/* All calls of clients begin alike. */
#define HEAD                                                                             \
  .caller = c->caller, .timeout_ms = timeout_ms, .idem_key = str_of(call->key),          \
  .body_hash = hash, .session = str_of(call->with_session ? call->session : "")

static weft_err put(full *w, const full_client *c, const full_call *call,
                    uint32_t timeout_ms)
{
  const uint64_t hash = (uint64_t)call->type << 32 | call->push;
  weft_msg h = { .type = call->type };
  if (call->type == WEFT_MSG_CLIENT_START) {
    return weft_sim_send(w->sim, c->actor,
                         &(weft_client_start){ .h = h, HEAD, .draft = call->draft }.h);
  }
  if (call->type == WEFT_MSG_CLIENT_FINISH) {
    const weft_client_finish m = { .h = h,
                                   HEAD,
                                   .has_version = call->has_version,
                                   .version = str_of(call->version),
                                   .has_expected = call->has_expected,
                                   .expected = str_of(call->expected) };
    return weft_sim_send(w->sim, c->actor, &m.h);
  }
  if (call->type == WEFT_MSG_CLIENT_LABEL) {
    const weft_client_label m = { .h = h,
                                  HEAD,
                                  .version = str_of(call->version),
                                  .has_expected = call->has_expected,
                                  .expected = str_of(call->expected) };
    return weft_sim_send(w->sim, c->actor, &m.h);
  }
  if (call->type == WEFT_MSG_CLIENT_ABORT) {
    return weft_sim_send(w->sim, c->actor, &(weft_client_abort){ .h = h, HEAD }.h);
  }
  if (call->type == WEFT_MSG_CLIENT_QUERY) {
    const weft_client_query m = { .h = h,
                                  .what = call->has_expected  ? WEFT_QUERY_STATUS
                                          : call->has_version ? WEFT_QUERY_WEIGHTS
                                                              : WEFT_QUERY_INFO };
    return weft_sim_send(w->sim, c->actor, &m.h);
  }
  char text[64] = "{}"; /* init */
  if (call->push != 0) {
    (void)snprintf(text, sizeof text, "{\"push\":%u,\"mask\":%u}", call->push,
                   w->pushes[call->push].mask);
  }
  weft_buf *info = weft_buf_create(text, strlen(text));
  const weft_client_update m = { .h = h, HEAD, .info = info };
  const weft_err err = weft_sim_send(w->sim, c->actor, &m.h);
  weft_buf_unref(info);
  return err;
}

full_call *full_post(full *w, unsigned client, full_call *call, uint32_t timeout_ms)
{
  full_client *c = &w->clients[client];
  if (w->call_count == FULL_CALLS || c->pending) {
    return NULL;
  }
  full_call *kept = &w->calls[w->call_count];
  *kept = *call;
  kept->open = true;
  kept->client = client;
  kept->boot = w->boot;
  kept->caller = c->caller;
  kept->at_engine = c->way == 0 ? c->caller : 0;
  kept->asked_ms = weft_sim_now_ms(w->sim);
  kept->allowed_ms = timeout_ms;
  c->call = w->call_count++;
  c->pending = true;
  const weft_err err = c->way == 0 ? put(w, c, kept, timeout_ms)
                                   : full_http_put(w, client, kept, timeout_ms);
  if (err != WEFT_OK) { /* met a failed allocation, or nobody listens: not sent */
    c->pending = false;
    w->call_count--;
    return NULL;
  }
  return kept;
}

void full_gone(full *w, unsigned client)
{
  full_client *c = &w->clients[client];
  if (c->way != 0) {
    full_front_hang_up(w, client);
    return;
  }
  const weft_client_gone gone = { .h.type = WEFT_MSG_CLIENT_GONE, .caller = c->caller };
  if (weft_sim_send(w->sim, c->actor, &gone.h) == WEFT_OK) {
    c->caller += 1000;
  }
}
