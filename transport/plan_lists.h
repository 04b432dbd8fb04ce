/* plan_lists.h -- update_info's lists of names, dtypes and shapes, which every backend
 * has.  Not for other folders; not here: what else a backend finds in update_info. */
#ifndef WEFT_TRANSPORT_PLAN_LISTS_H
#define WEFT_TRANSPORT_PLAN_LISTS_H

#include "weft/json.h"
#include "weft/transfer.h"

typedef struct wefti_lists {
  weft_plan_tensor *tensors; /* [count]; names are the JSON's */
  int64_t *dims;             /* that their shapes point into */
  size_t count;
  uint64_t bytes; /* of all */
} wefti_lists;

/* Errors carry the contract's texts; engine is whose update_info it is, as in "Invalid
 * update_info for <engine>: ".  *out is written only on WEFT_OK; wefti_lists_free it. */
weft_err wefti_lists_read(const char *engine, const weft_json *names,
                          const weft_json *dtype_names, const weft_json *shapes,
                          wefti_lists *out, weft_why *why) WEFT_MUST_USE;
void wefti_lists_free(wefti_lists *lists); /* of a zeroed one: no-op */

/* The entry that is meant for this worker, when update_info is a list. */
weft_err wefti_lists_entry(const char *engine, const weft_json *root,
                           const weft_transfer_who *who, const weft_json **info,
                           weft_why *why) WEFT_MUST_USE;

#endif /* WEFT_TRANSPORT_PLAN_LISTS_H */
