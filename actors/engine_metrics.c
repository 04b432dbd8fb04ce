#include "engine_metrics.h"

#include "engine.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static_assert((int)CALL_FINISH + 1 == (int)ENGINE_OPS, "the counted calls come first");

static const struct {
  uint64_t ms;
  const char *le;
} buckets[ENGINE_BUCKETS] = {
  { 10, "0.01" },      { 100, "0.1" },      { 1000, "1.0" },
  { 10000, "10.0" },   { 30000, "30.0" },   { 60000, "60.0" },
  { 120000, "120.0" }, { 300000, "300.0" }, { 600000, "600.0" },
};

weft_err engine_metrics_init(weft_ctx *ctx, engine *e)
{
  e->metrics.now = weft_alloc(ctx, e->world * sizeof *e->metrics.now);
  e->metrics.last = weft_alloc(ctx, e->world * sizeof *e->metrics.last);
  return e->metrics.now == NULL || e->metrics.last == NULL ? WEFT_E_NOMEM : WEFT_OK;
}

void engine_metrics_fini(weft_ctx *ctx, engine *e)
{
  weft_free(ctx, e->metrics.now);
  weft_free(ctx, e->metrics.last);
}

/* ---- counting */

void engine_metrics_begun(engine *e, engine_call *call)
{
  if (engine_call_of_session(call->kind) && !call->counted) {
    call->counted = true;
    e->metrics.ops[call->kind].in_flight++;
  }
}

void engine_metrics_ended(weft_ctx *ctx, engine *e, const engine_call *call)
{
  if (!call->counted) {
    return;
  }
  engine_op_count *op = &e->metrics.ops[call->kind];
  const uint64_t took = weft_now_ms(ctx) - call->started_ms;
  unsigned b = 0;
  while (b < ENGINE_BUCKETS && took > buckets[b].ms) {
    b++;
  }
  op->buckets[b]++;
  op->total_ms += took;
  op->in_flight--;
  if (call->failed) {
    op->failed++;
  } else {
    op->succeeded++;
  }
}

void engine_metrics_session(engine *e)
{
  memset(e->metrics.now, 0, e->world * sizeof *e->metrics.now);
}

void engine_metrics_received(engine *e)
{
  for (uint32_t i = 0; i < e->world; i++) {
    e->metrics.now[i].received_bytes += e->round.replies[i].bytes;
    e->metrics.now[i].receive_us += e->round.replies[i].elapsed_us;
  }
}

void engine_metrics_applied(engine *e)
{
  for (uint32_t i = 0; i < e->world; i++) {
    e->metrics.now[i].apply_us = e->round.replies[i].elapsed_us;
  }
}

void engine_metrics_visible(engine *e)
{
  memcpy(e->metrics.last, e->metrics.now, e->world * sizeof *e->metrics.last);
}

/* Of the slowest rank; 0 = nothing was received. */
static uint64_t bytes_per_second(const engine *e)
{
  uint64_t slowest = 0;
  for (uint32_t i = 0; i < e->world; i++) {
    const engine_pace *p = &e->metrics.last[i];
    if (p->received_bytes == 0 || p->receive_us == 0) {
      continue;
    }
    const double rate = (double)p->received_bytes * 1e6 / (double)p->receive_us;
    if (slowest == 0 || rate < (double)slowest) {
      slowest = rate < 1.0 ? 1 : (uint64_t)rate;
    }
  }
  return slowest;
}

void engine_metrics_last(weft_json_writer *w, const engine *e)
{
  weft_jw_u64(w, "bytes_per_second", bytes_per_second(e));
  weft_jw_array(w, e->fleet.replicas == NULL ? "ranks" : "replicas");
  for (uint32_t i = 0; i < e->world; i++) {
    const engine_pace *p = &e->metrics.last[i];
    weft_jw_object(w, NULL);
    weft_jw_u64(w, engine_unit(e), i);
    weft_jw_u64(w, "received_bytes", p->received_bytes);
    weft_jw_u64(w, "receive_us", p->receive_us);
    weft_jw_u64(w, "apply_us", p->apply_us);
    weft_jw_end(w);
  }
  weft_jw_end(w);
}

/* ---- the text */

typedef struct text {
  weft_ctx *ctx;
  char *at; /* [cap] */
  size_t len, cap;
  bool failed; /* out of memory: what follows is left out */
} text;

enum { TEXT_FIRST = 8192, LINE_MAX = 512 };

static bool has_room(text *t, size_t more)
{
  if (t->failed || t->cap - t->len >= more) {
    return !t->failed;
  }
  const size_t cap = (t->cap + more) * 2;
  char *bigger = weft_alloc(t->ctx, cap);
  if (bigger == NULL) {
    t->failed = true;
    return false;
  }
  memcpy(bigger, t->at, t->len);
  weft_free(t->ctx, t->at);
  t->at = bigger;
  t->cap = cap;
  return true;
}

static void put(text *t, const char *fmt, ...) WEFT_PRINTF(2, 3);
static void put(text *t, const char *fmt, ...)
{
  if (!has_room(t, LINE_MAX)) {
    return;
  }
  va_list ap;
  va_start(ap, fmt);
  const int n = vsnprintf(t->at + t->len, LINE_MAX, fmt, ap);
  va_end(ap);
  if (n < 0 || n >= LINE_MAX) {
    t->failed = true; /* a line longer than any that stands below */
    return;
  }
  t->len += (size_t)n;
}

/* A label's value: three characters are escaped, the rest is any UTF-8. */
static void put_label(text *t, const char *s)
{
  if (!has_room(t, 2 * strlen(s) + 1)) {
    return;
  }
  for (; *s != '\0'; s++) {
    if (*s == '\\' || *s == '"' || *s == '\n') {
      t->at[t->len++] = '\\';
    }
    if (*s == '\n') {
      t->at[t->len++] = 'n';
    } else {
      t->at[t->len++] = *s;
    }
  }
}

static void head(text *t, const char *name, const char *type, const char *help)
{
  put(t, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void number(text *t, const char *name, const char *type, const char *help,
                   uint64_t value)
{
  head(t, name, type, help);
  put(t, "%s %" PRIu64 "\n", name, value);
}

static void put_operations(text *t, const engine *e)
{
  static const char *const names[ENGINE_OPS] = {
    [CALL_INIT] = "init",     [CALL_SHUTDOWN] = "shutdown",
    [CALL_START] = "start",   [CALL_START_DRAFT] = "start_draft",
    [CALL_UPDATE] = "update", [CALL_FINISH] = "finish",
  };
  static const char took[] = "vllm:rl_weight_update_operation_duration_seconds";
  static const char now[] = "vllm:rl_weight_update_operations_in_flight";
  static const char all[] = "vllm:rl_weight_update_operations_total";
  head(t, took, "histogram", "Time that weight update operations took.");
  for (unsigned i = 0; i < ENGINE_OPS; i++) {
    const engine_op_count *op = &e->metrics.ops[i];
    uint64_t sum = 0;
    for (unsigned b = 0; b < ENGINE_BUCKETS; b++) {
      sum += op->buckets[b];
      put(t, "%s_bucket{operation=\"%s\",le=\"%s\"} %" PRIu64 "\n", took, names[i],
          buckets[b].le, sum);
    }
    sum += op->buckets[ENGINE_BUCKETS];
    put(t, "%s_bucket{operation=\"%s\",le=\"+Inf\"} %" PRIu64 "\n", took, names[i], sum);
    put(t, "%s_sum{operation=\"%s\"} %" PRIu64 ".%03u\n", took, names[i],
        op->total_ms / 1000, (unsigned)(op->total_ms % 1000));
    put(t, "%s_count{operation=\"%s\"} %" PRIu64 "\n", took, names[i], sum);
  }
  head(t, now, "gauge", "Weight update operations under way.");
  for (unsigned i = 0; i < ENGINE_OPS; i++) {
    put(t, "%s{operation=\"%s\"} %" PRIu64 "\n", now, names[i],
        e->metrics.ops[i].in_flight);
  }
  head(t, all, "counter", "Weight update operations that ended.");
  for (unsigned i = 0; i < ENGINE_OPS; i++) {
    put(t, "%s{operation=\"%s\",outcome=\"success\"} %" PRIu64 "\n", all, names[i],
        e->metrics.ops[i].succeeded);
    put(t, "%s{operation=\"%s\",outcome=\"error\"} %" PRIu64 "\n", all, names[i],
        e->metrics.ops[i].failed);
  }
}

static void put_version(text *t, const engine *e)
{
  head(t, "weft_weights_info", "gauge", "The visible version; its value is always 1.");
  put(t, "weft_weights_info{version=\"");
  put_label(t, e->visible.version);
  put(t, "\",declared=\"%s\",engine_id=\"", e->visible.declared ? "true" : "false");
  put_label(t, e->engine_id);
  put(t, "\",boot_id=\"%016" PRIx64 "\"} 1\n", e->args.boot_id);
  number(t, "weft_sequence", "gauge", "Number of the visible change.",
         e->visible.sequence);
  number(t, "weft_weights_sequence", "gauge", "Number of the last change of weights.",
         e->visible.weights_sequence);
}

static void put_engine(text *t, const engine *e)
{
  char reason[256] = "";
  const uint64_t now = weft_now_ms(t->ctx);
  uint64_t paused_at_ms;
  const bool paused = engine_is_paused(e, &paused_at_ms);
  const uint64_t since = now - paused_at_ms;
  number(t, "weft_event_loop_heartbeat_total", "counter",
         "Messages that the engine has handled, questions left out; grows twice a second "
         "for each worker or replica.",
         e->metrics.turns);
  number(t, "weft_ready", "gauge", "1 as GET /ready answers 200.",
         engine_serves(t->ctx, e, reason, sizeof reason));
  number(t, "weft_paused", "gauge", "1 between pause and resume.", paused);
  head(t, "weft_pause_state_seconds", "gauge", "Time since weft_paused changed.");
  put(t, "weft_pause_state_seconds %" PRIu64 ".%03u\n", since / 1000,
      (unsigned)(since % 1000));
  head(t, "weft_session_state", "gauge", "1 for the state that the session is in.");
  put(t, "weft_session_state{state=\"%s\"} 1\n",
      wefti_session_state_name(e->session.state));
  number(t, "weft_calls_total", "counter", "Calls that reached the engine.",
         e->calls_seen);
  number(t, "weft_calls_waiting", "gauge", "Calls that wait for their turn.",
         e->waiting_count);
  number(t, "weft_sessions_aborted_total", "counter", "Updates that were given up.",
         e->metrics.aborted);
}

static void put_members(text *t, const engine *e)
{
  const bool fleet = e->fleet.replicas != NULL;
  const char *name = fleet ? "weft_replicas" : "weft_workers";
  const char *states[MEMBER_LOST + 3] = { [MEMBER_LOST + 1] = "poisoned",
                                          [MEMBER_LOST + 2] = "updating" };
  for (unsigned s = 0; s <= MEMBER_LOST; s++) {
    states[s] = engine_member_state_name((engine_member_state)s);
  }
  head(t, name, "gauge", fleet ? "Replicas by state." : "Workers by state.");
  for (size_t s = 0; s < sizeof states / sizeof states[0]; s++) {
    uint64_t in = 0;
    for (uint32_t i = 0; i < e->world; i++) {
      in += strcmp(engine_member_shown(e, &e->members[i]), states[s]) == 0;
    }
    put(t, "%s{state=\"%s\"} %" PRIu64 "\n", name, states[s], in);
  }
  number(t, fleet ? "weft_replicas_fenced_total" : "weft_workers_fenced_total", "counter",
         fleet ? "Replicas that were cut off." : "Workers that were cut off.",
         e->metrics.fenced);
}

static void put_last(text *t, const engine *e)
{
  const char *unit = engine_unit(e);
  const uint64_t rate = bytes_per_second(e);
  head(t, "weft_last_update_gigabytes_per_second", "gauge",
       "Rate of the slowest one in the last update while bytes moved.");
  put(t, "weft_last_update_gigabytes_per_second %" PRIu64 ".%09" PRIu64 "\n",
      rate / 1000000000, rate % 1000000000);
  head(t, "weft_last_update_received_bytes", "gauge", "Bytes of the last update.");
  for (uint32_t i = 0; i < e->world; i++) {
    put(t, "weft_last_update_received_bytes{%s=\"%" PRIu32 "\"} %" PRIu64 "\n", unit, i,
        e->metrics.last[i].received_bytes);
  }
  head(t, "weft_last_update_receive_seconds", "gauge", "Time in which they came.");
  for (uint32_t i = 0; i < e->world; i++) {
    const uint64_t us = e->metrics.last[i].receive_us;
    put(t, "weft_last_update_receive_seconds{%s=\"%" PRIu32 "\"} %" PRIu64 ".%06u\n",
        unit, i, us / 1000000, (unsigned)(us % 1000000));
  }
  head(t, "weft_last_update_apply_seconds", "gauge",
       "Time for coverage, digest and installing them.");
  for (uint32_t i = 0; i < e->world; i++) {
    const uint64_t us = e->metrics.last[i].apply_us;
    put(t, "weft_last_update_apply_seconds{%s=\"%" PRIu32 "\"} %" PRIu64 ".%06u\n", unit,
        i, us / 1000000, (unsigned)(us % 1000000));
  }
}

weft_buf *engine_metrics_text(weft_ctx *ctx, const engine *e)
{
  text t = { .ctx = ctx, .at = weft_alloc(ctx, TEXT_FIRST), .cap = TEXT_FIRST };
  if (t.at == NULL) {
    return NULL;
  }
  put_operations(&t, e);
  put_version(&t, e);
  put_engine(&t, e);
  put_members(&t, e);
  put_last(&t, e);
  weft_buf *buf = t.failed ? NULL : weft_buf_create(t.at, t.len);
  weft_free(ctx, t.at);
  return buf;
}
