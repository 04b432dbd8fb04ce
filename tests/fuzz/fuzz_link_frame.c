/* An error frame as a peer may send it. */
#include "frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  weft_err reason = WEFT_OK;
  uint16_t asked = 0;
  if (wefti_error_parse(data, size, &reason, &asked)) {
    uint8_t again[WEFTI_ERROR_FRAME];
    weft_err r2 = WEFT_OK;
    uint16_t a2 = 0;
    wefti_error_frame(again, 1, reason, asked);
    if (reason == WEFT_OK || !wefti_error_parse(again, sizeof again, &r2, &a2) ||
        r2 != reason || a2 != asked) {
      abort();
    }
  }
  return 0;
}
