#include "cuda_table.h"
#include "weft/memory.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024, STAGE_BYTES = 4 << 20 };

/* A cudaMalloc.  In the live table by address, or in the kept one by size. */
typedef struct piece {
  struct piece *next;
  void *ptr;
  uint64_t bytes;
  uint32_t slab;
} piece;

typedef struct cuda_memory {
  weft_memory pub;
  wefti_cuda cuda;
  int device;
  uint64_t max_bytes;
  uint32_t last_slab;
  wefti_stream stream;  /* of read and write; made when first needed */
  void *stage;          /* [STAGE_BYTES] pinned; likewise */
  pthread_mutex_t lock; /* for what follows */
  piece *live[BUCKETS], *kept[BUCKETS];
  uint64_t live_count, live_bytes, kept_bytes, fresh;
} cuda_memory;

static size_t bucket_of(uint64_t key)
{
  return (size_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> 54) % BUCKETS;
}

static size_t bucket_of_ptr(const void *ptr)
{
  return bucket_of((uint64_t)(uintptr_t)ptr);
}

static void push(piece **list, piece *p)
{
  p->next = *list;
  *list = p;
}

/* A kept piece of exactly bytes, or NULL. */
static piece *take_kept(cuda_memory *m, uint64_t bytes)
{
  for (piece **at = &m->kept[bucket_of(bytes)]; *at != NULL; at = &(*at)->next) {
    piece *p = *at;
    if (p->bytes == bytes) {
      *at = p->next;
      m->kept_bytes -= bytes;
      return p;
    }
  }
  return NULL;
}

/* Gives kept pieces back until no more than keep bytes are left of them. */
static bool cancelled(const cuda_memory *m)
{
  return m->pub.cancel != NULL &&
         atomic_load_explicit(m->pub.cancel, memory_order_relaxed);
}

/* Puts pieces that were taken out back among the kept ones. */
static void keep_again(cuda_memory *m, piece *list)
{
  (void)pthread_mutex_lock(&m->lock);
  while (list != NULL) {
    piece *p = list;
    list = p->next;
    m->kept_bytes += p->bytes;
    push(&m->kept[bucket_of(p->bytes)], p);
  }
  (void)pthread_mutex_unlock(&m->lock);
}

static void release(cuda_memory *m, uint64_t keep, bool always)
{
  piece *gone = NULL;
  (void)pthread_mutex_lock(&m->lock);
  for (size_t i = 0; i < BUCKETS; i++) {
    while (m->kept_bytes > keep && m->kept[i] != NULL) {
      piece *p = m->kept[i];
      m->kept[i] = p->next;
      m->kept_bytes -= p->bytes;
      push(&gone, p);
    }
  }
  (void)pthread_mutex_unlock(&m->lock);
  while (gone != NULL && (always || !cancelled(m))) {
    piece *p = gone;
    gone = p->next;
    (void)m->cuda.Free(p->ptr); /* without the lock: it waits for the device */
    free(p);
  }
  keep_again(m, gone);
}

static weft_err fresh_piece(cuda_memory *m, uint64_t bytes, piece **out, weft_why *why)
{
  piece *p = calloc(1, sizeof *p);
  if (p == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "device memory: no host memory");
  }
  weft_err err = wefti_cuda_use(&m->cuda, m->device, why);
  int code = 0;
  if (err == WEFT_OK) {
    code = m->cuda.Malloc(&p->ptr, bytes);
    if (code == WEFTI_CUDA_NOMEM) {
      release(m, 0, false);
      code = m->cuda.Malloc(&p->ptr, bytes);
    }
    err = wefti_cuda_check(&m->cuda, code, why, "cudaMalloc");
  }
  if (err == WEFT_E_NOMEM) {
    size_t left = 0, all = 0;
    if (m->cuda.MemGetInfo != NULL) {
      (void)m->cuda.MemGetInfo(&left, &all);
    }
    err = weft_whyf(why, err,
                    "device %d has no %" PRIu64 " bytes: %zu of %zu are free, weft holds "
                    "%" PRIu64,
                    m->device, bytes, left, all, m->live_bytes);
  }
  if (err != WEFT_OK) {
    free(p);
    return err;
  }
  p->bytes = bytes;
  m->fresh += bytes;
  *out = p;
  return WEFT_OK;
}

static weft_err cuda_reserve(weft_memory *pub, uint64_t bytes, weft_why *why)
{
  (void)pub;
  (void)bytes;
  (void)why;
  return WEFT_OK; /* pieces are as large as tensors */
}

static weft_err cuda_alloc(weft_memory *pub, uint64_t bytes, weft_extent *out,
                           weft_why *why)
{
  cuda_memory *m = (cuda_memory *)pub; /* first member */
  if (bytes == 0) {
    *out = (weft_extent){ 0 };
    return WEFT_OK;
  }
  if (cancelled(m)) {
    return weft_whyf(why, WEFT_E_CANCELLED, "cancelled while memory was taken");
  }
  (void)pthread_mutex_lock(&m->lock);
  piece *p = take_kept(m, bytes);
  const uint64_t held = m->live_bytes + m->kept_bytes;
  (void)pthread_mutex_unlock(&m->lock);
  if (p == NULL) {
    if (m->max_bytes != 0 && (bytes > m->max_bytes || held > m->max_bytes - bytes)) {
      release(m, 0, false);
      if (bytes > m->max_bytes || m->live_bytes > m->max_bytes - bytes) {
        return weft_whyf(why, WEFT_E_LIMIT,
                         "%" PRIu64 " bytes more than the %" PRIu64 " held are over the "
                         "limit of %" PRIu64,
                         bytes, m->live_bytes, m->max_bytes);
      }
    }
    const weft_err err = fresh_piece(m, bytes, &p, why);
    if (err != WEFT_OK || p == NULL) { /* gcc cannot know that OK means a piece */
      return err != WEFT_OK ? err : WEFT_E_NOMEM;
    }
  }
  (void)pthread_mutex_lock(&m->lock);
  p->slab = ++m->last_slab;
  push(&m->live[bucket_of_ptr(p->ptr)], p);
  m->live_count++;
  m->live_bytes += bytes;
  (void)pthread_mutex_unlock(&m->lock);
  *out = (weft_extent){ .slab = p->slab, .bytes = bytes, .ptr = p->ptr };
  return WEFT_OK;
}

static void cuda_free(weft_memory *pub, const weft_extent *extent)
{
  cuda_memory *m = (cuda_memory *)pub;
  if (extent->bytes == 0) {
    return;
  }
  (void)pthread_mutex_lock(&m->lock);
  piece **at = &m->live[bucket_of_ptr(extent->ptr)];
  while (*at != NULL && (*at)->ptr != extent->ptr) {
    at = &(*at)->next;
  }
  piece *p = *at;
  if (p != NULL) {
    *at = p->next;
    m->live_count--;
    m->live_bytes -= p->bytes;
    m->kept_bytes += p->bytes;
    push(&m->kept[bucket_of(p->bytes)], p);
  }
  (void)pthread_mutex_unlock(&m->lock);
}

static void cuda_trim(weft_memory *pub, uint64_t keep)
{
  cuda_memory *m = (cuda_memory *)pub;
  weft_why why;
  (void)pthread_mutex_lock(&m->lock);
  const bool more = m->kept_bytes > keep;
  (void)pthread_mutex_unlock(&m->lock);
  if (more && wefti_cuda_use(&m->cuda, m->device, &why) == WEFT_OK) {
    release(m, keep, false);
  }
}

static int cuda_slab_fd(weft_memory *pub, uint32_t slab, uint64_t *bytes)
{
  (void)pub;
  (void)slab;
  *bytes = 0;
  return -1;
}

static void cuda_stats(weft_memory *pub, weft_memory_stats *out)
{
  cuda_memory *m = (cuda_memory *)pub;
  (void)pthread_mutex_lock(&m->lock);
  const uint64_t held = m->live_bytes + m->kept_bytes;
  *out = (weft_memory_stats){ .slabs = m->live_count,
                              .extents = m->live_count,
                              .mapped = held,
                              .backed = held,
                              .used = m->live_bytes,
                              .fresh = m->fresh };
  (void)pthread_mutex_unlock(&m->lock);
}

static int cuda_device(const weft_memory *pub)
{
  return ((const cuda_memory *)pub)->device;
}

static weft_err ready_stage(cuda_memory *m, weft_why *why)
{
  weft_err err = wefti_cuda_use(&m->cuda, m->device, why);
  if (err == WEFT_OK && m->stream == NULL) {
    err = wefti_cuda_check(
        &m->cuda, m->cuda.StreamCreateWithFlags(&m->stream, WEFTI_STREAM_NONBLOCKING),
        why, "cudaStreamCreateWithFlags");
  }
  if (err == WEFT_OK && m->stage == NULL) {
    err = wefti_cuda_check(&m->cuda, m->cuda.HostAlloc(&m->stage, STAGE_BYTES, 0), why,
                           "cudaHostAlloc");
  }
  return err;
}

static weft_err copy_now(cuda_memory *m, void *to, const void *from, size_t n, int kind,
                         weft_why *why)
{
  int code = m->cuda.MemcpyAsync(to, from, n, kind, m->stream);
  if (code == WEFTI_CUDA_OK) {
    code = m->cuda.StreamSynchronize(m->stream);
  }
  return wefti_cuda_check(&m->cuda, code, why, "a copy of device memory");
}

static weft_err cuda_read(weft_memory *pub, void *to, const void *extent, uint64_t n,
                          weft_why *why)
{
  cuda_memory *m = (cuda_memory *)pub;
  weft_err err = ready_stage(m, why);
  for (uint64_t at = 0; at < n && err == WEFT_OK;) {
    const size_t part = n - at < STAGE_BYTES ? (size_t)(n - at) : STAGE_BYTES;
    err = copy_now(m, m->stage, (const char *)extent + at, part, WEFTI_TO_HOST, why);
    if (err == WEFT_OK) {
      memcpy((char *)to + at, m->stage, part);
    }
    at += part;
  }
  return err;
}

static weft_err cuda_write(weft_memory *pub, void *extent, const void *from, uint64_t n,
                           weft_why *why)
{
  cuda_memory *m = (cuda_memory *)pub;
  weft_err err = ready_stage(m, why);
  for (uint64_t at = 0; at < n && err == WEFT_OK;) {
    const size_t part = n - at < STAGE_BYTES ? (size_t)(n - at) : STAGE_BYTES;
    memcpy(m->stage, (const char *)from + at, part);
    err = copy_now(m, (char *)extent + at, m->stage, part, WEFTI_TO_DEVICE, why);
    at += part;
  }
  return err;
}

static void cuda_destroy(weft_memory *pub)
{
  cuda_memory *m = (cuda_memory *)pub;
  weft_why why;
  if (wefti_cuda_use(&m->cuda, m->device, &why) == WEFT_OK) {
    release(m, 0, true);
    if (m->stream != NULL) {
      (void)m->cuda.StreamDestroy(m->stream);
    }
    if (m->stage != NULL) {
      (void)m->cuda.FreeHost(m->stage);
    }
  }
  wefti_cuda_close(&m->cuda);
  (void)pthread_mutex_destroy(&m->lock);
  free(m);
}

static const weft_memory_ops cuda_ops = {
  .name = "cuda",
  .reserve = cuda_reserve,
  .alloc = cuda_alloc,
  .free = cuda_free,
  .trim = cuda_trim,
  .slab_fd = cuda_slab_fd,
  .stats = cuda_stats,
  .destroy = cuda_destroy,
  .device = cuda_device,
  .read = cuda_read,
  .write = cuda_write,
};

weft_err weft_memory_cuda_create(const weft_memory_cuda_opts *opts, weft_memory **out,
                                 weft_why *why)
{
  if (opts->size != sizeof *opts || opts->device.size != sizeof opts->device) {
    return weft_whyf(why, WEFT_E_INVAL, "device memory: options of another version");
  }
  cuda_memory *m = calloc(1, sizeof *m);
  int count = 0;
  if (m == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "device memory: no host memory");
  }
  weft_err err = wefti_cuda_open(opts->device.cudart, &m->cuda, why);
  if (err == WEFT_OK) {
    err = wefti_cuda_count(&m->cuda, &count, why);
  }
  if (err == WEFT_OK) {
    err = wefti_cuda_use(&m->cuda, opts->device.device, why);
  }
  if (err == WEFT_OK && pthread_mutex_init(&m->lock, NULL) != 0) {
    err = weft_whyf(why, WEFT_E_NOMEM, "device memory: no lock");
  }
  if (err != WEFT_OK) {
    wefti_cuda_close(&m->cuda);
    free(m);
    return err;
  }
  m->pub.ops = &cuda_ops;
  m->device = opts->device.device;
  m->max_bytes = opts->max_bytes;
  *out = &m->pub;
  return WEFT_OK;
}
