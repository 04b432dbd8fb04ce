/* sparse_order.h -- the indices of one patch, checked and in order.  Not for other
 * folders; not here: where they come from and what they are applied to. */
#ifndef WEFT_TRANSPORT_SPARSE_ORDER_H
#define WEFT_TRANSPORT_SPARSE_ORDER_H

#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for the order of patches that are not in order; zeroed at first. */
typedef struct wefti_order {
  uint64_t *keys, *spare; /* [cap] */
  size_t cap;
  bool sorted; /* the indices are in order as they are: keys is not filled */
} wefti_order;

/* Called now and then: something moved; not OK = leave off. */
typedef weft_err wefti_order_tick(void *arg, weft_why *why);

/* Which element of the patch comes n-th in order of index, and its index. */
static inline uint32_t wefti_order_at(const wefti_order *o, size_t n)
{
  return o->sorted ? (uint32_t)n : (uint32_t)o->keys[n];
}

/* index [n] of the tensor name, which has that many elements.  Errors: INVAL (one is
 * negative, too large or there twice), NOMEM, LIMIT (n), what tick gave. */
weft_err wefti_order_patch(wefti_order *o, const char *name, const int32_t *index,
                           size_t n, uint64_t elements, wefti_order_tick *tick, void *arg,
                           weft_why *why) WEFT_MUST_USE;
void wefti_order_free(wefti_order *o); /* of a zeroed one: no-op */

#endif /* WEFT_TRANSPORT_SPARSE_ORDER_H */
