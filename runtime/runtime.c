#include "weft/runtime.h"

#include "rt.h"
#include "weft/clock.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- roots: the actors without parent, for the orderly end */

weft_err wefti_root_add(weft_runtime *rt, weft_actor_id id)
{
  weft_msg *stop = wefti_msg_heap(WEFT_MSG_STOP, sizeof(weft_msg));
  if (stop == NULL) {
    return WEFT_E_NOMEM;
  }
  stop->to = id;
  stop->flags = WEFT_MSG_F_RESERVED | WEFTI_F_EXEMPT;
  weft_err err = WEFT_OK;
  (void)pthread_mutex_lock(&rt->lock);
  if (rt->stopping) {
    err = WEFT_E_CLOSED;
  } else if (rt->root_count == rt->root_cap) {
    const size_t cap = rt->root_cap == 0 ? 16 : 2 * rt->root_cap;
    wefti_root *grown = realloc(rt->roots, cap * sizeof *grown);
    if (grown == NULL) {
      err = WEFT_E_NOMEM;
    } else {
      rt->roots = grown;
      rt->root_cap = cap;
    }
  }
  if (err == WEFT_OK) {
    rt->roots[rt->root_count++] = (wefti_root){ id, stop };
  }
  (void)pthread_mutex_unlock(&rt->lock);
  if (err != WEFT_OK) {
    free(stop);
  }
  return err;
}

static void wake_all(weft_runtime *rt)
{
  for (unsigned i = 0; i < rt->count; i++) {
    wefti_loop_wake(rt->loops[i]);
  }
}

/* Under the lock while stopping: the newest is told, or all is over. */
static void stop_next(weft_runtime *rt)
{
  if (rt->root_count == 0) {
    atomic_store_explicit(&rt->end.quit, true, memory_order_release);
    wake_all(rt);
    return;
  }
  wefti_root *newest = &rt->roots[rt->root_count - 1];
  weft_msg *stop = newest->stop;
  newest->stop = NULL;
  if (stop != NULL) {
    wefti_sched *s = rt->scheds[wefti_id_loop(newest->id)];
    if (!wefti_inbox_push(&s->inbox, stop, stop)) {
      free(stop); /* that loop has ended, and the actor with it */
    }
  }
}

void wefti_root_ended(weft_runtime *rt, weft_actor_id id)
{
  (void)pthread_mutex_lock(&rt->lock);
  for (size_t i = rt->root_count; i-- > 0;) {
    if (rt->roots[i].id != id) {
      continue;
    }
    free(rt->roots[i].stop);
    rt->root_count--;
    memmove(&rt->roots[i], &rt->roots[i + 1], (rt->root_count - i) * sizeof *rt->roots);
    if (rt->stopping) {
      stop_next(rt);
    }
    break;
  }
  (void)pthread_mutex_unlock(&rt->lock);
}

void weft_runtime_stop(weft_runtime *rt, uint64_t within_ms)
{
  const uint64_t now_ms = weft_clock_ms();
  const uint64_t end_ms = now_ms + within_ms < now_ms ? UINT64_MAX : now_ms + within_ms;
  (void)pthread_mutex_lock(&rt->lock);
  const uint64_t before =
      atomic_load_explicit(&rt->end.hard_end_ms, memory_order_relaxed);
  if (before == 0 || end_ms < before) {
    atomic_store_explicit(&rt->end.hard_end_ms, end_ms, memory_order_release);
  }
  if (!rt->stopping) {
    rt->stopping = true;
    stop_next(rt);
  }
  (void)pthread_mutex_unlock(&rt->lock);
  wake_all(rt);
}

/* ---- life */

static void destroy_all(weft_runtime *rt)
{
  for (unsigned i = 0; i < rt->count; i++) {
    if (rt->loops[i] != NULL && wefti_loop_get_state(rt->loops[i]) != WEFTI_LOOP_ENDED) {
      wefti_sched_close(rt->scheds[i]);
    }
  }
  for (unsigned i = 0; i < rt->count; i++) {
    wefti_loop_destroy(rt->loops[i]);
  }
  for (unsigned i = 0; i < rt->count; i++) {
    wefti_sched_destroy(rt->scheds[i]);
  }
  for (size_t i = 0; i < rt->root_count; i++) {
    free(rt->roots[i].stop);
  }
  free(rt->roots);
  (void)pthread_mutex_destroy(&rt->lock);
  (void)pthread_mutex_destroy(&rt->wait_lock);
  free(rt);
}

static weft_err make_loops(weft_runtime *rt, const weft_runtime_opts *opts)
{
  for (unsigned i = 0; i < opts->loops; i++) {
    weft_err err = wefti_sched_create(i, &rt->scheds[i]);
    if (err != WEFT_OK) {
      return err;
    }
    rt->count = i + 1;
    rt->scheds[i]->rt = rt;
    rt->scheds[i]->catalogue = opts->catalogue;
    rt->scheds[i]->peers = rt->scheds;
    rt->scheds[i]->peer_count = opts->loops;
    err = wefti_loop_create(rt->scheds[i], opts->spin_us, &rt->end, &rt->loops[i]);
    if (err != WEFT_OK) {
      return err;
    }
  }
  return WEFT_OK;
}

weft_err weft_runtime_create(const weft_runtime_opts *opts, weft_runtime **out)
{
  if (opts->size != sizeof *opts || opts->loops < 1 || opts->loops > WEFT_LOOPS_MAX) {
    return WEFT_E_INVAL;
  }
  weft_runtime *rt = calloc(1, sizeof *rt);
  if (rt == NULL) {
    return WEFT_E_NOMEM;
  }
  rt->catalogue = opts->catalogue;
  rt->log = opts->log;
  rt->log_arg = opts->log_arg;
  rt->log_level = opts->log_level;
  atomic_init(&rt->end.quit, false);
  atomic_init(&rt->end.hard_end_ms, 0);
  if (pthread_mutex_init(&rt->lock, NULL) != 0) {
    free(rt);
    return WEFT_E_SYS;
  }
  if (pthread_mutex_init(&rt->wait_lock, NULL) != 0) {
    (void)pthread_mutex_destroy(&rt->lock);
    free(rt);
    return WEFT_E_SYS;
  }
  const weft_err err = make_loops(rt, opts);
  if (err != WEFT_OK) {
    destroy_all(rt);
    return err;
  }
  *out = rt;
  return WEFT_OK;
}

void weft_runtime_destroy(weft_runtime *rt)
{
  if (rt != NULL && !rt->hangs) {
    weft_runtime_join(rt);
    destroy_all(rt);
  }
}

static void *thread_main(void *arg)
{
  wefti_loop_run(arg);
  return NULL;
}

/* Threads for the loops from first on.  What has started keeps running on error. */
static weft_err start_from(weft_runtime *rt, unsigned first)
{
  sigset_t all;
  sigset_t before;
  (void)sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) {
    return WEFT_E_SYS;
  }
  weft_err err = WEFT_OK;
  for (unsigned i = first; i < rt->count && err == WEFT_OK; i++) {
    if (wefti_loop_get_state(rt->loops[i]) != WEFTI_LOOP_NEW) {
      err = WEFT_E_STATE;
      break;
    }
    wefti_loop_set_state(rt->loops[i], WEFTI_LOOP_STARTED);
    if (pthread_create(&rt->threads[i], NULL, thread_main, rt->loops[i]) != 0) {
      wefti_loop_set_state(rt->loops[i], WEFTI_LOOP_NEW);
      err = WEFT_E_SYS;
      break;
    }
    rt->has_thread[i] = true;
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  return err;
}

weft_err weft_runtime_start(weft_runtime *rt)
{
  return start_from(rt, 1);
}

weft_err weft_runtime_start_all(weft_runtime *rt)
{
  return start_from(rt, 0);
}

void weft_runtime_run(weft_runtime *rt)
{
  wefti_loop_set_state(rt->loops[0], WEFTI_LOOP_STARTED);
  wefti_loop_run(rt->loops[0]);
  weft_runtime_join(rt);
}

void weft_runtime_join(weft_runtime *rt)
{
  for (unsigned i = 0; i < rt->count; i++) {
    if (rt->has_thread[i]) {
      (void)pthread_join(rt->threads[i], NULL);
      rt->has_thread[i] = false;
    }
  }
}

static bool ends_within(weft_runtime *rt, unsigned loop, uint64_t within_ms)
{
  const struct timespec look = { .tv_nsec = 5000000 };
  const uint64_t end_ns = weft_clock_ns() + within_ms * 1000000u;
  while (wefti_loop_get_state(rt->loops[loop]) != WEFTI_LOOP_ENDED) {
    if (weft_clock_ns() >= end_ns) {
      return false;
    }
    (void)nanosleep(&look, NULL);
  }
  return true;
}

bool weft_runtime_join_but(weft_runtime *rt, unsigned loop, uint64_t within_ms)
{
  WEFT_ASSERT(loop < rt->count);
  const bool waited_for = rt->has_thread[loop];
  rt->has_thread[loop] = false;
  weft_runtime_join(rt);
  if (!waited_for) {
    return true;
  }
  rt->hangs = !ends_within(rt, loop, within_ms);
  if (rt->hangs) {
    (void)pthread_detach(rt->threads[loop]);
  } else {
    (void)pthread_join(rt->threads[loop], NULL);
  }
  return !rt->hangs;
}

/* ---- the rest */

weft_loop *weft_runtime_loop(weft_runtime *rt, unsigned index)
{
  return index < rt->count ? rt->loops[index] : NULL;
}

const weft_catalogue *weft_runtime_catalogue(const weft_runtime *rt)
{
  return rt->catalogue;
}

bool wefti_runtime_logs(const weft_runtime *rt, weft_log_level level)
{
  return rt->log != NULL && level >= rt->log_level;
}

void wefti_runtime_log(weft_runtime *rt, weft_log_level level, const char *who,
                       const char *line)
{
  rt->log(rt->log_arg, level, who, line);
}

void weft_runtime_stats_get(weft_runtime *rt, weft_runtime_stats *out)
{
  *out = (weft_runtime_stats){ 0 };
  for (unsigned i = 0; i < rt->count; i++) {
    const wefti_counters *c = &rt->scheds[i]->counters;
    out->messages += atomic_load_explicit(&c->messages, memory_order_relaxed);
    out->dropped_full += atomic_load_explicit(&c->dropped_full, memory_order_relaxed);
    out->dropped_late += atomic_load_explicit(&c->dropped_late, memory_order_relaxed);
    out->dropped_full += atomic_load_explicit(&c->refused_outside, memory_order_relaxed);
    out->dropped_late += atomic_load_explicit(&c->late_outside, memory_order_relaxed);
    out->turns += atomic_load_explicit(&c->turns, memory_order_relaxed);
    out->actors += atomic_load_explicit(&c->actors, memory_order_relaxed);
  }
}
