/* Heartbeats: the grant that each carries, and what the answer says of who gave it. */
#include "engine.h"

#include <stdio.h>

enum { MAPPING_BEAT_MS = 50 };

void engine_beat(weft_ctx *ctx, engine *e, uint32_t rank)
{
  engine_member *m = &e->members[rank];
  if (!engine_member_usable(m)) {
    return; /* the next incarnation starts its own */
  }
  const bool soon =
      m->reported.phase == WEFT_WORKER_MAPPING && e->args.beat_ms > MAPPING_BEAT_MS;
  weft_timer_cancel(ctx, m->beat_timer);
  m->beat_timer = weft_timer_start(ctx, soon ? MAPPING_BEAT_MS : e->args.beat_ms,
                                   ENGINE_TAG(TIMER_BEAT, rank));
  if (m->beat != 0) {
    return;
  }
  const uint32_t grant_ms = engine_upstream_grant_ms(ctx, e, m);
  const bool grant = !m->no_grant && m->stamp_ns != 0 && grant_ms > 0;
  if (grant) {
    m->granted_at_ms = m->stamp_at_ms;
  }
  m->beat =
      weft_ask(ctx, m->actor,
               weft_msg_make(ctx, &(weft_w_beat){ .h.type = WEFT_MSG_W_BEAT,
                                                  .boot = e->args.boot_id,
                                                  .incarnation = m->incarnation,
                                                  .op = ++e->op_last,
                                                  .echo_ns = m->stamp_ns,
                                                  .grant = grant,
                                                  .grant_ms = grant_ms,
                                                  .visible = engine_fleet_visible(ctx, e),
                                                  .resume = engine_inplace_resume(e) }
                                       .h),
               (uint64_t)e->args.beat_ms * 4);
}

void engine_beat_all(weft_ctx *ctx, engine *e)
{
  for (uint32_t i = 0; i < e->world; i++) {
    if (e->members[i].beat == 0) {
      engine_beat(ctx, e, i);
    } else if (e->fleet.replicas != NULL) {
      e->fleet.replicas[i].beat_again = true;
    }
  }
}

static void beat_failed(weft_ctx *ctx, engine *e, engine_member *m, const char *why)
{
  const uint64_t silent = weft_now_ms(ctx) - m->stamp_at_ms;
  if (m->state == MEMBER_ADOPTING || m->placing || silent >= WEFTI_HUNG_MS) {
    char text[128];
    (void)snprintf(text, sizeof text, "%.80s", why);
    engine_fence(ctx, e, m->rank, text);
  }
}

static void note_state(weft_ctx *ctx, engine *e, engine_member *m, const weft_w_state *s)
{
  const weft_w_state before = m->reported;
  m->reported = *s;
  m->reported.device = (weft_str){ 0 };
  m->reported.reason = (weft_str){ 0 };
  m->reported.version = (weft_str){ 0 };
  (void)snprintf(m->device, sizeof m->device, "%.*s", (int)s->device.len,
                 s->device.len > 0 ? s->device.p : "");
  m->reported.pid = s->pid != 0 ? s->pid : m->pid;
  if (s->weights_sequence < before.weights_sequence && s->poisoned <= e->inplace.healed) {
    /* overtaken by a PUBLISH that it has confirmed */
    m->reported.weights_sequence = before.weights_sequence;
    m->reported.digest_hi = before.digest_hi;
    m->reported.digest_lo = before.digest_lo;
    m->reported.tensors = before.tensors;
    m->reported.bytes = before.bytes;
  }
  m->stamp_ns = s->stamp_ns;
  m->stamp_at_ms = weft_now_ms(ctx);
  m->stamp_at_ns = weft_boottime_ns(ctx);
  if (s->poisoned > e->inplace.healed) {
    engine_inplace_report(ctx, e, m, s->poisoned);
  } else {
    m->reported.poisoned = 0; /* said before it was healed */
  }
}

bool engine_beat_answer(weft_ctx *ctx, engine *e, const weft_msg *msg)
{
  engine_member *m = NULL;
  for (uint32_t i = 0; i < e->world && m == NULL; i++) {
    m = e->members[i].beat == msg->corr ? &e->members[i] : NULL;
  }
  if (m == NULL || msg->corr == 0) {
    return false;
  }
  m->beat = 0;
  if (e->fleet.replicas != NULL && engine_fleet_answer(ctx, e, m, msg)) {
    return true;
  }
  if (msg->type == WEFT_MSG_ASK_FAILED) {
    beat_failed(ctx, e, m, "does not answer heartbeats");
    return true;
  }
  const weft_w_state *s = (const weft_w_state *)msg;
  if (msg->type != WEFT_MSG_W_STATE || s->boot != e->args.boot_id ||
      s->incarnation != m->incarnation) {
    beat_failed(ctx, e, m, "answers heartbeats as somebody else");
    return true;
  }
  if (s->again != 0 && m->state == MEMBER_ADOPTING) {
    m->stamp_ns = s->stamp_ns;
    m->beat = engine_member_adopt(ctx, e, m);
    return true;
  }
  m->placing = false;
  const uint32_t phase_before = m->reported.phase;
  note_state(ctx, e, m, s);
  if (e->fleet.replicas != NULL && !engine_fleet_heard(ctx, e, m, s)) {
    return true;
  }
  engine_member_heard(ctx, e, m, phase_before);
  return true;
}
