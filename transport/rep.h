/* rep.h -- a REP socket whose requests are taken by one owner thread, several under way
 * at once.  Knows nothing of what is in them: frames (port.c) or JSON (jsonrep.c). */
#ifndef WEFT_TRANSPORT_REP_H
#define WEFT_TRANSPORT_REP_H

#include "nng_util.h"

enum { WEFTI_REP_CONTEXTS_MAX = 64 };

typedef struct wefti_rep wefti_rep;
/* On threads of nng: may only wake the owner, who then calls next and gone. */
typedef void wefti_rep_wake_fn(void *arg);

/* contexts 1..WEFTI_REP_CONTEXTS_MAX; recv_max in bytes.  wake may be called before this
 * returns.  Errors: as wefti_listen, NOMEM. */
typedef struct wefti_rep_opts {
  const char *url;
  unsigned contexts;
  size_t recv_max;
  char *url_out; /* [url_cap] the bound address; may be NULL */
  size_t url_cap;
} wefti_rep_opts;

weft_err wefti_rep_create(const wefti_rep_opts *opts, wefti_rep **out, weft_why *why)
    WEFT_MUST_USE;
void wefti_rep_start(wefti_rep *rep, wefti_rep_wake_fn *wake, void *arg);

/* The rest: owner thread.  true = *msg (the caller's) is a request that waits in *slot
 * for its answer. */
bool wefti_rep_next(wefti_rep *rep, unsigned *slot, nng_msg **msg);
/* Takes msg, answers with it and makes the slot free for the next request.  NULL: no
 * answer.  Never blocks; a peer that does not read is cut off after 5 s. */
void wefti_rep_answer(wefti_rep *rep, unsigned slot, nng_msg *msg);
/* true once: whoever asked in slot has hung up. */
bool wefti_rep_gone(wefti_rep *rep, unsigned slot);
/* Waits for nng's callbacks, which do nothing but wake.  NULL is a no-op. */
void wefti_rep_destroy(wefti_rep *rep);

#endif /* WEFT_TRANSPORT_REP_H */
