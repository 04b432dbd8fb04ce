/* pool.h -- message memory of one loop: size classes, no lock.  Messages that another
 * loop frees come back in chains.  Not for state or I/O buffers. */
#ifndef WEFT_RUNTIME_POOL_H
#define WEFT_RUNTIME_POOL_H

#include "msg_pack.h"
#include "weft/msg.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  WEFTI_POOL_CLASSES = 5, /* 64, 128, 256, 512, 1024 bytes; larger ones are heap */
  WEFTI_POOL_MIN = 64,
  WEFTI_POOL_MAX = 1024
};

typedef struct wefti_pool_block {
  struct wefti_pool_block *next;
} wefti_pool_block;

/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): lines of their own */
typedef struct wefti_pool {
  weft_msg *free[WEFTI_POOL_CLASSES];
  wefti_pool_block *blocks;
  uint32_t tag; /* loop + 1 */
  bool bypass;  /* every message from the heap, so that ASan sees misuse */
  /* Chains freed elsewhere.  Other loops push (release), the owner takes all (acquire),
   * so there is no ABA. */
  _Alignas(64) weft_msg *_Atomic returned;
} wefti_pool;

void wefti_pool_init(wefti_pool *pool, unsigned loop);
/* Frees all memory; messages of this pool must not be used any more. */
void wefti_pool_fini(wefti_pool *pool);
/* Not zeroed but for the header, in which home is set.  NULL = out of memory. */
weft_msg *wefti_pool_refill(wefti_pool *pool, size_t size);
/* Any thread: a chain (first .. last) of this pool's messages. */
void wefti_pool_return(wefti_pool *pool, weft_msg *first, weft_msg *last);

static inline unsigned wefti_pool_class(size_t size)
{
  return size <= WEFTI_POOL_MIN
             ? 0
             : (unsigned)(58 - __builtin_clzll((unsigned long long)(size - 1)));
}

/* Owner. */
static inline weft_msg *wefti_pool_get(wefti_pool *pool, size_t size)
{
  if (size <= WEFTI_POOL_MAX) {
    const unsigned cls = wefti_pool_class(size);
    weft_msg *m = pool->free[cls];
    if (m != NULL) {
      pool->free[cls] = m->next;
      return m;
    }
  }
  return wefti_pool_refill(pool, size);
}

/* Owner; msg is of this pool. */
static inline void wefti_pool_put(wefti_pool *pool, weft_msg *msg)
{
  const unsigned cls = (msg->home >> WEFTI_HOME_CLASS_SHIFT) & WEFTI_HOME_CLASS_MASK;
  msg->next = pool->free[cls];
  pool->free[cls] = msg;
}

#endif /* WEFT_RUNTIME_POOL_H */
