/* acceptor.h -- private to actors/.  Turns HTTP requests into client messages and answers
 * into HTTP: the whole of vLLM's contract on one side, messages.def on the other.  No
 * sockets: requests come as HTTP_REQUEST, answers go through the operation table. */
#ifndef WEFT_ACTORS_ACCEPTOR_H
#define WEFT_ACTORS_ACCEPTOR_H

#include "weft/actor.h"
#include "weft/http.h"
#include "weft/messages.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct wefti_http_ops {
  void (*respond)(void *arg, weft_http_id id,
                  const weft_http_reply *reply); /* weft_http_respond */
  void (*stream)(void *arg, weft_http_id id,
                 uint64_t after); /* GET /weight_events: begin, replay after; INT64_MAX:
                                     none named */
  void *arg;
} wefti_http_ops;

typedef struct wefti_acceptor_args {
  weft_actor_id engine; /* engine_core itself or a link to its port */
  uint32_t tp, pp, dp_size, dp_index;
  bool allow_weight_reset;
  const char *server_version; /* of GET /version; static */
  wefti_http_ops ops;
} wefti_acceptor_args;

extern const weft_actor_class wefti_acceptor_class; /* args: wefti_acceptor_args */

/* The route table for weft_http_opts; route ids are what HTTP_REQUEST.route carries. */
const weft_http_route *wefti_acceptor_routes(size_t *count);

/* Requests refused before any message was sent to the engine, and messages sent. */
typedef struct wefti_acceptor_counts {
  uint64_t refused, forwarded;
} wefti_acceptor_counts;
const wefti_acceptor_counts *wefti_acceptor_counts_of(const void *self);

#endif /* WEFT_ACTORS_ACCEPTOR_H */
