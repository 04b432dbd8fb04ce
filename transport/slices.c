#include "slices.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define INVALID "Invalid update_info for %s: "

static weft_err slice(const wefti_slicer *s, const char *engine, weft_plan_tensor *t,
                      unsigned dim, int64_t *shape, weft_why *why)
{
  if (dim >= t->ndim) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID
                     "'%.200s' has %u dimensions, the TP plan slices dimension %u",
                     engine, t->name, t->ndim, dim);
  }
  if (t->shape[dim] % s->of != 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "dimension %u of '%.200s' is %" PRId64 ", which %u tensor "
                             "parallel ranks cannot share",
                     engine, dim, t->name, t->shape[dim], s->of);
  }
  memcpy(shape, t->shape, t->ndim * sizeof *shape);
  shape[dim] /= s->of;
  t->full = t->shape;
  t->full_bytes = t->bytes;
  t->shape = shape;
  t->bytes /= s->of;
  t->slice_dim = dim;
  t->slice_index = s->index;
  t->slice_of = s->of;
  return WEFT_OK;
}

weft_err wefti_slices_make(const wefti_slicer *slicer, const char *engine,
                           wefti_lists *lists, int64_t **dims, weft_why *why)
{
  if (slicer->plan == NULL || slicer->of <= 1) {
    return WEFT_OK;
  }
  size_t all = 0;
  for (size_t i = 0; i < lists->count; i++) {
    all += lists->tensors[i].ndim;
  }
  int64_t *shape = calloc(all + 1, sizeof *shape);
  *dims = shape;
  if (shape == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "no memory for %zu tensors", lists->count);
  }
  lists->bytes = 0;
  for (size_t i = 0; i < lists->count; i++) {
    weft_plan_tensor *t = &lists->tensors[i];
    unsigned dim;
    if (weft_tp_plan_find(slicer->plan, t->name, &dim)) {
      const weft_err err = slice(slicer, engine, t, dim, shape, why);
      if (err != WEFT_OK) {
        return err;
      }
      shape += t->ndim;
    }
    lists->bytes += t->bytes; /* at most as before */
  }
  return WEFT_OK;
}

wefti_cut wefti_slice_cut(const weft_plan_tensor *t)
{
  wefti_cut c = { .rows = 1 };
  for (unsigned d = 0; d < t->slice_dim; d++) {
    c.rows *= (uint64_t)t->full[d]; /* not more than full_bytes, or 0 */
  }
  if (t->full_bytes == 0) {
    return (wefti_cut){ 0 };
  }
  c.pitch = t->full_bytes / c.rows;
  c.width = c.pitch / t->slice_of;
  c.offset = c.width * t->slice_index;
  return c;
}
