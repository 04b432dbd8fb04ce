/* Tables of tensors as they travel: read with mistrust. */
#include "exports.h"
#include "weft/checked.h"
#include "weft/dtype.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t table_max = UINT64_C(1) << 30; /* bytes */

size_t wefti_export_len(const wefti_export_msg *msg)
{
  return offsetof(wefti_export_msg, slabs) + msg->slab_count * sizeof msg->slabs[0];
}

bool wefti_export_read(const void *data, size_t len, wefti_export_msg *msg)
{
  if (len < offsetof(wefti_export_msg, slabs) || len > sizeof *msg) {
    return false;
  }
  memcpy(msg, data, len);
  return msg->magic == WEFTI_EXPORT_MAGIC && msg->version == WEFTI_EXPORT_VERSION &&
         msg->slab_count <= WEFTI_EXPORT_SLABS_MAX && wefti_export_len(msg) == len;
}

bool wefti_export_has_table(int fd, const wefti_export_msg *msg)
{
  struct stat st;
  size_t records;
  return msg->table_bytes <= table_max &&
         weft_size_mul(msg->tensors, sizeof(wefti_export_record), &records) == WEFT_OK &&
         records <= msg->table_bytes && fstat(fd, &st) == 0 && st.st_size >= 0 &&
         (uint64_t)st.st_size >= msg->table_bytes;
}

uint8_t *wefti_export_table(int fd, uint64_t bytes)
{
  uint8_t *table = malloc((size_t)bytes + 1);
  size_t at = 0;
  while (table && at < bytes) {
    const ssize_t n = pread(fd, table + at, (size_t)bytes - at, (off_t)at);
    if (n == 0 || (n < 0 && errno != EINTR)) {
      free(table);
      return NULL;
    }
    at += n > 0 ? (size_t)n : 0;
  }
  return table;
}

bool wefti_export_row(const uint8_t *table, uint64_t table_bytes, size_t i,
                      wefti_export_record *r, weft_tensor *out)
{
  memcpy(r, table + i * sizeof *r, sizeof *r);
  if (r->ndim > WEFT_NDIM_MAX || r->name_at >= table_bytes ||
      r->name_len >= table_bytes - r->name_at || table[r->name_at + r->name_len] != 0 ||
      r->shape_at % sizeof(int64_t) != 0 || r->shape_at > table_bytes ||
      r->ndim * sizeof(int64_t) > table_bytes - r->shape_at ||
      memchr(r->dtype, 0, sizeof r->dtype) == NULL) {
    return false;
  }
  const void *shape = table + r->shape_at; /* malloc's alignment, a multiple of 8 */
  const weft_dtype dtype = weft_dtype_parse(r->dtype);
  uint64_t bytes;
  *out = (weft_tensor){ .name = (const char *)table + r->name_at,
                        .dtype = weft_dtype_name(dtype),
                        .shape = shape,
                        .ndim = r->ndim,
                        .bytes = r->bytes };
  memcpy(out->digest, r->digest, sizeof out->digest);
  return out->dtype != NULL &&
         weft_dtype_bytes(dtype, r->ndim, shape, &bytes) == WEFT_OK && bytes == r->bytes;
}
