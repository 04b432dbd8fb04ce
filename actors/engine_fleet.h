/* engine_fleet.h -- private to the engine_*.c files: what a coordinator knows of the
 * engines that are its workers, beside what it would know of a worker (engine_state.h).
 */
#ifndef WEFT_ACTORS_ENGINE_FLEET_H
#define WEFT_ACTORS_ENGINE_FLEET_H

#include "engine_core.h"
#include "weft/json.h"

typedef struct engine_replica {
  char version[ENGINE_VERSION_MAX + 1]; /* that it shows, or will with the next beat */
  uint64_t version_op; /* of what told us; an answer to an earlier question is older */
  bool beat_again;     /* one more as soon as that is answered */
  bool resolving;      /* the question under way tells how its doubt ended */
  bool pause_owed;     /* it has not confirmed the last pause or resume */
  bool paused;         /* as it said last, */
  uint64_t pause_op;   /* … by this, like version_op, */
  uint64_t paused_ms;  /* … and when we heard it first */
  bool unready;        /* as it said last, and why */
  char reason[160];
  char note[320]; /* why it takes no invitation; "" = it does, or is in */
} engine_replica;

struct engine_cast;
typedef struct engine_fleet {
  engine_replica *replicas;  /* [world]; NULL = the workers are no engines */
  struct engine_cast *casts; /* what is being told to all */
  bool settled; /* whatever an earlier life has published is everywhere, or fenced */
} engine_fleet;

struct engine;
struct engine_call;
struct engine_member;
struct engine_answer;

/* ---- engine_fleet.c */
weft_err engine_fleet_init(weft_ctx *ctx, struct engine *e, const wefti_engine_args *args)
    WEFT_MUST_USE;
void engine_fleet_fini(weft_ctx *ctx, struct engine *e);
/* An answer of m.  false: it must not come in, or not yet. */
bool engine_fleet_heard(weft_ctx *ctx, struct engine *e, struct engine_member *m,
                        const weft_w_state *s);
/* true: msg answered a question that only replicas are asked. */
bool engine_fleet_answer(weft_ctx *ctx, struct engine *e, struct engine_member *m,
                         const weft_msg *msg);
void engine_fleet_noted(weft_ctx *ctx, struct engine *e, const weft_replica_note *note);
/* It is in and does not show what is visible, nor what will be in a moment. */
bool engine_fleet_shows_another(const struct engine *e, uint32_t rank);
/* Why rank is not in. */
const char *engine_fleet_why(const struct engine *e, uint32_t rank);
void engine_fleet_came_in(weft_ctx *ctx, struct engine *e, struct engine_member *m);
void engine_fleet_lost(weft_ctx *ctx, struct engine *e, uint32_t rank, const char *why);
/* m has confirmed the change that is on its way. */
void engine_fleet_published(struct engine *e, const struct engine_member *m);
/* What a heartbeat may call visible; 0 until an earlier life's changes are settled. */
uint64_t engine_fleet_visible(weft_ctx *ctx, struct engine *e);
bool engine_fleet_settled(weft_ctx *ctx, const struct engine *e);
/* Members "mixed" and "replicas" of /weight_info; NULL = all show the same (*err OK), or
 * out of memory. */
weft_buf *engine_fleet_mixed(const struct engine *e, weft_err *err);
void engine_fleet_status(weft_json_writer *w, const struct engine *e);
/* How each replica fared in the round that a call is answered for: a JSON array.  NULL =
 * no fleet, or out of memory. */
weft_buf *engine_fleet_results(const struct engine *e);
void engine_fleet_result(weft_json_writer *w, uint32_t rank, const char *error);
void engine_fleet_replica(weft_json_writer *w, const struct engine *e, uint32_t rank);

/* Whether rank is paused, as it has just said or confirmed. */
void engine_fleet_paused(weft_ctx *ctx, struct engine *e, uint32_t rank, bool paused);

/* ---- engine_cast.c */
/* Takes call: of a pause or cache reset; of a label (change.call) it does not. */
void engine_cast_begin(weft_ctx *ctx, struct engine *e, struct engine_call *call);
bool engine_cast_answer(weft_ctx *ctx, struct engine *e, const weft_msg *msg);
/* rank is out, fenced or not: it is not waited for; a label waits for its fence. */
void engine_cast_lost(weft_ctx *ctx, struct engine *e, uint32_t rank, const char *why);
void engine_cast_fenced(weft_ctx *ctx, struct engine *e, uint32_t rank);
/* rank has come in and must be paused, or call what it has, as the others. */
void engine_cast_pause_to(weft_ctx *ctx, struct engine *e, uint32_t rank);
void engine_cast_label_to(weft_ctx *ctx, struct engine *e, uint32_t rank);
void engine_cast_fini(weft_ctx *ctx, struct engine *e);

#endif /* WEFT_ACTORS_ENGINE_FLEET_H */
