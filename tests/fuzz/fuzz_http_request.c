/* The parser layer without sockets: scan, head, chunked body, then the next request.
 * Checks that two ways to cut the input give the same result and that offsets stay
 * inside. */
#include "conn.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_MAX = 4096 };

static void require(int ok)
{
  if (!ok) {
    abort();
  }
}

static void check_fields(wefti_head *h)
{
  require(h->path + h->path_len <= h->len && h->query + h->query_len < h->len);
  for (size_t i = 0; i < h->field_count; i++) {
    const wefti_field *f = &h->fields[i];
    require(f->name_len > 0 && f->name + f->name_len < h->len);
    require(f->value_len == 0 || f->value + f->value_len < h->len);
    require(memchr(h->data + f->name, '\r', f->name_len) == NULL);
    require(f->value_len == 0 || memchr(h->data + f->value, '\n', f->value_len) == NULL);
  }
  char path[HEAD_MAX];
  size_t n = 0;
  if (wefti_percent_decode(h->data + h->path, h->path_len, false, path, sizeof path,
                           &n) == WEFT_OK) {
    require(n <= h->path_len && memchr(path, 0, n) == NULL);
  }
  wefti_head_terminate(h);
  require(strlen(h->data + h->query) == h->query_len);
}

/* Bytes used, or 0 when there is no more to learn. */
static size_t body(const wefti_head *h, const char *data, size_t len)
{
  if (h->body == WEFTI_LENGTH) {
    return h->content_length < len ? (size_t)h->content_length : 0;
  }
  if (h->body == WEFTI_NO_BODY) {
    return SIZE_MAX;
  }
  wefti_chunk ck;
  wefti_chunk_init(&ck);
  size_t used = 0;
  while (used < len) {
    size_t step = 0;
    wefti_piece piece;
    const wefti_verdict v =
        wefti_chunk_run(&ck, data + used, len - used, HEAD_MAX, &step, &piece);
    require(step <= len - used && piece.len <= step);
    used += step;
    if (v != WEFTI_MORE) {
      return v == WEFTI_DONE ? used : 0;
    }
    require(step > 0);
  }
  return 0;
}

static wefti_verdict scan_whole(const char *data, size_t len, size_t *pos)
{
  wefti_scan whole;
  wefti_scan parts;
  wefti_scan_init(&whole, false);
  wefti_scan_init(&parts, false);
  const wefti_verdict v = wefti_scan_run(&whole, data, len);
  wefti_verdict w = WEFTI_MORE;
  for (size_t n = 1; n <= len && w == WEFTI_MORE; n++) {
    w = wefti_scan_run(&parts, data, n);
  }
  require(len == 0 || (v == w && whole.pos == parts.pos && whole.status == parts.status));
  *pos = whole.pos;
  return v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  wefti_head *head = malloc(sizeof *head);
  const char *p = (const char *)data;
  size_t left = size > HEAD_MAX ? HEAD_MAX : size;
  while (head != NULL && left > 0) {
    size_t n = 0;
    if (scan_whole(p, left, &n) != WEFTI_DONE) {
      break;
    }
    char *copy = malloc(n); /* exact, so that a sanitizer sees the end */
    if (copy == NULL) {
      break;
    }
    memcpy(copy, p, n);
    const int status = wefti_head_parse(head, copy, n);
    require(status == 0 || (status >= 400 && head->bad != NULL));
    p += n;
    left -= n;
    size_t used = 0;
    if (status == 0) {
      check_fields(head);
      used = body(head, p, left);
    }
    free(copy);
    if (used == 0) {
      break;
    }
    used = used == SIZE_MAX ? 0 : used;
    p += used;
    left -= used;
  }
  free(head);
  return 0;
}
