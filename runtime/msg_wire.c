#include "msg_pack.h"
#include "weft/checked.h"
#include "weft/msg.h"

#include <string.h>

enum {
  STR_MAX = 1 << 20,  /* bytes on the wire */
  BUF_MAX = 64 << 20, /* bytes on the wire */
};

#define BUF_NULL 0xffffffffu /* length of a NULL buf on the wire */

static void put_le(uint8_t *p, uint64_t v, unsigned bytes)
{
  for (unsigned i = 0; i < bytes; i++) {
    p[i] = (uint8_t)(v >> (8 * i));
  }
}

static uint64_t get_le(const uint8_t *p, unsigned bytes)
{
  uint64_t v = 0;
  for (unsigned i = 0; i < bytes; i++) {
    v |= (uint64_t)p[i] << (8 * i);
  }
  return v;
}

/* Bytes of one field on the wire; LIMIT of the format itself is OVERFLOW. */
static weft_err wire_size(const weft_msg *msg, const weft_field *f, size_t *out)
{
  switch (f->kind) {
  case WEFT_FIELD_u32:
    *out = 4;
    return WEFT_OK;
  case WEFT_FIELD_u64:
    *out = 8;
    return WEFT_OK;
  case WEFT_FIELD_str: {
    const size_t len = wefti_get_str(msg, f).len;
    *out = 4 + len;
    return len > STR_MAX ? WEFT_E_OVERFLOW : WEFT_OK;
  }
  case WEFT_FIELD_buf: {
    const weft_buf *b = wefti_get_buf(msg, f);
    const size_t len = b == NULL ? 0 : b->len;
    if (len > BUF_MAX) {
      return WEFT_E_OVERFLOW;
    }
    *out = 4 + len;
    return WEFT_OK;
  }
  }
  return WEFT_E_INVAL;
}

static uint8_t *put_bytes(uint8_t *p, const void *data, size_t len)
{
  put_le(p, len, 4);
  if (len > 0) {
    memcpy(p + 4, data, len);
  }
  return p + 4 + len;
}

static uint8_t *put_field(uint8_t *p, const weft_msg *msg, const weft_field *f)
{
  switch (f->kind) {
  case WEFT_FIELD_u32: {
    uint32_t v;
    memcpy(&v, wefti_field_of(msg, f), sizeof v);
    put_le(p, v, 4);
    return p + 4;
  }
  case WEFT_FIELD_u64: {
    uint64_t v;
    memcpy(&v, wefti_field_of(msg, f), sizeof v);
    put_le(p, v, 8);
    return p + 8;
  }
  case WEFT_FIELD_str: {
    const weft_str s = wefti_get_str(msg, f);
    return put_bytes(p, s.p, s.len);
  }
  case WEFT_FIELD_buf: {
    const weft_buf *b = wefti_get_buf(msg, f);
    if (b == NULL) {
      put_le(p, BUF_NULL, 4);
      return p + 4;
    }
    return put_bytes(p, b->data, b->len);
  }
  }
  return p;
}

/* What is left until due, at least 1 so that it stays a deadline. */
static uint32_t remaining_ms(uint64_t due_ms, uint64_t now_ms)
{
  if (due_ms == 0) {
    return 0;
  }
  if (due_ms <= now_ms) {
    return 1;
  }
  const uint64_t left = due_ms - now_ms;
  return left > UINT32_MAX ? UINT32_MAX : (uint32_t)left;
}

weft_err weft_msg_encode(const weft_catalogue *cat, const weft_msg *msg, uint64_t now_ms,
                         uint8_t *out, size_t cap, size_t *len)
{
  const weft_msg_desc *desc = weft_msg_desc_of(cat, msg->type);
  if (desc == NULL) {
    return WEFT_E_NOTFOUND;
  }
  size_t payload = 0;
  for (uint16_t i = 0; i < desc->field_count; i++) {
    size_t n = 0;
    const weft_err err = wire_size(msg, &desc->fields[i], &n);
    if (err != WEFT_OK) {
      return err;
    }
    if (weft_size_add(payload, n, &payload) != WEFT_OK || payload > UINT32_MAX) {
      return WEFT_E_OVERFLOW;
    }
  }
  *len = WEFT_FRAME_HEADER + payload;
  if (cap < *len) {
    return WEFT_E_LIMIT;
  }
  out[0] = 'w';
  out[1] = WEFT_FRAME_VERSION;
  put_le(out + 2, msg->type, 2);
  put_le(out + 4, msg->flags & WEFTI_FLAGS_WIRE, 4);
  put_le(out + 8, msg->corr, 8);
  put_le(out + 16, remaining_ms(msg->due_ms, now_ms), 4);
  put_le(out + 20, payload, 4);
  uint8_t *p = out + WEFT_FRAME_HEADER;
  for (uint16_t i = 0; i < desc->field_count; i++) {
    p = put_field(p, msg, &desc->fields[i]);
  }
  return WEFT_OK;
}

typedef struct reader {
  const uint8_t *p;
  size_t left; /* bytes */
} reader;

static weft_err rd_le(reader *rd, unsigned bytes, uint64_t *out)
{
  if (rd->left < bytes) {
    return WEFT_E_TRUNCATED;
  }
  *out = get_le(rd->p, bytes);
  rd->p += bytes;
  rd->left -= bytes;
  return WEFT_OK;
}

/* Length-prefixed bytes; *data is NULL for a NULL buf. */
static weft_err rd_bytes(reader *rd, size_t max, bool may_be_null, const uint8_t **data,
                         size_t *len)
{
  uint64_t n;
  if (rd_le(rd, 4, &n) != WEFT_OK) {
    return WEFT_E_TRUNCATED;
  }
  if (may_be_null && n == BUF_NULL) {
    *data = NULL;
    *len = 0;
    return WEFT_OK;
  }
  if (n > max) {
    return WEFT_E_LIMIT;
  }
  if (n > rd->left) {
    return WEFT_E_TRUNCATED;
  }
  *data = rd->p;
  *len = (size_t)n;
  rd->p += n;
  rd->left -= (size_t)n;
  return WEFT_OK;
}

/* Reads one field.  msg NULL: only checks and adds what its strings need to *extra. */
static weft_err rd_field(reader *rd, const weft_field *f, weft_msg *msg, char **tail,
                         size_t *extra)
{
  if (f->kind == WEFT_FIELD_u32 || f->kind == WEFT_FIELD_u64) {
    uint64_t v;
    const weft_err err = rd_le(rd, f->kind == WEFT_FIELD_u32 ? 4 : 8, &v);
    if (err != WEFT_OK || msg == NULL) {
      return err;
    }
    if (f->kind == WEFT_FIELD_u32) {
      const uint32_t v32 = (uint32_t)v;
      memcpy(wefti_field_at(msg, f), &v32, sizeof v32);
    } else {
      memcpy(wefti_field_at(msg, f), &v, sizeof v);
    }
    return WEFT_OK;
  }
  const bool is_str = f->kind == WEFT_FIELD_str;
  const uint8_t *data;
  size_t len;
  const weft_err err = rd_bytes(rd, is_str ? STR_MAX : BUF_MAX, !is_str, &data, &len);
  if (err != WEFT_OK) {
    return err;
  }
  if (msg == NULL) {
    return is_str ? weft_size_add(*extra, len + 1, extra) : WEFT_OK;
  }
  if (is_str) {
    const weft_str s = { *tail, (uint32_t)len };
    memcpy(*tail, data, len);
    (*tail)[len] = '\0';
    *tail += len + 1;
    memcpy(wefti_field_at(msg, f), &s, sizeof s);
    return WEFT_OK;
  }
  if (data != NULL) {
    weft_buf *b = weft_buf_create(data, len);
    if (b == NULL) {
      return WEFT_E_NOMEM;
    }
    wefti_set_buf(msg, f, b);
    msg->flags |= WEFT_MSG_F_DEEP;
  }
  return WEFT_OK;
}

static weft_err rd_header(const uint8_t *data, size_t len, weft_msg *h, uint64_t now_ms)
{
  if (len > 0 && data[0] != 'w') {
    return WEFT_E_PROTO;
  }
  if (len > 1 && data[1] != WEFT_FRAME_VERSION) {
    return WEFT_E_PROTO;
  }
  if (len < WEFT_FRAME_HEADER) {
    return WEFT_E_TRUNCATED;
  }
  const uint64_t flags = get_le(data + 4, 4);
  const uint64_t payload = get_le(data + 20, 4);
  const uint64_t left = get_le(data + 16, 4);
  if ((flags & ~(uint64_t)WEFTI_FLAGS_WIRE) != 0) {
    return WEFT_E_PROTO;
  }
  if (payload != len - WEFT_FRAME_HEADER) {
    return payload > len - WEFT_FRAME_HEADER ? WEFT_E_TRUNCATED : WEFT_E_TRAILING;
  }
  h->type = (uint16_t)get_le(data + 2, 2);
  h->flags = (uint16_t)flags;
  h->corr = get_le(data + 8, 8);
  h->due_ms = left == 0 ? 0 : now_ms + left;
  return WEFT_OK;
}

weft_err weft_msg_decode(const weft_catalogue *cat, const uint8_t *data, size_t len,
                         uint64_t now_ms, weft_msg **out)
{
  weft_msg head = { 0 };
  weft_err err = rd_header(data, len, &head, now_ms);
  if (err != WEFT_OK) {
    return err;
  }
  const weft_msg_desc *desc = weft_msg_desc_of(cat, head.type);
  if (desc == NULL) {
    return WEFT_E_NOTFOUND;
  }
  const reader start = { data + WEFT_FRAME_HEADER, len - WEFT_FRAME_HEADER };
  reader rd = start;
  size_t size = desc->size;
  for (uint16_t i = 0; i < desc->field_count; i++) {
    err = rd_field(&rd, &desc->fields[i], NULL, NULL, &size);
    if (err != WEFT_OK) {
      return err;
    }
  }
  if (rd.left != 0) {
    return WEFT_E_TRAILING;
  }
  weft_msg *m = wefti_msg_heap(head.type, size);
  if (m == NULL) {
    return WEFT_E_NOMEM;
  }
  head.home = m->home;
  *m = head;
  char *tail = (char *)m + desc->size;
  rd = start;
  for (uint16_t i = 0; i < desc->field_count; i++) {
    err = rd_field(&rd, &desc->fields[i], m, &tail, NULL);
    if (err != WEFT_OK) {
      wefti_msg_drop_heap(cat, m);
      return err;
    }
  }
  *out = m;
  return WEFT_OK;
}
