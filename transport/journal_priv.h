/* journal_priv.h -- between the files of the journal: bytes of records and segments, and
 * the open journal.  Not for anybody else. */
#ifndef WEFT_TRANSPORT_JOURNAL_PRIV_H
#define WEFT_TRANSPORT_JOURNAL_PRIV_H

#include "weft/journal.h"

#include <limits.h>

/* ---- journal_record.c: pure.  A segment is a header and records, little-endian:
 *   header  8 magic, u64 number, u64 previous, u64 previous_good, u64 checksum
 *   record  u32 length of the payload, u32 kind, u64 synced: bytes of the segment that
 *           were on the disk when this was written, u64 checksum of the payload,
 *           u64 checksum of these four; payload
 * Checksums are the low half of XXH3-128.  synced tells damage from a torn tail: what a
 * later record knows to have been on the disk cannot have been torn. */
enum {
  WEFTI_JOURNAL_HEADER = 40,
  WEFTI_JOURNAL_FRAME = 32,
  WEFTI_JOURNAL_PAYLOAD_MAX = 11 * 8 + 4 + 4 * 4 + 3 * WEFT_JOURNAL_TEXT_MAX +
                              WEFT_JOURNAL_SOURCES_MAX + 3 * 8 + 4 +
                              WEFT_JOURNAL_FLEET_MAX
};
void wefti_journal_header(const weft_journal_segment *segment,
                          uint8_t out[WEFTI_JOURNAL_HEADER]);
/* Appends the bytes of record to *out (realloc'ed, *len bytes).  Errors: LIMIT, INVAL,
 * NOMEM; *out and *len stay as they were. */
weft_err wefti_journal_encode(const weft_journal_record *record, size_t synced,
                              uint8_t **out, size_t *len, weft_why *why) WEFT_MUST_USE;
/* A deep copy in one allocation that the caller frees; NULL = out of memory. */
weft_journal_record *wefti_journal_copy(const weft_journal_record *record);

/* ---- the open journal */
typedef struct wefti_journal_old { /* a segment that is not written any more */
  uint64_t number;
  size_t records;
} wefti_journal_old;

struct weft_journal {
  weft_journal_ops ops;
  char path[PATH_MAX];
  char engine_id[128];
  uint64_t boot_id;
  int dir_fd, lock_fd;
  int fd; /* of the segment being written, -1 = none: the next record begins one */
  uint64_t number;
  size_t written;       /* bytes of it */
  size_t synced;        /* of these are on the disk */
  size_t records;       /* in it */
  uint64_t newest;      /* highest segment number that was ever used */
  uint64_t previous;    /* newest segment with something in it, when there is no fd */
  size_t previous_good; /* bytes of it */
  size_t segment_bytes, keep_records;
  wefti_journal_old *old; /* [old_count], oldest first */
  size_t old_count, old_cap;

  uint64_t sequence;  /* highest ever given out */
  uint64_t committed; /* of the newest commit that was read or written */
  weft_journal_record
      *weights[2];               /* newest commit of the main and the draft set, owned */
  weft_journal_record *label;    /* newest label on the newer one, owned, or NULL */
  weft_journal_record *vote;     /* whose end is not recorded, owned, or NULL */
  weft_journal_record named[2];  /* weights with the label's version; borrows */
  weft_journal_record **history; /* [history_count] owned, oldest first */
  size_t history_count, history_cap;
  weft_journal_note_fn *note;
  void *note_arg;
};

/* ---- journal_file.c */
void wefti_journal_system_ops(weft_journal_ops *ops);
/* errno as an error: "cannot <what> <path>/<name>: …". */
weft_err wefti_journal_sys(const weft_journal *j, weft_why *why, const char *what,
                           const char *name);
void wefti_journal_name(uint64_t number, char out[32]);
bool wefti_journal_is_commit(const weft_journal_record *record);
/* Follows which vote is open; takes note of a copy.  Errors: NOMEM. */
weft_err wefti_journal_vote(weft_journal *j, const weft_journal_record *record)
    WEFT_MUST_USE;
/* Takes copy, of a commit: what the next segment has to begin with. */
void wefti_journal_keep(weft_journal *j, weft_journal_record *copy);
/* Remembers a segment that is not written any more.  Errors: NOMEM. */
weft_err wefti_journal_retire(weft_journal *j, uint64_t number, size_t records)
    WEFT_MUST_USE;
void wefti_journal_say(const weft_journal *j, const char *fmt, ...) WEFT_PRINTF(2, 3);
/* Begins a segment; first (may be NULL) is its first record, after mark and copies.  All
 * of it is on the disk on WEFT_OK, nothing of it counts otherwise. */
weft_err wefti_journal_begin(weft_journal *j, const weft_journal_record *first,
                             weft_why *why) WEFT_MUST_USE;

/* ---- journal_recover.c: reads all segments into j.  Errors as of weft_journal_open. */
weft_err wefti_journal_recover(weft_journal *j, const weft_journal_opts *opts,
                               weft_why *why) WEFT_MUST_USE;

#endif /* WEFT_TRANSPORT_JOURNAL_PRIV_H */
