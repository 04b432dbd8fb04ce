#include "tcpstore_talk.h"

#include <string.h>

void wefti_talk_init(wefti_talk *t, size_t value_max)
{
  *t = (wefti_talk){ .value_max = value_max };
}

void wefti_talk_fini(wefti_talk *t)
{
  wefti_sb_fini(&t->in);
  wefti_sb_fini(&t->out);
  wefti_sb_fini(&t->request);
}

/* ---- requests */

static bool put_key_list(wefti_sb *out, wefti_store_op op, wefti_span key)
{
  return wefti_sb_u8(out, (uint8_t)op) && wefti_sb_u64(out, 1) &&
         wefti_sb_str(out, key.at, key.len);
}

static wefti_span key_of(const wefti_talk *t)
{
  wefti_walk w = { .at = t->request.data, .end = t->request.data + t->request.len };
  wefti_span key = wefti_walk_str(&w);
  for (size_t i = 0; i < t->which; i++) {
    key = wefti_walk_str(&w);
  }
  return key;
}

/* Puts the question's request into out, in one piece. */
static bool start(wefti_talk *t)
{
  t->started = true;
  if (t->ask == WEFTI_ASK_GET) {
    const bool wait = t->count == 1;
    t->expect = wait ? WEFTI_EXPECT_STOP : WEFTI_EXPECT_CHECK;
    return put_key_list(&t->out, wait ? WEFTI_ST_WAIT : WEFTI_ST_CHECK, key_of(t));
  }
  t->expect = t->ask == WEFTI_ASK_NUMBER ? WEFTI_EXPECT_NUMBER : WEFTI_EXPECT_NOTHING;
  const bool room = wefti_sb_put(&t->out, t->request.data, t->request.len);
  wefti_sb_fini(&t->request);
  return room;
}

static bool ask(wefti_talk *t, wefti_ask what)
{
  t->ask = what;
  t->started = false;
  t->which = 0;
  return t->given_up || start(t);
}

bool wefti_talk_hello(wefti_talk *t, uint32_t nonce, bool ping)
{
  uint8_t head[10] = { WEFTI_ST_VALIDATE, 0xce, 0xf7, 0x85, 0x3c, WEFTI_ST_PING };
  for (unsigned i = 0; i < 4; i++) {
    head[6 + i] = (uint8_t)(nonce >> (8 * i));
  }
  t->ask = WEFTI_ASK_HELLO;
  t->started = true;
  t->nonce = nonce;
  t->expect = ping ? WEFTI_EXPECT_NONCE : WEFTI_EXPECT_CHECK;
  const wefti_span key = { .at = (const uint8_t *)WEFT_TCPSTORE_INIT_KEY,
                           .len = sizeof WEFT_TCPSTORE_INIT_KEY - 1 };
  return wefti_sb_put(&t->out, head, ping ? 10 : 5) &&
         (ping || put_key_list(&t->out, WEFTI_ST_CHECK, key));
}

bool wefti_talk_get(wefti_talk *t, const char *const *keys, size_t count)
{
  t->request.len = 0;
  t->count = count;
  for (size_t i = 0; i < count; i++) {
    if (!wefti_sb_str(&t->request, keys[i], strlen(keys[i]))) {
      return false;
    }
  }
  return ask(t, WEFTI_ASK_GET);
}

static bool begin(wefti_talk *t, wefti_store_op op, const char *key)
{
  t->request.len = 0;
  return wefti_sb_u8(&t->request, (uint8_t)op) &&
         wefti_sb_str(&t->request, key, strlen(key));
}

bool wefti_talk_set(wefti_talk *t, const char *key, const void *value, size_t len)
{
  return begin(t, WEFTI_ST_SET, key) && wefti_sb_str(&t->request, value, len) &&
         ask(t, WEFTI_ASK_SET);
}

bool wefti_talk_add(wefti_talk *t, const char *key, int64_t delta)
{
  return begin(t, WEFTI_ST_ADD, key) && wefti_sb_u64(&t->request, (uint64_t)delta) &&
         ask(t, WEFTI_ASK_NUMBER);
}

bool wefti_talk_remove(wefti_talk *t, const char *key)
{
  return begin(t, WEFTI_ST_DELETE_KEY, key) && ask(t, WEFTI_ASK_NUMBER);
}

bool wefti_talk_poll(wefti_talk *t)
{
  if (!t->polling) {
    return true;
  }
  t->polling = false;
  t->which = 0;
  return start(t);
}

bool wefti_talk_cancel(wefti_talk *t)
{
  const bool asked = t->ask != WEFTI_ASK_NONE && t->started;
  t->ask = WEFTI_ASK_NONE;
  t->polling = false;
  if (!asked || t->expect == WEFTI_EXPECT_NOTHING) {
    return true;
  }
  t->given_up = true;
  if (t->expect == WEFTI_EXPECT_STOP) {
    t->expect = WEFTI_EXPECT_CANCEL;
    t->late = false;
    return wefti_sb_u8(&t->out, WEFTI_ST_CANCEL_WAIT);
  }
  return true;
}

bool wefti_talk_flushed(wefti_talk *t)
{
  const bool done = t->ask == WEFTI_ASK_SET && t->started;
  if (done) {
    t->ask = WEFTI_ASK_NONE;
  }
  return done;
}

/* ---- answers */

bool wefti_talk_feed(wefti_talk *t, const void *data, size_t n)
{
  return wefti_sb_put(&t->in, data, n);
}

static weft_err finish(wefti_talk *t, wefti_talk_news *news)
{
  t->ask = WEFTI_ASK_NONE;
  t->expect = WEFTI_EXPECT_NOTHING;
  *news = WEFTI_TALK_DONE;
  return WEFT_OK;
}

/* The connection is clear: the next question may go. */
static weft_err clear(wefti_talk *t)
{
  t->expect = WEFTI_EXPECT_NOTHING;
  t->given_up = false;
  return t->ask == WEFTI_ASK_NONE || start(t) ? WEFT_E_AGAIN : WEFT_E_NOMEM;
}

static weft_err on_byte(wefti_talk *t, uint8_t v, wefti_talk_news *news, weft_why *why)
{
  if (v > 1 || (t->expect == WEFTI_EXPECT_STOP && v != WEFTI_ST_STOP_WAITING) ||
      (t->expect == WEFTI_EXPECT_CANCEL && v == WEFTI_ST_STOP_WAITING && t->late)) {
    return weft_whyf(why, WEFT_E_PROTO, "answered 0x%02x to %s", v,
                     t->expect == WEFTI_EXPECT_CHECK ? "CHECK" : "WAIT");
  }
  if (t->expect == WEFTI_EXPECT_CANCEL) {
    t->late = true;
    return v == WEFTI_ST_WAIT_CANCELED ? clear(t) : WEFT_E_AGAIN;
  }
  if (t->given_up) {
    return clear(t);
  }
  if (t->ask == WEFTI_ASK_HELLO) {
    return finish(t, news);
  }
  if (t->expect == WEFTI_EXPECT_CHECK && v == WEFTI_ST_NOT_READY) {
    if (++t->which < t->count) {
      return start(t) ? WEFT_E_AGAIN : WEFT_E_NOMEM;
    }
    t->expect = WEFTI_EXPECT_NOTHING;
    t->polling = true;
    *news = WEFTI_TALK_POLL;
    return WEFT_OK;
  }
  const wefti_span key = key_of(t);
  t->expect = WEFTI_EXPECT_VALUE;
  return wefti_sb_u8(&t->out, WEFTI_ST_GET) && wefti_sb_str(&t->out, key.at, key.len)
             ? WEFT_E_AGAIN
             : WEFT_E_NOMEM;
}

static weft_err on_number(wefti_talk *t, uint64_t v, wefti_talk_news *news,
                          weft_tcpstore_answer *answer, weft_why *why)
{
  if (t->expect == WEFTI_EXPECT_NONCE) {
    return (uint32_t)v == t->nonce ? finish(t, news)
                                   : weft_whyf(why, WEFT_E_PROTO,
                                               "does not speak TCPStore: it answered our "
                                               "PING with something else");
  }
  if (t->given_up) {
    return clear(t);
  }
  answer->number = (int64_t)v;
  return finish(t, news);
}

static weft_err on_value(wefti_talk *t, size_t len, wefti_talk_news *news,
                         weft_tcpstore_answer *answer)
{
  if (t->given_up) {
    return clear(t);
  }
  answer->value = t->in.data + 8;
  answer->len = len;
  answer->which = (unsigned)t->which;
  return finish(t, news);
}

/* Bytes of the answer that is expected.  AGAIN: unknown as yet. */
static weft_err answer_size(const wefti_talk *t, size_t *size, weft_why *why)
{
  switch (t->expect) {
  case WEFTI_EXPECT_NOTHING:
    return t->in.len == 0
               ? WEFT_E_AGAIN
               : weft_whyf(why, WEFT_E_PROTO, "sent bytes that nobody asked for");
  case WEFTI_EXPECT_NONCE:
    *size = 4;
    return WEFT_OK;
  case WEFTI_EXPECT_CHECK:
  case WEFTI_EXPECT_STOP:
  case WEFTI_EXPECT_CANCEL:
    *size = 1;
    return WEFT_OK;
  case WEFTI_EXPECT_NUMBER:
    *size = 8;
    return WEFT_OK;
  case WEFTI_EXPECT_VALUE:
    break;
  }
  if (t->in.len < 8) {
    return WEFT_E_AGAIN;
  }
  const uint64_t len = wefti_le(t->in.data, 8);
  if (len > t->value_max) {
    return weft_whyf(why, WEFT_E_LIMIT,
                     "sent a value of %llu bytes, at most %zu are taken",
                     (unsigned long long)len, t->value_max);
  }
  *size = 8 + (size_t)len;
  return WEFT_OK;
}

weft_err wefti_talk_next(wefti_talk *t, wefti_talk_news *news,
                         weft_tcpstore_answer *answer, weft_why *why)
{
  *answer = (weft_tcpstore_answer){ .text = "" };
  for (;;) {
    size_t size = 0;
    wefti_sb_drop(&t->in, t->used);
    t->used = 0;
    weft_err err = answer_size(t, &size, why);
    if (err != WEFT_OK) {
      return err;
    }
    if (t->in.len < size) {
      return WEFT_E_AGAIN;
    }
    t->used = size;
    err = t->expect == WEFTI_EXPECT_VALUE ? on_value(t, size - 8, news, answer)
          : size == 1                     ? on_byte(t, t->in.data[0], news, why)
                      : on_number(t, wefti_le(t->in.data, size), news, answer, why);
    if (err != WEFT_E_AGAIN) {
      return err;
    }
  }
}
