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
  const wefti_journal_args args = { .journal = e->state };
  return weft_runtime_spawn(e->rt, loops - 1, &wefti_journal_class, &args, NULL,
                            &e->journal);
}

weft_err wefti_state_restore(weft_engine *e)
{
  const weft_journal_record *last = weft_journal_weights(e->state);
  if (!last) {
    return WEFT_OK; /* no weights were ever committed */
  }
  const wefti_restore_args args = { .engine = e->core,
                                    .sources = last->sources,
                                    .version = last->version,
                                    .declared = last->declared,
                                    .digest_hi = last->digest_hi,
                                    .digest_lo = last->digest_lo,
                                    .sequence = last->sequence,
                                    .last_sequence = weft_journal_sequence(e->state) };
  weft_actor_id restore;
  return weft_runtime_spawn(e->rt, 0, &wefti_restore_class, &args, NULL, &restore);
}
