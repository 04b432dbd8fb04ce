#include "cli.h"
#include "weft/clock.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cli_warn(const char *fmt, ...)
{
  va_list args;
  va_start(args, fmt);
  fputs("weft: ", stderr);
  vfprintf(stderr, fmt, args);
  fputc('\n', stderr);
  va_end(args);
}

/* The server's own words: {"error":{"message":…}}, {"error":"…"} or {"detail":"…"}. */
static const char *error_text(const weft_json *tree)
{
  const weft_json *const error = weft_json_get(tree, "error");
  const char *text = weft_json_str(error);
  if (text == NULL && weft_json_kind_of(error) == WEFT_JSON_OBJECT) {
    text = weft_json_str(weft_json_get(error, "message"));
  }
  return text != NULL ? text : weft_json_str(weft_json_get(tree, "detail"));
}

static const char *advice(const char *doing, long status)
{
  switch (status) {
  case 401:
    return " (give the token: --token-file FILE, or http://user:TOKEN@host)";
  case 409:
    return strcmp(doing, "start_weight_update") == 0 ||
                   strcmp(doing, "start_draft_weight_update") == 0
               ? " (weft push --take-over ends a session that is still open)"
               : "";
  case 404:
    return " (is the server's dev mode on? weftd --dev)";
  default:
    return "";
  }
}

int cli_failed(const cli_opts *opts, const cli_http *http, const char *doing,
               const cli_reply *reply)
{
  weft_json *tree = NULL;
  if (reply->status == 0) {
    if (opts->json) {
      weft_json_writer w;
      char *text = NULL;
      size_t len = 0;
      weft_jw_init(&w);
      weft_jw_object(&w, NULL);
      weft_jw_bool(&w, "ok", false);
      weft_jw_str(&w, "doing", doing);
      weft_jw_str(&w, "unreachable", reply->error);
      weft_jw_end(&w);
      if (weft_jw_take(&w, &text, &len) == WEFT_OK) {
        cli_print_json(text, len);
        free(text);
      }
    }
    cli_warn("%s: no answer from %s: %s", doing, cli_http_base(http), reply->error);
    return CLI_UNREACHABLE;
  }
  if (opts->json && reply->len > 0) {
    cli_print_json(reply->body, reply->len);
  }
  const char *text = NULL;
  if (weft_json_parse(reply->body, reply->len, NULL, &tree, NULL) == WEFT_OK) {
    text = error_text(tree);
  }
  cli_warn("%s: refused with %ld: %s%s", doing, reply->status,
           text != NULL ? text : "no reason given", advice(doing, reply->status));
  weft_json_free(tree);
  return CLI_REFUSED;
}

/* Whether one engine's status can vouch for its weights.  Staged beside, an update that
 * was not committed touches nothing; in place, a rank may be gone or poisoned. */
static bool is_kept(const weft_json *status)
{
  const weft_json *w = weft_json_first(weft_json_get(status, "workers"));
  const bool beside = strcmp(cli_str(status, "staging", ""), "shadow") == 0;
  bool kept = w != NULL; /* a coordinator's replicas have their own staging */
  for (; w != NULL && !beside; w = weft_json_next(w)) {
    kept = kept && strcmp(cli_str(w, "state", ""), "ready") == 0;
  }
  return kept;
}

const char *cli_left(cli_http *http, const uint64_t *sequence, char *text, size_t cap)
{
  cli_reply reply;
  weft_json *status = NULL;
  cli_http_do(http,
              &(cli_call){ .method = "GET", .path = "/weight_status", .timeout_s = 10 },
              &reply);
  if (reply.status != 200 ||
      weft_json_parse(reply.body, reply.len, NULL, &status, NULL) != WEFT_OK) {
    status = NULL; /* it cannot be said */
  }
  const char *const poisoned = cli_str(status, "poisoned", NULL);
  if (poisoned != NULL) {
    snprintf(text, cap, "no version is live: %s", poisoned);
  } else if (sequence != NULL && status != NULL &&
             cli_u64(status, "sequence") != *sequence) {
    snprintf(text, cap, "a commit came first: version %.256s is current",
             cli_str(status, "version", ""));
  } else if (is_kept(status)) {
    snprintf(text, cap, "nothing was changed: weights and version are as they were");
  } else {
    snprintf(text, cap, "see weft status for what it left");
  }
  weft_json_free(status);
  cli_reply_fini(&reply);
  return text;
}

int cli_get_json(const cli_opts *opts, cli_http *http, const char *path, cli_reply *reply,
                 weft_json **tree)
{
  char doing[160];
  weft_why why = { .err = WEFT_OK };
  snprintf(doing, sizeof doing, "GET %s", path);
  cli_http_do(http,
              &(cli_call){ .method = "GET", .path = path, .timeout_s = opts->timeout_s },
              reply);
  if (reply->status != 200) {
    const int code = cli_failed(opts, http, doing, reply);
    cli_reply_fini(reply);
    return code;
  }
  if (weft_json_parse(reply->body, reply->len, NULL, tree, &why) != WEFT_OK) {
    cli_warn("%s: %s answered what is no JSON: %s", doing, cli_http_base(http), why.text);
    cli_reply_fini(reply);
    return CLI_REFUSED;
  }
  return CLI_DONE;
}

const char *cli_bytes(uint64_t bytes, char *buf, size_t cap)
{
  static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB" };
  double v = (double)bytes;
  size_t u = 0;
  while (v >= 1024.0 && u + 1 < sizeof unit / sizeof unit[0]) {
    v /= 1024.0;
    u++;
  }
  snprintf(buf, cap, u == 0 ? "%.0f %s" : "%.2f %s", v, unit[u]);
  return buf;
}

const char *cli_str(const weft_json *object, const char *key, const char *fallback)
{
  const char *const s = weft_json_str(weft_json_get(object, key));
  return s != NULL ? s : fallback;
}

uint64_t cli_u64(const weft_json *object, const char *key)
{
  int64_t v = 0;
  if (!weft_json_i64(weft_json_get(object, key), &v) || v < 0) {
    return 0;
  }
  return (uint64_t)v;
}

double cli_now_s(void)
{
  return (double)weft_clock_ns() / 1e9;
}

bool cli_interrupted(void)
{
  sigset_t pending; /* never fetched, so every later call says so too */
  sigemptyset(&pending);
  sigpending(&pending);
  return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1;
}

void cli_print_json(const char *text, size_t len)
{
  fwrite(text, 1, len, stdout);
  fputc('\n', stdout);
  fflush(stdout);
}
