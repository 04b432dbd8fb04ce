#define _GNU_SOURCE /* accept4 */
#include "listen_gate.h"

#include "gate_pairs.h"
#include "nng_util.h"
#include "url_addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
  BACKLOG = 128,
  EVENTS = 64 /* taken per turn; also connections accepted per turn */
};

struct wefti_gate {
  pthread_mutex_t lock; /* over all that follows; not held in waits */
  wefti_relay relay;
  int listen_fd;
  int wake_fd;
  bool made; /* the socket file, which is mine */
  struct stat mine;
  wefti_addr at;
  bool ended;
  /* of wefti_gate_close */
  nng_socket sock;
  void (*after)(void *arg);
  void *arg;
};

/* Only our own file: somebody may have replaced it. */
static void unlink_mine(wefti_gate *g)
{
  struct stat st;
  if (g->made && lstat(g->at.sa.un.sun_path, &st) == 0 && st.st_ino == g->mine.st_ino &&
      st.st_dev == g->mine.st_dev) {
    (void)unlink(g->at.sa.un.sun_path);
  }
  g->made = false;
}

static void free_address(wefti_gate *g)
{
  unlink_mine(g);
  if (g->listen_fd >= 0) {
    (void)shutdown(g->listen_fd, SHUT_RDWR); /* a child just forked may hold it */
    (void)close(g->listen_fd);
  }
  g->listen_fd = -1;
}

void wefti_gate_destroy(wefti_gate *gate)
{
  if (gate == NULL) {
    return;
  }
  free_address(gate);
  if (gate->wake_fd >= 0) {
    (void)close(gate->wake_fd);
  }
  wefti_relay_fini(&gate->relay);
  (void)pthread_mutex_destroy(&gate->lock);
  free(gate);
}

static void take_clients(wefti_gate *g)
{
  for (unsigned i = 0; i < EVENTS; i++) {
    const int fd = accept4(g->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      wefti_addr_no_delay(fd);
      wefti_relay_add(&g->relay, fd);
    } else if (wefti_relay_pauses(&g->relay, errno) ||
               (errno != EINTR && errno != ECONNABORTED)) {
      return;
    }
  }
}

/* With g->lock held. */
static void turn(wefti_gate *g, const struct epoll_event *events, int n)
{
  for (int i = 0; i < n && !g->ended; i++) {
    if (events[i].data.ptr == g) {
      take_clients(g);
    } else if (events[i].data.ptr != NULL) {
      wefti_relay_event(&g->relay, events[i].data.ptr, events[i].events);
    }
  }
  wefti_relay_tick(&g->relay);
}

static void *run(void *arg)
{
  wefti_gate *g = arg;
  struct epoll_event events[EVENTS];
  (void)pthread_mutex_lock(&g->lock);
  while (!g->ended) {
    const int ms = wefti_relay_patience(&g->relay);
    (void)pthread_mutex_unlock(&g->lock);
    const int n = epoll_wait(g->relay.epoll, events, EVENTS, ms);
    (void)pthread_mutex_lock(&g->lock);
    turn(g, events, n);
  }
  (void)pthread_mutex_unlock(&g->lock);
  wefti_relay_hush(&g->relay);
  (void)nng_close(g->sock);
  wefti_relay_end(&g->relay);
  if (g->after != NULL) {
    g->after(g->arg);
  }
  wefti_gate_destroy(g);
  return NULL;
}

static weft_err bind_failed(const char *url, int e, weft_why *why)
{
  const weft_err err = e == EADDRINUSE      ? WEFT_E_EXISTS
                       : e == EADDRNOTAVAIL ? WEFT_E_INVAL
                       : e == EACCES        ? WEFT_E_DENIED
                                            : WEFT_E_SYS;
  return err == WEFT_E_EXISTS
             ? weft_whyf(why, err, "somebody listens on %s", url)
             : weft_whyf(why, err, "cannot listen on %s: errno %d", url, e);
}

static bool own_file(wefti_gate *g)
{
  const char *path = g->at.sa.un.sun_path;
  if (g->at.sa.any.sa_family != AF_UNIX) {
    return true;
  }
  g->made = lstat(path, &g->mine) == 0;
  return g->made && chmod(path, 0600) == 0;
}

static weft_err listen_at(wefti_gate *g, const char *url, weft_why *why)
{
  const int one = 1;
  struct epoll_event ev = { .events = EPOLLIN, .data.ptr = NULL };
  const bool room = wefti_relay_init(&g->relay);
  g->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  g->listen_fd =
      socket(g->at.sa.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (!room || g->listen_fd < 0 || g->wake_fd < 0 ||
      epoll_ctl(g->relay.epoll, EPOLL_CTL_ADD, g->wake_fd, &ev) != 0 ||
      !wefti_relay_listen(&g->relay, g->listen_fd, g)) {
    return weft_whyf(why, WEFT_E_SYS, "%s: no descriptors: errno %d", url, errno);
  }
  if (g->relay.tcp) { /* else the port of one that ended just now is taken for a minute */
    (void)setsockopt(g->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  }
  if (bind(g->listen_fd, &g->at.sa.any, g->at.len) != 0 || !own_file(g) ||
      listen(g->listen_fd, BACKLOG) != 0) {
    return bind_failed(url, errno, why);
  }
  return WEFT_OK;
}

/* Of the public url and nng's path. */
static weft_err set_addresses(wefti_gate *g, const char *url, const char *inner,
                              weft_why *why)
{
  wefti_addrs found;
  const size_t len = strlen(inner);
  weft_err err = wefti_addrs_parse(url, &found, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (found.count == 0 && !wefti_addrs_resolve(&found)) {
    return weft_whyf(why, WEFT_E_INVAL, "cannot listen on %s: no such address", url);
  }
  g->at = found.at[0];
  g->relay.tcp = g->at.sa.any.sa_family != AF_UNIX;
  g->relay.inner.sun_family = AF_UNIX;
  if (len >= sizeof g->relay.inner.sun_path) {
    return weft_whyf(why, WEFT_E_INVAL, "%s: longer than a socket address allows", inner);
  }
  memcpy(g->relay.inner.sun_path, inner, len + 1);
  return WEFT_OK;
}

weft_err wefti_gate_bind(const char *url, const char *inner, unsigned stall_ms,
                         wefti_gate **out, weft_why *why)
{
  wefti_gate *g = calloc(1, sizeof *g);
  if (g == NULL || pthread_mutex_init(&g->lock, NULL) != 0) {
    free(g);
    return weft_whyf(why, WEFT_E_NOMEM, "%s: out of memory", url);
  }
  g->listen_fd = g->wake_fd = g->relay.epoll = -1;
  g->relay.stall_ms = stall_ms;
  weft_err err = set_addresses(g, url, inner, why);
  if (err == WEFT_OK) {
    err = listen_at(g, url, why);
  }
  if (err != WEFT_OK) {
    wefti_gate_destroy(g);
    return err;
  }
  *out = g;
  return WEFT_OK;
}

unsigned wefti_gate_port(const wefti_gate *gate)
{
  wefti_addr at = { .len = sizeof at.sa };
  if (getsockname(gate->listen_fd, &at.sa.any, &at.len) != 0) {
    return 0;
  }
  return at.sa.any.sa_family == AF_INET6 ? ntohs(at.sa.v6.sin6_port)
                                         : ntohs(at.sa.v4.sin_port);
}

weft_err wefti_gate_start(wefti_gate *gate, weft_why *why)
{
  return wefti_detach(run, gate) ? WEFT_OK : weft_whyf(why, WEFT_E_SYS, "no thread");
}

void wefti_gate_close(wefti_gate *gate, nng_socket sock, void (*after)(void *arg),
                      void *arg)
{
  const uint64_t one = 1;
  (void)pthread_mutex_lock(&gate->lock);
  gate->sock = sock;
  gate->after = after;
  gate->arg = arg;
  gate->ended = true;
  free_address(gate);
  (void)unlink(gate->relay.inner.sun_path); /* nng does so too, some time later */
  wefti_relay_farewell(&gate->relay);
  wefti_relay_shutdown(&gate->relay);
  (void)!write(gate->wake_fd, &one, sizeof one); /* the first write: cannot fail */
  (void)pthread_mutex_unlock(&gate->lock);
}
