/* Reads of a fleet's members while a change is on its way: none is told anything older
 * than what anybody has shown, and none waits for ever. */
#include "engine.h"
#include "fleet_test.h"

static fleet_world w;

static const engine *state_of(unsigned index)
{
  return weft_sim_state(w.sim, w.engines[index].actor);
}

static void post(unsigned index, weft_query what)
{
  const weft_client_query m = { .h.type = WEFT_MSG_CLIENT_QUERY, .what = what };
  fleet_post(&w, 2, index, &m.h);
}

static const fleet_answer *answer_within(uint64_t ms)
{
  fleet_run(&w, ms);
  if (!w.answers[2].came) {
    fail_msg("not answered within %" PRIu64 " ms", ms);
  }
  return &w.answers[2];
}

/* Replica 0 has confirmed "two", the coordinator waits for replica 1. */
static void half_publish(void)
{
  w.strict = true;
  expect(&w, fleet_begin(&w, C), WEFT_OK);
  expect(&w, fleet_update(&w, C, "{\"a\":2}"), WEFT_OK);
  w.engines[1].lose_question = WEFT_MSG_W_PUBLISH;
  const weft_client_finish m = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                 .caller = 100,
                                 .has_version = 1,
                                 .version = WEFT_STR("two") };
  fleet_post(&w, 0, C, &m.h);
  fleet_run(&w, 20);
  assert_true(w.engines[0].upstream.unshown);
  assert_false(w.engines[1].upstream.unshown);
  assert_false(w.answers[0].came);
}

static void half_published(void)
{
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_run(&w, 600);
  half_publish();
}

static void nobody_is_told_anything_older(void **state)
{
  (void)state;
  for (uint64_t seed = 1; seed <= 20; seed++) {
    begin(&w, &(fleet_opts){ .seed = seed, .replicas = 3 });
    w.strict = true;
    for (unsigned i = 0; i < 5; i++) {
      char info[32];
      char version[32];
      (void)snprintf(info, sizeof info, "{\"a\":%u}", i);
      (void)snprintf(version, sizeof version, "v%u", i);
      w.engines[i % 3].slow_ms = (uint32_t)(seed * 7 * i);
      push(&w, info, version);
      for (unsigned k = 0; k < 3; k++) {
        expect_version(&w, k, version); /* asked when finish had answered */
      }
    }
    assert_true(w.probed > 100);
    for (unsigned k = 0; k < 3; k++) {
      assert_int_equal(state_of(k)->up.reads.count, 0);
      assert_false(w.engines[k].upstream.unshown);
    }
    end(&w);
  }
}

static void what_does_not_tell_a_version_is_answered_at_once(void **state)
{
  (void)state;
  half_published();
  static const weft_query at_once[] = { WEFT_QUERY_READY, WEFT_QUERY_PAUSED };
  for (size_t i = 0; i < sizeof at_once / sizeof at_once[0]; i++) {
    post(0, at_once[i]);
    expect(&w, answer_within(5), WEFT_OK);
  }
  expect_version(&w, C, "one");
  expect_version(&w, 1, "one");
  static const weft_query held[] = { WEFT_QUERY_INFO, WEFT_QUERY_STATUS,
                                     WEFT_QUERY_VERSIONS, WEFT_QUERY_WEIGHTS,
                                     WEFT_QUERY_METRICS };
  for (unsigned i = 0; i < sizeof held / sizeof held[0]; i++) {
    const unsigned before = state_of(0)->up.reads.count;
    post(0, held[i]);
    fleet_run(&w, 5);
    assert_false(w.answers[2].came);
    assert_int_equal(state_of(0)->up.reads.count, before + 1);
  }
  end(&w); /* with reads that wait */
}

/* As long as the coordinator says that it has not shown it. */
static void members_go_on_answering_while_one_keeps_all_waiting(void **state)
{
  (void)state;
  half_published();
  unsigned older = 0;
  while (w.engines[0].upstream.unshown && older < 100) {
    post(0, WEFT_QUERY_INFO);
    const fleet_answer *a = answer_within(1100);
    expect(&w, a, WEFT_OK);
    older += strcmp(a->version, "one") == 0;
  }
  assert_in_range(older, 3, 20); /* replica 1 is fenced meanwhile */
  expect_version(&w, 0, "two");
  expect_version(&w, C, "two");
  end(&w);
}

/* It is the first change of this fleet: heartbeats say nothing about what is visible. */
static void a_read_waits_no_longer_than_a_grant(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  half_publish();
  post(0, WEFT_QUERY_INFO);
  fleet_run(&w, 1000);
  post(0, WEFT_QUERY_STATUS);
  fleet_run(&w, 950);
  assert_false(w.answers[2].came);
  const fleet_answer *a = answer_within(100);
  expect(&w, a, WEFT_E_UNAVAIL);
  expect_text(a, "a change is on its way through fleet fleet");
  expect_text(a, "ask again");
  w.answers[2].came = false;
  fleet_run(&w, 900);
  assert_false(w.answers[2].came);
  expect(&w, answer_within(110), WEFT_E_UNAVAIL); /* its own two seconds */
  fleet_run(&w, 8000);
  expect_version(&w, 0, "two");
  assert_false(w.engines[0].upstream.unshown);
  end(&w);
}

static void a_read_is_refused_when_the_grant_runs_out(void **state)
{
  (void)state;
  half_published();
  post(0, WEFT_QUERY_INFO);
  fleet_run(&w, 5);
  fleet_cut(&w, 0, true);
  const fleet_answer *a = answer_within(2000);
  expect(&w, a, WEFT_E_UNAVAIL);
  expect_text(a, "cut off from its coordinator");
  end(&w);
}

static void the_coordinators_next_life_lets_them_go(void **state)
{
  (void)state;
  half_published();
  fleet_crash(&w, C);
  post(0, WEFT_QUERY_INFO);
  fleet_run(&w, 5);
  assert_false(w.answers[2].came);
  expect(&w, answer_within(2000), WEFT_E_UNAVAIL); /* cut off */
  fleet_restart(&w, C);
  fleet_run(&w, 8000);
  expect_version(&w, 0, "two");
  expect_version(&w, 1, "two");
  assert_false(w.engines[0].upstream.unshown);
  end(&w);
}

static void those_beyond_the_room_are_told_to_ask_again(void **state)
{
  (void)state;
  half_published();
  for (unsigned i = state_of(0)->up.reads.count; i < 256; i++) {
    post(0, WEFT_QUERY_INFO);
  }
  fleet_run(&w, 5);
  assert_false(w.answers[2].came);
  assert_int_equal(state_of(0)->up.reads.count, 256);
  post(0, WEFT_QUERY_INFO);
  expect(&w, answer_within(5), WEFT_E_UNAVAIL);
  fleet_run(&w, 9000);
  assert_int_equal(state_of(0)->up.reads.count, 0);
  expect_version(&w, 0, "two");
  end(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(nobody_is_told_anything_older),
    cmocka_unit_test(what_does_not_tell_a_version_is_answered_at_once),
    cmocka_unit_test(members_go_on_answering_while_one_keeps_all_waiting),
    cmocka_unit_test(a_read_waits_no_longer_than_a_grant),
    cmocka_unit_test(a_read_is_refused_when_the_grant_runs_out),
    cmocka_unit_test(the_coordinators_next_life_lets_them_go),
    cmocka_unit_test(those_beyond_the_room_are_told_to_ask_again),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
