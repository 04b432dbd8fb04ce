/* Server-sent events (WHATWG HTML §9.2): text/event-stream, chunked for HTTP/1.1, ended
 * by the connection's end for HTTP/1.0. */
#include "conn.h"
#include "weft/checked.h"

#include <stdio.h>
#include <string.h>

static void fail(wefti_slot *slot)
{
  wefti_conn_kill(slot->conn);
}

void weft_http_stream_begin(weft_http *server, weft_http_id id)
{
  static const char fields[] = "Content-Type: text/event-stream; charset=utf-8\r\n"
                               "Cache-Control: no-store\r\n";
  static const char chunked[] = "Transfer-Encoding: chunked\r\n";
  wefti_slot *slot = wefti_slot_find(server, id);
  if (slot == NULL || slot->state != WEFTI_WORKING) {
    return;
  }
  if (slot->http10) {
    slot->keep = false; /* nothing else marks its end */
    slot->conn->input_over = true;
  }
  wefti_bytes *b = NULL;
  weft_err err = wefti_reply_start(slot, 200, sizeof fields + sizeof chunked + 2, &b);
  err = err != WEFT_OK ? err : wefti_bytes_add(b, fields, sizeof fields - 1);
  if (err == WEFT_OK && !slot->http10) {
    err = wefti_bytes_add(b, chunked, sizeof chunked - 1);
  }
  err = err != WEFT_OK ? err : wefti_bytes_add(b, "\r\n", 2);
  if (err != WEFT_OK) {
    fail(slot);
  } else if (slot->head_only) {
    wefti_slot_done(slot);
  } else {
    slot->state = WEFTI_STREAM;
    wefti_touch(slot->conn);
  }
}

/* Length of the line at p, and in *skip that of its end (CR, LF or CRLF; 0 at the end).
 */
static size_t line_of(const char *p, size_t left, size_t *skip)
{
  size_t n = 0;
  while (n < left && p[n] != '\n' && p[n] != '\r') {
    n++;
  }
  *skip = 0;
  if (n < left) {
    *skip = p[n] == '\r' && left - n > 1 && p[n + 1] == '\n' ? 2 : 1;
  }
  return n;
}

/* Walks over the lines of data: bytes of the event without its name; out may be NULL. */
static size_t put_data(char *out, const char *data, size_t len)
{
  static const char name[] = "data: ";
  size_t total = 0;
  size_t at = 0;
  for (;;) {
    size_t skip = 0;
    const size_t n = line_of(data + at, len - at, &skip);
    if (out != NULL) {
      memcpy(out + total, name, sizeof name - 1);
      memcpy(out + total + sizeof name - 1, data + at, n);
      out[total + sizeof name - 1 + n] = '\n';
    }
    total += sizeof name + n;
    at += n + skip;
    if (skip == 0) {
      return total;
    }
  }
}

static weft_err put_event(wefti_slot *slot, wefti_bytes *b, const char *event,
                          const char *data, size_t len)
{
  const size_t event_len = event == NULL ? 0 : strlen(event);
  const size_t line = event_len == 0 ? 0 : event_len + sizeof "event: " - 1 + 1;
  size_t size = 0;
  weft_err err = weft_size_add(put_data(NULL, data, len), line + 1, &size);
  err = err != WEFT_OK ? err : wefti_bytes_room(b, size);
  if (err != WEFT_OK) {
    return err;
  }
  char chunk[24];
  if (!slot->http10) {
    const int n = snprintf(chunk, sizeof chunk, "%zx\r\n", size);
    err = n < 0 ? WEFT_E_FAILED : wefti_bytes_add(b, chunk, (size_t)n);
  }
  if (err == WEFT_OK && line > 0) {
    err = wefti_bytes_add(b, "event: ", sizeof "event: " - 1);
    err = err != WEFT_OK ? err : wefti_bytes_add(b, event, event_len);
    err = err != WEFT_OK ? err : wefti_bytes_add(b, "\n", 1);
  }
  err = err != WEFT_OK ? err : wefti_bytes_room(b, size + 3);
  if (err != WEFT_OK) {
    return err;
  }
  b->len += put_data(b->data + b->len, data, len);
  return wefti_bytes_add(b, slot->http10 ? "\n" : "\n\r\n", slot->http10 ? 1 : 3);
}

bool weft_http_stream_send(weft_http *server, weft_http_id id, const char *event,
                           const char *data, size_t len)
{
  wefti_slot *slot = wefti_slot_find(server, id);
  if (slot == NULL || slot->state != WEFTI_STREAM ||
      (event != NULL && strpbrk(event, "\r\n") != NULL)) {
    return false;
  }
  wefti_conn *c = slot->conn;
  const size_t unsent = slot == c->first ? wefti_conn_unsent(c) : slot->answer.len;
  if (len > WEFTI_STREAM_UNSENT_MAX || unsent > WEFTI_STREAM_UNSENT_MAX - len ||
      put_event(slot, wefti_slot_sink(slot), event, data == NULL ? "" : data,
                data == NULL ? 0 : len) != WEFT_OK) {
    fail(slot);
    return false;
  }
  wefti_touch(c);
  return true;
}

void weft_http_stream_end(weft_http *server, weft_http_id id)
{
  wefti_slot *slot = wefti_slot_find(server, id);
  if (slot == NULL || slot->state != WEFTI_STREAM) {
    return;
  }
  if (!slot->http10 &&
      wefti_bytes_add(wefti_slot_sink(slot), "0\r\n\r\n", 5) != WEFT_OK) {
    fail(slot);
    return;
  }
  wefti_slot_done(slot);
}
