/* memory_room.h -- whether this machine, and the cgroups that this process is in, still
 * have memory to give.  Asked before pages of shared memory are taken: the kernel answers
 * their lack with a kill and not with an error.  Not a reservation. */
#ifndef WEFT_TRANSPORT_MEMORY_ROOM_H
#define WEFT_TRANSPORT_MEMORY_ROOM_H

#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Are bytes more to be had?  root: what /proc and /sys are under, "" but in tests.
 * Errors: NOMEM.  OK where the kernel does not say. */
weft_err wefti_memory_room(const char *root, uint64_t bytes, weft_why *why) WEFT_MUST_USE;

/* ---- parts; a text that is not as the kernel writes it tells nothing */

/* MemAvailable and SwapFree of a /proc/meminfo; UINT64_MAX when it does not tell. */
uint64_t wefti_meminfo_room(const char *text, size_t len);

/* The path of a /proc/PID/cgroup in the unified hierarchy, or with v1 in the one that has
 * the memory controller: "" is the root, else "/a/b".  false: none that fits into out. */
bool wefti_cgroup_path(const char *text, size_t len, bool v1, char *out, size_t cap);

/* "123\n", or "max\n" = UINT64_MAX. */
bool wefti_cgroup_number(const char *text, size_t len, uint64_t *out);

/* The row "name 123\n" of a memory.stat; 0 when there is none. */
uint64_t wefti_cgroup_stat(const char *text, size_t len, const char *name);

#endif /* WEFT_TRANSPORT_MEMORY_ROOM_H */
