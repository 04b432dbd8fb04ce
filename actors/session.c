#include "session.h"

#include <stdbool.h>

#define BIT(state) (1u << (WEFTI_##state))

/* Row: from.  Bits: the states that may follow. */
static const unsigned edges[WEFTI_SESSION_STATE_COUNT] = {
  [WEFTI_IDLE] = BIT(INIT) | BIT(STARTING),
  [WEFTI_INIT] = BIT(IDLE) | BIT(ABORTING),
  [WEFTI_STARTING] = BIT(OPEN) | BIT(ABORTING),
  [WEFTI_OPEN] = BIT(TRANSFERRING) | BIT(FINISHING) | BIT(ABORTING),
  [WEFTI_TRANSFERRING] = BIT(OPEN) | BIT(ABORTING),
  [WEFTI_FINISHING] = BIT(OPEN) | BIT(COMMITTING) | BIT(PREPARED) | BIT(ABORTING),
  [WEFTI_PREPARED] = BIT(COMMITTING) | BIT(ABORTING),
  [WEFTI_COMMITTING] = BIT(IDLE),
  [WEFTI_ABORTING] = BIT(IDLE),
};

const char *wefti_session_state_name(wefti_session_state state)
{
  switch (state) {
#define X(sym, text)                                                                     \
  case WEFTI_##sym:                                                                      \
    return text;
    WEFTI_SESSION_STATES(X)
#undef X
  case WEFTI_SESSION_STATE_COUNT:
    break;
  }
  return "unknown";
}

bool wefti_session_may(wefti_session_state from, wefti_session_state to)
{
  return from < WEFTI_SESSION_STATE_COUNT && to < WEFTI_SESSION_STATE_COUNT &&
         (edges[from] & (1u << to)) != 0;
}

weft_err wefti_session_move(wefti_session_state *state, wefti_session_state to)
{
  if (!wefti_session_may(*state, to)) {
    return WEFT_E_STATE;
  }
  *state = to;
  return WEFT_OK;
}
