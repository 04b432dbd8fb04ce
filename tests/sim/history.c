/* After Wing and Gong (1993) with Lowe's memory of configurations: the next operation is
 * any that was called before the first answer among those not placed yet; a configuration
 * that was tried once is not tried again. */
#include "history.h"

#include <stdlib.h>
#include <string.h>

enum { UNKNOWNS = 16, SEEN = 1 << 16, OPS_MAX = 512 };

typedef struct spec { /* what the sequential engine holds */
  uint64_t session;   /* 0 = none open */
  uint64_t version, sequence;
} spec;

typedef struct config {
  uint16_t next[HISTORY_CLIENTS]; /* into the client's own list */
  uint16_t unknown;               /* bit per unknown op that has taken effect */
  uint16_t used;
  spec s;
} config;

typedef struct search {
  const history_op *ops;
  bool faulty, forgets;
  uint64_t first_version;
  size_t list[HISTORY_CLIENTS][OPS_MAX];
  size_t len[HISTORY_CLIENTS];
  size_t unknown[UNKNOWNS];
  size_t unknown_count;
  bool busy[OPS_MAX]; /* another session call overlaps it */
  config *seen;       /* [SEEN] */
  size_t seen_count;
  bool full;
  size_t furthest;
} search;

static bool expected_ok(const history_op *op, const spec *s)
{
  return !op->has_expected || op->expected == s->version;
}

static bool session_fits(const history_op *op, const spec *s)
{
  return op->session == 0 || op->session == s->session;
}

static bool says(const history_op *op, const spec *s)
{
  return (op->no_sequence || op->sequence == s->sequence) &&
         (op->no_version || op->got_version == s->version);
}

/* A change: its number is the next one, and its answer shows it. */
static bool change(const history_op *op, spec *s)
{
  if (!expected_ok(op, s)) {
    return false;
  }
  s->sequence++;
  s->version = op->has_version ? op->version : s->version;
  return op->result == HISTORY_UNKNOWN || says(op, s);
}

static bool place_ok(const history_op *op, spec *s)
{
  switch (op->kind) {
  case HISTORY_INIT: /* takes over */
    s->session = 0;
    return true;
  case HISTORY_START:
    if (s->session != 0) {
      return false;
    }
    s->session = op->session;
    return true;
  case HISTORY_UPDATE:
    return s->session != 0 && session_fits(op, s);
  case HISTORY_FINISH:
    if (s->session == 0 || !session_fits(op, s)) {
      return false;
    }
    s->session = 0;
    return change(op, s);
  case HISTORY_LABEL:
    return change(op, s);
  case HISTORY_ABORT:
    if (s->session != 0 && !session_fits(op, s)) {
      return false;
    }
    s->session = 0;
    return true;
  case HISTORY_READ:
    return says(op, s);
  }
  return false;
}

static bool conflicts(const history_op *op, bool busy, const spec *s)
{
  return busy || (op->kind == HISTORY_START && s->session != 0) ||
         (op->kind != HISTORY_START && op->session != 0 && op->session != s->session);
}

/* May op have been answered like this in state s, and what does it leave? */
static bool place(const history_op *op, bool busy, spec *s)
{
  switch (op->result) {
  case HISTORY_OK:
  case HISTORY_UNKNOWN:
    return place_ok(op, s);
  case HISTORY_CONFLICT:
    return conflicts(op, busy, s);
  case HISTORY_STATE:
    return s->session == 0 || busy;
  case HISTORY_REFUSED:
    return s->session == 0 || conflicts(op, busy, s);
  case HISTORY_PRECOND:
    return !expected_ok(op, s);
  case HISTORY_NOTHING:
  case HISTORY_FAILED: /* with or without the end of the session: see go */
    return true;
  }
  return false;
}

static uint64_t hash_of(const config *c)
{
  const unsigned char *p = (const unsigned char *)c;
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < sizeof *c; i++) {
    h = (h ^ p[i]) * 0x100000001b3u;
  }
  return h ^ (h >> 32);
}

/* true: it is new. */
static bool remember(search *f, const config *c)
{
  size_t i = (size_t)hash_of(c) % SEEN;
  while (f->seen[i].used != 0) {
    /* NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): a miss costs time only */
    if (memcmp(&f->seen[i], c, sizeof *c) == 0) {
      return false;
    }
    i = (i + 1) % SEEN;
  }
  if (f->seen_count >= SEEN / 2) {
    f->full = true;
    return false;
  }
  f->seen_count++;
  f->seen[i] = *c;
  return true;
}

static bool explore(search *f, const config *c);

static bool go_from(search *f, const config *c, const history_op *op, bool busy,
                    const config *moved)
{
  config next = *moved;
  next.s = c->s;
  if (place(op, busy, &next.s) && explore(f, &next)) {
    return true;
  }
  if (op->lost && c->s.session != 0) {
    next.s = c->s;
    next.s.session = 0;
    if (explore(f, &next)) {
      return true;
    }
  }
  if ((!f->faulty && op->result != HISTORY_FAILED) || c->s.session == 0) {
    return false;
  }
  next = *moved; /* the session had ended by itself */
  next.s = c->s;
  next.s.session = 0;
  return place(op, busy, &next.s) && explore(f, &next);
}

static bool go(search *f, const config *c, const history_op *op, bool busy,
               const config *moved)
{
  if (go_from(f, c, op, busy, moved)) {
    return true;
  }
  if (!f->forgets || c->s.version == f->first_version) {
    return false;
  }
  config forgot = *c; /* what an update in place was written over */
  forgot.s.version = f->first_version;
  return go_from(f, &forgot, op, busy, moved);
}

/* The first answer among what is not placed yet. */
static uint64_t horizon(const search *f, const config *c, bool *all)
{
  uint64_t first = UINT64_MAX;
  *all = true;
  for (unsigned i = 0; i < HISTORY_CLIENTS; i++) {
    if (c->next[i] < f->len[i]) {
      const history_op *op = &f->ops[f->list[i][c->next[i]]];
      first = op->to < first ? op->to : first;
      *all = false;
    }
  }
  return first;
}

static bool explore(search *f, const config *c)
{
  bool all;
  const uint64_t first = horizon(f, c, &all);
  if (all) {
    return true;
  }
  if (!remember(f, c)) {
    return false;
  }
  for (unsigned i = 0; i < HISTORY_CLIENTS; i++) {
    if (c->next[i] == f->len[i]) {
      continue;
    }
    const size_t at = f->list[i][c->next[i]];
    config moved = *c;
    moved.next[i]++;
    f->furthest = at > f->furthest ? at : f->furthest;
    if (f->ops[at].from <= first && go(f, c, &f->ops[at], f->busy[at], &moved)) {
      return true;
    }
  }
  for (size_t i = 0; i < f->unknown_count; i++) {
    config moved = *c;
    moved.unknown = (uint16_t)(c->unknown | 1u << i);
    const history_op *op = &f->ops[f->unknown[i]];
    if (moved.unknown != c->unknown && op->from <= first &&
        go(f, c, op, f->busy[f->unknown[i]], &moved)) {
      return true;
    }
  }
  return false;
}

static bool of_session(const history_op *op)
{
  return op->kind != HISTORY_LABEL && op->kind != HISTORY_READ;
}

static bool prepare(search *f, size_t count)
{
  for (size_t i = 0; i < count; i++) {
    const history_op *op = &f->ops[i];
    for (size_t j = 0; j < count; j++) {
      const history_op *o = &f->ops[j];
      const bool endless = o->result == HISTORY_UNKNOWN;
      f->busy[i] = f->busy[i] || (j != i && of_session(o) && o->from <= op->to &&
                                  (endless || o->to >= op->from));
    }
    if (op->result != HISTORY_UNKNOWN) {
      f->list[op->client][f->len[op->client]++] = i;
    } else if (f->unknown_count == UNKNOWNS) {
      return false;
    } else {
      f->unknown[f->unknown_count++] = i;
    }
  }
  return true;
}

history_verdict history_check(const history_op *ops, size_t count, bool faulty,
                              bool forgets, uint64_t first_version, size_t *at)
{
  search *f = calloc(1, sizeof *f);
  config first;
  memset(&first, 0, sizeof first); /* with its padding: it is compared as bytes */
  first.used = 1;
  first.s.version = first_version;
  if (f == NULL || (f->seen = calloc(SEEN, sizeof *f->seen)) == NULL) {
    abort();
  }
  f->ops = ops;
  f->faulty = faulty;
  f->forgets = forgets;
  f->first_version = first_version;
  history_verdict verdict = HISTORY_TOO_LARGE;
  if (count <= OPS_MAX && prepare(f, count)) {
    const bool found = explore(f, &first);
    verdict = found     ? HISTORY_LINEARISABLE
              : f->full ? HISTORY_TOO_LARGE
                        : HISTORY_NOT_LINEARISABLE;
  }
  *at = f->furthest;
  free(f->seen);
  free(f);
  return verdict;
}
