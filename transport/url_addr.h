/* url_addr.h -- the socket addresses of ipc:// and tcp:// URLs, as nng reads them.  Not
 * the sockets. */
#ifndef WEFT_TRANSPORT_URL_ADDR_H
#define WEFT_TRANSPORT_URL_ADDR_H

#include "weft/err.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { WEFTI_ADDRS_MAX = 8 };

typedef struct wefti_addr {
  union {
    struct sockaddr any;
    struct sockaddr_un un;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
  } sa;
  socklen_t len;
} wefti_addr;

typedef struct wefti_addrs {
  wefti_addr at[WEFTI_ADDRS_MAX];
  size_t count; /* 0: host is a name that is not resolved yet */
  bool named;
  char host[256], port[8];
} wefti_addrs;

/* Does not wait.  Errors: INVAL. */
weft_err wefti_addrs_parse(const char *url, wefti_addrs *out, weft_why *why)
    WEFT_MUST_USE;
/* Waits for name servers.  false: the name has no address. */
bool wefti_addrs_resolve(wefti_addrs *a);

/* Of a tcp socket; nothing for others. */
void wefti_addr_no_delay(int fd);

#endif /* WEFT_TRANSPORT_URL_ADDR_H */
