/* weft info, status, abort, checksum: one question, one answer. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_tensor(const weft_json *t)
{
  const weft_json *const shape = weft_json_get(t, "shape");
  const weft_json *dim;
  printf("  %-10s [", cli_str(t, "dtype", "?"));
  for (dim = weft_json_first(shape); dim != NULL; dim = weft_json_next(dim)) {
    int64_t n = 0;
    (void)weft_json_i64(dim, &n);
    printf("%s%lld", dim == weft_json_first(shape) ? "" : ",", (long long)n);
  }
  printf("]  %s  %s\n", cli_str(t, "digest", "-"), cli_str(t, "name", "?"));
}

static int info_tensors(const cli_opts *opts, cli_http *http)
{
  cli_reply reply;
  weft_json *tree = NULL;
  const int code = cli_get_json(opts, http, "/weights", &reply, &tree);
  if (code != CLI_DONE) {
    return code;
  }
  if (opts->json) {
    cli_print_json(reply.body, reply.len);
  } else {
    const weft_json *const list = weft_json_get(tree, "tensors");
    const weft_json *t;
    for (t = weft_json_first(list); t != NULL; t = weft_json_next(t)) {
      print_tensor(t);
    }
  }
  weft_json_free(tree);
  cli_reply_fini(&reply);
  return CLI_DONE;
}

/* The draft model's set, where there is one; in JSON null where there is none. */
static void draft_json(weft_json_writer *w, const weft_json *draft)
{
  if (weft_json_kind_of(draft) != WEFT_JSON_OBJECT) {
    weft_jw_null(w, "draft");
    return;
  }
  weft_jw_object(w, "draft");
  weft_jw_str(w, "digest", weft_json_str(weft_json_get(draft, "digest")));
  weft_jw_u64(w, "tensors", cli_u64(draft, "tensors"));
  weft_jw_u64(w, "bytes", cli_u64(draft, "bytes"));
  weft_jw_bool(w, "lost", weft_json_bool(weft_json_get(draft, "lost"), false));
  weft_jw_end(w);
}

static void draft_print(const weft_json *draft)
{
  char size[32];
  if (weft_json_kind_of(draft) != WEFT_JSON_OBJECT) {
    return;
  }
  printf("draft    %llu tensors, %s on each worker, %s%s\n",
         (unsigned long long)cli_u64(draft, "tensors"),
         cli_bytes(cli_u64(draft, "bytes"), size, sizeof size),
         cli_str(draft, "digest", "no digest"),
         weft_json_bool(weft_json_get(draft, "lost"), false) ? ": lost, push it again"
                                                             : "");
}

static void info_print(const cli_opts *opts, const weft_json *status)
{
  const weft_json *const draft = weft_json_get(status, "draft");
  char size[32];
  if (opts->json) {
    weft_json_writer w;
    char *text = NULL;
    size_t len = 0;
    weft_jw_init(&w);
    weft_jw_object(&w, NULL);
    weft_jw_str(&w, "version", cli_str(status, "version", ""));
    weft_jw_u64(&w, "sequence", cli_u64(status, "sequence"));
    weft_jw_u64(&w, "weights_sequence", cli_u64(status, "weights_sequence"));
    weft_jw_str(&w, "digest", weft_json_str(weft_json_get(status, "digest")));
    weft_jw_u64(&w, "tensors", cli_u64(status, "tensors"));
    weft_jw_u64(&w, "bytes", cli_u64(status, "bytes"));
    draft_json(&w, draft);
    weft_jw_bool(&w, "ready", weft_json_bool(weft_json_get(status, "ready"), false));
    weft_jw_end(&w);
    if (weft_jw_take(&w, &text, &len) == WEFT_OK) {
      cli_print_json(text, len);
      free(text);
    }
    return;
  }
  printf("version  %s%s\n", cli_str(status, "version", ""),
         weft_json_bool(weft_json_get(status, "declared"), true) ? ""
                                                                 : " (not declared)");
  printf("sequence %llu, weights %llu\n", (unsigned long long)cli_u64(status, "sequence"),
         (unsigned long long)cli_u64(status, "weights_sequence"));
  printf("digest   %s\n", cli_str(status, "digest", "none"));
  printf("size     %llu tensors, %s on each worker\n",
         (unsigned long long)cli_u64(status, "tensors"),
         cli_bytes(cli_u64(status, "bytes"), size, sizeof size));
  draft_print(draft);
}

int cmd_info(const cli_opts *opts)
{
  cli_http *const http = cli_http_create(opts);
  cli_reply reply;
  weft_json *tree = NULL;
  if (http == NULL) {
    return CLI_USAGE;
  }
  int code = cli_get_json(opts, http, "/weight_status", &reply, &tree);
  if (code == CLI_DONE) {
    info_print(opts, tree);
    weft_json_free(tree);
    cli_reply_fini(&reply);
    code = opts->tensors ? info_tensors(opts, http) : CLI_DONE;
  }
  cli_http_destroy(http);
  return code;
}

/* Of a member: whose it is, and what it must not decide by itself. */
static void print_fleet(const weft_json *fleet)
{
  const weft_json *const doubt = weft_json_get(fleet, "doubt");
  if (weft_json_kind_of(fleet) != WEFT_JSON_OBJECT) {
    return;
  }
  if (weft_json_str(weft_json_get(fleet, "id")) == NULL) {
    puts("fleet    not adopted by a coordinator yet");
  } else {
    printf("fleet    replica %llu of %llu of %s, %s%s\n",
           (unsigned long long)cli_u64(fleet, "replica"),
           (unsigned long long)cli_u64(fleet, "replicas"), cli_str(fleet, "id", "?"),
           weft_json_bool(weft_json_get(fleet, "granted"), false) ? "may serve"
                                                                  : "cut off",
           weft_json_bool(weft_json_get(fleet, "behind"), false) ? ", behind" : "");
  }
  if (weft_json_kind_of(doubt) == WEFT_JSON_OBJECT) {
    printf("doubt    session %s of fleet %s, version %s, %s\n",
           cli_str(doubt, "session", "?"), cli_str(doubt, "fleet", "?"),
           cli_str(doubt, "version", "?"), cli_str(doubt, "digest", "no digest"));
  }
}

/* A worker, or a coordinator's replica. */
static void print_part(const weft_json *v, const char *what, bool open)
{
  char size[32];
  const char *const version = weft_json_str(weft_json_get(v, "version"));
  const char *const reason = weft_json_str(weft_json_get(v, "reason"));
  printf("%s %-2llu %s, %s, pid %llu, sequence %llu, %s, %s", what,
         (unsigned long long)(weft_json_get(v, "replica") != NULL ? cli_u64(v, "replica")
                                                                  : cli_u64(v, "rank")),
         cli_str(v, "state", "?"), cli_str(v, "phase", "?"),
         (unsigned long long)cli_u64(v, "pid"),
         (unsigned long long)cli_u64(v, "sequence"),
         cli_bytes(cli_u64(v, "bytes"), size, sizeof size),
         cli_str(v, "digest", "no digest"));
  if (version != NULL) {
    printf(", version %s", version);
  }
  if (open && cli_u64(v, "expected") > 0) {
    printf(", %llu of %llu bytes received", (unsigned long long)cli_u64(v, "received"),
           (unsigned long long)cli_u64(v, "expected"));
  }
  printf("%s%s\n", reason != NULL && reason[0] != '\0' ? ": " : "",
         reason != NULL ? reason : "");
}

static void status_print(const weft_json *status)
{
  const weft_json *const session = weft_json_get(status, "session");
  const weft_json *v;
  printf("engine   %s, boot %s\n", cli_str(status, "engine_id", "?"),
         cli_str(status, "boot_id", "?"));
  const bool ready = weft_json_bool(weft_json_get(status, "ready"), false);
  printf("state    %s%s, %s%s%s\n", cli_str(status, "state", "?"),
         weft_json_bool(weft_json_get(status, "paused"), false) ? ", paused" : "",
         ready ? "ready" : "not ready", ready ? "" : ": ",
         ready ? "" : cli_str(status, "reason", "no reason given"));
  print_fleet(weft_json_get(status, "fleet"));
  if (weft_json_kind_of(session) == WEFT_JSON_OBJECT) {
    printf("session  %s, %s, open for %.1f s\n", cli_str(session, "id", "?"),
           cli_str(session, "state", "?"),
           (double)cli_u64(session, "started_ms_ago") / 1000.0);
  } else {
    puts("session  none");
  }
  printf("events   %s\ncontrol  %s\n", cli_str(status, "events", "none"),
         cli_str(status, "control", "none"));
  const bool open = weft_json_kind_of(session) == WEFT_JSON_OBJECT;
  v = weft_json_first(weft_json_get(status, "workers"));
  for (; v != NULL; v = weft_json_next(v)) {
    print_part(v, "worker", open);
  }
  v = weft_json_first(weft_json_get(status, "replicas"));
  for (; v != NULL; v = weft_json_next(v)) {
    print_part(v, "replica", open);
  }
}

int cmd_status(const cli_opts *opts)
{
  cli_http *const http = cli_http_create(opts);
  cli_reply reply;
  weft_json *tree = NULL;
  if (http == NULL) {
    return CLI_USAGE;
  }
  const int code = cli_get_json(opts, http, "/weight_status", &reply, &tree);
  if (code == CLI_DONE) {
    if (opts->json) {
      cli_print_json(reply.body, reply.len);
    } else {
      info_print(opts, tree);
      status_print(tree);
    }
    weft_json_free(tree);
    cli_reply_fini(&reply);
  }
  cli_http_destroy(http);
  return code;
}

/* The session that is open, or "", and the sequence. */
static int open_session(const cli_opts *opts, cli_http *http, char *id, size_t cap,
                        uint64_t *sequence)
{
  cli_reply reply;
  weft_json *status = NULL;
  const int code = cli_get_json(opts, http, "/weight_status", &reply, &status);
  id[0] = '\0';
  if (code == CLI_DONE) {
    snprintf(id, cap, "%s", cli_str(weft_json_get(status, "session"), "id", ""));
    *sequence = cli_u64(status, "sequence");
    weft_json_free(status);
    cli_reply_fini(&reply);
  }
  return code;
}

int cmd_abort(const cli_opts *opts)
{
  cli_http *const http = cli_http_create(opts);
  weft_json_writer w;
  char *body = NULL;
  size_t len = 0;
  cli_reply reply;
  char session[80];
  uint64_t sequence = 0;
  int code;
  if (http == NULL) {
    return CLI_USAGE;
  }
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_str(&w, "reason", opts->reason != NULL ? opts->reason : "weft abort");
  weft_jw_end(&w);
  if (weft_jw_take(&w, &body, &len) != WEFT_OK) {
    cli_warn("abort: out of memory or no UTF-8 in --reason");
    cli_http_destroy(http);
    return CLI_USAGE;
  }
  code = opts->json ? CLI_DONE
                    : open_session(opts, http, session, sizeof session, &sequence);
  if (code != CLI_DONE) {
    free(body);
    cli_http_destroy(http);
    return code;
  }
  cli_http_do(http,
              &(cli_call){ .method = "POST",
                           .path = "/abort_weight_update",
                           .body = body,
                           .timeout_s = opts->timeout_s },
              &reply);
  if (reply.status != 200) {
    code = cli_failed(opts, http, "abort", &reply);
  } else if (opts->json) {
    cli_print_json(reply.body, reply.len);
  } else {
    char text[512];
    if (session[0] == '\0') {
      puts("no session was open");
    } else {
      printf("session ended; %s\n", cli_left(http, &sequence, text, sizeof text));
    }
  }
  cli_reply_fini(&reply);
  free(body);
  cli_http_destroy(http);
  return code;
}

/* The {"checksums":{…}} object of a file that checksum --json wrote, as JSON text for the
 * server's compare.  NULL: said on stderr. */
static char *compare_body(const char *path)
{
  enum { MAX = 256 * 1024 * 1024 };
  static const char head[] = "{\"action\":\"compare\",\"baseline\":";
  FILE *const f = fopen(path, "re");
  char *text = NULL;
  size_t len = 0;
  size_t cap = 0;
  while (f != NULL && !feof(f) && !ferror(f) && len < MAX) {
    if (len == cap) {
      char *const more = realloc(text, cap + 65536);
      if (more == NULL) {
        break;
      }
      text = more;
      cap += 65536;
    }
    len += fread(text + len, 1, cap - len, f);
  }
  const bool read = f != NULL && feof(f) != 0;
  if (f != NULL) {
    (void)fclose(f); /* only read */
  }
  weft_json_scan *scan = NULL;
  char *body = NULL;
  if (read && text != NULL && weft_json_scan_create(NULL, &scan) == WEFT_OK &&
      weft_json_scan_feed(scan, text, len) == WEFT_OK &&
      weft_json_scan_end(scan) == WEFT_OK) {
    const weft_json_span span = weft_json_scan_member(scan, "checksums");
    if (span.kind == WEFT_JSON_OBJECT) {
      body = malloc(sizeof head + span.len + 1);
    }
    if (body != NULL) {
      memcpy(body, head, sizeof head - 1);
      memcpy(body + sizeof head - 1, text + span.at, span.len);
      memcpy(body + sizeof head - 1 + span.len, "}", 2);
    }
  }
  if (body == NULL) {
    cli_warn("--compare %s: %s", path,
             read ? "holds no {\"checksums\":{...}} as checksum --json prints it"
                  : "cannot be read");
  }
  weft_json_scan_destroy(scan);
  free(text);
  return body;
}

static int checksum_print(const cli_opts *opts, const cli_reply *reply,
                          const weft_json *tree)
{
  const weft_json *v;
  if (opts->json) {
    cli_print_json(reply->body, reply->len);
  }
  if (opts->compare != NULL) {
    const weft_json *const list = weft_json_get(tree, "mismatches");
    const bool match = weft_json_bool(weft_json_get(tree, "match"), false);
    if (!opts->json) {
      for (v = weft_json_first(list); v != NULL; v = weft_json_next(v)) {
        printf("%s: differs\n", weft_json_str(v) != NULL ? weft_json_str(v) : "?");
      }
      puts(match ? "all tensors match" : "tensors differ");
    }
    return match ? CLI_DONE : CLI_REFUSED;
  }
  if (!opts->json) {
    v = weft_json_first(weft_json_get(tree, "checksums"));
    for (; v != NULL; v = weft_json_next(v)) {
      printf("%s  %s\n", weft_json_str(v) != NULL ? weft_json_str(v) : "?",
             weft_json_key(v));
    }
  }
  return CLI_DONE;
}

int cmd_checksum(const cli_opts *opts)
{
  static const char checksum[] = "{\"action\":\"checksum\"}";
  cli_http *const http = cli_http_create(opts);
  char *const compare = opts->compare != NULL ? compare_body(opts->compare) : NULL;
  weft_json *tree = NULL;
  cli_reply reply;
  weft_why why = { .err = WEFT_OK };
  int code = CLI_USAGE;
  if (http == NULL || (opts->compare != NULL && compare == NULL)) {
    goto out;
  }
  cli_http_do(http,
              &(cli_call){ .method = "POST",
                           .path = "/weight_checker",
                           .body = compare != NULL ? compare : checksum,
                           .timeout_s = opts->timeout_s },
              &reply);
  if (reply.status != 200) {
    code = cli_failed(opts, http, "checksum", &reply);
  } else if (weft_json_parse(reply.body, reply.len, NULL, &tree, &why) != WEFT_OK) {
    cli_warn("checksum: the answer is no JSON: %s", why.text);
    code = CLI_REFUSED;
  } else {
    code = checksum_print(opts, &reply, tree);
  }
  weft_json_free(tree);
  cli_reply_fini(&reply);
out:
  free(compare);
  cli_http_destroy(http);
  return code;
}
