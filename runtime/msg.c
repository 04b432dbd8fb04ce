#include "weft/msg.h"

#include "msg_pack.h"
#include "weft/checked.h"
#include "weft/supervise.h"

#include <stdlib.h>
#include <string.h>

enum {
  STR_MAX = 1 << 20,  /* bytes on the wire */
  BUF_MAX = 64 << 20, /* bytes on the wire */
  FLAGS_WIRE = WEFT_MSG_F_REPLY | WEFT_MSG_F_RESERVED
};

#define BUF_NULL 0xffffffffu /* length of a NULL buf on the wire */

_Static_assert(sizeof(weft_msg) % 8 == 0, "fields follow the header without a hole");

const weft_msg_desc *weft_msg_desc_of(const weft_catalogue *cat, uint16_t type)
{
  if (cat == NULL || type == 0 || type >= cat->count || cat->descs[type].size == 0) {
    return NULL;
  }
  return &cat->descs[type];
}

/* The structs of weft/msg.h that no catalogue lists. */
static size_t system_size(uint16_t type)
{
  switch (type) {
  case WEFT_MSG_TIMER:
    return sizeof(weft_timer_msg);
  case WEFT_MSG_DOWN:
    return sizeof(weft_down_msg);
  case WEFT_MSG_ASK_FAILED:
    return sizeof(weft_ask_failed_msg);
  case WEFT_MSG_STOP:
    return sizeof(weft_msg);
  case WEFT_MSG_CHILD_WHERE:
    return sizeof(weft_child_where);
  case WEFT_MSG_CHILD_IS:
    return sizeof(weft_child_is);
  default:
    return 0;
  }
}

static void *field_at(weft_msg *msg, const weft_field *f)
{
  return (uint8_t *)msg + f->offset;
}

static const void *field_of(const weft_msg *msg, const weft_field *f)
{
  return (const uint8_t *)msg + f->offset;
}

static weft_str get_str(const weft_msg *msg, const weft_field *f)
{
  weft_str s;
  memcpy(&s, field_of(msg, f), sizeof s);
  return s;
}

static weft_buf *get_buf(const weft_msg *msg, const weft_field *f)
{
  weft_buf *b;
  memcpy((void *)&b, field_of(msg, f), sizeof(void *));
  return b;
}

static void set_buf(weft_msg *msg, const weft_field *f, weft_buf *b)
{
  memcpy(field_at(msg, f), (const void *)&b, sizeof(void *));
}

/* ---- copies */

weft_err wefti_msg_packed_size(const weft_catalogue *cat, const weft_msg *msg,
                               size_t *out)
{
  const weft_msg_desc *desc = weft_msg_desc_of(cat, msg->type);
  if (desc == NULL) {
    const size_t size = system_size(msg->type);
    if (size == 0) {
      return WEFT_E_INVAL;
    }
    *out = size;
    return WEFT_OK;
  }
  size_t total = desc->size;
  for (uint16_t i = 0; i < desc->field_count; i++) {
    if (desc->fields[i].kind == WEFT_FIELD_str) {
      const size_t len = get_str(msg, &desc->fields[i]).len;
      if (weft_size_add(total, len + 1, &total) != WEFT_OK) {
        return WEFT_E_OVERFLOW;
      }
    }
  }
  *out = total;
  return WEFT_OK;
}

void wefti_msg_pack(const weft_catalogue *cat, const weft_msg *msg, weft_msg *dst)
{
  const weft_msg_desc *desc = weft_msg_desc_of(cat, msg->type);
  const size_t size = desc != NULL ? desc->size : system_size(msg->type);
  const uint32_t home = dst->home;
  memcpy(dst, msg, size);
  dst->next = NULL;
  dst->home = home;
  dst->flags = msg->flags & FLAGS_WIRE;
  if (desc == NULL) {
    return;
  }
  char *tail = (char *)dst + size;
  for (uint16_t i = 0; i < desc->field_count; i++) {
    const weft_field *f = &desc->fields[i];
    if (f->kind == WEFT_FIELD_str) {
      weft_str s = get_str(msg, f);
      if (s.len > 0) {
        memcpy(tail, s.p, s.len);
      }
      tail[s.len] = '\0';
      s.p = tail;
      memcpy(field_at(dst, f), &s, sizeof s);
      tail += s.len + 1u;
    } else if (f->kind == WEFT_FIELD_buf && weft_buf_ref(get_buf(msg, f)) != NULL) {
      dst->flags |= WEFT_MSG_F_DEEP;
    }
  }
}

void wefti_msg_release(const weft_catalogue *cat, weft_msg *msg)
{
  const weft_msg_desc *desc = weft_msg_desc_of(cat, msg->type);
  if ((msg->flags & WEFT_MSG_F_DEEP) == 0 || desc == NULL) {
    return;
  }
  msg->flags &= (uint16_t)~WEFT_MSG_F_DEEP;
  for (uint16_t i = 0; i < desc->field_count; i++) {
    if (desc->fields[i].kind == WEFT_FIELD_buf) {
      weft_buf_unref(get_buf(msg, &desc->fields[i]));
      set_buf(msg, &desc->fields[i], NULL);
    }
  }
}

weft_msg *wefti_msg_heap(uint16_t type, size_t size)
{
  /* Room for ASK_FAILED: a question that cannot be put becomes its own failure. */
  size = size < sizeof(weft_ask_failed_msg) ? sizeof(weft_ask_failed_msg) : size;
  if (size > WEFTI_MSG_SIZE_MAX) {
    return NULL;
  }
  const size_t units = (size + WEFTI_HOME_SIZE_UNIT - 1) / WEFTI_HOME_SIZE_UNIT;
  weft_msg *m = calloc(units, WEFTI_HOME_SIZE_UNIT);
  if (m != NULL) {
    m->type = type;
    m->home = (uint32_t)units << WEFTI_HOME_SIZE_SHIFT;
  }
  return m;
}

weft_msg *weft_msg_heap_new(uint16_t type, size_t size)
{
  return size < sizeof(weft_msg) ? NULL : wefti_msg_heap(type, size);
}

weft_msg *weft_msg_dup(const weft_catalogue *cat, const weft_msg *msg)
{
  size_t size;
  if (wefti_msg_packed_size(cat, msg, &size) != WEFT_OK) {
    return NULL;
  }
  weft_msg *m = wefti_msg_heap(msg->type, size);
  if (m != NULL) {
    wefti_msg_pack(cat, msg, m);
  }
  return m;
}

weft_msg *wefti_msg_clone(const weft_catalogue *cat, const weft_msg *msg)
{
  weft_msg *m = weft_msg_dup(cat, msg);
  if (m != NULL || weft_msg_desc_of(cat, msg->type) != NULL || wefti_msg_room(msg) == 0) {
    return m;
  }
  m = wefti_msg_heap(msg->type, wefti_msg_room(msg)); /* a host type: plain bytes */
  if (m != NULL) {
    const uint32_t home = m->home;
    memcpy(m, msg, wefti_msg_room(msg));
    m->next = NULL;
    m->home = home;
  }
  return m;
}

weft_msg *wefti_msg_to_heap(const weft_catalogue *cat, weft_msg *msg)
{
  return (msg->home & WEFTI_HOME_POOL_MASK) == 0 ? msg : wefti_msg_clone(cat, msg);
}

void wefti_msg_drop_heap(const weft_catalogue *cat, weft_msg *msg)
{
  wefti_msg_release(cat, msg);
  free(msg);
}

void weft_msg_drop(const weft_catalogue *cat, weft_msg *msg)
{
  if (msg != NULL) {
    wefti_msg_drop_heap(cat, msg);
  }
}

/* ---- the wire */

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
    const size_t len = get_str(msg, f).len;
    *out = 4 + len;
    return len > STR_MAX ? WEFT_E_OVERFLOW : WEFT_OK;
  }
  case WEFT_FIELD_buf: {
    const weft_buf *b = get_buf(msg, f);
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
    memcpy(&v, field_of(msg, f), sizeof v);
    put_le(p, v, 4);
    return p + 4;
  }
  case WEFT_FIELD_u64: {
    uint64_t v;
    memcpy(&v, field_of(msg, f), sizeof v);
    put_le(p, v, 8);
    return p + 8;
  }
  case WEFT_FIELD_str: {
    const weft_str s = get_str(msg, f);
    return put_bytes(p, s.p, s.len);
  }
  case WEFT_FIELD_buf: {
    const weft_buf *b = get_buf(msg, f);
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
  put_le(out + 4, msg->flags & FLAGS_WIRE, 4);
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
      memcpy(field_at(msg, f), &v32, sizeof v32);
    } else {
      memcpy(field_at(msg, f), &v, sizeof v);
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
    memcpy(field_at(msg, f), &s, sizeof s);
    return WEFT_OK;
  }
  if (data != NULL) {
    weft_buf *b = weft_buf_create(data, len);
    if (b == NULL) {
      return WEFT_E_NOMEM;
    }
    set_buf(msg, f, b);
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
  if ((flags & ~(uint64_t)FLAGS_WIRE) != 0) {
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
