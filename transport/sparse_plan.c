/* num_updates_list of the sparse_nccl backend: how many elements of each tensor come. */
#include "nccl_priv.h"
#include "weft/checked.h"

#include <inttypes.h>
#include <stdlib.h>

#define INVALID "Invalid update_info for %s: "

enum {
  ALIGN = 16, /* of indices and values in the buffer of patches: the widest element */
  INDEX_BYTES = 4, /* int32 */
  BYTE_BITS = 8
};
/* More than that an int32 cannot name. */
static const uint64_t count_max = (uint64_t)INT32_MAX + 1;

/* bytes from the first multiple of ALIGN at or behind *end. */
static weft_err place(uint64_t bytes, uint64_t *at, uint64_t *end)
{
  weft_err err = weft_size_add(*end, ALIGN - 1, at);
  *at -= *at % ALIGN;
  if (err == WEFT_OK) {
    err = weft_size_add(*at, bytes, end);
  }
  return err;
}

static weft_err read_one(const char *engine, const weft_json *v, weft_plan_tensor *t,
                         wefti_nccl_plan *plan, wefti_patch *out, weft_why *why)
{
  int64_t count;
  if (t->full != NULL) {
    return weft_whyf(why, WEFT_E_UNSUPPORTED,
                     INVALID "'%.200s' is patched, and the TP plan slices it: only whole "
                             "tensors are sliced",
                     engine, t->name);
  }
  if (!weft_json_i64(v, &count) || count < 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "num_updates of '%.200s' is not an integer of 0 or more",
                     engine, t->name);
  }
  wefti_patch p = { .count = (uint64_t)count,
                    .width = weft_dtype_bits(t->dtype) / BYTE_BITS };
  p.elements = t->bytes / p.width;
  if (p.count > p.elements || p.count > count_max) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "num_updates of '%.200s' is %" PRIu64 ", the tensor has "
                             "%" PRIu64 " elements: an index would come twice",
                     engine, t->name, p.count, p.elements);
  }
  weft_err err = place(p.count * INDEX_BYTES, &p.indices_at, &plan->patch_bytes);
  if (err == WEFT_OK) {
    err = place(p.count * p.width, &p.values_at, &plan->patch_bytes);
  }
  if (err != WEFT_OK) {
    return weft_whyf(why, err, INVALID "the patches up to '%.200s' are too large", engine,
                     t->name);
  }
  p.end = plan->patch_bytes;
  t->patched = p.count < p.elements;
  plan->needs_base = plan->needs_base || t->patched;
  *out = p;
  return WEFT_OK;
}

weft_err wefti_sparse_read(const char *engine, const weft_json *list,
                           wefti_nccl_plan *plan, weft_why *why)
{
  const size_t count = plan->lists.count;
  if (weft_json_kind_of(list) != WEFT_JSON_ARRAY) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "'num_updates_list' is not a list",
                     engine);
  }
  if (weft_json_count(list) != count) {
    return weft_whyf(
        why, WEFT_E_INVAL,
        "`num_updates_list` should be of the same size as `names`: got %zu and %zu",
        weft_json_count(list), count);
  }
  if (count == 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "`num_updates_list` is empty: nothing is patched");
  }
  plan->patches = calloc(count, sizeof *plan->patches);
  if (plan->patches == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "no memory for %zu patches", count);
  }
  const weft_json *v = weft_json_first(list);
  for (size_t i = 0; i < count; i++, v = weft_json_next(v)) {
    const weft_err err =
        read_one(engine, v, &plan->lists.tensors[i], plan, &plan->patches[i], why);
    if (err != WEFT_OK) {
      return err;
    }
  }
  return WEFT_OK;
}
