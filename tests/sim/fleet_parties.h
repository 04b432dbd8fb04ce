/* fleet_parties.h -- between the files of the simulated fleet: the actors around its
 * engines.  Not for plans and tests (fleet_world.h). */
#ifndef WEFT_TESTS_SIM_FLEET_PARTIES_H
#define WEFT_TESTS_SIM_FLEET_PARTIES_H

#include "fleet_world.h"

typedef struct fleet_rank_args {
  fleet_engine *e;
  unsigned rank;
  uint64_t incarnation;
} fleet_rank_args;

typedef struct fleet_client_args {
  fleet_world *w;
  unsigned index;
  weft_actor_id to;
} fleet_client_args;

extern const weft_actor_class fleet_rank_class;   /* fleet_rank.c; fleet_rank_args */
extern const weft_actor_class fleet_client_class; /* fleet_client_args */
extern const weft_actor_class fleet_clock_class;  /* no args */
/* Their args: a pointer to the world (super) or to the engine that they belong to. */
extern const weft_actor_class fleet_journal_class, fleet_link_class; /* fleet_link.c */
extern const weft_actor_class fleet_super_class, fleet_keeper_class;
extern const weft_actor_class fleet_probe_class; /* fleet_probe.c; the world */

uint64_t fleet_hash(const void *data, size_t len);
/* ---- fleet_stray.c */
void fleet_stray(fleet_world *w, unsigned replica, const weft_msg *frame, uint64_t at_ms);
void fleet_strays_due(fleet_world *w);
void fleet_strays_drop(fleet_world *w);
/* An engine crashes when this step is over. */
void fleet_to_kill(fleet_world *w, unsigned engine);
void fleet_record_free(weft_journal_record *r);
/* What a restart finds: what was said to be durable, or all that was written. */
void fleet_journal_crash(fleet_journal *j, bool all);
weft_err fleet_take_pointer(weft_ctx *ctx, void *self, const void *args);

#endif /* WEFT_TESTS_SIM_FLEET_PARTIES_H */
