/* What the HTTP front passes on to its acceptor when that has no room. */
#include "weft_test.h"

#include "assembly.h"

static weft_err fake_post(weft_runtime *rt, weft_actor_id to, const weft_msg *tmpl);
#define wefti_post fake_post
/* NOLINTNEXTLINE(bugprone-suspicious-include) */
#include "../../actors/assembly_front.c"

enum { TOLD_MAX = 512 };

typedef struct post_log {
  uint64_t told[TOLD_MAX];
  size_t count, room; /* posts that still succeed */
  weft_err err;       /* what the others get */
} post_log;

static post_log *posts(void)
{
  static post_log log;
  return &log;
}

static weft_err fake_post(weft_runtime *rt, weft_actor_id to, const weft_msg *tmpl)
{
  post_log *log = posts();
  (void)rt;
  (void)to;
  assert_int_equal(tmpl->type, WEFT_MSG_HTTP_GONE);
  assert_true((tmpl->flags & WEFT_MSG_F_RESERVED) != 0);
  if (log->room == 0) {
    return log->err;
  }
  log->room--;
  assert_true(log->count < TOLD_MAX);
  log->told[log->count++] = ((const weft_http_gone *)tmpl)->peer;
  return WEFT_OK;
}

static void ends_of_connections_are_told_once_and_in_order(void **state)
{
  (void)state;
  wefti_front front = { .acceptor = 1 };
  post_log *log = posts();
  const weft_runtime_opts opts = { .size = sizeof opts, .loops = 1 };
  assert_ok(weft_runtime_create(&opts, &front.rt));
  assert_ok(weft_alarm_create(weft_runtime_loop(front.rt, 0), pay_owed, &front,
                              &front.owed.alarm));
  *log = (post_log){ .room = 2, .err = WEFT_E_FULL };
  for (uint64_t peer = 1; peer <= 200; peer++) {
    on_gone(&front, peer);
  }
  assert_int_equal(log->count, 2);
  log->room = 100;
  pay_owed(&front);
  assert_int_equal(log->count, 102);
  log->room = 1000;
  on_gone(&front, 201); /* does not overtake */
  assert_int_equal(log->count, 102);
  pay_owed(&front);
  assert_int_equal(log->count, 201);
  for (size_t i = 0; i < log->count; i++) {
    assert_int_equal(log->told[i], i + 1);
  }
  on_gone(&front, 202);
  assert_int_equal(log->count, 202);
  *log = (post_log){ .err = WEFT_E_DOWN }; /* nobody is left to be told */
  on_gone(&front, 203);
  assert_int_equal(front.owed.count, 0);
  weft_alarm_destroy(front.owed.alarm);
  free(front.owed.peers);
  weft_runtime_destroy(front.rt);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(ends_of_connections_are_told_once_and_in_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
