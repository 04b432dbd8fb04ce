#include "assembly.h"
#include "weft/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Event streams.  A new one asks the publisher for what came after its number; what is
 * published meanwhile waits, so that nothing is lost, doubled or out of order. */

enum { WAITING_MAX = 4096, REPLAY_MS = 5000, TOPIC_MAX = 64 };

static const char commit_topic[] = "weights.commit"; /* of every numbered event */

typedef struct waiting_event {
  struct waiting_event *next;
  uint64_t sequence;
  weft_buf *json;
  char topic[TOPIC_MAX];
} waiting_event;

typedef struct stream {
  struct stream *next;
  weft_http_id id;
  uint64_t peer;
  bool opened;   /* the acceptor has said so */
  uint64_t corr; /* of the question for the replay; 0 = not asked yet */
  uint64_t last; /* sequence sent last */
  bool live;
  waiting_event *first, **tail;
  size_t waiting;
} stream;

struct wefti_streams {
  weft_runtime *rt;
  weft_http *server;
  weft_actor_id publisher, actor;
  stream *open;
  bool ended;
};

static void drop_waiting(stream *s)
{
  while (s->first) {
    waiting_event *event = s->first;
    s->first = event->next;
    weft_buf_unref(event->json);
    free(event);
  }
  s->tail = &s->first;
  s->waiting = 0;
}

/* Removes *at from the list. */
static void drop_stream(stream **at)
{
  stream *s = *at;
  *at = s->next;
  drop_waiting(s);
  free(s);
}

static bool send_event(const wefti_streams *all, stream *s, const char *topic,
                       uint64_t sequence, const void *json, size_t len)
{
  if (sequence != 0 && sequence <= s->last) {
    return true; /* the replay had it */
  }
  if (sequence != 0) {
    s->last = sequence;
  }
  return weft_http_stream_send(all->server, s->id, topic, json, len);
}

static bool keep_event(stream *s, const char *topic, uint64_t sequence,
                       const weft_buf *json)
{
  waiting_event *event = s->waiting < WAITING_MAX ? calloc(1, sizeof *event) : NULL;
  if (!event) {
    return false;
  }
  event->json = weft_buf_create(json->data, json->len);
  if (!event->json) {
    free(event);
    return false;
  }
  event->sequence = sequence;
  (void)snprintf(event->topic, sizeof event->topic, "%s", topic);
  *s->tail = event;
  s->tail = &event->next;
  s->waiting++;
  return true;
}

void wefti_streams_event(wefti_streams *streams, const char *topic, uint64_t sequence,
                         const weft_buf *json)
{
  stream **at = &streams->open;
  while (*at) {
    stream *s = *at;
    if (!s->opened) {
      at = &s->next;
      continue;
    }
    const bool ok = s->live
                        ? send_event(streams, s, topic, sequence, json->data, json->len)
                        : keep_event(s, topic, sequence, json);
    if (ok) {
      at = &s->next;
    } else { /* gone or too slow: it must come back and ask */
      weft_http_stream_end(streams->server, s->id);
      drop_stream(at);
    }
  }
}

weft_err wefti_streams_expect(wefti_streams *streams, weft_http_id id, uint64_t peer)
{
  stream *s = streams->ended ? NULL : calloc(1, sizeof *s);
  if (!s) {
    return streams->ended ? WEFT_E_CLOSED : WEFT_E_NOMEM;
  }
  s->id = id;
  s->peer = peer;
  s->tail = &s->first;
  s->next = streams->open;
  streams->open = s;
  return WEFT_OK;
}

weft_err wefti_streams_open(wefti_streams *streams, weft_http_id id, uint64_t after)
{
  for (stream *s = streams->open; s; s = s->next) {
    if (s->id != id) {
      continue;
    }
    const weft_http_call call = { .h = { .type = WEFT_MSG_HTTP_REQUEST },
                                  .id = id,
                                  .peer = after };
    const weft_err err = wefti_post(streams->rt, streams->actor, &call.h);
    if (err == WEFT_OK) {
      s->opened = true;
      weft_http_stream_begin(streams->server, id);
    }
    return err;
  }
  return WEFT_E_CLOSED;
}

void wefti_streams_gone(wefti_streams *streams, uint64_t peer)
{
  for (stream **at = &streams->open; *at;) {
    if ((*at)->peer == peer) {
      drop_stream(at);
    } else {
      at = &(*at)->next;
    }
  }
}

/* ---- the replay */

static uint64_t sequence_of(const weft_json *event)
{
  int64_t n;
  return weft_json_i64(weft_json_get(event, "sequence"), &n) && n > 0 ? (uint64_t)n : 0;
}

/* The text of the array's elements, one after another: the publisher's own compact JSON.
 */
static bool send_elements(const wefti_streams *all, stream *s, const weft_json *events,
                          const weft_buf *text)
{
  static const char head[] = "{\"events\":[";
  size_t at = sizeof head - 1;
  for (const weft_json *event = weft_json_first(events); event;
       event = weft_json_next(event)) {
    size_t end = at;
    unsigned depth = 0;
    bool quoted = false;
    do { /* one element: to the brace that closes it */
      const uint8_t c = text->data[end++];
      if (quoted) {
        end += c == '\\';
        quoted = c != '"';
      } else {
        quoted = c == '"';
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
      }
    } while (depth > 0 && end < text->len);
    if (!send_event(all, s, commit_topic, sequence_of(event), text->data + at,
                    end - at)) {
      return false;
    }
    at = end + 1; /* the comma */
  }
  return true;
}

static bool replay(const wefti_streams *all, stream *s, const weft_buf *json)
{
  weft_json *root = NULL;
  if (!json || weft_json_parse(json->data, json->len, NULL, &root, NULL) != WEFT_OK) {
    return false;
  }
  bool ok = true;
  const weft_json *events = weft_json_get(root, "events");
  if (events) {
    ok = send_elements(all, s, events, json);
  } else { /* too long ago, or of another life: where things stand now */
    ok = weft_http_stream_send(all->server, s->id, "resync", (const char *)json->data,
                               json->len);
    s->last = sequence_of(weft_json_get(root, "status"));
  }
  weft_json_free(root);
  return ok;
}

static bool go_live(const wefti_streams *all, stream *s, const weft_buf *json)
{
  bool ok = json ? replay(all, s, json) : true;
  for (const waiting_event *event = s->first; event && ok; event = event->next) {
    ok = send_event(all, s, event->topic, event->sequence, event->json->data,
                    event->json->len);
  }
  drop_waiting(s);
  s->live = true;
  return ok;
}

/* ---- the actor: asks for replays */

static weft_err streams_init(weft_ctx *ctx, void *state, const void *args)
{
  (void)ctx;
  *(wefti_streams **)state = *(wefti_streams *const *)args;
  return WEFT_OK;
}

static void on_open(weft_ctx *ctx, wefti_streams *all, const weft_http_call *call)
{
  for (stream **at = &all->open; *at; at = &(*at)->next) {
    stream *s = *at;
    if (s->id != call->id) {
      continue;
    }
    if (call->peer >= INT64_MAX) { /* no number: from now on */
      if (!go_live(all, s, NULL)) {
        drop_stream(at);
      }
      return;
    }
    char text[64];
    const int n = snprintf(text, sizeof text,
                           "{\"get\":\"events\",\"after\":%" PRIu64 "}", call->peer);
    const weft_resync ask = { .h = { .type = WEFT_MSG_RESYNC },
                              .json = weft_buf_create(text, (size_t)n) };
    s->last = call->peer;
    s->corr = weft_ask(ctx, all->publisher, ask.json ? weft_msg_make(ctx, &ask.h) : NULL,
                       REPLAY_MS);
    weft_buf_unref(ask.json);
    return;
  }
}

static void on_replay(wefti_streams *all, uint64_t corr, const weft_buf *json)
{
  for (stream **at = &all->open; *at; at = &(*at)->next) {
    stream *s = *at;
    if (!s->live && s->corr == corr) {
      if (!json || !go_live(all, s, json)) {
        weft_http_stream_end(all->server, s->id);
        drop_stream(at);
      }
      return;
    }
  }
}

static weft_err streams_on(weft_ctx *ctx, void *state, const weft_msg *msg)
{
  wefti_streams *all = *(wefti_streams **)state;
  switch (msg->type) {
  case WEFT_MSG_HTTP_REQUEST:
    on_open(ctx, all, (const weft_http_call *)msg);
    return WEFT_OK;
  case WEFT_MSG_RESYNCED:
    on_replay(all, msg->corr, ((const weft_resynced *)msg)->json);
    return WEFT_OK;
  case WEFT_MSG_ASK_FAILED:
    on_replay(all, msg->corr, NULL);
    return WEFT_OK;
  case WEFT_MSG_STOP:
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    return WEFT_OK;
  }
}

static const weft_actor_class streams_class = { "streams", sizeof(wefti_streams *),
                                                streams_init, NULL, streams_on };

weft_err wefti_streams_create(weft_runtime *rt, weft_http *server,
                              weft_actor_id publisher, wefti_streams **out)
{
  wefti_streams *all = calloc(1, sizeof *all);
  if (!all) {
    return WEFT_E_NOMEM;
  }
  all->rt = rt;
  all->server = server;
  all->publisher = publisher;
  const weft_err err = weft_runtime_spawn(rt, 0, &streams_class, &all, NULL, &all->actor);
  if (err != WEFT_OK) {
    free(all);
    return err;
  }
  *out = all;
  return WEFT_OK;
}

void wefti_streams_end(wefti_streams *streams)
{
  streams->ended = true;
  while (streams->open) {
    if (streams->open->opened) {
      weft_http_stream_end(streams->server, streams->open->id);
    }
    drop_stream(&streams->open);
  }
}

void wefti_streams_destroy(wefti_streams *streams)
{
  if (!streams) {
    return;
  }
  while (streams->open) {
    drop_stream(&streams->open);
  }
  free(streams);
}
