#include "dial_gate.h"
#include "nng_util.h"
#include "sub_feed.h"
#include "weft/clock.h"

#include <nng/protocol/pubsub0/sub.h>
#include <nng/protocol/reqrep0/req.h>
#include <pthread.h>
#include <stdlib.h>

enum {
  RECV_BUFFER = 8192,    /* messages in nng (its limit) */
  RING = 16384,          /* messages here; a power of two */
  EVENT_MAX = 4 << 20,   /* bytes */
  ANSWER_MAX = 16 << 20, /* bytes */
  ASK_MS = 2000,         /* patience with one answer */
  RETRY_MS = 100,        /* pause after a failed one */
  SETTLE_MS = 100,       /* after a connect: the publisher may know us a moment later */
  IDLE_MS = 2000         /* pub drops in silence: so ask when it is silent */
};

typedef enum ask_state { ASK_NONE, ASK_PENDING, ASK_DONE } ask_state;

struct weft_sub {
  nng_socket events, snapshot;
  wefti_dialed *events_dialed, *snapshot_dialed;
  nng_ctx ctx;
  nng_aio *event_aio, *ask_aio;
  /* lock guards what nng's callbacks write: ring, connected, lost, interrupted, asking,
   * ask_rv, answer.  The rest belongs to the thread in next. */
  pthread_mutex_t lock;
  pthread_cond_t cond;
  nng_msg **ring; /* [RING] */
  size_t head, tail;
  bool connected; /* a connection to the publisher was made since last looked at */
  bool lost;      /* the ring was full */
  bool interrupted;
  ask_state asking;
  int ask_rv;
  nng_msg *answer;

  wefti_feed feed;
  wefti_ask_kind asked; /* what ask_aio is about */
  bool asked_idly;      /* the stream goes on meanwhile */
  uint64_t ask_after_ms, idle_at_ms;
};

/* ---- on threads of nng */

static void on_event(void *arg)
{
  weft_sub *s = arg;
  const int rv = nng_aio_result(s->event_aio);
  if (rv == NNG_ECLOSED || rv == NNG_ECANCELED) {
    return;
  }
  nng_msg *msg = rv == 0 ? nng_aio_get_msg(s->event_aio) : NULL;
  (void)pthread_mutex_lock(&s->lock);
  if (msg != NULL && s->tail - s->head < RING) {
    s->ring[s->tail++ % RING] = msg;
    msg = NULL;
  } else {
    s->lost = true;
  }
  (void)pthread_cond_signal(&s->cond);
  (void)pthread_mutex_unlock(&s->lock);
  nng_msg_free(msg);
  nng_recv_aio(s->events, s->event_aio);
}

static void on_connect(nng_pipe pipe, nng_pipe_ev ev, void *arg)
{
  (void)pipe;
  (void)ev;
  weft_sub *s = arg;
  (void)pthread_mutex_lock(&s->lock);
  s->connected = true;
  (void)pthread_cond_signal(&s->cond);
  (void)pthread_mutex_unlock(&s->lock);
}

static void ask_ended(weft_sub *s, int rv, nng_msg *answer)
{
  (void)pthread_mutex_lock(&s->lock);
  s->asking = ASK_DONE;
  s->ask_rv = rv;
  s->answer = answer;
  (void)pthread_cond_signal(&s->cond);
  (void)pthread_mutex_unlock(&s->lock);
}

/* Sent (the aio still has the message when not) or answered. */
static void on_ask(void *arg)
{
  weft_sub *s = arg;
  const int rv = nng_aio_result(s->ask_aio);
  nng_msg *msg = nng_aio_get_msg(s->ask_aio);
  nng_aio_set_msg(s->ask_aio, NULL);
  if (rv == 0 && msg == NULL) {
    nng_ctx_recv(s->ctx, s->ask_aio);
    return;
  }
  if (rv != 0) {
    nng_msg_free(msg);
    msg = NULL;
  }
  ask_ended(s, rv, msg);
}

/* ---- on the caller's thread */

static void start_ask(weft_sub *s, bool idly)
{
  char text[WEFTI_ASK_MAX];
  const size_t len = wefti_feed_ask(&s->feed, text);
  nng_msg *msg = wefti_nng_msg(text, len);
  if (msg == NULL) {
    s->ask_after_ms = weft_clock_ms() + RETRY_MS;
    return;
  }
  s->asked = s->feed.want;
  s->asked_idly = idly;
  (void)pthread_mutex_lock(&s->lock);
  s->asking = ASK_PENDING;
  (void)pthread_mutex_unlock(&s->lock);
  nng_aio_set_timeout(s->ask_aio, ASK_MS);
  nng_aio_set_msg(s->ask_aio, msg);
  nng_ctx_send(s->ctx, s->ask_aio);
}

static weft_err finish_ask(weft_sub *s)
{
  (void)pthread_mutex_lock(&s->lock);
  nng_msg *answer = s->answer;
  const int rv = s->ask_rv;
  s->answer = NULL;
  s->asking = ASK_NONE;
  (void)pthread_mutex_unlock(&s->lock);
  weft_err err = wefti_nng_err(rv);
  if (rv == 0) {
    err =
        wefti_feed_answer(&s->feed, s->asked, nng_msg_body(answer), nng_msg_len(answer));
  }
  nng_msg_free(answer);
  s->idle_at_ms = weft_clock_ms() + IDLE_MS;
  if (err != WEFT_OK) {
    s->ask_after_ms = weft_clock_ms() + RETRY_MS;
    if (s->asked_idly && s->feed.held.json == NULL) {
      s->feed.want = WEFTI_ASK_NOTHING; /* it was only a look; the next one comes */
    }
  }
  return err == WEFT_E_NOMEM ? err : WEFT_OK;
}

/* Flags from nng's threads; returns the state of the question. */
static ask_state look(weft_sub *s, bool *interrupted)
{
  (void)pthread_mutex_lock(&s->lock);
  const bool connected = s->connected;
  const bool lost = s->lost;
  const ask_state asking = s->asking;
  *interrupted = s->interrupted;
  s->connected = false;
  s->lost = false;
  s->interrupted = false;
  (void)pthread_mutex_unlock(&s->lock);
  if (connected || lost) {
    wefti_feed_check(&s->feed, connected);
    s->idle_at_ms = weft_clock_ms() + SETTLE_MS;
  }
  return asking;
}

static nng_msg *take_event(weft_sub *s)
{
  nng_msg *msg = NULL;
  (void)pthread_mutex_lock(&s->lock);
  if (s->head != s->tail) {
    msg = s->ring[s->head++ % RING];
  }
  (void)pthread_mutex_unlock(&s->lock);
  return msg;
}

/* Until something happened or the clock says until_ms. */
static void wait_until(weft_sub *s, uint64_t until_ms, bool events_too)
{
  (void)pthread_mutex_lock(&s->lock);
  while (!s->connected && !s->lost && !s->interrupted && s->asking != ASK_DONE &&
         !(events_too && s->head != s->tail) &&
         weft_cond_wait_until(&s->cond, &s->lock, until_ms)) {
  }
  (void)pthread_mutex_unlock(&s->lock);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

/* One step towards the next event; AGAIN = waited or worked, look again. */
static weft_err step(weft_sub *s, uint64_t end_ms)
{
  bool interrupted;
  const ask_state asking = look(s, &interrupted);
  if (interrupted) {
    return WEFT_E_CLOSED;
  }
  if (asking == ASK_DONE) {
    const weft_err err = finish_ask(s);
    return err == WEFT_OK ? WEFT_E_AGAIN : err;
  }
  const bool wants = s->feed.want != WEFTI_ASK_NOTHING;
  const bool stream =
      s->feed.held.json == NULL && (asking == ASK_PENDING ? s->asked_idly : !wants);
  nng_msg *msg = stream ? take_event(s) : NULL;
  const uint64_t now = weft_clock_ms();
  if (msg != NULL) {
    const weft_err err = wefti_feed_event(&s->feed, nng_msg_body(msg), nng_msg_len(msg));
    nng_msg_free(msg);
    s->idle_at_ms = now + IDLE_MS;
    if (err == WEFT_E_NOMEM) {
      wefti_feed_check(&s->feed, false); /* it was lost: ask for it */
      return err;
    }
    return WEFT_E_AGAIN;
  }
  uint64_t until = end_ms;
  if (asking == ASK_NONE && wants) {
    if (now >= s->ask_after_ms) {
      start_ask(s, false);
      return WEFT_E_AGAIN;
    }
    until = earlier(until, s->ask_after_ms);
  } else if (asking == ASK_NONE) {
    if (now >= s->idle_at_ms) {
      wefti_feed_check(&s->feed, false);
      start_ask(s, true);
      return WEFT_E_AGAIN;
    }
    until = earlier(until, s->idle_at_ms);
  }
  if (now >= end_ms) {
    return WEFT_E_TIMEOUT;
  }
  wait_until(s, until, stream);
  return WEFT_E_AGAIN;
}

weft_err weft_sub_next(weft_sub *sub, uint64_t timeout_ms, weft_sub_event *out)
{
  const uint64_t now = weft_clock_ms();
  const uint64_t end = timeout_ms > INT64_MAX / 2 ? INT64_MAX / 2 : now + timeout_ms;
  weft_err err;
  do {
    if (wefti_feed_pop(&sub->feed, out)) {
      return WEFT_OK;
    }
    err = step(sub, end);
  } while (err == WEFT_E_AGAIN);
  return err;
}

void weft_sub_interrupt(weft_sub *sub)
{
  (void)pthread_mutex_lock(&sub->lock);
  sub->interrupted = true;
  (void)pthread_cond_signal(&sub->cond);
  (void)pthread_mutex_unlock(&sub->lock);
}

/* ---- life */

static weft_err init_locks(weft_sub *s)
{
  if (pthread_mutex_init(&s->lock, NULL) != 0) {
    return WEFT_E_NOMEM;
  }
  const weft_err err = weft_cond_init(&s->cond);
  if (err != WEFT_OK) {
    (void)pthread_mutex_destroy(&s->lock);
  }
  return err;
}

static weft_err open_sockets(weft_sub *s)
{
  int rv = nng_sub0_open(&s->events);
  rv = rv == 0 ? nng_req0_open(&s->snapshot) : rv;
  rv = rv == 0 ? nng_ctx_open(&s->ctx, s->snapshot) : rv;
  rv = rv == 0 ? nng_ctx_set_ms(s->ctx, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE)
               : rv;
  rv = rv == 0 ? nng_aio_alloc(&s->event_aio, on_event, s) : rv;
  rv = rv == 0 ? nng_aio_alloc(&s->ask_aio, on_ask, s) : rv;
  rv = rv == 0 ? nng_socket_set_int(s->events, NNG_OPT_RECVBUF, RECV_BUFFER) : rv;
  rv = rv == 0 ? nng_socket_set(s->events, NNG_OPT_SUB_SUBSCRIBE, "", 0) : rv;
  rv = rv == 0 ? nng_pipe_notify(s->events, NNG_PIPE_EV_ADD_POST, on_connect, s) : rv;
  if (rv != 0) {
    return wefti_nng_err(rv);
  }
  const weft_err err = wefti_sock_limits(s->events, EVENT_MAX);
  return err == WEFT_OK ? wefti_sock_limits(s->snapshot, ANSWER_MAX) : err;
}

weft_err weft_sub_create(const char *events_url, const char *snapshot_url, weft_sub **out,
                         weft_why *why)
{
  weft_sub *s = calloc(1, sizeof *s);
  if (s == NULL || init_locks(s) != WEFT_OK) {
    free(s);
    return weft_whyf(why, WEFT_E_NOMEM, "subscriber: out of memory");
  }
  wefti_feed_init(&s->feed);
  s->idle_at_ms = weft_clock_ms() + SETTLE_MS;
  s->ring = calloc(RING, sizeof(nng_msg *));
  weft_err err = s->ring == NULL ? WEFT_E_NOMEM : open_sockets(s);
  if (err != WEFT_OK) {
    (void)weft_whyf(why, err, "subscriber: cannot open its sockets");
  }
  if (err == WEFT_OK) {
    err = wefti_dial(s->snapshot, snapshot_url, false, &s->snapshot_dialed, why);
  }
  if (err == WEFT_OK) {
    err = wefti_dial(s->events, events_url, false, &s->events_dialed, why);
  }
  if (err != WEFT_OK) {
    weft_sub_destroy(s);
    return err;
  }
  nng_recv_aio(s->events, s->event_aio);
  *out = s;
  return WEFT_OK;
}

static void sub_free(void *arg)
{
  weft_sub *sub = arg;
  (void)pthread_cond_destroy(&sub->cond);
  (void)pthread_mutex_destroy(&sub->lock);
  free(sub);
}

void weft_sub_destroy(weft_sub *sub)
{
  if (sub == NULL) {
    return;
  }
  /* Stopped before closed: see rep.c. */
  if (sub->event_aio != NULL) {
    nng_aio_stop(sub->event_aio); /* waits for the callback */
  }
  if (sub->ask_aio != NULL) {
    nng_aio_stop(sub->ask_aio);
    nng_msg_free(nng_aio_get_msg(sub->ask_aio));
  }
  nng_aio_free(sub->event_aio);
  nng_aio_free(sub->ask_aio);
  nng_msg_free(sub->answer);
  while (sub->ring != NULL && sub->head != sub->tail) {
    nng_msg_free(sub->ring[sub->head++ % RING]);
  }
  free(sub->ring);
  wefti_feed_fini(&sub->feed);
  if (sub->snapshot.id != 0) {
    wefti_hang_up(sub->snapshot_dialed, sub->snapshot, NULL, NULL);
  }
  if (sub->events.id != 0) {
    wefti_hang_up(sub->events_dialed, sub->events, sub_free,
                  sub); /* a pipe callback may still come */
  } else {
    sub_free(sub);
  }
}
