/* gpu_fixture.h -- the trainer's side of the nccl backend's tests: rank 0 on a thread of
 * its own, written against the doubles' tables and not against the backend. */
#ifndef WEFT_GPU_FIXTURE_H
#define WEFT_GPU_FIXTURE_H

#include "weft_test.h"

#include "nccl_table.h"
#include "weft/digest.h"
#include "weft/memory.h"
#include "weft/transfer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRAINER_TENSORS_MAX = 64, ID_TEXT = 180 };

typedef struct trainer {
  wefti_cuda cuda;
  wefti_nccl nccl;
  wefti_nccl_id id;
  char id_text[ID_TEXT]; /* base64 */
  int ranks;
  wefti_comm comm;
  wefti_stream stream;
  pthread_t thread;
  /* what to send */
  const uint64_t *sizes; /* [count] */
  size_t count;
  unsigned seed;
  const void *const *data; /* [count] of sizes; NULL = patterns of seed */
  uint64_t packed;         /* buffer size; UINT64_MAX = unpacked */
  size_t stop_after;       /* broadcasts, then abort; SIZE_MAX = all */
  bool warm_only, no_warm_up;
  /* what came of it */
  int code;
  char text[300];
  atomic_size_t sent; /* broadcasts that completed */
} trainer;

static inline uint8_t gpu_pattern(unsigned seed, size_t tensor, uint64_t byte)
{
  return (uint8_t)(seed * 101 + tensor * 37 + byte * 11 + (byte >> 8) * 3 + 1);
}

static inline void base64(const void *data, size_t n, char *out)
{
  enum { PAD = 64 }; /* letters[PAD] is the sign for no letter */
  static const char letters[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
  const uint8_t *p = data;
  while (n > 0) {
    const size_t take = n < 3 ? n : 3;
    const unsigned v = (unsigned)(p[0] << 16) | (take > 1 ? (unsigned)(p[1] << 8) : 0) |
                       (take > 2 ? p[2] : 0);
    *out++ = letters[v >> 18];
    *out++ = letters[v >> 12 & 63];
    *out++ = letters[take > 1 ? v >> 6 & 63 : PAD];
    *out++ = letters[take > 2 ? v & 63 : PAD];
    p += take;
    n -= take;
  }
  *out = '\0';
}

static inline void trainer_nap(void)
{
  const struct timespec t = { 0, 200000 };
  (void)nanosleep(&t, NULL);
}

/* 0 when all that was queued has run, else the communicator's error. */
static inline int trainer_wait(trainer *t, int code)
{
  int state = code;
  while (state == WEFTI_NCCL_IN_PROGRESS) {
    (void)t->nccl.CommGetAsyncError(t->comm, &state);
    trainer_nap();
  }
  while (state == 0 && t->cuda.StreamQuery(t->stream) == WEFTI_CUDA_NOT_READY) {
    (void)t->nccl.CommGetAsyncError(t->comm, &state);
    trainer_nap();
  }
  if (state != 0) {
    (void)snprintf(t->text, sizeof t->text, "%s", t->nccl.GetLastError(t->comm));
  }
  return state;
}

static inline int trainer_join(trainer *t)
{
  wefti_nccl_config config = { .size = sizeof config,
                               .magic = WEFTI_NCCL_MAGIC,
                               .version = WEFTI_NCCL_CONFIG_VERSION };
  void *words;
  (void)t->cuda.SetDevice(0);
  (void)t->cuda.StreamCreateWithFlags(&t->stream, WEFTI_STREAM_NONBLOCKING);
  int code = t->nccl.CommInitRankConfig(&t->comm, t->ranks, t->id, 0, &config);
  while (code == WEFTI_NCCL_IN_PROGRESS) {
    (void)t->nccl.CommGetAsyncError(t->comm, &code);
    trainer_nap();
  }
  if (code != 0) {
    (void)snprintf(t->text, sizeof t->text, "%s", t->nccl.GetLastError(t->comm));
    return code;
  }
  if (t->no_warm_up) {
    return 0;
  }
  (void)t->cuda.Malloc(&words, 8);
  (void)t->cuda.MemsetAsync(words, 0, 8, t->stream);
  code =
      trainer_wait(t, t->nccl.AllReduce(words, (char *)words + 4, 1, WEFTI_NCCL_FLOAT32,
                                        WEFTI_NCCL_SUM, t->comm, t->stream));
  if (code == 0) {
    (void)t->cuda.Free(words);
  }
  return code;
}

static inline int trainer_broadcast(trainer *t, const uint8_t *data, uint64_t n)
{
  void *dev = NULL;
  (void)t->cuda.Malloc(&dev, n > 0 ? n : 1);
  if (n > 0) {
    (void)t->cuda.MemcpyAsync(dev, data, n, WEFTI_TO_DEVICE, t->stream);
  }
  const int code = trainer_wait(
      t, t->nccl.Broadcast(dev, dev, n, WEFTI_NCCL_UINT8, 0, t->comm, t->stream));
  if (code == 0) {
    (void)t->cuda.Free(dev); /* waits for the device: not with a collective stuck there */
    atomic_fetch_add(&t->sent, 1);
  }
  return code;
}

static inline int trainer_send(trainer *t)
{
  uint64_t all = 1;
  for (size_t i = 0; i < t->count; i++) {
    all += t->sizes[i];
  }
  uint8_t *buffer = malloc(all);
  uint64_t held = 0;
  size_t sent = 0, in_chunk = 0;
  int code = 0;
  for (size_t i = 0; i < t->count && code == 0 && sent < t->stop_after; i++) {
    for (uint64_t b = 0; b < t->sizes[i]; b++) {
      buffer[held + b] =
          t->data != NULL ? ((const uint8_t *)t->data[i])[b] : gpu_pattern(t->seed, i, b);
    }
    held += t->sizes[i];
    in_chunk++;
    const bool last = i + 1 == t->count;
    if (t->packed == UINT64_MAX || held > t->packed || last) {
      code = trainer_broadcast(t, buffer, held);
      held = 0;
      in_chunk = 0;
      sent++;
    }
  }
  free(buffer);
  return code;
}

static inline void *trainer_main(void *arg)
{
  trainer *t = arg;
  if (t->comm == NULL) {
    t->code = trainer_join(t);
  }
  if (t->code == 0 && !t->warm_only) {
    t->code = trainer_send(t);
  }
  if ((t->code != 0 || t->stop_after != SIZE_MAX) && t->comm != NULL) {
    (void)t->nccl.CommAbort(t->comm);
    t->comm = NULL;
  }
  return NULL;
}

static inline void trainer_start(trainer *t)
{
  t->code = 0;
  t->text[0] = '\0';
  atomic_store(&t->sent, 0);
  assert_int_equal(pthread_create(&t->thread, NULL, trainer_main, t), 0);
}

static inline int trainer_join_thread(trainer *t)
{
  assert_int_equal(pthread_join(t->thread, NULL), 0);
  return t->code;
}

/* A new id for ranks; what to send comes later. */
static inline void trainer_open(trainer *t, int ranks)
{
  weft_why why = { 0 };
  *t = (trainer){
    .ranks = ranks, .packed = UINT64_MAX, .stop_after = SIZE_MAX, .warm_only = true
  };
  if (wefti_cuda_open(WEFT_FAKE_CUDART, &t->cuda, &why) != WEFT_OK ||
      wefti_nccl_open(WEFT_FAKE_NCCL, &t->nccl, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  assert_int_equal(t->nccl.GetUniqueId(&t->id), 0);
  base64(&t->id, sizeof t->id, t->id_text);
}

static inline void trainer_close(trainer *t)
{
  if (t->comm != NULL) {
    assert_int_equal(t->nccl.CommAbort(t->comm), 0);
  }
  if (t->stream != NULL) {
    assert_int_equal(t->cuda.StreamDestroy(t->stream), 0);
  }
  wefti_nccl_close(&t->nccl);
  wefti_cuda_close(&t->cuda);
}

/* ---- the worker's buffers */

typedef struct gpu_buffers {
  weft_memory *memory;
  weft_extent *extents;
  void **dst;
  weft_digest *digests;
  size_t count;
} gpu_buffers;

static inline gpu_buffers gpu_buffers_make(weft_memory *memory, const weft_plan *plan)
{
  gpu_buffers b = { memory, calloc(plan->count + 1, sizeof(weft_extent)),
                    calloc(plan->count + 1, sizeof(void *)),
                    calloc(plan->count + 1, sizeof(weft_digest)), plan->count };
  for (size_t i = 0; i < plan->count; i++) {
    assert_ok(weft_memory_alloc(memory, plan->tensors[i].bytes, &b.extents[i], NULL));
    b.dst[i] = b.extents[i].ptr;
  }
  return b;
}

/* Digests come behind receive. */
static inline void gpu_settle(const weft_transfer_ops *ops, void *backend)
{
  weft_why why = { 0 };
  if (ops->settle(backend, NULL, NULL, NULL, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
}

static inline void gpu_buffers_free(gpu_buffers *b)
{
  for (size_t i = 0; i < b->count; i++) {
    weft_memory_free(b->memory, &b->extents[i]);
  }
  free(b->extents);
  free(b->dst);
  free(b->digests);
}

static inline void gpu_buffers_check(const gpu_buffers *b, const weft_plan *plan,
                                     unsigned seed)
{
  for (size_t i = 0; i < plan->count; i++) {
    const uint64_t n = plan->tensors[i].bytes;
    uint8_t *got = malloc(n + 1);
    assert_non_null(got);
    assert_ok(weft_memory_read(b->memory, got, b->dst[i], n, NULL));
    for (uint64_t at = 0; at < n; at++) {
      if (got[at] != gpu_pattern(seed, i, at)) {
        fail_msg("tensor %zu byte %zu", i, (size_t)at);
      }
    }
    assert_true(weft_digest_equal(b->digests[i], weft_digest_of(got, n)));
    free(got);
  }
}

#endif /* WEFT_GPU_FIXTURE_H */
