/* weft/http.h -- an HTTP/1.1 server on a weft loop: connections, limits, deadlines, route
 * table, bodies, JSON error objects, server-sent events.  Not here: actors, and what the
 * routes mean (actors/acceptor.c).  Everything runs on the loop's thread. */
#ifndef WEFT_HTTP_H
#define WEFT_HTTP_H

#include "weft/base.h"
#include "weft/buf.h"
#include "weft/err.h"
#include "weft/loop.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_http weft_http;
typedef uint64_t weft_http_id; /* one request; never used twice by a server; 0 = none */

typedef struct weft_http_route {
  const char *method; /* upper case; HEAD is served by GET routes */
  const char *path;   /* exact match after percent-decoding */
  unsigned flags;     /* WEFT_HTTP_DEV, … */
  int id;             /* the user's */
} weft_http_route;
enum {
  WEFT_HTTP_DEV = 1, /* 404 {"detail":"Not Found"} unless opts.dev */
  WEFT_HTTP_BODY =
      2, /* reads a body (others: a body is read and thrown away, within the limit) */
  WEFT_HTTP_OPEN = 4,  /* needs no token (GET /health …) */
  WEFT_HTTP_STREAM = 8 /* the answer is an event stream (weft_http_stream_*) */
};

typedef struct weft_http_request {
  weft_http_id id;
  uint64_t peer; /* one number per connection, never used twice, never 0 */
  const weft_http_route *route;
  const char *query;    /* raw, after '?'; "" when there is none */
  weft_buf *body;       /* shares: weft_buf_ref to keep; NULL when empty or not read */
  uint64_t received_ms; /* loop time at which the head was complete */
} weft_http_request;

/* Borrows req for the call.  The answer may be given during the call or later. */
typedef void weft_http_request_fn(void *arg, const weft_http_request *req);
/* The connection of peer, of which on_request was called before, is gone; requests of it
 * that were not answered need no answer (answering them is harmless).  A client that
 * closes its sending side while a request is unanswered counts as gone. */
typedef void weft_http_gone_fn(void *arg, uint64_t peer);

typedef struct weft_http_opts {
  size_t size;                   /* sizeof(weft_http_opts) */
  const weft_http_route *routes; /* [route_count], borrowed for the server's life */
  size_t route_count;
  bool dev;
  const char *token; /* Bearer token, or the password of Basic; compared in constant time;
                        NULL = open */
  weft_http_request_fn *on_request;
  weft_http_gone_fn *on_gone; /* may be NULL */
  void *arg;
  /* 0 = the default in brackets */
  size_t head_max;        /* bytes [16 KiB] → 431 */
  uint64_t head_ms;       /* absolute, from the first byte [10 s] → 408 or close */
  size_t body_max;        /* bytes [32 MiB] → 413 */
  uint64_t body_ms;       /* absolute, from the end of the head [60 s] */
  uint64_t idle_ms;       /* between requests [75 s] */
  uint64_t write_ms;      /* without progress while an answer is written [30 s] */
  size_t connections_max; /* [4096]; one more is answered 503 and closed */
  size_t body_memory_max; /* bytes of all bodies being held [256 MiB] → 503 before the
                             body is read */
  size_t pipeline_max;    /* requests of one connection not yet answered [1024]; reading
                             pauses there */
} weft_http_opts;

WEFT_API weft_err weft_http_create(weft_loop *loop, const weft_http_opts *opts,
                                   weft_http **out) WEFT_MUST_USE;
/* address: "HOST:PORT", "[V6]:PORT", ":PORT" is refused, "unix:/path".  Port 0 picks one.
 * May be called several times.  bound (may be NULL) gets "HOST:PORT" as bound. A host
 * name may be looked up: call it before the loop runs.  Unix sockets get mode 0600; a
 * socket file that nobody answers on is replaced, and ours is removed by destroy.
 * Errors: INVAL, EXISTS (unix: in use, or not a socket), LIMIT, SYS, NOMEM, with why. */
WEFT_API weft_err weft_http_listen(weft_http *server, const char *address, char *bound,
                                   size_t bound_cap, weft_why *why) WEFT_MUST_USE;
/* Is it written as listen wants it?  Resolves nothing.  Errors: INVAL with why. */
WEFT_API weft_err weft_http_address_check(const char *address, weft_why *why)
    WEFT_MUST_USE;
/* Every address that a numeric or resolved host may bind: true only if all are loopback
 * (or it is a unix socket). */
WEFT_API bool weft_http_is_loopback(const char *address);
/* Stops accepting; idle connections close at once, busy ones when their answers are out.
 */
WEFT_API void weft_http_drain(weft_http *server);
WEFT_API size_t weft_http_connections(const weft_http *server);
/* Closes everything; no callback comes afterwards.  Also inside a callback.  NULL is a
 * no-op. */
WEFT_API void weft_http_destroy(weft_http *server);

/* ---- answers.  An id that is gone or answered is ignored. */
typedef struct weft_http_header {
  const char *name, *value; /* CR, LF and NUL in a value: the header is left out */
} weft_http_header;
typedef struct weft_http_reply {
  int status;
  const char *content_type;        /* NULL: application/json when there is a body */
  const weft_http_header *headers; /* [header_count] */
  size_t header_count;
  const void *body; /* copied */
  size_t body_len;
} weft_http_reply;
WEFT_API void weft_http_respond(weft_http *server, weft_http_id id,
                                const weft_http_reply *reply);

/* Server-sent events on a WEFT_HTTP_STREAM route: begin answers 200 text/event-stream;
 * each send is one event; false when the stream is gone or has more than 1 MiB unsent
 * (then it is closed: a slow reader must come back and resync). */
WEFT_API void weft_http_stream_begin(weft_http *server, weft_http_id id);
WEFT_API bool weft_http_stream_send(weft_http *server, weft_http_id id, const char *event,
                                    const char *data, size_t len);
WEFT_API void weft_http_stream_end(weft_http *server, weft_http_id id);

/* ---- helpers for handlers */
/* Value of key in a raw query, percent- and plus-decoded into out (NUL-terminated).
 * Errors: NOTFOUND, LIMIT (cap), PROTO (bad escape, NUL). The last of equal keys counts.
 */
WEFT_API weft_err weft_http_query(const char *query, const char *key, char *out,
                                  size_t cap) WEFT_MUST_USE;
/* Request header of the request being handled (only during on_request): value or NULL. */
WEFT_API const char *weft_http_request_header(const weft_http_request *req,
                                              const char *name);
/* HTTP phrase, e.g. 404 → "Not Found"; never NULL. */
WEFT_API const char *weft_http_phrase(int status);

typedef struct weft_http_stats {
  uint64_t accepted, requests,
      refused; /* refused: answered by the server itself with 4xx/5xx */
  uint64_t body_bytes_held;
} weft_http_stats;
WEFT_API void weft_http_stats_get(const weft_http *server, weft_http_stats *out);

WEFT_END_DECLS

#endif /* WEFT_HTTP_H */
