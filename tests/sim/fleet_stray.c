/* Frames of a fleet that arrive when their link, or their coordinator, is gone. */
#include "fleet_parties.h"

#include <stdlib.h>

void fleet_stray(fleet_world *w, unsigned replica, const weft_msg *frame, uint64_t at_ms)
{
  for (unsigned i = 0; i < FLEET_STRAYS; i++) {
    fleet_late_frame *f = &w->strays[i];
    if (f->msg == NULL) {
      *f = (fleet_late_frame){ .msg = weft_msg_dup(weft_messages(), frame),
                               .replica = replica,
                               .at_ms = at_ms };
      return;
    }
  }
}

void fleet_strays_due(fleet_world *w)
{
  const uint64_t now = weft_sim_now_ms(w->sim);
  for (unsigned i = 0; i < FLEET_STRAYS; i++) {
    fleet_late_frame *f = &w->strays[i];
    if (f->msg == NULL || f->at_ms > now) {
      continue;
    }
    const fleet_engine *e = &w->engines[f->replica];
    if (e->alive && !e->cut) {
      (void)weft_sim_send(w->sim, e->actor, f->msg);
    }
    weft_msg_drop(weft_messages(), f->msg);
    f->msg = NULL;
  }
}

void fleet_strays_drop(fleet_world *w)
{
  for (unsigned i = 0; i < FLEET_STRAYS; i++) {
    if (w->strays[i].msg != NULL) {
      weft_msg_drop(weft_messages(), w->strays[i].msg);
      w->strays[i].msg = NULL;
    }
  }
}
