/* A backend whose digests come behind its bytes: the host backend, with a wrapper around
 * it that keeps them back.  What the session must hold is checked where it would be read.
 */
#define _GNU_SOURCE /* mkdtemp */
#include "device_fixture.h"
#include "weft_fail.h"

#include <unistd.h>

enum { PLANS_MAX = 8, TENSORS_MAX = 8 };

/* Of a plan that was received: where its bytes went, and where its digests belong. */
typedef struct held {
  size_t count;
  uint64_t bytes[TENSORS_MAX];
  void *dst[TENSORS_MAX];
  weft_digest digests[TENSORS_MAX], *out;
} held;

typedef struct slow {
  const weft_transfer_ops *real;
  void *state;
  wefti_device *device;
  held plans[PLANS_MAX];
  size_t count;
  unsigned turns; /* advance says that there is more so often, … */
  unsigned each;  /* … of every update; 0 = as the test says */
  weft_err fails; /* what the next settle gives */
  bool gone;      /* not alive */
  unsigned advanced, settled, forgotten, abandoned;
  uint64_t extents; /* in memory, when it settled or forgot last */
} slow;

static weft_err slow_accept(void *state, const char *text, size_t len,
                            const weft_transfer_who *who, weft_plan **plan, weft_why *why)
{
  slow *s = state;
  s->turns = s->each > 0 ? s->each : s->turns;
  return s->real->accept(s->state, text, len, who, plan, why);
}

static void slow_abandon(void *state, weft_plan *plan)
{
  slow *s = state;
  s->abandoned++;
  s->real->abandon(s->state, plan);
}

static void look(slow *s)
{
  weft_memory_stats st;
  weft_memory_stats_get(s->device->memory, &st);
  s->extents = st.extents;
  for (size_t i = 0; i < s->count; i++) { /* the bytes are still there */
    const held *h = &s->plans[i];
    for (size_t k = 0; k < h->count; k++) {
      assert_true(
          weft_digest_equal(weft_digest_of(h->dst[k], h->bytes[k]), h->digests[k]));
    }
  }
}

static void slow_forget(void *state)
{
  slow *s = state;
  look(s);
  s->count = 0;
  s->forgotten++;
}

/* NOLINTNEXTLINE(readability-function-size): the interface has eight parameters */
static weft_err slow_receive(void *state, weft_plan *plan, void *const *dst,
                             weft_digest *digests, const atomic_bool *cancel,
                             weft_progress_fn *progress, void *arg, weft_why *why)
{
  slow *s = state;
  held *h = &s->plans[s->count];
  assert_true(s->count < PLANS_MAX && plan->count <= TENSORS_MAX);
  *h = (held){ .count = plan->count, .out = digests };
  for (size_t i = 0; i < plan->count; i++) {
    h->bytes[i] = plan->tensors[i].bytes;
    h->dst[i] = dst[i];
  }
  const weft_err err =
      s->real->receive(s->state, plan, dst, h->digests, cancel, progress, arg, why);
  s->count += err == WEFT_OK;
  if (err != WEFT_OK) {
    slow_forget(s);
  }
  return err;
}

static bool slow_advance(void *state)
{
  slow *s = state;
  s->advanced++;
  s->turns -= s->turns > 0;
  return s->turns > 0;
}

/* Who asks what it is at hears of the digests, not of the bytes that came long ago. */
static void check_progress(const slow *s, weft_progress_fn *progress, void *arg)
{
  uint64_t bytes = 0;
  for (size_t i = 0; i < s->count; i++) {
    for (size_t k = 0; k < s->plans[i].count; k++) {
      bytes += s->plans[i].bytes[k];
    }
  }
  assert_int_equal(atomic_load(&s->device->expected), bytes);
  assert_int_equal(atomic_load(&s->device->received), 0);
  progress(arg, bytes / 2);
  assert_int_equal(atomic_load(&s->device->received), bytes / 2);
}

static weft_err slow_settle(void *state, const atomic_bool *cancel,
                            weft_progress_fn *progress, void *arg, weft_why *why)
{
  slow *s = state;
  (void)cancel;
  look(s);
  check_progress(s, progress, arg);
  s->settled++;
  const weft_err err = s->fails;
  s->fails = WEFT_OK;
  for (size_t i = 0; i < s->count && err == WEFT_OK; i++) {
    for (size_t k = 0; k < s->plans[i].count; k++) {
      s->plans[i].out[k] = s->plans[i].digests[k];
    }
  }
  s->count = 0;
  s->turns = 0;
  return err == WEFT_OK ? err : weft_whyf(why, err, "the device is gone");
}

static weft_err slow_alive(void *state, weft_why *why)
{
  const slow *s = state;
  return s->gone ? weft_whyf(why, WEFT_E_FAILED, "it fell off the bus") : WEFT_OK;
}

static void slow_close(void *state)
{
  slow *s = state;
  s->real->close(s->state);
  free(s);
}

static const weft_transfer_ops slow_ops = {
  .name = "slow",
  .accept = slow_accept,
  .receive = slow_receive,
  .abandon = slow_abandon,
  .close = slow_close,
  .advance = slow_advance,
  .settle = slow_settle,
  .forget = slow_forget,
  .alive = slow_alive,
};

static slow *slow_down(wefti_device *device)
{
  slow *s = calloc(1, sizeof *s);
  assert_non_null(s);
  *s = (slow){ .real = device->transfer, .state = device->backend, .device = device };
  device->transfer = &slow_ops;
  device->backend = s;
  return s;
}

/* ---- */

static const spec more[] = { { "model.a", WEFT_DTYPE_FLOAT32, 1, { 1000 }, 7 },
                             { "scalar", WEFT_DTYPE_INT64, 0, { 0 }, 9 } };

static void check_digests(fixture *f)
{
  const weft_snapshot *s;
  assert_ok(weft_store_pin(f->w->device->store, 0, &s));
  for (size_t i = 0; i < s->tensor_count; i++) {
    const weft_tensor *t = &s->tensors[i];
    assert_true(weft_digest_equal(weft_digest_load(t->digest),
                                  weft_digest_of(t->data, t->bytes)));
  }
  weft_store_unpin(f->w->device->store, s);
}

static void finish_and_check(fixture *f)
{
  world_as(finish(f, false), w_finished, W_FINISHED);
  publish(f);
  check_digests(f);
}

/* After what failed. */
static void the_next_session_works(fixture *f)
{
  (void)commit(f, more, 2);
  assert_int_equal(live_fill(f, "model.a"), 7);
  check_digests(f);
}

static void digests_are_there_when_it_has_finished(void **state)
{
  (void)state;
  fixture *f = begin();
  slow *s = slow_down(f->w->device);
  world_as(start(f), w_ok, W_OK);
  s->turns = 1000;
  update(f, full, FULL);
  s->turns = 1000; /* the next update does not wait either */
  update(f, more, 1);
  assert_int_equal(s->settled, 0);
  assert_int_equal(s->count, 2);
  const weft_w_finished done = *world_as(finish(f, false), w_finished, W_FINISHED);
  assert_int_equal(s->settled, 1);
  publish(f);
  check_digests(f);
  assert_int_equal(live_fill(f, "model.a"), 7);
  assert_int_equal(live_fill(f, "model.b"), 1);
  /* The same with a backend that does not wait with them. */
  fixture *g = begin();
  world_as(start(g), w_ok, W_OK);
  update(g, full, FULL);
  update(g, more, 1);
  const weft_w_finished same = *world_as(finish(g, false), w_finished, W_FINISHED);
  assert_true(same.digest_hi == done.digest_hi && same.digest_lo == done.digest_lo);
  end(g);
  end(f);
}

/* Between jobs they go on, and are taken over where that is free. */
static void they_go_on_between_jobs(void **state)
{
  (void)state;
  fixture *f = begin();
  slow *s = slow_down(f->w->device);
  world_as(start(f), w_ok, W_OK);
  s->turns = 50;
  update(f, full, FULL);
  const unsigned before = s->advanced;
  assert_true(s->turns > 0);
  weft_sim_run(f->w->sim, weft_sim_now_ms(f->w->sim) + 200);
  assert_true(s->advanced > before && s->turns == 0);
  const unsigned enough = s->advanced;
  weft_sim_run(f->w->sim, weft_sim_now_ms(f->w->sim) + 200);
  assert_int_equal(s->advanced, enough); /* nothing is left: no timer runs */
  update(f, more, 2);
  assert_int_equal(s->settled, 1); /* by the accept, of the first update */
  finish_and_check(f);
  assert_int_equal(s->settled, 2);
  end(f);
}

/* Tensors that came again give their memory back before there is room made for more. */
static void repeats_are_not_kept_for_long(void **state)
{
  (void)state;
  fixture *f = begin();
  slow *s = slow_down(f->w->device);
  world_as(start(f), w_ok, W_OK);
  for (unsigned i = 0; i < 4; i++) {
    s->turns = 1000;
    update(f, full, FULL);
    assert_true(memory_stats(f).extents <= 2 * (FULL - 1)); /* one is empty */
    assert_int_equal(s->settled, i / 2); /* what the second one dropped was not hashed */
  }
  finish_and_check(f);
  assert_int_equal(memory_stats(f).extents, FULL - 1);
  end(f);
}

/* In place another update may be written over bytes that are not hashed. */
static void in_place_they_are_waited_for(void **state)
{
  (void)state;
  const wefti_device_opts opts = { .size = sizeof opts, .inplace = true };
  fixture *f = begin_with(&opts);
  slow *s = slow_down(f->w->device);
  (void)commit(f, full, FULL);
  world_as(start(f), w_ok, W_OK);
  s->settled = 0;
  for (unsigned i = 0; i < 3; i++) {
    s->turns = 1000;
    update(f, more, 2);
    assert_int_equal(s->settled, i);
  }
  finish_and_check(f);
  assert_int_equal(s->settled, 3);
  end(f);
}

static void one_that_fails_fails_the_finish(void **state)
{
  (void)state;
  fixture *f = begin();
  slow *s = slow_down(f->w->device);
  (void)commit(f, full, FULL);
  world_as(start(f), w_ok, W_OK);
  s->turns = 1000;
  update(f, more, 2);
  s->fails = WEFT_E_FAILED;
  const weft_msg *m = finish(f, false);
  world_refused(m, WEFT_E_FAILED);
  assert_int_equal(live_fill(f, "model.a"), 2);
  assert_int_equal(memory_stats(f).extents, FULL - 1);
  the_next_session_works(f);
  end(f);
}

/* The sender of the next update may wait already: a backend lets go of it with the plan.
 */
static void one_that_fails_abandons_the_next_update(void **state)
{
  (void)state;
  char path[PATH_LEN];
  fixture *f = begin();
  slow *s = slow_down(f->w->device);
  (void)commit(f, full, FULL);
  world_as(start(f), w_ok, W_OK);
  update(f, more, 2);
  s->abandoned = 0;
  s->fails = WEFT_E_FAILED;
  path_in(f, path);
  write_file(path, full, FULL);
  world_refused(accept_file(f, path), WEFT_E_FAILED);
  assert_int_equal(s->abandoned, 1);
  assert_int_equal(unlink(path), 0);
  the_next_session_works(f);
  end(f);
}

static void on_lost(void *arg, const char *reason)
{
  unsigned *times = arg;
  assert_non_null(strstr(reason, "it fell off the bus"));
  ++*times;
}

static void fail_a_finish(fixture *f, slow *s)
{
  world_as(start(f), w_ok, W_OK);
  update(f, more, 2);
  s->fails = WEFT_E_FAILED;
  world_refused(finish(f, false), WEFT_E_FAILED);
  weft_sim_run(f->w->sim, weft_sim_now_ms(f->w->sim) + 1000);
}

/* After a failure that was told; one that does not stay is none of the device's. */
static void a_device_that_is_gone_ends_the_process(void **state)
{
  (void)state;
  unsigned times = 0;
  fixture *f = begin();
  slow *s = slow_down(f->w->device);
  wefti_device_owns_process(f->w->device, on_lost, &times);
  (void)commit(f, full, FULL);
  fail_a_finish(f, s);
  assert_int_equal(times, 0);
  (void)commit(f, more, 2);
  s->gone = true;
  fail_a_finish(f, s);
  assert_int_equal(times, 1);
  end(f);
}

/* An abort is answered when nothing reads what was staged; that goes afterwards. */
static void an_abort_forgets_them_first(void **state)
{
  (void)state;
  fixture *f = begin();
  slow *s = slow_down(f->w->device);
  (void)commit(f, full, FULL);
  world_as(start(f), w_ok, W_OK);
  s->turns = 1000;
  update(f, more, 2);
  assert_int_equal(s->forgotten, 0);
  world_as(world_ask(f->w, w_abort, W_ABORT, f->epoch, .reason = WEFT_STR("test")), w_ok,
           W_OK);
  assert_int_equal(s->forgotten, 1);
  assert_int_equal(s->extents, FULL - 1 + 2);
  assert_int_equal(memory_stats(f).extents, FULL - 1);
  const unsigned before = s->advanced;
  weft_sim_run(f->w->sim, weft_sim_now_ms(f->w->sim) + 20);
  assert_int_equal(s->advanced, before);
  the_next_session_works(f);
  end(f);
}

/* ---- out of memory */

static void every_allocation_may_fail(void **state)
{
  (void)state;
  file_update u;
  wefti_device *device = NULL;
  const wefti_device_opts opts = { .size = sizeof opts };
  file_update_make(&u);
  write_file(u.path, full, FULL);
  assert_ok(wefti_device_create(&opts, &device, NULL));
  slow_down(device)->each = 1000;
  uint64_t epoch = 1;
  FOR_EACH_FAILURE
  {
    const weft_err err = file_update_run(&u, device, epoch, 3);
    fail_countdown = 0;
    wefti_store_drop(device->store, epoch);
    wefti_store_reap(device->store);
    weft_memory_stats st;
    weft_memory_stats_get(device->memory, &st);
    assert_int_equal(st.extents, 0);
    assert_true(err == WEFT_OK || fail_hit);
    epoch++;
    END_UNLESS_FAILED
  }
  assert_true(epoch > 12);
  file_update_end(&u);
  wefti_device_destroy(device);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(digests_are_there_when_it_has_finished),
    cmocka_unit_test(they_go_on_between_jobs),
    cmocka_unit_test(repeats_are_not_kept_for_long),
    cmocka_unit_test(in_place_they_are_waited_for),
    cmocka_unit_test(one_that_fails_fails_the_finish),
    cmocka_unit_test(one_that_fails_abandons_the_next_update),
    cmocka_unit_test(a_device_that_is_gone_ends_the_process),
    cmocka_unit_test(an_abort_forgets_them_first),
    cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
