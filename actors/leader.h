/* leader.h -- private to actors/.  Which life of an engine a worker follows, or which
 * life of a coordinator a member of a fleet, and whose turn is over.  Not what it may
 * order. */
#ifndef WEFT_ACTORS_LEADER_H
#define WEFT_ACTORS_LEADER_H

#include <stdbool.h>
#include <stdint.h>

enum { WEFTI_FORMER_MAX = 8 };

typedef struct wefti_leader {
  uint64_t boot;                     /* its life; 0 = none so far */
  uint64_t former[WEFTI_FORMER_MAX]; /* lives that were followed before, a ring */
  unsigned former_count;
  uint64_t proof_boot; /* who was asked to show that it lives, … */
  uint64_t proof_ns;   /* … and what it has to echo for that */
} wefti_leader;

/* Followed once, and another one since. */
bool wefti_leader_is_former(const wefti_leader *l, uint64_t boot);
/* Boots have no order, and an adoption may arrive when whoever sent it has died and been
 * followed.  So the first is taken at its word, and any other one has to repeat what the
 * answer to an earlier adoption of its own told it: then it is alive. */
bool wefti_leader_may_lead(const wefti_leader *l, uint64_t boot, uint64_t echo_ns);
/* An answer with that stamp goes to boot.  true: it has to echo it (w_state.again). */
bool wefti_leader_ask(wefti_leader *l, uint64_t boot, uint64_t stamp_ns);
void wefti_leader_follow(wefti_leader *l, uint64_t boot);

#endif /* WEFT_ACTORS_LEADER_H */
