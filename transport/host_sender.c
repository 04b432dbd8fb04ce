#define _GNU_SOURCE /* accept4 */
#include "weft/host_sender.h"

#include "host_priv.h"
#include "weft/checked.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORKERS_MAX = 4096, STRANGERS_MAX = 16, HELLO_MS = 10000, TOKEN_MIN = 16 };

typedef enum peer_state {
  PEER_HELLO,   /* its line is being read */
  PEER_SENDING, /* answer, then weights */
  PEER_CONFIRM, /* all is sent, its last line is being read */
  PEER_REFUSED  /* the refusal is being sent, then it is closed */
} peer_state;

typedef struct peer {
  int fd; /* -1 = free slot */
  peer_state state;
  unsigned rank;
  uint64_t since_ms;
  uint64_t sent; /* bytes of weights */
  uint64_t read; /* ... taken from the file or the pieces */
  size_t piece;  /* the next bytes are of */
  uint64_t piece_at;
  size_t line_len;
  char line[WEFT_HOST_LINE_MAX];
  uint8_t *block; /* [WEFTI_HOST_BLOCK] */
  size_t block_at, block_len;
} peer;

struct weft_host_sender {
  int listener;
  int file; /* -1: pieces */
  uint64_t data_at, bytes;
  uint64_t tensors;
  const weft_host_piece *pieces; /* [tensors] borrowed */
  char *token;
  uint64_t epoch, no_progress_ms, moved_ms, sum;
  unsigned workers, done;
  unsigned ranks;       /* of each replica; workers unless there are several */
  bool *served;         /* [workers] a rank has come */
  peer *peers;          /* [peer_cap] */
  struct pollfd *polls; /* [peer_cap + 1] */
  size_t peer_cap;
  char address[128];
};

static weft_err listen_on(weft_host_sender *s, const weft_host_sender_opts *opts,
                          weft_why *why)
{
  const char *host = opts->host == NULL ? "127.0.0.1" : opts->host;
  char port[8];
  (void)snprintf(port, sizeof port, "%u", opts->port & 0xffffu);
  const struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_flags =
                                      AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE };
  struct addrinfo *a = NULL;
  if (getaddrinfo(host, port, &hints, &a) != 0) {
    return weft_whyf(why, WEFT_E_INVAL, "cannot listen on %s: not a numeric address",
                     host);
  }
  const int on = 1;
  struct sockaddr_storage bound;
  socklen_t size = sizeof bound;
  s->listener = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  bool good = s->listener >= 0 &&
              setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
              bind(s->listener, a->ai_addr, a->ai_addrlen) == 0 &&
              listen(s->listener, SOMAXCONN) == 0 &&
              getsockname(s->listener, (struct sockaddr *)&bound, &size) == 0;
  const int family = a->ai_family;
  freeaddrinfo(a);
  char text[64];
  good = good && getnameinfo((struct sockaddr *)&bound, size, text, sizeof text, port,
                             sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) == 0;
  if (!good) {
    return weft_whyf(why, WEFT_E_SYS, "cannot listen on %s (errno %d)", host, errno);
  }
  (void)snprintf(s->address, sizeof s->address, family == AF_INET6 ? "[%s]:%s" : "%s:%s",
                 text, port);
  return WEFT_OK;
}

static weft_err create(const weft_host_sender_opts *opts, weft_host_sender **out,
                       weft_why *why)
{
  if (opts->size != sizeof *opts || opts->workers == 0 || opts->workers > WORKERS_MAX ||
      (opts->ranks != 0 && opts->workers % opts->ranks != 0) || opts->port > 65535 ||
      opts->token == NULL || strlen(opts->token) < TOKEN_MIN) {
    return weft_whyf(why, WEFT_E_INVAL, "tcp sender: bad options");
  }
  weft_host_sender *s = calloc(1, sizeof *s);
  if (s == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "tcp sender: no memory");
  }
  s->listener = -1;
  s->file = -1;
  s->epoch = opts->epoch;
  s->workers = opts->workers;
  s->ranks = opts->ranks == 0 ? opts->workers : opts->ranks;
  s->no_progress_ms = opts->no_progress_ms == 0 ? 120000 : opts->no_progress_ms;
  const size_t cap = (size_t)opts->workers + STRANGERS_MAX;
  s->token = strdup(opts->token);
  s->served = calloc(opts->workers, sizeof *s->served);
  s->peers = calloc(cap, sizeof *s->peers);
  s->polls = calloc(cap + 1, sizeof *s->polls);
  weft_err err = WEFT_OK;
  if (s->token == NULL || s->served == NULL || s->peers == NULL || s->polls == NULL) {
    err = weft_whyf(why, WEFT_E_NOMEM, "tcp sender: no memory");
  } else {
    s->peer_cap = cap;
    for (size_t i = 0; i < cap; i++) {
      s->peers[i].fd = -1;
    }
    err = listen_on(s, opts, why);
  }
  if (err != WEFT_OK) {
    weft_host_sender_destroy(s);
    return err;
  }
  *out = s;
  return WEFT_OK;
}

weft_err weft_host_sender_create(const weft_host_sender_opts *opts, int fd,
                                 const weft_safetensors *st, weft_host_sender **out,
                                 weft_why *why)
{
  const weft_err err = create(opts, out, why);
  if (err == WEFT_OK) {
    (*out)->file = fd;
    (*out)->tensors = st->count;
    (*out)->bytes = st->data_bytes;
    (*out)->data_at = st->data_at;
  }
  return err;
}

weft_err weft_host_sender_create_memory(const weft_host_sender_opts *opts,
                                        const weft_host_piece *pieces, size_t count,
                                        weft_host_sender **out, weft_why *why)
{
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    if (weft_size_add(bytes, pieces[i].bytes, &bytes) != WEFT_OK) {
      return weft_whyf(why, WEFT_E_OVERFLOW, "tcp sender: more bytes than there can be");
    }
  }
  const weft_err err = create(opts, out, why);
  if (err == WEFT_OK) {
    (*out)->pieces = pieces;
    (*out)->tensors = count;
    (*out)->bytes = bytes;
  }
  return err;
}

const char *weft_host_sender_address(const weft_host_sender *s)
{
  return s->address;
}

static void drop(peer *p)
{
  (void)close(p->fd);
  free(p->block);
  p->block = NULL;
  p->fd = -1;
  p->state = PEER_HELLO;
  p->line_len = 0;
  p->sent = 0;
  p->read = 0;
  p->piece = 0;
  p->piece_at = 0;
}

void weft_host_sender_destroy(weft_host_sender *s)
{
  if (s == NULL) {
    return;
  }
  for (size_t i = 0; i < s->peer_cap; i++) {
    if (s->peers[i].fd >= 0) {
      drop(&s->peers[i]);
    }
  }
  if (s->listener >= 0) {
    (void)close(s->listener);
  }
  free(s->token);
  free(s->served);
  free(s->peers);
  free(s->polls);
  free(s);
}

static void take_connections(weft_host_sender *s)
{
  for (;;) {
    const int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      return; /* none, or one that is gone already; poll says when to come back */
    }
    peer *p = NULL;
    for (size_t i = 0; i < s->peer_cap && p == NULL; i++) {
      p = s->peers[i].fd < 0 ? &s->peers[i] : NULL;
    }
    if (p == NULL) {
      (void)close(fd);
      continue;
    }
    p->fd = fd;
    p->state = PEER_HELLO;
    p->since_ms = wefti_now_ms();
  }
}

/* Takes as long for every wrong token of the same length. */
static bool same_token(const char *a, const char *b)
{
  const size_t n = strlen(a);
  if (b == NULL || strlen(b) != n) {
    return false;
  }
  unsigned diff = 0;
  for (size_t i = 0; i < n; i++) {
    diff |= (unsigned)(unsigned char)a[i] ^ (unsigned)(unsigned char)b[i];
  }
  return diff == 0;
}

static bool number_is(const weft_json *v, uint64_t want)
{
  int64_t n;
  return weft_json_i64(v, &n) && n >= 0 && (uint64_t)n == want;
}

/* Why this hello is refused, or NULL and *rank. */
static const char *judge(const weft_host_sender *s, const weft_json *hello,
                         unsigned *rank)
{
  int64_t r;
  int64_t dp = 0;
  if (!number_is(weft_json_get(hello, "weft"), 1)) {
    return "unknown handshake";
  }
  if (!same_token(s->token, weft_json_str(weft_json_get(hello, "token")))) {
    return "wrong token";
  }
  if (s->epoch != 0 && !number_is(weft_json_get(hello, "epoch"), s->epoch)) {
    return "wrong epoch";
  }
  if (!number_is(weft_json_get(hello, "tensors"), s->tensors) ||
      !number_is(weft_json_get(hello, "bytes"), s->bytes)) {
    return "other tensors are expected than there are";
  }
  if (!number_is(weft_json_get(hello, "world_size"), s->ranks) ||
      !weft_json_i64(weft_json_get(hello, "rank"), &r) || r < 0 ||
      r >= (int64_t)s->ranks) {
    return "wrong rank or world size";
  }
  if (s->workers > s->ranks && (!weft_json_i64(weft_json_get(hello, "dp_index"), &dp) ||
                                dp < 0 || dp >= (int64_t)(s->workers / s->ranks))) {
    return "wrong dp_index";
  }
  *rank = (unsigned)(dp * s->ranks + r);
  return s->served[*rank] ? "this rank has been served" : NULL;
}

static weft_err answer(weft_host_sender *s, peer *p, weft_why *why)
{
  weft_json *hello = NULL;
  unsigned rank = 0;
  const char *refusal = "not a line of JSON";
  if (weft_json_parse(p->line, p->line_len, NULL, &hello, NULL) == WEFT_OK) {
    refusal = judge(s, hello, &rank);
  }
  weft_json_free(hello);
  p->block = malloc(WEFTI_HOST_BLOCK);
  if (p->block == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "tcp sender: no memory");
  }
  p->line_len = 0;
  p->block_at = 0;
  int n;
  if (refusal == NULL) {
    p->rank = rank;
    s->served[rank] = true;
    p->state = PEER_SENDING;
    n = snprintf((char *)p->block, 128, "{\"weft\":1,\"ok\":true}\n");
  } else {
    p->state = PEER_REFUSED;
    n = snprintf((char *)p->block, 128, "{\"weft\":1,\"ok\":false,\"error\":\"%s\"}\n",
                 refusal);
  }
  p->block_len = (size_t)n;
  return WEFT_OK;
}

static weft_err lost(const peer *p, weft_why *why)
{
  return weft_whyf(why, WEFT_E_DOWN,
                   "tcp sender: worker %u left after %" PRIu64 " bytes were sent",
                   p->rank, p->sent);
}

static weft_err confirmed(weft_host_sender *s, peer *p, weft_why *why)
{
  weft_json *v = NULL;
  const bool good = weft_json_parse(p->line, p->line_len, NULL, &v, NULL) == WEFT_OK &&
                    number_is(weft_json_get(v, "received"), s->bytes);
  weft_json_free(v);
  if (!good) {
    return weft_whyf(why, WEFT_E_PROTO, "tcp sender: worker %u confirms something else",
                     p->rank);
  }
  s->done++;
  drop(p);
  return WEFT_OK;
}

/* Reads towards the next line of a peer. */
static weft_err on_readable(weft_host_sender *s, peer *p, weft_why *why)
{
  for (;;) {
    char c;
    const ssize_t n = recv(p->fd, &c, 1, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      return WEFT_OK;
    }
    const bool known = p->state == PEER_SENDING || p->state == PEER_CONFIRM;
    if (n <= 0 || p->line_len == sizeof p->line) {
      const weft_err err = known ? lost(p, why) : WEFT_OK;
      drop(p);
      return err;
    }
    if (c != '\n') {
      p->line[p->line_len++] = c;
      continue;
    }
    s->moved_ms = wefti_now_ms();
    if (p->state == PEER_CONFIRM) {
      return confirmed(s, p, why);
    }
    if (p->state == PEER_HELLO) {
      return answer(s, p, why);
    }
    return known ? weft_whyf(why, WEFT_E_PROTO, "tcp sender: worker %u talks too early",
                             p->rank)
                 : WEFT_OK;
  }
}

/* The next block of the pieces: as much as there is. */
static void copy_pieces(const weft_host_sender *s, peer *p)
{
  p->block_at = 0;
  p->block_len = 0;
  while (p->block_len < WEFTI_HOST_BLOCK && p->piece < s->tensors) {
    const weft_host_piece *from = &s->pieces[p->piece];
    const uint64_t left = from->bytes - p->piece_at;
    const size_t room = WEFTI_HOST_BLOCK - p->block_len;
    const size_t n = left < room ? (size_t)left : room;
    if (n > 0) {
      memcpy(p->block + p->block_len, (const uint8_t *)from->data + p->piece_at, n);
    }
    p->block_len += n;
    p->piece_at += n;
    if (p->piece_at == from->bytes) {
      p->piece++;
      p->piece_at = 0;
    }
  }
  p->read += p->block_len;
}

/* The next block into an empty block. */
static weft_err refill(weft_host_sender *s, peer *p, weft_why *why)
{
  if (s->file < 0) {
    copy_pieces(s, p);
    return WEFT_OK;
  }
  const uint64_t left = s->bytes - p->read;
  const size_t want = left < WEFTI_HOST_BLOCK ? (size_t)left : WEFTI_HOST_BLOCK;
  ssize_t n;
  do {
    n = pread(s->file, p->block, want, (off_t)(s->data_at + p->read));
  } while (n < 0 && errno == EINTR);
  if (n <= 0) {
    return weft_whyf(why, n == 0 ? WEFT_E_TRUNCATED : WEFT_E_SYS,
                     "tcp sender: the file ended after %" PRIu64 " of %" PRIu64
                     " bytes of weights",
                     p->read, s->bytes);
  }
  p->block_at = 0;
  p->block_len = (size_t)n;
  p->read += (uint64_t)n;
  return WEFT_OK;
}

static weft_err on_writable(weft_host_sender *s, peer *p, weft_why *why)
{
  const bool known = p->state == PEER_SENDING;
  const bool weights = p->read > 0;
  const ssize_t n =
      send(p->fd, p->block + p->block_at, p->block_len - p->block_at, MSG_NOSIGNAL);
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) {
      return WEFT_OK;
    }
    const weft_err err = known ? lost(p, why) : WEFT_OK;
    drop(p);
    return err;
  }
  s->moved_ms = known ? wefti_now_ms() : s->moved_ms;
  p->block_at += (size_t)n;
  if (weights) {
    p->sent += (uint64_t)n;
    s->sum += (uint64_t)n;
  }
  if (p->block_at < p->block_len) {
    return WEFT_OK;
  }
  if (!known) {
    drop(p);
    return WEFT_OK;
  }
  if (p->read == s->bytes) {
    p->state = PEER_CONFIRM;
    return WEFT_OK;
  }
  return refill(s, p, why);
}

static weft_err missing(const weft_host_sender *s, weft_why *why)
{
  for (unsigned r = 0; r < s->workers; r++) {
    if (!s->served[r]) {
      return weft_whyf(why, WEFT_E_TIMEOUT,
                       "tcp sender: nothing moved for %" PRIu64
                       " ms; worker %u never came",
                       s->no_progress_ms, r);
    }
  }
  for (size_t i = 0; i < s->peer_cap; i++) {
    const peer *p = &s->peers[i];
    if (p->fd >= 0 && (p->state == PEER_SENDING || p->state == PEER_CONFIRM)) {
      return weft_whyf(why, WEFT_E_TIMEOUT,
                       "tcp sender: nothing moved for %" PRIu64
                       " ms; worker %u has %" PRIu64 " of %" PRIu64 " bytes",
                       s->no_progress_ms, p->rank, p->sent, s->bytes);
    }
  }
  return weft_whyf(why, WEFT_E_TIMEOUT, "tcp sender: nothing moved for %" PRIu64 " ms",
                   s->no_progress_ms);
}

static nfds_t prepare(weft_host_sender *s, uint64_t now)
{
  s->polls[0] = (struct pollfd){ .fd = s->listener, .events = POLLIN };
  for (size_t i = 0; i < s->peer_cap; i++) {
    peer *p = &s->peers[i];
    const bool stranger = p->state == PEER_HELLO || p->state == PEER_REFUSED;
    if (p->fd >= 0 && stranger && now - p->since_ms > HELLO_MS) {
      drop(p); /* says nothing, or does not listen */
    }
    const bool reads = p->state == PEER_HELLO || p->state == PEER_CONFIRM;
    s->polls[i + 1] = (struct pollfd){ .fd = p->fd, .events = reads ? POLLIN : POLLOUT };
  }
  return (nfds_t)s->peer_cap + 1;
}

static weft_err handle(weft_host_sender *s, weft_why *why)
{
  for (size_t i = 0; i < s->peer_cap; i++) {
    peer *p = &s->peers[i];
    const int got = p->fd < 0 ? 0 : s->polls[i + 1].revents;
    weft_err err = WEFT_OK;
    if ((got & POLLOUT) != 0) {
      err = on_writable(s, p, why);
    } else if (got != 0) {
      err = on_readable(s, p, why);
    }
    if (err != WEFT_OK) {
      return err;
    }
  }
  if (s->polls[0].revents != 0) {
    take_connections(s);
  }
  return WEFT_OK;
}

weft_err weft_host_sender_run(weft_host_sender *s, const atomic_bool *cancel,
                              weft_progress_fn *progress, void *arg, weft_why *why)
{
  s->moved_ms = wefti_now_ms();
  uint64_t reported_ms = s->moved_ms;
  while (s->done < s->workers) {
    if (wefti_cancelled(cancel)) {
      return weft_whyf(why, WEFT_E_CANCELLED, "cancelled");
    }
    const uint64_t now = wefti_now_ms();
    if (now - s->moved_ms >= s->no_progress_ms) {
      return missing(s, why);
    }
    const int n = poll(s->polls, prepare(s, now), WEFTI_POLL_MS);
    if (n < 0 && errno != EINTR) {
      return weft_whyf(why, WEFT_E_SYS, "tcp sender: poll failed (errno %d)", errno);
    }
    const weft_err err = n > 0 ? handle(s, why) : WEFT_OK;
    if (err != WEFT_OK) {
      return err;
    }
    if (progress != NULL && now - reported_ms >= WEFTI_POLL_MS) {
      progress(arg, s->sum);
      reported_ms = now;
    }
  }
  if (progress != NULL) {
    progress(arg, s->sum);
  }
  return WEFT_OK;
}
