#define _GNU_SOURCE
#include "journal_priv.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the segments say: which belong together, what is in them, what has to be
 * repaired. */

typedef struct reading {
  weft_journal *j;
  uint64_t *numbers; /* [count] of files, newest first */
  size_t count;
  uint64_t *chain; /* [chain_len] of segments, newest first */
  uint64_t *good;  /* [chain_len] bytes that have to be good */
  size_t chain_len;
  bool torn;
  size_t cut; /* the newest segment's torn tail begins here; 0 = it has none */
  weft_journal_record *open; /* begun, end not seen; borrowed from the history */
  weft_why *why;
  char label[PATH_MAX + 40]; /* of the file that is being read */
} reading;

static int newest_first(const void *a, const void *b)
{
  const uint64_t x = *(const uint64_t *)a;
  const uint64_t y = *(const uint64_t *)b;
  return x < y ? 1 : x > y ? -1 : 0;
}

static bool number_of(const char *name, uint64_t *out)
{
  char again[32];
  if (strncmp(name, "journal-", 8) != 0) {
    return false;
  }
  *out = strtoull(name + 8, NULL, 10);
  wefti_journal_name(*out, again);
  return *out != 0 && strcmp(again, name) == 0;
}

static weft_err list(reading *rd)
{
  weft_journal *j = rd->j;
  size_t cap = 0;
  const int fd = openat(j->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  if (dir == NULL) {
    const weft_err err = wefti_journal_sys(j, rd->why, "list", "");
    if (fd >= 0) {
      (void)close(fd);
    }
    return err;
  }
  weft_err err = WEFT_OK;
  const struct dirent *e;
  while ((e = readdir(dir)) != NULL) { /* NOLINT(concurrency-mt-unsafe): own stream */
    uint64_t number;
    if (!number_of(e->d_name, &number)) {
      continue;
    }
    if (rd->count == cap) {
      cap = cap == 0 ? 64 : cap * 2;
      uint64_t *numbers = realloc(rd->numbers, cap * sizeof *numbers);
      if (numbers == NULL) {
        err =
            weft_whyf(rd->why, WEFT_E_NOMEM, "journal: no memory for its list of files");
        break;
      }
      rd->numbers = numbers;
    }
    rd->numbers[rd->count++] = number;
  }
  (void)closedir(dir);
  if (rd->count > 0) {
    qsort(rd->numbers, rd->count, sizeof *rd->numbers, newest_first);
    j->newest = rd->numbers[0];
  }
  return err;
}

/* The whole file; the caller frees *data and closes *fd (-1 on an error). */
static weft_err load(const reading *rd, const char *name, int flags, int *out_fd,
                     uint8_t **data, size_t *len)
{
  const weft_journal *j = rd->j;
  struct stat st;
  const int fd = j->ops.open(j->ops.arg, j->dir_fd, name, flags);
  if (fd < 0 || fstat(fd, &st) != 0) {
    const weft_err err = wefti_journal_sys(j, rd->why, "open", name);
    if (fd >= 0) {
      (void)close(fd);
    }
    return err;
  }
  weft_err err = WEFT_OK;
  uint8_t *all = NULL;
  size_t have = 0;
  if (!S_ISREG(st.st_mode) || st.st_size > WEFT_JOURNAL_SEGMENT_MAX) {
    err = weft_whyf(rd->why, WEFT_E_LIMIT, "%s: no file of at most %d bytes", rd->label,
                    WEFT_JOURNAL_SEGMENT_MAX);
  } else if ((all = malloc((size_t)st.st_size + 1)) == NULL) {
    err = weft_whyf(rd->why, WEFT_E_NOMEM, "%s: no memory to read it", rd->label);
  }
  while (err == WEFT_OK && have < (size_t)st.st_size) {
    const ssize_t n =
        j->ops.pread(j->ops.arg, fd, all + have, (size_t)st.st_size - have, (off_t)have);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      errno = n == 0 ? EIO : errno;
      err = wefti_journal_sys(j, rd->why, "read", name);
    } else {
      have += (size_t)n;
    }
  }
  if (err != WEFT_OK) {
    free(all);
    (void)close(fd);
    return err;
  }
  *out_fd = fd;
  *data = all;
  *len = have;
  return WEFT_OK;
}

static weft_err remember(weft_journal *j, const weft_journal_record *record,
                         weft_journal_record **out)
{
  if (j->history_count == j->history_cap) {
    const size_t cap = j->history_cap == 0 ? 256 : j->history_cap * 2;
    weft_journal_record **all = realloc(j->history, cap * sizeof(weft_journal_record *));
    if (all == NULL) {
      return WEFT_E_NOMEM;
    }
    j->history = all;
    j->history_cap = cap;
  }
  weft_journal_record slim = *record;
  slim.sources = NULL;
  weft_journal_record *copy = wefti_journal_copy(&slim);
  if (copy == NULL) {
    return WEFT_E_NOMEM;
  }
  j->history[j->history_count++] = copy;
  *out = copy;
  return WEFT_OK;
}

static weft_err on_commit(reading *rd, const weft_journal_record *record, bool *is_new)
{
  weft_journal *j = rd->j;
  const weft_journal_record *same =
      j->history_count == 0 ? NULL : j->history[j->history_count - 1];
  *is_new = record->sequence > j->committed;
  if (!*is_new) {
    /* Written again after a failed sync, or as the beginning of a segment. */
    if (same != NULL && same->kind == record->kind &&
        same->sequence == record->sequence &&
        (same->boot_id != record->boot_id || same->digest_lo != record->digest_lo ||
         same->digest_hi != record->digest_hi ||
         strcmp(same->version, record->version) != 0)) {
      return weft_whyf(rd->why, WEFT_E_PROTO,
                       "%s: change %" PRIu64 " is there twice and not the same: these "
                       "are files of two engines, keep one's",
                       rd->label, record->sequence);
    }
    return WEFT_OK;
  }
  weft_journal_record *copy = wefti_journal_copy(record);
  if (copy == NULL) {
    return WEFT_E_NOMEM;
  }
  wefti_journal_keep(j, copy);
  return WEFT_OK;
}

/* Written again after a failed sync. */
static bool is_last_abort(const weft_journal *j, const weft_journal_record *record)
{
  const weft_journal_record *last =
      j->history_count == 0 ? NULL : j->history[j->history_count - 1];
  return last != NULL && last->kind == WEFT_JOURNAL_ABORTED && record->epoch != 0 &&
         last->epoch == record->epoch && last->boot_id == record->boot_id;
}

static weft_err on_record(void *arg, const weft_journal_record *record)
{
  reading *rd = arg;
  weft_journal *j = rd->j;
  bool is_new = record->kind != WEFT_JOURNAL_MARK;
  if (record->sequence > j->sequence) {
    j->sequence = record->sequence;
  }
  weft_err err = WEFT_OK;
  if (wefti_journal_is_commit(record)) {
    err = on_commit(rd, record, &is_new);
  } else if (record->kind == WEFT_JOURNAL_VOTE && j->vote != NULL) {
    /* Written again as the beginning of a segment. */
    is_new = record->fleet_boot != j->vote->fleet_boot ||
             record->fleet_epoch != j->vote->fleet_epoch;
  } else if (record->kind == WEFT_JOURNAL_ABORTED) {
    is_new = !is_last_abort(j, record);
  }
  weft_journal_record *kept = NULL;
  if (err == WEFT_OK && is_new) {
    err = remember(j, record, &kept);
  }
  if (err == WEFT_E_NOMEM) {
    return weft_whyf(rd->why, err, "%s: no memory for the history", rd->label);
  }
  if (err != WEFT_OK) {
    return err;
  }
  if (wefti_journal_vote(j, record) != WEFT_OK) {
    return weft_whyf(rd->why, WEFT_E_NOMEM, "%s: no memory for the history", rd->label);
  }
  if (record->kind == WEFT_JOURNAL_BEGUN) {
    rd->open = kept;
  } else if (rd->open != NULL && record->epoch == rd->open->epoch &&
             record->boot_id == rd->open->boot_id &&
             (record->kind == WEFT_JOURNAL_ABORTED ||
              record->kind == WEFT_JOURNAL_WEIGHTS ||
              record->kind == WEFT_JOURNAL_VOTE)) {
    rd->open = NULL; /* how a vote ends is its coordinator's to say */
  }
  return WEFT_OK;
}

static weft_err nothing(void *arg, const weft_journal_record *record)
{
  (void)arg;
  (void)record;
  return WEFT_OK;
}

/* Which files belong together: each segment names the one before it.  What is between is
 * left of beginnings that failed. */
static weft_err find_chain(reading *rd)
{
  weft_journal *j = rd->j;
  uint64_t want = 0; /* 0: the newest that is a segment */
  uint64_t good = 0;
  for (size_t i = 0; i < rd->count; i++) {
    if (want != 0 && rd->numbers[i] < want) {
      break; /* moved away or dropped: history begins behind it */
    }
    if (want != 0 && rd->numbers[i] != want) {
      continue;
    }
    char name[32];
    wefti_journal_name(rd->numbers[i], name);
    (void)snprintf(rd->label, sizeof rd->label, "%s/%s", j->path, name);
    int fd = -1;
    uint8_t *data = NULL;
    size_t len = 0;
    weft_journal_segment segment = { 0 };
    const weft_journal_reader reader = { rd->label, (size_t)good, nothing, NULL };
    weft_err err = load(rd, name, O_RDONLY, &fd, &data, &len);
    if (err != WEFT_OK) {
      return err;
    }
    (void)close(fd);
    err = weft_journal_read(data, len, &reader, &segment, rd->why);
    free(data);
    if (err == WEFT_E_TRUNCATED) {
      wefti_journal_say(j, "journal: %s is no segment, its beginning failed", rd->label);
      rd->torn = true; /* who knows which number it would have had */
      continue;
    }
    if (err != WEFT_OK) {
      return err;
    }
    if (segment.number != rd->numbers[i] || segment.previous >= segment.number) {
      return weft_whyf(rd->why, WEFT_E_PROTO,
                       "%s: it was segment %" PRIu64 " once; give the files their names "
                       "back or move it away",
                       rd->label, segment.number);
    }
    rd->good[rd->chain_len] = good;
    rd->chain[rd->chain_len++] = segment.number;
    want = segment.previous;
    good = segment.previous_good;
    if (want == 0) {
      break;
    }
  }
  return WEFT_OK;
}

/* at: in the chain; 0 is the newest, whose tail may be torn. */
static weft_err read_segment(reading *rd, size_t at)
{
  weft_journal *j = rd->j;
  char name[32];
  int fd = -1;
  uint8_t *data = NULL;
  size_t len = 0;
  weft_journal_segment segment = { 0 };
  wefti_journal_name(rd->chain[at], name);
  (void)snprintf(rd->label, sizeof rd->label, "%s/%s", j->path, name);
  const weft_journal_reader reader = { rd->label, (size_t)rd->good[at], on_record, rd };
  weft_err err = load(rd, name, O_RDONLY, &fd, &data, &len);
  if (err != WEFT_OK) {
    return err;
  }
  err = weft_journal_read(data, len, &reader, &segment, rd->why);
  free(data);
  if (err == WEFT_OK && at == 0 && segment.good < len) {
    rd->torn = true;
    rd->cut = segment.good;
    wefti_journal_say(j, "journal: %s: cut a torn tail of %zu bytes at offset %zu",
                      rd->label, len - segment.good, segment.good);
  }
  /* What was read may be in memory only: it is acted on when it is on the disk. */
  if (err == WEFT_OK && j->ops.sync(j->ops.arg, fd) != 0) {
    err = wefti_journal_sys(j, rd->why, "sync", name);
  }
  (void)close(fd);
  if (err == WEFT_OK && at == 0) {
    j->previous = segment.number;
    j->previous_good = segment.good;
  }
  return err != WEFT_OK ? err : wefti_journal_retire(j, segment.number, segment.records);
}

static weft_err read_all(reading *rd)
{
  weft_err err = list(rd);
  if (err != WEFT_OK) {
    return err;
  }
  rd->chain = calloc(rd->count + 1, sizeof *rd->chain);
  rd->good = calloc(rd->count + 1, sizeof *rd->good);
  if (rd->chain == NULL || rd->good == NULL) {
    return weft_whyf(rd->why, WEFT_E_NOMEM, "journal: no memory for its list of files");
  }
  err = find_chain(rd);
  for (size_t at = rd->chain_len; at > 0 && err == WEFT_OK; at--) {
    err = read_segment(rd, at - 1);
  }
  return err;
}

/* The first segment of this life: nothing is acted on before it is on the disk. */
static weft_err begin(weft_journal *j, const weft_journal_opts *o,
                      const weft_journal_record *open, weft_why *why)
{
  if (open == NULL) {
    return wefti_journal_begin(j, NULL, why);
  }
  const weft_journal_record ended = { .kind = WEFT_JOURNAL_ABORTED,
                                      .boot_id = open->boot_id,
                                      .epoch = open->epoch,
                                      .draft = open->draft,
                                      .at_ms = o->now_ms,
                                      .text = "engine restarted" };
  const weft_err err = wefti_journal_begin(j, &ended, why);
  weft_journal_record *kept;
  if (err != WEFT_OK) {
    return err;
  }
  return remember(j, &ended, &kept) == WEFT_OK
             ? WEFT_OK
             : weft_whyf(why, WEFT_E_NOMEM, "journal: no memory for the history");
}

/* Once a new segment has taken note of it, what was torn may go; it does not count in any
 * case. */
static void cut_torn(const reading *rd)
{
  const weft_journal *j = rd->j;
  char name[32];
  for (size_t i = 0; i < rd->count; i++) {
    if (rd->chain_len == 0 || rd->numbers[i] > rd->chain[0]) {
      wefti_journal_name(rd->numbers[i], name);
      (void)j->ops.unlink(j->ops.arg, j->dir_fd, name);
    }
  }
  if (rd->cut == 0) {
    return;
  }
  wefti_journal_name(rd->chain[0], name);
  const int fd = j->ops.open(j->ops.arg, j->dir_fd, name, O_WRONLY);
  if (fd >= 0) {
    (void)!j->ops.truncate(j->ops.arg, fd, (off_t)rd->cut);
    (void)close(fd);
  }
}

weft_err wefti_journal_recover(weft_journal *j, const weft_journal_opts *opts,
                               weft_why *why)
{
  reading rd = { .j = j, .why = why };
  weft_err err = read_all(&rd);
  if (err == WEFT_OK && rd.torn) {
    j->sequence++; /* what was torn may have been the next change's record */
  }
  if (err == WEFT_OK) {
    err = begin(j, opts, rd.open, why);
  }
  if (err == WEFT_OK && rd.torn) {
    cut_torn(&rd);
  }
  free(rd.numbers);
  free(rd.chain);
  free(rd.good);
  return err;
}
