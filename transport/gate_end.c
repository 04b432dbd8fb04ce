#include "gate_end.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

bool wefti_end_watch(const wefti_relay *r, wefti_end *e, uint32_t events)
{
  struct epoll_event ev = { .events = events, .data.ptr = e };
  if (events == e->watched) {
    return true;
  }
  const int op = e->watched == 0 ? EPOLL_CTL_ADD
                 : events == 0   ? EPOLL_CTL_DEL
                                 : EPOLL_CTL_MOD;
  if (epoll_ctl(r->epoll, op, e->fd, &ev) != 0) {
    return false;
  }
  e->watched = events;
  return true;
}

static void forget_rest(wefti_end *e)
{
  free(e->rest);
  e->rest = NULL;
  e->at = e->len = 0;
}

void wefti_end_close(const wefti_relay *r, wefti_end *e)
{
  if (e->fd >= 0) {
    (void)wefti_end_watch(r, e,
                          0); /* a child just forked may hold it, and the set with it */
    (void)close(e->fd);
  }
  e->fd = -1;
  forget_rest(e);
}

/* How much of data was taken; what cannot ever be counts as taken. */
static size_t put(wefti_end *e, const uint8_t *data, size_t len)
{
  const ssize_t n = send(e->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) {
    return (size_t)n;
  }
  e->deaf = errno != EAGAIN && errno != EINTR;
  return e->deaf ? len : 0;
}

bool wefti_end_give(wefti_end *e, const uint8_t *data, size_t len)
{
  const size_t n = put(e, data, len);
  if (n == len) {
    return true;
  }
  e->rest = malloc(len - n);
  if (e->rest == NULL) {
    return false;
  }
  memcpy(e->rest, data + n, len - n);
  e->len = len - n;
  return true;
}

void wefti_end_flush(wefti_end *e)
{
  e->at += put(e, e->rest + e->at, e->len - e->at);
  if (e->at == e->len) {
    forget_rest(e);
  }
}

bool wefti_end_pass_on(const wefti_relay *r, wefti_end *from, size_t n)
{
  if (from->frames.change == WEFTI_SP_SAME) {
    return wefti_end_give(from->other, r->scratch, n);
  }
  n = wefti_sp_translate(&from->frames, r->scratch, n, r->translated);
  return n == 0 || wefti_end_give(from->other, r->translated, n);
}

bool wefti_end_pump(const wefti_relay *r, wefti_end *from)
{
  const ssize_t n = recv(from->fd, r->scratch, WEFTI_RELAY_CHUNK, MSG_DONTWAIT);
  if (n > 0) {
    return wefti_end_pass_on(r, from, (size_t)n);
  }
  from->ended = n == 0 || (errno != EAGAIN && errno != EINTR);
  return true;
}
