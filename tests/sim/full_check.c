/* The invariants of architecture §3, checked against what is really pinned, installed and
 * recorded. */
#include "full_http.h"
#include "weight_slots.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static full_epoch *epoch_at(full *w, full_boot *b, uint64_t epoch)
{
  if (b == NULL || epoch == 0 || epoch >= FULL_EPOCHS) {
    if (epoch >= FULL_EPOCHS) {
      full_break(w, "the run needs more than %d epochs", FULL_EPOCHS);
    }
    return NULL;
  }
  return &b->epochs[epoch];
}

full_epoch *full_epoch_of(full_boot *b, uint64_t sequence)
{
  for (uint64_t i = 1; i < FULL_EPOCHS; i++) {
    if (b->epochs[i].sequence == sequence) {
      return &b->epochs[i];
    }
  }
  return NULL;
}

static uint64_t boot_of(full *w, const full_process *p)
{
  const struct worker *actor = weft_sim_state(w->sim, p->worker);
  return actor == NULL ? 0 : actor->engine.boot;
}

static void content_of(const weft_snapshot *s, int64_t out[FULL_CELLS])
{
  static const char *const names[FULL_CELLS] = { "t0",       "t1",       "t2",
                                                 "draft:t0", "draft:t1", "draft:t2" };
  for (unsigned i = 0; i < FULL_CELLS; i++) {
    const weft_tensor *t = weft_snapshot_find(s, names[i]);
    out[i] = 0;
    if (t != NULL) {
      memcpy(&out[i], t->data, sizeof out[i]);
    }
  }
}

static bool same(const int64_t a[FULL_CELLS], const int64_t b[FULL_CELLS])
{
  return memcmp(a, b, FULL_CELLS * sizeof a[0]) == 0;
}

/* ---- installing: base and pushes, nothing else */

static void expect(full *w, full_boot *b, full_epoch *e, const full_process *p,
                   uint64_t epoch)
{
  const full_epoch *base = e->base == 0 ? NULL : full_epoch_of(b, e->base);
  memset(e->content, 0, sizeof e->content);
  if (base != NULL) {
    memcpy(e->content, base->content, sizeof e->content);
  }
  int64_t *own = e->content + (e->draft ? FULL_TENSORS : 0);
  if (e->alone) { /* the other set ends */
    memset(e->content + (e->draft ? 0 : FULL_TENSORS), 0,
           FULL_TENSORS * sizeof e->content[0]);
  }
  e->got_count = p->session_epoch == epoch ? p->got_count : 0;
  for (unsigned i = 0; i < e->got_count; i++) {
    e->got[i] = p->got[i];
    for (unsigned t = 0; t < FULL_TENSORS; t++) {
      if ((w->pushes[p->got[i]].mask & (1u << t)) != 0) {
        own[t] = p->got[i];
      }
    }
  }
  e->content_known = true;
}

static bool same_pushes(const full_epoch *e, const full_process *p, uint64_t epoch)
{
  const unsigned count = p->session_epoch == epoch ? p->got_count : 0;
  return e->got_count == count &&
         (count == 0 || memcmp(e->got, p->got, count * sizeof p->got[0]) == 0);
}

void full_on_install(void *arg, uint64_t epoch, const weft_snapshot *snapshot)
{
  full_process *p = arg;
  full *w = p->w;
  if (snapshot != NULL) {
    full_keep(p, snapshot);
  }
  if (epoch == WEFTI_RECALL_EPOCH) {
    return; /* what it is, readers will see */
  }
  full_boot *b = full_boot_of(w, boot_of(w, p));
  full_epoch *e = epoch_at(w, b, epoch);
  if (snapshot == NULL || e == NULL) {
    return;
  }
  if (!e->content_known) {
    expect(w, b, e, p, epoch);
  }
  int64_t got[FULL_CELLS];
  content_of(snapshot, got);
  /* A rank that installs something else must not let it become visible. */
  e->installed[p->rank] = same_pushes(e, p, epoch) && same(got, e->content);
  if (e->installed[p->rank]) {
    e->digest = snapshot->digest_hi;
  }
}

/* ---- reading */

static void all_installed(full *w, const full_epoch *e, const char *where,
                          uint64_t sequence)
{
  for (uint32_t i = 0; i < w->ranks; i++) {
    if (!e->installed[i]) {
      full_break(w, "I1: %" PRIu64 " is %s but rank %" PRIu32 " has not installed it",
                 sequence, where, i);
    }
  }
}

/* What a reader at p has got.  exact: it asked for that number. */
static void check_read(full *w, const full_process *p, const weft_snapshot *s, bool exact)
{
  if (p->marked) {
    full_break(w, "I3: rank %" PRIu32 " serves from a slab that is marked dirty",
               p->rank);
  }
  const uint64_t id = boot_of(w, p);
  full_boot *b = full_boot_of(w, id);
  const full_boot *now = full_now(w);
  const uint64_t n = s->weights_sequence;
  const full_epoch *e = b == NULL ? NULL : full_epoch_of(b, n);
  int64_t got[FULL_CELLS];
  if (b == NULL || e == NULL) {
    full_break(w, "I1: rank %" PRIu32 " serves %" PRIu64 ", which nobody published",
               p->rank, n);
    return;
  }
  if (b != now && now->visible_weights != 0) {
    full_break(w, "I8: rank %" PRIu32 " serves weights of an earlier engine", p->rank);
  }
  if (b == now && !exact && n < now->visible_weights) {
    full_break(w, "I8: %" PRIu64 " is visible, rank %" PRIu32 " still serves %" PRIu64,
               now->visible_weights, p->rank, n);
  }
  if (w->journal_actor != 0 && n > b->durable) {
    full_break(w, "I1: rank %" PRIu32 " serves %" PRIu64 " before its record is durable",
               p->rank, n);
  }
  all_installed(w, e, "served", n);
  content_of(s, got);
  if (!same(got, e->content)) {
    full_break(w, "I3: rank %" PRIu32 " serves other bytes under %" PRIu64, p->rank, n);
  }
}

static void keep_pin(full *w, full_process *p, const weft_snapshot *s)
{
  for (unsigned i = 0; i < FULL_HELD; i++) {
    full_held *h = &w->held[i];
    if (h->snapshot == NULL) {
      *h = (full_held){ .p = p, .snapshot = s };
      content_of(s, h->content);
      return;
    }
  }
  weft_store_unpin(p->device->store, s);
}

void full_pin(full *w, uint32_t rank, bool exact, bool keep)
{
  full_process *p = full_process_at(w, rank);
  const weft_snapshot *s;
  const uint64_t want = full_now(w)->visible_weights;
  if (p == NULL || p->frozen ||
      weft_store_pin(p->device->store, exact ? want : 0, &s) != WEFT_OK) {
    return;
  }
  if (exact && want != 0 && s->weights_sequence != want) {
    full_break(w, "I8: rank %" PRIu32 " gives %" PRIu64 " for %" PRIu64, rank,
               s->weights_sequence, want);
  }
  check_read(w, p, s, exact && want != 0 && boot_of(w, p) != full_now(w)->id);
  if (keep) {
    keep_pin(w, p, s);
  } else {
    weft_store_unpin(p->device->store, s);
  }
}

void full_unpin(full *w, unsigned index)
{
  full_held *h = &w->held[index];
  int64_t got[FULL_CELLS];
  if (h->snapshot == NULL) {
    return;
  }
  content_of(h->snapshot, got);
  if (!same(got, h->content)) {
    full_break(w, "I3: bytes changed under a reader of rank %" PRIu32, h->p->rank);
  }
  weft_store_unpin(h->p->device->store, h->snapshot);
  h->snapshot = NULL;
}

void full_unpin_process(full *w, const full_process *p)
{
  for (unsigned i = 0; i < FULL_HELD; i++) {
    if (w->held[i].p == p) {
      full_unpin(w, i);
    }
  }
}

static bool engine_has(const engine *e, const full_call *call)
{
  if (call->at_engine == 0) {
    return false;
  }
  if (e->call != NULL && e->call->caller == call->at_engine) {
    return true;
  }
  for (unsigned i = 0; call->key[0] != '\0' && i < ENGINE_IDEM_KEPT; i++) {
    for (unsigned k = 0; k < e->idem[i].waiter_count; k++) {
      if (e->idem[i].waiters[k].caller == call->at_engine) {
        return true;
      }
    }
  }
  return false;
}

static void note_taken(full *w)
{
  const engine *e = weft_sim_state(w->sim, w->engine);
  for (unsigned i = 0; e != NULL && i < FULL_CLIENTS; i++) {
    if (w->clients[i].pending) {
      full_call *call = &w->calls[w->clients[i].call];
      call->taken = call->taken || engine_has(e, call);
    }
  }
}

/* ---- staging in place */

void full_check_written(full_process *p, const void *dst)
{
  full *w = p->w;
  const weft_snapshot *live = wefti_store_base(p->device->store);
  bool over = false;
  for (size_t i = 0; live != NULL && i < live->tensor_count; i++) {
    over = over || live->tensors[i].data == dst;
  }
  weft_store_unpin(p->device->store, live);
  wefti_store_state st;
  wefti_store_state_get(p->device->store, &st);
  if (over && (st.dirty == 0 || !p->marked)) {
    full_break(w, "I3: rank %" PRIu32 " writes over live bytes before it says so",
               p->rank);
  }
  full_pin(w, p->rank, false, false); /* a reader right now */
}

/* What a failed session has written over is poisoned and the engine not ready; then no
 * version is shown as live. */
static void check_poison(full *w)
{
  const engine *e = weft_sim_state(w->sim, w->engine);
  full_boot *b = full_now(w);
  char reason[256];
  if (e == NULL || !w->opts.inplace) {
    return;
  }
  if (e->inplace.poisoned != 0 && !b->poisoned) {
    memcpy(b->forgotten, b->version, sizeof b->forgotten);
    (void)snprintf(b->version, sizeof b->version, "default");
    b->visible_weights = 0;
    b->forgets = true;
  }
  b->poisoned = e->inplace.poisoned != 0;
  for (uint32_t i = 0; i < w->ranks; i++) {
    const full_process *p = full_process_at(w, i);
    wefti_store_state st = { .dirty = 0 };
    if (p != NULL && boot_of(w, p) == b->id) {
      wefti_store_state_get(p->device->store, &st);
    }
    if (st.dirty != 0 && e->session.state == WEFTI_IDLE &&
        engine_ready(NULL, e, reason, sizeof reason)) {
      full_break(
          w, "I3: ready although rank %" PRIu32 " was written over and not committed", i);
    }
  }
  if (b->poisoned && engine_ready(NULL, e, reason, sizeof reason)) {
    full_break(w, "I3: ready although poisoned");
  }
}

void full_check_step(void *arg, const weft_msg *delivered)
{
  full *w = arg;
  w->steps++;
  if (w->http != NULL) {
    full_http_step(w, delivered);
  }
  note_taken(w);
  check_poison(w);
  for (uint32_t i = 0; i < w->ranks && !w->broken; i++) {
    full_pin(w, i, false, false);
  }
}

static bool is_in(const full_epoch *e, unsigned push)
{
  for (unsigned i = 0; i < e->got_count; i++) {
    if (e->got[i] == push) {
      return true;
    }
  }
  return false;
}

void full_check_pushes(full *w, const full_epoch *e)
{
  for (unsigned i = 0; i < e->got_count; i++) {
    if (w->pushes[e->got[i]].state == PUSH_FAILED) {
      full_break(w, "I3: push %u failed and is in %" PRIu64, e->got[i], e->sequence);
    }
  }
  for (unsigned i = 1; i <= w->push_count; i++) {
    const full_push *p = &w->pushes[i];
    if (p->state == PUSH_OK && p->boot == w->boot &&
        p->epoch == (uint64_t)(e - full_now(w)->epochs) && !is_in(e, i)) {
      full_break(w, "I3: push %u was taken and is not in %" PRIu64, i, e->sequence);
    }
  }
}

/* ---- what becomes visible */

/* A label names nothing that a rank is writing over, or has left half written; what is
 * visible is whole also where its PUBLISH did not arrive. */
static void check_name(full *w, const wefti_visible *v)
{
  const full_boot *b = full_now(w);
  for (uint32_t i = 0; i < w->ranks && strcmp(v->version, "default") != 0; i++) {
    const full_process *p = full_process_at(w, i);
    wefti_store_state st = { .dirty = 0 };
    if (p != NULL && boot_of(w, p) == b->id) {
      wefti_store_state_get(p->device->store, &st);
    }
    if (st.dirty != 0 && st.dirty != b->visible_epoch) {
      full_break(w, "I3: '%s' names what rank %" PRIu32 " is writing over", v->version,
                 i);
    }
  }
}

void full_on_visible(void *arg, const wefti_visible *v)
{
  full *w = arg;
  full_boot *b = full_now(w);
  const engine *e = weft_sim_state(w->sim, w->engine);
  if (v->sequence != b->visible + 1) {
    full_break(w, "I4: %" PRIu64 " is visible after %" PRIu64, v->sequence, b->visible);
  }
  if (w->journal_actor != 0 && b->durable < v->sequence) {
    full_break(w, "I4: %" PRIu64 " is visible before its record is durable", v->sequence);
  }
  const bool weights = v->weights_sequence != b->visible_weights;
  if (weights) {
    full_epoch *ep = epoch_at(w, b, e->session.epoch);
    if (ep == NULL || v->weights_sequence != v->sequence) {
      full_break(w, "I4: %" PRIu64 " becomes visible without a session", v->sequence);
      return;
    }
    ep->sequence = v->sequence;
    all_installed(w, ep, "visible", v->sequence);
    full_check_pushes(w, ep);
    if (v->digest_hi != ep->digest) {
      full_break(w, "I2: %" PRIu64 " is visible with a digest that no rank has",
                 v->sequence);
    }
    b->visible_epoch = e->session.epoch;
  } else {
    check_name(w, v);
  }
  b->visible = v->sequence;
  b->visible_weights = v->weights_sequence;
  (void)snprintf(b->version, sizeof b->version, "%s", v->version);
  (void)snprintf(b->versions[v->sequence % FULL_RECORDS], sizeof b->versions[0], "%s",
                 v->version);
  for (uint32_t i = 0; i < w->ranks && weights; i++) {
    full_pin(w, i, false, false);
    full_pin(w, i, true, false);
  }
}

/* ---- frames */

/* What p works on was asked for before go was. */
static bool asked_before(full *w, const full_process *p, const weft_w_go *go)
{
  const struct worker *actor = weft_sim_state(w->sim, p->worker);
  return actor != NULL && actor->engine.boot == go->boot && actor->asked.op < go->op;
}

void full_check_frame(full *w, const full_process *p, const weft_msg *frame)
{
  const weft_w_go *env = (const weft_w_go *)frame; /* all begin with the envelope */
  full_boot *b = full_boot_of(w, env->boot);
  full_epoch *e = env->epoch == 0 ? NULL : epoch_at(w, b, env->epoch);
  if (frame->type == WEFT_MSG_W_START && e != NULL) {
    e->base = ((const weft_w_start *)frame)->base_sequence;
    e->draft = ((const weft_w_start *)frame)->draft != 0;
    e->alone = ((const weft_w_start *)frame)->alone != 0;
  } else if (frame->type == WEFT_MSG_W_ABORT && e != NULL) {
    e->aborted = true;
    if (e->published) {
      full_break(w, "I3: epoch %" PRIu64 " is aborted after it was published",
                 env->epoch);
    }
  } else if (frame->type == WEFT_MSG_W_PUBLISH && e != NULL) {
    const uint64_t n = ((const weft_w_publish *)frame)->sequence;
    e->published = true;
    e->sequence = n;
    if (e->aborted) {
      full_break(w, "I3: epoch %" PRIu64 " is published after it was aborted",
                 env->epoch);
    }
    if (w->journal_actor != 0 && b->durable < n) {
      full_break(w, "I4: PUBLISH of %" PRIu64 " before its record is durable", n);
    }
    all_installed(w, e, "published", n);
  } else if (frame->type == WEFT_MSG_W_GO && env->boot == full_now(w)->id) {
    /* Nobody enters a collective that another rank has not accepted.  A late copy of an
     * earlier GO is older than the ACCEPT that is worked on, and refused for that. */
    for (uint32_t i = 0; i < w->ranks; i++) {
      const full_process *o = full_process_at(w, i);
      if (o != NULL && o->busy && o->job == WEFT_DEVICE_ACCEPT &&
          o->job_epoch == env->epoch && asked_before(w, o, env)) {
        full_break(
            w, "I3: rank %" PRIu32 " is told to go while rank %" PRIu32 " still accepts",
            p->rank, i);
      }
    }
  }
}

/* I3: nothing of an aborted epoch may stay installed. */
static void check_dropped(full *w, const full_process *p, uint64_t epoch)
{
  const weft_store *store = p->device->store;
  for (unsigned i = 0; i < store->slot_count; i++) {
    if (store->slots[i].state == SLOT_INSTALLED && store->slots[i].epoch <= epoch) {
      full_break(
          w, "I3: rank %" PRIu32 " keeps what epoch %" PRIu64 " installed after its end",
          p->rank, store->slots[i].epoch);
    }
  }
}

void full_check_reply(full *w, const full_process *p, const weft_msg *frame,
                      const weft_msg *answer)
{
  const weft_w_go *env = (const weft_w_go *)frame;
  const bool aborted = frame->type == WEFT_MSG_W_ABORT && answer->type == WEFT_MSG_W_OK;
  if (aborted && p->alive && p->busy && p->job <= WEFT_DEVICE_ABANDON &&
      p->job_epoch != 0 && p->job_epoch <= env->epoch && boot_of(w, p) == env->boot) {
    full_break(w,
               "I3: rank %" PRIu32 " has let go of epoch %" PRIu64
               " but its device thread is at it",
               p->rank, env->epoch);
  }
  if (aborted && p->alive && boot_of(w, p) == env->boot) {
    check_dropped(w, p, env->epoch);
  }
  if (answer->type != WEFT_MSG_W_REFUSED || !p->alive || boot_of(w, p) != env->boot ||
      p->incarnation != env->incarnation) {
    return;
  }
  /* What was published, or has ended, is confirmed as often as it is asked for. */
  wefti_store_state st;
  wefti_store_state_get(p->device->store, &st);
  const weft_err err = (weft_err)((const weft_w_refused *)answer)->err;
  if (frame->type == WEFT_MSG_W_PUBLISH &&
      st.weights_sequence >= ((const weft_w_publish *)frame)->sequence) {
    full_break(w, "I5: rank %" PRIu32 " refuses a PUBLISH that it has done", p->rank);
  } else if (frame->type == WEFT_MSG_W_ABORT && err != WEFT_E_CANCELLED) {
    full_break(w, "I5: rank %" PRIu32 " refuses an ABORT", p->rank);
  }
}
