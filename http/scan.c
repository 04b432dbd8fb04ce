/* The raw grammar of a head, byte by byte and stricter than llhttp: 8.1.0 lets a lone CR
 * end a line, folds continuation lines and takes a space before the colon. */
#include "conn.h"

#include <string.h>

enum {
  S_START,
  S_START_CR,
  S_LINE,
  S_LINE_CR,
  S_NAME_START,
  S_NAME,
  S_VALUE,
  S_VALUE_CR,
  S_END_CR,
  S_DONE
};

/* RFC 9110 §5.6.2 tchar */
static bool is_tchar(unsigned char ch)
{
  static const uint8_t table[128] = {
    ['!'] = 1, ['#'] = 1, ['$'] = 1, ['%'] = 1, ['&'] = 1, ['\''] = 1, ['*'] = 1,
    ['+'] = 1, ['-'] = 1, ['.'] = 1, ['^'] = 1, ['_'] = 1, ['`'] = 1,  ['|'] = 1,
    ['~'] = 1, ['0'] = 1, ['1'] = 1, ['2'] = 1, ['3'] = 1, ['4'] = 1,  ['5'] = 1,
    ['6'] = 1, ['7'] = 1, ['8'] = 1, ['9'] = 1, ['A'] = 1, ['B'] = 1,  ['C'] = 1,
    ['D'] = 1, ['E'] = 1, ['F'] = 1, ['G'] = 1, ['H'] = 1, ['I'] = 1,  ['J'] = 1,
    ['K'] = 1, ['L'] = 1, ['M'] = 1, ['N'] = 1, ['O'] = 1, ['P'] = 1,  ['Q'] = 1,
    ['R'] = 1, ['S'] = 1, ['T'] = 1, ['U'] = 1, ['V'] = 1, ['W'] = 1,  ['X'] = 1,
    ['Y'] = 1, ['Z'] = 1, ['a'] = 1, ['b'] = 1, ['c'] = 1, ['d'] = 1,  ['e'] = 1,
    ['f'] = 1, ['g'] = 1, ['h'] = 1, ['i'] = 1, ['j'] = 1, ['k'] = 1,  ['l'] = 1,
    ['m'] = 1, ['n'] = 1, ['o'] = 1, ['p'] = 1, ['q'] = 1, ['r'] = 1,  ['s'] = 1,
    ['t'] = 1, ['u'] = 1, ['v'] = 1, ['w'] = 1, ['x'] = 1, ['y'] = 1,  ['z'] = 1,
  };
  return ch < 128 && table[ch] != 0;
}

static bool is_digit(char ch)
{
  return ch >= '0' && ch <= '9';
}

static bool is_visible(unsigned char ch)
{
  return ch >= 0x20 && ch != 0x7f;
}

bool wefti_is_token(const char *text, size_t len)
{
  for (size_t i = 0; i < len; i++) {
    if (!is_tchar((unsigned char)text[i])) {
      return false;
    }
  }
  return len > 0;
}

/* METHOD SP target SP HTTP/1.x: 0, 400 or 505. */
static uint16_t check_request_line(const char *line, size_t len)
{
  const char *sp = memchr(line, ' ', len);
  if (sp == NULL || !wefti_is_token(line, (size_t)(sp - line))) {
    return 400;
  }
  const char *target = sp + 1;
  size_t left = len - (size_t)(target - line);
  sp = memchr(target, ' ', left);
  if (sp == NULL || sp == target) {
    return 400; /* HTTP/0.9 has no version */
  }
  const char *v = sp + 1;
  left = len - (size_t)(v - line);
  if (left != sizeof "HTTP/1.1" - 1 || memcmp(v, "HTTP/", 5) != 0 || !is_digit(v[5]) ||
      v[6] != '.' || !is_digit(v[7])) {
    return 400;
  }
  return v[5] == '1' && (v[7] == '0' || v[7] == '1') ? 0 : 505;
}

void wefti_scan_init(wefti_scan *s, bool trailers)
{
  *s = (wefti_scan){ .state = trailers ? S_NAME_START : S_START };
}

bool wefti_scan_blank(const wefti_scan *s)
{
  return s->state == S_START && s->pos > 0;
}

/* The line ends with this LF; the next state, or -1. */
static int line_end(wefti_scan *s, const char *data)
{
  s->status = check_request_line(data + s->line, s->pos - 1 - s->line);
  return s->status == 0 ? S_NAME_START : -1;
}

/* One byte that is not the bulk of a line, value or name; the next state, or -1. */
static int edge(wefti_scan *s, const char *data, unsigned char ch)
{
  static const struct {
    int want, next; /* this byte, else a token byte starts other */
    int other;
  } table[] = {
    [S_START] = { '\r', S_START_CR, S_LINE },
    [S_START_CR] = { '\n', S_START, -1 },
    [S_LINE] = { '\r', S_LINE_CR, -1 },
    [S_LINE_CR] = { '\n', S_NAME_START, -1 },
    /* a blank here would continue the line before (obs-fold) */
    [S_NAME_START] = { '\r', S_END_CR, S_NAME },
    [S_NAME] = { ':', S_VALUE, -1 }, /* and not a blank before it */
    [S_VALUE] = { '\r', S_VALUE_CR, -1 },
    [S_VALUE_CR] = { '\n', S_NAME_START, -1 },
    [S_END_CR] = { '\n', S_DONE, -1 },
    [S_DONE] = { -1, -1, -1 },
  };
  if (s->state == S_START) {
    s->line = s->pos;
  }
  if (ch != table[s->state].want) {
    return is_tchar(ch) ? table[s->state].other : -1;
  }
  return s->state == S_LINE_CR ? line_end(s, data) : table[s->state].next;
}

wefti_verdict wefti_scan_run(wefti_scan *s, const char *data, size_t len)
{
  s->status = 0;
  for (; s->pos < len; s->pos++) {
    const unsigned char ch = (unsigned char)data[s->pos];
    if ((s->state == S_VALUE && (is_visible(ch) || ch == '\t')) ||
        (s->state == S_NAME && is_tchar(ch)) ||
        (s->state == S_LINE && is_visible(ch) && ch < 0x7f)) {
      continue;
    }
    const int next = edge(s, data, ch);
    if (next < 0) {
      s->status = s->status == 0 ? 400 : s->status;
      return WEFTI_BAD;
    }
    s->state = (uint8_t)next;
    if (next == S_DONE) {
      s->pos++;
      return WEFTI_DONE;
    }
  }
  return WEFTI_MORE;
}
