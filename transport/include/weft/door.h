/* weft/door.h -- how a coordinator finds the engines of its fleet: each listens at its
 * door, the coordinator invites it there, and it then joins the coordinator as a worker
 * joins an engine (weft/join.h).  Both sides prove that they know the token.  Not here:
 * who is invited when, and what a guest does. */
#ifndef WEFT_DOOR_H
#define WEFT_DOOR_H

#include "weft/base.h"
#include "weft/err.h"
#include "weft/loop.h"

#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_invitation {
  char join_url[256];  /* the coordinator's, where to join */
  char fleet[128];     /* the coordinator's engine id, over its lives */
  uint64_t boot;       /* its boot id: this life */
  uint32_t rank, size; /* replica rank of size */
} weft_invitation;

/* Runs on the loop, after the token was proved.  OK: it will be followed; else the error
 * and text that the coordinator is told (EXISTS: of another fleet, …). */
typedef weft_err weft_door_fn(void *arg, const weft_invitation *invitation,
                              weft_why *why);

typedef struct weft_door weft_door;
/* token NULL or "" is allowed on ipc:// only.  url_out as bound. */
WEFT_API weft_err weft_door_listen(weft_loop *loop, const char *url, const char *token,
                                   weft_door_fn *on_invited, void *arg, char *url_out,
                                   size_t url_cap, weft_door **out, weft_why *why)
    WEFT_MUST_USE;
WEFT_API void weft_door_close(weft_door *door);

/* The coordinator's side: one try, blocking for timeout_ms at most.  Errors: AGAIN
 * (nobody there, or not now), DENIED (token), or what on_invited answered; why says it.
 */
WEFT_API weft_err weft_door_invite(const char *url, const char *token,
                                   const weft_invitation *invitation, uint64_t timeout_ms,
                                   weft_why *why) WEFT_MUST_USE;

WEFT_END_DECLS

#endif /* WEFT_DOOR_H */
