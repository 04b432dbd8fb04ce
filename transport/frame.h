/* frame.h -- the two frames between a link and a port that are no messages: the empty one
 * (a plain message arrived) and the error (instead of an answer).  Messages themselves:
 * weft/msg.h. */
#ifndef WEFT_TRANSPORT_FRAME_H
#define WEFT_TRANSPORT_FRAME_H

#include "nng_util.h"
#include "weft/actor.h"
#include "weft/msg.h"
#include "weft/runtime.h"

#include <stdbool.h>

enum {
  WEFTI_FRAME_MAX = 40 << 20, /* bytes, default of both ends */
  WEFTI_LOOK_MS = 1000        /* a wake-up lost for want of memory costs this much */
};

/* Header of weft/msg.h with type WEFT_MSG_ASK_FAILED, payload u32 reason, u32 asked. */
enum { WEFTI_ERROR_FRAME = WEFT_FRAME_HEADER + 8 };
void wefti_error_frame(uint8_t out[WEFTI_ERROR_FRAME], uint64_t corr, weft_err reason,
                       uint16_t asked);
/* true = data[len] is an error frame; *reason is never OK (PROTO for what we do not
 * know). */
bool wefti_error_parse(const uint8_t *data, size_t len, weft_err *reason,
                       uint16_t *asked);

/* msg as a frame of at most max bytes; NULL with *err: LIMIT, NOMEM, or
 * weft_msg_encode's. */
nng_msg *wefti_frame_encode(const weft_catalogue *cat, const weft_msg *msg,
                            uint64_t now_ms, size_t max, weft_err *err);

/* What nng's callbacks post to a link or a port: look at your queue. */
enum { WEFTI_MSG_WAKE = 0xefff };
/* Any thread.  false = not posted (no memory; or the actor is not up yet, or over). */
bool wefti_wake_post(weft_runtime *rt, weft_actor_id to);

/* ASK_FAILED as the answer to a question that came to ctx's actor.  Errors: NOMEM. */
weft_err wefti_fail(weft_ctx *ctx, weft_return to, uint16_t asked, weft_err reason);

#endif /* WEFT_TRANSPORT_FRAME_H */
