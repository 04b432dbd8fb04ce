#include "weft_test.h"

#include "weft/json.h"

#include <stdlib.h>
#include <string.h>

/* The cursor's reading must be the tree's. */

static void same(weft_json_cursor *c, const weft_json *v)
{
  int64_t a = 0;
  int64_t b = 0;
  const weft_json_kind kind = weft_json_kind_of(v);
  assert_int_equal(weft_json_cursor_kind(c), kind);
  if (kind == WEFT_JSON_STRING) {
    assert_string_equal(weft_json_cursor_str(c), weft_json_str(v));
  } else if (kind == WEFT_JSON_NUMBER) {
    assert_null(weft_json_cursor_str(c));
    const bool is = weft_json_i64(v, &a);
    assert_int_equal(weft_json_cursor_i64(c, &b), is);
    assert_true(!is || a == b);
  } else if (kind == WEFT_JSON_ARRAY || kind == WEFT_JSON_OBJECT) {
    assert_false(weft_json_cursor_i64(c, &b));
    weft_json_cursor_enter(c);
    for (const weft_json *m = weft_json_first(v); m != NULL; m = weft_json_next(m)) {
      assert_true(weft_json_cursor_next(c));
      if (kind == WEFT_JSON_OBJECT) {
        assert_string_equal(weft_json_cursor_key(c), weft_json_key(m));
      }
      same(c, m);
    }
    assert_false(weft_json_cursor_next(c));
  } else {
    weft_json_cursor_skip(c);
  }
}

/* In memory of exactly len + 1 bytes, so that a sanitizer sees a byte too far. */
static char *copy_of(const char *text)
{
  char *copy = strdup(text);
  assert_non_null(copy);
  return copy;
}

static const char *const texts[] = {
  "{}",
  " [ ] ",
  "{\"a\":[1,2,[3]],\"b\":{\"c\":null,\"d\":[true,false,{}]}}",
  "{ \"a\" : 1 , \"b\" : [ 2 , 3 ] }\n",
  "[\"\",\"plain\",\"q\\\"uote\",\"back\\\\\",\"\\u00e9\\ud83d\\ude00\",\"h\xc3\xa9\"]",
  "{\"k\\\"1\":\"]}\",\"\\u006b\":\"{[,\"}",
  "[0,-0,1,-1,999999999999999,1000000000000000,9223372036854775807,-9223372036854775807]",
  "[9223372036854775808,1.5,1.0,1e3,-2e-1,20e-1,1E+2,123456789012345678901234567890]",
  "42",
  "\"alone\"",
  "-7",
};

static void reads_what_the_tree_has(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    weft_json *root = NULL;
    weft_json_cursor c;
    char *text = copy_of(texts[i]);
    assert_ok(weft_json_parse(text, strlen(text), NULL, &root, NULL));
    assert_ok(weft_json_cursor_open(text, strlen(texts[i]), NULL, &c, NULL));
    same(&c, root);
    weft_json_free(root);
    free(text);
  }
}

static void skips_any_value(void **state)
{
  (void)state;
  char *text = copy_of("[ \"]\\\"\" , {\"a\":[\"}\",{}]} ,-1.5e3,null , [] , 7]");
  weft_json_cursor c;
  int64_t seven = 0;
  assert_ok(weft_json_cursor_open(text, strlen(text), NULL, &c, NULL));
  weft_json_cursor_enter(&c);
  for (int i = 0; i < 5; i++) {
    assert_true(weft_json_cursor_next(&c));
    weft_json_cursor_skip(&c);
  }
  assert_true(weft_json_cursor_next(&c));
  assert_true(weft_json_cursor_i64(&c, &seven));
  assert_int_equal(seven, 7);
  assert_false(weft_json_cursor_next(&c));
  assert_int_equal(weft_json_cursor_kind(&c), WEFT_JSON_NONE);
  free(text);
}

static void refuses_what_the_scanner_refuses(void **state)
{
  (void)state;
  const weft_json_limits flat = { .depth = 1 };
  weft_json_cursor c;
  weft_why why = { 0 };
  char bad[] = "{\"a\":1,\"a\":2}";
  assert_err(weft_json_cursor_open(bad, strlen(bad), NULL, &c, &why), WEFT_E_PROTO);
  assert_non_null(strstr(why.text, "twice"));
  char deep[] = "[[]]";
  assert_err(weft_json_cursor_open(deep, strlen(deep), &flat, &c, NULL), WEFT_E_LIMIT);
  char cut[] = "[1,2]";
  for (size_t n = 0; n < strlen(cut); n++) {
    assert_err(weft_json_cursor_open(cut, n, NULL, &c, NULL), WEFT_E_TRUNCATED);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(reads_what_the_tree_has),
    cmocka_unit_test(skips_any_value),
    cmocka_unit_test(refuses_what_the_scanner_refuses),
  };
  return cmocka_run_group_tests_name("runtime.json_cursor", tests, NULL, NULL);
}
