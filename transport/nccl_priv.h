/* nccl_priv.h -- what the files of the nccl backend share.  Not for other folders; not
 * here: the communicator (nccl_comm.h), the device (gpu.h). */
#ifndef WEFT_TRANSPORT_NCCL_PRIV_H
#define WEFT_TRANSPORT_NCCL_PRIV_H

#include "nccl_comm.h"
#include "plan_lists.h"
#include "slices.h"
#include "weft/json.h"
#include "weft/transfer.h"

#include <stdbool.h>
#include <stdint.h>

enum {
  WEFTI_LANES_MAX = 16,      /* packed buffers, or broadcasts that may be under way */
  WEFTI_HOST_NAME_MAX = 256, /* with the NUL */
  WEFTI_WHERE_MAX = 96,      /* the beginning of an error's text */
  WEFTI_ID_KEYS = 2,
  WEFTI_ID_KEY_MAX = 320 /* with the NUL */
};

/* Which of vLLM's backends is spoken: its names, which clients get to read. */
typedef struct wefti_nccl_engine {
  const char *backend, *name, *update_class;
  bool sparse; /* update_info may bring patches */
} wefti_nccl_engine;
#define WEFTI_SPARSE_ENGINE "SparseNCCLWeightTransferEngine"
const wefti_nccl_engine *wefti_nccl_dense(void);
const wefti_nccl_engine *wefti_nccl_sparse(void);

typedef struct wefti_packing {
  bool packed;
  uint64_t buffer_bytes; /* a chunk ends with the tensor that takes it over this */
  unsigned buffers;      /* 1..WEFTI_LANES_MAX */
} wefti_packing;

/* How long init waits for an id in the trainer's store: torch makes communicators, and so
 * ids, with the first collective of a group, which may come after init has answered. */
typedef enum wefti_look {
  WEFTI_LOOK_ON,
  WEFTI_LOOK_SHORTLY,
  WEFTI_LOOK_LATER
} wefti_look;

typedef struct wefti_nccl_init {
  wefti_packing packing;
  int rank, ranks;
  bool has_id; /* else host and port */
  wefti_nccl_id id;
  char host[WEFTI_HOST_NAME_MAX];
  uint16_t port;
  bool torch; /* profile torch-group: a raw id, no warm-up */
  wefti_look look;
  char keys[WEFTI_ID_KEYS][WEFTI_ID_KEY_MAX]; /* where the id may be, [key_count] */
  size_t key_count;
} wefti_nccl_init;

/* What one broadcast brings. */
typedef struct wefti_chunk {
  size_t first, count; /* tensors */
  uint64_t bytes;
  bool direct; /* one tensor: to where it stays */
} wefti_chunk;

/* Elements of one tensor: their indices, then their values, in the patches' buffer. */
typedef struct wefti_patch {
  uint64_t count, elements; /* of the patch, of the tensor */
  unsigned width;           /* bytes of an element */
  uint64_t indices_at, values_at, end;
} wefti_patch;

typedef struct wefti_nccl_plan {
  weft_plan pub; /* first member */
  wefti_lists lists;
  int64_t *slice_dims; /* owns the shapes of slices */
  weft_json *json;     /* owns the names */
  wefti_packing packing;
  wefti_chunk *chunks; /* [chunk_count] */
  size_t chunk_count;
  uint64_t scratch_bytes; /* of the largest chunk that is not direct */
  wefti_patch *patches;   /* [count]; NULL = the tensors come whole, in chunks */
  uint64_t patch_bytes;   /* of all */
  bool needs_base;
  bool received; /* or tried to */
  bool older;    /* update_info has keys that newer clients do not send */
} wefti_nccl_plan;

/* An update_info that listed tensors. */
typedef struct wefti_nccl_told {
  char *text; /* [len]; NULL = none since the last init */
  size_t len;
} wefti_nccl_told;

typedef struct wefti_nccl_state {
  const wefti_nccl_engine *engine;
  wefti_slicer slicer;
  wefti_gpu gpu;
  wefti_group group;
  wefti_packing packing;   /* of the last init */
  weft_why lost;           /* why there is no communicator any more; err WEFT_OK = never
                              was one */
  bool later;              /* the communicator is made by the first receive, from */
  wefti_nccl_init init;    /* the last init */
  wefti_nccl_told told[2]; /* last, for the main and for the draft model */
  wefti_stream lanes[WEFTI_LANES_MAX];
  wefti_event arrived[WEFTI_LANES_MAX];
  void *scratch[WEFTI_LANES_MAX];
  uint64_t scratch_bytes; /* of each */
  void *patch_device;     /* [patch_bytes] where patches arrive */
  uint8_t *patch_host;    /* [patch_bytes] pinned: where they are read */
  uint64_t patch_bytes;
  void *lead; /* where the first broadcast of an update over live tensors arrives */
} wefti_nccl_state;

/* init_info, checked as far as one worker can.  Errors carry the contract's texts. */
weft_err wefti_nccl_init_read(const char *engine, const char *text, size_t len,
                              const weft_transfer_who *who, wefti_nccl_init *out,
                              weft_why *why) WEFT_MUST_USE;
/* "packed" and its two numbers in object; out holds what counts without them. */
weft_err wefti_packing_read(const weft_json *object, const char *where,
                            wefti_packing *out, weft_why *why) WEFT_MUST_USE;
/* What profile says: keys of the id, and how they are looked for.  engine: as in texts.
 */
weft_err wefti_nccl_profile_read(const char *engine, const weft_json *root,
                                 wefti_nccl_init *out, weft_why *why) WEFT_MUST_USE;
/* Is key of init_info one that belongs to a profile, and may it be there? */
bool wefti_nccl_profile_key(const char *key, const weft_json *root);
/* The id in the trainer's store, which joins (once in a store's life) or not.  Errors: as
 * weft_tcpstore_open and _get; NOT_YET: it is not there after as long as look says. */
weft_err wefti_nccl_id_fetch(const wefti_nccl_init *init, bool joins, wefti_look look,
                             wefti_wait *w, wefti_nccl_id *out, weft_why *why)
    WEFT_MUST_USE;

/* update_info.  *out is written only on WEFT_OK. */
weft_err wefti_nccl_plan_make(const wefti_nccl_engine *engine, const wefti_slicer *slicer,
                              const wefti_packing *packing, const char *text, size_t len,
                              const weft_transfer_who *who, wefti_nccl_plan **out,
                              weft_why *why) WEFT_MUST_USE;
void wefti_nccl_plan_free(wefti_nccl_plan *plan); /* NULL is a no-op */

/* As plan_make; one that lists nothing is the last one that listed something, as vLLM's
 * trainer means it that sends the same tensors once more. */
weft_err wefti_nccl_plan_or_last(wefti_nccl_state *st, const char *text, size_t len,
                                 const weft_transfer_who *who, wefti_nccl_plan **out,
                                 weft_why *why) WEFT_MUST_USE;
void wefti_nccl_told_free(wefti_nccl_state *st);

/* Buffers, streams and events for plan. */
weft_err wefti_lanes_ready(wefti_nccl_state *st, const wefti_nccl_plan *plan,
                           weft_why *why) WEFT_MUST_USE;
void wefti_lanes_free(wefti_nccl_state *st);
/* All chunks of plan.  After an error something may still run: abort, then drain. */
weft_err wefti_nccl_chunks(wefti_nccl_state *st, const wefti_nccl_plan *plan,
                           void *const *dst, weft_digest *digests, wefti_wait *w,
                           weft_why *why) WEFT_MUST_USE;
void wefti_lanes_drain(const wefti_nccl_state *st);
/* Waits for the device: not with a collective that may be stuck there. */
void wefti_lead_free(wefti_nccl_state *st);

/* Patches.  num_updates_list of update_info; plan has its tensors. */
weft_err wefti_sparse_read(const char *engine, const weft_json *list,
                           wefti_nccl_plan *plan, weft_why *why) WEFT_MUST_USE;
/* Buffers and events. */
weft_err wefti_sparse_ready(wefti_nccl_state *st, const wefti_nccl_plan *plan,
                            weft_why *why) WEFT_MUST_USE;
void wefti_sparse_free(wefti_nccl_state *st);
/* All of plan's patches, then dst = plan's base with them; as wefti_nccl_chunks. */
weft_err wefti_sparse_receive(wefti_nccl_state *st, const wefti_nccl_plan *plan,
                              void *const *dst, weft_digest *digests, wefti_wait *w,
                              weft_why *why) WEFT_MUST_USE;
/* dst = plan's base with what patch_host holds; nothing is received. */
weft_err wefti_sparse_apply(wefti_nccl_state *st, const wefti_nccl_plan *plan,
                            void *const *dst, weft_digest *digests, wefti_wait *w,
                            weft_why *why) WEFT_MUST_USE;

#endif /* WEFT_TRANSPORT_NCCL_PRIV_H */
