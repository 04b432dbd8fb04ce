/* full.h -- a whole engine in one thread: the real engine_core, supervisor, publisher,
 * workers, device actors and weight stores, with simulated processes, links, device
 * threads' time, journal and clients between them; the invariants I1..I8 are checked
 * after every step.  Not here: what happens in a run (plan.h), the way of clients that
 * speak HTTP (full_http.h), the light world that unit tests use (world.h). */
#ifndef WEFT_TESTS_SIM_FULL_H
#define WEFT_TESTS_SIM_FULL_H

#include "device.h"
#include "engine.h"
#include "history.h"
#include "publisher.h"
#include "supervisor.h"
#include "weft/messages.h"
#include "weft/sim.h"
#include "worker_priv.h"

#include <stdbool.h>
#include <stdint.h>

enum {
  FULL_RANKS = 3,
  FULL_CLIENTS = 4,              /* the last one only asks for tables */
  FULL_TENSORS = 3,              /* t0, t1, …: one int64 each */
  FULL_CELLS = 2 * FULL_TENSORS, /* of the main and of the draft model's set */
  FULL_PUSHES = 640,             /* update calls of one run */
  FULL_EPOCHS = 512,             /* of one boot of the engine */
  FULL_BOOTS = 4,
  FULL_PROCS = 192, /* worker processes of one run, all lives */
  FULL_EVENTS = 64, /* what the world outside does later */
  FULL_STRAYS = 64,
  FULL_HELD = 6,  /* pins that readers hold on to */
  FULL_KEPT = 32, /* installed sets of a rank that outlive it */
  FULL_RECORDS = 512,
  FULL_CALLS = 512
};

typedef struct full full;
typedef struct full_http full_http; /* full_http.h */

/* A set that a rank has installed, with its keeper. */
typedef struct full_kept {
  bool is, has[FULL_CELLS];
  uint64_t digest[2];
  int64_t content[FULL_CELLS];
  uint8_t tensor_digest[FULL_CELLS][16];
} full_kept;

/* ---- one life of a worker process */
typedef struct full_process {
  full *w;
  uint32_t index, rank;
  uint64_t incarnation;
  bool alive, frozen, child;
  bool marked; /* the mark in its slabs */
  weft_actor_id worker, gate, real;
  wefti_device *device;
  weft_memory memory; /* malloc: the sanitizers watch it */
  uint64_t memory_held;
  /* The device thread between being given a job and having let go of it. */
  bool busy;
  weft_device_job job;
  uint64_t job_epoch;
  /* Pushes that the session under way has received. */
  uint64_t session_epoch;
  uint16_t got[32];
  unsigned got_count;
  weft_plan *plan;
  wefti_keeper keeper;
  uint64_t wanted[2]; /* of its keeper */
  bool wanted_other;
  full_kept offer; /* of a keeper; or what it lends */
  wefti_lender lender;
  bool lends;
  uint64_t lends_until_ms;
  uint64_t secret; /* of its newest loan */
} full_process;

/* What goes wrong at one rank, over its lives. */
typedef struct full_trouble {
  uint32_t net_delay_ms; /* each frame and answer takes up to so long, so they overtake */
  uint32_t net_twice, net_lost; /* percent */
  uint32_t device_slow_ms;      /* a job takes up to so long */
  uint16_t ambush_type;         /* frame that the next fault waits for; 0 = none */
  enum { AMBUSH_FREEZE, AMBUSH_KILL, AMBUSH_CUT, AMBUSHES } ambush;
  uint16_t echo_type;  /* the next answer to such a frame comes to the one after, too */
  bool device_hangs;   /* the next session job does not end until healed */
  bool ignores_cancel; /* a transfer ends well although it was cancelled */
  bool fail_accept, fail_first, fail_receive, corrupt; /* once */
  uint32_t start_ms;                                   /* until a new process is ready */
  bool start_fails;
  uint32_t exit_ms; /* until the news of an exit comes */
  bool offer_slow, offer_lost, offer_wrong, offer_damaged; /* the last three once */
} full_trouble;

/* ---- what the world knows of one session */
typedef struct full_epoch {
  bool installed[FULL_RANKS]; /* by any life */
  bool aborted;               /* ABORT went out, or its failure was answered */
  bool published;             /* a PUBLISH went out */
  bool content_known;
  bool draft, alone;           /* as its START said */
  uint64_t base;               /* weights_sequence visible when it was started */
  uint64_t sequence;           /* 0 = not published */
  int64_t content[FULL_CELLS]; /* 0 = no such tensor */
  uint64_t digest;             /* high half, of the whole set */
  uint16_t got[32];
  unsigned got_count;
} full_epoch;

typedef struct full_boot {
  uint64_t id;
  full_epoch epochs[FULL_EPOCHS];
  uint64_t visible, visible_weights, visible_epoch;
  char version[64];
  bool poisoned;      /* as the engine says; version and weights are forgotten then */
  bool forgets;       /* it was, at some time */
  char forgotten[64]; /* the version before that */
  char versions[FULL_RECORDS][16]; /* [sequence] */
  uint64_t next_event;
  uint64_t last_issued; /* highest sequence that the journal was asked to keep */
  uint64_t durable;     /* ... that it has kept */
} full_boot;

typedef enum full_push_state { PUSH_UNKNOWN, PUSH_OK, PUSH_FAILED } full_push_state;
typedef struct full_push {
  full_push_state state;
  uint32_t mask;
  unsigned boot; /* where it was taken */
  uint64_t epoch;
} full_push;

/* ---- clients */
typedef struct full_call {
  bool open;
  bool taken; /* the engine runs it, or lets it wait for the call under its key */
  uint16_t type;
  unsigned client;
  unsigned boot;      /* of the engine when it was made */
  uint64_t caller;    /* its connection */
  uint64_t at_engine; /* that connection's number there; 0 = not known yet */
  uint64_t asked_ms, allowed_ms, answered_ms;
  uint64_t step_from, step_to; /* for the history */
  unsigned push;               /* of an update, + 1 */
  bool has_version, has_expected, with_session;
  bool draft; /* of a start */
  char version[64], expected[64], session[64], key[32];
  unsigned spelling; /* of its body, by HTTP */
  bool by_http;      /* what is not so here says more of its answer than HTTP can */
  bool carried;      /* under way to another process when the engine crashed */
  /* answer */
  bool silent;                  /* not the engine's own: a front end or a link gave up */
  bool no_version, no_sequence; /* not in it */
  weft_err err;
  weft_outcome outcome;
  uint64_t sequence;
  char got_version[64], got_session[64], message[200];
} full_call;

typedef struct full_client {
  weft_actor_id actor;
  unsigned way;    /* 0 = speaks to the engine itself; else front end + 1 */
  uint64_t caller; /* connection: a new one after each crash */
  bool pending;
  unsigned call;      /* index of the newest */
  uint64_t corr;      /* its question */
  unsigned auto_step; /* a well-behaved trainer at work; 0 = none */
  unsigned auto_updates;
  bool auto_draft;
  char session[64]; /* the newest that start gave */
} full_client;

typedef struct full_journal {
  bool fails_once, torn_once, slow, hangs;
  bool held;
  weft_return to;
  uint64_t sequence; /* of the record held */
  uint64_t corr_timer;
} full_journal;

typedef struct full_event {
  enum { EV_NONE, EV_SPAWN, EV_READY, EV_EXIT, EV_OFFER } kind;
  uint64_t at_ms;
  uint32_t rank, process;
  uint64_t incarnation;
} full_event;

typedef struct full_held {
  full_process *p;
  const weft_snapshot *snapshot;
  int64_t content[FULL_CELLS];
} full_held;

/* A frame that outlived its link. */
typedef struct full_lost_frame {
  weft_msg *msg; /* NULL = free */
  uint32_t rank;
  uint64_t at_ms;
} full_lost_frame;

typedef struct full_opts {
  uint64_t seed;
  uint32_t ranks;
  bool with_journal, joined, inplace, trace;
  bool draft; /* there is a draft model */
  bool keeps; /* children's weights outlive them; joined workers lend theirs */
  unsigned way[FULL_CLIENTS]; /* of full_client */
  uint32_t lease_ms;
} full_opts;

struct full {
  weft_sim *sim;
  full_opts opts;
  uint32_t ranks;
  weft_actor_id engine, supervisor, publisher, journal_actor;
  bool engine_frozen;
  uint64_t frozen_ms;            /* for how long the engine was stopped, in all */
  uint64_t excused_until;        /* no deadline is looked at until then */
  uint64_t memory_excused_until; /* ... as far as memory is the reason */
  unsigned allocs_failed;        /* injected so far: an event may be lost */
  unsigned boot;                 /* index of the engine's life */
  full_boot *boots;              /* [FULL_BOOTS] */
  full_process *processes;       /* [FULL_PROCS] */
  uint32_t process_count;
  uint32_t at[FULL_RANKS]; /* process of the rank + 1; 0 = none */
  full_trouble trouble[FULL_RANKS];
  full_event events[FULL_EVENTS];
  full_lost_frame strays[FULL_STRAYS];
  uint64_t next_due_ms; /* none of both is due before */
  uint32_t kill_list[16];
  unsigned kill_count;
  full_kept kept[FULL_RANKS][FULL_KEPT]; /* the newest, by any life */
  unsigned kept_count[FULL_RANKS];
  full_journal journal;
  full_client clients[FULL_CLIENTS];
  full_http *http;  /* NULL: every client speaks to the engine itself */
  full_call *calls; /* [FULL_CALLS] */
  unsigned call_count;
  unsigned first_call; /* of this boot */
  full_push pushes[FULL_PUSHES];
  unsigned push_count;
  full_held held[FULL_HELD];
  uint64_t let_go_ms; /* when their readers are done; 0 = nobody knows */
  unsigned leaver; /* a client is to leave its call, has left it, is back (plan_run.c) */
  unsigned left;   /* the call */
  uint64_t steps;
  /* A fault in the middle of what the actors do: after so many steps. */
  uint64_t strike_in;
  void (*strike)(full *w, uint32_t arg);
  uint32_t strike_arg;
  bool flooded;  /* a mailbox was full */
  bool faulty;   /* sessions may end by themselves in this run */
  bool healed;   /* no fault begins any more */
  bool settling; /* the faults are over: every call must go through */
  bool broken;
  char why[400];
};

/* ---- full.c */
void full_start(full *w, const full_opts *opts);
void full_stop(full *w);
void full_run(full *w, uint64_t for_ms);
void full_break(full *w, const char *fmt, ...) WEFT_PRINTF(2, 3);
void full_later(full *w, uint64_t after_ms, const full_event *event);
/* Takes a copy of frame; whoever lives at p's rank gets it within within_ms. */
void full_stray(full *w, const full_process *p, const weft_msg *frame,
                uint32_t within_ms);
void full_engine_crash(full *w); /* with all that lives in its process, and comes back */
void full_engine_freeze(full *w, bool frozen);
uint64_t full_random(full *w, uint64_t below);
static inline full_boot *full_now(full *w)
{
  return &w->boots[w->boot];
}
full_boot *full_boot_of(full *w, uint64_t id); /* NULL = none */

/* ---- full_process.c */
full_process *full_process_at(full *w, uint32_t rank); /* NULL = none lives there */
void full_process_begin(full *w, uint32_t rank, uint64_t incarnation, bool child);
void full_process_end(full *w, full_process *p); /* crash or kill: between steps */
void full_process_freeze(full *w, full_process *p, bool frozen);
void full_processes_reap(full *w); /* those whose actors ended by themselves */
void full_process_free(full_process *p);
void full_kill_later(full *w, const full_process *p); /* after this step */
void full_member_ops(full *w, wefti_member_ops *ops);
void full_cut_link(full *w, uint32_t rank);

/* ---- full_device.c */
extern const weft_actor_class full_gate_class;
weft_err full_device_make(full_process *p);

/* ---- full_kept.c */
void full_keeper_make(full_process *p); /* p->device is there */
void full_keep(full_process *p, const weft_snapshot *s);
void full_offer(full *w, full_process *p);
void full_kept_of(const weft_snapshot *s, full_kept *k);
/* wrong: any set but that one.  NULL = none. */
const full_kept *full_kept_find(const full *w, uint32_t rank, const uint64_t digest[2],
                                bool wrong);
void full_kept_entries(full_process *p, const full_kept *k, wefti_entry **entries,
                       size_t *count);

/* ---- full_lend.c */
void full_lender_make(full_process *p); /* p->device is there */

/* ---- full_link.c */
typedef struct full_link_args {
  full *w;
  uint32_t process;
} full_link_args;
extern const weft_actor_class full_link_class;

/* ---- full_parties.c */
extern const weft_actor_class full_journal_class, full_client_class;
void full_journal_heal(full *w);
/* Puts a call; the client must have none open.  NULL when the run has no room for more.
 */
full_call *full_post(full *w, unsigned client, full_call *call, uint32_t timeout_ms);
void full_gone(full *w, unsigned client); /* its connection closes */
void full_on_event(void *arg, const char *topic, uint64_t sequence, const weft_buf *json);

/* ---- full_check.c */
void full_check_step(void *arg, const weft_msg *delivered);
void full_on_visible(void *arg, const wefti_visible *v);
void full_on_install(void *arg, uint64_t epoch, const weft_snapshot *snapshot);
/* A frame of the engine, or a worker's answer to it, passes the link. */
void full_check_frame(full *w, const full_process *p, const weft_msg *frame);
void full_check_reply(full *w, const full_process *p, const weft_msg *frame,
                      const weft_msg *answer);
/* In place: p's device thread has written to dst. */
void full_check_written(full_process *p, const void *dst);
void full_pin(full *w, uint32_t rank, bool exact, bool keep);
void full_unpin(full *w, unsigned index);
void full_unpin_process(full *w, const full_process *p);

full_epoch *full_epoch_of(full_boot *b, uint64_t sequence); /* NULL = none */
/* A push that was refused is in nothing visible, and one that was taken is in what its
 * session published. */
void full_check_pushes(full *w, const full_epoch *e);

/* ---- full_answer.c */
/* kept: who brings the answer was stopped meanwhile. */
void full_check_answer(full *w, full_call *call, bool kept);
void full_check_status(full *w, const weft_buf *json);

/* ---- full_history.c */
void full_check_history(full *w); /* of this boot's calls, all answered */

#endif /* WEFT_TESTS_SIM_FULL_H */
