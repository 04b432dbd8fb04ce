#include "nng_util.h"
#include "weft/clock.h"
#include "weft/pubsub.h"

#include <nng/protocol/reqrep0/req.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_MAX = 16 << 20, TIMEOUT_MAX_MS = 24 * 3600 * 1000 };

/* Where a connect ends at once, one way or the other, so that its failure can be told
 * from a slow answer. */
static bool is_local(const char *url)
{
  static const char *const local[] = { "ipc://", "inproc://", "tcp://127.",
                                       "tcp://localhost:", "tcp://[::1]:" };
  for (size_t i = 0; i < sizeof local / sizeof local[0]; i++) {
    if (strncmp(url, local[i], strlen(local[i])) == 0) {
      return true;
    }
  }
  return false;
}

/* nng_dial waits as long as it likes (10 s in nng 1.5.2) for a peer that was connected to
 * and does not go on, such as a stopped process: it waits on a thread of its own. */
typedef struct dialing {
  pthread_mutex_t lock; /* over what follows */
  pthread_cond_t changed;
  bool done;
  int rv;
  unsigned users; /* the last one frees it */
  nng_socket sock;
  char url[]; /* and its NUL */
} dialing;

static void let_go(dialing *d)
{
  (void)pthread_mutex_lock(&d->lock);
  const bool last = --d->users == 0;
  (void)pthread_mutex_unlock(&d->lock);
  if (last) {
    (void)pthread_cond_destroy(&d->changed);
    (void)pthread_mutex_destroy(&d->lock);
    free(d);
  }
}

static void *dial_main(void *arg)
{
  dialing *d = arg;
  const int rv = nng_dial(d->sock, d->url, NULL, 0);
  (void)pthread_mutex_lock(&d->lock);
  d->done = true;
  d->rv = rv;
  (void)pthread_cond_signal(&d->changed);
  (void)pthread_mutex_unlock(&d->lock);
  let_go(d);
  return NULL;
}

static int wait_for(dialing *d, uint64_t timeout_ms)
{
  const uint64_t until_ms = weft_clock_ms() + timeout_ms;
  (void)pthread_mutex_lock(&d->lock);
  while (!d->done && weft_cond_wait_until(&d->changed, &d->lock, until_ms)) {
  }
  const int rv = d->done ? d->rv : NNG_ETIMEDOUT;
  (void)pthread_mutex_unlock(&d->lock);
  return rv;
}

/* After NNG_ETIMEDOUT the thread ends when the socket is closed. */
static int dial_in_time(nng_socket sock, const char *url, uint64_t timeout_ms)
{
  dialing *d = malloc(sizeof *d + strlen(url) + 1);
  if (d == NULL) {
    return NNG_ENOMEM;
  }
  *d = (dialing){ .users = 2, .sock = sock };
  memcpy(d->url, url, strlen(url) + 1);
  if (pthread_mutex_init(&d->lock, NULL) != 0) {
    free(d);
    return NNG_ENOMEM;
  }
  if (weft_cond_init(&d->changed) != WEFT_OK) {
    (void)pthread_mutex_destroy(&d->lock);
    free(d);
    return NNG_ENOMEM;
  }
  int rv = NNG_ENOMEM;
  if (wefti_detach(dial_main, d)) {
    rv = wait_for(d, timeout_ms);
  } else {
    d->users = 1;
  }
  let_go(d);
  return rv;
}

static weft_err ask(nng_socket sock, const char *url, nng_msg *msg, uint64_t end,
                    nng_msg **answer, weft_why *why)
{
  int rv = nng_sendmsg(sock, msg, 0);
  if (rv != 0) {
    nng_msg_free(msg);
    return rv == NNG_ETIMEDOUT /* a request waits only for a connection */
               ? weft_whyf(why, WEFT_E_SYS, "cannot connect to %s in time", url)
               : weft_whyf(why, wefti_nng_err(rv), "%s: %s", url, wefti_nng_text(rv));
  }
  const uint64_t now = weft_clock_ms();
  rv = nng_socket_set_ms(sock, NNG_OPT_RECVTIMEO,
                         now >= end ? 1 : (nng_duration)(end - now));
  if (rv == 0) {
    rv = nng_recvmsg(sock, answer, 0);
  }
  if (rv == NNG_ETIMEDOUT) {
    return weft_whyf(why, WEFT_E_TIMEOUT, "%s did not answer in time", url);
  }
  if (rv != 0) {
    return weft_whyf(why, wefti_nng_err(rv), "%s: %s", url, wefti_nng_text(rv));
  }
  return WEFT_OK;
}

static weft_err talk(nng_socket sock, const char *url, nng_msg *msg, uint64_t timeout_ms,
                     nng_msg **answer, weft_why *why)
{
  const uint64_t end = weft_clock_ms() + timeout_ms;
  weft_err err = wefti_sock_limits(sock, ANSWER_MAX);
  if (err == WEFT_OK) {
    err = wefti_nng_err(
        nng_socket_set_ms(sock, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE));
  }
  if (err == WEFT_OK) {
    err = wefti_nng_err(
        nng_socket_set_ms(sock, NNG_OPT_SENDTIMEO, (nng_duration)timeout_ms));
  }
  if (err != WEFT_OK) {
    nng_msg_free(msg);
    return weft_whyf(why, err, "%s: cannot set up the socket", url);
  }
  const int rv = is_local(url) ? dial_in_time(sock, url, timeout_ms) : 0;
  if (rv != 0) {
    nng_msg_free(msg);
    return weft_whyf(why,
                     rv == NNG_ENOMEM || rv == NNG_EINVAL || rv == NNG_EADDRINVAL
                         ? wefti_nng_err(rv)
                         : WEFT_E_SYS,
                     "cannot connect to %s: %s", url, wefti_nng_text(rv));
  }
  if (!is_local(url)) {
    err = wefti_dial(sock, url, why);
    if (err != WEFT_OK) {
      nng_msg_free(msg);
      return err;
    }
  }
  return ask(sock, url, msg, end, answer, why);
}

weft_err weft_jsonreq(const char *url, const void *json, size_t len, uint64_t timeout_ms,
                      weft_buf **answer, weft_why *why)
{
  if (wefti_url_scheme(url) == NULL) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "address \"%s\": want ipc://, tcp:// or inproc://",
                     url == NULL ? "" : url);
  }
  timeout_ms = timeout_ms == 0 ? 1 : timeout_ms;
  timeout_ms = timeout_ms > TIMEOUT_MAX_MS ? TIMEOUT_MAX_MS : timeout_ms;
  nng_msg *msg = wefti_nng_msg(json, len);
  if (msg == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "%s: out of memory", url);
  }
  nng_socket sock;
  const int rv = nng_req0_open(&sock);
  if (rv != 0) {
    nng_msg_free(msg);
    return weft_whyf(why, wefti_nng_err(rv), "%s: no socket: %s", url,
                     wefti_nng_text(rv));
  }
  nng_msg *got = NULL;
  weft_err err = talk(sock, url, msg, timeout_ms, &got, why);
  wefti_close(sock, NULL, NULL);
  if (err == WEFT_OK && nng_msg_len(got) > ANSWER_MAX) {
    err = weft_whyf(why, WEFT_E_LIMIT, "%s: answer of %zu bytes", url, nng_msg_len(got));
  }
  if (err == WEFT_OK) {
    weft_buf *b = weft_buf_create(nng_msg_body(got), nng_msg_len(got));
    if (b == NULL) {
      err = weft_whyf(why, WEFT_E_NOMEM, "%s: out of memory", url);
    } else {
      *answer = b;
    }
  }
  nng_msg_free(got);
  return err;
}
