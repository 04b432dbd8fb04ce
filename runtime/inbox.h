/* inbox.h -- the one way into a loop from other threads: a lock-free stack of message
 * chains that its owner empties at once, and the flag that says whether to wake it.
 * Not an actor's mailbox (scheduler.h). */
#ifndef WEFT_RUNTIME_INBOX_H
#define WEFT_RUNTIME_INBOX_H

#include "weft/msg.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct wefti_inbox {
  /* Newest first.  Pushers: seq_cst exchange after their stores to the messages, pairs
   * with the owner's exchange in take.  Points to the inbox itself when closed. */
  _Alignas(64) weft_msg *_Atomic head;
  /* Set by the owner before it looks at head for the last time and blocks; cleared by the
   * one pusher that then wakes it.  Both sides seq_cst: either the pusher sees idle or
   * the owner sees the message. */
  _Alignas(64) atomic_bool idle;
  void (*wake)(void *arg);
  void *wake_arg;
} wefti_inbox;

static inline weft_msg *wefti_inbox_closed_mark(wefti_inbox *box)
{
  return (weft_msg *)(void *)box;
}

static inline void wefti_inbox_init(wefti_inbox *box)
{
  atomic_init(&box->head, NULL);
  atomic_init(&box->idle, false);
  box->wake = NULL;
  box->wake_arg = NULL;
}

static inline void wefti_inbox_wake(wefti_inbox *box)
{
  if (atomic_load_explicit(&box->idle, memory_order_seq_cst) &&
      atomic_exchange_explicit(&box->idle, false, memory_order_seq_cst)) {
    box->wake(box->wake_arg);
  }
}

/* Any thread.  The chain runs from newest to oldest.  false = closed, nothing
 * taken, and the chain ends where it did. */
static inline bool wefti_inbox_push(wefti_inbox *box, weft_msg *newest, weft_msg *oldest)
{
  weft_msg *head = atomic_load_explicit(&box->head, memory_order_relaxed);
  do {
    if (head == wefti_inbox_closed_mark(box)) {
      oldest->next = NULL; /* a try before this one led to messages of others */
      return false;
    }
    oldest->next = head;
  } while (!atomic_compare_exchange_weak_explicit(
      &box->head, &head, newest, memory_order_seq_cst, memory_order_relaxed));
  wefti_inbox_wake(box);
  return true;
}

static inline bool wefti_inbox_waiting(wefti_inbox *box)
{
  return atomic_load_explicit(&box->head, memory_order_seq_cst) != NULL;
}

/* Turns a taken chain into oldest first. */
static inline weft_msg *wefti_inbox_reverse(weft_msg *m)
{
  weft_msg *out = NULL;
  while (m != NULL) {
    weft_msg *next = m->next;
    m->next = out;
    out = m;
    m = next;
  }
  return out;
}

/* Owner, while open.  All that is there, oldest first. */
static inline weft_msg *wefti_inbox_take(wefti_inbox *box)
{
  if (atomic_load_explicit(&box->head, memory_order_relaxed) == NULL) {
    return NULL;
  }
  return wefti_inbox_reverse(
      atomic_exchange_explicit(&box->head, NULL, memory_order_acquire));
}

/* Owner.  No push succeeds from now on; returns what was left, oldest first. */
static inline weft_msg *wefti_inbox_close(wefti_inbox *box)
{
  weft_msg *m = atomic_exchange_explicit(&box->head, wefti_inbox_closed_mark(box),
                                         memory_order_seq_cst);
  return m == wefti_inbox_closed_mark(box) ? NULL : wefti_inbox_reverse(m);
}

#endif /* WEFT_RUNTIME_INBOX_H */
