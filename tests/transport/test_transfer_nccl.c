/* The nccl backend against a trainer on the NCCL double.  Nothing here ran on a GPU. */
#define _GNU_SOURCE
#include "weft_test.h"

#include "nccl_world.h"
#include "store_fixture.h"
#include "weft/pickle.h"

#include <inttypes.h>

static void count_progress(void *arg, uint64_t bytes)
{
  uint64_t *last = arg;
  assert_true(bytes >= *last);
  *last = bytes;
}

/* One update that text announces, with all bytes checked. */
static void update_by(world *w, const char *text, const uint64_t *sizes, size_t count,
                      uint64_t packed, unsigned seed)
{
  weft_plan *plan = accept_text(w, text);
  assert_int_equal(plan->count, count);
  gpu_buffers b = gpu_buffers_make(w->memory, plan);
  uint64_t last = 0;
  weft_why why = { 0 };
  send_these(w, sizes, count, packed, seed);
  trainer_start(&w->t);
  if (weft_transfer_nccl()->receive(w->backend, plan, b.dst, b.digests, NULL,
                                    count_progress, &last, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  assert_int_equal(trainer_join_thread(&w->t), 0);
  assert_int_equal(last, plan->bytes);
  gpu_settle(weft_transfer_nccl(), w->backend);
  gpu_buffers_check(&b, plan, seed);
  gpu_buffers_free(&b);
  weft_transfer_nccl()->abandon(w->backend, plan);
}

static void update(world *w, const uint64_t *sizes, size_t count, uint64_t packed,
                   unsigned seed, const char *more)
{
  char *text = update_of(sizes, count, more);
  update_by(w, text, sizes, count, packed, seed);
  free(text);
}

static const uint64_t mixed[] = { 5, 0, 9 << 20, 4096, 1, 70000, 3, (4 << 20) + 1, 0 };
enum { MIXED = sizeof mixed / sizeof *mixed };

static void tensors_arrive_one_by_one(void **state)
{
  world *w = *state;
  uint64_t many[60];
  for (size_t i = 0; i < 60; i++) {
    many[i] = i * 31;
  }
  meet(w, "");
  update(w, NULL, 0, UINT64_MAX, 3, "");
  update(w, mixed, MIXED, UINT64_MAX, 1, "");
  update(w, many, 60, UINT64_MAX, 2, "");
  update(w, mixed, MIXED, UINT64_MAX, 4, ",\"is_checkpoint_format\":true");
}

static void packed_tensors_arrive(void **state)
{
  world *w = *state;
  /* 100 fills the buffer exactly and does not end it; 1 more does. */
  static const uint64_t edges[] = { 60, 40, 1, 99, 1, 250, 0, 100, 0, 3 };
  meet(w, ",\"packed\":true,\"packed_buffer_size_bytes\":100,\"packed_num_buffers\":3");
  update(w, NULL, 0, 100, 3, "");
  update(w, edges, sizeof edges / sizeof *edges, 100, 1, "");
  update(w, mixed, MIXED, 100, 2, "");
  static const uint64_t empty[] = { 0, 0 };
  update(w, empty, 2, 100, 4, "");
  /* What update_info says counts, as older clients do it. */
  update(w, mixed, MIXED, UINT64_MAX, 5, ",\"packed\":false");
  update(
      w, mixed, MIXED, 5 << 20, 6,
      ",\"packed\":true,\"packed_buffer_size_bytes\":5242880,\"packed_num_buffers\":1");
  update(w, edges, sizeof edges / sizeof *edges, 0, 7, ",\"packed_buffer_size_bytes\":0");
}

/* vLLM's trainer tells names, dtypes and shapes once, as long as they stay the same. */
static void an_update_of_nothing_is_the_last_one_again(void **state)
{
  static const char nothing[] = "{\"names\":[],\"dtype_names\":[],\"shapes\":[]}";
  static const char older[] =
      "{\"names\":[],\"dtype_names\":[],\"shapes\":[],\"packed\":true}";
  static const char draft_one[] =
      "{\"names\":[\"d\"],\"dtype_names\":[\"uint8\"],\"shapes\":[[3]]}";
  world *w = *state;
  weft_transfer_who draft = alone;
  weft_plan *plan = NULL;
  draft.draft = true;
  meet(w, ",\"packed\":true,\"packed_buffer_size_bytes\":5000");
  update_by(w, nothing, NULL, 0, 5000, 1);
  update(w, mixed, MIXED, 5000, 2, "");
  update_by(w, nothing, mixed, MIXED, 5000, 3);
  update_by(w, "{}", mixed, MIXED, 5000, 4);
  update_by(w, older, NULL, 0, 5000, 5); /* means what it says */
  /* Each model has its own. */
  assert_ok(weft_transfer_nccl()->accept(w->backend, nothing, strlen(nothing), &draft,
                                         &plan, NULL));
  assert_int_equal(plan->count, 0);
  weft_transfer_nccl()->abandon(w->backend, plan);
  assert_ok(weft_transfer_nccl()->accept(w->backend, draft_one, strlen(draft_one), &draft,
                                         &plan, NULL));
  assert_int_equal(plan->count, 1);
  weft_transfer_nccl()->abandon(w->backend, plan); /* and the communicator with it */
  trainer_close(&w->t);
  trainer_open(&w->t, 2);
  meet(w, "");
  update_by(w, nothing, NULL, 0, UINT64_MAX, 6); /* nothing has been told since init */
}

static void a_slow_device_changes_nothing(void **state)
{
  world *w = *state;
  setenv("WEFT_FAKE_STREAM_DELAY_US", "3000", 1);
  setenv("WEFT_FAKE_NCCL_LAUNCH_US", "3000", 1);
  meet(w, ",\"packed\":true,\"packed_buffer_size_bytes\":5000");
  update(w, mixed, MIXED, 5000, 9, "");
  update(w, mixed, MIXED, UINT64_MAX, 10, ",\"packed\":false");
  unsetenv("WEFT_FAKE_STREAM_DELAY_US");
  unsetenv("WEFT_FAKE_NCCL_LAUNCH_US");
}

static void a_new_init_replaces_the_group(void **state)
{
  world *w = *state;
  meet(w, "");
  update(w, mixed, MIXED, UINT64_MAX, 1, "");
  trainer_close(&w->t);
  trainer_open(&w->t, 2);
  meet(w, ",\"packed\":true");
  update(w, mixed, MIXED, 1 << 30, 2, "");
}

typedef struct second {
  world *w;
  void *backend;
  weft_err err;
  weft_why why;
} second;

static void *second_worker(void *arg)
{
  second *s = arg;
  char info[512];
  const weft_transfer_who who = { .rank = 1, .world_size = 2, .timeout_ms = 20000 };
  (void)snprintf(info, sizeof info,
                 "{\"nccl_unique_id_b64\":\"%s\",\"rank_offset\":1,\"world_size\":%d}",
                 s->w->t.id_text, s->w->t.ranks);
  s->err =
      weft_transfer_nccl()->init(s->backend, info, strlen(info), &who, NULL, &s->why);
  return NULL;
}

static void two_workers_on_one_gpu_are_told(void **state)
{
  world *w = *state;
  pthread_t thread;
  char info[512];
  const weft_transfer_who who = { .rank = 0, .world_size = 2, .timeout_ms = 20000 };
  weft_why why = { 0 };
  w->t.ranks = 3;
  second s = { .w = w, .backend = open_nccl(0) };
  trainer_start(&w->t);
  assert_int_equal(pthread_create(&thread, NULL, second_worker, &s), 0);
  (void)snprintf(info, sizeof info,
                 "{\"nccl_unique_id_b64\":\"%s\",\"rank_offset\":1,\"world_size\":3}",
                 w->t.id_text);
  assert_err(weft_transfer_nccl()->init(w->backend, info, strlen(info), &who, NULL, &why),
             WEFT_E_FAILED);
  assert_non_null(strstr(why.text, "Duplicate GPU detected"));
  assert_non_null(strstr(why.text, "give them different ones with --device"));
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(s.err, WEFT_E_FAILED);
  assert_int_not_equal(trainer_join_thread(&w->t), 0);
  weft_transfer_nccl()->close(s.backend);
}

static void init_info_is_checked(void **state)
{
  world *w = *state;
  static const struct {
    const char *info, *text;
  } bad[] = {
    { "[]", "Invalid init_info for NCCLWeightTransferEngine: not an object" },
    { "{\"rank_offset\":1,\"world_size\":2}",
      "NCCLWeightTransferInitInfo: need nccl_unique_id_b64, or both master_address and "
      "master_port" },
    { "{\"rank_offset\":1,\"world_size\":2,\"nccl_unique_id_b64\":\"\","
      "\"master_address\":\"h\"}",
      "need nccl_unique_id_b64" },
    { "{\"rank_offset\":1,\"world_size\":2,\"nccl_unique_id_b64\":\"AA==\","
      "\"master_address\":\"h\",\"master_port\":1}",
      "pass nccl_unique_id_b64 OR master_address/master_port, not both" },
    { "{\"rank_offset\":1,\"world_size\":2,\"nccl_unique_id_b64\":\"AAAA\"}",
      "128 bytes" },
    { "{\"rank_offset\":1,\"world_size\":2,\"nccl_unique_id_b64\":\"A-_A\"}", "base64" },
    { "{\"master_address\":\"h\",\"master_port\":1,\"world_size\":2}",
      "missing 1 required positional argument: 'rank_offset'" },
    { "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":1}",
      "missing 1 required positional argument: 'world_size'" },
    { "{\"master_address\":\"h\",\"master_port\":70000,\"rank_offset\":1,"
      "\"world_size\":2}",
      "'master_port' is not in 1..65535" },
    { "{\"master_address\":\"0.0.0.0\",\"master_port\":1,\"rank_offset\":1,"
      "\"world_size\":2}",
      "master_address 0.0.0.0 is every address and none" },
    { "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":1,\"world_size\":1}",
      "world_size 1: trainer and worker are two at least" },
    { "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":0,\"world_size\":2}",
      "the trainer is rank 0" },
    { "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":1,\"world_size\":3}",
      "world_size 3 has no room for all: rank_offset 1 + 2 workers of other replicas + 2 "
      "workers here are 5" },
    { "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":1,\"world_size\":5,"
      "\"packed\":1}",
      "'packed' is not true or false" },
    { "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":1,\"world_size\":5,"
      "\"packed_num_buffers\":17}",
      "'packed_num_buffers' is not in 1..16" },
    { "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":1,\"world_size\":5,"
      "\"x\":1}",
      "got an unexpected keyword argument 'x'" },
  };
  const weft_transfer_who who = { .rank = 1, .world_size = 2, .dp_index = 1 };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    weft_why why = { 0 };
    const size_t len = strlen(bad[i].info);
    const weft_transfer_ops *ops = weft_transfer_nccl();
    if (ops->check_init(w->backend, bad[i].info, len, &who, &why) == WEFT_OK ||
        strstr(why.text, bad[i].text) == NULL) {
      fail_msg("%s: %s", bad[i].info, why.text);
    }
    assert_int_not_equal(ops->init(w->backend, bad[i].info, len, &who, NULL, &why),
                         WEFT_OK);
  }
}

static void who_is_missing_is_waited_for_in_time(void **state)
{
  world *w = *state;
  weft_why why = { 0 };
  assert_err(init_with(w, "", NULL, 300, &why), WEFT_E_TIMEOUT);
  assert_non_null(strstr(why.text,
                         "not every rank of world_size has come (the trainer is "
                         "rank 0): joining as rank 1 of 2 (NCCL 2.28.9 here): "
                         "not within its deadline"));
  const atomic_bool cancel = true;
  trainer_close(&w->t);
  trainer_open(&w->t, 2);
  assert_err(init_with(w, "", &cancel, 0, &why), WEFT_E_CANCELLED);
  trainer_close(&w->t);
  trainer_open(&w->t, 2);
  meet(w, "");
  update(w, mixed, MIXED, UINT64_MAX, 1, "");
}

/* Runs an update that must fail; text must be in the story. */
static weft_err failing(world *w, size_t count, const atomic_bool *cancel,
                        const char *text)
{
  char *info = update_of(mixed, MIXED, "");
  weft_plan *plan = accept_text(w, info);
  gpu_buffers b = gpu_buffers_make(w->memory, plan);
  weft_why why = { 0 };
  if (count > 0) {
    w->t.count = count;
    trainer_start(&w->t);
  }
  const weft_err err = weft_transfer_nccl()->receive(w->backend, plan, b.dst, b.digests,
                                                     cancel, NULL, NULL, &why);
  if (strstr(why.text, text) == NULL) {
    fail_msg("%s, want %s", why.text, text);
  }
  if (count > 0) {
    assert_int_not_equal(trainer_join_thread(&w->t) == 0 && w->t.stop_after == SIZE_MAX,
                         true);
  }
  gpu_buffers_free(&b);
  weft_transfer_nccl()->abandon(w->backend, plan);
  /* The communicator is gone, with the reason. */
  plan = NULL;
  assert_err(
      weft_transfer_nccl()->accept(w->backend, info, strlen(info), &alone, &plan, &why),
      WEFT_E_STATE);
  assert_non_null(strstr(why.text, "NCCL weight transfer not initialized"));
  assert_non_null(strstr(why.text, text));
  free(info);
  return err;
}

static void a_trainer_that_goes_is_noticed(void **state)
{
  world *w = *state;
  meet(w, "");
  send_these(w, mixed, MIXED, UINT64_MAX, 1);
  w->t.stop_after = 3;
  assert_int_equal(failing(w, MIXED, NULL, "broadcast "), WEFT_E_DOWN);
  trainer_close(&w->t);
  trainer_open(&w->t, 2);
  meet(w, "");
  update(w, mixed, MIXED, UINT64_MAX, 2, "");
}

static void another_order_is_reported(void **state)
{
  world *w = *state;
  static const uint64_t other[] = { 5, 0, 77, 4096 };
  meet(w, "");
  send_these(w, other, 4, UINT64_MAX, 1);
  assert_int_equal(failing(w, 4, NULL, "collectives do not match"), WEFT_E_FAILED);
}

static void a_trainer_that_sends_nothing_is_given_up(void **state)
{
  world *w = *state;
  weft_transfer_nccl()->close(w->backend);
  w->backend = open_nccl(200);
  meet(w, "");
  assert_int_equal(failing(w, 0, NULL,
                           "broadcast 1 of 9 ('t0'), 0 of 13705594 bytes had "
                           "come: nothing moved for"),
                   WEFT_E_TIMEOUT);
  trainer_close(&w->t);
  trainer_open(&w->t, 2);
  meet(w, "");
  const atomic_bool cancel = true;
  assert_int_equal(failing(w, 0, &cancel, "cancelled"), WEFT_E_CANCELLED);
}

static void the_trainer_fails_too(void **state)
{
  world *w = *state;
  const char refused[] =
      "{\"names\":[\"a\"],\"dtype_names\":[\"int3\"],\"shapes\":[[1]]}";
  weft_plan *plan = NULL;
  weft_why why = { 0 };
  meet(w, "");
  send_these(w, mixed, MIXED, UINT64_MAX, 1);
  trainer_start(&w->t);
  assert_err(weft_transfer_nccl()->accept(w->backend, refused, strlen(refused), &alone,
                                          &plan, &why),
             WEFT_E_INVAL);
  assert_int_not_equal(trainer_join_thread(&w->t), 0);
  /* An update that was accepted and then dropped, since another worker refused. */
  trainer_close(&w->t);
  trainer_open(&w->t, 2);
  meet(w, "");
  char *info = update_of(mixed, MIXED, "");
  plan = accept_text(w, info);
  send_these(w, mixed, MIXED, UINT64_MAX, 1);
  trainer_start(&w->t);
  weft_transfer_nccl()->abandon(w->backend, plan);
  assert_int_not_equal(trainer_join_thread(&w->t), 0);
  free(info);
}

static void a_trainer_is_let_go(void **state)
{
  world *w = *state;
  weft_plan *plan = NULL;
  weft_why why = { 0 };
  const weft_transfer_ops *nccl = weft_transfer_nccl();
  assert_ok(nccl->release(w->backend, &why)); /* there is none */
  meet(w, "");
  update(w, mixed, MIXED, UINT64_MAX, 1, "");
  assert_ok(nccl->release(w->backend, &why));
  char *text = update_of(mixed, MIXED, "");
  assert_int_equal(nccl->accept(w->backend, text, strlen(text), &alone, &plan, &why),
                   WEFT_E_STATE);
  assert_non_null(strstr(why.text, "the trainer was let go"));
  trainer_close(&w->t);
  trainer_open(&w->t, 2);
  meet(w, "");
  update(w, mixed, MIXED, UINT64_MAX, 2, "");
  free(text);
}

static void update_info_is_checked(void **state)
{
  world *w = *state;
  static const struct {
    const char *info, *text;
  } bad[] = {
    { "{\"names\":[\"a\"],\"dtype_names\":[],\"shapes\":[[1]]}",
      "`dtype_names` should be of the same size as `names`: got 0 and 1" },
    { "{\"names\":[],\"dtype_names\":[]}",
      "Invalid update_info for NCCLWeightTransferEngine: missing key 'shapes'" },
    { "{\"names\":[],\"dtype_names\":[],\"shapes\":[],\"source\":{}}",
      "got an unexpected keyword argument 'source'" },
    { "[]", "a list of 0 entries has none for worker 0" },
    { "{\"names\":[],\"dtype_names\":[],\"shapes\":[],\"packed\":\"yes\"}",
      "'packed' is not true or false" },
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    weft_plan *plan = NULL;
    weft_why why = { 0 };
    meet(w, "");
    if (weft_transfer_nccl()->accept(w->backend, bad[i].info, strlen(bad[i].info), &alone,
                                     &plan, &why) == WEFT_OK ||
        strstr(why.text, bad[i].text) == NULL) {
      fail_msg("%s: %s", bad[i].info, why.text);
    }
    trainer_close(&w->t);
    trainer_open(&w->t, 2);
  }
}

static void a_stuck_abort_is_named(void **state)
{
  world *w = *state;
  weft_why why = { 0 };
  meet(w, "");
  setenv("WEFT_FAKE_NCCL_ABORT_HANG", "1", 1);
  assert_err(init_with(w, "", NULL, 5000, &why), WEFT_E_UNAVAIL);
  assert_non_null(strstr(why.text, "ncclCommAbort does not return"));
  unsetenv("WEFT_FAKE_NCCL_ABORT_HANG");
  trainer_close(&w->t);
  trainer_open(&w->t, 2);
  meet(w, ""); /* it came back meanwhile */
  update(w, mixed, MIXED, UINT64_MAX, 1, "");
}

static void calls_of_cuda_that_fail_are_errors(void **state)
{
  world *w = *state;
  char *info = update_of(mixed, MIXED, ",\"packed\":true");
  weft_plan *plan = NULL;
  weft_why why = { 0 };
  meet(w, "");
  setenv("WEFT_FAKE_GPU_BYTES", "1000", 1);
  assert_err(
      weft_transfer_nccl()->accept(w->backend, info, strlen(info), &alone, &plan, &why),
      WEFT_E_NOMEM);
  assert_non_null(strstr(why.text, "a buffer for packed tensors: CUDA error 2"));
  unsetenv("WEFT_FAKE_GPU_BYTES");
  trainer_close(&w->t);
  trainer_open(&w->t, 2);
  meet(w, "");
  update(w, mixed, MIXED, 1 << 30, 3, ",\"packed\":true");
  free(info);
}

/* ---- the trainer's store */

static void serve(store *s, const wefti_nccl_id *id)
{
  uint8_t pickle[WEFT_NCCL_ID_PICKLE_MAX];
  size_t len = 0;
  store_open(s);
  if (id != NULL) {
    assert_ok(weft_nccl_id_write(WEFT_NCCL_MODULE_VLLM, (const uint8_t *)id, pickle,
                                 sizeof pickle, &len));
    store_set(s, "/broadcast_from/0/0", pickle, len);
  }
}

static weft_err init_at(world *w, const char *host, unsigned port, uint32_t timeout_ms,
                        weft_why *why)
{
  char info[256];
  weft_transfer_who who = alone;
  who.timeout_ms = timeout_ms;
  (void)snprintf(info, sizeof info,
                 "{\"master_address\":\"%s\",\"master_port\":%u,\"rank_offset\":1,"
                 "\"world_size\":2}",
                 host, port);
  return weft_transfer_nccl()->init(w->backend, info, strlen(info), &who, NULL, why);
}

static void the_id_may_lie_in_a_store(void **state)
{
  world *w = *state;
  store s;
  weft_why why = { 0 };
  serve(&s, &w->t.id);
  trainer_start(&w->t);
  if (init_at(w, "127.0.0.1", s.port, 20000, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  assert_int_equal(trainer_join_thread(&w->t), 0);
  update(w, mixed, MIXED, UINT64_MAX, 1, "");
  store_close(&s);
}

static void a_store_that_does_not_help_is_named(void **state)
{
  world *w = *state;
  store s;
  char text[128];
  weft_why why = { 0 };
  serve(&s, NULL);
  assert_err(init_at(w, "127.0.0.1", s.port, 300, &why), WEFT_E_TIMEOUT);
  (void)snprintf(text, sizeof text,
                 "TCPStore of the trainer at 127.0.0.1:%u, waiting for the NCCL id",
                 s.port);
  assert_non_null(strstr(why.text, text));
  const unsigned port = s.port;
  store_close(&s);
  assert_err(init_at(w, "127.0.0.1", port, 300, &why), WEFT_E_TIMEOUT);
  (void)snprintf(text, sizeof text, "TCPStore of the trainer at 127.0.0.1:%u, connecting",
                 port);
  assert_non_null(strstr(why.text, text));
}

static void what_is_used_is_said(void **state)
{
  world *w = *state;
  weft_device_info info = { 0 };
  weft_transfer_nccl()->info(w->backend, &info);
  assert_string_equal(info.nccl, "2.28.9 (libfakenccl.so)");
  assert_string_equal(info.cudart, "13.0 (libfakecudart.so), driver 13.0");
  assert_string_equal(info.settings, "");
  setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
  setenv("NCCL_CUMEM_ENABLE", "0", 1);
  weft_transfer_nccl()->info(w->backend, &info);
  assert_string_equal(info.settings, "NCCL_SOCKET_IFNAME=eth0 NCCL_CUMEM_ENABLE=0");
  setenv("NCCL_NET", "0123456789012345678901234567890", 1); /* cut, and in order */
  setenv("NCCL_IB_HCA", "0123456789012345678901234567890", 1);
  setenv("NCCL_NVLS_ENABLE", "too much for the line", 1);
  weft_transfer_nccl()->info(w->backend, &info);
  assert_string_equal(info.settings,
                      "NCCL_SOCKET_IFNAME=eth0 NCCL_IB_HCA=012345678901234567890123 "
                      "NCCL_NET=012345678901234567890123 NCCL_CUMEM_ENABLE=0");
  unsetenv("NCCL_SOCKET_IFNAME");
  unsetenv("NCCL_CUMEM_ENABLE");
  unsetenv("NCCL_NET");
  unsetenv("NCCL_IB_HCA");
  unsetenv("NCCL_NVLS_ENABLE");
  const weft_device_opts device = { .size = sizeof device,
                                    .cudart = WEFT_FAKE_CUDART,
                                    .nccl = "/nowhere/libnccl.so.2" };
  const weft_transfer_opts opts = { .size = sizeof opts, .device = &device };
  void *none = NULL;
  weft_why why = { 0 };
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  assert_err(weft_transfer_nccl()->open(&opts, &none, &why), WEFT_E_STATE);
  assert_non_null(strstr(why.text, "NCCL_COMM_BLOCKING=1"));
  weft_device_clear_env(); /* as a worker's process does at its start */
  assert_err(weft_transfer_nccl()->open(&opts, &none, &why), WEFT_E_NOTFOUND);
  assert_non_null(strstr(why.text,
                         "nccl backend: NCCL (--nccl, VLLM_NCCL_SO_PATH) cannot "
                         "be loaded: /nowhere/libnccl.so.2"));
}

int main(void)
{
#define WITH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
    WITH(tensors_arrive_one_by_one),
    WITH(packed_tensors_arrive),
    WITH(an_update_of_nothing_is_the_last_one_again),
    WITH(a_slow_device_changes_nothing),
    WITH(a_new_init_replaces_the_group),
    WITH(two_workers_on_one_gpu_are_told),
    WITH(init_info_is_checked),
    WITH(who_is_missing_is_waited_for_in_time),
    WITH(a_trainer_that_goes_is_noticed),
    WITH(another_order_is_reported),
    WITH(a_trainer_that_sends_nothing_is_given_up),
    WITH(the_trainer_fails_too),
    WITH(a_trainer_is_let_go),
    WITH(update_info_is_checked),
    WITH(a_stuck_abort_is_named),
    WITH(calls_of_cuda_that_fail_are_errors),
    WITH(the_id_may_lie_in_a_store),
    WITH(a_store_that_does_not_help_is_named),
    WITH(what_is_used_is_said),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
