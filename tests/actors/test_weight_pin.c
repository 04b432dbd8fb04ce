/* The two races of a pin, made to happen: a whole commit runs inside the window. */
#include "weft_test.h"

#include "weft/store.h"

static void in_window(weft_store *store);
#define PIN_WINDOW(store) in_window(store)
/* NOLINTNEXTLINE(bugprone-suspicious-include) */
#include "weight_pin.c" /* in place of the library's */

static unsigned window_commits; /* how many to run in the next window */
static uint64_t window_number;
static unsigned window_skip;             /* windows to pass by before that */
static const weft_snapshot *window_held; /* goes in the window, first of all */

static weft_err fake_alloc(weft_memory *m, uint64_t bytes, weft_extent *out,
                           weft_why *why)
{
  (void)m;
  (void)why;
  *out = (weft_extent){ .bytes = bytes, .ptr = malloc(bytes) };
  return out->ptr ? WEFT_OK : WEFT_E_NOMEM;
}

static void fake_free(weft_memory *m, const weft_extent *extent)
{
  (void)m;
  free(extent->ptr);
}

static const weft_memory_ops fake_ops = { .alloc = fake_alloc, .free = fake_free };
static weft_memory memory = { .ops = &fake_ops };

static void commit(weft_store *store, uint64_t n)
{
  const weft_tensor want = { .name = "t", .dtype = "uint64", .bytes = sizeof n };
  const uint64_t digest[2] = { n, n };
  const weft_snapshot *snapshot;
  weft_extent extent;
  wefti_entry entry;
  assert_ok(weft_memory_alloc(&memory, sizeof n, &extent, NULL));
  memcpy(extent.ptr, &n, sizeof n);
  assert_ok(wefti_cell_create(&want, &memory, &extent, &entry));
  assert_ok(wefti_store_install(store, n, &entry, 1, digest, &snapshot));
  assert_ok(wefti_store_publish(store, n, n));
  wefti_cell_unref(entry.cell);
  wefti_store_reap(store);
}

static void in_window(weft_store *store)
{
  if (window_skip > 0) {
    window_skip--;
    return;
  }
  const unsigned commits = window_commits;
  window_commits = 0; /* once */
  if (window_held) {
    weft_store_unpin(store, window_held);
    window_held = NULL;
    wefti_store_reap(store);
  }
  for (unsigned i = 0; i < commits; i++) {
    commit(store, ++window_number);
  }
}

static weft_store *begin(void)
{
  const weft_store_opts opts = { .size = sizeof opts, .snapshots_max = 2 };
  weft_store *store = NULL;
  assert_ok(weft_store_create(&opts, &store));
  window_number = 1;
  commit(store, 1);
  return store;
}

static void check_flat(weft_store *store)
{
  wefti_store_state st;
  wefti_store_reap(store);
  wefti_store_state_get(store, &st);
  assert_int_equal(st.readers, 0);
  assert_int_equal(st.snapshots, 1);
  weft_store_destroy(store);
}

/* One commit: the slot is free again.  Two: the slot holds another snapshot.  Three,
 * four: the same with the slots the other way round. */
static void the_default_is_read_again_after_a_commit(void **state)
{
  (void)state;
  for (unsigned commits = 1; commits <= 4; commits++) {
    weft_store *store = begin();
    const weft_snapshot *s = NULL;
    window_commits = commits;
    assert_ok(weft_store_pin(store, 0, &s));
    assert_int_equal(s->weights_sequence, 1 + commits);
    uint64_t value;
    memcpy(&value, s->tensors[0].data, sizeof value);
    assert_int_equal(value, 1 + commits);
    weft_store_unpin(store, s);
    check_flat(store);
  }
}

/* A number that was the default a moment ago, and one that only a reader kept. */
static void a_number_that_went_meanwhile_is_gone(void **state)
{
  (void)state;
  for (unsigned kept = 0; kept < 2; kept++) {
    for (unsigned commits = 1; commits <= 4; commits++) {
      weft_store *store = begin();
      const weft_snapshot *s = NULL;
      if (kept) {
        assert_ok(weft_store_pin(store, 1, &window_held));
        commit(store, ++window_number);
        window_skip = 1; /* the one about the default */
      }
      window_commits = commits;
      assert_err(weft_store_pin(store, 1, &s), WEFT_E_GONE);
      assert_null(s);
      assert_int_equal(window_commits, 0); /* it did run */
      check_flat(store);
    }
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_default_is_read_again_after_a_commit),
    cmocka_unit_test(a_number_that_went_meanwhile_is_gone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
