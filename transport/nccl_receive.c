/* The broadcasts of one update.  A few are under way at a time; what has arrived is given
 * to the digests, which come behind.
 *
 * Over live tensors the first one with bytes comes by itself, into a buffer: a trainer
 * that does not come has written nothing. */
#include "nccl_priv.h"

#include <stdio.h>
#include <string.h>

enum { LEAD_MAX = 256 << 20 /* a larger first tensor comes to where it stays */ };

typedef struct receive_job {
  wefti_nccl_state *st;
  const wefti_nccl_plan *plan;
  void *const *dst;
  weft_digest *digests;
  wefti_wait *wait;
  size_t issued, done; /* chunks */
  unsigned lanes;
  bool told; /* that bytes are written over, if anybody asked */
} receive_job;

/* ---- lanes */

/* Never 0. */
static unsigned lanes_of(const wefti_nccl_plan *plan)
{
  const bool few = plan->packing.packed || plan->scratch_bytes > 0;
  return few && plan->packing.buffers > 0 ? plan->packing.buffers : WEFTI_LANES_MAX;
}

static void free_scratch(wefti_nccl_state *st)
{
  for (size_t i = 0; i < WEFTI_LANES_MAX; i++) {
    if (st->scratch[i] != NULL) {
      (void)st->gpu.cuda.Free(st->scratch[i]);
      st->scratch[i] = NULL;
    }
  }
  st->scratch_bytes = 0;
}

void wefti_lanes_free(wefti_nccl_state *st)
{
  free_scratch(st);
  for (size_t i = 0; i < WEFTI_LANES_MAX; i++) {
    if (st->arrived[i] != NULL) {
      (void)st->gpu.cuda.EventDestroy(st->arrived[i]);
      st->arrived[i] = NULL;
    }
    if (st->lanes[i] != NULL) {
      (void)st->gpu.cuda.StreamDestroy(st->lanes[i]);
      st->lanes[i] = NULL;
    }
  }
}

static weft_err make_lane(wefti_nccl_state *st, size_t i, bool buffer, weft_why *why)
{
  const wefti_cuda *c = &st->gpu.cuda;
  int code = WEFTI_CUDA_OK;
  if (st->arrived[i] == NULL) {
    code = c->EventCreateWithFlags(&st->arrived[i], WEFTI_EVENT_NO_TIMING);
  }
  if (code == WEFTI_CUDA_OK && buffer && st->lanes[i] == NULL) {
    code = c->StreamCreateWithFlags(&st->lanes[i], WEFTI_STREAM_NONBLOCKING);
  }
  if (code == WEFTI_CUDA_OK && buffer && st->scratch[i] == NULL) {
    code = c->Malloc(&st->scratch[i], st->scratch_bytes);
  }
  return wefti_cuda_check(c, code, why, "a buffer for packed tensors");
}

weft_err wefti_lanes_ready(wefti_nccl_state *st, const wefti_nccl_plan *plan,
                           weft_why *why)
{
  weft_err err = wefti_gpu_enter(&st->gpu, why);
  if (err == WEFT_OK) {
    err = wefti_gpu_digests_ready(&st->gpu, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  if (plan->scratch_bytes > st->scratch_bytes) {
    free_scratch(st);
    st->scratch_bytes = plan->scratch_bytes;
  }
  const size_t lanes = lanes_of(plan);
  for (size_t i = 0; i < lanes && i < plan->chunk_count && err == WEFT_OK; i++) {
    err = make_lane(st, i, plan->scratch_bytes > 0, why);
  }
  return err;
}

void wefti_lanes_drain(const wefti_nccl_state *st)
{
  wefti_gpu_drain(&st->gpu, st->group.stream);
  for (size_t i = 0; i < WEFTI_LANES_MAX; i++) {
    wefti_gpu_drain(&st->gpu, st->lanes[i]);
  }
  wefti_gpu_drain(&st->gpu, st->gpu.copies);
}

/* ---- one update */

static int keep_slice(const wefti_cuda *c, void *to, const weft_plan_tensor *t,
                      const char *from, wefti_stream stream)
{
  const wefti_cut cut = wefti_slice_cut(t);
  return c->Memcpy2DAsync(to, cut.width, from + cut.offset, cut.pitch, cut.width,
                          cut.rows, WEFTI_ON_DEVICE, stream);
}

/* From a packed buffer to where the tensors, or what is kept of them, stay. */
static int unpack(const receive_job *j, const wefti_chunk *chunk, const char *from,
                  wefti_stream stream)
{
  int code = WEFTI_CUDA_OK;
  for (size_t i = chunk->first; i < chunk->first + chunk->count; i++) {
    const weft_plan_tensor *t = &j->plan->pub.tensors[i];
    const wefti_cuda *c = &j->st->gpu.cuda;
    if (t->bytes > 0 && code == WEFTI_CUDA_OK) {
      code = t->full != NULL
                 ? keep_slice(c, j->dst[i], t, from, stream)
                 : c->MemcpyAsync(j->dst[i], from, t->bytes, WEFTI_ON_DEVICE, stream);
    }
    from += wefti_wire_bytes(t);
  }
  return code;
}

static void name_chunk(const receive_job *j, size_t at, char *out, size_t cap)
{
  const wefti_chunk *chunk = &j->plan->chunks[at];
  (void)snprintf(out, cap, "broadcast %zu of %zu ('%.100s'%s)", at + 1,
                 j->plan->chunk_count, j->plan->pub.tensors[chunk->first].name,
                 chunk->count > 1 ? " and more" : "");
}

static void tell(receive_job *j)
{
  if (!j->told) {
    j->told = true;
    j->plan->pub.on_write(j->plan->pub.on_write_arg);
  }
}

/* Where a broadcast arrives, and on which stream. */
static void *place_of(const receive_job *j, const wefti_chunk *chunk,
                      wefti_stream *stream)
{
  const wefti_nccl_state *st = j->st;
  const size_t lane = j->issued % j->lanes;
  *stream = st->group.stream;
  if (chunk->bytes == 0) {
    return st->group.words; /* as the trainer does: a call that moves nothing */
  }
  if (!chunk->direct) {
    *stream = st->lanes[lane];
    return st->scratch[lane];
  }
  return !j->told && st->lead != NULL ? st->lead : j->dst[chunk->first];
}

/* The first bytes are there: from now on they are written over others. */
static weft_err first_came(receive_job *j, wefti_stream stream, weft_why *why)
{
  const wefti_gpu *gpu = &j->st->gpu;
  wefti_event event = j->st->arrived[j->issued % j->lanes];
  weft_err err = wefti_cuda_check(&gpu->cuda, gpu->cuda.EventRecord(event, stream), why,
                                  "cudaEventRecord");
  if (err == WEFT_OK) {
    err = wefti_gpu_wait_event(gpu, event, j->wait, why);
  }
  if (err == WEFT_OK) {
    tell(j);
  }
  return err;
}

static weft_err issue(receive_job *j, weft_why *why)
{
  wefti_nccl_state *st = j->st;
  const wefti_chunk *chunk = &j->plan->chunks[j->issued];
  const size_t lane = j->issued % j->lanes;
  wefti_stream stream;
  void *to = place_of(j, chunk, &stream);
  const bool beside = chunk->bytes > 0 && to != j->dst[chunk->first];
  char what[192];
  name_chunk(j, j->issued, what, sizeof what);
  if (chunk->bytes > 0 && !beside) {
    tell(j);
  }
  const int code = st->group.nccl.Broadcast(to, to, chunk->bytes, WEFTI_NCCL_UINT8, 0,
                                            st->group.comm, stream);
  weft_err err = wefti_group_settle(&st->group, code, j->wait, what, why);
  if (err == WEFT_OK && beside && !j->told) {
    err = first_came(j, stream, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  int cuda = WEFTI_CUDA_OK;
  if (beside) {
    cuda = unpack(j, chunk, to, stream);
  }
  if (cuda == WEFTI_CUDA_OK) {
    cuda = st->gpu.cuda.EventRecord(st->arrived[lane], stream);
  }
  j->issued++;
  return wefti_cuda_check(&st->gpu.cuda, cuda, why, what);
}

/* Waits for the oldest broadcast and takes those behind it that are there too, so that
 * small tensors share a block on their way back. */
static weft_err finish_some(receive_job *j, weft_why *why)
{
  const wefti_cuda *c = &j->st->gpu.cuda;
  const wefti_event *arrived = j->st->arrived;
  weft_err err =
      wefti_gpu_wait_event(&j->st->gpu, arrived[j->done % j->lanes], j->wait, why);
  if (err != WEFT_OK) {
    return err;
  }
  size_t end = j->done + 1;
  while (end < j->issued && c->EventQuery(arrived[end % j->lanes]) == WEFTI_CUDA_OK) {
    end++;
  }
  const wefti_chunk *last = &j->plan->chunks[end - 1];
  const size_t first = j->plan->chunks[j->done].first;
  const size_t count = last->first + last->count - first;
  const weft_plan_tensor *t = j->plan->pub.tensors + first;
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    bytes += t[i].bytes;
  }
  err = wefti_gpu_digest_add(&j->st->gpu, t, j->dst + first, count, j->digests + first,
                             why);
  wefti_wait_step(j->wait, bytes);
  j->done = err == WEFT_OK ? end : j->done;
  return err;
}

/* Without room for it the first tensor comes to where it stays. */
static void make_lead(wefti_nccl_state *st, const wefti_nccl_plan *plan)
{
  const wefti_chunk *first = plan->chunks, *end = first + plan->chunk_count;
  while (first < end && first->bytes == 0) {
    first++;
  }
  if (first == end || !first->direct || first->bytes > LEAD_MAX) {
    return;
  }
  weft_why no_room;
  const int code = st->gpu.cuda.Malloc(&st->lead, first->bytes);
  if (wefti_cuda_check(&st->gpu.cuda, code, &no_room, "cudaMalloc") != WEFT_OK) {
    st->lead = NULL;
  }
}

void wefti_lead_free(wefti_nccl_state *st)
{
  if (st->lead != NULL) {
    (void)st->gpu.cuda.Free(st->lead);
    st->lead = NULL;
  }
}

weft_err wefti_nccl_chunks(wefti_nccl_state *st, const wefti_nccl_plan *plan,
                           void *const *dst, weft_digest *digests, wefti_wait *w,
                           weft_why *why)
{
  receive_job j = { .st = st,
                    .plan = plan,
                    .dst = dst,
                    .digests = digests,
                    .wait = w,
                    .lanes = lanes_of(plan),
                    .told = plan->pub.on_write == NULL };
  weft_why inner = { 0 };
  weft_err err = wefti_gpu_enter(&st->gpu, &inner);
  if (err == WEFT_OK && !j.told) {
    make_lead(st, plan);
  }
  w->check = wefti_group_check;
  w->check_arg = &st->group;
  wefti_wait_step(w, 0);
  while (err == WEFT_OK && j.done < plan->chunk_count) {
    (void)wefti_gpu_digest_turn(&st->gpu);
    if (j.issued < plan->chunk_count && j.issued - j.done < j.lanes) {
      err = issue(&j, &inner);
    } else {
      err = finish_some(&j, &inner);
    }
  }
  if (err == WEFT_OK) {
    return WEFT_OK;
  }
  char what[192] = "";
  if (j.done < plan->chunk_count) {
    name_chunk(&j, j.done, what, sizeof what);
  }
  return weft_whyf(why, err, "%s, %llu of %llu bytes had come: %.280s", what,
                   (unsigned long long)w->bytes, (unsigned long long)plan->pub.bytes,
                   inner.text);
}
