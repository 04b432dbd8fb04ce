/* A member of a fleet answers its coordinator as a worker answers an engine: each frame
 * becomes a call of the engine's own, whose answer goes back.  The order of frames, their
 * repeats and their lateness are dealt with here, before anything begins. */
#include "engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Of a frame's deadline, kept so that our answer, which names the rank, comes first. */
enum { MARGIN_MS = 500, MARGIN_SHARE = 8 };

/* ---- from frame to call */

static uint64_t patience(uint64_t timeout_ms)
{
  const uint64_t share = timeout_ms / MARGIN_SHARE;
  return timeout_ms - (share < MARGIN_MS ? share : MARGIN_MS);
}

/* NULL after the refusal: no memory, or a version that no client could have set. */
static engine_call *open_call(weft_ctx *ctx, engine *e, const engine_ask *ask,
                              engine_call_kind kind, uint32_t timeout_ms,
                              weft_str version)
{
  if (version.len > ENGINE_VERSION_MAX) {
    engine_upstream_refuse(ctx, ask, WEFT_E_INVAL,
                           "%s: a version of %" PRIu32 " bytes, at most %d are taken",
                           engine_call_name(kind), version.len, ENGINE_VERSION_MAX);
    return NULL;
  }
  engine_call *call = weft_alloc(ctx, sizeof *call);
  char *copy = weft_alloc(ctx, (size_t)version.len + 1);
  if (call == NULL || copy == NULL) {
    weft_free(ctx, call);
    weft_free(ctx, copy);
    engine_upstream_refuse(ctx, ask, WEFT_E_NOMEM, "%s: no memory for a call",
                           engine_call_name(kind));
    return NULL;
  }
  if (version.len > 0) {
    memcpy(copy, version.p, version.len);
  }
  call->kind = kind;
  call->ask = *ask;
  call->ret = ask->back;
  call->version = copy;
  call->started_ms = weft_now_ms(ctx);
  call->due_ms = call->started_ms +
                 patience(timeout_ms != 0 ? timeout_ms : engine_call_patience(e, kind));
  return call;
}

static engine_call *open_session(weft_ctx *ctx, engine *e, const engine_ask *ask,
                                 const weft_msg *msg)
{
  engine_call *call = NULL;
  if (msg->type == WEFT_MSG_W_START) {
    const bool draft = ((const weft_w_start *)msg)->draft != 0;
    call =
        open_call(ctx, e, ask, draft ? CALL_START_DRAFT : CALL_START, 0, (weft_str){ 0 });
    if (call != NULL) {
      call->draft = draft;
    }
  } else if (msg->type == WEFT_MSG_W_ACCEPT) {
    const weft_w_accept *m = (const weft_w_accept *)msg;
    if (m->info == NULL) {
      engine_upstream_refuse(ctx, ask, WEFT_E_INVAL, "the transfer info is missing");
      return NULL;
    }
    call = open_call(ctx, e, ask, m->what == WEFT_TRANSFER_INIT ? CALL_INIT : CALL_UPDATE,
                     m->timeout_ms, (weft_str){ 0 });
    if (call != NULL) {
      call->info = weft_buf_ref(m->info);
    }
  } else {
    const weft_w_finish *m = (const weft_w_finish *)msg;
    call = open_call(ctx, e, ask, CALL_FINISH, m->timeout_ms, m->version);
    if (call != NULL) {
      call->strict = m->strict != 0;
      call->has_version = m->has_version != 0;
    }
  }
  return call;
}

/* ---- sessions */

static void wrong_phase(weft_ctx *ctx, engine *e, const engine_ask *ask)
{
  engine_upstream_refuse(ctx, ask, WEFT_E_STATE,
                         "epoch %" PRIu64 " was asked for, but epoch %" PRIu64 " is %s",
                         ask->epoch, e->up.epoch,
                         wefti_session_state_name(e->session.state));
}

void engine_upstream_accepted(weft_ctx *ctx, engine *e)
{
  engine_said_session(ctx, e, &(engine_answer){ .err = WEFT_OK });
  e->up.held = true;
}

static void on_go(weft_ctx *ctx, engine *e, const engine_ask *ask, const weft_w_go *m)
{
  engine_upstream *up = &e->up;
  const uint32_t accepted =
      e->session.state == WEFTI_INIT ? WEFT_TRANSFER_INIT : WEFT_TRANSFER_UPDATE;
  if (!up->held || e->call == NULL || up->epoch != ask->epoch || m->what != accepted) {
    wrong_phase(ctx, e, ask);
    return;
  }
  up->held = false;
  up->asked = *ask;
  e->call->due_ms = weft_now_ms(ctx) + patience(m->timeout_ms);
  engine_update_go(ctx, e);
}

/* The same frame again; or FINISH, asked anew by one that missed the answer. */
static bool was_said(const engine *e, const engine_ask *ask)
{
  const engine_said *said = &e->up.said;
  const bool voted = e->session.state == WEFTI_PREPARED && e->up.epoch == ask->epoch &&
                     said->type == WEFT_MSG_W_FINISHED && ask->op > e->up.session_op;
  return (said->type != 0 && said->op == ask->op && said->epoch == ask->epoch) ||
         (voted && ask->type == WEFT_MSG_W_FINISH);
}

static void on_session(weft_ctx *ctx, engine *e, const engine_ask *ask,
                       const weft_msg *msg)
{
  engine_upstream *up = &e->up;
  if (was_said(e, ask)) {
    engine_say(ctx, &up->said, ask);
  } else if (up->asked.type == ask->type && up->asked.op == ask->op &&
             up->asked.epoch == ask->epoch) {
    engine_upstream_again(ctx, &up->asked, ask);
  } else if (ask->epoch == up->gave_up && e->last_abort_epoch == e->session.epoch) {
    engine_upstream_refuse(ctx, ask, WEFT_E_STALE, "has given this update up: %s",
                           e->last_abort);
  } else if (ask->epoch <= up->ended) {
    engine_upstream_refuse(ctx, ask, WEFT_E_STALE,
                           "epoch %" PRIu64 ", but %" PRIu64 " has ended here",
                           ask->epoch, up->ended);
  } else if (ask->op < up->session_op) {
    engine_upstream_refuse(ctx, ask, WEFT_E_STALE, "a later operation came first");
  } else if (up->asked.type != 0) {
    wrong_phase(ctx, e, ask);
  } else if (ask->type == WEFT_MSG_W_GO) {
    up->session_op = ask->op;
    on_go(ctx, e, ask, (const weft_w_go *)msg);
  } else {
    up->session_op = ask->op;
    engine_call *call = open_session(ctx, e, ask, msg);
    if (call != NULL) {
      up->asked = *ask;
      engine_dispatch(ctx, e, call);
    }
  }
}

/* A session that somebody opened here gives way. */
static void take_over(weft_ctx *ctx, engine *e, engine_call *call)
{
  static const char why[] = "the coordinator of the fleet has begun";
  if (e->waiting_count >= ENGINE_WAITING_MAX) {
    engine_wait_for_turn(ctx, e, call); /* is refused there */
    return;
  }
  if (e->call != NULL) {
    engine_fail_running(ctx, e, why);
  }
  engine_wait_for_turn(ctx, e, call);
  engine_abort_begin(ctx, e, NULL, why);
}

static void begin_session(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (e->session.state == WEFTI_COMMITTING && e->change.published) {
    engine_upstream_show(ctx, e); /* it goes on, so it has made it visible */
  }
  const wefti_session_state s = e->session.state;
  if (call->draft) {
    engine_answer_err(ctx, e, call, WEFT_E_UNSUPPORTED, "a fleet has no draft model");
  } else if (s == WEFTI_IDLE && !engine_vote_in_doubt(&e->up.vote)) {
    e->up.epoch = call->ask.epoch;
    if (call->kind == CALL_INIT) {
      engine_init_begin(ctx, e, call);
    } else {
      engine_start_begin(ctx, e, call);
    }
  } else if (s == WEFTI_COMMITTING || s == WEFTI_ABORTING) {
    engine_wait_for_turn(ctx, e, call);
  } else if (!e->session.upstream && !engine_vote_in_doubt(&e->up.vote)) {
    take_over(ctx, e, call);
  } else {
    engine_answer_err(ctx, e, call, WEFT_E_STATE, "epoch %" PRIu64 " is %s here",
                      e->up.epoch, wefti_session_state_name(s));
  }
}

/* Update and finish. */
static void go_on(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (e->session.state != WEFTI_OPEN || !e->session.upstream ||
      e->up.epoch != call->ask.epoch) {
    engine_answer_err(ctx, e, call, WEFT_E_STATE,
                      "%s of epoch %" PRIu64 ", but epoch %" PRIu64 " is %s here",
                      engine_call_name(call->kind), call->ask.epoch, e->up.epoch,
                      wefti_session_state_name(e->session.state));
  } else if (call->kind == CALL_UPDATE && engine_inplace_update_waits(e)) {
    engine_wait_for_turn(ctx, e, call);
  } else if (call->kind == CALL_UPDATE) {
    engine_update_begin(ctx, e, call);
  } else {
    engine_finish_begin(ctx, e, call);
  }
}

static void take_label(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (e->session.state == WEFTI_COMMITTING && e->change.published) {
    engine_upstream_show(ctx, e); /* the change before the label is visible there */
  }
  char why[ENGINE_POISON_TEXT];
  const bool has_happened =
      e->visible.declared && strcmp(e->visible.version, call->version) == 0;
  if (e->change.pending) {
    engine_wait_for_turn(ctx, e, call);
  } else if (has_happened || engine_inplace_label_waits(e) ||
             engine_inplace_unfit(e, why, sizeof why)) {
    /* In place: nothing is live that it would name.  What comes next brings its name
     * along; if this is whole after all, a heartbeat shows that it lacks this one. */
    engine_answer_ok(ctx, e, call);
  } else {
    engine_label_begin(ctx, e, call);
  }
}

void engine_upstream_dispatch(weft_ctx *ctx, engine *e, engine_call *call)
{
  switch ((int)call->kind) {
  case CALL_INIT:
  case CALL_START:
  case CALL_START_DRAFT:
    begin_session(ctx, e, call);
    break;
  case CALL_UPDATE:
  case CALL_FINISH:
    go_on(ctx, e, call);
    break;
  case CALL_LABEL:
    take_label(ctx, e, call);
    break;
  case CALL_PAUSE:
    engine_pause_begin(ctx, e, call);
    break;
  case CALL_CACHE:
    engine_cache_reset(ctx, e, call);
    break;
  default:
    engine_check_upstream(ctx, e, call);
    break;
  }
}

/* ---- the end of sessions */

void engine_upstream_drop(weft_ctx *ctx, engine *e, const char *why)
{
  if (e->call != NULL) {
    engine_fail_running(ctx, e, why);
  }
  engine_abort_begin(ctx, e, NULL, why);
}

static void on_abort(weft_ctx *ctx, engine *e, const engine_ask *ask, weft_str reason)
{
  engine_upstream *up = &e->up;
  if (ask->boot == up->last_boot && ask->epoch == up->last_epoch && !up->aborted_last) {
    engine_upstream_refuse(ctx, ask, WEFT_E_STALE,
                           "epoch %" PRIu64 " was committed here, by an operator",
                           ask->epoch);
  } else if (ask->epoch <= up->ended) {
    engine_upstream_ok(ctx, ask);
  } else if (e->session.upstream && e->session.state == WEFTI_ABORTING) {
    engine_upstream_again(ctx, &up->abort, ask);
  } else if (up->epoch == 0 || ask->epoch < up->epoch) {
    up->ended = ask->epoch; /* nothing of it here, and nothing of it will be taken in */
    engine_wait_drop_upstream(ctx, e, "was aborted before its turn came");
    engine_upstream_ok(ctx, ask);
  } else if (e->session.state == WEFTI_COMMITTING) {
    wrong_phase(ctx, e, ask);
  } else {
    char why[ENGINE_TEXT_MAX];
    (void)snprintf(why, sizeof why, "%.*s", (int)reason.len,
                   reason.p == NULL ? "" : reason.p);
    up->abort = *ask;
    engine_upstream_drop(ctx, e, why);
  }
}

void engine_upstream_aborted(weft_ctx *ctx, engine *e)
{
  engine_upstream *up = &e->up;
  if (!e->session.upstream) {
    return;
  }
  up->ended = up->epoch > up->ended ? up->epoch : up->ended;
  up->gave_up = up->epoch;
  up->epoch = 0;
  if (up->abort.type != 0) {
    up->ended = up->abort.epoch > up->ended ? up->abort.epoch : up->ended;
    engine_upstream_ok(ctx, &up->abort);
    up->abort.type = 0;
  }
}

static void on_publish(weft_ctx *ctx, engine *e, const engine_ask *ask,
                       const weft_w_publish *m)
{
  engine_upstream *up = &e->up;
  const engine_vote *v = &up->vote;
  if (m->sequence <= up->sequence) {
    engine_upstream_ok(ctx, ask); /* has happened */
  } else if (e->session.state == WEFTI_COMMITTING && e->session.upstream &&
             up->next_sequence == m->sequence) {
    engine_upstream_again(ctx, &up->asked, ask);
  } else if (ask->epoch <= up->ended) {
    engine_upstream_refuse(ctx, ask, WEFT_E_STALE,
                           "publish of epoch %" PRIu64 ", but %" PRIu64 " has ended here",
                           ask->epoch, up->ended);
  } else if (e->session.state != WEFTI_PREPARED || v->boot != ask->boot ||
             v->epoch != ask->epoch) {
    wrong_phase(ctx, e, ask);
  } else {
    up->asked = *ask;
    engine_vote_commit(ctx, e, m->sequence, m->version, m->declared != 0);
  }
}

void engine_upstream_published(weft_ctx *ctx, engine *e)
{
  engine_upstream *up = &e->up;
  const engine_visible *next = &e->change.next;
  up->before = up->sequence;
  up->sequence = up->next_sequence;
  if (up->sequence != 0) { /* an operator's: whether the fleet has it too is to be seen */
    up->want_sequence = up->sequence;
    up->want_hi = next->digest_hi;
    up->want_lo = next->digest_lo;
  }
  up->ended = up->vote.boot == up->coordinator.boot && up->epoch > up->ended ? up->epoch
                                                                             : up->ended;
  up->epoch = 0;
  e->change.published = true;
  engine_vote_over(ctx, e, true);
  if (up->asked.type != 0) {
    engine_upstream_ok(ctx, &up->asked);
    up->asked.type = 0;
  }
  if (up->seen >= up->next_sequence) {
    engine_upstream_show(ctx, e);
  } else {
    engine_event_status(ctx, e);
  }
}

void engine_upstream_show(weft_ctx *ctx, engine *e)
{
  if (engine_upstream_unshown(e)) {
    engine_become_visible(ctx, e, "");
  }
}

/* ---- frames */

static bool of_this_life(weft_ctx *ctx, const engine *e, const engine_ask *ask)
{
  if (ask->incarnation != e->args.boot_id) {
    engine_upstream_refuse(ctx, ask, WEFT_E_STALE,
                           "meant for incarnation %" PRIx64 ", this is %" PRIx64,
                           ask->incarnation, e->args.boot_id);
    return false;
  }
  if (ask->type != WEFT_MSG_W_ADOPT &&
      (e->up.coordinator.boot == 0 || ask->boot != e->up.coordinator.boot)) {
    engine_upstream_refuse(ctx, ask, WEFT_E_STALE,
                           "from coordinator boot %" PRIx64 ", adopted by %" PRIx64,
                           ask->boot, e->up.coordinator.boot);
    return false;
  }
  return true;
}

/* What is about no session: a label, a pause, a cache, a question. */
static void on_order(weft_ctx *ctx, engine *e, const engine_ask *ask, const weft_msg *msg)
{
  engine_call *call;
  if (msg->type == WEFT_MSG_W_LABEL) {
    call = open_call(ctx, e, ask, CALL_LABEL, 0, ((const weft_w_label *)msg)->version);
  } else if (msg->type == WEFT_MSG_W_PAUSE) {
    const weft_w_pause *m = (const weft_w_pause *)msg;
    call = open_call(ctx, e, ask, CALL_PAUSE, 0, (weft_str){ 0 });
    if (call != NULL) {
      call->action = m->action;
      call->clear_cache = m->clear_cache != 0;
      call->reason = weft_alloc(ctx, (size_t)m->mode.len + 1);
      if (call->reason != NULL && m->mode.len > 0) {
        memcpy(call->reason, m->mode.p, m->mode.len);
      }
    }
  } else {
    call = open_call(ctx, e, ask, msg->type == WEFT_MSG_W_CACHE ? CALL_CACHE : CALL_CHECK,
                     0, (weft_str){ 0 });
    if (call != NULL && msg->type == WEFT_MSG_W_QUERY) {
      call->action = ((const weft_w_query *)msg)->what;
    }
  }
  if (call != NULL && call->kind == CALL_PAUSE && call->reason == NULL) {
    engine_answer_err(ctx, e, call, WEFT_E_NOMEM, "%s: no memory for a call",
                      engine_call_name(call->kind));
  } else if (call != NULL) {
    engine_dispatch(ctx, e, call);
  }
}

void engine_upstream_frame(weft_ctx *ctx, engine *e, const weft_msg *msg)
{
  const weft_w_ok *m = (const weft_w_ok *)msg; /* all begin with the envelope */
  const bool frame = (msg->type >= WEFT_MSG_W_ADOPT && msg->type <= WEFT_MSG_W_QUERY) ||
                     (msg->type >= WEFT_MSG_W_LABEL && msg->type <= WEFT_MSG_W_CACHE);
  if (!frame) {
    return;
  }
  const engine_ask ask = { msg->type, m->boot, m->incarnation,
                           m->epoch,  m->op,   weft_return_of(msg) };
  if (!of_this_life(ctx, e, &ask)) {
    return;
  }
  const bool session = msg->type >= WEFT_MSG_W_START && msg->type <= WEFT_MSG_W_ABORT;
  if (session && ask.epoch == 0) {
    engine_upstream_refuse(ctx, &ask, WEFT_E_INVAL, "epoch 0 is none");
  } else if (msg->type == WEFT_MSG_W_ADOPT) {
    engine_upstream_adopt(ctx, e, (const weft_w_adopt *)msg);
  } else if (msg->type == WEFT_MSG_W_BEAT) {
    engine_upstream_beat(ctx, e, (const weft_w_beat *)msg);
  } else if (msg->type == WEFT_MSG_W_PUBLISH) {
    on_publish(ctx, e, &ask, (const weft_w_publish *)msg);
  } else if (msg->type == WEFT_MSG_W_ABORT) {
    on_abort(ctx, e, &ask, ((const weft_w_abort *)msg)->reason);
  } else if (msg->type == WEFT_MSG_W_RESOLVE) {
    engine_vote_resolve(ctx, e, &ask, (const weft_w_resolve *)msg);
  } else if (session) {
    on_session(ctx, e, &ask, msg);
  } else {
    on_order(ctx, e, &ask, msg);
  }
}

void engine_upstream_fini(engine *e)
{
  engine_said_clear(&e->up.said);
  engine_vote_fini(e);
}
