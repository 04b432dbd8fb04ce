/* weft-sim: runs seed after seed of the simulated engine (full.h, plan.h), or with
 * --fleet of a simulated fleet (fleet_world.h, fleet_plan.h); every invariant is checked
 * at every step.
 *
 *   weft-sim [--fleet] [--seeds N] [--first S] [--trace] [--shrink] [--quick]
 *
 * A failing seed prints what broke and, for the first one (--shrink: for each), the
 * shortest list of actions found that still breaks something.  --quick stops at the first
 * failure and does not shrink. */
#include "fleet_plan.h"
#include "plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHY_MAX = 600, SHRINK_RUNS = 600 };

enum { ACTIONS = PLAN_ACTIONS };
static_assert((int)FLEET_ACTIONS <= (int)PLAN_ACTIONS, "one size for both");

/* What one seed makes, of either kind. */
typedef struct any_plan {
  bool of_fleet;
  plan engine;
  fleet_plan fleet;
} any_plan;

static void make(any_plan *p, bool of_fleet, uint64_t seed)
{
  p->of_fleet = of_fleet;
  if (of_fleet) {
    fleet_plan_make(&p->fleet, seed);
  } else {
    plan_make(&p->engine, seed);
  }
}

static bool run_plan(const any_plan *p, const bool *left_out, bool trace, char *why,
                     size_t cap, uint64_t *hash)
{
  return p->of_fleet ? fleet_plan_run(&p->fleet, left_out, trace, why, cap, hash)
                     : plan_run(&p->engine, left_out, trace, why, cap, hash);
}

/* Leaves out as many actions as it can, in ever smaller pieces. */
static void shrink(const any_plan *p)
{
  bool left_out[ACTIONS] = { false };
  const unsigned count = p->of_fleet ? p->fleet.count : p->engine.count;
  char why[WHY_MAX];
  char last[WHY_MAX] = "";
  unsigned runs = 0;
  for (unsigned piece = count / 2; piece > 0; piece /= 2) {
    for (unsigned from = 0; from < count && runs < SHRINK_RUNS; from += piece) {
      bool tried[ACTIONS];
      bool any = false;
      memcpy(tried, left_out, sizeof tried);
      for (unsigned i = from; i < from + piece && i < count; i++) {
        any = any || !tried[i];
        tried[i] = true;
      }
      runs++;
      if (any && !run_plan(p, tried, false, why, sizeof why, NULL)) {
        memcpy(left_out, tried, sizeof left_out);
        memcpy(last, why, sizeof last);
      }
    }
  }
  (void)fprintf(stderr, "shrunk in %u runs%s%s\n", runs, last[0] == '\0' ? "" : ": ",
                last);
  if (p->of_fleet) {
    fleet_plan_print(&p->fleet, left_out);
  } else {
    plan_print(&p->engine, left_out);
  }
}

typedef struct options {
  uint64_t seeds, first;
  bool trace, shrink, quick, fleet;
} options;

static bool parse(int argc, char **argv, options *o)
{
  *o = (options){ .seeds = 200, .first = 1 };
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
      o->seeds = strtoull(argv[++i], NULL, 10);
    } else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) {
      o->first = strtoull(argv[++i], NULL, 10);
    } else if (strcmp(argv[i], "--trace") == 0) {
      o->trace = true;
    } else if (strcmp(argv[i], "--fleet") == 0) {
      o->fleet = true;
    } else if (strcmp(argv[i], "--shrink") == 0) {
      o->shrink = true;
    } else if (strcmp(argv[i], "--quick") == 0) {
      o->quick = true;
    } else {
      return false;
    }
  }
  return true;
}

/* Once: the same seed takes the same way. */
static bool repeats(const any_plan *p, uint64_t hash)
{
  char why[WHY_MAX];
  uint64_t again;
  return run_plan(p, NULL, false, why, sizeof why, &again) && again == hash;
}

int main(int argc, char **argv)
{
  options o;
  if (!parse(argc, argv, &o)) {
    (void)fprintf(stderr,
                  "usage: weft-sim [--fleet] [--seeds N] [--first SEED] [--trace] "
                  "[--shrink] [--quick]\n");
    return 2;
  }
  uint64_t failed = 0;
  uint64_t run = 0;
  for (uint64_t s = o.first; s < o.first + o.seeds && !(o.quick && failed > 0); s++) {
    any_plan p;
    char why[WHY_MAX];
    uint64_t hash;
    make(&p, o.fleet, s);
    run++;
    if (!run_plan(&p, NULL, o.trace, why, sizeof why, &hash)) {
      (void)fprintf(stderr, "seed %" PRIu64 " %s\n", s, why);
      if (!o.quick && (o.shrink || failed == 0)) {
        shrink(&p);
      }
      failed++;
    } else if (s == o.first && !repeats(&p, hash)) {
      (void)fprintf(stderr, "seed %" PRIu64 " did not run the same way twice\n", s);
      failed++;
    }
  }
  (void)printf("%" PRIu64 " seeds, %" PRIu64 " failed\n", run, failed);
  return failed == 0 ? 0 : 1;
}
