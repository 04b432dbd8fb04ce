/* A question to another process and back over nng ipc, or tcp where that is the argument:
 * through link and port, against bare nng req/rep with the same hand-over to a loop on
 * both sides.  Both run in turns,
 * as only ratios of one run mean something.  One JSON line per transport and a line with
 * the ratio. */
#define _GNU_SOURCE
#include "../transport/link_world.h"
#include "weft/clock.h"
#include "weft/process.h"

#include <arpa/inet.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/protocol/reqrep0/req.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>

enum { ROUNDS = 2000, WARM_UP = 200, TURNS = 7, FRAME = 48 };

typedef struct series {
  uint64_t ns[ROUNDS];
  unsigned n;
  uint64_t began;
} series;

typedef struct bench {
  weft_runtime *rt;
  weft_loop *loop;
  char bare[160], weft[160];
  /* bare */
  nng_socket sock;
  nng_ctx ctx;
  nng_aio *aio;
  bool sending;
  /* both */
  series *now;
  unsigned left;
  pthread_mutex_t lock;
  pthread_cond_t cond;
  bool over;
} bench;

static void must(int failed, const char *what)
{
  if (failed != 0) {
    (void)fprintf(stderr, "bench_link: %s: %d\n", what, failed);
    _exit(1);
  }
}

static void finish(bench *b)
{
  (void)pthread_mutex_lock(&b->lock);
  b->over = true;
  (void)pthread_cond_signal(&b->cond);
  (void)pthread_mutex_unlock(&b->lock);
}

static void wait_over(bench *b)
{
  (void)pthread_mutex_lock(&b->lock);
  while (!b->over) {
    (void)pthread_cond_wait(&b->cond, &b->lock);
  }
  b->over = false;
  (void)pthread_mutex_unlock(&b->lock);
}

/* Records one round trip.  true = there is another to make. */
static bool one_done(bench *b)
{
  const uint64_t t = weft_clock_ns();
  if (b->left <= ROUNDS) {
    b->now->ns[b->now->n++] = t - b->now->began;
  }
  return --b->left > 0;
}

/* ---- bare nng */

static void bare_on_loop(void *arg);

static void bare_cb(void *arg)
{
  bench *b = arg;
  must(nng_aio_result(b->aio), "bare");
  if (b->sending) {
    b->sending = false;
    nng_ctx_recv(b->ctx, b->aio);
  } else {
    must((int)weft_loop_call(b->loop, bare_on_loop, b), "loop_call");
  }
}

static void bare_send(bench *b)
{
  nng_msg *m;
  must(nng_msg_alloc(&m, FRAME), "alloc");
  memset(nng_msg_body(m), 1, FRAME);
  b->now->began = weft_clock_ns();
  b->sending = true;
  nng_aio_set_msg(b->aio, m);
  nng_ctx_send(b->ctx, b->aio);
}

static void bare_on_loop(void *arg)
{
  bench *b = arg;
  nng_msg_free(nng_aio_get_msg(b->aio));
  if (one_done(b)) {
    bare_send(b);
  } else {
    finish(b);
  }
}

static void bare_start(void *arg)
{
  bare_send(arg);
}

static void bare_serve(void *arg) /* the child's loop */
{
  bench *b = arg;
  b->sending = true;
  nng_ctx_send(b->ctx, b->aio); /* the message it got is its answer */
}

static void bare_serve_cb(void *arg)
{
  bench *b = arg;
  if (nng_aio_result(b->aio) != 0) {
    return;
  }
  if (b->sending) {
    b->sending = false;
    nng_ctx_recv(b->ctx, b->aio);
  } else {
    must((int)weft_loop_call(b->loop, bare_serve, b), "loop_call");
  }
}

/* ---- link and port */

typedef struct go_on {
  bench *b;
  const char *url;
} go_on;

typedef struct pinger {
  bench *b;
  weft_actor_id link;
} pinger;

enum { MSG_START = WEFT_MSG_USER_FIRST };

static void ping_once(weft_ctx *ctx, pinger *p)
{
  const ping q = { .h = { .type = TYPE_PING }, .n = 1 };
  p->b->now->began = weft_clock_ns();
  (void)weft_ask(ctx, p->link, weft_msg_make(ctx, &q.h), 10000);
}

static weft_err pinger_init(weft_ctx *ctx, void *self, const void *args)
{
  pinger *p = self;
  const go_on *g = args;
  p->b = g->b;
  const weft_link_opts o = { .size = sizeof o, .url = g->url };
  return weft_link_spawn(ctx, &o, &p->link);
}

static weft_err pinger_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  pinger *p = self;
  if (msg->type == MSG_START) {
    ping_once(ctx, p);
  } else if (msg->type == TYPE_PONG) {
    if (one_done(p->b)) {
      ping_once(ctx, p);
    } else {
      finish(p->b);
    }
  } else if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
  } else {
    must((int)msg->type, "unexpected message");
  }
  return WEFT_OK;
}

static const weft_actor_class pinger_class = {
  .name = "pinger", .state_size = sizeof(pinger), .init = pinger_init, .on = pinger_on
};

/* ---- the two processes */

/* Where the child listens, its tcp ports known. */
static void tell(const bench *b, nng_listener lst, int ready)
{
  char bare[sizeof b->bare];
  nng_sockaddr sa;
  must(nng_listener_get_addr(lst, NNG_OPT_LOCADDR, &sa), "address");
  (void)snprintf(bare, sizeof bare, "%s", b->bare);
  if (sa.s_family == NNG_AF_INET) {
    (void)snprintf(bare, sizeof bare, "tcp://127.0.0.1:%u", ntohs(sa.s_in.sa_port));
  }
  must(write(ready, bare, sizeof bare) != sizeof bare, "ready");
  must(write(ready, b->weft, sizeof b->weft) != sizeof b->weft, "ready");
}

static void child(bench *b, int ready)
{
  char url[sizeof b->weft];
  nng_listener lst;
  const echo_args none = { .link_url = NULL };
  weft_actor_id echo_id;
  weft_actor_id port;
  const weft_runtime_opts o = { .size = sizeof o,
                                .loops = 1,
                                .catalogue = &world_catalogue };
  must((int)weft_runtime_create(&o, &b->rt), "runtime");
  b->loop = weft_runtime_loop(b->rt, 0);
  must((int)weft_runtime_spawn(b->rt, 0, &echo_class, &none, NULL, &echo_id), "echo");
  const weft_port_opts po = { .size = sizeof po,
                              .url = b->weft,
                              .to = echo_id,
                              .roles = 1u << ROLE_SERVER,
                              .from_roles = 1u << ROLE_CLIENT };
  must((int)weft_port_spawn_on(b->rt, 0, &po, url, sizeof url, &port, NULL), "port");
  must(nng_rep0_open(&b->sock), "rep");
  memcpy(b->weft, url, sizeof url);
  must(nng_listen(b->sock, b->bare, &lst, 0), "listen");
  must(nng_ctx_open(&b->ctx, b->sock), "ctx");
  must(nng_aio_alloc(&b->aio, bare_serve_cb, b), "aio");
  nng_ctx_recv(b->ctx, b->aio);
  tell(b, lst, ready);
  weft_runtime_run(b->rt);
}

static int by_value(const void *a, const void *b)
{
  const uint64_t x = *(const uint64_t *)a;
  const uint64_t y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static double report(const bench *b, const char *what, series *s)
{
  qsort(s->ns, s->n, sizeof s->ns[0], by_value);
  const unsigned half = s->n / 2;
  const unsigned most = s->n * 99 / 100;
  const double p50 = (double)s->ns[half] / 1000;
  (void)printf("{\"bench\":\"link\",\"over\":\"%.3s\",\"path\":\"%s\",\"rounds\":%u,"
               "\"p50_us\":%.1f,\"p99_us\":%.1f}\n",
               b->bare, what, s->n, p50, (double)s->ns[most] / 1000);
  return p50;
}

static void turn(bench *b, series *s, weft_actor_id who)
{
  *s = (series){ .n = 0 };
  b->now = s;
  b->left = ROUNDS + WARM_UP;
  if (who == 0) {
    must((int)weft_loop_call(b->loop, bare_start, b), "loop_call");
  } else {
    must((int)weft_post(b->rt, who, weft_msg_heap_new(MSG_START, sizeof(weft_msg))),
         "post");
  }
  wait_over(b);
}

static void parent(bench *b)
{
  static const char *const paths[] = { "bare", "link" };
  weft_actor_id who;
  double ratio[TURNS];
  series *s = calloc(1, sizeof *s);
  must(s == NULL, "memory");
  const weft_runtime_opts o = { .size = sizeof o,
                                .loops = 1,
                                .catalogue = &world_catalogue };
  must((int)weft_runtime_create(&o, &b->rt), "runtime");
  must((int)weft_runtime_start_all(b->rt), "start");
  b->loop = weft_runtime_loop(b->rt, 0);
  const go_on g = { .b = b, .url = b->weft };
  must((int)weft_runtime_spawn(b->rt, 0, &pinger_class, &g, NULL, &who), "pinger");
  must(nng_req0_open(&b->sock), "req");
  must(nng_dial(b->sock, b->bare, NULL, 0), "dial");
  must(nng_ctx_open(&b->ctx, b->sock), "ctx");
  must(nng_aio_alloc(&b->aio, bare_cb, b), "aio");
  for (int i = 0; i < TURNS; i++) {
    turn(b, s, 0);
    const double bare = report(b, paths[0], s);
    turn(b, s, who);
    ratio[i] = report(b, paths[1], s) / bare;
  }
  for (int i = 0; i < TURNS; i++) { /* small: selection is enough */
    for (int k = i + 1; k < TURNS; k++) {
      if (ratio[k] < ratio[i]) {
        const double t = ratio[i];
        ratio[i] = ratio[k];
        ratio[k] = t;
      }
    }
  }
  (void)printf("{\"bench\":\"link\",\"over\":\"%.3s\",\"ratio_of_p50\":%.3f,"
               "\"goal\":1.15}\n",
               b->bare, ratio[TURNS / 2]);
  nng_aio_stop(b->aio);
  nng_aio_free(b->aio);
  (void)nng_close(b->sock);
  weft_runtime_stop(b->rt, 1000);
  weft_runtime_join(b->rt);
  weft_runtime_destroy(b->rt);
  free(s);
}

int main(int argc, char **argv)
{
  const bool tcp = argc > 1 && strcmp(argv[1], "tcp") == 0;
  int ready[2];
  weft_rundir *dir;
  weft_why why = { 0 };
  bench *b = calloc(1, sizeof *b);
  must(b == NULL, "memory");
  must((int)weft_rundir_open(NULL, &dir, &why), why.text);
  if (tcp) {
    (void)snprintf(b->bare, sizeof b->bare, "tcp://127.0.0.1:0");
    (void)snprintf(b->weft, sizeof b->weft, "tcp://127.0.0.1:0");
  } else {
    (void)snprintf(b->bare, sizeof b->bare, "ipc://%s/bare", weft_rundir_path(dir));
    (void)snprintf(b->weft, sizeof b->weft, "ipc://%s/weft", weft_rundir_path(dir));
  }
  must(pthread_mutex_init(&b->lock, NULL), "mutex");
  must(pthread_cond_init(&b->cond, NULL), "cond");
  must(pipe(ready), "pipe");
  const pid_t pid = fork(); /* before the first use of nng */
  must(pid < 0, "fork");
  if (pid == 0) {
    child(b, ready[1]);
    _exit(0);
  }
  must(read(ready[0], b->bare, sizeof b->bare) != sizeof b->bare, "child");
  must(read(ready[0], b->weft, sizeof b->weft) != sizeof b->weft, "child");
  parent(b);
  (void)kill(pid, SIGKILL);
  (void)waitpid(pid, NULL, 0);
  weft_rundir_close(dir);
  free(b);
  return 0;
}
