#include "ipc_priv.h"

#include <stdlib.h>
#include <string.h>

#define INVALID "Invalid init_info for " WEFTI_IPC_ENGINE ": "

static void ipc_close(void *state)
{
  wefti_ipc_state *st = state;
  weft_why why;
  if (st == NULL) {
    return;
  }
  if (st->gpu.cuda.library != NULL &&
      wefti_cuda_use(&st->gpu.cuda, st->gpu.device, &why) == WEFT_OK) {
    wefti_ipc_unmap_all(st);
    if (st->read != NULL) {
      (void)st->gpu.cuda.EventDestroy(st->read);
    }
    if (st->reads != NULL) {
      (void)st->gpu.cuda.StreamDestroy(st->reads);
    }
  }
  wefti_gpu_close(&st->gpu);
  free(st);
}

static weft_err ipc_open(const weft_transfer_opts *opts, void **state, weft_why *why)
{
  wefti_ipc_state *st = calloc(1, sizeof *st);
  weft_why inner = { 0 };
  if (st == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "ipc backend: no memory");
  }
  weft_err err = wefti_gpu_open(opts, &st->gpu, &inner);
  if (err == WEFT_OK &&
      (st->gpu.cuda.IpcOpenMemHandle == NULL || st->gpu.cuda.IpcCloseMemHandle == NULL)) {
    err = weft_whyf(&inner, WEFT_E_UNSUPPORTED, "%s has no cudaIpcOpenMemHandle",
                    st->gpu.cuda.path);
  }
  if (err != WEFT_OK) {
    ipc_close(st);
    return weft_whyf(why, err, "ipc backend: %.480s", inner.text);
  }
  st->allow_pickle = opts->allow_ipc_pickle;
  *state = st;
  return WEFT_OK;
}

static void ipc_info(void *state, weft_device_info *out)
{
  const wefti_ipc_state *st = state;
  wefti_gpu_info(&st->gpu, out);
}

/* ---- init: a trainer introduces itself, and that is all */

static weft_err read_init(const weft_json *root, weft_why *why)
{
  if (weft_json_kind_of(root) != WEFT_JSON_OBJECT) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "not an object");
  }
  for (const weft_json *v = weft_json_first(root); v != NULL; v = weft_json_next(v)) {
    if (strcmp(weft_json_key(v), "packed") != 0) {
      return weft_whyf(why, WEFT_E_INVAL,
                       INVALID "IPCWeightTransferInitInfo.__init__() got an unexpected "
                               "keyword argument '%.100s'",
                       weft_json_key(v));
    }
    if (weft_json_kind_of(v) != WEFT_JSON_BOOL &&
        weft_json_kind_of(v) != WEFT_JSON_NULL) {
      return weft_whyf(why, WEFT_E_INVAL, INVALID "'packed' is not true or false");
    }
  }
  return WEFT_OK;
}

static weft_err ipc_check_init(void *state, const char *init_info, size_t len,
                               const weft_transfer_who *who, weft_why *why)
{
  (void)state;
  (void)who;
  weft_json *root = NULL;
  weft_why inner = { 0 };
  weft_err err = weft_json_parse(init_info, len, NULL, &root, &inner);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, INVALID "%.400s", inner.text);
  }
  err = read_init(root, why);
  weft_json_free(root);
  return err;
}

static weft_err ipc_init(void *state, const char *init_info, size_t len,
                         const weft_transfer_who *who, const atomic_bool *cancel,
                         weft_why *why)
{
  (void)cancel;
  wefti_ipc_state *st = state;
  weft_err err = ipc_check_init(state, init_info, len, who, why);
  if (err == WEFT_OK) {
    err = wefti_gpu_enter(&st->gpu, why);
  }
  if (err == WEFT_OK) {
    wefti_ipc_unmap_all(st); /* of the trainer before */
  }
  return err;
}

static weft_err ipc_release(void *state, weft_why *why)
{
  wefti_ipc_state *st = state;
  const weft_err err = wefti_gpu_enter(&st->gpu, why);
  if (err == WEFT_OK) {
    wefti_ipc_unmap_all(st);
  }
  return err;
}

/* ---- updates */

static weft_err prepare(wefti_ipc_state *st, weft_why *why)
{
  const wefti_cuda *c = &st->gpu.cuda;
  weft_err err = wefti_gpu_enter(&st->gpu, why);
  if (err == WEFT_OK) {
    err = wefti_gpu_digests_ready(&st->gpu, why);
  }
  if (err == WEFT_OK && st->reads == NULL) {
    err = wefti_cuda_check(c,
                           c->StreamCreateWithFlags(&st->reads, WEFTI_STREAM_NONBLOCKING),
                           why, "cudaStreamCreateWithFlags");
  }
  if (err == WEFT_OK && st->read == NULL) {
    err = wefti_cuda_check(c, c->EventCreateWithFlags(&st->read, WEFTI_EVENT_NO_TIMING),
                           why, "cudaEventCreateWithFlags");
  }
  return err;
}

static weft_err ipc_accept(void *state, const char *update_info, size_t len,
                           const weft_transfer_who *who, weft_plan **plan, weft_why *why)
{
  wefti_ipc_state *st = state;
  wefti_ipc_plan *p = NULL;
  weft_err err = prepare(st, why);
  if (err == WEFT_OK) {
    err = wefti_ipc_plan_make(st, update_info, len, who, &p, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  if (st->epoch != who->epoch) { /* a packed buffer stays mapped for its session */
    wefti_ipc_unmap_all(st);
    st->epoch = who->epoch;
  }
  *plan = &p->pub;
  return WEFT_OK;
}

/* Everything is mapped and the trainer is done with it: what is left are copies. */
static weft_err all_there(wefti_ipc_state *st, const wefti_ipc_plan *p, wefti_wait *w,
                          weft_why *why)
{
  const size_t count = p->handles.packed ? 1 : p->pub.count;
  for (size_t i = 0; i < count; i++) {
    const weft_ipc_tensor *t = &p->handles.tensors[i];
    const char *from = NULL;
    weft_why inner = { 0 };
    if (!p->handles.packed && p->pub.tensors[i].bytes == 0) {
      continue;
    }
    weft_err err = wefti_ipc_map(st, t, &from, &inner);
    if (err == WEFT_OK) {
      err = wefti_ipc_wait(st, t, w, &inner);
    }
    if (err != WEFT_OK) {
      return p->handles.packed ? weft_whyf(why, err, "%s", inner.text)
                               : weft_whyf(why, err, "tensor '%.100s': %.380s",
                                           p->pub.tensors[i].name, inner.text);
    }
  }
  return WEFT_OK;
}

static weft_err queue_packed(wefti_ipc_state *st, const wefti_ipc_plan *p,
                             void *const *dst, weft_why *why)
{
  const char *from = NULL;
  weft_err err = wefti_ipc_map(st, &p->handles.tensors[0], &from, why);
  for (size_t i = 0; i < p->pub.count && err == WEFT_OK; i++) {
    const uint64_t bytes = p->pub.tensors[i].bytes;
    if (bytes > 0) {
      err = wefti_cuda_check(
          &st->gpu.cuda,
          st->gpu.cuda.MemcpyAsync(dst[i], from, bytes, WEFTI_ON_DEVICE, st->reads), why,
          p->pub.tensors[i].name);
    }
    from += bytes;
  }
  return err;
}

static weft_err queue_one_by_one(wefti_ipc_state *st, const wefti_ipc_plan *p,
                                 void *const *dst, weft_why *why)
{
  for (size_t i = 0; i < p->pub.count; i++) {
    const weft_ipc_tensor *t = &p->handles.tensors[i];
    const char *from = NULL;
    weft_why inner = { 0 };
    if (p->pub.tensors[i].bytes == 0) {
      continue;
    }
    weft_err err = wefti_ipc_map(st, t, &from, &inner);
    if (err == WEFT_OK) {
      err = wefti_ipc_copy(st, t, from, dst[i], &inner);
    }
    if (err != WEFT_OK) {
      return weft_whyf(why, err, "tensor '%.100s': %.380s", p->pub.tensors[i].name,
                       inner.text);
    }
  }
  return WEFT_OK;
}

/* Digests begin when all is copied: a device copies to itself tens of times faster than
 * to the host, and the trainer waits for the copies alone. */
static weft_err bring(wefti_ipc_state *st, const wefti_ipc_plan *p, void *const *dst,
                      weft_digest *digests, wefti_wait *w, weft_why *why)
{
  const wefti_cuda *c = &st->gpu.cuda;
  weft_err err = prepare(st, why);
  if (err == WEFT_OK && p->pub.bytes > 0) {
    err = all_there(st, p, w, why);
    if (err == WEFT_OK && p->pub.on_write != NULL) {
      p->pub.on_write(p->pub.on_write_arg);
    }
    if (err == WEFT_OK) {
      err = p->handles.packed ? queue_packed(st, p, dst, why)
                              : queue_one_by_one(st, p, dst, why);
    }
  }
  if (err == WEFT_OK) {
    err =
        wefti_cuda_check(c, c->EventRecord(st->read, st->reads), why, "cudaEventRecord");
  }
  if (err == WEFT_OK) {
    err = wefti_gpu_wait_event(&st->gpu, st->read, w, why);
  }
  return err == WEFT_OK ? wefti_gpu_digest_add(&st->gpu, p->pub.tensors, dst,
                                               p->pub.count, digests, why)
                        : err;
}

/* NOLINTNEXTLINE(readability-function-size): the interface has eight parameters */
static weft_err ipc_receive(void *state, weft_plan *plan, void *const *dst,
                            weft_digest *digests, const atomic_bool *cancel,
                            weft_progress_fn *progress, void *arg, weft_why *why)
{
  wefti_ipc_state *st = state;
  wefti_ipc_plan *p = (wefti_ipc_plan *)plan; /* first member */
  wefti_wait w = { .cancel = cancel,
                   .progress = progress,
                   .progress_arg = arg,
                   .limit_ms = st->gpu.no_progress_ms,
                   .behind = &st->gpu };
  const weft_err err = bring(st, p, dst, digests, &w, why);
  /* Copies only: they end by themselves. */
  wefti_gpu_drain(&st->gpu, st->reads);
  if (err != WEFT_OK) {
    wefti_gpu_digest_forget(&st->gpu);
  }
  wefti_ipc_release(p);
  if (!p->handles.packed || err != WEFT_OK) {
    wefti_ipc_unmap_all(st);
  }
  if (err == WEFT_OK && progress != NULL) {
    progress(arg, plan->bytes);
  }
  return err;
}

static bool ipc_advance(void *state)
{
  wefti_ipc_state *st = state;
  return wefti_gpu_advance(&st->gpu);
}

static weft_err ipc_settle(void *state, const atomic_bool *cancel,
                           weft_progress_fn *progress, void *arg, weft_why *why)
{
  wefti_ipc_state *st = state;
  return wefti_gpu_settle(&st->gpu, cancel, progress, arg, why);
}

static void ipc_forget(void *state)
{
  wefti_ipc_state *st = state;
  wefti_gpu_digest_forget(&st->gpu);
}

static weft_err ipc_alive(void *state, weft_why *why)
{
  const wefti_ipc_state *st = state;
  return wefti_gpu_alive(&st->gpu, why);
}

static void ipc_abandon(void *state, weft_plan *plan)
{
  (void)state;
  wefti_ipc_plan_free((wefti_ipc_plan *)plan);
}

static const weft_transfer_ops ipc_ops = {
  .name = "ipc",
  .open = ipc_open,
  .init = ipc_init,
  .accept = ipc_accept,
  .receive = ipc_receive,
  .abandon = ipc_abandon,
  .close = ipc_close,
  .check_init = ipc_check_init,
  .release = ipc_release,
  .info = ipc_info,
  .advance = ipc_advance,
  .settle = ipc_settle,
  .forget = ipc_forget,
  .alive = ipc_alive,
};

const weft_transfer_ops *weft_transfer_ipc(void)
{
  return &ipc_ops;
}
