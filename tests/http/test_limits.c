/* Sizes at the limit and one above, deadlines with small fakes, memory. */
#define _DEFAULT_SOURCE
#include "weft_test.h"

#include "fixture.h"
#include "weft/clock.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define H "Host: a\r\n"
#define GET(path) "GET " path " HTTP/1.1\r\n" H "\r\n"

enum { BODY_MAX = 1000, HEAD_MAX = 512 };

static void start(fixture *f, weft_http_opts opts)
{
  opts.body_max = opts.body_max != 0 ? opts.body_max : BODY_MAX;
  opts.head_max = HEAD_MAX;
  fixture_start(f, &opts, "127.0.0.1:0");
}

/* Status of a POST of size bytes, sent whole. */
static int post(fixture *f, const char *path, size_t size, bool chunked)
{
  client c;
  reply r = { 0 };
  char head[200];
  char *body = calloc(1, size + 1);
  client_open(&c, f);
  (void)snprintf(head, sizeof head,
                 chunked ? "POST %s HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
                         : "POST %s HTTP/1.1\r\n" H "Content-Length: %zu\r\n\r\n",
                 path, size);
  client_text(&c, head);
  for (size_t at = 0; at < size;) { /* chunks of 100 bytes and a rest */
    const size_t n = size - at < 100 ? size - at : 100;
    (void)snprintf(head, sizeof head, "%zx\r\n", n);
    if (chunked) {
      client_text(&c, head);
    }
    client_send(&c, body + at, n);
    if (chunked) {
      client_text(&c, "\r\n");
    }
    at += n;
  }
  client_text(&c, chunked ? "0\r\n\r\n" : "");
  assert_true(client_reply(&c, &r, false));
  if (r.status == 200 && strcmp(path, "/echo") == 0) {
    assert_int_equal(r.body_len, size);
  }
  if (r.status != 200) {
    assert_true(reply_has(&r, "Connection: close"));
    (void)client_at_end(&c);
  }
  client_close(&c);
  free(body);
  return r.status;
}

static void body_at_the_limit_and_one_more(void **state)
{
  (void)state;
  fixture f;
  start(&f, (weft_http_opts){ 0 });
  static const char *const paths[] = { "/echo", "/sink", "/nowhere" };
  for (size_t i = 0; i < 3; i++) {
    const int ok = i == 2 ? 404 : 200;
    if (ok == 200) {
      assert_int_equal(post(&f, paths[i], BODY_MAX, false), ok);
      assert_int_equal(post(&f, paths[i], BODY_MAX, true), ok);
    }
    assert_int_equal(post(&f, paths[i], BODY_MAX + 1, false), 413);
    assert_int_equal(post(&f, paths[i], BODY_MAX + 1, true), 413);
  }
  weft_http_stats stats;
  fixture_stats(&f, &stats, NULL);
  assert_int_equal(stats.body_bytes_held, 0);
  assert_int_equal(stats.refused, 6);
  fixture_stop(&f);
}

static void announced_413_comes_before_the_body(void **state)
{
  (void)state;
  fixture f;
  start(&f, (weft_http_opts){ 0 });
  static const char *const heads[] = {
    "POST /echo HTTP/1.1\r\n" H "Content-Length: 1001\r\n\r\n",
    "POST /echo HTTP/1.1\r\n" H "Content-Length: 18446744073709551615\r\n\r\n",
    "POST /echo HTTP/1.1\r\n" H "Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n",
    "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3e9\r\n",
  };
  for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
    assert_int_equal(one_shot(&f, heads[i], strlen(heads[i])), 413);
  }
  fixture_stop(&f);
}

static void head_at_the_limit_and_one_more(void **state)
{
  (void)state;
  fixture f;
  start(&f, (weft_http_opts){ 0 });
  static const char end[4] = { '\r', '\n', '\r', '\n' };
  for (size_t over = 0; over < 2; over++) {
    char text[HEAD_MAX + 2];
    const int n = snprintf(text, sizeof text, "GET /weight_info HTTP/1.0\r\nX: ");
    memset(text + n, 'x', sizeof text - (size_t)n);
    memcpy(text + HEAD_MAX + over - sizeof end, end, sizeof end);
    assert_int_equal(one_shot(&f, text, HEAD_MAX + over), over == 0 ? 200 : 431);
  }
  char endless[HEAD_MAX]; /* not complete, and can no longer be */
  memset(endless, 'G', sizeof endless);
  assert_int_equal(one_shot(&f, endless, sizeof endless), 431);
  fixture_stop(&f);
}

static void too_many_fields(void **state)
{
  (void)state;
  fixture f;
  fixture_start(&f, NULL, "127.0.0.1:0");
  for (unsigned over = 0; over < 2; over++) {
    char text[2000] = "GET /weight_info HTTP/1.0\r\n";
    size_t n = strlen(text);
    for (unsigned i = 0; i < 128 + over; i++) {
      n += (size_t)snprintf(text + n, sizeof text - n, "X%u: a\r\n", i);
    }
    n += (size_t)snprintf(text + n, sizeof text - n, "\r\n");
    assert_int_equal(one_shot(&f, text, n), over == 0 ? 200 : 431);
  }
  fixture_stop(&f);
}

static void trailers_and_extensions_are_bounded(void **state)
{
  (void)state;
  fixture f;
  start(&f, (weft_http_opts){ 0 });
  static const char head[] =
      "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n";
  char text[8000];
  int n = snprintf(text, sizeof text, "%s0\r\nX: ", head);
  memset(text + n, 'x', HEAD_MAX);
  assert_int_equal(one_shot(&f, text, (size_t)n + HEAD_MAX), 400);
  n = snprintf(text, sizeof text, "%s3;", head);
  memset(text + n, 'x', 4097);
  assert_int_equal(one_shot(&f, text, (size_t)n + 4097), 400);
  fixture_stop(&f);
}

static void body_memory_is_reserved_before_it_is_read(void **state)
{
  (void)state;
  fixture f;
  start(&f, (weft_http_opts){ .body_memory_max = 1500 });
  client c;
  reply r = { 0 };
  client_open(&c, &f);
  client_text(&c, "POST /later?1 HTTP/1.1\r\n" H
                  "Content-Length: 1000\r\n\r\n"); /* no body yet */
  weft_http_stats stats = { 0 };
  while (stats.body_bytes_held == 0) {
    fixture_stats(&f, &stats, NULL);
  }
  assert_int_equal(stats.body_bytes_held, 1000);
  static const char refused[] = "POST /echo HTTP/1.1\r\n" H "Content-Length: 501\r\n\r\n";
  assert_int_equal(one_shot(&f, refused, sizeof refused - 1), 503);
  assert_int_equal(post(&f, "/echo", 500, false), 200);
  assert_int_equal(post(&f, "/echo", 800, true), 503);
  assert_int_equal(post(&f, "/sink", 800, true), 200); /* nothing is held for it */
  char body[1000] = "";
  client_send(&c, body, sizeof body);
  fixture_wait_held(&f, 1);
  fixture_stats(&f, &stats, NULL);
  assert_int_equal(stats.body_bytes_held, 1000); /* until it is answered */
  fixture_release(&f, false);
  assert_true(client_reply(&c, &r, false));
  fixture_stats(&f, &stats, NULL);
  assert_int_equal(stats.body_bytes_held, 0);
  client_text(&c, "POST /later?1 HTTP/1.1\r\n" H "Content-Length: 1000\r\n\r\n");
  client_close(&c); /* gone with its reservation */
  fixture_wait_connections(&f, 0);
  fixture_stats(&f, &stats, NULL);
  assert_int_equal(stats.body_bytes_held, 0);
  fixture_stop(&f);
}

/* Sends text byte by byte, one each few ms, until the server closes; bytes that went out.
 */
static size_t drip(client *c, const char *text, size_t len)
{
  size_t n = 0;
  while (n < len) {
    const struct timespec pause = { .tv_nsec = 4000000 };
    if (send(c->fd, text + n, 1, MSG_NOSIGNAL) != 1) {
      break;
    }
    n++;
    (void)nanosleep(&pause, NULL);
    char byte;
    if (recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0) {
      break; /* answered or closed */
    }
  }
  return n;
}

static void a_dripped_head_and_a_dripped_body_end_at_their_deadline(void **state)
{
  (void)state;
  fixture f;
  start(&f, (weft_http_opts){ .head_ms = 100, .body_ms = 100 });
  char text[700];
  memset(text, 'x', sizeof text);
  static const char *const starts[] = {
    "GET /weight_info HTTP/1.1\r\n" H "X: ",
    "POST /echo HTTP/1.1\r\n" H "Content-Length: 600\r\n\r\n",
    "POST /sink HTTP/1.1\r\n" H "Content-Length: 600\r\n\r\n",
    "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1f0\r\n",
  };
  for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
    client c;
    reply r = { 0 };
    client_open(&c, &f);
    const uint64_t before = weft_clock_ms();
    client_text(&c, starts[i]);
    assert_true(drip(&c, text, 400) < 400);
    assert_true(client_reply(&c, &r, false));
    assert_int_equal(r.status, 408);
    assert_true(reply_has(&r, "Connection: close"));
    assert_true(weft_clock_ms() - before >= 95);
    (void)client_at_end(&c);
    client_close(&c);
  }
  fixture_stop(&f);
}

static void an_idle_connection_is_closed_and_a_waiting_one_is_not(void **state)
{
  (void)state;
  fixture f;
  start(&f, (weft_http_opts){ .idle_ms = 60, .head_ms = 60 });
  client idle;
  client silent;
  client waiting;
  reply r = { 0 };
  client_open(&idle, &f);
  client_open(&silent, &f);
  client_open(&waiting, &f);
  client_text(&waiting, GET("/later?1"));
  client_text(&idle, GET("/weight_info"));
  assert_true(client_reply(&idle, &r, false));
  const size_t before = idle.len;
  assert_true(client_at_end(&idle));
  assert_int_equal(idle.len, before); /* without a word */
  assert_true(client_at_end(&silent));
  assert_int_equal(silent.len, 0);
  fixture_wait_held(&f, 1);
  fixture_release(&f, false);
  r = (reply){ 0 };
  assert_true(client_reply(&waiting, &r, false));
  assert_int_equal(r.status, 200);
  client_close(&idle);
  client_close(&silent);
  client_close(&waiting);
  fixture_stop(&f);
}

/* Deadlines count from the event, not from when the loop last had something to do. */
static void a_loop_that_slept_gives_the_full_time(void **state)
{
  (void)state;
  fixture f;
  start(&f, (weft_http_opts){ .idle_ms = 200 });
  const struct timespec sleep = { .tv_nsec = 300000000 };
  (void)nanosleep(&sleep, NULL);
  client c;
  reply r = { 0 };
  client_open(&c, &f);
  const struct timespec pause = { .tv_nsec = 20000000 };
  (void)nanosleep(&pause, NULL);
  client_text(&c, GET("/weight_info"));
  assert_true(client_reply(&c, &r, false));
  assert_int_equal(r.status, 200);
  client_close(&c);
  fixture_stop(&f);
}

static void a_reader_that_takes_nothing_is_closed(void **state)
{
  (void)state;
  fixture f;
  start(&f, (weft_http_opts){ .write_ms = 60, .body_max = 16 << 20 });
  client c;
  client_open(&c, &f);
  char *body = calloc(1, 8 << 20);
  client_text(&c, "POST /echo HTTP/1.1\r\n" H "Content-Length: 8388608\r\n\r\n");
  client_send(&c, body, 8 << 20);
  fixture_wait_gone(&f, 1);
  client_close(&c);
  free(body);
  fixture_stop(&f);
}

enum { IDLE = 5000, IDLE_BYTES = 1536 };

/* Bytes in use by malloc; a sanitizer's own allocator does not count here. */
static size_t in_use(void)
{
  return mallinfo2().uordblks;
}

static void idle_connections_cost_little(void **state)
{
  (void)state;
  struct rlimit lim;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &lim), 0);
  if (lim.rlim_max < 2 * IDLE + 100) {
    skip();
  }
  const struct rlimit old = lim;
  lim.rlim_cur = lim.rlim_max < 65536 ? lim.rlim_max : 65536;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &lim), 0);
  fixture f;
  start(&f, (weft_http_opts){ .connections_max = IDLE });
  static const char text[] = GET("/weight_info");
  int *fds = malloc(IDLE * sizeof *fds);
  fds[0] = dial(f.bound);
  fixture_wait_connections(&f, 1);
  const size_t before = in_use();
  for (size_t i = 1; i < IDLE; i++) {
    fds[i] = dial(f.bound);
  }
  for (size_t i = 0; i < IDLE; i++) { /* each has been busy once */
    char answer[400];
    assert_int_equal(send(fds[i], text, sizeof text - 1, MSG_NOSIGNAL), sizeof text - 1);
    assert_true(recv(fds[i], answer, sizeof answer, 0) > 0);
  }
  size_t n = 0;
  fixture_stats(&f, NULL, &n);
  assert_int_equal(n, IDLE);
  const size_t after = in_use();
  const size_t each = (after > before ? after - before : 0) / (IDLE - 1);
  print_message("%zu bytes for each idle connection\n", each);
  if (each > IDLE_BYTES) {
    fail_msg("%zu bytes for each idle connection", each);
  }
  for (size_t i = 0; i < IDLE; i++) {
    (void)close(fds[i]);
  }
  free(fds);
  fixture_wait_connections(&f, 0);
  fixture_stop(&f);
  (void)setrlimit(RLIMIT_NOFILE, &old);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(body_at_the_limit_and_one_more),
    cmocka_unit_test(announced_413_comes_before_the_body),
    cmocka_unit_test(head_at_the_limit_and_one_more),
    cmocka_unit_test(too_many_fields),
    cmocka_unit_test(trailers_and_extensions_are_bounded),
    cmocka_unit_test(body_memory_is_reserved_before_it_is_read),
    cmocka_unit_test(a_dripped_head_and_a_dripped_body_end_at_their_deadline),
    cmocka_unit_test(an_idle_connection_is_closed_and_a_waiting_one_is_not),
    cmocka_unit_test(a_loop_that_slept_gives_the_full_time),
    cmocka_unit_test(a_reader_that_takes_nothing_is_closed),
    cmocka_unit_test(idle_connections_cost_little),
  };
  return cmocka_run_group_tests_name("http.limits", tests, NULL, NULL);
}
