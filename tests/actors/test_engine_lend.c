#include "weft_test.h"

#include "world.h"

#include <stdio.h>
#include <string.h>

/* The engine whose joined ranks come back without weights: who is asked to lend them, who
 * to fetch them, and when nobody is. */

enum { BACK_MS = 4000 /* fenced, adopted, and what one loan takes */ };

static world w;

static void start(uint32_t ranks, bool joined)
{
  const world_opts opts = { .seed = 1, .ranks = ranks, .joined = joined };
  world_start(&w, &opts);
  world_run(&w, 100);
  assert_true(world_all_ready(&w));
}

static void stop(void)
{
  const bool broken = w.broken;
  world_stop(&w);
  if (broken) {
    fail_msg("%s", w.why);
  }
}

static void expect(const world_answer *a, weft_err err)
{
  if (w.broken || !a->came || a->err != err) {
    fail_msg("%s: got %s, want %s: %s", a->came ? "answered" : "not answered",
             weft_err_name(a->err), weft_err_name(err), w.broken ? w.why : a->message);
  }
}

static void push(const char *info)
{
  expect(world_begin(&w, 0), WEFT_OK);
  expect(world_update(&w, 0, info, 0), WEFT_OK);
  expect(world_finish(&w, 0, "v", 0), WEFT_OK);
}

static void kill_rank(uint32_t rank)
{
  weft_sim_kill(w.sim, w.workers[rank].actor);
}

static void set_fault(uint32_t rank, uint16_t type, enum world_fault_kind kind, bool once)
{
  w.workers[rank].fault = (world_fault){ .type = type, .once = once };
  w.workers[rank].fault.kind = kind;
}

static void ready(void)
{
  expect(world_query(&w, 2, WEFT_QUERY_READY), WEFT_OK);
}

static void not_ready(const char *why)
{
  const world_answer *a = world_query(&w, 2, WEFT_QUERY_READY);
  expect(a, WEFT_E_UNAVAIL);
  if (strstr(a->message, why) == NULL) {
    fail_msg("not ready: %s", a->message);
  }
}

/* Rank 1 comes back, and will do that when it is asked to fetch. */
static void kill_and(enum world_fault_kind kind, bool once)
{
  set_fault(0, WEFT_MSG_W_LEND, FAULT_SLOW, true);
  w.workers[0].fault.slow_ms = 500;
  kill_rank(1);
  world_run(&w, 300);
  set_fault(1, WEFT_MSG_W_FETCH, kind, once);
}

static unsigned lends(void)
{
  unsigned n = 0;
  for (uint32_t i = 0; i < w.ranks; i++) {
    n += w.workers[i].lends;
  }
  return n;
}

static void a_rank_that_came_back_gets_its_weights(void **state)
{
  (void)state;
  start(2, true);
  push("{\"v\":1}");
  for (unsigned i = 1; i <= 3; i++) {
    kill_rank(1);
    world_run(&w, BACK_MS);
    ready();
    assert_int_equal(w.workers[1].fetches, i);
    assert_int_equal(w.workers[0].lends, i);
    assert_int_equal(w.workers[1].live, w.workers[0].live);
    assert_int_equal(w.workers[1].live_sequence, 1);
  }
  push("{\"v\":2}");
  ready();
  assert_int_equal(w.workers[1].fetches, 3);
  stop();
}

static void children_and_shards_ask_nobody(void **state)
{
  (void)state;
  for (unsigned shards = 0; shards < 2; shards++) {
    start(2, shards != 0);
    w.shards = shards != 0;
    expect(world_begin(&w, 0), WEFT_OK);
    expect(world_update(&w, 0, shards ? "[{},{}]" : "{}", 0), WEFT_OK);
    w.workers[1].staged ^= shards; /* an entry for each */
    expect(world_finish(&w, 0, "v", 0), WEFT_OK);
    kill_rank(1);
    world_run(&w, 3 * BACK_MS);
    not_ready("rank 1 is behind: it has no weights; a full update brings it back");
    assert_int_equal(lends(), 0);
    stop();
  }
}

static void before_the_first_push_there_is_nothing_to_ask_for(void **state)
{
  (void)state;
  start(2, true);
  kill_rank(1);
  world_run(&w, 3 * BACK_MS);
  ready();
  assert_int_equal(lends(), 0);
  stop();
}

static void all_dead_is_behind_until_a_push(void **state)
{
  (void)state;
  start(2, true);
  push("{\"v\":1}");
  kill_rank(0);
  kill_rank(1);
  world_run(&w, 3 * BACK_MS);
  not_ready("rank 0 is behind: it has no weights; a full update brings it back");
  assert_int_equal(lends(), 0);
  push("{\"v\":2}");
  ready();
  stop();
}

static void another_lender_is_tried_after_one_that_fails(void **state)
{
  (void)state;
  static const enum world_fault_kind kinds[] = { FAULT_REFUSE, FAULT_MUTE, FAULT_CRASH };
  for (size_t k = 0; k < 3; k++) {
    start(3, true);
    push("{\"v\":1}");
    set_fault(2, WEFT_MSG_W_LEND, kinds[k], true);
    kill_rank(1);
    world_run(&w, 20000);
    ready();
    assert_true(w.workers[2].lends >= 1);
    assert_true(w.workers[0].lends >= 1);
    assert_true(w.workers[1].fetches >= 1);
    stop();
  }
}

static void where_no_rank_can_lend_it_is_said_and_not_asked_again(void **state)
{
  (void)state;
  start(3, true);
  push("{\"v\":1}");
  w.workers[0].cannot_lend = w.workers[2].cannot_lend = true;
  kill_rank(1);
  world_run(&w, 60000);
  not_ready("rank 1 is behind: no rank can lend it its weights: a full update brings it "
            "back");
  assert_int_equal(lends(), 2);
  assert_int_equal(w.workers[1].fetches, 0);
  push("{\"v\":2}");
  ready();
  stop();
}

static void what_keeps_failing_is_named_and_tried_ever_more_rarely(void **state)
{
  (void)state;
  start(2, true);
  push("{\"v\":1}");
  kill_and(FAULT_REFUSE, false);
  world_run(&w, 10000);
  not_ready("did not get them from rank 0: made to refuse");
  world_run(&w, 290000);
  assert_true(w.workers[1].fetches >= 8);
  assert_true(w.workers[1].fetches <= 12); /* 1, 2, 4 … 60 s */
  w.workers[1].fault.type = 0;
  world_run(&w, 61000);
  ready();
  stop();
}

/* The worker says nothing, as one that copies; the session goes on over it. */
static void a_session_does_not_wait_and_is_not_waited_for(void **state)
{
  (void)state;
  start(2, true);
  push("{\"v\":1}");
  kill_and(FAULT_MUTE, true);
  world_run(&w, BACK_MS);
  assert_int_equal(w.workers[1].fetches, 1);
  not_ready("rank 1 is behind: it gets its weights from rank 0");
  expect(world_begin(&w, 0), WEFT_OK);
  world_run(&w, BACK_MS);
  assert_int_equal(lends(), 1); /* not while it is open */
  const weft_client_abort abort = { .h.type = WEFT_MSG_CLIENT_ABORT };
  expect(world_call(&w, 0, &abort.h, 5000), WEFT_OK);
  world_run(&w, BACK_MS);
  assert_int_equal(lends(), 2);
  ready();
  stop();
}

static void a_borrower_that_dies_meanwhile_is_helped_in_its_next_life(void **state)
{
  (void)state;
  start(2, true);
  push("{\"v\":1}");
  kill_and(FAULT_CRASH, true);
  world_run(&w, 3 * BACK_MS);
  ready();
  assert_int_equal(w.workers[1].fetches, 2);
  stop();
}

static void the_next_one_lends_at_once_when_the_lender_has_died(void **state)
{
  (void)state;
  start(3, true);
  push("{\"v\":1}");
  set_fault(2, WEFT_MSG_W_LEND, FAULT_SLOW, true);
  w.workers[2].fault.slow_ms = 500;
  kill_rank(1);
  world_run(&w, 300);
  set_fault(1, WEFT_MSG_W_FETCH, FAULT_REFUSE, true);
  while (w.workers[1].fetches == 0 && !w.broken) {
    world_run(&w, 10);
  }
  world_run(&w, 500); /* of the second that it would wait */
  assert_int_equal(lends(), 1);
  kill_rank(2);
  world_run(&w, 20); /* it is not back itself */
  assert_int_equal(w.workers[0].lends, 1);
  assert_int_equal(w.workers[1].live, w.workers[0].live);
  world_run(&w, 2 * BACK_MS);
  ready();
  stop();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_rank_that_came_back_gets_its_weights),
    cmocka_unit_test(children_and_shards_ask_nobody),
    cmocka_unit_test(before_the_first_push_there_is_nothing_to_ask_for),
    cmocka_unit_test(all_dead_is_behind_until_a_push),
    cmocka_unit_test(another_lender_is_tried_after_one_that_fails),
    cmocka_unit_test(where_no_rank_can_lend_it_is_said_and_not_asked_again),
    cmocka_unit_test(what_keeps_failing_is_named_and_tried_ever_more_rarely),
    cmocka_unit_test(a_session_does_not_wait_and_is_not_waited_for),
    cmocka_unit_test(a_borrower_that_dies_meanwhile_is_helped_in_its_next_life),
    cmocka_unit_test(the_next_one_lends_at_once_when_the_lender_has_died),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
