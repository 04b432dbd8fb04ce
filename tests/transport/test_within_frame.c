/* A connection that ends within a frame, by the peer's end or by ours, stops nothing of
 * nng: what was used for it is given back.  Peers are sockets of this test, over ipc and
 * tcp; ours are a subscriber, a link, a publisher and a JSON socket.  Every case is a
 * process of its own: what it is about would stop nng for the cases after it. */
#define _GNU_SOURCE
#include "weft_test.h"

#include "descriptors.h"
#include "link_world.h"
#include "on_loop.h"
#include "weft/process.h"
#include "weft/pubsub.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

enum {
  TIMES = 48,
  CROWD = 8, /* at a time, where the moment that counts is a rare one */
  BIG = 3 << 20,
  QUESTION = 1 << 20,
  SMALL = 64 << 10, /* buffer of a peer over tcp, that does not take all at once */
  FRAMES = 6,
  AFTER = 16,
  PATIENCE_MS = 20000,
  SUB0 = 0x21,
  PUB0 = 0x20,
  REQ0 = 0x30,
  REP0 = 0x31
};

typedef struct place {
  weft_rundir *dir;
  bool tcp;
  int fd; /* listens */
  char url[200];
} place;

/* The first use opens things for good: what there is after it is what there was before.
 */
static void after_turn(int i, unsigned *before)
{
  if (i == 0) {
    (void)poll(NULL, 0, 250);
    *before = descriptors();
  }
}

static void place_open(place *p, bool tcp)
{
  weft_why why;
  struct sockaddr_in in = { .sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
  struct sockaddr_un un = { .sun_family = AF_UNIX };
  socklen_t len = sizeof in;
  const int small = SMALL;
  *p = (place){ .tcp = tcp };
  assert_ok(weft_rundir_open(NULL, &p->dir, &why));
  p->fd = socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(p->fd >= 0);
  assert_int_equal(setsockopt(p->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  if (tcp) {
    assert_int_equal(bind(p->fd, (const struct sockaddr *)&in, sizeof in), 0);
    assert_int_equal(getsockname(p->fd, (struct sockaddr *)&in, &len), 0);
    (void)snprintf(p->url, sizeof p->url, "tcp://127.0.0.1:%u",
                   (unsigned)ntohs(in.sin_port));
  } else {
    (void)snprintf(un.sun_path, sizeof un.sun_path, "%s/peer", weft_rundir_path(p->dir));
    assert_int_equal(bind(p->fd, (const struct sockaddr *)&un, sizeof un), 0);
    (void)snprintf(p->url, sizeof p->url, "ipc://%s", un.sun_path);
  }
  assert_int_equal(listen(p->fd, 64), 0);
}

static void place_close(place *p)
{
  (void)close(p->fd);
  weft_rundir_close(p->dir);
}

/* false: hung up on. */
static bool greet(int fd, uint8_t proto)
{
  const uint8_t hello[8] = { 0, 'S', 'P', 0, 0, proto, 0, 0 };
  uint8_t theirs[8];
  if (send(fd, hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello ||
      recv(fd, theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs) {
    return false;
  }
  assert_memory_equal(theirs, "\0SP\0", 4);
  return true;
}

/* The next one that has not gone again. */
static int take(const place *p, uint8_t proto)
{
  for (;;) {
    struct pollfd pfd = { .fd = p->fd, .events = POLLIN };
    assert_int_equal(poll(&pfd, 1, PATIENCE_MS), 1);
    const int fd = accept4(p->fd, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    if (greet(fd, proto)) {
      return fd;
    }
    (void)close(fd);
  }
}

static unsigned next_random(unsigned *seed)
{
  *seed = *seed * 1103515245u + 12345u;
  return *seed >> 8;
}

typedef struct reader {
  int fd;
  size_t bytes;
  pthread_t thread;
} reader;

static bool read_some(int fd, size_t bytes)
{
  char sink[65536];
  while (bytes > 0) {
    const ssize_t n = recv(fd, sink, bytes < sizeof sink ? bytes : sizeof sink, 0);
    if (n <= 0) {
      return false;
    }
    bytes -= (size_t)n;
  }
  return true;
}

/* As fast as it can, and ends at some byte: first one way, and reads on while it is fed.
 */
static void *read_and_go(void *arg)
{
  const reader *r = arg;
  struct pollfd p = { .fd = r->fd, .events = POLLIN };
  if (read_some(r->fd, r->bytes)) {
    (void)shutdown(r->fd, SHUT_WR);
    for (int i = 0; i < AFTER && poll(&p, 1, 50) == 1 && read_some(r->fd, 1); i++) {
      (void)read_some(r->fd, (size_t)64 << 10);
    }
  }
  (void)close(r->fd);
  return NULL;
}

static void reader_start(reader *r, int fd, size_t bytes)
{
  r->fd = fd;
  r->bytes = bytes;
  assert_int_equal(pthread_create(&r->thread, NULL, read_and_go, r), 0);
}

static size_t burst(bool tcp, unsigned frames, uint8_t *out)
{
  /* A question that begins with its number, or an event of a strange topic. */
  static const uint8_t frame[] = { 1, 0, 0, 0, 0, 0, 0, 0, 6, 0x80, 0, 0, 9, '{', '}' };
  const size_t skip = tcp ? 1 : 0;
  const size_t len = sizeof frame - skip;
  for (unsigned i = 0; i < frames; i++) {
    memcpy(out + i * len, frame + skip, len);
  }
  return frames * len;
}

static void closed_by_us_while_events_come(void **state)
{
  (void)state;
  static uint8_t bytes[200 * 15];
  unsigned seed = 1;
  for (int tcp = 0; tcp < 2; tcp++) {
    place at;
    weft_why why;
    unsigned before = 0;
    place_open(&at, tcp != 0);
    for (int i = 0; i < TIMES; i++) {
      weft_sub *sub = NULL;
      assert_ok(weft_sub_create(at.url, "ipc:///nowhere/to/ask", &sub, &why));
      const int fd = take(&at, PUB0);
      const size_t len = burst(tcp != 0, 1 + next_random(&seed) % 200, bytes);
      (void)!send(fd, bytes, len, MSG_NOSIGNAL);
      weft_sub_destroy(sub);
      (void)close(fd);
      after_turn(i, &before);
    }
    assert_descriptors_come_down_to(before);
    place_close(&at);
  }
}

static void post_big(weft_runtime *rt, weft_actor_id link)
{
  ping p = { .h = { .type = TYPE_PING }, .mode = MODE_ECHO };
  p.data = weft_buf_create(NULL, QUESTION);
  assert_non_null(p.data);
  memset(p.data->data, 5, QUESTION);
  weft_msg *m = weft_msg_dup(&world_catalogue, &p.h);
  assert_non_null(m);
  const weft_err err = weft_post(rt, link, m);
  assert_true(err == WEFT_OK || err == WEFT_E_DOWN); /* its peer may be gone already */
  weft_buf_unref(p.data);
}

static void the_peers_of_links_go(void **state)
{
  (void)state;
  const weft_runtime_opts o = { .size = sizeof o,
                                .loops = 1,
                                .catalogue = &world_catalogue };
  weft_runtime *rt = NULL;
  unsigned seed = 2;
  assert_ok(weft_runtime_create(&o, &rt));
  assert_ok(weft_runtime_start_all(rt));
  for (int tcp = 0; tcp < 2; tcp++) {
    place at;
    unsigned before = 0;
    place_open(&at, tcp != 0);
    for (int i = 0; i < TIMES / CROWD; i++) {
      weft_actor_id links[CROWD];
      reader readers[CROWD];
      const weft_link_opts l = { .size = sizeof l, .url = at.url };
      for (int k = 0; k < CROWD; k++) {
        assert_ok(weft_link_spawn_on(rt, 0, &l, &links[k]));
        reader_start(&readers[k], take(&at, REP0), next_random(&seed) % (2 * QUESTION));
      }
      for (int k = 0; k < CROWD; k++) {
        post_big(rt, links[k]);
        post_big(rt, links[k]);
      }
      for (int k = 0; k < CROWD; k++) {
        (void)pthread_join(readers[k].thread, NULL);
      }
      after_turn(i, &before);
    }
    assert_descriptors_come_down_to(before);
    place_close(&at);
  }
  weft_runtime_stop(rt, 1000);
  weft_runtime_join(rt);
  weft_runtime_destroy(rt);
}

static int client_of(const char *url, uint8_t proto)
{
  struct sockaddr_in in = { .sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
  struct sockaddr_un un = { .sun_family = AF_UNIX };
  const bool tcp = strncmp(url, "tcp:", 4) == 0;
  const int small = SMALL;
  const int fd = socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  if (tcp) {
    in.sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10));
    assert_int_equal(connect(fd, (const struct sockaddr *)&in, sizeof in), 0);
  } else {
    (void)snprintf(un.sun_path, sizeof un.sun_path, "%s", url + strlen("ipc://"));
    assert_int_equal(connect(fd, (const struct sockaddr *)&un, sizeof un), 0);
  }
  assert_true(greet(fd, proto));
  return fd;
}

static void watchers_over_tcp_go(void **state)
{
  (void)state;
  static char text[BIG];
  weft_pub *pub = NULL;
  weft_why why;
  char url[64];
  unsigned seed = 3;
  unsigned before = 0;
  memset(text, 'x', sizeof text);
  assert_ok(weft_pub_create("tcp://127.0.0.1:0", url, sizeof url, &pub, &why));
  for (int i = 0; i < TIMES / CROWD; i++) {
    reader readers[CROWD];
    struct pollfd p[CROWD];
    for (int k = 0; k < CROWD; k++) {
      p[k] = (struct pollfd){ .fd = client_of(url, SUB0), .events = POLLIN };
    }
    for (int k = 0; k < CROWD; k++) {
      while (poll(&p[k], 1, 1) == 0) { /* it may not be in yet */
        assert_ok(weft_pub_send(pub, "t", text, sizeof text));
      }
    }
    for (int k = 0; k < FRAMES; k++) { /* more than buffers take */
      assert_ok(weft_pub_send(pub, "t", text, sizeof text));
    }
    for (int k = 0; k < CROWD; k++) {
      reader_start(&readers[k], p[k].fd, next_random(&seed) % ((FRAMES - 2) * BIG));
    }
    for (int k = 0; k < CROWD; k++) {
      (void)pthread_join(readers[k].thread, NULL);
    }
    after_turn(i, &before);
  }
  assert_descriptors_come_down_to(before);
  weft_pub_destroy(pub);
}

/* Where to listen, again and again on the same address. */
static void choose_url(bool tcp, const weft_rundir *dir, char url[200])
{
  if (tcp) {
    (void)snprintf(url, 200, "tcp://127.0.0.1:0"); /* from the second time on: as bound */
  } else {
    (void)snprintf(url, 200, "ipc://%s/here", weft_rundir_path(dir));
  }
}

static void a_publisher_closes_while_it_writes(void **state)
{
  (void)state;
  static char text[BIG];
  weft_why why;
  unsigned seed = 4;
  memset(text, 'x', sizeof text);
  for (int tcp = 0; tcp < 2; tcp++) {
    weft_rundir *dir;
    char at[200];
    char url[200];
    unsigned before = 0;
    assert_ok(weft_rundir_open(NULL, &dir, &why));
    choose_url(tcp != 0, dir, at);
    for (int i = 0; i < TIMES; i++) {
      weft_pub *pub = NULL;
      reader watcher;
      assert_ok(weft_pub_create(at, url, sizeof url, &pub, &why));
      memcpy(at, url, sizeof at);
      const int fd = client_of(url, SUB0);
      struct pollfd p = { .fd = fd, .events = POLLIN };
      do { /* it may not be in yet */
        assert_ok(weft_pub_send(pub, "t", text, sizeof text));
      } while (poll(&p, 1, 1) == 0);
      reader_start(&watcher, fd, SIZE_MAX);
      const struct timespec some = { .tv_nsec = next_random(&seed) % 1000000 };
      (void)nanosleep(&some, NULL);
      weft_pub_destroy(pub);
      (void)pthread_join(watcher.thread, NULL); /* it is hung up on at once */
      after_turn(i, &before);
    }
    assert_descriptors_come_down_to(before);
    weft_rundir_close(dir);
  }
}

typedef struct desk {
  weft_runtime *rt;
  weft_jsonrep *rep;
  char at[200], url[200];
  weft_err err;
  weft_why why;
} desk;

static void on_request(void *arg, uint64_t id, weft_buf *request)
{
  weft_jsonrep_answer(((desk *)arg)->rep, id, request->data, request->len);
}

static void do_open(void *arg)
{
  desk *d = arg;
  d->err = weft_jsonrep_create(weft_runtime_loop(d->rt, 0), d->at, 4, on_request, d,
                               d->url, sizeof d->url, &d->rep, &d->why);
}

static void do_close(void *arg)
{
  weft_jsonrep_destroy(((desk *)arg)->rep);
}

static void a_server_closes_while_it_reads(void **state)
{
  (void)state;
  static uint8_t bytes[200 * 15];
  const weft_runtime_opts o = { .size = sizeof o, .loops = 1 };
  desk d = { .err = WEFT_OK };
  unsigned seed = 5;
  assert_ok(weft_runtime_create(&o, &d.rt));
  assert_ok(weft_runtime_start_all(d.rt));
  for (int tcp = 0; tcp < 2; tcp++) {
    weft_rundir *dir;
    unsigned before = 0;
    assert_ok(weft_rundir_open(NULL, &dir, &d.why));
    choose_url(tcp != 0, dir, d.at);
    for (int i = 0; i < TIMES / 2; i++) {
      on_loop(weft_runtime_loop(d.rt, 0), do_open, &d);
      assert_ok(d.err);
      memcpy(d.at, d.url, sizeof d.at);
      reader readers[CROWD];
      for (int k = 0; k < CROWD; k++) {
        readers[k] = (reader){ .fd = client_of(d.url, REQ0), .bytes = SIZE_MAX };
      }
      for (int k = 0; k < CROWD; k++) {
        const size_t len = burst(tcp != 0, 1 + next_random(&seed) % 200, bytes);
        assert_int_equal(send(readers[k].fd, bytes, len, MSG_NOSIGNAL), (ssize_t)len);
      }
      on_loop(weft_runtime_loop(d.rt, 0), do_close, &d);
      for (int k = 0; k < CROWD; k++) {
        (void)read_and_go(&readers[k]); /* it is hung up on at once */
      }
      after_turn(i, &before);
    }
    assert_descriptors_come_down_to(before);
    weft_rundir_close(dir);
  }
  weft_runtime_stop(d.rt, 1000);
  weft_runtime_join(d.rt);
  weft_runtime_destroy(d.rt);
}

enum { FLOOD = 2000, FLOODERS = 5, FLOODS = 8 };

/* Many small questions, of which no answer is read. */
static void flood(int fd, bool tcp)
{
  static uint8_t bytes[FLOOD * 15];
  const size_t len = burst(tcp, FLOOD, bytes);
  const struct timeval some = { .tv_usec = 100000 };
  const struct linger hard = { .l_onoff = 1 };
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &some, sizeof some), 0);
  (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  (void)!send(fd, bytes, len, MSG_NOSIGNAL);
}

/* While a server cannot write its answers it does not read: it seems quiet, with half of
 * the questions before it.  Not inherited by the next ones: they are answered. */
static void who_asks_and_does_not_read_goes(void **state)
{
  (void)state;
  const weft_runtime_opts o = { .size = sizeof o, .loops = 1 };
  desk d = { .err = WEFT_OK };
  assert_ok(weft_runtime_create(&o, &d.rt));
  assert_ok(weft_runtime_start_all(d.rt));
  for (int tcp = 0; tcp < 2; tcp++) {
    weft_rundir *dir;
    assert_ok(weft_rundir_open(NULL, &dir, &d.why));
    choose_url(tcp != 0, dir, d.at);
    on_loop(weft_runtime_loop(d.rt, 0), do_open, &d);
    assert_ok(d.err);
    const unsigned before = descriptors();
    for (int i = 0; i < FLOODS; i++) {
      int fds[FLOODERS];
      for (int k = 0; k < FLOODERS; k++) {
        fds[k] = client_of(d.url, REQ0);
        flood(fds[k], tcp != 0);
      }
      for (int k = 0; k < FLOODERS; k++) {
        (void)close(fds[k]);
      }
    }
    assert_descriptors_come_down_to(before);
    on_loop(weft_runtime_loop(d.rt, 0), do_close, &d);
    (void)poll(NULL, 0, 250);
    weft_rundir_close(dir);
  }
  weft_runtime_stop(d.rt, 1000);
  weft_runtime_join(d.rt);
  weft_runtime_destroy(d.rt);
}

/* It has something for them more often than anybody waits for quiet. */
static void the_watchers_of_a_busy_publisher_go(void **state)
{
  (void)state;
  static char text[SMALL];
  weft_pub *pub = NULL;
  weft_why why;
  char url[64];
  int fds[CROWD];
  memset(text, 'x', sizeof text);
  assert_ok(weft_pub_create("tcp://127.0.0.1:0", url, sizeof url, &pub, &why));
  const unsigned before = descriptors();
  for (int k = 0; k < CROWD; k++) {
    fds[k] = client_of(url, SUB0);
  }
  for (int k = 0; k < CROWD; k++) {
    (void)close(fds[k]);
  }
  unsigned n = descriptors();
  for (int i = 0; i < PATIENCE_MS / 5 && n > before; i++) {
    assert_ok(weft_pub_send(pub, "t", text, sizeof text));
    (void)poll(NULL, 0, 5);
    n = descriptors();
  }
  if (n > before) {
    fail_msg("%u descriptors, %u before", n, before);
  }
  weft_pub_destroy(pub);
}

static const struct CMUnitTest cases[] = {
  cmocka_unit_test(closed_by_us_while_events_come),
  cmocka_unit_test(the_peers_of_links_go),
  cmocka_unit_test(watchers_over_tcp_go),
  cmocka_unit_test(a_publisher_closes_while_it_writes),
  cmocka_unit_test(a_server_closes_while_it_reads),
  cmocka_unit_test(who_asks_and_does_not_read_goes),
  cmocka_unit_test(the_watchers_of_a_busy_publisher_go),
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* The one that is named, or all: at once, as they mostly wait. */
int main(int argc, char **argv)
{
  pid_t pids[CASES];
  int failed = 0;
  if (argc > 1) {
    cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(cases, NULL, NULL);
  }
  for (int i = 0; i < CASES; i++) {
    char name[64];
    char *const args[] = { argv[0], name, NULL };
    (void)snprintf(name, sizeof name, "%s", cases[i].name);
    if (posix_spawn(&pids[i], "/proc/self/exe", NULL, NULL, args, environ) != 0) {
      return 1;
    }
  }
  for (int i = 0; i < CASES; i++) {
    int status = 1;
    failed += waitpid(pids[i], &status, 0) != pids[i] || status != 0;
  }
  return failed;
}
