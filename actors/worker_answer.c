#include "worker_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ENVELOPE(ask)                                                                    \
  .boot = (ask)->boot, .incarnation = (ask)->incarnation, .epoch = (ask)->epoch,         \
  .op = (ask)->op

static void refuse_text(weft_ctx *ctx, const worker_ask *ask, weft_err err,
                        bool correctable, const char *text)
{
  const weft_w_refused m = { .h.type = WEFT_MSG_W_REFUSED,
                             ENVELOPE(ask),
                             .err = (uint32_t)err,
                             .correctable = correctable ? 1 : 0,
                             .text = { text, (uint32_t)strlen(text) } };
  (void)weft_reply(ctx, ask->back, weft_msg_make(ctx, &m.h));
}

void worker_refuse(weft_ctx *ctx, const worker_ask *ask, weft_err err, const char *fmt,
                   ...)
{
  char text[WEFT_WHY_MAX];
  va_list ap;
  va_start(ap, fmt);
  (void)vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  refuse_text(ctx, ask, err, false, text);
}

void worker_ok(weft_ctx *ctx, const worker *w, const worker_ask *ask)
{
  wefti_store_state st;
  wefti_store_state_get(w->args.device->store, &st);
  const weft_w_ok m = { .h.type = WEFT_MSG_W_OK, ENVELOPE(ask), .poisoned = st.dirty };
  (void)weft_reply(ctx, ask->back, weft_msg_make(ctx, &m.h));
}

void worker_json(weft_ctx *ctx, const worker_ask *ask, weft_buf *json)
{
  const weft_w_answer m = { .h.type = WEFT_MSG_W_ANSWER, ENVELOPE(ask), .json = json };
  (void)weft_reply(ctx, ask->back, weft_msg_make(ctx, &m.h));
}

static uint32_t phase(const worker *w, const wefti_store_state *st)
{
  if (worker_recalls(w)) {
    return WEFT_WORKER_MAPPING;
  }
  return st->dirty != 0 && w->phase == WEFT_WORKER_IDLE ? WEFT_WORKER_POISONED
                                                        : (uint32_t)w->phase;
}

void worker_state(weft_ctx *ctx, worker *w, const worker_ask *ask)
{
  wefti_device *device = w->args.device;
  wefti_store_state st;
  wefti_store_state_get(device->store, &st);
  const uint64_t stamp_ns = weft_boottime_ns(ctx);
  const weft_w_state m = {
    .h.type = WEFT_MSG_W_STATE,
    ENVELOPE(ask),
    .phase = phase(w, &st),
    .weights_sequence = st.weights_sequence,
    .digest_hi = st.digest_hi,
    .digest_lo = st.digest_lo,
    .tensors = st.tensors,
    .bytes = st.bytes,
    .received = atomic_load_explicit(&device->received, memory_order_relaxed),
    .expected = atomic_load_explicit(&device->expected, memory_order_relaxed),
    .readers = st.readers,
    .snapshots = st.snapshots,
    .stamp_ns = stamp_ns,
    .pid = device->pid,
    .poisoned = st.dirty,
    .device = { device->about, (uint32_t)strlen(device->about) },
    .again = wefti_leader_ask(&w->engine, ask->boot, stamp_ns),
  };
  (void)weft_reply(ctx, ask->back, weft_msg_make(ctx, &m.h));
}

/* ---- the last session operation's answer */

void worker_said_clear(worker *w)
{
  weft_buf_unref(w->said.finished.missing_names);
  w->said = (worker_said){ 0 };
}

void worker_say_again(weft_ctx *ctx, const worker *w, const worker_ask *ask)
{
  const worker_said *said = &w->said;
  if (said->type == WEFT_MSG_W_REFUSED) {
    refuse_text(ctx, ask, said->err, said->correctable, said->text);
  } else if (said->type == WEFT_MSG_W_FINISHED) {
    weft_w_finished m = said->finished;
    m.op = ask->op; /* the rest of the envelope is the same, or it would not be again */
    (void)weft_reply(ctx, ask->back, weft_msg_make(ctx, &m.h));
  } else {
    (void)weft_reply(ctx, ask->back, weft_msg_make(ctx, &said->ok.h));
  }
}

static void remember_refusal(worker_said *said, const weft_device_done *done)
{
  said->type = WEFT_MSG_W_REFUSED;
  said->err = (weft_err)done->err;
  said->correctable = done->correctable != 0;
  (void)snprintf(said->text, sizeof said->text, "%.*s", (int)done->text.len,
                 done->text.p ? done->text.p : "");
  if (said->text[0] == '\0') {
    (void)snprintf(said->text, sizeof said->text, "%s", weft_strerror(said->err));
  }
}

void worker_say(weft_ctx *ctx, worker *w, const worker_ask *ask,
                const weft_device_done *done)
{
  worker_said_clear(w);
  worker_said *said = &w->said;
  said->epoch = ask->epoch;
  said->op = ask->op;
  if (done->err != WEFT_OK) {
    remember_refusal(said, done);
  } else if (ask->type == WEFT_MSG_W_FINISH) {
    said->type = WEFT_MSG_W_FINISHED;
    said->finished = (weft_w_finished){ .h.type = WEFT_MSG_W_FINISHED,
                                        ENVELOPE(ask),
                                        .digest_hi = done->digest_hi,
                                        .digest_lo = done->digest_lo,
                                        .tensors = done->tensors,
                                        .bytes = done->bytes,
                                        .received = done->received,
                                        .received_bytes = done->received_bytes,
                                        .missing = done->missing,
                                        .missing_names = weft_buf_ref(done->json),
                                        .elapsed_us = done->elapsed_us,
                                        .set_tensors = done->set_tensors,
                                        .set_bytes = done->set_bytes,
                                        .set_digest_hi = done->set_digest_hi,
                                        .set_digest_lo = done->set_digest_lo };
  } else {
    said->type = WEFT_MSG_W_OK;
    said->ok = (weft_w_ok){ .h.type = WEFT_MSG_W_OK,
                            ENVELOPE(ask),
                            .tensors = done->tensors,
                            .bytes = done->bytes,
                            .elapsed_us = done->elapsed_us };
  }
  worker_say_again(ctx, w, ask);
}
