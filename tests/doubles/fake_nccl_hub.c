/* The hub of the NCCL double: one thread for each unique id. */
#define _GNU_SOURCE
#include "fake_nccl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOOK_MS = 5 };

typedef struct hub {
  int listener;
  int ranks; /* 0 = nobody said yet */
  int fds[FAKE_RANKS_MAX];
  fake_hello hello[FAKE_RANKS_MAX];
  fake_head head[FAKE_RANKS_MAX];
  bool came[FAKE_RANKS_MAX], left[FAKE_RANKS_MAX];
  bool torn; /* broke off among bytes: no verdict is on its way */
  char block[FAKE_BLOCK];
} hub;

static bool stopped(const atomic_bool *stop)
{
  return stop != NULL && atomic_load(stop);
}

/* Until fd is ready for events; false = stop. */
static bool ready(int fd, short events, const atomic_bool *stop)
{
  struct pollfd p = { .fd = fd, .events = events };
  while (!stopped(stop)) {
    const int n = poll(&p, 1, stop != NULL ? LOOK_MS : -1);
    if (n > 0) {
      return true;
    }
    if (n < 0 && errno != EINTR) {
      return false;
    }
  }
  return false;
}

bool fake_send(int fd, const void *data, size_t n, const atomic_bool *stop)
{
  const char *at = data;
  while (n > 0) {
    if (!ready(fd, POLLOUT, stop)) {
      return false;
    }
    const ssize_t done = send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done < 0 && errno != EAGAIN && errno != EINTR) {
      return false;
    }
    at += done > 0 ? done : 0;
    n -= done > 0 ? (size_t)done : 0;
  }
  return true;
}

bool fake_recv(int fd, void *data, size_t n, const atomic_bool *stop)
{
  char *at = data;
  while (n > 0) {
    if (!ready(fd, POLLIN, stop)) {
      return false;
    }
    const ssize_t done = recv(fd, at, n, MSG_DONTWAIT);
    if (done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR)) {
      return false;
    }
    at += done > 0 ? done : 0;
    n -= done > 0 ? (size_t)done : 0;
  }
  return true;
}

/* Tells every rank that is still there. */
static bool fail_all(hub *h, uint32_t code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static bool fail_all(hub *h, uint32_t code, const char *fmt, ...)
{
  fake_verdict v = { .code = code };
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(v.text, sizeof v.text, fmt, args);
  va_end(args);
  for (int i = 0; i < FAKE_RANKS_MAX; i++) {
    if (h->fds[i] >= 0) {
      (void)fake_send(h->fds[i], &v, sizeof v, NULL);
    }
  }
  return false;
}

static bool check_hello(hub *h, const fake_hello *m, int fd)
{
  const int n = (int)m->ranks, r = (int)m->rank;
  h->ranks = h->ranks == 0 ? n : h->ranks;
  if (n < 1 || n > FAKE_RANKS_MAX || r < 0 || r >= n || h->fds[r] >= 0) {
    const fake_verdict v = { NCCL_INTERNAL, "rank has already checked in, or is none" };
    (void)fake_send(fd, &v, sizeof v, NULL);
    (void)close(fd);
    return false;
  }
  h->fds[r] = fd;
  h->hello[r] = *m;
  if (n != h->ranks) {
    return fail_all(h, NCCL_INTERNAL,
                    "Bootstrap Root : mismatch in rank count from procs %d : %d", n,
                    h->ranks);
  }
  return true;
}

static bool check_peers(hub *h)
{
  for (int i = 1; i < h->ranks; i++) {
    if (h->hello[i].version != h->hello[0].version) {
      return fail_all(h, NCCL_USAGE,
                      "Mismatched NCCL version detected : rank %d version %u rank 0 "
                      "version %u",
                      i, h->hello[i].version, h->hello[0].version);
    }
    for (int k = 0; k < i; k++) {
      if (memcmp(h->hello[i].uuid, h->hello[k].uuid, 16) == 0 &&
          weft_fake_number("WEFT_FAKE_NCCL_MULTI_RANK", 0) == 0) {
        return fail_all(h, NCCL_USAGE,
                        "Duplicate GPU detected : rank %d and rank %d both on one CUDA "
                        "device",
                        k, i);
      }
    }
  }
  const fake_verdict go = { 0 };
  for (int i = 0; i < h->ranks; i++) {
    (void)fake_send(h->fds[i], &go, sizeof go, NULL);
  }
  return true;
}

/* Somebody who said hello must stay: a lost one is told to the others. */
static bool gather(hub *h)
{
  for (int in = 0; h->ranks == 0 || in < h->ranks;) {
    struct pollfd p[FAKE_RANKS_MAX + 1] = { { .fd = h->listener, .events = POLLIN } };
    for (int i = 0; i < FAKE_RANKS_MAX; i++) {
      p[i + 1] = (struct pollfd){ .fd = h->fds[i], .events = POLLIN };
    }
    if (poll(p, FAKE_RANKS_MAX + 1, -1) < 0 && errno != EINTR) {
      return false;
    }
    for (int i = 0; i < FAKE_RANKS_MAX; i++) {
      if (p[i + 1].revents != 0) {
        (void)close(h->fds[i]);
        h->fds[i] = -1;
        return fail_all(h, NCCL_REMOTE, "rank %d went while the others joined", i);
      }
    }
    if ((p[0].revents & POLLIN) == 0) {
      continue;
    }
    fake_hello m;
    const int fd = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 || !fake_recv(fd, &m, sizeof m, NULL) || m.magic != FAKE_MAGIC) {
      if (fd >= 0) {
        (void)close(fd);
      }
      continue;
    }
    const int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!check_hello(h, &m, fd)) {
      return false;
    }
    in++;
  }
  return true;
}

static const char *name_of(uint32_t kind)
{
  return kind == FAKE_BROADCAST ? "broadcast" : "all_reduce";
}

/* One header of rank i.  false = all is over. */
static bool take_head(hub *h, int i)
{
  if (!fake_recv(h->fds[i], &h->head[i], sizeof h->head[i], NULL)) {
    (void)close(h->fds[i]);
    h->fds[i] = -1;
    return fail_all(h, NCCL_REMOTE, "rank %d is gone (connection closed by remote peer)",
                    i);
  }
  if (h->head[i].kind == FAKE_BYE) {
    (void)close(h->fds[i]);
    h->fds[i] = -1;
    h->left[i] = true;
    return true;
  }
  h->came[i] = true;
  return true;
}

/* Until every rank sent a header.  false = over. */
static bool collect(hub *h)
{
  memset(h->came, 0, sizeof h->came);
  for (;;) {
    struct pollfd p[FAKE_RANKS_MAX];
    int missing = 0, here = 0, first = -1;
    for (int i = 0; i < h->ranks; i++) {
      missing += !h->came[i];
      here += h->fds[i] >= 0;
      first = h->came[i] && first < 0 ? i : first;
      p[i] = (struct pollfd){ .fd = h->fds[i], .events = POLLIN };
    }
    if (missing == 0 || here == 0) {
      return missing == 0;
    }
    for (int i = 0; i < h->ranks; i++) {
      if (h->left[i] && first >= 0) {
        return fail_all(h, NCCL_REMOTE, "rank %d has left, rank %d waits in %s", i, first,
                        name_of(h->head[first].kind));
      }
    }
    if (poll(p, (nfds_t)h->ranks, -1) < 0 && errno != EINTR) {
      return false;
    }
    for (int i = 0; i < h->ranks; i++) {
      if (p[i].revents == 0) {
        continue;
      }
      if (h->came[i]) { /* it may only wait now: it is gone */
        (void)close(h->fds[i]);
        h->fds[i] = -1;
        return fail_all(h, NCCL_REMOTE, "rank %d is gone (in %s number %u)", i,
                        name_of(h->head[i].kind), h->head[i].sequence);
      }
      if (!take_head(h, i)) {
        return false;
      }
    }
  }
}

static bool same_heads(hub *h)
{
  const fake_head *a = &h->head[0];
  for (int i = 1; i < h->ranks; i++) {
    const fake_head *b = &h->head[i];
    if (a->kind != b->kind || a->sequence != b->sequence || a->bytes != b->bytes ||
        a->type != b->type || a->root != b->root) {
      return fail_all(h, NCCL_USAGE,
                      "collectives do not match: rank 0 has %s number %u of %llu bytes "
                      "(type %u, root %u), rank %d has %s number %u of %llu bytes (type "
                      "%u, root %u)",
                      name_of(a->kind), a->sequence, (unsigned long long)a->bytes,
                      a->type, a->root, i, name_of(b->kind), b->sequence,
                      (unsigned long long)b->bytes, b->type, b->root);
    }
  }
  return true;
}

static bool go(hub *h)
{
  const fake_verdict v = { 0 };
  for (int i = 0; i < h->ranks; i++) {
    if (!fake_send(h->fds[i], &v, sizeof v, NULL)) {
      (void)close(h->fds[i]);
      h->fds[i] = -1;
      return fail_all(h, NCCL_REMOTE, "rank %d is gone", i);
    }
  }
  return true;
}

/* A lost rank in the middle of bytes: the others' streams are cut, they see the end. */
static bool relay(hub *h)
{
  const int root = (int)h->head[0].root;
  uint64_t left = h->head[0].bytes;
  while (left > 0) {
    const size_t n = left < FAKE_BLOCK ? (size_t)left : FAKE_BLOCK;
    if (!fake_recv(h->fds[root], h->block, n, NULL)) {
      return false;
    }
    for (int i = 0; i < h->ranks; i++) {
      if (i != root && !fake_send(h->fds[i], h->block, n, NULL)) {
        return false;
      }
    }
    left -= n;
  }
  return true;
}

static bool reduce(hub *h)
{
  static const float zero = 0;
  const size_t n = (size_t)h->head[0].bytes;
  float *sum = calloc(n / sizeof(float), sizeof(float));
  float *one = malloc(n);
  bool ok = sum != NULL && one != NULL;
  for (int i = 0; i < h->ranks && ok; i++) {
    ok = fake_recv(h->fds[i], one, n, NULL);
    for (size_t k = 0; ok && k < n / sizeof(float); k++) {
      sum[k] = (sum[k] == zero ? 0 : sum[k]) + one[k];
    }
  }
  for (int i = 0; i < h->ranks && ok; i++) {
    ok = fake_send(h->fds[i], sum, n, NULL);
  }
  free(sum);
  free(one);
  return ok;
}

static void *hub_main(void *arg)
{
  hub *h = arg;
  bool on = gather(h) && check_peers(h);
  (void)close(h->listener);
  while (on) {
    on = collect(h) && same_heads(h) && go(h);
    if (on) {
      on = h->head[0].kind == FAKE_BROADCAST ? relay(h) : reduce(h);
      h->torn = !on;
    }
  }
  for (int i = 0; i < FAKE_RANKS_MAX; i++) {
    if (h->fds[i] >= 0) {
      (void)shutdown(h->fds[i], h->torn ? SHUT_RDWR : SHUT_WR);
    }
  }
  for (int i = 0; i < FAKE_RANKS_MAX; i++) {
    /* Not before they read the verdict: a reset would take it from them. */
    char byte;
    while (h->fds[i] >= 0 && recv(h->fds[i], &byte, 1, 0) > 0) {
    }
    if (h->fds[i] >= 0) {
      (void)close(h->fds[i]);
    }
  }
  free(h);
  return NULL;
}

int fake_hub_start(struct sockaddr_in *at)
{
  hub *h = calloc(1, sizeof *h);
  socklen_t len = sizeof *at;
  if (h == NULL) {
    return -1;
  }
  for (int i = 0; i < FAKE_RANKS_MAX; i++) {
    h->fds[i] = -1;
  }
  *at = (struct sockaddr_in){ .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
  h->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  pthread_t thread;
  if (h->listener < 0 || bind(h->listener, (struct sockaddr *)at, len) != 0 ||
      listen(h->listener, FAKE_RANKS_MAX) != 0 ||
      getsockname(h->listener, (struct sockaddr *)at, &len) != 0 ||
      pthread_create(&thread, NULL, hub_main, h) != 0) {
    if (h->listener >= 0) {
      (void)close(h->listener);
    }
    free(h);
    return -1;
  }
  (void)pthread_detach(thread);
  return 0;
}
