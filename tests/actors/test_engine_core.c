#include "weft_test.h"

#include "world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static world w;

static void start(const world_opts *opts)
{
  static const world_opts usual = { .seed = 1 };
  world_start(&w, opts == NULL ? &usual : opts);
  if (w.broken) {
    fail_msg("%s", w.why);
  }
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
  if (w.broken || !a->came || a->err != err) {
    fail_msg("%s: got %s, want %s: %s", a->came ? "answered" : "not answered",
             weft_err_name(a->err), weft_err_name(err), w.broken ? w.why : a->message);
  }
}

static void expect_version(const char *version, uint64_t sequence)
{
  const world_answer *a = world_query(&w, 2, WEFT_QUERY_INFO);
  expect(a, WEFT_OK);
  assert_string_equal(a->version, version);
  assert_int_equal(a->sequence, sequence);
}

static void push(const char *info, const char *version)
{
  expect(world_begin(&w, 0), WEFT_OK);
  expect(world_update(&w, 0, info, 0), WEFT_OK);
  expect(world_finish(&w, 0, version, 0), WEFT_OK);
}

static void set_fault(uint32_t rank, uint16_t type, enum world_fault_kind kind)
{
  w.workers[rank].fault = (world_fault){ .type = type, .once = true };
  w.workers[rank].fault.kind = kind;
}

static void a_push_commits_on_all_ranks(void **state)
{
  (void)state;
  start(NULL);
  expect_version("default", 0);
  expect(world_init(&w, 0), WEFT_OK);
  push("{\"a\":1}", "step-1");
  expect_version("step-1", 1);
  assert_int_equal(w.workers[0].live_sequence, 1);
  assert_int_equal(w.workers[1].live_sequence, 1);
  assert_int_equal(w.commit_events, 1);
  push("{\"a\":2}", "step-2");
  expect_version("step-2", 2);
  assert_int_equal(w.commit_events, 2);
  stop();
}

/* Whatever the number of tensors. */
static void two_control_messages_per_worker_and_update(void **state)
{
  (void)state;
  static const unsigned tensors[] = { 0, 1, 20, 400, 1 };
  char info[400 * 16 + 32];
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  for (unsigned i = 0; i < 5; i++) {
    int len = snprintf(info, sizeof info, "{\"names\":[");
    for (unsigned t = 0; t < tensors[i]; t++) {
      len += snprintf(info + len, sizeof info - (size_t)len, "%s\"t%u\"",
                      t > 0 ? "," : "", t);
    }
    (void)snprintf(info + len, sizeof info - (size_t)len, "]}");
    expect(world_update(&w, 0, info, 0), WEFT_OK);
  }
  assert_int_equal(w.workers[0].accepts, 5);
  assert_int_equal(w.workers[0].goes, 5);
  assert_int_equal(w.workers[1].accepts, 5);
  assert_int_equal(w.workers[1].goes, 5);
  stop();
}

static void the_six_rules_of_the_version(void **state)
{
  (void)state;
  start(NULL);
  expect_version("default", 0);
  push("{\"a\":1}", "step-42");
  expect_version("step-42", 1);
  expect(world_begin(&w, 0), WEFT_OK);
  expect(world_update(&w, 0, "{\"a\":2}", 0), WEFT_OK);
  expect_version("step-42", 1);
  set_fault(1, WEFT_MSG_W_FINISH, FAULT_REFUSE);
  expect(world_finish(&w, 0, "step-43", 0), WEFT_E_FAILED);
  expect_version("step-42", 1);
  push("{\"a\":3}", NULL);
  expect_version("step-42", 2);
  const weft_client_label label = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                    .version = WEFT_STR("") };
  const unsigned publishes = w.workers[0].publishes;
  expect(world_call(&w, 0, &label.h, 1000), WEFT_OK);
  expect_version("", 3);
  assert_int_equal(w.workers[0].publishes, publishes);
  stop();
}

static void wrong_order_is_a_conflict_with_the_worker_text(void **state)
{
  (void)state;
  start(NULL);
  const world_answer *a = world_update(&w, 0, "{}", 0);
  expect(a, WEFT_E_STATE);
  assert_string_equal(a->message,
                      "start_weight_update must be called before update_weights.");
  a = world_finish(&w, 0, "x", 0);
  expect(a, WEFT_E_STATE);
  assert_string_equal(
      a->message, "finish_weight_update called without a matching start_weight_update.");
  expect(world_begin(&w, 0), WEFT_OK);
  a = world_begin(&w, 1);
  expect(a, WEFT_E_CONFLICT);
  assert_non_null(strstr(a->message, "already active. Call finish_weight_update first."));
  assert_non_null(strstr(a->message, "connection 100"));
  expect_version("default", 0);
  stop();
}

static void nobody_goes_before_all_have_accepted(void **state)
{
  (void)state;
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  set_fault(1, WEFT_MSG_W_ACCEPT, FAULT_REFUSE);
  const world_answer *a = world_update(&w, 0, "{}", 0);
  expect(a, WEFT_E_FAILED);
  assert_string_equal(a->culprits, "rank 1");
  assert_string_equal(a->phase, "accept");
  assert_int_equal(a->outcome, WEFT_OUTCOME_NOT_COMMITTED);
  assert_int_equal(w.workers[0].goes, 0);
  world_run(&w, 100);
  assert_int_equal(w.workers[0].aborts, 1);
  push("{}", "after");
  expect_version("after", 1);
  stop();
}

static void a_failure_in_any_phase_changes_nothing_and_the_next_push_works(void **state)
{
  (void)state;
  static const uint16_t phases[] = { WEFT_MSG_W_START, WEFT_MSG_W_ACCEPT, WEFT_MSG_W_GO,
                                     WEFT_MSG_W_FINISH };
  static const enum world_fault_kind kinds[] = { FAULT_REFUSE, FAULT_MUTE, FAULT_CRASH,
                                                 FAULT_FREEZE };
  for (size_t p = 0; p < 4; p++) {
    for (size_t k = 0; k < 4; k++) {
      start(NULL);
      push("{\"v\":1}", "good");
      const uint64_t bytes = w.workers[0].live;
      set_fault(1, phases[p], kinds[k]);
      const world_answer *a = world_begin(&w, 0);
      if (a->err == WEFT_OK) {
        a = world_update(&w, 0, "{\"v\":2}", 3000);
      }
      if (a->err == WEFT_OK) {
        a = world_finish(&w, 0, "bad", 3000);
      }
      assert_true(a->came);
      assert_int_not_equal(a->err, WEFT_OK);
      assert_string_equal(a->culprits, "rank 1");
      expect_version("good", 1);
      assert_int_equal(w.workers[0].live, bytes);
      world_run(&w, 15000); /* a hung worker is replaced */
      assert_true(world_all_ready(&w));
      push("{\"v\":3}", "healed");
      expect_version("healed", 2);
      assert_int_equal(w.workers[0].live, w.workers[1].live);
      stop();
    }
  }
}

static void answers_come_inside_the_deadline_and_name_the_late(void **state)
{
  (void)state;
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  set_fault(1, WEFT_MSG_W_GO, FAULT_MUTE);
  const world_answer *a = world_update(&w, 0, "{}", 2000);
  expect(a, WEFT_E_TIMEOUT);
  assert_true(a->at_ms - a->asked_ms <= 3000);
  assert_string_equal(a->culprits, "rank 1");
  assert_string_equal(a->operation, "update_weights");
  assert_non_null(strstr(a->message, "0 of 0 bytes"));
  stop();
}

static void a_worker_that_does_not_confirm_publish_is_fenced_first(void **state)
{
  (void)state;
  static const enum world_fault_kind kinds[] = { FAULT_MUTE, FAULT_CRASH, FAULT_FREEZE };
  for (size_t k = 0; k < 3; k++) {
    start(NULL);
    push("{\"v\":1}", "one");
    expect(world_begin(&w, 0), WEFT_OK);
    expect(world_update(&w, 0, "{\"v\":2}", 0), WEFT_OK);
    set_fault(1, WEFT_MSG_W_PUBLISH, kinds[k]);
    const world_answer *a = world_finish(&w, 0, "two", 0);
    expect(a, WEFT_OK);
    assert_string_equal(a->fenced, "1");
    expect_version("two", 2);
    world_run(&w, 2000);
    const world_answer *s = world_query(&w, 2, WEFT_QUERY_READY);
    expect(s, WEFT_E_UNAVAIL);
    assert_non_null(strstr(s->message, "rank 1 is behind"));
    push("{\"v\":3}", "three");
    expect(world_query(&w, 2, WEFT_QUERY_READY), WEFT_OK);
    stop();
  }
}

static void not_ready(const char *why)
{
  const world_answer *a = world_query(&w, 2, WEFT_QUERY_READY);
  expect(a, WEFT_E_UNAVAIL);
  if (strstr(a->message, why) == NULL) {
    fail_msg("not ready: %s", a->message);
  }
}

static void a_rank_that_maps_its_weights_again_is_ready_when_it_has_them(void **state)
{
  (void)state;
  for (unsigned fails = 0; fails < 2; fails++) {
    start(NULL);
    push("{\"v\":1}", "one");
    w.workers[1].maps_ms = 1000;
    w.workers[1].maps_fails = fails != 0;
    weft_sim_kill(w.sim, w.workers[1].actor);
    world_run(&w, 400);
    not_ready("rank 1 is behind: it maps its weights again");
    expect_version("one", 1);
    world_run(&w, 900);
    if (fails) {
      not_ready("rank 1 is behind: it has no weights; a full update brings it back");
    } else {
      expect(world_query(&w, 2, WEFT_QUERY_READY), WEFT_OK);
    }
    assert_int_equal(w.workers[1].publishes, 1); /* of its last life */
    push("{\"v\":2}", "two");
    expect(world_query(&w, 2, WEFT_QUERY_READY), WEFT_OK);
    expect_version("two", 2);
    stop();
  }
}

static void a_joined_worker_is_fenced_by_its_grant(void **state)
{
  (void)state;
  start(&(world_opts){ .seed = 3, .joined = true });
  push("{\"v\":1}", "one");
  world_run(&w, 3000);
  expect(world_begin(&w, 0), WEFT_OK);
  expect(world_update(&w, 0, "{\"v\":2}", 0), WEFT_OK);
  set_fault(1, WEFT_MSG_W_PUBLISH, FAULT_FREEZE);
  expect(world_finish(&w, 0, "two", 0), WEFT_OK);
  assert_int_equal(w.visible.sequence, 2);
  stop();
}

static void strict_coverage_refusal_leaves_the_session_open(void **state)
{
  (void)state;
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  expect(world_update(&w, 0, "{}", 0), WEFT_OK);
  set_fault(0, WEFT_MSG_W_FINISH, FAULT_CORRECTABLE);
  set_fault(1, WEFT_MSG_W_FINISH, FAULT_CORRECTABLE);
  const world_answer *a = world_finish(&w, 0, "x", 0);
  expect(a, WEFT_E_CONFLICT);
  assert_non_null(strstr(a->message, "1 tensor did not come"));
  expect(world_update(&w, 0, "{\"rest\":1}", 0), WEFT_OK);
  expect(world_finish(&w, 0, "x", 0), WEFT_OK);
  expect_version("x", 1);
  stop();
}

static void replicas_that_disagree_cannot_become_visible(void **state)
{
  (void)state;
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  expect(world_update(&w, 0, "{}", 0), WEFT_OK);
  w.workers[1].staged ^= 1;
  const world_answer *a = world_finish(&w, 0, "x", 0);
  expect(a, WEFT_E_FAILED);
  assert_non_null(strstr(a->message, "rank 1 holds xxh3-128:"));
  expect_version("default", 0);
  world_run(&w, 100);
  expect(world_begin(&w, 0), WEFT_OK);
  expect(world_update(&w, 0, " [{},{}]", 0), WEFT_OK);
  w.shards = true;
  w.workers[1].staged ^= 1; /* one entry per rank: shards differ by right */
  expect(world_finish(&w, 0, "shards", 0), WEFT_OK);
  expect_version("shards", 1);
  stop();
}

static void the_lease_ends_an_abandoned_session(void **state)
{
  (void)state;
  start(&(world_opts){ .seed = 1, .lease_ms = 5000 });
  expect(world_begin(&w, 0), WEFT_OK);
  world_run(&w, 4000);
  expect(world_update(&w, 0, "{}", 0), WEFT_OK);
  world_run(&w, 4000);
  expect(world_update(&w, 0, "{}", 0),
         WEFT_OK); /* the lease ran only between the calls */
  world_run(&w, 6000);
  const world_answer *a = world_finish(&w, 0, "x", 0);
  expect(a, WEFT_E_STATE);
  assert_non_null(strstr(a->message, "lease"));
  expect(world_begin(&w, 1), WEFT_OK);
  stop();
}

static void abort_ends_a_session_and_the_next_start_works_at_once(void **state)
{
  (void)state;
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  expect(world_update(&w, 0, "{}", 0), WEFT_OK);
  const weft_client_abort abort_msg = { .h.type = WEFT_MSG_CLIENT_ABORT };
  expect(world_call(&w, 1, &abort_msg.h, 5000), WEFT_OK);
  assert_int_equal(w.workers[0].aborts, 1);
  expect(world_begin(&w, 1), WEFT_OK);
  expect(world_call(&w, 1, &abort_msg.h, 5000), WEFT_OK);
  expect(world_call(&w, 1, &abort_msg.h, 5000), WEFT_OK); /* nothing open: fine as well */
  expect_version("default", 0);
  stop();
}

static void abort_breaks_off_a_running_update(void **state)
{
  (void)state;
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  w.workers[1].fault =
      (world_fault){ .type = WEFT_MSG_W_GO, .slow_ms = 100000, .once = true };
  w.workers[1].fault.kind = FAULT_SLOW;
  weft_buf *info = weft_buf_create("{}", 2);
  const weft_client_update update = { .h.type = WEFT_MSG_CLIENT_UPDATE,
                                      .caller = 100,
                                      .info = info };
  world_post(&w, 0, &update.h);
  world_run(&w, 500);
  assert_false(w.answers[0].came);
  const weft_client_abort abort_msg = { .h.type = WEFT_MSG_CLIENT_ABORT };
  expect(world_call(&w, 1, &abort_msg.h, 5000), WEFT_OK);
  assert_true(w.answers[0].came);
  assert_int_equal(w.answers[0].err, WEFT_E_CONFLICT);
  weft_buf_unref(info);
  push("{}", "next");
  stop();
}

static void init_takes_over_from_the_dead_but_not_from_the_living(void **state)
{
  (void)state;
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  w.workers[1].fault =
      (world_fault){ .type = WEFT_MSG_W_GO, .slow_ms = 200000, .once = true };
  w.workers[1].fault.kind = FAULT_SLOW;
  weft_buf *info = weft_buf_create("{}", 2);
  const weft_client_update update = { .h.type = WEFT_MSG_CLIENT_UPDATE,
                                      .caller = 100,
                                      .info = info };
  world_post(&w, 0, &update.h);
  world_run(&w, 200);
  const world_answer *a = world_init(&w, 1);
  expect(a, WEFT_E_CONFLICT);
  assert_non_null(strstr(a->message, "connection 100"));
  const weft_client_gone gone = { .h.type = WEFT_MSG_CLIENT_GONE, .caller = 100 };
  world_post(&w, 0, &gone.h);
  world_run(&w, 10);
  expect(world_init(&w, 1), WEFT_OK);
  push("{}", "second-life");
  expect_version("second-life", 1);
  weft_buf_unref(info);
  stop();
}

/* Puts an update of rank 1's that takes long, and its repeat over another connection. */
static void post_update_twice(weft_buf *info)
{
  w.workers[1].fault =
      (world_fault){ .type = WEFT_MSG_W_GO, .slow_ms = 200000, .once = true };
  w.workers[1].fault.kind = FAULT_SLOW;
  weft_client_update update = { .h.type = WEFT_MSG_CLIENT_UPDATE,
                                .caller = 100,
                                .idem_key = WEFT_STR("shared"),
                                .body_hash = 1,
                                .info = info };
  world_post(&w, 0, &update.h);
  world_run(&w, 100);
  update.caller = 102;
  world_post(&w, 2, &update.h);
  world_run(&w, 100);
}

static void hang_up(unsigned client)
{
  const weft_client_gone gone = { .h.type = WEFT_MSG_CLIENT_GONE,
                                  .caller = 100 + client };
  world_post(&w, client, &gone.h);
  world_run(&w, 10);
}

static void a_call_lives_while_a_repeat_waits_for_it(void **state)
{
  (void)state;
  weft_buf *info = weft_buf_create("{}", 2);
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  post_update_twice(info);
  hang_up(0);
  expect(world_init(&w, 1), WEFT_E_CONFLICT); /* the repeat still wants it */
  assert_false(w.answers[2].came);
  hang_up(2);
  expect(&w.answers[2], WEFT_E_CANCELLED);
  expect(world_init(&w, 1), WEFT_OK);
  stop();
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  post_update_twice(info);
  hang_up(2);
  expect(world_init(&w, 1), WEFT_E_CONFLICT); /* its first caller is there */
  hang_up(0);
  expect(world_init(&w, 1), WEFT_OK);
  weft_buf_unref(info);
  stop();
}

static void a_waiting_call_goes_with_its_last_caller(void **state)
{
  (void)state;
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  w.workers[1].fault =
      (world_fault){ .type = WEFT_MSG_W_ABORT, .slow_ms = 1000, .once = true };
  w.workers[1].fault.kind = FAULT_SLOW;
  const weft_client_abort abort_msg = { .h.type = WEFT_MSG_CLIENT_ABORT };
  world_post(&w, 1, &abort_msg.h);
  world_run(&w, 20);
  weft_client_start begin = { .h.type = WEFT_MSG_CLIENT_START,
                              .caller = 100,
                              .idem_key = WEFT_STR("shared"),
                              .body_hash = 1 };
  world_post(&w, 0, &begin.h);
  world_run(&w, 20);
  begin.caller = 102;
  world_post(&w, 2, &begin.h);
  world_run(&w, 20);
  hang_up(0);
  assert_false(w.answers[0].came); /* the repeat still wants it */
  hang_up(2);
  expect(&w.answers[0], WEFT_E_CANCELLED);
  expect(&w.answers[2], WEFT_E_CANCELLED);
  world_run(&w, 5000);
  expect(world_begin(&w, 1), WEFT_OK); /* nothing was begun for them */
  stop();
}

static void a_label_waits_for_the_finish_before_it(void **state)
{
  (void)state;
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  w.workers[1].fault =
      (world_fault){ .type = WEFT_MSG_W_FINISH, .slow_ms = 1000, .once = true };
  w.workers[1].fault.kind = FAULT_SLOW;
  const weft_client_finish finish = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                      .caller = 100,
                                      .has_version = 1,
                                      .version = WEFT_STR("weights") };
  world_post(&w, 0, &finish.h);
  world_run(&w, 100);
  const weft_client_label label = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                    .version = WEFT_STR("label") };
  const world_answer *a = world_call(&w, 1, &label.h, 5000);
  expect(a, WEFT_OK);
  assert_int_equal(a->sequence, 2);
  assert_true(w.answers[0].came);
  expect_version("label", 2);
  stop();
}

static void expected_version_is_compare_and_set(void **state)
{
  (void)state;
  start(NULL);
  weft_client_label label = { .h.type = WEFT_MSG_CLIENT_LABEL,
                              .version = WEFT_STR("b"),
                              .has_expected = 1,
                              .expected = WEFT_STR("a") };
  expect(world_call(&w, 0, &label.h, 1000), WEFT_E_PRECOND);
  label.expected = WEFT_STR("default");
  expect(world_call(&w, 0, &label.h, 1000), WEFT_OK);
  expect(world_begin(&w, 0), WEFT_OK);
  weft_client_finish finish = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                .has_expected = 1,
                                .expected = WEFT_STR("a") };
  expect(world_call(&w, 0, &finish.h, 1000), WEFT_E_PRECOND);
  finish.expected = WEFT_STR("b"); /* the session is still open */
  expect(world_call(&w, 0, &finish.h, 1000), WEFT_OK);
  expect_version("b", 2);
  stop();
}

static void an_idempotency_key_runs_a_call_once(void **state)
{
  (void)state;
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  weft_client_finish finish = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                .has_version = 1,
                                .version = WEFT_STR("v"),
                                .idem_key = WEFT_STR("k1"),
                                .body_hash = 7 };
  expect(world_call(&w, 0, &finish.h, 1000), WEFT_OK);
  const world_answer *a = world_call(&w, 1, &finish.h, 1000);
  expect(a, WEFT_OK);
  assert_int_equal(a->sequence, 1);
  assert_int_equal(w.commit_events, 1);
  finish.body_hash = 8;
  expect(world_call(&w, 1, &finish.h, 1000), WEFT_E_REUSED);
  stop();
}

static void a_call_that_never_began_is_not_remembered(void **state)
{
  (void)state;
  start(NULL);
  /* A start waits for an abort that takes a while; its connection goes; the caller's
   * retry under the same key is a new attempt. */
  expect(world_begin(&w, 0), WEFT_OK);
  w.workers[1].fault =
      (world_fault){ .type = WEFT_MSG_W_ABORT, .slow_ms = 1000, .once = true };
  w.workers[1].fault.kind = FAULT_SLOW;
  const weft_client_abort abort_msg = { .h.type = WEFT_MSG_CLIENT_ABORT };
  world_post(&w, 1, &abort_msg.h);
  world_run(&w, 20);
  const weft_client_start begin = { .h.type = WEFT_MSG_CLIENT_START,
                                    .caller = 100,
                                    .idem_key = WEFT_STR("again"),
                                    .body_hash = 1 };
  world_post(&w, 0, &begin.h);
  world_run(&w, 20);
  const weft_client_gone gone = { .h.type = WEFT_MSG_CLIENT_GONE, .caller = 100 };
  world_post(&w, 0, &gone.h);
  world_run(&w, 20);
  weft_client_start retry = begin;
  retry.caller = 101;
  expect(world_call(&w, 2, &retry.h, 5000), WEFT_OK);
  stop();
}

static void a_stale_session_id_cannot_write_into_the_next(void **state)
{
  (void)state;
  start(NULL);
  char first[64];
  const world_answer *a = world_begin(&w, 0);
  expect(a, WEFT_OK);
  (void)snprintf(first, sizeof first, "%s", a->session);
  assert_true(strlen(first) > 0);
  expect(world_finish(&w, 0, "one", 0), WEFT_OK);
  expect(world_begin(&w, 1), WEFT_OK);
  const weft_client_finish late = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                    .has_version = 1,
                                    .version = WEFT_STR("late"),
                                    .session = { first, (uint32_t)strlen(first) } };
  expect(world_call(&w, 0, &late.h, 1000), WEFT_E_CONFLICT);
  expect_version("one", 1);
  stop();
}

static void a_failed_record_is_rolled_forward(void **state)
{
  (void)state;
  start(&(world_opts){ .seed = 5, .with_journal = true });
  expect(world_begin(&w, 0), WEFT_OK);
  w.journal_fails_once = true;
  expect(world_finish(&w, 0, "v", 0), WEFT_OK);
  expect_version("v", 1);
  assert_int_equal(w.visible_count, 1);
  stop();
}

static void an_answer_due_after_the_issue_says_unknown(void **state)
{
  (void)state;
  start(&(world_opts){ .seed = 5, .with_journal = true });
  expect(world_begin(&w, 0), WEFT_OK);
  w.journal_slow = true; /* 700 ms */
  const world_answer *a = world_finish(&w, 0, "v", 600);
  expect(a, WEFT_E_TIMEOUT);
  assert_int_equal(a->outcome, WEFT_OUTCOME_UNKNOWN);
  assert_int_equal(w.visible.sequence, 0);
  world_run(&w, 1000);
  expect_version("v", 1);
  assert_int_equal(w.answers[0].count, a->count);
  stop();
}

static void a_worker_that_dies_between_calls_ends_the_session(void **state)
{
  (void)state;
  start(NULL);
  expect(world_begin(&w, 0), WEFT_OK);
  weft_sim_kill(w.sim, w.workers[1].actor);
  world_run(&w, 500);
  const world_answer *a = world_update(&w, 0, "{}", 0);
  expect(a, WEFT_E_STATE);
  assert_non_null(strstr(a->message, "rank 1 is down"));
  push("{}", "x");
  stop();
}

/* Rank 0 has done its part when it dies; rank 1 still works on its own. */
static void a_rank_that_dies_after_its_answer_fails_the_phase(void **state)
{
  (void)state;
  static const uint16_t phases[] = { WEFT_MSG_W_START, WEFT_MSG_W_GO, WEFT_MSG_W_FINISH };
  for (size_t p = 0; p < 3; p++) {
    start(NULL);
    push("{\"v\":1}", "good");
    w.workers[1].fault =
        (world_fault){ .type = phases[p], .slow_ms = 1000, .once = true };
    w.workers[1].fault.kind = FAULT_SLOW;
    weft_buf *info = weft_buf_create("{}", 2);
    const weft_client_start begin = { .h.type = WEFT_MSG_CLIENT_START };
    const weft_client_update update = { .h.type = WEFT_MSG_CLIENT_UPDATE, .info = info };
    const weft_client_finish finish = { .h.type = WEFT_MSG_CLIENT_FINISH };
    const weft_msg *calls[] = { &begin.h, &update.h, &finish.h };
    for (size_t i = 0; i < p; i++) {
      expect(world_call(&w, 0, calls[i], 5000), WEFT_OK);
    }
    world_post(&w, 0, calls[p]);
    world_run(&w, 500);
    assert_false(w.answers[0].came);
    weft_sim_kill(w.sim, w.workers[0].actor);
    world_run(&w, 1500);
    assert_true(w.answers[0].came);
    assert_int_not_equal(w.answers[0].err, WEFT_OK);
    assert_string_equal(w.answers[0].culprits, "rank 0");
    expect_version("good", 1);
    world_run(&w, 1000);
    push("{\"v\":3}", "healed");
    weft_buf_unref(info);
    stop();
  }
}

static void a_finish_behind_a_stuck_label_ends_at_its_deadline(void **state)
{
  (void)state;
  start(&(world_opts){ .seed = 5, .with_journal = true });
  expect(world_begin(&w, 0), WEFT_OK);
  w.journal_slow = true; /* 700 ms */
  const weft_client_label label = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                    .version = WEFT_STR("label") };
  world_post(&w, 1, &label.h);
  world_run(&w, 50);
  const world_answer *a = world_finish(&w, 0, "v", 300);
  expect(a, WEFT_E_TIMEOUT);
  assert_int_equal(a->outcome, WEFT_OUTCOME_NOT_COMMITTED);
  assert_true(a->at_ms - a->asked_ms <= 1300);
  world_run(&w, 2000);
  expect_version("label", 1);
  stop();
}

static void checks_merge_all_ranks_or_name_the_missing(void **state)
{
  (void)state;
  start(NULL);
  const weft_client_check reset = { .h.type = WEFT_MSG_CLIENT_CHECK,
                                    .action = WEFT_CHECK_COMPARE };
  const world_answer *a = world_call(&w, 0, &reset.h, 1000);
  expect(a, WEFT_E_INVAL);
  assert_string_equal(a->message, "action='compare' requires a 'baseline' object");
  stop();
}

/* What rank 1 has differs, and so does "w9", which only the baseline has. */
static weft_buf *baseline_of(const world *from)
{
  char text[128];
  const int n = snprintf(text, sizeof text,
                         "{\"w9\":\"1\",\"w1\":\"other\",\"w0\":\"%" PRIx64 "\"}",
                         from->workers[0].live);
  return weft_buf_create(text, (size_t)n);
}

static weft_client_check compare_with(weft_buf *baseline)
{
  return (weft_client_check){ .h = { .type = WEFT_MSG_CLIENT_CHECK },
                              .timeout_ms = 1000,
                              .action = WEFT_CHECK_COMPARE,
                              .baseline = baseline };
}

static void compare_is_the_same_with_a_clerk_and_without(void **state)
{
  (void)state;
  for (int with = 0; with < 2; with++) {
    start(&(world_opts){ .seed = 3, .with_clerk = with != 0 });
    push("{\"v\":1}", "step-1");
    weft_buf *baseline = baseline_of(&w);
    const weft_client_check check = compare_with(baseline);
    const world_answer *a = world_call(&w, 0, &check.h, 1000);
    expect(a, WEFT_OK);
    assert_string_equal(a->body, "{\"match\":false,\"mismatches\":[\"w1\",\"w9\"]}");
    weft_buf_unref(baseline);
    weft_buf *bad = weft_buf_create("{\"w0\":", 6);
    const weft_client_check broken = compare_with(bad);
    expect(world_call(&w, 0, &broken.h, 1000), WEFT_E_TRUNCATED);
    assert_memory_equal(w.answers[0].message, "weight_checker: ", 16);
    weft_buf_unref(bad);
    stop();
  }
}

/* The engine answers others meanwhile, and the call at its deadline. */
static void a_slow_clerk_holds_up_nobody(void **state)
{
  (void)state;
  start(&(world_opts){ .seed = 4, .with_clerk = true });
  push("{\"v\":1}", "step-1");
  weft_sim_freeze(w.sim, w.clerk, true);
  weft_buf *baseline = baseline_of(&w);
  const weft_client_check check = compare_with(baseline);
  world_post(&w, 0, &check.h);
  world_run(&w, 500);
  assert_false(w.answers[0].came);
  expect_version("step-1", 1);
  push("{\"v\":2}", "step-2");
  world_run(&w, 1100);
  expect(&w.answers[0], WEFT_E_TIMEOUT);
  assert_true(w.answers[0].at_ms - w.answers[0].asked_ms <= 1100);
  assert_non_null(strstr(w.answers[0].message, "not done in time"));
  weft_sim_freeze(w.sim, w.clerk, false); /* finds what nobody waits for any more */
  weft_buf_unref(baseline);
  baseline = baseline_of(&w);
  const weft_client_check again = compare_with(baseline);
  expect(world_call(&w, 0, &again.h, 1000), WEFT_OK);
  weft_buf_unref(baseline);
  stop();
}

static void a_dead_clerk_is_an_error(void **state)
{
  (void)state;
  start(&(world_opts){ .seed = 5, .with_clerk = true });
  push("{\"v\":1}", "step-1");
  weft_buf *baseline = baseline_of(&w);
  const weft_client_check check = compare_with(baseline);
  weft_sim_freeze(w.sim, w.clerk, true);
  world_post(&w, 0, &check.h);
  world_run(&w, 500);
  weft_sim_kill(w.sim, w.clerk); /* with a question before it */
  world_run(&w, 100);
  expect(&w.answers[0], WEFT_E_DOWN);
  const world_answer *a = world_call(&w, 1, &check.h, 1000); /* and from now on */
  expect(a, WEFT_E_DOWN);
  assert_non_null(strstr(a->message, "restart the server"));
  weft_buf_unref(baseline);
  push("{\"v\":2}", "step-2"); /* nothing else is the worse for it */
  stop();
}

static void status_is_one_snapshot(void **state)
{
  (void)state;
  start(NULL);
  push("{\"v\":1}", "step-1");
  const world_answer *a = world_query(&w, 1, WEFT_QUERY_STATUS);
  expect(a, WEFT_OK);
  assert_non_null(
      strstr(a->body, "\"version\":\"step-1\",\"declared\":true,\"sequence\":1,"));
  assert_non_null(strstr(a->body, "\"session\":null"));
  assert_non_null(strstr(a->body, "\"ready\":true"));
  expect(world_begin(&w, 0), WEFT_OK);
  a = world_query(&w, 1, WEFT_QUERY_STATUS);
  assert_non_null(strstr(a->body, "\"state\":\"open\""));
  stop();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_push_commits_on_all_ranks),
    cmocka_unit_test(two_control_messages_per_worker_and_update),
    cmocka_unit_test(the_six_rules_of_the_version),
    cmocka_unit_test(wrong_order_is_a_conflict_with_the_worker_text),
    cmocka_unit_test(nobody_goes_before_all_have_accepted),
    cmocka_unit_test(a_failure_in_any_phase_changes_nothing_and_the_next_push_works),
    cmocka_unit_test(answers_come_inside_the_deadline_and_name_the_late),
    cmocka_unit_test(a_worker_that_does_not_confirm_publish_is_fenced_first),
    cmocka_unit_test(a_rank_that_maps_its_weights_again_is_ready_when_it_has_them),
    cmocka_unit_test(a_joined_worker_is_fenced_by_its_grant),
    cmocka_unit_test(strict_coverage_refusal_leaves_the_session_open),
    cmocka_unit_test(replicas_that_disagree_cannot_become_visible),
    cmocka_unit_test(the_lease_ends_an_abandoned_session),
    cmocka_unit_test(abort_ends_a_session_and_the_next_start_works_at_once),
    cmocka_unit_test(abort_breaks_off_a_running_update),
    cmocka_unit_test(init_takes_over_from_the_dead_but_not_from_the_living),
    cmocka_unit_test(a_label_waits_for_the_finish_before_it),
    cmocka_unit_test(expected_version_is_compare_and_set),
    cmocka_unit_test(an_idempotency_key_runs_a_call_once),
    cmocka_unit_test(a_call_lives_while_a_repeat_waits_for_it),
    cmocka_unit_test(a_waiting_call_goes_with_its_last_caller),
    cmocka_unit_test(a_call_that_never_began_is_not_remembered),
    cmocka_unit_test(a_stale_session_id_cannot_write_into_the_next),
    cmocka_unit_test(a_failed_record_is_rolled_forward),
    cmocka_unit_test(an_answer_due_after_the_issue_says_unknown),
    cmocka_unit_test(a_worker_that_dies_between_calls_ends_the_session),
    cmocka_unit_test(a_rank_that_dies_after_its_answer_fails_the_phase),
    cmocka_unit_test(a_finish_behind_a_stuck_label_ends_at_its_deadline),
    cmocka_unit_test(checks_merge_all_ranks_or_name_the_missing),
    cmocka_unit_test(compare_is_the_same_with_a_clerk_and_without),
    cmocka_unit_test(a_slow_clerk_holds_up_nobody),
    cmocka_unit_test(a_dead_clerk_is_an_error),
    cmocka_unit_test(status_is_one_snapshot),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
