/* store_script.h -- a server that follows a script, on a thread of its own: silent, cut
 * short, dripping, lying.  Not a test itself. */
#ifndef WEFT_TEST_STORE_SCRIPT_H
#define WEFT_TEST_STORE_SCRIPT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Reads so many bytes, then sends.  After the last turn of a connection: waits for the
 * client's end, unless hang_up. */
typedef struct turn {
  size_t read;
  const char *send;
  size_t len;
  bool echo; /* the last four bytes read */
  bool drip; /* byte by byte */
  bool hang_up;
} turn;

typedef struct script {
  const turn *turns; /* of all connections; a connection ends with .read == SIZE_MAX */
  size_t connections;
  int fd;
  uint16_t port;
  pthread_t thread;
} script;
#define CONNECTION_END                                                                   \
  {                                                                                      \
    .read = SIZE_MAX                                                                     \
  }

static bool script_read(int fd, uint8_t *last4, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    memmove(last4, last4 + 1, 3);
    if (recv(fd, last4 + 3, 1, 0) != 1) {
      return false;
    }
  }
  return true;
}

static void script_send(int fd, const void *data, size_t n, bool drip)
{
  const uint8_t *p = data;
  while (n > 0) {
    const ssize_t sent = send(fd, p, drip ? 1 : n, MSG_NOSIGNAL);
    if (sent <= 0) {
      return;
    }
    p += sent;
    n -= (size_t)sent;
  }
}

/* true: the connection's script was played to its end. */
static const turn *script_play(int fd, const turn *t)
{
  uint8_t last4[4] = { 0 };
  bool on = true;
  bool hang_up = false;
  for (; t->read != SIZE_MAX; t++) {
    on = on && script_read(fd, last4, t->read);
    if (on && t->echo) {
      script_send(fd, last4, 4, t->drip);
    }
    if (on && t->len > 0) {
      script_send(fd, t->send, t->len, t->drip);
    }
    hang_up = hang_up || t->hang_up;
  }
  uint8_t rest[64];
  while (on && !hang_up && recv(fd, rest, sizeof rest, 0) > 0) {
  }
  (void)close(fd);
  return t + 1;
}

static void *script_main(void *arg)
{
  script *s = arg;
  const turn *t = s->turns;
  for (size_t i = 0; i < s->connections; i++) {
    const int fd = accept(s->fd, NULL, NULL);
    if (fd < 0) {
      break;
    }
    const int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    t = script_play(fd, t);
  }
  return NULL;
}

/* Bound, so that the port is taken, but nobody listens yet. */
static void script_bind(script *s, const turn *turns, size_t connections)
{
  struct sockaddr_in a = { .sin_family = AF_INET };
  socklen_t len = sizeof a;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  *s = (script){ .turns = turns, .connections = connections };
  s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (s->fd < 0 || bind(s->fd, (struct sockaddr *)&a, sizeof a) != 0 ||
      getsockname(s->fd, (struct sockaddr *)&a, &len) != 0) {
    abort();
  }
  s->port = ntohs(a.sin_port);
}

static void script_listen(script *s)
{
  if (listen(s->fd, 8) != 0 || pthread_create(&s->thread, NULL, script_main, s) != 0) {
    abort();
  }
}

static void script_end(script *s)
{
  (void)shutdown(s->fd, SHUT_RDWR); /* ends a pending accept */
  (void)pthread_join(s->thread, NULL);
  (void)close(s->fd);
}

#endif /* WEFT_TEST_STORE_SCRIPT_H */
