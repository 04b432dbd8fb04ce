#include "acceptor.h"

#include "acceptor_priv.h"
#include "agreed.h"
#include "weft/buf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A body has a handful of members: one that has a million is no work for the loop. */
enum { MEMBERS_MAX = 1024 };
static const weft_json_limits limits = { .members = MEMBERS_MAX };

enum {
  SLICE = 256 * 1024, /* bytes of a body read per turn of the loop */
  QUERY_MS = 5000,    /* patience for what the engine answers by itself */
  GRACE_MS = 800,     /* the engine's own deadline comes first; I5 allows 1 s in all */
  GONE_MS = 1000      /* between two times that the engine is told of a hang-up */
};

/* A long body that is read slice by slice, so that others get their turns: first scanned,
 * then its info copied. */
typedef struct job {
  struct job *next;
  weft_http_call *call; /* heap copy */
  uint64_t came_ms;
  weft_json_scan *scan;
  size_t at;      /* bytes scanned */
  uint64_t timer; /* the next slice */
  weft_buf *info; /* NULL while the scan is not done */
  size_t copied;  /* bytes of info */
  wefti_walk walk;
  wefti_query query;
  wefti_fields fields;
} job;

typedef struct acceptor {
  wefti_acceptor_args args;
  wefti_acceptor_counts counts;
  wefti_open_table open;
  job *jobs;
  uint64_t gone_timer; /* 0: no open call's client has hung up */
  uint64_t salt;       /* callers of several acceptors must not meet in the engine */
} acceptor;

/* ---- to the engine */

static uint32_t patience(const wefti_request *rq)
{
  if (!wefti_route_fact_of(rq->call->route)->mutates) {
    return rq->call->route == WEFTI_ROUTE_WEIGHTS ? WEFTI_WEIGHTS_QUERY_MS : QUERY_MS;
  }
  return rq->query->timeout_ms > 0 ? rq->query->timeout_ms + GRACE_MS
                                   : WEFTI_CLIENT_LEAVES_MS;
}

static uint64_t caller_of(const acceptor *self, uint64_t peer)
{
  const uint64_t caller = peer + self->salt;
  return peer == 0 ? 0 : caller == 0 ? 1 : caller;
}

static void forward(weft_ctx *ctx, acceptor *self, const wefti_request *rq)
{
  const weft_http_call *call = rq->call;
  const bool mutates = wefti_route_fact_of(call->route)->mutates;
  wefti_open open = { .id = call->id,
                      .peer = mutates ? call->peer : 0,
                      .route = call->route,
                      .patience_ms = patience(rq),
                      .asked_ms = weft_now_ms(ctx) };
  if (call->route == WEFTI_ROUTE_LABEL) {
    open.echo = weft_buf_create(rq->fields->version.text, rq->fields->version.len);
    if (open.echo == NULL) {
      wefti_reply_nomem(&self->args.ops, call->id);
      return;
    }
  }
  weft_msg *m = NULL;
  if (wefti_open_reserve(ctx, &self->open) != WEFT_OK ||
      (m = wefti_request_message(ctx, rq)) == NULL) {
    weft_buf_unref(open.echo);
    wefti_reply_nomem(&self->args.ops, call->id);
    return;
  }
  open.corr = weft_ask(ctx, self->args.engine, m, open.patience_ms);
  wefti_open_add(&self->open, &open);
  self->counts.forwarded++;
}

/* ---- requests */

static void refuse(acceptor *self, const weft_http_call *call, const wefti_problem *bad)
{
  self->counts.refused++;
  wefti_reply_problem(&self->args.ops, call->id, bad);
}

/* What query and body say.  false: answered. */
static bool read_request(acceptor *self, const weft_http_call *call,
                         const wefti_body *body, wefti_query *query, wefti_fields *fields)
{
  wefti_problem bad = { 0 };
  if (!wefti_query_read(call->route, call->query.len > 0 ? call->query.p : "", query,
                        &bad)) {
    refuse(self, call, &bad);
    return false;
  }
  const weft_err err = wefti_body_read(call->route, body, fields, &bad);
  if (err == WEFT_E_NOMEM) {
    wefti_reply_nomem(&self->args.ops, call->id);
    return false;
  }
  if (err != WEFT_OK) {
    refuse(self, call, &bad);
    return false;
  }
  if (call->route == WEFTI_ROUTE_CHECKER && fields->action == WEFT_CHECK_RESET &&
      !self->args.allow_weight_reset) {
    wefti_problem_say(
        &bad, 403, "Forbidden",
        "weight_checker: reset destroys the live weights; start the server with "
        "--allow-weight-reset to permit it");
    refuse(self, call, &bad);
    return false;
  }
  return true;
}

static void refuse_children(acceptor *self, const weft_http_call *call)
{
  wefti_problem bad = { 0 };
  wefti_walk_problem(call->route, &bad);
  refuse(self, call, &bad);
}

/* A whole request; scan is NULL when there is no body. */
static void handle(weft_ctx *ctx, acceptor *self, const weft_http_call *call,
                   const weft_json_scan *scan, weft_err scanned)
{
  wefti_query query;
  wefti_fields fields;
  wefti_body body = { .scan = scan, .scanned = scanned };
  if (scan != NULL) {
    body.text = call->body->data;
    body.len = call->body->len;
  }
  if (!read_request(self, call, &body, &query, &fields)) {
    return;
  }
  wefti_request rq = { .call = call,
                       .query = &query,
                       .fields = &fields,
                       .caller = caller_of(self, call->peer) };
  if (wefti_reply_locally(&self->args, &rq)) {
    return;
  }
  if (fields.info.kind != WEFT_JSON_NONE) {
    wefti_walk walk = { .first = fields.each };
    const uint8_t *info = body.text + fields.info.at;
    if (fields.each != 0 && !wefti_walk_on(&walk, info, fields.info.len)) {
      refuse_children(self, call);
      return;
    }
    rq.info = weft_buf_create(info, fields.info.len);
    if (rq.info == NULL) {
      wefti_reply_nomem(&self->args.ops, call->id);
      return;
    }
  }
  forward(ctx, self, &rq);
  weft_buf_unref(rq.info);
}

/* ---- long bodies */

static void job_free(weft_ctx *ctx, job *j)
{
  weft_timer_cancel(ctx, j->timer);
  weft_msg_drop(weft_messages(), &j->call->h);
  weft_json_scan_destroy(j->scan);
  weft_buf_unref(j->info);
  weft_free(ctx, j);
}

typedef enum step { STEP_MORE, STEP_DONE } step;

/* The scan is at its end: answers, or prepares the copy. */
static step job_scanned(weft_ctx *ctx, acceptor *self, job *j, weft_err scanned)
{
  const wefti_body body = { .text = j->call->body->data,
                            .len = j->call->body->len,
                            .scan = j->scan,
                            .scanned = scanned };
  if (!read_request(self, j->call, &body, &j->query, &j->fields)) {
    return STEP_DONE;
  }
  if (j->fields.info.len <= SLICE) {
    handle(ctx, self, j->call, j->scan, scanned);
    return STEP_DONE;
  }
  j->walk.first = j->fields.each;
  j->info = weft_buf_create(NULL, j->fields.info.len);
  if (j->info == NULL) {
    wefti_reply_nomem(&self->args.ops, j->call->id);
    return STEP_DONE;
  }
  return STEP_MORE;
}

static step job_scan(weft_ctx *ctx, acceptor *self, job *j)
{
  const weft_buf *body = j->call->body;
  const size_t left = body->len - j->at;
  const size_t n = left < SLICE ? left : SLICE;
  weft_err scanned = weft_json_scan_feed(j->scan, body->data + j->at, n);
  j->at += n;
  if (scanned == WEFT_OK && j->at < body->len) {
    return STEP_MORE;
  }
  if (scanned == WEFT_OK) {
    scanned = weft_json_scan_end(j->scan);
  }
  return job_scanned(ctx, self, j, scanned);
}

static step job_copy(weft_ctx *ctx, acceptor *self, job *j)
{
  const uint8_t *from = j->call->body->data + j->fields.info.at + j->copied;
  const size_t left = j->info->len - j->copied;
  const size_t n = left < SLICE ? left : SLICE;
  if (j->fields.each != 0 && !wefti_walk_on(&j->walk, from, n)) {
    refuse_children(self, j->call);
    return STEP_DONE;
  }
  memcpy(j->info->data + j->copied, from, n);
  j->copied += n;
  if (j->copied < j->info->len) {
    return STEP_MORE;
  }
  const wefti_request rq = { .call = j->call,
                             .query = &j->query,
                             .fields = &j->fields,
                             .info = j->info,
                             .caller = caller_of(self, j->call->peer) };
  forward(ctx, self, &rq);
  return STEP_DONE;
}

/* One slice; frees j when that was the last.  true: j waits for its timer. */
static bool job_run(weft_ctx *ctx, acceptor *self, job *j)
{
  const step next = j->info == NULL ? job_scan(ctx, self, j) : job_copy(ctx, self, j);
  if (next == STEP_MORE) {
    j->timer = weft_timer_start(ctx, 0, 0);
    if (j->timer != 0) {
      return true;
    }
    wefti_reply_nomem(&self->args.ops, j->call->id);
  }
  job_free(ctx, j);
  return false;
}

static void on_slice(weft_ctx *ctx, acceptor *self, uint64_t timer)
{
  for (job **at = &self->jobs; *at != NULL; at = &(*at)->next) {
    job *j = *at;
    if (j->timer != timer) {
      continue;
    }
    *at = j->next;
    if (job_run(ctx, self, j)) {
      j->next = self->jobs;
      self->jobs = j;
    }
    return;
  }
}

static void job_begin(weft_ctx *ctx, acceptor *self, const weft_http_call *call)
{
  job *j = weft_alloc(ctx, sizeof *j);
  if (j == NULL) {
    wefti_reply_nomem(&self->args.ops, call->id);
    return;
  }
  weft_msg *copy = weft_msg_dup(weft_messages(), &call->h);
  if (copy == NULL || weft_json_scan_create(&limits, &j->scan) != WEFT_OK) {
    weft_msg_drop(weft_messages(), copy);
    weft_free(ctx, j);
    wefti_reply_nomem(&self->args.ops, call->id);
    return;
  }
  j->call = (weft_http_call *)copy;
  j->came_ms = weft_now_ms(ctx);
  if (job_run(ctx, self, j)) {
    j->next = self->jobs;
    self->jobs = j;
  }
}

/* ---- messages */

static void on_http_call(weft_ctx *ctx, acceptor *self, const weft_http_call *call)
{
  if (call->route == WEFTI_ROUTE_INFO) { /* the hot path: there is nothing to read */
    const wefti_query none = { 0 };
    const wefti_request rq = { .call = call, .query = &none };
    forward(ctx, self, &rq);
    return;
  }
  if (call->body == NULL || call->body->len == 0 ||
      !wefti_route_reads_body(call->route)) {
    handle(ctx, self, call, NULL, WEFT_OK);
    return;
  }
  if (call->body->len > SLICE) {
    job_begin(ctx, self, call);
    return;
  }
  weft_json_scan *scan;
  if (weft_json_scan_create(&limits, &scan) != WEFT_OK) {
    wefti_reply_nomem(&self->args.ops, call->id);
    return;
  }
  weft_err scanned = weft_json_scan_feed(scan, call->body->data, call->body->len);
  if (scanned == WEFT_OK) {
    scanned = weft_json_scan_end(scan);
  }
  handle(ctx, self, call, scan, scanned);
  weft_json_scan_destroy(scan);
}

/* What nobody waits for need not be read to its end. */
static void jobs_drop(weft_ctx *ctx, acceptor *self, uint64_t peer)
{
  for (job **at = &self->jobs; *at != NULL;) {
    job *j = *at;
    if (j->call->peer != peer) {
      at = &j->next;
      continue;
    }
    *at = j->next;
    job_free(ctx, j);
  }
}

static void tell_gone(weft_ctx *ctx, acceptor *self, uint64_t peer)
{
  const weft_client_gone m = {
    .h = { .type = WEFT_MSG_CLIENT_GONE, .flags = WEFT_MSG_F_RESERVED },
    .caller = caller_of(self, peer),
  };
  weft_msg *copy = weft_msg_make(ctx, &m.h);
  if (copy != NULL) {
    copy->flags |= WEFT_MSG_F_RESERVED; /* it lets the next trainer in */
  }
  if (weft_send(ctx, self->args.engine, copy) != WEFT_OK) {
    weft_log(ctx, WEFT_LOG_WARN, "engine not told that a caller is gone peer=%" PRIu64,
             peer);
    return;
  }
  self->counts.forwarded++;
}

/* Only a call in flight has a use for knowing it: an answered one is over. */
static void on_http_gone(weft_ctx *ctx, acceptor *self, const weft_http_gone *gone)
{
  jobs_drop(ctx, self, gone->peer);
  if (!wefti_open_mark_gone(&self->open, gone->peer)) {
    return;
  }
  tell_gone(ctx, self, gone->peer);
  if (self->gone_timer == 0) {
    self->gone_timer = weft_timer_start(ctx, GONE_MS, 0);
  }
}

/* For as long as the call is open: on a link, the news may have come before it, or have
 * got lost, and then the call would keep the next trainer out until its deadline. */
static void tell_gone_again(weft_ctx *ctx, acceptor *self)
{
  size_t at = 0;
  uint64_t peer = wefti_open_next_gone(&self->open, &at);
  self->gone_timer = peer == 0 ? 0 : weft_timer_start(ctx, GONE_MS, 0);
  for (; peer != 0; peer = wefti_open_next_gone(&self->open, &at)) {
    tell_gone(ctx, self, peer);
  }
}

static void on_timer(weft_ctx *ctx, acceptor *self, const weft_timer_msg *m)
{
  if (m->id == self->gone_timer) {
    tell_gone_again(ctx, self);
  } else {
    on_slice(ctx, self, m->id);
  }
}

static void on_client_done(weft_ctx *ctx, acceptor *self, const weft_client_done *done)
{
  wefti_open open;
  if (wefti_open_take(&self->open, done->h.corr, &open)) {
    wefti_reply_done(&self->args.ops, &open, done, weft_now_ms(ctx));
    weft_buf_unref(open.echo);
  }
}

static void on_ask_failed(weft_ctx *ctx, acceptor *self,
                          const weft_ask_failed_msg *failed)
{
  wefti_open open;
  if (!wefti_open_take(&self->open, failed->h.corr, &open)) {
    return;
  }
  const weft_err reason = (weft_err)failed->reason;
  if (wefti_route_fact_of(open.route)->mutates) {
    weft_log(ctx, WEFT_LOG_WARN, "%s: no answer from the engine: %s",
             wefti_route_fact_of(open.route)->name, weft_strerror(reason));
  }
  wefti_reply_silence(&self->args.ops, &open, reason, weft_now_ms(ctx));
  weft_buf_unref(open.echo);
}

/* Nobody is left without an answer. */
static void on_stop(weft_ctx *ctx, acceptor *self)
{
  const uint64_t now = weft_now_ms(ctx);
  for (size_t i = 0; i < self->open.cap; i++) {
    if (self->open.slots[i].corr != 0) {
      wefti_reply_silence(&self->args.ops, &self->open.slots[i], WEFT_E_CLOSED, now);
    }
  }
  for (const job *j = self->jobs; j != NULL; j = j->next) {
    const wefti_open open = { .id = j->call->id,
                              .route = j->call->route,
                              .asked_ms = j->came_ms };
    wefti_reply_silence(&self->args.ops, &open, WEFT_E_CLOSED, now);
  }
  weft_stop(ctx, WEFT_OK);
}

static weft_err acceptor_init(weft_ctx *ctx, void *state, const void *args)
{
  acceptor *self = state;
  self->args = *(const wefti_acceptor_args *)args;
  self->args.tp = self->args.tp == 0 ? 1 : self->args.tp;
  self->args.pp = self->args.pp == 0 ? 1 : self->args.pp;
  self->args.dp_size = self->args.dp_size == 0 ? 1 : self->args.dp_size;
  self->salt = weft_random(ctx);
  return WEFT_OK;
}

static void acceptor_fini(weft_ctx *ctx, void *state)
{
  acceptor *self = state;
  while (self->jobs != NULL) {
    job *next = self->jobs->next;
    job_free(ctx, self->jobs);
    self->jobs = next;
  }
  wefti_open_fini(ctx, &self->open);
}

static weft_err acceptor_on(weft_ctx *ctx, void *state, const weft_msg *msg)
{
  acceptor *self = state;
  switch (msg->type) {
  case WEFT_MSG_HTTP_REQUEST:
    on_http_call(ctx, self, (const weft_http_call *)msg);
    return WEFT_OK;
  case WEFT_MSG_HTTP_GONE:
    on_http_gone(ctx, self, (const weft_http_gone *)msg);
    return WEFT_OK;
  case WEFT_MSG_CLIENT_DONE:
    on_client_done(ctx, self, (const weft_client_done *)msg);
    return WEFT_OK;
  case WEFT_MSG_ASK_FAILED:
    on_ask_failed(ctx, self, (const weft_ask_failed_msg *)msg);
    return WEFT_OK;
  case WEFT_MSG_TIMER:
    on_timer(ctx, self, (const weft_timer_msg *)msg);
    return WEFT_OK;
  case WEFT_MSG_DOWN: /* questions to the engine end by themselves */
    return WEFT_OK;
  case WEFT_MSG_STOP:
    on_stop(ctx, self);
    return WEFT_OK;
  default:
    return WEFT_E_STATE; /* not ours: a bug in the sender */
  }
}

const weft_actor_class wefti_acceptor_class = {
  .name = "acceptor",
  .state_size = sizeof(acceptor),
  .init = acceptor_init,
  .fini = acceptor_fini,
  .on = acceptor_on,
};

const wefti_acceptor_counts *wefti_acceptor_counts_of(const void *self)
{
  return &((const acceptor *)self)->counts;
}
