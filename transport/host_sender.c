#define _GNU_SOURCE /* accept4 */
#include "host_sender_priv.h"
#include "weft/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HELLO_MS = 10000 };

static void take_connections(weft_host_sender *s)
{
  for (;;) {
    const int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      return; /* none, or one that is gone already; poll says when to come back */
    }
    wefti_peer *p = NULL;
    for (size_t i = 0; i < s->peer_cap && p == NULL; i++) {
      p = s->peers[i].fd < 0 ? &s->peers[i] : NULL;
    }
    if (p == NULL) {
      (void)close(fd);
      continue;
    }
    p->fd = fd;
    p->state = PEER_HELLO;
    p->since_ms = weft_clock_ms();
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

static weft_err answer(weft_host_sender *s, wefti_peer *p, weft_why *why)
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

static weft_err lost(const wefti_peer *p, weft_why *why)
{
  return weft_whyf(why, WEFT_E_DOWN,
                   "tcp sender: worker %u left after %" PRIu64 " bytes were sent",
                   p->rank, p->sent);
}

static weft_err confirmed(weft_host_sender *s, wefti_peer *p, weft_why *why)
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
  wefti_sender_drop(p);
  return WEFT_OK;
}

/* Reads towards the next line of a peer. */
static weft_err on_readable(weft_host_sender *s, wefti_peer *p, weft_why *why)
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
      wefti_sender_drop(p);
      return err;
    }
    if (c != '\n') {
      p->line[p->line_len++] = c;
      continue;
    }
    s->moved_ms = weft_clock_ms();
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
static void copy_pieces(const weft_host_sender *s, wefti_peer *p)
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
static weft_err refill(weft_host_sender *s, wefti_peer *p, weft_why *why)
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

static weft_err on_writable(weft_host_sender *s, wefti_peer *p, weft_why *why)
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
    wefti_sender_drop(p);
    return err;
  }
  s->moved_ms = known ? weft_clock_ms() : s->moved_ms;
  p->block_at += (size_t)n;
  if (weights) {
    p->sent += (uint64_t)n;
    s->sum += (uint64_t)n;
  }
  if (p->block_at < p->block_len) {
    return WEFT_OK;
  }
  if (!known) {
    wefti_sender_drop(p);
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
    const wefti_peer *p = &s->peers[i];
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
    wefti_peer *p = &s->peers[i];
    const bool stranger = p->state == PEER_HELLO || p->state == PEER_REFUSED;
    if (p->fd >= 0 && stranger && now - p->since_ms > HELLO_MS) {
      wefti_sender_drop(p); /* says nothing, or does not listen */
    }
    const bool reads = p->state == PEER_HELLO || p->state == PEER_CONFIRM;
    s->polls[i + 1] = (struct pollfd){ .fd = p->fd, .events = reads ? POLLIN : POLLOUT };
  }
  return (nfds_t)s->peer_cap + 1;
}

static weft_err handle(weft_host_sender *s, weft_why *why)
{
  for (size_t i = 0; i < s->peer_cap; i++) {
    wefti_peer *p = &s->peers[i];
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
  s->moved_ms = weft_clock_ms();
  uint64_t reported_ms = s->moved_ms;
  while (s->done < s->workers) {
    if (wefti_cancelled(cancel)) {
      return weft_whyf(why, WEFT_E_CANCELLED,
                       "tcp sender: cancelled; %u of %u workers had all", s->done,
                       s->workers);
    }
    const uint64_t now = weft_clock_ms();
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
