#include "weft/buf.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct buf_full {
  weft_buf pub;
  /* Relaxed on ref; release on unref pairs with the acquire of the last one. */
  atomic_uint refs;
  bool adopted; /* data is a block of its own */
} buf_full;

static buf_full *full(weft_buf *buf)
{
  return (buf_full *)buf; /* pub is the first member */
}

weft_buf *weft_buf_create(const void *data, size_t len)
{
  if (len > SIZE_MAX - sizeof(buf_full) - 1) {
    return NULL;
  }
  buf_full *b = malloc(sizeof *b + len + 1);
  if (b == NULL) {
    return NULL;
  }
  b->pub.data = (uint8_t *)(b + 1);
  b->pub.len = len;
  b->adopted = false;
  atomic_init(&b->refs, 1);
  if (data != NULL && len > 0) {
    memcpy(b->pub.data, data, len);
  }
  b->pub.data[len] = 0;
  return &b->pub;
}

weft_buf *weft_buf_adopt(void *data, size_t len)
{
  buf_full *b = malloc(sizeof *b);
  if (b == NULL) {
    return NULL;
  }
  b->pub.data = data;
  b->pub.len = len;
  b->adopted = true;
  atomic_init(&b->refs, 1);
  b->pub.data[len] = 0;
  return &b->pub;
}

weft_buf *weft_buf_ref(weft_buf *buf)
{
  if (buf != NULL) {
    (void)atomic_fetch_add_explicit(&full(buf)->refs, 1, memory_order_relaxed);
  }
  return buf;
}

void weft_buf_unref(weft_buf *buf)
{
  if (buf == NULL ||
      atomic_fetch_sub_explicit(&full(buf)->refs, 1, memory_order_acq_rel) != 1) {
    return;
  }
  if (full(buf)->adopted) {
    free(buf->data);
  }
  free(full(buf));
}
