/* fixture.h -- a server on a loop thread, and a blocking client for its tests.  Not a
 * general HTTP client: it understands what the server under test may send. */
#ifndef WEFT_TESTS_HTTP_FIXTURE_H
#define WEFT_TESTS_HTTP_FIXTURE_H

#include "weft/http.h"
#include "weft/runtime.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HELD_MAX = 2048, REPLY_MAX = 1 << 20 };

enum route_id {
  R_INFO,    /* GET: fixed bytes */
  R_ECHO,    /* POST: the body */
  R_SINK,    /* POST: its body is not wanted */
  R_LATER,   /* GET, POST: held until fixture_release */
  R_STREAM,  /* GET: event stream, id held */
  R_DEV,     /* GET, dev only */
  R_OPEN,    /* GET, no token */
  R_QUERY,   /* GET: value of k */
  R_HEADER,  /* GET: value of X-Test */
  R_DESTROY, /* GET: destroys the server in its handler */
  R_EMPTY,   /* GET: 204 */
  R_DRAIN,   /* GET: drains the server, then answers */
  R_SHORT,   /* GET: a stream of one event, all in the handler */
  R_ODD      /* GET: an answer with fields that must be left out, given twice */
};

typedef struct fixture {
  weft_runtime *rt;
  weft_loop *loop;
  weft_http *server; /* loop thread only, once started */
  weft_http_opts opts;
  char bound[300];
  char scratch[64];
  pthread_mutex_t lock; /* guards what follows */
  pthread_cond_t changed;
  weft_http_id held[HELD_MAX];
  char held_query[HELD_MAX][16];
  size_t held_count;
  unsigned gone;      /* peers */
  uint64_t last_peer; /* of a request */
  uint64_t last_gone;
  unsigned requests; /* handled */
  bool called;
  bool destroy_when_gone; /* set before the client leaves */
} fixture;

/* opts may be NULL; routes and callbacks are the fixture's. */
void fixture_start(fixture *f, const weft_http_opts *opts, const char *address);
void fixture_stop(fixture *f);
/* Runs fn(arg) on the loop's thread and waits for its end. */
void fixture_call(fixture *f, void (*fn)(void *arg), void *arg);
/* Waits (5 s at most) until at least n requests are held, or n peers gone. */
void fixture_wait_held(fixture *f, size_t n);
void fixture_wait_gone(fixture *f, unsigned n);
/* Answers the held requests with their query string, the last first if reversed. */
void fixture_release(fixture *f, bool reversed);
void fixture_stats(fixture *f, weft_http_stats *out, size_t *connections);
/* Waits (5 s at most) until the server has n connections. */
void fixture_wait_connections(fixture *f, size_t n);

typedef struct client {
  int fd;
  char *data; /* [REPLY_MAX] received and not yet taken */
  size_t len;
} client;

typedef struct reply {
  int status;
  char head[2048]; /* NUL-terminated */
  char *body; /* points into the client's data until the next reply; not terminated */
  size_t body_len;
} reply;

int dial(const char *bound); /* blocking, with a receive time-out of 10 s */
void client_open(client *c, const fixture *f);
void client_close(client *c);
void client_send(client *c, const void *data, size_t len);
void client_text(client *c, const char *text);
/* One whole reply (interim 100s too); false: closed before one was complete.  no_body for
 * answers to HEAD. */
bool client_reply(client *c, reply *r, bool no_body);
/* Bytes up to and with text; false when the connection ended first.  They are dropped. */
bool client_until(client *c, const char *text);
/* True when the server closed (or reset) and nothing but what was taken came. */
bool client_at_end(client *c);
bool reply_has(const reply *r, const char *line); /* a header line, exact */

void body_is(const reply *r, const char *want);
/* Sends request and takes one answer, which must be this one. */
void expect(client *c, reply *r, const char *request, int status, const char *body);

/* Sends text on a new connection, half closes when told to; status of the only answer (0:
 * closed without one).  Fails unless the server then closes. */
int one_shot(const fixture *f, const char *text, size_t len);

#endif /* WEFT_TESTS_HTTP_FIXTURE_H */
