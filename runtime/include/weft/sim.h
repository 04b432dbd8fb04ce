/* weft/sim.h -- the seeded scheduler: the same actors in one thread, with a fake clock,
 * a seeded order and injected faults.  Same seed, same order (weft_sim_hash).  Real I/O
 * does not exist here: weft_ctx_loop() is NULL. */
#ifndef WEFT_SIM_H
#define WEFT_SIM_H

#include "weft/actor.h"
#include "weft/base.h"
#include "weft/err.h"
#include "weft/msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_sim weft_sim;

/* What the test may do to a message on its way.  Return DELIVER for the usual. */
typedef enum weft_sim_fate {
  WEFT_SIM_DELIVER,
  WEFT_SIM_DROP,  /* vanishes in silence, like a lost link */
  WEFT_SIM_DELAY, /* *delay_ms later; may so be overtaken */
  WEFT_SIM_TWICE  /* delivered twice */
} weft_sim_fate;
typedef weft_sim_fate weft_sim_fate_fn(void *arg, const weft_msg *msg,
                                       uint64_t *delay_ms);
/* Called after every delivered message: check invariants here. */
typedef void weft_sim_step_fn(void *arg, const weft_msg *delivered);

typedef struct weft_sim_opts {
  size_t size; /* sizeof(weft_sim_opts) */
  uint64_t seed;
  const weft_catalogue *catalogue;
  weft_sim_fate_fn *fate; /* NULL = always DELIVER */
  weft_sim_step_fn *step; /* NULL = none */
  void *arg;              /* for both */
  bool trace;             /* print every delivery to stderr */
} weft_sim_opts;

WEFT_API weft_err weft_sim_create(const weft_sim_opts *opts, weft_sim **out)
    WEFT_MUST_USE;
WEFT_API void weft_sim_destroy(weft_sim *sim);
WEFT_API weft_err weft_sim_spawn(weft_sim *sim, const weft_actor_class *cls,
                                 const void *args, const weft_spawn_opts *opts,
                                 weft_actor_id *out) WEFT_MUST_USE;
/* A message from nobody; a copy of tmpl is made.  INVAL: a host type (size not known). */
WEFT_API weft_err weft_sim_send(weft_sim *sim, weft_actor_id to, const weft_msg *tmpl);
/* Runs one runnable actor, picked by the seed, for one message.  false = all idle. */
WEFT_API bool weft_sim_step(weft_sim *sim);
/* Steps until idle, then jumps the clock to the next timer, until clock >= until_ms or
 * nothing is left to do.  The clock starts at 1,000 ms; it also moves on by 1 ms after
 * 100,000 steps without pause, so that this returns even if actors never rest. */
WEFT_API void weft_sim_run(weft_sim *sim, uint64_t until_ms);
WEFT_API uint64_t weft_sim_now_ms(const weft_sim *sim);
/* The actor and its children vanish as a crashed process would: what fini sends is lost,
 * others see DOWN only.  From the step function too: then right after it. */
WEFT_API void weft_sim_kill(weft_sim *sim, weft_actor_id who);
/* Stops and continues an actor (SIGSTOP, SIGCONT): its mailbox fills meanwhile. */
WEFT_API void weft_sim_freeze(weft_sim *sim, weft_actor_id who, bool frozen);
/* The n-th allocation from now fails (weft_alloc, message, timer, question); 0 = none. */
WEFT_API void weft_sim_fail_alloc(weft_sim *sim, uint64_t nth);
WEFT_API bool weft_sim_alive(const weft_sim *sim, weft_actor_id who);
WEFT_API void *weft_sim_state(weft_sim *sim,
                              weft_actor_id who); /* the actor's self, for checks */
WEFT_API uint64_t weft_sim_random(weft_sim *sim);
/* Folds (receiver, type, time) of every delivery so far. */
WEFT_API uint64_t weft_sim_hash(const weft_sim *sim);

WEFT_END_DECLS

#endif /* WEFT_SIM_H */
