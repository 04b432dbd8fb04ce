/* A plan's tensors by name: sorted once, for the check against the live set and for
 * staging. */
#include "device.h"
#include "weft/checked.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  SHAPE_TEXT = WEFT_NDIM_MAX * 21 + 3,
  ORDER_MIN = 16,  /* tensors of a plan whose order is worth keeping */
  MORE_TEXT = 32,  /* " and 18446744073709551615 more" */
  SEARCH_BELOW = 8 /* a plan of so small a part of the live set is looked up in it */
};

/* ---- order */

typedef struct named {
  const char *name;
  uint32_t at;
} named;

static int by_name(const void *left, const void *right)
{
  return strcmp(((const named *)left)->name, ((const named *)right)->name);
}

/* order NULL: as they are. */
static bool ascends(const weft_plan *plan, const uint32_t *order)
{
  for (size_t i = 1; i < plan->count; i++) {
    const char *before = plan->tensors[order ? order[i - 1] : i - 1].name;
    if (strcmp(before, plan->tensors[order ? order[i] : i].name) >= 0) {
      return false;
    }
  }
  return true;
}

static weft_err sort(const weft_plan *plan, uint32_t *order)
{
  named *rows = calloc(plan->count, sizeof *rows);
  if (!rows) {
    return WEFT_E_NOMEM;
  }
  for (size_t i = 0; i < plan->count; i++) {
    rows[i] = (named){ plan->tensors[i].name, (uint32_t)i };
  }
  qsort(rows, plan->count, sizeof *rows, by_name);
  for (size_t i = 0; i < plan->count; i++) {
    order[i] = rows[i].at;
  }
  free(rows);
  return WEFT_OK;
}

weft_err wefti_order_make(const wefti_device *device, const weft_plan *plan,
                          uint32_t **out)
{
  size_t bytes;
  if (plan->count > UINT32_MAX ||
      weft_size_mul(plan->count, sizeof **out, &bytes) != WEFT_OK) {
    return WEFT_E_OVERFLOW;
  }
  uint32_t *order = malloc(bytes > 0 ? bytes : 1);
  if (!order) {
    return WEFT_E_NOMEM;
  }
  weft_err err = WEFT_OK;
  /* Positions by which all names ascend are the order, wherever they came from. */
  if (plan->count > 0 && plan->count == device->order_count &&
      ascends(plan, device->order)) {
    memcpy(order, device->order, bytes);
  } else if (ascends(plan, NULL)) {
    for (size_t i = 0; i < plan->count; i++) {
      order[i] = (uint32_t)i;
    }
  } else {
    err = sort(plan, order);
  }
  if (err != WEFT_OK) {
    free(order);
    return err;
  }
  *out = order;
  return WEFT_OK;
}

void wefti_order_keep(wefti_device *device, uint32_t *order, size_t count)
{
  if (!order || count < ORDER_MIN) {
    free(order);
    return;
  }
  free(device->order);
  device->order = order;
  device->order_count = count;
}

/* ---- check */

static void shape_text(unsigned ndim, const int64_t *shape, char out[SHAPE_TEXT])
{
  size_t len = 1;
  out[0] = '[';
  for (unsigned i = 0; i < ndim && i < WEFT_NDIM_MAX; i++) {
    const int n =
        snprintf(out + len, SHAPE_TEXT - len, "%s%" PRId64, i > 0 ? "," : "", shape[i]);
    len += n > 0 ? (size_t)n : 0;
  }
  out[len] = ']';
  out[len + 1] = '\0';
}

static bool same_shape(const weft_plan_tensor *a, const weft_tensor *b)
{
  return a->ndim == b->ndim &&
         (a->ndim == 0 || memcmp(a->shape, b->shape, a->ndim * sizeof(int64_t)) == 0);
}

weft_err wefti_tensor_check(const weft_plan_tensor *t, const weft_tensor *have,
                            const char *whose, weft_why *why)
{
  const char *dtype = weft_dtype_name(t->dtype);
  if (!dtype || t->ndim > WEFT_NDIM_MAX) {
    return weft_whyf(why, WEFT_E_UNSUPPORTED, "tensor '%.200s': %s", t->name,
                     dtype ? "too many dimensions" : "unknown dtype");
  }
  if (!have || (strcmp(have->dtype, dtype) == 0 && same_shape(t, have))) {
    return WEFT_OK;
  }
  char want[SHAPE_TEXT], got[SHAPE_TEXT];
  shape_text(have->ndim, have->shape, want);
  shape_text(t->ndim, t->shape, got);
  return weft_whyf(why, WEFT_E_INVAL,
                   "tensor '%.200s': %s is %s %s, the update brings %s %s", t->name,
                   whose, have->dtype, want, dtype, got);
}

weft_err wefti_plan_check(const weft_plan *plan, const uint32_t *by_name,
                          const wefti_set *live, weft_why *why)
{
  const bool search = plan->count < wefti_set_count(live) / SEARCH_BELOW;
  wefti_set walk = *live;
  const weft_tensor *at = search ? NULL : wefti_set_next(&walk);
  for (size_t i = 0; i < plan->count; i++) {
    const weft_plan_tensor *t = &plan->tensors[by_name[i]];
    const weft_tensor *have = search ? wefti_set_find(live, t->name) : NULL;
    while (at && !have) {
      const int order = strcmp(at->name + live->skip, t->name);
      if (order > 0) {
        break;
      }
      have = order == 0 ? at : NULL;
      at = wefti_set_next(&walk);
    }
    const weft_err err = wefti_tensor_check(
        t, have, live->draft ? "the draft model's live one" : "the live one", why);
    if (err != WEFT_OK) {
      return err;
    }
  }
  return WEFT_OK;
}

/* ---- names */

void wefti_names_add(wefti_names *names, const char *name)
{
  if (names->count < WEFTI_NAMES_MAX) {
    names->first[names->count] = name;
  }
  names->count++;
}

void wefti_names_text(const wefti_names *names, char *out, size_t cap)
{
  size_t len = 0, listed = 0;
  out[0] = '\0';
  while (listed < names->count && listed < WEFTI_NAMES_MAX) {
    const size_t need = strlen(names->first[listed]) + 2;
    if (need + MORE_TEXT >= cap - len) {
      break;
    }
    const int n = snprintf(out + len, cap - len, "%s%s", listed > 0 ? ", " : "",
                           names->first[listed]);
    len += n > 0 ? (size_t)n : 0;
    listed++;
  }
  if (listed < names->count && cap - len >= MORE_TEXT) {
    (void)snprintf(out + len, cap - len, "%s%" PRIu64 " more", listed > 0 ? " and " : "",
                   names->count - listed);
  }
}
