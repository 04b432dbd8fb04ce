#include "weft_test.h"

#include "wheel.h"

#include <stdlib.h>

enum { NODES = 400 };

typedef struct timer {
  wefti_wnode node;
  uint64_t due;
  bool waits;
} timer;

static uint64_t next_random(uint64_t *rng)
{
  *rng = *rng * 6364136223846793005u + 1442695040888963407u;
  return *rng >> 33;
}

/* The truth, without a wheel. */
static uint64_t earliest(const timer *t)
{
  uint64_t min = WEFTI_WHEEL_NEVER;
  for (int i = 0; i < NODES; i++) {
    if (t[i].waits && t[i].due < min) {
      min = t[i].due;
    }
  }
  return min;
}

static uint64_t random_due(uint64_t *rng, uint64_t now)
{
  const unsigned bits = (unsigned)(next_random(rng) % 40);
  return now + next_random(rng) % ((1ull << bits) + 1);
}

static void expires_exactly_what_is_due_in_order(void **state)
{
  (void)state;
  wefti_wheel *w = malloc(sizeof *w);
  timer *t = calloc(NODES, sizeof *t);
  assert_non_null(w);
  assert_non_null(t);
  for (uint64_t seed = 1; seed <= 20; seed++) {
    uint64_t rng = seed;
    uint64_t now = next_random(&rng);
    wefti_wheel_init(w, now);
    for (int i = 0; i < NODES; i++) {
      t[i] = (timer){ .due = random_due(&rng, now), .waits = true };
      wefti_wheel_add(w, &t[i].node, t[i].due);
    }
    for (int round = 0; round < 300; round++) {
      timer *victim = &t[next_random(&rng) % NODES]; /* re-armed at random */
      wefti_wheel_remove(w, &victim->node);
      victim->due = random_due(&rng, now);
      victim->waits = true;
      wefti_wheel_add(w, &victim->node, victim->due);

      const uint64_t next = wefti_wheel_next(w);
      assert_true(next <= earliest(t));
      now = next_random(&rng) % 4 == 0
                ? random_due(&rng, now)
                : (next > now && next != WEFTI_WHEEL_NEVER ? next : now);
      wefti_wheel_advance(w, now);
      uint64_t last = 0;
      for (wefti_wnode *n; (n = wefti_wheel_pop(w)) != NULL;) {
        timer *x = (timer *)n;
        assert_true(x->waits);
        assert_true(x->due <= now);
        assert_true(x->due >= last);
        last = x->due;
        x->waits = false;
      }
      assert_true(earliest(t) > now);
    }
    for (int i = 0; i < NODES; i++) {
      wefti_wheel_remove(w, &t[i].node);
    }
    assert_true(wefti_wheel_next(w) == WEFTI_WHEEL_NEVER);
  }
  free(t);
  free(w);
}

static void next_converges_to_the_due_time(void **state)
{
  (void)state;
  wefti_wheel *w = malloc(sizeof *w);
  assert_non_null(w);
  for (unsigned shift = 0; shift < 63; shift++) {
    const uint64_t due = (1ull << shift) + 7;
    wefti_wnode node = { 0 };
    wefti_wheel_init(w, 3);
    wefti_wheel_add(w, &node, due);
    int steps = 0;
    while (w->now_ms < due) {
      const uint64_t next = wefti_wheel_next(w);
      assert_true(next > w->now_ms && next <= due);
      assert_null(wefti_wheel_pop(w));
      wefti_wheel_advance(w, next);
      steps++;
    }
    assert_ptr_equal(wefti_wheel_pop(w), &node);
    assert_true(steps <= WEFTI_WHEEL_LEVELS);
  }
  free(w);
}

static void the_clock_never_goes_back(void **state)
{
  (void)state;
  wefti_wheel *w = malloc(sizeof *w);
  assert_non_null(w);
  wefti_wnode node = { 0 };
  wefti_wheel_init(w, 100);
  wefti_wheel_advance(w, 50);
  assert_int_equal(w->now_ms, 100);
  wefti_wheel_add(w, &node, 100); /* due already */
  assert_int_equal(wefti_wheel_next(w), 100);
  assert_ptr_equal(wefti_wheel_pop(w), &node);
  assert_false(wefti_wnode_waits(&node));
  wefti_wheel_remove(w, &node); /* a no-op then */
  free(w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(expires_exactly_what_is_due_in_order),
    cmocka_unit_test(next_converges_to_the_due_time),
    cmocka_unit_test(the_clock_never_goes_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
