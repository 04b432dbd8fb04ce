/* tcpstore_talk.h -- the client's side of the conversation with a TCPStore: which bytes
 * to send, what the answers mean.  No sockets, no clocks. */
#ifndef WEFT_TRANSPORT_TCPSTORE_TALK_H
#define WEFT_TRANSPORT_TCPSTORE_TALK_H

#include "tcpstore_wire.h"
#include "weft/tcpstore.h"

typedef enum wefti_ask {
  WEFTI_ASK_NONE,
  WEFTI_ASK_HELLO, /* VALIDATE and PING, or VALIDATE and CHECK */
  WEFTI_ASK_GET,
  WEFTI_ASK_SET,
  WEFTI_ASK_NUMBER /* ADD, DELETE_KEY */
} wefti_ask;

typedef enum wefti_expect {
  WEFTI_EXPECT_NOTHING,
  WEFTI_EXPECT_NONCE,
  WEFTI_EXPECT_CHECK,
  WEFTI_EXPECT_STOP,   /* the end of a WAIT */
  WEFTI_EXPECT_CANCEL, /* WAIT_CANCELED, maybe behind a late STOP_WAITING */
  WEFTI_EXPECT_NUMBER,
  WEFTI_EXPECT_VALUE
} wefti_expect;

typedef enum wefti_talk_news {
  WEFTI_TALK_DONE, /* the question is answered: see answer */
  WEFTI_TALK_POLL  /* no candidate exists: call wefti_talk_poll after a pause */
} wefti_talk_news;

typedef struct wefti_talk {
  wefti_sb in;
  wefti_sb out; /* requests; the caller sends and drops them */
  size_t used;  /* bytes of in that the last answer borrows */
  size_t value_max;
  wefti_expect expect;
  bool given_up; /* nobody wants the answer that is expected */
  bool late;     /* a STOP_WAITING came after our CANCEL_WAIT */
  bool polling;  /* between two rounds */
  uint32_t nonce;
  wefti_ask ask;    /* the question; waits while given_up */
  bool started;     /* its request is in out */
  wefti_sb request; /* SET, ADD, DELETE_KEY: as it will be sent; GET: keys, as strings */
  size_t count;     /* keys of a GET */
  size_t which;
} wefti_talk;

void wefti_talk_init(wefti_talk *t, size_t value_max);
void wefti_talk_fini(wefti_talk *t);

/* One question at a time: ask is WEFTI_ASK_NONE.  false: out of memory. */
bool wefti_talk_hello(wefti_talk *t, uint32_t nonce, bool ping);
bool wefti_talk_get(wefti_talk *t, const char *const *keys, size_t count);
bool wefti_talk_set(wefti_talk *t, const char *key, const void *value, size_t len);
bool wefti_talk_add(wefti_talk *t, const char *key, int64_t delta);
bool wefti_talk_remove(wefti_talk *t, const char *key);
bool wefti_talk_poll(wefti_talk *t);
/* Gives the question up.  false: out of memory. */
bool wefti_talk_cancel(wefti_talk *t);
/* All of out has been sent: true when that answers the question. */
bool wefti_talk_flushed(wefti_talk *t);

bool wefti_talk_feed(wefti_talk *t, const void *data, size_t n);
/* Call until AGAIN.  OK: *news.  Errors: PROTO, LIMIT, NOMEM: the connection is of no use
 * any more. */
weft_err wefti_talk_next(wefti_talk *t, wefti_talk_news *news,
                         weft_tcpstore_answer *answer, weft_why *why);

#endif /* WEFT_TRANSPORT_TCPSTORE_TALK_H */
