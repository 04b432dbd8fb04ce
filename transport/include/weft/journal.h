/* weft/journal.h -- an append-only journal of commits and sessions in a state directory:
 * checksummed records in segments, durable where it matters, recovered at open.  Every
 * call blocks: it belongs on a thread that may wait for a disk.  Not here: what a record
 * means to the engine (actors/journal.c), what is live now. */
#ifndef WEFT_JOURNAL_H
#define WEFT_JOURNAL_H

#include "weft/base.h"
#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

WEFT_BEGIN_DECLS

typedef enum weft_journal_kind { /* on disk: append only */
                                 WEFT_JOURNAL_BEGUN,
                                 WEFT_JOURNAL_ABORTED,
                                 WEFT_JOURNAL_WEIGHTS, /* commit of weights */
                                 WEFT_JOURNAL_LABEL,   /* commit of a version string */
                                 WEFT_JOURNAL_MARK,    /* first record of a segment */
                                 WEFT_JOURNAL_VOTE     /* a fleet's engine is ready to
                                                          commit; its coordinator decides */
} weft_journal_kind;

enum {
  WEFT_JOURNAL_TEXT_MAX = 4096,     /* bytes of version, operation, text each */
  WEFT_JOURNAL_SOURCES_MAX = 65536, /* bytes */
  WEFT_JOURNAL_FLEET_MAX = 128,     /* bytes of a fleet's name */
  WEFT_JOURNAL_SEGMENT_MAX = 64 << 20
};

/* Strings end with a NUL and hold none; NULL counts as "". */
typedef struct weft_journal_record {
  weft_journal_kind kind;
  bool declared;    /* somebody has set the version string */
  bool draft;       /* of the draft model's set of weights, not of the main one */
  bool alone;       /* a commit of weights: the other set ended with it */
  uint64_t boot_id; /* of the engine's life that wrote it */
  uint64_t epoch;   /* of the session; 0 = none */
  /* Of a commit its own; of a mark the highest number that was ever given out. */
  uint64_t sequence;
  uint64_t weights_sequence;
  uint64_t digest_hi, digest_lo;
  uint64_t at_ms; /* Unix time */
  uint64_t elapsed_ms;
  uint64_t tensors, bytes;
  const char *version;
  const char *operation;
  const char *text;    /* the reason of an abort */
  const char *sources; /* JSON array of what the weights can be loaded from again */
  /* Of a vote, and of the commit or abort that ends it: whose session it is (the
   * coordinator's engine_id; "" = nobody's, and the rest is 0), in which of its lives and
   * epochs, and which number the change has there. */
  const char *fleet;
  uint64_t fleet_boot, fleet_epoch, fleet_sequence;
} weft_journal_record;

/* What reaches the disk, so that tests can stand in between.  Results and errno as of the
 * system calls. */
typedef struct weft_journal_ops {
  int (*open)(void *arg, int dir_fd, const char *name, int flags);
  ssize_t (*write)(void *arg, int fd, const void *data, size_t len);
  ssize_t (*pread)(void *arg, int fd, void *data, size_t len, off_t at);
  int (*sync)(void *arg, int fd);     /* fdatasync */
  int (*sync_dir)(void *arg, int fd); /* fsync of the directory */
  int (*truncate)(void *arg, int fd, off_t len);
  int (*unlink)(void *arg, int dir_fd, const char *name);
  void *arg;
} weft_journal_ops;

typedef void weft_journal_note_fn(void *arg, const char *text);
typedef struct weft_journal_opts {
  size_t size; /* sizeof(weft_journal_opts) */
  const char *dir;
  const char *engine_id; /* NULL or "": the one kept there, or fallback_id */
  const char *fallback_id;
  uint64_t boot_id;            /* not 0 */
  uint64_t now_ms;             /* Unix time, for records that recovery writes */
  size_t segment_bytes;        /* a segment that is longer is left; 0 = 4 MiB */
  size_t keep_records;         /* of history, at least; 0 = 4096 */
  const weft_journal_ops *ops; /* copied; NULL = the system's */
  weft_journal_note_fn *note;  /* what recovery repaired, for the log; may be NULL */
  void *note_arg;
} weft_journal_opts;

typedef struct weft_journal weft_journal;

/* Makes dir (0700), locks it, reads what is there, cuts a torn tail, syncs, marks a
 * session whose end is not recorded as aborted("engine restarted"), and begins a new
 * segment: so it also proves that the directory can be written.
 * Errors: EXISTS (another engine holds it), DENIED (mode, owner), INVAL (another
 * engine_id is kept there), PROTO (a damaged record, with file and offset), SYS, LIMIT,
 * NOMEM; why names the path and the remedy. */
WEFT_API weft_err weft_journal_open(const weft_journal_opts *opts, weft_journal **out,
                                    weft_why *why) WEFT_MUST_USE WEFT_NONNULL(1, 2);
WEFT_API void weft_journal_close(weft_journal *journal); /* NULL is a no-op */

WEFT_API const char *weft_journal_engine_id(const weft_journal *journal);
/* The highest number ever given out; the next change takes the one after it. */
WEFT_API uint64_t weft_journal_sequence(const weft_journal *journal);
/* Recovered history, oldest first, without marks and sources.  Borrowed until forget. */
WEFT_API const weft_journal_record *const *
weft_journal_history(const weft_journal *journal, size_t *count);
/* Lets the recovered history go; what follows keeps only what new segments need. */
WEFT_API void weft_journal_forget(weft_journal *journal);
/* The newest commit of the main model's weights, with the version string that these
 * weights bore last.  NULL: there was none.  Borrowed until the next append. */
WEFT_API const weft_journal_record *weft_journal_weights(const weft_journal *journal);
/* The same of the draft model's. */
WEFT_API const weft_journal_record *weft_journal_draft(const weft_journal *journal);

/* Writes record; boot_id is the journal's own where it is 0.  A commit is on the disk
 * when this returns WEFT_OK, also a vote and an abort that ends one; others follow with
 * the next commit.  After a failed write or sync the file is never touched again: the
 * record goes to a new segment at once, and when that fails too, the caller may try again
 * with the same record. Errors: SYS, LIMIT (a string too long), INVAL, NOMEM. */
WEFT_API weft_err weft_journal_write(weft_journal *journal,
                                     const weft_journal_record *record, weft_why *why)
    WEFT_MUST_USE WEFT_NONNULL(1, 2);

/* ---- one segment as bytes, without I/O */

/* Borrows record; anything but WEFT_OK ends the reading with it. */
typedef weft_err weft_journal_record_fn(void *arg, const weft_journal_record *record);
typedef struct weft_journal_segment {
  uint64_t number;
  uint64_t previous;      /* segment before this one; 0 = none */
  uint64_t previous_good; /* bytes of it that were on the disk */
  size_t good;            /* bytes up to the end of the last good record */
  size_t records;
} weft_journal_segment;
typedef struct weft_journal_reader {
  const char *label; /* of the bytes, in error texts */
  size_t must;       /* so many bytes have to be good */
  weft_journal_record_fn *fn;
  void *arg;
} weft_journal_reader;
/* Reads data[len].  Behind reader->must, what is damaged and has nothing good after it is
 * a torn tail: WEFT_OK, and out->good < len.
 * Errors: PROTO (damage inside, why says the offset), TRUNCATED (not even a header: no
 * segment), what fn returned, NOMEM. */
WEFT_API weft_err weft_journal_read(const void *data, size_t len,
                                    const weft_journal_reader *reader,
                                    weft_journal_segment *out, weft_why *why)
    WEFT_MUST_USE WEFT_NONNULL(3, 4);

WEFT_END_DECLS

#endif /* WEFT_JOURNAL_H */
