#include "sparse_order.h"

#include "weft/checked.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
  DIGIT_BITS = 11, /* three digits are an index */
  DIGITS = 3,
  DIGIT_VALUES = 1 << DIGIT_BITS,
  TICK = 1 << 20 /* elements between two ticks */
};

void wefti_order_free(wefti_order *o)
{
  free(o->keys);
  free(o->spare);
  *o = (wefti_order){ 0 };
}

static weft_err in_range(const char *name, const int32_t *index, size_t at,
                         uint64_t elements, weft_why *why)
{
  if (index[at] < 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "patch of '%.200s': index %" PRId32 " (at %zu) is negative", name,
                     index[at], at);
  }
  if ((uint64_t)index[at] >= elements) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "patch of '%.200s': index %" PRId32 " (at %zu), the tensor has "
                     "%" PRIu64 " elements",
                     name, index[at], at, elements);
  }
  return WEFT_OK;
}

static weft_err twice(const char *name, int32_t index, weft_why *why)
{
  return weft_whyf(why, WEFT_E_INVAL,
                   "patch of '%.200s': index %" PRId32 " is given twice", name, index);
}

/* NOLINTNEXTLINE(readability-function-size): as wefti_order_patch */
static weft_err check(const char *name, const int32_t *index, size_t n, uint64_t elements,
                      wefti_order_tick *tick, void *arg, bool *sorted, weft_why *why)
{
  *sorted = true;
  for (size_t i = 0; i < n; i++) {
    weft_err err = in_range(name, index, i, elements, why);
    if (err == WEFT_OK && i % TICK == 0) {
      err = tick(arg, why);
    }
    if (err != WEFT_OK) {
      return err;
    }
    *sorted = *sorted && (i == 0 || index[i - 1] < index[i]);
  }
  return WEFT_OK;
}

static weft_err make_room(wefti_order *o, const char *name, size_t n, weft_why *why)
{
  size_t bytes;
  if (n <= o->cap) {
    return WEFT_OK;
  }
  wefti_order_free(o);
  const bool fits = weft_size_mul(n, sizeof *o->keys, &bytes) == WEFT_OK;
  uint64_t *keys = fits ? malloc(bytes) : NULL;
  uint64_t *spare = keys != NULL ? malloc(bytes) : NULL;
  if (spare == NULL) {
    free(keys);
    return weft_whyf(why, WEFT_E_NOMEM,
                     "patch of '%.200s': no memory to sort %zu indices", name, n);
  }
  o->keys = keys;
  o->spare = spare;
  o->cap = n;
  return WEFT_OK;
}

static size_t digit_of(uint64_t key, unsigned digit)
{
  return (size_t)(key >> (32 + digit * DIGIT_BITS)) % DIGIT_VALUES;
}

/* One pass of a radix sort, from keys to spare. */
static weft_err pass(wefti_order *o, size_t n, unsigned digit, wefti_order_tick *tick,
                     void *arg, weft_why *why)
{
  size_t starts[DIGIT_VALUES] = { 0 };
  for (size_t i = 0; i < n; i++) {
    starts[digit_of(o->keys[i], digit)]++;
  }
  size_t sum = 0;
  for (size_t d = 0; d < DIGIT_VALUES; d++) {
    const size_t count = starts[d];
    starts[d] = sum;
    sum += count;
  }
  for (size_t i = 0; i < n; i++) {
    const weft_err err = i % TICK == 0 ? tick(arg, why) : WEFT_OK;
    if (err != WEFT_OK) {
      return err;
    }
    o->spare[starts[digit_of(o->keys[i], digit)]++] = o->keys[i];
  }
  uint64_t *other = o->keys;
  o->keys = o->spare;
  o->spare = other;
  return WEFT_OK;
}

/* NOLINTNEXTLINE(readability-function-size): what is ordered, how far, and the usual */
weft_err wefti_order_patch(wefti_order *o, const char *name, const int32_t *index,
                           size_t n, uint64_t elements, wefti_order_tick *tick, void *arg,
                           weft_why *why)
{
  if ((uint64_t)n > (uint64_t)INT32_MAX + 1) {
    return weft_whyf(why, WEFT_E_LIMIT, "patch of '%.200s': %zu elements", name, n);
  }
  weft_err err = check(name, index, n, elements, tick, arg, &o->sorted, why);
  if (err != WEFT_OK || o->sorted) {
    return err;
  }
  err = make_room(o, name, n, why);
  for (size_t i = 0; i < n && err == WEFT_OK; i++) {
    o->keys[i] = (uint64_t)(uint32_t)index[i] << 32 | (uint32_t)i;
  }
  for (unsigned digit = 0; digit < DIGITS && err == WEFT_OK; digit++) {
    err = pass(o, n, digit, tick, arg, why);
  }
  for (size_t i = 1; i < n && err == WEFT_OK; i++) {
    if (o->keys[i - 1] >> 32 == o->keys[i] >> 32) {
      err = twice(name, (int32_t)(o->keys[i] >> 32), why);
    }
  }
  return err;
}
