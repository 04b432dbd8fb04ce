/* Staging in place.  A session pauses readers from its start to its end: those of this
 * process here, those of each worker by W_START and the heartbeats after it.  What was
 * told to move bytes and is not committed leaves ranks poisoned, as they say themselves
 * when they have let go: then no weights are visible and nobody is served until a full
 * update is. */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { DRAIN_MS = 20 };

/* Of a coordinator: some replica stages so, and says it. */
static bool is_in_place(const engine *e)
{
  for (uint32_t i = 0; e->fleet.replicas != NULL && i < e->world; i++) {
    if (engine_member_usable(&e->members[i]) && e->members[i].reported.inplace != 0) {
      return true;
    }
  }
  return e->args.inplace;
}

static bool is_running(const engine *e)
{
  return e->session.state != WEFTI_IDLE && e->session.state != WEFTI_INIT &&
         e->session.state != WEFTI_ABORTING;
}

static void hold(engine *e, bool held)
{
  if (e->inplace.holding != held) {
    e->inplace.holding = held;
    if (e->args.on_hold != NULL) {
      e->args.on_hold(e->args.hold_arg, held);
    }
  }
}

/* ---- readers of this process */

static void drain(weft_ctx *ctx, engine *e)
{
  char who[160] = "";
  const uint32_t readers =
      e->args.readers == NULL ? 0 : e->args.readers(e->args.hold_arg, who, sizeof who);
  if (readers == 0) {
    engine_start_round(ctx, e);
    return;
  }
  if (weft_now_ms(ctx) + DRAIN_MS < e->call->due_ms) {
    e->inplace.drain_timer =
        weft_timer_start(ctx, DRAIN_MS, ENGINE_TAG(TIMER_DRAIN, e->session.epoch));
    return;
  }
  engine_answer a = { .err = WEFT_E_CONFLICT,
                      .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                      .phase = "drain" };
  (void)snprintf(a.message, sizeof a.message,
                 "%s failed: %" PRIu32 " reader%s of the engine's process still hold%s "
                 "what is to be written over: %s; unpin and start again; %s",
                 engine_call_name(e->call->kind), readers, readers == 1 ? "" : "s",
                 readers == 1 ? "s" : "", who, engine_unchanged(e));
  e->call->begun = false; /* it may be tried again */
  engine_op_failed(ctx, e, &a);
}

/* The start waits here: no round is under way yet. */
static bool is_draining(const engine *e)
{
  return e->args.inplace && e->session.state == WEFTI_STARTING && e->call != NULL &&
         e->round.phase == PHASE_NONE;
}

void engine_inplace_start(weft_ctx *ctx, engine *e)
{
  if (!e->args.inplace) {
    engine_start_round(ctx, e);
    return;
  }
  e->inplace.wrote = false;
  e->inplace.drain_timer = 0;
  hold(e, true);
  drain(ctx, e);
}

void engine_inplace_drain_due(weft_ctx *ctx, engine *e, uint64_t timer)
{
  if (e->inplace.drain_timer == timer && is_draining(e)) {
    e->inplace.drain_timer = 0;
    drain(ctx, e);
  }
}

void engine_inplace_rearm(weft_ctx *ctx, engine *e)
{
  if (is_draining(e) && e->inplace.drain_timer == 0) {
    drain(ctx, e);
  }
}

/* ---- bytes that are being written have no name: no label while they are, and no byte
 * while a label is on its way */

void engine_inplace_go(engine *e)
{
  e->inplace.wrote =
      e->inplace.wrote || (e->session.state == WEFTI_TRANSFERRING && is_in_place(e));
}

bool engine_inplace_update_waits(const engine *e)
{
  return e->change.pending && e->change.label && is_in_place(e);
}

bool engine_inplace_label_waits(const engine *e)
{
  const wefti_session_state s = e->session.state;
  return (s == WEFTI_TRANSFERRING && !e->inplace.wrote && is_in_place(e)) ||
         (s == WEFTI_ABORTING && e->inplace.wrote);
}

/* ---- the end of a session */

static void beat_all(weft_ctx *ctx, engine *e)
{
  for (uint32_t i = 0; i < e->world; i++) {
    engine_beat(ctx, e, i); /* at once: their readers wait */
  }
}

void engine_inplace_end(weft_ctx *ctx, engine *e)
{
  e->inplace.wrote = false;
  if (e->args.inplace && e->inplace.poisoned == 0) {
    hold(e, false);
    beat_all(ctx, e);
  }
}

void engine_inplace_healed(weft_ctx *ctx, engine *e)
{
  e->inplace.wrote = false;
  if (!e->args.inplace) {
    return;
  }
  if (e->inplace.poisoned != 0) {
    weft_log(ctx, WEFT_LOG_INFO, "a full update was committed: no rank is poisoned");
  }
  e->inplace.poisoned = 0;
  e->inplace.healed = e->session.epoch;
  hold(e, false);
}

uint64_t engine_inplace_resume(const engine *e)
{
  return e->inplace.holding ? 0 : e->epoch_last;
}

/* ---- poison */

/* What was visible is nowhere whole: as after a restart, numbers go on.  The sets stay,
 * for what a full update is. */
static void forget(engine_visible *v)
{
  v->weights_sequence = 0;
  v->digest_hi = 0;
  v->digest_lo = 0;
  v->tensors = 0;
  v->bytes = 0;
}

static void unname(engine_visible *v)
{
  (void)snprintf(v->version, sizeof v->version, "default");
  v->declared = false;
}

/* A rank's last life may have been written over by a session that ended without it, and
 * says so when it is back: labels can be on their way then. */
bool engine_inplace_unnamed(engine *e)
{
  if (e->inplace.poisoned == 0) {
    return false;
  }
  unname(&e->visible);
  return true;
}

static void forget_visible(engine *e)
{
  unname(&e->visible);
  forget(&e->visible);
  if (e->change.pending && e->change.label) {
    forget(&e->change.next); /* its record is being written: engine_inplace_unnamed */
  }
  for (uint32_t i = 0; i < e->world; i++) {
    engine_member *m = &e->members[i];
    m->digest_hi = 0;
    m->digest_lo = 0;
    m->state = m->state == MEMBER_READY ? MEMBER_BEHIND : m->state;
  }
}

/* A rank whose memory went with its process holds nothing that could be poisoned. */
void engine_inplace_why(const engine *e, char *out, size_t cap)
{
  const engine_member *was = &e->members[e->inplace.poisoned_rank];
  char id[64];
  engine_session_id(e, e->inplace.poisoned, id, sizeof id);
  for (uint32_t i = 0; i < e->world; i++) {
    const engine_member *m = &e->members[(e->inplace.poisoned_rank + i) % e->world];
    if (engine_member_usable(m) && m->reported.poisoned != 0) {
      (void)snprintf(out, cap,
                     "rank %" PRIu32 " is poisoned: session %s wrote over its weights in "
                     "place and was not committed; a full update brings it back",
                     m->rank, id);
      return;
    }
  }
  (void)snprintf(out, cap,
                 "no weights are live: session %s wrote over those of rank %" PRIu32
                 " in place and was not committed, and that rank lost them since (it is "
                 "%s%s%.80s); a full update brings it back",
                 id, was->rank, engine_member_state_name(was->state),
                 was->why[0] == '\0' ? "" : ": ", was->why);
}

void engine_inplace_report(weft_ctx *ctx, engine *e, engine_member *m, uint64_t epoch)
{
  m->reported.poisoned = epoch;
  if (!e->args.inplace || epoch <= e->inplace.healed ||
      (is_running(e) && epoch == e->session.epoch) || e->inplace.poisoned != 0) {
    return; /* whole, healed since, may become whole yet, or known */
  }
  char why[ENGINE_POISON_TEXT];
  e->inplace.poisoned = epoch;
  e->inplace.poisoned_rank = m->rank;
  engine_inplace_why(e, why, sizeof why);
  weft_log(ctx, WEFT_LOG_ERROR, "%s", why);
  forget_visible(e);
  engine_upstream_judge(ctx, e); /* its fleet's weights are not here any more */
  hold(e, true);
  engine_event_worker(ctx, e, m, "poisoned");
  engine_event_status(ctx, e);
}

bool engine_inplace_unfit(const engine *e, char *reason, size_t cap)
{
  if (e->inplace.poisoned != 0) {
    engine_inplace_why(e, reason, cap);
    return true;
  }
  if (e->inplace.wrote) {
    (void)snprintf(reason, cap,
                   "weights are being written over in place; ready when the update is "
                   "committed");
    return true;
  }
  return false;
}

const char *engine_unchanged(const engine *e)
{
  if (e->inplace.poisoned != 0) {
    return "the weights stay poisoned until a full update is committed";
  }
  if (!e->inplace.wrote) {
    return "weights and version are unchanged";
  }
  return e->fleet.replicas == NULL
             ? "no version is live: ranks that had begun to write in place are poisoned "
               "until a full update is committed"
             : "replicas that had begun to write in place are poisoned until a full "
               "update is committed";
}
