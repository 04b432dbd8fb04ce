#include "weft/link.h"

#include "dial_gate.h"
#include "frame.h"
#include "nng_util.h"

#include <nng/protocol/reqrep0/req.h>
#include <stdlib.h>

enum {
  CONNECT_MS = 5000, /* default */
  OPEN_MAX = 4096,   /* questions under way */
  IDLE_MAX = 32,     /* contexts kept for the next questions */
  TAG_LOOK = 1,      /* timers: look at the queue; */
  TAG_CONNECT = 2    /* give up connecting */
};

typedef struct link_actor link_actor;

/* What nng's pipe callbacks use; may outlive the link by what nng_close takes.  The flags
 * are read by the link; seq_cst, as the wake orders them. */
typedef struct pipe_news {
  wefti_guard guard;
  atomic_bool had_pipe, closed;
} pipe_news;

/* One request.  Belongs to nng's callback from send until it is in the queue, else to the
 * link; the queue and nng's locks order the two. */
typedef struct question {
  wefti_node node; /* first */
  link_actor *link;
  struct question *next, **pprev; /* open or idle list, the link's */
  nng_ctx ctx;
  bool has_ctx;
  bool sent; /* the peer may have it */
  bool late; /* given up at its deadline */
  nng_aio *aio;
  weft_return asker;
  uint64_t due_ms;
  uint16_t asked;
  int rv;
  nng_msg *answer;
} question;

struct link_actor {
  nng_socket sock;
  wefti_dialed *dialed;
  bool has_sock, broken;
  weft_runtime *rt;
  weft_actor_id self;
  const weft_catalogue *cat;
  uint32_t frame_max;
  question *open, *idle;
  unsigned open_count, idle_count;
  uint64_t connect_timer;
  wefti_queue done;
  pipe_news *news;
};

/* ---- on threads of nng */

static void on_aio(void *arg)
{
  question *q = arg;
  const int rv = nng_aio_result(q->aio);
  nng_msg *msg = nng_aio_get_msg(q->aio);
  nng_aio_set_msg(q->aio, NULL);
  if (rv == 0 && msg == NULL) { /* sent; the context now waits for the answer */
    q->sent = true;
    nng_ctx_recv(q->ctx, q->aio);
    return;
  }
  if (rv != 0) {
    nng_msg_free(msg); /* the request comes back when it could not be sent */
    msg = NULL;
  }
  q->rv = rv;
  q->answer = msg;
  if (wefti_queue_push(&q->link->done, &q->node)) {
    (void)wefti_wake_post(q->link->rt, q->link->self); /* or at the next message */
  }
}

static void on_pipe(nng_pipe pipe, nng_pipe_ev ev, void *arg)
{
  pipe_news *n = arg;
  if (ev == NNG_PIPE_EV_ADD_PRE) {
    if (atomic_exchange(&n->had_pipe, true)) {
      (void)nng_pipe_close(pipe); /* whoever answers there now is another process */
    }
    return;
  }
  atomic_store(&n->closed, true);
  wefti_guard_call(&n->guard);
}

static void wake(void *arg)
{
  const link_actor *l = arg;
  (void)wefti_wake_post(l->rt, l->self); /* or at the next message */
}

static void news_free(void *arg)
{
  pipe_news *n = arg;
  wefti_guard_fini(&n->guard);
  free(n);
}

/* ---- questions */

static void list_add(question **list, question *q)
{
  q->next = *list;
  if (q->next != NULL) {
    q->next->pprev = &q->next;
  }
  q->pprev = list;
  *list = q;
}

static void list_remove(question *q)
{
  *q->pprev = q->next;
  if (q->next != NULL) {
    q->next->pprev = q->pprev;
  }
}

/* The first of a list that has one. */
static question *list_pop(question **list)
{
  question *q = *list;
  *list = q->next;
  if (q->next != NULL) {
    q->next->pprev = list;
  }
  return q;
}

/* Neither its callback nor its context is used after this.  In this order: nng's timer
 * thread may hold the context until the aio is freed. */
static void question_quiet(question *q)
{
  if (q->aio != NULL) {
    nng_aio_stop(q->aio); /* waits for the callback: a pending aio is never freed */
    nng_msg_free(nng_aio_get_msg(q->aio));
    nng_aio_free(q->aio);
    q->aio = NULL;
  }
  if (q->has_ctx) {
    q->has_ctx = false;
    (void)nng_ctx_close(q->ctx);
  }
}

static void question_free(question *q)
{
  question_quiet(q);
  nng_msg_free(q->answer);
  free(q);
}

static question *question_get(link_actor *l)
{
  question *q = NULL;
  if (l->idle != NULL) {
    q = list_pop(&l->idle);
    l->idle_count--;
  } else {
    q = calloc(1, sizeof *q);
    if (q == NULL) {
      return NULL;
    }
    q->link = l;
    int rv = nng_ctx_open(&q->ctx, l->sock);
    q->has_ctx = rv == 0;
    if (rv == 0) {
      rv = nng_ctx_set_ms(q->ctx, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    }
    if (rv == 0) {
      rv = nng_aio_alloc(&q->aio, on_aio, q);
    }
    if (rv != 0) {
      question_free(q);
      return NULL;
    }
  }
  list_add(&l->open, q);
  l->open_count++;
  return q;
}

/* Of a question that is in no list any more. */
static void question_put(link_actor *l, question *q)
{
  l->open_count--;
  if (l->idle_count >= IDLE_MAX || q->aio == NULL) {
    question_free(q);
    return;
  }
  list_add(&l->idle, q);
  l->idle_count++;
}

static weft_err put_question(weft_ctx *ctx, link_actor *l, const weft_msg *msg)
{
  const uint64_t now = weft_now_ms(ctx);
  const weft_return asker = weft_return_of(msg);
  if (msg->due_ms != 0 && msg->due_ms <= now) {
    return wefti_fail(ctx, asker, msg->type, WEFT_E_TIMEOUT);
  }
  if (l->open_count >= OPEN_MAX) {
    return wefti_fail(ctx, asker, msg->type, WEFT_E_FULL);
  }
  weft_err err;
  nng_msg *frame = wefti_frame_encode(l->cat, msg, now, l->frame_max, &err);
  if (frame == NULL) {
    return wefti_fail(ctx, asker, msg->type, err);
  }
  question *q = question_get(l);
  if (q == NULL) {
    nng_msg_free(frame);
    return wefti_fail(ctx, asker, msg->type, WEFT_E_NOMEM);
  }
  q->asker = asker;
  q->sent = false;
  q->late = false;
  q->asked = msg->type;
  q->due_ms = msg->due_ms;
  /* The asker's own timer tells it that time is over; see give_up_late. */
  nng_aio_set_timeout(q->aio, NNG_DURATION_INFINITE);
  nng_aio_set_msg(q->aio, frame);
  nng_ctx_send(q->ctx, q->aio);
  return WEFT_OK;
}

/* The asker trusts what it hears: a peer may not speak for anybody else. */
static bool is_answer(const link_actor *l, uint16_t asked, const weft_msg *msg)
{
  const weft_msg_desc *of = weft_msg_desc_of(l->cat, asked);
  const weft_msg_desc *answer = weft_msg_desc_of(l->cat, msg->type);
  return of != NULL && answer != NULL && answer->from == of->to && answer->to == of->from;
}

/* What the peer answered goes to the asker. */
static weft_err hand_over(weft_ctx *ctx, link_actor *l, const question *q)
{
  const uint8_t *data = nng_msg_body(q->answer);
  const size_t len = nng_msg_len(q->answer);
  weft_err err;
  uint16_t asked;
  if (q->asker.corr == 0) {
    return WEFT_OK; /* a plain message: acknowledged, or refused, and that is all */
  }
  if (len > l->frame_max) {
    return wefti_fail(ctx, q->asker, q->asked, WEFT_E_LIMIT);
  }
  if (wefti_error_parse(data, len, &err, &asked)) {
    return wefti_fail(ctx, q->asker, q->asked, err);
  }
  weft_msg *msg;
  err = weft_msg_decode(l->cat, data, len, weft_now_ms(ctx), &msg);
  if (err != WEFT_OK) {
    weft_log(ctx, WEFT_LOG_DEBUG, "answer cannot be read: %s bytes=%zu",
             weft_err_name(err), len);
    return wefti_fail(ctx, q->asker, q->asked,
                      err == WEFT_E_NOMEM ? WEFT_E_LOST : WEFT_E_PROTO);
  }
  if (!is_answer(l, q->asked, msg)) {
    weft_log(ctx, WEFT_LOG_DEBUG, "message type %u is no answer to type %u",
             (unsigned)msg->type, (unsigned)q->asked);
    weft_msg_drop(l->cat, msg);
    return wefti_fail(ctx, q->asker, q->asked, WEFT_E_PROTO);
  }
  err = weft_reply(ctx, q->asker, msg);
  return err == WEFT_E_NOMEM ? err : WEFT_OK;
}

static weft_err reason_of(const question *q)
{
  const weft_err err = q->late ? WEFT_E_TIMEOUT : wefti_nng_err(q->rv);
  if (q->sent && err == WEFT_E_NOMEM) {
    return WEFT_E_LOST;
  }
  return err == WEFT_E_TIMEOUT || err == WEFT_E_NOMEM || err == WEFT_E_LIMIT
             ? err
             : WEFT_E_DOWN;
}

static weft_err drain(weft_ctx *ctx, link_actor *l)
{
  weft_err worst = WEFT_OK;
  wefti_node *next;
  for (wefti_node *n = wefti_queue_take(&l->done); n != NULL; n = next) {
    next = n->next;
    question *q = (question *)(void *)n; /* node is the first member */
    const weft_err err = q->rv == 0 ? hand_over(ctx, l, q)
                                    : wefti_fail(ctx, q->asker, q->asked, reason_of(q));
    worst = err != WEFT_OK ? err : worst;
    if (q->rv == NNG_ECONNRESET || q->rv == NNG_ECLOSED) {
      l->broken = true; /* seen here first; news may be gone already */
    }
    nng_msg_free(q->answer);
    q->answer = NULL;
    list_remove(q);
    question_put(l, q);
  }
  return worst;
}

/* Questions whose deadline is over are no longer waited for.  Here and not by nng's
 * timers: in a process that was stopped those fire before the answers that lie ready are
 * read. */
static weft_err give_up_late(weft_ctx *ctx, link_actor *l)
{
  const uint64_t now = weft_now_ms(ctx);
  for (question *q = l->open; q != NULL; q = q->next) {
    if (q->due_ms != 0 && q->due_ms <= now && q->aio != NULL) {
      q->late = true;
      question_quiet(q); /* its callback has queued it, but see below */
    }
  }
  const weft_err err = drain(ctx, l);
  question *next;
  for (question *q = l->open; q != NULL; q = next) {
    next = q->next;
    if (q->aio == NULL) { /* between sending and receiving: no callback */
      list_remove(q);
      (void)wefti_fail(ctx, q->asker, q->asked, WEFT_E_TIMEOUT);
      question_put(l, q);
    }
  }
  return err;
}

/* From here on nothing of this link reaches the peer.  Contexts go before the socket: nng
 * 1.5.2 frees it under one that is still in use, also by a callback. */
static void hang_up(link_actor *l)
{
  if (!l->has_sock) {
    return;
  }
  l->has_sock = false;
  for (question *q = l->open; q != NULL; q = q->next) {
    question_quiet(q);
  }
  for (question *q = l->idle; q != NULL; q = q->next) {
    question_quiet(q);
  }
  wefti_guard_clear(&l->news->guard);
  wefti_hang_up(l->dialed, l->sock, news_free, l->news);
}

static weft_err end(weft_ctx *ctx, link_actor *l)
{
  hang_up(l);
  (void)drain(ctx, l);      /* answers that had arrived, and DOWN for the rest */
  while (l->open != NULL) { /* stopped between sending and receiving */
    question *q = list_pop(&l->open);
    (void)wefti_fail(ctx, q->asker, q->asked, WEFT_E_DOWN);
    question_put(l, q);
  }
  return WEFT_E_DOWN;
}

/* ---- the actor */

static weft_err set_up(link_actor *l)
{
  l->news = calloc(1, sizeof *l->news);
  if (l->news == NULL || !wefti_guard_init(&l->news->guard, wake, l)) {
    free(l->news);
    return WEFT_E_NOMEM;
  }
  int rv = nng_req0_open(&l->sock);
  if (rv != 0) {
    news_free(l->news);
    return wefti_nng_err(rv);
  }
  l->has_sock = true;
  rv = nng_socket_set_ms(l->sock, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
  rv = rv == 0 ? nng_pipe_notify(l->sock, NNG_PIPE_EV_ADD_PRE, on_pipe, l->news) : rv;
  rv = rv == 0 ? nng_pipe_notify(l->sock, NNG_PIPE_EV_REM_POST, on_pipe, l->news) : rv;
  return wefti_nng_err(rv);
}

static weft_err link_init(weft_ctx *ctx, void *self, const void *args)
{
  link_actor *l = self;
  const weft_link_opts *o = args;
  l->rt = weft_ctx_runtime(ctx);
  l->self = weft_self(ctx);
  if (o->size != sizeof *o || l->rt == NULL) {
    return WEFT_E_INVAL;
  }
  l->cat = weft_runtime_catalogue(l->rt);
  l->frame_max = o->frame_max == 0 ? WEFTI_FRAME_MAX : o->frame_max;
  weft_err err = set_up(l);
  if (err == WEFT_OK) {
    err = wefti_sock_limits(l->sock, l->frame_max);
  }
  l->connect_timer =
      weft_timer_start(ctx, o->connect_ms == 0 ? CONNECT_MS : o->connect_ms, TAG_CONNECT);
  /* What nng posts while init runs finds no actor yet: look once afterwards. */
  if (err == WEFT_OK &&
      (l->connect_timer == 0 || weft_timer_start(ctx, 0, TAG_LOOK) == 0)) {
    err = WEFT_E_NOMEM;
  }
  weft_why why;
  if (err == WEFT_OK) {
    err = wefti_dial(l->sock, o->url, true, &l->dialed, &why);
    if (err != WEFT_OK) {
      weft_log(ctx, WEFT_LOG_DEBUG, "%s", why.text);
    }
  }
  return err;
}

static void link_fini(weft_ctx *ctx, void *self)
{
  (void)ctx;
  link_actor *l = self;
  hang_up(l);
  while (l->open != NULL) {
    question_free(list_pop(&l->open));
  }
  while (l->idle != NULL) {
    question_free(list_pop(&l->idle));
  }
}

static weft_err on_timer(weft_ctx *ctx, link_actor *l, const weft_timer_msg *msg)
{
  if (msg->tag == TAG_CONNECT) {
    return atomic_load(&l->news->had_pipe) ? WEFT_OK : end(ctx, l);
  }
  const weft_err err = give_up_late(ctx, l);
  return weft_timer_start(ctx, WEFTI_LOOK_MS, TAG_LOOK) == 0 ? WEFT_E_NOMEM : err;
}

/* The connection is gone, and msg came too late. */
static weft_err too_late(weft_ctx *ctx, link_actor *l, const weft_msg *msg)
{
  if ((msg->flags & WEFT_MSG_F_REPLY) == 0) {
    (void)wefti_fail(ctx, weft_return_of(msg), msg->type, WEFT_E_DOWN);
  }
  return end(ctx, l);
}

static weft_err link_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  link_actor *l = self;
  weft_err err = drain(ctx, l);
  if (err != WEFT_OK) {
    return err; /* an asker could not be told: its question ends with this link */
  }
  if (l->broken || atomic_load(&l->news->closed)) {
    return too_late(ctx, l, msg);
  }
  switch (msg->type) {
  case WEFTI_MSG_WAKE:
  case WEFT_MSG_DOWN:
  case WEFT_MSG_ASK_FAILED:
    return WEFT_OK;
  case WEFT_MSG_TIMER:
    return on_timer(ctx, l, (const weft_timer_msg *)(const void *)msg);
  case WEFT_MSG_STOP:
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    return (msg->flags & WEFT_MSG_F_REPLY) != 0 ? WEFT_OK : put_question(ctx, l, msg);
  }
}

static const weft_actor_class link_class = { .name = "link",
                                             .state_size = sizeof(link_actor),
                                             .init = link_init,
                                             .fini = link_fini,
                                             .on = link_on };

weft_err weft_link_spawn(weft_ctx *ctx, const weft_link_opts *opts, weft_actor_id *out)
{
  return weft_spawn(ctx, &link_class, opts, NULL, out);
}

weft_err weft_link_spawn_on(weft_runtime *rt, unsigned loop, const weft_link_opts *opts,
                            weft_actor_id *out)
{
  return weft_runtime_spawn(rt, loop, &link_class, opts, NULL, out);
}
