/* The engine with a draft model, over simulated workers: whose set is committed,
 * recorded, shown and restored, and what becomes of the other one. */
#include "weft_test.h"

#include "restore.h"
#include "weft/digest.h"
#include "weft/json.h"
#include "world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static world w;

static void begin(bool draft)
{
  world_start(&w, &(world_opts){ .seed = 5, .with_journal = true, .draft = draft });
  assert_false(w.broken);
  assert_true(world_all_ready(&w));
}

static void end(void)
{
  const bool broken = w.broken;
  world_stop(&w);
  if (broken) {
    fail_msg("%s", w.why);
  }
}

static void expect(const world_answer *a, weft_err err)
{
  if (w.broken || !a->came || a->err != err) {
    fail_msg("got %s, want %s: %s", weft_err_name(a->err), weft_err_name(err),
             w.broken ? w.why : a->message);
  }
}

static const world_answer *start_set(bool draft)
{
  const weft_client_start m = { .h.type = WEFT_MSG_CLIENT_START, .draft = draft };
  return world_call(&w, 0, &m.h, 100000);
}

static void push(bool draft, const char *info, const char *version)
{
  const world_answer *a = start_set(draft);
  expect(a, WEFT_OK);
  assert_true(a->session[0] != '\0');
  expect(world_update(&w, 0, info, 0), WEFT_OK);
  expect(world_finish(&w, 0, version, 0), WEFT_OK);
}

static weft_digest set_of(uint32_t rank, bool draft)
{
  return (weft_digest){ w.workers[rank].sets[draft], w.workers[rank].sets[draft] };
}

/* Of the status: the main set's, or the draft set's. */
static void shown(bool draft, uint64_t tensors, weft_digest want)
{
  const world_answer *a = world_query(&w, 1, WEFT_QUERY_STATUS);
  weft_json *root = NULL;
  char text[WEFT_DIGEST_TEXT];
  int64_t n = -1;
  expect(a, WEFT_OK);
  assert_ok(weft_json_parse(a->body, strlen(a->body), NULL, &root, NULL));
  const weft_json *set = draft ? weft_json_get(root, "draft") : root;
  assert_true(weft_json_i64(weft_json_get(set, "tensors"), &n));
  assert_int_equal(n, tensors);
  const char *digest = weft_json_str(weft_json_get(set, "digest"));
  if (tensors == 0) {
    assert_null(digest);
  } else {
    weft_digest_text(want, text);
    assert_string_equal(digest, text);
  }
  weft_json_free(root);
}

static void a_record_is_of_the_set_that_was_written(void **state)
{
  (void)state;
  begin(true);
  push(false, "{\"v\":1}", "main-1");
  assert_int_equal(w.record.draft, 0);
  shown(true, 0, (weft_digest){ 0, 0 });
  push(true, "{\"v\":2}", NULL);
  assert_int_equal(w.record.draft, 1);
  assert_int_equal(w.record.alone, 0);
  assert_int_equal(w.record.tensors, 1);
  assert_int_equal(w.record.digest_hi, set_of(0, true).hi);
  assert_int_not_equal(w.visible.digest_hi, w.record.digest_hi); /* of both */
  assert_int_equal(w.visible.digest_hi, w.workers[1].live);
  shown(false, 1, set_of(0, false));
  shown(true, 1, set_of(1, true));
  const world_answer *a = world_query(&w, 1, WEFT_QUERY_INFO);
  assert_string_equal(a->version, "main-1"); /* a finish without one keeps it */
  push(true, "{\"v\":3}", "draft-3");
  assert_string_equal(world_query(&w, 1, WEFT_QUERY_INFO)->version, "draft-3");
  assert_int_equal(w.workers[0].sets[0], w.workers[1].sets[0]);
  end();
}

static void a_finish_may_ask_for_its_sets_digest(void **state)
{
  (void)state;
  begin(true);
  push(false, "{\"v\":1}", "x");
  push(true, "{\"v\":2}", "y");
  char text[WEFT_DIGEST_TEXT];
  weft_digest_text(set_of(0, true), text);
  for (unsigned draft = 0; draft < 2; draft++) {
    expect(start_set(draft != 0), WEFT_OK);
    expect(world_update(&w, 0, "{\"v\":2}", 0), WEFT_OK);
    const weft_client_finish m = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                   .digest = { text, (uint32_t)strlen(text) } };
    expect(world_call(&w, 0, &m.h, 100000), WEFT_OK); /* the same bytes in both */
  }
  end();
}

static void no_draft_model_no_draft_session(void **state)
{
  (void)state;
  begin(false);
  const world_answer *a = start_set(true);
  expect(a, WEFT_E_UNSUPPORTED);
  assert_string_equal(
      a->message,
      "Draft model weight update requested, but no draft model is configured.");
  push(false, "{\"v\":1}", "x");
  end();
}

static void a_rank_without_both_comes_back_with_the_main_set(void **state)
{
  (void)state;
  begin(true);
  push(false, "{\"v\":1}", "x");
  push(true, "{\"v\":2}", "y");
  weft_sim_kill(w.sim, w.workers[1].actor);
  world_run(&w, 5000);
  memset(w.workers[1].sets, 0, sizeof w.workers[1].sets); /* a new process */
  const world_answer *a = start_set(true);
  expect(a, WEFT_E_CONFLICT);
  assert_non_null(strstr(a->message, "push all of those first"));
  push(false, "{\"v\":3}", "z");
  assert_int_equal(w.record.alone, 1);
  assert_true(world_all_ready(&w));
  shown(true, 0, (weft_digest){ 0, 0 });
  assert_non_null(strstr(world_query(&w, 1, WEFT_QUERY_STATUS)->body, "\"lost\":true"));
  push(true, "{\"v\":2}", "y");
  assert_int_equal(w.record.alone, 0);
  shown(true, 1, set_of(0, true));
  shown(false, 1, set_of(1, false));
  end();
}

/* ---- restore */

static wefti_restore_set restored_set(bool draft, const char *sources, weft_digest d,
                                      const char *version, uint64_t sequence)
{
  return (wefti_restore_set){ .draft = draft,
                              .sources = sources,
                              .version = version,
                              .declared = version[0] != '\0',
                              .digest_hi = d.hi,
                              .digest_lo = d.lo,
                              .sequence = sequence };
}

static const char *restore(const wefti_restore_args *args, const char *state)
{
  char want[64];
  weft_actor_id who;
  assert_ok(weft_sim_spawn(w.sim, &wefti_restore_class, args, NULL, &who));
  (void)snprintf(want, sizeof want, "\"restore\":{\"state\":\"%s\"", state);
  for (int i = 0; i < 300; i++) {
    world_run(&w, 100);
    const world_answer *a = world_query(&w, 1, WEFT_QUERY_STATUS);
    expect(a, WEFT_OK);
    if (strstr(a->body, want) != NULL) {
      return a->body;
    }
  }
  fail_msg("no restore that is %s: %s", state, w.answers[1].body);
  return "";
}

static void both_sets_are_restored_in_their_order(void **state)
{
  (void)state;
  begin(true);
  push(true, "{\"v\":2}", "draft");
  push(false, "{\"v\":1}", "release");
  const weft_digest main_set = set_of(0, false), draft = set_of(0, true);
  end();
  for (unsigned broken = 0; broken < 4; broken++) { /* bit 0: the draft's, 1: the main */
    begin(true);
    const weft_digest bad = { 1, 1 };
    const wefti_restore_args args = {
      .engine = w.engine,
      .sets = { restored_set(true, "[{\"v\":2}]", broken & 1 ? bad : draft, "draft", 7),
                restored_set(false, broken & 2 ? "" : "[{\"v\":1}]", main_set, "release",
                             8) },
      .count = 2,
    };
    const char *status = restore(&args, broken == 0 ? "done" : "push needed");
    assert_non_null(
        strstr(status, broken & 1 ? "draft change 7 cannot be restored, push the weights "
                                    "again"
                                  : "draft change 7 is back as change 1"));
    assert_non_null(strstr(status, broken & 2 ? "change 8 (version 'release') did not"
                                              : "change 8 is back as change"));
    shown(true, broken & 1 ? 0 : 1, draft);
    shown(false, broken & 2 ? 0 : 1, main_set);
    const char *version = broken == 3 ? "default" : broken & 2 ? "draft" : "release";
    assert_string_equal(world_query(&w, 1, WEFT_QUERY_INFO)->version, version);
    end();
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_record_is_of_the_set_that_was_written),
    cmocka_unit_test(a_finish_may_ask_for_its_sets_digest),
    cmocka_unit_test(no_draft_model_no_draft_session),
    cmocka_unit_test(a_rank_without_both_comes_back_with_the_main_set),
    cmocka_unit_test(both_sets_are_restored_in_their_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
