#include "conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { IN_STEP = 8 * 1024 };

size_t wefti_conn_unsent(const wefti_conn *c)
{
  return c->out.len - c->out_sent;
}

static void out_release(wefti_conn *c)
{
  weft_http *server = c->server;
  c->out.len = 0;
  c->out_sent = 0;
  if (c->out.data == NULL) {
    return;
  }
  if (c->out.cap <= WEFTI_OUT_CACHED_CAP && server->out_cached < WEFTI_OUT_CACHE) {
    server->out_cache[server->out_cached++] = c->out;
    c->out = (wefti_bytes){ 0 };
  } else {
    wefti_bytes_fini(&c->out);
  }
}

bool wefti_conn_flush(wefti_conn *c)
{
  bool progress = false;
  while (c->out_sent < c->out.len) {
    const ssize_t n =
        send(c->fd, c->out.data + c->out_sent, wefti_conn_unsent(c), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0 && errno != EAGAIN) {
      wefti_conn_kill(c);
      return false;
    }
    if (n < 0) {
      break;
    }
    c->out_sent += (size_t)n;
    progress = true;
  }
  if (c->out_sent == c->out.len) {
    out_release(c);
    c->write_deadline = 0;
    return true;
  }
  if (progress || c->write_deadline == 0) {
    c->write_deadline = weft_loop_now_ms(c->server->loop) + c->server->opts.write_ms;
  }
  if (c->out_sent > c->out.len / 2) {
    memmove(c->out.data, c->out.data + c->out_sent, wefti_conn_unsent(c));
    c->out.len -= c->out_sent;
    c->out_sent = 0;
  }
  return true;
}

static void set_events(wefti_conn *c, unsigned events)
{
  if (c->events != events) {
    c->events = (uint8_t)events;
    weft_io_set(c->io, events);
  }
}

/* While answers are due the peer's end must be noticed, so reading goes on; what cannot
 * be parsed yet is kept, up to one read's worth. */
static bool wants_read(const wefti_conn *c)
{
  if (c->eof) {
    return false;
  }
  if (c->lingering) {
    return true;
  }
  return c->input_over ? c->swallowed < WEFTI_SWALLOW_MAX
                       : !c->paused || c->in.len < WEFTI_SCRATCH;
}

/* The alarm is started only when it must ring earlier than it would: in the steady state
 * a request moves read_deadline and nothing else. */
static void arm(wefti_conn *c)
{
  weft_http *server = c->server;
  const uint64_t now = weft_loop_now_ms(server->loop);
  if (!c->lingering && c->reading == NULL && !c->in_head) {
    const bool idle = c->first == NULL && c->out.len == 0;
    c->read_deadline = idle ? now + server->opts.idle_ms : 0;
  }
  uint64_t at = c->read_deadline;
  if (c->write_deadline != 0 && (at == 0 || c->write_deadline < at)) {
    at = c->write_deadline;
  }
  if (at != 0 && (c->alarm_at == 0 || at < c->alarm_at)) {
    c->alarm_at = at;
    weft_alarm_start(c->alarm, at > now ? at - now : 0);
  }
}

/* Half closes and reads on for a while: a close with unread bytes would be a reset, and
 * the peer might lose the answer. */
static void linger(wefti_conn *c)
{
  weft_http *server = c->server;
  if (c->eof) {
    wefti_conn_kill(c);
    return;
  }
  (void)shutdown(c->fd, SHUT_WR);
  c->lingering = true;
  c->read_deadline = weft_loop_now_ms(server->loop) +
                     (server->draining ? WEFTI_LINGER_DRAIN_MS : WEFTI_LINGER_MS);
  wefti_bytes_fini(&c->in);
  set_events(c, WEFT_IO_READ);
  arm(c);
}

/* Drops the first used bytes of in. */
static void in_consume(wefti_conn *c, size_t used)
{
  if (used == c->in.len) {
    wefti_bytes_fini(&c->in);
  } else if (used > 0) {
    memmove(c->in.data, c->in.data + used, c->in.len - used);
    c->in.len -= used;
  }
}

/* False when c or its server is gone. */
static bool parse_kept(wefti_conn *c)
{
  while (c->in.len > 0) {
    const size_t used = wefti_input(c, c->in.data, c->in.len);
    if (c->dead || c->server->doomed) {
      return false;
    }
    in_consume(c, used);
    if (used == 0) {
      break;
    }
  }
  return true;
}

void wefti_conn_settle(wefti_conn *c)
{
  if (c->lingering) {
    return;
  }
  if (!wefti_conn_flush(c)) {
    return;
  }
  while (c->paused && !wefti_conn_full(c)) {
    c->paused = false;
    if (!parse_kept(c) || !wefti_conn_flush(c)) {
      return;
    }
  }
  const bool sent = wefti_conn_unsent(c) == 0;
  const bool drained = c->server->draining && c->first == NULL;
  if (sent && (c->closing || drained)) {
    linger(c);
    return;
  }
  c->paused = !c->input_over && (c->paused || wefti_conn_full(c));
  if (c->eof && (c->first != NULL || (sent && !c->paused))) {
    wefti_conn_kill(c); /* the peer has gone, or has all its answers */
    return;
  }
  set_events(c, (wants_read(c) ? WEFT_IO_READ : 0U) | (sent ? 0U : WEFT_IO_WRITE));
  arm(c);
}

/* Bytes read, or 0: nothing now, the end (c->eof), or an error (c->dead). */
static size_t receive(wefti_conn *c, char *to, size_t room)
{
  const ssize_t n = recv(c->fd, to, room, 0);
  if (n > 0) {
    return (size_t)n;
  }
  if (n == 0) {
    c->eof = true;
  } else if (errno != EAGAIN && errno != EINTR) {
    wefti_conn_kill(c);
  }
  return 0;
}

static void swallow(wefti_conn *c)
{
  c->swallowed += receive(c, c->server->scratch, WEFTI_SCRATCH);
  if (c->eof && c->lingering && !c->dead) {
    wefti_conn_kill(c);
  }
}

/* Goes on with a head of which a part is kept, or keeps more while paused. */
static void read_on(wefti_conn *c)
{
  if (wefti_bytes_room(&c->in, IN_STEP) != WEFT_OK) {
    wefti_conn_kill(c);
    return;
  }
  c->in.len += receive(c, c->in.data + c->in.len, c->in.cap - c->in.len);
  if (!c->dead && !c->paused) {
    (void)parse_kept(c);
  }
}

static void read_fresh(wefti_conn *c)
{
  char *scratch = c->server->scratch;
  const size_t got = receive(c, scratch, WEFTI_SCRATCH);
  if (got == 0) {
    return;
  }
  const size_t used = c->paused ? 0 : wefti_input(c, scratch, got);
  if (!c->dead && !c->server->doomed &&
      wefti_bytes_add(&c->in, scratch + used, got - used) != WEFT_OK) {
    wefti_conn_kill(c);
  }
}

static void on_io(void *arg, int fd, unsigned events)
{
  (void)fd;
  wefti_conn *c = arg;
  weft_http *server = c->server;
  wefti_enter(server);
  if ((events & WEFT_IO_READ) != 0 && (c->events & WEFT_IO_READ) != 0) {
    if (c->lingering || c->input_over) {
      swallow(c);
    } else if (c->in.len > 0) {
      read_on(c);
    } else {
      read_fresh(c);
    }
  }
  if (!c->dead) {
    wefti_touch(c);
  }
  wefti_leave(server);
}

static void on_alarm(void *arg)
{
  wefti_conn *c = arg;
  weft_http *server = c->server;
  const uint64_t now = weft_loop_now_ms(server->loop);
  wefti_enter(server);
  c->alarm_at = 0;
  const bool read_late = c->read_deadline != 0 && now >= c->read_deadline;
  const bool write_late = c->write_deadline != 0 && now >= c->write_deadline;
  if (write_late || (read_late && c->reading == NULL && !c->in_head)) {
    wefti_conn_kill(c); /* a slow reader, an idle one, or the end of a linger */
  } else if (read_late) {
    wefti_refuse(c, 408, "Request did not arrive in time");
  } else {
    arm(c);
  }
  wefti_leave(server);
}

wefti_conn *wefti_conn_open(weft_http *server, int fd, bool refused)
{
  wefti_conn *c = calloc(1, sizeof *c);
  if (c == NULL) {
    return NULL;
  }
  c->server = server;
  c->fd = fd;
  c->refused = refused;
  c->peer = ++server->next_peer;
  c->events = WEFT_IO_READ;
  wefti_scan_init(&c->scan, false);
  if (weft_alarm_create(server->loop, on_alarm, c, &c->alarm) != WEFT_OK ||
      weft_io_create(server->loop, fd, WEFT_IO_READ, on_io, c, &c->io) != WEFT_OK) {
    weft_alarm_destroy(c->alarm);
    free(c);
    return NULL;
  }
  c->next = server->conns;
  if (c->next != NULL) {
    c->next->prev = c;
  }
  server->conns = c;
  server->conn_count++;
  server->refused_count += refused;
  if (refused) {
    wefti_refuse(c, 503, "Too many connections");
  } else {
    arm(c);
  }
  return c;
}

static void unlink_conn(wefti_conn *c)
{
  weft_http *server = c->server;
  if (c->prev != NULL) {
    c->prev->next = c->next;
  } else {
    server->conns = c->next;
  }
  if (c->next != NULL) {
    c->next->prev = c->prev;
  }
  server->conn_count--;
  server->refused_count -= c->refused;
  c->next = server->dead;
  server->dead = c;
}

void wefti_conn_kill(wefti_conn *c)
{
  if (c->dead) {
    return;
  }
  c->dead = true;
  weft_io_destroy(c->io);
  weft_alarm_destroy(c->alarm);
  (void)close(c->fd);
  while (c->first != NULL) {
    wefti_slot *slot = c->first;
    c->first = slot->next;
    wefti_slot_free(c->server, slot);
  }
  c->last = NULL;
  unlink_conn(c); /* buffers stay until it is reaped: its parser may be at work in them */
  wefti_touch(c);
}
