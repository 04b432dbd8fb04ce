/* The journal's actor on a loop of its own, and the engine that talks to it: a disk that
 * fails, one that hangs, and what of a session's sources is worth keeping. */
#define _GNU_SOURCE /* mkdtemp */
#include "weft_test.h"

#include "engine_core.h"
#include "journal.h"
#include "weft/messages.h"
#include "weft/runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_MS = 20000 };

/* ---- a disk whose sync and write can fail or hang */
typedef struct disk {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool hang, hanging;
  int sync_fails, write_fails; /* so many times */
} disk;

static int disk_open(void *arg, int dir_fd, const char *name, int flags)
{
  (void)arg;
  return openat(dir_fd, name, flags | O_CLOEXEC, 0600);
}

static int take(disk *d, int *left)
{
  (void)pthread_mutex_lock(&d->lock);
  const int fails = *left > 0;
  *left -= fails;
  (void)pthread_mutex_unlock(&d->lock);
  return fails;
}

static ssize_t disk_write(void *arg, int fd, const void *data, size_t len)
{
  disk *d = arg;
  if (take(d, &d->write_fails)) {
    errno = ENOSPC;
    return -1;
  }
  return write(fd, data, len);
}

static ssize_t disk_pread(void *arg, int fd, void *data, size_t len, off_t at)
{
  (void)arg;
  return pread(fd, data, len, at);
}

static int disk_sync(void *arg, int fd)
{
  disk *d = arg;
  (void)fd;
  (void)pthread_mutex_lock(&d->lock);
  while (d->hang) {
    d->hanging = true;
    (void)pthread_cond_broadcast(&d->changed);
    (void)pthread_cond_wait(&d->changed, &d->lock);
  }
  d->hanging = false;
  (void)pthread_mutex_unlock(&d->lock);
  if (take(d, &d->sync_fails)) {
    errno = EIO;
    return -1;
  }
  return 0;
}

static int disk_sync_dir(void *arg, int fd)
{
  (void)arg;
  return fd < 0;
}

static int disk_truncate(void *arg, int fd, off_t len)
{
  (void)arg;
  return ftruncate(fd, len);
}

static int disk_unlink(void *arg, int dir_fd, const char *name)
{
  (void)arg;
  return unlinkat(dir_fd, name, 0);
}

/* ---- engine on loop 0, journal on loop 1 */
typedef struct fixture {
  disk disk;
  char dir[64];
  weft_journal *journal;
  weft_runtime *rt;
  weft_actor_id actor, engine;
} fixture;

static void begin_life(fixture *f, uint64_t boot)
{
  const weft_journal_ops ops = { .open = disk_open,
                                 .write = disk_write,
                                 .pread = disk_pread,
                                 .sync = disk_sync,
                                 .sync_dir = disk_sync_dir,
                                 .truncate = disk_truncate,
                                 .unlink = disk_unlink,
                                 .arg = &f->disk };
  const weft_journal_opts journal = { .size = sizeof journal,
                                      .dir = f->dir,
                                      .fallback_id = "test",
                                      .boot_id = boot,
                                      .ops = &ops };
  assert_ok(weft_journal_open(&journal, &f->journal, NULL));
  const weft_runtime_opts opts = { .size = sizeof opts,
                                   .loops = 2,
                                   .catalogue = weft_messages() };
  assert_ok(weft_runtime_create(&opts, &f->rt));
  const wefti_journal_args args = { .journal = f->journal };
  assert_ok(weft_runtime_spawn(f->rt, 1, &wefti_journal_class, &args, NULL, &f->actor));
  wefti_engine_args core = { .boot_id = boot,
                             .engine_id = "test",
                             .journal = f->actor,
                             .last_sequence = weft_journal_sequence(f->journal) };
  core.history = weft_journal_history(f->journal, &core.history_count);
  assert_ok(
      weft_runtime_spawn(f->rt, 0, &wefti_engine_core_class, &core, NULL, &f->engine));
  weft_journal_forget(f->journal);
  assert_ok(weft_runtime_start_all(f->rt));
}

static void end_life(fixture *f)
{
  weft_runtime_stop(f->rt, PATIENCE_MS);
  weft_runtime_join(f->rt);
  weft_runtime_destroy(f->rt);
  weft_journal_close(f->journal);
}

static int setup(void **state)
{
  fixture *f = calloc(1, sizeof *f);
  if (f == NULL) {
    return -1;
  }
  *state = f;
  (void)pthread_mutex_init(&f->disk.lock, NULL);
  (void)pthread_cond_init(&f->disk.changed, NULL);
  (void)snprintf(f->dir, sizeof f->dir, "/tmp/weft-journal-XXXXXX");
  if (mkdtemp(f->dir) == NULL) {
    return -1;
  }
  begin_life(f, 1);
  return 0;
}

static int teardown(void **state)
{
  fixture *f = *state;
  end_life(f);
  for (int i = 0; i < 40; i++) {
    char path[128];
    (void)snprintf(path, sizeof path, "%s/journal-%d.log", f->dir, i);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/%s", f->dir, i == 0 ? "lock" : "engine_id");
    (void)unlink(path);
  }
  const int rc = rmdir(f->dir);
  free(f);
  return rc;
}

static weft_msg *call(fixture *f, weft_actor_id to, const weft_msg *tmpl)
{
  weft_msg *answer = NULL;
  weft_msg *m = weft_msg_dup(weft_messages(), tmpl);
  assert_non_null(m);
  assert_ok(weft_call(f->rt, to, m, PATIENCE_MS, &answer));
  return answer;
}

static void drop(weft_msg *answer)
{
  weft_msg_drop(weft_messages(), answer);
}

static weft_err append(fixture *f, uint64_t sequence, const char *sources)
{
  weft_buf *buf = sources == NULL ? NULL : weft_buf_create(sources, strlen(sources));
  const weft_journal_append m = { .h.type = WEFT_MSG_JOURNAL_APPEND,
                                  .kind = WEFT_RECORD_COMMIT_WEIGHTS,
                                  .sequence = sequence,
                                  .weights_sequence = sequence,
                                  .version = WEFT_STR("v"),
                                  .operation = WEFT_STR("finish_weight_update"),
                                  .sources = buf };
  weft_msg *answer = call(f, f->actor, &m.h);
  weft_buf_unref(buf);
  assert_int_equal(answer->type, WEFT_MSG_JOURNAL_DONE);
  const weft_journal_done *d = (const weft_journal_done *)answer;
  const weft_err err = (weft_err)d->err;
  assert_int_equal(err == WEFT_OK, d->text.len == 0);
  drop(answer);
  return err;
}

static const weft_client_done *label(fixture *f, const char *version, uint32_t timeout_ms)
{
  const weft_client_label m = { .h.type = WEFT_MSG_CLIENT_LABEL,
                                .timeout_ms = timeout_ms,
                                .version = { version, (uint32_t)strlen(version) } };
  return (const weft_client_done *)call(f, f->engine, &m.h);
}

static void expect_version(fixture *f, const char *version, uint64_t sequence)
{
  const weft_client_query m = { .h.type = WEFT_MSG_CLIENT_QUERY,
                                .what = WEFT_QUERY_INFO };
  weft_msg *answer = call(f, f->engine, &m.h);
  const weft_client_done *d = (const weft_client_done *)answer;
  assert_string_equal(d->version.p, version);
  assert_int_equal(d->sequence, sequence);
  drop(answer);
}

/* ---- */

static void a_record_that_was_confirmed_is_there_in_the_next_life(void **state)
{
  fixture *f = *state;
  const weft_client_done *d = label(f, "one", 0);
  assert_err((weft_err)d->err, WEFT_OK);
  drop((weft_msg *)(uintptr_t)d);
  end_life(f);
  begin_life(f, 2);
  expect_version(f, "default", 1); /* the number goes on, the version is not claimed */
  d = label(f, "two", 0);
  assert_int_equal(d->sequence, 2);
  drop((weft_msg *)(uintptr_t)d);
  const weft_client_query m = { .h.type = WEFT_MSG_CLIENT_QUERY,
                                .what = WEFT_QUERY_VERSIONS };
  weft_msg *answer = call(f, f->engine, &m.h);
  const char *json = (const char *)((const weft_client_done *)answer)->body->data;
  const char *two = strstr(json, "\"sequence\":2,\"kind\":\"label\",\"version\":\"two\"");
  const char *one = strstr(json, "\"sequence\":1,\"kind\":\"label\",\"version\":\"one\"");
  assert_true(two != NULL && one != NULL && two < one); /* newest first */
  drop(answer);
}

static void a_failed_sync_is_rolled_forward(void **state)
{
  fixture *f = *state;
  f->disk.sync_fails = 1;
  assert_err(append(f, 1, NULL), WEFT_OK); /* on a new segment, at once */
  f->disk.sync_fails = 2;
  assert_err(append(f, 2, NULL), WEFT_E_SYS);
  assert_err(append(f, 2, NULL), WEFT_OK); /* the engine asks again */
  end_life(f);
  begin_life(f, 2);
  f->disk.write_fails = 4;
  const weft_client_done *d = label(f, "x", 0); /* and does so by itself */
  assert_err((weft_err)d->err, WEFT_OK);
  drop((weft_msg *)(uintptr_t)d);
  end_life(f);
  begin_life(f, 3);
  expect_version(f, "default", 3);
}

static void a_hanging_sync_holds_up_nobody_else(void **state)
{
  fixture *f = *state;
  (void)pthread_mutex_lock(&f->disk.lock);
  f->disk.hang = true;
  (void)pthread_mutex_unlock(&f->disk.lock);
  const weft_client_done *d = label(f, "late", 50);
  assert_err((weft_err)d->err, WEFT_E_TIMEOUT);
  assert_int_equal(d->outcome, WEFT_OUTCOME_UNKNOWN);
  drop((weft_msg *)(uintptr_t)d);
  (void)pthread_mutex_lock(&f->disk.lock);
  while (!f->disk.hanging) {
    (void)pthread_cond_wait(&f->disk.changed, &f->disk.lock);
  }
  (void)pthread_mutex_unlock(&f->disk.lock);
  expect_version(f, "default", 0); /* answers, and shows nothing that is not durable */
  (void)pthread_mutex_lock(&f->disk.lock);
  f->disk.hang = false;
  (void)pthread_cond_broadcast(&f->disk.changed);
  (void)pthread_mutex_unlock(&f->disk.lock);
  d = label(f, "next", 0); /* waits for its turn behind it */
  assert_err((weft_err)d->err, WEFT_OK);
  assert_int_equal(d->sequence, 2);
  drop((weft_msg *)(uintptr_t)d);
}

static void history_is_nobodys_wait_and_its_loss_no_failure(void **state)
{
  fixture *f = *state;
  f->disk.write_fails = 2;
  const weft_journal_append m = { .h.type = WEFT_MSG_JOURNAL_APPEND,
                                  .kind = WEFT_RECORD_BEGUN,
                                  .epoch = 5 };
  weft_msg *copy = weft_msg_dup(weft_messages(), &m.h);
  assert_non_null(copy);
  assert_ok(weft_post(f->rt, f->actor, copy));
  assert_err(append(f, 1, NULL), WEFT_OK);
  (void)pthread_mutex_lock(&f->disk.lock);
  assert_int_equal(f->disk.write_fails, 0);
  (void)pthread_mutex_unlock(&f->disk.lock);
}

#define FILE_INFO "{\"source\":{\"kind\":\"safetensors\",\"path\":\"/a\"}}"

static void only_files_are_worth_keeping(void **state)
{
  fixture *f = *state;
  static const struct {
    const char *sources;
    bool kept;
  } rows[] = {
    { "[" FILE_INFO "]", true },
    { "[" FILE_INFO "," FILE_INFO "]", true },
    { "[[" FILE_INFO "," FILE_INFO "]]", true }, /* one entry for each rank */
    { "[{\"names\":[],\"dtype_names\":[],\"shapes\":[]}," FILE_INFO "]", true },
    { "[" FILE_INFO ",{\"source\":{\"kind\":\"tcp\",\"address\":\"h:1\"}}]", false },
    { "[[" FILE_INFO ",{\"source\":{\"kind\":\"shm\",\"name\":\"/x\"}}]]", false },
    { "[{\"source\":{\"path\":\"/a\"}}]", false },
    { "[7]", false },
    { "{}", false },
    { "[" FILE_INFO, false },
    { NULL, false },
  };
  const size_t count = sizeof rows / sizeof rows[0];
  for (size_t i = 0; i < count; i++) {
    assert_err(append(f, i + 1, rows[i].sources), WEFT_OK);
    end_life(f);
    begin_life(f, i + 2);
    const weft_journal_record *r = weft_journal_weights(f->journal);
    assert_non_null(r);
    assert_string_equal(r->sources, rows[i].kept ? rows[i].sources : "");
  }
}

int main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
  const struct CMUnitTest tests[] = {
    CASE(a_record_that_was_confirmed_is_there_in_the_next_life),
    CASE(a_failed_sync_is_rolled_forward),
    CASE(a_hanging_sync_holds_up_nobody_else),
    CASE(history_is_nobodys_wait_and_its_loss_no_failure),
    CASE(only_files_are_worth_keeping),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
