/* The indices of a patch.  The first two bytes: elements of the tensor; the next one: how
 * many bytes an index has, so that small inputs repeat themselves. */
#include "sparse_order.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
  if (!ok) {
    abort();
  }
}

static weft_err tick(void *arg, weft_why *why)
{
  (void)arg;
  (void)why;
  return WEFT_OK;
}

static bool good(const int32_t *index, size_t n, uint64_t elements)
{
  bool *seen = calloc(elements + 1, sizeof *seen);
  bool ok = true;
  check(seen != NULL);
  for (size_t i = 0; i < n && ok; i++) {
    ok = index[i] >= 0 && (uint64_t)index[i] < elements && !seen[index[i]];
    if (ok) {
      seen[index[i]] = true;
    }
  }
  free(seen);
  return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  if (size < 3) {
    return 0;
  }
  const uint64_t elements = (uint64_t)data[0] << 8 | data[1];
  const size_t width = data[2] % 4 + 1;
  const size_t n = (size - 3) / width;
  int32_t *index = calloc(n + 1, sizeof *index);
  check(index != NULL);
  for (size_t i = 0; i < n; i++) {
    memcpy(&index[i], data + 3 + i * width, width);
  }
  wefti_order o = { 0 };
  const weft_err err = wefti_order_patch(&o, "t", index, n, elements, tick, NULL, NULL);
  check((err == WEFT_OK) == good(index, n, elements));
  for (size_t i = 1; i < n && err == WEFT_OK; i++) {
    check(index[wefti_order_at(&o, i - 1)] < index[wefti_order_at(&o, i)]);
  }
  wefti_order_free(&o);
  free(index);
  return 0;
}
