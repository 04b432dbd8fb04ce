#define _GNU_SOURCE /* asprintf */
#include "assembly.h"
#include "manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The manifest of an engine: read once, for all workers of its life. */

weft_err wefti_manifest_keep(weft_engine *e, const weft_engine_opts *o, weft_why *why)
{
  if (!o->manifest) {
    return WEFT_OK;
  }
  if (o->workers == WEFT_WORKERS_JOIN) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "manifest: workers that somebody else starts take it themselves; "
                     "give it to each of them");
  }
  wefti_manifest *m = NULL;
  weft_err err = wefti_manifest_load(o->manifest, &m, why);
  if (err != WEFT_OK) {
    return err;
  }
  e->manifest_count = m->count;
  e->manifest = strdup(o->manifest);
  if (asprintf(&e->manifest_copy, "%s/manifest.json", weft_rundir_path(e->rundir)) < 0) {
    e->manifest_copy = NULL;
  }
  if (!e->manifest || !e->manifest_copy) {
    err = weft_whyf(why, WEFT_E_NOMEM, "manifest: out of memory");
  } else {
    err = wefti_manifest_save(m, e->manifest_copy, why);
  }
  wefti_manifest_free(m);
  return err;
}

void wefti_manifest_drop(weft_engine *e)
{
  if (e->manifest_copy) {
    (void)unlink(e->manifest_copy);
  }
  free(e->manifest_copy);
  free(e->manifest);
  e->manifest_copy = e->manifest = NULL;
}
