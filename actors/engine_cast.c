/* One message to all replicas of a coordinator, beside whatever round is under way: a
 * label whose record is durable, a pause, a cache reset.  Who does not confirm a label is
 * fenced; who does not confirm the others is named. */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct cast_part {
  uint64_t corr;        /* 0 = not asked, or answered */
  bool waits_for_fence; /* of a label */
  uint64_t op;
  bool paused; /* what a pause or resume has asked for */
  weft_err err;
  char text[160];
} cast_part;

typedef struct engine_cast {
  struct engine_cast *next;
  engine_call_kind kind;
  engine_call *call; /* pause and cache reset; NULL = a label, or nobody's */
  bool of_change;    /* the label that is on its way */
  uint32_t open;
  cast_part parts[]; /* [world] */
} engine_cast;

static void cast_free(weft_ctx *ctx, engine *e, engine_cast *c)
{
  for (engine_cast **at = &e->fleet.casts; *at != NULL; at = &(*at)->next) {
    if (*at == c) {
      *at = c->next;
      break;
    }
  }
  for (uint32_t i = 0; i < e->world; i++) {
    weft_ask_cancel(ctx, c->parts[i].corr);
  }
  engine_call_free(ctx, e, c->call);
  weft_free(ctx, c);
}

void engine_cast_fini(weft_ctx *ctx, engine *e)
{
  while (e->fleet.casts != NULL) {
    cast_free(ctx, e, e->fleet.casts);
  }
}

/* ---- the end */

static weft_buf *results(const engine *e, const engine_cast *c)
{
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_array(&w, NULL);
  for (uint32_t i = 0; i < e->world; i++) {
    const cast_part *p = &c->parts[i];
    engine_fleet_result(&w, i, p->err == WEFT_OK ? NULL : p->text);
  }
  weft_jw_end(&w);
  return weft_jw_take_buf(&w);
}

static void label_done(weft_ctx *ctx, engine *e, engine_cast *c)
{
  char fenced[256] = "";
  for (uint32_t i = 0; i < e->world; i++) {
    if (c->parts[i].err != WEFT_OK) {
      engine_fenced_add(fenced, sizeof fenced, i);
    }
  }
  if (e->change.call != NULL) {
    e->change.call->results = results(e, c);
  }
  cast_free(ctx, e, c);
  engine_become_visible(ctx, e, fenced);
}

static void call_done(weft_ctx *ctx, engine *e, engine_cast *c)
{
  engine_answer a = { .err = WEFT_OK };
  char culprits[256] = "";
  const bool resume = c->call != NULL && c->call->action == WEFT_RESUME;
  const char *word =
      c->kind == CALL_PAUSE && resume ? "resume" : engine_call_name(c->kind);
  for (uint32_t i = 0; i < e->world; i++) {
    const cast_part *p = &c->parts[i];
    const size_t named = strlen(culprits);
    const size_t at = strlen(a.message);
    if (p->err == WEFT_OK) {
      continue;
    }
    a.err = a.err == WEFT_OK ? p->err : a.err;
    (void)snprintf(culprits + named, sizeof culprits - named, "%sreplica %" PRIu32,
                   named == 0 ? "" : ", ", i);
    (void)snprintf(a.message + at, sizeof a.message - at, "%s replica %" PRIu32 ": %s",
                   at == 0 ? word : ";", i, p->text);
  }
  a.culprits = culprits;
  engine_call *call = c->call;
  c->call = NULL;
  if (call != NULL) {
    call->results = results(e, c);
  }
  cast_free(ctx, e, c);
  if (call != NULL) {
    engine_answer_call(ctx, e, call, &a);
  }
}

static void end_if_over(weft_ctx *ctx, engine *e, engine_cast *c)
{
  if (c->open > 0) {
    return;
  }
  if (c->of_change) {
    label_done(ctx, e, c);
  } else {
    call_done(ctx, e, c);
  }
}

static void part_failed(engine_cast *c, uint32_t rank, weft_err err, const char *text)
{
  cast_part *p = &c->parts[rank];
  p->err = err == WEFT_OK ? WEFT_E_FAILED : err;
  (void)snprintf(p->text, sizeof p->text, "%.159s", text);
}

/* A pause or resume that was not heard is told again, when it is in. */
static void owe(engine *e, const engine_cast *c, uint32_t rank, bool owed)
{
  if (c->kind == CALL_PAUSE) {
    e->fleet.replicas[rank].pause_owed = owed;
  }
}

/* ---- asking */

static weft_msg *question(weft_ctx *ctx, const engine *e, const engine_cast *c,
                          const engine_member *m, uint64_t op)
{
  const engine_visible *v = c->of_change ? &e->change.next : &e->visible;
  const char *mode = e->paused ? e->pause_mode : "";
  const char *which = c->call == NULL || c->call->reason == NULL ? "" : c->call->reason;
  if (c->kind == CALL_LABEL) {
    return weft_msg_make(
        ctx, &(weft_w_label){ .h.type = WEFT_MSG_W_LABEL,
                              .boot = e->args.boot_id,
                              .incarnation = m->incarnation,
                              .op = op,
                              .sequence = v->sequence,
                              .version = { v->version, (uint32_t)strlen(v->version) } }
                  .h);
  }
  if (c->kind == CALL_PAUSE) {
    return weft_msg_make(
        ctx, &(weft_w_pause){ .h.type = WEFT_MSG_W_PAUSE,
                              .boot = e->args.boot_id,
                              .incarnation = m->incarnation,
                              .op = op,
                              .action = e->paused ? WEFT_PAUSE : WEFT_RESUME,
                              .mode = { mode, (uint32_t)strlen(mode) },
                              .clear_cache = c->call != NULL && c->call->clear_cache }
                  .h);
  }
  return weft_msg_make(ctx, &(weft_w_cache){ .h.type = WEFT_MSG_W_CACHE,
                                             .boot = e->args.boot_id,
                                             .incarnation = m->incarnation,
                                             .op = op,
                                             .which = { which, (uint32_t)strlen(which) } }
                                 .h);
}

static void ask(weft_ctx *ctx, engine *e, engine_cast *c, uint32_t rank,
                uint64_t within_ms)
{
  const engine_member *m = &e->members[rank];
  cast_part *p = &c->parts[rank];
  if (engine_member_usable(m)) {
    p->op = ++e->op_last;
    p->paused = e->paused;
    p->corr = weft_ask(ctx, m->actor, question(ctx, e, c, m, p->op), within_ms);
    c->open++;
  } else if (c->of_change && m->state == MEMBER_LOST) {
    p->waits_for_fence = true;
    part_failed(c, rank, WEFT_E_DOWN, m->why);
    c->open++;
  } else if (c->kind != CALL_LABEL) {
    owe(e, c, rank, true);
    part_failed(c, rank, WEFT_E_UNAVAIL, m->why[0] == '\0' ? "is not in" : m->why);
  }
}

/* NULL = out of memory. */
static engine_cast *create(weft_ctx *ctx, engine *e, engine_call_kind kind)
{
  engine_cast *c = weft_alloc(ctx, sizeof *c + e->world * sizeof c->parts[0]);
  if (c != NULL) {
    c->kind = kind;
    c->next = e->fleet.casts;
    e->fleet.casts = c;
  }
  return c;
}

void engine_cast_begin(weft_ctx *ctx, engine *e, engine_call *call)
{
  engine_cast *c = create(ctx, e, call->kind);
  uint64_t within_ms = engine_call_left_ms(ctx, call);
  if (c == NULL && call->kind == CALL_LABEL) {
    e->change.recorded = false; /* the same record again: its answer tries this again */
    return;
  }
  if (c == NULL) {
    engine_answer_err(ctx, e, call, WEFT_E_NOMEM, "%s: no memory to tell the replicas",
                      engine_call_name(call->kind));
    return;
  }
  if (call->kind == CALL_LABEL) {
    c->of_change = true;
    within_ms = e->args.publish_ms;
  } else {
    c->call = call;
  }
  for (uint32_t i = 0; i < e->world; i++) {
    ask(ctx, e, c, i, within_ms);
  }
  end_if_over(ctx, e, c);
}

static void tell_one(weft_ctx *ctx, engine *e, uint32_t rank, engine_call_kind kind)
{
  for (const engine_cast *c = e->fleet.casts; c != NULL; c = c->next) {
    if (c->kind == kind && c->parts[rank].corr != 0) {
      return; /* is being told */
    }
  }
  engine_cast *c = create(ctx, e, kind);
  if (c != NULL) {
    ask(ctx, e, c, rank, e->args.publish_ms);
    end_if_over(ctx, e, c);
  }
}

void engine_cast_pause_to(weft_ctx *ctx, engine *e, uint32_t rank)
{
  tell_one(ctx, e, rank, CALL_PAUSE);
}

void engine_cast_label_to(weft_ctx *ctx, engine *e, uint32_t rank)
{
  tell_one(ctx, e, rank, CALL_LABEL);
}

/* ---- answers */

static engine_cast *cast_of(const engine *e, uint64_t corr, uint32_t *rank)
{
  for (engine_cast *c = e->fleet.casts; c != NULL && corr != 0; c = c->next) {
    for (uint32_t i = 0; i < e->world; i++) {
      if (c->parts[i].corr == corr) {
        *rank = i;
        return c;
      }
    }
  }
  return NULL;
}

static void take_label(engine *e, const engine_cast *c, uint32_t rank)
{
  engine_replica *r = &e->fleet.replicas[rank];
  const engine_visible *v = c->of_change ? &e->change.next : &e->visible;
  (void)snprintf(r->version, sizeof r->version, "%s", v->version);
  r->version_op = e->op_last; /* what was asked before this answer may say the old one */
}

bool engine_cast_answer(weft_ctx *ctx, engine *e, const weft_msg *msg)
{
  uint32_t rank = 0;
  engine_cast *c = cast_of(e, msg->corr, &rank);
  if (c == NULL) {
    return false;
  }
  cast_part *p = &c->parts[rank];
  const weft_w_ok *env = (const weft_w_ok *)msg;
  p->corr = 0;
  owe(e, c, rank, msg->type != WEFT_MSG_W_OK && msg->type != WEFT_MSG_W_REFUSED);
  if (msg->type == WEFT_MSG_ASK_FAILED) {
    const weft_err err = (weft_err)((const weft_ask_failed_msg *)msg)->reason;
    part_failed(c, rank, err,
                err == WEFT_E_TIMEOUT ? "has not answered in time" : weft_strerror(err));
  } else if (msg->type == WEFT_MSG_W_REFUSED) {
    const weft_w_refused *r = (const weft_w_refused *)msg;
    part_failed(c, rank, (weft_err)r->err, r->text.p == NULL ? "refused" : r->text.p);
  } else if (msg->type != WEFT_MSG_W_OK || env->boot != e->args.boot_id ||
             env->op != p->op) {
    part_failed(c, rank, WEFT_E_PROTO, "answered with something else");
  } else if (c->kind == CALL_LABEL) {
    take_label(e, c, rank);
  } else if (c->kind == CALL_PAUSE) {
    engine_fleet_paused(ctx, e, rank, p->paused);
    e->fleet.replicas[rank].pause_op = e->op_last; /* as with labels */
  }
  if (p->err != WEFT_OK && c->of_change) {
    char why[200];
    (void)snprintf(why, sizeof why, "did not confirm a label: %.120s", p->text);
    p->waits_for_fence = true; /* engine_cast_fenced goes on */
    engine_fence(ctx, e, rank, why);
    return true;
  }
  c->open--;
  end_if_over(ctx, e, c);
  return true;
}

void engine_cast_lost(weft_ctx *ctx, engine *e, uint32_t rank, const char *why)
{
  engine_cast *next;
  for (engine_cast *c = e->fleet.casts; c != NULL; c = next) {
    cast_part *p = &c->parts[rank];
    next = c->next;
    if (p->corr == 0) {
      continue;
    }
    weft_ask_cancel(ctx, p->corr);
    p->corr = 0;
    part_failed(c, rank, WEFT_E_DOWN, why);
    owe(e, c, rank, true);
    p->waits_for_fence = c->of_change;
    if (!c->of_change) {
      c->open--;
      end_if_over(ctx, e, c);
    }
  }
}

void engine_cast_fenced(weft_ctx *ctx, engine *e, uint32_t rank)
{
  for (engine_cast *c = e->fleet.casts; c != NULL; c = c->next) {
    if (c->parts[rank].waits_for_fence) {
      c->parts[rank].waits_for_fence = false;
      c->open--;
      end_if_over(ctx, e, c);
      return; /* there is one label at a time */
    }
  }
}
