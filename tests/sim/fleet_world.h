/* fleet_world.h -- a real coordinator engine_core over real member engine_cores, under
 * the seeded scheduler, with scripted ranks, a journal of records for each engine that
 * outlives its crashes, links that can be cut, and the invariants of a fleet checked at
 * every step. Not here: real workers and device threads (full.h), the door and its
 * invitations. */
#ifndef WEFT_TESTS_SIM_FLEET_WORLD_H
#define WEFT_TESTS_SIM_FLEET_WORLD_H

#include "engine_core.h"
#include "weft/journal.h"
#include "weft/messages.h"
#include "weft/sim.h"

#include <stdbool.h>
#include <stdint.h>

enum {
  FLEET_REPLICAS_MAX = 3,
  FLEET_ENGINES = FLEET_REPLICAS_MAX + 1, /* the coordinator is the last */
  FLEET_COORDINATOR = FLEET_REPLICAS_MAX,
  FLEET_RANKS_MAX = 2,
  FLEET_CLIENTS = 3,
  FLEET_RECORDS_MAX = 512,
  FLEET_HELD_MAX = 64, /* of a journal that hangs */
  FLEET_CHANGES_MAX = 256,
  FLEET_SHOWN_MAX = 64,
  FLEET_STRAYS = 64
};

struct fleet_world;

/* One rank of a replica: what its living incarnation holds. */
typedef struct fleet_rank {
  weft_actor_id actor;
  uint64_t incarnation;
  bool alive;
  uint64_t boot, epoch, ended;
  uint64_t live, staged, installed; /* stand for the bytes */
  uint64_t dirty;                   /* epoch that wrote over live in place; 0 = none */
  uint64_t sequence;                /* of live, in its engine's numbers */
  uint64_t until_ns;                /* of its grant */
  uint16_t refuse;                  /* refuses the next message of this type */
  uint16_t die;                     /* dies of it */
  uint16_t mute;                    /* never answers it; until cleared */
  uint64_t flip;                    /* its bytes differ by this */
  uint32_t dp;                      /* as its engine says */
  weft_return late;                 /* answer to an adoption that waits */
  weft_w_adopt late_of;             /* … and that adoption; type 0 = none */
} fleet_rank;

typedef struct fleet_journal {
  weft_journal_record records[FLEET_RECORDS_MAX]; /* strings owned */
  bool durable[FLEET_RECORDS_MAX];
  unsigned count;
  weft_return held[FLEET_HELD_MAX]; /* questions that are not answered while hang */
  unsigned held_count;
  bool hang, fail_once;
  bool fails;     /* as fail_once, until it is over */
  unsigned lives; /* of its engine */
} fleet_journal;

typedef struct fleet_engine {
  struct fleet_world *w;
  unsigned index;
  weft_actor_id actor, journal_actor, keeper, link;
  uint32_t rank_fenced; /* bit per rank: to be replaced */
  bool alive;
  uint64_t boot, link_boot;
  fleet_journal journal;
  fleet_rank ranks[FLEET_RANKS_MAX]; /* of a replica */
  wefti_visible visible;             /* as on_visible said last in this life */
  char version[ENGINE_VERSION_MAX + 1];
  unsigned shown;          /* times */
  int shown_age;           /* which of the fleet's changes it showed last */
  uint64_t first_sequence; /* that this life may give out */
  /* What it showed under its numbers, in all lives; by number modulo. */
  struct {
    uint64_t sequence;
    int age;
  } ages[FLEET_SHOWN_MAX];
  wefti_upstream upstream; /* as on_upstream said last */
  /* The link to it. */
  bool cut;                            /* nothing passes, nobody is told */
  uint16_t lose_question, lose_answer; /* the next of this type */
  uint16_t crash_before, crash_after; /* the replica, at its next question of this type */
  uint16_t coordinator_crash;         /* … the coordinator, when it is asked */
  uint16_t double_question;           /* comes twice */
  uint32_t slow_ms;                   /* at most, for each message on each way */
} fleet_engine;

typedef struct fleet_answer {
  bool came;
  weft_err err;
  weft_outcome outcome;
  uint64_t sequence, asked_ms, at_ms;
  char message[600], culprits[128], version[ENGINE_VERSION_MAX + 1], fenced[64],
      session[64], body[8192];
} fleet_answer;

/* A frame to a replica that arrives whatever has become of who sent it. */
typedef struct fleet_late_frame {
  weft_msg *msg; /* NULL = free */
  unsigned replica;
  uint64_t at_ms;
} fleet_late_frame;

typedef struct fleet_world {
  weft_sim *sim;
  uint32_t replicas, ranks;
  uint32_t pause_lease_ms; /* of the coordinator */
  bool inplace;            /* its replicas */
  fleet_engine engines[FLEET_ENGINES];
  weft_actor_id supervisor, clients[FLEET_CLIENTS];
  fleet_answer answers[FLEET_CLIENTS];
  const char *fleet_id; /* of the coordinator's lives to come */
  uint64_t lives;
  /* What has been visible, in order, over all lives of the coordinator. */
  uint64_t changes[FLEET_CHANGES_MAX];
  unsigned change_count;
  int told; /* the newest of them that anybody has shown */
  weft_actor_id prober;
  bool probe;       /* readers ask all engines after this step */
  unsigned probed;  /* answers they got */
  uint64_t kill[8]; /* engines to be crashed after this step */
  unsigned kill_count;
  fleet_late_frame strays[FLEET_STRAYS];
  bool late_frames;   /* adoptions, and what is on a link that ends, arrive later */
  uint32_t no_rejoin; /* bit per replica: its link is not set up anew */
  bool strict; /* nobody but the coordinator decides: no operator, no other fleet */
  bool astray; /* an operator decides although the coordinator lives */
  bool torn;   /* a crash keeps what the journal had not said to be durable */
  bool broken;
  char why[300];
} fleet_world;

typedef struct fleet_opts {
  uint64_t seed;
  uint32_t replicas;       /* 0 = 2 */
  uint32_t ranks;          /* of each; 0 = 1 */
  uint32_t pause_lease_ms; /* of the coordinator; 0 = none */
  bool inplace;
  bool trace;
} fleet_opts;

void fleet_start(fleet_world *w, const fleet_opts *opts);
void fleet_stop(fleet_world *w);
void fleet_run(fleet_world *w, uint64_t for_ms);
void fleet_break(fleet_world *w, const char *fmt, ...) WEFT_PRINTF(2, 3);

/* A process ends; what its journal had not said to be durable is lost. */
void fleet_crash(fleet_world *w, unsigned index);
void fleet_restart(fleet_world *w, unsigned index);
void fleet_kill_rank(fleet_world *w, unsigned replica, unsigned rank);
void fleet_cut(fleet_world *w, unsigned replica, bool cut);
/* What a rank holds after an update with info. */
uint64_t fleet_content(const char *info);
/* Has the coordinator's journal a durable commit of it? */
bool fleet_is_recorded(const fleet_world *w, uint64_t content);
bool fleet_was_visible(const fleet_world *w, uint64_t content);
void fleet_release_journal(fleet_world *w, unsigned engine);

/* Asks engine and runs until it has answered. */
const fleet_answer *fleet_call(fleet_world *w, unsigned client, unsigned engine,
                               const weft_msg *msg);
void fleet_post(fleet_world *w, unsigned client, unsigned engine, const weft_msg *msg);
const fleet_answer *fleet_begin(fleet_world *w, unsigned engine);
const fleet_answer *fleet_update(fleet_world *w, unsigned engine, const char *info);
const fleet_answer *fleet_finish(fleet_world *w, unsigned engine, const char *version);
const fleet_answer *fleet_query(fleet_world *w, unsigned engine, weft_query what);
const fleet_answer *fleet_resolve(fleet_world *w, unsigned engine, bool commit);
/* Does rank answer readers now? */
bool fleet_serves(const fleet_world *w, unsigned replica, unsigned rank);

#endif /* WEFT_TESTS_SIM_FLEET_WORLD_H */
