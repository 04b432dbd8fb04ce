#include "conn.h"

#include <string.h>

static int hex(char ch)
{
  if (ch >= '0' && ch <= '9') {
    return ch - '0';
  }
  const char low = (char)(ch | 0x20);
  return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

weft_err wefti_percent_decode(const char *in, size_t len, bool plus, char *out,
                              size_t cap, size_t *out_len)
{
  size_t n = 0;
  for (size_t i = 0; i < len; i++) {
    unsigned ch = (unsigned char)in[i];
    if (ch == '%') {
      const int hi = len - i > 2 ? hex(in[i + 1]) : -1;
      const int lo = len - i > 2 ? hex(in[i + 2]) : -1;
      if (hi < 0 || lo < 0) {
        return WEFT_E_PROTO;
      }
      ch = (unsigned)hi * 16 + (unsigned)lo;
      i += 2;
    } else if (ch == '+' && plus) {
      ch = ' ';
    }
    if (ch == 0) {
      return WEFT_E_PROTO;
    }
    if (n == cap) {
      return WEFT_E_LIMIT;
    }
    out[n++] = (char)ch;
  }
  *out_len = n;
  return WEFT_OK;
}

/* Is the encoded name [len] equal to key? */
static bool names(const char *name, size_t len, const char *key)
{
  size_t k = 0;
  for (size_t i = 0; i < len; k++) {
    const size_t step = name[i] == '%' && len - i > 2 ? 3 : 1;
    char ch = 0;
    size_t one = 0;
    if (wefti_percent_decode(name + i, step, true, &ch, 1, &one) != WEFT_OK || one != 1 ||
        key[k] == '\0' || ch != key[k]) {
      return false;
    }
    i += step;
  }
  return key[k] == '\0';
}

weft_err weft_http_query(const char *query, const char *key, char *out, size_t cap)
{
  const char *value = NULL;
  size_t value_len = 0;
  for (const char *p = query; *p != '\0';) {
    const size_t len = strcspn(p, "&");
    const char *eq = memchr(p, '=', len);
    const size_t name_len = eq == NULL ? len : (size_t)(eq - p);
    if (len > 0 && names(p, name_len, key)) {
      value = eq == NULL ? p + len : eq + 1;
      value_len = len - (size_t)(value - p);
    }
    p += len + (p[len] == '&');
  }
  if (value == NULL) {
    return WEFT_E_NOTFOUND;
  }
  if (cap == 0) {
    return WEFT_E_LIMIT;
  }
  size_t n = 0;
  const weft_err err = wefti_percent_decode(value, value_len, true, out, cap - 1, &n);
  out[err == WEFT_OK ? n : 0] = '\0';
  return err;
}
