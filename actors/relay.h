/* relay.h -- private to actors/.  Stands for an engine in another process: keeps a link
 * to its control port, makes a new one when it ends, and passes questions and answers on.
 * Not the link itself (weft/link.h), which never reconnects. */
#ifndef WEFT_ACTORS_RELAY_H
#define WEFT_ACTORS_RELAY_H

#include "weft/actor.h"
#include "weft/messages.h"

#include <stdint.h>

typedef struct wefti_relay_ops {
  /* A link, child of ctx's actor; weft_link_spawn. */
  weft_err (*connect)(void *arg, weft_ctx *ctx, const char *url, weft_actor_id *out);
  void *arg;
} wefti_relay_ops;

typedef struct wefti_relay_args {
  const char *url;       /* copied */
  uint32_t retry_min_ms; /* 0 = 50 */
  uint32_t retry_max_ms; /* 0 = 2,000 */
  wefti_relay_ops ops;
} wefti_relay_args;

/* Questions it cannot put, or whose link dies, are answered with CLIENT_DONE(UNAVAIL). */
extern const weft_actor_class wefti_relay_class; /* args: wefti_relay_args */

#endif /* WEFT_ACTORS_RELAY_H */
