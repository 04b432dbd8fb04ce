#include "weft_test.h"

#include "puppet.h"
#include "sample_catalogue.h"
#include "weft/runtime.h"
#include "weft_fail.h"

#include <string.h>

/* The real runtime, on the test's thread, with each of its allocations failing in turn.
 * (The seeded scheduler's own faults are in test_ask and test_actor.) */

enum { QUESTIONS = 5 };

typedef struct world {
  weft_runtime *rt;
  weft_alarm *alarm;
  weft_actor_id child;
  int asked, ended, downs;
  int extra; /* calls of the loop */
  bool gave_up;
} world;

static weft_err child_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  (void)arg;
  if (msg->type != SAMPLE_PING) {
    return WEFT_E_STATE;
  }
  const sample_ping m = { .h = { .type = SAMPLE_PONG } };
  (void)weft_reply(ctx, weft_return_of(msg), weft_msg_make(ctx, &m.h));
  return ((const sample_ping *)msg)->n == QUESTIONS - 1 ? WEFT_E_GONE : WEFT_OK;
}

static weft_err begin(weft_ctx *ctx, world *w)
{
  const puppet_args args = { .on = child_on, .arg = w };
  weft_err err = weft_spawn(ctx, &puppet_class, &args, NULL, &w->child);
  if (err != WEFT_OK) {
    return err;
  }
  err = weft_monitor(ctx, w->child);
  if (err != WEFT_OK) {
    return err;
  }
  for (uint32_t i = 0; i < QUESTIONS; i++) {
    const sample_ping m = { .h = { .type = SAMPLE_PING }, .n = i };
    (void)weft_ask(ctx, w->child, weft_msg_make(ctx, &m.h), 1000);
    w->asked++;
  }
  return weft_timer_start(ctx, 1, 0) != 0 ? WEFT_OK : WEFT_E_NOMEM;
}

static void parent_fini(weft_ctx *ctx, void *arg)
{
  world *w = arg;
  w->gave_up = w->ended < w->asked || w->asked == 0;
  weft_runtime_stop(weft_ctx_runtime(ctx), 10000);
}

static weft_err parent_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  switch (msg->type) {
  case SAMPLE_GO:
    return begin(ctx, w);
  case WEFT_MSG_STOP:
    return WEFT_E_STATE;
  case WEFT_MSG_TIMER: /* all is over by then, or never; wait for the answers at least */
    if (w->ended < w->asked) {
      return weft_timer_start(ctx, 1, 0) != 0 ? WEFT_OK : WEFT_E_NOMEM;
    }
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  case WEFT_MSG_DOWN:
    w->downs++;
    return WEFT_OK;
  default:
    w->ended++;
    return WEFT_OK;
  }
}

static void called(void *arg)
{
  world *w = arg;
  w->extra++;
}

/* What main would do; any step may fail. */
static weft_err scenario(world *w)
{
  const weft_runtime_opts opts = { .size = sizeof opts,
                                   .loops = 1,
                                   .catalogue = &sample_catalogue };
  const puppet_args args = { .on = parent_on, .arg = w, .fini = parent_fini };
  const weft_msg go = { .type = SAMPLE_GO };
  weft_actor_id id = 0;
  weft_err err = weft_runtime_create(&opts, &w->rt);
  if (err != WEFT_OK) {
    return err;
  }
  weft_loop *loop = weft_runtime_loop(w->rt, 0);
  err = weft_alarm_create(loop, called, w, &w->alarm);
  if (err == WEFT_OK) {
    err = weft_loop_call(loop, called, w);
  }
  if (err == WEFT_OK) {
    err = weft_runtime_spawn(w->rt, 0, &puppet_class, &args, NULL, &id);
  }
  if (err == WEFT_OK) {
    err = weft_post(w->rt, id, weft_msg_dup(&sample_catalogue, &go));
  }
  if (err == WEFT_OK) {
    weft_runtime_run(w->rt);
  }
  return err;
}

static void every_allocation_of_a_life_may_fail(void **state)
{
  (void)state;
  unsigned long failures = 0;
  FOR_EACH_FAILURE
  {
    world w = { 0 };
    const weft_err err = scenario(&w);
    fail_countdown = 0;
    weft_alarm_destroy(w.alarm);
    weft_runtime_destroy(w.rt);
    if (err == WEFT_OK && !w.gave_up) {
      assert_int_equal(w.asked, QUESTIONS);
      assert_int_equal(w.ended, QUESTIONS);
      assert_int_equal(w.extra, 1);
      assert_true(w.downs == 2 || fail_hit); /* as parent and as watcher */
    } else {
      assert_true(fail_hit);
      assert_true(err == WEFT_OK || err == WEFT_E_NOMEM);
    }
    failures += fail_hit;
    END_UNLESS_FAILED
  }
  assert_true(failures > 8);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_allocation_of_a_life_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
