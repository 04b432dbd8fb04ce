#include "host_sender_priv.h"
#include "weft/checked.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORKERS_MAX = 4096, STRANGERS_MAX = 16, TOKEN_MIN = 16 };

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

void wefti_sender_drop(wefti_peer *p)
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
      wefti_sender_drop(&s->peers[i]);
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
