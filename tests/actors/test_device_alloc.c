/* Every allocation of a whole session fails once: the live set, its bytes and the memory
 * are as before, and the next session works. */
#define _GNU_SOURCE /* mkdtemp */
#include "device_update.h"
#include "weft_fail.h"

enum { BYTES = 500, TIMES = 2 };

static void write_filled(const char *path, uint8_t fill)
{
  const spec specs[3] = { { "a", WEFT_DTYPE_UINT8, 2, { 5, 100 }, fill },
                          { "b", WEFT_DTYPE_UINT8, 2, { 5, 100 }, fill },
                          { "c", WEFT_DTYPE_UINT8, 2, { 5, 100 }, fill } };
  write_file(path, specs, 3);
}

static void check_live(wefti_device *device, uint8_t fill, uint64_t extents)
{
  const weft_snapshot *s;
  assert_ok(weft_store_pin(device->store, 0, &s));
  assert_int_equal(s->tensor_count, 3);
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(((const uint8_t *)s->tensors[i].data)[0], fill);
    assert_int_equal(((const uint8_t *)s->tensors[i].data)[BYTES - 1], fill);
  }
  weft_store_unpin(device->store, s);
  weft_memory_stats st;
  wefti_store_reap(device->store);
  weft_memory_stats_get(device->memory, &st);
  assert_int_equal(st.extents, extents);
}

/* A device is made whole or not at all, its manifest too. */
static void make_each_failure(const wefti_device_opts *opts)
{
  FOR_EACH_FAILURE
  {
    wefti_device *device = NULL;
    weft_why why = { 0 };
    const weft_err err = wefti_device_create(opts, &device, &why);
    fail_countdown = 0;
    assert_true((err == WEFT_OK) == (device != NULL));
    assert_true(err == WEFT_OK || why.text[0] != '\0');
    wefti_device_destroy(device);
    END_UNLESS_FAILED
  }
}

/* manifest: its text, or NULL. */
static void run_out_of_memory(const char *manifest, uint64_t extents)
{
  char list[PATH_LEN];
  file_update u;
  wefti_device *device;
  const wefti_device_opts opts = { .size = sizeof opts,
                                   .manifest = manifest ? list : NULL };
  file_update_make(&u);
  (void)snprintf(list, sizeof list, "%.100s/m", u.dir);
  if (manifest) {
    FILE *file = fopen(list, "we");
    assert_non_null(file);
    assert_true(fputs(manifest, file) >= 0);
    assert_int_equal(fclose(file), 0);
    make_each_failure(&opts);
  }
  assert_ok(wefti_device_create(&opts, &device, NULL));
  write_filled(u.path, 1);
  assert_ok(file_update_run(&u, device, 1, TIMES));
  assert_ok(wefti_store_publish(device->store, 1, 1));
  check_live(device, 1, extents);
  write_filled(u.path, 2);
  uint64_t epoch = 2;
  FOR_EACH_FAILURE
  {
    const weft_err err = file_update_run(&u, device, epoch, TIMES);
    fail_countdown = 0;
    if (err != WEFT_OK) {
      check_live(device, 1, extents);
      assert_err(wefti_store_publish(device->store, epoch, epoch), WEFT_E_STATE);
    } else {
      wefti_store_drop(device->store, epoch); /* one that was not needed */
    }
    epoch++;
    END_UNLESS_FAILED
  }
  assert_true(epoch > 12); /* it did meet failures */
  assert_ok(file_update_run(&u, device, epoch, TIMES));
  assert_ok(wefti_store_publish(device->store, epoch, epoch));
  check_live(device, 2, extents);
  (void)unlink(list);
  file_update_end(&u);
  wefti_device_destroy(device);
}

static void a_session_that_runs_out_of_memory_changes_nothing(void **state)
{
  (void)state;
  run_out_of_memory(NULL, 3);
}

static void nor_does_one_with_tied_tensors(void **state)
{
  (void)state;
  run_out_of_memory("{\"names\":[\"a\",\"b\",\"c\"],"
                    "\"dtypes\":[\"uint8\",\"uint8\",\"uint8\"],"
                    "\"shapes\":[[5,100],[5,100],[5,100]],\"tied\":[[\"a\",\"c\"]]}",
                    2);
}

static void questions_and_reset_fail_cleanly(void **state)
{
  (void)state;
  const weft_tensor want = { .name = "t", .dtype = "uint8", .bytes = 1 };
  const uint64_t digest[2] = { 1, 1 };
  const weft_snapshot *s;
  weft_extent extent;
  wefti_entry entry;
  wefti_device *device;
  const wefti_device_opts opts = { .size = sizeof opts };
  assert_ok(wefti_device_create(&opts, &device, NULL));
  assert_ok(weft_memory_alloc(device->memory, 1, &extent, NULL));
  *(uint8_t *)extent.ptr = 7;
  assert_ok(wefti_cell_create(&want, device->memory, &extent, &entry));
  assert_ok(wefti_store_install(device->store, 1, &entry, 1, digest, &s));
  assert_ok(wefti_store_publish(device->store, 1, 1));
  wefti_cell_unref(entry.cell);
  weft_err (*const asks[])(wefti_device *, weft_buf **,
                           weft_why *) = { wefti_device_weights, wefti_device_reset };
  for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
    FOR_EACH_FAILURE
    {
      weft_buf *out = NULL;
      const weft_err err = asks[i](device, &out, NULL);
      fail_countdown = 0;
      assert_true((err == WEFT_OK) == (out != NULL));
      weft_buf_unref(out);
      END_UNLESS_FAILED
    }
  }
  wefti_store_state st;
  wefti_store_reap(device->store);
  wefti_store_state_get(device->store, &st);
  assert_int_equal(st.snapshots, 1);
  assert_int_equal(st.weights_sequence, 1);
  wefti_device_destroy(device);
}

static void a_device_is_created_whole_or_not_at_all(void **state)
{
  (void)state;
  const wefti_device_opts opts = { .size = sizeof opts, .tcp_allow = "a,b" };
  FOR_EACH_FAILURE
  {
    wefti_device *device = NULL;
    const weft_err err = wefti_device_create(&opts, &device, NULL);
    fail_countdown = 0;
    assert_true((err == WEFT_OK) == (device != NULL));
    wefti_device_destroy(device);
    END_UNLESS_FAILED
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_session_that_runs_out_of_memory_changes_nothing),
    cmocka_unit_test(nor_does_one_with_tied_tensors),
    cmocka_unit_test(questions_and_reset_fail_cleanly),
    cmocka_unit_test(a_device_is_created_whole_or_not_at_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
