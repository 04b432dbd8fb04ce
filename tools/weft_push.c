/* weft push: one update session over HTTP, from start to finish. */
#define _GNU_SOURCE /* realpath */
#include "cli.h"
#include "push.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- progress: what the server says the workers have received */

static void draw_bar(push *p, uint64_t got, uint64_t all)
{
  if (all == 0) {
    return;
  }
  enum { WIDTH = 32 };
  char bar[WIDTH + 1];
  char a[32];
  char b[32];
  char speed[32];
  const double s = cli_now_s() - p->began_s;
  const size_t full = (size_t)((double)got / (double)all * WIDTH);
  for (size_t i = 0; i < WIDTH; i++) {
    bar[i] = i < full ? '#' : '.';
  }
  bar[WIDTH] = '\0';
  cli_bytes(s > 0 ? (uint64_t)((double)got / s) : 0, speed, sizeof speed);
  fprintf(stderr, "\r[%s] %3.0f %%  %s of %s, %s/s ", bar,
          100.0 * (double)got / (double)all, cli_bytes(got, a, sizeof a),
          cli_bytes(all, b, sizeof b), speed);
  p->drawn = true;
}

/* Workers, or a coordinator's replicas. */
static const weft_json *parts_of(const weft_json *status)
{
  const weft_json *const replicas = weft_json_get(status, "replicas");
  return replicas != NULL ? replicas : weft_json_get(status, "workers");
}

static void show_progress(push *p, const cli_reply *reply)
{
  weft_json *tree = NULL;
  uint64_t got = 0;
  uint64_t all = 0;
  if (reply->status != 200 ||
      weft_json_parse(reply->body, reply->len, NULL, &tree, NULL) != WEFT_OK) {
    return;
  }
  const weft_json *w = weft_json_first(parts_of(tree));
  for (; w != NULL; w = weft_json_next(w)) {
    got += cli_u64(w, "received");
    all += cli_u64(w, "expected");
  }
  weft_json_free(tree);
  if (all == 0 || got > all) {
    return;
  }
  if (p->terminal) {
    draw_bar(p, got, all);
  } else if (cli_now_s() - p->said_s >= 2.0) {
    char a[32];
    char b[32];
    p->said_s = cli_now_s();
    fprintf(stderr, "%3.0f %%: %s of %s\n", 100.0 * (double)got / (double)all,
            cli_bytes(got, a, sizeof a), cli_bytes(all, b, sizeof b));
  }
}

static void clear_bar(push *p)
{
  if (p->drawn) {
    fprintf(stderr, "\r%78s\r", "");
    p->drawn = false;
  }
}

/* True when what runs beside the call failed a while ago. */
static bool beside_is_over(push *p)
{
  enum { GRACE_S = 15 }; /* for the server to notice and answer by itself */
  if (p->beside_failed == NULL ||
      !atomic_load_explicit(p->beside_failed, memory_order_relaxed)) {
    return false;
  }
  if (p->beside_failed_s == 0) {
    p->beside_failed_s = cli_now_s();
  }
  p->gave_up = cli_now_s() - p->beside_failed_s >= GRACE_S;
  return p->gave_up;
}

static bool on_tick(void *arg)
{
  push *const p = arg;
  cli_reply reply;
  if (cli_interrupted() || beside_is_over(p)) {
    return false;
  }
  if (!p->opts->quiet) {
    if (p->terminal && !p->drawn) { /* before the server has said anything */
      draw_bar(p, 0, p->file_bytes);
    }
    if (cli_http_ready(p->http, &reply)) {
      show_progress(p, &reply);
      cli_reply_fini(&reply);
    }
    cli_http_ask(p->http, "/weight_status");
  }
  return true;
}

/* ---- calls */

/* POST path; on anything but 200 says why and returns the exit code. */
static int post(push *p, const char *path, const char *body, cli_reply *reply)
{
  char full[128];
  unsigned patience = 0;
  p->gave_up = false;
  p->beside_failed_s = 0;
  if (p->opts->timeout_s != 0) {
    snprintf(full, sizeof full, "%s?timeout_s=%u", path, p->opts->timeout_s);
    patience = p->opts->timeout_s + 5; /* the server's own answer is the better one */
  } else {
    snprintf(full, sizeof full, "%s", path);
  }
  cli_http_do(p->http,
              &(cli_call){ .method = "POST",
                           .path = full,
                           .body = body,
                           .session = p->session,
                           .timeout_s = patience,
                           .tick = on_tick,
                           .arg = p },
              reply);
  clear_bar(p);
  if (reply->status == 200) {
    return CLI_DONE;
  }
  if (cli_interrupted()) {
    cli_warn("interrupted during %s", path + 1);
    return CLI_REFUSED;
  }
  if (p->gave_up) {
    cli_warn("gave up waiting for the answer to %s", path + 1);
    return CLI_REFUSED;
  }
  return cli_failed(p->opts, p->http, path + 1, reply);
}

int push_post(push *p, const char *path, const char *body)
{
  cli_reply reply;
  const int code = post(p, path, body, &reply);
  cli_reply_fini(&reply);
  return code;
}

static void say_other_version(const push *p, const char *visible)
{
  char text[2048 + 128];
  snprintf(text, sizeof text,
           "expected_version '%.1024s' does not match the visible '%.1024s'; nothing was "
           "changed",
           p->opts->expected, visible);
  if (p->opts->json) {
    weft_json_writer w;
    char *json = NULL;
    size_t len = 0;
    weft_jw_init(&w);
    weft_jw_object(&w, NULL);
    weft_jw_object(&w, "error");
    weft_jw_str(&w, "message", text);
    weft_jw_str(&w, "outcome", "not_committed");
    weft_jw_end(&w);
    weft_jw_end(&w);
    if (weft_jw_take(&w, &json, &len) == WEFT_OK) {
      cli_print_json(json, len);
      free(json);
    }
  }
  cli_warn("push: %s", text);
}

/* Before any byte moves for nothing; what counts is the server's own look, at finish. */
static int check_expected(push *p)
{
  cli_reply reply;
  weft_json *tree = NULL;
  int code = cli_get_json(p->opts, p->http, "/weight_info", &reply, &tree);
  if (code != CLI_DONE) {
    return code;
  }
  const char *const visible = weft_json_str(weft_json_get(tree, "weight_version"));
  if (visible != NULL && strcmp(visible, p->opts->expected) != 0) {
    say_other_version(p, visible);
    code = CLI_REFUSED;
  }
  weft_json_free(tree);
  cli_reply_fini(&reply);
  return code;
}

static int start(push *p)
{
  cli_reply reply;
  if (p->opts->take_over && p->gpu == NULL) { /* else its init did */
    const int code = push_post(p, "/init_weight_transfer_engine", "{\"init_info\":{}}");
    if (code != CLI_DONE) {
      return code;
    }
  }
  const int code =
      post(p, p->opts->draft ? "/start_draft_weight_update" : "/start_weight_update",
           NULL, &reply);
  if (code == CLI_DONE) {
    p->open = true;
    memcpy(p->session, reply.session, sizeof p->session);
  }
  cli_reply_fini(&reply);
  return code;
}

static int update_from_file(push *p, const char *path)
{
  weft_json_writer w;
  char *body = NULL;
  size_t len = 0;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_object(&w, "update_info");
  weft_jw_object(&w, "source");
  weft_jw_str(&w, "kind", "safetensors");
  weft_jw_str(&w, "path", path);
  weft_jw_end(&w);
  weft_jw_end(&w);
  weft_jw_end(&w);
  if (weft_jw_take(&w, &body, &len) != WEFT_OK) {
    cli_warn("%s: out of memory, or a file name that is not UTF-8", path);
    return CLI_REFUSED;
  }
  const int code = push_post(p, "/update_weights", body);
  free(body);
  return code;
}

/* The answer's "outcome", when the server cannot say whether the update will commit. */
static bool outcome_unknown(const cli_reply *reply)
{
  weft_json *tree = NULL;
  bool unknown = reply->status == 0;
  if (reply->status != 0 &&
      weft_json_parse(reply->body, reply->len, NULL, &tree, NULL) == WEFT_OK) {
    const weft_json *const error = weft_json_get(tree, "error");
    unknown = strcmp(cli_str(error, "outcome", ""), "unknown") == 0;
  }
  weft_json_free(tree);
  return unknown;
}

static int finish(push *p)
{
  weft_json_writer w;
  char *body = NULL;
  size_t len = 0;
  cli_reply reply;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  if (p->opts->version != NULL) {
    weft_jw_str(&w, "weight_version", p->opts->version);
  }
  if (p->opts->expected != NULL) {
    weft_jw_str(&w, "expected_version", p->opts->expected);
  }
  weft_jw_end(&w);
  if (weft_jw_take(&w, &body, &len) != WEFT_OK) {
    cli_warn("out of memory, or a version that is not UTF-8");
    return CLI_REFUSED;
  }
  const int code = post(p, "/finish_weight_update", body, &reply);
  if (code == CLI_DONE) {
    p->open = false;
  } else if (outcome_unknown(&reply)) {
    cli_warn("the update may still become current: look at weft info");
    p->open = false; /* nothing left to abort */
  }
  cli_reply_fini(&reply);
  free(body);
  return code;
}

/* Leaves no session behind; what it answers does not matter any more. */
static void give_up(push *p)
{
  cli_reply reply;
  if (!p->open) {
    return;
  }
  cli_http_do(p->http,
              &(cli_call){ .method = "POST",
                           .path = "/abort_weight_update",
                           .body = "{\"reason\":\"weft push failed\"}",
                           .session = p->session,
                           .timeout_s = 10 },
              &reply);
  if (reply.status != 0) {
    char text[512];
    cli_warn("%s", cli_left(p->http, NULL, text, sizeof text));
  }
  cli_reply_fini(&reply);
  p->open = false;
}

/* ---- the whole */

/* The part of the status that is about what was pushed. */
static const weft_json *pushed_set(const push *p, const weft_json *status)
{
  return p->opts->draft ? weft_json_get(status, "draft") : status;
}

static void report_json(const push *p, const weft_json *status, double total_s)
{
  weft_json_writer w;
  char *text = NULL;
  size_t len = 0;
  const weft_json *const list = parts_of(status);
  const weft_json *const set = pushed_set(p, status);
  const bool fleet = weft_json_get(status, "replicas") != NULL;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_bool(&w, "ok", true);
  weft_jw_str(&w, "version", cli_str(status, "version", ""));
  weft_jw_u64(&w, "sequence", cli_u64(status, "sequence"));
  weft_jw_str(&w, "set", p->opts->draft ? "draft" : "main");
  weft_jw_str(&w, "digest", weft_json_str(weft_json_get(set, "digest")));
  weft_jw_u64(&w, "tensors", cli_u64(set, "tensors"));
  weft_jw_u64(&w, "bytes", cli_u64(set, "bytes"));
  weft_jw_u64(&w, fleet ? "replicas" : "workers", weft_json_count(list));
  weft_jw_u64(&w, "update_us", (uint64_t)(p->update_s * 1e6));
  weft_jw_u64(&w, "finish_us", (uint64_t)(p->finish_s * 1e6));
  weft_jw_u64(&w, "total_us", (uint64_t)(total_s * 1e6));
  weft_jw_end(&w);
  if (weft_jw_take(&w, &text, &len) == WEFT_OK) {
    cli_print_json(text, len);
    free(text);
  }
}

static int report(push *p, double total_s)
{
  cli_reply reply;
  weft_json *status = NULL;
  char size[32];
  const int code = cli_get_json(p->opts, p->http, "/weight_status", &reply, &status);
  if (code != CLI_DONE) {
    cli_warn("the update is current; only the report of it failed");
    return CLI_DONE;
  }
  if (p->opts->json) {
    report_json(p, status, total_s);
  } else {
    const weft_json *const set = pushed_set(p, status);
    printf("version %s is current on %zu %s: sequence %llu, %llu tensors, %s each, "
           "%s\n",
           cli_str(status, "version", ""), weft_json_count(parts_of(status)),
           weft_json_get(status, "replicas") != NULL ? "replicas" : "workers",
           (unsigned long long)cli_u64(status, "sequence"),
           (unsigned long long)cli_u64(set, "tensors"),
           cli_bytes(cli_u64(set, "bytes"), size, sizeof size),
           cli_str(set, "digest", "no digest"));
    printf("took %.3f s: moving %.3f s, finish %.3f s\n", total_s, p->update_s,
           p->finish_s);
  }
  weft_json_free(status);
  cli_reply_fini(&reply);
  return CLI_DONE;
}

static int push_all(push *p, char *const *paths)
{
  const double t0 = cli_now_s();
  const bool tcp = strcmp(p->opts->source, "tcp") == 0;
  int code = p->opts->expected != NULL ? check_expected(p) : CLI_DONE;
  if (code == CLI_DONE && push_is_gpu(p->opts)) {
    code = push_gpu_open(p, paths);
  }
  if (code == CLI_DONE) {
    code = start(p);
  }
  const double t1 = cli_now_s();
  for (size_t i = 0; code == CLI_DONE && i < p->opts->file_count; i++) {
    struct stat st;
    p->file_bytes =
        paths[i] != NULL && stat(paths[i], &st) == 0 ? (uint64_t)st.st_size : 0;
    p->began_s = p->said_s = cli_now_s();
    code = p->gpu != NULL ? push_update_gpu(p, paths[i])
           : tcp          ? push_update_tcp(p, paths[i])
                          : update_from_file(p, paths[i]);
  }
  p->file_bytes = 0;
  const double t2 = cli_now_s();
  p->update_s = t2 - t1;
  if (code == CLI_DONE && !cli_interrupted()) {
    code = finish(p);
  } else if (code == CLI_DONE) {
    cli_warn("interrupted before finish");
    code = CLI_REFUSED;
  }
  p->finish_s = cli_now_s() - t2;
  if (code == CLI_DONE) {
    return report(p, cli_now_s() - t0);
  }
  give_up(p);
  return code;
}

int cmd_push(const cli_opts *opts)
{
  push p = { .opts = opts, .terminal = isatty(STDERR_FILENO) == 1 };
  int code = CLI_USAGE;
  if (opts->file_count == 0) {
    cli_warn("push: which FILE? see weft push --help");
    return CLI_USAGE;
  }
  if (strcmp(opts->source, "file") != 0 && strcmp(opts->source, "tcp") != 0 &&
      !push_is_gpu(opts)) {
    cli_warn("push: --source must be file, tcp, nccl or ipc, not %s", opts->source);
    return CLI_USAGE;
  }
  char **const paths = calloc(opts->file_count, sizeof *paths);
  if (paths == NULL) {
    cli_warn("out of memory");
    return CLI_REFUSED;
  }
  for (size_t i = 0; i < opts->file_count; i++) {
    paths[i] = realpath(opts->files[i], NULL);
    if (paths[i] == NULL || access(paths[i], R_OK) != 0) {
      cli_warn("push: %s: %s", opts->files[i],
               errno == ENOENT ? "no such file" : "cannot be read");
      goto out;
    }
  }
  p.http = cli_http_create(opts);
  if (p.http != NULL) {
    code = push_all(&p, paths);
  }
  push_gpu_close(&p, code);
  cli_http_destroy(p.http);
out:
  for (size_t i = 0; i < opts->file_count; i++) {
    free(paths[i]);
  }
  free(paths);
  return code;
}
