/* What the engine counts for GET /metrics, and the pause flag with its lease. */
#include "weft_test.h"

#include "world.h"

#include <stdio.h>
#include <string.h>

static world w;

static void start(const world_opts *opts)
{
  static const world_opts usual = { .seed = 1 };
  world_start(&w, opts == NULL ? &usual : opts);
  assert_true(world_all_ready(&w));
}

static void stop(void)
{
  const bool broken = w.broken;
  world_stop(&w);
  if (broken) {
    fail_msg("%s", w.why);
  }
}

static void expect(const world_answer *a, weft_err err)
{
  if (!a->came || a->err != err) {
    fail_msg("%s: got %s, want %s: %s", a->came ? "answered" : "not answered",
             weft_err_name(a->err), weft_err_name(err), a->message);
  }
}

/* The value on the line that begins with name and its labels. */
static double value(const char *name)
{
  static char text[WORLD_BODY_MAX + 1];
  char line[256];
  const world_answer *a = world_query(&w, 2, WEFT_QUERY_METRICS);
  expect(a, WEFT_OK);
  (void)snprintf(text, sizeof text, "\n%s", a->body);
  (void)snprintf(line, sizeof line, "\n%s ", name);
  const char *at = strstr(text, line);
  if (at == NULL) {
    fail_msg("no line for %s", name);
    return 0;
  }
  double v = -1;
  assert_int_equal(sscanf(at + strlen(line), "%lf", &v), 1);
  return v;
}

#define COUNT "vllm:rl_weight_update_operation_duration_seconds_count"
#define BUCKET "vllm:rl_weight_update_operation_duration_seconds_bucket"
#define FLYING "vllm:rl_weight_update_operations_in_flight"
#define ENDED "vllm:rl_weight_update_operations_total"

static void is_now(const char *name, double want)
{
  const double got = value(name);
  if (got < want - 1e-9 || got > want + 1e-9) {
    fail_msg("%s is %g, want %g", name, got, want);
  }
}

static void set_fault(uint32_t rank, uint16_t type, enum world_fault_kind kind,
                      uint32_t slow_ms)
{
  w.workers[rank].fault = (world_fault){ .type = type, .once = true };
  w.workers[rank].fault.kind = kind;
  w.workers[rank].fault.slow_ms = slow_ms;
}

/* vllm #55781 */
static void operations_are_counted_by_name_and_bucket(void **state)
{
  (void)state;
  start(NULL);
  is_now(COUNT "{operation=\"init\"}", 0);
  is_now(FLYING "{operation=\"start_draft\"}", 0);
  expect(world_init(&w, 0), WEFT_OK);
  expect(world_begin(&w, 0), WEFT_OK);
  set_fault(0, WEFT_MSG_W_GO, FAULT_SLOW, 2000);
  expect(world_update(&w, 0, "{}", 0), WEFT_OK);
  expect(world_finish(&w, 0, "v", 0), WEFT_OK);
  is_now(COUNT "{operation=\"init\"}", 1);
  is_now(COUNT "{operation=\"start\"}", 1);
  is_now(COUNT "{operation=\"update\"}", 1);
  is_now(COUNT "{operation=\"finish\"}", 1);
  is_now(BUCKET "{operation=\"update\",le=\"1.0\"}", 0);
  is_now(BUCKET "{operation=\"update\",le=\"10.0\"}", 1);
  is_now(BUCKET "{operation=\"update\",le=\"600.0\"}", 1);
  is_now(BUCKET "{operation=\"update\",le=\"+Inf\"}", 1);
  is_now(ENDED "{operation=\"update\",outcome=\"success\"}", 1);
  assert_true(
      value(
          "vllm:rl_weight_update_operation_duration_seconds_sum{operation=\"update\"}") >=
      2.0);
  stop();
}

/* vllm #55781 */
static void what_is_refused_is_not_counted(void **state)
{
  (void)state;
  start(NULL);
  expect(world_update(&w, 0, "{}", 0), WEFT_E_STATE);
  expect(world_finish(&w, 0, "v", 0), WEFT_E_STATE);
  expect(world_begin(&w, 0), WEFT_OK);
  expect(world_begin(&w, 1), WEFT_E_CONFLICT);
  const weft_client_start draft = { .h.type = WEFT_MSG_CLIENT_START,
                                    .session = WEFT_STR("nobody's") };
  expect(world_call(&w, 0, &draft.h, 1000), WEFT_E_CONFLICT);
  is_now(COUNT "{operation=\"update\"}", 0);
  is_now(COUNT "{operation=\"finish\"}", 0);
  is_now(COUNT "{operation=\"start\"}", 1);
  is_now(ENDED "{operation=\"start\",outcome=\"error\"}", 0);
  stop();
}

/* vllm #55781 */
static void in_flight_is_zero_after_errors_and_disconnects(void **state)
{
  (void)state;
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  set_fault(1, WEFT_MSG_W_GO, FAULT_REFUSE, 0);
  expect(world_update(&w, 0, "{}", 0), WEFT_E_FAILED);
  is_now(FLYING "{operation=\"update\"}", 0);
  is_now(ENDED "{operation=\"update\",outcome=\"error\"}", 1);
  is_now("weft_sessions_aborted_total", 1);

  /* a caller that goes away, and the init that takes over */
  expect(world_begin(&w, 0), WEFT_OK);
  set_fault(0, WEFT_MSG_W_GO, FAULT_MUTE, 0);
  const weft_client_update update = { .h.type = WEFT_MSG_CLIENT_UPDATE,
                                      .caller = 7,
                                      .info = weft_buf_create("{}", 2) };
  world_post(&w, 0, &update.h);
  world_run(&w, 100);
  is_now(FLYING "{operation=\"update\"}", 1);
  const weft_client_gone gone = { .h.type = WEFT_MSG_CLIENT_GONE, .caller = 7 };
  world_post(&w, 0, &gone.h);
  expect(world_init(&w, 1), WEFT_OK);
  is_now(FLYING "{operation=\"update\"}", 0);
  is_now(FLYING "{operation=\"init\"}", 0);
  is_now(ENDED "{operation=\"update\",outcome=\"error\"}", 2);
  weft_buf_unref(update.info);
  stop();
}

/* gonka #1421 */
static void the_heartbeat_grows_without_anybody_asking(void **state)
{
  (void)state;
  start(NULL);
  const double before = value("weft_event_loop_heartbeat_total");
  is_now("weft_event_loop_heartbeat_total", before); /* asking moves nothing */
  world_run(&w, 5000);
  assert_true(value("weft_event_loop_heartbeat_total") >= before + 10);
  stop();
}

static const world_answer *pause_call(uint32_t action)
{
  const weft_client_pause m = { .h.type = WEFT_MSG_CLIENT_PAUSE,
                                .action = action,
                                .mode = WEFT_STR("keep") };
  return world_call(&w, 0, &m.h, 1000);
}

/* vllm #45524, AReaL #1160 */
static void a_pause_is_timed_and_its_lease_makes_unready(void **state)
{
  (void)state;
  start(&(world_opts){ .seed = 1, .pause_lease_ms = 30000 });
  is_now("weft_paused", 0);
  expect(pause_call(WEFT_PAUSE), WEFT_OK);
  world_run(&w, 20000);
  is_now("weft_paused", 1);
  const double age = value("weft_pause_state_seconds");
  assert_true(age >= 20.0 && age < 21.0);
  expect(pause_call(WEFT_PAUSE), WEFT_OK); /* again: the age goes on */
  assert_true(value("weft_pause_state_seconds") >= 20.0);
  expect(world_query(&w, 2, WEFT_QUERY_READY), WEFT_OK);
  world_run(&w, 11000);
  const world_answer *a = world_query(&w, 2, WEFT_QUERY_READY);
  expect(a, WEFT_E_UNAVAIL);
  assert_non_null(strstr(a->message, "--pause-lease"));
  is_now("weft_ready", 0);
  expect(pause_call(WEFT_RESUME), WEFT_OK);
  expect(world_query(&w, 2, WEFT_QUERY_READY), WEFT_OK);
  assert_true(value("weft_pause_state_seconds") < 1.0);
  stop();
}

/* vllm #51316, sglang #22304 */
static void require_pause_refuses_start_and_resume(void **state)
{
  (void)state;
  start(&(world_opts){ .seed = 1, .require_pause = true });
  const world_answer *a = world_begin(&w, 0);
  expect(a, WEFT_E_CONFLICT);
  assert_non_null(strstr(a->message, "--require-pause"));
  expect(pause_call(WEFT_PAUSE), WEFT_OK);
  expect(world_begin(&w, 0), WEFT_OK);
  expect(pause_call(WEFT_RESUME), WEFT_E_CONFLICT);
  expect(world_update(&w, 0, "{}", 0), WEFT_OK);
  expect(world_finish(&w, 0, "v", 0), WEFT_OK);
  expect(pause_call(WEFT_RESUME), WEFT_OK);
  stop();
}

static void a_restore_needs_no_pause_while_nothing_is_loaded(void **state)
{
  (void)state;
  const weft_client_start restores = { .h.type = WEFT_MSG_CLIENT_START,
                                       .restores = true };
  start(&(world_opts){ .seed = 1, .require_pause = true });
  for (unsigned i = 0; i < 2; i++) { /* the first try may have failed */
    expect(world_call(&w, 0, &restores.h, 1000), WEFT_OK);
    expect(world_call(&w, 0, &(weft_client_abort){ .h.type = WEFT_MSG_CLIENT_ABORT }.h,
                      10000),
           WEFT_OK);
  }
  expect(world_call(&w, 0, &restores.h, 1000), WEFT_OK);
  expect(world_update(&w, 0, "{}", 0), WEFT_OK);
  expect(world_finish(&w, 0, "v", 0), WEFT_OK);
  const world_answer *a = world_call(&w, 0, &restores.h, 1000);
  expect(a, WEFT_E_CONFLICT);
  assert_non_null(strstr(a->message, "--require-pause"));
  stop();
}

/* open-r1 #690 */
static void an_idle_half_hour_between_updates_changes_nothing(void **state)
{
  (void)state;
  start(NULL);
  expect(world_init(&w, 0), WEFT_OK);
  for (unsigned i = 1; i <= 2; i++) {
    expect(world_begin(&w, 0), WEFT_OK);
    expect(world_update(&w, 0, i == 1 ? "{\"a\":1}" : "{\"a\":2}", 0), WEFT_OK);
    expect(world_finish(&w, 0, "v", 0), WEFT_OK);
    is_now("weft_weights_sequence", i);
    world_run(&w, UINT64_C(30) * 60 * 1000);
    is_now("weft_workers{state=\"ready\"}", 2);
    assert_int_equal(w.workers[0].aborts, 0);
  }
  stop();
}

static void any_version_is_a_label(void **state)
{
  (void)state;
  start(NULL);
  const weft_client_label label = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                    .version = WEFT_STR("a\"b\\c\nd\xc3\xa9") };
  expect(world_call(&w, 0, &label.h, 1000), WEFT_OK);
  const world_answer *a = world_query(&w, 2, WEFT_QUERY_METRICS);
  expect(a, WEFT_OK);
  assert_non_null(
      strstr(a->body, "weft_weights_info{version=\"a\\\"b\\\\c\\nd\xc3\xa9\",declared="));
  is_now("weft_sequence", 1);
  is_now("weft_weights_sequence", 0);
  stop();
}

static void workers_are_counted_by_state(void **state)
{
  (void)state;
  start(NULL);
  is_now("weft_workers{state=\"ready\"}", 2);
  is_now("weft_workers_fenced_total", 0);
  expect(world_begin(&w, 0), WEFT_OK);
  expect(world_update(&w, 0, "{}", 0), WEFT_OK);
  set_fault(1, WEFT_MSG_W_PUBLISH, FAULT_FREEZE, 0);
  expect(world_finish(&w, 0, "v", 0), WEFT_OK);
  assert_true(value("weft_workers_fenced_total") >= 1);
  world_run(&w, 20000);
  is_now("weft_workers{state=\"ready\"}", 1);
  is_now("weft_workers{state=\"behind\"}", 1);
  stop();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(operations_are_counted_by_name_and_bucket),
    cmocka_unit_test(what_is_refused_is_not_counted),
    cmocka_unit_test(in_flight_is_zero_after_errors_and_disconnects),
    cmocka_unit_test(the_heartbeat_grows_without_anybody_asking),
    cmocka_unit_test(a_pause_is_timed_and_its_lease_makes_unready),
    cmocka_unit_test(require_pause_refuses_start_and_resume),
    cmocka_unit_test(a_restore_needs_no_pause_while_nothing_is_loaded),
    cmocka_unit_test(an_idle_half_hour_between_updates_changes_nothing),
    cmocka_unit_test(any_version_is_a_label),
    cmocka_unit_test(workers_are_counted_by_state),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
