/* Who is in: coming in, from arrival to adoption, and going out, from silence or an exit
 * to the end of what it may still serve. */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { ADOPT_MS = 5000, FENCE_AGAIN_MS = 1000 };

weft_err engine_members_init(weft_ctx *ctx, engine *e)
{
  e->members = weft_alloc(ctx, e->world * sizeof *e->members);
  if (e->members == NULL) {
    return WEFT_E_NOMEM;
  }
  for (uint32_t i = 0; i < e->world; i++) {
    e->members[i].rank = i;
    (void)snprintf(e->members[i].why, sizeof e->members[i].why, "has not joined yet");
  }
  return WEFT_OK;
}

bool engine_member_usable(const engine_member *m)
{
  return m->state == MEMBER_READY || m->state == MEMBER_BEHIND;
}

/* A replica with weights that this coordinator, which has given none, knows nothing of.
 */
static bool has_strange_weights(const engine *e, const engine_member *m)
{
  return e->fleet.replicas != NULL && e->visible.weights_sequence == 0 &&
         m->reported.tensors > 0;
}

bool engine_ready(weft_ctx *ctx, const engine *e, char *reason, size_t cap)
{
  if (engine_inplace_unfit(e, reason, cap)) {
    return false;
  }
  for (uint32_t i = 0; i < e->world; i++) {
    const engine_member *m = &e->members[i];
    if (m->state != MEMBER_READY) {
      char text[ENGINE_LEND_TEXT];
      engine_lend_text(e, m, text, sizeof text);
      (void)snprintf(reason, cap, "%s %" PRIu32 " is %s: %s", engine_unit(e), i,
                     engine_member_state_name(m->state),
                     m->state != MEMBER_BEHIND ? engine_fleet_why(e, i)
                     : e->fleet.replicas != NULL && m->reported.tensors > 0
                         ? "it has weights of another time; a full update brings it back"
                         : text);
      return false;
    }
    const engine_replica *r = e->fleet.replicas == NULL ? NULL : &e->fleet.replicas[i];
    if (r != NULL && r->unready) {
      (void)snprintf(reason, cap, "replica %" PRIu32 ": %s", i, r->reason);
      return false;
    }
    if (r != NULL && engine_fleet_shows_another(e, i)) {
      (void)snprintf(reason, cap, "replica %" PRIu32 " shows version %.100s: it is told",
                     i, r->version);
      return false;
    }
  }
  if (!engine_fleet_settled(ctx, e)) {
    (void)snprintf(reason, cap, "restarted a moment ago: an earlier life's grants run");
    return false;
  }
  return true;
}

/* ---- coming in */

static void admit(weft_ctx *ctx, engine *e, engine_member *m)
{
  const engine_arrival a = m->arrival;
  m->arrival = (engine_arrival){ .waiting = false };
  m->state = MEMBER_ADOPTING;
  m->fence_owed = false;
  m->incarnation = a.incarnation;
  m->actor = a.actor;
  m->kind = a.kind;
  m->pid = a.pid;
  memcpy(m->url, a.url, sizeof m->url);
  m->no_grant = false;
  m->stamp_ns = 0;
  m->granted_at_ms = 0;
  m->reported = (weft_w_state){ .pid = a.pid };
  (void)snprintf(m->why, sizeof m->why, "is being adopted");
  m->beat = engine_member_adopt(ctx, e, m);
}

uint64_t engine_member_adopt(weft_ctx *ctx, engine *e, engine_member *m)
{
  const engine_visible *v = &e->visible;
  m->dp_index = e->args.dp_index;
  return weft_ask(
      ctx, m->actor,
      weft_msg_make(
          ctx,
          &(weft_w_adopt){
              .h.type = WEFT_MSG_W_ADOPT,
              .boot = e->args.boot_id,
              .incarnation = m->incarnation,
              .epoch = e->epoch_last,
              .op = ++e->op_last,
              .rank = m->rank,
              .world_size = e->world,
              .dp_index = m->dp_index,
              .sequence = v->weights_sequence,
              .digest_hi = m->digest_hi,
              .digest_lo = m->digest_lo,
              .fleet = { e->fleet.replicas == NULL ? "" : e->engine_id,
                         e->fleet.replicas == NULL ? 0 : (uint32_t)strlen(e->engine_id) },
              .version = { v->version, (uint32_t)strlen(v->version) },
              .declared = v->declared,
              .echo_ns = m->state == MEMBER_ADOPTING ? m->stamp_ns : 0 }
               .h),
      ADOPT_MS);
}

/* The fleet's numbers can come at any time: while m is being adopted with other ones, or
 * in a session, which goes on with what it began with.  A heartbeat under way is given
 * up for it, the answer says the same. */
static void place(weft_ctx *ctx, engine *e, engine_member *m)
{
  if (engine_member_usable(m) && m->dp_index != e->args.dp_index &&
      e->session.state == WEFTI_IDLE) {
    weft_ask_cancel(ctx, m->beat);
    m->placing = true;
    m->beat = engine_member_adopt(ctx, e, m);
  }
}

/* Between a record's issue and its visibility nobody comes in: it could not be told apart
 * whether a newcomer has what is being published. */
static bool door_is_shut(const engine *e)
{
  return (e->change.pending && !e->change.label) || e->session.state == WEFTI_PREPARED;
}

static void lost(weft_ctx *ctx, engine *e, engine_member *m, bool fenced,
                 const char *why);

void engine_on_member_up(weft_ctx *ctx, engine *e, const weft_member_up *up)
{
  if (up->rank >= e->world) {
    weft_log(ctx, WEFT_LOG_ERROR, "a member for %s %" PRIu32 " of %" PRIu32 " is ignored",
             engine_unit(e), up->rank, e->world);
    return;
  }
  e->supervisor = up->h.from;
  engine_member *m = &e->members[up->rank];
  e->joined_ever = e->joined_ever || up->kind == WEFT_MEMBER_JOINED;
  m->arrival = (engine_arrival){ .waiting = true,
                                 .incarnation = up->incarnation,
                                 .actor = up->actor,
                                 .kind = up->kind,
                                 .pid = up->pid };
  (void)snprintf(m->arrival.url, sizeof m->arrival.url, "%.*s", (int)up->url.len,
                 up->url.len > 0 ? up->url.p : "");
  if (m->state != MEMBER_ABSENT && m->state != MEMBER_LOST) {
    lost(ctx, e, m, false, "was replaced by a new incarnation");
  }
  if (m->state == MEMBER_ABSENT && m->arrival.waiting && !door_is_shut(e)) {
    admit(ctx, e, m);
  }
}

void engine_admit_arrivals(weft_ctx *ctx, engine *e)
{
  for (uint32_t i = 0; i < e->world; i++) {
    engine_member *m = &e->members[i];
    if (m->arrival.waiting && m->state == MEMBER_ABSENT && !door_is_shut(e)) {
      admit(ctx, e, m);
    }
  }
}

static bool has_what_is_visible(const engine *e, const engine_member *m)
{
  const weft_w_state *r = &m->reported;
  return r->poisoned == 0 && !has_strange_weights(e, m) && e->inplace.poisoned == 0 &&
         r->weights_sequence == e->visible.weights_sequence &&
         (e->visible.weights_sequence == 0 ||
          (r->digest_hi == m->digest_hi && r->digest_lo == m->digest_lo));
}

static void adopted(weft_ctx *ctx, engine *e, engine_member *m)
{
  const bool has_it = has_what_is_visible(e, m);
  m->state = has_it ? MEMBER_READY : MEMBER_BEHIND;
  m->why[0] = '\0';
  weft_log(ctx, WEFT_LOG_INFO,
           "%s %" PRIu32 " is %s incarnation=%016" PRIx64 " pid=%" PRIu32, engine_unit(e),
           m->rank, engine_member_state_name(m->state), m->incarnation, m->pid);
  engine_event_worker(ctx, e, m, has_it ? "up" : "behind");
  engine_event_status(ctx, e);
  engine_fleet_came_in(ctx, e, m);
  engine_beat(ctx, e, m->rank); /* at once: its readers need the first grant */
}

/* It is behind and what it had in its last life comes back by itself.  Its session frames
 * wait for that, so it cannot be in the way of a session that was opened meanwhile. */
static void look_again(weft_ctx *ctx, engine *e, engine_member *m, uint32_t phase_before)
{
  if (m->state == MEMBER_BEHIND && has_what_is_visible(e, m)) {
    m->state = MEMBER_READY;
    weft_log(ctx, WEFT_LOG_INFO,
             "%s %" PRIu32 " has its weights again incarnation=%016" PRIx64,
             engine_unit(e), m->rank, m->incarnation);
    engine_event_worker(ctx, e, m, "up");
    engine_event_status(ctx, e);
  } else if ((phase_before == WEFT_WORKER_MAPPING) !=
             (m->reported.phase == WEFT_WORKER_MAPPING)) {
    engine_event_status(ctx, e);
  }
}

void engine_member_heard(weft_ctx *ctx, engine *e, engine_member *m,
                         uint32_t phase_before)
{
  if (m->state == MEMBER_ADOPTING) {
    adopted(ctx, e, m);
  } else {
    look_again(ctx, e, m, phase_before);
  }
}

void engine_member_published(engine *e, uint32_t rank)
{
  engine_member *m = &e->members[rank];
  if (!engine_member_usable(m)) {
    return;
  }
  m->state = MEMBER_READY;
  m->reported.weights_sequence = e->change.next.weights_sequence;
  m->reported.digest_hi = m->next_digest_hi;
  m->reported.digest_lo = m->next_digest_lo;
  m->reported.tensors = m->next_tensors;
  m->reported.bytes = m->next_bytes;
  m->reported.phase = WEFT_WORKER_IDLE;
  m->reported.poisoned = 0;
  m->reported.received = 0;
  m->reported.expected = 0;
}

/* ---- going out */

static void fenced(weft_ctx *ctx, engine *e, engine_member *m)
{
  weft_timer_cancel(ctx, m->fence_timer);
  m->fence_timer = 0;
  m->state = MEMBER_ABSENT;
  m->actor = 0;
  engine_event_worker(ctx, e, m, "fenced");
  engine_event_status(ctx, e);
  engine_round_fenced(ctx, e, m->rank);
  engine_cast_fenced(ctx, e, m->rank);
  engine_admit_arrivals(ctx, e);
}

/* Own children serve readers without a grant: only their exit fences them. */
static bool grant_fences(const engine_member *m)
{
  return m->kind != WEFT_MEMBER_CHILD;
}

/* Until LOST turns into ABSENT: when the grant has run out, or to ask for its end anew.
 */
static uint64_t fenced_at(weft_ctx *ctx, const engine *e, const engine_member *m)
{
  const uint64_t now = weft_now_ms(ctx);
  if (!grant_fences(m)) {
    return now + FENCE_AGAIN_MS;
  }
  return m->granted_at_ms == 0 ? now : m->granted_at_ms + e->args.fence_ms;
}

/* m is not to be asked anything any more; it may serve readers until it is fenced. */
static void lost(weft_ctx *ctx, engine *e, engine_member *m, bool is_fenced,
                 const char *why)
{
  weft_ask_cancel(ctx, m->beat);
  weft_timer_cancel(ctx, m->beat_timer);
  m->beat = 0;
  m->beat_timer = 0;
  m->placing = false;
  m->no_grant = true;
  m->state = MEMBER_LOST;
  (void)snprintf(m->why, sizeof m->why, "%s", why);
  weft_log(ctx, WEFT_LOG_WARN, "%s %" PRIu32 " is down: %s incarnation=%016" PRIx64,
           engine_unit(e), m->rank, why, m->incarnation);
  engine_event_worker(ctx, e, m, "down");
  const uint64_t now = weft_now_ms(ctx);
  const uint64_t over = fenced_at(ctx, e, m);
  m->fenced_at_ms = over;
  if (!is_fenced && over > now) {
    m->fence_timer = weft_timer_start(ctx, over - now, ENGINE_TAG(TIMER_FENCE, m->rank));
  }
  char reason[320];
  (void)snprintf(reason, sizeof reason, "%s %" PRIu32 " is down: %s", engine_unit(e),
                 m->rank, m->why);
  engine_round_lost(ctx, e, m->rank, m->why);
  engine_fleet_lost(ctx, e, m->rank, m->why);
  if (e->session.state == WEFTI_OPEN && e->call == NULL) {
    engine_abort_begin(ctx, e, NULL, reason);
  }
  if (m->state == MEMBER_LOST && (is_fenced || over <= now)) {
    fenced(ctx, e, m);
  }
}

void engine_on_member_down(weft_ctx *ctx, engine *e, const weft_member_down *down)
{
  if (down->rank >= e->world) {
    return;
  }
  e->supervisor = down->h.from;
  engine_member *m = &e->members[down->rank];
  if (m->arrival.waiting && m->arrival.incarnation == down->incarnation) {
    m->arrival = (engine_arrival){ .waiting = false };
    return;
  }
  if (m->state == MEMBER_ABSENT && m->incarnation != down->incarnation) {
    (void)snprintf(m->why, sizeof m->why, "could not start: %.*s", (int)down->why.len,
                   down->why.p == NULL ? "" : down->why.p);
    engine_event_status(ctx, e);
    return;
  }
  if (m->state == MEMBER_ABSENT || m->incarnation != down->incarnation) {
    return;
  }
  if (m->state == MEMBER_LOST) {
    if (down->fenced != 0) {
      fenced(ctx, e, m);
    }
    return;
  }
  lost(ctx, e, m, down->fenced != 0, down->why.p == NULL ? "went down" : down->why.p);
}

static void ask_supervisor(weft_ctx *ctx, engine *e, engine_member *m, const char *why)
{
  if (e->supervisor != 0) {
    const weft_err err = weft_send(
        ctx, e->supervisor,
        weft_msg_make(ctx, &(weft_member_fence){ .h.type = WEFT_MSG_MEMBER_FENCE,
                                                 .h.flags = WEFT_MSG_F_RESERVED,
                                                 .rank = m->rank,
                                                 .incarnation = m->incarnation,
                                                 .why = { why, (uint32_t)strlen(why) } }
                                .h));
    m->fence_owed = err == WEFT_E_NOMEM || err == WEFT_E_FULL;
  }
}

void engine_fence(weft_ctx *ctx, engine *e, uint32_t rank, const char *why)
{
  engine_member *m = &e->members[rank];
  if (m->state == MEMBER_ABSENT) {
    return;
  }
  ask_supervisor(ctx, e, m, why);
  e->metrics.fenced++;
  if (m->state != MEMBER_LOST) {
    lost(ctx, e, m, false, why);
  }
}

/* The grant of a lost member has run out.  A child that has not exited yet may not have
 * been killed: the message to the supervisor can be lost for want of memory. */
static void fence_over(weft_ctx *ctx, engine *e, engine_member *m)
{
  if (grant_fences(m)) {
    fenced(ctx, e, m);
    return;
  }
  ask_supervisor(ctx, e, m, m->why);
  m->fenced_at_ms = fenced_at(ctx, e, m);
  m->fence_timer =
      weft_timer_start(ctx, FENCE_AGAIN_MS, ENGINE_TAG(TIMER_FENCE, m->rank));
}

void engine_fence_due(weft_ctx *ctx, engine *e, uint32_t rank, uint64_t timer)
{
  engine_member *m = &e->members[rank];
  if (m->state == MEMBER_LOST && m->fence_timer == timer) {
    m->fence_timer = 0;
    fence_over(ctx, e, m);
  }
}

void engine_members_rearm(weft_ctx *ctx, engine *e)
{
  const uint64_t now = weft_now_ms(ctx);
  for (uint32_t i = 0; i < e->world; i++) {
    engine_member *m = &e->members[i];
    if (m->fence_owed) {
      ask_supervisor(ctx, e, m, m->why);
    }
    if (engine_member_usable(m) && m->beat_timer == 0) {
      m->beat_timer = weft_timer_start(ctx, e->args.beat_ms, ENGINE_TAG(TIMER_BEAT, i));
    }
    place(ctx, e, m);
    if (m->state != MEMBER_LOST || m->fence_timer != 0) {
      continue;
    }
    if (m->fenced_at_ms > now) {
      m->fence_timer =
          weft_timer_start(ctx, m->fenced_at_ms - now, ENGINE_TAG(TIMER_FENCE, i));
    } else {
      fence_over(ctx, e, m);
    }
  }
}
