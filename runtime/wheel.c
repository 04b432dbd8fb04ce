#include "wheel.h"

#include <string.h>

static void list_init(wefti_wlink *head)
{
  head->next = head;
  head->prev = head;
}

static bool list_empty(const wefti_wlink *head)
{
  return head->next == head;
}

static void list_unlink(wefti_wlink *link)
{
  link->prev->next = link->next;
  link->next->prev = link->prev;
  link->next = NULL;
  link->prev = NULL;
}

static wefti_wnode *node_of(wefti_wlink *link)
{
  return (wefti_wnode *)link; /* link is the first member */
}

void wefti_wheel_init(wefti_wheel *w, uint64_t now_ms)
{
  w->now_ms = now_ms;
  list_init(&w->expired);
  memset(w->used, 0, sizeof w->used);
  for (unsigned l = 0; l < WEFTI_WHEEL_LEVELS; l++) {
    for (unsigned i = 0; i < WEFTI_WHEEL_SLOTS; i++) {
      list_init(&w->slots[l][i]);
    }
  }
}

/* Slots of one level that now passes: (from, to], in absolute slot numbers. */
static uint64_t passed(uint64_t from, uint64_t to)
{
  if (to - from >= WEFTI_WHEEL_SLOTS) {
    return UINT64_MAX;
  }
  const unsigned count = (unsigned)(to - from);
  const unsigned first = (unsigned)(from + 1) & (WEFTI_WHEEL_SLOTS - 1u);
  const uint64_t run = (1ull << count) - 1u; /* count < 64 */
  return first == 0 ? run : (run << first) | (run >> (WEFTI_WHEEL_SLOTS - first));
}

/* Moves the nodes of the slots in mask to todo, earliest slot first. */
static void collect(wefti_wheel *w, unsigned level, uint64_t mask, wefti_wlink *todo)
{
  uint64_t hit = w->used[level] & mask;
  w->used[level] &= ~mask;
  while (hit != 0) {
    const unsigned slot = (unsigned)__builtin_ctzll(hit);
    hit &= hit - 1;
    wefti_wlink *head = &w->slots[level][slot];
    while (!list_empty(head)) {
      wefti_wlink *link = head->next;
      list_unlink(link);
      wefti_wlink_append(todo, link);
    }
  }
}

/* Puts an expired node behind those that were due no later; the list is short or the
 * nodes come nearly in order. */
static void add_expired(wefti_wheel *w, wefti_wnode *node)
{
  wefti_wlink *at = w->expired.prev;
  while (at != &w->expired && node_of(at)->due_ms > node->due_ms) {
    at = at->prev;
  }
  node->level = WEFTI_WHEEL_EXPIRED;
  node->link.prev = at;
  node->link.next = at->next;
  at->next->prev = &node->link;
  at->next = &node->link;
}

void wefti_wheel_advance(wefti_wheel *w, uint64_t now_ms)
{
  if (now_ms <= w->now_ms) {
    return;
  }
  wefti_wlink todo;
  list_init(&todo);
  for (unsigned l = 0; l < WEFTI_WHEEL_LEVELS; l++) {
    const uint64_t from = w->now_ms >> (l * WEFTI_WHEEL_BITS);
    const uint64_t to = now_ms >> (l * WEFTI_WHEEL_BITS);
    if (from == to) {
      break;
    }
    collect(w, l, passed(from, to), &todo);
  }
  w->now_ms = now_ms;
  while (!list_empty(&todo)) {
    wefti_wnode *node = node_of(todo.next);
    list_unlink(&node->link);
    if (node->due_ms <= now_ms) {
      add_expired(w, node);
    } else {
      wefti_wheel_add(w, node, node->due_ms);
    }
  }
}

wefti_wnode *wefti_wheel_pop(wefti_wheel *w)
{
  if (list_empty(&w->expired)) {
    return NULL;
  }
  wefti_wlink *link = w->expired.next;
  list_unlink(link);
  return node_of(link);
}

uint64_t wefti_wheel_next(const wefti_wheel *w)
{
  if (!list_empty(&w->expired)) {
    return w->now_ms;
  }
  for (unsigned l = 0; l < WEFTI_WHEEL_LEVELS; l++) {
    if (w->used[l] == 0) {
      continue;
    }
    const uint64_t slot = (uint64_t)__builtin_ctzll(w->used[l]);
    const unsigned shift = l * WEFTI_WHEEL_BITS;
    const unsigned above = shift + WEFTI_WHEEL_BITS;
    const uint64_t base = above >= 64 ? 0 : (w->now_ms >> above) << above;
    return base | (slot << shift);
  }
  return WEFTI_WHEEL_NEVER;
}
