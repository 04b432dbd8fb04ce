#include "assembly_members.h"
#include "settings.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Workers that somebody else has started: who may come in, and when a rank is free again.
 */

enum { CONNECT_MS = 10000 }; /* until one that was never dialled back loses its rank */

/* The rank is free for whoever comes next. */
static void forget_link(wefti_members *m, weft_actor_id link)
{
  for (uint32_t r = 0; r < m->world_size; r++) {
    if (m->joined[r].link == link) {
      m->joined[r] = (wefti_joined){ .incarnation = 0 };
      wefti_fleet_note(m->fleet, r, false);
    }
  }
}

/* The watcher: hears of the ends of links, so that a rank is free for the next. */
static weft_err watcher_init(weft_ctx *ctx, void *state, const void *args)
{
  (void)ctx;
  *(wefti_members **)state = *(wefti_members *const *)args;
  return WEFT_OK;
}

static weft_err watcher_on(weft_ctx *ctx, void *state, const weft_msg *msg)
{
  wefti_members *m = *(wefti_members **)state;
  switch (msg->type) {
  case WEFT_MSG_MEMBER_UP:
    if (weft_monitor(ctx, ((const weft_member_up *)msg)->actor) != WEFT_OK) {
      forget_link(m, ((const weft_member_up *)msg)->actor); /* the end may go unheard */
    }
    return WEFT_OK;
  case WEFT_MSG_DOWN:
    forget_link(m, ((const weft_down_msg *)msg)->who);
    return WEFT_OK;
  case WEFT_MSG_STOP:
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    return WEFT_OK;
  }
}

static const weft_actor_class watcher_class = { "joins", sizeof(wefti_members *),
                                                watcher_init, NULL, watcher_on };

static weft_err on_join(void *arg, const weft_join_hello *hello, weft_why *why)
{
  wefti_members *m = arg;
  weft_err err = wefti_settings_agree(&m->terms, hello, why);
  if (err != WEFT_OK) {
    return err;
  }
  wefti_joined *joined = &m->joined[hello->rank];
  const uint64_t now_ms = weft_loop_now_ms(weft_runtime_loop(m->rt, 0));
  /* Never dialled back: the supervisor could not take it in then. */
  const bool lost = joined->link == 0 && now_ms - joined->since_ms > CONNECT_MS;
  if (joined->incarnation == hello->incarnation && !lost) {
    return WEFT_OK; /* the same one again: its answer was lost, or it looks for us */
  }
  if (joined->incarnation != 0 && !lost) {
    return weft_whyf(why, WEFT_E_EXISTS, "%s %" PRIu32 " is taken by a living %s at %s",
                     m->replicas ? "replica" : "rank", hello->rank,
                     m->replicas ? "engine" : "worker", joined->url);
  }
  const weft_proc_ready ready = {
    .h = { .type = WEFT_MSG_PROC_READY, .flags = WEFT_MSG_F_RESERVED },
    .rank = hello->rank,
    .world_size = hello->world_size,
    .incarnation = hello->incarnation,
    .kind = WEFT_MEMBER_JOINED,
    .pid = hello->pid,
    .url = wefti_str(hello->url),
  };
  err = wefti_post(m->rt, m->supervisor, &ready.h);
  if (err != WEFT_OK) { /* it asks again */
    return weft_whyf(why, WEFT_E_UNAVAIL, "the engine cannot take it in now: %s",
                     weft_strerror(err));
  }
  joined->incarnation = hello->incarnation;
  joined->link = 0;
  joined->since_ms = now_ms;
  memcpy(joined->url, hello->url, sizeof joined->url);
  wefti_fleet_note(m->fleet, hello->rank, true);
  return WEFT_OK;
}

static weft_err make_terms(wefti_members *m, weft_why *why)
{
  wefti_settings s = {
    .backend = m->backend, .inplace = m->inplace, .tp = m->tp, .pp = m->pp
  };
  weft_tp_plan *plan = NULL;
  const weft_err err = m->tp_plan != NULL && !m->replicas
                           ? weft_tp_plan_load(m->tp_plan, &plan, why)
                           : WEFT_OK;
  if (err != WEFT_OK) {
    return err;
  }
  s.tp_plan = plan;
  m->terms = (weft_join_hello){ .world_size = m->world_size, .draft = m->draft };
  wefti_settings_say(m->replicas ? NULL : &s, &m->terms.settings);
  weft_tp_plan_free(plan);
  return WEFT_OK;
}

weft_err wefti_joins_begin(wefti_members *m, char *join_url, weft_why *why)
{
  m->joined = calloc(m->world_size, sizeof *m->joined);
  if (!m->joined) {
    return weft_whyf(why, WEFT_E_NOMEM, "joins: out of memory");
  }
  weft_err err = make_terms(m, why);
  if (err != WEFT_OK) {
    return err;
  }
  err = weft_runtime_spawn(m->rt, 0, &watcher_class, &m, NULL, &m->watcher);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "joins: cannot start: %s", weft_strerror(err));
  }
  return weft_join_listen(weft_runtime_loop(m->rt, 0), m->join_url, m->join_token,
                          on_join, m, join_url, WEFTI_URL_MAX, &m->door, why);
}

void wefti_joins_connected(wefti_members *m, const char *url, weft_actor_id link)
{
  for (uint32_t r = 0; m->joined && r < m->world_size; r++) {
    if (m->joined[r].incarnation != 0 && strcmp(m->joined[r].url, url) == 0) {
      m->joined[r].link = link;
      const weft_member_up up = {
        .h = { .type = WEFT_MSG_MEMBER_UP, .flags = WEFT_MSG_F_RESERVED }, .actor = link
      };
      if (wefti_post(m->rt, m->watcher, &up.h) != WEFT_OK) {
        forget_link(m, link); /* its end would go unheard */
      }
    }
  }
}

void wefti_joins_destroy(wefti_members *m)
{
  weft_join_close(m->door);
  m->door = NULL;
  free(m->joined);
  m->joined = NULL;
}
