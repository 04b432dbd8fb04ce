/* The trainer's memory: mapped here, waited for, copied, and given back. */
#include "ipc_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  COUNTERS_AT = 64, /* torch's RefcountedMapAllocator keeps its own head before them */
  COUNTERS_BYTES = COUNTERS_AT + WEFT_IPC_COUNTER_SLOTS * (int)sizeof(int64_t),
  RUNS_MAX = 1 << 16 /* copies of one tensor with gaps */
};

/* ---- mappings */

weft_err wefti_ipc_map(wefti_ipc_state *st, const weft_ipc_tensor *t, const char **out,
                       weft_why *why)
{
  wefti_mapping *m = st->mappings;
  while (m != NULL && memcmp(m->handle, t->handle, sizeof m->handle) != 0) {
    m = m->next;
  }
  if (m == NULL) {
    wefti_ipc_handle handle;
    m = calloc(1, sizeof *m);
    if (m == NULL) {
      return weft_whyf(why, WEFT_E_NOMEM, "ipc backend: no memory");
    }
    memcpy(m->handle, t->handle, sizeof m->handle);
    memcpy(handle.bytes, t->handle, sizeof handle.bytes);
    const int code = st->gpu.cuda.IpcOpenMemHandle(&m->base, handle, WEFTI_IPC_LAZY_PEER);
    if (code != WEFTI_CUDA_OK) {
      free(m);
      return wefti_cuda_fail(&st->gpu.cuda, code, why,
                             "cudaIpcOpenMemHandle (is the trainer still there, and on "
                             "this GPU?)");
    }
    m->next = st->mappings;
    st->mappings = m;
  }
  *out = (const char *)m->base + t->storage_at + t->at; /* checked by the reader */
  return WEFT_OK;
}

void wefti_ipc_unmap_all(wefti_ipc_state *st)
{
  while (st->mappings != NULL) {
    wefti_mapping *m = st->mappings;
    st->mappings = m->next;
    (void)st->gpu.cuda.IpcCloseMemHandle(m->base);
    free(m);
  }
}

/* Waited for by polling and not on the stream: a trainer that never gets there must not
 * leave a stream that never ends. */
weft_err wefti_ipc_wait(wefti_ipc_state *st, const weft_ipc_tensor *t, wefti_wait *w,
                        weft_why *why)
{
  const wefti_cuda *c = &st->gpu.cuda;
  wefti_ipc_handle handle;
  wefti_event event = NULL;
  if (!t->event_sync || !t->has_event) {
    return WEFT_OK;
  }
  if (c->IpcOpenEventHandle == NULL) {
    return weft_whyf(why, WEFT_E_UNSUPPORTED, "%s has no cudaIpcOpenEventHandle",
                     c->path);
  }
  memcpy(handle.bytes, t->event, sizeof handle.bytes);
  weft_err err = wefti_cuda_check(c, c->IpcOpenEventHandle(&event, handle), why,
                                  "cudaIpcOpenEventHandle");
  if (err == WEFT_OK) {
    err = wefti_gpu_wait_event(&st->gpu, event, w, why);
    (void)c->EventDestroy(event);
  }
  return err;
}

/* ---- copies */

/* A tensor with gaps, as runs of bytes without. */
typedef struct runs {
  uint64_t run;                   /* bytes in one piece */
  unsigned outer;                 /* dimensions around it */
  uint64_t count[WEFT_DIMS_MAX];  /* of those, outermost first */
  uint64_t stride[WEFT_DIMS_MAX]; /* bytes */
  uint64_t total;                 /* runs in all */
} runs;

static weft_err find_runs(const weft_ipc_tensor *t, runs *out, weft_why *why)
{
  const uint64_t item = weft_dtype_bits(t->dtype) / 8;
  runs r = { .run = item, .outer = t->ndim, .total = 1 };
  while (r.outer > 0 && (uint64_t)t->stride[r.outer - 1] * item == r.run) {
    r.run *= (uint64_t)t->shape[r.outer - 1]; /* no more than t->bytes */
    r.outer--;
  }
  for (unsigned i = 0; i < r.outer; i++) {
    r.count[i] = (uint64_t)t->shape[i];
    r.stride[i] = (uint64_t)t->stride[i] * item;
    r.total *= r.count[i];
  }
  if (r.total > RUNS_MAX) {
    return weft_whyf(why, WEFT_E_UNSUPPORTED,
                     "a tensor of %llu pieces: make it contiguous before it is sent",
                     (unsigned long long)r.total);
  }
  *out = r;
  return WEFT_OK;
}

weft_err wefti_ipc_copyable(const weft_ipc_tensor *t, weft_why *why)
{
  runs r;
  return t->contiguous ? WEFT_OK : find_runs(t, &r, why);
}

static uint64_t run_at(const runs *r, uint64_t number)
{
  uint64_t at = 0;
  for (unsigned i = r->outer; i-- > 0;) {
    at += number % r->count[i] * r->stride[i];
    number /= r->count[i];
  }
  return at;
}

weft_err wefti_ipc_copy(wefti_ipc_state *st, const weft_ipc_tensor *t, const char *from,
                        void *dst, weft_why *why)
{
  const wefti_cuda *c = &st->gpu.cuda;
  runs r = { .run = t->bytes, .total = 1 };
  weft_err err = t->contiguous ? WEFT_OK : find_runs(t, &r, why);
  int code = WEFTI_CUDA_OK;
  for (uint64_t i = 0; err == WEFT_OK && i < r.total && code == WEFTI_CUDA_OK; i++) {
    code = c->MemcpyAsync((char *)dst + i * r.run, from + run_at(&r, i), r.run,
                          WEFTI_ON_DEVICE, st->reads);
  }
  return err == WEFT_OK ? wefti_cuda_check(c, code, why, "copying the trainer's tensor")
                        : err;
}

/* ---- the trainer's counters */

/* Never below zero: one export that is named again and again was counted down with the
 * first, and a slot that counts again belongs to a new export. */
static void count_down(void *counters, unsigned slot)
{
  int64_t *at = (int64_t *)(void *)((char *)counters + COUNTERS_AT) + slot;
  int64_t seen = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (seen > 0 && !__atomic_compare_exchange_n(at, &seen, seen - 1, false,
                                                  __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
  }
}

static void release_one(const weft_ipc_tensor *t)
{
  struct stat st;
  const int fd = shm_open(t->counter, O_RDWR | O_CLOEXEC, 0); /* name: checked */
  if (fd < 0) {
    return; /* the trainer is gone */
  }
  if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
      st.st_size >= COUNTERS_BYTES) {
    void *map = mmap(NULL, COUNTERS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) {
      count_down(map, t->counter_slot);
      (void)munmap(map, COUNTERS_BYTES);
    }
  }
  (void)close(fd);
}

void wefti_ipc_release(wefti_ipc_plan *plan)
{
  for (size_t i = 0; i < plan->handles.count && !plan->released; i++) {
    if (plan->handles.tensors[i].counter[0] != '\0') {
      release_one(&plan->handles.tensors[i]);
    }
  }
  plan->released = true;
}
