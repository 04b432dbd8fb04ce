/* The broadcasts of patches: for each the indices, then the values, then both to the
 * host.
 */
#include "nccl_priv.h"

#include <stdio.h>

typedef struct patch_job {
  wefti_nccl_state *st;
  const wefti_nccl_plan *plan;
  wefti_wait *wait;
  size_t issued, done; /* patches */
} patch_job;

/* ---- buffers */

void wefti_sparse_free(wefti_nccl_state *st)
{
  if (st->patch_device != NULL) {
    (void)st->gpu.cuda.Free(st->patch_device);
  }
  if (st->patch_host != NULL) {
    (void)st->gpu.cuda.FreeHost(st->patch_host);
  }
  st->patch_device = NULL;
  st->patch_host = NULL;
  st->patch_bytes = 0;
}

static weft_err make_buffers(wefti_nccl_state *st, uint64_t bytes, weft_why *why)
{
  const wefti_cuda *c = &st->gpu.cuda;
  wefti_sparse_free(st);
  int code = c->Malloc(&st->patch_device, bytes);
  if (code == WEFTI_CUDA_OK) {
    void *host = NULL;
    code = c->HostAlloc(&host, bytes, 0);
    st->patch_host = host;
  }
  if (code == WEFTI_CUDA_OK) {
    st->patch_bytes = bytes;
    return WEFT_OK;
  }
  wefti_sparse_free(st);
  char what[64];
  (void)snprintf(what, sizeof what, "room for %llu bytes of patches",
                 (unsigned long long)bytes);
  return wefti_cuda_fail(c, code, why, what);
}

weft_err wefti_sparse_ready(wefti_nccl_state *st, const wefti_nccl_plan *plan,
                            weft_why *why)
{
  weft_err err = wefti_gpu_enter(&st->gpu, why);
  if (err == WEFT_OK) {
    err = wefti_gpu_stages(&st->gpu, why);
  }
  if (err == WEFT_OK && plan->patch_bytes > st->patch_bytes) {
    err = make_buffers(st, plan->patch_bytes, why);
  }
  for (size_t i = 0; i < WEFTI_LANES_MAX && i < plan->pub.count && err == WEFT_OK; i++) {
    if (st->arrived[i] == NULL) {
      err = wefti_cuda_check(
          &st->gpu.cuda,
          st->gpu.cuda.EventCreateWithFlags(&st->arrived[i], WEFTI_EVENT_NO_TIMING), why,
          "cudaEventCreateWithFlags");
    }
  }
  return err;
}

/* ---- broadcasts */

static weft_err broadcast(patch_job *j, uint64_t at, uint64_t bytes, const char *part,
                          weft_why *why)
{
  wefti_group *group = &j->st->group;
  void *to =
      bytes > 0 ? (void *)((char *)j->st->patch_device + at) : group->words; /* none */
  char what[192];
  (void)snprintf(what, sizeof what, "patch %zu of %zu ('%.100s', %s)", j->issued + 1,
                 j->plan->pub.count, j->plan->pub.tensors[j->issued].name, part);
  const int code = group->nccl.Broadcast(to, to, bytes, WEFTI_NCCL_UINT8, 0, group->comm,
                                         group->stream);
  return wefti_group_settle(group, code, j->wait, what, why);
}

static weft_err issue(patch_job *j, weft_why *why)
{
  const wefti_cuda *c = &j->st->gpu.cuda;
  const wefti_patch *p = &j->plan->patches[j->issued];
  wefti_stream stream = j->st->group.stream;
  weft_err err = broadcast(j, p->indices_at, p->count * sizeof(int32_t), "indices", why);
  if (err == WEFT_OK) {
    err = broadcast(j, p->values_at, p->count * p->width, "values", why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  int code = WEFTI_CUDA_OK;
  if (p->count > 0) {
    code = c->MemcpyAsync(j->st->patch_host + p->indices_at,
                          (char *)j->st->patch_device + p->indices_at,
                          p->end - p->indices_at, WEFTI_TO_HOST, stream);
  }
  if (code == WEFTI_CUDA_OK) {
    code = c->EventRecord(j->st->arrived[j->issued % WEFTI_LANES_MAX], stream);
  }
  j->issued++;
  return wefti_cuda_check(c, code, why, "copying patches back");
}

static weft_err finish(patch_job *j, weft_why *why)
{
  const weft_err err = wefti_gpu_wait_event(
      &j->st->gpu, j->st->arrived[j->done % WEFTI_LANES_MAX], j->wait, why);
  j->done += err == WEFT_OK;
  wefti_wait_step(j->wait, 0);
  return err;
}

static weft_err receive(patch_job *j, weft_why *why)
{
  const size_t count = j->plan->pub.count;
  weft_err err = wefti_gpu_enter(&j->st->gpu, why);
  j->wait->check = wefti_group_check;
  j->wait->check_arg = &j->st->group;
  wefti_wait_step(j->wait, 0);
  while (err == WEFT_OK && j->done < count) {
    err = j->issued < count && j->issued - j->done < WEFTI_LANES_MAX ? issue(j, why)
                                                                     : finish(j, why);
  }
  return err;
}

weft_err wefti_sparse_receive(wefti_nccl_state *st, const wefti_nccl_plan *plan,
                              void *const *dst, weft_digest *digests, wefti_wait *w,
                              weft_why *why)
{
  patch_job j = { .st = st, .plan = plan, .wait = w };
  weft_why inner = { 0 };
  const weft_err err = receive(&j, &inner);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "patch %zu of %zu ('%.100s') had not come: %.280s",
                     j.done + 1, plan->pub.count, plan->pub.tensors[j.done].name,
                     inner.text);
  }
  return wefti_sparse_apply(st, plan, dst, digests, w, why);
}
