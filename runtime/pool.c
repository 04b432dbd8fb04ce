#include "pool.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 16 * 1024, BLOCK_HEAD = 64 };

#if defined(__SANITIZE_ADDRESS__)
#define POOL_BYPASS true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POOL_BYPASS true
#endif
#endif
#ifndef POOL_BYPASS
#define POOL_BYPASS false
#endif

_Static_assert(sizeof(wefti_pool_block) <= BLOCK_HEAD, "head of a block");

void wefti_pool_init(wefti_pool *pool, unsigned loop)
{
  memset(pool->free, 0, sizeof pool->free);
  pool->blocks = NULL;
  pool->tag = loop + 1;
  pool->bypass = POOL_BYPASS;
  atomic_init(&pool->returned, NULL);
}

void wefti_pool_fini(wefti_pool *pool)
{
  while (pool->blocks != NULL) {
    wefti_pool_block *b = pool->blocks;
    pool->blocks = b->next;
    free(b);
  }
  memset(pool->free, 0, sizeof pool->free);
}

/* Sorts what other loops gave back into the free lists. */
static void take_returned(wefti_pool *pool)
{
  weft_msg *m = atomic_exchange_explicit(&pool->returned, NULL, memory_order_acquire);
  while (m != NULL) {
    weft_msg *next = m->next;
    wefti_pool_put(pool, m);
    m = next;
  }
}

static void add_block(wefti_pool *pool, unsigned cls)
{
  const size_t size = (size_t)WEFTI_POOL_MIN << cls;
  wefti_pool_block *b = aligned_alloc(64, BLOCK_BYTES);
  if (b == NULL) {
    return;
  }
  b->next = pool->blocks;
  pool->blocks = b;
  const uint32_t units = (uint32_t)(size / WEFTI_HOME_SIZE_UNIT);
  uint8_t *base = (uint8_t *)b + BLOCK_HEAD;
  size_t at = (BLOCK_BYTES - BLOCK_HEAD) / size * size;
  while (at != 0) { /* from the end, so that the list starts at the front */
    at -= size;
    weft_msg *m = (weft_msg *)(void *)(base + at);
    m->home =
        pool->tag | (cls << WEFTI_HOME_CLASS_SHIFT) | (units << WEFTI_HOME_SIZE_SHIFT);
    m->next = pool->free[cls];
    pool->free[cls] = m;
  }
}

weft_msg *wefti_pool_refill(wefti_pool *pool, size_t size)
{
  if (size > WEFTI_POOL_MAX || pool->bypass) {
    return wefti_msg_heap(0, size);
  }
  const unsigned cls = wefti_pool_class(size);
  take_returned(pool);
  if (pool->free[cls] == NULL) {
    add_block(pool, cls);
  }
  weft_msg *m = pool->free[cls];
  if (m != NULL) {
    pool->free[cls] = m->next;
  }
  return m;
}

void wefti_pool_return(wefti_pool *pool, weft_msg *first, weft_msg *last)
{
  weft_msg *head = atomic_load_explicit(&pool->returned, memory_order_relaxed);
  do {
    last->next = head;
  } while (!atomic_compare_exchange_weak_explicit(
      &pool->returned, &head, first, memory_order_release, memory_order_relaxed));
}
