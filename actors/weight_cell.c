#include "weft/checked.h"
#include "weight_store.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct wefti_cell {
  /* Entries of snapshots and of one staged set.  ref: relaxed, the caller has one
   * already; unref: acq_rel, so that who takes it to 0 sees all earlier uses ended. */
  atomic_uint refs;
  weft_memory *memory;
  weft_extent extent;
  wefti_cell *owner; /* whose extent it is, referenced; NULL = its own */
  int64_t shape[];   /* [ndim], then the name */
};

weft_err wefti_cell_create(const weft_tensor *want, weft_memory *memory,
                           const weft_extent *extent, wefti_entry *out)
{
  const size_t name_len = strlen(want->name);
  size_t size;
  if (want->ndim > WEFT_NDIM_MAX ||
      weft_size_add(sizeof(wefti_cell) + want->ndim * sizeof(int64_t), name_len + 1,
                    &size) != WEFT_OK) {
    return WEFT_E_OVERFLOW;
  }
  wefti_cell *cell = malloc(size);
  if (!cell) {
    return WEFT_E_NOMEM;
  }
  atomic_init(&cell->refs, 1);
  cell->memory = memory;
  cell->owner = NULL;
  cell->extent = *extent;
  if (want->ndim > 0) {
    memcpy(cell->shape, want->shape, want->ndim * sizeof(int64_t));
  }
  char *name = (char *)(cell->shape + want->ndim);
  memcpy(name, want->name, name_len + 1);
  out->t = *want;
  out->t.name = name;
  out->t.shape = cell->shape;
  out->t.data = extent->ptr;
  out->cell = cell;
  return WEFT_OK;
}

weft_err wefti_cell_alias(const char *name, const wefti_entry *of, wefti_entry *out)
{
  weft_tensor want = of->t;
  want.name = name;
  return wefti_cell_over(&want, of->cell, out);
}

weft_err wefti_cell_over(const weft_tensor *want, wefti_cell *of, wefti_entry *out)
{
  wefti_cell *owner = of->owner ? of->owner : of;
  const weft_err err = wefti_cell_create(want, owner->memory, &owner->extent, out);
  if (err == WEFT_OK) {
    out->cell->owner = wefti_cell_ref(owner);
  }
  return err;
}

wefti_cell *wefti_cell_ref(wefti_cell *cell)
{
  atomic_fetch_add_explicit(&cell->refs, 1, memory_order_relaxed);
  return cell;
}

void wefti_cell_unref(wefti_cell *cell)
{
  if (!cell || atomic_fetch_sub_explicit(&cell->refs, 1, memory_order_acq_rel) != 1) {
    return;
  }
  if (cell->owner) {
    wefti_cell_unref(cell->owner); /* which has no owner itself */
  } else {
    weft_memory_free(cell->memory, &cell->extent);
  }
  free(cell);
}

const weft_extent *wefti_cell_extent(const wefti_cell *cell)
{
  return &cell->extent;
}

weft_memory *wefti_cell_memory(const wefti_cell *cell)
{
  return cell->memory;
}

int wefti_cell_device(const wefti_cell *cell)
{
  return weft_memory_device(cell->memory);
}
