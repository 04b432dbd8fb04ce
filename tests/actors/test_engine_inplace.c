/* Staging in place, as clients see it: what is half written has no name, and what is
 * poisoned is said of whom it is true. */
#include "weft_test.h"

#include "engine.h"
#include "world.h"

#include <string.h>

enum { SEEDS = 20 };

static world w;

static void begin(uint64_t seed)
{
  world_start(&w, &(world_opts){ .seed = seed, .with_journal = true, .inplace = true });
  assert_true(world_all_ready(&w));
}

static void end(void)
{
  const bool broken = w.broken;
  world_stop(&w);
  if (broken) {
    fail_msg("%s", w.why);
  }
}

static void expect_at(const world_answer *a, weft_err err, const char *text, int line)
{
  if (w.broken || !a->came || a->err != err || strstr(a->message, text) == NULL) {
    fail_msg("line %d: %s %s, want %s '%s': %s", line, a->came ? "got" : "no answer",
             weft_err_name(a->err), weft_err_name(err), text,
             w.broken ? w.why : a->message);
  }
}
#define expect(a, err, text) expect_at((a), (err), (text), __LINE__)

static void push(const char *info, const char *version)
{
  expect(world_begin(&w, 0), WEFT_OK, "");
  expect(world_update(&w, 0, info, 0), WEFT_OK, "");
  expect(world_finish(&w, 0, version, 0), WEFT_OK, "");
}

static const weft_client_label label_two = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                             .version = { "label", 5 } };

static const world_answer *label(void)
{
  return world_call(&w, 1, &label_two.h, 40000);
}

static void post_update(uint32_t timeout_ms)
{
  weft_buf *info = weft_buf_create("{}", 2);
  const weft_client_update m = { .h.type = WEFT_MSG_CLIENT_UPDATE,
                                 .caller = 100,
                                 .timeout_ms = timeout_ms,
                                 .info = info };
  world_post(&w, 0, &m.h);
  weft_buf_unref(info);
}

static void visible_is(const char *version)
{
  assert_string_equal(world_query(&w, 2, WEFT_QUERY_INFO)->version, version);
}

static void no_label_for_what_is_being_written(void **state)
{
  (void)state;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    begin(seed);
    push("{\"a\":1}", "one");
    expect(world_begin(&w, 0), WEFT_OK, "");
    expect(label(), WEFT_OK, ""); /* nothing is written yet */
    w.workers[1].fault = (world_fault){ WEFT_MSG_W_GO, FAULT_SLOW, 500, true };
    post_update(0);
    world_run(&w, 100);
    assert_false(w.answers[0].came);
    expect(label(), WEFT_E_CONFLICT, "being written over in place");
    assert_int_equal(w.answers[1].outcome, WEFT_OUTCOME_NOT_COMMITTED);
    world_run(&w, 1000);
    expect(&w.answers[0], WEFT_OK, "");
    expect(label(), WEFT_E_CONFLICT, "being written over in place");
    visible_is("label");
    expect(world_finish(&w, 0, "two", 0), WEFT_OK, "");
    visible_is("two");
    expect(label(), WEFT_OK, "");
    visible_is("label");
    end();
  }
}

/* Until all have accepted nobody knows whether anything will be written. */
static void a_label_waits_while_an_update_is_accepted(void **state)
{
  (void)state;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    const bool refused = seed % 2 == 0;
    begin(seed);
    push("{\"a\":1}", "one");
    expect(world_begin(&w, 0), WEFT_OK, "");
    w.workers[1].fault =
        (world_fault){ WEFT_MSG_W_ACCEPT, refused ? FAULT_MUTE : FAULT_SLOW, 500, true };
    w.workers[0].fault = (world_fault){ WEFT_MSG_W_GO, FAULT_SLOW, 300, true };
    post_update(1000);
    world_run(&w, 100);
    world_post(&w, 1, &label_two.h);
    world_run(&w, 100);
    assert_false(w.answers[1].came);
    world_run(&w, 400);
    assert_int_equal(w.answers[1].came, !refused); /* when they begin to write */
    assert_false(w.answers[0].came);
    world_run(&w, 4000);
    expect(&w.answers[0], refused ? WEFT_E_TIMEOUT : WEFT_OK, "");
    expect(&w.answers[1], refused ? WEFT_OK : WEFT_E_CONFLICT, "");
    visible_is(refused ? "label" : "one");
    end();
  }
}

static void an_update_waits_for_a_label_on_its_way(void **state)
{
  (void)state;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    begin(seed);
    push("{\"a\":1}", "one");
    expect(world_begin(&w, 0), WEFT_OK, "");
    const unsigned goes = w.workers[0].goes;
    w.journal_slow = true;
    world_post(&w, 1, &label_two.h);
    world_run(&w, 100);
    post_update(0);
    world_run(&w, 200);
    assert_false(w.answers[1].came);
    assert_int_equal(w.workers[0].goes, goes);
    world_run(&w, 1000);
    expect(&w.answers[1], WEFT_OK, "");
    expect(&w.answers[0], WEFT_OK, "");
    assert_int_equal(w.workers[0].goes, goes + 1);
    visible_is("label");
    expect(world_finish(&w, 0, NULL, 0), WEFT_OK, "");
    visible_is("label");
    end();
  }
}

/* Rank 1 alone has written, and dies before it can say so. */
static void half_write_and_die(void)
{
  w.workers[0].fault = (world_fault){ WEFT_MSG_W_GO, FAULT_REFUSE, 0, true };
  w.workers[1].fault = (world_fault){ WEFT_MSG_W_ABORT, FAULT_CRASH, 0, true };
  expect(world_begin(&w, 0), WEFT_OK, "");
  post_update(0);
  while (!w.broken && (!w.answers[0].came || w.workers[1].alive)) {
    world_run(&w, 1);
  }
  expect(&w.answers[0], WEFT_E_FAILED, "made to refuse");
}

static void a_label_whose_weights_turn_out_poisoned_names_nothing(void **state)
{
  (void)state;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    begin(seed);
    push("{\"a\":1}", "one");
    half_write_and_die();
    w.journal_slow = true;
    world_post(&w, 1, &label_two.h);
    world_run(&w, 400);
    assert_false(w.answers[1].came);
    assert_int_equal(w.workers[1].alive, true);
    visible_is("default");
    world_run(&w, 1000);
    expect(&w.answers[1], WEFT_E_CONFLICT, "change 2 was recorded");
    expect(&w.answers[1], WEFT_E_CONFLICT, "rank 1 is poisoned");
    visible_is("default");
    assert_int_equal(w.last_event_sequence, 2);
    w.journal_slow = false;
    expect(label(), WEFT_E_CONFLICT, "rank 1 is poisoned");
    push("{\"a\":3}", "three");
    visible_is("three");
    expect(world_query(&w, 2, WEFT_QUERY_READY), WEFT_OK, "");
    end();
  }
}

static void a_rank_without_memory_is_not_called_poisoned(void **state)
{
  (void)state;
  begin(1);
  push("{\"a\":1}", "one");
  w.workers[0].fault = (world_fault){ WEFT_MSG_W_GO, FAULT_REFUSE, 0, true };
  expect(world_begin(&w, 0), WEFT_OK, "");
  expect(world_update(&w, 0, "{\"a\":2}", 0), WEFT_E_FAILED, "made to refuse");
  world_run(&w, 100);
  expect(world_query(&w, 2, WEFT_QUERY_READY), WEFT_E_UNAVAIL, "rank 1 is poisoned");
  w.workers[1].forgets_memory = true;
  weft_sim_kill(w.sim, w.workers[1].actor);
  world_run(&w, 20);
  expect(world_query(&w, 2, WEFT_QUERY_READY), WEFT_E_UNAVAIL, "that rank lost them");
  world_run(&w, 2000);
  const world_answer *a = world_query(&w, 2, WEFT_QUERY_READY);
  expect(a, WEFT_E_UNAVAIL, "that rank lost them since (it is behind)");
  expect(a, WEFT_E_UNAVAIL, "a full update brings it back");
  assert_null(strstr(a->message, "is poisoned"));
  expect(label(), WEFT_E_CONFLICT, "no version is live");
  push("{\"a\":3}", "three");
  expect(world_query(&w, 2, WEFT_QUERY_READY), WEFT_OK, "");
  end();
}

/* It reads what came once more, which can be most of a finish. */
static void a_late_finish_says_what_it_was_at(void **state)
{
  (void)state;
  begin(1);
  push("{\"a\":1}", "one");
  expect(world_begin(&w, 0), WEFT_OK, "");
  w.workers[1].fault = (world_fault){ WEFT_MSG_W_GO, FAULT_MUTE, 0, true };
  w.workers[1].phase = WEFT_WORKER_RECEIVING;
  w.workers[1].received = 2;
  w.workers[1].expected = 8;
  expect(world_update(&w, 0, "{}", 2000), WEFT_E_TIMEOUT,
         "was receiving and had received 2 of 8 bytes, after 2.0 s");
  world_run(&w, 1000);
  expect(world_begin(&w, 0), WEFT_OK, "");
  expect(world_update(&w, 0, "{}", 0), WEFT_OK, "");
  w.workers[1].fault = (world_fault){ WEFT_MSG_W_FINISH, FAULT_MUTE, 0, true };
  w.workers[1].phase = WEFT_WORKER_FINISHING;
  w.workers[1].received = 3;
  expect(world_finish(&w, 0, "two", 12000), WEFT_E_TIMEOUT,
         "was finishing and had hashed 3 of 8 bytes, after 7.0 s");
  world_run(&w, 1000);
  w.workers[1].received = w.workers[1].expected = 0;
  expect(world_begin(&w, 0), WEFT_OK, "");
  expect(world_update(&w, 0, "{}", 0), WEFT_OK, "");
  w.workers[1].fault = (world_fault){ WEFT_MSG_W_FINISH, FAULT_MUTE, 0, true };
  expect(world_finish(&w, 0, "two", 12000), WEFT_E_TIMEOUT, "was finishing, after 7.0 s");
  assert_null(strstr(w.answers[0].message, "0 of 0"));
  end();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(no_label_for_what_is_being_written),
    cmocka_unit_test(a_label_waits_while_an_update_is_accepted),
    cmocka_unit_test(an_update_waits_for_a_label_on_its_way),
    cmocka_unit_test(a_label_whose_weights_turn_out_poisoned_names_nothing),
    cmocka_unit_test(a_rank_without_memory_is_not_called_poisoned),
    cmocka_unit_test(a_late_finish_says_what_it_was_at),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
