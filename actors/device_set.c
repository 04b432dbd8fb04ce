/* Two sets of weights in one snapshot: the main model's, and a draft model's under a
 * prefix of its own. */
#include "device.h"
#include "weft/checked.h"
#include "weft/digest.h"

#include <stdlib.h>
#include <string.h>

#define PREFIX "draft:"
enum { SKIP = sizeof PREFIX - 1 };
#define BEHIND "draft;" /* the first name that is greater than all with the prefix */

static bool has_prefix(const char *name)
{
  return strncmp(name, PREFIX, SKIP) == 0;
}

/* Of the first tensor that is not less than name. */
static size_t lower_bound(const weft_snapshot *s, const char *name)
{
  size_t from = 0, to = s ? s->tensor_count : 0;
  while (from < to) {
    const size_t mid = from + (to - from) / 2;
    if (strcmp(s->tensors[mid].name, name) < 0) {
      from = mid + 1;
    } else {
      to = mid;
    }
  }
  return from;
}

static void step_over(wefti_set *set)
{
  if (set->at == set->hole) {
    set->at = set->behind;
  }
}

wefti_set wefti_set_of(const wefti_device *device, const weft_snapshot *snapshot,
                       bool draft)
{
  wefti_set set = { .snapshot = snapshot,
                    .end = snapshot ? snapshot->tensor_count : 0,
                    .draft = draft };
  set.hole = set.behind = set.end;
  if (device->draft) {
    const size_t from = lower_bound(snapshot, PREFIX);
    const size_t to = lower_bound(snapshot, BEHIND);
    if (draft) {
      set.at = from;
      set.end = set.hole = set.behind = to;
      set.skip = SKIP;
    } else {
      set.hole = from;
      set.behind = to;
    }
  }
  step_over(&set);
  return set;
}

size_t wefti_set_count(const wefti_set *set)
{
  return set->end - set->at - (set->at < set->hole ? set->behind - set->hole : 0);
}

const weft_tensor *wefti_set_next(wefti_set *set)
{
  if (set->at == set->end) {
    return NULL;
  }
  const weft_tensor *t = &set->snapshot->tensors[set->at++];
  step_over(set);
  return t;
}

const weft_tensor *wefti_set_find(const wefti_set *set, const char *name)
{
  const weft_snapshot *s = set->snapshot;
  size_t from = set->at, to = set->end;
  while (from < to) {
    const size_t mid = from + (to - from) / 2;
    const char *there = s->tensors[mid].name;
    /* A name of the other set is in its place among the main ones, too. */
    const int order =
        set->skip > 0 ? strcmp(there + set->skip, name) : strcmp(there, name);
    if (order == 0) {
      return &s->tensors[mid];
    }
    if (order < 0) {
      from = mid + 1;
    } else {
      to = mid;
    }
  }
  return NULL;
}

bool wefti_session_owns(const wefti_device_session *s, const weft_tensor *t)
{
  return !s->device->draft || has_prefix(t->name) == s->draft;
}

const char *wefti_session_name(const wefti_device_session *s, const weft_tensor *t)
{
  return t->name + (s->draft ? SKIP : 0);
}

const wefti_manifest *wefti_session_manifest(const wefti_device_session *s)
{
  return s->draft ? s->device->draft_manifest : s->device->manifest;
}

const char *wefti_session_full_name(const wefti_device_session *s, const char *name,
                                    char **made)
{
  *made = NULL;
  if (!s->draft) {
    return name;
  }
  size_t size;
  const size_t len = strlen(name) + 1;
  if (weft_size_add(len, SKIP, &size) == WEFT_OK) {
    *made = malloc(size);
  }
  if (*made) {
    memcpy(*made, PREFIX, SKIP);
    memcpy(*made + SKIP, name, len);
  }
  return *made;
}

weft_err wefti_session_check_names(const wefti_device_session *s, weft_why *why)
{
  wefti_names taken = { 0 };
  const bool main_set = s->device->draft && !s->draft;
  for (size_t i = 0; main_set && i < s->plan->count; i++) {
    const char *name = s->plan->tensors[s->by_name[i]].name;
    if (has_prefix(name)) {
      wefti_names_add(&taken, name);
    }
  }
  if (taken.count == 0) {
    return WEFT_OK;
  }
  char text[WEFT_WHY_MAX - 200];
  wefti_names_text(&taken, text, sizeof text);
  return weft_whyf(why, WEFT_E_INVAL,
                   "names that begin with '" PREFIX
                   "' are the draft model's; update it by "
                   "start_draft_weight_update, without the prefix: %s",
                   text);
}

weft_err wefti_session_sum(const wefti_device_session *s, const wefti_entry *entries,
                           size_t count, const uint64_t whole[2],
                           wefti_device_result *out)
{
  weft_hasher *hasher = weft_hasher_create();
  if (!hasher) {
    return WEFT_E_NOMEM;
  }
  weft_hasher_reset(hasher);
  size_t own = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    const weft_tensor *t = &entries[i].t;
    if (!wefti_session_owns(s, t)) {
      continue;
    }
    own++;
    bytes += t->bytes;
    if (s->device->draft) {
      weft_hasher_add_tensor(hasher, wefti_session_name(s, t), t->dtype, t->ndim,
                             t->shape, weft_digest_load(t->digest));
    }
  }
  const weft_digest digest = weft_hasher_value(hasher);
  weft_hasher_destroy(hasher);
  out->set_tensors = own;
  out->set_bytes = bytes;
  out->set_digest[0] = s->device->draft ? digest.hi : whole[0];
  out->set_digest[1] = s->device->draft ? digest.lo : whole[1];
  return WEFT_OK;
}
