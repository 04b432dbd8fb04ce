#define _GNU_SOURCE /* accept4 */
#include "tcpstore_peer.h"
#include "weft/tcpstore.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_AT_ONCE = 64 << 10, ACCEPT_AT_ONCE = 64, ACCEPT_PAUSE_MS = 100 };

typedef struct conn {
  weft_tcpstore_server *server;
  struct conn *prev;
  struct conn *next;
  int fd;
  weft_io *io;
  weft_alarm *hello;
  wefti_peer peer;
} conn;

struct weft_tcpstore_server {
  weft_loop *loop;
  int fd;
  weft_io *io;
  weft_alarm *pause; /* out of descriptors: accept later */
  uint16_t port;
  unsigned conns_max;
  unsigned count;
  uint64_t handshake_ms;
  conn *conns;
  conn *active; /* whose callback is on the stack: it closes itself */
  wefti_store store;
  uint8_t buf[READ_AT_ONCE];
};

static void conn_close(conn *c)
{
  weft_tcpstore_server *s = c->server;
  if (c->prev != NULL) {
    c->prev->next = c->next;
  } else {
    s->conns = c->next;
  }
  if (c->next != NULL) {
    c->next->prev = c->prev;
  }
  s->count--;
  weft_io_destroy(c->io);
  weft_alarm_destroy(c->hello);
  (void)close(c->fd);
  wefti_peer_fini(&c->peer);
  free(c);
}

static void watch(conn *c)
{
  unsigned events = 0;
  if (c->peer.out.len > c->peer.out_at || c->peer.err != WEFT_OK) {
    events |= WEFT_IO_WRITE; /* writable soon: then a failed one is closed, from its own
                              * callback, where nobody else is in the middle of it */
  }
  if (!wefti_peer_is_full(&c->peer)) {
    events |= WEFT_IO_READ;
  }
  weft_io_set(c->io, events);
}

static void on_news(void *arg, wefti_peer *peer)
{
  (void)arg;
  conn *c = peer->user;
  if (c->server->active != c) {
    watch(c);
  }
}

/* false: the connection is over. */
static bool flush(conn *c)
{
  while (c->peer.out.len > c->peer.out_at) {
    const ssize_t n = send(c->fd, c->peer.out.data + c->peer.out_at,
                           c->peer.out.len - c->peer.out_at, MSG_NOSIGNAL);
    if (n > 0) {
      wefti_peer_sent(&c->peer, (size_t)n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      return n < 0 && errno == EAGAIN;
    }
  }
  return true;
}

static bool receive(conn *c)
{
  weft_tcpstore_server *s = c->server;
  const ssize_t n = recv(c->fd, s->buf, sizeof s->buf, 0);
  if (n > 0) {
    wefti_peer_feed(&c->peer, s->buf, (size_t)n);
    if (c->peer.greeted) {
      weft_alarm_stop(c->hello);
    }
    return true;
  }
  return n < 0 && (errno == EAGAIN || errno == EINTR);
}

static void on_conn(void *arg, int fd, unsigned events)
{
  (void)fd;
  conn *c = arg;
  weft_tcpstore_server *s = c->server;
  s->active = c;
  bool open = c->peer.err == WEFT_OK;
  if (open && (events & WEFT_IO_READ) != 0) {
    open = receive(c);
  }
  open = open && flush(c) && c->peer.err == WEFT_OK;
  s->active = NULL;
  if (open) {
    watch(c);
  } else {
    conn_close(c);
  }
}

static void on_no_hello(void *arg)
{
  conn_close(arg);
}

static weft_err conn_open(weft_tcpstore_server *s, int fd)
{
  conn *c = calloc(1, sizeof *c);
  if (c == NULL) {
    return WEFT_E_NOMEM;
  }
  c->server = s;
  c->fd = fd;
  wefti_peer_init(&c->peer, &s->store, c);
  weft_err err = weft_io_create(s->loop, fd, WEFT_IO_READ, on_conn, c, &c->io);
  if (err == WEFT_OK) {
    err = weft_alarm_create(s->loop, on_no_hello, c, &c->hello);
  }
  if (err != WEFT_OK) {
    weft_io_destroy(c->io);
    free(c);
    return err;
  }
  weft_alarm_start(c->hello, s->handshake_ms);
  c->next = s->conns;
  if (s->conns != NULL) {
    s->conns->prev = c;
  }
  s->conns = c;
  s->count++;
  return WEFT_OK;
}

static void on_pause_over(void *arg)
{
  weft_tcpstore_server *s = arg;
  weft_io_set(s->io, WEFT_IO_READ);
}

static void on_listen(void *arg, int fd, unsigned events)
{
  (void)events;
  weft_tcpstore_server *s = arg;
  for (unsigned i = 0; i < ACCEPT_AT_ONCE; i++) {
    const int c = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (c < 0) {
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        weft_io_set(s->io, 0); /* EMFILE and its like: not in a busy loop */
        weft_alarm_start(s->pause, ACCEPT_PAUSE_MS);
      }
      return;
    }
    const int one = 1;
    (void)setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (s->count >= s->conns_max || conn_open(s, c) != WEFT_OK) {
      (void)close(c);
    }
  }
}

/* ---- creation */

static weft_err parse_address(const char *host, uint16_t port,
                              struct sockaddr_storage *sa, socklen_t *len)
{
  struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port) };
  struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
  if (inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
    memcpy(sa, &v4, sizeof v4);
    *len = sizeof v4;
    return WEFT_OK;
  }
  if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1) {
    memcpy(sa, &v6, sizeof v6);
    *len = sizeof v6;
    return WEFT_OK;
  }
  return WEFT_E_INVAL;
}

static weft_err bound_port(int fd, uint16_t *port)
{
  struct sockaddr_storage sa = { 0 };
  socklen_t len = sizeof sa;
  struct sockaddr_in6 v6;
  struct sockaddr_in v4;
  if (getsockname(fd, (struct sockaddr *)&sa, &len) != 0) {
    return WEFT_E_SYS;
  }
  memcpy(&v6, &sa, sizeof v6);
  memcpy(&v4, &sa, sizeof v4);
  *port = ntohs(sa.ss_family == AF_INET6 ? v6.sin6_port : v4.sin_port);
  return WEFT_OK;
}

static weft_err listen_on(weft_tcpstore_server *s, const char *host, uint16_t port,
                          weft_why *why)
{
  struct sockaddr_storage sa = { 0 };
  socklen_t len = 0;
  if (parse_address(host, port, &sa, &len) != WEFT_OK) {
    return weft_whyf(why, WEFT_E_INVAL, "TCPStore: '%s' is not an address to bind", host);
  }
  s->fd = socket(sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (s->fd < 0) {
    return weft_whyf(why, WEFT_E_SYS, "TCPStore: no socket (errno %d)", errno);
  }
  const int one = 1;
  const int zero = 0;
  (void)setsockopt(s->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (sa.ss_family == AF_INET6) {
    (void)setsockopt(s->fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
  }
  if (bind(s->fd, (const struct sockaddr *)&sa, len) != 0 ||
      listen(s->fd, SOMAXCONN) != 0 || bound_port(s->fd, &s->port) != WEFT_OK) {
    return weft_whyf(why, WEFT_E_SYS, "TCPStore: cannot listen on %s port %u: %s", host,
                     port,
                     errno == EADDRINUSE ? "the port is taken" : "not possible here");
  }
  return WEFT_OK;
}

static void configure(weft_tcpstore_server *s, const weft_tcpstore_server_opts *o)
{
  s->conns_max = o->conns_max == 0 ? 1024 : o->conns_max;
  s->handshake_ms = o->handshake_ms == 0 ? 10000 : o->handshake_ms;
  s->store.map.keys_max = o->keys_max == 0 ? WEFTI_ST_KEYS_MAX : o->keys_max;
  s->store.map.bytes_max = o->bytes_max == 0 ? (size_t)256 << 20 : o->bytes_max;
  s->store.news = on_news;
  s->store.changed = o->changed;
  s->store.changed_arg = o->changed_arg;
}

weft_err weft_tcpstore_server_create(weft_loop *loop,
                                     const weft_tcpstore_server_opts *opts,
                                     weft_tcpstore_server **out, weft_why *why)
{
  if (opts->size != sizeof *opts) {
    return weft_whyf(why, WEFT_E_INVAL, "weft_tcpstore_server_opts of another size");
  }
  weft_tcpstore_server *s = calloc(1, sizeof *s);
  if (s == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "out of memory for a TCPStore server");
  }
  s->loop = loop;
  s->fd = -1;
  configure(s, opts);
  weft_err err =
      listen_on(s, opts->host == NULL ? "127.0.0.1" : opts->host, opts->port, why);
  if (err == WEFT_OK) {
    err = weft_alarm_create(loop, on_pause_over, s, &s->pause);
  }
  if (err == WEFT_OK) {
    err = weft_io_create(loop, s->fd, WEFT_IO_READ, on_listen, s, &s->io);
  }
  if (err != WEFT_OK) {
    weft_tcpstore_server_destroy(s);
    return err;
  }
  *out = s;
  return WEFT_OK;
}

uint16_t weft_tcpstore_server_port(const weft_tcpstore_server *server)
{
  return server->port;
}

void weft_tcpstore_server_destroy(weft_tcpstore_server *server)
{
  if (server == NULL) {
    return;
  }
  for (conn *c = server->conns, *next; c != NULL; c = next) {
    next = c->next;
    conn_close(c);
  }
  weft_io_destroy(server->io);
  weft_alarm_destroy(server->pause);
  if (server->fd >= 0) {
    (void)close(server->fd);
  }
  wefti_map_fini(&server->store.map);
  free(server);
}

/* ---- the host's hand */

static wefti_span span(const char *key)
{
  return (wefti_span){ .at = (const uint8_t *)key, .len = strlen(key) };
}

weft_err weft_tcpstore_server_set(weft_tcpstore_server *server, const char *key,
                                  const void *value, size_t len)
{
  wefti_map *m = &server->store.map;
  wefti_key *k;
  weft_err err = strlen(key) > WEFT_TCPSTORE_KEY_MAX || len > WEFT_TCPSTORE_VALUE_MAX
                     ? WEFT_E_LIMIT
                     : wefti_map_want(m, span(key), &k);
  if (err != WEFT_OK) {
    return err;
  }
  err = wefti_map_set(m, k, (wefti_span){ .at = value, .len = len }, (wefti_span){ 0 });
  if (err != WEFT_OK) {
    wefti_map_tidy(m, k);
    return err;
  }
  wefti_store_wake(&server->store, k);
  wefti_store_settle(&server->store);
  return WEFT_OK;
}

weft_err weft_tcpstore_server_add(weft_tcpstore_server *server, const char *key,
                                  int64_t delta, int64_t *out)
{
  wefti_map *m = &server->store.map;
  wefti_key *k;
  weft_err err = strlen(key) > WEFT_TCPSTORE_KEY_MAX ? WEFT_E_LIMIT
                                                     : wefti_map_want(m, span(key), &k);
  if (err != WEFT_OK) {
    return err;
  }
  err = wefti_map_add(m, k, delta, out);
  if (err != WEFT_OK) {
    wefti_map_tidy(m, k);
    return err;
  }
  wefti_store_wake(&server->store, k);
  wefti_store_settle(&server->store);
  return WEFT_OK;
}

bool weft_tcpstore_server_get(const weft_tcpstore_server *server, const char *key,
                              const uint8_t **value, size_t *len)
{
  const wefti_key *k = wefti_map_find(&server->store.map, span(key));
  if (k == NULL || !k->present) {
    return false;
  }
  *value = k->value;
  *len = k->len;
  return true;
}
