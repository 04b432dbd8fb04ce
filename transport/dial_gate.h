/* dial_gate.h -- stands between an nng dialer and the peer it dials: a thread to which
 * nng connects in its stead, that connects to the peer and carries bytes.  Knows nothing
 * of what is said.
 *
 * Why: nng 1.5.2 submits a frame in parts (its head and its body when it reads, what went
 * into the socket's buffer and the rest when it writes).  When the connection is closed
 * between two parts, by the peer's end or by us, the second one is neither refused nor
 * done, and nng's only reaper thread waits for it for ever: nothing in the process gives
 * back a descriptor any more.  So nng's connection ends only when nothing has moved on it
 * for a while, whatever becomes of the peer's. */
#ifndef WEFT_TRANSPORT_DIAL_GATE_H
#define WEFT_TRANSPORT_DIAL_GATE_H

#include "weft/err.h"

#include <nng/nng.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct wefti_dialed wefti_dialed;

/* Starts connecting sock to url, which goes on by itself; once: not again after a
 * connection that came about.  *out is NULL for inproc, which has no use for a gate.
 * Errors: INVAL (address), SYS, NOMEM. */
weft_err wefti_dial(nng_socket sock, const char *url, bool once, wefti_dialed **out,
                    weft_why *why) WEFT_MUST_USE;
/* Until the peer was connected to, or was not for the first time.  0, an errno value
 * (ETIMEDOUT also when it is not known yet), or -1: the name has no address. */
int wefti_dial_wait(wefti_dialed *d, uint64_t timeout_ms);
/* The peer hears nothing more when this returns.  Then, on another thread: closes sock,
 * calls after(arg) (may be NULL) and frees d.  d NULL: as wefti_close. */
void wefti_hang_up(wefti_dialed *d, nng_socket sock, void (*after)(void *arg), void *arg);

#endif /* WEFT_TRANSPORT_DIAL_GATE_H */
