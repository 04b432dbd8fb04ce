#include "weft_test.h"

#include "weft/clock.h"

#include <time.h>

/* The clock of the waits, read by itself. */
static uint64_t kernel_ns(void)
{
  struct timespec ts;
  assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &ts), 0);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void is_the_monotonic_clock_in_both_units(void **state)
{
  (void)state;
  const uint64_t before = kernel_ns();
  const uint64_t ns = weft_clock_ns();
  const uint64_t between = kernel_ns();
  const uint64_t ms = weft_clock_ms();
  const uint64_t after = kernel_ns();
  assert_in_range(ns, before, between);
  assert_in_range(ms, between / 1000000u, after / 1000000u);
}

/* Over all parts of a second: a wait asked of another clock, or of a time that carries
 * wrongly, would end at once or never. */
static void a_wait_ends_when_the_clock_says_so(void **state)
{
  (void)state;
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t cond;
  assert_ok(weft_cond_init(&cond));
  (void)pthread_mutex_lock(&lock);
  for (int i = 0; i < 40; i++) {
    const uint64_t until_ms = weft_clock_ms() + 27;
    while (weft_cond_wait_until(&cond, &lock, until_ms)) { /* woken for no reason */
    }
    assert_true(weft_clock_ms() >= until_ms);
  }
  assert_false(weft_cond_wait_until(&cond, &lock, 0)); /* long ago */
  (void)pthread_mutex_unlock(&lock);
  (void)pthread_cond_destroy(&cond);
}

typedef struct shared {
  pthread_mutex_t lock;
  pthread_cond_t cond;
  bool there;
} shared;

static void *put(void *arg)
{
  shared *s = arg;
  (void)pthread_mutex_lock(&s->lock);
  s->there = true;
  (void)pthread_cond_signal(&s->cond);
  (void)pthread_mutex_unlock(&s->lock);
  return NULL;
}

static void a_wait_lets_go_of_the_lock_and_is_woken(void **state)
{
  (void)state;
  shared s = { .lock = PTHREAD_MUTEX_INITIALIZER };
  assert_ok(weft_cond_init(&s.cond));
  (void)pthread_mutex_lock(&s.lock);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, put, &s), 0);
  bool woken = true;
  while (!s.there && woken) { /* to the end of all time: only the other thread ends it */
    woken = weft_cond_wait_until(&s.cond, &s.lock, INT64_MAX / 2);
  }
  assert_true(woken);
  (void)pthread_mutex_unlock(&s.lock);
  (void)pthread_join(thread, NULL);
  (void)pthread_cond_destroy(&s.cond);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(is_the_monotonic_clock_in_both_units),
    cmocka_unit_test(a_wait_ends_when_the_clock_says_so),
    cmocka_unit_test(a_wait_lets_go_of_the_lock_and_is_woken),
  };
  return cmocka_run_group_tests_name("runtime.clock", tests, NULL, NULL);
}
