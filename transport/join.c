#include "weft/join.h"

#include "join_proof.h"
#include "nng_util.h"
#include "weft/json.h"
#include "weft/pubsub.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The conversation, each line a request and its answer on the join socket:
 *   {"join":1,"nonce":W,"url","rank","world_size","pid","incarnation":"decimal"}
 *     -> {"nonce":E,"proof":HMAC by the engine}
 *   {"prove":E,"proof":HMAC by the worker}
 *     -> {"ok":true}
 * or, for either, {"error":number of a weft_err,"text":...}.  W and E are hex of 32
 * random bytes; E also names the handshake, which is over with the first proof, right or
 * wrong. */

enum {
  HALF_OPEN_MAX = 64,
  HANDSHAKE_MS = 5000,
  CONTEXTS = 8,
  JSON_DEPTH = 4,
  JSON_NODES = 32
};

typedef struct handshake {
  bool used;
  uint64_t due_ms;
  wefti_join_facts facts;
} handshake;

struct weft_join_server {
  weft_loop *loop;
  weft_jsonrep *rep;
  weft_join_fn *on_join;
  void *arg;
  char *token; /* NULL or "": none */
  bool *gone;  /* see finish */
  handshake half_open[HALF_OPEN_MAX];
};

static void answer(weft_join_server *s, uint64_t id, weft_json_writer *w)
{
  char *text;
  size_t len;
  weft_jw_end(w);
  if (weft_jw_take(w, &text, &len) == WEFT_OK) {
    weft_jsonrep_answer(s->rep, id, text, len);
    free(text);
  } else {
    weft_jsonrep_answer(s->rep, id, "{}", 2); /* no memory: the worker tries again */
  }
  weft_jw_fini(w);
}

static void refuse(weft_join_server *s, uint64_t id, weft_err err, const char *text)
{
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_u64(&w, "error", (uint64_t)err);
  weft_jw_str(&w, "text", text);
  answer(s, id, &w);
}

static bool get_u32(const weft_json *o, const char *key, uint32_t *out)
{
  int64_t v;
  if (!weft_json_i64(weft_json_get(o, key), &v) || v < 0 || v > UINT32_MAX) {
    return false;
  }
  *out = (uint32_t)v;
  return true;
}

/* Decimal text: JSON numbers of other readers stop at 2^53. */
static bool get_u64_text(const weft_json *o, const char *key, uint64_t *out)
{
  const char *s = weft_json_str(weft_json_get(o, key));
  uint64_t v = 0;
  if (s == NULL || s[0] == '\0') {
    return false;
  }
  for (; *s != '\0'; s++) {
    if (*s < '0' || *s > '9' || __builtin_mul_overflow(v, 10u, &v) ||
        __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v)) {
      return false;
    }
  }
  *out = v;
  return true;
}

static bool read_hello(const weft_json *o, wefti_join_facts *f)
{
  const char *url = weft_json_str(weft_json_get(o, "url"));
  if (url == NULL || wefti_url_scheme(url) == NULL ||
      strlen(url) >= sizeof f->hello.url) {
    return false;
  }
  (void)snprintf(f->hello.url, sizeof f->hello.url, "%s", url);
  return wefti_unhex(weft_json_str(weft_json_get(o, "nonce")), f->worker_nonce) &&
         get_u32(o, "rank", &f->hello.rank) &&
         get_u32(o, "world_size", &f->hello.world_size) &&
         get_u32(o, "pid", &f->hello.pid) &&
         get_u64_text(o, "incarnation", &f->hello.incarnation);
}

/* A free place, else one that is overdue, else the oldest: a flood of hellos then costs
 * time, and never keeps a worker out for good. */
static handshake *place(weft_join_server *s)
{
  handshake *oldest = &s->half_open[0];
  const uint64_t now = weft_loop_now_ms(s->loop);
  for (size_t i = 0; i < HALF_OPEN_MAX; i++) {
    handshake *h = &s->half_open[i];
    if (!h->used || h->due_ms <= now) {
      return h;
    }
    oldest = h->due_ms < oldest->due_ms ? h : oldest;
  }
  return oldest;
}

static void on_hello(weft_join_server *s, uint64_t id, const weft_json *o)
{
  handshake h = { .used = true, .due_ms = weft_loop_now_ms(s->loop) + HANDSHAKE_MS };
  uint8_t proof[WEFTI_PROOF];
  if (!read_hello(o, &h.facts)) {
    refuse(s, id, WEFT_E_PROTO, "hello lacks a field or has a bad one");
    return;
  }
  if (!wefti_nonce(h.facts.engine_nonce) ||
      !wefti_join_proof(s->token, WEFTI_JOIN_ENGINE, &h.facts, proof)) {
    refuse(s, id, WEFT_E_UNAVAIL, "the engine has no random numbers, try again");
    return;
  }
  *place(s) = h;
  char hex[WEFTI_HEX];
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  wefti_hex(h.facts.engine_nonce, hex);
  weft_jw_str(&w, "nonce", hex);
  wefti_hex(proof, hex);
  weft_jw_str(&w, "proof", hex);
  answer(s, id, &w);
}

static void finish(weft_join_server *s, uint64_t id, const weft_join_hello *hello)
{
  weft_why why = { .err = WEFT_OK, .text = "" };
  bool gone = false;
  s->gone = &gone;
  const weft_err err = s->on_join(s->arg, hello, &why);
  if (gone) {
    return;
  }
  s->gone = NULL;
  if (err != WEFT_OK) {
    refuse(s, id, err, why.text[0] != '\0' ? why.text : weft_strerror(err));
    return;
  }
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_bool(&w, "ok", true);
  answer(s, id, &w);
}

static void on_proof(weft_join_server *s, uint64_t id, const weft_json *o)
{
  uint8_t nonce[WEFTI_NONCE];
  uint8_t theirs[WEFTI_PROOF];
  uint8_t right[WEFTI_PROOF];
  if (!wefti_unhex(weft_json_str(weft_json_get(o, "prove")), nonce) ||
      !wefti_unhex(weft_json_str(weft_json_get(o, "proof")), theirs)) {
    refuse(s, id, WEFT_E_PROTO, "proof lacks a field or has a bad one");
    return;
  }
  for (size_t i = 0; i < HALF_OPEN_MAX; i++) {
    handshake h = s->half_open[i];
    if (!h.used || memcmp(h.facts.engine_nonce, nonce, WEFTI_NONCE) != 0) {
      continue;
    }
    s->half_open[i].used = false; /* one try each, so a replay finds nothing */
    if (h.due_ms <= weft_loop_now_ms(s->loop)) {
      break;
    }
    if (!wefti_join_proof(s->token, WEFTI_JOIN_WORKER, &h.facts, right) ||
        !wefti_join_proof_same(theirs, right)) {
      refuse(s, id, WEFT_E_DENIED, "the worker's token is not the engine's");
      return;
    }
    finish(s, id, &h.facts.hello);
    return;
  }
  refuse(s, id, WEFT_E_UNAVAIL, "no such handshake, or it took too long: start again");
}

static void on_request(void *arg, uint64_t id, weft_buf *request)
{
  weft_join_server *s = arg;
  const weft_json_limits limits = { .depth = JSON_DEPTH, .nodes = JSON_NODES };
  weft_json *o;
  if (weft_json_parse(request->data, request->len, &limits, &o, NULL) != WEFT_OK) {
    refuse(s, id, WEFT_E_PROTO, "not a JSON object of this conversation");
    return;
  }
  int64_t version;
  if (weft_json_get(o, "prove") != NULL) {
    on_proof(s, id, o);
  } else if (weft_json_i64(weft_json_get(o, "join"), &version) && version == 1) {
    on_hello(s, id, o);
  } else {
    refuse(s, id, WEFT_E_UNSUPPORTED, "this engine speaks join version 1");
  }
  weft_json_free(o);
}

/* NOLINTNEXTLINE(readability-function-size): the interface has nine parameters */
weft_err weft_join_listen(weft_loop *loop, const char *url, const char *token,
                          weft_join_fn *on_join, void *arg, char *url_out, size_t url_cap,
                          weft_join_server **out, weft_why *why)
{
  const char *scheme = wefti_url_scheme(url);
  const bool has_token = token != NULL && token[0] != '\0';
  if (!has_token && (scheme == NULL || strcmp(scheme, "ipc") != 0)) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "joining at %s needs a token (only ipc:// does without)",
                     url == NULL ? "" : url);
  }
  weft_join_server *s = calloc(1, sizeof *s);
  if (s == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s: out of memory", url);
  }
  s->loop = loop;
  s->on_join = on_join;
  s->arg = arg;
  weft_err err = WEFT_OK;
  if (has_token) {
    s->token = strdup(token);
    err = s->token == NULL ? weft_whyf(why, WEFT_E_NOMEM, "%s: out of memory", url) : err;
  }
  if (err == WEFT_OK) {
    err = weft_jsonrep_create(loop, url, CONTEXTS, on_request, s, url_out, url_cap,
                              &s->rep, why);
  }
  if (err != WEFT_OK) {
    weft_join_close(s);
    return err;
  }
  *out = s;
  return WEFT_OK;
}

void weft_join_close(weft_join_server *server)
{
  if (server == NULL) {
    return;
  }
  if (server->gone != NULL) {
    *server->gone = true;
  }
  weft_jsonrep_destroy(server->rep);
  free(server->token);
  free(server);
}
