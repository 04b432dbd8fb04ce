/* Every message that the catalogue has for an engine, and what is none of its senders' to
 * say. */
#include "weft_test.h"

#include "engine.h"
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SOON_MS = 1000, LATE_MS = 10000, ALLOCATIONS = 12, NOBODY = 99999 };

static world w;

static engine *start(void)
{
  const world_opts opts = { .seed = 1, .joined = true };
  world_start(&w, &opts);
  if (w.broken) {
    fail_msg("%s", w.why);
  }
  assert_true(world_all_ready(&w));
  return weft_sim_state(w.sim, w.engine);
}

static weft_msg *zeroed(uint16_t type)
{
  weft_msg *m = calloc(1, weft_msg_desc_of(weft_messages(), type)->size);
  assert_non_null(m);
  m->type = type;
  return m;
}

/* ---- calls */

static const struct {
  uint16_t type;
  const char *operation;
} calls[] = {
  { WEFT_MSG_CLIENT_INIT, "init_weight_transfer_engine" },
  { WEFT_MSG_CLIENT_SHUTDOWN, "shutdown_weight_transfer_engine" },
  { WEFT_MSG_CLIENT_START, "start_weight_update" },
  { WEFT_MSG_CLIENT_UPDATE, "update_weights" },
  { WEFT_MSG_CLIENT_FINISH, "finish_weight_update" },
  { WEFT_MSG_CLIENT_LABEL, "update_weight_version" },
  { WEFT_MSG_CLIENT_ABORT, "abort_weight_update" },
  { WEFT_MSG_CLIENT_PAUSE, "pause" },
  { WEFT_MSG_CLIENT_CHECK, "weight_checker" },
  { WEFT_MSG_CLIENT_CACHE, "reset_cache" },
  { WEFT_MSG_CLIENT_RESOLVE, "resolve_weight_update" },
};
enum { CALLS = sizeof calls / sizeof calls[0] };

static const char *operation_of(uint16_t type)
{
  for (size_t i = 0; i < CALLS; i++) {
    if (calls[i].type == type) {
      return calls[i].operation;
    }
  }
  return NULL;
}

static void is_answered(uint16_t type, const weft_msg_desc *desc)
{
  weft_msg *m = zeroed(type);
  (void)start();
  const world_answer *a = world_call(&w, 0, m, SOON_MS);
  if (!a->came) {
    fail_msg("%s is not answered", desc->name);
  }
  if (type != WEFT_MSG_CLIENT_QUERY) {
    const char *want = operation_of(type);
    assert_non_null(want); /* a new one: add it to the list */
    assert_string_equal(a->operation, a->err == WEFT_OK ? "" : want);
  }
  world_stop(&w);
  free(m);
}

/* ---- what an engine is told */

static void up_is_taken(engine *e)
{
  const weft_member_up m = {
    .h.type = WEFT_MSG_MEMBER_UP, .rank = 1, .incarnation = 7, .actor = w.workers[1].actor
  };
  assert_ok(weft_sim_send(w.sim, w.engine, &m.h));
  world_run(&w, 1);
  assert_int_not_equal(e->members[1].state, MEMBER_READY);
}

static void down_is_taken(engine *e)
{
  const weft_member_down m = { .h.type = WEFT_MSG_MEMBER_DOWN,
                               .rank = 1,
                               .incarnation = w.workers[1].incarnation };
  assert_ok(weft_sim_send(w.sim, w.engine, &m.h));
  world_run(&w, 1);
  assert_int_not_equal(e->members[1].state, MEMBER_READY);
}

static void note_is_taken(engine *e)
{
  const weft_restore_note m = { .h.type = WEFT_MSG_RESTORE_NOTE,
                                .state = WEFT_RESTORE_DONE };
  assert_ok(weft_sim_send(w.sim, w.engine, &m.h));
  world_run(&w, 1);
  assert_int_equal(e->restore, WEFT_RESTORE_DONE);
}

static const struct {
  uint16_t type;
  void (*is_taken)(engine *e); /* NULL: has tests of its own */
} told[] = {
  { WEFT_MSG_MEMBER_UP, up_is_taken },      { WEFT_MSG_MEMBER_DOWN, down_is_taken },
  { WEFT_MSG_RESTORE_NOTE, note_is_taken }, { WEFT_MSG_CLIENT_GONE, NULL },
  { WEFT_MSG_REPLICA_NOTE, NULL },
};

static bool is_told(uint16_t type)
{
  for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
    if (told[i].type == type) {
      if (told[i].is_taken != NULL) {
        told[i].is_taken(start());
        world_stop(&w);
      }
      return true;
    }
  }
  return false;
}

static bool is_an_answer(uint16_t type)
{
  bool found = type == WEFT_MSG_W_REFUSED;
  for (unsigned n = 1; n < WEFT_MSG_COUNT; n++) {
    const uint16_t t = (uint16_t)n;
    const weft_msg_desc *desc = weft_msg_desc_of(weft_messages(), t);
    found = found || (desc->reply == type && desc->from == WEFT_ROLE_ENGINE);
  }
  return found;
}

static void every_row_for_an_engine_is_handled(void **state)
{
  (void)state;
  for (unsigned n = 1; n < WEFT_MSG_COUNT; n++) {
    const uint16_t t = (uint16_t)n;
    const weft_msg_desc *desc = weft_msg_desc_of(weft_messages(), t);
    if (desc->to != WEFT_ROLE_ENGINE) {
      continue;
    }
    if (desc->reply != WEFT_MSG_NONE) {
      is_answered(t, desc);
    } else if (!is_told(t) && !is_an_answer(t)) {
      fail_msg("%s is neither answered nor taken nor an answer", desc->name);
    }
  }
}

/* The answer to a call that there was no memory for names that call and no other. */
static void a_call_without_memory_is_named(void **state)
{
  (void)state;
  for (size_t i = 0; i < CALLS; i++) {
    unsigned failed = 0;
    weft_msg *m = zeroed(calls[i].type);
    for (uint64_t nth = 1; nth <= ALLOCATIONS; nth++) {
      (void)start();
      weft_sim_fail_alloc(w.sim, nth);
      const world_answer *a = world_call(&w, 0, m, SOON_MS);
      weft_sim_fail_alloc(w.sim, 0);
      if (a->came && a->err == WEFT_E_NOMEM &&
          strstr(a->message, "out of memory for a call") != NULL) {
        failed++;
        assert_string_equal(a->operation, calls[i].operation);
      }
      world_stop(&w);
    }
    assert_true(failed > 0);
    free(m);
  }
}

/* ---- what is not the sender's to say */

static void who_speaks_of_nobody_is_no_supervisor(void **state)
{
  (void)state;
  const engine *e = start();
  const weft_member_up up = { .h.type = WEFT_MSG_MEMBER_UP, .rank = NOBODY };
  const weft_member_down down = { .h.type = WEFT_MSG_MEMBER_DOWN, .rank = NOBODY };
  assert_true(e->supervisor == w.supervisor);
  assert_ok(weft_sim_send(w.sim, w.engine, &up.h));
  assert_ok(weft_sim_send(w.sim, w.engine, &down.h));
  world_run(&w, SOON_MS);
  assert_true(e->supervisor == w.supervisor);
  assert_true(world_all_ready(&w));
  world_stop(&w);
}

/* A worker that answers what it is asked with what only a supervisor says of another. */
typedef struct liar {
  unsigned asked;
} liar;

static weft_err liar_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  if (msg->corr == 0) {
    return WEFT_OK;
  }
  const weft_member_down m = { .h.type = WEFT_MSG_MEMBER_DOWN,
                               .rank = 1,
                               .incarnation = w.workers[1].incarnation };
  ((liar *)self)->asked++;
  return weft_reply(ctx, weft_return_of(msg), weft_msg_make(ctx, &m.h));
}
static const weft_actor_class liar_class = { .name = "liar",
                                             .state_size = sizeof(liar),
                                             .on = liar_on };

static void an_answer_is_taken_for_nothing_else(void **state)
{
  (void)state;
  const engine *e = start();
  weft_actor_id actor;
  assert_ok(weft_sim_spawn(w.sim, &liar_class, NULL, NULL, &actor));
  const liar *l = weft_sim_state(w.sim, actor);
  const weft_member_up up = { .h.type = WEFT_MSG_MEMBER_UP,
                              .kind = WEFT_MEMBER_JOINED,
                              .incarnation = 7,
                              .actor = actor };
  assert_ok(weft_sim_send(w.sim, w.engine, &up.h));
  for (unsigned i = 0; i < LATE_MS && l->asked == 0; i++) {
    world_run(&w, 1);
  }
  assert_int_equal(l->asked, 1);
  world_run(&w, 1);
  assert_int_equal(e->members[1].state, MEMBER_READY);
  assert_true(e->members[0].beat == 0); /* it was heard, as a bad answer */
  world_stop(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_row_for_an_engine_is_handled),
    cmocka_unit_test(a_call_without_memory_is_named),
    cmocka_unit_test(who_speaks_of_nobody_is_no_supervisor),
    cmocka_unit_test(an_answer_is_taken_for_nothing_else),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
