/* engine_state.h -- private to the engine_*.c files: the state of engine_core.  Not here:
 * what is done with it (engine.h). */
#ifndef WEFT_ACTORS_ENGINE_STATE_H
#define WEFT_ACTORS_ENGINE_STATE_H

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
  ENGINE_POISON_TEXT = 320,
  ENGINE_URL_MAX = 256,
  ENGINE_HISTORY_KEPT = 4096,   /* commits and aborts in memory */
  ENGINE_HISTORY_LIMIT = 10000, /* that one may ask for */
  ENGINE_HISTORY_DEFAULT = 100,
  ENGINE_ABORT_MS = 2000,         /* until a worker that does not let go is fenced */
  ENGINE_ABORT_FLEET_MS = 6000,   /* … a replica, which waits for workers itself */
  ENGINE_RECORD_MS = 200,         /* until a record that failed is tried again */
  ENGINE_COMMIT_RESERVE_MS = 5000 /* finish time kept for record, publish and fencing */
};

/* ---- a client's call, from its message to its answer */
typedef enum engine_call_kind {
  CALL_INIT,
  CALL_SHUTDOWN, /* of the transfer engine: an init of nobody */
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
  bool draft, restores, strict, clear_cache, commit;
  bool has_version, has_expected, has_digest, bad_digest;
  uint64_t digest_hi, digest_lo; /* that the finished set must have */
  uint32_t action;               /* pause, check */
  char *version;                 /* NUL-terminated, may be "" */
  char *expected;
  char *reason;
  bool asked;        /* all ranks, in a round */
  weft_buf *results; /* of a fleet: how each replica fared, a JSON array; may be NULL */
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
  uint32_t dp_index; /* as its newest adoption says */
  bool placing;      /* beat is an adoption that tells it another dp_index */
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
  bool holding;           /* readers are paused, by the session or because of poison */
  bool wrote;             /* the session has told ranks to move bytes */
  uint64_t poisoned;      /* epoch that wrote and was not committed; 0 = none */
  uint64_t healed;        /* epoch of the weights that are visible */
  uint32_t poisoned_rank; /* that said so first */
  uint64_t drain_timer;
} engine_inplace;

typedef struct engine {
  wefti_engine_args args; /* strings point to copies below */
  char engine_id[128], backend[32];
  char events_url[256], snapshot_url[256], control_url[256];
  uint32_t world; /* ranks; a coordinator's: replicas */
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
  TIMER_SETTLED,
  TIMER_READS,
  TIMER_KEPT
};
#define ENGINE_TAG(what, low) (((uint64_t)(what) << 32) | (uint32_t)(low))

#endif /* WEFT_ACTORS_ENGINE_STATE_H */
