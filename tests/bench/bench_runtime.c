/* Costs of the runtime, one JSON object per measurement on stdout.  Not a test: run it
 * from a release build on a quiet machine.  argv[1]: only measurements whose name
 * contains it. */
#define _GNU_SOURCE
#include "weft/clock.h"
#include "weft/runtime.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BALL = WEFT_MSG_USER_FIRST, ASK, ANSWER, BURST, CREDIT };
enum { FANOUT = 8, WINDOW = 8192, CHUNK = 256 };

typedef struct bench {
  weft_runtime *rt;
  weft_actor_id peers[FANOUT];
  uint64_t todo, done, sent, acked;
  uint64_t start_ns, end_ns;
  unsigned waiting;
} bench;

typedef struct args {
  bench *b;
} args;

static void report(const char *name, uint64_t ns, uint64_t ops, const char *unit)
{
  const double per = (double)ns / (double)ops;
  (void)printf("{\"name\":\"%s\",\"ops\":%" PRIu64 ",\"ns_per_op\":%.1f,"
               "\"ops_per_s\":%.0f,\"op\":\"%s\"}\n",
               name, ops, per, 1e9 / per, unit);
  (void)fflush(stdout);
}

static weft_err keep_args(weft_ctx *ctx, void *self, const void *a)
{
  (void)ctx;
  *(args *)self = *(const args *)a;
  return WEFT_OK;
}

static void finish(bench *b)
{
  b->end_ns = weft_clock_ns();
  weft_runtime_stop(b->rt, 1000);
}

/* ---- ping-pong by send */

static weft_err echo_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  (void)self;
  if (msg->type == BALL) {
    return weft_send(ctx, msg->from, weft_msg_new(ctx, BALL, 64));
  }
  if (msg->type == ASK) {
    return weft_reply(ctx, weft_return_of(msg), weft_msg_new(ctx, ANSWER, 64));
  }
  return WEFT_E_STATE;
}

static weft_err ping_init(weft_ctx *ctx, void *self, const void *a)
{
  (void)keep_args(ctx, self, a);
  bench *b = ((args *)self)->b;
  b->start_ns = weft_clock_ns();
  return weft_send(ctx, b->peers[0], weft_msg_new(ctx, BALL, 64));
}

static weft_err ping_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  bench *b = ((args *)self)->b;
  if (msg->type != BALL) {
    return WEFT_E_STATE;
  }
  if (++b->done == b->todo) {
    finish(b);
    return WEFT_OK;
  }
  return weft_send(ctx, b->peers[0], weft_msg_new(ctx, BALL, 64));
}

/* ---- fan out and gather by ask */

static void ask_all(weft_ctx *ctx, bench *b)
{
  for (int i = 0; i < FANOUT; i++) {
    (void)weft_ask(ctx, b->peers[i], weft_msg_new(ctx, ASK, 64), 1000);
  }
  b->waiting = FANOUT;
}

static weft_err fan_init(weft_ctx *ctx, void *self, const void *a)
{
  (void)keep_args(ctx, self, a);
  bench *b = ((args *)self)->b;
  b->start_ns = weft_clock_ns();
  ask_all(ctx, b);
  return WEFT_OK;
}

static weft_err fan_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  bench *b = ((args *)self)->b;
  if (msg->type != ANSWER) {
    return WEFT_E_STATE;
  }
  if (--b->waiting == 0) {
    if (++b->done == b->todo) {
      finish(b);
    } else {
      ask_all(ctx, b);
    }
  }
  return WEFT_OK;
}

/* ---- one way, with a window so that the mailbox never fills */

static weft_err pump(weft_ctx *ctx, bench *b)
{
  for (int i = 0; i < CHUNK && b->sent < b->todo && b->sent - b->acked < WINDOW; i++) {
    const weft_err err = weft_send(ctx, b->peers[0], weft_msg_new(ctx, BALL, 64));
    if (err != WEFT_OK) {
      return err;
    }
    b->sent++;
  }
  return WEFT_OK;
}

static weft_err again(weft_ctx *ctx, bench *b)
{
  if (b->sent < b->todo && b->sent - b->acked < WINDOW) {
    return weft_send(ctx, weft_self(ctx), weft_msg_new(ctx, BURST, 64));
  }
  return WEFT_OK;
}

static weft_err source_init(weft_ctx *ctx, void *self, const void *a)
{
  (void)keep_args(ctx, self, a);
  bench *b = ((args *)self)->b;
  b->start_ns = weft_clock_ns();
  return weft_send(ctx, weft_self(ctx), weft_msg_new(ctx, BURST, 64));
}

static weft_err source_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  bench *b = ((args *)self)->b;
  if (msg->type == CREDIT) {
    const bool stalled = b->sent - b->acked >= WINDOW;
    b->acked += WINDOW / 8;
    if (b->acked >= b->todo) {
      finish(b);
      return WEFT_OK;
    }
    return stalled ? again(ctx, b) : WEFT_OK;
  }
  if (msg->type == BURST) {
    const weft_err err = pump(ctx, b);
    return err != WEFT_OK ? err : again(ctx, b);
  }
  return WEFT_E_STATE;
}

typedef struct sink {
  uint64_t got;
} sink;

static weft_err sink_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  sink *s = self;
  if (msg->type != BALL) {
    return WEFT_E_STATE;
  }
  if (++s->got % (WINDOW / 8) == 0) {
    return weft_send(ctx, msg->from, weft_msg_new(ctx, CREDIT, 64));
  }
  return WEFT_OK;
}

static const weft_actor_class echo = { .name = "echo", .on = echo_on };
static const weft_actor_class ping = { "ping", sizeof(args), ping_init, NULL, ping_on };
static const weft_actor_class fan = { "fan", sizeof(args), fan_init, NULL, fan_on };
static const weft_actor_class source = { "source", sizeof(args), source_init, NULL,
                                         source_on };
static const weft_actor_class sink_class = { "sink", sizeof(sink), NULL, NULL, sink_on };

static void must(weft_err err, const char *what)
{
  if (err != WEFT_OK) {
    (void)fprintf(stderr, "bench_runtime: %s: %s\n", what, weft_strerror(err));
    exit(1);
  }
}

/* Runs driver on loop 0 against `count` peers on loop `at`. */
static uint64_t measure(const weft_actor_class *driver, const weft_actor_class *peer,
                        unsigned count, unsigned at, unsigned spin_us, uint64_t todo)
{
  bench b = { .todo = todo };
  const weft_runtime_opts opts = { .size = sizeof opts,
                                   .loops = at + 1,
                                   .spin_us = spin_us };
  const weft_spawn_opts large = { .mailbox = (size_t)2 * WINDOW };
  const args a = { &b };
  weft_actor_id id;
  must(weft_runtime_create(&opts, &b.rt), "create");
  for (unsigned i = 0; i < count; i++) {
    must(weft_runtime_spawn(b.rt, at, peer, NULL, &large, &b.peers[i]), "spawn");
  }
  must(weft_runtime_start(b.rt), "start");
  must(weft_runtime_spawn(b.rt, 0, driver, &a, &large, &id), "spawn");
  weft_runtime_run(b.rt);
  weft_runtime_destroy(b.rt);
  return b.end_ns - b.start_ns;
}

/* ---- the yardstick: two threads and two eventfds, nothing else */

typedef struct bare {
  int a, b;
  uint64_t rounds;
} bare;

static void *bare_echo(void *arg)
{
  const bare *p = arg;
  uint64_t v;
  for (uint64_t i = 0; i < p->rounds; i++) {
    if (read(p->a, &v, sizeof v) != sizeof v || write(p->b, &v, sizeof v) != sizeof v) {
      exit(1);
    }
  }
  return NULL;
}

static uint64_t measure_bare(uint64_t rounds)
{
  bare p = { eventfd(0, EFD_CLOEXEC), eventfd(0, EFD_CLOEXEC), rounds };
  pthread_t t;
  if (p.a < 0 || p.b < 0 || pthread_create(&t, NULL, bare_echo, &p) != 0) {
    exit(1);
  }
  const uint64_t start = weft_clock_ns();
  uint64_t v = 1;
  for (uint64_t i = 0; i < rounds; i++) {
    if (write(p.a, &v, sizeof v) != sizeof v || read(p.b, &v, sizeof v) != sizeof v) {
      exit(1);
    }
  }
  const uint64_t ns = weft_clock_ns() - start;
  (void)pthread_join(t, NULL);
  (void)close(p.a);
  (void)close(p.b);
  return ns;
}

static bool wanted(const char *only, const char *name)
{
  return only == NULL || strstr(name, only) != NULL;
}

int main(int argc, char **argv)
{
  const char *only = argc > 1 ? argv[1] : NULL;
  for (int round = 0; round < 3; round++) {
    if (wanted(only, "same_loop_ping_pong")) {
      report("same_loop_ping_pong", measure(&ping, &echo, 1, 0, 0, 5000000), 5000000,
             "round trip");
    }
    if (wanted(only, "same_loop_ask_fan_out_8")) {
      report("same_loop_ask_fan_out_8", measure(&fan, &echo, FANOUT, 0, 0, 500000),
             500000, "gather of 8");
    }
    if (wanted(only, "two_loops_one_way")) {
      const uint64_t n = 1000ull * WINDOW;
      report("two_loops_one_way", measure(&source, &sink_class, 1, 1, 0, n), n,
             "message");
    }
    if (wanted(only, "bare_eventfd_ping_pong")) {
      report("bare_eventfd_ping_pong", measure_bare(20000), 20000, "round trip");
    }
    if (wanted(only, "two_loops_ping_pong")) {
      report("two_loops_ping_pong", measure(&ping, &echo, 1, 1, 0, 20000), 20000,
             "round trip");
    }
    if (wanted(only, "two_loops_ping_pong_spin")) {
      report("two_loops_ping_pong_spin", measure(&ping, &echo, 1, 1, 50, 500000), 500000,
             "round trip");
    }
  }
  return 0;
}
