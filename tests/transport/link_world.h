/* link_world.h -- a small catalogue and two actors for the tests of links and ports: an
 * echo, and an asker that keeps many questions under way.  Not a test itself. */
#ifndef WEFT_TEST_LINK_WORLD_H
#define WEFT_TEST_LINK_WORLD_H

#include "weft/link.h"
#include "weft/runtime.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  TYPE_PING = 1,
  TYPE_PONG,
  TYPE_GO,
  TYPE_DONE,
  TYPE_SECRET,
  TYPE_FORGED,
  TYPE_COUNT_
};
enum { ROLE_CLIENT, ROLE_SERVER, ROLE_OTHER };

typedef enum ping_mode {
  MODE_ECHO,
  MODE_SILENT, /* never answered */
  MODE_QUIT,   /* the echo ends without an answer */
  MODE_HUGE,   /* the answer has 2 MiB */
  MODE_DIE,    /* SIGKILL to the whole process */
  MODE_SPEAK,  /* the answer is a message of another role */
  MODE_RELAY   /* asked on of the echo's own link, if it has one */
} ping_mode;

typedef struct ping {
  weft_msg h;
  uint32_t mode;
  uint64_t n;
  weft_str text;
  weft_buf *data;
} ping;
/* count questions of the link, die_at (0 = never) of them MODE_DIE. */
typedef struct go {
  weft_msg h;
  uint64_t link, count, die_at;
  uint32_t mode, timeout_ms;
} go;
typedef struct done {
  weft_msg h;
  uint64_t ok, down, timeout, other, wrong;
} done;

#define FIELD(s, k, m)                                                                   \
  {                                                                                      \
    .name = #m, .kind = WEFT_FIELD_##k, .offset = offsetof(s, m)                         \
  }
static const weft_field ping_fields[] = { FIELD(ping, u32, mode), FIELD(ping, u64, n),
                                          FIELD(ping, str, text),
                                          FIELD(ping, buf, data) };
static const weft_field go_fields[] = { FIELD(go, u64, link), FIELD(go, u64, count),
                                        FIELD(go, u64, die_at), FIELD(go, u32, mode),
                                        FIELD(go, u32, timeout_ms) };
static const weft_field done_fields[] = { FIELD(done, u64, ok), FIELD(done, u64, down),
                                          FIELD(done, u64, timeout),
                                          FIELD(done, u64, other),
                                          FIELD(done, u64, wrong) };
static const weft_msg_desc world_descs[TYPE_COUNT_] = {
  [TYPE_PING] = { "ping", sizeof(ping), ping_fields, 4, ROLE_CLIENT, ROLE_SERVER,
                  TYPE_PONG },
  [TYPE_PONG] = { "pong", sizeof(ping), ping_fields, 4, ROLE_SERVER, ROLE_CLIENT, 0 },
  [TYPE_GO] = { "go", sizeof(go), go_fields, 5, ROLE_OTHER, ROLE_OTHER, TYPE_DONE },
  [TYPE_DONE] = { "done", sizeof(done), done_fields, 5, ROLE_OTHER, ROLE_OTHER, 0 },
  [TYPE_SECRET] = { "secret", sizeof(ping), ping_fields, 4, ROLE_OTHER, ROLE_OTHER, 0 },
  [TYPE_FORGED] = { "forged", sizeof(ping), ping_fields, 4, ROLE_OTHER, ROLE_SERVER, 0 },
};
static const weft_catalogue world_catalogue = { world_descs, TYPE_COUNT_ };

/* ---- echo */

typedef struct echo_args {
  const char *link_url; /* its own link, for MODE_RELAY; NULL = none */
} echo_args;

typedef struct relayed {
  uint64_t corr;
  weft_return to;
} relayed;

typedef struct echo {
  weft_actor_id link;
  uint64_t seen, plain;
  relayed relays[128];
} echo;

static weft_err echo_init(weft_ctx *ctx, void *self, const void *args)
{
  echo *e = self;
  const echo_args *a = args;
  if (a == NULL || a->link_url == NULL) {
    return WEFT_OK;
  }
  const weft_link_opts o = { .size = sizeof o, .url = a->link_url };
  return weft_link_spawn(ctx, &o, &e->link);
}

static weft_err echo_relay(weft_ctx *ctx, echo *e, const ping *p)
{
  ping on = *p;
  on.mode = MODE_ECHO;
  for (size_t i = 0; i < sizeof e->relays / sizeof e->relays[0]; i++) {
    if (e->relays[i].corr == 0) {
      e->relays[i].to = weft_return_of(&p->h);
      e->relays[i].corr = weft_ask(ctx, e->link, weft_msg_make(ctx, &on.h), 5000);
      return WEFT_OK;
    }
  }
  return WEFT_E_FULL;
}

static weft_err echo_answered(weft_ctx *ctx, echo *e, const weft_msg *msg)
{
  for (size_t i = 0; i < sizeof e->relays / sizeof e->relays[0]; i++) {
    if (e->relays[i].corr == msg->corr && msg->type == TYPE_PONG) {
      e->relays[i].corr = 0;
      return weft_reply(ctx, e->relays[i].to, weft_msg_make(ctx, msg));
    }
  }
  return WEFT_OK;
}

static weft_err echo_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  echo *e = self;
  if (msg->type == TYPE_PONG) {
    return echo_answered(ctx, e, msg);
  }
  if (msg->type != TYPE_PING) {
    if (msg->type == WEFT_MSG_STOP) {
      weft_stop(ctx, WEFT_OK);
    }
    return WEFT_OK;
  }
  const ping *p = (const ping *)(const void *)msg;
  e->seen++;
  if (msg->corr == 0) {
    e->plain++;
    return WEFT_OK;
  }
  if (p->mode == MODE_SILENT) {
    return WEFT_OK;
  }
  if (p->mode == MODE_QUIT) {
    return WEFT_E_FAILED;
  }
  if (p->mode == MODE_DIE) {
    (void)kill(getpid(), SIGKILL);
  }
  if (p->mode == MODE_RELAY) {
    return echo_relay(ctx, e, p);
  }
  ping answer = *p;
  answer.h = (weft_msg){ .type = p->mode == MODE_SPEAK ? TYPE_FORGED : TYPE_PONG };
  answer.n = p->n == UINT64_MAX ? e->plain : p->n + 1;
  if (p->mode == MODE_HUGE) {
    answer.data = weft_buf_create(NULL, 2u << 20);
    if (answer.data != NULL) {
      memset(answer.data->data, 7, answer.data->len);
    }
  }
  const weft_err err =
      weft_reply(ctx, weft_return_of(msg), weft_msg_make(ctx, &answer.h));
  if (p->mode == MODE_HUGE) {
    weft_buf_unref(answer.data);
  }
  return err;
}

static const weft_actor_class echo_class = {
  .name = "echo", .state_size = sizeof(echo), .init = echo_init, .on = echo_on
};

/* ---- asker */

enum { ASKER_WINDOW = 64 };

typedef struct asker {
  weft_return to;
  go job;
  uint64_t sent, ended;
  done sum;
} asker;

static void asker_fill(weft_ctx *ctx, asker *a)
{
  while (a->sent < a->job.count && a->sent - a->ended < ASKER_WINDOW) {
    a->sent++;
    const ping p = { .h = { .type = TYPE_PING },
                     .mode = a->sent == a->job.die_at ? MODE_DIE : a->job.mode,
                     .n = 7,
                     .text = WEFT_STR("text") };
    (void)weft_ask(ctx, a->job.link, weft_msg_make(ctx, &p.h), a->job.timeout_ms);
  }
}

static weft_err asker_on(weft_ctx *ctx, void *self, const weft_msg *msg)
{
  asker *a = self;
  switch (msg->type) {
  case TYPE_GO:
    *a = (asker){ .to = weft_return_of(msg), .job = *(const go *)(const void *)msg };
    a->sum.h.type = TYPE_DONE;
    break;
  case TYPE_PONG:
    a->ended++;
    a->sum.ok++;
    a->sum.wrong += ((const ping *)(const void *)msg)->n != 8;
    break;
  case WEFT_MSG_ASK_FAILED: {
    const uint32_t why = ((const weft_ask_failed_msg *)(const void *)msg)->reason;
    a->ended++;
    a->sum.down += why == WEFT_E_DOWN;
    a->sum.timeout += why == WEFT_E_TIMEOUT;
    a->sum.other += why != WEFT_E_DOWN && why != WEFT_E_TIMEOUT;
    break;
  }
  case WEFT_MSG_STOP:
    weft_stop(ctx, WEFT_OK);
    return WEFT_OK;
  default:
    return WEFT_OK;
  }
  asker_fill(ctx, a);
  if (a->job.count > 0 && a->ended == a->job.count) {
    a->job.count = 0;
    return weft_reply(ctx, a->to, weft_msg_make(ctx, &a->sum.h));
  }
  return WEFT_OK;
}

static const weft_actor_class asker_class __attribute__((
    unused)) = { .name = "asker", .state_size = sizeof(asker), .on = asker_on };

/* ---- from the test's thread */

/* One question of any actor; *answer (may be NULL) is the PONG, the caller's. */
__attribute__((unused)) static weft_err world_ask(weft_runtime *rt, weft_actor_id to,
                                                  const ping *p, uint64_t timeout_ms,
                                                  weft_msg **answer)
{
  weft_msg *got = NULL;
  weft_err err =
      weft_call(rt, to, weft_msg_dup(&world_catalogue, &p->h), timeout_ms, &got);
  if (err == WEFT_OK && got->type == WEFT_MSG_ASK_FAILED) {
    err = (weft_err)((const weft_ask_failed_msg *)(const void *)got)->reason;
  }
  if (err == WEFT_OK && answer != NULL) {
    *answer = got;
    return err;
  }
  weft_msg_drop(&world_catalogue, got);
  return err;
}

__attribute__((unused)) static weft_err world_ping(weft_runtime *rt, weft_actor_id to,
                                                   uint32_t mode, uint64_t n,
                                                   uint64_t timeout_ms, uint64_t *out)
{
  const ping p = { .h = { .type = TYPE_PING }, .mode = mode, .n = n };
  weft_msg *answer = NULL;
  const weft_err err = world_ask(rt, to, &p, timeout_ms, &answer);
  if (err == WEFT_OK) {
    *out = ((const ping *)(const void *)answer)->n;
    weft_msg_drop(&world_catalogue, answer);
  }
  return err;
}

#endif /* WEFT_TEST_LINK_WORLD_H */
