/* nng_util.h -- what every nng socket of this folder goes through: limits, private ipc
 * addresses, error codes, and the queue that carries completions to a loop.  Not the
 * sockets themselves. */
#ifndef WEFT_TRANSPORT_NNG_UTIL_H
#define WEFT_TRANSPORT_NNG_UTIL_H

#include "weft/err.h"

#include <nng/nng.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  WEFTI_SLACK = 64,             /* bytes of protocol headers on top of a frame limit */
  WEFTI_RECONNECT_MIN_MS = 20,  /* first pause between attempts to connect */
  WEFTI_RECONNECT_MAX_MS = 200, /* longest */
  WEFTI_PROBE_MS = 200          /* patience with what answers on an ipc address */
};

/* nng's code as ours.  Never NNG's text: its buffer for unknown codes is shared. */
weft_err wefti_nng_err(int rv);
const char *wefti_nng_text(int rv); /* static, never NULL */

/* "ipc", "tcp" or "inproc" of url, NULL for anything else. */
const char *wefti_url_scheme(const char *url);

/* Limits what peers may send (bytes of payload) and how dialing is repeated. */
weft_err wefti_sock_limits(nng_socket sock, size_t recv_max) WEFT_MUST_USE;

/* All zero: listens nowhere. */
typedef struct wefti_bound {
  nng_listener nng;
  struct wefti_gate *gate; /* before it, unless inproc: see listen_gate.h */
  struct weft_rundir *dir; /* of nng's own socket, when the gate's is tcp */
  unsigned stall_ms;       /* the caller's: see listen_gate.h */
} wefti_bound;

/* Listens on url and writes the address as bound (tcp port 0 filled in) to url_out[cap],
 * which may be NULL.  An ipc path must lie in a directory of mode 0700 that is ours; a
 * stale socket there is removed, a living one or anything else is left alone: EXISTS.
 * nng itself then listens on that path with a ~ and a random number after it; for tcp, on
 * one in a run directory of its own.  Of bound only stall_ms is read.
 * Errors: INVAL (address), DENIED (directory), EXISTS, LIMIT (url_out), SYS, NOMEM. */
weft_err wefti_listen(nng_socket sock, const char *url, char *url_out, size_t cap,
                      wefti_bound *bound, weft_why *why) WEFT_MUST_USE;
/* Closes the connections too: what nng has written is passed on as far as that goes
 * without waiting, then peers hear nothing more, and the address is free when this
 * returns. Then, on another thread: closes sock and calls after(arg) (may be NULL).  As
 * wefti_close of one that listens nowhere. */
void wefti_unlisten(wefti_bound *bound, nng_socket sock, void (*after)(void *arg),
                    void *arg);

/* Closes sock on a thread of its own, then calls after(arg) there (may be NULL):
 * nng_close waits for other threads.  Nothing that nng still calls may be freed before
 * after.  A socket that was dialed is closed by wefti_hang_up (dial_gate.h), one that
 * listens by wefti_unlisten. */
void wefti_close(nng_socket sock, void (*after)(void *arg), void *arg);

/* fn(arg) on a thread that takes no signals and that nobody joins.  false: none to be
 * had. */
bool wefti_detach(void *(*fn)(void *arg), void *arg);

/* What nng's pipe callbacks go through to an owner that may be gone before them.  The
 * lock is a leaf: held only while fn wakes the owner, and to let go. */
typedef struct wefti_guard {
  pthread_mutex_t lock;
  void (*fn)(void *arg);
  void *arg; /* of fn; NULL fn: the owner is gone */
} wefti_guard;
bool wefti_guard_init(wefti_guard *g, void (*fn)(void *arg), void *arg);
void wefti_guard_call(wefti_guard *g);  /* any thread */
void wefti_guard_clear(wefti_guard *g); /* fn does not run after this */
void wefti_guard_fini(wefti_guard *g);

/* A message with a copy of data[len]; NULL = out of memory. */
nng_msg *wefti_nng_msg(const void *data, size_t len);

/* ---- completions: any thread pushes, the owner takes all of them. */
typedef struct wefti_node {
  struct wefti_node *next;
} wefti_node;
typedef struct wefti_queue {
  /* Newest first.  Push releases what was stored before it, take acquires it. */
  _Atomic(wefti_node *) head;
} wefti_queue;
/* true: it was empty, so the owner must be woken.  A node is in one queue at most. */
bool wefti_queue_push(wefti_queue *q, wefti_node *node);
wefti_node *wefti_queue_take(wefti_queue *q); /* oldest first, NULL = nothing */

#endif /* WEFT_TRANSPORT_NNG_UTIL_H */
