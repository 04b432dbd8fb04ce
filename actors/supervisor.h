/* supervisor.h -- private to actors/.  Keeps one live incarnation per rank: starts child
 * processes, takes in those that join, restarts with back-off, fences, and tells
 * engine_core who is a member.  Processes and links themselves come through the operation
 * table. */
#ifndef WEFT_ACTORS_SUPERVISOR_H
#define WEFT_ACTORS_SUPERVISOR_H

#include "weft/actor.h"
#include "weft/messages.h"

#include <stdbool.h>
#include <stdint.h>

/* All on the supervisor's loop, none blocks.  What happens later comes as PROC_READY and
 * PROC_EXIT messages. */
typedef struct wefti_member_ops {
  /* Starts a child for rank; NULL when all workers join or are threads. */
  weft_err (*spawn)(void *arg, uint32_t rank, uint64_t incarnation, weft_why *why);
  /* SIGKILL; SIGTERM once the whole engine ends.  PROC_EXIT follows. */
  void (*kill)(void *arg, uint32_t rank, uint64_t incarnation);
  /* An actor that stands for the worker at url (a link, child of ctx's actor). */
  weft_err (*connect)(void *arg, weft_ctx *ctx, const char *url, weft_actor_id *out);
  void *arg;
} wefti_member_ops;

typedef struct wefti_supervisor_args {
  weft_actor_id engine;
  uint32_t world_size;
  bool children;           /* true: spawn one per rank; false: wait for joins */
  uint32_t restart_min_ms; /* 0 = 50 */
  uint32_t restart_max_ms; /* 0 = 5,000 */
  uint32_t
      ready_ms; /* 0 = 10,000: a child that has not said PROC_READY by then is killed */
  wefti_member_ops ops;
} wefti_supervisor_args;

extern const weft_actor_class wefti_supervisor_class; /* args: wefti_supervisor_args */

#endif /* WEFT_ACTORS_SUPERVISOR_H */
