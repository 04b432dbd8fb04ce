/* listen_gate.h -- stands before an nng listener: a thread that accepts on the public
 * address, checks each greeting and carries bytes to nng's own path and back.  Knows
 * nothing of what is said after the greeting.
 *
 * Why: what dial_gate.h says of closed connections, and an ipc listener of nng 1.5.2
 * never accepts again, and keeps every later connection open for ever, once a peer has
 * gone before nng's greeting could be written to it (nng issue 1518); a client killed at
 * the wrong moment is enough.  Closing that listener and listening anew would cut off
 * every peer it has, questions under way included.  So nng never meets a peer of either
 * kind: its only peer is the gate, which has said its greeting, does not hang up before
 * it has nng's, and then only when nothing moves. */
#ifndef WEFT_TRANSPORT_LISTEN_GATE_H
#define WEFT_TRANSPORT_LISTEN_GATE_H

#include "weft/err.h"

#include <nng/nng.h>

typedef struct wefti_gate wefti_gate;

/* Binds url (an ipc path with mode 0600), where clients wait from now on; nng is to
 * listen on the path inner.  A client that reads nothing of what waits for it for
 * stall_ms is hung up on; 0 = never.  Errors: INVAL (address), DENIED, EXISTS, SYS,
 * NOMEM. */
weft_err wefti_gate_bind(const char *url, const char *inner, unsigned stall_ms,
                         wefti_gate **out, weft_why *why) WEFT_MUST_USE;
unsigned wefti_gate_port(const wefti_gate *gate); /* of tcp, as bound */
/* Once nng listens.  Errors: SYS. */
weft_err wefti_gate_start(wefti_gate *gate, weft_why *why) WEFT_MUST_USE;
/* Passes on what nng has written, as far as that goes without waiting; peers hear nothing
 * more when this returns, and neither path is taken.  Then, on another thread: closes
 * sock, calls after(arg) (may be NULL) and frees gate. */
void wefti_gate_close(wefti_gate *gate, nng_socket sock, void (*after)(void *arg),
                      void *arg);
/* Of one that was not started.  NULL is a no-op. */
void wefti_gate_destroy(wefti_gate *gate);

#endif /* WEFT_TRANSPORT_LISTEN_GATE_H */
