/* rt.h -- the inside of weft_runtime, for runtime.c and outside.c only. */
#ifndef WEFT_RUNTIME_RT_H
#define WEFT_RUNTIME_RT_H

#include "loop.h"
#include "scheduler.h"
#include "weft/runtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wefti_root {
  weft_actor_id id;
  weft_msg *stop; /* made at its birth, so that stopping needs no memory */
} wefti_root;

typedef struct wefti_waiter wefti_waiter;

struct weft_runtime {
  unsigned count;
  wefti_sched *scheds[WEFT_LOOPS_MAX];
  weft_loop *loops[WEFT_LOOPS_MAX];
  pthread_t threads[WEFT_LOOPS_MAX];
  bool has_thread[WEFT_LOOPS_MAX];
  bool hangs; /* some loop was given up: nothing is freed */
  const weft_catalogue *catalogue;
  weft_log_fn *log;
  void *log_arg;
  weft_log_level log_level;
  wefti_end_signal end;
  /* Guards roots and stopping; held for a few instructions only. */
  pthread_mutex_t lock;
  wefti_root *roots; /* oldest first */
  size_t root_count, root_cap;
  bool stopping;
  /* Guards the list of threads that wait for a loop, and what they wait for. */
  pthread_mutex_t wait_lock;
  wefti_waiter *waiters;
  uint64_t next_waiter;
};

#endif /* WEFT_RUNTIME_RT_H */
