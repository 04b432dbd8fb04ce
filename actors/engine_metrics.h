/* engine_metrics.h -- private to the engine_*.c files: what is counted for GET /metrics.
 * Counters only, written as the Prometheus text format when asked; nothing decides by
 * them. */
#ifndef WEFT_ACTORS_ENGINE_METRICS_H
#define WEFT_ACTORS_ENGINE_METRICS_H

#include "weft/actor.h"
#include "weft/buf.h"
#include "weft/json.h"

#include <stdbool.h>
#include <stdint.h>

enum {
  ENGINE_OPS =
      6, /* init, shutdown, start, start_draft, update, finish: engine_call_kind */
  ENGINE_BUCKETS = 9 /* of a duration, besides the one without a limit */
};

/* One operation: a call that the engine took on.  What is refused before it begins (wrong
 * order, a field, a precondition, a repeat under its key) is none. */
typedef struct engine_op_count {
  uint64_t in_flight, succeeded, failed, total_ms;
  uint64_t buckets[ENGINE_BUCKETS + 1];
} engine_op_count;

/* What one rank did in an update. */
typedef struct engine_pace {
  uint64_t received_bytes, receive_us;
  uint64_t apply_us; /* coverage, device sync, digest, install */
} engine_pace;

typedef struct engine_metrics {
  engine_op_count ops[ENGINE_OPS];
  uint64_t turns; /* messages handled, queries left out */
  uint64_t fenced, aborted;
  engine_pace *now, *last; /* [world], of the open session and of the last update */
} engine_metrics;

struct engine;
struct engine_call;

weft_err engine_metrics_init(weft_ctx *ctx, struct engine *e) WEFT_MUST_USE;
void engine_metrics_fini(weft_ctx *ctx, struct engine *e);
/* call was taken on; and is over, after its final answer. */
void engine_metrics_begun(struct engine *e, struct engine_call *call);
void engine_metrics_ended(weft_ctx *ctx, struct engine *e,
                          const struct engine_call *call);
/* The round just over was a transfer, or a FINISH; a session begins; it is visible. */
void engine_metrics_received(struct engine *e);
void engine_metrics_applied(struct engine *e);
void engine_metrics_session(struct engine *e);
void engine_metrics_visible(struct engine *e);
/* The last update as members of the status. */
void engine_metrics_last(weft_json_writer *w, const struct engine *e);
weft_buf *engine_metrics_text(weft_ctx *ctx,
                              const struct engine *e); /* NULL = out of memory */

#endif /* WEFT_ACTORS_ENGINE_METRICS_H */
