/* What has become visible and what was given up: a bounded history in memory, the same
 * for the journal, and where the live weights came from. */
#include "engine.h"
#include "weft/journal.h"
#include "weft/json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static_assert((int)WEFT_JOURNAL_BEGUN == (int)WEFT_RECORD_BEGUN &&
                  (int)WEFT_JOURNAL_ABORTED == (int)WEFT_RECORD_ABORTED &&
                  (int)WEFT_JOURNAL_WEIGHTS == (int)WEFT_RECORD_COMMIT_WEIGHTS &&
                  (int)WEFT_JOURNAL_LABEL == (int)WEFT_RECORD_COMMIT_LABEL &&
                  (int)WEFT_JOURNAL_VOTE == (int)WEFT_RECORD_VOTE,
              "the journal's kinds are the messages'");

/* ---- the ring */

struct engine_history {
  weft_journal_record *entries[ENGINE_HISTORY_KEPT]; /* with their strings behind them */
  size_t count;
  size_t next; /* where the next one goes */
  bool gap;    /* there was no memory for one */
};

static const char *text_of(const char *text)
{
  return text == NULL ? "" : text;
}

static char *put_text(char *at, const char **field, const char *text)
{
  const size_t len = strlen(text_of(text)) + 1;
  memcpy(at, text_of(text), len);
  *field = at;
  return at + len;
}

static weft_err remember(weft_ctx *ctx, engine *e, const weft_journal_record *r)
{
  struct engine_history *h = e->history;
  const size_t len = strlen(text_of(r->version)) + strlen(text_of(r->operation)) +
                     strlen(text_of(r->text));
  weft_journal_record *entry = weft_alloc(ctx, sizeof *entry + len + 3);
  if (entry == NULL) {
    return WEFT_E_NOMEM;
  }
  *entry = *r;
  char *at = (char *)(entry + 1);
  at = put_text(at, &entry->version, r->version);
  at = put_text(at, &entry->operation, r->operation);
  (void)put_text(at, &entry->text, r->text);
  entry->sources = "";
  entry->fleet = "";
  weft_free(ctx, h->entries[h->next]);
  h->entries[h->next] = entry;
  h->next = (h->next + 1) % ENGINE_HISTORY_KEPT;
  h->count += h->count < ENGINE_HISTORY_KEPT;
  return WEFT_OK;
}

weft_err engine_history_init(weft_ctx *ctx, engine *e)
{
  e->history = weft_alloc(ctx, sizeof *e->history);
  if (e->history == NULL) {
    return WEFT_E_NOMEM;
  }
  const wefti_engine_args *a = &e->args;
  for (size_t i = 0; i < a->history_count; i++) {
    const weft_journal_record *r = a->history[i];
    engine_vote_init(e, r);
    if (r->kind == WEFT_JOURNAL_BEGUN || r->kind == WEFT_JOURNAL_VOTE) {
      continue; /* its end is a record, too */
    }
    const weft_err err = remember(ctx, e, r);
    if (err != WEFT_OK) {
      return err;
    }
  }
  e->args.history = NULL; /* the caller's, and only until init returns */
  return WEFT_OK;
}

void engine_history_fini(weft_ctx *ctx, engine *e)
{
  for (size_t i = 0; e->history != NULL && i < ENGINE_HISTORY_KEPT; i++) {
    weft_free(ctx, e->history->entries[i]);
  }
  weft_free(ctx, e->history);
  weft_buf_unref(e->sources[SET_MAIN]);
  weft_buf_unref(e->sources[SET_DRAFT]);
  weft_buf_unref(e->change.sources);
  weft_free(ctx, e->session.sources);
}

static void keep(weft_ctx *ctx, engine *e, const weft_journal_record *r)
{
  if (remember(ctx, e, r) != WEFT_OK) {
    e->history->gap = true;
    weft_log(ctx, WEFT_LOG_WARN,
             "no memory: GET /weight_versions will not show change sequence=%" PRIu64,
             r->sequence);
  }
}

void engine_history_commit(weft_ctx *ctx, engine *e, const engine_change *change)
{
  const engine_visible *v = &change->next;
  const engine_set *set = &v->sets[change->which];
  keep(ctx, e,
       &(weft_journal_record){ .kind = change->label ? WEFT_JOURNAL_LABEL
                                                     : WEFT_JOURNAL_WEIGHTS,
                               .declared = v->declared,
                               .boot_id = e->args.boot_id,
                               .epoch = change->label ? 0 : e->session.epoch,
                               .sequence = v->sequence,
                               .weights_sequence = v->weights_sequence,
                               .digest_hi = set->digest_hi,
                               .digest_lo = set->digest_lo,
                               .at_ms = v->at_ms,
                               .elapsed_ms = change->elapsed_ms,
                               .tensors = set->tensors,
                               .bytes = set->bytes,
                               .draft = change->which == SET_DRAFT,
                               .alone = change->alone,
                               .version = v->version,
                               .operation = change->operation });
}

/* History is sent without a question: nobody waits for it, and it may be lost. */
static void send_history(weft_ctx *ctx, engine *e, const weft_journal_append *record)
{
  if (e->args.journal != 0) {
    (void)weft_send(ctx, e->args.journal, weft_msg_make(ctx, &record->h));
  }
}

void engine_history_begun(weft_ctx *ctx, engine *e)
{
  send_history(ctx, e,
               &(weft_journal_append){ .h.type = WEFT_MSG_JOURNAL_APPEND,
                                       .kind = WEFT_RECORD_BEGUN,
                                       .epoch = e->session.epoch,
                                       .draft = e->session.which == SET_DRAFT,
                                       .at_ms = weft_wall_ms(ctx) });
}

void engine_history_aborted(weft_ctx *ctx, engine *e, const char *operation,
                            const char *reason)
{
  const uint64_t at_ms = weft_wall_ms(ctx);
  const uint64_t elapsed_ms = weft_now_ms(ctx) - e->session.opened_ms;
  const engine_vote *v = &e->up.vote;
  const bool voted = engine_vote_is_ours(v); /* and this is how it ends */
  keep(ctx, e,
       &(weft_journal_record){ .kind = WEFT_JOURNAL_ABORTED,
                               .boot_id = e->args.boot_id,
                               .epoch = e->session.epoch,
                               .at_ms = at_ms,
                               .elapsed_ms = elapsed_ms,
                               .draft = e->session.which == SET_DRAFT,
                               .operation = operation,
                               .text = reason });
  const weft_journal_append record = {
    .h.type = WEFT_MSG_JOURNAL_APPEND,
    .kind = WEFT_RECORD_ABORTED,
    .epoch = e->session.epoch,
    .at_ms = at_ms,
    .elapsed_ms = elapsed_ms,
    .draft = e->session.which == SET_DRAFT,
    .operation = { operation, (uint32_t)strlen(operation) },
    .text = { reason, (uint32_t)strlen(reason) },
    .fleet = { voted ? v->fleet : NULL, voted ? (uint32_t)strlen(v->fleet) : 0 },
    .fleet_boot = voted ? v->boot : 0,
    .fleet_epoch = voted ? v->epoch : 0
  };
  if (!engine_vote_keeps(ctx, e, &record)) {
    send_history(ctx, e, &record);
  }
}

void engine_history_resolved(weft_ctx *ctx, engine *e, const char *reason)
{
  const engine_vote *v = &e->up.vote;
  const char *operation = engine_call_name(CALL_RESOLVE);
  const uint64_t at_ms = weft_wall_ms(ctx);
  keep(ctx, e,
       &(weft_journal_record){ .kind = WEFT_JOURNAL_ABORTED,
                               .boot_id = e->args.boot_id,
                               .at_ms = at_ms,
                               .operation = operation,
                               .text = reason });
  send_history(
      ctx, e,
      &(weft_journal_append){ .h.type = WEFT_MSG_JOURNAL_APPEND,
                              .kind = WEFT_RECORD_ABORTED,
                              .at_ms = at_ms,
                              .operation = { operation, (uint32_t)strlen(operation) },
                              .text = { reason, (uint32_t)strlen(reason) },
                              .fleet = { v->fleet, (uint32_t)strlen(v->fleet) },
                              .fleet_boot = v->boot,
                              .fleet_epoch = v->epoch });
}

const weft_journal_record *engine_history_find(const engine *e, uint64_t boot,
                                               uint64_t epoch, bool *reaches)
{
  const struct engine_history *h = e->history;
  *reaches = e->visible.sequence == 0;
  for (size_t i = 1; i <= h->count; i++) {
    const weft_journal_record *r =
        h->entries[(h->next + ENGINE_HISTORY_KEPT - i) % ENGINE_HISTORY_KEPT];
    const bool commit = r->kind != WEFT_JOURNAL_ABORTED;
    if (r->boot_id == boot && r->epoch == epoch && r->kind == WEFT_JOURNAL_WEIGHTS) {
      return r;
    }
    /* Older than what is looked for, of the same life; or the first change of all. */
    *reaches = *reaches || (r->boot_id == boot && r->epoch != 0 && r->epoch <= epoch) ||
               (commit && r->sequence == 1);
  }
  *reaches = *reaches && !h->gap;
  return NULL;
}

const weft_journal_record *engine_history_ended(const engine *e, uint64_t boot,
                                                uint64_t epoch, bool *known)
{
  const struct engine_history *h = e->history;
  *known = boot == e->args.boot_id;
  for (size_t i = 1; i <= h->count; i++) {
    const weft_journal_record *r =
        h->entries[(h->next + ENGINE_HISTORY_KEPT - i) % ENGINE_HISTORY_KEPT];
    *known = *known || r->boot_id == boot;
    if (r->boot_id == boot && r->epoch == epoch) {
      return r;
    }
  }
  return NULL;
}

const weft_journal_record *engine_history_newest_end(const engine *e)
{
  const struct engine_history *h = e->history;
  for (size_t i = 1; i <= h->count; i++) {
    const weft_journal_record *r =
        h->entries[(h->next + ENGINE_HISTORY_KEPT - i) % ENGINE_HISTORY_KEPT];
    if (r->epoch != 0) {
      return r;
    }
  }
  return NULL;
}

/* ---- as JSON */

static void write_entry(weft_json_writer *w, const weft_journal_record *r)
{
  const bool aborted = r->kind == WEFT_JOURNAL_ABORTED;
  char session[64] = "";
  if (r->epoch != 0) {
    engine_session_of(r->boot_id, r->epoch, session, sizeof session);
  }
  weft_jw_object(w, NULL);
  if (aborted) {
    weft_jw_null(w, "sequence");
  } else {
    weft_jw_u64(w, "sequence", r->sequence);
  }
  weft_jw_str(w, "kind",
              aborted                           ? "aborted"
              : r->kind == WEFT_JOURNAL_WEIGHTS ? "weights"
                                                : "label");
  if (r->kind != WEFT_JOURNAL_LABEL) {
    weft_jw_str(w, "set", engine_set_name(r->draft ? SET_DRAFT : SET_MAIN));
  }
  weft_jw_str(w, "version", aborted ? NULL : r->version);
  engine_jw_digest(w, "digest", aborted ? 0 : r->weights_sequence, r->digest_hi,
                   r->digest_lo);
  if (aborted) {
    weft_jw_null(w, "committed_at");
    engine_jw_time(w, "aborted_at", r->at_ms);
    weft_jw_str(w, "reason", r->text);
  } else {
    engine_jw_time(w, "committed_at", r->at_ms);
    weft_jw_u64(w, "weights_sequence", r->weights_sequence);
    weft_jw_u64(w, "tensors", r->tensors);
    weft_jw_u64(w, "bytes", r->bytes);
  }
  weft_jw_u64(w, "elapsed_ms", r->elapsed_ms);
  weft_jw_str(w, "operation", r->operation);
  weft_jw_str(w, "session", session[0] == '\0' ? NULL : session);
  engine_jw_hex64(w, "boot_id", r->boot_id);
  weft_jw_end(w);
}

weft_buf *engine_history_json(const engine *e, uint64_t limit)
{
  const struct engine_history *h = e->history;
  const size_t count = h->count < limit ? h->count : (size_t)limit;
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  weft_jw_array(&w, "versions");
  for (size_t i = 1; i <= count; i++) { /* newest first */
    write_entry(&w,
                h->entries[(h->next + ENGINE_HISTORY_KEPT - i) % ENGINE_HISTORY_KEPT]);
  }
  weft_jw_end(&w);
  weft_jw_end(&w);
  return weft_jw_take_buf(&w);
}

bool engine_history_limit(weft_str arg, uint64_t *out)
{
  uint64_t n = 0;
  for (uint32_t i = 0; i < arg.len; i++) {
    if (arg.p[i] < '0' || arg.p[i] > '9' || n > ENGINE_HISTORY_LIMIT) {
      return false;
    }
    n = n * 10 + (uint64_t)(arg.p[i] - '0');
  }
  *out = arg.len == 0 ? ENGINE_HISTORY_DEFAULT : n;
  return *out >= 1 && *out <= ENGINE_HISTORY_LIMIT;
}

/* ---- where the weights came from: the update_infos, in their order */

void engine_sources_reset(weft_ctx *ctx, engine *e)
{
  weft_free(ctx, e->session.sources);
  e->session.sources = NULL;
  e->session.sources_len = 0;
  e->session.sources_lost = false;
}

void engine_sources_add(weft_ctx *ctx, engine *e, const weft_buf *info)
{
  engine_session *s = &e->session;
  if (e->args.journal == 0 || s->sources_lost ||
      info->len > WEFT_JOURNAL_SOURCES_MAX - 3 - s->sources_len) {
    s->sources_lost = true; /* too long to be kept: not to be had again */
    return;
  }
  if (s->sources == NULL) {
    s->sources = weft_alloc(ctx, WEFT_JOURNAL_SOURCES_MAX);
  }
  if (s->sources == NULL) {
    s->sources_lost = true;
    return;
  }
  if (s->sources_len > 0) {
    s->sources[s->sources_len++] = ',';
  }
  memcpy(s->sources + s->sources_len, info->data, info->len);
  s->sources_len += info->len;
}

/* Of the set that this finish makes: the session's alone when it brought every tensor,
 * else behind those of the weights it was laid over.  NULL: not known. */
weft_buf *engine_sources_of_finish(engine *e)
{
  const engine_session *s = &e->session;
  const weft_buf *live = e->sources[s->which];
  bool whole = true;
  for (uint32_t i = 0; i < e->world; i++) {
    whole = whole && e->round.replies[i].missing == 0;
  }
  if (s->sources_lost || s->sources == NULL || (!whole && live == NULL)) {
    return NULL;
  }
  const char *before = whole ? "[" : (const char *)live->data;
  const size_t before_len = whole ? 1 : live->len - 1; /* without its "]" */
  const size_t comma = whole ? 0 : 1;
  const size_t len = before_len + comma + s->sources_len + 1;
  weft_buf *all = len > WEFT_JOURNAL_SOURCES_MAX ? NULL : weft_buf_create(NULL, len);
  if (all == NULL) {
    return NULL;
  }
  memcpy(all->data, before, before_len);
  memcpy(all->data + before_len, ",", comma);
  memcpy(all->data + before_len + comma, s->sources, s->sources_len);
  all->data[len - 1] = ']';
  all->data[len] = '\0';
  return all;
}
