/* Plans of tensor parallel slices, and where a slice lies, against a walk over every
 * element. */
#define _GNU_SOURCE
#include "weft_test.h"

#include "slices.h"
#include "weft_fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char rules[] = "{\"layers.0.*\":null,\"layers.*.up\":0,\"*.down\":1,"
                            "\"head\":0,\"h*\":2}";

static void the_first_pattern_that_fits_counts(void **state)
{
  (void)state;
  static const struct {
    const char *name;
    int dim; /* -1 = whole */
  } want[] = { { "layers.0.up", -1 },  { "layers.1.up", 0 },
               { "layers.1.x.up", 0 }, { "layers.1.down", 1 },
               { "head", 0 },          { "heads", 2 },
               { "embed", -1 },        { "", -1 } };
  weft_tp_plan *plan = NULL;
  assert_ok(weft_tp_plan_parse(rules, sizeof rules - 1, &plan, NULL));
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    unsigned dim = 99;
    const bool found = weft_tp_plan_find(plan, want[i].name, &dim);
    assert_int_equal(found ? (int)dim : -1, want[i].dim);
  }
  weft_tp_plan_free(plan);
}

static void plans_are_checked(void **state)
{
  (void)state;
  static const struct {
    const char *text, *says;
  } bad[] = {
    { "[]", "TP plan: not an object" },
    { "{\"a\":-1}", "TP plan: 'a' is not a dimension (0 to 7) or null" },
    { "{\"a\":8}", "'a' is not a dimension" },
    { "{\"a\":\"0\"}", "'a' is not a dimension" },
    { "{\"a\":1.5}", "'a' is not a dimension" },
    { "{\"a\":0", "TP plan: " },
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    weft_tp_plan *plan = NULL;
    weft_why why = { 0 };
    assert_err(weft_tp_plan_parse(bad[i].text, strlen(bad[i].text), &plan, &why),
               WEFT_E_INVAL);
    assert_null(plan);
    assert_non_null(strstr(why.text, bad[i].says));
  }
  weft_tp_plan *plan = NULL;
  weft_why why = { 0 };
  assert_err(weft_tp_plan_load("/nowhere/plan.json", &plan, &why), WEFT_E_NOTFOUND);
  assert_non_null(strstr(why.text, "TP plan /nowhere/plan.json"));
  FOR_EACH_FAILURE
  {
    plan = NULL;
    const weft_err err = weft_tp_plan_parse(rules, sizeof rules - 1, &plan, NULL);
    assert_true((err == WEFT_OK) == (plan != NULL));
    assert_true(err == WEFT_OK || err == WEFT_E_NOMEM);
    weft_tp_plan_free(plan);
    END_UNLESS_FAILED
  }
}

static void a_plan_is_read_from_a_file(void **state)
{
  (void)state;
  char path[] = "/tmp/weft-tp-XXXXXX";
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, rules, sizeof rules - 1), sizeof rules - 1);
  weft_tp_plan *plan = NULL;
  unsigned dim;
  assert_ok(weft_tp_plan_load(path, &plan, NULL));
  assert_true(weft_tp_plan_find(plan, "x.down", &dim) && dim == 1);
  weft_tp_plan_free(plan);
  assert_int_equal(ftruncate(fd, (1 << 20) + 1), 0);
  assert_err(weft_tp_plan_load(path, &plan, NULL), WEFT_E_LIMIT);
  (void)close(fd);
  (void)unlink(path);
}

/* All elements of the whole in order; those of the slice must be where cut says. */
static void walk(const int64_t *shape, unsigned ndim, unsigned dim, unsigned of)
{
  enum { WIDTH = 2 };
  uint64_t all = 1;
  for (unsigned d = 0; d < ndim; d++) {
    all *= (uint64_t)shape[d];
  }
  for (unsigned index = 0; index < of; index++) {
    const weft_plan_tensor t = { .name = "t",
                                 .full = shape,
                                 .ndim = ndim,
                                 .full_bytes = all * WIDTH,
                                 .slice_dim = dim,
                                 .slice_index = index,
                                 .slice_of = of };
    const wefti_cut c = wefti_slice_cut(&t);
    uint64_t inner = 1, seen = 0;
    for (unsigned d = dim + 1; d < ndim; d++) {
      inner *= (uint64_t)shape[d];
    }
    const uint64_t part = (uint64_t)shape[dim] / of;
    for (uint64_t e = 0; e < all; e++) {
      if (e / inner % (uint64_t)shape[dim] / part == index) {
        const uint64_t row = seen / c.width, in_row = seen % c.width;
        assert_int_equal(row * c.pitch + c.offset + in_row, e * WIDTH);
        seen += WIDTH;
      }
    }
    assert_int_equal(seen, c.width * c.rows);
  }
}

static void slices_lie_where_their_elements_are(void **state)
{
  (void)state;
  static const int64_t shape[] = { 4, 6, 2, 8 };
  for (unsigned dim = 0; dim < 4; dim++) {
    walk(shape, 4, dim, 2);
  }
  walk(shape, 4, 0, 4);
  walk(shape, 4, 1, 3);
  walk(shape + 1, 1, 0, 6);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_first_pattern_that_fits_counts),
    cmocka_unit_test(plans_are_checked),
    cmocka_unit_test(a_plan_is_read_from_a_file),
    cmocka_unit_test(slices_lie_where_their_elements_are),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
