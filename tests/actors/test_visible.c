#include "weft_test.h"

#include "visible.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static wefti_visible visible(uint64_t n, const char *version)
{
  return (wefti_visible){ .sequence = n,
                          .weights_sequence = n,
                          .digest_hi = n * 3,
                          .digest_lo = n * 5,
                          .version = version };
}

static void an_empty_ring_has_nothing(void **state)
{
  (void)state;
  wefti_visible_ring *ring = calloc(1, sizeof *ring);
  wefti_visible_at at;
  char version[WEFT_VERSION_MAX + 1] = "?";
  wefti_visible_get(ring, &at, version);
  assert_int_equal(at.weights_sequence, 0);
  assert_string_equal(version, "");
  assert_false(wefti_visible_find(ring, 1, &at, version));
  free(ring);
}

static void the_newest_is_read_and_older_ones_are_found(void **state)
{
  (void)state;
  wefti_visible_ring *ring = calloc(1, sizeof *ring);
  wefti_visible_at at;
  char version[WEFT_VERSION_MAX + 1];
  char name[32];
  enum { ALL = WEFTI_VISIBLE_KEPT + 5 };
  for (uint64_t n = 1; n <= ALL; n++) {
    (void)snprintf(name, sizeof name, "version %u", (unsigned)n);
    const wefti_visible v = visible(n, name);
    wefti_visible_set(ring, &v);
    wefti_visible_get(ring, &at, version);
    assert_int_equal(at.weights_sequence, n);
    assert_int_equal(at.digest_hi, n * 3);
    assert_string_equal(version, name);
  }
  for (uint64_t n = 1; n <= ALL; n++) {
    const bool kept = n > ALL - WEFTI_VISIBLE_KEPT;
    assert_int_equal(wefti_visible_find(ring, n, &at, version), kept);
    (void)snprintf(name, sizeof name, "version %u", (unsigned)n);
    if (kept) {
      assert_string_equal(version, name);
    }
  }
  free(ring);
}

static void a_label_replaces_the_string_of_the_same_weights(void **state)
{
  (void)state;
  wefti_visible_ring *ring = calloc(1, sizeof *ring);
  wefti_visible_at at;
  char version[WEFT_VERSION_MAX + 1];
  char longest[WEFT_VERSION_MAX + 1];
  memset(longest, 'v', WEFT_VERSION_MAX);
  longest[WEFT_VERSION_MAX] = '\0';
  wefti_visible v = visible(1, longest);
  wefti_visible_set(ring, &v);
  v = visible(2, "two");
  wefti_visible_set(ring, &v);
  v.version = "renamed";
  v.sequence = 3;
  wefti_visible_set(ring, &v);
  wefti_visible_get(ring, &at, version);
  assert_string_equal(version, "renamed");
  assert_int_equal(at.weights_sequence, 2);
  assert_true(wefti_visible_find(ring, 1, &at, version));
  assert_string_equal(version, longest);
  free(ring);
}

/* ---- a writer and readers */

typedef struct race {
  wefti_visible_ring ring;
  atomic_bool stop, torn;
} race;

static void *read_all(void *arg)
{
  race *r = arg;
  uint64_t last = 0;
  do {
    wefti_visible_at at;
    char version[WEFT_VERSION_MAX + 1];
    char expect[64];
    wefti_visible_get(&r->ring, &at, version);
    (void)snprintf(expect, sizeof expect, "%0*u", (int)(at.weights_sequence % 40),
                   (unsigned)at.weights_sequence);
    if (at.digest_hi != at.weights_sequence * 3 ||
        at.digest_lo != at.weights_sequence * 5 || at.weights_sequence < last ||
        (at.weights_sequence > 0 && strcmp(version, expect) != 0)) {
      r->torn = true;
    }
    last = at.weights_sequence;
  } while (!r->stop);
  return NULL;
}

static void readers_see_whole_entries_in_order(void **state)
{
  (void)state;
  race *r = calloc(1, sizeof *r);
  pthread_t threads[2];
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, read_all, r), 0);
  }
  for (uint64_t n = 1; n <= 20000; n++) {
    char name[64];
    (void)snprintf(name, sizeof name, "%0*u", (int)(n % 40), (unsigned)n);
    const wefti_visible v = visible(n, name);
    wefti_visible_set(&r->ring, &v);
  }
  r->stop = true;
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  }
  assert_false(r->torn);
  free(r);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(an_empty_ring_has_nothing),
    cmocka_unit_test(the_newest_is_read_and_older_ones_are_found),
    cmocka_unit_test(a_label_replaces_the_string_of_the_same_weights),
    cmocka_unit_test(readers_see_whole_entries_in_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
