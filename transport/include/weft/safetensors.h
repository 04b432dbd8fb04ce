/* weft/safetensors.h -- reads the header of a safetensors file, and writes such files.
 * With pread only: a file that is truncated under a mapping would kill the process.  Not
 * here: reading the tensors' bytes (that is the host backend, or the caller's pread).
 * Source: the format's description in the safetensors repository. */
#ifndef WEFT_SAFETENSORS_H
#define WEFT_SAFETENSORS_H

#include "weft/base.h"
#include "weft/dtype.h"
#include "weft/err.h"
#include "weft/json.h"

#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

#define WEFT_ST_HEADER_MAX (UINT64_C(100) << 20) /* bytes of JSON */

typedef struct weft_st_tensor {
  const char *name;
  const int64_t *shape; /* [ndim] elements */
  uint64_t at;          /* offset in the file */
  uint64_t bytes;
  weft_dtype dtype;
  unsigned ndim;
} weft_st_tensor;

typedef struct weft_safetensors {
  const weft_st_tensor *tensors; /* [count] in file order: back to back from data_at */
  size_t count;
  uint64_t data_at;          /* offset in the file */
  uint64_t data_bytes;       /* from there to the end of the file */
  const weft_json *metadata; /* object of strings, or NULL */
} weft_safetensors;

/* Reads and checks everything but the tensors' bytes.  Borrows fd for the call.  label
 * (a path) goes into error texts.  The caller frees *out.
 * Errors: TRUNCATED (shorter than the header says), TRAILING (longer), PROTO (header is
 * not what the format says), INVAL (size is not shape times dtype, holes, overlaps),
 * UNSUPPORTED (unknown dtype, more than WEFT_DIMS_MAX dimensions), LIMIT, OVERFLOW,
 * NOMEM, SYS.  Any thread. */
WEFT_API weft_err weft_safetensors_read(int fd, const char *label, weft_safetensors **out,
                                        weft_why *why) WEFT_MUST_USE;
WEFT_API void weft_safetensors_free(weft_safetensors *st); /* NULL is a no-op */
/* O(log n) but for the first, which sorts; NULL if there is none.  One thread at a time
 * per file. */
WEFT_API const weft_st_tensor *weft_safetensors_find(const weft_safetensors *st,
                                                     const char *name);

/* ---- writer: header first, then the tensors' bytes in the order of specs. */
typedef struct weft_st_spec {
  const char *name;
  weft_dtype dtype;
  unsigned ndim;
  const int64_t *shape;
} weft_st_spec;
typedef struct weft_st_writer weft_st_writer;
/* Writes the header to fd (borrowed until destroy) at its current position. */
WEFT_API weft_err weft_st_writer_create(int fd, const weft_st_spec *specs, size_t count,
                                        weft_st_writer **out, weft_why *why)
    WEFT_MUST_USE;
/* Appends bytes of the tensors.  Errors: SYS, OVERFLOW (more than the header says). */
WEFT_API weft_err weft_st_writer_put(weft_st_writer *w, const void *data, uint64_t len,
                                     weft_why *why) WEFT_MUST_USE;
/* TRUNCATED when bytes are missing. */
WEFT_API weft_err weft_st_writer_end(weft_st_writer *w, weft_why *why) WEFT_MUST_USE;
WEFT_API void weft_st_writer_destroy(weft_st_writer *w); /* NULL is a no-op */

WEFT_END_DECLS

#endif /* WEFT_SAFETENSORS_H */
