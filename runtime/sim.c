#include "weft/sim.h"

#include "scheduler.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_A_MS = 100000, KILLS_LATER = 16, CLOCK_START_MS = 1000 };
#define WALL_BASE_MS 1767225600000u /* 2026-01-01 */

typedef struct delayed {
  wefti_wnode node; /* first */
  weft_sim *sim;
  weft_msg *msg;
  struct delayed *next, **pprev;
} delayed;

struct weft_sim {
  wefti_sched *sched; /* the only one: its own peer */
  wefti_hooks hooks;
  weft_sim_opts opts;
  uint64_t order_rng; /* who runs */
  uint64_t actor_rng; /* what weft_random gives */
  uint64_t test_rng;  /* what weft_sim_random gives */
  uint64_t hash;
  uint64_t fail_in;
  uint64_t steps_left; /* until the clock moves by itself */
  delayed *delayed;
  bool in_turn;
  unsigned kill_count;
  weft_actor_id kill_later[KILLS_LATER];
};

/* Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014). */
static uint64_t splitmix(uint64_t *state)
{
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* ---- hooks */

/* Sends on what has been held up.  A question that can no longer be put fails. */
static void go_on(weft_sim *sim, weft_msg *msg)
{
  const weft_actor_id from = msg->from;
  const uint64_t corr = (msg->flags & WEFT_MSG_F_REPLY) != 0 ? 0 : msg->corr;
  msg->flags |= WEFTI_F_NOFATE;
  const weft_err err = wefti_route(sim->sched, msg);
  if (err != WEFT_OK && corr != 0) {
    wefti_ask_fail_corr(sim->sched, from, corr, err);
  }
}

static void delay_over(wefti_wnode *node)
{
  delayed *d = (delayed *)node; /* node is the first member */
  weft_sim *sim = d->sim;
  weft_msg *msg = d->msg;
  *d->pprev = d->next;
  if (d->next != NULL) {
    d->next->pprev = d->pprev;
  }
  free(d);
  go_on(sim, msg);
}

static bool delay(weft_sim *sim, weft_msg *msg, uint64_t ms)
{
  delayed *d = calloc(1, sizeof *d);
  if (d == NULL) {
    return false;
  }
  d->sim = sim;
  d->msg = msg;
  d->next = sim->delayed;
  if (d->next != NULL) {
    d->next->pprev = &d->next;
  }
  d->pprev = &sim->delayed;
  sim->delayed = d;
  d->node.fire = delay_over;
  wefti_wheel_add(&sim->sched->wheel, &d->node, wefti_now_ms(sim->sched) + ms);
  return true;
}

static wefti_fate on_way(void *arg, weft_msg *msg)
{
  weft_sim *sim = arg;
  if (sim->opts.fate == NULL || (msg->flags & WEFTI_F_NOFATE) != 0) {
    return WEFTI_GO_ON;
  }
  uint64_t delay_ms = 0;
  switch (sim->opts.fate(sim->opts.arg, msg, &delay_ms)) {
  case WEFT_SIM_DELIVER:
    return WEFTI_GO_ON;
  case WEFT_SIM_DROP:
    wefti_msg_free(sim->sched, msg);
    return WEFTI_TAKEN;
  case WEFT_SIM_DELAY:
    return delay(sim, msg, delay_ms) ? WEFTI_TAKEN : WEFTI_GO_ON;
  case WEFT_SIM_TWICE: {
    weft_msg *again = wefti_msg_clone(sim->sched->catalogue, msg);
    go_on(sim, msg);
    if (again != NULL) {
      again->flags |= WEFTI_F_NOFATE;
      (void)wefti_route(sim->sched, again); /* the second one may be lost */
    }
    return WEFTI_TAKEN;
  }
  }
  return WEFTI_GO_ON;
}

static void fold(weft_sim *sim, uint64_t v)
{
  sim->hash = (sim->hash ^ v) * 0x100000001b3u;
  sim->hash ^= sim->hash >> 29;
}

static void delivered(void *arg, const weft_msg *msg)
{
  weft_sim *sim = arg;
  const uint64_t now = wefti_now_ms(sim->sched);
  fold(sim, msg->to);
  fold(sim, msg->type);
  fold(sim, now);
  if (sim->opts.trace) {
    const weft_msg_desc *desc = weft_msg_desc_of(sim->sched->catalogue, msg->type);
    const weft_ctx *to = wefti_lookup(sim->sched, msg->to);
    (void)fprintf(stderr,
                  "sim %" PRIu64 " ms: %s (%" PRIx64 ") <- %s (%#x) from %" PRIx64
                  " corr=%" PRIx64 "\n",
                  now, to != NULL ? to->name : "?", msg->to,
                  desc != NULL ? desc->name : "system or host", msg->type, msg->from,
                  msg->corr);
  }
  if (sim->opts.step != NULL) {
    sim->opts.step(sim->opts.arg, msg);
  }
}

static uint64_t actor_random(void *arg)
{
  return splitmix(&((weft_sim *)arg)->actor_rng);
}

static void log_line(void *arg, const char *who, weft_log_level level, const char *line)
{
  const weft_sim *sim = arg;
  if (sim->opts.trace) {
    (void)fprintf(stderr, "sim %" PRIu64 " ms: log %d %s: %s\n", wefti_now_ms(sim->sched),
                  (int)level, who, line);
  }
}

static bool alloc_fails(void *arg)
{
  weft_sim *sim = arg;
  return sim->fail_in != 0 && --sim->fail_in == 0;
}

/* ---- life */

weft_err weft_sim_create(const weft_sim_opts *opts, weft_sim **out)
{
  if (opts->size != sizeof *opts) {
    return WEFT_E_INVAL;
  }
  weft_sim *sim = calloc(1, sizeof *sim);
  if (sim == NULL) {
    return WEFT_E_NOMEM;
  }
  const weft_err err = wefti_sched_create(0, &sim->sched);
  if (err != WEFT_OK) {
    free(sim);
    return err;
  }
  sim->opts = *opts;
  uint64_t seed = opts->seed;
  sim->order_rng = splitmix(&seed);
  sim->actor_rng = splitmix(&seed);
  sim->test_rng = splitmix(&seed);
  sim->hash = 0xcbf29ce484222325u;
  sim->steps_left = STEPS_A_MS;
  sim->hooks = (wefti_hooks){ .on_way = on_way,
                              .delivered = delivered,
                              .random = actor_random,
                              .log = log_line,
                              .alloc_fails = alloc_fails,
                              .arg = sim };
  wefti_sched *s = sim->sched;
  s->hooks = &sim->hooks;
  s->peers = &sim->sched;
  s->peer_count = 1;
  s->catalogue = opts->catalogue;
  s->fake_clock = true;
  s->wall_base_ms = WALL_BASE_MS;
  wefti_wheel_advance(&s->wheel, CLOCK_START_MS);
  *out = sim;
  return WEFT_OK;
}

void weft_sim_destroy(weft_sim *sim)
{
  if (sim == NULL) {
    return;
  }
  sim->opts.fate = NULL; /* what they look at may be gone */
  sim->opts.step = NULL;
  sim->fail_in = 0;
  wefti_sched_close(sim->sched);
  while (sim->delayed != NULL) {
    delayed *d = sim->delayed;
    sim->delayed = d->next;
    wefti_wheel_remove(&sim->sched->wheel, &d->node);
    wefti_msg_free(sim->sched, d->msg);
    free(d);
  }
  wefti_sched_destroy(sim->sched);
  free(sim);
}

weft_err weft_sim_spawn(weft_sim *sim, const weft_actor_class *cls, const void *args,
                        const weft_spawn_opts *opts, weft_actor_id *out)
{
  return wefti_spawn(sim->sched, NULL, cls, args, opts, out);
}

weft_err weft_sim_send(weft_sim *sim, weft_actor_id to, const weft_msg *tmpl)
{
  size_t size;
  const weft_err err = wefti_msg_packed_size(sim->sched->catalogue, tmpl, &size);
  if (err != WEFT_OK) {
    return err;
  }
  weft_msg *msg = wefti_msg_copy(sim->sched, tmpl);
  if (msg == NULL) {
    return WEFT_E_NOMEM;
  }
  msg->from = 0;
  msg->to = to;
  msg->corr = 0;
  msg->flags &= WEFT_MSG_F_RESERVED | WEFT_MSG_F_DEEP;
  return wefti_route(sim->sched, msg);
}

/* ---- running */

static void purge_dead(wefti_sched *s)
{
  weft_ctx **at = &s->run_head;
  s->run_tail = at;
  while (*at != NULL) {
    weft_ctx *a = *at;
    if (weft_self(a) == 0) {
      *at = a->run_next;
      a->scheduled = false;
      wefti_slot_release(a);
    } else {
      at = &a->run_next;
    }
    s->run_tail = at;
  }
}

/* Takes a runnable actor, picked by the seed, out of the run queue. */
static weft_ctx *pick(weft_sim *sim)
{
  wefti_sched *s = sim->sched;
  uint64_t n = 0;
  purge_dead(s);
  for (const weft_ctx *a = s->run_head; a != NULL; a = a->run_next) {
    n += (a->flags & WEFTI_A_FROZEN) == 0;
  }
  if (n == 0) {
    return NULL;
  }
  uint64_t k = splitmix(&sim->order_rng) % n;
  weft_ctx **at = &s->run_head;
  while (((*at)->flags & WEFTI_A_FROZEN) != 0 || k-- != 0) {
    at = &(*at)->run_next;
  }
  weft_ctx *a = *at;
  *at = a->run_next;
  if (*at == NULL) {
    s->run_tail = at;
  }
  return a;
}

bool weft_sim_step(weft_sim *sim)
{
  weft_ctx *a = pick(sim);
  if (a == NULL) {
    return false;
  }
  sim->in_turn = true;
  (void)wefti_turn(a, 1);
  sim->in_turn = false;
  while (sim->kill_count > 0) {
    weft_sim_kill(sim, sim->kill_later[--sim->kill_count]);
  }
  wefti_flush(sim->sched);
  if (--sim->steps_left == 0) {
    sim->steps_left = STEPS_A_MS;
    wefti_advance(sim->sched, wefti_now_ms(sim->sched) + 1);
  }
  return true;
}

void weft_sim_run(weft_sim *sim, uint64_t until_ms)
{
  wefti_sched *s = sim->sched;
  for (;;) {
    wefti_advance(s, wefti_now_ms(s)); /* timers of 0 ms */
    if (weft_sim_step(sim)) {
      if (wefti_now_ms(s) >= until_ms && sim->steps_left == STEPS_A_MS) {
        return; /* it was the clock's own step: they never rest */
      }
      continue;
    }
    const uint64_t next = wefti_wheel_next(&s->wheel);
    if (next == WEFTI_WHEEL_NEVER || wefti_now_ms(s) >= until_ms) {
      return;
    }
    wefti_advance(s, next < until_ms ? next : until_ms);
    sim->steps_left = STEPS_A_MS;
  }
}

/* ---- faults and looks */

void weft_sim_kill(weft_sim *sim, weft_actor_id who)
{
  weft_ctx *a = wefti_lookup(sim->sched, who);
  if (a == NULL) {
    return;
  }
  a->flags = (a->flags | WEFTI_A_MUTED) & ~(uint32_t)WEFTI_A_FROZEN;
  if (!sim->in_turn) {
    wefti_end(a, WEFT_E_DOWN);
  } else if (sim->kill_count < KILLS_LATER) {
    sim->kill_later[sim->kill_count++] = who;
  } else {
    weft_stop(a, WEFT_E_DOWN);
  }
}

void weft_sim_freeze(weft_sim *sim, weft_actor_id who, bool frozen)
{
  weft_ctx *a = wefti_lookup(sim->sched, who);
  if (a != NULL) {
    a->flags = frozen ? a->flags | WEFTI_A_FROZEN : a->flags & ~(uint32_t)WEFTI_A_FROZEN;
  }
}

void weft_sim_fail_alloc(weft_sim *sim, uint64_t nth)
{
  sim->fail_in = nth;
}

bool weft_sim_alive(const weft_sim *sim, weft_actor_id who)
{
  return wefti_lookup(sim->sched, who) != NULL;
}

void *weft_sim_state(weft_sim *sim, weft_actor_id who)
{
  const weft_ctx *a = wefti_lookup(sim->sched, who);
  return a == NULL ? NULL : a->state;
}

uint64_t weft_sim_now_ms(const weft_sim *sim)
{
  return wefti_now_ms(sim->sched);
}

uint64_t weft_sim_random(weft_sim *sim)
{
  return splitmix(&sim->test_rng);
}

uint64_t weft_sim_hash(const weft_sim *sim)
{
  return sim->hash;
}
