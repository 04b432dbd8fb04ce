#define _GNU_SOURCE /* getrandom */
#include "tcpstore_client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

enum { READ_AT_ONCE = 16 << 10 };

/* ---- reporting */

/* Reports to fn.  false: s is gone. */
static bool report(weft_tcpstore *s, const weft_tcpstore_answer *answer)
{
  weft_tcpstore_fn *fn = s->fn;
  weft_alarm_stop(s->deadline);
  if (fn == NULL) {
    return true;
  }
  s->fn = NULL;
  s->calls++;
  fn(s->arg, answer);
  s->calls--;
  if (s->destroyed && s->calls == 0) {
    s->destroyed = false;
    weft_tcpstore_destroy(s);
    return false;
  }
  return !s->destroyed;
}

static void end(weft_tcpstore *s)
{
  s->state = WEFTI_CL_OVER;
  if (s->step != NULL) { /* NULL: open has failed half way */
    weft_alarm_stop(s->step);
  }
  wefti_resolve_cancel(s->resolving);
  s->resolving = NULL;
  wefti_client_disconnect(s);
}

static void end_because(weft_tcpstore *s, weft_err err, const char *text, weft_why *why)
{
  (void)weft_whyf(why, err, "%s: %s", s->where, text);
  (void)snprintf(s->over, sizeof s->over, "%s", why->text);
  end(s);
}

bool wefti_client_fail(weft_tcpstore *s, weft_err err, const char *text)
{
  weft_why why;
  end_because(s, err, text, &why);
  return report(s, &(weft_tcpstore_answer){ .err = err, .text = why.text });
}

/* ---- the connection */

static void watch(weft_tcpstore *s)
{
  weft_io_set(s->io, WEFT_IO_READ | (s->talk.out.len > 0 ? WEFT_IO_WRITE : 0u));
}

/* Each is done with one write if the kernel has room; never is a part of one held back.
 */
static bool flush(weft_tcpstore *s, int *e)
{
  while (s->talk.out.len > 0) {
    const ssize_t n = send(s->fd, s->talk.out.data, s->talk.out.len, MSG_NOSIGNAL);
    if (n >= 0) {
      wefti_sb_drop(&s->talk.out, (size_t)n);
    } else if (errno != EINTR) {
      *e = errno;
      return errno == EAGAIN;
    }
  }
  return true;
}

/* false: it is over; *e: errno, 0 = end of file. */
static bool receive(weft_tcpstore *s, int *e)
{
  uint8_t buf[READ_AT_ONCE];
  for (;;) {
    const ssize_t n = recv(s->fd, buf, sizeof buf, 0);
    if (n > 0) {
      *e = ENOMEM;
      if (!wefti_talk_feed(&s->talk, buf, (size_t)n)) {
        return false;
      }
      if ((size_t)n < sizeof buf) {
        return true;
      }
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      *e = n == 0 ? 0 : errno;
      return n < 0 && errno == EAGAIN;
    }
    if (s->talk.in.len >= (size_t)4 * READ_AT_ONCE) {
      return true; /* the loop has others to serve */
    }
  }
}

static bool became_ready(weft_tcpstore *s, int64_t members)
{
  weft_alarm_stop(s->step);
  s->state = WEFTI_CL_READY;
  return report(s, &(weft_tcpstore_answer){ .text = "", .number = members });
}

/* Connected, and it speaks TCPStore. */
static bool greeted(weft_tcpstore *s)
{
  if (!s->join) {
    return became_ready(s, 0);
  }
  s->state = WEFTI_CL_JOINING;
  return wefti_talk_add(&s->talk, WEFT_TCPSTORE_INIT_KEY, 1)
             ? true
             : wefti_client_fail(s, WEFT_E_NOMEM, "out of memory");
}

static bool on_news(weft_tcpstore *s, wefti_talk_news news,
                    const weft_tcpstore_answer *answer)
{
  if (news == WEFTI_TALK_POLL) {
    weft_alarm_start(s->step, WEFTI_ST_POLL_MS);
    return true;
  }
  if (s->state == WEFTI_CL_HELLO) {
    return greeted(s);
  }
  if (s->state == WEFTI_CL_JOINING) {
    return became_ready(s, answer->number);
  }
  return report(s, answer);
}

/* false: s is gone or its connection is. */
static bool digest(weft_tcpstore *s)
{
  for (;;) {
    wefti_talk_news news;
    weft_tcpstore_answer answer;
    weft_why why = { 0 };
    const bool was_given_up = s->talk.given_up;
    const weft_err err = wefti_talk_next(&s->talk, &news, &answer, &why);
    if (was_given_up && !s->talk.given_up) {
      weft_alarm_stop(s->step);
    }
    if (err == WEFT_E_AGAIN) {
      return true;
    }
    if (err != WEFT_OK) {
      (void)wefti_client_fail(s, err, err == WEFT_E_NOMEM ? "out of memory" : why.text);
      return false;
    }
    if (!on_news(s, news, &answer) || s->state == WEFTI_CL_OVER) {
      return false;
    }
  }
}

static void lost(weft_tcpstore *s, int e)
{
  char text[32];
  if (s->state == WEFTI_CL_HELLO) { /* EPIPE, ECONNRESET too: closed on our handshake */
    wefti_client_retry(s, NULL);
    return;
  }
  char all[160];
  (void)snprintf(all, sizeof all, "%s (%s)",
                 s->state == WEFTI_CL_JOINING ? "it closed the connection while we joined"
                                              : "it closed the connection",
                 e == 0 ? "end of file" : wefti_errno_text(e, text));
  (void)wefti_client_fail(s, e == ENOMEM ? WEFT_E_NOMEM : WEFT_E_DOWN, all);
}

void wefti_client_on_io(void *arg, int fd, unsigned events)
{
  (void)fd;
  weft_tcpstore *s = arg;
  int e = 0;
  bool open = true;
  if ((events & WEFT_IO_READ) != 0) {
    open = receive(s, &e);
    /* What came before the end still counts. */
    if (s->talk.in.len > 0 && !digest(s)) {
      return;
    }
  }
  if (open && s->talk.out.len > 0) {
    open = flush(s, &e);
  }
  if (!open) {
    lost(s, e);
    return;
  }
  watch(s);
  if (s->talk.out.len == 0 && s->state == WEFTI_CL_READY &&
      wefti_talk_flushed(&s->talk)) {
    (void)report(s, &(weft_tcpstore_answer){ .text = "" });
  }
}

/* ---- alarms */

static void on_deadline(void *arg)
{
  weft_tcpstore *s = arg;
  weft_why why;
  if (s->state == WEFTI_CL_READY) {
    weft_tcpstore_fn *fn = s->fn;
    weft_tcpstore_cancel(s); /* forgets fn */
    s->fn = fn;
    (void)weft_whyf(&why, WEFT_E_TIMEOUT, "%s: no answer within %" PRIu64 " ms", s->where,
                    s->timeout_ms);
    (void)report(s, &(weft_tcpstore_answer){ .err = WEFT_E_TIMEOUT, .text = why.text });
    return;
  }
  char text[288];
  (void)snprintf(text, sizeof text,
                 "cannot connect within %" PRIu64 " ms (%u attempts; the last: %s)",
                 s->timeout_ms, s->attempts,
                 s->state == WEFTI_CL_HELLO || s->state == WEFTI_CL_JOINING
                     ? "connected, but no answer to our handshake"
                 : s->last[0] == '\0' ? "no answer"
                                      : s->last);
  (void)wefti_client_fail(s, WEFT_E_TIMEOUT, text);
}

static void on_step(void *arg)
{
  weft_tcpstore *s = arg;
  switch (s->state) {
  case WEFTI_CL_WAITING:
    wefti_client_attempt(s);
    return;
  case WEFTI_CL_CONNECTING:
    wefti_client_retry(s, "no answer");
    return;
  case WEFTI_CL_HELLO:
    wefti_client_retry(s, "connected, but no answer to our handshake");
    return;
  case WEFTI_CL_READY:
    if (s->talk.given_up) {
      (void)wefti_client_fail(s, WEFT_E_DOWN,
                              "no answer to a question that was given up");
    } else if (!wefti_talk_poll(&s->talk)) {
      (void)wefti_client_fail(s, WEFT_E_NOMEM, "out of memory");
    } else {
      watch(s);
    }
    return;
  case WEFTI_CL_JOINING: /* joining twice would count twice: the deadline decides */
  case WEFTI_CL_OVER:
    return;
  }
}

/* ---- open and close */

static weft_err take_host(weft_tcpstore *s, const char *host, weft_why *why)
{
  const size_t len = host == NULL ? 0 : strlen(host);
  const bool bracketed = len >= 2 && host[0] == '[' && host[len - 1] == ']';
  const size_t n = bracketed ? len - 2 : len;
  if (n == 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "TCPStore: no master address: name the trainer's host");
  }
  if (n >= sizeof s->host) {
    return weft_whyf(why, WEFT_E_INVAL, "TCPStore: a master address of %zu bytes", n);
  }
  memcpy(s->host, host + (bracketed ? 1 : 0), n);
  s->host[n] = '\0';
  if (strcmp(s->host, "0.0.0.0") == 0 || strcmp(s->host, "::") == 0 ||
      strcmp(s->host, "*") == 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "TCPStore: master address '%s' is one to listen on, not one to "
                     "connect to: name the trainer's host",
                     s->host);
  }
  return WEFT_OK;
}

static weft_err prepare(weft_tcpstore *s, const weft_tcpstore_opts *o, weft_why *why)
{
  weft_err err = take_host(s, o->host, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (o->port == 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "TCPStore: master port 0 is nowhere to connect to");
  }
  s->port = o->port;
  (void)snprintf(s->where, sizeof s->where,
                 strchr(s->host, ':') == NULL ? "TCPStore %s:%u" : "TCPStore [%s]:%u",
                 s->host, o->port);
  if (getrandom(&s->random, sizeof s->random, GRND_NONBLOCK) != sizeof s->random) {
    s->random = weft_loop_now_ms(s->loop); /* only jitter hangs on it */
  }
  s->join = o->join;
  s->ping = true;
  s->backoff_ms = WEFTI_ST_BACKOFF_MIN_MS;
  s->timeout_ms = o->timeout_ms == 0 ? WEFT_TCPSTORE_TIMEOUT_MS : o->timeout_ms;
  wefti_talk_init(&s->talk, o->value_max == 0 ? WEFT_TCPSTORE_VALUE_MAX : o->value_max);
  err = weft_alarm_create(s->loop, on_deadline, s, &s->deadline);
  return err == WEFT_OK ? weft_alarm_create(s->loop, on_step, s, &s->step) : err;
}

weft_err weft_tcpstore_open(weft_loop *loop, const weft_tcpstore_opts *opts,
                            weft_tcpstore_fn *fn, void *arg, weft_tcpstore **out,
                            weft_why *why)
{
  if (opts->size != sizeof *opts) {
    return weft_whyf(why, WEFT_E_INVAL, "weft_tcpstore_opts of another size");
  }
  weft_tcpstore *s = calloc(1, sizeof *s);
  if (s == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "out of memory for a TCPStore client");
  }
  s->loop = loop;
  s->fd = -1;
  const weft_err err = prepare(s, opts, why);
  if (err != WEFT_OK) {
    weft_tcpstore_destroy(s);
    return err;
  }
  s->fn = fn;
  s->arg = arg;
  s->state = WEFTI_CL_WAITING;
  weft_alarm_start(s->deadline, s->timeout_ms);
  weft_alarm_start(s->step, 0);
  *out = s;
  return WEFT_OK;
}

void weft_tcpstore_destroy(weft_tcpstore *store)
{
  if (store == NULL) {
    return;
  }
  store->fn = NULL;
  if (store->state != WEFTI_CL_OVER) {
    end(store);
  }
  if (store->calls > 0) {
    store->destroyed = true; /* freed when fn has returned */
    return;
  }
  if (store->list != NULL) {
    freeaddrinfo(store->list);
  }
  weft_alarm_destroy(store->deadline);
  weft_alarm_destroy(store->step);
  wefti_talk_fini(&store->talk);
  free(store);
}

const char *weft_tcpstore_text(const weft_tcpstore *store)
{
  return store->over;
}

/* ---- questions */

static weft_err may_ask(const weft_tcpstore *s, const char *key)
{
  if (s->state == WEFTI_CL_OVER) {
    return WEFT_E_DOWN;
  }
  if (s->state != WEFTI_CL_READY || s->fn != NULL) {
    return WEFT_E_STATE;
  }
  return strlen(key) > WEFT_TCPSTORE_KEY_MAX ? WEFT_E_LIMIT : WEFT_OK;
}

/* room: the request is in the talk. */
static weft_err asked(weft_tcpstore *s, bool room, uint64_t timeout_ms,
                      weft_tcpstore_fn *fn, void *arg)
{
  if (!room) {
    (void)wefti_client_fail(s, WEFT_E_NOMEM, "out of memory"); /* fn is not set: silent */
    return WEFT_E_NOMEM;
  }
  s->fn = fn;
  s->arg = arg;
  s->timeout_ms = timeout_ms == 0 ? WEFT_TCPSTORE_TIMEOUT_MS : timeout_ms;
  weft_alarm_start(s->deadline, s->timeout_ms);
  watch(s);
  return WEFT_OK;
}

weft_err weft_tcpstore_get(weft_tcpstore *store, const char *const *keys, size_t count,
                           uint64_t timeout_ms, weft_tcpstore_fn *fn, void *arg)
{
  if (count == 0 || count > WEFT_TCPSTORE_CANDIDATES_MAX) {
    return WEFT_E_INVAL;
  }
  for (size_t i = 0; i < count; i++) {
    const weft_err err = may_ask(store, keys[i]);
    if (err != WEFT_OK) {
      return err;
    }
  }
  return asked(store, wefti_talk_get(&store->talk, keys, count), timeout_ms, fn, arg);
}

/* NOLINTNEXTLINE(readability-function-size): a key, a value and who is told */
weft_err weft_tcpstore_set(weft_tcpstore *store, const char *key, const void *value,
                           size_t len, uint64_t timeout_ms, weft_tcpstore_fn *fn,
                           void *arg)
{
  const weft_err err = may_ask(store, key);
  if (err != WEFT_OK) {
    return err;
  }
  return len > WEFT_TCPSTORE_VALUE_MAX
             ? WEFT_E_LIMIT
             : asked(store, wefti_talk_set(&store->talk, key, value, len), timeout_ms, fn,
                     arg);
}

weft_err weft_tcpstore_add(weft_tcpstore *store, const char *key, int64_t delta,
                           uint64_t timeout_ms, weft_tcpstore_fn *fn, void *arg)
{
  const weft_err err = may_ask(store, key);
  return err != WEFT_OK ? err
                        : asked(store, wefti_talk_add(&store->talk, key, delta),
                                timeout_ms, fn, arg);
}

weft_err weft_tcpstore_remove(weft_tcpstore *store, const char *key, uint64_t timeout_ms,
                              weft_tcpstore_fn *fn, void *arg)
{
  const weft_err err = may_ask(store, key);
  return err != WEFT_OK
             ? err
             : asked(store, wefti_talk_remove(&store->talk, key), timeout_ms, fn, arg);
}

void weft_tcpstore_cancel(weft_tcpstore *store)
{
  if (store->state != WEFTI_CL_READY || store->fn == NULL) {
    return;
  }
  store->fn = NULL;
  weft_alarm_stop(store->deadline);
  if (!store->talk.given_up) {
    weft_alarm_stop(store->step); /* a poll's pause */
  }
  const bool was_given_up = store->talk.given_up;
  if (!wefti_talk_cancel(&store->talk)) {
    weft_why why; /* nobody waits to be told */
    end_because(store, WEFT_E_NOMEM, "out of memory", &why);
    return;
  }
  if (store->talk.given_up && !was_given_up) {
    weft_alarm_start(store->step, WEFTI_ST_DRAIN_MS);
  }
  watch(store);
}
