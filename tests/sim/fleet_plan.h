/* fleet_plan.h -- what happens in one run of a simulated fleet: a list of actions made
 * from the seed, so that any of them can be left out to find those that matter. */
#ifndef WEFT_TESTS_SIM_FLEET_PLAN_H
#define WEFT_TESTS_SIM_FLEET_PLAN_H

#include "fleet_world.h"

enum { FLEET_ACTIONS = 72 };

typedef enum fleet_kind {
  FLEET_TRAINER,  /* the next call of a push */
  FLEET_CATCH_UP, /* … of a push to one replica that is behind */
  FLEET_LABEL,
  FLEET_ABORT,
  FLEET_PAUSE,
  FLEET_CUT,
  FLEET_HEAL,
  FLEET_SLOW,
  FLEET_AMBUSH, /* at a frame of one type: lost, doubled, somebody crashes */
  FLEET_CRASH,
  FLEET_RESTART,
  FLEET_COORDINATOR_CRASH,
  FLEET_RANK,
  FLEET_JOURNAL,
  FLEET_KINDS
} fleet_kind;

typedef struct fleet_action {
  fleet_kind kind;
  uint32_t a, b;   /* random; each kind takes from them what it needs */
  uint32_t gap_ms; /* afterwards */
} fleet_action;

typedef struct fleet_plan {
  fleet_opts opts;
  fleet_action actions[FLEET_ACTIONS];
  unsigned count;
} fleet_plan;

void fleet_plan_make(fleet_plan *p, uint64_t seed);
void fleet_plan_print(const fleet_plan *p, const bool *left_out);
/* Runs p without the actions left out (may be NULL).  false: an invariant broke, why says
 * which.  hash may be NULL. */
bool fleet_plan_run(const fleet_plan *p, const bool *left_out, bool trace, char *why,
                    size_t cap, uint64_t *hash);

#endif /* WEFT_TESTS_SIM_FLEET_PLAN_H */
