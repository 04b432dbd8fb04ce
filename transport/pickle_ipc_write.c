/* CUDA IPC handles as torch pickles them.  No memo: the text is longer, the tree the
 * same. */
#include "weft/checked.h"
#include "weft/pickle.h"

#include <stdlib.h>
#include <string.h>

/* Grows; once failed it takes nothing more. */
typedef struct buf {
  uint8_t *at;
  size_t len, cap;
  weft_err err;
} buf;

enum { OP_MARK = '(', OP_TUPLE = 't', OP_NONE = 'N', OP_FALSE = 0x89, OP_TRUE = 0x88 };

static void put(buf *b, const void *data, size_t n)
{
  size_t need;
  if (b->err == WEFT_OK && weft_size_add(b->len, n, &need) != WEFT_OK) {
    b->err = WEFT_E_OVERFLOW;
  }
  if (b->err == WEFT_OK && need > b->cap) {
    const size_t cap = need < WEFT_IPC_PICKLE_MAX ? 2 * need : need;
    uint8_t *more = need > WEFT_IPC_PICKLE_MAX ? NULL : realloc(b->at, cap);
    if (more == NULL) {
      b->err = need > WEFT_IPC_PICKLE_MAX ? WEFT_E_LIMIT : WEFT_E_NOMEM;
    } else {
      b->at = more;
      b->cap = cap;
    }
  }
  if (b->err == WEFT_OK && b->at != NULL) {
    memcpy(b->at + b->len, data, n);
    b->len = need;
  }
}

static void put_op(buf *b, uint8_t op)
{
  put(b, &op, 1);
}

/* SHORT_BINUNICODE or SHORT_BINBYTES. */
static void put_short(buf *b, uint8_t op, const void *data, size_t len)
{
  if (len > UINT8_MAX) {
    b->err = b->err == WEFT_OK ? WEFT_E_INVAL : b->err;
    return;
  }
  const uint8_t head[2] = { op, (uint8_t)len };
  put(b, head, sizeof head);
  put(b, data, len);
}

static void put_global(buf *b, const char *module, const char *name)
{
  put_short(b, 0x8c, module, strlen(module));
  put_short(b, 0x8c, name, strlen(name));
  put_op(b, 0x93); /* STACK_GLOBAL */
}

static void put_int(buf *b, uint64_t n)
{
  uint8_t text[11] = { 0x8a, 0 }; /* LONG1: length, two's complement */
  if (n <= UINT8_MAX) {
    const uint8_t small[2] = { 'K', (uint8_t)n }; /* BININT1 */
    put(b, small, sizeof small);
    return;
  }
  size_t len = 0;
  for (; n != 0; n >>= 8) {
    text[2 + len++] = (uint8_t)n;
  }
  len += text[1 + len] > INT8_MAX; /* a zero in front, or it would be negative */
  text[1] = (uint8_t)len;
  put(b, text, 2 + len);
}

static void put_ints(buf *b, const int64_t *n, unsigned count)
{
  put_op(b, OP_MARK);
  for (unsigned i = 0; i < count; i++) {
    put_int(b, (uint64_t)n[i]);
  }
  put_op(b, OP_TUPLE);
}

static void put_handle(buf *b, const weft_ipc_tensor *t)
{
  uint8_t handle[2 + WEFT_IPC_HANDLE] = { 2, 'c' };
  if (t->has_handle) {
    memcpy(handle + 2, t->handle, WEFT_IPC_HANDLE);
    put_short(b, 'C', handle, sizeof handle);
  } else {
    put_op(b, OP_NONE);
  }
}

/* The fifteen of rebuild_cuda_tensor. */
static void put_args(buf *b, const weft_ipc_tensor *t)
{
  static const uint8_t size_of[] = { 0x85, 'R' }; /* TUPLE1, REDUCE */
  const unsigned item = weft_dtype_bits(t->dtype) / 8;
  put_op(b, OP_MARK);
  put_global(b, "torch", "Tensor");
  put_global(b, "torch", "Size");
  put_ints(b, t->shape, t->ndim);
  put(b, size_of, sizeof size_of);
  put_ints(b, t->stride, t->ndim);
  put_int(b, item != 0 ? t->at / item : 0);
  put_global(b, "torch.storage", "TypedStorage");
  put_global(b, "torch", weft_dtype_name(t->dtype));
  put_int(b, 0); /* the reader's own device counts */
  put_handle(b, t);
  put_int(b, t->storage_bytes);
  put_int(b, t->storage_at);
  put_op(b, OP_FALSE); /* requires_grad */
  if (t->counter[0] != '\0') {
    put_short(b, 'C', t->counter, strlen(t->counter));
  } else {
    put_op(b, OP_NONE);
  }
  put_int(b, t->counter_slot);
  put_short(b, 'C', t->event, WEFT_IPC_HANDLE);
  put_op(b, t->event_sync ? OP_TRUE : OP_FALSE);
  put_op(b, OP_TUPLE);
}

static void put_entry(buf *b, const char *const *uuids, size_t gpus,
                      const weft_ipc_handles *h, size_t tensor)
{
  put_op(b, '}'); /* EMPTY_DICT */
  put_op(b, OP_MARK);
  for (size_t g = 0; g < gpus; g++) {
    put_short(b, 0x8c, uuids[g], strlen(uuids[g]));
    put_args(b, &h->tensors[g * h->count + tensor]);
  }
  put_op(b, 'u'); /* SETITEMS */
}

weft_err weft_ipc_handles_write(const char *const *uuids, size_t gpus,
                                const weft_ipc_handles *h, uint8_t **out, size_t *len)
{
  static const uint8_t head[] = { 0x80, 4 }; /* PROTO */
  buf b = { .err = WEFT_OK };
  if (gpus == 0 || gpus > WEFT_IPC_GPUS_MAX || (h->packed && h->count != 1)) {
    return WEFT_E_INVAL;
  }
  for (size_t i = 0; i < gpus * h->count; i++) {
    if (weft_dtype_name(h->tensors[i].dtype) == NULL) {
      return WEFT_E_INVAL;
    }
  }
  put(&b, head, sizeof head);
  if (!h->packed) {
    put_op(&b, ']'); /* EMPTY_LIST */
    put_op(&b, OP_MARK);
  }
  for (size_t i = 0; i < h->count; i++) {
    put_entry(&b, uuids, gpus, h, i);
  }
  if (!h->packed) {
    put_op(&b, 'e'); /* APPENDS */
  }
  put_op(&b, '.');
  if (b.err != WEFT_OK) {
    free(b.at);
    return b.err;
  }
  *out = b.at;
  *len = b.len;
  return WEFT_OK;
}
