#include "weft/safetensors.h"

#include "weft/checked.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8, NODES_MAX = 4000000, DEPTH_MAX = 8 };

typedef struct st_file {
  weft_safetensors pub;
  weft_st_tensor *rows;           /* [count] */
  const weft_st_tensor **by_name; /* [count] */
  int64_t *dims;
  weft_json *header; /* owns the names */
} st_file;

typedef struct st_reader {
  const char *label;
  weft_why *why;
  uint64_t file_bytes;
  st_file *st;
  size_t dims_used;
} st_reader;

void weft_safetensors_free(weft_safetensors *st)
{
  if (st != NULL) {
    st_file *f = (st_file *)st; /* pub is the first member */
    free(f->rows);
    free(f->by_name);
    free(f->dims);
    weft_json_free(f->header);
    free(f);
  }
}

static weft_err read_exact(const st_reader *r, int fd, void *out, size_t len, uint64_t at)
{
  uint8_t *p = out;
  size_t got = 0;
  while (got < len) {
    const ssize_t n = pread(fd, p + got, len - got, (off_t)(at + got));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return weft_whyf(r->why, WEFT_E_SYS, "%s: cannot be read (errno %d)", r->label,
                       errno);
    }
    if (n == 0) {
      return weft_whyf(r->why, WEFT_E_TRUNCATED,
                       "%s: ends at byte %" PRIu64 ", inside its header", r->label,
                       at + got);
    }
    got += (size_t)n;
  }
  return WEFT_OK;
}

/* The header's text; the caller frees it. */
static weft_err read_header(st_reader *r, int fd, char **text, size_t *len)
{
  struct stat sb;
  if (fstat(fd, &sb) != 0 || sb.st_size < 0) {
    return weft_whyf(r->why, WEFT_E_SYS, "%s: fstat failed (errno %d)", r->label, errno);
  }
  r->file_bytes = (uint64_t)sb.st_size;
  uint8_t le[LENGTH_BYTES];
  weft_err err = read_exact(r, fd, le, sizeof le, 0);
  if (err != WEFT_OK) {
    return err;
  }
  uint64_t n = 0;
  for (unsigned i = 0; i < LENGTH_BYTES; i++) {
    n |= (uint64_t)le[i] << (8 * i);
  }
  if (n > WEFT_ST_HEADER_MAX) {
    return weft_whyf(r->why, WEFT_E_LIMIT,
                     "%s: claims a header of %" PRIu64 " bytes (at most %" PRIu64
                     "); not a safetensors file?",
                     r->label, n, WEFT_ST_HEADER_MAX);
  }
  if (r->file_bytes < LENGTH_BYTES || n > r->file_bytes - LENGTH_BYTES) {
    return weft_whyf(r->why, WEFT_E_TRUNCATED,
                     "%s: claims a header of %" PRIu64 " bytes but has %" PRIu64
                     " bytes in all",
                     r->label, n, r->file_bytes);
  }
  char *p = malloc(n + 1);
  if (p == NULL) {
    return weft_whyf(r->why, WEFT_E_NOMEM,
                     "%s: no memory for a header of %" PRIu64 " bytes", r->label, n);
  }
  err = read_exact(r, fd, p, n, LENGTH_BYTES);
  if (err != WEFT_OK) {
    free(p);
    return err;
  }
  *text = p;
  *len = n;
  r->st->pub.data_at = LENGTH_BYTES + n;
  r->st->pub.data_bytes = r->file_bytes - r->st->pub.data_at;
  return WEFT_OK;
}

static weft_err parse_header(st_reader *r, const char *text, size_t len)
{
  if (len == 0 || text[0] != '{') {
    return weft_whyf(r->why, WEFT_E_PROTO, "%s: the header does not begin with '{'",
                     r->label);
  }
  const weft_json_limits limits = { .depth = DEPTH_MAX, .nodes = NODES_MAX };
  weft_why inner = { 0 };
  const weft_err err = weft_json_parse(text, len, &limits, &r->st->header, &inner);
  if (err == WEFT_E_TRUNCATED) { /* the file is long enough: the length lies */
    return weft_whyf(r->why, WEFT_E_PROTO, "%s: header: %s", r->label, inner.text);
  }
  return err == WEFT_OK ? WEFT_OK
                        : weft_whyf(r->why, err, "%s: header: %s", r->label, inner.text);
}

static weft_err check_metadata(const st_reader *r, const weft_json *m)
{
  bool good = weft_json_kind_of(m) == WEFT_JSON_OBJECT;
  for (const weft_json *v = weft_json_first(m); good && v != NULL;
       v = weft_json_next(v)) {
    good = weft_json_kind_of(v) == WEFT_JSON_STRING;
  }
  return good ? WEFT_OK
              : weft_whyf(r->why, WEFT_E_PROTO,
                          "%s: __metadata__ is not an object of strings", r->label);
}

static weft_err read_shape(st_reader *r, const weft_json *shape, weft_st_tensor *t)
{
  if (weft_json_kind_of(shape) != WEFT_JSON_ARRAY) {
    return weft_whyf(r->why, WEFT_E_PROTO, "%s: tensor '%s': no shape", r->label,
                     t->name);
  }
  if (weft_json_count(shape) > WEFT_DIMS_MAX) {
    return weft_whyf(r->why, WEFT_E_UNSUPPORTED,
                     "%s: tensor '%s': %zu dimensions (at most %d)", r->label, t->name,
                     weft_json_count(shape), WEFT_DIMS_MAX);
  }
  int64_t *dims = r->st->dims + r->dims_used;
  t->shape = dims;
  for (const weft_json *v = weft_json_first(shape); v != NULL; v = weft_json_next(v)) {
    if (!weft_json_i64(v, &dims[t->ndim]) || dims[t->ndim] < 0) {
      return weft_whyf(r->why, WEFT_E_PROTO, "%s: tensor '%s': bad dimension %u",
                       r->label, t->name, t->ndim);
    }
    t->ndim++;
  }
  r->dims_used += t->ndim;
  return WEFT_OK;
}

static weft_err read_offsets(st_reader *r, const weft_json *offsets, weft_st_tensor *t)
{
  int64_t begin;
  int64_t end;
  const weft_json *first = weft_json_first(offsets);
  if (weft_json_kind_of(offsets) != WEFT_JSON_ARRAY || weft_json_count(offsets) != 2 ||
      !weft_json_i64(first, &begin) || !weft_json_i64(weft_json_next(first), &end) ||
      begin < 0 || end < begin) {
    return weft_whyf(r->why, WEFT_E_PROTO, "%s: tensor '%s': bad data_offsets", r->label,
                     t->name);
  }
  if ((uint64_t)end > r->st->pub.data_bytes) {
    return weft_whyf(r->why, WEFT_E_TRUNCATED,
                     "%s: tensor '%s' ends at byte %" PRId64
                     " of the data, the file has %" PRIu64,
                     r->label, t->name, end, r->st->pub.data_bytes);
  }
  uint64_t want;
  const weft_err err = weft_dtype_bytes(t->dtype, t->ndim, t->shape, &want);
  if (err != WEFT_OK) {
    return weft_whyf(r->why, err, "%s: tensor '%s': shape is too large", r->label,
                     t->name);
  }
  t->at = r->st->pub.data_at + (uint64_t)begin;
  t->bytes = (uint64_t)end - (uint64_t)begin;
  if (want != t->bytes) {
    return weft_whyf(r->why, WEFT_E_INVAL,
                     "%s: tensor '%s' has %" PRIu64
                     " bytes, its shape and dtype need %" PRIu64,
                     r->label, t->name, t->bytes, want);
  }
  return WEFT_OK;
}

static weft_err read_tensor(st_reader *r, const weft_json *entry)
{
  weft_st_tensor *t = &r->st->rows[r->st->pub.count];
  *t = (weft_st_tensor){ .name = weft_json_key(entry) };
  if (weft_json_kind_of(entry) != WEFT_JSON_OBJECT) {
    return weft_whyf(r->why, WEFT_E_PROTO, "%s: tensor '%s': not an object", r->label,
                     t->name);
  }
  const weft_json *dtype = NULL;
  const weft_json *shape = NULL;
  const weft_json *offsets = NULL;
  for (const weft_json *v = weft_json_first(entry); v != NULL; v = weft_json_next(v)) {
    const char *key = weft_json_key(v);
    const weft_json **slot = strcmp(key, "dtype") == 0          ? &dtype
                             : strcmp(key, "shape") == 0        ? &shape
                             : strcmp(key, "data_offsets") == 0 ? &offsets
                                                                : NULL;
    if (slot == NULL || *slot != NULL) {
      return weft_whyf(r->why, WEFT_E_PROTO,
                       "%s: tensor '%s': unexpected or repeated '%s'", r->label, t->name,
                       key);
    }
    *slot = v;
  }
  const char *name = weft_json_str(dtype);
  t->dtype = weft_dtype_parse_st(name);
  if (t->dtype == WEFT_DTYPE_NONE) {
    return weft_whyf(r->why, name == NULL ? WEFT_E_PROTO : WEFT_E_UNSUPPORTED,
                     "%s: tensor '%s': unknown dtype '%s'", r->label, t->name,
                     name == NULL ? "(none)" : name);
  }
  weft_err err = read_shape(r, shape, t);
  if (err == WEFT_OK) {
    err = read_offsets(r, offsets, t);
  }
  r->st->pub.count += err == WEFT_OK;
  return err;
}

static weft_err allocate(st_reader *r)
{
  const size_t n = weft_json_count(r->st->header);
  size_t dims;
  st_file *st = r->st;
  if (weft_size_mul(n, WEFT_DIMS_MAX, &dims) == WEFT_OK) {
    size_t used = 0; /* most shapes are short: count them */
    for (const weft_json *v = weft_json_first(st->header); v != NULL;
         v = weft_json_next(v)) {
      const size_t ndim = weft_json_count(weft_json_get(v, "shape"));
      used += ndim > WEFT_DIMS_MAX ? 0 : ndim;
    }
    st->rows = calloc(n + 1, sizeof *st->rows);
    st->by_name = calloc(n + 1, sizeof(weft_st_tensor *));
    st->dims = calloc(used + 1, sizeof *st->dims);
  }
  if (st->rows == NULL || st->by_name == NULL || st->dims == NULL) {
    (void)weft_whyf(r->why, WEFT_E_NOMEM, "%s: no memory for %zu tensors", r->label, n);
    return WEFT_E_NOMEM;
  }
  return WEFT_OK;
}

static int by_place(const void *a, const void *b)
{
  const weft_st_tensor *x = a;
  const weft_st_tensor *y = b;
  if (x->at != y->at) {
    return x->at < y->at ? -1 : 1;
  }
  return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
  const weft_st_tensor *const *x = a;
  const weft_st_tensor *const *y = b;
  return strcmp((*x)->name, (*y)->name);
}

/* The format allows neither holes nor overlaps, so in file order each tensor begins where
 * the one before it ends. */
static weft_err check_places(const st_reader *r)
{
  const weft_safetensors *st = &r->st->pub;
  uint64_t at = st->data_at;
  const char *last = "the header";
  for (size_t i = 0; i < st->count; i++) {
    const weft_st_tensor *t = &st->tensors[i];
    if (t->at != at) {
      return weft_whyf(r->why, WEFT_E_INVAL, "%s: tensor '%s' %s '%s'", r->label, t->name,
                       t->at < at ? "overlaps" : "leaves a hole behind", last);
    }
    at += t->bytes;
    last = t->name;
  }
  const uint64_t end = st->data_at + st->data_bytes;
  if (at != end) {
    return weft_whyf(r->why, WEFT_E_TRAILING,
                     "%s: %" PRIu64 " bytes behind the last tensor", r->label, end - at);
  }
  return WEFT_OK;
}

static weft_err read_all(st_reader *r, int fd)
{
  char *text = NULL;
  size_t len = 0;
  weft_err err = read_header(r, fd, &text, &len);
  if (err == WEFT_OK) {
    err = parse_header(r, text, len);
  }
  free(text);
  if (err == WEFT_OK) {
    err = allocate(r);
  }
  st_file *st = r->st;
  for (const weft_json *v = weft_json_first(st->header); err == WEFT_OK && v != NULL;
       v = weft_json_next(v)) {
    if (strcmp(weft_json_key(v), "__metadata__") == 0) {
      err = check_metadata(r, v);
      st->pub.metadata = v;
    } else {
      err = read_tensor(r, v);
    }
  }
  if (err != WEFT_OK) {
    return err;
  }
  st->pub.tensors = st->rows;
  if (st->pub.count == 0) {
    return check_places(r);
  }
  qsort(st->rows, st->pub.count, sizeof *st->rows, by_place);
  for (size_t i = 0; i < st->pub.count; i++) {
    st->by_name[i] = &st->rows[i];
  }
  qsort(st->by_name, st->pub.count, sizeof(weft_st_tensor *), by_name);
  return check_places(r);
}

weft_err weft_safetensors_read(int fd, const char *label, weft_safetensors **out,
                               weft_why *why)
{
  st_reader r = { .label = label, .why = why, .st = calloc(1, sizeof(st_file)) };
  if (r.st == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s: no memory", label);
  }
  const weft_err err = read_all(&r, fd);
  if (err != WEFT_OK) {
    weft_safetensors_free(&r.st->pub);
    return err;
  }
  *out = &r.st->pub;
  return WEFT_OK;
}

const weft_st_tensor *weft_safetensors_find(const weft_safetensors *st, const char *name)
{
  const st_file *f = (const st_file *)st;
  size_t low = 0;
  size_t high = st->count;
  while (low < high) {
    const size_t mid = low + (high - low) / 2;
    const int c = strcmp(f->by_name[mid]->name, name);
    if (c == 0) {
      return f->by_name[mid];
    }
    if (c < 0) {
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  return NULL;
}
