/* The checker of histories must refuse what no order explains. */
#include "weft_test.h"

#include "history.h"

#define OP(kind_, result_, client_, from_, ...)                                          \
  {                                                                                      \
    .kind = HISTORY_##kind_, .result = HISTORY_##result_, .client = (client_),           \
    .from = (from_), .to = __VA_ARGS__                                                   \
  }
#define CHECK(ops, faulty)                                                               \
  history_check((ops), sizeof(ops) / sizeof((ops)[0]), (faulty), false, 7, &at)

static void test_one_trainer_is_fine(void **state)
{
  (void)state;
  size_t at;
  const history_op ops[] = {
    OP(INIT, OK, 0, 1, 2),
    OP(START, OK, 0, 3, 4, .session = 2),
    OP(UPDATE, OK, 0, 5, 6, .session = 2),
    OP(FINISH, OK, 0, 7, 8, .has_version = true, .version = 9, .got_version = 9,
       .sequence = 1),
    OP(READ, OK, 0, 9, 10, .got_version = 9, .sequence = 1),
    OP(UPDATE, STATE, 0, 11, 12),
  };
  assert_int_equal(CHECK(ops, false), HISTORY_LINEARISABLE);
}

static void test_a_stale_read_is_found(void **state)
{
  (void)state;
  size_t at;
  const history_op ops[] = {
    OP(LABEL, OK, 0, 1, 2, .has_version = true, .version = 9, .got_version = 9,
       .sequence = 1),
    OP(READ, OK, 1, 3, 4, .got_version = 7, .sequence = 0),
  };
  assert_int_equal(CHECK(ops, true), HISTORY_NOT_LINEARISABLE);
  const history_op overlapping[] = {
    OP(LABEL, OK, 0, 1, 5, .has_version = true, .version = 9, .got_version = 9,
       .sequence = 1),
    OP(READ, OK, 1, 3, 4, .got_version = 7, .sequence = 0),
  };
  assert_int_equal(CHECK(overlapping, false), HISTORY_LINEARISABLE);
}

static void test_two_sessions_at_once_are_found(void **state)
{
  (void)state;
  size_t at;
  const history_op ops[] = {
    OP(START, OK, 0, 1, 2, .session = 1),
    OP(START, OK, 1, 3, 4, .session = 2),
  };
  assert_int_equal(CHECK(ops, false), HISTORY_NOT_LINEARISABLE);
  assert_int_equal(CHECK(ops, true), HISTORY_LINEARISABLE); /* the first one died */
}

static void test_a_conflict_needs_somebody_else(void **state)
{
  (void)state;
  size_t at;
  const history_op ops[] = { OP(START, CONFLICT, 0, 1, 2) };
  assert_int_equal(CHECK(ops, true), HISTORY_NOT_LINEARISABLE);
}

static void test_a_number_is_used_once(void **state)
{
  (void)state;
  size_t at;
  const history_op ops[] = {
    OP(LABEL, OK, 0, 1, 9, .has_version = true, .version = 1, .got_version = 1,
       .sequence = 1),
    OP(LABEL, OK, 1, 1, 9, .has_version = true, .version = 2, .got_version = 2,
       .sequence = 1),
  };
  assert_int_equal(CHECK(ops, true), HISTORY_NOT_LINEARISABLE);
}

static void test_compare_and_set_lets_one_through(void **state)
{
  (void)state;
  size_t at;
  const history_op both[] = {
    OP(LABEL, OK, 0, 1, 9, .has_version = true, .version = 1, .got_version = 1,
       .sequence = 1, .has_expected = true, .expected = 7),
    OP(LABEL, OK, 1, 1, 9, .has_version = true, .version = 2, .got_version = 2,
       .sequence = 2, .has_expected = true, .expected = 7),
  };
  assert_int_equal(CHECK(both, false), HISTORY_NOT_LINEARISABLE);
  const history_op one[] = {
    OP(LABEL, OK, 0, 1, 9, .has_version = true, .version = 1, .got_version = 1,
       .sequence = 1, .has_expected = true, .expected = 7),
    OP(LABEL, PRECOND, 1, 1, 9, .has_expected = true, .expected = 7),
  };
  assert_int_equal(CHECK(one, false), HISTORY_LINEARISABLE);
}

static void test_unknown_takes_effect_or_not(void **state)
{
  (void)state;
  size_t at;
  const history_op ops[] = {
    OP(START, OK, 0, 1, 2, .session = 1),
    OP(FINISH, UNKNOWN, 0, 3, 4, .has_version = true, .version = 5),
    OP(READ, OK, 1, 5, 6, .got_version = 7, .sequence = 0),
    OP(READ, OK, 1, 7, 8, .got_version = 5, .sequence = 1),
  };
  assert_int_equal(CHECK(ops, false), HISTORY_LINEARISABLE);
  const history_op back[] = {
    OP(START, OK, 0, 1, 2, .session = 1),
    OP(FINISH, UNKNOWN, 0, 3, 4, .has_version = true, .version = 5),
    OP(READ, OK, 1, 5, 6, .got_version = 5, .sequence = 1),
    OP(READ, OK, 1, 7, 8, .got_version = 7, .sequence = 0),
  };
  assert_int_equal(CHECK(back, false), HISTORY_NOT_LINEARISABLE);
}

static void test_what_is_not_said_is_not_held_against_it(void **state)
{
  (void)state;
  size_t at;
  history_op ops[] = {
    OP(START, OK, 0, 1, 2, .session = 1),
    OP(FINISH, OK, 0, 3, 4, .has_version = true, .version = 5, .sequence = 1,
       .no_version = true),
    OP(READ, OK, 1, 5, 6, .got_version = 5, .no_sequence = true),
  };
  assert_int_equal(CHECK(ops, false), HISTORY_LINEARISABLE);
  ops[1].sequence = 2; /* what is said is */
  assert_int_equal(CHECK(ops, false), HISTORY_NOT_LINEARISABLE);
  ops[1].sequence = 1;
  ops[2].got_version = 7;
  assert_int_equal(CHECK(ops, false), HISTORY_NOT_LINEARISABLE);
}

static void test_refused_is_either(void **state)
{
  (void)state;
  size_t at;
  const history_op ops[] = {
    OP(UPDATE, REFUSED, 0, 1, 2),
    OP(START, OK, 0, 3, 4, .session = 1),
    OP(START, REFUSED, 1, 5, 6, .session = 9),
  };
  assert_int_equal(CHECK(ops, false), HISTORY_LINEARISABLE);
  const history_op alone[] = {
    OP(START, OK, 0, 3, 4, .session = 1),
    OP(UPDATE, REFUSED, 0, 5, 6),
  };
  assert_int_equal(CHECK(alone, false), HISTORY_NOT_LINEARISABLE);
}

static void test_a_lost_call_may_have_ended_its_session(void **state)
{
  (void)state;
  size_t at;
  history_op ops[] = {
    OP(START, OK, 0, 1, 2, .session = 1),
    OP(FINISH, UNKNOWN, 0, 3, 4, .has_version = true, .version = 5, .lost = true),
    OP(START, OK, 1, 5, 6, .session = 2),
    OP(READ, OK, 1, 7, 8, .got_version = 7, .sequence = 0),
  };
  assert_int_equal(CHECK(ops, false), HISTORY_LINEARISABLE);
  ops[1].lost = false;
  assert_int_equal(CHECK(ops, false), HISTORY_NOT_LINEARISABLE);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_one_trainer_is_fine),
    cmocka_unit_test(test_a_stale_read_is_found),
    cmocka_unit_test(test_two_sessions_at_once_are_found),
    cmocka_unit_test(test_a_conflict_needs_somebody_else),
    cmocka_unit_test(test_a_number_is_used_once),
    cmocka_unit_test(test_compare_and_set_lets_one_through),
    cmocka_unit_test(test_unknown_takes_effect_or_not),
    cmocka_unit_test(test_what_is_not_said_is_not_held_against_it),
    cmocka_unit_test(test_refused_is_either),
    cmocka_unit_test(test_a_lost_call_may_have_ended_its_session),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
