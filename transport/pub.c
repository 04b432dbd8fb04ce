#include "nng_util.h"
#include "weft/pubsub.h"

#include <nng/protocol/pubsub0/pub.h>
#include <stdlib.h>
#include <string.h>

enum {
  SEND_BUFFER =
      8192, /* messages per subscriber (nng's limit); beyond it nng drops in silence */
  TOPIC_MAX = 63, /* bytes; weft_sub_event.topic */
  RECV_MAX = 1024 /* subscribers have nothing to say */
};

struct weft_pub {
  nng_socket sock;
  wefti_bound bound;
};

weft_err weft_pub_create(const char *url, char *url_out, size_t url_cap, weft_pub **out,
                         weft_why *why)
{
  weft_pub *pub = calloc(1, sizeof *pub);
  if (pub == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "publisher: out of memory");
  }
  int rv = nng_pub0_open(&pub->sock);
  if (rv != 0) {
    free(pub);
    return weft_whyf(why, wefti_nng_err(rv), "publisher: no socket: %s",
                     wefti_nng_text(rv));
  }
  weft_err err = wefti_sock_limits(pub->sock, RECV_MAX);
  if (err == WEFT_OK) {
    rv = nng_socket_set_int(pub->sock, NNG_OPT_SENDBUF, SEND_BUFFER);
    err = wefti_nng_err(rv);
  }
  if (err != WEFT_OK) {
    (void)weft_whyf(why, err, "publisher: cannot set up the socket");
  } else {
    err = wefti_listen(pub->sock, url, url_out, url_cap, &pub->bound, why);
  }
  if (err != WEFT_OK) {
    weft_pub_destroy(pub);
    return err;
  }
  *out = pub;
  return WEFT_OK;
}

weft_err weft_pub_send(weft_pub *pub, const char *topic, const void *json, size_t len)
{
  const size_t n = strlen(topic);
  if (n == 0 || n > TOPIC_MAX || strchr(topic, ' ') != NULL || len > SIZE_MAX - n - 1) {
    return WEFT_E_INVAL;
  }
  nng_msg *msg;
  if (nng_msg_alloc(&msg, n + 1 + len) != 0) {
    return WEFT_E_NOMEM;
  }
  char *p = nng_msg_body(msg);
  memcpy(p, topic, n + 1);
  p[n] = ' '; /* where its end was */
  if (len > 0) {
    memcpy(p + n + 1, json, len);
  }
  const int rv = nng_sendmsg(pub->sock, msg, NNG_FLAG_NONBLOCK); /* pub never blocks */
  if (rv != 0) {
    nng_msg_free(msg);
  }
  return wefti_nng_err(rv);
}

void weft_pub_destroy(weft_pub *pub)
{
  if (pub == NULL) {
    return;
  }
  wefti_unlisten(&pub->bound, pub->sock, NULL, NULL);
  free(pub);
}
