/* clerk.h -- private to actors/.  Paperwork that is too long for the engine's loop: a
 * client's baseline may be as large as a request, and to read it takes its time.  Not
 * here: who is asked for checksums and who is answered (engine_check.c). */
#ifndef WEFT_ACTORS_CLERK_H
#define WEFT_ACTORS_CLERK_H

#include "weft/actor.h"
#include "weft/buf.h"
#include "weft/err.h"

/* {"match":…,"mismatches":[…]}: names whose value differs, or that only one of the two
 * JSON objects has.  Errors: those of weft_json_parse, NOMEM; *why (not NULL) says more.
 */
weft_err wefti_clerk_compare(const weft_buf *now, const weft_buf *baseline,
                             weft_buf **out, weft_why *why) WEFT_MUST_USE;

enum {
  WEFTI_CLERK_MAILBOX = 16 /* each message may hold a baseline of many megabytes */
};

/* Answers CLERK_COMPARE; on a loop of its own.  args: none. */
extern const weft_actor_class wefti_clerk_class;

#endif /* WEFT_ACTORS_CLERK_H */
