/* msg_pack.h -- the parts of the message mechanism that the runtime's own files share.
 * Not the public interface (weft/msg.h). */
#ifndef WEFT_RUNTIME_MSG_PACK_H
#define WEFT_RUNTIME_MSG_PACK_H

#include "weft/msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bits of weft_msg.flags that only the runtime sets, next to WEFT_MSG_F_*. */
enum {
  WEFTI_F_REMOTE =
      0x100, /* charged to the receiver's counter of other threads' messages */
  WEFTI_F_EXEMPT = 0x200, /* charged to nobody: the runtime's own, must never be lost */
  WEFTI_F_NOFATE = 0x400  /* the simulator has decided about it already */
};

/* weft_msg.home: bits 0-6 pool (0 = heap, else loop + 1), 7-9 size class, 10-31 bytes of
 * memory behind the message in units of 16. */
enum {
  WEFTI_HOME_POOL_MASK = 0x7f,
  WEFTI_HOME_EMBEDDED = 0x7f, /* part of a question or timer entry */
  WEFTI_HOME_CLASS_SHIFT = 7,
  WEFTI_HOME_CLASS_MASK = 7,
  WEFTI_HOME_SIZE_SHIFT = 10,
  WEFTI_HOME_SIZE_UNIT = 16
};
#define WEFTI_MSG_SIZE_MAX ((size_t)((1u << 22) - 1) * WEFTI_HOME_SIZE_UNIT)

static inline size_t wefti_msg_room(const weft_msg *msg) /* bytes, 0 = not known */
{
  return (size_t)(msg->home >> WEFTI_HOME_SIZE_SHIFT) * WEFTI_HOME_SIZE_UNIT;
}

/* Flags that copies keep; those that travel, for the room that is kept in a mailbox is
 * not a peer's to take. */
enum {
  WEFTI_FLAGS_KEPT = WEFT_MSG_F_REPLY | WEFT_MSG_F_RESERVED,
  WEFTI_FLAGS_WIRE = WEFT_MSG_F_REPLY
};

static inline void *wefti_field_at(weft_msg *msg, const weft_field *f)
{
  return (uint8_t *)msg + f->offset;
}

static inline const void *wefti_field_of(const weft_msg *msg, const weft_field *f)
{
  return (const uint8_t *)msg + f->offset;
}

static inline weft_str wefti_get_str(const weft_msg *msg, const weft_field *f)
{
  weft_str s;
  memcpy(&s, wefti_field_of(msg, f), sizeof s);
  return s;
}

static inline weft_buf *wefti_get_buf(const weft_msg *msg, const weft_field *f)
{
  weft_buf *b;
  memcpy((void *)&b, wefti_field_of(msg, f), sizeof(void *));
  return b;
}

static inline void wefti_set_buf(weft_msg *msg, const weft_field *f, weft_buf *b)
{
  memcpy(wefti_field_at(msg, f), (const void *)&b, sizeof(void *));
}

/* Bytes of a packed copy of msg.  INVAL: no size known (not in cat and no system type);
 * OVERFLOW. */
weft_err wefti_msg_packed_size(const weft_catalogue *cat, const weft_msg *msg,
                               size_t *out) WEFT_MUST_USE;
/* Copies msg to dst, which has the packed size in bytes: strings behind it, bufs shared.
 * dst keeps its home; of the flags only REPLY and RESERVED are copied. */
void wefti_msg_pack(const weft_catalogue *cat, const weft_msg *msg, weft_msg *dst);
/* Drops the references that a DEEP message has; not its memory. */
void wefti_msg_release(const weft_catalogue *cat, weft_msg *msg);
/* Zeroed heap message; NULL = out of memory or too large. */
weft_msg *wefti_msg_heap(uint16_t type, size_t size);
/* A heap copy of a message that is on its way, host types included; NULL = out of memory.
 */
weft_msg *wefti_msg_clone(const weft_catalogue *cat, const weft_msg *msg);
/* Takes a pooled or heap message that may be of a host type; returns a heap message with
 * the same content, or NULL (out of memory; msg is untouched then).  The pooled original
 * still has to be given back by the caller when the result differs from it. */
weft_msg *wefti_msg_to_heap(const weft_catalogue *cat, weft_msg *msg);
void wefti_msg_drop_heap(const weft_catalogue *cat, weft_msg *msg);

#endif /* WEFT_RUNTIME_MSG_PACK_H */
