#define _GNU_SOURCE
#include "listen_gate.h"
#include "nng_util.h"
#include "weft/clock.h"
#include "weft/link.h"
#include "weft/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define IPC "ipc://"
enum { INNER_DIGITS = 8 };

static weft_err check_dir(const char *path, weft_why *why)
{
  char dir[PATH_MAX];
  const char *slash = strrchr(path, '/');
  const size_t len = slash == NULL ? 0 : (size_t)(slash - path);
  if (path[0] != '/' || len >= sizeof dir) {
    return weft_whyf(why, WEFT_E_INVAL, "ipc path \"%s\": want an absolute path", path);
  }
  memcpy(dir, path, len);
  dir[len] = '\0';
  struct stat st;
  if (stat(len == 0 ? "/" : dir, &st) != 0) {
    return weft_whyf(why, WEFT_E_SYS,
                     "ipc directory %s: errno %d; create it with mode 0700", dir, errno);
  }
  /* Whoever may connect to nng's own socket can stop its listener for good
   * (listen_gate.h), and may do so before permissions are set on it: so the directory is
   * the lock. */
  if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0) {
    return weft_whyf(why, WEFT_E_DENIED,
                     "ipc directory %s must be a directory of this user with mode 0700 "
                     "(is %04o); use a private one, or tcp://",
                     dir, (unsigned)(st.st_mode & 07777));
  }
  return WEFT_OK;
}

static int wait_for(int fd, short events)
{
  const uint64_t end = weft_clock_ms() + WEFTI_PROBE_MS;
  for (;;) {
    struct pollfd p = { .fd = fd, .events = events };
    const uint64_t now = weft_clock_ms();
    const int n = now >= end ? 0 : poll(&p, 1, (int)(end - now));
    if (n >= 0 || errno != EINTR) {
      return n;
    }
  }
}

/* Exchanges the greeting before hanging up: a listener of nng 1.5.2 never accepts again
 * after a peer that connected and closed without one. */
static void say_hello(int fd)
{
  static const uint8_t greeting[8] = { 0, 'S', 'P', 0, 0, 0, 0, 0 };
  uint8_t theirs[8];
  if (send(fd, greeting, sizeof greeting, MSG_NOSIGNAL) != (ssize_t)sizeof greeting) {
    return;
  }
  for (size_t got = 0; got < sizeof theirs && wait_for(fd, POLLIN) > 0;) {
    const ssize_t n = recv(fd, theirs + got, sizeof theirs - got, MSG_DONTWAIT);
    if (n <= 0) {
      return;
    }
    got += (size_t)n;
  }
  /* Until it has hung up on us it may not have read our greeting yet. */
  (void)wait_for(fd, POLLRDHUP);
}

/* Does anybody answer on the socket file? */
static bool answers(const char *path)
{
  struct sockaddr_un sa = { .sun_family = AF_UNIX };
  const size_t len = strlen(path);
  if (len >= sizeof sa.sun_path) {
    return true; /* cannot tell: leave it alone */
  }
  memcpy(sa.sun_path, path, len + 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return true;
  }
  const int rc = connect(fd, (const struct sockaddr *)&sa, sizeof sa);
  const bool alive = rc == 0 || (errno != ECONNREFUSED && errno != ENOENT);
  if (rc == 0) {
    say_hello(fd);
  }
  (void)close(fd);
  return alive;
}

static weft_err check_ipc(const char *path, weft_why *why)
{
  struct stat st;
  if (strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "ipc path %s: longer than a socket address allows", path);
  }
  const weft_err err = check_dir(path, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (lstat(path, &st) != 0) {
    return errno == ENOENT
               ? WEFT_OK
               : weft_whyf(why, WEFT_E_SYS, "ipc path %s: errno %d", path, errno);
  }
  if (!S_ISSOCK(st.st_mode)) { /* nng would delete it */
    return weft_whyf(
        why, WEFT_E_EXISTS,
        "ipc path %s exists and is no socket; it was left alone, choose another", path);
  }
  if (answers(path)) {
    return weft_whyf(why, WEFT_E_EXISTS, "somebody listens on ipc path %s", path);
  }
  if (unlink(path) != 0 && errno != ENOENT) {
    return weft_whyf(why, WEFT_E_SYS, "cannot remove stale socket %s: errno %d", path,
                     errno);
  }
  return WEFT_OK;
}

/* url with the port that was bound. */
static weft_err bound_url(const struct wefti_gate *gate, const char *url, char *out,
                          size_t cap)
{
  int n;
  const char *colon = strrchr(url, ':');
  if (strncmp(url, "tcp://", 6) == 0 && colon != NULL && strcmp(colon, ":0") == 0) {
    const unsigned port = wefti_gate_port(gate);
    if (port == 0) {
      return WEFT_E_SYS;
    }
    n = snprintf(out, cap, "%.*s:%u", (int)(colon - url), url, port);
  } else {
    n = snprintf(out, cap, "%s", url);
  }
  return n < 0 || (size_t)n >= cap ? WEFT_E_LIMIT : WEFT_OK;
}

static void remove_socket(int dir, const char *path)
{
  struct stat st;
  if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(st.st_mode)) {
    (void)unlinkat(dir, path, 0);
  }
}

/* What those who were killed left of nng's paths beside path, which is nobody else's now.
 */
static void remove_inner(const char *path)
{
  char at[sizeof((struct sockaddr_un *)0)->sun_path];
  const char *name = strrchr(path, '/') + 1;
  const size_t len = strlen(name);
  const int n = snprintf(at, sizeof at, "%.*s", (int)(name - path), path);
  DIR *dir = n < 0 || (size_t)n >= sizeof at ? NULL : opendir(at);
  const struct dirent *e;
  while (dir != NULL && (e = readdir(dir)) != NULL) { /* NOLINT: own stream */
    const char *tail = e->d_name + len + 1;
    if (strncmp(e->d_name, name, len) == 0 && e->d_name[len] == '~' &&
        strlen(tail) == INNER_DIGITS &&
        strspn(tail, "0123456789abcdef") == INNER_DIGITS) {
      remove_socket(dirfd(dir), e->d_name);
    }
  }
  if (dir != NULL) {
    (void)closedir(dir);
  }
}

/* ipc: the gate takes the path, and nng the one that is written to inner_url[cap].  No
 * two listeners have the same: nng removes its path some time after the gate's is free.
 */
static weft_err open_ipc(const char *url, char *inner_url, size_t cap, wefti_bound *b,
                         weft_why *why)
{
  const char *path = url + strlen(IPC);
  uint32_t random;
  if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
    return weft_whyf(why, WEFT_E_SYS, "ipc path %s: getrandom: errno %d", path, errno);
  }
  const int n = snprintf(inner_url, cap, "%s~%0*x", url, INNER_DIGITS, (unsigned)random);
  if (n < 0 || (size_t)n >= cap) {
    return weft_whyf(why, WEFT_E_INVAL, "ipc path %s: longer than %zu bytes", path,
                     cap - sizeof IPC "~" - INNER_DIGITS);
  }
  weft_err err = check_ipc(path, why);
  if (err == WEFT_OK) {
    err = wefti_gate_bind(url, inner_url + strlen(IPC), b->stall_ms, &b->gate, why);
  }
  if (err == WEFT_OK) {
    remove_inner(path);
  }
  return err;
}

/* tcp: nng's path is in a directory of its own. */
static weft_err open_tcp(const char *url, char *inner_url, size_t cap, wefti_bound *b,
                         weft_why *why)
{
  weft_err err = weft_rundir_open(NULL, &b->dir, why);
  if (err != WEFT_OK) {
    return err;
  }
  const int n = snprintf(inner_url, cap, IPC "%s/nng", weft_rundir_path(b->dir));
  if (n < 0 || (size_t)n >= cap) {
    return weft_whyf(why, WEFT_E_INVAL, "run directory %s: too long",
                     weft_rundir_path(b->dir));
  }
  return wefti_gate_bind(url, inner_url + strlen(IPC), b->stall_ms, &b->gate, why);
}

static int start_nng(nng_socket sock, const char *url, bool ipc, nng_listener *out)
{
  nng_listener lst;
  int rv = nng_listener_create(&lst, sock, url);
  if (rv != 0) {
    return rv;
  }
  if (ipc) {
    rv = nng_listener_set_int(lst, NNG_OPT_IPC_PERMISSIONS, 0600);
  }
  if (rv == 0) {
    rv = nng_listener_start(lst, 0);
  }
  if (rv != 0) {
    (void)nng_listener_close(lst);
    return rv;
  }
  *out = lst;
  return 0;
}

weft_err wefti_listen(nng_socket sock, const char *url, char *url_out, size_t cap,
                      wefti_bound *bound, weft_why *why)
{
  char inner[sizeof IPC - 1 + sizeof((struct sockaddr_un *)0)->sun_path];
  const char *scheme = wefti_url_scheme(url);
  wefti_bound b = { .stall_ms = bound->stall_ms };
  weft_err err = WEFT_OK;
  if (scheme == NULL) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "address \"%s\": want ipc://, tcp:// or inproc://",
                     url == NULL ? "" : url);
  }
  const bool gated = strcmp(scheme, "inproc") != 0;
  if (gated) {
    err = strcmp(scheme, "ipc") == 0 ? open_ipc(url, inner, sizeof inner, &b, why)
                                     : open_tcp(url, inner, sizeof inner, &b, why);
  }
  const int rv = err == WEFT_OK ? start_nng(sock, gated ? inner : url, gated, &b.nng) : 0;
  if (rv != 0) {
    err = weft_whyf(why, wefti_nng_err(rv), "cannot listen on %s: %s", url,
                    wefti_nng_text(rv));
  }
  if (err == WEFT_OK && url_out != NULL) {
    err = bound_url(b.gate, url, url_out, cap);
    if (err != WEFT_OK) {
      (void)weft_whyf(why, err, "address of %s as bound: not known or too long", url);
    }
  }
  if (err == WEFT_OK && gated) {
    err = wefti_gate_start(b.gate, why);
  }
  if (err != WEFT_OK) {
    if (b.nng.id != 0) {
      (void)nng_listener_close(b.nng); /* it has no peers yet */
    }
    wefti_gate_destroy(b.gate);
    weft_rundir_close(b.dir);
    return err;
  }
  *bound = b;
  return WEFT_OK;
}

void wefti_unlisten(wefti_bound *bound, nng_socket sock, void (*after)(void *arg),
                    void *arg)
{
  const wefti_bound b = *bound;
  *bound = (wefti_bound){ .gate = NULL };
  if (b.gate != NULL) {
    wefti_gate_close(b.gate, sock, after, arg);
  } else {
    if (b.nng.id != 0) {
      (void)nng_listener_close(b.nng);
    }
    wefti_close(sock, after, arg);
  }
  weft_rundir_close(b.dir);
}

void weft_link_forget(const char *url)
{
  const char *scheme = wefti_url_scheme(url);
  if (scheme == NULL || strcmp(scheme, "ipc") != 0) {
    return;
  }
  const char *path = url + strlen("ipc://");
  if (path[0] == '/') {
    remove_socket(AT_FDCWD, path);
    remove_inner(path);
  }
}
