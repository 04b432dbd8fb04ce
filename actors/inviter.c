#include "inviter.h"

#include "patience.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  THREADS_MAX = 8, /* so that replicas that are silent do not keep the others waiting */
  TRY_MS = 1000,
  PAUSE_MS = 1000,
  AGAIN_MS = 3000
};

typedef struct seat {
  char *url;
  uint64_t due_ms;
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
static int64_t take_due(wefti_inviter *v, uint64_t *wait_ms)
{
  const uint64_t now = wefti_patience_now_ms();
  seat *first = NULL;
  for (uint32_t r = 0; r < v->opts.invitation.size; r++) {
    seat *s = &v->seats[r];
    if (!s->busy && (!first || s->due_ms < first->due_ms)) {
      first = s;
    }
  }
  if (!first || first->due_ms > now) {
    *wait_ms = first ? first->due_ms - now : PAUSE_MS;
    return -1;
  }
  first->busy = true;
  return first - v->seats;
}

/* Once for each new text. */
static void tell(wefti_inviter *v, uint32_t rank, weft_err err, const weft_why *why)
{
  seat *s = &v->seats[rank];
  char line[WEFT_WHY_MAX + 64];
  const weft_log_level level = err == WEFT_E_AGAIN ? WEFT_LOG_INFO : WEFT_LOG_WARN;
  if (err == WEFT_OK) {
    s->told[0] = '\0';
    return;
  }
  if (strcmp(s->told, why->text) == 0) {
    return;
  }
  (void)snprintf(s->told, sizeof s->told, "%s", why->text);
  if (v->opts.log && level >= v->opts.log_level) {
    (void)snprintf(line, sizeof line, "replica %" PRIu32 " was not invited: %s", rank,
                   why->text);
    v->opts.log(v->opts.log_arg, level, "fleet", line);
  }
}

static void invite(wefti_inviter *v, uint32_t rank)
{
  seat *s = &v->seats[rank];
  weft_invitation invitation = v->opts.invitation;
  weft_why why = { .err = WEFT_OK, .text = "" };
  invitation.rank = rank;
  const weft_err err = weft_door_invite(s->url, v->token, &invitation, TRY_MS, &why);
  tell(v, rank, err, &why);
}

static void *inviter_main(void *arg)
{
  wefti_inviter *v = arg;
  wefti_patience_lock(&v->wait);
  while (!v->wait.over) {
    uint64_t wait_ms = 0;
    const int64_t rank = take_due(v, &wait_ms);
    if (rank < 0) {
      wefti_patience_wait(&v->wait, wait_ms);
      continue;
    }
    wefti_patience_unlock(&v->wait);
    invite(v, (uint32_t)rank);
    wefti_patience_lock(&v->wait);
    seat *s = &v->seats[rank];
    s->busy = false;
    s->due_ms = wefti_patience_now_ms() + (s->in ? v->opts.again_ms : v->opts.pause_ms);
  }
  wefti_patience_unlock(&v->wait);
  return NULL;
}

static weft_err copy(wefti_inviter *v, const wefti_inviter_opts *opts)
{
  v->opts = *opts;
  v->opts.pause_ms = opts->pause_ms ? opts->pause_ms : PAUSE_MS;
  v->opts.again_ms = opts->again_ms ? opts->again_ms : AGAIN_MS;
  v->seats = calloc(opts->invitation.size, sizeof *v->seats);
  v->token = opts->token ? strdup(opts->token) : NULL;
  bool ok = v->seats && (v->token || !opts->token);
  for (uint32_t r = 0; ok && r < opts->invitation.size; r++) {
    v->seats[r].url = strdup(opts->urls[r]);
    ok = v->seats[r].url != NULL;
  }
  return ok ? WEFT_OK : WEFT_E_NOMEM;
}

weft_err wefti_inviter_start(const wefti_inviter_opts *opts, wefti_inviter **out)
{
  wefti_inviter *v = calloc(1, sizeof *v);
  if (!v || wefti_patience_init(&v->wait) != WEFT_OK) {
    free(v);
    return WEFT_E_NOMEM;
  }
  weft_err err = copy(v, opts);
  const uint32_t size = opts->invitation.size;
  const size_t want = size < THREADS_MAX ? size : THREADS_MAX;
  while (err == WEFT_OK && v->thread_count < want) {
    if (pthread_create(&v->threads[v->thread_count], NULL, inviter_main, v) != 0) {
      err = WEFT_E_SYS;
    } else {
      v->thread_count++;
    }
  }
  if (err != WEFT_OK) {
    wefti_inviter_destroy(v);
    return err;
  }
  *out = v;
  return WEFT_OK;
}

void wefti_inviter_note(wefti_inviter *v, uint32_t rank, bool in)
{
  wefti_patience_lock(&v->wait);
  v->seats[rank].in = in;
  if (!in) {
    v->seats[rank].due_ms = 0;
    wefti_patience_wake(&v->wait);
  }
  wefti_patience_unlock(&v->wait);
}

void wefti_inviter_end(wefti_inviter *v)
{
  if (v) {
    wefti_patience_end(&v->wait);
  }
}

void wefti_inviter_destroy(wefti_inviter *v)
{
  if (!v) {
    return;
  }
  wefti_patience_end(&v->wait);
  for (size_t i = 0; i < v->thread_count; i++) {
    (void)pthread_join(v->threads[i], NULL);
  }
  for (uint32_t r = 0; v->seats && r < v->opts.invitation.size; r++) {
    free(v->seats[r].url);
  }
  wefti_patience_fini(&v->wait);
  free(v->seats);
  free(v->token);
  free(v);
}
