/* What passes each kind of port, row by row of the catalogue, and a control socket at
 * which somebody speaks for a supervisor. */
#include "api_world.h"
#include "ports.h"
#include "weft/json.h"
#include "weft/messages.h"

enum { ASK_MS = 20000 };

/* Answers everything as its kind of actor would. */
typedef struct sink {
  uint16_t answer;
} sink;

static weft_err sink_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  *(sink *)self = *(const sink *)args;
  return WEFT_OK;
}

static weft_err sink_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
  } else if (msg->corr != 0) {
    const weft_client_done done = { .h.type = WEFT_MSG_CLIENT_DONE };
    const weft_w_ok ok = { .h.type = WEFT_MSG_W_OK };
    const bool client = ((const sink *)self)->answer == WEFT_MSG_CLIENT_DONE;
    return weft_reply(ctx, weft_return_of(msg),
                      weft_msg_make(ctx, client ? &done.h : &ok.h));
  }
  return WEFT_OK;
}
static const weft_actor_class sink_class = {
  .name = "sink", .state_size = sizeof(sink), .init = sink_init, .on = sink_on
};

static weft_actor_id link_to(weft_runtime *rt, const char *url)
{
  const weft_link_opts opts = { .size = sizeof opts, .url = url };
  weft_actor_id link;
  assert_ok(weft_link_spawn_on(rt, 0, &opts, &link));
  return link;
}

/* How msg, asked as a question, fared. */
static weft_err ask(weft_runtime *rt, weft_actor_id link, const weft_msg *msg)
{
  weft_msg *answer = NULL;
  const weft_err err =
      weft_call(rt, link, weft_msg_dup(weft_messages(), msg), ASK_MS, &answer);
  if (answer != NULL) {
    weft_msg_drop(weft_messages(), answer);
  }
  return err;
}

static weft_runtime *runtime(void)
{
  const weft_runtime_opts opts = { .size = sizeof opts,
                                   .loops = 1,
                                   .catalogue = weft_messages() };
  weft_runtime *rt = NULL;
  assert_ok(weft_runtime_create(&opts, &rt));
  return rt;
}

static void runtime_end(weft_runtime *rt)
{
  weft_runtime_stop(rt, 5000);
  weft_runtime_join(rt);
  weft_runtime_destroy(rt);
}

/* Only the restorer, inside, says that it restores. */
static void check_start(weft_runtime *rt, weft_actor_id link)
{
  const weft_client_start forged = { .h.type = WEFT_MSG_CLIENT_START, .restores = 1 };
  const weft_client_start start = { .h.type = WEFT_MSG_CLIENT_START, .draft = 1 };
  assert_err(ask(rt, link, &forged.h), WEFT_E_DENIED);
  assert_ok(ask(rt, link, &start.h));
}

typedef weft_port_opts make_port(const char *url, weft_actor_id to);

static void only_passes(make_port *make, unsigned from, unsigned to, uint16_t answer)
{
  char dir[] = "/tmp/weft-ports-XXXXXX";
  char url[128];
  unsigned passed = 0;
  const sink args = { answer };
  weft_actor_id peer;
  weft_actor_id port;
  assert_non_null(mkdtemp(dir));
  (void)snprintf(url, sizeof url, "ipc://%s/p", dir);
  weft_runtime *rt = runtime();
  assert_ok(weft_runtime_spawn(rt, 0, &sink_class, &args, NULL, &peer));
  const weft_port_opts opts = make(url, peer);
  assert_ok(weft_port_spawn_on(rt, 0, &opts, NULL, 0, &port, NULL));
  const weft_actor_id link = link_to(rt, url);
  assert_ok(weft_runtime_start_all(rt));
  for (unsigned n = 1; n < WEFT_MSG_COUNT; n++) {
    const uint16_t t = (uint16_t)n;
    const weft_msg_desc *desc = weft_msg_desc_of(weft_messages(), t);
    weft_msg *m = calloc(1, desc->size);
    assert_non_null(m);
    m->type = t;
    const bool may = desc->from == from && desc->to == to;
    const weft_err err = ask(rt, link, m);
    if (err != (may ? WEFT_OK : WEFT_E_DENIED)) {
      fail_msg("%s: %s", desc->name, weft_err_name(err));
    }
    passed += may;
    free(m);
  }
  assert_true(passed > 5);
  if (from == WEFT_ROLE_CLIENT) {
    check_start(rt, link);
  }
  runtime_end(rt);
  (void)unlink(url + sizeof "ipc://" - 1);
  assert_int_equal(rmdir(dir), 0);
}

static void engines_hear_clients_alone(void **state)
{
  (void)state;
  only_passes(wefti_control_port, WEFT_ROLE_CLIENT, WEFT_ROLE_ENGINE,
              WEFT_MSG_CLIENT_DONE);
}

static void workers_hear_engines_alone(void **state)
{
  (void)state;
  only_passes(wefti_worker_port, WEFT_ROLE_ENGINE, WEFT_ROLE_WORKER, WEFT_MSG_W_OK);
}

/* As anybody may read it in the status. */
static uint64_t incarnation_of_rank_0(api_world *w)
{
  const weft_request status = { .size = sizeof status, .op = WEFT_OP_STATUS };
  weft_result *result = NULL;
  weft_json *root = NULL;
  assert_ok(weft_engine_call(w->engine, &status, &result, NULL));
  assert_ok(weft_json_parse(result->body, result->body_len, NULL, &root, NULL));
  const weft_json *rank0 = weft_json_first(weft_json_get(root, "workers"));
  const char *text = weft_json_str(weft_json_get(rank0, "incarnation"));
  assert_non_null(text);
  const uint64_t incarnation = strtoull(text, NULL, 16);
  weft_json_free(root);
  weft_result_free(result);
  assert_true(incarnation != 0);
  return incarnation;
}

static void nobody_speaks_for_a_supervisor(void **state)
{
  (void)state;
  api_world w;
  weft_engine_info info;
  api_begin(&w, WEFT_WORKERS_THREADS, NULL);
  api_push(&w, 1, "before");
  weft_engine_info_get(w.engine, &info);
  const uint64_t incarnation = incarnation_of_rank_0(&w);
  const weft_member_down down = { .h.type = WEFT_MSG_MEMBER_DOWN,
                                  .incarnation = incarnation,
                                  .fenced = 1,
                                  .why = WEFT_STR("forged") };
  const weft_member_up up = { .h.type = WEFT_MSG_MEMBER_UP, .rank = 99999 };
  const weft_restore_note note = { .h.type = WEFT_MSG_RESTORE_NOTE,
                                   .state = WEFT_RESTORE_DONE };
  const weft_client_query query = { .h.type = WEFT_MSG_CLIENT_QUERY,
                                    .what = WEFT_QUERY_INFO };
  weft_runtime *rt = runtime();
  const weft_actor_id link = link_to(rt, info.control_url);
  assert_ok(weft_runtime_start_all(rt));
  assert_err(ask(rt, link, &down.h), WEFT_E_DENIED);
  assert_err(ask(rt, link, &up.h), WEFT_E_DENIED);
  assert_err(ask(rt, link, &note.h), WEFT_E_DENIED);
  assert_ok(ask(rt, link, &query.h)); /* the way is open */
  assert_true(incarnation_of_rank_0(&w) == incarnation);
  weft_why why = { .text = "" };
  if (weft_engine_wait_ready(w.engine, 0, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  api_push(&w, 2, "after");
  runtime_end(rt);
  api_end(&w);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(engines_hear_clients_alone),
    cmocka_unit_test(workers_hear_engines_alone),
    cmocka_unit_test(nobody_speaks_for_a_supervisor),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
