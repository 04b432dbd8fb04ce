#include "nng_util.h"

#include <string.h>

typedef struct nng_row {
  int rv;
  weft_err err;
  const char *text;
} nng_row;

static const nng_row rows[] = {
  { 0, WEFT_OK, "success" },
  { NNG_EINTR, WEFT_E_CANCELLED, "interrupted" },
  { NNG_ENOMEM, WEFT_E_NOMEM, "out of memory" },
  { NNG_EINVAL, WEFT_E_INVAL, "invalid argument" },
  { NNG_EBUSY, WEFT_E_STATE, "busy" },
  { NNG_ETIMEDOUT, WEFT_E_TIMEOUT, "timed out" },
  { NNG_ECONNREFUSED, WEFT_E_SYS, "connection refused" },
  { NNG_ECLOSED, WEFT_E_CLOSED, "closed" },
  { NNG_EAGAIN, WEFT_E_AGAIN, "would block" },
  { NNG_ENOTSUP, WEFT_E_UNSUPPORTED, "not supported" },
  { NNG_EADDRINUSE, WEFT_E_EXISTS, "address in use" },
  { NNG_ESTATE, WEFT_E_STATE, "wrong state" },
  { NNG_ENOENT, WEFT_E_NOTFOUND, "no such address" },
  { NNG_EPROTO, WEFT_E_PROTO, "protocol error" },
  { NNG_EUNREACHABLE, WEFT_E_SYS, "unreachable" },
  { NNG_EADDRINVAL, WEFT_E_INVAL, "invalid address" },
  { NNG_EPERM, WEFT_E_DENIED, "not permitted" },
  { NNG_EMSGSIZE, WEFT_E_LIMIT, "message too large" },
  { NNG_ECONNABORTED, WEFT_E_DOWN, "connection aborted" },
  { NNG_ECONNRESET, WEFT_E_DOWN, "connection reset" },
  { NNG_ECANCELED, WEFT_E_CANCELLED, "cancelled" },
  { NNG_ENOFILES, WEFT_E_SYS, "out of descriptors" },
  { NNG_ENOSPC, WEFT_E_SYS, "out of space" },
  { NNG_EEXIST, WEFT_E_EXISTS, "exists" },
  { NNG_ECONNSHUT, WEFT_E_DOWN, "connection shut down" },
};

static const nng_row *row_of(int rv)
{
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    if (rows[i].rv == rv) {
      return &rows[i];
    }
  }
  return NULL;
}

weft_err wefti_nng_err(int rv)
{
  const nng_row *row = row_of(rv);
  return row == NULL ? WEFT_E_SYS : row->err;
}

const char *wefti_nng_text(int rv)
{
  const nng_row *row = row_of(rv);
  return row == NULL ? "system error" : row->text;
}

const char *wefti_url_scheme(const char *url)
{
  static const char *const schemes[] = { "ipc", "tcp", "inproc" };
  for (size_t i = 0; url != NULL && i < sizeof schemes / sizeof schemes[0]; i++) {
    const size_t len = strlen(schemes[i]);
    if (strncmp(url, schemes[i], len) == 0 && strncmp(url + len, "://", 3) == 0 &&
        url[len + 3] != '\0') {
      return schemes[i];
    }
  }
  return NULL;
}

weft_err wefti_sock_limits(nng_socket sock, size_t recv_max)
{
  int rv = nng_socket_set_size(sock, NNG_OPT_RECVMAXSZ, recv_max + WEFTI_SLACK);
  if (rv == 0) {
    rv = nng_socket_set_ms(sock, NNG_OPT_RECONNMINT, WEFTI_RECONNECT_MIN_MS);
  }
  if (rv == 0) {
    rv = nng_socket_set_ms(sock, NNG_OPT_RECONNMAXT, WEFTI_RECONNECT_MAX_MS);
  }
  return wefti_nng_err(rv);
}

nng_msg *wefti_nng_msg(const void *data, size_t len)
{
  nng_msg *msg;
  if (nng_msg_alloc(&msg, len) != 0) {
    return NULL;
  }
  if (len > 0) {
    memcpy(nng_msg_body(msg), data, len);
  }
  return msg;
}

bool wefti_queue_push(wefti_queue *q, wefti_node *node)
{
  wefti_node *head = atomic_load_explicit(&q->head, memory_order_relaxed);
  do {
    node->next = head;
  } while (!atomic_compare_exchange_weak_explicit(
      &q->head, &head, node, memory_order_release, memory_order_relaxed));
  return head == NULL;
}

wefti_node *wefti_queue_take(wefti_queue *q)
{
  wefti_node *m = atomic_exchange_explicit(&q->head, NULL, memory_order_acquire);
  wefti_node *out = NULL;
  while (m != NULL) {
    wefti_node *next = m->next;
    m->next = out;
    out = m;
    m = next;
  }
  return out;
}
