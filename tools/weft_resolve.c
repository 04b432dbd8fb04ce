/* weft resolve: an operator's word where a coordinator is gone for good. */
#include "cli.h"

#include <stdio.h>

int cmd_resolve(const cli_opts *opts)
{
  if (opts->commit == opts->abort) {
    cli_warn("resolve: say --commit or --abort; see weft resolve --help");
    return CLI_USAGE;
  }
  cli_http *const http = cli_http_create(opts);
  if (http == NULL) {
    return CLI_USAGE;
  }
  cli_reply reply;
  int code = CLI_DONE;
  cli_http_do(
      http,
      &(cli_call){ .method = "POST",
                   .path = "/resolve_weight_update",
                   .body = opts->commit ? "{\"commit\":true}" : "{\"commit\":false}",
                   .timeout_s = opts->timeout_s },
      &reply);
  if (reply.status != 200) {
    code = cli_failed(opts, http, "resolve", &reply);
  } else if (opts->json) {
    cli_print_json(reply.body, reply.len);
  } else {
    puts(opts->commit
             ? "committed here; it serves nobody until a coordinator, its own or "
               "another one, leads it again"
             : "aborted here: weights and version are as they were; it serves nobody "
               "until a coordinator, its own or another one, leads it again");
  }
  cli_reply_fini(&reply);
  cli_http_destroy(http);
  return code;
}
