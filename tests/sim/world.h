/* world.h -- the real engine_core among simulated workers, supervisor, journal, publisher
 * and clients, under the seeded scheduler, with the invariants of the commit checked at
 * every step.  Not here: the real worker actor and its device thread. */
#ifndef WEFT_TESTS_SIM_WORLD_H
#define WEFT_TESTS_SIM_WORLD_H

#include "engine_core.h"
#include "weft/journal.h"
#include "weft/messages.h"
#include "weft/sim.h"

#include <stdbool.h>
#include <stdint.h>

enum { WORLD_RANKS_MAX = 4, WORLD_CLIENTS = 3, WORLD_BODY_MAX = 16384 };

/* What a simulated worker does wrong with the next message of a type; once, or until
 * cleared. */
typedef struct world_fault {
  uint16_t type; /* w_* message; 0 = none */
  enum world_fault_kind {
    FAULT_REFUSE,
    FAULT_CORRECTABLE,
    FAULT_MUTE,
    FAULT_CRASH,
    FAULT_FREEZE,
    FAULT_SLOW
  } kind;
  uint32_t slow_ms;
  bool once;
} world_fault;

typedef struct world_worker { /* one rank; what its living incarnation holds */
  weft_actor_id actor;
  uint64_t incarnation;
  bool alive, frozen;
  uint64_t boot, open_epoch, ended_epoch, installed_epoch;
  uint64_t live_sequence;
  uint64_t live, staged, installed; /* stand for the bytes: a hash of what was pushed */
  uint64_t grant_until_ms, needs_full;
  uint32_t maps_ms; /* a new life has what was visible after so long; 0 = never */
  bool maps_fails;  /* ... and then has not */
  uint64_t maps_until_ms, maps_sequence, maps_digest; /* 0 = does not map */
  bool has_staged;
  /* With a draft model: hash of each set, staged, installed and live as above; 0 = none.
   */
  uint64_t sets[2], new_sets[2];
  bool draft, alone;                                   /* the open session's */
  unsigned accepts, goes, finishes, publishes, aborts; /* messages seen in all lives */
  unsigned entered;        /* GOs taken since the last reset by a test */
  unsigned lends, fetches; /* asked for */
  bool cannot_lend;
  uint32_t phase; /* as heartbeats say, with … */
  uint64_t received, expected;
  uint64_t dirty;      /* epoch that wrote over live in place; 0 = none */
  bool forgets_memory; /* a new life has no such mark, and nothing that it marks */
  world_fault fault;
} world_worker;

typedef struct world_answer {
  bool came;
  unsigned count; /* answers to this client so far */
  weft_err err;
  weft_outcome outcome;
  uint64_t at_ms, asked_ms;
  char message[600], operation[64], phase[32], culprits[128], session[64], version[1100],
      fenced[64];
  uint64_t sequence;
  char body[WORLD_BODY_MAX];
} world_answer;

typedef struct world {
  weft_sim *sim;
  uint32_t ranks;
  weft_actor_id engine, supervisor, journal, clerk, publisher, clients[WORLD_CLIENTS];
  world_worker workers[WORLD_RANKS_MAX];
  world_answer answers[WORLD_CLIENTS];
  wefti_visible visible; /* as on_visible said last */
  char visible_version[1100];
  unsigned visible_count, commit_events;
  uint64_t last_event_sequence;
  uint64_t content_of_visible; /* what rank 0 held when it became visible */
  bool inplace;
  bool shards; /* ranks hold different bytes by right: the digest is of them together */
  bool journal_fails_once, journal_slow;
  weft_journal_append record; /* the last commit's, its texts and sources unset */
  uint64_t kill_list[8];
  unsigned kill_count;
  bool broken; /* an invariant did not hold */
  char why[256];
} world;

typedef struct world_opts {
  uint64_t seed;
  uint32_t ranks; /* 0 = 2 */
  bool with_journal;
  bool with_clerk; /* else the engine compares by itself */
  bool joined;     /* members count as joined: fenced by grant */
  weft_sim_fate_fn *fate;
  void *fate_arg;
  bool trace;
  uint32_t lease_ms;
  bool require_pause;
  uint32_t pause_lease_ms;
  bool draft;
  bool inplace;
  const weft_journal_record *const *history; /* of earlier lives, oldest first */
  size_t history_count;
} world_opts;

void world_start(world *w, const world_opts *opts);
void world_stop(world *w);
/* One step of the scheduler, or a jump to the next timer (not beyond until). false =
 * over. */
void world_run(world *w, uint64_t for_ms);
/* Runs until the client has its answer or for_ms have passed; the answer in w->answers.
 */
const world_answer *world_call(world *w, unsigned client, const weft_msg *msg,
                               uint64_t for_ms);
void world_post(world *w, unsigned client, const weft_msg *msg); /* no waiting */
bool world_all_ready(const world *w);
void world_break(world *w, const char *fmt, ...) WEFT_PRINTF(2, 3);

/* Short forms of the usual calls, with the default deadline (0) or their own. */
const world_answer *world_init(world *w, unsigned client);
const world_answer *world_begin(world *w, unsigned client);
const world_answer *world_update(world *w, unsigned client, const char *info,
                                 uint32_t timeout_ms);
const world_answer *world_finish(world *w, unsigned client, const char *version,
                                 uint32_t timeout_ms);
const world_answer *world_query(world *w, unsigned client, weft_query what);

#endif /* WEFT_TESTS_SIM_WORLD_H */
