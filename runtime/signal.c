#define _GNU_SOURCE /* signalfd */
#include "weft/loop.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct weft_signal {
  weft_io *io;
  weft_call_fn *fn;
  void *arg;
  int fd;
};

static void on_signal(void *arg, int fd, unsigned events)
{
  (void)events;
  const weft_signal *sig = arg;
  struct signalfd_siginfo info;
  /* One read, one call: the callback may destroy sig, level triggering brings the next.
   */
  if (read(fd, &info, sizeof info) == (ssize_t)sizeof info) {
    sig->fn(sig->arg);
  }
}

weft_err weft_signal_create(weft_loop *loop, int signo, weft_call_fn *fn, void *arg,
                            weft_signal **out)
{
  sigset_t set;
  if (sigemptyset(&set) != 0 || sigaddset(&set, signo) != 0) {
    return WEFT_E_INVAL;
  }
  weft_signal *sig = calloc(1, sizeof *sig);
  if (sig == NULL) {
    return WEFT_E_NOMEM;
  }
  weft_err err;
  sig->fn = fn;
  sig->arg = arg;
  sig->fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (sig->fd < 0) {
    err = errno == ENOMEM ? WEFT_E_NOMEM : WEFT_E_SYS;
    goto fail_sig;
  }
  if (pthread_sigmask(SIG_BLOCK, &set, NULL) != 0) {
    err = WEFT_E_SYS;
    goto fail_fd;
  }
  err = weft_io_create(loop, sig->fd, WEFT_IO_READ, on_signal, sig, &sig->io);
  if (err != WEFT_OK) {
    goto fail_fd;
  }
  *out = sig;
  return WEFT_OK;
fail_fd:
  (void)close(sig->fd);
fail_sig:
  free(sig);
  return err;
}

void weft_signal_destroy(weft_signal *sig)
{
  if (sig != NULL) {
    weft_io_destroy(sig->io);
    (void)close(sig->fd);
    free(sig);
  }
}
