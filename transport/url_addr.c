#define _GNU_SOURCE
#include "url_addr.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool find(wefti_addrs *a, int flags)
{
  const struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_flags = AI_NUMERICSERV | flags };
  struct addrinfo *list = NULL;
  const bool any = a->host[0] == '\0' || strcmp(a->host, "*") == 0;
  a->count = 0;
  if (getaddrinfo(any ? "0.0.0.0" : a->host, a->port, &hints, &list) != 0) {
    return false;
  }
  for (const struct addrinfo *i = list; i != NULL && a->count < WEFTI_ADDRS_MAX;
       i = i->ai_next) {
    wefti_addr *to = &a->at[a->count];
    if (i->ai_addrlen <= sizeof to->sa) {
      memcpy(&to->sa, i->ai_addr, i->ai_addrlen);
      to->len = i->ai_addrlen;
      a->count++;
    }
  }
  freeaddrinfo(list);
  return a->count > 0;
}

static bool split(const char *rest, wefti_addrs *out)
{
  const char *colon = strrchr(rest, ':');
  if (colon == NULL) {
    return false;
  }
  size_t len = (size_t)(colon - rest);
  if (len >= 2 && rest[0] == '[' && rest[len - 1] == ']') {
    rest++;
    len -= 2;
  } else if (memchr(rest, ':', len) != NULL) {
    return false;
  }
  const size_t digits = strspn(colon + 1, "0123456789");
  if (len >= sizeof out->host || digits == 0 || digits > 5 || colon[1 + digits] != '\0') {
    return false;
  }
  const unsigned long port = strtoul(colon + 1, NULL, 10);
  if (port > 65535) {
    return false;
  }
  memcpy(out->host, rest, len);
  out->host[len] = '\0';
  (void)snprintf(out->port, sizeof out->port, "%lu", port);
  return true;
}

weft_err wefti_addrs_parse(const char *url, wefti_addrs *out, weft_why *why)
{
  static const char ipc[] = "ipc://";
  static const char tcp[] = "tcp://";
  *out = (wefti_addrs){ .count = 0 };
  if (strncmp(url, ipc, sizeof ipc - 1) == 0) {
    const char *path = url + sizeof ipc - 1;
    const size_t len = strlen(path);
    struct sockaddr_un *un = &out->at[0].sa.un;
    if (len == 0 || len >= sizeof un->sun_path) {
      return weft_whyf(why, WEFT_E_INVAL,
                       "ipc path %s: longer than a socket address allows", path);
    }
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, path, len + 1);
    out->at[0].len = sizeof *un;
    out->count = 1;
    return WEFT_OK;
  }
  if (strncmp(url, tcp, sizeof tcp - 1) != 0 || !split(url + sizeof tcp - 1, out)) {
    return weft_whyf(why, WEFT_E_INVAL, "address \"%s\": want tcp://HOST:PORT", url);
  }
  out->named = !find(out, AI_NUMERICHOST);
  return WEFT_OK;
}

bool wefti_addrs_resolve(wefti_addrs *a)
{
  return find(a, 0);
}

void wefti_addr_no_delay(int fd)
{
  const int one = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}
