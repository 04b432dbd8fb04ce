/* gate_pairs.h -- the connections of a gate, each a peer's (the client) and the gate's
 * own to nng.  One thread's; not the thread and not what is done with a connection
 * that comes in (listen_gate.c, dial_gate.c), nor the reading and writing of one end
 * (gate_end.c).
 */
#ifndef WEFT_TRANSPORT_GATE_PAIRS_H
#define WEFT_TRANSPORT_GATE_PAIRS_H

#include "sp_frames.h"

#include <stdbool.h>
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
  /* The owner's listening socket, in epoll with the owner as its data. */
  int listener;
  void *owner;
  int64_t paused_until; /* for want of descriptors or memory; 0 = it is not */
  /* Of wefti_relay_await: starts connecting to the peer, -1 = cannot; and what became of
   * that, as an errno value. */
  int (*connect)(void *arg);
  void (*on_connect)(void *arg, int rc);
  void *arg;
  bool tcp;         /* clients speak tcp's way, nng always ipc's */
  int64_t stall_ms; /* patience with a client that does not read; 0 = without end */
  /* Between a read and its write; not zeroed, so that what is not used costs nothing. */
  uint8_t *scratch;    /* [WEFTI_RELAY_CHUNK] */
  uint8_t *translated; /* [WEFTI_SP_ROOM(WEFTI_RELAY_CHUNK)], behind it */
} wefti_relay;

/* Of an all-zero r.  false: no memory, no descriptor; fini also then. */
bool wefti_relay_init(wefti_relay *r);
void wefti_relay_fini(wefti_relay *r);
int64_t wefti_relay_now(void); /* ms, monotonic, never 0 */
/* Sets listener and owner.  false: the kernel has no memory. */
bool wefti_relay_listen(wefti_relay *r, int fd, void *owner);
void wefti_relay_deafen(wefti_relay *r); /* for good */
/* accept failed with rc.  true: the listener pauses, as nothing can be opened now. */
bool wefti_relay_pauses(wefti_relay *r, int rc);
bool wefti_relay_is_short(int rc); /* of an errno value: that there is no room now */
/* Takes fd, also when there is no room for it: then it is closed. */
void wefti_relay_add(wefti_relay *r, int fd);
/* Takes a connection of an nng dialer.  When its greeting is there, connects to the peer.
 */
void wefti_relay_await(wefti_relay *r, int nng);
void wefti_relay_event(wefti_relay *r, wefti_end *end, uint32_t events);
/* After every turn of events: what is due, and the memory of what was closed. */
void wefti_relay_tick(wefti_relay *r);
int wefti_relay_patience(const wefti_relay *r); /* ms, for epoll_wait */
/* The end, on any thread that keeps the owner out: passes on what nng has written, as far
 * as that goes without waiting; and no client hears anything from here on. */
void wefti_relay_farewell(wefti_relay *r);
void wefti_relay_shutdown(wefti_relay *r);
/* Hangs up on all clients and waits until nothing moves on nng's connections; then nng
 * may close them. */
void wefti_relay_hush(wefti_relay *r);
void wefti_relay_end(wefti_relay *r);

#endif /* WEFT_TRANSPORT_GATE_PAIRS_H */
