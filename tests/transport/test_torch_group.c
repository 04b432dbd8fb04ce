/* Profile torch-group: the id where torch's process groups put it, early or late, and no
 * warm-up.  The trainer is on the NCCL double, its store is weft's own server. */
#define _GNU_SOURCE
#include "weft_test.h"

#include "gpu_fixture.h"
#include "nccl_priv.h"
#include "store_fixture.h"

#include <inttypes.h>

#define GROUP_KEY "/actors/actors//cuda//0"
#define DEFAULT_KEY "/default_pg/0//cuda//0"

typedef struct world {
  trainer t;
  store s;
  void *backend;
  weft_memory *memory;
} world;

static const weft_transfer_who alone = { .epoch = 7, .world_size = 1 };

static int set_up(void **state)
{
  world *w = calloc(1, sizeof *w);
  assert_non_null(w);
  setenv("WEFT_FAKE_GPUS", "4", 1);
  const weft_device_opts device = {
    .size = sizeof device, .cudart = WEFT_FAKE_CUDART, .nccl = WEFT_FAKE_NCCL, .device = 1
  };
  const weft_memory_cuda_opts memory = { .size = sizeof memory, .device = device };
  const weft_transfer_opts opts = { .size = sizeof opts,
                                    .device = &device,
                                    .no_progress_ms = 20000 };
  assert_ok(weft_memory_cuda_create(&memory, &w->memory, NULL));
  assert_ok(weft_transfer_nccl()->open(&opts, &w->backend, NULL));
  trainer_open(&w->t, 2);
  w->t.no_warm_up = true;
  store_open(&w->s);
  *state = w;
  return 0;
}

static int tear_down(void **state)
{
  world *w = *state;
  trainer_close(&w->t);
  weft_transfer_nccl()->close(w->backend);
  weft_memory_destroy(w->memory);
  store_close(&w->s);
  free(w);
  return 0;
}

static weft_err init(world *w, const char *more, uint32_t timeout_ms,
                     const atomic_bool *cancel, weft_why *why)
{
  char info[512];
  weft_transfer_who who = alone;
  who.timeout_ms = timeout_ms;
  (void)snprintf(info, sizeof info,
                 "{\"profile\":\"torch-group\",\"master_address\":\"127.0.0.1\","
                 "\"master_port\":%u,\"rank_offset\":1,\"world_size\":2,"
                 "\"group_name\":\"actors\",\"backend\":\"nccl\"%s}",
                 w->s.port, more);
  return weft_transfer_nccl()->init(w->backend, info, strlen(info), &who, cancel, why);
}

static const uint64_t sizes[] = { 5000, 0, 70000 };
enum { SIZES = sizeof sizes / sizeof *sizes };
static const char update_info[] =
    "{\"names\":[\"a\",\"b\",\"c\"],\"dtype_names\":[\"uint8\",\"int8\","
    "\"bfloat16\"],\"shapes\":[[5000],[0],[35000]]}";

typedef struct publisher {
  world *w;
  const char *key;
} publisher;

/* torch's order: the id is made with the first collective. */
static void *publish(void *arg)
{
  const publisher *p = arg;
  store_set(&p->w->s, p->key, &p->w->t.id, sizeof p->w->t.id);
  return NULL;
}

static void send(world *w)
{
  w->t.sizes = sizes;
  w->t.count = SIZES;
  w->t.seed = 3;
  w->t.warm_only = false;
  trainer_start(&w->t);
}

/* late: where the id is published meanwhile; NULL = it is there. */
static void update(world *w, const char *late)
{
  weft_plan *plan = NULL;
  weft_why why = { 0 };
  pthread_t thread;
  publisher p = { w, late };
  const weft_transfer_ops *ops = weft_transfer_nccl();
  if (ops->accept(w->backend, update_info, sizeof update_info - 1, &alone, &plan, &why) !=
      WEFT_OK) {
    fail_msg("%s", why.text);
  }
  gpu_buffers b = gpu_buffers_make(w->memory, plan);
  send(w);
  if (late != NULL) {
    assert_int_equal(pthread_create(&thread, NULL, publish, &p), 0);
  }
  if (ops->receive(w->backend, plan, b.dst, b.digests, NULL, NULL, NULL, &why) !=
      WEFT_OK) {
    fail_msg("%s", why.text);
  }
  if (late != NULL) {
    assert_int_equal(pthread_join(thread, NULL), 0);
  }
  assert_int_equal(trainer_join_thread(&w->t), 0);
  gpu_settle(ops, w->backend);
  gpu_buffers_check(&b, plan, 3);
  gpu_buffers_free(&b);
  ops->abandon(w->backend, plan);
}

static void an_id_that_is_there(void **state)
{
  world *w = *state;
  static const char *const keys[] = { GROUP_KEY, DEFAULT_KEY };
  for (size_t i = 0; i < 2; i++) {
    weft_why why = { 0 };
    store_set(&w->s, keys[i], &w->t.id, sizeof w->t.id);
    w->t.warm_only = true;
    trainer_start(&w->t); /* joins, as with a bound device */
    if (init(w, i == 0 ? "" : ",\"lazy\":false", 20000, NULL, &why) != WEFT_OK) {
      fail_msg("%s", why.text);
    }
    assert_int_equal(trainer_join_thread(&w->t), 0);
    update(w, NULL);
    update(w, NULL);
    assert_string_equal(store_get(&w->s, "init/"), "1");
    trainer_close(&w->t);
    trainer_open(&w->t, 2);
    w->t.no_warm_up = true;
    store_close(&w->s);
    store_open(&w->s);
  }
}

static void an_id_that_comes_with_the_first_broadcast(void **state)
{
  world *w = *state;
  weft_why why = { 0 };
  static const char none[] = "{\"names\":[],\"dtype_names\":[],\"shapes\":[]}";
  static const char *const more[] = { "", ",\"lazy\":true",
                                      ",\"lazy\":true,\"id_key\":\"/mine\"" };
  static const char *const keys[] = { GROUP_KEY, DEFAULT_KEY, "/mine" };
  for (size_t i = 0; i < 3; i++) {
    weft_plan *plan = NULL;
    if (init(w, more[i], 20000, NULL, &why) != WEFT_OK) {
      fail_msg("%s", why.text);
    }
    /* Nobody makes a group for nothing. */
    assert_ok(weft_transfer_nccl()->accept(w->backend, none, sizeof none - 1, &alone,
                                           &plan, &why));
    assert_ok(weft_transfer_nccl()->receive(w->backend, plan, NULL, NULL, NULL, NULL,
                                            NULL, &why));
    weft_transfer_nccl()->abandon(w->backend, plan);
    update(w, keys[i]);
    update(w, NULL);
    assert_string_equal(store_get(&w->s, "init/"), "1"); /* joined once */
    trainer_close(&w->t);
    trainer_open(&w->t, 2);
    w->t.no_warm_up = true;
    store_close(&w->s);
    store_open(&w->s);
  }
}

static void waiting_for_an_id_ends(void **state)
{
  world *w = *state;
  weft_why why = { 0 };
  assert_err(init(w, ",\"lazy\":false", 300, NULL, &why), WEFT_E_TIMEOUT);
  assert_non_null(
      strstr(why.text, "waiting for the NCCL id (" GROUP_KEY " or " DEFAULT_KEY "): "));
  /* In receive. */
  weft_plan *plan = NULL;
  const atomic_bool cancel = true;
  const weft_transfer_ops *ops = weft_transfer_nccl();
  assert_ok(init(w, ",\"lazy\":true", 20000, NULL, &why));
  assert_ok(
      ops->accept(w->backend, update_info, sizeof update_info - 1, &alone, &plan, &why));
  gpu_buffers b = gpu_buffers_make(w->memory, plan);
  assert_err(ops->receive(w->backend, plan, b.dst, b.digests, &cancel, NULL, NULL, &why),
             WEFT_E_CANCELLED);
  gpu_buffers_free(&b);
  ops->abandon(w->backend, plan);
  assert_err(
      ops->accept(w->backend, update_info, sizeof update_info - 1, &alone, &plan, &why),
      WEFT_E_STATE);
  assert_non_null(strstr(why.text, "The last communicator was given up: TCPStore"));
}

static void what_is_no_raw_id_is_refused(void **state)
{
  world *w = *state;
  weft_why why = { 0 };
  store_set(&w->s, GROUP_KEY, "short", 5);
  assert_err(init(w, "", 5000, NULL, &why), WEFT_E_PROTO);
  assert_non_null(
      strstr(why.text, "reading the NCCL id (" GROUP_KEY "): 5 bytes, torch's are 128"));
}

static void profiles_are_checked(void **state)
{
  (void)state;
#define AT "\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":1"
#define TORCH "{" AT ",\"world_size\":2,\"profile\":\"torch-group\""
  static const struct {
    const char *info, *text;
  } bad[] = {
    { TORCH ",\"backend\":\"gloo\"}",
      "Invalid init_info for E: backend 'gloo': only a group of backend 'nccl'" },
    { TORCH ",\"backend\":\"cpu:gloo,cuda:nccl\"}", "backend 'cpu:gloo,cuda:nccl'" },
    { TORCH ",\"group_name\":\"\"}", "'group_name' is not a string of 1 to 128 bytes" },
    { TORCH ",\"group_name\":7}", "'group_name' is not a string" },
    { TORCH ",\"id_key\":[]}", "'id_key' is not a string" },
    { TORCH ",\"lazy\":1}", "'lazy' is not true or false" },
    { TORCH ",\"colour\":1}", "unexpected keyword argument 'colour'" },
    { "{" AT ",\"world_size\":2,\"profile\":\"gossip\"}",
      "profile 'gossip' is not known; there are: vllm, torch-group" },
    { "{" AT ",\"world_size\":2,\"profile\":1}", "'profile' is not a string" },
    { "{" AT ",\"world_size\":2,\"group_name\":\"g\"}",
      "unexpected keyword argument 'group_name'" },
    { "{" AT ",\"world_size\":2,\"profile\":\"vllm\",\"lazy\":true}",
      "unexpected keyword argument 'lazy'" },
    { "{" AT ",\"world_size\":129,\"profile\":\"torch-group\"}",
      "world_size 129: torch makes groups of more than 128 ranks by several ids" },
    { "{\"rank_offset\":1,\"world_size\":2,\"profile\":\"torch-group\"}",
      "need nccl_unique_id_b64, or both master_address and master_port" },
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    weft_why why = { 0 };
    wefti_nccl_init out;
    assert_err(
        wefti_nccl_init_read("E", bad[i].info, strlen(bad[i].info), &alone, &out, &why),
        WEFT_E_INVAL);
    if (strstr(why.text, bad[i].text) == NULL) {
      fail_msg("%s: %s", bad[i].info, why.text);
    }
  }
  wefti_nccl_init out;
  assert_ok(wefti_nccl_init_read("E", TORCH "}", sizeof TORCH, &alone, &out, NULL));
  assert_true(out.torch && out.key_count == 2 && out.look == WEFTI_LOOK_SHORTLY);
  assert_string_equal(out.keys[0], "/weight_update_group/weight_update_group//cuda//0");
  assert_string_equal(out.keys[1], DEFAULT_KEY);
}

int main(void)
{
#define WITH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
    WITH(an_id_that_is_there),
    WITH(an_id_that_comes_with_the_first_broadcast),
    WITH(waiting_for_an_id_ends),
    WITH(what_is_no_raw_id_is_refused),
    cmocka_unit_test(profiles_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
