#include "weft/msg.h"

#include "msg_pack.h"
#include "weft/checked.h"
#include "weft/supervise.h"

#include <stdlib.h>
#include <string.h>

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
      const size_t len = wefti_get_str(msg, &desc->fields[i]).len;
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
  dst->flags = msg->flags & WEFTI_FLAGS_KEPT;
  if (desc == NULL) {
    return;
  }
  char *tail = (char *)dst + size;
  for (uint16_t i = 0; i < desc->field_count; i++) {
    const weft_field *f = &desc->fields[i];
    if (f->kind == WEFT_FIELD_str) {
      weft_str s = wefti_get_str(msg, f);
      if (s.len > 0) {
        memcpy(tail, s.p, s.len);
      }
      tail[s.len] = '\0';
      s.p = tail;
      memcpy(wefti_field_at(dst, f), &s, sizeof s);
      tail += s.len + 1u;
    } else if (f->kind == WEFT_FIELD_buf && weft_buf_ref(wefti_get_buf(msg, f)) != NULL) {
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
      weft_buf_unref(wefti_get_buf(msg, &desc->fields[i]));
      wefti_set_buf(msg, &desc->fields[i], NULL);
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
