/* weft/messages.h -- enum, structs and catalogue made from messages.def, and the small
 * enums that travel inside.  Not here: how messages are sent (weft/actor.h). */
#ifndef WEFT_MESSAGES_H
#define WEFT_MESSAGES_H

#include "weft/base.h"
#include "weft/msg.h"

#include <stdint.h>

WEFT_BEGIN_DECLS

typedef enum weft_role {
  WEFT_ROLE_CLIENT,
  WEFT_ROLE_ENGINE,
  WEFT_ROLE_WORKER,
  WEFT_ROLE_SUPERVISOR,
  WEFT_ROLE_PUBLISHER,
  WEFT_ROLE_JOURNAL,
  WEFT_ROLE_DEVICE,
  WEFT_ROLE_ACCEPTOR,
  WEFT_ROLE_GLUE,
  WEFT_ROLE_CLERK
} weft_role;

typedef enum weft_msg_type {
  WEFT_MSG_NONE = 0,
#define MSG(lower, upper, fields, from, to, reply) WEFT_MSG_##upper,
#include "weft/messages.def"
#undef MSG
  WEFT_MSG_COUNT
} weft_msg_type;

/* struct weft_client_init { weft_msg h; weft_f_u64 caller; … }; and so on */
#define F(kind, field) weft_f_##kind field;
#define MSG(lower, upper, fields, from, to, reply)                                       \
  typedef struct weft_##lower {                                                          \
    weft_msg h;                                                                          \
    fields                                                                               \
  } weft_##lower;
#include "weft/messages.def"
#undef MSG
#undef F

/* The whole table, for weft_runtime_opts and weft_sim_opts. */
WEFT_API const weft_catalogue *weft_messages(void);

/* ---- values inside messages; they travel: append only */

enum { WEFT_VERSION_MAX = 1024 }; /* bytes of a version string */

/* Of a call that failed. */
typedef enum weft_outcome {
  WEFT_OUTCOME_NONE,          /* it succeeded, or nothing could have changed */
  WEFT_OUTCOME_NOT_COMMITTED, /* version and bytes are as they were */
  WEFT_OUTCOME_UNKNOWN        /* the commit record was issued: visible yet, perhaps */
} weft_outcome;

typedef enum weft_query {
  WEFT_QUERY_INFO,    /* version only: the fast path of GET /weight_info */
  WEFT_QUERY_STATUS,  /* GET /weight_status */
  WEFT_QUERY_WEIGHTS, /* GET /weights: names, dtypes, shapes, digests of the live snapshot
                       */
  WEFT_QUERY_PAUSED,  /* body {"is_paused":bool} */
  WEFT_QUERY_READY,   /* err UNAVAIL and message with the reason when not ready */
  WEFT_QUERY_CHECKSUM, /* of one worker: SHA-256 per tensor */
  WEFT_QUERY_RESET,    /* of one worker: the checker's destructive reset */
  WEFT_QUERY_VERSIONS, /* GET /weight_versions; arg: how many at most, "" = 100 */
  WEFT_QUERY_METRICS,  /* GET /metrics: Prometheus text */
  /* As READY, of the workers alone: a member of a fleet may serve less.  Nor while a
   * session is open.  arg "main" or "draft": EXISTS when that set is live. */
  WEFT_QUERY_RANKS
} weft_query;

typedef enum weft_pause_action { WEFT_PAUSE, WEFT_RESUME } weft_pause_action;
typedef enum weft_check_action {
  WEFT_CHECK_CHECKSUM,
  WEFT_CHECK_RESET,
  WEFT_CHECK_COMPARE
} weft_check_action;
typedef enum weft_transfer_what {
  WEFT_TRANSFER_INIT,
  WEFT_TRANSFER_UPDATE
} weft_transfer_what;

typedef enum weft_worker_phase {
  WEFT_WORKER_IDLE,
  WEFT_WORKER_OPEN,      /* a session is open, nothing runs */
  WEFT_WORKER_ACCEPTING, /* device thread validates and allocates */
  WEFT_WORKER_ACCEPTED,
  WEFT_WORKER_RECEIVING, /* bytes move */
  WEFT_WORKER_FINISHING,
  WEFT_WORKER_INSTALLED, /* finished, waits for publish or abort */
  WEFT_WORKER_ABORTING,
  WEFT_WORKER_POISONED,
  WEFT_WORKER_MAPPING /* maps again what its last life left, or copies it from another
                         rank; asks meanwhile wait */
} weft_worker_phase;

/* "idle", …; "unknown" for what a newer peer may say. */
WEFT_API const char *weft_worker_phase_name(uint32_t phase);

typedef enum weft_member_kind {
  WEFT_MEMBER_CHILD,  /* own child process: fenced by its exit */
  WEFT_MEMBER_JOINED, /* somebody else's process: fenced when its grant has run out */
  WEFT_MEMBER_THREAD  /* worker actor in this process: its grant */
} weft_member_kind;

typedef enum weft_record_kind {
  WEFT_RECORD_BEGUN,
  WEFT_RECORD_ABORTED,
  WEFT_RECORD_COMMIT_WEIGHTS,
  WEFT_RECORD_COMMIT_LABEL,
  WEFT_RECORD_VOTE = 5 /* as on disk, where 4 marks segments */
} weft_record_kind;

typedef enum weft_device_job {
  WEFT_DEVICE_OPEN, /* session epoch begins */
  WEFT_DEVICE_ACCEPT,
  WEFT_DEVICE_GO,
  WEFT_DEVICE_FINISH,  /* digest and install */
  WEFT_DEVICE_ABANDON, /* drop what epoch staged or installed */
  WEFT_DEVICE_WEIGHTS, /* JSON of the live snapshot */
  WEFT_DEVICE_CHECKSUM,
  WEFT_DEVICE_RESET,
  WEFT_DEVICE_REAP,   /* free snapshots that readers have left */
  WEFT_DEVICE_RECALL, /* verify and install what the last life left */
  WEFT_DEVICE_FETCH   /* … what another rank lends */
} weft_device_job;

typedef enum weft_restore_state {
  WEFT_RESTORE_NONE, /* nothing was asked for, or there is nothing to restore */
  WEFT_RESTORE_WAITING,
  WEFT_RESTORE_LOADING,
  WEFT_RESTORE_DONE,
  WEFT_RESTORE_PUSH_NEEDED /* cannot be restored; text says why */
} weft_restore_state;

WEFT_END_DECLS

#endif /* WEFT_MESSAGES_H */
