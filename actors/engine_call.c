#include "engine.h"
#include "weft/digest.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CALL_DEFAULT_MS = 30000, CALL_MAX_MS = 86400000 };
static_assert(ENGINE_VERSION_MAX == 1024 && sizeof((engine_idem *)0)->key == 128,
              "as bad_field says");

const char *engine_call_name(engine_call_kind kind)
{
  static const char *const names[CALL_KINDS] = {
    [CALL_INIT] = "init_weight_transfer_engine",
    [CALL_SHUTDOWN] = "shutdown_weight_transfer_engine",
    [CALL_START] = "start_weight_update",
    [CALL_START_DRAFT] = "start_draft_weight_update",
    [CALL_UPDATE] = "update_weights",
    [CALL_FINISH] = "finish_weight_update",
    [CALL_LABEL] = "update_weight_version",
    [CALL_ABORT] = "abort_weight_update",
    [CALL_PAUSE] = "pause",
    [CALL_CHECK] = "weight_checker",
    [CALL_CACHE] = "reset_cache",
    [CALL_RESOLVE] = "resolve_weight_update",
    [CALL_QUERY] = "query",
  };
  return kind < CALL_KINDS ? names[kind] : "unknown";
}

bool engine_call_of_session(engine_call_kind kind)
{
  return kind == CALL_INIT || kind == CALL_SHUTDOWN || kind == CALL_START ||
         kind == CALL_START_DRAFT || kind == CALL_UPDATE || kind == CALL_FINISH;
}

bool engine_call_changes(engine_call_kind kind)
{
  return kind == CALL_START || kind == CALL_START_DRAFT || kind == CALL_UPDATE ||
         kind == CALL_FINISH || kind == CALL_LABEL;
}

const char *engine_unit(const engine *e)
{
  return e->fleet.replicas == NULL ? "rank" : "replica";
}

/* ---- answers */

static weft_str str_of(const char *s)
{
  return (weft_str){ s, (uint32_t)strlen(s) };
}

typedef struct done_answer {
  weft_client_done msg; /* points into the rest and into what it was made of */
  char session[64];
} done_answer;

static void fill_done(weft_ctx *ctx, const engine *e, engine_call_kind kind,
                      uint64_t started_ms, const engine_answer *a, done_answer *out)
{
  const bool ok = a->err == WEFT_OK;
  out->session[0] = '\0';
  if ((kind == CALL_START || kind == CALL_START_DRAFT) && ok) {
    engine_session_id(e, e->session.epoch, out->session, sizeof out->session);
  }
  out->msg = (weft_client_done){
    .h.type = WEFT_MSG_CLIENT_DONE,
    .err = a->err,
    .outcome = a->outcome,
    .message = str_of(a->message),
    .operation = str_of(ok ? "" : engine_call_name(kind)),
    .phase = str_of(a->phase == NULL ? "" : a->phase),
    .culprits = str_of(a->culprits == NULL ? "" : a->culprits),
    .elapsed_ms = weft_now_ms(ctx) - started_ms,
    .session = str_of(out->session),
    .version = str_of(e->visible.version),
    .sequence = e->visible.sequence,
    .fenced = str_of(a->fenced == NULL ? "" : a->fenced),
    .body = a->body,
  };
}

void engine_reply_to(weft_ctx *ctx, engine *e, weft_return ret, engine_call_kind kind,
                     uint64_t started_ms, const engine_answer *a)
{
  done_answer done;
  fill_done(ctx, e, kind, started_ms, a, &done);
  (void)weft_reply(ctx, ret, weft_msg_make(ctx, &done.msg.h));
}

static void tell(weft_ctx *ctx, engine *e, engine_call *call, const engine_answer *a,
                 bool final)
{
  done_answer done;
  fill_done(ctx, e, call->kind, call->started_ms, a, &done);
  if (call->results == NULL && call->asked) {
    call->results = engine_fleet_results(e);
  }
  done.msg.replicas = call->results;
  call->failed = a->err != WEFT_OK;
  if (!call->answered && call->ask.type != 0) {
    engine_upstream_answer(ctx, e, call, a);
    call->answered = true;
  } else if (!call->answered) {
    (void)weft_reply(ctx, call->ret, weft_msg_make(ctx, &done.msg.h));
    call->answered = true;
  }
  engine_idem *slot = call->idem;
  if (slot == NULL) {
    return;
  }
  for (unsigned i = 0; i < slot->waiter_count; i++) {
    (void)weft_reply(ctx, slot->waiters[i].ret, weft_msg_make(ctx, &done.msg.h));
    weft_timer_cancel(ctx, slot->waiters[i].due_timer);
  }
  slot->waiter_count = 0;
  if (!final) {
    return;
  }
  call->idem = NULL;
  /* Where nothing was done, a repeat with the same key may be tried for real. */
  slot->answer = a->err != WEFT_OK && !call->begun
                     ? NULL
                     : (weft_client_done *)weft_msg_dup(weft_messages(), &done.msg.h);
  slot->done = true;
  if (slot->answer == NULL) {
    engine_idem_clear(slot);
  }
}

void engine_call_free(weft_ctx *ctx, engine *e, engine_call *call)
{
  if (call == NULL) {
    return;
  }
  engine_metrics_ended(ctx, e, call);
  if (call->idem != NULL) {
    engine_idem_clear(call->idem);
  }
  weft_timer_cancel(ctx, call->due_timer);
  weft_buf_unref(call->info);
  weft_buf_unref(call->results);
  weft_free(ctx, call->version);
  weft_free(ctx, call->expected);
  weft_free(ctx, call->reason);
  weft_free(ctx, call);
}

void engine_answer_call(weft_ctx *ctx, engine *e, engine_call *call,
                        const engine_answer *a)
{
  tell(ctx, e, call, a, true);
  engine_call_free(ctx, e, call);
}

void engine_answer_early(weft_ctx *ctx, engine *e, engine_call *call,
                         const engine_answer *a)
{
  tell(ctx, e, call, a, false);
}

void engine_answer_ok(weft_ctx *ctx, engine *e, engine_call *call)
{
  engine_answer_call(ctx, e, call, &(engine_answer){ .err = WEFT_OK });
}

void engine_answer_err(weft_ctx *ctx, engine *e, engine_call *call, weft_err err,
                       const char *fmt, ...)
{
  /* Refused before anything began. */
  const bool changes = engine_call_changes(call->kind);
  engine_answer a = { .err = err,
                      .outcome =
                          changes ? WEFT_OUTCOME_NOT_COMMITTED : WEFT_OUTCOME_NONE };
  va_list ap;
  va_start(ap, fmt);
  (void)vsnprintf(a.message, sizeof a.message, fmt, ap);
  va_end(ap);
  engine_answer_call(ctx, e, call, &a);
}

/* ---- from message to call */

typedef struct call_head { /* WEFT_CALL */
  uint64_t caller;
  uint32_t timeout_ms;
  weft_str idem_key;
  uint64_t body_hash;
  weft_str session;
} call_head;

static call_head head_of(engine_call_kind kind, const weft_msg *msg)
{
#define HEAD(m)                                                                          \
  ((call_head){ (m)->caller, (m)->timeout_ms, (m)->idem_key, (m)->body_hash,             \
                (m)->session })
  switch (kind) {
  case CALL_INIT:
    return HEAD((const weft_client_init *)msg);
  case CALL_SHUTDOWN:
    return HEAD((const weft_client_shutdown *)msg);
  case CALL_START:
  case CALL_START_DRAFT:
    return HEAD((const weft_client_start *)msg);
  case CALL_UPDATE:
    return HEAD((const weft_client_update *)msg);
  case CALL_FINISH:
    return HEAD((const weft_client_finish *)msg);
  case CALL_LABEL:
    return HEAD((const weft_client_label *)msg);
  case CALL_ABORT:
    return HEAD((const weft_client_abort *)msg);
  case CALL_PAUSE:
    return HEAD((const weft_client_pause *)msg);
  case CALL_CHECK:
    return HEAD((const weft_client_check *)msg);
  case CALL_CACHE:
    return HEAD((const weft_client_cache *)msg);
  case CALL_RESOLVE:
    return HEAD((const weft_client_resolve *)msg);
  case CALL_QUERY:
  case CALL_KINDS:
    break;
  }
#undef HEAD
  return (call_head){ 0 };
}

static char *copy_text(weft_ctx *ctx, weft_str s, bool *failed)
{
  char *copy = weft_alloc(ctx, (size_t)s.len + 1);
  if (copy == NULL) {
    *failed = true;
    return NULL;
  }
  if (s.len > 0) {
    memcpy(copy, s.p, s.len);
  }
  return copy;
}

engine_call_kind engine_call_kind_of(const weft_msg *msg)
{
  switch (msg->type) {
  case WEFT_MSG_CLIENT_INIT:
    return CALL_INIT;
  case WEFT_MSG_CLIENT_SHUTDOWN:
    return CALL_SHUTDOWN;
  case WEFT_MSG_CLIENT_START:
    return ((const weft_client_start *)msg)->draft != 0 ? CALL_START_DRAFT : CALL_START;
  case WEFT_MSG_CLIENT_UPDATE:
    return CALL_UPDATE;
  case WEFT_MSG_CLIENT_FINISH:
    return CALL_FINISH;
  case WEFT_MSG_CLIENT_LABEL:
    return CALL_LABEL;
  case WEFT_MSG_CLIENT_ABORT:
    return CALL_ABORT;
  case WEFT_MSG_CLIENT_PAUSE:
    return CALL_PAUSE;
  case WEFT_MSG_CLIENT_CHECK:
    return CALL_CHECK;
  case WEFT_MSG_CLIENT_CACHE:
    return CALL_CACHE;
  case WEFT_MSG_CLIENT_RESOLVE:
    return CALL_RESOLVE;
  default:
    return CALL_KINDS;
  }
}

static void take_finish(weft_ctx *ctx, engine_call *c, const weft_client_finish *m,
                        bool *failed)
{
  weft_digest digest = { 0, 0 };
  c->strict = m->strict != 0;
  c->has_digest = m->digest.len > 0;
  c->bad_digest = c->has_digest && !weft_digest_parse(m->digest.p, &digest);
  c->digest_hi = digest.hi;
  c->digest_lo = digest.lo;
  c->has_version = m->has_version != 0;
  c->has_expected = m->has_expected != 0;
  c->version = copy_text(ctx, m->version, failed);
  c->expected = copy_text(ctx, m->expected, failed);
}

static void take_label(weft_ctx *ctx, engine_call *c, const weft_client_label *m,
                       bool *failed)
{
  c->has_version = true;
  c->has_expected = m->has_expected != 0;
  c->version = copy_text(ctx, m->version, failed);
  c->expected = copy_text(ctx, m->expected, failed);
}

static void take_start(engine_call *c, const weft_client_start *m)
{
  c->draft = m->draft != 0;
  c->restores = m->restores != 0;
}

static void take_pause(weft_ctx *ctx, engine_call *c, const weft_client_pause *m,
                       bool *failed)
{
  c->action = m->action;
  c->clear_cache = m->clear_cache != 0;
  c->reason = copy_text(ctx, m->mode, failed);
}

/* Fills what is particular to the kind.  false = out of memory. */
static bool take_fields(weft_ctx *ctx, engine_call *c, const weft_msg *msg)
{
  bool failed = false;
  switch (c->kind) {
  case CALL_INIT:
    c->info = weft_buf_ref(((const weft_client_init *)msg)->info);
    break;
  case CALL_SHUTDOWN:
    c->info = weft_buf_create("null", 4);
    failed = c->info == NULL;
    break;
  case CALL_START:
  case CALL_START_DRAFT:
    take_start(c, (const weft_client_start *)msg);
    break;
  case CALL_UPDATE:
    c->info = weft_buf_ref(((const weft_client_update *)msg)->info);
    break;
  case CALL_FINISH:
    take_finish(ctx, c, (const weft_client_finish *)msg, &failed);
    break;
  case CALL_LABEL:
    take_label(ctx, c, (const weft_client_label *)msg, &failed);
    break;
  case CALL_ABORT:
    c->reason = copy_text(ctx, ((const weft_client_abort *)msg)->reason, &failed);
    break;
  case CALL_PAUSE:
    take_pause(ctx, c, (const weft_client_pause *)msg, &failed);
    break;
  case CALL_CHECK:
    c->action = ((const weft_client_check *)msg)->action;
    c->info = weft_buf_ref(((const weft_client_check *)msg)->baseline);
    break;
  case CALL_CACHE:
    c->reason = copy_text(ctx, ((const weft_client_cache *)msg)->which, &failed);
    break;
  case CALL_RESOLVE:
    c->commit = ((const weft_client_resolve *)msg)->commit != 0;
    break;
  case CALL_QUERY: /* never a call of its own */
  case CALL_KINDS:
    break;
  }
  return !failed;
}

uint32_t engine_call_patience(const engine *e, engine_call_kind kind)
{
  switch (kind) {
  case CALL_INIT:
  case CALL_SHUTDOWN:
    return e->args.init_ms;
  case CALL_UPDATE:
    return e->args.update_ms;
  case CALL_FINISH:
    return e->args.finish_ms;
  case CALL_START:
  case CALL_START_DRAFT:
    return e->args.start_ms;
  case CALL_LABEL:
  case CALL_ABORT:
  case CALL_PAUSE:
  case CALL_CHECK:
  case CALL_CACHE:
  case CALL_RESOLVE:
  case CALL_QUERY:
  case CALL_KINDS:
    break;
  }
  return CALL_DEFAULT_MS;
}

uint64_t engine_call_left_ms(weft_ctx *ctx, const engine_call *call)
{
  const uint64_t now = weft_now_ms(ctx);
  return call->due_ms > now ? call->due_ms - now : 1;
}

/* What is wrong with the call's own fields, or NULL. */
static const char *bad_field(const engine_call *c, const call_head *head,
                             weft_str version)
{
  if (version.len > ENGINE_VERSION_MAX) {
    return "weight_version is longer than 1024 bytes";
  }
  if (version.len > 0 && memchr(version.p, 0, version.len) != NULL) {
    return "weight_version contains a NUL";
  }
  if (c->bad_digest) {
    return "digest is not 'xxh3-128:' and 32 hexadecimal digits";
  }
  if (head->idem_key.len >= sizeof((engine_idem *)0)->key) {
    return "Idempotency-Key is longer than 127 bytes";
  }
  if (head->timeout_ms > CALL_MAX_MS) {
    return "timeout is over a day";
  }
  if ((c->kind == CALL_INIT || c->kind == CALL_UPDATE) && c->info == NULL) {
    return "the transfer info is missing";
  }
  return NULL;
}

static weft_str version_of(const weft_msg *msg)
{
  if (msg->type == WEFT_MSG_CLIENT_FINISH) {
    return ((const weft_client_finish *)msg)->version;
  }
  if (msg->type == WEFT_MSG_CLIENT_LABEL) {
    return ((const weft_client_label *)msg)->version;
  }
  return (weft_str){ NULL, 0 };
}

engine_call *engine_call_open(weft_ctx *ctx, engine *e, const weft_msg *msg)
{
  engine_call *call = weft_alloc(ctx, sizeof *call);
  const engine_call_kind kind = engine_call_kind_of(msg);
  const call_head head = head_of(kind, msg);
  e->calls_seen++;
  if (call != NULL) {
    call->kind = kind;
  }
  if (call == NULL || !take_fields(ctx, call, msg)) {
    engine_answer a = { .err = WEFT_E_NOMEM };
    (void)snprintf(a.message, sizeof a.message,
                   "engine: out of memory for a call; try again");
    engine_reply_to(ctx, e, weft_return_of(msg), kind, weft_now_ms(ctx), &a);
    engine_call_free(ctx, e, call);
    return NULL;
  }
  call->ret = weft_return_of(msg);
  call->caller = head.caller;
  call->started_ms = weft_now_ms(ctx);
  const char *bad = bad_field(call, &head, version_of(msg));
  if (bad != NULL) {
    engine_answer_err(ctx, e, call, WEFT_E_INVAL, "%s: %s", engine_call_name(call->kind),
                      bad);
    return NULL;
  }
  const uint32_t patience =
      head.timeout_ms != 0 ? head.timeout_ms : engine_call_patience(e, call->kind);
  call->due_ms = call->started_ms + patience;
  if (head.session.len > 0 && !engine_session_is_known(ctx, e, call, head.session)) {
    return NULL;
  }
  if (head.idem_key.len > 0 &&
      !engine_idem_admit(ctx, e, call, head.idem_key, head.body_hash)) {
    return NULL;
  }
  return call;
}
