#include "join_proof.h"
#include "weft/join.h"
#include "weft/json.h"
#include "weft/pubsub.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRY_MS = 2000, PAUSE_MS = 100, JSON_DEPTH = 4, JSON_NODES = 32 };

static uint64_t now_ms(void)
{
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Sends what w wrote; *out is the answer's object.  AGAIN: worth another try. */
static weft_err ask(const char *url, weft_json_writer *w, uint64_t end_ms,
                    weft_json **out, weft_why *why)
{
  char *text;
  size_t len;
  weft_jw_end(w);
  weft_err err = weft_jw_take(w, &text, &len);
  weft_jw_fini(w);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "join: out of memory");
  }
  const uint64_t now = now_ms();
  const uint64_t left = end_ms > now ? end_ms - now : 1;
  weft_buf *answer = NULL;
  err = weft_jsonreq(url, text, len, left < TRY_MS ? left : TRY_MS, &answer, why);
  free(text);
  if (err != WEFT_OK) {
    return err == WEFT_E_INVAL || err == WEFT_E_NOMEM || err == WEFT_E_LIMIT
               ? err
               : WEFT_E_AGAIN;
  }
  const weft_json_limits limits = { .depth = JSON_DEPTH, .nodes = JSON_NODES };
  err = weft_json_parse(answer->data, answer->len, &limits, out, NULL);
  weft_buf_unref(answer);
  if (err != WEFT_OK) {
    return weft_whyf(why, WEFT_E_PROTO, "%s did not answer as a weft engine does", url);
  }
  return WEFT_OK;
}

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

static weft_err say_hello(const char *url, const char *token, wefti_join_facts *f,
                          uint64_t end_ms, weft_why *why)
{
  char text[WEFTI_HEX];
  uint8_t theirs[WEFTI_PROOF];
  uint8_t right[WEFTI_PROOF];
  if (!wefti_nonce(f->worker_nonce)) {
    return weft_whyf(why, WEFT_E_SYS, "join: no random numbers");
  }
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_u64(&w, "join", 1);
  wefti_hex(f->worker_nonce, text);
  weft_jw_str(&w, "nonce", text);
  weft_jw_str(&w, "url", f->hello.url);
  weft_jw_u64(&w, "rank", f->hello.rank);
  weft_jw_u64(&w, "world_size", f->hello.world_size);
  weft_jw_u64(&w, "pid", f->hello.pid);
  (void)snprintf(text, sizeof text, "%" PRIu64, f->hello.incarnation);
  weft_jw_str(&w, "incarnation", text);
  weft_json *o = NULL;
  weft_err err = ask(url, &w, end_ms, &o, why);
  if (err != WEFT_OK) {
    return err;
  }
  err = error_in(o, url, why);
  if (err == WEFT_OK &&
      (!wefti_unhex(weft_json_str(weft_json_get(o, "nonce")), f->engine_nonce) ||
       !wefti_unhex(weft_json_str(weft_json_get(o, "proof")), theirs))) {
    (void)weft_whyf(why, WEFT_E_PROTO, "%s: answer without nonce and proof", url);
    err = weft_json_count(o) == 0 ? WEFT_E_AGAIN : WEFT_E_PROTO;
  }
  weft_json_free(o);
  if (err != WEFT_OK) {
    return err;
  }
  if (!wefti_join_proof(token, WEFTI_JOIN_ENGINE, f, right) ||
      !wefti_join_proof_same(theirs, right)) {
    return weft_whyf(why, WEFT_E_DENIED,
                     "%s: the engine's token is not this worker's; check the token files",
                     url);
  }
  return WEFT_OK;
}

static weft_err prove(const char *url, const char *token, const wefti_join_facts *f,
                      uint64_t end_ms, weft_why *why)
{
  char text[WEFTI_HEX];
  uint8_t proof[WEFTI_PROOF];
  if (!wefti_join_proof(token, WEFTI_JOIN_WORKER, f, proof)) {
    return weft_whyf(why, WEFT_E_SYS, "join: HMAC-SHA256 failed");
  }
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  wefti_hex(f->engine_nonce, text);
  weft_jw_str(&w, "prove", text);
  wefti_hex(proof, text);
  weft_jw_str(&w, "proof", text);
  weft_json *o = NULL;
  weft_err err = ask(url, &w, end_ms, &o, why);
  if (err != WEFT_OK) {
    return err;
  }
  err = error_in(o, url, why);
  if (err == WEFT_OK && !weft_json_bool(weft_json_get(o, "ok"), false)) {
    (void)weft_whyf(why, WEFT_E_PROTO, "%s: neither ok nor an error", url);
    err = weft_json_count(o) == 0 ? WEFT_E_AGAIN : WEFT_E_PROTO;
  }
  weft_json_free(o);
  return err;
}

static void pause_ms(uint64_t ms)
{
  const struct timespec t = { .tv_sec = (time_t)(ms / 1000),
                              .tv_nsec = (long)(ms % 1000) * 1000000 };
  (void)nanosleep(&t, NULL);
}

weft_err weft_join_announce(const char *url, const char *token,
                            const weft_join_hello *hello, uint64_t deadline_ms,
                            weft_why *why)
{
  const uint64_t start = now_ms();
  const uint64_t end =
      deadline_ms > UINT64_MAX / 2 ? UINT64_MAX / 2 : start + deadline_ms;
  weft_why last = { .err = WEFT_OK, .text = "not tried" };
  if (memchr(hello->url, '\0', sizeof hello->url) == NULL) {
    return weft_whyf(why, WEFT_E_INVAL, "join: the worker's url has no end");
  }
  for (;;) {
    wefti_join_facts facts = { .hello = *hello };
    weft_err err = say_hello(url, token, &facts, end, &last);
    if (err == WEFT_OK) {
      err = prove(url, token, &facts, end, &last);
    }
    if (err == WEFT_OK) {
      return WEFT_OK;
    }
    if (err != WEFT_E_AGAIN) {
      return weft_whyf(why, err, "%s", last.text);
    }
    const uint64_t now = now_ms();
    if (now >= end) {
      return weft_whyf(why, WEFT_E_TIMEOUT,
                       "rank %" PRIu32 " could not join in %" PRIu64 " ms: %s",
                       hello->rank, deadline_ms, last.text);
    }
    pause_ms(end - now < PAUSE_MS ? end - now : PAUSE_MS);
  }
}
