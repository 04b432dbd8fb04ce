#include "frame.h"

enum { SMALL = 1024 }; /* bytes: frames up to this are sized and written in one go */

static void put_le(uint8_t *p, uint64_t v, unsigned bytes)
{
  for (unsigned i = 0; i < bytes; i++) {
    p[i] = (uint8_t)(v >> (8 * i));
  }
}

static uint64_t get_le(const uint8_t *p, unsigned bytes)
{
  uint64_t v = 0;
  for (unsigned i = 0; i < bytes; i++) {
    v |= (uint64_t)p[i] << (8 * i);
  }
  return v;
}

void wefti_error_frame(uint8_t out[WEFTI_ERROR_FRAME], uint64_t corr, weft_err reason,
                       uint16_t asked)
{
  out[0] = 'w';
  out[1] = WEFT_FRAME_VERSION;
  put_le(out + 2, WEFT_MSG_ASK_FAILED, 2);
  put_le(out + 4, WEFT_MSG_F_REPLY, 4);
  put_le(out + 8, corr, 8);
  put_le(out + 16, 0, 4);
  put_le(out + 20, 8, 4);
  put_le(out + 24, (uint64_t)reason, 4);
  put_le(out + 28, asked, 4);
}

static bool is_known(uint64_t reason)
{
  switch (reason) {
#define WEFT_X(sym, val, text) case (val):
    WEFT_ERR_TABLE(WEFT_X)
#undef WEFT_X
    return reason != (uint64_t)WEFT_OK;
  default:
    return false;
  }
}

bool wefti_error_parse(const uint8_t *data, size_t len, weft_err *reason, uint16_t *asked)
{
  if (len != WEFTI_ERROR_FRAME || data[0] != 'w' || data[1] != WEFT_FRAME_VERSION ||
      get_le(data + 2, 2) != WEFT_MSG_ASK_FAILED || get_le(data + 20, 4) != 8) {
    return false;
  }
  const uint64_t code = get_le(data + 24, 4);
  *reason = is_known(code) ? (weft_err)code : WEFT_E_PROTO;
  *asked = (uint16_t)get_le(data + 28, 2);
  return true;
}

nng_msg *wefti_frame_encode(const weft_catalogue *cat, const weft_msg *msg,
                            uint64_t now_ms, size_t max, weft_err *err)
{
  uint8_t small[SMALL];
  size_t len = 0;
  nng_msg *m = NULL;
  *err = weft_msg_encode(cat, msg, now_ms, small, sizeof small, &len);
  if (*err == WEFT_OK && len <= max) {
    m = wefti_nng_msg(small, len);
    *err = m == NULL ? WEFT_E_NOMEM : WEFT_OK;
    return m;
  }
  if (*err == WEFT_OK || (*err == WEFT_E_LIMIT && len > max)) {
    *err = WEFT_E_LIMIT;
    return NULL;
  }
  if (*err != WEFT_E_LIMIT) {
    *err = *err == WEFT_E_OVERFLOW ? WEFT_E_LIMIT : *err;
    return NULL;
  }
  if (nng_msg_alloc(&m, len) != 0) {
    *err = WEFT_E_NOMEM;
    return NULL;
  }
  *err = weft_msg_encode(cat, msg, now_ms, nng_msg_body(m), len, &len);
  if (*err != WEFT_OK) {
    nng_msg_free(m);
    return NULL;
  }
  return m;
}

bool wefti_wake_post(weft_runtime *rt, weft_actor_id to)
{
  weft_msg *m = weft_msg_heap_new(WEFTI_MSG_WAKE, sizeof *m);
  if (m == NULL) {
    return false;
  }
  m->flags = WEFT_MSG_F_RESERVED;
  return weft_post(rt, to, m) == WEFT_OK;
}

weft_err wefti_fail(weft_ctx *ctx, weft_return to, uint16_t asked, weft_err reason)
{
  if (to.corr == 0) {
    return WEFT_OK;
  }
  weft_ask_failed_msg *m =
      (weft_ask_failed_msg *)(void *)weft_msg_new(ctx, WEFT_MSG_ASK_FAILED, sizeof *m);
  if (m == NULL) {
    return WEFT_E_NOMEM;
  }
  m->reason = (uint32_t)reason;
  m->asked = asked;
  /* An asker that is gone, or full even of answers, is not this actor's trouble. */
  return weft_reply(ctx, to, &m->h) == WEFT_E_NOMEM ? WEFT_E_NOMEM : WEFT_OK;
}
