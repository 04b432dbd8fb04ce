/* Cost of weft_store_pin + unpin on one thread while another installs and publishes.
 * Prints one JSON object.  Not a test: it has no opinion on its number. */
#define _GNU_SOURCE /* CLOCK_BOOTTIME is what pins with a grant read */
#include "weft/memory.h"
#include "weight_store.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PINS = 2000000, ROUNDS = 7, TENSORS = 64, BYTES = 4096, PAUSE_NS = 1000000 };

typedef struct committer {
  weft_store *store;
  weft_memory *memory;
  atomic_bool stop;
  uint64_t commits;
  weft_err err;
} committer;

static uint64_t now_ns(clockid_t clock)
{
  struct timespec ts = { 0 };
  (void)clock_gettime(clock, &ts);
  return (uint64_t)ts.tv_sec * 1000000000U + (uint64_t)ts.tv_nsec;
}

static weft_err commit(committer *c, uint64_t n)
{
  wefti_entry entries[TENSORS];
  char name[16];
  const int64_t shape[1] = { BYTES };
  const uint64_t digest[2] = { n, n };
  const weft_snapshot *snapshot;
  unsigned made = 0;
  weft_err err = WEFT_OK;
  for (; made < TENSORS && err == WEFT_OK; made += err == WEFT_OK) {
    (void)snprintf(name, sizeof name, "t%04u", made);
    const weft_tensor want = {
      .name = name, .dtype = "uint8", .shape = shape, .ndim = 1, .bytes = BYTES
    };
    weft_extent extent;
    err = weft_memory_alloc(c->memory, BYTES, &extent, NULL);
    if (err == WEFT_OK) {
      err = wefti_cell_create(&want, c->memory, &extent, &entries[made]);
    }
  }
  if (err == WEFT_OK) {
    err = wefti_store_install(c->store, n, entries, TENSORS, digest, &snapshot);
  }
  if (err == WEFT_OK) {
    err = wefti_store_publish(c->store, n, n);
  }
  for (unsigned i = 0; i < made; i++) {
    wefti_cell_unref(entries[i].cell);
  }
  wefti_store_reap(c->store);
  return err;
}

/* A commit each millisecond: far more than any trainer makes. */
static void *commit_on(void *arg)
{
  committer *c = arg;
  while (!atomic_load(&c->stop) && c->err == WEFT_OK) {
    c->err = commit(c, ++c->commits);
    const struct timespec pause = { .tv_nsec = PAUSE_NS };
    (void)nanosleep(&pause, NULL);
  }
  return NULL;
}

static double pins_ns(weft_store *store, clockid_t clock)
{
  const weft_snapshot *snapshot;
  uint64_t seen = 0;
  const uint64_t since = now_ns(clock);
  for (unsigned i = 0; i < PINS; i++) {
    if (weft_store_pin(store, 0, &snapshot) != WEFT_OK) {
      return -1;
    }
    seen += snapshot->weights_sequence;
    weft_store_unpin(store, snapshot);
  }
  return seen == 0 ? -1 : (double)(now_ns(clock) - since) / PINS;
}

/* The best of some rounds: others share the machine. */
static double best_ns(weft_store *store, clockid_t clock)
{
  double best = -1;
  for (unsigned i = 0; i < ROUNDS; i++) {
    const double ns = pins_ns(store, clock);
    if (ns >= 0 && (best < 0 || ns < best)) {
      best = ns;
    }
  }
  return best;
}

static int measure(bool needs_grant, double out[2], uint64_t *commits)
{
  const weft_store_opts opts = { .size = sizeof opts, .needs_grant = needs_grant };
  committer c = { 0 };
  pthread_t thread;
  if (weft_store_create(&opts, &c.store) != WEFT_OK ||
      weft_memory_host_create(NULL, &c.memory) != WEFT_OK ||
      commit(&c, ++c.commits) != WEFT_OK) {
    return 1;
  }
  wefti_store_grant(c.store, UINT64_MAX);
  out[0] = best_ns(c.store, CLOCK_THREAD_CPUTIME_ID);
  const uint64_t before = c.commits;
  if (pthread_create(&thread, NULL, commit_on, &c) != 0) {
    return 1;
  }
  out[1] = best_ns(c.store, CLOCK_THREAD_CPUTIME_ID);
  atomic_store(&c.stop, true);
  (void)pthread_join(thread, NULL);
  *commits = c.commits - before;
  weft_store_destroy(c.store);
  weft_memory_destroy(c.memory);
  return c.err == WEFT_OK ? 0 : 1;
}

int main(void)
{
  double plain[2], granted[2];
  uint64_t commits[2];
  if (measure(false, plain, &commits[0]) || measure(true, granted, &commits[1])) {
    (void)fprintf(stderr, "bench_pin: out of memory\n");
    return 1;
  }
  (void)printf("{\"bench\":\"pin_unpin\",\"quiet_ns\":%.1f,\"while_committing_ns\":%.1f,"
               "\"with_grant_quiet_ns\":%.1f,\"with_grant_while_committing_ns\":%.1f,"
               "\"commits\":%" PRIu64 "}\n",
               plain[0], plain[1], granted[0], granted[1], commits[0] + commits[1]);
  return 0;
}
