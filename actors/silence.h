/* silence.h -- private to actors/.  What a question to the engine that ended without its
 * answer says about the change that was asked for.  Not how it is told (acceptor_reply.c,
 * calls.c, relay.c). */
#ifndef WEFT_ACTORS_SILENCE_H
#define WEFT_ACTORS_SILENCE_H

#include "weft/err.h"

#include <stdbool.h>

/* reason: of ASK_FAILED.  true = the question did not get there, so nothing has come of
 * it; a lost answer is LOST, never these. */
static inline bool wefti_was_not_asked(weft_err reason)
{
  return reason == WEFT_E_FULL || reason == WEFT_E_NOMEM;
}

#endif /* WEFT_ACTORS_SILENCE_H */
