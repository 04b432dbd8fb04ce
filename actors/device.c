/* The device actor: one job at a time, each may block its loop's thread, which is its
 * own. */
#include "device.h"

#include "weft/actor.h"
#include "weft/json.h"
#include "weft/messages.h"

#include <inttypes.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

enum { LATE_MS = 1, LOOK_MS = 200 /* what failed is told before */ };
enum { TIMER_LATE = 0, TIMER_LOOK };

typedef struct device_actor {
  wefti_device *device;
  wefti_device_session session;
  bool timer; /* runs */
  bool look;  /* its timer runs */
} device_actor;

/* ---- jobs */

/* An init has two steps as everything that may be collective has: what is plainly wrong
 * is refused before any rank goes in. */
static weft_err accept_init(wefti_device_session *s, const weft_device_run *m,
                            const weft_transfer_who *who, weft_why *why)
{
  weft_json *root = NULL;
  if (s->epoch != 0) {
    return weft_whyf(why, WEFT_E_STATE, "epoch %" PRIu64 " is still open here", s->epoch);
  }
  weft_err err = m->info ? weft_json_parse(m->info->data, m->info->len, NULL, &root, why)
                         : weft_whyf(why, WEFT_E_INVAL, "init_info is missing");
  const bool nobody = weft_json_kind_of(root) == WEFT_JSON_NULL;
  if (err == WEFT_OK && !nobody && weft_json_kind_of(root) != WEFT_JSON_OBJECT) {
    err = weft_whyf(why, WEFT_E_INVAL, "init_info is not a JSON object");
  }
  weft_json_free(root);
  const weft_transfer_ops *transfer = s->device->transfer;
  if (err == WEFT_OK && !nobody && transfer->check_init) {
    err = transfer->check_init(s->device->backend, (const char *)m->info->data,
                               m->info->len, who, why);
  }
  if (err == WEFT_OK) {
    s->epoch = m->epoch;
    s->init = weft_buf_ref(m->info);
    s->nobody = nobody;
  }
  return err;
}

static weft_err go_init(wefti_device_session *s, const weft_transfer_who *who,
                        weft_why *why)
{
  wefti_device *device = s->device;
  if (s->epoch != who->epoch || !s->init) {
    return weft_whyf(why, WEFT_E_STATE, "no init of epoch %" PRIu64 " was accepted",
                     who->epoch);
  }
  const weft_transfer_ops *transfer = device->transfer;
  weft_err err = WEFT_OK;
  if (!s->nobody) {
    err = transfer->init(device->backend, (const char *)s->init->data, s->init->len, who,
                         &device->cancel, why);
  } else if (transfer->release) {
    err = transfer->release(device->backend, why);
  }
  wefti_session_close(s);
  return err;
}

/* Giving much memory back takes seconds: a job of its own, that ends early when another
 * one waits. */
static void tidy(wefti_device *device)
{
  wefti_store_state st;
  wefti_store_reap(device->store);
  wefti_store_state_get(device->store, &st);
  /* Room for one full update stays, where there will be need of it. */
  weft_memory_trim(device->memory, device->inplace ? 0 : st.bytes);
  if (device->kept) {
    weft_memory_trim(device->kept, 0);
  }
}

/* Tables of an update of many tensors come to several times what stays of them. */
static void trim_heap(const wefti_device *device)
{
#ifdef __GLIBC__
  if (device->on_lost) {
    (void)malloc_trim(0);
  }
#else
  (void)device;
#endif
}

static void abandon(device_actor *self, uint64_t epoch)
{
  wefti_device *device = self->device;
  wefti_session_close(&self->session);
  wefti_store_drop(device->store, epoch);
  if (device->on_install) {
    device->on_install(device->on_install_arg, epoch, NULL);
  }
}

static weft_err finish(wefti_device_session *s, const weft_device_run *m,
                       wefti_device_result *out, weft_why *why)
{
  if (s->epoch != m->epoch) {
    return weft_whyf(why, WEFT_E_STATE, "epoch %" PRIu64 " is not open here", m->epoch);
  }
  return wefti_session_finish(s, m->strict != 0, out, why);
}

static weft_err session_job(device_actor *self, const weft_device_run *m,
                            wefti_device_result *out, weft_why *why)
{
  wefti_device_session *s = &self->session;
  const weft_transfer_who who = { .epoch = m->epoch,
                                  .rank = m->rank,
                                  .world_size = m->world_size,
                                  .dp_index = m->dp_index,
                                  .timeout_ms = m->timeout_ms,
                                  .draft = s->draft };
  const bool init = m->what == WEFT_TRANSFER_INIT;
  weft_err err;
  if (m->job == WEFT_DEVICE_OPEN) {
    err = wefti_session_open(s, m, why);
  } else if (m->job == WEFT_DEVICE_ACCEPT) {
    err = init ? accept_init(s, m, &who, why)
               : wefti_session_accept(s, m->info, &who, out, why);
  } else if (m->job == WEFT_DEVICE_GO) {
    err =
        init ? go_init(s, &who, why) : wefti_session_receive(s, m->timeout_ms, out, why);
  } else {
    err = finish(s, m, out, why);
    if (err == WEFT_OK) {
      wefti_session_close(s); /* what it staged is installed */
    }
  }
  if (err != WEFT_OK && !out->correctable) {
    wefti_session_close(s);
  }
  return err;
}

static weft_err run_job(device_actor *self, const weft_device_run *m,
                        wefti_device_result *out, weft_why *why)
{
  wefti_device *device = self->device;
  if (m->job == WEFT_DEVICE_WEIGHTS || m->job == WEFT_DEVICE_CHECKSUM ||
      m->job == WEFT_DEVICE_RESET) {
    wefti_store_state st;
    wefti_store_state_get(device->store, &st);
    if (st.dirty != 0) {
      return weft_whyf(why, WEFT_E_UNAVAIL,
                       "rank %" PRIu32 " is poisoned: its weights were written over in "
                       "place and not committed; a full update brings it back",
                       m->rank);
    }
  }
  switch ((weft_device_job)m->job) {
  case WEFT_DEVICE_OPEN:
  case WEFT_DEVICE_ACCEPT:
  case WEFT_DEVICE_GO:
  case WEFT_DEVICE_FINISH:
    return session_job(self, m, out, why);
  case WEFT_DEVICE_ABANDON:
    abandon(self, m->epoch);
    return WEFT_OK;
  case WEFT_DEVICE_WEIGHTS:
    return wefti_device_weights(device, &out->json, why);
  case WEFT_DEVICE_CHECKSUM:
    return wefti_device_checksum(device, m->rank, m->dp_index, &out->json, why);
  case WEFT_DEVICE_RESET:
    return wefti_device_reset(device, &out->json, why);
  case WEFT_DEVICE_RECALL:
    return wefti_device_recall(device, (const uint64_t[2]){ m->digest_hi, m->digest_lo },
                               why);
  case WEFT_DEVICE_FETCH:
    return wefti_device_fetch(device, m->info,
                              (const uint64_t[2]){ m->digest_hi, m->digest_lo },
                              m->timeout_ms, why);
  case WEFT_DEVICE_REAP:
    tidy(device);
    if (self->session.epoch == 0) { /* between updates */
      trim_heap(device);
    }
    return WEFT_OK;
  }
  return weft_whyf(why, WEFT_E_UNSUPPORTED, "no such job: %" PRIu32, m->job);
}

/* ---- the actor */

static weft_err device_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  device_actor *d = self;
  /* args is the device itself; copied, since const may not be cast away. */
  memcpy(&d->device, &args, sizeof args);
  d->session.device = d->device;
  return WEFT_OK;
}

static void device_fini(weft_ctx *ctx, void *self)
{
  (void)ctx;
  device_actor *d = self;
  wefti_session_close(&d->session);
}

static void answer(weft_ctx *ctx, const weft_device_run *m, weft_err err,
                   const wefti_device_result *r, const weft_why *why, uint64_t since_ns)
{
  const weft_device_done done = {
    .h.type = WEFT_MSG_DEVICE_DONE,
    .err = (uint32_t)err,
    .correctable = r->correctable ? 1 : 0,
    .text = err == WEFT_OK ? (weft_str){ 0 }
                           : (weft_str){ why->text, (uint32_t)strlen(why->text) },
    .digest_hi = r->digest_hi,
    .digest_lo = r->digest_lo,
    .tensors = r->tensors,
    .bytes = r->bytes,
    .received = r->received,
    .received_bytes = r->received_bytes,
    .missing = r->missing,
    .elapsed_us = (weft_now_ns(ctx) - since_ns) / 1000,
    .json = r->json,
    .set_tensors = r->set_tensors,
    .set_bytes = r->set_bytes,
    .set_digest_hi = r->set_digest[0],
    .set_digest_lo = r->set_digest[1],
  };
  (void)weft_reply(ctx, weft_return_of(&m->h), weft_msg_make(ctx, &done.h));
}

/* Digests go on between jobs.  Without memory for a timer they wait for the next job. */
static void go_on(weft_ctx *ctx, device_actor *d)
{
  if (!d->timer && wefti_late_advance(&d->session)) {
    d->timer = weft_timer_start(ctx, LATE_MS, TIMER_LATE) != 0;
  }
}

/* Without memory for a timer the next failure is looked at. */
static void look_later(weft_ctx *ctx, device_actor *d)
{
  if (!d->look && d->device->transfer->alive) {
    d->look = weft_timer_start(ctx, LOOK_MS, TIMER_LOOK) != 0;
  }
}

/* A context that is gone fails whatever comes: only another process gets a new one. */
static void look(weft_ctx *ctx, device_actor *d)
{
  weft_why why = { 0 };
  d->look = false;
  if (d->device->transfer->alive(d->device->backend, &why) == WEFT_OK) {
    return;
  }
  weft_log(ctx, WEFT_LOG_ERROR,
           "the GPU is lost to this process, which ends rank=%" PRIu32 " reason=%s",
           d->device->rank, why.text);
  if (d->device->on_lost) {
    d->device->on_lost(d->device->on_lost_arg, why.text);
  }
  weft_stop(ctx, WEFT_E_FAILED);
}

static void on_timer(weft_ctx *ctx, device_actor *d, const weft_timer_msg *m)
{
  if (m->tag == TIMER_LOOK) {
    look(ctx, d);
  } else {
    d->timer = false;
    go_on(ctx, d);
  }
}

static weft_err device_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  device_actor *d = self;
  if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  }
  if (msg->type == WEFT_MSG_TIMER) {
    on_timer(ctx, d, (const weft_timer_msg *)msg);
    return WEFT_OK;
  }
  if (msg->type != WEFT_MSG_DEVICE_RUN) {
    return WEFT_E_STATE; /* only the worker knows this actor */
  }
  const weft_device_run *m = (const weft_device_run *)msg;
  const uint64_t since_ns = weft_now_ns(ctx);
  wefti_device_result result = { 0 };
  weft_why why = { 0 };
  const weft_err err = run_job(d, m, &result, &why);
  answer(ctx, m, err, &result, &why, since_ns);
  if (err != WEFT_OK) {
    look_later(ctx, d);
  }
  go_on(ctx, d);
  weft_buf_unref(result.json);
  return WEFT_OK;
}

const weft_actor_class wefti_device_class = { .name = "device",
                                              .state_size = sizeof(device_actor),
                                              .init = device_init,
                                              .fini = device_fini,
                                              .on = device_on };

void wefti_device_owns_process(wefti_device *device, wefti_lost_fn *on_lost, void *arg)
{
  device->on_lost = on_lost;
  device->on_lost_arg = arg;
}
