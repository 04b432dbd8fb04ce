/* Staging in place, through worker and device actor with real slabs: what is written
 * where and when, who may read meanwhile, and what a failure leaves. */
#define _GNU_SOURCE /* mkdtemp */
#include "device_fixture.h"

#include <sys/mman.h>

/* Larger than what is read together with its neighbours. */
static const spec pair[] = {
  { "a", WEFT_DTYPE_UINT8, 1, { 300000 }, 1 },
  { "b", WEFT_DTYPE_UINT8, 1, { 300000 }, 2 },
};
static const spec pair_new[] = {
  { "a", WEFT_DTYPE_UINT8, 1, { 300000 }, 11 },
  { "b", WEFT_DTYPE_UINT8, 1, { 300000 }, 12 },
};

static fixture *begin_inplace(void)
{
  /* One thread: a comes before b. */
  const wefti_device_opts opts = {
    .size = sizeof opts, .backend = "host", .threads = 1, .inplace = true
  };
  return begin_with(&opts);
}

static bool can_pin(const fixture *f)
{
  const weft_snapshot *s;
  if (weft_store_pin(f->w->device->store, 0, &s) != WEFT_OK) {
    return false;
  }
  weft_store_unpin(f->w->device->store, s);
  return true;
}

/* As another process sees it. */
static bool slab_is_marked(const fixture *f, uint32_t slab)
{
  uint64_t bytes = 0;
  const int fd = weft_memory_slab_fd(f->w->device->memory, slab, &bytes);
  assert_true(fd >= 0);
  void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
  assert_true(base != MAP_FAILED);
  const bool marked = weft_slab_dirty(base, bytes);
  assert_int_equal(munmap(base, bytes), 0);
  return marked;
}

static const weft_w_state *beat(fixture *f, uint64_t resume)
{
  return world_as(world_ask(f->w, w_beat, W_BEAT, 0, .resume = resume), w_state, W_STATE);
}

static const weft_w_ok *abort_it(fixture *f)
{
  return world_as(world_ask(f->w, w_abort, W_ABORT, f->epoch, .reason = WEFT_STR("test")),
                  w_ok, W_OK);
}

static void says(const weft_msg *m, const char *text)
{
  const weft_w_refused *r = world_as(m, w_refused, W_REFUSED);
  if (strstr(r->text.p, text) == NULL) {
    fail_msg("'%s' does not say '%s'", r->text.p, text);
  }
}

/* Half of what comes does: b's bytes are not there. */
static void fail_half_way(fixture *f)
{
  char path[PATH_LEN];
  path_in(f, path);
  write_file(path, pair_new, 2);
  struct stat st;
  assert_int_equal(stat(path, &st), 0);
  world_as(start(f), w_ok, W_OK);
  world_as(accept_file(f, path), w_ok, W_OK);
  assert_int_equal(truncate(path, st.st_size - 100000), 0);
  says(go(f, WEFT_TRANSFER_UPDATE), "truncated");
  assert_int_equal(unlink(path), 0);
}

static void addresses_stay_and_nothing_is_allocated(void **state)
{
  (void)state;
  fixture *f = begin_inplace();
  const void *at[2];
  const weft_snapshot *s;
  commit(f, pair, 2);
  assert_ok(weft_store_pin(f->w->device->store, 0, &s));
  at[0] = weft_snapshot_find(s, "a")->data;
  at[1] = weft_snapshot_find(s, "b")->data;
  weft_store_unpin(f->w->device->store, s);
  const weft_memory_stats before = memory_stats(f);
  for (uint8_t i = 0; i < 20; i++) {
    spec both[2] = { pair[0], pair[1] };
    both[0].fill = (uint8_t)(100 + i);
    both[1].fill = (uint8_t)(200 + i);
    const weft_w_finished done = commit(f, both, i % 3 == 0 ? 1 : 2);
    assert_int_equal(done.tensors, 2);
    assert_ok(weft_store_pin(f->w->device->store, 0, &s));
    assert_int_equal(s->weights_sequence, i + 2);
    assert_ptr_equal(weft_snapshot_find(s, "a")->data, at[0]);
    assert_ptr_equal(weft_snapshot_find(s, "b")->data, at[1]);
    uint8_t digest[WEFT_DIGEST_BYTES];
    const weft_tensor *t = weft_snapshot_find(s, "a");
    weft_digest_store(weft_digest_of(t->data, t->bytes), digest);
    assert_memory_equal(t->digest, digest, sizeof digest);
    weft_store_unpin(f->w->device->store, s);
    assert_int_equal(live_fill(f, "a"), 100 + i);
    assert_int_equal(memory_stats(f).used, before.used);
    assert_int_equal(memory_stats(f).fresh, before.fresh);
  }
  end(f);
}

/* What finish has hashed once more is all that came, whatever came last. */
static void on_install(void *arg, uint64_t epoch, const weft_snapshot *snapshot)
{
  const fixture *f = arg;
  (void)snapshot;
  assert_int_equal(epoch, f->epoch);
  assert_int_equal(atomic_load(&f->w->device->received), 600000);
  assert_int_equal(atomic_load(&f->w->device->expected), 600000);
}

static void readers_are_refused_from_start_to_publish(void **state)
{
  (void)state;
  fixture *f = begin_inplace();
  const weft_snapshot *s;
  commit(f, pair, 2);
  world_as(start(f), w_ok, W_OK);
  assert_err(weft_store_pin(f->w->device->store, 0, &s), WEFT_E_UNAVAIL);
  assert_err(weft_store_pin(f->w->device->store, 1, &s), WEFT_E_UNAVAIL);
  assert_int_equal(beat(f, 0)->poisoned, 0);
  update(f, pair_new, 2);
  assert_int_equal(beat(f, 0)->poisoned, f->epoch); /* written over, not poisoned yet */
  assert_int_equal(beat(f, 0)->phase, WEFT_WORKER_OPEN);
  assert_int_equal(beat(f, 0)->weights_sequence, 0);
  update(f, pair_new, 1);
  assert_int_equal(beat(f, 0)->expected, 300000);
  f->w->device->on_install = on_install;
  f->w->device->on_install_arg = f;
  world_as(finish(f, false), w_finished, W_FINISHED);
  f->w->device->on_install = NULL;
  assert_err(weft_store_pin(f->w->device->store, 0, &s), WEFT_E_UNAVAIL);
  publish(f);
  assert_err(weft_store_pin(f->w->device->store, 1, &s), WEFT_E_GONE);
  assert_int_equal(live_fill(f, "b"), 12);
  assert_int_equal(beat(f, 0)->poisoned, 0);
  assert_int_equal(beat(f, 0)->weights_sequence, 2);
  end(f);
}

static void a_start_waits_for_readers_until_its_deadline(void **state)
{
  (void)state;
  fixture *f = begin_inplace();
  const weft_snapshot *s;
  commit(f, pair, 2);
  assert_ok(weft_store_pin(f->w->device->store, 0, &s));
  assert_null(start(f));
  uint64_t corr = f->w->corr;
  assert_false(can_pin(f));
  weft_sim_run(f->w->sim, weft_sim_now_ms(f->w->sim) + 1000);
  assert_null(world_answer(f->w, corr));
  weft_store_unpin(f->w->device->store, s); /* in time */
  weft_sim_run(f->w->sim, weft_sim_now_ms(f->w->sim) + 100);
  world_is(world_answer(f->w, corr), WEFT_MSG_W_OK);
  assert_int_equal(abort_it(f)->poisoned, 0);
  assert_false(
      can_pin(f)); /* until the engine says that the session is over everywhere */
  beat(f, f->epoch - 1);
  assert_false(can_pin(f));
  beat(f, f->epoch);
  assert_int_equal(live_fill(f, "a"), 1);

  assert_ok(weft_store_pin(f->w->device->store, 0, &s));
  assert_null(start(f));
  corr = f->w->corr;
  weft_sim_run(f->w->sim, weft_sim_now_ms(f->w->sim) + 4000);
  says(world_answer(f->w, corr), "1 reader still holds");
  says(world_answer(f->w, corr), "sequence 1 by 1 reader");
  world_refused(world_answer(f->w, corr), WEFT_E_CONFLICT);
  weft_store_unpin(f->w->device->store, s);
  beat(f, f->epoch);
  assert_int_equal(live_fill(f, "a"), 1);
  commit(f, pair_new, 2);
  assert_int_equal(live_fill(f, "a"), 11);
  end(f);
}

static void a_start_that_waits_keeps_the_device_thread(void **state)
{
  (void)state;
  fixture *f = begin_inplace();
  const weft_snapshot *s;
  commit(f, pair, 2);
  assert_ok(weft_store_pin(f->w->device->store, 0, &s));
  assert_null(start(f));
  const uint64_t corr = f->w->corr;
  world_refused(world_ask(f->w, w_query, W_QUERY, 0, .what = WEFT_QUERY_CHECKSUM),
                WEFT_E_UNAVAIL);
  world_as(world_ask(f->w, w_beat, W_BEAT, 0, .grant = 0), w_state, W_STATE);
  weft_store_unpin(f->w->device->store, s);
  weft_sim_run(f->w->sim, weft_sim_now_ms(f->w->sim) + 100);
  world_is(world_answer(f->w, corr), WEFT_MSG_W_OK);
  update(f, pair_new, 2);
  world_as(finish(f, false), w_finished, W_FINISHED);
  publish(f);
  assert_int_equal(live_fill(f, "b"), 12);
  end(f);
}

static void an_abort_ends_the_wait_for_readers(void **state)
{
  (void)state;
  fixture *f = begin_inplace();
  const weft_snapshot *s;
  commit(f, pair, 2);
  assert_ok(weft_store_pin(f->w->device->store, 0, &s));
  assert_null(start(f));
  const uint64_t corr = f->w->corr;
  abort_it(f);
  world_refused(world_answer(f->w, corr), WEFT_E_CANCELLED);
  weft_store_unpin(f->w->device->store, s);
  beat(f, f->epoch);
  assert_true(can_pin(f));
  end(f);
}

static void before_the_first_byte_nothing_is_lost(void **state)
{
  (void)state;
  fixture *f = begin_inplace();
  char path[PATH_LEN];
  path_in(f, path);
  commit(f, pair, 2);
  world_as(start(f), w_ok, W_OK); /* refused on sight */
  spec wrong[2] = { pair_new[0], pair_new[1] };
  wrong[1].shape[0] = 7;
  write_file(path, wrong, 2);
  says(accept_file(f, path), "'b'");
  assert_int_equal(abort_it(f)->poisoned, 0);
  world_as(start(f), w_ok, W_OK); /* accepted, and never sent */
  write_file(path, pair_new, 2);
  world_as(accept_file(f, path), w_ok, W_OK);
  assert_int_equal(abort_it(f)->poisoned, 0);
  world_as(start(f), w_ok, W_OK); /* gone when it is read */
  world_as(accept_file(f, path), w_ok, W_OK);
  assert_int_equal(truncate(path, 64), 0);
  world_is(go(f, WEFT_TRANSFER_UPDATE), WEFT_MSG_W_REFUSED);
  assert_int_equal(abort_it(f)->poisoned, 0);
  world_as(start(f), w_ok, W_OK); /* what is new lies beside */
  const spec beside = { "c", WEFT_DTYPE_UINT8, 1, { 5000 }, 9 };
  update(f, &beside, 1);
  assert_int_equal(abort_it(f)->poisoned, 0);
  const weft_w_state *st = beat(f, f->epoch);
  assert_int_equal(st->weights_sequence, 1);
  assert_int_equal(st->phase, WEFT_WORKER_IDLE);
  assert_int_equal(live_fill(f, "a"), 1);
  assert_int_equal(live_fill(f, "b"), 2);
  end(f);
}

static void a_failure_after_it_poisons_until_a_full_update(void **state)
{
  (void)state;
  fixture *f = begin_inplace();
  const weft_snapshot *s;
  commit(f, pair, 2);
  const weft_snapshot *base = wefti_store_base(f->w->device->store);
  const uint32_t slab = wefti_cell_extent(wefti_snapshot_cell(base, 0))->slab;
  weft_store_unpin(f->w->device->store, base);
  assert_false(slab_is_marked(f, slab));
  fail_half_way(f);
  assert_true(slab_is_marked(f, slab));
  assert_int_equal(abort_it(f)->poisoned, f->epoch);
  const weft_w_state *st = beat(f, f->epoch); /* no resume serves it */
  assert_int_equal(st->phase, WEFT_WORKER_POISONED);
  assert_int_equal(st->poisoned, f->epoch);
  assert_int_equal(st->weights_sequence, 0);
  assert_err(weft_store_pin(f->w->device->store, 0, &s), WEFT_E_UNAVAIL);
  assert_err(weft_store_pin(f->w->device->store, 1, &s), WEFT_E_UNAVAIL);
  says(world_ask(f->w, w_query, W_QUERY, 0, .what = WEFT_QUERY_WEIGHTS), "poisoned");
  says(world_ask(f->w, w_query, W_QUERY, 0, .what = WEFT_QUERY_CHECKSUM), "poisoned");

  world_as(start(f), w_ok, W_OK); /* a part, although it names what was published */
  update(f, pair_new, 1);
  says(finish(f, false), "1 did not come: b");
  assert_int_equal(abort_it(f)->poisoned, f->epoch);
  assert_true(slab_is_marked(f, slab));

  const weft_memory_stats before = memory_stats(f);
  commit(f, pair_new, 2);
  assert_false(slab_is_marked(f, slab));
  assert_int_equal(memory_stats(f).used, before.used); /* over the torn ones */
  assert_int_equal(beat(f, 0)->poisoned, 0);
  assert_int_equal(live_fill(f, "a"), 11);
  assert_int_equal(live_fill(f, "b"), 12);
  end(f);
}

static void an_abort_after_finish_poisons(void **state)
{
  (void)state;
  fixture *f = begin_inplace();
  commit(f, pair, 2);
  world_as(start(f), w_ok, W_OK);
  update(f, pair_new, 2);
  world_as(finish(f, false), w_finished, W_FINISHED);
  assert_int_equal(abort_it(f)->poisoned, f->epoch);
  beat(f, f->epoch);
  assert_false(can_pin(f));
  end(f);
}

static void another_engine_finds_nothing(void **state)
{
  (void)state;
  fixture *f = begin_inplace();
  const uint64_t none[2] = { 0, 0 };
  commit(f, pair, 2);
  fail_half_way(f);
  f->w->boot++;
  const weft_w_state *st = world_as(world_adopt(f->w, 0, none), w_state, W_STATE);
  assert_int_equal(st->poisoned, 0);
  assert_int_equal(st->weights_sequence, 0);
  f->sequence = 0;
  f->epoch = 0;
  commit(f, pair_new, 2);
  assert_int_equal(live_fill(f, "a"), 11);
  end(f);
}

static void tied_tensors_stay_one(void **state)
{
  (void)state;
  char path[] = "/tmp/weft-tied-XXXXXX";
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  static const char text[] =
      "{\"names\":[\"a\",\"b\"],\"dtype_names\":[\"uint8\",\"uint8\"],"
      "\"shapes\":[[300000],[300000]],\"tied\":[[\"a\",\"b\"]]}";
  assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
  assert_int_equal(close(fd), 0);
  const wefti_device_opts opts = { .size = sizeof opts,
                                   .backend = "host",
                                   .threads = 1,
                                   .inplace = true,
                                   .manifest = path };
  fixture *f = begin_with(&opts);
  assert_int_equal(unlink(path), 0);
  commit(f, pair, 1); /* either of them brings both */
  assert_int_equal(live_fill(f, "b"), 1);
  const weft_memory_stats before = memory_stats(f);
  spec b = pair[1];
  commit(f, &b, 1);
  assert_int_equal(live_fill(f, "a"), 2);
  assert_int_equal(memory_stats(f).used, before.used);
  world_as(start(f), w_ok, W_OK); /* both, but not the same */
  update(f, pair_new, 2);
  says(finish(f, false), "are tied");
  b.fill = 50;
  update(f, &b, 1); /* mended: the last one counts, when the other one says so too */
  spec a = pair[0];
  a.fill = 50;
  update(f, &a, 1);
  world_as(finish(f, false), w_finished, W_FINISHED);
  publish(f);
  assert_int_equal(live_fill(f, "a"), 50);
  assert_int_equal(live_fill(f, "b"), 50);
  assert_int_equal(memory_stats(f).used, before.used);
  end(f);
}

static void staging_is_of_worker_and_engine(void **state)
{
  (void)state;
  fixture *f = begin_inplace();
  says(world_ask(f->w, w_start, W_START, ++f->epoch, .inplace = 0), "--staging inplace");
  end(f);
  f = begin();
  says(world_ask(f->w, w_start, W_START, ++f->epoch, .inplace = 1), "--staging shadow");
  end(f);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(addresses_stay_and_nothing_is_allocated),
    cmocka_unit_test(readers_are_refused_from_start_to_publish),
    cmocka_unit_test(a_start_waits_for_readers_until_its_deadline),
    cmocka_unit_test(a_start_that_waits_keeps_the_device_thread),
    cmocka_unit_test(an_abort_ends_the_wait_for_readers),
    cmocka_unit_test(before_the_first_byte_nothing_is_lost),
    cmocka_unit_test(a_failure_after_it_poisons_until_a_full_update),
    cmocka_unit_test(an_abort_after_finish_poisons),
    cmocka_unit_test(another_engine_finds_nothing),
    cmocka_unit_test(tied_tensors_stay_one),
    cmocka_unit_test(staging_is_of_worker_and_engine),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
