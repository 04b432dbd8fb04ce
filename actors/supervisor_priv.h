/* supervisor_priv.h -- between supervisor.c and supervisor_tell.c: the seats.  Not for
 * anybody else. */
#ifndef WEFT_ACTORS_SUPERVISOR_PRIV_H
#define WEFT_ACTORS_SUPERVISOR_PRIV_H

#include "supervisor.h"

enum { SUPERVISOR_OWED_MS = 100 /* between attempts to tell the engine of a down */ };

/* Edges: VACANT → STARTING (spawn) → READY (said so, link is there) → ENDING (killed) →
 * RESTING (has exited, back-off) → STARTING.  Any living state → RESTING by an exit.  A
 * member that joined: VACANT → READY → VACANT. */
typedef enum seat_state {
  SEAT_VACANT,
  SEAT_STARTING,
  SEAT_READY,
  SEAT_ENDING,
  SEAT_RESTING
} seat_state;

/* A MEMBER_DOWN that the engine could not be told yet. */
typedef struct seat_owed {
  bool is;
  uint32_t fenced;
  uint64_t incarnation;
} seat_owed;

typedef struct seat {
  seat_state state;
  uint32_t kind; /* enum weft_member_kind */
  /* 0 = none; of VACANT: the last one, as long as it may yet exit */
  uint64_t incarnation;
  weft_actor_id link; /* 0 = none */
  bool announced;     /* MEMBER_UP was sent for incarnation */
  uint64_t timer;     /* of STARTING and RESTING; 0 = none */
  uint64_t ready_at_ms;
  uint32_t backoff_ms; /* before the next start; 0 = the least */
  seat_owed owed;
} seat;

typedef struct supervisor {
  wefti_supervisor_args args;
  seat *seats; /* [world_size] */
  bool stopping;
  bool owing; /* some seat is */
  uint64_t owed_timer;
} supervisor;

/* ---- supervisor_tell.c */
/* false: it must be told later. */
bool supervisor_tell_down(weft_ctx *ctx, const supervisor *self, uint32_t rank,
                          const seat_owed *down, const char *why);
void supervisor_member_down(weft_ctx *ctx, supervisor *self, uint32_t rank, bool fenced,
                            const char *why);
void supervisor_not_started(weft_ctx *ctx, const supervisor *self, uint32_t rank,
                            const char *why);
/* true: nothing is owed of rank any more. */
bool supervisor_pay_owed(weft_ctx *ctx, supervisor *self, uint32_t rank);
void supervisor_pay_all(weft_ctx *ctx, supervisor *self);
weft_err supervisor_announce(weft_ctx *ctx, supervisor *self, const weft_proc_ready *m)
    WEFT_MUST_USE;

#endif /* WEFT_ACTORS_SUPERVISOR_PRIV_H */
