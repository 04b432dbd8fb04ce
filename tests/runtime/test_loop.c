#include "weft_test.h"

#include "weft/clock.h"
#include "weft/runtime.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What I/O code sees of a loop: descriptors, alarms, calls, signals; and its fairness. */

typedef struct world {
  weft_runtime *rt;
  weft_loop *loop;
  weft_io *io;
  weft_alarm *alarm;
  weft_signal *sig;
  int fds[2];
  int calls;
  uint64_t at_ms;
} world;

static int setup(void **state)
{
  world *w = calloc(1, sizeof *w);
  assert_non_null(w);
  const weft_runtime_opts opts = { .size = sizeof opts, .loops = 1 };
  assert_ok(weft_runtime_create(&opts, &w->rt));
  w->loop = weft_runtime_loop(w->rt, 0);
  assert_int_equal(pipe(w->fds), 0);
  *state = w;
  return 0;
}

static int teardown(void **state)
{
  world *w = *state;
  weft_io_destroy(w->io);
  weft_alarm_destroy(w->alarm);
  weft_signal_destroy(w->sig);
  weft_runtime_destroy(w->rt);
  (void)close(w->fds[0]);
  (void)close(w->fds[1]);
  free(w);
  return 0;
}

static void stop_soon(void *arg)
{
  world *w = arg;
  w->calls++;
  weft_runtime_stop(w->rt, 10000);
}

static void create_checks_its_options(void **state)
{
  (void)state;
  weft_runtime *rt = NULL;
  weft_runtime_opts opts = { .size = sizeof opts, .loops = 0 };
  assert_err(weft_runtime_create(&opts, &rt), WEFT_E_INVAL);
  opts.loops = WEFT_LOOPS_MAX + 1;
  assert_err(weft_runtime_create(&opts, &rt), WEFT_E_INVAL);
  opts.loops = 1;
  opts.size = 1;
  assert_err(weft_runtime_create(&opts, &rt), WEFT_E_INVAL);
  assert_null(rt);
  weft_runtime_destroy(NULL);
}

static void call_runs_on_the_loop_and_stop_ends_it(void **state)
{
  world *w = *state;
  assert_ok(weft_loop_call(w->loop, stop_soon, w));
  weft_runtime_run(w->rt);
  assert_int_equal(w->calls, 1);
  assert_err(weft_loop_call(w->loop, stop_soon, w), WEFT_E_CLOSED);
}

static void on_readable(void *arg, int fd, unsigned events)
{
  world *w = arg;
  char c;
  assert_int_equal(events, WEFT_IO_READ);
  assert_int_equal(read(fd, &c, 1), 1);
  if (++w->calls == 3) { /* level triggered: three bytes, three calls */
    weft_io_destroy(w->io);
    w->io = NULL;
    weft_runtime_stop(w->rt, 10000);
  }
}

static void io_is_level_triggered_and_may_end_itself(void **state)
{
  world *w = *state;
  assert_ok(weft_io_create(w->loop, w->fds[0], WEFT_IO_READ, on_readable, w, &w->io));
  assert_int_equal(write(w->fds[1], "abc", 3), 3);
  weft_runtime_run(w->rt);
  assert_int_equal(w->calls, 3);
}

static void on_writable(void *arg, int fd, unsigned events)
{
  world *w = arg;
  (void)fd;
  assert_int_equal(events, WEFT_IO_WRITE);
  w->calls++;
  weft_io_set(w->io, 0);
  weft_alarm_start(w->alarm, 5);
}

static void stopped_io_stays_silent(void **state)
{
  world *w = *state;
  assert_ok(weft_alarm_create(w->loop, stop_soon, w, &w->alarm));
  assert_ok(weft_io_create(w->loop, w->fds[1], 0, on_writable, w, &w->io));
  weft_io_set(w->io, WEFT_IO_WRITE);
  weft_runtime_run(w->rt);
  assert_int_equal(w->calls, 2); /* once writable, once the alarm */
}

static void io_refuses_no_descriptor(void **state)
{
  world *w = *state;
  assert_err(weft_io_create(w->loop, -1, WEFT_IO_READ, on_readable, w, &w->io),
             WEFT_E_INVAL);
}

static void again_then_end(void *arg)
{
  world *w = arg;
  if (w->at_ms == 0) {
    w->at_ms = weft_loop_now_ms(w->loop);
    weft_alarm_start(w->alarm, 1000000);
    weft_alarm_start(w->alarm, 20); /* re-arms */
    return;
  }
  assert_true(weft_loop_now_ms(w->loop) >= w->at_ms + 20);
  weft_alarm_destroy(w->alarm);
  w->alarm = NULL;
  stop_soon(w);
}

static void alarm_is_rearmed_and_never_early(void **state)
{
  world *w = *state;
  assert_ok(weft_alarm_create(w->loop, again_then_end, w, &w->alarm));
  weft_alarm_start(w->alarm, 3);
  weft_runtime_run(w->rt);
  assert_int_equal(w->calls, 1);
}

static void *write_later(void *arg)
{
  const world *w = arg;
  const struct timespec nap = { .tv_nsec = 20000000 };
  (void)nanosleep(&nap, NULL); /* so that the loop has gone to sleep, most likely */
  const uint64_t at = weft_clock_ms();
  return write(w->fds[1], &at, sizeof at) == (ssize_t)sizeof at ? arg : NULL;
}

static void note_time(void *arg, int fd, unsigned events)
{
  world *w = arg;
  uint64_t before = 0; /* the write */
  (void)events;
  assert_int_equal(read(fd, &before, sizeof before), sizeof before);
  w->calls = before != 0 && weft_loop_now_ms(w->loop) >= before;
  weft_runtime_stop(w->rt, 10000);
}

static void callbacks_see_the_time_after_a_sleep(void **state)
{
  world *w = *state;
  pthread_t t;
  void *wrote = NULL;
  assert_ok(weft_io_create(w->loop, w->fds[0], WEFT_IO_READ, note_time, w, &w->io));
  assert_int_equal(pthread_create(&t, NULL, write_later, w), 0);
  weft_runtime_run(w->rt);
  assert_int_equal(pthread_join(t, &wrote), 0);
  assert_ptr_equal(wrote, w);
  assert_int_equal(w->calls, 1);
}

static void is_late(void *arg)
{
  world *w = arg;
  assert_int_equal(w->calls, 1); /* what was written has been read */
  weft_runtime_stop(w->rt, 10000);
}

static void hear_it(void *arg, int fd, unsigned events)
{
  world *w = arg;
  char c;
  (void)events;
  assert_int_equal(read(fd, &c, 1), 1);
  w->calls++;
}

static void *say_when_awake(void *arg)
{
  const struct timespec nap = { .tv_nsec = 20000000 }; /* an I/O thread, just woken too */
  world *w = arg;
  (void)nanosleep(&nap, NULL);
  return write(w->fds[1], "x", 1) == 1 ? arg : NULL;
}

/* To the loop it is the same as SIGSTOP and SIGCONT. */
static void be_stopped(void *arg)
{
  const struct timespec nap = { .tv_nsec = 600000000 };
  world *w = arg;
  pthread_t t;
  weft_alarm_start(w->alarm, 100);
  (void)nanosleep(&nap, NULL);
  assert_int_equal(pthread_create(&t, NULL, say_when_awake, w), 0);
  assert_int_equal(pthread_detach(t), 0);
}

static void a_stopped_loop_hears_before_it_calls_anybody_late(void **state)
{
  world *w = *state;
  assert_ok(weft_io_create(w->loop, w->fds[0], WEFT_IO_READ, hear_it, w, &w->io));
  assert_ok(weft_alarm_create(w->loop, is_late, w, &w->alarm));
  assert_ok(weft_loop_call(w->loop, be_stopped, w));
  weft_runtime_run(w->rt);
}

static void raise_it(void *arg)
{
  (void)arg;
  assert_int_equal(kill(getpid(), SIGUSR1), 0);
}

static void signal_arrives_on_the_loop(void **state)
{
  world *w = *state;
  assert_ok(weft_signal_create(w->loop, SIGUSR1, stop_soon, w, &w->sig));
  assert_ok(weft_loop_call(w->loop, raise_it, w));
  weft_runtime_run(w->rt);
  assert_int_equal(w->calls, 1);
}

/* ---- fairness */

enum { BALL = WEFT_MSG_USER_FIRST };

typedef struct player {
  weft_actor_id other;
} player;

static weft_err player_init(weft_ctx *ctx, void *self, const void *args)
{
  player *p = self;
  p->other = *(const weft_actor_id *)args;
  if (p->other != 0) {
    return weft_send(ctx, p->other, weft_msg_new(ctx, BALL, sizeof(weft_msg)));
  }
  return WEFT_OK;
}

static weft_err player_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  (void)self;
  if (msg->type != BALL) {
    return WEFT_E_STATE;
  }
  return weft_send(ctx, msg->from, weft_msg_new(ctx, BALL, sizeof(weft_msg)));
}

static const weft_actor_class player_class = {
  .name = "player", .state_size = sizeof(player), .init = player_init, .on = player_on
};

static void io_and_alarms_run_while_actors_play_for_ever(void **state)
{
  world *w = *state;
  weft_actor_id a = 0;
  weft_actor_id b = 0;
  assert_ok(weft_runtime_spawn(w->rt, 0, &player_class, &a, NULL, &a));
  assert_ok(weft_runtime_spawn(w->rt, 0, &player_class, &a, NULL, &b));
  assert_ok(weft_alarm_create(w->loop, again_then_end, w, &w->alarm));
  assert_ok(weft_io_create(w->loop, w->fds[0], WEFT_IO_READ, on_readable, w, &w->io));
  weft_alarm_start(w->alarm, 1);
  assert_int_equal(write(w->fds[1], "ab", 2), 2);
  weft_runtime_run(w->rt);
  assert_int_equal(w->calls, 3); /* two bytes, one alarm */
  weft_runtime_stats stats;
  weft_runtime_stats_get(w->rt, &stats);
  assert_true(stats.messages > 100);
  assert_int_equal(stats.actors, 0);
}

static void io_and_alarms_run_while_loops_play_for_ever(void **state)
{
  (void)state;
  for (unsigned spin_us = 0; spin_us <= 50; spin_us += 50) {
    world w = { 0 };
    weft_actor_id a = 0;
    weft_actor_id b = 0;
    const weft_runtime_opts opts = { .size = sizeof opts,
                                     .loops = 2,
                                     .spin_us = spin_us };
    assert_ok(weft_runtime_create(&opts, &w.rt));
    w.loop = weft_runtime_loop(w.rt, 0);
    assert_int_equal(pipe(w.fds), 0);
    assert_ok(weft_runtime_spawn(w.rt, 0, &player_class, &a, NULL, &a));
    for (int i = 0; i < 8; i++) { /* so many balls that some always wait */
      assert_ok(weft_runtime_spawn(w.rt, 1, &player_class, &a, NULL, &b));
    }
    assert_ok(weft_alarm_create(w.loop, again_then_end, &w, &w.alarm));
    assert_ok(weft_io_create(w.loop, w.fds[0], WEFT_IO_READ, on_readable, &w, &w.io));
    weft_alarm_start(w.alarm, 1);
    assert_int_equal(write(w.fds[1], "ab", 2), 2);
    assert_ok(weft_runtime_start(w.rt));
    weft_runtime_run(w.rt);
    assert_int_equal(w.calls, 3);
    weft_io_destroy(w.io);
    weft_runtime_destroy(w.rt);
    (void)close(w.fds[0]);
    (void)close(w.fds[1]);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(create_checks_its_options),
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    T(call_runs_on_the_loop_and_stop_ends_it),
    T(io_is_level_triggered_and_may_end_itself),
    T(stopped_io_stays_silent),
    T(io_refuses_no_descriptor),
    T(alarm_is_rearmed_and_never_early),
    T(callbacks_see_the_time_after_a_sleep),
    T(a_stopped_loop_hears_before_it_calls_anybody_late),
    T(signal_arrives_on_the_loop),
    T(io_and_alarms_run_while_actors_play_for_ever),
    cmocka_unit_test(io_and_alarms_run_while_loops_play_for_ever),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
