#include "weft_test.h"

#include "fixture.h"

#include <stdlib.h>
#include <string.h>

#define H "Host: a\r\n"
#define GET(path) "GET " path " HTTP/1.1\r\n" H "\r\n"

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

typedef struct event {
  fixture *f;
  size_t index; /* of the held streams */
  const char *name, *data;
  size_t len;
  bool end, sent;
} event;

static void emit(void *arg)
{
  event *e = arg;
  if (e->end) {
    weft_http_stream_end(e->f->server, e->f->held[e->index]);
  } else {
    e->sent = weft_http_stream_send(e->f->server, e->f->held[e->index], e->name, e->data,
                                    e->len);
  }
}

static bool stream_send(fixture *f, size_t index, const char *name, const char *data)
{
  event e = { .f = f, .index = index, .name = name, .data = data, .len = strlen(data) };
  fixture_call(f, emit, &e);
  return e.sent;
}

static void stream_end(fixture *f, size_t index)
{
  event e = { .f = f, .index = index, .end = true };
  fixture_call(f, emit, &e);
}

static void stream_begins(client *c, reply *r, const char *request)
{
  client_text(c, request);
  assert_true(client_reply(c, r, true));
  assert_int_equal(r->status, 200);
  assert_true(reply_has(r, "Content-Type: text/event-stream; charset=utf-8"));
  assert_true(reply_has(r, "Cache-Control: no-store"));
}

static void events_are_framed_and_the_connection_goes_on(void **state)
{
  fixture *f = *state;
  client c;
  reply r = { 0 };
  client_open(&c, f);
  stream_begins(&c, &r, GET("/stream"));
  assert_true(reply_has(&r, "Transfer-Encoding: chunked"));
  assert_true(stream_send(f, 0, "commit", "{\"a\":1}"));
  assert_true(client_until(&c, "1d\r\nevent: commit\ndata: {\"a\":1}\n\n\r\n"));
  assert_true(stream_send(f, 0, NULL, "a\nb\r\nc\rd"));
  assert_true(client_until(&c, "21\r\ndata: a\ndata: b\ndata: c\ndata: d\n\n\r\n"));
  assert_true(stream_send(f, 0, NULL, ""));
  assert_true(client_until(&c, "8\r\ndata: \n\n\r\n"));
  assert_false(stream_send(f, 0, "a\nb", "no"));
  stream_end(f, 0);
  assert_true(client_until(&c, "0\r\n\r\n"));
  assert_false(stream_send(f, 0, NULL, "late"));
  r = (reply){ 0 };
  client_text(&c, GET("/weight_info"));
  assert_true(client_reply(&c, &r, false));
  assert_int_equal(r.body_len, 28);
  client_close(&c);
}

static void http10_and_close_end_with_the_connection(void **state)
{
  fixture *f = *state;
  client c;
  reply r = { 0 };
  client_open(&c, f);
  stream_begins(&c, &r, "GET /stream HTTP/1.0\r\n\r\n");
  assert_null(strstr(r.head, "Transfer-Encoding"));
  assert_true(reply_has(&r, "Connection: close"));
  assert_true(stream_send(f, 0, NULL, "x"));
  stream_end(f, 0);
  assert_true(client_at_end(&c));
  assert_int_equal(c.len, 9);
  assert_memory_equal(c.data, "data: x\n\n", 9);
  client_close(&c);
  r = (reply){ 0 };
  client_open(&c, f);
  stream_begins(&c, &r, "GET /stream HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
  stream_end(f, 1);
  assert_true(client_at_end(&c));
  assert_int_equal(c.len, 5);
  client_close(&c);
}

static void head_gets_the_head_only(void **state)
{
  fixture *f = *state;
  client c;
  reply r = { 0 };
  client_open(&c, f);
  stream_begins(&c, &r, "HEAD /stream HTTP/1.1\r\n" H "\r\n");
  assert_false(stream_send(f, 0, NULL, "x"));
  r = (reply){ 0 };
  client_text(&c, GET("/weight_info"));
  assert_true(client_reply(&c, &r, false));
  client_close(&c);
}

static void a_stream_behind_another_request_waits_its_turn(void **state)
{
  fixture *f = *state;
  client c;
  reply r = { 0 };
  client_open(&c, f);
  client_text(&c, GET("/later?q") GET("/stream") GET("/weight_info"));
  fixture_wait_held(f, 2);
  assert_true(stream_send(f, 1, NULL, "x"));
  stream_end(f, 1);
  fixture_release(f, false);
  assert_true(client_reply(&c, &r, false));
  assert_int_equal(r.body_len, 1);
  r = (reply){ 0 };
  assert_true(client_until(&c, "q")); /* the body above */
  assert_true(client_until(&c, "text/event-stream"));
  assert_true(client_until(&c, "data: x\n\n\r\n0\r\n\r\n"));
  assert_true(client_reply(&c, &r, false));
  assert_int_equal(r.body_len, 28);
  client_close(&c);
}

static void a_slow_reader_is_cut_off(void **state)
{
  fixture *f = *state;
  client c;
  reply r = { 0 };
  client_open(&c, f);
  stream_begins(&c, &r, GET("/stream"));
  char *data = malloc(60001);
  memset(data, 'x', 60000);
  data[60000] = '\0';
  unsigned sent = 0;
  while (sent < 1000 && stream_send(f, 0, NULL, data)) {
    sent++;
  }
  assert_in_range(sent, (1 << 20) / 60013, 999);
  assert_false(stream_send(f, 0, NULL, "x"));
  fixture_wait_gone(f, 1);
  free(data);
  client_close(&c);
}

static void a_reader_that_leaves_is_noticed(void **state)
{
  fixture *f = *state;
  client c;
  reply r = { 0 };
  client_open(&c, f);
  stream_begins(&c, &r, GET("/stream"));
  client_close(&c);
  fixture_wait_gone(f, 1);
  assert_false(stream_send(f, 0, NULL, "x"));
  stream_end(f, 0);
}

static void a_whole_stream_in_its_handler(void **state)
{
  fixture *f = *state;
  client c;
  reply r = { 0 };
  client_open(&c, f);
  stream_begins(&c, &r, GET("/short") GET("/weight_info"));
  assert_true(client_until(&c, "9\r\ndata: x\n\n\r\n0\r\n\r\n"));
  r = (reply){ 0 };
  assert_true(client_reply(&c, &r, false));
  assert_int_equal(r.body_len, 28);
  client_close(&c);
}

static void drain(void *arg)
{
  fixture *f = arg;
  weft_http_drain(f->server);
}

static void a_drained_stream_closes_at_its_end(void **state)
{
  fixture *f = *state;
  client c;
  reply r = { 0 };
  client_open(&c, f);
  stream_begins(&c, &r, GET("/stream"));
  fixture_call(f, drain, f);
  assert_true(stream_send(f, 0, NULL, "last"));
  stream_end(f, 0);
  assert_true(client_until(&c, "data: last\n\n\r\n0\r\n\r\n"));
  assert_true(client_at_end(&c));
  client_close(&c);
  fixture_wait_connections(f, 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
    T(events_are_framed_and_the_connection_goes_on),
    T(http10_and_close_end_with_the_connection),
    T(head_gets_the_head_only),
    T(a_stream_behind_another_request_waits_its_turn),
    T(a_slow_reader_is_cut_off),
    T(a_reader_that_leaves_is_noticed),
    T(a_whole_stream_in_its_handler),
    T(a_drained_stream_closes_at_its_end),
  };
  return cmocka_run_group_tests_name("http.sse", tests, NULL, NULL);
}
