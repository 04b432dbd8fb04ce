/* The weights of the rank's last life: taken from whoever kept them, looked at, and
 * installed. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_SHOWN = 200 };

static weft_err check_order(const wefti_entry *entries, size_t count, weft_why *why)
{
  for (size_t i = 1; i < count; i++) {
    if (strcmp(entries[i - 1].t.name, entries[i].t.name) >= 0) {
      return weft_whyf(why, WEFT_E_FAILED,
                       "weights of the last life: tensor '%.*s' is out of order",
                       NAME_SHOWN, entries[i].t.name);
    }
  }
  return WEFT_OK;
}

/* The last life may have been killed at anything, and the table is as old as the set:
 * the bytes themselves have to say that they are whole. */
static weft_err check_bytes(wefti_device *device, const wefti_entry *entries,
                            size_t count, weft_why *why)
{
  size_t bad = 0;
  weft_err err = check_order(entries, count, why);
  if (err != WEFT_OK) {
    return err;
  }
  err = wefti_device_rehash(device, count > 0 ? &entries[0].t : NULL, sizeof entries[0],
                            count, &bad);
  wefti_device_expect(device, 0);
  if (err == WEFT_E_NOMEM) {
    return weft_whyf(
        why, err, "out of memory for the digests of %zu tensors of the last life", count);
  }
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "weights of the last life: %s",
                     err == WEFT_E_CANCELLED ? "cancelled" : weft_strerror(err));
  }
  return bad == count ? WEFT_OK
                      : weft_whyf(why, WEFT_E_FAILED,
                                  "weights of the last life: tensor '%.*s' is damaged",
                                  NAME_SHOWN, entries[bad].t.name);
}

static weft_err check_set(wefti_device *device, const wefti_entry *entries, size_t count,
                          const uint64_t digest[2], weft_why *why)
{
  uint64_t got[2];
  weft_err err = check_bytes(device, entries, count, why);
  if (err != WEFT_OK) {
    return err;
  }
  err = wefti_entries_digest(entries, count, got);
  if (err == WEFT_OK && (got[0] != digest[0] || got[1] != digest[1])) {
    err = WEFT_E_FAILED;
  }
  return err == WEFT_OK
             ? err
             : weft_whyf(why, err, "weights of the last life: %s",
                         err == WEFT_E_FAILED ? "they are not what the engine has "
                                                "published"
                                              : weft_strerror(err));
}

weft_err wefti_device_recall(wefti_device *device, const uint64_t digest[2],
                             weft_why *why)
{
  wefti_entry *entries = NULL;
  size_t count = 0;
  const weft_snapshot *snapshot;
  weft_err err = device->keeper
                     ? device->keeper->take(device->keeper->arg, &entries, &count, why)
                     : weft_whyf(why, WEFT_E_STATE, "nobody keeps weights for this rank");
  if (err != WEFT_OK) {
    return err;
  }
  err = check_set(device, entries, count, digest, why);
  if (err == WEFT_OK) {
    err = wefti_store_install(device->store, WEFTI_RECALL_EPOCH, entries, count, digest,
                              &snapshot);
    if (err != WEFT_OK) {
      err = weft_whyf(why, err, "weights of the last life, not installed: %s",
                      weft_strerror(err));
    }
  }
  for (size_t i = 0; i < count; i++) {
    wefti_cell_unref(entries[i].cell); /* the snapshot has its own references */
  }
  free(entries);
  if (err == WEFT_OK && device->on_install) {
    device->on_install(device->on_install_arg, WEFTI_RECALL_EPOCH, snapshot);
  }
  return err;
}
