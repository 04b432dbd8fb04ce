/* Doing what a plan says, and the end of each run: the faults are over, everything must
 * work again. */
#include "full_http.h"
#include "plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  TRAINER_MS = 30000,
  HEAL_MS = 36000,
  SETTLE_MS = 120000,
  COMES_BACK_MS = 12000, /* the longest back-off, and some */
  ALL = (1 << FULL_TENSORS) - 1,
  TALKERS = FULL_CLIENTS - 1,
  ASKER = FULL_CLIENTS - 1
};

/* ---- calls */

static unsigned new_push(full *w, uint32_t mask)
{
  const unsigned push = w->push_count + 1;
  if (push == FULL_PUSHES) {
    return 0;
  }
  w->pushes[push].mask = mask;
  w->push_count = push;
  return push;
}

static void with_session(full *w, unsigned client, full_call *c)
{
  c->with_session = w->clients[client].session[0] != '\0';
  (void)snprintf(c->session, sizeof c->session, "%s", w->clients[client].session);
}

static void call_update(full *w, unsigned client, uint32_t mask, bool session,
                        uint32_t timeout_ms)
{
  full_call c = { .type = WEFT_MSG_CLIENT_UPDATE, .push = new_push(w, mask) };
  c.spelling = w->call_count * 37 + c.push * 7;
  if (session) {
    with_session(w, client, &c);
  }
  if (c.push != 0) {
    (void)full_post(w, client, &c, timeout_ms);
  }
}

/* A new version string or, now and then, none; the same again; compare-and-set. */
static void call_change(full *w, unsigned client, uint16_t type, const plan_action *a,
                        uint32_t timeout_ms)
{
  full_call c = { .type = type, .has_version = type == WEFT_MSG_CLIENT_LABEL };
  c.has_version = c.has_version || a->b % 4 != 0;
  if (c.has_version) {
    (void)snprintf(c.version, sizeof c.version, "v%u", (unsigned)(a->c % 5));
  }
  c.has_expected = a->b / 4 % 3 == 0;
  if (c.has_expected) {
    (void)snprintf(c.expected, sizeof c.expected, "%s",
                   a->b / 16 % 3 == 0 ? "v0" : full_now(w)->version);
  }
  if (a->b / 64 % 3 == 0 && type == WEFT_MSG_CLIENT_FINISH) {
    with_session(w, client, &c);
  }
  if (a->b / 256 % 2 == 0) { /* not one for both kinds of client: bodies differ */
    (void)snprintf(c.key, sizeof c.key, "%s%u",
                   w->clients[client].way == 0 ? "key" : "http", w->call_count);
  }
  c.spelling = a->b / 512;
  (void)full_post(w, client, &c, timeout_ms);
}

static void call_simple(full *w, unsigned client, uint16_t type, bool session,
                        uint32_t timeout_ms)
{
  full_call c = { .type = type };
  if (session) {
    with_session(w, client, &c);
  }
  c.has_expected = type == WEFT_MSG_CLIENT_QUERY && session; /* the detailed view */
  (void)full_post(w, client, &c, timeout_ms);
}

static void call_start(full *w, unsigned client, bool draft, uint32_t timeout_ms)
{
  full_call c = { .type = WEFT_MSG_CLIENT_START, .draft = draft };
  (void)full_post(w, client, &c, timeout_ms);
}

static void do_call(full *w, const plan_action *a)
{
  const unsigned client = a->a % TALKERS;
  const uint32_t timeout_ms = 500 + a->c % 12000;
  const uint32_t which = a->a / 8 % 16;
  if (w->clients[client].auto_step != 0) {
    return;
  }
  if (which == 0) {
    call_simple(w, client, WEFT_MSG_CLIENT_INIT, false, timeout_ms);
  } else if (which < 4) {
    call_start(w, client, w->opts.draft && a->b % 3 == 0, timeout_ms);
  } else if (which < 7) {
    call_update(w, client, 1 + a->b % ALL, a->b / 16 % 2 != 0, timeout_ms);
  } else if (which < 11) {
    call_change(w, client, WEFT_MSG_CLIENT_FINISH, a, timeout_ms);
  } else if (which == 11) {
    call_change(w, client, WEFT_MSG_CLIENT_LABEL, a, timeout_ms);
  } else if (which == 12) {
    call_simple(w, client, WEFT_MSG_CLIENT_ABORT, a->b % 2 != 0, timeout_ms);
  } else if (which < 15) {
    call_simple(w, client, WEFT_MSG_CLIENT_QUERY, a->b % 2 != 0, timeout_ms);
  } else {
    call_simple(w, client, WEFT_MSG_CLIENT_INIT, false, timeout_ms);
  }
}

/* The table of tensors, which a worker has to be asked for, beside all sessions. */
static void do_query(full *w)
{
  full_call c = { .type = WEFT_MSG_CLIENT_QUERY, .has_version = true };
  (void)full_post(w, ASKER, &c, 31000);
}

static void repeat(full *w, unsigned client, const full_call *first, uint32_t timeout_ms)
{
  full_call again = { .type = first->type,
                      .has_version = first->has_version,
                      .has_expected = first->has_expected,
                      .draft = first->draft,
                      .spelling = first->spelling,
                      .with_session = first->with_session };
  memcpy(again.key, first->key, sizeof again.key);
  memcpy(again.version, first->version, sizeof again.version);
  memcpy(again.expected, first->expected, sizeof again.expected);
  memcpy(again.session, first->session, sizeof again.session);
  (void)full_post(w, client, &again, timeout_ms);
}

static bool same_kind(const full *w, unsigned client, const full_call *c)
{
  return (w->clients[client].way != 0) == c->by_http;
}

/* Somebody repeats a change of before under the same key. */
static void do_retry(full *w, const plan_action *a)
{
  const unsigned client = a->a % TALKERS;
  unsigned back = a->b % 4;
  w->leaver = a->b / 4 % 2 != 0 ? 1 : w->leaver;
  for (unsigned i = w->call_count; i-- > w->first_call;) {
    const full_call *first = &w->calls[i];
    if (first->key[0] != '\0' && same_kind(w, client, first) && back-- == 0) {
      if (w->clients[client].auto_step == 0) {
        repeat(w, client, first, 500 + a->c % 12000);
      }
      return;
    }
  }
}

/* ---- a trainer as the stock ones are: init, start, updates, finish */

enum { AUTO_INIT = 1, AUTO_START, AUTO_UPDATE, AUTO_FINISH };

static void trainer_says(full *w, unsigned client)
{
  full_client *c = &w->clients[client];
  const plan_action change = { .b = 1 + 4, .c = c->auto_updates + w->call_count };
  switch (c->auto_step) {
  case AUTO_INIT:
    call_simple(w, client, WEFT_MSG_CLIENT_INIT, false, TRAINER_MS);
    break;
  case AUTO_START:
    call_start(w, client, c->auto_draft, TRAINER_MS);
    break;
  case AUTO_UPDATE:
    call_update(w, client, ALL, false, TRAINER_MS);
    break;
  default:
    call_change(w, client, WEFT_MSG_CLIENT_FINISH, &change, TRAINER_MS);
    break;
  }
}

static void trainers_go_on(full *w)
{
  for (unsigned i = 0; i < FULL_CLIENTS; i++) {
    full_client *c = &w->clients[i];
    if (c->auto_step == 0 || c->pending || w->broken) {
      continue;
    }
    if (w->calls[c->call].err != WEFT_OK || c->auto_step == AUTO_FINISH) {
      c->auto_step = 0;
      continue;
    }
    if (c->auto_step != AUTO_UPDATE || --c->auto_updates == 0) {
      c->auto_step++;
    }
    trainer_says(w, i);
  }
}

/* In place a start waits for readers: one that takes its time. */
static void linger(full *w, const plan_action *a)
{
  if (w->opts.inplace && a->c / 8 % 4 == 0) {
    full_pin(w, a->c % w->ranks, false, true);
    w->let_go_ms = weft_sim_now_ms(w->sim) + a->c / 32 % 4000;
  }
}

static void unpin_all(full *w)
{
  w->let_go_ms = 0;
  for (unsigned i = 0; i < FULL_HELD; i++) {
    full_unpin(w, i);
  }
}

static void do_trainer(full *w, const plan_action *a)
{
  full_client *c = &w->clients[a->a % TALKERS];
  if (c->auto_step != 0 || c->pending) {
    return;
  }
  linger(w, a);
  c->auto_step = AUTO_INIT;
  c->auto_updates = 1 + a->b % 2;
  c->auto_draft = w->opts.draft && a->c % 3 == 0;
  trainer_says(w, a->a % TALKERS);
  c->auto_step = c->pending ? AUTO_INIT : 0;
}

static void do_gone(full *w, unsigned client)
{
  full_gone(w, client);
  w->clients[client].auto_step = 0; /* it crashed; it may come back with an init */
}

/* Of the kind that first's is.  TALKERS: none */
static unsigned idle_client(const full *w, const full_call *first)
{
  unsigned i = 0;
  while (i < TALKERS && (w->clients[i].pending || w->clients[i].auto_step != 0 ||
                         !same_kind(w, i, first))) {
    i++;
  }
  return i;
}

/* A client hangs up in the middle of a finish, comes back with the same key, and somebody
 * else would like to take the session over: one thing a millisecond. */
static void leave(full *w)
{
  const unsigned idle = idle_client(w, &w->calls[w->left]);
  if (w->leaver == 1) {
    for (unsigned i = 0; i < TALKERS; i++) {
      const full_call *c = &w->calls[w->clients[i].call];
      if (w->clients[i].pending && c->taken && c->key[0] != '\0' &&
          idle_client(w, c) < TALKERS) {
        w->left = w->clients[i].call;
        w->leaver = 2;
        do_gone(w, i);
        return;
      }
    }
  } else if (w->leaver == 2 && idle < TALKERS) {
    w->leaver = 3;
    repeat(w, idle, &w->calls[w->left], TRAINER_MS);
  } else if (w->leaver == 3 && idle < TALKERS) {
    w->leaver = 0;
    call_simple(w, idle, WEFT_MSG_CLIENT_INIT, false, TRAINER_MS);
  }
}

/* So soon that its call may be on its way. */
static void leave_at_once(full *w)
{
  const bool slow = w->http->fronts[HTTP_REMOTE].wire_ms > 0;
  for (unsigned i = 0; i < TALKERS && w->http->hasty; i++) {
    if (w->clients[i].pending && w->clients[i].way > (slow ? HTTP_REMOTE : 0)) {
      w->http->hasty = false;
      do_gone(w, i);
    }
  }
}

static void advance(full *w, uint64_t ms)
{
  const uint64_t until = weft_sim_now_ms(w->sim) + ms;
  do {
    full_run(w, 1);
    trainers_go_on(w);
    if (w->let_go_ms != 0 && weft_sim_now_ms(w->sim) >= w->let_go_ms) {
      unpin_all(w);
    }
    if (w->leaver != 0 && !w->broken) {
      leave(w);
    }
    if (w->http != NULL && w->http->hasty && !w->broken) {
      leave_at_once(w);
    }
  } while (!w->broken && weft_sim_now_ms(w->sim) < until);
}

static void do_engine_stop(full *w, const plan_action *a)
{
  full_engine_freeze(w, true);
  advance(w, 100 + a->b % 5000);
  full_engine_freeze(w, false);
  w->excused_until = weft_sim_now_ms(w->sim);
}

static void act(full *w, const plan_action *a, bool calm)
{
  if (a->kind == PLAN_CALL) {
    do_call(w, a);
  } else if (a->kind == PLAN_TRAINER) {
    do_trainer(w, a);
  } else if (a->kind == PLAN_RETRY) {
    do_retry(w, a);
  } else if (a->kind == PLAN_QUERY) {
    do_query(w);
  } else if (a->kind == PLAN_GONE) {
    do_gone(w, a->a % TALKERS);
  } else if (a->kind == PLAN_PIN) {
    full_pin(w, a->a % w->ranks, a->b % 2 != 0, true);
  } else if (a->kind == PLAN_UNPIN) {
    full_unpin(w, a->a % FULL_HELD);
  } else if (a->kind == PLAN_ENGINE_STOP) {
    do_engine_stop(w, a);
  } else if (a->kind == PLAN_ODD) {
    plan_odd(w, a);
  } else if (a->kind == PLAN_FRONT) {
    plan_front(w, a);
  } else {
    plan_fault(w, a, calm);
  }
  advance(w, a->gap_ms);
}

/* ---- the end */

static void heal(full *w)
{
  w->healed = true;
  w->strike = NULL;
  w->leaver = 0;
  weft_sim_fail_alloc(w->sim, 0);
  full_journal_heal(w);
  unpin_all(w);
  plan_http_heal(w);
  for (uint32_t i = 0; i < w->ranks; i++) {
    full_process *p = full_process_at(w, i);
    w->trouble[i] = (full_trouble){ .net_delay_ms = 0 };
    if (p != NULL && p->frozen) {
      full_process_freeze(w, p, false);
      full_pin(w, i, false, false);
    }
  }
  for (unsigned i = 0; i < FULL_CLIENTS; i++) {
    do_gone(w, i);
  }
  advance(w, HEAL_MS);
  for (unsigned i = 0; i < FULL_CLIENTS && !w->broken; i++) {
    if (w->clients[i].pending) {
      const full_call *c = &w->calls[w->clients[i].call];
      full_break(w, "I5: client %u has no answer to its %s", i,
                 weft_msg_desc_of(weft_messages(), c->type)->name);
    }
  }
}

static void must(full *w, const char *what)
{
  const full_client *c = &w->clients[0];
  for (unsigned i = 0; i < SETTLE_MS && c->pending && !w->broken; i += 5) {
    advance(w, 5);
  }
  const full_call *call = &w->calls[c->call];
  if (!w->broken && (c->pending || call->err != WEFT_OK)) {
    full_break(w, "I7: %s after all faults: %s %s", what, weft_err_name(call->err),
               call->message);
  }
}

/* A child that dies now gets its weights back without anybody's doing, and so does a
 * joined worker that is not alone. */
static void check_comes_back(full *w)
{
  char reason[200];
  const uint32_t rank = (uint32_t)full_random(w, w->ranks);
  const engine *e = weft_sim_state(w->sim, w->engine);
  const uint64_t digest[2] = { e->members[rank].digest_hi, e->members[rank].digest_lo };
  full_process *p = full_process_at(w, rank);
  if (!w->opts.keeps || p == NULL || (w->opts.joined && (w->ranks < 2 || e->was_reset)) ||
      full_now(w)->visible_weights == 0 ||
      !engine_ready(NULL, e, reason, sizeof reason)) {
    return;
  }
  if (w->opts.joined) { /* what is lent first is as good as any, or not */
    w->trouble[rank].offer_wrong = full_random(w, 3) == 0;
    w->trouble[rank].offer_damaged = full_random(w, 3) == 0;
  }
  full_process_end(w, p);
  advance(w, COMES_BACK_MS);
  w->trouble[rank].offer_wrong = false;
  w->trouble[rank].offer_damaged = false;
  if (!w->broken && !engine_ready(NULL, e, reason, sizeof reason)) {
    full_break(w, "I7: rank %" PRIu32 " died while idle: %s", rank, reason);
  }
  p = full_process_at(w, rank);
  wefti_store_state st = { 0 };
  if (p != NULL) {
    wefti_store_state_get(p->device->store, &st);
  }
  if (!w->broken && (st.weights_sequence != full_now(w)->visible_weights ||
                     st.digest_hi != digest[0] || st.digest_lo != digest[1])) {
    full_break(w, "I7: rank %" PRIu32 " came back with other weights", rank);
  }
}

static void must_push(full *w, bool draft)
{
  const plan_action change = { .b = 1 + 4, .c = 4 };
  if (!w->broken) {
    call_start(w, 0, draft, TRAINER_MS);
    must(w, draft ? "draft start" : "start");
  }
  if (!w->broken) {
    call_update(w, 0, ALL, true, TRAINER_MS);
    must(w, draft ? "draft update" : "update");
  }
  if (!w->broken) {
    call_change(w, 0, WEFT_MSG_CLIENT_FINISH, &change, TRAINER_MS);
    must(w, draft ? "draft finish" : "finish");
  }
}

/* Everywhere, what must_push has brought last. */
static void check_all_there(full *w, uint32_t rank, const weft_snapshot *s)
{
  const size_t want = w->opts.draft ? FULL_CELLS : FULL_TENSORS;
  if (s->tensor_count != want) {
    full_break(w, "I7: rank %" PRIu32 " has %zu of %zu tensors after full updates", rank,
               s->tensor_count, want);
  }
}

static void check_end(full *w)
{
  heal(w);
  if (!w->broken) {
    check_comes_back(w);
  }
  w->settling = true;
  if (!w->broken) {
    call_simple(w, 0, WEFT_MSG_CLIENT_INIT, false, TRAINER_MS);
    must(w, "init");
  }
  must_push(w, false);
  if (w->opts.draft) {
    must_push(w, true);
  }
  char reason[200];
  const engine *e = weft_sim_state(w->sim, w->engine);
  if (!w->broken && !engine_ready(NULL, e, reason, sizeof reason)) {
    full_break(w, "I7: not ready after a full update: %s", reason);
  }
  for (uint32_t i = 0; i < w->ranks && !w->broken; i++) {
    const full_process *p = full_process_at(w, i);
    const weft_snapshot *s;
    const weft_err err =
        weft_store_pin(p->device->store, full_now(w)->visible_weights, &s);
    if (err != WEFT_OK) {
      full_break(w, "I7: rank %" PRIu32 " cannot be read after a full update: %s", i,
                 weft_err_name(err));
    } else {
      check_all_there(w, i, s);
      weft_store_unpin(p->device->store, s);
    }
  }
  if (!w->broken && w->allocs_failed == 0 &&
      full_now(w)->next_event != full_now(w)->visible + 1) {
    full_break(w, "I4: %" PRIu64 " is visible, the watcher has %" PRIu64,
               full_now(w)->visible, full_now(w)->next_event - 1);
  }
  if (!w->broken && w->http != NULL) {
    full_http_check_end(w);
  }
  if (!w->broken) {
    full_check_history(w);
  }
}

bool plan_run(const plan *p, const bool *left_out, bool trace, char *why, size_t cap,
              uint64_t *hash)
{
  full *w = calloc(1, sizeof *w);
  if (w == NULL) {
    abort();
  }
  full_opts opts = p->opts;
  opts.trace = trace;
  full_start(w, &opts);
  w->faulty = !p->calm;
  advance(w, 2500);
  for (unsigned i = 0; i < p->count && !w->broken; i++) {
    if (left_out == NULL || !left_out[i]) {
      act(w, &p->actions[i], p->calm);
    }
  }
  if (!w->broken) {
    check_end(w);
  }
  const uint64_t at_ms = weft_sim_now_ms(w->sim);
  if (hash != NULL) {
    *hash = weft_sim_hash(w->sim);
  }
  full_stop(w);
  if (w->broken) {
    (void)snprintf(why, cap, "at %" PRIu64 " ms: %s", at_ms, w->why);
  }
  const bool fine = !w->broken;
  free(w);
  return fine;
}
