/* tcpstore_peer.h -- the server without sockets: bytes of many clients in, bytes out. All
 * on one thread. */
#ifndef WEFT_TRANSPORT_TCPSTORE_PEER_H
#define WEFT_TRANSPORT_TCPSTORE_PEER_H

#include "tcpstore_map.h"

typedef struct wefti_peer wefti_peer;

/* A connection waits for a key. */
typedef struct wefti_waiter {
  struct wefti_waiter *next;      /* of the key */
  struct wefti_waiter *peer_next; /* of the peer */
  wefti_key *key;
  wefti_peer *peer;
  int64_t at_least; /* a barrier: the number that opens it; 0 = any change does */
} wefti_waiter;

typedef struct wefti_store {
  wefti_map map;
  wefti_peer *ready; /* waits are over: their held requests go on */
  /* Peer has output, or has failed.  Must not feed or free peers. */
  void (*news)(void *arg, wefti_peer *peer);
  void (*changed)(void *arg, const char *key, size_t len); /* may be NULL */
  void *news_arg;
  void *changed_arg;
} wefti_store;

struct wefti_peer {
  wefti_store *store;
  void *user;
  wefti_sb in;
  wefti_sb out;
  size_t out_at;  /* sent so far */
  size_t charged; /* bytes of the budget for in and out */
  wefti_scan scan;
  bool greeted; /* VALIDATE was seen */
  bool is_ready;
  weft_err err; /* not WEFT_OK: close it */
  wefti_waiter *waiters;
  uint64_t missing; /* keys to wait for; 0 = not waiting */
  wefti_peer *ready_next;
};

void wefti_peer_init(wefti_peer *p, wefti_store *store, void *user);
void wefti_peer_fini(wefti_peer *p);
/* Appends what came and does all requests that are complete.  A failure is in p->err. */
void wefti_peer_feed(wefti_peer *p, const void *data, size_t n);
/* n bytes of the output are on their way. */
void wefti_peer_sent(wefti_peer *p, size_t n);
/* Output is pending that the peer should take before it is read from again, or requests
 * behind a WAIT pile up. */
bool wefti_peer_is_full(const wefti_peer *p);
/* The key has changed: wakes who waits, lets them go on, tells the host. */
void wefti_store_wake(wefti_store *s, wefti_key *key);
void wefti_store_settle(wefti_store *s);

/* ---- between tcpstore_peer.c and tcpstore_requests.c */

/* p waits for key, which was found or made for it; tidied on error. */
weft_err wefti_peer_wait(wefti_peer *p, wefti_key *key, int64_t at_least);
void wefti_peer_forget_waits(wefti_peer *p);
/* Does one complete request; w stands behind its opcode, op < WEFTI_ST_OPS.  Never AGAIN:
 * any error ends the connection. */
weft_err wefti_peer_request(wefti_peer *p, uint8_t op, wefti_walk *w);

#endif /* WEFT_TRANSPORT_TCPSTORE_PEER_H */
