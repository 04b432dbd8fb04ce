#include "weft_test.h"

#include "puppet.h"
#include "sample_catalogue.h"
#include "weft/runtime.h"
#include "weft/sim.h"

#include <stdlib.h>
#include <string.h>

/* Mailboxes, timers, life and monitors, under the seeded scheduler. */

enum { LOG_MAX = 256 };

typedef struct world {
  weft_sim *sim;
  weft_actor_id ids[8];
  weft_actor_id peer;
  weft_actor_id child;
  int count; /* whatever the test counts */
  weft_err err;
  weft_err errs[LOG_MAX];
  uint32_t log[LOG_MAX];
  int logged;
  uint64_t timers[4];
  char order[64];
  weft_err down_reason[8];
  weft_actor_id down_who[8];
  int downs;
  weft_buf *body;
} world;

static int setup(void **state)
{
  world *w = calloc(1, sizeof *w);
  assert_non_null(w);
  const weft_sim_opts opts = { .size = sizeof opts,
                               .seed = 5,
                               .catalogue = &sample_catalogue };
  assert_ok(weft_sim_create(&opts, &w->sim));
  *state = w;
  return 0;
}

static int teardown(void **state)
{
  world *w = *state;
  weft_sim_destroy(w->sim);
  free(w);
  return 0;
}

static weft_actor_id spawn(world *w, puppet_fn *on, const weft_spawn_opts *opts)
{
  const puppet_args args = { .on = on, .arg = w };
  weft_actor_id id = 0;
  assert_ok(weft_sim_spawn(w->sim, &puppet_class, &args, opts, &id));
  return id;
}

static void go(world *w, weft_actor_id who)
{
  const weft_msg m = { .type = SAMPLE_GO };
  assert_ok(weft_sim_send(w->sim, who, &m));
}

static void note(world *w, char c)
{
  const size_t n = strlen(w->order);
  assert_true(n + 1 < sizeof w->order);
  w->order[n] = c;
}

/* ---- mailboxes */

static weft_err log_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  (void)ctx;
  if (msg->type == SAMPLE_PING || msg->type == SAMPLE_PONG) {
    w->log[w->logged++] = ((const sample_ping *)msg)->n;
  }
  return WEFT_OK;
}

static weft_err flood_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  (void)msg;
  for (int i = 0; i < w->count; i++) {
    const bool last = i >= w->count - 4;
    const sample_ping m = { .h = { .type = SAMPLE_PING,
                                   .flags = last ? WEFT_MSG_F_RESERVED : 0 },
                            .n = (uint32_t)i };
    w->errs[i] = weft_send(ctx, w->peer, weft_msg_make(ctx, &m.h));
  }
  return WEFT_OK;
}

static void order_is_kept_and_bounds_hold(void **state)
{
  world *w = *state;
  w->peer = spawn(w, log_on, &(weft_spawn_opts){ .mailbox = 8 });
  w->count = 14; /* 10 plain, 4 reserved */
  weft_sim_freeze(w->sim, w->peer, true);
  go(w, spawn(w, flood_on, NULL));
  weft_sim_run(w->sim, 2000);
  for (int i = 0; i < 14; i++) {
    /* 8 places, 2 refusals, 2 reserved places, 2 refusals */
    assert_int_equal(w->errs[i], i < 8 || i == 10 || i == 11 ? WEFT_OK : WEFT_E_FULL);
  }
  weft_sim_freeze(w->sim, w->peer, false);
  weft_sim_run(w->sim, 3000);
  static const uint32_t want[] = { 0, 1, 2, 3, 4, 5, 6, 7, 10, 11 };
  assert_int_equal(w->logged, 10);
  assert_memory_equal(w->log, want, sizeof want);
}

static weft_err misc_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  (void)msg;
  assert_err(weft_send(ctx, w->peer, NULL), WEFT_E_NOMEM);
  assert_err(weft_send(ctx, 0, weft_msg_new(ctx, SAMPLE_GO, sizeof(weft_msg))),
             WEFT_E_DOWN);
  assert_err(weft_send(ctx, UINT64_MAX, weft_msg_new(ctx, SAMPLE_GO, sizeof(weft_msg))),
             WEFT_E_DOWN);
  assert_null(weft_msg_new(ctx, SAMPLE_GO, sizeof(weft_msg) - 1));
  assert_ok(weft_reply(ctx, (weft_return){ 0, 0 },
                       weft_msg_new(ctx, SAMPLE_GO, sizeof(weft_msg))));
  assert_ok(weft_reply(ctx, (weft_return){ 0, 0 }, NULL));
  weft_msg *big = weft_msg_new(ctx, WEFT_MSG_USER_FIRST, 5000);
  assert_non_null(big);
  for (size_t i = sizeof(weft_msg); i < 5000; i++) {
    assert_int_equal(((const uint8_t *)big)[i], 0);
  }
  assert_ok(weft_send(ctx, weft_self(ctx), big)); /* to itself, and dropped with it */
  assert_null(weft_ctx_loop(ctx));
  assert_null(weft_ctx_runtime(ctx));
  w->count++;
  return WEFT_E_FAILED;
}

static void odd_sends_are_answered(void **state)
{
  world *w = *state;
  const weft_actor_id a = spawn(w, misc_on, NULL);
  go(w, a);
  weft_sim_run(w->sim, 2000);
  assert_int_equal(w->count, 1);
  assert_false(weft_sim_alive(w->sim, a));
}

static weft_err send_mix_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  (void)msg;
  char text[] = "on the stack";
  const sample_mix m = { .h = { .type = SAMPLE_MIX },
                         .text = { text, sizeof text - 1 },
                         .body = w->body };
  weft_msg *made = weft_msg_make(ctx, &m.h);
  memset(text, 0, sizeof text);
  return weft_send(ctx, w->peer, made);
}

static weft_err recv_mix_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  (void)ctx;
  const sample_mix *m = (const sample_mix *)msg;
  assert_string_equal(m->text.p, "on the stack");
  assert_ptr_equal(m->body, w->body);
  w->count++;
  return WEFT_OK;
}

static void bufs_are_shared_not_copied(void **state)
{
  world *w = *state;
  w->body = weft_buf_create("x", 1);
  w->peer = spawn(w, recv_mix_on, NULL);
  const weft_actor_id a = spawn(w, send_mix_on, NULL);
  go(w, a);
  weft_sim_run(w->sim, 2000);
  weft_sim_freeze(w->sim, w->peer, true); /* one more that dies in the mailbox */
  go(w, a);
  weft_sim_run(w->sim, 3000);
  weft_sim_kill(w->sim, w->peer);
  go(w, a); /* and one for nobody: the sender ends with DOWN */
  weft_sim_run(w->sim, 4000);
  assert_int_equal(w->count, 1);
  assert_false(weft_sim_alive(w->sim, a));
  weft_buf_unref(w->body); /* the last one, or ASan tells */
}

/* ---- timers */

static weft_err timer_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  if (msg->type == SAMPLE_GO) {
    w->timers[0] = weft_timer_start(ctx, 30, 3);
    w->timers[1] = weft_timer_start(ctx, 10, 1);
    w->timers[2] = weft_timer_start(ctx, 20, 2);
    w->timers[3] = weft_timer_start(ctx, UINT64_MAX, 4);
    weft_timer_cancel(ctx, w->timers[2]);
    weft_timer_cancel(ctx, w->timers[2]);
    weft_timer_cancel(ctx, 0);
    weft_timer_cancel(ctx, 999);
    return WEFT_OK;
  }
  const weft_timer_msg *t = (const weft_timer_msg *)msg;
  assert_int_equal(msg->type, WEFT_MSG_TIMER);
  assert_true(t->id == w->timers[0] || t->id == w->timers[1]);
  w->log[w->logged++] = (uint32_t)t->tag;
  w->log[w->logged++] = (uint32_t)(weft_now_ms(ctx) % 1000);
  return WEFT_OK;
}

static void timers_fire_once_in_order_and_can_be_cancelled(void **state)
{
  world *w = *state;
  go(w, spawn(w, timer_on, NULL));
  weft_sim_run(w->sim, 1000000);
  static const uint32_t want[] = { 1, 10, 3, 30 };
  assert_int_equal(w->logged, 4);
  assert_memory_equal(w->log, want, sizeof want);
}

static weft_err two_timers_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  if (msg->type == SAMPLE_GO) {
    w->timers[0] = weft_timer_start(ctx, 10, 0);
    w->timers[1] = weft_timer_start(ctx, 10, 1);
    return WEFT_OK;
  }
  w->count++; /* the other one has fired too, but not arrived */
  weft_timer_cancel(ctx, w->timers[((const weft_timer_msg *)msg)->tag == 0 ? 1 : 0]);
  return WEFT_OK;
}

static void a_fired_timer_can_still_be_cancelled(void **state)
{
  world *w = *state;
  go(w, spawn(w, two_timers_on, NULL));
  weft_sim_run(w->sim, 5000);
  assert_int_equal(w->count, 1);
}

static weft_err small_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  if (msg->type == SAMPLE_GO && w->count++ == 0) {
    assert_true(weft_timer_start(ctx, 10, 0) != 0);
    return weft_monitor(ctx, w->peer);
  }
  w->downs += msg->type == WEFT_MSG_DOWN;
  w->logged += msg->type == WEFT_MSG_TIMER;
  return WEFT_OK;
}

static void timers_and_downs_pass_a_full_mailbox(void **state)
{
  world *w = *state;
  w->peer = spawn(w, log_on, NULL);
  const weft_actor_id a = spawn(w, small_on, &(weft_spawn_opts){ .mailbox = 1 });
  go(w, a);
  weft_sim_run(w->sim, 1005);
  weft_sim_freeze(w->sim, a, true);
  const weft_msg m = { .type = SAMPLE_GO };
  assert_ok(weft_sim_send(w->sim, a, &m));
  assert_err(weft_sim_send(w->sim, a, &m), WEFT_E_FULL);
  weft_sim_kill(w->sim, w->peer);
  weft_sim_run(w->sim, 1015);
  assert_int_equal(w->logged + w->downs, 0);
  weft_sim_freeze(w->sim, a, false);
  weft_sim_run(w->sim, 1016);
  assert_int_equal(w->count, 2);
  assert_int_equal(w->logged, 1);
  assert_int_equal(w->downs, 1);
}

/* ---- life */

typedef struct node_args {
  world *w;
  char name;
  int children;
} node_args;

static const weft_actor_class node_class;

typedef struct node {
  world *w;
  char name;
} node;

static weft_err node_init(weft_ctx *ctx, void *self, const void *args)
{
  const node_args *a = args;
  node *n = self;
  n->w = a->w;
  n->name = a->name;
  for (int i = 0; i < a->children; i++) {
    const node_args c = { a->w, (char)(a->name + 1 + 4 * i), a->children - 1 };
    weft_actor_id id;
    const weft_err err = weft_spawn(ctx, &node_class, &c, NULL, &id);
    if (err != WEFT_OK) {
      return err;
    }
    a->w->child = id;
  }
  return WEFT_OK;
}

static void node_fini(weft_ctx *ctx, void *self)
{
  const node *n = self;
  weft_actor_id id;
  const node_args c = { n->w, 'z', 0 };
  if (n->w != NULL) {
    note(n->w, n->name);
    assert_true(weft_spawn(ctx, &node_class, &c, NULL, &id) != WEFT_OK);
  }
}

static weft_err node_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  (void)ctx;
  (void)self;
  return msg->type == SAMPLE_GO ? WEFT_E_FAILED : WEFT_E_STATE;
}

static const weft_actor_class node_class = { .name = "node",
                                             .state_size = sizeof(node),
                                             .init = node_init,
                                             .fini = node_fini,
                                             .on = node_on };

static void children_end_first_newest_first(void **state)
{
  world *w = *state;
  const node_args root = { w, 'a', 2 };
  weft_actor_id id;
  assert_ok(weft_sim_spawn(w->sim, &node_class, &root, NULL, &id));
  go(w, id);
  weft_sim_run(w->sim, 2000);
  assert_string_equal(w->order, "gfcba"); /* a has b (with c) and f (with g) */
  assert_false(weft_sim_alive(w->sim, id));
}

static void a_failed_init_leaves_nothing(void **state)
{
  world *w = *state;
  for (uint64_t nth = 1;; nth++) {
    const node_args root = { w, 'a', 2 };
    weft_actor_id id = 77;
    memset(w->order, 0, sizeof w->order);
    weft_sim_fail_alloc(w->sim, nth);
    const weft_err err = weft_sim_spawn(w->sim, &node_class, &root, NULL, &id);
    weft_sim_fail_alloc(w->sim, 0);
    if (err == WEFT_OK) {
      assert_true(nth > 5);
      break;
    }
    assert_int_equal(err, WEFT_E_NOMEM);
    assert_int_equal(id, 77);
    assert_false(weft_sim_step(w->sim)); /* no DOWN, nothing to run but the dead */
  }
}

static weft_err watcher_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  switch (msg->type) {
  case SAMPLE_GO:
    assert_ok(weft_monitor(ctx, w->peer));
    return WEFT_OK;
  case WEFT_MSG_DOWN: {
    const weft_down_msg *d = (const weft_down_msg *)msg;
    w->down_who[w->downs] = d->who;
    w->down_reason[w->downs++] = (weft_err)d->reason;
    return WEFT_OK;
  }
  default:
    return WEFT_E_STATE;
  }
}

static weft_err fail_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  (void)ctx;
  (void)arg;
  (void)msg;
  return WEFT_E_CONFLICT;
}

static void monitors_hear_of_the_end_once_per_call(void **state)
{
  world *w = *state;
  w->peer = spawn(w, fail_on, NULL);
  const weft_actor_id watcher = spawn(w, watcher_on, NULL);
  go(w, watcher);
  go(w, watcher);
  weft_sim_run(w->sim, 2000);
  assert_int_equal(w->downs, 0);
  go(w, w->peer);
  weft_sim_run(w->sim, 3000);
  assert_int_equal(w->downs, 2);
  assert_true(w->down_who[0] == w->peer);
  assert_int_equal(w->down_reason[0], WEFT_E_CONFLICT);
  go(w, watcher); /* has ended already */
  weft_sim_run(w->sim, 4000);
  assert_int_equal(w->downs, 3);
  assert_int_equal(w->down_reason[2], WEFT_E_DOWN);
}

static void watchers_that_ended_are_forgotten(void **state)
{
  world *w = *state;
  w->peer = spawn(w, fail_on, NULL);
  for (int i = 0; i < 200; i++) {
    const weft_actor_id watcher = spawn(w, watcher_on, NULL);
    go(w, watcher);
    weft_sim_run(w->sim, 2000);
    weft_sim_kill(w->sim, watcher);
  }
  go(w, spawn(w, watcher_on, NULL));
  weft_sim_run(w->sim, 2000);
  go(w, w->peer);
  weft_sim_run(w->sim, 3000);
  assert_int_equal(w->downs, 1);
}

static weft_err parent_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  if (msg->type == SAMPLE_GO) {
    const puppet_args args = { .on = fail_on, .arg = w };
    return weft_spawn(ctx, &puppet_class, &args, NULL, &w->child);
  }
  return watcher_on(ctx, arg, msg);
}

static void parents_hear_of_their_children(void **state)
{
  world *w = *state;
  const weft_actor_id parent = spawn(w, parent_on, NULL);
  go(w, parent);
  weft_sim_run(w->sim, 2000);
  go(w, w->child);
  weft_sim_run(w->sim, 3000);
  assert_int_equal(w->downs, 1);
  assert_true(w->down_who[0] == w->child);
  assert_int_equal(w->down_reason[0], WEFT_E_CONFLICT);
}

static weft_err stopper_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  if (msg->type == SAMPLE_GO) {
    weft_stop_other(ctx, w->peer);
    weft_stop_other(ctx, 12345);
    return weft_monitor(ctx, w->peer);
  }
  return watcher_on(ctx, arg, msg);
}

static weft_err slow_stop_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  (void)arg;
  if (msg->type == WEFT_MSG_STOP) {
    assert_true(weft_timer_start(ctx, 50, 0) != 0);
  } else if (msg->type == WEFT_MSG_TIMER) {
    weft_stop(ctx, WEFT_E_CANCELLED);
    weft_stop(ctx, WEFT_OK); /* the first reason counts */
  }
  return WEFT_OK;
}

static weft_err no_stop_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  (void)ctx;
  (void)arg;
  return msg->type == WEFT_MSG_STOP ? WEFT_E_STATE : WEFT_OK;
}

static void stop_is_asked_for_and_may_take_its_time(void **state)
{
  world *w = *state;
  w->peer = spawn(w, slow_stop_on, NULL);
  go(w, spawn(w, stopper_on, NULL));
  weft_sim_run(w->sim, 1049);
  assert_true(weft_sim_alive(w->sim, w->peer));
  weft_sim_run(w->sim, 2000);
  assert_int_equal(w->downs, 1);
  assert_int_equal(w->down_reason[0], WEFT_E_CANCELLED);
}

static void who_does_not_know_stop_ends_well_at_once(void **state)
{
  world *w = *state;
  w->peer = spawn(w, no_stop_on, NULL);
  go(w, spawn(w, stopper_on, NULL));
  weft_sim_run(w->sim, 1000);
  assert_int_equal(w->downs, 1);
  assert_int_equal(w->down_reason[0], WEFT_OK);
}

static void stop_works_without_memory(void **state)
{
  world *w = *state;
  w->peer = spawn(w, slow_stop_on, NULL);
  const weft_actor_id stopper = spawn(w, stopper_on, NULL);
  go(w, stopper);
  weft_sim_fail_alloc(w->sim, 1);
  weft_sim_run(w->sim, 1010);
  assert_false(weft_sim_alive(w->sim, w->peer));
}

static weft_err stop_in_init(weft_ctx *ctx, void *arg)
{
  (void)arg;
  weft_stop(ctx, WEFT_E_GONE);
  return WEFT_OK;
}

static weft_err early_parent_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  if (msg->type == SAMPLE_GO) {
    const puppet_args args = { .on = fail_on, .arg = w, .init = stop_in_init };
    return weft_spawn(ctx, &puppet_class, &args, NULL, &w->child);
  }
  return watcher_on(ctx, arg, msg);
}

static void an_actor_may_stop_in_its_init(void **state)
{
  world *w = *state;
  go(w, spawn(w, early_parent_on, NULL));
  weft_sim_run(w->sim, 2000);
  assert_int_equal(w->downs, 1);
  assert_int_equal(w->down_reason[0], WEFT_E_GONE);
}

static void ids_are_never_used_twice(void **state)
{
  world *w = *state;
  weft_actor_id seen[300];
  for (int i = 0; i < 300; i++) {
    seen[i] = spawn(w, fail_on, NULL);
    for (int j = 0; j < i; j++) {
      assert_true(seen[i] != seen[j]);
    }
    weft_sim_kill(w->sim, seen[i]);
    assert_false(weft_sim_alive(w->sim, seen[i]));
    assert_null(weft_sim_state(w->sim, seen[i]));
  }
}

static weft_err clocks_on(weft_ctx *ctx, void *arg, const weft_msg *msg)
{
  world *w = arg;
  (void)msg;
  assert_int_equal(weft_now_ms(ctx), weft_sim_now_ms(w->sim));
  assert_int_equal(weft_now_ns(ctx), weft_now_ms(ctx) * 1000000);
  assert_int_equal(weft_boottime_ns(ctx), weft_now_ns(ctx));
  assert_true(weft_wall_ms(ctx) > 1700000000000u);
  assert_true(weft_random(ctx) != weft_random(ctx));
  void *p = weft_alloc(ctx, 100);
  assert_non_null(p);
  assert_int_equal(((const char *)p)[99], 0);
  weft_free(ctx, p);
  weft_log(ctx, WEFT_LOG_INFO, "line=%d", 1);
  w->count++;
  return WEFT_OK;
}

static void the_world_comes_through_the_context(void **state)
{
  world *w = *state;
  go(w, spawn(w, clocks_on, NULL));
  weft_sim_run(w->sim, 2000);
  assert_int_equal(w->count, 1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    T(order_is_kept_and_bounds_hold),
    T(odd_sends_are_answered),
    T(bufs_are_shared_not_copied),
    T(timers_fire_once_in_order_and_can_be_cancelled),
    T(a_fired_timer_can_still_be_cancelled),
    T(timers_and_downs_pass_a_full_mailbox),
    T(children_end_first_newest_first),
    T(a_failed_init_leaves_nothing),
    T(monitors_hear_of_the_end_once_per_call),
    T(watchers_that_ended_are_forgotten),
    T(parents_hear_of_their_children),
    T(stop_is_asked_for_and_may_take_its_time),
    T(who_does_not_know_stop_ends_well_at_once),
    T(stop_works_without_memory),
    T(an_actor_may_stop_in_its_init),
    T(ids_are_never_used_twice),
    T(the_world_comes_through_the_context),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
