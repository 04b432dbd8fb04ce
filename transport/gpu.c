#include "gpu.h"

#include "weft/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
  REPORT_MS = 20,
  SPINS = 64, /* polls without a pause: most waits are short */
  NAP_MIN_US = 20,
  NAP_MAX_US = 1000,
  DRAIN_US = 1000
};

static void nap_us(long us)
{
  const struct timespec t = { 0, us * 1000 };
  (void)nanosleep(&t, NULL); /* shorter is fine too */
}

void wefti_gpu_nap(void)
{
  nap_us(NAP_MIN_US);
}

static weft_err find_device(const weft_device_opts *opts, wefti_gpu *gpu, weft_why *why)
{
  weft_err err = wefti_cuda_open(opts != NULL ? opts->cudart : NULL, &gpu->cuda, why);
  if (err == WEFT_OK) {
    err = wefti_cuda_count(&gpu->cuda, &gpu->count, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  gpu->device = opts != NULL ? opts->device : 0;
  if (gpu->device < 0 || gpu->device >= gpu->count) {
    return weft_whyf(why, WEFT_E_UNAVAIL, "device %d: this process sees %d", gpu->device,
                     gpu->count);
  }
  wefti_cuda_identity(&gpu->cuda, gpu->device, gpu->name, gpu->uuid);
  return WEFT_OK;
}

weft_err wefti_gpu_open(const weft_transfer_opts *opts, wefti_gpu *out, weft_why *why)
{
  wefti_gpu gpu = { .no_progress_ms = opts->no_progress_ms != 0 ? opts->no_progress_ms
                                                                : WEFTI_GPU_NO_PROGRESS,
                    .threads = opts->threads > 0 ? opts->threads : 1 };
  if (opts->size != sizeof *opts ||
      (opts->device != NULL && opts->device->size != sizeof *opts->device)) {
    return weft_whyf(why, WEFT_E_INVAL, "GPU backend: options of another version");
  }
  weft_err err = find_device(opts->device, &gpu, why);
  if (err == WEFT_OK) {
    gpu.hasher = weft_hasher_create();
    if (gpu.hasher == NULL) {
      err = weft_whyf(why, WEFT_E_NOMEM, "GPU backend: no memory");
    }
  }
  if (err != WEFT_OK) {
    wefti_gpu_close(&gpu);
    return err;
  }
  *out = gpu;
  return WEFT_OK;
}

void wefti_gpu_close(wefti_gpu *gpu)
{
  wefti_gpu_digests_free(gpu);
  for (size_t i = 0; i < WEFTI_STAGES; i++) {
    if (gpu->filled[i] != NULL) {
      (void)gpu->cuda.EventDestroy(gpu->filled[i]);
    }
    if (gpu->stage[i] != NULL) {
      (void)gpu->cuda.FreeHost(gpu->stage[i]);
    }
  }
  if (gpu->copies != NULL) {
    (void)gpu->cuda.StreamDestroy(gpu->copies);
  }
  weft_hasher_destroy(gpu->hasher);
  wefti_cuda_close(&gpu->cuda);
  *gpu = (wefti_gpu){ 0 };
}

weft_err wefti_gpu_enter(wefti_gpu *gpu, weft_why *why)
{
  const wefti_cuda *c = &gpu->cuda;
  weft_err err = wefti_cuda_use(c, gpu->device, why);
  if (err == WEFT_OK && gpu->copies == NULL) {
    err = wefti_cuda_check(
        c, c->StreamCreateWithFlags(&gpu->copies, WEFTI_STREAM_NONBLOCKING), why,
        "cudaStreamCreateWithFlags");
  }
  return err;
}

weft_err wefti_gpu_stages(wefti_gpu *gpu, weft_why *why)
{
  const wefti_cuda *c = &gpu->cuda;
  weft_err err = WEFT_OK;
  for (size_t i = 0; i < WEFTI_STAGES && err == WEFT_OK; i++) {
    if (gpu->stage[i] == NULL) {
      void *at = NULL;
      err = wefti_cuda_check(c, c->HostAlloc(&at, WEFTI_STAGE_BYTES, 0), why,
                             "cudaHostAlloc");
      gpu->stage[i] = at;
    }
    if (err == WEFT_OK && gpu->filled[i] == NULL) {
      err = wefti_cuda_check(
          c, c->EventCreateWithFlags(&gpu->filled[i], WEFTI_EVENT_NO_TIMING), why,
          "cudaEventCreateWithFlags");
    }
  }
  return err;
}

void wefti_gpu_info(const wefti_gpu *gpu, weft_device_info *out)
{
  const char *slash = strrchr(gpu->cuda.path, '/');
  (void)snprintf(out->cudart, sizeof out->cudart, "%d.%d (%.63s), driver %d.%d",
                 gpu->cuda.version / 1000, gpu->cuda.version % 1000 / 10,
                 slash != NULL ? slash + 1 : gpu->cuda.path, gpu->cuda.driver / 1000,
                 gpu->cuda.driver % 1000 / 10);
  memcpy(out->name, gpu->name, sizeof out->name);
  memcpy(out->uuid, gpu->uuid, sizeof out->uuid);
  out->count = gpu->count;
}

/* ---- waiting */

void wefti_wait_step(wefti_wait *w, uint64_t bytes)
{
  w->bytes += bytes;
  w->turns = 0;
  w->step_ms = weft_clock_ms();
}

static void report(wefti_wait *w, uint64_t now)
{
  if (w->progress != NULL && now - w->said_ms >= REPORT_MS) {
    w->progress(w->progress_arg, w->bytes);
    w->said_ms = now;
  }
}

weft_err wefti_wait_turn(wefti_wait *w, weft_why *why)
{
  const uint64_t now = weft_clock_ms();
  w->step_ms = w->step_ms != 0 ? w->step_ms : now;
  report(w, now);
  if (w->cancel != NULL && atomic_load_explicit(w->cancel, memory_order_relaxed)) {
    return weft_whyf(why, WEFT_E_CANCELLED, "cancelled; %" PRIu64 " bytes were done",
                     w->bytes);
  }
  const weft_err err = w->check != NULL ? w->check(w->check_arg, why) : WEFT_OK;
  if (err != WEFT_OK) {
    return err;
  }
  if (w->due_ms != 0 && now >= w->due_ms) {
    return weft_whyf(why, WEFT_E_TIMEOUT, "not within its deadline");
  }
  if (w->limit_ms != 0 && now - w->step_ms >= w->limit_ms) {
    return weft_whyf(why, WEFT_E_TIMEOUT, "nothing moved for %" PRIu64 " ms",
                     now - w->step_ms);
  }
  if (w->behind != NULL && wefti_gpu_digest_turn(w->behind)) {
    w->turns = 0; /* not a step: what is waited for has not moved */
  }
  if (w->turns++ >= SPINS) {
    const long us = NAP_MIN_US * (long)(w->turns / SPINS);
    nap_us(us < NAP_MAX_US ? us : NAP_MAX_US);
  }
  return WEFT_OK;
}

weft_err wefti_gpu_wait_event(const wefti_gpu *gpu, wefti_event e, wefti_wait *w,
                              weft_why *why)
{
  for (;;) {
    const int code = gpu->cuda.EventQuery(e);
    if (code == WEFTI_CUDA_OK) {
      return WEFT_OK;
    }
    if (code != WEFTI_CUDA_NOT_READY) {
      return wefti_cuda_fail(&gpu->cuda, code, why, "cudaEventQuery");
    }
    const weft_err err = wefti_wait_turn(w, why);
    if (err != WEFT_OK) {
      return err;
    }
  }
}

void wefti_gpu_drain(const wefti_gpu *gpu, wefti_stream s)
{
  /* Any other code is a device that runs nothing any more. */
  while (s != NULL && gpu->cuda.StreamQuery(s) == WEFTI_CUDA_NOT_READY) {
    nap_us(DRAIN_US);
  }
}

weft_err wefti_gpu_alive(const wefti_gpu *gpu, weft_why *why)
{
  /* An error that stays is told by every call, one that was of a call is not. */
  const int code =
      gpu->copies != NULL ? gpu->cuda.StreamQuery(gpu->copies) : WEFTI_CUDA_OK;
  return wefti_cuda_check(&gpu->cuda, code == WEFTI_CUDA_NOT_READY ? WEFTI_CUDA_OK : code,
                          why, "cudaStreamQuery");
}
