/* weight_slots.h -- private to weight_store.c and weight_pin.c: how the store lies in
 * memory. Not here: anything that others may rely on. */
#ifndef WEFT_ACTORS_WEIGHT_SLOTS_H
#define WEFT_ACTORS_WEIGHT_SLOTS_H

#include "weight_store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
  SLOTS_MAX = 16,
  SLOTS_DEFAULT = 4,
  SLOTS_MIN = 2, /* the default and the one beside it */
  SLOT_BITS = 8,
  SLOT_MASK = 0xff,
  SLOT_NONE = 0xff, /* nothing is published: NOT_YET */
  SLOT_HELD = 0xfe  /* readers are not served: UNAVAIL */
};

#define SLOT_CLOSED (1U << 31) /* in refs, for a moment: the snapshot is taken out */

/* Why the default is not served. */
enum {
  HOLD_BEHIND = 1, /* it is not what the engine has published */
  HOLD_PAUSE = 2,  /* an in-place update is open */
  HOLD_DIRTY = 4   /* its bytes were, or are, written over */
};

typedef enum slot_state {
  SLOT_FREE,
  SLOT_INSTALLED,
  SLOT_DEFAULT,
  SLOT_RETIRED
} slot_state;

typedef struct snap {
  weft_snapshot pub; /* first: readers hold its address */
  unsigned slot;
  wefti_cell **cells; /* [tensor_count] */
  weft_tensor tensors[];
} snap;

/* One snapshot's place.  A cache line of its own, so that readers of one do not slow
 * those of another. */
typedef struct slot {
  /* Readers, and 1 for the store while INSTALLED or DEFAULT.  A reader that lost a race
   * adds and takes back at any time, also on a FREE slot; it then looks at nothing else.
   * seq_cst: see pin_default. */
  _Alignas(64) atomic_uint refs;
  /* What readers may pin it as; 0 = not by number.  seq_cst: see pin_exact. */
  _Atomic uint64_t sequence;
  /* How many of the readers are mappings of the process that started this one.  Relaxed:
   * a number for people. */
  atomic_uint mapped;
  snap *snap;       /* written under lock while no reader can get here */
  slot_state state; /* under lock, as is the rest */
  uint64_t epoch;
} slot;

struct weft_store {
  /* generation << SLOT_BITS | slot.  Changes with every publish and is never the same
   * twice, so a reader that sees it unchanged knows that its slot was not reused. */
  _Alignas(64) _Atomic uint64_t current;
  /* CLOCK_BOOTTIME until which readers are served.  Relaxed: it carries no data. */
  _Atomic uint64_t grant_until_ns;
  wefti_clock_fn *clock;
  void *clock_arg;
  /* Writers only, under lock; changed no more often than current. */
  uint64_t newest; /* the default's sequence, 0 = none */
  uint64_t dirty;  /* of HOLD_DIRTY: the newest epoch that wrote over the default */
  unsigned slot_count;
  unsigned live; /* the default's slot, or SLOT_NONE */
  unsigned held; /* HOLD_…: why readers are not served; 0 = they are */
  bool needs_grant;
  slot slots[SLOTS_MAX];
  pthread_mutex_t lock; /* writers only */
};

/* One reader, or the store itself, less. */
void wefti_slot_leave(slot *s);
uint64_t wefti_boottime_ns(void *arg); /* arg unused; CLOCK_BOOTTIME */

#endif /* WEFT_ACTORS_WEIGHT_SLOTS_H */
