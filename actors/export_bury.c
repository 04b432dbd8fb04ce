#define _GNU_SOURCE
#include "assembly.h"
#include "export_priv.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Unmapping what nobody else holds gives gigabytes of pages back in one call: a thread
 * does that, for loop 0 has no time. */

enum { SMALL = 1 << 20 }; /* bytes: not worth a thread */

struct export_undertaker {
  pthread_mutex_t lock; /* over what follows */
  pthread_cond_t wake;
  export_mapping *dead;
  bool ending;
  bool runs; /* loop 0's: there is a thread */
  pthread_t thread;
};

static void bury(export_mapping *m)
{
  (void)munmap(m->base, m->bytes);
  (void)close(m->fd);
  free(m);
}

static void *work(void *arg)
{
  export_undertaker *u = arg;
  (void)pthread_mutex_lock(&u->lock);
  while (u->dead || !u->ending) {
    export_mapping *m = u->dead;
    if (!m) {
      (void)pthread_cond_wait(&u->wake, &u->lock);
      continue;
    }
    u->dead = m->next;
    (void)pthread_mutex_unlock(&u->lock);
    bury(m);
    (void)pthread_mutex_lock(&u->lock);
  }
  (void)pthread_mutex_unlock(&u->lock);
  return NULL;
}

static bool has_thread(export_undertaker *u)
{
  if (!u->runs) {
    sigset_t before;
    wefti_mask_all(&before); /* signals are for those who wait for them */
    u->runs = pthread_create(&u->thread, NULL, work, u) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  }
  return u->runs;
}

void export_bury(export_undertaker *u, export_mapping *m)
{
  if (m->bytes < SMALL || !has_thread(u)) {
    bury(m);
    return;
  }
  (void)pthread_mutex_lock(&u->lock);
  m->next = u->dead;
  u->dead = m;
  (void)pthread_cond_signal(&u->wake);
  (void)pthread_mutex_unlock(&u->lock);
}

weft_err export_undertaker_create(export_undertaker **out)
{
  export_undertaker *u = calloc(1, sizeof *u);
  if (!u || pthread_mutex_init(&u->lock, NULL) != 0) {
    free(u);
    return WEFT_E_NOMEM;
  }
  if (pthread_cond_init(&u->wake, NULL) != 0) {
    (void)pthread_mutex_destroy(&u->lock);
    free(u);
    return WEFT_E_NOMEM;
  }
  *out = u;
  return WEFT_OK;
}

void export_undertaker_destroy(export_undertaker *u)
{
  if (!u) {
    return;
  }
  (void)pthread_mutex_lock(&u->lock);
  u->ending = true;
  (void)pthread_cond_signal(&u->wake);
  (void)pthread_mutex_unlock(&u->lock);
  if (u->runs) {
    (void)pthread_join(u->thread, NULL);
  }
  (void)pthread_cond_destroy(&u->wake);
  (void)pthread_mutex_destroy(&u->lock);
  free(u);
}
