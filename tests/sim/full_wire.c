/* Between the relay of a remote front end and the engine's port: each question goes its
 * own way there and back, so one may overtake another; a connection that ends loses what
 * is on its way, and the port tells the engine whose callers are gone. */
#include "full_http.h"

#include <string.h>

enum { FRAMES = 64, DEATH_MS = 40 };
enum { TAG_FRAME = 1, TAG_ANSWER = 2 };
#define DEAD_TAG UINT64_MAX

typedef struct frame {
  weft_msg *msg;    /* NULL = free */
  weft_msg *answer; /* on its way back */
  weft_return to;
  uint64_t corr, caller; /* asked of the engine; corr 0 = not yet */
  uint32_t gen;
} frame;

typedef struct sim_wire {
  http_front *front;
  bool dying;
  frame frames[FRAMES];
} sim_wire;

static uint64_t tag_of(uint64_t what, const sim_wire *l, const frame *f)
{
  return what << 56 | (uint64_t)(f->gen & 0xffffff) << 16 | (uint64_t)(f - l->frames);
}

static void frame_free(weft_ctx *ctx, frame *f)
{
  weft_ask_cancel(ctx, f->corr);
  weft_msg_drop(weft_messages(), f->msg);
  if (f->answer != NULL) {
    weft_msg_drop(weft_messages(), f->answer);
  }
  *f = (frame){ .gen = f->gen + 1 };
}

static void die(weft_ctx *ctx, sim_wire *l)
{
  if (!l->dying) {
    l->dying = true;
    if (weft_timer_start(ctx, full_random(l->front->w, DEATH_MS), DEAD_TAG) == 0) {
      weft_stop(ctx, WEFT_E_DOWN);
    }
  }
}

static void deliver(weft_ctx *ctx, sim_wire *l, frame *f)
{
  const full *w = l->front->w;
  if (f->to.corr == 0) { /* no question: a caller is gone */
    (void)weft_send(ctx, w->engine, weft_msg_make(ctx, f->msg));
    frame_free(ctx, f);
    return;
  }
  const uint64_t now = weft_now_ms(ctx);
  const uint64_t due = f->msg->due_ms;
  f->caller = f->msg->type == WEFT_MSG_CLIENT_QUERY
                  ? 0
                  : ((const weft_client_gone *)f->msg)->caller;
  f->corr = weft_ask(ctx, w->engine, weft_msg_make(ctx, f->msg),
                     due == 0    ? 0
                     : due > now ? due - now
                                 : 1);
}

static bool later(weft_ctx *ctx, sim_wire *l, const frame *f, uint64_t what)
{
  const uint64_t ms = full_random(l->front->w, l->front->wire_ms);
  return ms > 0 && weft_timer_start(ctx, ms, tag_of(what, l, f)) != 0;
}

static void take_frame(weft_ctx *ctx, sim_wire *l, const weft_msg *msg)
{
  frame *f = NULL;
  for (unsigned i = 0; i < FRAMES && f == NULL; i++) {
    f = l->frames[i].msg == NULL ? &l->frames[i] : NULL;
  }
  if (f == NULL || l->dying) {
    return; /* the asker's deadline, or the end of the link, ends it */
  }
  f->msg = weft_msg_dup(weft_messages(), msg);
  f->to = weft_return_of(msg);
  if (!later(ctx, l, f, TAG_FRAME)) {
    deliver(ctx, l, f);
  }
}

static void give_answer(weft_ctx *ctx, frame *f)
{
  (void)weft_reply(ctx, f->to, weft_msg_make(ctx, f->answer));
  frame_free(ctx, f);
}

/* As the port puts it into an answer of its own. */
static void give_failure(weft_ctx *ctx, frame *f, uint32_t reason)
{
  weft_ask_failed_msg *m = (weft_ask_failed_msg *)weft_msg_new(
      ctx, WEFT_MSG_ASK_FAILED, sizeof(weft_ask_failed_msg));
  if (m != NULL) {
    m->reason = reason;
  }
  (void)weft_reply(ctx, f->to, m == NULL ? NULL : &m->h);
  frame_free(ctx, f);
}

static void take_answer(weft_ctx *ctx, sim_wire *l, const weft_msg *msg)
{
  for (unsigned i = 0; i < FRAMES; i++) {
    frame *f = &l->frames[i];
    if (f->msg == NULL || f->corr == 0 || f->corr != msg->corr) {
      continue;
    }
    f->corr = 0;
    if (l->dying) { /* the port has hung up */
      frame_free(ctx, f);
      return;
    }
    if (msg->type == WEFT_MSG_ASK_FAILED) {
      const uint32_t reason = ((const weft_ask_failed_msg *)msg)->reason;
      if (reason == WEFT_E_DOWN) {
        die(ctx, l);
      } else {
        give_failure(ctx, f, reason);
      }
      return;
    }
    f->answer = weft_msg_dup(weft_messages(), msg);
    if (!later(ctx, l, f, TAG_ANSWER)) {
      give_answer(ctx, f);
    }
    return;
  }
}

static void on_timer(weft_ctx *ctx, sim_wire *l, uint64_t tag)
{
  if (tag == DEAD_TAG) {
    weft_stop(ctx, WEFT_E_DOWN);
    return;
  }
  frame *f = &l->frames[tag & 0xffff];
  if (l->dying || f->msg == NULL || (f->gen & 0xffffff) != ((tag >> 16) & 0xffffff)) {
    return;
  }
  if (tag >> 56 == TAG_FRAME) {
    deliver(ctx, l, f);
  } else {
    give_answer(ctx, f);
  }
}

static weft_client_gone gone_of(const frame *f)
{
  return (weft_client_gone){ .h = { .type = WEFT_MSG_CLIENT_GONE,
                                    .flags = WEFT_MSG_F_RESERVED },
                             .caller = f->caller };
}

static bool is_open(const sim_wire *l, const frame *f)
{
  return !l->dying && f->corr != 0 && f->caller != 0;
}

/* The port sees that the connection has ended, whatever came over it before. */
static void tell_gone(weft_ctx *ctx, const sim_wire *l)
{
  for (unsigned i = 0; i < FRAMES; i++) {
    if (is_open(l, &l->frames[i])) {
      const weft_client_gone gone = gone_of(&l->frames[i]);
      (void)weft_send(ctx, l->front->w->engine, weft_msg_make(ctx, &gone.h));
    }
  }
}

static weft_err wire_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  sim_wire *l = self;
  if (msg->type == WEFT_MSG_TIMER) {
    on_timer(ctx, l, ((const weft_timer_msg *)msg)->tag);
  } else if (msg->type == WEFT_MSG_CLIENT_GONE &&
             msg->from == 0) { /* the world cuts it */
    tell_gone(ctx, l);
    die(ctx, l);
  } else if (msg->type == WEFT_MSG_DOWN) {
    die(ctx, l);
  } else if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
  } else if (msg->type == WEFT_MSG_ASK_FAILED || (msg->flags & WEFT_MSG_F_REPLY) != 0) {
    take_answer(ctx, l, msg);
  } else {
    take_frame(ctx, l, msg);
  }
  return WEFT_OK;
}

static weft_err wire_init(weft_ctx *ctx, void *self, const void *args)
{
  sim_wire *l = self;
  l->front = *(http_front *const *)args;
  return weft_monitor(ctx, l->front->w->engine);
}

static void wire_fini(weft_ctx *ctx, void *self)
{
  sim_wire *l = self;
  tell_gone(ctx, l);
  for (unsigned i = 0; i < FRAMES; i++) {
    if (l->frames[i].msg != NULL) {
      frame_free(ctx, &l->frames[i]);
    }
  }
}

const weft_actor_class full_wire_class = { "wire", sizeof(sim_wire), wire_init, wire_fini,
                                           wire_on };

void full_wire_hang_up(http_front *f)
{
  full *w = f->w;
  const sim_wire *l = weft_sim_state(w->sim, f->wire);
  for (unsigned i = 0; l != NULL && i < FRAMES; i++) {
    if (is_open(l, &l->frames[i])) {
      const weft_client_gone gone = gone_of(&l->frames[i]);
      (void)weft_sim_send(w->sim, w->engine, &gone.h);
    }
  }
}
