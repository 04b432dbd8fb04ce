/* scheduler.h -- the actors of one loop: slots, mailboxes, run queue, open questions,
 * timers. The real loop (loop_ev.c) and the seeded one (sim.c) both drive this.  No I/O,
 * no libev, no clock of its own.  All functions: owner thread, unless they say any
 * thread.
 */
#ifndef WEFT_RUNTIME_SCHEDULER_H
#define WEFT_RUNTIME_SCHEDULER_H

#include "inbox.h"
#include "msg_pack.h"
#include "pool.h"
#include "weft/actor.h"
#include "weft/runtime.h"
#include "wheel.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WEFTI_LIKELY(x) __builtin_expect(!!(x), 1)
#define WEFTI_UNLIKELY(x) __builtin_expect(!!(x), 0)

typedef struct wefti_sched wefti_sched;
typedef struct wefti_entry wefti_entry;

/* Messages between loops that no behaviour sees. */
enum {
  WEFTI_MSG_CALL = 0xf800, /* wefti_call_msg */
  WEFTI_MSG_SPAWN,         /* wefti_spawn_msg, on the stack of a waiting thread */
  WEFTI_MSG_MONITOR,       /* weft_down_msg; from = who wants to know, to = about whom */
  WEFTI_MSG_DIED           /* weft_msg: from has ended, its questions are void */
};

typedef struct wefti_call_msg {
  weft_msg h;
  weft_call_fn *fn;
  void *arg;
} wefti_call_msg;

/* ---- identities: loop (8) | generation (24) | slot (32) */
enum { WEFTI_LOOP_OUTSIDE = 0xff }; /* "loop" of threads that wait in weft_call */
#define WEFTI_GEN_MAX 0xffffffu
static inline unsigned wefti_id_loop(weft_actor_id id)
{
  return (unsigned)(id >> 56);
}
static inline uint32_t wefti_id_slot(weft_actor_id id)
{
  return (uint32_t)id;
}
static inline weft_actor_id wefti_id_make(unsigned loop, uint32_t gen, uint32_t slot)
{
  return ((uint64_t)loop << 56) | ((uint64_t)gen << 32) | slot;
}

/* ---- open questions and running timers share one table */
typedef enum wefti_entry_state {
  WEFTI_ENTRY_FREE,
  WEFTI_ENTRY_OPEN,     /* nothing has arrived yet */
  WEFTI_ENTRY_ANSWERED, /* the answer is in the mailbox */
  WEFTI_ENTRY_FIRED,    /* its own message is in the mailbox */
  WEFTI_ENTRY_CANCELLED /* likewise, but nobody wants it any more */
} wefti_entry_state;

struct wefti_entry {
  wefti_wnode node; /* first: the wheel hands out nodes */
  uint64_t key;     /* generation (40) | index (24); question number or timer id */
  weft_ctx *owner;
  wefti_entry *own_next, **own_pprev;   /* all of owner's */
  wefti_entry *peer_next, **peer_pprev; /* all put to one peer */
  weft_actor_id peer;
  uint8_t state;
  bool is_timer;
  bool reserve;   /* from the reserve: memory is short */
  uint16_t asked; /* type of the question */
  union {         /* so that the end of it needs no memory */
    weft_msg h;
    weft_ask_failed_msg failed;
    weft_timer_msg timer;
  } msg;
};

/* ---- actors */
enum {
  WEFTI_A_STOPPING = 1, /* ends after the current message */
  WEFTI_A_ENDING = 2,   /* its end is under way */
  WEFTI_A_MUTED = 4,    /* killed: what its fini sends is lost */
  WEFTI_A_FROZEN = 8,
  WEFTI_A_ROOT = 16,
  WEFTI_A_ASKED_OUTSIDE = 32 /* threads may wait in weft_call for it */
};

/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): lines of their own */
struct weft_ctx {
  wefti_sched *sched;
  const weft_actor_class *cls;
  void *state;
  weft_msg *head, **tail; /* mailbox */
  weft_ctx *run_next;
  bool scheduled; /* in the run queue, or its turn is on */
  uint32_t flags; /* WEFTI_A_* */
  uint32_t batch;
  uint32_t slot, gen;
  uint32_t far_taken; /* consumed of remote, not yet subtracted */
  weft_err reason;
  const char *name;
  wefti_entry *own;   /* questions and timers of this actor */
  wefti_entry *asked; /* questions of this loop put to this actor */
  weft_msg *watchers; /* weft_down_msg, one for each weft_monitor */
  uint32_t watch_count, watch_prune;
  uint64_t asked_loops; /* bit i: a question came from loop i */
  weft_msg *died_notes; /* one for each of those */
  weft_msg *down;       /* for the parent */
  weft_ctx *parent, *child, *sib_next, *sib_prev;
  weft_ctx *free_next;
  /* Read by other threads before they send: id with acquire, pairs with the release store
   * when the actor is ready; the others relaxed. */
  _Alignas(64) _Atomic(weft_actor_id) id; /* 0 = nobody lives here */
  atomic_uint limit;                      /* set before id */
  atomic_uint depth; /* messages of this loop in the mailbox; owner writes */
  /* Messages of other threads on their way or in the mailbox.  Senders add before they
   * push, the owner subtracts in bulk; relaxed, it orders nothing. */
  _Alignas(64) atomic_uint remote;
};

enum { WEFTI_SLOT_CHUNK = 64, WEFTI_SLOT_CHUNKS = 4096 };
enum {
  WEFTI_KEY_INDEX_BITS = 24,
  WEFTI_ENTRY_CHUNK = 64,
  WEFTI_ENTRY_RESERVE = 64,
  WEFTI_FAR_BUCKETS = 64
};
enum { WEFTI_MAILBOX = 1024, WEFTI_BATCH = 64, WEFTI_OUT_MAX = 64, WEFTI_BACK_MAX = 64 };

/* What the simulator hooks in; all NULL on a real loop. */
typedef enum wefti_fate { WEFTI_GO_ON, WEFTI_TAKEN } wefti_fate;
typedef struct wefti_hooks {
  wefti_fate (*on_way)(void *arg, weft_msg *msg); /* TAKEN: the hook owns msg now */
  void (*delivered)(void *arg, const weft_msg *msg);
  uint64_t (*random)(void *arg);
  void (*log)(void *arg, const char *who, weft_log_level level, const char *line);
  bool (*alloc_fails)(void *arg);
  void *arg;
} wefti_hooks;

typedef struct wefti_chain {
  weft_msg *newest, *oldest;
  unsigned count;
} wefti_chain;

/* The first line is written by the owner, the second added to by any thread; all relaxed,
 * they order nothing. */
typedef struct wefti_counters {
  atomic_uint_fast64_t messages, dropped_full, dropped_late, turns, actors;
  atomic_uint_fast64_t refused_outside, late_outside;
} wefti_counters;

/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): lines of their own */
struct wefti_sched {
  unsigned index;
  const wefti_hooks *hooks;
  wefti_pool pool;
  weft_ctx *run_head, **run_tail;
  uint64_t messages; /* delivered; counters.messages lags behind by a batch */
  wefti_entry *entry_free;
  wefti_entry **entry_chunks;
  uint32_t entry_chunk_count, entry_chunk_cap;
  uint64_t out_dirty, back_dirty; /* bit i: loop i */
  wefti_chain out[WEFT_LOOPS_MAX];
  wefti_chain back[WEFT_LOOPS_MAX];
  wefti_sched *const *peers; /* [peer_count], by index */
  unsigned peer_count;
  weft_runtime *rt; /* NULL under the simulator */
  weft_loop *loop;  /* likewise */
  const weft_catalogue *catalogue;
  wefti_wheel wheel;
  uint64_t hold_until_ms; /* no timer fires before: input comes first */
  wefti_entry
      *far_asked[WEFTI_FAR_BUCKETS]; /* questions put to actors of other threads */
  wefti_entry *reserve_free;
  wefti_entry *reserve; /* [WEFTI_ENTRY_RESERVE] */
  weft_ctx *slot_free;
  uint32_t slot_count;
  uint64_t actors;
  bool closing; /* no spawn any more */
  bool fake_clock;
  uint64_t wall_base_ms;
  uint64_t random_pool[32];
  unsigned random_left;
  /* Chunks are published with release before any id in them exists, read with acquire by
   * other loops that look a receiver up; never freed before destroy. */
  weft_ctx *_Atomic slots[WEFTI_SLOT_CHUNKS];
  wefti_counters counters;
  wefti_inbox inbox;
};

static inline uint64_t wefti_now_ms(const wefti_sched *s)
{
  return s->wheel.now_ms;
}

/* Any thread: the slot of that id in s (alive or not), or NULL. */
static inline weft_ctx *wefti_slot_of(wefti_sched *s, weft_actor_id id)
{
  const uint32_t slot = wefti_id_slot(id);
  if (slot / WEFTI_SLOT_CHUNK >= WEFTI_SLOT_CHUNKS) {
    return NULL;
  }
  weft_ctx *chunk =
      atomic_load_explicit(&s->slots[slot / WEFTI_SLOT_CHUNK], memory_order_acquire);
  return chunk == NULL ? NULL : &chunk[slot % WEFTI_SLOT_CHUNK];
}

/* The living actor with that id on this loop, or NULL. */
static inline weft_ctx *wefti_lookup(wefti_sched *s, weft_actor_id id)
{
  weft_ctx *a = wefti_slot_of(s, id);
  if (WEFTI_UNLIKELY(a == NULL || id == 0 ||
                     atomic_load_explicit(&a->id, memory_order_relaxed) != id)) {
    return NULL;
  }
  return a;
}

static inline void wefti_schedule(weft_ctx *a)
{
  if (!a->scheduled) {
    wefti_sched *s = a->sched;
    a->scheduled = true;
    a->run_next = NULL;
    *s->run_tail = a;
    s->run_tail = &a->run_next;
  }
}

/* From a message that is embedded in its entry. */
static inline wefti_entry *wefti_entry_of_msg(weft_msg *msg)
{
  return (wefti_entry *)(void *)((uint8_t *)msg - offsetof(wefti_entry, msg));
}

/* The used entry of key, or NULL. */
static inline wefti_entry *wefti_entry_find(wefti_sched *s, uint64_t key)
{
  const uint32_t index = (uint32_t)key & ((1u << WEFTI_KEY_INDEX_BITS) - 1u);
  const uint32_t from_end = (1u << WEFTI_KEY_INDEX_BITS) - 1u - index;
  wefti_entry *e;
  if (WEFTI_LIKELY(index / WEFTI_ENTRY_CHUNK < s->entry_chunk_count)) {
    e = &s->entry_chunks[index / WEFTI_ENTRY_CHUNK][index % WEFTI_ENTRY_CHUNK];
  } else if (from_end < WEFTI_ENTRY_RESERVE) {
    e = &s->reserve[from_end];
  } else {
    return NULL;
  }
  return e->key == key && e->state != WEFTI_ENTRY_FREE ? e : NULL;
}

/* scheduler.c */
weft_err wefti_sched_create(unsigned index, wefti_sched **out) WEFT_MUST_USE;
/* Ends what lives, gives back what waits.  Others may still hold messages of its pool. */
void wefti_sched_close(wefti_sched *s);
void wefti_sched_destroy(wefti_sched *s);
/* For messages with references or of other memory; use wefti_msg_free. */
void wefti_msg_free_slow(wefti_sched *s, weft_msg *msg);
/* Moves the clock; fires what is due. */
void wefti_advance(wefti_sched *s, uint64_t now_ms);
/* One actor's turn of at most max messages; it is out of the run queue. */
unsigned wefti_turn(weft_ctx *a, unsigned max);
/* Runs about budget messages.  true = there is more to do. */
bool wefti_run(wefti_sched *s, unsigned budget);
static inline void wefti_msg_free(wefti_sched *s, weft_msg *msg)
{
  if (WEFTI_LIKELY((msg->flags & WEFT_MSG_F_DEEP) == 0 &&
                   (msg->home & WEFTI_HOME_POOL_MASK) == s->pool.tag)) {
    wefti_pool_put(&s->pool, msg);
  } else {
    wefti_msg_free_slow(s, msg);
  }
}

/* route.c */
/* Takes msg to its receiver here or elsewhere; from, to, corr and flags are set. */
weft_err wefti_route(wefti_sched *s, weft_msg *msg);
/* Puts one of the runtime's own messages into the mailbox of a living actor here. */
void wefti_push_exempt(weft_ctx *a, weft_msg *msg);
/* Sends one of the runtime's own messages to any loop's inbox; never refused but by a
 * loop that has ended (then it is freed). */
void wefti_far_exempt(wefti_sched *s, unsigned loop, weft_msg *msg);
/* Closes the inbox and handles what was left in it. */
void wefti_take_last(wefti_sched *s);
/* Handles all that other threads sent. */
void wefti_take_inbox(wefti_sched *s);
/* Hands over to the other loops what has been collected for them. */
void wefti_flush(wefti_sched *s);
/* Turns a question into the notice that it failed, to be routed to its asker's loop. */
void wefti_bounce(wefti_sched *s, weft_msg *m, weft_err reason);

/* life.c */
weft_err wefti_spawn(wefti_sched *s, weft_ctx *parent, const weft_actor_class *cls,
                     const void *args, const weft_spawn_opts *opts, weft_actor_id *out)
    WEFT_MUST_USE;
void wefti_end(weft_ctx *a, weft_err reason); /* children first */
void wefti_end_all(wefti_sched *s, weft_err reason);
void wefti_slot_release(weft_ctx *a); /* when it is out of the run queue */
/* Adds note (taken) to the watchers of its receiver, or answers it at once. */
void wefti_monitor_add(wefti_sched *s, weft_msg *note);

/* ask.c */
void wefti_entry_put(wefti_sched *s, wefti_entry *e);
/* Open question, put to peer: fails with reason (puts ASK_FAILED into the mailbox). */
void wefti_ask_fail(wefti_entry *e, weft_err reason);
/* Fails the question that corr names, if to asked it and it is still open. */
void wefti_ask_fail_corr(wefti_sched *s, weft_actor_id to, uint64_t corr,
                         weft_err reason);
/* All open questions of this loop put to a, that was who. */
void wefti_ask_died(weft_ctx *a, weft_actor_id who);
/* All open questions of this loop put to who (of another loop). */
void wefti_ask_far_died(wefti_sched *s, weft_actor_id who);
bool wefti_entries_init(wefti_sched *s);
void wefti_entries_fini(wefti_sched *s);

/* ctx.c */
void *wefti_alloc(wefti_sched *s, size_t size);
weft_msg *wefti_msg_get(wefti_sched *s, uint16_t type, size_t size); /* zeroed */
weft_msg *wefti_msg_copy(wefti_sched *s, const weft_msg *tmpl);
void wefti_logf(wefti_sched *s, const char *who, weft_log_level level, const char *fmt,
                ...) WEFT_PRINTF(4, 5);

/* runtime.c / outside.c; any thread */
void wefti_runtime_log(weft_runtime *rt, weft_log_level level, const char *who,
                       const char *line);
bool wefti_runtime_logs(const weft_runtime *rt, weft_log_level level);
weft_err wefti_root_add(weft_runtime *rt, weft_actor_id id) WEFT_MUST_USE;
void wefti_root_ended(weft_runtime *rt, weft_actor_id id);
/* An answer or a failure for a thread that waits in weft_call; takes msg (of s). */
void wefti_outside_answer(wefti_sched *s, weft_msg *msg);
void wefti_outside_died(weft_runtime *rt, weft_actor_id who);
void wefti_outside_spawn(wefti_sched *s, weft_msg *msg, bool closed);

#endif /* WEFT_RUNTIME_SCHEDULER_H */
