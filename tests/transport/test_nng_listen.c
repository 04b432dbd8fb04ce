/* How our listeners answer the hazards of nng 1.5.2's ipc transport. */
#define _GNU_SOURCE
#include "weft_test.h"

#include "on_loop.h"
#include "weft/link.h"
#include "weft/process.h"
#include "weft/pubsub.h"
#include "weft/runtime.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* A JSON socket that answers every request with itself. */
typedef struct host {
  weft_runtime *rt;
  weft_rundir *dir;
  weft_jsonrep *rep;
  const char *at;
  char url[256], path[100];
  weft_err err;
  weft_why why;
} host;

static void on_request(void *arg, uint64_t id, weft_buf *request)
{
  weft_jsonrep_answer(((host *)arg)->rep, id, request->data, request->len);
}

static void do_open(void *arg)
{
  host *h = arg;
  h->err = weft_jsonrep_create(weft_runtime_loop(h->rt, 0), h->at, 4, on_request, h,
                               h->url, sizeof h->url, &h->rep, &h->why);
}

static void do_close(void *arg)
{
  weft_jsonrep_destroy(((host *)arg)->rep);
}

static void host_start(host *h)
{
  *h = (host){ .err = WEFT_OK };
  const weft_runtime_opts o = { .size = sizeof o, .loops = 1 };
  assert_ok(weft_rundir_open(NULL, &h->dir, &h->why));
  assert_ok(weft_runtime_create(&o, &h->rt));
  assert_ok(weft_runtime_start_all(h->rt));
  (void)snprintf(h->path, sizeof h->path, "%s/sock", weft_rundir_path(h->dir));
}

static weft_err host_listen(host *h, const char *at)
{
  h->at = at;
  h->rep = NULL;
  on_loop(weft_runtime_loop(h->rt, 0), do_open, h);
  return h->err;
}

static void host_stop(host *h)
{
  on_loop(weft_runtime_loop(h->rt, 0), do_close, h);
  weft_runtime_stop(h->rt, 100);
  weft_runtime_join(h->rt);
  weft_runtime_destroy(h->rt);
  weft_rundir_close(h->dir);
}

static weft_err ask(const char *url, uint64_t timeout_ms)
{
  weft_buf *b = NULL;
  const weft_err err = weft_jsonreq(url, "{\"a\":1}", 7, timeout_ms, &b, NULL);
  if (err == WEFT_OK) {
    assert_int_equal(b->len, 7);
    assert_memory_equal(b->data, "{\"a\":1}", 7);
  }
  weft_buf_unref(b);
  return err;
}

static int plain_ipc(const char *path)
{
  struct sockaddr_un sa = { .sun_family = AF_UNIX };
  (void)snprintf(sa.sun_path, sizeof sa.sun_path, "%s", path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (const struct sockaddr *)&sa, sizeof sa), 0);
  return fd;
}

static int plain_tcp(const char *url)
{
  struct sockaddr_in sa = { .sin_family = AF_INET };
  sa.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
  sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (const struct sockaddr *)&sa, sizeof sa), 0);
  return fd;
}

static void a_regular_file_is_left_alone(void **state)
{
  (void)state;
  host h;
  char at[300];
  host_start(&h);
  const int fd = open(h.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  assert_int_equal(write(fd, "precious", 8), 8);
  (void)close(fd);
  (void)snprintf(at, sizeof at, "ipc://%s", h.path);
  assert_err(host_listen(&h, at), WEFT_E_EXISTS);
  assert_non_null(strstr(h.why.text, h.path));
  struct stat st;
  assert_int_equal(lstat(h.path, &st), 0);
  assert_true(S_ISREG(st.st_mode) && st.st_size == 8);
  assert_int_equal(unlink(h.path), 0);
  host_stop(&h);
}

/* Twenty probes, and the living listener still takes new connections. */
static void a_living_listener_is_found_and_unharmed(void **state)
{
  (void)state;
  host h;
  char at[300];
  host_start(&h);
  (void)snprintf(at, sizeof at, "ipc://%s", h.path);
  assert_ok(host_listen(&h, at));
  weft_jsonrep *living = h.rep;
  for (int i = 0; i < 20; i++) {
    assert_err(host_listen(&h, at), WEFT_E_EXISTS);
    h.rep = living;
    assert_ok(ask(h.url, 5000));
  }
  host_stop(&h);
}

static void put_socket(const char *path)
{
  struct sockaddr_un sa = { .sun_family = AF_UNIX };
  (void)snprintf(sa.sun_path, sizeof sa.sun_path, "%s", path);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  assert_true(fd >= 0);
  assert_int_equal(bind(fd, (const struct sockaddr *)&sa, sizeof sa), 0);
  (void)close(fd);
}

static void a_stale_socket_is_replaced(void **state)
{
  (void)state;
  host h;
  char at[300];
  char inner[sizeof h.path + 9];
  char other[sizeof h.path + 9];
  host_start(&h);
  (void)snprintf(inner, sizeof inner, "%s~0123cdef", h.path);
  (void)snprintf(other, sizeof other, "%s~mine", h.path);
  put_socket(h.path);
  put_socket(inner);
  put_socket(other);
  (void)snprintf(at, sizeof at, "ipc://%s", h.path);
  assert_ok(host_listen(&h, at));
  assert_ok(ask(h.url, 5000));
  assert_int_equal(access(inner, F_OK), -1);
  assert_int_equal(access(other, F_OK), 0); /* no name of ours */
  struct stat st;
  assert_int_equal(stat(h.path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0600);
  host_stop(&h);
}

static void an_open_directory_is_refused(void **state)
{
  (void)state;
  host h;
  char at[300];
  host_start(&h);
  assert_int_equal(chmod(weft_rundir_path(h.dir), 0755), 0);
  (void)snprintf(at, sizeof at, "ipc://%s", h.path);
  assert_err(host_listen(&h, at), WEFT_E_DENIED);
  assert_err(host_listen(&h, "ipc://relative"), WEFT_E_INVAL);
  assert_err(host_listen(&h, "ws://127.0.0.1:0"), WEFT_E_INVAL);
  assert_int_equal(chmod(weft_rundir_path(h.dir), 0700), 0);
  host_stop(&h);
}

/* A worker that was killed could not remove what it listened on. */
static void what_the_dead_listened_on_is_removed(void **state)
{
  (void)state;
  host h;
  char url[300];
  char inner[sizeof h.path + 9];
  host_start(&h);
  (void)snprintf(url, sizeof url, "ipc://%s", h.path);
  (void)snprintf(inner, sizeof inner, "%s~89abcdef", h.path);
  put_socket(h.path);
  put_socket(inner);
  weft_link_forget("tcp://127.0.0.1:1");
  weft_link_forget(url);
  assert_int_equal(access(h.path, F_OK), -1);
  assert_int_equal(access(inner, F_OK), -1);
  weft_link_forget(url); /* nothing is there */
  const int fd = open(h.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  (void)close(fd);
  weft_link_forget(url);
  assert_int_equal(access(h.path, F_OK), 0); /* no socket, so somebody else's */
  assert_int_equal(unlink(h.path), 0);
  host_stop(&h);
}

/* nng 1.5.2's own listener would never accept again (issue 1518); see listen_gate.h. */
static void a_connection_without_greeting_harms_nothing(void **state)
{
  (void)state;
  host h;
  char at[300];
  host_start(&h);
  (void)snprintf(at, sizeof at, "ipc://%s", h.path);
  assert_ok(host_listen(&h, at));
  assert_ok(ask(h.url, 5000));
  for (int i = 0; i < 200; i++) {
    (void)close(plain_ipc(h.path));
  }
  assert_ok(ask(h.url, 3000));
  host_stop(&h);
}

/* Random bytes, silence and absurd lengths on one connection each; then a real question.
 */
static void send_rubbish(int fd, int kind, unsigned seed)
{
  static const uint8_t hello[8] = { 0, 'S', 'P', 0, 0, 0x30, 0, 0 }; /* a req0 */
  uint8_t bytes[256];
  uint8_t theirs[8];
  for (size_t i = 0; i < sizeof bytes; i++) {
    seed = seed * 1103515245u + 12345u;
    bytes[i] = (uint8_t)(seed >> 16);
  }
  if (kind == 0) {
    (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    return;
  }
  (void)!send(fd, hello, sizeof hello, MSG_NOSIGNAL);
  (void)!recv(fd, theirs, sizeof theirs, MSG_WAITALL);
  if (kind == 1) { /* 256 GiB announced; ipc has one byte of type before the length */
    const uint8_t head[9] = { 1, 0, 0, 0, 0x40, 0, 0, 0, 0 };
    (void)!send(fd, head, sizeof head, MSG_NOSIGNAL);
    (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
  } else if (kind == 2) {
    const uint8_t head[8] = { 0, 0, 0, 0x40, 0, 0, 0, 0 };
    (void)!send(fd, head, sizeof head, MSG_NOSIGNAL);
    (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
  } else if (kind == 3) { /* half a frame, then silence */
    const uint8_t head[12] = { 1, 0, 0, 0, 0, 0, 0, 1, 0, 'x', 'y', 'z' };
    (void)!send(fd, head, sizeof head, MSG_NOSIGNAL);
  } else {
    (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
  }
}

static void rubbish_stops_nobody(void **state)
{
  (void)state;
  for (int tcp = 0; tcp < 2; tcp++) {
    host h;
    char at[300];
    int open_fds[10];
    host_start(&h);
    (void)snprintf(at, sizeof at, "ipc://%s", h.path);
    assert_ok(host_listen(&h, tcp ? "tcp://127.0.0.1:0" : at));
    for (int i = 0; i < 10; i++) { /* idle and half-open ones stay until the end */
      open_fds[i] = tcp ? plain_tcp(h.url) : plain_ipc(h.path);
      send_rubbish(open_fds[i], i % 5, (unsigned)i + 1);
    }
    assert_ok(ask(h.url, 5000));
    for (int i = 0; i < 100; i++) {
      const int fd = tcp ? plain_tcp(h.url) : plain_ipc(h.path);
      send_rubbish(fd, i % 5, (unsigned)i + 100);
      (void)close(fd);
    }
    assert_ok(ask(h.url, 5000));
    for (int i = 0; tcp && i < 200; i++) {
      (void)close(plain_tcp(h.url));
    }
    assert_ok(ask(h.url, 5000));
    for (int i = 0; i < 10; i++) {
      (void)close(open_fds[i]);
    }
    host_stop(&h);
  }
}

static void a_request_over_64_kib_is_dropped(void **state)
{
  (void)state;
  for (int i = 0; i < 3; i++) {
    host h;
    char at[300];
    host_start(&h);
    (void)snprintf(at, sizeof at, "%s://%s", i == 0 ? "ipc" : "inproc", h.path);
    assert_ok(host_listen(&h, i == 2 ? "tcp://127.0.0.1:0" : at));
    char *big = calloc(1, (64u << 10) + 200);
    assert_non_null(big);
    weft_buf *b = NULL;
    assert_true(weft_jsonreq(h.url, big, (64u << 10) + 200, 300, &b, NULL) != WEFT_OK);
    assert_ok(weft_jsonreq(h.url, big, 64u << 10, 5000, &b, NULL));
    assert_int_equal(b->len, 64u << 10);
    weft_buf_unref(b);
    free(big);
    host_stop(&h);
  }
}

/* A new listener is there at once, and nothing of the old one takes its place from it. */
static void an_address_that_was_closed_is_free(void **state)
{
  (void)state;
  for (int tcp = 0; tcp < 2; tcp++) {
    host h;
    char at[300];
    int peers[20];
    host_start(&h);
    (void)snprintf(at, sizeof at, "ipc://%s", h.path);
    assert_ok(host_listen(&h, tcp ? "tcp://127.0.0.1:0" : at));
    (void)snprintf(at, sizeof at, "%s", h.url);
    for (int i = 0; i < 20; i++) { /* with a peer, it takes a while to close */
      peers[i] = tcp ? plain_tcp(h.url) : plain_ipc(h.path);
      send_rubbish(peers[i], 3, 1);
      on_loop(weft_runtime_loop(h.rt, 0), do_close, &h);
      assert_ok(host_listen(&h, at));
      assert_ok(ask(h.url, 5000));
    }
    const struct timespec a_while = { .tv_nsec = 500000000 }; /* now they have closed */
    (void)nanosleep(&a_while, NULL);
    assert_ok(ask(h.url, 5000));
    for (int i = 0; i < 20; i++) {
      (void)close(peers[i]);
    }
    host_stop(&h);
  }
}

enum { LAST = 60000 }; /* bytes; goes into the connection at once */

static void answer_and_close(void *arg, uint64_t id, weft_buf *request)
{
  (void)request;
  static char words[LAST];
  host *h = arg;
  memset(words, 'w', sizeof words);
  weft_jsonrep_answer(h->rep, id, words, sizeof words);
  weft_jsonrep_destroy(h->rep);
}

static void do_open_for_one(void *arg)
{
  host *h = arg;
  h->err = weft_jsonrep_create(weft_runtime_loop(h->rt, 0), h->at, 4, answer_and_close, h,
                               h->url, sizeof h->url, &h->rep, &h->why);
}

static size_t bytes_until_the_end(int fd)
{
  static char sink[65536];
  size_t all = 0;
  for (ssize_t n; (n = recv(fd, sink, sizeof sink, 0)) > 0;) {
    all += (size_t)n;
  }
  return all;
}

static void the_last_answer_arrives(void **state)
{
  (void)state;
  static const uint8_t words[] = { 0, 'S', 'P', 0, 0, 0x30, 0, 0, 1, 0,   0,  0,
                                   0, 0,   0,   0, 6, 0x80, 0, 0, 9, '{', '}' };
  uint8_t bytes[sizeof words];
  for (int tcp = 0; tcp < 2; tcp++) {
    const size_t skip = tcp ? 1 : 0; /* the type byte of ipc's head */
    host h;
    char at[300];
    host_start(&h);
    (void)snprintf(at, sizeof at, "ipc://%s", h.path);
    h.at = tcp ? "tcp://127.0.0.1:0" : at;
    memcpy(bytes, words, 8);
    memcpy(bytes + 8, words + 8 + skip, sizeof words - 8 - skip);
    for (int i = 0; i < 40; i++) {
      on_loop(weft_runtime_loop(h.rt, 0), do_open_for_one, &h);
      assert_ok(h.err);
      const int fd = tcp ? plain_tcp(h.url) : plain_ipc(h.path);
      assert_int_equal(send(fd, bytes, sizeof bytes - skip, MSG_NOSIGNAL),
                       sizeof bytes - skip);
      assert_int_equal(bytes_until_the_end(fd), 8 + 9 - skip + 4 + LAST);
      (void)close(fd);
    }
    h.rep = NULL;
    host_stop(&h);
  }
}

/* rep0 with a non-blocking send lost 76 of 2,000 replies. */
static void no_reply_is_lost(void **state)
{
  (void)state;
  host h;
  char at[300];
  host_start(&h);
  (void)snprintf(at, sizeof at, "inproc://%s", h.path);
  assert_ok(host_listen(&h, at));
  for (int i = 0; i < 2000; i++) {
    assert_ok(ask(h.url, 5000));
  }
  host_stop(&h);
}

static void nobody_there_is_told_apart(void **state)
{
  (void)state;
  weft_buf *b = NULL;
  weft_why why = { 0 };
  assert_err(weft_jsonreq("ipc:///nonexistent/x", "1", 1, 500, &b, &why), WEFT_E_SYS);
  assert_err(weft_jsonreq("tcp://127.0.0.1:1", "1", 1, 500, &b, &why), WEFT_E_SYS);
  assert_err(weft_jsonreq("nowhere", "1", 1, 500, &b, &why), WEFT_E_INVAL);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_regular_file_is_left_alone),
    cmocka_unit_test(a_living_listener_is_found_and_unharmed),
    cmocka_unit_test(a_stale_socket_is_replaced),
    cmocka_unit_test(an_open_directory_is_refused),
    cmocka_unit_test(what_the_dead_listened_on_is_removed),
    cmocka_unit_test(a_connection_without_greeting_harms_nothing),
    cmocka_unit_test(rubbish_stops_nobody),
    cmocka_unit_test(a_request_over_64_kib_is_dropped),
    cmocka_unit_test(an_address_that_was_closed_is_free),
    cmocka_unit_test(the_last_answer_arrives),
    cmocka_unit_test(no_reply_is_lost),
    cmocka_unit_test(nobody_there_is_told_apart),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
