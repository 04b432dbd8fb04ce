/* What is done with a manifest: an update is held against it, and it is written down for
 * workers that start later. */
#define _GNU_SOURCE
#include "device.h"
#include "manifest.h"
#include "weft/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UNKNOWN_TEXT = WEFT_WHY_MAX - 160 };

/* ---- check */

static weft_err refuse_unknown(const wefti_names *unknown, const char *label,
                               weft_why *why)
{
  char text[UNKNOWN_TEXT];
  wefti_names_text(unknown, text, sizeof text);
  return weft_whyf(why, WEFT_E_INVAL, "not in the %s: %s", label, text);
}

weft_err wefti_manifest_check(const wefti_manifest *m, const weft_plan *plan,
                              const uint32_t *by_name, const char *label, weft_why *why)
{
  char whose[64];
  (void)snprintf(whose, sizeof whose, "the %s's", label);
  wefti_names unknown = { 0 };
  weft_err err = WEFT_OK;
  size_t at = 0; /* nearly always what comes next */
  for (size_t i = 0; i < plan->count; i++) {
    const weft_plan_tensor *t = &plan->tensors[by_name[i]];
    if (at >= m->count || strcmp(m->tensors[at].name, t->name) != 0) {
      at = wefti_manifest_find(m, t->name);
    }
    if (at == SIZE_MAX) {
      wefti_names_add(&unknown, t->name);
      continue;
    }
    if (err == WEFT_OK) {
      weft_plan_tensor whole = *t; /* manifests tell of whole tensors */
      whole.shape = t->full ? t->full : t->shape;
      err = wefti_tensor_check(&whole, &m->tensors[at], whose, why);
    }
    at++;
  }
  return unknown.count > 0 ? refuse_unknown(&unknown, label, why) : err;
}

/* ---- save */

static void write_ties(weft_json_writer *w, const wefti_manifest *m, const uint32_t *next)
{
  weft_jw_array(w, "tied");
  for (size_t i = 0; i < m->count; i++) {
    if (m->tied[i] != (uint32_t)i) {
      continue;
    }
    weft_jw_array(w, NULL);
    for (size_t k = i; k != WEFTI_UNTIED; k = next[k]) {
      weft_jw_str(w, NULL, m->tensors[k].name);
    }
    weft_jw_end(w);
  }
  weft_jw_end(w);
}

/* next[i]: the one behind i of its group, or WEFTI_UNTIED.  The first of a group need not
 * be the first by name. */
static uint32_t *make_chains(const wefti_manifest *m)
{
  uint32_t *next = malloc((m->count + 1) * sizeof *next);
  for (size_t i = 0; next && i < m->count; i++) {
    next[i] = WEFTI_UNTIED;
  }
  for (size_t i = 0; next && i < m->count; i++) {
    const uint32_t first = m->tied[i];
    if (first != WEFTI_UNTIED && first != (uint32_t)i) {
      next[i] = next[first];
      next[first] = (uint32_t)i;
    }
  }
  return next;
}

static weft_err to_json(const wefti_manifest *m, char **out, size_t *len)
{
  uint32_t *next = make_chains(m);
  if (!next) {
    return WEFT_E_NOMEM;
  }
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_array(&w, "names");
  for (size_t i = 0; i < m->count; i++) {
    weft_jw_str(&w, NULL, m->tensors[i].name);
  }
  weft_jw_end(&w);
  weft_jw_array(&w, "dtype_names");
  for (size_t i = 0; i < m->count; i++) {
    weft_jw_str(&w, NULL, m->tensors[i].dtype);
  }
  weft_jw_end(&w);
  weft_jw_array(&w, "shapes");
  for (size_t i = 0; i < m->count; i++) {
    weft_jw_array(&w, NULL);
    for (unsigned d = 0; d < m->tensors[i].ndim; d++) {
      weft_jw_i64(&w, NULL, m->tensors[i].shape[d]);
    }
    weft_jw_end(&w);
  }
  weft_jw_end(&w);
  write_ties(&w, m, next);
  weft_jw_end(&w);
  free(next);
  const weft_err err = weft_jw_take(&w, out, len);
  weft_jw_fini(&w);
  return err;
}

static weft_err write_all(int fd, const char *text, size_t len)
{
  while (len > 0) {
    const ssize_t n = write(fd, text, len);
    if (n == 0 || (n < 0 && errno != EINTR)) {
      return WEFT_E_SYS;
    }
    if (n > 0) {
      text += n;
      len -= (size_t)n;
    }
  }
  return WEFT_OK;
}

weft_err wefti_manifest_save(const wefti_manifest *m, const char *path, weft_why *why)
{
  char *text;
  size_t len;
  weft_err err = to_json(m, &text, &len);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "%s: %s", path, weft_strerror(err));
  }
  (void)unlink(path); /* never written through a link that somebody left */
  const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  err = fd < 0 ? WEFT_E_SYS : write_all(fd, text, len);
  const int error = errno;
  if (fd >= 0) {
    (void)close(fd);
  }
  free(text);
  return err == WEFT_OK
             ? WEFT_OK
             : weft_whyf(why, err, "%s: cannot be written: errno %d", path, error);
}
