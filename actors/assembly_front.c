#include "assembly.h"
#include "weft/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADDRESS_MAX = 256, OWED_MS = 50, ACCEPTOR_MAILBOX = 8192 /* messages */ };

/* Ends of connections that the acceptor had no room to hear of: what such a caller began
 * would block the next one.  Loop 0. */
typedef struct owed_ends {
  weft_alarm *alarm;
  uint64_t *peers; /* [count] */
  size_t count, cap;
} owed_ends;

struct wefti_front {
  weft_runtime *rt;
  weft_http *server;
  weft_actor_id acceptor;
  wefti_streams *streams; /* NULL: refused */
  owed_ends owed;
  char texts[WEFTI_HTTP_MAX][ADDRESS_MAX];
  const char *addresses[WEFTI_HTTP_MAX];
  size_t count;
};

static void respond(void *arg, weft_http_id id, const weft_http_reply *reply)
{
  const wefti_front *front = arg;
  weft_http_respond(front->server, id, reply);
}

static void say_unavailable(const wefti_front *front, weft_http_id id,
                            const char *message)
{
  char body[256];
  const int n =
      snprintf(body, sizeof body,
               "{\"error\":{\"message\":\"%s\",\"type\":\"Service Unavailable\","
               "\"param\":null,\"code\":503}}",
               message);
  const weft_http_reply reply = { .status = 503, .body = body, .body_len = (size_t)n };
  weft_http_respond(front->server, id, &reply);
}

static void stream(void *arg, weft_http_id id, uint64_t after)
{
  const wefti_front *front = arg;
  if (!front->streams || wefti_streams_open(front->streams, id, after) != WEFT_OK) {
    say_unavailable(front, id, "no event stream here now; use the engine's own address");
  }
}

/* The hot path: one copy into a heap message and one push, no wake-up on the own loop. */
static void on_request(void *arg, const weft_http_request *req)
{
  const wefti_front *front = arg;
  weft_http_call call = { .h = { .type = WEFT_MSG_HTTP_REQUEST } };
  call.id = req->id;
  call.peer = req->peer;
  call.route = (uint32_t)req->route->id;
  call.query = wefti_str(req->query);
  call.idem_key = wefti_str(weft_http_request_header(req, "Idempotency-Key"));
  call.session = wefti_str(weft_http_request_header(req, "Weft-Session"));
  call.body = req->body;
  weft_err err = WEFT_OK;
  if ((req->route->flags & WEFT_HTTP_STREAM) != 0 && front->streams) {
    err = wefti_streams_expect(front->streams, req->id, req->peer);
  }
  if (err != WEFT_OK || wefti_post(front->rt, front->acceptor, &call.h) != WEFT_OK) {
    say_unavailable(front, req->id, "too many requests are waiting; try again");
  }
}

static bool tell_gone(const wefti_front *front, uint64_t peer)
{
  const weft_http_gone gone = {
    .h = { .type = WEFT_MSG_HTTP_GONE, .flags = WEFT_MSG_F_RESERVED }, .peer = peer
  };
  const weft_err err = wefti_post(front->rt, front->acceptor, &gone.h);
  return err != WEFT_E_FULL && err != WEFT_E_NOMEM; /* nobody is left, else */
}

/* What finds no memory here is lost: the session's lease ends it then. */
static void owe(owed_ends *owed, uint64_t peer)
{
  if (owed->count == owed->cap) {
    const size_t cap = owed->cap > 0 ? owed->cap * 2 : 64;
    uint64_t *grown = realloc(owed->peers, cap * sizeof *grown);
    if (!grown) {
      return;
    }
    owed->peers = grown;
    owed->cap = cap;
  }
  owed->peers[owed->count++] = peer;
  if (owed->count == 1) {
    weft_alarm_start(owed->alarm, OWED_MS);
  }
}

static void pay_owed(void *arg)
{
  wefti_front *front = arg;
  owed_ends *owed = &front->owed;
  size_t paid = 0;
  while (paid < owed->count && tell_gone(front, owed->peers[paid])) {
    paid++;
  }
  owed->count -= paid;
  if (owed->count > 0) {
    memmove(owed->peers, owed->peers + paid, owed->count * sizeof *owed->peers);
    weft_alarm_start(owed->alarm, OWED_MS);
  }
}

static void on_gone(void *arg, uint64_t peer)
{
  wefti_front *front = arg;
  if (front->streams) {
    wefti_streams_gone(front->streams, peer);
  }
  if (front->owed.count > 0 || !tell_gone(front, peer)) {
    owe(&front->owed, peer);
  }
}

static weft_err check_access(const wefti_front_opts *opts, weft_why *why)
{
  if (opts->http_count > WEFTI_HTTP_MAX) {
    return weft_whyf(why, WEFT_E_LIMIT, "at most %d HTTP addresses", (int)WEFTI_HTTP_MAX);
  }
  for (size_t i = 0; i < opts->http_count; i++) {
    const weft_err err = weft_http_address_check(opts->http[i], why);
    if (err != WEFT_OK) {
      return err;
    }
    if (!opts->token && !opts->insecure && !weft_http_is_loopback(opts->http[i])) {
      return weft_whyf(why, WEFT_E_DENIED,
                       "%s is not a loopback address: a token is needed (or say "
                       "insecure by name)",
                       opts->http[i]);
    }
  }
  return WEFT_OK;
}

static weft_err start_server(wefti_front *front, const wefti_front_opts *opts,
                             weft_why *why)
{
  weft_http_opts http = { .size = sizeof http };
  http.routes = wefti_acceptor_routes(&http.route_count);
  http.dev = opts->dev;
  http.token = opts->token;
  http.on_request = on_request;
  http.on_gone = on_gone;
  http.arg = front;
  http.body_max = opts->body_max;
  weft_err err = weft_http_create(weft_runtime_loop(front->rt, 0), &http, &front->server);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "cannot start the HTTP server: %s", weft_strerror(err));
  }
  for (size_t i = 0; i < opts->http_count; i++) {
    err =
        weft_http_listen(front->server, opts->http[i], front->texts[i], ADDRESS_MAX, why);
    if (err != WEFT_OK) {
      return err;
    }
    front->addresses[i] = front->texts[i];
    front->count = i + 1;
  }
  return WEFT_OK;
}

static weft_err start_acceptor(wefti_front *front, const wefti_front_opts *opts)
{
  const wefti_acceptor_args args = {
    .engine = opts->engine,
    .tp = opts->tp,
    .pp = opts->pp,
    .dp_size = opts->dp_size,
    .dp_index = opts->dp_index,
    .allow_weight_reset = opts->allow_weight_reset,
    .server_version = weft_version(),
    .ops = { .respond = respond, .stream = stream, .arg = front },
  };
  const weft_spawn_opts spawn = { .mailbox = ACCEPTOR_MAILBOX };
  return weft_runtime_spawn(front->rt, 0, &wefti_acceptor_class, &args, &spawn,
                            &front->acceptor);
}

weft_err wefti_front_create(weft_runtime *rt, const wefti_front_opts *opts,
                            wefti_front **out, weft_why *why)
{
  weft_err err = check_access(opts, why);
  if (err != WEFT_OK) {
    return err;
  }
  wefti_front *front = calloc(1, sizeof *front);
  if (!front) {
    return weft_whyf(why, WEFT_E_NOMEM, "HTTP front: out of memory");
  }
  front->rt = rt;
  err = weft_alarm_create(weft_runtime_loop(rt, 0), pay_owed, front, &front->owed.alarm);
  err = err == WEFT_OK ? start_server(front, opts, why)
                       : weft_whyf(why, err, "HTTP front: %s", weft_strerror(err));
  if (err == WEFT_OK && opts->publisher) {
    err = wefti_streams_create(rt, front->server, opts->publisher, &front->streams);
  }
  if (err == WEFT_OK) {
    err = start_acceptor(front, opts);
  }
  if (err != WEFT_OK) {
    wefti_front_destroy(front);
    return err;
  }
  *out = front;
  return WEFT_OK;
}

const char *const *wefti_front_addresses(const wefti_front *front, size_t *count)
{
  *count = front->count;
  return front->addresses;
}

void wefti_front_event(wefti_front *front, const char *topic, uint64_t sequence,
                       const weft_buf *json)
{
  if (front->streams) {
    wefti_streams_event(front->streams, topic, sequence, json);
  }
}

void wefti_front_drain(wefti_front *front)
{
  if (front->streams) {
    wefti_streams_end(front->streams);
  }
  weft_http_drain(front->server);
}

size_t wefti_front_connections(wefti_front *front)
{
  return weft_http_connections(front->server);
}

void wefti_front_destroy(wefti_front *front)
{
  if (!front) {
    return;
  }
  wefti_streams_destroy(front->streams);
  weft_http_destroy(front->server);
  weft_alarm_destroy(front->owed.alarm);
  free(front->owed.peers);
  free(front);
}
