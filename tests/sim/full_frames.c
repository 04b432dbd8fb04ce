#include "full_frames.h"

enum { DEATH_MS = 40 };
#define DEAD_TAG UINT64_MAX
#define GEN_BITS 0xffffffu

full_frame *full_way_free_frame(full_way *way)
{
  for (unsigned i = 0; i < FULL_FRAMES; i++) {
    if (way->frames[i].msg == NULL) {
      return &way->frames[i];
    }
  }
  return NULL;
}

void full_frame_fill(full_frame *f, const weft_msg *msg)
{
  f->msg = weft_msg_dup(weft_messages(), msg);
  f->to = weft_return_of(msg);
}

void full_frame_drop(weft_ctx *ctx, full_frame *f)
{
  weft_ask_cancel(ctx, f->corr[0]);
  weft_ask_cancel(ctx, f->corr[1]);
  weft_msg_drop(weft_messages(), f->msg);
  if (f->answer != NULL) {
    weft_msg_drop(weft_messages(), f->answer);
  }
  *f = (full_frame){ .gen = f->gen + 1 };
}

bool full_way_takes(weft_ctx *ctx, const full_way *way, const full_frame *f, full_leg leg,
                    uint32_t most_ms)
{
  const uint64_t ms = full_random(way->w, most_ms);
  const uint64_t tag = (uint64_t)leg << 56 | (uint64_t)(f->gen & GEN_BITS) << 16 |
                       (uint64_t)(f - way->frames);
  return ms > 0 && weft_timer_start(ctx, ms, tag) != 0;
}

full_frame *full_way_timer(weft_ctx *ctx, full_way *way, uint64_t tag, full_leg *leg)
{
  *leg = (full_leg)(tag >> 56);
  if (tag == DEAD_TAG) {
    weft_stop(ctx, WEFT_E_DOWN);
    return NULL;
  }
  full_frame *f = &way->frames[tag & 0xffff];
  return f->msg != NULL && (f->gen & GEN_BITS) == (tag >> 16 & GEN_BITS) ? f : NULL;
}

void full_way_die(weft_ctx *ctx, full_way *way)
{
  if (!way->dying) {
    way->dying = true;
    if (weft_timer_start(ctx, full_random(way->w, DEATH_MS), DEAD_TAG) == 0) {
      weft_stop(ctx, WEFT_E_DOWN);
    }
  }
}
