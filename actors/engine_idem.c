/* Idempotency-Key: one call, however often it is asked; its answer is kept for repeats.
 */
#include "engine.h"

#include <stdio.h>
#include <string.h>

void engine_idem_clear(engine_idem *slot)
{
  if (slot->answer != NULL) {
    weft_msg_drop(weft_messages(), &slot->answer->h);
  }
  *slot = (engine_idem){ .key = "" };
}

weft_err engine_idem_init(weft_ctx *ctx, engine *e)
{
  e->idem = weft_alloc(ctx, ENGINE_IDEM_KEPT * sizeof *e->idem);
  return e->idem == NULL ? WEFT_E_NOMEM : WEFT_OK;
}

void engine_idem_fini(weft_ctx *ctx, engine *e)
{
  for (size_t i = 0; e->idem != NULL && i < ENGINE_IDEM_KEPT; i++) {
    engine_idem_clear(&e->idem[i]);
  }
  weft_free(ctx, e->idem);
  e->idem = NULL;
}

/* The slot that has key, else NULL and *fresh = the one to use for it (NULL: all busy).
 */
static engine_idem *idem_find(engine *e, weft_str key, engine_idem **fresh)
{
  *fresh = NULL;
  for (size_t i = 0; i < ENGINE_IDEM_KEPT; i++) {
    engine_idem *slot = &e->idem[i];
    if (strlen(slot->key) == key.len && memcmp(slot->key, key.p, key.len) == 0) {
      return slot;
    }
    const bool usable = slot->key[0] == '\0' || slot->done;
    if (usable && (*fresh == NULL || slot->used < (*fresh)->used)) {
      *fresh = slot;
    }
  }
  return NULL;
}

bool engine_idem_admit(weft_ctx *ctx, engine *e, engine_call *call, weft_str key,
                       uint64_t hash)
{
  engine_idem *fresh;
  engine_idem *slot = idem_find(e, key, &fresh);
  if (slot == NULL && fresh == NULL) {
    engine_answer_err(
        ctx, e, call, WEFT_E_UNAVAIL,
        "%s: too many calls with an Idempotency-Key are under way (%d); try again",
        engine_call_name(call->kind), ENGINE_IDEM_KEPT);
    return false;
  }
  if (slot == NULL) {
    engine_idem_clear(fresh);
    memcpy(fresh->key, key.p, key.len);
    fresh->key[key.len] = '\0';
    fresh->body_hash = hash;
    fresh->used = ++e->idem_clock;
    call->idem = fresh;
    return true;
  }
  if (slot->body_hash != hash) {
    engine_answer_err(
        ctx, e, call, WEFT_E_REUSED,
        "%s: Idempotency-Key '%s' was used for another request; use a new key",
        engine_call_name(call->kind), slot->key);
    return false;
  }
  slot->used = ++e->idem_clock;
  if (slot->done) {
    (void)weft_reply(ctx, call->ret, weft_msg_make(ctx, &slot->answer->h));
  } else if (slot->waiter_count < ENGINE_IDEM_WAITERS) {
    slot->waiters[slot->waiter_count++] = (engine_idem_waiter){
      .ret = call->ret,
      .caller = call->caller,
      .kind = call->kind,
      .started_ms = call->started_ms,
      .due_timer = weft_timer_start(ctx, engine_call_left_ms(ctx, call),
                                    ENGINE_TAG(TIMER_CALL_DUE, 0)),
    };
  } else {
    engine_answer_err(ctx, e, call, WEFT_E_UNAVAIL,
                      "%s: %d repeats of Idempotency-Key '%s' wait already; try again",
                      engine_call_name(call->kind), ENGINE_IDEM_WAITERS, slot->key);
    return false;
  }
  engine_call_free(ctx, e, call);
  return false;
}

bool engine_idem_due(weft_ctx *ctx, engine *e, uint64_t timer)
{
  for (size_t i = 0; i < ENGINE_IDEM_KEPT; i++) {
    engine_idem *slot = &e->idem[i];
    for (unsigned k = 0; k < slot->waiter_count; k++) {
      if (slot->waiters[k].due_timer != timer) {
        continue;
      }
      const engine_idem_waiter w = slot->waiters[k];
      slot->waiters[k] = slot->waiters[--slot->waiter_count];
      engine_answer a = { .err = WEFT_E_TIMEOUT, .outcome = WEFT_OUTCOME_UNKNOWN };
      (void)snprintf(a.message, sizeof a.message,
                     "%s: the call with Idempotency-Key '%.127s' is still under way; "
                     "repeat it to get its answer",
                     engine_call_name(w.kind), slot->key);
      engine_reply_to(ctx, e, w.ret, w.kind, w.started_ms, &a);
      return true;
    }
  }
  return false;
}

void engine_idem_gone(weft_ctx *ctx, engine *e, uint64_t caller)
{
  for (size_t i = 0; i < ENGINE_IDEM_KEPT; i++) {
    engine_idem *slot = &e->idem[i];
    unsigned kept = 0;
    for (unsigned k = 0; k < slot->waiter_count; k++) {
      const engine_idem_waiter w = slot->waiters[k];
      if (w.caller != caller) {
        slot->waiters[kept++] = w;
        continue;
      }
      weft_timer_cancel(ctx, w.due_timer);
      engine_answer a = { .err = WEFT_E_CANCELLED, .outcome = WEFT_OUTCOME_UNKNOWN };
      (void)snprintf(a.message, sizeof a.message, "%s: the caller is gone",
                     engine_call_name(w.kind));
      engine_reply_to(ctx, e, w.ret, w.kind, w.started_ms, &a);
    }
    slot->waiter_count = kept;
  }
}

bool engine_call_wanted(const engine_call *call)
{
  return !call->caller_gone || (call->idem != NULL && call->idem->waiter_count > 0);
}
