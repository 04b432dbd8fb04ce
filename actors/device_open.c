/* What the worker and the device actor share: made, and taken apart. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALLOW_MAX = 64 };

/* Cuts list at its commas, in place. */
static weft_err split_allow(char *list, const char *out[ALLOW_MAX], size_t *count,
                            weft_why *why)
{
  *count = 0;
  char *at = list;
  while (at && *at) {
    char *comma = strchr(at, ',');
    if (*count == ALLOW_MAX) {
      return weft_whyf(why, WEFT_E_LIMIT, "more than %d hosts are allowed", ALLOW_MAX);
    }
    if (comma) {
      *comma = '\0';
    }
    if (*at) {
      out[(*count)++] = at;
    }
    at = comma ? comma + 1 : NULL;
  }
  return WEFT_OK;
}

static weft_err open_backend(wefti_device *device, const wefti_device_opts *opts,
                             const weft_device_opts *gpu, weft_why *why)
{
  const char *allow[ALLOW_MAX];
  size_t count = 0;
  char *list = opts->tcp_allow ? strdup(opts->tcp_allow) : NULL;
  if (opts->tcp_allow && !list) {
    return weft_whyf(why, WEFT_E_NOMEM, "out of memory for the list of tcp hosts");
  }
  weft_err err = split_allow(list, allow, &count, why);
  if (err == WEFT_OK) {
    const weft_transfer_opts transfer = { .size = sizeof transfer,
                                          .weights_root = opts->weights_root,
                                          .tcp_allow = allow,
                                          .tcp_allow_count = count,
                                          .threads = opts->threads,
                                          .no_progress_ms = opts->no_progress_ms,
                                          .device = gpu,
                                          .allow_ipc_pickle = opts->allow_ipc_pickle,
                                          .tp_plan = device->tp_plan,
                                          .tp_index = device->rank % device->tp,
                                          .tp_of = device->tp };
    err = device->transfer->open(&transfer, &device->backend, why);
  }
  free(list);
  return err;
}

/* ---- GPUs */

static weft_err choose_gpu(const wefti_device_opts *opts, bool nccl,
                           weft_device_opts *out, weft_why *why)
{
  weft_device_info info;
  *out = (weft_device_opts){ .size = sizeof *out,
                             .cudart = opts->cudart,
                             .nccl = opts->nccl,
                             .device = opts->has_gpu ? (int)opts->gpu : 0 };
  weft_err err = weft_device_probe(out, nccl, &info, why);
  if (err == WEFT_OK && !opts->has_gpu) {
    err = weft_device_choose(info.count, opts->rank, &out->device, why);
  }
  return err;
}

static void describe(wefti_device *device, int gpu)
{
  weft_device_info i = { .count = 0 };
  device->transfer->info(device->backend, &i);
  (void)snprintf(device->about, sizeof device->about,
                 "GPU %d %.60s %s, CUDA %.90s%s%.90s%s%s", gpu, i.name, i.uuid, i.cudart,
                 i.nccl[0] != '\0' ? ", NCCL " : "", i.nccl,
                 i.settings[0] != '\0' ? ", " : "", i.settings);
}

static weft_err fill_gpu(wefti_device *device, const wefti_device_opts *opts,
                         weft_why *why)
{
  weft_memory_cuda_opts memory = { .size = sizeof memory };
  weft_err err = choose_gpu(opts, device->transfer->nccl, &memory.device, why);
  if (err == WEFT_OK) {
    err = weft_memory_cuda_create(&memory, &device->memory, why);
  }
  if (err == WEFT_OK) {
    device->memory->cancel = &device->cancel;
    err = open_backend(device, opts, &memory.device, why);
  }
  if (err == WEFT_OK) {
    describe(device, memory.device.device);
  }
  return err;
}

static weft_err device_fill(wefti_device *device, const wefti_device_opts *opts,
                            weft_why *why)
{
  const weft_store_opts store = { .size = sizeof store,
                                  .snapshots_max = opts->snapshots_max,
                                  .needs_grant = opts->needs_grant };
  weft_err err = weft_store_create(&store, &device->store);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "weight store of %u snapshots: %s", opts->snapshots_max,
                     weft_strerror(err));
  }
  if (device->transfer->info) {
    return fill_gpu(device, opts, why);
  }
  err = weft_memory_host_create(NULL, &device->memory);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "weight memory: %s", weft_strerror(err));
  }
  device->memory->cancel = &device->cancel;
  return open_backend(device, opts, NULL, why);
}

static weft_err load_manifests(wefti_device *device, const wefti_device_opts *opts,
                               weft_why *why)
{
  if (opts->draft_manifest && !opts->draft) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "draft manifest: no draft model is configured; see --draft");
  }
  weft_err err = opts->manifest
                     ? wefti_manifest_load(opts->manifest, &device->manifest, why)
                     : WEFT_OK;
  if (err == WEFT_OK && opts->draft_manifest) {
    err = wefti_manifest_load(opts->draft_manifest, &device->draft_manifest, why);
  }
  return err;
}

weft_err wefti_device_create(const wefti_device_opts *opts, wefti_device **out,
                             weft_why *why)
{
  if (opts->size < sizeof *opts) {
    return weft_whyf(why, WEFT_E_INVAL, "options are of another version");
  }
  const weft_transfer_ops *transfer = weft_transfer_named(opts->backend);
  if (!transfer) {
    return weft_whyf(why, WEFT_E_UNSUPPORTED,
                     "backend '%s' is not known; there are: " WEFT_TRANSFER_NAMES,
                     opts->backend);
  }
  wefti_device *device = calloc(1, sizeof *device);
  if (!device) {
    return weft_whyf(why, WEFT_E_NOMEM, "out of memory for a device");
  }
  device->transfer = transfer;
  device->inplace = opts->inplace;
  device->threads = opts->threads;
  device->tp = opts->tp > 0 ? opts->tp : 1;
  device->pp = opts->pp > 0 ? opts->pp : 1;
  device->pid = (uint32_t)getpid();
  device->draft = opts->draft;
  device->rank = opts->rank;
  weft_err err = load_manifests(device, opts, why);
  if (err == WEFT_OK && opts->tp_plan) {
    err = transfer->nccl
              ? weft_tp_plan_load(opts->tp_plan, &device->tp_plan, why)
              : weft_whyf(why, WEFT_E_UNSUPPORTED,
                          "a TP plan is for the nccl and sparse_nccl backends, "
                          "not for '%s'",
                          transfer->name);
  }
  if (err == WEFT_OK) {
    err = device_fill(device, opts, why);
  }
  if (err != WEFT_OK) {
    wefti_device_destroy(device);
    return err;
  }
  *out = device;
  return WEFT_OK;
}

void wefti_device_destroy(wefti_device *device)
{
  if (!device) {
    return;
  }
  if (device->backend) {
    device->transfer->close(device->backend);
  }
  weft_store_destroy(device->store); /* its cells go back to memory */
  weft_memory_destroy(device->memory);
  weft_memory_destroy(device->kept);
  wefti_manifest_free(device->manifest);
  weft_tp_plan_free(device->tp_plan); /* behind the backend */
  wefti_manifest_free(device->draft_manifest);
  free(device->order);
  free(device);
}

weft_store *wefti_device_store(wefti_device *device)
{
  return device->store;
}

uint64_t wefti_device_heard(wefti_device *device)
{
  return atomic_load_explicit(&device->heard, memory_order_relaxed);
}

void wefti_device_on_install(wefti_device *device, wefti_export_fn *fn, void *arg)
{
  device->on_install = fn;
  device->on_install_arg = arg;
}

const char *wefti_device_about(const wefti_device *device)
{
  return device->about;
}
