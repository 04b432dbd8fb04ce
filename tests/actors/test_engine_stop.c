/* An engine that is told to end: who waits for a change is told that it did not come, but
 * where it may. */
#include "weft_test.h"

#include "world.h"

#include <string.h>

static world w;

static void start(void)
{
  world_start(&w, &(world_opts){ .seed = 1, .with_journal = true });
  if (w.broken) {
    fail_msg("%s", w.why);
  }
  assert_true(world_all_ready(&w));
}

static void stop_engine(void)
{
  const weft_msg stop = { .type = WEFT_MSG_STOP };
  assert_ok(weft_sim_send(w.sim, w.engine, &stop));
  while (weft_sim_step(w.sim)) { /* its clock stands: nobody has a timer any more */
  }
}

static void expect_not_committed(unsigned client, const char *operation)
{
  const world_answer *a = &w.answers[client];
  if (w.broken || !a->came || a->err != WEFT_E_UNAVAIL ||
      a->outcome != WEFT_OUTCOME_NOT_COMMITTED || strcmp(a->operation, operation) != 0 ||
      strstr(a->message, "shutting down") == NULL) {
    fail_msg("%s: %s", operation,
             w.broken  ? w.why
             : a->came ? a->message
                       : "not answered");
  }
}

/* What a call is at when the engine ends, held up by rank 1. */
static void a_call_before_the_record_is_not_committed(void **state)
{
  (void)state;
  static const struct {
    uint16_t at;
    const char *operation;
  } cases[] = {
    { WEFT_MSG_W_START, "start_weight_update" },
    { WEFT_MSG_W_ACCEPT, "update_weights" },
    { WEFT_MSG_W_GO, "update_weights" },
    { WEFT_MSG_W_FINISH, "finish_weight_update" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    start();
    weft_buf *info = weft_buf_create("{}", 2);
    const weft_client_start begin = { .h.type = WEFT_MSG_CLIENT_START };
    const weft_client_update update = { .h.type = WEFT_MSG_CLIENT_UPDATE, .info = info };
    const weft_client_finish finish = { .h.type = WEFT_MSG_CLIENT_FINISH };
    const weft_msg *calls[] = { &begin.h, &update.h, &finish.h };
    w.workers[1].fault.type = cases[i].at;
    w.workers[1].fault.kind = FAULT_MUTE;
    for (size_t k = 0; k < 3; k++) {
      world_post(&w, 0, calls[k]);
      world_run(&w, 200);
      if (!w.answers[0].came) {
        break;
      }
    }
    assert_false(w.answers[0].came);
    const unsigned before = w.answers[0].count;
    stop_engine();
    expect_not_committed(0, cases[i].operation);
    assert_int_equal(w.answers[0].count, before + 1);
    assert_int_equal(w.record.sequence, 0);
    assert_int_equal(w.visible_count, 0);
    weft_buf_unref(info);
    world_stop(&w);
  }
}

static void after_the_issue_nobody_says_that_it_was_not(void **state)
{
  (void)state;
  const weft_client_label label = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                    .version = WEFT_STR("label") };
  const weft_client_label later = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                    .version = WEFT_STR("later") };
  const weft_client_finish finish = { .h.type = WEFT_MSG_CLIENT_FINISH };
  const weft_msg *calls[] = { &label.h, &finish.h };
  for (unsigned i = 0; i < 2; i++) {
    start();
    assert_int_equal(world_begin(&w, 0)->err, WEFT_OK);
    w.journal_slow = true;
    world_post(&w, 0, calls[i]);
    world_run(&w, 300);
    world_post(&w, 1, &later.h); /* waits for its turn */
    world_run(&w, 50);
    assert_int_equal(w.record.sequence, 1);
    assert_false(w.answers[0].came || w.answers[1].came);
    const unsigned before = w.answers[0].count;
    stop_engine();
    assert_int_equal(w.answers[0].count, before + 1);
    assert_int_equal(w.answers[0].err, WEFT_E_UNAVAIL);
    assert_int_equal(w.answers[0].outcome, WEFT_OUTCOME_UNKNOWN);
    assert_string_equal(w.answers[0].phase, "record");
    assert_non_null(strstr(w.answers[0].message, "the commit record was issued"));
    expect_not_committed(1, "update_weight_version");
    world_stop(&w);
  }
}

static void who_has_not_confirmed_is_named(void **state)
{
  (void)state;
  start();
  assert_int_equal(world_begin(&w, 0)->err, WEFT_OK);
  w.workers[1].fault = (world_fault){ WEFT_MSG_W_PUBLISH, FAULT_MUTE, 0, true };
  const weft_client_finish finish = { .h.type = WEFT_MSG_CLIENT_FINISH };
  world_post(&w, 0, &finish.h);
  world_run(&w, 300);
  assert_false(w.answers[0].came);
  stop_engine();
  assert_int_equal(w.answers[0].outcome, WEFT_OUTCOME_UNKNOWN);
  assert_string_equal(w.answers[0].phase, "publish");
  assert_string_equal(w.answers[0].culprits, "rank 1");
  world_stop(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_call_before_the_record_is_not_committed),
    cmocka_unit_test(after_the_issue_nobody_says_that_it_was_not),
    cmocka_unit_test(who_has_not_confirmed_is_named),
  };
  return cmocka_run_group_tests_name("actors.engine_stop", tests, NULL, NULL);
}
