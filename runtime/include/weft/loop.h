/* weft/loop.h -- one event loop, one thread.  No libev type leaks from here.
 * For code that does I/O (http/, transport/).  Actors do not use this header:
 * they see only weft/actor.h. */
#ifndef WEFT_LOOP_H
#define WEFT_LOOP_H

#include "weft/base.h"
#include "weft/err.h"

#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_loop weft_loop; /* made by weft_runtime_create() */

enum { WEFT_IO_READ = 1, WEFT_IO_WRITE = 2 };

/* Watches one descriptor.  Level-triggered.  The watcher never owns fd. */
typedef struct weft_io weft_io;
typedef void weft_io_fn(void *arg, int fd, unsigned events);

/* Owner thread (or before the loop runs).  Starts with events (0: stopped).
 * destroy is allowed inside the callback, NULL is a no-op. */
WEFT_API weft_err weft_io_create(weft_loop *loop, int fd, unsigned events, weft_io_fn *fn,
                                 void *arg, weft_io **out) WEFT_MUST_USE;
WEFT_API void weft_io_set(weft_io *io, unsigned events);
WEFT_API void weft_io_destroy(weft_io *io);

/* One-shot timer of the loop, for I/O code.  start on a running one re-arms it.
 * destroy is allowed inside the callback. */
typedef struct weft_alarm weft_alarm;
typedef void weft_alarm_fn(void *arg);
WEFT_API weft_err weft_alarm_create(weft_loop *loop, weft_alarm_fn *fn, void *arg,
                                    weft_alarm **out) WEFT_MUST_USE;
WEFT_API void weft_alarm_start(weft_alarm *alarm, uint64_t after_ms);
WEFT_API void weft_alarm_stop(weft_alarm *alarm);
WEFT_API void weft_alarm_destroy(weft_alarm *alarm);

/* Runs fn(arg) once on the loop's thread, soon.  Any thread.  Takes nothing: arg
 * must live until fn ran.  This is what nng callbacks do, and all they do.
 * Errors: NOMEM, CLOSED (the loop has ended; fn will not run). */
typedef void weft_call_fn(void *arg);
WEFT_API weft_err weft_loop_call(weft_loop *loop, weft_call_fn *fn, void *arg)
    WEFT_MUST_USE;

/* CLOCK_MONOTONIC in milliseconds as of this loop turn.  Owner thread. */
WEFT_API uint64_t weft_loop_now_ms(const weft_loop *loop);

/* A POSIX signal, delivered on this loop (signalfd; blocks it in the caller's
 * thread).  fn runs on the loop. */
typedef struct weft_signal weft_signal;
WEFT_API weft_err weft_signal_create(weft_loop *loop, int signo, weft_call_fn *fn,
                                     void *arg, weft_signal **out) WEFT_MUST_USE;
WEFT_API void weft_signal_destroy(weft_signal *signal);

WEFT_END_DECLS

#endif /* WEFT_LOOP_H */
