#include "scheduler.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory */

static void free_far(wefti_sched *s, weft_msg *m, unsigned home)
{
  wefti_chain *c = &s->back[home];
  m->next = c->newest;
  c->newest = m;
  if (c->oldest == NULL) {
    c->oldest = m;
  }
  s->back_dirty |= 1ull << home;
  if (++c->count >= WEFTI_BACK_MAX) {
    wefti_pool_return(&s->peers[home]->pool, c->newest, c->oldest);
    *c = (wefti_chain){ 0 };
    s->back_dirty &= ~(1ull << home);
  }
}

void wefti_msg_free_slow(wefti_sched *s, weft_msg *m)
{
  if (WEFTI_UNLIKELY((m->flags & WEFT_MSG_F_DEEP) != 0)) {
    wefti_msg_release(s->catalogue, m);
  }
  const uint32_t tag = m->home & WEFTI_HOME_POOL_MASK;
  if (WEFTI_LIKELY(tag == s->pool.tag)) {
    wefti_pool_put(&s->pool, m);
  } else if (tag == 0) {
    free(m);
  } else if (tag == WEFTI_HOME_EMBEDDED) {
    wefti_entry_put(s, wefti_entry_of_msg(m));
  } else {
    free_far(s, m, tag - 1);
  }
}

static void flush_back(wefti_sched *s)
{
  while (s->back_dirty != 0) {
    const unsigned home = (unsigned)__builtin_ctzll(s->back_dirty);
    wefti_chain *c = &s->back[home];
    wefti_pool_return(&s->peers[home]->pool, c->newest, c->oldest);
    *c = (wefti_chain){ 0 };
    s->back_dirty &= s->back_dirty - 1;
  }
}

/* ---- turns */

/* Is this answer or own message still wanted? */
static bool still_wanted(wefti_sched *s, const weft_ctx *a, weft_msg *m)
{
  if ((m->home & WEFTI_HOME_POOL_MASK) == WEFTI_HOME_EMBEDDED) {
    return wefti_entry_of_msg(m)->state != WEFTI_ENTRY_CANCELLED;
  }
  wefti_entry *e = wefti_entry_find(s, m->corr);
  if (e == NULL || e->owner != a || e->state != WEFTI_ENTRY_ANSWERED) {
    return false;
  }
  wefti_entry_put(s, e);
  return true;
}

static weft_msg *take(weft_ctx *a)
{
  weft_msg *m = a->head;
  if (m == NULL) {
    return NULL;
  }
  a->head = m->next;
  if (a->head == NULL) {
    a->tail = &a->head;
  }
  if ((m->flags & (WEFTI_F_REMOTE | WEFTI_F_EXEMPT)) == 0) {
    const unsigned depth = atomic_load_explicit(&a->depth, memory_order_relaxed);
    atomic_store_explicit(&a->depth, depth - 1, memory_order_relaxed);
  } else {
    a->far_taken += (m->flags & WEFTI_F_REMOTE) != 0;
  }
  return m;
}

/* One message; false = a is to end with a->reason. */
static bool deliver(wefti_sched *s, weft_ctx *a, weft_msg *m)
{
  weft_err err = a->cls->on(a, a->state, m);
  if (WEFTI_UNLIKELY(err != WEFT_OK)) {
    if (m->type == WEFT_MSG_STOP && (err == WEFT_E_STATE || err == WEFT_E_UNSUPPORTED)) {
      err = WEFT_OK; /* it does not know how to stop slowly */
    }
    if ((a->flags & WEFTI_A_STOPPING) == 0) {
      a->flags |= WEFTI_A_STOPPING;
      a->reason = err;
    }
  }
  s->messages++;
  if (WEFTI_UNLIKELY(s->hooks != NULL)) {
    s->hooks->delivered(s->hooks->arg, m);
  }
  wefti_msg_free(s, m);
  return (a->flags & WEFTI_A_STOPPING) == 0;
}

unsigned wefti_turn(weft_ctx *a, unsigned max)
{
  wefti_sched *s = a->sched;
  unsigned n = 0;
  bool goes_on = (a->flags & WEFTI_A_STOPPING) == 0;
  while (n < max && goes_on) {
    weft_msg *m = take(a);
    if (m == NULL) {
      break;
    }
    if (WEFTI_UNLIKELY((m->flags & (WEFT_MSG_F_REPLY | WEFTI_F_EXEMPT)) != 0)) {
      const bool special = (m->flags & WEFT_MSG_F_REPLY) != 0 ||
                           (m->home & WEFTI_HOME_POOL_MASK) == WEFTI_HOME_EMBEDDED;
      if (special && !still_wanted(s, a, m)) {
        wefti_msg_free(s, m);
        continue;
      }
    }
    n++;
    goes_on = deliver(s, a, m);
  }
  if (a->far_taken != 0) {
    (void)atomic_fetch_sub_explicit(&a->remote, a->far_taken, memory_order_relaxed);
    a->far_taken = 0;
  }
  if (!goes_on) {
    wefti_end(a, a->reason);
  }
  a->scheduled = false;
  if (atomic_load_explicit(&a->id, memory_order_relaxed) == 0) {
    wefti_slot_release(a);
  } else if (a->head != NULL) {
    wefti_schedule(a);
  }
  return n;
}

bool wefti_run(wefti_sched *s, unsigned budget)
{
  unsigned done = 0;
  while (done < budget && s->run_head != NULL) {
    weft_ctx *a = s->run_head;
    s->run_head = a->run_next;
    if (s->run_head == NULL) {
      s->run_tail = &s->run_head;
    }
    if (atomic_load_explicit(&a->id, memory_order_relaxed) == 0) {
      a->scheduled = false;
      wefti_slot_release(a);
      continue;
    }
    done += wefti_turn(a, a->batch) + 1;
    if (s->out_dirty != 0) {
      wefti_flush(s);
    }
  }
  if (s->out_dirty != 0) { /* what I/O callbacks sent */
    wefti_flush(s);
  }
  atomic_store_explicit(&s->counters.messages, s->messages, memory_order_relaxed);
  if (s->run_head == NULL) {
    flush_back(s);
    return false;
  }
  return true;
}

void wefti_advance(wefti_sched *s, uint64_t now_ms)
{
  wefti_wheel_advance(&s->wheel, now_ms);
  if (wefti_now_ms(s) < s->hold_until_ms) {
    return;
  }
  wefti_wnode *node;
  while ((node = wefti_wheel_pop(&s->wheel)) != NULL) {
    node->fire(node);
  }
}

/* ---- life of the whole */

weft_err wefti_sched_create(unsigned index, wefti_sched **out)
{
  wefti_sched *s = aligned_alloc(_Alignof(wefti_sched), sizeof(wefti_sched));
  if (s == NULL) {
    return WEFT_E_NOMEM;
  }
  memset(s, 0, sizeof *s);
  s->index = index;
  s->run_tail = &s->run_head;
  wefti_pool_init(&s->pool, index);
  wefti_inbox_init(&s->inbox);
  wefti_wheel_init(&s->wheel, 0);
  if (!wefti_entries_init(s)) {
    free(s);
    return WEFT_E_NOMEM;
  }
  *out = s;
  return WEFT_OK;
}

void wefti_sched_close(wefti_sched *s)
{
  s->closing = true;
  wefti_end_all(s, WEFT_E_CANCELLED);
  wefti_flush(s);
  wefti_take_last(s);
  wefti_flush(s);
  while (s->run_head != NULL) { /* only the dead are left */
    (void)wefti_run(s, WEFTI_BATCH);
  }
  flush_back(s);
}

void wefti_sched_destroy(wefti_sched *s)
{
  if (s == NULL) {
    return;
  }
  for (unsigned i = 0; i < WEFTI_SLOT_CHUNKS; i++) {
    free(atomic_load_explicit(&s->slots[i], memory_order_relaxed));
  }
  wefti_entries_fini(s);
  wefti_pool_fini(&s->pool);
  free(s);
}
