/* The world: who lives in it, its clock, and the lives of the engine. */
#include "full_http.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REJOIN_MS = 3000, CALLER_FIRST = 100 };

void full_break(full *w, const char *fmt, ...)
{
  if (w->broken) {
    return;
  }
  va_list ap;
  va_start(ap, fmt);
  (void)vsnprintf(w->why, sizeof w->why, fmt, ap);
  va_end(ap);
  w->broken = true;
}

uint64_t full_random(full *w, uint64_t below)
{
  return below == 0 ? 0 : weft_sim_random(w->sim) % below;
}

full_boot *full_boot_of(full *w, uint64_t id)
{
  for (unsigned i = 0; i <= w->boot; i++) {
    if (w->boots[i].id == id) {
      return &w->boots[i];
    }
  }
  return NULL;
}

/* ---- what comes later */

/* Most milliseconds of a run have nothing to come: they are not to look for it. */
static uint64_t due_at(full *w, uint64_t after_ms)
{
  const uint64_t at = weft_sim_now_ms(w->sim) + after_ms;
  w->next_due_ms = at < w->next_due_ms ? at : w->next_due_ms;
  return at;
}

static bool due(full *w, uint64_t at_ms)
{
  if (at_ms <= weft_sim_now_ms(w->sim)) {
    return true;
  }
  w->next_due_ms = at_ms < w->next_due_ms ? at_ms : w->next_due_ms;
  return false;
}

void full_later(full *w, uint64_t after_ms, const full_event *event)
{
  for (unsigned i = 0; i < FULL_EVENTS; i++) {
    if (w->events[i].kind == EV_NONE) {
      w->events[i] = *event;
      w->events[i].at_ms = due_at(w, after_ms);
      return;
    }
  }
  full_break(w, "more than %d events are to come", FULL_EVENTS);
}

void full_stray(full *w, const full_process *p, const weft_msg *frame, uint32_t within_ms)
{
  for (unsigned i = 0; i < FULL_STRAYS; i++) {
    full_lost_frame *f = &w->strays[i];
    if (f->msg == NULL) {
      *f = (full_lost_frame){ .msg = weft_msg_dup(weft_messages(), frame),
                              .rank = p->rank,
                              .at_ms =
                                  due_at(w, full_random(w, (uint64_t)within_ms + 1)) };
      return;
    }
  }
}

static void strays_due(full *w)
{
  for (unsigned i = 0; i < FULL_STRAYS; i++) {
    full_lost_frame *f = &w->strays[i];
    if (f->msg == NULL || !due(w, f->at_ms)) {
      continue;
    }
    const full_process *p = full_process_at(w, f->rank);
    if (p != NULL) {
      full_check_frame(w, p, f->msg);
      (void)weft_sim_send(w->sim, p->worker, f->msg);
    }
    weft_msg_drop(weft_messages(), f->msg);
    f->msg = NULL;
  }
}

static void say_ready(full *w, const full_process *p)
{
  char url[16];
  (void)snprintf(url, sizeof url, "%u", (unsigned)p->index);
  const weft_proc_ready m = { .h = { .type = WEFT_MSG_PROC_READY,
                                     .flags = WEFT_MSG_F_RESERVED },
                              .rank = p->rank,
                              .world_size = w->ranks,
                              .incarnation = p->incarnation,
                              .kind = p->child ? WEFT_MEMBER_CHILD : WEFT_MEMBER_JOINED,
                              .pid = 1000 + p->index,
                              .url = { url, (uint32_t)strlen(url) } };
  /* A child that could not say it is killed for that; a joining one says it again. */
  (void)weft_sim_send(w->sim, w->supervisor, &m.h);
}

static bool say_exit(full *w, const full_event *e)
{
  const weft_proc_exit m = { .h = { .type = WEFT_MSG_PROC_EXIT,
                                    .flags = WEFT_MSG_F_RESERVED },
                             .rank = e->rank,
                             .incarnation = e->incarnation,
                             .why = WEFT_STR("killed by a signal") };
  const weft_err err = weft_sim_send(w->sim, w->supervisor, &m.h);
  return err == WEFT_OK || err == WEFT_E_DOWN;
}

static void happen(full *w, const full_event *e)
{
  full_process *p = &w->processes[e->process];
  if (e->kind == EV_SPAWN) {
    full_process_begin(w, e->rank, e->incarnation, !w->opts.joined);
  } else if (e->kind == EV_EXIT) {
    if (!say_exit(w, e)) { /* who reaps children has its own memory: it will be told */
      full_later(w, 1, e);
    }
  } else if (p->alive && p->incarnation == e->incarnation) {
    if (p->frozen) {
      full_later(w, 50, e);
      return;
    }
    if (e->kind == EV_OFFER) {
      full_offer(w, p);
      return;
    }
    say_ready(w, p);
    if (!p->child) {
      full_later(w, REJOIN_MS, e);
    }
  }
}

static void events_due(full *w)
{
  for (unsigned i = 0; i < FULL_EVENTS; i++) {
    if (w->events[i].kind != EV_NONE && due(w, w->events[i].at_ms) && !w->broken) {
      const full_event e = w->events[i];
      w->events[i].kind = EV_NONE;
      happen(w, &e);
    }
  }
}

/* ---- time */

static void between(full *w)
{
  while (w->kill_count > 0) {
    full_process_end(w, &w->processes[w->kill_list[--w->kill_count]]);
  }
  full_processes_reap(w);
  if (w->strike != NULL && w->strike_in == 0) {
    void (*strike)(full *, uint32_t) = w->strike;
    w->strike = NULL;
    strike(w, w->strike_arg);
  }
}

static bool step(full *w)
{
  if (w->strike != NULL && w->strike_in > 0) {
    w->strike_in--;
  }
  between(w);
  return !w->broken && weft_sim_step(w->sim);
}

void full_run(full *w, uint64_t for_ms)
{
  const uint64_t until = weft_sim_now_ms(w->sim) + for_ms;
  while (!w->broken && weft_sim_now_ms(w->sim) < until) {
    if (w->next_due_ms <= weft_sim_now_ms(w->sim)) {
      w->next_due_ms = UINT64_MAX;
      events_due(w);
      strays_due(w);
    }
    if (w->http != NULL) {
      full_fronts_tick(w);
    }
    while (step(w)) {
    }
    if (!weft_sim_alive(w->sim, w->engine)) {
      full_break(w, "I6: the engine ended by itself");
    }
    /* Idle: to the next millisecond. */
    weft_sim_run(w->sim, weft_sim_now_ms(w->sim) + 1);
    if (w->engine_frozen) {
      w->frozen_ms++;
    }
    between(w);
  }
}

/* ---- the engine's process */

static weft_err spawn_engine(full *w)
{
  full_boot *b = full_now(w);
  const wefti_publisher_args pa = { .ops = { full_on_event, w } };
  weft_err err = weft_sim_spawn(w->sim, &wefti_publisher_class, &pa, NULL, &w->publisher);
  const wefti_engine_args ea = { .boot_id = b->id,
                                 .engine_id = "sim",
                                 .tp = w->ranks,
                                 .backend = "host",
                                 .publisher = w->publisher,
                                 .journal = w->journal_actor,
                                 .lease_ms = w->opts.lease_ms,
                                 .draft = w->opts.draft,
                                 .inplace = w->opts.inplace,
                                 .on_visible = full_on_visible,
                                 .on_visible_arg = w };
  if (err == WEFT_OK) {
    err = weft_sim_spawn(w->sim, &wefti_engine_core_class, &ea, NULL, &w->engine);
  }
  wefti_supervisor_args sa = { .engine = w->engine,
                               .world_size = w->ranks,
                               .children = !w->opts.joined };
  full_member_ops(w, &sa.ops);
  return err != WEFT_OK
             ? err
             : weft_sim_spawn(w->sim, &wefti_supervisor_class, &sa, NULL, &w->supervisor);
}

static void new_boot(full *w, unsigned index)
{
  w->boot = index;
  full_boot *b = full_now(w);
  b->id = 0xb007 + index;
  b->next_event = 1;
  (void)snprintf(b->version, sizeof b->version, "default");
}

void full_engine_crash(full *w)
{
  if (w->boot + 1 == FULL_BOOTS) {
    return;
  }
  full_check_history(w);
  for (unsigned i = 0; i < w->call_count; i++) { /* may reach the next life */
    w->calls[i].carried = w->calls[i].open && w->clients[w->calls[i].client].way != 0;
  }
  if (w->http != NULL) {
    full_front_crash(w, 0, 0);
  }
  weft_sim_kill(w->sim, w->supervisor);
  weft_sim_kill(w->sim, w->engine);
  weft_sim_kill(w->sim, w->publisher);
  w->engine_frozen = false;
  w->journal.held = false;
  w->kill_count = 0;
  for (unsigned i = 0; i < FULL_EVENTS; i++) { /* its children's, of whom nobody hears */
    const full_event *e = &w->events[i];
    if (e->kind == EV_EXIT || (e->kind == EV_SPAWN && !w->opts.joined)) {
      w->events[i].kind = EV_NONE;
    }
  }
  for (uint32_t i = 0; i < w->ranks; i++) {
    full_process *p = full_process_at(w, i);
    if (p != NULL && p->child) { /* its lifeline broke */
      full_process_end(w, p);
    }
  }
  for (unsigned i = 0; i < FULL_EVENTS; i++) {
    if (w->events[i].kind == EV_EXIT) {
      w->events[i].kind = EV_NONE;
    }
  }
  memset(w->kept, 0, sizeof w->kept); /* they were in its keeping */
  weft_sim_fail_alloc(w->sim, 0);
  new_boot(w, w->boot + 1);
  w->first_call = w->call_count;
  if (spawn_engine(w) != WEFT_OK) {
    full_break(w, "the engine does not come back");
  }
  if (w->http != NULL) {
    full_front_begin(w, 0);
  }
}

void full_engine_freeze(full *w, bool frozen)
{
  w->engine_frozen = frozen;
  weft_sim_freeze(w->sim, w->engine, frozen);
  weft_sim_freeze(w->sim, w->supervisor, frozen);
  weft_sim_freeze(w->sim, w->publisher, frozen);
  if (w->http != NULL) {
    full_front_freeze(w, 0, frozen);
  }
}

/* ---- begin and end */

/* The scheduler's clock stands still when nobody has a timer. */
static weft_err clock_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)self, (void)args;
  return weft_timer_start(ctx, UINT32_MAX, 0) == 0 ? WEFT_E_NOMEM : WEFT_OK;
}

static weft_err clock_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  (void)ctx, (void)self, (void)msg;
  return WEFT_OK;
}

static const weft_actor_class clock_class = { "clock", 1, clock_init, NULL, clock_on };

void full_start(full *w, const full_opts *opts)
{
  *w = (full){ .opts = *opts, .ranks = opts->ranks };
  w->boots = calloc(FULL_BOOTS, sizeof *w->boots);
  w->processes = calloc(FULL_PROCS, sizeof *w->processes);
  w->calls = calloc(FULL_CALLS, sizeof *w->calls);
  const weft_sim_opts so = { .size = sizeof so,
                             .seed = opts->seed,
                             .catalogue = weft_messages(),
                             .step = full_check_step,
                             .arg = w,
                             .trace = opts->trace };
  weft_err err = weft_sim_create(&so, &w->sim);
  if (err != WEFT_OK || w->boots == NULL || w->processes == NULL || w->calls == NULL) {
    abort(); /* a test without memory */
  }
  new_boot(w, 0);
  full *self = w;
  weft_actor_id clock;
  err = weft_sim_spawn(w->sim, &clock_class, NULL, NULL, &clock);
  if (err == WEFT_OK && opts->with_journal) {
    err = weft_sim_spawn(w->sim, &full_journal_class, &self, NULL, &w->journal_actor);
  }
  if (err == WEFT_OK) {
    err = spawn_engine(w);
  }
  for (unsigned i = 0; i < FULL_CLIENTS && err == WEFT_OK; i++) {
    const struct {
      full *w;
      unsigned index;
    } args = { w, i };
    w->clients[i].caller = CALLER_FIRST + i;
    err = weft_sim_spawn(w->sim, &full_client_class, &args, NULL, &w->clients[i].actor);
  }
  if (err != WEFT_OK) {
    full_break(w, "cannot build the world: %s", weft_err_name(err));
  }
  for (unsigned i = 0; i < FULL_CLIENTS && w->http == NULL; i++) {
    if (opts->way[i] != 0) {
      full_fronts_make(w);
    }
  }
  for (uint32_t i = 0; i < w->ranks && opts->joined; i++) {
    full_later(w, 1 + full_random(w, 100),
               &(full_event){ .kind = EV_SPAWN,
                              .rank = i,
                              .incarnation = weft_sim_random(w->sim) | 1 });
  }
}

void full_stop(full *w)
{
  for (unsigned i = 0; i < FULL_HELD; i++) {
    full_unpin(w, i);
  }
  weft_sim_destroy(w->sim);
  for (unsigned i = 0; i < FULL_STRAYS; i++) { /* those of links that end with it too */
    if (w->strays[i].msg != NULL) {
      weft_msg_drop(weft_messages(), w->strays[i].msg);
    }
  }
  for (uint32_t i = 0; i < w->process_count; i++) {
    full_process_free(&w->processes[i]);
    if (w->processes[i].memory_held != 0) {
      full_break(w, "rank %u leaks %u extents", (unsigned)w->processes[i].rank,
                 (unsigned)w->processes[i].memory_held);
    }
  }
  full_fronts_end(w);
  free(w->boots);
  free(w->processes);
  free(w->calls);
}
