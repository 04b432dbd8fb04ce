/* The process party as the keeper of its children's weights: what a rank has installed
 * outlives it, and its next life may ask for it.  Answers are late, lost, wrong or
 * damaged. */
#include "full.h"

#include <stdlib.h>
#include <string.h>

enum { OFFER_MS = 20, SLOW_MS = 3000 };
/* In order. */
static const char *const names[FULL_CELLS] = { "draft:t0", "draft:t1", "draft:t2",
                                               "t0",       "t1",       "t2" };

void full_kept_of(const weft_snapshot *s, full_kept *k)
{
  *k = (full_kept){ .is = true, .digest = { s->digest_hi, s->digest_lo } };
  for (unsigned i = 0; i < FULL_CELLS; i++) {
    const weft_tensor *t = weft_snapshot_find(s, names[i]);
    k->has[i] = t != NULL;
    if (t != NULL) {
      memcpy(&k->content[i], t->data, sizeof k->content[i]);
      memcpy(k->tensor_digest[i], t->digest, sizeof k->tensor_digest[i]);
    }
  }
}

void full_keep(full_process *p, const weft_snapshot *s)
{
  full *w = p->w;
  full_kept_of(s, &w->kept[p->rank][w->kept_count[p->rank]++ % FULL_KEPT]);
}

static bool keep_want(void *arg, uint64_t weights_sequence, const uint64_t digest[2],
                      bool not_own)
{
  full_process *p = arg;
  full *w = p->w;
  full_trouble *t = &w->trouble[p->rank];
  if (weights_sequence == 0) {
    return true;
  }
  p->wanted[0] = digest[0];
  p->wanted[1] = digest[1];
  p->wanted_other = not_own;
  if (t->offer_lost) {
    t->offer_lost = false;
    return true;
  }
  full_later(w, 1 + full_random(w, t->offer_slow ? SLOW_MS : OFFER_MS),
             &(full_event){ .kind = EV_OFFER,
                            .rank = p->rank,
                            .process = p->index,
                            .incarnation = p->incarnation });
  return true;
}

const full_kept *full_kept_find(const full *w, uint32_t rank, const uint64_t digest[2],
                                bool wrong)
{
  for (unsigned i = 0; i < FULL_KEPT; i++) {
    const full_kept *k = &w->kept[rank][i];
    if (k->is && (memcmp(k->digest, digest, sizeof k->digest) == 0) != wrong) {
      return k;
    }
  }
  return NULL;
}

static const full_kept *find_at(full *w, const full_process *p)
{
  full_trouble *t = &w->trouble[p->rank];
  const bool wrong = t->offer_wrong;
  t->offer_wrong = false;
  if (!p->wanted_other) {
    return full_kept_find(w, p->rank, p->wanted, wrong);
  }
  for (uint32_t r = 0; r < w->ranks; r++) {
    const full_kept *k =
        r != p->rank && w->at[r] != 0 ? full_kept_find(w, r, p->wanted, wrong) : NULL;
    if (k != NULL) {
      return k;
    }
  }
  return NULL;
}

void full_offer(full *w, full_process *p)
{
  full_trouble *t = &w->trouble[p->rank];
  const full_kept *k = find_at(w, p);
  const weft_kept_offer m = { .h.type = WEFT_MSG_KEPT_OFFER, .found = k != NULL };
  p->offer = k != NULL ? *k : (full_kept){ .is = false };
  if (t->offer_damaged) {
    t->offer_damaged = false;
    p->offer.content[full_random(w, FULL_CELLS)] ^= 1 << 20;
  }
  (void)weft_sim_send(w->sim, p->worker, &m.h); /* lost: the worker does not wait */
}

void full_kept_entries(full_process *p, const full_kept *k, wefti_entry **entries,
                       size_t *count)
{
  size_t made = 0;
  weft_err err = WEFT_OK;
  wefti_entry *e = calloc(FULL_CELLS, sizeof *e);
  for (unsigned i = 0; i < FULL_CELLS && e != NULL && err == WEFT_OK; i++) {
    weft_tensor t = { .name = names[i], .dtype = "int64", .bytes = 8 };
    weft_extent extent;
    if (!k->has[i]) {
      continue;
    }
    memcpy(t.digest, k->tensor_digest[i], sizeof t.digest);
    err = weft_memory_alloc(&p->memory, 8, &extent, NULL);
    if (err == WEFT_OK) {
      memcpy(extent.ptr, &k->content[i], sizeof k->content[i]);
      err = wefti_cell_create(&t, &p->memory, &extent, &e[made]);
      made += err == WEFT_OK;
    }
  }
  if (e == NULL || err != WEFT_OK) {
    abort(); /* a test without memory */
  }
  *entries = e;
  *count = made;
}

static weft_err keep_take(void *arg, wefti_entry **entries, size_t *count, weft_why *why)
{
  full_process *p = arg;
  const full_kept k = p->offer;
  p->offer.is = false;
  if (!k.is) {
    return weft_whyf(why, WEFT_E_STATE, "nothing is offered");
  }
  full_kept_entries(p, &k, entries, count);
  return WEFT_OK;
}

static void keep_had(void *arg, uint64_t weights_sequence, const uint64_t digest[2])
{
  (void)arg, (void)weights_sequence, (void)digest;
}

void full_keeper_make(full_process *p)
{
  p->keeper =
      (wefti_keeper){ .want = keep_want, .take = keep_take, .had = keep_had, .arg = p };
  p->device->keeper = p->child && p->w->opts.keeps ? &p->keeper : NULL;
}
