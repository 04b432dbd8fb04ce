#define _GNU_SOURCE
#include "weft_test.h"

#include "weft/memory.h"

#include <stdlib.h>
#include <string.h>

static weft_memory *make(uint64_t max_bytes)
{
  const weft_memory_cuda_opts opts = {
    .size = sizeof opts,
    .device = { .size = sizeof opts.device, .cudart = WEFT_FAKE_CUDART, .device = 1 },
    .max_bytes = max_bytes
  };
  weft_memory *m = NULL;
  weft_why why = { 0 };
  if (weft_memory_cuda_create(&opts, &m, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  return m;
}

static void pieces_come_back_by_size(void **state)
{
  (void)state;
  weft_memory *m = make(0);
  weft_memory_stats st;
  weft_extent a, b, none;
  assert_int_equal(weft_memory_device(m), 1);
  assert_ok(weft_memory_reserve(m, 1 << 20, NULL));
  assert_ok(weft_memory_alloc(m, 0, &none, NULL));
  assert_null(none.ptr);
  weft_memory_free(m, &none);
  assert_ok(weft_memory_alloc(m, 1000, &a, NULL));
  assert_ok(weft_memory_alloc(m, 1000, &b, NULL));
  assert_ptr_not_equal(a.ptr, b.ptr);
  assert_int_not_equal(a.slab, b.slab);
  void *const first = a.ptr;
  weft_memory_free(m, &a);
  assert_ok(weft_memory_alloc(m, 1001, &a, NULL));
  assert_ptr_not_equal(a.ptr, first);
  weft_memory_stats_get(m, &st);
  assert_int_equal(st.extents, 2);
  assert_int_equal(st.used, 2001);
  assert_int_equal(st.backed, 3001);
  assert_int_equal(st.fresh, 3001);
  weft_extent c;
  assert_ok(weft_memory_alloc(m, 1000, &c, NULL));
  assert_ptr_equal(c.ptr, first);
  assert_int_not_equal(c.slab, 0);
  weft_memory_free(m, &a);
  weft_memory_free(m, &b);
  weft_memory_free(m, &c);
  weft_memory_trim(m, 2000);
  weft_memory_stats_get(m, &st);
  assert_true(st.backed <= 2000);
  weft_memory_trim(m, 0);
  weft_memory_stats_get(m, &st);
  assert_int_equal(st.backed, 0);
  uint64_t bytes = 1;
  assert_int_equal(weft_memory_slab_fd(m, 1, &bytes), -1);
  weft_memory_destroy(m);
}

static void bytes_are_written_and_read(void **state)
{
  (void)state;
  enum { N = (9 << 20) + 5 }; /* more than two blocks */
  weft_memory *m = make(0);
  weft_extent e;
  uint8_t *in = malloc(N), *out = malloc(N);
  assert_non_null(in);
  assert_non_null(out);
  for (size_t i = 0; i < N; i++) {
    in[i] = (uint8_t)(i * 13 + (i >> 12));
  }
  assert_ok(weft_memory_alloc(m, N, &e, NULL));
  assert_ok(weft_memory_write(m, e.ptr, in, N, NULL));
  assert_ok(weft_memory_read(m, out, e.ptr, N, NULL));
  assert_memory_equal(in, out, N);
  assert_ok(weft_memory_read(m, out, (char *)e.ptr + 77, 5, NULL));
  assert_memory_equal(in + 77, out, 5);
  weft_why why = { 0 };
  assert_err(weft_memory_read(m, out, (char *)e.ptr + 1, N, &why), WEFT_E_FAILED);
  weft_memory_free(m, &e);
  weft_memory_destroy(m);
  free(in);
  free(out);
}

static void no_room_is_an_error(void **state)
{
  (void)state;
  weft_memory *m = make(5000);
  weft_extent a, b;
  weft_why why = { 0 };
  assert_ok(weft_memory_alloc(m, 4000, &a, NULL));
  assert_err(weft_memory_alloc(m, 1001, &b, &why), WEFT_E_LIMIT);
  weft_memory_free(m, &a);
  /* What is kept goes when it is in the way. */
  assert_ok(weft_memory_alloc(m, 4999, &a, &why));
  weft_memory_free(m, &a);
  weft_memory_destroy(m);

  setenv("WEFT_FAKE_GPU_BYTES", "5000", 1);
  m = make(0);
  assert_ok(weft_memory_alloc(m, 3000, &a, NULL));
  assert_err(weft_memory_alloc(m, 3001, &b, &why), WEFT_E_NOMEM);
  assert_non_null(strstr(why.text, "device 1 has no 3001 bytes: 2000 of 5000 are free, "
                                   "weft holds 3000"));
  weft_memory_free(m, &a);
  assert_ok(weft_memory_alloc(m, 3001, &b, &why));
  weft_memory_free(m, &b);
  weft_memory_destroy(m);
  unsetenv("WEFT_FAKE_GPU_BYTES");
}

static void what_is_not_there_is_named(void **state)
{
  (void)state;
  weft_memory_cuda_opts opts = { .size = sizeof opts,
                                 .device = { .size = sizeof opts.device,
                                             .cudart = "/nowhere/libcudart.so" } };
  weft_memory *m = NULL;
  weft_why why = { 0 };
  assert_err(weft_memory_cuda_create(&opts, &m, &why), WEFT_E_NOTFOUND);
  assert_non_null(strstr(why.text, "/nowhere/libcudart.so"));
  opts.device.cudart = "libm.so.6";
  assert_err(weft_memory_cuda_create(&opts, &m, &why), WEFT_E_UNSUPPORTED);
  assert_non_null(strstr(why.text, "libm.so.6 has no cuda"));
  opts.device.cudart = WEFT_FAKE_CUDART;
  opts.device.device = 7;
  assert_err(weft_memory_cuda_create(&opts, &m, &why), WEFT_E_UNAVAIL);
  setenv("WEFT_FAKE_NO_DRIVER", "1", 1);
  assert_err(weft_memory_cuda_create(&opts, &m, &why), WEFT_E_UNAVAIL);
  assert_non_null(strstr(why.text, "no NVIDIA driver"));
  unsetenv("WEFT_FAKE_NO_DRIVER");

  weft_device_info info;
  weft_device_opts device = {
    .size = sizeof device, .cudart = WEFT_FAKE_CUDART, .nccl = WEFT_FAKE_NCCL, .device = 1
  };
  assert_ok(weft_device_probe(&device, true, &info, &why));
  assert_string_equal(info.cudart, "13.0 (libfakecudart.so), driver 13.0");
  assert_string_equal(info.nccl, "2.28.9 (libfakenccl.so)");
  assert_string_equal(info.name, "weft test double 1");
  assert_int_equal(strlen(info.uuid), 36);
  assert_int_equal(info.count, 2);
  device.nccl = WEFT_FAKE_CUDART;
  assert_err(weft_device_probe(&device, true, &info, &why), WEFT_E_UNSUPPORTED);

  int chosen = -1;
  assert_ok(weft_device_choose(1, 5, &chosen, &why));
  assert_int_equal(chosen, 0);
  assert_ok(weft_device_choose(4, 3, &chosen, &why));
  assert_int_equal(chosen, 3);
  assert_err(weft_device_choose(4, 4, &chosen, &why), WEFT_E_UNAVAIL);
}

/* The real libraries, where they are installed: every symbol that is needed is there, and
 * without a GPU they say so. */
static void real_libraries_are_taken(void **state)
{
  (void)state;
  const weft_device_opts device = { .size = sizeof device,
                                    .cudart = WEFT_REAL_CUDART,
                                    .nccl = WEFT_REAL_NCCL };
  if (device.cudart[0] == '\0' || device.nccl[0] == '\0') {
    skip();
  }
  weft_device_info info;
  weft_why why = { 0 };
  const weft_err err = weft_device_probe(&device, true, &info, &why);
  if (err == WEFT_OK) {
    assert_true(info.count > 0 && strlen(info.uuid) == 36 && info.nccl[0] == '2');
  } else {
    assert_int_equal(err, WEFT_E_UNAVAIL);
    assert_true(strstr(why.text, "no NVIDIA driver") != NULL ||
                strstr(why.text, "no GPU here") != NULL);
  }
}

static void a_cancelled_job_takes_and_gives_back_nothing(void **state)
{
  (void)state;
  weft_memory *m = make(0);
  weft_memory_stats st;
  weft_extent e;
  weft_why why = { 0 };
  atomic_bool cancel = false;
  m->cancel = &cancel;
  assert_ok(weft_memory_alloc(m, 1000, &e, NULL));
  weft_memory_free(m, &e);
  atomic_store(&cancel, true);
  assert_err(weft_memory_alloc(m, 1000, &e, &why), WEFT_E_CANCELLED);
  weft_memory_trim(m, 0);
  weft_memory_stats_get(m, &st);
  assert_int_equal(st.backed, 1000); /* for the next one */
  atomic_store(&cancel, false);
  assert_ok(weft_memory_alloc(m, 1000, &e, NULL));
  weft_memory_stats_get(m, &st);
  assert_int_equal(st.fresh, 1000);
  weft_memory_free(m, &e);
  atomic_store(&cancel, true);
  weft_memory_destroy(m); /* gives back all the same */
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(pieces_come_back_by_size),
    cmocka_unit_test(bytes_are_written_and_read),
    cmocka_unit_test(no_room_is_an_error),
    cmocka_unit_test(what_is_not_there_is_named),
    cmocka_unit_test(a_cancelled_job_takes_and_gives_back_nothing),
    cmocka_unit_test(real_libraries_are_taken),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
