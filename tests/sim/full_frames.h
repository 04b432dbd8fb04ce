/* full_frames.h -- a simulated connection: the questions that are on their way over it or
 * wait for their answers, each on its own way there and back, and its end.  Not here:
 * what becomes of one that arrives (full_link.c, full_wire.c). */
#ifndef WEFT_TESTS_SIM_FULL_FRAMES_H
#define WEFT_TESTS_SIM_FULL_FRAMES_H

#include "full.h"

enum { FULL_FRAMES = 96 };

typedef enum full_leg { FULL_THERE = 1, FULL_BACK } full_leg;

typedef struct full_frame {
  weft_msg *msg;    /* NULL = free */
  weft_msg *answer; /* on its way back */
  weft_return to;
  uint64_t corr[2]; /* as asked of who gets it, twice when doubled; 0 = not */
  uint32_t gen;
  uint32_t process; /* of a link: where it went, … */
  bool answered;    /* … and whether by an echo */
  uint64_t caller;  /* of a wire: asked for whom; 0 = for nobody */
} full_frame;

typedef struct full_way {
  full *w;
  bool dying;
  full_frame frames[FULL_FRAMES];
} full_way;

/* NULL when all are in use. */
full_frame *full_way_free_frame(full_way *way);
void full_frame_fill(full_frame *f, const weft_msg *msg);
void full_frame_drop(weft_ctx *ctx, full_frame *f);
/* Takes less than most_ms; false: no time at all, it is there. */
bool full_way_takes(weft_ctx *ctx, const full_way *way, const full_frame *f, full_leg leg,
                    uint32_t most_ms);
/* What full_way_takes, or the end, has set a timer for.  NULL: it is gone, or the
 * connection is. */
full_frame *full_way_timer(weft_ctx *ctx, full_way *way, uint64_t tag, full_leg *leg);
void full_way_die(weft_ctx *ctx, full_way *way); /* in a while */

#endif /* WEFT_TESTS_SIM_FULL_FRAMES_H */
