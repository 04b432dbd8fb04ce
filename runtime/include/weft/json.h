/* weft/json.h -- JSON with limits: a scanner that finds the spans of an object's members
 * in one pass under a depth and node budget, trees, and a writer.  A NUL in a string, a
 * lone surrogate, invalid UTF-8, a duplicate top-level key, trailing text: refused with
 * the byte position. */
#ifndef WEFT_JSON_H
#define WEFT_JSON_H

#include "weft/base.h"
#include "weft/buf.h"
#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef enum weft_json_kind {
  WEFT_JSON_NONE, /* absent */
  WEFT_JSON_NULL,
  WEFT_JSON_BOOL,
  WEFT_JSON_NUMBER,
  WEFT_JSON_STRING,
  WEFT_JSON_ARRAY,
  WEFT_JSON_OBJECT
} weft_json_kind;

typedef struct weft_json_limits {
  size_t depth;   /* nested arrays and objects, 0 = 64 */
  size_t nodes;   /* values in all, 0 = 4,000,000 */
  size_t members; /* of the root object, 0 = as many as nodes */
} weft_json_limits;

/* ---- scanner: text arrives in pieces, memory use is constant but for the top-level
 * member table. */
typedef struct weft_json_scan weft_json_scan;
typedef struct weft_json_span {
  weft_json_kind kind;
  size_t at;  /* byte offset of the value's first byte in the whole text */
  size_t len; /* bytes */
} weft_json_span;

WEFT_API weft_err weft_json_scan_create(const weft_json_limits *limits,
                                        weft_json_scan **out) WEFT_MUST_USE;
WEFT_API void weft_json_scan_destroy(weft_json_scan *scan);
/* Errors: PROTO (not JSON), LIMIT (budget), NOMEM.  After an error: error_at, reason. */
WEFT_API weft_err weft_json_scan_feed(weft_json_scan *scan, const void *data, size_t len)
    WEFT_MUST_USE;
/* The text has ended.  TRUNCATED if a value is open or there was none. */
WEFT_API weft_err weft_json_scan_end(weft_json_scan *scan) WEFT_MUST_USE;
WEFT_API weft_json_span weft_json_scan_root(const weft_json_scan *scan);
/* Member of the root object; kind NONE when absent or the root is no object. */
WEFT_API weft_json_span weft_json_scan_member(const weft_json_scan *scan,
                                              const char *key);
WEFT_API size_t weft_json_scan_error_at(const weft_json_scan *scan);    /* byte offset */
WEFT_API const char *weft_json_scan_reason(const weft_json_scan *scan); /* static text */

/* ---- trees: parse scans first by itself, so the same limits and grammar hold.  Of equal
 * names below the root the last one counts, as in Python. */
typedef struct weft_json weft_json; /* read-only tree node */
/* Parses text[len]; trailing text is refused.  Caller frees the root.
 * Errors: PROTO, LIMIT, NOMEM, TRUNCATED; why (may be NULL) says position and reason. */
WEFT_API weft_err weft_json_parse(const void *text, size_t len,
                                  const weft_json_limits *limits, weft_json **out,
                                  weft_why *why) WEFT_MUST_USE;
WEFT_API void weft_json_free(weft_json *root);                 /* NULL is a no-op */
WEFT_API weft_json_kind weft_json_kind_of(const weft_json *v); /* NULL gives NONE */
WEFT_API const weft_json *weft_json_get(const weft_json *object,
                                        const char *key); /* or NULL */
WEFT_API size_t weft_json_count(const weft_json *array_or_object);
WEFT_API const weft_json *weft_json_first(const weft_json *array_or_object);
WEFT_API const weft_json *weft_json_next(const weft_json *v);
WEFT_API const char *weft_json_key(const weft_json *member); /* its name, or NULL */
WEFT_API const char *weft_json_str(const weft_json *v);      /* NULL unless a string */
WEFT_API bool weft_json_bool(const weft_json *v, bool otherwise);
/* Exact integers only (1.0 and 1e3 count, 1.5 does not), |v| <= 2^63 - 1; numbers beyond
 * 2^53 must keep every digit.  false = not such a number. */
WEFT_API bool weft_json_i64(const weft_json *v, int64_t *out);

/* ---- cursor: reads a large text in order, where a tree would cost ten times its size.
 * open scans first by itself, so the same limits and grammar hold; of names below the
 * root that occur twice each occurrence is seen.  Strings are decoded in place and end
 * with a NUL: the text is used up by reading, and they live as long as it does. */
typedef struct weft_json_cursor {
  char *at; /* private: at a value, or behind one */
  char *end;
} weft_json_cursor;
/* text: len bytes and one more, which is written to and restored.  Errors: as
 * weft_json_parse. */
WEFT_API weft_err weft_json_cursor_open(char *text, size_t len,
                                        const weft_json_limits *limits,
                                        weft_json_cursor *out, weft_why *why)
    WEFT_MUST_USE;
/* Of the value that the cursor is at. */
WEFT_API weft_json_kind weft_json_cursor_kind(const weft_json_cursor *c);
/* Goes into the array or object that it is at.  Then, until it says false and has left
 * it: next, in an object key, and the value. */
WEFT_API void weft_json_cursor_enter(weft_json_cursor *c);
WEFT_API bool weft_json_cursor_next(weft_json_cursor *c) WEFT_MUST_USE;
WEFT_API const char *weft_json_cursor_key(weft_json_cursor *c);
/* NULL: not a string, and the cursor has not moved. */
WEFT_API const char *weft_json_cursor_str(weft_json_cursor *c);
/* As weft_json_i64.  The cursor is behind the number, if it is one. */
WEFT_API bool weft_json_cursor_i64(weft_json_cursor *c, int64_t *out) WEFT_MUST_USE;
/* Any value.  What lies between at before and after is its text, space included. */
WEFT_API void weft_json_cursor_skip(weft_json_cursor *c);

/* ---- writer: builds compact text (no spaces, non-ASCII as it is, '/' not escaped).
 * Errors stick: check once, at take. */
typedef struct weft_json_writer {
  char *text;
  size_t len, cap;
  weft_err err;
  uint64_t comma; /* private */
  uint64_t kinds; /* private */
  unsigned depth; /* private; at most 60 */
} weft_json_writer;
WEFT_API void weft_jw_init(weft_json_writer *w);
WEFT_API void weft_jw_fini(weft_json_writer *w);
WEFT_API void
weft_jw_object(weft_json_writer *w,
               const char *key); /* key NULL inside arrays and at the root */
WEFT_API void weft_jw_array(weft_json_writer *w, const char *key);
WEFT_API void weft_jw_end(weft_json_writer *w); /* closes the innermost */
WEFT_API void weft_jw_str(weft_json_writer *w, const char *key,
                          const char *s); /* NULL s gives null */
WEFT_API void weft_jw_strn(weft_json_writer *w, const char *key, const char *s,
                           size_t len);
WEFT_API void weft_jw_u64(weft_json_writer *w, const char *key, uint64_t v);
WEFT_API void weft_jw_i64(weft_json_writer *w, const char *key, int64_t v);
WEFT_API void weft_jw_bool(weft_json_writer *w, const char *key, bool v);
WEFT_API void weft_jw_null(weft_json_writer *w, const char *key);
WEFT_API void weft_jw_raw(weft_json_writer *w, const char *key, const char *json,
                          size_t len);
/* Ends writing: *out is NUL-terminated text that the caller free()s; len may be NULL.
 * Errors: NOMEM, LIMIT (depth), STATE (unbalanced). */
WEFT_API weft_err weft_jw_take(weft_json_writer *w, char **out, size_t *len)
    WEFT_MUST_USE;
/* The same as a buffer, whose first owner the caller is.  NULL on any error; w is empty
 * afterwards. */
WEFT_API weft_buf *weft_jw_take_buf(weft_json_writer *w) WEFT_MUST_USE;

WEFT_END_DECLS

#endif /* WEFT_JSON_H */
