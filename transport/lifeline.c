#define _GNU_SOURCE
#include "lifeline.h"

#include "env.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 64 }; /* messages before the loop gets its turn */

extern char **environ;

const char *wefti_env_get(const char *name)
{
  const size_t len = strlen(name);
  for (char **e = environ; e != NULL && *e != NULL; e++) {
    if (strncmp(*e, name, len) == 0 && (*e)[len] == '=') {
      return *e + len + 1;
    }
  }
  return NULL;
}

weft_err wefti_line_send(wefti_line *line, const void *data, size_t len, const int *fds,
                         size_t nfds)
{
  if (len == 0 || len > WEFT_LIFELINE_MAX || nfds > WEFT_LIFELINE_FDS_MAX) {
    return WEFT_E_INVAL; /* an empty message would look like the end */
  }
  if (line->fd < 0) {
    return WEFT_E_CLOSED;
  }
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * WEFT_LIFELINE_FDS_MAX)];
  uint8_t copy[WEFT_LIFELINE_MAX]; /* iov_base is not const */
  memcpy(copy, data, len);
  struct iovec iov = { .iov_base = copy, .iov_len = len };
  struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1 };
  if (nfds > 0) {
    memset(control, 0, sizeof control);
    mh.msg_control = control;
    mh.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
    struct cmsghdr *c = CMSG_FIRSTHDR(&mh);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
    memcpy(CMSG_DATA(c), fds, sizeof(int) * nfds);
  }
  for (;;) {
    if (sendmsg(line->fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
      return WEFT_OK;
    }
    switch (errno) {
    case EINTR:
      continue;
    case EAGAIN:
    case ENOBUFS:
    case ENOMEM:
    case ETOOMANYREFS:
      return WEFT_E_FULL;
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
      return WEFT_E_CLOSED;
    default:
      return WEFT_E_SYS;
    }
  }
}

void wefti_line_close(wefti_line *line)
{
  weft_io_destroy(line->io);
  line->io = NULL;
  if (line->fd >= 0) {
    (void)close(line->fd);
  }
  line->fd = -1;
  if (line->gone != NULL) {
    *line->gone = true;
    line->gone = NULL;
  }
}

/* Descriptors of a received message, into fds; returns how many. */
static size_t take_fds(struct msghdr *mh, int *fds)
{
  size_t n = 0;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c != NULL; c = CMSG_NXTHDR(mh, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      if (n < WEFT_LIFELINE_FDS_MAX) {
        fds[n++] = fd;
      } else {
        (void)close(fd);
      }
    }
  }
  return n;
}

typedef enum got { GOT_MESSAGE, GOT_NOTHING, GOT_END, GOT_GONE } got;

static got take_one(wefti_line *line)
{
  alignas(
      struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * (WEFT_LIFELINE_FDS_MAX + 4))];
  uint8_t data[WEFT_LIFELINE_MAX];
  int fds[WEFT_LIFELINE_FDS_MAX];
  struct iovec iov = { .iov_base = data, .iov_len = sizeof data };
  struct msghdr mh = { .msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof control };
  const ssize_t n = recvmsg(line->fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) {
    return errno == EAGAIN || errno == EINTR ? GOT_NOTHING : GOT_END;
  }
  const size_t nfds = take_fds(&mh, fds);
  if (n == 0 || (mh.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    /* Cut messages and lost descriptors cannot be repaired: treat it as the end. */
    for (size_t i = 0; i < nfds; i++) {
      (void)close(fds[i]);
    }
    return GOT_END;
  }
  bool gone = false;
  bool *outer = line->gone;
  line->gone = &gone;
  line->on_message(line->arg, data, (size_t)n, fds, nfds);
  if (gone) {
    if (outer != NULL) {
      *outer = true;
    }
    return GOT_GONE;
  }
  line->gone = outer;
  return GOT_MESSAGE;
}

bool wefti_line_drain(wefti_line *line, unsigned max)
{
  for (unsigned i = 0; line->fd >= 0 && i < max; i++) {
    switch (take_one(line)) {
    case GOT_MESSAGE:
      break;
    case GOT_NOTHING:
      return true;
    case GOT_GONE:
      return false;
    case GOT_END: {
      weft_call_fn *fn = line->on_closed;
      void *arg = line->arg;
      wefti_line_close(line);
      if (fn != NULL) {
        fn(arg); /* may free the memory that line is in */
        return false;
      }
      return true;
    }
    }
  }
  return true;
}

static void on_readable(void *arg, int fd, unsigned events)
{
  (void)fd;
  (void)events;
  (void)wefti_line_drain(arg, BATCH);
}

weft_err wefti_line_open(wefti_line *line, weft_loop *loop, int fd)
{
  line->fd = fd;
  line->gone = NULL;
  const weft_err err =
      weft_io_create(loop, fd, WEFT_IO_READ, on_readable, line, &line->io);
  if (err != WEFT_OK) {
    line->io = NULL;
    wefti_line_close(line);
  }
  return err;
}

/* ---- the child's side */

struct weft_lifeline {
  wefti_line line;
};

static int inherited_fd(void)
{
  const char *text = wefti_env_get("WEFT_LIFELINE_FD");
  if (text == NULL || text[0] < '0' || text[0] > '9') {
    return -1;
  }
  char *end;
  errno = 0;
  const long v = strtol(text, &end, 10);
  return errno != 0 || *end != '\0' || v < 0 || v > INT_MAX ? -1 : (int)v;
}

void weft_lifeline_last_word(const char *text)
{
  int type = 0;
  socklen_t len = sizeof type;
  const int fd = inherited_fd();
  char word[512];
  const int n = snprintf(word, sizeof word, WEFT_LAST_WORD "%s", text);
  if (fd >= 0 && n > 0 && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 &&
      type == SOCK_SEQPACKET) {
    const size_t bytes = (size_t)n < sizeof word ? (size_t)n : sizeof word - 1;
    (void)send(fd, word, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

weft_err weft_lifeline_open(weft_loop *loop, int fd, weft_lifeline_fn *on_message,
                            weft_call_fn *on_closed, void *arg, weft_lifeline **out)
{
  int type = 0;
  socklen_t len = sizeof type;
  const int use = fd < 0 ? inherited_fd() : fd;
  if (use < 0) {
    return WEFT_E_NOTFOUND; /* nobody spawned us */
  }
  if (getsockopt(use, SOL_SOCKET, SO_TYPE, &type, &len) != 0 || type != SOCK_SEQPACKET) {
    return WEFT_E_INVAL;
  }
  const int flags = fcntl(use, F_GETFL);
  if (flags < 0 || fcntl(use, F_SETFL, flags | O_NONBLOCK) != 0 ||
      fcntl(use, F_SETFD, FD_CLOEXEC) != 0) {
    return WEFT_E_SYS;
  }
  weft_lifeline *l = calloc(1, sizeof *l);
  if (l == NULL) {
    return WEFT_E_NOMEM;
  }
  l->line.on_message = on_message;
  l->line.on_closed = on_closed;
  l->line.arg = arg;
  const weft_err err = wefti_line_open(&l->line, loop, use);
  if (err != WEFT_OK) {
    free(l);
    return err;
  }
  *out = l;
  return WEFT_OK;
}

weft_err weft_lifeline_send(weft_lifeline *line, const void *data, size_t len,
                            const int *fds, size_t nfds)
{
  return wefti_line_send(&line->line, data, len, fds, nfds);
}

void weft_lifeline_drain(weft_lifeline *line)
{
  (void)wefti_line_drain(&line->line, BATCH);
}

void weft_lifeline_destroy(weft_lifeline *line)
{
  if (line == NULL) {
    return;
  }
  wefti_line_close(&line->line);
  free(line);
}
