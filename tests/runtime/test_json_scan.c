#include "weft_test.h"

#include "weft/json.h"
#include "weft_fail.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

static weft_err scan_pieces(const char *text, size_t len, size_t piece,
                            const weft_json_limits *limits, weft_json_scan **out)
{
  assert_ok(weft_json_scan_create(limits, out));
  weft_err err = WEFT_OK;
  for (size_t at = 0; at < len && err == WEFT_OK; at += piece) {
    err = weft_json_scan_feed(*out, text + at, len - at < piece ? len - at : piece);
  }
  return err == WEFT_OK ? weft_json_scan_end(*out) : err;
}

static weft_err scan_text(const char *text, weft_json_scan **out)
{
  return scan_pieces(text, strlen(text), SIZE_MAX / 2, NULL, out);
}

static const char *const good[] = {
  "{}",
  "[]",
  "null",
  " \t\r\n true ",
  "\"\"",
  "-0",
  "0.5e-7",
  "1E+3",
  ("{\"a\":[1,-2.5,{\"b\":null}],\"c\":"
   "\"x\\u00e9\\ud83d\\ude00\\\"\\\\\\/\\b\\f\\n\\r\\t\"}"),
  "[[],{},[{}],\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"]",
  "{\"a\":{\"b\":1,\"b\":2},\"\":0,\"\\u0061b\":1}",
};

static const struct {
  const char *text;
  size_t at;
  const char *reason;
} bad[] = {
  { "x", 0, "expected a value" },
  { "[1,]", 3, "expected a value" },
  { "{,}", 1, "expected a member's name" },
  { "{\"a\":1,}", 7, "expected a member's name" },
  { "{\"a\" 1}", 5, "expected ':'" },
  { "{\"a\":1 \"b\":2}", 7, "expected ',' or the end" },
  { "[1}", 2, "wrong closing bracket" },
  { "{\"a\":1]", 6, "wrong closing bracket" },
  { "]", 0, "expected a value" },
  { "{} {}", 3, "text behind the value" },
  { "1 2", 2, "text behind the value" },
  { "01", 1, "not a number" },
  { "-", 1, "the text ends inside a value" },
  { "-x", 1, "not a number" },
  { "1.x", 2, "not a number" },
  { "1ex", 2, "not a number" },
  { "1e+", 3, "the text ends inside a value" },
  { "+1", 0, "expected a value" },
  { ".5", 0, "expected a value" },
  { "NaN", 0, "expected a value" },
  { "Infinity", 0, "expected a value" },
  { "nulL", 3, "expected a value" },
  { "truefalse", 4, "text behind the value" },
  { "\"a\nb\"", 2, "control character in a string" },
  { "\"\\x41\"", 2, "unknown escape" },
  { "\"\\u12g4\"", 5, "expected four hexadecimal digits" },
  { "\"\\u0000\"", 6, "NUL in a string" },
  { "\"\\ud800\"", 7, "lone surrogate" },
  { "\"\\ud800x\"", 7, "lone surrogate" },
  { "\"\\ud800\\n\"", 8, "lone surrogate" },
  { "\"\\ud800\\u0041\"", 12, "lone surrogate" },
  { "\"\\udc00\"", 6, "lone surrogate" },
  { "\"\x80\"", 1, "invalid UTF-8" },
  { "\"\xc0\xaf\"", 1, "invalid UTF-8" },
  { "\"\xe0\x80\xaf\"", 2, "invalid UTF-8" },
  { "\"\xed\xa0\x80\"", 2, "invalid UTF-8" },
  { "\"\xf4\x90\x80\x80\"", 2, "invalid UTF-8" },
  { "\"\xf5\"", 1, "invalid UTF-8" },
  { "\"\xe2\x82\"", 3, "invalid UTF-8" },
  { "\xef\xbb\xbf{}", 0, "expected a value" },
  { "{\"a\":1,\"a\":2}", 9, "a member's name occurs twice" },
  { "{\"ab\":1,\"\\u0061b\":2}", 16, "a member's name occurs twice" },
  { "", 0, "the text ends inside a value" },
};

static void accepts(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    weft_json_scan *scan;
    assert_ok(scan_text(good[i], &scan));
    weft_json_scan_destroy(scan);
  }
}

static void refuses_with_position_and_reason(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    for (size_t piece = 1; piece <= 64; piece += 63) {
      weft_json_scan *scan;
      const weft_err err =
          scan_pieces(bad[i].text, strlen(bad[i].text), piece, NULL, &scan);
      if (err != WEFT_E_PROTO && err != WEFT_E_TRUNCATED) {
        fail_msg("accepted: %s", bad[i].text);
      }
      if (weft_json_scan_error_at(scan) != bad[i].at ||
          strcmp(weft_json_scan_reason(scan), bad[i].reason) != 0) {
        fail_msg("%s: %s at %zu", bad[i].text, weft_json_scan_reason(scan),
                 weft_json_scan_error_at(scan));
      }
      assert_int_equal(weft_json_scan_feed(scan, "1", 1), err); /* errors stick */
      assert_int_equal(weft_json_scan_end(scan), err);
      weft_json_scan_destroy(scan);
    }
  }
}

static void a_raw_nul_is_refused(void **state)
{
  (void)state;
  weft_json_scan *scan;
  assert_err(scan_pieces("\"a\0b\"", 5, 1, NULL, &scan), WEFT_E_PROTO);
  assert_int_equal(weft_json_scan_error_at(scan), 2);
  weft_json_scan_destroy(scan);
  assert_err(scan_pieces("{}\0", 3, 3, NULL, &scan), WEFT_E_PROTO);
  weft_json_scan_destroy(scan);
}

static void every_byte_counts_at_every_place(void **state)
{
  (void)state;
  for (size_t at = 1; at < 24; at++) {
    for (int b = 0; b < 256; b++) {
      char text[34];
      memset(text, 'x', sizeof text);
      text[0] = '"';
      text[sizeof text - 1] = '"';
      text[at] = (char)b;
      weft_json_scan *scan;
      const weft_err err = scan_pieces(text, sizeof text, sizeof text, NULL, &scan);
      const bool plain = b >= 0x20 && b < 0x80 && b != '"' && b != '\\';
      assert_int_equal(err, plain ? WEFT_OK : WEFT_E_PROTO);
      if (!plain) { /* a quote, an escape or a lead byte shows one byte later */
        const size_t where = weft_json_scan_error_at(scan);
        assert_true(where == at || where == at + 1);
      }
      weft_json_scan_destroy(scan);
    }
  }
}

static void every_prefix_is_truncated(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    const size_t len = strlen(good[i]);
    if (strchr("-0123456789 ", good[i][0]) != NULL) {
      continue; /* a number's prefix may be a number */
    }
    for (size_t n = 0; n < len; n++) {
      weft_json_scan *scan;
      assert_err(scan_pieces(good[i], n, 3, NULL, &scan), WEFT_E_TRUNCATED);
      assert_int_equal(weft_json_scan_error_at(scan), n);
      weft_json_scan_destroy(scan);
    }
  }
}

static void spans_do_not_depend_on_pieces(void **state)
{
  (void)state;
  static const char text[] = " {\"update_info\": [ {\"x\":[]} ], \"n\":-12.5e3 "
                             ",\"s\":\"a\\\"b\",\"\\u0074\":true}";
  static const struct {
    const char *key;
    weft_json_kind kind;
    const char *value;
  } want[] = {
    { "update_info", WEFT_JSON_ARRAY, "[ {\"x\":[]} ]" },
    { "n", WEFT_JSON_NUMBER, "-12.5e3" },
    { "s", WEFT_JSON_STRING, "\"a\\\"b\"" },
    { "t", WEFT_JSON_BOOL, "true" },
  };
  for (size_t piece = 1; piece < sizeof text; piece++) {
    weft_json_scan *scan;
    assert_ok(scan_pieces(text, sizeof text - 1, piece, NULL, &scan));
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
      const weft_json_span span = weft_json_scan_member(scan, want[i].key);
      assert_int_equal(span.kind, want[i].kind);
      assert_int_equal(span.len, strlen(want[i].value));
      assert_memory_equal(text + span.at, want[i].value, span.len);
    }
    assert_int_equal(weft_json_scan_member(scan, "x").kind, WEFT_JSON_NONE);
    assert_int_equal(weft_json_scan_root(scan).at, 1);
    assert_int_equal(weft_json_scan_root(scan).len, sizeof text - 2);
    assert_int_equal(weft_json_scan_root(scan).kind, WEFT_JSON_OBJECT);
    weft_json_scan_destroy(scan);
  }
}

static void a_root_number_has_a_span(void **state)
{
  (void)state;
  weft_json_scan *scan;
  assert_ok(scan_text(" 125", &scan));
  assert_int_equal(weft_json_scan_root(scan).len, 3);
  assert_int_equal(weft_json_scan_member(scan, "a").kind, WEFT_JSON_NONE);
  weft_json_scan_destroy(scan);
}

static void depth_at_limit_and_beyond(void **state)
{
  (void)state;
  const weft_json_limits limits = { .depth = 3 };
  weft_json_scan *scan;
  assert_ok(scan_pieces("[{\"a\":[1]}]", 11, 1, &limits, &scan));
  weft_json_scan_destroy(scan);
  assert_err(scan_pieces("[{\"a\":[[]]}]", 12, 1, &limits, &scan), WEFT_E_LIMIT);
  assert_int_equal(weft_json_scan_error_at(scan), 7);
  weft_json_scan_destroy(scan);
  const weft_json_limits absurd = { .depth = SIZE_MAX };
  assert_err(weft_json_scan_create(&absurd, &scan), WEFT_E_INVAL);
}

static void nodes_at_limit_and_beyond(void **state)
{
  (void)state;
  const weft_json_limits limits = { .nodes = 4 };
  weft_json_scan *scan;
  assert_ok(scan_pieces("[1,[2]]", 7, 1, &limits, &scan));
  weft_json_scan_destroy(scan);
  assert_err(scan_pieces("[1,[2],3]", 9, 1, &limits, &scan), WEFT_E_LIMIT);
  assert_int_equal(weft_json_scan_error_at(scan), 7);
  weft_json_scan_destroy(scan);
}

static void members_at_limit_and_beyond(void **state)
{
  (void)state;
  const weft_json_limits limits = { .members = 2 };
  weft_json_scan *scan;
  /* Only those of the root count. */
  const char *two = "{\"a\":{\"b\":1,\"c\":2,\"d\":3},\"e\":4}";
  assert_ok(scan_pieces(two, strlen(two), 1, &limits, &scan));
  weft_json_scan_destroy(scan);
  const char *three = "{\"a\":1,\"b\":2,\"c\":3}";
  assert_err(scan_pieces(three, strlen(three), 1, &limits, &scan), WEFT_E_LIMIT);
  weft_json_scan_destroy(scan);
}

/* Feeds up to 64 MiB of a repeated unit; must end with LIMIT and without growing. */
static size_t hostile(const char *first, const char *unit)
{
  enum { PIECE = 1 << 20 };
  char *piece = malloc(PIECE);
  assert_non_null(piece);
  const size_t unit_len = strlen(unit);
  const size_t piece_len = PIECE / unit_len * unit_len;
  for (size_t at = 0; at < piece_len; at++) {
    piece[at] = unit[at % unit_len];
  }
  weft_json_scan *scan;
  assert_ok(weft_json_scan_create(NULL, &scan));
  const size_t before = mallinfo2().uordblks;
  weft_err err = weft_json_scan_feed(scan, first, strlen(first));
  for (int i = 0; i < 64 && err == WEFT_OK; i++) {
    err = weft_json_scan_feed(scan, piece, piece_len);
  }
  assert_err(err, WEFT_E_LIMIT);
  assert_true(mallinfo2().uordblks <= before + 4096); /* the one member's row */
  const size_t at = weft_json_scan_error_at(scan);
  weft_json_scan_destroy(scan);
  free(piece);
  return at;
}

static void hostile_bodies_cost_the_budget_and_no_memory(void **state)
{
  (void)state;
  assert_int_equal(hostile("[1", ",1"), 2 * 3999998 + 3);
  assert_int_equal(hostile("", "["), 64);
  assert_int_equal(hostile("", "{\"a\":"), 64 * 5);
  assert_int_equal(hostile("{\"a\":[[]", ",[]"), 8 + 3 * 3999997 + 1);
}

static void many_members_stay_findable(void **state)
{
  (void)state;
  weft_json_scan *scan;
  assert_ok(weft_json_scan_create(NULL, &scan));
  assert_ok(weft_json_scan_feed(scan, "{", 1));
  char text[64];
  for (int i = 0; i < 5000; i++) {
    const int n =
        snprintf(text, sizeof text, "%s\"layer.%d\":%d", i == 0 ? "" : ",", i, i);
    assert_ok(weft_json_scan_feed(scan, text, (size_t)n));
  }
  assert_ok(weft_json_scan_feed(scan, "}", 1));
  assert_ok(weft_json_scan_end(scan));
  for (int i = 0; i < 5000; i++) {
    (void)snprintf(text, sizeof text, "layer.%d", i);
    assert_int_equal(weft_json_scan_member(scan, text).kind, WEFT_JSON_NUMBER);
  }
  assert_int_equal(weft_json_scan_member(scan, "layer.5000").kind, WEFT_JSON_NONE);
  weft_json_scan_destroy(scan);
}

static void each_failed_allocation_is_an_error(void **state)
{
  (void)state;
  static const char text[] = "{\"a\":1,\"b\":2,\"c\":[3]}";
  unsigned failures = 0;
  FOR_EACH_FAILURE
  {
    weft_json_scan *scan = NULL;
    weft_err err = weft_json_scan_create(NULL, &scan);
    if (err == WEFT_OK) {
      err = weft_json_scan_feed(scan, text, sizeof text - 1);
    }
    assert_int_equal(err, fail_hit ? WEFT_E_NOMEM : WEFT_OK);
    failures += fail_hit;
    weft_json_scan_destroy(scan);
    END_UNLESS_FAILED
  }
  assert_true(failures >= 4);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(accepts),
    cmocka_unit_test(refuses_with_position_and_reason),
    cmocka_unit_test(a_raw_nul_is_refused),
    cmocka_unit_test(every_byte_counts_at_every_place),
    cmocka_unit_test(every_prefix_is_truncated),
    cmocka_unit_test(spans_do_not_depend_on_pieces),
    cmocka_unit_test(a_root_number_has_a_span),
    cmocka_unit_test(depth_at_limit_and_beyond),
    cmocka_unit_test(nodes_at_limit_and_beyond),
    cmocka_unit_test(members_at_limit_and_beyond),
    cmocka_unit_test(hostile_bodies_cost_the_budget_and_no_memory),
    cmocka_unit_test(many_members_stay_findable),
    cmocka_unit_test(each_failed_allocation_is_an_error),
  };
  return cmocka_run_group_tests_name("runtime.json_scan", tests, NULL, NULL);
}
