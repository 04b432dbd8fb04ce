/* What the engine remembers of its changes, the digest a finish may ask for, and the
 * restore of a last life's weights, with simulated workers. */
#include "weft_test.h"

#include "restore.h"
#include "weft/digest.h"
#include "weft/journal.h"
#include "world.h"

#include <stdio.h>
#include <string.h>

static world w;

static void start(void)
{
  world_start(&w, &(world_opts){ .seed = 3, .with_journal = true });
  assert_false(w.broken);
  assert_true(world_all_ready(&w));
}

static void stop(void)
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

static void push(const char *const *infos, const char *version)
{
  expect(world_begin(&w, 0), WEFT_OK);
  for (; *infos != NULL; infos++) {
    expect(world_update(&w, 0, *infos, 0), WEFT_OK);
  }
  expect(world_finish(&w, 0, version, 0), WEFT_OK);
}

static const char *versions(const char *limit, weft_err err)
{
  const weft_client_query m = { .h.type = WEFT_MSG_CLIENT_QUERY,
                                .what = WEFT_QUERY_VERSIONS,
                                .arg = { limit, (uint32_t)strlen(limit) } };
  const world_answer *a = world_call(&w, 1, &m.h, 1000);
  expect(a, err);
  return a->body;
}

static unsigned count(const char *text, const char *what)
{
  unsigned n = 0;
  while ((text = strstr(text, what)) != NULL) {
    n++;
    text++;
  }
  return n;
}

static void changes_and_aborts_newest_first(void **state)
{
  (void)state;
  static const char *const one[] = { "{\"a\":1}", NULL };
  start();
  assert_string_equal(versions("", WEFT_OK), "{\"versions\":[]}");
  push(one, "step-1");
  expect(world_begin(&w, 0), WEFT_OK);
  w.workers[1].fault = (world_fault){ .type = WEFT_MSG_W_GO, .once = true };
  w.workers[1].fault.kind = FAULT_REFUSE;
  assert_int_not_equal(world_update(&w, 0, "{}", 0)->err, WEFT_OK);
  push(one, NULL);
  const char *json = versions("", WEFT_OK);
  const char *second = strstr(json, "\"sequence\":2,\"kind\":\"weights\"");
  const char *aborted = strstr(json, "\"sequence\":null,\"kind\":\"aborted\"");
  const char *first = strstr(json, "\"sequence\":1,\"kind\":\"weights\"");
  assert_true(second != NULL && aborted != NULL && first != NULL);
  assert_true(second < aborted && aborted < first);
  assert_non_null(strstr(aborted, "\"operation\":\"update_weights\""));
  assert_non_null(
      strstr(aborted, "\"reason\":\"update_weights failed in phase transfer"));
  assert_int_equal(count(versions("2", WEFT_OK), "\"kind\""), 2);
  assert_null(strstr(versions("1", WEFT_OK), "\"sequence\":1,"));
  (void)versions("0", WEFT_E_INVAL);
  (void)versions("10000", WEFT_OK);
  (void)versions("10001", WEFT_E_INVAL);
  (void)versions("1x", WEFT_E_INVAL);
  (void)versions("99999999999999999999", WEFT_E_INVAL);
  stop();
}

static const world_answer *finish_as(const char *digest)
{
  const weft_client_finish m = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                 .digest = { digest, (uint32_t)strlen(digest) } };
  return world_call(&w, 0, &m.h, 100000);
}

static void a_finish_commits_the_digest_it_asks_for_and_no_other(void **state)
{
  (void)state;
  static const char *const one[] = { "{\"a\":1}", NULL };
  char digest[WEFT_DIGEST_TEXT];
  start();
  push(one, "x");
  weft_digest_text((weft_digest){ w.visible.digest_hi, w.visible.digest_lo }, digest);
  expect(world_begin(&w, 0), WEFT_OK);
  expect(world_update(&w, 0, "{\"a\":2}", 0), WEFT_OK);
  expect(finish_as("xxh3-128:none"), WEFT_E_INVAL); /* and the session goes on */
  expect(finish_as(digest), WEFT_E_PRECOND);
  const world_answer *a = world_query(&w, 1, WEFT_QUERY_INFO);
  assert_int_equal(a->sequence, 1);
  expect(world_begin(&w, 0), WEFT_OK);
  expect(world_update(&w, 0, "{\"a\":1}", 0), WEFT_OK);
  expect(finish_as(digest), WEFT_OK);
  assert_int_equal(world_query(&w, 1, WEFT_QUERY_INFO)->sequence, 2);
  stop();
}

/* ---- restore: one world pushes, the next one gets it back */

static const char *const infos[] = { "{\"a\":\"x],{\\\\\\\"[\\\\\",\"n\":[[1],{}]}",
                                     "[{\"b\":1}, {\"b\":2}]", "{}", NULL };
static const char sources[] =
    "[{\"a\":\"x],{\\\\\\\"[\\\\\",\"n\":[[1],{}]},[{\"b\":1}, {\"b\":2}],{}]";

static weft_digest pushed(void)
{
  start();
  w.shards = true;
  push(infos, "release");
  const weft_digest d = { w.visible.digest_hi, w.visible.digest_lo };
  stop();
  return d;
}

static void restore(weft_digest d, const char *from)
{
  const wefti_restore_args args = { .engine = w.engine,
                                    .sets = { { .sources = from,
                                                .version = "release",
                                                .declared = true,
                                                .digest_hi = d.hi,
                                                .digest_lo = d.lo,
                                                .sequence = 7 } },
                                    .count = 1,
                                    .last_sequence = 0 };
  weft_actor_id who;
  assert_ok(weft_sim_spawn(w.sim, &wefti_restore_class, &args, NULL, &who));
}

static const char *restored(const char *state)
{
  char want[64];
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

static void the_last_commit_is_pushed_again(void **state)
{
  (void)state;
  const weft_digest d = pushed();
  start();
  w.shards = true;
  restore(d, sources);
  assert_non_null(strstr(restored("done"), "change 7 is back as change 1"));
  assert_int_equal(w.workers[0].accepts, 3); /* of three updates, and of no init */
  const world_answer *a = world_query(&w, 1, WEFT_QUERY_INFO);
  assert_string_equal(a->version, "release");
  assert_int_equal(a->sequence, 1);
  stop();
}

static void other_bytes_stay_invisible(void **state)
{
  (void)state;
  weft_digest d = pushed();
  d.lo ^= 1;
  start();
  w.shards = true;
  restore(d, sources);
  const char *status = restored("push needed");
  assert_non_null(strstr(status, "change 7 cannot be restored, push the weights again"));
  assert_non_null(strstr(status, "\"version\":\"default\""));
  assert_non_null(strstr(status, "\"session\":null"));
  static const char *const one[] = { "{}", NULL };
  w.shards = false;
  push(one, "pushed"); /* and a push works at once */
  stop();
}

static void a_worker_that_dies_meanwhile_is_waited_for(void **state)
{
  (void)state;
  const weft_digest d = pushed();
  start();
  w.shards = true;
  w.workers[1].fault = (world_fault){ .type = WEFT_MSG_W_GO, .once = true };
  w.workers[1].fault.kind = FAULT_CRASH;
  restore(d, sources);
  (void)restored("done");
  stop();
}

static void who_pushes_first_is_left_alone(void **state)
{
  (void)state;
  static const char *const one[] = { "{\"a\":1}", NULL };
  start();
  push(one, "mine");
  restore((weft_digest){ 1, 2 }, sources);
  world_run(&w, 2000);
  const world_answer *a = world_query(&w, 1, WEFT_QUERY_STATUS);
  assert_non_null(strstr(a->body, "\"version\":\"mine\""));
  assert_non_null(strstr(a->body, "\"restore\":null"));
  stop();
}

static void who_has_begun_is_left_alone(void **state)
{
  (void)state;
  start();
  expect(world_begin(&w, 0), WEFT_OK);
  restore((weft_digest){ 1, 2 }, sources);
  world_run(&w, 2000);
  expect(world_update(&w, 0, "{\"a\":1}", 0), WEFT_OK);
  world_run(&w, 2000);
  expect(world_finish(&w, 0, "mine", 0), WEFT_OK);
  world_run(&w, 2000);
  const world_answer *a = world_query(&w, 1, WEFT_QUERY_STATUS);
  assert_non_null(strstr(a->body, "\"version\":\"mine\""));
  assert_non_null(strstr(a->body, "\"restore\":null"));
  stop();
}

static void a_label_is_no_push(void **state)
{
  (void)state;
  const weft_digest d = pushed();
  start();
  w.shards = true;
  const weft_client_label label = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                    .version = WEFT_STR("theirs") };
  expect(world_call(&w, 0, &label.h, 1000), WEFT_OK);
  restore(d, sources);
  assert_non_null(strstr(restored("done"), "\"version\":\"theirs\""));
  stop();
}

static void without_files_a_push_is_needed(void **state)
{
  (void)state;
  start();
  restore((weft_digest){ 1, 2 }, "");
  assert_non_null(strstr(restored("push needed"), "did not come from files alone"));
  assert_int_equal(w.workers[0].accepts, 0);
  stop();
}

/* ---- sessions that are over */

static void says(const world_answer *a, const char *text)
{
  if (a->err != WEFT_E_STATE) { /* 409, both */
    expect(a, WEFT_E_CONFLICT);
  }
  if (strstr(a->message, text) == NULL) {
    fail_msg("'%s' is not in '%s'", text, a->message);
  }
}

static const world_answer *abort_of(const char *session)
{
  const weft_client_abort m = { .h.type = WEFT_MSG_CLIENT_ABORT,
                                .session = { session, (uint32_t)strlen(session) } };
  return world_call(&w, 2, &m.h, 10000);
}

static void has_begun(char *session, size_t cap)
{
  expect(world_begin(&w, 0), WEFT_OK);
  (void)snprintf(session, cap, "%s", w.answers[0].session);
}

static const world_answer *finish_of(const char *session)
{
  const weft_client_finish m = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                 .session = { session, (uint32_t)strlen(session) } };
  return world_call(&w, 0, &m.h, 10000);
}

static void who_lost_a_session_hears_to_whom(void **state)
{
  (void)state;
  char lost[80];
  char want[200];
  start();
  expect(world_begin(&w, 0), WEFT_OK);
  (void)snprintf(lost, sizeof lost, "%s", w.answers[0].session);
  expect(world_init(&w, 1), WEFT_OK);
  (void)snprintf(want, sizeof want,
                 "(session %s was aborted: taken over by a new "
                 "init_weight_transfer_engine of connection 101)",
                 lost);
  says(world_update(&w, 0, "{}", 0), want);
  says(finish_of(lost), want);
  expect(world_begin(&w, 1), WEFT_OK); /* the other one goes on */
  says(finish_of(lost), want);
  expect(world_update(&w, 1, "{}", 0), WEFT_OK);
  expect(world_finish(&w, 1, "two", 0), WEFT_OK);
  says(finish_of(lost), want);
  says(finish_of("not-mine"), "none that this engine has given");
  stop();
}

static void who_comes_back_after_a_restart_hears_of_it(void **state)
{
  (void)state;
  static const weft_journal_record before[] = {
    { .kind = WEFT_JOURNAL_WEIGHTS,
      .boot_id = 0xdead,
      .epoch = 4,
      .sequence = 1,
      .weights_sequence = 1,
      .version = "one",
      .operation = "finish_weight_update",
      .text = "" },
    { .kind = WEFT_JOURNAL_ABORTED,
      .boot_id = 0xdead,
      .epoch = 5,
      .version = "",
      .operation = "",
      .text = "engine restarted" },
  };
  static const weft_journal_record *const list[] = { &before[0], &before[1] };
  world_start(&w,
              &(world_opts){
                  .seed = 3, .with_journal = true, .history = list, .history_count = 2 });
  says(finish_of("000000000000dead-5"), "the engine restarted 3.");
  says(finish_of("000000000000dead-5"),
       "(session 000000000000dead-5 was aborted: engine restarted); start a new");
  says(finish_of("000000000000dead-4"),
       "(session 000000000000dead-4 was committed as change 1); start a new");
  says(finish_of("000000000000dead-3"), "the engine restarted"); /* not kept */
  says(finish_of("000000000000dead-0"), "none that this engine has given");
  says(finish_of("000000000000DEAD-5"), "none that this engine has given");
  says(world_update(&w, 0, "{}", 0), "000000000000dead-5 was aborted: engine restarted");
  expect(abort_of("000000000000dead-5"), WEFT_OK); /* it is as wanted */
  says(abort_of("000000000000dead-4"), "was committed as change 1");
  says(abort_of("000000000000dead-3"), "the engine restarted");
  expect(world_begin(&w, 0), WEFT_OK);
  says(abort_of("000000000000dead-5"), "was aborted: engine restarted");
  expect(world_update(&w, 0, "{}", 0), WEFT_OK); /* that one is still open */
  stop();
}

static void who_aborts_a_session_that_is_over_hears_how_it_ended(void **state)
{
  (void)state;
  char lost[80];
  char mine[80];
  char want[200];
  start();
  expect(abort_of(""), WEFT_OK);
  has_begun(lost, sizeof lost);
  expect(world_init(&w, 1), WEFT_OK);
  expect(abort_of(lost), WEFT_OK); /* taken over: it is as wanted */
  has_begun(mine, sizeof mine);
  (void)snprintf(want, sizeof want, "is over (session %s was aborted: taken over", lost);
  says(abort_of(lost), want);
  says(abort_of(lost), "another one is open (session ");
  expect(world_update(&w, 0, "{}", 0), WEFT_OK);
  expect(world_finish(&w, 0, "two", 0), WEFT_OK);
  (void)snprintf(want, sizeof want,
                 "left to abort (session %s was committed as change 1)", mine);
  says(abort_of(mine), want);
  expect(abort_of(lost), WEFT_OK); /* still, though it is not the last one any more */
  expect(abort_of(""), WEFT_OK);
  stop();
}

static void an_abort_that_comes_too_late_says_so(void **state)
{
  (void)state;
  char mine[80];
  start();
  has_begun(mine, sizeof mine);
  expect(world_update(&w, 0, "{}", 0), WEFT_OK);
  w.journal_slow = true;
  const weft_client_finish finish = { .h.type = WEFT_MSG_CLIENT_FINISH };
  world_post(&w, 0, &finish.h);
  world_run(&w, 20);
  assert_non_null(strstr(world_query(&w, 1, WEFT_QUERY_STATUS)->body, "\"committing\""));
  says(abort_of(mine), "was committed as change 1"); /* has waited for the outcome */
  stop();
}

static void who_lost_a_session_hears_it_while_the_other_one_is_busy(void **state)
{
  (void)state;
  char lost[80];
  char mine[80];
  char want[200];
  start();
  has_begun(lost, sizeof lost);
  expect(world_init(&w, 1), WEFT_OK);
  has_begun(mine, sizeof mine);
  w.workers[1].fault = (world_fault){ .type = WEFT_MSG_W_GO, .once = true };
  w.workers[1].fault.kind = FAULT_MUTE;
  weft_buf *info = weft_buf_create("{}", 2);
  const weft_client_update update = { .h.type = WEFT_MSG_CLIENT_UPDATE, .info = info };
  world_post(&w, 0, &update.h);
  weft_buf_unref(info);
  world_run(&w, 100);
  const weft_client_finish again = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                     .session = { mine, (uint32_t)strlen(mine) } };
  says(world_call(&w, 1, &again.h, 1000), "another call of the session is under way");
  (void)snprintf(want, sizeof want, "is over (session %s was aborted: taken over", lost);
  const weft_client_finish late = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                    .session = { lost, (uint32_t)strlen(lost) } };
  says(world_call(&w, 1, &late.h, 1000), want);
  says(abort_of(lost), want);
  assert_non_null(strstr(w.answers[2].message, "running update_weights"));
  stop();
}

static void ids_that_this_engine_has_not_given_have_no_fate(void **state)
{
  (void)state;
  char mine[80];
  char never[80];
  start();
  has_begun(mine, sizeof mine);
  expect(world_update(&w, 0, "{}", 0), WEFT_OK);
  expect(world_finish(&w, 0, "one", 0), WEFT_OK);
  static const char *const foreign[] = { "0000000000000000-1", "ffffffffffffffff-1" };
  for (size_t i = 0; i < 2; i++) {
    says(finish_of(foreign[i]), "this engine has no session '");
    says(abort_of(foreign[i]), "this engine has no session '");
    assert_null(strstr(w.answers[2].message, "committed"));
    assert_null(strstr(w.answers[2].message, "restarted"));
    assert_non_null(strstr(w.answers[2].message, "start a new weight update"));
  }
  (void)snprintf(never, sizeof never, "%.16s-999", mine);
  says(finish_of(never), "none that this engine has given");
  says(abort_of(never), "none that this engine has given");
  char endless[1000];
  memset(endless, 'x', sizeof endless - 1);
  endless[sizeof endless - 1] = '\0';
  says(finish_of(endless), "start a new weight update"); /* the end is not cut off */
  stop();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(who_lost_a_session_hears_to_whom),
    cmocka_unit_test(who_comes_back_after_a_restart_hears_of_it),
    cmocka_unit_test(who_aborts_a_session_that_is_over_hears_how_it_ended),
    cmocka_unit_test(an_abort_that_comes_too_late_says_so),
    cmocka_unit_test(who_lost_a_session_hears_it_while_the_other_one_is_busy),
    cmocka_unit_test(ids_that_this_engine_has_not_given_have_no_fate),
    cmocka_unit_test(changes_and_aborts_newest_first),
    cmocka_unit_test(a_finish_commits_the_digest_it_asks_for_and_no_other),
    cmocka_unit_test(the_last_commit_is_pushed_again),
    cmocka_unit_test(other_bytes_stay_invisible),
    cmocka_unit_test(a_worker_that_dies_meanwhile_is_waited_for),
    cmocka_unit_test(who_pushes_first_is_left_alone),
    cmocka_unit_test(who_has_begun_is_left_alone),
    cmocka_unit_test(a_label_is_no_push),
    cmocka_unit_test(without_files_a_push_is_needed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
