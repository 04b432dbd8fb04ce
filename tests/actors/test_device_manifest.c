/* A worker's device under a manifest: what is refused before bytes move, tensors that
 * share storage, coverage. */
#define _GNU_SOURCE /* mkdtemp */
#include "device_fixture.h"
#include "weft/weft.h"

static void put_text(const char *path, const char *text)
{
  FILE *file = fopen(path, "we");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static fixture *begin_listed(const char *text)
{
  char dir[] = "/tmp/weft-listed-XXXXXX", path[64];
  assert_non_null(mkdtemp(dir));
  (void)snprintf(path, sizeof path, "%s/m.json", dir);
  put_text(path, text);
  const wefti_device_opts opts = { .size = sizeof opts, .manifest = path };
  fixture *f = begin_with(&opts);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(dir), 0);
  return f;
}

static const char listed[] = "{\"names\":[\"head\",\"embed\",\"norm\",\"out\"],"
                             "\"dtype_names\":[\"int8\",\"int8\",\"float32\",\"int8\"],"
                             "\"shapes\":[[100,2],[100,2],[8],[100,2]],"
                             "\"tied\":[[\"head\",\"embed\",\"out\"]]}";

/* clang-format off */
#define EMBED(fill) { "embed", WEFT_DTYPE_INT8, 2, { 100, 2 }, (fill) }
#define HEAD(fill) { "head", WEFT_DTYPE_INT8, 2, { 100, 2 }, (fill) }
#define NORM(fill) { "norm", WEFT_DTYPE_FLOAT32, 1, { 8 }, (fill) }
/* clang-format on */

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

/* An update with these tensors is refused before there is room for any. */
static void refused_with(fixture *f, const spec *specs, size_t count,
                         const char *const *said)
{
  char path[PATH_LEN];
  path_in(f, path);
  write_file(path, specs, count);
  const uint64_t extents = memory_stats(f).extents;
  world_as(start(f), w_ok, W_OK);
  const weft_msg *m = accept_file(f, path);
  world_refused(m, WEFT_E_INVAL);
  for (; *said; said++) {
    says(m, *said);
  }
  assert_int_equal(memory_stats(f).extents, extents);
  abort_it(f);
  assert_int_equal(unlink(path), 0);
}

static void a_manifest_refuses_what_it_does_not_list(void **state)
{
  (void)state;
  fixture *f = begin_listed(listed);
  const spec strange[] = { { "zebra", WEFT_DTYPE_INT8, 0, { 0 }, 1 },
                           NORM(1),
                           { "ant", WEFT_DTYPE_INT8, 0, { 0 }, 1 } };
  const char *const names[] = { "not in the manifest: ant, zebra", NULL };
  refused_with(f, strange, 3, names);
  const spec shape[] = { { "norm", WEFT_DTYPE_FLOAT32, 2, { 2, 4 }, 1 } };
  const char *const said_shape[] = { "'norm'", "the manifest's is float32 [8]",
                                     "brings float32 [2,4]", NULL };
  refused_with(f, shape, 1, said_shape);
  const spec dtype[] = { EMBED(1), { "norm", WEFT_DTYPE_INT32, 1, { 8 }, 1 } };
  const char *const said_dtype[] = { "'norm'", "the manifest's is float32 [8]",
                                     "brings int32 [8]", NULL };
  refused_with(f, dtype, 2, said_dtype);
  const spec good[] = { NORM(4), EMBED(5) };
  commit(f, good, 2);
  assert_int_equal(live_fill(f, "norm"), 4);
  refused_with(f, strange, 3, names); /* also when weights are live */
  assert_int_equal(live_fill(f, "embed"), 5);
  end(f);
}

static void many_unknown_names_are_counted(void **state)
{
  (void)state;
  fixture *f = begin_listed("{\"names\":[],\"dtypes\":[],\"shapes\":[]}");
  char info[16384];
  size_t len = (size_t)snprintf(info, sizeof info,
                                "{\"source\":{\"kind\":\"tcp\",\"address\":"
                                "\"127.0.0.1:1\",\"token\":\"t\"},\"names\":[");
  for (unsigned i = 0; i < 100; i++) {
    len += (size_t)snprintf(info + len, sizeof info - len, "%s\"name.%03u\"",
                            i > 0 ? "," : "", i);
  }
  len += (size_t)snprintf(info + len, sizeof info - len, "],\"dtype_names\":[");
  for (unsigned i = 0; i < 100; i++) {
    len +=
        (size_t)snprintf(info + len, sizeof info - len, "%s\"int8\"", i > 0 ? "," : "");
  }
  len += (size_t)snprintf(info + len, sizeof info - len, "],\"shapes\":[");
  for (unsigned i = 0; i < 100; i++) {
    len += (size_t)snprintf(info + len, sizeof info - len, "%s[]", i > 0 ? "," : "");
  }
  (void)snprintf(info + len, sizeof info - len, "]}");
  world_as(start(f), w_ok, W_OK);
  const weft_msg *m = put_info(f, WEFT_TRANSFER_UPDATE, info);
  says(m, "name.000, name.001, ");
  says(m, " more");
  abort_it(f);
  end(f);
}

/* ---- tied tensors */

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

static void same_storage(fixture *f, int fill)
{
  assert_ptr_equal(live_data(f, "head"), live_data(f, "embed"));
  assert_ptr_equal(live_data(f, "head"), live_data(f, "out"));
  assert_int_equal(live_fill(f, "head"), fill);
  assert_int_equal(live_fill(f, "out"), fill);
}

static void tied_tensors_share_their_bytes(void **state)
{
  (void)state;
  fixture *f = begin_listed(listed);
  const spec first[] = { NORM(4), EMBED(5) };
  const weft_w_finished one = commit(f, first, 2);
  assert_int_equal(one.tensors, 4);
  assert_int_equal(one.received, 2);
  assert_int_equal(one.missing, 0);
  same_storage(f, 5);
  assert_int_equal(memory_stats(f).extents, 2);
  const spec other[] = { HEAD(6) }; /* by another name */
  world_as(start(f), w_ok, W_OK);
  update(f, other, 1);
  const weft_w_finished *two = world_as(finish(f, false), w_finished, W_FINISHED);
  assert_int_equal(two->missing, 1);
  assert_string_equal((const char *)two->missing_names->data, "[\"norm\"]");
  publish(f);
  same_storage(f, 6);
  const spec both[] = { HEAD(7), NORM(4), EMBED(7) }; /* both, with equal bytes */
  const weft_w_finished three = commit(f, both, 3);
  assert_int_equal(three.received, 3);
  same_storage(f, 7);
  const spec back[] = { EMBED(5) };
  const weft_w_finished four = commit(f, back, 1);
  assert_int_equal(four.digest_lo, one.digest_lo);
  assert_int_equal(four.digest_hi, one.digest_hi);
  same_storage(f, 5);
  world_as(world_ask(f->w, w_beat, W_BEAT, 0, .grant = 0), w_state, W_STATE);
  assert_int_equal(memory_stats(f).extents, 2); /* old ones went, none twice */
  end(f);
}

static void tied_tensors_with_different_bytes_are_refused_by_name(void **state)
{
  (void)state;
  fixture *f = begin_listed(listed);
  const spec first[] = { NORM(4), EMBED(5) };
  commit(f, first, 2);
  world_as(start(f), w_ok, W_OK);
  const spec apart[] = { HEAD(8), EMBED(9) };
  update(f, apart, 2);
  const weft_msg *m = finish(f, false);
  world_refused(m, WEFT_E_CONFLICT);
  assert_int_equal(((const weft_w_refused *)m)->correctable, 1);
  says(m, "'embed' and 'head' are tied but came with different bytes");
  same_storage(f, 5);
  update(f, apart, 1); /* head again: still not as embed */
  world_refused(finish(f, false), WEFT_E_CONFLICT);
  const spec mended[] = { HEAD(9) };
  update(f, mended, 1);
  world_as(finish(f, false), w_finished, W_FINISHED);
  publish(f);
  same_storage(f, 9);
  end(f);
}

/* ---- coverage */

static void strict_coverage_is_judged_against_the_manifest(void **state)
{
  (void)state;
  fixture *f = begin_listed(listed);
  const spec part[] = { EMBED(5) };
  world_as(start(f), w_ok, W_OK);
  update(f, part, 1);
  const weft_msg *m = finish(f, true);
  world_refused(m, WEFT_E_CONFLICT);
  assert_int_equal(((const weft_w_refused *)m)->correctable, 1);
  says(m, "strict coverage: 1 tensors of the manifest did not come: norm");
  /* without strict: counted and listed */
  const weft_w_finished *done = world_as(finish(f, false), w_finished, W_FINISHED);
  assert_int_equal(done->missing, 1);
  assert_string_equal((const char *)done->missing_names->data, "[\"norm\"]");
  publish(f);
  const spec rest[] = { NORM(1) };
  world_as(start(f), w_ok, W_OK);
  update(f, rest, 1);
  m = finish(f, true); /* the others are live, but did not come in this session */
  world_refused(m, WEFT_E_CONFLICT);
  says(m, "3 tensors of the manifest did not come: embed, head, out");
  done = world_as(finish(f, false), w_finished, W_FINISHED);
  assert_int_equal(done->missing, 3);
  assert_string_equal((const char *)done->missing_names->data,
                      "[\"embed\",\"head\",\"out\"]");
  publish(f);
  same_storage(f, 5);
  assert_int_equal(live_fill(f, "norm"), 1);
  const spec whole[] = { NORM(2), HEAD(3) }; /* embed and out with it */
  world_as(start(f), w_ok, W_OK);
  update(f, whole, 2);
  done = world_as(finish(f, true), w_finished, W_FINISHED);
  assert_int_equal(done->missing, 0);
  publish(f);
  same_storage(f, 3);
  end(f);
}

/* Live ones that did not come are listed before those that were never there. */
static void strict_coverage_lists_live_and_absent_ones(void **state)
{
  (void)state;
  fixture *f =
      begin_listed("{\"names\":[\"c\",\"a\",\"b\"],\"dtypes\":[\"int8\",\"int8\","
                   "\"int8\"],\"shapes\":[[],[],[]]}");
  const spec b[] = { { "b", WEFT_DTYPE_INT8, 0, { 0 }, 1 } };
  const spec c[] = { { "c", WEFT_DTYPE_INT8, 0, { 0 }, 2 } };
  commit(f, b, 1);
  world_as(start(f), w_ok, W_OK);
  update(f, c, 1);
  const weft_msg *m = finish(f, true);
  world_refused(m, WEFT_E_CONFLICT);
  says(m, "2 tensors of the manifest did not come: b, a");
  const weft_w_finished *done = world_as(finish(f, false), w_finished, W_FINISHED);
  assert_string_equal((const char *)done->missing_names->data, "[\"b\",\"a\"]");
  publish(f);
  end(f);
}

/* ---- mistakes */

static void a_wrong_manifest_makes_no_device(void **state)
{
  (void)state;
  wefti_device *device = NULL;
  weft_why why = { 0 };
  const wefti_device_opts opts = { .size = sizeof opts, .manifest = "/nowhere/m.json" };
  assert_err(wefti_device_create(&opts, &device, &why), WEFT_E_INVAL);
  assert_non_null(strstr(why.text, "/nowhere/m.json"));
}

static const char *const impossible[][2] = {
  { "[\"a\",\"a\"],\"dtype_names\":[\"int8\",\"int8\"],\"shapes\":[[1],[1]]",
    "'a' is named twice" },
  { "[\"a\",\"b\"],\"dtype_names\":[\"int8\"],\"shapes\":[[1],[1]]",
    "`dtype_names` should be of the same size" },
  { "[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[[1],[1]]",
    "`shapes` should be of the same size" },
  { "[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[[-1]]",
    "dimension 0 of 'a' is negative" },
  { "[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[[4294967296,4294967296]]",
    "shape of 'a' is too large" },
};

static void impossible_lists_are_refused_by_name(void **state)
{
  (void)state;
  for (size_t i = 0; i < 2 * sizeof impossible / sizeof impossible[0]; i++) {
    fixture *f = i % 2 ? begin_listed(listed) : begin();
    char info[512];
    (void)snprintf(info, sizeof info,
                   "{\"source\":{\"kind\":\"tcp\",\"address\":\"127.0.0.1:1\","
                   "\"token\":\"t\"},\"names\":%s}",
                   impossible[i / 2][0]);
    world_as(start(f), w_ok, W_OK);
    says(put_info(f, WEFT_TRANSFER_UPDATE, info), impossible[i / 2][1]);
    assert_int_equal(memory_stats(f).extents, 0);
    abort_it(f);
    end(f);
  }
}

/* ---- through the embedder's interface */

static void an_engine_says_which_manifest_is_in_force(void **state)
{
  (void)state;
  char dir[] = "/tmp/weft-listed-XXXXXX", path[64];
  assert_non_null(mkdtemp(dir));
  (void)snprintf(path, sizeof path, "%s/m.json", dir);
  put_text(path, listed);
  weft_engine *engine = NULL;
  weft_why why = { 0 };
  weft_engine_opts opts = {
    .size = sizeof opts, .workers = WEFT_WORKERS_THREADS, .tp = 2, .manifest = path
  };
  assert_ok(weft_engine_create(&opts, &engine, &why));
  assert_int_equal(unlink(path), 0); /* it was read */
  assert_ok(weft_engine_wait_ready(engine, 20000, &why));
  weft_result *result = NULL;
  const weft_request ask = { .size = sizeof ask, .op = WEFT_OP_STATUS };
  assert_ok(weft_engine_call(engine, &ask, &result, &why));
  char want[128];
  (void)snprintf(want, sizeof want, "\"manifest\":{\"file\":\"%s\",\"tensors\":4}", path);
  assert_non_null(strstr(result->body, want));
  weft_result_free(result);
  weft_engine_destroy(engine);
  engine = NULL;
  assert_err(weft_engine_create(&opts, &engine, &why), WEFT_E_INVAL); /* it has gone */
  assert_non_null(strstr(why.text, path));
  opts.workers = WEFT_WORKERS_JOIN;
  assert_err(weft_engine_create(&opts, &engine, &why), WEFT_E_INVAL);
  assert_null(engine);
  assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_manifest_refuses_what_it_does_not_list),
    cmocka_unit_test(many_unknown_names_are_counted),
    cmocka_unit_test(tied_tensors_share_their_bytes),
    cmocka_unit_test(tied_tensors_with_different_bytes_are_refused_by_name),
    cmocka_unit_test(strict_coverage_is_judged_against_the_manifest),
    cmocka_unit_test(strict_coverage_lists_live_and_absent_ones),
    cmocka_unit_test(a_wrong_manifest_makes_no_device),
    cmocka_unit_test(impossible_lists_are_refused_by_name),
    cmocka_unit_test(an_engine_says_which_manifest_is_in_force),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
