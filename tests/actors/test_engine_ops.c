/* Operations of the embedder's interface beyond the usual ones: the history, a draft
 * model's session. */
#include "api_world.h"
#include "weft/json.h"
#include "weft/store.h"

static const char *version_at(const weft_json *list, unsigned at)
{
  const weft_json *v = weft_json_first(list);
  while (at-- > 0 && v) {
    v = weft_json_next(v);
  }
  return weft_json_str(weft_json_get(v, "version"));
}

/* [count] versions, newest first. */
static void history_is(weft_engine *engine, uint32_t limit, const char *const *want,
                       unsigned count)
{
  const weft_request ask = { .size = sizeof ask, .op = WEFT_OP_VERSIONS, .limit = limit };
  weft_result *result = NULL;
  weft_json *root = NULL;
  weft_why why = { .text = "" };
  if (weft_engine_call(engine, &ask, &result, &why) != WEFT_OK) {
    fail_msg("versions: %s", why.text);
  }
  assert_ok(weft_json_parse(result->body, result->body_len, NULL, &root, NULL));
  const weft_json *list = weft_json_get(root, "versions");
  assert_int_equal(weft_json_count(list), count);
  for (unsigned i = 0; i < count; i++) {
    assert_string_equal(version_at(list, i), want[i]);
  }
  weft_json_free(root);
  weft_result_free(result);
}

static void the_history_newest_first(void **state)
{
  (void)state;
  api_world w;
  weft_engine *remote = NULL;
  weft_engine_info info;
  weft_why why = { .text = "" };
  static const char *const want[] = { "three", "two", "one" };
  api_begin(&w, WEFT_WORKERS_THREADS, NULL);
  history_is(w.engine, 0, NULL, 0);
  for (int i = 1; i <= 3; i++) {
    api_push(&w, i, want[3 - i]);
  }
  history_is(w.engine, 0, want, 3);
  history_is(w.engine, 2, want, 2);
  history_is(w.engine, 10000, want, 3);
  const weft_request bad = { .size = sizeof bad, .op = WEFT_OP_VERSIONS, .limit = 10001 };
  assert_err(weft_engine_call(w.engine, &bad, NULL, &why), WEFT_E_INVAL);
  assert_non_null(strstr(why.text, "limit"));
  weft_engine_info_get(w.engine, &info);
  const weft_connect_opts to = { .size = sizeof to, .control_url = info.control_url };
  api_ok(weft_engine_connect(&to, &remote, &why_));
  history_is(remote, 1, want, 1);
  weft_engine_destroy(remote);
  api_end(&w);
}

/* ---- a draft model */

static weft_err start(weft_engine *engine, bool draft, weft_why *why)
{
  const weft_request ask = { .size = sizeof ask, .op = WEFT_OP_START, .draft = draft };
  weft_result *result = NULL;
  const weft_err err = weft_engine_call(engine, &ask, &result, why);
  assert_true(err != WEFT_OK || result->session[0] != '\0');
  weft_result_free(result);
  return err;
}

static void push_to(api_world *w, bool draft, int value)
{
  char info[256];
  api_checkpoint(w, value);
  api_info(w, value, info, sizeof info);
  api_ok(start(w->engine, draft, &why_));
  api_ok(weft_engine_update(w->engine, info, 0, &why_));
  api_ok(weft_engine_finish(w->engine, NULL, 0, &why_));
}

static void both_are(api_world *w, float main_value, float draft_value)
{
  for (uint32_t rank = 0; rank < API_WORKERS; rank++) {
    weft_pinned p;
    api_ok(weft_pin(w->engine, rank, 0, &p, &why_));
    assert_int_equal(p.tensor_count, 2 * API_TENSORS);
    const weft_tensor *m = weft_snapshot_find(p.snapshot, "norm");
    const weft_tensor *d = weft_snapshot_find(p.snapshot, "draft:norm");
    assert_true(m && d);
    assert_true(((const float *)m->data)[0] == main_value);
    assert_true(((const float *)d->data)[API_ELEMENTS - 1] == draft_value);
    weft_unpin(&p);
  }
}

static void one_pin_has_both_sets(void **state)
{
  (void)state;
  api_world w;
  api_create(&w);
  weft_engine_opts opts = api_opts(&w, WEFT_WORKERS_THREADS, NULL);
  opts.draft = true;
  api_ok(weft_engine_create(&opts, &w.engine, &why_));
  api_ok(weft_engine_wait_ready(w.engine, API_PATIENCE_S * 1000, &why_));
  push_to(&w, false, 1);
  push_to(&w, true, 2);
  both_are(&w, 1, 2);
  push_to(&w, false, 3);
  both_are(&w, 3, 2);
  push_to(&w, true, 4);
  both_are(&w, 3, 4);
  api_end(&w);
}

static void without_a_draft_model_there_is_no_draft_session(void **state)
{
  (void)state;
  api_world w;
  weft_why why = { .text = "" };
  api_begin(&w, WEFT_WORKERS_THREADS, NULL);
  assert_err(start(w.engine, true, &why), WEFT_E_UNSUPPORTED);
  assert_non_null(strstr(why.text, "no draft model is configured"));
  api_ok(start(w.engine, false, &why_));
  api_end(&w);
  weft_engine_opts opts = { .size = sizeof opts, .draft_manifest = "/tmp/none.json" };
  weft_engine *none = NULL;
  assert_err(weft_engine_create(&opts, &none, &why), WEFT_E_INVAL);
  assert_non_null(strstr(why.text, "no draft model"));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_history_newest_first),
    cmocka_unit_test(one_pin_has_both_sets),
    cmocka_unit_test(without_a_draft_model_there_is_no_draft_session),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
