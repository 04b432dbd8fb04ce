/* From what a session staged and what is live to a snapshot beside it. */
#include "device.h"
#include "weft/checked.h"
#include "weft/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_MAX = 64, NAMES_TEXT = WEFT_WHY_MAX - 160 };

/* Staged and live in one list by name; staged wins. */
typedef struct merged {
  wefti_entry *entries; /* [count], borrowed cells */
  size_t count;
  uint64_t bytes;
  uint64_t missing;             /* live tensors that did not come */
  const char *names[NAMES_MAX]; /* the first of them */
} merged;

static void add(merged *m, const wefti_entry *entry)
{
  m->entries[m->count++] = *entry;
  m->bytes += entry->t.bytes;
}

static void miss(merged *m, const weft_snapshot *live, size_t at, bool share)
{
  if (m->missing < NAMES_MAX) {
    m->names[m->missing] = live->tensors[at].name;
  }
  m->missing++;
  if (share) {
    add(m, &(wefti_entry){ live->tensors[at], wefti_snapshot_cell(live, at) });
  }
}

static weft_err merge(const wefti_device_session *s, const weft_snapshot *live, merged *m)
{
  const size_t live_count = live ? live->tensor_count : 0;
  size_t most, bytes;
  if (weft_size_add(s->staged_count, live_count, &most) != WEFT_OK ||
      weft_size_mul(most > 0 ? most : 1, sizeof(wefti_entry), &bytes) != WEFT_OK) {
    return WEFT_E_OVERFLOW;
  }
  m->entries = malloc(bytes);
  if (!m->entries) {
    return WEFT_E_NOMEM;
  }
  size_t i = 0, j = 0;
  while (i < s->staged_count || j < live_count) {
    const int order = i == s->staged_count ? 1
                      : j == live_count
                          ? -1
                          : strcmp(s->staged[i].entry.t.name, live->tensors[j].name);
    if (order > 0) {
      miss(m, live, j, !s->foreign);
    } else {
      add(m, &s->staged[i].entry);
      i++;
    }
    j += order >= 0;
  }
  return WEFT_OK;
}

static void list_names(const merged *m, char *out, size_t cap)
{
  size_t len = 0, listed = 0;
  out[0] = '\0';
  while (listed < m->missing && listed < NAMES_MAX) {
    const size_t need = strlen(m->names[listed]) + 2;
    if (need >= cap - len) {
      break;
    }
    const int n =
        snprintf(out + len, cap - len, "%s%s", listed > 0 ? ", " : "", m->names[listed]);
    len += n > 0 ? (size_t)n : 0;
    listed++;
  }
  if (listed < m->missing && cap - len > 48) {
    (void)snprintf(out + len, cap - len, "%s%" PRIu64 " more", listed > 0 ? " and " : "",
                   m->missing - listed);
  }
}

static weft_err names_json(const merged *m, weft_buf **out)
{
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_array(&w, NULL);
  for (size_t i = 0; i < m->missing && i < NAMES_MAX; i++) {
    weft_jw_str(&w, NULL, m->names[i]);
  }
  weft_jw_end(&w);
  return wefti_json_buf(&w, out);
}

static weft_err check_coverage(const wefti_device_session *s, bool strict,
                               const merged *m, wefti_device_result *out, weft_why *why)
{
  char names[NAMES_TEXT];
  if (m->missing == 0 || (!strict && !s->foreign)) {
    return WEFT_OK;
  }
  list_names(m, names, sizeof names);
  if (s->foreign) {
    return weft_whyf(
        why, WEFT_E_FAILED,
        "the live set is not the engine's, so every tensor is needed; %" PRIu64
        " did not come: %s",
        m->missing, names);
  }
  out->correctable = true;
  return weft_whyf(why, WEFT_E_CONFLICT,
                   "strict coverage: %" PRIu64 " live tensors did not come: %s",
                   m->missing, names);
}

static weft_err install(wefti_device_session *s, const merged *m,
                        wefti_device_result *out, weft_why *why)
{
  uint64_t digest[2];
  const weft_snapshot *snapshot;
  wefti_device *device = s->device;
  weft_err err = wefti_entries_digest(m->entries, m->count, digest);
  if (err == WEFT_OK) {
    err = names_json(m, &out->json);
  }
  if (err == WEFT_OK) {
    err = wefti_store_install(device->store, s->epoch, m->entries, m->count, digest,
                              &snapshot);
  }
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "%zu tensors not installed: %s", m->count,
                     weft_strerror(err));
  }
  if (device->on_install) {
    device->on_install(device->on_install_arg, s->epoch, snapshot);
  }
  out->digest_hi = digest[0];
  out->digest_lo = digest[1];
  return WEFT_OK;
}

weft_err wefti_session_install(wefti_device_session *s, bool strict,
                               wefti_device_result *out, weft_why *why)
{
  merged m = { 0 };
  const weft_snapshot *live = wefti_store_base(s->device->store);
  weft_err err = merge(s, live, &m);
  if (err != WEFT_OK) {
    err = weft_whyf(why, err, "%zu tensors not installed: %s", s->staged_count,
                    weft_strerror(err));
  } else {
    err = check_coverage(s, strict, &m, out, why);
  }
  if (err == WEFT_OK) {
    err = install(s, &m, out, why);
  }
  out->tensors = m.count;
  out->bytes = m.bytes;
  out->received = s->staged_count;
  out->received_bytes = s->received_bytes;
  out->missing = m.missing;
  free(m.entries);
  weft_store_unpin(s->device->store, live);
  return err;
}
