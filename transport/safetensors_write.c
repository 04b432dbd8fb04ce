#include "weft/checked.h"
#include "weft/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct weft_st_writer {
  int fd;
  uint64_t left; /* bytes of tensors still to come */
};

static weft_err write_all(int fd, const void *data, uint64_t len, weft_why *why)
{
  const uint8_t *p = data;
  while (len > 0) {
    const size_t part = len > (1u << 30) ? 1u << 30 : (size_t)len;
    const ssize_t n = write(fd, p, part);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return weft_whyf(why, WEFT_E_SYS, "safetensors: write failed (errno %d)", errno);
    }
    p += n;
    len -= (uint64_t)n;
  }
  return WEFT_OK;
}

static weft_err add_spec(weft_json_writer *w, const weft_st_spec *s, uint64_t *at,
                         weft_why *why)
{
  const char *dtype = weft_dtype_st_name(s->dtype);
  uint64_t bytes;
  if (dtype == NULL) {
    return weft_whyf(
        why, WEFT_E_UNSUPPORTED, "tensor '%s': safetensors has no name for %s", s->name,
        s->dtype == WEFT_DTYPE_NONE ? "no dtype" : weft_dtype_name(s->dtype));
  }
  weft_err err = weft_dtype_bytes(s->dtype, s->ndim, s->shape, &bytes);
  size_t end;
  if (err == WEFT_OK) {
    err = weft_size_add(*at, bytes, &end);
  }
  if (err != WEFT_OK || end > (uint64_t)INT64_MAX) {
    return weft_whyf(why, err == WEFT_OK ? WEFT_E_OVERFLOW : err,
                     "tensor '%s': bad shape", s->name);
  }
  weft_jw_object(w, s->name);
  weft_jw_str(w, "dtype", dtype);
  weft_jw_array(w, "shape");
  for (unsigned i = 0; i < s->ndim; i++) {
    weft_jw_i64(w, NULL, s->shape[i]);
  }
  weft_jw_end(w);
  weft_jw_array(w, "data_offsets");
  weft_jw_u64(w, NULL, *at);
  weft_jw_u64(w, NULL, end);
  weft_jw_end(w);
  weft_jw_end(w);
  *at = end;
  return WEFT_OK;
}

static weft_err write_header(int fd, const weft_st_spec *specs, size_t count,
                             uint64_t *bytes, weft_why *why)
{
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_err err = WEFT_OK;
  for (size_t i = 0; i < count && err == WEFT_OK; i++) {
    err = add_spec(&w, &specs[i], bytes, why);
  }
  if (err != WEFT_OK) {
    weft_jw_fini(&w);
    return err;
  }
  weft_jw_end(&w);
  char *text;
  size_t len;
  if (weft_jw_take(&w, &text, &len) != WEFT_OK) {
    return weft_whyf(why, WEFT_E_NOMEM, "safetensors: no memory for the header");
  }
  static const char pad[] = "       "; /* so that the data begins at a multiple of 8 */
  const size_t padding = (8 - len % 8) % 8;
  uint8_t le[8];
  for (unsigned i = 0; i < sizeof le; i++) {
    le[i] = (uint8_t)((len + padding) >> (8 * i));
  }
  err = len + padding > WEFT_ST_HEADER_MAX
            ? weft_whyf(why, WEFT_E_LIMIT, "safetensors: header of %zu bytes", len)
            : write_all(fd, le, sizeof le, why);
  if (err == WEFT_OK) {
    err = write_all(fd, text, len, why);
  }
  if (err == WEFT_OK) {
    err = write_all(fd, pad, padding, why);
  }
  free(text);
  return err;
}

weft_err weft_st_writer_create(int fd, const weft_st_spec *specs, size_t count,
                               weft_st_writer **out, weft_why *why)
{
  weft_st_writer *w = calloc(1, sizeof *w);
  if (w == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "safetensors: no memory");
  }
  w->fd = fd;
  const weft_err err = write_header(fd, specs, count, &w->left, why);
  if (err != WEFT_OK) {
    free(w);
    return err;
  }
  *out = w;
  return WEFT_OK;
}

weft_err weft_st_writer_put(weft_st_writer *w, const void *data, uint64_t len,
                            weft_why *why)
{
  if (len > w->left) {
    return weft_whyf(why, WEFT_E_OVERFLOW,
                     "safetensors: %" PRIu64 " bytes more than the header says",
                     len - w->left);
  }
  const weft_err err = write_all(w->fd, data, len, why);
  if (err == WEFT_OK) {
    w->left -= len;
  }
  return err;
}

weft_err weft_st_writer_end(weft_st_writer *w, weft_why *why)
{
  return w->left == 0 ? WEFT_OK
                      : weft_whyf(why, WEFT_E_TRUNCATED,
                                  "safetensors: %" PRIu64 " bytes are missing", w->left);
}

void weft_st_writer_destroy(weft_st_writer *w)
{
  free(w);
}
