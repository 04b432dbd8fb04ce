#define _GNU_SOURCE /* gettid, setpriority per thread */
#include "hashers.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { HASHER_NICE = 10 };

typedef struct hasher {
  pthread_t thread;
  weft_hasher *state; /* the thread's */
  pthread_mutex_t lock;
  pthread_cond_t more; /* given, or ending */
  /* under lock: */
  wefti_hash_block blocks[WEFTI_HASHER_BLOCKS];
  uint64_t given, done;
  bool ending;
} hasher;

struct wefti_hashers {
  unsigned count;
  hasher each[WEFTI_HASHERS_MAX];
};

static void hash_block(weft_hasher *state, const wefti_hash_block *b)
{
  const wefti_hash_item *item = b->items;
  uint64_t at = b->at;
  for (size_t used = 0; used < b->used;) {
    const uint64_t left = item->bytes - at;
    const size_t part = left < b->used - used ? (size_t)left : b->used - used;
    if (at == 0) {
      weft_hasher_reset(state);
    }
    weft_hasher_update(state, b->data + used, part);
    used += part;
    at += part;
    if (at == item->bytes) {
      *item->out = weft_hasher_value(state);
      item++;
      at = 0;
    }
  }
}

static void *hasher_main(void *arg)
{
  hasher *h = arg;
  (void)setpriority(PRIO_PROCESS, (id_t)gettid(), HASHER_NICE); /* loops go first */
  (void)pthread_mutex_lock(&h->lock);
  for (;;) {
    while (h->given == h->done && !h->ending) {
      (void)pthread_cond_wait(&h->more, &h->lock);
    }
    if (h->given == h->done) {
      break;
    }
    const wefti_hash_block block = h->blocks[h->done % WEFTI_HASHER_BLOCKS];
    (void)pthread_mutex_unlock(&h->lock);
    hash_block(h->state, &block);
    (void)pthread_mutex_lock(&h->lock);
    h->done++;
  }
  (void)pthread_mutex_unlock(&h->lock);
  return NULL;
}

static bool start_one(hasher *h)
{
  h->state = weft_hasher_create();
  if (h->state == NULL || pthread_mutex_init(&h->lock, NULL) != 0) {
    weft_hasher_destroy(h->state);
    return false;
  }
  if (pthread_cond_init(&h->more, NULL) == 0) {
    if (pthread_create(&h->thread, NULL, hasher_main, h) == 0) {
      return true;
    }
    (void)pthread_cond_destroy(&h->more);
  }
  (void)pthread_mutex_destroy(&h->lock);
  weft_hasher_destroy(h->state);
  return false;
}

weft_err wefti_hashers_create(unsigned threads, wefti_hashers **out)
{
  wefti_hashers *h = calloc(1, sizeof *h);
  sigset_t all, before;
  if (h == NULL) {
    return WEFT_E_NOMEM;
  }
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are the loops' business */
  while (h->count < threads && h->count < WEFTI_HASHERS_MAX &&
         start_one(&h->each[h->count])) {
    h->count++;
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (h->count == 0) {
    free(h);
    return WEFT_E_NOMEM;
  }
  *out = h;
  return WEFT_OK;
}

void wefti_hashers_destroy(wefti_hashers *hashers)
{
  for (unsigned i = 0; hashers != NULL && i < hashers->count; i++) {
    hasher *h = &hashers->each[i];
    (void)pthread_mutex_lock(&h->lock);
    h->ending = true;
    (void)pthread_cond_signal(&h->more);
    (void)pthread_mutex_unlock(&h->lock);
    (void)pthread_join(h->thread, NULL);
    (void)pthread_cond_destroy(&h->more);
    (void)pthread_mutex_destroy(&h->lock);
    weft_hasher_destroy(h->state);
  }
  free(hashers);
}

unsigned wefti_hashers_count(const wefti_hashers *h)
{
  return h->count;
}

void wefti_hashers_give(wefti_hashers *hashers, unsigned i, const wefti_hash_block *block)
{
  hasher *h = &hashers->each[i];
  (void)pthread_mutex_lock(&h->lock);
  h->blocks[h->given % WEFTI_HASHER_BLOCKS] = *block;
  h->given++;
  (void)pthread_cond_signal(&h->more);
  (void)pthread_mutex_unlock(&h->lock);
}

uint64_t wefti_hashers_done(wefti_hashers *hashers, unsigned i)
{
  hasher *h = &hashers->each[i];
  (void)pthread_mutex_lock(&h->lock);
  const uint64_t done = h->done;
  (void)pthread_mutex_unlock(&h->lock);
  return done;
}
