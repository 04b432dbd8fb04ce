/* attend.h -- private to actors/.  A member's thread that follows the last invitation: it
 * opens a port that the coordinator can reach and joins there.  Not who may invite
 * (assembly_fleet.c), nor the exchange (weft/join.h). */
#ifndef WEFT_ACTORS_ATTEND_H
#define WEFT_ACTORS_ATTEND_H

#include "weft/actor.h"
#include "weft/door.h"
#include "weft/runtime.h"

#include <stdint.h>

typedef struct wefti_attend wefti_attend;
typedef struct wefti_attend_opts {
  weft_runtime *rt;
  weft_actor_id engine; /* what comes to the port goes there */
  const char *run_dir;  /* for ports on this machine; borrowed until destroy */
  const char *token;    /* copied; NULL = none */
  uint64_t incarnation; /* the engine's boot id */
  uint64_t quiet_ms; /* let in and nothing heard for so long: another port; 0 = 30,000 */
  weft_log_fn *log;  /* any thread; may be NULL */
  void *log_arg;
  weft_log_level log_level;
} wefti_attend_opts;

weft_err wefti_attend_start(const wefti_attend_opts *opts, wefti_attend **out)
    WEFT_MUST_USE;
/* Any thread, these two.  follow: soon; a newer invitation takes the older one's place.
 */
void wefti_attend_follow(wefti_attend *attend, const weft_invitation *invitation);
void wefti_attend_heard(wefti_attend *attend); /* the coordinator gets through */
void wefti_attend_end(wefti_attend *attend);   /* nothing is followed from now on */
/* Waits for the thread, two seconds at most; the runtime is still there.  NULL is a
 * no-op, of both. */
void wefti_attend_destroy(wefti_attend *attend);

#endif /* WEFT_ACTORS_ATTEND_H */
