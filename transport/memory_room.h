/* memory_room.h -- whether this machine still has memory to give.  Asked before pages of
 * shared memory are taken: the kernel answers their lack with a kill and not with an
 * error.  Not a reservation, and blind to the limit of a cgroup. */
#ifndef WEFT_TRANSPORT_MEMORY_ROOM_H
#define WEFT_TRANSPORT_MEMORY_ROOM_H

#include "weft/err.h"

#include <stddef.h>
#include <stdint.h>

/* Are bytes more to be had?  Errors: NOMEM.  OK where the kernel does not say. */
weft_err wefti_memory_room(uint64_t bytes, weft_why *why) WEFT_MUST_USE;

/* MemAvailable and SwapFree of a /proc/meminfo; UINT64_MAX when it does not tell. */
uint64_t wefti_meminfo_room(const char *text, size_t len);

#endif /* WEFT_TRANSPORT_MEMORY_ROOM_H */
