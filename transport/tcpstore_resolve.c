#define _GNU_SOURCE /* pipe2 */
#include "tcpstore_resolve.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Shared by the loop and the thread, which may outlive the loop: getaddrinfo cannot be
 * interrupted.  So the thread knows no loop, only this. */
typedef struct job {
  atomic_uint refs; /* release when dropped, acquire by the last */
  int write_fd;     /* the thread's: closed when done, which the loop's end sees */
  char host[256];
  char port[8];
  int rc; /* these two: written by the thread before it raises done (release) */
  struct addrinfo *list;
  atomic_bool done; /* read by the loop (acquire) */
} job;

struct wefti_resolve {
  job *job;
  int fd; /* the loop's end of the pipe */
  weft_io *io;
  wefti_resolve_fn *fn;
  void *arg;
};

static void job_drop(job *j)
{
  if (atomic_fetch_sub_explicit(&j->refs, 1, memory_order_acq_rel) == 1) {
    if (j->list != NULL) {
      freeaddrinfo(j->list);
    }
    free(j);
  }
}

static void *thread_main(void *arg)
{
  job *j = arg;
  const struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_flags = AI_NUMERICSERV };
  j->rc = getaddrinfo(j->host, j->port, &hints, &j->list);
  if (j->rc != 0) {
    j->list = NULL;
  }
  atomic_store_explicit(&j->done, true, memory_order_release);
  (void)close(j->write_fd);
  job_drop(j);
  return NULL;
}

static void on_done(void *arg, int fd, unsigned events)
{
  (void)fd;
  (void)events;
  wefti_resolve *r = arg;
  job *j = r->job;
  if (!atomic_load_explicit(&j->done, memory_order_acquire)) {
    return;
  }
  struct addrinfo *list = j->list;
  const int rc = j->rc;
  wefti_resolve_fn *fn = r->fn;
  void *fn_arg = r->arg;
  j->list = NULL;
  wefti_resolve_cancel(r);
  fn(fn_arg, rc, list);
}

static weft_err start_thread(job *j)
{
  sigset_t all;
  sigset_t old;
  pthread_attr_t attr;
  pthread_t thread;
  if (pthread_attr_init(&attr) != 0) {
    return WEFT_E_NOMEM;
  }
  (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &old);
  const int rc = pthread_create(&thread, &attr, thread_main, j);
  (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
  (void)pthread_attr_destroy(&attr);
  return rc == 0 ? WEFT_OK : WEFT_E_SYS;
}

weft_err wefti_resolve_start(weft_loop *loop, const char *host, uint16_t port,
                             wefti_resolve_fn *fn, void *arg, wefti_resolve **out)
{
  wefti_resolve *r = calloc(1, sizeof *r);
  job *j = calloc(1, sizeof *j);
  weft_err err = WEFT_E_NOMEM;
  if (r == NULL || j == NULL) {
    goto fail_memory;
  }
  *r = (wefti_resolve){ .job = j, .fn = fn, .arg = arg };
  (void)snprintf(j->host, sizeof j->host, "%s", host);
  (void)snprintf(j->port, sizeof j->port, "%u", port);
  atomic_init(&j->refs, 2);
  atomic_init(&j->done, false);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    err = WEFT_E_SYS;
    goto fail_memory;
  }
  r->fd = ends[0];
  j->write_fd = ends[1];
  err = weft_io_create(loop, r->fd, WEFT_IO_READ, on_done, r, &r->io);
  if (err != WEFT_OK) {
    goto fail_fd;
  }
  err = start_thread(j);
  if (err != WEFT_OK) {
    goto fail_io;
  }
  *out = r;
  return WEFT_OK;
fail_io:
  weft_io_destroy(r->io);
fail_fd:
  (void)close(r->fd);
  (void)close(j->write_fd);
fail_memory:
  free(r);
  free(j);
  return err;
}

void wefti_resolve_cancel(wefti_resolve *r)
{
  if (r != NULL) {
    weft_io_destroy(r->io);
    (void)close(r->fd);
    job_drop(r->job);
    free(r);
  }
}
