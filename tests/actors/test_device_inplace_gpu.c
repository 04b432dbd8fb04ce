/* Staging in place in GPU memory, through worker and device actor on the doubles: what a
 * trainer sends over NCCL goes over the live tensors.  Nothing here ran on a GPU. */
#define _GNU_SOURCE /* mkdtemp */
#include "device_fixture.h"
#include "gpu_fixture.h"

enum { TENSORS = 3, BYTES = 300000 };

static const uint64_t sizes[TENSORS] = { BYTES, 5000, BYTES };

typedef struct gpu_world {
  fixture *f;
  trainer t;
  uint8_t *bytes[TENSORS]; /* what the trainer sends next */
  bool packed;             /* all of it in one buffer */
} gpu_world;

static void fill(gpu_world *w, size_t tensor, uint8_t with)
{
  memset(w->bytes[tensor], with, sizes[tensor]);
}

static gpu_world *begin_gpu(const char *manifest, unsigned no_progress_ms)
{
  gpu_world *w = calloc(1, sizeof *w);
  assert_non_null(w);
  setenv("WEFT_FAKE_GPUS", "4", 1);
  const wefti_device_opts opts = { .size = sizeof opts,
                                   .backend = "nccl",
                                   .cudart = WEFT_FAKE_CUDART,
                                   .nccl = WEFT_FAKE_NCCL,
                                   .has_gpu = true,
                                   .gpu = 1,
                                   .no_progress_ms = no_progress_ms,
                                   .manifest = manifest,
                                   .inplace = true };
  w->f = begin_with(&opts);
  world_as(world_ask(w->f->w, w_adopt, W_ADOPT, 0, .rank = 0, .world_size = 1), w_state,
           W_STATE);
  for (size_t i = 0; i < TENSORS; i++) {
    w->bytes[i] = malloc(sizes[i]);
    assert_non_null(w->bytes[i]);
    fill(w, i, (uint8_t)(i + 1));
  }
  trainer_open(&w->t, 2);
  return w;
}

static void end_gpu(gpu_world *w)
{
  trainer_close(&w->t);
  end(w->f);
  for (size_t i = 0; i < TENSORS; i++) {
    free(w->bytes[i]);
  }
  free(w);
}

/* Trainer and worker in one communicator. */
static void meet(gpu_world *w)
{
  char info[512];
  fixture *f = w->f;
  (void)snprintf(info, sizeof info,
                 "{\"nccl_unique_id_b64\":\"%s\",\"rank_offset\":1,\"world_size\":2,"
                 "\"packed\":%s}",
                 w->t.id_text, w->packed ? "true" : "false");
  f->epoch++;
  world_as(put_info(f, WEFT_TRANSFER_INIT, info), w_ok, W_OK);
  w->t.warm_only = true;
  trainer_start(&w->t);
  world_as(go(f, WEFT_TRANSFER_INIT), w_ok, W_OK);
  assert_int_equal(trainer_join_thread(&w->t), 0);
  w->t.warm_only = false;
  w->t.packed = w->packed ? 1 << 30 : UINT64_MAX;
}

static void meet_again(gpu_world *w)
{
  trainer_close(&w->t);
  trainer_open(&w->t, 2);
  meet(w);
}

/* Names, dtypes and shapes of tensors [first, end). */
static void lists_of(size_t first, size_t end, const char *more, char out[512])
{
  size_t len = 0;
  static const char *const keys[] = { "names", "dtype_names", "shapes" };
  for (size_t k = 0; k < 3; k++) {
    len += (size_t)snprintf(out + len, 512 - len, "%s\"%s\":[", k ? "," : "{", keys[k]);
    for (size_t i = first; i < end; i++) {
      const char *comma = i > first ? "," : "";
      len += (size_t)(k == 0   ? snprintf(out + len, 512 - len, "%s\"t%zu\"", comma, i)
                      : k == 1 ? snprintf(out + len, 512 - len, "%s\"uint8\"", comma)
                               : snprintf(out + len, 512 - len, "%s[%zu]", comma,
                                          (size_t)sizes[i]));
    }
    len += (size_t)snprintf(out + len, 512 - len, "]");
  }
  (void)snprintf(out + len, 512 - len, "%s}", more);
}

/* Tells the worker of tensors [first, end), and lets the trainer send them when there is
 * one.  What GO answers. */
static const weft_msg *bring(gpu_world *w, size_t first, size_t end, bool comes)
{
  char info[512];
  lists_of(first, end, "", info);
  world_as(put_info(w->f, WEFT_TRANSFER_UPDATE, info), w_ok, W_OK);
  if (comes) {
    w->t.sizes = sizes + first;
    w->t.data = (const void *const *)w->bytes + first;
    w->t.count = end - first;
    trainer_start(&w->t);
  }
  const weft_msg *m = go(w->f, WEFT_TRANSFER_UPDATE);
  if (comes) {
    (void)trainer_join_thread(&w->t);
  }
  return m;
}

static void push(gpu_world *w, size_t first, size_t end)
{
  world_as(start(w->f), w_ok, W_OK);
  world_as(bring(w, first, end, true), w_ok, W_OK);
  world_as(finish(w->f, false), w_finished, W_FINISHED);
  publish(w->f);
}

static uint64_t abort_it(gpu_world *w)
{
  const uint64_t epoch = w->f->epoch;
  const uint64_t poisoned =
      world_as(world_ask(w->f->w, w_abort, W_ABORT, epoch, .reason = WEFT_STR("test")),
               w_ok, W_OK)
          ->poisoned;
  world_as(world_ask(w->f->w, w_beat, W_BEAT, 0, .resume = epoch), w_state, W_STATE);
  return poisoned;
}

/* Where the live tensors lie; their bytes are those of the trainer, and so are the
 * digests. */
static void look(gpu_world *w, const void *at[TENSORS])
{
  const weft_snapshot *s;
  weft_store *store = w->f->w->device->store;
  uint8_t *got = malloc(BYTES);
  assert_non_null(got);
  assert_ok(weft_store_pin(store, 0, &s));
  assert_int_equal(s->device, 1);
  assert_int_equal(s->tensor_count, TENSORS);
  for (size_t i = 0; i < TENSORS; i++) {
    const weft_tensor *t = &s->tensors[i];
    uint8_t digest[WEFT_DIGEST_BYTES];
    assert_ok(weft_memory_read(w->f->w->device->memory, got, t->data, t->bytes, NULL));
    assert_memory_equal(got, w->bytes[i], t->bytes);
    weft_digest_store(weft_digest_of(got, t->bytes), digest);
    assert_memory_equal(t->digest, digest, sizeof digest);
    at[i] = t->data;
  }
  weft_store_unpin(store, s);
  free(got);
}

static void says(const weft_msg *m, weft_err err, const char *text)
{
  const weft_w_refused *r = world_as(m, w_refused, W_REFUSED);
  world_refused(m, err);
  if (strstr(r->text.p, text) == NULL) {
    fail_msg("'%s' does not say '%s'", r->text.p, text);
  }
}

static void addresses_stay_and_nothing_is_allocated(void **state)
{
  (void)state;
  const void *at[TENSORS], *now[TENSORS];
  gpu_world *w = begin_gpu(NULL, 20000);
  meet(w);
  push(w, 0, TENSORS);
  look(w, at);
  const weft_memory_stats before = memory_stats(w->f);
  for (uint8_t i = 0; i < 4; i++) {
    const size_t end = i % 2 ? 1 : TENSORS;
    for (size_t k = 0; k < end; k++) {
      fill(w, k, (uint8_t)(50 * k + i + 10));
    }
    push(w, 0, end);
    look(w, now);
    assert_memory_equal(now, at, sizeof at);
    assert_int_equal(memory_stats(w->f).used, before.used);
    assert_int_equal(memory_stats(w->f).fresh, before.fresh);
  }
  end_gpu(w);
}

static void before_the_first_byte_nothing_is_lost(void **state)
{
  (void)state;
  const void *at[TENSORS], *now[TENSORS];
  gpu_world *w = begin_gpu(NULL, 300);
  meet(w);
  push(w, 0, TENSORS);
  look(w, at);
  world_as(start(w->f), w_ok, W_OK); /* nobody sends */
  says(bring(w, 0, TENSORS, false), WEFT_E_TIMEOUT, "nothing moved");
  assert_int_equal(abort_it(w), 0);
  look(w, now);
  assert_memory_equal(now, at, sizeof at);
  meet_again(w);
  char info[512];
  world_as(start(w->f), w_ok, W_OK); /* refused on sight */
  lists_of(0, TENSORS, ",\"x\":1", info);
  says(put_info(w->f, WEFT_TRANSFER_UPDATE, info), WEFT_E_INVAL, "'x'");
  assert_int_equal(abort_it(w), 0);
  meet_again(w);
  world_as(start(w->f), w_ok, W_OK); /* accepted, and then left */
  lists_of(0, TENSORS, "", info);
  world_as(put_info(w->f, WEFT_TRANSFER_UPDATE, info), w_ok, W_OK);
  assert_int_equal(abort_it(w), 0);
  look(w, now);
  assert_memory_equal(now, at, sizeof at);
  end_gpu(w);
}

static void a_failure_after_it_poisons_until_a_full_update(void **state)
{
  (void)state;
  const void *at[TENSORS], *now[TENSORS];
  const weft_snapshot *s;
  gpu_world *w = begin_gpu(NULL, 20000);
  meet(w);
  push(w, 0, TENSORS);
  look(w, at);
  fill(w, 0, 99);
  world_as(start(w->f), w_ok, W_OK);
  w->t.stop_after = 1;
  world_is(bring(w, 0, TENSORS, true), WEFT_MSG_W_REFUSED);
  assert_int_equal(abort_it(w), w->f->epoch);
  assert_err(weft_store_pin(w->f->w->device->store, 0, &s), WEFT_E_UNAVAIL);
  says(world_ask(w->f->w, w_query, W_QUERY, 0, .what = WEFT_QUERY_CHECKSUM),
       WEFT_E_UNAVAIL, "poisoned");
  meet_again(w);
  world_as(start(w->f), w_ok, W_OK); /* a part does not heal */
  world_as(bring(w, 0, 1, true), w_ok, W_OK);
  says(finish(w->f, false), WEFT_E_FAILED, "2 did not come: t1, t2");
  assert_int_equal(abort_it(w), w->f->epoch);
  meet_again(w);
  const weft_memory_stats before = memory_stats(w->f);
  push(w, 0, TENSORS);
  look(w, now);
  assert_memory_equal(now, at, sizeof at); /* over the torn ones */
  assert_int_equal(memory_stats(w->f).used, before.used);
  end_gpu(w);
}

static void tied_tensors_that_come_together_are_compared(void **state)
{
  (void)state;
  const void *at[TENSORS], *now[TENSORS];
  char path[] = "/tmp/weft-tied-XXXXXX", text[512];
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  lists_of(0, TENSORS, ",\"tied\":[[\"t0\",\"t2\"]]", text);
  assert_int_equal(write(fd, text, strlen(text)), strlen(text));
  assert_int_equal(close(fd), 0);
  gpu_world *w = begin_gpu(path, 20000);
  assert_int_equal(unlink(path), 0);
  meet(w);
  fill(w, 2, 1);
  push(w, 0, TENSORS);
  look(w, at);
  assert_ptr_equal(at[0], at[2]);
  const weft_memory_stats before = memory_stats(w->f);
  fill(w, 0, 70);
  fill(w, 2, 70);
  push(w, 0, TENSORS); /* both */
  look(w, now);
  assert_memory_equal(now, at, sizeof at);
  assert_int_equal(memory_stats(w->f).used, before.used);
  fill(w, 0, 71);
  fill(w, 2, 71);
  push(w, 2, TENSORS); /* either of them brings both */
  look(w, now);
  assert_memory_equal(now, at, sizeof at);
  w->packed = true; /* both are there before either is hashed */
  meet_again(w);
  fill(w, 2, 72);
  world_as(start(w->f), w_ok, W_OK);
  world_as(bring(w, 0, TENSORS, true), w_ok, W_OK);
  says(finish(w->f, false), WEFT_E_CONFLICT,
       "tensors 't0' and 't2' are tied but came with different");
  fill(w, 0, 72);
  world_as(bring(w, 0, 1, true), w_ok, W_OK); /* mended */
  world_as(finish(w->f, false), w_finished, W_FINISHED);
  publish(w->f);
  look(w, now);
  assert_memory_equal(now, at, sizeof at);
  assert_int_equal(memory_stats(w->f).used, before.used);
  end_gpu(w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(addresses_stay_and_nothing_is_allocated),
    cmocka_unit_test(before_the_first_byte_nothing_is_lost),
    cmocka_unit_test(a_failure_after_it_poisons_until_a_full_update),
    cmocka_unit_test(tied_tensors_that_come_together_are_compared),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
