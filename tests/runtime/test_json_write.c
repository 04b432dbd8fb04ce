#include "weft_test.h"

#include "weft/json.h"
#include "weft_fail.h"

#include <stdlib.h>
#include <string.h>

static void take(weft_json_writer *w, const char *want)
{
  char *text = NULL;
  size_t len = 0;
  assert_ok(weft_jw_take(w, &text, &len));
  assert_int_equal(len, strlen(text));
  assert_string_equal(text, want);
  free(text);
}

static void nests_and_separates(void **state)
{
  (void)state;
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_str(&w, "s", "x");
  weft_jw_str(&w, "absent", NULL);
  weft_jw_array(&w, "a");
  weft_jw_u64(&w, NULL, UINT64_MAX);
  weft_jw_i64(&w, NULL, INT64_MIN);
  weft_jw_object(&w, NULL);
  weft_jw_end(&w);
  weft_jw_array(&w, NULL);
  weft_jw_end(&w);
  weft_jw_end(&w);
  weft_jw_bool(&w, "t", true);
  weft_jw_bool(&w, "f", false);
  weft_jw_null(&w, "n");
  weft_jw_raw(&w, "r", "[1,2]", 5);
  weft_jw_end(&w);
  take(&w, "{\"s\":\"x\",\"absent\":null,\"a\":[18446744073709551615,-"
           "9223372036854775808,{},[]],"
           "\"t\":true,\"f\":false,\"n\":null,\"r\":[1,2]}");
}

static void escapes_as_python_does(void **state)
{
  (void)state;
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_strn(&w, "k\"", "\0\x01\x1f\x7f\"\\/\b\f\n\r\t\xc3\xa9", 14);
  weft_jw_end(&w);
  take(&w, "{\"k\\\"\":\"\\u0000\\u0001\\u001f\x7f\\\"\\\\/\\b\\f\\n\\r\\t\xc3\xa9\"}");
}

static void text_that_is_not_utf8_is_replaced(void **state)
{
  (void)state;
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_str(&w, NULL, "a\xff\xc3\xa9\xc3");
  take(&w, "\"a\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\"");
}

static void what_is_written_parses_back(void **state)
{
  (void)state;
  char all[256];
  for (int i = 1; i < 128; i++) {
    all[i - 1] = (char)i;
  }
  all[127] = '\0';
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_str(&w, NULL, all);
  char *text = NULL;
  size_t len = 0;
  assert_ok(weft_jw_take(&w, &text, &len));
  weft_json *root = NULL;
  assert_ok(weft_json_parse(text, len, NULL, &root, NULL));
  assert_string_equal(weft_json_str(root), all);
  weft_json_free(root);
  free(text);
}

static void depth_at_limit_and_beyond(void **state)
{
  (void)state;
  for (int depth = 60; depth <= 61; depth++) {
    weft_json_writer w;
    weft_jw_init(&w);
    for (int i = 0; i < depth; i++) {
      weft_jw_array(&w, NULL);
    }
    for (int i = 0; i < depth; i++) {
      weft_jw_end(&w);
    }
    char *text = NULL;
    assert_err(weft_jw_take(&w, &text, NULL), depth == 60 ? WEFT_OK : WEFT_E_LIMIT);
    free(text);
  }
}

static void unbalanced_is_an_error(void **state)
{
  (void)state;
  weft_json_writer w;
  char *text = NULL;
  weft_jw_init(&w);
  weft_jw_array(&w, NULL);
  assert_err(weft_jw_take(&w, &text, NULL), WEFT_E_STATE);
  weft_jw_init(&w);
  weft_jw_end(&w);
  assert_err(weft_jw_take(&w, &text, NULL), WEFT_E_STATE);
  assert_null(text);
}

static void each_failed_allocation_is_an_error(void **state)
{
  (void)state;
  unsigned failures = 0;
  FOR_EACH_FAILURE
  {
    weft_json_writer w;
    weft_jw_init(&w);
    weft_jw_array(&w, NULL);
    for (int i = 0; i < 400; i++) {
      weft_jw_str(&w, NULL, "some text");
    }
    weft_jw_end(&w);
    char *text = NULL;
    assert_err(weft_jw_take(&w, &text, NULL), fail_hit ? WEFT_E_NOMEM : WEFT_OK);
    failures += fail_hit;
    free(text);
    END_UNLESS_FAILED
  }
  assert_true(failures >= 3);
}

static void a_buffer_is_the_text_or_nothing(void **state)
{
  (void)state;
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_array(&w, NULL);
  assert_null(weft_jw_take_buf(&w)); /* not balanced */
  unsigned failures = 0;
  FOR_EACH_FAILURE
  {
    weft_jw_init(&w);
    weft_jw_array(&w, NULL);
    weft_jw_u64(&w, NULL, 7);
    weft_jw_end(&w);
    weft_buf *buf = weft_jw_take_buf(&w);
    assert_true((buf == NULL) == fail_hit);
    if (buf != NULL) {
      assert_int_equal(buf->len, 3);
      assert_string_equal((const char *)buf->data, "[7]");
      weft_buf_unref(buf);
    }
    failures += fail_hit;
    END_UNLESS_FAILED
  }
  assert_true(failures >= 2);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(nests_and_separates),
    cmocka_unit_test(escapes_as_python_does),
    cmocka_unit_test(text_that_is_not_utf8_is_replaced),
    cmocka_unit_test(what_is_written_parses_back),
    cmocka_unit_test(depth_at_limit_and_beyond),
    cmocka_unit_test(unbalanced_is_an_error),
    cmocka_unit_test(each_failed_allocation_is_an_error),
    cmocka_unit_test(a_buffer_is_the_text_or_nothing),
  };
  return cmocka_run_group_tests_name("runtime.json_write", tests, NULL, NULL);
}
