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

/* The engine was never asked. */
static bool was_not_asked(const full_call *c)
{
  return strstr(c->message, "overloaded") != NULL ||
         strstr(c->message, "out of memory") != NULL ||
         strstr(c->message, "not reachable") != NULL;
}

static history_result result_of(const full_call *c)
{
  if (c->open || c->carried || c->outcome == WEFT_OUTCOME_UNKNOWN) {
    return HISTORY_UNKNOWN;
  }
  if (c->silent) {
    const bool change =
        c->type == WEFT_MSG_CLIENT_FINISH || c->type == WEFT_MSG_CLIENT_LABEL;
    return change || was_not_asked(c) ? HISTORY_NOTHING : HISTORY_UNKNOWN;
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
         : c->err == WEFT_E_CONFLICT ? c->by_http ? HISTORY_REFUSED : HISTORY_CONFLICT
         : c->err == WEFT_E_STATE    ? HISTORY_STATE
         : c->err == WEFT_E_PRECOND  ? HISTORY_PRECOND
                                     : HISTORY_FAILED;
}

/* Of this boot, or it may have reached it. */
static bool is_of_now(const full *w, const full_call *c)
{
  return c->boot == w->boot || c->carried;
}

static bool is_under_key(const full *w, const full_call *o, const char *key)
{
  return is_of_now(w, o) && strcmp(o->key, key) == 0;
}

static bool is_lost(const full_call *c)
{
  return c->step_from != 0 && result_of(c) == HISTORY_UNKNOWN;
}

/* As far as it can be told of both. */
static bool same_answer(const full_call *a, const full_call *b)
{
  const bool http = a->by_http || b->by_http;
  return (http ? (a->err == WEFT_OK) == (b->err == WEFT_OK) : a->err == b->err) &&
         (a->no_sequence || b->no_sequence || a->sequence == b->sequence) &&
         strcmp(a->message, b->message) == 0;
}

/* The stored answer to a key that was used before is no call of its own.  What was
 * refused before anything began is not stored: the same words tell the two apart. */
static bool is_repeat(const full *w, const full_call *c)
{
  for (unsigned i = 0; c->key[0] != '\0' && !is_lost(c) && &w->calls[i] != c; i++) {
    const full_call *o = &w->calls[i];
    if (is_under_key(w, o, c->key) && !is_lost(o) && same_answer(o, c)) {
      return true;
    }
  }
  return false;
}

/* A repeat that was told how the call under its key ended, whose own answer was lost: the
 * two are one call.  NULL = c is none. */
static const full_call *lost_by(const full *w, const full_call *c)
{
  for (unsigned i = 0; c->key[0] != '\0' && &w->calls[i] != c; i++) {
    const full_call *o = &w->calls[i];
    if (is_under_key(w, o, c->key) && o->type == c->type && is_lost(o)) {
      return result_of(c) == HISTORY_OK ? o : NULL;
    }
  }
  return NULL;
}

/* A later repeat stands for c, too. */
static bool is_told_later(const full *w, const full_call *c)
{
  for (unsigned i = w->call_count; is_lost(c) && i-- > 0 && &w->calls[i] != c;) {
    const full_call *o = &w->calls[i];
    if (is_under_key(w, o, c->key) && lost_by(w, o) != NULL) {
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
                    .sequence = c->sequence,
                    .no_version = c->no_version,
                    .no_sequence = c->no_sequence };
  op.lost = c->by_http && op.result == HISTORY_UNKNOWN;
  if (op.kind == HISTORY_START) {
    op.session = op.result == HISTORY_OK ? session_of(c->got_session) : index + 1;
  }
  return op;
}

static void print_all(const full *w)
{
  for (unsigned i = 0; i < w->call_count; i++) {
    const full_call *c = &w->calls[i];
    (void)fprintf(
        stderr,
        "  %2u %s client %u steps %" PRIu64 "..%" PRIu64 " %s%s%s%s%s%s%s: %s%s, "
        "sequence %" PRIu64 " '%s' %s %s\n",
        i, c->by_http ? "http" : "", c->client, c->step_from, c->step_to,
        weft_msg_desc_of(weft_messages(), c->type)->name,
        c->has_version ? " version " : "", c->version, c->has_expected ? " expects " : "",
        c->expected, c->with_session ? " session " : "",
        c->with_session ? c->session : "", weft_err_name(c->err),
        c->outcome == WEFT_OUTCOME_UNKNOWN ? " (unknown)" : "", c->sequence,
        c->got_version, c->got_session, c->message);
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
  for (unsigned i = 0; i < w->call_count; i++) {
    const full_call *c = &w->calls[i];
    const bool read = kind_of(c->type) == HISTORY_READ;
    if (!is_of_now(w, c) || c->step_from == 0 || is_repeat(w, c) || is_told_later(w, c) ||
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
