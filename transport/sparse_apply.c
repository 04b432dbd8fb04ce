/* Patches applied: each patched tensor passes through pinned blocks on the host, where
 * its digest is taken anyway; blocks that changed go back, others are copied on the
 * device. */
#include "nccl_priv.h"
#include "sparse_order.h"

#include <string.h>

typedef struct block {
  uint64_t at; /* bytes into the tensor */
  size_t bytes;
} block;

typedef struct apply_job {
  wefti_nccl_state *st;
  const wefti_nccl_plan *plan;
  wefti_wait *wait;
  wefti_order order;
  /* the tensor under way */
  const weft_plan_tensor *tensor;
  const wefti_patch *patch;
  const char *base; /* NULL: every element comes */
  char *dst;
  const int32_t *indices;
  const uint8_t *values;
  size_t next; /* in order: the first element that is not applied */
} apply_job;

static weft_err tick(void *arg, weft_why *why)
{
  wefti_wait *w = arg;
  wefti_wait_step(w, 0);
  return wefti_wait_turn(w, why);
}

static block block_at(const apply_job *j, uint64_t at)
{
  const uint64_t left = j->tensor->bytes - at;
  return (block){ at, left < WEFTI_STAGE_BYTES ? (size_t)left : WEFTI_STAGE_BYTES };
}

static weft_err fetch(const apply_job *j, size_t slot, block b, weft_why *why)
{
  wefti_gpu *gpu = &j->st->gpu;
  int code = WEFTI_CUDA_OK;
  if (j->base != NULL) {
    code = gpu->cuda.MemcpyAsync(gpu->stage[slot], j->base + b.at, b.bytes, WEFTI_TO_HOST,
                                 gpu->copies);
  }
  if (code == WEFTI_CUDA_OK) { /* also: what went back from this slot has gone */
    code = gpu->cuda.EventRecord(gpu->filled[slot], gpu->copies);
  }
  return wefti_cuda_check(&gpu->cuda, code, why, "copying to the host for a patch");
}

/* Elements of the block; a block begins and ends between elements, whose widths are
 * powers of two.  true: there were some. */
static bool write_elements(apply_job *j, uint8_t *to, block b)
{
  const unsigned width = j->patch->width;
  const size_t first = j->next;
  while (j->next < j->patch->count) {
    const uint32_t i = wefti_order_at(&j->order, j->next);
    const uint64_t at = (uint64_t)(uint32_t)j->indices[i] * width;
    if (at >= b.at + b.bytes) {
      break;
    }
    memcpy(to + (at - b.at), j->values + (size_t)i * width, width);
    j->next++;
  }
  return j->next > first;
}

static weft_err send_back(const apply_job *j, size_t slot, block b, bool changed,
                          weft_why *why)
{
  const wefti_gpu *gpu = &j->st->gpu;
  const bool host = changed || j->base == NULL;
  if (!host && j->base == j->dst) {
    return WEFT_OK; /* it lies where it stays */
  }
  const void *from = host ? (const void *)gpu->stage[slot] : j->base + b.at;
  const int code =
      gpu->cuda.MemcpyAsync(j->dst + b.at, from, b.bytes,
                            host ? WEFTI_TO_DEVICE : WEFTI_ON_DEVICE, gpu->copies);
  return wefti_cuda_check(&gpu->cuda, code, why, "copying a patched tensor");
}

static weft_err blocks(apply_job *j, weft_why *why)
{
  const wefti_gpu *gpu = &j->st->gpu;
  size_t slot = 0;
  block b = block_at(j, 0);
  weft_err err = b.bytes > 0 ? fetch(j, slot, b, why) : WEFT_OK;
  while (err == WEFT_OK && b.bytes > 0) {
    const size_t other = (slot + 1) % WEFTI_STAGES;
    const block next = block_at(j, b.at + b.bytes);
    if (next.bytes > 0) {
      err = fetch(j, other, next, why); /* comes while this one is patched and hashed */
    }
    if (err == WEFT_OK) {
      err = wefti_gpu_wait_event(gpu, gpu->filled[slot], j->wait, why);
    }
    if (err == WEFT_OK) {
      const bool changed = write_elements(j, gpu->stage[slot], b);
      weft_hasher_update(gpu->hasher, gpu->stage[slot], b.bytes);
      err = send_back(j, slot, b, changed, why);
      wefti_wait_step(j->wait, b.bytes);
    }
    slot = other;
    b = next;
  }
  return err;
}

static void take_up(apply_job *j, size_t i)
{
  const wefti_nccl_plan *plan = j->plan;
  j->tensor = &plan->pub.tensors[i];
  j->patch = &plan->patches[i];
  j->next = 0;
  if (j->patch->count > 0) { /* else there may be no buffer */
    j->indices =
        (const int32_t *)(const void *)(j->st->patch_host + j->patch->indices_at);
    j->values = j->st->patch_host + j->patch->values_at;
  }
}

static weft_err order(apply_job *j, weft_why *why)
{
  return wefti_order_patch(&j->order, j->tensor->name, j->indices,
                           (size_t)j->patch->count, j->patch->elements, tick, j->wait,
                           why);
}

/* Before anything is written over, every patch is looked at: no index is wrong then. */
static weft_err look_at_all(apply_job *j, weft_why *why)
{
  const wefti_nccl_plan *plan = j->plan;
  weft_err err = WEFT_OK;
  for (size_t i = 0; i < plan->pub.count && err == WEFT_OK; i++) {
    take_up(j, i);
    err = order(j, why);
  }
  if (err == WEFT_OK) {
    plan->pub.on_write(plan->pub.on_write_arg);
  }
  return err;
}

static weft_err one_tensor(apply_job *j, weft_digest *digest, weft_why *why)
{
  weft_err err = order(j, why);
  if (err == WEFT_OK) {
    weft_hasher_reset(j->st->gpu.hasher);
    err = blocks(j, why);
  }
  if (err == WEFT_OK) {
    *digest = weft_hasher_value(j->st->gpu.hasher);
  }
  return err;
}

/* Copies come first: of tied tensors one is patched where the others are read from. */
static weft_err apply_some(apply_job *j, void *const *dst, weft_digest *digests,
                           bool copies, weft_why *why)
{
  const wefti_nccl_plan *plan = j->plan;
  weft_err err = WEFT_OK;
  for (size_t i = 0; i < plan->pub.count && err == WEFT_OK; i++) {
    take_up(j, i);
    j->base = j->tensor->patched ? plan->pub.base[i] : NULL;
    j->dst = dst[i];
    if ((j->base != NULL && j->base != j->dst) == copies) {
      err = one_tensor(j, &digests[i], why);
    }
  }
  return err;
}

/* Until all has gone back. */
static weft_err settle(apply_job *j, weft_why *why)
{
  const wefti_gpu *gpu = &j->st->gpu;
  const weft_err err =
      wefti_cuda_check(&gpu->cuda, gpu->cuda.EventRecord(gpu->filled[0], gpu->copies),
                       why, "cudaEventRecord");
  return err == WEFT_OK ? wefti_gpu_wait_event(gpu, gpu->filled[0], j->wait, why) : err;
}

weft_err wefti_sparse_apply(wefti_nccl_state *st, const wefti_nccl_plan *plan,
                            void *const *dst, weft_digest *digests, wefti_wait *w,
                            weft_why *why)
{
  apply_job j = { .st = st, .plan = plan, .wait = w };
  weft_err err = plan->pub.on_write != NULL ? look_at_all(&j, why) : WEFT_OK;
  err = err == WEFT_OK ? apply_some(&j, dst, digests, true, why) : err;
  err = err == WEFT_OK ? apply_some(&j, dst, digests, false, why) : err;
  if (err == WEFT_OK) {
    err = settle(&j, why);
  }
  wefti_order_free(&j.order);
  return err;
}
