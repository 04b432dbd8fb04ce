#define _GNU_SOURCE /* memfd_create */
#include "weft_test.h"

#include "weft/safetensors.h"
#include "weft_fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A file with this header and data_bytes of zeros; header_len SIZE_MAX = its real length.
 */
static int make_file(const char *header, uint64_t header_len, uint64_t data_bytes)
{
  const int fd = memfd_create("test", MFD_CLOEXEC);
  assert_true(fd >= 0);
  const size_t len = strlen(header);
  const uint64_t claimed = header_len == UINT64_MAX ? len : header_len;
  uint8_t le[8];
  for (int i = 0; i < 8; i++) {
    le[i] = (uint8_t)(claimed >> (8 * i));
  }
  assert_int_equal(pwrite(fd, le, 8, 0), 8);
  assert_int_equal(pwrite(fd, header, len, 8), len);
  assert_int_equal(ftruncate(fd, (off_t)(8 + len + data_bytes)), 0);
  return fd;
}

static void reads_a_header(void **state)
{
  (void)state;
  const int fd =
      make_file("{\"__metadata__\":{\"format\":\"pt\"},"
                "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[4,4]},"
                "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}  ",
                UINT64_MAX, 16);
  weft_safetensors *st = NULL;
  weft_why why = { 0 };
  if (weft_safetensors_read(fd, "t", &st, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  assert_int_equal(st->count, 3);
  assert_int_equal(st->data_bytes, 16);
  assert_string_equal(st->tensors[0].name, "scalar");
  assert_int_equal(st->tensors[0].ndim, 0);
  assert_int_equal(st->tensors[0].at, st->data_at);
  assert_string_equal(st->tensors[1].name, "empty");
  assert_int_equal(st->tensors[1].bytes, 0);
  const weft_st_tensor *b = weft_safetensors_find(st, "b");
  assert_int_equal(b->dtype, WEFT_DTYPE_BFLOAT16);
  assert_int_equal(b->shape[1], 3);
  assert_int_equal(b->at, st->data_at + 4);
  assert_null(weft_safetensors_find(st, "c"));
  assert_string_equal(weft_json_str(weft_json_get(st->metadata, "format")), "pt");
  weft_safetensors_free(st);
  assert_int_equal(close(fd), 0);
}

static void an_empty_set_is_fine(void **state)
{
  (void)state;
  const int fd = make_file("{}", UINT64_MAX, 0);
  weft_safetensors *st = NULL;
  assert_ok(weft_safetensors_read(fd, "t", &st, NULL));
  assert_int_equal(st->count, 0);
  weft_safetensors_free(st);
  assert_int_equal(close(fd), 0);
}

#define T(name, dtype, shape, offsets)                                                   \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets  \
  "}"

static const struct {
  const char *header;
  uint64_t header_len, data;
  weft_err err;
  const char *says;
} bad[] = {
  { "{}", 100, 0, WEFT_E_TRUNCATED, "claims a header of 100 bytes but has 10" },
  { "{}", (UINT64_C(100) << 20) + 1, 0, WEFT_E_LIMIT, "claims a header of 104857601" },
  { "{}", UINT64_MAX - 1, 0, WEFT_E_LIMIT, "not a safetensors file" },
  { "", 0, 0, WEFT_E_PROTO, "does not begin with '{'" },
  { " {}", UINT64_MAX, 0, WEFT_E_PROTO, "does not begin with '{'" },
  { "{\"a\":", UINT64_MAX, 0, WEFT_E_PROTO, "the text ends inside a value" },
  { "{}x", UINT64_MAX, 0, WEFT_E_PROTO, "text behind the value" },
  { "{\"a\":1}", UINT64_MAX, 0, WEFT_E_PROTO, "'a': not an object" },
  { "{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", UINT64_MAX,
    8, WEFT_E_PROTO, "occurs twice" },
  { "{" T("a", "F99", "[1]", "[0,4]") "}", UINT64_MAX, 4, WEFT_E_UNSUPPORTED,
    "'a': unknown dtype 'F99'" },
  { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", UINT64_MAX, 4, WEFT_E_PROTO,
    "unknown dtype '(none)'" },
  { "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", UINT64_MAX, 4, WEFT_E_PROTO,
    "no shape" },
  { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", UINT64_MAX, 4, WEFT_E_PROTO,
    "bad data_offsets" },
  { "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
    UINT64_MAX, 4, WEFT_E_PROTO, "repeated 'dtype'" },
  { "{" T("a", "F32", "[-1]", "[0,4]") "}", UINT64_MAX, 4, WEFT_E_PROTO,
    "bad dimension 0" },
  { "{" T("a", "F32", "[1.5]", "[0,4]") "}", UINT64_MAX, 4, WEFT_E_PROTO,
    "bad dimension 0" },
  { "{" T("a", "F32", "[9223372036854775808]", "[0,4]") "}", UINT64_MAX, 4, WEFT_E_PROTO,
    "bad dimension 0" },
  { "{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", UINT64_MAX, 4,
    WEFT_E_UNSUPPORTED, "9 dimensions" },
  { "{" T("a", "F32", "[4611686018427387904,4]", "[0,4]") "}", UINT64_MAX, 4,
    WEFT_E_OVERFLOW, "too large" },
  { "{" T("a", "F32", "[2]", "[0,4]") "}", UINT64_MAX, 4, WEFT_E_INVAL,
    "has 4 bytes, its shape and dtype need 8" },
  { "{" T("a", "F32", "[1]", "[4,0]") "}", UINT64_MAX, 4, WEFT_E_PROTO,
    "bad data_offsets" },
  { "{" T("a", "F32", "[1]", "[-4,0]") "}", UINT64_MAX, 4, WEFT_E_PROTO,
    "bad data_offsets" },
  { "{" T("a", "F32", "[1]", "[0,4,8]") "}", UINT64_MAX, 4, WEFT_E_PROTO,
    "bad data_offsets" },
  { "{" T("a", "F32", "[1]", "[0,18446744073709551620]") "}", UINT64_MAX, 4, WEFT_E_PROTO,
    "bad data_offsets" },
  { "{" T("a", "F32", "[1]", "[0,4]") "}", UINT64_MAX, 3, WEFT_E_TRUNCATED,
    "'a' ends at byte 4 of the data, the file has 3" },
  { "{" T("a", "F32", "[1]", "[0,4]") "}", UINT64_MAX, 5, WEFT_E_TRAILING,
    "1 bytes behind the last tensor" },
  { "{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[2,6]") "}", UINT64_MAX,
    6, WEFT_E_INVAL, "'b' overlaps 'a'" },
  { "{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[0,4]") "}", UINT64_MAX,
    4, WEFT_E_INVAL, "'b' overlaps 'a'" },
  { "{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[5,9]") "}", UINT64_MAX,
    9, WEFT_E_INVAL, "'b' leaves a hole behind 'a'" },
  { "{" T("a", "F32", "[1]", "[1,5]") "}", UINT64_MAX, 5, WEFT_E_INVAL,
    "leaves a hole behind 'the header'" },
  { "{\"__metadata__\":{\"a\":1}}", UINT64_MAX, 0, WEFT_E_PROTO, "__metadata__" },
  { "{\"__metadata__\":[]}", UINT64_MAX, 0, WEFT_E_PROTO, "__metadata__" },
};

static void refuses_by_name(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    const int fd = make_file(bad[i].header, bad[i].header_len, bad[i].data);
    weft_safetensors *st = NULL;
    weft_why why = { 0 };
    const weft_err err = weft_safetensors_read(fd, "/m.safetensors", &st, &why);
    if (err != bad[i].err || strstr(why.text, bad[i].says) == NULL ||
        strstr(why.text, "/m.safetensors: ") != why.text) {
      fail_msg("%s: %s: %s", bad[i].header, weft_err_name(err), why.text);
    }
    assert_null(st);
    assert_int_equal(close(fd), 0);
  }
}

static void every_prefix_is_refused(void **state)
{
  (void)state;
  const char header[] =
      "{" T("a", "F32", "[1]", "[0,4]") "," T("b", "U8", "[2]", "[4,6]") "}";
  const int fd = make_file(header, UINT64_MAX, 6);
  for (size_t n = 8 + sizeof header - 1 + 6; n-- > 0;) {
    assert_int_equal(ftruncate(fd, (off_t)n), 0);
    weft_safetensors *st = NULL;
    assert_err(weft_safetensors_read(fd, "t", &st, NULL), WEFT_E_TRUNCATED);
  }
  assert_int_equal(close(fd), 0);
}

static void offsets_beyond_4_gib(void **state)
{
  (void)state;
  const int fd = make_file("{" T("big", "U8", "[5368709120]", "[0,5368709120]") "," T(
                               "tail", "F32", "[1]", "[5368709120,5368709124]") "}",
                           UINT64_MAX, UINT64_C(5368709124));
  weft_safetensors *st = NULL;
  assert_ok(weft_safetensors_read(fd, "t", &st, NULL));
  assert_int_equal(weft_safetensors_find(st, "tail")->at,
                   st->data_at + UINT64_C(5368709120));
  weft_safetensors_free(st);
  assert_int_equal(close(fd), 0);
}

static void ten_thousand_tensors_written_and_read(void **state)
{
  (void)state;
  enum { N = 10000 };
  weft_st_spec *specs = calloc(N, sizeof *specs);
  char(*names)[64] = calloc(N, sizeof *names);
  assert_true(specs != NULL && names != NULL);
  const int64_t shape[] = { 2, 2 };
  for (int i = 0; i < N; i++) {
    (void)snprintf(names[i], sizeof names[i], "model.layers.%d.mlp.down_proj.weight", i);
    specs[i] = (weft_st_spec){ names[i], WEFT_DTYPE_BFLOAT16, (unsigned)(i % 3), shape };
  }
  const int fd = memfd_create("test", MFD_CLOEXEC);
  weft_st_writer *w = NULL;
  assert_ok(weft_st_writer_create(fd, specs, N, &w, NULL));
  const uint8_t data[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
  assert_err(weft_st_writer_end(w, NULL), WEFT_E_TRUNCATED);
  for (int i = 0; i < N; i++) {
    const uint64_t bytes = i % 3 == 0 ? 2 : i % 3 == 1 ? 4 : 8;
    assert_ok(weft_st_writer_put(w, data, bytes, NULL));
  }
  assert_ok(weft_st_writer_end(w, NULL));
  assert_err(weft_st_writer_put(w, data, 1, NULL), WEFT_E_OVERFLOW);
  weft_st_writer_destroy(w);
  weft_safetensors *st = NULL;
  assert_ok(weft_safetensors_read(fd, "t", &st, NULL));
  assert_int_equal(st->count, N);
  assert_int_equal(st->data_at % 8, 0);
  for (int i = 0; i < N; i++) {
    assert_string_equal(st->tensors[i].name, names[i]);
    assert_ptr_equal(weft_safetensors_find(st, names[i]), &st->tensors[i]);
  }
  weft_safetensors_free(st);
  free(specs);
  free(names);
  assert_int_equal(close(fd), 0);
}

static void the_writer_refuses_what_has_no_name(void **state)
{
  (void)state;
  const weft_st_spec spec = { "a", WEFT_DTYPE_COMPLEX128, 0, NULL };
  const int fd = memfd_create("test", MFD_CLOEXEC);
  weft_st_writer *w = NULL;
  assert_err(weft_st_writer_create(fd, &spec, 1, &w, NULL), WEFT_E_UNSUPPORTED);
  assert_int_equal(close(fd), 0);
}

static void each_failed_allocation_is_an_error(void **state)
{
  (void)state;
  const int fd = make_file("{" T("a", "F32", "[1]", "[0,4]") "}", UINT64_MAX, 4);
  FOR_EACH_FAILURE
  {
    weft_safetensors *st = NULL;
    const weft_err err = weft_safetensors_read(fd, "t", &st, NULL);
    assert_int_equal(err, fail_hit ? WEFT_E_NOMEM : WEFT_OK);
    weft_safetensors_free(st);
    END_UNLESS_FAILED
  }
  assert_int_equal(close(fd), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(reads_a_header),
    cmocka_unit_test(an_empty_set_is_fine),
    cmocka_unit_test(refuses_by_name),
    cmocka_unit_test(every_prefix_is_refused),
    cmocka_unit_test(offsets_beyond_4_gib),
    cmocka_unit_test(ten_thousand_tensors_written_and_read),
    cmocka_unit_test(the_writer_refuses_what_has_no_name),
    cmocka_unit_test(each_failed_allocation_is_an_error),
  };
  return cmocka_run_group_tests_name("transport.safetensors", tests, NULL, NULL);
}
