#define _GNU_SOURCE /* asprintf */
#include "assembly.h"
#include "manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The manifests of an engine: read once, for all workers of its life. */

static weft_err keep(const weft_engine *e, const char *path, const char *file,
                     wefti_kept_manifest *out, weft_why *why)
{
  wefti_manifest *m = NULL;
  weft_err err = path ? wefti_manifest_load(path, &m, why) : WEFT_OK;
  if (!m) {
    return err;
  }
  out->count = m->count;
  out->named = strdup(path);
  if (asprintf(&out->copy, "%s/%s", weft_rundir_path(e->rundir), file) < 0) {
    out->copy = NULL;
  }
  if (!out->named || !out->copy) {
    err = weft_whyf(why, WEFT_E_NOMEM, "manifest: out of memory");
  } else {
    err = wefti_manifest_save(m, out->copy, why);
  }
  wefti_manifest_free(m);
  return err;
}

weft_err wefti_manifest_keep(weft_engine *e, const weft_engine_opts *o, weft_why *why)
{
  if ((o->manifest || o->draft_manifest) && o->workers == WEFT_WORKERS_JOIN) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "manifest: workers that somebody else starts take it themselves; "
                     "give it to each of them");
  }
  if (o->draft_manifest && !o->draft) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "draft manifest: no draft model is configured; see --draft");
  }
  const weft_err err = keep(e, o->manifest, "manifest.json", &e->manifest, why);
  return err == WEFT_OK
             ? keep(e, o->draft_manifest, "draft-manifest.json", &e->draft_manifest, why)
             : err;
}

static void drop(wefti_kept_manifest *m)
{
  if (m->copy) {
    (void)unlink(m->copy);
  }
  free(m->copy);
  free(m->named);
  *m = (wefti_kept_manifest){ 0 };
}

void wefti_manifest_drop(weft_engine *e)
{
  drop(&e->manifest);
  drop(&e->draft_manifest);
}
