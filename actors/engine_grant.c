/* How a member of a fleet stands with its coordinator: adopted, granted, cut off; whether
 * what it holds is what the coordinator has; what clients may still ask of it directly.
 */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { PATIENCE_MS = 2000 };

/* ---- what it holds */

bool engine_upstream_unshown(const engine *e)
{
  return e->change.pending && e->change.published;
}

/* What all ranks have now: published counts, although it is not visible yet. */
static const engine_visible *held(const engine *e)
{
  return engine_upstream_unshown(e) ? &e->change.next : &e->visible;
}

/* Also with weights under a coordinator that has given none: they are of another time. */
static bool is_behind(const engine *e)
{
  const engine_upstream *up = &e->up;
  return up->sequence != up->want_sequence ||
         (up->want_sequence == 0 && up->coordinator.boot != 0 &&
          held(e)->weights_sequence != 0);
}

void engine_upstream_judge(weft_ctx *ctx, engine *e)
{
  engine_upstream *up = &e->up;
  const engine_visible *v = held(e);
  if (!e->args.member || up->want_sequence == 0) {
    return;
  }
  const bool was_behind = is_behind(e);
  if (v->weights_sequence != 0 && v->digest_hi == up->want_hi &&
      v->digest_lo == up->want_lo) {
    up->sequence = up->want_sequence; /* by content, whoever brought it */
  } else if (up->sequence == up->want_sequence) {
    up->sequence = 0;
  }
  if (was_behind && !is_behind(e)) {
    engine_beat_all(ctx, e); /* own ranks would wait for the next one */
  }
}

bool engine_upstream_wants(weft_ctx *ctx, engine *e)
{
  const engine_upstream *up = &e->up;
  uint64_t hi;
  uint64_t lo;
  engine_set_digest(e, true, &hi, &lo);
  if (!e->args.member || e->session.upstream || up->want_sequence == 0 ||
      (hi == up->want_hi && lo == up->want_lo)) {
    return true;
  }
  engine_answer a = { .err = WEFT_E_PRECOND,
                      .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                      .phase = engine_phase_name(PHASE_FINISH) };
  (void)snprintf(a.message, sizeof a.message,
                 "%s failed: the set has digest xxh3-128:%016" PRIx64 "%016" PRIx64
                 ", fleet %s has xxh3-128:%016" PRIx64 "%016" PRIx64
                 "; weights and version are unchanged, push what the fleet has",
                 engine_call_name(CALL_FINISH), hi, lo, up->fleet, up->want_hi,
                 up->want_lo);
  engine_op_failed(ctx, e, &a);
  return false;
}

/* ---- grants */

static bool is_granted(weft_ctx *ctx, const engine *e)
{
  return e->up.until_ns != 0 && weft_boottime_ns(ctx) < e->up.until_ns;
}

bool engine_upstream_serves(weft_ctx *ctx, const engine *e, char *reason, size_t cap)
{
  const engine_upstream *up = &e->up;
  if (!e->args.member) {
    return true;
  }
  if (up->coordinator.boot == 0) {
    (void)snprintf(reason, cap, "no coordinator has adopted this member of a fleet yet");
  } else if (!is_granted(ctx, e)) {
    (void)snprintf(reason, cap, "cut off from its coordinator, fleet %s", up->fleet);
  } else if (is_behind(e)) {
    (void)snprintf(
        reason, cap,
        "behind fleet %s: it has no weights or others; a full update brings it "
        "back",
        up->fleet);
  } else {
    return true;
  }
  return false;
}

uint32_t engine_upstream_grant_ms(weft_ctx *ctx, const engine *e, const engine_member *m)
{
  if (!e->args.member) {
    return e->args.grant_ms;
  }
  char reason[256];
  if (!engine_upstream_serves(ctx, e, reason, sizeof reason) ||
      e->up.until_ns <= m->stamp_at_ns) {
    return 0;
  }
  /* The worker's stamp is older than its coming here. */
  const uint64_t left = (e->up.until_ns - m->stamp_at_ns) / 1000000;
  return left < e->args.grant_ms ? (uint32_t)left : e->args.grant_ms;
}

/* To the end of the grant; without one, as long as an update waits for the next. */
static void arm_cut(weft_ctx *ctx, engine *e)
{
  const uint64_t now = weft_boottime_ns(ctx);
  const uint64_t until = e->up.until_ns;
  const uint64_t left = until > now ? (until - now) / 1000000 + 1 : PATIENCE_MS;
  weft_timer_cancel(ctx, e->up.cut_timer);
  e->up.cut_timer = weft_timer_start(ctx, left, ENGINE_TAG(TIMER_CUT, 0));
}

/* An update of the coordinator's that has no vote: nobody would miss it but its caller.
 */
static bool may_drop(const engine *e)
{
  const wefti_session_state s = e->session.state;
  const bool open = s != WEFTI_IDLE && s != WEFTI_COMMITTING && s != WEFTI_ABORTING;
  return e->session.upstream && open && s != WEFTI_PREPARED;
}

/* Readers get nothing from now on.  An update goes on for a while: one heartbeat that was
 * lost, or a moment in which one of us stood still, is not the end of a coordinator. */
void engine_upstream_cut_due(weft_ctx *ctx, engine *e, uint64_t timer)
{
  engine_upstream *up = &e->up;
  if (up->cut_timer != timer) {
    return;
  }
  up->cut_timer = 0;
  if (is_granted(ctx, e)) {
    arm_cut(ctx, e);
    return;
  }
  if (!up->cut) {
    up->cut = true;
    weft_log(ctx, WEFT_LOG_WARN,
             "cut off from the coordinator: no grant any more fleet=%s", up->fleet);
    engine_event_status(ctx, e);
  } else if (may_drop(e)) {
    engine_upstream_drop(ctx, e,
                         "the coordinator's grant has run out, and no other came");
  }
}

void engine_upstream_rearm(weft_ctx *ctx, engine *e)
{
  const engine_upstream *up = &e->up;
  const bool due = up->until_ns != 0 && !up->cut;
  if (e->args.member && up->cut_timer == 0 && (due || may_drop(e))) {
    arm_cut(ctx, e);
  }
}

void engine_upstream_tell(engine *e)
{
  const engine_upstream *up = &e->up;
  if (e->args.on_upstream != NULL) {
    e->args.on_upstream(e->args.on_upstream_arg,
                        &(wefti_upstream){ .fleet = up->fleet,
                                           .boot = up->coordinator.boot,
                                           .rank = up->rank,
                                           .size = up->size,
                                           .until_ns = up->until_ns,
                                           .doubt = engine_vote_in_doubt(&up->vote),
                                           .unshown = engine_upstream_unshown(e) });
  }
}

/* ---- the answer to adoption and heartbeat */

static uint32_t phase_of(const engine *e)
{
  static const uint32_t phases[WEFTI_SESSION_STATE_COUNT] = {
    [WEFTI_IDLE] = WEFT_WORKER_IDLE,
    [WEFTI_INIT] = WEFT_WORKER_RECEIVING,
    [WEFTI_STARTING] = WEFT_WORKER_OPEN,
    [WEFTI_OPEN] = WEFT_WORKER_OPEN,
    [WEFTI_TRANSFERRING] = WEFT_WORKER_RECEIVING,
    [WEFTI_FINISHING] = WEFT_WORKER_FINISHING,
    [WEFTI_PREPARED] = WEFT_WORKER_INSTALLED,
    [WEFTI_COMMITTING] = WEFT_WORKER_IDLE,
    [WEFTI_ABORTING] = WEFT_WORKER_ABORTING,
  };
  return e->up.held ? WEFT_WORKER_ACCEPTED : phases[e->session.state];
}

static void answer_state(weft_ctx *ctx, engine *e, const weft_w_beat *q)
{
  engine_upstream *up = &e->up;
  const uint64_t stamp_ns = weft_boottime_ns(ctx);
  const engine_visible *v = held(e);
  const bool doubt =
      engine_vote_in_doubt(&up->vote) && e->session.state != WEFTI_COMMITTING;
  char reason[256] = "";
  const bool ready = engine_ready(ctx, e, reason, sizeof reason);
  weft_w_state m = { .h.type = WEFT_MSG_W_STATE,
                     .boot = q->boot,
                     .incarnation = q->incarnation,
                     .epoch = q->epoch,
                     .op = q->op,
                     .phase = phase_of(e),
                     .weights_sequence = up->sequence,
                     .digest_hi = v->digest_hi,
                     .digest_lo = v->digest_lo,
                     .tensors = v->tensors,
                     .bytes = v->bytes,
                     .stamp_ns = stamp_ns,
                     .ranks = e->world,
                     .paused = e->paused,
                     .inplace = e->args.inplace,
                     .unready = !ready,
                     .reason = { reason, (uint32_t)strlen(reason) },
                     .version = { v->version, (uint32_t)strlen(v->version) },
                     .doubt_boot = doubt ? up->vote.boot : 0,
                     .doubt_epoch = doubt ? up->vote.epoch : 0,
                     .again = wefti_leader_ask(&up->coordinator, q->boot, stamp_ns) };
  for (uint32_t i = 0; i < e->world; i++) {
    const weft_w_state *r = &e->members[i].reported;
    m.received += r->received;
    m.expected += r->expected;
    m.readers += r->readers;
    m.snapshots = r->snapshots > m.snapshots ? r->snapshots : m.snapshots;
  }
  (void)weft_reply(ctx, weft_return_of(&q->h), weft_msg_make(ctx, &m.h));
}

/* ---- adoption */

/* What the coordinator began here and is not voted for has ended for it. */
static void end_before_adoption(weft_ctx *ctx, engine *e, bool new_boot, uint64_t epoch)
{
  engine_upstream *up = &e->up;
  const wefti_session_state s = e->session.state;
  const bool open = s != WEFTI_IDLE && s != WEFTI_COMMITTING && s != WEFTI_ABORTING &&
                    s != WEFTI_PREPARED;
  engine_wait_drop_upstream(ctx, e, "the coordinator began anew");
  if (e->session.upstream && open && (new_boot || up->epoch <= epoch)) {
    engine_upstream_drop(ctx, e, "the coordinator began anew");
  }
  if (new_boot) {
    up->epoch = 0;
    up->ended = 0;
    up->gave_up = 0;
    up->adopted_op = 0;
    up->session_op = 0;
    up->said.type = 0;
    up->asked.type = 0;
    up->abort.type = 0;
  }
  up->ended = epoch > up->ended ? epoch : up->ended;
}

/* Another fleet's numbers say nothing about ours. */
static void new_fleet(weft_ctx *ctx, engine *e)
{
  engine_upstream *up = &e->up;
  up->sequence = 0;
  up->seen = 0;
  if (e->session.upstream && e->session.state == WEFTI_COMMITTING) {
    up->next_sequence = 0; /* its end is known, who would have shown it is gone */
    engine_upstream_show(ctx, e);
  }
}

/* dp rank and size are the fleet's where nobody configured them.  engine_members_rearm
 * tells our ranks. */
static void take_place(engine *e, const weft_w_adopt *m)
{
  engine_upstream *up = &e->up;
  const bool ours = e->args.dp_size == 1 || up->placed;
  up->rank = m->rank;
  up->size = m->world_size;
  if (ours) {
    up->placed = true;
    e->args.dp_index = m->rank;
    e->args.dp_size = m->world_size;
  }
}

static bool may_adopt(weft_ctx *ctx, const engine *e, const engine_ask *ask,
                      const weft_w_adopt *m)
{
  const engine_upstream *up = &e->up;
  const bool same = m->fleet.len == strlen(up->fleet) && m->fleet.len > 0 &&
                    memcmp(m->fleet.p, up->fleet, m->fleet.len) == 0;
  const bool of_vote = m->fleet.len == strlen(up->vote.fleet) && m->fleet.len > 0 &&
                       memcmp(m->fleet.p, up->vote.fleet, m->fleet.len) == 0;
  if (m->boot == 0 || m->fleet.len == 0 || m->fleet.len > ENGINE_FLEET_MAX ||
      memchr(m->fleet.p, 0, m->fleet.len) != NULL || m->rank >= m->world_size) {
    engine_upstream_refuse(ctx, ask, WEFT_E_INVAL,
                           "adopted as replica %" PRIu32 " of %" PRIu32
                           " by a fleet whose name has %" PRIu32 " bytes",
                           m->rank, m->world_size, m->fleet.len);
  } else if (wefti_leader_is_former(&up->coordinator, m->boot)) {
    engine_upstream_refuse(ctx, ask, WEFT_E_STALE,
                           "coordinator boot %" PRIx64 " was followed by %" PRIx64,
                           m->boot, up->coordinator.boot);
  } else if (engine_vote_in_doubt(&up->vote) && !of_vote) {
    engine_upstream_refuse(ctx, ask, WEFT_E_CONFLICT,
                           "in doubt about a change of fleet %s, which decides; or an "
                           "operator, with weft resolve",
                           up->vote.fleet);
  } else if (up->coordinator.boot != 0 && !same && is_granted(ctx, e)) {
    engine_upstream_refuse(ctx, ask, WEFT_E_CONFLICT,
                           "is replica %" PRIu32 " of fleet %s, whose coordinator lives",
                           up->rank, up->fleet);
  } else {
    return true;
  }
  return false;
}

void engine_upstream_adopt(weft_ctx *ctx, engine *e, const weft_w_adopt *m)
{
  engine_upstream *up = &e->up;
  const engine_ask ask = { m->h.type, m->boot, m->incarnation,
                           m->epoch,  m->op,   weft_return_of(&m->h) };
  if (!may_adopt(ctx, e, &ask, m)) {
    return;
  }
  if (!wefti_leader_may_lead(&up->coordinator, m->boot, m->echo_ns)) {
    answer_state(ctx, e, (const weft_w_beat *)m); /* which asks it for a proof */
    return;
  }
  const bool new_boot = m->boot != up->coordinator.boot;
  if (!new_boot && m->op <= up->adopted_op) {
    answer_state(ctx, e, (const weft_w_beat *)m); /* a late copy: same envelope */
    return;
  }
  const bool other = strlen(up->fleet) != m->fleet.len ||
                     memcmp(up->fleet, m->fleet.p, m->fleet.len) != 0;
  end_before_adoption(ctx, e, new_boot, m->epoch);
  if (other) {
    new_fleet(ctx, e);
  }
  wefti_leader_follow(&up->coordinator, m->boot);
  up->adopted_op = m->op;
  (void)snprintf(up->fleet, sizeof up->fleet, "%.*s", (int)m->fleet.len, m->fleet.p);
  up->want_sequence = m->sequence;
  up->want_hi = m->digest_hi;
  up->want_lo = m->digest_lo;
  if (up->sequence > up->want_sequence || up->want_sequence == 0) {
    /* It has nothing, or its record is older than what it led us to (a state directory
     * out of a copy): the numbers above will be given out again. */
    up->sequence = 0;
  }
  up->seen = m->sequence < up->seen ? m->sequence : up->seen;
  engine_upstream_judge(ctx, e);
  take_place(e, m);
  weft_log(ctx, WEFT_LOG_INFO,
           "adopted as replica %" PRIu32 " of %" PRIu32 " fleet=%s boot=%016" PRIx64
           " sequence=%" PRIu64 " behind=%d doubt=%d",
           up->rank, up->size, up->fleet, up->coordinator.boot, up->want_sequence,
           is_behind(e), engine_vote_in_doubt(&up->vote));
  engine_upstream_tell(e);
  answer_state(ctx, e, (const weft_w_beat *)m);
  engine_event_status(ctx, e);
}

void engine_upstream_beat(weft_ctx *ctx, engine *e, const weft_w_beat *m)
{
  engine_upstream *up = &e->up;
  const bool had = is_granted(ctx, e);
  /* A stamp from the future is not one of ours. */
  if (m->grant != 0 && m->echo_ns != 0 && m->echo_ns <= weft_boottime_ns(ctx)) {
    const uint64_t ms = m->grant_ms < WEFTI_GRANT_MS ? m->grant_ms : WEFTI_GRANT_MS;
    const uint64_t until = m->echo_ns + ms * 1000000;
    up->until_ns = until > up->until_ns ? until : up->until_ns;
  }
  if (m->visible > up->seen) {
    up->seen = m->visible;
  }
  if (e->session.upstream && up->seen >= up->next_sequence) {
    engine_upstream_show(ctx, e);
  }
  /* It shows what is visible here, and said so after we stamped what it echoes.  0 is
   * also said by one that has just begun and does not know what its last life has shown.
   */
  if (m->visible != 0 && m->visible == up->before &&
      m->echo_ns <= weft_boottime_ns(ctx) && engine_upstream_unshown(e)) {
    engine_hold_not_shown(ctx, e, m->echo_ns);
  }
  engine_upstream_tell(e);
  answer_state(ctx, e, m);
  if (!had && is_granted(ctx, e)) {
    up->cut = false;
    arm_cut(ctx, e);
    engine_beat_all(ctx, e); /* own ranks would wait for the next one */
    engine_event_status(ctx, e);
  }
}

/* ---- clients of a member */

/* A member that is behind may be brought up while the others serve; so may one that
 * restores what it had. */
static bool may_catch_up(const engine *e, const engine_call *call)
{
  const engine_upstream *up = &e->up;
  const bool open = e->session.state != WEFTI_IDLE;
  const bool restoring =
      e->restore == WEFT_RESTORE_WAITING || e->restore == WEFT_RESTORE_LOADING;
  if (call->kind == CALL_ABORT && !open) {
    return true; /* nothing is open: it is as it was wanted */
  }
  if (!engine_call_of_session(call->kind) && call->kind != CALL_ABORT) {
    return false;
  }
  if (open) {
    return !e->session.upstream;
  }
  return restoring || (up->want_sequence != 0 && is_behind(e));
}

bool engine_upstream_forbids(weft_ctx *ctx, engine *e, engine_call *call)
{
  const engine_upstream *up = &e->up;
  if (!e->args.member || call->ask.type != 0 || call->kind == CALL_PAUSE ||
      call->kind == CALL_CHECK || call->kind == CALL_RESOLVE) {
    return false;
  }
  const bool catch_up = may_catch_up(e, call);
  if (engine_vote_in_doubt(&up->vote) && !(up->vote.state == VOTE_LOST && catch_up)) {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "%s: in doubt about a change of fleet %s: its coordinator decides; "
                      "or an operator, with weft resolve",
                      engine_call_name(call->kind), up->vote.fleet);
    return true;
  }
  if (catch_up) {
    return false;
  }
  if (up->coordinator.boot == 0) {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "%s: this engine is a member of a fleet, and no coordinator has "
                      "adopted it yet: call the coordinator",
                      engine_call_name(call->kind));
  } else {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "%s: this engine is replica %" PRIu32
                      " of fleet %s: call its coordinator",
                      engine_call_name(call->kind), up->rank, up->fleet);
  }
  return true;
}

/* ---- the status */

void engine_upstream_status(weft_ctx *ctx, weft_json_writer *w, const engine *e)
{
  const engine_upstream *up = &e->up;
  if (!e->args.member) {
    return;
  }
  weft_jw_object(w, "fleet");
  weft_jw_str(w, "id", up->coordinator.boot == 0 ? NULL : up->fleet);
  engine_jw_hex64(w, "coordinator_boot_id", up->coordinator.boot);
  weft_jw_u64(w, "replica", up->rank);
  weft_jw_u64(w, "replicas", up->size);
  weft_jw_bool(w, "granted", is_granted(ctx, e));
  weft_jw_bool(w, "behind", is_behind(e));
  weft_jw_u64(w, "sequence", up->sequence);
  weft_jw_bool(w, "shown", !engine_upstream_unshown(e));
  if (engine_vote_in_doubt(&up->vote)) {
    char session[64];
    engine_session_of(up->vote.boot, up->vote.epoch, session, sizeof session);
    weft_jw_object(w, "doubt");
    weft_jw_str(w, "fleet", up->vote.fleet);
    weft_jw_str(w, "session", session);
    weft_jw_str(w, "version", up->vote.version);
    engine_jw_digest(w, "digest", 1, up->vote.digest_hi, up->vote.digest_lo);
    weft_jw_bool(w, "lost", up->vote.state == VOTE_LOST);
    weft_jw_end(w);
  } else {
    weft_jw_null(w, "doubt");
  }
  weft_jw_end(w);
}
