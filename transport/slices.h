/* slices.h -- a plan's tensors cut to what a tensor parallel rank keeps.  Not for other
 * folders; not here: the rules (weft/tp_plan.h). */
#ifndef WEFT_TRANSPORT_SLICES_H
#define WEFT_TRANSPORT_SLICES_H

#include "plan_lists.h"
#include "weft/tp_plan.h"

typedef struct wefti_slicer {
  const weft_tp_plan *plan; /* NULL = all tensors are kept whole */
  unsigned index, of;       /* this rank; of <= 1 likewise */
} wefti_slicer;

/* Where the slice lies in the whole: rows pieces of width bytes, the first at offset,
 * each pitch behind the one before. */
typedef struct wefti_cut {
  uint64_t offset, width, pitch, rows;
} wefti_cut;

/* Shapes and bytes become those of the slices, full the shapes that come.  *dims owns the
 * new shapes.  Errors: INVAL (not divisible, no such dimension), NOMEM. */
weft_err wefti_slices_make(const wefti_slicer *slicer, const char *engine,
                           wefti_lists *lists, int64_t **dims, weft_why *why)
    WEFT_MUST_USE;
wefti_cut wefti_slice_cut(const weft_plan_tensor *t); /* of one with full */

static inline uint64_t wefti_wire_bytes(const weft_plan_tensor *t)
{
  return t->full != NULL ? t->full_bytes : t->bytes;
}

#endif /* WEFT_TRANSPORT_SLICES_H */
