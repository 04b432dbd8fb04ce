#include "nng_util.h"

#include <signal.h>
#include <stdlib.h>

typedef struct closing {
  nng_socket sock;
  void (*after)(void *arg);
  void *arg;
} closing;

static void *close_it(void *arg)
{
  closing c = *(closing *)arg;
  free(arg);
  (void)nng_close(c.sock);
  if (c.after != NULL) {
    c.after(c.arg);
  }
  return NULL;
}

bool wefti_detach(void *(*fn)(void *arg), void *arg)
{
  pthread_attr_t attr;
  pthread_t thread;
  sigset_t all;
  sigset_t old;
  if (pthread_attr_init(&attr) != 0) {
    return false;
  }
  (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &old); /* the new thread takes no signals */
  const int rc = pthread_create(&thread, &attr, fn, arg);
  (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
  (void)pthread_attr_destroy(&attr);
  return rc == 0;
}

void wefti_close(nng_socket sock, void (*after)(void *arg), void *arg)
{
  closing *c = malloc(sizeof *c);
  if (c != NULL) {
    *c = (closing){ sock, after, arg };
    if (wefti_detach(close_it, c)) {
      return;
    }
    free(c);
  }
  /* No memory or no thread: better a socket too many than a loop that stands still.  Its
   * connections were closed by whoever cares; what after would free stays. */
}

bool wefti_guard_init(wefti_guard *g, void (*fn)(void *arg), void *arg)
{
  g->fn = fn;
  g->arg = arg;
  return pthread_mutex_init(&g->lock, NULL) == 0;
}

void wefti_guard_call(wefti_guard *g)
{
  (void)pthread_mutex_lock(&g->lock);
  if (g->fn != NULL) {
    g->fn(g->arg);
  }
  (void)pthread_mutex_unlock(&g->lock);
}

void wefti_guard_clear(wefti_guard *g)
{
  (void)pthread_mutex_lock(&g->lock);
  g->fn = NULL;
  (void)pthread_mutex_unlock(&g->lock);
}

void wefti_guard_fini(wefti_guard *g)
{
  (void)pthread_mutex_destroy(&g->lock);
}
