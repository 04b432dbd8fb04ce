#include "weft_test.h"

#include "weight_slots.h"
#include "weight_store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES = 16 };

/* Memory that overwrites what it gets back, so that a reader of freed bytes notices, and
 * counts. */
typedef struct fake_memory {
  weft_memory base;
  atomic_int extents;
} fake_memory;

static weft_err fake_alloc(weft_memory *m, uint64_t bytes, weft_extent *out,
                           weft_why *why)
{
  (void)why;
  *out = (weft_extent){ .bytes = bytes };
  if (bytes > 0) {
    out->ptr = aligned_alloc(WEFT_EXTENT_ALIGN, (bytes + 63) / 64 * 64);
    assert_non_null(out->ptr);
  }
  atomic_fetch_add(&((fake_memory *)m)->extents, 1);
  return WEFT_OK;
}

static void fake_free(weft_memory *m, const weft_extent *extent)
{
  if (extent->ptr) {
    memset(extent->ptr, 0xdd, extent->bytes);
  }
  free(extent->ptr);
  atomic_fetch_sub(&((fake_memory *)m)->extents, 1);
}

static const weft_memory_ops fake_ops = { .name = "fake",
                                          .alloc = fake_alloc,
                                          .free = fake_free };

typedef struct fixture {
  fake_memory memory;
  weft_store *store;
  atomic_uint_fast64_t now_ns;
} fixture;

static uint64_t fake_clock(void *arg)
{
  return atomic_load(&((fixture *)arg)->now_ns);
}

static fixture *begin(unsigned snapshots_max, bool needs_grant)
{
  fixture *f = calloc(1, sizeof *f);
  assert_non_null(f);
  f->memory.base.ops = &fake_ops;
  const weft_store_opts opts = { .size = sizeof opts,
                                 .snapshots_max = snapshots_max,
                                 .needs_grant = needs_grant };
  assert_ok(weft_store_create(&opts, &f->store));
  wefti_store_set_clock(f->store, fake_clock, f);
  return f;
}

static void end(fixture *f)
{
  weft_store_destroy(f->store);
  assert_int_equal(atomic_load(&f->memory.extents), 0);
  free(f);
}

/* A tensor of VALUES numbers, all equal to value. */
static wefti_entry tensor(fixture *f, const char *name, uint64_t value)
{
  const int64_t shape[1] = { VALUES };
  const weft_tensor want = { .name = name,
                             .dtype = "uint64",
                             .shape = shape,
                             .ndim = 1,
                             .bytes = VALUES * sizeof(uint64_t) };
  weft_extent extent;
  assert_ok(weft_memory_alloc(&f->memory.base, want.bytes, &extent, NULL));
  for (size_t i = 0; i < VALUES; i++) {
    ((uint64_t *)extent.ptr)[i] = value;
  }
  wefti_entry entry;
  assert_ok(wefti_cell_create(&want, &f->memory.base, &extent, &entry));
  return entry;
}

static uint64_t first_value(const weft_tensor *t)
{
  return *(const uint64_t *)t->data;
}

static weft_err try_install(fixture *f, uint64_t epoch, uint64_t value)
{
  wefti_entry entries[2] = { tensor(f, "a", value), tensor(f, "b", value) };
  const uint64_t digest[2] = { value, ~value };
  const weft_snapshot *snapshot;
  const weft_err err =
      wefti_store_install(f->store, epoch, entries, 2, digest, &snapshot);
  wefti_cell_unref(entries[0].cell);
  wefti_cell_unref(entries[1].cell);
  return err;
}

static void commit(fixture *f, uint64_t number)
{
  assert_ok(try_install(f, number, number));
  assert_ok(wefti_store_publish(f->store, number, number));
}

static void nothing_published_is_not_yet(void **state)
{
  (void)state;
  fixture *f = begin(0, false);
  const weft_snapshot *s = NULL;
  assert_err(weft_store_pin(f->store, 0, &s), WEFT_E_NOT_YET);
  assert_err(weft_store_pin(f->store, 1, &s), WEFT_E_NOT_YET);
  assert_ok(try_install(f, 1, 1)); /* installed is not published */
  assert_err(weft_store_pin(f->store, 0, &s), WEFT_E_NOT_YET);
  assert_null(s);
  end(f);
}

static void a_pin_shows_the_published_set(void **state)
{
  (void)state;
  fixture *f = begin(0, false);
  commit(f, 7);
  const weft_snapshot *s;
  assert_ok(weft_store_pin(f->store, 0, &s));
  assert_int_equal(s->weights_sequence, 7);
  assert_int_equal(s->digest_hi, 7);
  assert_int_equal(s->tensor_count, 2);
  assert_int_equal(s->bytes, 2 * VALUES * sizeof(uint64_t));
  assert_string_equal(s->tensors[0].name, "a");
  assert_int_equal(s->tensors[0].shape[0], VALUES);
  const weft_tensor *b = weft_snapshot_find(s, "b");
  assert_non_null(b);
  assert_int_equal(first_value(b), 7);
  assert_null(weft_snapshot_find(s, "c"));
  assert_null(weft_snapshot_find(s, ""));
  weft_store_unpin(f->store, s);
  end(f);
}

static void exact_pins_know_older_and_newer(void **state)
{
  (void)state;
  fixture *f = begin(0, false);
  const weft_snapshot *two, *s;
  commit(f, 2);
  assert_ok(weft_store_pin(f->store, 2, &two));
  commit(f, 5);
  assert_ok(weft_store_pin(f->store, 2, &s)); /* held by another reader */
  assert_ptr_equal(s, two);
  weft_store_unpin(f->store, s);
  assert_ok(weft_store_pin(f->store, 5, &s));
  assert_int_equal(first_value(&s->tensors[0]), 5);
  weft_store_unpin(f->store, s);
  assert_err(weft_store_pin(f->store, 6, &s), WEFT_E_NOT_YET);
  assert_err(weft_store_pin(f->store, 1, &s), WEFT_E_GONE);
  assert_err(weft_store_pin(f->store, 3, &s), WEFT_E_GONE);
  assert_int_equal(first_value(&two->tensors[0]), 2);
  weft_store_unpin(f->store, two);
  wefti_store_reap(f->store);
  assert_err(weft_store_pin(f->store, 2, &s), WEFT_E_GONE);
  end(f);
}

static void old_publish_is_confirmed_without_effect(void **state)
{
  (void)state;
  fixture *f = begin(0, false);
  commit(f, 4);
  assert_ok(wefti_store_publish(f->store, 4, 4));
  assert_ok(try_install(f, 6, 6));
  assert_ok(wefti_store_publish(f->store, 6, 3));
  const weft_snapshot *s;
  assert_ok(weft_store_pin(f->store, 0, &s));
  assert_int_equal(s->weights_sequence, 4);
  weft_store_unpin(f->store, s);
  assert_err(wefti_store_publish(f->store, 9, 9), WEFT_E_STATE);
  assert_err(try_install(f, 6, 6), WEFT_E_EXISTS);
  end(f);
}

static void drop_leaves_the_default(void **state)
{
  (void)state;
  fixture *f = begin(0, false);
  commit(f, 1);
  assert_ok(try_install(f, 2, 2));
  wefti_store_drop(f->store, 3); /* another epoch's: no effect */
  assert_ok(wefti_store_publish(f->store, 2, 2));
  assert_ok(try_install(f, 3, 3));
  wefti_store_drop(f->store, 3);
  wefti_store_drop(f->store, 3);
  assert_err(wefti_store_publish(f->store, 3, 3), WEFT_E_STATE);
  wefti_store_reap(f->store);
  assert_int_equal(atomic_load(&f->memory.extents), 2);
  end(f);
}

static void shared_cells_live_as_long_as_any_snapshot(void **state)
{
  (void)state;
  fixture *f = begin(0, false);
  commit(f, 1);
  const weft_snapshot *base = wefti_store_base(f->store), *s;
  wefti_entry next[2] = { { base->tensors[0], wefti_snapshot_cell(base, 0) },
                          tensor(f, "b", 2) };
  const uint64_t digest[2] = { 1, 2 };
  assert_ok(wefti_store_install(f->store, 2, next, 2, digest, &s));
  wefti_cell_unref(next[1].cell);
  weft_store_unpin(f->store, base);
  assert_ok(wefti_store_publish(f->store, 2, 2));
  wefti_store_reap(f->store);
  assert_int_equal(atomic_load(&f->memory.extents), 2); /* a of 1, b of 2 */
  assert_ok(weft_store_pin(f->store, 0, &s));
  assert_int_equal(first_value(&s->tensors[0]), 1);
  assert_int_equal(first_value(&s->tensors[1]), 2);
  weft_store_unpin(f->store, s);
  end(f);
}

static void the_cap_names_the_readers(void **state)
{
  (void)state;
  fixture *f = begin(3, false);
  const weft_snapshot *held[3];
  commit(f, 1);
  assert_ok(weft_store_pin(f->store, 0, &held[0]));
  assert_ok(weft_store_pin(f->store, 0, &held[1]));
  commit(f, 2);
  assert_ok(weft_store_pin(f->store, 0, &held[2]));
  assert_ok(wefti_store_room(f->store, NULL));
  commit(f, 3);
  weft_why why = { 0 };
  assert_err(wefti_store_room(f->store, &why), WEFT_E_UNAVAIL);
  assert_non_null(strstr(why.text, "sequence 1 by 2 readers"));
  assert_non_null(strstr(why.text, "sequence 2 by 1 reader;"));
  assert_err(try_install(f, 4, 4), WEFT_E_UNAVAIL);
  wefti_store_state st;
  wefti_store_state_get(f->store, &st);
  assert_int_equal(st.readers, 3);
  assert_int_equal(st.snapshots, 3);
  assert_int_equal(st.weights_sequence, 3);
  assert_false(wefti_store_reapable(f->store));
  weft_store_unpin(f->store, held[2]);
  assert_true(wefti_store_reapable(f->store));
  assert_ok(wefti_store_room(f->store, NULL));
  weft_store_unpin(f->store, held[0]);
  weft_store_unpin(f->store, held[1]);
  end(f);
}

static void what_another_process_maps_is_read(void **state)
{
  (void)state;
  fixture *f = begin(2, false);
  const weft_snapshot *s;
  weft_why why = { 0 };
  wefti_store_state st;
  commit(f, 1);
  assert_ok(weft_store_pin(f->store, 0, &s));
  wefti_store_share(f->store, s);
  commit(f, 2);
  assert_err(wefti_store_room(f->store, &why), WEFT_E_UNAVAIL);
  assert_non_null(strstr(why.text, "sequence 1 by 1 reader and the engine's process;"));
  weft_store_unpin(f->store, s);
  assert_err(wefti_store_room(f->store, &why), WEFT_E_UNAVAIL);
  assert_non_null(strstr(why.text, "sequence 1 by the engine's process;"));
  wefti_store_state_get(f->store, &st);
  assert_int_equal(st.readers, 1);
  wefti_store_unshare(f->store, s);
  assert_true(wefti_store_reapable(f->store));
  assert_ok(wefti_store_room(f->store, NULL));
  wefti_store_state_get(f->store, &st);
  assert_int_equal(st.readers, 0);
  assert_int_equal(st.snapshots, 1);
  end(f);
}

static void options_have_limits(void **state)
{
  (void)state;
  weft_store *store = NULL;
  weft_store_opts opts = { .size = sizeof opts, .snapshots_max = 17 };
  assert_err(weft_store_create(&opts, &store), WEFT_E_INVAL);
  opts.snapshots_max = 1; /* no place beside the default */
  assert_err(weft_store_create(&opts, &store), WEFT_E_INVAL);
  opts.snapshots_max = 16;
  opts.size = 4;
  assert_err(weft_store_create(&opts, &store), WEFT_E_INVAL);
  opts.size = sizeof opts;
  assert_ok(weft_store_create(&opts, &store));
  weft_store_destroy(store);
  weft_store_destroy(NULL);
}

static void pins_need_the_grant(void **state)
{
  (void)state;
  fixture *f = begin(0, true);
  const weft_snapshot *s, *held;
  commit(f, 1);
  atomic_store(&f->now_ns, 1000);
  assert_err(weft_store_pin(f->store, 0, &s), WEFT_E_UNAVAIL);
  wefti_store_grant(f->store, 1001);
  assert_ok(weft_store_pin(f->store, 0, &held));
  wefti_store_grant(f->store,
                    500); /* an old heartbeat that came late takes nothing away */
  assert_ok(weft_store_pin(f->store, 1, &s));
  weft_store_unpin(f->store, s);
  atomic_store(&f->now_ns, 1001);
  assert_err(weft_store_pin(f->store, 0, &s), WEFT_E_UNAVAIL);
  assert_err(weft_store_pin(f->store, 1, &s), WEFT_E_UNAVAIL);
  assert_int_equal(first_value(&held->tensors[0]), 1);
  weft_store_unpin(f->store, held);
  end(f);
}

static void held_store_serves_nobody_until_a_publish(void **state)
{
  (void)state;
  fixture *f = begin(0, false);
  const weft_snapshot *s;
  commit(f, 1);
  wefti_store_hold(f->store, true);
  assert_err(weft_store_pin(f->store, 0, &s), WEFT_E_UNAVAIL);
  assert_err(weft_store_pin(f->store, 1, &s), WEFT_E_UNAVAIL);
  wefti_store_hold(f->store, false);
  assert_ok(weft_store_pin(f->store, 0, &s));
  weft_store_unpin(f->store, s);
  wefti_store_hold(f->store, true);
  commit(f, 2);
  assert_ok(weft_store_pin(f->store, 0, &s));
  assert_int_equal(s->weights_sequence, 2);
  weft_store_unpin(f->store, s);
  end(f);
}

static void a_new_engine_finds_nothing(void **state)
{
  (void)state;
  fixture *f = begin(0, false);
  const weft_snapshot *old, *s;
  commit(f, 9);
  assert_ok(weft_store_pin(f->store, 0, &old));
  assert_ok(try_install(f, 10, 10));
  wefti_store_forget(f->store);
  assert_err(weft_store_pin(f->store, 0, &s), WEFT_E_NOT_YET);
  assert_err(weft_store_pin(f->store, 9, &s), WEFT_E_NOT_YET);
  assert_err(wefti_store_publish(f->store, 10, 10), WEFT_E_STATE);
  assert_null(wefti_store_base(f->store));
  assert_int_equal(first_value(&old->tensors[0]), 9); /* the reader keeps what it has */
  assert_ok(try_install(f, 1, 77));
  assert_ok(wefti_store_publish(f->store, 1, 9)); /* the same number, another engine */
  assert_ok(weft_store_pin(f->store, 9, &s));
  assert_int_equal(first_value(&s->tensors[0]), 77);
  weft_store_unpin(f->store, s);
  weft_store_unpin(f->store, old);
  end(f);
}

static void swap_changes_bytes_under_the_same_sequence(void **state)
{
  (void)state;
  fixture *f = begin(0, false);
  const weft_snapshot *old, *s;
  wefti_entry other[1] = { tensor(f, "a", 99) };
  const uint64_t digest[2] = { 9, 9 };
  assert_err(wefti_store_swap(f->store, other, 1, digest), WEFT_E_NOT_YET);
  commit(f, 3);
  assert_ok(weft_store_pin(f->store, 0, &old));
  assert_ok(wefti_store_swap(f->store, other, 1, digest));
  wefti_cell_unref(other[0].cell);
  assert_ok(weft_store_pin(f->store, 3, &s));
  assert_int_equal(first_value(&s->tensors[0]), 99);
  assert_int_equal(first_value(&old->tensors[0]), 3);
  weft_store_unpin(f->store, s);
  weft_store_unpin(f->store, old);
  end(f);
}

static void swap_leaves_a_held_store_held(void **state)
{
  (void)state;
  fixture *f = begin(0, false);
  const weft_snapshot *s;
  wefti_entry other[1] = { tensor(f, "a", 99) };
  const uint64_t digest[2] = { 9, 9 };
  commit(f, 3);
  wefti_store_hold(f->store, true);
  const uint64_t word = atomic_load(&f->store->current);
  assert_ok(wefti_store_swap(f->store, other, 1, digest));
  wefti_cell_unref(other[0].cell);
  assert_err(weft_store_pin(f->store, 0, &s), WEFT_E_UNAVAIL);
  /* One step: there was no moment at which readers were served. */
  assert_int_equal(atomic_load(&f->store->current) >> SLOT_BITS, (word >> SLOT_BITS) + 1);
  wefti_store_hold(f->store, false);
  assert_ok(weft_store_pin(f->store, 0, &s));
  assert_int_equal(first_value(&s->tensors[0]), 99);
  weft_store_unpin(f->store, s);
  end(f);
}

static void zero_bytes_have_no_data(void **state)
{
  (void)state;
  fixture *f = begin(0, false);
  const int64_t shape[2] = { 0, 4 };
  const weft_tensor want = { .name = "z", .dtype = "int8", .shape = shape, .ndim = 2 };
  weft_extent extent;
  wefti_entry e;
  const weft_snapshot *s;
  const uint64_t digest[2] = { 0, 0 };
  assert_ok(weft_memory_alloc(&f->memory.base, 0, &extent, NULL));
  assert_ok(wefti_cell_create(&want, &f->memory.base, &extent, &e));
  assert_ok(wefti_store_install(f->store, 1, &e, 1, digest, &s));
  assert_null(s->tensors[0].data);
  assert_int_equal(s->tensors[0].shape[1], 4);
  wefti_cell_unref(e.cell);
  assert_ok(wefti_store_install(f->store, 2, NULL, 0, digest, &s)); /* an empty set */
  assert_null(weft_snapshot_find(s, "z"));
  end(f);
}

/* ---- readers against a writer */

enum { READERS = 3, COMMITS = 20000 };

typedef struct reader {
  fixture *f;
  pthread_t thread;
  atomic_bool *stop;
  bool exact;
  uint64_t pins;
  const char *wrong; /* what a reader must never see */
} reader;

static const char *look(const weft_snapshot *s)
{
  const uint64_t n = s->weights_sequence;
  if (s->tensor_count != 3 || s->digest_hi != n || s->digest_lo != ~n) {
    return "another snapshot's header";
  }
  for (size_t t = 1; t < 3; t++) { /* tensor 0 is shared from the first one on */
    for (size_t i = 0; i < VALUES; i++) {
      if (((const uint64_t *)s->tensors[t].data)[i] != n) {
        return "freed or mixed bytes";
      }
    }
  }
  return first_value(&s->tensors[0]) == 1 ? NULL : "a shared tensor's freed bytes";
}

static void *read_on(void *arg)
{
  reader *r = arg;
  uint64_t last = 0;
  while (!atomic_load(r->stop) && !r->wrong) {
    const weft_snapshot *s;
    const weft_err err = weft_store_pin(r->f->store, r->exact ? last : 0, &s);
    if (err == WEFT_E_GONE) {
      last = 0;
      continue;
    }
    if (err != WEFT_OK) {
      r->wrong = weft_err_name(err);
      break;
    }
    if (s->weights_sequence < last || (r->exact && last && s->weights_sequence != last)) {
      r->wrong = "an older or another snapshot";
      weft_store_unpin(r->f->store, s);
      break;
    }
    last = s->weights_sequence;
    r->wrong = look(s);
    r->pins++;
    weft_store_unpin(r->f->store, s);
  }
  return NULL;
}

static void install_three(fixture *f, const wefti_entry *shared, uint64_t n)
{
  wefti_entry entries[3] = { *shared, tensor(f, "b", n), tensor(f, "c", n) };
  const uint64_t digest[2] = { n, ~n };
  const weft_snapshot *s;
  weft_err err;
  do { /* a reader that is not scheduled may hold the last slot */
    err = wefti_store_install(f->store, n, entries, 3, digest, &s);
  } while (err == WEFT_E_UNAVAIL);
  assert_ok(err);
  wefti_cell_unref(entries[1].cell);
  wefti_cell_unref(entries[2].cell);
}

static void readers_never_see_freed_or_mixed_bytes(void **state)
{
  (void)state;
  fixture *f = begin(READERS + 2, false);
  atomic_bool stop = false;
  reader readers[READERS];
  wefti_entry shared = tensor(f, "a", 1);
  install_three(f, &shared, 1);
  assert_ok(wefti_store_publish(f->store, 1, 1));
  for (unsigned i = 0; i < READERS; i++) {
    readers[i] = (reader){ .f = f, .stop = &stop, .exact = i == 0 };
    assert_int_equal(pthread_create(&readers[i].thread, NULL, read_on, &readers[i]), 0);
  }
  for (uint64_t n = 2; n < COMMITS; n++) {
    install_three(f, &shared, n);
    if (n % 5 == 0) { /* an abort between the commits */
      wefti_store_drop(f->store, n);
      install_three(f, &shared, n);
    }
    assert_ok(wefti_store_publish(f->store, n, n));
  }
  atomic_store(&stop, true);
  uint64_t pins = 0;
  for (unsigned i = 0; i < READERS; i++) {
    assert_int_equal(pthread_join(readers[i].thread, NULL), 0);
    pins += readers[i].pins;
  }
  for (unsigned i = 0; i < READERS; i++) { /* all of them have ended */
    if (readers[i].wrong) {
      fail_msg("reader %u saw %s", i, readers[i].wrong);
    }
  }
  assert_true(pins > 0);
  wefti_cell_unref(shared.cell);
  wefti_store_reap(f->store);
  assert_int_equal(atomic_load(&f->memory.extents), 3); /* nothing leaked meanwhile */
  end(f);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(nothing_published_is_not_yet),
    cmocka_unit_test(a_pin_shows_the_published_set),
    cmocka_unit_test(exact_pins_know_older_and_newer),
    cmocka_unit_test(old_publish_is_confirmed_without_effect),
    cmocka_unit_test(drop_leaves_the_default),
    cmocka_unit_test(shared_cells_live_as_long_as_any_snapshot),
    cmocka_unit_test(the_cap_names_the_readers),
    cmocka_unit_test(what_another_process_maps_is_read),
    cmocka_unit_test(options_have_limits),
    cmocka_unit_test(pins_need_the_grant),
    cmocka_unit_test(held_store_serves_nobody_until_a_publish),
    cmocka_unit_test(a_new_engine_finds_nothing),
    cmocka_unit_test(swap_changes_bytes_under_the_same_sequence),
    cmocka_unit_test(swap_leaves_a_held_store_held),
    cmocka_unit_test(zero_bytes_have_no_data),
    cmocka_unit_test(readers_never_see_freed_or_mixed_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
