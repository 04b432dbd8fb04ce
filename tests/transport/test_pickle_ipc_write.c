#include "weft_test.h"

#include "weft/pickle.h"
#include "weft_fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UUID_0 "8e1b2f60-1111-2222-3333-444455556666"
#define UUID_1 "8e1b2f60-1111-2222-3333-444455556667"

enum { TENSORS = 5, GPUS = 2 };

/* Numbers at every edge of how pickle writes them. */
static void fill(weft_ipc_tensor *t, size_t tensor, size_t gpu)
{
  static const uint64_t sizes[TENSORS] = { 255, 256, 0, 32768, (UINT64_C(1) << 31) + 1 };
  static const uint64_t at[TENSORS] = { 0, 127, 0, 128, INT64_MAX / 2 };
  *t = (weft_ipc_tensor){ .dtype = tensor == 3 ? WEFT_DTYPE_BFLOAT16 : WEFT_DTYPE_UINT8,
                          .ndim = tensor == 3 ? 3 : 1,
                          .shape = { (int64_t)sizes[tensor] },
                          .stride = { 1 },
                          .contiguous = true,
                          .bytes = sizes[tensor],
                          .storage_at = at[tensor],
                          .storage_bytes = sizes[tensor] };
  if (tensor == 3) {
    memcpy(t->shape, (const int64_t[]){ 2, 256, 32 }, 3 * sizeof(int64_t));
    memcpy(t->stride, (const int64_t[]){ 8192, 32, 1 }, 3 * sizeof(int64_t));
  }
  if (sizes[tensor] > 0) {
    t->has_handle = true;
    memset(t->handle, (int)(16 * gpu + tensor + 1), sizeof t->handle);
    (void)snprintf(t->counter, sizeof t->counter, "/torch_12_%zu_3", gpu);
    t->counter_slot = (unsigned)(tensor * 2499);
  }
  if (tensor == 1) {
    t->has_event = t->event_sync = true;
    memset(t->event, 0xEE, sizeof t->event);
  }
}

static void same_tensor(const weft_ipc_tensor *a, const weft_ipc_tensor *b)
{
  assert_int_equal(a->dtype, b->dtype);
  assert_int_equal(a->ndim, b->ndim);
  assert_memory_equal(a->shape, b->shape, sizeof a->shape);
  assert_memory_equal(a->stride, b->stride, sizeof a->stride);
  assert_true(a->contiguous);
  assert_int_equal(a->bytes, b->bytes);
  assert_int_equal(a->at, b->at);
  assert_int_equal(a->has_handle, b->has_handle);
  assert_memory_equal(a->handle, b->handle, sizeof a->handle);
  assert_int_equal(a->storage_at, b->storage_at);
  assert_int_equal(a->storage_bytes, b->storage_bytes);
  assert_string_equal(a->counter, b->counter);
  assert_int_equal(a->counter_slot, b->counter_slot);
  assert_int_equal(a->event_sync, b->event_sync);
  assert_memory_equal(a->event, b->event, sizeof a->event);
}

static const char *const uuids[GPUS] = { UUID_0, UUID_1 };

static void what_is_written_is_read_back(void **state)
{
  (void)state;
  weft_ipc_tensor tensors[GPUS * TENSORS];
  const weft_ipc_handles out = { .count = TENSORS, .tensors = tensors };
  uint8_t *pickle = NULL;
  size_t len = 0;
  for (size_t i = 0; i < GPUS * TENSORS; i++) {
    fill(&tensors[i], i % TENSORS, i / TENSORS);
  }
  assert_ok(weft_ipc_handles_write(uuids, GPUS, &out, &pickle, &len));
  for (size_t g = 0; g < GPUS; g++) {
    weft_ipc_handles in;
    assert_ok(weft_ipc_handles_read(pickle, len, uuids[g], &in, NULL));
    assert_false(in.packed);
    assert_int_equal(in.count, TENSORS);
    for (size_t i = 0; i < TENSORS; i++) {
      same_tensor(&in.tensors[i], &tensors[g * TENSORS + i]);
    }
    weft_ipc_handles_free(&in);
  }
  free(pickle);
}

static void a_packed_buffer_is_one_entry(void **state)
{
  (void)state;
  weft_ipc_tensor tensors[GPUS];
  weft_ipc_handles out = { .packed = true, .count = 1, .tensors = tensors };
  weft_ipc_handles in;
  uint8_t *pickle = NULL;
  size_t len = 0;
  fill(&tensors[0], 0, 0);
  fill(&tensors[1], 0, 1);
  assert_ok(weft_ipc_handles_write(uuids, GPUS, &out, &pickle, &len));
  assert_ok(weft_ipc_handles_read(pickle, len, UUID_1, &in, NULL));
  assert_true(in.packed);
  same_tensor(&in.tensors[0], &tensors[1]);
  weft_ipc_handles_free(&in);
  free(pickle);
}

static void what_cannot_be_written_is_said(void **state)
{
  (void)state;
  weft_ipc_tensor tensors[2];
  weft_ipc_handles out = { .packed = true, .count = 2, .tensors = tensors };
  const char *one = UUID_0;
  char longest[257] = "";
  const char *const too_long = longest;
  uint8_t *pickle = NULL;
  size_t len = 0;
  fill(&tensors[0], 0, 0);
  fill(&tensors[1], 0, 0);
  assert_int_equal(weft_ipc_handles_write(&one, 1, &out, &pickle, &len), WEFT_E_INVAL);
  out.packed = false;
  assert_int_equal(weft_ipc_handles_write(&one, 0, &out, &pickle, &len), WEFT_E_INVAL);
  memset(longest, 'x', sizeof longest - 1);
  assert_int_equal(weft_ipc_handles_write(&too_long, 1, &out, &pickle, &len),
                   WEFT_E_INVAL);
  tensors[1].dtype = WEFT_DTYPE_NONE;
  assert_int_equal(weft_ipc_handles_write(&one, 1, &out, &pickle, &len), WEFT_E_INVAL);
  assert_null(pickle);
}

static void memory_may_end_anywhere(void **state)
{
  (void)state;
  weft_ipc_tensor tensor;
  const weft_ipc_handles out = { .count = 1, .tensors = &tensor };
  const char *one = UUID_0;
  fill(&tensor, 0, 0);
  for (unsigned long n = 1;; n++) {
    uint8_t *pickle = NULL;
    size_t len = 0;
    fail_hit = false;
    fail_countdown = n;
    const weft_err err = weft_ipc_handles_write(&one, 1, &out, &pickle, &len);
    fail_countdown = 0;
    assert_int_equal(err, fail_hit ? WEFT_E_NOMEM : WEFT_OK);
    free(pickle);
    if (!fail_hit) {
      assert_true(n > 2);
      break;
    }
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(what_is_written_is_read_back),
    cmocka_unit_test(a_packed_buffer_is_one_entry),
    cmocka_unit_test(what_cannot_be_written_is_said),
    cmocka_unit_test(memory_may_end_anywhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
