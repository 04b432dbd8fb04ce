#include "rt.h"
#include "weft/clock.h"

#include <stdlib.h>
#include <string.h>

/* A thread that waits for a loop.  Lives on that thread's stack; guarded by wait_lock. */
struct wefti_waiter {
  wefti_waiter *next;
  weft_actor_id id; /* loop WEFTI_LOOP_OUTSIDE; never used twice */
  weft_actor_id to; /* whom it asked */
  pthread_cond_t cond;
  bool done;
  weft_err err;
  weft_msg *answer;
};

typedef struct wefti_spawn_msg {
  weft_msg h;
  wefti_waiter *waiter;
  const weft_actor_class *cls;
  const void *args;
  const weft_spawn_opts *opts;
  weft_actor_id id;
} wefti_spawn_msg;

static weft_err waiter_begin(weft_runtime *rt, wefti_waiter *w, weft_actor_id to)
{
  *w = (wefti_waiter){ .to = to };
  const weft_err err = weft_cond_init(&w->cond);
  if (err != WEFT_OK) {
    return err;
  }
  (void)pthread_mutex_lock(&rt->wait_lock);
  w->id = ((uint64_t)WEFTI_LOOP_OUTSIDE << 56) | ++rt->next_waiter;
  w->next = rt->waiters;
  rt->waiters = w;
  (void)pthread_mutex_unlock(&rt->wait_lock);
  return WEFT_OK;
}

/* Waits until done or, unless it is 0, the time is over. */
static void waiter_wait(weft_runtime *rt, wefti_waiter *w, uint64_t due_ms)
{
  (void)pthread_mutex_lock(&rt->wait_lock);
  bool in_time = true;
  while (!w->done && in_time) {
    if (due_ms == 0) {
      (void)pthread_cond_wait(&w->cond, &rt->wait_lock);
    } else { /* the millisecond that it was asked in had begun before */
      in_time = weft_cond_wait_until(&w->cond, &rt->wait_lock, due_ms + 1);
    }
  }
  (void)pthread_mutex_unlock(&rt->wait_lock);
}

static void waiter_end(weft_runtime *rt, wefti_waiter *w)
{
  (void)pthread_mutex_lock(&rt->wait_lock);
  for (wefti_waiter **at = &rt->waiters; *at != NULL; at = &(*at)->next) {
    if (*at == w) {
      *at = w->next;
      break;
    }
  }
  (void)pthread_mutex_unlock(&rt->wait_lock);
  (void)pthread_cond_destroy(&w->cond);
}

/* Under wait_lock. */
static void waiter_done(wefti_waiter *w, weft_err err, weft_msg *answer)
{
  w->done = true;
  w->err = err;
  w->answer = answer;
  (void)pthread_cond_signal(&w->cond);
}

/* ---- posting */

weft_err weft_post(weft_runtime *rt, weft_actor_id to, weft_msg *msg)
{
  const unsigned loop = wefti_id_loop(to);
  wefti_sched *s = loop < rt->count ? rt->scheds[loop] : NULL;
  weft_ctx *a = s == NULL ? NULL : wefti_slot_of(s, to);
  weft_err err = WEFT_E_DOWN;
  if (msg == NULL) {
    return WEFT_E_NOMEM;
  }
  if (msg->type >= WEFTI_MSG_CALL) { /* the loops' own */
    err = WEFT_E_INVAL;
    goto drop;
  }
  if (a == NULL || to == 0 || atomic_load_explicit(&a->id, memory_order_acquire) != to) {
    goto drop;
  }
  const unsigned limit = atomic_load_explicit(&a->limit, memory_order_relaxed);
  const unsigned extra =
      (msg->flags & (WEFT_MSG_F_RESERVED | WEFT_MSG_F_REPLY)) != 0 ? (limit + 3) / 4 : 0;
  const unsigned used = atomic_fetch_add_explicit(&a->remote, 1, memory_order_relaxed) +
                        atomic_load_explicit(&a->depth, memory_order_relaxed);
  if (used >= limit + extra) {
    err = WEFT_E_FULL;
    atomic_fetch_add_explicit(&s->counters.refused_outside, 1, memory_order_relaxed);
    goto uncharge;
  }
  msg->to = to;
  msg->flags &= WEFT_MSG_F_REPLY | WEFT_MSG_F_RESERVED | WEFT_MSG_F_DEEP;
  msg->flags |= WEFTI_F_REMOTE;
  if (!wefti_inbox_push(&s->inbox, msg, msg)) {
    err = WEFT_E_CLOSED;
    goto uncharge;
  }
  return WEFT_OK;
uncharge:
  (void)atomic_fetch_sub_explicit(&a->remote, 1, memory_order_relaxed);
drop:
  wefti_msg_drop_heap(rt->catalogue, msg);
  return err;
}

/* ---- asking */

weft_err weft_call(weft_runtime *rt, weft_actor_id to, weft_msg *msg, uint64_t timeout_ms,
                   weft_msg **answer)
{
  if (msg == NULL) {
    return WEFT_E_NOMEM;
  }
  wefti_waiter w;
  weft_err err = waiter_begin(rt, &w, to);
  if (err != WEFT_OK) {
    wefti_msg_drop_heap(rt->catalogue, msg);
    return err;
  }
  const uint64_t now_ms = weft_clock_ms();
  const uint64_t max_ms = (uint64_t)INT64_MAX / 1000000u - now_ms;
  if (timeout_ms > max_ms) {
    timeout_ms = max_ms;
  }
  const uint64_t due_ms = timeout_ms == 0 ? 0 : now_ms + timeout_ms;
  msg->from = w.id;
  msg->corr = w.id;
  msg->due_ms = due_ms;
  msg->flags &= WEFT_MSG_F_RESERVED | WEFT_MSG_F_DEEP;
  err = weft_post(rt, to, msg);
  if (err == WEFT_OK) {
    waiter_wait(rt, &w, due_ms);
  }
  waiter_end(rt, &w);
  if (err != WEFT_OK) {
    return err;
  }
  if (!w.done) {
    return WEFT_E_TIMEOUT;
  }
  if (w.err == WEFT_OK) {
    *answer = w.answer;
  }
  return w.err;
}

static wefti_waiter *waiter_find(weft_runtime *rt, weft_actor_id id)
{
  wefti_waiter *w = rt->waiters;
  while (w != NULL && (w->id != id || w->done)) {
    w = w->next;
  }
  return w;
}

void wefti_outside_answer(wefti_sched *s, weft_msg *msg)
{
  weft_runtime *rt = s->rt;
  if (rt == NULL) {
    wefti_msg_free(s, msg);
    return;
  }
  weft_msg *heap = NULL;
  weft_err err = WEFT_OK;
  if (msg->type == WEFT_MSG_ASK_FAILED) { /* the runtime's, or said by the one asked */
    err = (weft_err)((const weft_ask_failed_msg *)msg)->reason;
    err = err == WEFT_OK ? WEFT_E_FAILED : err; /* no answer is never success */
  } else {
    heap = wefti_msg_to_heap(s->catalogue, msg);
    err = heap == NULL ? WEFT_E_LOST : WEFT_OK;
  }
  const uint64_t to = msg->corr;
  if (heap != msg) {
    wefti_msg_free(s, msg);
  }
  (void)pthread_mutex_lock(&rt->wait_lock);
  wefti_waiter *w = waiter_find(rt, to);
  if (w != NULL) {
    waiter_done(w, err, heap);
    heap = NULL;
  }
  (void)pthread_mutex_unlock(&rt->wait_lock);
  if (w == NULL) {
    atomic_fetch_add_explicit(&s->counters.late_outside, 1, memory_order_relaxed);
  }
  weft_msg_drop(s->catalogue, heap);
}

void wefti_outside_died(weft_runtime *rt, weft_actor_id who)
{
  if (rt == NULL) {
    return;
  }
  (void)pthread_mutex_lock(&rt->wait_lock);
  for (wefti_waiter *w = rt->waiters; w != NULL; w = w->next) {
    if (w->to == who && !w->done) {
      waiter_done(w, WEFT_E_DOWN, NULL);
    }
  }
  (void)pthread_mutex_unlock(&rt->wait_lock);
}

/* ---- spawning */

void wefti_outside_spawn(wefti_sched *s, weft_msg *msg, bool closed)
{
  wefti_spawn_msg *m = (wefti_spawn_msg *)msg;
  weft_err err = WEFT_E_CLOSED;
  if (!closed) {
    err = wefti_spawn(s, NULL, m->cls, m->args, m->opts, &m->id);
  }
  (void)pthread_mutex_lock(&s->rt->wait_lock);
  waiter_done(m->waiter, err, NULL); /* m is gone once the lock is */
  (void)pthread_mutex_unlock(&s->rt->wait_lock);
}

weft_err weft_runtime_spawn(weft_runtime *rt, unsigned loop, const weft_actor_class *cls,
                            const void *args, const weft_spawn_opts *opts,
                            weft_actor_id *out)
{
  if (loop >= rt->count) {
    return WEFT_E_INVAL;
  }
  wefti_sched *s = rt->scheds[loop];
  const wefti_loop_state state = wefti_loop_get_state(rt->loops[loop]);
  if (state == WEFTI_LOOP_ENDED) {
    return WEFT_E_CLOSED;
  }
  if (state == WEFTI_LOOP_NEW || wefti_loop_is_self(rt->loops[loop])) {
    return wefti_spawn(s, NULL, cls, args, opts, out);
  }
  wefti_waiter w;
  weft_err err = waiter_begin(rt, &w, 0);
  if (err != WEFT_OK) {
    return err;
  }
  wefti_spawn_msg m = {
    .h = { .type = WEFTI_MSG_SPAWN }, .waiter = &w, .cls = cls, .args = args, .opts = opts
  };
  if (wefti_inbox_push(&s->inbox, &m.h, &m.h)) {
    waiter_wait(rt, &w, 0);
    err = w.err;
  } else {
    err = WEFT_E_CLOSED;
  }
  waiter_end(rt, &w);
  if (err == WEFT_OK) {
    *out = m.id;
  }
  return err;
}
