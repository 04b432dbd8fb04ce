/* A coordinator that is told to end: what it may say of the call under way. */
#include "fleet_test.h"

static fleet_world w;

/* The call that replica 1 holds up, by its rank 0, when the coordinator ends. */
static const fleet_answer *ends_at(uint16_t type)
{
  const weft_msg stop = { .type = WEFT_MSG_STOP };
  weft_buf *info = weft_buf_create("{\"a\":2}", 7);
  const weft_client_update update = { .h.type = WEFT_MSG_CLIENT_UPDATE,
                                      .caller = 100,
                                      .info = info };
  const weft_client_finish finish = { .h.type = WEFT_MSG_CLIENT_FINISH, .caller = 100 };
  begin(&w, &(fleet_opts){ .seed = 1 });
  push(&w, "{\"a\":1}", "one");
  expect(&w, fleet_begin(&w, C), WEFT_OK);
  w.engines[1].ranks[0].mute = type;
  fleet_post(&w, 0, C, &update.h);
  fleet_run(&w, 200);
  if (type == WEFT_MSG_W_FINISH) {
    fleet_post(&w, 0, C, &finish.h);
    fleet_run(&w, 200);
  }
  assert_false(w.answers[0].came);
  assert_ok(weft_sim_send(w.sim, w.engines[C].actor, &stop));
  fleet_run(&w, 200);
  assert_true(w.answers[0].came);
  assert_int_not_equal(w.answers[0].err, WEFT_OK);
  weft_buf_unref(info);
  return &w.answers[0];
}

static void before_any_vote_nothing_is_committed(void **state)
{
  (void)state;
  const fleet_answer *a = ends_at(WEFT_MSG_W_GO);
  assert_int_equal(a->outcome, WEFT_OUTCOME_NOT_COMMITTED);
  expect_text(a, "shutting down");
  end(&w);
}

/* Replica 0 has voted, and an operator may tell it to commit. */
static void with_a_vote_it_is_not_known(void **state)
{
  (void)state;
  const fleet_answer *a = ends_at(WEFT_MSG_W_FINISH);
  assert_int_equal(a->err, WEFT_E_UNAVAIL);
  assert_int_equal(a->outcome, WEFT_OUTCOME_UNKNOWN);
  assert_string_equal(a->culprits, "replica 1");
  expect_text(a, "shutting down in phase finish, not answered by replica 1");
  end(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(before_any_vote_nothing_is_committed),
    cmocka_unit_test(with_a_vote_it_is_not_known),
  };
  return cmocka_run_group_tests_name("actors.engine_fleet_stop", tests, NULL, NULL);
}
