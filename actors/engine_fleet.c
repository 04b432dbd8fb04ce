/* A coordinator: its workers are engines, which keep their weights when it restarts, show
 * a version of their own, and may be in doubt about a change that its journal decides. */
#include "engine.h"
#include "weft/journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { RESOLVE_MS = 10000 };

/* ---- what an earlier life has left */

/* Engines keep what they have over a restart of their coordinator: the newest change that
 * is recorded is what is visible. */
static void seed(engine *e, const weft_journal_record *r)
{
  engine_visible *v = &e->visible;
  v->weights_sequence = r->weights_sequence;
  v->digest_hi = r->digest_hi;
  v->digest_lo = r->digest_lo;
  v->tensors = r->tensors;
  v->bytes = r->bytes;
  v->sets[SET_MAIN] = /* there is no other: a fleet has no draft model */
      (engine_set){ r->tensors, r->bytes, r->digest_hi, r->digest_lo };
  v->at_ms = r->at_ms;
  v->declared = r->declared;
  (void)snprintf(v->version, sizeof v->version, "%s",
                 r->version == NULL ? "" : r->version);
  for (uint32_t i = 0; i < e->world; i++) {
    e->members[i].digest_hi = r->digest_hi;
    e->members[i].digest_lo = r->digest_lo;
    e->members[i].next_tensors = r->tensors;
    e->members[i].next_sets[SET_MAIN] = r->tensors;
  }
}

weft_err engine_fleet_init(weft_ctx *ctx, engine *e, const wefti_engine_args *args)
{
  e->fleet.replicas = weft_alloc(ctx, e->world * sizeof *e->fleet.replicas);
  if (e->fleet.replicas == NULL) {
    return WEFT_E_NOMEM;
  }
  for (size_t i = args->history_count; i > 0; i--) {
    const weft_journal_record *r = args->history[i - 1];
    if (r->kind == WEFT_JOURNAL_WEIGHTS || r->kind == WEFT_JOURNAL_LABEL) {
      seed(e, r);
      break;
    }
  }
  e->fleet.settled = e->visible.weights_sequence == 0;
  return e->fleet.settled || weft_timer_start(ctx, e->args.fence_ms,
                                              ENGINE_TAG(TIMER_SETTLED, 0)) != 0
             ? WEFT_OK
             : WEFT_E_NOMEM;
}

void engine_fleet_fini(weft_ctx *ctx, engine *e)
{
  engine_cast_fini(ctx, e);
  weft_free(ctx, e->fleet.replicas);
}

bool engine_fleet_settled(weft_ctx *ctx, const engine *e)
{
  /* What was recorded last may not be everywhere, and the grants of the life before this
   * one may still let others serve what was before it. */
  return e->fleet.replicas == NULL || e->fleet.settled ||
         weft_now_ms(ctx) >= e->boot_ms + e->args.fence_ms;
}

uint64_t engine_fleet_visible(weft_ctx *ctx, engine *e)
{
  return engine_fleet_settled(ctx, e) ? e->visible.weights_sequence : 0;
}

/* ---- doubts */

static void resolve(weft_ctx *ctx, engine *e, engine_member *m, const weft_w_state *s)
{
  bool reaches = false;
  const weft_journal_record *r =
      engine_history_find(e, s->doubt_boot, s->doubt_epoch, &reaches);
  if (r == NULL && !reaches) {
    engine_fence(ctx, e, m->rank,
                 "in doubt about a change that may be older than this coordinator's "
                 "history: decide with weft resolve on that replica");
    return;
  }
  const engine_visible *v = &e->visible;
  const bool newest = r != NULL && r->weights_sequence == v->weights_sequence;
  const char *version = r == NULL ? "" : newest ? v->version : r->version;
  weft_log(ctx, WEFT_LOG_WARN,
           "replica %" PRIu32 " was in doubt: %s boot=%016" PRIx64 " epoch=%" PRIu64,
           m->rank, r == NULL ? "not committed" : "committed", s->doubt_boot,
           s->doubt_epoch);
  e->fleet.replicas[m->rank].resolving = true;
  m->beat = weft_ask(
      ctx, m->actor,
      weft_msg_make(ctx,
                    &(weft_w_resolve){ .h.type = WEFT_MSG_W_RESOLVE,
                                       .boot = e->args.boot_id,
                                       .incarnation = m->incarnation,
                                       .op = ++e->op_last,
                                       .doubt_boot = s->doubt_boot,
                                       .doubt_epoch = s->doubt_epoch,
                                       .committed = r != NULL,
                                       .sequence = r == NULL ? 0 : r->weights_sequence,
                                       .version = { version, (uint32_t)strlen(version) },
                                       .declared = r == NULL ? 0
                                                   : newest  ? v->declared
                                                             : r->declared }
                         .h),
      RESOLVE_MS);
}

bool engine_fleet_answer(weft_ctx *ctx, engine *e, engine_member *m, const weft_msg *msg)
{
  engine_replica *r = &e->fleet.replicas[m->rank];
  if (!r->resolving) {
    return false;
  }
  r->resolving = false;
  const weft_w_ok *ok = (const weft_w_ok *)msg;
  if (msg->type == WEFT_MSG_W_OK && ok->boot == e->args.boot_id &&
      ok->incarnation == m->incarnation) {
    m->beat = engine_member_adopt(ctx, e, m); /* and what does it have now? */
    return true;
  }
  char why[160];
  const bool refused = msg->type == WEFT_MSG_W_REFUSED;
  const weft_str text = refused ? ((const weft_w_refused *)msg)->text : (weft_str){ 0 };
  (void)snprintf(why, sizeof why, "did not take how its doubt ended: %.*s", (int)text.len,
                 text.len > 0 ? text.p : "no answer");
  engine_fence(ctx, e, m->rank, why);
  return true;
}

/* ---- what replicas say of themselves */

void engine_fleet_paused(weft_ctx *ctx, engine *e, uint32_t rank, bool paused)
{
  engine_replica *r = &e->fleet.replicas[rank];
  if (r->paused != paused) {
    r->paused = paused;
    r->paused_ms = weft_now_ms(ctx);
    engine_pause_arm(ctx, e);
    engine_event_status(ctx, e);
  }
}

static void note(weft_ctx *ctx, engine *e, const engine_member *m, const weft_w_state *s)
{
  engine_replica *r = &e->fleet.replicas[m->rank];
  r->unready = s->unready != 0;
  (void)snprintf(r->reason, sizeof r->reason, "%.*s", (int)s->reason.len,
                 s->reason.len > 0 ? s->reason.p : "");
  if (s->op > r->version_op) {
    (void)snprintf(r->version, sizeof r->version, "%.*s", (int)s->version.len,
                   s->version.len > 0 ? s->version.p : "");
  }
  if (s->op > r->pause_op) {
    engine_fleet_paused(ctx, e, m->rank, s->paused != 0);
  }
}

/* The same weights under another version string: a label that it did not hear of. */
static void call_it_right(weft_ctx *ctx, engine *e, const engine_member *m, uint64_t op)
{
  const engine_replica *r = &e->fleet.replicas[m->rank];
  if (m->state == MEMBER_READY && !e->change.pending && op > r->version_op &&
      e->visible.weights_sequence != 0 && strcmp(r->version, e->visible.version) != 0) {
    engine_cast_label_to(ctx, e, m->rank);
  }
}

/* It has shown that it has what is visible, and now it has something else: an operator
 * has decided there while we were silent. */
static void look_closer(weft_ctx *ctx, engine *e, engine_member *m, const weft_w_state *s)
{
  if (m->state != MEMBER_READY || e->change.pending ||
      s->op <= e->fleet.replicas[m->rank].version_op ||
      s->weights_sequence == e->visible.weights_sequence) {
    return;
  }
  m->state = MEMBER_BEHIND;
  m->reported.weights_sequence = s->weights_sequence;
  m->reported.digest_hi = s->digest_hi;
  m->reported.digest_lo = s->digest_lo;
  weft_log(ctx, WEFT_LOG_WARN,
           "replica %" PRIu32 " has other weights than it had incarnation=%016" PRIx64,
           m->rank, m->incarnation);
  engine_event_worker(ctx, e, m, "behind");
  engine_event_status(ctx, e);
}

bool engine_fleet_heard(weft_ctx *ctx, engine *e, engine_member *m, const weft_w_state *s)
{
  engine_replica *r = &e->fleet.replicas[m->rank];
  const uint64_t ranks = (uint64_t)e->args.tp * e->args.pp;
  note(ctx, e, m, s);
  if (m->state == MEMBER_ADOPTING) {
    r->beat_again = false;
    if (s->ranks != ranks) {
      char why[128];
      (void)snprintf(why, sizeof why,
                     "has %" PRIu32 " ranks, and the fleet's replicas have %" PRIu64
                     " (tp * pp)",
                     s->ranks, ranks);
      engine_fence(ctx, e, m->rank, why);
      return false;
    }
    if (s->doubt_boot != 0) {
      resolve(ctx, e, m, s);
      return false;
    }
    return true;
  }
  look_closer(ctx, e, m, s);
  call_it_right(ctx, e, m, s->op);
  if (r->pause_owed) {
    engine_cast_pause_to(ctx, e, m->rank);
  }
  if (r->beat_again) {
    r->beat_again = false;
    engine_beat(ctx, e, m->rank);
  }
  return true;
}

void engine_fleet_noted(weft_ctx *ctx, engine *e, const weft_replica_note *note)
{
  if (e->fleet.replicas == NULL || note->rank >= e->world) {
    return;
  }
  engine_replica *r = &e->fleet.replicas[note->rank];
  (void)snprintf(r->note, sizeof r->note, "%.*s", (int)note->text.len,
                 note->text.len > 0 ? note->text.p : "");
  engine_event_status(ctx, e);
}

const char *engine_fleet_why(const engine *e, uint32_t rank)
{
  const engine_member *m = &e->members[rank];
  const bool noted = e->fleet.replicas != NULL && m->state == MEMBER_ABSENT &&
                     e->fleet.replicas[rank].note[0] != '\0';
  return noted ? e->fleet.replicas[rank].note : m->why;
}

void engine_fleet_came_in(weft_ctx *ctx, engine *e, engine_member *m)
{
  if (e->fleet.replicas == NULL) {
    return;
  }
  e->fleet.replicas[m->rank].note[0] = '\0';
  call_it_right(ctx, e, m, UINT64_MAX);
  if (e->paused || e->fleet.replicas[m->rank].pause_owed) {
    engine_cast_pause_to(ctx, e, m->rank);
  }
}

void engine_fleet_lost(weft_ctx *ctx, engine *e, uint32_t rank, const char *why)
{
  if (e->fleet.replicas == NULL) {
    return;
  }
  engine_replica *r = &e->fleet.replicas[rank];
  r->resolving = false;
  r->beat_again = false;
  r->unready = false;
  engine_cast_lost(ctx, e, rank, why);
}

void engine_fleet_published(engine *e, const engine_member *m)
{
  if (e->fleet.replicas == NULL || !engine_member_usable(m)) {
    return;
  }
  engine_replica *r = &e->fleet.replicas[m->rank];
  (void)snprintf(r->version, sizeof r->version, "%s", e->change.next.version);
  r->version_op = e->op_last;
}

/* ---- as JSON */

bool engine_fleet_shows_another(const engine *e, uint32_t rank)
{
  const engine_member *m = &e->members[rank];
  const engine_visible *v = &e->visible;
  const engine_visible *next = &e->change.next;
  const char *version = e->fleet.replicas[rank].version;
  const bool on_its_way = e->change.pending &&
                          m->reported.weights_sequence == next->weights_sequence &&
                          strcmp(version, next->version) == 0;
  if (!engine_member_usable(m) || on_its_way) {
    return false;
  }
  return m->state == MEMBER_BEHIND ||
         (v->weights_sequence != 0 && strcmp(version, v->version) != 0);
}

static bool is_mixed(const engine *e)
{
  for (uint32_t i = 0; i < e->world; i++) {
    if (engine_fleet_shows_another(e, i)) {
      return true;
    }
  }
  return false;
}

weft_buf *engine_fleet_mixed(const engine *e, weft_err *err)
{
  *err = WEFT_OK;
  if (e->fleet.replicas == NULL || !is_mixed(e)) {
    return NULL;
  }
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_bool(&w, "mixed", true);
  weft_jw_array(&w, "replicas");
  for (uint32_t i = 0; i < e->world; i++) {
    const engine_member *m = &e->members[i];
    const bool in = engine_member_usable(m);
    weft_jw_object(&w, NULL);
    weft_jw_u64(&w, "replica", i);
    weft_jw_str(&w, "state", engine_member_state_name(m->state));
    weft_jw_str(&w, "version", in ? e->fleet.replicas[i].version : NULL);
    weft_jw_u64(&w, "sequence", in ? m->reported.weights_sequence : 0);
    weft_jw_end(&w);
  }
  weft_jw_end(&w);
  weft_jw_end(&w);
  weft_buf *json = weft_jw_take_buf(&w);
  *err = json == NULL ? WEFT_E_NOMEM : WEFT_OK;
  return json;
}

void engine_fleet_result(weft_json_writer *w, uint32_t rank, const char *error)
{
  weft_jw_object(w, NULL);
  weft_jw_u64(w, "replica", rank);
  weft_jw_bool(w, "ok", error == NULL);
  weft_jw_str(w, "error", error);
  weft_jw_end(w);
}

weft_buf *engine_fleet_results(const engine *e)
{
  weft_json_writer w;
  if (e->fleet.replicas == NULL) {
    return NULL;
  }
  weft_jw_init(&w);
  weft_jw_array(&w, NULL);
  for (uint32_t i = 0; i < e->world; i++) {
    const engine_reply *r = &e->round.replies[i];
    const bool cut_off = r->state == REPLY_OK && r->err != WEFT_OK;
    engine_fleet_result(&w, i,
                        cut_off                   ? "is cut off"
                        : r->state == REPLY_OK    ? NULL
                        : r->state == REPLY_NONE  ? "was not asked"
                        : r->state == REPLY_ASKED ? "has not answered"
                                                  : r->text);
  }
  weft_jw_end(&w);
  return weft_jw_take_buf(&w);
}

void engine_fleet_status(weft_json_writer *w, const engine *e)
{
  weft_jw_bool(w, "mixed", is_mixed(e));
}

void engine_fleet_replica(weft_json_writer *w, const engine *e, uint32_t rank)
{
  const engine_replica *r = &e->fleet.replicas[rank];
  const bool in = engine_member_usable(&e->members[rank]);
  weft_jw_str(w, "version", in ? r->version : NULL);
  weft_jw_bool(w, "paused", in && r->paused);
  weft_jw_bool(w, "ready", e->members[rank].state == MEMBER_READY && !r->unready);
  weft_jw_str(w, "reason", r->unready ? r->reason : in ? "" : engine_fleet_why(e, rank));
}
