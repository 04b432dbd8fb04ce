#include "weft/pickle.h"

#include <string.h>

/* What Python writes, opcode for opcode, so that a pickle of ours differs in nothing. */

typedef struct out_buf {
  uint8_t *to;
  size_t cap;
  size_t len; /* may pass cap: then nothing more is written */
} out_buf;

static void put(out_buf *o, const void *data, size_t n)
{
  if (o->len <= o->cap && n <= o->cap - o->len) {
    memcpy(o->to + o->len, data, n);
    o->len += n;
  } else {
    o->len = o->cap + 1;
  }
}

static void put_op(out_buf *o, uint8_t op)
{
  put(o, &op, 1);
}

enum { MEMOIZE = 0x94 };

/* len <= 255 */
static void put_short(out_buf *o, uint8_t op, const void *data, size_t len)
{
  const uint8_t head[2] = { op, (uint8_t)len };
  put(o, head, sizeof head);
  put(o, data, len);
  put_op(o, MEMOIZE);
}

static void put_global(out_buf *o, const char *module, const char *name)
{
  put_short(o, 0x8c, module, strlen(module));
  put_short(o, 0x8c, name, strlen(name));
  put_op(o, 0x93); /* STACK_GLOBAL */
  put_op(o, MEMOIZE);
}

static void put_head(out_buf *o)
{
  static const uint8_t head[] = { 0x80, 4, 0x95, 0, 0, 0, 0, 0, 0, 0, 0 };
  put(o, head, sizeof head);
}

static weft_err finish(out_buf *o, bool framed, size_t *len)
{
  put_op(o, '.');
  if (o->len > o->cap) {
    return WEFT_E_LIMIT;
  }
  for (size_t i = 0; framed && i < 8; i++) {
    o->to[3 + i] = (uint8_t)((uint64_t)(o->len - 11) >> (8 * i));
  }
  *len = o->len;
  return WEFT_OK;
}

weft_err weft_nccl_id_write(const char *module, const uint8_t id[WEFT_NCCL_ID], void *out,
                            size_t cap, size_t *len)
{
  const size_t module_len = strlen(module);
  if (module_len == 0 || module_len > 255) {
    return WEFT_E_INVAL;
  }
  static const uint8_t pairs[] = { 0x86, MEMOIZE, 0x86, MEMOIZE, 'R', MEMOIZE };
  out_buf o = { .to = out, .cap = cap };
  put_head(&o);
  put_global(&o, "_ctypes", "_unpickle");
  put_global(&o, module, "ncclUniqueId");
  put_op(&o, '}');
  put_op(&o, MEMOIZE);
  put_short(&o, 'C', id, WEFT_NCCL_ID);
  put(&o, pairs, sizeof pairs);
  return finish(&o, true, len);
}

weft_err weft_pickled_text_write(const char *text, void *out, size_t cap, size_t *len)
{
  out_buf o = { .to = out, .cap = cap };
  if (text == NULL) {
    static const uint8_t none[] = { 0x80, 4, 'N' };
    put(&o, none, sizeof none);
    return finish(&o, false, len);
  }
  if (strlen(text) > WEFT_PICKLED_TEXT_MAX) {
    return WEFT_E_INVAL;
  }
  put_head(&o);
  put_short(&o, 0x8c, text, strlen(text));
  return finish(&o, true, len);
}
