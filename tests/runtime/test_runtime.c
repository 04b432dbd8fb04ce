#include "weft_test.h"

#include "puppet.h"
#include "sample_catalogue.h"
#include "weft/runtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Loops with threads: calls and posts from outside, questions across loops, shutdown.
 * Assertions run on the test's thread only. */

typedef struct world {
  weft_runtime *rt;
  weft_actor_id ids[8];
  weft_actor_id target;
  pthread_mutex_t lock;
  char order[64]; /* under lock */
  atomic_int count, errors;
  atomic_int failures[64];
  weft_return held;
  atomic_bool holds;
} world;

static void make(world *w, unsigned loops, unsigned spin_us)
{
  memset(w, 0, sizeof *w);
  assert_int_equal(pthread_mutex_init(&w->lock, NULL), 0);
  const weft_runtime_opts opts = { .size = sizeof opts,
                                   .loops = loops,
                                   .catalogue = &sample_catalogue,
                                   .spin_us = spin_us };
  assert_ok(weft_runtime_create(&opts, &w->rt));
}

static void drop(world *w)
{
  weft_runtime_destroy(w->rt);
  assert_int_equal(pthread_mutex_destroy(&w->lock), 0);
  assert_int_equal(atomic_load(&w->errors), 0);
}

static void stop_and_drop(world *w)
{
  weft_runtime_stop(w->rt, 10000);
  weft_runtime_join(w->rt);
  weft_runtime_stats stats;
  weft_runtime_stats_get(w->rt, &stats);
  assert_int_equal(stats.actors, 0);
  drop(w);
}

static void note(world *w, char c)
{
  (void)pthread_mutex_lock(&w->lock);
  const size_t n = strlen(w->order);
  if (n + 1 < sizeof w->order) {
    w->order[n] = c;
  }
  (void)pthread_mutex_unlock(&w->lock);
}

static weft_actor_id spawn_on(world *w, unsigned loop, puppet_fn *on,
                              const weft_spawn_opts *opts)
{
  const puppet_args args = { .on = on, .arg = w };
  weft_actor_id id = 0;
  assert_ok(weft_runtime_spawn(w->rt, loop, &puppet_class, &args, opts, &id));
  return id;
}

static weft_msg *ping(uint32_t n)
{
  const sample_ping m = { .h = { .type = SAMPLE_PING }, .n = n };
  return weft_msg_dup(&sample_catalogue, &m.h);
}

static weft_msg *go_msg(void)
{
  const weft_msg m = { .type = SAMPLE_GO };
  return weft_msg_dup(&sample_catalogue, &m);
}

/* Answers n with n + 1; 1000 kills it, 2000 is held, 3000 kills it while it is held. */
static weft_err server_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  if (msg->type != SAMPLE_PING) {
    return WEFT_E_STATE;
  }
  const uint32_t n = ((const sample_ping *)msg)->n;
  if (n == 1000) {
    return WEFT_E_FAILED;
  }
  if (n == 2000) {
    w->held = weft_return_of(msg);
    atomic_store(&w->holds, true);
    return WEFT_OK;
  }
  if (n == 3000) {
    return atomic_load(&w->holds) ? WEFT_E_FAILED : WEFT_OK;
  }
  const sample_ping m = { .h = { .type = SAMPLE_PONG }, .n = n + 1 };
  const weft_err err = weft_reply(ctx, weft_return_of(msg), weft_msg_make(ctx, &m.h));
  atomic_fetch_add(&w->count, 1);
  return err;
}

/* ---- from outside */

static void a_call_gets_its_answer(void **state)
{
  (void)state;
  world w;
  make(&w, 2, 0);
  assert_ok(weft_runtime_start_all(w.rt));
  const weft_actor_id id = spawn_on(&w, 1, server_on, NULL);
  for (uint32_t i = 0; i < 200; i++) {
    weft_msg *answer = NULL;
    assert_ok(weft_call(w.rt, id, ping(i), 10000, &answer));
    assert_int_equal(answer->type, SAMPLE_PONG);
    assert_int_equal(((const sample_ping *)answer)->n, i + 1);
    weft_msg_drop(&sample_catalogue, answer);
  }
  stop_and_drop(&w);
}

static weft_err host_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  (void)arg;
  if (msg->type != WEFT_MSG_USER_FIRST) {
    return WEFT_E_STATE;
  }
  weft_msg *m = weft_msg_new(ctx, WEFT_MSG_USER_FIRST + 1, sizeof(sample_ping));
  if (m != NULL) {
    ((sample_ping *)m)->n = ((const sample_ping *)msg)->n * 2;
  }
  return weft_reply(ctx, weft_return_of(msg), m);
}

static void host_types_travel_too(void **state)
{
  (void)state;
  world w;
  make(&w, 1, 0);
  assert_ok(weft_runtime_start_all(w.rt));
  const weft_actor_id id = spawn_on(&w, 0, host_on, NULL);
  weft_msg *m = weft_msg_heap_new(WEFT_MSG_USER_FIRST, sizeof(sample_ping));
  assert_non_null(m);
  ((sample_ping *)m)->n = 21;
  weft_msg *answer = NULL;
  assert_ok(weft_call(w.rt, id, m, 10000, &answer));
  assert_int_equal(answer->type, WEFT_MSG_USER_FIRST + 1);
  assert_int_equal(((const sample_ping *)answer)->n, 42);
  weft_msg_drop(&sample_catalogue, answer);
  stop_and_drop(&w);
}

/* As a link does with what its peer said: the failure is the answer. */
static weft_err passes_on_failures(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  (void)arg;
  weft_msg *m = weft_msg_new(ctx, WEFT_MSG_ASK_FAILED, sizeof(weft_ask_failed_msg));
  if (m != NULL) {
    ((weft_ask_failed_msg *)m)->asked = msg->type;
    ((weft_ask_failed_msg *)m)->reason = ((const sample_ping *)msg)->n;
  }
  return weft_reply(ctx, weft_return_of(msg), m);
}

static void an_answer_that_is_a_failure_fails_the_call(void **state)
{
  (void)state;
  world w;
  make(&w, 1, 0);
  assert_ok(weft_runtime_start_all(w.rt));
  const weft_actor_id id = spawn_on(&w, 0, passes_on_failures, NULL);
  weft_msg *answer = NULL;
  assert_err(weft_call(w.rt, id, ping(WEFT_E_DENIED), 10000, &answer), WEFT_E_DENIED);
  assert_err(weft_call(w.rt, id, ping(WEFT_E_TIMEOUT), 10000, &answer), WEFT_E_TIMEOUT);
  assert_err(weft_call(w.rt, id, ping(WEFT_OK), 10000, &answer), WEFT_E_FAILED);
  assert_null(answer);
  stop_and_drop(&w);
}

static void a_call_ends_whatever_happens(void **state)
{
  (void)state;
  world w;
  make(&w, 2, 0);
  assert_ok(weft_runtime_start_all(w.rt));
  weft_msg *answer = NULL;
  weft_actor_id id = spawn_on(&w, 1, server_on, NULL);
  assert_err(weft_call(w.rt, id, NULL, 1, &answer), WEFT_E_NOMEM);
  assert_err(weft_call(w.rt, 0, ping(1), 1, &answer), WEFT_E_DOWN);
  assert_err(weft_call(w.rt, ((weft_actor_id)7 << 56) | 1, ping(1), 1, &answer),
             WEFT_E_DOWN);
  assert_err(weft_call(w.rt, id, ping(2000), 20, &answer), WEFT_E_TIMEOUT);
  assert_err(weft_call(w.rt, id, ping(1000), 10000, &answer),
             WEFT_E_DOWN);                                               /* dies of it */
  assert_err(weft_call(w.rt, id, ping(1), 10000, &answer), WEFT_E_DOWN); /* is dead */
  assert_null(answer);
  stop_and_drop(&w);
}

static void *killer(void *arg)
{
  world *w = arg;
  while (!atomic_load(&w->holds)) {
  }
  if (weft_post(w->rt, w->ids[0], ping(3000)) != WEFT_OK) {
    atomic_fetch_add(&w->errors, 1);
  }
  return NULL;
}

static void a_held_call_ends_with_its_holder(void **state)
{
  (void)state;
  world w;
  make(&w, 1, 0);
  assert_ok(weft_runtime_start_all(w.rt));
  w.ids[0] = spawn_on(&w, 0, server_on, NULL);
  pthread_t t;
  assert_int_equal(pthread_create(&t, NULL, killer, &w), 0);
  weft_msg *answer = NULL;
  assert_err(weft_call(w.rt, w.ids[0], ping(2000), 0, &answer), WEFT_E_DOWN);
  assert_int_equal(pthread_join(t, NULL), 0);
  stop_and_drop(&w);
}

static weft_err blocked_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  (void)ctx;
  if (msg->type != SAMPLE_PING) {
    return WEFT_E_STATE;
  }
  atomic_fetch_add(&w->count, 1);
  (void)pthread_mutex_lock(&w->lock);
  (void)pthread_mutex_unlock(&w->lock);
  return WEFT_OK;
}

static void posts_are_bounded_and_reserved_room_is_kept(void **state)
{
  (void)state;
  world w;
  make(&w, 1, 0);
  const weft_actor_id id =
      spawn_on(&w, 0, blocked_on, &(weft_spawn_opts){ .mailbox = 16, .batch = 1 });
  (void)pthread_mutex_lock(&w.lock);
  assert_ok(weft_post(w.rt, id, ping(0))); /* before the loop runs, too */
  assert_ok(weft_runtime_start_all(w.rt));
  while (atomic_load(&w.count) == 0) {
  }
  /* It sits in its behaviour; the message it has is given back after its turn. */
  for (int i = 1; i < 16; i++) {
    assert_ok(weft_post(w.rt, id, ping(0)));
  }
  assert_err(weft_post(w.rt, id, ping(0)), WEFT_E_FULL);
  for (int i = 0; i < 4; i++) {
    weft_msg *m = ping(0);
    m->flags = WEFT_MSG_F_RESERVED;
    assert_ok(weft_post(w.rt, id, m));
  }
  weft_msg *m = ping(0);
  m->flags = WEFT_MSG_F_RESERVED;
  assert_err(weft_post(w.rt, id, m), WEFT_E_FULL);
  weft_msg *answer = NULL;
  assert_err(weft_call(w.rt, id, ping(0), 10, &answer), WEFT_E_FULL);
  (void)pthread_mutex_unlock(&w.lock);
  while (atomic_load(&w.count) < 20) {
  }
  weft_runtime_stats stats;
  weft_runtime_stats_get(w.rt, &stats);
  assert_int_equal(stats.dropped_full, 3);
  stop_and_drop(&w);
}

static void nothing_gets_into_a_runtime_that_has_ended(void **state)
{
  (void)state;
  world w;
  make(&w, 1, 0);
  assert_ok(weft_runtime_start_all(w.rt));
  const weft_actor_id id = spawn_on(&w, 0, server_on, NULL);
  weft_runtime_stop(w.rt, 1000);
  weft_runtime_join(w.rt);
  assert_err(weft_post(w.rt, id, ping(1)), WEFT_E_DOWN);
  weft_msg *answer = NULL;
  assert_err(weft_call(w.rt, id, ping(1), 0, &answer), WEFT_E_DOWN);
  weft_actor_id other = 0;
  const puppet_args args = { .on = server_on, .arg = &w };
  assert_err(weft_runtime_spawn(w.rt, 0, &puppet_class, &args, NULL, &other),
             WEFT_E_CLOSED);
  assert_err(weft_runtime_spawn(w.rt, 1, &puppet_class, &args, NULL, &other),
             WEFT_E_INVAL);
  drop(&w);
}

static weft_err failing_init(weft_ctx *ctx, void *arg)
{
  (void)ctx;
  (void)arg;
  return WEFT_E_EXISTS;
}

static void spawn_returns_what_init_returned(void **state)
{
  (void)state;
  world w;
  make(&w, 2, 0);
  const puppet_args args = { .on = server_on, .arg = &w, .init = failing_init };
  weft_actor_id id = 0;
  assert_err(weft_runtime_spawn(w.rt, 1, &puppet_class, &args, NULL, &id), WEFT_E_EXISTS);
  assert_ok(weft_runtime_start_all(w.rt));
  assert_err(weft_runtime_start_all(w.rt), WEFT_E_STATE);
  assert_err(weft_runtime_spawn(w.rt, 1, &puppet_class, &args, NULL, &id), WEFT_E_EXISTS);
  assert_int_equal(id, 0);
  stop_and_drop(&w);
}

static void a_runtime_that_never_ran_can_be_destroyed(void **state)
{
  (void)state;
  world w;
  make(&w, 3, 0);
  const weft_actor_id id = spawn_on(&w, 2, server_on, NULL);
  assert_ok(weft_post(w.rt, id, ping(1)));
  drop(&w);
}

/* ---- across loops */

typedef struct asking {
  world *w;
  int rounds, done;
  uint32_t what;
} asking;

static weft_err across_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  asking *a = arg;
  if (msg->type == WEFT_MSG_STOP) {
    return WEFT_E_STATE;
  }
  if (msg->type != SAMPLE_GO) {
    a->done++;
    if (msg->type == WEFT_MSG_ASK_FAILED) {
      atomic_fetch_add(&a->w->failures[((const weft_ask_failed_msg *)msg)->reason], 1);
    } else {
      atomic_fetch_add(&a->w->failures[0], 1);
    }
    if (a->done == a->rounds) {
      weft_runtime_stop(a->w->rt, 10000);
    }
    return WEFT_OK;
  }
  for (int i = 0; i < a->rounds; i++) {
    const sample_ping m = { .h = { .type = SAMPLE_PING }, .n = a->what };
    (void)weft_ask(ctx, a->w->target, weft_msg_make(ctx, &m.h),
                   a->what == 2000 ? 20 : 10000);
  }
  return WEFT_OK;
}

static void ask_across(world *w, asking *a, size_t mailbox)
{
  w->target = spawn_on(w, 1, server_on, &(weft_spawn_opts){ .mailbox = mailbox });
  const puppet_args args = { .on = across_on, .arg = a };
  const weft_spawn_opts large = { .mailbox = 4096 };
  weft_actor_id id = 0;
  assert_ok(weft_runtime_spawn(w->rt, 0, &puppet_class, &args, &large, &id));
  assert_ok(weft_post(w->rt, id, go_msg()));
  assert_ok(weft_runtime_start(w->rt));
  weft_runtime_run(w->rt);
}

static void questions_cross_loops(void **state)
{
  (void)state;
  for (unsigned spin = 0; spin <= 20; spin += 20) {
    world w;
    make(&w, 2, spin);
    asking a = { &w, 1000, 0, 5 };
    ask_across(&w, &a, 4096);
    assert_int_equal(w.failures[0], 1000);
    assert_int_equal(w.count, 1000);
    drop(&w);
  }
}

/* Asks a lot and takes nothing in until all was answered. */
static weft_err hoarder_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  asking *a = arg;
  world *w = a->w;
  if (msg->type == SAMPLE_GO) {
    for (int i = 0; i < a->rounds; i++) {
      const sample_ping m = { .h = { .type = SAMPLE_PING }, .n = 1 };
      (void)weft_ask(ctx, w->target, weft_msg_make(ctx, &m.h), 0);
    }
    return weft_timer_start(ctx, 0, 0) != 0 ? WEFT_OK : WEFT_E_NOMEM;
  }
  if (msg->type == WEFT_MSG_TIMER) { /* the questions are on their way */
    atomic_store(&w->holds, true);
    while (atomic_load(&w->count) < a->rounds) {
    }
    return WEFT_OK;
  }
  if (msg->type == WEFT_MSG_STOP) {
    return WEFT_E_STATE;
  }
  if (msg->type == WEFT_MSG_ASK_FAILED) {
    w->failures[((const weft_ask_failed_msg *)(const void *)msg)->reason]++;
  } else {
    w->failures[0]++;
  }
  if (++a->done == a->rounds) {
    weft_runtime_stop(w->rt, 0);
  }
  return WEFT_OK;
}

/* Answers too, once it may; does not end when its answer finds no room. */
static weft_err patient_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  while (!atomic_load(&w->holds)) {
  }
  (void)server_on(ctx, arg, msg);
  return WEFT_OK;
}

static void answers_lost_across_loops_are_told_as_such(void **state)
{
  (void)state;
  enum { QUESTIONS = 50 };
  world w;
  make(&w, 2, 0);
  asking a = { &w, QUESTIONS, 0, 0 };
  w.target = spawn_on(&w, 1, patient_on, NULL);
  const puppet_args args = { .on = hoarder_on, .arg = &a };
  const weft_spawn_opts small = { .mailbox = 8 };
  weft_actor_id id = 0;
  assert_ok(weft_runtime_spawn(w.rt, 0, &puppet_class, &args, &small, &id));
  assert_ok(weft_post(w.rt, id, go_msg()));
  assert_ok(weft_runtime_start(w.rt));
  weft_runtime_run(w.rt);
  assert_int_equal(w.count, QUESTIONS); /* all got there */
  assert_int_equal(w.failures[0], 10);  /* 8 and a quarter more */
  assert_int_equal(w.failures[WEFT_E_LOST], QUESTIONS - 10);
  drop(&w);
}

/* As a link does when its peer fails: bad news as the answer. */
static weft_err bad_news_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  (void)arg;
  if (msg->type != SAMPLE_PING) {
    return WEFT_E_STATE;
  }
  weft_ask_failed_msg *m =
      (weft_ask_failed_msg *)(void *)weft_msg_new(ctx, WEFT_MSG_ASK_FAILED, sizeof *m);
  if (m == NULL) {
    return WEFT_E_NOMEM;
  }
  m->reason = WEFT_E_LIMIT;
  return weft_reply(ctx, weft_return_of(msg), &m->h);
}

static weft_err one_by_one_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  asking *a = arg;
  world *w = a->w;
  if (msg->type == WEFT_MSG_ASK_FAILED) {
    w->failures[((const weft_ask_failed_msg *)(const void *)msg)->reason]++;
    a->done++;
  }
  if (a->done == a->rounds) {
    weft_runtime_stop(w->rt, 0);
    return WEFT_OK;
  }
  const sample_ping m = { .h = { .type = SAMPLE_PING }, .n = 1 };
  (void)weft_ask(ctx, w->target, weft_msg_make(ctx, &m.h), 0);
  return WEFT_OK;
}

static void bad_news_across_loops_takes_up_no_room_for_ever(void **state)
{
  (void)state;
  enum { QUESTIONS = 100 };
  world w;
  make(&w, 2, 0);
  asking a = { &w, QUESTIONS, 0, 0 };
  w.target = spawn_on(&w, 1, bad_news_on, NULL);
  const puppet_args args = { .on = one_by_one_on, .arg = &a };
  const weft_spawn_opts small = { .mailbox = 8 };
  weft_actor_id id = 0;
  assert_ok(weft_runtime_spawn(w.rt, 0, &puppet_class, &args, &small, &id));
  assert_ok(weft_post(w.rt, id, go_msg()));
  assert_ok(weft_runtime_start(w.rt));
  weft_runtime_run(w.rt);
  assert_int_equal(w.failures[WEFT_E_LIMIT], QUESTIONS);
  drop(&w);
}

static void bad_news_as_an_answer_fails_a_call(void **state)
{
  (void)state;
  world w;
  make(&w, 2, 0);
  assert_ok(weft_runtime_start_all(w.rt));
  const weft_actor_id id = spawn_on(&w, 1, bad_news_on, NULL);
  weft_msg *answer = NULL;
  assert_err(weft_call(w.rt, id, ping(1), 10000, &answer), WEFT_E_LIMIT);
  assert_null(answer);
  stop_and_drop(&w);
}

static void full_mailboxes_are_told_across_loops(void **state)
{
  (void)state;
  world w;
  make(&w, 2, 0);
  asking a = { &w, 1000, 0, 5 };
  ask_across(&w, &a, 10);
  assert_true(w.failures[WEFT_E_FULL] > 0);
  assert_int_equal(w.failures[0] + w.failures[WEFT_E_FULL], 1000);
  assert_int_equal(w.failures[0], w.count);
  drop(&w);
}

static void death_is_told_across_loops(void **state)
{
  (void)state;
  world w;
  make(&w, 2, 0);
  asking a = { &w, 500, 0, 1000 };
  ask_across(&w, &a, 4096);
  assert_int_equal(w.failures[WEFT_E_DOWN], 500);
  drop(&w);
}

static void silence_times_out_across_loops(void **state)
{
  (void)state;
  world w;
  make(&w, 2, 0);
  asking a = { &w, 50, 0, 2000 };
  ask_across(&w, &a, 4096);
  assert_int_equal(w.failures[WEFT_E_TIMEOUT], 50);
  drop(&w);
}

static weft_err far_watcher_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  if (msg->type == SAMPLE_GO) {
    const sample_ping bang = { .h = { .type = SAMPLE_PING }, .n = 1000 };
    (void)weft_monitor(ctx, w->target);
    (void)weft_send(ctx, w->target, weft_msg_make(ctx, &bang.h));
    return WEFT_OK;
  }
  if (msg->type == WEFT_MSG_DOWN) {
    const weft_down_msg *d = (const weft_down_msg *)msg;
    if (d->who != w->target) {
      atomic_fetch_add(&w->errors, 1);
    }
    atomic_fetch_add(&w->failures[d->reason], 1);
    if (d->reason == WEFT_E_DOWN) { /* the second one: it was dead already */
      weft_runtime_stop(w->rt, 10000);
      return WEFT_OK;
    }
    return weft_monitor(ctx, w->target);
  }
  return WEFT_E_STATE;
}

static void monitors_work_across_loops(void **state)
{
  (void)state;
  world w;
  make(&w, 2, 0);
  w.target = spawn_on(&w, 1, server_on, NULL);
  const weft_actor_id id = spawn_on(&w, 0, far_watcher_on, NULL);
  assert_ok(weft_post(w.rt, id, go_msg()));
  assert_ok(weft_runtime_start(w.rt));
  weft_runtime_run(w.rt);
  assert_int_equal(w.failures[WEFT_E_FAILED], 1);
  assert_int_equal(w.failures[WEFT_E_DOWN], 1);
  drop(&w);
}

/* ---- the end */

typedef struct root_args {
  world *w;
  char name;
  int stop_ms; /* -1: never by itself */
} root_args;

static weft_err root_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  *(root_args *)self = *(const root_args *)args;
  return WEFT_OK;
}

static void root_fini(weft_ctx *ctx, void *self)
{
  (void)ctx;
  const root_args *r = self;
  note(r->w, r->name);
}

static weft_err root_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  const root_args *r = self;
  if (msg->type == WEFT_MSG_STOP) {
    note(r->w, (char)(r->name - 'a' + 'A'));
    if (r->stop_ms == 0) {
      return WEFT_E_STATE;
    }
    if (r->stop_ms > 0) {
      (void)weft_timer_start(ctx, (uint64_t)r->stop_ms, 0);
    } else {
      weft_runtime_stop(r->w->rt, 10); /* shortens the time that there is */
    }
  } else if (msg->type == WEFT_MSG_TIMER) {
    weft_stop(ctx, WEFT_OK);
  }
  return WEFT_OK;
}

static const weft_actor_class root_class = { "root", sizeof(root_args), root_init,
                                             root_fini, root_on };

static void roots_stop_newest_first_each_in_its_time(void **state)
{
  (void)state;
  world w;
  make(&w, 2, 0);
  static const int stop_ms[] = { 0, 20, 0, 5 };
  for (int i = 0; i < 4; i++) {
    const root_args args = { &w, (char)('a' + i), stop_ms[i] };
    assert_ok(
        weft_runtime_spawn(w.rt, (unsigned)i % 2, &root_class, &args, NULL, &w.ids[i]));
  }
  weft_runtime_stop(w.rt, 60000); /* before it runs: takes effect then */
  weft_runtime_stop(w.rt, 60000); /* again: nothing new */
  assert_ok(weft_runtime_start(w.rt));
  weft_runtime_run(w.rt);
  assert_string_equal(w.order, "DdCcBbAa");
  drop(&w);
}

static void who_does_not_end_in_time_is_ended(void **state)
{
  (void)state;
  world w;
  make(&w, 2, 0);
  for (int i = 0; i < 3; i++) {
    const root_args args = { &w, (char)('a' + i), i == 1 ? -1 : 0 };
    assert_ok(
        weft_runtime_spawn(w.rt, (unsigned)i % 2, &root_class, &args, NULL, &w.ids[i]));
  }
  assert_ok(weft_runtime_start_all(w.rt));
  weft_runtime_stop(w.rt, 60000); /* time enough to get to b, which takes 10 ms of it */
  weft_runtime_join(w.rt);
  assert_int_equal(strlen(w.order), 5);
  assert_memory_equal(w.order, "CcB", 3); /* then a and b, each on its loop */
  drop(&w);
}

static void log_to(void *arg, weft_log_level level, const char *who, const char *line)
{
  world *w = arg;
  if (level != WEFT_LOG_WARN || strcmp(who, "talker") != 0 ||
      strcmp(line, "two lines n=7") != 0) {
    atomic_fetch_add(&w->errors, 1);
  }
  atomic_fetch_add(&w->count, 1);
}

static weft_err talker_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  (void)arg;
  if (msg->type != SAMPLE_GO) {
    return WEFT_E_STATE;
  }
  weft_log(ctx, WEFT_LOG_DEBUG, "not wanted");
  weft_log(ctx, WEFT_LOG_WARN, "two\nlines n=%d", 7);
  weft_runtime_stop(weft_ctx_runtime(ctx), 1000);
  return WEFT_OK;
}

static void log_lines_are_lines_of_the_wanted_level(void **state)
{
  (void)state;
  world w;
  memset(&w, 0, sizeof w);
  const weft_runtime_opts opts = { .size = sizeof opts,
                                   .loops = 1,
                                   .catalogue = &sample_catalogue,
                                   .log = log_to,
                                   .log_arg = &w,
                                   .log_level = WEFT_LOG_INFO };
  assert_ok(weft_runtime_create(&opts, &w.rt));
  assert_ptr_equal(weft_runtime_catalogue(w.rt), &sample_catalogue);
  assert_null(weft_runtime_loop(w.rt, 1));
  const weft_actor_id id =
      spawn_on(&w, 0, talker_on, &(weft_spawn_opts){ .name = "talker" });
  assert_ok(weft_post(w.rt, id, go_msg()));
  weft_runtime_run(w.rt);
  assert_int_equal(w.count, 1);
  assert_int_equal(w.errors, 0);
  weft_runtime_destroy(w.rt);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_call_gets_its_answer),
    cmocka_unit_test(host_types_travel_too),
    cmocka_unit_test(an_answer_that_is_a_failure_fails_the_call),
    cmocka_unit_test(a_call_ends_whatever_happens),
    cmocka_unit_test(a_held_call_ends_with_its_holder),
    cmocka_unit_test(posts_are_bounded_and_reserved_room_is_kept),
    cmocka_unit_test(nothing_gets_into_a_runtime_that_has_ended),
    cmocka_unit_test(spawn_returns_what_init_returned),
    cmocka_unit_test(a_runtime_that_never_ran_can_be_destroyed),
    cmocka_unit_test(questions_cross_loops),
    cmocka_unit_test(answers_lost_across_loops_are_told_as_such),
    cmocka_unit_test(bad_news_across_loops_takes_up_no_room_for_ever),
    cmocka_unit_test(bad_news_as_an_answer_fails_a_call),
    cmocka_unit_test(full_mailboxes_are_told_across_loops),
    cmocka_unit_test(death_is_told_across_loops),
    cmocka_unit_test(silence_times_out_across_loops),
    cmocka_unit_test(monitors_work_across_loops),
    cmocka_unit_test(roots_stop_newest_first_each_in_its_time),
    cmocka_unit_test(who_does_not_end_in_time_is_ended),
    cmocka_unit_test(log_lines_are_lines_of_the_wanted_level),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
