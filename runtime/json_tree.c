/* Trees are cJSON's.  The scanner has accepted the text first, with its limits, so cJSON
 * sees only well-formed text of bounded depth and size.  What cJSON cannot keep, numbers
 * that a double does not hold, is kept as text in the node's unused valuestring (which
 * cJSON_Delete frees with the node). */
#include "json_priv.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

enum {
  DOUBLE_DIGITS = 15, /* decimal digits that a double always keeps */
  NUMBER_MAX = 63     /* characters of a number that cJSON reads */
};

static const cJSON *node_of(const weft_json *v)
{
  return (const cJSON *)v; /* weft_json is never defined: it names cJSON's node */
}

static const weft_json *tree_of(const cJSON *node)
{
  return (const weft_json *)node;
}

/* ---- numbers as they were written */

typedef struct number_walk {
  const char *p, *end;
  bool failed;
} number_walk;

static bool in_number(char c)
{
  return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' ||
         c == 'E';
}

/* Moves to the next number token; its length.  Strings are skipped: they are the only
 * other place for digits.  true, false and null hold an 'e' but no token begins with one.
 */
static size_t next_number(number_walk *w)
{
  while (w->p < w->end) {
    if (*w->p == '"') {
      for (w->p++; *w->p != '"'; w->p++) {
        w->p += wefti_json_plain_run(w->p, (size_t)(w->end - w->p));
        if (*w->p == '"') {
          break;
        }
        w->p += *w->p == '\\';
      }
    } else if (*w->p == '-' || (*w->p >= '0' && *w->p <= '9')) {
      const char *from = w->p;
      while (w->p < w->end && in_number(*w->p)) {
        w->p++;
      }
      return (size_t)(w->p - from);
    }
    w->p++;
  }
  return 0;
}

static bool is_plain_integer(const char *token, size_t len)
{
  return len <= DOUBLE_DIGITS && memchr(token, '.', len) == NULL &&
         memchr(token, 'e', len) == NULL && memchr(token, 'E', len) == NULL;
}

/* Nearly every text: then the tree need not be walked. */
static bool all_plain_integers(const char *text, size_t len)
{
  number_walk walk = { .p = text, .end = text + len };
  for (size_t digits; (digits = next_number(&walk)) != 0;) {
    if (!is_plain_integer(walk.p - digits, digits)) {
      return false;
    }
  }
  return true;
}

/* The tree's numbers in document order are the text's.  Depth is bounded by the scan. */
static void keep_numbers(number_walk *w, cJSON *node)
{
  if (cJSON_IsNumber(node)) {
    const size_t len = next_number(w);
    const char *token = w->p - len;
    if (!is_plain_integer(token, len)) {
      char *text = malloc(len + 1);
      if (text == NULL) {
        w->failed = true;
        return;
      }
      memcpy(text, token, len);
      text[len] = '\0';
      node->valuestring = text;
    }
    return;
  }
  const bool parent = cJSON_IsArray(node) || cJSON_IsObject(node);
  for (cJSON *c = parent ? node->child : NULL; c != NULL && !w->failed; c = c->next) {
    keep_numbers(w, c);
  }
}

/* ---- parsing */

weft_err wefti_json_scan_all(const void *text, size_t len, const weft_json_limits *limits,
                             weft_why *why)
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
  weft_json_scan_destroy(scan);
  return err;
}

/* Why cJSON would not have what the scanner accepted: one of its limits, or memory. */
static weft_err explain(const char *text, size_t len, weft_why *why)
{
  number_walk walk = { .p = text, .end = text + len };
  for (size_t digits; (digits = next_number(&walk)) != 0;) {
    if (digits > NUMBER_MAX) {
      return weft_whyf(why, WEFT_E_LIMIT,
                       "JSON: a number of more than %d characters at byte %zu",
                       NUMBER_MAX, (size_t)(walk.p - text) - digits);
    }
  }
  return weft_whyf(why, WEFT_E_NOMEM, "JSON: no memory for a tree of %zu bytes of text",
                   len);
}

weft_err weft_json_parse(const void *text, size_t len, const weft_json_limits *limits,
                         weft_json **out, weft_why *why)
{
  const weft_err err = wefti_json_scan_all(text, len, limits, why);
  if (err != WEFT_OK) {
    return err;
  }
  cJSON *root = cJSON_ParseWithLength(text, len);
  if (root == NULL) {
    return explain(text, len, why);
  }
  number_walk walk = { .p = text };
  walk.end = walk.p + len;
  if (!all_plain_integers(text, len)) {
    keep_numbers(&walk, root);
  }
  if (walk.failed) {
    cJSON_Delete(root);
    return weft_whyf(why, WEFT_E_NOMEM, "JSON: out of memory");
  }
  *out = (weft_json *)root;
  return WEFT_OK;
}

void weft_json_free(weft_json *root)
{
  cJSON_Delete((cJSON *)root);
}

/* ---- reading */

weft_json_kind weft_json_kind_of(const weft_json *v)
{
  const cJSON *node = node_of(v);
  return node == NULL           ? WEFT_JSON_NONE
         : cJSON_IsNull(node)   ? WEFT_JSON_NULL
         : cJSON_IsBool(node)   ? WEFT_JSON_BOOL
         : cJSON_IsNumber(node) ? WEFT_JSON_NUMBER
         : cJSON_IsString(node) ? WEFT_JSON_STRING
         : cJSON_IsArray(node)  ? WEFT_JSON_ARRAY
                                : WEFT_JSON_OBJECT;
}

const weft_json *weft_json_first(const weft_json *array_or_object)
{
  const cJSON *node = node_of(array_or_object);
  return cJSON_IsArray(node) || cJSON_IsObject(node) ? tree_of(node->child) : NULL;
}

const weft_json *weft_json_next(const weft_json *v)
{
  return v == NULL ? NULL : tree_of(node_of(v)->next);
}

size_t weft_json_count(const weft_json *array_or_object)
{
  size_t n = 0;
  for (const weft_json *v = weft_json_first(array_or_object); v != NULL;
       v = weft_json_next(v)) {
    n++;
  }
  return n;
}

const weft_json *weft_json_get(const weft_json *object, const char *key)
{
  if (weft_json_kind_of(object) != WEFT_JSON_OBJECT) {
    return NULL;
  }
  const weft_json *found = NULL; /* the last one counts, as in Python */
  for (const weft_json *v = weft_json_first(object); v != NULL; v = weft_json_next(v)) {
    if (strcmp(node_of(v)->string, key) == 0) {
      found = v;
    }
  }
  return found;
}

const char *weft_json_key(const weft_json *member)
{
  return member == NULL ? NULL : node_of(member)->string;
}

const char *weft_json_str(const weft_json *v)
{
  return weft_json_kind_of(v) == WEFT_JSON_STRING ? node_of(v)->valuestring : NULL;
}

bool weft_json_bool(const weft_json *v, bool otherwise)
{
  return weft_json_kind_of(v) == WEFT_JSON_BOOL ? cJSON_IsTrue(node_of(v)) != 0
                                                : otherwise;
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

/* A number with fraction, exponent or many digits, as written. */
bool wefti_json_exact_i64(const char *p, int64_t *out)
{
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

bool weft_json_i64(const weft_json *v, int64_t *out)
{
  if (weft_json_kind_of(v) != WEFT_JSON_NUMBER) {
    return false;
  }
  if (node_of(v)->valuestring != NULL) {
    return wefti_json_exact_i64(node_of(v)->valuestring, out);
  }
  *out = (int64_t)node_of(v)->valuedouble; /* at most 15 digits: exact */
  return true;
}
