#include "assembly.h"
#include "weft/json.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Commits of an engine elsewhere: a thread that finds its sockets, follows its events and
 * hands commits to the loop, where callbacks run. */

enum { LOOK_MS = 100, STATUS_MS = 2000, NEXT_MS = 1000 };

struct wefti_watch {
  weft_engine *engine;
  pthread_t thread;
  pthread_mutex_t lock; /* over sub and stopping */
  pthread_cond_t changed;
  weft_sub *sub;
  bool stopping;
  weft_actor_id teller;
};

/* ---- the actor that calls on_commit */

static weft_err teller_init(weft_ctx *ctx, void *state, const void *args)
{
  (void)ctx;
  *(weft_engine **)state = *(weft_engine *const *)args;
  return WEFT_OK;
}

static weft_err teller_on(weft_ctx *ctx, void *state, const weft_msg *msg)
{
  const weft_engine *e = *(weft_engine *const *)state;
  if (msg->type == WEFT_MSG_EVENT) {
    const weft_event *event = (const weft_event *)msg;
    (void)wefti_commit_tell(event->json, event->sequence != 0, e->on_commit, e->arg);
  } else if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
  }
  return WEFT_OK;
}

static const weft_actor_class teller_class = { "commits", sizeof(weft_engine *),
                                               teller_init, NULL, teller_on };

/* ---- the thread */

static bool is_stopping(wefti_watch *w)
{
  (void)pthread_mutex_lock(&w->lock);
  const bool stopping = w->stopping;
  (void)pthread_mutex_unlock(&w->lock);
  return stopping;
}

static void pause_a_little(wefti_watch *w)
{
  struct timespec until;
  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += LOOK_MS * 1000000L;
  if (until.tv_nsec >= 1000000000L) {
    until.tv_nsec -= 1000000000L;
    until.tv_sec++;
  }
  (void)pthread_mutex_lock(&w->lock);
  if (!w->stopping) {
    (void)pthread_cond_timedwait(&w->changed, &w->lock, &until);
  }
  (void)pthread_mutex_unlock(&w->lock);
}

/* The sockets' addresses are in the engine's status. */
static bool find_urls(wefti_watch *w, char events[WEFTI_URL_MAX],
                      char snapshot[WEFTI_URL_MAX])
{
  const weft_request request = { .size = sizeof request,
                                 .op = WEFT_OP_STATUS,
                                 .timeout_ms = STATUS_MS };
  weft_result *result = NULL;
  weft_json *root = NULL;
  bool found = false;
  if (weft_engine_call(w->engine, &request, &result, NULL) == WEFT_OK &&
      weft_json_parse(result->body, result->body_len, NULL, &root, NULL) == WEFT_OK) {
    const char *e = weft_json_str(weft_json_get(root, "events"));
    const char *s = weft_json_str(weft_json_get(root, "snapshot"));
    if (e && s && *e && *s) {
      found = snprintf(events, WEFTI_URL_MAX, "%s", e) < WEFTI_URL_MAX &&
              snprintf(snapshot, WEFTI_URL_MAX, "%s", s) < WEFTI_URL_MAX;
    }
  }
  weft_json_free(root);
  weft_result_free(result);
  return found;
}

static void tell(wefti_watch *w, const weft_sub_event *event)
{
  if (event->kind == WEFT_SUB_STATUS ||
      (event->kind == WEFT_SUB_EVENT && strcmp(event->topic, "weights.commit") != 0)) {
    return;
  }
  const weft_event note = { .h = { .type = WEFT_MSG_EVENT },
                            .sequence = event->kind == WEFT_SUB_RESYNC,
                            .json = event->json };
  (void)wefti_post(w->engine->rt, w->teller, &note.h);
}

static void set_sub(wefti_watch *w, weft_sub *sub)
{
  (void)pthread_mutex_lock(&w->lock);
  w->sub = sub;
  (void)pthread_mutex_unlock(&w->lock);
}

static void follow(wefti_watch *w, weft_sub *sub)
{
  while (!is_stopping(w)) {
    weft_sub_event event;
    const weft_err err = weft_sub_next(sub, NEXT_MS, &event);
    if (err == WEFT_OK) {
      tell(w, &event);
      weft_buf_unref(event.json);
    } else if (err != WEFT_E_TIMEOUT) {
      return;
    }
  }
}

static void *watch_main(void *arg)
{
  wefti_watch *w = arg;
  while (!is_stopping(w)) {
    char events[WEFTI_URL_MAX];
    char snapshot[WEFTI_URL_MAX];
    weft_sub *sub = NULL;
    if (find_urls(w, events, snapshot) &&
        weft_sub_create(events, snapshot, &sub, NULL) == WEFT_OK) {
      set_sub(w, sub);
      follow(w, sub);
      set_sub(w, NULL);
      weft_sub_destroy(sub);
    } else {
      pause_a_little(w);
    }
  }
  return NULL;
}

weft_err wefti_watch_start(weft_engine *engine, wefti_watch **out)
{
  wefti_watch *w = calloc(1, sizeof *w);
  if (!w) {
    return WEFT_E_NOMEM;
  }
  w->engine = engine;
  weft_err err =
      weft_runtime_spawn(engine->rt, 0, &teller_class, &engine, NULL, &w->teller);
  if (err != WEFT_OK || pthread_mutex_init(&w->lock, NULL) != 0) {
    free(w);
    return err != WEFT_OK ? err : WEFT_E_NOMEM;
  }
  if (pthread_cond_init(&w->changed, NULL) != 0 ||
      pthread_create(&w->thread, NULL, watch_main, w) != 0) {
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
    return WEFT_E_SYS;
  }
  *out = w;
  return WEFT_OK;
}

void wefti_watch_stop(wefti_watch *w)
{
  if (!w) {
    return;
  }
  (void)pthread_mutex_lock(&w->lock);
  w->stopping = true;
  if (w->sub) {
    weft_sub_interrupt(w->sub);
  }
  (void)pthread_cond_signal(&w->changed);
  (void)pthread_mutex_unlock(&w->lock);
  (void)pthread_join(w->thread, NULL);
  (void)pthread_cond_destroy(&w->changed);
  (void)pthread_mutex_destroy(&w->lock);
  free(w);
}
