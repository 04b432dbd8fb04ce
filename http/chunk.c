/* Chunked bodies (RFC 9112 §7.1), decoded here and not by llhttp: the versions in use
 * accept lone CR or LF around chunk sizes and do not bound extensions and trailers. */
#include "conn.h"

enum { C_SIZE, C_EXT, C_SIZE_LF, C_DATA, C_DATA_CR, C_DATA_LF, C_TRAILER };

enum { CHUNK_DIGITS_MAX = 15 }; /* 60 bits: cannot wrap */

void wefti_chunk_init(wefti_chunk *ck)
{
  *ck = (wefti_chunk){ .state = C_SIZE };
}

static int hex(char ch)
{
  if (ch >= '0' && ch <= '9') {
    return ch - '0';
  }
  const char low = (char)(ch | 0x20);
  return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

static bool size_byte(wefti_chunk *ck, char ch)
{
  const int digit = hex(ch);
  if (digit >= 0) {
    ck->left = ck->left * 16 + (unsigned)digit;
    return ++ck->digits <= CHUNK_DIGITS_MAX;
  }
  if (ck->digits == 0 || (ch != '\r' && ch != ';')) {
    return false;
  }
  ck->state = ch == '\r' ? C_SIZE_LF : C_EXT;
  return true;
}

/* One byte of framing. */
static bool framing_byte(wefti_chunk *ck, char ch)
{
  switch (ck->state) {
  case C_SIZE:
    return size_byte(ck, ch);
  case C_EXT:
    if (ch == '\r') {
      ck->state = C_SIZE_LF;
      return true;
    }
    return (ch == '\t' || ((unsigned char)ch >= 0x20 && ch != 0x7f)) &&
           ++ck->ext_seen <= WEFTI_CHUNK_EXT_MAX;
  case C_SIZE_LF:
    if (ck->left == 0) {
      wefti_scan_init(&ck->trailer, true);
    }
    ck->state = ck->left == 0 ? C_TRAILER : C_DATA;
    return ch == '\n';
  case C_DATA_CR:
    ck->state = C_DATA_LF;
    return ch == '\r';
  case C_DATA_LF:
    ck->state = C_SIZE;
    ck->digits = 0;
    return ch == '\n';
  default:
    return false;
  }
}

/* Trailers are checked like a head and then forgotten. */
static wefti_verdict trailer(wefti_chunk *ck, const char *data, size_t len, size_t max,
                             size_t *used)
{
  ck->trailer.pos = 0; /* the scanner keeps no offsets for trailers */
  const wefti_verdict v = wefti_scan_run(&ck->trailer, data, len);
  *used += ck->trailer.pos;
  if (ck->trailer.pos > max - ck->trailer_seen) {
    return WEFTI_BAD;
  }
  ck->trailer_seen += ck->trailer.pos;
  return v;
}

wefti_verdict wefti_chunk_run(wefti_chunk *ck, const char *data, size_t len,
                              size_t trailer_max, size_t *used, wefti_piece *piece)
{
  *used = 0;
  *piece = (wefti_piece){ NULL, 0 };
  while (*used < len) {
    if (ck->state == C_TRAILER) {
      return trailer(ck, data + *used, len - *used, trailer_max, used);
    }
    if (ck->state == C_DATA) {
      const size_t have = len - *used;
      const size_t n = have < ck->left ? have : (size_t)ck->left;
      *piece = (wefti_piece){ data + *used, n };
      *used += n;
      ck->left -= n;
      if (ck->left == 0) {
        ck->state = C_DATA_CR;
      }
      return WEFTI_MORE;
    }
    if (!framing_byte(ck, data[*used])) {
      return WEFTI_BAD;
    }
    *used += 1;
  }
  return WEFTI_MORE;
}
