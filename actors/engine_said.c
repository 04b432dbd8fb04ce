/* What a member of a fleet answers to its coordinator, and again to a repeat. */
#include "engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ENVELOPE(ask)                                                                    \
  .boot = (ask)->boot, .incarnation = (ask)->incarnation, .epoch = (ask)->epoch,         \
  .op = (ask)->op

static void refuse_text(weft_ctx *ctx, const engine_ask *ask, weft_err err,
                        bool correctable, const char *text)
{
  const weft_w_refused m = { .h.type = WEFT_MSG_W_REFUSED,
                             ENVELOPE(ask),
                             .err = (uint32_t)err,
                             .correctable = correctable,
                             .text = { text, (uint32_t)strlen(text) } };
  (void)weft_reply(ctx, ask->back, weft_msg_make(ctx, &m.h));
}

void engine_upstream_refuse(weft_ctx *ctx, const engine_ask *ask, weft_err err,
                            const char *fmt, ...)
{
  char text[WEFT_WHY_MAX];
  va_list ap;
  va_start(ap, fmt);
  (void)vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  refuse_text(ctx, ask, err, false, text);
}

void engine_upstream_ok(weft_ctx *ctx, const engine_ask *ask)
{
  const weft_w_ok m = { .h.type = WEFT_MSG_W_OK, ENVELOPE(ask) };
  (void)weft_reply(ctx, ask->back, weft_msg_make(ctx, &m.h));
}

void engine_upstream_again(weft_ctx *ctx, engine_ask *asked, const engine_ask *ask)
{
  if (asked->type != 0 &&
      (asked->back.to != ask->back.to || asked->back.corr != ask->back.corr)) {
    engine_upstream_refuse(ctx, asked, WEFT_E_CANCELLED, "asked again, answered there");
  }
  *asked = *ask;
}

void engine_said_clear(engine_said *said)
{
  weft_buf_unref(said->missing_names);
  *said = (engine_said){ .type = 0 };
}

void engine_say(weft_ctx *ctx, const engine_said *s, const engine_ask *ask)
{
  if (s->type == WEFT_MSG_W_REFUSED) {
    refuse_text(ctx, ask, s->err, s->correctable, s->text);
  } else if (s->type == WEFT_MSG_W_FINISHED) {
    const weft_w_finished m = { .h.type = WEFT_MSG_W_FINISHED,
                                ENVELOPE(ask),
                                .digest_hi = s->digest_hi,
                                .digest_lo = s->digest_lo,
                                .tensors = s->tensors,
                                .bytes = s->bytes,
                                .received = s->received,
                                .received_bytes = s->received_bytes,
                                .missing = s->missing,
                                .missing_names = s->missing_names,
                                .elapsed_us = s->elapsed_us };
    (void)weft_reply(ctx, ask->back, weft_msg_make(ctx, &m.h));
  } else {
    const weft_w_ok m = { .h.type = WEFT_MSG_W_OK,
                          ENVELOPE(ask),
                          .tensors = s->tensors,
                          .bytes = s->bytes,
                          .elapsed_us = s->elapsed_us };
    (void)weft_reply(ctx, ask->back, weft_msg_make(ctx, &m.h));
  }
}

/* What the ranks answered in the round just over, as one answer. */
static void said_of_round(const engine *e, engine_said *s)
{
  const engine_reply *r = &e->round.replies[0];
  for (uint32_t i = 0; i < e->world; i++) {
    const uint64_t us = e->round.replies[i].elapsed_us;
    s->elapsed_us = us > s->elapsed_us ? us : s->elapsed_us;
  }
  s->tensors = r->tensors;
  s->bytes = r->bytes;
  if (s->type == WEFT_MSG_W_FINISHED) {
    engine_set_digest(e, true, &s->digest_hi, &s->digest_lo);
    s->received = r->received;
    s->received_bytes = r->received_bytes;
    s->missing = r->missing;
    s->missing_names = weft_buf_ref(r->json);
  }
}

/* The one answer to up->asked, kept for repeats. */
void engine_said_session(weft_ctx *ctx, engine *e, const engine_answer *a)
{
  engine_upstream *up = &e->up;
  const engine_ask ask = up->asked;
  up->held = false;
  if (ask.type == 0) {
    return; /* between ACCEPT and GO nobody waits */
  }
  up->asked.type = 0;
  engine_said_clear(&up->said);
  engine_said *s = &up->said;
  s->epoch = ask.epoch;
  s->op = ask.op;
  if (a->err != WEFT_OK) {
    s->type = WEFT_MSG_W_REFUSED;
    s->err = a->err;
    s->correctable = a->correctable;
    (void)snprintf(s->text, sizeof s->text, "%s", a->message);
  } else {
    s->type = ask.type == WEFT_MSG_W_FINISH ? WEFT_MSG_W_FINISHED : WEFT_MSG_W_OK;
    if (ask.type != WEFT_MSG_W_START) {
      said_of_round(e, s);
    }
  }
  engine_say(ctx, s, &ask);
}

void engine_upstream_answer(weft_ctx *ctx, engine *e, engine_call *call,
                            const engine_answer *a)
{
  if (engine_call_of_session(call->kind)) {
    engine_said_session(ctx, e, a);
    if (call->kind == CALL_INIT && e->session.state == WEFTI_IDLE) {
      e->up.epoch = 0; /* an init is over with its answer */
    }
  } else if (a->err != WEFT_OK) {
    refuse_text(ctx, &call->ask, a->err, false, a->message);
  } else if (call->kind == CALL_CHECK) {
    const weft_w_answer m = { .h.type = WEFT_MSG_W_ANSWER,
                              ENVELOPE(&call->ask),
                              .json = a->body };
    (void)weft_reply(ctx, call->ask.back, weft_msg_make(ctx, &m.h));
  } else {
    engine_upstream_ok(ctx, &call->ask);
  }
}
