#include "fixture.h"

#include "weft_test.h"

#include "weft/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_MS = 5000 };

static const weft_http_route routes[] = {
  { "GET", "/weight_info", 0, R_INFO },
  { "POST", "/echo", WEFT_HTTP_BODY, R_ECHO },
  { "POST", "/sink", 0, R_SINK },
  { "GET", "/later", 0, R_LATER },
  { "POST", "/later", WEFT_HTTP_BODY, R_LATER },
  { "GET", "/stream", WEFT_HTTP_STREAM, R_STREAM },
  { "GET", "/dev", WEFT_HTTP_DEV, R_DEV },
  { "GET", "/health", WEFT_HTTP_OPEN, R_OPEN },
  { "GET", "/query", 0, R_QUERY },
  { "GET", "/header", 0, R_HEADER },
  { "GET", "/destroy", 0, R_DESTROY },
  { "GET", "/empty", 0, R_EMPTY },
  { "GET", "/drain", 0, R_DRAIN },
  { "GET", "/short", WEFT_HTTP_STREAM, R_SHORT },
  { "GET", "/odd", 0, R_ODD },
};

static void respond(fixture *f, weft_http_id id, int status, const void *body, size_t len)
{
  const weft_http_reply r = { .status = status, .body = body, .body_len = len };
  weft_http_respond(f->server, id, &r);
}

static void hold(fixture *f, const weft_http_request *req)
{
  assert_true(f->held_count < HELD_MAX);
  f->held[f->held_count] = req->id;
  (void)snprintf(f->held_query[f->held_count], sizeof f->held_query[0], "%s", req->query);
  f->held_count++;
}

static void answer_odd(fixture *f, weft_http_id id)
{
  static const weft_http_header headers[] = {
    { "X-Good", "a b" },
    { "X-Split", "a\r\nX-Evil: b" },
    { "X-Line", "a\nb" },
    { "X Name", "a" },
    { "", "a" },
    { "Content-Length", "1" },
    { "Connection", "close" },
    { "X-Null", NULL },
  };
  const weft_http_reply r = {
    .status = 409,
    .content_type = "text/plain",
    .headers = headers,
    .header_count = sizeof headers / sizeof *headers,
    .body = "odd",
    .body_len = 3,
  };
  weft_http_respond(f->server, id, &r);
  weft_http_respond(f->server, id, &r);
  weft_http_respond(f->server, 0, &r);
  weft_http_respond(f->server, UINT64_MAX, &r);
  weft_http_stream_begin(f->server, id);
  weft_http_stream_end(f->server, id);
}

static void answer_short(fixture *f, weft_http_id id)
{
  weft_http_stream_begin(f->server, id);
  assert_true(weft_http_stream_send(f->server, id, NULL, "x", 1));
  weft_http_stream_end(f->server, id);
}

static void answer_now(fixture *f, const weft_http_request *req)
{
  static const char info[] = "{\"weight_version\":\"default\"}";
  char out[256] = "";
  switch (req->route->id) {
  case R_ECHO:
    respond(f, req->id, 200, req->body == NULL ? NULL : req->body->data,
            req->body == NULL ? 0 : req->body->len);
    return;
  case R_SINK:
    assert_null(req->body);
    respond(f, req->id, 200, "{}", 2);
    return;
  case R_QUERY: {
    const weft_err err = weft_http_query(req->query, "k", out, sizeof out);
    respond(f, req->id, err == WEFT_OK ? 200 : 400, out, strlen(out));
    return;
  }
  case R_HEADER: {
    const char *v = weft_http_request_header(req, "x-TEST");
    respond(f, req->id, v == NULL ? 404 : 200, v, v == NULL ? 0 : strlen(v));
    return;
  }
  case R_EMPTY:
    respond(f, req->id, 204, NULL, 0);
    return;
  case R_SHORT:
    answer_short(f, req->id);
    return;
  case R_ODD:
    answer_odd(f, req->id);
    return;
  case R_DRAIN:
    weft_http_drain(f->server);
    respond(f, req->id, 200, "{}", 2);
    return;
  case R_DESTROY:
    weft_http_destroy(f->server);
    f->server = NULL;
    return;
  default:
    respond(f, req->id, 200, info, sizeof info - 1);
    return;
  }
}

static void on_request(void *arg, const weft_http_request *req)
{
  fixture *f = arg;
  (void)pthread_mutex_lock(&f->lock);
  f->requests++;
  f->last_peer = req->peer;
  const bool held = req->route->id == R_LATER || req->route->id == R_STREAM;
  if (held) {
    hold(f, req);
  }
  (void)pthread_cond_broadcast(&f->changed);
  (void)pthread_mutex_unlock(&f->lock);
  if (req->route->id == R_STREAM) {
    weft_http_stream_begin(f->server, req->id);
  } else if (!held) {
    answer_now(f, req);
  }
}

static void on_gone(void *arg, uint64_t peer)
{
  fixture *f = arg;
  (void)pthread_mutex_lock(&f->lock);
  const bool destroy = f->destroy_when_gone;
  f->gone++;
  f->last_gone = peer;
  (void)pthread_cond_broadcast(&f->changed);
  (void)pthread_mutex_unlock(&f->lock);
  if (destroy) {
    weft_http_destroy(f->server);
    f->server = NULL;
  }
}

void fixture_start(fixture *f, const weft_http_opts *opts, const char *address)
{
  memset(f, 0, sizeof *f);
  (void)pthread_mutex_init(&f->lock, NULL);
  assert_ok(weft_cond_init(&f->changed));
  const weft_runtime_opts ro = { .size = sizeof ro, .loops = 1 };
  assert_ok(weft_runtime_create(&ro, &f->rt));
  f->loop = weft_runtime_loop(f->rt, 0);
  if (opts != NULL) {
    f->opts = *opts;
  }
  f->opts.size = sizeof f->opts;
  f->opts.routes = routes;
  f->opts.route_count = sizeof routes / sizeof *routes;
  f->opts.on_request = on_request;
  f->opts.on_gone = on_gone;
  f->opts.arg = f;
  assert_ok(weft_http_create(f->loop, &f->opts, &f->server));
  weft_why why;
  const weft_err err =
      weft_http_listen(f->server, address, f->bound, sizeof f->bound, &why);
  if (err != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  assert_ok(weft_runtime_start_all(f->rt));
}

typedef struct call {
  fixture *f;
  void (*fn)(void *arg);
  void *arg;
} call;

static void run_call(void *arg)
{
  call *c = arg;
  c->fn(c->arg);
  fixture *f = c->f;
  (void)pthread_mutex_lock(&f->lock);
  f->called = true;
  (void)pthread_cond_broadcast(&f->changed);
  (void)pthread_mutex_unlock(&f->lock);
}

void fixture_call(fixture *f, void (*fn)(void *arg), void *arg)
{
  call c = { f, fn, arg };
  (void)pthread_mutex_lock(&f->lock);
  f->called = false;
  assert_ok(weft_loop_call(f->loop, run_call, &c));
  while (!f->called) {
    (void)pthread_cond_wait(&f->changed, &f->lock);
  }
  (void)pthread_mutex_unlock(&f->lock);
}

static void destroy_server(void *arg)
{
  fixture *f = arg;
  weft_http_destroy(f->server);
  f->server = NULL;
}

void fixture_stop(fixture *f)
{
  fixture_call(f, destroy_server, f);
  weft_runtime_stop(f->rt, 1000);
  weft_runtime_join(f->rt);
  weft_runtime_destroy(f->rt);
  (void)pthread_cond_destroy(&f->changed);
  (void)pthread_mutex_destroy(&f->lock);
}

void fixture_wait_held(fixture *f, size_t n)
{
  const uint64_t until_ms = weft_clock_ms() + PATIENCE_MS;
  (void)pthread_mutex_lock(&f->lock);
  while (f->held_count < n && weft_cond_wait_until(&f->changed, &f->lock, until_ms)) {
  }
  const size_t have = f->held_count;
  (void)pthread_mutex_unlock(&f->lock);
  if (have < n) {
    fail_msg("%zu requests held, want %zu", have, n);
  }
}

void fixture_wait_gone(fixture *f, unsigned n)
{
  const uint64_t until_ms = weft_clock_ms() + PATIENCE_MS;
  (void)pthread_mutex_lock(&f->lock);
  while (f->gone < n && weft_cond_wait_until(&f->changed, &f->lock, until_ms)) {
  }
  const unsigned have = f->gone;
  (void)pthread_mutex_unlock(&f->lock);
  if (have < n) {
    fail_msg("%u peers gone, want %u", have, n);
  }
}

static void release_forward(void *arg)
{
  fixture *f = arg;
  for (size_t i = 0; i < f->held_count; i++) {
    respond(f, f->held[i], 200, f->held_query[i], strlen(f->held_query[i]));
  }
  f->held_count = 0;
}

static void release_reversed(void *arg)
{
  fixture *f = arg;
  while (f->held_count > 0) {
    f->held_count--;
    respond(f, f->held[f->held_count], 200, f->held_query[f->held_count],
            strlen(f->held_query[f->held_count]));
  }
}

void fixture_release(fixture *f, bool reversed)
{
  fixture_call(f, reversed ? release_reversed : release_forward, f);
}

typedef struct stats_call {
  fixture *f;
  weft_http_stats stats;
  size_t connections;
} stats_call;

static void take_stats(void *arg)
{
  stats_call *s = arg;
  weft_http_stats_get(s->f->server, &s->stats);
  s->connections = weft_http_connections(s->f->server);
}

void fixture_stats(fixture *f, weft_http_stats *out, size_t *connections)
{
  stats_call s = { .f = f };
  fixture_call(f, take_stats, &s);
  if (out != NULL) {
    *out = s.stats;
  }
  if (connections != NULL) {
    *connections = s.connections;
  }
}

void fixture_wait_connections(fixture *f, size_t n)
{
  size_t have = 0;
  for (unsigned i = 0; i < 5000; i++) {
    fixture_stats(f, NULL, &have);
    if (have == n) {
      return;
    }
    const struct timespec ms = { .tv_nsec = 1000000 };
    (void)nanosleep(&ms, NULL);
  }
  fail_msg("%zu connections, want %zu", have, n);
}

/* ---- client */

static int dial_unix(const char *path)
{
  struct sockaddr_un un = { .sun_family = AF_UNIX };
  (void)snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&un, sizeof un), 0);
  return fd;
}

static int dial_tcp(const char *bound)
{
  const char *colon = strrchr(bound, ':');
  assert_non_null(colon);
  const uint16_t port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
  const bool v6 = bound[0] == '[';
  const int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
  assert_true(fd >= 0);
  if (v6) {
    const struct sockaddr_in6 to = { .sin6_family = AF_INET6,
                                     .sin6_port = port,
                                     .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
  } else {
    const struct sockaddr_in to = { .sin_family = AF_INET,
                                    .sin_port = port,
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
  }
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

int dial(const char *bound)
{
  const int fd = strncmp(bound, "unix:", 5) == 0 ? dial_unix(bound + 5) : dial_tcp(bound);
  const struct timeval limit = { .tv_sec = 10 };
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

void client_open(client *c, const fixture *f)
{
  c->fd = dial(f->bound);
  c->len = 0;
  c->data = malloc(REPLY_MAX + 1);
  assert_non_null(c->data);
}

void client_close(client *c)
{
  (void)close(c->fd);
  free(c->data);
}

void client_send(client *c, const void *data, size_t len)
{
  const char *p = data;
  while (len > 0) {
    const ssize_t n = send(c->fd, p, len, MSG_NOSIGNAL);
    if (n <= 0) {
      return; /* refused meanwhile: the answer says why */
    }
    p += n;
    len -= (size_t)n;
  }
}

void client_text(client *c, const char *text)
{
  client_send(c, text, strlen(text));
}

/* False at the end or after an error. */
static bool receive(client *c)
{
  assert_true(c->len < REPLY_MAX);
  const ssize_t n = recv(c->fd, c->data + c->len, REPLY_MAX - c->len, 0);
  if (n < 0 && (errno == EAGAIN)) {
    fail_msg("nothing came for 10 s");
  }
  if (n <= 0) {
    return false;
  }
  c->len += (size_t)n;
  return true;
}

static void take(client *c, size_t n)
{
  memmove(c->data, c->data + n, c->len - n);
  c->len -= n;
}

static size_t find(const client *c, const char *text)
{
  const size_t n = strlen(text);
  for (size_t i = 0; i + n <= c->len; i++) {
    if (memcmp(c->data + i, text, n) == 0) {
      return i + n;
    }
  }
  return 0;
}

bool client_until(client *c, const char *text)
{
  size_t at = 0;
  while ((at = find(c, text)) == 0) {
    if (!receive(c)) {
      return false;
    }
  }
  take(c, at);
  return true;
}

bool client_reply(client *c, reply *r, bool no_body)
{
  if (r->body != NULL) { /* the one before */
    take(c, r->body_len);
    r->body = NULL;
  }
  size_t head = 0;
  while ((head = find(c, "\r\n\r\n")) == 0) {
    if (!receive(c)) {
      return false;
    }
  }
  assert_true(head < sizeof r->head);
  memcpy(r->head, c->data, head);
  r->head[head] = '\0';
  assert_memory_equal(r->head, "HTTP/1.1 ", 9);
  r->status = (int)strtol(r->head + 9, NULL, 10);
  const char *length = strstr(r->head, "\r\nContent-Length: ");
  r->body_len = 0;
  if (!no_body && length != NULL) {
    r->body_len = strtoul(length + 18, NULL, 10);
  }
  take(c, head);
  while (c->len < r->body_len) {
    if (!receive(c)) {
      return false;
    }
  }
  r->body = c->data;
  return true;
}

bool client_at_end(client *c)
{
  while (receive(c)) {
  }
  return true;
}

bool reply_has(const reply *r, const char *line)
{
  char want[300];
  (void)snprintf(want, sizeof want, "\r\n%s\r\n", line);
  return strstr(r->head, want) != NULL;
}

int one_shot(const fixture *f, const char *text, size_t len)
{
  client c;
  reply r = { 0 };
  client_open(&c, f);
  client_send(&c, text, len);
  int status = 0;
  if (client_reply(&c, &r, false)) {
    status = r.status;
    take(&c, r.body_len);
  }
  while (receive(&c)) {
  }
  if (c.len > 0) {
    fail_msg("more than one answer to: %.*s", (int)len, text);
  }
  client_close(&c);
  return status;
}

void body_is(const reply *r, const char *want)
{
  assert_int_equal(r->body_len, strlen(want));
  assert_memory_equal(r->body, want, r->body_len);
}

void expect(client *c, reply *r, const char *request, int status, const char *body)
{
  client_text(c, request);
  assert_true(client_reply(c, r, false));
  if (r->status != status) {
    fail_msg("%s: %s", request, r->head);
  }
  body_is(r, body);
}
