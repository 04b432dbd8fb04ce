/* Trees are our own and not cJSON's: a second grammar could disagree with the scanner's,
 * a double cannot hold every 64-bit integer, and one block of 32-byte nodes in text order
 * costs no allocation per value.  The scanner has accepted the text before it is walked
 * here, so this file checks nothing again. */
#include "json_priv.h"
#include "weft/checked.h"

#include <stdlib.h>
#include <string.h>

struct weft_json {
  const char *key;  /* of a member, else NULL */
  const char *text; /* strings decoded, numbers as written; NUL-terminated */
  uint32_t count;   /* children */
  uint32_t next;    /* nodes to the one behind this subtree; while open: the parent */
  uint8_t kind;
  bool last; /* of its parent */
  bool truth;
};

typedef struct builder {
  weft_json *nodes; /* in text order, so the first child follows its parent */
  size_t used;
  size_t open; /* innermost open array or object, valid if depth > 0 */
  size_t depth;
  size_t newest; /* latest complete child at this level */
  char *arena;
  const char *p, *end;
} builder;

static const char *string_end(const char *p, const char *end) /* p behind the quote */
{
  const char *quote = memchr(p, '"', (size_t)(end - p));
  if (memchr(p, '\\', (size_t)(quote - p)) == NULL) {
    return quote;
  }
  while (*p != '"') {
    p += *p == '\\' ? 2 : 1;
  }
  return p;
}

static const char *take_string(builder *b)
{
  const char *from = b->p + 1;
  const char *to = string_end(from, b->end);
  char *out = b->arena;
  b->arena += wefti_json_unescape(out, from, (size_t)(to - from));
  *b->arena++ = '\0';
  b->p = to + 1;
  return out;
}

static bool in_number(char c)
{
  return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' ||
         c == 'E';
}

static const char *take_number(builder *b)
{
  char *out = b->arena;
  while (b->p < b->end && in_number(*b->p)) {
    *b->arena++ = *b->p++;
  }
  *b->arena++ = '\0';
  return out;
}

static void finish(builder *b, size_t at)
{
  b->nodes[at].next = (uint32_t)(b->used - at);
  b->newest = at;
}

static void close_node(builder *b)
{
  const size_t at = b->open;
  if (b->nodes[at].count > 0) {
    b->nodes[b->newest].last = true;
  }
  b->open = b->nodes[at].next;
  b->depth--;
  b->p++;
  finish(b, at);
}

static void add_value(builder *b, const char *key)
{
  const size_t at = b->used++;
  weft_json *n = &b->nodes[at];
  *n = (weft_json){ .key = key };
  if (b->depth > 0) {
    b->nodes[b->open].count++;
  }
  const char c = *b->p;
  if (c == '{' || c == '[') {
    n->kind = c == '{' ? WEFT_JSON_OBJECT : WEFT_JSON_ARRAY;
    n->next = (uint32_t)b->open;
    b->open = at;
    b->depth++;
    b->p++;
    return;
  }
  if (c == '"') {
    n->kind = WEFT_JSON_STRING;
    n->text = take_string(b);
  } else if (c == 't' || c == 'f') {
    n->kind = WEFT_JSON_BOOL;
    n->truth = c == 't';
    b->p += c == 't' ? 4 : 5;
  } else if (c == 'n') {
    n->kind = WEFT_JSON_NULL;
    b->p += 4;
  } else {
    n->kind = WEFT_JSON_NUMBER;
    n->text = take_number(b);
  }
  finish(b, at);
}

static void build(builder *b)
{
  const char *key = NULL;
  while (b->p < b->end) {
    const char c = *b->p;
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == ',' || c == ':') {
      b->p++;
    } else if (c == ']' || c == '}') {
      close_node(b);
    } else if (c == '"' && key == NULL && b->depth > 0 &&
               b->nodes[b->open].kind == WEFT_JSON_OBJECT) {
      key = take_string(b);
    } else {
      add_value(b, key);
      key = NULL;
    }
  }
  b->nodes[0].last = true;
}

static weft_err scan_all(const void *text, size_t len, const weft_json_limits *limits,
                         size_t *nodes, weft_why *why)
{
  weft_json_scan *scan;
  weft_err err = weft_json_scan_create(limits, &scan);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "JSON: %s", weft_strerror(err));
  }
  err = weft_json_scan_feed(scan, text, len);
  if (err == WEFT_OK) {
    err = weft_json_scan_end(scan);
  }
  if (err != WEFT_OK) {
    (void)weft_whyf(why, err, "JSON: %s at byte %zu", weft_json_scan_reason(scan),
                    weft_json_scan_error_at(scan));
  }
  *nodes = wefti_json_scan_nodes(scan);
  weft_json_scan_destroy(scan);
  return err;
}

weft_err weft_json_parse(const void *text, size_t len, const weft_json_limits *limits,
                         weft_json **out, weft_why *why)
{
  size_t nodes = 0;
  const weft_err err = scan_all(text, len, limits, &nodes, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (nodes > UINT32_MAX) { /* next and count are 32 bits */
    return weft_whyf(why, WEFT_E_LIMIT, "JSON: %zu values", nodes);
  }
  /* Decoded text is no longer than its literal without the quotes, and a number is
   * followed by something or is all there is: len + 1 bytes are enough. */
  size_t node_bytes;
  size_t bytes;
  weft_json *block = NULL;
  if (weft_size_mul(nodes, sizeof *block, &node_bytes) == WEFT_OK &&
      weft_size_add(node_bytes, len, &bytes) == WEFT_OK &&
      weft_size_add(bytes, 1, &bytes) == WEFT_OK) {
    block = calloc(1, bytes);
  }
  if (block == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "JSON: no memory for %zu values", nodes);
  }
  builder b = { .nodes = block, .arena = (char *)(block + nodes), .p = text };
  b.end = b.p + len;
  build(&b);
  *out = block;
  return WEFT_OK;
}

void weft_json_free(weft_json *root)
{
  free(root);
}

weft_json_kind weft_json_kind_of(const weft_json *v)
{
  return v == NULL ? WEFT_JSON_NONE : (weft_json_kind)v->kind;
}

const weft_json *weft_json_first(const weft_json *array_or_object)
{
  return array_or_object == NULL || array_or_object->count == 0 ? NULL
                                                                : array_or_object + 1;
}

const weft_json *weft_json_next(const weft_json *v)
{
  return v == NULL || v->last ? NULL : v + v->next;
}

size_t weft_json_count(const weft_json *array_or_object)
{
  return array_or_object == NULL ? 0 : array_or_object->count;
}

const weft_json *weft_json_get(const weft_json *object, const char *key)
{
  if (weft_json_kind_of(object) != WEFT_JSON_OBJECT) {
    return NULL;
  }
  const weft_json *found = NULL; /* the last one counts, as in Python */
  for (const weft_json *v = weft_json_first(object); v != NULL; v = weft_json_next(v)) {
    if (strcmp(v->key, key) == 0) {
      found = v;
    }
  }
  return found;
}

const char *weft_json_key(const weft_json *member)
{
  return member == NULL ? NULL : member->key;
}

const char *weft_json_str(const weft_json *v)
{
  return weft_json_kind_of(v) == WEFT_JSON_STRING ? v->text : NULL;
}

bool weft_json_bool(const weft_json *v, bool otherwise)
{
  return weft_json_kind_of(v) == WEFT_JSON_BOOL ? v->truth : otherwise;
}

/* Exponent behind e or E; saturates far beyond what any text's digits could offset. */
static int64_t exponent(const char *p)
{
  const bool minus = *p == '-';
  if (*p == '-' || *p == '+') {
    p++;
  }
  const int64_t far = INT64_C(1000000000000000);
  int64_t e = 0;
  for (; *p != '\0' && e < far; p++) {
    e = e * 10 + (*p - '0');
  }
  return minus ? -e : e;
}

bool weft_json_i64(const weft_json *v, int64_t *out)
{
  if (weft_json_kind_of(v) != WEFT_JSON_NUMBER) {
    return false;
  }
  const char *p = v->text;
  const bool minus = *p == '-';
  uint64_t n = 0;
  int64_t scale = 0; /* value = n * 10^(scale + zeros seen since) */
  int64_t zeros = 0; /* zeros behind n that are not yet in it */
  bool fraction = false;
  for (p += minus; *p != '\0' && *p != 'e' && *p != 'E'; p++) {
    if (*p == '.') {
      fraction = true;
      continue;
    }
    scale -= fraction;
    if (*p == '0') {
      zeros += n != 0;
      continue;
    }
    for (; zeros > 0; zeros--) {
      if (__builtin_mul_overflow(n, 10u, &n)) {
        return false;
      }
    }
    if (__builtin_mul_overflow(n, 10u, &n) ||
        __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n)) {
      return false;
    }
  }
  if (n == 0) {
    *out = 0;
    return true;
  }
  scale += zeros + (*p == '\0' ? 0 : exponent(p + 1));
  if (scale < 0) {
    return false;
  }
  for (; scale > 0; scale--) { /* overflows after 19 rounds at the latest */
    if (__builtin_mul_overflow(n, 10u, &n)) {
      return false;
    }
  }
  if (n > (uint64_t)INT64_MAX) {
    return false;
  }
  *out = minus ? -(int64_t)n : (int64_t)n;
  return true;
}
