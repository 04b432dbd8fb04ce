#define _GNU_SOURCE /* F_GET_SEALS */
#include "weft_test.h"

#include "weft/memory.h"
#include "weft_fail.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MIB = 1 << 20, TENSORS = 40 };

static weft_memory *create(uint64_t max_bytes)
{
  const weft_memory_host_opts opts = { .size = sizeof opts,
                                       .slab_bytes = 8 * MIB,
                                       .max_bytes = max_bytes };
  weft_memory *m = NULL;
  assert_ok(weft_memory_host_create(&opts, &m));
  return m;
}

static uint64_t tensor_bytes(int i)
{
  return (uint64_t)(i * 7919 % 300) * 1024 + (uint64_t)i;
}

static void alloc_all(weft_memory *m, weft_extent *e)
{
  for (int i = 0; i < TENSORS; i++) {
    assert_ok(weft_memory_alloc(m, tensor_bytes(i), &e[i], NULL));
    assert_int_equal((uintptr_t)e[i].ptr % WEFT_EXTENT_ALIGN, 0);
    if (e[i].bytes > 0) {
      memset(e[i].ptr, i + 1, e[i].bytes);
    }
  }
}

static void free_all(weft_memory *m, const weft_extent *e)
{
  for (int i = 0; i < TENSORS; i++) {
    const uint8_t *p = e[i].ptr;
    for (uint64_t b = 0; b < e[i].bytes; b += 509) {
      assert_int_equal(p[b], i + 1); /* nobody else wrote here */
    }
    weft_memory_free(m, &e[i]);
  }
}

static weft_memory_stats stats_of(weft_memory *m)
{
  weft_memory_stats s;
  weft_memory_stats_get(m, &s);
  return s;
}

static void alternating_updates_reuse_their_pages(void **state)
{
  (void)state;
  weft_memory *m = create(0);
  weft_extent e[2][TENSORS];
  alloc_all(m, e[0]);
  alloc_all(m, e[1]);
  const weft_memory_stats warm = stats_of(m);
  assert_true(warm.fresh > 0);
  for (int round = 0; round < 50; round++) {
    weft_extent before[TENSORS];
    memcpy(before, e[round % 2], sizeof before);
    free_all(m, e[round % 2]);
    weft_memory_trim(m, warm.used / 2);
    alloc_all(m, e[round % 2]);
    assert_memory_equal(before, e[round % 2], sizeof before); /* the very same places */
  }
  const weft_memory_stats after = stats_of(m);
  assert_int_equal(after.fresh, warm.fresh);
  assert_int_equal(after.mapped, warm.mapped);
  assert_int_equal(after.used, warm.used);
  free_all(m, e[0]);
  free_all(m, e[1]);
  assert_int_equal(stats_of(m).used, 0);
  assert_int_equal(stats_of(m).extents, 0);
  weft_memory_destroy(m);
}

static void a_partial_update_costs_its_own_size(void **state)
{
  (void)state;
  weft_memory *m = create(0);
  weft_extent e[TENSORS];
  alloc_all(m, e);
  const weft_memory_stats before = stats_of(m);
  weft_extent one;
  assert_ok(weft_memory_alloc(m, MIB, &one, NULL));
  assert_true(stats_of(m).fresh - before.fresh <= MIB + 65536);
  weft_memory_free(m, &one);
  free_all(m, e);
  weft_memory_destroy(m);
}

static void trim_gives_back(void **state)
{
  (void)state;
  weft_memory *m = create(0);
  weft_extent a;
  weft_extent b;
  weft_extent c;
  assert_ok(weft_memory_alloc(m, 6 * MIB, &a, NULL));
  assert_ok(weft_memory_alloc(m, 1 * MIB, &b, NULL));
  assert_ok(weft_memory_alloc(m, 16 * MIB, &c, NULL));
  assert_int_equal(stats_of(m).slabs, 2);
  weft_memory_free(m, &c);
  weft_memory_trim(m, 64 * MIB);
  assert_int_equal(stats_of(m).slabs, 2); /* kept for the next update */
  weft_memory_trim(m, 0);
  assert_int_equal(stats_of(m).slabs, 1);
  weft_memory_free(m, &a);
  weft_memory_trim(m, 0); /* b holds the slab: a hole is made where a was */
  assert_int_equal(stats_of(m).slabs, 1);
  assert_true(stats_of(m).backed <= MIB + 65536);
  struct stat sb;
  uint64_t bytes;
  assert_int_equal(fstat(weft_memory_slab_fd(m, b.slab, &bytes), &sb), 0);
  assert_true((uint64_t)sb.st_blocks * 512 <= 2 * MIB);
  assert_ok(weft_memory_alloc(m, 6 * MIB, &a, NULL)); /* and is filled again */
  memset(a.ptr, 1, a.bytes);
  weft_memory_free(m, &a);
  weft_memory_free(m, &b);
  weft_memory_trim(m, 0);
  assert_int_equal(stats_of(m).mapped, 0);
  weft_memory_destroy(m);
}

/* As another process maps it. */
static bool is_marked(weft_memory *m, uint32_t slab)
{
  uint64_t bytes = 0;
  const int fd = weft_memory_slab_fd(m, slab, &bytes);
  void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
  assert_true(base != MAP_FAILED);
  const bool marked = weft_slab_dirty(base, bytes);
  assert_int_equal(munmap(base, bytes), 0);
  return marked;
}

static void a_slab_bears_its_mark_itself(void **state)
{
  (void)state;
  weft_memory *m = create(0);
  weft_extent a;
  weft_extent b;
  assert_ok(weft_memory_alloc(m, 8 * MIB, &a, NULL)); /* all of a slab */
  assert_ok(weft_memory_alloc(m, 8 * MIB, &b, NULL));
  assert_int_not_equal(a.slab, b.slab);
  assert_false(is_marked(m, a.slab));
  weft_memory_mark(m, a.slab, true);
  assert_true(is_marked(m, a.slab));
  assert_false(is_marked(m, b.slab));
  memset(a.ptr, 0xff, a.bytes); /* bytes and mark are apart */
  weft_memory_mark(m, b.slab, true);
  assert_int_equal(((uint8_t *)a.ptr)[a.bytes - 1], 0xff);
  weft_memory_trim(m, 0);
  assert_true(is_marked(m, a.slab));
  weft_memory_mark(m, 0, false);
  assert_false(is_marked(m, a.slab));
  assert_false(is_marked(m, b.slab));
  weft_memory_free(m, &a);
  weft_memory_free(m, &b);
  weft_memory_destroy(m);
  static const uint8_t none[16];
  assert_true(weft_slab_dirty(none, sizeof none)); /* too small to have one */
}

static void no_bytes_need_no_memory(void **state)
{
  (void)state;
  weft_memory *m = create(0);
  weft_extent e;
  assert_ok(weft_memory_alloc(m, 0, &e, NULL));
  assert_null(e.ptr);
  assert_int_equal(e.slab, 0);
  weft_memory_free(m, &e);
  assert_int_equal(stats_of(m).slabs, 0);
  weft_memory_destroy(m);
}

static void limits_are_errors(void **state)
{
  (void)state;
  weft_memory *m = create(4 * MIB);
  weft_extent a;
  weft_extent b;
  weft_why why = { 0 };
  assert_ok(weft_memory_alloc(m, 4 * MIB, &a, NULL));
  assert_err(weft_memory_alloc(m, 1, &b, &why), WEFT_E_LIMIT);
  assert_non_null(strstr(why.text, "limit"));
  assert_err(weft_memory_alloc(m, UINT64_MAX, &b, &why), WEFT_E_OVERFLOW);
  const weft_err huge = weft_memory_alloc(m, (uint64_t)1 << 60, &b, &why);
  assert_true(huge == WEFT_E_NOMEM || huge == WEFT_E_LIMIT || huge == WEFT_E_SYS);
  assert_int_equal(stats_of(m).extents, 1);
  weft_memory_free(m, &a);
  weft_memory_destroy(m);
}

static void a_file_size_limit_is_an_error_and_no_signal(void **state)
{
  (void)state;
  struct rlimit before;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit small = { MIB, before.rlim_max };
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  weft_memory *m = create(0);
  weft_extent e;
  assert_err(weft_memory_alloc(m, 100, &e, NULL), WEFT_E_LIMIT);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  assert_ok(weft_memory_alloc(m, 100, &e, NULL));
  weft_memory_free(m, &e);
  weft_memory_destroy(m);
}

static void a_slab_can_be_mapped_elsewhere_and_not_cut(void **state)
{
  (void)state;
  weft_memory *m = create(0);
  weft_extent e;
  assert_ok(weft_memory_alloc(m, 100, &e, NULL));
  memcpy(e.ptr, "weights", 8);
  uint64_t bytes = 0;
  const int fd = weft_memory_slab_fd(m, e.slab, &bytes);
  assert_true(fd >= 0);
  assert_int_equal(bytes, 8 * MIB + WEFT_SLAB_MARK_BYTES);
  assert_int_equal(weft_memory_slab_fd(m, e.slab + 1, &bytes), -1);
  assert_int_not_equal(ftruncate(fd, 0), 0); /* sealed */
  assert_int_not_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  const char *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
  assert_true(p != MAP_FAILED);
  assert_string_equal(p + e.offset, "weights");
  assert_int_equal(munmap((void *)(uintptr_t)p, bytes), 0);
  weft_memory_free(m, &e);
  weft_memory_destroy(m);
}

typedef struct releaser {
  weft_memory *m;
  weft_extent e[64];
} releaser;

static void *release(void *arg)
{
  releaser *r = arg;
  for (int i = 0; i < 64; i++) {
    weft_memory_free(r->m, &r->e[i]);
  }
  return NULL;
}

static void other_threads_may_release(void **state)
{
  (void)state;
  weft_memory *m = create(0);
  for (int round = 0; round < 20; round++) {
    releaser r = { .m = m };
    for (int i = 0; i < 64; i++) {
      assert_ok(weft_memory_alloc(m, (uint64_t)(i + 1) * 999, &r.e[i], NULL));
    }
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, release, &r), 0);
    weft_extent mine;
    for (int i = 0; i < 64; i++) {
      assert_ok(weft_memory_alloc(m, 50000, &mine, NULL));
      weft_memory_free(m, &mine);
      weft_memory_trim(m, MIB);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
  }
  assert_int_equal(stats_of(m).used, 0);
  weft_memory_destroy(m);
}

static void reserve_makes_one_slab(void **state)
{
  (void)state;
  weft_memory *m = create(0);
  weft_extent e[64];
  assert_ok(weft_memory_reserve(m, 64 * MIB, NULL));
  assert_int_equal(stats_of(m).backed, 0);
  for (int i = 0; i < 64; i++) {
    assert_ok(weft_memory_alloc(m, MIB, &e[i], NULL));
  }
  assert_int_equal(stats_of(m).slabs, 1);
  for (int i = 0; i < 64; i++) {
    weft_memory_free(m, &e[i]);
  }
  weft_memory_destroy(m);
}

static void each_failed_allocation_is_an_error(void **state)
{
  (void)state;
  FOR_EACH_FAILURE
  {
    weft_memory *m = NULL;
    weft_extent e = { .bytes = 0 };
    weft_err err = weft_memory_host_create(NULL, &m);
    if (err == WEFT_OK) {
      err = weft_memory_alloc(m, 100, &e, NULL);
    }
    assert_int_equal(err, fail_hit ? WEFT_E_NOMEM : WEFT_OK);
    if (m != NULL) {
      weft_memory_free(m, &e);
      assert_int_equal(stats_of(m).used, 0);
    }
    weft_memory_destroy(m);
    END_UNLESS_FAILED
  }
}

/* ---- cancel */

/* Looked at by every madvise of this program: pages that are taken are only counted, so
 * that much memory costs nothing here. */
typedef struct populate_watch {
  bool on;
  size_t most, count; /* bytes of the largest call; calls */
  size_t cancel_after;
  atomic_bool cancel;
} populate_watch;

static populate_watch *watched(void)
{
  static populate_watch watch;
  return &watch;
}

int __real_madvise(void *p, size_t len, int advice);
int __wrap_madvise(void *p, size_t len, int advice);
int __wrap_madvise(void *p, size_t len, int advice)
{
  populate_watch *w = watched();
  if (!w->on || advice != 23 /* MADV_POPULATE_WRITE */) {
    return __real_madvise(p, len, advice);
  }
  w->most = len > w->most ? len : w->most;
  w->count++;
  if (w->count == w->cancel_after) {
    atomic_store(&w->cancel, true);
  }
  return 0;
}

static void a_cancel_ends_the_taking_of_pages(void **state)
{
  (void)state;
  const uint64_t big = UINT64_C(1) << 30;
  populate_watch *w = watched();
  weft_memory *m = create(0);
  weft_extent e;
  m->cancel = &w->cancel;
  *w = (populate_watch){ .on = true, .cancel_after = 2 };
  assert_err(weft_memory_alloc(m, big, &e, NULL), WEFT_E_CANCELLED);
  assert_int_equal(w->count, 2);
  assert_true(w->most <= 256 * MIB);
  weft_memory_stats st;
  weft_memory_stats_get(m, &st);
  assert_int_equal(st.extents, 0);
  assert_int_equal(st.used, 0);
  assert_int_equal(st.backed, 2 * w->most);

  weft_memory_trim(m, 0); /* may take long too, so it leaves off */
  weft_memory_stats_get(m, &st);
  assert_int_equal(st.backed, 2 * w->most);

  atomic_store(&w->cancel, false);
  assert_ok(weft_memory_alloc(m, big, &e, NULL)); /* what was taken is used */
  weft_memory_stats_get(m, &st);
  assert_int_equal(st.fresh, big);
  weft_memory_free(m, &e);
  weft_memory_trim(m, 0);
  weft_memory_stats_get(m, &st);
  assert_int_equal(st.backed, 0);
  assert_int_equal(st.slabs, 0);
  w->on = false;
  weft_memory_destroy(m);
}

/* The pages of a set that the machine cannot hold would be taken until the kernel kills
 * somebody; none is. */
static void what_the_machine_has_not_is_refused_at_once(void **state)
{
  (void)state;
  const uint64_t huge = UINT64_C(1) << 46;
  atomic_bool cancel = true; /* so that this test takes no pages even if it fails */
  weft_memory *m = create(0);
  weft_memory_stats st;
  weft_extent e;
  weft_why why = { 0 };
  m->cancel = &cancel;
  assert_err(weft_memory_reserve(m, huge, &why), WEFT_E_NOMEM);
  assert_non_null(strstr(why.text, "this machine has"));
  assert_err(weft_memory_alloc(m, huge, &e, &why), WEFT_E_NOMEM);
  weft_memory_stats_get(m, &st);
  assert_int_equal(st.slabs, 0);
  assert_int_equal(st.used, 0);
  weft_memory_destroy(m);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(alternating_updates_reuse_their_pages),
    cmocka_unit_test(a_partial_update_costs_its_own_size),
    cmocka_unit_test(trim_gives_back),
    cmocka_unit_test(a_slab_bears_its_mark_itself),
    cmocka_unit_test(no_bytes_need_no_memory),
    cmocka_unit_test(limits_are_errors),
    cmocka_unit_test(what_the_machine_has_not_is_refused_at_once),
    cmocka_unit_test(a_cancel_ends_the_taking_of_pages),
    cmocka_unit_test(a_file_size_limit_is_an_error_and_no_signal),
    cmocka_unit_test(a_slab_can_be_mapped_elsewhere_and_not_cut),
    cmocka_unit_test(other_threads_may_release),
    cmocka_unit_test(reserve_makes_one_slab),
    cmocka_unit_test(each_failed_allocation_is_an_error),
  };
  return cmocka_run_group_tests_name("transport.memory_host", tests, NULL, NULL);
}
