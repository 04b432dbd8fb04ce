/* restore.h -- private to actors/.  A client inside the process that loads the last
 * commits' weights again after a restart, by the calls that any trainer makes.  Not here:
 * what was recorded (weft/journal.h). */
#ifndef WEFT_ACTORS_RESTORE_H
#define WEFT_ACTORS_RESTORE_H

#include "weft/actor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WEFTI_RESTORE_SETS = 2 };

typedef struct wefti_restore_set { /* strings are copied */
  bool draft;
  const char *sources; /* JSON array of update_infos; "" = they are not known */
  const char *version;
  bool declared; /* false: version is not anybody's choice */
  uint64_t digest_hi, digest_lo;
  uint64_t sequence; /* of the commit */
} wefti_restore_set;

typedef struct wefti_restore_args {
  weft_actor_id engine;
  wefti_restore_set sets[WEFTI_RESTORE_SETS]; /* [count], in the order of their commits */
  size_t count;
  /* Highest number ever: another one means that somebody has changed something. */
  uint64_t last_sequence;
} wefti_restore_args;

/* Tells the engine by RESTORE_NOTE how it goes, and ends.  A set that somebody has pushed
 * meanwhile is left alone, and a version that somebody has given is kept. */
extern const weft_actor_class wefti_restore_class;

#endif /* WEFT_ACTORS_RESTORE_H */
