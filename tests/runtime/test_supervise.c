#include "weft_test.h"

#include "puppet.h"
#include "sample_catalogue.h"
#include "weft/sim.h"
#include "weft/supervise.h"

#include <stdlib.h>
#include <string.h>

/* Restarts, back-off, giving up and shutdown, with the fake clock. */

enum { NOTES_MAX = 256 };

typedef struct world {
  weft_sim *sim;
  weft_actor_id boss, listener, supervisor;
  weft_supervise_args args;
  uint64_t births[NOTES_MAX]; /* when the child's init ran */
  int born;
  int fail_births; /* so many inits fail */
  char order[64];
  weft_child_is notes[NOTES_MAX];
  int noted;
  int downs;
  weft_err down_reason;
  weft_child_is where;
  int answers;
  uint64_t asked;
} world;

typedef struct kid {
  world *w;
  char name;
} kid;

static weft_err kid_init(weft_ctx *ctx, void *self, const void *args)
{
  kid *k = self;
  *k = *(const kid *)args;
  if (k->w->fail_births > 0) {
    k->w->fail_births--;
    k->w = NULL;
    return WEFT_E_UNAVAIL;
  }
  assert_true(k->w->born < NOTES_MAX);
  k->w->births[k->w->born++] = weft_now_ms(ctx);
  return WEFT_OK;
}

static void kid_fini(weft_ctx *ctx, void *self)
{
  const kid *k = self;
  (void)ctx;
  if (k->w != NULL) {
    const size_t n = strlen(k->w->order);
    if (n + 1 < sizeof k->w->order) {
      k->w->order[n] = k->name;
    }
  }
}

/* PING makes it end with the error n, GO with OK. */
static weft_err kid_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  (void)self;
  if (msg->type == SAMPLE_PING) {
    return (weft_err)((const sample_ping *)msg)->n;
  }
  if (msg->type == SAMPLE_GO) {
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  }
  return WEFT_E_STATE;
}

static const weft_actor_class kid_class = { "kid", sizeof(kid), kid_init, kid_fini,
                                            kid_on };

static weft_err listener_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  (void)ctx;
  assert_int_equal(msg->type, WEFT_MSG_CHILD_IS);
  assert_true(w->noted < NOTES_MAX);
  w->notes[w->noted++] = *(const weft_child_is *)msg;
  return WEFT_OK;
}

/* GO: spawn the supervisor.  PING: ask where child n is. */
static weft_err boss_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  switch (msg->type) {
  case SAMPLE_GO:
    return weft_spawn(ctx, &weft_supervisor, &w->args, NULL, &w->supervisor);
  case SAMPLE_PING: {
    const weft_child_where m = { .h = { .type = WEFT_MSG_CHILD_WHERE },
                                 .index = ((const sample_ping *)msg)->n };
    w->asked = weft_ask(ctx, w->supervisor, weft_msg_make(ctx, &m.h), 0);
    return WEFT_OK;
  }
  case SAMPLE_PONG:
    weft_stop_other(ctx, w->supervisor);
    return WEFT_OK;
  case WEFT_MSG_CHILD_IS:
    assert_true(msg->corr == w->asked);
    w->where = *(const weft_child_is *)msg;
    w->answers++;
    return WEFT_OK;
  case WEFT_MSG_DOWN:
    w->downs++;
    w->down_reason = (weft_err)((const weft_down_msg *)msg)->reason;
    return WEFT_OK;
  default:
    return WEFT_E_STATE;
  }
}

static int setup(void **state)
{
  world *w = calloc(1, sizeof *w);
  assert_non_null(w);
  const weft_sim_opts opts = { .size = sizeof opts, .catalogue = &sample_catalogue };
  assert_ok(weft_sim_create(&opts, &w->sim));
  const puppet_args boss = { .on = boss_on, .arg = w };
  const puppet_args listener = { .on = listener_on, .arg = w };
  const weft_spawn_opts small = { .mailbox = 2 };
  assert_ok(weft_sim_spawn(w->sim, &puppet_class, &boss, NULL, &w->boss));
  assert_ok(weft_sim_spawn(w->sim, &puppet_class, &listener, &small, &w->listener));
  *state = w;
  return 0;
}

static int teardown(void **state)
{
  world *w = *state;
  weft_sim_destroy(w->sim);
  free(w);
  return 0;
}

static void send(world *w, weft_actor_id to, uint16_t type, uint32_t n)
{
  const sample_ping m = { .h = { .type = type }, .n = n };
  assert_ok(weft_sim_send(w->sim, to, &m.h));
}

static void run_for(world *w, uint64_t ms)
{
  weft_sim_run(w->sim, weft_sim_now_ms(w->sim) + ms);
}

static void start(world *w, const weft_child_spec *specs, uint32_t count)
{
  w->args.size = sizeof w->args;
  w->args.children = specs;
  w->args.count = count;
  w->args.listener = w->listener;
  send(w, w->boss, SAMPLE_GO, 0);
  run_for(w, 1);
}

/* Where child i is; the answer is checked to arrive. */
static weft_actor_id where(world *w, uint32_t i)
{
  const int before = w->answers;
  send(w, w->boss, SAMPLE_PING, i);
  while (w->answers == before) {
    assert_true(weft_sim_step(w->sim));
  }
  assert_int_equal(w->where.index, i);
  return w->where.id;
}

static void back_off_doubles_up_to_its_limit(void **state)
{
  world *w = *state;
  const kid a = { w, 'a' };
  const weft_child_spec spec = { .cls = &kid_class, .args = &a };
  w->args.backoff_min_ms = 100;
  w->args.backoff_max_ms = 500;
  w->args.healthy_ms = 1000;
  start(w, &spec, 1);
  static const uint64_t want[] = { 100, 200, 400, 500, 500 };
  for (int i = 0; i < 5; i++) {
    const uint64_t died = weft_sim_now_ms(w->sim);
    send(w, where(w, 0), SAMPLE_PING, WEFT_E_FAILED);
    while (w->born < i + 2) {
      run_for(w, 600);
    }
    assert_int_equal(w->births[i + 1] - died, want[i]);
    assert_true(where(w, 0) != 0);
    assert_int_equal(w->where.restarts, i + 1);
  }
}

static weft_err ticker_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  (void)arg;
  (void)msg;
  return weft_timer_start(ctx, 10, 0) != 0 ? WEFT_OK : WEFT_E_NOMEM;
}

static void a_healthy_child_starts_with_the_first_wait(void **state)
{
  world *w = *state;
  const kid a = { w, 'a' };
  const weft_child_spec spec = { .cls = &kid_class, .args = &a };
  const puppet_args ticker = { .on = ticker_on, .arg = w }; /* so that time passes */
  weft_actor_id t = 0;
  assert_ok(weft_sim_spawn(w->sim, &puppet_class, &ticker, NULL, &t));
  send(w, t, SAMPLE_GO, 0);
  w->args.backoff_min_ms = 100;
  w->args.backoff_max_ms = 10000;
  w->args.healthy_ms = 1000;
  start(w, &spec, 1);
  send(w, where(w, 0), SAMPLE_PING, WEFT_E_FAILED);
  run_for(w, 150);
  send(w, where(w, 0), SAMPLE_PING, WEFT_E_FAILED);
  run_for(w, 250);
  assert_int_equal(w->born, 3);
  run_for(w, 1200);
  const uint64_t died = weft_sim_now_ms(w->sim);
  send(w, where(w, 0), SAMPLE_PING, WEFT_E_FAILED);
  run_for(w, 150);
  assert_int_equal(w->born, 4);
  assert_int_equal(w->births[3] - died, 100);
}

static void restart_rules_are_kept(void **state)
{
  world *w = *state;
  const kid a = { w, 'a' };
  const weft_child_spec specs[] = {
    { .cls = &kid_class, .args = &a, .restart = WEFT_RESTART_ALWAYS },
    { .cls = &kid_class, .args = &a, .restart = WEFT_RESTART_ON_FAILURE },
    { .cls = &kid_class, .args = &a, .restart = WEFT_RESTART_NEVER },
  };
  start(w, specs, 3);
  for (uint32_t i = 0; i < 3; i++) {
    send(w, where(w, i), SAMPLE_GO, 0); /* ends well */
  }
  run_for(w, 1000);
  assert_true(where(w, 0) != 0);
  assert_true(where(w, 1) == 0);
  assert_int_equal(w->where.gone, 1);
  assert_int_equal(w->where.reason, WEFT_OK);
  assert_true(where(w, 2) == 0);
  assert_true(where(w, 3) == 0); /* there is none */
  assert_int_equal(w->where.gone, 1);
  assert_int_equal(w->born, 4);
}

static void failures_restart_unless_never(void **state)
{
  world *w = *state;
  const kid a = { w, 'a' };
  const weft_child_spec specs[] = {
    { .cls = &kid_class, .args = &a, .restart = WEFT_RESTART_ON_FAILURE },
    { .cls = &kid_class, .args = &a, .restart = WEFT_RESTART_NEVER },
  };
  start(w, specs, 2);
  send(w, where(w, 0), SAMPLE_PING, WEFT_E_PROTO);
  send(w, where(w, 1), SAMPLE_PING, WEFT_E_PROTO);
  run_for(w, 1000);
  assert_true(where(w, 0) != 0);
  assert_true(where(w, 1) == 0);
  assert_int_equal(w->where.reason, WEFT_E_PROTO);
  /* the last one that could be restarted ends well: nothing is left to do */
  send(w, where(w, 0), SAMPLE_GO, 0);
  run_for(w, 1000);
  assert_false(weft_sim_alive(w->sim, w->supervisor));
  assert_int_equal(w->down_reason, WEFT_OK);
}

static void it_gives_up_after_too_many_restarts_in_the_window(void **state)
{
  world *w = *state;
  const kid a = { w, 'a' };
  const weft_child_spec spec = { .cls = &kid_class, .args = &a };
  w->args.max_restarts = 3;
  w->args.window_ms = 1000;
  w->args.backoff_min_ms = 10;
  w->args.backoff_max_ms = 10;
  start(w, &spec, 1);
  for (int i = 0; i < 4; i++) {
    assert_true(weft_sim_alive(w->sim, w->supervisor));
    assert_int_equal(w->born, i + 1);
    send(w, where(w, 0), SAMPLE_PING, WEFT_E_FAILED);
    run_for(w, 20);
  }
  assert_int_equal(w->born, 4); /* once and three times again */
  assert_false(weft_sim_alive(w->sim, w->supervisor));
  assert_int_equal(w->downs, 1);
  assert_int_equal(w->down_reason, WEFT_E_FAILED);
}

static void restarts_far_apart_do_not_add_up(void **state)
{
  world *w = *state;
  const kid a = { w, 'a' };
  const weft_child_spec spec = { .cls = &kid_class, .args = &a };
  w->args.max_restarts = 2;
  w->args.window_ms = 300;
  w->args.backoff_min_ms = 160; /* two waits are longer than the window */
  w->args.backoff_max_ms = 160;
  start(w, &spec, 1);
  for (int i = 0; i < 20; i++) {
    send(w, where(w, 0), SAMPLE_PING, WEFT_E_FAILED);
    run_for(w, 200);
  }
  assert_int_equal(w->born, 21);
  assert_true(weft_sim_alive(w->sim, w->supervisor));
}

static void a_failed_init_is_tried_again(void **state)
{
  world *w = *state;
  const kid a = { w, 'a' };
  const weft_child_spec spec = { .cls = &kid_class, .args = &a };
  w->fail_births = 3;
  start(w, &spec, 1);
  assert_true(where(w, 0) == 0);
  assert_int_equal(w->where.reason, WEFT_E_UNAVAIL);
  run_for(w, 10000);
  assert_int_equal(w->born, 1);
  assert_true(where(w, 0) != 0);
  assert_int_equal(w->where.restarts, 3);
}

static void the_listener_hears_of_each_change(void **state)
{
  world *w = *state;
  const kid a = { w, 'a' };
  const weft_child_spec spec = { .cls = &kid_class, .args = &a };
  start(w, &spec, 1);
  const weft_actor_id first = where(w, 0);
  send(w, first, SAMPLE_PING, WEFT_E_PROTO);
  run_for(w, 1000);
  assert_int_equal(w->noted, 3);
  assert_true(w->notes[0].id == first);
  assert_true(w->notes[1].id == 0);
  assert_int_equal(w->notes[1].reason, WEFT_E_PROTO);
  assert_true(w->notes[2].id == where(w, 0));
  assert_int_equal(w->notes[2].restarts, 1);
}

static void a_full_listener_is_told_later(void **state)
{
  world *w = *state;
  const kid a = { w, 'a' };
  const weft_child_spec specs[] = {
    { .cls = &kid_class, .args = &a }, { .cls = &kid_class, .args = &a },
    { .cls = &kid_class, .args = &a }, { .cls = &kid_class, .args = &a },
    { .cls = &kid_class, .args = &a },
  };
  weft_sim_freeze(w->sim, w->listener, true);
  start(w, specs, 5); /* it has room for three */
  weft_sim_freeze(w->sim, w->listener, false);
  run_for(w, 1000);
  assert_int_equal(w->noted, 5);
  for (uint32_t i = 0; i < 5; i++) {
    assert_int_equal(w->notes[i].index, i);
  }
}

static void stop_ends_the_children_in_reverse_order(void **state)
{
  world *w = *state;
  const kid kids[] = { { w, 'a' }, { w, 'b' }, { w, 'c' } };
  weft_child_spec specs[3];
  for (int i = 0; i < 3; i++) {
    specs[i] = (weft_child_spec){ .cls = &kid_class, .args = &kids[i] };
  }
  start(w, specs, 3);
  send(w, where(w, 1), SAMPLE_PING, WEFT_E_FAILED); /* waits for its restart */
  run_for(w, 10);
  send(w, w->boss, SAMPLE_PONG, 0);
  run_for(w, 1000);
  assert_string_equal(w->order, "bca");
  assert_false(weft_sim_alive(w->sim, w->supervisor));
  assert_int_equal(w->downs, 1);
  assert_int_equal(w->down_reason, WEFT_OK);
  assert_int_equal(w->born, 3);
}

static void bad_arguments_are_refused(void **state)
{
  world *w = *state;
  weft_actor_id id = 0;
  weft_supervise_args args = { .size = sizeof args };
  assert_err(weft_sim_spawn(w->sim, &weft_supervisor, &args, NULL, &id), WEFT_E_INVAL);
  assert_err(weft_sim_spawn(w->sim, &weft_supervisor, NULL, NULL, &id), WEFT_E_INVAL);
  args.count = 1025;
  assert_err(weft_sim_spawn(w->sim, &weft_supervisor, &args, NULL, &id), WEFT_E_INVAL);
}

static void no_allocation_failure_loses_a_child(void **state)
{
  (void)state;
  for (uint64_t nth = 1; nth < 25; nth++) {
    void *fresh = NULL;
    assert_int_equal(setup(&fresh), 0);
    world *w = fresh;
    const kid a = { w, 'a' };
    const weft_child_spec spec = { .cls = &kid_class, .args = &a };
    start(w, &spec, 1);
    const weft_actor_id id = where(w, 0);
    const sample_ping m = { .h = { .type = SAMPLE_PING }, .n = WEFT_E_FAILED };
    assert_ok(weft_sim_send(w->sim, id, &m.h));
    weft_sim_fail_alloc(w->sim, nth);
    run_for(w, 5000);
    weft_sim_fail_alloc(w->sim, 0);
    if (weft_sim_alive(w->sim, w->supervisor)) {
      assert_true(where(w, 0) != 0);
    } else {
      assert_int_equal(w->down_reason, WEFT_E_NOMEM); /* and its parent knows */
    }
    assert_int_equal(teardown(&fresh), 0);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    T(back_off_doubles_up_to_its_limit),
    T(a_healthy_child_starts_with_the_first_wait),
    T(restart_rules_are_kept),
    T(failures_restart_unless_never),
    T(it_gives_up_after_too_many_restarts_in_the_window),
    T(restarts_far_apart_do_not_add_up),
    T(a_failed_init_is_tried_again),
    T(the_listener_hears_of_each_change),
    T(a_full_listener_is_told_later),
    T(stop_ends_the_children_in_reverse_order),
    T(bad_arguments_are_refused),
    cmocka_unit_test(no_allocation_failure_loses_a_child),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
