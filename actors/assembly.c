#include "assembly.h"

#include "clerk.h"
#include "engine_core.h"
#include "ports.h"
#include "publisher.h"
#include "relay.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An engine in this process: what is made in which order, and the orderly end. */

enum { EVENTS_KEPT = 4096, CORE_MAILBOX = 16384 /* messages */ };

/* ---- what the parts tell each other; all on loop 0 */

static void publish(void *arg, const char *topic, uint64_t sequence, const weft_buf *json)
{
  weft_engine *e = arg;
  (void)weft_pub_send(e->pub, topic, json->data, json->len);
  if (e->front) {
    wefti_front_event(e->front, topic, sequence, json);
  }
  if (e->on_commit && strcmp(topic, "weights.commit") == 0) {
    (void)wefti_commit_tell(json, false, e->on_commit, e->arg);
  }
}

static void on_visible(void *arg, const wefti_visible *visible)
{
  weft_engine *e = arg;
  wefti_members_visible(e->members, visible);
  wefti_visible_set(&e->visible, visible);
  wefti_members_settle(e->members, visible->weights_sequence);
}

static void on_hold(void *arg, bool held)
{
  const weft_engine *e = arg;
  wefti_members_hold(e->members, held);
}

static uint32_t readers(void *arg, char *text, size_t cap)
{
  const weft_engine *e = arg;
  return wefti_members_readers(e->members, text, cap);
}

static void on_snapshot_request(void *arg, uint64_t id, weft_buf *request)
{
  const weft_engine *e = arg;
  weft_resync resync = { .h = { .type = WEFT_MSG_RESYNC }, .json = request };
  weft_msg *msg = weft_msg_dup(weft_messages(), &resync.h);
  if (msg) {
    msg->corr = id;
  }
  if (!msg || weft_post(e->rt, e->hub, msg) != WEFT_OK) {
    static const char busy[] = "{\"error\":\"busy, ask again\"}";
    weft_jsonrep_answer(e->snapshot, id, busy, sizeof busy - 1);
  }
}

static void on_ready(void *arg, const weft_client_done *status)
{
  (void)status;
  weft_engine *e = arg;
  if (e->on_ready) {
    e->on_ready(e->arg, e);
  }
}

/* ---- making */

static weft_err name_it(weft_engine *e, const weft_engine_opts *o, weft_why *why)
{
  uint64_t id[2];
  const weft_err err = wefti_random(id, sizeof id);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "no random numbers from the system");
  }
  e->boot_id = id[0] | 1;
  (void)snprintf(e->boot_text, sizeof e->boot_text, "%016" PRIx64, e->boot_id);
  if (o->engine_id && strlen(o->engine_id) >= sizeof e->engine_id) {
    return weft_whyf(why, WEFT_E_LIMIT, "engine id: at most %zu bytes",
                     sizeof e->engine_id - 1);
  }
  if (o->engine_id) {
    (void)snprintf(e->engine_id, sizeof e->engine_id, "%s", o->engine_id);
  } else {
    (void)snprintf(e->engine_id, sizeof e->engine_id, "weft-%016" PRIx64, id[1]);
  }
  return WEFT_OK;
}

static weft_err choose_url(const weft_engine *e, const char *given, const char *name,
                           char out[WEFTI_URL_MAX], weft_why *why)
{
  if (!given) {
    return wefti_ipc_url(weft_rundir_path(e->rundir), name, out, why);
  }
  if (strlen(given) >= WEFTI_URL_MAX) {
    return weft_whyf(why, WEFT_E_LIMIT, "%s: too long for a URL", name);
  }
  (void)snprintf(out, WEFTI_URL_MAX, "%s", given);
  return WEFT_OK;
}

/* Who watches events over tcp asks for snapshots over tcp, on the same host. */
static void choose_snapshot(const weft_engine *e, const char *events, char *url,
                            size_t cap)
{
  const char *colon = events ? strrchr(events, ':') : NULL;
  if (events && strncmp(events, "tcp://", 6) == 0 && colon > events + 5) {
    (void)snprintf(url, cap, "%.*s:0", (int)(colon - events), events);
  } else if (wefti_ipc_url(weft_rundir_path(e->rundir), "snapshot.sock", url, NULL) !=
             WEFT_OK) {
    url[0] = '\0';
  }
}

static weft_err make_sockets(weft_engine *e, const weft_engine_opts *o, weft_why *why)
{
  char url[WEFTI_URL_MAX];
  weft_err err = choose_url(e, o->events_url, "events.sock", url, why);
  if (err == WEFT_OK) {
    err = weft_pub_create(url, e->events_url, sizeof e->events_url, &e->pub, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  choose_snapshot(e, o->events_url, url, sizeof url);
  return weft_jsonrep_create(weft_runtime_loop(e->rt, 0), url, WEFTI_SNAPSHOT_CONTEXTS,
                             on_snapshot_request, e, e->snapshot_url,
                             sizeof e->snapshot_url, &e->snapshot, why);
}

static weft_err make_members(weft_engine *e, const weft_engine_opts *o, weft_why *why)
{
  char join_url[WEFTI_URL_MAX] = "";
  const bool joins = e->replicas > 0 || o->workers == WEFT_WORKERS_JOIN;
  weft_err err = WEFT_OK;
  if (joins) {
    err = choose_url(e, o->join_url, "join.sock", join_url, why);
  }
  if (err == WEFT_OK && !o->join_url) {
    err = wefti_fleet_join_url(o, join_url, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  const wefti_members_opts opts = {
    .workers = joins ? WEFT_WORKERS_JOIN : o->workers,
    .world_size = e->world_size,
    .tp = o->tp ? o->tp : 1,
    .pp = o->pp ? o->pp : 1,
    .program = o->worker_program,
    .backend = o->backend ? o->backend : "host",
    .run_dir = weft_rundir_path(e->rundir),
    .weights_root = o->weights_root,
    .tcp_allow = o->tcp_allow,
    .copy_threads = wefti_copy_threads(o->copy_threads, e->world_size),
    .log_level = o->log_level,
    .join_url = join_url,
    .join_token = e->replicas ? o->replica_token : o->join_token,
    .cudart = o->cudart,
    .nccl = o->nccl,
    .allow_ipc_pickle = o->allow_ipc_pickle,
    .tp_plan = o->tp_plan,
    .manifest = e->manifest.copy,
    .draft = o->draft,
    .draft_manifest = e->draft_manifest.copy,
    .inplace = o->staging == WEFT_STAGING_INPLACE,
    .fleet = e->fleet,
    .replicas = e->replicas > 0
  };
  return wefti_members_create(e->rt, &opts, &e->members, why);
}

static uint32_t dp_size_of(const weft_engine *e, const weft_engine_opts *o)
{
  return e->replicas ? e->replicas : o->dp_size ? o->dp_size : 1;
}

static weft_err spawn_clerk(weft_engine *e, unsigned loops, weft_actor_id *out)
{
  /* One at a time: the loop's clock must be right for those that nobody waits for. */
  const weft_spawn_opts opts = { .mailbox = WEFTI_CLERK_MAILBOX, .batch = 1 };
  return weft_runtime_spawn(e->rt, loops - (e->state ? 2 : 1), &wefti_clerk_class, NULL,
                            &opts, out);
}

static weft_err spawn_core(weft_engine *e, const weft_engine_opts *o, unsigned loops)
{
  const wefti_publisher_args publisher = { .keep = EVENTS_KEPT,
                                           .ops = { .publish = publish, .arg = e } };
  weft_err err = weft_runtime_spawn(e->rt, 0, &wefti_publisher_class, &publisher, NULL,
                                    &e->publisher);
  if (err == WEFT_OK) {
    err = wefti_state_spawn(e, loops);
  }
  weft_actor_id clerk = 0;
  if (err == WEFT_OK) {
    err = spawn_clerk(e, loops, &clerk);
  }
  if (err != WEFT_OK) {
    return err;
  }
  wefti_engine_args core = {
    .boot_id = e->boot_id,
    .engine_id = e->engine_id,
    .tp = o->tp ? o->tp : 1,
    .pp = o->pp ? o->pp : 1,
    .dp_size = dp_size_of(e, o),
    .dp_index = o->dp_index,
    .backend = o->backend ? o->backend : "host",
    .publisher = e->publisher,
    .journal = e->journal,
    .clerk = clerk,
    .events_url = e->events_url,
    .snapshot_url = e->snapshot_url,
    .control_url = e->control_url,
    .strict_coverage = o->strict_coverage,
    .allow_weight_reset = o->allow_weight_reset,
    .require_pause = o->require_pause,
    .pause_lease_ms =
        o->pause_lease_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)o->pause_lease_ms,
    .sliced = o->tp_plan != NULL,
    .manifest = e->manifest.named,
    .manifest_count = e->manifest.count,
    .draft = o->draft,
    .draft_manifest = e->draft_manifest.named,
    .draft_manifest_count = e->draft_manifest.count,
    .last_sequence = e->state ? weft_journal_sequence(e->state) : 0,
    .on_visible = on_visible,
    .on_visible_arg = e,
    .inplace = o->staging == WEFT_STAGING_INPLACE && e->replicas == 0,
    .on_hold = on_hold,
    .readers = readers,
    .hold_arg = e,
  };
  wefti_fleet_core(e->fleet, &core);
  if (e->state) {
    core.history = weft_journal_history(e->state, &core.history_count);
  }
  const weft_spawn_opts spawn = { .mailbox = CORE_MAILBOX };
  err = weft_runtime_spawn(e->rt, 0, &wefti_engine_core_class, &core, &spawn, &e->core);
  if (e->state) {
    weft_journal_forget(e->state); /* the engine has it */
  }
  if (err != WEFT_OK) {
    return err;
  }
  const wefti_supervisor_args supervisor = {
    .engine = e->core,
    .world_size = e->world_size,
    .children = e->replicas == 0 && o->workers == WEFT_WORKERS_PROCESSES,
    .ops = wefti_members_ops(e->members)
  };
  /* All ranks may come, go and be fenced at the same time. */
  const weft_spawn_opts roomy = { .mailbox = (size_t)e->world_size * 4 + 1024 };
  return weft_runtime_spawn(e->rt, 0, &wefti_supervisor_class, &supervisor, &roomy,
                            &e->supervisor);
}

/* The engine's status names the control url, and the port needs to know the engine: where
 * the system picks the port number, a relay stands between until the engine is there. */
static weft_err core_as_link(void *arg, weft_ctx *ctx, const char *url,
                             weft_actor_id *out)
{
  (void)ctx;
  (void)url;
  const weft_engine *e = arg;
  *out = e->core;
  return e->core ? WEFT_OK : WEFT_E_NOT_YET;
}

static bool port_is_picked(const char *url)
{
  const size_t len = strlen(url);
  return strncmp(url, "tcp://", 6) == 0 && strcmp(url + len - 2, ":0") == 0;
}

static weft_err open_control(weft_engine *e, weft_actor_id to, weft_why *why)
{
  char url[WEFTI_URL_MAX];
  memcpy(url, e->control_url, sizeof url);
  const weft_port_opts opts = wefti_control_port(url, to);
  weft_actor_id port;
  return weft_port_spawn_on(e->rt, 0, &opts, e->control_url, sizeof e->control_url, &port,
                            why);
}

static weft_err open_control_early(weft_engine *e, weft_why *why)
{
  const wefti_relay_args relay = { .url = "engine",
                                   .ops = { .connect = core_as_link, .arg = e } };
  weft_actor_id to = 0;
  const weft_err err =
      weft_runtime_spawn(e->rt, 0, &wefti_relay_class, &relay, NULL, &to);
  return err == WEFT_OK ? open_control(e, to, why)
                        : weft_whyf(why, err, "the control port cannot start");
}

static weft_err make_front(weft_engine *e, const weft_engine_opts *o, weft_why *why)
{
  if (o->http_count == 0) {
    return WEFT_OK;
  }
  const wefti_front_opts front = { .engine = e->core,
                                   .publisher = e->publisher,
                                   .http = o->http,
                                   .http_count = o->http_count,
                                   .token = o->http_token,
                                   .insecure = o->insecure,
                                   .dev = o->dev,
                                   .allow_weight_reset = o->allow_weight_reset,
                                   .body_max = o->http_body_max,
                                   .tp = o->tp ? o->tp : 1,
                                   .pp = o->pp ? o->pp : 1,
                                   .dp_size = dp_size_of(e, o),
                                   .dp_index = o->dp_index };
  return wefti_front_create(e->rt, &front, &e->front, why);
}

static weft_err make_actors(weft_engine *e, const weft_engine_opts *o, unsigned loops,
                            weft_why *why)
{
  weft_err err = choose_url(e, o->control_url, "control.sock", e->control_url, why);
  if (err != WEFT_OK) {
    return err;
  }
  const bool early = port_is_picked(e->control_url);
  if (early) {
    err = open_control_early(e, why);
    if (err != WEFT_OK) {
      return err;
    }
  }
  err = spawn_core(e, o, loops);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "the engine's actors cannot start: %s",
                     weft_strerror(err));
  }
  err = early ? WEFT_OK : open_control(e, e->core, why);
  if (err == WEFT_OK) {
    err = make_front(e, o, why);
  }
  if (err == WEFT_OK) {
    err = wefti_calls_create(e->rt, &e->calls);
  }
  if (err == WEFT_OK) {
    err = wefti_calls_spawn(e->calls, e->core);
  }
  if (err != WEFT_OK) {
    return err;
  }
  const wefti_hub_args hub = { .engine = e->core,
                               .publisher = e->publisher,
                               .snapshot = &e->snapshot,
                               .on_ready = on_ready,
                               .on_ready_arg = e };
  err = weft_runtime_spawn(e->rt, 0, &wefti_hub_class, &hub, NULL, &e->hub);
  if (err == WEFT_OK && o->restore) {
    err = wefti_state_restore(e, o->draft);
  }
  if (err == WEFT_OK) {
    err = wefti_members_begin(e->members, e->supervisor, e->join_url, why);
  }
  return err;
}

weft_err wefti_runtime_make(unsigned loops, weft_log_fn *log, void *log_arg,
                            weft_log_level level, weft_runtime **out)
{
  const weft_runtime_opts opts = { .size = sizeof opts,
                                   .loops = loops,
                                   .catalogue = weft_messages(),
                                   .log = log,
                                   .log_arg = log_arg,
                                   .log_level = level };
  return weft_runtime_create(&opts, out);
}

static weft_err build(weft_engine *e, const weft_engine_opts *o, weft_why *why)
{
  weft_err err = name_it(e, o, why);
  if (err == WEFT_OK) {
    err = wefti_state_open(e, o, why);
  }
  if (err == WEFT_OK) {
    err = weft_rundir_open(o->run_dir, &e->rundir, why);
  }
  if (err == WEFT_OK) {
    err = wefti_manifest_keep(e, o, why);
  }
  if (err == WEFT_OK) {
    err = wefti_fleet_create(e, o, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  /* The clerk's loop computes; the journal waits for the disk on its own, the last. */
  const unsigned loops =
      (o->workers == WEFT_WORKERS_THREADS && !e->replicas ? 1 + 2 * e->world_size : 1) +
      1 + (e->state ? 1 : 0);
  err = wefti_runtime_make(loops, o->log, o->log_arg, o->log_level, &e->rt);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "the runtime cannot start: %s", weft_strerror(err));
  }
  err = make_members(e, o, why);
  if (err == WEFT_OK) {
    err = make_sockets(e, o, why);
  }
  if (err == WEFT_OK) {
    err = make_actors(e, o, loops, why);
  }
  return err == WEFT_OK ? wefti_fleet_begin(e->fleet, o, why) : err;
}

/* Threads take on the mask of who makes them: signals are for the host's own threads. */
static weft_err build_and_start(weft_engine *e, const weft_engine_opts *o, weft_why *why)
{
  sigset_t before;
  wefti_mask_all(&before);
  weft_err err = build(e, o, why);
  if (err == WEFT_OK) {
    err = weft_runtime_start_all(e->rt);
    e->started = err == WEFT_OK;
    if (err != WEFT_OK) {
      (void)weft_whyf(why, err, "threads cannot start: %s", weft_strerror(err));
    } else {
      wefti_members_started(e->members);
    }
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  return err;
}

weft_err weft_engine_create(const weft_engine_opts *opts, weft_engine **out,
                            weft_why *why)
{
  weft_err err = wefti_opts_check(opts, why);
  if (err != WEFT_OK) {
    return err;
  }
  weft_engine *e = calloc(1, sizeof *e);
  if (!e) {
    return weft_whyf(why, WEFT_E_NOMEM, "engine: out of memory");
  }
  e->on_commit = opts->on_commit;
  e->on_ready = opts->on_ready;
  e->log = opts->log;
  e->log_arg = opts->log_arg;
  e->log_level = opts->log_level;
  e->arg = opts->arg;
  e->replicas = (uint32_t)opts->replica_count;
  e->world_size =
      e->replicas ? e->replicas : (opts->tp ? opts->tp : 1) * (opts->pp ? opts->pp : 1);
  err = build_and_start(e, opts, why);
  if (err != WEFT_OK) {
    weft_engine_destroy(e);
    return err;
  }
  *out = e;
  return WEFT_OK;
}
