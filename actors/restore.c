#include "restore.h"

#include "weft/digest.h"
#include "weft/messages.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { POLL_MS = 100, TRIES = 5, VERSION_ROOM = 1025, TEXT_ROOM = 512 };

typedef enum step {
  STEP_READY, /* are all workers there? */
  STEP_LOOK,  /* has somebody pushed meanwhile? */
  STEP_INIT,
  STEP_START,
  STEP_UPDATE,
  STEP_FINISH,
  STEP_GIVE_UP /* the session is being aborted */
} step;

typedef struct restore {
  wefti_restore_args args;
  char version[VERSION_ROOM];
  char digest[WEFT_DIGEST_TEXT];
  char *sources; /* a copy */
  size_t at;     /* of the next update_info in it */
  step step;
  uint64_t corr;
  unsigned tries;
  bool told; /* that it waits */
  char session[64];
} restore;

/* ---- telling */

static void say(weft_ctx *ctx, const restore *self, weft_restore_state state,
                const char *text)
{
  weft_log(ctx, state == WEFT_RESTORE_PUSH_NEEDED ? WEFT_LOG_WARN : WEFT_LOG_INFO,
           "restore: %s sequence=%" PRIu64, text, self->args.sequence);
  const weft_restore_note m = { .h.type = WEFT_MSG_RESTORE_NOTE,
                                .state = state,
                                .text = { text, (uint32_t)strlen(text) } };
  (void)weft_send(ctx, self->args.engine, weft_msg_make(ctx, &m.h));
}

static void end(weft_ctx *ctx, const restore *self, weft_restore_state state,
                const char *text)
{
  say(ctx, self, state, text);
  weft_stop(ctx, WEFT_OK);
}

/* ---- the array of update_infos, valid JSON, one element after the other */

/* The next element, text[*len]; NULL behind the last one. */
static const char *next_info(restore *self, size_t *len)
{
  const char *s = self->sources;
  size_t i = self->at;
  unsigned depth = 0;
  bool quoted = false;
  i += i == 0 && s[i] == '[';
  while (s[i] == ',' || s[i] == ' ' || s[i] == '\n' || s[i] == '\r' || s[i] == '\t') {
    i++;
  }
  const size_t from = i;
  for (; s[i] != '\0'; i++) {
    if (quoted) {
      quoted = s[i] != '"';
      i += s[i] == '\\' && s[i + 1] != '\0';
      continue;
    }
    if (depth == 0 && (s[i] == ',' || s[i] == ']')) {
      break;
    }
    quoted = s[i] == '"';
    depth += s[i] == '[' || s[i] == '{';
    depth -= s[i] == ']' || s[i] == '}';
  }
  self->at = i;
  *len = i - from;
  return i == from ? NULL : s + from;
}

/* ---- the walk */

static void ask(weft_ctx *ctx, restore *self, step next, const weft_msg *tmpl)
{
  self->step = next;
  self->corr = weft_ask(ctx, self->args.engine, weft_msg_make(ctx, tmpl), 0);
}

static weft_str session_of(const restore *self)
{
  return (weft_str){ self->session, (uint32_t)strlen(self->session) };
}

static void query(weft_ctx *ctx, restore *self, step next, uint32_t what)
{
  const weft_client_query m = { .h.type = WEFT_MSG_CLIENT_QUERY, .what = what };
  ask(ctx, self, next, &m.h);
}

static void begin(weft_ctx *ctx, restore *self)
{
  weft_buf *info = weft_buf_create("{}", 2);
  const weft_client_init m = { .h.type = WEFT_MSG_CLIENT_INIT, .info = info };
  say(ctx, self, WEFT_RESTORE_LOADING, "loads the last commit's files");
  self->at = 0;
  ask(ctx, self, STEP_INIT, &m.h);
  weft_buf_unref(info);
}

static void update_or_finish(weft_ctx *ctx, restore *self)
{
  size_t len;
  const char *text = next_info(self, &len);
  if (text != NULL) {
    weft_buf *info = weft_buf_create(text, len);
    const weft_client_update m = { .h.type = WEFT_MSG_CLIENT_UPDATE,
                                   .session = session_of(self),
                                   .info = info };
    ask(ctx, self, STEP_UPDATE, &m.h);
    weft_buf_unref(info);
    return;
  }
  const weft_client_finish m = {
    .h.type = WEFT_MSG_CLIENT_FINISH,
    .session = session_of(self),
    .has_version = self->args.declared,
    .version = { self->version, (uint32_t)strlen(self->version) },
    .digest = { self->digest, (uint32_t)strlen(self->digest) },
  };
  ask(ctx, self, STEP_FINISH, &m.h);
}

/* A worker that is away comes back; what a file says does not change by waiting. */
static bool may_pass(weft_err err)
{
  return err == WEFT_E_UNAVAIL || err == WEFT_E_DOWN || err == WEFT_E_NOMEM;
}

static void failed(weft_ctx *ctx, restore *self, weft_err err, const char *why)
{
  if (may_pass(err) && ++self->tries < TRIES) {
    self->step = STEP_READY;
    self->session[0] = '\0'; /* the next init takes over what is left of it */
    (void)weft_timer_start(ctx, POLL_MS, 0);
    return;
  }
  char text[TEXT_ROOM];
  (void)snprintf(text, sizeof text,
                 "change %" PRIu64 " cannot be restored, push the weights again: %.380s",
                 self->args.sequence, why);
  say(ctx, self, WEFT_RESTORE_PUSH_NEEDED, text);
  if (self->session[0] == '\0') {
    weft_stop(ctx, WEFT_OK);
    return;
  }
  const weft_client_abort m = { .h.type = WEFT_MSG_CLIENT_ABORT,
                                .session = session_of(self),
                                .reason = WEFT_STR("the restore gave up") };
  ask(ctx, self, STEP_GIVE_UP, &m.h); /* mostly over already */
}

static void on_good(weft_ctx *ctx, restore *self, const weft_client_done *m)
{
  switch (self->step) {
  case STEP_READY:
    query(ctx, self, STEP_LOOK, WEFT_QUERY_INFO);
    break;
  case STEP_LOOK:
    if (m->sequence != self->args.last_sequence) {
      end(ctx, self, WEFT_RESTORE_NONE, "not needed, weights were changed meanwhile");
    } else {
      begin(ctx, self);
    }
    break;
  case STEP_INIT: {
    const weft_client_start start = { .h.type = WEFT_MSG_CLIENT_START };
    ask(ctx, self, STEP_START, &start.h);
    break;
  }
  case STEP_START:
    (void)snprintf(self->session, sizeof self->session, "%s",
                   m->session.p == NULL ? "" : m->session.p);
    update_or_finish(ctx, self);
    break;
  case STEP_UPDATE:
    update_or_finish(ctx, self);
    break;
  case STEP_FINISH: {
    char text[TEXT_ROOM];
    (void)snprintf(text, sizeof text, "change %" PRIu64 " is back as change %" PRIu64,
                   self->args.sequence, m->sequence);
    end(ctx, self, WEFT_RESTORE_DONE, text);
    break;
  }
  case STEP_GIVE_UP:
    weft_stop(ctx, WEFT_OK);
    break;
  }
}

static void on_done(weft_ctx *ctx, restore *self, const weft_client_done *m)
{
  if (m->h.corr != self->corr) {
    return;
  }
  self->corr = 0;
  if (m->err == WEFT_OK) {
    on_good(ctx, self, m);
  } else if (self->step == STEP_READY) {
    (void)weft_timer_start(ctx, POLL_MS, 0);
  } else if (self->step == STEP_GIVE_UP) {
    weft_stop(ctx, WEFT_OK);
  } else {
    failed(ctx, self, (weft_err)m->err, m->message.p == NULL ? "" : m->message.p);
  }
}

/* ---- the actor */

static weft_err restore_init(weft_ctx *ctx, void *state, const void *args)
{
  restore *self = state;
  self->args = *(const wefti_restore_args *)args;
  const wefti_restore_args *a = &self->args;
  const size_t len = strlen(a->sources);
  self->sources = weft_alloc(ctx, len + 1);
  if (self->sources == NULL) {
    return WEFT_E_NOMEM;
  }
  memcpy(self->sources, a->sources, len + 1);
  (void)snprintf(self->version, sizeof self->version, "%s", a->version);
  weft_digest_text((weft_digest){ a->digest_hi, a->digest_lo }, self->digest);
  self->args.sources = NULL;
  self->args.version = NULL;
  return weft_timer_start(ctx, 0, 0) == 0 ? WEFT_E_NOMEM : WEFT_OK;
}

static void restore_fini(weft_ctx *ctx, void *state)
{
  weft_free(ctx, ((restore *)state)->sources);
}

static void on_timer(weft_ctx *ctx, restore *self)
{
  if (self->sources[0] == '\0') {
    char text[TEXT_ROOM];
    (void)snprintf(text, sizeof text,
                   "change %" PRIu64 " (version '%.200s') did not come from files alone, "
                   "push the weights again",
                   self->args.sequence, self->version);
    end(ctx, self, WEFT_RESTORE_PUSH_NEEDED, text);
    return;
  }
  if (!self->told) {
    self->told = true;
    say(ctx, self, WEFT_RESTORE_WAITING, "waits for the workers");
  }
  query(ctx, self, STEP_READY, WEFT_QUERY_READY);
}

static weft_err restore_on(weft_ctx *ctx, void *state, const weft_msg *msg)
{
  restore *self = state;
  switch (msg->type) {
  case WEFT_MSG_TIMER:
    on_timer(ctx, self);
    return WEFT_OK;
  case WEFT_MSG_CLIENT_DONE:
    on_done(ctx, self, (const weft_client_done *)msg);
    return WEFT_OK;
  case WEFT_MSG_ASK_FAILED:
    if (msg->corr == self->corr) {
      failed(ctx, self, (weft_err)((const weft_ask_failed_msg *)msg)->reason,
             "the engine did not answer");
    }
    return WEFT_OK;
  case WEFT_MSG_STOP:
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    return WEFT_E_STATE;
  }
}

const weft_actor_class wefti_restore_class = {
  .name = "restore",
  .state_size = sizeof(restore),
  .init = restore_init,
  .fini = restore_fini,
  .on = restore_on,
};
