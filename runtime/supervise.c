#include "weft/supervise.h"

#include "weft/checked.h"

#include <stdbool.h>
#include <string.h>

enum { CHILDREN_MAX = 1024, RESTARTS_MAX = 1024, RETELL_MS = 100 };
#define TAG_RETELL UINT64_MAX /* timers with other tags: start that child */

typedef struct child {
  weft_child_spec spec;
  weft_actor_id id;
  uint64_t started_ms;
  uint64_t backoff_ms; /* the next wait */
  uint64_t *times;     /* [max_restarts], ring of the last restarts' times */
  uint32_t restarts;
  uint32_t reason;
  bool gone;
  bool untold; /* the listener's mailbox was full */
} child;

typedef struct supervisor {
  weft_supervise_args opts; /* children is not used */
  child *children;          /* [opts.count] */
  uint64_t *times;
  uint64_t retell; /* timer */
  bool stopping;
} supervisor;

static uint64_t or_default(uint64_t v, uint64_t otherwise)
{
  return v == 0 ? otherwise : v;
}

static weft_msg *describe(weft_ctx *ctx, const supervisor *sv, uint32_t index)
{
  weft_msg *m = weft_msg_new(ctx, WEFT_MSG_CHILD_IS, sizeof(weft_child_is));
  if (m == NULL) {
    return NULL;
  }
  weft_child_is *is = (weft_child_is *)m;
  is->index = index;
  if (index < sv->opts.count) {
    const child *c = &sv->children[index];
    is->id = c->id;
    is->restarts = c->restarts;
    is->reason = c->id == 0 ? c->reason : WEFT_OK;
    is->gone = c->gone;
  } else {
    is->gone = 1;
    is->reason = WEFT_E_NOTFOUND;
  }
  return m;
}

/* Tells the listener; what it cannot take now it gets later, as it is then. */
static void tell(weft_ctx *ctx, supervisor *sv, uint32_t index)
{
  child *c = &sv->children[index];
  c->untold = false;
  if (sv->opts.listener == 0) {
    return;
  }
  weft_msg *m = describe(ctx, sv, index);
  if (m != NULL) {
    m->flags = WEFT_MSG_F_RESERVED;
  }
  const weft_err err = weft_send(ctx, sv->opts.listener, m);
  if (err == WEFT_E_FULL || err == WEFT_E_NOMEM) {
    c->untold = true;
    if (sv->retell == 0) {
      sv->retell = weft_timer_start(ctx, RETELL_MS, TAG_RETELL);
    }
  }
}

static void retell(weft_ctx *ctx, supervisor *sv)
{
  sv->retell = 0;
  for (uint32_t i = 0; i < sv->opts.count; i++) {
    if (sv->children[i].untold) {
      tell(ctx, sv, i);
    }
  }
}

/* The child is down: restart it later, or not at all, or give up altogether. */
static weft_err came_down(weft_ctx *ctx, supervisor *sv, uint32_t index, weft_err reason)
{
  child *c = &sv->children[index];
  const weft_supervise_args *o = &sv->opts;
  const uint64_t now = weft_now_ms(ctx);
  const bool again = c->spec.restart == WEFT_RESTART_ALWAYS ||
                     (c->spec.restart == WEFT_RESTART_ON_FAILURE && reason != WEFT_OK);
  c->id = 0;
  c->reason = (uint32_t)reason;
  c->gone = !again;
  tell(ctx, sv, index);
  if (!again || sv->stopping) {
    return WEFT_OK;
  }
  if (now - c->started_ms >= o->healthy_ms) {
    c->backoff_ms = o->backoff_min_ms;
  }
  if (o->max_restarts > 0) {
    uint64_t *oldest = &c->times[c->restarts % o->max_restarts];
    if (c->restarts >= o->max_restarts && now - *oldest < o->window_ms) {
      weft_log(ctx, WEFT_LOG_ERROR,
               "gives up on a child child=%u class=%s reason=%s restarts=%u", index,
               c->spec.cls->name, weft_err_name(reason), c->restarts);
      return WEFT_E_FAILED;
    }
    *oldest = now;
  }
  c->restarts++;
  weft_log(ctx, WEFT_LOG_WARN,
           "restarts a child child=%u class=%s reason=%s wait_ms=%llu", index,
           c->spec.cls->name, weft_err_name(reason), (unsigned long long)c->backoff_ms);
  if (weft_timer_start(ctx, c->backoff_ms, index) == 0) {
    return WEFT_E_NOMEM;
  }
  c->backoff_ms =
      c->backoff_ms > o->backoff_max_ms / 2 ? o->backoff_max_ms : 2 * c->backoff_ms;
  return WEFT_OK;
}

static weft_err start(weft_ctx *ctx, supervisor *sv, uint32_t index)
{
  child *c = &sv->children[index];
  if (sv->stopping || c->id != 0 || c->gone) {
    return WEFT_OK;
  }
  c->started_ms = weft_now_ms(ctx);
  const weft_err err = weft_spawn(ctx, c->spec.cls, c->spec.args, &c->spec.opts, &c->id);
  if (err != WEFT_OK) {
    return came_down(ctx, sv, index, err);
  }
  tell(ctx, sv, index);
  return WEFT_OK;
}

/* Stops the last child that runs; when there is none, itself. */
static void stop_next(weft_ctx *ctx, const supervisor *sv)
{
  for (uint32_t i = sv->opts.count; i-- > 0;) {
    if (sv->children[i].id != 0) {
      weft_stop_other(ctx, sv->children[i].id);
      return;
    }
  }
  weft_stop(ctx, WEFT_OK);
}

static bool all_gone(const supervisor *sv)
{
  for (uint32_t i = 0; i < sv->opts.count; i++) {
    if (!sv->children[i].gone) {
      return false;
    }
  }
  return true;
}

static weft_err on_down(weft_ctx *ctx, supervisor *sv, const weft_down_msg *down)
{
  for (uint32_t i = 0; i < sv->opts.count; i++) {
    if (sv->children[i].id == down->who) {
      const weft_err err = came_down(ctx, sv, i, (weft_err)down->reason);
      if (err != WEFT_OK) {
        return err;
      }
      break;
    }
  }
  if (sv->stopping) {
    stop_next(ctx, sv);
  } else if (all_gone(sv)) {
    weft_stop(ctx, WEFT_OK);
  }
  return WEFT_OK;
}

static weft_err supervisor_init(weft_ctx *ctx, void *self, const void *args)
{
  supervisor *sv = self;
  const weft_supervise_args *a = args;
  if (a == NULL || a->size != sizeof *a || a->count == 0 || a->count > CHILDREN_MAX ||
      a->max_restarts > RESTARTS_MAX) {
    return WEFT_E_INVAL;
  }
  sv->opts = *a;
  sv->opts.children = NULL;
  sv->opts.window_ms = or_default(a->window_ms, 60000);
  sv->opts.backoff_min_ms = or_default(a->backoff_min_ms, 100);
  sv->opts.backoff_max_ms = or_default(a->backoff_max_ms, 10000);
  if (sv->opts.backoff_max_ms < sv->opts.backoff_min_ms) {
    sv->opts.backoff_max_ms = sv->opts.backoff_min_ms;
  }
  sv->opts.healthy_ms = or_default(a->healthy_ms, sv->opts.backoff_max_ms);
  size_t bytes;
  size_t ring;
  if (weft_size_mul(a->count, sizeof *sv->children, &bytes) != WEFT_OK ||
      weft_size_mul((size_t)a->count * a->max_restarts, sizeof *sv->times, &ring) !=
          WEFT_OK) {
    return WEFT_E_OVERFLOW;
  }
  sv->children = weft_alloc(ctx, bytes);
  sv->times = weft_alloc(ctx, ring);
  if (sv->children == NULL || sv->times == NULL) {
    return WEFT_E_NOMEM;
  }
  for (uint32_t i = 0; i < a->count; i++) {
    child *c = &sv->children[i];
    c->spec = a->children[i];
    c->backoff_ms = sv->opts.backoff_min_ms;
    c->times = &sv->times[(size_t)i * a->max_restarts];
  }
  for (uint32_t i = 0; i < a->count; i++) {
    const weft_err err = start(ctx, sv, i);
    if (err != WEFT_OK) {
      return err;
    }
  }
  if (all_gone(sv)) {
    weft_stop(ctx, WEFT_OK);
  }
  return WEFT_OK;
}

static void supervisor_fini(weft_ctx *ctx, void *self)
{
  supervisor *sv = self;
  weft_free(ctx, sv->children);
  weft_free(ctx, sv->times);
}

static weft_err supervisor_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  supervisor *sv = self;
  switch (msg->type) {
  case WEFT_MSG_DOWN:
    return on_down(ctx, sv, (const weft_down_msg *)msg);
  case WEFT_MSG_TIMER: {
    const weft_timer_msg *timer = (const weft_timer_msg *)msg;
    if (timer->tag == TAG_RETELL) {
      retell(ctx, sv);
      return WEFT_OK;
    }
    return start(ctx, sv, (uint32_t)timer->tag);
  }
  case WEFT_MSG_CHILD_WHERE:
    (void)weft_reply(ctx, weft_return_of(msg),
                     describe(ctx, sv, ((const weft_child_where *)msg)->index));
    return WEFT_OK;
  case WEFT_MSG_STOP:
    if (!sv->stopping) {
      sv->stopping = true;
      stop_next(ctx, sv);
    }
    return WEFT_OK;
  default:
    return WEFT_E_STATE;
  }
}

const weft_actor_class weft_supervisor = { .name = "supervisor",
                                           .state_size = sizeof(supervisor),
                                           .init = supervisor_init,
                                           .fini = supervisor_fini,
                                           .on = supervisor_on };
