/* weft/buf.h -- immutable shared bytes with an atomic reference count.
 * Not for weights: those live in slabs (weft/memory.h). */
#ifndef WEFT_BUF_H
#define WEFT_BUF_H

#include "weft/base.h"
#include "weft/err.h"

#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_buf {
  uint8_t *data; /* [len], followed by one NUL that len does not count */
  size_t len;    /* bytes */
  /* private members follow the public ones in memory */
} weft_buf;

/* All from any thread.  create copies data (NULL: uninitialised, to be filled by
 * the only owner before it is shared).  NULL = out of memory. */
WEFT_API weft_buf *weft_buf_create(const void *data, size_t len);
/* Takes free()-able data with at least len + 1 bytes of room (a NUL is written at
 * [len]); on NULL (out of memory) the caller still owns data. */
WEFT_API weft_buf *weft_buf_adopt(void *data, size_t len);
WEFT_API weft_buf *weft_buf_ref(weft_buf *buf); /* NULL gives NULL; returns buf */
WEFT_API void weft_buf_unref(weft_buf *buf);    /* NULL is a no-op */

WEFT_END_DECLS

#endif /* WEFT_BUF_H */
