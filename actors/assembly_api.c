#include "assembly.h"
#include "relay.h"
#include "weft/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What the embedder calls on an engine of either kind. */

enum { READY_POLL_MS = 10, READY_ASK_MS = 2000, PIN_TRIES = 64 };

/* ---- a client of an engine elsewhere */

weft_err wefti_link_make(void *arg, weft_ctx *ctx, const char *url, weft_actor_id *out)
{
  (void)arg;
  const weft_link_opts opts = { .size = sizeof opts, .url = url, .connect_ms = 2000 };
  return weft_link_spawn(ctx, &opts, out);
}

/* The actor that calls on_commit for a remote engine. */
static weft_err teller_init(weft_ctx *ctx, void *state, const void *args)
{
  (void)ctx;
  *(weft_engine **)state = *(weft_engine *const *)args;
  return WEFT_OK;
}

static weft_err teller_on(weft_ctx *ctx, void *state, const weft_msg *msg)
{
  const weft_engine *e = *(weft_engine *const *)state;
  if (msg->type == WEFT_MSG_EVENT) {
    const weft_event *event = (const weft_event *)msg;
    const bool missed = strcmp(event->topic.p, "weights.resync") == 0;
    if (missed || event->sequence != 0) {
      (void)wefti_commit_tell(event->json, missed, e->on_commit, e->arg);
    }
  } else if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
  }
  return WEFT_OK;
}

static const weft_actor_class teller_class = { "commits", sizeof(weft_engine *),
                                               teller_init, NULL, teller_on };

static weft_err build_remote(weft_engine *e, const weft_connect_opts *o, weft_why *why)
{
  weft_err err = wefti_runtime_make(1, o->log, o->log_arg, o->log_level, &e->rt);
  if (err == WEFT_OK) {
    const wefti_relay_args relay = { .url = e->control_url,
                                     .ops = { .connect = wefti_link_make } };
    err = weft_runtime_spawn(e->rt, 0, &wefti_relay_class, &relay, NULL, &e->core);
  }
  if (err == WEFT_OK) {
    err = wefti_calls_create(e->rt, &e->calls);
  }
  if (err == WEFT_OK) {
    err = wefti_calls_spawn(e->calls, e->core);
  }
  weft_actor_id teller = 0;
  if (err == WEFT_OK && e->on_commit) {
    err = weft_runtime_spawn(e->rt, 0, &teller_class, &e, NULL, &teller);
  }
  if (err == WEFT_OK) {
    err = weft_runtime_start_all(e->rt);
    e->started = err == WEFT_OK;
  }
  if (err == WEFT_OK && e->on_commit) {
    err = wefti_watch_start(e->rt, e->calls, teller, &e->watch);
  }
  return err == WEFT_OK ? WEFT_OK
                        : weft_whyf(why, err, "client of %s: cannot start: %s",
                                    e->control_url, weft_strerror(err));
}

weft_err weft_engine_connect(const weft_connect_opts *opts, weft_engine **out,
                             weft_why *why)
{
  if (opts->size != sizeof *opts || !opts->control_url ||
      strlen(opts->control_url) >= WEFTI_URL_MAX) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "weft_connect_opts: size or control_url is wrong");
  }
  weft_engine *e = calloc(1, sizeof *e);
  if (!e) {
    return weft_whyf(why, WEFT_E_NOMEM, "client: out of memory");
  }
  e->remote = true;
  e->on_commit = opts->on_commit;
  e->arg = opts->arg;
  (void)snprintf(e->control_url, sizeof e->control_url, "%s", opts->control_url);
  sigset_t before; /* threads take on the mask: signals are for the host's own */
  wefti_mask_all(&before);
  const weft_err err = build_remote(e, opts, why);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (err != WEFT_OK) {
    weft_engine_destroy(e);
    return err;
  }
  *out = e;
  return WEFT_OK;
}

/* ---- looking */

void weft_engine_info_get(const weft_engine *engine, weft_engine_info *out)
{
  *out = (weft_engine_info){ .boot_id = engine->boot_text,
                             .engine_id = engine->engine_id,
                             .events_url = engine->events_url,
                             .snapshot_url = engine->snapshot_url,
                             .control_url = engine->control_url,
                             .join_url = engine->join_url,
                             .workers = engine->replicas ? 0 : engine->world_size,
                             .replicas = engine->replicas,
                             .member_url = engine->member_url };
  if (engine->front) {
    out->http = wefti_front_addresses(engine->front, &out->http_count);
  }
}

weft_runtime *weft_engine_runtime(weft_engine *engine)
{
  return engine->rt;
}

weft_actor_id weft_engine_actor(const weft_engine *engine)
{
  return engine->core;
}

weft_err weft_engine_wait_ready(weft_engine *engine, uint64_t timeout_ms, weft_why *why)
{
  const uint64_t until = weft_clock_ms() + timeout_ms;
  for (;;) {
    const weft_request request = { .size = sizeof request,
                                   .op = WEFT_OP_READY,
                                   .timeout_ms = READY_ASK_MS };
    weft_why reason = { .err = WEFT_OK, .text = "" };
    const weft_err err = weft_engine_call(engine, &request, NULL, &reason);
    if (err == WEFT_OK || err == WEFT_E_STATE) {
      return err == WEFT_OK ? err : weft_whyf(why, err, "%s", reason.text);
    }
    if (weft_clock_ms() >= until) {
      return weft_whyf(why, WEFT_E_TIMEOUT, "not ready: %s", reason.text);
    }
    const struct timespec pause = { .tv_nsec = READY_POLL_MS * 1000000L };
    (void)nanosleep(&pause, NULL);
  }
}

/* ---- calls */

weft_err weft_engine_submit(weft_engine *engine, const weft_request *request,
                            weft_result_fn *fn, void *arg)
{
  return wefti_calls_submit(engine->calls, request, fn, arg);
}

weft_err weft_engine_call(weft_engine *engine, const weft_request *request,
                          weft_result **result, weft_why *why)
{
  return wefti_calls_wait(engine->calls, request, result, why);
}

static weft_err call(weft_engine *engine, weft_op op, const char *json,
                     const char *version, uint32_t timeout_ms, weft_why *why)
{
  const weft_request request = { .size = sizeof request,
                                 .op = op,
                                 .json = json,
                                 .json_len = json ? strlen(json) : 0,
                                 .version = version,
                                 .timeout_ms = timeout_ms };
  return weft_engine_call(engine, &request, NULL, why);
}

weft_err weft_engine_init(weft_engine *engine, const char *init_info_json,
                          uint32_t timeout_ms, weft_why *why)
{
  return call(engine, WEFT_OP_INIT, init_info_json, NULL, timeout_ms, why);
}

weft_err weft_engine_start(weft_engine *engine, uint32_t timeout_ms, weft_why *why)
{
  return call(engine, WEFT_OP_START, NULL, NULL, timeout_ms, why);
}

weft_err weft_engine_update(weft_engine *engine, const char *update_info_json,
                            uint32_t timeout_ms, weft_why *why)
{
  return call(engine, WEFT_OP_UPDATE, update_info_json, NULL, timeout_ms, why);
}

weft_err weft_engine_finish(weft_engine *engine, const char *version, uint32_t timeout_ms,
                            weft_why *why)
{
  return call(engine, WEFT_OP_FINISH, NULL, version, timeout_ms, why);
}

weft_err weft_engine_abort(weft_engine *engine, const char *reason, uint32_t timeout_ms,
                           weft_why *why)
{
  return call(engine, WEFT_OP_ABORT, NULL, reason, timeout_ms, why);
}

weft_err weft_engine_set_version(weft_engine *engine, const char *version,
                                 uint32_t timeout_ms, weft_why *why)
{
  return call(engine, WEFT_OP_SET_VERSION, NULL, version, timeout_ms, why);
}

weft_err weft_engine_get_version(weft_engine *engine, char *out, size_t cap,
                                 weft_why *why)
{
  const weft_request request = { .size = sizeof request, .op = WEFT_OP_GET_VERSION };
  weft_result *result = NULL;
  weft_err err = weft_engine_call(engine, &request, &result, why);
  if (err == WEFT_OK) {
    const size_t len = strlen(result->version);
    if (len >= cap) {
      err = weft_whyf(why, WEFT_E_LIMIT, "the version has %zu bytes, the room is %zu",
                      len, cap);
    } else {
      memcpy(out, result->version, len + 1);
    }
  }
  weft_result_free(result);
  return err;
}

/* ---- weights */

/* What is visible now may be replaced between the look and the pin: look again. */
static weft_err pin_visible(weft_engine *engine, uint32_t rank, weft_pinned *out,
                            weft_why *why)
{
  weft_err err = WEFT_E_UNAVAIL;
  wefti_visible_at seen = { .weights_sequence = 0 };
  for (int i = 0; i < PIN_TRIES; i++) {
    const uint64_t before = seen.weights_sequence;
    wefti_visible_get(&engine->visible, &seen, out->version);
    if (seen.weights_sequence == 0) {
      return weft_whyf(why, WEFT_E_NOT_YET, "no weights have been committed yet");
    }
    if (i > 0 && seen.weights_sequence == before) {
      return err; /* nothing has moved: the reason stands */
    }
    err = wefti_members_pin(engine->members, rank, seen.weights_sequence, out, why);
    if (err == WEFT_OK || err == WEFT_E_UNSUPPORTED || err == WEFT_E_INVAL) {
      return err;
    }
  }
  return err;
}

weft_err weft_pin(weft_engine *engine, uint32_t rank, uint64_t weights_sequence,
                  weft_pinned *out, weft_why *why)
{
  if (engine->remote) {
    return weft_whyf(why, WEFT_E_UNSUPPORTED,
                     "the weights are in the processes of the engine at %s: ask it with "
                     "GET /weights, or read where they are",
                     engine->control_url);
  }
  if (rank >= engine->world_size) {
    return weft_whyf(why, WEFT_E_INVAL, "rank %u: the engine has %u workers", rank,
                     engine->world_size);
  }
  if (!wefti_fleet_may_serve(engine->fleet, why)) {
    return WEFT_E_UNAVAIL;
  }
  if (weights_sequence == 0) {
    if (!wefti_fleet_may_tell(engine->fleet, why)) {
      return WEFT_E_NOT_YET;
    }
    return pin_visible(engine, rank, out, why);
  }
  wefti_visible_at seen;
  if (!wefti_visible_find(&engine->visible, weights_sequence, &seen, out->version)) {
    wefti_visible_get(&engine->visible, &seen, out->version);
    const bool later = weights_sequence > seen.weights_sequence;
    return weft_whyf(why, later ? WEFT_E_NOT_YET : WEFT_E_GONE,
                     "weights %llu are %s; visible now: %llu",
                     (unsigned long long)weights_sequence,
                     later ? "not committed" : "no longer held",
                     (unsigned long long)seen.weights_sequence);
  }
  return wefti_members_pin(engine->members, rank, weights_sequence, out, why);
}

void weft_unpin(weft_pinned *pinned)
{
  wefti_members_unpin(pinned);
}
