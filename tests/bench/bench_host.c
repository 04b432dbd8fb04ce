/* Copy + digest of the host backend against plain memcpy by as many processes side by
 * side.  Prints one JSON object per measurement; cpu_seconds (of the slower process) says
 * more than seconds on a machine that does other things too.  Usage: bench_host [MiB
 * [processes]]. The file lies in /dev/shm or TMPDIR and is in the page cache; buffers are
 * warm. */
#define _GNU_SOURCE
#include "weft/clock.h"
#include "weft/digest.h"
#include "weft/memory.h"
#include "weft/safetensors.h"
#include "weft/transfer.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TENSORS = 64, ROUNDS = 9 };

static double now_s(void)
{
  return (double)weft_clock_ns() * 1e-9;
}

static double cpu_s(void)
{
  struct timespec t;
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what)
{
  (void)fprintf(stderr, "bench_host: %s\n", what);
  exit(1);
}

typedef struct setup {
  uint64_t bytes;
  unsigned threads;
  char path[256];
} setup;

/* ---- what is measured: prepare once, then run per round */
typedef struct work {
  void *(*prepare)(const setup *s);
  void (*run)(void *w);
} work;

typedef struct copy_work {
  uint8_t *from, *to;
  uint64_t bytes;
} copy_work;

static void *prepare_memcpy(const setup *s)
{
  copy_work *w = malloc(sizeof *w);
  if (w == NULL) {
    die("no memory");
  }
  const int prot = PROT_READ | PROT_WRITE;
  w->from = mmap(NULL, s->bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  w->to = mmap(NULL, s->bytes, prot, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (w->from == MAP_FAILED || w->to == MAP_FAILED) {
    die("mmap");
  }
  memset(w->from, 1, s->bytes);
  w->bytes = s->bytes;
  return w;
}

static void run_memcpy(void *arg)
{
  copy_work *w = arg;
  memcpy(w->to, w->from, w->bytes);
  __asm__ volatile("" ::"r"(w->to) : "memory");
}

typedef struct host_work {
  const setup *s;
  void *state;
  weft_memory *memory;
  weft_extent extents[2][TENSORS];
  unsigned turn;
  bool fresh; /* new pages in every round */
} host_work;

static void *prepare_host(const setup *s)
{
  host_work *w = calloc(1, sizeof *w);
  const weft_transfer_opts opts = { .size = sizeof opts, .threads = s->threads };
  weft_why why = { 0 };
  if (w == NULL || weft_transfer_host()->open(&opts, &w->state, &why) != WEFT_OK ||
      weft_memory_host_create(NULL, &w->memory) != WEFT_OK) {
    die(why.text);
  }
  w->s = s;
  return w;
}

static void *prepare_fresh(const setup *s)
{
  host_work *w = prepare_host(s);
  w->fresh = true;
  return w;
}

/* One push: accept, room beside the live one, receive, drop the one before last. */
static void run_host(void *arg)
{
  host_work *w = arg;
  const weft_transfer_ops *ops = weft_transfer_host();
  const weft_transfer_who who = { .world_size = 1 };
  weft_why why = { 0 };
  weft_plan *plan;
  char info[512];
  const int n =
      snprintf(info, sizeof info,
               "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"}}", w->s->path);
  void *dst[TENSORS];
  weft_digest digests[TENSORS];
  weft_extent *mine = w->extents[w->turn];
  for (int i = 0; i < TENSORS; i++) {
    weft_memory_free(w->memory, &mine[i]);
  }
  if (w->fresh) {
    weft_memory_trim(w->memory, 0);
  }
  if (ops->accept(w->state, info, (size_t)n, &who, &plan, &why) != WEFT_OK ||
      weft_memory_reserve(w->memory, plan->bytes, &why) != WEFT_OK) {
    die(why.text);
  }
  for (int i = 0; i < TENSORS; i++) {
    if (weft_memory_alloc(w->memory, plan->tensors[i].bytes, &mine[i], &why) != WEFT_OK) {
      die(why.text);
    }
    dst[i] = mine[i].ptr;
  }
  if (ops->receive(w->state, plan, dst, digests, NULL, NULL, NULL, &why) != WEFT_OK) {
    die(why.text);
  }
  ops->abandon(w->state, plan);
  w->turn ^= 1u;
}

/* ---- processes side by side, started together in each round */
typedef struct shared {
  pthread_barrier_t gate;
  double cpu[64]; /* of the round, by process */
} shared;

typedef struct result {
  double seconds, cpu;
} result;

static result measure(const work *what, const setup *s, unsigned processes)
{
  shared *sh =
      mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrierattr_t attr;
  (void)pthread_barrierattr_init(&attr);
  (void)pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  (void)pthread_barrier_init(&sh->gate, &attr, processes + 1);
  for (unsigned p = 0; p < processes; p++) {
    if (fork() == 0) {
      void *w = what->prepare(s);
      for (int r = 0; r < ROUNDS; r++) {
        (void)pthread_barrier_wait(&sh->gate);
        const double from = cpu_s();
        what->run(w);
        sh->cpu[p] = cpu_s() - from;
        (void)pthread_barrier_wait(&sh->gate);
      }
      _exit(0);
    }
  }
  result best = { 1e9, 1e9 }; /* the first two rounds warm the buffers */
  for (int r = 0; r < ROUNDS; r++) {
    (void)pthread_barrier_wait(&sh->gate);
    const double from = now_s();
    (void)pthread_barrier_wait(&sh->gate);
    const double took = now_s() - from;
    double cpu = 0;
    for (unsigned p = 0; p < processes; p++) {
      cpu = sh->cpu[p] > cpu ? sh->cpu[p] : cpu;
    }
    if (r >= 2) {
      best.seconds = took < best.seconds ? took : best.seconds;
      best.cpu = cpu < best.cpu ? cpu : best.cpu;
    }
  }
  while (wait(NULL) > 0) {
  }
  return best;
}

static void write_file(setup *s)
{
  const char *dir = getenv("TMPDIR");
  (void)snprintf(s->path, sizeof s->path, "%s/weft-bench-%ld.safetensors",
                 dir == NULL ? "/tmp" : dir, (long)getpid());
  const int64_t shape[1] = { (int64_t)(s->bytes / TENSORS) };
  weft_st_spec specs[TENSORS];
  char names[TENSORS][32];
  uint8_t *block = malloc(s->bytes / TENSORS);
  for (int i = 0; i < TENSORS; i++) {
    (void)snprintf(names[i], sizeof names[i], "layers.%d.weight", i);
    specs[i] = (weft_st_spec){ names[i], WEFT_DTYPE_UINT8, 1, shape };
  }
  const int fd = open(s->path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  weft_st_writer *w;
  if (block == NULL || fd < 0 ||
      weft_st_writer_create(fd, specs, TENSORS, &w, NULL) != WEFT_OK) {
    die("cannot write the file");
  }
  for (int i = 0; i < TENSORS; i++) {
    memset(block, i + 1, s->bytes / TENSORS);
    if (weft_st_writer_put(w, block, s->bytes / TENSORS, NULL) != WEFT_OK) {
      die("cannot write the file");
    }
  }
  weft_st_writer_destroy(w);
  free(block);
  (void)close(fd);
}

int main(int argc, char **argv)
{
  setup s = { .bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1024) << 20,
              .threads = 1 };
  const unsigned processes = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 2;
  if (s.bytes < (UINT64_C(1) << 20) || processes == 0 || processes > 64) {
    die("usage: bench_host [MiB [processes]]");
  }
  s.bytes = s.bytes / TENSORS / 64 * TENSORS * 64;
  write_file(&s);
  static const struct {
    const char *name;
    work what;
  } rows[] = {
    { "memcpy", { prepare_memcpy, run_memcpy } },
    { "host_push_warm", { prepare_host, run_host } },
    { "memcpy_again", { prepare_memcpy, run_memcpy } },
    { "host_push_fresh_pages", { prepare_fresh, run_host } },
  };
  result base = { 0, 0 };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const result t = measure(&rows[i].what, &s, processes);
    base = i == 0 ? t : base;
    (void)printf("{\"bench\":\"%s\",\"bytes\":%" PRIu64
                 ",\"processes\":%u,\"seconds\":%.4f,\"cpu_seconds\":%.4f,"
                 "\"gib_s_each\":%.2f,\"ratio\":%.2f,\"cpu_ratio\":%.2f}\n",
                 rows[i].name, s.bytes, processes, t.seconds, t.cpu,
                 (double)s.bytes / t.seconds / (1 << 30), t.seconds / base.seconds,
                 t.cpu / base.cpu);
    (void)fflush(stdout);
  }
  (void)unlink(s.path);
  return 0;
}
