/* init_info and update_info of the GPU backends.  The first byte chooses whose. */
#include "ipc_priv.h"
#include "nccl_priv.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
  if (!ok) {
    abort();
  }
}

/* Indices and values of each patch, in order, aligned, and inside of the buffer. */
static void check_patches(const wefti_nccl_plan *p)
{
  uint64_t end = 0;
  bool needs_base = false;
  check(p->chunk_count == 0 && p->pub.count > 0);
  for (size_t i = 0; i < p->pub.count; i++) {
    const wefti_patch *q = &p->patches[i];
    check(q->count <= q->elements && q->elements * q->width == p->pub.tensors[i].bytes);
    check(q->indices_at >= end && q->indices_at % 16 == 0 && q->values_at % 16 == 0);
    check(q->values_at >= q->indices_at + q->count * 4);
    check(q->end == q->values_at + q->count * q->width);
    needs_base = needs_base || q->count < q->elements;
    end = q->end;
  }
  check(end == p->patch_bytes && p->pub.patches == needs_base);
}

static void nccl_update(const wefti_nccl_engine *engine, const wefti_slicer *slicer,
                        const char *text, size_t len, const weft_transfer_who *who)
{
  const wefti_packing packing = { true, 64, 2 };
  wefti_nccl_plan *p = NULL;
  if (wefti_nccl_plan_make(engine, slicer, &packing, text, len, who, &p, NULL) !=
      WEFT_OK) {
    check(p == NULL);
    return;
  }
  if (p->patches != NULL) {
    check_patches(p);
    wefti_nccl_plan_free(p);
    return;
  }
  size_t tensors = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < p->chunk_count; i++) { /* every tensor in one chunk, in order */
    check(p->chunks[i].first == tensors && p->chunks[i].count > 0);
    tensors += p->chunks[i].count;
    bytes += p->chunks[i].bytes;
    check(p->chunks[i].direct || p->chunks[i].bytes <= p->scratch_bytes);
  }
  uint64_t wire = 0, kept = 0;
  for (size_t i = 0; i < p->pub.count; i++) {
    const weft_plan_tensor *t = &p->pub.tensors[i];
    wire += wefti_wire_bytes(t);
    kept += t->bytes;
    if (t->full != NULL) {
      const wefti_cut c = wefti_slice_cut(t);
      check(c.width * c.rows == t->bytes);
      check(c.rows == 0 || c.offset + (c.rows - 1) * c.pitch + c.width <= t->full_bytes);
    }
  }
  check(tensors == p->pub.count && bytes == wire && kept == p->pub.bytes);
  wefti_nccl_plan_free(p);
}

static void ipc_update(const char *text, size_t len, const weft_transfer_who *who)
{
  const wefti_ipc_state st = { .allow_pickle = true };
  wefti_ipc_plan *p = NULL;
  if (wefti_ipc_plan_make(&st, text, len, who, &p, NULL) != WEFT_OK) {
    check(p == NULL);
    return;
  }
  check(p->pub.count == 0 || p->handles.packed || p->handles.count == p->pub.count);
  p->released = true; /* no shared memory is touched from here */
  wefti_ipc_plan_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  const weft_transfer_who who = { .epoch = 1, .rank = 1, .world_size = 2 };
  if (size == 0) {
    return 0;
  }
  const char *text = (const char *)data + 1;
  weft_tp_plan *plan = NULL;
  static const char rules[] = "{\"*0\":0,\"*1\":1,\"*2\":2}";
  const wefti_slicer whole = { 0 };
  check(weft_tp_plan_parse(rules, sizeof rules - 1, &plan, NULL) == WEFT_OK);
  const wefti_slicer half = { plan, 1, 2 };
  if (data[0] % 5 == 0) {
    wefti_nccl_init init;
    if (wefti_nccl_init_read("E", text, size - 1, &who, &init, NULL) == WEFT_OK) {
      check(init.rank > 0 && init.rank < init.ranks);
      check(init.key_count > 0 && init.key_count <= WEFTI_ID_KEYS);
      for (size_t i = 0; i < init.key_count; i++) {
        const size_t n = strnlen(init.keys[i], WEFTI_ID_KEY_MAX);
        check(n > 0 && n < WEFTI_ID_KEY_MAX);
      }
      check(!init.torch || !init.has_id);
      check(init.packing.buffers > 0 && init.packing.buffers <= WEFTI_LANES_MAX);
    }
  } else if (data[0] % 5 == 1) {
    nccl_update(wefti_nccl_dense(), &whole, text, size - 1, &who);
  } else if (data[0] % 5 == 4) {
    nccl_update(wefti_nccl_sparse(), &half, text, size - 1, &who);
  } else if (data[0] % 5 == 3) {
    nccl_update(wefti_nccl_sparse(), &whole, text, size - 1, &who);
  } else {
    ipc_update(text, size - 1, &who);
  }
  weft_tp_plan_free(plan);
  return 0;
}
