/* A file's tensors in device memory. */
#include "source_priv.h"
#include "weft/checked.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  ALIGN = 256,           /* bytes, as cudaMalloc gives */
  LOAD_LIMIT_MS = 120000 /* without a block copied */
};

static weft_err open_nccl(weft_gpu_source *s, const char *path, weft_why *why)
{
  wefti_nccl *n = &s->group.nccl;
  weft_err err = wefti_nccl_open(path, n, why);
  if (err != WEFT_OK) {
    return err;
  }
  s->group.gpu = &s->gpu;
  if (n->GetUniqueId == NULL) {
    return weft_whyf(why, WEFT_E_UNSUPPORTED, "%s has no ncclGetUniqueId", n->path);
  }
  const int code = n->GetUniqueId(&s->id);
  return code == WEFTI_NCCL_OK ? WEFT_OK
                               : wefti_nccl_fail(n, NULL, code, why, "ncclGetUniqueId");
}

weft_err weft_gpu_source_create(const weft_gpu_source_opts *opts, weft_gpu_source **out,
                                weft_why *why)
{
  if (opts->size != sizeof *opts || opts->device == NULL) {
    return weft_whyf(why, WEFT_E_INVAL, "source: options of another version");
  }
  weft_gpu_source *s = calloc(1, sizeof *s);
  if (s == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "source: no memory");
  }
  const weft_transfer_opts gpu = { .size = sizeof gpu, .device = opts->device };
  s->cancel = opts->cancel;
  s->nccl = opts->nccl;
  weft_err err = weft_device_probe(opts->device, opts->nccl, &s->info, why);
  if (err == WEFT_OK) {
    err = wefti_gpu_open(&gpu, &s->gpu, why);
  }
  if (err == WEFT_OK && s->nccl) {
    err = open_nccl(s, opts->device->nccl, why);
  }
  if (err == WEFT_OK) {
    err = wefti_gpu_enter(&s->gpu, why);
  }
  if (err != WEFT_OK) {
    (void)weft_gpu_source_destroy(s);
    return err;
  }
  *out = s;
  return WEFT_OK;
}

bool weft_gpu_source_destroy(weft_gpu_source *s)
{
  if (s == NULL) {
    return true;
  }
  wefti_source_close_store(s);
  const bool waited = s->group.stuck != NULL;
  const bool free_to_go =
      wefti_group_abort(&s->group, waited ? 0 : WEFTI_SOURCE_ABORT_MS);
  wefti_source_close_counters(s);
  free(s->at);
  if (free_to_go) {
    if (s->memory != NULL && s->gpu.cuda.SetDevice(s->gpu.device) == WEFTI_CUDA_OK) {
      (void)s->gpu.cuda.Free(s->memory);
    }
    wefti_group_close(&s->group);
    wefti_gpu_close(&s->gpu);
    free(s);
  } /* else: kernels may still run, and the helper looks at the tables */
  return free_to_go;
}

const weft_device_info *weft_gpu_source_info(const weft_gpu_source *s)
{
  return &s->info;
}

/* ---- memory */

weft_err weft_gpu_source_reserve(weft_gpu_source *s, uint64_t bytes, weft_why *why)
{
  if (bytes <= s->capacity) {
    return WEFT_OK;
  }
  weft_err err = wefti_gpu_enter(&s->gpu, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (s->memory != NULL) {
    (void)s->gpu.cuda.Free(s->memory);
    s->memory = NULL;
    s->capacity = 0;
  }
  void *at = NULL;
  err = wefti_cuda_check(&s->gpu.cuda, s->gpu.cuda.Malloc(&at, bytes), why, "cudaMalloc");
  if (err == WEFT_OK) {
    s->memory = at;
    s->capacity = bytes;
  }
  return err;
}

/* Where each tensor goes; *bytes in all. */
static weft_err lay_out(weft_gpu_source *s, const weft_gpu_load *load, uint64_t *bytes,
                        weft_why *why)
{
  size_t end = 0;
  free(s->at);
  s->at = calloc(load->count + 1, sizeof *s->at);
  if (s->at == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "source: no memory for %zu tensors", load->count);
  }
  for (size_t i = 0; i < load->count; i++) {
    s->at[i] = end;
    if (weft_size_add(end, load->st->tensors[load->first + i].bytes, &end) != WEFT_OK ||
        (!load->dense && weft_size_add(end, (0 - end) % ALIGN, &end) != WEFT_OK)) {
      return weft_whyf(why, WEFT_E_OVERFLOW, "source: too many bytes");
    }
  }
  *bytes = end;
  return WEFT_OK;
}

/* ---- from the file */

typedef struct load_job {
  weft_gpu_source *s;
  int fd;
  size_t slot;
  wefti_wait wait;
} load_job;

static weft_err read_all(int fd, void *to, size_t n, uint64_t at, weft_why *why)
{
  size_t got = 0;
  while (got < n) {
    const ssize_t r = pread(fd, (char *)to + got, n - got, (off_t)(at + got));
    if (r < 0 && errno != EINTR) {
      return weft_whyf(why, WEFT_E_SYS, "reading the file: errno %d", errno);
    }
    if (r == 0) {
      return weft_whyf(why, WEFT_E_TRUNCATED, "the file became shorter");
    }
    got += r > 0 ? (size_t)r : 0;
  }
  return WEFT_OK;
}

/* Bytes of the file to device memory, through the pinned blocks in turn. */
static weft_err copy_range(load_job *j, uint64_t file_at, uint64_t bytes, char *to,
                           weft_why *why)
{
  wefti_gpu *g = &j->s->gpu;
  weft_err err = WEFT_OK;
  for (uint64_t done = 0; done < bytes && err == WEFT_OK;) {
    const uint64_t left = bytes - done;
    const size_t n = left < WEFTI_STAGE_BYTES ? (size_t)left : WEFTI_STAGE_BYTES;
    /* An event that was never recorded counts as completed. */
    err = wefti_gpu_wait_event(g, g->filled[j->slot], &j->wait, why);
    if (err == WEFT_OK) {
      err = read_all(j->fd, g->stage[j->slot], n, file_at + done, why);
    }
    if (err == WEFT_OK) {
      int code = g->cuda.MemcpyAsync(to + done, g->stage[j->slot], n, WEFTI_TO_DEVICE,
                                     g->copies);
      code = code == WEFTI_CUDA_OK ? g->cuda.EventRecord(g->filled[j->slot], g->copies)
                                   : code;
      err = wefti_cuda_check(&g->cuda, code, why, "copying to the device");
    }
    wefti_wait_step(&j->wait, n);
    j->slot = (j->slot + 1) % WEFTI_STAGES;
    done += n;
  }
  return err;
}

static weft_err copy_tensors(load_job *j, const weft_gpu_load *load, uint64_t bytes,
                             weft_why *why)
{
  if (bytes == 0) {
    return WEFT_OK;
  }
  const weft_st_tensor *t = &load->st->tensors[load->first];
  if (load->dense) { /* as in the file: back to back */
    return copy_range(j, t->at, bytes, j->s->memory, why);
  }
  weft_err err = WEFT_OK;
  for (size_t i = 0; i < load->count && err == WEFT_OK; i++) {
    err = copy_range(j, t[i].at, t[i].bytes, j->s->memory + j->s->at[i], why);
  }
  return err;
}

weft_err weft_gpu_source_load(weft_gpu_source *s, const weft_gpu_load *load,
                              weft_why *why)
{
  uint64_t bytes = 0;
  load_job j = { .s = s,
                 .fd = load->fd,
                 .wait = { .cancel = s->cancel, .limit_ms = LOAD_LIMIT_MS } };
  s->count = 0;
  if (load->first > load->st->count || load->count > load->st->count - load->first) {
    return weft_whyf(why, WEFT_E_INVAL, "source: no such tensors");
  }
  weft_err err = lay_out(s, load, &bytes, why);
  if (err == WEFT_OK) {
    err = weft_gpu_source_reserve(s, bytes, why);
  }
  if (err == WEFT_OK) {
    err = wefti_gpu_enter(&s->gpu, why);
  }
  if (err == WEFT_OK) {
    err = wefti_gpu_stages(&s->gpu, why);
  }
  if (err == WEFT_OK) {
    err = copy_tensors(&j, load, bytes, why);
  }
  for (size_t i = 0; i < WEFTI_STAGES && err == WEFT_OK; i++) {
    err = wefti_gpu_wait_event(&s->gpu, s->gpu.filled[i], &j.wait, why);
  }
  if (err != WEFT_OK) {
    wefti_gpu_drain(&s->gpu, s->gpu.copies);
    return err;
  }
  s->tensors = load->count > 0 ? &load->st->tensors[load->first] : NULL;
  s->count = load->count;
  s->dense = load->dense;
  return WEFT_OK;
}
