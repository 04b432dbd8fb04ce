/* weft/actor.h -- all that an actor can do.  No I/O, no libev, no globals: the same
 * actor runs on a loop and under the seeded scheduler (weft/sim.h).
 *
 * An actor has private state, one bounded mailbox and one behaviour function that runs
 * on its loop's thread, one message at a time.  Every function here is for that thread,
 * from inside init, on or fini of the actor that ctx was given to; also from a callback
 * of that loop (weft/loop.h) as long as the actor lives. */
#ifndef WEFT_ACTOR_H
#define WEFT_ACTOR_H

#include "weft/base.h"
#include "weft/err.h"
#include "weft/msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_ctx weft_ctx;

/* Borrows msg for the call (to keep a buf field, weft_buf_ref it).  Must not block.
 * Anything but WEFT_OK stops the actor; parent and monitors get WEFT_MSG_DOWN with it. */
typedef weft_err weft_behaviour_fn(weft_ctx *ctx, void *self, const weft_msg *msg);

typedef struct weft_actor_class { /* static const, one per actor file */
  const char *name;
  size_t state_size; /* bytes; the runtime allocates and zeroes it */
  weft_err (*init)(weft_ctx *ctx, void *self,
                   const void *args);      /* borrows args; may be NULL */
  void (*fini)(weft_ctx *ctx, void *self); /* also after a failed init; may be NULL */
  weft_behaviour_fn *on;
} weft_actor_class;

/* ---- sending.  All of these take msg (also on error).  Local order per sender and
 * receiver is kept. */

/* A zeroed message struct of size bytes with type set, from the loop's pool.  For types
 * of the host program or messages without str and buf.  NULL = out of memory. */
WEFT_API weft_msg *weft_msg_new(weft_ctx *ctx, uint16_t type, size_t size);

/* A pooled deep copy of tmpl (a message struct on the caller's stack whose h.type is
 * set, of the catalogue's or the runtime's types; of its flags RESERVED is kept): strings
 * are copied behind it, bufs are shared (ref'ed).  NULL = out of memory. The send
 * functions accept that NULL and answer NOMEM, so calls can be nested. */
WEFT_API weft_msg *weft_msg_make(weft_ctx *ctx, const weft_msg *tmpl);

/* Errors: NOMEM, FULL (mailbox; msg is gone), DOWN (no such local actor any more). */
WEFT_API weft_err weft_send(weft_ctx *ctx, weft_actor_id to, weft_msg *msg);

/* A question: exactly one of (an answer with h.corr == the result and F_REPLY set,
 * WEFT_MSG_ASK_FAILED) arrives, whatever happens to the other side.  timeout_ms 0 = no
 * deadline.  Returns the question number, never 0 (an ASK_FAILED(NOMEM) may follow). */
WEFT_API uint64_t weft_ask(weft_ctx *ctx, weft_actor_id to, weft_msg *msg,
                           uint64_t timeout_ms);
/* Forgets a question: nothing arrives for it any more.  Unknown numbers are fine. */
WEFT_API void weft_ask_cancel(weft_ctx *ctx, uint64_t corr);

/* Where an answer goes.  Copy it to answer later. */
typedef struct weft_return {
  weft_actor_id to;
  uint64_t corr; /* 0: the message was no question; replying is then a no-op */
} weft_return;
static inline weft_return weft_return_of(const weft_msg *question)
{
  return (weft_return){ question->from, question->corr };
}
/* Sends with F_REPLY and F_RESERVED.  A second answer to one question is dropped.  msg
 * NULL (out of memory): the asker gets ASK_FAILED(LOST). */
WEFT_API weft_err weft_reply(weft_ctx *ctx, weft_return to, weft_msg *msg);

/* ---- time */
WEFT_API uint64_t weft_now_ms(weft_ctx *ctx); /* monotonic */
WEFT_API uint64_t weft_now_ns(weft_ctx *ctx); /* monotonic, read afresh */
WEFT_API uint64_t
weft_boottime_ns(weft_ctx *ctx);               /* CLOCK_BOOTTIME: goes on in suspend */
WEFT_API uint64_t weft_wall_ms(weft_ctx *ctx); /* Unix time */
/* A WEFT_MSG_TIMER with tag after after_ms.  Returns its id; 0 = out of memory. */
WEFT_API uint64_t weft_timer_start(weft_ctx *ctx, uint64_t after_ms, uint64_t tag);
/* After cancel the timer's message does not arrive.  Unknown ids and 0 are fine. */
WEFT_API void weft_timer_cancel(weft_ctx *ctx, uint64_t id);

/* ---- life */
typedef struct weft_spawn_opts {
  const char *name; /* for logs; NULL = the class's */
  size_t mailbox; /* messages, 0 = 1024; a quarter as much again is kept for F_RESERVED */
  size_t batch;   /* messages per turn, 0 = 64 */
} weft_spawn_opts;
/* Spawns a child on the same loop; init has run when this returns.  args is borrowed.
 * The parent gets WEFT_MSG_DOWN when it ends.  A failed init: its error, no DOWN. */
WEFT_API weft_err weft_spawn(weft_ctx *ctx, const weft_actor_class *cls, const void *args,
                             const weft_spawn_opts *opts, weft_actor_id *out)
    WEFT_MUST_USE;
/* WEFT_MSG_DOWN when who ends, at once (asynchronously) if it has ended.  Once per call.
 */
WEFT_API weft_err weft_monitor(weft_ctx *ctx, weft_actor_id who);
/* This actor ends after the current message, children first. */
WEFT_API void weft_stop(weft_ctx *ctx, weft_err reason);
/* Ends another actor of this loop: WEFT_MSG_STOP, never lost.  If its behaviour returns
 * WEFT_OK it ends by itself later (weft_stop); with STATE or UNSUPPORTED ("I do not know
 * STOP") it ends at once, reason WEFT_OK; with another error likewise, for that reason.
 */
WEFT_API void weft_stop_other(weft_ctx *ctx, weft_actor_id who);
WEFT_API weft_actor_id weft_self(weft_ctx *ctx);

/* ---- the rest of the world */
WEFT_API uint64_t
weft_random(weft_ctx *ctx); /* seeded under the sim, getrandom otherwise */
WEFT_API void *weft_alloc(weft_ctx *ctx,
                          size_t size); /* zeroed; NULL; fails on demand under the sim */
WEFT_API void weft_free(weft_ctx *ctx, void *p); /* free() */

typedef enum weft_log_level {
  WEFT_LOG_DEBUG,
  WEFT_LOG_INFO,
  WEFT_LOG_WARN,
  WEFT_LOG_ERROR
} weft_log_level;
/* One line, no newline in it; key=value at its end.  Never weights, bodies or tokens. */
WEFT_API void weft_log(weft_ctx *ctx, weft_log_level level, const char *fmt, ...)
    WEFT_PRINTF(3, 4);

WEFT_END_DECLS

#endif /* WEFT_ACTOR_H */
