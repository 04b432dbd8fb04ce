/* A worker's device with a draft model: two sets of weights in one snapshot, of which a
 * session writes one. */
#define _GNU_SOURCE /* mkdtemp */
#include "device_fixture.h"
#include "weft/digest.h"

static fixture *begin_two(void)
{
  const wefti_device_opts opts = { .size = sizeof opts, .threads = 2, .draft = true };
  return begin_with(&opts);
}

static const weft_msg *open_set(fixture *f, bool draft, bool alone)
{
  wefti_store_state st;
  wefti_store_state_get(f->w->device->store, &st);
  return world_ask(f->w, w_start, W_START, ++f->epoch, .draft = draft, .alone = alone,
                   .base_sequence = st.weights_sequence, .base_digest_hi = st.digest_hi,
                   .base_digest_lo = st.digest_lo);
}

static weft_w_finished commit_to(fixture *f, bool draft, const spec *specs, size_t count)
{
  world_as(open_set(f, draft, false), w_ok, W_OK);
  update(f, specs, count);
  const weft_w_finished done = *world_as(finish(f, false), w_finished, W_FINISHED);
  publish(f);
  return done;
}

static void abort_it(fixture *f)
{
  world_is(world_ask(f->w, w_abort, W_ABORT, f->epoch, .reason = WEFT_STR("test")),
           WEFT_MSG_W_OK);
}

static void says(const weft_msg *m, const char *what)
{
  const weft_w_refused *r = world_as(m, w_refused, W_REFUSED);
  if (!strstr(r->text.p, what)) {
    fail_msg("no \"%s\" in: %s", what, r->text.p);
  }
}

static const void *live_data(fixture *f, const char *name)
{
  const weft_snapshot *s;
  assert_ok(weft_store_pin(f->w->device->store, 0, &s));
  const weft_tensor *t = weft_snapshot_find(s, name);
  assert_non_null(t);
  const void *data = t->data;
  weft_store_unpin(f->w->device->store, s);
  return data;
}

/* Names on both sides of the draft model's in byte order. */
/* clang-format off */
#define A(fill) { "a", WEFT_DTYPE_INT8, 1, { 100 }, (fill) }
#define E(fill) { "e", WEFT_DTYPE_FLOAT32, 1, { 8 }, (fill) }
#define Z(fill) { "z", WEFT_DTYPE_INT8, 1, { 50 }, (fill) }
/* clang-format on */

static void a_session_writes_one_set_and_shares_the_other(void **state)
{
  (void)state;
  fixture *f = begin_two();
  const spec three[] = { A(1), E(2), Z(3) };
  const spec two[] = { Z(7), A(6) };
  const weft_w_finished main_set = commit_to(f, false, three, 3);
  assert_int_equal(main_set.set_tensors, 3);
  assert_int_equal(main_set.digest_hi, main_set.set_digest_hi);
  const void *before = live_data(f, "e");
  const weft_w_finished draft = commit_to(f, true, two, 2);
  assert_int_equal(draft.tensors, 5);
  assert_int_equal(draft.bytes, 100 + 32 + 50 + 50 + 100);
  assert_int_equal(draft.set_tensors, 2);
  assert_int_equal(draft.set_bytes, 150);
  assert_int_equal(draft.missing, 0); /* the main model's did not have to come */
  assert_int_not_equal(draft.set_digest_hi, draft.digest_hi);
  assert_ptr_equal(live_data(f, "e"), before);
  assert_int_equal(live_fill(f, "a"), 1);
  assert_int_equal(live_fill(f, "z"), 3);
  assert_int_equal(live_fill(f, "draft:a"), 6);
  assert_int_equal(live_fill(f, "draft:z"), 7);
  /* and the other way round; the main set's digest is what it was without a draft */
  const void *kept = live_data(f, "draft:z");
  const weft_w_finished again = commit_to(f, false, three, 3);
  assert_int_equal(again.missing, 0);
  assert_int_equal(again.tensors, 5);
  assert_int_equal(again.set_digest_hi, main_set.set_digest_hi);
  assert_int_equal(again.set_digest_lo, main_set.set_digest_lo);
  assert_int_equal(again.digest_hi, draft.digest_hi);
  assert_ptr_equal(live_data(f, "draft:z"), kept);
  end(f);
}

static void a_draft_sets_digest_is_of_the_clients_names(void **state)
{
  (void)state;
  const spec two[] = { A(6), Z(7) };
  fixture *f = begin();
  const weft_w_finished plain = commit(f, two, 2);
  assert_int_equal(plain.set_tensors, 2);
  assert_int_equal(plain.set_digest_lo, plain.digest_lo);
  end(f);
  f = begin_two();
  const weft_w_finished draft = commit_to(f, true, two, 2); /* before any main set */
  assert_int_equal(draft.set_digest_hi, plain.digest_hi);
  assert_int_equal(draft.set_digest_lo, plain.digest_lo);
  assert_int_equal(live_fill(f, "a"), -1);
  const spec e[] = { E(4) };
  assert_int_equal(commit_to(f, false, e, 1).tensors, 3);
  assert_int_equal(live_fill(f, "draft:a"), 6);
  end(f);
}

static void an_abort_leaves_both_sets(void **state)
{
  (void)state;
  fixture *f = begin_two();
  const spec old[] = { A(1) }, new[] = { A(2) };
  commit_to(f, false, old, 1);
  commit_to(f, true, old, 1);
  for (unsigned draft = 0; draft < 2; draft++) {
    world_as(open_set(f, draft != 0, false), w_ok, W_OK);
    update(f, new, 1);
    world_as(finish(f, false), w_finished, W_FINISHED);
    abort_it(f);
    assert_int_equal(live_fill(f, "a"), 1);
    assert_int_equal(live_fill(f, "draft:a"), 1);
  }
  end(f);
}

static void only_a_draft_session_touches_draft_names(void **state)
{
  (void)state;
  fixture *f = begin_two();
  char path[PATH_LEN];
  path_in(f, path);
  const spec taken[] = { A(1),
                         { "draft:a", WEFT_DTYPE_INT8, 1, { 100 }, 9 },
                         { "draft:", WEFT_DTYPE_INT8, 0, { 0 }, 9 } };
  write_file(path, taken, 3);
  world_as(open_set(f, false, false), w_ok, W_OK);
  const weft_msg *m = accept_file(f, path);
  world_refused(m, WEFT_E_INVAL);
  says(m, "start_draft_weight_update");
  says(m, ": draft:, draft:a");
  assert_int_equal(memory_stats(f).extents, 0);
  abort_it(f);
  assert_int_equal(unlink(path), 0);
  end(f);
  f = begin(); /* without a draft model it is a name like others */
  commit(f, taken, 3);
  assert_int_equal(live_fill(f, "draft:a"), 9);
  end(f);
}

static void a_wrong_shape_is_judged_within_the_set(void **state)
{
  (void)state;
  fixture *f = begin_two();
  char path[PATH_LEN];
  path_in(f, path);
  const spec main_set[] = { A(1), Z(1) };
  const spec draft[] = { { "a", WEFT_DTYPE_INT8, 1, { 10 }, 2 },
                         { "m", WEFT_DTYPE_INT8, 1, { 10 }, 2 } };
  commit_to(f, false, main_set, 2);
  commit_to(f, true, draft, 2); /* another shape than the main model's of that name */
  write_file(path, main_set, 2);
  world_as(open_set(f, true, false), w_ok, W_OK);
  const weft_msg *m = accept_file(f, path);
  world_refused(m, WEFT_E_INVAL);
  says(m, "tensor 'a': the draft model's live one is int8 [10], the update brings int8 "
          "[100]");
  abort_it(f);
  assert_int_equal(unlink(path), 0);
  commit_to(f, false, main_set, 2);
  end(f);
}

/* Few tensors of many are looked up, many are walked beside the live ones. */
static void both_ways_of_comparing_see_one_set_only(void **state)
{
  (void)state;
  fixture *f = begin_two();
  char path[PATH_LEN], name[16][8];
  path_in(f, path);
  spec many[16];
  for (int i = 0; i < 16; i++) {
    (void)snprintf(name[i], sizeof name[i], "%c%02d", i % 2 ? 'c' : 'e', i);
    many[i] = (spec){ name[i], WEFT_DTYPE_INT8, 1, { 4 }, (uint8_t)i };
  }
  for (unsigned draft = 0; draft < 2; draft++) {
    for (int i = 0; i < 16; i++) {
      many[i].shape[0] = 4 + (int)draft;
    }
    commit_to(f, draft != 0, many, 16);
  }
  for (int i = 0; i < 32; i++) {
    const bool draft = i % 2 != 0;
    spec one = many[i / 2];
    one.shape[0] = draft ? 5 : 4;
    one.fill = (uint8_t)(100 + i);
    commit_to(f, draft, &one, 1);
    one.shape[0]++;
    write_file(path, &one, 1);
    world_as(open_set(f, draft, false), w_ok, W_OK);
    world_refused(accept_file(f, path), WEFT_E_INVAL);
    abort_it(f);
    assert_int_equal(unlink(path), 0);
    char full_name[16];
    (void)snprintf(full_name, sizeof full_name, "%s%s", draft ? "draft:" : "", one.name);
    assert_int_equal(live_fill(f, full_name), 100 + i);
  }
  end(f);
}

static void coverage_is_of_the_sessions_set(void **state)
{
  (void)state;
  fixture *f = begin_two();
  const spec three[] = { A(1), E(2), Z(3) };
  const spec one[] = { E(5) };
  commit_to(f, false, three, 3);
  commit_to(f, true, three, 3);
  world_as(open_set(f, true, false), w_ok, W_OK);
  update(f, one, 1);
  const weft_msg *m = finish(f, true);
  world_refused(m, WEFT_E_CONFLICT);
  says(m, "strict coverage of the draft model: 2 live tensors did not come: a, z");
  const weft_w_finished *done = world_as(finish(f, false), w_finished, W_FINISHED);
  assert_int_equal(done->missing, 2);
  assert_string_equal((const char *)done->missing_names->data, "[\"a\",\"z\"]");
  publish(f);
  world_as(open_set(f, false, false), w_ok, W_OK);
  update(f, three, 3);
  world_as(finish(f, true), w_finished,
           W_FINISHED); /* the draft model's are none of it */
  publish(f);
  assert_int_equal(live_fill(f, "draft:a"), 1);
  assert_int_equal(live_fill(f, "draft:e"), 5);
  end(f);
}

static void a_draft_manifest_lists_the_draft_set(void **state)
{
  (void)state;
  char dir[] = "/tmp/weft-listed-XXXXXX", path[PATH_LEN];
  assert_non_null(mkdtemp(dir));
  (void)snprintf(path, sizeof path, "%s/m.json", dir);
  FILE *file = fopen(path, "we");
  assert_non_null(file);
  assert_true(fputs("{\"names\":[\"head\",\"a\",\"e\"],\"dtypes\":[\"int8\",\"int8\","
                    "\"float32\"],\"shapes\":[[100],[100],[8]],\"tied\":[[\"head\","
                    "\"a\"]]}",
                    file) >= 0);
  assert_int_equal(fclose(file), 0);
  wefti_device *none = NULL;
  weft_why why = { 0 };
  wefti_device_opts opts = { .size = sizeof opts, .draft_manifest = path };
  assert_err(wefti_device_create(&opts, &none, &why), WEFT_E_INVAL);
  opts.draft = true;
  fixture *f = begin_with(&opts);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(dir), 0);
  const spec z[] = { Z(1) }, a[] = { A(4) };
  commit_to(f, false, z, 1); /* the main set has no manifest */
  path_in(f, path);
  write_file(path, z, 1);
  world_as(open_set(f, true, false), w_ok, W_OK);
  says(accept_file(f, path), "not in the draft manifest: z");
  abort_it(f);
  assert_int_equal(unlink(path), 0);
  world_as(open_set(f, true, false), w_ok, W_OK);
  update(f, a, 1);
  says(finish(f, true),
       "strict coverage of the draft model: 1 tensors of the manifest did not "
       "come: e");
  const weft_w_finished *done = world_as(finish(f, false), w_finished, W_FINISHED);
  assert_string_equal((const char *)done->missing_names->data, "[\"e\"]");
  assert_int_equal(done->set_tensors, 2);
  publish(f);
  assert_ptr_equal(live_data(f, "draft:head"), live_data(f, "draft:a"));
  end(f);
}

static void a_set_that_was_lost_elsewhere_ends(void **state)
{
  (void)state;
  fixture *f = begin_two();
  const spec two[] = { A(1), Z(2) };
  commit_to(f, false, two, 2);
  commit_to(f, true, two, 2);
  world_as(open_set(f, false, true), w_ok, W_OK);
  update(f, two, 2);
  const weft_w_finished *done = world_as(finish(f, true), w_finished, W_FINISHED);
  assert_int_equal(done->tensors, 2);
  assert_int_equal(done->set_tensors, 2);
  publish(f);
  assert_int_equal(live_fill(f, "draft:a"), -1);
  assert_int_equal(live_fill(f, "a"), 1);
  end(f);
}

/* The live snapshot is another one than the engine's: nothing of it may be shared. */
static void a_foreign_main_set_is_not_kept_by_a_draft_session(void **state)
{
  (void)state;
  fixture *f = begin_two();
  const spec two[] = { A(1), Z(2) };
  commit_to(f, false, two, 2);
  commit_to(f, true, two, 2);
  world_as(world_ask(f->w, w_start, W_START, ++f->epoch, .draft = 1, .base_sequence = 9),
           w_ok, W_OK);
  update(f, two, 2);
  says(finish(f, false), "the live main model is not the engine's");
  abort_it(f);
  world_as(world_ask(f->w, w_start, W_START, ++f->epoch, .base_sequence = 9), w_ok, W_OK);
  update(f, two, 2);
  const weft_w_finished *done = world_as(finish(f, false), w_finished, W_FINISHED);
  assert_int_equal(done->tensors, 2); /* for the engine to see */
  abort_it(f);
  end(f);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_session_writes_one_set_and_shares_the_other),
    cmocka_unit_test(a_draft_sets_digest_is_of_the_clients_names),
    cmocka_unit_test(an_abort_leaves_both_sets),
    cmocka_unit_test(only_a_draft_session_touches_draft_names),
    cmocka_unit_test(a_wrong_shape_is_judged_within_the_set),
    cmocka_unit_test(both_ways_of_comparing_see_one_set_only),
    cmocka_unit_test(coverage_is_of_the_sessions_set),
    cmocka_unit_test(a_draft_manifest_lists_the_draft_set),
    cmocka_unit_test(a_set_that_was_lost_elsewhere_ends),
    cmocka_unit_test(a_foreign_main_set_is_not_kept_by_a_draft_session),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
