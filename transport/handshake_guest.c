#include "handshake.h"
#include "weft/clock.h"
#include "weft/pubsub.h"

#include <stdlib.h>

typedef struct guest {
  const wefti_handshake_kind *kind;
  const char *url, *token;
  const void *facts;
  uint64_t end_ms;
  wefti_nonces nonces;
} guest;

/* What an answer with an error in it means; OK when there is none. */
static weft_err error_in(const weft_json *o, const char *url, weft_why *why)
{
  int64_t code;
  if (weft_json_get(o, "error") == NULL) {
    return WEFT_OK;
  }
  if (!weft_json_i64(weft_json_get(o, "error"), &code) || code <= 0 || code > INT32_MAX) {
    code = WEFT_E_PROTO;
  }
  const char *text = weft_json_str(weft_json_get(o, "text"));
  const weft_err err = (weft_err)code;
  (void)weft_whyf(why, err, "%s: %s", url, text == NULL ? weft_strerror(err) : text);
  return err == WEFT_E_UNAVAIL ? WEFT_E_AGAIN : err;
}

/* Sends what w wrote; *out is the answer's object, without an error in it. */
static weft_err ask(const guest *g, weft_json_writer *w, weft_json **out, weft_why *why)
{
  char *text;
  size_t len;
  weft_jw_end(w);
  weft_err err = weft_jw_take(w, &text, &len);
  weft_jw_fini(w);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "%s: out of memory", g->kind->verb);
  }
  const uint64_t now = weft_clock_ms();
  const uint64_t left = g->end_ms > now ? g->end_ms - now : 1;
  weft_buf *answer = NULL;
  err = weft_jsonreq(g->url, text, len,
                     left < WEFTI_HANDSHAKE_TRY_MS ? left : WEFTI_HANDSHAKE_TRY_MS,
                     &answer, why);
  free(text);
  if (err != WEFT_OK) {
    return err == WEFT_E_INVAL || err == WEFT_E_NOMEM || err == WEFT_E_LIMIT
               ? err
               : WEFT_E_AGAIN;
  }
  const weft_json_limits limits = { .depth = WEFTI_HANDSHAKE_DEPTH,
                                    .nodes = WEFTI_HANDSHAKE_NODES };
  weft_json *o = NULL;
  err = weft_json_parse(answer->data, answer->len, &limits, &o, NULL);
  weft_buf_unref(answer);
  if (err != WEFT_OK) {
    return weft_whyf(why, WEFT_E_PROTO, "%s did not answer as a weft %s does", g->url,
                     g->kind->host);
  }
  err = error_in(o, g->url, why);
  if (err != WEFT_OK) {
    weft_json_free(o);
    return err;
  }
  *out = o;
  return WEFT_OK;
}

/* Not what was expected: an empty object is a host that had no memory. */
static weft_err strange(const guest *g, const weft_json *o, const char *what,
                        weft_why *why)
{
  (void)weft_whyf(why, WEFT_E_PROTO, "%s: %s", g->url, what);
  return weft_json_count(o) == 0 ? WEFT_E_AGAIN : WEFT_E_PROTO;
}

static weft_err say_hello(guest *g, weft_why *why)
{
  char hex[WEFTI_HEX];
  uint8_t theirs[WEFTI_PROOF];
  uint8_t right[WEFTI_PROOF];
  if (!wefti_nonce(g->nonces.guest)) {
    return weft_whyf(why, WEFT_E_SYS, "%s: no random numbers", g->kind->verb);
  }
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_u64(&w, g->kind->verb, 1);
  wefti_hex(g->nonces.guest, hex);
  weft_jw_str(&w, "nonce", hex);
  g->kind->write(&w, g->facts);
  weft_json *o = NULL;
  weft_err err = ask(g, &w, &o, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (!wefti_unhex(weft_json_str(weft_json_get(o, "nonce")), g->nonces.host) ||
      !wefti_unhex(weft_json_str(weft_json_get(o, "proof")), theirs)) {
    err = strange(g, o, "answer without nonce and proof", why);
  }
  weft_json_free(o);
  if (err == WEFT_OK && (!wefti_handshake_prove(g->kind, g->kind->host, g->token,
                                                &g->nonces, g->facts, right) ||
                         !wefti_proof_same(theirs, right))) {
    return weft_whyf(why, WEFT_E_DENIED,
                     "%s: the %s's token is not this %s's; check the token files", g->url,
                     g->kind->host, g->kind->guest);
  }
  return err;
}

static weft_err prove(const guest *g, weft_why *why)
{
  char hex[WEFTI_HEX];
  uint8_t proof[WEFTI_PROOF];
  if (!wefti_handshake_prove(g->kind, g->kind->guest, g->token, &g->nonces, g->facts,
                             proof)) {
    return weft_whyf(why, WEFT_E_SYS, "%s: HMAC-SHA256 failed", g->kind->verb);
  }
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  wefti_hex(g->nonces.host, hex);
  weft_jw_str(&w, "prove", hex);
  wefti_hex(proof, hex);
  weft_jw_str(&w, "proof", hex);
  weft_json *o = NULL;
  weft_err err = ask(g, &w, &o, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (!weft_json_bool(weft_json_get(o, "ok"), false)) {
    err = strange(g, o, "neither ok nor an error", why);
  }
  weft_json_free(o);
  return err;
}

weft_err wefti_guest_call(const wefti_handshake_kind *kind, const char *url,
                          const char *token, const void *facts, uint64_t end_ms,
                          weft_why *why)
{
  guest g = {
    .kind = kind, .url = url, .token = token, .facts = facts, .end_ms = end_ms
  };
  const weft_err err = say_hello(&g, why);
  return err == WEFT_OK ? prove(&g, why) : err;
}
