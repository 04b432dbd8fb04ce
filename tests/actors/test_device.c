/* The real device actor with the real host backend behind a real worker actor; files are
 * made by the safetensors writer. */
#define _GNU_SOURCE /* mkdtemp */
#include "device_fixture.h"

/* ---- tests */

static void a_full_update_becomes_live_with_its_bytes(void **state)
{
  (void)state;
  fixture *f = begin();
  const weft_w_finished done = commit(f, full, FULL);
  assert_int_equal(done.tensors, 4);
  assert_int_equal(done.bytes, 64 * 32 * 2 + 4000 + 8);
  assert_int_equal(done.received, 4);
  assert_int_equal(done.received_bytes, done.bytes);
  assert_int_equal(done.missing, 0);
  assert_int_equal(live_fill(f, "model.a"), 2);
  assert_int_equal(live_fill(f, "model.b"), 1);
  assert_int_equal(live_fill(f, "scalar"), 3);
  const weft_snapshot *s;
  assert_ok(weft_store_pin(f->w->device->store, 1, &s));
  assert_int_equal(s->digest_hi, done.digest_hi);
  assert_int_equal(s->digest_lo, done.digest_lo);
  const weft_tensor *t = weft_snapshot_find(s, "model.b");
  assert_string_equal(t->dtype, "bfloat16");
  assert_int_equal(t->shape[0], 64);
  assert_int_equal(t->shape[1], 32);
  uint8_t digest[WEFT_DIGEST_BYTES];
  weft_digest_store(weft_digest_of(t->data, t->bytes), digest);
  assert_memory_equal(t->digest, digest, sizeof digest);
  const weft_tensor *empty = weft_snapshot_find(s, "empty");
  assert_non_null(empty);
  assert_null(empty->data);
  weft_store_unpin(f->w->device->store, s);
  end(f);
}

static void a_partial_update_shares_what_did_not_change(void **state)
{
  (void)state;
  fixture *f = begin();
  const weft_snapshot *before, *after;
  commit(f, full, FULL);
  assert_ok(weft_store_pin(f->w->device->store, 0, &before));
  const uint64_t extents = memory_stats(f).extents;
  const spec part[] = { { "model.a", WEFT_DTYPE_FLOAT32, 1, { 1000 }, 9 },
                        { "new", WEFT_DTYPE_BOOL, 1, { 5 }, 1 } };
  const weft_w_finished done = commit(f, part, 2);
  assert_int_equal(done.tensors, 5);
  assert_int_equal(done.received, 2);
  assert_int_equal(done.missing, 3);
  assert_ok(weft_store_pin(f->w->device->store, 0, &after));
  assert_ptr_equal(weft_snapshot_find(after, "model.b")->data,
                   weft_snapshot_find(before, "model.b")->data);
  assert_ptr_not_equal(weft_snapshot_find(after, "model.a")->data,
                       weft_snapshot_find(before, "model.a")->data);
  assert_true(memory_stats(f).extents <= extents + 2);
  weft_store_unpin(f->w->device->store, before);
  weft_store_unpin(f->w->device->store, after);
  assert_int_equal(live_fill(f, "model.a"), 9);
  assert_int_equal(live_fill(f, "model.b"), 1);
  assert_int_equal(live_fill(f, "new"), 1);
  end(f);
}

static void several_updates_of_one_session_add_up_and_the_last_wins(void **state)
{
  (void)state;
  fixture *f = begin();
  world_as(start(f), w_ok, W_OK);
  spec one = full[0];
  update(f, full, FULL);
  for (unsigned i = 0; i < 20; i++) {
    one.fill = (uint8_t)(100 + i);
    update(f, &one, 1);
  }
  update(f, full + 1, 1);
  const weft_w_finished *done = world_as(finish(f, true), w_finished, W_FINISHED);
  assert_int_equal(done->tensors, 4);
  assert_int_equal(done->received, 4);
  assert_int_equal(done->received_bytes, 21 * 4096 + 2 * 4000 + 8);
  publish(f);
  assert_int_equal(live_fill(f, "model.b"), 119);
  end(f);
}

static void a_set_has_the_same_digest_whenever_it_comes_back(void **state)
{
  (void)state;
  fixture *f = begin();
  spec other = full[1];
  other.fill = 77;
  const weft_w_finished a = commit(f, full, FULL);
  const weft_w_finished b = commit(f, &other, 1);
  const weft_w_finished c = commit(f, full + 1, 1);
  assert_true(a.digest_hi != b.digest_hi || a.digest_lo != b.digest_lo);
  assert_int_equal(a.digest_hi, c.digest_hi);
  assert_int_equal(a.digest_lo, c.digest_lo);
  world_as(start(f), w_ok, W_OK); /* without any update: the same set again */
  const weft_w_finished *d = world_as(finish(f, false), w_finished, W_FINISHED);
  assert_int_equal(d->digest_lo, a.digest_lo);
  assert_int_equal(d->received, 0);
  publish(f);
  assert_int_equal(live_fill(f, "model.a"), 2);
  end(f);
}

static void another_shape_or_dtype_is_refused_by_name(void **state)
{
  (void)state;
  fixture *f = begin();
  commit(f, full, FULL);
  spec wrong[2] = { full[0], full[1] };
  wrong[1].shape[0] = 999;
  for (unsigned round = 0; round < 3; round++) {
    char path[PATH_LEN];
    path_in(f, path);
    write_file(path, wrong, 2);
    const uint64_t extents = memory_stats(f).extents;
    world_as(start(f), w_ok, W_OK);
    const weft_msg *m = accept_file(f, path);
    world_refused(m, WEFT_E_INVAL);
    const char *text = ((const weft_w_refused *)m)->text.p;
    assert_non_null(strstr(text, "'model.a'"));
    assert_non_null(strstr(text, "float32 [1000]"));
    assert_non_null(strstr(text, round == 0   ? "float32 [999]"
                                 : round == 1 ? "int32 [1000]"
                                              : "float32 [10,100]"));
    assert_int_equal(memory_stats(f).extents, extents);
    world_is(world_ask(f->w, w_abort, W_ABORT, f->epoch, .reason = WEFT_STR("test")),
             WEFT_MSG_W_OK);
    wrong[1] = full[1];
    if (round == 0) {
      wrong[1].dtype = WEFT_DTYPE_INT32;
    } else {
      wrong[1].ndim = 2;
      wrong[1].shape[0] = 10;
      wrong[1].shape[1] = 100;
    }
    assert_int_equal(unlink(path), 0);
  }
  assert_int_equal(live_fill(f, "model.a"), 2);
  end(f);
}

static void a_file_that_shrinks_is_refused_and_nothing_changes(void **state)
{
  (void)state;
  fixture *f = begin();
  commit(f, full, FULL);
  char path[PATH_LEN];
  path_in(f, path);
  spec changed[FULL];
  memcpy(changed, full, sizeof full);
  changed[0].fill = 50;
  for (unsigned round = 0; round < 2; round++) {
    write_file(path, changed, FULL);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    if (round == 0) { /* before */
      assert_int_equal(truncate(path, st.st_size - 1), 0);
    }
    world_as(start(f), w_ok, W_OK);
    const weft_msg *m = accept_file(f, path);
    if (round == 1) { /* between accept and go */
      world_as(m, w_ok, W_OK);
      assert_int_equal(truncate(path, st.st_size - 1), 0);
      m = go(f, WEFT_TRANSFER_UPDATE);
    }
    assert_int_equal(world_is(m, WEFT_MSG_W_REFUSED)->type, WEFT_MSG_W_REFUSED);
    world_refused(finish(f, false), WEFT_E_STALE);
    world_is(world_ask(f->w, w_abort, W_ABORT, f->epoch, .reason = WEFT_STR("test")),
             WEFT_MSG_W_OK);
    assert_int_equal(live_fill(f, "model.b"), 1);
  }
  assert_int_equal(unlink(path), 0);
  commit(f, changed, FULL);
  assert_int_equal(live_fill(f, "model.b"), 50);
  end(f);
}

static void strict_coverage_lists_what_is_missing_and_can_be_mended(void **state)
{
  (void)state;
  fixture *f = begin();
  commit(f, full, FULL);
  world_as(start(f), w_ok, W_OK);
  update(f, full, 2);
  const weft_msg *m = finish(f, true);
  world_refused(m, WEFT_E_CONFLICT);
  const weft_w_refused *r = (const weft_w_refused *)m;
  assert_int_equal(r->correctable, 1);
  assert_non_null(strstr(r->text.p, "2 live tensors"));
  assert_non_null(strstr(r->text.p, "empty, scalar"));
  update(f, full + 2, 2);
  world_as(finish(f, true), w_finished, W_FINISHED);
  publish(f);
  world_as(start(f), w_ok, W_OK);
  update(f, full, 1);
  const weft_w_finished *done = world_as(finish(f, false), w_finished, W_FINISHED);
  assert_int_equal(done->missing, 3);
  assert_string_equal((const char *)done->missing_names->data,
                      "[\"empty\",\"model.a\",\"scalar\"]");
  end(f); /* with an installed snapshot that nobody publishes */
}

static void an_aborted_session_leaves_no_bytes(void **state)
{
  (void)state;
  fixture *f = begin();
  commit(f, full, FULL);
  const uint64_t extents = memory_stats(f).extents;
  char path[PATH_LEN];
  path_in(f, path);
  write_file(path, full, FULL);
  for (unsigned step = 0; step < 4; step++) {
    world_as(start(f), w_ok, W_OK);
    if (step > 0) {
      world_as(accept_file(f, path), w_ok, W_OK);
    }
    if (step > 1) {
      world_as(go(f, WEFT_TRANSFER_UPDATE), w_ok, W_OK);
    }
    if (step > 2) {
      world_as(finish(f, false), w_finished, W_FINISHED);
    }
    world_is(world_ask(f->w, w_abort, W_ABORT, f->epoch, .reason = WEFT_STR("test")),
             WEFT_MSG_W_OK);
    assert_int_equal(memory_stats(f).extents, extents);
  }
  assert_int_equal(unlink(path), 0);
  assert_int_equal(live_fill(f, "model.b"), 1);
  end(f);
}

static void a_hundred_updates_take_no_more_memory_than_three(void **state)
{
  (void)state;
  fixture *f = begin();
  spec big[] = { { "big", WEFT_DTYPE_UINT8, 1, { 2 << 20 }, 0 },
                 { "small", WEFT_DTYPE_UINT8, 1, { 4000 }, 0 } };
  weft_memory_stats warm = { 0 };
  for (unsigned i = 0; i < 100; i++) {
    big[0].fill = (uint8_t)i;
    big[1].fill = (uint8_t)(i + 1);
    commit(f, big, i % 4 == 3 ? 1 : 2);
    world_as(world_ask(f->w, w_beat, W_BEAT, 0, .grant = 0), w_state, W_STATE);
    if (i == 3) {
      warm = memory_stats(f);
    }
  }
  const weft_memory_stats now = memory_stats(f);
  assert_int_equal(now.fresh, warm.fresh); /* no page was taken from the system since */
  assert_int_equal(now.slabs, warm.slabs);
  assert_int_equal(now.extents, 2);
  assert_int_equal(live_fill(f, "big"), 99);
  assert_int_equal(live_fill(f, "small"), 99); /* of i == 98 */
  end(f);
}

static void a_worker_on_another_base_needs_every_tensor(void **state)
{
  (void)state;
  fixture *f = begin();
  commit(f, full, FULL);
  for (unsigned complete = 0; complete < 2; complete++) {
    world_as(world_ask(f->w, w_start, W_START, ++f->epoch, .base_sequence = 40,
                       .base_digest_hi = 4),
             w_ok, W_OK);
    spec other[FULL];
    memcpy(other, full, sizeof full);
    other[1].shape[0] = 5; /* the live shape says nothing about the engine's */
    update(f, other, complete ? FULL : FULL - 1);
    const weft_msg *m = finish(f, false);
    if (!complete) {
      world_refused(m, WEFT_E_FAILED);
      assert_non_null(strstr(((const weft_w_refused *)m)->text.p, "empty"));
      assert_int_equal(((const weft_w_refused *)m)->correctable, 0);
    } else {
      assert_int_equal(world_as(m, w_finished, W_FINISHED)->tensors, FULL);
      assert_int_equal(((const weft_w_finished *)m)->received, FULL);
    }
  }
  end(f);
}

static void the_cap_refuses_a_start_with_the_readers(void **state)
{
  (void)state;
  const wefti_device_opts opts = { .size = sizeof opts, .snapshots_max = 2 };
  fixture *f = begin_with(&opts);
  const weft_snapshot *held;
  commit(f, full, FULL);
  assert_ok(weft_store_pin(f->w->device->store, 0, &held));
  commit(f, full, FULL);
  const weft_msg *m = start(f);
  world_refused(m, WEFT_E_UNAVAIL);
  assert_non_null(strstr(((const weft_w_refused *)m)->text.p, "sequence 1 by 1 reader"));
  weft_store_unpin(f->w->device->store, held);
  commit(f, full, FULL);
  end(f);
}

static const weft_json *query(fixture *f, weft_query what, weft_json **root)
{
  const weft_msg *m = world_ask(f->w, w_query, W_QUERY, 0, .what = what);
  const weft_buf *json = world_as(m, w_answer, W_ANSWER)->json;
  assert_non_null(json);
  assert_ok(weft_json_parse(json->data, json->len, NULL, root, NULL));
  return *root;
}

static void weights_are_listed_by_name(void **state)
{
  (void)state;
  fixture *f = begin();
  weft_json *root;
  assert_int_equal(weft_json_count(query(f, WEFT_QUERY_WEIGHTS, &root)), 0);
  weft_json_free(root);
  commit(f, full, FULL);
  const weft_json *list = query(f, WEFT_QUERY_WEIGHTS, &root);
  assert_int_equal(weft_json_count(list), FULL);
  const weft_json *b = weft_json_next(weft_json_next(weft_json_first(list)));
  assert_string_equal(weft_json_str(weft_json_get(b, "name")), "model.b");
  assert_string_equal(weft_json_str(weft_json_get(b, "dtype")), "bfloat16");
  assert_int_equal(weft_json_count(weft_json_get(b, "shape")), 2);
  int64_t bytes = 0;
  assert_true(weft_json_i64(weft_json_get(b, "bytes"), &bytes));
  assert_int_equal(bytes, 4096);
  weft_digest digest;
  assert_true(weft_digest_parse(weft_json_str(weft_json_get(b, "digest")), &digest));
  uint8_t want[4096];
  memset(want, 1, sizeof want);
  assert_true(weft_digest_equal(digest, weft_digest_of(want, sizeof want)));
  weft_json_free(root);
  end(f);
}

static void checksums_are_sha256_under_the_checkers_keys(void **state)
{
  (void)state;
  fixture *f = begin();
  weft_json *root;
  commit(f, full, FULL);
  const weft_json *map = query(f, WEFT_QUERY_CHECKSUM, &root);
  assert_int_equal(weft_json_count(map), FULL);
  /* printf '\3\3\3\3\3\3\3\3' | sha256sum, and of nothing */
  assert_string_equal(weft_json_str(weft_json_get(map, "dp0:pp0:pcp0:tp0:ep0:empty")),
                      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  uint8_t sha[WEFT_SHA256_BYTES];
  char text[WEFT_SHA256_TEXT];
  const uint8_t three[8] = { 3, 3, 3, 3, 3, 3, 3, 3 };
  assert_ok(weft_sha256(three, sizeof three, sha, text));
  assert_string_equal(weft_json_str(weft_json_get(map, "dp0:pp0:pcp0:tp0:ep0:scalar")),
                      text);
  weft_json_free(root);
  /* rank 5 of tp 2, pp 3 in replica 4 */
  weft_buf *json = NULL;
  f->w->device->tp = 2;
  assert_ok(wefti_device_checksum(f->w->device, 5, 4, &json, NULL));
  assert_non_null(strstr((const char *)json->data, "\"dp4:pp2:pcp0:tp1:ep0:model.a\":"));
  weft_buf_unref(json);
  end(f);
}

static void reset_changes_bytes_but_no_version(void **state)
{
  (void)state;
  fixture *f = begin();
  world_refused(world_ask(f->w, w_query, W_QUERY, 0, .what = WEFT_QUERY_RESET),
                WEFT_E_NOT_YET);
  const weft_w_finished done = commit(f, full, FULL);
  const weft_snapshot *held;
  assert_ok(weft_store_pin(f->w->device->store, 0, &held));
  weft_json *root;
  query(f, WEFT_QUERY_RESET, &root);
  weft_json_free(root);
  assert_int_equal(live_fill(f, "model.b"), 0xfe);
  assert_int_equal(*(const uint8_t *)weft_snapshot_find(held, "model.b")->data, 1);
  const weft_w_state *st =
      world_as(world_ask(f->w, w_beat, W_BEAT, 0, .grant = 0), w_state, W_STATE);
  assert_int_equal(st->weights_sequence, 1);
  assert_true(st->digest_lo != done.digest_lo);
  weft_store_unpin(f->w->device->store, held);
  const weft_w_finished again = commit(f, full, FULL);
  assert_int_equal(again.digest_lo, done.digest_lo);
  end(f);
}

typedef struct exported {
  unsigned installed, dropped;
  uint64_t epoch;
  bool has_fd;
  wefti_device *device;
} exported;

/* Memory that says "leave off" while the first tensor's room is made. */
typedef struct spoilt_memory {
  weft_memory pub;
  weft_memory *real;
  wefti_device *device;
  unsigned allocs;
} spoilt_memory;

static weft_err spoilt_reserve(weft_memory *m, uint64_t bytes, weft_why *why)
{
  return weft_memory_reserve(((spoilt_memory *)m)->real, bytes, why);
}

static weft_err spoilt_alloc(weft_memory *m, uint64_t bytes, weft_extent *out,
                             weft_why *why)
{
  spoilt_memory *spoilt = (spoilt_memory *)m;
  spoilt->allocs++;
  atomic_store(&spoilt->device->cancel, true);
  spoilt->device->memory = spoilt->real;
  const weft_err err = weft_memory_alloc(spoilt->real, 0, out, why); /* nobody reads it */
  out->bytes = bytes;
  return err;
}

static void spoilt_free(weft_memory *m, const weft_extent *extent)
{
  (void)m;
  (void)extent;
}

static void making_room_can_be_cancelled(void **state)
{
  (void)state;
  static const weft_memory_ops ops = { .name = "spoilt",
                                       .reserve = spoilt_reserve,
                                       .alloc = spoilt_alloc,
                                       .free = spoilt_free };
  fixture *f = begin();
  char path[PATH_LEN];
  path_in(f, path);
  write_file(path, full, FULL);
  world_as(start(f), w_ok, W_OK);
  spoilt_memory spoilt = { .pub.ops = &ops,
                           .real = f->w->device->memory,
                           .device = f->w->device };
  f->w->device->memory = &spoilt.pub;
  world_refused(accept_file(f, path), WEFT_E_CANCELLED);
  assert_int_equal(spoilt.allocs, 1); /* of four tensors */
  assert_ptr_equal(f->w->device->memory, spoilt.real);
  commit(f, full, FULL); /* the next one is not */
  assert_int_equal(live_fill(f, "model.b"), 1);
  end(f);
}

static void on_install(void *arg, uint64_t epoch, const weft_snapshot *snapshot)
{
  exported *e = arg;
  e->epoch = epoch;
  if (!snapshot) {
    e->dropped++;
    return;
  }
  e->installed++;
  uint64_t size = 0;
  const weft_extent *extent = wefti_cell_extent(wefti_snapshot_cell(snapshot, 1));
  e->has_fd = weft_memory_slab_fd(e->device->memory, extent->slab, &size) >= 0 &&
              extent->offset + extent->bytes <= size &&
              extent->ptr == snapshot->tensors[1].data;
}

static void who_exports_descriptors_is_told(void **state)
{
  (void)state;
  fixture *f = begin();
  exported e = { .device = f->w->device };
  wefti_device_on_install(f->w->device, on_install, &e);
  commit(f, full, FULL);
  assert_int_equal(e.installed, 1);
  assert_int_equal(e.epoch, 1);
  assert_true(e.has_fd);
  world_as(start(f), w_ok, W_OK);
  world_as(finish(f, false), w_finished, W_FINISHED);
  world_is(world_ask(f->w, w_abort, W_ABORT, f->epoch, .reason = WEFT_STR("test")),
           WEFT_MSG_W_OK);
  assert_int_equal(e.installed, 2);
  assert_int_equal(e.dropped, 1);
  assert_int_equal(e.epoch, 2);
  end(f);
}

static void init_takes_an_object(void **state)
{
  (void)state;
  fixture *f = begin();
  f->epoch++;
  world_as(put_info(f, WEFT_TRANSFER_INIT, "{}"), w_ok, W_OK);
  world_as(go(f, WEFT_TRANSFER_INIT), w_ok, W_OK);
  f->epoch++;
  world_as(put_info(f, WEFT_TRANSFER_INIT, "null"), w_ok, W_OK); /* a shutdown */
  world_as(go(f, WEFT_TRANSFER_INIT), w_ok, W_OK);
  f->epoch++;
  world_refused(put_info(f, WEFT_TRANSFER_INIT, "[]"), WEFT_E_INVAL);
  f->epoch++;
  world_refused(put_info(f, WEFT_TRANSFER_INIT, "{"), WEFT_E_TRUNCATED);
  f->epoch++;
  world_as(put_info(f, WEFT_TRANSFER_INIT, "{}"), w_ok, W_OK);
  world_is(world_ask(f->w, w_abort, W_ABORT, f->epoch, .reason = WEFT_STR("test")),
           WEFT_MSG_W_OK);
  commit(f, full, FULL);
  end(f);
}

static void options_are_checked(void **state)
{
  (void)state;
  wefti_device *device = NULL;
  weft_why why = { 0 };
  wefti_device_opts opts = { .size = 1 };
  assert_err(wefti_device_create(&opts, &device, &why), WEFT_E_INVAL);
  opts = (wefti_device_opts){ .size = sizeof opts, .backend = "rdma" };
  assert_err(wefti_device_create(&opts, &device, &why), WEFT_E_UNSUPPORTED);
  assert_non_null(strstr(
      why.text, "backend 'rdma' is not known; there are: host, nccl, sparse_nccl, ipc"));
  opts = (wefti_device_opts){ .size = sizeof opts,
                              .backend = "nccl",
                              .cudart = "/nowhere/libcudart.so" };
  assert_err(wefti_device_create(&opts, &device, &why), WEFT_E_NOTFOUND);
  assert_non_null(strstr(why.text, "/nowhere/libcudart.so"));
  opts = (wefti_device_opts){ .size = sizeof opts, .snapshots_max = 99 };
  assert_err(wefti_device_create(&opts, &device, &why), WEFT_E_INVAL);
  opts = (wefti_device_opts){ .size = sizeof opts, .tcp_allow = "a,,b:5" };
  assert_ok(wefti_device_create(&opts, &device, &why));
  assert_non_null(wefti_device_store(device));
  wefti_device_destroy(device);
  wefti_device_destroy(NULL);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_full_update_becomes_live_with_its_bytes),
    cmocka_unit_test(a_partial_update_shares_what_did_not_change),
    cmocka_unit_test(several_updates_of_one_session_add_up_and_the_last_wins),
    cmocka_unit_test(a_set_has_the_same_digest_whenever_it_comes_back),
    cmocka_unit_test(another_shape_or_dtype_is_refused_by_name),
    cmocka_unit_test(a_file_that_shrinks_is_refused_and_nothing_changes),
    cmocka_unit_test(strict_coverage_lists_what_is_missing_and_can_be_mended),
    cmocka_unit_test(an_aborted_session_leaves_no_bytes),
    cmocka_unit_test(a_hundred_updates_take_no_more_memory_than_three),
    cmocka_unit_test(a_worker_on_another_base_needs_every_tensor),
    cmocka_unit_test(the_cap_refuses_a_start_with_the_readers),
    cmocka_unit_test(weights_are_listed_by_name),
    cmocka_unit_test(checksums_are_sha256_under_the_checkers_keys),
    cmocka_unit_test(reset_changes_bytes_but_no_version),
    cmocka_unit_test(making_room_can_be_cancelled),
    cmocka_unit_test(who_exports_descriptors_is_told),
    cmocka_unit_test(init_takes_an_object),
    cmocka_unit_test(options_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
