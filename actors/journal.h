/* journal.h -- private to actors/.  The journal's side of JOURNAL_APPEND.  Not here:
 * records on disk; without a state directory the engine talks to the one that keeps
 * nothing. */
#ifndef WEFT_ACTORS_JOURNAL_H
#define WEFT_ACTORS_JOURNAL_H

#include "weft/actor.h"

/* Says that every record is durable; keeps none.  args: none. */
extern const weft_actor_class wefti_journal_null_class;

#endif /* WEFT_ACTORS_JOURNAL_H */
