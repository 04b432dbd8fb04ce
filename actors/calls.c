#include "calls.h"

#include "calls_text.h"
#include "silence.h"

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
  wefti_result_failed(&result, WEFT_E_CLOSED, WEFT_OUTCOME_UNKNOWN);
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
    wefti_result_from(&result, (const weft_client_done *)msg);
    finish_record(book_take(self->calls, 0, msg->corr), &result);
    return WEFT_OK;
  case WEFT_MSG_ASK_FAILED: {
    const weft_ask_failed_msg *failed = (const weft_ask_failed_msg *)msg;
    const bool query = failed->asked == WEFT_MSG_CLIENT_QUERY;
    const weft_err reason = (weft_err)failed->reason;
    wefti_result_failed(&result, reason == WEFT_E_DOWN ? WEFT_E_CLOSED : reason,
                        query                         ? WEFT_OUTCOME_NONE
                        : wefti_was_not_asked(reason) ? WEFT_OUTCOME_NOT_COMMITTED
                                                      : WEFT_OUTCOME_UNKNOWN);
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

/* ---- submitting */

weft_err wefti_calls_submit(wefti_calls *calls, const weft_request *request,
                            weft_result_fn *fn, void *arg)
{
  weft_err err = wefti_call_check(request);
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
  wefti_any_call call;
  weft_msg *msg = NULL;
  err = wefti_call_fill(&call, request, info);
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
  weft_result *copy = wefti_result_dup(result);
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
