/* Clients that go at any moment of their greeting stop no ipc listener of ours and leave
 * no descriptor: a publisher, a JSON socket, a join socket and a port, all in here. */
#define _GNU_SOURCE
#include "weft_test.h"

#include "descriptors.h"
#include "link_world.h"
#include "on_loop.h"
#include "weft/join.h"
#include "weft/process.h"
#include "weft/pubsub.h"

#include <poll.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { PUB, REP, JOIN, PORT, KINDS, TIMES = 200, SERVED_MS = 3000, PATIENCE_MS = 20000 };
static const char *const names[KINDS] = { "pub", "rep", "join", "port" };
/* Who may talk to them: sub0 and req0. */
static const uint8_t peer_of[KINDS] = { 0x21, 0x30, 0x30, 0x30 };

typedef struct house {
  weft_runtime *rt;
  weft_rundir *dir;
  weft_pub *pub;
  weft_jsonrep *rep;
  weft_join_server *join;
  weft_actor_id echo, port;
  char url[KINDS][200];
  unsigned sent;
  weft_err err;
  weft_why why;
} house;

static void on_request(void *arg, uint64_t id, weft_buf *request)
{
  (void)request;
  static const char status[] = "{\"sequence\":0,\"boot_id\":\"b\"}";
  weft_jsonrep_answer(((house *)arg)->rep, id, status, sizeof status - 1);
}

static weft_err on_join(void *arg, const weft_join_hello *hello, weft_why *why)
{
  (void)arg;
  (void)hello;
  (void)why;
  return WEFT_OK;
}

static void do_open(void *arg)
{
  house *h = arg;
  weft_loop *loop = weft_runtime_loop(h->rt, 0);
  h->err = weft_pub_create(h->url[PUB], NULL, 0, &h->pub, &h->why);
  if (h->err == WEFT_OK) {
    h->err = weft_jsonrep_create(loop, h->url[REP], 4, on_request, h, NULL, 0, &h->rep,
                                 &h->why);
  }
  if (h->err == WEFT_OK) {
    h->err = weft_join_listen(loop, h->url[JOIN], NULL, on_join, h, NULL, 0, &h->join,
                              &h->why);
  }
}

static void do_publish(void *arg)
{
  house *h = arg;
  static const char text[] = "{\"type\":\"session\",\"boot_id\":\"b\"}";
  h->err = weft_pub_send(h->pub, "weights.session", text, sizeof text - 1);
  h->sent++;
}

static void do_close(void *arg)
{
  house *h = arg;
  weft_join_close(h->join);
  weft_jsonrep_destroy(h->rep);
  weft_pub_destroy(h->pub);
}

static void house_open(house *h)
{
  *h = (house){ .err = WEFT_OK };
  const weft_runtime_opts o = { .size = sizeof o,
                                .loops = 1,
                                .catalogue = &world_catalogue };
  assert_ok(weft_rundir_open(NULL, &h->dir, &h->why));
  assert_ok(weft_runtime_create(&o, &h->rt));
  assert_ok(weft_runtime_start_all(h->rt));
  for (unsigned i = 0; i < KINDS; i++) {
    (void)snprintf(h->url[i], sizeof h->url[i], "ipc://%s/%s", weft_rundir_path(h->dir),
                   names[i]);
  }
  on_loop(weft_runtime_loop(h->rt, 0), do_open, h);
  assert_ok(h->err);
  const echo_args none = { .link_url = NULL };
  assert_ok(weft_runtime_spawn(h->rt, 0, &echo_class, &none, NULL, &h->echo));
  const weft_port_opts p = { .size = sizeof p,
                             .url = h->url[PORT],
                             .to = h->echo,
                             .roles = 1u << ROLE_SERVER,
                             .from_roles = 1u << ROLE_CLIENT };
  assert_ok(weft_port_spawn_on(h->rt, 0, &p, NULL, 0, &h->port, &h->why));
}

static int client(const house *h, int kind)
{
  struct sockaddr_un sa = { .sun_family = AF_UNIX };
  (void)snprintf(sa.sun_path, sizeof sa.sun_path, "%s", h->url[kind] + strlen("ipc://"));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    assert_int_equal(connect(fd, (const struct sockaddr *)&sa, sizeof sa), 0);
  }
  return fd;
}

static void greet(int fd, int kind, size_t bytes)
{
  const uint8_t hello[8] = { 0, 'S', 'P', 0, 0, peer_of[kind], 0, 0 };
  assert_int_equal(send(fd, hello, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
}

static void assert_event_arrives(house *h)
{
  weft_sub *sub = NULL;
  weft_sub_event e;
  assert_ok(weft_sub_create(h->url[PUB], h->url[REP], &sub, &h->why));
  /* A status says nothing of whether the events' connection is up already. */
  bool arrived = false;
  for (int i = 0; i < SERVED_MS / 50 && !arrived; i++) {
    on_loop(weft_runtime_loop(h->rt, 0), do_publish, h);
    assert_ok(h->err);
    const weft_err err = weft_sub_next(sub, 50, &e);
    if (err == WEFT_OK) {
      arrived = e.kind == WEFT_SUB_EVENT;
      weft_buf_unref(e.json);
    } else {
      assert_err(err, WEFT_E_TIMEOUT);
    }
  }
  assert_true(arrived);
  weft_sub_destroy(sub);
}

/* By a client of this library. */
static void assert_served_for_real(house *h, int kind)
{
  if (kind == PUB) {
    assert_event_arrives(h);
  } else if (kind == REP) {
    weft_buf *b = NULL;
    assert_ok(weft_jsonreq(h->url[REP], "{}", 2, SERVED_MS, &b, &h->why));
    weft_buf_unref(b);
  } else if (kind == JOIN) {
    weft_join_hello hello = { .rank = 1, .world_size = 2, .pid = 3, .incarnation = 4 };
    (void)snprintf(hello.url, sizeof hello.url, "tcp://127.0.0.1:4000");
    assert_ok(weft_join_announce(h->url[JOIN], NULL, &hello, SERVED_MS, &h->why));
  } else {
    weft_actor_id link = 0;
    uint64_t n = 0;
    const weft_link_opts o = { .size = sizeof o, .url = h->url[PORT] };
    assert_ok(weft_link_spawn_on(h->rt, 0, &o, &link));
    assert_ok(world_ping(h->rt, link, MODE_ECHO, 7, SERVED_MS, &n));
    assert_int_equal(n, 8); /* the echo adds one */
    weft_msg *m = weft_msg_heap_new(WEFT_MSG_STOP, sizeof *m);
    assert_non_null(m);
    assert_ok(weft_post(h->rt, link, m));
  }
}

/* The same with nothing of nng on this side. */
static void assert_served(house *h, int kind)
{
  static const uint8_t ask[15] = { 1, 0, 0, 0, 0, 0, 0, 0, 6, 0x80, 0, 0, 9, '{', '}' };
  const struct timeval patience = { .tv_sec = SERVED_MS / 1000 };
  uint8_t bytes[sizeof ask - 2];
  const int fd = client(h, kind);
  assert_true(fd >= 0);
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience),
                   0);
  greet(fd, kind, 8);
  assert_int_equal(recv(fd, bytes, 8, MSG_WAITALL), 8);
  if (kind == PUB) {
    struct pollfd p = { .fd = fd, .events = POLLIN };
    for (int i = 0; i < SERVED_MS / 20 && poll(&p, 1, 20) == 0; i++) {
      on_loop(weft_runtime_loop(h->rt, 0), do_publish, h); /* it may not be in yet */
      assert_ok(h->err);
    }
  } else {
    assert_int_equal(send(fd, ask, sizeof ask, MSG_NOSIGNAL), sizeof ask);
  }
  /* A head; then the topic, or the number of the question, whatever is said to it. */
  assert_int_equal(recv(fd, bytes, sizeof bytes, MSG_WAITALL), sizeof bytes);
  assert_int_equal(bytes[0], 1);
  assert_memory_equal(bytes + 9, kind == PUB ? (const uint8_t *)"weig" : ask + 9, 4);
  (void)close(fd);
}

static void house_close(house *h)
{
  on_loop(weft_runtime_loop(h->rt, 0), do_close, h);
  weft_runtime_stop(h->rt, 1000);
  weft_runtime_join(h->rt);
  weft_runtime_destroy(h->rt);
  unsigned left = 0;
  DIR *d = opendir(weft_rundir_path(h->dir));
  assert_non_null(d);
  for (const struct dirent *e; (e = readdir(d)) != NULL;) {
    left += e->d_name[0] != '.' && strcmp(e->d_name, "lock") != 0;
  }
  (void)closedir(d);
  assert_int_equal(left, 0); /* neither the sockets nor nng's own */
  weft_rundir_close(h->dir);
}

typedef void leave_fn(int fd, int kind, int turn);

static void at_once(int fd, int kind, int turn)
{
  (void)fd;
  (void)kind;
  (void)turn;
}

static void within_the_greeting(int fd, int kind, int turn)
{
  greet(fd, kind, 1u + (unsigned)turn % 7u);
}

static void after_the_greeting(int fd, int kind, int turn)
{
  (void)turn;
  greet(fd, kind, 8); /* without waiting for theirs */
}

static void after_a_lie(int fd, int kind, int turn)
{
  (void)kind;
  uint8_t bytes[8] = "\0SP\0";
  bytes[turn % 4] ^= 0x55;
  (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
}

static void after_a_frame_too_long(int fd, int kind, int turn)
{
  (void)turn;
  greet(fd, kind, 8);
  const uint8_t head[12] = { 1, 0x7f, 0xff };
  (void)!send(fd, head, sizeof head, MSG_NOSIGNAL);
}

static void gone_clients_cost_nothing(void **state)
{
  (void)state;
  static leave_fn *const ways[] = { at_once, within_the_greeting, after_the_greeting,
                                    after_a_lie, after_a_frame_too_long };
  house h;
  house_open(&h);
  for (int kind = 0; kind < KINDS; kind++) {
    assert_served(&h, kind); /* whatever the first use opens for good */
  }
  for (int kind = 0; kind < KINDS; kind++) {
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
      assert_served(&h, kind);
      const unsigned before = descriptors();
      for (int i = 0; i < TIMES; i++) {
        const int fd = client(&h, kind);
        ways[way](fd, kind, i);
        (void)close(fd);
      }
      assert_served(&h, kind);
      assert_descriptors_come_down_to(before);
    }
  }
  house_close(&h);
}

/* Two hundred at a time that leave together, in turn with real ones. */
static void a_crowd_that_leaves_costs_nothing(void **state)
{
  (void)state;
  static int fds[TIMES];
  house h;
  house_open(&h);
  assert_served(&h, REP);
  const unsigned before = descriptors();
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < TIMES; i++) {
      fds[i] = client(&h, REP);
      greet(fds[i], REP, (size_t)(i % 9));
    }
    for (int i = 0; i < TIMES; i++) {
      (void)close(fds[i]);
    }
    assert_served(&h, REP);
  }
  assert_descriptors_come_down_to(before);
  house_close(&h);
}

static bool hung_up(int fd, int ms)
{
  struct pollfd p = { .fd = fd, .events = POLLRDHUP };
  return poll(&p, 1, ms) == 1;
}

static void who_does_not_greet_is_shown_out(void **state)
{
  (void)state;
  house h;
  house_open(&h);
  const int silent = client(&h, JOIN);
  const int slow = client(&h, JOIN);
  greet(slow, JOIN, 5);
  assert_true(hung_up(silent, PATIENCE_MS));
  assert_true(hung_up(slow, PATIENCE_MS));
  (void)close(silent);
  (void)close(slow);
  assert_served(&h, JOIN);
  house_close(&h);
}

static void a_greeting_may_come_in_pieces(void **state)
{
  (void)state;
  static const uint8_t hello[8] = { 0, 'S', 'P', 0, 0, 0x30, 0, 0 };
  static const uint8_t ask[] = { 1, 0, 0, 0, 0, 0, 0, 0, 6, 0x80, 0, 0, 9, '{', '}' };
  uint8_t theirs[8];
  uint8_t answer[9 + 4];
  house h;
  house_open(&h);
  const int fd = client(&h, REP);
  for (size_t i = 0; i < sizeof hello; i++) {
    assert_int_equal(send(fd, hello + i, 1, MSG_NOSIGNAL), 1);
  }
  assert_int_equal(recv(fd, theirs, sizeof theirs, MSG_WAITALL), sizeof theirs);
  assert_int_equal(theirs[5], 0x31); /* rep0 */
  for (size_t i = 0; i < sizeof ask; i++) {
    assert_int_equal(send(fd, ask + i, 1, MSG_NOSIGNAL), 1);
  }
  assert_int_equal(recv(fd, answer, sizeof answer, MSG_WAITALL), sizeof answer);
  assert_int_equal(answer[0], 1);
  assert_memory_equal(answer + 9, ask + 9, 4); /* the number of the question */
  (void)close(fd);
  house_close(&h);
}

/* A subscriber that reads nothing fills its own buffers only, and leaves them. */
static void a_deaf_client_holds_up_nobody(void **state)
{
  (void)state;
  house h;
  uint8_t theirs[8];
  house_open(&h);
  assert_served(&h, PUB);
  const unsigned before = descriptors();
  const int fd = client(&h, PUB);
  greet(fd, PUB, 8);
  assert_int_equal(recv(fd, theirs, sizeof theirs, MSG_WAITALL), sizeof theirs);
  for (int i = 0; i < 20000; i++) {
    on_loop(weft_runtime_loop(h.rt, 0), do_publish, &h);
    assert_ok(h.err);
  }
  assert_served(&h, PUB);
  (void)close(fd);
  assert_descriptors_come_down_to(before);
  house_close(&h);
}

static void do_publish_much(void *arg)
{
  static char text[400000];
  house *h = arg;
  memset(text, 'x', sizeof text);
  h->err = weft_pub_send(h->pub, "weights.session", text, sizeof text);
}

/* Hung up on while nng is writing to them, and more is published. */
static void who_leaves_within_a_frame_costs_nothing(void **state)
{
  (void)state;
  static char sink[65536];
  house h;
  uint8_t theirs[8];
  house_open(&h);
  assert_served(&h, PUB);
  const unsigned before = descriptors();
  for (int i = 0; i < TIMES; i++) {
    const int fd = client(&h, PUB);
    greet(fd, PUB, 8);
    assert_int_equal(recv(fd, theirs, sizeof theirs, MSG_WAITALL), sizeof theirs);
    for (int k = 0; k < 3; k++) {
      on_loop(weft_runtime_loop(h.rt, 0), do_publish_much, &h);
      assert_ok(h.err);
    }
    for (int k = 0; k < i % 8; k++) {
      (void)!recv(fd, sink, sizeof sink, MSG_DONTWAIT);
    }
    (void)close(fd);
  }
  assert_served(&h, PUB);
  assert_descriptors_come_down_to(before);
  house_close(&h);
}

/* Without descriptors nobody is served; with them again, everybody is. */
static void short_of_descriptors(void **state)
{
  (void)state;
  static int fds[64];
  struct rlimit had;
  house h;
  house_open(&h);
  for (int kind = 0; kind < KINDS; kind++) {
    assert_served(&h, kind);
  }
  const unsigned before = descriptors();
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &had), 0);
  const struct rlimit few = { .rlim_cur = before + 24, .rlim_max = had.rlim_max };
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
  int n = 0;
  while (n < 64 && (fds[n] = client(&h, n % KINDS)) >= 0) {
    greet(fds[n], n % KINDS, n % 3 == 0 ? 3 : 8);
    n++;
  }
  assert_true(n < 64);
  for (int i = 0; i < n; i++) {
    (void)close(fds[i]);
  }
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &had), 0);
  for (int kind = 0; kind < KINDS; kind++) {
    assert_served(&h, kind);
  }
  assert_descriptors_come_down_to(before);
  house_close(&h);
}

static void real_clients_are_served_after_all_that(void **state)
{
  (void)state;
  house h;
  house_open(&h);
  for (int kind = 0; kind < KINDS; kind++) {
    for (int i = 0; i < TIMES; i++) {
      const int fd = client(&h, kind);
      greet(fd, kind, i % 2 == 0 ? 0u : 3u);
      (void)close(fd);
    }
    assert_served_for_real(&h, kind);
  }
  house_close(&h);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(gone_clients_cost_nothing),
    cmocka_unit_test(a_crowd_that_leaves_costs_nothing),
    cmocka_unit_test(who_does_not_greet_is_shown_out),
    cmocka_unit_test(a_greeting_may_come_in_pieces),
    cmocka_unit_test(a_deaf_client_holds_up_nobody),
    cmocka_unit_test(who_leaves_within_a_frame_costs_nothing),
    cmocka_unit_test(short_of_descriptors),
    cmocka_unit_test(real_clients_are_served_after_all_that),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
