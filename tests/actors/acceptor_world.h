/* acceptor_world.h -- an acceptor under the seeded scheduler with an engine that answers
 * what the test says and keeps what it was asked, and a server that keeps the answers. */
#ifndef WEFT_ACCEPTOR_WORLD_H
#define WEFT_ACCEPTOR_WORLD_H

#include "weft_test.h"

#include "acceptor.h"
#include "acceptor_priv.h"
#include "weft/sim.h"

#include <stdlib.h>
#include <string.h>

enum { WORLD_MAX = 4096 };

typedef struct answer {
  weft_http_id id;
  int status;
  char *body;
  char fenced[32], session[64], sequence[32];
} answer;

typedef struct world {
  weft_sim *sim;
  weft_actor_id acceptor, engine;
  weft_msg *asked[WORLD_MAX]; /* what the engine got, in order */
  size_t asked_count;
  answer *answers; /* [WORLD_MAX] */
  size_t answer_count;
  weft_http_id streamed, last_id;
  uint64_t streamed_after;
  unsigned gone_after; /* slices of a long body until gone_peer goes; 0 = never */
  uint64_t gone_peer;
  bool mute;             /* the engine does not answer */
  bool lose;             /* ... its answers are lost */
  weft_client_done done; /* what it answers else */
} world;

static void world_respond(void *arg, weft_http_id id, const weft_http_reply *reply)
{
  world *w = arg;
  assert_true(w->answer_count < WORLD_MAX);
  answer *a = &w->answers[w->answer_count++];
  memset(a, 0, sizeof *a);
  a->id = id;
  a->status = reply->status;
  a->body = calloc(1, reply->body_len + 1);
  assert_non_null(a->body);
  if (reply->body_len > 0) {
    memcpy(a->body, reply->body, reply->body_len);
  }
  for (size_t i = 0; i < reply->header_count; i++) {
    const weft_http_header *h = &reply->headers[i];
    char *to = strcmp(h->name, "Weft-Fenced") == 0    ? a->fenced
               : strcmp(h->name, "Weft-Session") == 0 ? a->session
                                                      : a->sequence;
    const size_t len = strlen(h->value);
    assert_true(len < 32);
    memcpy(to, h->value, len + 1);
  }
}

static void world_stream(void *arg, weft_http_id id, uint64_t after)
{
  world *w = arg;
  w->streamed = id;
  w->streamed_after = after;
}

static weft_err engine_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  memcpy(self, args, sizeof(world *));
  return WEFT_OK;
}

static weft_err engine_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  world *w = *(world **)self;
  if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  }
  if (msg->type == WEFT_MSG_HTTP_GONE) { /* the test's: answer question number peer now */
    const weft_msg *m = w->asked[((const weft_http_gone *)msg)->peer];
    (void)weft_reply(ctx, weft_return_of(m), weft_msg_make(ctx, &w->done.h));
    return WEFT_OK;
  }
  assert_true(w->asked_count < WORLD_MAX);
  w->asked[w->asked_count++] = weft_msg_dup(weft_messages(), msg);
  if (w->lose) {
    (void)weft_reply(ctx, weft_return_of(msg), NULL);
  } else if (!w->mute && msg->type != WEFT_MSG_CLIENT_GONE) {
    (void)weft_reply(ctx, weft_return_of(msg), weft_msg_make(ctx, &w->done.h));
  }
  return WEFT_OK;
}

static const weft_actor_class engine_class = {
  .name = "engine",
  .state_size = sizeof(world *),
  .init = engine_init,
  .on = engine_on,
};

static void world_step(void *arg, const weft_msg *delivered)
{
  world *w = arg;
  if (delivered->type == WEFT_MSG_TIMER && w->gone_after > 0 && --w->gone_after == 0) {
    const weft_http_gone gone = { .h = { .type = WEFT_MSG_HTTP_GONE },
                                  .peer = w->gone_peer };
    assert_ok(weft_sim_send(w->sim, w->acceptor, &gone.h));
  }
}

static void world_open_with(world *w, bool allow_weight_reset)
{
  memset(w, 0, sizeof *w);
  w->answers = calloc(WORLD_MAX, sizeof *w->answers);
  assert_non_null(w->answers);
  w->done.h.type = WEFT_MSG_CLIENT_DONE;
  const weft_sim_opts opts = { .size = sizeof opts,
                               .seed = 7,
                               .catalogue = weft_messages(),
                               .step = world_step,
                               .arg = w };
  assert_ok(weft_sim_create(&opts, &w->sim));
  const world *self = w;
  assert_ok(weft_sim_spawn(w->sim, &engine_class, &self, NULL, &w->engine));
  const wefti_acceptor_args args = { .engine = w->engine,
                                     .tp = 2,
                                     .pp = 3,
                                     .dp_size = 4,
                                     .allow_weight_reset = allow_weight_reset,
                                     .server_version = "0.1.0",
                                     .ops = { world_respond, world_stream, w } };
  assert_ok(weft_sim_spawn(w->sim, &wefti_acceptor_class, &args, NULL, &w->acceptor));
}

static inline void world_open(world *w)
{
  world_open_with(w, false);
}

static void world_forget(world *w)
{
  for (size_t i = 0; i < w->asked_count; i++) {
    weft_msg_drop(weft_messages(), w->asked[i]);
  }
  for (size_t i = 0; i < w->answer_count; i++) {
    free(w->answers[i].body);
  }
  w->asked_count = 0;
  w->answer_count = 0;
  w->streamed = 0;
}

static void world_close(world *w)
{
  weft_sim_destroy(w->sim);
  world_forget(w);
  free(w->answers);
}

static void world_idle(world *w)
{
  while (weft_sim_step(w->sim)) {
  }
}

typedef struct ask {
  uint32_t route;
  const char *query, *body;
  size_t body_len; /* 0: strlen(body) */
  uint64_t peer;
  const char *idem_key, *session;
} ask;

static weft_str str_of(const char *s)
{
  return s == NULL ? (weft_str){ NULL, 0 } : (weft_str){ s, (uint32_t)strlen(s) };
}

/* Only queues it. */
static weft_http_id world_send(world *w, const ask *q)
{
  const size_t len = q->body_len > 0   ? q->body_len
                     : q->body == NULL ? 0
                                       : strlen(q->body);
  weft_buf *body = q->body == NULL ? NULL : weft_buf_create(q->body, len);
  const weft_http_call call = { .h = { .type = WEFT_MSG_HTTP_REQUEST },
                                .id = ++w->last_id,
                                .peer = q->peer == 0 ? 900 : q->peer,
                                .route = q->route,
                                .query = str_of(q->query),
                                .idem_key = str_of(q->idem_key),
                                .session = str_of(q->session),
                                .body = body };
  assert_ok(weft_sim_send(w->sim, w->acceptor, &call.h));
  weft_buf_unref(body);
  return call.id;
}

/* The one answer to id; fails when there is none or more than one. */
static const answer *world_answer(const world *w, weft_http_id id)
{
  const answer *found = NULL;
  for (size_t i = 0; i < w->answer_count; i++) {
    if (w->answers[i].id == id) {
      assert_null(found);
      found = &w->answers[i];
    }
  }
  assert_non_null(found);
  return found;
}

/* Asks and lets everything settle: a long body needs its slices' timers. */
static const answer *world_ask(world *w, const ask *q)
{
  const weft_http_id id = world_send(w, q);
  weft_sim_run(w->sim, weft_sim_now_ms(w->sim) + 1);
  return world_answer(w, id);
}

static inline uint64_t world_refused(const world *w)
{
  return wefti_acceptor_counts_of(weft_sim_state(w->sim, w->acceptor))->refused;
}

static inline uint64_t world_forwarded(const world *w)
{
  return wefti_acceptor_counts_of(weft_sim_state(w->sim, w->acceptor))->forwarded;
}

#endif /* WEFT_ACCEPTOR_WORLD_H */
