#include "sub_feed.h"

#include "json_split.h"
#include "weft/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPLAYS_MAX = 3 }; /* without progress, before a gap counts as lost */

#define COMMIT_TOPIC "weights.commit"

typedef struct mark {
  uint64_t sequence; /* 0 = not a numbered event */
  char boot[WEFTI_BOOT_MAX];
} mark;

static void read_mark(const weft_json *object, mark *m)
{
  int64_t n;
  *m = (mark){ 0 };
  if (weft_json_i64(weft_json_get(object, "sequence"), &n) && n > 0) {
    m->sequence = (uint64_t)n;
  }
  const weft_json *boot = weft_json_get(object, "boot_id");
  if (weft_json_str(boot) != NULL) {
    (void)snprintf(m->boot, sizeof m->boot, "%s", weft_json_str(boot));
  } else if (weft_json_i64(boot, &n)) {
    (void)snprintf(m->boot, sizeof m->boot, "%" PRId64, n);
  }
}

static weft_err parse_mark(const void *json, size_t len, mark *m)
{
  weft_json *root;
  const weft_json_limits limits = { .depth = 32, .nodes = 1u << 20 };
  const weft_err err = weft_json_parse(json, len, &limits, &root, NULL);
  if (err != WEFT_OK) {
    return err == WEFT_E_NOMEM ? err : WEFT_E_PROTO;
  }
  const bool object = weft_json_kind_of(root) == WEFT_JSON_OBJECT;
  read_mark(root, m);
  weft_json_free(root);
  return object ? WEFT_OK : WEFT_E_PROTO;
}

static void set_boot(wefti_feed *f, const char *boot)
{
  if (boot[0] != '\0') {
    (void)snprintf(f->boot, sizeof f->boot, "%s", boot);
  }
}

/* Takes json.  NOMEM: json is gone. */
static weft_err emit(wefti_feed *f, weft_sub_kind kind, const char *topic, weft_buf *json)
{
  wefti_feed_item *item = calloc(1, sizeof *item);
  if (item == NULL || json == NULL) {
    free(item);
    weft_buf_unref(json);
    return WEFT_E_NOMEM;
  }
  item->event.kind = kind;
  (void)snprintf(item->event.topic, sizeof item->event.topic, "%s", topic);
  item->event.json = json;
  *f->ready_tail = item;
  f->ready_tail = &item->next;
  return WEFT_OK;
}

static void drop_held(wefti_feed *f)
{
  weft_buf_unref(f->held.json);
  f->held = (weft_sub_event){ 0 };
  f->held_checked = false;
}

static void set_status(wefti_feed *f, weft_buf *status)
{
  weft_buf_unref(f->status);
  f->status = status;
}

void wefti_feed_init(wefti_feed *f)
{
  *f = (wefti_feed){ 0 };
  f->ready_tail = &f->ready;
  wefti_feed_check(f, true);
}

void wefti_feed_fini(wefti_feed *f)
{
  weft_sub_event e;
  while (wefti_feed_pop(f, &e)) {
    weft_buf_unref(e.json);
  }
  drop_held(f);
  set_status(f, NULL);
}

void wefti_feed_check(wefti_feed *f, bool show)
{
  f->show_status = f->show_status || show;
  if (f->want == WEFTI_ASK_NOTHING) {
    f->want = WEFTI_ASK_STATUS;
  }
}

bool wefti_feed_pop(wefti_feed *f, weft_sub_event *out)
{
  wefti_feed_item *item = f->ready;
  if (item == NULL) {
    return false;
  }
  f->ready = item->next;
  if (f->ready == NULL) {
    f->ready_tail = &f->ready;
  }
  *out = item->event;
  free(item);
  return true;
}

/* An event whose text has been parsed: hand it out, drop it, or hold it and ask.
 * Takes json. */
static weft_err consider(wefti_feed *f, const char *topic, const mark *m, weft_buf *json)
{
  const bool other_boot =
      f->synced && m->boot[0] != '\0' && strcmp(m->boot, f->boot) != 0;
  if (m->sequence == 0) {
    return emit(f, WEFT_SUB_EVENT, topic, json);
  }
  if (f->synced && !other_boot && m->sequence == f->last + 1) {
    const weft_err err = emit(f, WEFT_SUB_EVENT, topic, json);
    f->last += err == WEFT_OK ? 1 : 0; /* else the gap shows with the next one */
    return err;
  }
  if ((f->synced && !other_boot && m->sequence <= f->last) ||
      (other_boot && f->held_checked)) {
    weft_buf_unref(json); /* seen, or of a boot that is over */
    return WEFT_OK;
  }
  f->held.kind = WEFT_SUB_EVENT;
  (void)snprintf(f->held.topic, sizeof f->held.topic, "%s", topic);
  f->held.json = json;
  f->held_checked = other_boot;
  f->want = !f->synced || other_boot ? WEFTI_ASK_STATUS : WEFTI_ASK_EVENTS;
  return WEFT_OK;
}

weft_err wefti_feed_event(wefti_feed *f, const void *data, size_t len)
{
  const char *text = data;
  const char *space = len == 0 ? NULL : memchr(text, ' ', len);
  mark m;
  if (space == NULL || f->held.json != NULL ||
      (size_t)(space - text) >= sizeof f->held.topic) {
    return WEFT_OK;
  }
  char topic[sizeof f->held.topic] = { 0 };
  memcpy(topic, text, (size_t)(space - text));
  const size_t json_len = len - (size_t)(space + 1 - text);
  const weft_err err = parse_mark(space + 1, json_len, &m);
  if (err != WEFT_OK) {
    return err == WEFT_E_NOMEM ? err : WEFT_OK; /* not an event of ours */
  }
  weft_buf *json = weft_buf_create(space + 1, json_len);
  return json == NULL ? WEFT_E_NOMEM : consider(f, topic, &m, json);
}

size_t wefti_feed_ask(const wefti_feed *f, char out[WEFTI_ASK_MAX])
{
  const int n = f->want == WEFTI_ASK_EVENTS
                    ? snprintf(out, WEFTI_ASK_MAX,
                               "{\"get\":\"events\",\"after\":%" PRIu64 "}", f->last)
                    : snprintf(out, WEFTI_ASK_MAX, "{\"get\":\"status\"}");
  return (size_t)n;
}

/* Looks again at the event that had made us ask. */
static weft_err recheck_held(wefti_feed *f)
{
  if (f->held.json == NULL || f->want != WEFTI_ASK_NOTHING) {
    return WEFT_OK;
  }
  weft_sub_event e = f->held;
  const bool checked = f->held_checked;
  mark m;
  f->held = (weft_sub_event){ 0 };
  if (parse_mark(e.json->data, e.json->len, &m) != WEFT_OK) {
    weft_buf_unref(e.json);
    return WEFT_E_NOMEM; /* it was parsed before */
  }
  f->held_checked = checked;
  const weft_err err = consider(f, e.topic, &m, e.json);
  if (f->held.json == NULL) {
    f->held_checked = false;
  }
  return err;
}

/* Starts again from a status: what was in between is lost.  Takes status. */
static weft_err resync(wefti_feed *f, const mark *m, weft_buf *status)
{
  const weft_err err = emit(f, WEFT_SUB_RESYNC, "", status);
  if (err != WEFT_OK) {
    f->want = WEFTI_ASK_STATUS;
    return err;
  }
  set_boot(f, m->boot);
  f->last = m->sequence;
  f->must_resync = false;
  f->show_status = false;
  f->no_progress = 0;
  set_status(f, NULL);
  f->want = WEFTI_ASK_NOTHING;
  return recheck_held(f);
}

static weft_err show_if_wanted(wefti_feed *f, weft_buf *status)
{
  if (!f->show_status) {
    weft_buf_unref(status);
    return WEFT_OK;
  }
  f->show_status = false;
  const weft_err err = emit(f, WEFT_SUB_STATUS, "", status);
  if (err != WEFT_OK) {
    f->show_status = true;
    f->want = WEFTI_ASK_STATUS;
  }
  return err;
}

static weft_err on_status(wefti_feed *f, const void *data, size_t len)
{
  mark m;
  weft_err err = parse_mark(data, len, &m);
  if (err != WEFT_OK) {
    return err;
  }
  weft_buf *text = weft_buf_create(data, len);
  if (text == NULL) {
    return WEFT_E_NOMEM;
  }
  const bool other_boot = m.boot[0] != '\0' && strcmp(m.boot, f->boot) != 0;
  if (f->synced && (f->must_resync || (other_boot && m.sequence < f->last))) {
    return resync(f, &m, text);
  }
  f->want = WEFTI_ASK_NOTHING;
  if (!f->synced) {
    f->last = m.sequence;
  }
  if (!f->synced || other_boot) {
    set_boot(f, m.boot);
  }
  if (f->synced && m.sequence > f->last) {
    set_status(f, text);
    f->want = WEFTI_ASK_EVENTS;
    return WEFT_OK;
  }
  err = show_if_wanted(f, text);
  f->synced = f->synced || err == WEFT_OK;
  return err == WEFT_OK ? recheck_held(f) : err;
}

static weft_err replay(wefti_feed *f, const char *text, size_t len)
{
  const uint64_t before = f->last;
  size_t pos = 0;
  size_t at;
  size_t n;
  while (wefti_json_split(text, len, &pos, &at, &n)) {
    mark m;
    weft_err err = parse_mark(text + at, n, &m);
    if (err != WEFT_OK) {
      return err;
    }
    if (m.sequence <= f->last) {
      continue;
    }
    if (m.sequence != f->last + 1) {
      break; /* a hole where there must be none: does not count as progress beyond it */
    }
    err = emit(f, WEFT_SUB_EVENT, COMMIT_TOPIC, weft_buf_create(text + at, n));
    if (err != WEFT_OK) {
      return err;
    }
    f->last = m.sequence;
  }
  f->no_progress = f->last > before ? 0 : f->no_progress + 1;
  return WEFT_OK;
}

static weft_err after_replay(wefti_feed *f)
{
  f->want = WEFTI_ASK_NOTHING;
  if (f->status != NULL) {
    weft_buf *status = f->status;
    f->status = NULL;
    const weft_err err = show_if_wanted(f, status);
    if (err != WEFT_OK) {
      return err;
    }
  }
  const weft_err err = recheck_held(f);
  if (f->want == WEFTI_ASK_NOTHING) {
    f->no_progress = 0;
    f->want = f->show_status ? WEFTI_ASK_STATUS : WEFTI_ASK_NOTHING;
  } else if (f->no_progress >= REPLAYS_MAX) {
    f->must_resync = true;
    f->want = WEFTI_ASK_STATUS;
  }
  return err;
}

/* Members "events", or "resync" and "status". */
static weft_err on_events(wefti_feed *f, const void *data, size_t len)
{
  weft_json_scan *scan;
  weft_err err = weft_json_scan_create(NULL, &scan);
  if (err != WEFT_OK) {
    return err;
  }
  err = weft_json_scan_feed(scan, data, len);
  if (err == WEFT_OK) {
    err = weft_json_scan_end(scan);
  }
  const weft_json_span events = weft_json_scan_member(scan, "events");
  const weft_json_span again = weft_json_scan_member(scan, "resync");
  const weft_json_span status = weft_json_scan_member(scan, "status");
  weft_json_scan_destroy(scan);
  if (err != WEFT_OK) {
    return err == WEFT_E_NOMEM ? err : WEFT_E_PROTO;
  }
  const char *text = data;
  if (again.kind == WEFT_JSON_BOOL && text[again.at] == 't') {
    mark m;
    if (status.kind != WEFT_JSON_OBJECT) {
      return WEFT_E_PROTO;
    }
    err = parse_mark(text + status.at, status.len, &m);
    if (err != WEFT_OK) {
      return err;
    }
    weft_buf *b = weft_buf_create(text + status.at, status.len);
    return b == NULL ? WEFT_E_NOMEM : resync(f, &m, b);
  }
  if (events.kind != WEFT_JSON_ARRAY) {
    return WEFT_E_PROTO;
  }
  err = replay(f, text + events.at, events.len);
  return err == WEFT_OK ? after_replay(f) : err;
}

weft_err wefti_feed_answer(wefti_feed *f, wefti_ask_kind kind, const void *data,
                           size_t len)
{
  return kind == WEFTI_ASK_EVENTS ? on_events(f, data, len) : on_status(f, data, len);
}
