/* What is answered without the engine. */
#include "acceptor_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void reply_text(const wefti_acceptor_args *args, const weft_http_call *call,
                       const char *text)
{
  wefti_reply_body(&args->ops, call->id, 200, text, strlen(text));
}

static void reply_world_size(const wefti_acceptor_args *args, const wefti_request *rq)
{
  char text[64];
  /* tp * pp is a number of workers that exist, so this cannot wrap. */
  const uint64_t dp = rq->query->include_dp ? args->dp_size : 1;
  (void)snprintf(text, sizeof text, "{\"world_size\":%" PRIu64 "}",
                 (uint64_t)args->tp * args->pp * dp);
  reply_text(args, rq->call, text);
}

static void reply_version(const wefti_acceptor_args *args, const weft_http_call *call)
{
  weft_json_writer w;
  char *text;
  size_t len;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_str(&w, "version", args->server_version);
  weft_jw_end(&w);
  if (weft_jw_take(&w, &text, &len) != WEFT_OK) {
    weft_jw_fini(&w);
    wefti_reply_nomem(&args->ops, call->id);
    return;
  }
  wefti_reply_body(&args->ops, call->id, 200, text, len);
  free(text);
}

bool wefti_reply_locally(const wefti_acceptor_args *args, const wefti_request *rq)
{
  switch (rq->call->route) {
  case WEFTI_ROUTE_ABORT_REQUESTS: /* nothing generates here, so nothing was aborted */
  case WEFTI_ROUTE_HEALTH:
    reply_text(args, rq->call, wefti_route_fact_of(rq->call->route)->success);
    return true;
  case WEFTI_ROUTE_WORLD_SIZE:
    reply_world_size(args, rq);
    return true;
  case WEFTI_ROUTE_VERSION:
    reply_version(args, rq->call);
    return true;
  case WEFTI_ROUTE_EVENTS:
    args->ops.stream(args->ops.arg, rq->call->id, rq->query->after);
    return true;
  default:
    return false;
  }
}
