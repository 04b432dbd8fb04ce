/* The link between engine and one worker process: each question goes its own way, so it
 * may be slow, overtaken, doubled or lost, and may reach the next process on the address.
 */
#include "full.h"

#include <string.h>

enum { FRAMES = 96, DEATH_MS = 40 };
enum { TAG_FRAME = 1, TAG_ANSWER = 2 };
#define DEAD_TAG UINT64_MAX

typedef struct frame {
  weft_msg *msg;    /* NULL = free */
  weft_msg *answer; /* on its way back */
  weft_return to;
  uint64_t corr[2]; /* as asked of the worker, twice when doubled */
  bool answered;    /* by an echo */
  uint32_t process; /* where it went */
  uint32_t gen;
} frame;

typedef struct sim_link {
  full *w;
  uint32_t process;
  bool dying;
  weft_msg *stale; /* an answer that was lost: may come to a later question */
  uint16_t stale_asked;
  weft_msg *echo; /* an answer that was given: comes to the next such question as well */
  uint16_t echo_asked;
  frame frames[FRAMES];
} sim_link;

static uint64_t tag_of(uint64_t what, const sim_link *l, const frame *f)
{
  return what << 56 | (uint64_t)(f->gen & 0xffffff) << 16 | (uint64_t)(f - l->frames);
}

static frame *frame_of(sim_link *l, uint64_t tag)
{
  frame *f = &l->frames[tag & 0xffff];
  return f->msg != NULL && (f->gen & 0xffffff) == ((tag >> 16) & 0xffffff) ? f : NULL;
}

static full_trouble *trouble(const sim_link *l)
{
  return &l->w->trouble[l->w->processes[l->process].rank];
}

static void frame_free(weft_ctx *ctx, frame *f)
{
  weft_ask_cancel(ctx, f->corr[0]);
  weft_ask_cancel(ctx, f->corr[1]);
  weft_msg_drop(weft_messages(), f->msg);
  if (f->answer != NULL) {
    weft_msg_drop(weft_messages(), f->answer);
  }
  *f = (frame){ .gen = f->gen + 1 };
}

static void die(weft_ctx *ctx, sim_link *l)
{
  if (!l->dying) {
    l->dying = true;
    if (weft_timer_start(ctx, full_random(l->w, DEATH_MS), DEAD_TAG) == 0) {
      weft_stop(ctx, WEFT_E_DOWN);
    }
  }
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
static void give_echo(weft_ctx *ctx, sim_link *l, frame *f)
{
  full_trouble *t = trouble(l);
  if (l->echo != NULL && l->echo_asked == f->msg->type && t->echo_type == l->echo_asked) {
    t->echo_type = 0;
    (void)weft_reply(ctx, f->to, weft_msg_make(ctx, l->echo));
    f->answered = true;
    forget(&l->echo);
  }
}

static void keep_echo(sim_link *l, const frame *f)
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
  full_process *p = &l->w->processes[l->process];
  return p->alive ? p : full_process_at(l->w, p->rank);
}

/* A fault that waits for a frame of one type.  true: the frame has not arrived. */
static bool ambush(weft_ctx *ctx, sim_link *l, full_process *p, frame *f)
{
  full_trouble *t = trouble(l);
  if (t->ambush_type != f->msg->type) {
    return false;
  }
  t->ambush_type = 0;
  if (t->ambush == AMBUSH_FREEZE) {
    full_process_freeze(l->w, p, true);
    return false;
  }
  if (t->ambush == AMBUSH_KILL) {
    full_kill_later(l->w, p);
    return false;
  }
  full_stray(l->w, p, f->msg, t->net_delay_ms);
  frame_free(ctx, f);
  die(ctx, l);
  return true;
}

static void deliver(weft_ctx *ctx, sim_link *l, frame *f)
{
  full_process *p = receiver(l);
  if (p == NULL) {
    frame_free(ctx, f);
    die(ctx, l);
    return;
  }
  full_check_frame(l->w, p, f->msg);
  if (ambush(ctx, l, p, f)) {
    return;
  }
  f->process = p->index;
  if (f->msg->type == WEFT_MSG_W_ADOPT && l->w->faulty && !l->w->healed && !p->child &&
      full_random(l->w, 4) == 0) { /* so late that its engine may have died */
    full_stray(l->w, p, f->msg, 8000);
    frame_free(ctx, f);
    return;
  }
  give_echo(ctx, l, f);
  f->corr[0] = weft_ask(ctx, p->worker, weft_msg_make(ctx, f->msg), 0);
  if (full_random(l->w, 100) < trouble(l)->net_twice) {
    f->corr[1] = weft_ask(ctx, p->worker, weft_msg_make(ctx, f->msg), 0);
    full_stray(l->w, p, f->msg, 6000); /* and once more, late */
  }
}

static bool later(weft_ctx *ctx, sim_link *l, const frame *f, uint64_t what)
{
  const uint32_t most = trouble(l)->net_delay_ms;
  const uint64_t ms = most == 0 ? 0 : full_random(l->w, most);
  return ms > 0 && weft_timer_start(ctx, ms, tag_of(what, l, f)) != 0;
}

static bool lost(const sim_link *l)
{
  return trouble(l)->net_lost != 0 && full_random(l->w, 100) < trouble(l)->net_lost;
}

static void take_frame(weft_ctx *ctx, sim_link *l, const weft_msg *msg)
{
  frame *f = NULL;
  for (unsigned i = 0; i < FRAMES && f == NULL; i++) {
    f = l->frames[i].msg == NULL ? &l->frames[i] : NULL;
  }
  if (f == NULL || l->dying || lost(l)) {
    return; /* the asker's deadline ends it */
  }
  f->msg = weft_msg_dup(weft_messages(), msg);
  f->to = weft_return_of(msg);
  if (!later(ctx, l, f, TAG_FRAME)) {
    deliver(ctx, l, f);
  }
}

static void give_answer(weft_ctx *ctx, sim_link *l, frame *f)
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
  frame_free(ctx, f);
}

static void lose_answer(weft_ctx *ctx, sim_link *l, frame *f, const weft_msg *answer)
{
  forget(&l->stale);
  l->stale = weft_msg_dup(weft_messages(), answer);
  l->stale_asked = f->msg->type;
  frame_free(ctx, f);
}

static void take_answer(weft_ctx *ctx, sim_link *l, const weft_msg *msg)
{
  for (unsigned i = 0; i < FRAMES; i++) {
    frame *f = &l->frames[i];
    if (f->msg == NULL || (f->corr[0] != msg->corr && f->corr[1] != msg->corr)) {
      continue;
    }
    const unsigned which = f->corr[0] == msg->corr ? 0 : 1;
    f->corr[which] = 0;
    if (msg->type == WEFT_MSG_ASK_FAILED) {
      if (((const weft_ask_failed_msg *)msg)->reason == WEFT_E_DOWN) {
        die(ctx, l);
      } else if (f->corr[1 - which] == 0 && f->answer == NULL) {
        if (!f->answered) {
          (void)weft_reply(ctx, f->to, NULL);
        }
        frame_free(ctx, f);
      }
      return;
    }
    full_check_reply(l->w, &l->w->processes[f->process], f->msg, msg);
    if (f->answer != NULL || (which == 0 && f->corr[1] != 0)) {
      return; /* of two the second counts, as with a request sent again */
    }
    if (lost(l)) {
      lose_answer(ctx, l, f, msg);
      return;
    }
    f->answer = weft_msg_dup(weft_messages(), msg);
    if (!later(ctx, l, f, TAG_ANSWER)) {
      give_answer(ctx, l, f);
    }
    return;
  }
}

static void on_timer(weft_ctx *ctx, sim_link *l, uint64_t tag)
{
  if (tag == DEAD_TAG) {
    weft_stop(ctx, WEFT_E_DOWN);
    return;
  }
  frame *f = frame_of(l, tag);
  if (f == NULL) {
    return;
  }
  if (tag >> 56 == TAG_FRAME) {
    deliver(ctx, l, f);
  } else {
    give_answer(ctx, l, f);
  }
}

static weft_err link_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  sim_link *l = self;
  if (msg->type == WEFT_MSG_TIMER) {
    on_timer(ctx, l, ((const weft_timer_msg *)msg)->tag);
  } else if (msg->type == WEFT_MSG_DOWN || msg->type == WEFT_MSG_CLIENT_GONE) {
    die(ctx, l); /* the second: the world cuts it */
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
  l->w = a->w;
  l->process = a->process;
  return weft_monitor(ctx, a->w->processes[a->process].worker);
}

static void link_fini(weft_ctx *ctx, void *self)
{
  sim_link *l = self;
  forget(&l->stale);
  forget(&l->echo);
  for (unsigned i = 0; i < FRAMES; i++) {
    frame *f = &l->frames[i];
    if (f->msg != NULL && f->corr[0] == 0 && f->answer == NULL) {
      /* On its way: it arrives although nobody waits for an answer any more. */
      full_stray(l->w, &l->w->processes[l->process], f->msg, trouble(l)->net_delay_ms);
    }
    if (f->msg != NULL) {
      frame_free(ctx, &l->frames[i]);
    }
  }
}

const weft_actor_class full_link_class = { "link", sizeof(sim_link), link_init, link_fini,
                                           link_on };
