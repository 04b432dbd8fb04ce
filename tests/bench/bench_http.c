/* bench_http.c -- a server that answers GET /weight_info with fixed bytes, for a load
 * generator to be pointed at.  Prints its address, serves until SIGTERM or SIGINT. */
#include "weft/http.h"
#include "weft/runtime.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct bench {
  weft_runtime *rt;
  weft_http *server;
} bench;

static void on_request(void *arg, const weft_http_request *req)
{
  static const char body[] = "{\"weight_version\":\"default\"}";
  const bench *b = arg;
  const weft_http_reply reply = { .status = 200,
                                  .body = body,
                                  .body_len = sizeof body - 1 };
  weft_http_respond(b->server, req->id, &reply);
}

static void on_signal(void *arg)
{
  bench *b = arg;
  weft_http_destroy(b->server);
  b->server = NULL;
  weft_runtime_stop(b->rt, 1000);
}

static int serve(bench *b, const char *address)
{
  static const weft_http_route route = { "GET", "/weight_info", 0, 0 };
  const weft_http_opts opts = { .size = sizeof opts,
                                .routes = &route,
                                .route_count = 1,
                                .on_request = on_request,
                                .arg = b };
  weft_loop *loop = weft_runtime_loop(b->rt, 0);
  weft_signal *term = NULL;
  weft_signal *interrupt = NULL;
  weft_why why = { .text = "out of memory" };
  char bound[300];
  if (weft_http_create(loop, &opts, &b->server) != WEFT_OK ||
      weft_http_listen(b->server, address, bound, sizeof bound, &why) != WEFT_OK ||
      weft_signal_create(loop, SIGTERM, on_signal, b, &term) != WEFT_OK ||
      weft_signal_create(loop, SIGINT, on_signal, b, &interrupt) != WEFT_OK) {
    (void)fprintf(stderr, "bench_http: %s\n", why.text);
    return EXIT_FAILURE;
  }
  (void)printf("%s\n", bound);
  (void)fflush(stdout);
  weft_runtime_run(b->rt);
  weft_signal_destroy(term);
  weft_signal_destroy(interrupt);
  return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
  const weft_runtime_opts opts = { .size = sizeof opts, .loops = 1 };
  bench b = { 0 };
  if (weft_runtime_create(&opts, &b.rt) != WEFT_OK) {
    return EXIT_FAILURE;
  }
  const int rc = serve(&b, argc > 1 ? argv[1] : "127.0.0.1:0");
  weft_http_destroy(b.server);
  weft_runtime_destroy(b.rt);
  return rc;
}
