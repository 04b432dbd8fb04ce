/* nccl_world.h -- the nccl or the sparse_nccl backend on GPU 1 of the doubles, and a
 * trainer for it: set up, in one communicator, told what to send.  Not here: what is
 * tested. */
#ifndef WEFT_NCCL_WORLD_H
#define WEFT_NCCL_WORLD_H

#include "gpu_fixture.h"

#include <inttypes.h>

typedef struct world {
  trainer t;
  const weft_transfer_ops *ops;
  void *backend;
  weft_memory *memory;
} world;

static const weft_transfer_who alone = { .epoch = 7, .world_size = 1 };

static inline void *open_backend(const weft_transfer_ops *ops, uint64_t no_progress_ms)
{
  const weft_device_opts device = {
    .size = sizeof device, .cudart = WEFT_FAKE_CUDART, .nccl = WEFT_FAKE_NCCL, .device = 1
  };
  const weft_transfer_opts opts = { .size = sizeof opts,
                                    .device = &device,
                                    .no_progress_ms = no_progress_ms };
  void *state = NULL;
  weft_why why = { 0 };
  if (ops->open(&opts, &state, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  return state;
}

static inline void *open_nccl(uint64_t no_progress_ms)
{
  return open_backend(weft_transfer_nccl(), no_progress_ms);
}

static inline int set_up_for(void **state, const weft_transfer_ops *ops)
{
  world *w = calloc(1, sizeof *w);
  assert_non_null(w);
  setenv("WEFT_FAKE_GPUS", "4", 1);
  const weft_memory_cuda_opts memory = {
    .size = sizeof memory,
    .device = { .size = sizeof memory.device, .cudart = WEFT_FAKE_CUDART, .device = 1 }
  };
  assert_ok(weft_memory_cuda_create(&memory, &w->memory, NULL));
  w->ops = ops;
  w->backend = open_backend(ops, 20000);
  trainer_open(&w->t, 2);
  *state = w;
  return 0;
}

static inline int set_up(void **state)
{
  return set_up_for(state, weft_transfer_nccl());
}

static inline int tear_down(void **state)
{
  world *w = *state;
  trainer_close(&w->t);
  w->ops->close(w->backend);
  weft_memory_destroy(w->memory);
  free(w);
  return 0;
}

static inline weft_err init_with(world *w, const char *more, const atomic_bool *cancel,
                                 uint32_t timeout_ms, weft_why *why)
{
  char info[512];
  weft_transfer_who who = alone;
  who.timeout_ms = timeout_ms;
  (void)snprintf(info, sizeof info,
                 "{\"nccl_unique_id_b64\":\"%s\",\"rank_offset\":1,\"world_size\":%d%s}",
                 w->t.id_text, w->t.ranks, more);
  return w->ops->init(w->backend, info, strlen(info), &who, cancel, why);
}

/* Both sides in one communicator. */
static inline void meet(world *w, const char *more)
{
  weft_why why = { 0 };
  trainer_start(&w->t);
  if (init_with(w, more, NULL, 20000, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  assert_int_equal(trainer_join_thread(&w->t), 0);
}

static inline char *update_of(const uint64_t *sizes, size_t count, const char *more)
{
  char *text = NULL;
  size_t len = 0;
  FILE *f = open_memstream(&text, &len);
  assert_non_null(f);
  (void)fprintf(f, "{\"names\":[");
  for (size_t i = 0; i < count; i++) {
    (void)fprintf(f, "%s\"t%zu\"", i > 0 ? "," : "", i);
  }
  (void)fprintf(f, "],\"dtype_names\":[");
  for (size_t i = 0; i < count; i++) {
    (void)fprintf(f, "%s\"%s\"", i > 0 ? "," : "", i % 2 ? "float8_e4m3fn" : "uint8");
  }
  (void)fprintf(f, "],\"shapes\":[");
  for (size_t i = 0; i < count; i++) {
    (void)fprintf(f, "%s[%" PRIu64 "]", i > 0 ? "," : "", sizes[i]);
  }
  (void)fprintf(f, "]%s}", more);
  (void)fclose(f);
  return text;
}

static inline weft_plan *accept_text(world *w, const char *text)
{
  weft_plan *plan = NULL;
  weft_why why = { 0 };
  if (w->ops->accept(w->backend, text, strlen(text), &alone, &plan, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  return plan;
}

static inline void send_these(world *w, const uint64_t *sizes, size_t count,
                              uint64_t packed, unsigned seed)
{
  w->t.sizes = sizes;
  w->t.count = count;
  w->t.packed = packed;
  w->t.seed = seed;
  w->t.warm_only = false;
}

#endif /* WEFT_NCCL_WORLD_H */
