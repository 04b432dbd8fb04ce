/* Reads of a member of a fleet while it has a change that its coordinator may be showing
 * already: nothing older is said then, so they wait for the coordinator's word. */
#include "engine.h"

#include <stdio.h>
#include <string.h>

enum {
  READS_MAX = 256,
  READS_MS = WEFTI_GRANT_MS /* no longer than that, though ours is renewed */
};

/* Who may not serve at all refuses instead, as before. */
static bool holds(weft_ctx *ctx, const engine *e)
{
  char reason[256];
  return engine_upstream_unshown(e) &&
         engine_upstream_serves(ctx, e, reason, sizeof reason);
}

static bool tells_what_is_visible(uint32_t what)
{
  return what == WEFT_QUERY_INFO || what == WEFT_QUERY_STATUS ||
         what == WEFT_QUERY_VERSIONS || what == WEFT_QUERY_WEIGHTS ||
         what == WEFT_QUERY_METRICS;
}

static void ask_again(weft_ctx *ctx, engine *e, weft_return ret)
{
  engine_answer a = { .err = WEFT_E_UNAVAIL };
  (void)snprintf(a.message, sizeof a.message,
                 "query: a change is on its way through fleet %s, and whether it is "
                 "visible is not known here yet; ask again",
                 e->up.fleet);
  engine_reply_to(ctx, e, ret, CALL_QUERY, weft_now_ms(ctx), &a);
}

bool engine_hold_read(weft_ctx *ctx, engine *e, const engine_read *read)
{
  engine_reads *held = &e->up.reads;
  if (!tells_what_is_visible(read->what) || !holds(ctx, e)) {
    return false;
  }
  if (held->list == NULL) {
    held->list = weft_alloc(ctx, READS_MAX * sizeof *held->list);
  }
  if (held->timer == 0) {
    held->timer = weft_timer_start(ctx, READS_MS, ENGINE_TAG(TIMER_READS, 0));
  }
  if (held->list == NULL || held->timer == 0 || held->count == READS_MAX) {
    ask_again(ctx, e, read->ret);
  } else {
    held->list[held->count] = *read;
    held->list[held->count++].at_ns = weft_boottime_ns(ctx);
  }
  return true;
}

static unsigned before(const engine_reads *held, uint64_t ns)
{
  unsigned n = 0;
  while (n < held->count && held->list[n].at_ns < ns) {
    n++;
  }
  return n;
}

static void took(weft_ctx *ctx, engine_reads *held, unsigned n)
{
  held->count -= n;
  memmove(held->list, held->list + n, held->count * sizeof *held->list);
  if (held->count == 0) {
    weft_timer_cancel(ctx, held->timer);
    held->timer = 0;
  }
}

static void answer_first(weft_ctx *ctx, engine *e, unsigned n)
{
  for (unsigned i = 0; i < n; i++) {
    engine_query_answer(ctx, e, &e->up.reads.list[i]);
  }
  if (n > 0) {
    took(ctx, &e->up.reads, n);
  }
}

void engine_hold_not_shown(weft_ctx *ctx, engine *e, uint64_t at_ns)
{
  answer_first(ctx, e, before(&e->up.reads, at_ns));
}

void engine_hold_look(weft_ctx *ctx, engine *e)
{
  if (e->up.reads.count > 0 && !holds(ctx, e)) {
    answer_first(ctx, e, e->up.reads.count);
  }
}

void engine_hold_due(weft_ctx *ctx, engine *e, uint64_t timer)
{
  engine_reads *held = &e->up.reads;
  if (held->timer != timer || held->count == 0) {
    return;
  }
  const uint64_t over = (uint64_t)READS_MS * 1000000;
  const uint64_t now = weft_boottime_ns(ctx);
  held->timer = 0;
  unsigned n = before(held, now > over ? now - over + 1 : 0);
  if (n < held->count) {
    const uint64_t left = held->list[n].at_ns + over - now;
    held->timer = weft_timer_start(ctx, left / 1000000 + 1, ENGINE_TAG(TIMER_READS, 0));
    n = held->timer == 0 ? held->count : n; /* no memory: nobody is left to wait */
  }
  for (unsigned i = 0; i < n; i++) {
    ask_again(ctx, e, held->list[i].ret);
  }
  if (n > 0) {
    took(ctx, held, n);
  }
}

void engine_hold_fini(weft_ctx *ctx, engine *e)
{
  weft_free(ctx, e->up.reads.list); /* who asked hears that the engine has ended */
}
