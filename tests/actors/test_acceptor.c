#include "acceptor_world.h"

#include <stdio.h>

#define ROW(route_, query_, body_)                                                       \
  {                                                                                      \
    .route = route_, .query = query_, .body = body_                                      \
  }
#define ASK(route, query, body) ((ask)ROW(route, query, body))

/* ---- success: request → status, body, message */

typedef struct good_row {
  const char *name;
  ask ask;
  const char *body;
  uint16_t type; /* what the engine gets; 0 = nothing */
} good_row;

static const good_row good[] = {
  { "init", ROW(WEFTI_ROUTE_INIT, "", "{\"init_info\":{\"a\":[1]},\"later\":2}"),
    "{\"message\":\"Weight transfer initialized\"}", WEFT_MSG_CLIENT_INIT },
  { "init without members", ROW(WEFTI_ROUTE_INIT, "", " { \"init_info\" : { } } "),
    "{\"message\":\"Weight transfer initialized\"}", WEFT_MSG_CLIENT_INIT },
  { "shutdown", ROW(WEFTI_ROUTE_SHUTDOWN, "", NULL),
    "{\"message\":\"Weight transfer shut down\"}", WEFT_MSG_CLIENT_SHUTDOWN },
  { "start", ROW(WEFTI_ROUTE_START, "", NULL), "{\"message\":\"Weight update started\"}",
    WEFT_MSG_CLIENT_START },
  { "start ignores a body", ROW(WEFTI_ROUTE_START, "", "{\"is_checkpoint_format\": tru"),
    "{\"message\":\"Weight update started\"}", WEFT_MSG_CLIENT_START },
  { "start draft", ROW(WEFTI_ROUTE_START_DRAFT, "", NULL),
    "{\"message\":\"Draft weight update started\"}", WEFT_MSG_CLIENT_START },
  { "update", ROW(WEFTI_ROUTE_UPDATE, "", "{\"update_info\":{\"names\":[]}}"),
    "{\"message\":\"Weights updated\"}", WEFT_MSG_CLIENT_UPDATE },
  { "update with a list",
    ROW(WEFTI_ROUTE_UPDATE, "", "{\"update_info\":[{\"n\":[\"]\"]},{}]}"),
    "{\"message\":\"Weights updated\"}", WEFT_MSG_CLIENT_UPDATE },
  { "update with an empty list", ROW(WEFTI_ROUTE_UPDATE, "", "{\"update_info\":[]}"),
    "{\"message\":\"Weights updated\"}", WEFT_MSG_CLIENT_UPDATE },
  { "finish without body", ROW(WEFTI_ROUTE_FINISH, "", NULL),
    "{\"message\":\"Weight update finished\"}", WEFT_MSG_CLIENT_FINISH },
  { "finish {}", ROW(WEFTI_ROUTE_FINISH, "", "{}"),
    "{\"message\":\"Weight update finished\"}", WEFT_MSG_CLIENT_FINISH },
  { "finish null", ROW(WEFTI_ROUTE_FINISH, "", "null"),
    "{\"message\":\"Weight update finished\"}", WEFT_MSG_CLIENT_FINISH },
  { "finish with null", ROW(WEFTI_ROUTE_FINISH, "", "{\"weight_version\":null,\"x\":[]}"),
    "{\"message\":\"Weight update finished\"}", WEFT_MSG_CLIENT_FINISH },
  { "finish with a version",
    ROW(WEFTI_ROUTE_FINISH, "", "{\"weight_version\":\"step-42\"}"),
    "{\"message\":\"Weight update finished\"}", WEFT_MSG_CLIENT_FINISH },
  { "label", ROW(WEFTI_ROUTE_LABEL, "", "{\"new_version\":\"\\u00e9 \\\"\\/\"}"),
    "{\"success\":true,\"new_version\":\"\xc3\xa9 \\\"/\"}", WEFT_MSG_CLIENT_LABEL },
  { "empty label", ROW(WEFTI_ROUTE_LABEL, "", "{\"new_version\":\"\"}"),
    "{\"success\":true,\"new_version\":\"\"}", WEFT_MSG_CLIENT_LABEL },
  { "pause", ROW(WEFTI_ROUTE_PAUSE, "mode=keep&clear_cache=FALSE", NULL),
    "{\"status\":\"paused\"}", WEFT_MSG_CLIENT_PAUSE },
  { "resume", ROW(WEFTI_ROUTE_RESUME, "", NULL), "{\"status\":\"resumed\"}",
    WEFT_MSG_CLIENT_PAUSE },
  { "prefix cache", ROW(WEFTI_ROUTE_RESET_PREFIX, "reset_external=1", "{\"x\":"),
    "{\"success\":true}", WEFT_MSG_CLIENT_CACHE },
  { "mm cache", ROW(WEFTI_ROUTE_RESET_MM, "", NULL), "", WEFT_MSG_CLIENT_CACHE },
  { "encoder cache", ROW(WEFTI_ROUTE_RESET_ENCODER, "", NULL), "",
    WEFT_MSG_CLIENT_CACHE },
  { "abort", ROW(WEFTI_ROUTE_ABORT, "", NULL), "{\"message\":\"Weight update aborted\"}",
    WEFT_MSG_CLIENT_ABORT },
  { "resolve", ROW(WEFTI_ROUTE_RESOLVE, "", "{\"commit\":true}"),
    "{\"message\":\"Weight update resolved\"}", WEFT_MSG_CLIENT_RESOLVE },
  { "abort requests", ROW(WEFTI_ROUTE_ABORT_REQUESTS, "", "{\"request_ids\":[\"a\"]}"),
    "{\"status\":\"aborted\",\"aborted\":0}", 0 },
  { "abort all requests", ROW(WEFTI_ROUTE_ABORT_REQUESTS, "", "{}"),
    "{\"status\":\"aborted\",\"aborted\":0}", 0 },
  { "world size", ROW(WEFTI_ROUTE_WORLD_SIZE, "", NULL), "{\"world_size\":24}", 0 },
  { "world size, True", ROW(WEFTI_ROUTE_WORLD_SIZE, "include_dp=True", NULL),
    "{\"world_size\":24}", 0 },
  { "world size, off", ROW(WEFTI_ROUTE_WORLD_SIZE, "include_dp=off", NULL),
    "{\"world_size\":6}", 0 },
  { "health", ROW(WEFTI_ROUTE_HEALTH, "", NULL), "", 0 },
  { "ready", ROW(WEFTI_ROUTE_READY, "", NULL), "{\"ready\":true}",
    WEFT_MSG_CLIENT_QUERY },
  { "version", ROW(WEFTI_ROUTE_VERSION, "", NULL), "{\"version\":\"0.1.0\"}", 0 },
};

static void good_requests_have_exact_answers(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    world_forget(&w);
    const uint64_t before = world_forwarded(&w);
    const answer *a = world_ask(&w, &good[i].ask);
    if (a->status != 200 || strcmp(a->body, good[i].body) != 0) {
      fail_msg("%s: %d %s", good[i].name, a->status, a->body);
    }
    const size_t want = good[i].type != 0;
    assert_int_equal(w.asked_count, want);
    assert_int_equal(world_forwarded(&w) - before, want);
    if (want > 0 && w.asked[0]->type != good[i].type) {
      fail_msg("%s: message %d", good[i].name, w.asked[0]->type);
    }
  }
  assert_int_equal(world_refused(&w), 0);
  world_close(&w);
}

/* ---- refusals: nothing reaches the engine */

typedef struct bad_row {
  ask ask;
  int status;
  const char *param; /* NULL = null */
  const char *says;  /* part of the message */
} bad_row;

#define DICT "Input should be a valid dictionary"
#define STRING "Input should be a valid string"
static const bad_row bad[] = {
  { ROW(WEFTI_ROUTE_INIT, "", NULL), 400, "body.init_info", "Field required" },
  { ROW(WEFTI_ROUTE_INIT, "", "{}"), 400, "body.init_info", "'input': {}}" },
  { ROW(WEFTI_ROUTE_INIT, "", "null"), 400, "body.init_info", "'input': None}" },
  { ROW(WEFTI_ROUTE_INIT, "", "[{}]"), 400, "body.init_info", "Field required" },
  { ROW(WEFTI_ROUTE_INIT, "", "{\"init_info\":null}"), 400, "body.init_info",
    "Field required" },
  { ROW(WEFTI_ROUTE_INIT, "", "{\"init_info\":[]}"), 400, "body.init_info", DICT },
  { ROW(WEFTI_ROUTE_INIT, "", "{\"init_info\":\"x\"}"), 400, "body.init_info", DICT },
  { ROW(WEFTI_ROUTE_INIT, "", "{\"init_info\":{}"), 400, "body.15", "JSON decode error" },
  { ROW(WEFTI_ROUTE_INIT, "", "{\"init_info\":{},}"), 400, "body.16",
    "JSON decode error" },
  { ROW(WEFTI_ROUTE_UPDATE, "", "{}"), 400, "body.update_info", "Field required" },
  { ROW(WEFTI_ROUTE_UPDATE, "", "{\"update_info\":[{},1]}"), 400, "body.update_info",
    DICT },
  { ROW(WEFTI_ROUTE_UPDATE, "", "{\"update_info\":7}"), 400, "body.update_info", DICT },
  { ROW(WEFTI_ROUTE_FINISH, "", "[]"), 400, "body.weight_version", "Field required" },
  { ROW(WEFTI_ROUTE_FINISH, "", "{\"weight_version\":7}"), 400, "body.weight_version",
    STRING },
  { ROW(WEFTI_ROUTE_FINISH, "", "{\"expected_version\":{}}"), 400,
    "body.expected_version", STRING },
  { ROW(WEFTI_ROUTE_FINISH, "", "{\"strict\":\"true\"}"), 400, "body.strict",
    "valid boolean" },
  { ROW(WEFTI_ROUTE_FINISH, "", "{\"weight_version\":\"a\\u0000\"}"), 400, NULL,
    "JSON decode" },
  { ROW(WEFTI_ROUTE_FINISH, "", " "), 400, "body.1", "JSON decode error" },
  { ROW(WEFTI_ROUTE_LABEL, "", NULL), 400, "body.new_version", "'input': None}" },
  { ROW(WEFTI_ROUTE_LABEL, "", "{\"new_version\":null}"), 400, "body.new_version",
    "Field required" },
  { ROW(WEFTI_ROUTE_LABEL, "", "{\"new_version\":false}"), 400, "body.new_version",
    STRING },
  { ROW(WEFTI_ROUTE_LABEL, "timeout_s=0", "{\"new_version\":\"a\"}"), 400,
    "query.timeout_s", "greater than 0" },
  { ROW(WEFTI_ROUTE_START, "timeout_s=-1", NULL), 400, "query.timeout_s",
    "greater than 0" },
  { ROW(WEFTI_ROUTE_START, "timeout_s=86400.0001", NULL), 400, "query.timeout_s",
    "less than or equal to 86400" },
  { ROW(WEFTI_ROUTE_START, "timeout_s=1e99", NULL), 400, "query.timeout_s",
    "valid number" },
  { ROW(WEFTI_ROUTE_START, "timeout_s=nan", NULL), 400, "query.timeout_s",
    "valid number" },
  { ROW(WEFTI_ROUTE_START, "timeout_s=", NULL), 400, "query.timeout_s", "valid number" },
  { ROW(WEFTI_ROUTE_START, "timeout_s=.", NULL), 400, "query.timeout_s", "valid number" },
  { ROW(WEFTI_ROUTE_START, "timeout_s=1.2.3", NULL), 400, "query.timeout_s",
    "valid number" },
  { ROW(WEFTI_ROUTE_PAUSE, "mode=stop", NULL), 400, "query.mode",
    "Input should be 'abort', 'wait' or 'keep'" },
  { ROW(WEFTI_ROUTE_PAUSE, "mode=%27%ff", NULL), 400, "query.mode", "'\\\\'\\\\xff'" },
  { ROW(WEFTI_ROUTE_PAUSE, "mode=%00", NULL), 400, "query.mode", "Input should be" },
  { ROW(WEFTI_ROUTE_PAUSE, "clear_cache=2", NULL), 400, "query.clear_cache",
    "valid boolean" },
  { ROW(WEFTI_ROUTE_WORLD_SIZE, "include_dp=maybe", NULL), 400, "query.include_dp",
    "valid boolean" },
  { ROW(WEFTI_ROUTE_RESET_PREFIX, "reset_external=x", NULL), 400, "query.reset_external",
    "valid boolean" },
  { ROW(WEFTI_ROUTE_VERSIONS, "limit=0", NULL), 400, "query.limit",
    "greater than or equal to 1" },
  { ROW(WEFTI_ROUTE_VERSIONS, "limit=10001", NULL), 400, "query.limit",
    "less than or equal to 10000" },
  { ROW(WEFTI_ROUTE_VERSIONS, "limit=", NULL), 400, "query.limit", "valid integer" },
  { ROW(WEFTI_ROUTE_VERSIONS, "limit=1e2", NULL), 400, "query.limit", "valid integer" },
  { ROW(WEFTI_ROUTE_EVENTS, "after=-1", NULL), 400, "query.after", "valid integer" },
  { ROW(WEFTI_ROUTE_EVENTS, "after=9999999999999999999999", NULL), 400, "query.after",
    "valid integer" },
  { ROW(WEFTI_ROUTE_CHECKER, "", "{}"), 400, "body.action", "Field required" },
  { ROW(WEFTI_ROUTE_CHECKER, "", "{\"action\":\"x\"}"), 400, "body.action",
    "Input should be 'checksum', 'reset' or 'compare'" },
  { ROW(WEFTI_ROUTE_CHECKER, "", "{\"action\":\"compare\"}"), 400, NULL,
    "action='compare' requires a 'baseline' object" },
  { ROW(WEFTI_ROUTE_CHECKER, "", "{\"action\":\"compare\",\"baseline\":[]}"), 400,
    "body.baseline", DICT },
  { ROW(WEFTI_ROUTE_CHECKER, "",
        "{\"action\":\"compare\",\"baseline\":{\"a\":{\"b\":\"c\"}}}"),
    400, "body.baseline", STRING },
  { ROW(WEFTI_ROUTE_CHECKER, "", "{\"action\":\"reset\"}"), 403, NULL,
    "--allow-weight-reset" },
  { ROW(WEFTI_ROUTE_ABORT, "", "{\"reason\":1}"), 400, "body.reason", STRING },
  { ROW(WEFTI_ROUTE_RESOLVE, "", NULL), 400, "body.commit", "Field required" },
  { ROW(WEFTI_ROUTE_RESOLVE, "", "{\"commit\":\"yes\"}"), 400, "body.commit",
    "Input should be a valid boolean" },
  { ROW(WEFTI_ROUTE_ABORT_REQUESTS, "", NULL), 400, NULL, "Invalid JSON format" },
  { ROW(WEFTI_ROUTE_ABORT_REQUESTS, "", "{"), 400, NULL, "Invalid JSON format" },
  { ROW(WEFTI_ROUTE_ABORT_REQUESTS, "", "[]"), 400, NULL,
    "Request body must be a JSON object" },
  { ROW(WEFTI_ROUTE_ABORT_REQUESTS, "", "{\"request_ids\":\"a\"}"), 400,
    "body.request_ids", "valid list" },
};

static weft_json *error_of(const answer *a)
{
  weft_json *root;
  assert_ok(weft_json_parse(a->body, strlen(a->body), NULL, &root, NULL));
  assert_int_equal(weft_json_kind_of(weft_json_get(root, "error")), WEFT_JSON_OBJECT);
  return root;
}

static void bad_requests_are_refused_before_the_engine_hears_of_them(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    const bad_row *row = &bad[i];
    const answer *a = world_ask(&w, &row->ask);
    assert_int_equal(a->status, row->status);
    weft_json *root = error_of(a);
    const weft_json *error = weft_json_get(root, "error");
    int64_t code;
    assert_true(weft_json_i64(weft_json_get(error, "code"), &code));
    assert_int_equal(code, row->status);
    assert_string_equal(weft_json_str(weft_json_get(error, "type")),
                        row->status == 403 ? "Forbidden" : "Bad Request");
    const char *param = weft_json_str(weft_json_get(error, "param"));
    const bool any = row->param == NULL && strstr(row->says, "JSON decode") != NULL;
    if (!any && (param == NULL ? row->param != NULL
                               : row->param == NULL || strcmp(param, row->param) != 0)) {
      fail_msg("row %zu: param %s", i, a->body);
    }
    if (strstr(a->body, row->says) == NULL) {
      fail_msg("row %zu: %s lacks %s", i, a->body, row->says);
    }
    weft_json_free(root);
    world_forget(&w);
    assert_int_equal(world_refused(&w), i + 1);
  }
  assert_int_equal(world_forwarded(&w), 0);
  world_close(&w);
}

static void an_error_object_is_what_the_contract_shows(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  const answer *a = world_ask(&w, &ASK(WEFTI_ROUTE_INIT, "", "{}"));
  assert_string_equal(
      a->body,
      "{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'missing', 'loc': "
      "('body', 'init_info'), 'msg': 'Field required', 'input': {}}\",\"type\":\"Bad "
      "Request\",\"param\":\"body.init_info\",\"code\":400}}");
  world_close(&w);
}

/* ---- hostile bodies for every route */

static char *nested(size_t depth, const char *open, const char *end, size_t *len)
{
  const size_t a = strlen(open), b = strlen(end);
  char *text = malloc(depth * (a + b) + 1);
  assert_non_null(text);
  for (size_t i = 0; i < depth; i++) {
    memcpy(text + i * a, open, a);
    memcpy(text + depth * a + i * b, end, b);
  }
  *len = depth * (a + b);
  text[*len] = '\0';
  return text;
}

static void no_body_gets_a_5xx_or_two_answers(void **state)
{
  (void)state;
  static const char *const hostile[] = {
    "",
    "{",
    "}",
    "[]",
    "[[]]",
    "\"x\"",
    "1",
    "-0.0e-7",
    "null",
    "true",
    "nul",
    "\xff",
    "{}{}",
    "\\u0000",
    "\"\\u0000\"",
    "{\"init_info\":\"a\\u0000\"}",
    "{\"a\":1,\"a\":2}",
    "{\"update_info\":{\"a\":\"\\ud800\"}}",
    "{\"weight_version\":\"\xed\xa0\x80\"}",
    "{\"new_version\":[\"a\"]}",
    "{\"action\":[\"checksum\"]}",
    "{\"action\":null,\"baseline\":null}",
    "{\"reason\":[]}",
    "{\"init_info\":1e999}",
    "{\"\":{}}",
    "\xef\xbb\xbf{}",
    "{\"init_info\":{}}\n\n",
  };
  enum { PLAIN = sizeof hostile / sizeof hostile[0] };
  size_t deep_len[2], count;
  char *deep[2] = { nested(100000, "[", "]", &deep_len[0]),
                    nested(60000, "{\"update_info\":", "", &deep_len[1]) };
  const weft_http_route *routes = wefti_acceptor_routes(&count);
  world w;
  world_open(&w);
  for (size_t r = 0; r < count; r++) {
    for (size_t i = 0; i < PLAIN + 2; i++) {
      const ask q = { .route = (uint32_t)routes[r].id,
                      .body = i < PLAIN ? hostile[i] : deep[i - PLAIN],
                      .body_len = i < PLAIN ? 0 : deep_len[i - PLAIN] };
      const uint64_t sent = world_forwarded(&w), refused = world_refused(&w);
      world_forget(&w);
      const weft_http_id id = world_send(&w, &q);
      weft_sim_run(w.sim, weft_sim_now_ms(w.sim) + 1);
      if (routes[r].id == WEFTI_ROUTE_EVENTS) {
        assert_int_equal(w.streamed, id);
        continue;
      }
      const answer *a = world_answer(&w, id);
      assert_in_range(a->status, 200, 499);
      assert_int_equal(world_refused(&w) - refused, a->status >= 400);
      assert_true(a->status < 400 || world_forwarded(&w) == sent);
      assert_int_equal(w.asked_count, world_forwarded(&w) - sent);
    }
  }
  free(deep[0]);
  free(deep[1]);
  world_close(&w);
}

/* ---- what the engine is told */

static const weft_msg *asked_by(world *w, const ask *q)
{
  world_forget(w);
  (void)world_ask(w, q);
  assert_int_equal(w->asked_count, 1);
  return w->asked[0];
}

static void assert_text(weft_str got, const char *want)
{
  assert_int_equal(got.len, strlen(want));
  assert_memory_equal(got.len == 0 ? "" : got.p, want, got.len);
}

static void the_engine_gets_what_the_client_said(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  const weft_client_finish *f = (const weft_client_finish *)asked_by(
      &w, &(ask){ .route = WEFTI_ROUTE_FINISH,
                  .query = "x=1&timeout_s=1.0005",
                  .body = "{\"weight_version\":\"a\\n\",\"strict\":true,"
                          "\"expected_version\":\"\"}",
                  .session = "s-1",
                  .idem_key = "k-1" });
  assert_int_equal(f->timeout_ms, 1001); /* never shorter than asked for */
  assert_int_equal(f->has_version, 1);
  assert_text(f->version, "a\n");
  assert_int_equal(f->has_expected, 1);
  assert_text(f->expected, "");
  assert_int_equal(f->strict, 1);
  assert_text(f->session, "s-1");
  assert_text(f->idem_key, "k-1");
  assert_true(f->body_hash != 0 && f->caller != 0);

  f = (const weft_client_finish *)asked_by(&w, &(ask){ .route = WEFTI_ROUTE_FINISH });
  assert_int_equal(f->timeout_ms, 0);
  assert_int_equal(f->has_version + f->has_expected + f->strict, 0);

  const weft_client_update *u = (const weft_client_update *)asked_by(
      &w, &(ask){ .route = WEFTI_ROUTE_UPDATE,
                  .body = "{\"a\":1,\"update_info\" : [ {} ] }" });
  assert_int_equal(u->info->len, 6);
  assert_memory_equal(u->info->data, "[ {} ]", 6);

  const weft_client_pause *p = (const weft_client_pause *)asked_by(
      &w,
      &(ask){ .route = WEFTI_ROUTE_PAUSE, .query = "wait_for_inflight_requests=true" });
  assert_int_equal(p->action, WEFT_PAUSE);
  assert_text(p->mode, "wait");
  assert_int_equal(p->clear_cache, 1);
  p = (const weft_client_pause *)asked_by(&w, &(ask){ .route = WEFTI_ROUTE_RESUME });
  assert_int_equal(p->action, WEFT_RESUME);

  const weft_client_start *s =
      (const weft_client_start *)asked_by(&w, &(ask){ .route = WEFTI_ROUTE_START_DRAFT });
  assert_int_equal(s->draft, 1);
  s = (const weft_client_start *)asked_by(&w, &(ask){ .route = WEFTI_ROUTE_START });
  assert_int_equal(s->draft, 0);

  const weft_client_check *c = (const weft_client_check *)asked_by(
      &w, &(ask){ .route = WEFTI_ROUTE_CHECKER,
                  .body = "{\"baseline\":{\"a\":\"00\"},\"action\":\"compare\"}" });
  assert_int_equal(c->action, WEFT_CHECK_COMPARE);
  assert_int_equal(c->baseline->len, 10);
  c = (const weft_client_check *)asked_by(
      &w, &(ask){ .route = WEFTI_ROUTE_CHECKER,
                  .body = "{\"baseline\":{},\"action\":\"check\\u0073um\"}" });
  assert_int_equal(c->action, WEFT_CHECK_CHECKSUM);
  assert_null(c->baseline);

  const weft_client_abort *a = (const weft_client_abort *)asked_by(
      &w, &(ask){ .route = WEFTI_ROUTE_ABORT, .body = "{\"reason\":\"because\"}" });
  assert_text(a->reason, "because");
  const weft_client_resolve *resolve = (const weft_client_resolve *)asked_by(
      &w, &(ask){ .route = WEFTI_ROUTE_RESOLVE, .body = "{\"commit\":true}" });
  assert_int_equal(resolve->commit, 1);
  resolve = (const weft_client_resolve *)asked_by(
      &w, &(ask){ .route = WEFTI_ROUTE_RESOLVE, .body = "{\"commit\":false}" });
  assert_int_equal(resolve->commit, 0);
  const weft_client_cache *cache =
      (const weft_client_cache *)asked_by(&w, &(ask){ .route = WEFTI_ROUTE_RESET_MM });
  assert_text(cache->which, "mm");
  world_close(&w);
}

static void a_mixed_fleet_is_not_hidden(void **state)
{
  (void)state;
  world w;
  world_open_with(&w, false);
  static const char who[] = "{\"mixed\":true,\"replicas\":[{\"replica\":0}]}";
  w.done.body = weft_buf_create(who, strlen(who));
  w.done.version = WEFT_STR("a \"b\"");
  const answer *a = world_ask(&w, &(ask){ .route = WEFTI_ROUTE_INFO });
  assert_int_equal(a->status, 200);
  assert_string_equal(a->body,
                      "{\"weight_version\":\"a "
                      "\\\"b\\\"\",\"mixed\":true,\"replicas\":[{\"replica\":0}]}");
  weft_buf_unref(w.done.body);
  world_close(&w);
}

static void a_permitted_reset_reaches_the_engine(void **state)
{
  (void)state;
  world w;
  world_open_with(&w, true);
  w.done.body = weft_buf_create("{\"status\":\"reset\"}", 18);
  const ask q = { .route = WEFTI_ROUTE_CHECKER, .body = "{\"action\":\"reset\"}" };
  const answer *a = world_ask(&w, &q);
  assert_int_equal(a->status, 200);
  assert_string_equal(a->body, "{\"status\":\"reset\"}");
  const weft_client_check *c = (const weft_client_check *)w.asked[0];
  assert_int_equal(c->action, WEFT_CHECK_RESET);
  weft_buf_unref(w.done.body);
  world_close(&w);
}

static uint64_t hash_of(world *w, uint32_t route, const char *query, const char *body)
{
  const ask q = { .route = route, .query = query, .body = body, .idem_key = "k" };
  return ((const weft_client_pause *)asked_by(w, &q))->body_hash;
}

static void the_hash_is_of_route_and_body(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  const uint64_t h = hash_of(&w, WEFTI_ROUTE_FINISH, "", "{\"weight_version\":\"a\"}");
  assert_true(
      h == hash_of(&w, WEFTI_ROUTE_FINISH, "timeout_s=3", "{\"weight_version\":\"a\"}"));
  assert_true(h != hash_of(&w, WEFTI_ROUTE_FINISH, "", "{\"weight_version\":\"b\"}"));
  assert_true(h != hash_of(&w, WEFTI_ROUTE_FINISH, "", NULL));
  assert_true(hash_of(&w, WEFTI_ROUTE_START, "", NULL) !=
              hash_of(&w, WEFTI_ROUTE_START_DRAFT, "", NULL));
  assert_true(hash_of(&w, WEFTI_ROUTE_PAUSE, "", NULL) !=
              hash_of(&w, WEFTI_ROUTE_RESUME, "", NULL));
  assert_true(hash_of(&w, WEFTI_ROUTE_PAUSE, "mode=wait", NULL) !=
              hash_of(&w, WEFTI_ROUTE_PAUSE, "mode=keep", NULL));
  world_close(&w);
}

static void callers_of_two_acceptors_differ(void **state)
{
  (void)state;
  world a, b;
  world_open(&a);
  world_open(&b);
  (void)weft_sim_random(b.sim);
  const wefti_acceptor_args args = { .engine = b.engine,
                                     .ops = { world_respond, world_stream, &b } };
  assert_ok(weft_sim_spawn(b.sim, &wefti_acceptor_class, &args, NULL, &b.acceptor));
  const ask q = { .route = WEFTI_ROUTE_START, .peer = 5 };
  assert_true(((const weft_client_start *)asked_by(&a, &q))->caller !=
              ((const weft_client_start *)asked_by(&b, &q))->caller);
  world_close(&a);
  world_close(&b);
}

/* ---- what the client is told */

static void errors_have_their_status(void **state)
{
  (void)state;
  static const struct {
    weft_err err;
    int status;
    const char *type;
  } rows[] = {
    { WEFT_E_CONFLICT, 409, "Conflict" },
    { WEFT_E_STATE, 409, "Conflict" },
    { WEFT_E_PRECOND, 412, "Precondition Failed" },
    { WEFT_E_REUSED, 422, "Unprocessable Entity" },
    { WEFT_E_UNAVAIL, 503, "Service Unavailable" },
    { WEFT_E_DENIED, 403, "Forbidden" },
    { WEFT_E_NOTFOUND, 404, "Not Found" },
    { WEFT_E_INVAL, 400, "Bad Request" },
    { WEFT_E_UNSUPPORTED, 400, "Bad Request" },
    { WEFT_E_LIMIT, 413, "Request Entity Too Large" },
    { WEFT_E_FAILED, 500, "InternalServerError" },
    { WEFT_E_TIMEOUT, 500, "InternalServerError" },
    { WEFT_E_DOWN, 500, "InternalServerError" },
    { WEFT_E_NOMEM, 500, "InternalServerError" },
    { (weft_err)9999, 500, "InternalServerError" },
  };
  world w;
  world_open(&w);
  w.done.message = WEFT_STR("it \"went\" wrong");
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char want[256];
    world_forget(&w);
    w.done.err = rows[i].err;
    const answer *a = world_ask(&w, &ASK(WEFTI_ROUTE_START, "", NULL));
    (void)snprintf(
        want, sizeof want,
        "{\"error\":{\"message\":\"it \\\"went\\\" wrong\",\"type\":\"%s\","
        "\"param\":null,\"code\":%d,\"operation\":\"start_weight_update\","
        "\"elapsed_ms\":0}}", /* also where a relay answers, which names none */
        rows[i].type, rows[i].status);
    assert_int_equal(a->status, rows[i].status);
    assert_string_equal(a->body, want);
  }
  world_close(&w);
}

static void an_error_names_operation_phase_workers_time_and_outcome(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  w.done.err = WEFT_E_TIMEOUT;
  w.done.outcome = WEFT_OUTCOME_NOT_COMMITTED;
  w.done.message = WEFT_STR("m");
  w.done.operation = WEFT_STR("finish");
  w.done.phase = WEFT_STR("digest");
  w.done.culprits = WEFT_STR("rank 1, rank 3");
  w.done.elapsed_ms = 60001;
  const answer *a = world_ask(&w, &ASK(WEFTI_ROUTE_FINISH, "", NULL));
  assert_string_equal(
      a->body,
      "{\"error\":{\"message\":\"m\",\"type\":\"InternalServerError\",\"param\":null,"
      "\"code\":500,\"operation\":\"finish\",\"phase\":\"digest\",\"workers\":\"rank "
      "1, rank 3\",\"elapsed_ms\":60001,\"outcome\":\"not_committed\"}}");
  w.done.outcome = WEFT_OUTCOME_UNKNOWN;
  a = world_ask(&w, &ASK(WEFTI_ROUTE_FINISH, "", NULL));
  assert_non_null(strstr(a->body, "\"outcome\":\"unknown\"}}"));
  world_close(&w);
}

static void the_pause_family_fails_with_a_string(void **state)
{
  (void)state;
  static const struct {
    uint32_t route;
    const char *body;
  } rows[] = {
    { WEFTI_ROUTE_PAUSE, "{\"error\":\"Failed to pause generation: no\"}" },
    { WEFTI_ROUTE_RESUME, "{\"error\":\"Failed to resume generation: no\"}" },
    { WEFTI_ROUTE_IS_PAUSED, "{\"error\":\"Failed to fetch pause status: no\"}" },
  };
  world w;
  world_open(&w);
  w.done.message = WEFT_STR("no");
  for (size_t i = 0; i < 3; i++) {
    world_forget(&w);
    w.done.err = WEFT_E_FAILED;
    const answer *a = world_ask(&w, &ASK(rows[i].route, "", NULL));
    assert_int_equal(a->status, 500);
    assert_string_equal(a->body, rows[i].body);
    w.done.err = WEFT_E_INVAL;
    a = world_ask(&w, &ASK(rows[i].route, "", NULL));
    assert_int_equal(a->status, 400);
    assert_string_equal(a->body, "{\"error\":\"no\"}");
  }
  world_close(&w);
}

static void success_carries_its_headers(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  w.done.session = WEFT_STR("abc");
  const answer *a = world_ask(&w, &ASK(WEFTI_ROUTE_START, "", NULL));
  assert_string_equal(a->session, "abc");
  assert_string_equal(a->sequence, "");
  w.done.session = WEFT_STR("");
  w.done.fenced = WEFT_STR("1,3");
  w.done.sequence = 18446744073709551615u;
  a = world_ask(&w, &ASK(WEFTI_ROUTE_FINISH, "", NULL));
  assert_string_equal(a->session, "");
  assert_string_equal(a->fenced, "1,3");
  assert_string_equal(a->sequence, "18446744073709551615");
  a = world_ask(&w, &ASK(WEFTI_ROUTE_LABEL, "", "{\"new_version\":\"x\"}"));
  assert_string_equal(a->sequence, "18446744073709551615");
  world_close(&w);
}

static void weight_info_gives_any_version(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  char longest[1025];
  memset(longest, '"', 1024);
  longest[1024] = '\0';
  const struct {
    const char *version, *body;
  } rows[] = {
    { "default", "{\"weight_version\":\"default\"}" },
    { "", "{\"weight_version\":\"\"}" },
    { "a\"\\\n\x01", "{\"weight_version\":\"a\\\"\\\\\\n\\u0001\"}" },
    { "\xc3\xa9/", "{\"weight_version\":\"\xc3\xa9/\"}" },
    { longest, NULL },
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    world_forget(&w);
    w.done.version = str_of(rows[i].version);
    const answer *a = world_ask(&w, &ASK(WEFTI_ROUTE_INFO, "", NULL));
    assert_int_equal(a->status, 200);
    if (rows[i].body != NULL) {
      assert_string_equal(a->body, rows[i].body);
    } else {
      assert_int_equal(strlen(a->body), 2048 + strlen("{\"weight_version\":\"\"}"));
    }
  }
  world_close(&w);
}

static void queries_pass_the_engines_json_through(void **state)
{
  (void)state;
  static const struct {
    uint32_t route;
    weft_query what;
  } rows[] = {
    { WEFTI_ROUTE_STATUS, WEFT_QUERY_STATUS },
    { WEFTI_ROUTE_WEIGHTS, WEFT_QUERY_WEIGHTS },
    { WEFTI_ROUTE_VERSIONS, WEFT_QUERY_VERSIONS },
    { WEFTI_ROUTE_IS_PAUSED, WEFT_QUERY_PAUSED },
    { WEFTI_ROUTE_METRICS, WEFT_QUERY_METRICS },
  };
  world w;
  world_open(&w);
  w.done.body = weft_buf_create("{\"is_paused\":false}", 19);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    world_forget(&w);
    const answer *a = world_ask(&w, &ASK(rows[i].route, "", NULL));
    assert_int_equal(a->status, 200);
    assert_string_equal(a->body, "{\"is_paused\":false}");
    assert_int_equal(((const weft_client_query *)w.asked[0])->what, rows[i].what);
  }
  static const char *const limits[][2] = { { "", "100" },
                                           { "limit=1", "1" },
                                           { "limit=10000", "10000" } };
  for (size_t i = 0; i < 3; i++) {
    world_forget(&w);
    (void)world_ask(&w, &ASK(WEFTI_ROUTE_VERSIONS, limits[i][0], NULL));
    assert_string_equal(((const weft_client_query *)w.asked[0])->arg.p, limits[i][1]);
  }
  weft_buf_unref(w.done.body);
  world_close(&w);
}

static void not_ready_says_why(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  w.done.err = WEFT_E_UNAVAIL;
  w.done.message = WEFT_STR("rank 1 is down");
  const answer *a = world_ask(&w, &ASK(WEFTI_ROUTE_READY, "", NULL));
  assert_int_equal(a->status, 503);
  assert_string_equal(a->body, "{\"ready\":false,\"reason\":\"rank 1 is down\"}");
  assert_int_equal(world_ask(&w, &ASK(WEFTI_ROUTE_HEALTH, "", NULL))->status, 200);
  world_close(&w);
}

static void event_streams_begin_where_they_are_told(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  const weft_http_id id = world_send(&w, &ASK(WEFTI_ROUTE_EVENTS, "after=17", NULL));
  world_idle(&w);
  assert_int_equal(w.streamed, id);
  assert_int_equal(w.streamed_after, 17);
  (void)world_send(&w, &ASK(WEFTI_ROUTE_EVENTS, "", NULL));
  world_idle(&w);
  assert_true(w.streamed_after == INT64_MAX);
  assert_int_equal(w.answer_count, 0);
  world_close(&w);
}

/* ---- an engine that does not answer */

static void silence_ends_a_little_after_the_engines_own_deadline(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  w.mute = true;
  const uint64_t t0 = weft_sim_now_ms(w.sim);
  const weft_http_id finish =
      world_send(&w, &ASK(WEFTI_ROUTE_FINISH, "timeout_s=2", NULL));
  const weft_http_id update =
      world_send(&w, &ASK(WEFTI_ROUTE_UPDATE, "", "{\"update_info\":{}}"));
  const weft_http_id info = world_send(&w, &ASK(WEFTI_ROUTE_INFO, "", NULL));
  const weft_http_id start = world_send(&w, &ASK(WEFTI_ROUTE_START, "timeout_s=4", NULL));
  weft_sim_run(w.sim, t0 + 2500); /* the engine's own answer would still be in time */
  assert_int_equal(w.answer_count, 0);
  weft_sim_run(w.sim, t0 + 3000); /* deadline + 1 s */
  const answer *a = world_answer(&w, finish);
  assert_int_equal(a->status, 500);
  assert_non_null(strstr(a->body, "\"operation\":\"finish_weight_update\""));
  const char *elapsed = strstr(a->body, "\"elapsed_ms\":");
  assert_non_null(elapsed);
  const unsigned long ms = strtoul(elapsed + strlen("\"elapsed_ms\":"), NULL, 10);
  assert_true(ms >= 2500 && ms <= 3000);
  assert_non_null(strstr(a->body, "\"outcome\":\"unknown\""));
  assert_non_null(
      strstr(a->body, "finish_weight_update: the engine did not answer in time"));
  weft_sim_run(w.sim, t0 + 4700);
  assert_int_equal(w.answer_count, 1);
  weft_sim_run(w.sim, t0 + 5100);
  a = world_answer(&w, info); /* a question: there is no operation */
  assert_int_equal(a->status, 500);
  assert_null(strstr(a->body, "operation"));
  assert_null(strstr(a->body, "outcome"));
  a = world_answer(&w, start); /* it commits nothing, whatever came of it */
  assert_non_null(strstr(a->body, "\"operation\":\"start_weight_update\""));
  assert_non_null(strstr(a->body, "\"outcome\":\"not_committed\""));
  weft_sim_run(w.sim, t0 + 300100);
  a = world_answer(&w, update);
  assert_int_equal(a->status, 500);
  assert_non_null(strstr(a->body, "\"operation\":\"update_weights\""));
  assert_non_null(strstr(a->body, "\"outcome\":\"unknown\""));
  world_close(&w);
}

static void a_dead_engine_is_503_at_once(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  w.mute = true;
  const weft_http_id label =
      world_send(&w, &ASK(WEFTI_ROUTE_LABEL, "", "{\"new_version\":\"a\"}"));
  world_idle(&w);
  weft_sim_kill(w.sim, w.engine);
  world_idle(&w);
  const answer *a = world_answer(&w, label);
  assert_int_equal(a->status, 503);
  assert_non_null(strstr(a->body, "\"outcome\":\"unknown\""));
  a = world_ask(&w, &ASK(WEFTI_ROUTE_READY, "", NULL));
  assert_int_equal(a->status, 503);
  assert_non_null(strstr(a->body, "\"ready\":false"));
  a = world_ask(&w, &ASK(WEFTI_ROUTE_PAUSE, "", NULL));
  assert_int_equal(a->status, 503);
  assert_string_equal(
      a->body, "{\"error\":\"Failed to pause generation: pause: the engine is gone\"}");
  world_close(&w);
}

static void a_lost_answer_is_no_promise(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  w.lose = true;
  const answer *a = world_ask(&w, &ASK(WEFTI_ROUTE_FINISH, "", NULL));
  assert_int_equal(a->status, 503);
  assert_non_null(strstr(a->body, "\"outcome\":\"unknown\""));
  assert_non_null(strstr(a->body, "the engine's answer was lost"));
  world_close(&w);
}

static void a_frozen_engine_with_a_full_mailbox_is_503(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  weft_sim_freeze(w.sim, w.engine, true);
  for (int i = 0; i < 1500; i++) {
    (void)world_send(&w, &ASK(WEFTI_ROUTE_INFO, "", NULL));
    world_idle(&w);
  }
  const size_t refused = w.answer_count;
  assert_true(refused > 0 && refused < 1500);
  for (size_t i = 0; i < refused; i++) {
    assert_int_equal(w.answers[i].status, 503);
  }
  const answer *finish = world_ask(&w, &ASK(WEFTI_ROUTE_FINISH, "", NULL)); /* id 1501 */
  assert_int_equal(finish->status, 503);
  assert_non_null(strstr(finish->body, "\"outcome\":\"not_committed\""));
  weft_sim_freeze(w.sim, w.engine, false);
  world_idle(&w);
  assert_int_equal(w.answer_count, 1501);
  for (weft_http_id id = 1; id <= 1500; id++) {
    (void)world_answer(&w, id);
  }
  world_close(&w);
}

static void answers_may_come_in_any_order(void **state)
{
  (void)state;
  enum { CALLS = 1000 };
  world w;
  world_open(&w);
  w.mute = true;
  for (int i = 0; i < CALLS; i++) {
    char body[64];
    (void)snprintf(body, sizeof body, "{\"new_version\":\"v%d\"}", i);
    (void)world_send(&w, &ASK(WEFTI_ROUTE_LABEL, "", body));
    world_idle(&w);
  }
  assert_int_equal(w.asked_count, CALLS);
  for (size_t i = 0; i < CALLS; i++) { /* 7 and 1000 have no common factor */
    const weft_http_gone now = { .h = { .type = WEFT_MSG_HTTP_GONE },
                                 .peer = i * 7 % CALLS };
    assert_ok(weft_sim_send(w.sim, w.engine, &now.h));
    assert_ok(weft_sim_send(w.sim, w.engine, &now.h)); /* once is enough */
    world_idle(&w);
  }
  for (int i = 0; i < CALLS; i++) {
    char want[64];
    (void)snprintf(want, sizeof want, "{\"success\":true,\"new_version\":\"v%d\"}", i);
    assert_string_equal(world_answer(&w, (weft_http_id)i + 1)->body, want);
  }
  world_close(&w);
}

/* Runs inside an actor, since the table's memory is an actor's. */
static weft_err table_init(weft_ctx *ctx, void *self, const void *args)
{
  enum { KEYS = 300, STEPS = 20000 };
  (void)self;
  (void)args;
  wefti_open_table table = { 0 };
  uint64_t corr[KEYS] = { 0 }; /* 0: not in the table */
  size_t in = 0;
  for (int i = 0; i < STEPS; i++) {
    const size_t k = weft_random(ctx) % KEYS;
    wefti_open open = { .id = k + 1, .peer = k % 7 };
    /* First it fills up, then it empties, and so on. */
    const bool fill = i / 1000 % 2 == 0;
    if (corr[k] == 0 && (fill || weft_random(ctx) % 4 == 0)) {
      open.corr = weft_random(ctx) | 1;
      assert_ok(wefti_open_reserve(ctx, &table));
      wefti_open_add(&table, &open);
      corr[k] = open.corr;
      in++;
    } else if (corr[k] != 0 && (!fill || weft_random(ctx) % 4 == 0)) {
      wefti_open out;
      assert_true(wefti_open_take(&table, corr[k], &out));
      assert_true(out.id == open.id && out.corr == corr[k]);
      assert_false(wefti_open_take(&table, corr[k], &out));
      corr[k] = 0;
      in--;
    }
    wefti_open none; /* keys are odd */
    assert_false(wefti_open_take(&table, (weft_random(ctx) | 3) - 1, &none));
    assert_int_equal(table.count, in);
  }
  for (size_t k = 0; k < KEYS; k++) {
    wefti_open out;
    assert_true(corr[k] == 0 || wefti_open_mark_gone(&table, k % 7));
    assert_int_equal(wefti_open_take(&table, corr[k], &out), corr[k] != 0);
  }
  assert_false(wefti_open_mark_gone(&table, 1));
  wefti_open_fini(ctx, &table);
  return WEFT_OK;
}

static weft_err table_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  (void)ctx;
  (void)self;
  (void)msg;
  return WEFT_OK;
}

static void the_table_of_open_requests_loses_none(void **state)
{
  (void)state;
  static const weft_actor_class table_class = { .name = "table",
                                                .init = table_init,
                                                .on = table_on };
  world w;
  weft_actor_id id;
  world_open(&w);
  assert_ok(weft_sim_spawn(w.sim, &table_class, NULL, NULL, &id));
  world_close(&w);
}

/* ---- connections that go away, the end */

static void only_a_caller_in_flight_is_reported_gone(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  const weft_http_gone gone = { .h = { .type = WEFT_MSG_HTTP_GONE }, .peer = 11 };
  (void)world_ask(&w, &(ask){ .route = WEFTI_ROUTE_START, .peer = 11 });
  assert_ok(weft_sim_send(w.sim, w.acceptor, &gone.h));
  world_idle(&w);
  assert_int_equal(w.asked_count, 1); /* answered before */
  w.mute = true;
  (void)world_send(&w, &(ask){ .route = WEFTI_ROUTE_INFO, .peer = 11 });
  world_idle(&w);
  assert_ok(weft_sim_send(w.sim, w.acceptor, &gone.h));
  world_idle(&w);
  assert_int_equal(w.asked_count, 2); /* a question cannot be taken over */
  (void)world_send(
      &w,
      &(ask){ .route = WEFTI_ROUTE_UPDATE, .body = "{\"update_info\":{}}", .peer = 11 });
  world_idle(&w);
  assert_ok(weft_sim_send(w.sim, w.acceptor, &gone.h));
  world_idle(&w);
  assert_int_equal(w.asked_count, 4);
  assert_int_equal(w.asked[3]->type, WEFT_MSG_CLIENT_GONE);
  assert_true(((const weft_client_gone *)w.asked[3])->caller ==
              ((const weft_client_update *)w.asked[2])->caller);
  world_close(&w);
}

/* Which the engine may have heard before the call itself, or not at all. */
static void a_hang_up_is_told_until_the_call_is_over(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  w.mute = true;
  for (uint64_t peer = 11; peer < 14; peer++) {
    (void)world_send(&w, &(ask){ .route = WEFTI_ROUTE_START, .peer = peer });
  }
  world_idle(&w);
  const weft_http_gone gone = { .h = { .type = WEFT_MSG_HTTP_GONE }, .peer = 12 };
  weft_sim_fail_alloc(w.sim, 2); /* the message to the engine; the first is the test's */
  assert_ok(weft_sim_send(w.sim, w.acceptor, &gone.h));
  world_idle(&w);
  weft_sim_fail_alloc(w.sim, 0);
  assert_int_equal(w.asked_count, 3);
  weft_sim_run(w.sim, weft_sim_now_ms(w.sim) + 3500);
  assert_int_equal(w.asked_count, 6); /* once a second */
  for (size_t i = 3; i < 6; i++) {
    assert_int_equal(w.asked[i]->type, WEFT_MSG_CLIENT_GONE);
    assert_true(((const weft_client_gone *)w.asked[i])->caller ==
                ((const weft_client_start *)w.asked[1])->caller);
  }
  const weft_http_gone now = { .h = { .type = WEFT_MSG_HTTP_GONE }, .peer = 1 };
  assert_ok(weft_sim_send(w.sim, w.engine, &now.h));
  weft_sim_run(w.sim, weft_sim_now_ms(w.sim) + 3500);
  assert_int_equal(w.asked_count, 6);
  world_close(&w);
}

static char *long_update(size_t strings, size_t *len)
{
  const size_t cap = strings * 128 + 64;
  char *text = malloc(cap);
  assert_non_null(text);
  size_t n = (size_t)snprintf(text, cap, "{\"update_info\":{\"names\":[\"first\"");
  for (size_t i = 0; i < strings; i++) {
    n += (size_t)snprintf(text + n, cap - n, ",\"%0100zu\"", i);
  }
  n += (size_t)snprintf(text + n, cap - n, "]}}");
  *len = n;
  return text;
}

static void a_long_body_does_not_hold_up_others(void **state)
{
  (void)state;
  size_t len;
  char *text = long_update(20000, &len); /* 2 MB */
  world w;
  world_open(&w);
  const weft_http_id slow = world_send(
      &w, &(ask){ .route = WEFTI_ROUTE_UPDATE, .body = text, .body_len = len });
  const weft_http_id quick = world_send(&w, &ASK(WEFTI_ROUTE_INFO, "", NULL));
  weft_sim_run(w.sim, weft_sim_now_ms(w.sim) + 100);
  assert_int_equal(w.answers[0].id, quick);
  assert_string_equal(world_answer(&w, slow)->body, "{\"message\":\"Weights updated\"}");
  const weft_client_update *u = (const weft_client_update *)w.asked[1];
  assert_int_equal(u->info->len, len - strlen("{\"update_info\":}"));
  text[len - 1] = ']';
  const answer *a =
      world_ask(&w, &(ask){ .route = WEFTI_ROUTE_UPDATE, .body = text, .body_len = len });
  assert_int_equal(a->status, 400);
  free(text);
  world_close(&w);
}

static void a_long_list_is_looked_through_to_its_end(void **state)
{
  (void)state;
  enum { ITEMS = 300000 };
  char *text = malloc(ITEMS * 4 + 64);
  assert_non_null(text);
  size_t n = (size_t)sprintf(text, "{\"update_info\":[{}");
  for (int i = 0; i < ITEMS; i++) {
    n += (size_t)sprintf(text + n, ", {}");
  }
  memcpy(text + n, "]}", 3);
  n += 2;
  world w;
  world_open(&w);
  const ask q = { .route = WEFTI_ROUTE_UPDATE, .body = text, .body_len = n };
  assert_int_equal(world_ask(&w, &q)->status, 200);
  const weft_client_update *u = (const weft_client_update *)w.asked[0];
  assert_int_equal(u->info->len, n - strlen("{\"update_info\":}"));
  assert_memory_equal(u->info->data, text + strlen("{\"update_info\":"), u->info->len);
  text[n - 4] = '['; /* the last one */
  text[n - 3] = ']';
  text[n - 2] = ']';
  const answer *a = world_ask(&w, &q);
  assert_int_equal(a->status, 400);
  assert_non_null(strstr(a->body, "\"param\":\"body.update_info\""));
  assert_int_equal(w.asked_count, 1);
  free(text);
  world_close(&w);
}

static void a_body_has_at_most_1024_members(void **state)
{
  (void)state;
  world w;
  world_open(&w);
  for (int members = 1024; members <= 1025; members++) {
    char text[20000];
    size_t n = (size_t)sprintf(text, "{\"new_version\":\"a\"");
    for (int i = 1; i < members; i++) {
      n += (size_t)sprintf(text + n, ",\"k%d\":1", i);
    }
    (void)sprintf(text + n, "}");
    const answer *a = world_ask(&w, &ASK(WEFTI_ROUTE_LABEL, "", text));
    assert_int_equal(a->status, members <= 1024 ? 200 : 400);
    assert_true(members <= 1024 || strstr(a->body, "too many members") != NULL);
  }
  world_close(&w);
}

static void a_long_body_of_a_lost_connection_is_dropped(void **state)
{
  (void)state;
  size_t len;
  char *text = long_update(10000, &len);
  const ask q = { .route = WEFTI_ROUTE_UPDATE, .body = text, .body_len = len, .peer = 3 };
  unsigned slices = 0;
  do { /* it goes after the first slice, after the second, ... while it is read or copied
        */
    world w;
    world_open(&w);
    w.gone_after = ++slices;
    w.gone_peer = 3;
    (void)world_send(&w, &q);
    weft_sim_run(w.sim, weft_sim_now_ms(w.sim) + 1000);
    if (w.gone_after != 0) {   /* there are not so many */
      assert_true(slices > 6); /* 1 MB, read and copied */
      assert_int_equal(w.answer_count, 1);
      slices = 0;
    } else if (w.asked_count > 0) { /* that was the last one: the engine has it */
      assert_int_equal(w.asked_count, 2);
      assert_int_equal(w.asked[1]->type, WEFT_MSG_CLIENT_GONE);
    } else {
      assert_int_equal(w.answer_count, 0);
    }
    world_close(&w);
  } while (slices > 0);
  free(text);
}

static void stop_answers_what_is_open(void **state)
{
  (void)state;
  size_t len;
  char *text = long_update(10000, &len);
  world w;
  world_open(&w);
  w.mute = true;
  const weft_http_id finish = world_send(&w, &ASK(WEFTI_ROUTE_FINISH, "", NULL));
  const weft_http_id update = world_send(
      &w, &(ask){ .route = WEFTI_ROUTE_UPDATE, .body = text, .body_len = len });
  const weft_msg stop = { .type = WEFT_MSG_STOP };
  assert_ok(weft_sim_send(w.sim, w.acceptor, &stop));
  while (weft_sim_alive(w.sim, w.acceptor) && weft_sim_step(w.sim)) {
  }
  assert_false(weft_sim_alive(w.sim, w.acceptor));
  assert_int_equal(world_answer(&w, finish)->status, 503);
  assert_non_null(strstr(world_answer(&w, finish)->body, "\"outcome\":\"unknown\""));
  const answer *unread = world_answer(&w, update); /* the engine never heard of it */
  assert_int_equal(unread->status, 503);
  assert_non_null(strstr(unread->body, "\"operation\":\"update_weights\""));
  assert_non_null(strstr(unread->body, "\"outcome\":\"not_committed\""));
  free(text);
  world_close(&w);
}

/* ---- memory that cannot be had */

static void every_failed_allocation_still_gives_one_answer(void **state)
{
  (void)state;
  size_t count;
  const weft_http_route *routes = wefti_acceptor_routes(&count);
  for (size_t r = 0; r < count; r++) {
    if (routes[r].id == WEFTI_ROUTE_EVENTS) {
      continue;
    }
    for (uint64_t nth = 1; nth <= 8; nth++) {
      world w;
      world_open(&w);
      const ask q = { .route = (uint32_t)routes[r].id,
                      .body =
                          "{\"init_info\":{},\"update_info\":{},\"new_version\":\"a\","
                          "\"action\":\"checksum\",\"commit\":true}" };
      const weft_http_id id = world_send(&w, &q);
      weft_sim_fail_alloc(w.sim, nth);
      weft_sim_run(w.sim, weft_sim_now_ms(w.sim) + 400000);
      const answer *a = world_answer(&w, id);
      assert_true(a->status == 200 || a->status == 500 || a->status == 503);
      assert_true(weft_sim_alive(w.sim, w.acceptor));
      weft_sim_fail_alloc(w.sim, 0);
      assert_int_equal(world_ask(&w, &q)->status, 200);
      world_close(&w);
    }
  }
}

static void the_route_table_hides_what_must_be_hidden(void **state)
{
  (void)state;
  size_t count;
  const weft_http_route *routes = wefti_acceptor_routes(&count);
  assert_int_equal(count, WEFTI_ROUTE_COUNT);
  for (size_t i = 0; i < count; i++) {
    const bool dev = (routes[i].flags & WEFT_HTTP_DEV) != 0;
    const bool open = (routes[i].flags & WEFT_HTTP_OPEN) != 0;
    const char *path = routes[i].path;
    const bool plain = strcmp(path, "/health") == 0 || strcmp(path, "/ready") == 0 ||
                       strcmp(path, "/version") == 0;
    const bool metrics = strcmp(path, "/metrics") == 0; /* no dev mode, but the token */
    assert_int_equal(dev, !plain && !metrics);
    assert_int_equal(open, plain);
    assert_true(strcmp(routes[i].method, "POST") == 0 ||
                strcmp(routes[i].method, "GET") == 0);
    assert_string_equal(path + 1, wefti_route_fact_of((uint32_t)routes[i].id)->name);
    assert_int_equal(strcmp(routes[i].method, "POST") == 0,
                     wefti_route_fact_of((uint32_t)routes[i].id)->mutates);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(good_requests_have_exact_answers),
    cmocka_unit_test(bad_requests_are_refused_before_the_engine_hears_of_them),
    cmocka_unit_test(an_error_object_is_what_the_contract_shows),
    cmocka_unit_test(no_body_gets_a_5xx_or_two_answers),
    cmocka_unit_test(the_engine_gets_what_the_client_said),
    cmocka_unit_test(a_mixed_fleet_is_not_hidden),
    cmocka_unit_test(a_permitted_reset_reaches_the_engine),
    cmocka_unit_test(the_hash_is_of_route_and_body),
    cmocka_unit_test(callers_of_two_acceptors_differ),
    cmocka_unit_test(errors_have_their_status),
    cmocka_unit_test(an_error_names_operation_phase_workers_time_and_outcome),
    cmocka_unit_test(the_pause_family_fails_with_a_string),
    cmocka_unit_test(success_carries_its_headers),
    cmocka_unit_test(weight_info_gives_any_version),
    cmocka_unit_test(queries_pass_the_engines_json_through),
    cmocka_unit_test(not_ready_says_why),
    cmocka_unit_test(event_streams_begin_where_they_are_told),
    cmocka_unit_test(silence_ends_a_little_after_the_engines_own_deadline),
    cmocka_unit_test(a_dead_engine_is_503_at_once),
    cmocka_unit_test(a_lost_answer_is_no_promise),
    cmocka_unit_test(a_frozen_engine_with_a_full_mailbox_is_503),
    cmocka_unit_test(answers_may_come_in_any_order),
    cmocka_unit_test(the_table_of_open_requests_loses_none),
    cmocka_unit_test(only_a_caller_in_flight_is_reported_gone),
    cmocka_unit_test(a_hang_up_is_told_until_the_call_is_over),
    cmocka_unit_test(a_long_body_does_not_hold_up_others),
    cmocka_unit_test(a_long_list_is_looked_through_to_its_end),
    cmocka_unit_test(a_body_has_at_most_1024_members),
    cmocka_unit_test(a_long_body_of_a_lost_connection_is_dropped),
    cmocka_unit_test(stop_answers_what_is_open),
    cmocka_unit_test(every_failed_allocation_still_gives_one_answer),
    cmocka_unit_test(the_route_table_hides_what_must_be_hidden),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
