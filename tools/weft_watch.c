/* weft watch: every commit as it becomes visible.  Gaps are closed by weft_sub; a server
 * that is gone is waited for and followed again when it is back. */
#include "cli.h"
#include "weft/pubsub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOK_MS = 200, QUIET_S = 2 };

typedef struct watch {
  const cli_opts *opts;
  cli_http *http;
  weft_sub *sub;
  char boot[64];
  unsigned commits;
  bool away; /* said that the server is gone */
} watch;

static void print_commit(const weft_json *e)
{
  char size[32];
  printf("%s  commit %llu  %s  %s -> %s", cli_str(e, "committed_at", "-"),
         (unsigned long long)cli_u64(e, "sequence"), cli_str(e, "kind", "?"),
         cli_str(e, "previous", ""), cli_str(e, "version", ""));
  if (strcmp(cli_str(e, "kind", ""), "weights") == 0) {
    printf("  %llu tensors, %s on each of %llu workers  %s",
           (unsigned long long)cli_u64(e, "tensors"),
           cli_bytes(cli_u64(e, "bytes"), size, sizeof size),
           (unsigned long long)cli_u64(e, "workers"), cli_str(e, "digest", ""));
  }
  putchar('\n');
}

/* What happens to a session: the number behind '-' in its id is the part that people
 * need. */
static void print_session(const weft_json *e)
{
  char size[32];
  const char *const id = cli_str(e, "session", "?");
  const char *const dash = strrchr(id, '-');
  const char *const reason = cli_str(e, "reason", NULL);
  printf("session %s %s", dash != NULL ? dash + 1 : id, cli_str(e, "type", "?"));
  if (cli_u64(e, "received_tensors") > 0) {
    printf(": %llu tensors, %s received",
           (unsigned long long)cli_u64(e, "received_tensors"),
           cli_bytes(cli_u64(e, "received_bytes"), size, sizeof size));
  }
  printf("%s%s\n", reason != NULL ? ": " : "", reason != NULL ? reason : "");
}

static void print_worker(const weft_json *e)
{
  const char *const why = cli_str(e, "why", "");
  printf("worker %llu %s%s%s\n", (unsigned long long)cli_u64(e, "rank"),
         cli_str(e, "type", "?"), why[0] != '\0' ? ": " : "", why);
}

static void print_status(const weft_json *s, const char *word)
{
  printf("%s: version %s, sequence %llu, %s, boot %s\n", word, cli_str(s, "version", ""),
         (unsigned long long)cli_u64(s, "sequence"), cli_str(s, "state", "?"),
         cli_str(s, "boot_id", "?"));
}

/* One event as JSON, with what kind of message it was: a watcher may be a program. */
static void print_json_event(const weft_sub_event *e)
{
  static const char *const kind[] = {
    [WEFT_SUB_STATUS] = "status", [WEFT_SUB_EVENT] = "event", [WEFT_SUB_RESYNC] = "resync"
  };
  weft_json_writer w;
  char *text = NULL;
  size_t len = 0;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_str(&w, "is", kind[e->kind]);
  if (e->kind == WEFT_SUB_EVENT) {
    weft_jw_str(&w, "topic", e->topic);
  }
  weft_jw_raw(&w, e->kind == WEFT_SUB_EVENT ? "event" : "status",
              (const char *)e->json->data, e->json->len);
  weft_jw_end(&w);
  if (weft_jw_take(&w, &text, &len) == WEFT_OK) {
    cli_print_json(text, len);
    free(text);
  }
}

static void on_event(watch *w, const weft_sub_event *e)
{
  weft_json *tree = NULL;
  if (weft_json_parse(e->json->data, e->json->len, NULL, &tree, NULL) != WEFT_OK) {
    cli_warn("%s: an event that is no JSON was left out", e->topic);
    return;
  }
  const bool commit =
      e->kind == WEFT_SUB_EVENT && strcmp(e->topic, "weights.commit") == 0;
  w->commits += commit ? 1 : 0;
  if (w->opts->json) {
    print_json_event(e);
  } else if (commit) {
    print_commit(tree);
  } else if (e->kind == WEFT_SUB_EVENT && strcmp(e->topic, "weights.session") == 0) {
    print_session(tree);
  } else if (e->kind == WEFT_SUB_EVENT && strcmp(e->topic, "weights.worker") == 0) {
    print_worker(tree);
  } else if (e->kind == WEFT_SUB_EVENT) {
    printf("%s  %.*s\n", e->topic, (int)e->json->len, (const char *)e->json->data);
  } else {
    print_status(tree, e->kind == WEFT_SUB_STATUS ? "status" : "missed commits; now");
  }
  fflush(stdout);
  weft_json_free(tree);
}

/* Asks the server where its events are and follows them.  The exit code on failure. */
static int follow(watch *w, bool quietly)
{
  cli_reply reply;
  weft_json *status = NULL;
  weft_why why = { .err = WEFT_OK };
  if (quietly) {
    cli_http_do(w->http,
                &(cli_call){ .method = "GET", .path = "/weight_status", .timeout_s = 5 },
                &reply);
    if (reply.status != 200 ||
        weft_json_parse(reply.body, reply.len, NULL, &status, NULL) != WEFT_OK) {
      cli_reply_fini(&reply);
      return CLI_UNREACHABLE;
    }
  } else {
    const int code = cli_get_json(w->opts, w->http, "/weight_status", &reply, &status);
    if (code != CLI_DONE) {
      return code;
    }
  }
  int code = CLI_DONE;
  const char *const boot = cli_str(status, "boot_id", "");
  if (w->sub == NULL || strcmp(boot, w->boot) != 0) {
    weft_sub_destroy(w->sub);
    w->sub = NULL;
    snprintf(w->boot, sizeof w->boot, "%s", boot);
    const char *const events = cli_str(status, "events", "");
    if (weft_sub_create(events, cli_str(status, "snapshot", ""), &w->sub, &why) !=
        WEFT_OK) {
      cli_warn("watch: %s: %s", events, why.text);
      code = CLI_UNREACHABLE;
    }
  }
  weft_json_free(status);
  cli_reply_fini(&reply);
  return code;
}

static void look_after_server(watch *w)
{
  const bool here = follow(w, true) == CLI_DONE;
  if (!here && !w->away) {
    cli_warn("watch: %s does not answer; waiting for it", cli_http_base(w->http));
  } else if (here && w->away) {
    cli_warn("watch: %s is back", cli_http_base(w->http));
  }
  w->away = !here;
}

static void watch_on(watch *w)
{
  double heard_s = cli_now_s();
  while (!cli_interrupted() && (w->opts->count == 0 || w->commits < w->opts->count)) {
    weft_sub_event e = { .kind = WEFT_SUB_STATUS };
    const weft_err err =
        w->sub != NULL ? weft_sub_next(w->sub, LOOK_MS, &e) : WEFT_E_CLOSED;
    if (err == WEFT_OK) {
      on_event(w, &e);
      weft_buf_unref(e.json);
      heard_s = cli_now_s();
      continue;
    }
    if (err != WEFT_E_TIMEOUT) { /* do not spin on a broken subscriber */
      nanosleep(&(struct timespec){ .tv_nsec = LOOK_MS * 1000000L }, NULL);
    }
    if (cli_now_s() - heard_s >= QUIET_S) {
      look_after_server(w);
      heard_s = cli_now_s();
    }
  }
}

int cmd_watch(const cli_opts *opts)
{
  watch w = { .opts = opts, .http = cli_http_create(opts) };
  if (w.http == NULL) {
    return CLI_USAGE;
  }
  const int code = follow(&w, false);
  if (code == CLI_DONE) {
    watch_on(&w);
  }
  weft_sub_destroy(w.sub);
  cli_http_destroy(w.http);
  return code;
}
