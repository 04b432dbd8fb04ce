#include "conn.h"
#include "weft/checked.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES_FIRST = 4096 };

weft_err wefti_bytes_room(wefti_bytes *b, size_t more)
{
  if (more <= b->cap - b->len) {
    return WEFT_OK;
  }
  size_t need = 0;
  const weft_err err = weft_size_add(b->len, more, &need);
  if (err != WEFT_OK) {
    return err;
  }
  size_t cap = b->cap < BYTES_FIRST ? BYTES_FIRST : b->cap;
  while (cap < need) {
    if (cap > SIZE_MAX / 2) {
      return WEFT_E_OVERFLOW;
    }
    cap *= 2;
  }
  char *data = realloc(b->data, cap);
  if (data == NULL) {
    return WEFT_E_NOMEM;
  }
  b->data = data;
  b->cap = cap;
  return WEFT_OK;
}

weft_err wefti_bytes_add(wefti_bytes *b, const void *data, size_t len)
{
  if (len == 0) {
    return WEFT_OK;
  }
  const weft_err err = wefti_bytes_room(b, len);
  if (err == WEFT_OK) {
    memcpy(b->data + b->len, data, len);
    b->len += len;
  }
  return err;
}

void wefti_bytes_fini(wefti_bytes *b)
{
  free(b->data);
  *b = (wefti_bytes){ 0 };
}
