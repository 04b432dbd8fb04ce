#include "scheduler.h"

static bool is_question(const weft_msg *m)
{
  return m->corr != 0 && (m->flags & WEFT_MSG_F_REPLY) == 0 &&
         m->type != WEFT_MSG_ASK_FAILED; /* bad news on its way */
}

static void count(atomic_uint_fast64_t *counter)
{
  const uint_fast64_t v = atomic_load_explicit(counter, memory_order_relaxed);
  atomic_store_explicit(counter, v + 1, memory_order_relaxed); /* only the owner writes */
}

/* ---- mailboxes */

static void push(weft_ctx *a, weft_msg *m)
{
  m->next = NULL;
  *a->tail = m;
  a->tail = &m->next;
  wefti_schedule(a);
}

void wefti_push_exempt(weft_ctx *a, weft_msg *m)
{
  m->flags |= WEFTI_F_EXEMPT | WEFT_MSG_F_RESERVED;
  m->flags &= (uint16_t)~WEFTI_F_REMOTE;
  push(a, m);
}

/* May one more message wait for a, of which others hold `remote` places? */
static bool has_room(const weft_ctx *a, uint16_t flags, unsigned remote)
{
  const unsigned limit = atomic_load_explicit(&a->limit, memory_order_relaxed);
  const unsigned depth = atomic_load_explicit(&a->depth, memory_order_relaxed);
  const unsigned extra = (flags & WEFT_MSG_F_RESERVED) != 0 ? (limit + 3) / 4 : 0;
  return depth + remote < limit + extra;
}

static void push_charged(weft_ctx *a, weft_msg *m)
{
  if ((m->flags & (WEFTI_F_REMOTE | WEFTI_F_EXEMPT)) == 0) {
    const unsigned depth = atomic_load_explicit(&a->depth, memory_order_relaxed);
    atomic_store_explicit(&a->depth, depth + 1, memory_order_relaxed);
  }
  push(a, m);
}

/* An answer ends its question, or is late.  Takes m. */
static weft_err answer_here(wefti_sched *s, weft_ctx *a, weft_msg *m, bool room)
{
  wefti_entry *e = wefti_entry_find(s, m->corr);
  if (e == NULL || e->owner != a || e->is_timer || e->state != WEFTI_ENTRY_OPEN) {
    count(&s->counters.dropped_late);
    goto drop;
  }
  if (s->hooks != NULL && s->hooks->on_way(s->hooks->arg, m) == WEFTI_TAKEN) {
    return WEFT_OK;
  }
  if (!room) {
    count(&s->counters.dropped_full);
    wefti_ask_fail(e, WEFT_E_LOST);
    wefti_msg_free(s, m);
    return WEFT_E_FULL;
  }
  wefti_wheel_remove(&s->wheel, &e->node);
  e->state = WEFTI_ENTRY_ANSWERED;
  push_charged(a, m);
  return WEFT_OK;
drop:
  if ((m->flags & WEFTI_F_REMOTE) != 0) {
    a->far_taken++;
    wefti_schedule(a); /* its turn subtracts */
  }
  wefti_msg_free(s, m);
  return WEFT_OK;
}

static weft_err route_here(wefti_sched *s, weft_msg *m)
{
  weft_ctx *a = wefti_lookup(s, m->to);
  if (WEFTI_UNLIKELY(a == NULL)) {
    wefti_msg_free(s, m);
    return WEFT_E_DOWN;
  }
  const bool room =
      has_room(a, m->flags, atomic_load_explicit(&a->remote, memory_order_relaxed));
  if ((m->flags & WEFT_MSG_F_REPLY) != 0) {
    return answer_here(s, a, m, room);
  }
  if (s->hooks != NULL && s->hooks->on_way(s->hooks->arg, m) == WEFTI_TAKEN) {
    return WEFT_OK;
  }
  if (WEFTI_UNLIKELY(!room)) {
    count(&s->counters.dropped_full);
    wefti_msg_free(s, m);
    return WEFT_E_FULL;
  }
  push_charged(a, m);
  return WEFT_OK;
}

/* ---- to other loops */

static void append(wefti_sched *s, unsigned loop, weft_msg *m)
{
  wefti_chain *c = &s->out[loop];
  m->next = c->newest;
  c->newest = m;
  if (c->oldest == NULL) {
    c->oldest = m;
  }
  s->out_dirty |= 1ull << loop;
  if (++c->count >= WEFTI_OUT_MAX) {
    wefti_flush(s);
  }
}

void wefti_far_exempt(wefti_sched *s, unsigned loop, weft_msg *m)
{
  if (loop >= WEFT_LOOPS_MAX || loop >= s->peer_count) { /* no such loop to hear of it */
    wefti_msg_free(s, m);
    return;
  }
  m->flags = (uint16_t)((m->flags | WEFTI_F_EXEMPT) & ~WEFTI_F_REMOTE);
  append(s, loop, m);
}

void wefti_bounce(wefti_sched *s, weft_msg *m, weft_err reason)
{
  const unsigned loop = wefti_id_loop(m->from);
  wefti_msg_release(s->catalogue, m);
  if (m->from == 0 || (loop != WEFTI_LOOP_OUTSIDE && loop >= s->peer_count)) {
    wefti_msg_free(s, m);
    return;
  }
  if (loop == s->index) {
    wefti_ask_fail_corr(s, m->from, m->corr, reason);
    wefti_msg_free(s, m);
    return;
  }
  /* Every message has room for this, so that bad news needs no memory. */
  weft_ask_failed_msg *f = (weft_ask_failed_msg *)m;
  const weft_actor_id asker = m->from;
  f->asked = m->type;
  f->reason = (uint32_t)reason;
  m->from = m->to;
  m->to = asker;
  m->type = WEFT_MSG_ASK_FAILED;
  m->flags = WEFT_MSG_F_RESERVED;
  if (loop == WEFTI_LOOP_OUTSIDE) {
    wefti_outside_answer(s, m);
  } else {
    wefti_far_exempt(s, loop, m);
  }
}

static weft_err route_far(wefti_sched *s, weft_msg *m, unsigned loop)
{
  if (loop == WEFTI_LOOP_OUTSIDE && (m->flags & WEFT_MSG_F_REPLY) != 0) {
    wefti_outside_answer(s, m);
    return WEFT_OK;
  }
  weft_ctx *a = loop < WEFT_LOOPS_MAX && loop < s->peer_count
                    ? wefti_slot_of(s->peers[loop], m->to)
                    : NULL;
  if (a == NULL || atomic_load_explicit(&a->id, memory_order_acquire) != m->to) {
    wefti_msg_free(s, m);
    return WEFT_E_DOWN;
  }
  const unsigned before = atomic_fetch_add_explicit(&a->remote, 1, memory_order_relaxed);
  if (has_room(a, m->flags, before)) {
    m->flags |= WEFTI_F_REMOTE;
    append(s, loop, m);
    return WEFT_OK;
  }
  (void)atomic_fetch_sub_explicit(&a->remote, 1, memory_order_relaxed);
  count(&s->counters.dropped_full);
  if ((m->flags & WEFT_MSG_F_REPLY) != 0 && m->corr != 0) {
    /* The asker must not wait for ever: the lost answer comes back as its failure. */
    const weft_actor_id answerer = m->from;
    m->from = m->to;
    m->to = answerer;
    wefti_bounce(s, m, WEFT_E_LOST);
  } else {
    wefti_msg_free(s, m);
  }
  return WEFT_E_FULL;
}

weft_err wefti_route(wefti_sched *s, weft_msg *m)
{
  const unsigned loop = wefti_id_loop(m->to);
  return WEFTI_LIKELY(loop == s->index) ? route_here(s, m) : route_far(s, m, loop);
}

/* The loop of these messages has ended. */
static void refuse_chain(wefti_sched *s, weft_msg *m)
{
  while (m != NULL) {
    weft_msg *next = m->next;
    if (is_question(m) && m->type < WEFTI_MSG_CALL) {
      wefti_bounce(s, m, WEFT_E_DOWN);
    } else if (m->type == WEFTI_MSG_MONITOR) {
      wefti_monitor_add(s, m);
    } else {
      wefti_msg_free(s, m);
    }
    m = next;
  }
}

void wefti_flush(wefti_sched *s)
{
  while (s->out_dirty != 0) {
    const unsigned loop = (unsigned)__builtin_ctzll(s->out_dirty);
    const wefti_chain c = s->out[loop];
    s->out[loop] = (wefti_chain){ 0 };
    s->out_dirty &= s->out_dirty - 1;
    if (!wefti_inbox_push(&s->peers[loop]->inbox, c.newest, c.oldest)) {
      refuse_chain(s, c.newest);
    }
  }
}

/* ---- from other threads */

/* Remembers that another loop or thread waits for an answer of a.  false = no memory. */
static bool note_asker(wefti_sched *s, weft_ctx *a, const weft_msg *m)
{
  const unsigned loop = wefti_id_loop(m->from);
  if (loop == WEFTI_LOOP_OUTSIDE) {
    a->flags |= WEFTI_A_ASKED_OUTSIDE;
    return true;
  }
  if (m->from == 0 || loop == s->index || loop >= s->peer_count ||
      (a->asked_loops & (1ull << loop)) != 0) {
    return true;
  }
  weft_msg *note = wefti_msg_get(s, WEFTI_MSG_DIED, sizeof(weft_msg));
  if (note == NULL) {
    return false;
  }
  note->from = m->to;
  note->to = m->from; /* only its loop counts */
  note->next = a->died_notes;
  a->died_notes = note;
  a->asked_loops |= 1ull << loop;
  return true;
}

static void arrive(wefti_sched *s, weft_msg *m)
{
  weft_ctx *a = wefti_lookup(s, m->to);
  if (a != NULL && is_question(m) && !note_asker(s, a, m)) {
    a->far_taken += (m->flags & WEFTI_F_REMOTE) != 0;
    wefti_schedule(a);
    wefti_bounce(s, m, WEFT_E_NOMEM);
    return;
  }
  if (a != NULL && (m->flags & WEFT_MSG_F_REPLY) != 0) {
    (void)answer_here(s, a, m, true);
    return;
  }
  if (a != NULL) {
    push_charged(a, m);
    return;
  }
  if ((m->flags & WEFTI_F_REMOTE) != 0) {
    weft_ctx *slot = wefti_slot_of(s, m->to);
    (void)atomic_fetch_sub_explicit(&slot->remote, 1, memory_order_relaxed);
  }
  if (is_question(m)) {
    wefti_bounce(s, m, WEFT_E_DOWN);
  } else {
    wefti_msg_free(s, m);
  }
}

static void arrive_any(wefti_sched *s, weft_msg *m, bool closed)
{
  switch (m->type) {
  case WEFTI_MSG_CALL: {
    const wefti_call_msg call = *(const wefti_call_msg *)m;
    wefti_msg_free(s, m);
    call.fn(call.arg);
    return;
  }
  case WEFTI_MSG_SPAWN:
    wefti_outside_spawn(s, m, closed);
    return;
  case WEFTI_MSG_MONITOR:
    wefti_monitor_add(s, m);
    return;
  case WEFTI_MSG_DIED:
    wefti_ask_far_died(s, m->from);
    wefti_msg_free(s, m);
    return;
  case WEFT_MSG_ASK_FAILED:
    if ((m->flags & WEFT_MSG_F_REPLY) != 0) { /* an actor's answer like any other */
      arrive(s, m);
      return;
    }
    wefti_ask_fail_corr(s, m->to, m->corr,
                        (weft_err)((const weft_ask_failed_msg *)m)->reason);
    wefti_msg_free(s, m);
    return;
  default:
    arrive(s, m);
  }
}

void wefti_take_inbox(wefti_sched *s)
{
  weft_msg *m = wefti_inbox_take(&s->inbox);
  while (m != NULL) {
    weft_msg *next = m->next;
    arrive_any(s, m, false);
    m = next;
  }
}

void wefti_take_last(wefti_sched *s)
{
  weft_msg *m = wefti_inbox_close(&s->inbox);
  while (m != NULL) {
    weft_msg *next = m->next;
    arrive_any(s, m, true);
    m = next;
  }
}
