#include "tcpstore_wire.h"

#include "weft/checked.h"
#include "weft/tcpstore.h"

#include <stdlib.h>
#include <string.h>

bool wefti_sb_put(wefti_sb *b, const void *data, size_t n)
{
  size_t want;
  if (weft_size_add(b->len, n, &want) != WEFT_OK) {
    return false;
  }
  if (want > b->room) {
    size_t room = b->room < 256 ? 256 : b->room;
    while (room < want) {
      if (weft_size_mul(room, 2, &room) != WEFT_OK) {
        return false;
      }
    }
    uint8_t *p = realloc(b->data, room);
    if (p == NULL) {
      return false;
    }
    b->data = p;
    b->room = room;
  }
  if (n > 0) {
    memcpy(b->data + b->len, data, n);
    b->len = want;
  }
  return true;
}

bool wefti_sb_u8(wefti_sb *b, uint8_t v)
{
  return wefti_sb_put(b, &v, 1);
}

bool wefti_sb_u64(wefti_sb *b, uint64_t v)
{
  uint8_t p[8];
  for (unsigned i = 0; i < 8; i++) {
    p[i] = (uint8_t)(v >> (8 * i));
  }
  return wefti_sb_put(b, p, sizeof p);
}

bool wefti_sb_str(wefti_sb *b, const void *data, size_t n)
{
  return wefti_sb_u64(b, n) && wefti_sb_put(b, data, n);
}

enum { KEEP_ROOM = 64 << 10 };

void wefti_sb_drop(wefti_sb *b, size_t n)
{
  b->len -= n;
  if (b->len > 0) {
    memmove(b->data, b->data + n, b->len);
  } else if (b->room > KEEP_ROOM) {
    wefti_sb_fini(b);
  }
}

void wefti_sb_fini(wefti_sb *b)
{
  free(b->data);
  *b = (wefti_sb){ 0 };
}

uint64_t wefti_le(const uint8_t *p, size_t n)
{
  uint64_t v = 0;
  for (size_t i = 0; i < n; i++) {
    v |= (uint64_t)p[i] << (8 * i);
  }
  return v;
}

/* 4, 8: integer of so many bytes; k: key; v: value; K: list of keys; M: list of pairs. */
static const char *const shapes[] = {
  [WEFTI_ST_VALIDATE] = "4",   [WEFTI_ST_SET] = "kv",      [WEFTI_ST_COMPARE_SET] = "kvv",
  [WEFTI_ST_GET] = "k",        [WEFTI_ST_ADD] = "k8",      [WEFTI_ST_CHECK] = "K",
  [WEFTI_ST_WAIT] = "K",       [WEFTI_ST_GETNUMKEYS] = "", [WEFTI_ST_DELETE_KEY] = "k",
  [WEFTI_ST_APPEND] = "kv",    [WEFTI_ST_MULTI_GET] = "K", [WEFTI_ST_MULTI_SET] = "M",
  [WEFTI_ST_CANCEL_WAIT] = "", [WEFTI_ST_PING] = "4",      [WEFTI_ST_QUEUE_PUSH] = "kv",
  [WEFTI_ST_QUEUE_POP] = "k",  [WEFTI_ST_QUEUE_LEN] = "k", [WEFTI_ST_LIST_KEYS] = "",
  [WEFTI_ST_BARRIER] = "k8",
};
_Static_assert(sizeof shapes / sizeof shapes[0] == WEFTI_ST_OPS, "one shape each");

static weft_err skip(wefti_scan *s, size_t len, size_t n)
{
  if (n > WEFTI_ST_REQUEST_MAX - s->at) {
    return WEFT_E_LIMIT;
  }
  if (n > len - s->at) {
    return WEFT_E_AGAIN;
  }
  s->at += n;
  return WEFT_OK;
}

static weft_err skip_str(wefti_scan *s, const uint8_t *p, size_t len, bool key)
{
  if (len - s->at < 8) {
    return WEFT_E_AGAIN;
  }
  const uint64_t n = wefti_le(p + s->at, 8);
  if (n > (key ? (uint64_t)WEFT_TCPSTORE_KEY_MAX : (uint64_t)WEFT_TCPSTORE_VALUE_MAX)) {
    return WEFT_E_LIMIT;
  }
  return skip(s, len, 8 + (size_t)n);
}

static weft_err skip_list(wefti_scan *s, const uint8_t *p, size_t len, bool pairs)
{
  if (!s->in_list) {
    if (len - s->at < 8) {
      return WEFT_E_AGAIN;
    }
    const uint64_t n = wefti_le(p + s->at, 8);
    if (n > WEFTI_ST_KEYS_MAX) {
      return WEFT_E_LIMIT;
    }
    s->at += 8;
    s->left = pairs ? 2 * n : n;
    s->in_list = true;
  }
  for (; s->left > 0; s->left--) {
    const weft_err err = skip_str(s, p, len, !pairs || s->left % 2 == 0);
    if (err != WEFT_OK) {
      return err;
    }
  }
  s->in_list = false;
  return WEFT_OK;
}

weft_err wefti_scan_request(wefti_scan *s, const uint8_t *p, size_t len, size_t *size)
{
  if (len == 0) {
    return WEFT_E_AGAIN;
  }
  if (p[0] >= WEFTI_ST_OPS) {
    return WEFT_E_PROTO;
  }
  if (s->at == 0) {
    s->at = 1;
  }
  const char *shape = shapes[p[0]];
  for (; shape[s->step] != '\0'; s->step++) {
    const char a = shape[s->step];
    const weft_err err = a == '4' || a == '8'   ? skip(s, len, (size_t)(a - '0'))
                         : a == 'k' || a == 'v' ? skip_str(s, p, len, a == 'k')
                                                : skip_list(s, p, len, a == 'M');
    if (err != WEFT_OK) {
      return err;
    }
  }
  *size = s->at;
  return WEFT_OK;
}

/* The bounds hold already; they are kept here too, for a walk that asks for too much. */
uint64_t wefti_walk_int(wefti_walk *w, size_t n)
{
  if (n > (size_t)(w->end - w->at)) {
    w->at = w->end;
    return 0;
  }
  const uint64_t v = wefti_le(w->at, n);
  w->at += n;
  return v;
}

wefti_span wefti_walk_str(wefti_walk *w)
{
  const uint64_t n = wefti_walk_int(w, 8);
  if (n > (size_t)(w->end - w->at)) {
    w->at = w->end;
    return (wefti_span){ .at = w->end };
  }
  const wefti_span s = { .at = w->at, .len = (size_t)n };
  w->at += n;
  return s;
}
