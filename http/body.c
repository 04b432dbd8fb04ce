#include "conn.h"

#include <stdlib.h>
#include <string.h>

enum { BODY_FIRST = 4096 };

void wefti_reading_free(wefti_reading *rd)
{
  if (rd != NULL) {
    wefti_bytes_fini(&rd->body);
    free(rd);
  }
}

static bool reserve(weft_http *server, wefti_slot *slot, size_t bytes)
{
  if (bytes > server->opts.body_memory_max - server->stats.body_bytes_held) {
    return false;
  }
  server->stats.body_bytes_held += bytes;
  slot->reserved += bytes;
  return true;
}

static const char too_large[] = "Request body is larger than the limit of this server";
static const char no_memory[] = "Too many request bodies are being held, try again";

void wefti_body_begin(wefti_conn *c, wefti_slot *slot, const wefti_head *head,
                      const wefti_outcome *outcome, bool more_here)
{
  weft_http *server = c->server;
  const bool length = head->body == WEFTI_LENGTH;
  const bool keep =
      outcome->route != NULL && (outcome->route->flags & WEFT_HTTP_BODY) != 0;
  wefti_reading *rd = malloc(sizeof *rd + head->len);
  if (rd == NULL) {
    wefti_conn_kill(c);
    return;
  }
  *rd = (wefti_reading){
    .slot = slot,
    .outcome = *outcome,
    .keep_body = keep,
    .chunked = !length,
    .left = head->content_length,
    .received_ms = weft_loop_now_ms(server->loop),
    .head_len = head->len,
  };
  memcpy(rd->head, head->data, head->len);
  wefti_chunk_init(&rd->chunk);
  c->reading = rd;
  slot->state = WEFTI_READING;
  c->read_deadline = rd->received_ms + server->opts.body_ms;
  if (length && head->content_length > server->opts.body_max) {
    wefti_refuse(c, 413, too_large);
  } else if (length && keep && !reserve(server, slot, (size_t)head->content_length)) {
    wefti_refuse(c, 503, no_memory);
  } else if (head->expect_continue && !more_here) {
    slot->want_continue = true;
    if (slot == c->first) {
      wefti_slots_advance(c);
    }
  }
}

/* Room for more bytes and the NUL of a weft_buf: doubling, within what is allowed. */
static int make_room(wefti_conn *c, wefti_reading *rd, size_t more)
{
  wefti_bytes *b = &rd->body;
  const size_t most = rd->chunked ? c->server->opts.body_max : rd->left + b->len;
  const size_t need = b->len + more + 1; /* both within body_max */
  if (need <= b->cap) {
    return 0;
  }
  size_t cap = b->cap == 0 ? BODY_FIRST : b->cap * 2;
  cap = cap < need ? need : cap;
  cap = cap > most + 1 ? most + 1 : cap;
  if (rd->chunked && !reserve(c->server, rd->slot, cap - b->cap)) {
    return 503;
  }
  char *data = realloc(b->data, cap);
  if (data == NULL) {
    return 503;
  }
  b->data = data;
  b->cap = cap;
  return 0;
}

static bool take_piece(wefti_conn *c, wefti_reading *rd, const char *piece, size_t len)
{
  if (len > c->server->opts.body_max - rd->seen) {
    wefti_refuse(c, 413, too_large);
    return false;
  }
  if (rd->keep_body && len > 0) {
    if (make_room(c, rd, len) != 0) {
      wefti_refuse(c, 503, no_memory);
      return false;
    }
    memcpy(rd->body.data + rd->body.len, piece, len);
    rd->body.len += len;
  }
  rd->seen += len;
  return true;
}

static wefti_verdict take_chunked(wefti_conn *c, const char *data, size_t len,
                                  size_t *used)
{
  wefti_reading *rd = c->reading;
  *used = 0;
  for (;;) {
    size_t step = 0;
    wefti_piece piece;
    const wefti_verdict v = wefti_chunk_run(&rd->chunk, data + *used, len - *used,
                                            c->server->opts.head_max, &step, &piece);
    *used += step;
    if (v == WEFTI_BAD) {
      wefti_refuse(c, 400, "Chunked request body is not valid");
      return WEFTI_BAD;
    }
    if (!take_piece(c, rd, piece.data, piece.len)) {
      return WEFTI_BAD;
    }
    if (rd->chunk.left >
        c->server->opts.body_max - rd->seen) { /* announced, not yet here */
      wefti_refuse(c, 413, too_large);
      return WEFTI_BAD;
    }
    if (v == WEFTI_DONE || *used == len) {
      return v;
    }
  }
}

wefti_verdict wefti_body_take(wefti_conn *c, const char *data, size_t len, size_t *used)
{
  wefti_reading *rd = c->reading;
  rd->slot->want_continue = false; /* it did not wait */
  if (rd->chunked) {
    return take_chunked(c, data, len, used);
  }
  *used = len < rd->left ? len : (size_t)rd->left;
  if (!take_piece(c, rd, data, *used)) {
    return WEFTI_BAD;
  }
  rd->left -= *used;
  return rd->left == 0 ? WEFTI_DONE : WEFTI_MORE;
}
