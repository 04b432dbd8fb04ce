#include "publisher.h"

#include "weft/buf.h"
#include "weft/checked.h"
#include "weft/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEEP_DEFAULT = 1024, REQUEST_MAX = 4096 /* bytes */ };

typedef struct kept {
  weft_buf *json; /* shared; NULL = free */
} kept;

/* Numbered events lie in a ring without gaps: the oldest has sequence first. */
typedef struct publisher {
  wefti_publish_ops ops;
  kept *ring; /* [keep] */
  uint64_t keep, first, count;
  weft_buf *status;                          /* the engine's last; NULL = none yet */
  weft_json_span version, sequence, boot_id; /* in it */
  uint64_t status_sequence;
} publisher;

static weft_buf **slot_of(publisher *self, uint64_t sequence)
{
  return &self->ring[sequence % self->keep].json;
}

static void forget_all(publisher *self)
{
  for (; self->count > 0; self->count--, self->first++) {
    weft_buf **slot = slot_of(self, self->first);
    weft_buf_unref(*slot);
    *slot = NULL;
  }
}

/* The highest number that a watcher can have heard of; 0 = none. */
static uint64_t newest(const publisher *self)
{
  const uint64_t last = self->count == 0 ? 0 : self->first + self->count - 1;
  return last > self->status_sequence ? last : self->status_sequence;
}

/* ---- what the engine says */

/* false: not to be published again. */
static bool remember(weft_ctx *ctx, publisher *self, const weft_event *event)
{
  if (self->count > 0 && event->sequence < self->first + self->count) {
    weft_log(ctx, WEFT_LOG_WARN, "event came twice sequence=%" PRIu64, event->sequence);
    return false;
  }
  if (self->count > 0 && event->sequence != self->first + self->count) {
    weft_log(ctx, WEFT_LOG_WARN, "events are missing before sequence=%" PRIu64,
             event->sequence);
    forget_all(self); /* whoever asks for what lies before gets a status */
  }
  if (self->count == 0) {
    self->first = event->sequence;
  } else if (self->count == self->keep) {
    weft_buf_unref(*slot_of(self, self->first));
    self->first++;
    self->count--;
  }
  *slot_of(self, event->sequence) = weft_buf_ref(event->json);
  self->count++;
  return true;
}

static void on_event(weft_ctx *ctx, publisher *self, const weft_event *event)
{
  if (event->json == NULL || event->topic.len == 0) {
    weft_log(ctx, WEFT_LOG_ERROR, "event without topic or text");
    return;
  }
  if (event->sequence == 0 || remember(ctx, self, event)) {
    self->ops.publish(self->ops.arg, event->topic.p, event->sequence, event->json);
  }
}

static bool same(const weft_buf *a, weft_json_span sa, const weft_buf *b,
                 weft_json_span sb)
{
  return sa.len == sb.len && memcmp(a->data + sa.at, b->data + sb.at, sa.len) == 0;
}

static bool number_of(const weft_buf *text, weft_json_span span, uint64_t *out)
{
  uint64_t n = 0;
  for (size_t i = 0; i < span.len; i++) {
    const uint8_t c = text->data[span.at + i];
    if (c < '0' || c > '9' || n > (UINT64_MAX - 9) / 10) {
      return false;
    }
    n = n * 10 + (uint64_t)(c - '0');
  }
  *out = n;
  return span.kind == WEFT_JSON_NUMBER;
}

static weft_err scan_text(const weft_buf *text, weft_json_scan **out)
{
  weft_json_scan *scan;
  weft_err err = weft_json_scan_create(NULL, &scan);
  if (err != WEFT_OK) {
    return err;
  }
  err = weft_json_scan_feed(scan, text->data, text->len);
  if (err == WEFT_OK) {
    err = weft_json_scan_end(scan);
  }
  if (err != WEFT_OK) {
    weft_json_scan_destroy(scan);
    return err;
  }
  *out = scan;
  return WEFT_OK;
}

static void on_status(weft_ctx *ctx, publisher *self, weft_buf *status)
{
  weft_json_scan *scan;
  const weft_err err = status == NULL ? WEFT_E_INVAL : scan_text(status, &scan);
  if (err != WEFT_OK) { /* the old one stays */
    weft_log(ctx, WEFT_LOG_ERROR, "the engine's status is unusable: %s",
             weft_strerror(err));
    return;
  }
  const weft_json_span boot_id = weft_json_scan_member(scan, "boot_id");
  const weft_json_span sequence = weft_json_scan_member(scan, "sequence");
  const weft_json_span version = weft_json_scan_member(scan, "version");
  weft_json_scan_destroy(scan);
  uint64_t number;
  if (boot_id.kind == WEFT_JSON_NONE || version.kind == WEFT_JSON_NONE ||
      !number_of(status, sequence, &number)) {
    weft_log(ctx, WEFT_LOG_ERROR,
             "the engine's status lacks version, sequence or boot_id");
    return;
  }
  if (self->status != NULL && !same(self->status, self->boot_id, status, boot_id)) {
    forget_all(self); /* numbers of another life */
  }
  weft_buf *old = self->status;
  self->status = weft_buf_ref(status);
  weft_buf_unref(old);
  self->boot_id = boot_id;
  self->sequence = sequence;
  self->version = version;
  self->status_sequence = number;
}

/* ---- questions.  Each writes the answer's text. */

typedef struct question {
  const weft_buf *text;
  weft_json_span get, after, boot_id;
} question;

static void put_raw(weft_json_writer *w, const char *key, const weft_buf *text,
                    weft_json_span span)
{
  weft_jw_raw(w, key, (const char *)text->data + span.at, span.len);
}

static void say_error(weft_json_writer *w, const char *text)
{
  weft_jw_object(w, NULL);
  weft_jw_str(w, "error", text);
  weft_jw_end(w);
}

static void say_resync(const publisher *self, weft_json_writer *w)
{
  weft_jw_object(w, NULL);
  weft_jw_bool(w, "resync", true);
  if (self->status == NULL) {
    weft_jw_null(w, "status");
  } else {
    weft_jw_raw(w, "status", (const char *)self->status->data, self->status->len);
  }
  weft_jw_end(w);
}

static void say_version(const publisher *self, weft_json_writer *w)
{
  weft_jw_object(w, NULL);
  put_raw(w, "version", self->status, self->version);
  put_raw(w, "sequence", self->status, self->sequence);
  put_raw(w, "boot_id", self->status, self->boot_id);
  weft_jw_end(w);
}

static void say_events(publisher *self, const question *q, weft_json_writer *w)
{
  uint64_t after;
  if (!number_of(q->text, q->after, &after)) {
    say_error(w, "events: \"after\" must be a number, the last sequence that is known");
    return;
  }
  if (q->boot_id.kind != WEFT_JSON_NONE &&
      (self->status == NULL || !same(self->status, self->boot_id, q->text, q->boot_id))) {
    say_resync(self, w);
    return;
  }
  const uint64_t last = newest(self);
  const bool complete = self->count > 0 && self->first + self->count - 1 == last;
  if (after > last || (after < last && (!complete || after + 1 < self->first))) {
    say_resync(self, w);
    return;
  }
  weft_jw_object(w, NULL);
  weft_jw_array(w, "events");
  for (uint64_t n = after + 1; n <= last; n++) {
    const weft_buf *json = *slot_of(self, n);
    weft_jw_raw(w, NULL, (const char *)json->data, json->len);
  }
  weft_jw_end(w);
  weft_jw_end(w);
}

static bool is(const question *q, const char *quoted)
{
  return q->get.len == strlen(quoted) &&
         memcmp(q->text->data + q->get.at, quoted, q->get.len) == 0;
}

static void answer(publisher *self, const question *q, weft_json_writer *w)
{
  const bool status = is(q, "\"status\"");
  if (is(q, "\"events\"")) {
    say_events(self, q, w);
  } else if (!status && !is(q, "\"version\"")) {
    say_error(w, "\"get\" must be \"status\", \"version\" or \"events\"");
  } else if (self->status == NULL) {
    say_error(w, "the engine has not said anything yet; try again");
  } else if (status) {
    weft_jw_raw(w, NULL, (const char *)self->status->data, self->status->len);
  } else {
    say_version(self, w);
  }
}

static void read_and_answer(publisher *self, const weft_buf *text, weft_json_writer *w)
{
  weft_json_scan *scan;
  if (text == NULL || text->len > REQUEST_MAX) {
    say_error(w, text == NULL ? "empty request" : "the request is too long");
    return;
  }
  if (scan_text(text, &scan) != WEFT_OK) {
    say_error(w, "the request is not JSON");
    return;
  }
  const question q = { .text = text,
                       .get = weft_json_scan_member(scan, "get"),
                       .after = weft_json_scan_member(scan, "after"),
                       .boot_id = weft_json_scan_member(scan, "boot_id") };
  if (weft_json_scan_root(scan).kind != WEFT_JSON_OBJECT) {
    say_error(w, "the request is no JSON object");
  } else {
    answer(self, &q, w);
  }
  weft_json_scan_destroy(scan);
}

static void on_resync(weft_ctx *ctx, publisher *self, const weft_resync *m)
{
  static const char nomem[] = "{\"error\":\"out of memory; try again\"}";
  weft_json_writer w;
  weft_jw_init(&w);
  read_and_answer(self, m->json, &w);
  weft_buf *json = weft_jw_take_buf(&w);
  if (json == NULL) {
    json = weft_buf_create(nomem, sizeof nomem - 1);
  }
  /* A NULL json says "no answer"; whoever asked has a deadline of its own as well. */
  const weft_resynced answer = { .h = { .type = WEFT_MSG_RESYNCED }, .json = json };
  (void)weft_reply(ctx, weft_return_of(&m->h), weft_msg_make(ctx, &answer.h));
  weft_buf_unref(json);
}

/* ---- */

static weft_err publisher_init(weft_ctx *ctx, void *state, const void *args)
{
  const wefti_publisher_args *a = args;
  publisher *self = state;
  size_t bytes;
  self->ops = a->ops;
  self->keep = a->keep == 0 ? KEEP_DEFAULT : a->keep;
  if (weft_size_mul(self->keep, sizeof *self->ring, &bytes) != WEFT_OK) {
    return WEFT_E_OVERFLOW;
  }
  self->ring = weft_alloc(ctx, bytes);
  return self->ring == NULL ? WEFT_E_NOMEM : WEFT_OK;
}

static void publisher_fini(weft_ctx *ctx, void *state)
{
  publisher *self = state;
  forget_all(self);
  weft_free(ctx, self->ring);
  weft_buf_unref(self->status);
}

static weft_err publisher_on(weft_ctx *ctx, void *state, const weft_msg *msg)
{
  publisher *self = state;
  switch (msg->type) {
  case WEFT_MSG_EVENT:
    on_event(ctx, self, (const weft_event *)msg);
    return WEFT_OK;
  case WEFT_MSG_EVENT_STATUS:
    on_status(ctx, self, ((const weft_event_status *)msg)->json);
    return WEFT_OK;
  case WEFT_MSG_RESYNC:
    on_resync(ctx, self, (const weft_resync *)msg);
    return WEFT_OK;
  case WEFT_MSG_STOP:
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    return WEFT_E_STATE; /* not ours: a bug in the sender */
  }
}

const weft_actor_class wefti_publisher_class = {
  .name = "publisher",
  .state_size = sizeof(publisher),
  .init = publisher_init,
  .fini = publisher_fini,
  .on = publisher_on,
};
