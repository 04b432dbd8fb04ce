/* ipc_relay.h -- the connections of an ipc gate, each a client and the gate's own
 * connection to nng.  One thread's; not the thread and not the listening (ipc_gate.c). */
#ifndef WEFT_TRANSPORT_IPC_RELAY_H
#define WEFT_TRANSPORT_IPC_RELAY_H

#include <stdint.h>
#include <sys/un.h>

enum { WEFTI_RELAY_CHUNK = 64 << 10 };

typedef struct wefti_pair wefti_pair;
typedef struct wefti_end wefti_end;

typedef struct wefti_relay {
  int epoll;                /* the owner's; event data are a wefti_end * of ours */
  struct sockaddr_un inner; /* where nng listens */
  wefti_pair *pairs;
  wefti_pair *dead; /* closed, events of this turn may still name them */
  int64_t next_due; /* 0 = nothing is due */
  uint8_t scratch[WEFTI_RELAY_CHUNK]; /* between a read and its write */
} wefti_relay;

int64_t wefti_relay_now(void); /* ms, monotonic, never 0 */
/* Takes fd, also when there is no room for it: then it is closed. */
void wefti_relay_add(wefti_relay *r, int fd);
void wefti_relay_event(wefti_relay *r, wefti_end *end, uint32_t events);
/* After every turn of events: what is due, and the memory of what was closed. */
void wefti_relay_tick(wefti_relay *r);
void wefti_relay_end(wefti_relay *r);

#endif /* WEFT_TRANSPORT_IPC_RELAY_H */
