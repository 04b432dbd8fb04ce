/* The NCCL double, through the table that weft uses: ranks are threads. */
#define _GNU_SOURCE
#include "weft_test.h"

#include "nccl_table.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 3, N = 1000000 };

typedef struct world {
  wefti_cuda cuda;
  wefti_nccl nccl;
} world;

typedef struct member {
  world *w;
  wefti_nccl_id id;
  int rank, ranks, gpu;
  int blocking;
  size_t count; /* of the broadcast */
  bool leaves;  /* aborts in place of the broadcast */
  /* what came of it */
  int init, result;
  char text[300];
  float sum;
  unsigned char last;
} member;

static void nap(void)
{
  const struct timespec t = { 0, 200000 };
  (void)nanosleep(&t, NULL);
}

/* Until nothing is in progress; its state then. */
static int settle(const member *m, wefti_comm comm)
{
  int state = WEFTI_NCCL_IN_PROGRESS;
  while (m->w->nccl.CommGetAsyncError(comm, &state) == 0 &&
         state == WEFTI_NCCL_IN_PROGRESS) {
    nap();
  }
  return state;
}

static int complete(const member *m, wefti_comm comm, wefti_stream s, int code)
{
  int state = code == WEFTI_NCCL_IN_PROGRESS ? settle(m, comm) : code;
  while (state == 0 && m->w->cuda.StreamQuery(s) == WEFTI_CUDA_NOT_READY) {
    (void)m->w->nccl.CommGetAsyncError(comm, &state);
    nap();
  }
  return state;
}

static void work(member *m, wefti_comm comm)
{
  const wefti_cuda *c = &m->w->cuda;
  const wefti_nccl *n = &m->w->nccl;
  const float one = (float)(m->rank + 1);
  wefti_stream s;
  void *in, *out, *bytes;
  (void)c->StreamCreateWithFlags(&s, WEFTI_STREAM_NONBLOCKING);
  (void)c->Malloc(&in, 4);
  (void)c->Malloc(&out, 4);
  (void)c->Malloc(&bytes, N);
  (void)c->MemcpyAsync(in, &one, 4, WEFTI_TO_DEVICE, s);
  (void)c->MemsetAsync(bytes, m->rank == 0 ? 42 : 0, N, s);
  m->result = complete(
      m, comm, s, n->AllReduce(in, out, 1, WEFTI_NCCL_FLOAT32, WEFTI_NCCL_SUM, comm, s));
  (void)c->MemcpyAsync(&m->sum, out, 4, WEFTI_TO_HOST, s);
  (void)c->StreamSynchronize(s);
  if (m->result == 0 && !m->leaves) {
    m->result = complete(
        m, comm, s, n->Broadcast(bytes, bytes, m->count, WEFTI_NCCL_UINT8, 0, comm, s));
    (void)strncpy(m->text, n->GetLastError(comm), sizeof m->text - 1);
  }
  (void)n->CommAbort(comm);
  (void)c->MemcpyAsync(&m->last, (char *)bytes + N - 1, 1, WEFTI_TO_HOST, s);
  (void)c->StreamSynchronize(s);
  (void)c->Free(in);
  (void)c->Free(out);
  (void)c->Free(bytes);
  (void)c->StreamDestroy(s);
}

static void *rank_main(void *arg)
{
  member *m = arg;
  wefti_nccl_config config = { .size = sizeof config,
                               .magic = WEFTI_NCCL_MAGIC,
                               .version = WEFTI_NCCL_CONFIG_VERSION,
                               .blocking = m->blocking };
  wefti_comm comm = NULL;
  (void)m->w->cuda.SetDevice(m->gpu);
  m->init = m->w->nccl.CommInitRankConfig(&comm, m->ranks, m->id, m->rank, &config);
  if (m->init == WEFTI_NCCL_IN_PROGRESS) {
    m->init = settle(m, comm);
  }
  if (m->init != 0) {
    (void)strncpy(m->text, m->w->nccl.GetLastError(comm), sizeof m->text - 1);
    if (comm != NULL) {
      (void)m->w->nccl.CommAbort(comm);
    }
    return NULL;
  }
  work(m, comm);
  return NULL;
}

static int set_up(void **state)
{
  world *w = calloc(1, sizeof *w);
  weft_why why = { 0 };
  assert_non_null(w);
  if (wefti_cuda_open(WEFT_FAKE_CUDART, &w->cuda, &why) != WEFT_OK ||
      wefti_nccl_open(WEFT_FAKE_NCCL, &w->nccl, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  setenv("WEFT_FAKE_GPUS", "4", 1);
  /* Who comes when the root has given up already tries no longer than this. */
  setenv("WEFT_FAKE_NCCL_CONNECT_MS", "500", 1);
  *state = w;
  return 0;
}

static int tear_down(void **state)
{
  free(*state);
  return 0;
}

static void prepare(world *w, member m[RANKS])
{
  wefti_nccl_id id;
  assert_int_equal(w->nccl.GetUniqueId(&id), 0);
  for (int i = 0; i < RANKS; i++) {
    m[i] = (member){
      .w = w, .id = id, .rank = i, .ranks = RANKS, .gpu = i, .count = N, .blocking = i % 2
    };
  }
}

static void run(member m[RANKS])
{
  pthread_t t[RANKS];
  for (int i = 0; i < RANKS; i++) {
    assert_int_equal(pthread_create(&t[i], NULL, rank_main, &m[i]), 0);
  }
  for (int i = 0; i < RANKS; i++) {
    assert_int_equal(pthread_join(t[i], NULL), 0);
  }
}

static void sums_and_broadcasts_arrive(void **state)
{
  member m[RANKS];
  prepare(*state, m);
  run(m);
  for (int i = 0; i < RANKS; i++) {
    assert_int_equal(m[i].init, 0);
    assert_int_equal(m[i].result, 0);
    assert_true(m[i].sum == 6.0F);
    assert_int_equal(m[i].last, 42);
  }
}

static void a_mismatch_is_told_to_all(void **state)
{
  member m[RANKS];
  prepare(*state, m);
  m[2].count = N - 1;
  run(m);
  for (int i = 0; i < RANKS; i++) {
    assert_int_equal(m[i].result, WEFTI_NCCL_USAGE);
    assert_non_null(strstr(m[i].text, "rank 2 has broadcast number 2 of 999999 bytes"));
  }
}

static void an_abort_frees_the_others(void **state)
{
  member m[RANKS];
  prepare(*state, m);
  m[1].leaves = true;
  run(m);
  assert_int_equal(m[0].result, WEFTI_NCCL_REMOTE);
  assert_int_equal(m[2].result, WEFTI_NCCL_REMOTE);
  assert_non_null(strstr(m[2].text, "rank 1 is gone"));
}

static void who_does_not_fit_is_refused(void **state)
{
  member m[RANKS];
  prepare(*state, m);
  m[2].gpu = 1;
  run(m);
  for (int i = 0; i < RANKS; i++) {
    assert_int_equal(m[i].init, WEFTI_NCCL_USAGE);
    assert_non_null(strstr(m[i].text, "Duplicate GPU detected : rank 1 and rank 2"));
  }
  prepare(*state, m);
  m[2].ranks = RANKS + 1;
  run(m);
  for (int i = 0; i < RANKS; i++) {
    assert_int_not_equal(m[i].init, 0);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(sums_and_broadcasts_arrive, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_mismatch_is_told_to_all, set_up, tear_down),
    cmocka_unit_test_setup_teardown(an_abort_frees_the_others, set_up, tear_down),
    cmocka_unit_test_setup_teardown(who_does_not_fit_is_refused, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
