/* Digests of device memory, behind what brings the bytes: the device thread queues copies
 * back into pinned blocks and looks now and then what has come; threads hash the blocks,
 * several tensors at once, and never call CUDA. */
#include "gpu.h"
#include "hashers.h"
#include "weft/checked.h"

#include <stdlib.h>

_Static_assert((int)WEFTI_STAGES == (int)WEFTI_HASHER_BLOCKS,
               "a block is filled or hashed");

/* Tensors that were added together. */
typedef struct batch {
  struct batch *next;
  size_t count;
  wefti_hash_item items[]; /* [count] */
} batch;

/* What one thread is served with.  Blocks are counted: first copied, then given to it,
 * then done. */
typedef struct lane {
  uint8_t *block[WEFTI_STAGES];
  wefti_event filled[WEFTI_STAGES];
  wefti_hash_block what[WEFTI_STAGES];
  uint64_t copied, given, done;
  /* The tensors under way: one, or some that fit into a block together. */
  const wefti_hash_item *items;
  size_t count;
  uint64_t at; /* bytes of the first */
} lane;

struct wefti_digests {
  wefti_hashers *hashers;
  unsigned lanes;
  lane lane[WEFTI_HASHERS_MAX];
  batch *first, **last; /* until all is done */
  batch *next;          /* of which the tensors from */
  size_t next_item;     /* on are nobody's yet */
  uint64_t hashed;      /* bytes since the last settle */
  weft_err err;         /* of a call that nobody waited for */
  weft_why why;
};

/* ---- buffers */

static weft_err make_lane(wefti_gpu *gpu, lane *l, weft_why *why)
{
  const wefti_cuda *c = &gpu->cuda;
  int code = WEFTI_CUDA_OK;
  for (size_t i = 0; i < WEFTI_STAGES && code == WEFTI_CUDA_OK; i++) {
    void *at = NULL;
    code = c->HostAlloc(&at, WEFTI_STAGE_BYTES, 0);
    if (code == WEFTI_CUDA_OK) {
      l->block[i] = at;
      code = c->EventCreateWithFlags(&l->filled[i], WEFTI_EVENT_NO_TIMING);
    }
  }
  return wefti_cuda_check(c, code, why, "pinned memory for digests");
}

static void free_lane(const wefti_gpu *gpu, const lane *l)
{
  for (size_t i = 0; i < WEFTI_STAGES; i++) {
    if (l->filled[i] != NULL) {
      (void)gpu->cuda.EventDestroy(l->filled[i]);
    }
    if (l->block[i] != NULL) {
      (void)gpu->cuda.FreeHost(l->block[i]);
    }
  }
}

void wefti_gpu_digests_free(wefti_gpu *gpu)
{
  wefti_digests *d = gpu->digests;
  if (d == NULL) {
    return;
  }
  wefti_gpu_digest_forget(gpu);
  wefti_hashers_destroy(d->hashers);
  for (unsigned i = 0; i < d->lanes; i++) {
    free_lane(gpu, &d->lane[i]);
  }
  free(d);
  gpu->digests = NULL;
}

weft_err wefti_gpu_digests_ready(wefti_gpu *gpu, weft_why *why)
{
  if (gpu->digests != NULL) {
    return WEFT_OK;
  }
  wefti_digests *d = calloc(1, sizeof *d);
  weft_err err =
      d != NULL ? wefti_hashers_create(gpu->threads, &d->hashers) : WEFT_E_NOMEM;
  if (err != WEFT_OK) {
    free(d);
    return weft_whyf(why, err, "digests: no memory or no thread");
  }
  gpu->digests = d;
  d->last = &d->first;
  d->lanes = wefti_hashers_count(d->hashers);
  for (unsigned i = 0; i < d->lanes && err == WEFT_OK; i++) {
    err = make_lane(gpu, &d->lane[i], why);
  }
  if (err != WEFT_OK) {
    wefti_gpu_digests_free(gpu);
  }
  return err;
}

/* ---- what there is to do */

/* NOLINTNEXTLINE(readability-function-size): two arrays in, one out, and the usual */
weft_err wefti_gpu_digest_add(wefti_gpu *gpu, const weft_plan_tensor *tensors,
                              void *const *from, size_t count, weft_digest *out,
                              weft_why *why)
{
  wefti_digests *d = gpu->digests;
  size_t bytes = 0;
  batch *b = NULL;
  if (weft_size_mul(count, sizeof b->items[0], &bytes) == WEFT_OK &&
      weft_size_add(bytes, sizeof *b, &bytes) == WEFT_OK) {
    b = malloc(bytes);
  }
  if (b == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "digests of %zu tensors: no memory", count);
  }
  b->next = NULL;
  b->count = 0;
  for (size_t i = 0; i < count; i++) {
    if (tensors[i].bytes > 0) {
      b->items[b->count++] = (wefti_hash_item){ from[i], tensors[i].bytes, &out[i] };
    } else {
      out[i] = weft_digest_of(NULL, 0);
    }
  }
  *d->last = b;
  d->last = &b->next;
  if (d->next == NULL) {
    d->next = b;
    d->next_item = 0;
  }
  return WEFT_OK;
}

/* The next tensors that are nobody's are l's. */
static bool take(wefti_digests *d, lane *l)
{
  while (d->next != NULL && d->next_item == d->next->count) {
    d->next = d->next->next;
    d->next_item = 0;
  }
  if (d->next == NULL) {
    return false;
  }
  const batch *b = d->next;
  const size_t first = d->next_item;
  uint64_t bytes = b->items[first].bytes;
  size_t end = first + 1;
  while (end < b->count && bytes < WEFTI_STAGE_BYTES &&
         b->items[end].bytes <= WEFTI_STAGE_BYTES - bytes) {
    bytes += b->items[end++].bytes;
  }
  l->items = &b->items[first];
  l->count = end - first;
  l->at = 0;
  d->next_item = end;
  return true;
}

/* Queues one block of l's tensors. */
static int copy_block(const wefti_gpu *gpu, lane *l)
{
  const size_t slot = l->copied % WEFTI_STAGES;
  wefti_hash_block *b = &l->what[slot];
  int code = WEFTI_CUDA_OK;
  *b = (wefti_hash_block){ .data = l->block[slot], .items = l->items, .at = l->at };
  while (l->count > 0 && b->used < WEFTI_STAGE_BYTES && code == WEFTI_CUDA_OK) {
    const uint64_t left = l->items->bytes - l->at;
    const size_t room = WEFTI_STAGE_BYTES - b->used;
    const size_t part = left < room ? (size_t)left : room;
    code = gpu->cuda.MemcpyAsync(l->block[slot] + b->used,
                                 (const char *)l->items->from + l->at, part,
                                 WEFTI_TO_HOST, gpu->copies);
    b->used += part;
    l->at += part;
    if (l->at == l->items->bytes) {
      l->items++;
      l->count--;
      l->at = 0;
    }
  }
  l->copied++;
  return code == WEFTI_CUDA_OK ? gpu->cuda.EventRecord(l->filled[slot], gpu->copies)
                               : code;
}

/* What has come back is given to the thread. */
static int give_blocks(const wefti_gpu *gpu, unsigned i, bool *moved)
{
  lane *l = &gpu->digests->lane[i];
  while (l->given < l->copied) {
    const int code = gpu->cuda.EventQuery(l->filled[l->given % WEFTI_STAGES]);
    if (code != WEFTI_CUDA_OK) {
      return code == WEFTI_CUDA_NOT_READY ? WEFTI_CUDA_OK : code;
    }
    wefti_hashers_give(gpu->digests->hashers, i, &l->what[l->given % WEFTI_STAGES]);
    l->given++;
    *moved = true;
  }
  return WEFTI_CUDA_OK;
}

static bool take_back(wefti_digests *d, unsigned i)
{
  lane *l = &d->lane[i];
  const uint64_t done = l->done < l->given ? wefti_hashers_done(d->hashers, i) : l->done;
  const bool some = l->done < done;
  for (; l->done < done; l->done++) {
    d->hashed += l->what[l->done % WEFTI_STAGES].used;
  }
  return some;
}

static int serve(const wefti_gpu *gpu, unsigned i, bool *moved)
{
  wefti_digests *d = gpu->digests;
  lane *l = &d->lane[i];
  int code = give_blocks(gpu, i, moved);
  *moved = take_back(d, i) || *moved;
  while (code == WEFTI_CUDA_OK && l->copied - l->done < WEFTI_STAGES &&
         (l->count > 0 || take(d, l))) {
    code = copy_block(gpu, l);
    *moved = true;
  }
  return code;
}

static void drop_batches(wefti_digests *d)
{
  while (d->first != NULL) {
    batch *b = d->first;
    d->first = b->next;
    free(b);
  }
  d->last = &d->first;
  d->next = NULL;
  d->next_item = 0;
}

bool wefti_gpu_digest_more(const wefti_gpu *gpu)
{
  return gpu->digests != NULL && gpu->digests->first != NULL &&
         gpu->digests->err == WEFT_OK;
}

bool wefti_gpu_digest_turn(wefti_gpu *gpu)
{
  wefti_digests *d = gpu->digests;
  bool moved = false, busy = false;
  if (!wefti_gpu_digest_more(gpu)) {
    return false;
  }
  for (unsigned i = 0; i < d->lanes; i++) {
    const int code = serve(gpu, i, &moved);
    if (code != WEFTI_CUDA_OK) {
      d->err = wefti_cuda_fail(&gpu->cuda, code, &d->why, "copying back for the digest");
      return false;
    }
    busy = busy || d->lane[i].count > 0 || d->lane[i].done < d->lane[i].copied;
  }
  if (!busy) { /* then no lane has found anything to take */
    drop_batches(d);
  }
  return moved;
}

/* ---- and its end */

weft_err wefti_gpu_digest_settle(wefti_gpu *gpu, wefti_wait *w, weft_why *why)
{
  wefti_digests *d = gpu->digests;
  wefti_wait_step(w, 0);
  while (wefti_gpu_digest_more(gpu)) {
    if (wefti_gpu_digest_turn(gpu)) {
      wefti_wait_step(w, d->hashed);
      d->hashed = 0;
    }
    const weft_err err = wefti_gpu_digest_more(gpu) ? wefti_wait_turn(w, why) : WEFT_OK;
    if (err != WEFT_OK) {
      return err;
    }
  }
  if (d != NULL && d->err != WEFT_OK) {
    return weft_whyf(why, d->err, "%s", d->why.text);
  }
  return WEFT_OK;
}

void wefti_gpu_digest_forget(wefti_gpu *gpu)
{
  wefti_digests *d = gpu->digests;
  if (d == NULL || d->first == NULL) {
    return;
  }
  wefti_gpu_drain(gpu, gpu->copies);
  for (unsigned i = 0; i < d->lanes; i++) {
    lane *l = &d->lane[i];
    while (wefti_hashers_done(d->hashers, i) < l->given) {
      wefti_gpu_nap(); /* a block's worth at most */
    }
    /* The thread goes on with the block behind the last that it was given. */
    l->copied = l->done = l->given;
    l->count = 0;
  }
  drop_batches(d);
  d->hashed = 0;
  d->err = WEFT_OK;
}

/* NOLINTNEXTLINE(readability-function-size): two arrays in, one out, and the usual */
weft_err wefti_gpu_digest(wefti_gpu *gpu, const weft_plan_tensor *tensors,
                          void *const *from, size_t count, wefti_wait *w,
                          weft_digest *out, weft_why *why)
{
  weft_err err = wefti_gpu_digests_ready(gpu, why);
  if (err == WEFT_OK) {
    err = wefti_gpu_digest_add(gpu, tensors, from, count, out, why);
  }
  if (err == WEFT_OK) {
    err = wefti_gpu_digest_settle(gpu, w, why);
  }
  if (err != WEFT_OK) {
    wefti_gpu_digest_forget(gpu);
  }
  return err;
}

/* ---- as a backend's operations */

bool wefti_gpu_advance(wefti_gpu *gpu)
{
  (void)wefti_gpu_digest_turn(gpu);
  return wefti_gpu_digest_more(gpu);
}

weft_err wefti_gpu_settle(wefti_gpu *gpu, const atomic_bool *cancel,
                          weft_progress_fn *progress, void *arg, weft_why *why)
{
  wefti_wait w = { .cancel = cancel,
                   .progress = progress,
                   .progress_arg = arg,
                   .limit_ms = gpu->no_progress_ms };
  weft_why inner = { 0 };
  const weft_err err = wefti_gpu_digest_settle(gpu, &w, &inner);
  if (err != WEFT_OK) {
    wefti_gpu_digest_forget(gpu);
    return weft_whyf(why, err, "digests of what came: %.400s", inner.text);
  }
  return WEFT_OK;
}
