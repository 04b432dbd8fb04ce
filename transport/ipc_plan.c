/* update_info of the ipc backend. */
#include "ipc_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define INVALID "Invalid update_info for " WEFTI_IPC_ENGINE ": "

enum { INFO_DEPTH = 16, INFO_NODES = 16000000 };

void wefti_ipc_plan_free(wefti_ipc_plan *plan)
{
  if (plan == NULL) {
    return;
  }
  wefti_ipc_release(plan);
  weft_ipc_handles_free(&plan->handles);
  wefti_lists_free(&plan->lists);
  weft_json_free(plan->json);
  free(plan);
}

static bool absent(const weft_json *v)
{
  return weft_json_kind_of(v) == WEFT_JSON_NONE || weft_json_kind_of(v) == WEFT_JSON_NULL;
}

static weft_err known_keys(const weft_json *info, weft_why *why)
{
  static const char *const keys[] = { "names",
                                      "dtype_names",
                                      "shapes",
                                      "ipc_handles",
                                      "ipc_handles_pickled",
                                      "tensor_sizes",
                                      "is_checkpoint_format",
                                      NULL };
  for (const weft_json *v = weft_json_first(info); v != NULL; v = weft_json_next(v)) {
    bool known = false;
    for (const char *const *k = keys; *k != NULL && !known; k++) {
      known = strcmp(*k, weft_json_key(v)) == 0;
    }
    if (!known) {
      return weft_whyf(why, WEFT_E_INVAL,
                       INVALID "IPCWeightTransferUpdateInfo.__init__() got an unexpected "
                               "keyword argument '%.100s'",
                       weft_json_key(v));
    }
  }
  return WEFT_OK;
}

static weft_err decode(const wefti_ipc_state *st, wefti_ipc_plan *p,
                       const weft_json *info, weft_why *why)
{
  const weft_json *pickled = weft_json_get(info, "ipc_handles_pickled");
  const bool plain = !absent(weft_json_get(info, "ipc_handles"));
  if (plain && !absent(pickled)) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "Cannot specify both `ipc_handles` and `ipc_handles_pickled`");
  }
  if (plain) {
    return weft_whyf(why, WEFT_E_UNSUPPORTED,
                     INVALID "`ipc_handles` is for calls inside one Python; over HTTP "
                             "send `ipc_handles_pickled`");
  }
  if (absent(pickled)) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "Either `ipc_handles` or `ipc_handles_pickled` must be provided");
  }
  const char *text = weft_json_str(pickled);
  if (text == NULL) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "'ipc_handles_pickled' is not a string");
  }
  if (!st->allow_pickle) {
    return weft_whyf(why, WEFT_E_DENIED,
                     "Refusing to deserialize `ipc_handles_pickled` without "
                     "VLLM_ALLOW_INSECURE_SERIALIZATION=1 (or --allow-ipc-pickle)");
  }
  return weft_ipc_handles_from_base64(text, strlen(text),
                                      st->gpu.uuid[0] != '\0' ? st->gpu.uuid : NULL,
                                      &p->handles, why);
}

static bool same_shape(const weft_plan_tensor *t, const weft_ipc_tensor *h)
{
  if (t->ndim != h->ndim) {
    return false;
  }
  for (unsigned i = 0; i < t->ndim; i++) {
    if (t->shape[i] != h->shape[i]) {
      return false;
    }
  }
  return true;
}

static weft_err check_one_by_one(const wefti_ipc_plan *p, weft_why *why)
{
  if (p->handles.count != p->lists.count) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "%zu handles for %zu names",
                     p->handles.count, p->lists.count);
  }
  for (size_t i = 0; i < p->lists.count; i++) {
    const weft_plan_tensor *t = &p->lists.tensors[i];
    const weft_ipc_tensor *h = &p->handles.tensors[i];
    if (t->dtype != h->dtype || !same_shape(t, h)) {
      return weft_whyf(why, WEFT_E_INVAL,
                       INVALID "the handle of '%.100s' is of another shape or dtype (%s)",
                       t->name, weft_dtype_name(h->dtype));
    }
    if (t->bytes > 0 && !h->has_handle) {
      return weft_whyf(why, WEFT_E_INVAL, INVALID "'%.100s' has bytes but no handle",
                       t->name);
    }
    weft_why inner;
    const weft_err err = t->bytes > 0 ? wefti_ipc_copyable(h, &inner) : WEFT_OK;
    if (err != WEFT_OK) {
      return weft_whyf(why, err, "tensor '%.100s': %.380s", t->name, inner.text);
    }
  }
  return WEFT_OK;
}

static weft_err check_packed(const wefti_ipc_plan *p, const weft_json *sizes,
                             weft_why *why)
{
  if (absent(sizes)) {
    return weft_whyf(why, WEFT_E_INVAL, "`tensor_sizes` is required when packed=True");
  }
  if (weft_json_kind_of(sizes) != WEFT_JSON_ARRAY ||
      weft_json_count(sizes) != p->lists.count) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "`tensor_sizes` should be of the same size as `names`: got %zu and "
                     "%zu",
                     weft_json_count(sizes), p->lists.count);
  }
  const weft_json *v = weft_json_first(sizes);
  for (size_t i = 0; i < p->lists.count; i++, v = weft_json_next(v)) {
    int64_t n;
    if (!weft_json_i64(v, &n) || n < 0 || (uint64_t)n != p->lists.tensors[i].bytes) {
      return weft_whyf(why, WEFT_E_INVAL,
                       INVALID "tensor_sizes of '%.100s' is not its %" PRIu64 " bytes",
                       p->lists.tensors[i].name, p->lists.tensors[i].bytes);
    }
  }
  const weft_ipc_tensor *buffer = &p->handles.tensors[0];
  if (!buffer->contiguous || buffer->bytes < p->lists.bytes ||
      (p->lists.bytes > 0 && !buffer->has_handle)) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "the packed buffer of %" PRIu64
                             " bytes does not hold the %" PRIu64
                             " of the tensors in one piece",
                     buffer->bytes, p->lists.bytes);
  }
  return WEFT_OK;
}

static weft_err fill(const wefti_ipc_state *st, wefti_ipc_plan *p,
                     const weft_transfer_who *who, weft_why *why)
{
  const weft_json *info = NULL;
  weft_err err = wefti_lists_entry(WEFTI_IPC_ENGINE, p->json, who, &info, why);
  if (err == WEFT_OK) {
    err = known_keys(info, why);
  }
  if (err == WEFT_OK) {
    err = wefti_lists_read(WEFTI_IPC_ENGINE, weft_json_get(info, "names"),
                           weft_json_get(info, "dtype_names"),
                           weft_json_get(info, "shapes"), &p->lists, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  if (p->lists.count == 0 && absent(weft_json_get(info, "ipc_handles_pickled"))) {
    return WEFT_OK; /* nothing for this worker */
  }
  err = decode(st, p, info, why);
  if (err != WEFT_OK) {
    return err;
  }
  return p->handles.packed ? check_packed(p, weft_json_get(info, "tensor_sizes"), why)
                           : check_one_by_one(p, why);
}

weft_err wefti_ipc_plan_make(const wefti_ipc_state *st, const char *text, size_t len,
                             const weft_transfer_who *who, wefti_ipc_plan **out,
                             weft_why *why)
{
  const weft_json_limits limits = { .depth = INFO_DEPTH, .nodes = INFO_NODES };
  weft_why inner = { 0 };
  wefti_ipc_plan *p = calloc(1, sizeof *p);
  if (p == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "ipc backend: no memory");
  }
  weft_err err = weft_json_parse(text, len, &limits, &p->json, &inner);
  if (err != WEFT_OK) {
    (void)weft_whyf(why, err, INVALID "%.400s", inner.text);
  } else {
    err = fill(st, p, who, why);
  }
  if (err != WEFT_OK) {
    wefti_ipc_plan_free(p);
    return err;
  }
  p->pub = (weft_plan){ .tensors = p->lists.tensors,
                        .count = p->lists.count,
                        .bytes = p->lists.bytes };
  *out = p;
  return WEFT_OK;
}
