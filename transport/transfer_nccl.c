#include "env.h"
#include "nccl_priv.h"
#include "weft/clock.h"
#include "weft/pickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  INIT_MS = 280000, /* under the 300 s after which stock clients leave */
  ABORT_PATIENCE_MS = 5000
};

/* ---- open and close */

static void nccl_close(void *state)
{
  wefti_nccl_state *st = state;
  weft_why why;
  if (st == NULL) {
    return;
  }
  /* Abort, not finalize: finalize waits for peers, and the trainer may be gone. */
  const bool gone = wefti_group_abort(&st->group, ABORT_PATIENCE_MS);
  if (gone && wefti_cuda_use(&st->gpu.cuda, st->gpu.device, &why) == WEFT_OK) {
    wefti_lanes_drain(st);
    wefti_lanes_free(st);
    wefti_lead_free(st);
    wefti_sparse_free(st);
  }
  wefti_group_close(&st->group);
  if (gone) {
    wefti_gpu_close(&st->gpu);
  }
  wefti_nccl_told_free(st);
  free(st);
}

static weft_err open_as(const wefti_nccl_engine *engine, const weft_transfer_opts *opts,
                        void **state, weft_why *why)
{
  const char *blocking = wefti_env_get("NCCL_COMM_BLOCKING");
  if (blocking != NULL && strcmp(blocking, "0") != 0) {
    return weft_whyf(why, WEFT_E_STATE,
                     "%s backend: NCCL_COMM_BLOCKING=%.40s: NCCL would block where it "
                     "cannot be given up; unset it",
                     engine->backend, blocking);
  }
  wefti_nccl_state *st = calloc(1, sizeof *st);
  weft_why inner = { 0 };
  if (st == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s backend: no memory", engine->backend);
  }
  st->engine = engine;
  st->slicer = (wefti_slicer){ opts->tp_plan, opts->tp_index, opts->tp_of };
  weft_err err = wefti_gpu_open(opts, &st->gpu, &inner);
  if (err == WEFT_OK) {
    st->group.gpu = &st->gpu;
    err = wefti_nccl_open(opts->device != NULL ? opts->device->nccl : NULL,
                          &st->group.nccl, &inner);
  }
  if (err == WEFT_OK && opts->tp_plan != NULL && st->gpu.cuda.Memcpy2DAsync == NULL) {
    err = weft_whyf(&inner, WEFT_E_UNSUPPORTED,
                    "%s has no cudaMemcpy2DAsync, which a TP "
                    "plan needs",
                    st->gpu.cuda.path);
  }
  if (err != WEFT_OK) {
    nccl_close(st);
    return weft_whyf(why, err, "%s backend: %.480s", engine->backend, inner.text);
  }
  *state = st;
  return WEFT_OK;
}

static weft_err nccl_open(const weft_transfer_opts *opts, void **state, weft_why *why)
{
  return open_as(wefti_nccl_dense(), opts, state, why);
}

static weft_err sparse_open(const weft_transfer_opts *opts, void **state, weft_why *why)
{
  return open_as(wefti_nccl_sparse(), opts, state, why);
}

/* What of the environment decides how ranks find and reach each other. */
static void settings(char *out, size_t cap)
{
  static const char *const names[] = {
    "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE",   "NCCL_IB_HCA",      "NCCL_NET",
    "NCCL_P2P_DISABLE",   "NCCL_CUMEM_ENABLE", "NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE",
  };
  size_t at = 0;
  out[0] = '\0';
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    const char *value = wefti_env_get(names[i]);
    if (value == NULL) {
      continue;
    }
    const int n =
        snprintf(out + at, cap - at, "%s%s=%.24s", at > 0 ? " " : "", names[i], value);
    if (n < 0 || (size_t)n >= cap - at) {
      out[at] = '\0'; /* whole settings only */
      return;
    }
    at += (size_t)n;
  }
}

static void nccl_info(void *state, weft_device_info *out)
{
  const wefti_nccl_state *st = state;
  const char *path = st->group.nccl.path;
  const char *slash = strrchr(path, '/');
  char version[WEFTI_NCCL_VERSION_TEXT];
  wefti_gpu_info(&st->gpu, out);
  wefti_nccl_version_text(st->group.nccl.version, version);
  settings(out->settings, sizeof out->settings);
  (void)snprintf(out->nccl, sizeof out->nccl, "%s (%.63s)", version,
                 slash != NULL ? slash + 1 : path);
}

/* The communicator goes, and the trainer's calls fail with it. */
static void lose(wefti_nccl_state *st, const char *reason, uint64_t patience_ms)
{
  if (st->group.comm != NULL || st->later) {
    st->later = false;
    (void)weft_whyf(&st->lost, WEFT_E_STATE, "%.400s", reason);
    (void)wefti_group_abort(&st->group, patience_ms);
  }
}

/* ---- init */

static weft_err nccl_check_init(void *state, const char *init_info, size_t len,
                                const weft_transfer_who *who, weft_why *why)
{
  const wefti_nccl_state *st = state;
  wefti_nccl_init init;
  return wefti_nccl_init_read(st->engine->name, init_info, len, who, &init, why);
}

static weft_err old_one_gone(wefti_nccl_state *st, weft_why *why)
{
  lose(st, "another init came", 0); /* waited for below */
  return wefti_group_abort(&st->group, ABORT_PATIENCE_MS)
             ? WEFT_OK
             : weft_whyf(why, WEFT_E_UNAVAIL,
                         "the communicator of an earlier init cannot be given up "
                         "(ncclCommAbort does not return): this worker's process must be "
                         "replaced");
}

/* look LATER: the store is joined, the group is not. */
static weft_err join(wefti_nccl_state *st, bool first, wefti_look look, wefti_wait *w,
                     weft_why *why)
{
  const wefti_nccl_init *init = &st->init;
  wefti_nccl_id id = init->id;
  char where[WEFT_NCCL_ADDRESS_MAX] = "";
  weft_why inner = { 0 };
  weft_err err =
      init->has_id ? WEFT_OK : wefti_nccl_id_fetch(init, first, look, w, &id, why);
  st->later = err == WEFT_E_NOT_YET;
  if (err != WEFT_OK) {
    return st->later ? WEFT_OK : err;
  }
  st->group.no_warm_up = init->torch;
  err = weft_nccl_id_check((const uint8_t *)id.bytes, where, &inner);
  if (err == WEFT_OK) {
    err = wefti_group_join(&st->group, &id, init->rank, init->ranks, w, &inner);
  }
  if (err == WEFT_OK) {
    return WEFT_OK;
  }
  const char *advice =
      strstr(inner.text, "Duplicate GPU") != NULL
          ? "two ranks on one GPU (give them different ones with --device, or use the "
            "ipc "
            "backend): "
      : strstr(inner.text, "Mismatched NCCL version") != NULL
          ? "--nccl is not the library that the trainer loads: "
      : err == WEFT_E_TIMEOUT
          ? "not every rank of world_size has come (the trainer is rank 0): "
          : "";
  return weft_whyf(why, err, "NCCL group at %s: %s%.380s", where, advice, inner.text);
}

static weft_err nccl_init(void *state, const char *init_info, size_t len,
                          const weft_transfer_who *who, const atomic_bool *cancel,
                          weft_why *why)
{
  wefti_nccl_state *st = state;
  wefti_nccl_init init;
  weft_err err = wefti_nccl_init_read(st->engine->name, init_info, len, who, &init, why);
  if (err == WEFT_OK) {
    err = old_one_gone(st, why);
  }
  if (err == WEFT_OK) {
    err = wefti_gpu_enter(&st->gpu, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  wefti_wait w = { .cancel = cancel,
                   .due_ms = weft_clock_ms() +
                             (who->timeout_ms != 0 ? who->timeout_ms : INIT_MS) };
  weft_why inner = { 0 };
  st->init = init;
  err = join(st, true, init.look, &w, &inner);
  if (err != WEFT_OK) {
    lose(st, inner.text, ABORT_PATIENCE_MS);
    return weft_whyf(why, err, "%s", inner.text);
  }
  st->packing = init.packing;
  wefti_nccl_told_free(st);
  st->lost = (weft_why){ 0 };
  return WEFT_OK;
}

static weft_err nccl_release(void *state, weft_why *why)
{
  wefti_nccl_state *st = state;
  lose(st, "the trainer was let go (shutdown_weight_transfer_engine)", 0);
  wefti_nccl_told_free(st);
  return old_one_gone(st, why);
}

/* ---- updates */

static weft_err need_group(const wefti_nccl_state *st, weft_why *why)
{
  if (st->group.comm != NULL || st->later) {
    return WEFT_OK;
  }
  return weft_whyf(why, WEFT_E_STATE,
                   "NCCL weight transfer not initialized. Call init_transfer_engine() "
                   "first.%s%.300s",
                   st->lost.err != WEFT_OK ? " The last communicator was given up: " : "",
                   st->lost.text);
}

static weft_err nccl_accept(void *state, const char *update_info, size_t len,
                            const weft_transfer_who *who, weft_plan **plan, weft_why *why)
{
  wefti_nccl_state *st = state;
  wefti_nccl_plan *p = NULL;
  weft_why inner = { 0 };
  weft_err err = need_group(st, why);
  if (err != WEFT_OK) {
    return err;
  }
  err = wefti_nccl_plan_or_last(st, update_info, len, who, &p, &inner);
  if (err == WEFT_OK) {
    err = p->patches != NULL ? wefti_sparse_ready(st, p, &inner)
                             : wefti_lanes_ready(st, p, &inner);
  }
  if (err != WEFT_OK) {
    wefti_nccl_plan_free(p);
    lose(st, inner.text,
         ABORT_PATIENCE_MS); /* the trainer is in its first broadcast by now */
    return weft_whyf(why, err, "%s", inner.text);
  }
  *plan = &p->pub;
  return WEFT_OK;
}

/* A group whose id the trainer makes with its first broadcast. */
static weft_err join_now(wefti_nccl_state *st, const wefti_wait *receive, weft_why *why)
{
  wefti_wait w = { .cancel = receive->cancel,
                   .progress = receive->progress,
                   .progress_arg = receive->progress_arg,
                   .due_ms = weft_clock_ms() + st->gpu.no_progress_ms };
  st->later = false;
  return join(st, false, WEFTI_LOOK_ON, &w, why);
}

static weft_err bring(wefti_nccl_state *st, const wefti_nccl_plan *p, void *const *dst,
                      weft_digest *digests, wefti_wait *w, weft_why *why)
{
  const bool some = p->chunk_count > 0 || p->patches != NULL; /* else nobody comes */
  weft_err err = st->later && some ? join_now(st, w, why) : WEFT_OK;
  if (err == WEFT_OK) {
    err = p->patches != NULL ? wefti_sparse_receive(st, p, dst, digests, w, why)
                             : wefti_nccl_chunks(st, p, dst, digests, w, why);
  }
  return err;
}

static weft_err check_receive(const wefti_nccl_state *st, const weft_plan *plan,
                              weft_why *why)
{
  const weft_err err = need_group(st, why);
  if (err == WEFT_OK && plan->patches && plan->base == NULL) {
    return weft_whyf(why, WEFT_E_INVAL, "patches without what they are applied to");
  }
  return err;
}

/* NOLINTNEXTLINE(readability-function-size): the interface has eight parameters */
static weft_err nccl_receive(void *state, weft_plan *plan, void *const *dst,
                             weft_digest *digests, const atomic_bool *cancel,
                             weft_progress_fn *progress, void *arg, weft_why *why)
{
  wefti_nccl_state *st = state;
  wefti_nccl_plan *p = (wefti_nccl_plan *)plan; /* first member */
  wefti_wait w = { .cancel = cancel,
                   .progress = progress,
                   .progress_arg = arg,
                   .limit_ms = st->gpu.no_progress_ms,
                   .behind = &st->gpu };
  weft_why inner = { 0 };
  weft_err err = check_receive(st, plan, why);
  if (err != WEFT_OK) {
    wefti_gpu_digest_forget(&st->gpu);
    return err;
  }
  p->received = true;
  err = bring(st, p, dst, digests, &w, &inner);
  if (err != WEFT_OK) {
    (void)weft_whyf(&st->lost, WEFT_E_STATE, "%.400s", inner.text);
    lose(st, inner.text, 0);
    /* Something may still write to dst: there is no way back before that has ended. */
    wefti_group_abort_wait(&st->group);
    wefti_lanes_drain(st);
    wefti_lead_free(st);
    wefti_gpu_digest_forget(&st->gpu);
    return weft_whyf(why, err, "%s", inner.text);
  }
  wefti_lead_free(st);
  if (progress != NULL) {
    progress(arg, plan->bytes);
  }
  return WEFT_OK;
}

static weft_err nccl_alive(void *state, weft_why *why)
{
  const wefti_nccl_state *st = state;
  return wefti_gpu_alive(&st->gpu, why);
}

static void nccl_abandon(void *state, weft_plan *plan)
{
  wefti_nccl_plan *p = (wefti_nccl_plan *)plan;
  if (p != NULL && !p->received && (p->chunk_count > 0 || p->patches != NULL)) {
    lose(state, "an update was accepted and then dropped", ABORT_PATIENCE_MS);
  }
  wefti_nccl_plan_free(p);
}

static bool nccl_advance(void *state)
{
  wefti_nccl_state *st = state;
  return wefti_gpu_advance(&st->gpu);
}

static weft_err nccl_settle(void *state, const atomic_bool *cancel,
                            weft_progress_fn *progress, void *arg, weft_why *why)
{
  wefti_nccl_state *st = state;
  return wefti_gpu_settle(&st->gpu, cancel, progress, arg, why);
}

static void nccl_forget(void *state)
{
  wefti_nccl_state *st = state;
  wefti_gpu_digest_forget(&st->gpu);
}

static const weft_transfer_ops nccl_ops = {
  .name = "nccl",
  .open = nccl_open,
  .init = nccl_init,
  .accept = nccl_accept,
  .receive = nccl_receive,
  .abandon = nccl_abandon,
  .close = nccl_close,
  .check_init = nccl_check_init,
  .release = nccl_release,
  .info = nccl_info,
  .nccl = true,
  .advance = nccl_advance,
  .settle = nccl_settle,
  .forget = nccl_forget,
  .alive = nccl_alive,
};

static const weft_transfer_ops sparse_ops = {
  .name = "sparse_nccl",
  .open = sparse_open,
  .init = nccl_init,
  .accept = nccl_accept,
  .receive = nccl_receive,
  .abandon = nccl_abandon,
  .close = nccl_close,
  .check_init = nccl_check_init,
  .release = nccl_release,
  .info = nccl_info,
  .nccl = true,
  .advance = nccl_advance,
  .settle = nccl_settle,
  .forget = nccl_forget,
  .alive = nccl_alive,
  .no_draft = WEFTI_SPARSE_ENGINE " does not support draft model weight updates.",
};

const weft_transfer_ops *weft_transfer_nccl(void)
{
  return &nccl_ops;
}

const weft_transfer_ops *weft_transfer_sparse_nccl(void)
{
  return &sparse_ops;
}
