#include "frame.h"
#include "rep.h"
#include "weft/link.h"

#include <string.h>

enum {
  CONTEXTS = 8, /* default */
  TAG_LOOK = 1  /* timer: look at the queue */
};

typedef struct open_request {
  bool used;
  uint64_t asked_corr; /* of our question to `to` */
  uint64_t corr;       /* of the frame */
  uint64_t who;        /* its first field, 0 = none */
  uint16_t type;
} open_request;

/* Layout of every message of one u64. */
typedef struct gone_msg {
  weft_msg h;
  weft_f_u64 who;
} gone_msg;

typedef struct port_actor {
  wefti_rep *rep;
  weft_runtime *rt;
  weft_actor_id self, to;
  const weft_catalogue *cat;
  uint64_t roles, from_roles;
  uint32_t frame_max;
  unsigned contexts;
  uint16_t gone_type;
  bool (*may_pass)(const weft_msg *msg);     /* NULL = all */
  uint64_t garbage, refused;                 /* frames, counted */
  open_request open[WEFTI_REP_CONTEXTS_MAX]; /* by slot of rep */
} port_actor;

typedef struct port_args {
  const weft_port_opts *opts;
  char *url_out;
  size_t url_cap;
  weft_why *why;
} port_args;

/* On a thread of nng. */
static void wake(void *arg)
{
  const port_actor *p = arg;
  (void)wefti_wake_post(p->rt, p->self); /* or the port looks at its next message */
}

static void answer_error(port_actor *p, unsigned slot, uint64_t corr, uint16_t asked,
                         weft_err reason)
{
  uint8_t frame[WEFTI_ERROR_FRAME];
  wefti_error_frame(frame, corr, reason, asked);
  wefti_rep_answer(p->rep, slot, wefti_nng_msg(frame, sizeof frame));
}

static void answer(weft_ctx *ctx, port_actor *p, const weft_msg *msg)
{
  unsigned slot = 0;
  while (slot < p->contexts &&
         !(p->open[slot].used && p->open[slot].asked_corr == msg->corr)) {
    slot++;
  }
  if (slot == p->contexts) {
    return; /* the asker has hung up meanwhile */
  }
  const open_request o = p->open[slot];
  p->open[slot] = (open_request){ 0 };
  if (msg->type == WEFT_MSG_ASK_FAILED) {
    const weft_ask_failed_msg *f = (const weft_ask_failed_msg *)(const void *)msg;
    answer_error(p, slot, o.corr, o.type, (weft_err)f->reason);
    return;
  }
  weft_err err;
  nng_msg *frame = wefti_frame_encode(p->cat, msg, weft_now_ms(ctx), p->frame_max, &err);
  if (frame == NULL) {
    answer_error(p, slot, o.corr, o.type, err == WEFT_E_NOMEM ? WEFT_E_LOST : err);
    return;
  }
  wefti_rep_answer(p->rep, slot, frame);
}

static uint64_t first_u64(const port_actor *p, const weft_msg *msg)
{
  const weft_msg_desc *d = weft_msg_desc_of(p->cat, msg->type);
  if (d->field_count == 0 || d->fields[0].kind != WEFT_FIELD_u64) {
    return 0;
  }
  uint64_t v;
  memcpy(&v, (const char *)msg + d->fields[0].offset, sizeof v);
  return v;
}

/* Asks `to`, or tells it when the frame is no question. */
static void pass_on(weft_ctx *ctx, port_actor *p, unsigned slot, weft_msg *msg)
{
  const uint64_t corr = msg->corr;
  const uint64_t due = msg->due_ms;
  const uint16_t type = msg->type;
  const uint64_t now = weft_now_ms(ctx);
  msg->due_ms = 0;
  msg->corr = 0;
  msg->flags &= (uint16_t)~WEFT_MSG_F_REPLY;
  if (corr == 0) {
    const weft_err err = weft_send(ctx, p->to, msg);
    if (err != WEFT_OK) {
      answer_error(p, slot, 0, type, err);
    } else {
      wefti_rep_answer(p->rep, slot, wefti_nng_msg(NULL, 0));
    }
    return;
  }
  p->open[slot] = (open_request){
    .used = true, .corr = corr, .who = first_u64(p, msg), .type = type
  };
  p->open[slot].asked_corr =
      weft_ask(ctx, p->to, msg, due == 0 ? 0 : (due > now ? due - now : 1));
}

static bool has_role(uint64_t roles, unsigned role)
{
  return role < 64 && (roles >> role & 1) != 0;
}

static void take(weft_ctx *ctx, port_actor *p, unsigned slot, nng_msg *frame)
{
  weft_msg *msg = NULL;
  weft_err err = nng_msg_len(frame) > p->frame_max /* inproc knows no limit */
                     ? WEFT_E_LIMIT
                     : weft_msg_decode(p->cat, nng_msg_body(frame), nng_msg_len(frame),
                                       weft_now_ms(ctx), &msg);
  nng_msg_free(frame);
  if (err != WEFT_OK) {
    p->garbage++;
    weft_log(ctx, WEFT_LOG_DEBUG, "frame refused: %s count=%llu", weft_err_name(err),
             (unsigned long long)p->garbage);
    answer_error(p, slot, 0, 0, err);
    return;
  }
  const weft_msg_desc *desc = weft_msg_desc_of(p->cat, msg->type);
  if (!has_role(p->roles, desc->to) || !has_role(p->from_roles, desc->from) ||
      (p->may_pass != NULL && !p->may_pass(msg))) {
    p->refused++;
    weft_log(ctx, WEFT_LOG_DEBUG, "%s is not for this port count=%llu", desc->name,
             (unsigned long long)p->refused);
    answer_error(p, slot, msg->corr, msg->type, WEFT_E_DENIED);
    weft_msg_drop(p->cat, msg);
    return;
  }
  pass_on(ctx, p, slot, msg);
}

/* The asker's connection has closed: nobody waits for the answer. */
static void hang_up(weft_ctx *ctx, port_actor *p, unsigned slot)
{
  const gone_msg gone = {
    .h = { .type = p->gone_type, .flags = WEFT_MSG_F_RESERVED },
    .who = p->open[slot].who,
  };
  weft_ask_cancel(ctx, p->open[slot].asked_corr);
  p->open[slot] = (open_request){ 0 };
  wefti_rep_answer(p->rep, slot, NULL);
  if (p->gone_type != 0 && gone.who != 0 &&
      weft_send(ctx, p->to, weft_msg_make(ctx, &gone.h)) != WEFT_OK) {
    weft_log(ctx, WEFT_LOG_DEBUG, "not told that an asker is gone");
  }
}

static void look(weft_ctx *ctx, port_actor *p)
{
  unsigned slot;
  nng_msg *frame;
  for (unsigned i = 0; i < p->contexts; i++) {
    if (p->open[i].used && wefti_rep_gone(p->rep, i)) {
      hang_up(ctx, p, i);
    }
  }
  while (wefti_rep_next(p->rep, &slot, &frame)) { /* at most one per context */
    take(ctx, p, slot, frame);
  }
}

static weft_err port_init(weft_ctx *ctx, void *self, const void *args)
{
  port_actor *p = self;
  const port_args *a = args;
  const weft_port_opts *o = a->opts;
  p->rt = weft_ctx_runtime(ctx);
  if (o->size != sizeof *o || o->roles == 0 || o->from_roles == 0 || p->rt == NULL) {
    return weft_whyf(a->why, WEFT_E_INVAL, "port: bad options");
  }
  p->self = weft_self(ctx);
  p->to = o->to;
  p->cat = weft_runtime_catalogue(p->rt);
  p->roles = o->roles;
  p->from_roles = o->from_roles;
  p->gone_type = o->gone_type;
  p->may_pass = o->may_pass;
  const weft_msg_desc *gone = weft_msg_desc_of(p->cat, o->gone_type);
  if (o->gone_type != 0 && (gone == NULL || gone->size != sizeof(gone_msg))) {
    return weft_whyf(a->why, WEFT_E_INVAL, "port: gone_type is no message of one u64");
  }
  p->frame_max = o->frame_max == 0 ? WEFTI_FRAME_MAX : o->frame_max;
  p->contexts = o->contexts == 0 ? CONTEXTS : o->contexts;
  /* What nng posts while init runs finds no actor yet: look once afterwards. */
  if (weft_timer_start(ctx, 0, TAG_LOOK) == 0) {
    return weft_whyf(a->why, WEFT_E_NOMEM, "port: out of memory");
  }
  const wefti_rep_opts opts = { o->url, p->contexts, p->frame_max, a->url_out,
                                a->url_cap };
  const weft_err err = wefti_rep_create(&opts, &p->rep, a->why);
  if (err == WEFT_OK) {
    wefti_rep_start(p->rep, wake, p);
  }
  return err;
}

static void port_fini(weft_ctx *ctx, void *self)
{
  (void)ctx;
  port_actor *p = self;
  wefti_rep_destroy(p->rep);
}

static weft_err port_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  port_actor *p = self;
  if ((msg->flags & WEFT_MSG_F_REPLY) != 0 || msg->type == WEFT_MSG_ASK_FAILED) {
    answer(ctx, p, msg);
  } else if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  } else if (msg->type == WEFT_MSG_TIMER &&
             weft_timer_start(ctx, WEFTI_LOOK_MS, TAG_LOOK) == 0) {
    return WEFT_E_NOMEM;
  }
  look(ctx, p);
  return WEFT_OK;
}

static const weft_actor_class port_class = { .name = "port",
                                             .state_size = sizeof(port_actor),
                                             .init = port_init,
                                             .fini = port_fini,
                                             .on = port_on };

/* NOLINTNEXTLINE(readability-function-size): the interface has seven parameters */
weft_err weft_port_spawn_on(weft_runtime *rt, unsigned loop, const weft_port_opts *opts,
                            char *url_out, size_t url_cap, weft_actor_id *out,
                            weft_why *why)
{
  port_args args = { .opts = opts, .url_cap = url_cap, .why = why };
  args.url_out = url_out;
  return weft_runtime_spawn(rt, loop, &port_class, &args, NULL, out);
}
