#include "weft_test.h"

#include "puppet.h"
#include "sample_catalogue.h"
#include "weft/sim.h"

#include <stdlib.h>
#include <string.h>

/* The seeded scheduler itself: same seed, same run; its faults; its clock. */

enum { PLAYERS = 6 };

typedef struct world {
  weft_sim *sim;
  weft_actor_id ids[PLAYERS];
  int delivered[8]; /* by type */
  int steps;
  weft_sim_fate fate;
  uint64_t delay_ms;
  weft_actor_id kill;
  uint64_t random;
  uint64_t at_ms;
  int finis;
} world;

static weft_sim_fate fate_of(void *arg, const weft_msg *msg, uint64_t *delay_ms)
{
  const world *w = arg;
  *delay_ms = w->delay_ms;
  return msg->type == SAMPLE_PING ? w->fate : WEFT_SIM_DELIVER;
}

static void on_step(void *arg, const weft_msg *msg)
{
  world *w = arg;
  w->steps++;
  if (w->kill != 0) {
    weft_sim_kill(w->sim, w->kill);
    assert_true(weft_sim_alive(w->sim, msg->to)); /* its turn is still on */
    w->kill = 0;
  }
}

static void open_sim(world *w, uint64_t seed)
{
  const weft_sim_opts opts = { .size = sizeof opts,
                               .seed = seed,
                               .catalogue = &sample_catalogue,
                               .fate = fate_of,
                               .step = on_step,
                               .arg = w };
  assert_ok(weft_sim_create(&opts, &w->sim));
}

static weft_actor_id spawn(world *w, puppet_fn *on)
{
  const puppet_args args = { .on = on, .arg = w };
  weft_actor_id id = 0;
  assert_ok(weft_sim_spawn(w->sim, &puppet_class, &args, NULL, &id));
  return id;
}

static void send(world *w, weft_actor_id to, uint16_t type)
{
  const sample_ping m = { .h = { .type = type } };
  assert_ok(weft_sim_send(w->sim, to, &m.h));
}

/* Passes the ball to a random player, sometimes after a while. */
static weft_err play_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  if (w->steps > 3000) {
    return WEFT_OK;
  }
  w->random ^= weft_random(ctx);
  if (msg->type != WEFT_MSG_TIMER && weft_random(ctx) % 4 == 0) {
    return weft_timer_start(ctx, weft_random(ctx) % 50, 0) != 0 ? WEFT_OK : WEFT_E_NOMEM;
  }
  const sample_ping m = { .h = { .type = SAMPLE_PING } };
  return weft_send(ctx, w->ids[weft_random(ctx) % PLAYERS], weft_msg_make(ctx, &m.h));
}

static uint64_t play(uint64_t seed)
{
  world w = { .fate = WEFT_SIM_DELIVER };
  open_sim(&w, seed);
  for (int i = 0; i < PLAYERS; i++) {
    w.ids[i] = spawn(&w, play_on);
  }
  for (int i = 0; i < PLAYERS; i++) {
    send(&w, w.ids[i], SAMPLE_PING);
  }
  weft_sim_run(w.sim, 1000000);
  assert_true(w.steps > 3000);
  const uint64_t hash = weft_sim_hash(w.sim) ^ w.random ^ weft_sim_random(w.sim);
  weft_sim_destroy(w.sim);
  return hash;
}

static void same_seed_same_run(void **state)
{
  (void)state;
  uint64_t seen[20];
  for (uint64_t seed = 0; seed < 20; seed++) {
    seen[seed] = play(seed);
    assert_true(seen[seed] == play(seed));
    for (uint64_t other = 0; other < seed; other++) {
      assert_true(seen[seed] != seen[other]);
    }
  }
}

static weft_err count_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  w->at_ms = weft_now_ms(ctx);
  if (msg->type < 8) {
    w->delivered[msg->type]++;
  }
  return WEFT_OK;
}

static void fates_are_done(void **state)
{
  (void)state;
  world w = { .fate = WEFT_SIM_DROP };
  open_sim(&w, 1);
  const weft_actor_id a = spawn(&w, count_on);
  send(&w, a, SAMPLE_PING);
  weft_sim_run(w.sim, 2000);
  assert_int_equal(w.delivered[SAMPLE_PING], 0);
  w.fate = WEFT_SIM_TWICE;
  send(&w, a, SAMPLE_PING);
  weft_sim_run(w.sim, 2000);
  assert_int_equal(w.delivered[SAMPLE_PING], 2);
  w.fate = WEFT_SIM_DELAY;
  w.delay_ms = 300;
  const uint64_t before = weft_sim_now_ms(w.sim);
  send(&w, a, SAMPLE_PING);
  w.fate = WEFT_SIM_DELIVER;
  send(&w, a, SAMPLE_PING); /* overtakes */
  weft_sim_run(w.sim, before + 299);
  assert_int_equal(w.delivered[SAMPLE_PING], 3);
  weft_sim_run(w.sim, before + 5000);
  assert_int_equal(w.delivered[SAMPLE_PING], 4);
  assert_int_equal(w.at_ms, before + 300);
  w.fate = WEFT_SIM_DELAY; /* one that is still on its way at the end */
  send(&w, a, SAMPLE_PING);
  weft_sim_destroy(w.sim);
}

static void run_stops_at_its_time_or_when_idle(void **state)
{
  (void)state;
  world w = { .fate = WEFT_SIM_DELAY, .delay_ms = 500 };
  open_sim(&w, 1);
  assert_int_equal(weft_sim_now_ms(w.sim), 1000);
  weft_sim_run(w.sim, 5000); /* nothing to do: the clock stays */
  assert_int_equal(weft_sim_now_ms(w.sim), 1000);
  const weft_actor_id a = spawn(&w, count_on);
  send(&w, a, SAMPLE_PING);
  weft_sim_run(w.sim, 1234);
  assert_int_equal(weft_sim_now_ms(w.sim), 1234);
  weft_sim_run(w.sim, 9000);
  assert_int_equal(weft_sim_now_ms(w.sim), 1500);
  weft_sim_destroy(w.sim);
}

static weft_err restless_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  (void)arg;
  (void)msg;
  return weft_send(ctx, weft_self(ctx), weft_msg_new(ctx, SAMPLE_GO, sizeof(weft_msg)));
}

static void run_ends_even_if_actors_never_rest(void **state)
{
  (void)state;
  world w = { .fate = WEFT_SIM_DELIVER };
  open_sim(&w, 1);
  send(&w, spawn(&w, restless_on), SAMPLE_GO);
  weft_sim_run(w.sim, 1003);
  assert_int_equal(weft_sim_now_ms(w.sim), 1003);
  weft_sim_destroy(w.sim);
}

static weft_err last_words_init(weft_ctx *ctx, void *arg)
{
  (void)ctx;
  (void)arg;
  return WEFT_OK;
}

static void last_words(weft_ctx *ctx, void *arg)
{
  world *w = arg;
  const sample_ping m = { .h = { .type = SAMPLE_PING } };
  w->finis++;
  (void)weft_send(ctx, w->ids[0], weft_msg_make(ctx, &m.h));
  (void)weft_ask(ctx, w->ids[0], weft_msg_make(ctx, &m.h), 0);
}

static void the_killed_say_nothing(void **state)
{
  (void)state;
  world w = { .fate = WEFT_SIM_DELIVER };
  open_sim(&w, 1);
  w.ids[0] = spawn(&w, count_on);
  const puppet_args args = {
    .on = restless_on, .arg = &w, .fini = last_words, .init = last_words_init
  };
  weft_actor_id a = 0;
  assert_ok(weft_sim_spawn(w.sim, &puppet_class, &args, NULL, &a));
  weft_sim_kill(w.sim, a);
  assert_false(weft_sim_alive(w.sim, a));
  weft_sim_run(w.sim, 2000);
  assert_int_equal(w.finis, 1); /* its memory is freed */
  assert_int_equal(w.delivered[SAMPLE_PING], 0);
  weft_sim_kill(w.sim, a);
  weft_sim_freeze(w.sim, a, true);
  weft_sim_destroy(w.sim);
}

static void the_step_function_may_kill_who_runs(void **state)
{
  (void)state;
  world w = { .fate = WEFT_SIM_DELIVER };
  open_sim(&w, 1);
  const weft_actor_id a = spawn(&w, restless_on);
  w.kill = a;
  send(&w, a, SAMPLE_GO);
  assert_true(weft_sim_step(w.sim));
  assert_false(weft_sim_alive(w.sim, a));
  assert_false(weft_sim_step(w.sim));
  assert_int_equal(w.steps, 1);
  weft_sim_destroy(w.sim);
}

static void sends_from_nobody_are_checked(void **state)
{
  (void)state;
  world w = { .fate = WEFT_SIM_DELIVER };
  open_sim(&w, 1);
  const weft_actor_id a = spawn(&w, count_on);
  const weft_msg host = { .type = WEFT_MSG_USER_FIRST };
  const weft_msg go = { .type = SAMPLE_GO };
  assert_err(weft_sim_send(w.sim, a, &host), WEFT_E_INVAL);
  assert_err(weft_sim_send(w.sim, 0, &go), WEFT_E_DOWN);
  weft_sim_fail_alloc(w.sim, 1);
  assert_err(weft_sim_send(w.sim, a, &go), WEFT_E_NOMEM);
  assert_ok(weft_sim_send(w.sim, a, &go));
  assert_non_null(weft_sim_state(w.sim, a));
  weft_sim *none = NULL;
  const weft_sim_opts bad = { .size = 3 };
  assert_err(weft_sim_create(&bad, &none), WEFT_E_INVAL);
  weft_sim_destroy(NULL);
  weft_sim_destroy(w.sim);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(same_seed_same_run),
    cmocka_unit_test(fates_are_done),
    cmocka_unit_test(run_stops_at_its_time_or_when_idle),
    cmocka_unit_test(run_ends_even_if_actors_never_rest),
    cmocka_unit_test(the_killed_say_nothing),
    cmocka_unit_test(the_step_function_may_kill_who_runs),
    cmocka_unit_test(sends_from_nobody_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
