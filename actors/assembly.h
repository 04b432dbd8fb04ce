/* assembly.h -- private to actors/.  The parts of an engine in one process and who owns
 * them.  The assembly*.c files are the only ones that see actors, transport/ and http/
 * together; actors know each other by messages alone. */
#ifndef WEFT_ACTORS_ASSEMBLY_H
#define WEFT_ACTORS_ASSEMBLY_H

#include "acceptor.h"
#include "calls.h"
#include "engine_core.h"
#include "exports.h"
#include "supervisor.h"
#include "visible.h"
#include "weft/http.h"
#include "weft/join.h"
#include "weft/journal.h"
#include "weft/link.h"
#include "weft/process.h"
#include "weft/pubsub.h"
#include "weft/weft.h"
#include "worker.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
  WEFTI_URL_MAX = 256,
  WEFTI_CONTROL_CONTEXTS = 64,
  WEFTI_SNAPSHOT_CONTEXTS = 16,
  WEFTI_HTTP_MAX = 16 /* addresses */
};

/* ---- event streams (SSE): what came after a number, then what comes */
typedef struct wefti_streams wefti_streams;
/* Before the loops run.  server must outlive it. */
weft_err wefti_streams_create(weft_runtime *rt, weft_http *server,
                              weft_actor_id publisher, wefti_streams **out) WEFT_MUST_USE;
/* Loop 0, these five.  expect: a request for a stream has come; open: the acceptor takes
 * it; gone: the connection has ended. */
weft_err wefti_streams_expect(wefti_streams *streams, weft_http_id id, uint64_t peer)
    WEFT_MUST_USE;
void wefti_streams_gone(wefti_streams *streams, uint64_t peer);
weft_err wefti_streams_open(wefti_streams *streams, weft_http_id id, uint64_t after)
    WEFT_MUST_USE;
void wefti_streams_event(wefti_streams *streams, const char *topic, uint64_t sequence,
                         const weft_buf *json);
void wefti_streams_end(wefti_streams *streams); /* every stream ends in an orderly way */
void wefti_streams_destroy(wefti_streams *streams);

/* ---- the HTTP front: server, acceptor and the streams of events */
typedef struct wefti_front wefti_front;
typedef struct wefti_front_opts {
  weft_actor_id engine;    /* engine_core or a relay to one */
  weft_actor_id publisher; /* answers RESYNC; 0: event streams are refused */
  const char *const *http; /* [http_count] */
  size_t http_count;
  const char *token;
  bool insecure, dev, allow_weight_reset;
  size_t body_max;
  uint32_t tp, pp, dp_size, dp_index;
} wefti_front_opts;
/* Before the loops run; everything is on loop 0. */
weft_err wefti_front_create(weft_runtime *rt, const wefti_front_opts *opts,
                            wefti_front **out, weft_why *why) WEFT_MUST_USE;
const char *const *wefti_front_addresses(const wefti_front *front, size_t *count);
/* Loop 0: an event for all open streams. */
void wefti_front_event(wefti_front *front, const char *topic, uint64_t sequence,
                       const weft_buf *json);
void wefti_front_drain(wefti_front *front);         /* loop 0 */
size_t wefti_front_connections(wefti_front *front); /* loop 0 */
void wefti_front_destroy(wefti_front *front);       /* after the loops ended */

/* ---- the fleet that an engine coordinates or is a member of (assembly_fleet.c) */
typedef struct wefti_fleet wefti_fleet; /* NULL: in none; of every call but create */
weft_err wefti_fleet_check(const weft_engine_opts *o, weft_why *why) WEFT_MUST_USE;
weft_err wefti_fleet_create(weft_engine *e, const weft_engine_opts *o, weft_why *why)
    WEFT_MUST_USE;
/* Where engines join a coordinator: written when some are not on this machine. */
weft_err wefti_fleet_join_url(const weft_engine_opts *o, char url[WEFTI_URL_MAX],
                              weft_why *why) WEFT_MUST_USE;
void wefti_fleet_core(wefti_fleet *fleet, wefti_engine_args *core); /* what it adds */
/* Last, and before the loops run: invites, or opens the door. */
weft_err wefti_fleet_begin(wefti_fleet *fleet, const weft_engine_opts *o, weft_why *why)
    WEFT_MUST_USE;
/* Loop 0: replica rank has joined, or is gone. */
void wefti_fleet_note(wefti_fleet *fleet, uint32_t rank, bool in);
/* Any thread: false when this is a member without a grant. */
bool wefti_fleet_may_serve(wefti_fleet *fleet, weft_why *why);
/* Likewise while what is visible here may be older than what its coordinator shows. */
bool wefti_fleet_may_tell(wefti_fleet *fleet, weft_why *why);
void wefti_fleet_leave(wefti_fleet *fleet); /* first of the end: nobody joins any more */
void wefti_fleet_destroy(wefti_fleet *fleet); /* after the loops ended */

/* ---- workers: children, joined ones and threads */
typedef struct wefti_members wefti_members;
typedef struct wefti_members_opts {
  weft_workers workers;
  uint32_t world_size, tp, pp;
  const char *program, *backend, *run_dir, *weights_root, *tcp_allow;
  unsigned copy_threads;
  weft_log_level log_level;
  const char *join_url, *join_token; /* JOIN */
  /* Of children and threads. */
  const char *cudart, *nccl, *tp_plan;
  bool allow_ipc_pickle;
  const char *manifest, *draft_manifest;
  bool draft, inplace;
  wefti_fleet *fleet; /* NULL: in none */
  bool replicas;      /* who joins are engines */
} wefti_members_opts;
weft_err wefti_members_create(weft_runtime *rt, const wefti_members_opts *opts,
                              wefti_members **out, weft_why *why) WEFT_MUST_USE;
wefti_member_ops wefti_members_ops(wefti_members *members);
/* Opens the door once there is a supervisor: joins, or the actors of worker threads.
 * join_url: [WEFTI_URL_MAX], as bound. */
weft_err wefti_members_begin(wefti_members *members, weft_actor_id supervisor,
                             char *join_url, weft_why *why) WEFT_MUST_USE;
void wefti_members_started(wefti_members *members); /* the loops run */
/* Loop 0: from now on no child is started and to kill one is to ask it to end. */
void wefti_members_end(wefti_members *members);
uint32_t wefti_members_alive(wefti_members *members); /* loop 0: children still there */
void wefti_members_kill(wefti_members *members);      /* loop 0: SIGKILL to them */
/* Loop 0, before readers are sent to weights_sequence and after: each worker's can be
 * pinned then; the one before can be pinned until then, although workers publish one by
 * one. */
void wefti_members_visible(wefti_members *members, const wefti_visible *visible);
void wefti_members_settle(wefti_members *members, uint64_t weights_sequence);
/* Staging in place, while a session is open.  Pins are refused; readers: those of this
 * process that still hold weights of a child. */
void wefti_members_hold(wefti_members *members, bool held);
uint32_t wefti_members_readers(wefti_members *members, char *text, size_t cap);
void wefti_members_destroy(wefti_members *members);
/* Any thread. */
weft_err wefti_members_pin(wefti_members *members, uint32_t rank,
                           uint64_t weights_sequence, weft_pinned *out, weft_why *why)
    WEFT_MUST_USE;
void wefti_members_unpin(weft_pinned *pinned);

/* ---- the snapshot socket and the question whether all workers are there */
typedef struct wefti_hub_args {
  weft_actor_id engine, publisher;
  weft_jsonrep **snapshot; /* where the socket will be */
  void (*on_ready)(void *arg, const weft_client_done *status);
  void *on_ready_arg;
} wefti_hub_args;
/* RESYNC with the socket's request number as corr goes to the publisher and back. */
extern const weft_actor_class wefti_hub_class;

typedef struct wefti_kept_manifest {
  char *named, *copy; /* as the options name it, and what workers read; NULL = none */
  size_t count;
} wefti_kept_manifest;

struct weft_engine {
  weft_runtime *rt;
  bool remote, started;
  weft_commit_fn *on_commit;
  weft_ready_fn *on_ready;
  void *arg;
  weft_log_fn *log;
  void *log_arg;
  weft_log_level log_level;
  uint64_t boot_id;
  uint32_t world_size;
  weft_actor_id publisher, journal, core, supervisor, hub;
  weft_pub *pub;
  weft_jsonrep *snapshot;
  weft_rundir *rundir;
  weft_journal *state; /* NULL: no state directory */
  unsigned journal_loop;
  _Atomic uint64_t recording; /* see journal.h */
  wefti_front *front;
  wefti_members *members;
  wefti_fleet *fleet; /* NULL: in none */
  uint32_t replicas;  /* of which it is the coordinator; 0 = none */
  wefti_calls *calls;
  weft_alarm *ending;
  uint64_t ending_since_ms;
  bool told_children;
  wefti_kept_manifest manifest, draft_manifest;
  wefti_visible_ring visible;
  char boot_text[32], engine_id[128];
  char events_url[WEFTI_URL_MAX], snapshot_url[WEFTI_URL_MAX];
  char control_url[WEFTI_URL_MAX], join_url[WEFTI_URL_MAX];
  char member_url[WEFTI_URL_MAX]; /* the door of a member */
  struct wefti_watch *watch;      /* remote: follows the events */
};

/* assembly_opts.c: the first mistake. */
weft_err wefti_opts_check(const weft_engine_opts *o, weft_why *why) WEFT_MUST_USE;

/* assembly_manifest.c: reads the manifests that opts name and keeps copies in the run
 * directory: a worker that starts later must not find another file there, or none.  drop
 * removes them. */
weft_err wefti_manifest_keep(weft_engine *e, const weft_engine_opts *o, weft_why *why)
    WEFT_MUST_USE;
void wefti_manifest_drop(weft_engine *e);

/* assembly_state.c: the journal in a state directory, and what it knows of earlier lives.
 * Opens it (engine_id becomes the one kept there). */
weft_err wefti_state_open(weft_engine *e, const weft_engine_opts *o, weft_why *why)
    WEFT_MUST_USE;
/* The journal's actor: on the last loop, its own, when there is a state directory. */
weft_err wefti_state_spawn(weft_engine *e, unsigned loops) WEFT_MUST_USE;
/* Once the engine is there: loads the last commit's files again. */
weft_err wefti_state_restore(weft_engine *e, bool draft) WEFT_MUST_USE;

/* assembly_watch.c: a thread that follows the events of an engine elsewhere and posts
 * EVENT and EVENT_STATUS to an actor; what was missed for good comes as a status and an
 * event "weights.resync".  While the loops run. */
typedef struct wefti_watch wefti_watch;
weft_err wefti_watch_start(weft_runtime *rt, wefti_calls *calls, weft_actor_id to,
                           wefti_watch **out) WEFT_MUST_USE;
void wefti_watch_stop(wefti_watch *watch); /* before or after the loops' end */

/* Calls fn with what a commit's JSON says; false if it is none.  missed: as of
 * weft_commit. */
bool wefti_commit_tell(const weft_buf *json, bool missed, weft_commit_fn *fn, void *arg);

/* ---- small helpers */
/* assembly.c */
weft_err wefti_runtime_make(unsigned loops, weft_log_fn *log, void *log_arg,
                            weft_log_level level, weft_runtime **out) WEFT_MUST_USE;
/* assembly_api.c: weft_link_spawn for a relay. */
weft_err wefti_link_make(void *arg, weft_ctx *ctx, const char *url, weft_actor_id *out);
/* assembly_threads.c: of the thread of a loop that runs already. */
void wefti_lower_priority(weft_runtime *rt, unsigned loop);

/* assembly_util.c */
/* A weft_lifeline_fn that expects nothing. */
void wefti_ignore_fds(void *arg, const void *data, size_t len, int *fds, size_t nfds);
/* Threads that copy in each worker: as asked, else this process's cores shared out. */
unsigned wefti_copy_threads(unsigned asked, uint32_t workers);
/* Posts a copy of tmpl to an actor from any thread. */
weft_err wefti_post(weft_runtime *rt, weft_actor_id to, const weft_msg *tmpl);
weft_err wefti_post_stop(weft_runtime *rt, weft_actor_id who);
weft_err wefti_random(void *out, size_t len) WEFT_MUST_USE;
/* out = run_dir/name as an ipc url.  LIMIT when a socket address cannot hold it. */
weft_err wefti_ipc_url(const char *run_dir, const char *name, char out[WEFTI_URL_MAX],
                       weft_why *why) WEFT_MUST_USE;
/* A url to listen on for whoever can be reached at the tcp url: own address towards it.
 */
weft_err wefti_local_towards(const char *tcp_url, char out[WEFTI_URL_MAX], weft_why *why)
    WEFT_MUST_USE;
/* Blocks all signals in the calling thread. */
void wefti_mask_all(sigset_t *before);
/* Blocks SIGTERM and SIGINT in the calling thread and those it makes. */
void wefti_block_ends(void);
/* fn on loop 0 at SIGTERM and SIGINT. */
weft_err wefti_end_on_signals(weft_runtime *rt, weft_call_fn *fn, void *arg,
                              weft_signal *signals[2], weft_why *why) WEFT_MUST_USE;
/* Is every end of this url on this machine?  ipc, inproc, or tcp to a loopback address.
 */
bool wefti_url_is_local(const char *url);
weft_str wefti_str(const char *text);

#endif /* WEFT_ACTORS_ASSEMBLY_H */
