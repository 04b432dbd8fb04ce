/* The scanner's verdict must not depend on how text is cut, must be the parser's, and
 * what it accepts must be what cJSON, a reader we did not write, sees in the text; the
 * cursor reads the same. */
#include "weft/json.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                                      \
  do {                                                                                   \
    if (!(cond)) {                                                                       \
      (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                   \
      abort();                                                                           \
    }                                                                                    \
  } while (0)

static weft_err scan(const uint8_t *data, size_t size, size_t piece, size_t *at)
{
  weft_json_scan *s;
  CHECK(weft_json_scan_create(NULL, &s) == WEFT_OK);
  weft_err err = WEFT_OK;
  for (size_t i = 0; i < size && err == WEFT_OK; i += piece) {
    err = weft_json_scan_feed(s, data + i, size - i < piece ? size - i : piece);
  }
  if (err == WEFT_OK) {
    err = weft_json_scan_end(s);
  }
  *at = weft_json_scan_error_at(s);
  weft_json_scan_destroy(s);
  return err;
}

static weft_json_kind cjson_kind(const cJSON *c)
{
  return cJSON_IsNull(c)     ? WEFT_JSON_NULL
         : cJSON_IsBool(c)   ? WEFT_JSON_BOOL
         : cJSON_IsNumber(c) ? WEFT_JSON_NUMBER
         : cJSON_IsString(c) ? WEFT_JSON_STRING
         : cJSON_IsArray(c)  ? WEFT_JSON_ARRAY
                             : WEFT_JSON_OBJECT;
}

static void same(const weft_json *v, const cJSON *c)
{
  CHECK(weft_json_kind_of(v) == cjson_kind(c));
  if (cJSON_IsString(c)) {
    CHECK(strcmp(weft_json_str(v), c->valuestring) == 0);
  }
  if (cJSON_IsBool(c)) {
    CHECK(weft_json_bool(v, !cJSON_IsTrue(c)) == cJSON_IsTrue(c));
  }
  int64_t n;
  if (weft_json_i64(v, &n) && n < (INT64_C(1) << 53) && n > -(INT64_C(1) << 53)) {
    CHECK((double)n == c->valuedouble);
  }
  const weft_json *a = weft_json_first(v);
  const cJSON *b = cJSON_IsArray(c) || cJSON_IsObject(c) ? c->child : NULL;
  for (; a != NULL && b != NULL; a = weft_json_next(a), b = b->next) {
    CHECK(!cJSON_IsObject(c) || strcmp(weft_json_key(a), b->string) == 0);
    same(a, b);
  }
  CHECK(a == NULL && b == NULL);
}

static void rewrite(weft_json_writer *w, const weft_json *v)
{
  const char *key = weft_json_key(v);
  int64_t n;
  switch (weft_json_kind_of(v)) {
  case WEFT_JSON_STRING:
    weft_jw_str(w, key, weft_json_str(v));
    return;
  case WEFT_JSON_BOOL:
    weft_jw_bool(w, key, weft_json_bool(v, false));
    return;
  case WEFT_JSON_NUMBER:
    weft_jw_i64(w, key, weft_json_i64(v, &n) ? n : 0);
    return;
  case WEFT_JSON_ARRAY:
    weft_jw_array(w, key);
    break;
  case WEFT_JSON_OBJECT:
    weft_jw_object(w, key);
    break;
  case WEFT_JSON_NULL:
  case WEFT_JSON_NONE:
    weft_jw_null(w, key);
    return;
  }
  for (const weft_json *c = weft_json_first(v); c != NULL; c = weft_json_next(c)) {
    rewrite(w, c);
  }
  weft_jw_end(w);
}

/* The cursor reads what the tree has. */
static void walk(weft_json_cursor *c, const weft_json *v)
{
  const weft_json_kind kind = weft_json_kind_of(v);
  int64_t a = 0;
  int64_t b = 0;
  CHECK(weft_json_cursor_kind(c) == kind);
  if (kind == WEFT_JSON_STRING) {
    CHECK(strcmp(weft_json_cursor_str(c), weft_json_str(v)) == 0);
  } else if (kind == WEFT_JSON_NUMBER) {
    const bool is = weft_json_i64(v, &a);
    CHECK(weft_json_cursor_i64(c, &b) == is && (!is || a == b));
  } else if (kind == WEFT_JSON_ARRAY || kind == WEFT_JSON_OBJECT) {
    weft_json_cursor_enter(c);
    for (const weft_json *m = weft_json_first(v); m != NULL; m = weft_json_next(m)) {
      CHECK(weft_json_cursor_next(c));
      CHECK(kind != WEFT_JSON_OBJECT ||
            strcmp(weft_json_cursor_key(c), weft_json_key(m)) == 0);
      walk(c, m);
    }
    CHECK(!weft_json_cursor_next(c));
  } else {
    weft_json_cursor_skip(c);
  }
}

static void walk_all(const uint8_t *data, size_t size, const weft_json *root)
{
  weft_json_cursor c;
  char *text = malloc(size + 1);
  CHECK(text != NULL);
  memcpy(text, data, size);
  CHECK(weft_json_cursor_open(text, size, NULL, &c, NULL) == WEFT_OK);
  walk(&c, root);
  memcpy(text, data, size);
  CHECK(weft_json_cursor_open(text, size, NULL, &c, NULL) == WEFT_OK);
  weft_json_cursor_skip(&c);
  CHECK(c.at == c.end);
  free(text);
}

/* cJSON reads at most 63 characters of a number. */
static int has_long_number(const uint8_t *data, size_t size)
{
  size_t run = 0;
  for (size_t i = 0; i < size; i++) {
    run = data[i] != 0 && strchr("+-.0123456789eE", data[i]) != NULL ? run + 1 : 0;
    if (run >= 63) {
      return 1;
    }
  }
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  size_t at[3];
  const weft_err err = scan(data, size, size + 1, &at[0]);
  CHECK(scan(data, size, 1, &at[1]) == err && at[1] == at[0]);
  CHECK(scan(data, size, 7, &at[2]) == err && at[2] == at[0]);
  weft_json *root = NULL;
  CHECK(weft_json_parse(data, size, NULL, &root, NULL) == err);
  if (err != WEFT_OK) {
    CHECK(root == NULL);
    return 0;
  }
  if (!has_long_number(data, size)) {
    cJSON *c = cJSON_ParseWithLength((const char *)data, size);
    CHECK(c != NULL);
    same(root, c);
    cJSON_Delete(c);
  }
  walk_all(data, size, root);
  weft_json_writer w;
  weft_jw_init(&w);
  rewrite(&w, root);
  char *text = NULL;
  size_t len = 0;
  const weft_err wrote = weft_jw_take(&w, &text, &len);
  CHECK(wrote == WEFT_OK || wrote == WEFT_E_LIMIT); /* 60 levels against 64 */
  if (wrote == WEFT_OK) {
    weft_json *again = NULL;
    CHECK(weft_json_parse(text, len, NULL, &again, NULL) == WEFT_OK);
    CHECK(weft_json_count(again) == weft_json_count(root));
    weft_json_free(again);
    free(text);
  }
  weft_json_free(root);
  return 0;
}
