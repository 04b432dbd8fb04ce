/* What has become of a session that is over, for callers that come back to it: taken over
 * and by whom, aborted, committed, or of a life before this one. */
#include "engine.h"
#include "weft/journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ID_BOOT_DIGITS = 16 };

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
  const weft_journal_record *r =
      engine_history_ended(e, named ? e->args.boot_id : 0, epoch);
  if (r != NULL && (named || r->kind == WEFT_JOURNAL_ABORTED)) {
    say(r, out, cap);
  }
  return out;
}

bool engine_session_is_known(weft_ctx *ctx, engine *e, engine_call *call, weft_str id)
{
  uint64_t boot, epoch;
  char fate[ENGINE_TEXT_MAX] = "";
  const char *name = engine_call_name(call->kind);
  if (!engine_session_parse(id, &boot, &epoch)) {
    engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                      "%s: Weft-Session '%.*s' is none that this engine has given; start "
                      "a new weight update",
                      name, (int)id.len, id.p);
    return false;
  }
  if (boot == e->args.boot_id) {
    call->session_epoch = epoch;
    return true;
  }
  const weft_journal_record *r = engine_history_ended(e, boot, epoch);
  if (r != NULL) {
    say(r, fate, sizeof fate);
  }
  engine_answer_err(ctx, e, call, WEFT_E_CONFLICT,
                    "%s: Weft-Session '%.*s' is over: the engine restarted %.1f s ago%s; "
                    "start a new weight update",
                    name, (int)id.len, id.p,
                    (double)(weft_now_ms(ctx) - e->boot_ms) / 1000.0, fate);
  return false;
}
