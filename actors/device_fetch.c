/* The weights that another rank lends: taken, compared with what the engine has
 * published, and installed. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

/* The digests are of the bytes that came: with the names they make that of the set. */
static weft_err check(const wefti_entry *entries, size_t count, const uint64_t digest[2],
                      weft_why *why)
{
  for (size_t i = 1; i < count; i++) {
    if (strcmp(entries[i - 1].t.name, entries[i].t.name) >= 0) {
      return weft_whyf(why, WEFT_E_FAILED,
                       "lent weights: tensor '%.200s' is out of order",
                       entries[i].t.name);
    }
  }
  uint64_t got[2];
  const weft_err err = wefti_entries_digest(entries, count, got);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "lent weights: %s", weft_strerror(err));
  }
  if (got[0] != digest[0] || got[1] != digest[1]) {
    return weft_whyf(why, WEFT_E_FAILED,
                     "lent weights are not what the engine has published");
  }
  return WEFT_OK;
}

weft_err wefti_device_fetch(wefti_device *device, const weft_buf *info,
                            const uint64_t digest[2], uint32_t timeout_ms, weft_why *why)
{
  const wefti_lender *lender = device->lender;
  wefti_entry *entries = NULL;
  size_t count = 0;
  const weft_snapshot *snapshot;
  if (lender == NULL || info == NULL) {
    return weft_whyf(why, WEFT_E_STATE, "nothing is lent to this rank");
  }
  weft_err err = wefti_store_room(device->store, why);
  if (err == WEFT_OK) {
    err = lender->take(lender->arg, info, timeout_ms, &entries, &count, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  err = check(entries, count, digest, why);
  if (err == WEFT_OK) {
    err = wefti_store_install(device->store, WEFTI_RECALL_EPOCH, entries, count, digest,
                              &snapshot);
    if (err != WEFT_OK) {
      err = weft_whyf(why, err, "lent weights, not installed: %s", weft_strerror(err));
    }
  }
  for (size_t i = 0; i < count; i++) {
    wefti_cell_unref(entries[i].cell); /* the snapshot has its own references */
  }
  free(entries);
  if (err == WEFT_OK && device->on_install != NULL) {
    device->on_install(device->on_install_arg, WEFTI_RECALL_EPOCH, snapshot);
  }
  return err;
}
