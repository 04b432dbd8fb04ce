/* worker_world.h -- one worker under the seeded scheduler, an engine that asks it what
 * the test says and keeps the answers, and a device thread: the real one or a double that
 * answers when and what the test says.  Not for more than one worker. */
#ifndef WEFT_WORKER_WORLD_H
#define WEFT_WORKER_WORLD_H

#include "weft_test.h"

#include "device.h"
#include "weft/messages.h"
#include "weft/sim.h"
#include "worker.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD_ANSWERS = 2048, WORLD_JOBS = 2048, WORLD_BOOT = 77, WORLD_INCARNATION = 5 };

typedef struct world {
  weft_sim *sim;
  weft_actor_id engine, worker, device_actor;
  wefti_device *device;
  uint64_t boot, incarnation, op;
  /* engine double */
  const weft_msg *ask; /* put to the worker at the next trigger */
  uint64_t corr;       /* of the last question */
  weft_msg *answers[WORLD_ANSWERS];
  size_t answer_count;
  /* device double */
  bool hold; /* jobs wait for world_release */
  weft_device_job jobs[WORLD_JOBS];
  size_t job_count;
  weft_device_run last_run; /* without its str and buf fields */
  weft_return held;
  bool is_held;
  weft_device_done done; /* what the next jobs are answered with */
  uint64_t worker_ended; /* reason + 1 */
} world;

typedef struct double_state {
  world *w;
} double_state;

static weft_err double_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  memcpy(&((double_state *)self)->w, &args, sizeof args);
  return WEFT_OK;
}

static weft_err engine_double_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  world *w = ((double_state *)self)->w;
  if (msg->type == WEFT_MSG_CLIENT_GONE) { /* the test's trigger */
    w->corr = weft_ask(ctx, w->worker, weft_msg_make(ctx, w->ask), 0);
  } else if (msg->type == WEFT_MSG_CLIENT_QUERY) {
    (void)weft_monitor(ctx, w->worker);
  } else if (msg->type == WEFT_MSG_DOWN) {
    w->worker_ended = 1 + ((const weft_down_msg *)msg)->reason;
  } else if (msg->type != WEFT_MSG_ASK_FAILED) {
    assert_true(w->answer_count < WORLD_ANSWERS);
    w->answers[w->answer_count] = weft_msg_dup(weft_messages(), msg);
    w->answers[w->answer_count++]->corr = msg->corr;
  }
  return WEFT_OK;
}

static void device_double_answer(weft_ctx *ctx, world *w)
{
  weft_device_done done = w->done;
  done.h.type = WEFT_MSG_DEVICE_DONE;
  const weft_device_run *run = &w->last_run;
  const uint64_t digest[2] = { run->epoch, 1 };
  const weft_snapshot *s;
  if (run->job == WEFT_DEVICE_FINISH && done.err == WEFT_OK) {
    assert_ok(wefti_store_install(w->device->store, run->epoch, NULL, 0, digest, &s));
    done.digest_hi = digest[0];
    done.digest_lo = digest[1];
  } else if (run->job == WEFT_DEVICE_ABANDON) {
    wefti_store_drop(w->device->store, run->epoch);
  }
  (void)weft_reply(ctx, w->held, weft_msg_make(ctx, &done.h));
  w->is_held = false;
}

static weft_err device_double_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  world *w = ((double_state *)self)->w;
  if (msg->type == WEFT_MSG_CLIENT_GONE) {
    device_double_answer(ctx, w);
    return WEFT_OK;
  }
  if (msg->type != WEFT_MSG_DEVICE_RUN) {
    return WEFT_E_STATE;
  }
  assert_false(w->is_held); /* one job at a time */
  assert_true(w->job_count < WORLD_JOBS);
  w->last_run = *(const weft_device_run *)msg;
  w->last_run.info = NULL;
  w->jobs[w->job_count++] = (weft_device_job)w->last_run.job;
  w->held = weft_return_of(msg);
  w->is_held = true;
  if (!w->hold) {
    device_double_answer(ctx, w);
  }
  return WEFT_OK;
}

static const weft_actor_class engine_double = { .name = "engine",
                                                .state_size = sizeof(double_state),
                                                .init = double_init,
                                                .on = engine_double_on };
static const weft_actor_class device_double = { .name = "device",
                                                .state_size = sizeof(double_state),
                                                .init = double_init,
                                                .on = device_double_on };

static void world_idle(world *w)
{
  while (weft_sim_step(w->sim)) {
  }
}

static const weft_msg *world_answer(const world *w, uint64_t corr)
{
  for (size_t i = 0; i < w->answer_count; i++) {
    if (w->answers[i]->corr == corr) {
      return w->answers[i];
    }
  }
  return NULL;
}

/* How many answers a question got: one, or none yet. */
static inline size_t world_answers_to(const world *w, uint64_t corr)
{
  size_t count = 0;
  for (size_t i = 0; i < w->answer_count; i++) {
    count += w->answers[i]->corr == corr;
  }
  return count;
}

/* Puts msg to the worker as it is and lets everything run.  NULL = no answer yet. */
static const weft_msg *world_put(world *w, const weft_msg *msg)
{
  const weft_client_gone trigger = { .h.type = WEFT_MSG_CLIENT_GONE };
  w->ask = msg;
  w->corr = 0;
  if (weft_sim_send(w->sim, w->engine, &trigger.h) !=
      WEFT_OK) { /* met a failure to come */
    assert_ok(weft_sim_send(w->sim, w->engine, &trigger.h));
  }
  world_idle(w);
  assert_true(w->corr != 0);
  return world_answer(w, w->corr);
}

/* The same with the envelope filled in, epoch as given, a new op. */
#define world_ask(w, lower, upper, epoch_, ...)                                          \
  world_put((w), &(weft_##lower){ .h.type = WEFT_MSG_##upper,                            \
                                  .boot = (w)->boot,                                     \
                                  .incarnation = (w)->incarnation,                       \
                                  .epoch = (epoch_),                                     \
                                  .op = ++(w)->op,                                       \
                                  __VA_ARGS__ }                                          \
                      .h)

/* The device double answers the job it holds. */
static inline void world_release(world *w)
{
  const weft_client_gone trigger = { .h.type = WEFT_MSG_CLIENT_GONE };
  assert_true(w->is_held);
  assert_ok(weft_sim_send(w->sim, w->device_actor, &trigger.h));
  world_idle(w);
}

static const weft_msg *world_adopt(world *w, uint64_t sequence, const uint64_t digest[2])
{
  const weft_msg *m =
      world_ask(w, w_adopt, W_ADOPT, 0, .rank = 0, .world_size = 2, .sequence = sequence,
                .digest_hi = digest[0], .digest_lo = digest[1]);
  const weft_w_state *s = (const weft_w_state *)m;
  if (m == NULL || m->type != WEFT_MSG_W_STATE || s->again == 0) {
    return m;
  }
  return world_ask(w, w_adopt, W_ADOPT, 0, .rank = 0, .world_size = 2,
                   .sequence = sequence, .digest_hi = digest[0], .digest_lo = digest[1],
                   .echo_ns = s->stamp_ns);
}

static world *world_begin_with(uint64_t seed, wefti_device *real, bool needs_grant)
{
  world *w = calloc(1, sizeof *w);
  assert_non_null(w);
  w->boot = WORLD_BOOT;
  w->incarnation = WORLD_INCARNATION;
  const weft_sim_opts opts = { .size = sizeof opts,
                               .seed = seed,
                               .catalogue = weft_messages() };
  assert_ok(weft_sim_create(&opts, &w->sim));
  w->device = real;
  if (!real) {
    const weft_store_opts store = { .size = sizeof store, .needs_grant = needs_grant };
    w->device = calloc(1, sizeof *w->device);
    assert_non_null(w->device);
    assert_ok(weft_store_create(&store, &w->device->store));
    w->device->pid = 4242;
  }
  assert_ok(weft_sim_spawn(w->sim, real ? &wefti_device_class : &device_double,
                           real ? (const void *)real : (const void *)w, NULL,
                           &w->device_actor));
  const wefti_worker_args args = { .device = w->device,
                                   .device_actor = w->device_actor,
                                   .incarnation = WORLD_INCARNATION };
  assert_ok(weft_sim_spawn(w->sim, &wefti_worker_class, &args, NULL, &w->worker));
  assert_ok(weft_sim_spawn(w->sim, &engine_double, w, NULL, &w->engine));
  const weft_client_query watch = { .h.type = WEFT_MSG_CLIENT_QUERY };
  assert_ok(weft_sim_send(w->sim, w->engine, &watch.h));
  world_idle(w);
  return w;
}

static void world_end(world *w)
{
  const bool real = w->device->transfer != NULL;
  weft_sim_destroy(w->sim);
  for (size_t i = 0; i < w->answer_count; i++) {
    weft_msg_drop(weft_messages(), w->answers[i]);
  }
  if (real) {
    wefti_device_destroy(w->device);
  } else {
    weft_store_destroy(w->device->store);
    free(w->device);
  }
  free(w);
}

/* Both give the message as its type, or fail the test with what came instead. */
#define world_as(msg, lower, upper)                                                      \
  ((const weft_##lower *)world_is((msg), WEFT_MSG_##upper))
static const weft_msg *world_is(const weft_msg *msg, uint16_t type)
{
  if (!msg) {
    fail_msg("no answer, want %s", weft_msg_desc_of(weft_messages(), type)->name);
  } else if (msg->type != type) {
    const weft_w_refused *r = (const weft_w_refused *)msg;
    fail_msg("got %s %s, want %s", weft_msg_desc_of(weft_messages(), msg->type)->name,
             msg->type == WEFT_MSG_W_REFUSED ? r->text.p : "",
             weft_msg_desc_of(weft_messages(), type)->name);
  }
  return msg;
}

static void world_refused(const weft_msg *msg, weft_err err)
{
  const weft_w_refused *r = world_as(msg, w_refused, W_REFUSED);
  assert_err((weft_err)r->err, err);
  assert_true(r->text.len > 0);
}

#endif /* WEFT_WORKER_WORLD_H */
