#include "patience.h"

#include <time.h>

uint64_t wefti_patience_now_ms(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

weft_err wefti_patience_init(wefti_patience *p)
{
  pthread_condattr_t attr;
  if (pthread_condattr_init(&attr) != 0) {
    return WEFT_E_NOMEM;
  }
  bool ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
            pthread_cond_init(&p->changed, &attr) == 0;
  (void)pthread_condattr_destroy(&attr);
  if (ok && pthread_mutex_init(&p->lock, NULL) != 0) {
    (void)pthread_cond_destroy(&p->changed);
    ok = false;
  }
  p->over = false;
  return ok ? WEFT_OK : WEFT_E_NOMEM;
}

void wefti_patience_fini(wefti_patience *p)
{
  (void)pthread_cond_destroy(&p->changed);
  (void)pthread_mutex_destroy(&p->lock);
}

void wefti_patience_lock(wefti_patience *p)
{
  (void)pthread_mutex_lock(&p->lock);
}

void wefti_patience_unlock(wefti_patience *p)
{
  (void)pthread_mutex_unlock(&p->lock);
}

void wefti_patience_wait(wefti_patience *p, uint64_t ms)
{
  struct timespec until;
  (void)clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += (time_t)(ms / 1000);
  until.tv_nsec += (long)(ms % 1000) * 1000000L;
  if (until.tv_nsec >= 1000000000L) {
    until.tv_nsec -= 1000000000L;
    until.tv_sec++;
  }
  if (!p->over && ms > 0) {
    (void)pthread_cond_timedwait(&p->changed, &p->lock, &until);
  }
}

void wefti_patience_wake(wefti_patience *p)
{
  (void)pthread_cond_broadcast(&p->changed);
}

void wefti_patience_end(wefti_patience *p)
{
  wefti_patience_lock(p);
  p->over = true;
  wefti_patience_wake(p);
  wefti_patience_unlock(p);
}
