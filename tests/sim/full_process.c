/* Processes of workers: begun, ready, killed, gone, as the supervisor's operations and
 * the launcher of joined workers see them. */
#include "full.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

full_process *full_process_at(full *w, uint32_t rank)
{
  return w->at[rank] == 0 ? NULL : &w->processes[w->at[rank] - 1];
}

static weft_err spawn_actors(full *w, full_process *p)
{
  weft_err err = full_device_make(p);
  full_process *self = p;
  if (err == WEFT_OK) {
    err = weft_sim_spawn(w->sim, &wefti_device_class, p->device, NULL, &p->real);
  }
  if (err == WEFT_OK) {
    err = weft_sim_spawn(w->sim, &full_gate_class, &self, NULL, &p->gate);
  }
  const wefti_worker_args args = { .device = p->device,
                                   .device_actor = p->gate,
                                   .rank = p->rank,
                                   .incarnation = p->incarnation };
  return err != WEFT_OK
             ? err
             : weft_sim_spawn(w->sim, &wefti_worker_class, &args, NULL, &p->worker);
}

void full_process_begin(full *w, uint32_t rank, uint64_t incarnation, bool child)
{
  if (w->process_count == FULL_PROCS) {
    full_break(w, "the run needs more than %d processes", FULL_PROCS);
    return;
  }
  full_process *old = full_process_at(w, rank);
  if (old != NULL) {
    full_process_end(w, old);
  }
  full_process *p = &w->processes[w->process_count];
  *p = (full_process){ .w = w,
                       .index = w->process_count++,
                       .rank = rank,
                       .incarnation = incarnation,
                       .child = child };
  p->alive = true;
  w->at[rank] = p->index + 1;
  if (spawn_actors(w, p) != WEFT_OK) { /* memory: it exits at once */
    full_process_end(w, p);
    return;
  }
  full_later(w, full_random(w, w->trouble[rank].start_ms + 1),
             &(full_event){ .kind = EV_READY,
                            .rank = rank,
                            .process = p->index,
                            .incarnation = incarnation });
}

void full_process_free(full_process *p)
{
  if (p->device != NULL) {
    weft_store_destroy(p->device->store);
    free(p->device);
    p->device = NULL;
  }
}

void full_process_end(full *w, full_process *p)
{
  if (!p->alive) {
    return;
  }
  p->alive = false;
  p->busy = false;
  full_unpin_process(w, p);
  weft_sim_kill(w->sim, p->worker);
  weft_sim_kill(w->sim, p->gate);
  weft_sim_kill(w->sim, p->real);
  if (w->at[p->rank] == p->index + 1) {
    w->at[p->rank] = 0;
  }
  const full_event exit = {
    .kind = EV_EXIT, .rank = p->rank, .process = p->index, .incarnation = p->incarnation
  };
  if (p->child) {
    full_later(w, 1 + full_random(w, w->trouble[p->rank].exit_ms + 20), &exit);
    return;
  }
  /* The launcher starts another one. */
  full_later(w, 100 + full_random(w, 1500),
             &(full_event){ .kind = EV_SPAWN,
                            .rank = p->rank,
                            .incarnation = weft_sim_random(w->sim) | 1 });
}

void full_process_freeze(full *w, full_process *p, bool frozen)
{
  p->frozen = frozen;
  weft_sim_freeze(w->sim, p->worker, frozen);
  weft_sim_freeze(w->sim, p->gate, frozen);
  weft_sim_freeze(w->sim, p->real, frozen);
}

void full_processes_reap(full *w)
{
  for (uint32_t rank = 0; rank < w->ranks; rank++) {
    full_process *p = full_process_at(w, rank);
    if (p != NULL &&
        (!weft_sim_alive(w->sim, p->worker) || !weft_sim_alive(w->sim, p->gate) ||
         !weft_sim_alive(w->sim, p->real))) {
      full_process_end(w, p);
    }
  }
}

/* ---- operations of the supervisor */

static weft_err op_spawn(void *arg, uint32_t rank, uint64_t incarnation, weft_why *why)
{
  full *w = arg;
  if (w->trouble[rank].start_fails) {
    w->trouble[rank].start_fails = false;
    return weft_whyf(why, WEFT_E_SYS, "fork: out of processes");
  }
  full_later(w, 1,
             &(full_event){ .kind = EV_SPAWN, .rank = rank, .incarnation = incarnation });
  return WEFT_OK;
}

void full_kill_later(full *w, const full_process *p)
{
  if (w->kill_count < sizeof w->kill_list / sizeof w->kill_list[0]) {
    w->kill_list[w->kill_count++] = p->index;
  }
}

static void op_kill(void *arg, uint32_t rank, uint64_t incarnation)
{
  full *w = arg;
  for (unsigned i = 0; i < FULL_EVENTS; i++) { /* forked, but not under way yet */
    full_event *e = &w->events[i];
    if (e->kind == EV_SPAWN && e->rank == rank && e->incarnation == incarnation) {
      e->kind = EV_EXIT;
      return;
    }
  }
  const full_process *p = full_process_at(w, rank);
  if (p != NULL && p->incarnation == incarnation) {
    full_kill_later(w, p);
  }
}

static weft_err op_connect(void *arg, weft_ctx *ctx, const char *url, weft_actor_id *out)
{
  full *w = arg;
  const full_link_args args = { w, (uint32_t)strtoul(url, NULL, 10) };
  if (!w->processes[args.process].alive) {
    return WEFT_E_DOWN;
  }
  return weft_spawn(ctx, &full_link_class, &args, NULL, out);
}

void full_member_ops(full *w, wefti_member_ops *ops)
{
  *ops = (wefti_member_ops){
    .spawn = op_spawn, .kill = op_kill, .connect = op_connect, .arg = w
  };
}

void full_cut_link(full *w, uint32_t rank)
{
  const engine *e = weft_sim_state(w->sim, w->engine);
  const weft_client_gone cut = { .h.type = WEFT_MSG_CLIENT_GONE };
  if (e != NULL && e->members[rank].actor != 0) {
    (void)weft_sim_send(w->sim, e->members[rank].actor, &cut.h);
  }
}
