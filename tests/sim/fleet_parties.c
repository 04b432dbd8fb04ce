/* Supervisors and clients of a simulated fleet. */
#include "fleet_parties.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the coordinator's supervisor: invites, tells who came and went */

enum { INVITE_MS = 300 };

typedef struct super_self {
  fleet_world *w;
} super_self;

static void tell_down(weft_ctx *ctx, fleet_world *w, unsigned i, const char *why)
{
  const weft_member_down m = { .h.type = WEFT_MSG_MEMBER_DOWN,
                               .h.flags = WEFT_MSG_F_RESERVED,
                               .rank = i,
                               .incarnation = w->engines[i].link_boot,
                               .why = { why, (uint32_t)strlen(why) } };
  (void)weft_send(ctx, w->engines[FLEET_COORDINATOR].actor, weft_msg_make(ctx, &m.h));
}

static void invite(weft_ctx *ctx, fleet_world *w, unsigned i)
{
  fleet_engine *e = &w->engines[i];
  fleet_engine *self = e;
  if (e->link != 0 || !e->alive || e->cut || (w->no_rejoin & (1u << i)) != 0 ||
      !w->engines[FLEET_COORDINATOR].alive ||
      weft_spawn(ctx, &fleet_link_class, &self, NULL, &e->link) != WEFT_OK) {
    return;
  }
  const weft_member_up m = { .h.type = WEFT_MSG_MEMBER_UP,
                             .h.flags = WEFT_MSG_F_RESERVED,
                             .rank = i,
                             .incarnation = e->boot,
                             .kind = WEFT_MEMBER_JOINED,
                             .actor = e->link,
                             .pid = 1 };
  e->link_boot = e->boot;
  (void)weft_send(ctx, w->engines[FLEET_COORDINATOR].actor, weft_msg_make(ctx, &m.h));
}

static weft_err super_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  fleet_world *w = ((super_self *)self)->w;
  if (msg->type == WEFT_MSG_TIMER) {
    for (unsigned i = 0; i < w->replicas; i++) {
      fleet_engine *e = &w->engines[i];
      if (e->link != 0 && (!e->alive || e->link_boot != e->boot)) {
        weft_stop_other(ctx, e->link);
        e->link = 0;
        tell_down(ctx, w, i, "its connection closed");
      }
      invite(ctx, w, i);
    }
    (void)weft_timer_start(ctx, INVITE_MS, 0);
  } else if (msg->type == WEFT_MSG_MEMBER_FENCE) {
    const weft_member_fence *m = (const weft_member_fence *)msg;
    fleet_engine *e = &w->engines[m->rank];
    if (e->link != 0 && e->link_boot == m->incarnation) {
      weft_stop_other(ctx, e->link);
      e->link = 0;
      tell_down(ctx, w, m->rank, "was dropped");
    }
  }
  return WEFT_OK;
}

static weft_err super_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)fleet_take_pointer(ctx, self, args);
  return weft_timer_start(ctx, 1, 0) != 0 ? WEFT_OK : WEFT_E_NOMEM;
}

const weft_actor_class fleet_super_class = { "super", sizeof(super_self), super_init,
                                             NULL, super_on };

/* ---- a replica's own supervisor: tells of its ranks, and has them replaced */

static weft_err keeper_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  fleet_engine *e = *(fleet_engine *const *)self;
  if (msg->type == WEFT_MSG_MEMBER_UP || msg->type == WEFT_MSG_MEMBER_DOWN) {
    (void)weft_send(ctx, e->actor, weft_msg_make(ctx, msg));
  } else if (msg->type == WEFT_MSG_MEMBER_FENCE) {
    const weft_member_fence *m = (const weft_member_fence *)msg;
    if (e->ranks[m->rank].incarnation == m->incarnation) {
      e->rank_fenced |= 1u << m->rank;
    }
  }
  return WEFT_OK;
}

const weft_actor_class fleet_keeper_class = { "keeper", sizeof(void *),
                                              fleet_take_pointer, NULL, keeper_on };

/* ---- clients: CLIENT_GONE's caller is the engine that the next message is for */

static void copy_str(char *out, size_t cap, weft_str s)
{
  (void)snprintf(out, cap, "%.*s", (int)s.len, s.p == NULL ? "" : s.p);
}

static weft_err client_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  fleet_client_args *s = self;
  fleet_answer *a = &s->w->answers[s->index];
  if (msg->type == WEFT_MSG_CLIENT_DONE) {
    const weft_client_done *d = (const weft_client_done *)msg;
    a->came = true;
    a->err = (weft_err)d->err;
    a->outcome = (weft_outcome)d->outcome;
    a->sequence = d->sequence;
    a->at_ms = weft_now_ms(ctx);
    copy_str(a->message, sizeof a->message, d->message);
    copy_str(a->culprits, sizeof a->culprits, d->culprits);
    copy_str(a->version, sizeof a->version, d->version);
    copy_str(a->fenced, sizeof a->fenced, d->fenced);
    copy_str(a->session, sizeof a->session, d->session);
    (void)snprintf(a->body, sizeof a->body, "%.*s",
                   d->body == NULL ? 0 : (int)d->body->len,
                   d->body == NULL ? "" : (const char *)d->body->data);
  } else if (msg->type == WEFT_MSG_ASK_FAILED) {
    a->came = true; /* its engine has crashed */
    a->err = (weft_err)((const weft_ask_failed_msg *)msg)->reason;
    a->outcome = WEFT_OUTCOME_UNKNOWN;
    if (a->err == WEFT_E_TIMEOUT) {
      fleet_break(s->w, "I5: client %u was never answered", s->index);
    }
  } else if (msg->type == WEFT_MSG_CLIENT_GONE) {
    s->to = ((const weft_client_gone *)msg)->caller;
  } else if (msg->type < WEFT_MSG_CLIENT_DONE || msg->type == WEFT_MSG_CLIENT_RESOLVE) {
    a->asked_ms = weft_now_ms(ctx);
    (void)weft_ask(ctx, s->to, weft_msg_make(ctx, msg), 400000);
  }
  return WEFT_OK;
}

static weft_err client_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  *(fleet_client_args *)self = *(const fleet_client_args *)args;
  return WEFT_OK;
}

const weft_actor_class fleet_client_class = { "client", sizeof(fleet_client_args),
                                              client_init, NULL, client_on };

/* Time passes even when everybody has crashed. */
static weft_err clock_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  (void)self;
  (void)msg;
  return weft_timer_start(ctx, 10, 0) != 0 ? WEFT_OK : WEFT_E_NOMEM;
}

static weft_err clock_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)args;
  return clock_on(ctx, self, NULL);
}

const weft_actor_class fleet_clock_class = { "clock", 1, clock_init, NULL, clock_on };
