/* Between the relay of a remote front end and the engine's port: each question goes its
 * own way there and back, so one may overtake another; a connection that ends loses what
 * is on its way, and the port tells the engine whose callers are gone. */
#include "full_frames.h"
#include "full_http.h"

#include <string.h>

typedef struct sim_wire {
  full_way way;
  http_front *front;
} sim_wire;

static void deliver(weft_ctx *ctx, sim_wire *l, full_frame *f)
{
  const full *w = l->way.w;
  if (f->to.corr == 0) { /* no question: a caller is gone */
    (void)weft_send(ctx, w->engine, weft_msg_make(ctx, f->msg));
    full_frame_drop(ctx, f);
    return;
  }
  const uint64_t now = weft_now_ms(ctx);
  const uint64_t due = f->msg->due_ms;
  f->caller = f->msg->type == WEFT_MSG_CLIENT_QUERY
                  ? 0
                  : ((const weft_client_gone *)f->msg)->caller;
  f->corr[0] = weft_ask(ctx, w->engine, weft_msg_make(ctx, f->msg),
                        due == 0    ? 0
                        : due > now ? due - now
                                    : 1);
}

static void take_frame(weft_ctx *ctx, sim_wire *l, const weft_msg *msg)
{
  full_frame *f = full_way_free_frame(&l->way);
  if (f == NULL || l->way.dying) {
    return; /* the asker's deadline, or the end of the link, ends it */
  }
  full_frame_fill(f, msg);
  if (!full_way_takes(ctx, &l->way, f, FULL_THERE, l->front->wire_ms)) {
    deliver(ctx, l, f);
  }
}

static void give_answer(weft_ctx *ctx, full_frame *f)
{
  (void)weft_reply(ctx, f->to, weft_msg_make(ctx, f->answer));
  full_frame_drop(ctx, f);
}

/* As the port puts it into an answer of its own. */
static void give_failure(weft_ctx *ctx, full_frame *f, uint32_t reason)
{
  weft_ask_failed_msg *m = (weft_ask_failed_msg *)weft_msg_new(
      ctx, WEFT_MSG_ASK_FAILED, sizeof(weft_ask_failed_msg));
  if (m != NULL) {
    m->reason = reason;
  }
  (void)weft_reply(ctx, f->to, m == NULL ? NULL : &m->h);
  full_frame_drop(ctx, f);
}

static void take_answer(weft_ctx *ctx, sim_wire *l, const weft_msg *msg)
{
  for (unsigned i = 0; i < FULL_FRAMES; i++) {
    full_frame *f = &l->way.frames[i];
    if (f->msg == NULL || f->corr[0] == 0 || f->corr[0] != msg->corr) {
      continue;
    }
    f->corr[0] = 0;
    if (l->way.dying) { /* the port has hung up */
      full_frame_drop(ctx, f);
      return;
    }
    if (msg->type == WEFT_MSG_ASK_FAILED) {
      const uint32_t reason = ((const weft_ask_failed_msg *)msg)->reason;
      if (reason == WEFT_E_DOWN) {
        full_way_die(ctx, &l->way);
      } else {
        give_failure(ctx, f, reason);
      }
      return;
    }
    f->answer = weft_msg_dup(weft_messages(), msg);
    if (!full_way_takes(ctx, &l->way, f, FULL_BACK, l->front->wire_ms)) {
      give_answer(ctx, f);
    }
    return;
  }
}

static void on_timer(weft_ctx *ctx, sim_wire *l, uint64_t tag)
{
  full_leg leg;
  full_frame *f = full_way_timer(ctx, &l->way, tag, &leg);
  if (f == NULL || l->way.dying) {
    return;
  }
  if (leg == FULL_THERE) {
    deliver(ctx, l, f);
  } else {
    give_answer(ctx, f);
  }
}

/* The next caller from *at on whom the engine has and that is not answered. */
static bool next_gone(const sim_wire *l, unsigned *at, weft_client_gone *gone)
{
  while (!l->way.dying && *at < FULL_FRAMES) {
    const full_frame *f = &l->way.frames[(*at)++];
    if (f->corr[0] != 0 && f->caller != 0) {
      *gone = (weft_client_gone){ .h = { .type = WEFT_MSG_CLIENT_GONE,
                                         .flags = WEFT_MSG_F_RESERVED },
                                  .caller = f->caller };
      return true;
    }
  }
  return false;
}

/* The port sees that the connection has ended, whatever came over it before. */
static void tell_gone(weft_ctx *ctx, const sim_wire *l)
{
  weft_client_gone gone;
  for (unsigned i = 0; next_gone(l, &i, &gone);) {
    (void)weft_send(ctx, l->way.w->engine, weft_msg_make(ctx, &gone.h));
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
    full_way_die(ctx, &l->way);
  } else if (msg->type == WEFT_MSG_DOWN) {
    full_way_die(ctx, &l->way);
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
  l->way.w = l->front->w;
  return weft_monitor(ctx, l->way.w->engine);
}

static void wire_fini(weft_ctx *ctx, void *self)
{
  sim_wire *l = self;
  tell_gone(ctx, l);
  for (unsigned i = 0; i < FULL_FRAMES; i++) {
    if (l->way.frames[i].msg != NULL) {
      full_frame_drop(ctx, &l->way.frames[i]);
    }
  }
}

const weft_actor_class full_wire_class = { "wire", sizeof(sim_wire), wire_init, wire_fini,
                                           wire_on };

void full_wire_hang_up(http_front *f)
{
  const sim_wire *l = weft_sim_state(f->w->sim, f->wire);
  weft_client_gone gone;
  for (unsigned i = 0; l != NULL && next_gone(l, &i, &gone);) {
    (void)weft_sim_send(f->w->sim, f->w->engine, &gone.h);
  }
}
