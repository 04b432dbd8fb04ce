#include "json_priv.h"

#include <string.h>

unsigned wefti_utf8_lead(uint8_t lead, uint8_t *low, uint8_t *high)
{
  *low = 0x80;
  *high = 0xbf;
  if (lead < 0xc2 || lead > 0xf4) {
    return 0;
  }
  if (lead < 0xe0) {
    return 1;
  }
  if (lead < 0xf0) {
    if (lead == 0xe0) {
      *low = 0xa0;
    } else if (lead == 0xed) {
      *high = 0x9f;
    }
    return 2;
  }
  if (lead == 0xf0) {
    *low = 0x90;
  } else if (lead == 0xf4) {
    *high = 0x8f;
  }
  return 3;
}

size_t wefti_utf8_len(const uint8_t *s, size_t left)
{
  if (left == 0) {
    return 0;
  }
  if (s[0] < 0x80) {
    return 1;
  }
  uint8_t low;
  uint8_t high;
  const unsigned more = wefti_utf8_lead(s[0], &low, &high);
  if (more == 0 || left < more + 1 || s[1] < low || s[1] > high) {
    return 0;
  }
  for (unsigned i = 2; i <= more; i++) {
    if ((s[i] & 0xc0) != 0x80) {
      return 0;
    }
  }
  return more + 1;
}

static unsigned hex4(const char *s)
{
  unsigned v = 0;
  for (int i = 0; i < 4; i++) {
    const char c = s[i];
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    v = v << 4 | (unsigned)digit;
  }
  return v;
}

static size_t put_utf8(char *out, unsigned cp)
{
  if (cp < 0x80) {
    out[0] = (char)cp;
    return 1;
  }
  if (cp < 0x800) {
    out[0] = (char)(0xc0 | cp >> 6);
    out[1] = (char)(0x80 | (cp & 0x3f));
    return 2;
  }
  if (cp < 0x10000) {
    out[0] = (char)(0xe0 | cp >> 12);
    out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[2] = (char)(0x80 | (cp & 0x3f));
    return 3;
  }
  out[0] = (char)(0xf0 | cp >> 18);
  out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
  out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
  out[3] = (char)(0x80 | (cp & 0x3f));
  return 4;
}

static char plain_escape(char c)
{
  switch (c) {
  case 'b':
    return '\b';
  case 'f':
    return '\f';
  case 'n':
    return '\n';
  case 'r':
    return '\r';
  case 't':
    return '\t';
  default:
    return c; /* the quote, the backslash, the slash */
  }
}

size_t wefti_json_unescape(char *out, const char *src, size_t len)
{
  size_t n = 0;
  size_t i = 0;
  while (i < len) {
    const char *esc = memchr(src + i, '\\', len - i);
    const size_t run = esc == NULL ? len - i : (size_t)(esc - (src + i));
    memmove(out + n, src + i, run);
    n += run;
    i += run;
    if (esc == NULL) {
      break;
    }
    if (src[i + 1] != 'u') {
      out[n++] = plain_escape(src[i + 1]);
      i += 2;
      continue;
    }
    unsigned cp = hex4(src + i + 2);
    i += 6;
    if (cp >= 0xd800 && cp <= 0xdbff) { /* the scanner made sure of the other half */
      cp = 0x10000 + ((cp - 0xd800) << 10) + (hex4(src + i + 2) - 0xdc00);
      i += 6;
    }
    n += put_utf8(out + n, cp);
  }
  return n;
}

/* The top bit of each byte of w that a string cannot take as it is: control, not ASCII,
 * the quote or the backslash.  Zero only if there is none; bytes above the lowest of them
 * may be marked without reason (a borrow). */
static uint64_t special_bytes(uint64_t w)
{
  const uint64_t ones = UINT64_C(0x0101010101010101);
  const uint64_t quote = w ^ ones * '"';
  const uint64_t slash = w ^ ones * '\\';
  return (w | ((w - ones * 0x20) & ~w) | ((quote - ones) & ~quote) |
          ((slash - ones) & ~slash)) &
         ones * 0x80;
}

size_t wefti_json_plain_run(const char *p, size_t len)
{
  size_t i = 0;
  for (; len - i >= sizeof(uint64_t); i += sizeof(uint64_t)) {
    uint64_t w;
    memcpy(&w, p + i, sizeof w);
    const uint64_t special = special_bytes(w);
    if (special != 0) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
      return i + (unsigned)__builtin_ctzll(special) / 8;
#else
      break;
#endif
    }
  }
  while (i < len) {
    const unsigned char c = (unsigned char)p[i];
    if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\') {
      break;
    }
    i++;
  }
  return i;
}

weft_json_kind wefti_json_kind_of_first(char c)
{
  switch (c) {
  case '{':
    return WEFT_JSON_OBJECT;
  case '[':
    return WEFT_JSON_ARRAY;
  case '"':
    return WEFT_JSON_STRING;
  case 't':
  case 'f':
    return WEFT_JSON_BOOL;
  case 'n':
    return WEFT_JSON_NULL;
  default:
    return c == '-' || (c >= '0' && c <= '9') ? WEFT_JSON_NUMBER : WEFT_JSON_NONE;
  }
}
