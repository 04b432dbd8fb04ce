#define _GNU_SOURCE /* accept4, struct ucred */
#include "dial_gate.h"

#include "gate_pairs.h"
#include "nng_util.h"
#include "url_addr.h"
#include "weft/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 8, EVENTS = 16 };

struct wefti_dialed {
  pthread_mutex_t lock; /* over all that follows; not held in waits */
  pthread_cond_t known; /* that first is */
  wefti_relay relay;
  wefti_addrs peer;
  size_t next; /* of peer's addresses */
  size_t failed;
  int listen_fd; /* where nng connects */
  int wake_fd;
  bool once, has_first, ended;
  int first; /* see wefti_dial_wait */
  /* of wefti_hang_up */
  nng_socket sock;
  void (*after)(void *arg);
  void *arg;
};

static void set_first(wefti_dialed *d, int rc)
{
  if (!d->has_first) {
    d->has_first = true;
    d->first = rc;
    (void)pthread_cond_broadcast(&d->known);
  }
}

static void on_connect(void *arg, int rc)
{
  wefti_dialed *d = arg;
  if (rc == 0) {
    set_first(d, 0);
    d->failed = 0;
    if (d->once) {
      wefti_relay_deafen(&d->relay); /* nng waits in the backlog, in vain */
    }
    return;
  }
  d->next = d->next + 1 < d->peer.count ? d->next + 1 : 0;
  if (++d->failed >= d->peer.count) {
    d->peer.count = d->peer.named ? 0 : d->peer.count; /* it may have moved */
    d->failed = 0;
    if (rc != EAGAIN && !wefti_relay_is_short(rc)) { /* that passes */
      set_first(d, rc);
    }
  }
}

/* nng, of this process: nobody else may speak for the peer. */
static bool is_ours(int fd)
{
  struct ucred who;
  socklen_t len = sizeof who;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && who.pid == getpid();
}

/* Names are resolved without the lock: that may take as long as it likes. */
static bool resolve(wefti_dialed *d)
{
  wefti_addrs found = d->peer;
  if (d->peer.count > 0) {
    return true;
  }
  (void)pthread_mutex_unlock(&d->lock);
  const bool ok = wefti_addrs_resolve(&found);
  (void)pthread_mutex_lock(&d->lock);
  d->peer = found;
  d->next = 0;
  if (!ok) {
    set_first(d, -1);
  }
  return ok && !d->ended;
}

static int connect_peer(void *arg)
{
  wefti_dialed *d = arg;
  if (!resolve(d)) {
    return -1;
  }
  const wefti_addr *to = &d->peer.at[d->next];
  const int fd =
      socket(to->sa.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0 && (connect(fd, &to->sa.any, to->len) == 0 || errno == EINPROGRESS)) {
    wefti_addr_no_delay(fd);
    return fd;
  }
  on_connect(d, errno);
  if (fd >= 0) {
    (void)close(fd);
  }
  return -1;
}

static void take_nng(wefti_dialed *d)
{
  const int fd = accept4(d->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0 && is_ours(fd)) {
    wefti_relay_await(&d->relay, fd);
  } else if (fd >= 0) {
    (void)close(fd);
  } else {
    (void)wefti_relay_pauses(&d->relay, errno);
  }
}

/* With d->lock held. */
static void turn(wefti_dialed *d, const struct epoll_event *events, int n)
{
  for (int i = 0; i < n && !d->ended; i++) {
    if (events[i].data.ptr == d) {
      take_nng(d);
    } else if (events[i].data.ptr != NULL) {
      wefti_relay_event(&d->relay, events[i].data.ptr, events[i].events);
    }
  }
  wefti_relay_tick(&d->relay);
}

static void dialed_free(wefti_dialed *d)
{
  if (d->listen_fd >= 0) {
    (void)close(d->listen_fd);
  }
  if (d->wake_fd >= 0) {
    (void)close(d->wake_fd);
  }
  wefti_relay_fini(&d->relay);
  (void)pthread_cond_destroy(&d->known);
  (void)pthread_mutex_destroy(&d->lock);
  free(d);
}

static void *run(void *arg)
{
  wefti_dialed *d = arg;
  struct epoll_event events[EVENTS];
  (void)pthread_mutex_lock(&d->lock);
  while (!d->ended) {
    const int ms = wefti_relay_patience(&d->relay);
    (void)pthread_mutex_unlock(&d->lock);
    const int n = epoll_wait(d->relay.epoll, events, EVENTS, ms);
    (void)pthread_mutex_lock(&d->lock);
    turn(d, events, n);
  }
  (void)pthread_mutex_unlock(&d->lock);
  wefti_relay_hush(&d->relay);
  (void)nng_close(d->sock);
  wefti_relay_end(&d->relay);
  if (d->after != NULL) {
    d->after(d->arg);
  }
  dialed_free(d);
  return NULL;
}

/* An address of the kernel's choice in the abstract namespace; url[cap]. */
static bool listen_for_nng(wefti_dialed *d, char *url, size_t cap)
{
  struct sockaddr_un sa = { .sun_family = AF_UNIX };
  socklen_t len = sizeof sa;
  const size_t head = offsetof(struct sockaddr_un, sun_path) + 1;
  struct epoll_event wake = { .events = EPOLLIN, .data.ptr = NULL };
  d->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (!wefti_relay_init(&d->relay) || d->listen_fd < 0 || d->wake_fd < 0 ||
      bind(d->listen_fd, (const struct sockaddr *)&sa, sizeof sa.sun_family) != 0 ||
      listen(d->listen_fd, BACKLOG) != 0 ||
      getsockname(d->listen_fd, (struct sockaddr *)&sa, &len) != 0 || len <= head ||
      !wefti_relay_listen(&d->relay, d->listen_fd, d) ||
      epoll_ctl(d->relay.epoll, EPOLL_CTL_ADD, d->wake_fd, &wake) != 0) {
    return false;
  }
  const int n = snprintf(url, cap, "abstract://%.*s", (int)(len - head), sa.sun_path + 1);
  return n > 0 && (size_t)n < cap;
}

static bool init_locks(wefti_dialed *d)
{
  if (pthread_mutex_init(&d->lock, NULL) != 0) {
    return false;
  }
  if (weft_cond_init(&d->known) == WEFT_OK) {
    return true;
  }
  (void)pthread_mutex_destroy(&d->lock);
  return false;
}

static weft_err dial_nng(nng_socket sock, const char *to, const char *url, weft_why *why)
{
  const int rv = nng_dial(sock, to, NULL, NNG_FLAG_NONBLOCK);
  return rv == 0 ? WEFT_OK
                 : weft_whyf(why, wefti_nng_err(rv), "cannot dial %s: %s", url,
                             wefti_nng_text(rv));
}

/* Of a gate that is set up: nng first, as it can be closed when there is no thread. */
static weft_err start(wefti_dialed *d, nng_socket sock, const char *inner,
                      const char *url, weft_why *why)
{
  const weft_err err = dial_nng(sock, inner, url, why);
  if (err == WEFT_OK && !wefti_detach(run, d)) {
    return weft_whyf(why, WEFT_E_SYS, "cannot dial %s: no thread", url);
  }
  return err;
}

weft_err wefti_dial(nng_socket sock, const char *url, bool once, wefti_dialed **out,
                    weft_why *why)
{
  char inner[64];
  const char *scheme = wefti_url_scheme(url);
  *out = NULL;
  if (scheme == NULL) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "address \"%s\": want ipc://, tcp:// or inproc://",
                     url == NULL ? "" : url);
  }
  if (strcmp(scheme, "inproc") == 0) {
    return dial_nng(sock, url, url, why);
  }
  wefti_dialed *d = calloc(1, sizeof *d);
  if (d == NULL || !init_locks(d)) {
    free(d);
    return weft_whyf(why, WEFT_E_NOMEM, "cannot dial %s: out of memory", url);
  }
  d->listen_fd = d->wake_fd = d->relay.epoll = -1;
  d->relay.connect = connect_peer;
  d->relay.on_connect = on_connect;
  d->relay.arg = d;
  d->once = once;
  d->relay.tcp = strcmp(scheme, "tcp") == 0;
  weft_err err = wefti_addrs_parse(url, &d->peer, why);
  if (err == WEFT_OK && !listen_for_nng(d, inner, sizeof inner)) {
    err = weft_whyf(why, WEFT_E_SYS, "cannot dial %s: no descriptors: errno %d", url,
                    errno);
  }
  if (err == WEFT_OK) {
    err = start(d, sock, inner, url, why);
  }
  if (err != WEFT_OK) {
    dialed_free(d);
    return err;
  }
  *out = d;
  return WEFT_OK;
}

int wefti_dial_wait(wefti_dialed *d, uint64_t timeout_ms)
{
  const uint64_t until_ms = weft_clock_ms() + timeout_ms;
  (void)pthread_mutex_lock(&d->lock);
  while (!d->has_first && weft_cond_wait_until(&d->known, &d->lock, until_ms)) {
  }
  const int rc = d->has_first ? d->first : ETIMEDOUT;
  (void)pthread_mutex_unlock(&d->lock);
  return rc;
}

void wefti_hang_up(wefti_dialed *d, nng_socket sock, void (*after)(void *arg), void *arg)
{
  if (d == NULL) {
    wefti_close(sock, after, arg);
    return;
  }
  const uint64_t one = 1;
  (void)pthread_mutex_lock(&d->lock);
  d->sock = sock;
  d->after = after;
  d->arg = arg;
  d->ended = true;
  wefti_relay_shutdown(&d->relay);
  (void)!write(d->wake_fd, &one, sizeof one); /* the first write: cannot fail */
  (void)pthread_mutex_unlock(&d->lock);
}
