#include "weft_test.h"

#include "extent_map.h"
#include "weft_fail.h"

#include <stdlib.h>
#include <string.h>

enum { UNITS = 256, SLABS = 3, PIECES = 64 };

static uint32_t next_random(uint32_t *seed)
{
  *seed = *seed * 1103515245u + 12345u;
  return *seed >> 16;
}

/* First fit by brute force over a table of units. */
static bool model_take(bool used[SLABS][UNITS], unsigned n, unsigned *slab, unsigned *at)
{
  for (unsigned s = 0; s < SLABS; s++) {
    unsigned run = 0;
    for (unsigned u = 0; u < UNITS; u++) {
      run = used[s][u] ? 0 : run + 1;
      if (run == n) {
        *slab = s;
        *at = u + 1 - n;
        return true;
      }
    }
  }
  return false;
}

static void agrees_with_a_simple_model(void **state)
{
  (void)state;
  for (uint32_t seed = 1; seed <= 20; seed++) {
    wefti_extent_map m = { 0 };
    bool used[SLABS][UNITS] = { { false } };
    struct {
      uint32_t slab;
      uint64_t at, n;
    } held[PIECES] = { { 0, 0, 0 } };
    uint32_t rnd = seed;
    for (uint32_t s = 1; s <= SLABS; s++) {
      assert_ok(wefti_extent_add_slab(&m, s, UNITS));
    }
    for (int step = 0; step < 2000; step++) {
      const unsigned i = next_random(&rnd) % PIECES;
      if (step % 11 == 0) {
        wefti_extent_trim(&m);
        assert_int_equal(m.nodes, m.pieces + m.slabs);
      }
      if (held[i].n > 0) {
        wefti_extent_return(&m, held[i].slab, held[i].at, held[i].n);
        memset(&used[held[i].slab - 1][held[i].at], 0, held[i].n);
        held[i].n = 0;
        continue;
      }
      const unsigned n = 1 + next_random(&rnd) % (step % 7 == 0 ? 200 : 20);
      unsigned slab = 0;
      unsigned at = 0;
      const bool want = model_take(used, n, &slab, &at);
      assert_err(wefti_extent_take(&m, n, &held[i].slab, &held[i].at),
                 want ? WEFT_OK : WEFT_E_NOTFOUND);
      if (want) {
        assert_int_equal(held[i].slab, slab + 1);
        assert_int_equal(held[i].at, at);
        held[i].n = n;
        memset(&used[slab][at], 1, n);
      }
    }
    for (unsigned i = 0; i < PIECES; i++) {
      if (held[i].n > 0) {
        wefti_extent_return(&m, held[i].slab, held[i].at, held[i].n);
      }
    }
    for (uint32_t s = 1; s <= SLABS; s++) { /* all has grown together again */
      const wefti_free_node *n = wefti_extent_next(&m, s, 0);
      assert_int_equal(n->slab, s);
      assert_int_equal(n->bytes, UNITS);
      wefti_extent_remove_slab(&m, s);
    }
    assert_null(m.root);
    wefti_extent_fini(&m);
  }
}

static void each_failed_allocation_leaves_it_whole(void **state)
{
  (void)state;
  FOR_EACH_FAILURE
  {
    wefti_extent_map m = { 0 };
    weft_err err = wefti_extent_add_slab(&m, 1, 10);
    uint32_t slab[3] = { 0, 0, 0 };
    uint64_t at[3] = { 0, 0, 0 };
    int taken = 0;
    while (err == WEFT_OK && taken < 3) {
      err = wefti_extent_take(&m, 2, &slab[taken], &at[taken]);
      taken += err == WEFT_OK;
    }
    assert_int_equal(err, fail_hit ? WEFT_E_NOMEM : WEFT_OK);
    fail_countdown = 1; /* returning must not allocate */
    while (taken-- > 0) {
      wefti_extent_return(&m, slab[taken], at[taken], 2);
    }
    assert_int_equal(fail_countdown, 1);
    assert_int_equal(m.pieces, 0);
    wefti_extent_fini(&m);
    END_UNLESS_FAILED
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(agrees_with_a_simple_model),
    cmocka_unit_test(each_failed_allocation_leaves_it_whole),
  };
  return cmocka_run_group_tests_name("transport.extent_map", tests, NULL, NULL);
}
