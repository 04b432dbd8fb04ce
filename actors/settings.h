/* settings.h -- private to actors/.  What an engine and a worker that somebody else has
 * started were given each on its own, and have to have alike: said when it joins,
 * compared at the door.  Not here: what a worker may have for itself (files, hosts, a
 * manifest), who has which rank (assembly_joins.c). */
#ifndef WEFT_ACTORS_SETTINGS_H
#define WEFT_ACTORS_SETTINGS_H

#include "weft/join.h"
#include "weft/tp_plan.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct wefti_settings {
  const char *backend; /* NULL = "host" */
  bool inplace;
  uint32_t tp, pp;
  const weft_tp_plan *tp_plan; /* NULL = none */
} wefti_settings;

/* s NULL: of an engine that joins a coordinator, which has them for itself. */
void wefti_settings_say(const wefti_settings *s, weft_join_settings *out);

/* ours is what the engine would say of itself.  Errors: INVAL; why names what, whose, and
 * what to do. */
weft_err wefti_settings_agree(const weft_join_hello *ours, const weft_join_hello *theirs,
                              weft_why *why) WEFT_MUST_USE;

#endif /* WEFT_ACTORS_SETTINGS_H */
