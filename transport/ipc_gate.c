#define _GNU_SOURCE /* accept4 */
#include "ipc_gate.h"

#include "ipc_relay.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
  BACKLOG = 128,
  EVENTS = 64,  /* taken per turn; also connections accepted per turn */
  PAUSE_MS = 20 /* before accepting again when descriptors or memory are short */
};

struct wefti_gate {
  wefti_relay relay; /* the thread's while it runs */
  int listen_fd;
  int stop_fd; /* eventfd */
  int64_t paused_until;
  bool bound, running;
  struct stat mine; /* of the socket file */
  struct sockaddr_un at;
  pthread_t thread;
};

static bool arm_listener(wefti_gate *g, int op, uint32_t events)
{
  struct epoll_event ev = { .events = events, .data.ptr = g };
  return epoll_ctl(g->relay.epoll, op, g->listen_fd, &ev) == 0;
}

static void take_clients(wefti_gate *g)
{
  for (unsigned i = 0; i < EVENTS; i++) {
    const int fd = accept4(g->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      wefti_relay_add(&g->relay, fd);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
               errno == ENOBUFS) {
      g->paused_until = wefti_relay_now() + PAUSE_MS;
      (void)arm_listener(g, EPOLL_CTL_MOD, 0);
      return;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

static int patience(const wefti_gate *g)
{
  int64_t due = g->relay.next_due;
  if (g->paused_until != 0 && (due == 0 || g->paused_until < due)) {
    due = g->paused_until;
  }
  const int64_t left = due == 0 ? -1 : due - wefti_relay_now();
  return due != 0 && left < 0 ? 0 : (int)left; /* at most a few seconds away */
}

static void *run(void *arg)
{
  wefti_gate *g = arg;
  struct epoll_event events[EVENTS];
  for (bool stop = false; !stop;) {
    const int n = epoll_wait(g->relay.epoll, events, EVENTS, patience(g));
    for (int i = 0; i < n; i++) {
      if (events[i].data.ptr == NULL) {
        stop = true;
      } else if (events[i].data.ptr == g) {
        take_clients(g);
      } else {
        wefti_relay_event(&g->relay, events[i].data.ptr, events[i].events);
      }
    }
    wefti_relay_tick(&g->relay);
    if (g->paused_until != 0 && wefti_relay_now() >= g->paused_until) {
      g->paused_until = 0;
      (void)arm_listener(g, EPOLL_CTL_MOD, EPOLLIN);
    }
  }
  wefti_relay_end(&g->relay);
  return NULL;
}

static bool set_address(struct sockaddr_un *sa, const char *path)
{
  const size_t len = strlen(path);
  *sa = (struct sockaddr_un){ .sun_family = AF_UNIX };
  if (len >= sizeof sa->sun_path) {
    return false;
  }
  memcpy(sa->sun_path, path, len + 1);
  return true;
}

static weft_err bind_path(wefti_gate *g, weft_why *why)
{
  const char *path = g->at.sun_path;
  if (bind(g->listen_fd, (const struct sockaddr *)&g->at, sizeof g->at) != 0) {
    return errno == EADDRINUSE
               ? weft_whyf(why, WEFT_E_EXISTS, "somebody listens on ipc path %s", path)
               : weft_whyf(why, WEFT_E_SYS, "cannot bind ipc path %s: errno %d", path,
                           errno);
  }
  g->bound = true;
  if (lstat(path, &g->mine) != 0 || chmod(path, 0600) != 0 ||
      listen(g->listen_fd, BACKLOG) != 0) {
    return weft_whyf(why, WEFT_E_SYS, "cannot listen on ipc path %s: errno %d", path,
                     errno);
  }
  return WEFT_OK;
}

weft_err wefti_gate_bind(const char *path, const char *inner, wefti_gate **out,
                         weft_why *why)
{
  wefti_gate *g = calloc(1, sizeof *g);
  if (g == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "ipc path %s: out of memory", path);
  }
  g->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  g->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  g->relay.epoll = epoll_create1(EPOLL_CLOEXEC);
  weft_err err = WEFT_OK;
  struct epoll_event ev = { .events = EPOLLIN, .data.ptr = NULL };
  if (!set_address(&g->at, path) || !set_address(&g->relay.inner, inner)) {
    err = weft_whyf(why, WEFT_E_INVAL, "ipc path %s: longer than a socket address allows",
                    path);
  } else if (g->listen_fd < 0 || g->stop_fd < 0 || g->relay.epoll < 0 ||
             epoll_ctl(g->relay.epoll, EPOLL_CTL_ADD, g->stop_fd, &ev) != 0 ||
             !arm_listener(g, EPOLL_CTL_ADD, EPOLLIN)) {
    err =
        weft_whyf(why, WEFT_E_SYS, "ipc path %s: no descriptors: errno %d", path, errno);
  } else {
    err = bind_path(g, why);
  }
  if (err != WEFT_OK) {
    wefti_gate_close(g);
    return err;
  }
  *out = g;
  return WEFT_OK;
}

weft_err wefti_gate_start(wefti_gate *gate, weft_why *why)
{
  sigset_t all;
  sigset_t old;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &old); /* the new thread takes no signals */
  const int rc = pthread_create(&gate->thread, NULL, run, gate);
  (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (rc != 0) {
    return weft_whyf(why, WEFT_E_SYS, "ipc path %s: no thread: errno %d",
                     gate->at.sun_path, rc);
  }
  gate->running = true;
  return WEFT_OK;
}

/* Only our own file: somebody may have replaced it. */
static void unlink_mine(const wefti_gate *g)
{
  struct stat st;
  if (g->bound && lstat(g->at.sun_path, &st) == 0 && st.st_ino == g->mine.st_ino &&
      st.st_dev == g->mine.st_dev) {
    (void)unlink(g->at.sun_path);
  }
}

static void close_fd(int fd)
{
  if (fd >= 0) {
    (void)close(fd);
  }
}

void wefti_gate_close(wefti_gate *gate)
{
  if (gate == NULL) {
    return;
  }
  unlink_mine(gate);
  if (gate->running) {
    const uint64_t one = 1;
    (void)!write(gate->stop_fd, &one, sizeof one); /* the first write: cannot fail */
    (void)pthread_join(gate->thread, NULL);        /* it waits for nobody */
  }
  close_fd(gate->listen_fd);
  close_fd(gate->stop_fd);
  close_fd(gate->relay.epoll);
  free(gate);
}
