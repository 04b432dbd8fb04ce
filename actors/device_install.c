/* From what a session staged and what is live to a snapshot beside it. */
#include "device.h"
#include "weft/checked.h"
#include "weft/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_TEXT = WEFT_WHY_MAX - 160 };

/* What came and what is live in one list by name; what came wins. */
typedef struct merged {
  wefti_entry *entries; /* [count], borrowed cells */
  size_t count;
  uint64_t bytes;
  uint64_t others; /* live tensors of the other set */
  /* Of the session's set: */
  wefti_names missing; /* live tensors that did not come, then the absent ones */
  wefti_names absent;  /* tensors of the manifest that are neither live nor came */
} merged;

static void add(merged *m, const wefti_entry *entry)
{
  m->entries[m->count++] = *entry;
  m->bytes += entry->t.bytes;
}

/* A live tensor did not come: its bytes stay.  The other set is not this session's. */
static void keep(const wefti_device_session *s, merged *m, const weft_snapshot *live,
                 size_t at)
{
  const weft_tensor *t = &live->tensors[at];
  const bool own = wefti_session_owns(s, t);
  if (own) {
    wefti_names_add(&m->missing, wefti_session_name(s, t));
  } else {
    m->others++;
  }
  if (!s->foreign && (own || !s->alone)) {
    add(m, &(wefti_entry){ *t, wefti_snapshot_cell(live, at) });
  }
}

static int compare_own(const wefti_device_session *s, const weft_tensor *t,
                       const char *name)
{
  return wefti_session_owns(s, t) ? strcmp(wefti_session_name(s, t), name) : -1;
}

static void find_absent(const wefti_device_session *s, merged *m)
{
  const wefti_manifest *manifest = wefti_session_manifest(s);
  size_t at = 0;
  for (size_t k = 0; manifest && k < manifest->count; k++) {
    const char *name = manifest->tensors[k].name;
    while (at < m->count && compare_own(s, &m->entries[at].t, name) < 0) {
      at++;
    }
    if (at == m->count || compare_own(s, &m->entries[at].t, name) != 0) {
      wefti_names_add(&m->absent, name);
    }
  }
}

static weft_err merge(const wefti_device_session *s, const wefti_arrivals *came,
                      const weft_snapshot *live, merged *m)
{
  const size_t live_count = live ? live->tensor_count : 0;
  size_t most, bytes;
  if (weft_size_add(came->count, live_count, &most) != WEFT_OK ||
      weft_size_mul(most > 0 ? most : 1, sizeof(wefti_entry), &bytes) != WEFT_OK) {
    return WEFT_E_OVERFLOW;
  }
  m->entries = malloc(bytes);
  if (!m->entries) {
    return WEFT_E_NOMEM;
  }
  size_t i = 0, j = 0;
  while (i < came->count || j < live_count) {
    const int order = i == came->count ? 1
                      : j == live_count
                          ? -1
                          : strcmp(came->rows[i]->t.name, live->tensors[j].name);
    if (order > 0) {
      keep(s, m, live, j);
    } else {
      add(m, came->rows[i]);
      i++;
    }
    j += order >= 0;
  }
  find_absent(s, m);
  return WEFT_OK;
}

/* Whatever is live or in the manifest and did not come in this session. */
static wefti_names all_missing(const merged *m)
{
  wefti_names all = m->missing;
  for (size_t i = 0; i < m->absent.count && i < WEFTI_NAMES_MAX; i++) {
    wefti_names_add(&all, m->absent.first[i]);
  }
  all.count = m->missing.count + m->absent.count;
  return all;
}

static weft_err names_json(const merged *m, weft_buf **out)
{
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_array(&w, NULL);
  const wefti_names all = all_missing(m);
  for (size_t i = 0; i < all.count && i < WEFTI_NAMES_MAX; i++) {
    weft_jw_str(&w, NULL, all.first[i]);
  }
  weft_jw_end(&w);
  return wefti_json_buf(&w, out);
}

static weft_err check_coverage(const wefti_device_session *s, bool strict,
                               const merged *m, wefti_device_result *out, weft_why *why)
{
  char names[NAMES_TEXT];
  if (s->foreign && m->missing.count > 0) {
    wefti_names_text(&m->missing, names, sizeof names);
    return weft_whyf(
        why, WEFT_E_FAILED,
        "the live set is not the engine's, so every tensor is needed; %" PRIu64
        " did not come: %s",
        m->missing.count, names);
  }
  if (s->foreign && s->draft && m->others > 0) {
    return weft_whyf(why, WEFT_E_FAILED,
                     "the live main model is not the engine's; push that one first");
  }
  const wefti_names lacking = all_missing(m);
  if (!strict || lacking.count == 0) {
    return WEFT_OK;
  }
  wefti_names_text(&lacking, names, sizeof names);
  out->correctable = true;
  return weft_whyf(
      why, WEFT_E_CONFLICT, "strict coverage%s: %" PRIu64 " %s did not come: %s",
      s->draft ? " of the draft model" : "", lacking.count,
      wefti_session_manifest(s) ? "tensors of the manifest" : "live tensors", names);
}

static weft_err install(wefti_device_session *s, const merged *m,
                        wefti_device_result *out, weft_why *why)
{
  uint64_t digest[2];
  const weft_snapshot *snapshot;
  wefti_device *device = s->device;
  weft_err err = wefti_entries_digest(m->entries, m->count, digest);
  if (err == WEFT_OK) {
    err = wefti_session_sum(s, m->entries, m->count, digest, out);
  }
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
  wefti_arrivals came;
  weft_err err = wefti_arrivals_make(s, &came, &out->correctable, why);
  if (err != WEFT_OK) {
    return err;
  }
  const weft_snapshot *live = wefti_store_base(s->device->store);
  err = merge(s, &came, live, &m);
  if (err != WEFT_OK) {
    err = weft_whyf(why, err, "%zu tensors not installed: %s", s->staged_count,
                    weft_strerror(err));
  } else {
    err = check_coverage(s, strict, &m, out, why);
  }
  if (err == WEFT_OK && s->device->inplace) {
    err = wefti_inplace_verify(s, why);
  }
  if (err == WEFT_OK) {
    err = install(s, &m, out, why);
  }
  out->tensors = m.count;
  out->bytes = m.bytes;
  out->received = s->staged_count;
  out->received_bytes = s->received_bytes;
  out->missing = m.missing.count + m.absent.count;
  free(m.entries);
  wefti_arrivals_free(&came); /* the snapshot has its own references */
  weft_store_unpin(s->device->store, live);
  return err;
}
