/* Digests that come behind the bytes.  A backend that hashes on the side has answered an
 * update when it has copied; what it copied is kept here until it is hashed, which is
 * before finish has installed anything. */
#include "device.h"

#include <stdlib.h>

wefti_late *wefti_late_make(size_t count)
{
  wefti_late *late = calloc(1, sizeof *late);
  if (!late) {
    return NULL;
  }
  late->digests = calloc(count > 0 ? count : 1, sizeof *late->digests);
  late->cells = calloc(count > 0 ? count : 1, sizeof(wefti_cell *));
  if (!late->digests || !late->cells) {
    wefti_late_free(late);
    return NULL;
  }
  return late;
}

void wefti_late_free(wefti_late *late)
{
  if (!late) {
    return;
  }
  for (size_t i = 0; late->cells && i < late->cell_count; i++) {
    wefti_cell_unref(late->cells[i]);
  }
  free(late->cells);
  free(late->digests);
  free(late);
}

void wefti_late_keep(wefti_device_session *s, wefti_late *late)
{
  late->next = s->late;
  s->late = late;
}

static void free_all(wefti_device_session *s)
{
  while (s->late) {
    wefti_late *late = s->late;
    s->late = late->next;
    wefti_late_free(late);
  }
  s->late_repeats = false;
}

static void on_hashed(void *arg, uint64_t bytes)
{
  wefti_device *device = arg;
  atomic_store_explicit(&device->received, bytes, memory_order_relaxed);
}

weft_err wefti_late_settle(wefti_device_session *s, weft_why *why)
{
  wefti_device *device = s->device;
  uint64_t bytes = 0;
  if (!s->late) {
    return WEFT_OK;
  }
  for (const wefti_late *late = s->late; late; late = late->next) {
    bytes += late->bytes;
  }
  wefti_device_expect(device, bytes);
  const weft_err err =
      device->transfer->settle(device->backend, &device->cancel, on_hashed, device, why);
  if (err != WEFT_OK) {
    return err;
  }
  for (size_t i = 0; i < s->staged_count; i++) {
    wefti_staged *staged = &s->staged[i];
    if (staged->late) {
      weft_digest_store(*staged->late, staged->entry.t.digest);
      staged->late = NULL;
    }
  }
  free_all(s);
  return WEFT_OK;
}

bool wefti_late_advance(wefti_device_session *s)
{
  return s->late && s->device->transfer->advance(s->device->backend);
}

weft_err wefti_late_ease(wefti_device_session *s, weft_why *why)
{
  /* In place what comes may be written over what is not hashed. */
  if (s->late && (s->late_repeats || s->device->inplace || !wefti_late_advance(s))) {
    return wefti_late_settle(s, why);
  }
  return WEFT_OK;
}

void wefti_late_forget(wefti_device_session *s)
{
  if (s->late) {
    s->device->transfer->forget(s->device->backend);
  }
  free_all(s);
}
