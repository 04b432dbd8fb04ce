/* weft/join.h -- how a worker that somebody else started introduces itself: it opens its
 * own port, announces url, rank, world size and incarnation at the join URL, and both
 * sides prove that they know the token (HMAC-SHA256 over nonces) without sending it. */
#ifndef WEFT_JOIN_H
#define WEFT_JOIN_H

#include "weft/base.h"
#include "weft/digest.h"
#include "weft/err.h"
#include "weft/loop.h"

#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

/* What the worker was started with and its engine has to have been, too; all of it is
 * said, or nothing: frames 0, the rest as if it were not there. */
typedef struct weft_join_settings {
  uint64_t frames; /* stands for the messages that it understands */
  uint32_t tp, pp;
  char backend[24], staging[16];
  char tp_plan[WEFT_DIGEST_TEXT]; /* its digest; "" = none */
} weft_join_settings;

typedef struct weft_join_hello {
  char url[256]; /* the worker's port */
  uint32_t rank, world_size, pid;
  uint32_t draft; /* 1 = it keeps a draft model's set of weights, too */
  uint64_t incarnation;
  weft_join_settings settings;
} weft_join_hello;

/* Runs on the loop, after the token was proved.  Answer OK to let it in, else the error
 * and text that the worker is told (EXISTS: rank taken, INVAL: wrong world size, …). */
typedef weft_err weft_join_fn(void *arg, const weft_join_hello *hello, weft_why *why);

typedef struct weft_join_server weft_join_server;
/* token NULL or "" is allowed on ipc:// only.  url_out as bound. */
WEFT_API weft_err weft_join_listen(weft_loop *loop, const char *url, const char *token,
                                   weft_join_fn *on_join, void *arg, char *url_out,
                                   size_t url_cap, weft_join_server **out, weft_why *why)
    WEFT_MUST_USE;
WEFT_API void weft_join_close(weft_join_server *server);

/* The worker's side, blocking, at start: retries until deadline_ms has passed.  boot gets
 * the engine's boot id.  Errors: TIMEOUT, DENIED (token), or what on_join answered. */
WEFT_API weft_err weft_join_announce(const char *url, const char *token,
                                     const weft_join_hello *hello, uint64_t deadline_ms,
                                     weft_why *why) WEFT_MUST_USE;

WEFT_END_DECLS

#endif /* WEFT_JOIN_H */
