#include "patience.h"

#include "weft/clock.h"

weft_err wefti_patience_init(wefti_patience *p)
{
  bool ok = weft_cond_init(&p->changed) == WEFT_OK;
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
  if (!p->over && ms > 0) {
    (void)weft_cond_wait_until(&p->changed, &p->lock, weft_clock_ms() + ms);
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
