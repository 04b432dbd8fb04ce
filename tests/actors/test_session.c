#include "weft_test.h"

#include "session.h"

#include <stdbool.h>
#include <string.h>

/* The edges of architecture §3, one row per state, in the order of the enum. */
static const char *const allowed[WEFTI_SESSION_STATE_COUNT] = {
  [WEFTI_IDLE] = "init starting",
  [WEFTI_INIT] = "idle aborting",
  [WEFTI_STARTING] = "open aborting",
  [WEFTI_OPEN] = "transferring finishing aborting",
  [WEFTI_TRANSFERRING] = "open aborting",
  [WEFTI_FINISHING] = "open prepared committing aborting",
  [WEFTI_PREPARED] = "committing aborting",
  [WEFTI_COMMITTING] = "idle",
  [WEFTI_ABORTING] = "idle",
};

static const char *const words[WEFTI_SESSION_STATE_COUNT] = {
  "idle",      "init",     "starting",   "open",     "transferring",
  "finishing", "prepared", "committing", "aborting",
};

static void exactly_the_drawn_edges_exist(void **state)
{
  (void)state;
  for (int from = 0; from < WEFTI_SESSION_STATE_COUNT; from++) {
    for (int to = 0; to < WEFTI_SESSION_STATE_COUNT; to++) {
      const bool want = strstr(allowed[from], words[to]) != NULL;
      if (wefti_session_may((wefti_session_state)from, (wefti_session_state)to) != want) {
        fail_msg("edge %s -> %s", words[from], words[to]);
      }
    }
  }
}

static void a_forbidden_move_changes_nothing(void **state)
{
  (void)state;
  wefti_session_state s = WEFTI_COMMITTING;
  assert_err(wefti_session_move(&s, WEFTI_ABORTING), WEFT_E_STATE);
  assert_int_equal(s, WEFTI_COMMITTING);
  assert_ok(wefti_session_move(&s, WEFTI_IDLE));
  assert_int_equal(s, WEFTI_IDLE);
}

static void names_are_distinct_words(void **state)
{
  (void)state;
  for (int a = 0; a < WEFTI_SESSION_STATE_COUNT; a++) {
    for (int b = 0; b < a; b++) {
      assert_string_not_equal(wefti_session_state_name((wefti_session_state)a),
                              wefti_session_state_name((wefti_session_state)b));
    }
  }
  assert_string_equal(wefti_session_state_name((wefti_session_state)99), "unknown");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(exactly_the_drawn_edges_exist),
    cmocka_unit_test(a_forbidden_move_changes_nothing),
    cmocka_unit_test(names_are_distinct_words),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
