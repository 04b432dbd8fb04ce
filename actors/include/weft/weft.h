/* weft/weft.h -- the embedder's one include: an engine in this process or a client of one
 * elsewhere, the calls of a weight update, commits as they become visible, and pinned
 * weights.  Not here: a worker or acceptor process (weft/serve.h), the actors themselves
 * (weft/actor.h, weft/messages.h, both included).
 *
 * Callbacks run on a thread of the library, one at a time per engine.  They must not
 * block and not call the synchronous functions (these answer WEFT_E_STATE there); submit,
 * pin and unpin are fine. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include "weft/actor.h"
#include "weft/base.h"
#include "weft/err.h"
#include "weft/messages.h"
#include "weft/runtime.h"
#include "weft/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_engine weft_engine;

/* ---- commits */
typedef struct weft_commit { /* borrowed for the call */
  const char *kind;          /* "weights" or "label" */
  uint64_t sequence, weights_sequence;
  const char *version,
      *previous;      /* strings of the caller of finish; may hold anything but NUL */
  const char *digest; /* "xxh3-128:…" of the set that was written */
  const char *json;   /* the event as published, [json_len] bytes and a NUL */
  size_t json_len;
  bool missed; /* commits before this one were missed for good (remote engine only) */
} weft_commit;
typedef void weft_commit_fn(void *arg, const weft_commit *commit);

/* ---- an engine in this process */
typedef enum weft_workers {
  WEFT_WORKERS_THREADS,   /* two threads of this process per worker; at most 30 workers */
  WEFT_WORKERS_PROCESSES, /* children running opts.worker_program */
  WEFT_WORKERS_JOIN /* started by somebody else; they announce themselves at join_url */
} weft_workers;

/* Where an update's bytes go. */
typedef enum weft_staging {
  WEFT_STAGING_SHADOW, /* beside what is live: readers never wait; room for two */
  /* Over what is live, for weights that do not fit twice: pins are refused (UNAVAIL) from
   * a session's start to its end, and a failure after the first byte leaves the worker
   * poisoned, the engine not ready, until a full update is committed. */
  WEFT_STAGING_INPLACE
} weft_staging;

typedef void weft_ready_fn(void *arg, weft_engine *engine);

/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): ordered by meaning */
typedef struct weft_engine_opts {
  size_t size; /* sizeof(weft_engine_opts) */
  weft_workers workers;
  uint32_t tp, pp; /* workers = tp * pp; 0 counts as 1 */
  uint32_t dp_size,
      dp_index; /* replicas of which this is one; 0 counts as 1 (index as 0) */
  const char *worker_program; /* PROCESSES: called as "<program> worker --rank …" */
  const char *backend;        /* "host", "nccl", "sparse_nccl" or "ipc"; NULL = "host" */
  const char *engine_id;      /* NULL = a random one */
  const char
      *run_dir; /* private folder for sockets; NULL = a new one, removed at the end */
  const char *state_dir; /* private folder of the journal: numbers, history and engine_id
                            outlive the engine; NULL = they do not */
  bool restore; /* with state_dir: load the last commit's files again after a restart */
  const char
      *weights_root; /* files named by update_info must be below; NULL = any file */
  const char
      *tcp_allow; /* comma-separated hosts a tcp source may name; NULL = loopback */
  const char *const
      *http; /* [http_count] HOST:PORT or unix:/path to serve; NULL = no HTTP */
  size_t http_count;
  const char *http_token; /* Bearer token or Basic password; needed beyond loopback … */
  bool insecure;          /* … unless this is set */
  bool dev;               /* the routes that mutate exist */
  size_t http_body_max;   /* bytes, 0 = 32 MiB */
  const char *events_url; /* nng pub; NULL = ipc in the run directory */
  const char
      *control_url;     /* for weft_engine_connect and acceptors; NULL = ipc likewise */
  const char *join_url; /* JOIN: where workers announce themselves; NULL = ipc likewise */
  const char *join_token; /* needed on tcp:// */
  bool strict_coverage;
  bool allow_weight_reset;
  unsigned copy_threads;     /* per worker, 0 = its share of the cores */
  const char *cudart, *nccl; /* GPU backends: see weft/serve.h; each worker takes the GPU
                                of its rank */
  bool allow_ipc_pickle;
  /* NCCL backends: which dimension of which tensors tensor parallel ranks share among
   * themselves, a file as of weft/tp_plan.h; a manifest tells of whole tensors.  With
   * JOIN each worker has to be told as well.  NULL = each rank keeps all. */
  const char *tp_plan;
  /* The tensors that there may be: a safetensors file, or JSON with "names",
   * "dtype_names", "shapes" and, of those that share storage, "tied":[["a","b"],…].  An
   * update with others is refused before bytes move.  Read once, at the start.  NULL =
   * new names are added.  Not with JOIN: those workers take their own. */
  const char *manifest;
  /* There is a speculative draft model, too: a second set of weights that sessions with
   * weft_request.draft write.  Snapshots hold both, the draft model's tensors under names
   * that begin with "draft:".  With JOIN each worker has to be told as well. */
  bool draft;
  const char *draft_manifest; /* of that set, its names without the prefix */
  weft_commit_fn *on_commit;  /* may be NULL */
  weft_ready_fn *on_ready;    /* once, when all workers are members; may be NULL */
  void *arg;                  /* for both */
  weft_log_fn *log;           /* any thread; NULL = silent */
  void *log_arg;
  weft_log_level log_level;
  bool require_pause;      /* a start while not paused is refused, so is a resume in a
                              session */
  uint64_t pause_lease_ms; /* paused for longer: not ready, and says why; 0 = never */
  /* A fleet's coordinator: the doors (member_url) of its engines.  It has no workers of
   * its own and needs state_dir; its tp and pp are those of each engine; what concerns
   * workers is not used.  join_url: where the engines come back to; NULL = chosen to be
   * reached from them. */
  const char *const *replicas; /* [replica_count], at most 256 */
  size_t replica_count;
  const char *replica_token; /* needed on tcp:// */
  /* A member of a fleet: its door, where the coordinator invites it.  It serves, and
   * changes its version, only as its coordinator says; needs state_dir. */
  const char *member_url;
  const char *member_token; /* the coordinator's replica_token; needed on tcp:// */
  weft_staging staging;     /* of JOIN: the workers have to be started with the same */
} weft_engine_opts;

/* Starts actors, sockets and workers, and returns before the workers are up.
 * Errors: INVAL, SYS, EXISTS, DENIED, NOMEM; why (may be NULL) names option and remedy.
 */
WEFT_API weft_err weft_engine_create(const weft_engine_opts *opts, weft_engine **out,
                                     weft_why *why) WEFT_MUST_USE;

typedef struct weft_connect_opts {
  size_t size; /* sizeof(weft_connect_opts) */
  const char
      *control_url; /* "control" of the daemon's ready line or GET /weight_status */
  weft_commit_fn *on_commit; /* may be NULL */
  void *arg;
  weft_log_fn *log;
  void *log_arg;
  weft_log_level log_level;
} weft_connect_opts;
/* A client of an engine elsewhere with the same calls.  Connects and reconnects by
 * itself; calls made while there is no connection fail with UNAVAIL.  Pins are
 * UNSUPPORTED. */
WEFT_API weft_err weft_engine_connect(const weft_connect_opts *opts, weft_engine **out,
                                      weft_why *why) WEFT_MUST_USE;

/* Orderly end within 5 s: calls under way get CLOSED, workers end, sockets and files go.
 * No weights may be pinned, no other call be under way on another thread.  Not from a
 * callback.  NULL is a no-op.  Where the disk of state_dir does not come back from a
 * sync, this is logged, and a thread that may still log stays with its memory until it
 * does. */
WEFT_API void weft_engine_destroy(weft_engine *engine);

/* Blocks until all workers are members.  Errors: TIMEOUT (why says who is missing),
 * STATE. */
WEFT_API weft_err weft_engine_wait_ready(weft_engine *engine, uint64_t timeout_ms,
                                         weft_why *why) WEFT_MUST_USE;

typedef struct weft_engine_info { /* all borrowed until the engine's end; "" = has none */
  const char *boot_id, *engine_id;
  const char *events_url, *snapshot_url, *control_url, *join_url;
  const char *const *http; /* [http_count] as bound */
  size_t http_count;
  uint32_t workers;
  uint32_t replicas;      /* of a fleet's coordinator, which has no workers */
  const char *member_url; /* a member's door */
} weft_engine_info;
/* Of an engine in this process; of a remote one only control_url is set. */
WEFT_API void weft_engine_info_get(const weft_engine *engine, weft_engine_info *out);

/* For actors of the host program: spawn them on loop 0 of this runtime; WEFT_MSG_CLIENT_*
 * messages are asked of the actor and answered with WEFT_MSG_CLIENT_DONE. */
WEFT_API weft_runtime *weft_engine_runtime(weft_engine *engine);
WEFT_API weft_actor_id weft_engine_actor(const weft_engine *engine);

/* ---- calls */
typedef enum weft_op {
  WEFT_OP_INIT, /* json: the init_info object */
  WEFT_OP_START,
  WEFT_OP_UPDATE,      /* json: the update_info object or list */
  WEFT_OP_FINISH,      /* version NULL: the version string stays */
  WEFT_OP_ABORT,       /* version: the reason, may be NULL */
  WEFT_OP_SET_VERSION, /* a label: touches no weights */
  WEFT_OP_GET_VERSION, /* result.version, result.sequence */
  WEFT_OP_STATUS,      /* result.body: JSON as of GET /weight_status */
  WEFT_OP_WEIGHTS,     /* result.body: JSON as of GET /weights */
  WEFT_OP_PAUSE,       /* version: mode "abort", "wait" or "keep"; NULL = "abort" */
  WEFT_OP_RESUME,
  WEFT_OP_READY,    /* UNAVAIL with the reason when the engine is not ready */
  WEFT_OP_VERSIONS, /* result.body: JSON as of GET /weight_versions; see limit */
  WEFT_OP_RESOLVE   /* commit: an operator's word on a member's doubt */
} weft_op;

typedef struct weft_request {
  size_t size; /* sizeof(weft_request) */
  weft_op op;
  const void *json; /* [json_len], copied */
  size_t json_len;
  const char *version;
  const char
      *expected_version; /* FINISH, SET_VERSION: compare and set; NULL = unconditional */
  const char *session;   /* as answered by START; NULL = whichever is open */
  const char *idempotency_key; /* NULL = none */
  /* FINISH: refuse when tensors that are live, or in the manifest, did not come in this
   * session */
  bool strict;
  bool draft;          /* START: of the draft model's set */
  uint32_t timeout_ms; /* the operation's deadline; 0 = the engine's default */
  uint32_t limit;      /* VERSIONS: so many of the newest, at most 10,000; 0 = 100 */
  bool commit;         /* RESOLVE: as if the coordinator had committed it */
} weft_request;

typedef struct weft_result {
  weft_err err;
  weft_outcome outcome; /* of a failed call: whether it may become visible yet */
  uint64_t sequence;    /* visible when answered */
  uint64_t elapsed_ms;
  /* never NULL; "" when there is nothing to say */
  const char *message;                      /* for people */
  const char *operation, *phase, *culprits; /* "rank 1, rank 3" */
  const char *session;                      /* of START */
  const char *version;                      /* visible when answered */
  const char *fenced; /* workers that were fenced on the way to success */
  const char *body;   /* JSON, [body_len] and a NUL */
  size_t body_len;
} weft_result;
typedef void weft_result_fn(void *arg, const weft_result *result); /* borrows result */

/* Any thread.  On WEFT_OK fn is called exactly once, inside the deadline plus 1.5 s; on
 * an error never.  Errors: INVAL, NOMEM, FULL, CLOSED. */
WEFT_API weft_err weft_engine_submit(weft_engine *engine, const weft_request *request,
                                     weft_result_fn *fn, void *arg) WEFT_MUST_USE;
/* The same, waiting.  result (may be NULL) is written in every case but INVAL, NOMEM,
 * STATE, and freed by the caller with weft_result_free.  Returns result->err. */
WEFT_API weft_err weft_engine_call(weft_engine *engine, const weft_request *request,
                                   weft_result **result, weft_why *why) WEFT_MUST_USE;
WEFT_API void weft_result_free(weft_result *result); /* NULL is a no-op */

/* The usual calls, waiting, timeout_ms 0 = the engine's default.  Texts are
 * NUL-terminated. */
WEFT_API weft_err weft_engine_init(weft_engine *engine, const char *init_info_json,
                                   uint32_t timeout_ms, weft_why *why) WEFT_MUST_USE;
WEFT_API weft_err weft_engine_start(weft_engine *engine, uint32_t timeout_ms,
                                    weft_why *why) WEFT_MUST_USE;
WEFT_API weft_err weft_engine_update(weft_engine *engine, const char *update_info_json,
                                     uint32_t timeout_ms, weft_why *why) WEFT_MUST_USE;
WEFT_API weft_err weft_engine_finish(weft_engine *engine, const char *version,
                                     uint32_t timeout_ms, weft_why *why) WEFT_MUST_USE;
WEFT_API weft_err weft_engine_abort(weft_engine *engine, const char *reason,
                                    uint32_t timeout_ms, weft_why *why) WEFT_MUST_USE;
WEFT_API weft_err weft_engine_set_version(weft_engine *engine, const char *version,
                                          uint32_t timeout_ms, weft_why *why)
    WEFT_MUST_USE;
/* version: NUL-terminated into out[cap] (WEFT_VERSION_MAX + 1 always suffice).  Errors:
 * LIMIT (cap). */
WEFT_API weft_err weft_engine_get_version(weft_engine *engine, char *out, size_t cap,
                                          weft_why *why) WEFT_MUST_USE;

/* ---- weights */

typedef struct weft_pinned { /* valid until unpinned */
  uint64_t weights_sequence;
  uint64_t digest_hi, digest_lo;
  size_t tensor_count;
  uint64_t bytes;
  const weft_tensor
      *tensors; /* [tensor_count], in byte order of their names, read-only */
  const weft_snapshot *snapshot; /* the same, for weft_snapshot_find */
  /* the version string that was current for these weights at the time of the pin */
  char version[WEFT_VERSION_MAX + 1];
  void *holder; /* private */
  bool mapped;  /* private */
} weft_pinned;

/* Any thread; with worker threads wait-free.  weights_sequence 0 = what is visible now.
 * The first pin of a worker process's snapshot reads its table of tensors (about 0.1 us
 * for each), later ones do not.
 * Errors: NOT_YET (not committed, or nothing is, or not known yet: a fleet's member has a
 * change and will hear whether it is visible; try again), GONE (no longer held), UNAVAIL
 * (the worker is down or may not serve now), INVAL (rank), UNSUPPORTED (a worker whose
 * memory is not reachable from this process); why may be NULL. */
WEFT_API weft_err weft_pin(weft_engine *engine, uint32_t rank, uint64_t weights_sequence,
                           weft_pinned *out, weft_why *why) WEFT_MUST_USE;
WEFT_API void weft_unpin(weft_pinned *pinned);

WEFT_END_DECLS

#endif /* WEFT_WEFT_H */
