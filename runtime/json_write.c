#include "json_priv.h"
#include "weft/checked.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WRITER_DEPTH_MAX = 60 };

void weft_jw_init(weft_json_writer *w)
{
  memset(w, 0, sizeof *w);
}

void weft_jw_fini(weft_json_writer *w)
{
  free(w->text);
  memset(w, 0, sizeof *w);
}

/* Room for more bytes and a NUL behind them; NULL after any error. */
static char *room(weft_json_writer *w, size_t more)
{
  if (w->err != WEFT_OK) {
    return NULL;
  }
  size_t need;
  if (weft_size_add(w->len, more, &need) != WEFT_OK ||
      weft_size_add(need, 1, &need) != WEFT_OK) {
    w->err = WEFT_E_NOMEM;
    return NULL;
  }
  if (need > w->cap) {
    size_t cap = w->cap < 256 ? 256 : w->cap;
    while (cap < need) {
      cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    }
    char *bigger = realloc(w->text, cap);
    if (bigger == NULL) {
      w->err = WEFT_E_NOMEM;
      return NULL;
    }
    w->text = bigger;
    w->cap = cap;
  }
  return w->text + w->len;
}

static void put(weft_json_writer *w, const char *s, size_t len)
{
  char *at = room(w, len);
  if (at != NULL && len > 0) {
    memcpy(at, s, len);
    w->len += len;
  }
}

static void put_escaped(weft_json_writer *w, uint8_t c)
{
  static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt";
  for (const char *p = shorts; *p != '\0'; p += 2) {
    if ((uint8_t)p[0] == c) {
      const char two[2] = { '\\', p[1] };
      put(w, two, 2);
      return;
    }
  }
  char six[8];
  (void)snprintf(six, sizeof six, "\\u%04x", c);
  put(w, six, 6);
}

static void put_string(weft_json_writer *w, const char *s, size_t len)
{
  put(w, "\"", 1);
  const uint8_t *p = (const uint8_t *)s;
  size_t from = 0;
  size_t i = 0;
  while (i < len) {
    if (p[i] >= 0x20 && p[i] < 0x80 && p[i] != '"' && p[i] != '\\') {
      i++;
      continue;
    }
    const size_t n = p[i] < 0x80 ? 0 : wefti_utf8_len(p + i, len - i);
    if (n > 0) {
      i += n;
      continue;
    }
    put(w, s + from, i - from);
    if (p[i] < 0x80) {
      put_escaped(w, p[i]);
    } else {
      put(w, "\xef\xbf\xbd", 3); /* not UTF-8: the replacement character */
    }
    from = ++i;
  }
  put(w, s + from, len - from);
  put(w, "\"", 1);
}

/* Comma and name in front of a value. */
static void lead(weft_json_writer *w, const char *key)
{
  const uint64_t bit = UINT64_C(1) << w->depth;
  if ((w->comma & bit) != 0) {
    put(w, ",", 1);
  }
  w->comma |= bit;
  if (key != NULL) {
    put_string(w, key, strlen(key));
    put(w, ":", 1);
  }
}

static void open_level(weft_json_writer *w, const char *key, bool object)
{
  lead(w, key);
  if (w->depth >= WRITER_DEPTH_MAX) {
    w->err = w->err == WEFT_OK ? WEFT_E_LIMIT : w->err;
    return;
  }
  put(w, object ? "{" : "[", 1);
  w->depth++;
  w->comma &= ~(UINT64_C(1) << w->depth);
  w->kinds =
      object ? w->kinds | UINT64_C(1) << w->depth : w->kinds & ~(UINT64_C(1) << w->depth);
}

void weft_jw_object(weft_json_writer *w, const char *key)
{
  open_level(w, key, true);
}

void weft_jw_array(weft_json_writer *w, const char *key)
{
  open_level(w, key, false);
}

void weft_jw_end(weft_json_writer *w)
{
  if (w->depth == 0) {
    w->err = w->err == WEFT_OK ? WEFT_E_STATE : w->err;
    return;
  }
  put(w, (w->kinds >> w->depth & 1) != 0 ? "}" : "]", 1);
  w->depth--;
}

void weft_jw_strn(weft_json_writer *w, const char *key, const char *s, size_t len)
{
  lead(w, key);
  put_string(w, s, len);
}

void weft_jw_str(weft_json_writer *w, const char *key, const char *s)
{
  if (s == NULL) {
    weft_jw_null(w, key);
  } else {
    weft_jw_strn(w, key, s, strlen(s));
  }
}

void weft_jw_u64(weft_json_writer *w, const char *key, uint64_t v)
{
  char digits[24];
  const int n = snprintf(digits, sizeof digits, "%" PRIu64, v);
  weft_jw_raw(w, key, digits, n < 0 ? 0 : (size_t)n);
}

void weft_jw_i64(weft_json_writer *w, const char *key, int64_t v)
{
  char digits[24];
  const int n = snprintf(digits, sizeof digits, "%" PRId64, v);
  weft_jw_raw(w, key, digits, n < 0 ? 0 : (size_t)n);
}

void weft_jw_bool(weft_json_writer *w, const char *key, bool v)
{
  weft_jw_raw(w, key, v ? "true" : "false", v ? 4 : 5);
}

void weft_jw_null(weft_json_writer *w, const char *key)
{
  weft_jw_raw(w, key, "null", 4);
}

void weft_jw_raw(weft_json_writer *w, const char *key, const char *json, size_t len)
{
  lead(w, key);
  put(w, json, len);
}

weft_err weft_jw_take(weft_json_writer *w, char **out, size_t *len)
{
  char *at = room(w, 0);
  if (at == NULL || w->depth != 0) {
    const weft_err err = w->err == WEFT_OK ? WEFT_E_STATE : w->err;
    weft_jw_fini(w);
    return err;
  }
  *at = '\0';
  *out = w->text;
  if (len != NULL) {
    *len = w->len;
  }
  w->text = NULL;
  weft_jw_fini(w);
  return WEFT_OK;
}

weft_buf *weft_jw_take_buf(weft_json_writer *w)
{
  char *text;
  size_t len;
  if (weft_jw_take(w, &text, &len) != WEFT_OK) {
    return NULL;
  }
  weft_buf *buf = weft_buf_adopt(text, len);
  if (buf == NULL) {
    free(text);
  }
  return buf;
}
