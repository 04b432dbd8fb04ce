/* The order of a patch's indices, and what is wrong with them. */
#include "weft_test.h"

#include "sparse_order.h"

#include <stdlib.h>
#include <string.h>

static weft_err count_ticks(void *arg, weft_why *why)
{
  (void)why;
  (*(unsigned *)arg)++;
  return WEFT_OK;
}

static weft_err leave_off(void *arg, weft_why *why)
{
  (void)arg;
  return weft_whyf(why, WEFT_E_CANCELLED, "cancelled");
}

static void indices_are_put_in_order(void **state)
{
  (void)state;
  wefti_order o = { 0 };
  unsigned ticks = 0;
  static const int32_t sorted[] = { 0, 1, 7, INT32_MAX };
  assert_ok(wefti_order_patch(&o, "t", sorted, 4, UINT64_C(1) << 31, count_ticks, &ticks,
                              NULL));
  assert_true(o.sorted && o.keys == NULL);
  for (size_t i = 0; i < 4; i++) {
    assert_int_equal(wefti_order_at(&o, i), i);
  }
  assert_ok(wefti_order_patch(&o, "t", sorted, 0, 0, count_ticks, &ticks, NULL));
  /* A permutation: i * odd, modulo a power of two; every digit takes part. */
  enum { N = 1 << 16 };
  int32_t *many = malloc(N * sizeof *many);
  assert_non_null(many);
  for (uint32_t i = 0; i < N; i++) {
    many[i] = (int32_t)((i * UINT32_C(40503) % N) << 15 | (i & 0x7fff));
  }
  ticks = 0;
  assert_ok(
      wefti_order_patch(&o, "t", many, N, UINT64_C(1) << 31, count_ticks, &ticks, NULL));
  assert_true(!o.sorted && ticks > 0);
  for (size_t i = 1; i < N; i++) {
    assert_true(many[wefti_order_at(&o, i - 1)] < many[wefti_order_at(&o, i)]);
  }
  assert_err(
      wefti_order_patch(&o, "t", many, N, UINT64_C(1) << 31, leave_off, NULL, NULL),
      WEFT_E_CANCELLED);
  free(many);
  wefti_order_free(&o);
}

static void wrong_indices_are_named(void **state)
{
  (void)state;
  static const struct {
    int32_t index[4];
    const char *text;
  } bad[] = {
    { { 0, 3, -1, 2 }, "patch of 'layer.w': index -1 (at 2) is negative" },
    { { INT32_MIN, 3, 1, 2 }, "index -2147483648 (at 0) is negative" },
    { { 0, 1, 2, 10 }, "index 10 (at 3), the tensor has 10 elements" },
    { { INT32_MAX, 1, 2, 3 }, "index 2147483647 (at 0), the tensor has 10 elements" },
    { { 4, 4, 5, 6 }, "patch of 'layer.w': index 4 is given twice" },
    { { 9, 0, 3, 9 }, "index 9 is given twice" },
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    wefti_order o = { 0 };
    unsigned ticks = 0;
    weft_why why = { 0 };
    assert_err(
        wefti_order_patch(&o, "layer.w", bad[i].index, 4, 10, count_ticks, &ticks, &why),
        WEFT_E_INVAL);
    if (strstr(why.text, bad[i].text) == NULL) {
      fail_msg("%s, want %s", why.text, bad[i].text);
    }
    wefti_order_free(&o);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(indices_are_put_in_order),
    cmocka_unit_test(wrong_indices_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
