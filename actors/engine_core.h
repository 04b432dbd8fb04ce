/* engine_core.h -- private to actors/.  The actor that owns the version: sessions, the
 * commit, members, heartbeats, grants.  No I/O: it speaks only by messages. */
#ifndef WEFT_ACTORS_ENGINE_CORE_H
#define WEFT_ACTORS_ENGINE_CORE_H

#include "weft/actor.h"
#include "weft/messages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  ENGINE_VERSION_MAX = WEFT_VERSION_MAX, /* bytes of a version string */
  ENGINE_WORLD_MAX = 4096                /* ranks, or replicas */
};

/* What became visible, for those in the same process that must not lag behind a message
 * (pins of the C API).  Called on the engine's loop before anybody is told. */
typedef struct wefti_visible {
  uint64_t sequence, weights_sequence;
  uint64_t digest_hi, digest_lo;
  const char *version;
} wefti_visible;
typedef void wefti_visible_fn(void *arg, const wefti_visible *visible);

/* How a member of a fleet stands with its coordinator, for those in the same process that
 * may not serve past the grant (pins of the C API) or decide whose invitation counts.
 * Called on the engine's loop at each adoption and heartbeat from upstream, also one that
 * changes nothing, before it is answered, and when a doubt begins or ends or its change
 * becomes visible. */
typedef struct wefti_upstream {
  const char *fleet;   /* the coordinator's engine_id; "" = adopted by none so far */
  uint64_t boot;       /* its life */
  uint32_t rank, size; /* replica rank of size */
  uint64_t until_ns;   /* CLOCK_BOOTTIME of the grant's end; 0 = none so far */
  bool doubt;          /* voted, and the end was not heard */
  bool unshown;        /* has what the coordinator may be showing, and does not yet */
} wefti_upstream;
typedef void wefti_upstream_fn(void *arg, const wefti_upstream *upstream);

typedef struct wefti_engine_args {
  uint64_t boot_id;      /* random, not 0 */
  const char *engine_id; /* copied */
  uint32_t tp, pp, dp_size,
      dp_index;            /* workers = tp * pp; 0 counts as 1 (dp_index as 0) */
  const char *backend;     /* "host" */
  weft_actor_id publisher; /* 0 = nobody is told */
  weft_actor_id journal;   /* 0 = records are durable at once */
  weft_actor_id clerk;     /* compares checksums; 0 = the engine does, on its own loop */
  const char *events_url, *snapshot_url, *control_url; /* for the status; may be "" */
  bool sliced; /* ranks keep slices: their digests differ */
  bool strict_coverage;
  bool allow_weight_reset;
  bool require_pause;   /* a start while not paused is refused */
  const char *manifest; /* for the status: its path, outlives the actor; NULL = none */
  size_t manifest_count;
  bool draft;                 /* workers hold a draft model's set beside the main one */
  const char *draft_manifest; /* as manifest */
  size_t draft_manifest_count;
  /* milliseconds; 0 = the default in brackets */
  uint32_t init_ms;        /* [280,000] */
  uint32_t start_ms;       /* [30,000] */
  uint32_t update_ms;      /* [280,000] */
  uint32_t finish_ms;      /* [60,000] */
  uint32_t publish_ms;     /* [2,000] until a worker that does not confirm is fenced */
  uint32_t lease_ms;       /* [600,000] of an open session between calls */
  uint32_t beat_ms;        /* [500] */
  uint32_t grant_ms;       /* [2,000] how long a heartbeat lets a worker serve readers */
  uint32_t fence_ms;       /* [2,250] from the last answer whose stamp was echoed */
  uint32_t pause_lease_ms; /* paused for longer: not ready; 0 = for ever */
  /* What the journal knows of earlier lives; borrowed until init returns. */
  uint64_t last_sequence;                           /* highest number ever given out */
  const struct weft_journal_record *const *history; /* [history_count], oldest first */
  size_t history_count;
  wefti_visible_fn *on_visible; /* may be NULL */
  void *on_visible_arg;
  /* Staging in place.  All on the engine's loop; may be NULL. */
  bool inplace;
  void (*on_hold)(void *arg, bool held); /* readers of this process: none, until false */
  /* How many of them there still are, in words. */
  uint32_t (*readers)(void *arg, char *text, size_t cap);
  void *hold_arg;
  /* Of a fleet (engine_fleet.c): so many engines are this coordinator's workers, each
   * with tp * pp ranks; 0 = workers.  Needs a journal. */
  uint32_t replicas;
  /* This engine is one of a fleet (engine_upstream.c): it serves, and changes its
   * version, only as its coordinator says.  Needs a journal. */
  bool member;
  wefti_upstream_fn *on_upstream; /* of a member; may be NULL */
  void *on_upstream_arg;
} wefti_engine_args;

extern const weft_actor_class wefti_engine_core_class; /* args: wefti_engine_args */

#endif /* WEFT_ACTORS_ENGINE_CORE_H */
