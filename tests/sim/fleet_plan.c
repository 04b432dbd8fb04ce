#include "fleet_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  C = FLEET_COORDINATOR,
  TRAINER = 0,
  OPERATOR = 1,
  HELPER = 2, /* who brings one replica up */
  SETTLE_MS = 40000,
  CONTENTS_MAX = 256
};

/* ---- making plans */

/* Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014). */
static uint64_t mixed(uint64_t *state)
{
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* Of 1,000. */
static const unsigned weights[FLEET_KINDS] = {
  [FLEET_TRAINER] = 480, [FLEET_CATCH_UP] = 60, [FLEET_LABEL] = 50,
  [FLEET_ABORT] = 15,    [FLEET_PAUSE] = 15,    [FLEET_CUT] = 40,
  [FLEET_HEAL] = 70,     [FLEET_SLOW] = 40,     [FLEET_AMBUSH] = 90,
  [FLEET_CRASH] = 25,    [FLEET_RESTART] = 60,  [FLEET_COORDINATOR_CRASH] = 15,
  [FLEET_RANK] = 20,     [FLEET_JOURNAL] = 20,
};

static const char *const names[FLEET_KINDS] = {
  [FLEET_TRAINER] = "trainer",
  [FLEET_CATCH_UP] = "push to one replica",
  [FLEET_LABEL] = "label",
  [FLEET_ABORT] = "abort",
  [FLEET_PAUSE] = "pause or resume",
  [FLEET_CUT] = "cut a link",
  [FLEET_HEAL] = "heal a link",
  [FLEET_SLOW] = "slow link",
  [FLEET_AMBUSH] = "fault at a frame of one type",
  [FLEET_CRASH] = "crash of a replica",
  [FLEET_RESTART] = "start of who has crashed",
  [FLEET_COORDINATOR_CRASH] = "crash of the coordinator",
  [FLEET_RANK] = "a rank refuses, dies or is mute",
  [FLEET_JOURNAL] = "failing or hanging fsync, or it works again",
};

static fleet_kind draw(uint64_t *rng)
{
  uint64_t k = mixed(rng) % 1000;
  for (unsigned i = 0; i < FLEET_KINDS; i++) {
    if (k < weights[i]) {
      return (fleet_kind)i;
    }
    k -= weights[i];
  }
  return FLEET_TRAINER;
}

void fleet_plan_make(fleet_plan *p, uint64_t seed)
{
  uint64_t rng = seed * 0x2545f4914f6cdd1du + 7;
  *p = (fleet_plan){ .opts = { .seed = seed,
                               .replicas =
                                   1 + (uint32_t)(mixed(&rng) % FLEET_REPLICAS_MAX),
                               .ranks = 1 + (uint32_t)(mixed(&rng) % FLEET_RANKS_MAX) } };
  p->count = 24 + (unsigned)(mixed(&rng) % (FLEET_ACTIONS - 24));
  for (unsigned i = 0; i < p->count; i++) {
    fleet_action *a = &p->actions[i];
    const uint64_t gap = mixed(&rng) % 16;
    a->kind = draw(&rng);
    a->a = (uint32_t)mixed(&rng);
    a->b = (uint32_t)mixed(&rng);
    a->gap_ms = gap == 0  ? 3000 + (uint32_t)(mixed(&rng) % 6000)
                : gap < 8 ? (uint32_t)(mixed(&rng) % 5)
                          : (uint32_t)(mixed(&rng) % 500);
  }
}

void fleet_plan_print(const fleet_plan *p, const bool *left_out)
{
  (void)fprintf(stderr, "  %u replicas of %u ranks\n", (unsigned)p->opts.replicas,
                (unsigned)p->opts.ranks);
  for (unsigned i = 0; i < p->count; i++) {
    const fleet_action *a = &p->actions[i];
    if (left_out == NULL || !left_out[i]) {
      (void)fprintf(stderr, "  %2u %s %08x %08x, then %u ms\n", i, names[a->kind],
                    (unsigned)a->a, (unsigned)a->b, (unsigned)a->gap_ms);
    }
  }
}

/* ---- a run */

typedef enum push_step {
  PUSH_NONE,
  PUSH_STARTS,
  PUSH_OPEN,
  PUSH_UPDATES,
  PUSH_FINISHES
} push_step;

/* One client's push to one engine, call by call. */
typedef struct push {
  push_step step;
  unsigned engine;
  unsigned content; /* number of its last update; 0 = it has sent none */
} push;

typedef struct run {
  fleet_world w;
  push trainer, helper;
  unsigned contents;          /* updates so far: each brings other bytes */
  bool refused[CONTENTS_MAX]; /* … that finish said not to be committed */
  unsigned label;
} run;

static void info_of(unsigned content, char *out, size_t cap)
{
  (void)snprintf(out, cap, "{\"a\":%u}", content);
}

static uint64_t bytes_of(unsigned content)
{
  char info[32];
  info_of(content, info, sizeof info);
  return fleet_content(info);
}

/* What finish was answered is the truth. */
static void judge_finish(run *r, const push *p, const fleet_answer *a)
{
  if (p->content == 0 || p->engine != C) {
    return;
  }
  if (a->err == WEFT_OK && !fleet_was_visible(&r->w, bytes_of(p->content))) {
    fleet_break(&r->w, "I2: finish succeeded, %u is not visible", p->content);
  }
  if (a->err != WEFT_OK && a->outcome == WEFT_OUTCOME_NOT_COMMITTED) {
    r->refused[p->content] = true;
  }
}

static void check_refused(run *r)
{
  for (unsigned i = 1; i <= r->contents && !r->w.broken; i++) {
    if (r->refused[i] && (fleet_was_visible(&r->w, bytes_of(i)) ||
                          fleet_is_recorded(&r->w, bytes_of(i)))) {
      fleet_break(&r->w, "I2: finish said that %u is not committed, and it is", i);
    }
  }
}

static void post_info(run *r, unsigned client, push *p, unsigned content)
{
  char info[32];
  info_of(content, info, sizeof info);
  weft_buf *buf = weft_buf_create(info, strlen(info));
  const weft_client_update m = { .h.type = WEFT_MSG_CLIENT_UPDATE,
                                 .caller = 100 + client,
                                 .info = buf };
  fleet_post(&r->w, client, p->engine, &m.h);
  weft_buf_unref(buf);
  p->content = content;
  p->step = PUSH_UPDATES;
}

static void post_finish(run *r, unsigned client, push *p)
{
  char version[32];
  const int n = snprintf(version, sizeof version, "step-%u", p->content);
  const weft_client_finish m = { .h.type = WEFT_MSG_CLIENT_FINISH,
                                 .caller = 100 + client,
                                 .has_version = 1,
                                 .version = { version, (uint32_t)n } };
  fleet_post(&r->w, client, p->engine, &m.h);
  p->step = PUSH_FINISHES;
}

/* The next call, when the last has its answer.  content: of an update. */
static void go_on(run *r, unsigned client, push *p, unsigned content, bool more)
{
  const fleet_answer *a = &r->w.answers[client];
  if (p->step != PUSH_NONE && p->step != PUSH_OPEN) {
    if (!a->came) {
      return;
    }
    if (p->step == PUSH_FINISHES) {
      judge_finish(r, p, a);
    }
    const bool over = a->err != WEFT_OK || p->step == PUSH_FINISHES;
    p->step = over ? PUSH_NONE : PUSH_OPEN;
  }
  if (p->step == PUSH_NONE) {
    const weft_client_start m = { .h.type = WEFT_MSG_CLIENT_START,
                                  .caller = 100 + client };
    if (r->w.engines[p->engine].alive) {
      p->content = 0;
      p->step = PUSH_STARTS;
      fleet_post(&r->w, client, p->engine, &m.h);
    }
  } else if (p->content == 0 || more) {
    post_info(r, client, p, content);
  } else {
    post_finish(r, client, p);
  }
}

/* What is visible, as the number of an update; 0 = nothing. */
static unsigned visible_content(const run *r)
{
  const fleet_world *w = &r->w;
  for (unsigned i = r->contents; i > 0 && w->change_count > 0; i--) {
    if (bytes_of(i) == w->changes[w->change_count - 1]) {
      return i;
    }
  }
  return 0;
}

static void trainer(run *r, const fleet_action *a)
{
  r->trainer.engine = C;
  const bool updates = r->trainer.step == PUSH_OPEN || r->trainer.step == PUSH_STARTS ||
                       r->trainer.step == PUSH_UPDATES;
  if (updates && r->contents + 1 < CONTENTS_MAX) {
    r->contents++;
  }
  go_on(r, TRAINER, &r->trainer, r->contents, a->a % 4 == 0);
}

static void catch_up(run *r, const fleet_action *a)
{
  const unsigned content = visible_content(r);
  if (r->helper.step == PUSH_NONE) {
    r->helper.engine = a->a % r->w.replicas;
  }
  if (content != 0) {
    go_on(r, HELPER, &r->helper, content, false);
  }
}

static void operate(run *r, const fleet_action *a)
{
  char version[32];
  const int n = snprintf(version, sizeof version, "label-%u", ++r->label);
  const weft_client_label label = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                    .caller = 101,
                                    .version = { version, (uint32_t)n } };
  const weft_client_abort abort_msg = { .h.type = WEFT_MSG_CLIENT_ABORT, .caller = 101 };
  const weft_client_pause pause = { .h.type = WEFT_MSG_CLIENT_PAUSE,
                                    .caller = 101,
                                    .action = a->a % 2 ? WEFT_PAUSE : WEFT_RESUME,
                                    .mode = WEFT_STR("keep") };
  const fleet_answer *last = &r->w.answers[OPERATOR];
  if (last->asked_ms == 0 || last->came) {
    fleet_post(&r->w, OPERATOR, C,
               a->kind == FLEET_LABEL   ? &label.h
               : a->kind == FLEET_ABORT ? &abort_msg.h
                                        : &pause.h);
  }
}

static void ambush(fleet_engine *e, const fleet_action *a)
{
  static const uint16_t types[] = {
    WEFT_MSG_W_ADOPT,   WEFT_MSG_W_BEAT,   WEFT_MSG_W_START,   WEFT_MSG_W_ACCEPT,
    WEFT_MSG_W_GO,      WEFT_MSG_W_FINISH, WEFT_MSG_W_FINISH,  WEFT_MSG_W_PUBLISH,
    WEFT_MSG_W_PUBLISH, WEFT_MSG_W_ABORT,  WEFT_MSG_W_RESOLVE, WEFT_MSG_W_LABEL,
  };
  const uint16_t type = types[a->b % (sizeof types / sizeof types[0])];
  switch (a->a / 16 % 6) {
  case 0:
    e->lose_question = type;
    break;
  case 1:
    e->lose_answer = type;
    break;
  case 2:
    e->double_question = type;
    break;
  case 3:
    e->crash_before = type;
    break;
  case 4:
    e->crash_after = type;
    break;
  default:
    e->coordinator_crash = type;
    break;
  }
}

static void trouble_rank(fleet_engine *e, const fleet_action *a)
{
  static const uint16_t types[] = { WEFT_MSG_W_START,  WEFT_MSG_W_ACCEPT,
                                    WEFT_MSG_W_GO,     WEFT_MSG_W_FINISH,
                                    WEFT_MSG_W_FINISH, WEFT_MSG_W_PUBLISH,
                                    WEFT_MSG_W_ABORT };
  fleet_rank *rank = &e->ranks[a->a / 16 % e->w->ranks];
  const uint16_t type = types[a->b % (sizeof types / sizeof types[0])];
  const unsigned what = a->b / 16 % 4;
  rank->refuse = what == 0 ? type : rank->refuse;
  rank->die = what == 1 ? type : rank->die;
  rank->mute = what == 2 ? type : what == 3 ? 0 : rank->mute;
}

static void trouble_journal(run *r, const fleet_action *a)
{
  const unsigned index = a->a % (r->w.replicas + 1);
  const unsigned engine = index == r->w.replicas ? C : index;
  const unsigned what = a->b % 3;
  if (!r->w.engines[engine].alive) {
    return;
  }
  if (what == 0) {
    r->w.engines[engine].journal.fail_once = true;
  } else if (what == 1) {
    r->w.engines[engine].journal.hang = true;
  } else {
    fleet_release_journal(&r->w, engine);
  }
}

static void act(run *r, const fleet_action *a)
{
  fleet_world *w = &r->w;
  const unsigned replica = a->a % w->replicas;
  fleet_engine *e = &w->engines[replica];
  switch (a->kind) {
  case FLEET_TRAINER:
    trainer(r, a);
    break;
  case FLEET_CATCH_UP:
    catch_up(r, a);
    break;
  case FLEET_LABEL:
  case FLEET_ABORT:
  case FLEET_PAUSE:
    operate(r, a);
    break;
  case FLEET_CUT:
    e->cut = true;
    break;
  case FLEET_HEAL:
    e->cut = false;
    e->slow_ms = 0;
    break;
  case FLEET_SLOW:
    e->slow_ms = 1 + a->b % 700;
    break;
  case FLEET_AMBUSH:
    ambush(e, a);
    break;
  case FLEET_CRASH:
    w->torn = a->b % 2 == 0;
    fleet_crash(w, replica);
    break;
  case FLEET_COORDINATOR_CRASH:
    w->torn = a->b % 2 == 0;
    fleet_crash(w, C);
    break;
  case FLEET_RESTART:
    for (unsigned i = 0; i <= w->replicas; i++) {
      const unsigned index = i == w->replicas ? C : i;
      if (!w->engines[index].alive) {
        w->engines[index].journal.hang = false;
        fleet_restart(w, index);
        break;
      }
    }
    break;
  case FLEET_RANK:
    trouble_rank(e, a);
    break;
  case FLEET_JOURNAL:
  case FLEET_KINDS:
    trouble_journal(r, a);
    break;
  }
}

/* ---- the end: when all faults are over, all is well again */

static void heal(fleet_world *w)
{
  w->late_frames = false; /* those that are on their way arrive */
  for (unsigned i = 0; i <= w->replicas; i++) {
    const unsigned index = i == w->replicas ? C : i;
    fleet_engine *e = &w->engines[index];
    e->cut = false;
    e->slow_ms = 0;
    e->lose_question = e->lose_answer = e->double_question = 0;
    e->crash_before = e->crash_after = e->coordinator_crash = 0;
    e->journal.fail_once = false;
    for (unsigned k = 0; k < FLEET_RANKS_MAX; k++) {
      e->ranks[k].refuse = e->ranks[k].die = e->ranks[k].mute = 0;
    }
    if (!e->alive) {
      e->journal.hang = false;
      fleet_restart(w, index);
    } else {
      fleet_release_journal(w, index);
    }
  }
}

static void must(run *r, const fleet_answer *a, const char *what)
{
  if (a->err != WEFT_OK) {
    fleet_break(&r->w, "I7: %s after all faults: %s %.200s", what, weft_err_name(a->err),
                a->message);
  }
}

static bool has_committed(const fleet_world *w, uint64_t boot, uint64_t epoch)
{
  const fleet_journal *j = &w->engines[C].journal;
  bool found = false;
  for (unsigned i = 0; i < j->count; i++) {
    const weft_journal_record *r = &j->records[i];
    found = found || (r->kind == WEFT_JOURNAL_WEIGHTS && j->durable[i] &&
                      r->boot_id == boot && r->epoch == epoch);
  }
  return found;
}

static void check_doubts(run *r)
{
  for (unsigned i = 0; i < r->w.replicas && !r->w.broken; i++) {
    const fleet_engine *e = &r->w.engines[i];
    if (e->upstream.doubt) {
      fleet_break(&r->w, "I7: replica %u is still in doubt", i);
    }
    for (unsigned k = 0; k < e->journal.count; k++) {
      const weft_journal_record *v = &e->journal.records[k];
      unsigned commits = 0;
      unsigned aborts = 0;
      for (unsigned m = k + 1; m < e->journal.count; m++) {
        const weft_journal_record *end = &e->journal.records[m];
        const bool of_vote = v->kind == WEFT_JOURNAL_VOTE &&
                             end->fleet_boot == v->fleet_boot &&
                             end->fleet_epoch == v->fleet_epoch;
        /* Resolved: the vote of an earlier life, whose weights are gone either way. */
        const bool lost = strcmp(end->operation, "resolve_weight_update") == 0;
        commits += of_vote && end->kind == WEFT_JOURNAL_WEIGHTS;
        aborts += of_vote && end->kind == WEFT_JOURNAL_ABORTED && !lost;
      }
      if (aborts > 0 && has_committed(&r->w, v->fleet_boot, v->fleet_epoch)) {
        fleet_break(&r->w, "replica %u has aborted what its coordinator has committed",
                    i);
      }
      if (commits > 0 && !fleet_is_recorded(&r->w, v->digest_hi)) {
        fleet_break(&r->w, "replica %u has committed what its coordinator has not", i);
      }
    }
  }
}

static void check_end(run *r)
{
  fleet_world *w = &r->w;
  heal(w);
  fleet_run(w, SETTLE_MS);
  for (unsigned i = 0; i < 200 && !w->broken; i++) { /* calls that wait for an answer */
    fleet_run(w, 2000);
    const bool open = (r->trainer.step != PUSH_NONE && !w->answers[TRAINER].came) ||
                      (r->helper.step != PUSH_NONE && !w->answers[HELPER].came);
    if (!open) {
      break;
    }
  }
  if (r->trainer.step == PUSH_FINISHES && w->answers[TRAINER].came) {
    judge_finish(r, &r->trainer, &w->answers[TRAINER]);
  }
  check_doubts(r);
  const weft_client_abort abort_msg = { .h.type = WEFT_MSG_CLIENT_ABORT, .caller = 101 };
  if (!w->broken) {
    must(r, fleet_call(w, OPERATOR, C, &abort_msg.h), "abort");
  }
  char info[32];
  info_of(++r->contents, info, sizeof info);
  if (!w->broken) {
    must(r, fleet_begin(w, C), "start");
  }
  if (!w->broken) {
    must(r, fleet_update(w, C, info), "update");
  }
  if (!w->broken) {
    must(r, fleet_finish(w, C, "end"), "finish");
  }
  fleet_run(w, 3000);
  for (unsigned i = 0; i <= w->replicas && !w->broken; i++) {
    const unsigned index = i == w->replicas ? C : i;
    must(r, fleet_query(w, index, WEFT_QUERY_READY), "ready");
    const fleet_answer *a = fleet_query(w, index, WEFT_QUERY_INFO);
    must(r, a, "weight_info");
    if (!w->broken && strcmp(a->version, "end") != 0) {
      fleet_break(w, "I7: engine %u shows %s after a push", index, a->version);
    }
  }
  check_refused(r);
  check_doubts(r);
}

bool fleet_plan_run(const fleet_plan *p, const bool *left_out, bool trace, char *why,
                    size_t cap, uint64_t *hash)
{
  run *r = calloc(1, sizeof *r);
  if (r == NULL) {
    (void)snprintf(why, cap, "no memory for a run");
    return false;
  }
  fleet_opts opts = p->opts;
  opts.trace = trace;
  fleet_start(&r->w, &opts);
  r->w.strict = true;
  r->w.late_frames = true;
  for (unsigned i = 0; i < p->count && !r->w.broken; i++) {
    if (left_out == NULL || !left_out[i]) {
      act(r, &p->actions[i]);
    }
    fleet_run(&r->w, p->actions[i].gap_ms);
    check_refused(r);
  }
  if (!r->w.broken) {
    check_end(r);
  }
  const bool good = !r->w.broken;
  (void)snprintf(why, cap, "%s", r->w.why);
  if (hash != NULL) {
    *hash = weft_sim_hash(r->w.sim);
  }
  fleet_stop(&r->w);
  free(r);
  return good;
}
