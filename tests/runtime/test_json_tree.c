#include "weft_test.h"

#include "weft/json.h"
#include "weft_fail.h"

#include <stdlib.h>
#include <string.h>

static weft_json *parse(const char *text)
{
  weft_json *root = NULL;
  weft_why why = { 0 };
  if (weft_json_parse(text, strlen(text), NULL, &root, &why) != WEFT_OK) {
    fail_msg("%s: %s", text, why.text);
  }
  return root;
}

static void walks_in_order(void **state)
{
  (void)state;
  weft_json *root = parse("{\"a\":[1,[2,3],{}],\"b\":{\"c\":\"d\"},\"e\":false}");
  assert_int_equal(weft_json_count(root), 3);
  const weft_json *a = weft_json_first(root);
  assert_string_equal(weft_json_key(a), "a");
  assert_int_equal(weft_json_count(a), 3);
  const weft_json *inner = weft_json_next(weft_json_first(a));
  assert_int_equal(weft_json_count(inner), 2);
  assert_null(weft_json_key(inner));
  const weft_json *empty = weft_json_next(inner);
  assert_int_equal(weft_json_kind_of(empty), WEFT_JSON_OBJECT);
  assert_null(weft_json_first(empty));
  assert_null(weft_json_next(empty));
  const weft_json *b = weft_json_next(a);
  assert_string_equal(weft_json_str(weft_json_get(b, "c")), "d");
  const weft_json *e = weft_json_next(b);
  assert_string_equal(weft_json_key(e), "e");
  assert_false(weft_json_bool(e, true));
  assert_true(weft_json_bool(b, true));
  assert_null(weft_json_next(e));
  assert_null(weft_json_next(root));
  weft_json_free(root);
}

static void absent_things_are_none(void **state)
{
  (void)state;
  weft_json *root = parse("[null]");
  assert_int_equal(weft_json_kind_of(NULL), WEFT_JSON_NONE);
  assert_null(weft_json_get(root, "a"));
  assert_null(weft_json_get(NULL, "a"));
  assert_null(weft_json_str(root));
  assert_null(weft_json_first(NULL));
  assert_int_equal(weft_json_count(NULL), 0);
  assert_int_equal(weft_json_kind_of(weft_json_first(root)), WEFT_JSON_NULL);
  int64_t n;
  assert_false(weft_json_i64(NULL, &n));
  assert_false(weft_json_i64(weft_json_first(root), &n));
  weft_json_free(root);
}

static void the_last_of_equal_names_counts(void **state)
{
  (void)state;
  weft_json *root = parse("{\"o\":{\"k\":1,\"k\":2}}");
  int64_t n = 0;
  assert_true(weft_json_i64(weft_json_get(weft_json_get(root, "o"), "k"), &n));
  assert_int_equal(n, 2);
  weft_json_free(root);
}

static void strings_are_decoded(void **state)
{
  (void)state;
  weft_json *root =
      parse("[\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20ac\\ud83d\\ude00z\",\"\"]");
  assert_string_equal(weft_json_str(weft_json_first(root)),
                      "a\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z");
  assert_string_equal(weft_json_str(weft_json_next(weft_json_first(root))), "");
  weft_json_free(root);
}

static void integers_are_exact(void **state)
{
  (void)state;
  static const struct {
    const char *text;
    int64_t want;
  } good[] = {
    { "0", 0 },
    { "-0", 0 },
    { "0e999999999999999999999", 0 },
    { "9007199254740993", INT64_C(9007199254740993) },
    { "9223372036854775807", INT64_MAX },
    { "-9223372036854775807", -INT64_MAX },
    { "1.0", 1 },
    { "1e3", 1000 },
    { "1E+3", 1000 },
    { "1500e-2", 15 },
    { "12.50e1", 125 },
    { "0.0001e4", 1 },
    { "922337203685477580700000e-5", INT64_C(9223372036854775807) },
    { "1000000000000000000000000000e-27", 1 },
  };
  static const char *const bad[] = {
    "1.5",
    "1e-1",
    "9223372036854775808",
    "-9223372036854775808",
    "1e19",
    "18446744073709551617",
    "1e999999999999999999999",
    "1e-999999999999999999999",
    "100000000000000000000000000001e-27",
    "10.01",
  };
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    weft_json *root = parse(good[i].text);
    int64_t n = 42;
    if (!weft_json_i64(root, &n) || n != good[i].want) {
      fail_msg("%s gave %lld", good[i].text, (long long)n);
    }
    weft_json_free(root);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    weft_json *root = parse(bad[i]);
    int64_t n = 42;
    if (weft_json_i64(root, &n)) {
      fail_msg("%s gave %lld", bad[i], (long long)n);
    }
    assert_int_equal(n, 42);
    weft_json_free(root);
  }
}

static void every_prefix_is_refused_and_leaves_out_alone(void **state)
{
  (void)state;
  static const char text[] =
      "{\"a\":[1,-2.5e3,{\"b\":null}],\"c\":\"\\u00e9\\ud83d\\ude00\"}";
  for (size_t n = 0; n < sizeof text - 1; n++) {
    char *exact = malloc(n + 1); /* so that ASan sees the end */
    assert_non_null(exact);
    memcpy(exact, text, n);
    weft_json *root = NULL;
    assert_err(weft_json_parse(exact, n, NULL, &root, NULL), WEFT_E_TRUNCATED);
    assert_null(root);
    free(exact);
  }
}

static void errors_say_where(void **state)
{
  (void)state;
  weft_json *root = NULL;
  weft_why why = { 0 };
  assert_err(weft_json_parse("{\"a\":1} x", 9, NULL, &root, &why), WEFT_E_PROTO);
  assert_string_equal(why.text, "JSON: text behind the value at byte 8");
  const weft_json_limits two = { .nodes = 2 };
  assert_err(weft_json_parse("[1,2]", 5, &two, &root, &why), WEFT_E_LIMIT);
  assert_string_equal(why.text, "JSON: too many values at byte 3");
}

static void each_failed_allocation_is_an_error(void **state)
{
  (void)state;
  FOR_EACH_FAILURE
  {
    weft_json *root = NULL;
    const weft_err err = weft_json_parse("{\"a\":[1]}", 9, NULL, &root, NULL);
    assert_int_equal(err, fail_hit ? WEFT_E_NOMEM : WEFT_OK);
    weft_json_free(root);
    END_UNLESS_FAILED
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(walks_in_order),
    cmocka_unit_test(absent_things_are_none),
    cmocka_unit_test(the_last_of_equal_names_counts),
    cmocka_unit_test(strings_are_decoded),
    cmocka_unit_test(integers_are_exact),
    cmocka_unit_test(every_prefix_is_refused_and_leaves_out_alone),
    cmocka_unit_test(errors_say_where),
    cmocka_unit_test(each_failed_allocation_is_an_error),
  };
  return cmocka_run_group_tests_name("runtime.json_tree", tests, NULL, NULL);
}
