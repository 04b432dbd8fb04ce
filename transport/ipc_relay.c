#define _GNU_SOURCE
#include "ipc_relay.h"

#include "weft/clock.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
  HELLO = 8,       /* bytes of an SP greeting */
  HELLO_MS = 2000, /* patience with a client that has not sent it; it does so at once */
  FLUSH_MS = 1000, /* with one that does not read what was sent before the end */
  QUIET_MS = 100,  /* between the last byte of one that is gone and nng's hearing of it */
  KNOCK_MS = 20,   /* pause while nng's backlog is full */
  KNOCKS_MAX = 250,   /* then it is told to come again */
  FAREWELL_MAX = 4096 /* chunks per client at the end; a bound, never reached */
};

/* nng's greeting has not come in MEETING: hanging up now is what its listener dies of. In
 * LEAVING the client is gone: nng 1.5.2 waits for ever on a connection that ends while
 * its thread is between two parts of a frame, and takes no other one down after that.  So
 * it is hung up on when nothing has moved for a while. */
typedef enum phase { GREETING, KNOCKING, MEETING, OPEN, LEAVING, DEAD } phase;

struct wefti_end {
  wefti_pair *pair;
  wefti_end *other;
  int fd;
  uint32_t watched;
  bool ended;    /* nothing more to read */
  bool deaf;     /* cannot be written to any more */
  uint8_t *rest; /* [at, len) is still to be written */
  size_t at, len;
};

struct wefti_pair {
  wefti_end client, nng;
  phase phase;
  unsigned knocks;
  uint8_t hello[HELLO];
  size_t got;  /* bytes of hello */
  int64_t due; /* 0 = no deadline */
  wefti_pair *next, *prev;
};

int64_t wefti_relay_now(void)
{
  return (int64_t)weft_clock_ms() + 1;
}

static void set_due(wefti_relay *r, wefti_pair *p, int64_t ms)
{
  p->due = wefti_relay_now() + ms;
  if (r->next_due == 0 || p->due < r->next_due) {
    r->next_due = p->due;
  }
}

/* With no events the end leaves the set, or a hang-up would be told again and again. */
static bool watch(wefti_relay *r, wefti_end *e, uint32_t events)
{
  struct epoll_event ev = { .events = events, .data.ptr = e };
  if (events == e->watched) {
    return true;
  }
  const int op = e->watched == 0 ? EPOLL_CTL_ADD
                 : events == 0   ? EPOLL_CTL_DEL
                                 : EPOLL_CTL_MOD;
  if (epoll_ctl(r->epoll, op, e->fd, &ev) != 0) {
    return false;
  }
  e->watched = events;
  return true;
}

static void forget_rest(wefti_end *e)
{
  free(e->rest);
  e->rest = NULL;
  e->at = e->len = 0;
}

static void close_end(wefti_relay *r, wefti_end *e)
{
  if (e->fd >= 0) {
    (void)watch(r, e, 0); /* a child just forked may hold it, and the set with it */
    (void)close(e->fd);
  }
  e->fd = -1;
  forget_rest(e);
}

static void drop(wefti_relay *r, wefti_pair *p)
{
  close_end(r, &p->client);
  close_end(r, &p->nng);
  *(p->prev == NULL ? &r->pairs : &p->prev->next) = p->next;
  if (p->next != NULL) {
    p->next->prev = p->prev;
  }
  p->phase = DEAD;
  p->next = r->dead;
  r->dead = p;
}

/* How much of data was taken; what cannot ever be counts as taken. */
static size_t put(wefti_end *e, const uint8_t *data, size_t len)
{
  const ssize_t n = send(e->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) {
    return (size_t)n;
  }
  e->deaf = errno != EAGAIN && errno != EINTR;
  return e->deaf ? len : 0;
}

/* false = no memory for what e does not take now. */
static bool give(wefti_end *e, const uint8_t *data, size_t len)
{
  const size_t n = put(e, data, len);
  if (n == len) {
    return true;
  }
  e->rest = malloc(len - n);
  if (e->rest == NULL) {
    return false;
  }
  memcpy(e->rest, data + n, len - n);
  e->len = len - n;
  return true;
}

static void flush(wefti_end *e)
{
  e->at += put(e, e->rest + e->at, e->len - e->at);
  if (e->at == e->len) {
    forget_rest(e);
  }
}

/* One read, so that everybody has a turn.  false = out of memory. */
static bool pump(wefti_relay *r, wefti_end *from)
{
  const ssize_t n = recv(from->fd, r->scratch, sizeof r->scratch, MSG_DONTWAIT);
  if (n > 0) {
    return give(from->other, r->scratch, (size_t)n);
  }
  from->ended = n == 0 || (errno != EAGAIN && errno != EINTR);
  return true;
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
  return watch(r, e, events);
}

static void leave(wefti_relay *r, wefti_pair *p)
{
  close_end(r, &p->client);
  (void)watch(r, &p->nng, 0);
  p->phase = LEAVING;
  set_due(r, p, QUIET_MS);
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
  if (over && p->due == 0) {
    set_due(r, p, FLUSH_MS);
  }
  if (!retune(r, &p->client) || !retune(r, &p->nng)) {
    drop(r, p);
  }
}

static void knock(wefti_relay *r, wefti_pair *p)
{
  wefti_end *e = &p->nng;
  if (e->fd < 0) {
    e->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  }
  /* All that can fail comes before the connection. */
  if (e->fd < 0 || !watch(r, e, EPOLLIN) || !watch(r, &p->client, 0)) {
    drop(r, p);
    return;
  }
  if (connect(e->fd, (const struct sockaddr *)&r->inner, sizeof r->inner) != 0) {
    if (errno != EAGAIN || ++p->knocks == KNOCKS_MAX || !watch(r, e, 0)) {
      drop(r, p);
      return;
    }
    p->phase = KNOCKING;
    set_due(r, p, KNOCK_MS);
    return;
  }
  p->phase = MEETING;
  p->due = 0;
  if (!give(e, p->hello, HELLO)) {
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

void wefti_relay_add(wefti_relay *r, int fd)
{
  wefti_pair *p = calloc(1, sizeof *p);
  if (p == NULL) {
    (void)close(fd);
    return;
  }
  p->client = (wefti_end){ .pair = p, .other = &p->nng, .fd = fd };
  p->nng = (wefti_end){ .pair = p, .other = &p->client, .fd = -1 };
  p->next = r->pairs;
  if (p->next != NULL) {
    p->next->prev = p;
  }
  r->pairs = p;
  set_due(r, p, HELLO_MS);
  if (!watch(r, &p->client, EPOLLIN)) {
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
  if (p->phase == MEETING) {
    p->phase = OPEN; /* nng's greeting, or its end */
  }
  if ((events & (uint32_t)EPOLLOUT) != 0 && end->len > 0) {
    flush(end);
  }
  if ((events & ~(uint32_t)EPOLLOUT) != 0 && readable_wanted(end) && !pump(r, end)) {
    drop(r, p);
    return;
  }
  if ((events & (uint32_t)(EPOLLHUP | EPOLLERR)) != 0 && end->len > 0) {
    flush(end); /* finds that nobody is there */
  }
  settle(r, p);
}

static void overdue(wefti_relay *r, wefti_pair *p)
{
  if (p->phase == KNOCKING) {
    knock(r, p);
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
  while (r->dead != NULL) {
    wefti_pair *p = r->dead;
    r->dead = p->next;
    free(p);
  }
}

/* What nng said last. */
static void farewell(wefti_relay *r, wefti_pair *p)
{
  wefti_end *to = &p->client;
  if (to->len > 0) {
    flush(to);
  }
  for (unsigned i = 0; i < FAREWELL_MAX && to->len == 0 && !to->deaf; i++) {
    const ssize_t n = recv(p->nng.fd, r->scratch, sizeof r->scratch, MSG_DONTWAIT);
    if (n <= 0 || !give(to, r->scratch, (size_t)n)) {
      return;
    }
  }
}

void wefti_relay_end(wefti_relay *r)
{
  while (r->pairs != NULL) {
    if (r->pairs->phase == MEETING || r->pairs->phase == OPEN) {
      farewell(r, r->pairs);
    }
    drop(r, r->pairs);
  }
  wefti_relay_tick(r);
}
