/* NCCL on one GPU: alone, in pairs where the library lets two ranks share it, and what
 * hangs. */
#define _GNU_SOURCE
#include "gpu_check.h"
#include "nccl_comm.h"
#include "weft/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { GIVE_UP_MS = 1000 }; /* after which what hangs is cancelled */

void check_alone(const check *c)
{
  weft_why why = { 0 };
  const weft_gpu_packing one_by_one = { false, 0 };
  const weft_gpu_packing packed = { true, 1 << 20 };
  weft_gpu_source *s = check_source(c, true, true);
  const double from = check_now_s();
  if (weft_gpu_source_join(s, 1, ID_WAIT_MS, &why) != WEFT_OK) {
    check_die(c, "joining", &why);
  }
  const double joined = check_now_s();
  if (weft_gpu_source_broadcast(s, &one_by_one, ID_WAIT_MS, &why) != WEFT_OK ||
      weft_gpu_source_broadcast(s, &packed, ID_WAIT_MS, &why) != WEFT_OK) {
    check_die(c, "broadcasts", &why);
  }
  (void)printf("{\"check\":\"%s\",\"ok\":true,\"join_ms\":%.1f}\n", c->name,
               (joined - from) * 1e3);
  if (!weft_gpu_source_destroy(s)) {
    check_die(c, "ncclCommAbort does not come back", NULL);
  }
}

/* ---- bare broadcasts, with nothing of weft's between them */

static double bare_loop(const check *c, const wefti_nccl_id *id, int rank)
{
  wefti_gpu gpu = { 0 };
  wefti_group group = { 0 };
  weft_why why = { 0 };
  wefti_wait wait = { .due_ms = weft_clock_ms() + ID_WAIT_MS };
  const weft_transfer_opts opts = { .size = sizeof opts, .device = &c->device };
  const uint64_t each = c->st->tensors[0].bytes;
  void *at = NULL;
  double best = 1e9;
  group.gpu = &gpu;
  if (wefti_gpu_open(&opts, &gpu, &why) != WEFT_OK ||
      wefti_nccl_open(c->device.nccl, &group.nccl, &why) != WEFT_OK ||
      wefti_group_join(&group, id, rank, 2, &wait, &why) != WEFT_OK ||
      gpu.cuda.Malloc(&at, each * c->st->count) != WEFTI_CUDA_OK) {
    check_die(c, "bare broadcasts", &why);
  }
  for (int round = 0; round < ROUNDS; round++) {
    const double from = check_now_s();
    for (size_t i = 0; i < c->st->count; i++) {
      char *p = (char *)at + i * each;
      const int code =
          group.nccl.Broadcast(p, p, each, WEFTI_NCCL_UINT8, 0, group.comm, group.stream);
      if (wefti_group_settle(&group, code, &wait, "ncclBroadcast", &why) != WEFT_OK) {
        check_die(c, "bare broadcasts", &why);
      }
    }
    (void)gpu.cuda.StreamSynchronize(group.stream);
    const double took = check_now_s() - from;
    best = took < best ? took : best;
  }
  (void)gpu.cuda.Free(at);
  (void)wefti_group_abort(&group, ID_WAIT_MS);
  wefti_group_close(&group);
  wefti_gpu_close(&gpu);
  return best;
}

static void new_id(const check *c, wefti_nccl_id *id)
{
  wefti_nccl nccl = { 0 };
  weft_why why = { 0 };
  if (wefti_nccl_open(c->device.nccl, &nccl, &why) != WEFT_OK ||
      nccl.GetUniqueId == NULL || nccl.GetUniqueId(id) != WEFTI_NCCL_OK) {
    check_die(c, "ncclGetUniqueId", &why);
  }
  wefti_nccl_close(&nccl);
}

static void bare_side(const check *c, int fd)
{
  wefti_nccl_id id;
  new_id(c, &id);
  check_tell(c, fd, &id, sizeof id);
  (void)bare_loop(c, &id, 0);
  (void)fd;
}

/* ---- trainer and worker */

static weft_gpu_source *join_as_trainer(const check *c, int fd)
{
  char id[WEFT_NCCL_ID_TEXT];
  weft_why why = { 0 };
  weft_gpu_source *s = check_source(c, true, true);
  weft_gpu_source_id(s, id);
  check_tell(c, fd, id, sizeof id);
  if (weft_gpu_source_join(s, 2, ID_WAIT_MS, &why) != WEFT_OK) {
    check_die(c, "joining as rank 0", &why);
  }
  return s;
}

static void join_as_worker(receiver *r, int fd, const char *more)
{
  char id[WEFT_NCCL_ID_TEXT], info[512];
  weft_why why = { 0 };
  const weft_transfer_who who = { .epoch = 1, .world_size = 1, .timeout_ms = ID_WAIT_MS };
  check_hear(r->c, fd, id, sizeof id);
  (void)snprintf(info, sizeof info,
                 "{\"nccl_unique_id_b64\":\"%s\",\"rank_offset\":1,\"world_size\":2%s}",
                 id, more);
  if (r->ops->init(r->state, info, strlen(info), &who, NULL, &why) != WEFT_OK) {
    check_die(r->c, "joining as rank 1", &why);
  }
}

enum { PACKED_BYTES = 32 << 20 };

static void send_side(const check *c, int fd)
{
  weft_gpu_source *s = join_as_trainer(c, fd);
  weft_why why = { 0 };
  for (int round = 0; round < 2 * ROUNDS; round++) {
    const weft_gpu_packing how = { round >= ROUNDS, PACKED_BYTES };
    char ready;
    check_hear(c, fd, &ready, 1);
    if (weft_gpu_source_broadcast(s, &how, ID_WAIT_MS, &why) != WEFT_OK) {
      check_die(c, "broadcasting", &why);
    }
  }
  char done;
  check_hear(c, fd, &done, 1); /* rank 1 has left */
  (void)weft_gpu_source_destroy(s);
}

void check_pair(const check *c)
{
  int fd = -1;
  wefti_nccl_id id;
  receiver r;
  receive_time best[2] = { RECEIVE_NEVER, RECEIVE_NEVER };
  const char *const how[2] = { "", ",\"packed\":true,\"packed_buffer_size_bytes\":" };
  char packed[128];
  (void)setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1); /* one thread so far */
  pid_t child = check_fork(c, bare_side, &fd);
  check_hear(c, fd, &id, sizeof id);
  const double bare = bare_loop(c, &id, 1);
  check_join(c, child);
  (void)close(fd);

  child = check_fork(c, send_side, &fd);
  receiver_open(&r, c, weft_transfer_nccl());
  join_as_worker(&r, fd, "");
  char *info = check_update_info(c, NULL);
  info[strlen(info) - 1] = '\0'; /* "}": older clients say here how it is packed */
  for (int round = 0; round < 2 * ROUNDS; round++) {
    (void)snprintf(packed, sizeof packed, "%s%d}", how[1], PACKED_BYTES);
    const bool p = round >= ROUNDS;
    char *all = malloc(strlen(info) + sizeof packed);
    if (all == NULL) {
      check_die(c, "no memory", NULL);
    }
    (void)sprintf(all, "%s%s", info, p ? packed : "}"); /* NOLINT: sized above */
    weft_plan *plan = receiver_accept(&r, all);
    check_tell(c, fd, "", 1);
    best[p] = receive_less(best[p], receiver_receive(&r, plan));
    free(all);
  }
  receiver_close(&r);
  check_tell(c, fd, "", 1);
  check_join(c, child);
  free(info);
  const double bytes = (double)(c->st->tensors[0].bytes * c->st->count);
  (void)printf("{\"check\":\"%s\",\"ok\":true,\"bytes\":%.0f,\"tensors\":%zu,"
               "\"receive_us\":%.0f,\"receive_packed_us\":%.0f,\"bare_us\":%.0f,"
               "\"digested_us\":%.0f,\"digested_packed_us\":%.0f,"
               "\"receive_gb_s\":%.2f,\"receive_packed_gb_s\":%.2f,\"bare_gb_s\":%.2f}\n",
               c->name, bytes, c->st->count, best[0].receive * 1e6, best[1].receive * 1e6,
               bare * 1e6, best[0].digested * 1e6, best[1].digested * 1e6,
               bytes / best[0].receive / 1e9, bytes / best[1].receive / 1e9,
               bytes / bare / 1e9);
}

/* ---- what hangs */

typedef struct clock_work {
  atomic_bool cancel; /* relaxed: nothing else hangs on it */
  double at;          /* when; read after joining */
} clock_work;

static void *cancel_later(void *arg)
{
  clock_work *w = arg;
  (void)nanosleep(&(struct timespec){ .tv_sec = GIVE_UP_MS / 1000 }, NULL);
  w->at = check_now_s();
  atomic_store_explicit(&w->cancel, true, memory_order_relaxed);
  return NULL;
}

static void start_clock(const check *c, clock_work *w, pthread_t *thread)
{
  if (pthread_create(thread, NULL, cancel_later, w) != 0) {
    check_die(c, "no thread", NULL);
  }
}

static void end_clock(const check *c, clock_work *w, pthread_t thread, weft_err err,
                      const weft_why *why)
{
  const double back = check_now_s();
  (void)pthread_join(thread, NULL);
  if (err != WEFT_E_CANCELLED) {
    check_die(c, "it should have hung until it was cancelled", why);
  }
  (void)printf("{\"check\":\"%s\",\"ok\":true,\"free_after_ms\":%.1f}\n", c->name,
               (back - w->at) * 1e3);
}

/* Rank 0 of two, and nobody comes. */
void check_abort_join(const check *c)
{
  static clock_work w;
  pthread_t thread;
  weft_why why = { 0 };
  weft_gpu_source *s = NULL;
  const weft_gpu_source_opts opts = {
    .size = sizeof opts, .device = &c->device, .nccl = true, .cancel = &w.cancel
  };
  if (weft_gpu_source_create(&opts, &s, &why) != WEFT_OK) {
    check_die(c, "the sending side", &why);
  }
  start_clock(c, &w, &thread);
  const weft_err err = weft_gpu_source_join(s, 2, ID_WAIT_MS, &why);
  end_clock(c, &w, thread, err, &why);
  if (!weft_gpu_source_destroy(s)) {
    check_die(c, "ncclCommAbort does not come back", NULL);
  }
}

static void silent_side(const check *c, int fd)
{
  weft_gpu_source *s = join_as_trainer(c, fd);
  char done;
  check_hear(c, fd, &done, 1); /* and sends nothing */
  (void)weft_gpu_source_destroy(s);
}

void check_abort_broadcast(const check *c)
{
  static clock_work w;
  static weft_digest got[TENSORS_MAX];
  int fd = -1;
  pthread_t thread;
  receiver r;
  weft_why why = { 0 };
  (void)setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  const pid_t child = check_fork(c, silent_side, &fd);
  receiver_open(&r, c, weft_transfer_nccl());
  join_as_worker(&r, fd, "");
  char *info = check_update_info(c, NULL);
  weft_plan *plan = receiver_accept(&r, info);
  start_clock(c, &w, &thread);
  const weft_err err =
      r.ops->receive(r.state, plan, r.dst, got, &w.cancel, NULL, NULL, &why);
  end_clock(c, &w, thread, err, &why);
  r.ops->abandon(r.state, plan);
  receiver_close(&r);
  check_tell(c, fd, "", 1);
  check_join(c, child);
  free(info);
}
