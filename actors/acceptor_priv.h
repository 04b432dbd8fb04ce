/* acceptor_priv.h -- between the files of the acceptor: what a route is, what a query and
 * a body say, which requests are open, how answers are written.  Not for anybody else. */
#ifndef WEFT_ACTORS_ACCEPTOR_PRIV_H
#define WEFT_ACTORS_ACCEPTOR_PRIV_H

#include "acceptor.h"
#include "weft/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- acceptor_routes.c */

typedef enum wefti_route {
  WEFTI_ROUTE_INIT,
  WEFTI_ROUTE_START,
  WEFTI_ROUTE_START_DRAFT,
  WEFTI_ROUTE_UPDATE,
  WEFTI_ROUTE_FINISH,
  WEFTI_ROUTE_LABEL,
  WEFTI_ROUTE_PAUSE,
  WEFTI_ROUTE_RESUME,
  WEFTI_ROUTE_CHECKER,
  WEFTI_ROUTE_RESET_PREFIX,
  WEFTI_ROUTE_RESET_MM,
  WEFTI_ROUTE_RESET_ENCODER,
  WEFTI_ROUTE_ABORT,
  WEFTI_ROUTE_ABORT_REQUESTS,
  WEFTI_ROUTE_RESOLVE,
  WEFTI_ROUTE_INFO,
  WEFTI_ROUTE_IS_PAUSED,
  WEFTI_ROUTE_WORLD_SIZE,
  WEFTI_ROUTE_STATUS,
  WEFTI_ROUTE_WEIGHTS,
  WEFTI_ROUTE_VERSIONS,
  WEFTI_ROUTE_EVENTS,
  WEFTI_ROUTE_HEALTH,
  WEFTI_ROUTE_READY,
  WEFTI_ROUTE_VERSION,
  WEFTI_ROUTE_METRICS,
  WEFTI_ROUTE_SHUTDOWN,
  WEFTI_ROUTE_COUNT
} wefti_route;

typedef struct wefti_route_fact {
  const char *name;    /* path without its slash, for messages */
  const char *success; /* body of 200, "" = empty; NULL = made from the answer */
  const char *failed;  /* what a string error begins with; NULL = errors are objects */
  bool mutates;        /* takes timeout_s, Idempotency-Key and Weft-Session */
  bool commits;        /* when the engine is silent, nobody knows whether it is visible */
} wefti_route_fact;
/* NULL when there is no such route. */
const wefti_route_fact *wefti_route_fact_of(uint32_t route);
bool wefti_route_reads_body(uint32_t route);

/* ---- acceptor_query.c: pure */

enum { WEFTI_VERSION_MAX = WEFT_VERSION_MAX, WEFTI_REASON_MAX = 256 }; /* bytes */

/* A request that is refused; status 0 = none. */
typedef struct wefti_problem {
  int status;
  const char *type; /* static */
  char param[48];   /* "" gives null */
  char message[640];
} wefti_problem;

/* 400 in the words of the validation library that the contract's servers use.  input: as
 * a Python literal, "" = left out. */
void wefti_invalid(wefti_problem *bad, const char *kind, const char *where,
                   const char *field, const char *says, const char *input);
void wefti_problem_say(wefti_problem *bad, int status, const char *type,
                       const char *message);

typedef struct wefti_query {
  uint32_t timeout_ms; /* 0 = none was given */
  const char *mode;    /* static; of pause */
  bool clear_cache, include_dp;
  uint64_t after; /* INT64_MAX when none was given */
  uint32_t limit; /* of weight_versions */
} wefti_query;
/* false: *bad says why. */
bool wefti_query_read(uint32_t route, const char *query, wefti_query *out,
                      wefti_problem *bad);

/* ---- acceptor_body.c: pure */

typedef struct wefti_text {
  bool given; /* present and not null */
  uint32_t len;
  char text[WEFTI_VERSION_MAX + 1];
} wefti_text;

typedef struct wefti_fields {
  weft_json_span info; /* init_info, update_info or baseline; kind NONE = absent */
  uint8_t each;        /* what info's children must begin with; 0 = anything */
  wefti_text version, expected; /* version is abort's reason, too */
  bool strict;
  bool commit; /* of resolve */
  weft_check_action action;
} wefti_fields;
/* A body that has been scanned. */
typedef struct wefti_body {
  const uint8_t *text; /* [len] */
  size_t len;          /* 0: there is none, and the rest does not count */
  const weft_json_scan *scan;
  weft_err scanned; /* of feed and end */
} wefti_body;
/* What body says for route; out->each is for the caller to check, slice by slice when
 * info is long.  Errors: INVAL (*bad says why), NOMEM. */
weft_err wefti_body_read(uint32_t route, const wefti_body *body, wefti_fields *out,
                         wefti_problem *bad) WEFT_MUST_USE;
/* A walk over valid JSON that comes in pieces: does every element of the array, or every
 * member's value of the object, begin with the byte first? */
typedef struct wefti_walk {
  uint8_t first;
  bool in_array, value_next, quoted, escaped;
  unsigned depth;
} wefti_walk;
/* false: one does not; walk no further. */
bool wefti_walk_on(wefti_walk *walk, const uint8_t *text, size_t len);
/* What a walk's false means for the client. */
void wefti_walk_problem(uint32_t route, wefti_problem *bad);

/* ---- acceptor_message.c */

/* One request on its way to the engine.  Borrows all of it. */
typedef struct wefti_request {
  const weft_http_call *call;
  const wefti_query *query;
  const wefti_fields *fields;
  weft_buf *info; /* init_info, update_info or baseline; may be NULL */
  uint64_t caller;
} wefti_request;
/* What the engine is asked; NULL = out of memory, or a route that is answered here. */
weft_msg *wefti_request_message(weft_ctx *ctx, const wefti_request *rq);

/* ---- acceptor_open.c: requests that wait for the engine, by question number */

typedef struct wefti_open {
  uint64_t corr; /* 0 = free; not asked yet */
  weft_http_id id;
  uint64_t peer; /* 0: not one that may be taken over */
  bool gone;     /* it has hung up */
  uint32_t route;
  uint32_t patience_ms; /* of the question */
  uint64_t asked_ms;
  weft_buf *echo; /* new_version of /update_weight_version, shared */
} wefti_open;

typedef struct wefti_open_table {
  wefti_open *slots; /* [cap] */
  size_t cap;        /* 0 or a power of two */
  size_t count;
} wefti_open_table;
/* Makes sure that one more add succeeds.  Errors: NOMEM, OVERFLOW. */
weft_err wefti_open_reserve(weft_ctx *ctx, wefti_open_table *table) WEFT_MUST_USE;
void wefti_open_add(wefti_open_table *table, const wefti_open *open); /* takes echo */
/* false when unknown; else the caller owns out->echo. */
bool wefti_open_take(wefti_open_table *table, uint64_t corr, wefti_open *out);
/* false: nothing of peer is open. */
bool wefti_open_mark_gone(wefti_open_table *table, uint64_t peer);
/* The peer of the first one from *at on that has hung up; *at goes behind it.  0 = none.
 */
uint64_t wefti_open_next_gone(const wefti_open_table *table, size_t *at);
void wefti_open_fini(weft_ctx *ctx, wefti_open_table *table);

/* ---- acceptor_reply.c */

void wefti_reply_body(const wefti_http_ops *ops, weft_http_id id, int status,
                      const char *body, size_t len);
void wefti_reply_problem(const wefti_http_ops *ops, weft_http_id id,
                         const wefti_problem *bad);
void wefti_reply_nomem(const wefti_http_ops *ops, weft_http_id id);
void wefti_reply_done(const wefti_http_ops *ops, const wefti_open *open,
                      const weft_client_done *done, uint64_t now_ms);
/* The engine did not answer.  reason: of ASK_FAILED, or CLOSED when this end stops. */
void wefti_reply_silence(const wefti_http_ops *ops, const wefti_open *open,
                         weft_err reason, uint64_t now_ms);

/* ---- acceptor_local.c: false when the engine must be asked */
bool wefti_reply_locally(const wefti_acceptor_args *args, const wefti_request *rq);

#endif /* WEFT_ACTORS_ACCEPTOR_PRIV_H */
