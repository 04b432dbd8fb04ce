/* tcpstore_wire.h -- TCPStore's bytes: opcodes, limits, a buffer, where a request ends.
 * No sockets, no meaning.  All integers are little-endian. */
#ifndef WEFT_TRANSPORT_TCPSTORE_WIRE_H
#define WEFT_TRANSPORT_TCPSTORE_WIRE_H

#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum wefti_store_op {
  WEFTI_ST_VALIDATE,
  WEFTI_ST_SET,
  WEFTI_ST_COMPARE_SET,
  WEFTI_ST_GET,
  WEFTI_ST_ADD,
  WEFTI_ST_CHECK,
  WEFTI_ST_WAIT,
  WEFTI_ST_GETNUMKEYS,
  WEFTI_ST_DELETE_KEY,
  WEFTI_ST_APPEND,
  WEFTI_ST_MULTI_GET,
  WEFTI_ST_MULTI_SET,
  WEFTI_ST_CANCEL_WAIT,
  WEFTI_ST_PING,
  WEFTI_ST_QUEUE_PUSH,
  WEFTI_ST_QUEUE_POP,
  WEFTI_ST_QUEUE_LEN,
  WEFTI_ST_LIST_KEYS,
  WEFTI_ST_BARRIER,
  WEFTI_ST_OPS
} wefti_store_op;

enum {
  WEFTI_ST_KEYS_MAX = 131072,      /* of one request */
  WEFTI_ST_REQUEST_MAX = 17 << 20, /* bytes: COMPARE_SET with two of the longest values */
  WEFTI_ST_READY = 0,
  WEFTI_ST_NOT_READY = 1,
  WEFTI_ST_STOP_WAITING = 0,
  WEFTI_ST_WAIT_CANCELED = 1
};
#define WEFTI_ST_MAGIC UINT32_C(0x3C85F7CE)

/* Bytes that grow at the end and go at the front. */
typedef struct wefti_sb {
  uint8_t *data;
  size_t len;
  size_t room;
} wefti_sb;

bool wefti_sb_put(wefti_sb *b, const void *data, size_t n); /* false: out of memory */
bool wefti_sb_u8(wefti_sb *b, uint8_t v);
bool wefti_sb_u64(wefti_sb *b, uint64_t v);
bool wefti_sb_str(wefti_sb *b, const void *data, size_t n); /* length, bytes */
void wefti_sb_drop(wefti_sb *b, size_t n);                  /* the first n; n <= len */
void wefti_sb_fini(wefti_sb *b);
uint64_t wefti_le(const uint8_t *p, size_t n);

/* Where the request at the front ends.  Remembers how far it looked: feeding byte by byte
 * costs no more than feeding at once.  Zeroed before the first call and for each request.
 */
typedef struct wefti_scan {
  size_t at;     /* everything before is understood */
  uint64_t left; /* strings of a list still to come */
  uint8_t step;  /* argument */
  bool in_list;
} wefti_scan;

/* p [len] grows from call to call.  OK: the request is *size bytes.  AGAIN: incomplete.
 * Errors: PROTO (opcode), LIMIT. */
weft_err wefti_scan_request(wefti_scan *s, const uint8_t *p, size_t len, size_t *size);

/* Walks a request that is complete. */
typedef struct wefti_walk {
  const uint8_t *at;
  const uint8_t *end;
} wefti_walk;
typedef struct wefti_span {
  const uint8_t *at;
  size_t len;
} wefti_span;
uint64_t wefti_walk_int(wefti_walk *w, size_t n);
wefti_span wefti_walk_str(wefti_walk *w);

#endif /* WEFT_TRANSPORT_TCPSTORE_WIRE_H */
