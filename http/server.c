#define _GNU_SOURCE /* accept4 */
#include "conn.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ACCEPT_BATCH = 64, ACCEPT_PAUSE_MS = 100 };

static void conn_free(wefti_conn *c)
{
  wefti_bytes_fini(&c->in);
  wefti_bytes_fini(&c->out);
  wefti_reading_free(c->reading);
  free(c);
}

static void listener_fini(wefti_listener *l)
{
  weft_io_destroy(l->io);
  weft_alarm_destroy(l->pause);
  (void)close(l->fd);
  struct stat st;
  if (l->is_unix && lstat(l->path, &st) == 0 && st.st_dev == l->dev &&
      st.st_ino == l->ino) {
    (void)unlink(l->path);
  }
}

static void stop_listening(weft_http *server)
{
  for (size_t i = 0; i < server->listener_count; i++) {
    listener_fini(&server->listeners[i]);
  }
  server->listener_count = 0;
}

static void release(weft_http *server)
{
  stop_listening(server);
  while (server->conns != NULL) {
    wefti_conn_kill(server->conns);
  }
  while (server->dead != NULL) {
    wefti_conn *c = server->dead;
    server->dead = c->next;
    conn_free(c);
  }
  wefti_slots_fini(server);
  while (server->out_cached > 0) {
    wefti_bytes_fini(&server->out_cache[--server->out_cached]);
  }
  weft_alarm_destroy(server->tick);
  wefti_auth_destroy(server->auth);
  free(server);
}

void wefti_enter(weft_http *server)
{
  server->depth++;
}

/* Dead connections are freed only when no dirty one is left, so none is in that list. */
static wefti_conn *take_dirty(weft_http *server)
{
  wefti_conn *c = server->dirty;
  if (c != NULL) {
    server->dirty = c->dirty_next;
    c->dirty = false;
  }
  return c;
}

void wefti_leave(weft_http *server)
{
  while (server->depth == 1 && !server->doomed) {
    wefti_conn *c = take_dirty(server);
    if (c != NULL) {
      if (!c->dead) {
        wefti_conn_settle(c);
      }
      continue;
    }
    c = server->dead;
    if (c == NULL) {
      break;
    }
    server->dead = c->next;
    if (c->known && server->opts.on_gone != NULL) {
      server->opts.on_gone(server->opts.arg, c->peer);
    }
    conn_free(c);
  }
  if (--server->depth == 0 && server->doomed) {
    release(server);
  }
}

static void on_tick(void *arg)
{
  weft_http *server = arg;
  server->tick_armed = false;
  wefti_enter(server);
  wefti_leave(server);
}

void wefti_touch(wefti_conn *c)
{
  weft_http *server = c->server;
  const bool outside = server->depth == 0;
  if (outside && !c->dead && !c->dirty && c->first == NULL && c->in.len == 0) {
    server->depth++; /* the last answer that c owes: sent at once; no handler can be
                        called */
    wefti_conn_settle(c);
    server->depth--;
  } else if (!c->dirty && !c->dead) {
    c->dirty = true;
    c->dirty_next = server->dirty;
    server->dirty = c;
  }
  if (outside && !server->tick_armed && (server->dirty != NULL || server->dead != NULL)) {
    server->tick_armed = true;
    weft_alarm_start(server->tick, 0);
  }
}

/* ---- accepting */

static void on_pause_over(void *arg)
{
  const wefti_listener *l = arg;
  weft_io_set(l->io, WEFT_IO_READ);
}

static void adopt(weft_http *server, const wefti_listener *l, int fd)
{
  server->stats.accepted++;
  if (!l->is_unix) {
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  const bool over =
      server->conn_count - server->refused_count >= server->opts.connections_max;
  if ((over && server->refused_count >= WEFTI_REFUSED_MAX) ||
      wefti_conn_open(server, fd, over) == NULL) {
    server->stats.refused += over;
    (void)close(fd);
  }
}

static void on_accept(void *arg, int fd, unsigned events)
{
  (void)events;
  wefti_listener *l = arg;
  weft_http *server = l->server;
  wefti_enter(server);
  for (unsigned i = 0; i < ACCEPT_BATCH; i++) {
    const int peer = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (peer >= 0) {
      adopt(server, l, peer);
      continue;
    }
    if (errno == EAGAIN) {
      break;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      weft_io_set(l->io, 0); /* it stays readable: without the pause we would spin */
      weft_alarm_start(l->pause, ACCEPT_PAUSE_MS);
      break;
    } /* else that one connection failed */
  }
  wefti_leave(server);
}

weft_err weft_http_listen(weft_http *server, const char *address, char *bound,
                          size_t bound_cap, weft_why *why)
{
  if (server->listener_count == WEFTI_LISTENERS_MAX) {
    return weft_whyf(why, WEFT_E_LIMIT, "listen on %s: a server has at most %d addresses",
                     address, WEFTI_LISTENERS_MAX);
  }
  wefti_address parsed;
  weft_err err = wefti_address_parse(address, &parsed, why);
  if (err != WEFT_OK) {
    return err;
  }
  wefti_listener *l = &server->listeners[server->listener_count];
  *l = (wefti_listener){ .server = server, .fd = -1 };
  err = wefti_address_listen(&parsed, &l->fd, bound, bound_cap, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (parsed.is_unix) {
    struct stat st;
    memcpy(l->path, parsed.host, sizeof l->path);
    l->is_unix = lstat(l->path, &st) == 0;
    l->dev = l->is_unix ? st.st_dev : 0;
    l->ino = l->is_unix ? st.st_ino : 0;
  }
  err = weft_alarm_create(server->loop, on_pause_over, l, &l->pause);
  if (err == WEFT_OK) {
    err = weft_io_create(server->loop, l->fd, WEFT_IO_READ, on_accept, l, &l->io);
  }
  if (err != WEFT_OK) {
    listener_fini(l);
    return weft_whyf(why, err, "listen on %s: %s", address, weft_strerror(err));
  }
  server->listener_count++;
  return WEFT_OK;
}

/* ---- life */

static size_t size_or(size_t value, size_t standard)
{
  return value != 0 ? value : standard;
}

static uint64_t ms_or(uint64_t value, uint64_t standard)
{
  return value != 0 ? value : standard;
}

static void set_defaults(weft_http_opts *o)
{
  o->head_max = size_or(o->head_max, (size_t)16 << 10);
  o->body_max = size_or(o->body_max, (size_t)32 << 20);
  o->body_memory_max = size_or(o->body_memory_max, (size_t)256 << 20);
  o->connections_max = size_or(o->connections_max, 4096);
  o->pipeline_max = size_or(o->pipeline_max, 1024);
  o->head_ms = ms_or(o->head_ms, 10000);
  o->body_ms = ms_or(o->body_ms, 60000);
  o->idle_ms = ms_or(o->idle_ms, 75000);
  o->write_ms = ms_or(o->write_ms, 30000);
}

static bool opts_ok(const weft_http_opts *o)
{
  if (o == NULL || o->size != sizeof *o || o->on_request == NULL ||
      (o->routes == NULL && o->route_count > 0)) {
    return false;
  }
  return o->head_max <= (1U << 20) &&
         o->body_max <= SIZE_MAX / 4; /* offsets are 32 bits */
}

weft_err weft_http_create(weft_loop *loop, const weft_http_opts *opts, weft_http **out)
{
  if (!opts_ok(opts)) {
    return WEFT_E_INVAL;
  }
  weft_http *server = calloc(1, sizeof *server);
  if (server == NULL) {
    return WEFT_E_NOMEM;
  }
  server->loop = loop;
  server->opts = *opts;
  set_defaults(&server->opts);
  weft_err err = weft_alarm_create(loop, on_tick, server, &server->tick);
  if (err == WEFT_OK && opts->token != NULL) {
    err = wefti_auth_create(opts->token, &server->auth);
    server->opts.token = NULL; /* only the digest is kept */
  }
  if (err != WEFT_OK) {
    release(server);
    return err;
  }
  *out = server;
  return WEFT_OK;
}

void weft_http_drain(weft_http *server)
{
  wefti_enter(server);
  server->draining = true;
  stop_listening(server);
  wefti_conn *next = NULL;
  for (wefti_conn *c = server->conns; c != NULL; c = next) {
    next = c->next;
    if (c->first == NULL && wefti_conn_unsent(c) == 0 && !c->lingering) {
      wefti_conn_kill(c);
    }
  }
  wefti_leave(server);
}

size_t weft_http_connections(const weft_http *server)
{
  return server->conn_count;
}

void weft_http_destroy(weft_http *server)
{
  if (server == NULL) {
    return;
  }
  server->doomed = true;
  if (server->depth == 0) {
    server->depth = 1; /* nothing is settled on the way out */
    release(server);
  }
}

void weft_http_stats_get(const weft_http *server, weft_http_stats *out)
{
  *out = server->stats;
}
