#include "weft_test.h"

#include "on_loop.h"
#include "sub_feed.h"
#include "weft/json.h"
#include "weft/process.h"
#include "weft/pubsub.h"
#include "weft/runtime.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 1024 };

/* An engine's publisher and snapshot socket: keeps the last KEPT events. */
typedef struct engine {
  weft_runtime *rt;
  weft_rundir *dir;
  weft_pub *pub;
  weft_jsonrep *rep;
  char events[200], snapshot[200], boot[32];
  uint64_t sequence;
  unsigned quiet; /* commits that are not published: lost on the way */
  weft_err err;
} engine;

static void event_text(const engine *e, uint64_t n, char *out, size_t cap)
{
  (void)snprintf(out, cap,
                 "{\"type\":\"commit\",\"sequence\":%" PRIu64 ",\"boot_id\":\"%s\"}", n,
                 e->boot);
}

static void on_request(void *arg, uint64_t id, weft_buf *request)
{
  engine *e = arg;
  weft_json *o = NULL;
  char status[128];
  char text[128];
  (void)snprintf(status, sizeof status, "{\"sequence\":%" PRIu64 ",\"boot_id\":\"%s\"}",
                 e->sequence, e->boot);
  if (weft_json_parse(request->data, request->len, NULL, &o, NULL) != WEFT_OK) {
    return;
  }
  int64_t after = 0;
  if (!weft_json_i64(weft_json_get(o, "after"), &after)) {
    weft_jsonrep_answer(e->rep, id, status, strlen(status));
    weft_json_free(o);
    return;
  }
  weft_json_free(o);
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  if ((uint64_t)after + KEPT < e->sequence) {
    weft_jw_bool(&w, "resync", true);
    weft_jw_raw(&w, "status", status, strlen(status));
  } else {
    weft_jw_array(&w, "events");
    for (uint64_t n = (uint64_t)after + 1; n <= e->sequence; n++) {
      event_text(e, n, text, sizeof text);
      weft_jw_raw(&w, NULL, text, strlen(text));
    }
    weft_jw_end(&w);
  }
  weft_jw_end(&w);
  char *all;
  size_t len;
  if (weft_jw_take(&w, &all, &len) == WEFT_OK) {
    weft_jsonrep_answer(e->rep, id, all, len);
    free(all);
  }
}

static void do_commit(void *arg)
{
  engine *e = arg;
  char text[128];
  event_text(e, ++e->sequence, text, sizeof text);
  if (e->quiet == 0) {
    e->err = weft_pub_send(e->pub, "weights.commit", text, strlen(text));
  }
}

static void do_open(void *arg)
{
  engine *e = arg;
  weft_why why = { 0 };
  e->err = weft_pub_create(e->events, NULL, 0, &e->pub, &why);
  if (e->err == WEFT_OK) {
    e->err = weft_jsonrep_create(weft_runtime_loop(e->rt, 0), e->snapshot, 4, on_request,
                                 e, NULL, 0, &e->rep, &why);
  }
}

static void do_close(void *arg)
{
  engine *e = arg;
  weft_pub_destroy(e->pub);
  weft_jsonrep_destroy(e->rep);
}

static void on(engine *e, weft_call_fn *fn)
{
  on_loop(weft_runtime_loop(e->rt, 0), fn, e);
  assert_ok(e->err);
}

static void engine_open(engine *e, const char *scheme)
{
  weft_why why = { 0 };
  *e = (engine){ .boot = "b1" };
  const weft_runtime_opts o = { .size = sizeof o, .loops = 1 };
  assert_ok(weft_rundir_open(NULL, &e->dir, &why));
  assert_ok(weft_runtime_create(&o, &e->rt));
  assert_ok(weft_runtime_start_all(e->rt));
  (void)snprintf(e->events, sizeof e->events, "%s://%s/ev", scheme,
                 weft_rundir_path(e->dir));
  (void)snprintf(e->snapshot, sizeof e->snapshot, "%s://%s/sn", scheme,
                 weft_rundir_path(e->dir));
  on(e, do_open);
}

static void engine_close(engine *e)
{
  on(e, do_close);
  weft_runtime_stop(e->rt, 100);
  weft_runtime_join(e->rt);
  weft_runtime_destroy(e->rt);
  weft_rundir_close(e->dir);
}

static uint64_t sequence_of(const weft_sub_event *v)
{
  weft_json *o = NULL;
  int64_t n = -1;
  assert_ok(weft_json_parse(v->json->data, v->json->len, NULL, &o, NULL));
  assert_true(weft_json_i64(weft_json_get(o, "sequence"), &n));
  weft_json_free(o);
  return (uint64_t)n;
}

/* The next event of that kind has that sequence; statuses on the way are skipped. */
static void expect(weft_sub *s, weft_sub_kind kind, uint64_t sequence)
{
  for (;;) {
    weft_sub_event v;
    assert_ok(weft_sub_next(s, 15000, &v));
    const bool skip = v.kind == WEFT_SUB_STATUS && kind != WEFT_SUB_STATUS;
    const uint64_t n = sequence_of(&v);
    weft_buf_unref(v.json);
    if (!skip) {
      assert_int_equal(v.kind, kind);
      assert_int_equal(n, sequence);
      return;
    }
  }
}

static void every_commit_comes_once_and_in_order(void **state)
{
  (void)state;
  engine e;
  weft_sub *s;
  engine_open(&e, "ipc");
  assert_ok(weft_sub_create(e.events, e.snapshot, &s, NULL));
  expect(s, WEFT_SUB_STATUS, 0);
  for (uint64_t n = 1; n <= 100; n++) {
    on(&e, do_commit);
    expect(s, WEFT_SUB_EVENT, n);
  }
  weft_sub_destroy(s);
  engine_close(&e);
}

static void lost_messages_are_fetched(void **state)
{
  (void)state;
  engine e;
  weft_sub *s;
  engine_open(&e, "inproc");
  assert_ok(weft_sub_create(e.events, e.snapshot, &s, NULL));
  expect(s, WEFT_SUB_STATUS, 0);
  on(&e, do_commit);
  expect(s, WEFT_SUB_EVENT, 1);
  e.quiet = 1;
  for (int i = 0; i < 30; i++) {
    on(&e, do_commit);
  }
  e.quiet = 0;
  on(&e, do_commit);
  for (uint64_t n = 2; n <= 32; n++) {
    expect(s, WEFT_SUB_EVENT, n);
  }
  /* Also when nothing follows that would show the gap. */
  e.quiet = 1;
  on(&e, do_commit);
  expect(s, WEFT_SUB_EVENT, 33);
  weft_sub_destroy(s);
  engine_close(&e);
}

/* A burst of 8,000 while nobody reads: pub's raised buffer and the resync cover it. */
static void a_burst_is_not_lost(void **state)
{
  (void)state;
  engine e;
  weft_sub *s;
  engine_open(&e, "ipc");
  assert_ok(weft_sub_create(e.events, e.snapshot, &s, NULL));
  expect(s, WEFT_SUB_STATUS, 0);
  on(&e, do_commit);
  expect(s, WEFT_SUB_EVENT, 1);
  /* What nng loses on the way is asked for; the engine keeps no more than that. */
  for (int i = 0; i < KEPT; i++) {
    on(&e, do_commit);
  }
  for (uint64_t n = 2; n <= KEPT + 1; n++) {
    expect(s, WEFT_SUB_EVENT, n);
  }
  weft_sub_destroy(s);
  engine_close(&e);
}

static void what_the_engine_forgot_is_a_resync(void **state)
{
  (void)state;
  engine e;
  weft_sub *s;
  engine_open(&e, "inproc");
  assert_ok(weft_sub_create(e.events, e.snapshot, &s, NULL));
  expect(s, WEFT_SUB_STATUS, 0);
  on(&e, do_commit);
  expect(s, WEFT_SUB_EVENT, 1);
  e.quiet = 1;
  for (int i = 0; i < KEPT + 10; i++) {
    on(&e, do_commit);
  }
  e.quiet = 0;
  on(&e, do_commit);
  expect(s, WEFT_SUB_RESYNC, KEPT + 12);
  on(&e, do_commit);
  expect(s, WEFT_SUB_EVENT, KEPT + 13);
  weft_sub_destroy(s);
  engine_close(&e);
}

static void a_restarted_engine_is_followed(void **state)
{
  (void)state;
  for (int keeps = 0; keeps < 2; keeps++) {
    engine e;
    weft_sub *s;
    engine_open(&e, "inproc");
    assert_ok(weft_sub_create(e.events, e.snapshot, &s, NULL));
    expect(s, WEFT_SUB_STATUS, 0);
    for (uint64_t n = 1; n <= 3; n++) {
      on(&e, do_commit);
      expect(s, WEFT_SUB_EVENT, n);
    }
    on(&e, do_close);
    (void)snprintf(e.boot, sizeof e.boot, "b2");
    e.sequence = keeps ? 5 : 1; /* with its journal, and without */
    on(&e, do_open);
    if (keeps) {
      expect(s, WEFT_SUB_EVENT, 4);
      expect(s, WEFT_SUB_EVENT, 5);
    } else {
      expect(s, WEFT_SUB_RESYNC, 1);
    }
    on(&e, do_commit);
    expect(s, WEFT_SUB_EVENT, keeps ? 6 : 2);
    weft_sub_destroy(s);
    engine_close(&e);
  }
}

static void timeouts_and_interrupts_end_the_wait(void **state)
{
  (void)state;
  weft_sub *s;
  weft_sub_event v;
  assert_ok(weft_sub_create("inproc://no-events", "inproc://no-snapshot", &s, NULL));
  assert_err(weft_sub_next(s, 50, &v), WEFT_E_TIMEOUT);
  weft_sub_interrupt(s);
  assert_err(weft_sub_next(s, 60000, &v), WEFT_E_CLOSED);
  weft_sub_destroy(s);
  weft_why why = { 0 };
  assert_err(weft_sub_create("nowhere", "inproc://x", &s, &why), WEFT_E_INVAL);
}

static void feed_event(wefti_feed *f, uint64_t n, const char *boot)
{
  char text[128];
  const int len =
      snprintf(text, sizeof text,
               "weights.commit {\"sequence\":%" PRIu64 ",\"boot_id\":\"%s\"}", n, boot);
  assert_ok(wefti_feed_event(f, text, (size_t)len));
}

static unsigned drain(wefti_feed *f)
{
  weft_sub_event v;
  unsigned n = 0;
  while (wefti_feed_pop(f, &v)) {
    weft_buf_unref(v.json);
    n++;
  }
  return n;
}

/* The pure half: what it asks, and that it ends when the engine's answers do not help. */
static void a_useless_replay_ends_in_a_resync(void **state)
{
  (void)state;
  wefti_feed f;
  static const char status[] = "{\"sequence\":5,\"boot_id\":\"b\"}";
  wefti_feed_init(&f);
  assert_int_equal(f.want, WEFTI_ASK_STATUS);
  assert_ok(wefti_feed_answer(&f, WEFTI_ASK_STATUS, status, strlen(status)));
  assert_int_equal(drain(&f), 1);
  feed_event(&f, 5, "b"); /* seen */
  assert_int_equal(drain(&f), 0);
  feed_event(&f, 8, "b");
  for (int i = 0; i < 10 && f.want == WEFTI_ASK_EVENTS; i++) {
    assert_ok(wefti_feed_answer(&f, WEFTI_ASK_EVENTS, "{\"events\":[]}", 13));
  }
  assert_int_equal(f.want, WEFTI_ASK_STATUS);
  static const char later[] = "{\"sequence\":8,\"boot_id\":\"b\"}";
  assert_ok(wefti_feed_answer(&f, WEFTI_ASK_STATUS, later, strlen(later)));
  weft_sub_event v;
  assert_true(wefti_feed_pop(&f, &v));
  assert_int_equal(v.kind, WEFT_SUB_RESYNC);
  weft_buf_unref(v.json);
  assert_int_equal(drain(&f), 0); /* 8 itself is part of the status */
  feed_event(&f, 9, "b");
  assert_int_equal(drain(&f), 1);
  assert_int_equal(f.want, WEFTI_ASK_NOTHING);
  wefti_feed_fini(&f);
}

static void events_without_a_number_pass(void **state)
{
  (void)state;
  wefti_feed f;
  static const char a[] = "weights.session {\"sequence\":0,\"type\":\"started\"}";
  static const char b[] = "weights.worker {\"type\":\"up\"}";
  wefti_feed_init(&f);
  assert_ok(wefti_feed_event(&f, a, strlen(a)));
  assert_ok(wefti_feed_event(&f, b, strlen(b)));
  assert_int_equal(drain(&f), 2);
  static const char *const bad[] = { "", "x", "t {", "t []", "t 5" };
  for (size_t i = 0; i < 5; i++) {
    assert_ok(wefti_feed_event(&f, bad[i], strlen(bad[i])));
  }
  assert_int_equal(drain(&f), 0);
  assert_err(wefti_feed_answer(&f, WEFTI_ASK_STATUS, "[1]", 3), WEFT_E_PROTO);
  assert_err(wefti_feed_answer(&f, WEFTI_ASK_EVENTS, "{\"events\":1}", 12), WEFT_E_PROTO);
  assert_err(wefti_feed_answer(&f, WEFTI_ASK_EVENTS, "{\"resync\":true}", 15),
             WEFT_E_PROTO);
  wefti_feed_fini(&f);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_commit_comes_once_and_in_order),
    cmocka_unit_test(lost_messages_are_fetched),
    cmocka_unit_test(a_burst_is_not_lost),
    cmocka_unit_test(what_the_engine_forgot_is_a_resync),
    cmocka_unit_test(a_restarted_engine_is_followed),
    cmocka_unit_test(timeouts_and_interrupts_end_the_wait),
    cmocka_unit_test(a_useless_replay_ends_in_a_resync),
    cmocka_unit_test(events_without_a_number_pass),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
