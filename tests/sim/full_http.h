/* full_http.h -- clients that speak HTTP: one front end in the engine's process and one
 * in a process of its own (a real acceptor each; before the second a real relay and a
 * simulated link to the engine's port), their connections, and requests as method, path,
 * headers and body.  What lies between socket and acceptor is played: the reading of
 * HTTP/1.1 itself (http/, tests/http) is not in it. */
#ifndef WEFT_TESTS_SIM_FULL_HTTP_H
#define WEFT_TESTS_SIM_FULL_HTTP_H

#include "acceptor.h"
#include "full.h"

enum {
  HTTP_FRONTS = 2, /* 0: in the engine's process */
  HTTP_REMOTE = 1,
  HTTP_REQUESTS = 1024, /* of one run */
  HTTP_OWED = 64
};

typedef struct http_text {
  const char *method;
  char path[160]; /* with its query */
  const char *key, *session;
  char *body; /* [len]; NULL = none */
  size_t len;
} http_text;

/* What must become of a request that is no call of full_call. */
typedef enum http_fate {
  FATE_CALL,    /* it is one */
  FATE_REFUSED, /* with its status, by the front end alone */
  FATE_LOCAL,   /* 200, by the front end alone */
  FATE_STREAM,  /* handed to the streams */
  FATE_ASKED,   /* the engine is asked */
  FATE_VERSION  /* ... for the version that is visible */
} http_fate;

typedef struct http_request {
  uint64_t peer;
  unsigned front, life, client;
  unsigned call; /* of FATE_CALL */
  http_fate fate;
  int status; /* of FATE_REFUSED */
  unsigned boot;
  uint64_t asked_ms, seen; /* seen: the sequence that was visible then */
  bool is_long;            /* is read in slices: takes more than a step */
  bool answered;
  bool over; /* its connection has ended: nobody reads an answer */
} http_request;

typedef struct http_front {
  full *w;
  unsigned index, life;
  weft_actor_id acceptor, relay, wire;
  bool up, frozen;
  uint64_t back_ms;  /* not up: when it is again */
  uint64_t thaw_ms;  /* frozen: until then */
  uint64_t stop_ms;  /* SIGTERM came; 0 = it did not */
  uint64_t stood_ms; /* when it was stopped last, or continued */
  uint64_t forwarded;
  uint32_t wire_ms;      /* each frame to the engine and back takes up to so long */
  uint32_t wire_most_ms; /* the most that was */
} http_front;

struct full_http {
  http_front fronts[HTTP_FRONTS];
  http_request requests[HTTP_REQUESTS];
  unsigned count;
  uint64_t last_peer;
  uint64_t peer[FULL_CLIENTS]; /* the open connection; 0 = none yet */
  struct {
    unsigned front, life;
    uint64_t peer;
  } owed[HTTP_OWED]; /* ends of connections that the acceptor could not be told */
  unsigned owed_count;
  bool hasty; /* the next client to ask hangs up at once (plan_run.c) */
};

/* ---- full_front.c */
void full_fronts_make(full *w);
void full_front_begin(full *w, unsigned front);
void full_fronts_end(full *w); /* of the world */
/* The process dies, and comes back; so do its connections, without an answer. */
void full_front_crash(full *w, unsigned front, uint32_t back_ms);
void full_front_freeze(full *w, unsigned front, bool frozen);
void full_front_stop(full *w, unsigned front); /* SIGTERM */
void full_fronts_tick(full *w);                /* once a millisecond */
void full_front_cut(full *w);                  /* the link of the remote one */
/* NULL: it was not taken. */
http_request *full_front_take(full *w, unsigned client, const http_text *text);
void full_front_hang_up(full *w, unsigned client);

/* ---- full_wire.c: the relay's link and the engine's port in one */
extern const weft_actor_class full_wire_class; /* args: http_front * */
/* Its connection ends: the port says which callers are gone. */
void full_wire_hang_up(http_front *f);

/* ---- full_http.c */
weft_err full_http_put(full *w, unsigned client, full_call *call, uint32_t timeout_ms);
void full_http_answer(full *w, http_request *r, const weft_http_reply *reply);
void full_http_lost(full *w, http_request *r);
void full_http_step(full *w, const weft_msg *delivered);
/* Who hangs up keeps nobody out: once a millisecond. */
void full_http_check_gone(full *w);
void full_http_check_end(full *w); /* nobody waits any more */

/* ---- full_odd.c: requests that are no calls of full_call, as many as may be */
void full_odd(full *w, unsigned client, uint32_t which);
void full_odd_answer(full *w, http_request *r, const weft_http_reply *reply);

#endif /* WEFT_TESTS_SIM_FULL_HTTP_H */
