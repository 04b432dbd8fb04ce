/* journal.h -- private to actors/.  The journal's side of JOURNAL_APPEND: one actor that
 * writes to a state directory, and one that keeps nothing.  Not here: records on disk
 * (weft/journal.h). */
#ifndef WEFT_ACTORS_JOURNAL_H
#define WEFT_ACTORS_JOURNAL_H

#include "weft/actor.h"
#include "weft/journal.h"

/* Says that every record is durable; keeps none.  args: none. */
extern const weft_actor_class wefti_journal_null_class;

#define WEFTI_RECORDING_HISTORY UINT64_MAX
typedef struct wefti_journal_args {
  weft_journal *journal; /* borrowed until the actor's end */
  /* For whoever waits for a disk in vain: the change whose record is being written, or
   * WEFTI_RECORDING_HISTORY; 0 = none.  May be NULL. */
  _Atomic uint64_t *recording;
} wefti_journal_args;
/* It waits for the disk: on a loop of its own. */
extern const weft_actor_class wefti_journal_class;

#endif /* WEFT_ACTORS_JOURNAL_H */
