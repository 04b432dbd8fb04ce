/* weft/runtime.h -- loops with their threads, and the way in from outside.  Not here:
 * what actors themselves may call (weft/actor.h). */
#ifndef WEFT_RUNTIME_H
#define WEFT_RUNTIME_H

#include "weft/actor.h"
#include "weft/base.h"
#include "weft/err.h"
#include "weft/loop.h"
#include "weft/msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_runtime weft_runtime;

typedef void weft_log_fn(void *arg, weft_log_level level, const char *who,
                         const char *line);

enum { WEFT_LOOPS_MAX = 64 };
typedef struct weft_runtime_opts {
  size_t size;    /* sizeof(weft_runtime_opts) */
  unsigned loops; /* 1..WEFT_LOOPS_MAX; loop 0 is run by weft_runtime_run() */
  const weft_catalogue *catalogue; /* borrows for the runtime's life; may be NULL */
  weft_log_fn *log;                /* any thread; NULL = silent */
  void *log_arg;
  weft_log_level log_level;
  unsigned spin_us; /* a loop polls its inbox so long before it blocks; 0 = off */
} weft_runtime_opts;

WEFT_API weft_err weft_runtime_create(const weft_runtime_opts *opts, weft_runtime **out)
    WEFT_MUST_USE WEFT_NONNULL(1, 2);

/* Starts a thread for each loop but 0 (all signals blocked there). */
WEFT_API weft_err weft_runtime_start(weft_runtime *rt) WEFT_MUST_USE WEFT_NONNULL(1);
/* Runs loop 0 on the calling thread until weft_runtime_stop has ended every actor. */
WEFT_API void weft_runtime_run(weft_runtime *rt) WEFT_NONNULL(1);
/* Like run, on a thread of its own: for hosts that keep their main thread. */
WEFT_API weft_err weft_runtime_start_all(weft_runtime *rt) WEFT_MUST_USE WEFT_NONNULL(1);
/* Any thread, also a signal's loop callback.  Orderly end: WEFT_MSG_STOP to the actors
 * without parent, newest first, each given until within_ms in all; then what is left is
 * ended hard.  run returns; join waits for the threads of start_all. */
WEFT_API void weft_runtime_stop(weft_runtime *rt, uint64_t within_ms) WEFT_NONNULL(1);
WEFT_API void weft_runtime_join(weft_runtime *rt) WEFT_NONNULL(1);
/* Like join for all loops but one, which is then given within_ms more.  false: it has not
 * ended and never will, for all we know (it hangs in the kernel); destroy then takes
 * nothing away from under it. */
WEFT_API bool weft_runtime_join_but(weft_runtime *rt, unsigned loop, uint64_t within_ms)
    WEFT_MUST_USE WEFT_NONNULL(1);
/* NULL is a no-op.  After run or join returned (or before anything was started). */
WEFT_API void weft_runtime_destroy(weft_runtime *rt);

WEFT_API weft_loop *weft_runtime_loop(weft_runtime *rt, unsigned index); /* any thread */
/* The loop that ctx's actor runs on; for transport/ and http/ glue actors only.
 * NULL under the seeded scheduler. */
WEFT_API weft_loop *weft_ctx_loop(weft_ctx *ctx);
WEFT_API weft_runtime *weft_ctx_runtime(weft_ctx *ctx);
WEFT_API const weft_catalogue *weft_runtime_catalogue(const weft_runtime *rt);

/* Spawns a root actor on a loop.  Before the loops run, or from any thread while they run
 * (then it waits until init has run over there: never call it from a loop's thread for
 * another loop). */
WEFT_API weft_err weft_runtime_spawn(weft_runtime *rt, unsigned loop,
                                     const weft_actor_class *cls, const void *args,
                                     const weft_spawn_opts *opts, weft_actor_id *out)
    WEFT_MUST_USE;

/* Any thread.  Takes a heap message (weft_msg_dup, weft_msg_decode) also on error; its
 * from, corr and flags stay as the caller set them.  Errors: FULL, DOWN, CLOSED. */
WEFT_API weft_err weft_post(weft_runtime *rt, weft_actor_id to, weft_msg *msg);

/* Any thread that is not a loop: asks and blocks until the answer, a heap message that
 * the caller owns and drops, or an error (TIMEOUT, DOWN, FULL, NOMEM, CLOSED).  Takes
 * msg. */
WEFT_API weft_err weft_call(weft_runtime *rt, weft_actor_id to, weft_msg *msg,
                            uint64_t timeout_ms, weft_msg **answer) WEFT_MUST_USE;

/* Counters for /metrics and tests; any thread, monotonic. */
typedef struct weft_runtime_stats {
  uint64_t messages;     /* delivered */
  uint64_t dropped_full; /* refused by a full mailbox */
  uint64_t dropped_late; /* answers after their question's end */
  uint64_t turns;        /* loop iterations: the heartbeat of the loop */
  uint64_t actors;       /* alive now */
} weft_runtime_stats;
WEFT_API void weft_runtime_stats_get(weft_runtime *rt, weft_runtime_stats *out);

WEFT_END_DECLS

#endif /* WEFT_RUNTIME_H */
