#define _GNU_SOURCE
#include "agreed.h"
#include "announce.h"
#include "assembly.h"
#include "device.h"
#include "lend.h"
#include "ports.h"
#include "settings.h"
#include "weft/device_table.h"
#include "weft/serve.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A worker process: worker actor and port on loop 0, device actor on loop 1. */

/* A joined worker that was let in, and for so long was asked nothing: the engine does not
 * get through to its port. */
#ifndef QUIET_MS
#define QUIET_MS WEFTI_DEAF_MS
#endif

enum { STOP_MS = 2000, JOIN_MS = 60000 };
static_assert(WEFTI_WORKER_CONTEXTS >= WEFTI_WORKER_HELD_MAX + 4,
              "heartbeat, publish, abort and adoption never wait for a context");

typedef struct worker_process {
  weft_runtime *rt;
  wefti_device *device;
  weft_actor_id worker, device_actor;
  weft_rundir *rundir;
  weft_lifeline *lifeline;
  wefti_announce *announce;
  wefti_exporter *exporter; /* of a child, as is the next */
  wefti_taker *taker;
  wefti_lending *lending;
  weft_signal *signals[2];
  uint64_t incarnation;
  weft_why lost; /* the device thread's, until the loops have ended */
  char url[WEFTI_URL_MAX];
  /* Once it is announced these are the announcing thread's. */
  weft_actor_id port;
  char listen[WEFTI_URL_MAX]; /* as asked for */
  bool fixed;                 /* ... by the caller: another one will not do */
  unsigned ports;             /* opened so far */
  uint64_t heard, quiet_ms;   /* frames, and when there were as many first */
} worker_process;

static void end_now(void *arg)
{
  const worker_process *w = arg;
  weft_runtime_stop(w->rt, STOP_MS);
}

/* On the device's thread. */
static void gpu_lost(void *arg, const char *reason)
{
  worker_process *w = arg;
  (void)weft_whyf(&w->lost, WEFT_E_FAILED, "the GPU is lost to this process: %.400s",
                  reason);
  end_now(w);
}

static weft_err choose_listen(worker_process *w, const weft_worker_opts *o, char *url,
                              weft_why *why)
{
  if (o->listen) {
    if (strlen(o->listen) >= WEFTI_URL_MAX) {
      return weft_whyf(why, WEFT_E_LIMIT, "listen: the URL is too long");
    }
    (void)snprintf(url, WEFTI_URL_MAX, "%s", o->listen);
    return WEFT_OK;
  }
  if (!o->join) {
    return weft_whyf(why, WEFT_E_INVAL, "a worker needs listen or join");
  }
  if (strncmp(o->join, "tcp://", 6) == 0) {
    return wefti_local_towards(o->join, url, why);
  }
  const weft_err err = weft_rundir_open(NULL, &w->rundir, why);
  return err == WEFT_OK
             ? wefti_ipc_url(weft_rundir_path(w->rundir), "worker.sock", url, why)
             : err;
}

static weft_err open_port(worker_process *w, weft_why *why)
{
  const weft_port_opts port = wefti_worker_port(w->listen, w->worker);
  w->ports++;
  return weft_port_spawn_on(w->rt, 0, &port, w->url, sizeof w->url, &w->port, why);
}

static weft_err spawn_actors(worker_process *w, const weft_worker_opts *o, weft_why *why)
{
  weft_err err = weft_runtime_spawn(w->rt, 1, &wefti_device_class, w->device, NULL,
                                    &w->device_actor);
  if (err == WEFT_OK) {
    const wefti_worker_args args = { .device = w->device,
                                     .device_actor = w->device_actor,
                                     .rank = o->rank,
                                     .incarnation = w->incarnation };
    err = weft_runtime_spawn(w->rt, 0, &wefti_worker_class, &args, NULL, &w->worker);
  }
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "the worker's actors cannot start: %s",
                     weft_strerror(err));
  }
  return open_port(w, why);
}

/* A port of ours may be dead although it looks well (nng 1.5.2 can lose an ipc listener
 * for good): another one takes its place. */
static bool move_port(void *arg, uint64_t let_in_for_ms, weft_join_hello *hello)
{
  worker_process *w = arg;
  const uint64_t heard = wefti_device_heard(w->device);
  if (heard != w->heard) {
    w->heard = heard;
    w->quiet_ms = let_in_for_ms;
  }
  if (let_in_for_ms < w->quiet_ms) { /* a new row */
    w->quiet_ms = let_in_for_ms;
  }
  if (let_in_for_ms - w->quiet_ms < QUIET_MS) {
    return false;
  }
  weft_why why = { .err = WEFT_OK };
  const weft_actor_id old = w->port;
  if (!w->fixed && strncmp(w->listen, "ipc://", 6) == 0) {
    char name[32];
    (void)snprintf(name, sizeof name, "worker-%u.sock", w->ports);
    if (wefti_ipc_url(weft_rundir_path(w->rundir), name, w->listen, &why) != WEFT_OK) {
      return false;
    }
  }
  if (w->fixed && wefti_post_stop(w->rt, old) == WEFT_OK) {
    w->port = 0; /* its address must be free first: if not yet, it is the next time */
  }
  if (open_port(w, &why) != WEFT_OK) {
    return false;
  }
  if (!w->fixed) {
    (void)wefti_post_stop(w->rt, old);
  }
  memcpy(hello->url, w->url, sizeof hello->url);
  w->quiet_ms = let_in_for_ms;
  return true;
}

static weft_err make_worker(worker_process *w, const weft_worker_opts *o, weft_why *why)
{
  weft_err err = choose_listen(w, o, w->listen, why);
  w->fixed = o->listen != NULL;
  if (err != WEFT_OK) {
    return err;
  }
  w->incarnation = o->incarnation;
  if (w->incarnation == 0) {
    err = wefti_random(&w->incarnation, sizeof w->incarnation);
    w->incarnation |= 1;
  }
  if (err == WEFT_OK) {
    err = wefti_runtime_make(2, o->log, o->log_arg, o->log_level, &w->rt);
  }
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "the worker cannot start: %s", weft_strerror(err));
  }
  const wefti_device_opts device = { .size = sizeof device,
                                     .backend = o->backend ? o->backend : "host",
                                     .weights_root = o->weights_root,
                                     .tcp_allow = o->tcp_allow,
                                     .threads = wefti_copy_threads(o->copy_threads,
                                                                   o->world_size),
                                     .tp = o->tp || o->pp ? o->tp : o->world_size,
                                     .pp = o->pp,
                                     .needs_grant = o->join != NULL || o->need_grant,
                                     .cudart = o->cudart,
                                     .nccl = o->nccl,
                                     .rank = o->rank,
                                     .has_gpu = o->has_gpu,
                                     .gpu = o->gpu,
                                     .allow_ipc_pickle = o->allow_ipc_pickle,
                                     .tp_plan = o->tp_plan,
                                     .manifest = o->manifest,
                                     .draft = o->draft,
                                     .draft_manifest = o->draft_manifest,

                                     .inplace = o->staging == WEFT_STAGING_INPLACE };
  err = wefti_device_create(&device, &w->device, why);
  if (err == WEFT_OK) {
    wefti_device_owns_process(w->device, gpu_lost, w);
  }
  if (err == WEFT_OK && o->log && wefti_device_about(w->device)[0] != '\0') {
    o->log(o->log_arg, WEFT_LOG_INFO, "worker", wefti_device_about(w->device));
  }
  if (err == WEFT_OK && !o->join) {
    err = wefti_exporter_create(w->rt, w->device, &w->exporter);
  }
  if (err == WEFT_OK && !o->join) {
    err = wefti_taker_create(w->rt, w->device, &w->taker);
  }
  if (err == WEFT_OK) {
    err = wefti_lending_create(w->device, &w->lending);
  }
  return err == WEFT_OK ? spawn_actors(w, o, why) : err;
}

static void on_parent_message(void *arg, const void *data, size_t len, int *fds,
                              size_t nfds)
{
  const worker_process *w = arg;
  wefti_exporter_message(w->exporter, data, len);
  wefti_taker_message(w->taker, data, len, fds, nfds);
}

static weft_err say_ready(worker_process *w, weft_why *why)
{
  char text[WEFTI_URL_MAX + 64];
  const int n = snprintf(text, sizeof text, "{\"ready\":true,\"url\":\"%s\"}", w->url);
  const weft_err err = weft_lifeline_send(w->lifeline, text, (size_t)n, NULL, 0);
  return err == WEFT_OK
             ? err
             : weft_whyf(why, err, "nobody at the lifeline: %s", weft_strerror(err));
}

static weft_err introduce(worker_process *w, const weft_worker_opts *o, weft_why *why)
{
  if (!o->join) {
    const weft_err err = weft_lifeline_open(weft_runtime_loop(w->rt, 0), -1,
                                            on_parent_message, end_now, w, &w->lifeline);
    if (err != WEFT_OK) {
      return weft_whyf(
          why, err, "no lifeline: a worker is started by an engine, or joins one (join)");
    }
    wefti_exporter_set_line(w->exporter, w->lifeline);
    wefti_taker_set_line(w->taker, w->lifeline, w->worker);
    return say_ready(w, why);
  }
  wefti_announce_opts announce = {
    .url = o->join,
    .token = o->join_token,
    .hello = { .rank = o->rank,
               .world_size = o->world_size,
               .pid = (uint32_t)getpid(),
               .draft = o->draft,
               .incarnation = w->incarnation },
    .patience_ms = o->join_timeout_ms ? o->join_timeout_ms : JOIN_MS,
    .on_failed = end_now,
    .on_let_in = move_port,
    .arg = w,
  };
  const wefti_settings settings = { .backend = o->backend,
                                    .inplace = o->staging == WEFT_STAGING_INPLACE,
                                    .tp = w->device->tp,
                                    .pp = w->device->pp,
                                    .tp_plan = w->device->tp_plan };
  wefti_settings_say(&settings, &announce.hello.settings);
  memcpy(announce.hello.url, w->url, sizeof announce.hello.url);
  const weft_err err = wefti_announce_start(&announce, &w->announce);
  return err == WEFT_OK ? err
                        : weft_whyf(why, err, "cannot announce: %s", weft_strerror(err));
}

static void unmake(worker_process *w)
{
  weft_lifeline_destroy(w->lifeline);
  for (size_t i = 0; i < 2; i++) {
    weft_signal_destroy(w->signals[i]);
  }
  weft_runtime_destroy(w->rt);
  wefti_exporter_destroy(w->exporter);
  wefti_taker_destroy(w->taker);
  wefti_lending_destroy(w->lending);
  wefti_device_destroy(w->device);
  weft_rundir_close(w->rundir);
}

weft_err weft_worker_run(const weft_worker_opts *opts, weft_why *why)
{
  if (opts->size != sizeof *opts || opts->world_size == 0 ||
      opts->rank >= opts->world_size) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "worker: rank %" PRIu32 " of %" PRIu32 " is impossible", opts->rank,
                     opts->world_size);
  }
  worker_process w = { .rt = NULL };
  weft_why story = { .err = WEFT_OK };
  wefti_block_ends();      /* before there are threads that would take them */
  weft_device_clear_env(); /* likewise */
  weft_err err = make_worker(&w, opts, &story);
  if (err == WEFT_OK) {
    err = wefti_end_on_signals(w.rt, end_now, &w, w.signals, &story);
  }
  if (err == WEFT_OK) {
    err = introduce(&w, opts, &story);
  }
  if (err == WEFT_OK) {
    err = weft_runtime_start(w.rt);
    if (err == WEFT_OK) {
      wefti_lower_priority(w.rt, 1);
      weft_runtime_run(w.rt);
      err = w.lost.err;
      story = err != WEFT_OK ? w.lost : story;
    } else {
      (void)weft_whyf(&story, err, "the device thread cannot start: %s",
                      weft_strerror(err));
    }
  }
  wefti_announce_stop(w.announce, &story);
  if (story.err != WEFT_OK && !opts->join && !w.lifeline) {
    weft_lifeline_last_word(story.text);
  }
  unmake(&w);
  if (story.err != WEFT_OK && why) {
    *why = story;
  }
  return story.err;
}
