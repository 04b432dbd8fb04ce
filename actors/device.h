/* device.h -- private to actors/.  What the worker actor and its device thread share, and
 * the device thread's own session.  Not here: the protocol (worker.c). */
#ifndef WEFT_ACTORS_DEVICE_H
#define WEFT_ACTORS_DEVICE_H

#include "manifest.h"
#include "weft/json.h"
#include "weft/memory.h"
#include "weft/transfer.h"
#include "weight_store.h"
#include "worker.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whoever may have the weights that this rank served in its last life (export_take.c). */
typedef struct wefti_keeper {
  /* The worker's loop.  Asks for a set of digest, which is to be served as
   * weights_sequence; KEPT_OFFER follows.  not_own: another one than last time.  false:
   * nobody is there to ask.  0: nothing is to be served, nothing follows. */
  bool (*want)(void *arg, uint64_t weights_sequence, const uint64_t digest[2],
               bool not_own);
  /* The device thread, once for an offer: *entries are the caller's to free, with a
   * reference to each cell.  They are what the keeper says; nothing is checked. */
  weft_err (*take)(void *arg, wefti_entry **entries, size_t *count, weft_why *why);
  /* The worker's loop: what came of it; 0 = nothing. */
  void (*had)(void *arg, uint64_t weights_sequence, const uint64_t digest[2]);
  void *arg;
} wefti_keeper;

/* How a rank gives what it serves to another one that is to serve the same, and how that
 * one takes it (lend_give.c, lend_take.c). */
typedef struct wefti_lender {
  /* The worker's loop.  The caller has pinned snapshot (wefti_store_base); on WEFT_OK the
   * lender unpins it when it was taken, or nobody takes it.  towards as of w_lend; *info
   * is the caller's.  Nobody waits for what was lent before: that ends.  Errors: UNAVAIL
   * (too much of that has not ended yet), UNSUPPORTED. */
  weft_err (*lend)(void *arg, const weft_snapshot *snapshot, const char *towards,
                   weft_buf **info, weft_why *why);
  /* The worker's loop: as soon as may be, nothing is lent any more. */
  void (*stop)(void *arg);
  /* The device thread: what info describes comes into *entries, with a reference to each
   * cell, for the caller to free.  Digests are of the bytes as they came; whether they
   * are the right ones is not checked. */
  weft_err (*take)(void *arg, const weft_buf *info, uint32_t timeout_ms,
                   wefti_entry **entries, size_t *count, weft_why *why);
  void *arg;
} wefti_lender;

/* The device thread says that its GPU cannot be used in this process any more. */
typedef void wefti_lost_fn(void *arg, const char *reason);

struct wefti_device {
  weft_store *store;
  weft_memory *memory;
  weft_memory *kept; /* the last life's slabs, read-only; NULL = none */
  const weft_transfer_ops *transfer;
  void *backend;                  /* transfer's state */
  wefti_manifest *manifest;       /* the tensors it may hold; NULL = any.  Constant */
  bool draft;                     /* there is a second set, of a draft model.  Constant */
  wefti_manifest *draft_manifest; /* of it */
  uint32_t tp, pp, rank;
  unsigned threads;      /* that copy or hash; 0 = 1.  Constant */
  weft_tp_plan *tp_plan; /* NULL = tensors are kept whole.  Constant */
  uint32_t pid;
  wefti_lost_fn *on_lost; /* NULL = the process is not this worker's alone */
  void *on_lost_arg;
  bool inplace;    /* updates are written over the live tensors.  Constant */
  char about[512]; /* what it runs on; "" = host memory.  Constant */
  /* Worker to device: leave off what runs.  Relaxed: it carries no data, the job's end
   * comes as a message. */
  atomic_bool cancel;
  /* Worker to whoever announces it: frames of an engine so far.  Relaxed: a number. */
  _Atomic uint64_t heard;
  /* Device to worker, bytes of the transfer under way; then of those that are hashed for
   * its end, or to have a last life's again.  Relaxed: numbers for people. */
  atomic_uint_fast64_t received, expected;
  /* The device thread's: positions in name order of the last plan that had more than a
   * few tensors.  The next one is nearly always of the same names in the same order. */
  uint32_t *order; /* [order_count] */
  size_t order_count;
  wefti_export_fn *on_install; /* set before the actors run */
  void *on_install_arg;
  /* Before a job that needs a slot, on the worker's loop: takes note of what readers
   * elsewhere let go of.  Set like on_install; may be NULL. */
  void (*catch_up)(void *arg);
  void *catch_up_arg;
  const wefti_keeper *keeper; /* set like on_install; NULL = none */
  const wefti_lender *lender; /* likewise; NULL = neither lends nor takes */
};

static inline bool wefti_device_cancelled(wefti_device *device)
{
  return atomic_load_explicit(&device->cancel, memory_order_relaxed);
}

/* The process is this worker's alone: what an update leaves free goes back to the system
 * when there is time (malloc_trim; a host's heap is not ours to touch), and on_lost, on
 * the device thread, ends the process.  Before the actors run. */
void wefti_device_owns_process(wefti_device *device, wefti_lost_fn *on_lost, void *arg);

/* ---- the session as the device thread sees it (device_session.c).  One thread. */

typedef struct wefti_staged {
  wefti_entry entry;
  uint64_t order;          /* of arrival: of two with one name the later one counts */
  const weft_digest *late; /* where its digest will be; NULL = entry has it */
} wefti_staged;

typedef struct wefti_late wefti_late;

typedef struct wefti_device_session {
  wefti_device *device;
  uint64_t epoch;    /* 0 = none */
  weft_buf *version; /* visible when it began, with a NUL; NULL = not known */
  bool foreign;      /* the live set is not what the session builds on: share nothing */
  bool draft;        /* it writes the draft model's set */
  bool alone;        /* its result holds that set only */
  weft_buf *init;    /* accepted init_info */
  bool nobody;       /* it is null: the trainer is let go */
  weft_plan *plan;   /* accepted, not received yet */
  uint32_t *by_name; /* [plan->count] positions in the plan, in name order */
  wefti_entry *room; /* [room_count] cells that wait for the plan's bytes */
  size_t room_count; /* made so far */
  bool overwrites;   /* some of room are bytes of the live set */
  bool *spare;       /* see wefti_inplace_spare */
  const void **base; /* [plan->count] what is patched, see weft_plan; or NULL */
  const weft_snapshot *based; /* pinned for it */
  wefti_staged *staged;
  size_t staged_count, staged_cap;
  size_t sorted; /* how many there were after the last compaction */
  uint64_t order;
  uint64_t received_bytes; /* of the session so far, repeats included */
  wefti_late *late;        /* digests that are not there yet */
  bool late_repeats;       /* ... of tensors that came again since */
} wefti_device_session;

typedef struct wefti_device_result {
  bool correctable;
  uint64_t digest_hi, digest_lo;
  uint64_t tensors, bytes, received, received_bytes, missing;
  uint64_t set_tensors, set_bytes, set_digest[2]; /* of the set that was written */
  weft_buf *json;                                 /* owned; or NULL */
} wefti_device_result;

/* Opens the epoch of how, with its draft, alone and foreign (strict).  Errors: STATE
 * (another one is open), UNAVAIL (no slot for its result). */
weft_err wefti_session_open(wefti_device_session *s, const weft_device_run *how,
                            weft_why *why) WEFT_MUST_USE;
/* Checks update_info against the live set and makes room.  A failure of this or of
 * receive leaves the session for wefti_session_close. */
weft_err wefti_session_accept(wefti_device_session *s, const weft_buf *info,
                              const weft_transfer_who *who, wefti_device_result *out,
                              weft_why *why) WEFT_MUST_USE;
weft_err wefti_session_receive(wefti_device_session *s, uint32_t timeout_ms,
                               wefti_device_result *out, weft_why *why) WEFT_MUST_USE;
/* Coverage, digest, install.  out->correctable: the session is as it was before. */
weft_err wefti_session_finish(wefti_device_session *s, bool strict,
                              wefti_device_result *out, weft_why *why) WEFT_MUST_USE;
/* Sorts what is staged by name and lets go of what came again later. */
void wefti_session_compact(wefti_device_session *s);
/* The last part of finish, in device_install.c: staged is sorted, without repeats. */
weft_err wefti_session_install(wefti_device_session *s, bool strict,
                               wefti_device_result *out, weft_why *why) WEFT_MUST_USE;
/* Forgets all that the session staged; what it installed stays installed. */
void wefti_session_close(wefti_device_session *s);

/* ---- digests that come behind the bytes (device_late.c): where transfer has settle */
/* Digests of an update's count tensors, which own their cells meanwhile. */
struct wefti_late {
  wefti_late *next;
  weft_digest *digests; /* [count] */
  wefti_cell **cells;   /* [cell_count], of count */
  size_t cell_count;
  uint64_t bytes; /* to hash */
};
/* NULL = out of memory. */
wefti_late *wefti_late_make(size_t count);
void wefti_late_free(wefti_late *late); /* what was not kept; NULL is a no-op */
/* Takes late, of the update that was received and staged last. */
void wefti_late_keep(wefti_device_session *s, wefti_late *late);
/* Until all digests are in what is staged.  After an error the session is for close. */
weft_err wefti_late_settle(wefti_device_session *s, weft_why *why) WEFT_MUST_USE;
/* Before room is made for more: settles where it costs nothing, gives memory back, or
 * what comes goes over what is there. */
weft_err wefti_late_ease(wefti_device_session *s, weft_why *why) WEFT_MUST_USE;
/* Nothing reads what is staged any more when it returns. */
void wefti_late_forget(wefti_device_session *s);
/* Goes on without waiting.  true: call it again in a millisecond. */
bool wefti_late_advance(wefti_device_session *s);

/* ---- the two sets of one snapshot (device_set.c).  Readers pin both at once, so the
 * draft model's tensors are in it beside the main model's, under names that begin with
 * "draft:"; in byte order of names they lie together.  Without a draft model all is main.
 */
typedef struct wefti_set {
  const weft_snapshot *snapshot; /* borrowed; NULL = nothing is live */
  size_t at, end;                /* the next tensor, and behind the last */
  size_t hole, behind;           /* [hole, behind) are the other set's */
  size_t skip;                   /* bytes in front of the client's name */
  bool draft;
} wefti_set;
wefti_set wefti_set_of(const wefti_device *device, const weft_snapshot *snapshot,
                       bool draft);
size_t wefti_set_count(const wefti_set *set);      /* from at on */
const weft_tensor *wefti_set_next(wefti_set *set); /* NULL behind the last */
const weft_tensor *wefti_set_find(const wefti_set *set, const char *name);
/* Does a tensor of a snapshot belong to the session's set? */
bool wefti_session_owns(const wefti_device_session *s, const weft_tensor *t);
/* The client's name of a tensor of the session's set. */
const char *wefti_session_name(const wefti_device_session *s, const weft_tensor *t);
const wefti_manifest *wefti_session_manifest(const wefti_device_session *s);
/* name as it stands in snapshots: itself, or made in *made, which the caller frees.  NULL
 * = out of memory. */
const char *wefti_session_full_name(const wefti_device_session *s, const char *name,
                                    char **made);
/* INVAL with the names that only the other set may have. */
weft_err wefti_session_check_names(const wefti_device_session *s, weft_why *why)
    WEFT_MUST_USE;
/* Fills out's set_…; whole: digest of all entries.  Errors: NOMEM. */
weft_err wefti_session_sum(const wefti_device_session *s, const wefti_entry *entries,
                           size_t count, const uint64_t whole[2],
                           wefti_device_result *out) WEFT_MUST_USE;

/* What is received or hashed next is so many bytes, and none of them so far. */
static inline void wefti_device_expect(wefti_device *device, uint64_t bytes)
{
  atomic_store_explicit(&device->received, 0, memory_order_relaxed);
  atomic_store_explicit(&device->expected, bytes, memory_order_relaxed);
}

/* ---- staging in place (device_inplace.c) */
/* Bytes that the plan needs beside those of live, the base of the store or NULL. */
uint64_t wefti_inplace_needs(const wefti_device_session *s, const weft_snapshot *live);
/* live's cell where want's bytes go; NULL = it needs room of its own. */
wefti_cell *wefti_inplace_cell(const weft_tensor *want, const weft_snapshot *live);
/* Device memory: s->spare [plan->count], true for those of the plan's tensors whose bytes
 * another one of it, tied to it, goes over; NULL when there are none.  Errors: NOMEM. */
weft_err wefti_inplace_spare(wefti_device_session *s, weft_why *why) WEFT_MUST_USE;
/* Before receive: the first byte of what is live will be told to store and slabs. */
void wefti_inplace_watch(wefti_device_session *s);
/* All marks, before what is whole again is published. */
void wefti_inplace_clear(wefti_device *device);
/* Whether what came lies there as it came: nothing else may have been written over it.
 * CONFLICT names a tensor that does not; CANCELLED.  Of device memory digests were taken
 * as it lies there, and only this thread writes: OK. */
weft_err wefti_inplace_verify(const wefti_device_session *s, weft_why *why) WEFT_MUST_USE;

/* Hashes count host tensors, several at once, and compares each with its digest.  They
 * lie stride bytes apart.  *bad: the first that holds other bytes; count = none does.
 * Errors: NOMEM, CANCELLED. */
weft_err wefti_device_rehash(wefti_device *device, const weft_tensor *first,
                             size_t stride, size_t count, size_t *bad) WEFT_MUST_USE;

/* ---- the plan's tensors in name order (device_order.c) */
/* [plan->count] positions; the caller frees them or hands them to keep.  Errors:
 * OVERFLOW, NOMEM. */
weft_err wefti_order_make(const wefti_device *device, const weft_plan *plan,
                          uint32_t **out) WEFT_MUST_USE;
/* Takes order (NULL is a no-op): make tries it first. */
void wefti_order_keep(wefti_device *device, uint32_t *order, size_t count);
/* have: what t must be like, whose "the live one" says in the text; NULL = anything.
 * Errors: INVAL, UNSUPPORTED. */
weft_err wefti_tensor_check(const weft_plan_tensor *t, const weft_tensor *have,
                            const char *whose, weft_why *why) WEFT_MUST_USE;
/* Whether the live set has each of plan's tensors with another dtype or shape; why says
 * which. */
weft_err wefti_plan_check(const weft_plan *plan, const uint32_t *by_name,
                          const wefti_set *live, weft_why *why) WEFT_MUST_USE;

/* ---- patches (device_patch.c) */
/* Gives s->plan what it is applied to: what the session staged under a name, else the
 * live tensor.  CONFLICT: there is none of that dtype and shape. */
weft_err wefti_patch_base(wefti_device_session *s, weft_why *why) WEFT_MUST_USE;
void wefti_patch_done(wefti_device_session *s);

/* ---- what came, with those tensors that the manifest ties to it (device_tied.c) */
typedef struct wefti_arrivals {
  const wefti_entry **rows; /* [count] in name order: staged ones, or made */
  wefti_entry *made;        /* [made_count] share the bytes of a staged one */
  size_t count, made_count;
} wefti_arrivals;
/* s's staged set is sorted, without repeats; it outlives *out and is not changed.
 * CONFLICT, with *correctable, when tied tensors came with different bytes; NOMEM. */
weft_err wefti_arrivals_make(const wefti_device_session *s, wefti_arrivals *out,
                             bool *correctable, weft_why *why) WEFT_MUST_USE;
void wefti_arrivals_free(wefti_arrivals *a);

/* ---- names for an error text (device_order.c) */
enum { WEFTI_NAMES_MAX = 64 };
typedef struct wefti_names {
  uint64_t count;
  const char *first[WEFTI_NAMES_MAX]; /* borrowed */
} wefti_names;
void wefti_names_add(wefti_names *names, const char *name);
/* "a, b and 7 more", what fits. */
void wefti_names_text(const wefti_names *names, char *out, size_t cap);

/* ---- what the last life left (device_recall.c) */
/* The epoch that it is installed under: no session's. */
#define WEFTI_RECALL_EPOCH UINT64_MAX
/* Takes the keeper's offer, reads every byte and, when all is what digest says, installs
 * it beside the default.  Errors: FAILED (it is not), CANCELLED, UNAVAIL, NOMEM. */
weft_err wefti_device_recall(wefti_device *device, const uint64_t digest[2],
                             weft_why *why) WEFT_MUST_USE;

/* ---- what another rank lends (device_fetch.c) */
/* Takes what info describes and, when all of it is what digest says, installs it beside
 * the default as WEFTI_RECALL_EPOCH.  Errors: FAILED (it is not), those of take. */
weft_err wefti_device_fetch(wefti_device *device, const weft_buf *info,
                            const uint64_t digest[2], uint32_t timeout_ms, weft_why *why)
    WEFT_MUST_USE;

/* ---- questions about the live set (device_query.c).  Each makes one JSON text. */
weft_err wefti_device_weights(wefti_device *device, weft_buf **out, weft_why *why)
    WEFT_MUST_USE;
weft_err wefti_device_checksum(wefti_device *device, uint32_t rank, uint32_t dp_index,
                               weft_buf **out, weft_why *why) WEFT_MUST_USE;
/* The checker's destructive reset: the default becomes a private copy of itself with
 * every byte inverted, under the same weights_sequence, until the next publish.  No
 * version moves; the digest no longer is the one that was published, and says so.  *out:
 * {}. */
weft_err wefti_device_reset(wefti_device *device, weft_buf **out, weft_why *why)
    WEFT_MUST_USE;

/* XXH3-128 of the set: high half, low half.  Entries in name order.  Errors: NOMEM. */
weft_err wefti_entries_digest(const wefti_entry *entries, size_t count, uint64_t out[2])
    WEFT_MUST_USE;
/* Ends w; *out gets its text.  Errors: NOMEM. */
weft_err wefti_json_buf(weft_json_writer *w, weft_buf **out) WEFT_MUST_USE;

#endif /* WEFT_ACTORS_DEVICE_H */
