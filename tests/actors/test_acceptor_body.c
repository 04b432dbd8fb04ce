#include "weft_test.h"

#include "acceptor_priv.h"
#include "weft_fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static weft_err read_body(uint32_t route, const char *text, size_t len, wefti_fields *out,
                          wefti_problem *bad)
{
  weft_json_scan *scan;
  if (weft_json_scan_create(NULL, &scan) != WEFT_OK) {
    return WEFT_E_NOMEM;
  }
  weft_err scanned = weft_json_scan_feed(scan, text, len);
  if (scanned == WEFT_OK) {
    scanned = weft_json_scan_end(scan);
  }
  memset(bad, 0, sizeof *bad);
  const wefti_body body = { (const uint8_t *)text, len, scan, scanned };
  const weft_err err = wefti_body_read(route, &body, out, bad);
  weft_json_scan_destroy(scan);
  return err;
}

static const struct {
  uint32_t route;
  const char *text;
} whole[] = {
  { WEFTI_ROUTE_INIT, "{\"init_info\":{\"a\":[{}],\"b\":\"}\"}}" },
  { WEFTI_ROUTE_UPDATE, "{\"update_info\":[{\"names\":[\"a\"]},{}]}" },
  { WEFTI_ROUTE_FINISH, "{\"weight_version\":\"a\\u00e9\",\"strict\":true}" },
  { WEFTI_ROUTE_LABEL, "{\"new_version\":\"\xf0\x9f\x98\x80\"}" },
  { WEFTI_ROUTE_CHECKER, "{\"action\":\"compare\",\"baseline\":{\"a\":\"00\"}}" },
  { WEFTI_ROUTE_ABORT, "{\"reason\":\"r\"}" },
  { WEFTI_ROUTE_RESOLVE, "{\"commit\":true}" },
  { WEFTI_ROUTE_ABORT_REQUESTS, "{\"request_ids\":[]}" },
};
enum { WHOLE = sizeof whole / sizeof whole[0] };

static void every_prefix_is_refused(void **state)
{
  (void)state;
  wefti_fields fields;
  wefti_problem bad;
  for (size_t i = 0; i < WHOLE; i++) {
    const size_t len = strlen(whole[i].text);
    assert_ok(read_body(whole[i].route, whole[i].text, len, &fields, &bad));
    for (size_t n = 1; n < len; n++) {
      char *exact = malloc(n); /* so that a read past the end is seen */
      assert_non_null(exact);
      memcpy(exact, whole[i].text, n);
      assert_err(read_body(whole[i].route, exact, n, &fields, &bad), WEFT_E_INVAL);
      assert_int_equal(bad.status, 400);
      free(exact);
    }
  }
}

static void memory_that_cannot_be_had_is_no_fault_of_the_client(void **state)
{
  (void)state;
  for (size_t i = 0; i < WHOLE; i++) {
    FOR_EACH_FAILURE
    {
      wefti_fields fields;
      wefti_problem bad;
      const weft_err err =
          read_body(whole[i].route, whole[i].text, strlen(whole[i].text), &fields, &bad);
      assert_err(err, fail_hit ? WEFT_E_NOMEM : WEFT_OK);
      END_UNLESS_FAILED
    }
  }
}

static weft_err read_version(const char *pattern, size_t times, wefti_fields *out,
                             wefti_problem *bad)
{
  const size_t cap = times * strlen(pattern) + 64;
  char *text = malloc(cap);
  assert_non_null(text);
  size_t n = (size_t)snprintf(text, cap, "{\"new_version\":\"");
  for (size_t i = 0; i < times; i++) {
    n += (size_t)snprintf(text + n, cap - n, "%s", pattern);
  }
  n += (size_t)snprintf(text + n, cap - n, "\"}");
  const weft_err err = read_body(WEFTI_ROUTE_LABEL, text, n, out, bad);
  free(text);
  return err;
}

static void a_version_has_at_most_1024_bytes(void **state)
{
  (void)state;
  wefti_fields fields;
  wefti_problem bad;
  assert_ok(read_version("a", 1024, &fields, &bad));
  assert_int_equal(fields.version.len, 1024);
  assert_err(read_version("a", 1025, &fields, &bad), WEFT_E_INVAL);
  assert_string_equal(bad.param, "body.new_version");
  assert_non_null(strstr(bad.message, "at most 1024 bytes"));
  assert_ok(read_version("\\u0041", 1024, &fields, &bad)); /* however it is spelled */
  assert_err(read_version("\\u0041", 1025, &fields, &bad), WEFT_E_INVAL);
  assert_ok(read_version("\xc3\xa9", 512, &fields, &bad)); /* bytes, not characters */
  assert_err(read_version("\xc3\xa9", 513, &fields, &bad), WEFT_E_INVAL);
  assert_err(read_version("a", 1000000, &fields, &bad), WEFT_E_INVAL);
}

static void messages_stay_short_whatever_is_sent(void **state)
{
  (void)state;
  wefti_fields fields;
  wefti_problem bad;
  char text[400];
  for (int digits = 1; digits < 300; digits++) {
    char long_number[400];
    memset(long_number, '1', sizeof long_number);
    const int m =
        snprintf(text, sizeof text, "{\"new_version\":%.*s}", digits, long_number);
    assert_err(read_body(WEFTI_ROUTE_LABEL, text, (size_t)m, &fields, &bad),
               WEFT_E_INVAL);
    assert_true(strlen(bad.message) < 300);
    const bool shown = strstr(bad.message, "'input': 1") != NULL;
    assert_int_equal(shown, digits <= 100);
    assert_int_equal(bad.message[strlen(bad.message) - 1], '}');
  }
}

static void children_are_told_apart_from_what_is_in_them(void **state)
{
  (void)state;
  static const struct {
    const char *text;
    char first;
    bool all;
  } rows[] = {
    { "[]", '{', true },
    { "[ ]", '{', true },
    { "{}", '"', true },
    { "[{}]", '{', true },
    { "[ {} , {\"a\":[1,2]} ]", '{', true },
    { "[{},[]]", '{', false },
    { "[[{}]]", '{', false },
    { "[1]", '{', false },
    { "[\"{\"]", '{', false },
    { "[{\"a\":\"]\\\"[1\"},{}]", '{', true },
    { "[{\"a\":\"\\\\\"},null]", '{', false },
    { "[{\"a\":\"\\\"},1\"},{}]", '{', true },
    { "{\"a\":\"b\",\"c\" : \"d\"}", '"', true },
    { "{\"a\":\"b\",\"c\":1}", '"', false },
    { "{\"a\":{\"b\":\"c\"}}", '"', false },
    { "{\"a\":[\"b\"]}", '"', false },
    { "{\"a:1\":\"b\"}", '"', true },
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const size_t len = strlen(rows[i].text);
    uint8_t *exact = malloc(len);
    assert_non_null(exact);
    memcpy(exact, rows[i].text, len);
    for (size_t piece = 1; piece <= len; piece++) {
      wefti_walk walk = { .first = (uint8_t)rows[i].first };
      bool all = true;
      for (size_t at = 0; at < len && all; at += piece) {
        all = wefti_walk_on(&walk, exact + at, len - at < piece ? len - at : piece);
      }
      if (all != rows[i].all) {
        fail_msg("%s in pieces of %zu", rows[i].text, piece);
      }
    }
    free(exact);
  }
}

static void timeouts_are_read_exactly(void **state)
{
  (void)state;
  static const struct {
    const char *query;
    uint32_t ms; /* 0 = refused */
  } rows[] = {
    { "timeout_s=1", 1000 },
    { "timeout_s=0.25", 250 },
    { "timeout_s=.5", 500 },
    { "timeout_s=2.", 2000 },
    { "timeout_s=0.0001", 1 },
    { "timeout_s=0.0010", 1 },
    { "timeout_s=1.0010001", 1002 },
    { "timeout_s=86400", 86400000 },
    { "timeout_s=86400.000", 86400000 },
    { "timeout_s=86400.001", 0 },
    { "timeout_s=0", 0 },
    { "timeout_s=0.0000", 0 },
    { "timeout_s=-0", 0 },
    { "timeout_s=+1", 0 },
    { "timeout_s=1s", 0 },
    { "timeout_s=inf", 0 },
    { "timeout_s=0x10", 0 },
    { "timeout_s=%31%32", 12000 },
    { "timeout_s=-", 0 },
    { "timeout_s=5&timeout_s=6", 6000 },
    { "timeout_s", 0 },
    { "timeout_s=99999999999999999999999999999999999999", 0 },
    { "timeout_s=000000000000000000000000000000000000000000000000000000000000000000001",
      0 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    wefti_query query;
    wefti_problem bad = { 0 };
    const bool ok = wefti_query_read(WEFTI_ROUTE_START, rows[i].query, &query, &bad);
    if (ok != (rows[i].ms > 0) || (ok && query.timeout_ms != rows[i].ms)) {
      fail_msg("%s: %u", rows[i].query, query.timeout_ms);
    }
    if (!ok) {
      assert_int_equal(bad.status, 400);
      assert_string_equal(bad.param, "query.timeout_s");
    }
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_prefix_is_refused),
    cmocka_unit_test(memory_that_cannot_be_had_is_no_fault_of_the_client),
    cmocka_unit_test(a_version_has_at_most_1024_bytes),
    cmocka_unit_test(messages_stay_short_whatever_is_sent),
    cmocka_unit_test(children_are_told_apart_from_what_is_in_them),
    cmocka_unit_test(timeouts_are_read_exactly),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
