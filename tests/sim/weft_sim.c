/* weft-sim: random clients against random faults, seed after seed, with every invariant
 * of the commit checked at every step (world.c) and at the end: every call was answered
 * in time, and a fresh init, start, update, finish works (I5, I7).
 *
 *   weft-sim [--seeds N] [--first S] [--trace]
 */
#include "world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ACTIONS = 60, CALL_MS_MAX = 12000 };

typedef struct run {
  world w;
  uint64_t allowed_ms[WORLD_CLIENTS]; /* for the call under way */
  bool pending[WORLD_CLIENTS];
  unsigned pushes;
} run;

static uint64_t pick(run *r, uint64_t n)
{
  return weft_sim_random(r->w.sim) % n;
}

/* I5: one answer, inside the deadline plus one second. */
static void collect(run *r)
{
  for (unsigned i = 0; i < WORLD_CLIENTS; i++) {
    const world_answer *a = &r->w.answers[i];
    if (r->pending[i] && a->came) {
      r->pending[i] = false;
      if (a->at_ms - a->asked_ms > r->allowed_ms[i] + 1000) {
        world_break(&r->w,
                    "I5: client %u was answered after %" PRIu64 " ms of %" PRIu64 ": %s",
                    i, a->at_ms - a->asked_ms, r->allowed_ms[i], a->message);
      }
    }
  }
}

static void advance(run *r, uint64_t ms)
{
  for (uint64_t i = 0; i < ms && !r->w.broken; i += 20) {
    world_run(&r->w, 20);
    collect(r);
  }
}

/* Abort, label and finish wait for a commit under way, whatever their own deadline; abort
 * answers when the workers have let go or are fenced. */
enum { LETTING_GO_MS = 5000 };

static void call_something(run *r, unsigned client)
{
  const uint32_t timeout_ms = 500 + (uint32_t)pick(r, CALL_MS_MAX);
  const uint64_t caller = 100 + client;
  char text[32];
  (void)snprintf(text, sizeof text, "{\"push\":%u}", r->pushes++);
  weft_buf *info = weft_buf_create(text, strlen(text));
  const weft_str version = { text, (uint32_t)strlen(text) };
  r->pending[client] = true;
  r->allowed_ms[client] = timeout_ms;
  switch (pick(r, 12)) {
  case 0: {
    const weft_client_init m = { .h.type = WEFT_MSG_CLIENT_INIT,
                                 .caller = caller,
                                 .timeout_ms = timeout_ms,
                                 .info = info };
    world_post(&r->w, client, &m.h);
    break;
  }
  case 1:
  case 2:
  case 3: {
    const weft_client_start m = { .h.type = WEFT_MSG_CLIENT_START,
                                  .caller = caller,
                                  .timeout_ms = timeout_ms };
    world_post(&r->w, client, &m.h);
    break;
  }
  case 4:
  case 5:
  case 6: {
    const weft_client_update m = { .h.type = WEFT_MSG_CLIENT_UPDATE,
                                   .caller = caller,
                                   .timeout_ms = timeout_ms,
                                   .info = info };
    world_post(&r->w, client, &m.h);
    break;
  }
  case 7:
  case 8:
  case 9: {
    const weft_client_finish m = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                   .caller = caller,
                                   .timeout_ms = timeout_ms,
                                   .has_version = 1,
                                   .version = version };
    world_post(&r->w, client, &m.h);
    break;
  }
  case 10: {
    const weft_client_label m = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                  .caller = caller,
                                  .timeout_ms = timeout_ms,
                                  .version = version };
    world_post(&r->w, client, &m.h);
    break;
  }
  default: {
    const weft_client_abort m = { .h.type = WEFT_MSG_CLIENT_ABORT,
                                  .caller = caller,
                                  .timeout_ms = timeout_ms };
    r->allowed_ms[client] += LETTING_GO_MS;
    world_post(&r->w, client, &m.h);
    break;
  }
  }
  weft_buf_unref(info);
}

static void harm(run *r)
{
  world_worker *o = &r->w.workers[pick(r, r->w.ranks)];
  switch (pick(r, 8)) {
  case 0:
    if (o->alive) {
      weft_sim_kill(r->w.sim, o->actor);
    }
    break;
  case 1:
    if (o->alive) {
      o->frozen = !o->frozen;
      weft_sim_freeze(r->w.sim, o->actor, o->frozen);
    }
    break;
  case 2:
    r->w.journal_fails_once = true;
    break;
  case 3:
    r->w.journal_slow = !r->w.journal_slow;
    break;
  default:
    o->fault = (world_fault){ .type = (uint16_t)(WEFT_MSG_W_START + pick(r, 6)),
                              .slow_ms = (uint32_t)pick(r, 4000),
                              .once = true };
    o->fault.kind = pick(r, 6);
    break;
  }
}

static void heal(run *r)
{
  r->w.journal_slow = false;
  for (uint32_t i = 0; i < r->w.ranks; i++) {
    r->w.workers[i].fault.type = 0;
    if (r->w.workers[i].frozen && r->w.workers[i].alive) {
      weft_sim_freeze(r->w.sim, r->w.workers[i].actor, false);
    }
    r->w.workers[i].frozen = false;
  }
  for (unsigned i = 0; i < WORLD_CLIENTS; i++) {
    const weft_client_gone gone = { .h.type = WEFT_MSG_CLIENT_GONE, .caller = 100 + i };
    if (weft_sim_send(r->w.sim, r->w.clients[i], &gone.h) != WEFT_OK) {
      world_break(&r->w, "cannot send");
    }
  }
  advance(r, 30000);
}

static void must(run *r, const world_answer *a, const char *what)
{
  if (!a->came || a->err != WEFT_OK) {
    world_break(&r->w, "I7: %s after all faults: %s %s", what, weft_err_name(a->err),
                a->message);
  }
}

static void check_end(run *r)
{
  heal(r);
  for (unsigned i = 0; i < WORLD_CLIENTS; i++) {
    if (r->pending[i]) {
      world_break(&r->w, "I5: client %u has no answer", i);
    }
  }
  if (!r->w.broken) {
    must(r, world_init(&r->w, 0), "init");
    must(r, world_begin(&r->w, 0), "start");
    must(r, world_update(&r->w, 0, "{\"last\":1}", 0), "update");
    must(r, world_finish(&r->w, 0, "last", 0), "finish");
    must(r, world_query(&r->w, 0, WEFT_QUERY_READY), "ready");
  }
  for (uint32_t i = 1; i < r->w.ranks && !r->w.broken; i++) {
    if (r->w.workers[i].live != r->w.workers[0].live) {
      world_break(&r->w, "I3: rank %u ends with other bytes", i);
    }
  }
  if (!r->w.broken && r->w.visible_count != r->w.commit_events) {
    world_break(&r->w, "I4: %u visible changes, %u events", r->w.visible_count,
                r->w.commit_events);
  }
}

/* false and the reason on stderr when an invariant broke. */
static bool run_seed(uint64_t seed, bool trace, uint64_t *hash)
{
  run *r = calloc(1, sizeof *r);
  if (r == NULL) {
    abort();
  }
  world_start(&r->w, &(world_opts){ .seed = seed,
                                    .ranks = 1 + (uint32_t)(seed % 3),
                                    .with_journal = (seed / 3) % 2 != 0,
                                    .joined = (seed / 6) % 2 != 0,
                                    .lease_ms = (seed / 12) % 2 != 0 ? 3000 : 0,
                                    .trace = trace });
  for (unsigned i = 0; i < ACTIONS && !r->w.broken; i++) {
    const unsigned client = (unsigned)pick(r, WORLD_CLIENTS);
    if (pick(r, 3) == 0) {
      harm(r);
    }
    if (pick(r, 12) == 0) {
      const weft_client_gone gone = { .h.type = WEFT_MSG_CLIENT_GONE,
                                      .caller = 100 + client };
      (void)weft_sim_send(r->w.sim, r->w.clients[client], &gone.h);
    } else if (!r->pending[client]) {
      call_something(r, client);
    }
    advance(r, pick(r, 10) == 0 ? 8000 : 20 + pick(r, 300));
  }
  if (!r->w.broken) {
    check_end(r);
  }
  *hash = weft_sim_hash(r->w.sim);
  const bool fine = !r->w.broken;
  if (!fine) {
    (void)fprintf(stderr, "seed %" PRIu64 " at %" PRIu64 " ms: %s\n", seed,
                  weft_sim_now_ms(r->w.sim), r->w.why);
  }
  world_stop(&r->w);
  free(r);
  return fine;
}

int main(int argc, char **argv)
{
  uint64_t seeds = 200;
  uint64_t first = 1;
  bool trace = false;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
      seeds = strtoull(argv[++i], NULL, 10);
    } else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) {
      first = strtoull(argv[++i], NULL, 10);
    } else if (strcmp(argv[i], "--trace") == 0) {
      trace = true;
    } else {
      (void)fprintf(stderr, "usage: weft-sim [--seeds N] [--first SEED] [--trace]\n");
      return 2;
    }
  }
  uint64_t failed = 0;
  for (uint64_t s = first; s < first + seeds; s++) {
    uint64_t hash;
    uint64_t again;
    if (!run_seed(s, trace, &hash)) {
      failed++;
    } else if (s == first && (!run_seed(s, false, &again) || again != hash)) {
      (void)fprintf(stderr, "seed %" PRIu64 " did not run the same way twice\n", s);
      failed++;
    }
  }
  (void)printf("%" PRIu64 " seeds, %" PRIu64 " failed\n", seeds, failed);
  return failed == 0 ? 0 : 1;
}
