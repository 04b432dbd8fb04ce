#define _GNU_SOURCE /* getrandom, CLOCK_BOOTTIME */
#include "scheduler.h"
#include "weft/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { LOG_LINE = 1024 };

/* ---- memory and messages */

void *wefti_alloc(wefti_sched *s, size_t size)
{
  if (s->hooks != NULL && s->hooks->alloc_fails(s->hooks->arg)) {
    return NULL;
  }
  return calloc(1, size == 0 ? 1 : size);
}

void *weft_alloc(weft_ctx *ctx, size_t size)
{
  return wefti_alloc(ctx->sched, size);
}

void weft_free(weft_ctx *ctx, void *p)
{
  (void)ctx;
  free(p);
}

static inline weft_msg *get_raw(wefti_sched *s, size_t size)
{
  if (WEFTI_UNLIKELY(s->hooks != NULL) && s->hooks->alloc_fails(s->hooks->arg)) {
    return NULL;
  }
  return wefti_pool_get(&s->pool, size);
}

weft_msg *wefti_msg_get(wefti_sched *s, uint16_t type, size_t size)
{
  weft_msg *m = get_raw(s, size);
  if (m != NULL) {
    const uint32_t home = m->home;
    if (WEFTI_LIKELY(size <= WEFTI_POOL_MIN)) {
      memset(m, 0, WEFTI_POOL_MIN);
    } else {
      memset(m, 0, size);
    }
    m->home = home;
    m->type = type;
  }
  return m;
}

weft_msg *weft_msg_new(weft_ctx *ctx, uint16_t type, size_t size)
{
  return size < sizeof(weft_msg) ? NULL : wefti_msg_get(ctx->sched, type, size);
}

weft_msg *wefti_msg_copy(wefti_sched *s, const weft_msg *tmpl)
{
  size_t size;
  if (wefti_msg_packed_size(s->catalogue, tmpl, &size) != WEFT_OK) {
    return NULL;
  }
  weft_msg *m = get_raw(s, size);
  if (m != NULL) {
    wefti_msg_pack(s->catalogue, tmpl, m);
  }
  return m;
}

weft_msg *weft_msg_make(weft_ctx *ctx, const weft_msg *tmpl)
{
  return wefti_msg_copy(ctx->sched, tmpl);
}

weft_err weft_send(weft_ctx *ctx, weft_actor_id to, weft_msg *msg)
{
  if (WEFTI_UNLIKELY(msg == NULL)) {
    return WEFT_E_NOMEM;
  }
  if (WEFTI_UNLIKELY((ctx->flags & WEFTI_A_MUTED) != 0)) {
    wefti_msg_free(ctx->sched, msg);
    return WEFT_E_DOWN;
  }
  msg->from = atomic_load_explicit(&ctx->id, memory_order_relaxed);
  msg->to = to;
  msg->corr = 0;
  msg->flags &= WEFT_MSG_F_RESERVED | WEFT_MSG_F_DEEP;
  return wefti_route(ctx->sched, msg);
}

/* ---- who and where */

weft_actor_id weft_self(weft_ctx *ctx)
{
  return atomic_load_explicit(&ctx->id, memory_order_relaxed);
}

weft_loop *weft_ctx_loop(weft_ctx *ctx)
{
  return ctx->sched->loop;
}

weft_runtime *weft_ctx_runtime(weft_ctx *ctx)
{
  return ctx->sched->rt;
}

/* ---- time */

static uint64_t clock_ns(clockid_t which)
{
  struct timespec ts = { 0 };
  (void)clock_gettime(which, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t weft_now_ms(weft_ctx *ctx)
{
  return wefti_now_ms(ctx->sched);
}

uint64_t weft_now_ns(weft_ctx *ctx)
{
  const wefti_sched *s = ctx->sched;
  return s->fake_clock ? wefti_now_ms(s) * 1000000u : weft_clock_ns();
}

uint64_t weft_boottime_ns(weft_ctx *ctx)
{
  const wefti_sched *s = ctx->sched;
  return s->fake_clock ? wefti_now_ms(s) * 1000000u : clock_ns(CLOCK_BOOTTIME);
}

uint64_t weft_wall_ms(weft_ctx *ctx)
{
  const wefti_sched *s = ctx->sched;
  return s->fake_clock ? s->wall_base_ms + wefti_now_ms(s)
                       : clock_ns(CLOCK_REALTIME) / 1000000u;
}

/* ---- randomness */

uint64_t weft_random(weft_ctx *ctx)
{
  wefti_sched *s = ctx->sched;
  if (s->hooks != NULL) {
    return s->hooks->random(s->hooks->arg);
  }
  if (s->random_left == 0) {
    const ssize_t want = (ssize_t)sizeof s->random_pool;
    ssize_t got;
    do {
      got = getrandom(s->random_pool, (size_t)want, 0);
    } while (got < 0 && errno == EINTR);
    if (got != want) { /* cannot be on a kernel that we support; tokens depend on it */
      (void)fprintf(stderr, "weft: the kernel gives no random bytes\n");
      abort();
    }
    s->random_left = (unsigned)(sizeof s->random_pool / sizeof s->random_pool[0]);
  }
  const uint64_t r = s->random_pool[--s->random_left];
  s->random_pool[s->random_left] = 0;
  return r;
}

/* ---- log */

static void WEFT_PRINTF(4, 0) log_line(wefti_sched *s, const char *who,
                                       weft_log_level level, const char *fmt, va_list ap)
{
  char line[LOG_LINE];
  if (s->rt != NULL && !wefti_runtime_logs(s->rt, level)) {
    return;
  }
  if (s->rt == NULL && s->hooks == NULL) {
    return;
  }
  if (vsnprintf(line, sizeof line, fmt, ap) < 0) {
    return;
  }
  for (char *p = line; *p != '\0'; p++) {
    if ((unsigned char)*p < ' ') {
      *p = ' '; /* one line, whatever a peer's text holds */
    }
  }
  if (s->rt != NULL) {
    wefti_runtime_log(s->rt, level, who, line);
  } else {
    s->hooks->log(s->hooks->arg, who, level, line);
  }
}

void wefti_logf(wefti_sched *s, const char *who, weft_log_level level, const char *fmt,
                ...)
{
  va_list ap;
  va_start(ap, fmt);
  log_line(s, who, level, fmt, ap);
  va_end(ap);
}

void weft_log(weft_ctx *ctx, weft_log_level level, const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  log_line(ctx->sched, ctx->name, level, fmt, ap);
  va_end(ap);
}
