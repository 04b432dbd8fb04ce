/* engine.h -- private to the engine_*.c files: the state of engine_core and the parts it
 * is made of.  Everything here runs on the engine's loop.
 *
 *   engine_core.c     the actor: its messages, its timers
 *   engine_dispatch.c who may do what now
 *   engine_wait.c     calls that wait for their turn
 *   engine_call.c     one client call from arrival to its one answer
 *   engine_idem.c     Idempotency-Key
 *   engine_update.c   the walk: init, start, update, finish; abort
 *   engine_commit.c   … decide → record → publish → visible
 *   engine_round.c    one message to every rank, gathered under a deadline
 *   engine_members.c  who is in, heartbeats, grants, fencing
 *   engine_status.c   the status as JSON
 *   engine_event.c    what the publisher is told
 *   engine_query.c    questions of clients
 *   engine_check.c    … that only workers can answer
 *   engine_rearm.c    timers that found no memory, again
 *   engine_pause.c    the pause flag
 *   engine_metrics.c  counters
 *   engine_upstream.c a member of a fleet: what its coordinator asks
 *   engine_said.c     … its answers, and again to repeats
 *   engine_grant.c    … adoption, grants, being cut off
 *   engine_vote.c     … the vote, and how a doubt ends
 *   engine_fleet.c    a coordinator: its replicas, their doubts
 *   engine_cast.c     … what all replicas are told at once
 *   engine_lend.c     weights of a joined rank that came back, from another rank
 *   engine_inplace.c  staging in place: readers paused, weights poisoned
 *   engine_digest.c   what all ranks have installed, as one digest
 *   engine_sets.c     the main and the draft model's set of weights
 *   engine_history.c  what was committed or aborted, for the journal and for people */
#ifndef WEFT_ACTORS_ENGINE_H
#define WEFT_ACTORS_ENGINE_H

#include "engine_core.h"
#include "engine_fleet.h"
#include "engine_lend.h"
#include "engine_metrics.h"
#include "engine_upstream.h"
#include "session.h"
#include "weft/actor.h"
#include "weft/json.h"
#include "weft/messages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  ENGINE_WAITING_MAX = 64, /* calls that wait for their turn */
  ENGINE_IDEM_KEPT = 256,  /* answers remembered for Idempotency-Key */
  ENGINE_IDEM_WAITERS = 8, /* concurrent repeats of one call */
  ENGINE_TEXT_MAX = 512,
  ENGINE_URL_MAX = 256,
  ENGINE_HISTORY_KEPT = 4096,   /* commits and aborts in memory */
  ENGINE_HISTORY_LIMIT = 10000, /* that one may ask for */
  ENGINE_HISTORY_DEFAULT = 100,
  ENGINE_ABORT_MS = 2000,         /* until a worker that does not let go is fenced */
  ENGINE_ABORT_FLEET_MS = 6000,   /* … a replica, which waits for workers itself */
  ENGINE_HUNG_MS = 10000,         /* without any answer to a heartbeat: fenced */
  ENGINE_COMMIT_RESERVE_MS = 5000 /* finish time kept for record, publish and fencing */
};

/* ---- a client's call, from its message to its answer */
typedef enum engine_call_kind {
  CALL_INIT,
  CALL_START,
  CALL_START_DRAFT,
  CALL_UPDATE,
  CALL_FINISH,
  CALL_LABEL,
  CALL_ABORT,
  CALL_PAUSE,
  CALL_CHECK,
  CALL_CACHE,
  CALL_RESOLVE,
  CALL_QUERY, /* no call of its own: names what is asked in answers */
  CALL_KINDS
} engine_call_kind;

struct engine_idem;
typedef struct engine_call {
  struct engine_call *next; /* in the waiting list */
  engine_call_kind kind;
  weft_return ret;
  engine_ask ask; /* of the coordinator, instead of ret; type 0 = a client's call */
  uint64_t caller;
  uint64_t started_ms, due_ms;
  uint64_t due_timer;
  uint64_t session_epoch;   /* from Weft-Session; 0 = not given */
  struct engine_idem *idem; /* NULL = no key */
  bool caller_gone;
  bool begun;           /* something was done: its answer is remembered under its key */
  bool answered;        /* in COMMITTING: the client has got "unknown" already */
  bool counted, failed; /* for the metrics */
  weft_buf *info;       /* init, update: client's bytes; compare: baseline */
  bool draft, strict, clear_cache, commit;
  bool has_version, has_expected, has_digest, bad_digest;
  uint64_t digest_hi, digest_lo; /* that the finished set must have */
  uint32_t action;               /* pause, check */
  char *version;                 /* NUL-terminated, may be "" */
  char *expected;
  char *reason;
} engine_call;

/* What a call is answered with. */
typedef struct engine_answer {
  weft_err err;
  weft_outcome outcome;
  const char *phase;    /* "" on success */
  const char *culprits; /* "rank 1, rank 3" or "" */
  const char *fenced;   /* "1,3" or "" */
  weft_buf *body;       /* borrowed; may be NULL */
  bool correctable;     /* the session stays open */
  char message[ENGINE_TEXT_MAX];
} engine_answer;

/* A repeat that waits for the answer of the call under way, until its own deadline. */
typedef struct engine_idem_waiter {
  weft_return ret;
  uint64_t caller;
  engine_call_kind kind;
  uint64_t started_ms, due_timer;
} engine_idem_waiter;

typedef struct engine_idem {
  char key[128]; /* "" = free slot */
  uint64_t body_hash;
  uint64_t used; /* order of use; the oldest finished one is replaced */
  bool done;
  unsigned waiter_count;
  engine_idem_waiter waiters[ENGINE_IDEM_WAITERS];
  weft_client_done *answer; /* deep copy, when done */
} engine_idem;

/* ---- members */
typedef enum engine_member_state {
  MEMBER_ABSENT,   /* no incarnation that could serve anybody */
  MEMBER_ADOPTING, /* is told who we are */
  MEMBER_READY,    /* has what is visible */
  MEMBER_BEHIND,   /* serves no pins until a full update brings it back */
  MEMBER_LOST      /* down or being fenced; may still serve readers until fenced_at_ms */
} engine_member_state;

/* Who waits at the door: up while the old incarnation is not fenced, or during a commit.
 */
typedef struct engine_arrival {
  bool waiting;
  uint64_t incarnation;
  weft_actor_id actor;
  uint32_t kind, pid;
  char url[ENGINE_URL_MAX];
} engine_arrival;

typedef struct engine_member {
  engine_member_state state;
  uint32_t rank;
  uint64_t incarnation;
  weft_actor_id actor;
  uint32_t kind; /* weft_member_kind */
  uint32_t pid;
  uint64_t beat;        /* question under way, 0 = none */
  uint64_t beat_timer;  /* until the next; 0 = none */
  uint64_t stamp_ns;    /* worker's clock in its last answer */
  uint64_t stamp_at_ms; /* our clock when that answer came */
  uint64_t stamp_at_ns; /* … and CLOCK_BOOTTIME */
  /* stamp_at_ms of the newest stamp that a grant echoed; 0 = never */
  uint64_t granted_at_ms;
  uint64_t fence_timer;
  uint64_t fenced_at_ms; /* of LOST: when its last grant has run out */
  bool no_grant;         /* being fenced */
  bool fence_owed;       /* the supervisor could not be told to end it yet */
  /* Of the rank, over its incarnations: digest of what it has to hold for what is
   * visible, and for the change whose record was issued. */
  uint64_t digest_hi, digest_lo;
  uint64_t next_digest_hi, next_digest_lo;
  uint64_t next_tensors, next_bytes;
  uint64_t next_sets[2]; /* tensors of the main and the draft set */
  weft_w_state reported; /* last answer; h and device unused */
  char device[512];      /* the last answer's: what a GPU worker runs on, or "" */
  engine_arrival arrival;
  char url[ENGINE_URL_MAX]; /* "" or cut off: not known */
  engine_lent lent;
  char why[256]; /* why it is absent or lost */
} engine_member;

/* One of the two sets of weights in a snapshot. */
typedef enum engine_which { SET_MAIN, SET_DRAFT, SETS } engine_which;
typedef struct engine_set {
  uint64_t tensors, bytes, digest_hi, digest_lo;
} engine_set;

/* ---- rounds */
typedef enum engine_phase {
  PHASE_NONE,
  PHASE_START,
  PHASE_ACCEPT,
  PHASE_GO,
  PHASE_FINISH,
  PHASE_PUBLISH,
  PHASE_ABORT
} engine_phase;

typedef enum engine_reply_state {
  REPLY_NONE, /* not asked */
  REPLY_ASKED,
  REPLY_OK,
  REPLY_REFUSED,
  REPLY_FAILED /* down, late, absent */
} engine_reply_state;

typedef struct engine_reply {
  engine_reply_state state;
  uint64_t corr;
  uint64_t op;
  uint64_t incarnation; /* asked of */
  weft_err err;
  bool correctable;
  uint64_t tensors, bytes, received, received_bytes, missing, digest_hi, digest_lo;
  engine_set set; /* that the session wrote */
  weft_buf *json;
  uint64_t poisoned;   /* of an ABORT's answer, see weft_w_state */
  uint64_t elapsed_us; /* as the worker measured */
  char text[ENGINE_TEXT_MAX / 2];
} engine_reply;

struct engine;
/* All ranks have answered or failed; or the first failure of a round that stops there. */
typedef void engine_round_fn(weft_ctx *ctx, struct engine *e, bool all_ok);

typedef struct engine_round {
  engine_phase phase; /* PHASE_NONE: no round under way */
  engine_round_fn *done;
  uint64_t epoch;
  uint64_t began_ms, due_ms;
  uint32_t open;         /* ranks that have not answered */
  bool to_end;           /* a failure does not end it: wait for all */
  engine_reply *replies; /* [world] */
} engine_round;

/* ---- the session and what runs in it */
typedef struct engine_session {
  wefti_session_state state;
  uint64_t epoch;     /* of the session, or of the init under way */
  bool upstream;      /* the coordinator's: no lease, and a vote instead of a decision */
  engine_which which; /* set that it writes */
  bool alone;         /* … and the other one ends with it: a rank has lost that one */
  bool list_form;     /* ranks were sent different entries: their digests may differ */
  uint64_t opened_ms;
  uint64_t caller; /* who started it */
  uint64_t lease_timer;
  uint64_t updates;                          /* calls that went through */
  uint64_t received_bytes, received_tensors; /* of rank 0 */
  char *sources;                             /* update_infos so far, with commas */
  size_t sources_len;
  bool sources_lost;
} engine_session;

/* What is visible to everybody. */
typedef struct engine_visible {
  char version[ENGINE_VERSION_MAX + 1];
  bool declared; /* somebody has set the version string */
  uint64_t sequence, weights_sequence;
  uint64_t digest_hi, digest_lo; /* of the whole snapshot, both sets */
  uint64_t tensors, bytes;
  engine_set sets[SETS];
  uint64_t at_ms; /* Unix time */
} engine_visible;

/* The change whose record was issued, until it is visible. */
typedef struct engine_change {
  bool pending;   /* between issue and visibility */
  bool recorded;  /* the journal has said that it is durable */
  bool published; /* all ranks have it or are fenced: the coordinator's word is missing */
  bool label;
  engine_call *call; /* of a label; a finish is e->call */
  uint64_t corr;     /* question to the journal */
  uint64_t corr_timer;
  bool stuck; /* the journal has failed and not succeeded since */
  engine_visible next;
  uint64_t elapsed_ms;
  const char *operation;
  engine_which which; /* set that was written */
  bool alone;
  weft_buf *sources; /* of that set, or NULL */
} engine_change;

typedef struct engine_last { /* of the newest finished update, for the status */
  uint64_t received, received_bytes, missing, elapsed_ms;
  weft_buf *missing_names;
} engine_last;

/* Staging in place. */
typedef struct engine_inplace {
  bool holding;      /* readers are paused, by the session or because of poison */
  bool wrote;        /* the session has told ranks to move bytes */
  uint64_t poisoned; /* epoch that wrote and was not committed; 0 = none */
  uint64_t healed;   /* epoch of the weights that are visible */
  uint64_t drain_timer;
  char why[200]; /* when poisoned */
} engine_inplace;

typedef struct engine {
  wefti_engine_args args; /* strings point to copies below */
  char engine_id[128], backend[32];
  char events_url[256], snapshot_url[256], control_url[256];
  uint32_t world; /* ranks */
  uint64_t boot_ms;
  weft_actor_id supervisor; /* learnt from its first message */

  engine_visible visible;
  engine_change change;
  uint64_t issue_timer; /* a finish waits for an earlier life's grants; 0 = none */
  engine_last last;
  struct engine_history *history;
  weft_buf *sources[SETS]; /* of the visible weights, or NULL */
  bool was_reset;          /* since the last change of weights: all bytes are others */
  bool draft_lost;         /* the draft set went with a rank that came back without it */
  engine_session session;
  engine_call *call;       /* the operation under way on the session; NULL = none */
  engine_call *abort_call; /* who asked for the abort under way */
  engine_call *waiting;    /* oldest first */
  uint32_t waiting_count;
  bool start_waits; /* a start waits for a rank's weights to come back */
  engine_round round;
  engine_member *members; /* [world] */
  bool joined_ever;
  engine_upstream up; /* of a member of a fleet */
  engine_fleet fleet; /* of a coordinator */
  engine_loan loan;

  bool paused, told_unpaused;
  uint64_t paused_at_ms;
  char pause_mode[16];
  uint64_t pause_timer; /* --pause-lease; 0 = none */

  engine_metrics metrics;
  engine_inplace inplace;

  uint64_t calls_seen; /* client calls that arrived, whatever came of them */
  uint64_t epoch_last, op_last;
  char last_abort[ENGINE_TEXT_MAX];
  uint64_t last_abort_epoch;
  const char *ended_by; /* operation that the next abort is due to */
  uint32_t restore;     /* weft_restore_state */
  char restore_text[ENGINE_TEXT_MAX];
  engine_idem *idem; /* [ENGINE_IDEM_KEPT] */
  uint64_t idem_clock;

  struct engine_check *checks; /* questions to workers under way */
} engine;

/* Timer tags: what << 32 | the rank, or the low half of the epoch, or 0. */
enum {
  TIMER_CALL_DUE = 1,
  TIMER_LEASE,
  TIMER_BEAT,
  TIMER_FENCE,
  TIMER_ISSUE,
  TIMER_RECORD,
  TIMER_PAUSE,
  TIMER_CUT,
  TIMER_DRAIN,
  TIMER_SETTLED
};
#define ENGINE_TAG(what, low) (((uint64_t)(what) << 32) | (uint32_t)(low))

/* ---- engine_core.c */
void engine_move(weft_ctx *ctx, engine *e, wefti_session_state to);

/* ---- engine_dispatch.c */
void engine_dispatch(weft_ctx *ctx, engine *e, engine_call *call); /* takes call */
/* Answers the call under way, which will come to nothing. */
void engine_fail_running(weft_ctx *ctx, engine *e, const char *why);
void engine_cache_reset(weft_ctx *ctx, engine *e, engine_call *call); /* takes call */

/* ---- engine_wait.c */
void engine_wait_for_turn(weft_ctx *ctx, engine *e, engine_call *call); /* takes call */
/* Something has ended: try who waits. */
void engine_wake_waiting(weft_ctx *ctx, engine *e);
/* After every message: a start that waited for weights may have waited long enough. */
void engine_wait_look(weft_ctx *ctx, engine *e);
void engine_call_due(weft_ctx *ctx, engine *e, uint64_t timer);
void engine_caller_gone(weft_ctx *ctx, engine *e, uint64_t caller);
/* The coordinator's calls that wait will not be. */
void engine_wait_drop_upstream(weft_ctx *ctx, engine *e, const char *why);

/* ---- engine_sets.c */
const char *engine_set_name(engine_which which); /* "main", "draft" */
/* The set is visible, but not with every rank that would have to keep it. */
bool engine_set_is_lost(const engine *e, engine_which which);
/* A rank is about to get its weights again without a push. */
bool engine_sets_come_back(const engine *e);
bool engine_set_is_live(const engine *e, weft_str name); /* is it visible? */
/* After a FINISH that all have answered: is each set the same on every rank?  A rank that
 * has lost its weights cannot know which tensors did not come.  false after the session
 * was dropped. */
bool engine_sets_are_whole(weft_ctx *ctx, engine *e);
void engine_sets_next(const engine *e, engine_visible *next);
/* Takes change's sources: its weights have become visible. */
void engine_sets_visible(weft_ctx *ctx, engine *e, engine_change *change);
void engine_jw_set_digest(weft_json_writer *w, const engine *e, engine_which which);
void engine_jw_draft(weft_json_writer *w, const engine *e); /* of the status */

/* ---- engine_rearm.c; after every message */
void engine_rearm(weft_ctx *ctx, engine *e);

/* ---- engine_call.c */
/* A call made from a client message; NULL after having answered (bad, repeat, no memory).
 */
engine_call *engine_call_open(weft_ctx *ctx, engine *e, const weft_msg *msg);
/* The one answer.  Takes call. */
void engine_answer_call(weft_ctx *ctx, engine *e, engine_call *call,
                        const engine_answer *a);
void engine_answer_ok(weft_ctx *ctx, engine *e, engine_call *call);
void engine_answer_err(weft_ctx *ctx, engine *e, engine_call *call, weft_err err,
                       const char *fmt, ...) WEFT_PRINTF(5, 6);
/* Answers the client now but keeps the call: its work goes on. */
void engine_answer_early(weft_ctx *ctx, engine *e, engine_call *call,
                         const engine_answer *a);
void engine_call_free(weft_ctx *ctx, engine *e, engine_call *call);
const char *engine_call_name(engine_call_kind kind); /* "update_weights", … */
/* The deadline of a call of this kind that names none. */
uint32_t engine_call_patience(const engine *e, engine_call_kind kind);
uint64_t engine_call_left_ms(weft_ctx *ctx, const engine_call *call); /* at least 1 */
/* "rank", or a coordinator's "replica". */
const char *engine_unit(const engine *e);
void engine_reply_to(weft_ctx *ctx, engine *e, weft_return ret, engine_call_kind kind,
                     uint64_t started_ms, const engine_answer *a);

/* ---- engine_idem.c */
weft_err engine_idem_init(weft_ctx *ctx, engine *e) WEFT_MUST_USE;
void engine_idem_fini(weft_ctx *ctx, engine *e);
void engine_idem_clear(engine_idem *slot);
/* true: call may go on (with its slot taken); false: it has been answered and freed, or
 * its answer will come with the one under way. */
bool engine_idem_admit(weft_ctx *ctx, engine *e, engine_call *call, weft_str key,
                       uint64_t hash);
bool engine_idem_due(weft_ctx *ctx, engine *e,
                     uint64_t timer); /* false: not a waiter's */
/* The repeats of caller, whose connection closed, wait no more. */
void engine_idem_gone(weft_ctx *ctx, engine *e, uint64_t caller);
/* false: neither its caller nor a repeat under its key is there to hear its answer. */
bool engine_call_wanted(const engine_call *call);

/* ---- engine_update.c; each takes call */
void engine_init_begin(weft_ctx *ctx, engine *e, engine_call *call);
void engine_start_begin(weft_ctx *ctx, engine *e, engine_call *call);
void engine_start_round(weft_ctx *ctx, engine *e);
void engine_update_begin(weft_ctx *ctx, engine *e, engine_call *call);
void engine_finish_begin(weft_ctx *ctx, engine *e, engine_call *call);
void engine_label_begin(weft_ctx *ctx, engine *e, engine_call *call);
/* Ends session or init.  by: the call that wanted it, answered when done; NULL = nobody.
 * The operation under way, if any, must have been answered before. */
void engine_abort_begin(weft_ctx *ctx, engine *e, engine_call *by, const char *reason);
/* The round of ACCEPT is over and the others have accepted, too. */
void engine_update_go(weft_ctx *ctx, engine *e);

/* ---- engine_commit.c */
uint64_t engine_commit_reserve_ms(const engine_call *call); /* kept of a finish's time */
/* Every rank has it: decide, or vote, as soon as no earlier life's grant runs. */
void engine_installed(weft_ctx *ctx, engine *e);
void engine_issue(weft_ctx *ctx, engine *e);
/* Takes what is installed as the next change under this version.  From FINISHING or
 * PREPARED; nothing aborts any more. */
void engine_commit_begin(weft_ctx *ctx, engine *e, const char *version, bool declared);
/* The change is with all who are to have it. */
void engine_become_visible(weft_ctx *ctx, engine *e, const char *fenced);
/* Adds rank to the list that a change becomes visible with ("1,3"), if there is room. */
void engine_fenced_add(char *list, size_t cap, uint32_t rank);
void engine_record_done(weft_ctx *ctx, engine *e, weft_err err, const char *text);
void engine_record_again(weft_ctx *ctx, engine *e);
/* The deadline of a call whose record was issued: it is answered "unknown", its work goes
 * on. */
void engine_op_due(weft_ctx *ctx, engine *e, engine_call *call);
/* The operation under way failed: answer it, then abort the session. */
void engine_op_failed(weft_ctx *ctx, engine *e, const engine_answer *a);

/* ---- engine_round.c */
void engine_round_begin(weft_ctx *ctx, engine *e, engine_phase phase, uint64_t timeout_ms,
                        engine_round_fn *done);
void engine_round_cancel(weft_ctx *ctx, engine *e);
/* true: msg was an answer of the round. */
bool engine_round_answer(weft_ctx *ctx, engine *e, const weft_msg *msg);
/* rank went down: what it was asked fails; PUBLISH and ABORT go on until it is fenced. */
void engine_round_lost(weft_ctx *ctx, engine *e, uint32_t rank, const char *why);
/* rank's incarnation is certainly gone: PUBLISH and ABORT need not wait for it. */
void engine_round_fenced(weft_ctx *ctx, engine *e, uint32_t rank);
/* Describes what failed: message, culprits, phase. */
void engine_round_blame(weft_ctx *ctx, const engine *e, engine_answer *a, char *culprits,
                        size_t cap);
const char *engine_phase_name(engine_phase phase);

/* ---- engine_members.c */
weft_err engine_members_init(weft_ctx *ctx, engine *e) WEFT_MUST_USE;
void engine_on_member_up(weft_ctx *ctx, engine *e, const weft_member_up *up);
void engine_on_member_down(weft_ctx *ctx, engine *e, const weft_member_down *down);
void engine_beat(weft_ctx *ctx, engine *e, uint32_t rank);
bool engine_beat_answer(weft_ctx *ctx, engine *e, const weft_msg *msg);
void engine_fence(weft_ctx *ctx, engine *e, uint32_t rank, const char *why);
void engine_fence_due(weft_ctx *ctx, engine *e, uint32_t rank, uint64_t timer);
void engine_admit_arrivals(weft_ctx *ctx, engine *e); /* what kept them out has ended */
void engine_member_published(engine *e, uint32_t rank);
/* Starts again what timers found no memory. */
void engine_members_rearm(weft_ctx *ctx, engine *e);
bool engine_member_usable(const engine_member *m); /* can be asked something */
/* Tells m, or anew, who we are.  Returns the question's number. */
uint64_t engine_member_adopt(weft_ctx *ctx, engine *e, const engine_member *m);
/* false and the reason when not all ranks are in and have what is visible. */
bool engine_ready(weft_ctx *ctx, const engine *e, char *reason, size_t cap);

/* ---- engine_pause.c */
void engine_pause_begin(weft_ctx *ctx, engine *e, engine_call *call); /* takes call */
void engine_pause_due(weft_ctx *ctx, engine *e, uint64_t timer);
/* false: call was answered, it needs a pause first. */
bool engine_pause_lets_start(weft_ctx *ctx, engine *e, engine_call *call);
/* As GET /ready says: all ranks are ready, and nobody has forgotten to resume. */
bool engine_serves(weft_ctx *ctx, const engine *e, char *reason, size_t cap);

/* ---- engine_inplace.c; of no effect with shadow staging */
/* The session has begun to start: pauses readers, waits for those of this process, then
 * engine_start_round. */
void engine_inplace_start(weft_ctx *ctx, engine *e);
void engine_inplace_drain_due(weft_ctx *ctx, engine *e, uint64_t timer);
void engine_inplace_rearm(weft_ctx *ctx, engine *e);
void engine_inplace_end(weft_ctx *ctx, engine *e);    /* the session was aborted */
void engine_inplace_healed(weft_ctx *ctx, engine *e); /* it is visible, all is whole */
/* m says that epoch wrote over what it had; 0 = nobody did. */
void engine_inplace_report(weft_ctx *ctx, engine *e, engine_member *m, uint64_t epoch);
/* true, and why: nobody may generate from what the workers hold. */
bool engine_inplace_unfit(const engine *e, char *reason, size_t cap);
uint64_t engine_inplace_resume(const engine *e); /* of a heartbeat */
/* "weights and version are unchanged", or what is true in place. */
const char *engine_unchanged(const engine *e);

/* ---- engine_status.c */
weft_buf *engine_status_json(weft_ctx *ctx, const engine *e); /* NULL = out of memory */
const char *engine_member_state_name(engine_member_state state);
/* The same as others are told it: a rank whose bytes are written over in place holds
 * nothing that it could be ready with. */
const char *engine_member_shown(const engine *e, const engine_member *m);
void engine_session_id(const engine *e, uint64_t epoch, char *out, size_t cap);
/* … of any life, also of a coordinator's. */
void engine_session_of(uint64_t boot, uint64_t epoch, char *out, size_t cap);
uint64_t engine_session_epoch(const engine *e, weft_str id); /* 0 = not one of ours */

void engine_jw_hex64(weft_json_writer *w, const char *key, uint64_t v);
/* null as long as there are no weights (sequence 0). */
void engine_jw_digest(weft_json_writer *w, const char *key, uint64_t sequence,
                      uint64_t hi, uint64_t lo);
void engine_jw_time(weft_json_writer *w, const char *key, uint64_t unix_ms);

/* ---- engine_event.c */
void engine_event_commit(weft_ctx *ctx, engine *e, const engine_visible *previous,
                         bool label, engine_which which);
void engine_event_session(weft_ctx *ctx, engine *e, const char *what, const char *reason);
void engine_event_worker(weft_ctx *ctx, engine *e, const engine_member *m,
                         const char *what);
void engine_event_status(weft_ctx *ctx, engine *e);

/* ---- engine_digest.c; after a round of FINISH */
/* false after the session was dropped: replicas that were sent the same hold other bytes.
 */
bool engine_digests_agree(weft_ctx *ctx, engine *e);
/* false after the session was dropped: the caller knows what it should have become. */
bool engine_digest_is_wanted(weft_ctx *ctx, engine *e);
/* Shards: one number for the set of them, in rank order.  whole: of the whole snapshot,
 * not of the session's set. */
void engine_set_digest(const engine *e, bool whole, uint64_t *hi, uint64_t *lo);

/* ---- engine_history.c */
weft_err engine_history_init(weft_ctx *ctx, engine *e) WEFT_MUST_USE;
void engine_history_fini(weft_ctx *ctx, engine *e);
void engine_history_begun(weft_ctx *ctx, engine *e);
void engine_history_commit(weft_ctx *ctx, engine *e, const engine_change *change);
void engine_history_aborted(weft_ctx *ctx, engine *e, const char *operation,
                            const char *reason);
/* How a vote of an earlier life ended. */
void engine_history_resolved(weft_ctx *ctx, engine *e, const char *reason);
/* The commit of that session, NULL = there was none.  *reaches false: it may be older
 * than what is kept. */
const struct weft_journal_record *engine_history_find(const engine *e, uint64_t boot,
                                                      uint64_t epoch, bool *reaches);
weft_buf *engine_history_json(const engine *e, uint64_t limit);
bool engine_history_limit(weft_str arg, uint64_t *out); /* false: no such number */
/* What the session loads from, call by call. */
void engine_sources_reset(weft_ctx *ctx, engine *e);
void engine_sources_add(weft_ctx *ctx, engine *e, const weft_buf *info);
weft_buf *engine_sources_of_finish(engine *e); /* NULL = cannot be had again */

/* ---- engine_query.c */
void engine_query(weft_ctx *ctx, engine *e, const weft_client_query *q);

/* ---- engine_check.c */
void engine_check_begin(weft_ctx *ctx, engine *e, engine_call *call);
/* The coordinator's question; takes call, which is not a client's. */
void engine_check_upstream(weft_ctx *ctx, engine *e, engine_call *call);
/* The live table of the first rank, for a client's query. */
void engine_check_weights(weft_ctx *ctx, engine *e, weft_return ret);
bool engine_check_answer(weft_ctx *ctx, engine *e, const weft_msg *msg);
void engine_check_fini(weft_ctx *ctx, engine *e);

#endif /* WEFT_ACTORS_ENGINE_H */
