#include "scheduler.h"

#include <stdlib.h>
#include <string.h>

#define KEY_INDEX_MASK 0xffffffu
#define KEY_DEAD UINT64_MAX /* question of an actor that ends for want of memory */

static uint32_t entry_count(const wefti_sched *s)
{
  return s->entry_chunk_count * (uint32_t)WEFTI_ENTRY_CHUNK;
}

static void next_key(wefti_entry *e)
{
  e->key += 1ull << WEFTI_KEY_INDEX_BITS;
  if (e->key >> WEFTI_KEY_INDEX_BITS == 0 || e->key == KEY_DEAD) {
    e->key = (e->key & KEY_INDEX_MASK) | (1ull << WEFTI_KEY_INDEX_BITS);
  }
}

static bool add_chunk(wefti_sched *s)
{
  const uint32_t first = entry_count(s);
  if (first + WEFTI_ENTRY_CHUNK > KEY_INDEX_MASK - WEFTI_ENTRY_RESERVE) {
    return false;
  }
  if (s->entry_chunk_count == s->entry_chunk_cap) {
    const uint32_t cap = s->entry_chunk_cap == 0 ? 16 : 2 * s->entry_chunk_cap;
    wefti_entry **grown = realloc((void *)s->entry_chunks, cap * sizeof(void *));
    if (grown == NULL) {
      return false;
    }
    s->entry_chunks = grown;
    s->entry_chunk_cap = cap;
  }
  wefti_entry *chunk = calloc(WEFTI_ENTRY_CHUNK, sizeof *chunk);
  if (chunk == NULL) {
    return false;
  }
  s->entry_chunks[s->entry_chunk_count++] = chunk;
  for (uint32_t i = WEFTI_ENTRY_CHUNK; i-- > 0;) {
    chunk[i].key = first + i;
    chunk[i].own_next = s->entry_free;
    s->entry_free = &chunk[i];
  }
  return true;
}

bool wefti_entries_init(wefti_sched *s)
{
  s->reserve = calloc(WEFTI_ENTRY_RESERVE, sizeof *s->reserve);
  if (s->reserve == NULL) {
    return false;
  }
  for (uint32_t i = WEFTI_ENTRY_RESERVE; i-- > 0;) {
    s->reserve[i].key = KEY_INDEX_MASK - i;
    s->reserve[i].reserve = true;
    s->reserve[i].own_next = s->reserve_free;
    s->reserve_free = &s->reserve[i];
  }
  return true;
}

void wefti_entries_fini(wefti_sched *s)
{
  for (uint32_t i = 0; i < s->entry_chunk_count; i++) {
    free(s->entry_chunks[i]);
  }
  free((void *)s->entry_chunks);
  free(s->reserve);
}

/* Takes the first entry of list (not empty) for owner, state OPEN. */
static inline wefti_entry *entry_take(weft_ctx *owner, wefti_entry **list)
{
  wefti_entry *e = *list;
  *list = e->own_next;
  next_key(e);
  e->state = WEFTI_ENTRY_OPEN;
  e->owner = owner;
  e->own_next = owner->own;
  if (e->own_next != NULL) {
    e->own_next->own_pprev = &e->own_next;
  }
  e->own_pprev = &owner->own;
  owner->own = e;
  return e;
}

/* NULL = out of memory. */
static inline wefti_entry *entry_get(weft_ctx *owner)
{
  wefti_sched *s = owner->sched;
  if (WEFTI_UNLIKELY(s->hooks != NULL) && s->hooks->alloc_fails(s->hooks->arg)) {
    return NULL;
  }
  if (WEFTI_UNLIKELY(s->entry_free == NULL) && !add_chunk(s)) {
    return NULL;
  }
  return entry_take(owner, &s->entry_free);
}

static void unlink_peer(wefti_entry *e)
{
  if (e->peer_pprev != NULL) {
    *e->peer_pprev = e->peer_next;
    if (e->peer_next != NULL) {
      e->peer_next->peer_pprev = e->peer_pprev;
    }
    e->peer_pprev = NULL;
  }
}

static void link_peer(wefti_entry *e, wefti_entry **list)
{
  e->peer_next = *list;
  if (e->peer_next != NULL) {
    e->peer_next->peer_pprev = &e->peer_next;
  }
  e->peer_pprev = list;
  *list = e;
}

void wefti_entry_put(wefti_sched *s, wefti_entry *e)
{
  wefti_wheel_remove(&s->wheel, &e->node);
  unlink_peer(e);
  *e->own_pprev = e->own_next;
  if (e->own_next != NULL) {
    e->own_next->own_pprev = e->own_pprev;
  }
  e->state = WEFTI_ENTRY_FREE;
  e->owner = NULL;
  wefti_entry **list = e->reserve ? &s->reserve_free : &s->entry_free;
  e->own_next = *list;
  *list = e;
}

/* ---- questions */

void wefti_ask_fail(wefti_entry *e, weft_err reason)
{
  weft_ctx *a = e->owner;
  wefti_wheel_remove(&a->sched->wheel, &e->node);
  unlink_peer(e);
  e->state = WEFTI_ENTRY_FIRED;
  e->msg.failed = (weft_ask_failed_msg){
    .h = { .type = WEFT_MSG_ASK_FAILED,
           .home = WEFTI_HOME_EMBEDDED,
           .from = e->peer,
           .to = atomic_load_explicit(&a->id, memory_order_relaxed),
           .corr = e->key },
    .reason = (uint32_t)reason,
    .asked = e->asked,
  };
  wefti_push_exempt(a, &e->msg.h);
}

void wefti_ask_fail_corr(wefti_sched *s, weft_actor_id to, uint64_t corr, weft_err reason)
{
  wefti_entry *e = wefti_entry_find(s, corr);
  if (e != NULL && !e->is_timer && e->state == WEFTI_ENTRY_OPEN &&
      atomic_load_explicit(&e->owner->id, memory_order_relaxed) == to) {
    wefti_ask_fail(e, reason);
  }
}

static wefti_entry **far_bucket(wefti_sched *s, weft_actor_id peer)
{
  return &s->far_asked[(wefti_id_slot(peer) + wefti_id_loop(peer)) % WEFTI_FAR_BUCKETS];
}

/* Fails the questions of list that were put to who, in the order they were asked. */
static void fail_all(wefti_entry *list, weft_actor_id who)
{
  wefti_entry *oldest = NULL;
  wefti_entry *next;
  for (wefti_entry *e = list; e != NULL; e = next) { /* newest first */
    next = e->peer_next;
    if (e->peer == who && e->state == WEFTI_ENTRY_OPEN) {
      unlink_peer(e);
      e->peer_next = oldest;
      oldest = e;
    }
  }
  for (wefti_entry *e = oldest; e != NULL; e = next) {
    next = e->peer_next;
    wefti_ask_fail(e, WEFT_E_DOWN);
  }
}

void wefti_ask_far_died(wefti_sched *s, weft_actor_id who)
{
  fail_all(*far_bucket(s, who), who);
}

void wefti_ask_died(weft_ctx *a, weft_actor_id who)
{
  fail_all(a->asked, who);
  while (a->asked != NULL) { /* answered ones; their entries live on */
    unlink_peer(a->asked);
  }
}

static void ask_timed_out(wefti_wnode *node)
{
  wefti_ask_fail((wefti_entry *)node, WEFT_E_TIMEOUT); /* node is the first member */
}

/* There is no memory for the question or its entry: it fails by means of the reserve.  If
 * that is used up too, exactly one end is kept by ending the asker. */
static uint64_t ask_in_need(weft_ctx *a, weft_actor_id to, wefti_entry *e, weft_msg *msg)
{
  wefti_sched *s = a->sched;
  const uint16_t asked = msg == NULL ? 0 : msg->type;
  if (msg != NULL) {
    wefti_msg_free(s, msg);
  }
  if (e == NULL && s->reserve_free != NULL) {
    e = entry_take(a, &s->reserve_free);
  }
  if (e == NULL) {
    weft_stop(a, WEFT_E_NOMEM);
    return KEY_DEAD;
  }
  e->peer = to;
  e->is_timer = false;
  e->asked = asked;
  wefti_ask_fail(e, WEFT_E_NOMEM);
  return e->key;
}

uint64_t weft_ask(weft_ctx *a, weft_actor_id to, weft_msg *msg, uint64_t timeout_ms)
{
  wefti_sched *s = a->sched;
  if (WEFTI_UNLIKELY((a->flags & WEFTI_A_MUTED) != 0)) {
    if (msg != NULL) {
      wefti_msg_free(s, msg);
    }
    return KEY_DEAD;
  }
  wefti_entry *e = entry_get(a);
  if (WEFTI_UNLIKELY(e == NULL || msg == NULL)) {
    return ask_in_need(a, to, e, msg);
  }
  const uint64_t key = e->key;
  const bool here = wefti_id_loop(to) == s->index;
  uint64_t due_ms = timeout_ms == 0 ? 0 : wefti_now_ms(s) + timeout_ms;
  if (due_ms < timeout_ms) {
    due_ms = WEFTI_WHEEL_NEVER - 1;
  }
  e->peer = to;
  e->is_timer = false;
  e->asked = msg->type;
  msg->from = weft_self(a);
  msg->to = to;
  msg->corr = key;
  msg->due_ms = due_ms;
  msg->flags &= WEFT_MSG_F_RESERVED | WEFT_MSG_F_DEEP;
  if (!here) { /* before it leaves: its failure may come back from flush at once */
    link_peer(e, far_bucket(s, to));
  }
  const weft_err err = wefti_route(s, msg);
  if (WEFTI_UNLIKELY(e->state != WEFTI_ENTRY_OPEN)) {
    return key;
  }
  if (WEFTI_UNLIKELY(err != WEFT_OK)) {
    wefti_ask_fail(e, err);
    return key;
  }
  weft_ctx *target = here ? wefti_slot_of(s, to) : NULL;
  if (WEFTI_LIKELY(target != NULL)) {
    link_peer(e, &target->asked);
  }
  if (due_ms != 0) {
    e->node.fire = ask_timed_out;
    wefti_wheel_add(&s->wheel, &e->node, due_ms);
  }
  return key;
}

/* For entries whose own message waits in the mailbox the memory is not free yet. */
static void forget(weft_ctx *a, uint64_t key, bool timer)
{
  wefti_entry *e = wefti_entry_find(a->sched, key);
  if (e == NULL || e->owner != a || e->is_timer != timer) {
    return;
  }
  if (e->state == WEFTI_ENTRY_FIRED) {
    e->state = WEFTI_ENTRY_CANCELLED;
  } else if (e->state != WEFTI_ENTRY_CANCELLED) {
    wefti_entry_put(a->sched, e);
  }
}

void weft_ask_cancel(weft_ctx *a, uint64_t corr)
{
  forget(a, corr, false);
}

/* There is no memory for the answer: the asker learns that at least. */
static void reply_nothing(weft_ctx *a, weft_return to)
{
  wefti_sched *s = a->sched;
  if (wefti_id_loop(to.to) == s->index) {
    wefti_ask_fail_corr(s, to.to, to.corr, WEFT_E_LOST);
    return;
  }
  weft_msg *m = wefti_msg_get(s, 0, sizeof(weft_ask_failed_msg));
  if (m == NULL) {
    weft_stop(a, WEFT_E_NOMEM); /* the notice of its end exists already */
    return;
  }
  m->from = to.to; /* as if the question came back */
  m->to = weft_self(a);
  m->corr = to.corr;
  wefti_bounce(s, m, WEFT_E_LOST);
}

weft_err weft_reply(weft_ctx *a, weft_return to, weft_msg *msg)
{
  wefti_sched *s = a->sched;
  if (to.corr == 0 || to.to == 0 || (a->flags & WEFTI_A_MUTED) != 0) {
    if (msg != NULL) {
      wefti_msg_free(s, msg);
    }
    return WEFT_OK;
  }
  if (msg == NULL) {
    reply_nothing(a, to);
    return WEFT_E_NOMEM;
  }
  msg->from = atomic_load_explicit(&a->id, memory_order_relaxed);
  msg->to = to.to;
  msg->corr = to.corr;
  msg->flags &= WEFT_MSG_F_DEEP;
  msg->flags |= WEFT_MSG_F_REPLY | WEFT_MSG_F_RESERVED;
  return wefti_route(s, msg);
}

/* ---- timers */

static void timer_fired(wefti_wnode *node)
{
  wefti_entry *e = (wefti_entry *)node; /* node is the first member */
  e->state = WEFTI_ENTRY_FIRED;
  wefti_push_exempt(e->owner, &e->msg.h);
}

uint64_t weft_timer_start(weft_ctx *a, uint64_t after_ms, uint64_t tag)
{
  wefti_sched *s = a->sched;
  wefti_entry *e = entry_get(a);
  if (e == NULL) {
    return 0;
  }
  const uint64_t now = wefti_now_ms(s);
  e->is_timer = true;
  e->peer = 0;
  e->msg.timer = (weft_timer_msg){
    .h = { .type = WEFT_MSG_TIMER,
           .home = WEFTI_HOME_EMBEDDED,
           .from = atomic_load_explicit(&a->id, memory_order_relaxed),
           .to = atomic_load_explicit(&a->id, memory_order_relaxed) },
    .id = e->key,
    .tag = tag,
  };
  e->node.fire = timer_fired;
  wefti_wheel_add(&s->wheel, &e->node,
                  after_ms > WEFTI_WHEEL_NEVER - 1 - now ? WEFTI_WHEEL_NEVER - 1
                                                         : now + after_ms);
  return e->key;
}

void weft_timer_cancel(weft_ctx *a, uint64_t id)
{
  forget(a, id, true);
}
