/* The device thread: the real device actor, reached through a gate that makes its jobs
 * take time, hang or end late; with memory of malloc and a transfer backend whose bytes
 * are named in update_info: {"push":K,"mask":M} writes K into each tensor of M. */
#include "full.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory */

static full_process *owner(weft_memory *m)
{
  return (full_process *)(void *)((char *)m - offsetof(full_process, memory));
}

static weft_err mem_reserve(weft_memory *m, uint64_t bytes, weft_why *why)
{
  (void)m, (void)bytes, (void)why;
  return WEFT_OK;
}

static weft_err mem_alloc(weft_memory *m, uint64_t bytes, weft_extent *out, weft_why *why)
{
  (void)why;
  *out = (weft_extent){ .slab = 1, .bytes = bytes, .ptr = calloc(1, bytes) };
  owner(m)->memory_held++;
  return out->ptr == NULL ? WEFT_E_NOMEM : WEFT_OK;
}

static void mem_free(weft_memory *m, const weft_extent *extent)
{
  owner(m)->memory_held--;
  free(extent->ptr);
}

static void mem_trim(weft_memory *m, uint64_t keep)
{
  (void)m, (void)keep;
}

static int mem_fd(weft_memory *m, uint32_t slab, uint64_t *bytes)
{
  (void)m, (void)slab, (void)bytes;
  return -1;
}

static void mem_stats(weft_memory *m, weft_memory_stats *out)
{
  (void)m;
  *out = (weft_memory_stats){ 0 };
}

static void mem_mark(weft_memory *m, uint32_t slab, bool dirty)
{
  (void)slab;
  owner(m)->marked = dirty;
}

static void mem_destroy(weft_memory *m)
{
  (void)m;
}

static const weft_memory_ops memory_ops = { .name = "sim",
                                            .reserve = mem_reserve,
                                            .alloc = mem_alloc,
                                            .free = mem_free,
                                            .trim = mem_trim,
                                            .slab_fd = mem_fd,
                                            .stats = mem_stats,
                                            .destroy = mem_destroy,
                                            .mark = mem_mark };

/* ---- transfer */

typedef struct sim_plan {
  weft_plan pub; /* first */
  unsigned push;
  uint64_t epoch;
  weft_plan_tensor tensors[FULL_TENSORS];
} sim_plan;

static weft_err t_open(const weft_transfer_opts *opts, void **state, weft_why *why)
{
  (void)opts, (void)why;
  *state = NULL;
  return WEFT_OK;
}

static full_trouble *trouble_of(const full_process *p)
{
  return &p->w->trouble[p->rank];
}

static bool once(bool *flag)
{
  const bool was = *flag;
  *flag = false;
  return was;
}

static weft_err t_init(void *state, const char *info, size_t len,
                       const weft_transfer_who *who, const atomic_bool *cancel,
                       weft_why *why)
{
  const full_process *p = state;
  (void)info, (void)len, (void)who;
  if (once(&trouble_of(p)->fail_receive)) {
    return weft_whyf(why, WEFT_E_FAILED, "made to fail");
  }
  return atomic_load(cancel) && !trouble_of(p)->ignores_cancel
             ? weft_whyf(why, WEFT_E_CANCELLED, "cancelled")
             : WEFT_OK;
}

static weft_err t_accept(void *state, const char *info, size_t len,
                         const weft_transfer_who *who, weft_plan **plan, weft_why *why)
{
  static const char *const names[FULL_TENSORS] = { "t0", "t1", "t2" };
  full_process *p = state;
  unsigned push = 0;
  unsigned mask = 0;
  char text[64];
  (void)snprintf(text, sizeof text, "%.*s", (int)len, info);
  if (sscanf(text, "{\"push\":%u,\"mask\":%u}", &push, &mask) != 2) {
    return weft_whyf(why, WEFT_E_INVAL, "not an update: %s", text);
  }
  if (once(&trouble_of(p)->fail_accept)) {
    return weft_whyf(why, WEFT_E_INVAL, "made to refuse");
  }
  sim_plan *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return WEFT_E_NOMEM;
  }
  for (unsigned i = 0; i < FULL_TENSORS; i++) {
    if ((mask & (1u << i)) != 0) {
      made->tensors[made->pub.count++] =
          (weft_plan_tensor){ .name = names[i], .bytes = 8, .dtype = WEFT_DTYPE_INT64 };
    }
  }
  made->pub.tensors = made->tensors;
  made->pub.bytes = 8 * made->pub.count;
  made->push = push;
  made->epoch = who->epoch;
  *plan = &made->pub;
  return WEFT_OK;
}

static weft_err t_receive(void *state, weft_plan *plan, void *const *dst,
                          weft_digest *digests, const atomic_bool *cancel,
                          weft_progress_fn *progress, void *arg, weft_why *why)
{
  full_process *p = state;
  const sim_plan *mine = (const sim_plan *)plan;
  full_trouble *t = trouble_of(p);
  (void)progress, (void)arg;
  if (atomic_load(cancel) && !t->ignores_cancel) {
    return weft_whyf(why, WEFT_E_CANCELLED, "cancelled");
  }
  /* Differently on each rank: where all agree on wrong bytes, nobody can know. */
  const bool corrupt = once(&t->corrupt) && p->w->ranks > 1;
  const int64_t value =
      (int64_t)mine->push + (corrupt ? 1000000 * (1 + (int64_t)p->rank) : 0);
  if (p->w->opts.inplace && once(&t->fail_first)) {
    return weft_whyf(why, WEFT_E_FAILED, "made to fail before the first byte");
  }
  if (plan->count > 0 && plan->on_write != NULL) {
    plan->on_write(plan->on_write_arg);
  }
  for (size_t i = 0; i < plan->count; i++) {
    memcpy(dst[i], &value, sizeof value);
    digests[i] = weft_digest_of(&value, sizeof value);
    full_check_written(p, dst[i]);
    if (t->fail_receive && p->w->opts.inplace) {
      break; /* the other tensors are as they were */
    }
  }
  if (once(&t->fail_receive)) { /* half-way */
    return weft_whyf(why, WEFT_E_FAILED, "made to fail");
  }
  if (p->got_count < sizeof p->got / sizeof p->got[0]) {
    p->got[p->got_count++] = (uint16_t)mine->push;
  }
  return WEFT_OK;
}

static void t_abandon(void *state, weft_plan *plan)
{
  (void)state;
  free(plan);
}

static void t_close(void *state)
{
  (void)state;
}

static const weft_transfer_ops transfer_ops = { .name = "sim",
                                                .open = t_open,
                                                .init = t_init,
                                                .accept = t_accept,
                                                .receive = t_receive,
                                                .abandon = t_abandon,
                                                .close = t_close };

static uint64_t sim_clock(void *arg)
{
  return weft_sim_now_ms(((const full *)arg)->sim) * 1000000u;
}

weft_err full_device_make(full_process *p)
{
  p->device = calloc(1, sizeof *p->device);
  if (p->device == NULL) {
    return WEFT_E_NOMEM;
  }
  const weft_store_opts store = { .size = sizeof store, .needs_grant = !p->child };
  const weft_err err = weft_store_create(&store, &p->device->store);
  if (err != WEFT_OK) {
    return err;
  }
  wefti_store_set_clock(p->device->store, sim_clock, p->w);
  p->memory.ops = &memory_ops;
  p->device->memory = &p->memory;
  p->device->transfer = &transfer_ops;
  p->device->backend = p;
  p->device->tp = p->w->ranks;
  p->device->pp = 1;
  p->device->inplace = p->w->opts.inplace;
  p->device->pid = 1000 + p->index;
  p->device->draft = p->w->opts.draft;
  wefti_device_on_install(p->device, full_on_install, p);
  full_keeper_make(p);
  full_lender_make(p);
  return WEFT_OK;
}

/* ---- the gate */

typedef struct gate {
  full_process *p;
  weft_msg *run;  /* held, or handed to the real device */
  weft_return to; /* who waits for it */
  weft_msg *done; /* its answer, held */
} gate;

enum { TAG_RUN = 1, TAG_DONE = 2, TAG_LOOK = 3, LOOK_MS = 50 };

static bool is_session(const weft_msg *run)
{
  return ((const weft_device_run *)run)->job <= WEFT_DEVICE_FINISH;
}

static void hand_over(weft_ctx *ctx, gate *g)
{
  if (trouble_of(g->p)->device_hangs && is_session(g->run) &&
      weft_timer_start(ctx, LOOK_MS, TAG_LOOK) != 0) {
    return;
  }
  const weft_device_run *run = (const weft_device_run *)g->run;
  if (run->job == WEFT_DEVICE_OPEN) {
    g->p->session_epoch = run->epoch;
    g->p->got_count = 0;
  }
  (void)weft_ask(ctx, g->p->real, weft_msg_make(ctx, g->run), 0);
}

/* done NULL: the question or its answer found no memory. */
static void say(weft_ctx *ctx, gate *g, const weft_msg *done)
{
  weft_msg_drop(weft_messages(), g->run);
  g->run = NULL;
  g->p->busy = false;
  (void)weft_reply(ctx, g->to, done == NULL ? NULL : weft_msg_make(ctx, done));
}

static void say_done(weft_ctx *ctx, gate *g)
{
  weft_msg *done = g->done;
  g->done = NULL;
  say(ctx, g, done);
  weft_msg_drop(weft_messages(), done);
}

static bool later(weft_ctx *ctx, const gate *g, uint64_t tag)
{
  const uint32_t slow = trouble_of(g->p)->device_slow_ms;
  const uint64_t ms = slow == 0 ? 0 : full_random(g->p->w, slow);
  return ms > 0 && weft_timer_start(ctx, ms, tag) != 0;
}

static void take_run(weft_ctx *ctx, gate *g, const weft_msg *msg)
{
  const weft_device_run *run = (const weft_device_run *)msg;
  if (g->p->busy) {
    full_break(g->p->w, "I3: rank %u gives its device thread a second job", g->p->rank);
    return;
  }
  g->p->busy = true;
  g->p->job = (weft_device_job)run->job;
  g->p->job_epoch = run->epoch;
  g->to = weft_return_of(msg);
  g->run = weft_msg_dup(weft_messages(), msg);
  if (!later(ctx, g, TAG_RUN)) {
    hand_over(ctx, g);
  }
}

static weft_err gate_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  gate *g = self;
  if (msg->type == WEFT_MSG_DEVICE_RUN) {
    take_run(ctx, g, msg);
  } else if (msg->type == WEFT_MSG_DEVICE_DONE) {
    g->done = weft_msg_dup(weft_messages(), msg);
    if (!later(ctx, g, TAG_DONE)) {
      say_done(ctx, g);
    }
  } else if (msg->type == WEFT_MSG_TIMER) {
    const uint64_t tag = ((const weft_timer_msg *)msg)->tag;
    if (tag == TAG_DONE) {
      say_done(ctx, g);
    } else {
      hand_over(ctx, g);
    }
  } else if (msg->type == WEFT_MSG_ASK_FAILED && g->run != NULL) {
    say(ctx, g, NULL); /* never run twice: where only the answer is lost, it is done */
  } else if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
  }
  return WEFT_OK;
}

static weft_err gate_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  memcpy(&((gate *)self)->p, args, sizeof(full_process *));
  return WEFT_OK;
}

static void gate_fini(weft_ctx *ctx, void *self)
{
  gate *g = self;
  (void)ctx;
  if (g->run != NULL) {
    weft_msg_drop(weft_messages(), g->run);
  }
  if (g->done != NULL) {
    weft_msg_drop(weft_messages(), g->done);
  }
}

const weft_actor_class full_gate_class = { "device_thread", sizeof(gate), gate_init,
                                           gate_fini, gate_on };
