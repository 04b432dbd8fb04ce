/* What the GPU backends read and make before bytes move: plans from update_info, also
 * when there is no memory, and the handles of torch's vectors. */
#define _GNU_SOURCE
#include "weft_test.h"

#include "ipc_priv.h"
#include "nccl_priv.h"
#include "weft_fail.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const weft_transfer_who alone = { .epoch = 1, .world_size = 1 };
static const wefti_slicer whole;
static const char update[] =
    "{\"names\":[\"a\",\"b\",\"c\"],\"dtype_names\":[\"uint8\",\"bfloat16\",\"float32\"],"
    "\"shapes\":[[10],[2,3],[]],\"packed\":true,\"packed_buffer_size_bytes\":15}";

/* Chunks by hand: the strictly-greater rule, against lists that sit on its edge. */
static void chunks_end_behind_the_tensor_that_exceeds(void **state)
{
  (void)state;
  static const struct {
    const char *sizes;
    int64_t buffer;
    size_t ends[8]; /* tensors of each chunk, 0 = no more */
  } cases[] = {
    { "[[5],[5],[5]]", 10, { 3 } },      { "[[5],[6],[5]]", 10, { 2, 1 } },
    { "[[11],[1],[10]]", 10, { 1, 2 } }, { "[[10],[0],[0],[1],[0]]", 10, { 4, 1 } },
    { "[[0],[0]]", 0, { 2 } },           { "[[1],[1]]", 0, { 1, 1 } },
    { "[[0],[1],[0]]", 0, { 2, 1 } },    { "[]", 10, { 0 } },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[512];
    size_t n = 0;
    for (const char *p = cases[i].sizes + 1; (p = strchr(p, '[')) != NULL; p++) {
      n++;
    }
    int len = snprintf(text, sizeof text, "{\"names\":[");
    for (size_t k = 0; k < n; k++) {
      len +=
          snprintf(text + len, sizeof text - (size_t)len, "%s\"t%zu\"", k ? "," : "", k);
    }
    len += snprintf(text + len, sizeof text - (size_t)len, "],\"dtype_names\":[");
    for (size_t k = 0; k < n; k++) {
      len += snprintf(text + len, sizeof text - (size_t)len, "%s\"int8\"", k ? "," : "");
    }
    len += snprintf(text + len, sizeof text - (size_t)len, "],\"shapes\":%s}",
                    cases[i].sizes);
    const wefti_packing packing = { true, (uint64_t)cases[i].buffer, 2 };
    wefti_nccl_plan *p = NULL;
    assert_ok(wefti_nccl_plan_make(wefti_nccl_dense(), &whole, &packing, text,
                                   (size_t)len, &alone, &p, NULL));
    size_t first = 0, k = 0;
    for (; cases[i].ends[k] != 0; k++) {
      assert_true(k < p->chunk_count);
      assert_int_equal(p->chunks[k].first, first);
      assert_int_equal(p->chunks[k].count, cases[i].ends[k]);
      assert_int_equal(p->chunks[k].direct, cases[i].ends[k] == 1);
      first += cases[i].ends[k];
    }
    assert_int_equal(p->chunk_count, k);
    assert_int_equal(first, n);
    wefti_nccl_plan_free(p);
  }
}

static void no_memory_is_an_error_everywhere(void **state)
{
  (void)state;
  const wefti_packing packing = { false, 1, 2 };
  FOR_EACH_FAILURE
  {
    wefti_nccl_plan *p = NULL;
    const weft_err err =
        wefti_nccl_plan_make(wefti_nccl_dense(), &whole, &packing, update,
                             sizeof update - 1, &alone, &p, NULL);
    assert_true((err == WEFT_OK) == (p != NULL));
    assert_true(err == WEFT_OK || err == WEFT_E_NOMEM);
    if (p != NULL) {
      assert_true(p->packing.packed && p->chunk_count == 2 && p->scratch_bytes == 22);
    }
    wefti_nccl_plan_free(p);
    END_UNLESS_FAILED
  }
  static const char patches[] =
      "{\"names\":[\"a\",\"b\"],\"dtype_names\":[\"uint8\",\"bfloat16\"],"
      "\"shapes\":[[10],[2,3]],\"num_updates_list\":[3,6]}";
  FOR_EACH_FAILURE
  {
    wefti_nccl_plan *p = NULL;
    const weft_err err =
        wefti_nccl_plan_make(wefti_nccl_sparse(), &whole, &packing, patches,
                             sizeof patches - 1, &alone, &p, NULL);
    assert_true((err == WEFT_OK) == (p != NULL));
    assert_true(err == WEFT_OK || err == WEFT_E_NOMEM);
    if (p != NULL) {
      assert_true(p->pub.patches && p->pub.tensors[0].patched &&
                  !p->pub.tensors[1].patched && p->patch_bytes == 32 + 32 + 12);
    }
    wefti_nccl_plan_free(p);
    END_UNLESS_FAILED
  }
  static const char init[] = "{\"master_address\":\"h\",\"master_port\":1,"
                             "\"rank_offset\":1,\"world_size\":2}";
  FOR_EACH_FAILURE
  {
    wefti_nccl_init out;
    const weft_err err =
        wefti_nccl_init_read("E", init, sizeof init - 1, &alone, &out, NULL);
    assert_true(err == WEFT_OK || err == WEFT_E_NOMEM);
    END_UNLESS_FAILED
  }
  FOR_EACH_FAILURE
  {
    const weft_transfer_ops *all[] = { weft_transfer_nccl(), weft_transfer_sparse_nccl(),
                                       weft_transfer_ipc() };
    const weft_device_opts device = { .size = sizeof device,
                                      .cudart = WEFT_FAKE_CUDART,
                                      .nccl = WEFT_FAKE_NCCL };
    const weft_transfer_opts opts = { .size = sizeof opts, .device = &device };
    for (size_t i = 0; i < 3; i++) {
      void *backend = NULL;
      const weft_err err = all[i]->open(&opts, &backend, NULL);
      assert_true((err == WEFT_OK) == (backend != NULL));
      all[i]->close(backend);
    }
    END_UNLESS_FAILED
  }
}

/* ---- IPC */

static char *vector_base64(const char *name)
{
  enum { PAD = 64 }; /* letters[PAD] is the sign for no letter */
  static const char letters[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
  char path[512];
  (void)snprintf(path, sizeof path, "%s/%s", WEFT_VECTORS, name);
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  uint8_t *raw = malloc(1 << 20);
  assert_non_null(raw);
  const size_t n = fread(raw, 1, 1 << 20, f);
  (void)fclose(f);
  char *out = malloc(n * 2 + 8);
  assert_non_null(out);
  size_t at = 0;
  for (size_t i = 0; i < n; i += 3) {
    const uint32_t v = (uint32_t)raw[i] << 16 |
                       (i + 1 < n ? (uint32_t)raw[i + 1] << 8 : 0) |
                       (i + 2 < n ? raw[i + 2] : 0);
    out[at++] = letters[v >> 18];
    out[at++] = letters[v >> 12 & 63];
    out[at++] = letters[i + 1 < n ? v >> 6 & 63 : PAD];
    out[at++] = letters[i + 2 < n ? v & 63 : PAD];
  }
  out[at] = '\0';
  free(raw);
  return out;
}

static weft_err ipc_plan(const wefti_ipc_state *st, const char *lists, const char *vector,
                         wefti_ipc_plan **out, weft_why *why)
{
  char *handles = vector_base64(vector), *text = NULL;
  assert_true(asprintf(&text, "{%s,\"ipc_handles_pickled\":\"%s\"}", lists, handles) > 0);
  const weft_err err = wefti_ipc_plan_make(st, text, strlen(text), &alone, out, why);
  free(text);
  free(handles);
  return err;
}

static void handles_of_torch_are_matched_with_names(void **state)
{
  (void)state;
  wefti_ipc_state st = { .allow_pickle = true }; /* no uuid: each entry has one GPU */
  weft_ipc_handles h;
  weft_why why = { 0 };
  char *text = vector_base64("ipc1.pkl");
  assert_ok(weft_ipc_handles_from_base64(text, strlen(text), NULL, &h, &why));
  free(text);
  char lists[512], shape[128] = "";
  for (unsigned i = 0; i < h.tensors[0].ndim; i++) {
    (void)snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%" PRId64,
                   i > 0 ? "," : "", h.tensors[0].shape[i]);
  }
  assert_int_equal(h.count, 1);
  (void)snprintf(lists, sizeof lists,
                 "\"names\":[\"w\"],\"dtype_names\":[\"%s\"],\"shapes\":[[%s]]",
                 weft_dtype_name(h.tensors[0].dtype), shape);
  weft_ipc_handles_free(&h);
  wefti_ipc_plan *p = NULL;
  if (ipc_plan(&st, lists, "ipc1.pkl", &p, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  assert_int_equal(p->handles.count, 1);
  wefti_ipc_plan_free(p);
  FOR_EACH_FAILURE
  {
    const unsigned long held = fail_countdown;
    fail_countdown = 0;
    char *handles = vector_base64("ipc1.pkl"), *all = NULL;
    assert_true(asprintf(&all, "{%s,\"ipc_handles_pickled\":\"%s\"}", lists, handles) >
                0);
    fail_countdown = held;
    p = NULL;
    const weft_err err = wefti_ipc_plan_make(&st, all, strlen(all), &alone, &p, NULL);
    fail_countdown = 0;
    assert_true((err == WEFT_OK) == (p != NULL));
    assert_true(err == WEFT_OK || err == WEFT_E_NOMEM);
    wefti_ipc_plan_free(p);
    free(all);
    free(handles);
    END_UNLESS_FAILED
  }
  assert_err(ipc_plan(&st, "\"names\":[],\"dtype_names\":[],\"shapes\":[]",
                      "ipc_expandable.pkl", &p, &why),
             WEFT_E_UNSUPPORTED);
  assert_non_null(strstr(why.text, "expandable_segments"));
  st.allow_pickle = false;
  assert_err(ipc_plan(&st, lists, "ipc1.pkl", &p, &why), WEFT_E_DENIED);
}

static void counters_go_down_once_and_never_below_zero(void **state)
{
  (void)state;
  enum { SIZE = 64 + WEFT_IPC_COUNTER_SLOTS * 8 };
  char name[WEFT_IPC_COUNTER_MAX + 1];
  (void)snprintf(name, sizeof name, "/torch_%d_7_7", (int)getpid());
  const int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, SIZE), 0);
  int64_t *counters = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  assert_true(counters != MAP_FAILED);
  int64_t *slots = counters + 8;
  slots[0] = 1;
  slots[5] = 2;
  slots[9999] = 1;
  weft_ipc_tensor tensors[5] = { { .counter_slot = 0 },
                                 { .counter_slot = 5 },
                                 { .counter_slot = 9999 },
                                 { .counter_slot = 4 },
                                 { .counter_slot = 0 } };
  for (size_t i = 0; i < 5; i++) {
    memcpy(tensors[i].counter, name, sizeof name);
  }
  wefti_ipc_plan plan = { .handles = { .count = 5, .tensors = tensors } };
  wefti_ipc_release(&plan);
  wefti_ipc_release(&plan);
  assert_int_equal(slots[0], 0);
  assert_int_equal(slots[5], 1);
  assert_int_equal(slots[9999], 0);
  assert_int_equal(slots[4], 0);
  for (size_t i = 0; i < 8; i++) {
    assert_int_equal(counters[i], 0); /* torch's own head */
  }
  /* A segment that is too short, and none. */
  assert_int_equal(ftruncate(fd, SIZE - 1), 0);
  plan.released = false;
  wefti_ipc_release(&plan);
  assert_int_equal(slots[5], 1);
  assert_int_equal(shm_unlink(name), 0);
  plan.released = false;
  wefti_ipc_release(&plan);
  assert_int_equal(munmap(counters, SIZE), 0);
  assert_int_equal(close(fd), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(chunks_end_behind_the_tensor_that_exceeds),
    cmocka_unit_test(no_memory_is_an_error_everywhere),
    cmocka_unit_test(handles_of_torch_are_matched_with_names),
    cmocka_unit_test(counters_go_down_once_and_never_below_zero),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
