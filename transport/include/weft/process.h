/* weft/process.h -- child processes with a lifeline: posix_spawn, pidfd, a socket pair
 * over which small messages and descriptors travel and whose end means the other side is
 * gone. Not here: which children exist and when they are restarted (actors/supervisor.c).
 */
#ifndef WEFT_PROCESS_H
#define WEFT_PROCESS_H

#include "weft/base.h"
#include "weft/err.h"
#include "weft/loop.h"

#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

enum { WEFT_LIFELINE_MAX = 4096, WEFT_LIFELINE_FDS_MAX = 250 };

/* data[len] borrowed; fds[nfds] are the callee's to close (close-on-exec is set). */
typedef void weft_lifeline_fn(void *arg, const void *data, size_t len, int *fds,
                              size_t nfds);

typedef struct weft_process weft_process;
typedef void weft_process_exit_fn(void *arg, int wait_status); /* as of waitid/waitpid */
typedef struct weft_process_opts {
  size_t size;       /* sizeof(weft_process_opts) */
  const char *path;  /* program */
  char *const *argv; /* the child finds the lifeline's number in the environment:
                        WEFT_LIFELINE_FD */
  char *const *env;  /* NULL = this process's */
  weft_lifeline_fn *on_message;
  weft_process_exit_fn *on_exit; /* once; the process is reaped by then */
  void *arg;
} weft_process_opts;
/* Owner thread of loop.  stdin is /dev/null, stdout goes to this process's stderr,
 * signals are at their defaults and unblocked, no other descriptor is inherited. */
WEFT_API weft_err weft_process_spawn(weft_loop *loop, const weft_process_opts *opts,
                                     weft_process **out, weft_why *why) WEFT_MUST_USE;
WEFT_API int weft_process_pid(const weft_process *process);
WEFT_API void weft_process_signal(weft_process *process,
                                  int signo); /* through the pidfd */
/* One message of at most WEFT_LIFELINE_MAX bytes; never blocks.  Errors: FULL, CLOSED. */
WEFT_API weft_err weft_process_send(weft_process *process, const void *data, size_t len,
                                    const int *fds, size_t nfds) WEFT_MUST_USE;
/* Hands on_message what has arrived by now, without waiting.  Not from inside a callback
 * of this process. */
WEFT_API void weft_process_drain(weft_process *process);
/* SIGKILLs a living child and reaps it (bounded wait: it has been killed).  NULL is a
 * no-op. */
WEFT_API void weft_process_destroy(weft_process *process);

/* ---- the child's side */
typedef struct weft_lifeline weft_lifeline;
/* fd < 0: taken from WEFT_LIFELINE_FD.  on_closed: the parent is gone; the child should
 * end. */
WEFT_API weft_err weft_lifeline_open(weft_loop *loop, int fd,
                                     weft_lifeline_fn *on_message,
                                     weft_call_fn *on_closed, void *arg,
                                     weft_lifeline **out) WEFT_MUST_USE;
WEFT_API weft_err weft_lifeline_send(weft_lifeline *line, const void *data, size_t len,
                                     const int *fds, size_t nfds) WEFT_MUST_USE;
/* As weft_process_drain. */
WEFT_API void weft_lifeline_drain(weft_lifeline *line);
/* Of a child that ends before it opens its lifeline: says to its parent, if there is one,
 * WEFT_LAST_WORD and text, as one message. */
#define WEFT_LAST_WORD "last word: "
WEFT_API void weft_lifeline_last_word(const char *text) WEFT_NONNULL(1);
WEFT_API void weft_lifeline_destroy(weft_lifeline *line);

/* ---- the private run directory: 0700, owned by this user, holds ipc sockets; removed
 * with what is in it at close.  base NULL: $XDG_RUNTIME_DIR, else /tmp. */
typedef struct weft_rundir weft_rundir;
/* path NULL: base/weft-<pid>-<random>; else that folder is made (or must be 0700, ours
 * and not in use by a living engine: a lock file in it is held). */
WEFT_API weft_err weft_rundir_open(const char *path, weft_rundir **out, weft_why *why)
    WEFT_MUST_USE;
WEFT_API const char *weft_rundir_path(const weft_rundir *dir);
WEFT_API void weft_rundir_close(weft_rundir *dir);

WEFT_END_DECLS

#endif /* WEFT_PROCESS_H */
