/* agreed.h -- private to actors/.  Numbers that two sides have to agree on, and those
 * that follow from them.  Not here: what only one side knows. */
#ifndef WEFT_ACTORS_AGREED_H
#define WEFT_ACTORS_AGREED_H

enum {
  /* Whoever serves readers does so for so long after the stamp that a heartbeat echoes,
   * at most, and is only taken for one that has stopped when more time has passed. */
  WEFTI_GRANT_MS = 2000,
  WEFTI_FENCE_MS = WEFTI_GRANT_MS + 250,

  /* Without any answer to a heartbeat for so long a member is fenced; who would follow it
   * waits until its rank is free. */
  WEFTI_HUNG_MS = 10000,
  WEFTI_TAKEN_MS = WEFTI_HUNG_MS + WEFTI_FENCE_MS,

  /* What a query asks of a worker; the answer that names who was late comes before the
   * front end gives up. */
  WEFTI_WORKER_QUERY_MS = 30000,
  WEFTI_WEIGHTS_QUERY_MS = WEFTI_WORKER_QUERY_MS + 1000,

  /* Stock clients leave a call after five minutes; the engine's own deadlines come first.
   */
  WEFTI_CLIENT_LEAVES_MS = 300000,
  WEFTI_LONG_CALL_MS = WEFTI_CLIENT_LEAVES_MS - 20000,

  WEFTI_LOAN_MS = 600000, /* for all bytes that a rank lends, on both sides */

  /* An invitation comes again, also to who is in; three that were not heard let it go. */
  WEFTI_INVITE_MS = 3000,
  WEFTI_INVITED_MS = 3 * WEFTI_INVITE_MS + 1000,

  WEFTI_DEAF_MS = 30000 /* let in and asked nothing: the engine does not get through */
};

#endif /* WEFT_ACTORS_AGREED_H */
