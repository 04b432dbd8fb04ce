/* What a plan has for clients that speak HTTP, and for their front ends. */
#include "full_http.h"
#include "plan.h"

/* Three seeds of four have front ends; there, most clients use one.  The numbers of the
 * others' worlds are not touched. */
void plan_http_make(plan *p, uint64_t seed)
{
  uint64_t rng = seed ^ 0x687474702f312e31u;
  if (plan_mixed(&rng) % 4 == 0) {
    return;
  }
  for (unsigned i = 0; i < FULL_CLIENTS; i++) {
    static const unsigned ways[] = { 0, 1, 1, 2, 2 };
    p->opts.way[i] = ways[plan_mixed(&rng) % (sizeof ways / sizeof ways[0])];
  }
  for (unsigned i = 0; i < p->count; i++) {
    const uint64_t k = plan_mixed(&rng) % 32;
    if (k < 2) {
      p->actions[i].kind = PLAN_ODD;
    } else if (k < 4 && !p->calm) {
      p->actions[i].kind = PLAN_FRONT;
    }
  }
}

/* A burst on one connection, without waiting for answers; now and then nobody will. */
void plan_odd(full *w, const plan_action *a)
{
  const unsigned client = a->a % FULL_CLIENTS;
  if (w->http != NULL && a->b / 4 % 2 == 0) {
    w->http->hasty = true;
  }
  for (unsigned i = 0; i < 1 + a->b % 4 && !w->broken; i++) {
    full_odd(w, client, a->c + i);
  }
}

static void strike_crash(full *w, uint32_t front)
{
  full_front_crash(w, front, 1 + (uint32_t)full_random(w, 300));
}

static void strike_cut(full *w, uint32_t unused)
{
  (void)unused;
  full_front_cut(w);
}

static void strike_stop(full *w, uint32_t front)
{
  http_front *f = &w->http->fronts[front];
  if (!f->frozen) {
    full_front_freeze(w, front, true);
    f->thaw_ms = weft_sim_now_ms(w->sim) + 1 + full_random(w, 4000);
  }
}

/* The one in the engine's process has no fate of its own. */
void plan_front(full *w, const plan_action *a)
{
  static const uint32_t delays[] = { 0, 5, 40, 400, 400, 3000 };
  http_front *remote = w->http == NULL ? NULL : &w->http->fronts[HTTP_REMOTE];
  if (remote == NULL) {
    return;
  }
  switch (a->a % 5) {
  case 0:
    plan_strike(w, strike_crash, HTTP_REMOTE, a->b % 64);
    break;
  case 1:
    plan_strike(w, strike_cut, 0, a->b % 64);
    break;
  case 2:
    plan_strike(w, strike_stop, HTTP_REMOTE, a->b % 64);
    break;
  case 3:
    full_front_stop(w, HTTP_REMOTE);
    break;
  default:
    remote->wire_ms = delays[a->b % (sizeof delays / sizeof delays[0])];
    if (remote->wire_ms > remote->wire_most_ms) {
      remote->wire_most_ms = remote->wire_ms;
    }
    w->http->hasty = remote->wire_ms > 0;
    break;
  }
}

void plan_http_heal(full *w)
{
  if (w->http != NULL) {
    w->http->hasty = false;
    w->http->fronts[HTTP_REMOTE].wire_ms = 0;
    full_front_freeze(w, HTTP_REMOTE, false);
  }
}
