#define _GNU_SOURCE /* SOCK_NONBLOCK */
#include "tcpstore_client.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const char *wefti_errno_text(int e, char out[32])
{
  switch (e) {
  case ECONNREFUSED:
    return "connection refused";
  case ECONNRESET:
    return "connection reset";
  case EPIPE:
    return "connection closed";
  case ETIMEDOUT:
    return "no answer";
  case EHOSTUNREACH:
    return "no route to host";
  case ENETUNREACH:
    return "network unreachable";
  default:
    (void)snprintf(out, 32, "errno %d", e);
    return out;
  }
}

void wefti_client_disconnect(weft_tcpstore *s)
{
  weft_io_destroy(s->io);
  s->io = NULL;
  if (s->fd >= 0) {
    (void)close(s->fd);
    s->fd = -1;
  }
  const size_t value_max = s->talk.value_max;
  wefti_talk_fini(&s->talk);
  wefti_talk_init(&s->talk, value_max);
}

/* Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014). */
static uint64_t next_random(weft_tcpstore *s)
{
  uint64_t z = (s->random += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

/* Jitter, so that many workers do not knock at the same moment. */
static void pause_then_attempt(weft_tcpstore *s)
{
  const uint64_t base = s->backoff_ms;
  s->backoff_ms = base * 2 > WEFTI_ST_BACKOFF_MAX_MS ? WEFTI_ST_BACKOFF_MAX_MS : base * 2;
  s->state = WEFTI_CL_WAITING;
  weft_alarm_start(s->step, base / 2 + next_random(s) % base);
}

static void forget_addresses(weft_tcpstore *s)
{
  if (s->list != NULL) {
    freeaddrinfo(s->list);
  }
  s->list = NULL;
  s->next = NULL;
}

static bool hello(weft_tcpstore *s)
{
  s->state = WEFTI_CL_HELLO;
  return wefti_talk_hello(&s->talk, (uint32_t)next_random(s), s->ping);
}

static void on_connecting(void *arg, int fd, unsigned events)
{
  (void)events;
  weft_tcpstore *s = arg;
  int e = 0;
  socklen_t size = sizeof e;
  char text[32];
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &size) != 0 || e != 0) {
    wefti_client_retry(s, wefti_errno_text(e, text));
    return;
  }
  const int one = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  weft_io *io = NULL;
  if (!hello(s) || weft_io_create(s->loop, fd, WEFT_IO_READ | WEFT_IO_WRITE,
                                  wefti_client_on_io, s, &io) != WEFT_OK) {
    (void)wefti_client_fail(s, WEFT_E_NOMEM, "out of memory");
    return;
  }
  weft_io_destroy(s->io);
  s->io = io;
}

static bool is_any(const struct sockaddr *sa)
{
  if (sa->sa_family == AF_INET) {
    struct sockaddr_in v4;
    memcpy(&v4, sa, sizeof v4);
    return v4.sin_addr.s_addr == INADDR_ANY;
  }
  struct sockaddr_in6 v6;
  memcpy(&v6, sa, sizeof v6);
  return IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr);
}

/* Starts one address.  false: it failed at once. */
static bool try_address(weft_tcpstore *s, const struct addrinfo *a, const char **why,
                        char text[32])
{
  if (is_any(a->ai_addr)) {
    *why = "the name means 'any address', which is nowhere to connect to";
    return false;
  }
  s->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s->fd < 0 ||
      (connect(s->fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS)) {
    *why = wefti_errno_text(errno, text);
    return false;
  }
  if (weft_io_create(s->loop, s->fd, WEFT_IO_WRITE, on_connecting, s, &s->io) !=
      WEFT_OK) {
    *why = "out of memory";
    return false;
  }
  s->state = WEFTI_CL_CONNECTING;
  weft_alarm_start(s->step, WEFTI_ST_ATTEMPT_MS);
  return true;
}

static void try_addresses(weft_tcpstore *s)
{
  const char *why = NULL; /* why these have failed; NULL: none was left to try */
  char text[32];
  while (s->next != NULL) {
    const struct addrinfo *a = s->next;
    s->next = a->ai_next;
    if (try_address(s, a, &why, text)) {
      return;
    }
    wefti_client_disconnect(s);
  }
  if (why != NULL) {
    (void)snprintf(s->last, sizeof s->last, "%s", why);
  }
  forget_addresses(s);
  pause_then_attempt(s);
}

void wefti_client_retry(weft_tcpstore *s, const char *why)
{
  /* The peer may be too old for PING: once without, before the pause. */
  const bool again = s->state == WEFTI_CL_HELLO && s->ping && why == NULL;
  s->ping = !again;
  (void)snprintf(s->last, sizeof s->last, "%s",
                 why == NULL ? "it closed the connection on our handshake" : why);
  wefti_client_disconnect(s);
  if (again) {
    s->next = s->list;
  }
  try_addresses(s);
}

static void on_resolved(void *arg, int rc, struct addrinfo *list)
{
  weft_tcpstore *s = arg;
  s->resolving = NULL;
  if (rc != 0) {
    (void)snprintf(s->last, sizeof s->last, "the name cannot be resolved: %s",
                   gai_strerror(rc));
    pause_then_attempt(s);
    return;
  }
  s->list = list;
  s->next = list;
  try_addresses(s);
}

/* Addresses need no thread. */
static bool numeric(weft_tcpstore *s)
{
  char port[8];
  (void)snprintf(port, sizeof port, "%u", s->port);
  const struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV };
  return getaddrinfo(s->host, port, &hints, &s->list) == 0;
}

void wefti_client_attempt(weft_tcpstore *s)
{
  s->attempts++;
  forget_addresses(s);
  if (numeric(s)) {
    s->next = s->list;
    try_addresses(s);
    return;
  }
  s->list = NULL;
  s->state = WEFTI_CL_WAITING;
  if (wefti_resolve_start(s->loop, s->host, s->port, on_resolved, s, &s->resolving) !=
      WEFT_OK) {
    (void)snprintf(s->last, sizeof s->last, "no thread to resolve the name");
    pause_then_attempt(s);
  }
}
