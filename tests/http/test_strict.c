/* As strict as nginx in each row of the robustness table: what must be refused is
 * answered once, with Connection: close, and nothing behind it is read as a request. */
#include "weft_test.h"

#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define H "Host: a\r\n"
#define INFO "GET /weight_info HTTP/1.1\r\n" H "\r\n"

typedef struct row {
  const char *name;
  const char *text;
  size_t len; /* of text with its NULs */
  int status;
} row;
#define ROW(name, text, status)                                                          \
  {                                                                                      \
    name, text, sizeof(text) - 1, status                                                 \
  }

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

/* Each row is followed by a good request that must never be answered. */
static void refused(fixture *f, const row *rows, size_t count)
{
  for (size_t i = 0; i < count; i++) {
    char text[4096];
    assert_true(rows[i].len + sizeof INFO <= sizeof text);
    memcpy(text, rows[i].text, rows[i].len);
    memcpy(text + rows[i].len, INFO, sizeof INFO - 1);
    client c;
    reply r = { 0 };
    client_open(&c, f);
    client_send(&c, text, rows[i].len + sizeof INFO - 1);
    if (!client_reply(&c, &r, false)) {
      fail_msg("%s: no answer", rows[i].name);
    }
    char body[256] = "";
    (void)snprintf(body, sizeof body, "%.*s", (int)r.body_len, r.body);
    if (r.status != rows[i].status || !reply_has(&r, "Connection: close")) {
      fail_msg("%s: got %s%s", rows[i].name, r.head, body);
    }
    char end[64];
    (void)snprintf(end, sizeof end, "\"type\":\"%s\",\"param\":null,\"code\":%d}}",
                   weft_http_phrase(r.status), r.status);
    if (strncmp(body, "{\"error\":{\"message\":\"", 21) != 0 ||
        strstr(body, end) == NULL) {
      fail_msg("%s: body %s", rows[i].name, body);
    }
    const size_t before = c.len;
    assert_true(client_at_end(&c));
    if (c.len != before || c.len != r.body_len) {
      fail_msg("%s: a second answer", rows[i].name);
    }
    client_close(&c);
  }
}
#define REFUSED(rows) refused(*state, rows, sizeof(rows) / sizeof *(rows))

static void line_ends_and_control_bytes(void **state)
{
  static const row rows[] = {
    ROW("LF after the request line", "GET /weight_info HTTP/1.1\n" H "\r\n", 400),
    ROW("LF after a field", "GET /weight_info HTTP/1.1\r\nHost: a\n\r\n", 400),
    ROW("LF at the end", "GET /weight_info HTTP/1.1\r\n" H "\n", 400),
    ROW("LF only", "GET /weight_info HTTP/1.1\nHost: a\n\n", 400),
    ROW("CR only", "GET /weight_info HTTP/1.1\rHost: a\r\r", 400),
    ROW("CR inside a value", "GET /weight_info HTTP/1.1\r\n" H "X: a\rY: b\r\n\r\n", 400),
    ROW("CR CR LF", "GET /weight_info HTTP/1.1\r\n" H "\r\r\n", 400),
    ROW("NUL in a value", "GET /weight_info HTTP/1.1\r\n" H "X: a\0b\r\n\r\n", 400),
    ROW("NUL in a name", "GET /weight_info HTTP/1.1\r\n" H "X\0: a\r\n\r\n", 400),
    ROW("NUL in the target", "GET /weight\0info HTTP/1.1\r\n" H "\r\n", 400),
    ROW("DEL in a value", "GET /weight_info HTTP/1.1\r\n" H "X: a\177\r\n\r\n", 400),
    ROW("control byte first", "\001\r\n\r\n", 400),
    ROW("TLS hello", "\026\003\001\002\000\001\000\001\374\003\003", 400),
    ROW("garbage line", "hello there\r\n", 400),
    ROW("garbage word", "hello\r\n", 400),
  };
  REFUSED(rows);
}

static void field_grammar(void **state)
{
  static const row rows[] = {
    ROW("obs-fold with a blank", "GET /weight_info HTTP/1.1\r\n" H "X: a\r\n b\r\n\r\n",
        400),
    ROW("obs-fold with a tab", "GET /weight_info HTTP/1.1\r\n" H "X: a\r\n\tb\r\n\r\n",
        400),
    ROW("blank before the first field", "GET /weight_info HTTP/1.1\r\n Host: a\r\n\r\n",
        400),
    ROW("space before the colon", "GET /weight_info HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    ROW("tab before the colon", "GET /weight_info HTTP/1.1\r\nHost\t: a\r\n\r\n", 400),
    ROW("no colon", "GET /weight_info HTTP/1.1\r\n" H "X\r\n\r\n", 400),
    ROW("empty name", "GET /weight_info HTTP/1.1\r\n" H ": a\r\n\r\n", 400),
    ROW("high byte in a name", "GET /weight_info HTTP/1.1\r\n" H "X\351: a\r\n\r\n", 400),
    ROW("separator in a name", "GET /weight_info HTTP/1.1\r\n" H "X(: a\r\n\r\n", 400),
  };
  REFUSED(rows);
}

static void hosts(void **state)
{
  static const row rows[] = {
    ROW("no Host", "GET /weight_info HTTP/1.1\r\n\r\n", 400),
    ROW("two Hosts", "GET /weight_info HTTP/1.1\r\n" H H "\r\n", 400),
    ROW("two Hosts in 1.0", "GET /weight_info HTTP/1.0\r\n" H "Host: b\r\n\r\n", 400),
    ROW("empty Host", "GET /weight_info HTTP/1.1\r\nHost: \r\n\r\n", 400),
    ROW("Host with a slash", "GET /weight_info HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    ROW("Host with a blank", "GET /weight_info HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
  };
  REFUSED(rows);
}

#define POST "POST /echo HTTP/1.1\r\n" H

static void framing(void **state)
{
  static const row rows[] = {
    ROW("differing lengths", POST "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        400),
    ROW("equal lengths", POST "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
    ROW("length list", POST "Content-Length: 3, 3\r\n\r\nabc", 400),
    ROW("length with sign", POST "Content-Length: +3\r\n\r\nabc", 400),
    ROW("negative length", POST "Content-Length: -3\r\n\r\nabc", 400),
    ROW("hex length", POST "Content-Length: 0x3\r\n\r\nabc", 400),
    ROW("empty length", POST "Content-Length:\r\n\r\nabc", 400),
    ROW("length with a blank in it", POST "Content-Length: 1 1\r\n\r\nabc", 400),
    ROW("length of 2^64", POST "Content-Length: 18446744073709551616\r\n\r\nabc", 400),
    ROW("length and chunked",
        POST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ROW("chunked and length",
        POST "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
    ROW("unknown encoding", POST "Transfer-Encoding: gzip\r\n\r\n", 400),
    ROW("gzip, chunked", POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    ROW("chunked, identity", POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        400),
    ROW("chunked twice",
        POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400),
    ROW("xchunked", POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    ROW("empty encoding", POST "Transfer-Encoding:\r\n\r\n0\r\n\r\n", 400),
    ROW("chunked in 1.0",
        "POST /echo HTTP/1.0\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ROW("unknown expectation", POST "Expect: payment\r\nContent-Length: 3\r\n\r\nabc",
        417),
  };
  REFUSED(rows);
}

#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"

static void chunk_grammar(void **state)
{
  static const row rows[] = {
    ROW("no digits", CHUNKED "\r\nabc", 400),
    ROW("not hex", CHUNKED "g\r\nabc", 400),
    ROW("sign", CHUNKED "-1\r\nabc", 400),
    ROW("0x", CHUNKED "0x3\r\nabc\r\n0\r\n\r\n", 400),
    ROW("LF after the size", CHUNKED "3\nabc\r\n0\r\n\r\n", 400),
    ROW("CR CR after the size", CHUNKED "3\r\rabc\r\n0\r\n\r\n", 400),
    ROW("blank after the size", CHUNKED "3 \r\nabc\r\n0\r\n\r\n", 400),
    ROW("blank before the size", CHUNKED " 3\r\nabc\r\n0\r\n\r\n", 400),
    ROW("LF after the data", CHUNKED "3\r\nabc\n0\r\n\r\n", 400),
    ROW("data too long", CHUNKED "3\r\nabcd\r\n0\r\n\r\n", 400),
    ROW("16 digits", CHUNKED "1000000000000000\r\nabc", 400),
    ROW("17 digits", CHUNKED "fffffffffffffffff\r\nabc", 400),
    ROW("NUL in an extension", CHUNKED "3;a\0b\r\nabc\r\n0\r\n\r\n", 400),
    ROW("LF in an extension", CHUNKED "3;a\nb\r\nabc\r\n0\r\n\r\n", 400),
    ROW("bad trailer", CHUNKED "0\r\nX : a\r\n\r\n", 400),
    ROW("LF after the trailers", CHUNKED "0\r\nX: a\r\n\n", 400),
    ROW("size over the limit", CHUNKED "ffffffffff\r\nabc", 413),
  };
  REFUSED(rows);
}

static void versions(void **state)
{
  static const row rows[] = {
    ROW("HTTP/0.9 without version", "GET /weight_info\r\n", 400),
    ROW("HTTP/0.9", "GET /weight_info HTTP/0.9\r\n\r\n", 505),
    ROW("HTTP/2.0", "GET /weight_info HTTP/2.0\r\n" H "\r\n", 505),
    ROW("HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ROW("HTTP/3.7", "GET /weight_info HTTP/3.7\r\n" H "\r\n", 505),
    ROW("HTTP/1.2", "GET /weight_info HTTP/1.2\r\n" H "\r\n", 505),
    ROW("HTTP/11", "GET /weight_info HTTP/11\r\n" H "\r\n", 400),
    ROW("HTTP/1.10", "GET /weight_info HTTP/1.10\r\n" H "\r\n", 400),
    ROW("http/1.1", "GET /weight_info http/1.1\r\n" H "\r\n", 400),
    ROW("HTTQ/1.1", "GET /weight_info HTTQ/1.1\r\n" H "\r\n", 400),
    ROW("two blanks", "GET  /weight_info HTTP/1.1\r\n" H "\r\n", 400),
    ROW("two blanks before the version", "GET /weight_info  HTTP/1.1\r\n" H "\r\n", 400),
    ROW("blank at the end", "GET /weight_info HTTP/1.1 \r\n" H "\r\n", 400),
    ROW("tab", "GET\t/weight_info HTTP/1.1\r\n" H "\r\n", 400),
    ROW("lower case method", "get /weight_info HTTP/1.1\r\n" H "\r\n", 400),
  };
  REFUSED(rows);
}

static void targets(void **state)
{
  static const row rows[] = {
    ROW("asterisk", "OPTIONS * HTTP/1.1\r\n" H "\r\n", 400),
    ROW("CONNECT", "CONNECT a:80 HTTP/1.1\r\n" H "\r\n", 400),
    ROW("https", "GET https://a/weight_info HTTP/1.1\r\n" H "\r\n", 400),
    ROW("ftp", "GET ftp://a/weight_info HTTP/1.1\r\n" H "\r\n", 400),
    ROW("no authority", "GET http:///weight_info HTTP/1.1\r\n" H "\r\n", 400),
    ROW("user", "GET http://u@a/weight_info HTTP/1.1\r\n" H "\r\n", 400),
    ROW("relative", "GET weight_info HTTP/1.1\r\n" H "\r\n", 400),
    ROW("fragment", "GET /weight_info#a HTTP/1.1\r\n" H "\r\n", 400),
    ROW("high byte", "GET /weight\351 HTTP/1.1\r\n" H "\r\n", 400),
    ROW("%00", "GET /weight_info%00 HTTP/1.1\r\n" H "\r\n", 400),
    ROW("%zz", "GET /weight_info%zz HTTP/1.1\r\n" H "\r\n", 400),
    ROW("% at the end", "GET /weight_info% HTTP/1.1\r\n" H "\r\n", 400),
    ROW("%6 at the end", "GET /weight_info%6 HTTP/1.1\r\n" H "\r\n", 400),
  };
  REFUSED(rows);
}

static void accepted_forms(void **state)
{
  static const row rows[] = {
    ROW("plain", "GET /weight_info HTTP/1.1\r\n" H "\r\n", 200),
    ROW("escaped", "GET /weight_inf%6f HTTP/1.1\r\n" H "\r\n", 200),
    ROW("escaped at the front", "GET /%77eight_info HTTP/1.1\r\n" H "\r\n", 200),
    ROW("query", "GET /weight_info?a=b&c HTTP/1.1\r\n" H "\r\n", 200),
    ROW("absolute", "GET http://a:80/weight_info HTTP/1.1\r\n" H "\r\n", 200),
    ROW("absolute, upper case", "GET HTTP://A/weight_info HTTP/1.1\r\n" H "\r\n", 200),
    ROW("absolute without a path", "GET http://a HTTP/1.1\r\n" H "\r\n", 404),
    ROW("absolute with a query only", "GET http://a?b HTTP/1.1\r\n" H "\r\n", 404),
    ROW("blank line before", "\r\nGET /weight_info HTTP/1.1\r\n" H "\r\n", 200),
    ROW("no blank after the colon", "GET /weight_info HTTP/1.1\r\nHost:a\r\n\r\n", 200),
    ROW("blanks around a value", "GET /weight_info HTTP/1.1\r\nHost: \t a \t\r\n\r\n",
        200),
    ROW("IPv6 host", "GET /weight_info HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200),
    ROW("empty value", "GET /weight_info HTTP/1.1\r\n" H "X:\r\n\r\n", 200),
    ROW("high bytes in a value", "GET /weight_info HTTP/1.1\r\n" H "X: \351\r\n\r\n",
        200),
    ROW("length 0", POST "Content-Length: 0\r\n\r\n", 200),
    ROW("length with zeros", POST "Content-Length: 003\r\n\r\nabc", 200),
    ROW("chunked", CHUNKED "3\r\nabc\r\n0\r\n\r\n", 200),
    ROW("chunked, upper case", POST "Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n", 200),
    ROW("extension and trailer", CHUNKED "3;a=b\r\nabc\r\n000;c\r\nX: y\r\n\r\n", 200),
    ROW("upgrade is ignored",
        "GET /weight_info HTTP/1.1\r\n" H "Connection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        200),
  };
  fixture *f = *state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    client c;
    reply r = { 0 };
    client_open(&c, f);
    client_send(&c, rows[i].text, rows[i].len);
    if (!client_reply(&c, &r, false) || r.status != rows[i].status) {
      fail_msg("%s: %s", rows[i].name, r.head);
    }
    assert_false(reply_has(&r, "Connection: close"));
    client_text(&c, INFO); /* the connection still works */
    assert_true(client_reply(&c, &r, false));
    assert_int_equal(r.status, 200);
    client_close(&c);
  }
}

static const char whole[] =
    "POST /echo?a=b HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n"
    "X-Test: v\r\n\r\n5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n";

static void every_prefix_is_waited_for(void **state)
{
  fixture *f = *state;
  for (size_t n = 0; n < sizeof whole - 1; n++) {
    client c;
    client_open(&c, f);
    client_send(&c, whole, n);
    (void)shutdown(c.fd, SHUT_WR);
    assert_true(client_at_end(&c));
    if (c.len != 0) {
      fail_msg("prefix of %zu bytes was answered: %.*s", n, (int)c.len, c.data);
    }
    client_close(&c);
  }
  fixture_wait_connections(f, 0);
}

static void byte_by_byte_and_in_two(void **state)
{
  fixture *f = *state;
  client c;
  reply r = { 0 };
  client_open(&c, f);
  for (size_t n = 0; n < sizeof whole - 1; n++) {
    client_send(&c, whole + n, 1);
    fixture_stats(f, NULL, NULL); /* a turn of the loop between the bytes */
  }
  for (size_t n = 0; n < sizeof whole - 1; n++) {
    assert_true(client_reply(&c, &r, false));
    assert_int_equal(r.status, 200);
    assert_int_equal(r.body_len, 5);
    assert_memory_equal(r.body, "hello", 5);
    client_send(&c, whole, n);
    fixture_stats(f, NULL, NULL);
    client_send(&c, whole + n, sizeof whole - 1 - n);
  }
  assert_true(client_reply(&c, &r, false));
  client_close(&c);
}

static uint32_t next_random(uint32_t *seed)
{
  *seed = *seed * 1664525U + 1013904223U;
  return *seed >> 8;
}

/* Whatever comes, the server answers or closes, and goes on serving others. */
static void mutated_requests(void **state)
{
  fixture *f = *state;
  uint32_t seed = 7;
  for (unsigned i = 0; i < 300; i++) {
    char text[sizeof whole];
    memcpy(text, whole, sizeof whole);
    const unsigned edits = 1 + next_random(&seed) % 4;
    for (unsigned e = 0; e < edits; e++) {
      text[next_random(&seed) % (sizeof whole - 1)] = (char)next_random(&seed);
    }
    client c;
    client_open(&c, f);
    client_send(&c, text, sizeof whole - 1);
    (void)shutdown(c.fd, SHUT_WR);
    assert_true(client_at_end(&c));
    if (c.len > 0) {
      assert_memory_equal(c.data, "HTTP/1.1 ", 9);
    }
    client_close(&c);
  }
  fixture_wait_connections(f, 0);
  assert_int_equal(
      one_shot(f, "GET /weight_info HTTP/1.1\r\nConnection: close\r\n" H "\r\n",
               sizeof "GET /weight_info HTTP/1.1\r\nConnection: close\r\n" H "\r\n" - 1),
      200);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
    T(line_ends_and_control_bytes),
    T(field_grammar),
    T(hosts),
    T(framing),
    T(chunk_grammar),
    T(versions),
    T(targets),
    T(accepted_forms),
    T(every_prefix_is_waited_for),
    T(byte_by_byte_and_in_two),
    T(mutated_requests),
  };
  return cmocka_run_group_tests_name("http.strict", tests, NULL, NULL);
}
