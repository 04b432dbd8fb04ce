/* weft/clock.h -- CLOCK_MONOTONIC, and waits that it ends, for threads that run no actor.
 * Not for actors: these ask their context (weft_now_ms), whose clock the seeded scheduler
 * may set. */
#ifndef WEFT_CLOCK_H
#define WEFT_CLOCK_H

#include "weft/base.h"
#include "weft/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

/* Any thread. */
WEFT_API uint64_t weft_clock_ns(void);
WEFT_API uint64_t weft_clock_ms(void);

/* A condition for weft_cond_wait_until; pthread_cond_destroy ends it.  Errors: NOMEM. */
WEFT_API weft_err weft_cond_init(pthread_cond_t *cond) WEFT_MUST_USE WEFT_NONNULL(1);
/* Under lock: waits until woken, or for no reason; false when weft_clock_ms is until_ms.
 */
WEFT_API bool weft_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock,
                                   uint64_t until_ms) WEFT_NONNULL(1, 2);

WEFT_END_DECLS

#endif /* WEFT_CLOCK_H */
