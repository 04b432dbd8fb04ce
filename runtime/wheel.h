/* wheel.h -- due times of one loop: a hierarchical timing wheel with O(1) insert and
 * remove and no clock of its own.  Not a timer API (weft/actor.h and weft/loop.h are). */
#ifndef WEFT_RUNTIME_WHEEL_H
#define WEFT_RUNTIME_WHEEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wefti_wlink {
  struct wefti_wlink *next, *prev;
} wefti_wlink;

/* Embedded in whatever waits.  All zero = not in the wheel. */
typedef struct wefti_wnode {
  wefti_wlink link;
  uint64_t due_ms;
  void (*fire)(struct wefti_wnode *node); /* already out of the wheel */
  uint8_t level, slot;
} wefti_wnode;

enum { WEFTI_WHEEL_BITS = 6, WEFTI_WHEEL_SLOTS = 64, WEFTI_WHEEL_LEVELS = 11 };

/* Level l keeps what shares all bits above 6 * (l + 1) with now, so an occupied slot is
 * always ahead of now's own and the lowest occupied level holds the earliest. */
typedef struct wefti_wheel {
  uint64_t now_ms;
  wefti_wlink expired;
  uint64_t used[WEFTI_WHEEL_LEVELS];
  wefti_wlink slots[WEFTI_WHEEL_LEVELS][WEFTI_WHEEL_SLOTS];
} wefti_wheel;

#define WEFTI_WHEEL_NEVER UINT64_MAX

void wefti_wheel_init(wefti_wheel *w, uint64_t now_ms);
/* Moves what is due at now_ms (never backwards) to the expired list, in order of due. */
void wefti_wheel_advance(wefti_wheel *w, uint64_t now_ms);
/* Takes one expired node out; NULL = none. */
wefti_wnode *wefti_wheel_pop(wefti_wheel *w);
/* No node is due before this; may be early for far ones (advance then sorts them in).
 * WEFTI_WHEEL_NEVER = empty. */
uint64_t wefti_wheel_next(const wefti_wheel *w);

static inline bool wefti_wnode_waits(const wefti_wnode *node)
{
  return node->link.next != NULL;
}

/* The two that each question pays for are inline. */
enum { WEFTI_WHEEL_EXPIRED = 0xff }; /* level of nodes in the expired list */

static inline void wefti_wlink_append(wefti_wlink *head, wefti_wlink *link)
{
  link->prev = head->prev;
  link->next = head;
  head->prev->next = link;
  head->prev = link;
}

static inline void wefti_wheel_add(wefti_wheel *w, wefti_wnode *node, uint64_t due_ms)
{
  node->due_ms = due_ms;
  if (due_ms <= w->now_ms) {
    node->level = WEFTI_WHEEL_EXPIRED;
    wefti_wlink_append(&w->expired, &node->link);
    return;
  }
  const unsigned bit = 63u - (unsigned)__builtin_clzll(due_ms ^ w->now_ms);
  const unsigned level = bit / WEFTI_WHEEL_BITS;
  const unsigned slot =
      (unsigned)(due_ms >> (level * WEFTI_WHEEL_BITS)) & (WEFTI_WHEEL_SLOTS - 1u);
  node->level = (uint8_t)level;
  node->slot = (uint8_t)slot;
  w->used[level] |= 1ull << slot;
  wefti_wlink_append(&w->slots[level][slot], &node->link);
}

/* Fine when it is not in the wheel. */
static inline void wefti_wheel_remove(wefti_wheel *w, wefti_wnode *node)
{
  wefti_wlink *next = node->link.next;
  if (next == NULL) {
    return;
  }
  wefti_wlink *prev = node->link.prev;
  prev->next = next;
  next->prev = prev;
  node->link.next = NULL;
  node->link.prev = NULL;
  if (prev == next && node->level != WEFTI_WHEEL_EXPIRED) { /* the slot's head alone */
    w->used[node->level] &= ~(1ull << node->slot);
  }
}

#endif /* WEFT_RUNTIME_WHEEL_H */
