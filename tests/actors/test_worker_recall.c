#include "worker_world.h"

/* The worker actor whose last life has left weights with somebody. */

enum { SEQ = 9 };

typedef struct keeper {
  world *w;
  wefti_keeper ops;
  unsigned wants, others, hads;
  uint64_t wanted, had;
  bool deaf;
} keeper;

static const uint64_t digest[2] = { 6, 7 };

static bool on_want(void *arg, uint64_t weights_sequence, const uint64_t d[2],
                    bool not_own)
{
  keeper *k = arg;
  k->wants++;
  k->others += not_own;
  k->wanted = weights_sequence;
  if (weights_sequence != 0) {
    assert_int_equal(d[0], digest[0]);
    assert_int_equal(d[1], digest[1]);
  }
  return !k->deaf;
}

static void on_had(void *arg, uint64_t weights_sequence, const uint64_t d[2])
{
  keeper *k = arg;
  (void)d;
  k->hads++;
  k->had = weights_sequence;
}

static void begin(keeper *k)
{
  *k = (keeper){ .w = world_begin_with(1, NULL, false) };
  k->ops = (wefti_keeper){ .want = on_want, .had = on_had, .arg = k };
  k->w->device->keeper = &k->ops;
  k->w->hold = true;
}

static void end(keeper *k)
{
  world_end(k->w);
}

static uint32_t phase(const weft_msg *state)
{
  return world_as(state, w_state, W_STATE)->phase;
}

static const weft_msg *beat(keeper *k)
{
  return world_ask(k->w, w_beat, W_BEAT, 0, .grant = 0);
}

static void offer(keeper *k, bool found)
{
  const weft_kept_offer m = { .h.type = WEFT_MSG_KEPT_OFFER, .found = found };
  assert_ok(weft_sim_send(k->w->sim, k->w->worker, &m.h));
  world_idle(k->w);
}

/* The device thread has done it: what is there now is what was asked for, or err. */
static void device_ends(keeper *k, weft_err err)
{
  world *w = k->w;
  const weft_snapshot *s;
  assert_int_equal(w->last_run.job, WEFT_DEVICE_RECALL);
  assert_int_equal(w->last_run.digest_hi, digest[0]);
  assert_int_equal(w->last_run.digest_lo, digest[1]);
  if (err == WEFT_OK) {
    assert_ok(
        wefti_store_install(w->device->store, WEFTI_RECALL_EPOCH, NULL, 0, digest, &s));
  }
  w->done = (weft_device_done){ .err = err };
  world_release(w);
  w->done = (weft_device_done){ .err = WEFT_OK };
}

static bool serves(keeper *k)
{
  const weft_snapshot *s;
  if (weft_store_pin(k->w->device->store, SEQ, &s) != WEFT_OK) {
    return false;
  }
  weft_store_unpin(k->w->device->store, s);
  return true;
}

static void a_new_life_gets_what_the_last_one_had(void **state)
{
  (void)state;
  keeper k;
  begin(&k);
  assert_int_equal(phase(world_adopt(k.w, SEQ, digest)), WEFT_WORKER_MAPPING);
  assert_int_equal(k.wants, 1);
  assert_int_equal(phase(beat(&k)), WEFT_WORKER_MAPPING);
  offer(&k, true);
  assert_int_equal(phase(beat(&k)), WEFT_WORKER_MAPPING);
  assert_false(serves(&k)); /* not before it was looked at */
  device_ends(&k, WEFT_OK);
  assert_true(serves(&k));
  assert_int_equal(k.had, SEQ);
  const weft_w_state *s = world_as(beat(&k), w_state, W_STATE);
  assert_int_equal(s->weights_sequence, SEQ);
  assert_int_equal(s->digest_lo, digest[1]);
  end(&k);
}

static void a_first_life_asks_for_nothing(void **state)
{
  (void)state;
  keeper k;
  const uint64_t none[2] = { 0, 0 };
  begin(&k);
  assert_int_equal(phase(world_adopt(k.w, 0, none)), WEFT_WORKER_IDLE);
  assert_int_equal(k.wants, 1); /* that nothing need be kept */
  assert_int_equal(k.wanted, 0);
  offer(&k, true); /* nobody has asked */
  assert_int_equal(k.w->job_count, 0);
  end(&k);
}

static void a_start_waits_and_builds_on_what_came_back(void **state)
{
  (void)state;
  keeper k;
  begin(&k);
  (void)world_adopt(k.w, SEQ, digest);
  assert_null(world_ask(k.w, w_start, W_START, 4, .base_sequence = SEQ,
                        .base_digest_hi = digest[0], .base_digest_lo = digest[1]));
  const uint64_t start = k.w->corr;
  offer(&k, true);
  assert_int_equal(k.w->job_count, 1);
  device_ends(&k, WEFT_OK);
  assert_int_equal(k.w->last_run.job, WEFT_DEVICE_OPEN);
  assert_int_equal(k.w->last_run.strict, 0); /* its base is the engine's */
  world_release(k.w);
  world_as(world_answer(k.w, start), w_ok, W_OK);
  assert_true(serves(&k));
  end(&k);
}

static void an_abort_meanwhile_is_answered_at_once(void **state)
{
  (void)state;
  keeper k;
  begin(&k);
  (void)world_adopt(k.w, SEQ, digest);
  assert_null(world_ask(k.w, w_start, W_START, 4, .base_sequence = SEQ));
  const uint64_t start = k.w->corr;
  world_as(world_ask(k.w, w_abort, W_ABORT, 4, .reason = WEFT_STR("late")), w_ok, W_OK);
  offer(&k, true);
  device_ends(&k, WEFT_OK);
  world_refused(world_answer(k.w, start), WEFT_E_STALE);
  assert_true(serves(&k));
  end(&k);
}

static void damaged_ones_are_asked_for_elsewhere(void **state)
{
  (void)state;
  keeper k;
  begin(&k);
  (void)world_adopt(k.w, SEQ, digest);
  offer(&k, true);
  device_ends(&k, WEFT_E_FAILED);
  assert_int_equal(k.others, 1);
  assert_int_equal(phase(beat(&k)), WEFT_WORKER_MAPPING);
  offer(&k, true);
  device_ends(&k, WEFT_E_FAILED);
  assert_int_equal(k.wants, 2); /* and no more */
  assert_int_equal(k.hads, 1);
  assert_int_equal(k.had, 0);
  assert_false(serves(&k));
  assert_int_equal(phase(beat(&k)), WEFT_WORKER_IDLE);
  end(&k);
}

/* Nobody has them, nobody answers, nobody is there to ask: it is behind, and works. */
static void without_them_it_goes_on(void **state)
{
  (void)state;
  for (unsigned how = 0; how < 3; how++) {
    keeper k;
    begin(&k);
    k.deaf = how == 2;
    (void)world_adopt(k.w, SEQ, digest);
    assert_null(world_ask(k.w, w_start, W_START, 4, .base_sequence = SEQ));
    const uint64_t start = k.w->corr;
    if (how == 0) {
      offer(&k, false);
    } else if (how == 1) {
      weft_sim_run(k.w->sim, weft_sim_now_ms(k.w->sim) + 3000);
      offer(&k, true); /* too late */
    }
    assert_int_equal(k.w->job_count, 1);
    assert_int_equal(k.w->last_run.job, WEFT_DEVICE_OPEN);
    assert_int_equal(k.w->last_run.strict, 1); /* shares nothing: there is nothing */
    world_release(k.w);
    world_as(world_answer(k.w, start), w_ok, W_OK);
    end(&k);
  }
}

static void another_engines_weights_are_not_served(void **state)
{
  (void)state;
  keeper k;
  const uint64_t none[2] = { 0, 0 };
  begin(&k);
  (void)world_adopt(k.w, SEQ, digest);
  offer(&k, true);
  k.w->boot++;
  k.w->op = 0;
  (void)world_adopt(k.w, 0, none);
  device_ends(&k, WEFT_OK);
  assert_false(serves(&k));
  wefti_store_state st;
  wefti_store_reap(k.w->device->store);
  wefti_store_state_get(k.w->device->store, &st);
  assert_int_equal(st.snapshots, 0);
  assert_int_equal(k.hads, 0);
  end(&k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_new_life_gets_what_the_last_one_had),
    cmocka_unit_test(a_first_life_asks_for_nothing),
    cmocka_unit_test(a_start_waits_and_builds_on_what_came_back),
    cmocka_unit_test(an_abort_meanwhile_is_answered_at_once),
    cmocka_unit_test(damaged_ones_are_asked_for_elsewhere),
    cmocka_unit_test(without_them_it_goes_on),
    cmocka_unit_test(another_engines_weights_are_not_served),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
