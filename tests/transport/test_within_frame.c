/* A connection that ends within a frame, by the peer's end or by ours, stops nothing of
 * nng: what was used for it is given back.  Peers are sockets of this test, over ipc and
 * tcp; ours are a subscriber, a link and a publisher. */
#define _GNU_SOURCE
#include "weft_test.h"

#include "link_world.h"
#include "weft/process.h"
#include "weft/pubsub.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TIMES = 40 }; /* each costs five times as much */
#else
enum { TIMES = 120 };
#endif
enum { BIG = 3 << 20, PATIENCE_MS = 20000, SUB0 = 0x21, PUB0 = 0x20, REP0 = 0x31 };

typedef struct place {
  weft_rundir *dir;
  bool tcp;
  int fd; /* listens */
  char url[200];
} place;

static unsigned descriptors(void)
{
  unsigned n = 0;
  DIR *d = opendir("/proc/self/fd");
  assert_non_null(d);
  while (readdir(d) != NULL) {
    n++;
  }
  (void)closedir(d);
  return n;
}

/* What closes does so on other threads; sleeping only sets how often this looks. */
static void assert_descriptors_come_down_to(unsigned want)
{
  unsigned n = descriptors();
  for (int i = 0; i < PATIENCE_MS / 20 && n > want; i++) {
    (void)poll(NULL, 0, 20);
    n = descriptors();
  }
  if (n > want) {
    fail_msg("%u descriptors, %u before", n, want);
  }
}

static void place_open(place *p, bool tcp)
{
  weft_why why;
  struct sockaddr_in in = { .sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
  struct sockaddr_un un = { .sun_family = AF_UNIX };
  socklen_t len = sizeof in;
  *p = (place){ .tcp = tcp };
  assert_ok(weft_rundir_open(NULL, &p->dir, &why));
  p->fd = socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(p->fd >= 0);
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

static void greet(int fd, uint8_t proto)
{
  const uint8_t hello[8] = { 0, 'S', 'P', 0, 0, proto, 0, 0 };
  uint8_t theirs[8];
  assert_int_equal(send(fd, hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
  assert_int_equal(recv(fd, theirs, sizeof theirs, MSG_WAITALL), sizeof theirs);
  assert_memory_equal(theirs, "\0SP\0", 4);
}

static int take(const place *p, uint8_t proto)
{
  struct pollfd pfd = { .fd = p->fd, .events = POLLIN };
  assert_int_equal(poll(&pfd, 1, PATIENCE_MS), 1);
  const int fd = accept4(p->fd, NULL, NULL, SOCK_CLOEXEC);
  assert_true(fd >= 0);
  greet(fd, proto);
  return fd;
}

static unsigned next_random(unsigned *seed)
{
  *seed = *seed * 1103515245u + 12345u;
  return *seed >> 8;
}

/* Reads as fast as it can, and is gone at some byte. */
static void read_and_go(int fd, size_t bytes)
{
  static char sink[65536];
  while (bytes > 0) {
    const ssize_t n = recv(fd, sink, bytes < sizeof sink ? bytes : sizeof sink, 0);
    if (n <= 0) {
      break;
    }
    bytes -= (size_t)n;
  }
  (void)close(fd);
}

static size_t burst(bool tcp, unsigned frames, uint8_t *out)
{
  static const uint8_t frame[] = {
    1, 0, 0, 0, 0, 0, 0, 0, 6, 'a', ' ', '{', '}', ' ', ' '
  };
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
      if (i == 0) { /* whatever the first use opens for good */
        (void)poll(NULL, 0, 250);
        before = descriptors();
      }
    }
    assert_descriptors_come_down_to(before);
    place_close(&at);
  }
}

static void post_big(weft_runtime *rt, weft_actor_id link)
{
  ping p = { .h = { .type = TYPE_PING }, .mode = MODE_ECHO };
  p.data = weft_buf_create(NULL, BIG);
  assert_non_null(p.data);
  memset(p.data->data, 5, BIG);
  weft_msg *m = weft_msg_dup(&world_catalogue, &p.h);
  assert_non_null(m);
  assert_ok(weft_post(rt, link, m));
  weft_buf_unref(p.data);
}

static void the_peer_of_a_link_goes(void **state)
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
    for (int i = 0; i < TIMES; i++) {
      weft_actor_id link = 0;
      const weft_link_opts l = { .size = sizeof l, .url = at.url };
      assert_ok(weft_link_spawn_on(rt, 0, &l, &link));
      const int fd = take(&at, REP0);
      post_big(rt, link);
      post_big(rt, link);
      read_and_go(fd, next_random(&seed) % (2 * BIG));
      if (i == 0) {
        (void)poll(NULL, 0, 250);
        before = descriptors();
      }
    }
    assert_descriptors_come_down_to(before);
    place_close(&at);
  }
  weft_runtime_stop(rt, 1000);
  weft_runtime_join(rt);
  weft_runtime_destroy(rt);
}

static int client_of(const char *url)
{
  struct sockaddr_in in = { .sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
  in.sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fd, (const struct sockaddr *)&in, sizeof in), 0);
  greet(fd, SUB0);
  return fd;
}

static void a_watcher_over_tcp_goes(void **state)
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
  for (int i = 0; i < TIMES; i++) {
    const int fd = client_of(url);
    struct pollfd p = { .fd = fd, .events = POLLIN };
    do { /* it may not be in yet */
      assert_ok(weft_pub_send(pub, "t", text, sizeof text));
    } while (poll(&p, 1, 1) == 0);
    read_and_go(fd, next_random(&seed) % BIG);
    if (i == 0) {
      (void)poll(NULL, 0, 250);
      before = descriptors();
    }
  }
  assert_descriptors_come_down_to(before);
  weft_pub_destroy(pub);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(closed_by_us_while_events_come),
    cmocka_unit_test(the_peer_of_a_link_goes),
    cmocka_unit_test(a_watcher_over_tcp_goes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
