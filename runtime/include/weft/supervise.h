/* weft/supervise.h -- an actor that keeps its children running: restarts with back-off,
 * gives up when that does not help, says who they are now.  For a host's own actors
 * beside ours, which need none: they end with their process.  Not here: what a child
 * does, and processes (transport/ starts those, the supervisor of actors/ keeps them). */
#ifndef WEFT_SUPERVISE_H
#define WEFT_SUPERVISE_H

#include "weft/actor.h"
#include "weft/base.h"
#include "weft/msg.h"

#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef enum weft_restart {
  WEFT_RESTART_ALWAYS,     /* whatever it ended with */
  WEFT_RESTART_ON_FAILURE, /* unless it ended with WEFT_OK */
  WEFT_RESTART_NEVER
} weft_restart;

typedef struct weft_child_spec {
  const weft_actor_class *cls;
  const void *args;     /* borrows until the supervisor ends; may be NULL */
  weft_spawn_opts opts; /* likewise */
  weft_restart restart;
} weft_child_spec;

/* args of weft_supervisor.  Children start in order inside its init; an init that fails
 * there counts as a failure of that child and is tried again. */
typedef struct weft_supervise_args {
  size_t size;                     /* sizeof(weft_supervise_args) */
  const weft_child_spec *children; /* [count], copied */
  uint32_t count;                  /* 1..1024 */
  uint32_t max_restarts;           /* per child and window, 0 = no limit */
  uint64_t window_ms;              /* 0 = 60,000 */
  uint64_t backoff_min_ms; /* wait before the first restart, doubled each time; 0 = 100 */
  uint64_t backoff_max_ms; /* 0 = 10,000 */
  uint64_t healthy_ms;     /* alive so long: back-off starts anew; 0 = backoff_max_ms */
  weft_actor_id listener;  /* is sent WEFT_MSG_CHILD_IS at each change; 0 = nobody */
} weft_supervise_args;

/* Over the limit it stops with WEFT_E_FAILED, so its parent gets DOWN.  It also stops,
 * with WEFT_OK, when no child is left to restart.  On WEFT_MSG_STOP it stops the children
 * in reverse order, each after the end of the one before, then itself. */
WEFT_API extern const weft_actor_class weft_supervisor;

enum {
  WEFT_MSG_CHILD_WHERE = 0xf010, /* weft_child_where: question to a supervisor */
  WEFT_MSG_CHILD_IS = 0xf011 /* weft_child_is: its answer, and the note to the listener */
};

typedef struct weft_child_where {
  weft_msg h;
  uint32_t index; /* in children */
} weft_child_where;

typedef struct weft_child_is {
  weft_msg h;
  weft_actor_id id; /* 0 = not running now, or no such child */
  uint32_t index;
  uint32_t restarts; /* so far */
  uint32_t reason;   /* weft_err of the last end; only when id is 0 */
  uint32_t gone;     /* 1 = will not be restarted */
} weft_child_is;

WEFT_END_DECLS

#endif /* WEFT_SUPERVISE_H */
