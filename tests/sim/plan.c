/* Making plans and printing them. */
#include "plan.h"

#include <inttypes.h>
#include <stdio.h>

/* Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014). */
uint64_t plan_mixed(uint64_t *state)
{
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* How often each kind is drawn, of 1,000: clients alone; every fault beside them; and
 * what makes members come and go while trainers push. */
static const unsigned weights[3][PLAN_KINDS] = {
  { [PLAN_CALL] = 550,
    [PLAN_TRAINER] = 140,
    [PLAN_RETRY] = 70,
    [PLAN_GONE] = 50,
    [PLAN_PIN] = 90,
    [PLAN_UNPIN] = 40,
    [PLAN_NET] = 30,
    [PLAN_DEVICE] = 30 },
  { [PLAN_CALL] = 200,       [PLAN_TRAINER] = 220, [PLAN_RETRY] = 30,
    [PLAN_GONE] = 30,        [PLAN_PIN] = 60,      [PLAN_UNPIN] = 30,
    [PLAN_KILL] = 70,        [PLAN_FREEZE] = 45,   [PLAN_THAW] = 45,
    [PLAN_CUT] = 30,         [PLAN_NET] = 50,      [PLAN_DEVICE] = 40,
    [PLAN_FAIL] = 25,        [PLAN_START] = 15,    [PLAN_JOURNAL] = 25,
    [PLAN_ALLOC] = 15,       [PLAN_FLOOD] = 8,     [PLAN_ENGINE_STOP] = 7,
    [PLAN_ENGINE_CRASH] = 5, [PLAN_AMBUSH] = 40,   [PLAN_QUERY] = 10 },
  { [PLAN_CALL] = 60,
    [PLAN_TRAINER] = 330,
    [PLAN_GONE] = 10,
    [PLAN_FREEZE] = 40,
    [PLAN_THAW] = 130,
    [PLAN_CUT] = 30,
    [PLAN_NET] = 90,
    [PLAN_KILL] = 20,
    [PLAN_JOURNAL] = 60,
    [PLAN_AMBUSH] = 160,
    [PLAN_QUERY] = 70 },
};

static plan_kind draw(uint64_t *rng, unsigned profile)
{
  const unsigned *w = weights[profile];
  uint64_t k = plan_mixed(rng) % 1000;
  for (unsigned i = 0; i < PLAN_KINDS; i++) {
    if (k < w[i]) {
      return (plan_kind)i;
    }
    k -= w[i];
  }
  return PLAN_CALL;
}

void plan_make(plan *p, uint64_t seed)
{
  uint64_t rng = seed * 0x2545f4914f6cdd1du + 1;
  static const unsigned profiles[8] = { 0, 1, 1, 1, 1, 2, 2, 2 };
  const unsigned profile = profiles[plan_mixed(&rng) % 8];
  *p = (plan){ .calm = profile == 0 };
  p->opts = (full_opts){ .seed = seed,
                         .ranks = 1 + (uint32_t)(plan_mixed(&rng) % FULL_RANKS),
                         .with_journal = plan_mixed(&rng) % 3 != 0,
                         .joined = plan_mixed(&rng) % 2 != 0,
                         .lease_ms = !p->calm && plan_mixed(&rng) % 4 == 0 ? 3000 : 0 };
  uint64_t aside = ~seed; /* the rest of a plan does not depend on it */
  p->opts.draft = plan_mixed(&aside) % 4 == 0;
  p->opts.keeps = plan_mixed(&aside) % 4 != 0;
  /* Beside the others' numbers, which keep their worlds. */
  p->opts.inplace = (seed * 0x9e3779b97f4a7c15u >> 40) % 4 == 0;
  p->count = 24 + (unsigned)(plan_mixed(&rng) % (PLAN_ACTIONS - 24));
  for (unsigned i = 0; i < p->count; i++) {
    plan_action *a = &p->actions[i];
    a->kind = draw(&rng, profile);
    a->a = (uint32_t)plan_mixed(&rng);
    a->b = (uint32_t)plan_mixed(&rng);
    a->c = (uint32_t)plan_mixed(&rng);
    const uint64_t gap = plan_mixed(&rng) % 16;
    a->gap_ms = gap == 0  ? 4000 + (uint32_t)(plan_mixed(&rng) % 4000)
                : gap < 6 ? (uint32_t)(plan_mixed(&rng) % 4)
                          : (uint32_t)(plan_mixed(&rng) % 400);
  }
  plan_http_make(p, seed);
}

const char *plan_name(plan_kind kind)
{
  static const char *const names[PLAN_KINDS] = {
    [PLAN_CALL] = "call",
    [PLAN_TRAINER] = "trainer",
    [PLAN_RETRY] = "retry with the same key",
    [PLAN_GONE] = "connection closes",
    [PLAN_PIN] = "pin",
    [PLAN_UNPIN] = "unpin",
    [PLAN_KILL] = "kill a worker",
    [PLAN_FREEZE] = "stop a worker",
    [PLAN_THAW] = "continue a worker",
    [PLAN_CUT] = "cut a link",
    [PLAN_NET] = "slow, doubling or losing link",
    [PLAN_DEVICE] = "slow or hanging device thread",
    [PLAN_FAIL] = "failing transfer",
    [PLAN_START] = "slow or failing start or exit",
    [PLAN_JOURNAL] = "failing, torn, slow or hanging fsync",
    [PLAN_ALLOC] = "failed allocation",
    [PLAN_FLOOD] = "full mailbox",
    [PLAN_ENGINE_STOP] = "stop and continue the engine",
    [PLAN_ENGINE_CRASH] = "crash of the engine",
    [PLAN_AMBUSH] = "fault at a frame of one type",
    [PLAN_QUERY] = "table of tensors",
    [PLAN_ODD] = "requests beside the call",
    [PLAN_FRONT] = "fault of a front end",
  };
  return names[kind];
}

void plan_print(const plan *p, const bool *left_out)
{
  (void)fprintf(stderr, "  %u ranks, %s%s, %s, %s, lease %u ms%s%s\n",
                (unsigned)p->opts.ranks, p->opts.joined ? "joined" : "children",
                !p->opts.keeps   ? ""
                : p->opts.joined ? " that lend"
                                 : " whose weights are kept",
                p->opts.inplace ? "in place" : "shadow",
                p->opts.with_journal ? "journal" : "no journal",
                (unsigned)p->opts.lease_ms, p->opts.draft ? ", a draft model" : "",
                p->calm ? ", calm" : "");
  (void)fprintf(stderr, "  ways of clients:");
  for (unsigned i = 0; i < FULL_CLIENTS; i++) {
    static const char *const ways[] = { "none", "own front end", "remote front end" };
    (void)fprintf(stderr, " %s%s", ways[p->opts.way[i]],
                  i + 1 < FULL_CLIENTS ? "," : "\n");
  }
  for (unsigned i = 0; i < p->count; i++) {
    const plan_action *a = &p->actions[i];
    if (left_out == NULL || !left_out[i]) {
      (void)fprintf(stderr, "  %2u %s (%u %u %u), then %u ms\n", i, plan_name(a->kind),
                    (unsigned)a->a, (unsigned)a->b, (unsigned)a->c, (unsigned)a->gap_ms);
    }
  }
}
