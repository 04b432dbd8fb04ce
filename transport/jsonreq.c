#include "dial_gate.h"
#include "nng_util.h"
#include "weft/clock.h"
#include "weft/pubsub.h"

#include <errno.h>
#include <nng/protocol/reqrep0/req.h>
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

static weft_err set_up(nng_socket sock, uint64_t timeout_ms)
{
  weft_err err = wefti_sock_limits(sock, ANSWER_MAX);
  if (err == WEFT_OK) {
    err = wefti_nng_err(
        nng_socket_set_ms(sock, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE));
  }
  if (err == WEFT_OK) {
    err = wefti_nng_err(
        nng_socket_set_ms(sock, NNG_OPT_SENDTIMEO, (nng_duration)timeout_ms));
  }
  return err;
}

static weft_err connect_first(wefti_dialed *dialed, const char *url, uint64_t timeout_ms,
                              weft_why *why)
{
  const int rc =
      dialed == NULL || !is_local(url) ? 0 : wefti_dial_wait(dialed, timeout_ms);
  if (rc == 0) {
    return WEFT_OK;
  }
  if (rc == ECONNREFUSED || rc == ENOENT) {
    return weft_whyf(why, WEFT_E_SYS, "cannot connect to %s: connection refused", url);
  }
  return rc == ETIMEDOUT
             ? weft_whyf(why, WEFT_E_SYS, "cannot connect to %s in time", url)
             : weft_whyf(why, WEFT_E_SYS, "cannot connect to %s: errno %d", url, rc);
}

/* *msg is the question and becomes the answer, NULL after an error; *dialed is set also
 * then. */
static weft_err talk(nng_socket sock, const char *url, uint64_t timeout_ms,
                     wefti_dialed **dialed, nng_msg **msg, weft_why *why)
{
  nng_msg *question = *msg;
  *msg = NULL;
  const uint64_t end = weft_clock_ms() + timeout_ms;
  weft_err err = set_up(sock, timeout_ms);
  if (err != WEFT_OK) {
    (void)weft_whyf(why, err, "%s: cannot set up the socket", url);
  } else {
    err = wefti_dial(sock, url, true, dialed, why);
  }
  if (err == WEFT_OK) {
    err = connect_first(*dialed, url, timeout_ms, why);
  }
  if (err != WEFT_OK) {
    nng_msg_free(question);
    return err;
  }
  return ask(sock, url, question, end, msg, why);
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
  nng_msg *got = msg;
  wefti_dialed *dialed = NULL;
  weft_err err = talk(sock, url, timeout_ms, &dialed, &got, why);
  wefti_hang_up(dialed, sock, NULL, NULL);
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
