#include "rep.h"

#include <nng/protocol/reqrep0/rep.h>
#include <stdlib.h>

enum {
  STALL_MS = 5000, /* patience with a peer that does not read its answers; and longer: */
  SEND_MS = 8000   /* the gate has hung up on it by then, which frees all that waits */
};

typedef enum slot_state { RECEIVING, HELD, SENDING } slot_state;

/* Belongs to nng's callback while RECEIVING or SENDING, to the owner while HELD or in
 * the queue; the queue and nng's locks order the two. */
typedef struct slot {
  wefti_node node; /* first */
  wefti_rep *rep;
  nng_ctx ctx;
  nng_aio *aio;
  slot_state state;
  int rv;
  nng_msg *msg; /* received, not yet taken */
  /* Of the request that is HELD, 0 = none.  Written before the push, read by the pipe
   * callback; a miss costs only the early end of a question. */
  atomic_int pipe;
  /* A pipe of a request here that has closed, 0 = none.  Its number, since the slot may
   * be another request's by the time it is written.  Orders nothing. */
  atomic_int gone;
} slot;

struct wefti_rep {
  nng_socket sock;
  wefti_bound bound;
  wefti_guard guard; /* to wake, for pipe callbacks */
  wefti_queue done;
  wefti_node *taken; /* out of done, owner's */
  wefti_rep_wake_fn *wake;
  void *arg;
  unsigned count;
  slot slots[]; /* [count] */
};

static void receive(slot *s)
{
  s->state = RECEIVING;
  nng_aio_set_timeout(s->aio, NNG_DURATION_INFINITE);
  nng_ctx_recv(s->ctx, s->aio);
}

/* On a thread of nng. */
static void on_aio(void *arg)
{
  slot *s = arg;
  const int rv = nng_aio_result(s->aio);
  if (s->state == SENDING) {
    if (rv != 0) {
      nng_msg_free(nng_aio_get_msg(s->aio));
      nng_aio_set_msg(s->aio, NULL);
    }
    if (rv != NNG_ECLOSED && rv != NNG_ECANCELED) {
      receive(s);
    }
    return;
  }
  if (rv == NNG_ECLOSED || rv == NNG_ECANCELED) {
    return;
  }
  s->rv = rv;
  if (rv == 0) {
    s->msg = nng_aio_get_msg(s->aio);
    nng_aio_set_msg(s->aio, NULL);
    atomic_store_explicit(&s->gone, 0, memory_order_relaxed);
    atomic_store_explicit(&s->pipe, nng_pipe_id(nng_msg_get_pipe(s->msg)),
                          memory_order_relaxed);
  }
  s->state = HELD;
  if (wefti_queue_push(&s->rep->done, &s->node)) {
    s->rep->wake(s->rep->arg);
  }
}

/* On a thread of nng. */
static void on_pipe(nng_pipe pipe, nng_pipe_ev ev, void *arg)
{
  (void)ev;
  wefti_rep *rep = arg;
  const int id = nng_pipe_id(pipe);
  bool any = false;
  for (unsigned i = 0; i < rep->count; i++) {
    if (atomic_load_explicit(&rep->slots[i].pipe, memory_order_relaxed) == id) {
      atomic_store_explicit(&rep->slots[i].gone, id, memory_order_relaxed);
      any = true;
    }
  }
  if (any) {
    wefti_guard_call(&rep->guard);
  }
}

static int open_slots(wefti_rep *rep)
{
  for (unsigned i = 0; i < rep->count; i++) {
    slot *s = &rep->slots[i];
    s->rep = rep;
    int rv = nng_ctx_open(&s->ctx, rep->sock);
    if (rv == 0) {
      rv = nng_aio_alloc(&s->aio, on_aio, s);
    }
    if (rv != 0) {
      return rv;
    }
  }
  return 0;
}

static void rep_free(void *arg)
{
  wefti_rep *rep = arg;
  wefti_guard_fini(&rep->guard);
  free(rep);
}

weft_err wefti_rep_create(const wefti_rep_opts *opts, wefti_rep **out, weft_why *why)
{
  const char *url = opts->url;
  const unsigned contexts = opts->contexts;
  if (contexts == 0 || contexts > WEFTI_REP_CONTEXTS_MAX) {
    return weft_whyf(why, WEFT_E_INVAL, "%s: %u contexts, want 1 to %d", url, contexts,
                     WEFTI_REP_CONTEXTS_MAX);
  }
  wefti_rep *rep = calloc(1, sizeof *rep + contexts * sizeof rep->slots[0]);
  if (rep == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s: out of memory", url);
  }
  if (!wefti_guard_init(&rep->guard, NULL, NULL)) {
    free(rep);
    return weft_whyf(why, WEFT_E_NOMEM, "%s: out of memory", url);
  }
  int rv = nng_rep0_open(&rep->sock);
  if (rv != 0) {
    rep_free(rep);
    return weft_whyf(why, wefti_nng_err(rv), "%s: no socket: %s", url,
                     wefti_nng_text(rv));
  }
  rep->count = contexts;
  rv = open_slots(rep);
  weft_err err =
      rv == 0 ? wefti_sock_limits(rep->sock, opts->recv_max) : wefti_nng_err(rv);
  if (err != WEFT_OK) {
    (void)weft_whyf(why, err, "%s: cannot set up the socket", url);
  } else {
    rep->bound.stall_ms = STALL_MS;
    err = wefti_listen(rep->sock, url, opts->url_out, opts->url_cap, &rep->bound, why);
  }
  if (err != WEFT_OK) {
    wefti_rep_destroy(rep);
    return err;
  }
  *out = rep;
  return WEFT_OK;
}

void wefti_rep_start(wefti_rep *rep, wefti_rep_wake_fn *wake, void *arg)
{
  rep->wake = wake;
  rep->arg = arg;
  rep->guard.fn = wake;
  rep->guard.arg = arg;
  (void)nng_pipe_notify(rep->sock, NNG_PIPE_EV_REM_POST, on_pipe, rep);
  for (unsigned i = 0; i < rep->count; i++) {
    receive(&rep->slots[i]);
  }
}

static unsigned index_of(const wefti_rep *rep, const slot *s)
{
  return (unsigned)(s - rep->slots);
}

bool wefti_rep_next(wefti_rep *rep, unsigned *slot_out, nng_msg **msg)
{
  for (;;) {
    if (rep->taken == NULL) {
      rep->taken = wefti_queue_take(&rep->done);
    }
    if (rep->taken == NULL) {
      return false;
    }
    slot *s = (slot *)rep->taken; /* node is the first member */
    rep->taken = rep->taken->next;
    if (s->rv == 0) {
      *slot_out = index_of(rep, s);
      *msg = s->msg;
      s->msg = NULL;
      return true;
    }
    receive(s); /* short of memory, say: the hop to here paces it */
  }
}

void wefti_rep_answer(wefti_rep *rep, unsigned slot_index, nng_msg *msg)
{
  slot *s = &rep->slots[slot_index];
  atomic_store_explicit(&s->pipe, 0, memory_order_relaxed);
  if (msg == NULL) {
    receive(s);
    return;
  }
  s->state = SENDING;
  nng_aio_set_timeout(s->aio, SEND_MS);
  nng_aio_set_msg(s->aio, msg);
  nng_ctx_send(s->ctx,
               s->aio); /* never NNG_FLAG_NONBLOCK: rep0 loses the reply's state */
}

bool wefti_rep_gone(wefti_rep *rep, unsigned slot_index)
{
  slot *s = &rep->slots[slot_index];
  const int gone = atomic_exchange_explicit(&s->gone, 0, memory_order_relaxed);
  return gone != 0 && gone == atomic_load_explicit(&s->pipe, memory_order_relaxed);
}

void wefti_rep_destroy(wefti_rep *rep)
{
  if (rep == NULL) {
    return;
  }
  wefti_guard_clear(&rep->guard);
  /* Stopped before closed: a callback that still used its context while the socket closes
   * would touch what nng 1.5.2 has freed. */
  for (unsigned i = 0; i < rep->count; i++) {
    slot *s = &rep->slots[i];
    if (s->aio != NULL) {
      nng_aio_stop(s->aio);                  /* waits: a pending aio is never freed */
      nng_msg_free(nng_aio_get_msg(s->aio)); /* an answer that was not sent */
      nng_msg_free(s->msg);
      nng_aio_free(s->aio);
    }
  }
  wefti_unlisten(&rep->bound, rep->sock, rep_free, rep);
}
