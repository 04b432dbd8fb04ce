/* Handles of device memory for other processes, with the reference counters in shared
 * memory that torch's receivers want to count down. */
#define _GNU_SOURCE /* getrandom */
#include "pickle_tree.h"
#include "source_priv.h"
#include "weft/pickle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

struct wefti_counters {
  struct wefti_counters *next;
  char name[WEFT_IPC_COUNTER_MAX + 1];
  struct counter_file *file; /* mapped */
  unsigned used;
};

/* As torch's RefcountedMapAllocator lays it out: receivers that map it count themselves,
 * and the one that takes the number to 0 removes the file.  We are one of them. */
struct counter_file {
  _Atomic int32_t mappers;
  char unused[60];
  _Atomic int64_t slots[WEFT_IPC_COUNTER_SLOTS];
};
_Static_assert(sizeof(struct counter_file) == 64 + 8 * WEFT_IPC_COUNTER_SLOTS, "torch's");

static weft_err counters_add(weft_gpu_source *s, weft_why *why)
{
  uint32_t number = 0;
  wefti_counters *c = calloc(1, sizeof *c);
  if (c == NULL || getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) {
    free(c);
    return weft_whyf(why, WEFT_E_NOMEM, "IPC: no memory, or no random number");
  }
  (void)snprintf(c->name, sizeof c->name, "/torch_%ld_%u_%d", (long)getpid(), number,
                 s->gpu.device);
  const int fd = shm_open(c->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  void *map = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, (off_t)sizeof *c->file) == 0) {
    map = mmap(NULL, sizeof *c->file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  const int code = errno;
  if (fd >= 0) {
    (void)close(fd);
  }
  if (map == MAP_FAILED) {
    if (fd >= 0) {
      (void)shm_unlink(c->name);
    }
    (void)weft_whyf(why, WEFT_E_SYS, "IPC: shared memory %s: errno %d", c->name, code);
    free(c);
    return WEFT_E_SYS;
  }
  c->file = map;
  atomic_store(&c->file->mappers, 1);
  c->next = s->counters;
  s->counters = c;
  return WEFT_OK;
}

void wefti_source_close_counters(weft_gpu_source *s)
{
  while (s->counters != NULL) {
    wefti_counters *c = s->counters;
    s->counters = c->next;
    (void)munmap(c->file, sizeof *c->file);
    (void)shm_unlink(c->name); /* or a receiver has done it */
    free(c);
  }
}

static weft_err count_export(weft_gpu_source *s, weft_ipc_tensor *t, weft_why *why)
{
  if (s->counters == NULL || s->counters->used == WEFT_IPC_COUNTER_SLOTS) {
    const weft_err err = counters_add(s, why);
    if (err != WEFT_OK) {
      return err;
    }
  }
  wefti_counters *c = s->counters;
  memcpy(t->counter, c->name, sizeof t->counter);
  t->counter_slot = c->used++;
  atomic_store(&c->file->slots[t->counter_slot], 1);
  return WEFT_OK;
}

/* bytes of s's memory from at on, which is aligned to t's elements. */
static weft_err export_piece(weft_gpu_source *s, const wefti_ipc_handle *handle,
                             uint64_t at, weft_ipc_tensor *t, weft_why *why)
{
  int64_t stride = 1;
  for (unsigned d = t->ndim; d-- > 0;) {
    t->stride[d] = stride;
    stride *= t->shape[d] > 0 ? t->shape[d] : 1; /* no more than t->bytes */
  }
  t->contiguous = true;
  if (t->bytes == 0) {
    return WEFT_OK; /* an empty storage has no handle */
  }
  t->has_handle = true;
  memcpy(t->handle, handle->bytes, sizeof t->handle);
  t->storage_at = at;
  t->storage_bytes = t->bytes;
  return count_export(s, t, why);
}

static weft_err export_source(weft_gpu_source *s, uint64_t buffer_bytes,
                              weft_ipc_tensor *out, weft_why *why)
{
  const wefti_cuda *c = &s->gpu.cuda;
  wefti_ipc_handle handle = { { 0 } };
  weft_err err = wefti_gpu_enter(&s->gpu, why);
  if (err == WEFT_OK && (c->IpcGetMemHandle == NULL || s->gpu.uuid[0] == '\0')) {
    err = weft_whyf(why, WEFT_E_UNSUPPORTED, "%s cannot share memory, or has no UUIDs",
                    c->path);
  }
  if (err == WEFT_OK && s->memory != NULL) {
    err = wefti_cuda_check(c, c->IpcGetMemHandle(&handle, s->memory), why,
                           "cudaIpcGetMemHandle");
  }
  if (buffer_bytes > 0) {
    out[0] = (weft_ipc_tensor){ .dtype = WEFT_DTYPE_UINT8,
                                .ndim = 1,
                                .shape = { (int64_t)buffer_bytes },
                                .bytes = buffer_bytes };
    return err == WEFT_OK ? export_piece(s, &handle, 0, &out[0], why) : err;
  }
  for (size_t i = 0; i < s->count && err == WEFT_OK; i++) {
    const weft_st_tensor *t = &s->tensors[i];
    out[i] = (weft_ipc_tensor){ .dtype = t->dtype, .ndim = t->ndim, .bytes = t->bytes };
    memcpy(out[i].shape, t->shape, t->ndim * sizeof *t->shape);
    err = export_piece(s, &handle, s->at[i], &out[i], why);
  }
  return err;
}

static weft_err to_text(const char *const *uuids, size_t gpus, const weft_ipc_handles *h,
                        char **out, weft_why *why)
{
  uint8_t *pickle = NULL;
  size_t len = 0;
  weft_err err = weft_ipc_handles_write(uuids, gpus, h, &pickle, &len);
  char *text = err == WEFT_OK ? malloc((len + 2) / 3 * 4 + 1) : NULL;
  if (text != NULL) {
    wefti_base64_write(pickle, len, text);
    *out = text;
  }
  free(pickle);
  err = err == WEFT_OK && text == NULL ? WEFT_E_NOMEM : err;
  return err == WEFT_OK ? WEFT_OK
                        : weft_whyf(why, err, "IPC handles: %s", weft_strerror(err));
}

weft_err weft_gpu_sources_export(weft_gpu_source *const *sources, size_t count,
                                 uint64_t buffer_bytes, char **out, weft_why *why)
{
  const char *uuids[WEFT_IPC_GPUS_MAX];
  const size_t each = buffer_bytes > 0 ? 1 : count > 0 ? sources[0]->count : 0;
  weft_ipc_handles h = { .packed = buffer_bytes > 0, .count = each };
  if (count == 0 || count > WEFT_IPC_GPUS_MAX || each > WEFT_IPC_PARAMS_MAX ||
      buffer_bytes > INT64_MAX) {
    return weft_whyf(why, WEFT_E_LIMIT, "IPC: too many GPUs, tensors or bytes");
  }
  h.tensors = calloc(count * each + 1, sizeof *h.tensors);
  weft_err err =
      h.tensors != NULL ? WEFT_OK : weft_whyf(why, WEFT_E_NOMEM, "IPC: out of memory");
  for (size_t i = 0; i < count && err == WEFT_OK; i++) {
    uuids[i] = sources[i]->gpu.uuid;
    if ((buffer_bytes == 0 && sources[i]->count != each) ||
        buffer_bytes > sources[i]->capacity) {
      err = weft_whyf(why, WEFT_E_STATE, "IPC: not loaded alike, or not reserved");
    } else {
      err = export_source(sources[i], buffer_bytes, &h.tensors[i * each], why);
    }
  }
  if (err == WEFT_OK) {
    err = to_text(uuids, count, &h, out, why);
  }
  free(h.tensors);
  return err;
}
