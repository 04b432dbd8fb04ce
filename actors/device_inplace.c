/* Staging in place: an update's bytes go over those of the live tensors, for sets that do
 * not fit twice.
 *
 * Order: the worker pauses readers and waits for them; accept validates and moves
 * nothing; receive, when it has the first byte, calls on_write: the store refuses pins
 * from then on and the slabs are marked, and only then is it written.  Finish installs a
 * snapshot over the same bytes; PUBLISH clears marks and store.  Nothing else clears
 * them, so whatever ends in between leaves the worker poisoned.
 *
 * Device memory ends with the process, so that the store's own mark is enough for it. */
#include "device.h"

#include <stdlib.h>

wefti_cell *wefti_inplace_cell(const weft_tensor *want, const weft_snapshot *live)
{
  const weft_tensor *have = live ? weft_snapshot_find(live, want->name) : NULL;
  return have && have->bytes == want->bytes
             ? wefti_snapshot_cell(live, (size_t)(have - live->tensors))
             : NULL;
}

uint64_t wefti_inplace_needs(const wefti_device_session *s, const weft_snapshot *live)
{
  const weft_plan *plan = s->plan;
  uint64_t bytes = 0;
  for (size_t i = 0; i < plan->count; i++) {
    char *made;
    const weft_tensor want = { .name = wefti_session_full_name(s, plan->tensors[i].name,
                                                               &made),
                               .bytes = plan->tensors[i].bytes };
    bytes += want.name && wefti_inplace_cell(&want, live) ? 0 : want.bytes;
    free(made);
  }
  return bytes; /* at most plan->bytes */
}

/* Of tied tensors that come together the first by name has the live bytes: which is the
 * one that the others will be aliases of.  On the host each is hashed as it comes, on a
 * device as it lies there, and copies may overtake each other. */
static void find_spare(wefti_device_session *s, const wefti_manifest *m, bool *taken)
{
  for (size_t n = 0; n < s->plan->count; n++) {
    const uint32_t i = s->by_name[n];
    const size_t at = wefti_manifest_find(m, s->plan->tensors[i].name);
    const uint32_t group = at < m->count ? m->tied[at] : WEFTI_UNTIED;
    if (group != WEFTI_UNTIED) {
      s->spare[i] = taken[group];
      taken[group] = true;
    }
  }
}

weft_err wefti_inplace_spare(wefti_device_session *s, weft_why *why)
{
  const wefti_manifest *m = wefti_session_manifest(s);
  if (!s->device->inplace || weft_memory_device(s->device->memory) < 0 || !m ||
      m->tied_count == 0 || s->plan->count == 0) {
    return WEFT_OK;
  }
  bool *taken = calloc(m->count, sizeof *taken);
  s->spare = calloc(s->plan->count, sizeof *s->spare);
  const weft_err err =
      taken && s->spare
          ? WEFT_OK
          : weft_whyf(why, WEFT_E_NOMEM, "out of memory for %zu tensors", s->plan->count);
  if (err == WEFT_OK) {
    find_spare(s, m, taken);
  }
  free(taken);
  return err;
}

static void on_write(void *arg)
{
  wefti_device_session *s = arg;
  wefti_device *device = s->device;
  wefti_store_dirty(device->store, s->epoch);
  uint32_t last = 0; /* ids of the two memories differ */
  for (size_t i = 0; i < s->room_count; i++) {
    const wefti_cell *cell = s->room[i].cell;
    const uint32_t slab = wefti_cell_extent(cell)->slab;
    if (slab != 0 && slab != last) {
      weft_memory_mark(wefti_cell_memory(cell), slab, true);
      last = slab; /* neighbours share it */
    }
  }
}

void wefti_inplace_clear(wefti_device *device)
{
  weft_memory_mark(device->memory, 0, false);
  if (device->kept) {
    weft_memory_mark(device->kept, 0, false);
  }
}

void wefti_inplace_watch(wefti_device_session *s)
{
  if (s->overwrites) {
    s->plan->on_write = on_write;
    s->plan->on_write_arg = s;
  }
}

weft_err wefti_inplace_verify(const wefti_device_session *s, weft_why *why)
{
  wefti_device *device = s->device;
  size_t bad = 0;
  if (weft_memory_device(device->memory) >= 0) {
    return WEFT_OK;
  }
  const weft_err err =
      wefti_device_rehash(device, s->staged_count > 0 ? &s->staged[0].entry.t : NULL,
                          sizeof s->staged[0], s->staged_count, &bad);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "%s while digests were taken",
                     err == WEFT_E_CANCELLED ? "cancelled" : "out of memory");
  }
  return bad == s->staged_count
             ? WEFT_OK
             : weft_whyf(why, WEFT_E_CONFLICT,
                         "tensor '%.200s' no longer holds the bytes that came",
                         s->staged[bad].entry.t.name);
}
