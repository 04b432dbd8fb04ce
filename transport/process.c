#define _GNU_SOURCE
#include "weft/process.h"

#include "env.h"
#include "lifeline.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  CHILD_FD = 3,         /* the lifeline's number in the child */
  FD_FLOOR = 10,        /* above all numbers that the file actions write to */
  KILL_WAIT_MS = 2000,  /* a killed process is gone in less, or hangs in the kernel */
  LAST_MESSAGES = 1024, /* taken after the exit, before it is reported */
  SNDBUF = 1 << 20
};

extern char **environ;

struct weft_process {
  wefti_line line;
  weft_loop *loop;
  weft_io *pid_io;
  weft_process_exit_fn *on_exit;
  void *arg;
  int pidfd; /* -1: reaped */
  int pid;
};

/* env with our variable in place of any other of that name; one block, free() it. */
static char **make_env(char *const *env)
{
  static const char ours[] = "WEFT_LIFELINE_FD=3";
  size_t n = 0;
  while (env != NULL && env[n] != NULL) {
    n++;
  }
  char **copy = malloc((n + 2) * sizeof *copy + sizeof ours);
  if (copy == NULL) {
    return NULL;
  }
  size_t k = 0;
  for (size_t i = 0; i < n; i++) {
    if (strncmp(env[i], ours, strlen("WEFT_LIFELINE_FD=")) != 0) {
      copy[k++] = env[i];
    }
  }
  copy[k] = memcpy(copy + n + 2, ours, sizeof ours);
  copy[k + 1] = NULL;
  return copy;
}

static int set_actions(posix_spawn_file_actions_t *fa, int child_end)
{
  int rc = posix_spawn_file_actions_addopen(fa, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (rc == 0 && fcntl(STDERR_FILENO, F_GETFD) < 0) { /* a daemon may have closed it */
    rc = posix_spawn_file_actions_addopen(fa, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  }
  if (rc == 0) {
    rc = posix_spawn_file_actions_adddup2(fa, STDERR_FILENO, STDOUT_FILENO);
  }
  if (rc == 0) {
    rc = posix_spawn_file_actions_adddup2(fa, child_end, CHILD_FD);
  }
  return rc == 0 ? posix_spawn_file_actions_addclosefrom_np(fa, CHILD_FD + 1) : rc;
}

static int set_attrs(posix_spawnattr_t *at)
{
  sigset_t all;
  sigset_t none;
  (void)sigfillset(&all);
  (void)sigemptyset(&none);
  int rc = posix_spawnattr_setflags(
      at, (short)(POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK));
  if (rc == 0) {
    rc = posix_spawnattr_setsigdefault(at, &all);
  }
  return rc == 0 ? posix_spawnattr_setsigmask(at, &none) : rc;
}

/* An errno value; 0 = *pid runs.  posix_spawn and not fork: nng threads may be running.
 */
static int start(const weft_process_opts *o, int child_end, pid_t *pid)
{
  char **env = make_env(o->env != NULL ? o->env : environ);
  if (env == NULL) {
    return ENOMEM;
  }
  posix_spawn_file_actions_t fa;
  posix_spawnattr_t at;
  int rc = posix_spawn_file_actions_init(&fa);
  if (rc == 0) {
    rc = posix_spawnattr_init(&at);
    if (rc == 0) {
      rc = set_attrs(&at);
      rc = rc == 0 ? set_actions(&fa, child_end) : rc;
      rc = rc == 0 ? posix_spawn(pid, o->path, &fa, &at, o->argv, env) : rc;
      (void)posix_spawnattr_destroy(&at);
    }
    (void)posix_spawn_file_actions_destroy(&fa);
  }
  free(env);
  return rc;
}

static int status_of(const siginfo_t *si)
{
  if (si->si_code == CLD_EXITED) {
    return (si->si_status & 0xff) << 8;
  }
  return (si->si_status & 0x7f) | (si->si_code == CLD_DUMPED ? 0x80 : 0);
}

/* true = reaped now, with *status as waitpid has it. */
static bool reap(weft_process *p, int *status)
{
  siginfo_t si = { 0 };
  int rc;
  do {
    rc = waitid(P_PIDFD, (id_t)p->pidfd, &si, WEXITED | WNOHANG);
  } while (rc != 0 && errno == EINTR);
  if (rc == 0 && si.si_pid == 0) {
    return false;
  }
  *status = rc == 0 ? status_of(&si) : 0xff00; /* ECHILD: the host reaped it for us */
  weft_io_destroy(p->pid_io);
  p->pid_io = NULL;
  (void)close(p->pidfd);
  p->pidfd = -1;
  return true;
}

static void on_pid(void *arg, int fd, unsigned events)
{
  (void)fd;
  (void)events;
  weft_process *p = arg;
  int status;
  if (!reap(p, &status)) {
    return;
  }
  /* What it said before it ended comes first. */
  if (wefti_line_drain(&p->line, LAST_MESSAGES)) {
    p->on_exit(p->arg, status);
  }
}

static void ignore_message(void *arg, const void *data, size_t len, int *fds, size_t nfds)
{
  (void)arg;
  (void)data;
  (void)len;
  for (size_t i = 0; i < nfds; i++) {
    (void)close(fds[i]);
  }
}

static void kill_and_reap(weft_process *p)
{
  if (p->pidfd < 0) {
    return;
  }
  (void)pidfd_send_signal(p->pidfd, SIGKILL, NULL, 0);
  struct pollfd pf = { .fd = p->pidfd, .events = POLLIN };
  int n;
  do {
    n = poll(&pf, 1, KILL_WAIT_MS);
  } while (n < 0 && errno == EINTR);
  int status;
  if (!reap(p, &status)) { /* stuck in the kernel: it stays a zombie of ours at worst */
    weft_io_destroy(p->pid_io);
    p->pid_io = NULL;
    (void)close(p->pidfd);
    p->pidfd = -1;
  }
}

/* A pair whose child end is above every number that the file actions write to. */
static weft_err make_pair(int ends[2])
{
  int raw[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, raw) != 0) {
    return WEFT_E_SYS;
  }
  const int high = fcntl(raw[1], F_DUPFD_CLOEXEC, FD_FLOOR);
  (void)close(raw[1]);
  if (high < 0) {
    (void)close(raw[0]);
    return WEFT_E_SYS;
  }
  const int size = SNDBUF; /* the kernel's limit may keep it lower */
  (void)setsockopt(raw[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  (void)setsockopt(high, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  ends[0] = raw[0];
  ends[1] = high;
  return WEFT_OK;
}

static weft_err watch(weft_process *p, weft_why *why)
{
  p->pidfd = pidfd_open(p->pid, 0);
  if (p->pidfd < 0) {
    const int e = errno;
    (void)kill(p->pid, SIGKILL);
    (void)waitpid(p->pid, NULL, 0);
    return weft_whyf(why, WEFT_E_SYS, "pidfd_open of pid %d: errno %d; needs Linux 5.3",
                     p->pid, e);
  }
  const weft_err err =
      weft_io_create(p->loop, p->pidfd, WEFT_IO_READ, on_pid, p, &p->pid_io);
  if (err != WEFT_OK) {
    p->pid_io = NULL;
    kill_and_reap(p);
    return weft_whyf(why, err, "watching pid %d failed", p->pid);
  }
  return WEFT_OK;
}

weft_err weft_process_spawn(weft_loop *loop, const weft_process_opts *opts,
                            weft_process **out, weft_why *why)
{
  if (opts->size != sizeof *opts || opts->path == NULL || opts->argv == NULL ||
      opts->on_exit == NULL) {
    return weft_whyf(why, WEFT_E_INVAL, "process: path, argv and on_exit are needed");
  }
  weft_process *p = calloc(1, sizeof *p);
  if (p == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "process %s: out of memory", opts->path);
  }
  p->loop = loop;
  p->on_exit = opts->on_exit;
  p->arg = opts->arg;
  p->pidfd = -1;
  p->line.on_message = opts->on_message != NULL ? opts->on_message : ignore_message;
  p->line.arg = opts->arg;
  int ends[2];
  weft_err err = make_pair(ends);
  if (err != WEFT_OK) {
    free(p);
    return weft_whyf(why, err, "process %s: no socket pair, errno %d", opts->path, errno);
  }
  err = wefti_line_open(&p->line, loop, ends[0]);
  if (err != WEFT_OK) {
    (void)close(ends[1]);
    free(p);
    return weft_whyf(why, err, "process %s: watching its lifeline failed", opts->path);
  }
  pid_t pid = 0;
  const int rc = start(opts, ends[1], &pid);
  (void)close(ends[1]);
  p->pid = (int)pid;
  err = rc == 0 ? watch(p, why)
                : weft_whyf(why, rc == ENOENT ? WEFT_E_NOTFOUND : WEFT_E_SYS,
                            "cannot start %s: errno %d", opts->path, rc);
  if (err != WEFT_OK) {
    wefti_line_close(&p->line);
    free(p);
    return err;
  }
  *out = p;
  return WEFT_OK;
}

int weft_process_pid(const weft_process *process)
{
  return process->pid;
}

void weft_process_signal(weft_process *process, int signo)
{
  if (process->pidfd >= 0) {
    (void)pidfd_send_signal(process->pidfd, signo, NULL, 0);
  }
}

weft_err weft_process_send(weft_process *process, const void *data, size_t len,
                           const int *fds, size_t nfds)
{
  return wefti_line_send(&process->line, data, len, fds, nfds);
}

void weft_process_drain(weft_process *process)
{
  (void)wefti_line_drain(&process->line, LAST_MESSAGES);
}

void weft_process_destroy(weft_process *process)
{
  if (process == NULL) {
    return;
  }
  kill_and_reap(process);
  wefti_line_close(&process->line);
  free(process);
}
