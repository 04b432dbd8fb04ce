/* tcpstore_client.h -- the client's state, shared by its two files: how it connects
 * (tcpstore_connect.c) and how it talks once it is connected (tcpstore_client.c). */
#ifndef WEFT_TRANSPORT_TCPSTORE_CLIENT_H
#define WEFT_TRANSPORT_TCPSTORE_CLIENT_H

#include "tcpstore_resolve.h"
#include "tcpstore_talk.h"
#include "weft/tcpstore.h"

enum {
  WEFTI_ST_ATTEMPT_MS = 5000, /* one address, from connect to the end of the handshake */
  WEFTI_ST_DRAIN_MS = 5000,   /* for the answer to a question that was given up */
  WEFTI_ST_POLL_MS = 50,
  WEFTI_ST_BACKOFF_MIN_MS = 50,
  WEFTI_ST_BACKOFF_MAX_MS = 1000
};

typedef enum wefti_client_state {
  WEFTI_CL_WAITING, /* for the next attempt, or a name's addresses */
  WEFTI_CL_CONNECTING,
  WEFTI_CL_HELLO,
  WEFTI_CL_JOINING,
  WEFTI_CL_READY,
  WEFTI_CL_OVER
} wefti_client_state;

struct weft_tcpstore {
  weft_loop *loop;
  char host[256];
  char where[288]; /* "TCPStore host:port", for error texts */
  uint16_t port;
  bool join;
  uint64_t timeout_ms;  /* of what is under way, for error texts */
  weft_tcpstore_fn *fn; /* NULL: nothing is under way */
  void *arg;
  wefti_client_state state;
  /* connecting */
  wefti_resolve *resolving;
  struct addrinfo *list;
  struct addrinfo *next; /* address to try next */
  bool ping;
  uint64_t backoff_ms;
  uint64_t random;
  unsigned attempts;
  char last[160];          /* why the last attempt failed */
  char over[WEFT_WHY_MAX]; /* why it has ended */
  /* connected */
  int fd; /* -1: none */
  weft_io *io;
  weft_alarm *deadline;
  weft_alarm *step; /* the attempt, the pause before one, a poll, a drain */
  wefti_talk talk;
  unsigned calls; /* fn is on the stack */
  bool destroyed; /* inside fn */
};

/* The next attempt, now. */
void wefti_client_attempt(weft_tcpstore *s);
/* Drops the attempt's connection, and tries again: the next address, or after a pause. */
void wefti_client_retry(weft_tcpstore *s, const char *why);
void wefti_client_disconnect(weft_tcpstore *s);
/* Ends the connection for good and reports err.  false: s is gone. */
bool wefti_client_fail(weft_tcpstore *s, weft_err err, const char *text);
/* On the connected socket. */
void wefti_client_on_io(void *arg, int fd, unsigned events);
/* A text for errno without strerror's static buffer. */
const char *wefti_errno_text(int e, char out[32]);

#endif /* WEFT_TRANSPORT_TCPSTORE_CLIENT_H */
