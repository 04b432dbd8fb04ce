#include "assembly.h"
#include "journal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* The orderly end of an engine, within five seconds whoever hangs: first the answers that
 * are under way, then the children, then the actors, then what held them. */

enum {
  END_TICK_MS = 10,
  DRAIN_MS = 1000,    /* for answers under way */
  CHILDREN_MS = 2000, /* then: for children to end by themselves */
  KILLED_MS = 500,    /* then: for the kernel to take back those that did not */
  ACTORS_MS = 1000,   /* then: for the actors */
  DISK_MS = 250       /* then: for the disk to come back to the journal */
};
static_assert(DRAIN_MS + CHILDREN_MS + KILLED_MS + ACTORS_MS + DISK_MS < 5000,
              "within five seconds");

static bool answers_are_out(const weft_engine *e, uint64_t passed_ms)
{
  return !e->front || wefti_front_connections(e->front) == 0 || passed_ms >= DRAIN_MS;
}

/* false: some child is still there, and there is patience left. */
static bool children_are_gone(const weft_engine *e, uint64_t passed_ms)
{
  if (wefti_members_alive(e->members) == 0 || passed_ms >= CHILDREN_MS + KILLED_MS) {
    return true;
  }
  if (passed_ms >= CHILDREN_MS) {
    wefti_members_kill(e->members);
  }
  return false;
}

static void end_tick(void *arg)
{
  weft_engine *e = arg;
  const uint64_t now = weft_loop_now_ms(weft_runtime_loop(e->rt, 0));
  if (!e->told_children && answers_are_out(e, now - e->ending_since_ms)) {
    wefti_members_end(e->members);
    (void)wefti_post_stop(e->rt, e->core); /* first: what follows is no news to it */
    (void)wefti_post_stop(e->rt, e->supervisor);
    e->told_children = true;
    e->ending_since_ms = now;
  }
  if (e->told_children && children_are_gone(e, now - e->ending_since_ms)) {
    weft_runtime_stop(e->rt, ACTORS_MS);
    return;
  }
  weft_alarm_start(e->ending, END_TICK_MS);
}

static void begin_end(void *arg)
{
  weft_engine *e = arg;
  weft_loop *loop = weft_runtime_loop(e->rt, 0);
  e->ending_since_ms = weft_loop_now_ms(loop);
  if (e->front) {
    wefti_front_drain(e->front);
  }
  if (weft_alarm_create(loop, end_tick, e, &e->ending) != WEFT_OK) {
    weft_runtime_stop(e->rt, ACTORS_MS);
    return;
  }
  weft_alarm_start(e->ending, 0);
}

/* What the journal is at, in words, of a disk that does not come back. */
static void say_what_hangs(const weft_engine *e)
{
  char what[64] = "a session's record";
  char text[256];
  const uint64_t at = atomic_load(&e->recording);
  if (at != WEFTI_RECORDING_HISTORY) {
    (void)snprintf(what, sizeof what, "the commit record of change %" PRIu64, at);
  }
  (void)snprintf(text, sizeof text,
                 "the disk of the state directory does not come back: %s may not be "
                 "written; ending without it",
                 what);
  if (e->log && WEFT_LOG_ERROR >= e->log_level) {
    e->log(e->log_arg, WEFT_LOG_ERROR, "journal", text);
  }
}

/* false: the journal hangs in a call of the system's, and its loop with it. */
static bool stop_loops(weft_engine *e)
{
  if (!e->started) {
    return true;
  }
  if (e->remote || weft_loop_call(weft_runtime_loop(e->rt, 0), begin_end, e) != WEFT_OK) {
    weft_runtime_stop(e->rt, ACTORS_MS);
  }
  if (!e->state) {
    weft_runtime_join(e->rt);
    return true;
  }
  return weft_runtime_join_but(e->rt, e->journal_loop, DISK_MS);
}

void weft_engine_destroy(weft_engine *engine)
{
  if (!engine) {
    return;
  }
  wefti_fleet_leave(engine->fleet);
  const bool all_ended = stop_loops(engine);
  wefti_fleet_destroy(engine->fleet);
  wefti_watch_stop(engine->watch);
  wefti_front_destroy(engine->front);
  weft_jsonrep_destroy(engine->snapshot);
  weft_pub_destroy(engine->pub);
  weft_alarm_destroy(engine->ending);
  wefti_members_destroy(engine->members);
  weft_runtime_destroy(engine->rt);
  wefti_calls_destroy(engine->calls); /* its actor may have ended only now */
  wefti_manifest_drop(engine);
  weft_rundir_close(engine->rundir);
  if (!all_ended) { /* what that thread may still touch stays: the process is ending */
    say_what_hangs(engine);
    return;
  }
  weft_journal_close(engine->state);
  free(engine);
}
