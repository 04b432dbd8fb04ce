#include "agreed.h"
#include "assembly.h"
#include "attend.h"
#include "engine_core.h"
#include "inviter.h"
#include "leader.h"
#include "weft/door.h"
#include "weight_slots.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What an engine needs to be a fleet's coordinator, or a member of one.  All on loop 0
 * unless said otherwise. */

enum { REPLICAS_MAX = 256 };

struct wefti_fleet {
  weft_engine *e;
  /* a coordinator's */
  wefti_inviter *inviter;
  /* a member's */
  weft_door *door;
  wefti_attend *attend;
  weft_invitation last; /* the newest that was followed; boot 0: none */
  uint64_t last_ms;     /* loop time of it */
  char adopted[sizeof((weft_invitation *)0)->fleet];
  uint32_t rank;            /* as adopted */
  wefti_leader coordinator; /* that adopted us */
  bool doubt;
  char refused[sizeof((weft_invitation *)0)->fleet]; /* told of in the log */
  /* CLOCK_BOOTTIME until which readers may be served; read by any thread that pins.  It
   * carries nothing else, so its order does not matter. */
  _Atomic uint64_t until_ns;
  /* What is visible here may be older than elsewhere.  Falls when the newer is in place,
   * so whoever sees it fallen finds that. */
  atomic_bool unshown;
};

/* ---- options */

static bool is_ipc(const char *url)
{
  return strncmp(url, "ipc://", 6) == 0;
}

static weft_err check_coordinator(const weft_engine_opts *o, weft_why *why)
{
  if (o->member_url) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "an engine is a coordinator (replicas) or a member (member_url): a "
                     "fleet of fleets is not supported");
  }
  if (o->replica_count > REPLICAS_MAX) {
    return weft_whyf(why, WEFT_E_LIMIT, "%zu replicas: at most %d", o->replica_count,
                     (int)REPLICAS_MAX);
  }
  if (!o->state_dir) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "a fleet's coordinator needs a state directory: its record decides "
                     "what its engines are in doubt about");
  }
  if (o->restore || o->manifest) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "a fleet's coordinator holds no weights: %s is an option of its "
                     "engines",
                     o->restore ? "restore" : "manifest");
  }
  if (o->draft || o->draft_manifest) {
    return weft_whyf(
        why, WEFT_E_UNSUPPORTED,
        "a fleet's coordinator leads no draft model weight updates: draft is "
        "an option of engines on their own");
  }
  if (o->dp_size > 1 && o->dp_size != o->replica_count) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "dp_size %" PRIu32 ": this fleet has %zu replicas", o->dp_size,
                     o->replica_count);
  }
  if (o->join_url && (strncmp(o->join_url, "tcp://0.0.0.0:", 14) == 0 ||
                      strncmp(o->join_url, "tcp://[::]:", 11) == 0)) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "join %s: replicas are told to come to this address; name one that "
                     "they can reach",
                     o->join_url);
  }
  const bool token = o->replica_token && *o->replica_token;
  if (o->join_url && !token && !is_ipc(o->join_url)) {
    return weft_whyf(why, WEFT_E_DENIED,
                     "join %s needs the replicas' token (only ipc:// does without)",
                     o->join_url);
  }
  for (size_t i = 0; i < o->replica_count; i++) {
    if (!token && !is_ipc(o->replicas[i])) {
      return weft_whyf(why, WEFT_E_DENIED,
                       "replica %s needs a token (only ipc:// does without)",
                       o->replicas[i]);
    }
    for (size_t j = 0; j < i; j++) {
      if (strcmp(o->replicas[i], o->replicas[j]) == 0) {
        return weft_whyf(why, WEFT_E_INVAL, "replica %s is named twice", o->replicas[i]);
      }
    }
  }
  return WEFT_OK;
}

weft_err wefti_fleet_check(const weft_engine_opts *o, weft_why *why)
{
  if (o->replica_count > 0) {
    return check_coordinator(o, why);
  }
  if (o->member_url && !o->state_dir) {
    return weft_whyf(
        why, WEFT_E_INVAL,
        "a member of a fleet needs a state directory: its votes must outlive "
        "it");
  }
  if (o->member_url && !is_ipc(o->member_url) && !(o->member_token && *o->member_token)) {
    return weft_whyf(why, WEFT_E_DENIED,
                     "member %s needs a token (only ipc:// does without)", o->member_url);
  }
  return WEFT_OK;
}

/* Where there is a tcp replica, its way here; the join door asks for the token then. */
weft_err wefti_fleet_join_url(const weft_engine_opts *o, char url[WEFTI_URL_MAX],
                              weft_why *why)
{
  for (size_t i = 0; i < o->replica_count; i++) {
    if (strncmp(o->replicas[i], "tcp://", 6) == 0) {
      return wefti_local_towards(o->replicas[i], url, why);
    }
  }
  return WEFT_OK;
}

/* ---- a member: who may invite it, and until when it may serve */

static void tell(wefti_fleet *f, weft_log_level level, const char *text)
{
  if (f->e->log && level >= f->e->log_level) {
    f->e->log(f->e->log_arg, level, "fleet", text);
  }
}

/* The fleet that this engine cannot leave now, or NULL. */
static const char *bound_to(const wefti_fleet *f, uint64_t now_ms)
{
  const uint64_t until_ns = atomic_load_explicit(&f->until_ns, memory_order_relaxed);
  if (f->adopted[0] && (f->doubt || wefti_boottime_ns(NULL) < until_ns)) {
    return f->adopted;
  }
  return f->last.boot != 0 && now_ms - f->last_ms < WEFTI_INVITED_MS ? f->last.fleet
                                                                     : NULL;
}

static weft_err refuse_other(wefti_fleet *f, const char *bound,
                             const weft_invitation *invitation, weft_why *why)
{
  weft_why line;
  (void)weft_whyf(
      &line, WEFT_E_EXISTS,
      "this engine (%s) is replica %" PRIu32 " of fleet %s%s: fleet %s cannot have it",
      f->e->engine_id, f->adopted[0] ? f->rank : f->last.rank, bound,
      f->doubt ? ", which it is in doubt about (weft resolve)" : "", invitation->fleet);
  if (strcmp(f->refused, invitation->fleet) != 0) {
    memcpy(f->refused, invitation->fleet, sizeof f->refused);
    tell(f, WEFT_LOG_WARN, line.text);
  }
  return weft_whyf(why, line.err, "%s", line.text);
}

static weft_err on_invited(void *arg, const weft_invitation *invitation, weft_why *why)
{
  wefti_fleet *f = arg;
  const uint64_t now_ms = weft_loop_now_ms(weft_runtime_loop(f->e->rt, 0));
  const char *bound = bound_to(f, now_ms);
  if (bound && strcmp(bound, invitation->fleet) != 0) {
    return refuse_other(f, bound, invitation, why);
  }
  /* One that another life of its fleet has followed: two with copies of one state
   * directory. If it were heard, each would take the member from the other for ever. */
  if (wefti_leader_is_former(&f->coordinator, invitation->boot)) {
    return weft_whyf(
        why, WEFT_E_STALE,
        "this engine (%s) is replica %" PRIu32
        " of fleet %s, which another coordinator leads by now (boot %016" PRIx64
        " after %016" PRIx64 "): are there two with one state directory?",
        f->e->engine_id, f->rank, f->adopted, f->coordinator.boot, invitation->boot);
  }
  if (bound && f->last.boot == invitation->boot && f->last.rank != invitation->rank) {
    return weft_whyf(why, WEFT_E_EXISTS,
                     "this engine (%s) is replica %" PRIu32
                     " already: the URLs of replicas %" PRIu32 " and %" PRIu32
                     " lead to the same engine",
                     f->e->engine_id, f->last.rank, f->last.rank, invitation->rank);
  }
  f->last = *invitation;
  f->last_ms = now_ms;
  f->refused[0] = '\0';
  wefti_attend_follow(f->attend, invitation);
  return WEFT_OK;
}

static void on_upstream(void *arg, const wefti_upstream *upstream)
{
  wefti_fleet *f = arg;
  wefti_leader_follow(&f->coordinator, upstream->boot);
  (void)snprintf(f->adopted, sizeof f->adopted, "%s", upstream->fleet);
  f->rank = upstream->rank;
  f->doubt = upstream->doubt;
  atomic_store_explicit(&f->until_ns, upstream->until_ns, memory_order_relaxed);
  atomic_store_explicit(&f->unshown, upstream->unshown, memory_order_release);
  if (f->attend) {
    wefti_attend_heard(f->attend);
  }
}

bool wefti_fleet_may_serve(wefti_fleet *f, weft_why *why)
{
  if (!f || f->e->replicas > 0 ||
      wefti_boottime_ns(NULL) <
          atomic_load_explicit(&f->until_ns, memory_order_relaxed)) {
    return true;
  }
  (void)weft_whyf(why, WEFT_E_UNAVAIL, "cut off from its coordinator");
  return false;
}

bool wefti_fleet_may_tell(wefti_fleet *f, weft_why *why)
{
  if (!f || !atomic_load_explicit(&f->unshown, memory_order_acquire)) {
    return true;
  }
  (void)weft_whyf(why, WEFT_E_NOT_YET,
                  "a change is on its way through the fleet, and whether it is visible "
                  "is not known here yet; try again");
  return false;
}

/* ---- making and ending */

weft_err wefti_fleet_create(weft_engine *e, const weft_engine_opts *o, weft_why *why)
{
  if (o->replica_count == 0 && !o->member_url) {
    return WEFT_OK;
  }
  e->fleet = calloc(1, sizeof *e->fleet);
  if (!e->fleet) {
    return weft_whyf(why, WEFT_E_NOMEM, "fleet: out of memory");
  }
  e->fleet->e = e;
  return WEFT_OK;
}

void wefti_fleet_core(wefti_fleet *f, wefti_engine_args *core)
{
  if (!f) {
    return;
  }
  core->replicas = f->e->replicas;
  core->member = f->e->replicas == 0;
  core->on_upstream = on_upstream;
  core->on_upstream_arg = f;
}

static weft_err open_door(wefti_fleet *f, const weft_engine_opts *o, weft_why *why)
{
  weft_engine *e = f->e;
  const wefti_attend_opts attend = { .rt = e->rt,
                                     .engine = e->core,
                                     .run_dir = weft_rundir_path(e->rundir),
                                     .token = o->member_token,
                                     .incarnation = e->boot_id,
                                     .log = e->log,
                                     .log_arg = e->log_arg,
                                     .log_level = e->log_level };
  const weft_err err = wefti_attend_start(&attend, &f->attend);
  if (err != WEFT_OK) {
    return weft_whyf(why, err, "%s: cannot start: %s", o->member_url, weft_strerror(err));
  }
  return weft_door_listen(weft_runtime_loop(e->rt, 0), o->member_url, o->member_token,
                          on_invited, f, e->member_url, sizeof e->member_url, &f->door,
                          why);
}

/* An inviting thread.  The log has it too, so it may be lost. */
static void on_refused(void *arg, uint32_t rank, const char *text)
{
  const wefti_fleet *f = arg;
  const weft_replica_note m = { .h.type = WEFT_MSG_REPLICA_NOTE,
                                .rank = rank,
                                .text = { text, (uint32_t)strlen(text) } };
  (void)wefti_post(f->e->rt, f->e->core, &m.h);
}

static weft_err start_inviting(wefti_fleet *f, const weft_engine_opts *o, weft_why *why)
{
  weft_engine *e = f->e;
  wefti_inviter_opts opts = { .urls = o->replicas,
                              .token = o->replica_token,
                              .invitation = { .boot = e->boot_id, .size = e->replicas },
                              .on_refused = on_refused,
                              .arg = f,
                              .log = e->log,
                              .log_arg = e->log_arg,
                              .log_level = e->log_level };
  (void)snprintf(opts.invitation.join_url, sizeof opts.invitation.join_url, "%s",
                 e->join_url);
  (void)snprintf(opts.invitation.fleet, sizeof opts.invitation.fleet, "%s", e->engine_id);
  const weft_err err = wefti_inviter_start(&opts, &f->inviter);
  return err == WEFT_OK
             ? err
             : weft_whyf(why, err, "replicas cannot be invited: %s", weft_strerror(err));
}

weft_err wefti_fleet_begin(wefti_fleet *f, const weft_engine_opts *o, weft_why *why)
{
  if (!f) {
    return WEFT_OK;
  }
  return f->e->replicas > 0 ? start_inviting(f, o, why) : open_door(f, o, why);
}

void wefti_fleet_note(wefti_fleet *f, uint32_t rank, bool in)
{
  if (f && f->inviter) {
    wefti_inviter_note(f->inviter, rank, in);
  }
}

void wefti_fleet_leave(wefti_fleet *f)
{
  if (f) {
    wefti_inviter_end(f->inviter);
    wefti_attend_end(f->attend);
  }
}

void wefti_fleet_destroy(wefti_fleet *f)
{
  if (f) {
    wefti_inviter_destroy(f->inviter);
    weft_door_close(f->door);
    wefti_attend_destroy(f->attend);
    free(f);
  }
}
