/* patience.h -- private to actors/.  How a thread of ours waits for its next turn, for a
 * while or until it is woken or shall end.  Not for loops: they have timers. */
#ifndef WEFT_ACTORS_PATIENCE_H
#define WEFT_ACTORS_PATIENCE_H

#include "weft/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct wefti_patience {
  pthread_mutex_t lock; /* over `over`, and whatever its owner says */
  pthread_cond_t changed;
  bool over;
} wefti_patience;

weft_err wefti_patience_init(wefti_patience *p) WEFT_MUST_USE;
void wefti_patience_fini(wefti_patience *p);
void wefti_patience_lock(wefti_patience *p);
void wefti_patience_unlock(wefti_patience *p);
/* Locked, both: until woken, over, ms have passed, or for no reason; wakes all. */
void wefti_patience_wait(wefti_patience *p, uint64_t ms);
void wefti_patience_wake(wefti_patience *p);
void wefti_patience_end(wefti_patience *p); /* not locked: it is over */

#endif /* WEFT_ACTORS_PATIENCE_H */
