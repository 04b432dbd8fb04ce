/* conn.h -- private types of http/: server, connection, request slot, parsed head, and
 * the functions that its files offer each other.  Not here: anything a user of the server
 * sees (weft/http.h). */
#ifndef WEFT_HTTP_CONN_H
#define WEFT_HTTP_CONN_H

#include "weft/buf.h"
#include "weft/err.h"
#include "weft/http.h"
#include "weft/loop.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
  WEFTI_SCRATCH = 64 * 1024,  /* one read */
  WEFTI_OUT_SOFT = 64 * 1024, /* unsent bytes at which parsing of a connection pauses */
  WEFTI_STREAM_UNSENT_MAX = 1 << 20,
  WEFTI_HEADERS_MAX = 128,
  WEFTI_LISTENERS_MAX = 8,
  WEFTI_REFUSED_MAX = 64,         /* connections over the cap that are still told so */
  WEFTI_SWALLOW_MAX = 256 * 1024, /* bytes read and dropped before an answer is out */
  WEFTI_CHUNK_EXT_MAX = 4096,     /* bytes of all chunk extensions of one body */
  WEFTI_LINGER_MS = 3000,
  WEFTI_LINGER_DRAIN_MS = 300,
  WEFTI_SLOT_BITS = 24 /* of an id; the rest counts the slot's uses */
};

typedef struct wefti_conn wefti_conn;

/* ---- bytes.c: a growing buffer.  data == NULL when empty and released. */
typedef struct wefti_bytes {
  char *data;
  size_t len, cap; /* bytes */
} wefti_bytes;
/* Errors: NOMEM, OVERFLOW; the buffer is unchanged then. */
weft_err wefti_bytes_room(wefti_bytes *b, size_t more) WEFT_MUST_USE;
weft_err wefti_bytes_add(wefti_bytes *b, const void *data, size_t len) WEFT_MUST_USE;
void wefti_bytes_fini(wefti_bytes *b);

/* ---- scan.c: raw bytes of a head or of trailers, before anybody interprets them. */
typedef enum wefti_verdict { WEFTI_MORE, WEFTI_DONE, WEFTI_BAD } wefti_verdict;
typedef struct wefti_scan {
  uint32_t pos;    /* bytes looked at, from the head's first byte */
  uint32_t line;   /* where the request line starts (blank lines before it are skipped) */
  uint16_t status; /* after WEFTI_BAD: 400 or 505 */
  uint8_t state;
} wefti_scan;
void wefti_scan_init(wefti_scan *s, bool trailers);
/* Goes on at s->pos; data is the same head, len its bytes so far.  DONE: s->pos is its
 * length. */
wefti_verdict wefti_scan_run(wefti_scan *s, const char *data, size_t len);
/* After MORE: all bytes so far were blank lines before a head. */
bool wefti_scan_blank(const wefti_scan *s);
bool wefti_is_token(const char *text, size_t len);

/* ---- head.c: a whole head that scan.c let through. */
typedef struct wefti_field {
  uint32_t name, value; /* offsets from the head's first byte */
  uint32_t name_len, value_len;
} wefti_field;
typedef enum wefti_body_kind {
  WEFTI_NO_BODY,
  WEFTI_LENGTH,
  WEFTI_CHUNKED
} wefti_body_kind;
typedef struct wefti_head {
  char *data; /* borrows the head; see wefti_head_terminate */
  size_t len; /* bytes */
  const char *method;
  size_t path, path_len;   /* offsets into data, raw */
  size_t query, query_len; /* without '?' */
  const char *bad;         /* what is wrong, when parse did not return 0 */
  uint64_t content_length;
  wefti_body_kind body;
  bool http10, keep_alive, expect_continue;
  size_t field_count;
  bool value_done; /* the next bytes start a new field */
  wefti_field fields[WEFTI_HEADERS_MAX];
} wefti_head;
/* 0, or the status to refuse it with (head->bad says why).  Does not change data. */
int wefti_head_parse(wefti_head *head, char *data, size_t len);
/* Writes a NUL behind the query and each value, over the bytes that delimit them. */
void wefti_head_terminate(wefti_head *head);
/* Index of the field, or -1.  name in any case. */
int wefti_head_find(const wefti_head *head, const char *name);

/* ---- chunk.c: chunked bodies. */
typedef struct wefti_chunk {
  uint64_t left;     /* bytes of this chunk still to come */
  uint32_t ext_seen; /* bytes of extensions so far */
  uint32_t trailer_seen;
  wefti_scan trailer;
  uint8_t state, digits;
} wefti_chunk;
void wefti_chunk_init(wefti_chunk *ck);
typedef struct wefti_piece {
  const char *data;
  size_t len; /* bytes; 0: framing only */
} wefti_piece;
/* Looks at data: *used bytes are done with, and the last piece->len of them are body.
 * MORE: call again with what is left (when *used == len: with new bytes). */
wefti_verdict wefti_chunk_run(wefti_chunk *ck, const char *data, size_t len,
                              size_t trailer_max, size_t *used, wefti_piece *piece);

/* ---- query.c */
/* Decodes %XX into out [len or more] and NUL-terminates nothing.  plus: '+' is a space.
 * Errors: PROTO (bad escape, a control character), LIMIT (cap). */
weft_err wefti_percent_decode(const char *in, size_t len, bool plus, char *out,
                              size_t cap, size_t *out_len) WEFT_MUST_USE;

/* ---- route.c */
typedef struct wefti_outcome {
  const weft_http_route *route; /* NULL: answer status by the server itself */
  int status;                   /* 404, 405, 401, 400 */
  char allow[64];               /* with 405 */
} wefti_outcome;
void wefti_route_find(const weft_http *server, const wefti_head *head,
                      wefti_outcome *out);

/* ---- auth.c */
typedef struct wefti_auth wefti_auth;
weft_err wefti_auth_create(const char *token, wefti_auth **out) WEFT_MUST_USE;
void wefti_auth_destroy(wefti_auth *auth); /* NULL is a no-op */
bool wefti_auth_ok(wefti_auth *auth, const char *value, size_t len);

/* ---- address.c */
typedef struct wefti_address {
  bool is_unix;
  char host[256]; /* or the path */
  char port[8];
} wefti_address;
weft_err wefti_address_parse(const char *text, wefti_address *out, weft_why *why)
    WEFT_MUST_USE;
/* Bound and listening, non-blocking.  text [cap] gets the address as bound. */
weft_err wefti_address_listen(const wefti_address *a, int *fd, char *text, size_t cap,
                              weft_why *why) WEFT_MUST_USE;

/* ---- requests */
typedef enum wefti_slot_state {
  WEFTI_FREE,
  WEFTI_READING, /* its body is being read */
  WEFTI_WORKING, /* with the handler */
  WEFTI_STREAM,
  WEFTI_ANSWERED /* whole in answer, waits for its turn */
} wefti_slot_state;
typedef struct wefti_slot {
  weft_http_id id;
  wefti_conn *conn;
  struct wefti_slot *next; /* the connection's next request, or the free list */
  wefti_bytes answer;      /* bytes given before its turn */
  size_t reserved;         /* of body_memory_max */
  uint64_t uses;
  uint32_t index;
  uint8_t state;
  bool head_only, http10, keep, want_continue;
} wefti_slot;

/* A request whose body is still arriving. */
typedef struct wefti_reading {
  wefti_slot *slot;
  wefti_outcome outcome;
  bool keep_body, chunked;
  uint64_t left; /* of Content-Length */
  uint64_t seen; /* body bytes so far */
  uint64_t received_ms;
  wefti_chunk chunk;
  wefti_bytes body;
  size_t head_len;
  char head[]; /* the raw head, parsed again when the body is complete */
} wefti_reading;

struct wefti_conn {
  weft_http *server;
  wefti_conn *prev, *next; /* all connections, or the dead list */
  wefti_conn *dirty_next;
  wefti_slot *first, *last; /* requests in order */
  wefti_reading *reading;
  wefti_bytes in; /* read and not parsed yet */
  wefti_bytes out;
  size_t out_sent; /* of out */
  size_t swallowed;
  weft_io *io;
  weft_alarm *alarm;
  uint64_t peer;
  uint64_t read_deadline, write_deadline, alarm_at; /* loop ms, 0 = none */
  wefti_scan scan;
  uint32_t slots; /* length of the list */
  int fd;
  uint8_t events;
  bool in_head;    /* a head has begun; read_deadline is its */
  bool input_over; /* what comes now is dropped */
  bool closing;    /* the last answer is in out */
  bool lingering, dead, dirty, eof, known, refused, paused;
};

typedef struct wefti_listener {
  weft_http *server;
  weft_io *io;
  weft_alarm *pause; /* after EMFILE and its like */
  int fd;
  bool is_unix;
  char path[256]; /* of a unix socket, to be removed */
  dev_t dev;
  ino_t ino;
} wefti_listener;

enum { WEFTI_OUT_CACHE = 64, WEFTI_OUT_CACHED_CAP = 16 * 1024 };
struct weft_http {
  weft_http_opts opts; /* defaults filled in */
  weft_loop *loop;
  wefti_auth *auth;
  weft_alarm *tick; /* settles connections that were touched from outside */
  wefti_listener listeners[WEFTI_LISTENERS_MAX];
  size_t listener_count;
  wefti_conn *conns, *dead, *dirty;
  size_t conn_count, refused_count;
  uint64_t next_peer;
  wefti_slot **slots;
  size_t slot_count, slot_cap;
  wefti_slot *slot_free;
  wefti_bytes out_cache[WEFTI_OUT_CACHE];
  size_t out_cached;
  unsigned depth; /* > 0: inside a callback of ours */
  bool doomed, draining, tick_armed;
  weft_http_stats stats;
  uint64_t date_second;
  char date[40]; /* "Date: …\r\n" */
  size_t date_len;
  wefti_head head;
  char scratch[WEFTI_SCRATCH];
};

/* The request as a handler sees it, and where its headers are. */
typedef struct wefti_request {
  weft_http_request pub;
  const wefti_head *head;
} wefti_request;

/* ---- slot.c */
wefti_slot *
wefti_slot_new(wefti_conn *c); /* appended to c's list; NULL = out of memory */
wefti_slot *wefti_slot_find(weft_http *server, weft_http_id id);
void wefti_slot_free(weft_http *server, wefti_slot *slot); /* must be off the list */
void wefti_slots_fini(weft_http *server);
/* Moves what is due from the slots to c->out; frees slots that are done. */
void wefti_slots_advance(wefti_conn *c);

/* ---- respond.c */
/* Where slot's bytes go now: its connection's out when it is the first, else its answer.
 */
wefti_bytes *wefti_slot_sink(wefti_slot *slot);
/* Status line and the fields that every answer has; room is left for more bytes. */
weft_err wefti_reply_start(wefti_slot *slot, int status, size_t more, wefti_bytes **out)
    WEFT_MUST_USE;
/* slot has its whole answer: sends it when its turn has come. */
void wefti_slot_done(wefti_slot *slot);
/* The server's own answer to slot: 404, 405, 401 and vLLM's error object for the rest. */
void wefti_answer_error(wefti_slot *slot, int status, const char *message,
                        const char *allow);
/* Refuses what c sends: the answer with Connection: close, then no more input. */
void wefti_refuse(wefti_conn *c, int status, const char *message);

/* ---- body.c */
/* c's request in head (of which slot was made) has a body: makes c->reading, or refuses.
 */
void wefti_body_begin(wefti_conn *c, wefti_slot *slot, const wefti_head *head,
                      const wefti_outcome *outcome, bool more_here);
/* Takes body bytes; *used of them.  DONE: the body is complete.  BAD: was refused. */
wefti_verdict wefti_body_take(wefti_conn *c, const char *data, size_t len, size_t *used);
void wefti_reading_free(wefti_reading *rd); /* NULL is a no-op */

/* ---- input.c */
/* Parses what it can; returns bytes used. */
size_t wefti_input(wefti_conn *c, char *data, size_t len);
/* True when c may not be read or parsed for now. */
bool wefti_conn_full(const wefti_conn *c);

/* ---- conn.c */
wefti_conn *wefti_conn_open(weft_http *server, int fd, bool refused);
/* Closes and unhooks c at once; reaped (on_gone, free) by wefti_leave. */
void wefti_conn_kill(wefti_conn *c);
void wefti_conn_settle(wefti_conn *c);
bool wefti_conn_flush(wefti_conn *c);          /* false: c was killed */
size_t wefti_conn_unsent(const wefti_conn *c); /* bytes */

/* ---- server.c: every callback of the loop runs between these two. */
void wefti_enter(weft_http *server);
void wefti_leave(weft_http *server); /* settles, reaps; server may be gone afterwards */
/* c has something to write or to parse: settled by the outermost leave, or by the tick.
 */
void wefti_touch(wefti_conn *c);

#endif /* WEFT_HTTP_CONN_H */
