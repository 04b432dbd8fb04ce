/* The weights that another rank lends, from its address into memory of this one. */
#include "lend.h"
#include "weft/checked.h"
#include "weft/clock.h"
#include "weft/json.h"

#include <stdlib.h>
#include <string.h>

typedef struct taking {
  wefti_device *device;
  void *state; /* a backend's that may go where the engine sends it, and nowhere else */
  weft_plan *plan;
  wefti_entry *entries; /* [made] */
  size_t made;
  uint64_t due_ns;
  bool late;
} taking;

static void on_progress(void *arg, uint64_t bytes)
{
  taking *t = arg;
  atomic_store_explicit(&t->device->received, bytes, memory_order_relaxed);
  if (!t->late && weft_clock_ns() >= t->due_ns) {
    t->late = true;
    atomic_store_explicit(&t->device->cancel, true, memory_order_relaxed);
  }
}

/* The backend reaches beyond loopback only where it was allowed to. */
static weft_err open_backend(taking *t, const weft_buf *info, weft_why *why)
{
  weft_json *root = NULL;
  weft_err err = weft_json_parse((const char *)info->data, info->len, NULL, &root, why);
  if (err != WEFT_OK) {
    return err;
  }
  const weft_json *source = weft_json_get(root, "source");
  const char *kind = weft_json_str(weft_json_get(source, "kind"));
  const char *address = weft_json_str(weft_json_get(source, "address"));
  if (kind == NULL || strcmp(kind, "tcp") != 0 || address == NULL) {
    err = weft_whyf(why, WEFT_E_PROTO, "what is lent is nowhere");
  } else {
    const weft_transfer_opts opts = { .size = sizeof opts,
                                      .tcp_allow = &address,
                                      .tcp_allow_count = 1,
                                      .no_progress_ms = LEND_QUIET_MS };
    err = weft_transfer_host()->open(&opts, &t->state, why);
  }
  weft_json_free(root);
  return err;
}

static weft_err make_cell(taking *t, const weft_plan_tensor *of, weft_why *why)
{
  weft_memory *memory = t->device->memory;
  const weft_tensor want = { .name = of->name,
                             .dtype = weft_dtype_name(of->dtype),
                             .shape = of->shape,
                             .ndim = of->ndim,
                             .bytes = of->bytes };
  weft_extent extent = { 0 };
  weft_err err = weft_memory_alloc(memory, want.bytes, &extent, why);
  if (err != WEFT_OK) {
    return err;
  }
  err = wefti_cell_create(&want, memory, &extent, &t->entries[t->made]);
  if (err != WEFT_OK) {
    weft_memory_free(memory, &extent);
    return weft_whyf(why, err, "lent tensor '%.200s': %s", of->name, weft_strerror(err));
  }
  t->made++;
  return WEFT_OK;
}

static weft_err make_room(taking *t, weft_why *why)
{
  const size_t count = t->plan->count;
  t->entries = calloc(count > 0 ? count : 1, sizeof *t->entries);
  if (t->entries == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "out of memory for %zu lent tensors", count);
  }
  /* A hint; what is really missing is said by alloc. */
  (void)weft_memory_reserve(t->device->memory, t->plan->bytes, NULL);
  weft_err err = WEFT_OK;
  for (size_t i = 0; i < count && err == WEFT_OK; i++) {
    err = wefti_device_cancelled(t->device)
              ? weft_whyf(why, WEFT_E_CANCELLED, "cancelled while room was made")
              : make_cell(t, &t->plan->tensors[i], why);
  }
  return err;
}

static weft_err receive(taking *t, weft_why *why)
{
  const size_t count = t->plan->count > 0 ? t->plan->count : 1;
  void **dst = calloc(count, sizeof *dst);
  weft_digest *digests = calloc(count, sizeof *digests);
  weft_err err = WEFT_OK;
  if (dst == NULL || digests == NULL) {
    err = weft_whyf(why, WEFT_E_NOMEM, "out of memory for %zu lent tensors", count);
  } else {
    for (size_t i = 0; i < t->made; i++) {
      dst[i] = wefti_cell_extent(t->entries[i].cell)->ptr;
    }
    err = weft_transfer_host()->receive(t->state, t->plan, dst, digests,
                                        &t->device->cancel, on_progress, t, why);
  }
  for (size_t i = 0; i < t->made && err == WEFT_OK; i++) {
    weft_digest_store(digests[i], t->entries[i].t.digest);
  }
  free(dst);
  free(digests);
  return err != WEFT_OK && t->late
             ? weft_whyf(why, WEFT_E_TIMEOUT, "the lent weights did not come in time")
             : err;
}

static weft_err take_all(taking *t, const weft_buf *info, weft_why *why)
{
  static const weft_transfer_who who = { .world_size = 1 };
  weft_err err = open_backend(t, info, why);
  if (err == WEFT_OK) {
    err = weft_transfer_host()->accept(t->state, (const char *)info->data, info->len,
                                       &who, &t->plan, why);
    t->plan = err == WEFT_OK ? t->plan : NULL;
  }
  if (err == WEFT_OK) {
    atomic_store_explicit(&t->device->expected, t->plan->bytes, memory_order_relaxed);
    err = make_room(t, why);
  }
  return err == WEFT_OK ? receive(t, why) : err;
}

weft_err wefti_lend_take(void *arg, const weft_buf *info, uint32_t timeout_ms,
                         wefti_entry **entries, size_t *count, weft_why *why)
{
  taking t = { .device = wefti_lending_device(arg),
               .due_ns = weft_clock_ns() + timeout_ms * UINT64_C(1000000) };
  const weft_err err = take_all(&t, info, why);
  if (t.plan != NULL) {
    weft_transfer_host()->abandon(t.state, t.plan);
  }
  if (t.state != NULL) {
    weft_transfer_host()->close(t.state);
  }
  atomic_store_explicit(&t.device->received, 0, memory_order_relaxed);
  atomic_store_explicit(&t.device->expected, 0, memory_order_relaxed);
  if (err == WEFT_OK) {
    *entries = t.entries;
    *count = t.made;
    return WEFT_OK;
  }
  for (size_t i = 0; i < t.made; i++) {
    wefti_cell_unref(t.entries[i].cell);
  }
  free(t.entries);
  return err;
}
