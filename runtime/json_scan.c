#include "json_priv.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH_DEFAULT = 64, DEPTH_MAX = 1 << 20, NODES_DEFAULT = 4000000 };

typedef enum scan_state {
  AT_VALUE,   /* a value must follow */
  AT_ELEMENT, /* behind '[': a value or ']' */
  AT_MEMBER,  /* behind '{': a name or '}' */
  AT_NAME,    /* behind ',' in an object */
  AT_COLON,
  AT_NEXT, /* behind a value inside something: ',' or its end */
  AT_END,  /* behind the root */
  IN_STRING,
  IN_ESCAPE, /* behind a backslash */
  IN_HEX,    /* behind \u */
  IN_PAIR,   /* behind a high surrogate: backslash */
  IN_PAIR_U, /* then u */
  IN_UTF8,   /* continuation bytes */
  IN_MINUS,
  IN_ZERO,
  IN_INT,
  IN_DOT,
  IN_FRAC,
  IN_E,
  IN_E_SIGN,
  IN_EXP,
  IN_LITERAL,
  BROKEN
} scan_state;

struct weft_json_scan {
  size_t depth_max, nodes_max, members_max;
  size_t depth, nodes;
  size_t pos; /* bytes consumed */
  scan_state state;
  weft_json_kind kind; /* of the scalar being read */
  const char *literal; /* what is left of null, true, false */
  unsigned hex, hex_left;
  bool low_due;   /* the \u being read must be a low surrogate */
  bool in_name;   /* the string being read is a member's name */
  bool keep_name; /* ... of the root object */
  uint8_t utf8_left, utf8_low, utf8_high;
  size_t name_start;
  weft_json_span root;
  wefti_json_members members;
  weft_err err;
  size_t error_at;
  const char *reason;
  uint8_t is_object[]; /* [depth_max] per level */
};

weft_err weft_json_scan_create(const weft_json_limits *limits, weft_json_scan **out)
{
  const size_t depth =
      limits == NULL || limits->depth == 0 ? DEPTH_DEFAULT : limits->depth;
  if (depth > DEPTH_MAX) {
    return WEFT_E_INVAL;
  }
  weft_json_scan *s = calloc(1, sizeof *s + depth);
  if (s == NULL) {
    return WEFT_E_NOMEM;
  }
  s->depth_max = depth;
  s->nodes_max = limits == NULL || limits->nodes == 0 ? NODES_DEFAULT : limits->nodes;
  s->members_max =
      limits == NULL || limits->members == 0 ? s->nodes_max : limits->members;
  s->state = AT_VALUE;
  s->reason = "";
  const weft_err err = wefti_json_members_init(&s->members);
  if (err != WEFT_OK) {
    free(s);
    return err;
  }
  *out = s;
  return WEFT_OK;
}

void weft_json_scan_destroy(weft_json_scan *scan)
{
  if (scan != NULL) {
    wefti_json_members_fini(&scan->members);
    free(scan);
  }
}

static weft_err broken(weft_json_scan *s, weft_err err, const char *reason)
{
  s->state = BROKEN;
  s->err = err;
  s->error_at = s->pos;
  s->reason = reason;
  return err;
}

static weft_json_span *span_here(weft_json_scan *s)
{
  if (s->depth == 0) {
    return &s->root;
  }
  if (s->depth == 1 && s->is_object[0] && s->members.count > 0) {
    return &s->members.rows[s->members.count - 1].span;
  }
  return NULL;
}

/* The value that began at its span's at ended before pos + behind. */
static void value_done(weft_json_scan *s, size_t behind)
{
  weft_json_span *span = span_here(s);
  if (span != NULL) {
    span->len = s->pos + behind - span->at;
  }
  s->state = s->depth == 0 ? AT_END : AT_NEXT;
}

static weft_err open_level(weft_json_scan *s, bool object)
{
  if (s->depth == s->depth_max) {
    return broken(s, WEFT_E_LIMIT, "nested too deeply");
  }
  s->is_object[s->depth++] = object;
  s->state = object ? AT_MEMBER : AT_ELEMENT;
  return WEFT_OK;
}

static weft_err close_level(weft_json_scan *s, char c)
{
  if (s->is_object[s->depth - 1] != (c == '}')) {
    return broken(s, WEFT_E_PROTO, "wrong closing bracket");
  }
  s->depth--;
  value_done(s, 1);
  return WEFT_OK;
}

static weft_err start_literal(weft_json_scan *s, const char *rest)
{
  s->literal = rest;
  s->state = IN_LITERAL;
  return WEFT_OK;
}

static weft_err start_value(weft_json_scan *s, char c)
{
  const weft_json_kind kind = wefti_json_kind_of_first(c);
  if (kind == WEFT_JSON_NONE) {
    return broken(s, WEFT_E_PROTO, "expected a value");
  }
  if (s->nodes == s->nodes_max) {
    return broken(s, WEFT_E_LIMIT, "too many values");
  }
  s->nodes++;
  weft_json_span *span = span_here(s);
  if (span != NULL) {
    *span = (weft_json_span){ kind, s->pos, 0 };
  }
  switch (c) {
  case '{':
  case '[':
    return open_level(s, c == '{');
  case '"':
    s->in_name = false;
    s->keep_name = false;
    s->state = IN_STRING;
    return WEFT_OK;
  case 't':
    return start_literal(s, "rue");
  case 'f':
    return start_literal(s, "alse");
  case 'n':
    return start_literal(s, "ull");
  default:
    s->state = c == '-' ? IN_MINUS : c == '0' ? IN_ZERO : IN_INT;
    return WEFT_OK;
  }
}

static weft_err start_name(weft_json_scan *s, char c)
{
  if (c != '"') {
    return broken(s, WEFT_E_PROTO, "expected a member's name");
  }
  s->in_name = true;
  s->keep_name = s->depth == 1;
  s->name_start = s->members.names_len;
  s->state = IN_STRING;
  return WEFT_OK;
}

/* One byte outside of strings, numbers and literals. */
static weft_err between(weft_json_scan *s, char c)
{
  if (c == ' ' || c == '\n' || c == '\r' || c == '\t') {
    return WEFT_OK;
  }
  if ((s->state == AT_ELEMENT && c == ']') || (s->state == AT_MEMBER && c == '}') ||
      (s->state == AT_NEXT && (c == ']' || c == '}'))) {
    return close_level(s, c);
  }
  if (s->state == AT_VALUE || s->state == AT_ELEMENT) {
    return start_value(s, c);
  }
  if (s->state == AT_MEMBER || s->state == AT_NAME) {
    return start_name(s, c);
  }
  if (s->state == AT_COLON) {
    s->state = AT_VALUE;
    return c == ':' ? WEFT_OK : broken(s, WEFT_E_PROTO, "expected ':'");
  }
  if (s->state == AT_NEXT) {
    s->state = s->is_object[s->depth - 1] ? AT_NAME : AT_VALUE;
    return c == ',' ? WEFT_OK : broken(s, WEFT_E_PROTO, "expected ',' or the end");
  }
  return broken(s, WEFT_E_PROTO, "text behind the value");
}

static weft_err string_done(weft_json_scan *s)
{
  if (!s->in_name) {
    value_done(s, 1);
    return WEFT_OK;
  }
  s->state = AT_COLON;
  if (s->keep_name) {
    if (s->members.count >= s->members_max) {
      return broken(s, WEFT_E_LIMIT, "too many members");
    }
    const weft_err err = wefti_json_members_add(&s->members, s->name_start);
    if (err == WEFT_E_EXISTS) {
      return broken(s, WEFT_E_PROTO, "a member's name occurs twice");
    }
    if (err != WEFT_OK) {
      return broken(s, err, "no memory for the table of members");
    }
  }
  return WEFT_OK;
}

static weft_err string_byte(weft_json_scan *s, char c)
{
  const uint8_t b = (uint8_t)c;
  if (c == '"') {
    return string_done(s);
  }
  if (c == '\\') {
    s->state = IN_ESCAPE;
    return WEFT_OK;
  }
  if (b < 0x20) {
    return broken(s, WEFT_E_PROTO, "control character in a string");
  }
  if (b >= 0x80) {
    s->utf8_left = (uint8_t)wefti_utf8_lead(b, &s->utf8_low, &s->utf8_high);
    if (s->utf8_left == 0) {
      return broken(s, WEFT_E_PROTO, "invalid UTF-8");
    }
    s->state = IN_UTF8;
  }
  return WEFT_OK;
}

static weft_err utf8_byte(weft_json_scan *s, char c)
{
  const uint8_t b = (uint8_t)c;
  if (b < s->utf8_low || b > s->utf8_high) {
    return broken(s, WEFT_E_PROTO, "invalid UTF-8");
  }
  s->utf8_low = 0x80;
  s->utf8_high = 0xbf;
  if (--s->utf8_left == 0) {
    s->state = IN_STRING;
  }
  return WEFT_OK;
}

static weft_err escape_byte(weft_json_scan *s, char c)
{
  if (c == 'u') {
    s->hex = 0;
    s->hex_left = 4;
    s->state = IN_HEX;
    return WEFT_OK;
  }
  if (c == '\0' || strchr("\"\\/bfnrt", c) == NULL) {
    return broken(s, WEFT_E_PROTO, "unknown escape");
  }
  s->state = IN_STRING;
  return WEFT_OK;
}

static weft_err hex_byte(weft_json_scan *s, char c)
{
  unsigned digit;
  if (c >= '0' && c <= '9') {
    digit = (unsigned)(c - '0');
  } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
    digit = (unsigned)((c | 0x20) - 'a') + 10;
  } else {
    return broken(s, WEFT_E_PROTO, "expected four hexadecimal digits");
  }
  s->hex = s->hex << 4 | digit;
  if (--s->hex_left > 0) {
    return WEFT_OK;
  }
  const bool low = s->hex >= 0xdc00 && s->hex <= 0xdfff;
  const bool high = s->hex >= 0xd800 && s->hex <= 0xdbff;
  if (low != s->low_due) {
    return broken(s, WEFT_E_PROTO, "lone surrogate");
  }
  if (s->hex == 0) {
    return broken(s, WEFT_E_PROTO, "NUL in a string");
  }
  s->low_due = high;
  s->state = high ? IN_PAIR : IN_STRING;
  return WEFT_OK;
}

static weft_err pair_byte(weft_json_scan *s, char c)
{
  if (c != (s->state == IN_PAIR ? '\\' : 'u')) {
    return broken(s, WEFT_E_PROTO, "lone surrogate");
  }
  if (s->state == IN_PAIR) {
    s->state = IN_PAIR_U;
    return WEFT_OK;
  }
  return escape_byte(s, c);
}

static weft_err in_string(weft_json_scan *s, char c)
{
  if (s->state == IN_STRING) {
    return string_byte(s, c);
  }
  if (s->state == IN_UTF8) {
    return utf8_byte(s, c);
  }
  if (s->state == IN_ESCAPE) {
    return escape_byte(s, c);
  }
  return s->state == IN_HEX ? hex_byte(s, c) : pair_byte(s, c);
}

static bool number_may_end(scan_state state)
{
  return state == IN_ZERO || state == IN_INT || state == IN_FRAC || state == IN_EXP;
}

/* Where byte c takes a number, or BROKEN if the number does not go on with it. */
static scan_state number_step(scan_state state, char c)
{
  const bool digit = c >= '0' && c <= '9';
  const bool e = c == 'e' || c == 'E';
  if (digit) {
    if (state == IN_MINUS) {
      return c == '0' ? IN_ZERO : IN_INT;
    }
    if (state == IN_ZERO) {
      return BROKEN;
    }
    if (state == IN_DOT) {
      return IN_FRAC;
    }
    return state == IN_E || state == IN_E_SIGN ? IN_EXP : state;
  }
  if (c == '.' && (state == IN_ZERO || state == IN_INT)) {
    return IN_DOT;
  }
  if (e && (state == IN_ZERO || state == IN_INT || state == IN_FRAC)) {
    return IN_E;
  }
  return (c == '+' || c == '-') && state == IN_E ? IN_E_SIGN : BROKEN;
}

static weft_err in_number(weft_json_scan *s, char c)
{
  const scan_state to = number_step(s->state, c);
  if (to != BROKEN) {
    s->state = to;
    return WEFT_OK;
  }
  if (!number_may_end(s->state) || (c >= '0' && c <= '9')) {
    return broken(s, WEFT_E_PROTO, "not a number");
  }
  value_done(s, 0);
  return between(s, c); /* c is what follows */
}

static weft_err in_literal(weft_json_scan *s, char c)
{
  if (c != *s->literal) {
    return broken(s, WEFT_E_PROTO, "expected a value");
  }
  if (*++s->literal == '\0') {
    value_done(s, 1);
  }
  return WEFT_OK;
}

static weft_err one_byte(weft_json_scan *s, char c)
{
  if (s->state <= AT_END) {
    return between(s, c);
  }
  if (s->state <= IN_UTF8) {
    return in_string(s, c);
  }
  return s->state == IN_LITERAL ? in_literal(s, c) : in_number(s, c);
}

/* Keeps the raw bytes of a root member's name; the closing quote is not one. */
static weft_err keep(weft_json_scan *s, const char *p, size_t len)
{
  if (wefti_json_members_name(&s->members, p, len) != WEFT_OK) {
    return broken(s, WEFT_E_NOMEM, "no memory for the table of members");
  }
  return WEFT_OK;
}

weft_err weft_json_scan_feed(weft_json_scan *scan, const void *data, size_t len)
{
  if (scan->state == BROKEN) {
    return scan->err;
  }
  const char *p = data;
  const char *const end = len == 0 ? p : p + len;
  while (p < end) {
    const bool in_text = scan->state > AT_END && scan->state <= IN_UTF8;
    if (scan->state == IN_STRING) {
      const size_t run = wefti_json_plain_run(p, (size_t)(end - p));
      if (run > 0) {
        if (scan->keep_name && keep(scan, p, run) != WEFT_OK) {
          return scan->err;
        }
        p += run;
        scan->pos += run;
        continue;
      }
    }
    const bool closing = scan->state == IN_STRING && *p == '"';
    if (in_text && scan->keep_name && !closing && keep(scan, p, 1) != WEFT_OK) {
      return scan->err;
    }
    if (one_byte(scan, *p) != WEFT_OK) {
      return scan->err;
    }
    p++;
    scan->pos++;
  }
  return WEFT_OK;
}

weft_err weft_json_scan_end(weft_json_scan *scan)
{
  if (scan->state == BROKEN) {
    return scan->err;
  }
  if (scan->depth == 0 && number_may_end(scan->state)) {
    value_done(scan, 0);
  }
  return scan->state == AT_END
             ? WEFT_OK
             : broken(scan, WEFT_E_TRUNCATED, "the text ends inside a value");
}

weft_json_span weft_json_scan_root(const weft_json_scan *scan)
{
  return scan->root;
}

weft_json_span weft_json_scan_member(const weft_json_scan *scan, const char *key)
{
  const wefti_json_member *m = wefti_json_members_find(&scan->members, key, strlen(key));
  return m == NULL ? (weft_json_span){ WEFT_JSON_NONE, 0, 0 } : m->span;
}

size_t weft_json_scan_error_at(const weft_json_scan *scan)
{
  return scan->error_at;
}

const char *weft_json_scan_reason(const weft_json_scan *scan)
{
  return scan->reason;
}
