/* The embedder's interface with worker threads, or (built with API_PROGRAM) worker
 * processes: the same promises. */
#include "api_world.h"
#include "weft/json.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>

#ifdef API_PROGRAM
static const weft_workers kind = WEFT_WORKERS_PROCESSES;
static const char *const program = API_PROGRAM;
#else
static const weft_workers kind = WEFT_WORKERS_THREADS;
static const char *const program = NULL;
#endif

static void an_update_becomes_visible_on_every_rank(void **state)
{
  (void)state;
  api_world w;
  weft_pinned pin[API_WORKERS];
  char version[WEFT_VERSION_MAX + 1];
  api_begin(&w, kind, program);
  assert_err(weft_pin(w.engine, 0, 0, &pin[0], NULL), WEFT_E_NOT_YET);
  api_ok(weft_engine_get_version(w.engine, version, sizeof version, &why_));
  assert_string_equal(version, "default");
  api_ok(weft_engine_init(w.engine, "{}", 0, &why_));
  api_push(&w, 1, "step-1");
  for (uint32_t r = 0; r < API_WORKERS; r++) {
    api_ok(weft_pin(w.engine, r, 0, &pin[r], &why_));
    assert_int_equal(api_value(&pin[r]), 1);
    assert_string_equal(pin[r].version, "step-1");
    assert_int_equal(pin[r].weights_sequence, 1);
    assert_int_equal(pin[r].tensor_count, API_TENSORS);
    assert_string_equal(pin[r].tensors[0].dtype, "float32");
    assert_int_equal(pin[r].tensors[0].ndim, 1);
    assert_int_equal(pin[r].tensors[0].shape[0], API_ELEMENTS);
    assert_int_equal(pin[r].digest_hi, pin[0].digest_hi);
    const weft_tensor *norm = weft_snapshot_find(pin[r].snapshot, "norm");
    assert_non_null(norm);
    assert_int_equal(norm->bytes, API_ELEMENTS * sizeof(float));
    assert_null(weft_snapshot_find(pin[r].snapshot, "nobody"));
  }
  for (uint32_t r = 0; r < API_WORKERS; r++) {
    weft_unpin(&pin[r]);
  }
  api_await(&w, &w.commits, 1);
  assert_string_equal(w.version, "step-1");
  assert_string_equal(w.kind, "weights");
  assert_int_equal(w.sequence, 1);
  assert_err(weft_pin(w.engine, API_WORKERS, 0, &pin[0], NULL), WEFT_E_INVAL);
  assert_err(weft_pin(w.engine, 0, 99, &pin[0], NULL), WEFT_E_NOT_YET);
  api_end(&w);
}

static void a_label_changes_the_string_and_nothing_else(void **state)
{
  (void)state;
  api_world w;
  weft_pinned pin;
  char version[WEFT_VERSION_MAX + 1];
  char longest[WEFT_VERSION_MAX + 1];
  char tight[4];
  api_begin(&w, kind, program);
  api_push(&w, 1, "a");
  memset(longest, 'x', WEFT_VERSION_MAX);
  longest[WEFT_VERSION_MAX] = '\0';
  api_ok(weft_engine_set_version(w.engine, longest, 0, &why_));
  api_ok(weft_pin(w.engine, 0, 0, &pin, &why_));
  assert_string_equal(pin.version, longest);
  assert_int_equal(pin.weights_sequence, 1);
  weft_unpin(&pin);
  api_ok(weft_engine_get_version(w.engine, version, sizeof version, &why_));
  assert_string_equal(version, longest);
  assert_err(weft_engine_get_version(w.engine, tight, sizeof tight, NULL), WEFT_E_LIMIT);
  api_await(&w, &w.commits, 2);
  assert_string_equal(w.kind, "label");
  const weft_request expecting = { .size = sizeof expecting,
                                   .op = WEFT_OP_SET_VERSION,
                                   .version = "b",
                                   .expected_version = "a" };
  assert_err(weft_engine_call(w.engine, &expecting, NULL, NULL), WEFT_E_PRECOND);
  api_end(&w);
}

static void a_pin_keeps_its_bytes_while_others_commit(void **state)
{
  (void)state;
  api_world w;
  weft_pinned old;
  weft_pinned now;
  api_begin(&w, kind, program);
  api_push(&w, 1, "one");
  api_ok(weft_pin(w.engine, 1, 0, &old, &why_));
  for (int value = 2; value < 6; value++) {
    api_push(&w, value, "more");
    assert_int_equal(api_value(&old), 1);
    api_ok(weft_pin(w.engine, 1, 0, &now, &why_));
    assert_int_equal(api_value(&now), value);
    weft_unpin(&now);
  }
  assert_string_equal(old.version, "one");
  weft_unpin(&old);
  api_push(&w, 6, "last");
  api_ok(weft_pin(w.engine, 1, 6, &now, &why_));
  assert_int_equal(api_value(&now), 6);
  weft_unpin(&now);
  api_end(&w);
}

/* A number of rank 0 as of GET /weight_status. */
static uint64_t told(api_world *w, const char *key)
{
  const weft_request status = { .size = sizeof status, .op = WEFT_OP_STATUS };
  weft_result *result = NULL;
  weft_json *root = NULL;
  int64_t value = -1;
  assert_ok(weft_engine_call(w->engine, &status, &result, NULL));
  assert_ok(weft_json_parse(result->body, result->body_len, NULL, &root, NULL));
  const weft_json *rank0 = weft_json_first(weft_json_get(root, "workers"));
  assert_true(weft_json_i64(weft_json_get(rank0, key), &value));
  weft_json_free(root);
  weft_result_free(result);
  return (uint64_t)value;
}

/* The engine knows it from a heartbeat. */
static void await_told(api_world *w, uint64_t readers, uint64_t snapshots)
{
  for (unsigned i = 0; i < API_PATIENCE_S * 50; i++) {
    if (told(w, "readers") == readers && told(w, "snapshots") == snapshots) {
      return;
    }
    const struct timespec pause = { .tv_nsec = 20000000 };
    (void)nanosleep(&pause, NULL);
  }
  fail_msg("readers %" PRIu64 ", snapshots %" PRIu64, told(w, "readers"),
           told(w, "snapshots"));
}

static void at_most_four_snapshots_are_held(void **state)
{
  (void)state;
  enum { HELD = 3 };
  api_world w;
  weft_pinned pins[HELD];
  weft_pinned again;
  weft_why why = { .text = "" };
  api_begin(&w, kind, program);
  for (int i = 0; i < HELD; i++) {
    api_push(&w, i + 1, "held");
    api_ok(weft_pin(w.engine, 0, 0, &pins[i], &why_));
  }
  api_push(&w, HELD + 1, "live");
  await_told(&w, HELD + 1, HELD + 1); /* the engine's own reader of the live one too */
  assert_err(weft_engine_start(w.engine, 0, &why), WEFT_E_UNAVAIL);
  assert_non_null(strstr(why.text, "4 snapshots are held"));
  for (int i = 0; i < HELD; i++) {
    char name[64];
    (void)snprintf(name, sizeof name, "sequence %d by %s", i + 1,
                   program ? "the engine's process" : "1 reader");
    assert_non_null(strstr(why.text, name));
    assert_int_equal(api_value(&pins[i]), i + 1);
  }
  assert_null(strstr(why.text, "sequence 4"));     /* to let go of it would not help */
  api_ok(weft_pin(w.engine, 0, 2, &again, &why_)); /* what is held can be had again */
  assert_int_equal(api_value(&again), 2);
  weft_unpin(&pins[1]);
  assert_err(weft_engine_start(w.engine, 0, NULL), WEFT_E_UNAVAIL);
  weft_unpin(&again);
  api_push(&w, HELD + 2, "room again");
  assert_err(weft_pin(w.engine, 0, 2, &again, NULL), WEFT_E_GONE);
  assert_int_equal(api_value(&pins[0]), 1);
  assert_int_equal(api_value(&pins[2]), 3);
  weft_unpin(&pins[0]);
  weft_unpin(&pins[2]);
  await_told(&w, 1, 1);
  api_end(&w);
}

static void a_failed_update_changes_nothing_and_says_so(void **state)
{
  (void)state;
  api_world w;
  weft_pinned pin;
  weft_result *result = NULL;
  weft_why why = { .text = "" };
  static const char nowhere[] =
      "{\"source\":{\"kind\":\"safetensors\",\"path\":\"/nonexistent/x.safetensors\"}}";
  api_begin(&w, kind, program);
  api_push(&w, 1, "good");
  api_ok(weft_engine_start(w.engine, 0, &why_));
  const weft_request update = { .size = sizeof update,
                                .op = WEFT_OP_UPDATE,
                                .json = nowhere,
                                .json_len = sizeof nowhere - 1 };
  assert_true(weft_engine_call(w.engine, &update, &result, &why) != WEFT_OK);
  assert_non_null(result);
  assert_int_equal(result->outcome, WEFT_OUTCOME_NOT_COMMITTED);
  assert_non_null(strstr(result->message, "/nonexistent/x.safetensors"));
  assert_non_null(strstr(why.text, "/nonexistent/x.safetensors"));
  assert_string_equal(result->version, "good");
  weft_result_free(result);
  assert_true(weft_engine_finish(w.engine, "bad", 0, NULL) != WEFT_OK);
  api_ok(weft_pin(w.engine, 0, 0, &pin, &why_));
  assert_int_equal(api_value(&pin), 1);
  assert_string_equal(pin.version, "good");
  weft_unpin(&pin);
  api_push(&w, 2, "better"); /* and a fresh session works */
  api_end(&w);
}

static void pause_and_resume_are_told_to_the_engine(void **state)
{
  (void)state;
  api_world w;
  weft_result *result = NULL;
  api_begin(&w, kind, program);
  const weft_request pause = { .size = sizeof pause,
                               .op = WEFT_OP_PAUSE,
                               .version = "keep" };
  const weft_request resume = { .size = sizeof resume, .op = WEFT_OP_RESUME };
  const weft_request status = { .size = sizeof status, .op = WEFT_OP_STATUS };
  assert_ok(weft_engine_call(w.engine, &pause, NULL, NULL));
  assert_ok(weft_engine_call(w.engine, &status, &result, NULL));
  assert_non_null(strstr(result->body, "\"paused\":true"));
  weft_result_free(result);
  assert_ok(weft_engine_call(w.engine, &resume, NULL, NULL));
  assert_ok(weft_engine_call(w.engine, &status, &result, NULL));
  assert_non_null(strstr(result->body, "\"paused\":false"));
  weft_result_free(result);
  api_end(&w);
}

static void status_and_weights_are_json(void **state)
{
  (void)state;
  api_world w;
  weft_json *root = NULL;
  weft_result *result = NULL;
  weft_engine_info info;
  api_begin(&w, kind, program);
  api_push(&w, 3, "three");
  weft_engine_info_get(w.engine, &info);
  const weft_request status = { .size = sizeof status, .op = WEFT_OP_STATUS };
  assert_ok(weft_engine_call(w.engine, &status, &result, NULL));
  assert_ok(weft_json_parse(result->body, result->body_len, NULL, &root, NULL));
  assert_string_equal(weft_json_str(weft_json_get(root, "version")), "three");
  assert_string_equal(weft_json_str(weft_json_get(root, "boot_id")), info.boot_id);
  assert_string_equal(weft_json_str(weft_json_get(root, "control")), info.control_url);
  assert_int_equal(weft_json_count(weft_json_get(root, "workers")), API_WORKERS);
  weft_json_free(root);
  weft_result_free(result);
  const weft_request weights = { .size = sizeof weights, .op = WEFT_OP_WEIGHTS };
  assert_ok(weft_engine_call(w.engine, &weights, &result, NULL));
  assert_ok(weft_json_parse(result->body, result->body_len, NULL, &root, NULL));
  assert_int_equal(weft_json_count(weft_json_get(root, "tensors")), API_TENSORS);
  weft_json_free(root);
  weft_result_free(result);
  api_end(&w);
}

/* ---- callbacks */

static void count_result(void *arg, const weft_result *result)
{
  api_world *w = arg;
  const weft_request nested = { .size = sizeof nested, .op = WEFT_OP_STATUS };
  const weft_err err = weft_engine_call(w->engine, &nested, NULL, NULL);
  (void)pthread_mutex_lock(&w->lock);
  w->results++;
  w->last_err = result->err;
  w->nested_err = err;
  (void)pthread_cond_broadcast(&w->changed);
  (void)pthread_mutex_unlock(&w->lock);
}

static void a_submitted_call_is_answered_once_and_must_not_wait(void **state)
{
  (void)state;
  api_world w;
  api_begin(&w, kind, program);
  const weft_request start = { .size = sizeof start, .op = WEFT_OP_START };
  assert_ok(weft_engine_submit(w.engine, &start, count_result, &w));
  api_await(&w, &w.results, 1);
  assert_int_equal(w.last_err, WEFT_OK);
  assert_int_equal(w.nested_err, WEFT_E_STATE);
  assert_ok(weft_engine_submit(w.engine, &start, count_result, &w));
  api_await(&w, &w.results, 2);
  assert_int_equal(w.last_err, WEFT_E_CONFLICT);
  const weft_request no_json = { .size = sizeof no_json, .op = WEFT_OP_UPDATE };
  assert_err(weft_engine_submit(w.engine, &no_json, count_result, &w), WEFT_E_INVAL);
  const weft_request no_size = { .op = WEFT_OP_STATUS };
  assert_err(weft_engine_submit(w.engine, &no_size, count_result, &w), WEFT_E_INVAL);
  api_ok(weft_engine_abort(w.engine, "done with it", 0, &why_));
  api_end(&w);
}

static void just_count(void *arg, const weft_result *result)
{
  (void)result;
  (*(atomic_uint *)arg)++;
}

static void destroy_answers_what_is_open(void **state)
{
  (void)state;
  api_world w;
  atomic_uint answered = 0;
  unsigned asked = 0;
  api_begin(&w, kind, program);
  const weft_request status = { .size = sizeof status, .op = WEFT_OP_STATUS };
  for (; asked < 100; asked++) {
    assert_ok(weft_engine_submit(w.engine, &status, just_count, &answered));
  }
  api_end(&w);
  assert_int_equal(answered, asked);
}

/* A trainer that takes the connection and never says a word. */
static void a_deadline_ends_a_transfer_that_hangs(void **state)
{
  (void)state;
  api_world w;
  char info[512];
  weft_result *result = NULL;
  struct sockaddr_in at = { .sin_family = AF_INET };
  socklen_t len = sizeof at;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(listen(fd, 16), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
  (void)snprintf(
      info, sizeof info,
      "{\"names\":[\"w\"],\"dtype_names\":[\"float32\"],\"shapes\":[[4]],"
      "\"source\":{\"kind\":\"tcp\",\"address\":\"127.0.0.1:%u\",\"token\":\"t\"}}",
      ntohs(at.sin_port));
  api_begin(&w, kind, program);
  api_ok(weft_engine_start(w.engine, 0, &why_));
  const weft_request update = { .size = sizeof update,
                                .op = WEFT_OP_UPDATE,
                                .json = info,
                                .json_len = strlen(info),
                                .timeout_ms = 300 };
  const weft_err err = weft_engine_call(w.engine, &update, &result, NULL);
  assert_non_null(result);
  if (err != WEFT_E_TIMEOUT) {
    fail_msg("%s: %s", weft_err_name(err), result->message);
  }
  assert_int_equal(result->outcome, WEFT_OUTCOME_NOT_COMMITTED);
  assert_true(result->culprits[0] != '\0');
  weft_result_free(result);
  api_push(&w, 1, "after");
  (void)close(fd);
  api_end(&w);
}

/* ---- readers beside commits */

typedef struct reader {
  api_world *w;
  uint32_t rank;
  atomic_bool *stop;
  _Atomic uint64_t *committed; /* what a finish has returned for */
  const char *trouble;
  unsigned reads;
} reader;

static const char *read_once(reader *r, uint64_t *last)
{
  weft_pinned pin;
  const uint64_t at_least = *r->committed;
  if (weft_pin(r->w->engine, r->rank, 0, &pin, NULL) != WEFT_OK) {
    return "not pinned";
  }
  const int value = api_value(&pin);
  char expect[16];
  (void)snprintf(expect, sizeof expect, "v%d", value);
  const char *trouble = value < 0                          ? "a mixture"
                        : strcmp(expect, pin.version) != 0 ? "another version's string"
                        : pin.weights_sequence < at_least  ? "older than a finish"
                        : pin.weights_sequence < *last     ? "older than before"
                                                           : NULL;
  *last = pin.weights_sequence;
  weft_unpin(&pin);
  r->reads++;
  return trouble;
}

static void *read_all(void *arg)
{
  reader *r = arg;
  uint64_t last = 0;
  do {
    r->trouble = read_once(r, &last);
  } while (!*r->stop && !r->trouble);
  return NULL;
}

static void readers_never_see_a_mixture_or_the_past(void **state)
{
  (void)state;
  enum { COMMITS = 30 };
  api_world w;
  atomic_bool stop = false;
  _Atomic uint64_t committed = 1;
  reader readers[API_WORKERS];
  pthread_t threads[API_WORKERS];
  api_begin(&w, kind, program);
  api_push(&w, 1, "v1");
  for (uint32_t r = 0; r < API_WORKERS; r++) {
    readers[r] = (reader){ .w = &w, .rank = r, .stop = &stop, .committed = &committed };
    assert_int_equal(pthread_create(&threads[r], NULL, read_all, &readers[r]), 0);
  }
  for (int value = 2; value <= COMMITS; value++) {
    char version[16];
    (void)snprintf(version, sizeof version, "v%d", value);
    api_push(&w, value, version);
    committed = (uint64_t)value;
  }
  stop = true;
  for (uint32_t r = 0; r < API_WORKERS; r++) {
    assert_int_equal(pthread_join(threads[r], NULL), 0);
    if (readers[r].trouble) {
      fail_msg("rank %" PRIu32 " after %u reads: %s", r, readers[r].reads,
               readers[r].trouble);
    }
    assert_true(readers[r].reads > 0);
  }
  api_end(&w);
}

/* ---- a client elsewhere */

static void a_remote_client_has_the_same_calls(void **state)
{
  (void)state;
  api_world w;
  api_world far;
  weft_pinned pin;
  weft_engine_info info;
  char version[WEFT_VERSION_MAX + 1];
  api_begin(&w, kind, program);
  api_create(&far);
  weft_engine_info_get(w.engine, &info);
  const weft_connect_opts opts = { .size = sizeof opts,
                                   .control_url = info.control_url,
                                   .on_commit = api_on_commit,
                                   .arg = &far };
  assert_ok(weft_engine_connect(&opts, &far.engine, NULL));
  api_ok(weft_engine_wait_ready(far.engine, API_PATIENCE_S * 1000, &why_));
  api_push_to(far.engine, &w, 7, "from afar");
  api_ok(weft_engine_get_version(far.engine, version, sizeof version, &why_));
  assert_string_equal(version, "from afar");
  assert_err(weft_pin(far.engine, 0, 0, &pin, NULL), WEFT_E_UNSUPPORTED);
  api_ok(weft_pin(w.engine, 0, 0, &pin, &why_));
  assert_int_equal(api_value(&pin), 7);
  weft_unpin(&pin);
  /* The watch may have begun after the first commit: a label later it must know. */
  unsigned labels = 0;
  while (far.commits == 0 && labels < 200) {
    char label[16];
    (void)snprintf(label, sizeof label, "l%u", labels++);
    api_ok(weft_engine_set_version(far.engine, label, 0, &why_));
    const struct timespec pause = { .tv_nsec = 20000000 };
    (void)nanosleep(&pause, NULL);
  }
  api_await(&far, &far.commits, 1);
  api_end(&far);
  api_end(&w);
}

static void nobody_there_is_said_at_once(void **state)
{
  (void)state;
  weft_engine *engine;
  weft_why why = { .text = "" };
  const weft_connect_opts opts = { .size = sizeof opts,
                                   .control_url = "ipc:///tmp/weft-nobody-is-here.sock" };
  assert_ok(weft_engine_connect(&opts, &engine, NULL));
  assert_err(weft_engine_start(engine, 0, &why), WEFT_E_UNAVAIL);
  assert_non_null(strstr(why.text, "weft-nobody-is-here"));
  weft_engine_destroy(engine);
}

static void mistakes_are_named(void **state)
{
  (void)state;
  api_world w;
  weft_why why;
  api_create(&w);
  const char *const wide[] = { "0.0.0.0:0" };
  const char *const nonsense[] = { "127.0.0.1:0", "unix:/nonexistent/x.sock" };
  weft_engine_opts bad[8];
  for (size_t i = 0; i < 8; i++) {
    bad[i] = api_opts(&w, kind, program);
  }
  bad[0].size = 1;
  bad[1].http = wide;
  bad[1].http_count = 1;
  bad[2].events_url = "tcp://0.0.0.0:0";
  bad[3].dp_index = 4;
  bad[4].run_dir = "relative";
  bad[5].http = nonsense; /* found out after all actors were made */
  bad[5].http_count = 2;
  bad[6].tp_plan = "/some/plan"; /* of the host backend */
  bad[7].backend = "sparse_nccl";
  bad[7].draft = true;
  static const weft_err want[8] = { WEFT_E_INVAL,       WEFT_E_DENIED,     WEFT_E_DENIED,
                                    WEFT_E_INVAL,       WEFT_E_INVAL,      WEFT_E_SYS,
                                    WEFT_E_UNSUPPORTED, WEFT_E_UNSUPPORTED };
  for (size_t i = 0; i < 8; i++) {
    assert_err(weft_engine_create(&bad[i], &w.engine, &why), want[i]);
    assert_true(why.text[0] != '\0');
  }
  w.engine = NULL;
  api_end(&w);
}

/* ---- staging in place */

static void begin_inplace(api_world *w)
{
  weft_why why = { .text = "" };
  api_create(w);
  weft_engine_opts opts = api_opts(w, kind, program);
  opts.staging = WEFT_STAGING_INPLACE;
  if (weft_engine_create(&opts, &w->engine, &why) != WEFT_OK ||
      weft_engine_wait_ready(w->engine, API_PATIENCE_S * 1000, &why) != WEFT_OK) {
    fail_msg("engine: %s", why.text);
  }
}

static void in_place_pins_wait_outside_and_addresses_stay(void **state)
{
  (void)state;
  api_world w;
  weft_pinned pin;
  weft_why why;
  char info[256];
  begin_inplace(&w);
  api_push(&w, 1, "one");
  api_ok(weft_pin(w.engine, 1, 0, &pin, &why_));
  const void *at = pin.tensors[0].data;
  /* A reader that does not go keeps the session out, and is named. */
  assert_err(weft_engine_start(w.engine, 400, &why), WEFT_E_CONFLICT);
  assert_non_null(strstr(why.text, "1 reader"));
  assert_non_null(strstr(why.text, "sequence 1"));
  assert_int_equal(api_value(&pin), 1);
  weft_unpin(&pin);
  for (int value = 2; value < 12; value++) {
    api_checkpoint(&w, value);
    api_info(&w, value, info, sizeof info);
    api_ok(weft_engine_start(w.engine, 0, &why_));
    assert_err(weft_pin(w.engine, 0, 0, &pin, &why), WEFT_E_UNAVAIL);
    assert_non_null(strstr(why.text, "in place"));
    assert_err(weft_pin(w.engine, 0, (uint64_t)value - 1, &pin, &why), WEFT_E_UNAVAIL);
    api_ok(weft_engine_update(w.engine, info, 0, &why_));
    assert_err(weft_pin(w.engine, 1, 0, &pin, &why), WEFT_E_UNAVAIL);
    api_ok(weft_engine_finish(w.engine, "next", 0, &why_));
    api_ok(weft_pin(w.engine, 1, 0, &pin, &why_));
    assert_int_equal(api_value(&pin), value);
    assert_int_equal(pin.weights_sequence, value);
    assert_ptr_equal(pin.tensors[0].data, at);
    weft_unpin(&pin);
    assert_err(weft_pin(w.engine, 1, (uint64_t)value - 1, &pin, &why), WEFT_E_GONE);
  }
  api_ok(weft_engine_start(w.engine, 0, &why_));
  api_ok(weft_engine_abort(w.engine, "changed my mind", 0, &why_));
  weft_err err;
  for (int i = 0; (err = weft_pin(w.engine, 0, 0, &pin, NULL)) != WEFT_OK && i < 500;
       i++) {
    const struct timespec pause = { .tv_nsec = 10000000 };
    (void)nanosleep(&pause, NULL); /* worker threads hear it with a heartbeat */
  }
  assert_ok(err);
  assert_int_equal(api_value(&pin), 11);
  weft_unpin(&pin);
  api_end(&w);
}

#ifdef API_PROGRAM
static int pid_of_rank(api_world *w, size_t rank)
{
  const weft_request status = { .size = sizeof status, .op = WEFT_OP_STATUS };
  weft_result *result = NULL;
  weft_json *root = NULL;
  int64_t pid = 0;
  assert_ok(weft_engine_call(w->engine, &status, &result, NULL));
  assert_ok(weft_json_parse(result->body, result->body_len, NULL, &root, NULL));
  const weft_json *worker = weft_json_first(weft_json_get(root, "workers"));
  for (size_t i = 0; i < rank; i++) {
    worker = weft_json_next(worker);
  }
  assert_true(weft_json_i64(weft_json_get(worker, "pid"), &pid));
  weft_json_free(root);
  weft_result_free(result);
  return (int)pid;
}

static void a_killed_worker_comes_back_and_is_healed(void **state)
{
  (void)state;
  api_world w;
  weft_pinned old;
  weft_pinned pin;
  api_begin(&w, kind, program);
  api_push(&w, 1, "one");
  api_ok(weft_pin(w.engine, 0, 0, &old, &why_));
  const int before = pid_of_rank(&w, 0);
  assert_int_equal(kill(before, SIGKILL), 0);
  weft_err err;
  unsigned tries = 0;
  do { /* refused while the rank is away */
    char info[256];
    api_checkpoint(&w, 2);
    api_info(&w, 2, info, sizeof info);
    err = weft_engine_start(w.engine, 0, NULL);
    err = err == WEFT_OK ? weft_engine_update(w.engine, info, 0, NULL) : err;
    err = err == WEFT_OK ? weft_engine_finish(w.engine, "two", 0, NULL) : err;
    if (err != WEFT_OK) {
      w.last_err = weft_engine_abort(w.engine, "again", 0, NULL); /* or there was none */
      const struct timespec pause = { .tv_nsec = 50000000 };
      (void)nanosleep(&pause, NULL);
    }
  } while (err != WEFT_OK && ++tries < 200);
  assert_ok(err);
  assert_int_equal(api_value(&old), 1); /* its process is gone, its bytes are not */
  weft_unpin(&old);
  api_ok(weft_pin(w.engine, 0, 0, &pin, &why_));
  assert_int_equal(api_value(&pin), 2);
  weft_unpin(&pin);
  assert_int_not_equal(pid_of_rank(&w, 0), before);
  api_end(&w);
}
#endif

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(an_update_becomes_visible_on_every_rank),
    cmocka_unit_test(a_label_changes_the_string_and_nothing_else),
    cmocka_unit_test(a_pin_keeps_its_bytes_while_others_commit),
    cmocka_unit_test(at_most_four_snapshots_are_held),
    cmocka_unit_test(a_failed_update_changes_nothing_and_says_so),
    cmocka_unit_test(status_and_weights_are_json),
    cmocka_unit_test(pause_and_resume_are_told_to_the_engine),
    cmocka_unit_test(a_submitted_call_is_answered_once_and_must_not_wait),
    cmocka_unit_test(destroy_answers_what_is_open),
    cmocka_unit_test(a_deadline_ends_a_transfer_that_hangs),
    cmocka_unit_test(in_place_pins_wait_outside_and_addresses_stay),
    cmocka_unit_test(readers_never_see_a_mixture_or_the_past),
    cmocka_unit_test(a_remote_client_has_the_same_calls),
    cmocka_unit_test(nobody_there_is_said_at_once),
    cmocka_unit_test(mistakes_are_named),
#ifdef API_PROGRAM
    cmocka_unit_test(a_killed_worker_comes_back_and_is_healed),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
