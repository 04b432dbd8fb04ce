#include "engine.h"
#include "weft/digest.h"
#include "weft/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *engine_member_state_name(engine_member_state state)
{
  static const char *const names[] = {
    [MEMBER_ABSENT] = "absent", [MEMBER_ADOPTING] = "adopting", [MEMBER_READY] = "ready",
    [MEMBER_BEHIND] = "behind", [MEMBER_LOST] = "lost",
  };
  return names[state];
}

void engine_session_of(uint64_t boot, uint64_t epoch, char *out, size_t cap)
{
  (void)snprintf(out, cap, "%016" PRIx64 "-%" PRIu64, boot, epoch);
}

void engine_session_id(const engine *e, uint64_t epoch, char *out, size_t cap)
{
  engine_session_of(e->args.boot_id, epoch, out, cap);
}

/* ---- pieces */

void engine_jw_hex64(weft_json_writer *w, const char *key, uint64_t v)
{
  char text[17];
  (void)snprintf(text, sizeof text, "%016" PRIx64, v);
  weft_jw_str(w, key, text);
}

void engine_jw_digest(weft_json_writer *w, const char *key, uint64_t sequence,
                      uint64_t hi, uint64_t lo)
{
  char text[WEFT_DIGEST_TEXT];
  if (sequence == 0) {
    weft_jw_null(w, key);
    return;
  }
  weft_digest_text((weft_digest){ hi, lo }, text);
  weft_jw_str(w, key, text);
}

void engine_jw_time(weft_json_writer *w, const char *key, uint64_t unix_ms)
{
  const time_t seconds = (time_t)(unix_ms / 1000);
  struct tm tm;
  char text[64];
  if (gmtime_r(&seconds, &tm) == NULL) {
    weft_jw_null(w, key);
    return;
  }
  (void)snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03uZ",
                 tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min,
                 tm.tm_sec, (unsigned)(unix_ms % 1000));
  weft_jw_str(w, key, text);
}

/* ---- the status */

static void write_session(weft_ctx *ctx, weft_json_writer *w, const engine *e)
{
  if (e->session.state == WEFTI_IDLE || e->session.state == WEFTI_INIT) {
    weft_jw_null(w, "session");
    return;
  }
  const uint64_t now = weft_now_ms(ctx);
  char id[64];
  engine_session_id(e, e->session.epoch, id, sizeof id);
  weft_jw_object(w, "session");
  weft_jw_str(w, "id", id);
  weft_jw_str(w, "state", wefti_session_state_name(e->session.state));
  weft_jw_str(w, "set", engine_set_name(e->session.which));
  weft_jw_u64(w, "started_ms_ago", now - e->session.opened_ms);
  weft_jw_u64(w, "lease_ms", e->args.lease_ms);
  weft_jw_u64(w, "holder", e->session.caller);
  weft_jw_u64(w, "updates", e->session.updates);
  weft_jw_u64(w, "received_tensors", e->session.received_tensors);
  weft_jw_u64(w, "received_bytes", e->session.received_bytes);
  if (e->call != NULL) {
    weft_jw_object(w, "call");
    weft_jw_str(w, "operation", engine_call_name(e->call->kind));
    weft_jw_str(w, "phase", engine_phase_name(e->round.phase));
    weft_jw_u64(w, "elapsed_ms", now - e->call->started_ms);
    weft_jw_u64(w, "left_ms", e->call->due_ms > now ? e->call->due_ms - now : 0);
    weft_jw_end(w);
  }
  weft_jw_end(w);
}

const char *engine_member_shown(const engine *e, const engine_member *m)
{
  if (!engine_member_usable(m) || m->reported.poisoned == 0) {
    return engine_member_state_name(m->state);
  }
  return e->inplace.poisoned != 0 ? "poisoned" : "updating";
}

static void write_worker(weft_json_writer *w, const engine *e, const engine_member *m)
{
  const weft_w_state *r = &m->reported;
  const bool in = engine_member_usable(m);
  weft_jw_object(w, NULL);
  weft_jw_u64(w, engine_unit(e), m->rank);
  if (e->fleet.replicas != NULL) {
    engine_fleet_replica(w, e, m->rank);
  }
  weft_jw_str(w, "state", engine_member_shown(e, m));
  weft_jw_str(w, "phase", in ? weft_worker_phase_name(r->phase) : "");
  engine_jw_hex64(w, "incarnation", m->incarnation);
  weft_jw_u64(w, "pid", m->pid);
  weft_jw_u64(w, "sequence", in ? r->weights_sequence : 0);
  const bool whole = in && r->poisoned == 0; /* bytes written over have no digest */
  engine_jw_digest(w, "digest", whole ? r->weights_sequence : 0, r->digest_hi,
                   r->digest_lo);
  weft_jw_u64(w, "tensors", in ? r->tensors : 0);
  weft_jw_u64(w, "bytes", in ? r->bytes : 0);
  weft_jw_u64(w, "received", in ? r->received : 0);
  weft_jw_u64(w, "expected", in ? r->expected : 0);
  weft_jw_u64(w, "readers", in ? r->readers : 0);
  weft_jw_u64(w, "snapshots", in ? r->snapshots : 0);
  if (m->device[0] != '\0') {
    weft_jw_str(w, "device", m->device);
  }
  weft_jw_str(w, "why", m->why);
  weft_jw_end(w);
}

static void write_last(weft_json_writer *w, const engine *e)
{
  weft_jw_object(w, "last_update");
  weft_jw_u64(w, "received_tensors", e->last.received);
  weft_jw_u64(w, "received_bytes", e->last.received_bytes);
  weft_jw_u64(w, "elapsed_ms", e->last.elapsed_ms);
  weft_jw_u64(w, "missing", e->last.missing);
  engine_metrics_last(w, e);
  if (e->last.missing_names != NULL) {
    weft_jw_raw(w, "missing_names", (const char *)e->last.missing_names->data,
                e->last.missing_names->len);
  }
  weft_jw_end(w);
}

static void write_head(weft_json_writer *w, const engine *e)
{
  weft_jw_str(w, "version", e->visible.version);
  weft_jw_bool(w, "declared", e->visible.declared);
  weft_jw_u64(w, "sequence", e->visible.sequence);
  weft_jw_u64(w, "weights_sequence", e->visible.weights_sequence);
  engine_jw_hex64(w, "boot_id", e->args.boot_id);
  weft_jw_str(w, "engine_id", e->engine_id);
  engine_jw_set_digest(w, e, SET_MAIN);
  const bool live = e->visible.weights_sequence != 0; /* not when poisoned */
  weft_jw_u64(w, "tensors", live ? e->visible.sets[SET_MAIN].tensors : 0);
  weft_jw_u64(w, "bytes", live ? e->visible.sets[SET_MAIN].bytes : 0);
  weft_jw_str(w, "state", wefti_session_state_name(e->session.state));
}

static void write_restore(weft_json_writer *w, const engine *e)
{
  static const char *const names[] = {
    [WEFT_RESTORE_WAITING] = "waiting",
    [WEFT_RESTORE_LOADING] = "loading",
    [WEFT_RESTORE_DONE] = "done",
    [WEFT_RESTORE_PUSH_NEEDED] = "push needed",
  };
  if (e->restore == WEFT_RESTORE_NONE || e->restore >= sizeof names / sizeof names[0]) {
    weft_jw_null(w, "restore");
    return;
  }
  weft_jw_object(w, "restore");
  weft_jw_str(w, "state", names[e->restore]);
  weft_jw_str(w, "text", e->restore_text);
  weft_jw_end(w);
}

static void write_manifest(weft_json_writer *w, const engine *e)
{
  if (e->args.manifest == NULL) {
    weft_jw_null(w, "manifest");
    return;
  }
  weft_jw_object(w, "manifest");
  weft_jw_str(w, "file", e->args.manifest);
  weft_jw_u64(w, "tensors", e->args.manifest_count);
  weft_jw_end(w);
}

weft_buf *engine_status_json(weft_ctx *ctx, const engine *e)
{
  weft_json_writer w;
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  write_head(&w, e);
  uint64_t since_ms;
  const bool paused = engine_is_paused(e, &since_ms);
  weft_jw_bool(&w, "paused", paused);
  weft_jw_u64(&w, "paused_ms", paused ? weft_now_ms(ctx) - since_ms : 0);
  weft_jw_u64(&w, "pause_lease_ms", e->args.pause_lease_ms);
  weft_jw_str(&w, "staging", e->args.inplace ? "inplace" : "shadow");
  weft_jw_bool(&w, "session_paused", e->inplace.holding);
  char poisoned[ENGINE_POISON_TEXT] = "";
  if (e->inplace.poisoned != 0) {
    engine_inplace_why(e, poisoned, sizeof poisoned);
  }
  weft_jw_str(&w, "poisoned", e->inplace.poisoned != 0 ? poisoned : NULL);
  write_session(ctx, &w, e);
  write_last(&w, e);
  weft_jw_str(&w, "last_abort", e->last_abort[0] == '\0' ? NULL : e->last_abort);
  write_restore(&w, e);
  write_manifest(&w, e);
  engine_jw_draft(&w, e);
  weft_jw_str(&w, "events", e->events_url);
  weft_jw_str(&w, "snapshot", e->snapshot_url);
  weft_jw_str(&w, "control", e->control_url);
  weft_jw_u64(&w, "calls", e->calls_seen);
  weft_jw_str(&w, "backend", e->backend);
  weft_jw_u64(&w, "tp", e->args.tp);
  weft_jw_u64(&w, "pp", e->args.pp);
  weft_jw_u64(&w, "dp_size", e->args.dp_size);
  weft_jw_u64(&w, "dp_index", e->args.dp_index);
  weft_jw_array(&w, e->fleet.replicas == NULL ? "workers" : "replicas");
  for (uint32_t i = 0; i < e->world; i++) {
    write_worker(&w, e, &e->members[i]);
  }
  weft_jw_end(&w);
  if (e->fleet.replicas != NULL) {
    engine_fleet_status(&w, e);
  }
  engine_upstream_status(ctx, &w, e);
  char reason[256] = "";
  weft_jw_bool(&w, "ready", engine_serves(ctx, e, reason, sizeof reason));
  weft_jw_str(&w, "reason", reason);
  weft_jw_end(&w);
  return weft_jw_take_buf(&w);
}
