/* What all ranks have installed, as one digest: do replicas agree, is it what the caller
 * wants? */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>

bool engine_digests_agree(weft_ctx *ctx, engine *e)
{
  const engine_reply *first = &e->round.replies[0];
  for (uint32_t i = 1; i < e->world && !e->session.list_form; i++) {
    const engine_reply *r = &e->round.replies[i];
    if (r->set.digest_hi == first->set.digest_hi &&
        r->set.digest_lo == first->set.digest_lo) {
      continue;
    }
    char culprits[64];
    const char *unit = engine_unit(e);
    (void)snprintf(culprits, sizeof culprits, "%s 0, %s %" PRIu32, unit, unit, i);
    engine_answer a = { .err = WEFT_E_FAILED,
                        .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                        .phase = engine_phase_name(PHASE_FINISH),
                        .culprits = culprits };
    (void)snprintf(
        a.message, sizeof a.message,
        "%s failed: %s %" PRIu32 " holds xxh3-128:%016" PRIx64 "%016" PRIx64
        ", %s 0 xxh3-128:%016" PRIx64 "%016" PRIx64 "; %s, push to all of them again",
        engine_call_name(CALL_FINISH), unit, i, r->set.digest_hi, r->set.digest_lo, unit,
        first->set.digest_hi, first->set.digest_lo, engine_unchanged(e));
    engine_op_failed(ctx, e, &a);
    return false;
  }
  return true;
}

static uint64_t fold(uint64_t h, uint64_t v)
{
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 29);
}

void engine_set_digest(const engine *e, bool whole, uint64_t *hi, uint64_t *lo)
{
  const engine_reply *r = e->round.replies;
  *hi = whole ? r[0].digest_hi : r[0].set.digest_hi;
  *lo = whole ? r[0].digest_lo : r[0].set.digest_lo;
  for (uint32_t i = 1; i < e->world && e->session.list_form; i++) {
    *hi = fold(*hi, whole ? r[i].digest_hi : r[i].set.digest_hi);
    *lo = fold(*lo, whole ? r[i].digest_lo : r[i].set.digest_lo);
  }
}

bool engine_digest_is_wanted(weft_ctx *ctx, engine *e)
{
  const engine_call *call = e->call;
  uint64_t hi;
  uint64_t lo;
  engine_set_digest(e, false, &hi, &lo);
  if (!call->has_digest || (hi == call->digest_hi && lo == call->digest_lo)) {
    return true;
  }
  engine_answer a = { .err = WEFT_E_PRECOND,
                      .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                      .phase = engine_phase_name(PHASE_FINISH) };
  (void)snprintf(a.message, sizeof a.message,
                 "%s failed: the set has digest xxh3-128:%016" PRIx64 "%016" PRIx64
                 ", wanted was xxh3-128:%016" PRIx64 "%016" PRIx64 "; %s",
                 engine_call_name(CALL_FINISH), hi, lo, call->digest_hi, call->digest_lo,
                 engine_unchanged(e));
  engine_op_failed(ctx, e, &a);
  return false;
}
