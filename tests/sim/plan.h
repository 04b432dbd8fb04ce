/* plan.h -- what happens in one run of the simulator: a list of actions made from the
 * seed, so that any of them can be left out to find those that matter. */
#ifndef WEFT_TESTS_SIM_PLAN_H
#define WEFT_TESTS_SIM_PLAN_H

#include "full.h"

enum { PLAN_ACTIONS = 72 };

typedef enum plan_kind {
  PLAN_CALL,
  PLAN_TRAINER,
  PLAN_RETRY,
  PLAN_GONE,
  PLAN_PIN,
  PLAN_UNPIN,
  PLAN_KILL,
  PLAN_FREEZE,
  PLAN_THAW,
  PLAN_CUT,
  PLAN_NET,
  PLAN_DEVICE,
  PLAN_FAIL,
  PLAN_START,
  PLAN_JOURNAL,
  PLAN_ALLOC,
  PLAN_FLOOD,
  PLAN_ENGINE_STOP,
  PLAN_ENGINE_CRASH,
  PLAN_AMBUSH,
  PLAN_QUERY,
  PLAN_ODD,
  PLAN_FRONT,
  PLAN_KINDS
} plan_kind;

typedef struct plan_action {
  plan_kind kind;
  uint32_t a, b, c; /* random; each kind takes from them what it needs */
  uint32_t gap_ms;  /* afterwards */
} plan_action;

typedef struct plan {
  full_opts opts;
  bool calm; /* no faults but delays: the history must be explained without them */
  plan_action actions[PLAN_ACTIONS];
  unsigned count;
} plan;

void plan_make(plan *p, uint64_t seed);
uint64_t plan_mixed(uint64_t *state); /* random numbers of plans */
const char *plan_name(plan_kind kind);
void plan_print(const plan *p, const bool *left_out);

void plan_fault(full *w, const plan_action *a, bool calm); /* plan_fault.c */
/* In the middle of what is going on: after some steps more. */
void plan_strike(full *w, void (*fn)(full *, uint32_t), uint32_t arg, uint32_t steps);

/* ---- plan_http.c */
void plan_http_make(plan *p, uint64_t seed);
void plan_odd(full *w, const plan_action *a);
void plan_front(full *w, const plan_action *a);
void plan_http_heal(full *w);

/* Runs p without the actions left out (may be NULL).  false: an invariant broke, why says
 * which.  hash may be NULL. */
bool plan_run(const plan *p, const bool *left_out, bool trace, char *why, size_t cap,
              uint64_t *hash);

#endif /* WEFT_TESTS_SIM_PLAN_H */
