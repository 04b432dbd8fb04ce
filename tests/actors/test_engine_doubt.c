/* Replicas that lose their coordinator, their link or themselves in each phase: whatever
 * happens, nothing is ended both ways, nothing is shown that was not decided, and the
 * next push works. */
#include "fleet_test.h"

#include <stdlib.h>

static fleet_world w;

static const uint16_t phases[] = {
  WEFT_MSG_W_START,  WEFT_MSG_W_ACCEPT,  WEFT_MSG_W_GO,
  WEFT_MSG_W_FINISH, WEFT_MSG_W_PUBLISH, WEFT_MSG_W_ABORT
};
enum { PHASES = sizeof phases / sizeof phases[0], SETTLE_MS = 20000 };

/* What the journal of an engine says of the session that another one voted for. */
static unsigned ends_of(const fleet_engine *e, uint64_t boot, uint64_t epoch,
                        weft_journal_kind kind)
{
  unsigned found = 0;
  for (unsigned i = 0; i < e->journal.count; i++) {
    const weft_journal_record *r = &e->journal.records[i];
    found += r->fleet_boot == boot && r->fleet_epoch == epoch && r->kind == kind;
  }
  return found;
}

static bool coordinator_committed(uint64_t boot, uint64_t epoch)
{
  const fleet_journal *j = &w.engines[C].journal;
  for (unsigned i = 0; i < j->count; i++) {
    const weft_journal_record *r = &j->records[i];
    if (r->kind == WEFT_JOURNAL_WEIGHTS && r->boot_id == boot && r->epoch == epoch) {
      return true;
    }
  }
  return false;
}

/* Every vote has at most one end, and it is the coordinator's. */
static void expect_votes_ended_alike(void)
{
  for (unsigned i = 0; i < w.replicas; i++) {
    const fleet_engine *e = &w.engines[i];
    for (unsigned k = 0; k < e->journal.count; k++) {
      const weft_journal_record *v = &e->journal.records[k];
      if (v->kind != WEFT_JOURNAL_VOTE) {
        continue;
      }
      const unsigned commits =
          ends_of(e, v->fleet_boot, v->fleet_epoch, WEFT_JOURNAL_WEIGHTS);
      const unsigned aborts =
          ends_of(e, v->fleet_boot, v->fleet_epoch, WEFT_JOURNAL_ABORTED);
      const bool committed = coordinator_committed(v->fleet_boot, v->fleet_epoch);
      if (commits + aborts > 1 || (commits == 1 && !committed)) {
        fail_msg("replica %u: a vote ended with %u commits, %u aborts; coordinator %d", i,
                 commits, aborts, committed);
      }
    }
  }
}

/* "two" over "one" with whatever goes wrong; then all is well again, under one of them,
 * and "three" goes through. */
static void push_two_and_settle(void)
{
  const fleet_answer *a = fleet_begin(&w, C);
  a = a->err == WEFT_OK ? fleet_update(&w, C, "{\"a\":2}") : a;
  a = a->err == WEFT_OK ? fleet_finish(&w, C, "two") : a;
  const fleet_answer said = *a;
  for (unsigned i = 0; i < FLEET_ENGINES; i++) {
    if (!w.engines[i].alive && (i < w.replicas || i == C)) {
      fleet_restart(&w, i);
    }
  }
  for (unsigned i = 0; i < w.replicas; i++) {
    fleet_cut(&w, i, false);
  }
  fleet_run(&w, SETTLE_MS);
  const fleet_answer *info = fleet_query(&w, C, WEFT_QUERY_INFO);
  expect(&w, info, WEFT_OK);
  char version[16];
  (void)snprintf(version, sizeof version, "%.15s", info->version);
  if (said.err == WEFT_OK) {
    assert_string_equal(version, "two");
  } else if (said.outcome == WEFT_OUTCOME_NOT_COMMITTED) {
    assert_string_equal(version, "one");
  }
  expect_votes_ended_alike();
  for (unsigned i = 0; i < w.replicas; i++) { /* who shows anything shows the same */
    const fleet_answer *r = fleet_query(&w, i, WEFT_QUERY_INFO);
    if (r->err == WEFT_OK) {
      assert_string_equal(r->version, version);
    }
    assert_false(w.engines[i].upstream.doubt);
  }
  push(&w, "{\"a\":3}", "three");
  fleet_run(&w, 2500);
  expect_fleet(&w, "three");
  expect_votes_ended_alike();
}

static void a_replica_dies_in_each_phase(void **state)
{
  (void)state;
  for (unsigned p = 0; p < PHASES; p++) {
    for (unsigned after = 0; after < 2; after++) {
      begin(&w, &(fleet_opts){ .seed = p * 2 + after + 1 });
      push(&w, "{\"a\":1}", "one");
      fleet_run(&w, 50);
      if (phases[p] == WEFT_MSG_W_ABORT) {
        w.engines[0].ranks[0].refuse = WEFT_MSG_W_FINISH;
      }
      uint16_t *when = after ? &w.engines[1].crash_after : &w.engines[1].crash_before;
      *when = phases[p];
      push_two_and_settle();
      assert_int_equal(*when, 0);
      end(&w);
    }
  }
}

static void a_frame_or_its_answer_is_lost_in_each_phase(void **state)
{
  (void)state;
  for (unsigned p = 0; p < PHASES; p++) {
    for (unsigned answer = 0; answer < 2; answer++) {
      begin(&w, &(fleet_opts){ .seed = p * 2 + answer + 1, .ranks = 2 });
      push(&w, "{\"a\":1}", "one");
      fleet_run(&w, 50);
      if (phases[p] == WEFT_MSG_W_ABORT) {
        w.engines[0].ranks[0].refuse = WEFT_MSG_W_FINISH;
      }
      uint16_t *when = answer ? &w.engines[1].lose_answer : &w.engines[1].lose_question;
      *when = phases[p];
      push_two_and_settle();
      assert_int_equal(*when, 0);
      end(&w);
    }
  }
}

static void the_coordinator_dies_in_each_phase(void **state)
{
  (void)state;
  unsigned committed = 0;
  for (unsigned p = 0; p < PHASES; p++) {
    for (unsigned seed = 1; seed <= 10; seed++) {
      begin(&w, &(fleet_opts){ .seed = p * 10 + seed, .replicas = 1 + seed % 3 });
      push(&w, "{\"a\":1}", "one");
      fleet_run(&w, 50);
      if (phases[p] == WEFT_MSG_W_ABORT) {
        w.engines[0].ranks[0].refuse = WEFT_MSG_W_FINISH;
      }
      w.engines[seed % w.replicas].coordinator_crash = phases[p];
      push_two_and_settle();
      committed += w.change_count > 0 && phases[p] == WEFT_MSG_W_PUBLISH;
      end(&w);
    }
  }
  assert_int_equal(committed, 10);
}

/* All have voted; the coordinator's record is not written. */
static void reach_the_doubt(void)
{
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
  for (unsigned i = 0; i < w.replicas; i++) {
    assert_true(w.engines[i].upstream.doubt);
  }
}

static void a_vote_holds_until_the_coordinator_comes_back(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  reach_the_doubt();
  fleet_crash(&w, C); /* without its record: it was not committed */
  fleet_run(&w, 60000);
  for (unsigned i = 0; i < 2; i++) {
    assert_true(w.engines[i].upstream.doubt);
    assert_false(fleet_serves(&w, i, 0));
    const fleet_answer *a = fleet_begin(&w, i);
    expect(&w, a, WEFT_E_CONFLICT);
    expect_text(a, "in doubt about a change of fleet fleet");
    const weft_client_abort abort_msg = { .h.type = WEFT_MSG_CLIENT_ABORT };
    expect(&w, fleet_call(&w, 1, i, &abort_msg.h), WEFT_E_CONFLICT);
  }
  w.engines[C].journal.hang = false;
  fleet_restart(&w, C);
  fleet_run(&w, 5000);
  expect_fleet(&w, "one");
  assert_int_equal(ends_of(&w.engines[0], 0x4001, 2, WEFT_JOURNAL_ABORTED), 1);
  end(&w);
}

static void a_record_that_was_written_decides(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  reach_the_doubt();
  fleet_journal *j = &w.engines[C].journal;
  j->durable[j->count - 1] = true; /* it is on the disk, nobody was told */
  fleet_crash(&w, C);
  fleet_run(&w, 5000);
  w.engines[C].journal.hang = false;
  fleet_restart(&w, C);
  fleet_run(&w, 5000);
  expect_fleet(&w, "two");
  assert_int_equal(ends_of(&w.engines[0], 0x4001, 2, WEFT_JOURNAL_WEIGHTS), 1);
  assert_true(fleet_serves(&w, 1, 0));
  end(&w);
}

static void one_is_in_doubt_and_one_has_heard(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  reach_the_doubt();
  fleet_cut(&w, 1, true);
  w.no_rejoin = 2;
  fleet_release_journal(&w, C);
  fleet_run(&w, 20000);
  expect(&w, &w.answers[0], WEFT_OK);
  assert_string_equal(w.answers[0].fenced, "1");
  expect_version(&w, C, "two");
  expect_version(&w, 0, "two");
  assert_true(w.engines[1].upstream.doubt);
  assert_false(fleet_serves(&w, 1, 0));
  w.no_rejoin = 0;
  fleet_cut(&w, 1, false);
  fleet_run(&w, 3000);
  expect_fleet(&w, "two");
  end(&w);
}

static void nobody_else_s_coordinator_decides(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  reach_the_doubt();
  fleet_crash(&w, C);
  fleet_run(&w, 5000);
  w.engines[C].journal.hang = false;
  w.fleet_id = "another";
  fleet_restart(&w, C);
  fleet_run(&w, 5000);
  for (unsigned i = 0; i < 2; i++) {
    assert_true(w.engines[i].upstream.doubt);
    assert_string_equal(w.engines[i].upstream.fleet, "fleet");
  }
  expect(&w, fleet_query(&w, C, WEFT_QUERY_READY), WEFT_E_UNAVAIL);
  for (unsigned i = 0; i < 2; i++) {
    expect(&w, fleet_resolve(&w, i, false), WEFT_OK);
  }
  fleet_run(&w, 5000);
  for (unsigned i = 0; i < 2; i++) {
    assert_string_equal(w.engines[i].upstream.fleet, "another");
  }
  end(&w);
}

static void an_operator_decides_in_the_coordinators_place(void **state)
{
  (void)state;
  for (unsigned commit = 0; commit < 2; commit++) {
    begin(&w, &(fleet_opts){ .seed = 1 + commit });
    reach_the_doubt();
    expect(&w, fleet_resolve(&w, 0, true), WEFT_E_CONFLICT); /* it is connected */
    fleet_crash(&w, C);
    fleet_run(&w, 5000);
    for (unsigned i = 0; i < 2; i++) {
      expect(&w, fleet_resolve(&w, i, commit != 0), WEFT_OK);
      assert_false(w.engines[i].upstream.doubt);
      assert_int_equal(w.engines[i].shown, commit != 0 ? 2 : 1);
      if (commit != 0) {
        assert_string_equal(w.engines[i].version, "two");
      }
      expect(&w, fleet_query(&w, i, WEFT_QUERY_INFO), WEFT_E_UNAVAIL); /* still cut off */
      expect(&w, fleet_resolve(&w, i, true), WEFT_E_STATE);
    }
    end(&w);
  }
}

static void a_replica_that_restarts_in_doubt_asks(void **state)
{
  (void)state;
  for (unsigned commit = 0; commit < 2; commit++) {
    begin(&w, &(fleet_opts){ .seed = 1 + commit });
    reach_the_doubt();
    fleet_crash(&w, 1);
    if (commit != 0) {
      fleet_release_journal(&w, C);
    } else {
      fleet_crash(&w, C);
      w.engines[C].journal.hang = false;
    }
    fleet_run(&w, 5000);
    w.no_rejoin = 2;
    fleet_restart(&w, 1);
    fleet_run(&w, 100);
    const fleet_answer *a = fleet_query(&w, 1, WEFT_QUERY_STATUS);
    assert_non_null(strstr(a->body, "\"lost\":true"));
    expect(&w, fleet_begin(&w, 1), WEFT_E_CONFLICT);
    w.no_rejoin = 0;
    if (commit == 0) {
      fleet_restart(&w, C);
    }
    fleet_run(&w, 5000);
    assert_false(w.engines[1].upstream.doubt);
    assert_int_equal(ends_of(&w.engines[1], 0x4001, 2, WEFT_JOURNAL_ABORTED), 1);
    expect_version(&w, C, commit != 0 ? "two" : "one");
    a = fleet_query(&w, C, WEFT_QUERY_READY);
    expect(&w, a, WEFT_E_UNAVAIL);
    expect_text(a, "replica 1 is behind");
    push(&w, "{\"a\":3}", "three");
    fleet_run(&w, 100);
    expect_fleet(&w, "three");
    end(&w);
  }
}

static void a_vote_that_cannot_be_written_is_none(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  expect(&w, fleet_begin(&w, C), WEFT_OK);
  expect(&w, fleet_update(&w, C, "{\"a\":2}"), WEFT_OK);
  w.engines[1].journal.fail_once = true;
  const fleet_answer *a = fleet_finish(&w, C, "two");
  expect(&w, a, WEFT_E_UNAVAIL);
  expect_text(a, "replica 1: the vote cannot be made durable: fsync failed");
  fleet_run(&w, 100);
  expect_fleet(&w, "one");
  push(&w, "{\"a\":3}", "three");
  end(&w);
}

static unsigned ends_recorded(unsigned engine)
{
  const fleet_journal *j = &w.engines[engine].journal;
  unsigned n = 0;
  for (unsigned i = 0; i < j->count; i++) {
    n += j->records[i].kind == WEFT_JOURNAL_ABORTED;
  }
  return n;
}

/* An update is not taken as far as its vote again where that could not be written. */
static void no_update_is_begun_where_votes_cannot_be_written(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  for (unsigned hangs = 0; hangs < 2; hangs++) {
    fleet_journal *j = &w.engines[1].journal;
    expect(&w, fleet_begin(&w, C), WEFT_OK);
    expect(&w, fleet_update(&w, C, "{\"a\":2}"), WEFT_OK);
    j->hang = hangs != 0;
    j->fails = hangs == 0;
    expect(&w, fleet_finish(&w, C, "two"), hangs ? WEFT_E_TIMEOUT : WEFT_E_UNAVAIL);
    fleet_run(&w, 3000);
    for (unsigned again = 0; again < 2; again++) {
      const fleet_answer *a = fleet_begin(&w, C);
      expect(&w, a, WEFT_E_UNAVAIL);
      expect_text(a, "on replica 1: the state directory takes no records: ");
      expect_text(a, hangs ? "the last vote is not written yet" : "fsync failed");
      fleet_run(&w, 100);
    }
    expect_fleet(&w, "one"); /* it serves, and is no worse for its readers */
    const unsigned ends = ends_recorded(1);
    j->fails = false;
    fleet_release_journal(&w, 1);
    fleet_run(&w, 300);
    assert_int_equal(ends_recorded(1), hangs ? ends : ends + 1);
    push(&w, "{\"a\":1}", "one");
  }
  end(&w);
}

static void a_record_of_the_coordinator_is_written_in_the_end(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  expect(&w, fleet_begin(&w, C), WEFT_OK);
  expect(&w, fleet_update(&w, C, "{\"a\":2}"), WEFT_OK);
  w.engines[C].journal.fail_once = true;
  expect(&w, fleet_finish(&w, C, "two"), WEFT_OK);
  fleet_run(&w, 100);
  expect_fleet(&w, "two");
  end(&w);
}

static void a_replica_whose_record_hangs_is_fenced_and_comes_back_with_it(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  reach_the_doubt();
  w.engines[1].journal.hang = true;
  fleet_release_journal(&w, C);
  fleet_run(&w, 15000);
  expect(&w, &w.answers[0], WEFT_OK);
  assert_string_equal(w.answers[0].fenced, "1");
  assert_false(fleet_serves(&w, 1, 0));
  fleet_release_journal(&w, 1);
  fleet_run(&w, 5000);
  expect_fleet(&w, "two");
  end(&w);
}

static void the_coordinator_comes_back_to_what_all_have(void **state)
{
  (void)state;
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  const weft_client_label label = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                    .version = WEFT_STR("uno") };
  expect(&w, fleet_call(&w, 1, C, &label.h), WEFT_OK);
  fleet_run(&w, 100);
  fleet_crash(&w, C);
  fleet_restart(&w, C);
  expect(&w, fleet_query(&w, C, WEFT_QUERY_INFO), WEFT_E_UNAVAIL);
  for (unsigned i = 0; i < 30; i++) { /* who has it goes on serving */
    fleet_run(&w, 100);
    assert_true(fleet_serves(&w, 0, 0) && fleet_serves(&w, 1, 0));
  }
  expect_fleet(&w, "uno");
  push(&w, "{\"a\":2}", "two");
  fleet_crash(&w, C);
  fleet_restart(&w, C);
  fleet_run(&w, 400); /* all are in, but an earlier life's grants still run */
  expect(&w, fleet_call(&w, 1, C, &label.h), WEFT_OK);
  assert_true(w.answers[1].at_ms - w.answers[1].asked_ms > 1500);
  expect_fleet(&w, "uno");
  end(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_replica_dies_in_each_phase),
    cmocka_unit_test(a_frame_or_its_answer_is_lost_in_each_phase),
    cmocka_unit_test(the_coordinator_dies_in_each_phase),
    cmocka_unit_test(a_vote_holds_until_the_coordinator_comes_back),
    cmocka_unit_test(a_record_that_was_written_decides),
    cmocka_unit_test(one_is_in_doubt_and_one_has_heard),
    cmocka_unit_test(nobody_else_s_coordinator_decides),
    cmocka_unit_test(an_operator_decides_in_the_coordinators_place),
    cmocka_unit_test(a_replica_that_restarts_in_doubt_asks),
    cmocka_unit_test(a_vote_that_cannot_be_written_is_none),
    cmocka_unit_test(no_update_is_begun_where_votes_cannot_be_written),
    cmocka_unit_test(a_record_of_the_coordinator_is_written_in_the_end),
    cmocka_unit_test(a_replica_whose_record_hangs_is_fenced_and_comes_back_with_it),
    cmocka_unit_test(the_coordinator_comes_back_to_what_all_have),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
