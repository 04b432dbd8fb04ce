#include "weft_test.h"

#include "weft/http.h"

#include <string.h>

static void values(void **state)
{
  (void)state;
  static const struct {
    const char *query, *key, *value;
    weft_err err;
  } rows[] = {
    { "", "k", "", WEFT_E_NOTFOUND },
    { "k", "k", "", WEFT_OK },
    { "k=", "k", "", WEFT_OK },
    { "k=v", "k", "v", WEFT_OK },
    { "a=b&k=v&c=d", "k", "v", WEFT_OK },
    { "k=1&k=2", "k", "2", WEFT_OK },
    { "k=1&k", "k", "", WEFT_OK },
    { "kk=1", "k", "", WEFT_E_NOTFOUND },
    { "k=1", "kk", "", WEFT_E_NOTFOUND },
    { "&&k=v&&", "k", "v", WEFT_OK },
    { "k=a=b", "k", "a=b", WEFT_OK },
    { "k=a%20b+c%2B", "k", "a b c+", WEFT_OK },
    { "%6b=v", "k", "v", WEFT_OK },
    { "k%00=v", "k", "", WEFT_E_NOTFOUND },
    { "%=v&k=w", "k", "w", WEFT_OK },
    { "a+b=v", "a b", "v", WEFT_OK },
    { "k=%C3%a4", "k", "\303\244", WEFT_OK },
    { "k=%", "k", "", WEFT_E_PROTO },
    { "k=%4", "k", "", WEFT_E_PROTO },
    { "k=%4&a=b", "k", "", WEFT_E_PROTO },
    { "k=%zz", "k", "", WEFT_E_PROTO },
    { "k=%00", "k", "", WEFT_E_PROTO },
    { "=v", "", "v", WEFT_OK },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char out[32] = "?";
    const weft_err err = weft_http_query(rows[i].query, rows[i].key, out, sizeof out);
    if (err != rows[i].err || (err == WEFT_OK && strcmp(out, rows[i].value) != 0)) {
      fail_msg("%s: %s '%s'", rows[i].query, weft_err_name(err), out);
    }
  }
}

static void at_the_capacity_and_one_more(void **state)
{
  (void)state;
  char out[4];
  assert_ok(weft_http_query("k=abc", "k", out, sizeof out));
  assert_string_equal(out, "abc");
  assert_err(weft_http_query("k=abcd", "k", out, sizeof out), WEFT_E_LIMIT);
  assert_err(weft_http_query("k=", "k", out, 0), WEFT_E_LIMIT);
}

static void phrases(void **state)
{
  (void)state;
  assert_string_equal(weft_http_phrase(200), "OK");
  assert_string_equal(weft_http_phrase(404), "Not Found");
  assert_string_equal(weft_http_phrase(499), "Client Error");
  assert_string_equal(weft_http_phrase(599), "Server Error");
  assert_non_null(weft_http_phrase(-1));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(values),
    cmocka_unit_test(at_the_capacity_and_one_more),
    cmocka_unit_test(phrases),
  };
  return cmocka_run_group_tests_name("http.query", tests, NULL, NULL);
}
