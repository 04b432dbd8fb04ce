/* A coordinator and its replicas: what goes well, what is refused, who may ask what. */
#include "engine.h"
#include "fleet_test.h"

static fleet_world w;

static void a_push_commits_on_all_replicas(void **state)
{
  (void)state;
  for (uint64_t seed = 1; seed <= 20; seed++) {
    begin(&w, &(fleet_opts){ .seed = seed, .replicas = 3, .ranks = 2 });
    push(&w, "{\"a\":1}", "step-1");
    fleet_run(&w, 50);
    expect_fleet(&w, "step-1");
    push(&w, "{\"a\":2}", "step-2");
    fleet_run(&w, 50);
    expect_fleet(&w, "step-2");
    for (unsigned i = 0; i < 3; i++) {
      assert_int_equal(w.engines[i].ranks[0].live, w.changes[1]);
      assert_int_equal(w.engines[i].shown, 2);
    }
    end(&w);
  }
}

static void nobody_shows_it_before_all_have_it(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_run(&w, 50);
  expect(&w, fleet_begin(&w, C), WEFT_OK);
  expect(&w, fleet_update(&w, C, "{\"a\":2}"), WEFT_OK);
  w.engines[1].journal.hang = true; /* its vote is not written yet */
  const weft_client_finish m = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                 .caller = 100,
                                 .has_version = 1,
                                 .version = WEFT_STR("two") };
  fleet_post(&w, 0, C, &m.h);
  fleet_run(&w, 1000);
  assert_false(w.answers[0].came);
  expect_version(&w, 0, "one");
  expect_version(&w, 1, "one");
  fleet_release_journal(&w, 1);
  fleet_run(&w, 50);
  expect(&w, &w.answers[0], WEFT_OK);
  expect_fleet(&w, "two");
  end(&w);
}

static void one_replica_refuses(void **state)
{
  (void)state;
  static const uint16_t types[] = { WEFT_MSG_W_START, WEFT_MSG_W_ACCEPT, WEFT_MSG_W_GO,
                                    WEFT_MSG_W_FINISH };
  for (size_t t = 0; t < 4; t++) {
    begin(&w, &(fleet_opts){ .seed = t });
    push(&w, "{\"a\":1}", "one");
    w.engines[1].ranks[0].refuse = types[t];
    const fleet_answer *a = fleet_begin(&w, C);
    a = a->err == WEFT_OK ? fleet_update(&w, C, "{\"a\":2}") : a;
    a = a->err == WEFT_OK ? fleet_finish(&w, C, "two") : a;
    assert_int_not_equal(a->err, WEFT_OK);
    assert_int_equal(a->outcome, WEFT_OUTCOME_NOT_COMMITTED);
    assert_string_equal(a->culprits, "replica 1");
    expect_text(a, "replica 1: rank 0: made to refuse");
    fleet_run(&w, 100);
    expect_fleet(&w, "one");
    push(&w, "{\"a\":3}", "three");
    fleet_run(&w, 50);
    expect_fleet(&w, "three");
    end(&w);
  }
}

static void replicas_that_disagree_commit_nothing(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  w.engines[1].ranks[0].flip = 1;
  expect(&w, fleet_begin(&w, C), WEFT_OK);
  expect(&w, fleet_update(&w, C, "{\"a\":2}"), WEFT_OK);
  const fleet_answer *a = fleet_finish(&w, C, "two");
  expect(&w, a, WEFT_E_FAILED);
  assert_string_equal(a->culprits, "replica 0, replica 1");
  w.engines[1].ranks[0].flip = 0;
  fleet_run(&w, 100);
  expect_fleet(&w, "one");
  push(&w, "{\"a\":3}", "three");
  end(&w);
}

static void a_list_goes_to_each_replica_whole(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1, .ranks = 2 });
  w.engines[0].ranks[1].flip = 7; /* shards differ, replicas of a shard do not */
  w.engines[1].ranks[1].flip = 7;
  push(&w, "[{},{}]", "shards");
  w.engines[1].ranks[1].flip = 8;
  expect(&w, fleet_begin(&w, C), WEFT_OK);
  expect(&w, fleet_update(&w, C, "[{},{\"a\":1}]"), WEFT_OK);
  expect(&w, fleet_finish(&w, C, "two"), WEFT_E_FAILED);
  end(&w);
}

static void a_label_reaches_all(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  const weft_client_label label = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                    .version = WEFT_STR("uno") };
  expect(&w, fleet_call(&w, 1, C, &label.h), WEFT_OK);
  expect_fleet(&w, "uno");
  w.engines[1].lose_answer = WEFT_MSG_W_LABEL;
  const weft_client_label again = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                    .version = WEFT_STR("eins") };
  const fleet_answer *a = fleet_call(&w, 1, C, &again.h);
  expect(&w, a, WEFT_OK);
  assert_string_equal(a->fenced, "1");
  fleet_run(&w, 4000);
  expect_fleet(&w, "eins");
  end(&w);
}

static void a_replica_that_missed_a_label_is_told(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_run(&w, 50);
  fleet_cut(&w, 1, true);
  const weft_client_label label = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                    .version = WEFT_STR("uno") };
  expect(&w, fleet_call(&w, 1, C, &label.h), WEFT_OK);
  fleet_cut(&w, 1, false);
  fleet_run(&w, 15000);
  expect_fleet(&w, "uno");
  end(&w);
}

static void pause_reaches_all_and_newcomers(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  const weft_client_pause pause = { .h.type = WEFT_MSG_CLIENT_PAUSE,
                                    .action = WEFT_PAUSE,
                                    .mode = WEFT_STR("keep") };
  expect(&w, fleet_call(&w, 1, C, &pause.h), WEFT_OK);
  for (unsigned i = 0; i < 2; i++) {
    assert_string_equal(fleet_query(&w, i, WEFT_QUERY_PAUSED)->body,
                        "{\"is_paused\":true}");
  }
  fleet_crash(&w, 1);
  fleet_restart(&w, 1);
  fleet_run(&w, 3000);
  assert_string_equal(fleet_query(&w, 1, WEFT_QUERY_PAUSED)->body,
                      "{\"is_paused\":true}");
  fleet_crash(&w, 1);
  fleet_run(&w, 1000);
  const weft_client_pause resume = { .h.type = WEFT_MSG_CLIENT_PAUSE,
                                     .action = WEFT_RESUME };
  const fleet_answer *a = fleet_call(&w, 1, C, &resume.h);
  assert_int_not_equal(a->err, WEFT_OK);
  assert_string_equal(a->culprits, "replica 1");
  assert_string_equal(fleet_query(&w, 0, WEFT_QUERY_PAUSED)->body,
                      "{\"is_paused\":false}");
  end(&w);
}

static void clients_are_sent_to_the_coordinator(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_run(&w, 50);
  const fleet_answer *a = fleet_begin(&w, 1);
  expect(&w, a, WEFT_E_CONFLICT);
  expect_text(a, "replica 1 of fleet fleet: call its coordinator");
  const weft_client_label label = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                    .version = WEFT_STR("mine") };
  expect(&w, fleet_call(&w, 1, 0, &label.h), WEFT_E_CONFLICT);
  const weft_client_cache cache = { .h.type = WEFT_MSG_CLIENT_CACHE };
  expect(&w, fleet_call(&w, 1, 0, &cache.h), WEFT_E_CONFLICT);
  expect(&w, fleet_call(&w, 1, C, &cache.h), WEFT_OK);
  const weft_client_check check = { .h.type = WEFT_MSG_CLIENT_CHECK,
                                    .action = WEFT_CHECK_CHECKSUM };
  expect(&w, fleet_call(&w, 1, 0, &check.h), WEFT_OK);
  a = fleet_call(&w, 1, C, &check.h);
  expect(&w, a, WEFT_OK);
  assert_non_null(strstr(a->body, "{\"checksums\":{\"dp0:w0\":"));
  assert_non_null(strstr(a->body, "\"dp1:w0\":")); /* each replica's by its name */
  a = fleet_query(&w, C, WEFT_QUERY_WEIGHTS);
  expect(&w, a, WEFT_OK);
  assert_non_null(strstr(a->body, "\"tensors\":[{\"name\":\"w\""));
  w.engines[1].ranks[0].die = WEFT_MSG_W_QUERY; /* that passes: not an error of ours */
  a = fleet_call(&w, 1, C, &check.h);
  expect(&w, a, WEFT_E_UNAVAIL);
  expect_text(a, "rank 0: went down meanwhile; ask again");
  fleet_run(&w, 5000);
  expect(&w, fleet_call(&w, 1, C, &check.h), WEFT_OK);
  expect(&w, fleet_resolve(&w, 0, true), WEFT_E_STATE);
  expect(&w, fleet_resolve(&w, C, true), WEFT_E_STATE);
  end(&w);
}

static void a_replica_of_another_size_is_not_let_in(void **state)
{
  (void)state;
  fleet_start(&w, &(fleet_opts){ .seed = 1 });
  fleet_crash(&w, 1);
  w.ranks = 2;
  fleet_restart(&w, 1);
  w.ranks = 1;
  fleet_run(&w, 3000);
  const fleet_answer *a = fleet_query(&w, C, WEFT_QUERY_READY);
  expect(&w, a, WEFT_E_UNAVAIL);
  expect_text(a, "has 2 ranks, and the fleet's replicas have 1");
  end(&w);
}

static void a_cut_off_replica_stops_serving(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_run(&w, 2000);
  assert_true(fleet_serves(&w, 1, 0));
  fleet_cut(&w, 1, true);
  fleet_run(&w, 2250);
  assert_false(fleet_serves(&w, 1, 0));
  assert_true(fleet_serves(&w, 0, 0));
  const fleet_answer *a = fleet_query(&w, 1, WEFT_QUERY_INFO);
  expect(&w, a, WEFT_E_UNAVAIL);
  expect_text(a, "cut off from its coordinator");
  expect(&w, fleet_query(&w, 1, WEFT_QUERY_READY), WEFT_E_UNAVAIL);
  fleet_cut(&w, 1, false);
  fleet_run(&w, 15000);
  assert_true(fleet_serves(&w, 1, 0));
  expect_fleet(&w, "one");
  end(&w);
}

static void expect_session(unsigned replica, const char *text)
{
  const fleet_answer *a = fleet_query(&w, replica, WEFT_QUERY_STATUS);
  expect(&w, a, WEFT_OK);
  if (strstr(a->body, text) == NULL) {
    fail_msg("'%s' is not in '%s'", text, a->body);
  }
}

static void a_lost_heartbeat_stops_readers_but_no_update(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_run(&w, 2000);
  expect(&w, fleet_begin(&w, C), WEFT_OK);
  w.engines[1].lose_answer = WEFT_MSG_W_BEAT;
  bool served = true;
  for (unsigned i = 0; i < 40; i++) {
    fleet_run(&w, 100);
    served = served && fleet_serves(&w, 1, 0);
  }
  assert_false(served);
  assert_true(fleet_serves(&w, 1, 0));
  expect(&w, fleet_update(&w, C, "{\"a\":2}"), WEFT_OK);
  expect(&w, fleet_finish(&w, C, "two"), WEFT_OK);
  fleet_run(&w, 2000);
  expect_fleet(&w, "two");
  end(&w);
}

static void an_update_ends_where_the_coordinator_is_silent(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_run(&w, 2000);
  expect(&w, fleet_begin(&w, C), WEFT_OK);
  fleet_cut(&w, 1, true);
  fleet_run(&w, 1500);
  expect_session(1, "\"state\":\"open\"");
  fleet_run(&w, 3500);
  expect_session(1, "\"session\":null");
  expect_session(0, "\"state\":\"open\"");
  fleet_cut(&w, 1, false);
  fleet_run(&w, 2500);
  const fleet_answer *a = fleet_update(&w, C, "{\"a\":2}");
  expect(&w, a, WEFT_E_STALE);
  expect_text(a, "replica 1: has given this update up: the coordinator's grant");
  fleet_run(&w, 2000);
  push(&w, "{\"a\":2}", "two");
  fleet_run(&w, 2000);
  expect_fleet(&w, "two");
  end(&w);
}

static void a_mute_rank_is_where_the_grant_runs_out(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  expect(&w, fleet_begin(&w, C), WEFT_OK);
  w.engines[1].ranks[0].mute = WEFT_MSG_W_GO;
  w.engines[1].lose_question = WEFT_MSG_W_BEAT;
  weft_buf *info = weft_buf_create("{}", 2);
  const weft_client_update m = { .h.type = WEFT_MSG_CLIENT_UPDATE,
                                 .caller = 100,
                                 .info = info };
  fleet_post(&w, 0, C, &m.h);
  weft_buf_unref(info);
  for (unsigned i = 0; i < 20 && !w.answers[0].came; i++) {
    w.engines[1].lose_question = WEFT_MSG_W_BEAT; /* each of them */
    fleet_run(&w, 500);
  }
  const fleet_answer *a = &w.answers[0];
  expect(&w, a, WEFT_E_FAILED);
  assert_string_equal(a->message,
                      "update_weights failed in phase transfer on replica 1: the "
                      "coordinator's grant has run out, and no other came; weights and "
                      "version are unchanged, the session is over");
  end(&w);
}

static void a_replica_that_restarts_is_behind_until_a_push(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_crash(&w, 1);
  fleet_restart(&w, 1);
  fleet_run(&w, 3000);
  const fleet_answer *a = fleet_query(&w, C, WEFT_QUERY_READY);
  expect(&w, a, WEFT_E_UNAVAIL);
  expect_text(a, "replica 1 is behind");
  const engine *e = weft_sim_state(w.sim, w.engines[C].actor);
  assert_int_equal(e->loan.stage, LOAN_NONE); /* no engine lends to another */
  assert_int_equal(e->members[1].lent.incarnation, 0);
  a = fleet_query(&w, C, WEFT_QUERY_INFO);
  expect(&w, a, WEFT_OK);
  assert_string_equal(a->version, "one");
  assert_non_null(strstr(a->body, "\"mixed\":true"));
  expect(&w, fleet_query(&w, 1, WEFT_QUERY_INFO), WEFT_E_UNAVAIL);
  push(&w, "{\"a\":2}", "two");
  fleet_run(&w, 50);
  expect_fleet(&w, "two");
  assert_string_equal(fleet_query(&w, C, WEFT_QUERY_INFO)->body, "");
  end(&w);
}

static void a_replica_is_brought_up_by_a_push_of_its_own(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_crash(&w, 1);
  fleet_restart(&w, 1);
  fleet_run(&w, 3000);
  expect(&w, fleet_begin(&w, 1), WEFT_OK);
  expect(&w, fleet_update(&w, 1, "{\"a\":9}"), WEFT_OK);
  const fleet_answer *a = fleet_finish(&w, 1, "nine");
  expect(&w, a, WEFT_E_PRECOND);
  fleet_run(&w, 100);
  expect(&w, fleet_begin(&w, 1), WEFT_OK);
  expect(&w, fleet_update(&w, 1, "{\"a\":1}"), WEFT_OK);
  expect(&w, fleet_finish(&w, 1, "whatever"), WEFT_OK);
  fleet_run(&w, 2000);
  expect_fleet(&w, "one");
  assert_true(fleet_serves(&w, 1, 0));
  expect(&w, fleet_begin(&w, 1), WEFT_E_CONFLICT);
  end(&w);
}

static void the_coordinator_takes_over_from_a_push_of_a_replicas_own(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_crash(&w, 1);
  fleet_restart(&w, 1);
  fleet_run(&w, 3000);
  expect(&w, fleet_begin(&w, 1), WEFT_OK);
  push(&w, "{\"a\":2}", "two");
  fleet_run(&w, 50);
  expect_fleet(&w, "two");
  end(&w);
}

static void a_lost_rank_makes_its_replica_unready(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  fleet_kill_rank(&w, 1, 0);
  fleet_run(&w, 1500);
  const fleet_answer *a = fleet_query(&w, C, WEFT_QUERY_READY);
  expect(&w, a, WEFT_E_UNAVAIL);
  expect_text(a, "replica 1: rank 0 is behind");
  push(&w, "{\"a\":2}", "two");
  fleet_run(&w, 1000);
  expect_fleet(&w, "two");
  end(&w);
}

static void a_frame_that_comes_twice_counts_once(void **state)
{
  (void)state;
  static const uint16_t types[] = { WEFT_MSG_W_ADOPT,  WEFT_MSG_W_START,
                                    WEFT_MSG_W_ACCEPT, WEFT_MSG_W_GO,
                                    WEFT_MSG_W_FINISH, WEFT_MSG_W_PUBLISH };
  for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
    begin(&w, &(fleet_opts){ .seed = t + 1 });
    w.engines[1].double_question = types[t];
    push(&w, "{\"a\":1}", "one");
    push(&w, "{\"a\":2}", "two");
    fleet_run(&w, 50);
    expect_fleet(&w, "two");
    assert_int_equal(w.engines[1].shown, 2);
    end(&w);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_push_commits_on_all_replicas),
    cmocka_unit_test(nobody_shows_it_before_all_have_it),
    cmocka_unit_test(one_replica_refuses),
    cmocka_unit_test(replicas_that_disagree_commit_nothing),
    cmocka_unit_test(a_list_goes_to_each_replica_whole),
    cmocka_unit_test(a_label_reaches_all),
    cmocka_unit_test(a_replica_that_missed_a_label_is_told),
    cmocka_unit_test(pause_reaches_all_and_newcomers),
    cmocka_unit_test(clients_are_sent_to_the_coordinator),
    cmocka_unit_test(a_replica_of_another_size_is_not_let_in),
    cmocka_unit_test(a_cut_off_replica_stops_serving),
    cmocka_unit_test(a_lost_heartbeat_stops_readers_but_no_update),
    cmocka_unit_test(an_update_ends_where_the_coordinator_is_silent),
    cmocka_unit_test(a_mute_rank_is_where_the_grant_runs_out),
    cmocka_unit_test(a_replica_that_restarts_is_behind_until_a_push),
    cmocka_unit_test(a_replica_is_brought_up_by_a_push_of_its_own),
    cmocka_unit_test(the_coordinator_takes_over_from_a_push_of_a_replicas_own),
    cmocka_unit_test(a_lost_rank_makes_its_replica_unready),
    cmocka_unit_test(a_frame_that_comes_twice_counts_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
