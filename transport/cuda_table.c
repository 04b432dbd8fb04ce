#define _GNU_SOURCE /* RTLD_NODELETE is there anyway; unsetenv */
#include "cuda_table.h"

#include "nccl_table.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

weft_err wefti_library_open(const char *path, const char *const *names, const char *what,
                            void **library, char opened[WEFT_DEVICE_TEXT], weft_why *why)
{
  const char *const one[] = { path, NULL };
  const char *const *at = path != NULL ? one : names;
  char last[256] = "no name to try";
  for (; *at != NULL; at++) {
    /* NODELETE: these libraries start threads, which must not lose their code. */
    *library = dlopen(*at, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (*library != NULL) {
      (void)snprintf(opened, WEFT_DEVICE_TEXT, "%s", *at);
      return WEFT_OK;
    }
    /* glibc keeps this per thread. NOLINTNEXTLINE(concurrency-mt-unsafe) */
    const char *said = dlerror();
    (void)snprintf(last, sizeof last, "%s", said != NULL ? said : *at);
  }
  return weft_whyf(why, WEFT_E_NOTFOUND, "%s cannot be loaded: %s", what, last);
}

weft_err wefti_library_resolve(void *library, const wefti_symbol *symbols, size_t count,
                               void *table, const char *path, weft_why *why)
{
  for (size_t i = 0; i < count; i++) {
    void *found = dlsym(library, symbols[i].name);
    if (found == NULL && symbols[i].need) {
      return weft_whyf(why, WEFT_E_UNSUPPORTED,
                       "%s has no %s: it is too old, or another library", path,
                       symbols[i].name);
    }
    memcpy((char *)table + symbols[i].at, &found, sizeof found);
  }
  return WEFT_OK;
}

static const wefti_symbol cuda_symbols[] = {
#define WEFTI_X(need, name, args) { "cuda" #name, offsetof(wefti_cuda, name), (need) },
  WEFTI_CUDA_TABLE(WEFTI_X)
#undef WEFTI_X
      { "cudaGetErrorString", offsetof(wefti_cuda, GetErrorString), false },
};

weft_err wefti_cuda_open(const char *path, wefti_cuda *out, weft_why *why)
{
  static const char *const names[] = { "libcudart.so.13", "libcudart.so.12",
                                       "libcudart.so.11.0", "libcudart.so", NULL };
  wefti_cuda cuda = { 0 };
  weft_err err = wefti_library_open(path, names, "the CUDA runtime (--cudart)",
                                    &cuda.library, cuda.path, why);
  if (err != WEFT_OK) {
    return err;
  }
  err = wefti_library_resolve(cuda.library, cuda_symbols,
                              sizeof cuda_symbols / sizeof *cuda_symbols, &cuda,
                              cuda.path, why);
  if (err == WEFT_OK) {
    err = wefti_cuda_check(&cuda, cuda.RuntimeGetVersion(&cuda.version), why,
                           "cudaRuntimeGetVersion");
  }
  if (err != WEFT_OK) {
    wefti_cuda_close(&cuda);
    return err;
  }
  if (cuda.DriverGetVersion == NULL ||
      cuda.DriverGetVersion(&cuda.driver) != WEFTI_CUDA_OK) {
    cuda.driver = 0;
  }
  *out = cuda;
  return WEFT_OK;
}

void wefti_cuda_close(wefti_cuda *cuda)
{
  if (cuda->library != NULL) {
    (void)dlclose(cuda->library);
  }
  *cuda = (wefti_cuda){ 0 };
}

weft_err wefti_cuda_fail(const wefti_cuda *cuda, int code, weft_why *why,
                         const char *what)
{
  const char *text = cuda->GetErrorString != NULL ? cuda->GetErrorString(code) : NULL;
  if (cuda->GetLastError != NULL) {
    (void)cuda->GetLastError(); /* or the next call would report this one again */
  }
  return weft_whyf(why, code == WEFTI_CUDA_NOMEM ? WEFT_E_NOMEM : WEFT_E_FAILED,
                   "%s: CUDA error %d, %s", what, code, text != NULL ? text : "no text");
}

weft_err wefti_cuda_count(const wefti_cuda *cuda, int *count, weft_why *why)
{
  int seen = 0; /* untouched on failure */
  const int code = cuda->GetDeviceCount(&seen);
  if (code == WEFTI_CUDA_OLD_DRIVER) {
    return weft_whyf(why, WEFT_E_UNAVAIL,
                     "no NVIDIA driver that CUDA runtime %d.%d (%s) can use: error %d",
                     cuda->version / 1000, cuda->version % 1000 / 10, cuda->path, code);
  }
  if (code == WEFTI_CUDA_NO_DEVICE || (code == WEFTI_CUDA_OK && seen == 0)) {
    return weft_whyf(why, WEFT_E_UNAVAIL,
                     "no GPU here (CUDA_VISIBLE_DEVICES may hide them): error %d", code);
  }
  if (code != WEFTI_CUDA_OK) {
    (void)wefti_cuda_fail(cuda, code, why, "cudaGetDeviceCount");
    return WEFT_E_UNAVAIL;
  }
  *count = seen;
  return WEFT_OK;
}

weft_err wefti_cuda_use(const wefti_cuda *cuda, int device, weft_why *why)
{
  const int code = cuda->SetDevice(device);
  if (code == WEFTI_CUDA_OK) {
    return WEFT_OK;
  }
  char what[64];
  (void)snprintf(what, sizeof what, "cudaSetDevice(%d)", device);
  (void)wefti_cuda_fail(cuda, code, why, what);
  return WEFT_E_UNAVAIL;
}

void wefti_cuda_identity(const wefti_cuda *cuda, int device, char name[WEFT_DEVICE_TEXT],
                         char uuid[WEFT_GPU_UUID_TEXT])
{
  name[0] = '\0';
  uuid[0] = '\0';
  /* The struct differs from version to version, but not at its head. */
  unsigned char *prop = calloc(1, WEFTI_CUDA_PROP_BYTES);
  int code = -1;
  if (prop != NULL && cuda->GetDeviceProperties_v2 != NULL) {
    code = cuda->GetDeviceProperties_v2(prop, device);
  } else if (prop != NULL && cuda->GetDeviceProperties != NULL) {
    code = cuda->GetDeviceProperties(prop, device);
  }
  if (code == WEFTI_CUDA_OK) {
    const unsigned char *u = prop + WEFTI_CUDA_PROP_UUID;
    (void)snprintf(name, WEFT_DEVICE_TEXT, "%.*s", WEFT_DEVICE_TEXT - 1,
                   (const char *)prop);
    (void)snprintf(uuid, WEFT_GPU_UUID_TEXT,
                   "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                   u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10],
                   u[11], u[12], u[13], u[14], u[15]);
  }
  free(prop);
}

/* ---- public */

static void file_of(const char *path, char out[64])
{
  const char *slash = strrchr(path, '/');
  (void)snprintf(out, 64, "%.63s", slash != NULL ? slash + 1 : path);
}

static weft_err look(const weft_device_opts *opts, const wefti_cuda *cuda,
                     weft_device_info *info, weft_why *why)
{
  char file[64];
  file_of(cuda->path, file);
  (void)snprintf(info->cudart, sizeof info->cudart, "%d.%d (%s), driver %d.%d",
                 cuda->version / 1000, cuda->version % 1000 / 10, file,
                 cuda->driver / 1000, cuda->driver % 1000 / 10);
  const weft_err err = wefti_cuda_count(cuda, &info->count, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (opts->device < 0 || opts->device >= info->count) {
    return weft_whyf(why, WEFT_E_UNAVAIL,
                     "device %d: this process sees %d; --device counts them from 0",
                     opts->device, info->count);
  }
  wefti_cuda_identity(cuda, opts->device, info->name, info->uuid);
  return WEFT_OK;
}

weft_err weft_device_probe(const weft_device_opts *opts, bool with_nccl,
                           weft_device_info *out, weft_why *why)
{
  if (opts->size != sizeof *opts) {
    return weft_whyf(why, WEFT_E_INVAL, "device options of another version");
  }
  wefti_cuda cuda = { 0 };
  wefti_nccl nccl = { 0 };
  weft_device_info info = { 0 };
  weft_err err = wefti_cuda_open(opts->cudart, &cuda, why);
  if (err == WEFT_OK && with_nccl) {
    err = wefti_nccl_open(opts->nccl, &nccl, why);
  }
  if (err == WEFT_OK && with_nccl) {
    char version[WEFTI_NCCL_VERSION_TEXT], file[64];
    wefti_nccl_version_text(nccl.version, version);
    file_of(nccl.path, file);
    (void)snprintf(info.nccl, sizeof info.nccl, "%s (%s)", version, file);
  }
  if (err == WEFT_OK) {
    err = look(opts, &cuda, &info, why);
  }
  wefti_nccl_close(&nccl);
  wefti_cuda_close(&cuda);
  if (err == WEFT_OK) {
    *out = info;
  }
  return err;
}

weft_err weft_device_choose(int count, unsigned rank, int *out, weft_why *why)
{
  if (count == 1) {
    *out = 0; /* its launcher shows each worker its own */
    return WEFT_OK;
  }
  if (count < 1 || rank >= (unsigned)count) {
    return weft_whyf(why, WEFT_E_UNAVAIL,
                     "worker %u has no GPU of its own, this process sees %d: say which "
                     "with --device",
                     rank, count);
  }
  *out = (int)rank;
  return WEFT_OK;
}

void weft_device_clear_env(void)
{
  /* By contract before there are threads. NOLINTNEXTLINE(concurrency-mt-unsafe) */
  (void)unsetenv("NCCL_COMM_BLOCKING");
}
