#define _GNU_SOURCE
#include "journal_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the system's calls */

static int sys_open(void *arg, int dir_fd, const char *name, int flags)
{
  (void)arg;
  return openat(dir_fd, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static ssize_t sys_write(void *arg, int fd, const void *data, size_t len)
{
  (void)arg;
  return write(fd, data, len);
}

static ssize_t sys_pread(void *arg, int fd, void *data, size_t len, off_t at)
{
  (void)arg;
  return pread(fd, data, len, at);
}

static int sys_sync(void *arg, int fd)
{
  (void)arg;
  return fdatasync(fd);
}

static int sys_sync_dir(void *arg, int fd)
{
  (void)arg;
  return fsync(fd);
}

static int sys_truncate(void *arg, int fd, off_t len)
{
  (void)arg;
  return ftruncate(fd, len);
}

static int sys_unlink(void *arg, int dir_fd, const char *name)
{
  (void)arg;
  return unlinkat(dir_fd, name, 0);
}

void wefti_journal_system_ops(weft_journal_ops *ops)
{
  *ops = (weft_journal_ops){ .open = sys_open,
                             .write = sys_write,
                             .pread = sys_pread,
                             .sync = sys_sync,
                             .sync_dir = sys_sync_dir,
                             .truncate = sys_truncate,
                             .unlink = sys_unlink };
}

/* ---- small things */

weft_err wefti_journal_sys(const weft_journal *j, weft_why *why, const char *what,
                           const char *name)
{
  const int e = errno;
  const char *says = e == ENOSPC || e == EDQUOT ? "no space is left; free some"
                     : e == EFBIG ? "the file would be larger than this process may write"
                     : e == EROFS ? "the file system is read-only"
                     : e == EACCES || e == EPERM
                         ? "not permitted; it has to belong to this user"
                     : e == EIO ? "the disk failed"
                                : "see to the state directory";
  return weft_whyf(why, WEFT_E_SYS, "state directory: cannot %s %s/%s: %s (errno %d)",
                   what, j->path, name, says, e);
}

void wefti_journal_name(uint64_t number, char out[32])
{
  (void)snprintf(out, 32, "journal-%" PRIu64 ".log", number);
}

void wefti_journal_say(const weft_journal *j, const char *fmt, ...)
{
  char text[512];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  if (j->note != NULL) {
    j->note(j->note_arg, text);
  }
}

bool wefti_journal_is_commit(const weft_journal_record *record)
{
  return record->kind == WEFT_JOURNAL_WEIGHTS || record->kind == WEFT_JOURNAL_LABEL;
}

/* Of the two sets' newest commits the newer one, or the older.  NULL = there is none. */
static weft_journal_record *of_both(const weft_journal *j, bool newer)
{
  weft_journal_record *const a = j->weights[0];
  weft_journal_record *const b = j->weights[1];
  if (a == NULL || b == NULL) {
    return !newer ? NULL : a == NULL ? b : a;
  }
  return (a->sequence > b->sequence) == newer ? a : b;
}

/* A commit, a vote, the end of a vote: on the disk before anybody is told. */
static bool is_durable(const weft_journal_record *record)
{
  const bool of_vote = record->kind == WEFT_JOURNAL_VOTE ||
                       (record->kind == WEFT_JOURNAL_ABORTED && record->fleet_boot != 0);
  return of_vote || wefti_journal_is_commit(record);
}

weft_err wefti_journal_vote(weft_journal *j, const weft_journal_record *record)
{
  const bool ends = j->vote != NULL && record->fleet_boot == j->vote->fleet_boot &&
                    record->fleet_epoch == j->vote->fleet_epoch &&
                    record->kind != WEFT_JOURNAL_BEGUN;
  if (record->kind != WEFT_JOURNAL_VOTE && !ends) {
    return WEFT_OK;
  }
  weft_journal_record *copy = NULL;
  if (record->kind == WEFT_JOURNAL_VOTE) {
    weft_journal_record slim = *record;
    slim.sources = NULL;
    copy = wefti_journal_copy(&slim);
    if (copy == NULL) {
      return WEFT_E_NOMEM;
    }
  }
  free(j->vote); /* a second vote: the first has ended, or it could not be given */
  j->vote = copy;
  return WEFT_OK;
}

void wefti_journal_keep(weft_journal *j, weft_journal_record *copy)
{
  const weft_journal_record *newest = of_both(j, true);
  j->committed = copy->sequence;
  if (copy->kind == WEFT_JOURNAL_WEIGHTS) {
    for (unsigned set = 0; set < 2; set++) {
      if (copy->alone || set == copy->draft) {
        free(j->weights[set]);
        j->weights[set] = NULL;
      }
    }
    free(j->label);
    j->weights[copy->draft] = copy;
    j->label = NULL;
  } else if (newest != NULL && copy->weights_sequence == newest->sequence) {
    free(j->label);
    j->label = copy;
  } else {
    free(copy); /* a version string without weights: nothing to come back to */
  }
  newest = of_both(j, true);
  for (unsigned set = 0; set < 2; set++) {
    const weft_journal_record *weights = j->weights[set];
    if (weights != NULL) {
      const bool labelled = j->label != NULL && weights == newest;
      j->named[set] = *weights;
      j->named[set].version = labelled ? j->label->version : weights->version;
      j->named[set].declared = labelled || weights->declared;
    }
  }
}

weft_err wefti_journal_retire(weft_journal *j, uint64_t number, size_t records)
{
  if (j->old_count == j->old_cap) {
    const size_t cap = j->old_cap == 0 ? 16 : j->old_cap * 2;
    wefti_journal_old *old = realloc(j->old, cap * sizeof *old);
    if (old == NULL) {
      return WEFT_E_NOMEM;
    }
    j->old = old;
    j->old_cap = cap;
  }
  j->old[j->old_count++] = (wefti_journal_old){ number, records };
  return WEFT_OK;
}

/* ---- segments */

static bool write_all(const weft_journal *j, int fd, const uint8_t *data, size_t len)
{
  while (len > 0) {
    const ssize_t n = j->ops.write(j->ops.arg, fd, data, len);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      errno = n == 0 ? ENOSPC : errno;
      return false;
    }
    data += n;
    len -= (size_t)n;
  }
  return true;
}

typedef struct chunk { /* what one write brings to the disk */
  uint8_t *bytes;
  size_t len, records;
} chunk;

/* Header, mark, what is needed from older segments, and the first record.  The caller
 * frees out->bytes in any case. */
static weft_err first_chunk(const weft_journal *j, const weft_journal_record *first,
                            uint64_t number, chunk *out, weft_why *why)
{
  const weft_journal_segment segment = { .number = number,
                                         .previous = j->previous,
                                         .previous_good = j->previous_good };
  const weft_journal_record mark = { .kind = WEFT_JOURNAL_MARK,
                                     .boot_id = j->boot_id,
                                     .sequence = j->sequence };
  const weft_journal_record *all[] = { &mark,    of_both(j, false), of_both(j, true),
                                       j->label, j->vote,           first };
  out->bytes = malloc(WEFTI_JOURNAL_HEADER);
  if (out->bytes == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "journal: no memory for a segment");
  }
  wefti_journal_header(&segment, out->bytes);
  out->len = WEFTI_JOURNAL_HEADER;
  weft_err err = WEFT_OK;
  for (size_t i = 0; i < sizeof all / sizeof all[0] && err == WEFT_OK; i++) {
    if (all[i] != NULL) {
      err = wefti_journal_encode(all[i], 0, &out->bytes, &out->len, why);
      out->records++;
    }
  }
  return err;
}

/* Old segments go as long as enough history stays. */
static void drop_old(weft_journal *j)
{
  size_t kept = j->records;
  for (size_t i = 0; i < j->old_count; i++) {
    kept += j->old[i].records;
  }
  size_t gone = 0;
  while (gone < j->old_count && kept - j->old[gone].records >= j->keep_records) {
    char name[32];
    wefti_journal_name(j->old[gone].number, name);
    if (j->ops.unlink(j->ops.arg, j->dir_fd, name) != 0 && errno != ENOENT) {
      break; /* tried again with the next segment */
    }
    kept -= j->old[gone].records;
    gone++;
  }
  j->old_count -= gone;
  if (gone > 0) {
    memmove(j->old, j->old + gone, j->old_count * sizeof *j->old);
  }
}

weft_err wefti_journal_begin(weft_journal *j, const weft_journal_record *first,
                             weft_why *why)
{
  chunk all = { .bytes = NULL };
  char name[32];
  const uint64_t number = ++j->newest; /* never again, even when this fails */
  weft_err err = first_chunk(j, first, number, &all, why);
  if (err != WEFT_OK) {
    free(all.bytes);
    return err;
  }
  wefti_journal_name(number, name);
  const int fd =
      j->ops.open(j->ops.arg, j->dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_APPEND);
  if (fd < 0) {
    free(all.bytes);
    return wefti_journal_sys(j, why, "create", name);
  }
  if (!write_all(j, fd, all.bytes, all.len)) {
    err = wefti_journal_sys(j, why, "write", name);
  } else if (j->ops.sync(j->ops.arg, fd) != 0) {
    err = wefti_journal_sys(j, why, "sync", name);
  } else if (j->ops.sync_dir(j->ops.arg, j->dir_fd) != 0) {
    err = wefti_journal_sys(j, why, "sync the entry of", name);
  }
  free(all.bytes);
  if (err != WEFT_OK) { /* nobody was told of it: better gone than half there */
    (void)close(fd);
    (void)j->ops.unlink(j->ops.arg, j->dir_fd, name);
    return err;
  }
  j->fd = fd;
  j->number = number;
  j->written = all.len;
  j->synced = all.len;
  j->records = all.records;
  drop_old(j);
  return WEFT_OK;
}

/* The next record begins a segment.  What the disk may not have of this one does not
 * count. */
static void leave(weft_journal *j)
{
  (void)close(j->fd); /* its error would say nothing that sync has not said */
  j->fd = -1;
  j->previous = j->number;
  j->previous_good = j->synced;
  if (wefti_journal_retire(j, j->number, j->records) != WEFT_OK) {
    wefti_journal_say(j,
                      "journal: no memory: %s/journal-%" PRIu64 ".log stays until the "
                      "next start",
                      j->path, j->number);
  }
}

static weft_err write_here(weft_journal *j, const weft_journal_record *record,
                           weft_why *why)
{
  uint8_t *bytes = NULL;
  size_t len = 0;
  char name[32];
  weft_err err = wefti_journal_encode(record, j->synced, &bytes, &len, why);
  if (err != WEFT_OK) {
    return err;
  }
  wefti_journal_name(j->number, name);
  const bool sync = is_durable(record);
  if (!write_all(j, j->fd, bytes, len)) {
    err = wefti_journal_sys(j, why, "write", name);
  } else if (sync && j->ops.sync(j->ops.arg, j->fd) != 0) {
    err = wefti_journal_sys(j, why, "sync", name);
  } else {
    j->written += len;
    j->synced = sync ? j->written : j->synced;
    j->records++;
  }
  free(bytes);
  return err;
}

static weft_err write_anywhere(weft_journal *j, const weft_journal_record *record,
                               weft_why *why)
{
  if (j->fd >= 0 && j->written >= j->segment_bytes) {
    if (j->synced < j->written && j->ops.sync(j->ops.arg, j->fd) == 0) {
      j->synced = j->written;
    }
    leave(j);
  }
  if (j->fd >= 0) {
    weft_why first = { .err = WEFT_OK, .text = "" };
    const weft_err err = write_here(j, record, &first);
    if (err != WEFT_E_SYS) {
      if (err != WEFT_OK && why != NULL) {
        *why = first;
      }
      return err;
    }
    wefti_journal_say(j, "%s; the record goes to a new segment", first.text);
    leave(j);
  }
  return wefti_journal_begin(j, record, why);
}

weft_err weft_journal_write(weft_journal *journal, const weft_journal_record *record,
                            weft_why *why)
{
  const bool commit = wefti_journal_is_commit(record);
  if (record->kind == WEFT_JOURNAL_MARK || (commit && record->sequence == 0)) {
    return weft_whyf(why, WEFT_E_INVAL, "journal: no such record can be appended");
  }
  if (commit && record->sequence <= journal->committed) {
    /* Asked again because the first answer got lost: it is there. */
    return record->sequence == journal->committed
               ? WEFT_OK
               : weft_whyf(why, WEFT_E_INVAL,
                           "journal: change %" PRIu64 " after change %" PRIu64,
                           record->sequence, journal->committed);
  }
  weft_journal_record copy = *record;
  copy.boot_id = record->boot_id == 0 ? journal->boot_id : record->boot_id;
  weft_journal_record *kept = commit ? wefti_journal_copy(&copy) : NULL;
  if (commit && kept == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "journal: no memory for a record");
  }
  if (commit && record->sequence > journal->sequence) {
    journal->sequence = record->sequence;
  }
  weft_err err = write_anywhere(journal, &copy, why);
  if (err == WEFT_OK && wefti_journal_vote(journal, &copy) != WEFT_OK) {
    err = weft_whyf(why, WEFT_E_NOMEM, "journal: no memory for a record");
  }
  if (err == WEFT_OK && commit) {
    wefti_journal_keep(journal, kept);
  } else {
    free(kept);
  }
  return err;
}

/* ---- looking, and the end */

const char *weft_journal_engine_id(const weft_journal *journal)
{
  return journal->engine_id;
}

uint64_t weft_journal_sequence(const weft_journal *journal)
{
  return journal->sequence;
}

const weft_journal_record *const *weft_journal_history(const weft_journal *journal,
                                                       size_t *count)
{
  *count = journal->history_count;
  return (const weft_journal_record *const *)journal->history;
}

void weft_journal_forget(weft_journal *journal)
{
  for (size_t i = 0; i < journal->history_count; i++) {
    free(journal->history[i]);
  }
  free(journal->history);
  journal->history = NULL;
  journal->history_count = 0;
  journal->history_cap = 0;
}

const weft_journal_record *weft_journal_weights(const weft_journal *journal)
{
  return journal->weights[0] == NULL ? NULL : &journal->named[0];
}

const weft_journal_record *weft_journal_draft(const weft_journal *journal)
{
  return journal->weights[1] == NULL ? NULL : &journal->named[1];
}

void weft_journal_close(weft_journal *journal)
{
  if (journal == NULL) {
    return;
  }
  if (journal->fd >= 0) {
    if (journal->synced < journal->written) {
      (void)journal->ops.sync(journal->ops.arg, journal->fd);
    }
    (void)close(journal->fd);
  }
  if (journal->lock_fd >= 0) {
    (void)close(journal->lock_fd);
  }
  if (journal->dir_fd >= 0) {
    (void)close(journal->dir_fd);
  }
  weft_journal_forget(journal);
  free(journal->weights[0]);
  free(journal->weights[1]);
  free(journal->label);
  free(journal->vote);
  free(journal->old);
  free(journal);
}
