/* A weight update as the device thread goes through it: accept, receive, again, finish.
 */
#include "device.h"
#include "weft/checked.h"
#include "weft/clock.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { COMPACT_SLACK = 1024 /* repeats that may wait until the next compaction */ };

weft_err wefti_session_open(wefti_device_session *s, const weft_device_run *how,
                            weft_why *why)
{
  if (s->epoch != 0) {
    return weft_whyf(why, WEFT_E_STATE, "epoch %" PRIu64 " is still open here", s->epoch);
  }
  const weft_err err = wefti_store_room(s->device->store, why);
  if (err == WEFT_OK) {
    s->epoch = how->epoch;
    s->foreign = how->strict != 0;
    s->draft = how->draft != 0;
    s->alone = how->alone != 0;
    s->version = weft_buf_ref(how->info);
  }
  return err;
}

/* ---- accept */

static void drop_plan(wefti_device_session *s)
{
  for (size_t i = 0; i < s->room_count; i++) {
    wefti_cell_unref(s->room[i].cell);
  }
  free(s->room);
  s->room = NULL;
  s->room_count = 0;
  free(s->spare);
  s->spare = NULL;
  wefti_patch_done(s);
  if (s->plan) {
    wefti_order_keep(s->device, s->by_name, s->plan->count);
    s->by_name = NULL;
    s->device->transfer->abandon(s->device->backend, s->plan);
    s->plan = NULL;
  }
}

/* An update may name what it builds on. */
static weft_err check_version(const wefti_device_session *s, weft_why *why)
{
  const char *base = s->plan->base_version;
  const weft_buf *is = s->version;
  const bool known = is && is->len > 0 && is->data[is->len - 1] == '\0';
  if (!base || (known && strcmp((const char *)is->data, base) == 0)) {
    return WEFT_OK;
  }
  return weft_whyf(why, WEFT_E_PRECOND,
                   "the update builds on version '%.200s', its session on '%.200s': "
                   "nothing was written",
                   base, known ? (const char *)is->data : "(not known)");
}

static weft_err check_plan(wefti_device_session *s, weft_why *why)
{
  weft_err err = wefti_order_make(s->device, s->plan, &s->by_name);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "%zu tensors: %s", s->plan->count, weft_strerror(err));
  }
  err = check_version(s, why);
  if (err == WEFT_OK) {
    err = wefti_session_check_names(s, why);
  }
  const wefti_manifest *manifest = wefti_session_manifest(s);
  if (err == WEFT_OK && manifest) {
    err = wefti_manifest_check(manifest, s->plan, s->by_name,
                               s->draft ? "draft manifest" : "manifest", why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  const weft_snapshot *live = s->foreign ? NULL : wefti_store_base(s->device->store);
  const wefti_set set = wefti_set_of(s->device, live, s->draft);
  err = wefti_plan_check(s->plan, s->by_name, &set, why);
  weft_store_unpin(s->device->store, live);
  return err == WEFT_OK && s->plan->patches ? wefti_patch_base(s, why) : err;
}

/* Of live's bytes where they may be written over, else of memory of its own.  want has
 * the name that it has in snapshots. */
static weft_err fill_cell(wefti_device_session *s, const weft_tensor *want,
                          const weft_snapshot *live, wefti_entry *out, weft_why *why)
{
  weft_memory *memory = s->device->memory;
  wefti_cell *over = wefti_inplace_cell(want, live);
  weft_extent extent = { 0 };
  weft_err err = over ? WEFT_OK : weft_memory_alloc(memory, want->bytes, &extent, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (over) {
    err = wefti_cell_over(want, over, out);
    s->overwrites = s->overwrites || want->bytes > 0;
  } else {
    err = wefti_cell_create(want, memory, &extent, out);
  }
  if (err != WEFT_OK && !over) {
    weft_memory_free(memory, &extent);
  }
  return err == WEFT_OK
             ? err
             : weft_whyf(why, err, "tensor '%.200s': %s", want->name, weft_strerror(err));
}

static weft_err make_cell(wefti_device_session *s, const weft_tensor *want,
                          const weft_snapshot *live, wefti_entry *out, weft_why *why)
{
  char *made;
  weft_tensor named = *want;
  named.name = wefti_session_full_name(s, want->name, &made);
  const weft_err err =
      named.name ? fill_cell(s, &named, live, out, why)
                 : weft_whyf(why, WEFT_E_NOMEM, "tensor '%.200s': no memory", want->name);
  free(made);
  return err;
}

static weft_err make_room_beside(wefti_device_session *s, const weft_snapshot *live,
                                 weft_why *why)
{
  const weft_plan *plan = s->plan;
  s->room = calloc(plan->count > 0 ? plan->count : 1, sizeof(wefti_entry));
  if (!s->room) {
    return weft_whyf(why, WEFT_E_NOMEM, "out of memory for %zu tensors", plan->count);
  }
  /* A hint; what is really missing is said by alloc. */
  const uint64_t needs = live ? wefti_inplace_needs(s, live) : plan->bytes;
  (void)weft_memory_reserve(s->device->memory, needs, NULL);
  for (size_t i = 0; i < plan->count; i++) {
    const weft_plan_tensor *t = &plan->tensors[i];
    const weft_tensor want = { .name = t->name,
                               .dtype = weft_dtype_name(t->dtype),
                               .shape = t->shape,
                               .ndim = t->ndim,
                               .bytes = t->bytes };
    if (wefti_device_cancelled(s->device)) {
      return weft_whyf(why, WEFT_E_CANCELLED, "cancelled while room was made");
    }
    const weft_snapshot *over = s->spare && s->spare[i] ? NULL : live;
    const weft_err err = make_cell(s, &want, over, &s->room[i], why);
    if (err != WEFT_OK) {
      return err;
    }
    s->room_count++;
  }
  return WEFT_OK;
}

/* In place also over a set that is not the base of the session: it is replaced whole. */
static weft_err make_room(wefti_device_session *s, weft_why *why)
{
  const wefti_device *device = s->device;
  const weft_snapshot *live = device->inplace ? wefti_store_base(device->store) : NULL;
  s->overwrites = false;
  weft_err err = wefti_inplace_spare(s, why);
  if (err == WEFT_OK) {
    err = make_room_beside(s, live, why);
  }
  weft_store_unpin(device->store, live);
  return err;
}

static void report(const wefti_device_session *s, wefti_device_result *out)
{
  out->tensors = s->plan->count;
  out->bytes = s->plan->bytes;
}

weft_err wefti_session_accept(wefti_device_session *s, const weft_buf *info,
                              const weft_transfer_who *who, wefti_device_result *out,
                              weft_why *why)
{
  wefti_device *device = s->device;
  if (s->epoch != who->epoch || s->plan || !info) {
    return weft_whyf(why, WEFT_E_STATE, "epoch %" PRIu64 " cannot accept an update now",
                     who->epoch);
  }
  weft_err err = device->transfer->accept(device->backend, (const char *)info->data,
                                          info->len, who, &s->plan, why);
  if (err != WEFT_OK) {
    s->plan = NULL;
    return err;
  }
  /* With a plan that is abandoned when this fails: its sender may wait already. */
  err = wefti_late_ease(s, why);
  if (err != WEFT_OK) {
    return err;
  }
  wefti_device_expect(device, s->plan->bytes);
  err = check_plan(s, why);
  if (err == WEFT_OK) {
    err = make_room(s, why);
  }
  if (err == WEFT_OK) {
    report(s, out);
  }
  return err;
}

/* ---- receive */

typedef struct watch {
  wefti_device *device;
  uint64_t due_ns; /* CLOCK_MONOTONIC, 0 = none */
  bool late;
} watch;

/* The backend knows one way to stop: the flag that an abort sets. */
static void on_progress(void *arg, uint64_t bytes)
{
  watch *w = arg;
  atomic_store_explicit(&w->device->received, bytes, memory_order_relaxed);
  if (w->due_ns != 0 && !w->late && weft_clock_ns() >= w->due_ns) {
    w->late = true;
    atomic_store_explicit(&w->device->cancel, true, memory_order_relaxed);
  }
}

static int by_name_and_order(const void *left, const void *right)
{
  const wefti_staged *a = left, *b = right;
  const int names = strcmp(a->entry.t.name, b->entry.t.name);
  return names != 0 ? names : (a->order > b->order) - (a->order < b->order);
}

void wefti_session_compact(wefti_device_session *s)
{
  if (s->staged_count == s->sorted) {
    return;
  }
  qsort(s->staged, s->staged_count, sizeof s->staged[0], by_name_and_order);
  size_t kept = 0;
  for (size_t i = 0; i < s->staged_count; i++) {
    const bool again =
        i + 1 < s->staged_count &&
        strcmp(s->staged[i].entry.t.name, s->staged[i + 1].entry.t.name) == 0;
    if (again) {
      s->late_repeats = s->late_repeats || s->staged[i].late;
      wefti_cell_unref(s->staged[i].entry.cell);
    } else {
      s->staged[kept++] = s->staged[i];
    }
  }
  s->staged_count = kept;
  s->sorted = kept;
}

static weft_err grow_staged(wefti_device_session *s, size_t more)
{
  size_t need, bytes;
  if (weft_size_add(s->staged_count, more, &need) != WEFT_OK) {
    return WEFT_E_OVERFLOW;
  }
  if (need <= s->staged_cap) {
    return WEFT_OK;
  }
  size_t cap = s->staged_cap < need / 2 ? need : s->staged_cap * 2;
  cap = cap < need ? need : cap;
  if (weft_size_mul(cap, sizeof s->staged[0], &bytes) != WEFT_OK) {
    return WEFT_E_OVERFLOW;
  }
  wefti_staged *grown = realloc(s->staged, bytes);
  if (!grown) {
    return WEFT_E_NOMEM;
  }
  s->staged = grown;
  s->staged_cap = cap;
  return WEFT_OK;
}

/* Takes late: its digests are there, or come behind. */
static void stage(wefti_device_session *s, wefti_late *late)
{
  const bool behind = s->device->transfer->settle != NULL;
  const bool alone = s->staged_count == 0;
  for (size_t n = 0; n < s->room_count; n++) {
    const uint32_t i = s->by_name[n];
    wefti_staged *to = &s->staged[s->staged_count++];
    to->entry = s->room[i];
    to->order = s->order++;
    to->late = behind ? &late->digests[i] : NULL;
    if (behind) {
      late->cells[late->cell_count++] = wefti_cell_ref(to->entry.cell);
    } else {
      weft_digest_store(late->digests[i], to->entry.t.digest);
    }
  }
  late->bytes = s->plan->bytes;
  if (behind) {
    wefti_late_keep(s, late);
  } else {
    wefti_late_free(late);
  }
  const size_t came = s->room_count;
  s->sorted = alone ? came : s->sorted; /* no two of a plan have one name */
  s->received_bytes += s->plan->bytes;
  s->room_count = 0; /* the cells are staged now */
  drop_plan(s);
  /* Large updates at once, so that no bytes wait twice; small ones now and then. */
  if (came >= s->staged_count / 8 ||
      s->staged_count - s->sorted > s->sorted + COMPACT_SLACK) {
    wefti_session_compact(s);
  }
}

static weft_err move_bytes(wefti_device_session *s, watch *w, void **dst,
                           weft_digest *digests, weft_why *why)
{
  wefti_device *device = s->device;
  wefti_inplace_watch(s);
  for (size_t i = 0; i < s->room_count; i++) {
    dst[i] = wefti_cell_extent(s->room[i].cell)->ptr;
  }
  const weft_err err = device->transfer->receive(device->backend, s->plan, dst, digests,
                                                 &device->cancel, on_progress, w, why);
  if (err != WEFT_OK && w->late) {
    return weft_whyf(
        why, WEFT_E_TIMEOUT, "%" PRIu64 " of %" PRIu64 " bytes had come in time",
        atomic_load_explicit(&device->received, memory_order_relaxed), s->plan->bytes);
  }
  return err;
}

weft_err wefti_session_receive(wefti_device_session *s, uint32_t timeout_ms,
                               wefti_device_result *out, weft_why *why)
{
  if (!s->plan || s->room_count != s->plan->count) {
    return weft_whyf(why, WEFT_E_STATE,
                     "epoch %" PRIu64 ": nothing was accepted that could be received",
                     s->epoch);
  }
  const size_t count = s->plan->count > 0 ? s->plan->count : 1;
  void **dst = calloc(count, sizeof(void *));
  wefti_late *late = wefti_late_make(count);
  weft_err err = dst && late ? grow_staged(s, s->plan->count) : WEFT_E_NOMEM;
  if (err != WEFT_OK) {
    err = weft_whyf(why, err, "%zu tensors: %s", s->plan->count, weft_strerror(err));
  } else {
    watch w = { .device = s->device,
                .due_ns = timeout_ms == 0
                              ? 0
                              : weft_clock_ns() + timeout_ms * UINT64_C(1000000) };
    err = move_bytes(s, &w, dst, late->digests, why);
  }
  if (err == WEFT_OK) {
    atomic_store_explicit(&s->device->received, s->plan->bytes, memory_order_relaxed);
    report(s, out);
    stage(s, late);
  } else {
    wefti_late_free(late);
  }
  free(dst);
  return err;
}

/* ---- the end */

void wefti_session_close(wefti_device_session *s)
{
  wefti_late_forget(s);
  drop_plan(s);
  for (size_t i = 0; i < s->staged_count; i++) {
    wefti_cell_unref(s->staged[i].entry.cell);
  }
  free(s->staged);
  weft_buf_unref(s->init);
  weft_buf_unref(s->version);
  wefti_device_expect(s->device, 0);
  *s = (wefti_device_session){ .device = s->device };
}

weft_err wefti_session_finish(wefti_device_session *s, bool strict,
                              wefti_device_result *out, weft_why *why)
{
  if (s->epoch == 0 || s->plan) {
    return weft_whyf(why, WEFT_E_STATE, "epoch %" PRIu64 " is not ready to finish",
                     s->epoch);
  }
  const weft_err err = wefti_late_settle(s, why);
  if (err != WEFT_OK) {
    return err;
  }
  wefti_session_compact(s);
  return wefti_session_install(s, strict, out, why);
}
