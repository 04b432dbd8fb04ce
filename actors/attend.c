#include "attend.h"

#include "agreed.h"
#include "assembly.h"
#include "patience.h"
#include "ports.h"
#include "settings.h"
#include "weft/clock.h"
#include "weft/join.h"
#include "weft/link.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { JOIN_MS = 1500, IDLE_MS = 60000 };

struct wefti_attend {
  wefti_attend_opts opts;
  char *token;
  wefti_patience wait; /* its lock is over wanted and invitation */
  bool wanted;
  weft_invitation invitation;
  pthread_t thread;
  bool running;
  _Atomic uint64_t heard; /* a counter: any order will do */
  /* the thread's own */
  weft_actor_id port;
  char url[WEFTI_URL_MAX];     /* of the port */
  char towards[WEFTI_URL_MAX]; /* the join url that it was opened for */
  unsigned ports;              /* opened so far */
  uint64_t heard_before, quiet_since_ms;
  char told[WEFT_WHY_MAX];
};

static void tell(wefti_attend *a, weft_log_level level, const char *text)
{
  if (strcmp(a->told, text) == 0) {
    return; /* once */
  }
  (void)snprintf(a->told, sizeof a->told, "%s", text);
  if (a->opts.log && level >= a->opts.log_level) {
    a->opts.log(a->opts.log_arg, level, "fleet", text);
  }
}

/* The old port goes when the new one is there: frames that are under way on it end. */
static weft_err open_port(wefti_attend *a, const char *join_url, weft_why *why)
{
  char listen[WEFTI_URL_MAX];
  weft_err err;
  if (strncmp(join_url, "tcp://", 6) == 0) {
    err = wefti_local_towards(join_url, listen, why);
  } else {
    char name[32];
    (void)snprintf(name, sizeof name, "member-%u.sock", a->ports);
    err = wefti_ipc_url(a->opts.run_dir, name, listen, why);
  }
  if (err != WEFT_OK) {
    return err;
  }
  const weft_port_opts opts = wefti_worker_port(listen, a->opts.engine);
  weft_actor_id port = 0;
  a->ports++;
  err = weft_port_spawn_on(a->opts.rt, 0, &opts, a->url, sizeof a->url, &port, why);
  if (err != WEFT_OK) {
    return err;
  }
  if (a->port) {
    (void)wefti_post_stop(a->opts.rt, a->port);
  }
  a->port = port;
  a->quiet_since_ms = weft_clock_ms();
  (void)snprintf(a->towards, sizeof a->towards, "%s", join_url);
  return WEFT_OK;
}

/* A port may be dead although it looks well (nng 1.5.2 can lose an ipc listener for
 * good): we are let in and hear nothing. */
static bool is_deaf(wefti_attend *a)
{
  const uint64_t heard = atomic_load_explicit(&a->heard, memory_order_relaxed);
  const uint64_t now = weft_clock_ms();
  if (heard != a->heard_before) {
    a->heard_before = heard;
    a->quiet_since_ms = now;
  }
  return now - a->quiet_since_ms >= a->opts.quiet_ms;
}

static void follow(wefti_attend *a, const weft_invitation *in)
{
  weft_why why = { .err = WEFT_OK, .text = "" };
  char line[WEFT_WHY_MAX];
  weft_err err = WEFT_OK;
  if (!a->port || strcmp(a->towards, in->join_url) != 0 || is_deaf(a)) {
    err = open_port(a, in->join_url, &why);
  }
  if (err == WEFT_OK) {
    weft_join_hello hello = { .rank = in->rank,
                              .world_size = in->size,
                              .pid = (uint32_t)getpid(),
                              .incarnation = a->opts.incarnation };
    wefti_settings_say(NULL, &hello.settings);
    memcpy(hello.url, a->url, sizeof hello.url);
    err = weft_join_announce(in->join_url, a->token, &hello, JOIN_MS, &why);
  }
  if (err == WEFT_OK) {
    (void)snprintf(line, sizeof line, "replica %" PRIu32 " of %" PRIu32 " of fleet %s",
                   in->rank, in->size, in->fleet);
    tell(a, WEFT_LOG_INFO, line);
  } else {
    a->quiet_since_ms = weft_clock_ms(); /* not let in: nothing is to be heard */
    (void)snprintf(line, sizeof line, "fleet %s, which invited this engine: %.*s",
                   in->fleet, (int)sizeof line / 2, why.text);
    tell(a, WEFT_LOG_WARN, line);
  }
}

static void *attend_main(void *arg)
{
  wefti_attend *a = arg;
  wefti_patience_lock(&a->wait);
  while (!a->wait.over) {
    if (!a->wanted) {
      wefti_patience_wait(&a->wait, IDLE_MS);
      continue;
    }
    const weft_invitation invitation = a->invitation;
    a->wanted = false;
    wefti_patience_unlock(&a->wait);
    follow(a, &invitation);
    wefti_patience_lock(&a->wait);
  }
  wefti_patience_unlock(&a->wait);
  return NULL;
}

weft_err wefti_attend_start(const wefti_attend_opts *opts, wefti_attend **out)
{
  wefti_attend *a = calloc(1, sizeof *a);
  if (!a || wefti_patience_init(&a->wait) != WEFT_OK) {
    free(a);
    return WEFT_E_NOMEM;
  }
  a->opts = *opts;
  a->opts.quiet_ms = opts->quiet_ms ? opts->quiet_ms : WEFTI_DEAF_MS;
  a->token = opts->token ? strdup(opts->token) : NULL;
  weft_err err = a->token || !opts->token ? WEFT_OK : WEFT_E_NOMEM;
  if (err == WEFT_OK && pthread_create(&a->thread, NULL, attend_main, a) != 0) {
    err = WEFT_E_SYS;
  }
  a->running = err == WEFT_OK;
  if (err != WEFT_OK) {
    wefti_attend_destroy(a);
    return err;
  }
  *out = a;
  return WEFT_OK;
}

void wefti_attend_follow(wefti_attend *a, const weft_invitation *invitation)
{
  wefti_patience_lock(&a->wait);
  a->invitation = *invitation;
  a->wanted = true;
  wefti_patience_wake(&a->wait);
  wefti_patience_unlock(&a->wait);
}

void wefti_attend_heard(wefti_attend *a)
{
  (void)atomic_fetch_add_explicit(&a->heard, 1, memory_order_relaxed);
}

void wefti_attend_end(wefti_attend *a)
{
  if (a) {
    wefti_patience_end(&a->wait);
  }
}

void wefti_attend_destroy(wefti_attend *a)
{
  if (!a) {
    return;
  }
  wefti_patience_end(&a->wait);
  if (a->running) {
    (void)pthread_join(a->thread, NULL);
  }
  wefti_patience_fini(&a->wait);
  free(a->token);
  free(a);
}
