/* Device memory, and IPC between two processes. */
#include "gpu_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Seconds of cudaMemcpyAsync on the device, tensor by tensor, and of the digests of what
 * lies there: the best of a few rounds. */
static void bare_copies(const check *c, double *copy, double *digest)
{
  wefti_gpu gpu = { 0 };
  weft_why why = { 0 };
  wefti_wait wait = { 0 };
  weft_digest got[TENSORS_MAX];
  void *from[TENSORS_MAX], *to = NULL;
  const weft_transfer_opts opts = { .size = sizeof opts,
                                    .device = &c->device,
                                    .threads = check_threads() };
  const uint64_t each = c->st->tensors[0].bytes;
  weft_plan_tensor plan[TENSORS_MAX];
  if (wefti_gpu_open(&opts, &gpu, &why) != WEFT_OK ||
      wefti_gpu_enter(&gpu, &why) != WEFT_OK ||
      gpu.cuda.Malloc(&from[0], each * c->st->count) != WEFTI_CUDA_OK ||
      gpu.cuda.Malloc(&to, each * c->st->count) != WEFTI_CUDA_OK) {
    check_die(c, "device memory for bare copies", &why);
  }
  for (size_t i = 0; i < c->st->count; i++) {
    from[i] = (char *)from[0] + i * each;
    plan[i] = (weft_plan_tensor){ .bytes = each };
  }
  *copy = *digest = 1e9;
  for (int round = 0; round < ROUNDS; round++) {
    const double began = check_now_s();
    for (size_t i = 0; i < c->st->count; i++) {
      if (gpu.cuda.MemcpyAsync((char *)to + i * each, from[i], each, WEFTI_ON_DEVICE,
                               gpu.copies) != WEFTI_CUDA_OK) {
        check_die(c, "cudaMemcpyAsync", NULL);
      }
    }
    (void)gpu.cuda.StreamSynchronize(gpu.copies);
    const double between = check_now_s();
    if (wefti_gpu_digest(&gpu, plan, from, c->st->count, &wait, got, &why) != WEFT_OK) {
      check_die(c, "digests", &why);
    }
    const double ended = check_now_s();
    *copy = between - began < *copy ? between - began : *copy;
    *digest = ended - between < *digest ? ended - between : *digest;
  }
  (void)gpu.cuda.Free(from[0]);
  (void)gpu.cuda.Free(to);
  wefti_gpu_close(&gpu);
}

static double host_memcpy(const check *c)
{
  const size_t bytes = (size_t)(c->st->tensors[0].bytes * c->st->count);
  char *from = malloc(bytes + 1), *to = malloc(bytes + 1);
  double best = 1e9;
  if (from == NULL || to == NULL) {
    check_die(c, "no memory", NULL);
  }
  memset(from, 1, bytes);
  for (int round = 0; round <= ROUNDS; round++) { /* the first one warms to */
    const double began = check_now_s();
    memcpy(to, from, bytes);
    __asm__ volatile("" ::"r"(to) : "memory");
    const double took = check_now_s() - began;
    best = took < best ? took : best;
  }
  free(from);
  free(to);
  return best;
}

/* What CUDA's calls alone take for the same: open the other process's memory, copy tensor
 * by tensor, close. */
static void share_bare(const check *c, int fd)
{
  wefti_cuda cuda;
  wefti_ipc_handle handle;
  weft_why why = { 0 };
  void *from = NULL;
  char end;
  if (wefti_cuda_open(c->device.cudart, &cuda, &why) != WEFT_OK ||
      cuda.Malloc(&from, c->st->tensors[0].bytes * c->st->count) != WEFTI_CUDA_OK ||
      cuda.IpcGetMemHandle(&handle, from) != WEFTI_CUDA_OK) {
    check_die(c, "memory to be shared", &why);
  }
  check_tell(c, fd, &handle, sizeof handle);
  check_hear(c, fd, &end, 1);
  (void)cuda.Free(from);
  wefti_cuda_close(&cuda);
}

static double bare_ipc(const receiver *r, int fd)
{
  const check *c = r->c;
  const uint64_t each = c->st->tensors[0].bytes;
  wefti_ipc_handle handle;
  wefti_gpu gpu = { 0 };
  weft_why why = { 0 };
  double best = 1e9;
  const weft_transfer_opts opts = { .size = sizeof opts, .device = &c->device };
  check_hear(c, fd, &handle, sizeof handle);
  if (wefti_gpu_open(&opts, &gpu, &why) != WEFT_OK ||
      wefti_gpu_enter(&gpu, &why) != WEFT_OK) {
    check_die(c, "a device for bare copies", &why);
  }
  for (int round = 0; round < ROUNDS; round++) {
    void *from = NULL;
    const double began = check_now_s();
    int code = gpu.cuda.IpcOpenMemHandle(&from, handle, WEFTI_IPC_LAZY_PEER);
    for (size_t i = 0; i < c->st->count && code == WEFTI_CUDA_OK; i++) {
      code = gpu.cuda.MemcpyAsync(r->dst[i], (const char *)from + i * each, each,
                                  WEFTI_ON_DEVICE, gpu.copies);
    }
    if (code != WEFTI_CUDA_OK) {
      check_die(c, "bare copies over IPC", NULL);
    }
    (void)gpu.cuda.StreamSynchronize(gpu.copies);
    (void)gpu.cuda.IpcCloseMemHandle(from);
    const double took = check_now_s() - began;
    best = took < best ? took : best;
  }
  wefti_gpu_close(&gpu);
  check_tell(c, fd, "", 1);
  return best;
}

static void export_side(const check *c, int fd)
{
  weft_gpu_source *s = check_source(c, false, false);
  char *text = NULL;
  weft_why why = { 0 };
  char end;
  for (int round = 0; round < ROUNDS; round++) {
    if (weft_gpu_sources_export(&s, 1, 0, &text, &why) != WEFT_OK) {
      check_die(c, "export", &why);
    }
    const uint64_t len = strlen(text) + 1;
    check_tell(c, fd, &len, sizeof len);
    check_tell(c, fd, text, len);
    free(text);
    check_hear(c, fd, &end, 1); /* its memory stays until then */
  }
  (void)weft_gpu_source_destroy(s);
  share_bare(c, fd);
}

void check_ipc(const check *c)
{
  int fd = -1;
  double copy = 0, digest = 0;
  receive_time best = RECEIVE_NEVER;
  const pid_t child = check_fork(c, export_side, &fd);
  receiver r;
  receiver_open(&r, c, weft_transfer_ipc());
  for (int round = 0; round < ROUNDS; round++) {
    uint64_t len = 0;
    check_hear(c, fd, &len, sizeof len);
    char *handles = malloc(len);
    if (handles == NULL) {
      check_die(c, "no memory", NULL);
    }
    check_hear(c, fd, handles, len);
    char *info = check_update_info(c, handles);
    best = receive_less(best, receiver_receive(&r, receiver_accept(&r, info)));
    free(info);
    free(handles);
    check_tell(c, fd, "", 1);
  }
  const double bare = bare_ipc(&r, fd);
  check_join(c, child);
  receiver_close(&r);
  bare_copies(c, &copy, &digest);
  const double bytes = (double)(c->st->tensors[0].bytes * c->st->count);
  (void)printf("{\"check\":\"%s\",\"ok\":true,\"bytes\":%.0f,\"tensors\":%zu,"
               "\"install_gb_s\":%.2f,\"digested_gb_s\":%.2f,\"bare_ipc_gb_s\":%.2f,"
               "\"device_copy_gb_s\":%.2f,\"digest_gb_s\":%.2f,\"hash_threads\":%u,"
               "\"host_memcpy_gb_s\":%.2f}\n",
               c->name, bytes, c->st->count, bytes / best.receive / 1e9,
               bytes / best.digested / 1e9, bytes / bare / 1e9, bytes / copy / 1e9,
               bytes / digest / 1e9, check_threads(), bytes / host_memcpy(c) / 1e9);
}
