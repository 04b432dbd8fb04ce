/* engine_upstream.h -- private to the engine_*.c files: the side of a member of a fleet
 * that its coordinator sees: it answers a worker's questions for all of its ranks.  Not
 * here: how its own ranks get there (engine.h). */
#ifndef WEFT_ACTORS_ENGINE_UPSTREAM_H
#define WEFT_ACTORS_ENGINE_UPSTREAM_H

#include "engine_core.h"
#include "leader.h"
#include "weft/err.h"
#include "weft/json.h"
#include "weft/messages.h"

enum {
  ENGINE_FLEET_MAX = 128 /* bytes of a fleet's name */
};

/* A frame of the coordinator, as far as its answer needs it. */
typedef struct engine_ask {
  uint16_t type; /* 0 = none */
  uint64_t boot, incarnation, epoch, op;
  weft_return back;
} engine_ask;

/* What was said about the last frame of a session: said again to the same op. */
typedef struct engine_said {
  uint16_t type; /* 0 = nothing yet */
  uint64_t epoch, op;
  weft_err err;
  bool correctable;
  char text[WEFT_WHY_MAX];
  uint64_t tensors, bytes, elapsed_us;
  uint64_t digest_hi, digest_lo, received, received_bytes, missing;
  weft_buf *missing_names;
} engine_said;

typedef enum engine_vote_state {
  VOTE_NONE,
  VOTE_ASKED, /* its record is not known to be durable */
  VOTE_GIVEN, /* it is, and its end not known: the doubt */
  VOTE_LOST   /* the same of an earlier life of ours: what was installed is gone */
} engine_vote_state;

/* Ready to commit; how it ends is for the coordinator to say. */
typedef struct engine_vote {
  engine_vote_state state;
  uint64_t corr; /* question to the journal, 0 = none */
  uint64_t asked_ms;
  char fleet[ENGINE_FLEET_MAX + 1];
  uint64_t boot, epoch;
  uint64_t digest_hi, digest_lo;
  char version[ENGINE_VERSION_MAX + 1]; /* that the set would get */
  bool declared;
} engine_vote;

/* The journal did not take a vote, or not in time: until it takes the end of that
 * session, an update would move its bytes only to fail at its vote. */
typedef struct engine_unwritten {
  bool is;
  weft_msg *record; /* of that end; asked for until it is durable */
  uint64_t corr, timer;
  char why[200];
} engine_unwritten;

/* A client's question about what is visible. */
typedef struct engine_read {
  weft_return ret;
  uint32_t what;  /* weft_query */
  uint64_t limit; /* of versions; 0 = not a number that is taken */
  uint64_t at_ns; /* CLOCK_BOOTTIME when it began to wait */
} engine_read;

/* Those that wait until a change that all own ranks have is visible. */
typedef struct engine_reads {
  engine_read *list; /* oldest first; NULL until the first */
  unsigned count;
  uint64_t timer; /* they wait no longer; 0 = none */
} engine_reads;

typedef struct engine_upstream {
  char fleet[ENGINE_FLEET_MAX + 1];
  uint32_t rank, size;
  wefti_leader coordinator;
  uint64_t adopted_op, session_op; /* newest of this life */
  uint64_t until_ns; /* end of the grant on CLOCK_BOOTTIME; 0 = none so far */
  uint64_t cut_timer;
  bool placed;                    /* dp rank and size are rank and size */
  bool cut;                       /* was told that the grant has run out */
  bool held;                      /* between the answer to ACCEPT and GO */
  bool aborted_last;              /* how the last vote ended, … */
  uint64_t last_boot, last_epoch; /* … and whose it was */

  uint64_t epoch;   /* of the coordinator's session or init that is open; 0 = none */
  uint64_t ended;   /* highest of this life that has ended */
  uint64_t gave_up; /* that which was aborted here last; why is the engine's last_abort */
  engine_ask asked; /* frame of that session that has no answer yet */
  engine_ask abort; /* who waits for its end */
  engine_said said;
  engine_vote vote;
  engine_unwritten unwritten;

  /* In the coordinator's numbers: of what the ranks hold; of the change that is on its
   * way; what it said is visible. */
  uint64_t sequence, next_sequence, seen;
  uint64_t
      before; /* of what is visible here while next_sequence waits to be; 0 = behind */
  /* What it has, by its adoption or its last PUBLISH. */
  uint64_t want_sequence, want_hi, want_lo;

  engine_reads reads;
} engine_upstream;

struct engine;
struct engine_call;
struct engine_answer;
struct engine_member;

/* ---- engine_upstream.c */
void engine_upstream_frame(weft_ctx *ctx, struct engine *e, const weft_msg *msg);
void engine_upstream_dispatch(weft_ctx *ctx, struct engine *e,
                              struct engine_call *call); /* takes call */
/* Every rank has accepted: the coordinator hears of it and says when to go. */
void engine_upstream_accepted(weft_ctx *ctx, struct engine *e);
/* A session of the coordinator that has no vote ends, whatever runs in it. */
void engine_upstream_drop(weft_ctx *ctx, struct engine *e, const char *why);
/* Abort is over. */
void engine_upstream_aborted(weft_ctx *ctx, struct engine *e);
/* All own ranks have the change: to be seen when the coordinator says so. */
void engine_upstream_published(weft_ctx *ctx, struct engine *e);
void engine_upstream_show(weft_ctx *ctx, struct engine *e);
void engine_upstream_fini(struct engine *e);

/* ---- engine_said.c */
/* The answer to call goes to the coordinator. */
void engine_upstream_answer(weft_ctx *ctx, struct engine *e, struct engine_call *call,
                            const struct engine_answer *a);
void engine_upstream_refuse(weft_ctx *ctx, const engine_ask *ask, weft_err err,
                            const char *fmt, ...) WEFT_PRINTF(4, 5);
void engine_upstream_ok(weft_ctx *ctx, const engine_ask *ask);
/* A repeat of *asked came: it is answered there instead. */
void engine_upstream_again(weft_ctx *ctx, engine_ask *asked, const engine_ask *ask);
/* To the frame of a session that waits; nothing when none does. */
void engine_said_session(weft_ctx *ctx, struct engine *e, const struct engine_answer *a);
void engine_say(weft_ctx *ctx, const engine_said *said, const engine_ask *ask);
void engine_said_clear(engine_said *said);

/* ---- engine_grant.c */
void engine_upstream_adopt(weft_ctx *ctx, struct engine *e, const weft_w_adopt *m);
void engine_upstream_beat(weft_ctx *ctx, struct engine *e, const weft_w_beat *m);
void engine_upstream_cut_due(weft_ctx *ctx, struct engine *e, uint64_t timer);
void engine_upstream_rearm(weft_ctx *ctx, struct engine *e);
void engine_upstream_tell(struct engine *e); /* args.on_upstream */
/* All own ranks have a change that is not visible here, and may be elsewhere. */
bool engine_upstream_unshown(const struct engine *e);
/* Whether what the ranks hold may be shown; the reason when not.  true without a fleet.
 */
bool engine_upstream_serves(weft_ctx *ctx, const struct engine *e, char *reason,
                            size_t cap);
/* Milliseconds for which a heartbeat may let m serve: never past the own grant. */
uint32_t engine_upstream_grant_ms(weft_ctx *ctx, const struct engine *e,
                                  const struct engine_member *m);
/* What the ranks hold may be, or have become, what the coordinator has. */
void engine_upstream_judge(weft_ctx *ctx, struct engine *e);
/* true after the refusal of a client's call that only the coordinator may make. */
bool engine_upstream_forbids(weft_ctx *ctx, struct engine *e, struct engine_call *call);
/* A set made here has to be the coordinator's.  false after the session was dropped. */
bool engine_upstream_wants(weft_ctx *ctx, struct engine *e);
void engine_upstream_status(weft_ctx *ctx, weft_json_writer *w, const struct engine *e);

/* ---- engine_hold.c */
/* true: read waits, or was refused. */
bool engine_hold_read(weft_ctx *ctx, struct engine *e, const engine_read *read);
/* At a moment after at_ns the coordinator had not shown it: who asked before that may be
 * told what is visible here, for it was not older than anything. */
void engine_hold_not_shown(weft_ctx *ctx, struct engine *e, uint64_t at_ns);
/* Answers those that need not wait any more. */
void engine_hold_look(weft_ctx *ctx, struct engine *e);
void engine_hold_due(weft_ctx *ctx, struct engine *e, uint64_t timer);
void engine_hold_fini(weft_ctx *ctx, struct engine *e);

/* ---- engine_vote.c */
bool engine_vote_in_doubt(const engine_vote *v);
/* About what is installed here, in doubt or on the way there. */
bool engine_vote_is_ours(const engine_vote *v);
void engine_vote_init(struct engine *e, const struct weft_journal_record *r);
void engine_vote_begin(weft_ctx *ctx, struct engine *e);
bool engine_vote_answer(weft_ctx *ctx, struct engine *e, const weft_msg *msg);
/* Its end is known: nothing is in doubt any more. */
void engine_vote_over(weft_ctx *ctx, struct engine *e, bool committed);
/* As the coordinator, or an operator in its place, says. */
void engine_vote_commit(weft_ctx *ctx, struct engine *e, uint64_t sequence,
                        weft_str version, bool declared);
void engine_vote_resolve(weft_ctx *ctx, struct engine *e, const engine_ask *ask,
                         const weft_w_resolve *m);
/* The deadline has come while the vote is being written, if it is. */
void engine_vote_late(weft_ctx *ctx, struct engine *e);
/* record is about the end of a session.  true: it will be written; false: nobody waits
 * for it. */
bool engine_vote_keeps(weft_ctx *ctx, struct engine *e,
                       const weft_journal_append *record);
/* true after the refusal of a start whose vote could not be written. */
bool engine_vote_forbids(weft_ctx *ctx, struct engine *e, struct engine_call *call);
void engine_vote_due(weft_ctx *ctx, struct engine *e, uint64_t timer);
void engine_vote_rearm(weft_ctx *ctx, struct engine *e);
void engine_vote_fini(struct engine *e);
void engine_resolve_begin(weft_ctx *ctx, struct engine *e,
                          struct engine_call *call); /* takes call */

#endif /* WEFT_ACTORS_ENGINE_UPSTREAM_H */
