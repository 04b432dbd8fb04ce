#include "host_priv.h"
#include "weft/checked.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* All texts of this file are answers to a client: they begin as vLLM's do. */
#define INVALID "Invalid update_info for host backend: "

static weft_err need_list(const weft_json *v, const char *key, weft_why *why)
{
  if (weft_json_kind_of(v) == WEFT_JSON_NONE) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "missing key '%s'", key);
  }
  return weft_json_kind_of(v) == WEFT_JSON_ARRAY
             ? WEFT_OK
             : weft_whyf(why, WEFT_E_INVAL, INVALID "'%s' is not a list", key);
}

static weft_err same_length(const weft_json *names, const weft_json *v, const char *key,
                            weft_why *why)
{
  const weft_err err = need_list(v, key, why);
  if (err != WEFT_OK || weft_json_count(v) == weft_json_count(names)) {
    return err;
  }
  return weft_whyf(why, WEFT_E_INVAL,
                   "`%s` should be of the same size as `names`: got %zu and %zu", key,
                   weft_json_count(v), weft_json_count(names));
}

static weft_err read_dims(const weft_json *shape, weft_plan_tensor *t, int64_t *dims,
                          weft_why *why)
{
  if (weft_json_kind_of(shape) != WEFT_JSON_ARRAY) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "shape of '%s' is not a list", t->name);
  }
  if (weft_json_count(shape) > WEFT_DIMS_MAX) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "'%s' has %zu dimensions, at most %d are taken", t->name,
                     weft_json_count(shape), WEFT_DIMS_MAX);
  }
  t->shape = dims;
  for (const weft_json *v = weft_json_first(shape); v != NULL; v = weft_json_next(v)) {
    if (!weft_json_i64(v, &dims[t->ndim])) {
      return weft_whyf(why, WEFT_E_INVAL,
                       INVALID "dimension %u of '%s' is not an integer of 63 bits",
                       t->ndim, t->name);
    }
    if (dims[t->ndim] < 0) {
      return weft_whyf(why, WEFT_E_INVAL, INVALID "dimension %u of '%s' is negative",
                       t->ndim, t->name);
    }
    t->ndim++;
  }
  return WEFT_OK;
}

static weft_err read_row(weft_plan_tensor *t, int64_t *dims, const weft_json *name,
                         const weft_json *dtype, const weft_json *shape, weft_why *why)
{
  t->name = weft_json_str(name);
  if (t->name == NULL || t->name[0] == '\0') {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "a name is empty or not a string");
  }
  const char *dtype_name = weft_json_str(dtype);
  t->dtype = weft_dtype_parse(dtype_name);
  if (t->dtype == WEFT_DTYPE_NONE) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "unknown dtype '%s' of '%s'",
                     dtype_name == NULL ? "(not a string)" : dtype_name, t->name);
  }
  const weft_err err = read_dims(shape, t, dims, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (weft_dtype_bytes(t->dtype, t->ndim, t->shape, &t->bytes) != WEFT_OK) {
    return weft_whyf(why, WEFT_E_OVERFLOW, INVALID "shape of '%s' is too large", t->name);
  }
  return WEFT_OK;
}

static int by_name(const void *a, const void *b)
{
  const weft_plan_tensor *const *x = a;
  const weft_plan_tensor *const *y = b;
  return strcmp((*x)->name, (*y)->name);
}

static weft_err no_duplicates(const wefti_host_plan *plan, weft_why *why)
{
  const size_t n = plan->pub.count;
  const weft_plan_tensor **sorted = calloc(n + 1, sizeof(weft_plan_tensor *));
  if (sorted == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "no memory for %zu tensors", n);
  }
  for (size_t i = 0; i < n; i++) {
    sorted[i] = &plan->tensors[i];
  }
  qsort(sorted, n, sizeof(weft_plan_tensor *), by_name);
  weft_err err = WEFT_OK;
  for (size_t i = 1; i < n && err == WEFT_OK; i++) {
    if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) {
      err = weft_whyf(why, WEFT_E_INVAL, INVALID "'%s' is named twice", sorted[i]->name);
    }
  }
  free(sorted);
  return err;
}

static weft_err allocate(wefti_host_plan *plan, size_t n, const weft_json *shapes,
                         weft_why *why)
{
  size_t dims = 0;
  for (const weft_json *v = weft_json_first(shapes); v != NULL; v = weft_json_next(v)) {
    const size_t ndim = weft_json_count(v);
    dims += ndim > WEFT_DIMS_MAX ? WEFT_DIMS_MAX : ndim;
  }
  plan->tensors = calloc(n + 1, sizeof *plan->tensors);
  plan->at = calloc(n + 1, sizeof *plan->at);
  plan->dims = calloc(dims + 1, sizeof *plan->dims);
  return plan->tensors == NULL || plan->at == NULL || plan->dims == NULL
             ? weft_whyf(why, WEFT_E_NOMEM, "no memory for %zu tensors", n)
             : WEFT_OK;
}

weft_err wefti_host_lists(wefti_host_plan *plan, const weft_json *names,
                          const weft_json *dtype_names, const weft_json *shapes,
                          weft_why *why)
{
  weft_err err = need_list(names, "names", why);
  if (err == WEFT_OK) {
    err = same_length(names, dtype_names, "dtype_names", why);
  }
  if (err == WEFT_OK) {
    err = same_length(names, shapes, "shapes", why);
  }
  if (err == WEFT_OK) {
    err = allocate(plan, weft_json_count(names), shapes, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  const weft_json *dtype = weft_json_first(dtype_names);
  const weft_json *shape = weft_json_first(shapes);
  int64_t *dims = plan->dims;
  for (const weft_json *name = weft_json_first(names); name != NULL;
       name = weft_json_next(name)) {
    weft_plan_tensor *t = &plan->tensors[plan->pub.count];
    err = read_row(t, dims, name, dtype, shape, why);
    if (err != WEFT_OK) {
      return err;
    }
    if (weft_size_add(plan->pub.bytes, t->bytes, &plan->pub.bytes) != WEFT_OK ||
        plan->pub.bytes > (uint64_t)INT64_MAX) {
      return weft_whyf(why, WEFT_E_OVERFLOW,
                       INVALID "the tensors up to '%s' are too large", t->name);
    }
    dims += t->ndim;
    plan->pub.count++;
    dtype = weft_json_next(dtype);
    shape = weft_json_next(shape);
  }
  plan->pub.tensors = plan->tensors;
  return no_duplicates(plan, why);
}
