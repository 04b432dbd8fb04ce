/* Digests that come behind: several at once, given up, failing; on the stand-ins. */
#define _GNU_SOURCE /* setenv */
#include "weft_test.h"

#include "gpu.h"
#include "hashers.h"
#include "weft/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 40, ALL_BYTES = 48 << 20 };

typedef struct world {
  wefti_gpu gpu;
  char *device;
  uint8_t *bytes; /* the same on the host */
  weft_plan_tensor tensors[TENSORS];
  void *from[TENSORS];
  weft_digest out[TENSORS], want[TENSORS];
} world;

static void open_gpu(world *w, unsigned threads)
{
  const weft_device_opts device = { .size = sizeof device, .cudart = WEFT_FAKE_CUDART };
  const weft_transfer_opts opts = { .size = sizeof opts,
                                    .device = &device,
                                    .threads = threads };
  weft_why why = { 0 };
  if (wefti_gpu_open(&opts, &w->gpu, &why) != WEFT_OK ||
      wefti_gpu_enter(&w->gpu, &why) != WEFT_OK ||
      wefti_gpu_digests_ready(&w->gpu, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
}

/* Some larger than a block, some of its size, many that share one, some of no bytes. */
static void lay_out(world *w)
{
  static const uint64_t sizes[] = { 9 << 20, 1, 0, 4 << 20, 4096, 3,      (4 << 20) + 1,
                                    70000,   0, 2, 1 << 20, 33,   300000, 255 };
  uint64_t at = 0;
  for (size_t i = 0; i < TENSORS; i++) {
    const uint64_t n = i < 14 ? sizes[i] : i % 5 == 0 ? 3 << 20 : (i * 977) % 9000;
    assert_true(at + n <= ALL_BYTES);
    w->tensors[i].bytes = n;
    w->from[i] = n > 0 ? w->device + at : NULL;
    w->want[i] = weft_digest_of(w->bytes + at, n);
    at += n;
  }
}

static world *begin(unsigned threads)
{
  world *w = calloc(1, sizeof *w);
  void *device = NULL;
  assert_non_null(w);
  open_gpu(w, threads);
  w->bytes = malloc(ALL_BYTES);
  assert_non_null(w->bytes);
  for (size_t i = 0; i < ALL_BYTES; i += 512) { /* no two blocks are alike */
    memset(w->bytes + i, (int)(i >> 9), 512);
    memcpy(w->bytes + i, &i, sizeof i);
  }
  assert_int_equal(w->gpu.cuda.Malloc(&device, ALL_BYTES), 0);
  w->device = device;
  assert_int_equal(w->gpu.cuda.MemcpyAsync(device, w->bytes, ALL_BYTES, WEFTI_TO_DEVICE,
                                           w->gpu.copies),
                   0);
  assert_int_equal(w->gpu.cuda.StreamSynchronize(w->gpu.copies), 0);
  lay_out(w);
  return w;
}

static void end(world *w)
{
  assert_int_equal(w->gpu.cuda.Free(w->device), 0);
  wefti_gpu_close(&w->gpu);
  free(w->bytes);
  free(w);
}

static void add(world *w, size_t first, size_t count)
{
  assert_ok(wefti_gpu_digest_add(&w->gpu, w->tensors + first, w->from + first, count,
                                 w->out + first, NULL));
}

static void settle(world *w)
{
  wefti_wait wait = { .limit_ms = 60000 };
  weft_why why = { 0 };
  if (wefti_gpu_digest_settle(&w->gpu, &wait, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
}

static void check(const world *w)
{
  for (size_t i = 0; i < TENSORS; i++) {
    if (!weft_digest_equal(w->out[i], w->want[i])) {
      fail_msg("tensor %zu", i);
    }
  }
}

static void any_number_of_threads_gives_the_same(void **state)
{
  (void)state;
  for (unsigned threads = 0; threads <= 4; threads += 2) {
    world *w = begin(threads);
    add(w, 0, TENSORS);
    settle(w);
    check(w);
    assert_false(wefti_gpu_digest_more(&w->gpu));
    /* In pieces, of which later ones come while earlier ones are under way. */
    memset(w->out, 0, sizeof w->out);
    for (size_t i = 0; i < TENSORS; i += 4) {
      add(w, i, 4);
      (void)wefti_gpu_digest_turn(&w->gpu);
    }
    settle(w);
    check(w);
    settle(w); /* of nothing */
    end(w);
  }
}

static void turns_alone_come_to_the_end(void **state)
{
  (void)state;
  world *w = begin(3);
  uint64_t turns = 0;
  add(w, 0, TENSORS);
  while (wefti_gpu_advance(&w->gpu)) {
    wefti_gpu_nap();
    turns++;
  }
  assert_true(turns > 0);
  check(w); /* without a settle */
  settle(w);
  end(w);
}

static void count_bytes(void *arg, uint64_t bytes)
{
  uint64_t *most = arg;
  assert_true(bytes >= *most);
  *most = bytes;
}

static void a_settle_can_be_told_to_leave_off(void **state)
{
  (void)state;
  world *w = begin(2);
  const atomic_bool cancel = true;
  weft_why why = { 0 };
  uint64_t most = 0;
  assert_int_equal(setenv("WEFT_FAKE_STREAM_DELAY_US", "20000", 1), 0);
  add(w, 0, TENSORS);
  assert_err(wefti_gpu_settle(&w->gpu, &cancel, count_bytes, &most, &why),
             WEFT_E_CANCELLED);
  assert_non_null(strstr(why.text, "digests of what came: cancelled"));
  assert_int_equal(unsetenv("WEFT_FAKE_STREAM_DELAY_US"), 0);
  /* It was a forget: what had been under way is written to no more. */
  assert_false(wefti_gpu_digest_more(&w->gpu));
  add(w, 0, TENSORS);
  assert_ok(wefti_gpu_settle(&w->gpu, NULL, count_bytes, &most, &why));
  check(w);
  end(w);
}

/* At any moment: nothing reads the memory or writes to out afterwards. */
static void what_is_forgotten_stays_as_it_was(void **state)
{
  (void)state;
  world *w = begin(4);
  for (unsigned turns = 0; turns < 60; turns += 3) {
    weft_digest before[TENSORS];
    memset(w->out, 0, sizeof w->out);
    add(w, 0, TENSORS);
    for (unsigned i = 0; i < turns; i++) {
      (void)wefti_gpu_digest_turn(&w->gpu);
    }
    wefti_gpu_digest_forget(&w->gpu);
    assert_int_equal(w->gpu.cuda.StreamQuery(w->gpu.copies), WEFTI_CUDA_OK);
    memcpy(before, w->out, sizeof before);
    assert_false(wefti_gpu_digest_turn(&w->gpu));
    wefti_gpu_nap();
    assert_memory_equal(before, w->out, sizeof before);
  }
  wefti_gpu_digest_forget(&w->gpu); /* of nothing */
  add(w, 0, TENSORS);
  settle(w);
  check(w);
  add(w, 0, TENSORS);
  (void)wefti_gpu_digest_turn(&w->gpu);
  end(w); /* in the middle */
}

/* The n-th call from now of one function fails. */
static struct {
  wefti_cuda real;
  unsigned left;
} broken;

static int next_code(int code)
{
  return --broken.left == 0 ? code : WEFTI_CUDA_OK;
}

static int broken_copy(void *to, const void *from, size_t n, int kind, wefti_stream s)
{
  const int code = next_code(700);
  return code != 0 ? code : broken.real.MemcpyAsync(to, from, n, kind, s);
}

static int broken_record(wefti_event e, wefti_stream s)
{
  const int code = next_code(700);
  return code != 0 ? code : broken.real.EventRecord(e, s);
}

static int broken_query(wefti_event e)
{
  const int code = next_code(700);
  return code != 0 ? code : broken.real.EventQuery(e);
}

static int broken_alloc(void **ptr, size_t bytes, unsigned flags)
{
  const int code = next_code(WEFTI_CUDA_NOMEM);
  return code != 0 ? code : broken.real.HostAlloc(ptr, bytes, flags);
}

static int broken_event(wefti_event *e, unsigned flags)
{
  const int code = next_code(WEFTI_CUDA_NOMEM);
  return code != 0 ? code : broken.real.EventCreateWithFlags(e, flags);
}

static void break_at(wefti_cuda *cuda, unsigned what, unsigned n)
{
  broken.real = *cuda;
  broken.left = n;
  cuda->MemcpyAsync = what == 0 ? broken_copy : cuda->MemcpyAsync;
  cuda->EventRecord = what == 1 ? broken_record : cuda->EventRecord;
  cuda->EventQuery = what == 2 ? broken_query : cuda->EventQuery;
  cuda->HostAlloc = what == 3 ? broken_alloc : cuda->HostAlloc;
  cuda->EventCreateWithFlags = what == 4 ? broken_event : cuda->EventCreateWithFlags;
}

static void a_call_that_fails_is_told_at_the_end(void **state)
{
  (void)state;
  world *w = begin(2);
  for (unsigned what = 0; what <= 2; what++) {
    for (unsigned n = 1; n <= 9; n += 2) {
      weft_why why = { 0 };
      break_at(&w->gpu.cuda, what, n);
      add(w, 0, TENSORS);
      while (wefti_gpu_digest_more(&w->gpu)) { /* as between two jobs */
        (void)wefti_gpu_digest_turn(&w->gpu);
        wefti_gpu_nap();
      }
      assert_err(wefti_gpu_settle(&w->gpu, NULL, NULL, NULL, &why), WEFT_E_FAILED);
      assert_non_null(strstr(why.text, "copying back for the digest: CUDA error 700"));
      w->gpu.cuda = broken.real;
      assert_int_equal(w->gpu.cuda.StreamQuery(w->gpu.copies), WEFTI_CUDA_OK);
      add(w, 0, TENSORS);
      settle(w);
      check(w);
      memset(w->out, 0, sizeof w->out);
    }
  }
  end(w);
}

static void what_cannot_be_made_is_said(void **state)
{
  (void)state;
  const weft_device_opts device = { .size = sizeof device, .cudart = WEFT_FAKE_CUDART };
  const weft_transfer_opts opts = { .size = sizeof opts,
                                    .device = &device,
                                    .threads = 2 };
  wefti_gpu gpu = { 0 };
  weft_why why = { 0 };
  assert_ok(wefti_gpu_open(&opts, &gpu, &why));
  assert_ok(wefti_gpu_enter(&gpu, &why));
  for (unsigned what = 3; what <= 4; what++) {
    for (unsigned n = 1; n <= 4; n++) {
      break_at(&gpu.cuda, what, n);
      assert_err(wefti_gpu_digests_ready(&gpu, &why), WEFT_E_NOMEM);
      assert_non_null(strstr(why.text, "pinned memory for digests"));
      assert_null(gpu.digests);
      gpu.cuda = broken.real;
    }
  }
  assert_ok(wefti_gpu_digests_ready(&gpu, &why));
  wefti_gpu_close(&gpu);
}

/* Something that never comes: what is behind it goes on meanwhile and is no progress. */
static void digests_behind_a_wait_are_no_step_of_it(void **state)
{
  (void)state;
  world *w = begin(2);
  wefti_wait wait = { .limit_ms = 200, .behind = &w->gpu };
  weft_why why = { 0 };
  weft_err err = WEFT_OK;
  add(w, 0, TENSORS);
  for (uint64_t until = weft_clock_ms() + 60000;
       err == WEFT_OK && weft_clock_ms() < until;) {
    err = wefti_wait_turn(&wait, &why);
    if (!wefti_gpu_digest_more(&w->gpu)) { /* all that time there was something */
      add(w, 0, TENSORS);
    }
  }
  assert_int_equal(err, WEFT_E_TIMEOUT);
  assert_int_equal(wait.bytes, 0);
  settle(w);
  check(w);
  end(w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(any_number_of_threads_gives_the_same),
    cmocka_unit_test(turns_alone_come_to_the_end),
    cmocka_unit_test(a_settle_can_be_told_to_leave_off),
    cmocka_unit_test(what_is_forgotten_stays_as_it_was),
    cmocka_unit_test(a_call_that_fails_is_told_at_the_end),
    cmocka_unit_test(what_cannot_be_made_is_said),
    cmocka_unit_test(digests_behind_a_wait_are_no_step_of_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
