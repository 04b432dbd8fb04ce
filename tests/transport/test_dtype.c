#include "weft_test.h"

#include "weft/dtype.h"

static void names_go_both_ways(void **state)
{
  (void)state;
  unsigned count = 0;
  for (int d = -1; d < 64; d++) {
    const weft_dtype dtype = (weft_dtype)d;
    const char *name = weft_dtype_name(dtype);
    if (name == NULL) {
      assert_int_equal(weft_dtype_bits(dtype), 0);
      assert_null(weft_dtype_st_name(dtype));
      continue;
    }
    count++;
    assert_int_equal(weft_dtype_parse(name), dtype);
    assert_true(weft_dtype_bits(dtype) >= 8);
    if (weft_dtype_st_name(dtype) != NULL) {
      assert_int_equal(weft_dtype_parse_st(weft_dtype_st_name(dtype)), dtype);
    }
  }
  assert_int_equal(count, 20);
}

static void unknown_names_are_none(void **state)
{
  (void)state;
  assert_int_equal(weft_dtype_parse("BF16"), WEFT_DTYPE_NONE);
  assert_int_equal(weft_dtype_parse(""), WEFT_DTYPE_NONE);
  assert_int_equal(weft_dtype_parse(NULL), WEFT_DTYPE_NONE);
  assert_int_equal(weft_dtype_parse_st("bfloat16"), WEFT_DTYPE_NONE);
  assert_int_equal(weft_dtype_parse_st(NULL), WEFT_DTYPE_NONE);
}

static void bytes_are_checked(void **state)
{
  (void)state;
  const int64_t shape[WEFT_DIMS_MAX + 1] = { 3, 5, 1, 1, 1, 1, 1, 1, 1 };
  uint64_t n = 42;
  assert_ok(weft_dtype_bytes(WEFT_DTYPE_BFLOAT16, 2, shape, &n));
  assert_int_equal(n, 30);
  assert_ok(weft_dtype_bytes(WEFT_DTYPE_COMPLEX128, 2, shape, &n));
  assert_int_equal(n, 240);
  assert_ok(weft_dtype_bytes(WEFT_DTYPE_BOOL, 0, NULL, &n));
  assert_int_equal(n, 1);
  assert_ok(weft_dtype_bytes(WEFT_DTYPE_INT8, WEFT_DIMS_MAX, shape, &n));
  assert_int_equal(n, 15);
  assert_err(weft_dtype_bytes(WEFT_DTYPE_INT8, WEFT_DIMS_MAX + 1, shape, &n),
             WEFT_E_INVAL);
  assert_err(weft_dtype_bytes(WEFT_DTYPE_NONE, 2, shape, &n), WEFT_E_INVAL);
  const int64_t negative[] = { -1 };
  assert_err(weft_dtype_bytes(WEFT_DTYPE_INT8, 1, negative, &n), WEFT_E_INVAL);
  const int64_t most[] = { INT64_MAX };
  assert_err(weft_dtype_bytes(WEFT_DTYPE_INT16, 1, most, &n), WEFT_E_OVERFLOW);
  assert_err(weft_dtype_bytes(WEFT_DTYPE_COMPLEX128, 1, most, &n), WEFT_E_OVERFLOW);
  assert_int_equal(n, 15);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(names_go_both_ways),
    cmocka_unit_test(unknown_names_are_none),
    cmocka_unit_test(bytes_are_checked),
  };
  return cmocka_run_group_tests_name("transport.dtype", tests, NULL, NULL);
}
