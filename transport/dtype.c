#include "weft/dtype.h"

#include "weft/checked.h"

#include <string.h>

typedef struct dtype_row {
  weft_dtype dtype;
  unsigned bits;
  const char *torch_name, *st_name;
} dtype_row;

static const dtype_row rows[] = {
#define WEFT_X(sym, val, bits, torch, st) { WEFT_DTYPE_##sym, bits, torch, st },
  WEFT_DTYPE_TABLE(WEFT_X)
#undef WEFT_X
};

static const dtype_row *row_of(weft_dtype dtype)
{
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (rows[i].dtype == dtype) {
      return &rows[i];
    }
  }
  return NULL;
}

unsigned weft_dtype_bits(weft_dtype dtype)
{
  const dtype_row *row = row_of(dtype);
  return row == NULL ? 0 : row->bits;
}

const char *weft_dtype_name(weft_dtype dtype)
{
  const dtype_row *row = row_of(dtype);
  return row == NULL ? NULL : row->torch_name;
}

const char *weft_dtype_st_name(weft_dtype dtype)
{
  const dtype_row *row = row_of(dtype);
  return row == NULL ? NULL : row->st_name;
}

weft_dtype weft_dtype_parse(const char *torch_name)
{
  for (size_t i = 0; torch_name != NULL && i < sizeof rows / sizeof *rows; i++) {
    if (strcmp(rows[i].torch_name, torch_name) == 0) {
      return rows[i].dtype;
    }
  }
  return WEFT_DTYPE_NONE;
}

weft_dtype weft_dtype_parse_st(const char *st_name)
{
  for (size_t i = 0; st_name != NULL && i < sizeof rows / sizeof *rows; i++) {
    if (rows[i].st_name != NULL && strcmp(rows[i].st_name, st_name) == 0) {
      return rows[i].dtype;
    }
  }
  return WEFT_DTYPE_NONE;
}

weft_err weft_dtype_bytes(weft_dtype dtype, unsigned ndim, const int64_t *shape,
                          uint64_t *out)
{
  const unsigned bits = weft_dtype_bits(dtype);
  if (bits == 0 || ndim > WEFT_DIMS_MAX) {
    return WEFT_E_INVAL;
  }
  size_t bytes;
  const unsigned parts = bits > 64 ? 2 : 1; /* complex128 is two 64-bit elements */
  weft_err err = weft_tensor_bytes((int)ndim, shape, bits / parts, &bytes);
  if (err == WEFT_OK) {
    err = weft_size_mul(bytes, parts, &bytes);
  }
  if (err == WEFT_OK && bytes > (size_t)INT64_MAX) {
    err = WEFT_E_OVERFLOW;
  }
  if (err == WEFT_OK) {
    *out = bytes;
  }
  return err;
}
