/* tcpstore_resolve.h -- getaddrinfo off the loop.  Not a cache. */
#ifndef WEFT_TRANSPORT_TCPSTORE_RESOLVE_H
#define WEFT_TRANSPORT_TCPSTORE_RESOLVE_H

#include "weft/err.h"
#include "weft/loop.h"

#include <netdb.h>

typedef struct wefti_resolve wefti_resolve;
/* On the loop.  rc: of getaddrinfo.  Takes list (freeaddrinfo), NULL unless rc is 0. */
typedef void wefti_resolve_fn(void *arg, int rc, struct addrinfo *list);

/* fn is called once, later; the wefti_resolve is gone by then.  Errors: NOMEM, SYS. */
weft_err wefti_resolve_start(weft_loop *loop, const char *host, uint16_t port,
                             wefti_resolve_fn *fn, void *arg, wefti_resolve **out)
    WEFT_MUST_USE;
/* fn will not be called.  Does not wait for the thread.  NULL is a no-op. */
void wefti_resolve_cancel(wefti_resolve *r);

#endif /* WEFT_TRANSPORT_TCPSTORE_RESOLVE_H */
