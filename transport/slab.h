/* slab.h -- one slab of host memory: a sealed memfd that readers of other processes may
 * map, its pages, and the mark in its last one (weft_slab_mark).  Not here: which extents
 * lie in it and how much there may be of all (memory_host.c); locking. */
#ifndef WEFT_TRANSPORT_SLAB_H
#define WEFT_TRANSPORT_SLAB_H

#include "weft/err.h"

#include <stdbool.h>
#include <stdint.h>

#define WEFTI_SLAB_GRANULE                                                               \
  (UINT64_C(64) << 10) /* pages are taken and tracked in these                           \
                        */

typedef struct wefti_slab {
  uint32_t id;
  int fd;
  uint8_t *base;
  uint64_t bytes;     /* that extents are cut from; the mark's page follows */
  uint64_t backed;    /* bytes */
  uint8_t granules[]; /* [bytes / GRANULE] 1 = has pages; kept by the caller */
} wefti_slab;

/* Without pages but the mark's.  bytes: a multiple of the granule.  Errors: LIMIT, NOMEM,
 * SYS. */
weft_err wefti_slab_open(uint32_t id, uint64_t bytes, wefti_slab **out, weft_why *why)
    WEFT_MUST_USE;
void wefti_slab_close(wefti_slab *s);
/* Makes the pages be there, as an error and not as a signal at the first touch. */
weft_err wefti_slab_take(wefti_slab *s, uint64_t at, uint64_t len, weft_why *why)
    WEFT_MUST_USE;
/* Gives them back; they read as zeros.  false: they are still there. */
bool wefti_slab_give(wefti_slab *s, uint64_t at, uint64_t len);

#endif /* WEFT_TRANSPORT_SLAB_H */
