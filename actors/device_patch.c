/* What the patches of a plan are applied to.  Nothing that readers or the session have is
 * written: the plan has room of its own, its backend copies. */
#include "device.h"
#include "manifest.h"
#include "weft/dtype.h"

#include <stdlib.h>
#include <string.h>

static bool alike(const weft_plan_tensor *t, const weft_tensor *have)
{
  return have->bytes == t->bytes && have->ndim == t->ndim &&
         strcmp(have->dtype, weft_dtype_name(t->dtype)) == 0 &&
         (t->ndim == 0 || memcmp(have->shape, t->shape, t->ndim * sizeof *t->shape) == 0);
}

/* staged is sorted, without repeats. */
static const wefti_staged *staged_named(const wefti_device_session *s, const char *name)
{
  size_t low = 0, high = s->staged_count;
  while (low < high) {
    const size_t mid = low + (high - low) / 2;
    const int order = strcmp(wefti_session_name(s, &s->staged[mid].entry.t), name);
    if (order == 0) {
      return &s->staged[mid];
    }
    low = order < 0 ? mid + 1 : low;
    high = order < 0 ? high : mid;
  }
  return NULL;
}

/* What the session brought last under this name, or one that is tied to it: in place they
 * are the same bytes, so they are it beside the live ones, too. */
static const weft_tensor *staged_last(const wefti_device_session *s, const char *name)
{
  const wefti_manifest *m = wefti_session_manifest(s);
  const size_t at = m && m->tied_count > 0 ? wefti_manifest_find(m, name) : SIZE_MAX;
  const uint32_t group = m && at < m->count ? m->tied[at] : WEFTI_UNTIED;
  const wefti_staged *last = staged_named(s, name);
  for (size_t k = 0; group != WEFTI_UNTIED && k < m->count; k++) {
    const wefti_staged *tied =
        m->tied[k] == group ? staged_named(s, m->tensors[k].name) : NULL;
    last = tied && (!last || tied->order > last->order) ? tied : last;
  }
  return last ? &last->entry.t : NULL;
}

static weft_err base_of(const wefti_device_session *s, const wefti_set *live,
                        const weft_plan_tensor *t, const void **out, weft_why *why)
{
  const weft_tensor *have = staged_last(s, t->name);
  if (!have) {
    have = wefti_set_find(live, t->name);
  }
  if (!have) {
    return weft_whyf(why, WEFT_E_CONFLICT,
                     "tensor '%.200s' is patched, but %s: it has to come whole first",
                     t->name,
                     s->foreign ? "what this rank holds is not what the update builds on"
                                : "there is none to patch");
  }
  if (!alike(t, have)) {
    return weft_whyf(why, WEFT_E_CONFLICT,
                     "tensor '%.200s' is patched, but has another dtype or shape",
                     t->name);
  }
  *out = have->data;
  return WEFT_OK;
}

weft_err wefti_patch_base(wefti_device_session *s, weft_why *why)
{
  const weft_plan *plan = s->plan;
  wefti_session_compact(s);
  s->base = calloc(plan->count, sizeof(void *));
  if (!s->base) {
    return weft_whyf(why, WEFT_E_NOMEM, "out of memory for %zu tensors", plan->count);
  }
  s->based = s->foreign ? NULL : wefti_store_base(s->device->store);
  const wefti_set live = wefti_set_of(s->device, s->based, s->draft);
  weft_err err = WEFT_OK;
  for (size_t i = 0; i < plan->count && err == WEFT_OK; i++) {
    const weft_plan_tensor *t = &plan->tensors[i];
    if (t->patched) {
      err = base_of(s, &live, t, &s->base[i], why);
    }
  }
  s->plan->base = s->base;
  return err;
}

void wefti_patch_done(wefti_device_session *s)
{
  weft_store_unpin(s->device->store, s->based);
  s->based = NULL;
  free(s->base);
  s->base = NULL;
}
