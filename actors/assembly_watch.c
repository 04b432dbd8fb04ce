#include "assembly.h"
#include "patience.h"
#include "weft/json.h"

#include <pthread.h>
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
  wefti_patience stopping; /* its lock is over sub, too */
  weft_sub *sub;
};

static bool is_stopping(wefti_watch *w)
{
  wefti_patience_lock(&w->stopping);
  const bool stopping = w->stopping.over;
  wefti_patience_unlock(&w->stopping);
  return stopping;
}

static void pause_a_little(wefti_watch *w)
{
  wefti_patience_lock(&w->stopping);
  wefti_patience_wait(&w->stopping, LOOK_MS);
  wefti_patience_unlock(&w->stopping);
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
  wefti_patience_lock(&w->stopping);
  w->sub = sub;
  wefti_patience_unlock(&w->stopping);
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
  if (wefti_patience_init(&w->stopping) != WEFT_OK) {
    free(w);
    return WEFT_E_NOMEM;
  }
  if (pthread_create(&w->thread, NULL, watch_main, w) != 0) {
    wefti_patience_fini(&w->stopping);
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
  wefti_patience_end(&w->stopping);
  wefti_patience_lock(&w->stopping);
  if (w->sub) {
    weft_sub_interrupt(w->sub);
  }
  wefti_patience_unlock(&w->stopping);
  (void)pthread_join(w->thread, NULL);
  wefti_patience_fini(&w->stopping);
  free(w);
}
