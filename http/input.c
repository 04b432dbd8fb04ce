/* Bytes to requests: head, route, body, handler.  Handlers may answer, kill c or destroy
 * the server: after each call c->dead and server->doomed are looked at before anything
 * else. */
#include "conn.h"

#include <string.h>

static void dispatch(wefti_conn *c, wefti_slot *slot, const weft_http_route *route,
                     weft_buf *body, uint64_t received_ms)
{
  weft_http *server = c->server;
  wefti_head *head = &server->head;
  wefti_head_terminate(head);
  const wefti_request request = {
    .pub = { .id = slot->id,
             .peer = c->peer,
             .route = route,
             .query = head->data + head->query,
             .body = body,
             .received_ms = received_ms },
    .head = head,
  };
  slot->state = WEFTI_WORKING;
  c->known = true;
  server->opts.on_request(server->opts.arg, &request.pub);
}

/* The whole request is here. */
static void complete(wefti_conn *c, wefti_slot *slot, const wefti_outcome *outcome,
                     weft_buf *body, uint64_t received_ms)
{
  if (!slot->keep) {
    c->input_over = true;
  }
  if (outcome->route != NULL) {
    dispatch(c, slot, outcome->route, body, received_ms);
  } else {
    slot->state = WEFTI_WORKING;
    wefti_answer_error(slot, outcome->status, "Request path is not valid",
                       outcome->allow);
  }
}

static void request_begin(wefti_conn *c, char *data, size_t head_len, bool more_here)
{
  weft_http *server = c->server;
  wefti_head *head = &server->head;
  const int status = wefti_head_parse(head, data, head_len);
  if (status != 0) {
    wefti_refuse(c, status, head->bad);
    return;
  }
  server->stats.requests++;
  wefti_slot *slot = wefti_slot_new(c);
  if (slot == NULL) {
    wefti_conn_kill(c);
    return;
  }
  slot->http10 = head->http10;
  slot->keep = head->keep_alive;
  slot->head_only = strcmp(head->method, "HEAD") == 0;
  wefti_outcome outcome;
  wefti_route_find(server, head, &outcome);
  const bool has_body = head->body == WEFTI_CHUNKED ||
                        (head->body == WEFTI_LENGTH && head->content_length > 0);
  /* A refused client that waits for 100 is told now, and its body is not read. */
  const bool early = outcome.route == NULL &&
                     (outcome.status == 400 || (has_body && head->expect_continue));
  if (early) {
    slot->keep = false;
  }
  if (has_body && !early) {
    wefti_body_begin(c, slot, head, &outcome, more_here);
  } else {
    complete(c, slot, &outcome, NULL, weft_loop_now_ms(server->loop));
  }
}

static void body_done(wefti_conn *c)
{
  weft_http *server = c->server;
  wefti_reading *rd = c->reading;
  c->reading = NULL;
  weft_buf *body = NULL;
  if (rd->body.len > 0) {
    body = weft_buf_adopt(rd->body.data, rd->body.len);
    if (body == NULL) {
      wefti_reading_free(rd);
      wefti_conn_kill(c);
      return;
    }
    rd->body = (wefti_bytes){ 0 };
  }
  /* The same bytes again: the handler gets its headers, and keeping them parsed would
   * cost every reading connection a field table. */
  if (wefti_head_parse(&server->head, rd->head, rd->head_len) == 0) {
    complete(c, rd->slot, &rd->outcome, body, rd->received_ms);
  } else {
    wefti_conn_kill(c);
  }
  weft_buf_unref(body);
  wefti_reading_free(rd);
}

static size_t body_step(wefti_conn *c, const char *data, size_t len)
{
  size_t used = 0;
  const wefti_verdict v = wefti_body_take(c, data, len, &used);
  if (v == WEFTI_DONE) {
    body_done(c);
  }
  return used;
}

/* Bytes used; 0: the head is not complete. */
static size_t head_step(wefti_conn *c, char *data, size_t len)
{
  weft_http *server = c->server;
  const wefti_verdict v = wefti_scan_run(&c->scan, data, len);
  const size_t pos = c->scan.pos;
  const uint16_t status = c->scan.status;
  if (v == WEFTI_MORE && wefti_scan_blank(&c->scan)) {
    wefti_scan_init(&c->scan, false);
    return pos;
  }
  if (v == WEFTI_MORE && len < server->opts.head_max) {
    if (!c->in_head) {
      c->in_head = true;
      c->read_deadline = weft_loop_now_ms(server->loop) + server->opts.head_ms;
    }
    return 0;
  }
  wefti_scan_init(&c->scan, false);
  c->in_head = false;
  if (v == WEFTI_BAD) {
    wefti_refuse(c, status,
                 status == 505 ? "HTTP version is not supported"
                               : "Invalid HTTP request received.");
    return len;
  }
  if (v == WEFTI_MORE || pos > server->opts.head_max) {
    wefti_refuse(c, 431, "Request head is larger than the limit of this server");
    return len;
  }
  request_begin(c, data, pos, len > pos);
  return pos;
}

bool wefti_conn_full(const wefti_conn *c)
{
  return c->reading == NULL && (c->slots >= c->server->opts.pipeline_max ||
                                wefti_conn_unsent(c) >= WEFTI_OUT_SOFT);
}

size_t wefti_input(wefti_conn *c, char *data, size_t len)
{
  size_t used = 0;
  while (used < len && !c->dead && !c->server->doomed) {
    if (c->input_over || c->closing) {
      return len;
    }
    if (c->reading != NULL) {
      used += body_step(c, data + used, len - used);
      continue;
    }
    if (wefti_conn_full(c) && (!wefti_conn_flush(c) || wefti_conn_full(c))) {
      c->paused = true;
      break;
    }
    const size_t n = head_step(c, data + used, len - used);
    if (n == 0) {
      break;
    }
    used += n;
  }
  return used;
}
