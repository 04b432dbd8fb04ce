#include "journal.h"

#include "weft/json.h"
#include "weft/messages.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

typedef struct journal {
  weft_journal *file;
  _Atomic uint64_t *recording; /* may be NULL */
  uint64_t
      lost; /* records of history that could not be written, since the last that was */
} journal;

static weft_err journal_init(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  const wefti_journal_args *a = args;
  *(journal *)self = (journal){ .file = a->journal, .recording = a->recording };
  return WEFT_OK;
}

/* ---- can it be loaded again? */

/* One update_info of one rank: from a file, or from nothing at all. */
static bool is_from_file(const weft_json *info)
{
  const weft_json *source = weft_json_get(info, "source");
  const char *kind = weft_json_str(weft_json_get(source, "kind"));
  return weft_json_kind_of(info) == WEFT_JSON_OBJECT &&
         (source == NULL || (kind != NULL && strcmp(kind, "safetensors") == 0));
}

static bool all_from_files(const weft_json *list)
{
  bool all = weft_json_kind_of(list) == WEFT_JSON_ARRAY;
  for (const weft_json *v = weft_json_first(list); all && v != NULL;
       v = weft_json_next(v)) {
    all = is_from_file(v);
  }
  return all;
}

static bool restorable(const weft_buf *sources)
{
  static const weft_json_limits limits = { .depth = 64, .nodes = 100000 };
  weft_json *root = NULL;
  if (sources == NULL ||
      weft_json_parse(sources->data, sources->len, &limits, &root, NULL) != WEFT_OK) {
    return false;
  }
  bool all = weft_json_kind_of(root) == WEFT_JSON_ARRAY;
  for (const weft_json *v = weft_json_first(root); all && v != NULL;
       v = weft_json_next(v)) {
    all = weft_json_kind_of(v) == WEFT_JSON_ARRAY ? all_from_files(v) : is_from_file(v);
  }
  weft_json_free(root);
  return all;
}

/* ---- records */

static const char *text_of(weft_str s)
{
  return s.p == NULL ? "" : s.p;
}

/* History that cannot be written is lost, and said so once until it can be again. */
static void on_lost(weft_ctx *ctx, journal *self, weft_err err, const weft_why *why)
{
  if (err == WEFT_OK && self->lost > 0) {
    weft_log(ctx, WEFT_LOG_INFO, "journal: writes again lost=%" PRIu64, self->lost);
    self->lost = 0;
  } else if (err != WEFT_OK && self->lost++ == 0) {
    weft_log(ctx, WEFT_LOG_WARN, "journal: a session's record is lost: %s", why->text);
  }
}

static void note_recording(const journal *self, uint64_t what)
{
  if (self->recording != NULL) {
    atomic_store(self->recording, what);
  }
}

static void on_append(weft_ctx *ctx, journal *self, const weft_journal_append *m)
{
  weft_why why = { .err = WEFT_OK, .text = "" };
  const weft_journal_record record = {
    .kind = (weft_journal_kind)m->kind,
    .declared = m->declared != 0,
    .draft = m->draft != 0,
    .alone = m->alone != 0,
    .epoch = m->epoch,
    .sequence = m->sequence,
    .weights_sequence = m->weights_sequence,
    .digest_hi = m->digest_hi,
    .digest_lo = m->digest_lo,
    .at_ms = m->at_ms,
    .elapsed_ms = m->elapsed_ms,
    .tensors = m->tensors,
    .bytes = m->bytes,
    .version = text_of(m->version),
    .operation = text_of(m->operation),
    .text = text_of(m->text),
    .fleet = text_of(m->fleet),
    .fleet_boot = m->fleet_boot,
    .fleet_epoch = m->fleet_epoch,
    .fleet_sequence = m->fleet_sequence,
    .sources = restorable(m->sources) ? (const char *)m->sources->data : NULL,
  };
  note_recording(self, m->h.corr == 0 ? WEFTI_RECORDING_HISTORY : m->sequence);
  const weft_err err = weft_journal_write(self->file, &record, &why);
  note_recording(self, 0);
  if (m->h.corr == 0) {
    on_lost(ctx, self, err, &why);
    return;
  }
  const weft_journal_done done = { .h = { .type = WEFT_MSG_JOURNAL_DONE },
                                   .err = (uint32_t)err,
                                   .text = { why.text, (uint32_t)strlen(why.text) } };
  (void)weft_reply(ctx, weft_return_of(&m->h), weft_msg_make(ctx, &done.h));
}

static weft_err journal_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  switch (msg->type) {
  case WEFT_MSG_JOURNAL_APPEND:
    on_append(ctx, self, (const weft_journal_append *)msg);
    return WEFT_OK;
  case WEFT_MSG_STOP:
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    return WEFT_E_STATE;
  }
}

const weft_actor_class wefti_journal_class = {
  .name = "journal",
  .state_size = sizeof(journal),
  .init = journal_init,
  .on = journal_on,
};
