/* json_priv.h -- what the JSON files of runtime/ share.  Not for other folders. */
#ifndef WEFT_RUNTIME_JSON_PRIV_H
#define WEFT_RUNTIME_JSON_PRIV_H

#include "weft/json.h"

#include <stddef.h>
#include <stdint.h>

/* Length of the run at p[len] that is plain content of a string: no control character, no
 * quote, no backslash, nothing beyond ASCII. */
size_t wefti_json_plain_run(const char *p, size_t len);

/* Scans text[len] as a whole; why says position and reason. */
weft_err wefti_json_scan_all(const void *text, size_t len, const weft_json_limits *limits,
                             weft_why *why) WEFT_MUST_USE;

/* The number p, as written and NUL-terminated; false if it is no integer of 63 bits. */
bool wefti_json_exact_i64(const char *p, int64_t *out);

/* Kind of the value that begins with c, NONE if none does. */
weft_json_kind wefti_json_kind_of_first(char c);

/* Decodes the inside of a string literal that the scanner accepted: src[len] between the
 * quotes.  out has room for len bytes (an escape never grows).  Returns bytes written. */
size_t wefti_json_unescape(char *out, const char *src, size_t len);

/* Length of the well-formed UTF-8 character at s[left], 0 if there is none. */
size_t wefti_utf8_len(const uint8_t *s, size_t left);

/* For the byte that leads a character of more than one byte: how many follow, and the
 * range of the first of them (which excludes overlong forms, surrogates and > U+10FFFF).
 * Returns 0 for bytes that lead nothing. */
unsigned wefti_utf8_lead(uint8_t lead, uint8_t *low, uint8_t *high);

/* ---- names and spans of the root object's members */
typedef struct wefti_json_member {
  size_t name; /* offset in names */
  size_t name_len;
  uint64_t hash;
  weft_json_span span;
} wefti_json_member;

typedef struct wefti_json_members {
  wefti_json_member *rows;
  size_t count, rows_cap;
  uint32_t *slots; /* [slots_cap], a power of two; 0 = free, else row + 1 */
  size_t slots_cap;
  char *names;
  size_t names_len, names_cap;
  uint64_t key[2]; /* SipHash: a client must not be able to choose collisions */
} wefti_json_members;

weft_err wefti_json_members_init(wefti_json_members *m) WEFT_MUST_USE;
void wefti_json_members_fini(wefti_json_members *m);
/* Appends raw bytes of the name being read. */
weft_err wefti_json_members_name(wefti_json_members *m, const char *raw, size_t len)
    WEFT_MUST_USE;
/* The name that began at offset start in names is complete: decodes it and adds a row
 * with an empty span.  Errors: EXISTS (duplicate), NOMEM, LIMIT. */
weft_err wefti_json_members_add(wefti_json_members *m, size_t start) WEFT_MUST_USE;
const wefti_json_member *wefti_json_members_find(const wefti_json_members *m,
                                                 const char *name, size_t len);

#endif /* WEFT_RUNTIME_JSON_PRIV_H */
