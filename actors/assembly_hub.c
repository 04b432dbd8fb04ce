#include "assembly.h"

/* The snapshot socket's requests on their way to the publisher and back, and the wait for
 * the engine to be ready. */

enum { POLL_MS = 20, QUERY_MS = 2000, RESYNC_MS = 5000, TAG_POLL = 1 };

typedef struct open_request {
  struct open_request *next;
  uint64_t corr; /* of our question to the publisher */
  uint64_t id;   /* of the socket's request */
} open_request;

typedef struct hub {
  wefti_hub_args args;
  open_request *open;
  uint64_t ready_corr, status_corr; /* 0 = not asked */
  bool ready;
} hub;

static weft_err hub_init(weft_ctx *ctx, void *state, const void *args)
{
  hub *self = state;
  self->args = *(const wefti_hub_args *)args;
  return weft_timer_start(ctx, 1, TAG_POLL) ? WEFT_OK : WEFT_E_NOMEM;
}

static void hub_fini(weft_ctx *ctx, void *state)
{
  hub *self = state;
  while (self->open) {
    open_request *r = self->open;
    self->open = r->next;
    weft_free(ctx, r);
  }
}

static uint64_t ask_engine(weft_ctx *ctx, const hub *self, weft_query what)
{
  const weft_client_query query = { .h = { .type = WEFT_MSG_CLIENT_QUERY },
                                    .what = what };
  return weft_ask(ctx, self->args.engine, weft_msg_make(ctx, &query.h), QUERY_MS);
}

static void on_done(weft_ctx *ctx, hub *self, const weft_client_done *done)
{
  if (done->h.corr == self->status_corr) {
    self->status_corr = 0;
    self->ready = true;
    self->args.on_ready(self->args.on_ready_arg, done);
  } else if (done->h.corr == self->ready_corr) {
    self->ready_corr = 0;
    if (done->err == WEFT_OK) {
      self->status_corr = ask_engine(ctx, self, WEFT_QUERY_STATUS);
    } else {
      (void)weft_timer_start(ctx, POLL_MS, TAG_POLL);
    }
  }
}

static void on_resync(weft_ctx *ctx, hub *self, const weft_resync *msg)
{
  open_request *r = weft_alloc(ctx, sizeof *r);
  if (!r) {
    static const char text[] = "{\"error\":\"out of memory\"}";
    weft_jsonrep_answer(*self->args.snapshot, msg->h.corr, text, sizeof text - 1);
    return;
  }
  const weft_resync ask = { .h = { .type = WEFT_MSG_RESYNC }, .json = msg->json };
  r->id = msg->h.corr;
  r->corr = weft_ask(ctx, self->args.publisher, weft_msg_make(ctx, &ask.h), RESYNC_MS);
  r->next = self->open;
  self->open = r;
}

/* answer NULL: the publisher failed. */
static void answer_socket(weft_ctx *ctx, hub *self, uint64_t corr, const weft_buf *answer)
{
  static const char failed[] = "{\"error\":\"the publisher did not answer\"}";
  for (open_request **at = &self->open; *at; at = &(*at)->next) {
    if ((*at)->corr == corr) {
      open_request *r = *at;
      *at = r->next;
      weft_jsonrep_answer(*self->args.snapshot, r->id,
                          answer ? (const char *)answer->data : failed,
                          answer ? answer->len : sizeof failed - 1);
      weft_free(ctx, r);
      return;
    }
  }
}

static weft_err hub_on(weft_ctx *ctx, void *state, const weft_msg *msg)
{
  hub *self = state;
  switch (msg->type) {
  case WEFT_MSG_RESYNC:
    on_resync(ctx, self, (const weft_resync *)msg);
    return WEFT_OK;
  case WEFT_MSG_RESYNCED:
    answer_socket(ctx, self, msg->corr, ((const weft_resynced *)msg)->json);
    return WEFT_OK;
  case WEFT_MSG_CLIENT_DONE:
    on_done(ctx, self, (const weft_client_done *)msg);
    return WEFT_OK;
  case WEFT_MSG_ASK_FAILED:
    if (msg->corr == self->ready_corr || msg->corr == self->status_corr) {
      self->ready_corr = 0;
      self->status_corr = 0;
      (void)weft_timer_start(ctx, POLL_MS, TAG_POLL);
    } else {
      answer_socket(ctx, self, msg->corr, NULL);
    }
    return WEFT_OK;
  case WEFT_MSG_TIMER:
    if (!self->ready && self->ready_corr == 0 && self->status_corr == 0) {
      self->ready_corr = ask_engine(ctx, self, WEFT_QUERY_READY);
    }
    return WEFT_OK;
  case WEFT_MSG_STOP:
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    return WEFT_OK;
  }
}

const weft_actor_class wefti_hub_class = { "hub", sizeof(hub), hub_init, hub_fini,
                                           hub_on };
