/* Whether tensors still hold the bytes that their digests are of. */
#include "device.h"
#include "weft/digest.h"

#include <stdlib.h>

weft_err wefti_device_rehash(wefti_device *device, const weft_tensor *first,
                             size_t stride, size_t count, size_t *bad)
{
  weft_piece *pieces = calloc(count > 0 ? count : 1, sizeof *pieces);
  weft_digest *is = calloc(count > 0 ? count : 1, sizeof *is);
  const char *at = (const char *)first;
  uint64_t bytes = 0;
  weft_err err = pieces && is ? WEFT_OK : WEFT_E_NOMEM;
  for (size_t i = 0; i < count && err == WEFT_OK; i++) {
    const weft_tensor *t = (const void *)(at + i * stride);
    pieces[i] = (weft_piece){ t->data, t->bytes };
    bytes += t->bytes;
  }
  if (err == WEFT_OK) {
    wefti_device_expect(device, bytes);
    err = weft_digest_pieces(pieces, count, device->threads, &device->cancel,
                             &device->received, is);
  }
  *bad = count;
  for (size_t i = 0; i < count && err == WEFT_OK && *bad == count; i++) {
    const weft_tensor *t = (const void *)(at + i * stride);
    if (!weft_digest_equal(is[i], weft_digest_load(t->digest))) {
      *bad = i;
    }
  }
  free(pieces);
  free(is);
  return err;
}
