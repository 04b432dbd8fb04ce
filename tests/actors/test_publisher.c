#include "weft_test.h"

#include "publisher.h"
#include "weft/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEARD_MAX = 64, ANSWER_MAX = 1 << 20 };

typedef struct world {
  weft_sim *sim;
  weft_actor_id publisher, asker;
  struct {
    char topic[32];
    uint64_t sequence;
    char json[64];
  } heard[HEARD_MAX];
  size_t heard_count;
  char *answer; /* [ANSWER_MAX] the last one */
  size_t answers;
} world;

static void hear(void *arg, const char *topic, uint64_t sequence, const weft_buf *json)
{
  world *w = arg;
  const size_t i = w->heard_count++ % HEARD_MAX;
  (void)snprintf(w->heard[i].topic, sizeof w->heard[i].topic, "%s", topic);
  (void)snprintf(w->heard[i].json, sizeof w->heard[i].json, "%s",
                 (const char *)json->data);
  w->heard[i].sequence = sequence;
}

static weft_err asker_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  memcpy(self, args, sizeof(world *));
  return WEFT_OK;
}

/* Puts the test's questions to the publisher, as the snapshot socket does. */
static weft_err asker_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  world *w = *(world **)self;
  if (msg->type == WEFT_MSG_RESYNC) {
    const weft_resync q = { .h = { .type = WEFT_MSG_RESYNC },
                            .json = ((const weft_resync *)msg)->json };
    (void)weft_ask(ctx, w->publisher, weft_msg_make(ctx, &q.h), 1000);
    return WEFT_OK;
  }
  if (msg->type == WEFT_MSG_RESYNCED) {
    const weft_buf *json = ((const weft_resynced *)msg)->json;
    assert_true(json != NULL && json->len < ANSWER_MAX);
    memcpy(w->answer, json->data, json->len + 1);
    w->answers++;
  }
  return WEFT_OK;
}

static const weft_actor_class asker_class = {
  .name = "asker", .state_size = sizeof(world *), .init = asker_init, .on = asker_on
};

static void world_open(world *w, uint32_t keep)
{
  memset(w, 0, sizeof *w);
  w->answer = calloc(1, ANSWER_MAX);
  assert_non_null(w->answer);
  const weft_sim_opts opts = { .size = sizeof opts,
                               .seed = 3,
                               .catalogue = weft_messages() };
  assert_ok(weft_sim_create(&opts, &w->sim));
  const wefti_publisher_args args = { .keep = keep, .ops = { hear, w } };
  assert_ok(weft_sim_spawn(w->sim, &wefti_publisher_class, &args, NULL, &w->publisher));
  const world *self = w;
  assert_ok(weft_sim_spawn(w->sim, &asker_class, &self, NULL, &w->asker));
}

static void world_close(world *w)
{
  assert_true(weft_sim_alive(w->sim, w->publisher));
  weft_sim_destroy(w->sim);
  free(w->answer);
}

static void settle(world *w)
{
  while (weft_sim_step(w->sim)) {
  }
}

static void say_event(world *w, const char *topic, uint64_t sequence)
{
  char text[64];
  const int n = snprintf(text, sizeof text, "{\"sequence\":%" PRIu64 "}", sequence);
  const weft_event m = { .h = { .type = WEFT_MSG_EVENT },
                         .topic = { topic, (uint32_t)strlen(topic) },
                         .sequence = sequence,
                         .json = weft_buf_create(text, (size_t)n) };
  assert_ok(weft_sim_send(w->sim, w->publisher, &m.h));
  weft_buf_unref(m.json);
  settle(w);
}

static void say_status_text(world *w, const char *text)
{
  const weft_event_status m = { .h = { .type = WEFT_MSG_EVENT_STATUS },
                                .json = weft_buf_create(text, strlen(text)) };
  assert_ok(weft_sim_send(w->sim, w->publisher, &m.h));
  weft_buf_unref(m.json);
  settle(w);
}

static void say_status(world *w, const char *boot, uint64_t sequence)
{
  char text[128];
  (void)snprintf(text, sizeof text,
                 "{\"version\":\"v\\u00e9\",\"sequence\":%" PRIu64 ",\"boot_id\":\"%s\"}",
                 sequence, boot);
  say_status_text(w, text);
}

static const char *ask(world *w, const char *text)
{
  const weft_resync m = { .h = { .type = WEFT_MSG_RESYNC },
                          .json =
                              text == NULL ? NULL : weft_buf_create(text, strlen(text)) };
  const size_t before = w->answers;
  assert_ok(weft_sim_send(w->sim, w->asker, &m.h));
  weft_buf_unref(m.json);
  settle(w);
  assert_int_equal(w->answers, before + 1);
  return w->answer;
}

#define STATUS(n) "{\"version\":\"v\\u00e9\",\"sequence\":" #n ",\"boot_id\":\"b1\"}"
#define RESYNC(n) "{\"resync\":true,\"status\":" STATUS(n) "}"
#define SEQ(n) "{\"sequence\":" #n "}"

static void every_event_is_published_as_it_came(void **state)
{
  (void)state;
  world w;
  world_open(&w, 0);
  say_event(&w, "weights.session", 0);
  say_event(&w, "weights.commit", 1);
  say_event(&w, "weights.session", 0);
  say_event(&w, "weights.commit", 2);
  assert_int_equal(w.heard_count, 4);
  assert_string_equal(w.heard[0].topic, "weights.session");
  assert_int_equal(w.heard[0].sequence, 0);
  assert_string_equal(w.heard[3].topic, "weights.commit");
  assert_int_equal(w.heard[3].sequence, 2);
  assert_string_equal(w.heard[3].json, SEQ(2));
  world_close(&w);
}

static void a_repeated_event_is_published_once(void **state)
{
  (void)state;
  world w;
  world_open(&w, 0);
  say_status(&w, "b1", 2);
  say_event(&w, "weights.commit", 1);
  say_event(&w, "weights.commit", 2);
  say_event(&w, "weights.commit", 2);
  say_event(&w, "weights.commit", 1);
  assert_int_equal(w.heard_count, 2);
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":0}"),
                      "{\"events\":[" SEQ(1) "," SEQ(2) "]}");
  world_close(&w);
}

static void status_and_version_are_the_engines(void **state)
{
  (void)state;
  world w;
  world_open(&w, 0);
  assert_non_null(strstr(ask(&w, "{\"get\":\"status\"}"), "\"error\""));
  assert_non_null(strstr(ask(&w, "{\"get\":\"version\"}"), "\"error\""));
  say_status(&w, "b1", 7);
  assert_string_equal(ask(&w, "{\"get\":\"status\"}"), STATUS(7));
  assert_string_equal(ask(&w, " {\"x\":[1], \"get\" : \"version\"}"), STATUS(7));
  say_status(&w, "b1", 8);
  assert_string_equal(ask(&w, "{\"get\":\"status\"}"), STATUS(8));
  world_close(&w);
}

static void an_unusable_status_changes_nothing(void **state)
{
  (void)state;
  static const char *const bad[] = {
    "",
    "{",
    "[]",
    "{}",
    "{\"version\":\"a\",\"sequence\":\"1\",\"boot_id\":\"b\"}",
    "{\"version\":\"a\",\"sequence\":1}",
    "{\"sequence\":1,\"boot_id\":\"b\"}",
    "{\"version\":\"a\",\"sequence\":-1,\"boot_id\":\"b\"}",
    "{\"version\":\"a\",\"sequence\":1.5,\"boot_id\":\"b\"}",
  };
  world w;
  world_open(&w, 0);
  say_status(&w, "b1", 7);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    say_status_text(&w, bad[i]);
    assert_string_equal(ask(&w, "{\"get\":\"status\"}"), STATUS(7));
  }
  world_close(&w);
}

static void events_after_a_number_come_in_order(void **state)
{
  (void)state;
  world w;
  world_open(&w, 4);
  say_status(&w, "b1", 0);
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":0}"), "{\"events\":[]}");
  for (uint64_t n = 1; n <= 6; n++) {
    say_event(&w, "weights.commit", n);
    say_event(&w, "weights.session", 0); /* is not kept */
    say_status(&w, "b1", n);
  }
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":6}"), "{\"events\":[]}");
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":4}"),
                      "{\"events\":[" SEQ(5) "," SEQ(6) "]}");
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":2}"),
                      "{\"events\":[" SEQ(3) "," SEQ(4) "," SEQ(5) "," SEQ(6) "]}");
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":1}"),
                      RESYNC(6)); /* 2 is gone */
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":7}"), RESYNC(6));
  assert_string_equal(
      ask(&w, "{\"get\":\"events\",\"after\":18446744073709551615}"),
      "{\"error\":\"events: \\\"after\\\" must be a number, the last sequence "
      "that is known\"}");
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":9223372036854775807}"),
                      RESYNC(6));
  world_close(&w);
}

static void another_boot_id_means_resync(void **state)
{
  (void)state;
  world w;
  world_open(&w, 0);
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":0,\"boot_id\":\"b1\"}"),
                      "{\"resync\":true,\"status\":null}");
  say_event(&w, "weights.commit", 1);
  say_status(&w, "b1", 1);
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":0,\"boot_id\":\"b1\"}"),
                      "{\"events\":[" SEQ(1) "]}");
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":0,\"boot_id\":\"b0\"}"),
                      RESYNC(1));
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":0,\"boot_id\":7}"),
                      RESYNC(1));
  world_close(&w);
}

static void a_new_life_of_the_engine_forgets_the_old_ones_events(void **state)
{
  (void)state;
  world w;
  world_open(&w, 0);
  say_status(&w, "b0", 2);
  say_event(&w, "weights.commit", 1);
  say_event(&w, "weights.commit", 2);
  say_status(&w, "b1", 0);
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":1}"), RESYNC(0));
  say_event(&w, "weights.commit", 1);
  assert_int_equal(w.heard_count, 3);
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":0}"),
                      "{\"events\":[" SEQ(1) "]}");
  world_close(&w);
}

static void what_was_missed_here_is_never_passed_over_in_silence(void **state)
{
  (void)state;
  world w;
  world_open(&w, 0);
  say_status(&w, "b1", 1);
  say_event(&w, "weights.commit", 1);
  say_status(&w, "b1", 2); /* event 2 did not get here */
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":0}"), RESYNC(2));
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":2}"), "{\"events\":[]}");
  say_event(&w, "weights.commit", 3);
  say_status(&w, "b1", 3);
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":1}"), RESYNC(3));
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":2}"),
                      "{\"events\":[" SEQ(3) "]}");
  world_close(&w);
}

static void an_event_is_known_before_its_status(void **state)
{
  (void)state;
  world w;
  world_open(&w, 0);
  say_status(&w, "b1", 0);
  say_event(&w, "weights.commit", 1);
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":0}"),
                      "{\"events\":[" SEQ(1) "]}");
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":1}"), "{\"events\":[]}");
  world_close(&w);
}

static void bad_requests_are_told_so(void **state)
{
  (void)state;
  static const char *const bad[] = {
    NULL,
    "",
    "x",
    "[]",
    "null",
    "\"status\"",
    "{}",
    "{\"get\":null}",
    "{\"get\":[\"status\"]}",
    "{\"get\":\"Status\"}",
    "{\"get\":\"events\"}",
    "{\"get\":\"events\",\"after\":null}",
    "{\"get\":\"events\",\"after\":-1}",
    "{\"get\":\"events\",\"after\":1.0}",
    "{\"get\":\"events\",\"after\":\"1\"}",
    "{\"get\":\"status\"}}",
    "{\"get\":\"status\",\"get\":\"version\"}",
  };
  world w;
  world_open(&w, 0);
  say_status(&w, "b1", 0);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    const char *answer = ask(&w, bad[i]);
    if (strncmp(answer, "{\"error\":\"", 10) != 0) {
      fail_msg("%s: %s", bad[i], answer);
    }
  }
  char *deep = malloc(5001);
  assert_non_null(deep);
  memset(deep, '[', 5000);
  deep[5000] = '\0';
  assert_non_null(strstr(ask(&w, deep), "too long"));
  deep[4000] = '\0';
  assert_non_null(strstr(ask(&w, deep), "not JSON"));
  free(deep);
  world_close(&w);
}

static void the_ring_turns_for_ever(void **state)
{
  (void)state;
  world w;
  world_open(&w, 3);
  say_status(&w, "b1", 0);
  for (uint64_t n = 41; n <= 5000; n++) { /* a boot may begin anywhere */
    say_event(&w, "weights.commit", n);
  }
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":4997}"),
                      "{\"events\":[" SEQ(4998) "," SEQ(4999) "," SEQ(5000) "]}");
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":4996}"), RESYNC(0));
  world_close(&w);
}

static void the_default_keeps_1024(void **state)
{
  (void)state;
  world w;
  world_open(&w, 0);
  say_status(&w, "b1", 0);
  for (uint64_t n = 1; n <= 1025; n++) {
    say_event(&w, "weights.commit", n);
  }
  assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":0}"), RESYNC(0));
  const char *all = ask(&w, "{\"get\":\"events\",\"after\":1}");
  size_t events = 0;
  for (const char *p = all; (p = strstr(p, "\"sequence\"")) != NULL; p++) {
    events++;
  }
  assert_int_equal(events, 1024);
  world_close(&w);
}

static void failed_allocations_lose_no_event_that_was_published(void **state)
{
  (void)state;
  for (uint64_t nth = 1; nth <= 6; nth++) {
    world w;
    world_open(&w, 0);
    say_status(&w, "b1", 0);
    say_event(&w, "weights.commit", 1);
    const weft_resync m = { .h = { .type = WEFT_MSG_RESYNC },
                            .json = weft_buf_create("{\"get\":\"status\"}", 16) };
    assert_ok(weft_sim_send(w.sim, w.asker, &m.h));
    weft_buf_unref(m.json);
    weft_sim_fail_alloc(w.sim, nth);
    settle(&w);
    weft_sim_fail_alloc(w.sim, 0);
    assert_string_equal(ask(&w, "{\"get\":\"events\",\"after\":0}"),
                        "{\"events\":[" SEQ(1) "]}");
    world_close(&w);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_event_is_published_as_it_came),
    cmocka_unit_test(a_repeated_event_is_published_once),
    cmocka_unit_test(status_and_version_are_the_engines),
    cmocka_unit_test(an_unusable_status_changes_nothing),
    cmocka_unit_test(events_after_a_number_come_in_order),
    cmocka_unit_test(another_boot_id_means_resync),
    cmocka_unit_test(a_new_life_of_the_engine_forgets_the_old_ones_events),
    cmocka_unit_test(what_was_missed_here_is_never_passed_over_in_silence),
    cmocka_unit_test(an_event_is_known_before_its_status),
    cmocka_unit_test(bad_requests_are_told_so),
    cmocka_unit_test(the_ring_turns_for_ever),
    cmocka_unit_test(the_default_keeps_1024),
    cmocka_unit_test(failed_allocations_lose_no_event_that_was_published),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
