/* Any bytes to weft_msg_decode.  What it accepts must survive encode and decode. */
#include "../runtime/sample_catalogue.h"
#include "weft/msg.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  weft_msg *msg = NULL;
  if (weft_msg_decode(&sample_catalogue, data, size, 1000, &msg) != WEFT_OK) {
    if (msg != NULL) {
      abort(); /* must be left alone on failure */
    }
    return 0;
  }
  uint8_t *again = malloc(size);
  size_t len = 0;
  if (again == NULL) {
    abort();
  }
  if (weft_msg_encode(&sample_catalogue, msg, 1000, again, size, &len) != WEFT_OK ||
      len != size || memcmp(again, data, size) != 0) {
    abort(); /* there is one frame for one message */
  }
  weft_msg *copy = weft_msg_dup(&sample_catalogue, msg);
  if (copy != NULL && copy->type != msg->type) {
    abort();
  }
  weft_msg_drop(&sample_catalogue, copy);
  weft_msg_drop(&sample_catalogue, msg);
  free(again);
  return 0;
}
