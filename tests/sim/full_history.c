/* From the calls of a run to the history that is checked. */
#include "full.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t hash_of(const char *s)
{
  uint64_t h = 0xcbf29ce484222325u;
  for (; *s != '\0'; s++) {
    h = (h ^ (unsigned char)*s) * 0x100000001b3u;
  }
  return h;
}

static uint64_t session_of(const char *text)
{
  return text[0] == '\0' ? 0 : hash_of(text);
}

static history_kind kind_of(uint16_t type)
{
  switch (type) {
  case WEFT_MSG_CLIENT_INIT:
    return HISTORY_INIT;
  case WEFT_MSG_CLIENT_START:
    return HISTORY_START;
  case WEFT_MSG_CLIENT_UPDATE:
    return HISTORY_UPDATE;
  case WEFT_MSG_CLIENT_FINISH:
    return HISTORY_FINISH;
  case WEFT_MSG_CLIENT_LABEL:
    return HISTORY_LABEL;
  case WEFT_MSG_CLIENT_ABORT:
    return HISTORY_ABORT;
  default:
    return HISTORY_READ;
  }
}

static history_result result_of(const full_call *c)
{
  if (c->open || c->outcome == WEFT_OUTCOME_UNKNOWN) {
    return HISTORY_UNKNOWN;
  }
  if (c->err == WEFT_E_CONFLICT && c->draft && strstr(c->message, "main model") != NULL) {
    return HISTORY_NOTHING; /* of the sets, not of who has the session */
  }
  if (c->type == WEFT_MSG_CLIENT_LABEL && strstr(c->message, "no version is live")) {
    return HISTORY_NOTHING; /* of what is poisoned */
  }
  if (c->type == WEFT_MSG_CLIENT_START && strstr(c->message, "still hold") != NULL) {
    return HISTORY_FAILED; /* readers were in the way, no other session */
  }
  return c->err == WEFT_OK           ? HISTORY_OK
         : c->err == WEFT_E_CONFLICT ? HISTORY_CONFLICT
         : c->err == WEFT_E_STATE    ? HISTORY_STATE
         : c->err == WEFT_E_PRECOND  ? HISTORY_PRECOND
                                     : HISTORY_FAILED;
}

/* The stored answer to a key that was used before is no call of its own.  What was
 * refused before anything began is not stored: the same words tell the two apart. */
static bool is_repeat(const full *w, const full_call *c)
{
  for (unsigned i = w->first_call; c->key[0] != '\0' && &w->calls[i] != c; i++) {
    const full_call *o = &w->calls[i];
    if (strcmp(o->key, c->key) == 0 && o->err == c->err && o->sequence == c->sequence &&
        strcmp(o->message, c->message) == 0) {
      return true;
    }
  }
  return false;
}

static bool is_lost(const full_call *c)
{
  return c->step_from != 0 && result_of(c) == HISTORY_UNKNOWN;
}

/* A repeat that was told how the call under its key ended, whose own answer was lost: the
 * two are one call.  NULL = c is none. */
static const full_call *lost_by(const full *w, const full_call *c)
{
  for (unsigned i = w->first_call; c->key[0] != '\0' && &w->calls[i] != c; i++) {
    const full_call *o = &w->calls[i];
    if (strcmp(o->key, c->key) == 0 && o->type == c->type && is_lost(o)) {
      return result_of(c) == HISTORY_OK ? o : NULL;
    }
  }
  return NULL;
}

/* A later repeat stands for c, too. */
static bool is_told_later(const full *w, const full_call *c)
{
  for (unsigned i = w->call_count; is_lost(c) && i-- > 0 && &w->calls[i] != c;) {
    if (lost_by(w, &w->calls[i]) != NULL && strcmp(w->calls[i].key, c->key) == 0) {
      return true;
    }
  }
  return false;
}

static history_op op_of(const full_call *c, unsigned index)
{
  history_op op = { .kind = kind_of(c->type),
                    .result = result_of(c),
                    .client = c->client,
                    .from = c->step_from,
                    .to = c->step_to,
                    .session = c->with_session ? session_of(c->session) : 0,
                    .has_version = c->has_version,
                    .has_expected = c->has_expected,
                    .version = hash_of(c->version),
                    .expected = hash_of(c->expected),
                    .got_version = hash_of(c->got_version),
                    .sequence = c->sequence };
  if (op.kind == HISTORY_START) {
    op.session = op.result == HISTORY_OK ? session_of(c->got_session) : index + 1;
  }
  return op;
}

static void print_all(const full *w)
{
  for (unsigned i = w->first_call; i < w->call_count; i++) {
    const full_call *c = &w->calls[i];
    (void)fprintf(stderr,
                  "  %2u client %u steps %" PRIu64 "..%" PRIu64 " %s%s%s%s%s%s%s: %s%s, "
                  "sequence %" PRIu64 " '%s' %s\n",
                  i, c->client, c->step_from, c->step_to,
                  weft_msg_desc_of(weft_messages(), c->type)->name,
                  c->has_version ? " version " : "", c->version,
                  c->has_expected ? " expects " : "", c->expected,
                  c->with_session ? " session " : "", c->with_session ? c->session : "",
                  weft_err_name(c->err),
                  c->outcome == WEFT_OUTCOME_UNKNOWN ? " (unknown)" : "", c->sequence,
                  c->got_version, c->got_session);
  }
}

static void describe(const full *w, char *out, size_t cap, unsigned index)
{
  const full_call *c = &w->calls[index];
  (void)snprintf(out, cap,
                 "%s of client %u at %" PRIu64 " ms: %s, sequence %" PRIu64 ", '%s'",
                 weft_msg_desc_of(weft_messages(), c->type)->name, c->client, c->asked_ms,
                 weft_err_name(c->err), c->sequence, c->got_version);
}

/* It took effect once, between the first call and the answer, whatever its client did
 * meanwhile: as if by a client of its own. */
static void join(history_op *op, const full_call *first, unsigned *spare)
{
  op->from = first->step_from;
  if (*spare < HISTORY_CLIENTS) {
    op->client = (*spare)++;
  } else {
    op->result = HISTORY_UNKNOWN; /* says less, and is as true */
  }
}

void full_check_history(full *w)
{
  history_op *ops = calloc(FULL_CALLS, sizeof *ops);
  unsigned *index = calloc(FULL_CALLS, sizeof *index);
  size_t count = 0;
  size_t at = 0;
  unsigned spare = FULL_CLIENTS;
  for (unsigned i = w->first_call; i < w->call_count; i++) {
    const full_call *c = &w->calls[i];
    const bool read = kind_of(c->type) == HISTORY_READ;
    if (c->step_from == 0 || is_repeat(w, c) || is_told_later(w, c) ||
        (read &&
         (c->has_version || c->err != WEFT_OK || result_of(c) == HISTORY_UNKNOWN))) {
      continue;
    }
    index[count] = i;
    ops[count] = op_of(c, i);
    if (lost_by(w, c) != NULL) {
      join(&ops[count], lost_by(w, c), &spare);
    }
    count++;
  }
  if (history_check(ops, count, w->faulty, full_now(w)->forgets, hash_of("default"),
                    &at) == HISTORY_NOT_LINEARISABLE) {
    char text[200];
    if (w->opts.trace) {
      print_all(w);
    }
    describe(w, text, sizeof text, index[at]);
    full_break(w, "history: no order of the calls explains %s", text);
  }
  free(ops);
  free(index);
}
