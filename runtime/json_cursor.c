/* A reader without a tree: it walks text that the scanner has accepted, so it looks only
 * at what tells one value from the next. */
#include "json_priv.h"

#include <string.h>

enum { DOUBLE_DIGITS = 15 /* integers of so few digits need no care */ };

static void skip_space(weft_json_cursor *c)
{
  while (c->at < c->end &&
         (*c->at == ' ' || *c->at == '\n' || *c->at == '\r' || *c->at == '\t')) {
    c->at++;
  }
}

weft_err weft_json_cursor_open(char *text, size_t len, const weft_json_limits *limits,
                               weft_json_cursor *out, weft_why *why)
{
  const weft_err err = wefti_json_scan_all(text, len, limits, why);
  if (err != WEFT_OK) {
    return err;
  }
  *out = (weft_json_cursor){ .at = text, .end = text + len };
  skip_space(out);
  return WEFT_OK;
}

weft_json_kind weft_json_cursor_kind(const weft_json_cursor *c)
{
  return c->at < c->end ? wefti_json_kind_of_first(*c->at) : WEFT_JSON_NONE;
}

void weft_json_cursor_enter(weft_json_cursor *c)
{
  c->at++;
  skip_space(c);
}

bool weft_json_cursor_next(weft_json_cursor *c)
{
  skip_space(c);
  if (c->at < c->end && *c->at == ',') {
    c->at++;
    skip_space(c);
    return true;
  }
  if (c->at == c->end || *c->at == ']' || *c->at == '}') {
    c->at += c->at < c->end;
    return false;
  }
  return true; /* the first one */
}

/* The end of the string that begins at p: its closing quote. */
static char *closing_quote(char *p, const char *end, bool *escaped)
{
  *escaped = false;
  for (p++; p < end && *p != '"'; p++) {
    p += wefti_json_plain_run(p, (size_t)(end - p));
    if (p == end || *p == '"') {
      break;
    }
    if (*p == '\\') {
      *escaped = true;
      p++;
    }
  }
  return p;
}

const char *weft_json_cursor_str(weft_json_cursor *c)
{
  if (weft_json_cursor_kind(c) != WEFT_JSON_STRING) {
    return NULL;
  }
  char *text = c->at + 1;
  bool escaped;
  char *quote = closing_quote(c->at, c->end, &escaped);
  size_t len = (size_t)(quote - text);
  if (escaped) {
    len = wefti_json_unescape(text, text, len);
  }
  text[len] = '\0';
  c->at = quote + 1;
  return text;
}

const char *weft_json_cursor_key(weft_json_cursor *c)
{
  const char *name = weft_json_cursor_str(c);
  skip_space(c);
  c->at++; /* the colon */
  skip_space(c);
  return name;
}

static bool in_number(char ch)
{
  return (ch >= '0' && ch <= '9') || ch == '-' || ch == '+' || ch == '.' || ch == 'e' ||
         ch == 'E';
}

bool weft_json_cursor_i64(weft_json_cursor *c, int64_t *out)
{
  if (weft_json_cursor_kind(c) != WEFT_JSON_NUMBER) {
    return false;
  }
  char *const from = c->at;
  const bool minus = *from == '-';
  char *p = from + minus;
  int64_t v = 0;
  while (p < c->end && *p >= '0' && *p <= '9' && p - from <= DOUBLE_DIGITS) {
    v = v * 10 + (*p++ - '0');
  }
  if (p == c->end || !in_number(*p)) {
    c->at = p;
    *out = minus ? -v : v;
    return true;
  }
  while (p < c->end && in_number(*p)) {
    p++;
  }
  c->at = p;
  const char behind = *p; /* text has a byte behind its end */
  *p = '\0';
  const bool exact = wefti_json_exact_i64(from, out);
  *p = behind;
  return exact;
}

void weft_json_cursor_skip(weft_json_cursor *c)
{
  size_t depth = 0;
  bool escaped;
  do {
    const char ch = (char)(c->at < c->end ? *c->at : ']');
    if (ch == '"') {
      c->at = closing_quote(c->at, c->end, &escaped);
    }
    depth += ch == '{' || ch == '[';
    depth -= depth > 0 && (ch == '}' || ch == ']');
    c->at += c->at < c->end;
  } while (depth > 0 && c->at < c->end);
  /* What is left of a number or a literal, up to what must follow it. */
  while (c->at < c->end && *c->at != ',' && *c->at != ']' && *c->at != '}') {
    c->at++;
  }
}
