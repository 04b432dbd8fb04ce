/* Replicas that have gone another way than their coordinator: an operator decided too
 * early, the coordinator's record is an older one, an order was not heard.  None of it
 * may pass for agreement. */
#include "fleet_parties.h"
#include "fleet_test.h"

#include <stdlib.h>

static fleet_world w;

/* Replica 0 has voted for two; replica 1 says nothing. */
static void one_has_voted(void)
{
  push(&w, "{\"a\":1}", "one");
  fleet_run(&w, 2000);
  expect(&w, fleet_begin(&w, C), WEFT_OK);
  expect(&w, fleet_update(&w, C, "{\"a\":2}"), WEFT_OK);
  w.engines[1].ranks[0].mute = WEFT_MSG_W_FINISH;
  const weft_client_finish m = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                 .caller = 100,
                                 .timeout_ms = 8000,
                                 .has_version = 1,
                                 .version = WEFT_STR("two") };
  fleet_post(&w, 0, C, &m.h);
  fleet_run(&w, 500);
  assert_true(w.engines[0].upstream.doubt);
}

static void who_was_told_to_commit_too_early_is_named(void **state)
{
  (void)state;
  for (unsigned late = 0; late < 2; late++) {
    begin(&w, &(fleet_opts){ .seed = 1 + late });
    one_has_voted();
    fleet_cut(&w, 0, true);
    fleet_run(&w, late ? 3000 : 2300);
    w.astray = true;
    expect(&w, fleet_resolve(&w, 0, true), WEFT_OK);
    if (late) {
      fleet_run(&w, 3000); /* its ABORT is on the way meanwhile */
    }
    fleet_cut(&w, 0, false);
    fleet_run(&w, 6000);
    w.engines[1].ranks[0].mute = 0;
    assert_int_equal(w.answers[0].outcome, WEFT_OUTCOME_NOT_COMMITTED);
    fleet_run(&w, 6000);
    expect_version(&w, C, "one");
    const fleet_answer *a = fleet_query(&w, C, WEFT_QUERY_READY);
    expect(&w, a, WEFT_E_UNAVAIL);
    expect_text(a, "replica 0 is behind: it has weights of another time");
    expect(&w, fleet_query(&w, 0, WEFT_QUERY_INFO), WEFT_E_UNAVAIL);
    assert_false(fleet_serves(&w, 0, 0));
    assert_non_null(
        strstr(fleet_query(&w, C, WEFT_QUERY_STATUS)->body, "\"mixed\":true"));
    push(&w, "{\"a\":3}", "three");
    fleet_run(&w, 2500);
    expect_fleet(&w, "three");
    end(&w);
  }
}

static void who_was_told_what_the_fleet_has_serves_again(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_run(&w, 2000);
  expect(&w, fleet_begin(&w, C), WEFT_OK);
  expect(&w, fleet_update(&w, C, "{\"a\":2}"), WEFT_OK);
  w.engines[C].journal.hang = true;
  const weft_client_finish m = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                 .caller = 100,
                                 .has_version = 1,
                                 .version = WEFT_STR("two") };
  fleet_post(&w, 0, C, &m.h);
  fleet_run(&w, 500);
  fleet_cut(&w, 0, true);
  fleet_run(&w, 2500);
  w.astray = true;
  expect(&w, fleet_resolve(&w, 0, true), WEFT_OK);
  fleet_run(&w, 500);
  assert_false(fleet_serves(&w, 0, 0));
  fleet_cut(&w, 0, false);
  fleet_release_journal(&w, C);
  fleet_run(&w, 6000);
  expect(&w, &w.answers[0], WEFT_OK);
  expect_fleet(&w, "two");
  end(&w);
}

static void take_back(unsigned count)
{
  fleet_journal *j = &w.engines[C].journal;
  while (j->count > count) {
    fleet_record_free(&j->records[--j->count]);
  }
}

static void an_older_record_of_the_coordinator_gives_its_numbers_again(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  const unsigned kept = w.engines[C].journal.count;
  push(&w, "{\"a\":2}", "two");
  push(&w, "{\"a\":3}", "three");
  fleet_run(&w, 100);
  fleet_crash(&w, C);
  take_back(kept);
  w.change_count = 1; /* … and with it what anybody may have seen */
  for (unsigned i = 0; i < FLEET_ENGINES; i++) {
    w.engines[i].shown_age = 0;
  }
  fleet_restart(&w, C);
  fleet_run(&w, 5000);
  expect_version(&w, C, "one");
  expect(&w, fleet_query(&w, C, WEFT_QUERY_READY), WEFT_E_UNAVAIL);
  for (unsigned i = 0; i < 2; i++) {
    assert_false(fleet_serves(&w, i, 0));
  }
  push(&w, "{\"a\":4}", "four");
  fleet_run(&w, 100);
  expect_fleet(&w, "four");
  for (unsigned i = 0; i < 2; i++) {
    assert_int_equal(w.engines[i].ranks[0].live, fleet_content("{\"a\":4}"));
    assert_false(w.engines[i].upstream.doubt);
  }
  end(&w);
}

static void a_dead_coordinators_adoption_comes_too_late(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_crash(&w, C);
  fleet_cut(&w, 0, true); /* it hears nothing of the coordinator's next life, … */
  fleet_restart(&w, C);
  fleet_run(&w, 500);
  const uint64_t dead = w.engines[C].boot;
  assert_int_equal(w.engines[1].upstream.boot, dead);
  fleet_crash(&w, C);
  fleet_cut(&w, 0, false);
  fleet_restart(&w, C);
  fleet_run(&w, 5000);
  expect_fleet(&w, "one");
  for (unsigned i = 0; i < 6; i++) { /* … until this comes */
    const weft_w_adopt late = { .h.type = WEFT_MSG_W_ADOPT,
                                .boot = i % 3 == 2 ? w.engines[1].boot : dead,
                                .incarnation = w.engines[0].boot,
                                .op = 1 + i,
                                .world_size = 2,
                                .fleet = WEFT_STR("fleet"),
                                .echo_ns = i > 2 ? 1 : 0 };
    assert_int_equal(weft_sim_send(w.sim, w.engines[0].actor, &late.h), WEFT_OK);
    fleet_run(&w, 700);
    assert_int_equal(w.engines[0].upstream.boot, w.engines[C].boot);
    assert_true(fleet_serves(&w, 0, 0));
  }
  push(&w, "{\"a\":2}", "two");
  fleet_run(&w, 2000);
  expect_fleet(&w, "two");
  end(&w);
}

static void weights_of_another_time_are_served_by_nobody(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_run(&w, 2000);
  fleet_crash(&w, C);
  fleet_run(&w, 3000);
  take_back(0);
  w.fleet_id = "another";
  fleet_restart(&w, C);
  fleet_run(&w, 5000);
  expect(&w, fleet_query(&w, C, WEFT_QUERY_READY), WEFT_E_UNAVAIL);
  for (unsigned i = 0; i < 2; i++) {
    expect(&w, fleet_query(&w, i, WEFT_QUERY_INFO), WEFT_E_UNAVAIL);
    expect(&w, fleet_begin(&w, i),
           WEFT_E_CONFLICT); /* it has nothing to be brought up to */
    assert_false(fleet_serves(&w, i, 0));
  }
  end(&w);
}

static const weft_client_pause pausing = { .h.type = WEFT_MSG_CLIENT_PAUSE,
                                           .action = WEFT_PAUSE,
                                           .mode = { "keep", 4 } };
static const weft_client_pause resuming = { .h.type = WEFT_MSG_CLIENT_PAUSE,
                                            .action = WEFT_RESUME };

static const char *paused(unsigned engine)
{
  return fleet_query(&w, engine, WEFT_QUERY_PAUSED)->body;
}

/* Of one snapshot. */
static bool status_says(const char *what)
{
  return strstr(fleet_query(&w, C, WEFT_QUERY_STATUS)->body, what) != NULL;
}

static void a_resume_that_was_not_heard_is_told_again(void **state)
{
  (void)state;
  for (unsigned fenced = 0; fenced < 2; fenced++) {
    begin(&w, &(fleet_opts){ .seed = 1 + fenced });
    push(&w, "{\"a\":1}", "one");
    expect(&w, fleet_call(&w, 1, C, &pausing.h), WEFT_OK);
    fleet_cut(&w, 1, true);
    fleet_run(&w, fenced ? 15000 : 100);
    fleet_post(&w, 1, C, &resuming.h);
    fleet_run(&w, 8000);
    fleet_cut(&w, 1, false);
    fleet_run(&w, 40000);
    assert_true(w.answers[1].came && w.answers[1].err != WEFT_OK);
    assert_string_equal(w.answers[1].culprits, "replica 1");
    assert_string_equal(paused(C), "{\"is_paused\":false}");
    assert_string_equal(paused(0), "{\"is_paused\":false}");
    assert_string_equal(paused(1), "{\"is_paused\":false}");
    end(&w);
  }
}

static void a_restarted_coordinator_says_who_is_paused(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  expect(&w, fleet_call(&w, 1, C, &pausing.h), WEFT_OK);
  fleet_crash(&w, C);
  fleet_restart(&w, C);
  assert_string_equal(paused(C), "{\"is_paused\":false}"); /* nobody is in */
  fleet_run(&w, 5000);
  assert_string_equal(paused(C), "{\"is_paused\":true}");
  assert_true(status_says("\"paused\":true,\"paused_ms\":5"));
  expect(&w, fleet_call(&w, 1, C, &resuming.h), WEFT_OK);
  assert_string_equal(paused(C), "{\"is_paused\":false}"); /* with the answer */
  assert_true(status_says("\"paused\":false,\"paused_ms\":0,"));
  fleet_run(&w, 2000);
  assert_string_equal(paused(C), "{\"is_paused\":false}");
  expect(&w, fleet_call(&w, 1, 1, &pausing.h), WEFT_OK); /* by its own clients */
  fleet_run(&w, 1500);
  assert_string_equal(paused(C), "{\"is_paused\":true}");
  assert_string_equal(paused(0), "{\"is_paused\":false}");
  fleet_crash(&w, 1);
  fleet_run(&w, 1000);
  assert_string_equal(paused(C), "{\"is_paused\":false}");
  end(&w);
}

static void a_lease_counts_the_pause_of_a_replica(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1, .pause_lease_ms = 20000 });
  push(&w, "{\"a\":1}", "one");
  expect(&w, fleet_call(&w, 1, C, &pausing.h), WEFT_OK);
  fleet_crash(&w, C);
  fleet_restart(&w, C);
  fleet_run(&w, 15000);
  expect(&w, fleet_query(&w, C, WEFT_QUERY_READY), WEFT_OK);
  fleet_run(&w, 10000);
  const fleet_answer *a = fleet_query(&w, C, WEFT_QUERY_READY);
  expect(&w, a, WEFT_E_UNAVAIL);
  expect_text(a, "--pause-lease");
  expect(&w, fleet_call(&w, 1, C, &resuming.h), WEFT_OK);
  expect(&w, fleet_query(&w, C, WEFT_QUERY_READY), WEFT_OK);
  end(&w);
}

static void a_mixed_fleet_is_not_ready(void **state)
{
  (void)state;
  unsigned mixed = 0;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_run(&w, 100);
  fleet_crash(&w, 1);
  fleet_restart(&w, 1);
  fleet_run(&w, 5000);
  expect(&w, fleet_begin(&w, 1), WEFT_OK); /* the same weights by another name */
  expect(&w, fleet_update(&w, 1, "{\"a\":1}"), WEFT_OK);
  expect(&w, fleet_finish(&w, 1, "uno"), WEFT_OK);
  for (unsigned i = 0; i < 600; i++) {
    fleet_run(&w, 1);
    if (status_says("\"mixed\":true")) {
      mixed++;
      assert_true(status_says("\"ready\":false") || !status_says("\"mixed\":true"));
    }
  }
  assert_true(mixed > 0);
  fleet_run(&w, 2000);
  expect_fleet(&w, "one");
  end(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(who_was_told_to_commit_too_early_is_named),
    cmocka_unit_test(who_was_told_what_the_fleet_has_serves_again),
    cmocka_unit_test(an_older_record_of_the_coordinator_gives_its_numbers_again),
    cmocka_unit_test(a_dead_coordinators_adoption_comes_too_late),
    cmocka_unit_test(weights_of_another_time_are_served_by_nobody),
    cmocka_unit_test(a_resume_that_was_not_heard_is_told_again),
    cmocka_unit_test(a_restarted_coordinator_says_who_is_paused),
    cmocka_unit_test(a_lease_counts_the_pause_of_a_replica),
    cmocka_unit_test(a_mixed_fleet_is_not_ready),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
