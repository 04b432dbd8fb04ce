/* worker_priv.h -- private to the worker*.c files: the worker actor's state.  Not here:
 * what others may know of it (worker.h). */
#ifndef WEFT_ACTORS_WORKER_PRIV_H
#define WEFT_ACTORS_WORKER_PRIV_H

#include "agreed.h"
#include "device.h"
#include "leader.h"
#include "worker.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  WORKER_WAITING_MAX = 8, /* frames kept while a question is worked on */
  WORKER_ABORTS_MAX = 4,  /* askers of one abort */
  WORKER_RETRY_MS = 20,
  WORKER_TIMER_RETRY = 0, /* tags */
  WORKER_TIMER_RECALL = 1,
  WORKER_DRAIN_MS = 10, /* between two looks at the readers */
  WORKER_GRANT_NS = WEFTI_GRANT_MS * 1000000
};

static_assert(1 + WORKER_WAITING_MAX + WORKER_ABORTS_MAX == WEFTI_WORKER_HELD_MAX,
              "a port has room for all that waits here");

/* A frame of the engine, unpacked. */
typedef struct worker_ask {
  uint16_t type;
  uint64_t boot, incarnation, epoch, op;
  weft_return back; /* corr 0: nobody waits */
  uint32_t what, timeout_ms, strict, draft, alone, inplace;
  /* Of the weights that the frame speaks of: that are visible (adopt), that a start
   * builds on, that are to be published, lent or fetched. */
  uint64_t sequence, digest_hi, digest_lo;
  weft_str arg;   /* of an abort, borrowed */
  weft_buf *info; /* borrowed, or a kept one's reference */
} worker_ask;

/* What was said about the last session operation: said again to the same op. */
typedef struct worker_said {
  uint16_t type; /* 0 = nothing yet */
  weft_err err;
  bool correctable;
  char text[WEFT_WHY_MAX];
  weft_w_ok ok;
  weft_w_finished finished; /* owns missing_names */
  uint64_t epoch, op;
} worker_said;

/* The weights of the last life, on their way back. */
typedef struct worker_recall {
  enum { RECALL_NONE, RECALL_ASKED, RECALL_RUNNING } state;
  bool not_own; /* asked for those of another rank */
  uint64_t sequence, digest[2];
  uint64_t timer; /* of ASKED */
} worker_recall;

/* Weights that another rank lends, on their way. */
typedef struct worker_fetch {
  bool running;
  uint64_t sequence, digest[2];
} worker_fetch;

typedef struct worker {
  wefti_worker_args args;
  wefti_leader engine;
  uint64_t adopted_op; /* of its newest adoption */
  uint64_t session_op; /* of its newest start, accept, go or finish */
  uint32_t rank, world_size, dp_index;

  weft_worker_phase phase;
  uint64_t epoch; /* of the session or init that phase is about, 0 = none */
  bool is_init;
  uint64_t ended; /* highest ended epoch of this boot */

  /* In place: readers are paused for that epoch, until a heartbeat or PUBLISH ends it. */
  uint64_t pause_epoch; /* 0 = they are not */
  bool draining;        /* asked waits for those that there are to go */
  uint64_t drain_timer;
  uint64_t drain_due_ms;

  uint64_t corr; /* question to the device thread, 0 = it is free */
  weft_device_job job;
  bool untidy;      /* what was dropped may lie there as free memory */
  worker_ask asked; /* whom job is for */

  worker_ask waiting[WORKER_WAITING_MAX]; /* kept */
  unsigned waiting_count;
  worker_ask aborts[WORKER_ABORTS_MAX];
  unsigned abort_count;
  uint64_t abort_epoch; /* in phase ABORTING */

  worker_recall recall; /* while it is under way all but heartbeats waits */
  worker_fetch fetch;   /* likewise, but a session ends it */
  uint64_t lent_op;     /* of its newest loan */
  worker_said said;
} worker;

/* ---- worker_answer.c.  All answer ask->back and echo ask's envelope. */
void worker_refuse(weft_ctx *ctx, const worker_ask *ask, weft_err err, const char *fmt,
                   ...) WEFT_PRINTF(4, 5);
void worker_ok(weft_ctx *ctx, const worker *w, const worker_ask *ask);
void worker_state(weft_ctx *ctx, worker *w, const worker_ask *ask);
void worker_json(weft_ctx *ctx, const worker_ask *ask, weft_buf *json);
/* Turns the device's answer into what is said to w->asked, now and to a repeat. */
void worker_say(weft_ctx *ctx, worker *w, const worker_ask *ask,
                const weft_device_done *done);
void worker_say_again(weft_ctx *ctx, const worker *w, const worker_ask *ask);
void worker_said_clear(worker *w);

/* ---- worker_job.c */
/* Nothing is under way that would have to end before the device thread is given a job. */
bool worker_is_free(const worker *w);
bool worker_job_is_question(weft_device_job job);
/* Gives job to the device thread, which is free.  ask NULL: nobody waits for it. */
void worker_run(weft_ctx *ctx, worker *w, weft_device_job job, const worker_ask *ask);
/* Everything up to epoch ends here; the device thread is told. */
void worker_drop(weft_ctx *ctx, worker *w, uint64_t epoch);
weft_err worker_job_done(weft_ctx *ctx, worker *w, const weft_device_done *done);
weft_err worker_job_failed(weft_ctx *ctx, worker *w, const weft_ask_failed_msg *failed);
/* Keeps a copy of ask until the device thread is free, or refuses it. */
void worker_keep(weft_ctx *ctx, worker *w, const worker_ask *ask);
void worker_kept_clear(worker *w);
/* Looks at what waited, now that nothing is under way. */
void worker_pump(weft_ctx *ctx, worker *w);

/* ---- worker_recall.c */
bool worker_recalls(const worker *w);
void worker_recall_begin(weft_ctx *ctx, worker *w, const worker_ask *adopt);
void worker_recall_offer(weft_ctx *ctx, worker *w, bool found);
void worker_recall_due(weft_ctx *ctx, worker *w, uint64_t timer);
/* The device thread's answer, or that it was not reached. */
void worker_recall_done(weft_ctx *ctx, worker *w, weft_err err, weft_str text);
/* Lets go of what was installed for nobody. */
void worker_recall_forget(const worker *w);

/* ---- worker_fetch.c */
void worker_lend(weft_ctx *ctx, worker *w, const worker_ask *ask);
void worker_lend_stop(const worker *w); /* what is lent is about to be old */
void worker_fetch_begin(weft_ctx *ctx, worker *w, const worker_ask *ask);
/* Another adoption: whatever comes of it is not served. */
void worker_fetch_end(worker *w);
void worker_fetch_done(weft_ctx *ctx, worker *w, const worker_ask *asked, weft_err err,
                       weft_str text);

/* ---- worker_drain.c */
/* Pauses readers for ask, a start, and waits for them; then runs OPEN, or refuses. */
void worker_drain(weft_ctx *ctx, worker *w, const worker_ask *ask);
void worker_drain_look(weft_ctx *ctx, worker *w);
/* Nobody waits any more; readers stay paused. */
void worker_drain_end(weft_ctx *ctx, worker *w);
/* Readers that were paused up to epoch are served again, unless a session is open. */
void worker_resume(worker *w, uint64_t epoch);

/* ---- worker_session.c */
void worker_on_session(weft_ctx *ctx, worker *w, const worker_ask *ask); /* … to finish */
/* What is installed for epoch becomes what readers get, whole, and under this number. */
weft_err worker_serve(worker *w, uint64_t epoch, uint64_t sequence) WEFT_MUST_USE;
void worker_on_publish(weft_ctx *ctx, worker *w, const worker_ask *ask);
void worker_on_abort(weft_ctx *ctx, worker *w, const worker_ask *ask);

/* ---- worker.c */
/* Any frame but an adoption and a heartbeat. */
void worker_dispatch(weft_ctx *ctx, worker *w, const worker_ask *ask);

#endif /* WEFT_ACTORS_WORKER_PRIV_H */
