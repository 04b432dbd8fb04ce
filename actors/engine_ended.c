/* What has become of a session that is over, for callers that come back to it: taken over
 * and by whom, aborted, committed, or of a life before this one. */
#include "engine.h"
#include "weft/journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ID_BOOT_DIGITS = 16, ID_SHOWN = 80 /* of what is no id at all */ };

bool engine_session_parse(weft_str id, uint64_t *boot, uint64_t *epoch)
{
  char text[64];
  char exact[64];
  if (id.len >= sizeof text || id.len < ID_BOOT_DIGITS + 2) {
    return false;
  }
  memcpy(text, id.p, id.len);
  text[id.len] = '\0';
  const uint64_t b = strtoull(text, NULL, 16);
  const uint64_t n = strtoull(text + ID_BOOT_DIGITS + 1, NULL, 10);
  engine_session_of(b, n, exact, sizeof exact);
  if (n == 0 || strcmp(exact, text) != 0) {
    return false;
  }
  *boot = b;
  *epoch = n;
  return true;
}

static void say(const weft_journal_record *r, char *out, size_t cap)
{
  char id[64];
  engine_session_of(r->boot_id, r->epoch, id, sizeof id);
  if (r->kind == WEFT_JOURNAL_ABORTED) {
    (void)snprintf(out, cap, " (session %s was aborted: %.300s)", id, r->text);
  } else {
    (void)snprintf(out, cap, " (session %s was committed as change %" PRIu64 ")", id,
                   r->sequence);
  }
}

const char *engine_session_fate(const engine *e, const engine_call *call, char *out,
                                size_t cap)
{
  const bool named = call->session_epoch != 0;
  const uint64_t epoch = named ? call->session_epoch : e->session.epoch;
  out[0] = '\0';
  if (e->last_abort_epoch != 0 && e->last_abort_epoch == epoch) {
    char id[64];
    engine_session_id(e, epoch, id, sizeof id); /* which may be an init's */
    (void)snprintf(out, cap, " (session %s was aborted: %.300s)", id, e->last_abort);
    return out;
  }
  /* Who names none has had the newest one, if any. */
  bool known;
  const weft_journal_record *r =
      named ? engine_history_ended(e, e->args.boot_id, epoch, &known)
            : engine_history_newest_end(e);
  if (r != NULL && (named || r->kind == WEFT_JOURNAL_ABORTED)) {
    say(r, out, cap);
  }
  return out;
}

bool engine_session_was_aborted(const engine *e, const engine_call *call)
{
  bool known;
  const uint64_t epoch = call->session_epoch;
  const weft_journal_record *r = engine_history_ended(e, e->args.boot_id, epoch, &known);
  return epoch == e->last_abort_epoch || (r != NULL && r->kind == WEFT_JOURNAL_ABORTED);
}

/* The answer to a call that names a session of another life. */
static void answer_foreign(weft_ctx *ctx, engine *e, engine_call *call, weft_str id,
                           uint64_t boot, uint64_t epoch)
{
  bool known;
  char fate[ENGINE_TEXT_MAX] = "";
  const weft_journal_record *r = engine_history_ended(e, boot, epoch, &known);
  const double up_s = (double)(weft_now_ms(ctx) - e->boot_ms) / 1000.0;
  if (!known) {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "%s: this engine has no session '%.*s': it has been up for %.1f s, "
                      "and of the life that gave this id it keeps no history, or it is "
                      "another engine's; start a new weight update",
                      engine_call_name(call->kind), (int)id.len, id.p, up_s);
    return;
  }
  if (r != NULL && r->kind == WEFT_JOURNAL_ABORTED && call->kind == CALL_ABORT &&
      e->session.state == WEFTI_IDLE) {
    engine_answer_ok(ctx, e, call);
    return;
  }
  if (r != NULL) {
    say(r, fate, sizeof fate);
  }
  engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                    "%s: Weft-Session '%.*s' is over: the engine restarted %.1f s ago%s; "
                    "start a new weight update",
                    engine_call_name(call->kind), (int)id.len, id.p, up_s, fate);
}

bool engine_session_is_known(weft_ctx *ctx, engine *e, engine_call *call, weft_str id)
{
  uint64_t boot, epoch;
  if (!engine_session_parse(id, &boot, &epoch) ||
      (boot == e->args.boot_id && epoch > e->epoch_last)) {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "%s: Weft-Session '%.*s' is none that this engine has given; start "
                      "a new weight update",
                      engine_call_name(call->kind),
                      (int)(id.len < ID_SHOWN ? id.len : ID_SHOWN), id.p);
    return false;
  }
  if (boot == e->args.boot_id) {
    call->session_epoch = epoch;
    return true;
  }
  answer_foreign(ctx, e, call, id, boot, epoch);
  return false;
}
