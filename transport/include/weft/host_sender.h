/* weft/host_sender.h -- the sending end of the host backend's tcp source: hands the
 * tensors of a safetensors file, or of memory, to every worker that comes with the right
 * token.  One blocking call on one thread; not for a loop.  Handshake: weft/transfer.h.
 */
#ifndef WEFT_HOST_SENDER_H
#define WEFT_HOST_SENDER_H

#include "weft/atomics.h"
#include "weft/base.h"
#include "weft/err.h"
#include "weft/safetensors.h"
#include "weft/transfer.h"

#include <stddef.h>
#include <stdint.h>

WEFT_BEGIN_DECLS

typedef struct weft_host_sender weft_host_sender;

typedef struct weft_host_sender_opts {
  size_t size;             /* sizeof(weft_host_sender_opts) */
  const char *host;        /* numeric address to listen on; NULL = "127.0.0.1" */
  unsigned port;           /* 0 = a free one */
  const char *token;       /* at least 16 bytes */
  uint64_t epoch;          /* the only one served; 0 = any */
  unsigned workers;        /* ranks 0 .. workers-1 are served, each once */
  uint64_t no_progress_ms; /* 0 = 120,000 */
  /* Of a fleet: ranks of each replica, of which there are workers / ranks; worker
   * dp_index * ranks + rank is meant then.  0 = one engine has all workers. */
  unsigned ranks;
} weft_host_sender_opts;

/* Listens.  Borrows fd and st until destroy, opts for the call.  All tensors of the file
 * are sent, in file order: update_info must name them so. */
WEFT_API weft_err weft_host_sender_create(const weft_host_sender_opts *opts, int fd,
                                          const weft_safetensors *st,
                                          weft_host_sender **out, weft_why *why)
    WEFT_MUST_USE;
/* One tensor that lies in memory, as readers see it: row-major, little-endian. */
typedef struct weft_host_piece {
  const void *data; /* [bytes]; NULL when bytes == 0 */
  uint64_t bytes;
} weft_host_piece;
/* The same for pieces [count], in the order of update_info's names; borrows them and
 * their bytes until destroy. */
WEFT_API weft_err weft_host_sender_create_memory(const weft_host_sender_opts *opts,
                                                 const weft_host_piece *pieces,
                                                 size_t count, weft_host_sender **out,
                                                 weft_why *why) WEFT_MUST_USE;
/* "host:port" for update_info; valid until destroy. */
WEFT_API const char *weft_host_sender_address(const weft_host_sender *s);
/* Serves all workers at the same time until each has confirmed every byte.  Who comes
 * with a wrong token, epoch, rank or size is told so and turned away.  cancel and
 * progress (sum over the workers) may be NULL.  Errors: CANCELLED, TIMEOUT (nobody moved
 * for no_progress_ms; says who is missing), DOWN (a worker left early), TRUNCATED (the
 * file did), SYS, NOMEM. */
WEFT_API weft_err weft_host_sender_run(weft_host_sender *s, const atomic_bool *cancel,
                                       weft_progress_fn *progress, void *arg,
                                       weft_why *why) WEFT_MUST_USE;
WEFT_API void weft_host_sender_destroy(weft_host_sender *s); /* NULL is a no-op */

WEFT_END_DECLS

#endif /* WEFT_HOST_SENDER_H */
