/* weft/link.h -- an actor that stands for a peer in another process, over nng req/rep,
 * and the port on the other side.  Not here: joining and tokens (weft/join.h), spawning
 * (weft/process.h). */
#ifndef WEFT_LINK_H
#define WEFT_LINK_H

#include "weft/base.h"
#include "weft/err.h"
#include "weft/runtime.h"

#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_link_opts {
  size_t size;         /* sizeof(weft_link_opts) */
  const char *url;     /* ipc://, tcp://, inproc:// ; borrowed for the call */
  uint32_t frame_max;  /* bytes, 0 = 40 MiB */
  uint32_t connect_ms; /* the link dies (DOWN) if it never connects; 0 = 5 s */
} weft_link_opts;

/* Spawns the link on ctx's loop as a child of ctx's actor.  A question asked of the link
 * (weft_ask) is encoded, sent on a request context of its own, and answered with what the
 * peer answered; its deadline (due_ms) ends the request.  A message that does not go from
 * whom the question is to back to whom it is from is no answer: PROTO.  A plain message
 * is sent and its acknowledgement thrown away.  Questions asked before the connection
 * stands wait for it. When the pipe closes, every open question fails with DOWN and the
 * link itself ends with reason DOWN: a link never reconnects, a request is never sent
 * twice. */
WEFT_API weft_err weft_link_spawn(weft_ctx *ctx, const weft_link_opts *opts,
                                  weft_actor_id *out) WEFT_MUST_USE;
/* The same from outside any actor, before or while the loops run. */
WEFT_API weft_err weft_link_spawn_on(weft_runtime *rt, unsigned loop,
                                     const weft_link_opts *opts, weft_actor_id *out)
    WEFT_MUST_USE;

typedef struct weft_port_opts {
  size_t size;      /* sizeof(weft_port_opts) */
  const char *url;  /* to listen on; tcp port 0 picks one */
  weft_actor_id to; /* every decoded message goes there as a question from the port */
  /* A bit per role (1 << desc->to, 1 << desc->from): messages to, or from, another role
   * are refused with DENIED and counted.  No bit at all in either is INVAL. */
  uint64_t roles, from_roles;
  /* Of those, false = refused likewise.  NULL = all may pass. */
  bool (*may_pass)(const weft_msg *msg);
  unsigned contexts;  /* requests under way at once, 0 = 8 */
  uint32_t frame_max; /* bytes, 0 = 40 MiB */
  /* A message of one u64, told `to` when an asker's connection closes before its answer,
   * with the first field of the question (when that is a u64): who it was.  0 = none. */
  uint16_t gone_type;
} weft_port_opts;

/* Spawns the port, before or while the loops run.  Answers go back by themselves;
 * ASK_FAILED becomes an error frame, which a link turns into ASK_FAILED(same reason) at
 * the asker.  url_out (may be NULL) gets the address as bound.  Errors: SYS, EXISTS (a
 * living socket there), with why. */
WEFT_API weft_err weft_port_spawn_on(weft_runtime *rt, unsigned loop,
                                     const weft_port_opts *opts, char *url_out,
                                     size_t url_cap, weft_actor_id *out, weft_why *why)
    WEFT_MUST_USE;

/* Removes the socket files of a port at url whose process has ended.  Nothing for what is
 * not ipc, is not there or is no socket. */
WEFT_API void weft_link_forget(const char *url) WEFT_NONNULL(1);

WEFT_END_DECLS

#endif /* WEFT_LINK_H */
