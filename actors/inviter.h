/* inviter.h -- private to actors/.  A coordinator's threads that invite the engines of
 * its fleet, again and again: one that restarts is asked again, one that is in hears it
 * now and then.  Not the exchange itself (weft/door.h), nor how a guest joins. */
#ifndef WEFT_ACTORS_INVITER_H
#define WEFT_ACTORS_INVITER_H

#include "weft/actor.h"
#include "weft/door.h"
#include "weft/runtime.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wefti_inviter wefti_inviter;
typedef struct wefti_inviter_opts {
  const char *const *urls;    /* [invitation.size], of the engines' doors; copied */
  const char *token;          /* copied; NULL = none */
  weft_invitation invitation; /* rank is filled in */
  uint32_t pause_ms;          /* between two to one that is not in; 0 = 1,000 */
  uint32_t again_ms;          /* … that is in; 0 = 3,000 */
  /* Any thread, once for each new text: why rank takes no invitation, "" when it does
   * again.  May be NULL. */
  void (*on_refused)(void *arg, uint32_t rank, const char *text);
  void *arg;
  weft_log_fn *log; /* any thread; may be NULL */
  void *log_arg;
  weft_log_level log_level;
} wefti_inviter_opts;

weft_err wefti_inviter_start(const wefti_inviter_opts *opts, wefti_inviter **out)
    WEFT_MUST_USE;
/* Any thread: replica rank is in, or is not any more. */
void wefti_inviter_note(wefti_inviter *inviter, uint32_t rank, bool in);
void wefti_inviter_end(wefti_inviter *inviter); /* nobody is invited from now on */
/* Waits for the threads, two seconds at most.  NULL is a no-op, of both. */
void wefti_inviter_destroy(wefti_inviter *inviter);

#endif /* WEFT_ACTORS_INVITER_H */
