#include "assembly.h"
#include "publisher.h"
#include "relay.h"
#include "weft/serve.h"

#include <string.h>

/* An HTTP front in a process of its own, with a relay to the engine's control port. */

enum { DRAIN_MS = 1000, TICK_MS = 10, ACTORS_MS = 1500 };

typedef struct acceptor_process {
  weft_runtime *rt;
  weft_actor_id relay;
  weft_actor_id publisher; /* of the engine's events, to this process's streams */
  wefti_calls *calls;
  wefti_watch *watch;
  wefti_front *front;
  weft_signal *signals[2];
  weft_alarm *ending;
  uint64_t ending_since_ms;
} acceptor_process;

static void end_tick(void *arg)
{
  const acceptor_process *p = arg;
  const uint64_t now_ms = weft_loop_now_ms(weft_runtime_loop(p->rt, 0));
  if (wefti_front_connections(p->front) > 0 && now_ms - p->ending_since_ms < DRAIN_MS) {
    weft_alarm_start(p->ending, TICK_MS);
    return;
  }
  weft_runtime_stop(p->rt, ACTORS_MS);
}

static void begin_end(void *arg)
{
  acceptor_process *p = arg;
  if (p->ending_since_ms != 0) {
    return; /* a second signal */
  }
  p->ending_since_ms = weft_loop_now_ms(weft_runtime_loop(p->rt, 0));
  wefti_front_drain(p->front);
  weft_alarm_start(p->ending, 0);
}

static void publish(void *arg, const char *topic, uint64_t sequence, const weft_buf *json)
{
  const acceptor_process *p = arg;
  wefti_front_event(p->front, topic, sequence, json);
}

static weft_err spawn_actors(acceptor_process *p, const weft_acceptor_opts *o)
{
  const wefti_relay_args relay = { .url = o->engine,
                                   .ops = { .connect = wefti_link_make } };
  weft_err err =
      weft_runtime_spawn(p->rt, 0, &wefti_relay_class, &relay, NULL, &p->relay);
  if (err == WEFT_OK) {
    const wefti_publisher_args publisher = { .ops = { .publish = publish, .arg = p } };
    err = weft_runtime_spawn(p->rt, 0, &wefti_publisher_class, &publisher, NULL,
                             &p->publisher);
  }
  if (err == WEFT_OK) {
    err = wefti_calls_create(p->rt, &p->calls);
  }
  return err == WEFT_OK ? wefti_calls_spawn(p->calls, p->relay) : err;
}

static weft_err make(acceptor_process *p, const weft_acceptor_opts *o, weft_why *why)
{
  weft_err err = wefti_runtime_make(1, o->log, o->log_arg, o->log_level, &p->rt);
  if (err == WEFT_OK) {
    err = weft_alarm_create(weft_runtime_loop(p->rt, 0), end_tick, p, &p->ending);
  }
  if (err == WEFT_OK) {
    err = spawn_actors(p, o);
  }
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "the acceptor cannot start: %s", weft_strerror(err));
  }
  const wefti_front_opts front = { .engine = p->relay,
                                   .publisher = p->publisher,
                                   .http = o->http,
                                   .http_count = o->http_count,
                                   .token = o->http_token,
                                   .insecure = o->insecure,
                                   .dev = o->dev,
                                   .allow_weight_reset = o->allow_weight_reset,
                                   .body_max = o->http_body_max,
                                   .tp = o->tp ? o->tp : 1,
                                   .pp = o->pp ? o->pp : 1,
                                   .dp_size = o->dp_size ? o->dp_size : 1,
                                   .dp_index = o->dp_index };
  err = wefti_front_create(p->rt, &front, &p->front, why);
  return err == WEFT_OK ? wefti_end_on_signals(p->rt, begin_end, p, p->signals, why)
                        : err;
}

weft_err weft_acceptor_run(const weft_acceptor_opts *opts, weft_why *why)
{
  if (opts->size != sizeof *opts || !opts->engine || opts->http_count == 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "acceptor: engine and an HTTP address are needed");
  }
  acceptor_process p = { .rt = NULL };
  wefti_block_ends(); /* before there are threads that would take them */
  weft_err err = make(&p, opts, why);
  if (err == WEFT_OK) {
    err = wefti_watch_start(p.rt, p.calls, p.publisher, &p.watch);
    (void)weft_whyf(err == WEFT_OK ? NULL : why, err,
                    "cannot follow the engine's events");
  }
  if (err == WEFT_OK) {
    size_t count;
    const char *const *http = wefti_front_addresses(p.front, &count);
    if (opts->on_ready) {
      opts->on_ready(opts->arg, http, count);
    }
    weft_runtime_run(p.rt);
  }
  wefti_watch_stop(p.watch);
  wefti_front_destroy(p.front);
  for (size_t i = 0; i < 2; i++) {
    weft_signal_destroy(p.signals[i]);
  }
  weft_alarm_destroy(p.ending);
  weft_runtime_destroy(p.rt);
  wefti_calls_destroy(p.calls); /* its actor may have ended only now */
  return err;
}
