/* on_loop.h -- runs a function on a loop and waits for it; and a box that loop callbacks
 * put news into for the test's thread.  Not a test itself. */
#ifndef WEFT_TEST_ON_LOOP_H
#define WEFT_TEST_ON_LOOP_H

#include "weft/loop.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

typedef struct on_loop_job {
  weft_call_fn *fn;
  void *arg;
  pthread_mutex_t lock;
  pthread_cond_t cond;
  bool done;
} on_loop_job;

__attribute__((unused)) static void on_loop_run(void *arg)
{
  on_loop_job *j = arg;
  j->fn(j->arg);
  (void)pthread_mutex_lock(&j->lock);
  j->done = true;
  (void)pthread_cond_signal(&j->cond);
  (void)pthread_mutex_unlock(&j->lock);
}

__attribute__((unused)) static void on_loop(weft_loop *loop, weft_call_fn *fn, void *arg)
{
  on_loop_job j = { .fn = fn,
                    .arg = arg,
                    .lock = PTHREAD_MUTEX_INITIALIZER,
                    .cond = PTHREAD_COND_INITIALIZER };
  if (weft_loop_call(loop, on_loop_run, &j) != WEFT_OK) {
    abort();
  }
  (void)pthread_mutex_lock(&j.lock);
  while (!j.done) {
    (void)pthread_cond_wait(&j.cond, &j.lock);
  }
  (void)pthread_mutex_unlock(&j.lock);
}

/* A counter that the loop raises and the test waits for. */
typedef struct counter {
  pthread_mutex_t lock;
  pthread_cond_t cond;
  unsigned n;
} counter;
#define COUNTER_INIT                                                                     \
  {                                                                                      \
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0                               \
  }

__attribute__((unused)) static void counter_up(counter *c)
{
  (void)pthread_mutex_lock(&c->lock);
  c->n++;
  (void)pthread_cond_broadcast(&c->cond);
  (void)pthread_mutex_unlock(&c->lock);
}

/* false after 20 s. */
__attribute__((unused)) static bool counter_wait(counter *c, unsigned n)
{
  struct timespec t;
  (void)clock_gettime(CLOCK_REALTIME, &t);
  t.tv_sec += 20;
  (void)pthread_mutex_lock(&c->lock);
  int rc = 0;
  while (c->n < n && rc == 0) {
    rc = pthread_cond_timedwait(&c->cond, &c->lock, &t);
  }
  const bool there = c->n >= n;
  (void)pthread_mutex_unlock(&c->lock);
  return there;
}

#endif /* WEFT_TEST_ON_LOOP_H */
