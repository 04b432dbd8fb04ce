/* weft/err.h -- the one error type of the project, and a place for its details.
 *
 * Every fallible function returns weft_err.  WEFT_OK is 0, all errors are > 0,
 * values are stable (they travel between processes): append only.  Not here:
 * HTTP status codes (actors/acceptor maps them).
 */
#ifndef WEFT_ERR_H
#define WEFT_ERR_H

#include "weft/base.h"

#include <stddef.h>

WEFT_BEGIN_DECLS

/* clang-format off */
/*        symbol,       value, text */
#define WEFT_ERR_TABLE(X)                                                \
  X(OK,           0, "success")                                          \
  X(NOMEM,        1, "out of memory")                                    \
  X(INVAL,        2, "invalid argument")                                 \
  X(OVERFLOW,     3, "size or count overflow")                           \
  X(TRUNCATED,    4, "input ended early")                                \
  X(TRAILING,     5, "input has unread bytes")                           \
  X(PROTO,        6, "peer broke the protocol")                          \
  X(FULL,         7, "mailbox full")                                     \
  X(CLOSED,       8, "actor or link closed")                             \
  X(STATE,        9, "not allowed in this state")                        \
  X(SYS,         10, "operating system error")                           \
  X(TIMEOUT,     11, "deadline passed")                                  \
  X(DOWN,        12, "peer is down")                                     \
  X(NOTFOUND,    13, "no such thing")                                    \
  X(EXISTS,      14, "exists already")                                   \
  X(LIMIT,       15, "over a configured limit")                          \
  X(CONFLICT,    16, "conflicts with what is under way")                 \
  X(PRECOND,     17, "expected version does not match")                  \
  X(REUSED,      18, "idempotency key was used for another request")     \
  X(UNAVAIL,     19, "not available now, try again")                     \
  X(DENIED,      20, "not permitted")                                    \
  X(CANCELLED,   21, "cancelled")                                        \
  X(STALE,       22, "older epoch or incarnation")                       \
  X(FAILED,      23, "operation failed")                                 \
  X(AGAIN,       24, "needs more input or another try")                  \
  X(UNSUPPORTED, 25, "not supported here")                               \
  X(NOT_YET,     26, "not published yet")                                \
  X(GONE,        27, "no longer held")                                   \
  X(LOST,        28, "answer lost")
/* clang-format on */

typedef enum weft_err {
#define WEFT_X(sym, val, text) WEFT_E_##sym = (val),
  WEFT_ERR_TABLE(WEFT_X)
#undef WEFT_X
      WEFT_OK = WEFT_E_OK
} weft_err;

/* Text for err, never NULL, static storage, safe from any thread.
 * Unknown values give "unknown error". */
WEFT_API const char *weft_strerror(weft_err err);

/* Symbol for err without prefix, e.g. "NOMEM"; for logs and JSON bodies. */
WEFT_API const char *weft_err_name(weft_err err);

/* An error with its story: what, where, whose, and what now.  Caller provides
 * the struct (usually on the stack), callee fills it on failure only. */
enum { WEFT_WHY_MAX = 512 };
typedef struct weft_why {
  weft_err err;
  char text[WEFT_WHY_MAX]; /* NUL-terminated, cut at a UTF-8 boundary */
} weft_why;

/* Fills *why (why may be NULL) and returns err, so that callers can write
 * return weft_whyf(why, WEFT_E_PROTO, "%s: header says %zu bytes", path, n); */
WEFT_API weft_err weft_whyf(weft_why *why, weft_err err, const char *fmt, ...)
    WEFT_PRINTF(3, 4);
#ifdef __clang_analyzer__ /* which does not see that it returns err */
#define weft_whyf(why, err, ...) ((void)weft_whyf(why, err, __VA_ARGS__), (err))
#endif

WEFT_END_DECLS

#endif /* WEFT_ERR_H */
