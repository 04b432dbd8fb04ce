/* The sparse_nccl backend: patches from a trainer on the NCCL double.  What is right is
 * computed here a second time, element by element. */
#define _GNU_SOURCE
#include "weft_test.h"

#include "nccl_world.h"

static int set_up_sparse(void **state)
{
  return set_up_for(state, weft_transfer_sparse_nccl());
}

typedef struct tensor {
  const char *dtype;
  uint64_t elements;
  unsigned width;
  uint64_t updates;
  int32_t stride; /* from one index to the next, modulo elements; 1 = in order */
  int32_t first;
} tensor;

enum { TENSORS_MAX = 8 };
typedef struct patches {
  const tensor *tensors;
  size_t count;
  int32_t *index[TENSORS_MAX];
  uint8_t *values[TENSORS_MAX], *base[TENSORS_MAX], *want[TENSORS_MAX];
  const void *data[2 * TENSORS_MAX];
  uint64_t sizes[2 * TENSORS_MAX];
  weft_extent extents[TENSORS_MAX]; /* of base */
  const void *bases[TENSORS_MAX];
  bool inplace; /* over base itself */
  unsigned told;
} patches;

static void *room(uint64_t bytes)
{
  void *p = calloc(1, bytes + 1);
  assert_non_null(p);
  return p;
}

static void patches_make(patches *p, world *w, const tensor *tensors, size_t count)
{
  *p = (patches){ .tensors = tensors, .count = count };
  for (size_t i = 0; i < count; i++) {
    const tensor *t = &tensors[i];
    const uint64_t bytes = t->elements * t->width;
    p->index[i] = room(t->updates * sizeof(int32_t));
    p->values[i] = room(t->updates * t->width);
    p->base[i] = room(bytes);
    p->want[i] = room(bytes);
    for (uint64_t b = 0; b < bytes; b++) {
      p->base[i][b] = p->want[i][b] = gpu_pattern(1, i, b);
    }
    for (uint64_t k = 0; k < t->updates; k++) {
      const uint64_t at = ((uint64_t)t->first + k * (uint64_t)t->stride) % t->elements;
      p->index[i][k] = (int32_t)at;
      for (unsigned b = 0; b < t->width; b++) {
        const uint8_t v = gpu_pattern(2, i, k * t->width + b);
        p->values[i][k * t->width + b] = v;
        p->want[i][at * t->width + b] = v;
      }
    }
    p->data[2 * i] = p->index[i];
    p->sizes[2 * i] = t->updates * sizeof(int32_t);
    p->data[2 * i + 1] = p->values[i];
    p->sizes[2 * i + 1] = t->updates * t->width;
    assert_ok(weft_memory_alloc(w->memory, bytes, &p->extents[i], NULL));
    assert_ok(weft_memory_write(w->memory, p->extents[i].ptr, p->base[i], bytes, NULL));
    p->bases[i] = p->extents[i].ptr;
  }
}

static void patches_free(patches *p, world *w)
{
  for (size_t i = 0; i < p->count; i++) {
    free(p->index[i]);
    free(p->values[i]);
    free(p->base[i]);
    free(p->want[i]);
    weft_memory_free(w->memory, &p->extents[i]);
  }
}

static char *info_of(const patches *p)
{
  char *text = NULL;
  size_t len = 0;
  FILE *f = open_memstream(&text, &len);
  assert_non_null(f);
  static const char *const keys[] = { "names", "dtype_names", "shapes",
                                      "num_updates_list" };
  for (size_t k = 0; k < 4; k++) {
    (void)fprintf(f, "%s\"%s\":[", k ? "," : "{", keys[k]);
    for (size_t i = 0; i < p->count; i++) {
      const tensor *t = &p->tensors[i];
      (void)fprintf(f, i ? "," : "");
      if (k == 0) {
        (void)fprintf(f, "\"t%zu\"", i);
      } else if (k == 1) {
        (void)fprintf(f, "\"%s\"", t->dtype);
      } else {
        (void)fprintf(f, k == 2 ? "[%" PRIu64 "]" : "%" PRIu64,
                      k == 2 ? t->elements : t->updates);
      }
    }
    (void)fprintf(f, "]");
  }
  (void)fprintf(f, "}");
  (void)fclose(f);
  return text;
}

static void check_bytes(world *w, const patches *p, const gpu_buffers *b)
{
  for (size_t i = 0; i < p->count; i++) {
    const uint64_t bytes = p->tensors[i].elements * p->tensors[i].width;
    uint8_t *got = room(bytes);
    assert_ok(weft_memory_read(w->memory, got, b->dst[i], bytes, NULL));
    assert_memory_equal(got, p->want[i], bytes + 1);
    assert_true(weft_digest_equal(b->digests[i], weft_digest_of(got, bytes)));
    free(got);
  }
}

/* What is live is not written. */
static void check_bases(world *w, const patches *p)
{
  for (size_t i = 0; i < p->count; i++) {
    const uint64_t bytes = p->tensors[i].elements * p->tensors[i].width;
    uint8_t *got = room(bytes);
    assert_ok(weft_memory_read(w->memory, got, p->bases[i], bytes, NULL));
    assert_memory_equal(got, p->base[i], bytes + 1);
    free(got);
  }
}

typedef struct seen {
  world *w;
  patches *p;
} seen;

static void on_write(void *arg)
{
  const seen *s = arg;
  assert_int_equal(s->p->told++, 0);
  check_bases(s->w, s->p);
}

/* text NULL: succeeds. */
static void run(world *w, patches *p, const char *text)
{
  char *info = info_of(p);
  weft_plan *plan = accept_text(w, info);
  for (size_t i = 0; i < p->count; i++) {
    assert_int_equal(plan->tensors[i].patched,
                     p->tensors[i].updates < p->tensors[i].elements);
    assert_int_equal(plan->tensors[i].bytes,
                     p->tensors[i].elements * p->tensors[i].width);
  }
  gpu_buffers b = gpu_buffers_make(w->memory, plan);
  plan->base = p->bases;
  seen s = { w, p };
  for (size_t i = 0; i < p->count && p->inplace; i++) {
    b.dst[i] = p->extents[i].ptr;
    plan->on_write = on_write;
    plan->on_write_arg = &s;
  }
  w->t.sizes = p->sizes;
  w->t.data = p->data;
  w->t.count = 2 * p->count;
  w->t.warm_only = false;
  trainer_start(&w->t);
  weft_why why = { 0 };
  const weft_err err =
      w->ops->receive(w->backend, plan, b.dst, b.digests, NULL, NULL, NULL, &why);
  (void)trainer_join_thread(&w->t);
  if (text == NULL) {
    if (err != WEFT_OK) {
      fail_msg("%s", why.text);
    }
    check_bytes(w, p, &b);
    assert_int_equal(p->told, p->inplace);
  } else {
    assert_int_equal(p->told, 0);
    assert_int_not_equal(err, WEFT_OK);
    if (strstr(why.text, text) == NULL) {
      fail_msg("%s, want %s", why.text, text);
    }
  }
  if (text != NULL || !p->inplace) {
    check_bases(w, p);
  }
  gpu_buffers_free(&b);
  w->ops->abandon(w->backend, plan);
  free(info);
}

enum { MILLION = 1 << 20 };
/* Larger than a block, every width, in order and not, none and all elements. */
static const tensor mixed[] = {
  { "bfloat16", 3 * MILLION, 2, 70000, 40503, 12345 },
  { "float32", 1000, 4, 10, 1, 990 },
  { "uint8", 17, 1, 0, 1, 0 },
  { "float64", MILLION + 1, 8, 5, 200000, 3 },
  { "complex128", 64, 16, 64, 33, 5 },
  { "float32", 2 * MILLION, 4, 2, 2 * MILLION - 1, 0 },
  { "int8", 5 * MILLION, 1, 5 * MILLION, 1, 0 },
};
enum { MIXED = sizeof mixed / sizeof *mixed };

static void patches_are_applied_to_a_copy(void **state)
{
  world *w = *state;
  patches p;
  patches_make(&p, w, mixed, MIXED);
  meet(w, "");
  run(w, &p, NULL);
  run(w, &p, NULL); /* any number of calls */
  patches_free(&p, w);
  static const tensor nothing[] = { { "float32", 8, 4, 0, 1, 0 } };
  patches_make(&p, w, nothing, 1);
  run(w, &p, NULL);
  patches_free(&p, w);
}

static void patches_are_applied_in_place(void **state)
{
  world *w = *state;
  patches p;
  patches_make(&p, w, mixed, MIXED);
  p.inplace = true;
  setenv("WEFT_FAKE_STREAM_DELAY_US", "1000", 1);
  meet(w, "");
  run(w, &p, NULL);
  unsetenv("WEFT_FAKE_STREAM_DELAY_US");
  patches_free(&p, w);
}

static void a_wrong_index_is_found_before_anything_is_written_over(void **state)
{
  world *w = *state;
  patches p;
  patches_make(&p, w, mixed, 3);
  p.inplace = true;
  meet(w, "");
  p.index[1][9] = 990;
  run(w, &p, "patch of 't1': index 990 is given twice");
  patches_free(&p, w);
}

static void a_slow_device_changes_nothing(void **state)
{
  world *w = *state;
  patches p;
  patches_make(&p, w, mixed, 5);
  setenv("WEFT_FAKE_STREAM_DELAY_US", "3000", 1);
  setenv("WEFT_FAKE_NCCL_LAUNCH_US", "3000", 1);
  meet(w, "");
  run(w, &p, NULL);
  unsetenv("WEFT_FAKE_STREAM_DELAY_US");
  unsetenv("WEFT_FAKE_NCCL_LAUNCH_US");
  patches_free(&p, w);
}

static void whole_tensors_come_too(void **state)
{
  world *w = *state;
  static const char info[] =
      "{\"names\":[\"a\"],\"dtype_names\":[\"uint8\"],\"shapes\":[[5000]]}";
  static const uint64_t sizes[] = { 5000 };
  meet(w, "");
  weft_plan *plan = accept_text(w, info);
  assert_false(plan->patches);
  gpu_buffers b = gpu_buffers_make(w->memory, plan);
  send_these(w, sizes, 1, UINT64_MAX, 5);
  trainer_start(&w->t);
  assert_ok(w->ops->receive(w->backend, plan, b.dst, b.digests, NULL, NULL, NULL, NULL));
  assert_int_equal(trainer_join_thread(&w->t), 0);
  gpu_settle(w->ops, w->backend);
  gpu_buffers_check(&b, plan, 5);
  gpu_buffers_free(&b);
  w->ops->abandon(w->backend, plan);
}

static void a_wrong_index_fails_the_update(void **state)
{
  world *w = *state;
  static const struct {
    int32_t index;
    const char *text;
  } bad[] = {
    { -5, "patch of 't1': index -5 (at 9) is negative" },
    { 1000, "patch of 't1': index 1000 (at 9), the tensor has 1000 elements" },
    { 990, "patch of 't1': index 990 is given twice" },
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    patches p;
    patches_make(&p, w, mixed, 3);
    meet(w, "");
    p.index[1][9] = bad[i].index;
    run(w, &p, bad[i].text);
    patches_free(&p, w);
    trainer_close(&w->t);
    trainer_open(&w->t, 2);
  }
}

static void another_order_is_reported(void **state)
{
  world *w = *state;
  patches p;
  patches_make(&p, w, mixed, 2);
  p.sizes[1] -= 2; /* one value less than announced */
  meet(w, "");
  run(w, &p, "collectives do not match");
  patches_free(&p, w);
}

static void update_info_is_checked(void **state)
{
  world *w = *state;
#define ONE "{\"names\":[\"a\"],\"dtype_names\":[\"float32\"],\"shapes\":[[2,3]],"
  static const struct {
    const char *info, *text;
  } bad[] = {
    { ONE "\"num_updates_list\":[]}",
      "`num_updates_list` should be of the same size as `names`: got 0 and 1" },
    { ONE "\"num_updates_list\":3}", "'num_updates_list' is not a list" },
    { ONE "\"num_updates_list\":[-1]}",
      "Invalid update_info for SparseNCCLWeightTransferEngine: num_updates of 'a' is not "
      "an integer of 0 or more" },
    { ONE "\"num_updates_list\":[1.5]}", "num_updates of 'a' is not an integer" },
    { ONE "\"num_updates_list\":[7]}",
      "num_updates of 'a' is 7, the tensor has 6 elements" },
    { ONE "\"num_updates_list\":[1],\"colour\":1}",
      "SparseNCCLWeightTransferUpdateInfo.__init__() got an unexpected keyword argument "
      "'colour'" },
    { "{\"names\":[],\"dtype_names\":[],\"shapes\":[],\"num_updates_list\":[]}",
      "`num_updates_list` is empty" },
    { "{\"names\":[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[[4294967296]],"
      "\"num_updates_list\":[2147483649]}",
      "num_updates of 'a' is 2147483649" },
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    weft_plan *plan = NULL;
    weft_why why = { 0 };
    meet(w, "");
    if (w->ops->accept(w->backend, bad[i].info, strlen(bad[i].info), &alone, &plan,
                       &why) == WEFT_OK ||
        strstr(why.text, bad[i].text) == NULL) {
      fail_msg("%s: %s", bad[i].info, why.text);
    }
    trainer_close(&w->t);
    trainer_open(&w->t, 2);
  }
}

static void no_room_on_the_device_is_refused_before_anything_moves(void **state)
{
  world *w = *state;
  patches p;
  patches_make(&p, w, mixed, 1);
  char *info = info_of(&p);
  weft_plan *plan = NULL;
  weft_why why = { 0 };
  meet(w, "");
  setenv("WEFT_FAKE_GPU_BYTES", "1000", 1);
  assert_err(w->ops->accept(w->backend, info, strlen(info), &alone, &plan, &why),
             WEFT_E_NOMEM);
  assert_non_null(strstr(why.text, "room for 420000 bytes of patches: CUDA error 2"));
  unsetenv("WEFT_FAKE_GPU_BYTES");
  free(info);
  patches_free(&p, w);
}

int main(void)
{
#define WITH(test) cmocka_unit_test_setup_teardown(test, set_up_sparse, tear_down)
  const struct CMUnitTest tests[] = {
    WITH(patches_are_applied_to_a_copy),
    WITH(patches_are_applied_in_place),
    WITH(a_wrong_index_is_found_before_anything_is_written_over),
    WITH(a_slow_device_changes_nothing),
    WITH(whole_tensors_come_too),
    WITH(a_wrong_index_fails_the_update),
    WITH(another_order_is_reported),
    WITH(update_info_is_checked),
    WITH(no_room_on_the_device_is_refused_before_anything_moves),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
