/* What the engine is told of members.  A down that it could not be told is owed, and paid
 * before the next life of that rank begins. */
#include "supervisor_priv.h"

#include <string.h>

bool supervisor_tell_down(weft_ctx *ctx, const supervisor *self, uint32_t rank,
                          const seat_owed *down, const char *why)
{
  const weft_member_down m = {
    .h = { .type = WEFT_MSG_MEMBER_DOWN },
    .rank = rank,
    .incarnation = down->incarnation,
    .fenced = down->fenced,
    .why = { why, (uint32_t)strlen(why) },
  };
  weft_msg *copy = weft_msg_make(ctx, &m.h);
  if (copy != NULL) {
    copy->flags |= WEFT_MSG_F_RESERVED;
  }
  const weft_err err = weft_send(ctx, self->args.engine, copy);
  return err == WEFT_OK || err == WEFT_E_DOWN || err == WEFT_E_CLOSED;
}

/* A fenced down says more than an unfenced one of the same life, so one place is enough:
 * no next life begins before it is told. */
void supervisor_member_down(weft_ctx *ctx, supervisor *self, uint32_t rank, bool fenced,
                            const char *why)
{
  seat *s = &self->seats[rank];
  const seat_owed down = { .is = true, .fenced = fenced, .incarnation = s->incarnation };
  if (supervisor_tell_down(ctx, self, rank, &down, why)) {
    s->owed.is = false;
    return;
  }
  s->owed = down;
  self->owing = true;
  if (self->owed_timer == 0) {
    self->owed_timer = weft_timer_start(ctx, SUPERVISOR_OWED_MS, 0);
  }
}

/* For people who wonder where the worker is: it never became a member. */
void supervisor_not_started(weft_ctx *ctx, const supervisor *self, uint32_t rank,
                            const char *why)
{
  const seat_owed never = { .fenced = 1, .incarnation = self->seats[rank].incarnation };
  (void)supervisor_tell_down(ctx, self, rank, &never, why);
}

bool supervisor_pay_owed(weft_ctx *ctx, supervisor *self, uint32_t rank)
{
  seat *s = &self->seats[rank];
  if (s->owed.is && supervisor_tell_down(ctx, self, rank, &s->owed, "told late")) {
    s->owed.is = false;
  }
  return !s->owed.is;
}

void supervisor_pay_all(weft_ctx *ctx, supervisor *self)
{
  bool all = true;
  for (uint32_t rank = 0; rank < self->args.world_size; rank++) {
    all = supervisor_pay_owed(ctx, self, rank) && all;
  }
  self->owing = !all;
  self->owed_timer = all ? 0 : weft_timer_start(ctx, SUPERVISOR_OWED_MS, 0);
}

weft_err supervisor_announce(weft_ctx *ctx, supervisor *self, const weft_proc_ready *m)
{
  const weft_member_up up = {
    .h = { .type = WEFT_MSG_MEMBER_UP },
    .rank = m->rank,
    .incarnation = m->incarnation,
    .kind = m->kind,
    .actor = self->seats[m->rank].link,
    .pid = m->pid,
    .url = m->url,
  };
  weft_msg *copy = weft_msg_make(ctx, &up.h);
  if (copy != NULL) {
    copy->flags |= WEFT_MSG_F_RESERVED;
  }
  return weft_send(ctx, self->args.engine, copy);
}
