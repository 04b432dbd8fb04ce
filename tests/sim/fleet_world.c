#include "fleet_parties.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fleet_break(fleet_world *w, const char *fmt, ...)
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

void fleet_to_kill(fleet_world *w, unsigned engine)
{
  if (w->kill_count < sizeof w->kill / sizeof w->kill[0]) {
    w->kill[w->kill_count++] = engine;
  }
}

uint64_t fleet_hash(const void *data, size_t len)
{
  const uint8_t *p = data;
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < len; i++) {
    h = (h ^ p[i]) * 0x100000001b3u;
  }
  return h;
}

uint64_t fleet_content(const char *info)
{
  return fleet_hash(info, strlen(info));
}

bool fleet_is_recorded(const fleet_world *w, uint64_t content)
{
  const fleet_journal *j = &w->engines[FLEET_COORDINATOR].journal;
  for (unsigned i = 0; i < j->count; i++) {
    if (j->records[i].kind == WEFT_JOURNAL_WEIGHTS && j->durable[i] &&
        j->records[i].digest_hi == content) {
      return true;
    }
  }
  return false;
}

/* ---- invariants */

bool fleet_serves(const fleet_world *w, unsigned replica, unsigned rank)
{
  const fleet_rank *r = &w->engines[replica].ranks[rank];
  return r->alive && r->sequence != 0 && r->dirty == 0 &&
         weft_sim_now_ms(w->sim) * 1000000 < r->until_ns;
}

static int age_of(const fleet_world *w, uint64_t content)
{
  for (unsigned i = w->change_count; i > 0; i--) {
    if (w->changes[i - 1] == content) {
      return (int)i;
    }
  }
  return 0;
}

bool fleet_was_visible(const fleet_world *w, uint64_t content)
{
  return age_of(w, content) != 0;
}

/* What an earlier life of the coordinator has recorded is shown without its being told of
 * again. */
static void note_recorded(fleet_world *w, uint64_t content)
{
  if (age_of(w, content) == 0 && w->change_count < FLEET_CHANGES_MAX &&
      fleet_is_recorded(w, content)) {
    w->changes[w->change_count++] = content;
  }
}

/* What ranks are writing over gets no name. */
static void check_name(fleet_world *w, const fleet_engine *e, const wefti_visible *v)
{
  const bool label = e->shown != 0 && v->weights_sequence == e->visible.weights_sequence;
  for (unsigned k = 0; label && k < w->ranks; k++) {
    if (e->ranks[k].dirty != 0) {
      fleet_break(w, "I3: '%s' names what rank %u of replica %u is writing over",
                  v->version, k, e->index);
    }
  }
}

static void on_visible(void *arg, const wefti_visible *v)
{
  fleet_engine *e = arg;
  fleet_world *w = e->w;
  check_name(w, e, v);
  const uint64_t before = e->shown == 0 ? e->first_sequence - 1 : e->visible.sequence;
  if (v->sequence != before + 1) {
    fleet_break(w, "I4: engine %u shows %" PRIu64 " after %" PRIu64, e->index,
                v->sequence, before);
  }
  if (e->index == FLEET_COORDINATOR && w->change_count < FLEET_CHANGES_MAX &&
      v->weights_sequence == v->sequence) {
    w->changes[w->change_count++] = v->digest_hi;
  } else {
    note_recorded(w, v->digest_hi);
  }
  if (e->index != FLEET_COORDINATOR && w->change_count > 0 && !w->astray &&
      w->engines[FLEET_COORDINATOR].alive &&
      e->upstream.boot == w->engines[FLEET_COORDINATOR].boot &&
      v->weights_sequence == v->sequence && age_of(w, v->digest_hi) == 0) {
    fleet_break(w, "replica %u shows what the coordinator has not", e->index);
  }
  const int age = age_of(w, v->digest_hi);
  if (age != 0 && age < e->shown_age) {
    fleet_break(w, "I4: engine %u shows change %d after %d", e->index, age, e->shown_age);
  }
  e->shown_age = age != 0 ? age : e->shown_age;
  e->ages[v->sequence % FLEET_SHOWN_MAX].sequence = v->sequence;
  e->ages[v->sequence % FLEET_SHOWN_MAX].age = e->shown_age;
  w->told = e->shown_age > w->told ? e->shown_age : w->told;
  w->probe = true;
  e->visible = *v;
  (void)snprintf(e->version, sizeof e->version, "%s", v->version);
  e->visible.version = e->version;
  e->shown++;
}

static void on_upstream(void *arg, const wefti_upstream *u)
{
  fleet_engine *e = arg;
  e->w->probe = e->w->probe || u->unshown != e->upstream.unshown;
  e->upstream = *u;
}

/* I8: what is visible at the coordinator is not served older by any rank of any replica.
 */
static void check_step(void *arg, const weft_msg *delivered)
{
  fleet_world *w = arg;
  (void)delivered;
  for (unsigned i = 0; i < w->replicas && w->change_count > 0; i++) {
    for (unsigned k = 0; k < w->ranks; k++) {
      const fleet_rank *r = &w->engines[i].ranks[k];
      const int age = age_of(w, r->live);
      const wefti_visible *v = &w->engines[i].visible;
      if (w->strict && fleet_serves(w, i, k) && w->engines[i].shown > 0 &&
          r->sequence == v->weights_sequence && r->live != v->digest_hi) {
        fleet_break(w, "I3: replica %u rank %u serves other bytes under %" PRIu64, i, k,
                    r->sequence);
      }
      if (fleet_serves(w, i, k) && age != 0 && age < (int)w->change_count &&
          r->live != w->changes[w->change_count - 1]) {
        fleet_break(w, "I8: change %u is visible, replica %u rank %u serves change %d",
                    w->change_count, i, k, age);
      }
    }
  }
}

/* ---- the world */

static weft_err bring_rank(fleet_world *w, fleet_engine *e, unsigned rank)
{
  fleet_rank *r = &e->ranks[rank];
  const fleet_rank_args args = { e, rank, ++w->lives * 64 + rank };
  *r = (fleet_rank){ .incarnation = args.incarnation, .alive = true };
  const weft_err err = weft_sim_spawn(w->sim, &fleet_rank_class, &args, NULL, &r->actor);
  const weft_member_up up = { .h.type = WEFT_MSG_MEMBER_UP,
                              .rank = rank,
                              .incarnation = r->incarnation,
                              .kind = WEFT_MEMBER_THREAD,
                              .actor = r->actor,
                              .pid = 1 };
  return err != WEFT_OK ? err : weft_sim_send(w->sim, e->keeper, &up.h);
}

static uint64_t last_sequence(const fleet_journal *j)
{
  uint64_t last = 0;
  for (unsigned i = 0; i < j->count; i++) {
    last = j->records[i].sequence > last ? j->records[i].sequence : last;
  }
  return last;
}

void fleet_restart(fleet_world *w, unsigned index)
{
  fleet_engine *e = &w->engines[index];
  const bool coordinator = index == FLEET_COORDINATOR;
  fleet_engine *self = e;
  const weft_journal_record *history[FLEET_RECORDS_MAX];
  char id[32];
  for (unsigned i = 0; i < e->journal.count; i++) {
    history[i] = &e->journal.records[i];
  }
  (void)snprintf(id, sizeof id, "replica-%u", index);
  e->boot = 0x1000 * (index + 1) + ++e->journal.lives;
  e->first_sequence = last_sequence(&e->journal) + 1;
  e->shown = 0;
  e->shown_age = 0;
  e->upstream = (wefti_upstream){ .fleet = "" };
  weft_err err =
      weft_sim_spawn(w->sim, &fleet_journal_class, &self, NULL, &e->journal_actor);
  const wefti_engine_args args = { .boot_id = e->boot,
                                   .engine_id = coordinator ? w->fleet_id : id,
                                   .tp = w->ranks,
                                   .backend = "host",
                                   .journal = e->journal_actor,
                                   .last_sequence = e->first_sequence - 1,
                                   .history = history,
                                   .history_count = e->journal.count,
                                   .on_visible = on_visible,
                                   .on_visible_arg = e,
                                   .replicas = coordinator ? w->replicas : 0,
                                   .member = !coordinator,
                                   .inplace = !coordinator && w->inplace,
                                   .pause_lease_ms = coordinator ? w->pause_lease_ms : 0,
                                   .on_upstream = on_upstream,
                                   .on_upstream_arg = e };
  if (err == WEFT_OK) {
    err = weft_sim_spawn(w->sim, &wefti_engine_core_class, &args, NULL, &e->actor);
  }
  if (err == WEFT_OK && !coordinator) {
    err = weft_sim_spawn(w->sim, &fleet_keeper_class, &self, NULL, &e->keeper);
  }
  e->alive = err == WEFT_OK;
  for (unsigned i = 0; i < w->ranks && err == WEFT_OK && !coordinator; i++) {
    err = bring_rank(w, e, i);
  }
  fleet_world *world = w;
  if (err == WEFT_OK && coordinator) {
    err = weft_sim_spawn(w->sim, &fleet_super_class, &world, NULL, &w->supervisor);
  }
  if (err != WEFT_OK) {
    fleet_break(w, "cannot start engine %u: %s", index, weft_err_name(err));
  }
}

void fleet_crash(fleet_world *w, unsigned index)
{
  fleet_engine *e = &w->engines[index];
  if (!e->alive) {
    return;
  }
  e->alive = false;
  weft_sim_kill(w->sim, e->actor);
  weft_sim_kill(w->sim, e->journal_actor);
  fleet_journal_crash(&e->journal, w->torn);
  if (index != FLEET_COORDINATOR) {
    weft_sim_kill(w->sim, e->keeper);
    e->rank_fenced = 0;
  }
  for (unsigned i = 0; i < w->ranks && index != FLEET_COORDINATOR; i++) {
    if (e->ranks[i].alive) {
      weft_sim_kill(w->sim, e->ranks[i].actor);
      e->ranks[i].alive = false;
    }
  }
  if (index == FLEET_COORDINATOR) { /* the links are its children's */
    weft_sim_kill(w->sim, w->supervisor);
    for (unsigned i = 0; i < w->replicas; i++) {
      w->engines[i].link = 0;
    }
  }
}

void fleet_kill_rank(fleet_world *w, unsigned replica, unsigned rank)
{
  fleet_engine *e = &w->engines[replica];
  fleet_rank *r = &e->ranks[rank];
  const weft_member_down down = { .h.type = WEFT_MSG_MEMBER_DOWN,
                                  .rank = rank,
                                  .incarnation = r->incarnation,
                                  .fenced = 1,
                                  .why = WEFT_STR("its process exited") };
  weft_sim_kill(w->sim, r->actor);
  r->alive = false;
  e->rank_fenced &= ~(1u << rank);
  if (weft_sim_send(w->sim, e->keeper, &down.h) != WEFT_OK ||
      bring_rank(w, e, rank) != WEFT_OK) {
    fleet_break(w, "cannot replace a rank");
  }
}

void fleet_cut(fleet_world *w, unsigned replica, bool cut)
{
  w->engines[replica].cut = cut;
}

void fleet_release_journal(fleet_world *w, unsigned engine)
{
  const weft_client_gone go = { .h.type = WEFT_MSG_CLIENT_GONE };
  w->engines[engine].journal.hang = false;
  (void)weft_sim_send(w->sim, w->engines[engine].journal_actor, &go.h);
}

static void after_step(fleet_world *w)
{
  fleet_strays_due(w);
  if (w->probe) {
    const weft_client_gone now = { .h.type = WEFT_MSG_CLIENT_GONE };
    w->probe = false;
    if (weft_sim_send(w->sim, w->prober, &now.h) != WEFT_OK) {
      fleet_break(w, "readers cannot be told");
    }
  }
  while (w->kill_count > 0) {
    fleet_crash(w, (unsigned)w->kill[--w->kill_count]);
  }
  for (unsigned i = 0; i < w->replicas; i++) {
    for (unsigned k = 0; k < w->ranks; k++) {
      const fleet_rank *r = &w->engines[i].ranks[k];
      const bool fenced = (w->engines[i].rank_fenced & (1u << k)) != 0;
      if (w->engines[i].alive && r->alive &&
          (fenced || !weft_sim_alive(w->sim, r->actor))) {
        fleet_kill_rank(w, i, k);
      }
    }
  }
}

void fleet_run(fleet_world *w, uint64_t for_ms)
{
  const uint64_t until = weft_sim_now_ms(w->sim) + for_ms;
  while (!w->broken && weft_sim_now_ms(w->sim) < until) {
    while (!w->broken && weft_sim_step(w->sim)) {
      after_step(w);
    }
    weft_sim_run(w->sim, weft_sim_now_ms(w->sim) + 1);
    after_step(w);
  }
}

void fleet_start(fleet_world *w, const fleet_opts *opts)
{
  *w = (fleet_world){ .replicas = opts->replicas == 0 ? 2 : opts->replicas,
                      .ranks = opts->ranks == 0 ? 1 : opts->ranks,
                      .pause_lease_ms = opts->pause_lease_ms,
                      .inplace = opts->inplace,
                      .fleet_id = "fleet" };
  const weft_sim_opts so = { .size = sizeof so,
                             .seed = opts->seed,
                             .catalogue = weft_messages(),
                             .step = check_step,
                             .arg = w,
                             .trace = opts->trace };
  weft_actor_id clock;
  fleet_world *self = w;
  if (weft_sim_create(&so, &w->sim) != WEFT_OK ||
      weft_sim_spawn(w->sim, &fleet_clock_class, NULL, NULL, &clock) != WEFT_OK ||
      weft_sim_spawn(w->sim, &fleet_probe_class, &self, NULL, &w->prober) != WEFT_OK) {
    fleet_break(w, "no simulator");
    return;
  }
  for (unsigned i = 0; i < FLEET_ENGINES; i++) {
    w->engines[i].w = w;
    w->engines[i].index = i;
  }
  for (unsigned i = 0; i < w->replicas; i++) {
    fleet_restart(w, i);
  }
  fleet_restart(w, FLEET_COORDINATOR);
  for (unsigned i = 0; i < FLEET_CLIENTS; i++) {
    const fleet_client_args args = { w, i, 0 };
    if (weft_sim_spawn(w->sim, &fleet_client_class, &args, NULL, &w->clients[i]) !=
        WEFT_OK) {
      fleet_break(w, "no client");
    }
  }
  fleet_run(w, 3000);
}

void fleet_stop(fleet_world *w)
{
  weft_sim_destroy(w->sim);
  w->sim = NULL;
  fleet_strays_drop(w); /* those of links that end with it too */
  for (unsigned i = 0; i < FLEET_ENGINES; i++) {
    fleet_journal *j = &w->engines[i].journal;
    while (j->count > 0) {
      fleet_record_free(&j->records[--j->count]);
    }
  }
}

/* ---- calls */

void fleet_post(fleet_world *w, unsigned client, unsigned engine, const weft_msg *msg)
{
  const weft_client_gone to = { .h.type = WEFT_MSG_CLIENT_GONE,
                                .caller = w->engines[engine].actor };
  w->answers[client].came = false;
  if (weft_sim_send(w->sim, w->clients[client], &to.h) != WEFT_OK ||
      weft_sim_send(w->sim, w->clients[client], msg) != WEFT_OK) {
    fleet_break(w, "client %u cannot send", client);
  }
}

const fleet_answer *fleet_call(fleet_world *w, unsigned client, unsigned engine,
                               const weft_msg *msg)
{
  fleet_post(w, client, engine, msg);
  while (!w->broken && !w->answers[client].came) {
    fleet_run(w, 1);
  }
  return &w->answers[client];
}

const fleet_answer *fleet_begin(fleet_world *w, unsigned engine)
{
  const weft_client_start m = { .h.type = WEFT_MSG_CLIENT_START, .caller = 100 };
  return fleet_call(w, 0, engine, &m.h);
}

const fleet_answer *fleet_update(fleet_world *w, unsigned engine, const char *info)
{
  weft_buf *buf = weft_buf_create(info, strlen(info));
  const weft_client_update m = { .h.type = WEFT_MSG_CLIENT_UPDATE,
                                 .caller = 100,
                                 .info = buf };
  const fleet_answer *a = fleet_call(w, 0, engine, &m.h);
  weft_buf_unref(buf);
  return a;
}

const fleet_answer *fleet_finish(fleet_world *w, unsigned engine, const char *version)
{
  const weft_client_finish m = {
    .h.type = WEFT_MSG_CLIENT_FINISH,
    .caller = 100,
    .has_version = version != NULL,
    .version = { version, version == NULL ? 0 : (uint32_t)strlen(version) }
  };
  return fleet_call(w, 0, engine, &m.h);
}

const fleet_answer *fleet_query(fleet_world *w, unsigned engine, weft_query what)
{
  const weft_client_query m = { .h.type = WEFT_MSG_CLIENT_QUERY, .what = what };
  return fleet_call(w, 2, engine, &m.h);
}

const fleet_answer *fleet_resolve(fleet_world *w, unsigned engine, bool commit)
{
  const weft_client_resolve m = { .h.type = WEFT_MSG_CLIENT_RESOLVE,
                                  .caller = 101,
                                  .commit = commit };
  return fleet_call(w, 1, engine, &m.h);
}
