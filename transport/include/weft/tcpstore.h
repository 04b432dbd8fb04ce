/* weft/tcpstore.h -- torch's TCPStore: the key-value store through which a trainer and
 * its peers find each other.  A client and a server, both on a loop, neither ever blocks
 * it. Not here: what the keys and values mean, and torch's own key prefixes ("/" + key):
 * keys are those of the wire.  The protocol has no authentication: bind narrowly, close
 * early. */
#ifndef WEFT_TCPSTORE_H
#define WEFT_TCPSTORE_H

#include "weft/base.h"
#include "weft/err.h"
#include "weft/loop.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

enum {
  WEFT_TCPSTORE_KEY_MAX = 8 << 10,   /* bytes; also of a host name: 255 */
  WEFT_TCPSTORE_VALUE_MAX = 8 << 20, /* bytes */
  WEFT_TCPSTORE_CANDIDATES_MAX = 16, /* keys of one get */
  WEFT_TCPSTORE_TIMEOUT_MS = 300000  /* torch's default */
};
#define WEFT_TCPSTORE_INIT_KEY "init/" /* each client adds 1 when it joins */

/* ---- client.  Everything on the loop's thread, one thing at a time. */

typedef struct weft_tcpstore weft_tcpstore;

/* What became of a question.  Pointers are borrowed for the call. */
typedef struct weft_tcpstore_answer {
  weft_err err;
  const char *text;     /* the error's story; "" on success */
  const uint8_t *value; /* get */
  size_t len;           /* bytes of value */
  unsigned which;       /* get: index of the key that was found */
  int64_t number;       /* add: the new value; remove: keys removed; open: members */
} weft_tcpstore_answer;

/* Called once for each question, never from inside the function that asked.  May ask the
 * next one, cancel and destroy. */
typedef void weft_tcpstore_fn(void *arg, const weft_tcpstore_answer *answer);

typedef struct weft_tcpstore_opts {
  size_t size;         /* sizeof(weft_tcpstore_opts) */
  const char *host;    /* name or address, with or without []; borrows for the call */
  uint16_t port;       /* not 0 */
  uint64_t timeout_ms; /* until connected and joined, in all; 0 = torch's default */
  bool join;           /* add 1 to "init/": the master waits for that */
  size_t value_max;    /* longest value that get takes; 0 = WEFT_TCPSTORE_VALUE_MAX */
} weft_tcpstore_opts;

/* Starts to connect, and tries again until timeout_ms: a trainer often listens later than
 * it calls.  Names are resolved on a helper thread.  fn reports once: connected (and
 * joined), or the error: TIMEOUT, PROTO (somebody else listens there), DOWN (lost while
 * joining: not tried again, joining twice would count twice).
 *
 * *out is written only on WEFT_OK; the caller owns it.  Errors: INVAL (no host,
 * "0.0.0.0",
 * "::", port 0), NOMEM, SYS. */
WEFT_API weft_err weft_tcpstore_open(weft_loop *loop, const weft_tcpstore_opts *opts,
                                     weft_tcpstore_fn *fn, void *arg, weft_tcpstore **out,
                                     weft_why *why)
    WEFT_MUST_USE WEFT_NONNULL(1, 2, 3, 5);

/* Questions.  Borrow for the call.  timeout_ms: 0 = torch's default; when it passes fn
 * gets TIMEOUT and the connection is cleared for the next question behind the scenes.
 * Other errors that fn gets: DOWN, PROTO, LIMIT (value), all the connection's end.
 * Errors here: STATE (open has not reported, or a question is under way), DOWN (the
 * connection has ended), INVAL, LIMIT (key, value), NOMEM; fn is not called then. */

/* Waits until a key exists, and gets it.  One key: the server wakes us.  Several: they
 * are looked for in turn every 50 ms, the first that is found wins. */
WEFT_API weft_err weft_tcpstore_get(weft_tcpstore *store, const char *const *keys,
                                    size_t count, uint64_t timeout_ms,
                                    weft_tcpstore_fn *fn, void *arg)
    WEFT_MUST_USE WEFT_NONNULL(1, 2, 5);
/* Done when the kernel has all of it: the protocol has no reply to a set. */
WEFT_API weft_err weft_tcpstore_set(weft_tcpstore *store, const char *key,
                                    const void *value, size_t len, uint64_t timeout_ms,
                                    weft_tcpstore_fn *fn, void *arg)
    WEFT_MUST_USE WEFT_NONNULL(1, 2, 6);
WEFT_API weft_err weft_tcpstore_add(weft_tcpstore *store, const char *key, int64_t delta,
                                    uint64_t timeout_ms, weft_tcpstore_fn *fn, void *arg)
    WEFT_MUST_USE WEFT_NONNULL(1, 2, 5);
WEFT_API weft_err weft_tcpstore_remove(weft_tcpstore *store, const char *key,
                                       uint64_t timeout_ms, weft_tcpstore_fn *fn,
                                       void *arg) WEFT_MUST_USE WEFT_NONNULL(1, 2, 4);

/* Gives up the question under way (not open): its fn will not be called, and the next one
 * may be asked at once.  No-op without one. */
WEFT_API void weft_tcpstore_cancel(weft_tcpstore *store) WEFT_NONNULL(1);
/* Why the connection has ended ("" while it has not): the story behind a DOWN of a
 * question that could not be asked.  Valid until destroy. */
WEFT_API const char *weft_tcpstore_text(const weft_tcpstore *store) WEFT_NONNULL(1);
/* Closes the connection; no fn is called any more.  Also inside fn.  NULL is a no-op. */
WEFT_API void weft_tcpstore_destroy(weft_tcpstore *store);

/* ---- server: the master's side, for those who are rank 0.  On the loop's thread, or
 * before the loop runs. */

typedef struct weft_tcpstore_server weft_tcpstore_server;

/* A key was set, added to or appended to, by a client or the host.  Must not destroy the
 * server.  key is not NUL-terminated. */
typedef void weft_tcpstore_changed_fn(void *arg, const char *key, size_t len);

typedef struct weft_tcpstore_server_opts {
  size_t size;           /* sizeof(weft_tcpstore_server_opts) */
  const char *host;      /* numeric address to bind; NULL = 127.0.0.1; "::" is both */
  uint16_t port;         /* 0 = any that is free */
  unsigned conns_max;    /* 0 = 1,024; more are closed at once */
  size_t keys_max;       /* 0 = 131,072 */
  size_t bytes_max;      /* keys, values, buffers; 0 = 256 MiB; over it: closed */
  uint64_t handshake_ms; /* a connection that has not said hello by then; 0 = 10,000 */
  weft_tcpstore_changed_fn *changed; /* may be NULL */
  void *changed_arg;
} weft_tcpstore_server_opts;

/* Answers every request that torch knows (opcodes 0 to 18), closes on any other.
 * Errors: INVAL, NOMEM, SYS (socket, bind). */
WEFT_API weft_err weft_tcpstore_server_create(weft_loop *loop,
                                              const weft_tcpstore_server_opts *opts,
                                              weft_tcpstore_server **out, weft_why *why)
    WEFT_MUST_USE WEFT_NONNULL(1, 2, 3);
WEFT_API uint16_t weft_tcpstore_server_port(const weft_tcpstore_server *server)
    WEFT_NONNULL(1);
/* Closes the port and every connection.  NULL is a no-op. */
WEFT_API void weft_tcpstore_server_destroy(weft_tcpstore_server *server);

/* The host's own hand in the store, as a client's would be. */
WEFT_API weft_err weft_tcpstore_server_set(weft_tcpstore_server *server, const char *key,
                                           const void *value, size_t len)
    WEFT_MUST_USE WEFT_NONNULL(1, 2);
/* Errors: PROTO (the key holds no number), OVERFLOW, LIMIT, NOMEM. */
WEFT_API weft_err weft_tcpstore_server_add(weft_tcpstore_server *server, const char *key,
                                           int64_t delta, int64_t *out)
    WEFT_MUST_USE WEFT_NONNULL(1, 2, 4);
/* false: there is no such key.  *value is borrowed until the store changes. */
WEFT_API bool weft_tcpstore_server_get(const weft_tcpstore_server *server,
                                       const char *key, const uint8_t **value,
                                       size_t *len) WEFT_NONNULL(1, 2, 3, 4);

WEFT_END_DECLS

#endif /* WEFT_TCPSTORE_H */
