/* api_world.h -- an engine of either kind of workers with a folder of checkpoints, for
 * tests of the embedder's interface.  Not the actors themselves. */
#ifndef WEFT_TESTS_API_WORLD_H
#define WEFT_TESTS_API_WORLD_H

#include "weft_test.h"

#include "weft/clock.h"
#include "weft/safetensors.h"
#include "weft/weft.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { API_WORKERS = 2, API_TENSORS = 3, API_ELEMENTS = 1000, API_PATIENCE_S = 20 };

typedef struct api_world {
  weft_engine *engine;
  char dir[64];
  pthread_mutex_t lock;
  pthread_cond_t changed;
  unsigned commits, results;
  uint64_t sequence, weights_sequence;
  char version[64], kind[16];
  weft_err last_err, nested_err;
} api_world;

static void api_on_commit(void *arg, const weft_commit *commit)
{
  api_world *w = arg;
  (void)pthread_mutex_lock(&w->lock);
  w->commits++;
  w->sequence = commit->sequence;
  w->weights_sequence = commit->weights_sequence;
  (void)snprintf(w->version, sizeof w->version, "%s", commit->version);
  (void)snprintf(w->kind, sizeof w->kind, "%s", commit->kind);
  (void)pthread_cond_broadcast(&w->changed);
  (void)pthread_mutex_unlock(&w->lock);
}

/* Waits until *counter has reached n. */
static inline void api_await(api_world *w, const unsigned *counter, unsigned n)
{
  const uint64_t until_ms = weft_clock_ms() + API_PATIENCE_S * 1000;
  (void)pthread_mutex_lock(&w->lock);
  while (*counter < n && weft_cond_wait_until(&w->changed, &w->lock, until_ms)) {
  }
  const bool there = *counter >= n;
  (void)pthread_mutex_unlock(&w->lock);
  assert_true(there);
}

static inline void api_path(const api_world *w, int value, char *out, size_t cap)
{
  (void)snprintf(out, cap, "%s/%d.safetensors", w->dir, value);
}

/* Every element of every tensor is value. */
static inline void api_checkpoint(const api_world *w, int value)
{
  static const int64_t shape[1] = { API_ELEMENTS };
  static const char *const names[API_TENSORS] = { "embed", "layer.0.w", "norm" };
  weft_st_spec specs[API_TENSORS];
  float data[API_ELEMENTS];
  char path[128];
  weft_st_writer *writer;
  for (size_t i = 0; i < API_TENSORS; i++) {
    specs[i] = (weft_st_spec){ names[i], weft_dtype_parse("float32"), 1, shape };
  }
  for (size_t i = 0; i < API_ELEMENTS; i++) {
    data[i] = (float)value;
  }
  api_path(w, value, path, sizeof path);
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  assert_ok(weft_st_writer_create(fd, specs, API_TENSORS, &writer, NULL));
  for (size_t i = 0; i < API_TENSORS; i++) {
    assert_ok(weft_st_writer_put(writer, data, sizeof data, NULL));
  }
  assert_ok(weft_st_writer_end(writer, NULL));
  weft_st_writer_destroy(writer);
  (void)close(fd);
}

static inline void api_info(const api_world *w, int value, char *out, size_t cap)
{
  char path[128];
  api_path(w, value, path, sizeof path);
  (void)snprintf(out, cap, "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"}}",
                 path);
}

static inline void api_create(api_world *w)
{
  memset(w, 0, sizeof *w);
  (void)snprintf(w->dir, sizeof w->dir, "/tmp/weft-api-XXXXXX");
  assert_non_null(mkdtemp(w->dir));
  (void)pthread_mutex_init(&w->lock, NULL);
  assert_ok(weft_cond_init(&w->changed));
}

static inline void api_log(void *arg, weft_log_level level, const char *who,
                           const char *line)
{
  (void)arg;
  (void)level;
  (void)fprintf(stderr, "%s %s\n", who, line);
}

static inline weft_engine_opts api_opts(api_world *w, weft_workers kind,
                                        const char *program)
{
  return (weft_engine_opts){ .size = sizeof(weft_engine_opts),
                             .workers = kind,
                             .tp = API_WORKERS,
                             .worker_program = program,
                             .on_commit = api_on_commit,
                             .arg = w,
                             .log = api_log,
                             .log_level = WEFT_LOG_WARN };
}

static inline void api_begin(api_world *w, weft_workers kind, const char *program)
{
  weft_why why = { .text = "" };
  api_create(w);
  const weft_engine_opts opts = api_opts(w, kind, program);
  if (weft_engine_create(&opts, &w->engine, &why) != WEFT_OK ||
      weft_engine_wait_ready(w->engine, API_PATIENCE_S * 1000, &why) != WEFT_OK) {
    fail_msg("engine: %s", why.text);
  }
}

static inline void api_end(api_world *w)
{
  weft_engine_destroy(w->engine);
  for (int i = 0; i < 100; i++) {
    char path[128];
    api_path(w, i, path, sizeof path);
    (void)unlink(path);
  }
  assert_int_equal(rmdir(w->dir), 0);
  (void)pthread_cond_destroy(&w->changed);
  (void)pthread_mutex_destroy(&w->lock);
}

#define api_ok(call)                                                                     \
  do {                                                                                   \
    weft_why why_ = { .text = "" };                                                      \
    const weft_err err_ = (call);                                                        \
    if (err_ != WEFT_OK) {                                                               \
      fail_msg("%s: %s: %s", #call, weft_err_name(err_), why_.text);                     \
    }                                                                                    \
  } while (0)

/* One whole update through any engine handle. */
static inline void api_push_to(weft_engine *engine, const api_world *w, int value,
                               const char *version)
{
  char info[256];
  api_checkpoint(w, value);
  api_info(w, value, info, sizeof info);
  api_ok(weft_engine_start(engine, 0, &why_));
  api_ok(weft_engine_update(engine, info, 0, &why_));
  api_ok(weft_engine_finish(engine, version, 0, &why_));
}

static inline void api_push(const api_world *w, int value, const char *version)
{
  api_push_to(w->engine, w, value, version);
}

/* The one value that all elements have; -1 when they do not agree. */
static inline int api_value(const weft_pinned *p)
{
  const float *first = p->tensors[0].data;
  for (size_t t = 0; t < p->tensor_count; t++) {
    const float *data = p->tensors[t].data;
    for (size_t i = 0; i < p->tensors[t].bytes / sizeof *data; i++) {
      if (data[i] != first[0]) {
        return -1;
      }
    }
  }
  return (int)first[0];
}

#endif /* WEFT_TESTS_API_WORLD_H */
