#include "weft_test.h"

#include "supervisor.h"
#include "weft/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOG_MAX = 256, RANKS = 3 };

/* What the supervisor did, in order. */
typedef enum deed_kind { SPAWN, KILL, UP, DOWN, FENCED } deed_kind;
typedef struct deed {
  deed_kind kind;
  uint32_t rank;
  uint64_t incarnation, at_ms;
} deed;

typedef struct world {
  weft_sim *sim;
  weft_actor_id supervisor, engine;
  deed deeds[LOG_MAX];
  size_t count;
  weft_actor_id link;   /* the last one that was connected */
  uint64_t live[RANKS]; /* incarnation of the child process, 0 = none */
  weft_actor_id thread; /* what connect finds; 0 = a link of the supervisor's own */
  bool spawn_fails, connect_fails, immortal;
  uint64_t were_up[LOG_MAX]; /* incarnations that the engine knows */
  size_t up_count;
  unsigned not_started; /* lives that it was told of without having known them */
  char url[32];
} world;

static void note(world *w, deed_kind kind, uint32_t rank, uint64_t incarnation)
{
  assert_true(w->count < LOG_MAX);
  w->deeds[w->count++] = (deed){ kind, rank, incarnation, weft_sim_now_ms(w->sim) };
}

/* The allocation that is made to fail may be the test's own. */
static void send(world *w, const weft_msg *msg)
{
  if (weft_sim_send(w->sim, w->supervisor, msg) != WEFT_OK) {
    assert_ok(weft_sim_send(w->sim, w->supervisor, msg));
  }
}

static void say_exit(world *w, uint32_t rank, uint64_t incarnation)
{
  const weft_proc_exit m = { .h = { .type = WEFT_MSG_PROC_EXIT },
                             .rank = rank,
                             .incarnation = incarnation,
                             .why = WEFT_STR("killed by signal 9") };
  send(w, &m.h);
}

static weft_err fake_spawn(void *arg, uint32_t rank, uint64_t incarnation, weft_why *why)
{
  world *w = arg;
  if (w->spawn_fails) {
    return weft_whyf(why, WEFT_E_SYS, "no such program");
  }
  assert_true(incarnation != 0 && rank < RANKS);
  assert_int_equal(w->live[rank], 0); /* never two processes of one rank */
  w->live[rank] = incarnation;
  note(w, SPAWN, rank, incarnation);
  return WEFT_OK;
}

static void fake_kill(void *arg, uint32_t rank, uint64_t incarnation)
{
  world *w = arg;
  note(w, KILL, rank, incarnation);
  if (rank < RANKS && w->live[rank] == incarnation && !w->immortal) {
    w->live[rank] = 0;
    say_exit(w, rank, incarnation);
  }
}

static weft_err link_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  (void)self;
  if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
  }
  return WEFT_OK;
}
static const weft_actor_class link_class = { .name = "link", .on = link_on };

static weft_err fake_connect(void *arg, weft_ctx *ctx, const char *url,
                             weft_actor_id *out)
{
  world *w = arg;
  (void)snprintf(w->url, sizeof w->url, "%s", url);
  if (w->connect_fails) {
    return WEFT_E_SYS;
  }
  if (w->thread != 0) {
    *out = w->thread;
    return WEFT_OK;
  }
  const weft_err err = weft_spawn(ctx, &link_class, NULL, NULL, out);
  if (err == WEFT_OK) {
    w->link = *out;
  }
  return err;
}

static weft_err engine_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  memcpy(self, args, sizeof(world *));
  return WEFT_OK;
}

static weft_err engine_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  world *w = *(world **)self;
  (void)ctx;
  if (msg->type == WEFT_MSG_MEMBER_UP) {
    const weft_member_up *m = (const weft_member_up *)msg;
    assert_true(m->actor != 0 && m->pid == 100 + m->rank);
    assert_true(w->up_count < LOG_MAX);
    w->were_up[w->up_count++] = m->incarnation;
    note(w, UP, m->rank, m->incarnation);
  } else if (msg->type == WEFT_MSG_MEMBER_DOWN) {
    const weft_member_down *m = (const weft_member_down *)msg;
    assert_true(m->why.len > 0);
    for (size_t i = 0; i < w->up_count; i++) {
      if (w->were_up[i] == m->incarnation) {
        note(w, m->fenced ? FENCED : DOWN, m->rank, m->incarnation);
        return WEFT_OK;
      }
    }
    w->not_started++;
  }
  return WEFT_OK;
}
static const weft_actor_class engine_class = {
  .name = "engine", .state_size = sizeof(world *), .init = engine_init, .on = engine_on
};

/* The clock does not go on by itself when nobody waits for it. */
static weft_err ticker_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  (void)self;
  (void)msg;
  (void)weft_timer_start(ctx, 1000, 0);
  return WEFT_OK;
}
static const weft_actor_class ticker_class = { .name = "ticker", .on = ticker_on };

static void world_open_with(world *w, uint32_t world_size, bool children,
                            weft_sim_fate_fn *fate)
{
  memset(w, 0, sizeof *w);
  const weft_sim_opts opts = {
    .size = sizeof opts, .seed = 11, .catalogue = weft_messages(), .fate = fate, .arg = w
  };
  assert_ok(weft_sim_create(&opts, &w->sim));
  const world *self = w;
  const weft_spawn_opts small = { .mailbox = 4 };
  assert_ok(weft_sim_spawn(w->sim, &engine_class, &self, &small, &w->engine));
  weft_actor_id ticker;
  const weft_journal_done start = { .h = { .type = WEFT_MSG_JOURNAL_DONE } };
  assert_ok(weft_sim_spawn(w->sim, &ticker_class, NULL, NULL, &ticker));
  assert_ok(weft_sim_send(w->sim, ticker, &start.h));
  const wefti_supervisor_args args = { .engine = w->engine,
                                       .world_size = world_size,
                                       .children = children,
                                       .ops = { fake_spawn, fake_kill, fake_connect,
                                                w } };
  assert_ok(weft_sim_spawn(w->sim, &wefti_supervisor_class, &args, NULL, &w->supervisor));
}

static void world_open(world *w, uint32_t world_size, bool children)
{
  world_open_with(w, world_size, children, NULL);
}

static void world_close(world *w)
{
  weft_sim_destroy(w->sim);
}

static void pass(world *w, uint64_t ms)
{
  weft_sim_run(w->sim, weft_sim_now_ms(w->sim) + ms);
}

static void say_ready_as(world *w, uint32_t rank, uint32_t world_size,
                         uint64_t incarnation, uint32_t kind)
{
  const weft_proc_ready m = { .h = { .type = WEFT_MSG_PROC_READY },
                              .rank = rank,
                              .world_size = world_size,
                              .incarnation = incarnation,
                              .kind = kind,
                              .pid = 100 + rank,
                              .url = WEFT_STR("ipc:///x/worker") };
  send(w, &m.h);
  pass(w, 1);
}

static void say_ready(world *w, uint32_t rank)
{
  say_ready_as(w, rank, 1, w->live[rank], WEFT_MEMBER_CHILD);
}

static void say_fence(world *w, uint32_t rank, uint64_t incarnation)
{
  const weft_member_fence m = { .h = { .type = WEFT_MSG_MEMBER_FENCE },
                                .rank = rank,
                                .incarnation = incarnation,
                                .why = WEFT_STR("hung") };
  send(w, &m.h);
  pass(w, 1);
}

static void die(world *w, uint32_t rank)
{
  const uint64_t incarnation = w->live[rank];
  w->live[rank] = 0;
  say_exit(w, rank, incarnation);
  pass(w, 1);
}

/* The deeds since the last call are these; "suD" = spawn, up, down: one letter each of
 * s(pawn), k(ill), u(p), d(own), F(enced). */
static void assert_deeds(world *w, const char *want)
{
  char got[LOG_MAX + 1];
  for (size_t i = 0; i < w->count; i++) {
    got[i] = "skudF"[w->deeds[i].kind];
  }
  got[w->count] = '\0';
  w->count = 0;
  assert_string_equal(got, want);
}

/* ---- children */

static void every_rank_gets_a_child_of_its_own_life(void **state)
{
  (void)state;
  world w;
  world_open(&w, RANKS, true);
  pass(&w, 1);
  uint32_t seen = 0;
  for (size_t i = 0; i < w.count; i++) {
    seen |= 1u << w.deeds[i].rank;
  }
  assert_int_equal(seen, 7);
  assert_true(w.live[0] != w.live[1] && w.live[1] != w.live[2] && w.live[0] != w.live[2]);
  assert_deeds(&w, "sss");
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    say_ready_as(&w, rank, RANKS, w.live[rank], WEFT_MEMBER_CHILD);
    assert_int_equal(w.deeds[0].incarnation, w.live[rank]);
    assert_string_equal(w.url, "ipc:///x/worker");
    assert_deeds(&w, "u");
  }
  pass(&w, 60000);
  assert_deeds(&w, "");
  world_close(&w);
}

static void an_exit_fences_and_restarts(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, true);
  pass(&w, 1);
  say_ready(&w, 0);
  const uint64_t old = w.live[0];
  const weft_actor_id link = w.link;
  w.count = 0;
  die(&w, 0);
  assert_int_equal(w.deeds[0].incarnation, old);
  assert_deeds(&w, "F");
  assert_false(weft_sim_alive(w.sim, link));
  pass(&w, 100);
  assert_true(w.live[0] != 0 && w.live[0] != old);
  assert_deeds(&w, "s");
  world_close(&w);
}

static void a_lost_link_is_down_then_killed_then_fenced(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, true);
  pass(&w, 1);
  say_ready(&w, 0);
  w.count = 0;
  weft_sim_kill(w.sim, w.link);
  pass(&w, 1);
  /* The engine may hear of the down after the kill was done. */
  assert_int_equal(w.count, 3);
  assert_int_equal(w.deeds[2].kind, FENCED);
  assert_true((w.deeds[0].kind == DOWN && w.deeds[1].kind == KILL) ||
              (w.deeds[0].kind == KILL && w.deeds[1].kind == DOWN));
  w.count = 0;
  pass(&w, 100);
  assert_deeds(&w, "s");
  world_close(&w);
}

static void a_fence_kills_and_tells_only_when_it_is_certain(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, true);
  pass(&w, 1);
  say_ready(&w, 0);
  const uint64_t old = w.live[0];
  w.count = 0;
  w.immortal = true; /* in uninterruptible sleep, say */
  say_fence(&w, 0, old);
  pass(&w, 60000);
  assert_deeds(&w, "k");
  say_fence(&w, 0, old); /* again: nothing more can be done */
  assert_deeds(&w, "");
  w.immortal = false;
  die(&w, 0);
  assert_deeds(&w, "F");
  pass(&w, 100);
  assert_deeds(&w, "s");
  say_fence(&w, 0, old); /* a late one: it has exited, say so again */
  assert_int_equal(w.deeds[0].incarnation, old);
  assert_deeds(&w, "F");
  assert_int_equal(w.live[0] == 0, 0);
  say_fence(&w, 7, old);
  assert_deeds(&w, "");
  world_close(&w);
}

static void a_child_that_does_not_get_ready_is_replaced(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, true);
  pass(&w, 9000);
  assert_deeds(&w, "s");
  pass(&w, 1500);
  assert_deeds(&w, "ks");
  assert_int_equal(w.not_started, 1); /* told why the rank is not there */
  world_close(&w);
}

/* ms from one death to the next start */
static uint64_t gap_after_death(world *w)
{
  w->count = 0;
  const uint64_t t0 = weft_sim_now_ms(w->sim);
  die(w, 0);
  pass(w, 20000);
  for (size_t i = 0; i < w->count; i++) {
    if (w->deeds[i].kind == SPAWN) {
      return w->deeds[i].at_ms - t0;
    }
  }
  fail_msg("not started again");
  return 0;
}

static void backoff_doubles_up_to_its_limit_and_forgets(void **state)
{
  (void)state;
  static const uint64_t want[] = { 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000 };
  world w;
  world_open(&w, 1, true);
  pass(&w, 1);
  /* pass(20000) kills it for not getting ready, so exits are counted one by one here. */
  for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
    w.count = 0;
    const uint64_t t0 = weft_sim_now_ms(w.sim);
    die(&w, 0);
    pass(&w, want[i] - 2);
    assert_deeds(&w, "");
    pass(&w, 1);
    assert_int_equal(w.count, 1);
    assert_int_equal(w.deeds[0].at_ms - t0, want[i]);
    assert_deeds(&w, "s");
  }
  say_ready(&w, 0);
  pass(&w, 9900);
  assert_int_equal(gap_after_death(&w), 5000); /* not yet ten good seconds */
  pass(&w, 1);
  world_close(&w);
}

static void ten_good_seconds_reset_the_backoff(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, true);
  pass(&w, 1);
  for (int i = 0; i < 5; i++) {
    die(&w, 0);
    pass(&w, 2000);
  }
  assert_true(w.live[0] != 0);
  say_ready(&w, 0);
  pass(&w, 10000);
  w.count = 0;
  const uint64_t t0 = weft_sim_now_ms(w.sim);
  die(&w, 0);
  pass(&w, 60);
  assert_int_equal(w.deeds[1].at_ms - t0, 50);
  assert_deeds(&w, "Fs");
  world_close(&w);
}

static void a_program_that_cannot_be_started_is_tried_again(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, true);
  w.spawn_fails = true;
  pass(&w, 30000);
  assert_deeds(&w, "");
  assert_true(w.not_started > 3); /* each attempt tells the engine why */
  w.spawn_fails = false;
  pass(&w, 5001);
  assert_deeds(&w, "s");
  world_close(&w);
}

static void a_child_that_cannot_be_reached_is_replaced(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, true);
  pass(&w, 1);
  w.connect_fails = true;
  say_ready(&w, 0);
  assert_deeds(&w, "sk");
  pass(&w, 60);
  assert_deeds(&w, "s");
  w.connect_fails = false;
  say_ready(&w, 0);
  assert_deeds(&w, "u");
  world_close(&w);
}

static void only_the_expected_child_is_let_in(void **state)
{
  (void)state;
  world w;
  world_open(&w, 2, true);
  pass(&w, 1);
  w.count = 0;
  say_ready_as(&w, 0, 2, 4711, WEFT_MEMBER_CHILD); /* another life */
  assert_int_equal(w.deeds[0].incarnation, 4711);
  assert_deeds(&w, "k");
  say_ready_as(&w, 2, 2, 4711, WEFT_MEMBER_CHILD); /* no such rank */
  assert_deeds(&w, "k");
  say_ready_as(&w, 0, 2, 4711, WEFT_MEMBER_JOINED); /* ranks are children's here */
  assert_deeds(&w, "");
  say_ready_as(&w, 0, 2, w.live[0], WEFT_MEMBER_CHILD);
  assert_deeds(&w, "u");
  say_ready_as(&w, 0, 2, w.live[0], WEFT_MEMBER_CHILD); /* said twice */
  assert_deeds(&w, "");
  say_ready_as(&w, 1, 3, w.live[1], WEFT_MEMBER_CHILD); /* another world */
  assert_int_equal(w.deeds[0].kind, KILL);
  world_close(&w);
}

static void exits_of_others_are_no_news(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, true);
  pass(&w, 1);
  say_ready(&w, 0);
  w.count = 0;
  say_exit(&w, 0, w.live[0] + 1);
  say_exit(&w, 0, 0);
  say_exit(&w, 9, w.live[0]);
  pass(&w, 10000);
  assert_deeds(&w, "");
  world_close(&w);
}

/* ---- members that joined */

static void a_join_takes_a_free_rank_only(void **state)
{
  (void)state;
  world w;
  world_open(&w, 2, false);
  pass(&w, 60000);
  assert_deeds(&w, "");
  say_ready_as(&w, 1, 2, 5, WEFT_MEMBER_JOINED);
  assert_deeds(&w, "u");
  say_ready_as(&w, 1, 2, 6, WEFT_MEMBER_JOINED); /* taken */
  say_ready_as(&w, 0, 3, 7, WEFT_MEMBER_JOINED); /* another world */
  say_ready_as(&w, 2, 2, 8, WEFT_MEMBER_JOINED); /* no such rank */
  say_ready_as(&w, 0, 2, 0, WEFT_MEMBER_JOINED); /* nobody */
  assert_deeds(&w, "");
  weft_sim_kill(w.sim, w.link);
  pass(&w, 1);
  assert_int_equal(w.deeds[0].incarnation, 5);
  assert_deeds(&w, "d"); /* its process may live on: the engine waits for its grant */
  say_ready_as(&w, 1, 2, 6, WEFT_MEMBER_JOINED);
  assert_deeds(&w, "u");
  say_exit(&w, 1, 5);
  pass(&w, 1);
  assert_deeds(&w, "");
  say_exit(&w, 1, 6);
  pass(&w, 1);
  assert_deeds(&w, "F");
  world_close(&w);
}

static void a_fence_drops_the_link_of_a_joined_member(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, false);
  say_ready_as(&w, 0, 1, 5, WEFT_MEMBER_JOINED);
  const weft_actor_id link = w.link;
  w.count = 0;
  say_fence(&w, 0, 4); /* somebody who was here before */
  assert_deeds(&w, "");
  say_fence(&w, 0, 5);
  assert_deeds(&w, "d");
  assert_false(weft_sim_alive(w.sim, link));
  say_fence(&w, 0, 5);
  assert_deeds(&w, "");
  say_exit(&w, 0, 5); /* heard of later */
  pass(&w, 1);
  assert_deeds(&w, "F");
  say_ready_as(&w, 0, 1, 6, WEFT_MEMBER_JOINED);
  assert_deeds(&w, "u");
  world_close(&w);
}

static void a_join_that_cannot_be_reached_leaves_the_rank_free(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, false);
  w.connect_fails = true;
  say_ready_as(&w, 0, 1, 5, WEFT_MEMBER_JOINED);
  assert_deeds(&w, "");
  w.connect_fails = false;
  say_ready_as(&w, 0, 1, 6, WEFT_MEMBER_JOINED);
  assert_deeds(&w, "u");
  world_close(&w);
}

static void a_thread_is_fenced_without_being_stopped(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, false);
  say_ready_as(&w, 0, 1, 5, WEFT_MEMBER_THREAD);
  w.count = 0;
  say_fence(&w, 0, 5);
  assert_deeds(&w, "d");
  assert_true(weft_sim_alive(w.sim, w.link)); /* the host's thread: its grant runs out */
  world_close(&w);
}

static void a_thread_that_ends_is_down(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, false);
  assert_ok(weft_sim_spawn(w.sim, &link_class, NULL, NULL, &w.thread));
  say_ready_as(&w, 0, 1, 5, WEFT_MEMBER_THREAD);
  assert_deeds(&w, "u");
  weft_sim_kill(w.sim, w.thread);
  pass(&w, 1);
  assert_deeds(&w, "d");
  world_close(&w);
}

/* ---- the end */

static void stop_ends_every_child_and_then_itself(void **state)
{
  (void)state;
  world w;
  world_open(&w, RANKS, true);
  pass(&w, 1);
  say_ready_as(&w, 0, RANKS, w.live[0], WEFT_MEMBER_CHILD);
  die(&w, 1); /* one ready, one resting, one starting */
  w.count = 0;
  w.immortal = true;
  const weft_msg stop = { .type = WEFT_MSG_STOP };
  assert_ok(weft_sim_send(w.sim, w.supervisor, &stop));
  pass(&w, 5000);
  assert_deeds(&w, "kk");
  assert_true(weft_sim_alive(w.sim, w.supervisor));
  say_ready_as(&w, 2, RANKS, w.live[2], WEFT_MEMBER_CHILD); /* too late */
  assert_deeds(&w, "k");
  die(&w, 0);
  assert_true(weft_sim_alive(w.sim, w.supervisor));
  die(&w, 2);
  pass(&w, 1);
  assert_false(weft_sim_alive(w.sim, w.supervisor));
  assert_deeds(&w, "F"); /* rank 2 was never announced */
  world_close(&w);
}

static void stop_without_children_is_at_once(void **state)
{
  (void)state;
  world w;
  world_open(&w, 2, false);
  say_ready_as(&w, 0, 2, 5, WEFT_MEMBER_JOINED);
  const weft_msg stop = { .type = WEFT_MSG_STOP };
  assert_ok(weft_sim_send(w.sim, w.supervisor, &stop));
  pass(&w, 1);
  assert_false(weft_sim_alive(w.sim, w.supervisor));
  assert_false(weft_sim_alive(w.sim, w.link));
  world_close(&w);
}

/* ---- faults */

static void a_down_that_cannot_be_sent_is_sent_later(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, true);
  pass(&w, 1);
  say_ready(&w, 0);
  w.count = 0;
  weft_sim_freeze(w.sim, w.engine, true);
  for (int i = 0; i < 8;
       i++) { /* its small mailbox and what is reserved in it are full */
    const weft_journal_done fill = { .h = { .type = WEFT_MSG_JOURNAL_DONE,
                                            .flags = WEFT_MSG_F_RESERVED } };
    (void)weft_sim_send(w.sim, w.engine, &fill.h);
  }
  die(&w, 0);
  pass(&w, 1000);
  assert_deeds(&w,
               ""); /* and no next life before the engine knows of the last one's end */
  weft_sim_freeze(w.sim, w.engine, false);
  pass(&w, 10000);
  assert_true(w.count >= 2);
  assert_int_equal(w.deeds[0].kind, FENCED);
  assert_int_equal(w.deeds[1].kind, SPAWN);
  world_close(&w);
}

static void any_failed_allocation_is_survived(void **state)
{
  (void)state;
  for (uint64_t nth = 1; nth <= 80; nth++) {
    world w;
    world_open(&w, 1, true);
    weft_sim_fail_alloc(w.sim, nth);
    for (int round = 0; round < 8; round++) { /* whatever failed, it comes back */
      pass(&w, 6000);
      if (w.live[0] != 0) {
        say_ready(&w, 0);
      }
      pass(&w, 1);
      if (w.live[0] != 0 && round % 2 == 0) {
        die(&w, 0);
      }
    }
    weft_sim_fail_alloc(w.sim, 0);
    assert_true(weft_sim_alive(w.sim, w.supervisor));
    pass(&w, 6000);
    assert_true(w.live[0] != 0);
    w.count = 0;
    say_ready(&w, 0);
    die(&w, 0);
    pass(&w, 6000);
    /* What was up is fenced once, and there is a next life. */
    size_t fenced = 0;
    for (size_t i = 0; i < w.count; i++) {
      fenced += w.deeds[i].kind == FENCED;
    }
    assert_int_equal(fenced, 1);
    world_close(&w);
  }
}

static void a_child_is_watched_even_when_there_is_no_memory_for_its_timer(void **state)
{
  (void)state;
  for (uint64_t nth = 1; nth <= 20; nth++) {
    world w;
    world_open(&w, 1, true);
    weft_sim_fail_alloc(w.sim, nth);
    pass(&w, 40000); /* it never says that it is ready */
    size_t spawns = 0;
    for (size_t i = 0; i < w.count; i++) {
      spawns += w.deeds[i].kind == SPAWN;
    }
    assert_true(spawns >= 3);
    world_close(&w);
  }
}

static weft_sim_fate random_fate(void *arg, const weft_msg *msg, uint64_t *delay_ms)
{
  const world *w = arg;
  *delay_ms = 1 + weft_sim_random(w->sim) % 50;
  return msg->from != 0 && weft_sim_random(w->sim) % 4 == 0 ? WEFT_SIM_DELAY
                                                            : WEFT_SIM_DELIVER;
}

/* At any time: no rank has two processes (fake_spawn asserts it), a fenced life was up,
 * and is fenced after its process ended. */
static void check_history(const world *w)
{
  for (size_t i = 0; i < w->count; i++) {
    const deed *d = &w->deeds[i];
    if (d->kind == FENCED || d->kind == DOWN) {
      bool up = false;
      for (size_t j = 0; j < w->count; j++) {
        up = up || (w->deeds[j].kind == UP && w->deeds[j].incarnation == d->incarnation);
      }
      assert_true(up);
    }
    if (d->kind == FENCED) {
      assert_true(w->live[d->rank] != d->incarnation);
    }
  }
}

static void random_histories_keep_one_life_per_rank(void **state)
{
  (void)state;
  for (uint64_t seed = 1; seed <= 200; seed++) {
    world w;
    world_open_with(&w, 2, true, random_fate);
    for (uint64_t i = 0; i < seed; i++) {
      (void)weft_sim_random(w.sim);
    }
    for (int step = 0; step < 30 && w.count < LOG_MAX - 32; step++) {
      const uint32_t rank = (uint32_t)(weft_sim_random(w.sim) % 2);
      switch (weft_sim_random(w.sim) % 5) {
      case 0:
        if (w.live[rank] != 0) {
          die(&w, rank);
        }
        break;
      case 1:
        say_fence(&w, rank, w.live[rank]);
        break;
      case 2:
        weft_sim_kill(w.sim, w.link);
        break;
      default:
        if (w.live[rank] != 0) {
          say_ready_as(&w, rank, 2, w.live[rank], WEFT_MEMBER_CHILD);
        }
        break;
      }
      pass(&w, weft_sim_random(w.sim) % 300);
    }
    for (uint32_t rank = 0; rank < 2; rank++) { /* it always comes back */
      for (int tenths = 0; tenths < 52 && w.live[rank] == 0; tenths++) {
        pass(&w, 100);
      }
      assert_true(w.live[rank] != 0);
    }
    check_history(&w);
    world_close(&w);
  }
}

static void bad_arguments_are_refused(void **state)
{
  (void)state;
  world w;
  world_open(&w, 1, false);
  weft_actor_id id;
  const wefti_supervisor_args bad[] = {
    { .world_size = 0, .ops = { fake_spawn, fake_kill, fake_connect, &w } },
    { .world_size = 1, .ops = { fake_spawn, fake_kill, NULL, &w } },
    { .world_size = 1, .children = true, .ops = { NULL, fake_kill, fake_connect, &w } },
    { .world_size = 1,
      .restart_min_ms = 10,
      .restart_max_ms = 5,
      .ops = { fake_spawn, fake_kill, fake_connect, &w } },
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_err(weft_sim_spawn(w.sim, &wefti_supervisor_class, &bad[i], NULL, &id),
               WEFT_E_INVAL);
  }
  world_close(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_rank_gets_a_child_of_its_own_life),
    cmocka_unit_test(an_exit_fences_and_restarts),
    cmocka_unit_test(a_lost_link_is_down_then_killed_then_fenced),
    cmocka_unit_test(a_fence_kills_and_tells_only_when_it_is_certain),
    cmocka_unit_test(a_child_that_does_not_get_ready_is_replaced),
    cmocka_unit_test(backoff_doubles_up_to_its_limit_and_forgets),
    cmocka_unit_test(ten_good_seconds_reset_the_backoff),
    cmocka_unit_test(a_program_that_cannot_be_started_is_tried_again),
    cmocka_unit_test(a_child_that_cannot_be_reached_is_replaced),
    cmocka_unit_test(only_the_expected_child_is_let_in),
    cmocka_unit_test(exits_of_others_are_no_news),
    cmocka_unit_test(a_join_takes_a_free_rank_only),
    cmocka_unit_test(a_fence_drops_the_link_of_a_joined_member),
    cmocka_unit_test(a_join_that_cannot_be_reached_leaves_the_rank_free),
    cmocka_unit_test(a_thread_is_fenced_without_being_stopped),
    cmocka_unit_test(a_thread_that_ends_is_down),
    cmocka_unit_test(stop_ends_every_child_and_then_itself),
    cmocka_unit_test(stop_without_children_is_at_once),
    cmocka_unit_test(a_down_that_cannot_be_sent_is_sent_later),
    cmocka_unit_test(any_failed_allocation_is_survived),
    cmocka_unit_test(a_child_is_watched_even_when_there_is_no_memory_for_its_timer),
    cmocka_unit_test(random_histories_keep_one_life_per_rank),
    cmocka_unit_test(bad_arguments_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
