#define _GNU_SOURCE /* memmem */
#include "memory_room.h"

#include "weft/checked.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum { MEMINFO_MAX = 4096, KIB = 1024 };

/* false: no such row, or no number of kB in it. */
static bool row(const char *text, size_t len, const char *name, uint64_t *bytes)
{
  const char *end = text + len;
  const char *at = memmem(text, len, name, strlen(name));
  if (at == NULL) {
    return false;
  }
  at += strlen(name);
  while (at < end && *at == ' ') {
    at++;
  }
  const char *digits = at;
  uint64_t v = 0;
  for (; at < end && *at >= '0' && *at <= '9'; at++) {
    if (weft_size_mul(v, 10, &v) != WEFT_OK ||
        weft_size_add(v, (uint64_t)(*at - '0'), &v) != WEFT_OK) {
      return false;
    }
  }
  return at > digits && at < end && weft_size_mul(v, KIB, bytes) == WEFT_OK;
}

uint64_t wefti_meminfo_room(const char *text, size_t len)
{
  uint64_t available;
  uint64_t swap;
  if (!row(text, len, "\nMemAvailable:", &available)) {
    return UINT64_MAX;
  }
  if (!row(text, len, "\nSwapFree:", &swap)) {
    swap = 0;
  }
  return weft_size_add(available, swap, &available) == WEFT_OK ? available : UINT64_MAX;
}

weft_err wefti_memory_room(uint64_t bytes, weft_why *why)
{
  char text[MEMINFO_MAX];
  const int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return WEFT_OK;
  }
  ssize_t n;
  do {
    n = read(fd, text, sizeof text);
  } while (n < 0 && errno == EINTR);
  (void)close(fd);
  const uint64_t left = n > 0 ? wefti_meminfo_room(text, (size_t)n) : UINT64_MAX;
  return bytes <= left ? WEFT_OK
                       : weft_whyf(why, WEFT_E_NOMEM,
                                   "host memory: %" PRIu64
                                   " bytes more are wanted and this machine has %" PRIu64,
                                   bytes, left);
}
