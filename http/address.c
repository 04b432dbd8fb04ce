#include "conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 4096, PORT_MAX = 65535 };

static weft_err bad(weft_why *why, const char *text, const char *what)
{
  return weft_whyf(why, WEFT_E_INVAL,
                   "address '%s': %s; expected HOST:PORT, [V6]:PORT or unix:/path", text,
                   what);
}

static weft_err parse_unix(const char *text, const char *path, wefti_address *out,
                           weft_why *why)
{
  struct sockaddr_un un;
  const size_t len = strlen(path);
  if (path[0] != '/') {
    return bad(why, text, "the path is not absolute");
  }
  if (len >= sizeof un.sun_path) {
    return bad(why, text, "the path is too long for a unix socket");
  }
  *out = (wefti_address){ .is_unix = true };
  memcpy(out->host, path, len + 1);
  return WEFT_OK;
}

static bool port_ok(const char *port)
{
  unsigned n = 0;
  const size_t len = strlen(port);
  for (size_t i = 0; i < len; i++) {
    if (port[i] < '0' || port[i] > '9') {
      return false;
    }
    n = n * 10 + (unsigned)(port[i] - '0');
  }
  return len > 0 && len <= 5 && n <= PORT_MAX;
}

weft_err wefti_address_parse(const char *text, wefti_address *out, weft_why *why)
{
  if (strncmp(text, "unix:", 5) == 0) {
    return parse_unix(text, text + 5, out, why);
  }
  const char *colon = strrchr(text, ':');
  if (colon == NULL || !port_ok(colon + 1)) {
    return bad(why, text, "no port from 0 to 65535 at its end");
  }
  const char *host = text;
  size_t len = (size_t)(colon - text);
  if (len == 0) {
    return bad(why, text, "no host (say 0.0.0.0 or [::] to mean every interface)");
  }
  if (host[0] == '[') {
    if (len < 3 || host[len - 1] != ']') {
      return bad(why, text, "the brackets do not match");
    }
    host++;
    len -= 2;
  } else if (memchr(host, ':', len) != NULL) {
    return bad(why, text, "an IPv6 host needs brackets");
  }
  if (len >= sizeof out->host || memchr(host, '[', len) != NULL ||
      memchr(host, ']', len) != NULL || memchr(host, '/', len) != NULL) {
    return bad(why, text, "the host is not valid");
  }
  *out = (wefti_address){ .is_unix = false };
  memcpy(out->host, host, len);
  memcpy(out->port, colon + 1, strlen(colon + 1) + 1);
  return WEFT_OK;
}

static weft_err sys(weft_why *why, const wefti_address *a, const char *call, int error)
{
  char text[128] = "";
  if (strerror_r(error, text, sizeof text) != 0) {
    text[0] = '\0';
  }
  return weft_whyf(why, WEFT_E_SYS, "listen on %s%s%s%s: %s failed: errno %d %s",
                   a->is_unix ? "unix:" : "", a->host, a->is_unix ? "" : ":", a->port,
                   call, error, text);
}

/* A socket file that nobody answers on is left over from a crash.  Anything else at that
 * path is somebody's and stays. */
static weft_err clear_stale(const wefti_address *a, const struct sockaddr_un *un,
                            weft_why *why)
{
  struct stat st;
  if (lstat(a->host, &st) != 0) {
    return errno == ENOENT ? WEFT_OK : sys(why, a, "lstat", errno);
  }
  if (!S_ISSOCK(st.st_mode)) {
    return weft_whyf(why, WEFT_E_EXISTS,
                     "listen on unix:%s: a file that is not a socket is there", a->host);
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return sys(why, a, "socket", errno);
  }
  const int rc = connect(fd, (const struct sockaddr *)un, sizeof *un);
  const int error = errno;
  (void)close(fd);
  if (rc == 0 || error != ECONNREFUSED) {
    return weft_whyf(why, WEFT_E_EXISTS,
                     "listen on unix:%s: another process listens there", a->host);
  }
  return unlink(a->host) == 0 ? WEFT_OK : sys(why, a, "unlink", errno);
}

static weft_err listen_unix(const wefti_address *a, int *out, char *text, size_t cap,
                            weft_why *why)
{
  struct sockaddr_un un = { .sun_family = AF_UNIX };
  memcpy(un.sun_path, a->host, strlen(a->host) + 1);
  const weft_err err = clear_stale(a, &un, why);
  if (err != WEFT_OK) {
    return err;
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return sys(why, a, "socket", errno);
  }
  /* The mode is set before bind, so that there is no moment at which others may connect
   * (Linux takes the inode's mode over), and again after it for systems that do not. */
  const char *call = "fchmod";
  if (fchmod(fd, S_IRUSR | S_IWUSR) == 0 &&
      (call = "bind", bind(fd, (const struct sockaddr *)&un, sizeof un) == 0)) {
    call = "chmod";
    if (chmod(a->host, S_IRUSR | S_IWUSR) == 0 &&
        (call = "listen", listen(fd, BACKLOG) == 0)) {
      if (text != NULL) {
        (void)snprintf(text, cap, "unix:%s", a->host);
      }
      *out = fd;
      return WEFT_OK;
    }
    const int error = errno;
    (void)unlink(a->host);
    (void)close(fd);
    return sys(why, a, call, error);
  }
  const int error = errno;
  (void)close(fd);
  return sys(why, a, call, error);
}

static void describe(int fd, char *text, size_t cap)
{
  struct sockaddr_storage ss;
  socklen_t len = sizeof ss;
  char host[64];
  char port[8];
  if (text == NULL || cap == 0) {
    return;
  }
  text[0] = '\0';
  if (getsockname(fd, (struct sockaddr *)&ss, &len) != 0 ||
      getnameinfo((const struct sockaddr *)&ss, len, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return;
  }
  (void)snprintf(text, cap, ss.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/* The descriptor, or -1 with errno and the call that failed. */
static int listen_one(const struct addrinfo *ai, const char **call)
{
  const int on = 1;
  *call = "socket";
  const int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return -1;
  }
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (ai->ai_family == AF_INET6) {
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  }
  *call = "bind";
  if (bind(fd, ai->ai_addr, ai->ai_addrlen) == 0) {
    *call = "listen";
    if (listen(fd, BACKLOG) == 0) {
      return fd;
    }
  }
  const int error = errno;
  (void)close(fd);
  errno = error;
  return -1;
}

static int resolve(const wefti_address *a, struct addrinfo **out)
{
  const struct addrinfo hints = {
    .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
    .ai_family = AF_UNSPEC,
    .ai_socktype = SOCK_STREAM,
  };
  return getaddrinfo(a->host, a->port, &hints, out);
}

weft_err wefti_address_listen(const wefti_address *a, int *fd, char *text, size_t cap,
                              weft_why *why)
{
  if (a->is_unix) {
    return listen_unix(a, fd, text, cap, why);
  }
  struct addrinfo *list = NULL;
  const int rc = resolve(a, &list);
  if (rc != 0) {
    return weft_whyf(why, WEFT_E_SYS, "listen on %s:%s: %s", a->host, a->port,
                     gai_strerror(rc));
  }
  const char *call = "socket";
  int got = -1;
  for (const struct addrinfo *ai = list; ai != NULL && got < 0; ai = ai->ai_next) {
    got = listen_one(ai, &call);
  }
  const int error = errno;
  freeaddrinfo(list);
  if (got < 0) {
    return sys(why, a, call, error);
  }
  describe(got, text, cap);
  *fd = got;
  return WEFT_OK;
}

static bool is_loopback(const struct sockaddr *sa)
{
  if (sa->sa_family == AF_INET) {
    struct sockaddr_in in;
    memcpy(&in, sa, sizeof in);
    return ntohl(in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  if (sa->sa_family != AF_INET6) {
    return false;
  }
  struct sockaddr_in6 in6;
  memcpy(&in6, sa, sizeof in6);
  return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) ||
         (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr) &&
          in6.sin6_addr.s6_addr[12] == IN_LOOPBACKNET);
}

bool weft_http_is_loopback(const char *address)
{
  wefti_address a = { .is_unix = false };
  if (wefti_address_parse(address, &a, NULL) != WEFT_OK) {
    return false;
  }
  if (a.is_unix) {
    return true;
  }
  struct addrinfo *list = NULL;
  if (resolve(&a, &list) != 0) {
    return false;
  }
  bool all = list != NULL;
  for (const struct addrinfo *ai = list; ai != NULL; ai = ai->ai_next) {
    all = all && is_loopback(ai->ai_addr);
  }
  freeaddrinfo(list);
  return all;
}

weft_err weft_http_address_check(const char *address, weft_why *why)
{
  wefti_address parsed;
  return wefti_address_parse(address, &parsed, why);
}
