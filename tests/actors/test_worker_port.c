/* A worker behind its port, as in a process of its own: what waits there must not keep
 * out what may not wait. */
#define _GNU_SOURCE /* mkdtemp */
#include "weft_test.h"

#include "device.h"
#include "ports.h"
#include "weft/link.h"
#include "weft/messages.h"
#include "weft/runtime.h"
#include "worker.h"
#include "worker_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  BOOT = 3,
  LIFE = 4,
  EPOCH = 1,
  PATIENCE_MS = 60000, /* of the test, for a machine under load */
  BEATS = 4,           /* a heartbeat and what else may come at the same time */
  SETTLE_MS = 3000     /* the engine's own, for a heartbeat: more than enough here */
};

/* A device thread that answers nothing but the opening of a session. */
static weft_err stuck_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  (void)self;
  if (msg->type == WEFT_MSG_DEVICE_RUN &&
      ((const weft_device_run *)msg)->job == WEFT_DEVICE_OPEN) {
    const weft_device_done done = { .h.type = WEFT_MSG_DEVICE_DONE };
    (void)weft_reply(ctx, weft_return_of(msg), weft_msg_make(ctx, &done.h));
  } else if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
  }
  return WEFT_OK;
}
static const weft_actor_class stuck_class = { .name = "device", .on = stuck_on };

/* The engine: fills the worker up, then asks what must be answered all the same. */
typedef struct asker {
  weft_actor_id link;
  weft_return test;
  uint64_t op, beats[BEATS];
  unsigned answered;
} asker;

#define ASK(ctx, a, lower, upper, epoch_, ms, ...)                                       \
  weft_ask((ctx), (a)->link,                                                             \
           weft_msg_make((ctx), &(weft_##lower){ .h.type = WEFT_MSG_##upper,             \
                                                 .boot = BOOT,                           \
                                                 .incarnation = LIFE,                    \
                                                 .epoch = (epoch_),                      \
                                                 .op = ++(a)->op,                        \
                                                 __VA_ARGS__ }                           \
                                     .h),                                                \
           (ms))

static void end_test(weft_ctx *ctx, asker *a, weft_err err)
{
  const weft_client_done done = { .h.type = WEFT_MSG_CLIENT_DONE, .err = (uint32_t)err };
  (void)weft_reply(ctx, a->test, weft_msg_make(ctx, &done.h));
  a->test = (weft_return){ 0 };
}

static void fill_up(weft_ctx *ctx, asker *a)
{
  for (unsigned i = 0; i < 1 + WORKER_WAITING_MAX; i++) {
    (void)ASK(ctx, a, w_query, W_QUERY, 0, 0, .what = WEFT_QUERY_CHECKSUM);
  }
  for (unsigned i = 0; i < WORKER_ABORTS_MAX; i++) {
    (void)ASK(ctx, a, w_abort, W_ABORT, EPOCH, 0, .reason = WEFT_STR("test"));
  }
  for (unsigned i = 0; i < BEATS; i++) {
    a->beats[i] = ASK(ctx, a, w_beat, W_BEAT, 0, SETTLE_MS, .grant = 1, .grant_ms = 2000);
  }
}

static weft_err asker_init(weft_ctx *ctx, void *self, const void *args)
{
  const weft_link_opts opts = { .size = sizeof opts, .url = args };
  return weft_link_spawn(ctx, &opts, &((asker *)self)->link);
}

static weft_err asker_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  asker *a = self;
  bool of_beat = false;
  for (unsigned i = 0; i < BEATS; i++) {
    of_beat = of_beat || (msg->corr != 0 && msg->corr == a->beats[i]);
  }
  if (msg->type == WEFT_MSG_CLIENT_QUERY) { /* the test's trigger */
    a->test = weft_return_of(msg);
    (void)ASK(ctx, a, w_adopt, W_ADOPT, 0, 0, .world_size = 1);
  } else if (msg->type == WEFT_MSG_W_OK) {
    fill_up(ctx, a);
  } else if (msg->type == WEFT_MSG_ASK_FAILED) {
    end_test(ctx, a, (weft_err)((const weft_ask_failed_msg *)msg)->reason);
  } else if (msg->type == WEFT_MSG_W_STATE && !of_beat) {
    (void)ASK(ctx, a, w_start, W_START, EPOCH, 0, .draft = 0);
  } else if (msg->type == WEFT_MSG_W_STATE && ++a->answered == BEATS) {
    end_test(ctx, a, WEFT_OK);
  } else if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
  }
  return WEFT_OK;
}
static const weft_actor_class asker_class = {
  .name = "asker", .state_size = sizeof(asker), .init = asker_init, .on = asker_on
};

static void what_waits_does_not_keep_heartbeats_out(void **state)
{
  (void)state;
  char dir[] = "/tmp/weft-port-XXXXXX";
  char url[128], real[128];
  assert_non_null(mkdtemp(dir));
  (void)snprintf(url, sizeof url, "ipc://%s/w", dir);
  const wefti_device_opts device_opts = { .size = sizeof device_opts };
  wefti_device *device;
  weft_runtime *rt;
  weft_actor_id stuck, peer, port, ask;
  assert_ok(wefti_device_create(&device_opts, &device, NULL));
  const weft_runtime_opts opts = { .size = sizeof opts,
                                   .loops = 3,
                                   .catalogue = weft_messages() };
  assert_ok(weft_runtime_create(&opts, &rt));
  assert_ok(weft_runtime_spawn(rt, 1, &stuck_class, NULL, NULL, &stuck));
  const wefti_worker_args args = { .device = device,
                                   .device_actor = stuck,
                                   .incarnation = LIFE };
  assert_ok(weft_runtime_spawn(rt, 0, &wefti_worker_class, &args, NULL, &peer));
  const weft_port_opts port_opts = wefti_worker_port(url, peer);
  assert_ok(weft_port_spawn_on(rt, 0, &port_opts, real, sizeof real, &port, NULL));
  assert_ok(weft_runtime_spawn(rt, 2, &asker_class, real, NULL, &ask));
  assert_ok(weft_runtime_start_all(rt));

  const weft_client_query trigger = { .h.type = WEFT_MSG_CLIENT_QUERY };
  weft_msg *answer = NULL;
  assert_ok(weft_call(rt, ask, weft_msg_dup(weft_messages(), &trigger.h), PATIENCE_MS,
                      &answer));
  assert_int_equal(answer->type, WEFT_MSG_CLIENT_DONE);
  const weft_err err = (weft_err)((const weft_client_done *)answer)->err;
  weft_msg_drop(weft_messages(), answer);
  weft_runtime_stop(rt, PATIENCE_MS);
  weft_runtime_join(rt);
  weft_runtime_destroy(rt);
  wefti_device_destroy(device);
  (void)unlink(url + sizeof "ipc://" - 1);
  assert_int_equal(rmdir(dir), 0);
  assert_ok(err);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(what_waits_does_not_keep_heartbeats_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
