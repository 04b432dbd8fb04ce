/* weft log: what was committed and what was given up, newest first. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static void print_entry(const weft_json *v)
{
  const bool aborted = strcmp(cli_str(v, "kind", ""), "aborted") == 0;
  const double seconds = (double)cli_u64(v, "elapsed_ms") / 1000.0;
  if (aborted) {
    printf("     -  %s  aborted  after %.3f s, %s: %s\n", cli_str(v, "aborted_at", "?"),
           seconds, cli_str(v, "session", "?"), cli_str(v, "reason", ""));
    return;
  }
  printf("%6llu  %s  %-7s  %s  %.3f s  %s\n", (unsigned long long)cli_u64(v, "sequence"),
         cli_str(v, "committed_at", "?"), cli_str(v, "kind", "?"),
         cli_str(v, "digest", "no weights"), seconds, cli_str(v, "version", ""));
}

int cmd_log(const cli_opts *opts)
{
  cli_http *const http = cli_http_create(opts);
  cli_reply reply;
  weft_json *tree = NULL;
  char path[64] = "/weight_versions";
  if (http == NULL) {
    return CLI_USAGE;
  }
  if (opts->count > 0) {
    (void)snprintf(path, sizeof path, "/weight_versions?limit=%u", opts->count);
  }
  const int code = cli_get_json(opts, http, path, &reply, &tree);
  if (code == CLI_DONE) {
    const weft_json *v = weft_json_first(weft_json_get(tree, "versions"));
    if (opts->json) {
      cli_print_json(reply.body, reply.len);
      v = NULL;
    }
    for (; v != NULL; v = weft_json_next(v)) {
      print_entry(v);
    }
    weft_json_free(tree);
    cli_reply_fini(&reply);
  }
  cli_http_destroy(http);
  return code;
}
