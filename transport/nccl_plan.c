/* update_info of the nccl backend: which tensors, in which broadcasts. */
#include "nccl_priv.h"
#include "weft/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INVALID "Invalid update_info for %s: "

#define UPDATES "num_updates_list"
#define VERSION "base_version" /* not of vLLM's */

enum { INFO_DEPTH = 16, INFO_NODES = 16000000 };

const wefti_nccl_engine *wefti_nccl_dense(void)
{
  static const wefti_nccl_engine dense = { .backend = "nccl",
                                           .name = "NCCLWeightTransferEngine",
                                           .update_class =
                                               "NCCLWeightTransferUpdateInfo" };
  return &dense;
}

const wefti_nccl_engine *wefti_nccl_sparse(void)
{
  static const wefti_nccl_engine sparse = { .backend = "sparse_nccl",
                                            .name = WEFTI_SPARSE_ENGINE,
                                            .update_class =
                                                "SparseNCCLWeightTransferUpdateInfo",
                                            .sparse = true };
  return &sparse;
}

void wefti_nccl_plan_free(wefti_nccl_plan *plan)
{
  if (plan == NULL) {
    return;
  }
  wefti_lists_free(&plan->lists);
  weft_json_free(plan->json);
  free(plan->chunks);
  free(plan->slice_dims);
  free(plan->patches);
  free(plan);
}

enum { LISTS = 3 }; /* of the keys */

static weft_err known_keys(const wefti_nccl_engine *engine, const weft_json *info,
                           wefti_nccl_plan *p, weft_why *why)
{
  /* Those behind shapes are of older clients. */
  static const char *const keys[] = { "names",
                                      "dtype_names",
                                      "shapes",
                                      "packed",
                                      "packed_buffer_size_bytes",
                                      "packed_num_buffers",
                                      "is_checkpoint_format",
                                      NULL };
  for (const weft_json *v = weft_json_first(info); v != NULL; v = weft_json_next(v)) {
    bool known = false;
    for (const char *const *k = keys; *k != NULL && !known; k++) {
      known = strcmp(*k, weft_json_key(v)) == 0;
      p->older = p->older || (known && k - keys >= LISTS);
    }
    known = known || (engine->sparse && (strcmp(weft_json_key(v), UPDATES) == 0 ||
                                         strcmp(weft_json_key(v), VERSION) == 0));
    if (!known) {
      return weft_whyf(why, WEFT_E_INVAL,
                       INVALID
                       "%s.__init__() got an unexpected keyword argument '%.100s'",
                       engine->name, engine->update_class, weft_json_key(v));
    }
  }
  return WEFT_OK;
}

/* Both sides walk the same list: the tensor that takes a chunk over the buffer's size is
 * still in it, one that fills it exactly does not end it. */
static void cut_packed(wefti_nccl_plan *p)
{
  wefti_chunk *chunk = p->chunks;
  for (size_t i = 0; i < p->lists.count; i++) {
    chunk->count++;
    chunk->bytes += wefti_wire_bytes(&p->lists.tensors[i]); /* all of them fit */
    if (chunk->bytes > p->packing.buffer_bytes) {
      chunk++;
      chunk->first = i + 1;
    }
  }
  p->chunk_count = (size_t)(chunk - p->chunks) + (chunk->count > 0);
}

static weft_err cut(wefti_nccl_plan *p, weft_why *why)
{
  const size_t n = p->lists.count;
  p->chunks = calloc(n + 1, sizeof *p->chunks);
  if (p->chunks == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "no memory for %zu tensors", n);
  }
  if (p->packing.packed) {
    cut_packed(p);
  } else {
    for (size_t i = 0; i < n; i++) {
      p->chunks[i] = (wefti_chunk){ i, 1, wefti_wire_bytes(&p->lists.tensors[i]), true };
    }
    p->chunk_count = n;
  }
  for (size_t i = 0; i < p->chunk_count; i++) {
    wefti_chunk *c = &p->chunks[i];
    c->direct = c->count == 1 && p->lists.tensors[c->first].full == NULL;
    if (!c->direct && c->bytes > p->scratch_bytes) {
      p->scratch_bytes = c->bytes;
    }
  }
  return WEFT_OK;
}

static weft_err fill(const wefti_nccl_engine *engine, const wefti_slicer *slicer,
                     wefti_nccl_plan *p, const weft_transfer_who *who, weft_why *why)
{
  const weft_json *info = NULL;
  char where[WEFTI_WHERE_MAX];
  (void)snprintf(where, sizeof where, INVALID, engine->name);
  weft_err err = wefti_lists_entry(engine->name, p->json, who, &info, why);
  if (err == WEFT_OK) {
    err = known_keys(engine, info, p, why);
  }
  if (err == WEFT_OK) {
    err = wefti_packing_read(info, where, &p->packing, why);
  }
  if (err == WEFT_OK && (engine->sparse || weft_json_count(info) > 0)) {
    err = wefti_lists_read(engine->name, weft_json_get(info, "names"),
                           weft_json_get(info, "dtype_names"),
                           weft_json_get(info, "shapes"), &p->lists, why);
  }
  if (err == WEFT_OK) {
    err = wefti_slices_make(slicer, engine->name, &p->lists, &p->slice_dims, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  const weft_json *version = weft_json_get(info, VERSION);
  p->pub.base_version = weft_json_str(version);
  if (p->pub.base_version == NULL && weft_json_kind_of(version) != WEFT_JSON_NONE &&
      weft_json_kind_of(version) != WEFT_JSON_NULL) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "'" VERSION "' is not a string",
                     engine->name);
  }
  const weft_json *updates = weft_json_get(info, UPDATES);
  return weft_json_kind_of(updates) == WEFT_JSON_NONE
             ? cut(p, why)
             : wefti_sparse_read(engine->name, updates, p, why);
}

/* NOLINTNEXTLINE(readability-function-size): who is told how, the text, and the usual */
weft_err wefti_nccl_plan_make(const wefti_nccl_engine *engine, const wefti_slicer *slicer,
                              const wefti_packing *packing, const char *text, size_t len,
                              const weft_transfer_who *who, wefti_nccl_plan **out,
                              weft_why *why)
{
  const weft_json_limits limits = { .depth = INFO_DEPTH, .nodes = INFO_NODES };
  weft_why inner = { 0 };
  wefti_nccl_plan *p = calloc(1, sizeof *p);
  if (p == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s backend: no memory", engine->backend);
  }
  p->packing = *packing;
  weft_err err = weft_json_parse(text, len, &limits, &p->json, &inner);
  if (err != WEFT_OK) {
    (void)weft_whyf(why, err, INVALID "%.400s", engine->name, inner.text);
  } else {
    err = fill(engine, slicer, p, who, why);
  }
  if (err != WEFT_OK) {
    wefti_nccl_plan_free(p);
    return err;
  }
  p->pub = (weft_plan){ .tensors = p->lists.tensors,
                        .count = p->lists.count,
                        .bytes = p->lists.bytes,
                        .patches = p->needs_base,
                        .base_version = p->pub.base_version };
  *out = p;
  return WEFT_OK;
}

/* ---- the same tensors once more */

void wefti_nccl_told_free(wefti_nccl_state *st)
{
  for (size_t i = 0; i < sizeof st->told / sizeof st->told[0]; i++) {
    free(st->told[i].text);
    st->told[i] = (wefti_nccl_told){ 0 };
  }
}

static weft_err remember(const wefti_nccl_state *st, wefti_nccl_told *told,
                         const char *text, size_t len, weft_why *why)
{
  char *copy = malloc(len);
  if (copy == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s backend: no memory", st->engine->backend);
  }
  memcpy(copy, text, len);
  free(told->text);
  *told = (wefti_nccl_told){ copy, len };
  return WEFT_OK;
}

weft_err wefti_nccl_plan_or_last(wefti_nccl_state *st, const char *text, size_t len,
                                 const weft_transfer_who *who, wefti_nccl_plan **out,
                                 weft_why *why)
{
  wefti_nccl_told *told = &st->told[who->draft ? 1 : 0];
  wefti_nccl_plan *p = NULL;
  weft_err err = wefti_nccl_plan_make(st->engine, &st->slicer, &st->packing, text, len,
                                      who, &p, why);
  if (err != WEFT_OK) {
    return err;
  }
  /* Patches differ every time, torch's groups have no such habit, and older clients mean
   * nothing by nothing. */
  const bool may = !st->engine->sparse && !st->init.torch;
  if (may && p->lists.count > 0) {
    err = remember(st, told, text, len, why);
  } else if (may && !p->older && told->text != NULL) {
    wefti_nccl_plan_free(p);
    return wefti_nccl_plan_make(st->engine, &st->slicer, &st->packing, told->text,
                                told->len, who, out, why);
  }
  if (err != WEFT_OK) {
    wefti_nccl_plan_free(p);
    return err;
  }
  *out = p;
  return WEFT_OK;
}
