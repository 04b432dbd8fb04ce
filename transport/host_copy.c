#define _GNU_SOURCE /* gettid, setpriority per thread */
#include "host_priv.h"
#include "weft/clock.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
  COPIER_NICE = 10,
  REPORT_MS = 20,
  BOUNCE_MIN = 1 << 20,
  SMALL_MAX = 1 << 14 /* bytes of a tensor that is read together with its neighbours */
};

typedef struct copier {
  wefti_host_job *job;
  weft_hasher *hasher;
  uint8_t *block; /* [WEFTI_HOST_BLOCK], 64-byte aligned */
  bool caller;    /* on the thread that called receive: reports as it goes */
  uint64_t reported_ms;
} copier;

static weft_err fail(wefti_host_job *job, weft_err err, const char *text)
{
  (void)pthread_mutex_lock(&job->lock);
  if (job->why.err == WEFT_OK) {
    (void)weft_whyf(&job->why, err, "%s", text);
  }
  (void)pthread_mutex_unlock(&job->lock);
  atomic_store_explicit(&job->stop, true, memory_order_relaxed);
  return err;
}

static void report(wefti_host_job *job)
{
  if (job->progress != NULL) {
    job->progress(job->progress_arg,
                  atomic_load_explicit(&job->bytes, memory_order_relaxed));
  }
}

void wefti_host_before_write(wefti_host_job *job, bool locked)
{
  const weft_plan *plan = &job->plan->pub;
  if (atomic_load_explicit(&job->writes, memory_order_acquire)) {
    return;
  }
  if (locked) {
    (void)pthread_mutex_lock(&job->lock);
  }
  if (!atomic_load_explicit(&job->writes, memory_order_relaxed)) {
    if (plan->on_write != NULL) {
      plan->on_write(plan->on_write_arg);
    }
    atomic_store_explicit(&job->writes, true, memory_order_release);
  }
  if (locked) {
    (void)pthread_mutex_unlock(&job->lock);
  }
}

static weft_err early_end(wefti_host_job *job, size_t i, uint64_t got)
{
  const weft_plan_tensor *t = &job->plan->tensors[i];
  weft_why why = { 0 };
  (void)weft_whyf(&why, WEFT_E_TRUNCATED,
                  "%s: ended after %" PRIu64 " of %" PRIu64
                  " bytes of '%s' (truncated while read)",
                  job->plan->label, got, t->bytes, t->name);
  return fail(job, WEFT_E_TRUNCATED, why.text);
}

static weft_err unreadable(wefti_host_job *job, size_t i, int error)
{
  weft_why why = { 0 };
  (void)weft_whyf(&why, WEFT_E_SYS, "%s: reading '%s' failed (errno %d)",
                  job->plan->label, job->plan->tensors[i].name, error);
  return fail(job, WEFT_E_SYS, why.text);
}

static void report_now_and_then(copier *c)
{
  if (c->caller && weft_clock_ms() - c->reported_ms >= REPORT_MS) {
    report(c->job);
    c->reported_ms = weft_clock_ms();
  }
}

/* Large tensors are read into one block that stays in cache, hashed there and written
 * past the cache: the kernel's copy into memory that is not in cache has to read it
 * first. Measured about
 * 8 % faster than reading in place (CPU time, 4 kB pages). */
static void write_past_cache(uint8_t *dst, const uint8_t *src, size_t n)
{
#ifdef __SSE2__
  size_t i = 0;
  if ((uintptr_t)dst % sizeof(__m128i) == 0) {
    for (; n - i >= 4 * sizeof(__m128i); i += 4 * sizeof(__m128i)) {
      for (size_t k = 0; k < 4; k++) {
        const size_t at = i + k * sizeof(__m128i);
        _mm_stream_si128((__m128i *)(void *)(dst + at),
                         _mm_loadu_si128((const __m128i *)(const void *)(src + at)));
      }
    }
    _mm_sfence(); /* before anybody is told that the bytes are there */
  }
  memcpy(dst + i, src + i, n - i);
#else
  memcpy(dst, src, n);
#endif
}

static weft_err copy_tensor(copier *c, size_t i)
{
  wefti_host_job *job = c->job;
  weft_hasher *hasher = c->hasher;
  const weft_plan_tensor *t = &job->plan->tensors[i];
  uint8_t *dst = job->dst[i];
  const bool bounce = t->bytes >= BOUNCE_MIN;
  uint64_t got = 0;
  weft_hasher_reset(hasher);
  while (got < t->bytes) {
    if (wefti_cancelled(job->cancel)) {
      return fail(job, WEFT_E_CANCELLED, "cancelled");
    }
    if (atomic_load_explicit(&job->stop, memory_order_relaxed)) {
      return WEFT_E_CANCELLED; /* another thread failed and has said why */
    }
    const uint64_t left = t->bytes - got;
    const size_t want = left < WEFTI_HOST_BLOCK ? (size_t)left : WEFTI_HOST_BLOCK;
    const bool direct =
        !bounce && atomic_load_explicit(&job->writes, memory_order_acquire);
    uint8_t *to = direct ? dst + got : c->block;
    const ssize_t n = pread(job->plan->fd, to, want, (off_t)(job->plan->at[i] + got));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
      continue;
    }
    if (n < 0) {
      return unreadable(job, i, errno);
    }
    if (n == 0) {
      return early_end(job, i, got);
    }
    weft_hasher_update(hasher, to, (size_t)n);
    if (!direct) {
      wefti_host_before_write(job, true);
      write_past_cache(dst + got, to, (size_t)n);
    }
    got += (uint64_t)n;
    atomic_fetch_add_explicit(&job->bytes, (uint64_t)n, memory_order_relaxed);
    report_now_and_then(c);
  }
  job->digests[i] = weft_hasher_value(hasher);
  return WEFT_OK;
}

/* ---- small tensors: a call for each would cost more than its bytes */

/* How many from the i-th on lie back to back, are small and fit a block; at least 1. */
static size_t run_length(const wefti_host_plan *plan, size_t i)
{
  uint64_t bytes = 0;
  size_t n = 0;
  while (i + n < plan->pub.count) {
    const weft_plan_tensor *t = &plan->tensors[i + n];
    if (t->bytes > SMALL_MAX || t->bytes > WEFTI_HOST_BLOCK - bytes ||
        plan->at[i + n] - plan->at[i] != bytes) {
      break;
    }
    bytes += t->bytes;
    n++;
  }
  return n > 0 ? n : 1;
}

/* Reads the run's bytes into the block. */
static weft_err read_run(copier *c, size_t i, size_t n, size_t bytes)
{
  wefti_host_job *job = c->job;
  size_t got = 0;
  while (got < bytes) {
    if (wefti_cancelled(job->cancel)) {
      return fail(job, WEFT_E_CANCELLED, "cancelled");
    }
    if (atomic_load_explicit(&job->stop, memory_order_relaxed)) {
      return WEFT_E_CANCELLED; /* another thread failed and has said why */
    }
    const ssize_t r = pread(job->plan->fd, c->block + got, bytes - got,
                            (off_t)(job->plan->at[i] + got));
    if (r > 0) {
      got += (size_t)r;
    } else if (r == 0 || (errno != EINTR && errno != EAGAIN)) {
      const int e = errno;
      while (n > 1 && got >= job->plan->tensors[i].bytes) { /* whose byte is missing */
        got -= job->plan->tensors[i].bytes;
        i++;
        n--;
      }
      return r == 0 ? early_end(job, i, got) : unreadable(job, i, e);
    }
  }
  return WEFT_OK;
}

static weft_err copy_run(copier *c, size_t i, size_t n)
{
  wefti_host_job *job = c->job;
  const weft_plan_tensor *t = &job->plan->tensors[i];
  size_t bytes = 0;
  for (size_t k = 0; k < n; k++) {
    bytes += t[k].bytes; /* at most a block */
  }
  const weft_err err = read_run(c, i, n, bytes);
  const uint8_t *from = c->block;
  for (size_t k = 0; err == WEFT_OK && k < n; k++) {
    if (t[k].bytes > 0) {
      wefti_host_before_write(job, true);
      memcpy(job->dst[i + k], from, t[k].bytes);
    }
    job->digests[i + k] = weft_digest_of(from, t[k].bytes);
    from += t[k].bytes;
  }
  if (err == WEFT_OK) {
    atomic_fetch_add_explicit(&job->bytes, bytes, memory_order_relaxed);
    report_now_and_then(c);
  }
  return err;
}

/* Takes the next tensors that nobody has begun; how many, 0 = none are left. */
static size_t take_next(wefti_host_job *job, size_t *i)
{
  size_t n;
  *i = atomic_load_explicit(&job->next, memory_order_relaxed);
  do {
    if (*i >= job->plan->pub.count) {
      return 0;
    }
    n = run_length(job->plan, *i);
  } while (!atomic_compare_exchange_weak_explicit(
      &job->next, i, *i + n, memory_order_relaxed, memory_order_relaxed));
  return n;
}

static void copy_all(wefti_host_job *job, bool caller)
{
  copier c = { .job = job,
               .hasher = weft_hasher_create(),
               .block = aligned_alloc(64, WEFTI_HOST_BLOCK),
               .caller = caller,
               .reported_ms = weft_clock_ms() };
  const bool ready = c.hasher != NULL && c.block != NULL;
  if (!ready) {
    (void)fail(job, WEFT_E_NOMEM, "host backend: no memory for a block");
  }
  size_t i;
  size_t n = ready ? take_next(job, &i) : 0;
  while (n > 0 && (n == 1 ? copy_tensor(&c, i) : copy_run(&c, i, n)) == WEFT_OK) {
    n = take_next(job, &i);
  }
  free(c.block);
  weft_hasher_destroy(c.hasher);
}

static void *copier_main(void *arg)
{
  wefti_host_job *job = arg;
  (void)setpriority(PRIO_PROCESS, (id_t)gettid(), COPIER_NICE); /* loops go first */
  copy_all(job, false);
  (void)pthread_mutex_lock(&job->lock);
  job->running--;
  (void)pthread_cond_signal(&job->ended);
  (void)pthread_mutex_unlock(&job->lock);
  return NULL;
}

static void wait_for_copiers(wefti_host_job *job)
{
  (void)pthread_mutex_lock(&job->lock);
  while (job->running > 0) {
    const uint64_t until_ms = weft_clock_ms() + WEFTI_POLL_MS;
    (void)weft_cond_wait_until(&job->ended, &job->lock, until_ms);
    (void)pthread_mutex_unlock(&job->lock);
    report(job);
    (void)pthread_mutex_lock(&job->lock);
  }
  (void)pthread_mutex_unlock(&job->lock);
}

static void copy_with_threads(wefti_host_job *job, unsigned threads)
{
  pthread_t ids[64];
  unsigned started = 0;
  sigset_t all;
  sigset_t before;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are the loops' business */
  job->running = threads;
  while (started < threads &&
         pthread_create(&ids[started], NULL, copier_main, job) == 0) {
    started++;
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (started < threads) {
    (void)pthread_mutex_lock(&job->lock);
    job->running -= threads - started;
    (void)pthread_mutex_unlock(&job->lock);
  }
  if (started == 0) {
    copy_all(job, true);
  }
  wait_for_copiers(job);
  for (unsigned i = 0; i < started; i++) {
    (void)pthread_join(ids[i], NULL);
  }
}

static weft_err init_lock(wefti_host_job *job)
{
  const weft_err err = weft_cond_init(&job->ended);
  if (err == WEFT_OK && pthread_mutex_init(&job->lock, NULL) != 0) {
    (void)pthread_cond_destroy(&job->ended);
    return WEFT_E_NOMEM;
  }
  return err;
}

/* A file that was written meanwhile may have given us a mixture.  (A segment is written
 * through a mapping, which leaves no trace in its times.) */
static weft_err unchanged(const wefti_host_plan *plan, weft_why *why)
{
  struct stat now;
  if (fstat(plan->fd, &now) != 0 || now.st_size < plan->seen.st_size ||
      (plan->kind == WEFTI_SOURCE_FILE &&
       (now.st_size != plan->seen.st_size ||
        now.st_mtim.tv_sec != plan->seen.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != plan->seen.st_mtim.tv_nsec))) {
    return weft_whyf(why, WEFT_E_CONFLICT, "%s: was changed while it was read",
                     plan->label);
  }
  return WEFT_OK;
}

weft_err wefti_host_copy(wefti_host_job *job, weft_why *why)
{
  if (init_lock(job) != WEFT_OK) {
    return weft_whyf(why, WEFT_E_NOMEM, "host backend: no memory for a lock");
  }
  size_t threads = job->host->threads;
  if (threads > job->plan->pub.count) {
    threads = job->plan->pub.count;
  }
  if (threads <= 1) {
    copy_all(job, true);
  } else {
    copy_with_threads(job, (unsigned)threads);
  }
  (void)pthread_cond_destroy(&job->ended);
  (void)pthread_mutex_destroy(&job->lock);
  if (job->why.err != WEFT_OK) {
    return weft_whyf(why, job->why.err, "%s", job->why.text);
  }
  const weft_err err = unchanged(job->plan, why);
  if (err == WEFT_OK) {
    report(job);
  }
  return err;
}
