#include "inviter.h"

#include "agreed.h"
#include "patience.h"
#include "weft/clock.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  THREADS_MAX = 8, /* so that replicas that are silent do not keep the others waiting */
  TRY_MS = 1000,
  PAUSE_MS = 1000
};

typedef struct seat {
  char *url;
  uint64_t due_ms;
  uint64_t taken_ms; /* when it took an invitation last */
  bool in, busy;
  char told[WEFT_WHY_MAX]; /* the last that was logged of it */
} seat;

struct wefti_inviter {
  wefti_inviter_opts opts; /* urls and token: not used */
  char *token;
  wefti_patience wait; /* its lock is over the seats */
  pthread_t threads[THREADS_MAX];
  size_t thread_count;
  seat *seats; /* [opts.invitation.size] */
};

/* The one that has waited longest, taken; -1: nobody is due, *wait_ms says until when. */
static int64_t take_due(wefti_inviter *inviter, uint64_t *wait_ms)
{
  const uint64_t now = weft_clock_ms();
  seat *first = NULL;
  for (uint32_t r = 0; r < inviter->opts.invitation.size; r++) {
    seat *s = &inviter->seats[r];
    if (!s->busy && (!first || s->due_ms < first->due_ms)) {
      first = s;
    }
  }
  if (!first || first->due_ms > now) {
    *wait_ms = first ? first->due_ms - now : PAUSE_MS;
    return -1;
  }
  first->busy = true;
  return first - inviter->seats;
}

/* Once for each new text. */
static void tell(wefti_inviter *inviter, uint32_t rank, weft_err err, const weft_why *why)
{
  seat *s = &inviter->seats[rank];
  char line[WEFT_WHY_MAX + 64];
  const weft_log_level level = err == WEFT_E_AGAIN ? WEFT_LOG_INFO : WEFT_LOG_WARN;
  if (err == WEFT_OK) {
    if (s->told[0] != '\0' && inviter->opts.on_refused) {
      inviter->opts.on_refused(inviter->opts.arg, rank, "");
    }
    s->told[0] = '\0';
    return;
  }
  if (strcmp(s->told, why->text) == 0) {
    return;
  }
  (void)snprintf(s->told, sizeof s->told, "%s", why->text);
  if (inviter->opts.on_refused) {
    inviter->opts.on_refused(inviter->opts.arg, rank, why->text);
  }
  if (inviter->opts.log && level >= inviter->opts.log_level) {
    (void)snprintf(line, sizeof line, "replica %" PRIu32 " was not invited: %s", rank,
                   why->text);
    inviter->opts.log(inviter->opts.log_arg, level, "fleet", line);
  }
}

static bool invite(wefti_inviter *inviter, uint32_t rank)
{
  seat *s = &inviter->seats[rank];
  weft_invitation invitation = inviter->opts.invitation;
  weft_why why = { .err = WEFT_OK, .text = "" };
  invitation.rank = rank;
  const weft_err err =
      weft_door_invite(s->url, inviter->token, &invitation, TRY_MS, &why);
  tell(inviter, rank, err, &why);
  return err == WEFT_OK;
}

static void *inviter_main(void *arg)
{
  wefti_inviter *inviter = arg;
  wefti_patience_lock(&inviter->wait);
  while (!inviter->wait.over) {
    uint64_t wait_ms = 0;
    const int64_t rank = take_due(inviter, &wait_ms);
    if (rank < 0) {
      wefti_patience_wait(&inviter->wait, wait_ms);
      continue;
    }
    wefti_patience_unlock(&inviter->wait);
    const bool taken = invite(inviter, (uint32_t)rank);
    wefti_patience_lock(&inviter->wait);
    seat *s = &inviter->seats[rank];
    const uint64_t now = weft_clock_ms();
    s->busy = false;
    s->taken_ms = taken ? now : s->taken_ms;
    s->due_ms = now + (s->in ? inviter->opts.again_ms : inviter->opts.pause_ms);
  }
  wefti_patience_unlock(&inviter->wait);
  return NULL;
}

static weft_err copy(wefti_inviter *inviter, const wefti_inviter_opts *opts)
{
  inviter->opts = *opts;
  inviter->opts.pause_ms = opts->pause_ms ? opts->pause_ms : PAUSE_MS;
  inviter->opts.again_ms = opts->again_ms ? opts->again_ms : WEFTI_INVITE_MS;
  inviter->seats = calloc(opts->invitation.size, sizeof *inviter->seats);
  inviter->token = opts->token ? strdup(opts->token) : NULL;
  bool ok = inviter->seats && (inviter->token || !opts->token);
  for (uint32_t r = 0; ok && r < opts->invitation.size; r++) {
    inviter->seats[r].url = strdup(opts->urls[r]);
    ok = inviter->seats[r].url != NULL;
  }
  return ok ? WEFT_OK : WEFT_E_NOMEM;
}

weft_err wefti_inviter_start(const wefti_inviter_opts *opts, wefti_inviter **out)
{
  wefti_inviter *inviter = calloc(1, sizeof *inviter);
  if (!inviter || wefti_patience_init(&inviter->wait) != WEFT_OK) {
    free(inviter);
    return WEFT_E_NOMEM;
  }
  weft_err err = copy(inviter, opts);
  const uint32_t size = opts->invitation.size;
  const size_t want = size < THREADS_MAX ? size : THREADS_MAX;
  while (err == WEFT_OK && inviter->thread_count < want) {
    if (pthread_create(&inviter->threads[inviter->thread_count], NULL, inviter_main,
                       inviter) != 0) {
      err = WEFT_E_SYS;
    } else {
      inviter->thread_count++;
    }
  }
  if (err != WEFT_OK) {
    wefti_inviter_destroy(inviter);
    return err;
  }
  *out = inviter;
  return WEFT_OK;
}

void wefti_inviter_note(wefti_inviter *inviter, uint32_t rank, bool in)
{
  wefti_patience_lock(&inviter->wait);
  inviter->seats[rank].in = in;
  if (!in) { /* at once, but one that goes as often as it comes does not keep us busy */
    const seat *s = &inviter->seats[rank];
    inviter->seats[rank].due_ms =
        s->taken_ms == 0 ? 0 : s->taken_ms + inviter->opts.pause_ms;
    wefti_patience_wake(&inviter->wait);
  }
  wefti_patience_unlock(&inviter->wait);
}

void wefti_inviter_end(wefti_inviter *inviter)
{
  if (inviter) {
    wefti_patience_end(&inviter->wait);
  }
}

void wefti_inviter_destroy(wefti_inviter *inviter)
{
  if (!inviter) {
    return;
  }
  wefti_patience_end(&inviter->wait);
  for (size_t i = 0; i < inviter->thread_count; i++) {
    (void)pthread_join(inviter->threads[i], NULL);
  }
  for (uint32_t r = 0; inviter->seats && r < inviter->opts.invitation.size; r++) {
    free(inviter->seats[r].url);
  }
  wefti_patience_fini(&inviter->wait);
  free(inviter->seats);
  free(inviter->token);
  free(inviter);
}
