#include "assembly.h"
#include "journal.h"
#include "restore.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* The state directory of an engine: numbers, history and name outlive the process. */

static void note(void *arg, const char *text)
{
  const weft_engine *e = arg;
  if (e->log && WEFT_LOG_WARN >= e->log_level) {
    e->log(e->log_arg, WEFT_LOG_WARN, "journal", text);
  }
}

static uint64_t unix_ms(void)
{
  struct timespec now;
  return clock_gettime(CLOCK_REALTIME, &now) == 0
             ? (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000
             : 0;
}

weft_err wefti_state_open(weft_engine *e, const weft_engine_opts *o, weft_why *why)
{
  if (!o->state_dir) {
    return o->restore ? weft_whyf(why, WEFT_E_INVAL,
                                  "restore needs a state directory: nothing is known of "
                                  "what was committed")
                      : WEFT_OK;
  }
  const weft_journal_opts opts = { .size = sizeof opts,
                                   .dir = o->state_dir,
                                   .engine_id = o->engine_id,
                                   .fallback_id = e->engine_id,
                                   .boot_id = e->boot_id,
                                   .now_ms = unix_ms(),
                                   .note = note,
                                   .note_arg = e };
  const weft_err err = weft_journal_open(&opts, &e->state, why);
  if (err == WEFT_OK) {
    (void)snprintf(e->engine_id, sizeof e->engine_id, "%s",
                   weft_journal_engine_id(e->state));
  }
  return err;
}

weft_err wefti_state_spawn(weft_engine *e, unsigned loops)
{
  if (!e->state) {
    return weft_runtime_spawn(e->rt, 0, &wefti_journal_null_class, NULL, NULL,
                              &e->journal);
  }
  const wefti_journal_args args = { .journal = e->state, .recording = &e->recording };
  e->journal_loop = loops - 1;
  return weft_runtime_spawn(e->rt, loops - 1, &wefti_journal_class, &args, NULL,
                            &e->journal);
}

static void add_set(wefti_restore_args *args, const weft_journal_record *record)
{
  if (record) {
    args->sets[args->count++] = (wefti_restore_set){ .draft = record->draft,
                                                     .sources = record->sources,
                                                     .version = record->version,
                                                     .declared = record->declared,
                                                     .digest_hi = record->digest_hi,
                                                     .digest_lo = record->digest_lo,
                                                     .sequence = record->sequence };
  }
}

weft_err wefti_state_restore(weft_engine *e, bool draft)
{
  const weft_journal_record *older = weft_journal_weights(e->state);
  const weft_journal_record *newer = draft ? weft_journal_draft(e->state) : NULL;
  if (older && newer && older->sequence > newer->sequence) {
    const weft_journal_record *both = older;
    older = newer;
    newer = both;
  }
  wefti_restore_args args = { .engine = e->core,
                              .last_sequence = weft_journal_sequence(e->state) };
  add_set(&args, older);
  add_set(&args, newer);
  if (args.count == 0) {
    return WEFT_OK; /* no weights were ever committed */
  }
  weft_actor_id restore;
  return weft_runtime_spawn(e->rt, 0, &wefti_restore_class, &args, NULL, &restore);
}
