#include "acceptor_priv.h"
#include "weft/buf.h"
#include "weft/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Of the route, the body and what else decides; not of timeout_s: who repeats a call may
 * be more patient the second time. */
static uint64_t hash_of(const wefti_request *rq)
{
  if (rq->call->idem_key.len == 0) {
    return 0;
  }
  const weft_buf *body = rq->call->body;
  uint64_t words[4] = { rq->call->route, 0, 0, 0 };
  if (body != NULL) {
    const weft_digest digest = weft_digest_of(body->data, body->len);
    words[1] = digest.hi;
    words[2] = digest.lo;
  }
  if (rq->call->route == WEFTI_ROUTE_PAUSE) {
    words[3] = (uint64_t)rq->query->mode[0] << 1 | rq->query->clear_cache;
  }
  return weft_digest_of(words, sizeof words).lo;
}

static weft_str text_of(const wefti_text *text)
{
  return (weft_str){ text->text, text->len };
}

/* The fields that every mutating call begins with (WEFT_CALL). */
#define CALL(upper, rq)                                                                  \
  .h = { .type = WEFT_MSG_##upper }, .caller = (rq)->caller,                             \
  .timeout_ms = (rq)->query->timeout_ms, .idem_key = (rq)->call->idem_key,               \
  .body_hash = hash_of(rq), .session = (rq)->call->session

static weft_msg *make_init(weft_ctx *ctx, const wefti_request *rq)
{
  const weft_client_init m = { CALL(CLIENT_INIT, rq), .info = rq->info };
  return weft_msg_make(ctx, &m.h);
}

static weft_msg *make_shutdown(weft_ctx *ctx, const wefti_request *rq)
{
  const weft_client_shutdown m = { CALL(CLIENT_SHUTDOWN, rq) };
  return weft_msg_make(ctx, &m.h);
}

static weft_msg *make_start(weft_ctx *ctx, const wefti_request *rq)
{
  const weft_client_start m = { CALL(CLIENT_START, rq),
                                .draft = rq->call->route == WEFTI_ROUTE_START_DRAFT };
  return weft_msg_make(ctx, &m.h);
}

static weft_msg *make_update(weft_ctx *ctx, const wefti_request *rq)
{
  const weft_client_update m = { CALL(CLIENT_UPDATE, rq), .info = rq->info };
  return weft_msg_make(ctx, &m.h);
}

static weft_msg *make_finish(weft_ctx *ctx, const wefti_request *rq)
{
  const wefti_fields *f = rq->fields;
  const weft_client_finish m = {
    CALL(CLIENT_FINISH, rq),           .has_version = f->version.given,
    .version = text_of(&f->version),   .has_expected = f->expected.given,
    .expected = text_of(&f->expected), .strict = f->strict
  };
  return weft_msg_make(ctx, &m.h);
}

static weft_msg *make_label(weft_ctx *ctx, const wefti_request *rq)
{
  const wefti_fields *f = rq->fields;
  const weft_client_label m = { CALL(CLIENT_LABEL, rq), .version = text_of(&f->version),
                                .has_expected = f->expected.given,
                                .expected = text_of(&f->expected) };
  return weft_msg_make(ctx, &m.h);
}

static weft_msg *make_abort(weft_ctx *ctx, const wefti_request *rq)
{
  const weft_client_abort m = { CALL(CLIENT_ABORT, rq),
                                .reason = text_of(&rq->fields->version) };
  return weft_msg_make(ctx, &m.h);
}

static weft_msg *make_resolve(weft_ctx *ctx, const wefti_request *rq)
{
  const weft_client_resolve m = { CALL(CLIENT_RESOLVE, rq),
                                  .commit = rq->fields->commit };
  return weft_msg_make(ctx, &m.h);
}

static weft_msg *make_pause(weft_ctx *ctx, const wefti_request *rq)
{
  const weft_str mode = { rq->query->mode, (uint32_t)strlen(rq->query->mode) };
  const weft_client_pause m = { CALL(CLIENT_PAUSE, rq), .action = WEFT_PAUSE,
                                .mode = mode, .clear_cache = rq->query->clear_cache };
  return weft_msg_make(ctx, &m.h);
}

static weft_msg *make_resume(weft_ctx *ctx, const wefti_request *rq)
{
  const weft_client_pause m = { CALL(CLIENT_PAUSE, rq), .action = WEFT_RESUME };
  return weft_msg_make(ctx, &m.h);
}

static weft_msg *make_check(weft_ctx *ctx, const wefti_request *rq)
{
  const weft_client_check m = { CALL(CLIENT_CHECK, rq), .action = rq->fields->action,
                                .baseline = rq->info };
  return weft_msg_make(ctx, &m.h);
}

static weft_msg *make_cache(weft_ctx *ctx, const wefti_request *rq, weft_str which)
{
  const weft_client_cache m = { CALL(CLIENT_CACHE, rq), .which = which };
  return weft_msg_make(ctx, &m.h);
}

static weft_msg *make_query(weft_ctx *ctx, weft_query what)
{
  const weft_client_query m = { .h = { .type = WEFT_MSG_CLIENT_QUERY }, .what = what };
  return weft_msg_make(ctx, &m.h);
}

static weft_msg *make_versions(weft_ctx *ctx, const wefti_request *rq)
{
  char limit[16];
  const int len = snprintf(limit, sizeof limit, "%" PRIu32, rq->query->limit);
  const weft_client_query m = { .h = { .type = WEFT_MSG_CLIENT_QUERY },
                                .what = WEFT_QUERY_VERSIONS,
                                .arg = { limit, (uint32_t)len } };
  return weft_msg_make(ctx, &m.h);
}

weft_msg *wefti_request_message(weft_ctx *ctx, const wefti_request *rq)
{
  switch ((wefti_route)rq->call->route) {
  case WEFTI_ROUTE_INIT:
    return make_init(ctx, rq);
  case WEFTI_ROUTE_SHUTDOWN:
    return make_shutdown(ctx, rq);
  case WEFTI_ROUTE_START:
  case WEFTI_ROUTE_START_DRAFT:
    return make_start(ctx, rq);
  case WEFTI_ROUTE_UPDATE:
    return make_update(ctx, rq);
  case WEFTI_ROUTE_FINISH:
    return make_finish(ctx, rq);
  case WEFTI_ROUTE_LABEL:
    return make_label(ctx, rq);
  case WEFTI_ROUTE_PAUSE:
    return make_pause(ctx, rq);
  case WEFTI_ROUTE_RESUME:
    return make_resume(ctx, rq);
  case WEFTI_ROUTE_CHECKER:
    return make_check(ctx, rq);
  case WEFTI_ROUTE_RESET_PREFIX:
    return make_cache(ctx, rq, WEFT_STR("prefix"));
  case WEFTI_ROUTE_RESET_MM:
    return make_cache(ctx, rq, WEFT_STR("mm"));
  case WEFTI_ROUTE_RESET_ENCODER:
    return make_cache(ctx, rq, WEFT_STR("encoder"));
  case WEFTI_ROUTE_ABORT:
    return make_abort(ctx, rq);
  case WEFTI_ROUTE_RESOLVE:
    return make_resolve(ctx, rq);
  case WEFTI_ROUTE_INFO:
    return make_query(ctx, WEFT_QUERY_INFO);
  case WEFTI_ROUTE_IS_PAUSED:
    return make_query(ctx, WEFT_QUERY_PAUSED);
  case WEFTI_ROUTE_STATUS:
    return make_query(ctx, WEFT_QUERY_STATUS);
  case WEFTI_ROUTE_WEIGHTS:
    return make_query(ctx, WEFT_QUERY_WEIGHTS);
  case WEFTI_ROUTE_VERSIONS:
    return make_versions(ctx, rq);
  case WEFTI_ROUTE_METRICS:
    return make_query(ctx, WEFT_QUERY_METRICS);
  case WEFTI_ROUTE_READY:
    return make_query(ctx, WEFT_QUERY_READY);
  case WEFTI_ROUTE_ABORT_REQUESTS:
  case WEFTI_ROUTE_WORLD_SIZE:
  case WEFTI_ROUTE_EVENTS:
  case WEFTI_ROUTE_HEALTH:
  case WEFTI_ROUTE_VERSION:
  case WEFTI_ROUTE_COUNT:
    break;
  }
  return NULL;
}
