/* Connections coming and going: peers that leave, drain, destroy, the cap, addresses. */
#include "weft_test.h"

#include "fixture.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define H "Host: a\r\n"
#define GET(path) "GET " path " HTTP/1.1\r\n" H "\r\n"
#define INFO_BODY "{\"weight_version\":\"default\"}"

static int set_up(void **state)
{
  fixture *f = calloc(1, sizeof *f);
  fixture_start(f, NULL, "127.0.0.1:0");
  *state = f;
  return 0;
}

static int tear_down(void **state)
{
  fixture_stop(*state);
  free(*state);
  return 0;
}

static void gone_is_told_and_late_answers_are_ignored(void **state)
{
  fixture *f = *state;
  static const struct linger reset = { .l_onoff = 1, .l_linger = 0 };
  unsigned gone = 0;
  for (unsigned i = 0; i < 300; i++) {
    client c;
    client_open(&c, f);
    client_text(&c, GET("/later?x"));
    fixture_wait_held(f, i + 1);
    if (i % 3 != 0) { /* a reset, else an orderly close */
      (void)setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    client_close(&c);
    fixture_wait_gone(f, ++gone);
    assert_int_equal(f->last_gone, f->last_peer);
  }
  fixture_release(f, true);
  assert_int_equal(one_shot(f, "GET /weight_info HTTP/1.0\r\n\r\n", 29), 200);
}

static void destroy_inside_a_handler(void **state)
{
  fixture *f = *state;
  client c;
  client_open(&c, f);
  client_text(&c, GET("/later") GET("/destroy") GET("/weight_info"));
  assert_true(client_at_end(&c));
  assert_int_equal(c.len, 0);
  client_close(&c);
}

static void drain(void *arg)
{
  fixture *f = arg;
  weft_http_drain(f->server);
}

static void drain_lets_busy_ones_finish(void **state)
{
  fixture *f = *state;
  client idle;
  client busy;
  reply r = { 0 };
  client_open(&idle, f);
  client_open(&busy, f);
  expect(&idle, &r, GET("/weight_info"), 200, INFO_BODY);
  r = (reply){ 0 };
  client_text(&busy, GET("/later?1"));
  fixture_wait_held(f, 1);
  fixture_call(f, drain, f);
  assert_true(client_at_end(&idle));
  fixture_release(f, false);
  assert_true(client_reply(&busy, &r, false));
  body_is(&r, "1");
  assert_true(reply_has(&r, "Connection: close"));
  assert_true(client_at_end(&busy));
  client_close(&idle);
  client_close(&busy);
  fixture_wait_connections(f, 0);
}

static void drain_inside_a_handler(void **state)
{
  fixture *f = *state;
  client c;
  reply r = { 0 };
  client_open(&c, f);
  expect(&c, &r, GET("/drain"), 200, "{}");
  assert_true(reply_has(&r, "Connection: close"));
  assert_true(client_at_end(&c));
  client_close(&c);
}

static void destroy_when_a_peer_is_gone(void **state)
{
  fixture *f = *state;
  client other;
  client c;
  client_open(&other, f);
  client_open(&c, f);
  client_text(&other, GET("/later"));
  client_text(&c, GET("/later"));
  fixture_wait_held(f, 2);
  (void)pthread_mutex_lock(&f->lock);
  f->destroy_when_gone = true;
  (void)pthread_mutex_unlock(&f->lock);
  client_close(&c);
  assert_true(client_at_end(&other));
  client_close(&other);
}

static void a_half_closed_client_gets_its_answer(void **state)
{
  fixture *f = *state;
  client c;
  reply r = { 0 };
  client_open(&c, f);
  client_text(&c, GET("/weight_info") GET("/weight_info"));
  (void)shutdown(c.fd, SHUT_WR);
  assert_true(client_reply(&c, &r, false));
  assert_true(client_reply(&c, &r, false));
  body_is(&r, INFO_BODY);
  assert_true(client_at_end(&c));
  client_close(&c);
}

static void one_connection_more_than_the_cap(void **state)
{
  (void)state;
  fixture f;
  const weft_http_opts opts = { .connections_max = 3 };
  fixture_start(&f, &opts, "127.0.0.1:0");
  client c[3];
  reply r = { 0 };
  for (unsigned i = 0; i < 3; i++) {
    r = (reply){ 0 };
    client_open(&c[i], &f);
    expect(&c[i], &r, GET("/weight_info"), 200, INFO_BODY);
  }
  assert_int_equal(one_shot(&f, GET("/weight_info"), sizeof GET("/weight_info") - 1),
                   503);
  client_close(&c[2]);
  fixture_wait_connections(&f, 2);
  client_open(&c[2], &f);
  r = (reply){ 0 };
  expect(&c[2], &r, GET("/weight_info"), 200, INFO_BODY);
  for (unsigned i = 0; i < 3; i++) {
    client_close(&c[i]);
  }
  fixture_stop(&f);
}

/* With no descriptor left the listener rests instead of spinning, and comes back. */
static void out_of_descriptors(void **state)
{
  fixture *f = *state;
  struct rlimit old;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
  client c;
  reply r = { 0 };
  client_open(&c, f);
  expect(&c, &r, GET("/weight_info"), 200, INFO_BODY);
  const int probe = dup(c.fd);
  (void)close(probe);
  const struct rlimit tight = { .rlim_cur = (rlim_t)probe + 1, .rlim_max = old.rlim_max };
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const int late = dial(f->bound); /* takes the last one: accept4 fails with EMFILE */
  expect(&c, &r, GET("/weight_info"), 200, INFO_BODY); /* others are served meanwhile */
  weft_http_stats before;
  fixture_stats(f, &before, NULL);
  assert_int_equal(before.accepted, 1);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
  static const char text[] = GET("/weight_info");
  assert_int_equal(send(late, text, sizeof text - 1, MSG_NOSIGNAL), sizeof text - 1);
  char answer[16];
  assert_true(recv(late, answer, sizeof answer, 0) > 0);
  (void)close(late);
  client_close(&c);
}

static void ipv6(void **state)
{
  (void)state;
  const int probe = socket(AF_INET6, SOCK_STREAM, 0);
  if (probe < 0) {
    skip();
  }
  const struct sockaddr_in6 any = { .sin6_family = AF_INET6,
                                    .sin6_addr = IN6ADDR_LOOPBACK_INIT };
  const int rc = bind(probe, (const struct sockaddr *)&any, sizeof any);
  (void)close(probe);
  if (rc != 0) {
    skip(); /* no IPv6 here */
  }
  fixture f;
  fixture_start(&f, NULL, "[::1]:0");
  assert_memory_equal(f.bound, "[::1]:", 6);
  assert_int_equal(one_shot(&f, "GET /weight_info HTTP/1.0\r\n\r\n", 29), 200);
  fixture_stop(&f);
}

static void unix_socket(void **state)
{
  (void)state;
  char dir[] = "/tmp/weft-http-XXXXXX";
  char address[100];
  assert_non_null(mkdtemp(dir));
  (void)snprintf(address, sizeof address, "unix:%s/s", dir);
  const char *path = address + 5;
  /* a stale socket file: bound, never listened on */
  const int stale = socket(AF_UNIX, SOCK_STREAM, 0);
  struct sockaddr_un un = { .sun_family = AF_UNIX };
  (void)snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
  assert_int_equal(bind(stale, (struct sockaddr *)&un, sizeof un), 0);
  (void)close(stale);
  fixture f;
  fixture_start(&f, NULL, address);
  assert_string_equal(f.bound, address);
  struct stat st;
  assert_int_equal(lstat(path, &st), 0);
  assert_int_equal(st.st_mode & 07777, 0600);
  assert_int_equal(one_shot(&f, "GET /weight_info HTTP/1.0\r\n\r\n", 29), 200);
  /* a live one is not taken over */
  weft_runtime *rt = NULL;
  weft_http *second = NULL;
  weft_why why;
  const weft_runtime_opts ro = { .size = sizeof ro, .loops = 1 };
  assert_ok(weft_runtime_create(&ro, &rt));
  assert_ok(weft_http_create(weft_runtime_loop(rt, 0), &f.opts, &second));
  assert_err(weft_http_listen(second, address, NULL, 0, &why), WEFT_E_EXISTS);
  assert_int_equal(lstat(path, &st), 0);
  fixture_stop(&f);
  assert_int_equal(lstat(path, &st), -1);
  assert_int_equal(errno, ENOENT);
  /* a file that is not a socket is left alone */
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  (void)fclose(file);
  assert_err(weft_http_listen(second, address, NULL, 0, &why), WEFT_E_EXISTS);
  assert_int_equal(lstat(path, &st), 0);
  assert_true(S_ISREG(st.st_mode));
  weft_http_destroy(second);
  weft_runtime_destroy(rt);
  (void)unlink(path);
  assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
    T(gone_is_told_and_late_answers_are_ignored),
    T(destroy_inside_a_handler),
    T(drain_lets_busy_ones_finish),
    T(drain_inside_a_handler),
    T(destroy_when_a_peer_is_gone),
    T(a_half_closed_client_gets_its_answer),
    cmocka_unit_test(one_connection_more_than_the_cap),
    T(out_of_descriptors),
    cmocka_unit_test(ipv6),
    cmocka_unit_test(unix_socket),
  };
  return cmocka_run_group_tests_name("http.life", tests, NULL, NULL);
}
