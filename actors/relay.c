#include "relay.h"

#include "silence.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { URL_MAX = 256, RETRY_MIN_MS = 50, RETRY_MAX_MS = 2000, TAG_RETRY = 1 };

/* A question that was passed on. */
typedef struct open_question {
  struct open_question *next;
  uint64_t corr;    /* of our question to the link */
  weft_return back; /* to who asked us */
  uint16_t type;
} open_question;

typedef struct relay {
  wefti_relay_args args;
  char url[URL_MAX];
  weft_actor_id link;   /* 0: none */
  uint64_t retry_timer; /* of the next attempt; 0: there is none */
  uint32_t retry_ms;
  uint64_t salt; /* makes caller numbers of this process differ from those of others */
  open_question *open;
} relay;

static bool is_query(uint16_t type)
{
  return type == WEFT_MSG_CLIENT_QUERY;
}

static void answer_unreachable(weft_ctx *ctx, relay *self, weft_return back,
                               uint16_t type, weft_err err, bool sent)
{
  char text[URL_MAX + 96];
  (void)snprintf(text, sizeof text, "engine at %s: %s", self->url,
                 err == WEFT_E_TIMEOUT ? "no answer in time"
                 : err == WEFT_E_LOST  ? "its answer was lost"
                                       : "not reachable, try again");
  weft_client_done done = { .h = { .type = WEFT_MSG_CLIENT_DONE } };
  done.err = err == WEFT_E_TIMEOUT ? WEFT_E_TIMEOUT : WEFT_E_UNAVAIL;
  if (!is_query(type)) {
    done.outcome = sent ? WEFT_OUTCOME_UNKNOWN : WEFT_OUTCOME_NOT_COMMITTED;
  }
  done.message = (weft_str){ text, (uint32_t)strlen(text) };
  (void)weft_reply(ctx, back, weft_msg_make(ctx, &done.h));
}

static void retry_later(weft_ctx *ctx, relay *self)
{
  self->retry_timer = weft_timer_start(ctx, self->retry_ms, TAG_RETRY);
  self->retry_ms *= 2;
  if (self->retry_ms > self->args.retry_max_ms) {
    self->retry_ms = self->args.retry_max_ms;
  }
}

static void link_up(weft_ctx *ctx, relay *self)
{
  const weft_err err =
      self->args.ops.connect(self->args.ops.arg, ctx, self->url, &self->link);
  if (err != WEFT_OK) {
    self->link = 0;
    weft_log(ctx, err == WEFT_E_NOT_YET ? WEFT_LOG_DEBUG : WEFT_LOG_WARN,
             "cannot make a link to %s err=%s", self->url, weft_err_name(err));
    retry_later(ctx, self);
  }
}

static weft_err relay_init(weft_ctx *ctx, void *state, const void *args)
{
  relay *self = state;
  self->args = *(const wefti_relay_args *)args;
  const size_t len = strlen(self->args.url);
  if (len >= sizeof self->url) {
    return WEFT_E_LIMIT;
  }
  memcpy(self->url, self->args.url, len + 1);
  self->args.url = self->url;
  if (self->args.retry_min_ms == 0) {
    self->args.retry_min_ms = RETRY_MIN_MS;
  }
  if (self->args.retry_max_ms == 0) {
    self->args.retry_max_ms = RETRY_MAX_MS;
  }
  self->retry_ms = self->args.retry_min_ms;
  self->salt = weft_random(ctx) | 1;
  link_up(ctx, self);
  return WEFT_OK;
}

static void relay_fini(weft_ctx *ctx, void *state)
{
  relay *self = state;
  while (self->open) {
    open_question *q = self->open;
    self->open = q->next;
    weft_free(ctx, q);
  }
}

static open_question *take_question(relay *self, uint64_t corr)
{
  for (open_question **at = &self->open; *at; at = &(*at)->next) {
    if ((*at)->corr == corr) {
      open_question *q = *at;
      *at = q->next;
      return q;
    }
  }
  return NULL;
}

/* The caller is the first field of every call but the query. */
static void salt_caller(const relay *self, weft_msg *msg)
{
  static_assert(offsetof(weft_client_init, caller) == offsetof(weft_client_gone, caller),
                "the caller is in the same place");
  static_assert(offsetof(weft_client_init, caller) == offsetof(weft_client_cache, caller),
                "the caller is in the same place");
  if (is_query(msg->type)) {
    return;
  }
  weft_client_gone *call = (weft_client_gone *)msg;
  if (call->caller != 0) {
    call->caller ^= self->salt;
    call->caller = call->caller ? call->caller : self->salt;
  }
}

static weft_err on_call(weft_ctx *ctx, relay *self, const weft_msg *msg)
{
  const weft_return back = weft_return_of(msg);
  if (self->link == 0 && self->retry_timer == 0) { /* there was no memory for it */
    link_up(ctx, self);
  }
  if (self->link == 0) {
    answer_unreachable(ctx, self, back, msg->type, WEFT_E_DOWN, false);
    return WEFT_OK;
  }
  weft_msg *copy = weft_msg_make(ctx, msg);
  if (copy) {
    salt_caller(self, copy);
  }
  if (back.corr == 0) {
    (void)weft_send(ctx, self->link, copy);
    return WEFT_OK;
  }
  open_question *q = weft_alloc(ctx, sizeof *q);
  if (!q) {
    answer_unreachable(ctx, self, back, msg->type, WEFT_E_NOMEM, false);
    /* send to nobody: the only way to give a pooled message back */
    (void)weft_send(ctx, 0, copy);
    return WEFT_OK;
  }
  uint64_t left = 0; /* what remains of the asker's patience is the link's too */
  if (msg->due_ms != 0) {
    const uint64_t now = weft_now_ms(ctx);
    left = msg->due_ms > now ? msg->due_ms - now : 1;
  }
  q->back = back;
  q->type = msg->type;
  q->corr = weft_ask(ctx, self->link, copy, left);
  q->next = self->open;
  self->open = q;
  return WEFT_OK;
}

static weft_err on_answer(weft_ctx *ctx, relay *self, const weft_msg *msg)
{
  open_question *q = take_question(self, msg->corr);
  if (q) {
    self->retry_ms = self->args.retry_min_ms; /* the link works */
    (void)weft_reply(ctx, q->back, weft_msg_make(ctx, msg));
    weft_free(ctx, q);
  }
  return WEFT_OK;
}

static weft_err on_failed(weft_ctx *ctx, relay *self, const weft_ask_failed_msg *msg)
{
  open_question *q = take_question(self, msg->h.corr);
  if (q) {
    const weft_err reason = (weft_err)msg->reason;
    answer_unreachable(ctx, self, q->back, q->type, reason, !wefti_was_not_asked(reason));
    weft_free(ctx, q);
  }
  return WEFT_OK;
}

static weft_err relay_on(weft_ctx *ctx, void *state, const weft_msg *msg)
{
  relay *self = state;
  switch (msg->type) {
  case WEFT_MSG_CLIENT_DONE:
    return on_answer(ctx, self, msg);
  case WEFT_MSG_ASK_FAILED:
    return on_failed(ctx, self, (const weft_ask_failed_msg *)msg);
  case WEFT_MSG_DOWN:
    if (((const weft_down_msg *)msg)->who == self->link) {
      self->link = 0;
      weft_log(ctx, WEFT_LOG_DEBUG, "link to %s is down", self->url);
      retry_later(ctx, self);
    }
    return WEFT_OK;
  case WEFT_MSG_TIMER:
    self->retry_timer = 0;
    if (self->link == 0) {
      link_up(ctx, self);
    }
    return WEFT_OK;
  case WEFT_MSG_STOP:
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    return msg->type < WEFT_MSG_USER_FIRST ? on_call(ctx, self, msg) : WEFT_OK;
  }
}

const weft_actor_class wefti_relay_class = { "relay", sizeof(relay), relay_init,
                                             relay_fini, relay_on };
