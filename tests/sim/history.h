/* history.h -- is a recorded history of calls by several clients linearisable?  The
 * sequential specification is the session state machine with a register of version and
 * sequence.  Not here: how histories are recorded, faults themselves. */
#ifndef WEFT_TESTS_SIM_HISTORY_H
#define WEFT_TESTS_SIM_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HISTORY_CLIENTS = 6 };

typedef enum history_kind {
  HISTORY_INIT,
  HISTORY_START,
  HISTORY_UPDATE,
  HISTORY_FINISH,
  HISTORY_LABEL,
  HISTORY_ABORT,
  HISTORY_READ
} history_kind;

typedef enum history_result {
  HISTORY_OK,
  HISTORY_CONFLICT, /* somebody else has the session, or is at it */
  HISTORY_STATE,    /* no session is open */
  HISTORY_REFUSED,  /* one of these two */
  HISTORY_PRECOND,  /* expected is not the version */
  HISTORY_NOTHING,  /* refused without effect, whatever the state */
  HISTORY_FAILED,   /* the session, if there was one, may be over */
  HISTORY_UNKNOWN   /* may take effect at any time from its call on, or never */
} history_result;

typedef struct history_op {
  history_kind kind;
  history_result result;
  unsigned client;
  uint64_t from, to; /* call and answer, in steps */
  uint64_t session;  /* given with the call, or by start's answer; 0 = none */
  bool has_version, has_expected;
  uint64_t version, expected; /* stand for strings */
  uint64_t got_version, sequence;
  bool no_version, no_sequence; /* the answer does not say it */
  bool lost; /* UNKNOWN: it may as well have failed, and ended its session */
} history_op;

typedef enum history_verdict {
  HISTORY_LINEARISABLE,
  HISTORY_NOT_LINEARISABLE,
  HISTORY_TOO_LARGE
} history_verdict;

/* ops of one client are in their order.  faulty: sessions may end by themselves at any
 * time.  forgets: so may what is visible be forgotten, as if nothing had been committed.
 * first_version: what is visible at the start.  *at: index of the furthest op that
 * could not be placed, when not linearisable. */
history_verdict history_check(const history_op *ops, size_t count, bool faulty,
                              bool forgets, uint64_t first_version, size_t *at);

#endif /* WEFT_TESTS_SIM_HISTORY_H */
