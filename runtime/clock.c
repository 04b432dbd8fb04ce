#include "weft/clock.h"

#include <time.h>

enum { MS_PER_S = 1000, NS_PER_MS = 1000000 };

uint64_t weft_clock_ns(void)
{
  struct timespec ts = { 0 };
  (void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
  return (uint64_t)ts.tv_sec * MS_PER_S * NS_PER_MS + (uint64_t)ts.tv_nsec;
}

uint64_t weft_clock_ms(void)
{
  return weft_clock_ns() / NS_PER_MS;
}

weft_err weft_cond_init(pthread_cond_t *cond)
{
  pthread_condattr_t attr;
  if (pthread_condattr_init(&attr) != 0) {
    return WEFT_E_NOMEM;
  }
  const bool ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
                  pthread_cond_init(cond, &attr) == 0;
  (void)pthread_condattr_destroy(&attr);
  return ok ? WEFT_OK : WEFT_E_NOMEM;
}

bool weft_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ms)
{
  const struct timespec ts = { .tv_sec = (time_t)(until_ms / MS_PER_S),
                               .tv_nsec = (long)(until_ms % MS_PER_S) * NS_PER_MS };
  return pthread_cond_timedwait(cond, lock, &ts) == 0;
}
