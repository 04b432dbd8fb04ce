#include "plan_lists.h"

#include "weft/checked.h"

#include <stdlib.h>
#include <string.h>

/* All texts of this file are answers to a client: they begin as vLLM's do. */
#define INVALID "Invalid update_info for %s: "

typedef struct row {
  const weft_json *name, *dtype, *shape;
} row;

static weft_err need_list(const char *engine, const weft_json *v, const char *key,
                          weft_why *why)
{
  if (weft_json_kind_of(v) == WEFT_JSON_NONE) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "missing key '%s'", engine, key);
  }
  return weft_json_kind_of(v) == WEFT_JSON_ARRAY
             ? WEFT_OK
             : weft_whyf(why, WEFT_E_INVAL, INVALID "'%s' is not a list", engine, key);
}

static weft_err same_length(const char *engine, const weft_json *names,
                            const weft_json *v, const char *key, weft_why *why)
{
  const weft_err err = need_list(engine, v, key, why);
  if (err != WEFT_OK || weft_json_count(v) == weft_json_count(names)) {
    return err;
  }
  return weft_whyf(why, WEFT_E_INVAL,
                   "`%s` should be of the same size as `names`: got %zu and %zu", key,
                   weft_json_count(v), weft_json_count(names));
}

static weft_err read_dims(const char *engine, const weft_json *shape, weft_plan_tensor *t,
                          int64_t *dims, weft_why *why)
{
  if (weft_json_kind_of(shape) != WEFT_JSON_ARRAY) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "shape of '%s' is not a list", engine,
                     t->name);
  }
  if (weft_json_count(shape) > WEFT_DIMS_MAX) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "'%s' has %zu dimensions, at most %d are taken", engine,
                     t->name, weft_json_count(shape), WEFT_DIMS_MAX);
  }
  t->shape = dims;
  for (const weft_json *v = weft_json_first(shape); v != NULL; v = weft_json_next(v)) {
    if (!weft_json_i64(v, &dims[t->ndim])) {
      return weft_whyf(why, WEFT_E_INVAL,
                       INVALID "dimension %u of '%s' is not an integer of 63 bits",
                       engine, t->ndim, t->name);
    }
    if (dims[t->ndim] < 0) {
      return weft_whyf(why, WEFT_E_INVAL, INVALID "dimension %u of '%s' is negative",
                       engine, t->ndim, t->name);
    }
    t->ndim++;
  }
  return WEFT_OK;
}

static weft_err read_row(const char *engine, weft_plan_tensor *t, int64_t *dims,
                         const row *from, weft_why *why)
{
  t->name = weft_json_str(from->name);
  if (t->name == NULL || t->name[0] == '\0') {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "a name is empty or not a string",
                     engine);
  }
  const char *dtype_name = weft_json_str(from->dtype);
  t->dtype = weft_dtype_parse(dtype_name);
  if (t->dtype == WEFT_DTYPE_NONE) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "unknown dtype '%s' of '%s'", engine,
                     dtype_name == NULL ? "(not a string)" : dtype_name, t->name);
  }
  const weft_err err = read_dims(engine, from->shape, t, dims, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (weft_dtype_bytes(t->dtype, t->ndim, t->shape, &t->bytes) != WEFT_OK) {
    return weft_whyf(why, WEFT_E_OVERFLOW, INVALID "shape of '%s' is too large", engine,
                     t->name);
  }
  return WEFT_OK;
}

static int by_name(const void *a, const void *b)
{
  const weft_plan_tensor *const *x = a;
  const weft_plan_tensor *const *y = b;
  return strcmp((*x)->name, (*y)->name);
}

static weft_err no_duplicates(const char *engine, const wefti_lists *l, weft_why *why)
{
  const size_t n = l->count;
  const weft_plan_tensor **sorted = calloc(n + 1, sizeof(weft_plan_tensor *));
  if (sorted == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "no memory for %zu tensors", n);
  }
  for (size_t i = 0; i < n; i++) {
    sorted[i] = &l->tensors[i];
  }
  qsort(sorted, n, sizeof(weft_plan_tensor *), by_name);
  weft_err err = WEFT_OK;
  for (size_t i = 1; i < n && err == WEFT_OK; i++) {
    if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) {
      err = weft_whyf(why, WEFT_E_INVAL, INVALID "'%s' is named twice", engine,
                      sorted[i]->name);
    }
  }
  free(sorted);
  return err;
}

static weft_err allocate(wefti_lists *l, size_t n, const weft_json *shapes, weft_why *why)
{
  size_t dims = 0;
  for (const weft_json *v = weft_json_first(shapes); v != NULL; v = weft_json_next(v)) {
    const size_t ndim = weft_json_count(v);
    dims += ndim > WEFT_DIMS_MAX ? WEFT_DIMS_MAX : ndim;
  }
  l->tensors = calloc(n + 1, sizeof *l->tensors);
  l->dims = calloc(dims + 1, sizeof *l->dims);
  return l->tensors == NULL || l->dims == NULL
             ? weft_whyf(why, WEFT_E_NOMEM, "no memory for %zu tensors", n)
             : WEFT_OK;
}

static weft_err read_rows(const char *engine, wefti_lists *l, row from, weft_why *why)
{
  int64_t *dims = l->dims;
  while (from.name != NULL) {
    weft_plan_tensor *t = &l->tensors[l->count];
    const weft_err err = read_row(engine, t, dims, &from, why);
    if (err != WEFT_OK) {
      return err;
    }
    if (weft_size_add(l->bytes, t->bytes, &l->bytes) != WEFT_OK ||
        l->bytes > (uint64_t)INT64_MAX) {
      return weft_whyf(why, WEFT_E_OVERFLOW,
                       INVALID "the tensors up to '%s' are too large", engine, t->name);
    }
    dims += t->ndim;
    l->count++;
    from = (row){ weft_json_next(from.name), weft_json_next(from.dtype),
                  weft_json_next(from.shape) };
  }
  return WEFT_OK;
}

weft_err wefti_lists_read(const char *engine, const weft_json *names,
                          const weft_json *dtype_names, const weft_json *shapes,
                          wefti_lists *out, weft_why *why)
{
  wefti_lists l = { 0 };
  weft_err err = need_list(engine, names, "names", why);
  if (err == WEFT_OK) {
    err = same_length(engine, names, dtype_names, "dtype_names", why);
  }
  if (err == WEFT_OK) {
    err = same_length(engine, names, shapes, "shapes", why);
  }
  if (err == WEFT_OK) {
    err = allocate(&l, weft_json_count(names), shapes, why);
  }
  if (err == WEFT_OK) {
    const row first = { weft_json_first(names), weft_json_first(dtype_names),
                        weft_json_first(shapes) };
    err = read_rows(engine, &l, first, why);
  }
  if (err == WEFT_OK) {
    err = no_duplicates(engine, &l, why);
  }
  if (err != WEFT_OK) {
    wefti_lists_free(&l);
    return err;
  }
  *out = l;
  return WEFT_OK;
}

void wefti_lists_free(wefti_lists *lists)
{
  free(lists->tensors);
  free(lists->dims);
  *lists = (wefti_lists){ 0 };
}

weft_err wefti_lists_entry(const char *engine, const weft_json *root,
                           const weft_transfer_who *who, const weft_json **info,
                           weft_why *why)
{
  *info = root;
  if (weft_json_kind_of(root) == WEFT_JSON_ARRAY) {
    const size_t count = weft_json_count(root);
    const size_t want = count == 1 && who->world_size == 1
                            ? 0
                            : (size_t)who->dp_index * who->world_size + who->rank;
    if (want >= count) {
      return weft_whyf(why, WEFT_E_INVAL,
                       INVALID "a list of %zu entries has none for worker %zu", engine,
                       count, want);
    }
    const weft_json *v = weft_json_first(root);
    for (size_t i = 0; i < want; i++) {
      v = weft_json_next(v);
    }
    *info = v;
  }
  return weft_json_kind_of(*info) == WEFT_JSON_OBJECT
             ? WEFT_OK
             : weft_whyf(why, WEFT_E_INVAL, INVALID "not an object", engine);
}
