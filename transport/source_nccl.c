/* Rank 0 of a communicator, as vLLM's trainer is. */
#include "pickle_tree.h"
#include "source_priv.h"
#include "weft/clock.h"
#include "weft/pickle.h"

#include <stdio.h>
#include <string.h>

#define ID_KEY "/broadcast_from/0/0" /* the first thing that rank 0 tells all others */

enum { WINDOW = 16 };

void weft_gpu_source_id(const weft_gpu_source *s, char out[WEFT_NCCL_ID_TEXT])
{
  wefti_base64_write((const uint8_t *)s->id.bytes, sizeof s->id.bytes, out);
}

/* ---- the store */

void wefti_source_close_store(weft_gpu_source *s)
{
  if (s->rt == NULL) {
    return;
  }
  weft_runtime_stop(s->rt, 0);
  weft_runtime_join(s->rt);
  weft_tcpstore_server_destroy(s->store);
  weft_runtime_destroy(s->rt);
  s->store = NULL;
  s->rt = NULL;
}

/* What rank 0 would do as a client of its own store. */
static weft_err fill_store(weft_gpu_source *s)
{
  uint8_t value[WEFT_NCCL_ID_PICKLE_MAX];
  size_t len = 0;
  int64_t joined = 0;
  weft_err err = weft_nccl_id_write(WEFT_NCCL_MODULE_VLLM, (const uint8_t *)s->id.bytes,
                                    value, sizeof value, &len);
  if (err == WEFT_OK) {
    err = weft_tcpstore_server_add(s->store, WEFT_TCPSTORE_INIT_KEY, 1, &joined);
  }
  return err == WEFT_OK ? weft_tcpstore_server_set(s->store, ID_KEY, value, len) : err;
}

weft_err weft_gpu_source_serve(weft_gpu_source *s, const char *host, uint16_t port,
                               uint16_t *bound, weft_why *why)
{
  const weft_runtime_opts opts = { .size = sizeof opts, .loops = 1 };
  const weft_tcpstore_server_opts server = { .size = sizeof server,
                                             .host = host,
                                             .port = port };
  if (s->rt != NULL || !s->nccl) {
    return weft_whyf(why, WEFT_E_STATE, "source: no id, or served already");
  }
  weft_err err = weft_runtime_create(&opts, &s->rt);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "no loop for the TCPStore: %s", weft_strerror(err));
  }
  err = weft_tcpstore_server_create(weft_runtime_loop(s->rt, 0), &server, &s->store, why);
  if (err == WEFT_OK) {
    *bound = weft_tcpstore_server_port(s->store);
    err = fill_store(s);
    err = err == WEFT_OK ? weft_runtime_start_all(s->rt) : err;
    if (err != WEFT_OK) {
      (void)weft_whyf(why, err, "TCPStore: %s", weft_strerror(err));
    }
  }
  if (err != WEFT_OK) { /* its thread does not run */
    weft_tcpstore_server_destroy(s->store);
    weft_runtime_destroy(s->rt);
    s->store = NULL;
    s->rt = NULL;
  }
  return err;
}

/* ---- the communicator */

weft_err weft_gpu_source_join(weft_gpu_source *s, unsigned ranks, uint64_t timeout_ms,
                              weft_why *why)
{
  wefti_wait w = { .cancel = s->cancel, .due_ms = weft_clock_ms() + timeout_ms };
  if (!s->nccl || s->group.comm != NULL || s->group.stuck != NULL || ranks < 1 ||
      ranks > INT_MAX) {
    return weft_whyf(why, WEFT_E_STATE, "source: cannot join as rank 0 of %u", ranks);
  }
  const weft_err err = wefti_group_join(&s->group, &s->id, 0, (int)ranks, &w, why);
  if (err != WEFT_OK) {
    (void)wefti_group_abort(&s->group, WEFTI_SOURCE_ABORT_MS);
  }
  wefti_source_close_store(s); /* anybody could write there */
  return err;
}

typedef struct send_job {
  weft_gpu_source *s;
  wefti_wait wait;
  wefti_event sent[WINDOW];
  size_t issued, done; /* broadcasts */
} send_job;

static weft_err finish_one(send_job *j, weft_why *why)
{
  const weft_err err =
      wefti_gpu_wait_event(&j->s->gpu, j->sent[j->done % WINDOW], &j->wait, why);
  j->done += err == WEFT_OK;
  return err;
}

/* Memory that lies back to back, or the tensor of no bytes: a call that moves nothing. */
static weft_err send(send_job *j, size_t tensor, uint64_t bytes, weft_why *why)
{
  weft_gpu_source *s = j->s;
  weft_err err = j->issued - j->done == WINDOW ? finish_one(j, why) : WEFT_OK;
  if (err != WEFT_OK) {
    return err;
  }
  void *at = bytes > 0 ? s->memory + s->at[tensor] : s->group.words;
  const int code = s->group.nccl.Broadcast(at, at, bytes, WEFTI_NCCL_UINT8, 0,
                                           s->group.comm, s->group.stream);
  err = wefti_group_settle(&s->group, code, &j->wait, "ncclBroadcast", why);
  if (err == WEFT_OK) {
    err = wefti_cuda_check(
        &s->gpu.cuda,
        s->gpu.cuda.EventRecord(j->sent[j->issued % WINDOW], s->group.stream), why,
        "cudaEventRecord");
    j->issued++;
  }
  return err;
}

static weft_err send_all(send_job *j, const weft_gpu_packing *packing, weft_why *why)
{
  const weft_gpu_source *s = j->s;
  weft_err err = WEFT_OK;
  size_t first = 0; /* of the chunk */
  uint64_t bytes = 0;
  for (size_t i = 0; i < s->count && err == WEFT_OK; i++) {
    bytes += s->tensors[i].bytes;
    if (!packing->packed || bytes > packing->buffer_bytes || i + 1 == s->count) {
      err = send(j, first, bytes, why);
      first = i + 1;
      bytes = 0;
    }
  }
  while (err == WEFT_OK && j->done < j->issued) {
    err = finish_one(j, why);
  }
  return err;
}

static weft_err make_events(send_job *j, weft_why *why)
{
  const wefti_cuda *c = &j->s->gpu.cuda;
  int code = WEFTI_CUDA_OK;
  for (size_t i = 0; i < WINDOW && code == WEFTI_CUDA_OK; i++) {
    code = c->EventCreateWithFlags(&j->sent[i], WEFTI_EVENT_NO_TIMING);
  }
  return wefti_cuda_check(c, code, why, "cudaEventCreateWithFlags");
}

weft_err weft_gpu_source_broadcast(weft_gpu_source *s, const weft_gpu_packing *packing,
                                   uint64_t timeout_ms, weft_why *why)
{
  send_job j = { .s = s,
                 .wait = { .cancel = s->cancel,
                           .due_ms = weft_clock_ms() + timeout_ms,
                           .check = wefti_group_check,
                           .check_arg = &s->group } };
  weft_why inner = { 0 };
  if (s->group.comm == NULL || (packing->packed && !s->dense && s->count > 0)) {
    return weft_whyf(why, WEFT_E_STATE, "source: no communicator, or not loaded dense");
  }
  weft_err err = wefti_gpu_enter(&s->gpu, &inner);
  if (err == WEFT_OK) {
    err = make_events(&j, &inner);
  }
  if (err == WEFT_OK) {
    err = send_all(&j, packing, &inner);
  }
  if (err != WEFT_OK) {
    (void)weft_whyf(why, err, "%zu broadcasts had been sent: %.400s", j.done, inner.text);
  }
  if (err == WEFT_OK || wefti_group_abort(&s->group, WEFTI_SOURCE_ABORT_MS)) {
    for (size_t i = 0; i < WINDOW; i++) {
      if (j.sent[i] != NULL) {
        (void)s->gpu.cuda.EventDestroy(j.sent[i]);
      }
    }
  }
  return err;
}
