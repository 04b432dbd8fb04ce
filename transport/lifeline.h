/* lifeline.h -- one end of a SOCK_SEQPACKET pair on a loop: bounded messages with
 * descriptors.  Not the process behind it (process.c). */
#ifndef WEFT_TRANSPORT_LIFELINE_H
#define WEFT_TRANSPORT_LIFELINE_H

#include "weft/process.h"

#include <stdbool.h>

typedef struct wefti_line {
  int fd; /* -1: closed */
  weft_io *io;
  weft_lifeline_fn *on_message;
  weft_call_fn *on_closed; /* may be NULL */
  void *arg;
  bool *gone; /* set while a callback runs: becomes true when the line is closed in it */
} wefti_line;

/* fd, ours from now on also on error, must be non-blocking.  line has the callbacks set.
 */
weft_err wefti_line_open(wefti_line *line, weft_loop *loop, int fd) WEFT_MUST_USE;
weft_err wefti_line_send(wefti_line *line, const void *data, size_t len, const int *fds,
                         size_t nfds) WEFT_MUST_USE;
/* Takes what has arrived, at most max messages.  false = the line was closed meanwhile,
 * perhaps together with the memory it is in. */
bool wefti_line_drain(wefti_line *line, unsigned max);
void wefti_line_close(wefti_line *line);

#endif /* WEFT_TRANSPORT_LIFELINE_H */
