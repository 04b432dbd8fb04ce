#include "weft_test.h"

#include "conn.h"

#include <string.h>

static void parsed(void **state)
{
  (void)state;
  static const struct {
    const char *text, *host, *port;
    bool is_unix;
  } rows[] = {
    { "127.0.0.1:80", "127.0.0.1", "80", false },
    { "localhost:0", "localhost", "0", false },
    { "[::1]:65535", "::1", "65535", false },
    { "0.0.0.0:8000", "0.0.0.0", "8000", false },
    { "unix:/run/weft.sock", "/run/weft.sock", "", true },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    wefti_address a;
    assert_ok(wefti_address_parse(rows[i].text, &a, NULL));
    assert_string_equal(a.host, rows[i].host);
    assert_string_equal(a.port, rows[i].port);
    assert_int_equal(a.is_unix, rows[i].is_unix);
  }
}

static void refused(void **state)
{
  (void)state;
  static const char *const rows[] = {
    "",        ":80",      "80",       "host",        "host:",       "host:65536",
    "host:-1", "host:+80", "host: 80", "host:8x",     "host:000080", "::1:80",
    "[::1]",   "[::1:80",  "::1]:80",  "[]:80",       "ho/st:80",    "unix:",
    "unix:a",  "a]:80",    "[a:80",    "http://a:80",
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    wefti_address a;
    weft_why why = { .text = "" };
    if (wefti_address_parse(rows[i], &a, &why) != WEFT_E_INVAL) {
      fail_msg("'%s' was taken", rows[i]);
    }
    assert_non_null(strstr(why.text, "expected HOST:PORT"));
  }
}

/* sun_path has 108 bytes with its NUL. */
static void unix_path_at_the_limit_and_one_more(void **state)
{
  (void)state;
  char text[5 + 108 + 1] = "unix:/";
  wefti_address a;
  memset(text + 6, 'x', 106);
  text[5 + 107] = '\0';
  assert_ok(wefti_address_parse(text, &a, NULL));
  text[5 + 107] = 'x';
  text[5 + 108] = '\0';
  assert_err(wefti_address_parse(text, &a, NULL), WEFT_E_INVAL);
}

static void loopback(void **state)
{
  (void)state;
  assert_true(weft_http_is_loopback("127.0.0.1:0"));
  assert_true(weft_http_is_loopback("127.8.7.6:1"));
  assert_true(weft_http_is_loopback("[::1]:0"));
  assert_true(weft_http_is_loopback("[::ffff:127.0.0.1]:0"));
  assert_true(weft_http_is_loopback("unix:/tmp/x"));
  assert_false(weft_http_is_loopback("0.0.0.0:0"));
  assert_false(weft_http_is_loopback("[::]:0"));
  assert_false(weft_http_is_loopback("128.0.0.1:0"));
  assert_false(weft_http_is_loopback("[::ffff:10.0.0.1]:0"));
  assert_false(weft_http_is_loopback("nonsense"));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(parsed),
    cmocka_unit_test(refused),
    cmocka_unit_test(unix_path_at_the_limit_and_one_more),
    cmocka_unit_test(loopback),
  };
  return cmocka_run_group_tests_name("http.address", tests, NULL, NULL);
}
