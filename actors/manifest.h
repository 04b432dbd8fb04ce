/* manifest.h -- private to actors/.  The tensors that a worker may hold, as a file lists
 * them: names, dtypes, shapes, and which of them share storage.  Not here: what is live
 * or came (device.h). */
#ifndef WEFT_ACTORS_MANIFEST_H
#define WEFT_ACTORS_MANIFEST_H

#include "weft/err.h"
#include "weft/store.h"
#include "weft/transfer.h"

#include <stddef.h>
#include <stdint.h>

#define WEFTI_UNTIED UINT32_MAX
#define WEFTI_MANIFEST_MAX (UINT64_C(256) << 20) /* bytes of the JSON form */

typedef struct wefti_manifest {
  weft_tensor *tensors; /* [count] in byte order of their names; no data, no digests */
  /* [count] position of the first tensor of the group that shares storage with it (its
   * own where it is the first), or WEFTI_UNTIED. */
  uint32_t *tied;
  size_t count, tied_count;
  uint64_t bytes; /* of all tensors, tied ones each */
  char *names;    /* private */
  int64_t *dims;  /* private */
} wefti_manifest;

/* Reads a safetensors file (its header), or JSON:
 *   {"names":["a",…], "dtype_names":["bfloat16",…], "shapes":[[2,3],…],
 *    "tied":[["a","b"],…]}
 * "dtypes" may stand for "dtype_names"; tied is optional.  Names are not repeated; tied
 * tensors have equal dtypes and shapes, and each is in one group.  Every mistake in the
 * file is INVAL, with path and what is wrong; else NOMEM. */
weft_err wefti_manifest_load(const char *path, wefti_manifest **out, weft_why *why)
    WEFT_MUST_USE;
/* The JSON form alone; label (a path) begins the error texts. */
weft_err wefti_manifest_parse(const char *text, size_t len, const char *label,
                              wefti_manifest **out, weft_why *why) WEFT_MUST_USE;
/* Writes the JSON form to a file that only the owner can read, in place of another. */
weft_err wefti_manifest_save(const wefti_manifest *m, const char *path, weft_why *why)
    WEFT_MUST_USE;
void wefti_manifest_free(wefti_manifest *m); /* NULL is a no-op */

/* Position by name, or SIZE_MAX. */
size_t wefti_manifest_find(const wefti_manifest *m, const char *name);
/* INVAL with the names that are not in m, or with the first tensor that has another dtype
 * or shape.  by_name: [plan->count] positions in name order.  label: "manifest". */
weft_err wefti_manifest_check(const wefti_manifest *m, const weft_plan *plan,
                              const uint32_t *by_name, const char *label, weft_why *why)
    WEFT_MUST_USE;

#endif /* WEFT_ACTORS_MANIFEST_H */
