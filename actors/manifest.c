/* From a file to a sorted table of tensors. */
#define _GNU_SOURCE
#include "manifest.h"

#include "weft/checked.h"
#include "weft/dtype.h"
#include "weft/json.h"
#include "weft/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static_assert((int)WEFT_DIMS_MAX <= (int)WEFT_NDIM_MAX,
              "a dtype's tensor fits a snapshot");

typedef struct reader {
  const char *label;
  weft_why *why;
  wefti_manifest *m;
  size_t name_bytes, dims; /* used of both blobs */
} reader;

static weft_err no_memory(const reader *r)
{
  return weft_whyf(r->why, WEFT_E_NOMEM, "%s: out of memory", r->label);
}

/* ---- the table */

static weft_err make_table(reader *r, size_t count, size_t name_bytes, size_t dims)
{
  wefti_manifest *m = r->m;
  size_t size;
  if (count >= WEFTI_UNTIED ||
      weft_size_mul(dims + 1, sizeof *m->dims, &size) != WEFT_OK ||
      weft_size_mul(count + 1, sizeof *m->tensors, &size) != WEFT_OK) {
    return weft_whyf(r->why, WEFT_E_INVAL, "%s: too many tensors: %zu", r->label, count);
  }
  m->tensors = calloc(count + 1, sizeof *m->tensors);
  m->tied = calloc(count + 1, sizeof *m->tied);
  m->names = malloc(name_bytes + 1);
  m->dims = calloc(dims + 1, sizeof *m->dims);
  return m->tensors && m->tied && m->names && m->dims ? WEFT_OK : no_memory(r);
}

/* Copies name and shape; the blobs have room for them. */
static weft_err add(reader *r, const char *name, weft_dtype dtype, unsigned ndim,
                    const int64_t *shape)
{
  wefti_manifest *m = r->m;
  weft_tensor *t = &m->tensors[m->count];
  const size_t len = strlen(name) + 1;
  memcpy(m->names + r->name_bytes, name, len);
  if (ndim > 0) {
    memcpy(m->dims + r->dims, shape, ndim * sizeof *shape);
  }
  *t = (weft_tensor){ .name = m->names + r->name_bytes,
                      .dtype = weft_dtype_name(dtype),
                      .shape = m->dims + r->dims,
                      .ndim = ndim };
  r->name_bytes += len;
  r->dims += ndim;
  if (weft_dtype_bytes(dtype, ndim, shape, &t->bytes) != WEFT_OK ||
      weft_size_add(m->bytes, t->bytes, &m->bytes) != WEFT_OK ||
      m->bytes > (uint64_t)INT64_MAX) {
    return weft_whyf(r->why, WEFT_E_INVAL, "%s: the tensors up to '%.200s' are too large",
                     r->label, name);
  }
  m->tied[m->count++] = WEFTI_UNTIED;
  return WEFT_OK;
}

static int by_name(const void *left, const void *right)
{
  return strcmp(((const weft_tensor *)left)->name, ((const weft_tensor *)right)->name);
}

static weft_err sort_table(const reader *r)
{
  wefti_manifest *m = r->m;
  qsort(m->tensors, m->count, sizeof *m->tensors, by_name);
  for (size_t i = 1; i < m->count; i++) {
    if (strcmp(m->tensors[i - 1].name, m->tensors[i].name) == 0) {
      return weft_whyf(r->why, WEFT_E_INVAL, "%s: '%.200s' is named twice", r->label,
                       m->tensors[i].name);
    }
  }
  return WEFT_OK;
}

size_t wefti_manifest_find(const wefti_manifest *m, const char *name)
{
  const weft_tensor key = { .name = name };
  const weft_tensor *t =
      m->count == 0 ? NULL
                    : bsearch(&key, m->tensors, m->count, sizeof *m->tensors, by_name);
  return t ? (size_t)(t - m->tensors) : SIZE_MAX;
}

/* ---- JSON: rows */

typedef struct lists {
  const weft_json *names, *dtypes, *shapes, *tied;
  const char *dtypes_key;
} lists;

static weft_err find_lists(const reader *r, const weft_json *root, lists *out)
{
  *out = (lists){ .dtypes_key = "dtype_names" };
  if (weft_json_kind_of(root) != WEFT_JSON_OBJECT) {
    return weft_whyf(r->why, WEFT_E_INVAL, "%s: not an object", r->label);
  }
  for (const weft_json *v = weft_json_first(root); v; v = weft_json_next(v)) {
    const char *key = weft_json_key(v);
    const bool dtypes = strcmp(key, "dtype_names") == 0 || strcmp(key, "dtypes") == 0;
    const weft_json **to = strcmp(key, "names") == 0    ? &out->names
                           : dtypes                     ? &out->dtypes
                           : strcmp(key, "shapes") == 0 ? &out->shapes
                           : strcmp(key, "tied") == 0   ? &out->tied
                                                        : NULL;
    if (!to) {
      return weft_whyf(r->why, WEFT_E_INVAL,
                       "%s: unknown key '%.200s'; there are: names, dtype_names, shapes, "
                       "tied",
                       r->label, key);
    }
    if (*to) {
      return weft_whyf(r->why, WEFT_E_INVAL, "%s: both 'dtype_names' and 'dtypes'",
                       r->label);
    }
    if (weft_json_kind_of(v) != WEFT_JSON_ARRAY) {
      return weft_whyf(r->why, WEFT_E_INVAL, "%s: '%s' is not a list", r->label, key);
    }
    *to = v;
    out->dtypes_key = dtypes ? key : out->dtypes_key;
  }
  return WEFT_OK;
}

static weft_err check_lengths(const reader *r, const lists *l)
{
  const weft_json *const all[] = { l->names, l->dtypes, l->shapes };
  const char *const keys[] = { "names", l->dtypes_key, "shapes" };
  for (size_t i = 0; i < 3; i++) {
    if (!all[i]) {
      return weft_whyf(r->why, WEFT_E_INVAL, "%s: missing key '%s'", r->label, keys[i]);
    }
    if (weft_json_count(all[i]) != weft_json_count(l->names)) {
      return weft_whyf(r->why, WEFT_E_INVAL, "%s: '%s' has %zu entries, 'names' has %zu",
                       r->label, keys[i], weft_json_count(all[i]),
                       weft_json_count(l->names));
    }
  }
  return WEFT_OK;
}

static weft_err read_shape(const reader *r, const char *name, const weft_json *shape,
                           int64_t *dims, unsigned *ndim)
{
  if (weft_json_kind_of(shape) != WEFT_JSON_ARRAY) {
    return weft_whyf(r->why, WEFT_E_INVAL, "%s: shape of '%.200s' is not a list",
                     r->label, name);
  }
  if (weft_json_count(shape) > WEFT_DIMS_MAX) {
    return weft_whyf(r->why, WEFT_E_INVAL,
                     "%s: '%.200s' has %zu dimensions, at most %d are taken", r->label,
                     name, weft_json_count(shape), WEFT_DIMS_MAX);
  }
  *ndim = 0;
  for (const weft_json *v = weft_json_first(shape); v; v = weft_json_next(v)) {
    if (!weft_json_i64(v, &dims[*ndim])) {
      return weft_whyf(r->why, WEFT_E_INVAL,
                       "%s: dimension %u of '%.200s' is not an integer of 63 bits",
                       r->label, *ndim, name);
    }
    if (dims[*ndim] < 0) {
      return weft_whyf(r->why, WEFT_E_INVAL, "%s: dimension %u of '%.200s' is negative",
                       r->label, *ndim, name);
    }
    ++*ndim;
  }
  return WEFT_OK;
}

static weft_err read_row(reader *r, const weft_json *name, const weft_json *dtype,
                         const weft_json *shape)
{
  const char *text = weft_json_str(name);
  const char *dtype_name = weft_json_str(dtype);
  const weft_dtype type = weft_dtype_parse(dtype_name);
  int64_t dims[WEFT_DIMS_MAX];
  unsigned ndim;
  if (!text || text[0] == '\0') {
    return weft_whyf(r->why, WEFT_E_INVAL, "%s: name %zu is empty or not a string",
                     r->label, r->m->count);
  }
  if (type == WEFT_DTYPE_NONE) {
    return weft_whyf(r->why, WEFT_E_INVAL, "%s: unknown dtype '%.80s' of '%.200s'",
                     r->label, dtype_name ? dtype_name : "(not a string)", text);
  }
  const weft_err err = read_shape(r, text, shape, dims, &ndim);
  if (err != WEFT_OK) {
    return err;
  }
  uint64_t bytes;
  if (weft_dtype_bytes(type, ndim, dims, &bytes) != WEFT_OK) {
    return weft_whyf(r->why, WEFT_E_INVAL, "%s: shape of '%.200s' is too large", r->label,
                     text);
  }
  return add(r, text, type, ndim, dims);
}

static weft_err read_rows(reader *r, const lists *l)
{
  size_t name_bytes = 0, dims = 0; /* of a text in memory, so the sums fit */
  for (const weft_json *v = weft_json_first(l->names); v; v = weft_json_next(v)) {
    const char *text = weft_json_str(v);
    name_bytes += text ? strlen(text) + 1 : 0;
  }
  for (const weft_json *v = weft_json_first(l->shapes); v; v = weft_json_next(v)) {
    dims += weft_json_count(v);
  }
  weft_err err = make_table(r, weft_json_count(l->names), name_bytes, dims);
  const weft_json *name = weft_json_first(l->names);
  const weft_json *dtype = weft_json_first(l->dtypes);
  const weft_json *shape = weft_json_first(l->shapes);
  while (name && err == WEFT_OK) {
    err = read_row(r, name, dtype, shape);
    name = weft_json_next(name);
    dtype = weft_json_next(dtype);
    shape = weft_json_next(shape);
  }
  return err;
}

/* ---- JSON: ties */

static weft_err tie(const reader *r, const weft_json *v, size_t *first)
{
  wefti_manifest *m = r->m;
  const char *name = weft_json_str(v);
  if (!name) {
    return weft_whyf(r->why, WEFT_E_INVAL, "%s: a name in 'tied' is not a string",
                     r->label);
  }
  const size_t at = wefti_manifest_find(m, name);
  if (at == SIZE_MAX) {
    return weft_whyf(r->why, WEFT_E_INVAL, "%s: tied '%.200s' is not one of the names",
                     r->label, name);
  }
  if (m->tied[at] != WEFTI_UNTIED) {
    return weft_whyf(r->why, WEFT_E_INVAL, "%s: '%.200s' is tied twice", r->label, name);
  }
  *first = *first == SIZE_MAX ? at : *first;
  const weft_tensor *a = &m->tensors[*first], *b = &m->tensors[at];
  if (strcmp(a->dtype, b->dtype) != 0 || a->ndim != b->ndim ||
      (a->ndim > 0 && memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape) != 0)) {
    return weft_whyf(r->why, WEFT_E_INVAL,
                     "%s: '%.200s' and '%.200s' are tied but have not the same dtype and "
                     "shape",
                     r->label, a->name, b->name);
  }
  m->tied[at] = (uint32_t)*first;
  m->tied_count++;
  return WEFT_OK;
}

static weft_err read_group(const reader *r, const weft_json *group)
{
  if (weft_json_kind_of(group) != WEFT_JSON_ARRAY || weft_json_count(group) < 2) {
    return weft_whyf(r->why, WEFT_E_INVAL,
                     "%s: each entry of 'tied' is a list of at least two names",
                     r->label);
  }
  size_t first = SIZE_MAX;
  weft_err err = WEFT_OK;
  for (const weft_json *v = weft_json_first(group); v && err == WEFT_OK;
       v = weft_json_next(v)) {
    err = tie(r, v, &first);
  }
  return err;
}

/* ---- files */

static weft_err begin(reader *r, const char *label, weft_why *why)
{
  *r = (reader){ .label = label, .why = why, .m = calloc(1, sizeof *r->m) };
  return r->m ? WEFT_OK : no_memory(r);
}

static weft_err done(const reader *r, weft_err err, wefti_manifest **out)
{
  if (err != WEFT_OK) {
    wefti_manifest_free(r->m);
    return err;
  }
  *out = r->m;
  return WEFT_OK;
}

weft_err wefti_manifest_parse(const char *text, size_t len, const char *label,
                              wefti_manifest **out, weft_why *why)
{
  reader r;
  lists l;
  weft_json *root = NULL;
  weft_why inner = { 0 };
  weft_err err = begin(&r, label, why);
  if (err != WEFT_OK) {
    return err;
  }
  err = weft_json_parse(text, len, NULL, &root, &inner);
  if (err != WEFT_OK) {
    err = weft_whyf(why, err == WEFT_E_NOMEM ? err : WEFT_E_INVAL, "%s: %s", label,
                    inner.text);
  } else {
    err = find_lists(&r, root, &l);
  }
  if (err == WEFT_OK) {
    err = check_lengths(&r, &l);
  }
  if (err == WEFT_OK) {
    err = read_rows(&r, &l);
  }
  if (err == WEFT_OK) {
    err = sort_table(&r);
  }
  for (const weft_json *v = err == WEFT_OK ? weft_json_first(l.tied) : NULL;
       v && err == WEFT_OK; v = weft_json_next(v)) {
    err = read_group(&r, v);
  }
  weft_json_free(root);
  return done(&r, err, out);
}

static weft_err from_safetensors(int fd, const char *path, wefti_manifest **out,
                                 weft_why *why)
{
  reader r;
  weft_safetensors *st = NULL;
  weft_err err = begin(&r, path, why);
  if (err != WEFT_OK) {
    return err;
  }
  err = weft_safetensors_read(fd, path, &st, why);
  if (err != WEFT_OK && err != WEFT_E_NOMEM) {
    err = WEFT_E_INVAL;
    if (why) {
      why->err = err;
    }
  }
  size_t name_bytes = 0, dims = 0;
  for (size_t i = 0; err == WEFT_OK && i < st->count; i++) {
    name_bytes += strlen(st->tensors[i].name) + 1;
    dims += st->tensors[i].ndim;
  }
  if (err == WEFT_OK) {
    err = make_table(&r, st->count, name_bytes, dims);
  }
  for (size_t i = 0; err == WEFT_OK && i < st->count; i++) {
    const weft_st_tensor *t = &st->tensors[i];
    err = add(&r, t->name, t->dtype, t->ndim, t->shape);
  }
  if (err == WEFT_OK) {
    err = sort_table(&r);
  }
  weft_safetensors_free(st);
  return done(&r, err, out);
}

static weft_err read_text(int fd, const char *path, uint64_t size, char **out,
                          weft_why *why)
{
  char *text = malloc((size_t)size + 1);
  if (!text) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s: out of memory", path);
  }
  size_t at = 0;
  while (at < size) {
    const ssize_t n = pread(fd, text + at, (size_t)size - at, (off_t)at);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      const int error = errno;
      free(text);
      return n < 0 ? weft_whyf(why, WEFT_E_INVAL, "%s: cannot be read: errno %d", path,
                               error)
                   : weft_whyf(why, WEFT_E_INVAL, "%s: became shorter meanwhile", path);
    }
    at += (size_t)n;
  }
  text[at] = '\0';
  *out = text;
  return WEFT_OK;
}

/* A safetensors file begins with the length of its header in eight bytes, of which some
 * are 0; JSON has none. */
static bool is_safetensors(int fd)
{
  unsigned char head[8];
  return pread(fd, head, sizeof head, 0) == (ssize_t)sizeof head &&
         memchr(head, 0, sizeof head) != NULL;
}

static weft_err load_from(int fd, const char *path, wefti_manifest **out, weft_why *why)
{
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    return weft_whyf(why, WEFT_E_INVAL, "%s: not a file", path);
  }
  if (is_safetensors(fd)) {
    return from_safetensors(fd, path, out, why);
  }
  if ((uint64_t)st.st_size > WEFTI_MANIFEST_MAX) {
    return weft_whyf(why, WEFT_E_INVAL, "%s: more than %" PRIu64 " bytes of JSON", path,
                     WEFTI_MANIFEST_MAX);
  }
  char *text;
  weft_err err = read_text(fd, path, (uint64_t)st.st_size, &text, why);
  if (err == WEFT_OK) {
    err = wefti_manifest_parse(text, (size_t)st.st_size, path, out, why);
    free(text);
  }
  return err;
}

weft_err wefti_manifest_load(const char *path, wefti_manifest **out, weft_why *why)
{
  /* NONBLOCK: a FIFO must not hang the start. */
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return weft_whyf(why, WEFT_E_INVAL, "manifest: %s: cannot be opened: errno %d", path,
                     errno);
  }
  weft_why inner = { 0 };
  const weft_err err = load_from(fd, path, out, &inner);
  (void)close(fd);
  return err == WEFT_OK ? WEFT_OK : weft_whyf(why, err, "manifest: %s", inner.text);
}

void wefti_manifest_free(wefti_manifest *m)
{
  if (m) {
    free(m->tensors);
    free(m->tied);
    free(m->names);
    free(m->dims);
    free(m);
  }
}
