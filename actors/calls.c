#include "calls.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
  QUERY_MS = 5000,     /* a query's patience when the caller names none */
  GRACE_MS = 1500,     /* beyond the operation's own deadline */
  LONGEST_MS = 3600000 /* no call waits longer, whatever the engine's deadlines are */
};

typedef struct call_record {
  struct call_record *next;
  uint64_t number; /* the book's, travels as the posted message's corr */
  uint64_t corr;   /* of the actor's question; the loop's thread only */
  weft_result_fn *fn;
  void *arg;
} call_record;

struct wefti_calls {
  weft_runtime *rt;
  weft_actor_id actor;
  pthread_mutex_t lock; /* over the fields below */
  call_record *open;
  uint64_t next_number;
  bool closed; /* the actor has ended: nothing more comes in */
  bool has_thread;
  pthread_t thread; /* that runs the callbacks */
};

/* ---- results */

static const char *text_of(weft_str s)
{
  return s.p ? s.p : "";
}

static void result_from(weft_result *out, const weft_client_done *done)
{
  *out = (weft_result){
    .err = (weft_err)done->err,
    .outcome = (weft_outcome)done->outcome,
    .sequence = done->sequence,
    .elapsed_ms = done->elapsed_ms,
    .message = text_of(done->message),
    .operation = text_of(done->operation),
    .phase = text_of(done->phase),
    .culprits = text_of(done->culprits),
    .session = text_of(done->session),
    .version = text_of(done->version),
    .fenced = text_of(done->fenced),
    .body = done->body ? (const char *)done->body->data : "",
    .body_len = done->body ? done->body->len : 0,
  };
}

static void result_failed(weft_result *out, weft_err err, weft_outcome outcome)
{
  *out = (weft_result){ .err = err,
                        .outcome = outcome,
                        .message = weft_strerror(err),
                        .operation = "",
                        .phase = "",
                        .culprits = "",
                        .session = "",
                        .version = "",
                        .fenced = "",
                        .body = "" };
}

/* A copy in one block. */
static weft_result *result_dup(const weft_result *from)
{
  const char *texts[] = { from->message, from->operation, from->phase, from->culprits,
                          from->session, from->version,   from->fenced };
  enum { TEXTS = sizeof texts / sizeof texts[0] };
  size_t need = sizeof(weft_result) + from->body_len + 1;
  for (size_t i = 0; i < TEXTS; i++) {
    need += strlen(texts[i]) + 1;
  }
  weft_result *copy = malloc(need);
  if (!copy) {
    return NULL;
  }
  char *at = (char *)(copy + 1);
  for (size_t i = 0; i < TEXTS; i++) {
    const size_t n = strlen(texts[i]) + 1;
    memcpy(at, texts[i], n);
    texts[i] = at;
    at += n;
  }
  memcpy(at, from->body, from->body_len);
  at[from->body_len] = '\0';
  *copy = *from;
  copy->message = texts[0];
  copy->operation = texts[1];
  copy->phase = texts[2];
  copy->culprits = texts[3];
  copy->session = texts[4];
  copy->version = texts[5];
  copy->fenced = texts[6];
  copy->body = at;
  return copy;
}

void weft_result_free(weft_result *result)
{
  free(result);
}

/* ---- the book */

static weft_err book_add(wefti_calls *calls, weft_result_fn *fn, void *arg,
                         uint64_t *number)
{
  call_record *record = calloc(1, sizeof *record);
  if (record) {
    record->fn = fn;
    record->arg = arg;
    (void)pthread_mutex_lock(&calls->lock);
    const bool closed = calls->closed;
    *number = ++calls->next_number;
    record->number = *number;
    if (!closed) {
      record->next = calls->open;
      calls->open = record;
    }
    (void)pthread_mutex_unlock(&calls->lock);
    if (closed) {
      free(record);
      return WEFT_E_CLOSED;
    }
  }
  return record ? WEFT_OK : WEFT_E_NOMEM;
}

static call_record *book_take(wefti_calls *calls, uint64_t number, uint64_t corr)
{
  (void)pthread_mutex_lock(&calls->lock);
  call_record *found = NULL;
  for (call_record **at = &calls->open; *at; at = &(*at)->next) {
    if (number ? (*at)->number == number : (*at)->corr == corr) {
      found = *at;
      *at = found->next;
      break;
    }
  }
  (void)pthread_mutex_unlock(&calls->lock);
  return found;
}

static void book_set_corr(wefti_calls *calls, uint64_t number, uint64_t corr)
{
  (void)pthread_mutex_lock(&calls->lock);
  for (call_record *record = calls->open; record; record = record->next) {
    if (record->number == number) {
      record->corr = corr;
      break;
    }
  }
  (void)pthread_mutex_unlock(&calls->lock);
}

static void finish_record(call_record *record, const weft_result *result)
{
  if (record) {
    record->fn(record->arg, result);
    free(record);
  }
}

static void close_book(wefti_calls *calls)
{
  weft_result result;
  result_failed(&result, WEFT_E_CLOSED, WEFT_OUTCOME_UNKNOWN);
  (void)pthread_mutex_lock(&calls->lock);
  calls->closed = true;
  call_record *open = calls->open;
  calls->open = NULL;
  (void)pthread_mutex_unlock(&calls->lock);
  while (open) {
    call_record *record = open;
    open = record->next;
    finish_record(record, &result);
  }
}

/* ---- the actor */

typedef struct calls_actor {
  wefti_calls *calls;
  weft_actor_id engine;
} calls_actor;

static weft_err calls_init(weft_ctx *ctx, void *state, const void *args)
{
  *(calls_actor *)state = *(const calls_actor *)args;
  /* Its message comes on the loop's thread: that is where callbacks will run. */
  return weft_timer_start(ctx, 0, 0) ? WEFT_OK : WEFT_E_NOMEM;
}

static uint64_t patience_of(const weft_msg *msg)
{
  if (msg->type == WEFT_MSG_CLIENT_QUERY) {
    return msg->due_ms ? msg->due_ms : QUERY_MS;
  }
  return msg->due_ms ? msg->due_ms + GRACE_MS : LONGEST_MS;
}

static void note_thread(wefti_calls *calls)
{
  (void)pthread_mutex_lock(&calls->lock);
  calls->thread = pthread_self();
  calls->has_thread = true;
  (void)pthread_mutex_unlock(&calls->lock);
}

static weft_err calls_on(weft_ctx *ctx, void *state, const weft_msg *msg)
{
  calls_actor *self = state;
  weft_result result;
  switch (msg->type) {
  case WEFT_MSG_TIMER:
    note_thread(self->calls);
    return WEFT_OK;
  case WEFT_MSG_CLIENT_DONE:
    result_from(&result, (const weft_client_done *)msg);
    finish_record(book_take(self->calls, 0, msg->corr), &result);
    return WEFT_OK;
  case WEFT_MSG_ASK_FAILED: {
    const weft_ask_failed_msg *failed = (const weft_ask_failed_msg *)msg;
    const bool query = failed->asked == WEFT_MSG_CLIENT_QUERY;
    const weft_err reason = (weft_err)failed->reason;
    result_failed(&result, reason == WEFT_E_DOWN ? WEFT_E_CLOSED : reason,
                  query ? WEFT_OUTCOME_NONE : WEFT_OUTCOME_UNKNOWN);
    finish_record(book_take(self->calls, 0, msg->corr), &result);
    return WEFT_OK;
  }
  case WEFT_MSG_STOP:
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    break;
  }
  if (msg->type >= WEFT_MSG_USER_FIRST || msg->corr == 0) {
    return WEFT_OK;
  }
  weft_msg *copy = weft_msg_make(ctx, msg);
  if (copy) {
    copy->corr = 0;
    copy->due_ms = 0;
  }
  const uint64_t number = msg->corr;
  const uint64_t corr = weft_ask(ctx, self->engine, copy, patience_of(msg));
  book_set_corr(self->calls, number, corr);
  return WEFT_OK;
}

/* Whoever waits on another thread must not wait for an actor that is no more. */
static void calls_fini(weft_ctx *ctx, void *state)
{
  (void)ctx;
  const calls_actor *self = state;
  if (self->calls) {
    close_book(self->calls);
  }
}

static const weft_actor_class calls_class = { "calls", sizeof(calls_actor), calls_init,
                                              calls_fini, calls_on };

/* ---- requests */

static weft_str str_of(const char *text)
{
  return text ? (weft_str){ text, (uint32_t)strlen(text) } : (weft_str){ NULL, 0 };
}

typedef union any_call {
  weft_msg h;
  weft_client_init init;
  weft_client_start start;
  weft_client_update update;
  weft_client_finish finish;
  weft_client_label label;
  weft_client_abort abort;
  weft_client_pause pause;
  weft_client_query query;
} any_call;

#define FILL_CALL(call, request)                                                         \
  do {                                                                                   \
    (call)->timeout_ms = (request)->timeout_ms;                                          \
    (call)->idem_key = str_of((request)->idempotency_key);                               \
    (call)->body_hash = hash_of(request);                                                \
    (call)->session = str_of((request)->session);                                        \
  } while (0)

static uint64_t hash_bytes(uint64_t h, const void *data, size_t len)
{
  const uint8_t *p = data;
  for (size_t i = 0; i < len; i++) { /* FNV-1a */
    h = (h ^ p[i]) * 0x100000001b3U;
  }
  return h;
}

/* Tells a repeated idempotency key apart from a reused one. */
static uint64_t hash_of(const weft_request *r)
{
  if (!r->idempotency_key) {
    return 0;
  }
  const uint32_t head[] = { (uint32_t)r->op, r->strict, r->draft, r->version != NULL,
                            r->expected_version != NULL };
  uint64_t h = hash_bytes(0xcbf29ce484222325U, head, sizeof head);
  h = hash_bytes(h, r->json ? r->json : "", r->json ? r->json_len : 0);
  h = hash_bytes(h, r->version ? r->version : "",
                 r->version ? strlen(r->version) + 1 : 0);
  return hash_bytes(h, r->expected_version ? r->expected_version : "",
                    r->expected_version ? strlen(r->expected_version) : 0);
}

static void fill_query(any_call *call, weft_query what)
{
  call->query.h.type = WEFT_MSG_CLIENT_QUERY;
  call->query.what = what;
}

/* Builds the message on the caller's stack; info is a buffer made of request->json. */
static weft_err fill(any_call *call, const weft_request *r, weft_buf *info)
{
  memset(call, 0, sizeof *call);
  switch (r->op) {
  case WEFT_OP_INIT:
    call->h.type = WEFT_MSG_CLIENT_INIT;
    FILL_CALL(&call->init, r);
    call->init.info = info;
    break;
  case WEFT_OP_START:
    call->h.type = WEFT_MSG_CLIENT_START;
    FILL_CALL(&call->start, r);
    call->start.draft = r->draft;
    break;
  case WEFT_OP_UPDATE:
    call->h.type = WEFT_MSG_CLIENT_UPDATE;
    FILL_CALL(&call->update, r);
    call->update.info = info;
    break;
  case WEFT_OP_FINISH:
    call->h.type = WEFT_MSG_CLIENT_FINISH;
    FILL_CALL(&call->finish, r);
    call->finish.has_version = r->version != NULL;
    call->finish.version = str_of(r->version);
    call->finish.has_expected = r->expected_version != NULL;
    call->finish.expected = str_of(r->expected_version);
    call->finish.strict = r->strict;
    break;
  case WEFT_OP_ABORT:
    call->h.type = WEFT_MSG_CLIENT_ABORT;
    FILL_CALL(&call->abort, r);
    call->abort.reason = str_of(r->version);
    break;
  case WEFT_OP_SET_VERSION:
    call->h.type = WEFT_MSG_CLIENT_LABEL;
    FILL_CALL(&call->label, r);
    call->label.version = str_of(r->version);
    call->label.has_expected = r->expected_version != NULL;
    call->label.expected = str_of(r->expected_version);
    break;
  case WEFT_OP_PAUSE:
  case WEFT_OP_RESUME:
    call->h.type = WEFT_MSG_CLIENT_PAUSE;
    FILL_CALL(&call->pause, r);
    call->pause.action = r->op == WEFT_OP_PAUSE ? WEFT_PAUSE : WEFT_RESUME;
    call->pause.mode = str_of(r->version ? r->version : "abort");
    call->pause.clear_cache = 1;
    break;
  case WEFT_OP_GET_VERSION:
    fill_query(call, WEFT_QUERY_INFO);
    break;
  case WEFT_OP_STATUS:
    fill_query(call, WEFT_QUERY_STATUS);
    break;
  case WEFT_OP_WEIGHTS:
    fill_query(call, WEFT_QUERY_WEIGHTS);
    break;
  case WEFT_OP_READY:
    fill_query(call, WEFT_QUERY_READY);
    break;
  default:
    return WEFT_E_INVAL;
  }
  return WEFT_OK;
}

static weft_err check(const weft_request *r)
{
  const bool takes_json = r->op == WEFT_OP_INIT || r->op == WEFT_OP_UPDATE;
  if (r->size != sizeof *r || (takes_json && !r->json) ||
      (r->op == WEFT_OP_SET_VERSION && !r->version)) {
    return WEFT_E_INVAL;
  }
  const char *texts[] = { r->version, r->expected_version };
  for (size_t i = 0; i < 2; i++) {
    if (texts[i] && strlen(texts[i]) > WEFT_VERSION_MAX) {
      return WEFT_E_INVAL;
    }
  }
  return WEFT_OK;
}

weft_err wefti_calls_submit(wefti_calls *calls, const weft_request *request,
                            weft_result_fn *fn, void *arg)
{
  weft_err err = check(request);
  if (err != WEFT_OK) {
    return err;
  }
  weft_buf *info = NULL;
  if (request->json) {
    info = weft_buf_create(request->json, request->json_len);
    if (!info) {
      return WEFT_E_NOMEM;
    }
  }
  any_call call;
  weft_msg *msg = NULL;
  err = fill(&call, request, info);
  if (err == WEFT_OK) {
    msg = weft_msg_dup(weft_messages(), &call.h);
    err = msg ? WEFT_OK : WEFT_E_NOMEM;
  }
  weft_buf_unref(info);
  if (err != WEFT_OK) {
    return err;
  }
  uint64_t number;
  err = book_add(calls, fn, arg, &number);
  if (err != WEFT_OK) {
    weft_msg_drop(weft_messages(), msg);
    return err;
  }
  msg->corr = number;
  msg->due_ms = request->timeout_ms; /* the actor's business, no date yet */
  err = weft_post(calls->rt, calls->actor, msg);
  if (err != WEFT_OK) {
    call_record *record = book_take(calls, number, 0);
    if (!record) {
      return WEFT_OK; /* the actor's end has answered it */
    }
    free(record);
  }
  return err == WEFT_E_DOWN ? WEFT_E_CLOSED : err;
}

/* ---- waiting */

typedef struct waiter {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool done;
  weft_result *result; /* NULL when done: no memory for it */
} waiter;

static void wake_waiter(void *arg, const weft_result *result)
{
  waiter *w = arg;
  weft_result *copy = result_dup(result);
  (void)pthread_mutex_lock(&w->lock);
  w->result = copy;
  w->done = true;
  (void)pthread_cond_signal(&w->changed);
  (void)pthread_mutex_unlock(&w->lock);
}

static bool on_callback_thread(wefti_calls *calls)
{
  (void)pthread_mutex_lock(&calls->lock);
  const bool same = calls->has_thread && pthread_equal(calls->thread, pthread_self());
  (void)pthread_mutex_unlock(&calls->lock);
  return same;
}

weft_err wefti_calls_wait(wefti_calls *calls, const weft_request *request,
                          weft_result **result, weft_why *why)
{
  if (on_callback_thread(calls)) {
    return weft_whyf(
        why, WEFT_E_STATE,
        "waiting inside a callback would stop the engine; use weft_engine_submit");
  }
  waiter w = { .done = false };
  (void)pthread_mutex_init(&w.lock, NULL);
  (void)pthread_cond_init(&w.changed, NULL);
  weft_err err = wefti_calls_submit(calls, request, wake_waiter, &w);
  if (err == WEFT_OK) {
    (void)pthread_mutex_lock(&w.lock);
    while (!w.done) {
      (void)pthread_cond_wait(&w.changed, &w.lock);
    }
    (void)pthread_mutex_unlock(&w.lock);
    err = w.result ? w.result->err : WEFT_E_NOMEM;
  }
  (void)pthread_cond_destroy(&w.changed);
  (void)pthread_mutex_destroy(&w.lock);
  if (err != WEFT_OK) {
    const char *text = w.result ? w.result->message : weft_strerror(err);
    (void)weft_whyf(why, err, "%s", text);
  }
  if (result && w.result) {
    *result = w.result;
  } else {
    weft_result_free(w.result);
  }
  return err;
}

/* ---- life */

weft_err wefti_calls_create(weft_runtime *rt, wefti_calls **out)
{
  wefti_calls *calls = calloc(1, sizeof *calls);
  if (!calls) {
    return WEFT_E_NOMEM;
  }
  if (pthread_mutex_init(&calls->lock, NULL) != 0) {
    free(calls);
    return WEFT_E_NOMEM;
  }
  calls->rt = rt;
  *out = calls;
  return WEFT_OK;
}

weft_err wefti_calls_spawn(wefti_calls *calls, weft_actor_id engine)
{
  const calls_actor args = { .calls = calls, .engine = engine };
  return weft_runtime_spawn(calls->rt, 0, &calls_class, &args, NULL, &calls->actor);
}

void wefti_calls_destroy(wefti_calls *calls)
{
  if (!calls) {
    return;
  }
  close_book(calls);
  (void)pthread_mutex_destroy(&calls->lock);
  free(calls);
}
