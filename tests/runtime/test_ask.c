#include "weft_test.h"

#include "puppet.h"
#include "sample_catalogue.h"
#include "weft/sim.h"

#include <stdlib.h>
#include <string.h>

/* Exactly one end for each question, whatever happens.  Under the seeded scheduler. */

enum { QUESTIONS_MAX = 64, REASONS = 32 };

typedef struct world {
  weft_sim *sim;
  weft_actor_id asker, target;
  /* asker */
  int to_ask;
  uint64_t timeout_ms;
  bool cancel;
  uint64_t asked[QUESTIONS_MAX];
  int ends[QUESTIONS_MAX]; /* how often each question ended */
  int count;
  int answers, failures[REASONS];
  int strangers; /* ends of questions that were not asked */
  /* target */
  enum { ANSWER, HOLD, ANSWER_TWICE, DIE, DIE_HOLDING, ANSWER_NOTHING } how;
  weft_return held[QUESTIONS_MAX];
  int held_count;
  weft_err reply_err;
} world;

static void note_end(world *w, const weft_msg *msg)
{
  for (int i = 0; i < w->count; i++) {
    if (w->asked[i] == msg->corr) {
      w->ends[i]++;
      return;
    }
  }
  w->strangers++;
}

static weft_err asker_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  if (msg->type == SAMPLE_GO) {
    for (int i = 0; i < w->to_ask; i++) {
      const sample_ping ping = { .h = { .type = SAMPLE_PING }, .n = (uint32_t)i };
      const uint64_t corr =
          weft_ask(ctx, w->target, weft_msg_make(ctx, &ping.h), w->timeout_ms);
      assert_true(corr != 0);
      w->asked[w->count++] = corr;
    }
    if (w->cancel) {
      weft_ask_cancel(ctx, w->asked[0]);
      weft_ask_cancel(ctx, w->asked[0]);
      weft_ask_cancel(ctx, 12345);
    }
    return WEFT_OK;
  }
  note_end(w, msg);
  if (msg->type == WEFT_MSG_ASK_FAILED) {
    const weft_ask_failed_msg *f = (const weft_ask_failed_msg *)msg;
    assert_int_equal(msg->flags & WEFT_MSG_F_REPLY, 0);
    assert_true(msg->from == w->target);
    w->failures[f->reason]++;
    return WEFT_OK;
  }
  assert_int_equal(msg->type, SAMPLE_PONG);
  assert_int_equal(msg->flags & WEFT_MSG_F_REPLY, WEFT_MSG_F_REPLY);
  w->answers++;
  return WEFT_OK;
}

static weft_msg *pong(weft_ctx *ctx)
{
  const sample_ping m = { .h = { .type = SAMPLE_PONG } };
  return weft_msg_make(ctx, &m.h);
}

static weft_err target_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  if (msg->type == SAMPLE_GO) { /* now answer what was held */
    for (int i = 0; i < w->held_count; i++) {
      w->reply_err = weft_reply(ctx, w->held[i], pong(ctx));
    }
    w->held_count = 0;
    return WEFT_OK;
  }
  switch (w->how) {
  case ANSWER:
    return weft_reply(ctx, weft_return_of(msg), pong(ctx)) == WEFT_E_INVAL ? WEFT_E_STATE
                                                                           : WEFT_OK;
  case ANSWER_TWICE:
    (void)weft_reply(ctx, weft_return_of(msg), pong(ctx));
    (void)weft_reply(ctx, weft_return_of(msg), pong(ctx));
    return WEFT_OK;
  case ANSWER_NOTHING:
    w->reply_err = weft_reply(ctx, weft_return_of(msg), NULL);
    return WEFT_OK;
  case DIE:
    return WEFT_E_FAILED;
  case DIE_HOLDING:
  case HOLD:
    w->held[w->held_count++] = weft_return_of(msg);
    return w->how == DIE_HOLDING && w->held_count == 3 ? WEFT_E_FAILED : WEFT_OK;
  }
  return WEFT_E_STATE;
}

static weft_sim_fate drop_pings(void *arg, const weft_msg *msg, uint64_t *delay_ms)
{
  (void)arg;
  (void)delay_ms;
  return msg->type == SAMPLE_PING ? WEFT_SIM_DROP : WEFT_SIM_DELIVER;
}

static weft_sim_fate double_all(void *arg, const weft_msg *msg, uint64_t *delay_ms)
{
  (void)arg;
  (void)msg;
  (void)delay_ms;
  return WEFT_SIM_TWICE;
}

static weft_sim_fate delay_pongs(void *arg, const weft_msg *msg, uint64_t *delay_ms)
{
  (void)arg;
  *delay_ms = 500;
  return msg->type == SAMPLE_PONG ? WEFT_SIM_DELAY : WEFT_SIM_DELIVER;
}

static void start_with(world *w, uint64_t seed, weft_sim_fate_fn *fate, size_t mailbox)
{
  const weft_sim_opts opts = { .size = sizeof opts,
                               .seed = seed,
                               .catalogue = &sample_catalogue,
                               .fate = fate,
                               .arg = w };
  assert_ok(weft_sim_create(&opts, &w->sim));
  const puppet_args asker = { .on = asker_on, .arg = w };
  const puppet_args target = { .on = target_on, .arg = w };
  const weft_spawn_opts small = { .mailbox = mailbox };
  assert_ok(weft_sim_spawn(w->sim, &puppet_class, &asker, NULL, &w->asker));
  assert_ok(weft_sim_spawn(w->sim, &puppet_class, &target, &small, &w->target));
}

static void go(world *w, weft_actor_id who)
{
  const weft_msg m = { .type = SAMPLE_GO };
  assert_ok(weft_sim_send(w->sim, who, &m));
}

static void assert_each_ended_once(const world *w)
{
  int failures = 0;
  for (int i = 0; i < REASONS; i++) {
    failures += w->failures[i];
  }
  assert_int_equal(w->strangers, 0);
  assert_int_equal(w->answers + failures, w->count);
  for (int i = 0; i < w->count; i++) {
    assert_int_equal(w->ends[i], 1);
  }
}

static void answers_arrive_once(void **state)
{
  (void)state;
  world w = { .to_ask = 10, .how = ANSWER };
  start_with(&w, 1, NULL, 0);
  go(&w, w.asker);
  weft_sim_run(w.sim, 5000);
  assert_int_equal(w.answers, 10);
  assert_each_ended_once(&w);
  weft_sim_destroy(w.sim);
}

static void second_answers_are_dropped(void **state)
{
  (void)state;
  world w = { .to_ask = 10, .how = ANSWER_TWICE, .timeout_ms = 100 };
  start_with(&w, 1, NULL, 0);
  go(&w, w.asker);
  weft_sim_run(w.sim, 5000);
  assert_int_equal(w.answers, 10);
  assert_each_ended_once(&w);
  weft_sim_destroy(w.sim);
}

static void silence_times_out_and_late_answers_are_dropped(void **state)
{
  (void)state;
  world w = { .to_ask = 10, .how = HOLD, .timeout_ms = 100 };
  start_with(&w, 1, NULL, 0);
  go(&w, w.asker);
  const uint64_t start = weft_sim_now_ms(w.sim);
  weft_sim_run(w.sim, start + 99);
  assert_int_equal(w.failures[WEFT_E_TIMEOUT], 0);
  weft_sim_run(w.sim, start + 100);
  assert_int_equal(w.failures[WEFT_E_TIMEOUT], 10);
  go(&w, w.target);
  weft_sim_run(w.sim, 5000);
  assert_int_equal(w.reply_err, WEFT_OK);
  assert_each_ended_once(&w);
  weft_sim_destroy(w.sim);
}

static void no_deadline_waits_for_ever(void **state)
{
  (void)state;
  world w = { .to_ask = 3, .how = HOLD };
  start_with(&w, 1, NULL, 0);
  go(&w, w.asker);
  weft_sim_run(w.sim, 100000000);
  assert_int_equal(w.answers, 0);
  go(&w, w.target);
  weft_sim_run(w.sim, 100000000);
  assert_int_equal(w.answers, 3);
  assert_each_ended_once(&w);
  weft_sim_destroy(w.sim);
}

static void death_fails_what_waits_and_what_is_held(void **state)
{
  (void)state;
  world w = { .to_ask = 10, .how = DIE_HOLDING, .timeout_ms = 1000 };
  start_with(&w, 1, NULL, 0);
  go(&w, w.asker);
  weft_sim_run(w.sim, 1500);
  assert_int_equal(w.held_count, 3); /* seven were still in the mailbox */
  assert_int_equal(w.failures[WEFT_E_DOWN], 10);
  weft_sim_run(w.sim, 9000);
  assert_each_ended_once(&w);
  weft_sim_destroy(w.sim);
}

static void the_dead_cannot_be_asked(void **state)
{
  (void)state;
  world w = { .to_ask = 5, .how = DIE };
  start_with(&w, 1, NULL, 0);
  weft_sim_kill(w.sim, w.target);
  assert_false(weft_sim_alive(w.sim, w.target));
  go(&w, w.asker);
  weft_sim_run(w.sim, 5000);
  assert_int_equal(w.failures[WEFT_E_DOWN], 5);
  assert_each_ended_once(&w);
  w.target = 0; /* nor can nobody, nor another runtime's */
  go(&w, w.asker);
  weft_sim_run(w.sim, 5000);
  w.target = ((weft_actor_id)9 << 56) | 77;
  go(&w, w.asker);
  weft_sim_run(w.sim, 5000);
  assert_int_equal(w.failures[WEFT_E_DOWN], 15);
  assert_each_ended_once(&w);
  weft_sim_destroy(w.sim);
}

static void full_mailbox_is_told(void **state)
{
  (void)state;
  world w = { .to_ask = 10, .how = ANSWER, .timeout_ms = 50 };
  start_with(&w, 1, NULL, 4);
  weft_sim_freeze(w.sim, w.target, true);
  go(&w, w.asker);
  weft_sim_run(w.sim, 1010);
  assert_int_equal(w.failures[WEFT_E_FULL], 6);
  weft_sim_freeze(w.sim, w.target, false);
  weft_sim_run(w.sim, 5000);
  assert_int_equal(w.answers, 4);
  assert_each_ended_once(&w);
  weft_sim_destroy(w.sim);
}

static void full_asker_gets_failures_for_its_answers(void **state)
{
  (void)state;
  world w = { .to_ask = 20, .how = ANSWER };
  const weft_sim_opts opts = { .size = sizeof opts, .catalogue = &sample_catalogue };
  assert_ok(weft_sim_create(&opts, &w.sim));
  const puppet_args asker = { .on = asker_on, .arg = &w };
  const puppet_args target = { .on = target_on, .arg = &w };
  const weft_spawn_opts small = { .mailbox = 8 };
  assert_ok(weft_sim_spawn(w.sim, &puppet_class, &asker, &small, &w.asker));
  assert_ok(weft_sim_spawn(w.sim, &puppet_class, &target, NULL, &w.target));
  go(&w, w.asker);
  while (w.count < 20) {
    assert_true(weft_sim_step(w.sim));
  }
  weft_sim_freeze(w.sim, w.asker, true);
  weft_sim_run(w.sim, 2000);
  weft_sim_freeze(w.sim, w.asker, false);
  weft_sim_run(w.sim, 5000);
  assert_int_equal(w.answers, 10);               /* 8 and a quarter more */
  assert_int_equal(w.failures[WEFT_E_LOST], 10); /* the questions had got there */
  assert_each_ended_once(&w);
  weft_sim_destroy(w.sim);
}

static void lost_questions_time_out(void **state)
{
  (void)state;
  world w = { .to_ask = 5, .how = ANSWER, .timeout_ms = 100 };
  start_with(&w, 1, drop_pings, 0);
  go(&w, w.asker);
  weft_sim_run(w.sim, 5000);
  assert_int_equal(w.failures[WEFT_E_TIMEOUT], 5);
  assert_each_ended_once(&w);
  weft_sim_destroy(w.sim);
}

static void doubled_messages_end_a_question_once(void **state)
{
  (void)state;
  world w = { .to_ask = 5, .how = ANSWER, .timeout_ms = 100 };
  start_with(&w, 1, double_all, 0);
  go(&w, w.asker);
  weft_sim_run(w.sim, 5000);
  assert_int_equal(w.count, 10); /* GO came twice as well */
  assert_int_equal(w.answers, 10);
  assert_each_ended_once(&w);
  weft_sim_destroy(w.sim);
}

static void overtaken_by_its_deadline(void **state)
{
  (void)state;
  world w = { .to_ask = 5, .how = ANSWER, .timeout_ms = 100 };
  start_with(&w, 1, delay_pongs, 0);
  go(&w, w.asker);
  weft_sim_run(w.sim, 5000);
  assert_int_equal(w.failures[WEFT_E_TIMEOUT], 5);
  assert_each_ended_once(&w);
  weft_sim_destroy(w.sim);
}

static void an_answer_without_memory_is_a_failure(void **state)
{
  (void)state;
  world w = { .to_ask = 3, .how = ANSWER_NOTHING };
  start_with(&w, 1, NULL, 0);
  go(&w, w.asker);
  weft_sim_run(w.sim, 5000);
  assert_int_equal(w.reply_err, WEFT_E_NOMEM);
  assert_int_equal(w.failures[WEFT_E_LOST], 3);
  assert_each_ended_once(&w);
  weft_sim_destroy(w.sim);
}

static void cancelled_questions_stay_silent(void **state)
{
  (void)state;
  world w = { .to_ask = 1, .how = ANSWER, .cancel = true, .timeout_ms = 100 };
  start_with(&w, 1, NULL, 0);
  go(&w, w.asker);
  weft_sim_run(w.sim, 5000);
  assert_int_equal(w.ends[0], 0);
  assert_int_equal(w.strangers, 0);
  w.target = 0; /* fails at once: the failure waits already when it is cancelled */
  w.count = 0;
  go(&w, w.asker);
  weft_sim_run(w.sim, 9000);
  assert_int_equal(w.ends[0], 0);
  assert_int_equal(w.strangers, 0);
  weft_sim_destroy(w.sim);
}

/* Cancels the second question when the first answer is handled; both answers wait by
 * then. */
static weft_err late_canceller_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  if (msg->type != SAMPLE_GO) {
    weft_ask_cancel(ctx, w->asked[1]);
  }
  return asker_on(ctx, arg, msg);
}

static void an_answer_in_the_mailbox_can_be_cancelled(void **state)
{
  (void)state;
  for (int fails = 0; fails < 2; fails++) {
    world w = { .to_ask = 2, .how = fails ? DIE : ANSWER };
    start_with(&w, 1, NULL, 0);
    const puppet_args asker = { .on = late_canceller_on, .arg = &w };
    assert_ok(weft_sim_spawn(w.sim, &puppet_class, &asker, NULL, &w.asker));
    go(&w, w.asker);
    while (w.count < 2) {
      assert_true(weft_sim_step(w.sim));
    }
    weft_sim_freeze(w.sim, w.asker, true);
    weft_sim_run(w.sim, 2000);
    weft_sim_freeze(w.sim, w.asker, false);
    weft_sim_run(w.sim, 3000);
    assert_int_equal(w.ends[0] + w.ends[1], 1);
    assert_int_equal(w.strangers, 0);
    weft_sim_destroy(w.sim);
  }
}

static void a_dead_asker_gets_nothing(void **state)
{
  (void)state;
  world w = { .to_ask = 5, .how = HOLD, .timeout_ms = 100 };
  start_with(&w, 1, NULL, 0);
  go(&w, w.asker);
  weft_sim_run(w.sim, 1050);
  weft_sim_kill(w.sim, w.asker);
  go(&w, w.target);
  weft_sim_run(w.sim, 9000);
  assert_int_equal(w.answers, 0);
  assert_int_equal(w.failures[WEFT_E_TIMEOUT], 0);
  weft_sim_destroy(w.sim);
}

static void every_allocation_may_fail(void **state)
{
  (void)state;
  int lost = 0;
  for (uint64_t nth = 1; nth < 60; nth++) {
    world w = { .to_ask = 10, .how = ANSWER };
    start_with(&w, nth, NULL, 0);
    go(&w, w.asker);
    weft_sim_fail_alloc(w.sim, nth);
    weft_sim_run(w.sim, 5000);
    assert_int_equal(w.count, 10);
    assert_each_ended_once(&w);
    /* 10 questions cost three allocations each: entry, question, answer */
    assert_int_equal(w.failures[WEFT_E_NOMEM] + w.failures[WEFT_E_LOST],
                     nth <= 30 ? 1 : 0);
    assert_int_equal(w.answers + w.failures[WEFT_E_NOMEM] + w.failures[WEFT_E_LOST], 10);
    lost += w.failures[WEFT_E_LOST];
    weft_sim_destroy(w.sim);
  }
  assert_int_equal(lost, 10); /* the answers; the question had got there */
}

/* All faults at once, many seeds. */
static weft_sim_fate any_fate(void *arg, const weft_msg *msg, uint64_t *delay_ms)
{
  const world *w = arg;
  if (msg->type == SAMPLE_GO) {
    return WEFT_SIM_DELIVER;
  }
  const uint64_t r = weft_sim_random(w->sim);
  *delay_ms = (r >> 8) % 150;
  return (weft_sim_fate)(r % 4);
}

static void each_question_ends_once_under_any_fate(void **state)
{
  (void)state;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    world w = { .to_ask = 20, .timeout_ms = 100 };
    w.how = seed % 5 == 0 ? DIE_HOLDING : (seed % 3 == 0 ? ANSWER_TWICE : ANSWER);
    start_with(&w, seed, any_fate, 8 + seed % 20);
    go(&w, w.asker);
    for (uint64_t i = 0; i < seed % 50; i++) {
      (void)weft_sim_step(w.sim);
    }
    weft_sim_fail_alloc(w.sim, 1 + seed % 17);
    if (seed % 7 == 0) {
      weft_sim_kill(w.sim, w.target);
    }
    weft_sim_run(w.sim, 5000);
    assert_int_equal(w.count, 20);
    assert_each_ended_once(&w);
    weft_sim_destroy(w.sim);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(answers_arrive_once),
    cmocka_unit_test(second_answers_are_dropped),
    cmocka_unit_test(silence_times_out_and_late_answers_are_dropped),
    cmocka_unit_test(no_deadline_waits_for_ever),
    cmocka_unit_test(death_fails_what_waits_and_what_is_held),
    cmocka_unit_test(the_dead_cannot_be_asked),
    cmocka_unit_test(full_mailbox_is_told),
    cmocka_unit_test(full_asker_gets_failures_for_its_answers),
    cmocka_unit_test(lost_questions_time_out),
    cmocka_unit_test(doubled_messages_end_a_question_once),
    cmocka_unit_test(overtaken_by_its_deadline),
    cmocka_unit_test(an_answer_without_memory_is_a_failure),
    cmocka_unit_test(cancelled_questions_stay_silent),
    cmocka_unit_test(an_answer_in_the_mailbox_can_be_cancelled),
    cmocka_unit_test(a_dead_asker_gets_nothing),
    cmocka_unit_test(every_allocation_may_fail),
    cmocka_unit_test(each_question_ends_once_under_any_fate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
