#define _GNU_SOURCE /* gettid, setpriority per thread */
#include "weft/digest.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
  PART_BYTES = 4 << 20,   /* between two looks at cancel */
  WORTH_BYTES = 16 << 20, /* another thread pays from so much for each on */
  THREADS_MAX = 16,
  HELPER_NICE = 10
};

typedef struct pieces_job {
  const weft_piece *pieces;
  size_t count;
  const atomic_bool *cancel;
  atomic_uint_fast64_t *done;
  weft_digest *out;
  _Atomic size_t next; /* relaxed: who takes a piece is all it says */
} pieces_job;

static bool cancelled(const pieces_job *j)
{
  return j->cancel != NULL && atomic_load_explicit(j->cancel, memory_order_relaxed);
}

static void hash_some(pieces_job *j, weft_hasher *h)
{
  for (;;) {
    const size_t i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
    if (i >= j->count) {
      return;
    }
    weft_hasher_reset(h);
    for (uint64_t at = 0; at < j->pieces[i].bytes; at += PART_BYTES) {
      const uint64_t left = j->pieces[i].bytes - at;
      const size_t part = left < PART_BYTES ? (size_t)left : PART_BYTES;
      if (cancelled(j)) {
        return;
      }
      weft_hasher_update(h, (const uint8_t *)j->pieces[i].data + at, part);
      if (j->done != NULL) {
        atomic_fetch_add_explicit(j->done, part, memory_order_relaxed);
      }
    }
    j->out[i] = weft_hasher_value(h);
  }
}

/* Whatever it does not come to do, the others do. */
static void *helper(void *arg)
{
  weft_hasher *h = weft_hasher_create();
  (void)setpriority(PRIO_PROCESS, (id_t)gettid(), HELPER_NICE); /* loops go first */
  if (h != NULL) {
    hash_some(arg, h);
  }
  weft_hasher_destroy(h);
  return NULL;
}

static unsigned helpers_for(const pieces_job *j, unsigned threads)
{
  uint64_t worth = 0;
  for (size_t i = 0; i < j->count && worth < (uint64_t)WORTH_BYTES * THREADS_MAX; i++) {
    worth += j->pieces[i].bytes;
  }
  worth /= WORTH_BYTES;
  worth = worth < threads ? worth : threads;
  worth = worth < j->count ? worth : j->count;
  return worth > THREADS_MAX ? THREADS_MAX - 1 : worth > 1 ? (unsigned)worth - 1 : 0;
}

weft_err weft_digest_pieces(const weft_piece *pieces, size_t count, unsigned threads,
                            const atomic_bool *cancel, atomic_uint_fast64_t *done,
                            weft_digest *out)
{
  pieces_job j = {
    .pieces = pieces, .count = count, .cancel = cancel, .done = done, .out = out
  };
  pthread_t ids[THREADS_MAX];
  sigset_t all, before;
  weft_hasher *h = weft_hasher_create();
  if (h == NULL) {
    return WEFT_E_NOMEM;
  }
  const unsigned wanted = helpers_for(&j, threads);
  unsigned started = 0;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are the loops' business */
  while (started < wanted && pthread_create(&ids[started], NULL, helper, &j) == 0) {
    started++;
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  hash_some(&j, h);
  for (unsigned i = 0; i < started; i++) {
    (void)pthread_join(ids[i], NULL);
  }
  weft_hasher_destroy(h);
  return cancelled(&j) ? WEFT_E_CANCELLED : WEFT_OK;
}
