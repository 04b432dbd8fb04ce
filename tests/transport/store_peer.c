/* A peer for tests with other implementations of the TCPStore.
 *   store_peer serve N      prints "port P"; when N have joined, publishes an NCCL id;
 * ends with its standard input store_peer join HOST PORT   joins, gets an id (second of
 * two candidates), waits in vain, adds, sets; prints what it got */
#include "weft/pickle.h"
#include "weft/runtime.h"
#include "weft/tcpstore.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct peer {
  weft_runtime *rt;
  weft_loop *loop;
  weft_tcpstore_server *server;
  weft_tcpstore *store;
  int64_t members;
  bool published;
  uint16_t port;
  const char *host;
  int step;
  int result;
} peer;

static void finish(peer *p, int result)
{
  p->result = result;
  weft_tcpstore_destroy(p->store);
  p->store = NULL;
  weft_tcpstore_server_destroy(p->server);
  p->server = NULL;
  weft_runtime_stop(p->rt, 1000);
}

/* ---- serve */

static void publish(void *arg)
{
  peer *p = arg;
  uint8_t id[WEFT_NCCL_ID];
  uint8_t pickle[WEFT_NCCL_ID_PICKLE_MAX];
  size_t len = 0;
  for (unsigned i = 0; i < sizeof id; i++) {
    id[i] = (uint8_t)(255 - i);
  }
  if (weft_nccl_id_write(WEFT_NCCL_MODULE_VLLM, id, pickle, sizeof pickle, &len) !=
          WEFT_OK ||
      weft_tcpstore_server_set(p->server, "/broadcast_from/0/0", pickle, len) !=
          WEFT_OK) {
    finish(p, 1);
  }
}

static void on_changed(void *arg, const char *key, size_t len)
{
  peer *p = arg;
  const uint8_t *value;
  size_t n;
  char text[24] = "";
  if (len != strlen(WEFT_TCPSTORE_INIT_KEY) ||
      memcmp(key, WEFT_TCPSTORE_INIT_KEY, len) != 0 || p->published ||
      !weft_tcpstore_server_get(p->server, WEFT_TCPSTORE_INIT_KEY, &value, &n) ||
      n >= sizeof text) {
    return;
  }
  memcpy(text, value, n);
  if (strtoll(text, NULL, 10) >= p->members) {
    p->published = true;
    if (weft_loop_call(p->loop, publish, p) != WEFT_OK) {
      finish(p, 1);
    }
  }
}

static void serve(void *arg)
{
  peer *p = arg;
  const weft_tcpstore_server_opts opts = { .size = sizeof opts,
                                           .changed = on_changed,
                                           .changed_arg = p };
  weft_why why;
  if (weft_tcpstore_server_create(p->loop, &opts, &p->server, &why) != WEFT_OK) {
    (void)fprintf(stderr, "%s\n", why.text);
    finish(p, 1);
    return;
  }
  (void)printf("port %u\n", weft_tcpstore_server_port(p->server));
  (void)fflush(stdout);
}

static void end_well(void *arg)
{
  finish(arg, 0);
}

static void *wait_for_stdin(void *arg)
{
  peer *p = arg;
  char c;
  while (read(STDIN_FILENO, &c, 1) > 0) {
  }
  if (weft_loop_call(p->loop, end_well, p) != WEFT_OK) {
    weft_runtime_stop(p->rt, 0);
  }
  return NULL;
}

/* ---- join */

static void on_answer(void *arg, const weft_tcpstore_answer *a);

static weft_err next(peer *p)
{
  static const char *const keys[] = { "/nobody/sets//this", "/broadcast_from/0/0" };
  static const char *const missing[] = { "/missing" };
  switch (p->step++) {
  case 0:
    return weft_tcpstore_get(p->store, keys, 2, 20000, on_answer, p);
  case 1:
    return weft_tcpstore_get(p->store, missing, 1, 200, on_answer, p);
  case 2:
    return weft_tcpstore_add(p->store, "/n", 5, 20000, on_answer, p);
  case 3:
    return weft_tcpstore_set(p->store, "/from_weft", "hello", 5, 20000, on_answer, p);
  case 4:
    return weft_tcpstore_remove(p->store, "/to_be_removed", 20000, on_answer, p);
  default:
    (void)printf("done\n");
    finish(p, 0);
    return WEFT_OK;
  }
}

static int print_id(const weft_tcpstore_answer *a)
{
  uint8_t id[WEFT_NCCL_ID];
  weft_why why;
  if (weft_nccl_id_read(a->value, a->len, id, &why) != WEFT_OK) {
    (void)fprintf(stderr, "%s\n", why.text);
    return 1;
  }
  (void)printf("id %u ", a->which);
  for (size_t i = 0; i < sizeof id; i++) {
    (void)printf("%02x", id[i]);
  }
  (void)printf("\n");
  return 0;
}

static void on_answer(void *arg, const weft_tcpstore_answer *a)
{
  peer *p = arg;
  const bool in_vain = p->step == 2;
  int bad = in_vain ? a->err != WEFT_E_TIMEOUT : a->err != WEFT_OK;
  if (bad == 0 && p->step == 1) {
    bad = print_id(a);
  } else if (bad == 0) {
    (void)printf("step %d %" PRId64 "\n", p->step, a->number);
  }
  if (bad != 0 || next(p) != WEFT_OK) {
    (void)fprintf(stderr, "step %d: %s %s\n", p->step, weft_err_name(a->err), a->text);
    finish(p, 1);
  }
}

static void join(void *arg)
{
  peer *p = arg;
  const weft_tcpstore_opts opts = { .size = sizeof opts,
                                    .host = p->host,
                                    .port = p->port,
                                    .timeout_ms = 20000,
                                    .join = true };
  weft_why why;
  if (weft_tcpstore_open(p->loop, &opts, on_answer, p, &p->store, &why) != WEFT_OK) {
    (void)fprintf(stderr, "%s\n", why.text);
    finish(p, 1);
  }
}

int main(int argc, char **argv)
{
  const bool serves = argc == 3 && strcmp(argv[1], "serve") == 0;
  if (!serves && !(argc == 4 && strcmp(argv[1], "join") == 0)) {
    (void)fprintf(stderr, "usage: store_peer serve N | join HOST PORT\n");
    return 2;
  }
  peer p = { .result = 1, .host = argv[2] };
  const weft_runtime_opts opts = { .size = sizeof opts, .loops = 1 };
  pthread_t thread;
  if (weft_runtime_create(&opts, &p.rt) != WEFT_OK) {
    return 1;
  }
  p.loop = weft_runtime_loop(p.rt, 0);
  if (serves) {
    p.members = strtoll(argv[2], NULL, 10);
    if (pthread_create(&thread, NULL, wait_for_stdin, &p) != 0) {
      return 1;
    }
  } else {
    p.port = (uint16_t)strtoul(argv[3], NULL, 10);
  }
  if (weft_loop_call(p.loop, serves ? serve : join, &p) == WEFT_OK) {
    weft_runtime_run(p.rt);
  }
  if (serves) {
    (void)pthread_join(thread, NULL);
  }
  weft_runtime_destroy(p.rt);
  return p.result;
}
