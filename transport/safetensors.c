#include "weft/safetensors.h"

#include "weft/checked.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8, NODES_MAX = 4000000, DEPTH_MAX = 8, FIRST_ROWS = 64 };

typedef struct st_names { /* apart, since find gets the file as const */
  bool sorted;
  const weft_st_tensor *rows[]; /* [count] */
} st_names;

typedef struct st_file {
  weft_safetensors pub;
  weft_st_tensor *rows; /* [count] */
  int64_t *dims;
  char *text; /* the header, read in place: owns the names */
  weft_json *metadata;
  st_names *names;
} st_file;

typedef struct st_reader {
  const char *label;
  weft_why *why;
  uint64_t file_bytes;
  st_file *st;
  weft_json_cursor at;
  size_t rows_cap, dims_used, dims_cap;
} st_reader;

void weft_safetensors_free(weft_safetensors *st)
{
  if (st != NULL) {
    st_file *f = (st_file *)st; /* pub is the first member */
    free(f->rows);
    free(f->dims);
    free(f->text);
    free(f->names);
    weft_json_free(f->metadata);
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

static weft_err read_header(st_reader *r, int fd, size_t *len)
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
  r->st->text = malloc(n + 1);
  if (r->st->text == NULL) {
    return weft_whyf(r->why, WEFT_E_NOMEM,
                     "%s: no memory for a header of %" PRIu64 " bytes", r->label, n);
  }
  err = read_exact(r, fd, r->st->text, n, LENGTH_BYTES);
  if (err != WEFT_OK) {
    return err;
  }
  *len = n;
  r->st->pub.data_at = LENGTH_BYTES + n;
  r->st->pub.data_bytes = r->file_bytes - r->st->pub.data_at;
  return WEFT_OK;
}

/* A header of 10,000 tensors is a tree of 80,000 nodes: building and freeing it was most
 * of what an update of small tensors cost, in time and in memory.  So it is read in
 * order, behind the same scanner. */
static weft_err open_header(st_reader *r, size_t len)
{
  char *text = r->st->text;
  if (len == 0 || text[0] != '{') {
    return weft_whyf(r->why, WEFT_E_PROTO, "%s: the header does not begin with '{'",
                     r->label);
  }
  const weft_json_limits limits = { .depth = DEPTH_MAX, .nodes = NODES_MAX };
  weft_why inner = { 0 };
  const weft_err err = weft_json_cursor_open(text, len, &limits, &r->at, &inner);
  if (err == WEFT_E_TRUNCATED) { /* the file is long enough: the length lies */
    return weft_whyf(r->why, WEFT_E_PROTO, "%s: header: %s", r->label, inner.text);
  }
  return err == WEFT_OK ? WEFT_OK
                        : weft_whyf(r->why, err, "%s: header: %s", r->label, inner.text);
}

static weft_err no_memory(const st_reader *r)
{
  return weft_whyf(r->why, WEFT_E_NOMEM, "%s: no memory for %zu tensors", r->label,
                   r->st->pub.count);
}

/* Room for one item more in *items. */
static weft_err grow(const st_reader *r, void **items, size_t used, size_t *cap,
                     size_t item)
{
  size_t bytes;
  if (used < *cap) {
    return WEFT_OK;
  }
  const size_t to = *cap == 0 ? FIRST_ROWS : *cap * 2;
  void *bigger =
      weft_size_mul(to, item, &bytes) == WEFT_OK ? realloc(*items, bytes) : NULL;
  if (bigger == NULL) {
    return no_memory(r);
  }
  *items = bigger;
  *cap = to;
  return WEFT_OK;
}

static weft_err read_metadata(st_reader *r)
{
  const char *from = r->at.at;
  weft_json_cursor_skip(&r->at);
  const weft_json_limits limits = { .depth = DEPTH_MAX, .nodes = NODES_MAX };
  const weft_err err =
      weft_json_parse(from, (size_t)(r->at.at - from), &limits, &r->st->metadata, NULL);
  if (err != WEFT_OK) { /* the scanner has accepted it */
    return no_memory(r);
  }
  const weft_json *m = r->st->metadata;
  bool good = weft_json_kind_of(m) == WEFT_JSON_OBJECT;
  for (const weft_json *v = weft_json_first(m); good && v != NULL;
       v = weft_json_next(v)) {
    good = weft_json_kind_of(v) == WEFT_JSON_STRING;
  }
  r->st->pub.metadata = m;
  return good ? WEFT_OK
              : weft_whyf(r->why, WEFT_E_PROTO,
                          "%s: __metadata__ is not an object of strings", r->label);
}

static weft_err read_dtype(st_reader *r, weft_st_tensor *t)
{
  const char *name = weft_json_cursor_str(&r->at);
  t->dtype = weft_dtype_parse_st(name);
  return t->dtype != WEFT_DTYPE_NONE
             ? WEFT_OK
             : weft_whyf(r->why, name == NULL ? WEFT_E_PROTO : WEFT_E_UNSUPPORTED,
                         "%s: tensor '%s': unknown dtype '%s'", r->label, t->name,
                         name == NULL ? "(none)" : name);
}

/* t->shape is set when all have been read: dims may move. */
static weft_err read_shape(st_reader *r, weft_st_tensor *t)
{
  if (weft_json_cursor_kind(&r->at) != WEFT_JSON_ARRAY) {
    return weft_whyf(r->why, WEFT_E_PROTO, "%s: tensor '%s': no shape", r->label,
                     t->name);
  }
  weft_json_cursor_enter(&r->at);
  while (weft_json_cursor_next(&r->at)) {
    if (t->ndim == WEFT_DIMS_MAX) {
      unsigned all = t->ndim;
      do {
        weft_json_cursor_skip(&r->at);
        all++;
      } while (weft_json_cursor_next(&r->at));
      return weft_whyf(r->why, WEFT_E_UNSUPPORTED,
                       "%s: tensor '%s': %u dimensions (at most %d)", r->label, t->name,
                       all, WEFT_DIMS_MAX);
    }
    void *dims = r->st->dims;
    const weft_err err = grow(r, &dims, r->dims_used, &r->dims_cap, sizeof *r->st->dims);
    r->st->dims = dims;
    if (err != WEFT_OK) {
      return err;
    }
    int64_t *dim = &r->st->dims[r->dims_used];
    if (!weft_json_cursor_i64(&r->at, dim) || *dim < 0) {
      return weft_whyf(r->why, WEFT_E_PROTO, "%s: tensor '%s': bad dimension %u",
                       r->label, t->name, t->ndim);
    }
    r->dims_used++;
    t->ndim++;
  }
  return WEFT_OK;
}

static weft_err read_offsets(st_reader *r, weft_st_tensor *t)
{
  int64_t at[2] = { 0, -1 };
  size_t n = 0;
  bool good = weft_json_cursor_kind(&r->at) == WEFT_JSON_ARRAY;
  if (good) {
    weft_json_cursor_enter(&r->at);
    while (good && weft_json_cursor_next(&r->at)) {
      good = n < 2 && weft_json_cursor_i64(&r->at, &at[n]);
      n++;
    }
  }
  if (!good || at[0] < 0 || at[1] < at[0]) {
    return weft_whyf(r->why, WEFT_E_PROTO, "%s: tensor '%s': bad data_offsets", r->label,
                     t->name);
  }
  if ((uint64_t)at[1] > r->st->pub.data_bytes) {
    return weft_whyf(r->why, WEFT_E_TRUNCATED,
                     "%s: tensor '%s' ends at byte %" PRId64
                     " of the data, the file has %" PRIu64,
                     r->label, t->name, at[1], r->st->pub.data_bytes);
  }
  t->at = r->st->pub.data_at + (uint64_t)at[0];
  t->bytes = (uint64_t)at[1] - (uint64_t)at[0];
  return WEFT_OK;
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4 };

static weft_err read_member(st_reader *r, weft_st_tensor *t, unsigned *has)
{
  const char *key = weft_json_cursor_key(&r->at);
  const unsigned bit = strcmp(key, "dtype") == 0          ? HAS_DTYPE
                       : strcmp(key, "shape") == 0        ? HAS_SHAPE
                       : strcmp(key, "data_offsets") == 0 ? HAS_OFFSETS
                                                          : 0;
  if (bit == 0 || (*has & bit)) {
    return weft_whyf(r->why, WEFT_E_PROTO, "%s: tensor '%s': unexpected or repeated '%s'",
                     r->label, t->name, key);
  }
  *has |= bit;
  return bit == HAS_DTYPE   ? read_dtype(r, t)
         : bit == HAS_SHAPE ? read_shape(r, t)
                            : read_offsets(r, t);
}

static weft_err check_size(const st_reader *r, const weft_st_tensor *t,
                           const int64_t *shape, unsigned has)
{
  if (has != (HAS_DTYPE | HAS_SHAPE | HAS_OFFSETS)) {
    return weft_whyf(r->why, WEFT_E_PROTO, "%s: tensor '%s': %s", r->label, t->name,
                     !(has & HAS_DTYPE)   ? "unknown dtype '(none)'"
                     : !(has & HAS_SHAPE) ? "no shape"
                                          : "bad data_offsets");
  }
  uint64_t want;
  const weft_err err = weft_dtype_bytes(t->dtype, t->ndim, shape, &want);
  if (err != WEFT_OK) {
    return weft_whyf(r->why, err, "%s: tensor '%s': shape is too large", r->label,
                     t->name);
  }
  if (want != t->bytes) {
    return weft_whyf(r->why, WEFT_E_INVAL,
                     "%s: tensor '%s' has %" PRIu64
                     " bytes, its shape and dtype need %" PRIu64,
                     r->label, t->name, t->bytes, want);
  }
  return WEFT_OK;
}

static weft_err read_tensor(st_reader *r, const char *name)
{
  void *rows = r->st->rows;
  weft_err err = grow(r, &rows, r->st->pub.count, &r->rows_cap, sizeof *r->st->rows);
  r->st->rows = rows;
  if (err != WEFT_OK) {
    return err;
  }
  weft_st_tensor *t = &r->st->rows[r->st->pub.count];
  *t = (weft_st_tensor){ .name = name };
  if (weft_json_cursor_kind(&r->at) != WEFT_JSON_OBJECT) {
    return weft_whyf(r->why, WEFT_E_PROTO, "%s: tensor '%s': not an object", r->label,
                     t->name);
  }
  const size_t shape_at = r->dims_used;
  unsigned has = 0;
  weft_json_cursor_enter(&r->at);
  while (err == WEFT_OK && weft_json_cursor_next(&r->at)) {
    err = read_member(r, t, &has);
  }
  if (err == WEFT_OK) {
    err = check_size(r, t, t->ndim == 0 ? NULL : r->st->dims + shape_at, has);
  }
  r->st->pub.count += err == WEFT_OK;
  return err;
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

static weft_err read_entries(st_reader *r)
{
  weft_err err = WEFT_OK;
  weft_json_cursor_enter(&r->at);
  while (err == WEFT_OK && weft_json_cursor_next(&r->at)) {
    const char *name = weft_json_cursor_key(&r->at);
    err = strcmp(name, "__metadata__") == 0 ? read_metadata(r) : read_tensor(r, name);
  }
  return err;
}

static void place(const st_reader *r)
{
  st_file *st = r->st;
  const int64_t *dims = st->dims;
  bool in_place = true;
  for (size_t i = 0; i < st->pub.count; i++) {
    st->rows[i].shape = dims; /* NULL only where all are scalars */
    if (st->rows[i].ndim > 0) {
      dims += st->rows[i].ndim;
    }
    in_place = in_place && (i == 0 || by_place(&st->rows[i - 1], &st->rows[i]) <= 0);
  }
  if (!in_place) {
    qsort(st->rows, st->pub.count, sizeof *st->rows, by_place);
  }
  st->pub.tensors = st->rows;
}

static weft_err read_all(st_reader *r, int fd)
{
  size_t len = 0;
  st_file *st = r->st;
  weft_err err = read_header(r, fd, &len);
  if (err == WEFT_OK) {
    err = open_header(r, len);
  }
  if (err == WEFT_OK) {
    err = read_entries(r);
  }
  if (err != WEFT_OK) {
    return err;
  }
  place(r);
  size_t bytes;
  /* NOLINTNEXTLINE(bugprone-sizeof-expression): the rows are pointers */
  if (weft_size_mul(st->pub.count, sizeof st->names->rows[0], &bytes) == WEFT_OK &&
      weft_size_add(bytes, sizeof *st->names, &bytes) == WEFT_OK) {
    st->names = calloc(1, bytes);
  }
  return st->names == NULL ? no_memory(r) : check_places(r);
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

static void sort_names(const st_file *f)
{
  for (size_t i = 0; i < f->pub.count; i++) {
    f->names->rows[i] = &f->rows[i];
  }
  if (f->pub.count > 0) {
    qsort(f->names->rows, f->pub.count, sizeof(weft_st_tensor *), by_name);
  }
  f->names->sorted = true;
}

const weft_st_tensor *weft_safetensors_find(const weft_safetensors *st, const char *name)
{
  const st_file *f = (const st_file *)st;
  size_t low = 0;
  size_t high = st->count;
  if (!f->names->sorted) { /* most files are taken as they are */
    sort_names(f);
  }
  while (low < high) {
    const size_t mid = low + (high - low) / 2;
    const int c = strcmp(f->names->rows[mid]->name, name);
    if (c == 0) {
      return f->names->rows[mid];
    }
    if (c < 0) {
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  return NULL;
}
