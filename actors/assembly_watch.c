#include "assembly.h"
#include "weft/json.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Events of an engine elsewhere: a thread that finds its sockets, follows them and posts
 * what comes to an actor. */

enum { LOOK_MS = 100, STATUS_MS = 2000, NEXT_MS = 1000 };

struct wefti_watch {
  weft_runtime *rt;
  wefti_calls *calls;
  weft_actor_id to;
  pthread_t thread;
  pthread_mutex_t lock; /* over sub and stopping */
  pthread_cond_t changed;
  weft_sub *sub;
  bool stopping;
};

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
  if (wefti_calls_wait(w->calls, &request, &result, NULL) == WEFT_OK &&
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

static uint64_t sequence_of(const weft_buf *json)
{
  weft_json *root = NULL;
  int64_t n = 0;
  if (weft_json_parse(json->data, json->len, NULL, &root, NULL) == WEFT_OK &&
      (!weft_json_i64(weft_json_get(root, "sequence"), &n) || n < 0)) {
    n = 0;
  }
  weft_json_free(root);
  return (uint64_t)n;
}

/* A message that finds no room is a gap that the receiver closes by the next status. */
static void tell(const wefti_watch *w, const weft_sub_event *event)
{
  weft_event note = { .h = { .type = WEFT_MSG_EVENT }, .json = event->json };
  if (event->kind != WEFT_SUB_EVENT) {
    const weft_event_status status = { .h = { .type = WEFT_MSG_EVENT_STATUS },
                                       .json = event->json };
    (void)wefti_post(w->rt, w->to, &status.h);
    note.topic = WEFT_STR("weights.resync");
  } else {
    note.topic = wefti_str(event->topic);
  }
  if (strcmp(note.topic.p, "weights.commit") == 0) {
    note.sequence = sequence_of(event->json);
  }
  if (event->kind != WEFT_SUB_STATUS) {
    (void)wefti_post(w->rt, w->to, &note.h);
  }
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

weft_err wefti_watch_start(weft_runtime *rt, wefti_calls *calls, weft_actor_id to,
                           wefti_watch **out)
{
  wefti_watch *w = calloc(1, sizeof *w);
  if (!w) {
    return WEFT_E_NOMEM;
  }
  w->rt = rt;
  w->calls = calls;
  w->to = to;
  if (pthread_mutex_init(&w->lock, NULL) != 0) {
    free(w);
    return WEFT_E_NOMEM;
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
