#define _GNU_SOURCE
#include "gate_pairs.h"

#include "gate_end.h"
#include "nng_util.h"
#include "weft/clock.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
  HELLO = 8,       /* bytes of an SP greeting */
  HELLO_MS = 2000, /* patience with a client that has not sent it; it does so at once */
  FLUSH_MS = 1000, /* with one that does not read what was sent before the end */
  QUIET_MS = 100,  /* between the last byte of one that is gone and nng's hearing of it */
  PAUSE_MS = 20,   /* of a listener, when descriptors or memory are short */
  KNOCK_MS = 20,   /* pause while nng's backlog is full */
  KNOCKS_MAX = 250 /* then it is told to come again */
};

/* nng's greeting has not come in MEETING nor in WAITING, where the peer has not been
 * connected to: hanging up now is what a listener or dialer of nng's dies of.  In LEAVING
 * the client is gone and nng's connection waits to be quiet: see dial_gate.h. */
typedef enum phase {
  GREETING,
  KNOCKING,
  MEETING,
  WAITING,
  CONNECTING,
  OPEN,
  LEAVING,
  DEAD
} phase;

struct wefti_pair {
  wefti_end client, nng;
  phase phase;
  unsigned knocks;
  uint8_t hello[HELLO];
  size_t got;    /* bytes of hello */
  int64_t due;   /* 0 = no deadline */
  int unread[2]; /* bytes between the gate and nng, either way; of LEAVING */
  bool stirred;  /* nng has written since the last look; of LEAVING */
  wefti_pair *next, *prev;
};

bool wefti_relay_init(wefti_relay *r)
{
  r->epoll = epoll_create1(EPOLL_CLOEXEC);
  r->scratch = malloc(WEFTI_RELAY_CHUNK + WEFTI_SP_ROOM(WEFTI_RELAY_CHUNK));
  r->translated = r->scratch == NULL ? NULL : r->scratch + WEFTI_RELAY_CHUNK;
  return r->epoll >= 0 && r->scratch != NULL;
}

void wefti_relay_fini(wefti_relay *r)
{
  if (r->epoll >= 0) {
    (void)close(r->epoll);
  }
  free(r->scratch);
}

int64_t wefti_relay_now(void)
{
  return (int64_t)weft_clock_ms() + 1;
}

/* ---- the listener */

static bool arm_listener(const wefti_relay *r, int op, uint32_t events)
{
  struct epoll_event ev = { .events = events, .data.ptr = r->owner };
  return epoll_ctl(r->epoll, op, r->listener, &ev) == 0;
}

bool wefti_relay_listen(wefti_relay *r, int fd, void *owner)
{
  r->listener = fd;
  r->owner = owner;
  return arm_listener(r, EPOLL_CTL_ADD, EPOLLIN);
}

void wefti_relay_deafen(wefti_relay *r)
{
  r->paused_until = 0;
  (void)arm_listener(r, EPOLL_CTL_MOD, 0);
}

bool wefti_relay_is_short(int rc)
{
  return rc == EMFILE || rc == ENFILE || rc == ENOMEM || rc == ENOBUFS;
}

bool wefti_relay_pauses(wefti_relay *r, int rc)
{
  if (!wefti_relay_is_short(rc)) {
    return false;
  }
  r->paused_until = wefti_relay_now() + PAUSE_MS;
  (void)arm_listener(r, EPOLL_CTL_MOD, 0);
  return true;
}

/* ---- pairs */

static void set_due(wefti_relay *r, wefti_pair *p, int64_t ms)
{
  p->due = wefti_relay_now() + ms;
  if (r->next_due == 0 || p->due < r->next_due) {
    r->next_due = p->due;
  }
}

static void drop(wefti_relay *r, wefti_pair *p)
{
  wefti_end_close(r, &p->client);
  wefti_end_close(r, &p->nng);
  *(p->prev == NULL ? &r->pairs : &p->prev->next) = p->next;
  if (p->next != NULL) {
    p->next->prev = p->prev;
  }
  p->phase = DEAD;
  p->next = r->dead;
  r->dead = p;
}

static bool readable_wanted(const wefti_end *e)
{
  return !e->ended && e->other->len == 0 && !e->other->deaf;
}

static bool retune(wefti_relay *r, wefti_end *e)
{
  uint32_t events = readable_wanted(e) ? (uint32_t)EPOLLIN : 0u;
  if (e->len > 0) {
    events |= (uint32_t)EPOLLOUT;
  }
  return wefti_end_watch(r, e, events);
}

/* Has anything moved on nng's connection since the last look? */
static bool moved(wefti_pair *p)
{
  int now[2] = { 0, 0 };
  (void)ioctl(p->nng.fd, SIOCOUTQ, &now[0]);
  (void)ioctl(p->nng.fd, FIONREAD, &now[1]);
  const bool same = now[0] == p->unread[0] && now[1] == p->unread[1] && !p->stirred;
  memcpy(p->unread, now, sizeof now);
  p->stirred = false;
  return !same;
}

/* Nobody is there for what nng writes; but while it cannot write, it does not read. */
static void discard(const wefti_relay *r, wefti_pair *p)
{
  ssize_t n;
  while ((n = recv(p->nng.fd, r->scratch, WEFTI_RELAY_CHUNK, MSG_DONTWAIT)) > 0) {
    p->stirred = true;
  }
  p->nng.ended = n == 0 || (errno != EAGAIN && errno != EINTR);
}

/* Of LEAVING, now and then: is nng to be hung up on?  When it has read everything nothing
 * is discarded any more: one that goes on writing fills the socket, and is quiet then. */
static bool is_quiet(wefti_relay *r, wefti_pair *p)
{
  const bool still = !moved(p);
  const bool all_read = p->unread[0] == 0;
  if (!all_read) {
    discard(r, p);
  }
  return p->nng.ended ||
         !wefti_end_watch(r, &p->nng, all_read ? 0u : (uint32_t)EPOLLIN) ||
         (still && all_read);
}

static void leave(wefti_relay *r, wefti_pair *p)
{
  wefti_end_close(r, &p->client);
  p->phase = LEAVING;
  p->stirred = true;
  set_due(r, p, QUIET_MS);
  if (is_quiet(r, p)) {
    drop(r, p);
  }
}

/* Ends the pair when one side has ended and the other has all it said. */
static void settle(wefti_relay *r, wefti_pair *p)
{
  if (p->nng.ended && p->client.len == 0) {
    drop(r, p);
    return;
  }
  if (p->client.ended && p->nng.len == 0) {
    leave(r, p);
    return;
  }
  const bool over = p->client.ended || p->client.deaf || p->nng.ended || p->nng.deaf;
  const bool stalls = r->stall_ms != 0 && p->client.len > 0;
  if (over && (p->due == 0 || p->due > wefti_relay_now() + FLUSH_MS)) {
    set_due(r, p, FLUSH_MS);
  } else if (!over && stalls && p->due == 0) {
    set_due(r, p, r->stall_ms);
  } else if (!over && !stalls) {
    p->due = 0;
  }
  if (!retune(r, &p->client) || !retune(r, &p->nng)) {
    leave(r, p);
  }
}

static void knock(wefti_relay *r, wefti_pair *p)
{
  wefti_end *e = &p->nng;
  if (e->fd < 0) {
    e->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  }
  /* All that can fail comes before the connection. */
  if (e->fd < 0 || !wefti_end_watch(r, e, EPOLLIN) ||
      !wefti_end_watch(r, &p->client, 0)) {
    drop(r, p);
    return;
  }
  if (connect(e->fd, (const struct sockaddr *)&r->inner, sizeof r->inner) != 0) {
    if (errno != EAGAIN || ++p->knocks == KNOCKS_MAX || !wefti_end_watch(r, e, 0)) {
      drop(r, p);
      return;
    }
    p->phase = KNOCKING;
    set_due(r, p, KNOCK_MS);
    return;
  }
  p->phase = MEETING;
  p->due = 0;
  if (!wefti_end_give(e, p->hello, HELLO)) {
    p->client.ended = true;
  }
}

static void greet(wefti_relay *r, wefti_pair *p)
{
  static const uint8_t sp[4] = { 0, 'S', 'P', 0 };
  const ssize_t n =
      recv(p->client.fd, p->hello + p->got, sizeof p->hello - p->got, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (n <= 0) {
    drop(r, p);
    return;
  }
  p->got += (size_t)n;
  const uint8_t *h = p->hello;
  if (p->got < HELLO) {
    return;
  }
  if (memcmp(h, sp, sizeof sp) != 0 || h[6] != 0 || h[7] != 0) {
    drop(r, p);
    return;
  }
  knock(r, p);
}

/* Takes the one that there is; NULL = no memory. */
static wefti_pair *add(wefti_relay *r, int client, int nng)
{
  wefti_pair *p = calloc(1, sizeof *p);
  if (p == NULL) {
    (void)close(client >= 0 ? client : nng);
    return NULL;
  }
  p->client = (wefti_end){ .pair = p, .other = &p->nng, .fd = client };
  p->nng = (wefti_end){ .pair = p, .other = &p->client, .fd = nng };
  if (r->tcp) {
    p->client.frames.change = WEFTI_SP_TO_IPC;
    p->nng.frames.change = WEFTI_SP_TO_TCP;
    p->client.frames.greeting = nng >= 0 ? HELLO : 0; /* else it is read apart */
    p->nng.frames.greeting = HELLO;
  }
  p->next = r->pairs;
  if (p->next != NULL) {
    p->next->prev = p;
  }
  r->pairs = p;
  return p;
}

void wefti_relay_add(wefti_relay *r, int fd)
{
  wefti_pair *p = add(r, fd, -1);
  if (p == NULL) {
    return;
  }
  set_due(r, p, HELLO_MS);
  if (!wefti_end_watch(r, &p->client, EPOLLIN)) {
    drop(r, p);
  }
}

static void connected(wefti_relay *r, wefti_pair *p)
{
  int rc = 0;
  socklen_t len = sizeof rc;
  if (getsockopt(p->client.fd, SOL_SOCKET, SO_ERROR, &rc, &len) != 0) {
    rc = errno;
  }
  r->on_connect(r->arg, rc);
  if (rc != 0) {
    drop(r, p); /* nng comes again after its pause */
    return;
  }
  p->phase = OPEN;
  settle(r, p);
}

/* The greeting was written in one piece. */
static void connect_peer(wefti_relay *r, wefti_pair *p)
{
  uint8_t byte;
  const ssize_t n = recv(p->nng.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  p->client.fd = n <= 0 ? -1 : r->connect(r->arg);
  p->phase = CONNECTING;
  if (p->client.fd < 0 || !wefti_end_watch(r, &p->nng, 0) ||
      !wefti_end_watch(r, &p->client, EPOLLOUT)) {
    drop(r, p);
  }
}

void wefti_relay_await(wefti_relay *r, int nng)
{
  wefti_pair *p = add(r, -1, nng);
  if (p == NULL) {
    return;
  }
  p->phase = WAITING;
  if (!wefti_end_watch(r, &p->nng, EPOLLIN)) {
    drop(r, p);
  }
}

void wefti_relay_event(wefti_relay *r, wefti_end *end, uint32_t events)
{
  wefti_pair *p = end->pair;
  if (p->phase == DEAD || end->watched == 0) {
    return; /* since this turn began */
  }
  if (p->phase == GREETING) {
    greet(r, p);
    return;
  }
  if (p->phase == WAITING) {
    connect_peer(r, p);
    return;
  }
  if (p->phase == CONNECTING) {
    connected(r, p);
    return;
  }
  if (p->phase == LEAVING) {
    discard(r, p);
    if (p->nng.ended) {
      drop(r, p);
    }
    return;
  }
  if (p->phase == MEETING) {
    p->phase = OPEN; /* nng's greeting, or its end */
  }
  if ((events & (uint32_t)EPOLLOUT) != 0 && end->len > 0) {
    const size_t before = end->at;
    wefti_end_flush(end);
    p->due = end != &p->client || end->at == before ? p->due : 0; /* it reads */
  }
  if ((events & ~(uint32_t)EPOLLOUT) != 0 && readable_wanted(end) &&
      !wefti_end_pump(r, end)) {
    leave(r, p);
    return;
  }
  if ((events & (uint32_t)(EPOLLHUP | EPOLLERR)) != 0 && end->len > 0) {
    wefti_end_flush(end); /* finds that nobody is there */
  }
  settle(r, p);
}

static void overdue(wefti_relay *r, wefti_pair *p)
{
  if (p->phase == KNOCKING) {
    knock(r, p);
  } else if (p->phase == OPEN) {
    leave(r, p);
  } else if (p->phase == LEAVING && !is_quiet(r, p)) {
    set_due(r, p, QUIET_MS);
  } else {
    drop(r, p);
  }
}

void wefti_relay_tick(wefti_relay *r)
{
  const int64_t now = r->next_due == 0 ? 0 : wefti_relay_now();
  if (r->next_due != 0 && r->next_due <= now) {
    wefti_pair *next;
    for (wefti_pair *p = r->pairs; p != NULL; p = next) {
      next = p->next;
      if (p->due != 0 && p->due <= now) {
        overdue(r, p);
      }
    }
    r->next_due = 0;
    for (const wefti_pair *p = r->pairs; p != NULL; p = p->next) {
      if (p->due != 0 && (r->next_due == 0 || p->due < r->next_due)) {
        r->next_due = p->due;
      }
    }
  }
  if (r->paused_until != 0 && wefti_relay_now() >= r->paused_until) {
    r->paused_until = 0;
    (void)arm_listener(r, EPOLL_CTL_MOD, EPOLLIN);
  }
  while (r->dead != NULL) {
    wefti_pair *p = r->dead;
    r->dead = p->next;
    free(p);
  }
}

int wefti_relay_patience(const wefti_relay *r)
{
  int64_t due = r->next_due;
  if (r->paused_until != 0 && (due == 0 || r->paused_until < due)) {
    due = r->paused_until;
  }
  const int64_t left = due == 0 ? -1 : due - wefti_relay_now();
  return due != 0 && left < 0 ? 0 : (int)left; /* at most a few seconds away */
}

/* What nng has written by now; more may come all the time. */
static void farewell(const wefti_relay *r, wefti_pair *p)
{
  wefti_end *to = &p->client;
  int left = 0;
  if (to->len > 0) {
    wefti_end_flush(to);
  }
  (void)ioctl(p->nng.fd, FIONREAD, &left);
  while (left > 0 && to->len == 0 && !to->deaf) {
    const ssize_t n = recv(p->nng.fd, r->scratch, WEFTI_RELAY_CHUNK, MSG_DONTWAIT);
    if (n <= 0 || !wefti_end_pass_on(r, &p->nng, (size_t)n)) {
      return;
    }
    left -= (int)n;
  }
}

void wefti_relay_farewell(wefti_relay *r)
{
  for (wefti_pair *p = r->pairs; p != NULL; p = p->next) {
    if (p->phase == MEETING || p->phase == OPEN) {
      farewell(r, p);
    }
  }
}

void wefti_relay_shutdown(wefti_relay *r)
{
  for (const wefti_pair *p = r->pairs; p != NULL; p = p->next) {
    if (p->client.fd >= 0) {
      (void)shutdown(p->client.fd, SHUT_RDWR);
    }
  }
}

/* Until nothing moves on any of nng's connections.  Nobody asks nng for more, so what it
 * has not read by then stays where it is. */
static void wait_quiet(const wefti_relay *r)
{
  const struct timespec quiet = { .tv_nsec = QUIET_MS * 1000000L };
  for (bool any = r->pairs != NULL; any;) {
    (void)nanosleep(&quiet, NULL);
    any = false;
    for (wefti_pair *p = r->pairs; p != NULL; p = p->next) {
      discard(r, p);
      any = moved(p) || any;
    }
  }
}

void wefti_relay_hush(wefti_relay *r)
{
  const struct timespec redial = { .tv_nsec =
                                       (WEFTI_RECONNECT_MAX_MS + QUIET_MS) * 1000000L };
  wefti_pair *next;
  for (wefti_pair *p = r->pairs; p != NULL; p = next) {
    next = p->next;
    leave(r, p);
  }
  if (r->pairs == NULL && r->connect != NULL) {
    (void)nanosleep(&redial, NULL); /* until nng, about to dial, waits for our greeting */
  }
  wait_quiet(r);
}

void wefti_relay_end(wefti_relay *r)
{
  while (r->pairs != NULL) {
    drop(r, r->pairs);
  }
  wefti_relay_tick(r);
}
