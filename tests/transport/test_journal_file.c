#define _GNU_SOURCE
#include "weft_test.h"

#include "journal_priv.h"
#include "weft_fail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a disk that fails on demand, and forgets what was not synced */

enum { FILES = 64, FDS = 256 };

typedef struct disk {
  weft_journal_ops real;
  unsigned long calls, fail_at; /* 1 = the first; 0 = never */
  unsigned long fail_for;       /* so many calls in a row */
  bool hit, half;               /* half: a failing write writes half first */
  bool only_sync, only_write;
  bool spoilt[FDS]; /* a write or sync has failed: nobody may touch it again */
  unsigned touched_spoilt;
  char name[FDS][32];
  struct {
    char name[32];
    off_t synced;
  } files[FILES];
  size_t file_count;
} disk;

static bool fails(disk *d, bool counts)
{
  if (!counts) {
    return false;
  }
  d->calls++;
  const bool fail =
      d->fail_at != 0 && d->calls >= d->fail_at && d->calls < d->fail_at + d->fail_for;
  d->hit = d->hit || fail;
  return fail;
}

static int disk_open(void *arg, int dir_fd, const char *name, int flags)
{
  disk *d = arg;
  if (fails(d, !d->only_sync && !d->only_write)) {
    errno = ENOSPC;
    return -1;
  }
  const int fd = d->real.open(NULL, dir_fd, name, flags);
  if (fd >= 0) {
    assert_true(fd < FDS);
    d->spoilt[fd] = false;
    (void)snprintf(d->name[fd], sizeof d->name[fd], "%s", name);
  }
  return fd;
}

static ssize_t disk_write(void *arg, int fd, const void *data, size_t len)
{
  disk *d = arg;
  d->touched_spoilt += d->spoilt[fd];
  if (fails(d, !d->only_sync)) {
    d->spoilt[fd] = true;
    if (d->half && len > 1) {
      const ssize_t n = d->real.write(NULL, fd, data, len / 2);
      d->fail_at = d->calls + 1; /* and the rest does not fit */
      d->spoilt[fd] = false;
      d->half = false;
      return n;
    }
    errno = ENOSPC;
    return -1;
  }
  return d->real.write(NULL, fd, data, len);
}

static ssize_t disk_pread(void *arg, int fd, void *data, size_t len, off_t at)
{
  disk *d = arg;
  if (fails(d, !d->only_sync && !d->only_write)) {
    errno = EIO;
    return -1;
  }
  return d->real.pread(NULL, fd, data, len, at);
}

static void synced(disk *d, int fd)
{
  struct stat st;
  assert_int_equal(fstat(fd, &st), 0);
  for (size_t i = 0; i < d->file_count; i++) {
    if (strcmp(d->files[i].name, d->name[fd]) == 0) {
      d->files[i].synced = st.st_size;
      return;
    }
  }
  assert_true(d->file_count < FILES);
  memcpy(d->files[d->file_count].name, d->name[fd], sizeof d->files[0].name);
  d->files[d->file_count++].synced = st.st_size;
}

static int disk_sync(void *arg, int fd)
{
  disk *d = arg;
  d->touched_spoilt += d->spoilt[fd];
  if (fails(d, !d->only_write)) {
    d->spoilt[fd] = true;
    errno = EIO;
    return -1;
  }
  synced(d, fd); /* that is all: what a loss of power leaves is decided here */
  return 0;
}

static int disk_sync_dir(void *arg, int fd)
{
  disk *d = arg;
  if (fails(d, !d->only_write)) {
    errno = EIO;
    return -1;
  }
  return fd < 0;
}

static int disk_truncate(void *arg, int fd, off_t len)
{
  disk *d = arg;
  if (fails(d, !d->only_sync && !d->only_write)) {
    errno = EIO;
    return -1;
  }
  return d->real.truncate(NULL, fd, len);
}

static int disk_unlink(void *arg, int dir_fd, const char *name)
{
  disk *d = arg;
  if (fails(d, !d->only_sync && !d->only_write)) {
    errno = EROFS;
    return -1;
  }
  return d->real.unlink(NULL, dir_fd, name);
}

static weft_journal_ops disk_ops(disk *d)
{
  *d = (disk){ .fail_for = 1 };
  wefti_journal_system_ops(&d->real);
  return (weft_journal_ops){ .open = disk_open,
                             .write = disk_write,
                             .pread = disk_pread,
                             .sync = disk_sync,
                             .sync_dir = disk_sync_dir,
                             .truncate = disk_truncate,
                             .unlink = disk_unlink,
                             .arg = d };
}

/* ---- a state directory */

static char dir[64];
static char notes[4096];

static void path_of(char *out, size_t cap, const char *name)
{
  (void)snprintf(out, cap, "%s/%s", dir, name);
}

static void clean(void)
{
  DIR *all = opendir(dir);
  const struct dirent *e;
  while (all != NULL && (e = readdir(all)) != NULL) {
    char path[400];
    path_of(path, sizeof path, e->d_name);
    (void)unlink(path);
  }
  if (all != NULL) {
    (void)closedir(all);
  }
}

static int setup(void **state)
{
  (void)state;
  notes[0] = '\0';
  (void)snprintf(dir, sizeof dir, "/tmp/weft-journal-XXXXXX");
  return mkdtemp(dir) == NULL;
}

static int teardown(void **state)
{
  (void)state;
  clean();
  return rmdir(dir);
}

static void note(void *arg, const char *text)
{
  (void)arg;
  const size_t at = strlen(notes);
  (void)snprintf(notes + at, sizeof notes - at, "%s\n", text);
}

static uint64_t boot;

static weft_journal_opts options(const weft_journal_ops *ops)
{
  return (weft_journal_opts){ .size = sizeof(weft_journal_opts),
                              .dir = dir,
                              .fallback_id = "engine-a",
                              .boot_id = ++boot,
                              .now_ms = 77,
                              .ops = ops,
                              .note = note };
}

static int no_sync(void *arg, int fd)
{
  (void)arg;
  return fd < 0;
}

/* The system's calls but for the waiting. */
static weft_journal_ops quick_ops(void)
{
  weft_journal_ops ops;
  wefti_journal_system_ops(&ops);
  ops.sync = no_sync;
  ops.sync_dir = no_sync;
  return ops;
}

static weft_journal *opened(void)
{
  weft_journal *j = NULL;
  const weft_journal_ops ops = quick_ops();
  weft_why why = { .text = "" };
  const weft_journal_opts o = options(&ops);
  const weft_err err = weft_journal_open(&o, &j, &why);
  if (err != WEFT_OK) {
    fail_msg("open: %s: %s", weft_err_name(err), why.text);
  }
  return j;
}

static weft_journal_record commit_of(uint64_t sequence, const char *version)
{
  return (weft_journal_record){ .kind = WEFT_JOURNAL_WEIGHTS,
                                .declared = true,
                                .epoch = sequence + 100,
                                .sequence = sequence,
                                .weights_sequence = sequence,
                                .digest_hi = sequence * 3,
                                .digest_lo = sequence * 5,
                                .at_ms = 1000 + sequence,
                                .elapsed_ms = 12,
                                .tensors = 7,
                                .bytes = 4096,
                                .version = version,
                                .operation = "finish_weight_update",
                                .sources = "[{\"source\":1}]" };
}

static void commit(weft_journal *j, uint64_t sequence, const char *version)
{
  const weft_journal_record r = commit_of(sequence, version);
  assert_ok(weft_journal_write(j, &r, NULL));
}

static void history(weft_journal *j, weft_journal_kind kind, uint64_t epoch)
{
  const weft_journal_record r = { .kind = kind, .epoch = epoch, .text = "because" };
  assert_ok(weft_journal_write(j, &r, NULL));
}

static size_t commits_in(const weft_journal *j, uint64_t *last)
{
  size_t count;
  size_t commits = 0;
  const weft_journal_record *const *all = weft_journal_history(j, &count);
  *last = 0;
  for (size_t i = 0; i < count; i++) {
    if (wefti_journal_is_commit(all[i])) {
      assert_true(all[i]->sequence > *last);
      *last = all[i]->sequence;
      commits++;
    }
  }
  return commits;
}

static uint8_t *slurp(const char *name, size_t *len)
{
  char path[400];
  path_of(path, sizeof path, name);
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  uint8_t *data = malloc(1 << 20);
  assert_non_null(data);
  *len = fread(data, 1, 1 << 20, f);
  (void)fclose(f);
  return data;
}

static void spill(const char *name, const uint8_t *data, size_t len)
{
  char path[400];
  path_of(path, sizeof path, name);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(data, 1, len, f), len);
  (void)fclose(f);
}

/* ---- what is kept */

static void what_was_written_is_read(void **state)
{
  (void)state;
  weft_journal *j = NULL;
  const weft_journal_opts real = options(NULL);
  assert_ok(weft_journal_open(&real, &j, NULL));
  assert_int_equal(weft_journal_sequence(j), 0);
  assert_null(weft_journal_weights(j));
  assert_string_equal(weft_journal_engine_id(j), "engine-a");
  history(j, WEFT_JOURNAL_BEGUN, 101);
  commit(j, 1, "step 1 \xe2\x82\xac");
  history(j, WEFT_JOURNAL_BEGUN, 102);
  history(j, WEFT_JOURNAL_ABORTED, 102);
  history(j, WEFT_JOURNAL_ABORTED, 102); /* again, after a failed sync: it is one */
  weft_journal_record label = commit_of(2, "");
  label.kind = WEFT_JOURNAL_LABEL;
  label.weights_sequence = 1;
  assert_ok(weft_journal_write(j, &label, NULL));
  weft_journal_close(j);

  j = opened();
  size_t count;
  const weft_journal_record *const *all = weft_journal_history(j, &count);
  assert_int_equal(count, 5);
  assert_int_equal(all[0]->kind, WEFT_JOURNAL_BEGUN);
  assert_int_equal(all[1]->kind, WEFT_JOURNAL_WEIGHTS);
  assert_string_equal(all[1]->version, "step 1 \xe2\x82\xac");
  assert_string_equal(all[1]->operation, "finish_weight_update");
  assert_int_equal(all[1]->digest_lo, 5);
  assert_int_equal(all[1]->elapsed_ms, 12);
  assert_int_equal(all[1]->bytes, 4096);
  assert_string_equal(all[3]->text, "because");
  assert_int_equal(all[4]->kind, WEFT_JOURNAL_LABEL);
  assert_int_equal(weft_journal_sequence(j), 2);
  const weft_journal_record *w = weft_journal_weights(j);
  assert_non_null(w);
  assert_int_equal(w->sequence, 1);
  assert_string_equal(w->version, ""); /* the label's */
  assert_string_equal(w->sources, "[{\"source\":1}]");
  weft_journal_close(j);
}

static void commit_set(weft_journal *j, uint64_t sequence, bool draft, bool alone)
{
  weft_journal_record r = commit_of(sequence, draft ? "d" : "m");
  r.draft = draft;
  r.alone = alone;
  assert_ok(weft_journal_write(j, &r, NULL));
}

static void newest_are(const weft_journal *j, uint64_t main_set, uint64_t draft)
{
  const weft_journal_record *m = weft_journal_weights(j);
  const weft_journal_record *d = weft_journal_draft(j);
  assert_int_equal(m == NULL ? 0 : m->sequence, main_set);
  assert_int_equal(d == NULL ? 0 : d->sequence, draft);
  assert_true(m == NULL || !m->draft);
  assert_true(d == NULL || d->draft);
}

static void the_newest_of_each_set_outlives_its_segment(void **state)
{
  (void)state;
  const weft_journal_ops ops = quick_ops();
  weft_journal_opts small = options(&ops);
  small.segment_bytes = 1024;
  small.keep_records = 4;
  weft_journal *j = NULL;
  assert_ok(weft_journal_open(&small, &j, NULL));
  newest_are(j, 0, 0);
  commit_set(j, 1, true, false);
  newest_are(j, 0, 1);
  for (uint64_t n = 2; n < 60; n++) {
    commit_set(j, n, false, false);
    newest_are(j, n, 1);
  }
  weft_journal_record label = commit_of(60, "named");
  label.kind = WEFT_JOURNAL_LABEL;
  label.weights_sequence = 59;
  assert_ok(weft_journal_write(j, &label, NULL));
  weft_journal_close(j);
  for (int i = 0; i < 3; i++) { /* each begins a segment with copies of both */
    assert_ok(weft_journal_open(&small, &j, NULL));
    newest_are(j, 59, 1);
    assert_string_equal(weft_journal_weights(j)->version, "named");
    assert_string_equal(weft_journal_draft(j)->version, "d"); /* not the newest */
    assert_int_equal(weft_journal_sequence(j), 60);
    weft_journal_close(j);
  }
  assert_ok(weft_journal_open(&small, &j, NULL));
  commit_set(j, 61, true, false);
  newest_are(j, 59, 61);
  assert_string_equal(weft_journal_weights(j)->version, "m"); /* its own again */
  commit_set(j, 62, false, true); /* the draft set was lost with it */
  newest_are(j, 62, 0);
  weft_journal_close(j);
  assert_ok(weft_journal_open(&small, &j, NULL));
  newest_are(j, 62, 0);
  weft_journal_close(j);
}

static void a_session_without_an_end_is_marked(void **state)
{
  (void)state;
  weft_journal *j = opened();
  history(j, WEFT_JOURNAL_BEGUN, 9);
  weft_journal_close(j);
  for (int i = 0; i < 2; i++) { /* once: the second start finds it marked */
    j = opened();
    size_t count;
    const weft_journal_record *const *all = weft_journal_history(j, &count);
    assert_int_equal(count, 2);
    assert_int_equal(all[1]->kind, WEFT_JOURNAL_ABORTED);
    assert_int_equal(all[1]->epoch, 9);
    assert_int_equal(all[1]->boot_id, all[0]->boot_id);
    assert_string_equal(all[1]->text, "engine restarted");
    weft_journal_close(j);
  }
}

static void the_directory_belongs_to_one_engine(void **state)
{
  (void)state;
  weft_journal *j = opened();
  weft_journal *second = NULL;
  weft_why why;
  weft_journal_opts o = options(NULL);
  assert_err(weft_journal_open(&o, &second, &why), WEFT_E_EXISTS);
  assert_non_null(strstr(why.text, "engine-a, pid "));
  assert_non_null(strstr(why.text, dir));
  weft_journal_close(j);
  o.engine_id = "engine-b";
  assert_err(weft_journal_open(&o, &second, &why), WEFT_E_INVAL);
  assert_non_null(strstr(why.text, "engine-a"));
  o.engine_id = "engine-a";
  assert_ok(weft_journal_open(&o, &second, &why));
  weft_journal_close(second);
  assert_int_equal(chmod(dir, 0755), 0);
  assert_err(weft_journal_open(&o, &second, &why), WEFT_E_DENIED);
  assert_int_equal(chmod(dir, 0700), 0);
}

static void a_number_is_taken_once(void **state)
{
  (void)state;
  weft_journal *j = opened();
  commit(j, 1, "a");
  commit(j, 2, "b");
  commit(j, 2, "b"); /* asked again after a lost answer */
  const weft_journal_record old = commit_of(1, "a");
  assert_err(weft_journal_write(j, &old, NULL), WEFT_E_INVAL);
  weft_journal_close(j);
  j = opened();
  uint64_t last;
  assert_int_equal(commits_in(j, &last), 2);
  weft_journal_close(j);
}

static void too_long_a_text_is_refused_and_the_file_goes_on(void **state)
{
  (void)state;
  static char text[WEFT_JOURNAL_TEXT_MAX + 2];
  memset(text, 'x', WEFT_JOURNAL_TEXT_MAX + 1);
  weft_journal *j = opened();
  weft_journal_record r = commit_of(1, text);
  assert_err(weft_journal_write(j, &r, NULL), WEFT_E_LIMIT);
  text[WEFT_JOURNAL_TEXT_MAX] = '\0';
  assert_ok(weft_journal_write(j, &r, NULL));
  weft_journal_close(j);
  j = opened();
  assert_string_equal(weft_journal_weights(j)->version, text);
  weft_journal_close(j);
}

static size_t segments(void)
{
  size_t n = 0;
  DIR *all = opendir(dir);
  const struct dirent *e;
  assert_non_null(all);
  while ((e = readdir(all)) != NULL) {
    n += strncmp(e->d_name, "journal-", 8) == 0;
  }
  (void)closedir(all);
  return n;
}

static void rotation_keeps_enough_history(void **state)
{
  const weft_journal_ops quick = quick_ops();
  (void)state;
  weft_journal *j = NULL;
  weft_journal_opts o = options(&quick);
  o.segment_bytes = 1000;
  o.keep_records = 40;
  assert_ok(weft_journal_open(&o, &j, NULL));
  for (uint64_t i = 1; i <= 400; i++) {
    commit(j, i, "version");
  }
  const size_t files = segments();
  assert_in_range(files, 8, 20);
  weft_journal_close(j);
  j = opened();
  uint64_t last;
  assert_in_range(commits_in(j, &last), 25, 60);
  assert_int_equal(last, 400);
  assert_int_equal(weft_journal_sequence(j), 400);
  weft_journal_close(j);
  /* However much is missing: the newest segment alone knows number and weights. */
  for (uint64_t n = 1; n < 1000; n++) {
    char name[32];
    char path[400];
    wefti_journal_name(n, name);
    path_of(path, sizeof path, name);
    if (segments() > 1) {
      (void)unlink(path);
    }
  }
  j = opened();
  assert_int_equal(weft_journal_sequence(j), 400);
  assert_int_equal(weft_journal_weights(j)->sequence, 400);
  assert_string_equal(weft_journal_weights(j)->sources, "[{\"source\":1}]");
  weft_journal_close(j);
}

/* ---- faults */

static void after_a_failed_sync_the_record_is_in_a_new_segment(void **state)
{
  (void)state;
  disk d;
  const weft_journal_ops ops = disk_ops(&d);
  const weft_journal_opts o = options(&ops);
  weft_journal *j = NULL;
  assert_ok(weft_journal_open(&o, &j, NULL));
  commit(j, 1, "a");
  d.only_sync = true;
  d.calls = 0;
  d.fail_at = 1;
  commit(j, 2, "b");
  assert_true(d.hit);
  assert_int_equal(segments(), 2);
  assert_non_null(strstr(notes, "cannot sync"));
  d.calls = 0;
  d.fail_for = 3;
  const weft_journal_record r = commit_of(3, "c");
  weft_why why;
  assert_err(weft_journal_write(j, &r, &why), WEFT_E_SYS);
  assert_non_null(strstr(why.text, "the disk failed"));
  assert_err(weft_journal_write(j, &r, &why), WEFT_E_SYS);
  assert_ok(weft_journal_write(j, &r, &why)); /* the engine asks again */
  commit(j, 4, "d");
  assert_int_equal(d.touched_spoilt, 0);
  weft_journal_close(j);
  j = opened();
  uint64_t last;
  assert_int_equal(commits_in(j, &last), 4); /* each once */
  assert_int_equal(weft_journal_sequence(j), 4);
  weft_journal_close(j);
}

/* Opens, commits until all of 1..4 are acknowledged or the opening fails.  Returns the
 * newest that was acknowledged. */
static uint64_t live(const weft_journal_ops *ops, uint64_t from, uint64_t to)
{
  weft_journal *j = NULL;
  weft_journal_opts o = options(ops);
  o.segment_bytes = 600;
  weft_why why = { .text = "" };
  const weft_err err = weft_journal_open(&o, &j, &why);
  if (err != WEFT_OK) {
    assert_null(j);
    assert_int_equal(err, WEFT_E_SYS);
    assert_non_null(strstr(why.text, dir));
    return 0;
  }
  for (uint64_t i = from; i <= to; i++) {
    const weft_journal_record begun = { .kind = WEFT_JOURNAL_BEGUN, .epoch = i + 100 };
    (void)!weft_journal_write(j, &begun, &why);
    const weft_journal_record r = commit_of(i, "v");
    unsigned tries = 0;
    while (weft_journal_write(j, &r, &why) != WEFT_OK) {
      assert_true(++tries < 8);
    }
  }
  weft_journal_close(j);
  return to;
}

static void lose_what_was_not_synced(const disk *d)
{
  DIR *all = opendir(dir);
  const struct dirent *e;
  assert_non_null(all);
  while ((e = readdir(all)) != NULL) {
    if (strncmp(e->d_name, "journal-", 8) != 0) {
      continue;
    }
    off_t keep = 0;
    for (size_t i = 0; i < d->file_count; i++) {
      if (strcmp(d->files[i].name, e->d_name) == 0) {
        keep = d->files[i].synced;
      }
    }
    char path[400];
    path_of(path, sizeof path, e->d_name);
    assert_int_equal(truncate(path, keep), 0);
  }
  (void)closedir(all);
}

static void fault_table(bool half, unsigned long in_a_row, bool power_loss)
{
  for (unsigned long nth = 1;; nth++) {
    clean();
    disk d;
    const weft_journal_ops ops = disk_ops(&d);
    assert_int_equal(live(&ops, 1, 3), 3); /* a first life without faults */
    d.calls = 0;
    d.fail_at = nth;
    d.fail_for = in_a_row;
    d.half = half;
    const uint64_t acked = live(&ops, 4, 7);
    assert_int_equal(d.touched_spoilt, 0);
    const bool hit = d.hit;
    if (power_loss) {
      lose_what_was_not_synced(&d);
    }
    weft_journal *j = opened();
    uint64_t last;
    assert_int_equal(commits_in(j, &last), acked == 0 ? 3 : acked);
    assert_int_equal(last, acked == 0 ? 3 : acked);
    assert_true(weft_journal_sequence(j) >= last);
    weft_journal_close(j);
    if (!hit) {
      assert_true(nth > 20);
      return;
    }
  }
}

static void every_call_fails_once(void **state)
{
  (void)state;
  fault_table(false, 1, false);
}

static void every_call_and_the_next_fail(void **state)
{
  (void)state;
  fault_table(false, 3, false);
}

static void every_write_is_short(void **state)
{
  (void)state;
  fault_table(true, 1, false);
}

static void power_goes_after_every_fault(void **state)
{
  (void)state;
  fault_table(false, 2, true);
}

static void memory_ends_at_every_allocation(void **state)
{
  const weft_journal_ops quick = quick_ops();
  (void)state;
  FOR_EACH_FAILURE
  {
    fail_countdown = 0;
    clean();
    weft_journal *j = opened();
    commit(j, 1, "a");
    history(j, WEFT_JOURNAL_BEGUN, 5);
    weft_journal_close(j);
    fail_countdown = nth_;
    fail_hit = false;
    j = NULL;
    const weft_journal_opts o = options(&quick);
    weft_err err = weft_journal_open(&o, &j, NULL);
    if (err == WEFT_OK) {
      const weft_journal_record r = commit_of(2, "b");
      err = weft_journal_write(j, &r, NULL);
      fail_countdown = 0;
      if (err != WEFT_OK) {
        assert_int_equal(err, WEFT_E_NOMEM);
        assert_ok(weft_journal_write(j, &r, NULL));
      }
      weft_journal_close(j);
    }
    fail_countdown = 0;
    const bool hit = fail_hit;
    const bool second = err == WEFT_OK || j != NULL;
    j = opened();
    uint64_t last;
    assert_int_equal(commits_in(j, &last), second ? 2 : 1);
    weft_journal_close(j);
    fail_hit = hit;
    END_UNLESS_FAILED
  }
}

/* ---- damage */

static uint8_t *three_commits(size_t *len, size_t ends[4])
{
  weft_journal *j = opened();
  ends[0] = j->written;
  for (uint64_t i = 1; i <= 3; i++) {
    commit(j, i, "v");
    ends[i] = j->written;
  }
  weft_journal_close(j);
  return slurp("journal-1.log", len);
}

static void a_tail_torn_at_any_byte_is_cut(void **state)
{
  (void)state;
  size_t len;
  size_t ends[4];
  uint8_t *data = three_commits(&len, ends);
  assert_int_equal(len, ends[3]);
  for (size_t cut = 0; cut < len; cut++) {
    clean();
    spill("journal-1.log", data, cut);
    notes[0] = '\0';
    weft_journal *j = opened();
    uint64_t last;
    const size_t whole = cut >= ends[2] ? 2 : cut >= ends[1] ? 1 : 0;
    assert_int_equal(commits_in(j, &last), whole);
    const bool clean_cut = cut == ends[0] || cut == ends[1] || cut == ends[2];
    /* A number that may have been given out is not given out again. */
    const bool torn = !clean_cut && cut != WEFTI_JOURNAL_HEADER;
    assert_int_equal(weft_journal_sequence(j), whole + torn);
    assert_int_equal(strstr(notes, "torn tail") != NULL,
                     torn && cut >= WEFTI_JOURNAL_HEADER);
    if (cut >= WEFTI_JOURNAL_HEADER) {
      size_t left;
      free(slurp("journal-1.log", &left));
      assert_int_equal(left, whole == 2       ? ends[2]
                             : whole == 1     ? ends[1]
                             : cut >= ends[0] ? ends[0]
                                              : WEFTI_JOURNAL_HEADER);
    }
    commit(j, weft_journal_sequence(j) + 1, "next");
    const uint64_t next = weft_journal_sequence(j);
    weft_journal_close(j);
    j = opened(); /* and what was cut stays cut */
    assert_int_equal(commits_in(j, &last), whole + 1);
    assert_int_equal(last, next);
    weft_journal_close(j);
  }
  free(data);
}

static void a_flipped_bit_is_an_error_by_name(void **state)
{
  const weft_journal_ops quick = quick_ops();
  (void)state;
  size_t len;
  size_t ends[4];
  uint8_t *data = three_commits(&len, ends);
  const weft_journal_opts o = options(&quick);
  for (size_t bit = 0; bit < len * 8; bit += 3) {
    const size_t at = bit / 8;
    data[at] ^= (uint8_t)(1u << (bit % 8));
    clean();
    spill("journal-1.log", data, len);
    data[at] ^= (uint8_t)(1u << (bit % 8));
    weft_journal *j = NULL;
    weft_why why = { .text = "" };
    const weft_err err = weft_journal_open(&o, &j, &why);
    if (at < ends[2]) {
      assert_int_equal(err, WEFT_E_PROTO);
      const size_t from = at < WEFTI_JOURNAL_HEADER ? 0
                          : at < ends[0]            ? WEFTI_JOURNAL_HEADER
                          : at < ends[1]            ? ends[0]
                                                    : ends[1];
      char want[64];
      (void)snprintf(want, sizeof want, "journal-1.log: the %s at offset %zu",
                     from == 0 ? "header" : "record", from);
      assert_non_null(strstr(why.text, want));
      assert_null(j);
      continue;
    }
    /* Nothing tells the newest record from a torn one; its number is not used again. */
    assert_int_equal(err, WEFT_OK);
    assert_int_equal(weft_journal_sequence(j), 3);
    weft_journal_close(j);
  }
  free(data);
}

static void damage_in_an_older_segment_is_an_error(void **state)
{
  const weft_journal_ops quick = quick_ops();
  (void)state;
  size_t len;
  size_t ends[4];
  uint8_t *data = three_commits(&len, ends);
  weft_journal *j = opened(); /* a second segment, which knows how long the first was */
  weft_journal_close(j);
  const weft_journal_opts o = options(&quick);
  weft_why why;
  for (size_t at = 0; at < len; at += 5) {
    data[at] ^= 0x10;
    spill("journal-1.log", data, len);
    data[at] ^= 0x10;
    assert_err(weft_journal_open(&o, &j, &why), WEFT_E_PROTO);
    spill("journal-1.log", data, at);
    assert_err(weft_journal_open(&o, &j, &why), WEFT_E_PROTO);
  }
  char path[400];
  path_of(path, sizeof path, "journal-1.log");
  assert_int_equal(unlink(path), 0); /* moved away: history is lost, numbers are not */
  j = opened();
  assert_int_equal(weft_journal_sequence(j), 3);
  weft_journal_close(j);
  free(data);
}

static void files_of_two_engines_are_told_apart(void **state)
{
  (void)state;
  size_t len;
  weft_journal *j = opened();
  commit(j, 1, "ours  ");
  weft_journal_close(j);
  uint8_t *mine = slurp("journal-1.log", &len);
  clean();
  j = opened();
  commit(j, 1, "theirs");
  weft_journal_close(j);
  j = opened();
  weft_journal_close(j);
  spill("journal-1.log", mine, len);
  const weft_journal_opts o = options(NULL);
  weft_why why;
  const weft_err err = weft_journal_open(&o, &j, &why);
  assert_int_equal(err, WEFT_E_PROTO);
  assert_non_null(strstr(why.text, "two engines"));
  free(mine);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
    CASE(what_was_written_is_read),
    CASE(the_newest_of_each_set_outlives_its_segment),
    CASE(a_session_without_an_end_is_marked),
    CASE(the_directory_belongs_to_one_engine),
    CASE(a_number_is_taken_once),
    CASE(too_long_a_text_is_refused_and_the_file_goes_on),
    CASE(rotation_keeps_enough_history),
    CASE(after_a_failed_sync_the_record_is_in_a_new_segment),
    CASE(every_call_fails_once),
    CASE(every_call_and_the_next_fail),
    CASE(every_write_is_short),
    CASE(power_goes_after_every_fault),
    CASE(memory_ends_at_every_allocation),
    CASE(a_tail_torn_at_any_byte_is_cut),
    CASE(a_flipped_bit_is_an_error_by_name),
    CASE(damage_in_an_older_segment_is_an_error),
    CASE(files_of_two_engines_are_told_apart),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
