/* TP plans; the bytes up to the first newline are a tensor's name. */
#include "weft/dtype.h"
#include "weft/tp_plan.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  const uint8_t *end = size > 0 ? memchr(data, '\n', size) : NULL;
  weft_tp_plan *plan = NULL;
  char name[64];
  if (end == NULL || (size_t)(end - data) >= sizeof name) {
    return 0;
  }
  const size_t n = (size_t)(end - data);
  memcpy(name, data, n);
  name[n] = '\0';
  if (weft_tp_plan_parse(end + 1, size - n - 1, &plan, NULL) == WEFT_OK) {
    unsigned dim = WEFT_DIMS_MAX;
    if (weft_tp_plan_find(plan, name, &dim) && dim >= WEFT_DIMS_MAX) {
      abort();
    }
  }
  weft_tp_plan_free(plan);
  return 0;
}
