/* The processes of front ends, and what stands between a socket and their acceptors: the
 * part of http/ and assembly_front.c, without sockets. */
#include "full_http.h"
#include "relay.h"
#include "weft/buf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { OWED_EVERY_MS = 50, DRAIN_MS = 1000 };

/* ---- operations of the acceptor */

static http_request *request_of(http_front *f, weft_http_id id)
{
  full_http *h = f->w->http;
  if (id == 0 || id > h->count) {
    full_break(f->w, "I5: an answer to a request that nobody made");
    return NULL;
  }
  http_request *r = &h->requests[id - 1];
  if (r->front != f->index || r->life != f->life || r->answered) {
    full_break(f->w, "I5: request %" PRIu64 " of client %u is answered %s", id, r->client,
               r->answered ? "twice" : "by another front end");
    return NULL;
  }
  r->answered = true;
  return r->over ? NULL : r;
}

static void op_respond(void *arg, weft_http_id id, const weft_http_reply *reply)
{
  http_front *f = arg;
  http_request *r = request_of(f, id);
  if (r != NULL && r->fate == FATE_CALL) {
    full_http_answer(f->w, r, reply);
  } else if (r != NULL) {
    full_odd_answer(f->w, r, reply);
  }
}

static void op_stream(void *arg, weft_http_id id, uint64_t after)
{
  http_front *f = arg;
  const http_request *r = request_of(f, id);
  if (r != NULL && (r->fate != FATE_STREAM || after != id)) {
    full_break(f->w, "request %" PRIu64 " becomes a stream after %" PRIu64, id, after);
  }
}

static weft_err op_connect(void *arg, weft_ctx *ctx, const char *url, weft_actor_id *out)
{
  http_front *f = arg;
  (void)url;
  const weft_err err = weft_spawn(ctx, &full_wire_class, &f, NULL, out);
  f->wire = err == WEFT_OK ? *out : 0;
  return err;
}

/* ---- processes */

static weft_err spawn_relay(full *w, http_front *f)
{
  const wefti_relay_args args = { .url = "ipc:///sim",
                                  .ops = { .connect = op_connect, .arg = f } };
  return weft_sim_spawn(w->sim, &wefti_relay_class, &args, NULL, &f->relay);
}

void full_front_begin(full *w, unsigned front)
{
  http_front *f = &w->http->fronts[front];
  const unsigned life = f->life + 1;
  *f = (http_front){ .w = w,
                     .index = front,
                     .life = life,
                     .wire_ms = f->wire_ms,
                     .wire_most_ms = f->wire_most_ms };
  weft_err err = front == HTTP_REMOTE ? spawn_relay(w, f) : WEFT_OK;
  const wefti_acceptor_args args = { .engine =
                                         front == HTTP_REMOTE ? f->relay : w->engine,
                                     .tp = w->ranks,
                                     .server_version = "sim",
                                     .ops = { op_respond, op_stream, f } };
  const weft_spawn_opts opts = { .mailbox = 8192 };
  if (err == WEFT_OK) {
    err = weft_sim_spawn(w->sim, &wefti_acceptor_class, &args, &opts, &f->acceptor);
  }
  f->up = err == WEFT_OK;
  if (!f->up) { /* memory: whoever starts it tries again */
    weft_sim_kill(w->sim, f->relay);
    f->back_ms = weft_sim_now_ms(w->sim) + 1;
  }
}

void full_fronts_make(full *w)
{
  w->http = calloc(1, sizeof *w->http);
  if (w->http == NULL) {
    abort(); /* a test without memory */
  }
  for (unsigned i = 0; i < FULL_CLIENTS; i++) {
    w->clients[i].way = w->opts.way[i];
  }
  for (unsigned i = 0; i < HTTP_FRONTS; i++) {
    full_front_begin(w, i);
  }
}

void full_fronts_end(full *w)
{
  free(w->http);
  w->http = NULL;
}

/* All that its clients have with it. */
static void lose_connections(full *w, const http_front *f)
{
  full_http *h = w->http;
  for (unsigned i = 0; i < h->count; i++) {
    http_request *r = &h->requests[i];
    if (r->front == f->index && r->life == f->life && !r->answered && !r->over) {
      full_http_lost(w, r);
    }
  }
  for (unsigned i = 0; i < FULL_CLIENTS; i++) {
    if (w->clients[i].way == f->index + 1) {
      h->peer[i] = 0;
    }
  }
}

static void gone_down(full *w, http_front *f, uint32_t back_ms)
{
  lose_connections(w, f);
  f->up = false;
  f->frozen = false;
  f->back_ms = weft_sim_now_ms(w->sim) + back_ms;
}

void full_front_crash(full *w, unsigned front, uint32_t back_ms)
{
  http_front *f = &w->http->fronts[front];
  if (!f->up) {
    return;
  }
  if (front == HTTP_REMOTE) {
    full_wire_hang_up(f);
    weft_sim_kill(w->sim, f->relay); /* and its child, the link */
  }
  weft_sim_kill(w->sim, f->acceptor);
  gone_down(w, f, back_ms);
}

void full_front_freeze(full *w, unsigned front, bool frozen)
{
  http_front *f = &w->http->fronts[front];
  if (!f->up) {
    return;
  }
  f->frozen = frozen;
  f->stood_ms = weft_sim_now_ms(w->sim);
  weft_sim_freeze(w->sim, f->acceptor, frozen);
  if (front == HTTP_REMOTE) {
    weft_sim_freeze(w->sim, f->relay, frozen);
    weft_sim_freeze(w->sim, f->wire, frozen);
  }
}

void full_front_stop(full *w, unsigned front)
{
  http_front *f = &w->http->fronts[front];
  if (f->up && f->stop_ms == 0) {
    f->stop_ms = weft_sim_now_ms(w->sim) + 1 + full_random(w, DRAIN_MS);
  }
}

void full_front_cut(full *w)
{
  http_front *f = &w->http->fronts[HTTP_REMOTE];
  const weft_client_gone cut = { .h = { .type = WEFT_MSG_CLIENT_GONE,
                                        .flags = WEFT_MSG_F_RESERVED } };
  if (f->up && weft_sim_alive(w->sim, f->wire)) {
    (void)weft_sim_send(w->sim, f->wire, &cut.h);
  }
}

/* It has drained: its actors are told to end. */
static void end_stopped(full *w, http_front *f)
{
  const weft_msg stop = { .type = WEFT_MSG_STOP, .flags = WEFT_MSG_F_RESERVED };
  if (f->relay != 0 && weft_sim_alive(w->sim, f->relay)) {
    (void)weft_sim_send(w->sim, f->relay, &stop);
  }
  (void)weft_sim_send(w->sim, f->acceptor, &stop); /* no memory: once more */
}

static void pay_owed(full *w)
{
  full_http *h = w->http;
  unsigned left = 0;
  for (unsigned i = 0; i < h->owed_count; i++) {
    const http_front *f = &h->fronts[h->owed[i].front];
    const weft_http_gone gone = { .h = { .type = WEFT_MSG_HTTP_GONE,
                                         .flags = WEFT_MSG_F_RESERVED },
                                  .peer = h->owed[i].peer };
    if (f->up && f->life == h->owed[i].life &&
        weft_sim_send(w->sim, f->acceptor, &gone.h) != WEFT_OK) {
      h->owed[left++] = h->owed[i];
    }
  }
  h->owed_count = left;
}

void full_fronts_tick(full *w)
{
  const uint64_t now = weft_sim_now_ms(w->sim);
  for (unsigned i = 0; i < HTTP_FRONTS; i++) {
    http_front *f = &w->http->fronts[i];
    if (f->frozen && f->thaw_ms != 0 && now >= f->thaw_ms) {
      full_front_freeze(w, i, false);
    }
    if (f->up && f->stop_ms != 0 && now >= f->stop_ms) {
      end_stopped(w, f);
    }
    if (f->up && !weft_sim_alive(w->sim, f->acceptor)) {
      if (f->stop_ms == 0) {
        full_break(w, "I6: a front end ended by itself");
      }
      if (f->relay != 0 && weft_sim_alive(w->sim, f->relay)) {
        full_wire_hang_up(f);
        weft_sim_kill(w->sim, f->relay);
      }
      gone_down(w, f, (uint32_t)full_random(w, 300));
    }
    if (!f->up && now >= f->back_ms) {
      full_front_begin(w, i);
    }
  }
  if (w->http->owed_count > 0 && now % OWED_EVERY_MS == 0) {
    pay_owed(w);
  }
  full_http_check_gone(w);
}

/* ---- connections */

static weft_str str_of(const char *s)
{
  return s == NULL ? (weft_str){ NULL, 0 } : (weft_str){ s, (uint32_t)strlen(s) };
}

static const weft_http_route *route_of(const http_text *text, size_t path_len)
{
  size_t count;
  const weft_http_route *routes = wefti_acceptor_routes(&count);
  for (size_t i = 0; i < count; i++) {
    if (strcmp(routes[i].method, text->method) == 0 &&
        strlen(routes[i].path) == path_len &&
        memcmp(routes[i].path, text->path, path_len) == 0) {
      return &routes[i];
    }
  }
  return NULL;
}

http_request *full_front_take(full *w, unsigned client, const http_text *text)
{
  full_http *h = w->http;
  http_front *f = &h->fronts[w->clients[client].way - 1];
  if (!f->up || f->stop_ms != 0 || h->count == HTTP_REQUESTS) {
    return NULL; /* nobody listens */
  }
  if (h->peer[client] == 0) {
    h->peer[client] = ++h->last_peer;
  }
  const size_t path_len = strcspn(text->path, "?");
  const weft_http_route *route = route_of(text, path_len);
  if (route == NULL) {
    full_break(w, "no route for %s %s", text->method, text->path);
    return NULL;
  }
  const char *query = text->path + path_len;
  weft_buf *body = text->body == NULL ? NULL : weft_buf_create(text->body, text->len);
  const weft_http_call call = { .h = { .type = WEFT_MSG_HTTP_REQUEST },
                                .id = h->count + 1,
                                .peer = h->peer[client],
                                .route = (uint32_t)route->id,
                                .query = str_of(*query == '?' ? query + 1 : query),
                                .idem_key = str_of(text->key),
                                .session = str_of(text->session),
                                .body = body };
  const weft_err err = weft_sim_send(w->sim, f->acceptor, &call.h);
  weft_buf_unref(body);
  if (err != WEFT_OK) {
    return NULL; /* 503 of the server: too many wait */
  }
  http_request *r = &h->requests[h->count++];
  *r = (http_request){ .peer = call.peer,
                       .front = f->index,
                       .life = f->life,
                       .client = client,
                       .boot = w->boot,
                       .asked_ms = weft_sim_now_ms(w->sim),
                       .seen = full_now(w)->visible };
  return r;
}

void full_front_hang_up(full *w, unsigned client)
{
  full_http *h = w->http;
  const uint64_t peer = h->peer[client];
  const http_front *f = &h->fronts[w->clients[client].way - 1];
  if (peer == 0) {
    return;
  }
  h->peer[client] = 0;
  for (unsigned i = 0; i < h->count; i++) {
    http_request *r = &h->requests[i];
    if (r->peer == peer && !r->answered && !r->over) {
      full_http_lost(w, r);
    }
  }
  if (h->owed_count == HTTP_OWED) {
    full_break(w, "more than %d ends of connections are owed", HTTP_OWED);
    return;
  }
  h->owed[h->owed_count].front = f->index;
  h->owed[h->owed_count].life = f->life;
  h->owed[h->owed_count++].peer = peer;
  if (h->owed_count == 1) { /* else in their order */
    pay_owed(w);
  }
}
