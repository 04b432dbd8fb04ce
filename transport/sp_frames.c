#include "sp_frames.h"

#include <string.h>

enum { HEAD = 9, TYPE = 1 /* of every frame */ };

static size_t copy(uint64_t *left, const uint8_t *in, size_t n, uint8_t *out)
{
  const size_t k = *left < n ? (size_t)*left : n;
  memcpy(out, in, k);
  *left -= k;
  return k;
}

size_t wefti_sp_translate(wefti_sp_frames *f, const uint8_t *in, size_t n, uint8_t *out)
{
  uint8_t *to = out;
  for (size_t i = 0; i < n;) {
    if (f->greeting > 0 || f->body > 0) {
      uint64_t greeting = f->greeting;
      const size_t k = copy(greeting > 0 ? &greeting : &f->body, in + i, n - i, to);
      f->greeting = (uint8_t)greeting;
      i += k;
      to += k;
      continue;
    }
    if (f->head == 0) {
      f->head = 1;
      f->len = 0;
      if (f->change == WEFTI_SP_TO_TCP) {
        i++;
        continue;
      }
      *to++ = TYPE;
    }
    f->len = f->len << 8 | in[i];
    *to++ = in[i++];
    if (++f->head == HEAD) {
      f->head = 0;
      f->body = f->len;
    }
  }
  return (size_t)(to - out);
}
