#define _GNU_SOURCE /* SOCK_CLOEXEC, SOCK_NONBLOCK */
#include "host_priv.h"
#include "weft/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define INVALID "Invalid update_info for host backend: "

enum { HOST_CAP = 256, PORT_CAP = 6, TOKEN_MAX = 1024, FIRST_BYTES = 4096 };

/* "host:port" or "[v6]:port" cut in two.  Errors: INVAL. */
static weft_err address_split(const char *address, char *host, size_t host_cap,
                              char *port, size_t port_cap, weft_why *why)
{
  const char *colon = address == NULL ? NULL : strrchr(address, ':');
  const char *from = address;
  const char *to = colon;
  if (colon != NULL && address[0] == '[' && colon > address + 1 && colon[-1] == ']') {
    from++;
    to--;
  } else if (colon != NULL && strchr(address, ':') != colon) {
    colon = NULL; /* an IPv6 address needs its brackets */
  }
  bool good = colon != NULL && to > from && (size_t)(to - from) < host_cap &&
              colon[1] != '\0' && strlen(colon + 1) < port_cap;
  for (const char *p = good ? colon + 1 : ""; *p != '\0'; p++) {
    good = good && *p >= '0' && *p <= '9';
  }
  if (!good || strtol(colon + 1, NULL, 10) > 65535) {
    return weft_whyf(why, WEFT_E_INVAL, INVALID "address '%s' is not host:port",
                     address == NULL ? "(none)" : address);
  }
  memcpy(host, from, (size_t)(to - from));
  host[to - from] = '\0';
  memcpy(port, colon + 1, strlen(colon + 1) + 1);
  return WEFT_OK;
}

static bool loopback_sockaddr(const struct sockaddr *sa)
{
  if (sa->sa_family == AF_INET) {
    struct sockaddr_in v4;
    memcpy(&v4, sa, sizeof v4);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  if (sa->sa_family == AF_INET6) {
    struct sockaddr_in6 v6;
    memcpy(&v6, sa, sizeof v6);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
  }
  return false;
}

static bool allowed(const wefti_host *h, const char *address, const char *host)
{
  for (size_t i = 0; i < h->allow_count; i++) {
    if (strcasecmp(h->allow[i], address) == 0 || strcasecmp(h->allow[i], host) == 0) {
      return true;
    }
  }
  return false;
}

static bool numeric_loopback(const char *host)
{
  struct in_addr v4;
  struct in6_addr v6;
  if (inet_pton(AF_INET, host, &v4) == 1) {
    return ntohl(v4.s_addr) >> 24 == 127;
  }
  return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

weft_err wefti_host_tcp_accept(const wefti_host *h, wefti_host_plan *plan,
                               const weft_json *source, weft_why *why)
{
  char host[HOST_CAP];
  char port[PORT_CAP];
  plan->label = weft_json_str(weft_json_get(source, "address"));
  plan->token = weft_json_str(weft_json_get(source, "token"));
  const weft_err err =
      address_split(plan->label, host, sizeof host, port, sizeof port, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (plan->token == NULL || plan->token[0] == '\0' || strlen(plan->token) > TOKEN_MAX) {
    return weft_whyf(why, WEFT_E_INVAL,
                     INVALID "'token' in source is missing or too long");
  }
  /* A name is resolved when we connect, and then must lead to loopback. */
  if (!numeric_loopback(host) && strcasecmp(host, "localhost") != 0 &&
      !allowed(h, plan->label, host)) {
    return weft_whyf(why, WEFT_E_DENIED,
                     "tcp %s: beyond loopback and not on the list of allowed trainers",
                     plan->label);
  }
  plan->kind = WEFTI_SOURCE_TCP;
  return WEFT_OK;
}

/* ---- receiving */

typedef struct stream {
  wefti_host_job *job;
  int fd;
  uint64_t moved_ms;  /* when a byte last moved */
  uint64_t called_ms; /* when progress was last called */
  const char *doing;  /* for error texts */
} stream;

static void report(stream *s)
{
  s->called_ms = weft_clock_ms();
  if (s->job->progress != NULL) {
    s->job->progress(s->job->progress_arg,
                     atomic_load_explicit(&s->job->bytes, memory_order_relaxed));
  }
}

static weft_err cancelled(const stream *s, weft_why *why)
{
  return weft_whyf(why, WEFT_E_CANCELLED, "tcp %s: cancelled while %s",
                   s->job->plan->label, s->doing);
}

/* Waits for events with cancel, heartbeat and the no-progress limit. */
static weft_err wait_for(stream *s, short events, weft_why *why)
{
  for (;;) {
    if (wefti_cancelled(s->job->cancel)) {
      return cancelled(s, why);
    }
    struct pollfd p = { .fd = s->fd, .events = events };
    const int n = poll(&p, 1, WEFTI_POLL_MS);
    if (n > 0) {
      return WEFT_OK;
    }
    if (n < 0 && errno != EINTR) {
      return weft_whyf(why, WEFT_E_SYS, "tcp %s: poll failed (errno %d)",
                       s->job->plan->label, errno);
    }
    report(s);
    if (weft_clock_ms() - s->moved_ms >= s->job->host->no_progress_ms) {
      return weft_whyf(why, WEFT_E_TIMEOUT,
                       "tcp %s: nothing moved for %" PRIu64 " ms while %s",
                       s->job->plan->label, s->job->host->no_progress_ms, s->doing);
    }
  }
}

/* One read of at most len bytes. */
static weft_err read_some(stream *s, void *out, size_t len, size_t *got, weft_why *why)
{
  for (;;) {
    const ssize_t n = recv(s->fd, out, len, 0);
    if (n > 0) {
      s->moved_ms = weft_clock_ms();
      *got = (size_t)n;
      return WEFT_OK;
    }
    if (n == 0) {
      *got = 0;
      return WEFT_OK;
    }
    if (errno == EINTR) {
      continue;
    }
    if (errno != EAGAIN) {
      return weft_whyf(why, WEFT_E_DOWN, "tcp %s: connection lost while %s (errno %d)",
                       s->job->plan->label, s->doing, errno);
    }
    const weft_err err = wait_for(s, POLLIN, why);
    if (err != WEFT_OK) {
      return err;
    }
  }
}

static weft_err write_text(stream *s, const char *text, size_t len, weft_why *why)
{
  while (len > 0) {
    const ssize_t n = send(s->fd, text, len, MSG_NOSIGNAL);
    if (n > 0) {
      text += n;
      len -= (size_t)n;
      s->moved_ms = weft_clock_ms();
    } else if (n < 0 && errno == EAGAIN) {
      const weft_err err = wait_for(s, POLLOUT, why);
      if (err != WEFT_OK) {
        return err;
      }
    } else if (errno != EINTR) {
      return weft_whyf(why, WEFT_E_DOWN, "tcp %s: connection lost while %s (errno %d)",
                       s->job->plan->label, s->doing, errno);
    }
  }
  return WEFT_OK;
}

static weft_err finish_connect(stream *s, weft_why *why)
{
  weft_err err = wait_for(s, POLLOUT, why);
  int e = 0;
  socklen_t size = sizeof e;
  if (err == WEFT_OK &&
      (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &e, &size) != 0 || e != 0)) {
    err = weft_whyf(why, WEFT_E_DOWN, "tcp %s: cannot connect (errno %d)",
                    s->job->plan->label, e);
  }
  return err;
}

static weft_err try_address(stream *s, const struct addrinfo *a, weft_why *why)
{
  s->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s->fd < 0) {
    return weft_whyf(why, WEFT_E_SYS, "tcp %s: no socket (errno %d)", s->job->plan->label,
                     errno);
  }
  weft_err err = WEFT_OK;
  if (connect(s->fd, a->ai_addr, a->ai_addrlen) != 0) {
    err = errno == EINPROGRESS
              ? finish_connect(s, why)
              : weft_whyf(why, WEFT_E_DOWN, "tcp %s: cannot connect (errno %d)",
                          s->job->plan->label, errno);
  }
  if (err != WEFT_OK) {
    (void)close(s->fd);
    s->fd = -1;
  }
  return err;
}

static weft_err connect_to(stream *s, weft_why *why)
{
  const wefti_host_plan *plan = s->job->plan;
  char host[HOST_CAP];
  char port[PORT_CAP];
  weft_err err = address_split(plan->label, host, sizeof host, port, sizeof port, why);
  if (err != WEFT_OK) {
    return err;
  }
  const struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_flags = AI_NUMERICSERV };
  struct addrinfo *list = NULL;
  const int r = getaddrinfo(host, port, &hints, &list);
  if (r != 0) {
    return weft_whyf(why, WEFT_E_NOTFOUND, "tcp %s: %s", plan->label, gai_strerror(r));
  }
  const bool anywhere = allowed(s->job->host, plan->label, host);
  err = weft_whyf(why, WEFT_E_DENIED, "tcp %s: beyond loopback", plan->label);
  for (const struct addrinfo *a = list; a != NULL && err != WEFT_OK; a = a->ai_next) {
    if (anywhere || loopback_sockaddr(a->ai_addr)) {
      err = try_address(s, a, why);
    }
    if (err == WEFT_E_CANCELLED || err == WEFT_E_TIMEOUT) {
      break;
    }
  }
  freeaddrinfo(list);
  return err;
}

static weft_err send_hello(stream *s, weft_why *why)
{
  const wefti_host_plan *plan = s->job->plan;
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_u64(&w, "weft", 1);
  weft_jw_str(&w, "token", plan->token);
  weft_jw_u64(&w, "epoch", plan->who.epoch);
  weft_jw_u64(&w, "rank", plan->who.rank);
  weft_jw_u64(&w, "world_size", plan->who.world_size);
  weft_jw_u64(&w, "dp_index", plan->who.dp_index);
  weft_jw_u64(&w, "tensors", plan->pub.count);
  weft_jw_u64(&w, "bytes", plan->pub.bytes);
  weft_jw_end(&w);
  char *text;
  size_t len;
  if (weft_jw_take(&w, &text, &len) != WEFT_OK) {
    return weft_whyf(why, WEFT_E_NOMEM, "tcp %s: no memory", plan->label);
  }
  text[len] = '\n'; /* over the NUL */
  const weft_err err =
      len + 1 > WEFT_HOST_LINE_MAX
          ? weft_whyf(why, WEFT_E_LIMIT, "tcp %s: the token is too long", plan->label)
          : write_text(s, text, len + 1, why);
  free(text);
  return err;
}

static weft_err check_answer(const wefti_host_plan *plan, const char *line, size_t len,
                             weft_why *why)
{
  weft_json *root = NULL;
  weft_err err = WEFT_OK;
  int64_t version = 0;
  if (weft_json_parse(line, len, NULL, &root, NULL) != WEFT_OK ||
      !weft_json_i64(weft_json_get(root, "weft"), &version) || version != 1) {
    err = weft_whyf(why, WEFT_E_PROTO, "tcp %s: does not speak weft's handshake",
                    plan->label);
  } else if (!weft_json_bool(weft_json_get(root, "ok"), false)) {
    const char *text = weft_json_str(weft_json_get(root, "error"));
    err = weft_whyf(why, WEFT_E_DENIED, "tcp %s: the trainer refused: %s", plan->label,
                    text == NULL ? "(no reason)" : text);
  }
  weft_json_free(root);
  return err;
}

/* Byte by byte: what is behind the line are weights, which go elsewhere. */
static weft_err read_answer(stream *s, weft_why *why)
{
  char line[WEFT_HOST_LINE_MAX];
  for (size_t len = 0; len < sizeof line;) {
    size_t got = 0;
    const weft_err err = read_some(s, line + len, 1, &got, why);
    if (err != WEFT_OK) {
      return err;
    }
    if (got == 0) {
      return weft_whyf(why, WEFT_E_DOWN, "tcp %s: closed during the handshake",
                       s->job->plan->label);
    }
    if (line[len] == '\n') {
      return check_answer(s->job->plan, line, len, why);
    }
    len++;
  }
  return weft_whyf(why, WEFT_E_PROTO, "tcp %s: answers with an endless line",
                   s->job->plan->label);
}

static weft_err receive_tensor(stream *s, weft_hasher *hasher, size_t i, weft_why *why)
{
  wefti_host_job *job = s->job;
  const weft_plan_tensor *t = &job->plan->tensors[i];
  uint8_t *dst = job->dst[i];
  uint64_t got = 0;
  char doing[WEFT_WHY_MAX / 2];
  weft_hasher_reset(hasher);
  while (got < t->bytes) {
    const uint64_t left = t->bytes - got;
    size_t n = 0;
    (void)snprintf(doing, sizeof doing,
                   "%" PRIu64 " of %" PRIu64 " bytes of '%.100s' had arrived", got,
                   t->bytes, t->name);
    if (wefti_cancelled(job->cancel)) {
      return weft_whyf(why, WEFT_E_CANCELLED, "tcp %s: cancelled when %s",
                       job->plan->label, doing);
    }
    s->doing = doing;
    /* The first bytes of all go elsewhere: that they come has to be told before. */
    uint8_t first[FIRST_BYTES];
    const bool written = atomic_load_explicit(&job->writes, memory_order_relaxed);
    const size_t most = written ? WEFTI_HOST_BLOCK : sizeof first;
    const weft_err err = read_some(s, written ? dst + got : first,
                                   left < most ? (size_t)left : most, &n, why);
    s->doing = "";
    if (err != WEFT_OK) {
      return err;
    }
    if (n == 0) {
      return weft_whyf(why, WEFT_E_TRUNCATED, "tcp %s: closed when %s", job->plan->label,
                       doing);
    }
    if (!written) {
      wefti_host_before_write(job, false);
      memcpy(dst + got, first, n);
    }
    weft_hasher_update(hasher, dst + got, n);
    got += n;
    atomic_fetch_add_explicit(&job->bytes, n, memory_order_relaxed);
    if (weft_clock_ms() - s->called_ms >= WEFTI_POLL_MS / 2) {
      report(s);
    }
  }
  job->digests[i] = weft_hasher_value(hasher);
  return WEFT_OK;
}

static weft_err receive_all(stream *s, weft_why *why)
{
  const wefti_host_plan *plan = s->job->plan;
  weft_hasher *hasher = weft_hasher_create();
  weft_err err = hasher == NULL
                     ? weft_whyf(why, WEFT_E_NOMEM, "tcp %s: no memory", plan->label)
                     : WEFT_OK;
  for (size_t i = 0; err == WEFT_OK && i < plan->pub.count; i++) {
    err = receive_tensor(s, hasher, i, why);
  }
  weft_hasher_destroy(hasher);
  if (err != WEFT_OK) {
    return err;
  }
  char done[64];
  const int n = snprintf(done, sizeof done, "{\"weft\":1,\"received\":%" PRIu64 "}\n",
                         plan->pub.bytes);
  s->doing = "confirming";
  err = write_text(s, done, (size_t)n, why);
  report(s);
  return err;
}

weft_err wefti_host_tcp_receive(wefti_host_job *job, weft_why *why)
{
  stream s = { .job = job, .fd = -1, .moved_ms = weft_clock_ms(), .doing = "connecting" };
  s.called_ms = s.moved_ms;
  weft_err err = connect_to(&s, why);
  if (err == WEFT_OK) {
    s.doing = "shaking hands";
    err = send_hello(&s, why);
  }
  if (err == WEFT_OK) {
    err = read_answer(&s, why);
  }
  if (err == WEFT_OK) {
    err = receive_all(&s, why);
  }
  if (s.fd >= 0) {
    (void)close(s.fd);
  }
  return err;
}
