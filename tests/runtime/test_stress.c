#include "weft_test.h"

#include "puppet.h"
#include "sample_catalogue.h"
#include "weft/runtime.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Four loops, actors that ask each other at random, die at random and are started again,
 * threads that call from outside: every question ends exactly once. */

enum { LOOPS = 4, PER_LOOP = 4, ACTORS = LOOPS * PER_LOOP, ROUNDS = 1500, OPEN = 16 };
enum { CALLERS = 2, CALLS = 300 };

typedef struct world {
  weft_runtime *rt;
  _Atomic(weft_actor_id) servers[ACTORS];
  atomic_int finished;
  atomic_ulong asked, ended, strangers, answers, down, full, timeout, nomem;
  atomic_ulong calls_ended, calls_ok;
} world;

static uint64_t next_random(uint64_t *rng)
{
  *rng = *rng * 6364136223846793005u + 1442695040888963407u;
  return *rng >> 33;
}

/* ---- servers: answer, hold for a while, hold for ever, or die */

typedef struct server {
  world *w;
  int index;
  uint64_t rng;
  weft_return held[4];
  int held_count;
} server;

typedef struct server_args {
  world *w;
  int index;
} server_args;

static weft_err server_init(weft_ctx *ctx, void *self, const void *args)
{
  server *s = self;
  const server_args *a = args;
  s->w = a->w;
  s->index = a->index;
  s->rng = weft_random(ctx);
  atomic_store(&s->w->servers[s->index], weft_self(ctx));
  return WEFT_OK;
}

static weft_err answer(weft_ctx *ctx, weft_return to)
{
  char text[100] = { 'x' };
  const sample_mix m = { .h = { .type = SAMPLE_MIX }, .text = { text, sizeof text } };
  const weft_err err = weft_reply(ctx, to, weft_msg_make(ctx, &m.h));
  return err == WEFT_E_FULL || err == WEFT_E_DOWN || err == WEFT_E_NOMEM ? WEFT_OK : err;
}

static weft_err server_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  server *s = self;
  if (msg->type == WEFT_MSG_STOP) {
    return WEFT_E_STATE;
  }
  const uint64_t r = next_random(&s->rng) % 100;
  if (r < 1) {
    return WEFT_E_FAILED;
  }
  if (r < 10) { /* hold, and let go of an older one */
    const int i = s->held_count++ % 4;
    const weft_return old = s->held[i];
    s->held[i] = weft_return_of(msg);
    return old.corr != 0 ? answer(ctx, old) : WEFT_OK;
  }
  return answer(ctx, weft_return_of(msg));
}

static const weft_actor_class server_class = {
  .name = "server", .state_size = sizeof(server), .init = server_init, .on = server_on
};

/* ---- keepers: start the servers of a loop again */

typedef struct keeper {
  world *w;
  int loop;
  weft_actor_id ids[PER_LOOP];
} keeper;

static weft_err start(weft_ctx *ctx, keeper *k, int i)
{
  const server_args a = { k->w, k->loop * PER_LOOP + i };
  return weft_spawn(ctx, &server_class, &a, &(weft_spawn_opts){ .mailbox = 24 },
                    &k->ids[i]);
}

static weft_err keeper_init(weft_ctx *ctx, void *self, const void *args)
{
  keeper *k = self;
  *k = *(const keeper *)args;
  for (int i = 0; i < PER_LOOP; i++) {
    const weft_err err = start(ctx, k, i);
    if (err != WEFT_OK) {
      return err;
    }
  }
  return WEFT_OK;
}

static weft_err keeper_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  keeper *k = self;
  if (msg->type != WEFT_MSG_DOWN) {
    return WEFT_E_STATE;
  }
  for (int i = 0; i < PER_LOOP; i++) {
    if (k->ids[i] == ((const weft_down_msg *)msg)->who) {
      return start(ctx, k, i);
    }
  }
  return WEFT_E_STATE;
}

static const weft_actor_class keeper_class = {
  .name = "keeper", .state_size = sizeof(keeper), .init = keeper_init, .on = keeper_on
};

/* ---- askers */

typedef struct asker {
  world *w;
  uint64_t rng;
  int asked;
  uint64_t open[OPEN];
} asker;

static void ask_one(weft_ctx *ctx, asker *a, int slot)
{
  const weft_actor_id to = atomic_load(&a->w->servers[next_random(&a->rng) % ACTORS]);
  weft_msg *m;
  if (next_random(&a->rng) % 2 == 0) {
    const sample_ping ping = { .h = { .type = SAMPLE_PING }, .n = 1 };
    m = weft_msg_make(ctx, &ping.h);
  } else {
    weft_buf *b = weft_buf_create("bytes", 5);
    const sample_mix mix = { .h = { .type = SAMPLE_MIX }, .body = b };
    m = weft_msg_make(ctx, &mix.h);
    weft_buf_unref(b);
  }
  a->open[slot] = weft_ask(ctx, to, m, 1 + next_random(&a->rng) % 40);
  a->asked++;
  atomic_fetch_add(&a->w->asked, 1);
}

static weft_err asker_init(weft_ctx *ctx, void *self, const void *args)
{
  asker *a = self;
  a->w = *(world *const *)args;
  a->rng = weft_random(ctx);
  for (int i = 0; i < OPEN; i++) {
    ask_one(ctx, a, i);
  }
  return WEFT_OK;
}

static void count_end(world *w, const weft_msg *msg)
{
  if (msg->type != WEFT_MSG_ASK_FAILED) {
    atomic_fetch_add(&w->answers, 1);
    return;
  }
  const weft_err reason = (weft_err)((const weft_ask_failed_msg *)msg)->reason;
  if (reason == WEFT_E_DOWN) {
    atomic_fetch_add(&w->down, 1);
  } else if (reason == WEFT_E_FULL) {
    atomic_fetch_add(&w->full, 1);
  } else if (reason == WEFT_E_TIMEOUT) {
    atomic_fetch_add(&w->timeout, 1);
  } else {
    atomic_fetch_add(&w->nomem, 1);
  }
}

static weft_err asker_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  asker *a = self;
  if (msg->type == WEFT_MSG_STOP) {
    return WEFT_E_STATE;
  }
  int open = 0;
  int slot = -1;
  for (int i = 0; i < OPEN; i++) {
    open += a->open[i] != 0;
    slot = a->open[i] == msg->corr ? i : slot;
  }
  if (slot < 0) {
    atomic_fetch_add(&a->w->strangers, 1);
    return WEFT_OK;
  }
  atomic_fetch_add(&a->w->ended, 1);
  count_end(a->w, msg);
  a->open[slot] = 0;
  if (a->asked < ROUNDS) {
    ask_one(ctx, a, slot);
  } else if (open == 1) {
    atomic_fetch_add(&a->w->finished, 1);
  }
  return WEFT_OK;
}

static const weft_actor_class asker_class = {
  .name = "asker", .state_size = sizeof(asker), .init = asker_init, .on = asker_on
};

static void *caller(void *arg)
{
  world *w = arg;
  uint64_t rng = (uint64_t)(uintptr_t)&rng;
  for (int i = 0; i < CALLS; i++) {
    const sample_ping ping = { .h = { .type = SAMPLE_PING }, .n = 1 };
    const weft_actor_id to = atomic_load(&w->servers[next_random(&rng) % ACTORS]);
    weft_msg *out = NULL;
    if (weft_call(w->rt, to, weft_msg_dup(&sample_catalogue, &ping.h), 20, &out) ==
        WEFT_OK) {
      atomic_fetch_add(&w->calls_ok, 1);
      weft_msg_drop(&sample_catalogue, out);
    }
    atomic_fetch_add(&w->calls_ended, 1);
  }
  atomic_fetch_add(&w->finished, 1);
  return NULL;
}

static void run(unsigned spin_us)
{
  world *w = calloc(1, sizeof *w);
  assert_non_null(w);
  const weft_runtime_opts opts = { .size = sizeof opts,
                                   .loops = LOOPS,
                                   .catalogue = &sample_catalogue,
                                   .spin_us = spin_us };
  assert_ok(weft_runtime_create(&opts, &w->rt));
  weft_actor_id id = 0;
  for (unsigned i = 0; i < LOOPS; i++) {
    const keeper k = { .w = w, .loop = (int)i };
    assert_ok(weft_runtime_spawn(w->rt, i, &keeper_class, &k, NULL, &id));
  }
  assert_ok(weft_runtime_start_all(w->rt));
  for (unsigned i = 0; i < LOOPS; i++) {
    assert_ok(weft_runtime_spawn(w->rt, i, &asker_class, &w, NULL, &id));
  }
  pthread_t threads[CALLERS];
  for (int i = 0; i < CALLERS; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, caller, w), 0);
  }
  for (int i = 0; i < CALLERS; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  }
  while (atomic_load(&w->finished) < LOOPS + CALLERS) {
    (void)sched_yield();
  }
  weft_runtime_stop(w->rt, 10000);
  weft_runtime_join(w->rt);
  assert_int_equal(atomic_load(&w->asked), LOOPS * ROUNDS);
  assert_int_equal(atomic_load(&w->ended), LOOPS * ROUNDS);
  assert_int_equal(atomic_load(&w->strangers), 0);
  assert_int_equal(atomic_load(&w->nomem), 0);
  assert_int_equal(atomic_load(&w->calls_ended), CALLERS * CALLS);
  assert_true(atomic_load(&w->answers) > 0);
  assert_true(atomic_load(&w->down) > 0);
  weft_runtime_stats stats;
  weft_runtime_stats_get(w->rt, &stats);
  assert_int_equal(stats.actors, 0);
  weft_runtime_destroy(w->rt);
  free(w);
}

static void every_question_ends_once_blocking(void **state)
{
  (void)state;
  run(0);
}

static void every_question_ends_once_spinning(void **state)
{
  (void)state;
  run(5);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_question_ends_once_blocking),
    cmocka_unit_test(every_question_ends_once_spinning),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
