/* weft/dtype.h -- element types of tensors and the names others give them.  Not here: any
 * arithmetic on elements; weft moves bytes. */
#ifndef WEFT_DTYPE_H
#define WEFT_DTYPE_H

#include "weft/base.h"
#include "weft/err.h"

#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

enum { WEFT_DIMS_MAX = 8 }; /* dimensions of a tensor that weft takes */

/* torch: str(torch.dtype) behind the dot.  st: the safetensors header's name, NULL where
 * that format has none.  Values are stable: append only. */
/* clang-format off */
/*        symbol,          value, bits, torch,              st */
#define WEFT_DTYPE_TABLE(X)                                         \
  X(BFLOAT16,            1,   16, "bfloat16",           "BF16")         \
  X(FLOAT16,             2,   16, "float16",            "F16")          \
  X(FLOAT32,             3,   32, "float32",            "F32")          \
  X(FLOAT64,             4,   64, "float64",            "F64")          \
  X(FLOAT8_E4M3FN,       5,    8, "float8_e4m3fn",      "F8_E4M3")      \
  X(FLOAT8_E5M2,         6,    8, "float8_e5m2",        "F8_E5M2")      \
  X(FLOAT8_E4M3FNUZ,     7,    8, "float8_e4m3fnuz",    "F8_E4M3FNUZ")  \
  X(FLOAT8_E5M2FNUZ,     8,    8, "float8_e5m2fnuz",    "F8_E5M2FNUZ")  \
  X(FLOAT8_E8M0FNU,      9,    8, "float8_e8m0fnu",     "F8_E8M0")      \
  X(UINT8,              10,    8, "uint8",              "U8")           \
  X(INT8,               11,    8, "int8",               "I8")           \
  X(INT16,              12,   16, "int16",              "I16")          \
  X(INT32,              13,   32, "int32",              "I32")          \
  X(INT64,              14,   64, "int64",              "I64")          \
  X(UINT16,             15,   16, "uint16",             "U16")          \
  X(UINT32,             16,   32, "uint32",             "U32")          \
  X(UINT64,             17,   64, "uint64",             "U64")          \
  X(BOOL,               18,    8, "bool",               "BOOL")         \
  X(COMPLEX64,          19,   64, "complex64",          "C64")          \
  X(COMPLEX128,         20,  128, "complex128",         NULL)
/* clang-format on */

typedef enum weft_dtype {
  WEFT_DTYPE_NONE = 0,
#define WEFT_X(sym, val, bits, torch, st) WEFT_DTYPE_##sym = (val),
  WEFT_DTYPE_TABLE(WEFT_X)
#undef WEFT_X
} weft_dtype;

/* All from any thread; names are static.  NONE and unknown values give 0 and NULL. */
WEFT_API unsigned weft_dtype_bits(weft_dtype dtype);
WEFT_API const char *weft_dtype_name(weft_dtype dtype);    /* torch's, e.g. "bfloat16" */
WEFT_API const char *weft_dtype_st_name(weft_dtype dtype); /* e.g. "BF16", or NULL */
/* NONE when unknown (or name is NULL). */
WEFT_API weft_dtype weft_dtype_parse(const char *torch_name);
WEFT_API weft_dtype weft_dtype_parse_st(const char *st_name);

/* Bytes of a dense tensor, as weft_tensor_bytes() but also for 128-bit elements.
 * shape [ndim] elements, each >= 0; ndim 0 is a scalar.  Errors: INVAL, OVERFLOW (also
 * over INT64_MAX: no file or segment is larger). */
WEFT_API weft_err weft_dtype_bytes(weft_dtype dtype, unsigned ndim, const int64_t *shape,
                                   uint64_t *out) WEFT_MUST_USE WEFT_NONNULL(4);

WEFT_END_DECLS

#endif /* WEFT_DTYPE_H */
