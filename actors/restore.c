#include "restore.h"

#include "weft/digest.h"
#include "weft/messages.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { POLL_MS = 100, TRIES = 5, VERSION_ROOM = WEFT_VERSION_MAX + 1, TEXT_ROOM = 512 };

typedef enum step {
  STEP_READY, /* are all workers there, and nobody else at it or before us? */
  STEP_START,
  STEP_UPDATE,
  STEP_FINISH,
  STEP_AGAIN,  /* the session is being aborted, for another try */
  STEP_GIVE_UP /* the same, for good */
} step;

typedef struct restored_set {
  wefti_restore_set args;
  char version[VERSION_ROOM];
  char digest[WEFT_DIGEST_TEXT];
  char *sources; /* a copy */
} restored_set;

typedef struct restore {
  weft_actor_id engine;
  restored_set sets[WEFTI_RESTORE_SETS]; /* [count] */
  size_t count, current;
  uint64_t last_sequence; /* visible, unless somebody else has changed something */
  bool keep_version;      /* somebody has: theirs is the newer one */
  bool back, failed;      /* some set */
  char text[TEXT_ROOM];   /* what became of the sets so far */
  size_t at;              /* of the next update_info in the current one's sources */
  step step;
  uint64_t corr;
  unsigned tries;
  bool told; /* that it waits */
  char session[64];
} restore;

static const restored_set *current(const restore *self)
{
  return &self->sets[self->current < self->count ? self->current : self->count - 1];
}

/* ---- telling */

static void say(weft_ctx *ctx, const restore *self, weft_restore_state state,
                const char *text)
{
  weft_log(ctx, state == WEFT_RESTORE_PUSH_NEEDED ? WEFT_LOG_WARN : WEFT_LOG_INFO,
           "restore: %s sequence=%" PRIu64, text, current(self)->args.sequence);
  const weft_restore_note m = { .h.type = WEFT_MSG_RESTORE_NOTE,
                                .state = state,
                                .text = { text, (uint32_t)strlen(text) } };
  (void)weft_send(ctx, self->engine, weft_msg_make(ctx, &m.h));
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
  const char *s = current(self)->sources;
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
  self->corr = weft_ask(ctx, self->engine, weft_msg_make(ctx, tmpl), 0);
}

static weft_str session_of(const restore *self)
{
  return (weft_str){ self->session, (uint32_t)strlen(self->session) };
}

static void ask_ready(weft_ctx *ctx, restore *self)
{
  const weft_client_query m = { .h.type = WEFT_MSG_CLIENT_QUERY,
                                .what = WEFT_QUERY_RANKS,
                                .arg = current(self)->args.draft ? WEFT_STR("draft")
                                                                 : WEFT_STR("main") };
  ask(ctx, self, STEP_READY, &m.h);
}

static void begin(weft_ctx *ctx, restore *self)
{
  /* No init: that would take over a session that somebody has begun this moment. */
  const weft_client_start m = { .h.type = WEFT_MSG_CLIENT_START,
                                .draft = current(self)->args.draft,
                                .restores = true };
  say(ctx, self, WEFT_RESTORE_LOADING,
      current(self)->args.draft ? "loads the draft model's last commit's files"
                                : "loads the last commit's files");
  self->at = 0;
  ask(ctx, self, STEP_START, &m.h);
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
  const restored_set *set = current(self);
  const weft_client_finish m = {
    .h.type = WEFT_MSG_CLIENT_FINISH,
    .session = session_of(self),
    .has_version = set->args.declared && !self->keep_version,
    .version = { set->version, (uint32_t)strlen(set->version) },
    .digest = { set->digest, (uint32_t)strlen(set->digest) },
  };
  ask(ctx, self, STEP_FINISH, &m.h);
}

/* A worker that is away comes back, and a session that somebody was quicker to begin
 * ends; what a file says does not change by waiting. */
static bool may_pass(const restore *self, weft_err err)
{
  return err == WEFT_E_UNAVAIL || err == WEFT_E_DOWN || err == WEFT_E_NOMEM ||
         (self->step == STEP_START && err == WEFT_E_CONFLICT);
}

/* What became of the current set; the next one is tried in any case. */
static void next_set(weft_ctx *ctx, restore *self)
{
  self->current++;
  self->session[0] = '\0';
  self->tries = 0;
  if (self->current == self->count) {
    end(ctx, self,
        self->failed ? WEFT_RESTORE_PUSH_NEEDED
        : self->back ? WEFT_RESTORE_DONE
                     : WEFT_RESTORE_NONE,
        self->text);
    return;
  }
  self->step = STEP_READY;
  (void)weft_timer_start(ctx, 0, 0);
}

static void note(restore *self, const char *text)
{
  const size_t at = strlen(self->text);
  (void)snprintf(self->text + at, sizeof self->text - at, "%s%s%s", at == 0 ? "" : "; ",
                 current(self)->args.draft ? "draft " : "", text);
}

static void abort_session(weft_ctx *ctx, restore *self, step next)
{
  const weft_client_abort m = { .h.type = WEFT_MSG_CLIENT_ABORT,
                                .session = session_of(self),
                                .reason = WEFT_STR("the restore gave up") };
  ask(ctx, self, next, &m.h); /* mostly over already */
}

static void try_again(weft_ctx *ctx, restore *self)
{
  self->step = STEP_READY;
  self->session[0] = '\0';
  (void)weft_timer_start(ctx, POLL_MS, 0);
}

static void failed(weft_ctx *ctx, restore *self, weft_err err, const char *why)
{
  if (self->step == STEP_GIVE_UP) {
    next_set(ctx, self);
    return;
  }
  if (self->step == STEP_READY || self->step == STEP_AGAIN) {
    try_again(ctx, self);
    return;
  }
  if (may_pass(self, err) && ++self->tries < TRIES) {
    if (self->session[0] == '\0') {
      try_again(ctx, self);
    } else {
      abort_session(ctx, self, STEP_AGAIN);
    }
    return;
  }
  char text[TEXT_ROOM];
  (void)snprintf(text, sizeof text,
                 "change %" PRIu64 " cannot be restored, push the weights again: %.*s",
                 current(self)->args.sequence, self->count > 1 ? 150 : 380, why);
  note(self, text);
  self->failed = true;
  if (self->session[0] == '\0') {
    next_set(ctx, self);
  } else {
    abort_session(ctx, self, STEP_GIVE_UP);
  }
}

static void on_good(weft_ctx *ctx, restore *self, const weft_client_done *m)
{
  switch (self->step) {
  case STEP_READY:
    self->keep_version = m->sequence != self->last_sequence;
    begin(ctx, self);
    break;
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
                   current(self)->args.sequence, m->sequence);
    note(self, text);
    self->back = true;
    self->last_sequence = self->keep_version ? 0 : m->sequence;
    next_set(ctx, self);
    break;
  }
  case STEP_AGAIN:
    try_again(ctx, self);
    break;
  case STEP_GIVE_UP:
    next_set(ctx, self);
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
  } else if (self->step == STEP_READY && m->err == WEFT_E_EXISTS) {
    char text[TEXT_ROOM];
    (void)snprintf(text, sizeof text,
                   "change %" PRIu64 " is not needed, others were pushed meanwhile",
                   current(self)->args.sequence);
    note(self, text);
    next_set(ctx, self);
  } else {
    failed(ctx, self, (weft_err)m->err, m->message.p == NULL ? "" : m->message.p);
  }
}

/* ---- the actor */

static weft_err take_set(weft_ctx *ctx, restored_set *to, const wefti_restore_set *from)
{
  to->args = *from;
  const size_t len = strlen(from->sources);
  to->sources = weft_alloc(ctx, len + 1);
  if (to->sources == NULL) {
    return WEFT_E_NOMEM;
  }
  memcpy(to->sources, from->sources, len + 1);
  (void)snprintf(to->version, sizeof to->version, "%s", from->version);
  weft_digest_text((weft_digest){ from->digest_hi, from->digest_lo }, to->digest);
  to->args.sources = NULL;
  to->args.version = NULL;
  return WEFT_OK;
}

static weft_err restore_init(weft_ctx *ctx, void *state, const void *args)
{
  restore *self = state;
  const wefti_restore_args *a = args;
  if (a->count == 0 || a->count > WEFTI_RESTORE_SETS) {
    return WEFT_E_INVAL;
  }
  self->engine = a->engine;
  self->last_sequence = a->last_sequence;
  for (; self->count < a->count; self->count++) {
    const weft_err err = take_set(ctx, &self->sets[self->count], &a->sets[self->count]);
    if (err != WEFT_OK) {
      return err;
    }
  }
  return weft_timer_start(ctx, 0, 0) == 0 ? WEFT_E_NOMEM : WEFT_OK;
}

static void restore_fini(weft_ctx *ctx, void *state)
{
  for (size_t i = 0; i < WEFTI_RESTORE_SETS; i++) {
    weft_free(ctx, ((restore *)state)->sets[i].sources);
  }
}

static void on_timer(weft_ctx *ctx, restore *self)
{
  const restored_set *set = current(self);
  if (set->sources[0] == '\0') {
    char text[TEXT_ROOM];
    (void)snprintf(text, sizeof text,
                   "change %" PRIu64 " (version '%.150s') did not come from files alone, "
                   "push the weights again",
                   set->args.sequence, set->version);
    note(self, text);
    self->failed = true;
    next_set(ctx, self);
    return;
  }
  if (!self->told) {
    self->told = true;
    say(ctx, self, WEFT_RESTORE_WAITING, "waits for the workers");
  }
  ask_ready(ctx, self);
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
