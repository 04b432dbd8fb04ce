/* The lives of ranks: each has a seat, whoever sits there starts, gets ready, ends. */
#include "supervisor.h"

#include "supervisor_priv.h"
#include "weft/checked.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
  RESTART_MIN_MS = 50,
  RESTART_MAX_MS = 5000,
  READY_MS = 10000,
  HEALTHY_MS = 10000 /* ready for so long: the next failure is a new story */
};

/* ---- lives of children */

static void disarm(weft_ctx *ctx, seat *s)
{
  weft_timer_cancel(ctx, s->timer);
  s->timer = 0;
}

static void drop_link(weft_ctx *ctx, seat *s)
{
  const weft_actor_id link = s->link;
  s->link = 0;                                      /* its DOWN is no news any more */
  if (link != 0 && s->kind != WEFT_MEMBER_THREAD) { /* that is the worker itself */
    weft_stop_other(ctx, link);
  }
}

static void end_child(weft_ctx *ctx, supervisor *self, uint32_t rank)
{
  seat *s = &self->seats[rank];
  disarm(ctx, s);
  drop_link(ctx, s);
  s->state = SEAT_ENDING;
  self->args.ops.kill(self->args.ops.arg, rank, s->incarnation);
}

static uint64_t new_incarnation(weft_ctx *ctx)
{
  uint64_t n;
  do {
    n = weft_random(ctx);
  } while (n == 0);
  return n;
}

static void rest(weft_ctx *ctx, supervisor *self, uint32_t rank);

static void start_child(weft_ctx *ctx, supervisor *self, uint32_t rank)
{
  seat *s = &self->seats[rank];
  if (!supervisor_pay_owed(ctx, self, rank)) {
    rest(ctx, self, rank);
    return;
  }
  s->incarnation = new_incarnation(ctx);
  s->kind = WEFT_MEMBER_CHILD;
  s->state = SEAT_STARTING;
  weft_why why = { .text = "" };
  const weft_err err =
      self->args.ops.spawn(self->args.ops.arg, rank, s->incarnation, &why);
  if (err != WEFT_OK) {
    weft_log(ctx, WEFT_LOG_ERROR, "worker cannot be started: %s rank=%" PRIu32,
             why.text[0] == '\0' ? weft_strerror(err) : why.text, rank);
    supervisor_not_started(ctx, self, rank,
                           why.text[0] == '\0' ? weft_strerror(err) : why.text);
    s->incarnation = 0;
    rest(ctx, self, rank);
    return;
  }
  s->timer = weft_timer_start(ctx, self->args.ready_ms, rank);
  if (s->timer == 0) { /* nobody would notice that it hangs */
    end_child(ctx, self, rank);
  }
}

/* Waits for its back-off, which doubles.  A timer that cannot be had is asked for again
 * with every message: see rearm. */
static void rest(weft_ctx *ctx, supervisor *self, uint32_t rank)
{
  seat *s = &self->seats[rank];
  const wefti_supervisor_args *a = &self->args;
  const uint32_t wait = s->backoff_ms;
  s->backoff_ms = wait > a->restart_max_ms / 2 ? a->restart_max_ms : wait * 2;
  s->state = SEAT_RESTING;
  s->timer = weft_timer_start(ctx, wait, rank);
}

/* After every message: what has no timer for want of memory tries once more, and a rank
 * that still has none starts at once rather than never. */
static void rearm(weft_ctx *ctx, supervisor *self)
{
  if (self->owing && self->owed_timer == 0) {
    self->owed_timer = weft_timer_start(ctx, SUPERVISOR_OWED_MS, 0);
  }
  for (uint32_t rank = 0; rank < self->args.world_size && !self->stopping; rank++) {
    seat *s = &self->seats[rank];
    if (s->state != SEAT_RESTING || s->timer != 0) {
      continue;
    }
    s->timer = weft_timer_start(ctx, s->backoff_ms, rank);
    if (s->timer == 0) {
      start_child(ctx, self, rank);
    }
  }
}

/* After a long good time the next back-off is the least again. */
static void judge_health(weft_ctx *ctx, supervisor *self, seat *s)
{
  if (s->state == SEAT_READY && weft_now_ms(ctx) - s->ready_at_ms >= HEALTHY_MS) {
    s->backoff_ms = self->args.restart_min_ms;
  }
}

static void stop_when_empty(weft_ctx *ctx, const supervisor *self)
{
  for (uint32_t rank = 0; rank < self->args.world_size; rank++) {
    const seat_state state = self->seats[rank].state;
    if (state == SEAT_STARTING || state == SEAT_READY || state == SEAT_ENDING) {
      return;
    }
  }
  weft_stop(ctx, WEFT_OK);
}

/* What is known of a member whose process is certainly gone. */
static void on_proc_exit(weft_ctx *ctx, supervisor *self, const weft_proc_exit *m)
{
  if (m->rank >= self->args.world_size || m->incarnation == 0) {
    return;
  }
  seat *s = &self->seats[m->rank];
  const char *why = m->why.len > 0 ? m->why.p : "exited";
  if (m->incarnation != s->incarnation) {
    return; /* of a newcomer that was refused */
  }
  weft_log(ctx, self->stopping ? WEFT_LOG_INFO : WEFT_LOG_WARN,
           "worker has ended: %s rank=%" PRIu32, why, m->rank);
  judge_health(ctx, self, s);
  disarm(ctx, s);
  drop_link(ctx, s);
  if (s->announced) {
    supervisor_member_down(ctx, self, m->rank, true, why);
  } else if (!self->stopping) {
    supervisor_not_started(ctx, self, m->rank, why);
  }
  s->announced = false;
  s->incarnation = 0;
  if (self->stopping || s->kind != WEFT_MEMBER_CHILD) {
    s->state = SEAT_VACANT;
  } else {
    rest(ctx, self, m->rank);
  }
  if (self->stopping) {
    stop_when_empty(ctx, self);
  }
}

/* ---- members */

static void lose_member(weft_ctx *ctx, supervisor *self, uint32_t rank, const char *why)
{
  seat *s = &self->seats[rank];
  judge_health(ctx, self, s);
  if (s->announced) {
    supervisor_member_down(ctx, self, rank, false, why);
  }
  if (s->kind == WEFT_MEMBER_CHILD) {
    end_child(ctx, self, rank); /* announced stays: the fenced down follows its exit */
    return;
  }
  drop_link(ctx, s);
  s->state = SEAT_VACANT; /* an exit that is heard of later still fences it */
}

/* The reason why this newcomer may not have its rank; NULL = it may. */
static const char *objection(weft_ctx *ctx, supervisor *self, const weft_proc_ready *m)
{
  if (m->rank >= self->args.world_size || m->world_size != self->args.world_size) {
    return "its rank or world size is not of this engine";
  }
  if (self->stopping || m->incarnation == 0) {
    return self->stopping ? "the engine is shutting down" : "it has no incarnation";
  }
  const seat *s = &self->seats[m->rank];
  if (m->kind == WEFT_MEMBER_CHILD || self->args.children) {
    return s->state == SEAT_STARTING && s->incarnation == m->incarnation &&
                   m->kind == WEFT_MEMBER_CHILD
               ? NULL
               : "the rank belongs to another life";
  }
  if (s->state != SEAT_VACANT) {
    return "the rank is taken by a living worker";
  }
  return supervisor_pay_owed(ctx, self, m->rank)
             ? NULL
             : "the engine must first hear of the last one";
}

static void refuse(weft_ctx *ctx, supervisor *self, const weft_proc_ready *m,
                   const char *why)
{
  weft_log(ctx, WEFT_LOG_WARN, "worker is not let in: %s rank=%" PRIu32 " pid=%" PRIu32,
           why, m->rank, m->pid);
  if (m->kind == WEFT_MEMBER_CHILD) {
    self->args.ops.kill(self->args.ops.arg, m->rank, m->incarnation);
  }
}

/* From the newcomer to a link that is watched and a member that is announced. */
static weft_err take_in(weft_ctx *ctx, supervisor *self, const weft_proc_ready *m)
{
  seat *s = &self->seats[m->rank];
  weft_actor_id link;
  weft_err err = self->args.ops.connect(self->args.ops.arg, ctx,
                                        m->url.len > 0 ? m->url.p : "", &link);
  if (err != WEFT_OK) {
    return err;
  }
  s->link = link;
  err = weft_monitor(ctx, link);
  return err != WEFT_OK ? err : supervisor_announce(ctx, self, m);
}

static void on_proc_ready(weft_ctx *ctx, supervisor *self, const weft_proc_ready *m)
{
  if (m->rank < self->args.world_size && m->incarnation != 0 &&
      self->seats[m->rank].incarnation == m->incarnation &&
      self->seats[m->rank].state == SEAT_READY) {
    return; /* said twice */
  }
  const char *why = objection(ctx, self, m);
  if (why != NULL) {
    refuse(ctx, self, m, why);
    return;
  }
  seat *s = &self->seats[m->rank];
  s->kind = m->kind;
  const weft_err err = take_in(ctx, self, m);
  if (err != WEFT_OK) {
    weft_log(ctx, WEFT_LOG_ERROR, "worker cannot be reached: %s rank=%" PRIu32,
             weft_strerror(err), m->rank);
    if (m->kind == WEFT_MEMBER_CHILD) {
      end_child(ctx, self, m->rank);
    } else {
      drop_link(ctx, s);
    }
    return;
  }
  disarm(ctx, s);
  s->incarnation = m->incarnation;
  s->state = SEAT_READY;
  s->announced = true;
  s->ready_at_ms = weft_now_ms(ctx);
}

static void on_member_fence(weft_ctx *ctx, supervisor *self, const weft_member_fence *m)
{
  if (m->rank >= self->args.world_size) {
    return;
  }
  seat *s = &self->seats[m->rank];
  if (m->incarnation == s->incarnation && s->state == SEAT_READY) {
    weft_log(ctx, WEFT_LOG_WARN, "worker is fenced: %s rank=%" PRIu32,
             m->why.len > 0 ? m->why.p : "no reason given", m->rank);
    if (s->kind == WEFT_MEMBER_CHILD) {
      judge_health(ctx, self, s);
      end_child(ctx, self, m->rank);
    } else {
      lose_member(ctx, self, m->rank, "fenced");
    }
    return;
  }
  /* An earlier child has exited, or this one would not be. */
  if (self->args.children && m->incarnation != s->incarnation && m->incarnation != 0) {
    const seat_owed down = { .fenced = 1, .incarnation = m->incarnation };
    (void)supervisor_tell_down(ctx, self, m->rank, &down, "exited before");
  }
}

static void on_down(weft_ctx *ctx, supervisor *self, const weft_down_msg *m)
{
  for (uint32_t rank = 0; rank < self->args.world_size; rank++) {
    seat *s = &self->seats[rank];
    if (m->who != 0 && s->link == m->who && s->state == SEAT_READY) {
      char why[96];
      s->link = 0;
      (void)snprintf(why, sizeof why, "link lost: %s",
                     weft_strerror((weft_err)m->reason));
      lose_member(ctx, self, rank, why);
      return;
    }
  }
}

static void on_timer(weft_ctx *ctx, supervisor *self, const weft_timer_msg *m)
{
  if (m->id == self->owed_timer) {
    supervisor_pay_all(ctx, self);
    return;
  }
  if (m->tag >= self->args.world_size || self->seats[m->tag].timer != m->id) {
    return;
  }
  const uint32_t rank = (uint32_t)m->tag;
  seat *s = &self->seats[rank];
  s->timer = 0;
  if (s->state == SEAT_STARTING) {
    weft_log(ctx, WEFT_LOG_ERROR,
             "worker did not get ready within %" PRIu32 " ms: it is killed rank=%" PRIu32,
             self->args.ready_ms, rank);
    end_child(ctx, self, rank);
  } else if (s->state == SEAT_RESTING && !self->stopping) {
    start_child(ctx, self, rank);
  }
}

static void on_stop(weft_ctx *ctx, supervisor *self)
{
  self->stopping = true;
  for (uint32_t rank = 0; rank < self->args.world_size; rank++) {
    seat *s = &self->seats[rank];
    disarm(ctx, s);
    if (s->state == SEAT_RESTING) {
      s->state = SEAT_VACANT;
    } else if (s->state == SEAT_READY || s->state == SEAT_STARTING) {
      if (s->kind == WEFT_MEMBER_CHILD) {
        end_child(ctx, self, rank);
      } else {
        drop_link(ctx, s);
        s->state = SEAT_VACANT;
      }
    }
  }
  stop_when_empty(ctx, self);
}

/* ---- */

static weft_err supervisor_init(weft_ctx *ctx, void *state, const void *args)
{
  supervisor *self = state;
  size_t bytes;
  wefti_supervisor_args *a = &self->args;
  *a = *(const wefti_supervisor_args *)args;
  a->restart_min_ms = a->restart_min_ms == 0 ? RESTART_MIN_MS : a->restart_min_ms;
  a->restart_max_ms = a->restart_max_ms == 0 ? RESTART_MAX_MS : a->restart_max_ms;
  a->ready_ms = a->ready_ms == 0 ? READY_MS : a->ready_ms;
  if (a->world_size == 0 || a->ops.connect == NULL ||
      a->restart_max_ms < a->restart_min_ms ||
      (a->children && (a->ops.spawn == NULL || a->ops.kill == NULL))) {
    return WEFT_E_INVAL;
  }
  const weft_err err = weft_size_mul(a->world_size, sizeof *self->seats, &bytes);
  if (err != WEFT_OK) {
    return err;
  }
  self->seats = weft_alloc(ctx, bytes);
  if (self->seats == NULL) {
    return WEFT_E_NOMEM;
  }
  for (uint32_t rank = 0; rank < a->world_size; rank++) {
    seat *s = &self->seats[rank];
    s->backoff_ms = a->restart_min_ms;
    if (a->children) { /* not from here: whoever spawns us must learn our id first */
      s->state = SEAT_RESTING;
      s->timer = weft_timer_start(ctx, 0, rank);
      if (s->timer == 0) {
        return WEFT_E_NOMEM;
      }
    }
  }
  return WEFT_OK;
}

static void supervisor_fini(weft_ctx *ctx, void *state)
{
  weft_free(ctx, ((supervisor *)state)->seats);
}

static weft_err supervisor_on(weft_ctx *ctx, void *state, const weft_msg *msg)
{
  supervisor *self = state;
  switch (msg->type) {
  case WEFT_MSG_PROC_READY:
    on_proc_ready(ctx, self, (const weft_proc_ready *)msg);
    break;
  case WEFT_MSG_PROC_EXIT:
    on_proc_exit(ctx, self, (const weft_proc_exit *)msg);
    break;
  case WEFT_MSG_MEMBER_FENCE:
    on_member_fence(ctx, self, (const weft_member_fence *)msg);
    break;
  case WEFT_MSG_DOWN:
    on_down(ctx, self, (const weft_down_msg *)msg);
    break;
  case WEFT_MSG_TIMER:
    on_timer(ctx, self, (const weft_timer_msg *)msg);
    break;
  case WEFT_MSG_STOP:
    on_stop(ctx, self);
    break;
  default:
    return WEFT_E_STATE; /* not ours: a bug in the sender */
  }
  rearm(ctx, self);
  return WEFT_OK;
}

const weft_actor_class wefti_supervisor_class = {
  .name = "supervisor",
  .state_size = sizeof(supervisor),
  .init = supervisor_init,
  .fini = supervisor_fini,
  .on = supervisor_on,
};
