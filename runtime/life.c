#include "scheduler.h"

#include <stdlib.h>
#include <string.h>

/* ---- slots */

static weft_ctx *slot_get(wefti_sched *s)
{
  if (s->slot_free == NULL) {
    const uint32_t chunk = s->slot_count / WEFTI_SLOT_CHUNK;
    if (chunk >= WEFTI_SLOT_CHUNKS) {
      return NULL;
    }
    weft_ctx *slots = aligned_alloc(_Alignof(weft_ctx), WEFTI_SLOT_CHUNK * sizeof *slots);
    if (slots == NULL) {
      return NULL;
    }
    memset(slots, 0, WEFTI_SLOT_CHUNK * sizeof *slots);
    for (uint32_t i = WEFTI_SLOT_CHUNK; i-- > 0;) {
      slots[i].slot = s->slot_count + i;
      slots[i].sched = s;
      slots[i].free_next = s->slot_free;
      s->slot_free = &slots[i];
    }
    s->slot_count += WEFTI_SLOT_CHUNK;
    atomic_store_explicit(&s->slots[chunk], slots, memory_order_release);
  }
  weft_ctx *a = s->slot_free;
  s->slot_free = a->free_next;
  a->gen++;
  return a;
}

void wefti_slot_release(weft_ctx *a)
{
  if (a->gen < WEFTI_GEN_MAX) { /* else never again: its identities are used up */
    a->free_next = a->sched->slot_free;
    a->sched->slot_free = a;
  }
}

static void set_actors(wefti_sched *s)
{
  atomic_store_explicit(&s->counters.actors, s->actors, memory_order_relaxed);
}

/* ---- birth */

static void link_child(weft_ctx *parent, weft_ctx *a)
{
  a->parent = parent;
  a->sib_prev = NULL;
  a->sib_next = NULL;
  if (parent != NULL) {
    a->sib_next = parent->child; /* newest first */
    if (a->sib_next != NULL) {
      a->sib_next->sib_prev = a;
    }
    parent->child = a;
  }
}

static void unlink_child(weft_ctx *a)
{
  if (a->parent == NULL) {
    return;
  }
  if (a->sib_prev != NULL) {
    a->sib_prev->sib_next = a->sib_next;
  } else {
    a->parent->child = a->sib_next;
  }
  if (a->sib_next != NULL) {
    a->sib_next->sib_prev = a->sib_prev;
  }
}

static uint32_t clamp(size_t v, uint32_t otherwise, uint32_t max)
{
  if (v == 0) {
    return otherwise;
  }
  return v > max ? max : (uint32_t)v;
}

/* State and a copy of the name in one block; they live as long. */
static void *make_state(wefti_sched *s, const weft_actor_class *cls, const char *name,
                        const char **copy)
{
  const size_t size = (cls->state_size + 15) & ~(size_t)15;
  const size_t len = strlen(name) + 1;
  if (size < cls->state_size || size > SIZE_MAX - len) {
    return NULL;
  }
  char *state = wefti_alloc(s, size + len);
  if (state != NULL) {
    memcpy(state + size, name, len);
    *copy = state + size;
  }
  return state;
}

static weft_err prepare(weft_ctx *a, weft_ctx *parent, const weft_actor_class *cls,
                        const weft_spawn_opts *opts)
{
  wefti_sched *s = a->sched;
  const weft_spawn_opts none = { 0 };
  opts = opts == NULL ? &none : opts;
  a->cls = cls;
  a->head = NULL;
  a->tail = &a->head;
  a->flags = parent == NULL ? WEFTI_A_ROOT : 0;
  a->batch = clamp(opts->batch, WEFTI_BATCH, 1u << 16);
  a->reason = WEFT_OK;
  a->own = NULL;
  a->asked = NULL;
  a->watchers = NULL;
  a->watch_count = 0;
  a->watch_prune = 16;
  a->asked_loops = 0;
  a->died_notes = NULL;
  a->child = NULL;
  a->down = NULL;
  a->far_taken = 0;
  atomic_store_explicit(&a->limit, clamp(opts->mailbox, WEFTI_MAILBOX, 1u << 24),
                        memory_order_relaxed);
  atomic_store_explicit(&a->depth, 0, memory_order_relaxed);
  a->state = make_state(s, cls, opts->name != NULL ? opts->name : cls->name, &a->name);
  if (a->state == NULL) {
    return WEFT_E_NOMEM;
  }
  if (parent != NULL) {
    a->down = wefti_msg_get(s, WEFT_MSG_DOWN, sizeof(weft_down_msg));
    if (a->down == NULL) {
      free(a->state);
      return WEFT_E_NOMEM;
    }
  }
  return WEFT_OK;
}

weft_err wefti_spawn(wefti_sched *s, weft_ctx *parent, const weft_actor_class *cls,
                     const void *args, const weft_spawn_opts *opts, weft_actor_id *out)
{
  if (s->closing) {
    return WEFT_E_CLOSED;
  }
  if (parent != NULL && (parent->flags & WEFTI_A_ENDING) != 0) {
    return WEFT_E_STATE;
  }
  weft_ctx *a = slot_get(s);
  if (a == NULL) {
    return WEFT_E_NOMEM;
  }
  weft_err err = prepare(a, parent, cls, opts);
  if (err != WEFT_OK) {
    wefti_slot_release(a);
    return err;
  }
  const weft_actor_id id = wefti_id_make(s->index, a->gen, a->slot);
  link_child(parent, a);
  atomic_store_explicit(&a->id, id, memory_order_release);
  s->actors++;
  set_actors(s);
  if (parent == NULL && s->rt != NULL) {
    err = wefti_root_add(s->rt, id);
  }
  if (err == WEFT_OK && cls->init != NULL) {
    err = cls->init(a, a->state, args);
  }
  if (err != WEFT_OK) {
    if (a->down != NULL) { /* the caller has the error; no DOWN */
      wefti_msg_free(s, a->down);
      a->down = NULL;
    }
    wefti_end(a, err);
    return err;
  }
  *out = id;
  return WEFT_OK;
}

weft_err weft_spawn(weft_ctx *ctx, const weft_actor_class *cls, const void *args,
                    const weft_spawn_opts *opts, weft_actor_id *out)
{
  return wefti_spawn(ctx->sched, ctx, cls, args, opts, out);
}

/* ---- monitors */

static void tell_down(wefti_sched *s, weft_msg *note, weft_err reason)
{
  const weft_actor_id watcher = note->from;
  note->type = WEFT_MSG_DOWN;
  note->from = note->to;
  note->to = watcher;
  ((weft_down_msg *)note)->who = note->from;
  ((weft_down_msg *)note)->reason = (uint32_t)reason;
  const unsigned loop = wefti_id_loop(watcher);
  if (loop != s->index) {
    note->flags = WEFT_MSG_F_RESERVED;
    wefti_far_exempt(s, loop, note);
    return;
  }
  weft_ctx *a = wefti_lookup(s, watcher);
  if (a == NULL) {
    wefti_msg_free(s, note);
  } else {
    wefti_push_exempt(a, note);
  }
}

static bool may_live(wefti_sched *s, weft_actor_id id)
{
  const weft_ctx *a = wefti_slot_of(s->peers[wefti_id_loop(id)], id);
  return a != NULL && atomic_load_explicit(&a->id, memory_order_acquire) == id;
}

/* Forgets watchers that have ended, whenever the list has doubled. */
static void prune_watchers(weft_ctx *a)
{
  wefti_sched *s = a->sched;
  weft_msg **at = &a->watchers;
  while (*at != NULL) {
    weft_msg *note = *at;
    if (may_live(s, note->from)) {
      at = &note->next;
    } else {
      *at = note->next;
      wefti_msg_free(s, note);
      a->watch_count--;
    }
  }
  a->watch_prune = 2 * a->watch_count + 16;
}

void wefti_monitor_add(wefti_sched *s, weft_msg *note)
{
  weft_ctx *a = wefti_lookup(s, note->to);
  if (a == NULL || (a->flags & WEFTI_A_ENDING) != 0) {
    tell_down(s, note, WEFT_E_DOWN);
    return;
  }
  note->next = a->watchers;
  a->watchers = note;
  if (++a->watch_count >= a->watch_prune) {
    prune_watchers(a);
  }
}

weft_err weft_monitor(weft_ctx *ctx, weft_actor_id who)
{
  wefti_sched *s = ctx->sched;
  weft_msg *note = wefti_msg_get(s, WEFTI_MSG_MONITOR, sizeof(weft_down_msg));
  if (note == NULL) {
    return WEFT_E_NOMEM;
  }
  note->from = weft_self(ctx);
  note->to = who;
  const unsigned loop = wefti_id_loop(who);
  if (loop == s->index || loop >= s->peer_count) {
    wefti_monitor_add(s, note);
  } else {
    wefti_far_exempt(s, loop, note);
  }
  return WEFT_OK;
}

/* ---- end */

static void drain_mailbox(weft_ctx *a)
{
  unsigned far = a->far_taken;
  while (a->head != NULL) {
    weft_msg *m = a->head;
    a->head = m->next;
    far += (m->flags & WEFTI_F_REMOTE) != 0;
    wefti_msg_free(a->sched, m);
  }
  a->tail = &a->head;
  a->far_taken = 0;
  if (far != 0) {
    (void)atomic_fetch_sub_explicit(&a->remote, far, memory_order_relaxed);
  }
}

/* Whoever waits for a learns that it is in vain. */
static void notify_end(weft_ctx *a, weft_actor_id id, weft_err reason)
{
  wefti_sched *s = a->sched;
  wefti_ask_died(a, id);
  while (a->died_notes != NULL) {
    weft_msg *note = a->died_notes;
    a->died_notes = note->next;
    wefti_far_exempt(s, wefti_id_loop(note->to), note);
  }
  if ((a->flags & WEFTI_A_ASKED_OUTSIDE) != 0) {
    wefti_outside_died(s->rt, id);
  }
  while (a->watchers != NULL) {
    weft_msg *note = a->watchers;
    a->watchers = note->next;
    tell_down(s, note, reason);
  }
  if (a->down != NULL) {
    a->down->from = weft_self(a->parent); /* as if the parent had asked for it */
    a->down->to = id;
    tell_down(s, a->down, reason);
    a->down = NULL;
  }
}

static void end_one(weft_ctx *a, weft_err reason)
{
  wefti_sched *s = a->sched;
  const weft_actor_id id = weft_self(a);
  if (a->cls->fini != NULL) {
    a->cls->fini(a, a->state);
  }
  drain_mailbox(a);
  while (a->own != NULL) {
    wefti_entry_put(s, a->own);
  }
  a->flags |= WEFTI_A_MUTED;
  atomic_store_explicit(&a->id, 0, memory_order_release);
  notify_end(a, id, reason);
  unlink_child(a);
  if (reason != WEFT_OK && reason != WEFT_E_CANCELLED) {
    wefti_logf(s, a->name, WEFT_LOG_DEBUG, "ended reason=%s", weft_err_name(reason));
  }
  free(a->state);
  a->state = NULL;
  s->actors--;
  set_actors(s);
  if ((a->flags & WEFTI_A_ROOT) != 0 && s->rt != NULL) {
    wefti_root_ended(s->rt, id);
  }
  if (!a->scheduled) {
    wefti_slot_release(a);
  }
}

void wefti_end(weft_ctx *a, weft_err reason)
{
  if ((a->flags & WEFTI_A_ENDING) != 0) {
    return;
  }
  for (;;) {
    weft_ctx *x = a;
    const uint32_t muted = a->flags & WEFTI_A_MUTED;
    x->flags |= WEFTI_A_ENDING;
    while (x->child != NULL) {
      x = x->child;
      x->flags |= WEFTI_A_ENDING | muted;
    }
    if (x == a) {
      break;
    }
    end_one(x, WEFT_E_CANCELLED);
  }
  end_one(a, reason);
}

void wefti_end_all(wefti_sched *s, weft_err reason)
{
  for (uint32_t i = s->slot_count; i-- > 0;) {
    weft_ctx *a = wefti_slot_of(s, i);
    if (weft_self(a) != 0 && a->parent == NULL) {
      wefti_end(a, reason);
    }
  }
}

void weft_stop(weft_ctx *ctx, weft_err reason)
{
  if ((ctx->flags & (WEFTI_A_STOPPING | WEFTI_A_ENDING)) == 0) {
    ctx->flags |= WEFTI_A_STOPPING;
    ctx->reason = reason;
    wefti_schedule(ctx);
  }
}

void weft_stop_other(weft_ctx *ctx, weft_actor_id who)
{
  wefti_sched *s = ctx->sched;
  weft_ctx *a = wefti_lookup(s, who);
  if (a == NULL || (a->flags & WEFTI_A_ENDING) != 0) {
    return;
  }
  weft_msg *stop = wefti_msg_get(s, WEFT_MSG_STOP, sizeof(weft_msg));
  if (stop == NULL) {
    weft_stop(a, WEFT_E_NOMEM); /* no memory to ask it kindly */
    return;
  }
  stop->from = weft_self(ctx);
  stop->to = who;
  wefti_push_exempt(a, stop);
}
