/* A journal whose records outlive its engine, and a link that passes questions on unless
 * the test has other plans. */
#include "fleet_parties.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a journal: records that outlive the engine */

void fleet_record_free(weft_journal_record *r)
{
  free((char *)(uintptr_t)r->version);
  free((char *)(uintptr_t)r->operation);
  free((char *)(uintptr_t)r->text);
  free((char *)(uintptr_t)r->fleet);
}

static char *text_of(weft_str s)
{
  char *copy = calloc(1, (size_t)s.len + 1);
  if (copy == NULL) {
    abort();
  }
  if (s.len > 0) {
    memcpy(copy, s.p, s.len);
  }
  return copy;
}

static void journal_keep(fleet_engine *e, const weft_journal_append *m)
{
  fleet_journal *j = &e->journal;
  const bool commit =
      m->kind == WEFT_RECORD_COMMIT_WEIGHTS || m->kind == WEFT_RECORD_COMMIT_LABEL;
  for (unsigned i = 0; i < j->count && commit; i++) {
    if (j->records[i].sequence == m->sequence) {
      return; /* asked again: it is there */
    }
  }
  if (j->count == FLEET_RECORDS_MAX) {
    fleet_break(e->w, "the test's journal is full");
    return;
  }
  j->records[j->count] = (weft_journal_record){ .kind = (weft_journal_kind)m->kind,
                                                .declared = m->declared != 0,
                                                .boot_id = e->boot,
                                                .epoch = m->epoch,
                                                .sequence = m->sequence,
                                                .weights_sequence = m->weights_sequence,
                                                .digest_hi = m->digest_hi,
                                                .digest_lo = m->digest_lo,
                                                .at_ms = m->at_ms,
                                                .tensors = m->tensors,
                                                .bytes = m->bytes,
                                                .version = text_of(m->version),
                                                .operation = text_of(m->operation),
                                                .text = text_of(m->text),
                                                .fleet = text_of(m->fleet),
                                                .fleet_boot = m->fleet_boot,
                                                .fleet_epoch = m->fleet_epoch,
                                                .fleet_sequence = m->fleet_sequence };
  j->durable[j->count++] = false;
}

static void journal_answer(weft_ctx *ctx, fleet_engine *e, weft_return to)
{
  fleet_journal *j = &e->journal;
  j->fail_once = j->fail_once || j->fails;
  const weft_journal_done done = { .h.type = WEFT_MSG_JOURNAL_DONE,
                                   .err = j->fail_once ? WEFT_E_SYS : WEFT_OK,
                                   .text = WEFT_STR("fsync failed") };
  for (unsigned i = 0; i < j->count && !j->fail_once; i++) {
    j->durable[i] = true;
  }
  if (j->fail_once && j->count > 0 && !j->durable[j->count - 1]) {
    fleet_record_free(&j->records[--j->count]); /* the question's: it does not count */
  }
  j->fail_once = false;
  (void)weft_reply(ctx, to, weft_msg_make(ctx, &done.h));
}

static void journal_hold(fleet_engine *e, weft_return to)
{
  fleet_journal *j = &e->journal;
  if (j->held_count == FLEET_HELD_MAX) {
    fleet_break(e->w, "the test's journal holds too many questions");
    return;
  }
  j->held[j->held_count++] = to;
}

static weft_err journal_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  fleet_engine *e = *(fleet_engine *const *)self;
  if (msg->type == WEFT_MSG_JOURNAL_APPEND) {
    journal_keep(e, (const weft_journal_append *)msg);
    if (msg->corr != 0 && e->journal.hang) {
      journal_hold(e, weft_return_of(msg));
    } else if (msg->corr != 0) {
      journal_answer(ctx, e, weft_return_of(msg));
    }
  } else if (msg->type == WEFT_MSG_CLIENT_GONE) { /* the test lets go of it */
    for (unsigned i = 0; i < e->journal.held_count; i++) {
      journal_answer(ctx, e, e->journal.held[i]);
    }
    e->journal.held_count = 0;
  }
  return WEFT_OK;
}

weft_err fleet_take_pointer(weft_ctx *ctx, void *self, const void *args)
{
  (void)ctx;
  *(void **)self = *(void *const *)args;
  return WEFT_OK;
}

const weft_actor_class fleet_journal_class = { "journal", sizeof(void *),
                                               fleet_take_pointer, NULL, journal_on };

/* What a restart finds: what was said to be durable, or all that was written. */
void fleet_journal_crash(fleet_journal *j, bool all)
{
  unsigned kept = 0;
  for (unsigned i = 0; i < j->count; i++) {
    if (j->durable[i] || all) {
      j->records[kept] = j->records[i];
      j->durable[kept++] = true;
    } else {
      fleet_record_free(&j->records[i]);
    }
  }
  j->count = kept;
  j->held_count = 0;
}

/* ---- a link: questions go through, unless the test has other plans */

enum { LINK_OPEN_MAX = 64, LATE_ADOPTION_MS = 8000 };

typedef struct link_self {
  fleet_engine *e;
  struct {
    weft_return back;
    uint64_t corr;
    uint16_t type;
  } open[LINK_OPEN_MAX];
  struct {
    weft_msg *msg; /* on its way there or back; NULL = free */
    weft_return back;
  } late[LINK_OPEN_MAX];
} link_self;

/* true: msg comes later. */
static bool link_slow(weft_ctx *ctx, link_self *s, const weft_msg *msg, weft_return back)
{
  const uint32_t most = s->e->slow_ms;
  for (unsigned i = 0; most != 0 && i < LINK_OPEN_MAX; i++) {
    if (s->late[i].msg == NULL) {
      s->late[i].msg = weft_msg_dup(weft_messages(), msg);
      s->late[i].back = back;
      return weft_timer_start(ctx, 1 + weft_random(ctx) % most, i) != 0;
    }
  }
  return false;
}

static void link_pass(weft_ctx *ctx, link_self *s, const weft_msg *msg, weft_return back)
{
  for (unsigned i = 0; i < LINK_OPEN_MAX; i++) {
    if (s->open[i].type == 0) {
      weft_msg *copy = weft_msg_make(ctx, msg);
      copy->corr = 0;
      copy->due_ms = 0;
      s->open[i].back = back;
      s->open[i].type = msg->type;
      s->open[i].corr = weft_ask(ctx, s->e->actor, copy, 60000);
      return;
    }
  }
  fleet_break(s->e->w, "the test's link is full");
}

static void link_question(weft_ctx *ctx, link_self *s, const weft_msg *msg)
{
  fleet_engine *e = s->e;
  const uint16_t type = msg->type;
  if (e->cut || !e->alive) {
    return;
  }
  if (type == e->coordinator_crash) {
    e->coordinator_crash = 0;
    fleet_to_kill(e->w, FLEET_COORDINATOR);
  }
  if (type == e->lose_question) {
    e->lose_question = 0;
    return;
  }
  if (type == e->crash_before) {
    e->crash_before = 0;
    fleet_to_kill(e->w, e->index);
    return;
  }
  if (type == e->double_question) {
    e->double_question = 0;
    link_pass(ctx, s, msg, (weft_return){ 0 });
  }
  if (type == WEFT_MSG_W_ADOPT && e->w->late_frames && weft_random(ctx) % 4 == 0) {
    /* So late that its coordinator may have died. */
    fleet_stray(e->w, e->index, msg,
                weft_now_ms(ctx) + weft_random(ctx) % LATE_ADOPTION_MS);
    return;
  }
  if (!link_slow(ctx, s, msg, weft_return_of(msg))) {
    link_pass(ctx, s, msg, weft_return_of(msg));
  }
}

static void link_late(weft_ctx *ctx, link_self *s, uint64_t i)
{
  weft_msg *msg = s->late[i].msg;
  s->late[i].msg = NULL;
  if (msg == NULL) {
    return;
  }
  if ((msg->flags & WEFT_MSG_F_REPLY) != 0) {
    if (!s->e->cut) {
      (void)weft_reply(ctx, s->late[i].back, weft_msg_make(ctx, msg));
    }
  } else if (!s->e->cut && s->e->alive) {
    link_pass(ctx, s, msg, s->late[i].back);
  }
  weft_msg_drop(weft_messages(), msg);
}

static void link_fini(weft_ctx *ctx, void *self)
{
  link_self *s = self;
  const fleet_engine *e = s->e;
  for (unsigned i = 0; i < LINK_OPEN_MAX; i++) {
    const weft_msg *msg = s->late[i].msg;
    if (msg != NULL && (msg->flags & WEFT_MSG_F_REPLY) == 0 && e->w->late_frames) {
      fleet_stray(e->w, e->index, msg,
                  weft_now_ms(ctx) + 1 + weft_random(ctx) % (e->slow_ms + 1));
    }
    if (msg != NULL) {
      weft_msg_drop(weft_messages(), s->late[i].msg);
    }
  }
}

static void link_answer(weft_ctx *ctx, link_self *s, const weft_msg *msg)
{
  fleet_engine *e = s->e;
  for (unsigned i = 0; i < LINK_OPEN_MAX; i++) {
    if (s->open[i].type == 0 || s->open[i].corr != msg->corr) {
      continue;
    }
    const uint16_t type = s->open[i].type;
    const weft_return back = s->open[i].back;
    s->open[i].type = 0;
    if (type == e->crash_after) {
      e->crash_after = 0;
      fleet_to_kill(e->w, e->index);
      return;
    }
    if (e->cut || msg->type == WEFT_MSG_ASK_FAILED) {
      return;
    }
    if (type == e->lose_answer) {
      e->lose_answer = 0;
      return;
    }
    if (!link_slow(ctx, s, msg, back)) {
      (void)weft_reply(ctx, back, weft_msg_make(ctx, msg));
    }
    return;
  }
}

static weft_err link_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  link_self *s = self;
  if (msg->type == WEFT_MSG_STOP) {
    weft_stop(ctx, WEFT_OK);
  } else if (msg->type == WEFT_MSG_ASK_FAILED || (msg->flags & WEFT_MSG_F_REPLY) != 0) {
    link_answer(ctx, s, msg);
  } else if (msg->type == WEFT_MSG_TIMER) {
    link_late(ctx, s, ((const weft_timer_msg *)msg)->tag);
  } else if (msg->corr != 0) {
    link_question(ctx, s, msg);
  }
  return WEFT_OK;
}

const weft_actor_class fleet_link_class = { "link", sizeof(link_self), fleet_take_pointer,
                                            link_fini, link_on };
