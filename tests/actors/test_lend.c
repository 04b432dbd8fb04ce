#include "weft_test.h"

#include "lend.h"
#include "weft/digest.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One rank's weights, over a socket, into another rank's memory. */

enum { SEQ = 3, TENSORS = 4, TAKE_MS = 20000 };

static const int64_t shapes[TENSORS][2] = {
  { 3, 5 }, { 0, 7 }, { 1 << 19, 2 }, { 1, 1 }
};
static const char *const names[TENSORS] = { "a", "b", "draft:a", "z" };

typedef struct rank {
  wefti_device *device;
  wefti_lending *lending;
  const wefti_lender *ops;
} rank;

typedef struct world {
  rank from, to;
  uint64_t digest[2];
  weft_buf *info;
} world;

static void rank_begin(rank *r)
{
  const wefti_device_opts device = { .size = sizeof device, .backend = "host" };
  assert_ok(wefti_device_create(&device, &r->device, NULL));
  assert_ok(wefti_lending_create(r->device, &r->lending));
  r->ops = r->device->lender;
  assert_non_null(r->ops);
}

static void rank_end(rank *r)
{
  wefti_lending_destroy(r->lending);
  assert_null(r->device->lender);
  wefti_device_destroy(r->device);
}

static void make_entry(rank *r, size_t i, wefti_entry *out)
{
  const bool scalar = i == TENSORS - 1;
  const weft_tensor want = { .name = names[i],
                             .dtype = "float32",
                             .shape = shapes[i],
                             .ndim = scalar ? 0 : 2,
                             .bytes = 4 * (uint64_t)(shapes[i][0] * shapes[i][1]) };
  weft_extent extent = { 0 };
  assert_ok(weft_memory_alloc(r->device->memory, want.bytes, &extent, NULL));
  for (uint64_t at = 0; at < want.bytes; at++) {
    ((uint8_t *)extent.ptr)[at] = (uint8_t)(at * 7 + i);
  }
  assert_ok(wefti_cell_create(&want, r->device->memory, &extent, out));
  weft_digest_store(weft_digest_of(want.bytes > 0 ? out->t.data : "", want.bytes),
                    out->t.digest);
}

static void begin(world *w)
{
  wefti_entry entries[TENSORS];
  const weft_snapshot *s;
  *w = (world){ .info = NULL };
  rank_begin(&w->from);
  rank_begin(&w->to);
  for (size_t i = 0; i < TENSORS; i++) {
    make_entry(&w->from, i, &entries[i]);
  }
  assert_ok(wefti_entries_digest(entries, TENSORS, w->digest));
  assert_ok(
      wefti_store_install(w->from.device->store, 1, entries, TENSORS, w->digest, &s));
  assert_ok(wefti_store_publish(w->from.device->store, 1, SEQ));
  for (size_t i = 0; i < TENSORS; i++) {
    wefti_cell_unref(entries[i].cell);
  }
}

static uint32_t pins(const rank *r)
{
  char text[256];
  return wefti_store_readers(r->device->store, text, sizeof text);
}

static void end(world *w)
{
  weft_buf_unref(w->info);
  rank_end(&w->from);
  rank_end(&w->to);
}

static weft_err lend(world *w, const char *towards, weft_why *why)
{
  const weft_snapshot *s = wefti_store_base(w->from.device->store);
  weft_buf_unref(w->info);
  w->info = NULL;
  const weft_err err = w->from.ops->lend(w->from.ops->arg, s, towards, &w->info, why);
  if (err != WEFT_OK) {
    weft_store_unpin(w->from.device->store, s);
  }
  return err;
}

/* Another loan; the one before need not have ended. */
static void lend_again(world *w)
{
  weft_err err = WEFT_E_UNAVAIL;
  while (err == WEFT_E_UNAVAIL) { /* too many have not ended */
    err = lend(w, "", NULL);
  }
  assert_ok(err);
}

static weft_err fetch(world *w, const uint64_t digest[2], weft_why *why)
{
  atomic_store(&w->to.device->cancel, false);
  return wefti_device_fetch(w->to.device, w->info, digest, TAKE_MS, why);
}

static void expect_all(world *w)
{
  assert_ok(wefti_store_publish(w->to.device->store, WEFTI_RECALL_EPOCH, SEQ));
  const weft_snapshot *a = wefti_store_base(w->from.device->store);
  const weft_snapshot *b = wefti_store_base(w->to.device->store);
  assert_int_equal(b->weights_sequence, SEQ);
  assert_int_equal(b->tensor_count, TENSORS);
  for (size_t i = 0; i < TENSORS; i++) {
    assert_string_equal(a->tensors[i].name, b->tensors[i].name);
    assert_string_equal(a->tensors[i].dtype, b->tensors[i].dtype);
    assert_int_equal(a->tensors[i].ndim, b->tensors[i].ndim);
    assert_int_equal(a->tensors[i].bytes, b->tensors[i].bytes);
    assert_memory_equal(a->tensors[i].digest, b->tensors[i].digest, 16);
    assert_int_equal(memcmp(a->tensors[i].bytes > 0 ? a->tensors[i].data : "",
                            b->tensors[i].bytes > 0 ? b->tensors[i].data : "",
                            a->tensors[i].bytes),
                     0);
  }
  weft_store_unpin(w->from.device->store, a);
  weft_store_unpin(w->to.device->store, b);
}

static void all_of_it_arrives(void **state)
{
  (void)state;
  static const char *const towards[] = { "", "tcp://127.0.0.1:9", "ipc:///x" };
  for (size_t i = 0; i < 3; i++) {
    world w;
    begin(&w);
    assert_ok(lend(&w, towards[i], NULL));
    assert_int_equal(pins(&w.from), 1);
    assert_ok(fetch(&w, w.digest, NULL));
    expect_all(&w);
    lend_again(&w);
    end(&w); /* with a loan that nobody takes */
  }
}

static void only_what_the_engine_has_named_is_installed(void **state)
{
  (void)state;
  world w;
  weft_why why;
  begin(&w);
  assert_ok(lend(&w, "", NULL));
  const uint64_t other[2] = { w.digest[0], w.digest[1] ^ 1 };
  assert_err(fetch(&w, other, &why), WEFT_E_FAILED);
  assert_non_null(strstr(why.text, "not what the engine has published"));
  assert_err(wefti_store_publish(w.to.device->store, WEFTI_RECALL_EPOCH, SEQ),
             WEFT_E_STATE);
  lend_again(&w); /* once is once: the next one needs a loan of its own */
  assert_ok(fetch(&w, w.digest, NULL));
  expect_all(&w);
  end(&w);
}

static void wait_for_pins(const rank *r, uint32_t count)
{
  while (pins(r) != count) {
    (void)sched_yield();
  }
}

/* Its borrower died before it came: the next one is not told to ask again. */
static void a_loan_does_not_wait_for_the_end_of_the_one_before(void **state)
{
  (void)state;
  world w;
  begin(&w);
  assert_ok(lend(&w, "", NULL));
  weft_buf *first = weft_buf_ref(w.info);
  assert_ok(lend(&w, "", NULL));
  assert_ok(fetch(&w, w.digest, NULL));
  expect_all(&w);
  wait_for_pins(&w.from, 0);
  weft_buf_unref(w.info);
  w.info = first;
  const uint64_t again[2] = { 1, 2 };
  assert_true(fetch(&w, again, NULL) != WEFT_OK);
  for (unsigned i = 0; i < 20; i++) {
    lend_again(&w);
  }
  wait_for_pins(&w.from, 1);
  end(&w);
}

static void a_loan_is_for_one(void **state)
{
  (void)state;
  world w;
  begin(&w);
  assert_ok(lend(&w, "", NULL));
  weft_buf *first = weft_buf_ref(w.info);
  assert_ok(fetch(&w, w.digest, NULL));
  expect_all(&w);
  lend_again(&w);
  assert_false(w.info->len == first->len &&
               memcmp(w.info->data, first->data, first->len) == 0);
  weft_buf_unref(w.info);
  w.info = first; /* of the past: its secret opens nothing */
  const uint64_t again[2] = { 1, 2 };
  assert_true(fetch(&w, again, NULL) != WEFT_OK);
  end(&w);
}

static void a_stop_ends_it(void **state)
{
  (void)state;
  world w;
  begin(&w);
  assert_ok(lend(&w, "", NULL));
  w.from.ops->stop(w.from.ops->arg);
  weft_buf *old = weft_buf_ref(w.info);
  lend_again(&w);
  wait_for_pins(&w.from, 1); /* of the new one alone */
  weft_buf_unref(w.info);
  w.info = old;
  weft_why why;
  assert_true(fetch(&w, w.digest, &why) != WEFT_OK);
  end(&w);
}

static void a_cancelled_fetch_lets_go(void **state)
{
  (void)state;
  world w;
  begin(&w);
  assert_ok(lend(&w, "", NULL));
  atomic_store(&w.to.device->cancel, true);
  assert_err(wefti_device_fetch(w.to.device, w.info, w.digest, TAKE_MS, NULL),
             WEFT_E_CANCELLED);
  weft_memory_stats stats;
  weft_memory_stats_get(w.to.device->memory, &stats);
  assert_int_equal(stats.used, 0);
  end(&w);
}

static void what_is_no_loan_is_refused(void **state)
{
  (void)state;
  static const char *const texts[] = {
    "",
    "{",
    "[]",
    "{}",
    "{\"source\":{\"kind\":\"safetensors\",\"path\":\"/etc/passwd\"}}",
    "{\"source\":{\"kind\":\"tcp\"}}",
    "{\"source\":{\"kind\":\"tcp\",\"address\":7}}",
    "{\"source\":{\"kind\":\"tcp\",\"address\":\"127.0.0.1:1\",\"token\":\"x\"}}",
    "{\"source\":{\"kind\":\"tcp\",\"address\":\":\",\"token\":\"x\"},\"names\":7}"
  };
  world w;
  begin(&w);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    weft_buf_unref(w.info);
    w.info = weft_buf_create(texts[i], strlen(texts[i]));
    assert_non_null(w.info);
    assert_true(fetch(&w, w.digest, NULL) != WEFT_OK);
  }
  weft_why why;
  assert_err(lend(&w, "tcp://some.name.example:5", &why), WEFT_E_UNSUPPORTED);
  assert_int_equal(pins(&w.from), 0);
  end(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(all_of_it_arrives),
    cmocka_unit_test(only_what_the_engine_has_named_is_installed),
    cmocka_unit_test(a_loan_does_not_wait_for_the_end_of_the_one_before),
    cmocka_unit_test(a_loan_is_for_one),
    cmocka_unit_test(a_stop_ends_it),
    cmocka_unit_test(a_cancelled_fetch_lets_go),
    cmocka_unit_test(what_is_no_loan_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
