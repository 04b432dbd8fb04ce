/* handshake.h -- two ends prove to each other that they know one token without sending
 * it, and one tells the other some facts: the conversation under joining and inviting.
 * Not the facts (join.c, door.c). */
#ifndef WEFT_TRANSPORT_HANDSHAKE_H
#define WEFT_TRANSPORT_HANDSHAKE_H

#include "proof.h"
#include "weft/err.h"
#include "weft/json.h"
#include "weft/loop.h"

#include <stddef.h>

/* The guest speaks first.  Each line is a request and its answer:
 *   {verb:1,"nonce":G,facts...}         -> {"nonce":H,"proof":HMAC by the host}
 *   {"prove":H,"proof":HMAC by the guest} -> {"ok":true}
 * or, for either, {"error":number of a weft_err,"text":...}.  G and H are hex of 32
 * random bytes; H also names the handshake, which is over with the first proof, right or
 * wrong: what was overheard is of no use a second time. */

enum {
  WEFTI_FACTS_MAX = 512,         /* bytes of a facts structure */
  WEFTI_HANDSHAKE_MS = 5000,     /* the host waits so long for the second request, … */
  WEFTI_HANDSHAKE_TRY_MS = 2000, /* … which comes after one answer, of at most so long */
  WEFTI_HANDSHAKE_DEPTH = 4,     /* of a line's JSON */
  WEFTI_HANDSHAKE_NODES = 32
};
_Static_assert(WEFTI_HANDSHAKE_TRY_MS < WEFTI_HANDSHAKE_MS,
               "no host lets go of who asks in time");

typedef struct wefti_handshake_kind {
  const char *verb;         /* "join" */
  const char *guest, *host; /* in messages, and so that no proof serves for the other */
  bool (*read)(const weft_json *hello, void *facts); /* false: lacking, or bad */
  void (*write)(weft_json_writer *w, const void *facts);
  void (*pack)(wefti_packed *p, const void *facts);
} wefti_handshake_kind;

/* Facts that the guest has proved.  OK, or the error and text that it is told. */
typedef weft_err wefti_guest_fn(void *arg, const void *facts, weft_why *why);

/* ---- the host */
typedef struct wefti_host wefti_host;
/* token: NULL or "" = none.  NULL: out of memory. */
wefti_host *wefti_host_create(const wefti_handshake_kind *kind, const char *token,
                              wefti_guest_fn *on_guest, void *arg);
void wefti_host_destroy(wefti_host *host); /* also from on_guest; NULL is a no-op */
/* Writes the answer to one request; now_ms: any clock that goes forward.  false: host was
 * destroyed meanwhile, nothing is written. */
bool wefti_host_hear(wefti_host *host, uint64_t now_ms, const void *request, size_t len,
                     weft_json_writer *answer);

/* The same behind a socket, on loop.  token NULL or "" is allowed on ipc:// only. */
typedef struct wefti_hall {
  weft_loop *loop;
  struct weft_jsonrep *rep;
  wefti_host *host;
} wefti_hall;
typedef struct wefti_hall_opts {
  weft_loop *loop;
  const char *url, *token;
  char *url_out; /* [url_cap], as bound */
  size_t url_cap;
  wefti_guest_fn *on_guest;
  void *arg;
} wefti_hall_opts;
weft_err wefti_hall_open(wefti_hall *hall, const wefti_handshake_kind *kind,
                         const wefti_hall_opts *opts, weft_why *why);
void wefti_hall_close(wefti_hall *hall); /* of one that did not open, too */

/* ---- the guest: one try, blocking until end_ms of weft_clock_ms at most.  AGAIN:
 * nobody answered, or could not now; DENIED: the tokens differ; or what on_guest said. */
weft_err wefti_guest_call(const wefti_handshake_kind *kind, const char *url,
                          const char *token, const void *facts, uint64_t end_ms,
                          weft_why *why);

/* ---- both: the proof of who (guest or host of kind), the nonces and the facts */
typedef struct wefti_nonces {
  uint8_t guest[WEFTI_NONCE], host[WEFTI_NONCE];
} wefti_nonces;
bool wefti_handshake_prove(const wefti_handshake_kind *kind, const char *who,
                           const char *token, const wefti_nonces *nonces,
                           const void *facts, uint8_t out[WEFTI_PROOF]);

/* ---- reading facts */
bool wefti_read_u32(const weft_json *o, const char *key, uint32_t *out);
/* Decimal text: JSON numbers of other readers stop at 2^53. */
bool wefti_read_u64(const weft_json *o, const char *key, uint64_t *out);
void wefti_write_u64(weft_json_writer *w, const char *key, uint64_t v); /* likewise */
/* A string that fits out[cap] with its NUL. */
bool wefti_read_str(const weft_json *o, const char *key, char *out, size_t cap);

#endif /* WEFT_TRANSPORT_HANDSHAKE_H */
