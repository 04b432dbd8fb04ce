/* loop.h -- how the runtime drives one event loop.  Not for anyone else (weft/loop.h is).
 */
#ifndef WEFT_RUNTIME_LOOP_H
#define WEFT_RUNTIME_LOOP_H

#include "scheduler.h"
#include "weft/loop.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum wefti_loop_state {
  WEFTI_LOOP_NEW,     /* no thread yet: whoever made the runtime may act for it */
  WEFTI_LOOP_STARTED, /* a thread runs it or will soon */
  WEFTI_LOOP_ENDED
} wefti_loop_state;

/* Written under the runtime's lock, then all loops are woken; read by each loop once an
 * iteration.  Store release, load acquire: what was done before is seen. */
typedef struct wefti_end_signal {
  atomic_bool quit;              /* no actor is left */
  _Atomic(uint64_t) hard_end_ms; /* monotonic; 0 = no end asked for */
} wefti_end_signal;

weft_err wefti_loop_create(wefti_sched *s, unsigned spin_us, const wefti_end_signal *end,
                           weft_loop **out) WEFT_MUST_USE;
void wefti_loop_destroy(weft_loop *loop); /* NULL is a no-op */
/* Runs on the calling thread until the end signal; ends what lives on it. */
void wefti_loop_run(weft_loop *loop);
/* Any thread: makes the loop look at the end signal. */
void wefti_loop_wake(weft_loop *loop);
void wefti_loop_set_state(weft_loop *loop, wefti_loop_state state);
wefti_loop_state wefti_loop_get_state(const weft_loop *loop);
/* Is the calling thread the one that runs it? */
bool wefti_loop_is_self(const weft_loop *loop);

#endif /* WEFT_RUNTIME_LOOP_H */
