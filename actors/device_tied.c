/* What a session staged, with those tensors that share storage with it. */
#include "device.h"
#include "manifest.h"

#include <stdlib.h>
#include <string.h>

static void plain(const wefti_device_session *s, wefti_arrivals *out)
{
  for (size_t i = 0; i < s->staged_count; i++) {
    out->rows[i] = &s->staged[i].entry;
  }
  out->count = s->staged_count;
}

static bool is_staged(const wefti_device_session *s, size_t at, const char *name)
{
  return at < s->staged_count &&
         strcmp(wefti_session_name(s, &s->staged[at].entry.t), name) == 0;
}

/* leader [m->count]: for the first of each group the position in staged, plus 1, of the
 * one that came, 0 = none did. */
static weft_err choose(const wefti_device_session *s, const wefti_manifest *m,
                       size_t *leader, bool *correctable, weft_why *why)
{
  size_t at = 0;
  for (size_t k = 0; k < m->count; k++) {
    if (!is_staged(s, at, m->tensors[k].name)) {
      continue;
    }
    const uint32_t group = m->tied[k];
    const weft_tensor *came = &s->staged[at++].entry.t;
    if (group == WEFTI_UNTIED) {
      continue;
    }
    if (leader[group] == 0) {
      leader[group] = at;
      continue;
    }
    const weft_tensor *other = &s->staged[leader[group] - 1].entry.t;
    if (memcmp(other->digest, came->digest, sizeof came->digest) != 0) {
      *correctable = true; /* one of the two may be sent again */
      return weft_whyf(why, WEFT_E_CONFLICT,
                       "tensors '%.200s' and '%.200s' are tied but came with different "
                       "bytes",
                       wefti_session_name(s, other), wefti_session_name(s, came));
    }
  }
  return at == s->staged_count
             ? WEFT_OK
             : weft_whyf(why, WEFT_E_STATE, "tensor '%.200s' is not in the manifest",
                         wefti_session_name(s, &s->staged[at].entry.t));
}

static weft_err alias(const wefti_device_session *s, const char *name, size_t of,
                      wefti_entry *out)
{
  char *made;
  const char *full = wefti_session_full_name(s, name, &made);
  const weft_err err =
      full ? wefti_cell_alias(full, &s->staged[of].entry, out) : WEFT_E_NOMEM;
  free(made);
  return err;
}

/* Manifest and staged are in name order, and nothing is staged that is not in the
 * manifest. */
static weft_err with_tied(const wefti_device_session *s, const wefti_manifest *m,
                          const size_t *leader, wefti_arrivals *out)
{
  size_t at = 0;
  for (size_t k = 0; k < m->count; k++) {
    const bool staged = is_staged(s, at, m->tensors[k].name);
    const size_t from = m->tied[k] == WEFTI_UNTIED ? 0 : leader[m->tied[k]];
    at += staged;
    if (from != 0 && !(staged && from == at)) {
      const weft_err err =
          alias(s, m->tensors[k].name, from - 1, &out->made[out->made_count]);
      if (err != WEFT_OK) {
        return err;
      }
      out->rows[out->count++] = &out->made[out->made_count++];
    } else if (staged) {
      out->rows[out->count++] = &s->staged[at - 1].entry;
    }
  }
  return WEFT_OK;
}

weft_err wefti_arrivals_make(const wefti_device_session *s, wefti_arrivals *out,
                             bool *correctable, weft_why *why)
{
  const wefti_manifest *m = wefti_session_manifest(s);
  const bool ties = m && m->tied_count > 0;
  *out =
      (wefti_arrivals){ .rows = calloc(s->staged_count + (ties ? m->tied_count : 0) + 1,
                                       sizeof(wefti_entry *)) };
  weft_err err = out->rows ? WEFT_OK : WEFT_E_NOMEM;
  if (err == WEFT_OK && !ties) {
    plain(s, out);
  } else if (err == WEFT_OK) {
    size_t *leader = calloc(m->count, sizeof *leader);
    out->made = calloc(m->tied_count, sizeof *out->made);
    err = leader && out->made ? choose(s, m, leader, correctable, why) : WEFT_E_NOMEM;
    if (err == WEFT_OK) {
      err = with_tied(s, m, leader, out);
    }
    free(leader);
  }
  if (err != WEFT_OK) {
    wefti_arrivals_free(out);
    return *correctable || err == WEFT_E_STATE
               ? err
               : weft_whyf(why, err, "%zu tensors not installed: %s", s->staged_count,
                           weft_strerror(err));
  }
  return WEFT_OK;
}

void wefti_arrivals_free(wefti_arrivals *a)
{
  for (size_t i = 0; i < a->made_count; i++) {
    wefti_cell_unref(a->made[i].cell);
  }
  free(a->made);
  free(a->rows);
  *a = (wefti_arrivals){ 0 };
}
