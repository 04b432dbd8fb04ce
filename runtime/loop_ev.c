#define _GNU_SOURCE /* eventfd */
#include "loop.h"
#include "weft/clock.h"

#include <errno.h>
#include <ev.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
  SLICE = 256,        /* messages between two looks at the clock */
  BUSY_NS = 200000,   /* actors run so long before I/O gets its turn */
  POLL_NS = 50000,    /* while messages flow in, look at I/O so often */
  SPINS_A_CLOCK = 32, /* looks at the inbox between two looks at the clock */
  STOPPED_MS = 250,   /* so late no loop is on a machine that works: we were stopped */
  GRACE_MS = 100      /* then: for I/O threads, that were stopped too, to bring input */
};
#define NS_PER_MS 1000000u

struct weft_loop {
  struct ev_loop *ev;
  wefti_sched *sched;
  const wefti_end_signal *end;
  uint64_t spin_ns;
  uint64_t last_poll_ns;
  uint64_t armed_ms;  /* due time that the timer is set to; 0 = stopped */
  uint64_t looked_ms; /* by when the clock should have been looked at again */
  int wake_fd;
  ev_io wake;
  ev_timer timer;
  ev_check woke;
  /* Written by the runtime and the loop's thread, read by any (release, acquire). */
  atomic_int state;
  atomic_ulong thread;
};

/* ---- waking */

static void wake(void *arg)
{
  const weft_loop *loop = arg;
  const uint64_t one = 1;
  /* EAGAIN: the counter is full, so the loop is awake already. */
  const ssize_t n = write(loop->wake_fd, &one, sizeof one);
  (void)n;
}

void wefti_loop_wake(weft_loop *loop)
{
  wake(loop);
}

static void on_wake(struct ev_loop *ev, ev_io *w, int revents)
{
  (void)ev;
  (void)revents;
  uint64_t count;
  const ssize_t n = read(w->fd, &count, sizeof count);
  (void)n; /* EAGAIN is fine: being here is all that matters */
}

/* The loop may have slept for long: descriptors' callbacks must see the time of now. What
 * is due by it rings in the next turn. */
static void on_woke(struct ev_loop *ev, ev_check *w, int revents)
{
  (void)ev;
  (void)revents;
  const weft_loop *loop = w->data;
  wefti_wheel_advance(&loop->sched->wheel, weft_clock_ms());
}

static void on_timer(struct ev_loop *ev, ev_timer *w, int revents)
{
  (void)ev;
  (void)revents;
  ((weft_loop *)w->data)->armed_ms = 0; /* the iteration advances the clock */
}

/* ---- the loop */

weft_err wefti_loop_create(wefti_sched *s, unsigned spin_us, const wefti_end_signal *end,
                           weft_loop **out)
{
  weft_loop *loop = calloc(1, sizeof *loop);
  if (loop == NULL) {
    return WEFT_E_NOMEM;
  }
  weft_err err = WEFT_OK;
  loop->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (loop->wake_fd < 0) {
    err = errno == ENOMEM ? WEFT_E_NOMEM : WEFT_E_SYS;
    goto fail_loop;
  }
  loop->ev = ev_loop_new(EVFLAG_AUTO | EVFLAG_NOENV);
  if (loop->ev == NULL) {
    err = WEFT_E_SYS;
    goto fail_fd;
  }
  loop->sched = s;
  loop->end = end;
  loop->spin_ns = (uint64_t)spin_us * 1000u;
  atomic_init(&loop->state, WEFTI_LOOP_NEW);
  atomic_init(&loop->thread, 0);
  ev_io_init(&loop->wake, on_wake, loop->wake_fd, EV_READ);
  ev_io_start(loop->ev, &loop->wake);
  ev_timer_init(&loop->timer, on_timer, 0., 0.);
  ev_check_init(&loop->woke, on_woke);
  ev_set_priority(&loop->woke, EV_MAXPRI); /* before the descriptors' callbacks */
  loop->woke.data = loop;
  ev_check_start(loop->ev, &loop->woke);
  loop->timer.data = loop;
  s->inbox.wake = wake;
  s->inbox.wake_arg = loop;
  s->loop = loop;
  wefti_wheel_advance(&s->wheel, weft_clock_ms());
  *out = loop;
  return WEFT_OK;
fail_fd:
  (void)close(loop->wake_fd);
fail_loop:
  free(loop);
  return err;
}

void wefti_loop_destroy(weft_loop *loop)
{
  if (loop == NULL) {
    return;
  }
  ev_io_stop(loop->ev, &loop->wake);
  ev_timer_stop(loop->ev, &loop->timer);
  ev_check_stop(loop->ev, &loop->woke);
  ev_loop_destroy(loop->ev);
  (void)close(loop->wake_fd);
  free(loop);
}

void wefti_loop_set_state(weft_loop *loop, wefti_loop_state state)
{
  atomic_store_explicit(&loop->state, (int)state, memory_order_release);
}

wefti_loop_state wefti_loop_get_state(const weft_loop *loop)
{
  return (wefti_loop_state)atomic_load_explicit(&loop->state, memory_order_acquire);
}

bool wefti_loop_is_self(const weft_loop *loop)
{
  return atomic_load_explicit(&loop->thread, memory_order_relaxed) ==
         (unsigned long)pthread_self();
}

/* 0 = go on.  Otherwise the loop is over; hard: actors may be left. */
static bool is_over(const weft_loop *loop, uint64_t now_ns)
{
  const uint64_t hard =
      atomic_load_explicit(&loop->end->hard_end_ms, memory_order_acquire);
  return atomic_load_explicit(&loop->end->quit, memory_order_acquire) ||
         (hard != 0 && now_ns / NS_PER_MS >= hard);
}

static void poll_io(weft_loop *loop, uint64_t now_ns)
{
  (void)ev_run(loop->ev, EVRUN_NOWAIT);
  loop->last_poll_ns = now_ns;
}

/* Timers fire, but not at once in a process that was stopped (SIGSTOP, a suspended
 * machine): what had arrived by then is heard before anybody is called late. */
static void advance(weft_loop *loop, uint64_t now_ms)
{
  wefti_sched *s = loop->sched;
  if (now_ms > loop->looked_ms && now_ms - loop->looked_ms > STOPPED_MS) {
    s->hold_until_ms = now_ms + GRACE_MS;
  }
  loop->looked_ms = now_ms;
  wefti_advance(s, now_ms);
}

/* Lets actors run for a while.  true = they are not done. */
static bool run_actors(weft_loop *loop, uint64_t *now_ns)
{
  wefti_sched *s = loop->sched;
  const uint64_t until = *now_ns + BUSY_NS;
  bool more;
  do {
    wefti_take_inbox(s);
    more = wefti_run(s, SLICE);
    *now_ns = weft_clock_ns();
    advance(loop, *now_ns / NS_PER_MS);
    more = more || s->run_head != NULL || wefti_inbox_waiting(&s->inbox);
  } while (more && *now_ns < until);
  return more;
}

/* Looks at the inbox until something comes or the time is over. */
static bool spin(weft_loop *loop, uint64_t now_ns)
{
  const uint64_t until = now_ns + loop->spin_ns;
  while (now_ns < until) {
    for (int i = 0; i < SPINS_A_CLOCK; i++) {
      if (wefti_inbox_waiting(&loop->sched->inbox)) {
        return true;
      }
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      __asm__ volatile("yield");
#endif
    }
    now_ns = weft_clock_ns();
  }
  return false;
}

static void arm_timer(weft_loop *loop, uint64_t now_ns)
{
  const wefti_sched *s = loop->sched;
  uint64_t due = wefti_wheel_next(&s->wheel);
  const uint64_t hard =
      atomic_load_explicit(&loop->end->hard_end_ms, memory_order_acquire);
  if (hard != 0 && hard < due) {
    due = hard;
  }
  due = due < s->hold_until_ms ? s->hold_until_ms : due;
  loop->looked_ms = due;
  if (due == loop->armed_ms) {
    return;
  }
  ev_timer_stop(loop->ev, &loop->timer);
  loop->armed_ms = 0;
  if (due >= UINT64_MAX / NS_PER_MS) {
    return; /* never, or as good as */
  }
  const uint64_t due_ns = due * NS_PER_MS;
  const double wait_s = due_ns > now_ns ? (double)(due_ns - now_ns) * 1e-9 : 0.;
  ev_now_update(loop->ev);
  ev_timer_set(&loop->timer, wait_s, 0.);
  ev_timer_start(loop->ev, &loop->timer);
  loop->armed_ms = due;
}

/* Blocks until there is something to do.  true = it has slept, the clock has moved on. */
static bool wait_io(weft_loop *loop, uint64_t now_ns)
{
  wefti_inbox *box = &loop->sched->inbox;
  bool waiting = loop->spin_ns != 0 && spin(loop, now_ns);
  bool slept = false;
  if (!waiting) {
    arm_timer(loop, now_ns);
    /* Partner: wefti_inbox_push.  It sees idle, or we see its message. */
    atomic_store_explicit(&box->idle, true, memory_order_seq_cst);
    waiting = wefti_inbox_waiting(box);
    if (!waiting) {
      (void)ev_run(loop->ev, EVRUN_ONCE);
      loop->last_poll_ns = now_ns;
      slept = true;
    }
    atomic_store_explicit(&box->idle, false, memory_order_relaxed);
  }
  if (waiting && now_ns - loop->last_poll_ns >= POLL_NS) {
    poll_io(loop, now_ns); /* messages that never cease must not starve it */
  }
  return slept;
}

void wefti_loop_run(weft_loop *loop)
{
  wefti_sched *s = loop->sched;
  uint64_t now_ns = weft_clock_ns();
  loop->looked_ms = now_ns / NS_PER_MS;
  atomic_store_explicit(&loop->thread, (unsigned long)pthread_self(),
                        memory_order_relaxed);
  while (!is_over(loop, now_ns)) {
    const uint64_t turns = atomic_load_explicit(&s->counters.turns, memory_order_relaxed);
    atomic_store_explicit(&s->counters.turns, turns + 1, memory_order_relaxed);
    if (run_actors(loop, &now_ns)) {
      poll_io(loop, now_ns);
    } else if (wait_io(loop, now_ns)) {
      now_ns = weft_clock_ns();
    }
    advance(loop, now_ns / NS_PER_MS);
  }
  wefti_sched_close(s);
  wefti_loop_set_state(loop, WEFTI_LOOP_ENDED);
}

uint64_t weft_loop_now_ms(const weft_loop *loop)
{
  return wefti_now_ms(loop->sched);
}

weft_err weft_loop_call(weft_loop *loop, weft_call_fn *fn, void *arg)
{
  weft_msg *m = wefti_msg_heap(WEFTI_MSG_CALL, sizeof(wefti_call_msg));
  if (m == NULL) {
    return WEFT_E_NOMEM;
  }
  wefti_call_msg *call = (wefti_call_msg *)m;
  call->fn = fn;
  call->arg = arg;
  if (!wefti_inbox_push(&loop->sched->inbox, m, m)) {
    free(m);
    return WEFT_E_CLOSED;
  }
  return WEFT_OK;
}

/* ---- descriptors */

struct weft_io {
  ev_io w; /* first */
  weft_loop *loop;
  weft_io_fn *fn;
  void *arg;
  unsigned events;
};

static int to_ev(unsigned events)
{
  return ((events & WEFT_IO_READ) != 0 ? EV_READ : 0) |
         ((events & WEFT_IO_WRITE) != 0 ? EV_WRITE : 0);
}

static void on_io(struct ev_loop *ev, ev_io *w, int revents)
{
  (void)ev;
  const weft_io *io = (const weft_io *)w; /* w is the first member */
  unsigned events = ((revents & EV_READ) != 0 ? (unsigned)WEFT_IO_READ : 0) |
                    ((revents & EV_WRITE) != 0 ? (unsigned)WEFT_IO_WRITE : 0);
  if ((revents & EV_ERROR) != 0) { /* libev has stopped it; the owner finds out by I/O */
    events |= io->events;
  }
  io->fn(io->arg, w->fd, events);
}

weft_err weft_io_create(weft_loop *loop, int fd, unsigned events, weft_io_fn *fn,
                        void *arg, weft_io **out)
{
  if (fd < 0) {
    return WEFT_E_INVAL;
  }
  weft_io *io = calloc(1, sizeof *io);
  if (io == NULL) {
    return WEFT_E_NOMEM;
  }
  io->loop = loop;
  io->fn = fn;
  io->arg = arg;
  ev_io_init(&io->w, on_io, fd, EV_NONE);
  weft_io_set(io, events);
  *out = io;
  return WEFT_OK;
}

void weft_io_set(weft_io *io, unsigned events)
{
  if (events == io->events) {
    return;
  }
  ev_io_stop(io->loop->ev, &io->w);
  io->events = events;
  if (events != 0) {
    ev_io_set(&io->w, io->w.fd, to_ev(events));
    ev_io_start(io->loop->ev, &io->w);
  }
}

void weft_io_destroy(weft_io *io)
{
  if (io != NULL) {
    ev_io_stop(io->loop->ev, &io->w);
    free(io);
  }
}

/* ---- alarms live in the scheduler's wheel */

struct weft_alarm {
  wefti_wnode node; /* first */
  weft_loop *loop;
  weft_alarm_fn *fn;
  void *arg;
};

static void alarm_fired(wefti_wnode *node)
{
  const weft_alarm *alarm = (const weft_alarm *)node;
  alarm->fn(alarm->arg);
}

weft_err weft_alarm_create(weft_loop *loop, weft_alarm_fn *fn, void *arg,
                           weft_alarm **out)
{
  weft_alarm *alarm = calloc(1, sizeof *alarm);
  if (alarm == NULL) {
    return WEFT_E_NOMEM;
  }
  alarm->node.fire = alarm_fired;
  alarm->loop = loop;
  alarm->fn = fn;
  alarm->arg = arg;
  *out = alarm;
  return WEFT_OK;
}

void weft_alarm_start(weft_alarm *alarm, uint64_t after_ms)
{
  wefti_wheel *wheel = &alarm->loop->sched->wheel;
  wefti_wheel_remove(wheel, &alarm->node);
  const uint64_t max = WEFTI_WHEEL_NEVER - 1 - wheel->now_ms;
  wefti_wheel_add(wheel, &alarm->node, wheel->now_ms + (after_ms > max ? max : after_ms));
}

void weft_alarm_stop(weft_alarm *alarm)
{
  wefti_wheel_remove(&alarm->loop->sched->wheel, &alarm->node);
}

void weft_alarm_destroy(weft_alarm *alarm)
{
  if (alarm != NULL) {
    weft_alarm_stop(alarm);
    free(alarm);
  }
}
