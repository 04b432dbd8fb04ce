/* Faults, as the plan draws them. */
#include "plan.h"

static void strike_kill(full *w, uint32_t rank)
{
  full_process *p = full_process_at(w, rank);
  if (p != NULL) {
    full_process_end(w, p);
  }
}

static void strike_freeze(full *w, uint32_t rank)
{
  full_process *p = full_process_at(w, rank);
  if (p != NULL) {
    full_process_freeze(w, p, true);
  }
}

static void strike_cut(full *w, uint32_t rank)
{
  full_cut_link(w, rank);
}

void plan_strike(full *w, void (*fn)(full *, uint32_t), uint32_t arg, uint32_t steps)
{
  w->strike = fn;
  w->strike_arg = arg;
  w->strike_in = steps;
}

static void do_net(full_trouble *t, const plan_action *a)
{
  static const uint16_t echoed[] = { WEFT_MSG_W_START,  WEFT_MSG_W_ACCEPT,
                                     WEFT_MSG_W_GO,     WEFT_MSG_W_FINISH,
                                     WEFT_MSG_W_FINISH, WEFT_MSG_W_PUBLISH,
                                     WEFT_MSG_W_ABORT,  WEFT_MSG_W_FINISH };
  t->echo_type = a->c % 3 == 0 ? echoed[a->c / 4 % 8] : 0;
  static const uint32_t delays[] = { 0, 5, 40, 400, 3000, 6000 };
  t->net_delay_ms = delays[a->b % 6];
  t->net_twice = a->b / 8 % 3 == 0 ? 30 : 0;
  t->net_lost = a->b / 32 % 5 == 0 ? 20 : 0;
}

static void do_device(full_trouble *t, const plan_action *a, bool calm)
{
  static const uint32_t slow[] = { 0, 10, 300, 3000 };
  t->device_slow_ms = slow[a->b % 4];
  t->device_hangs = !calm && a->b / 4 % 4 == 0;
  t->ignores_cancel = a->b / 16 % 2 == 0;
}

static void do_fail(full_trouble *t, const plan_action *a)
{
  t->fail_accept = t->fail_accept || a->b % 3 == 0;
  t->fail_receive = t->fail_receive || a->b % 3 == 1;
  t->fail_first = t->fail_first || (a->b % 3 == 1 && a->c % 3 == 0);
  t->corrupt = t->corrupt || a->b % 3 == 2;
  t->offer_wrong = t->offer_wrong || a->b / 3 % 3 == 0;
  t->offer_damaged = t->offer_damaged || a->b / 3 % 3 == 1;
}

static void do_start(full_trouble *t, const plan_action *a)
{
  static const uint32_t ready[] = { 0, 100, 2000, 12000 };
  static const uint32_t exits[] = { 0, 100, 3000, 6000 };
  t->start_ms = ready[a->b % 4];
  t->exit_ms = exits[a->b / 4 % 4];
  t->start_fails = a->b / 16 % 2 == 0;
  t->offer_slow = a->b / 32 % 4 == 0;
  t->offer_lost = a->b / 128 % 8 == 0;
}

static void do_journal(full *w, const plan_action *a)
{
  switch (a->b % 5) {
  case 0:
    w->journal.fails_once = true;
    break;
  case 1:
    w->journal.torn_once = true;
    break;
  case 2:
    w->journal.slow = !w->journal.slow;
    break;
  case 3:
    w->journal.hangs = true;
    break;
  default:
    full_journal_heal(w);
    break;
  }
}

static void do_alloc(full *w, const plan_action *a)
{
  w->allocs_failed++;
  weft_sim_fail_alloc(w->sim, 1 + a->b % 400);
  w->excused_until =
      weft_sim_now_ms(w->sim) + 10000; /* a lost answer cannot be in time */
  w->memory_excused_until = w->excused_until;
}

static void do_flood(full *w, const plan_action *a)
{
  const weft_client_gone gone = { .h.type = WEFT_MSG_CLIENT_GONE, .caller = 7 };
  const weft_member_fence fence = { .h.type = WEFT_MSG_MEMBER_FENCE, .rank = UINT32_MAX };
  w->flooded = true;
  for (unsigned i = 0; i < 1100; i++) {
    if (a->b % 2 == 0) {
      (void)weft_sim_send(w->sim, w->engine, &gone.h);
    } else {
      (void)weft_sim_send(w->sim, w->supervisor, &fence.h);
    }
  }
}

static void do_ambush(full_trouble *t, const plan_action *a)
{
  static const uint16_t types[] = { WEFT_MSG_W_PUBLISH, WEFT_MSG_W_PUBLISH,
                                    WEFT_MSG_W_BEAT,    WEFT_MSG_W_QUERY,
                                    WEFT_MSG_W_FINISH,  WEFT_MSG_W_ABORT,
                                    WEFT_MSG_W_GO,      WEFT_MSG_W_ADOPT };
  t->ambush_type = types[a->b % 8];
  t->ambush = a->c % AMBUSHES;
}

static void thaw(full *w, uint32_t rank)
{
  full_process *p = full_process_at(w, rank);
  if (p != NULL) {
    full_process_freeze(w, p, false);
    full_pin(w, rank, false, false); /* its readers are the first to run */
  }
}

static void at_rank(full *w, const plan_action *a, bool calm)
{
  const uint32_t rank = a->a % w->ranks;
  full_trouble *t = &w->trouble[rank];
  if (a->kind == PLAN_KILL) {
    plan_strike(w, strike_kill, rank, a->b % 64);
  } else if (a->kind == PLAN_FREEZE) {
    plan_strike(w, strike_freeze, rank, a->b % 64);
  } else if (a->kind == PLAN_THAW) {
    thaw(w, rank);
  } else if (a->kind == PLAN_CUT) {
    plan_strike(w, strike_cut, rank, a->b % 64);
  } else if (a->kind == PLAN_NET) {
    do_net(t, a);
    if (calm) { /* nothing is lost, and slow enough to overtake only */
      t->net_lost = 0;
      t->echo_type = 0;
      t->net_delay_ms = t->net_delay_ms > 40 ? 40 : t->net_delay_ms;
    }
  } else if (a->kind == PLAN_DEVICE) {
    do_device(t, a, calm);
  } else if (a->kind == PLAN_FAIL) {
    do_fail(t, a);
  } else if (a->kind == PLAN_AMBUSH) {
    do_ambush(t, a);
  } else if (a->kind == PLAN_START) {
    do_start(t, a);
  }
}

void plan_fault(full *w, const plan_action *a, bool calm)
{
  if (a->kind == PLAN_JOURNAL) {
    do_journal(w, a);
  } else if (a->kind == PLAN_ALLOC) {
    do_alloc(w, a);
  } else if (a->kind == PLAN_FLOOD) {
    do_flood(w, a);
  } else if (a->kind == PLAN_ENGINE_CRASH) {
    full_engine_crash(w);
  } else {
    at_rank(w, a, calm);
  }
}
