/* The invariants of architecture §3, as far as they are about what clients are told. */
#include "full_http.h"
#include "weft/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t epoch_in(const char *session)
{
  uint64_t epoch = 0;
  return sscanf(session, "%*[0-9a-f]-%" SCNu64, &epoch) == 1 ? epoch : 0;
}

static void check_in_time(full *w, const full_call *call, bool kept)
{
  const uint64_t took = call->answered_ms - call->asked_ms;
  /* A remote front end answers in time whatever becomes of the engine. */
  const bool remote = w->clients[call->client].way == HTTP_REMOTE + 1;
  const bool excused =
      kept || (remote ? w->memory_excused_until > call->asked_ms
                      : w->excused_until > call->asked_ms || w->engine_frozen);
  if (took > call->allowed_ms + 1000 && !excused) {
    full_break(w,
               "I5: %s of client %u was answered after %" PRIu64 " ms of %" PRIu64 ": %s",
               weft_msg_desc_of(weft_messages(), call->type)->name, call->client, took,
               call->allowed_ms, call->message);
  }
}

static void check_session(full *w, const full_call *call, uint64_t epoch)
{
  if (call->with_session && call->err == WEFT_OK && epoch_in(call->session) != epoch) {
    full_break(w, "%s with the session of epoch %" PRIu64 " went into %" PRIu64,
               weft_msg_desc_of(weft_messages(), call->type)->name,
               epoch_in(call->session), epoch);
  }
}

static void check_update(full *w, const full_call *call)
{
  full_push *push = &w->pushes[call->push];
  if (call->silent && call->outcome == WEFT_OUTCOME_UNKNOWN) {
    return;
  }
  push->state = call->err == WEFT_OK ? PUSH_OK : PUSH_FAILED;
  for (uint32_t i = 0; i < w->ranks && call->err == WEFT_OK; i++) {
    const full_process *p = full_process_at(w, i);
    const bool has =
        p != NULL && p->got_count > 0 && p->got[p->got_count - 1] == call->push;
    if (has) {
      push->epoch = p->session_epoch;
      push->boot = w->boot;
      check_session(w, call, p->session_epoch);
    }
  }
}

static void check_finish(full *w, const full_call *call)
{
  const full_boot *b = full_now(w);
  full_epoch *e = full_epoch_of(full_now(w), call->sequence);
  if (call->err != WEFT_OK) {
    return;
  }
  if (e == NULL || call->sequence > b->visible) {
    full_break(w, "I2: finish answers %" PRIu64 ", which is not visible", call->sequence);
    return;
  }
  full_check_pushes(w, e);
  check_session(w, call, (uint64_t)(e - b->epochs));
}

/* Who is told that a session was aborted does not find its bytes live. */
static void check_abort(full *w, const full_call *call)
{
  const full_boot *b = full_now(w);
  const uint64_t epoch = call->with_session ? epoch_in(call->session) : 0;
  if (call->err == WEFT_OK && epoch > 0 && epoch < FULL_EPOCHS &&
      strtoull(call->session, NULL, 16) == b->id && b->epochs[epoch].sequence != 0) {
    full_break(w, "session %s was aborted, a client is told; it is change %" PRIu64,
               call->session, b->epochs[epoch].sequence);
  }
}

/* It has not hung up; by HTTP, who has is not answered. */
static bool is_there(const full *w, const full_call *call)
{
  return call->by_http || call->caller == w->clients[call->client].caller;
}

/* The same key and body once more: the same answer.  Who hung up is told that nobody
 * waits for it any more. */
static void check_repeat(full *w, const full_call *call)
{
  for (unsigned i = 0; i < w->call_count; i++) {
    const full_call *first = &w->calls[i];
    if (first == call) {
      return;
    }
    if (first->open || first->key[0] == '\0' || strcmp(first->key, call->key) != 0 ||
        first->type != call->type || first->err != WEFT_OK) {
      continue;
    }
    const weft_err no_memory = call->by_http ? WEFT_E_FAILED : WEFT_E_NOMEM;
    if ((call->err == no_memory && w->allocs_failed > 0) || call->silent ||
        first->boot != call->boot ||
        (call->err == WEFT_E_CANCELLED && !is_there(w, call))) {
      return;
    }
    if (call->err != WEFT_OK || call->sequence != first->sequence) {
      full_break(w, "key %s: answered %" PRIu64 " first and %s %" PRIu64 " then",
                 call->key, first->sequence, weft_err_name(call->err), call->sequence);
    }
  }
}

void full_check_answer(full *w, full_call *call, bool kept)
{
  const full_boot *b = full_now(w);
  check_in_time(w, call, kept);
  if (call->boot != w->boot) { /* nobody can say which life's answer it is */
    return;
  }
  if (call->sequence > b->visible) {
    full_break(w, "I2: an answer says %" PRIu64 ", %" PRIu64 " is visible",
               call->sequence, b->visible);
  }
  const bool forgotten = b->forgets && strcmp(call->got_version, b->forgotten) == 0;
  if (call->sequence == b->visible && strcmp(call->got_version, b->version) != 0 &&
      !call->no_version && !call->no_sequence &&
      !forgotten) { /* said before it was poisoned */
    full_break(w, "I2: an answer says '%s', '%s' is visible", call->got_version,
               b->version);
  }
  if (call->key[0] != '\0') {
    check_repeat(w, call);
  }
  /* Not taken: it came later, with the key of a call that had ended so. */
  if (strstr(call->message, "taken over") != NULL && call->type != WEFT_MSG_CLIENT_INIT &&
      call->taken && is_there(w, call) && call->err == WEFT_E_CONFLICT) {
    full_break(w, "I5: the call of a living client was taken over: %s", call->message);
  }
  if (call->type == WEFT_MSG_CLIENT_UPDATE) {
    check_update(w, call);
  } else if (call->type == WEFT_MSG_CLIENT_FINISH) {
    check_finish(w, call);
  } else if (call->type == WEFT_MSG_CLIENT_ABORT) {
    check_abort(w, call);
  }
}

/* The detailed view against the short one: a ready rank has what is visible, except while
 * a change is on its way. */
static void check_worker(full *w, const weft_json *root, const weft_json *shown)
{
  int64_t all = 0;
  int64_t mine = 0;
  const char *state = weft_json_str(weft_json_get(shown, "state"));
  const char *session = weft_json_str(weft_json_get(root, "state"));
  (void)weft_json_i64(weft_json_get(root, "weights_sequence"), &all);
  (void)weft_json_i64(weft_json_get(shown, "sequence"), &mine);
  if (state != NULL && session != NULL && strcmp(state, "ready") == 0 && mine != all &&
      strcmp(session, "committing") != 0) {
    full_break(w, "I2: a ready rank shows %" PRId64 ", %" PRId64 " is visible", mine,
               all);
  }
}

void full_check_status(full *w, const weft_buf *json)
{
  weft_json *root = NULL;
  weft_why why;
  if (weft_json_parse(json->data, json->len, NULL, &root, &why) != WEFT_OK) {
    full_break(w, "I2: the status is no JSON: %s", why.text);
    return;
  }
  const weft_json *workers = weft_json_get(root, "workers");
  for (const weft_json *i = weft_json_first(workers); i != NULL; i = weft_json_next(i)) {
    check_worker(w, root, i);
  }
  weft_json_free(root);
}
