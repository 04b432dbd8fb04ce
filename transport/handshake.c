#include "handshake.h"

#include "nng_util.h"
#include "weft/pubsub.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { HALF_OPEN_MAX = 64, CONTEXTS = 8 };

typedef struct half_open {
  bool used;
  uint64_t due_ms;
  wefti_nonces nonces;
  union {
    max_align_t align;
    uint8_t bytes[WEFTI_FACTS_MAX];
  } facts;
} half_open;

struct wefti_host {
  const wefti_handshake_kind *kind;
  wefti_guest_fn *on_guest;
  void *arg;
  char *token; /* NULL or "": none */
  bool *gone;  /* see meet */
  half_open places[HALF_OPEN_MAX];
};

/* ---- the host */

wefti_host *wefti_host_create(const wefti_handshake_kind *kind, const char *token,
                              wefti_guest_fn *on_guest, void *arg)
{
  wefti_host *h = calloc(1, sizeof *h);
  if (h == NULL) {
    return NULL;
  }
  h->kind = kind;
  h->on_guest = on_guest;
  h->arg = arg;
  if (token != NULL && token[0] != '\0') {
    h->token = strdup(token);
    if (h->token == NULL) {
      free(h);
      return NULL;
    }
  }
  return h;
}

void wefti_host_destroy(wefti_host *host)
{
  if (host == NULL) {
    return;
  }
  if (host->gone != NULL) {
    *host->gone = true;
  }
  free(host->token);
  free(host);
}

static void refuse(weft_json_writer *w, weft_err err, const char *text)
{
  weft_jw_u64(w, "error", (uint64_t)err);
  weft_jw_str(w, "text", text);
}

/* A free place, else one that is overdue, else the oldest: a flood of hellos then costs
 * time, and never keeps a guest out for good. */
static half_open *place(wefti_host *host, uint64_t now_ms)
{
  half_open *oldest = &host->places[0];
  for (size_t i = 0; i < HALF_OPEN_MAX; i++) {
    half_open *h = &host->places[i];
    if (!h->used || h->due_ms <= now_ms) {
      return h;
    }
    oldest = h->due_ms < oldest->due_ms ? h : oldest;
  }
  return oldest;
}

static void on_hello(wefti_host *host, uint64_t now_ms, const weft_json *o,
                     weft_json_writer *w)
{
  const wefti_handshake_kind *kind = host->kind;
  half_open h = { .used = true, .due_ms = now_ms + WEFTI_HANDSHAKE_MS };
  uint8_t proof[WEFTI_PROOF];
  if (!wefti_unhex(weft_json_str(weft_json_get(o, "nonce")), h.nonces.guest) ||
      !kind->read(o, h.facts.bytes)) {
    refuse(w, WEFT_E_PROTO,
           "hello lacks a field or has a bad one: is it of another version of weft?");
    return;
  }
  if (!wefti_nonce(h.nonces.host) ||
      !wefti_handshake_prove(kind, kind->host, host->token, &h.nonces, h.facts.bytes,
                             proof)) {
    weft_why why;
    (void)weft_whyf(&why, WEFT_E_UNAVAIL, "the %s has no random numbers, try again",
                    kind->host);
    refuse(w, why.err, why.text);
    return;
  }
  *place(host, now_ms) = h;
  char hex[WEFTI_HEX];
  wefti_hex(h.nonces.host, hex);
  weft_jw_str(w, "nonce", hex);
  wefti_hex(proof, hex);
  weft_jw_str(w, "proof", hex);
}

/* false: the host is gone. */
static bool meet(wefti_host *host, const half_open *h, weft_json_writer *w)
{
  weft_why why = { .err = WEFT_OK, .text = "" };
  bool gone = false;
  host->gone = &gone;
  const weft_err err = host->on_guest(host->arg, h->facts.bytes, &why);
  if (gone) {
    return false;
  }
  host->gone = NULL;
  if (err != WEFT_OK) {
    refuse(w, err, why.text[0] != '\0' ? why.text : weft_strerror(err));
  } else {
    weft_jw_bool(w, "ok", true);
  }
  return true;
}

static bool on_proof(wefti_host *host, uint64_t now_ms, const weft_json *o,
                     weft_json_writer *w)
{
  const wefti_handshake_kind *kind = host->kind;
  uint8_t nonce[WEFTI_NONCE];
  uint8_t theirs[WEFTI_PROOF];
  uint8_t right[WEFTI_PROOF];
  if (!wefti_unhex(weft_json_str(weft_json_get(o, "prove")), nonce) ||
      !wefti_unhex(weft_json_str(weft_json_get(o, "proof")), theirs)) {
    refuse(w, WEFT_E_PROTO, "proof lacks a field or has a bad one");
    return true;
  }
  for (size_t i = 0; i < HALF_OPEN_MAX; i++) {
    const half_open h = host->places[i];
    if (!h.used || memcmp(h.nonces.host, nonce, WEFTI_NONCE) != 0) {
      continue;
    }
    host->places[i].used = false; /* one try each, so a replay finds nothing */
    if (h.due_ms <= now_ms) {
      break;
    }
    if (!wefti_handshake_prove(kind, kind->guest, host->token, &h.nonces, h.facts.bytes,
                               right) ||
        !wefti_proof_same(theirs, right)) {
      weft_why why;
      (void)weft_whyf(&why, WEFT_E_DENIED, "the %s's token is not the %s's", kind->guest,
                      kind->host);
      refuse(w, why.err, why.text);
      return true;
    }
    return meet(host, &h, w);
  }
  refuse(w, WEFT_E_UNAVAIL, "no such handshake, or it took too long: start again");
  return true;
}

bool wefti_host_hear(wefti_host *host, uint64_t now_ms, const void *request, size_t len,
                     weft_json_writer *answer)
{
  const weft_json_limits limits = { .depth = WEFTI_HANDSHAKE_DEPTH,
                                    .nodes = WEFTI_HANDSHAKE_NODES };
  weft_json *o;
  bool there = true;
  int64_t version;
  weft_jw_object(answer, NULL);
  if (weft_json_parse(request, len, &limits, &o, NULL) != WEFT_OK) {
    refuse(answer, WEFT_E_PROTO, "not a JSON object of this conversation");
    weft_jw_end(answer);
    return true;
  }
  if (weft_json_get(o, "prove") != NULL) {
    there = on_proof(host, now_ms, o, answer);
  } else if (weft_json_i64(weft_json_get(o, host->kind->verb), &version) &&
             version == 1) {
    on_hello(host, now_ms, o, answer);
  } else {
    weft_why why;
    (void)weft_whyf(&why, WEFT_E_UNSUPPORTED, "this %s speaks %s version 1",
                    host->kind->host, host->kind->verb);
    refuse(answer, why.err, why.text);
  }
  weft_json_free(o);
  weft_jw_end(answer);
  return there;
}

static void on_request(void *arg, uint64_t id, weft_buf *request)
{
  wefti_hall *hall = arg;
  weft_json_writer w;
  char *text;
  size_t len;
  weft_jw_init(&w);
  if (wefti_host_hear(hall->host, weft_loop_now_ms(hall->loop), request->data,
                      request->len, &w)) {
    if (weft_jw_take(&w, &text, &len) == WEFT_OK) {
      weft_jsonrep_answer(hall->rep, id, text, len);
      free(text);
    } else {
      weft_jsonrep_answer(hall->rep, id, "{}", 2); /* no memory: it tries again */
    }
  }
  weft_jw_fini(&w);
}

weft_err wefti_hall_open(wefti_hall *hall, const wefti_handshake_kind *kind,
                         const wefti_hall_opts *opts, weft_why *why)
{
  const char *scheme = wefti_url_scheme(opts->url);
  const bool has_token = opts->token != NULL && opts->token[0] != '\0';
  if (!has_token && (scheme == NULL || strcmp(scheme, "ipc") != 0)) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "to %s at %s needs a token (only ipc:// does without)", kind->verb,
                     opts->url == NULL ? "" : opts->url);
  }
  hall->loop = opts->loop;
  hall->host = wefti_host_create(kind, opts->token, opts->on_guest, opts->arg);
  if (hall->host == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s: out of memory", opts->url);
  }
  return weft_jsonrep_create(opts->loop, opts->url, CONTEXTS, on_request, hall,
                             opts->url_out, opts->url_cap, &hall->rep, why);
}

void wefti_hall_close(wefti_hall *hall)
{
  weft_jsonrep_destroy(hall->rep);
  wefti_host_destroy(hall->host);
  hall->rep = NULL;
  hall->host = NULL;
}
