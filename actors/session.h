/* session.h -- private to actors/.  The states of an update session and which may follow
 * which.  Pure: no messages, no clock, no memory. */
#ifndef WEFT_ACTORS_SESSION_H
#define WEFT_ACTORS_SESSION_H

#include "weft/base.h"
#include "weft/err.h"

#include <stdbool.h>

/* clang-format off */
#define WEFTI_SESSION_STATES(X)                                                     \
  X(IDLE,         "idle")          /* no session */                                 \
  X(INIT,         "initializing")  /* transfer engines are being set up */          \
  X(STARTING,     "starting")      /* workers open the session */                   \
  X(OPEN,         "open")          /* waits for update, finish or abort */          \
  X(TRANSFERRING, "transferring")  /* an update runs */                             \
  X(FINISHING,    "finishing")     /* workers check, digest and install */          \
  X(PREPARED,     "prepared")      /* voted: the coordinator decides, nothing of ours */ \
  X(COMMITTING,   "committing")    /* the record was issued: nothing aborts now */  \
  X(ABORTING,     "aborting")      /* workers drop what came */
/* clang-format on */

typedef enum wefti_session_state {
#define X(sym, text) WEFTI_##sym,
  WEFTI_SESSION_STATES(X)
#undef X
      WEFTI_SESSION_STATE_COUNT
} wefti_session_state;

/* Lower-case word for status and errors; static. */
const char *wefti_session_state_name(wefti_session_state state);

bool wefti_session_may(wefti_session_state from, wefti_session_state to);

/* Moves *state.  STATE, and *state untouched, when there is no such edge: a bug of ours.
 */
weft_err wefti_session_move(wefti_session_state *state, wefti_session_state to)
    WEFT_MUST_USE WEFT_NONNULL(1);

#endif /* WEFT_ACTORS_SESSION_H */
