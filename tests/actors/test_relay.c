#include "weft_test.h"

#include "relay.h"
#include "weft/sim.h"

#include <stdio.h>
#include <string.h>

/* The relay between a client and a link that the test makes and kills. */

typedef struct world {
  weft_sim *sim;
  weft_actor_id relay, client, link; /* link: the newest */
  unsigned links;
  bool refuse;         /* connect fails */
  bool silent;         /* the link answers nothing */
  bool lose;           /* ... and has no memory for its answer */
  weft_err fail;       /* ... and says that the question failed for this reason */
  uint64_t callers[8]; /* as the link saw them */
  size_t caller_count, gone_count;
  /* what the client heard last */
  unsigned answers;
  weft_err err;
  weft_outcome outcome;
  char message[256];
} world;

static weft_err give_world(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  memcpy(self, args, sizeof(world *));
  return WEFT_OK;
}

static weft_err link_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  world *w = *(world **)self;
  if (msg->type == WEFT_MSG_CLIENT_GONE) {
    w->gone_count++;
    w->callers[w->caller_count++ % 8] = ((const weft_client_gone *)msg)->caller;
  }
  if (msg->type == WEFT_MSG_CLIENT_START) {
    w->callers[w->caller_count++ % 8] = ((const weft_client_start *)msg)->caller;
  }
  if (msg->corr != 0 && w->lose) {
    (void)weft_reply(ctx, weft_return_of(msg), NULL);
  } else if (msg->corr != 0 && w->fail != WEFT_OK) {
    weft_ask_failed_msg *m = (weft_ask_failed_msg *)weft_msg_new(
        ctx, WEFT_MSG_ASK_FAILED, sizeof(weft_ask_failed_msg));
    assert_non_null(m);
    m->reason = (uint32_t)w->fail;
    (void)weft_reply(ctx, weft_return_of(msg), &m->h);
  } else if (msg->corr != 0 && !w->silent) {
    const weft_client_done done = { .h = { .type = WEFT_MSG_CLIENT_DONE },
                                    .message = WEFT_STR("from the engine") };
    (void)weft_reply(ctx, weft_return_of(msg), weft_msg_make(ctx, &done.h));
  }
  return WEFT_OK;
}

static const weft_actor_class link_class = { "link", sizeof(world *), give_world, NULL,
                                             link_on };

static weft_err connect_link(void *arg, weft_ctx *ctx, const char *url,
                             weft_actor_id *out)
{
  world *w = arg;
  assert_string_equal(url, "ipc:///there");
  if (w->refuse) {
    return WEFT_E_SYS;
  }
  w->links++;
  const weft_err err = weft_spawn(ctx, &link_class, &w, NULL, out);
  w->link = err == WEFT_OK ? *out : 0;
  return err;
}

/* Puts what the test sends to it to the relay as questions. */
static weft_err client_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  world *w = *(world **)self;
  if (msg->type == WEFT_MSG_CLIENT_DONE) {
    const weft_client_done *done = (const weft_client_done *)msg;
    w->answers++;
    w->err = (weft_err)done->err;
    w->outcome = (weft_outcome)done->outcome;
    (void)snprintf(w->message, sizeof w->message, "%s", done->message.p);
  } else if (msg->type == WEFT_MSG_CLIENT_GONE) {
    (void)weft_send(ctx, w->relay, weft_msg_make(ctx, msg));
  } else if (msg->type < WEFT_MSG_USER_FIRST) {
    (void)weft_ask(ctx, w->relay, weft_msg_make(ctx, msg), 5000);
  }
  return WEFT_OK;
}

static const weft_actor_class client_class = { "client", sizeof(world *), give_world,
                                               NULL, client_on };

static void begin(world *w, uint64_t seed, bool refuse)
{
  memset(w, 0, sizeof *w);
  w->refuse = refuse;
  const weft_sim_opts opts = { .size = sizeof opts,
                               .seed = seed,
                               .catalogue = weft_messages() };
  assert_ok(weft_sim_create(&opts, &w->sim));
  const wefti_relay_args args = { .url = "ipc:///there",
                                  .ops = { .connect = connect_link, .arg = w } };
  assert_ok(weft_sim_spawn(w->sim, &wefti_relay_class, &args, NULL, &w->relay));
  assert_ok(weft_sim_spawn(w->sim, &client_class, &w, NULL, &w->client));
}

static void start(world *w, uint64_t caller)
{
  const weft_client_start call = { .h = { .type = WEFT_MSG_CLIENT_START },
                                   .caller = caller };
  assert_ok(weft_sim_send(w->sim, w->client, &call.h));
  weft_sim_run(w->sim, weft_sim_now_ms(w->sim) + 10);
}

static void answers_come_back_and_callers_are_told_apart(void **state)
{
  (void)state;
  world a;
  world b;
  begin(&a, 1, false);
  begin(&b, 2, false);
  start(&a, 7);
  start(&b, 7);
  assert_int_equal(a.answers, 1);
  assert_string_equal(a.message, "from the engine");
  assert_int_not_equal(a.callers[0], b.callers[0]); /* of two processes */
  assert_int_not_equal(a.callers[0], 0);
  start(&a, 0);
  assert_int_equal(a.callers[1], 0); /* nobody stays nobody */
  const weft_client_gone gone = { .h = { .type = WEFT_MSG_CLIENT_GONE }, .caller = 7 };
  assert_ok(weft_sim_send(a.sim, a.client, &gone.h));
  weft_sim_run(a.sim, weft_sim_now_ms(a.sim) + 10);
  assert_int_equal(a.gone_count, 1);
  assert_int_equal(a.callers[2], a.callers[0]); /* the same one goes */
  weft_sim_destroy(a.sim);
  weft_sim_destroy(b.sim);
}

static void a_link_that_dies_answers_unknown_and_is_made_anew(void **state)
{
  (void)state;
  world w;
  begin(&w, 3, false);
  w.silent = true;
  start(&w, 1);
  assert_int_equal(w.answers, 0);
  weft_sim_kill(w.sim, w.link);
  weft_sim_run(w.sim, weft_sim_now_ms(w.sim) + 10);
  assert_int_equal(w.answers, 1);
  assert_int_equal(w.err, WEFT_E_UNAVAIL);
  assert_int_equal(w.outcome, WEFT_OUTCOME_UNKNOWN); /* it may have arrived */
  start(&w, 1);                                      /* before the next link is there */
  assert_int_equal(w.answers, 2);
  assert_int_equal(w.err, WEFT_E_UNAVAIL);
  assert_int_equal(w.outcome, WEFT_OUTCOME_NOT_COMMITTED);
  assert_non_null(strstr(w.message, "ipc:///there"));
  w.silent = false;
  weft_sim_run(w.sim, weft_sim_now_ms(w.sim) + 200);
  assert_int_equal(w.links, 2);
  start(&w, 1);
  assert_int_equal(w.answers, 3);
  assert_int_equal(w.err, WEFT_OK);
  weft_sim_destroy(w.sim);
}

/* Whatever allocation fails on the way, its timer's included. */
static void a_link_is_made_anew_although_memory_was_short(void **state)
{
  (void)state;
  for (uint64_t nth = 1; nth < 8; nth++) {
    world w;
    begin(&w, 6, false);
    start(&w, 1);
    assert_int_equal(w.answers, 1);
    weft_sim_fail_alloc(w.sim, nth);
    weft_sim_kill(w.sim, w.link);
    weft_sim_run(w.sim, weft_sim_now_ms(w.sim) + 1000);
    weft_sim_fail_alloc(w.sim, 0);
    start(&w, 1);
    start(&w, 1);
    assert_int_equal(w.answers, 3);
    assert_int_equal(w.err, WEFT_OK);
    weft_sim_destroy(w.sim);
  }
}

static void only_what_was_not_asked_is_certainly_not_committed(void **state)
{
  (void)state;
  static const weft_err reasons[] = { WEFT_E_FULL, WEFT_E_NOMEM, WEFT_E_LOST,
                                      WEFT_E_TIMEOUT, WEFT_E_DOWN };
  world w;
  begin(&w, 5, false);
  for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
    w.fail = reasons[i];
    start(&w, 1);
    assert_int_equal(w.answers, i + 1);
    assert_int_equal(w.outcome,
                     i < 2 ? WEFT_OUTCOME_NOT_COMMITTED : WEFT_OUTCOME_UNKNOWN);
  }
  w.lose = true; /* the runtime's own word for it */
  start(&w, 1);
  assert_int_equal(w.outcome, WEFT_OUTCOME_UNKNOWN);
  assert_non_null(strstr(w.message, "answer was lost"));
  weft_sim_destroy(w.sim);
}

static void attempts_are_spaced_out(void **state)
{
  (void)state;
  world w;
  begin(&w, 4, true);
  weft_sim_run(w.sim, 60000);
  w.refuse = false;
  weft_sim_run(w.sim, weft_sim_now_ms(w.sim) + 2100);
  assert_int_equal(w.links, 1);
  start(&w, 1);
  assert_int_equal(w.err, WEFT_OK);
  weft_sim_destroy(w.sim);
}

static void without_memory_every_question_is_still_answered(void **state)
{
  (void)state;
  for (uint64_t n = 1; n < 40; n++) {
    world w;
    begin(&w, n, false);
    const weft_client_start call = { .h = { .type = WEFT_MSG_CLIENT_START },
                                     .caller = 1 };
    assert_ok(weft_sim_send(w.sim, w.client, &call.h));
    weft_sim_fail_alloc(w.sim, n);
    weft_sim_run(w.sim,
                 6000); /* ASK_FAILED at the client counts as well: not counted here */
    weft_sim_fail_alloc(w.sim, 0);
    start(&w, 1);
    assert_true(w.answers >= 1);
    assert_int_equal(w.err, WEFT_OK);
    weft_sim_destroy(w.sim);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(answers_come_back_and_callers_are_told_apart),
    cmocka_unit_test(a_link_that_dies_answers_unknown_and_is_made_anew),
    cmocka_unit_test(a_link_is_made_anew_although_memory_was_short),
    cmocka_unit_test(only_what_was_not_asked_is_certainly_not_committed),
    cmocka_unit_test(attempts_are_spaced_out),
    cmocka_unit_test(without_memory_every_question_is_still_answered),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
