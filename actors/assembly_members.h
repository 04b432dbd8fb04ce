/* assembly_members.h -- between assembly_members.c, assembly_joins.c, assembly_pins.c and
 * assembly_threads.c: children, joined workers and worker threads of one engine.  Loop 0
 * unless said otherwise.  Not for anybody else. */
#ifndef WEFT_ACTORS_ASSEMBLY_MEMBERS_H
#define WEFT_ACTORS_ASSEMBLY_MEMBERS_H

#include "assembly.h"

#include <stdatomic.h>
#include <unistd.h>

#define WEFTI_ACTOR_URL "actor:" /* of a worker thread: followed by its actor's id */

enum { WEFTI_EXIT_MAX = 256, WEFTI_WORD_MAX = 192 };

typedef struct wefti_child {
  struct wefti_child *next;
  wefti_members *members;
  weft_process *process;
  uint32_t rank;
  uint64_t incarnation;
  bool gone;                  /* has exited; freed by a call of its own */
  bool ready_owed, exit_owed; /* the supervisor had no room to be told */
  char url[WEFTI_URL_MAX];
  char word[WEFTI_WORD_MAX]; /* its last, "" = none */
  char why[WEFTI_EXIT_MAX];  /* of its exit */
} wefti_child;

/* A rank that somebody has joined as. */
typedef struct wefti_joined {
  uint64_t incarnation; /* 0 = free */
  weft_actor_id link;   /* 0 = not connected yet */
  uint64_t since_ms;    /* loop time of the announcement */
  char url[WEFTI_URL_MAX];
} wefti_joined;

typedef struct wefti_thread_worker {
  wefti_device *device;
  weft_store *store; /* the device's: pins are short of time */
  weft_actor_id device_actor, actor;
  const weft_snapshot *kept[2]; /* pinned: what is visible, and the one before */
} wefti_thread_worker;

struct wefti_members {
  weft_runtime *rt;
  weft_workers kind;
  weft_actor_id supervisor;
  uint32_t world_size, tp, pp;
  unsigned copy_threads;
  weft_log_level log_level;
  char *program, *backend, *run_dir, *weights_root, *tcp_allow, *join_url, *join_token;
  char *cudart, *nccl, *tp_plan, *manifest, *draft_manifest;
  bool draft;
  bool allow_ipc_pickle;
  wefti_fleet *fleet; /* NULL: in none */
  bool replicas;      /* who joins are engines */
  bool inplace;
  atomic_bool held; /* pins are refused.  Relaxed: stores and imports have their own */
  bool ending;
  wefti_child *children;
  weft_alarm *owing; /* until what is owed to the supervisor is told; PROCESSES only */
  uint32_t alive;
  wefti_imports *imports; /* children's weights; NULL unless kind is PROCESSES */
  weft_join_server *door;
  weft_join_hello terms; /* when kind is JOIN: what has to agree with it; of no rank */
  wefti_joined *joined;  /* [world_size] when kind is JOIN */
  weft_actor_id watcher; /* hears of the ends of joined workers' links */
  wefti_thread_worker *threads; /* [world_size] when kind is THREADS */
};

/* assembly_joins.c */
weft_err wefti_joins_begin(wefti_members *m, char *join_url, weft_why *why) WEFT_MUST_USE;
void wefti_joins_connected(wefti_members *m, const char *url, weft_actor_id link);
void wefti_joins_destroy(wefti_members *m);

/* assembly_pins.c: the pins of ours, before the stores go */
void wefti_members_let_go(wefti_members *m);

/* assembly_threads.c: worker r has loops 1 + 2r (worker) and 2 + 2r (device) */
weft_err wefti_threads_create(wefti_members *m, weft_why *why) WEFT_MUST_USE;
weft_err wefti_threads_begin(wefti_members *m, weft_why *why) WEFT_MUST_USE;
void wefti_threads_destroy(wefti_members *m);

#endif /* WEFT_ACTORS_ASSEMBLY_MEMBERS_H */
