#include "conn.h"
#include "weft/checked.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { HEAD_ROOM = 256 }; /* status line and our own fields */

const char *weft_http_phrase(int status)
{
  static const struct {
    int status;
    const char *phrase;
  } table[] = {
    { 200, "OK" },
    { 201, "Created" },
    { 202, "Accepted" },
    { 204, "No Content" },
    { 304, "Not Modified" },
    { 400, "Bad Request" },
    { 401, "Unauthorized" },
    { 403, "Forbidden" },
    { 404, "Not Found" },
    { 405, "Method Not Allowed" },
    { 408, "Request Timeout" },
    { 409, "Conflict" },
    { 410, "Gone" },
    { 412, "Precondition Failed" },
    { 413, "Request Entity Too Large" },
    { 415, "Unsupported Media Type" },
    { 417, "Expectation Failed" },
    { 422, "Unprocessable Entity" },
    { 425, "Too Early" },
    { 429, "Too Many Requests" },
    { 431, "Request Header Fields Too Large" },
    { 500, "Internal Server Error" },
    { 501, "Not Implemented" },
    { 502, "Bad Gateway" },
    { 503, "Service Unavailable" },
    { 504, "Gateway Timeout" },
    { 505, "HTTP Version Not Supported" },
    { 507, "Insufficient Storage" },
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (table[i].status == status) {
      return table[i].phrase;
    }
  }
  return status >= 500 ? "Server Error" : status >= 400 ? "Client Error" : "Unknown";
}

static void date_refresh(weft_http *server)
{
  static const char days[7][4] = { "Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat" };
  static const char months[12][4] = { "Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec" };
  const uint64_t second = weft_loop_now_ms(server->loop) / 1000 + 1;
  if (second == server->date_second) {
    return;
  }
  server->date_second = second;
  server->date_len = 0;
  const time_t now = time(NULL);
  struct tm tm;
  if (gmtime_r(&now, &tm) == NULL) {
    return;
  }
  /* not strftime: its names depend on the locale */
  const int n = snprintf(server->date, sizeof server->date,
                         "Date: %s, %02d %s %04d %02d:%02d:%02d GMT\r\n",
                         days[tm.tm_wday], tm.tm_mday, months[tm.tm_mon],
                         tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec);
  if (n > 0 && (size_t)n < sizeof server->date) {
    server->date_len = (size_t)n;
  }
}

wefti_bytes *wefti_slot_sink(wefti_slot *slot)
{
  wefti_conn *c = slot->conn;
  if (c->first != slot) {
    return &slot->answer;
  }
  weft_http *server = c->server;
  if (c->out.data == NULL && server->out_cached > 0) {
    c->out = server->out_cache[--server->out_cached];
  }
  return &c->out;
}

/* The callers made room. */
static void put(wefti_bytes *b, const char *text, size_t len)
{
  memcpy(b->data + b->len, text, len);
  b->len += len;
}

static void put_text(wefti_bytes *b, const char *text)
{
  put(b, text, strlen(text));
}

static void put_number(wefti_bytes *b, uint64_t n)
{
  char digits[20];
  size_t at = sizeof digits;
  do {
    digits[--at] = (char)('0' + n % 10);
    n /= 10;
  } while (n > 0);
  put(b, digits + at, sizeof digits - at);
}

weft_err wefti_reply_start(wefti_slot *slot, int status, size_t more, wefti_bytes **out)
{
  wefti_bytes *b = wefti_slot_sink(slot);
  wefti_conn *c = slot->conn;
  size_t need = 0;
  weft_err err = weft_size_add(more, HEAD_ROOM, &need);
  err = err != WEFT_OK ? err : wefti_bytes_room(b, need);
  if (err != WEFT_OK) {
    return err;
  }
  if (c->server->draining && slot == c->last && c->reading == NULL) {
    slot->keep = false;
    c->input_over = true;
  }
  put_text(b, "HTTP/1.1 ");
  put_number(b, (uint64_t)status);
  put_text(b, " ");
  put_text(b, weft_http_phrase(status));
  put_text(b, "\r\n");
  date_refresh(c->server);
  put(b, c->server->date, c->server->date_len);
  if (!slot->keep) {
    put_text(b, "Connection: close\r\n");
  } else if (slot->http10) {
    put_text(b, "Connection: keep-alive\r\n");
  }
  *out = b;
  return WEFT_OK;
}

static bool header_ok(const char *name, const char *value)
{
  return name != NULL && value != NULL && wefti_is_token(name, strlen(name)) &&
         strpbrk(value, "\r\n") == NULL && strcasecmp(name, "Content-Length") != 0 &&
         strcasecmp(name, "Transfer-Encoding") != 0 &&
         strcasecmp(name, "Connection") != 0;
}

static weft_err reply_size(const weft_http_reply *r, const char *type, size_t *out)
{
  size_t n = 0;
  weft_err err = weft_size_add(r->body_len, type == NULL ? 0 : strlen(type) + 32, &n);
  for (size_t i = 0; i < r->header_count && err == WEFT_OK; i++) {
    const char *name = r->headers[i].name;
    const char *value = r->headers[i].value;
    if (header_ok(name, value)) {
      err = weft_size_add(n, strlen(name) + strlen(value) + 4, &n);
    }
  }
  *out = n;
  return err;
}

static weft_err reply_write(wefti_slot *slot, const weft_http_reply *r)
{
  const int status = r->status >= 200 && r->status <= 599 ? r->status : 500;
  const bool bare = status == 204 || status == 304;
  const size_t len = bare || r->body == NULL ? 0 : r->body_len;
  const char *type = r->content_type;
  if (type == NULL && len > 0) {
    type = "application/json";
  }
  if (bare || (type != NULL && strpbrk(type, "\r\n") != NULL)) {
    type = NULL;
  }
  size_t more = 0;
  wefti_bytes *b = NULL;
  weft_err err = reply_size(r, type, &more);
  err = err != WEFT_OK ? err : wefti_reply_start(slot, status, more, &b);
  if (err != WEFT_OK) {
    return err;
  }
  if (type != NULL) {
    put_text(b, "Content-Type: ");
    put_text(b, type);
    put_text(b, "\r\n");
  }
  for (size_t i = 0; i < r->header_count; i++) {
    if (header_ok(r->headers[i].name, r->headers[i].value)) {
      put_text(b, r->headers[i].name);
      put_text(b, ": ");
      put_text(b, r->headers[i].value);
      put_text(b, "\r\n");
    }
  }
  if (!bare) {
    put_text(b, "Content-Length: ");
    put_number(b, len);
    put_text(b, "\r\n");
  }
  put_text(b, "\r\n");
  if (!slot->head_only && len > 0) {
    put(b, r->body, len);
  }
  return WEFT_OK;
}

void wefti_slot_done(wefti_slot *slot)
{
  wefti_conn *c = slot->conn;
  slot->state = WEFTI_ANSWERED;
  c->server->stats.body_bytes_held -= slot->reserved;
  slot->reserved = 0;
  if (slot == c->first) {
    wefti_slots_advance(c);
  }
  if (!c->dead) {
    wefti_touch(c);
  }
}

static void answer(wefti_slot *slot, const weft_http_reply *reply)
{
  if (reply_write(slot, reply) != WEFT_OK) {
    wefti_conn_kill(slot->conn); /* out of memory: better no answer than half of one */
    return;
  }
  wefti_slot_done(slot);
}

void weft_http_respond(weft_http *server, weft_http_id id, const weft_http_reply *reply)
{
  wefti_slot *slot = wefti_slot_find(server, id);
  if (slot != NULL && slot->state == WEFTI_WORKING) {
    answer(slot, reply);
  }
}

void wefti_answer_error(wefti_slot *slot, int status, const char *message,
                        const char *allow)
{
  char body[512];
  weft_http_header header = { NULL, NULL };
  int n = 0;
  if (status == 404) {
    n = snprintf(body, sizeof body, "{\"detail\":\"Not Found\"}");
  } else if (status == 405) {
    n = snprintf(body, sizeof body, "{\"detail\":\"Method Not Allowed\"}");
    if (allow != NULL) {
      header = (weft_http_header){ "Allow", allow };
    }
  } else if (status == 401) {
    n = snprintf(body, sizeof body, "{\"error\":\"Unauthorized\"}");
    header = (weft_http_header){ "WWW-Authenticate", "Basic realm=\"weft\"" };
  } else { /* messages are ours: nothing in them needs escaping */
    n = snprintf(
        body, sizeof body,
        "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":%d}}",
        message, weft_http_phrase(status), status);
    if (status == 503) {
      header = (weft_http_header){ "Retry-After", "1" };
    }
  }
  slot->conn->server->stats.refused++;
  const weft_http_reply reply = {
    .status = status,
    .headers = &header,
    .header_count = header.name != NULL,
    .body = body,
    .body_len = n < 0 ? 0 : (size_t)n,
  };
  answer(slot, &reply);
}

void wefti_refuse(wefti_conn *c, int status, const char *message)
{
  wefti_slot *slot = c->reading != NULL ? c->reading->slot : wefti_slot_new(c);
  wefti_reading_free(c->reading);
  c->reading = NULL;
  c->input_over = true;
  c->in_head = false;
  if (slot == NULL) {
    wefti_conn_kill(c);
    return;
  }
  slot->keep = false;
  slot->want_continue = false;
  wefti_answer_error(slot, status, message, NULL);
}
