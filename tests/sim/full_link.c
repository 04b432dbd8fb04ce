/* The link between engine and one worker process: each question goes its own way, so it
 * may be slow, overtaken, doubled or lost, and may reach the next process on the address.
 */
#include "full_frames.h"

#include <string.h>

typedef struct sim_link {
  full_way way;
  uint32_t process;
  weft_msg *stale; /* an answer that was lost: may come to a later question */
  uint16_t stale_asked;
  weft_msg *echo; /* an answer that was given: comes to the next such question as well */
  uint16_t echo_asked;
} sim_link;

static full_trouble *trouble(const sim_link *l)
{
  return &l->way.w->trouble[l->way.w->processes[l->process].rank];
}

static void forget(weft_msg **kept)
{
  if (*kept != NULL) {
    weft_msg_drop(weft_messages(), *kept);
    *kept = NULL;
  }
}

/* What was said to an earlier question of this kind is taken for the answer, long before
 * the worker has done what f asks for. */
static void give_echo(weft_ctx *ctx, sim_link *l, full_frame *f)
{
  full_trouble *t = trouble(l);
  if (l->echo != NULL && l->echo_asked == f->msg->type && t->echo_type == l->echo_asked) {
    t->echo_type = 0;
    (void)weft_reply(ctx, f->to, weft_msg_make(ctx, l->echo));
    f->answered = true;
    forget(&l->echo);
  }
}

static void keep_echo(sim_link *l, const full_frame *f)
{
  if (trouble(l)->echo_type == f->msg->type) {
    forget(&l->echo);
    l->echo = weft_msg_dup(weft_messages(), f->answer);
    l->echo_asked = f->msg->type;
  }
}

/* Whoever listens there now. */
static full_process *receiver(const sim_link *l)
{
  full_process *p = &l->way.w->processes[l->process];
  return p->alive ? p : full_process_at(l->way.w, p->rank);
}

/* A fault that waits for a frame of one type.  true: the frame has not arrived. */
static bool ambush(weft_ctx *ctx, sim_link *l, full_process *p, full_frame *f)
{
  full_trouble *t = trouble(l);
  if (t->ambush_type != f->msg->type) {
    return false;
  }
  t->ambush_type = 0;
  if (t->ambush == AMBUSH_FREEZE) {
    full_process_freeze(l->way.w, p, true);
    return false;
  }
  if (t->ambush == AMBUSH_KILL) {
    full_kill_later(l->way.w, p);
    return false;
  }
  full_stray(l->way.w, p, f->msg, t->net_delay_ms);
  full_frame_drop(ctx, f);
  full_way_die(ctx, &l->way);
  return true;
}

static void deliver(weft_ctx *ctx, sim_link *l, full_frame *f)
{
  full_process *p = receiver(l);
  if (p == NULL) {
    full_frame_drop(ctx, f);
    full_way_die(ctx, &l->way);
    return;
  }
  full_check_frame(l->way.w, p, f->msg);
  if (ambush(ctx, l, p, f)) {
    return;
  }
  f->process = p->index;
  if (f->msg->type == WEFT_MSG_W_ADOPT && l->way.w->faulty && !l->way.w->healed &&
      !p->child &&
      full_random(l->way.w, 4) == 0) { /* so late that its engine may have died */
    full_stray(l->way.w, p, f->msg, 8000);
    full_frame_drop(ctx, f);
    return;
  }
  give_echo(ctx, l, f);
  f->corr[0] = weft_ask(ctx, p->worker, weft_msg_make(ctx, f->msg), 0);
  if (full_random(l->way.w, 100) < trouble(l)->net_twice) {
    f->corr[1] = weft_ask(ctx, p->worker, weft_msg_make(ctx, f->msg), 0);
    full_stray(l->way.w, p, f->msg, 6000); /* and once more, late */
  }
}

static bool lost(const sim_link *l)
{
  return trouble(l)->net_lost != 0 && full_random(l->way.w, 100) < trouble(l)->net_lost;
}

static void take_frame(weft_ctx *ctx, sim_link *l, const weft_msg *msg)
{
  full_frame *f = full_way_free_frame(&l->way);
  if (f == NULL || l->way.dying || lost(l)) {
    return; /* the asker's deadline ends it */
  }
  full_frame_fill(f, msg);
  if (!full_way_takes(ctx, &l->way, f, FULL_THERE, trouble(l)->net_delay_ms)) {
    deliver(ctx, l, f);
  }
}

static void give_answer(weft_ctx *ctx, sim_link *l, full_frame *f)
{
  const bool cross =
      l->stale != NULL && l->stale_asked == f->msg->type && trouble(l)->net_lost != 0;
  if (!f->answered) {
    (void)weft_reply(ctx, f->to, weft_msg_make(ctx, cross ? l->stale : f->answer));
  }
  if (cross) {
    forget(&l->stale);
  }
  keep_echo(l, f);
  full_frame_drop(ctx, f);
}

static void lose_answer(weft_ctx *ctx, sim_link *l, full_frame *f, const weft_msg *answer)
{
  forget(&l->stale);
  l->stale = weft_msg_dup(weft_messages(), answer);
  l->stale_asked = f->msg->type;
  full_frame_drop(ctx, f);
}

static void take_answer(weft_ctx *ctx, sim_link *l, const weft_msg *msg)
{
  for (unsigned i = 0; i < FULL_FRAMES; i++) {
    full_frame *f = &l->way.frames[i];
    if (f->msg == NULL || (f->corr[0] != msg->corr && f->corr[1] != msg->corr)) {
      continue;
    }
    const unsigned which = f->corr[0] == msg->corr ? 0 : 1;
    f->corr[which] = 0;
    if (msg->type == WEFT_MSG_ASK_FAILED) {
      if (((const weft_ask_failed_msg *)msg)->reason == WEFT_E_DOWN) {
        full_way_die(ctx, &l->way);
      } else if (f->corr[1 - which] == 0 && f->answer == NULL) {
        if (!f->answered) {
          (void)weft_reply(ctx, f->to, NULL);
        }
        full_frame_drop(ctx, f);
      }
      return;
    }
    full_check_reply(l->way.w, &l->way.w->processes[f->process], f->msg, msg);
    if (f->answer != NULL || (which == 0 && f->corr[1] != 0)) {
      return; /* of two the second counts, as with a request sent again */
    }
    if (lost(l)) {
      lose_answer(ctx, l, f, msg);
      return;
    }
    f->answer = weft_msg_dup(weft_messages(), msg);
    if (!full_way_takes(ctx, &l->way, f, FULL_BACK, trouble(l)->net_delay_ms)) {
      give_answer(ctx, l, f);
    }
    return;
  }
}

static void on_timer(weft_ctx *ctx, sim_link *l, uint64_t tag)
{
  full_leg leg;
  full_frame *f = full_way_timer(ctx, &l->way, tag, &leg);
  if (f != NULL && leg == FULL_THERE) {
    deliver(ctx, l, f);
  } else if (f != NULL) {
    give_answer(ctx, l, f);
  }
}

static weft_err link_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  sim_link *l = self;
  if (msg->type == WEFT_MSG_TIMER) {
    on_timer(ctx, l, ((const weft_timer_msg *)msg)->tag);
  } else if (msg->type == WEFT_MSG_DOWN || msg->type == WEFT_MSG_CLIENT_GONE) {
    full_way_die(ctx, &l->way); /* the second: the world cuts it */
  } else if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
  } else if (msg->type == WEFT_MSG_ASK_FAILED || (msg->flags & WEFT_MSG_F_REPLY) != 0) {
    take_answer(ctx, l, msg);
  } else {
    take_frame(ctx, l, msg);
  }
  return WEFT_OK;
}

static weft_err link_init(weft_ctx *ctx, void *self, const void *args)
{
  const full_link_args *a = args;
  sim_link *l = self;
  l->way.w = a->w;
  l->process = a->process;
  return weft_monitor(ctx, a->w->processes[a->process].worker);
}

static void link_fini(weft_ctx *ctx, void *self)
{
  sim_link *l = self;
  forget(&l->stale);
  forget(&l->echo);
  for (unsigned i = 0; i < FULL_FRAMES; i++) {
    full_frame *f = &l->way.frames[i];
    if (f->msg != NULL && f->corr[0] == 0 && f->answer == NULL) {
      /* On its way: it arrives although nobody waits for an answer any more. */
      full_stray(l->way.w, &l->way.w->processes[l->process], f->msg,
                 trouble(l)->net_delay_ms);
    }
    if (f->msg != NULL) {
      full_frame_drop(ctx, f);
    }
  }
}

const weft_actor_class full_link_class = { "link", sizeof(sim_link), link_init, link_fini,
                                           link_on };
