#define _GNU_SOURCE
#include "assembly.h"
#include "weft/json.h"
#include "weft/serve.h"

#include <errno.h>
#include <netdb.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { LOG_LINE_MAX = 2048, COPY_THREADS_MAX = 4 /* memory is full by then */ };

unsigned wefti_copy_threads(unsigned asked, uint32_t workers)
{
  cpu_set_t cores;
  if (asked != 0 || sched_getaffinity(0, sizeof cores, &cores) != 0) {
    return asked;
  }
  const unsigned share = (unsigned)CPU_COUNT(&cores) / (workers == 0 ? 1 : workers);
  return share < 1 ? 1 : share > COPY_THREADS_MAX ? COPY_THREADS_MAX : share;
}

weft_str wefti_str(const char *text)
{
  return text ? (weft_str){ text, (uint32_t)strlen(text) } : (weft_str){ NULL, 0 };
}

weft_err wefti_post(weft_runtime *rt, weft_actor_id to, const weft_msg *tmpl)
{
  weft_msg *msg = weft_msg_dup(weft_runtime_catalogue(rt), tmpl);
  return msg ? weft_post(rt, to, msg) : WEFT_E_NOMEM;
}

weft_err wefti_post_stop(weft_runtime *rt, weft_actor_id who)
{
  weft_msg *stop = weft_msg_heap_new(WEFT_MSG_STOP, sizeof *stop);
  if (!stop) {
    return WEFT_E_NOMEM;
  }
  stop->flags = WEFT_MSG_F_RESERVED;
  return weft_post(rt, who, stop);
}

weft_err wefti_random(void *out, size_t len)
{
  uint8_t *at = out;
  while (len > 0) {
    const ssize_t n = getrandom(at, len, 0);
    if (n < 0 && errno != EINTR) {
      return WEFT_E_SYS;
    }
    if (n > 0) {
      at += n;
      len -= (size_t)n;
    }
  }
  return WEFT_OK;
}

weft_err wefti_ipc_url(const char *run_dir, const char *name, char out[WEFTI_URL_MAX],
                       weft_why *why)
{
  static const char scheme[] = "ipc://";
  const int n = snprintf(out, WEFTI_URL_MAX, "%s%s/%s", scheme, run_dir, name);
  const size_t room = sizeof((struct sockaddr_un){ .sun_family = 0 }).sun_path;
  if (n < 0 || n >= WEFTI_URL_MAX || (size_t)n - (sizeof scheme - 1) >= room) {
    return weft_whyf(
        why, WEFT_E_LIMIT,
        "run directory %s: its path is too long for a socket %s in it (%zu bytes "
        "in all); choose a shorter one",
        run_dir, name, room - 1);
  }
  return WEFT_OK;
}

bool wefti_url_is_local(const char *url)
{
  static const char tcp[] = "tcp://";
  if (strncmp(url, tcp, sizeof tcp - 1) == 0) {
    return weft_http_is_loopback(url + sizeof tcp - 1);
  }
  return strncmp(url, "ipc://", 6) == 0 || strncmp(url, "inproc://", 9) == 0;
}

/* A UDP socket that is connected, never sent on, says which address leads there. */
static weft_err own_address(const struct addrinfo *to, char *host, size_t cap)
{
  const int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return WEFT_E_SYS;
  }
  struct sockaddr_storage own;
  socklen_t len = sizeof own;
  weft_err err = WEFT_E_SYS;
  if (connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
      getsockname(fd, (struct sockaddr *)&own, &len) == 0 &&
      getnameinfo((struct sockaddr *)&own, len, host, (socklen_t)cap, NULL, 0,
                  NI_NUMERICHOST) == 0) {
    err = WEFT_OK;
  }
  (void)close(fd);
  return err;
}

weft_err wefti_local_towards(const char *tcp_url, char out[WEFTI_URL_MAX], weft_why *why)
{
  char host[WEFTI_URL_MAX];
  const char *start = tcp_url + strlen("tcp://");
  const char *colon = strrchr(start, ':');
  if (!colon || colon == start || (size_t)(colon - start) >= sizeof host) {
    return weft_whyf(why, WEFT_E_INVAL, "%s: want tcp://HOST:PORT", tcp_url);
  }
  const bool v6 = *start == '[' && colon[-1] == ']';
  (void)snprintf(host, sizeof host, "%.*s", (int)(colon - start) - 2 * v6, start + v6);
  const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM };
  struct addrinfo *found = NULL;
  const int rc = getaddrinfo(host, colon + 1, &hints, &found);
  if (rc != 0) {
    return weft_whyf(why, WEFT_E_NOTFOUND, "%s: %s", tcp_url, gai_strerror(rc));
  }
  char own[NI_MAXHOST];
  const weft_err err = own_address(found, own, sizeof own);
  const bool own_v6 = found->ai_family == AF_INET6;
  freeaddrinfo(found);
  const int n = snprintf(out, WEFTI_URL_MAX, own_v6 ? "tcp://[%.*s]:0" : "tcp://%.*s:0",
                         WEFTI_URL_MAX - 16, err == WEFT_OK ? own : "");
  if (err != WEFT_OK || n >= WEFTI_URL_MAX) {
    return weft_whyf(why, WEFT_E_SYS, "%s: no address of this machine leads there",
                     tcp_url);
  }
  return WEFT_OK;
}

void wefti_ignore_fds(void *arg, const void *data, size_t len, int *fds, size_t nfds)
{
  (void)arg;
  (void)data;
  (void)len;
  for (size_t i = 0; i < nfds; i++) {
    (void)close(fds[i]);
  }
}

void wefti_mask_all(sigset_t *before)
{
  sigset_t all;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, before);
}

void wefti_block_ends(void)
{
  sigset_t ends;
  (void)sigemptyset(&ends);
  (void)sigaddset(&ends, SIGTERM);
  (void)sigaddset(&ends, SIGINT);
  (void)pthread_sigmask(SIG_BLOCK, &ends, NULL);
}

weft_err wefti_end_on_signals(weft_runtime *rt, weft_call_fn *fn, void *arg,
                              weft_signal *signals[2], weft_why *why)
{
  static const int numbers[2] = { SIGTERM, SIGINT };
  for (size_t i = 0; i < 2; i++) {
    const weft_err err =
        weft_signal_create(weft_runtime_loop(rt, 0), numbers[i], fn, arg, &signals[i]);
    if (err != WEFT_OK) {
      return weft_whyf(why, err, "cannot listen for signals: %s", weft_strerror(err));
    }
  }
  return WEFT_OK;
}

/* ---- commits */

static const char *member_str(const weft_json *object, const char *key)
{
  const char *text = weft_json_str(weft_json_get(object, key));
  return text ? text : "";
}

static uint64_t member_u64(const weft_json *object, const char *key)
{
  int64_t v;
  return weft_json_i64(weft_json_get(object, key), &v) && v > 0 ? (uint64_t)v : 0;
}

bool wefti_commit_tell(const weft_buf *json, bool missed, weft_commit_fn *fn, void *arg)
{
  weft_json *root = NULL;
  if (weft_json_parse(json->data, json->len, NULL, &root, NULL) != WEFT_OK) {
    return false;
  }
  const bool is_commit = missed || strcmp(member_str(root, "type"), "commit") == 0;
  if (is_commit) {
    const weft_commit commit = {
      .kind = member_str(root, "kind"),
      .sequence = member_u64(root, "sequence"),
      .weights_sequence = member_u64(root, "weights_sequence"),
      .version = member_str(root, "version"),
      .previous = member_str(root, "previous"),
      .digest = member_str(root, "digest"),
      .json = (const char *)json->data,
      .json_len = json->len,
      .missed = missed,
    };
    fn(arg, &commit);
  }
  weft_json_free(root);
  return is_commit;
}

/* ---- logs */

void weft_log_stderr(void *arg, weft_log_level level, const char *who, const char *line)
{
  (void)arg;
  static const char *const names[] = { "debug", "info", "warn", "error" };
  struct timespec now;
  struct tm tm;
  char stamp[32] = "-";
  if (clock_gettime(CLOCK_REALTIME, &now) == 0 && gmtime_r(&now.tv_sec, &tm)) {
    const size_t n = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(stamp + n, sizeof stamp - n, ".%03ldZ", now.tv_nsec / 1000000);
  }
  char text[LOG_LINE_MAX];
  int len = snprintf(text, sizeof text - 1, "%s %s %s %s", stamp,
                     (size_t)level < 4 ? names[level] : "?", who, line);
  if (len < 0) {
    return;
  }
  if ((size_t)len > sizeof text - 2) {
    len = (int)sizeof text - 2;
  }
  for (int i = 0; i < len; i++) { /* a caller's string must not forge a second line */
    if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) {
      text[i] = ' ';
    }
  }
  text[len] = '\n';
  ssize_t n;
  do {
    n = write(STDERR_FILENO, text, (size_t)len + 1);
  } while (n < 0 && errno == EINTR);
}

const char *weft_version(void)
{
  return "0.1.0";
}

bool weft_route_at(size_t index, const char **method, const char **path, bool *is_dev)
{
  size_t count;
  const weft_http_route *routes = wefti_acceptor_routes(&count);
  if (index >= count) {
    return false;
  }
  *method = routes[index].method;
  *path = routes[index].path;
  *is_dev = (routes[index].flags & WEFT_HTTP_DEV) != 0;
  return true;
}
