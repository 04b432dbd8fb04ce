#include "announce.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

enum { SLICE_MS = 1000, AGAIN_MS = 3000 };

struct wefti_announce {
  wefti_announce_opts opts;
  pthread_t thread;
  pthread_mutex_t lock; /* over stopping */
  pthread_cond_t changed;
  bool stopping;
  weft_why failure; /* the thread's until it was joined */
};

static uint64_t clock_ms(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* false: it is time to end. */
static bool wait_ms(wefti_announce *a, uint64_t ms)
{
  struct timespec until;
  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += (time_t)(ms / 1000);
  until.tv_nsec += (long)(ms % 1000) * 1000000L;
  if (until.tv_nsec >= 1000000000L) {
    until.tv_nsec -= 1000000000L;
    until.tv_sec++;
  }
  (void)pthread_mutex_lock(&a->lock);
  while (ms > 0 && !a->stopping &&
         pthread_cond_timedwait(&a->changed, &a->lock, &until) == 0) {
  }
  const bool goes_on = !a->stopping;
  (void)pthread_mutex_unlock(&a->lock);
  return goes_on;
}

static void *announce_main(void *arg)
{
  wefti_announce *a = arg;
  wefti_announce_opts *o = &a->opts;
  uint64_t heard_ms = clock_ms();
  uint64_t let_in_ms = 0; /* since when without a break, 0 = not */
  uint64_t pause_ms = 0;
  while (wait_ms(a, pause_ms)) {
    weft_why why = { .err = WEFT_OK, .text = "" };
    const weft_err err = weft_join_announce(o->url, o->token, &o->hello, SLICE_MS, &why);
    if (err == WEFT_OK) {
      heard_ms = clock_ms();
      let_in_ms = let_in_ms ? let_in_ms : heard_ms;
      const bool moved =
          o->on_let_in && o->on_let_in(o->arg, heard_ms - let_in_ms, &o->hello);
      pause_ms = moved ? 0 : AGAIN_MS;
    } else if (err != WEFT_E_TIMEOUT || clock_ms() - heard_ms > o->patience_ms) {
      a->failure = why;
      o->on_failed(o->arg);
      break;
    } else {
      let_in_ms = 0;
      pause_ms = 0;
    }
  }
  return NULL;
}

weft_err wefti_announce_start(const wefti_announce_opts *opts, wefti_announce **out)
{
  wefti_announce *a = calloc(1, sizeof *a);
  if (!a) {
    return WEFT_E_NOMEM;
  }
  a->opts = *opts;
  if (pthread_mutex_init(&a->lock, NULL) != 0 ||
      pthread_cond_init(&a->changed, NULL) != 0 ||
      pthread_create(&a->thread, NULL, announce_main, a) != 0) {
    free(a);
    return WEFT_E_SYS;
  }
  *out = a;
  return WEFT_OK;
}

void wefti_announce_stop(wefti_announce *a, weft_why *why)
{
  if (!a) {
    return;
  }
  (void)pthread_mutex_lock(&a->lock);
  a->stopping = true;
  (void)pthread_cond_signal(&a->changed);
  (void)pthread_mutex_unlock(&a->lock);
  (void)pthread_join(a->thread, NULL);
  if (a->failure.err != WEFT_OK && why) {
    *why = a->failure;
  }
  (void)pthread_cond_destroy(&a->changed);
  (void)pthread_mutex_destroy(&a->lock);
  free(a);
}
