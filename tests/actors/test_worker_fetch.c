#include "worker_world.h"

#include <stdio.h>

/* The worker actor that lends what it serves, and the one that gets such. */

enum { SEQ = 9, EPOCH = 4 };

typedef struct lender {
  world *w;
  wefti_lender ops;
  unsigned lends, stops;
  char towards[64];
  const weft_snapshot *pinned;
  weft_err err;
} lender;

static const uint64_t digest[2] = { 6, 7 };

static weft_err on_lend(void *arg, const weft_snapshot *s, const char *towards,
                        weft_buf **info, weft_why *why)
{
  lender *l = arg;
  l->lends++;
  (void)snprintf(l->towards, sizeof l->towards, "%s", towards);
  if (l->err != WEFT_OK) {
    return weft_whyf(why, l->err, "made to refuse");
  }
  l->pinned = s;
  *info = weft_buf_create("{}", 2);
  assert_non_null(*info);
  return WEFT_OK;
}

static void on_stop(void *arg)
{
  lender *l = arg;
  l->stops++;
  weft_store_unpin(l->w->device->store, l->pinned);
  l->pinned = NULL;
}

static void begin(lender *l)
{
  *l = (lender){ .w = world_begin_with(1, NULL, false) };
  l->ops = (wefti_lender){ .lend = on_lend, .stop = on_stop, .arg = l };
  l->w->device->lender = &l->ops;
  l->w->hold = true;
}

static void end(lender *l)
{
  weft_store_unpin(l->w->device->store, l->pinned);
  world_end(l->w);
}

static void serve_set(lender *l, uint64_t sequence)
{
  const weft_snapshot *s;
  weft_store *store = l->w->device->store;
  assert_ok(wefti_store_install(store, sequence, NULL, 0, digest, &s));
  assert_ok(wefti_store_publish(store, sequence, sequence));
}

static bool serves(lender *l, uint64_t sequence)
{
  const weft_snapshot *s;
  if (weft_store_pin(l->w->device->store, sequence, &s) != WEFT_OK) {
    return false;
  }
  weft_store_unpin(l->w->device->store, s);
  return true;
}

static const weft_msg *lend(lender *l, uint64_t sequence, uint64_t lo)
{
  return world_ask(l->w, w_lend, W_LEND, EPOCH, .sequence = sequence,
                   .digest_hi = digest[0], .digest_lo = lo,
                   .towards = WEFT_STR("tcp://127.0.0.1:5"));
}

static const weft_msg *fetch(lender *l, uint64_t sequence)
{
  weft_buf *info = weft_buf_create("{}", 2);
  const weft_msg *a = world_ask(l->w, w_fetch, W_FETCH, EPOCH, .sequence = sequence,
                                .digest_hi = digest[0], .digest_lo = digest[1],
                                .timeout_ms = 1000, .info = info);
  weft_buf_unref(info);
  return a;
}

static void device_ends(lender *l, weft_err err)
{
  world *w = l->w;
  const weft_snapshot *s;
  assert_int_equal(w->last_run.job, WEFT_DEVICE_FETCH);
  assert_int_equal(w->last_run.digest_hi, digest[0]);
  assert_int_equal(w->last_run.digest_lo, digest[1]);
  if (err == WEFT_OK) {
    assert_ok(
        wefti_store_install(w->device->store, WEFTI_RECALL_EPOCH, NULL, 0, digest, &s));
  }
  w->done = (weft_device_done){ .err = err, .text = WEFT_STR("as it ended") };
  world_release(w);
  w->done = (weft_device_done){ .err = WEFT_OK };
}

static uint32_t phase(lender *l)
{
  const weft_msg *m = world_ask(l->w, w_beat, W_BEAT, 0, .grant = 0);
  return world_as(m, w_state, W_STATE)->phase;
}

static void it_lends_what_it_serves_and_nothing_else(void **state)
{
  (void)state;
  lender l;
  begin(&l);
  (void)world_adopt(l.w, 0, digest);
  world_refused(lend(&l, SEQ, digest[1]), WEFT_E_CONFLICT);
  serve_set(&l, SEQ);
  world_refused(lend(&l, SEQ + 1, digest[1]), WEFT_E_CONFLICT);
  world_refused(lend(&l, SEQ, digest[1] + 1), WEFT_E_CONFLICT);
  assert_int_equal(l.lends, 0);
  const weft_w_answer *a = world_as(lend(&l, SEQ, digest[1]), w_answer, W_ANSWER);
  assert_non_null(a->json);
  assert_string_equal(l.towards, "tcp://127.0.0.1:5");
  assert_non_null(l.pinned);
  l.err = WEFT_E_UNAVAIL;
  const weft_snapshot *first = l.pinned;
  world_refused(lend(&l, SEQ, digest[1]), WEFT_E_UNAVAIL);
  assert_ptr_equal(l.pinned, first);
  l.w->device->lender = NULL; /* GPU memory */
  world_refused(lend(&l, SEQ, digest[1]), WEFT_E_UNSUPPORTED);
  world_refused(fetch(&l, SEQ + 1), WEFT_E_UNSUPPORTED);
  end(&l);
}

static void a_start_ends_what_is_lent(void **state)
{
  (void)state;
  lender l;
  begin(&l);
  (void)world_adopt(l.w, 0, digest);
  serve_set(&l, SEQ);
  world_as(lend(&l, SEQ, digest[1]), w_answer, W_ANSWER);
  assert_null(world_ask(l.w, w_start, W_START, EPOCH + 1, .base_sequence = SEQ,
                        .base_digest_hi = digest[0], .base_digest_lo = digest[1]));
  assert_int_equal(l.stops, 1);
  world_refused(lend(&l, SEQ, digest[1]), WEFT_E_STATE);
  world_release(l.w);
  end(&l);
}

static void a_late_frame_does_not_end_the_loan_that_came_after_it(void **state)
{
  (void)state;
  lender l;
  begin(&l);
  (void)world_adopt(l.w, 0, digest);
  serve_set(&l, SEQ);
  l.w->op += 5;
  world_as(lend(&l, SEQ, digest[1]), w_answer, W_ANSWER);
  for (unsigned back = 1; back <= 2; back++) { /* a second copy; an earlier one */
    l.w->op -= back;
    world_refused(lend(&l, SEQ, digest[1]), WEFT_E_STALE);
  }
  assert_int_equal(l.lends, 1);
  l.w->op += 5;
  weft_store_unpin(l.w->device->store, l.pinned);
  world_as(lend(&l, SEQ, digest[1]), w_answer, W_ANSWER);
  assert_int_equal(l.lends, 2);
  weft_store_unpin(l.w->device->store, l.pinned);
  l.pinned = NULL;
  l.w->boot++; /* counts anew */
  l.w->op = 0;
  (void)world_adopt(l.w, 0, digest);
  serve_set(&l, SEQ);
  world_as(lend(&l, SEQ, digest[1]), w_answer, W_ANSWER);
  end(&l);
}

static void what_was_fetched_is_served_under_the_engines_number(void **state)
{
  (void)state;
  lender l;
  begin(&l);
  (void)world_adopt(l.w, SEQ, digest);
  assert_null(fetch(&l, SEQ));
  const uint64_t asked = l.w->corr;
  assert_int_equal(phase(&l), WEFT_WORKER_MAPPING);
  assert_false(serves(&l, SEQ));
  world_refused(world_ask(l.w, w_query, W_QUERY, 0, .what = WEFT_QUERY_WEIGHTS),
                WEFT_E_UNAVAIL);
  device_ends(&l, WEFT_OK);
  world_as(world_answer(l.w, asked), w_ok, W_OK);
  assert_true(serves(&l, SEQ));
  assert_int_equal(phase(&l), WEFT_WORKER_IDLE);
  while (l.w->is_held) { /* tidies up */
    world_release(l.w);
  }
  const size_t jobs = l.w->job_count;
  world_as(fetch(&l, SEQ), w_ok, W_OK); /* it has it */
  world_refused(fetch(&l, SEQ - 1), WEFT_E_STALE);
  assert_int_equal(l.w->job_count, jobs);
  end(&l);
}

static void a_failure_is_told_and_can_be_tried_again(void **state)
{
  (void)state;
  lender l;
  begin(&l);
  (void)world_adopt(l.w, SEQ, digest);
  assert_null(fetch(&l, SEQ));
  const uint64_t asked = l.w->corr;
  device_ends(&l, WEFT_E_FAILED);
  const weft_w_refused *r = world_as(world_answer(l.w, asked), w_refused, W_REFUSED);
  assert_non_null(strstr(r->text.p, "as it ended"));
  assert_false(serves(&l, SEQ));
  assert_null(fetch(&l, SEQ));
  device_ends(&l, WEFT_OK);
  assert_true(serves(&l, SEQ));
  end(&l);
}

/* What a failure left is tidied up at the next heartbeat, when the next lender may have
 * been found. */
static void a_next_attempt_does_not_fail_because_the_last_one_is_tidied_up(void **state)
{
  (void)state;
  lender l;
  begin(&l);
  (void)world_adopt(l.w, SEQ, digest);
  assert_null(fetch(&l, SEQ));
  device_ends(&l, WEFT_E_FAILED);
  world_is(world_ask(l.w, w_beat, W_BEAT, 0, .grant = 0), WEFT_MSG_W_STATE);
  assert_int_equal(l.w->last_run.job, WEFT_DEVICE_REAP);
  assert_null(fetch(&l, SEQ)); /* waits */
  const uint64_t asked = l.w->corr;
  assert_true(atomic_load(&l.w->device->cancel));
  world_release(l.w);
  device_ends(&l, WEFT_OK);
  world_is(world_answer(l.w, asked), WEFT_MSG_W_OK);
  assert_true(serves(&l, SEQ));
  end(&l);
}

static void a_start_does_not_wait_for_it(void **state)
{
  (void)state;
  lender l;
  begin(&l);
  (void)world_adopt(l.w, SEQ, digest);
  assert_null(fetch(&l, SEQ));
  assert_false(atomic_load(&l.w->device->cancel));
  assert_null(world_ask(l.w, w_start, W_START, EPOCH + 1, .base_sequence = SEQ,
                        .base_digest_hi = digest[0], .base_digest_lo = digest[1]));
  const uint64_t start = l.w->corr;
  assert_true(atomic_load(&l.w->device->cancel));
  device_ends(&l, WEFT_E_CANCELLED);
  assert_int_equal(l.w->last_run.job, WEFT_DEVICE_OPEN);
  assert_int_equal(l.w->last_run.strict, 1); /* shares nothing: there is nothing */
  world_release(l.w);
  world_as(world_answer(l.w, start), w_ok, W_OK);
  world_refused(fetch(&l, SEQ), WEFT_E_STATE);
  l.w->hold = false;
  world_as(world_ask(l.w, w_abort, W_ABORT, EPOCH + 1, .reason = WEFT_STR("over")), w_ok,
           W_OK);
  world_refused(fetch(&l, SEQ), WEFT_E_STALE); /* older than the session */
  end(&l);
}

/* Asked before a session that has ended meanwhile. */
static void a_late_frame_of_the_past_is_refused(void **state)
{
  (void)state;
  lender l;
  begin(&l);
  (void)world_adopt(l.w, SEQ, digest);
  world_as(world_ask(l.w, w_abort, W_ABORT, EPOCH + 1, .reason = WEFT_STR("over")), w_ok,
           W_OK);
  world_refused(fetch(&l, SEQ), WEFT_E_STALE);
  serve_set(&l, SEQ);
  world_refused(lend(&l, SEQ, digest[1]), WEFT_E_STATE);
  assert_int_equal(l.w->job_count, 0);
  end(&l);
}

static void a_second_copy_of_the_question_gets_the_answer(void **state)
{
  (void)state;
  lender l;
  begin(&l);
  (void)world_adopt(l.w, SEQ, digest);
  assert_null(fetch(&l, SEQ));
  const uint64_t first = l.w->corr;
  l.w->op--;
  assert_null(fetch(&l, SEQ));
  const uint64_t second = l.w->corr;
  world_refused(world_answer(l.w, first), WEFT_E_CANCELLED);
  world_refused(fetch(&l, SEQ), WEFT_E_UNAVAIL); /* another one */
  device_ends(&l, WEFT_OK);
  world_as(world_answer(l.w, second), w_ok, W_OK);
  end(&l);
}

static void another_engines_weights_are_not_served(void **state)
{
  (void)state;
  lender l;
  const uint64_t none[2] = { 0, 0 };
  begin(&l);
  (void)world_adopt(l.w, SEQ, digest);
  assert_null(fetch(&l, SEQ));
  const uint64_t asked = l.w->corr;
  l.w->boot++;
  l.w->op = 0;
  (void)world_adopt(l.w, 0, none);
  assert_true(atomic_load(&l.w->device->cancel));
  device_ends(&l, WEFT_OK); /* too late for that */
  world_refused(world_answer(l.w, asked), WEFT_E_CANCELLED);
  assert_false(serves(&l, SEQ));
  wefti_store_state st;
  wefti_store_reap(l.w->device->store);
  wefti_store_state_get(l.w->device->store, &st);
  assert_int_equal(st.snapshots, 0);
  end(&l);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(it_lends_what_it_serves_and_nothing_else),
    cmocka_unit_test(a_start_ends_what_is_lent),
    cmocka_unit_test(a_late_frame_does_not_end_the_loan_that_came_after_it),
    cmocka_unit_test(what_was_fetched_is_served_under_the_engines_number),
    cmocka_unit_test(a_failure_is_told_and_can_be_tried_again),
    cmocka_unit_test(a_next_attempt_does_not_fail_because_the_last_one_is_tidied_up),
    cmocka_unit_test(a_start_does_not_wait_for_it),
    cmocka_unit_test(a_late_frame_of_the_past_is_refused),
    cmocka_unit_test(a_second_copy_of_the_question_gets_the_answer),
    cmocka_unit_test(another_engines_weights_are_not_served),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
