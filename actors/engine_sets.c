/* The main model's set of weights and the draft model's: a session writes one of them,
 * the other one stays as it is on every rank. */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *engine_set_name(engine_which which)
{
  return which == SET_DRAFT ? "draft" : "main";
}

static engine_which other_than(engine_which which)
{
  return which == SET_DRAFT ? SET_MAIN : SET_DRAFT;
}

bool engine_set_is_lost(const engine *e, engine_which which)
{
  bool lost = e->was_reset;
  for (uint32_t i = 0; i < e->world; i++) {
    lost = lost || e->members[i].state == MEMBER_BEHIND;
  }
  return lost && e->args.draft && e->visible.sets[which].tensors > 0;
}

bool engine_sets_come_back(weft_ctx *ctx, const engine *e)
{
  for (uint32_t i = 0; i < e->world; i++) {
    const engine_member *m = &e->members[i];
    const bool fetched = m->lent.incarnation == m->incarnation && m->lent.fetched &&
                         weft_now_ms(ctx) < m->lent.not_before_ms;
    if (m->state == MEMBER_BEHIND &&
        (fetched || m->reported.phase == WEFT_WORKER_MAPPING)) {
      return true;
    }
  }
  return e->loan.stage != LOAN_NONE;
}

/* ---- before the commit */

static void drop(weft_ctx *ctx, engine *e, uint32_t rank, const char *message)
{
  char culprits[32];
  (void)snprintf(culprits, sizeof culprits, "%s %" PRIu32, engine_unit(e), rank);
  engine_answer a = { .err = WEFT_E_FAILED,
                      .outcome = WEFT_OUTCOME_NOT_COMMITTED,
                      .phase = engine_phase_name(PHASE_FINISH),
                      .culprits = culprits };
  (void)snprintf(a.message, sizeof a.message, "%s", message);
  engine_op_failed(ctx, e, &a);
}

bool engine_set_is_live(const engine *e, weft_str name)
{
  const char *draft = engine_set_name(SET_DRAFT);
  const bool is_draft = name.len == strlen(draft) && memcmp(name.p, draft, name.len) == 0;
  return e->visible.weights_sequence != 0 &&
         (!e->args.draft ||
          e->visible.sets[is_draft ? SET_DRAFT : SET_MAIN].tensors != 0);
}

/* " of the main set", where there are two. */
static const char *of_set(const engine *e, engine_which which)
{
  return !e->args.draft       ? ""
         : which == SET_DRAFT ? " of the draft set"
                              : " of the main set";
}

bool engine_sets_are_whole(weft_ctx *ctx, engine *e)
{
  const engine_which which = e->session.which;
  const engine_which other = other_than(which);
  if (e->visible.weights_sequence == 0 && e->inplace.poisoned == 0) {
    return true; /* there is nothing that could lack */
  }
  for (uint32_t i = 0; i < e->world; i++) {
    /* next_sets: of what the rank installed for what is visible now. */
    const engine_member *m = &e->members[i];
    const engine_reply *r = &e->round.replies[i];
    const uint64_t kept = r->tensors - r->set.tensors;
    const uint64_t wanted = e->session.alone ? 0 : m->next_sets[other];
    char text[ENGINE_TEXT_MAX];
    if (m->state == MEMBER_BEHIND && r->set.tensors < m->next_sets[which]) {
      (void)snprintf(text, sizeof text,
                     "%s failed: %s %" PRIu32 " has no weights and got %" PRIu64
                     " of %" PRIu64 " tensors%s; %s, push every tensor to bring it back",
                     engine_call_name(CALL_FINISH), engine_unit(e), i, r->set.tensors,
                     m->next_sets[which], of_set(e, which), engine_unchanged(e));
    } else if (kept != wanted) {
      (void)snprintf(text, sizeof text,
                     "%s failed: %s %" PRIu32 " has %" PRIu64 " of %" PRIu64
                     " tensors%s left; %s, try again",
                     engine_call_name(CALL_FINISH), engine_unit(e), i, kept, wanted,
                     of_set(e, other), engine_unchanged(e));
    } else {
      continue;
    }
    drop(ctx, e, i, text);
    return false;
  }
  return true;
}

void engine_sets_next(const engine *e, engine_visible *next)
{
  const engine_which which = e->session.which;
  const engine_which other = other_than(which);
  const engine_reply *r = e->round.replies;
  for (uint32_t i = 0; i < e->world; i++) {
    e->members[i].next_sets[which] = r[i].set.tensors;
    e->members[i].next_sets[other] = r[i].tensors - r[i].set.tensors;
  }
  engine_set_digest(e, true, &next->digest_hi, &next->digest_lo);
  next->tensors = r[0].tensors;
  next->bytes = r[0].bytes;
  engine_set *set = &next->sets[which];
  *set = r[0].set;
  engine_set_digest(e, false, &set->digest_hi, &set->digest_lo);
  if (e->session.alone) {
    next->sets[other] = (engine_set){ .tensors = 0 };
  }
}

/* ---- after it */

void engine_sets_visible(weft_ctx *ctx, engine *e, engine_change *change)
{
  const engine_which other = other_than(change->which);
  weft_buf_unref(e->sources[change->which]);
  e->sources[change->which] = change->sources;
  change->sources = NULL;
  e->was_reset = false;
  if (change->alone) {
    weft_buf_unref(e->sources[other]);
    e->sources[other] = NULL;
    weft_log(ctx, WEFT_LOG_WARN,
             "the %s set is gone, not every rank had it any more: push it again "
             "sequence=%" PRIu64,
             engine_set_name(other), e->visible.sequence);
  }
  e->draft_lost = change->which == SET_DRAFT ? false : change->alone || e->draft_lost;
}

/* ---- as JSON */

void engine_jw_set_digest(weft_json_writer *w, const engine *e, engine_which which)
{
  const engine_set *set = &e->visible.sets[which];
  const bool none = e->args.draft && set->tensors == 0;
  engine_jw_digest(w, "digest", none ? 0 : e->visible.weights_sequence, set->digest_hi,
                   set->digest_lo);
}

void engine_jw_draft(weft_json_writer *w, const engine *e)
{
  if (!e->args.draft) {
    weft_jw_null(w, "draft");
    return;
  }
  const engine_set *set = &e->visible.sets[SET_DRAFT];
  weft_jw_object(w, "draft");
  engine_jw_set_digest(w, e, SET_DRAFT);
  const bool live = e->visible.weights_sequence != 0; /* not when poisoned */
  weft_jw_u64(w, "tensors", live ? set->tensors : 0);
  weft_jw_u64(w, "bytes", live ? set->bytes : 0);
  weft_jw_bool(w, "lost", e->draft_lost);
  if (e->args.draft_manifest != NULL) {
    weft_jw_object(w, "manifest");
    weft_jw_str(w, "file", e->args.draft_manifest);
    weft_jw_u64(w, "tensors", e->args.draft_manifest_count);
    weft_jw_end(w);
  } else {
    weft_jw_null(w, "manifest");
  }
  weft_jw_end(w);
  /* What workers and their readers know the two by. */
  engine_jw_digest(w, "snapshot_digest", e->visible.weights_sequence,
                   e->visible.digest_hi, e->visible.digest_lo);
}
