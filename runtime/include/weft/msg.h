/* weft/msg.h -- what a message is, and the table-driven mechanism that copies,
 * encodes, decodes and frees it.  Not here: which messages exist (that is
 * actors/include/weft/messages.def) and how they are sent (weft/actor.h). */
#ifndef WEFT_MSG_H
#define WEFT_MSG_H

#include "weft/base.h"
#include "weft/buf.h"
#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef uint64_t weft_actor_id; /* 0 is nobody; never used twice in a runtime */

/* First member of every message struct. */
typedef struct weft_msg {
  struct weft_msg *next; /* owned by the queue it is in */
  uint16_t type;
  uint16_t flags; /* WEFT_MSG_F_* */
  uint32_t home;  /* runtime's: where the memory goes back to */
  weft_actor_id from;
  weft_actor_id to;
  uint64_t corr;   /* question number, copied from the question to its answer; 0 = not a
                      question */
  uint64_t due_ms; /* on a question: weft_now_ms() at which the asker stops waiting; 0 =
                      none */
} weft_msg;

enum {
  WEFT_MSG_F_REPLY = 1,    /* answers a question */
  WEFT_MSG_F_RESERVED = 2, /* may use the room kept for what finishes things; does not
                              travel: a frame with it is refused */
  WEFT_MSG_F_DEEP = 4      /* has buf fields to be released; set by the mechanism */
};

/* Types 1..0x7fff belong to the catalogue, 0x8000..0xefff to the host program's
 * own actors (plain structs without str or buf fields), 0xf000.. to the runtime. */
enum {
  WEFT_MSG_USER_FIRST = 0x8000,
  WEFT_MSG_SYSTEM_FIRST = 0xf000,
  WEFT_MSG_TIMER = 0xf001,      /* weft_timer_msg */
  WEFT_MSG_DOWN = 0xf002,       /* weft_down_msg: a monitored actor or a child ended */
  WEFT_MSG_ASK_FAILED = 0xf003, /* weft_ask_failed_msg: instead of an answer */
  WEFT_MSG_STOP = 0xf004 /* weft_msg: end in an orderly way; default: stop at once */
};

typedef struct weft_timer_msg {
  weft_msg h;
  uint64_t id;
  uint64_t tag; /* the caller's */
} weft_timer_msg;

typedef struct weft_down_msg {
  weft_msg h;
  weft_actor_id who;
  uint32_t reason; /* weft_err it ended with */
} weft_down_msg;

typedef struct weft_ask_failed_msg {
  weft_msg h;      /* h.corr names the question, h.from whom it had been put to */
  uint32_t reason; /* weft_err: FULL, NOMEM: the question was not delivered; LOST: it was,
                      and its answer could not be; TIMEOUT, DOWN: nobody knows */
  uint16_t asked;  /* type of the question */
} weft_ask_failed_msg;

/* Text inside a message: [len] bytes and a NUL behind them.  Borrowed by the
 * behaviour, owned by the message. */
typedef struct weft_str {
  const char *p; /* NULL only when len == 0 */
  uint32_t len;  /* bytes */
} weft_str;

#define WEFT_STR(literal) ((weft_str){ (literal), sizeof(literal) - 1 })

typedef enum weft_field_kind {
  WEFT_FIELD_u32,
  WEFT_FIELD_u64,
  WEFT_FIELD_str, /* weft_str; at most 1 MiB on the wire */
  WEFT_FIELD_buf  /* weft_buf *, may be NULL; at most 64 MiB on the wire */
} weft_field_kind;

typedef uint32_t weft_f_u32;
typedef uint64_t weft_f_u64;
typedef weft_str weft_f_str;
typedef weft_buf *weft_f_buf;

typedef struct weft_field {
  const char *name;
  weft_field_kind kind;
  size_t offset; /* bytes from the start of the message struct */
} weft_field;

typedef struct weft_msg_desc {
  const char *name; /* lower case, e.g. "client_init" */
  size_t size;      /* sizeof the struct */
  const weft_field *fields;
  uint16_t field_count;
  uint8_t from, to; /* roles; the catalogue's business */
  uint16_t reply;   /* type of the usual answer, 0 = none */
} weft_msg_desc;

typedef struct weft_catalogue {
  const weft_msg_desc *descs; /* [count], index = type; [0] is unused */
  uint16_t count;
} weft_catalogue;

/* Desc of a type, NULL when the catalogue has none. */
WEFT_API const weft_msg_desc *weft_msg_desc_of(const weft_catalogue *cat, uint16_t type);

/* Frame on the wire, little-endian:
 *   u8 magic 'w', u8 frame version (1), u16 type, u32 flags, u64 corr,
 *   u32 remaining ms until the asker gives up (0 = none), u32 payload length,
 *   payload: the fields in table order; u32, u64; str and buf as u32 length + bytes
 *   (a NULL buf is length 0xffffffff).
 * encode writes into out[cap] and returns OK with *len, or LIMIT with *len = the bytes
 * needed; a field over its limit is OVERFLOW, a type that the catalogue lacks NOTFOUND.
 * Only REPLY and RESERVED travel of the flags.  decode checks every length, refuses
 * left-over bytes (TRAILING), unknown types (NOTFOUND), versions and flags (PROTO),
 * fields over their limit (LIMIT); makes one heap message that the caller owns. now_ms
 * turns due_ms into what remains and back. */
enum { WEFT_FRAME_HEADER = 24, WEFT_FRAME_VERSION = 1 };
WEFT_API weft_err weft_msg_encode(const weft_catalogue *cat, const weft_msg *msg,
                                  uint64_t now_ms, uint8_t *out, size_t cap, size_t *len)
    WEFT_MUST_USE;
WEFT_API weft_err weft_msg_decode(const weft_catalogue *cat, const uint8_t *data,
                                  size_t len, uint64_t now_ms, weft_msg **out)
    WEFT_MUST_USE;

/* A zeroed heap message of size bytes, for threads that are no loop and types of the host
 * program.  NULL = out of memory. */
WEFT_API weft_msg *weft_msg_heap_new(uint16_t type, size_t size);
/* A deep copy on the heap (strings packed behind the struct, bufs shared), for threads
 * that are no loop.  NULL = out of memory, or a host type (its size is not known here).
 */
WEFT_API weft_msg *weft_msg_dup(const weft_catalogue *cat, const weft_msg *msg);
/* Frees a heap message (from dup or decode) that was not sent. */
WEFT_API void weft_msg_drop(const weft_catalogue *cat, weft_msg *msg);

WEFT_END_DECLS

#endif /* WEFT_MSG_H */
