/* Cost of weft_pin + weft_unpin as an embedder pays it, of what is visible, while another
 * thread commits: with worker threads, and with worker processes when the path of weftd
 * is given.  Prints one JSON object each.  Not a test: it has no opinion on its number.
 */
#include "weft/safetensors.h"
#include "weft/weft.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PINS = 1000000, ROUNDS = 7, TENSORS = 64, BYTES = 64, READY_MS = 20000 };

typedef struct pusher {
  weft_engine *engine;
  char update[96]; /* update_info */
  atomic_bool stop;
  uint64_t commits;
  weft_err err;
} pusher;

static double now_ns(void)
{
  struct timespec ts = { 0 };
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
  return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static weft_err write_checkpoint(const char *path)
{
  weft_st_spec specs[TENSORS];
  char names[TENSORS][16];
  const int64_t shape[1] = { BYTES };
  static const uint8_t zeros[TENSORS * BYTES];
  for (unsigned i = 0; i < TENSORS; i++) {
    (void)snprintf(names[i], sizeof names[i], "t%04u", i);
    specs[i] = (weft_st_spec){ names[i], WEFT_DTYPE_UINT8, 1, shape };
  }
  const int fd = open(path, O_WRONLY | O_TRUNC);
  weft_st_writer *w = NULL;
  weft_err err =
      fd < 0 ? WEFT_E_SYS : weft_st_writer_create(fd, specs, TENSORS, &w, NULL);
  if (err == WEFT_OK) {
    err = weft_st_writer_put(w, zeros, sizeof zeros, NULL);
  }
  weft_st_writer_destroy(w);
  (void)close(fd);
  return err;
}

static weft_err push(pusher *p)
{
  weft_err err = weft_engine_start(p->engine, 0, NULL);
  if (err == WEFT_OK) {
    err = weft_engine_update(p->engine, p->update, 0, NULL);
  }
  if (err == WEFT_OK) {
    err = weft_engine_finish(p->engine, "step", 0, NULL);
  }
  p->commits += err == WEFT_OK;
  return err;
}

static void *push_on(void *arg)
{
  pusher *p = arg;
  while (!atomic_load(&p->stop) && p->err == WEFT_OK) {
    p->err = push(p);
  }
  return NULL;
}

/* The best of some rounds: others share the machine.  -1: a pin failed. */
static double best_ns(weft_engine *engine)
{
  double best = -1;
  weft_pinned pinned;
  for (unsigned round = 0; round < ROUNDS; round++) {
    uint64_t seen = 0;
    const double since = now_ns();
    for (unsigned i = 0; i < PINS; i++) {
      if (weft_pin(engine, 0, 0, &pinned, NULL) != WEFT_OK) {
        return -1;
      }
      seen += pinned.weights_sequence;
      weft_unpin(&pinned);
    }
    const double ns = (now_ns() - since) / PINS;
    best = seen > 0 && (best < 0 || ns < best) ? ns : best;
  }
  return best;
}

static int measure(pusher *p, const char *kind)
{
  pthread_t thread;
  if (weft_engine_wait_ready(p->engine, READY_MS, NULL) != WEFT_OK ||
      push(p) != WEFT_OK) {
    return 1;
  }
  const double quiet = best_ns(p->engine);
  const uint64_t before = p->commits;
  if (pthread_create(&thread, NULL, push_on, p) != 0) {
    return 1;
  }
  const double busy = best_ns(p->engine);
  atomic_store(&p->stop, true);
  (void)pthread_join(thread, NULL);
  (void)printf("{\"bench\":\"weft_pin_unpin\",\"workers\":\"%s\",\"quiet_ns\":%.1f,"
               "\"while_committing_ns\":%.1f,\"commits\":%" PRIu64 ",\"target_ns\":50}\n",
               kind, quiet, busy, p->commits - before);
  return quiet > 0 && busy > 0 && p->err == WEFT_OK ? 0 : 1;
}

static int run(weft_workers kind, const char *program, const char *path)
{
  pusher p = { .commits = 0 };
  const weft_engine_opts opts = { .size = sizeof opts,
                                  .workers = kind,
                                  .worker_program = program,
                                  .log_level = WEFT_LOG_ERROR };
  (void)snprintf(p.update, sizeof p.update,
                 "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"}}", path);
  if (weft_engine_create(&opts, &p.engine, NULL) != WEFT_OK) {
    return 1;
  }
  const int rc = measure(&p, kind == WEFT_WORKERS_THREADS ? "threads" : "processes");
  weft_engine_destroy(p.engine);
  return rc;
}

int main(int argc, char **argv)
{
  char path[] = "/tmp/bench_pinXXXXXX";
  const int fd = mkstemp(path);
  int rc = fd < 0 || write_checkpoint(path) != WEFT_OK;
  if (rc == 0) {
    rc = run(WEFT_WORKERS_THREADS, NULL, path);
  }
  if (rc == 0 && argc > 1) {
    rc = run(WEFT_WORKERS_PROCESSES, argv[1], path);
  }
  if (fd >= 0) {
    (void)close(fd);
    (void)unlink(path);
  }
  if (rc != 0) {
    (void)fprintf(stderr, "bench_pin_api: could not be measured\n");
  }
  return rc;
}
