/* lend.h -- private to actors/.  Weights in host memory, from one rank's process to
 * another's over TCP: what a worker process puts into wefti_device.lender.  Not here: who
 * may lend what to whom (engine_lend.c), whether it is what was asked for
 * (device_fetch.c). */
#ifndef WEFT_ACTORS_LEND_H
#define WEFT_ACTORS_LEND_H

#include "device.h"

/* Without a byte that moves, either side gives a loan up: the other one's machine may be
 * gone, which a connection does not tell. */
enum { LEND_QUIET_MS = 10000 };

typedef struct wefti_lending wefti_lending;

/* Lets device lend and take, if its weights lie in host memory; otherwise *out is NULL
 * and it does neither.  Before the actors run; destroyed after they ended, before device.
 */
weft_err wefti_lending_create(wefti_device *device, wefti_lending **out) WEFT_MUST_USE;
void wefti_lending_destroy(wefti_lending *l); /* NULL is a no-op */

wefti_device *wefti_lending_device(const wefti_lending *l);

/* wefti_lender.take; arg is a wefti_lending. */
weft_err wefti_lend_take(void *arg, const weft_buf *info, uint32_t timeout_ms,
                         wefti_entry **entries, size_t *count, weft_why *why)
    WEFT_MUST_USE;

#endif /* WEFT_ACTORS_LEND_H */
