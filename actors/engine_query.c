/* Questions of clients: what the engine knows by itself is answered at once, the rest is
 * asked of the workers (engine_check.c). */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>

static void answer_query(weft_ctx *ctx, engine *e, weft_return ret,
                         const engine_answer *a)
{
  engine_reply_to(ctx, e, ret, CALL_QUERY, weft_now_ms(ctx), a);
}

/* What is visible; of a fleet that shows different things also who shows what. */
static void query_info(weft_ctx *ctx, engine *e, engine_answer *a)
{
  if (!engine_upstream_serves(ctx, e, a->message, sizeof a->message)) {
    a->err = WEFT_E_UNAVAIL;
  } else if (!engine_fleet_settled(ctx, e)) {
    a->err = WEFT_E_UNAVAIL;
    (void)snprintf(a->message, sizeof a->message,
                   "weight_info: this coordinator restarted a moment ago and asks its "
                   "replicas; ask again in two seconds");
  } else {
    a->body = engine_fleet_mixed(e, &a->err);
  }
}

static void versions(engine *e, uint64_t limit, engine_answer *a)
{
  if (limit != 0) {
    a->body = engine_history_json(e, limit);
    a->err = a->body == NULL ? WEFT_E_NOMEM : WEFT_OK;
  } else {
    a->err = WEFT_E_INVAL;
    (void)snprintf(a->message, sizeof a->message,
                   "weight_versions: limit is not a number from 1 to %d",
                   ENGINE_HISTORY_LIMIT);
  }
}

/* Of a set that a client names. */
static void query_ranks(weft_ctx *ctx, engine *e, weft_return ret, weft_str set)
{
  engine_answer a = { .err = WEFT_OK };
  if (engine_set_is_live(e, set)) {
    a.err = WEFT_E_EXISTS;
    (void)snprintf(a.message, sizeof a.message, "that set is live");
  } else if (e->session.state != WEFTI_IDLE ||
             !engine_ready(ctx, e, a.message, sizeof a.message)) {
    a.err = WEFT_E_UNAVAIL;
  }
  answer_query(ctx, e, ret, &a);
}

void engine_query(weft_ctx *ctx, engine *e, const weft_client_query *q)
{
  engine_read read = { .ret = weft_return_of(&q->h), .what = q->what };
  if (q->what == WEFT_QUERY_RANKS) {
    query_ranks(ctx, e, read.ret, q->arg);
    return;
  }
  if (q->what == WEFT_QUERY_VERSIONS && !engine_history_limit(q->arg, &read.limit)) {
    read.limit = 0;
  }
  if (!engine_hold_read(ctx, e, &read)) {
    engine_query_answer(ctx, e, &read);
  }
}

void engine_query_answer(weft_ctx *ctx, engine *e, const engine_read *read)
{
  uint64_t since_ms;
  const weft_return ret = read->ret;
  engine_answer a = { .err = WEFT_OK };
  switch (read->what) {
  case WEFT_QUERY_INFO:
    query_info(ctx, e, &a);
    answer_query(ctx, e, ret, &a);
    weft_buf_unref(a.body);
    break;
  case WEFT_QUERY_STATUS:
    a.body = engine_status_json(ctx, e);
    a.err = a.body == NULL ? WEFT_E_NOMEM : WEFT_OK;
    answer_query(ctx, e, ret, &a);
    weft_buf_unref(a.body);
    break;
  case WEFT_QUERY_PAUSED:
    a.body = engine_is_paused(e, &since_ms)
                 ? weft_buf_create("{\"is_paused\":true}", 18)
                 : weft_buf_create("{\"is_paused\":false}", 19);
    answer_query(ctx, e, ret, &a);
    weft_buf_unref(a.body);
    break;
  case WEFT_QUERY_READY:
    if (!engine_serves(ctx, e, a.message, sizeof a.message)) {
      a.err = WEFT_E_UNAVAIL;
    }
    answer_query(ctx, e, ret, &a);
    break;
  case WEFT_QUERY_METRICS:
    a.body = engine_metrics_text(ctx, e);
    a.err = a.body == NULL ? WEFT_E_NOMEM : WEFT_OK;
    answer_query(ctx, e, ret, &a);
    weft_buf_unref(a.body);
    break;
  case WEFT_QUERY_VERSIONS:
    versions(e, read->limit, &a);
    answer_query(ctx, e, ret, &a);
    weft_buf_unref(a.body);
    break;
  case WEFT_QUERY_WEIGHTS:
    engine_check_weights(ctx, e, ret);
    break;
  default:
    a.err = WEFT_E_INVAL;
    (void)snprintf(a.message, sizeof a.message, "unknown query %" PRIu32, read->what);
    answer_query(ctx, e, ret, &a);
    break;
  }
}
