#define _GNU_SOURCE
#include "weft_test.h"

#include "weft/memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Slabs that somebody else has left. */

enum { GRANULE = 64 << 10, GRANULES = 8, SLAB = GRANULES * GRANULE };

static int make_slab(void)
{
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, SLAB), 0);
  assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  for (int i = 0; i < GRANULES; i++) {
    const uint8_t byte = (uint8_t)(i + 1);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)i * GRANULE), 1);
  }
  return fd;
}

static uint64_t pages_of(int fd)
{
  struct stat st;
  assert_int_equal(fstat(fd, &st), 0);
  return (uint64_t)st.st_blocks;
}

typedef struct kept {
  weft_memory *m;
  int fd; /* a second one, to look */
  uint32_t id;
} kept;

static kept begin(bool alone)
{
  kept k;
  const int fd = make_slab();
  k.fd = dup(fd);
  assert_ok(weft_memory_kept_create(&k.m));
  assert_ok(weft_memory_kept_add(k.m, fd, SLAB, alone, &k.id, NULL));
  return k;
}

static void end(kept *k)
{
  (void)close(k->fd);
  weft_memory_destroy(k->m);
}

static void extents_lie_where_they_lay(void **state)
{
  (void)state;
  kept k = begin(true);
  weft_extent a;
  weft_extent b;
  weft_extent none;
  uint64_t bytes = 0;
  assert_ok(weft_memory_kept_at(k.m, k.id, GRANULE, 10, &a));
  assert_ok(weft_memory_kept_at(k.m, k.id, SLAB - GRANULE, GRANULE, &b));
  assert_int_equal(*(const uint8_t *)a.ptr, 2);
  assert_int_equal(*(const uint8_t *)b.ptr, GRANULES);
  assert_err(weft_memory_kept_at(k.m, k.id, SLAB - 1, 2, &none), WEFT_E_INVAL);
  assert_err(weft_memory_kept_at(k.m, k.id, UINT64_MAX, 1, &none), WEFT_E_INVAL);
  assert_err(weft_memory_kept_at(k.m, k.id, 0, UINT64_MAX, &none), WEFT_E_INVAL);
  assert_err(weft_memory_kept_at(k.m, k.id + 1, 0, 1, &none), WEFT_E_INVAL);
  assert_ok(weft_memory_kept_at(k.m, 0, 0, 0, &none));
  assert_int_equal(none.slab, 0);
  weft_memory_free(k.m, &none);
  assert_err(weft_memory_alloc(k.m, 8, &none, NULL), WEFT_E_UNSUPPORTED);
  assert_true(weft_memory_slab_fd(k.m, k.id, &bytes) >= 0);
  assert_int_equal(bytes, SLAB);
  assert_int_equal(weft_memory_slab_fd(k.m, 1, &bytes), -1); /* host memory's numbers */
  weft_memory_free(k.m, &a);
  weft_memory_free(k.m, &b);
  end(&k);
}

static void a_slab_goes_with_its_last_extent(void **state)
{
  (void)state;
  kept k = begin(true);
  weft_extent a;
  weft_extent b;
  weft_memory_stats st;
  assert_ok(weft_memory_kept_at(k.m, k.id, 0, 10, &a));
  assert_ok(weft_memory_kept_at(k.m, k.id, 5, 10, &b)); /* they may overlap */
  uint32_t unused;
  assert_ok(weft_memory_kept_add(k.m, make_slab(), SLAB, true, &unused, NULL));
  weft_memory_stats_get(k.m, &st);
  assert_int_equal(st.slabs, 2);
  weft_memory_kept_seal(k.m);
  weft_memory_stats_get(k.m, &st);
  assert_int_equal(st.slabs, 1);
  assert_int_equal(st.used, 20);
  weft_memory_free(k.m, &a);
  weft_memory_stats_get(k.m, &st);
  assert_int_equal(st.slabs, 1);
  weft_memory_free(k.m, &b);
  weft_memory_stats_get(k.m, &st);
  assert_int_equal(st.slabs, 0);
  assert_int_equal(st.mapped, 0);
  assert_int_equal(st.extents, 0);
  end(&k);
}

static void what_no_extent_covers_goes_back(void **state)
{
  (void)state;
  kept k = begin(true);
  weft_extent a;
  weft_extent b;
  const uint64_t all = pages_of(k.fd);
  assert_ok(weft_memory_kept_at(k.m, k.id, GRANULE, GRANULE + 1, &a)); /* 1 and 2 */
  assert_ok(weft_memory_kept_at(k.m, k.id, 5 * GRANULE + 9, 1, &b));
  weft_memory_trim(k.m, 0);
  assert_int_equal(pages_of(k.fd), all); /* more may be cut yet */
  weft_memory_kept_seal(k.m);
  weft_memory_trim(k.m, 0);
  assert_int_equal(pages_of(k.fd), all / GRANULES * 3);
  assert_int_equal(*(const uint8_t *)a.ptr, 2);
  uint8_t first = 9;
  assert_int_equal(pread(k.fd, &first, 1, 5 * GRANULE), 1);
  assert_int_equal(first, 6); /* b's granule is whole */
  weft_memory_free(k.m, &a);
  weft_memory_trim(k.m, 0);
  assert_int_equal(pages_of(k.fd), all / GRANULES);
  weft_memory_free(k.m, &b);
  end(&k);
}

static void nothing_is_taken_from_other_readers(void **state)
{
  (void)state;
  kept k = begin(false);
  weft_extent a;
  const uint64_t all = pages_of(k.fd);
  assert_ok(weft_memory_kept_at(k.m, k.id, 0, 1, &a));
  weft_memory_kept_seal(k.m);
  weft_memory_trim(k.m, 0);
  assert_int_equal(pages_of(k.fd), all);
  weft_memory_free(k.m, &a);
  end(&k);
}

static void a_file_that_could_shrink_is_refused(void **state)
{
  (void)state;
  weft_memory *m;
  uint32_t id;
  weft_why why;
  assert_ok(weft_memory_kept_create(&m));
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_int_equal(ftruncate(fd, SLAB), 0);
  assert_err(weft_memory_kept_add(m, fd, SLAB, true, &id, &why), WEFT_E_INVAL);
  assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  assert_err(weft_memory_kept_add(m, fd, SLAB + 1, true, &id, &why), WEFT_E_INVAL);
  assert_err(weft_memory_kept_add(m, fd, 0, true, &id, &why), WEFT_E_INVAL);
  assert_err(weft_memory_kept_add(m, -1, SLAB, true, &id, &why), WEFT_E_INVAL);
  assert_ok(weft_memory_kept_add(m, fd, SLAB, true, &id, &why));
  weft_memory_destroy(m);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(extents_lie_where_they_lay),
    cmocka_unit_test(a_slab_goes_with_its_last_extent),
    cmocka_unit_test(what_no_extent_covers_goes_back),
    cmocka_unit_test(nothing_is_taken_from_other_readers),
    cmocka_unit_test(a_file_that_could_shrink_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
