/* A fleet whose replicas stage in place: what they are writing over has no name. */
#include "engine.h"
#include "fleet_test.h"

enum { SEEDS = 20 };

static fleet_world w;

static const weft_client_label label = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                         .version = { "label", 5 } };

static void post_update(uint32_t timeout_ms)
{
  weft_buf *info = weft_buf_create("{\"a\":2}", 7);
  const weft_client_update m = { .h.type = WEFT_MSG_CLIENT_UPDATE,
                                 .caller = 100,
                                 .timeout_ms = timeout_ms,
                                 .info = info };
  fleet_post(&w, 0, C, &m.h);
  weft_buf_unref(info);
}

static void no_label_while_replicas_write(void **state)
{
  (void)state;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    begin(&w, &(fleet_opts){ .seed = seed, .inplace = true });
    push(&w, "{\"a\":1}", "one");
    expect(&w, fleet_begin(&w, C), WEFT_OK);
    expect(&w, fleet_call(&w, 1, C, &label.h), WEFT_OK);
    expect(&w, fleet_update(&w, C, "{\"a\":2}"), WEFT_OK);
    const fleet_answer *a = fleet_call(&w, 1, C, &label.h);
    expect(&w, a, WEFT_E_CONFLICT);
    expect_text(a, "being written over in place");
    expect_version(&w, C, "label");
    expect(&w, fleet_finish(&w, C, "two"), WEFT_OK);
    fleet_run(&w, 600);
    expect_fleet(&w, "two");
    expect(&w, fleet_call(&w, 1, C, &label.h), WEFT_OK);
    expect_fleet(&w, "label");
    end(&w);
  }
}

static void names_nothing(unsigned replica)
{
  const engine *e = weft_sim_state(w.sim, w.engines[replica].actor);
  assert_int_not_equal(e->inplace.poisoned, 0);
  assert_string_equal(e->visible.version, "default");
}

/* Those that are poisoned show no name; the next push brings theirs. */
static void poisoned_replicas_take_no_name(void **state)
{
  (void)state;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    begin(&w, &(fleet_opts){ .seed = seed, .inplace = true });
    push(&w, "{\"a\":1}", "one");
    w.engines[1].ranks[0].mute = WEFT_MSG_W_FINISH;
    expect(&w, fleet_begin(&w, C), WEFT_OK);
    expect(&w, fleet_update(&w, C, "{\"a\":2}"), WEFT_OK);
    const fleet_answer *a = fleet_finish(&w, C, "two");
    expect(&w, a, WEFT_E_TIMEOUT);
    expect_text(a, "replicas that had begun to write in place are poisoned");
    w.engines[1].ranks[0].mute = 0;
    fleet_run(&w, 3000);
    names_nothing(0);
    a = fleet_call(&w, 1, C, &label.h);
    expect(&w, a, WEFT_OK);
    assert_string_equal(a->fenced, "");
    names_nothing(0);
    names_nothing(1);
    push(&w, "{\"a\":3}", "three");
    fleet_run(&w, 600);
    expect_fleet(&w, "three");
    end(&w);
  }
}

static void come_back_and_start(void)
{
  const fleet_answer *a = NULL;
  fleet_cut(&w, 1, false);
  for (unsigned i = 0; i < 100; i++) {
    a = fleet_begin(&w, C);
    if (a->err == WEFT_OK) {
      return;
    }
    fleet_run(&w, 200);
  }
  expect(&w, a, WEFT_OK);
}

/* A replica that missed a label is told it when it is back; an update that comes
 * meanwhile writes nothing there before it is taken. */
static void an_update_waits_for_the_label_of_one_replica(void **state)
{
  (void)state;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    begin(&w, &(fleet_opts){ .seed = seed, .inplace = true });
    push(&w, "{\"a\":1}", "one");
    fleet_run(&w, 50);
    fleet_cut(&w, 1, true);
    expect(&w, fleet_call(&w, 1, C, &label.h), WEFT_OK);
    w.engines[1].journal.hang = true;
    come_back_and_start();
    const engine *e = weft_sim_state(w.sim, w.engines[1].actor);
    assert_true(e->change.pending && e->change.label);
    post_update(20000);
    fleet_run(&w, 1000);
    assert_false(w.answers[0].came);
    assert_int_equal(w.engines[1].ranks[0].dirty, 0);
    fleet_release_journal(&w, 1);
    fleet_run(&w, 1000);
    expect(&w, &w.answers[0], WEFT_OK);
    assert_int_not_equal(w.engines[1].ranks[0].dirty, 0);
    expect(&w, fleet_finish(&w, C, "two"), WEFT_OK);
    fleet_run(&w, 600);
    expect_fleet(&w, "two");
    end(&w);
  }
}

/* The same, told when the update is there already: it has nothing to name until its
 * weights are whole. */
static void a_late_label_does_not_name_what_is_written(void **state)
{
  (void)state;
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    const bool fails = seed % 2 == 0;
    begin(&w, &(fleet_opts){ .seed = seed, .inplace = true });
    push(&w, "{\"a\":1}", "one");
    fleet_run(&w, 50);
    fleet_cut(&w, 1, true);
    expect(&w, fleet_call(&w, 1, C, &label.h), WEFT_OK);
    w.engines[1].lose_question = WEFT_MSG_W_LABEL;
    come_back_and_start();
    if (fails) { /* before a byte of replica 1 */
      w.engines[1].ranks[0].refuse = WEFT_MSG_W_GO;
    }
    expect(&w, fleet_update(&w, C, "{\"a\":2}"), fails ? WEFT_E_FAILED : WEFT_OK);
    fleet_run(&w, 9000);
    const engine *e = weft_sim_state(w.sim, w.engines[1].actor);
    assert_string_equal(e->visible.version, fails ? "label" : "one");
    if (!fails) {
      expect(&w, fleet_finish(&w, C, NULL), WEFT_OK);
      fleet_run(&w, 600);
      expect_fleet(&w, "label");
    }
    end(&w);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(no_label_while_replicas_write),
    cmocka_unit_test(poisoned_replicas_take_no_name),
    cmocka_unit_test(an_update_waits_for_the_label_of_one_replica),
    cmocka_unit_test(a_late_label_does_not_name_what_is_written),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
