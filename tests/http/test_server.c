#include "weft_test.h"

#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
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

static void keeps_the_connection(void **state)
{
  client c;
  reply r = { 0 };
  client_open(&c, *state);
  for (unsigned i = 0; i < 3; i++) {
    expect(&c, &r, GET("/weight_info"), 200, INFO_BODY);
    assert_true(reply_has(&r, "Content-Type: application/json"));
    assert_non_null(strstr(r.head, "\r\nDate: "));
    assert_null(strstr(r.head, "Connection:"));
  }
  expect(&c, &r, "GET /weight_info HTTP/1.1\r\n" H "Connection: close\r\n\r\n", 200,
         INFO_BODY);
  assert_true(reply_has(&r, "Connection: close"));
  assert_true(client_at_end(&c));
  client_close(&c);
}

static void http10_closes_unless_asked(void **state)
{
  client c;
  reply r = { 0 };
  client_open(&c, *state);
  expect(&c, &r, "GET /weight_info HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200,
         INFO_BODY);
  assert_true(reply_has(&r, "Connection: keep-alive"));
  expect(&c, &r, "GET /weight_info HTTP/1.0\r\n\r\n", 200, INFO_BODY);
  assert_true(reply_has(&r, "Connection: close"));
  assert_true(client_at_end(&c));
  client_close(&c);
}

static void head_has_the_length_and_no_body(void **state)
{
  client c;
  reply r = { 0 };
  client_open(&c, *state);
  client_text(&c, "HEAD /weight_info HTTP/1.1\r\n" H "\r\n");
  assert_true(client_reply(&c, &r, true));
  assert_int_equal(r.status, 200);
  assert_true(reply_has(&r, "Content-Length: 28"));
  expect(&c, &r, GET("/weight_info"), 200, INFO_BODY); /* nothing came in between */
  client_text(&c, "HEAD /nowhere HTTP/1.1\r\n" H "\r\n");
  assert_true(client_reply(&c, &r, true));
  assert_int_equal(r.status, 404);
  client_text(&c, "HEAD /echo HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
  assert_true(client_reply(&c, &r, true));
  assert_int_equal(r.status, 405);
  assert_true(client_at_end(&c));
  assert_int_equal(c.len, 0);
  client_close(&c);
}

static void no_content_has_no_length(void **state)
{
  client c;
  reply r = { 0 };
  client_open(&c, *state);
  client_text(&c, GET("/empty"));
  assert_true(client_reply(&c, &r, false));
  assert_int_equal(r.status, 204);
  assert_null(strstr(r.head, "Content-Length"));
  expect(&c, &r, GET("/weight_info"), 200, INFO_BODY);
  client_close(&c);
}

static void unknown_paths_and_methods_as_starlette(void **state)
{
  client c;
  reply r = { 0 };
  client_open(&c, *state);
  expect(&c, &r, GET("/nowhere"), 404, "{\"detail\":\"Not Found\"}");
  expect(&c, &r, GET("/weight_info/"), 404, "{\"detail\":\"Not Found\"}");
  expect(&c, &r, GET("/dev"), 404, "{\"detail\":\"Not Found\"}");
  expect(&c, &r, "POST /dev HTTP/1.1\r\n" H "\r\n", 404, "{\"detail\":\"Not Found\"}");
  expect(&c, &r, "POST /weight_info HTTP/1.1\r\n" H "\r\n", 405,
         "{\"detail\":\"Method Not Allowed\"}");
  assert_true(reply_has(&r, "Allow: GET, HEAD"));
  expect(&c, &r, GET("/echo"), 405, "{\"detail\":\"Method Not Allowed\"}");
  assert_true(reply_has(&r, "Allow: POST"));
  expect(&c, &r, "DELETE /later HTTP/1.1\r\n" H "\r\n", 405,
         "{\"detail\":\"Method Not Allowed\"}");
  assert_true(reply_has(&r, "Allow: GET, HEAD, POST"));
  /* a body of a refused request is read over, the connection lives */
  expect(&c, &r, "POST /nowhere HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc", 404,
         "{\"detail\":\"Not Found\"}");
  expect(&c, &r, GET("/weight_info"), 200, INFO_BODY);
  client_close(&c);
}

static void dev_routes_exist_in_dev_mode(void **state)
{
  (void)state;
  fixture f;
  const weft_http_opts opts = { .dev = true };
  fixture_start(&f, &opts, "127.0.0.1:0");
  client c;
  reply r = { 0 };
  client_open(&c, &f);
  expect(&c, &r, GET("/dev"), 200, INFO_BODY);
  client_close(&c);
  fixture_stop(&f);
}

static void query_and_header_reach_the_handler(void **state)
{
  client c;
  reply r = { 0 };
  client_open(&c, *state);
  expect(&c, &r, GET("/query?k=a%20b+c"), 200, "a b c");
  expect(&c, &r, GET("/query?x=1"), 400, "");
  expect(&c, &r, GET("/header"), 404, "");
  expect(&c, &r, "GET /header HTTP/1.1\r\n" H "X-Test:  v w \r\nX-Other: z\r\n\r\n", 200,
         "v w");
  expect(&c, &r, "GET /header HTTP/1.1\r\n" H "X-Test:\r\n\r\n", 200, "");
  client_close(&c);
}

static void tokens(void **state)
{
  (void)state;
  static const struct {
    const char *header;
    int status;
  } rows[] = {
    { "", 401 },
    { "Authorization: Bearer secret\r\n", 200 },
    { "authorization: bearer   secret\r\n", 200 },
    { "Authorization: Bearer secre\r\n", 401 },
    { "Authorization: Bearer secrets\r\n", 401 },
    { "Authorization: Bearer\r\n", 401 },
    { "Authorization: secret\r\n", 401 },
    { "Authorization: Basic dXNlcjpzZWNyZXQ=\r\n", 200 }, /* user:secret */
    { "Authorization: Basic OnNlY3JldA\r\n", 200 },       /* :secret, no padding */
    { "Authorization: Basic c2VjcmV0\r\n", 401 },         /* secret: no colon */
    { "Authorization: Basic dXNlcjpzZWNyZXR4\r\n", 401 }, /* user:secretx */
    { "Authorization: Basic ????\r\n", 401 },
    { "Authorization: Digest secret\r\n", 401 },
  };
  fixture f;
  const weft_http_opts opts = { .token = "secret" };
  fixture_start(&f, &opts, "127.0.0.1:0");
  client c;
  reply r = { 0 };
  client_open(&c, &f);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char text[300];
    (void)snprintf(text, sizeof text, "GET /weight_info HTTP/1.1\r\n" H "%s\r\n",
                   rows[i].header);
    expect(&c, &r, text, rows[i].status,
           rows[i].status == 200 ? INFO_BODY : "{\"error\":\"Unauthorized\"}");
    assert_true(rows[i].status == 200 ||
                reply_has(&r, "WWW-Authenticate: Basic realm=\"weft\""));
  }
  expect(&c, &r, GET("/health"), 200, INFO_BODY);
  expect(&c, &r, GET("/dev"), 404, "{\"detail\":\"Not Found\"}");
  expect(&c, &r, "POST /echo HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc", 401,
         "{\"error\":\"Unauthorized\"}");
  client_close(&c);
  fixture_stop(&f);
  weft_http *none = NULL;
  weft_http_opts empty = f.opts;
  empty.token = "";
  weft_runtime *rt = NULL;
  const weft_runtime_opts ro = { .size = sizeof ro, .loops = 1 };
  assert_ok(weft_runtime_create(&ro, &rt));
  assert_err(weft_http_create(weft_runtime_loop(rt, 0), &empty, &none), WEFT_E_INVAL);
  weft_runtime_destroy(rt);
}

enum { PIPELINED = 1000 };

static void pipeline(fixture *f, const char *path, bool held, bool reversed)
{
  client c;
  reply r = { 0 };
  client_open(&c, f);
  char *batch = malloc((size_t)PIPELINED * 64);
  size_t len = 0;
  for (unsigned i = 0; i < PIPELINED; i++) {
    len +=
        (size_t)snprintf(batch + len, 64, "GET %s?k=%u HTTP/1.1\r\n" H "\r\n", path, i);
  }
  client_send(&c, batch, len);
  free(batch);
  if (held) {
    fixture_wait_held(f, PIPELINED);
    fixture_release(f, reversed);
  }
  for (unsigned i = 0; i < PIPELINED; i++) {
    char want[16];
    (void)snprintf(want, sizeof want, held ? "k=%u" : "%u", i);
    assert_true(client_reply(&c, &r, false));
    assert_int_equal(r.status, 200);
    body_is(&r, want);
  }
  client_close(&c);
}

static void pipelined_1000(void **state)
{
  pipeline(*state, "/query", false, false);
}

static void pipelined_1000_answered_later(void **state)
{
  pipeline(*state, "/later", true, false);
}

static void pipelined_1000_answered_later_and_reversed(void **state)
{
  pipeline(*state, "/later", true, true);
}

static void pipelined_beyond_the_limit_waits(void **state)
{
  (void)state;
  fixture f;
  const weft_http_opts opts = { .pipeline_max = 4 };
  fixture_start(&f, &opts, "127.0.0.1:0");
  client c;
  reply r = { 0 };
  client_open(&c, &f);
  for (unsigned i = 0; i < 10; i++) {
    char text[64];
    (void)snprintf(text, sizeof text, "GET /later?%u HTTP/1.1\r\n" H "\r\n", i);
    client_text(&c, text);
  }
  client_text(&c, "POST /later HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc");
  unsigned got = 0;
  while (got < 11) {
    const size_t want = 11 - got < 4 ? 11 - got : 4;
    fixture_wait_held(&f, want);
    assert_int_equal(f.held_count, want);
    fixture_release(&f, true);
    for (size_t i = 0; i < want; i++, got++) {
      char text[16] = "";
      if (got < 10) { /* the last one has no query */
        (void)snprintf(text, sizeof text, "%u", got);
      }
      assert_true(client_reply(&c, &r, false));
      body_is(&r, text);
    }
  }
  client_close(&c);
  fixture_stop(&f);
}

enum {
  SLOW_BODY = 20000,
  SLOW_COUNT = 400
}; /* 8 MB of answers: more than buffers take */

static void *send_slow_bodies(void *arg)
{
  char *text = malloc(SLOW_BODY + 200);
  const int head = snprintf(
      text, 200, "POST /echo HTTP/1.1\r\n" H "Content-Length: %d\r\n\r\n", SLOW_BODY);
  memset(text + head, 'x', SLOW_BODY);
  for (unsigned i = 0; i < SLOW_COUNT; i++) {
    client_send(arg, text, (size_t)head + SLOW_BODY);
  }
  free(text);
  return NULL;
}

static unsigned handled(fixture *f)
{
  (void)pthread_mutex_lock(&f->lock);
  const unsigned n = f->requests;
  (void)pthread_mutex_unlock(&f->lock);
  return n;
}

/* Answers that nobody takes hold up the requests behind them instead of piling up. */
static void pipelined_to_a_slow_reader(void **state)
{
  fixture *f = *state;
  client c;
  client sender;
  reply r = { 0 };
  client_open(&c, f);
  const int small = 256 * 1024; /* well over a loopback segment: no silly window */
  (void)setsockopt(c.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  sender = c;
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, send_slow_bodies, &sender), 0);
  unsigned before = 0;
  unsigned same = 0;
  while (same < 50) { /* until the server takes no more */
    fixture_stats(f, NULL, NULL);
    const struct timespec ms = { .tv_nsec = 1000000 };
    (void)nanosleep(&ms, NULL);
    const unsigned n = handled(f);
    same = n == before ? same + 1 : 0;
    before = n;
  }
  assert_in_range(before, 1, SLOW_COUNT - 1);
  for (unsigned i = 0; i < SLOW_COUNT; i++) {
    assert_true(client_reply(&c, &r, false));
    assert_int_equal(r.body_len, SLOW_BODY);
  }
  (void)pthread_join(thread, NULL);
  client_close(&c);
}

static void bodies(void **state)
{
  client c;
  reply r = { 0 };
  client_open(&c, *state);
  expect(&c, &r, "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", 200,
         "hello");
  expect(&c, &r, "POST /echo HTTP/1.1\r\n" H "\r\n", 200, "");
  expect(&c, &r,
         "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
         "3\r\nhel\r\n2;x\r\nlo\r\n0\r\n\r\n",
         200, "hello");
  expect(&c, &r, "POST /sink HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", 200, "{}");
  expect(&c, &r, "GET /weight_info HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", 200,
         INFO_BODY);
  client_close(&c);
}

static void expect_100(void **state)
{
  fixture *f = *state;
  client c;
  reply r = { 0 };
  client_open(&c, f);
  client_text(&c, "POST /echo HTTP/1.1\r\n" H
                  "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
  assert_true(client_reply(&c, &r, false));
  assert_int_equal(r.status, 100);
  expect(&c, &r, "hello", 200, "hello");
  /* behind a request that is still being worked on, 100 waits for its turn */
  client_text(
      &c, GET("/later?1") "POST /echo HTTP/1.1\r\n" H
                          "Expect: 100-Continue\r\nTransfer-Encoding: chunked\r\n\r\n");
  fixture_wait_held(f, 1);
  fixture_release(f, false);
  assert_true(client_reply(&c, &r, false));
  body_is(&r, "1");
  assert_true(client_reply(&c, &r, false));
  assert_int_equal(r.status, 100);
  expect(&c, &r, "2\r\nhi\r\n0\r\n\r\n", 200, "hi");
  /* a body that is there already needs no 100 */
  expect(&c, &r,
         "POST /echo HTTP/1.1\r\n" H
         "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
         200, "hi");
  /* refused before the body is sent */
  expect(&c, &r,
         "POST /nowhere HTTP/1.1\r\n" H
         "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
         404, "{\"detail\":\"Not Found\"}");
  assert_true(reply_has(&r, "Connection: close"));
  client_close(&c);
}

static void odd_answers(void **state)
{
  fixture *f = *state;
  client c;
  reply r = { 0 };
  client_open(&c, f);
  expect(&c, &r, GET("/odd"), 409, "odd");
  assert_true(reply_has(&r, "X-Good: a b"));
  assert_true(reply_has(&r, "Content-Type: text/plain"));
  assert_true(reply_has(&r, "Content-Length: 3"));
  assert_null(strstr(r.head, "Evil"));
  assert_null(strstr(r.head, "X-Line"));
  assert_null(strstr(r.head, "X Name"));
  assert_null(strstr(r.head, "Connection"));
  expect(&c, &r, GET("/weight_info"), 200, INFO_BODY); /* one answer, not two */
  client_close(&c);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
    T(keeps_the_connection),
    T(http10_closes_unless_asked),
    T(head_has_the_length_and_no_body),
    T(no_content_has_no_length),
    T(unknown_paths_and_methods_as_starlette),
    cmocka_unit_test(dev_routes_exist_in_dev_mode),
    T(query_and_header_reach_the_handler),
    cmocka_unit_test(tokens),
    T(pipelined_1000),
    T(pipelined_1000_answered_later),
    T(pipelined_1000_answered_later_and_reversed),
    cmocka_unit_test(pipelined_beyond_the_limit_waits),
    T(pipelined_to_a_slow_reader),
    T(bodies),
    T(expect_100),
    T(odd_answers),
  };
  return cmocka_run_group_tests_name("http.server", tests, NULL, NULL);
}
