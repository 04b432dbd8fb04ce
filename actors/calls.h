/* calls.h -- private to actors/.  Brings calls of threads that are no loop to the engine
 * and their results back: weft_engine_submit and weft_engine_call.  The actor half runs
 * on loop 0; the book of open calls is shared under a lock.  Not here: who the engine is
 * (an actor of this process, or a relay). */
#ifndef WEFT_ACTORS_CALLS_H
#define WEFT_ACTORS_CALLS_H

#include "weft/weft.h"

#include <stdint.h>

typedef struct wefti_calls wefti_calls;

weft_err wefti_calls_create(weft_runtime *rt, wefti_calls **out) WEFT_MUST_USE;
/* After the loops ended: open calls get CLOSED. */
void wefti_calls_destroy(wefti_calls *calls);
/* Spawns the actor.  Before the loops run. */
weft_err wefti_calls_spawn(wefti_calls *calls, weft_actor_id engine) WEFT_MUST_USE;
weft_err wefti_calls_submit(wefti_calls *calls, const weft_request *request,
                            weft_result_fn *fn, void *arg) WEFT_MUST_USE;
weft_err wefti_calls_wait(wefti_calls *calls, const weft_request *request,
                          weft_result **result, weft_why *why) WEFT_MUST_USE;

#endif /* WEFT_ACTORS_CALLS_H */
