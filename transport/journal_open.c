#define _GNU_SOURCE
#include "journal_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The state directory: whose it is, its lock, the engine's name. */

/* ---- the directory */

static weft_err take_dir(weft_journal *j, const char *dir, weft_why *why)
{
  struct stat st;
  if (dir == NULL || dir[0] == '\0' || strlen(dir) >= sizeof j->path) {
    return weft_whyf(why, WEFT_E_INVAL, "state directory: want a path");
  }
  (void)snprintf(j->path, sizeof j->path, "%s", dir);
  if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
    return wefti_journal_sys(j, why, "create", "");
  }
  j->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (j->dir_fd < 0 || fstat(j->dir_fd, &st) != 0) {
    return wefti_journal_sys(j, why, "open", "");
  }
  if (st.st_uid != geteuid() || (st.st_mode & 07777) != 0700) {
    return weft_whyf(
        why, WEFT_E_DENIED,
        "state directory %s: want mode 0700 and this user as owner, is %04o of user %ld",
        dir, (unsigned)(st.st_mode & 07777), (long)st.st_uid);
  }
  return WEFT_OK;
}

/* The lock file stays: it is never removed, so there is one to lock. */
static weft_err take_lock(weft_journal *j, weft_why *why)
{
  j->lock_fd = j->ops.open(j->ops.arg, j->dir_fd, "lock", O_RDWR | O_CREAT);
  if (j->lock_fd < 0) {
    return wefti_journal_sys(j, why, "open", "lock");
  }
  char text[192] = "";
  if (flock(j->lock_fd, LOCK_EX | LOCK_NB) != 0) {
    const ssize_t n = pread(j->lock_fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    return weft_whyf(why, WEFT_E_EXISTS,
                     "state directory %s is in use by a living engine (%s); stop it or "
                     "choose another directory",
                     j->path, text[0] == '\0' ? "unknown" : text);
  }
  return WEFT_OK;
}

/* For people who ask who holds the lock. */
static void sign_lock(const weft_journal *j)
{
  if (ftruncate(j->lock_fd, 0) == 0) {
    (void)dprintf(j->lock_fd, "%s, pid %ld\n", j->engine_id, (long)getpid());
  }
}

/* ---- the engine's name */

static bool id_is_good(const char *id)
{
  const size_t len = strlen(id);
  for (size_t i = 0; i < len; i++) {
    if ((unsigned char)id[i] < 0x20 || id[i] == 0x7f) {
      return false;
    }
  }
  return len > 0 && len < sizeof((weft_journal *)0)->engine_id;
}

static weft_err keep_id(weft_journal *j, weft_why *why)
{
  static const char name[] = "engine_id.new";
  const size_t len = strlen(j->engine_id);
  char line[sizeof j->engine_id + 1];
  (void)snprintf(line, sizeof line, "%s\n", j->engine_id);
  const int fd = j->ops.open(j->ops.arg, j->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC);
  if (fd < 0) {
    return wefti_journal_sys(j, why, "create", name);
  }
  weft_err err = WEFT_OK;
  const ssize_t n = j->ops.write(j->ops.arg, fd, line, len + 1);
  if (n != (ssize_t)len + 1) {
    errno = n < 0 ? errno : ENOSPC;
    err = wefti_journal_sys(j, why, "write", name);
  } else if (j->ops.sync(j->ops.arg, fd) != 0) {
    err = wefti_journal_sys(j, why, "sync", name);
  } else if (renameat(j->dir_fd, name, j->dir_fd, "engine_id") != 0 ||
             j->ops.sync_dir(j->ops.arg, j->dir_fd) != 0) {
    err = wefti_journal_sys(j, why, "name", "engine_id");
  }
  (void)close(fd);
  return err;
}

static weft_err take_id(weft_journal *j, const weft_journal_opts *o, weft_why *why)
{
  const bool given = o->engine_id != NULL && o->engine_id[0] != '\0';
  const char *want = given ? o->engine_id : o->fallback_id;
  const int fd = j->ops.open(j->ops.arg, j->dir_fd, "engine_id", O_RDONLY);
  if (fd < 0 && errno == ENOENT) {
    if (want == NULL || !id_is_good(want)) {
      return weft_whyf(why, WEFT_E_INVAL,
                       "engine id: 1 to %zu bytes without control characters",
                       sizeof j->engine_id - 1);
    }
    (void)snprintf(j->engine_id, sizeof j->engine_id, "%s", want);
    return keep_id(j, why);
  }
  if (fd < 0) {
    return wefti_journal_sys(j, why, "open", "engine_id");
  }
  const ssize_t n =
      j->ops.pread(j->ops.arg, fd, j->engine_id, sizeof j->engine_id - 1, 0);
  const int e = errno;
  (void)close(fd);
  if (n < 0) {
    errno = e;
    return wefti_journal_sys(j, why, "read", "engine_id");
  }
  j->engine_id[n] = '\0';
  j->engine_id[strcspn(j->engine_id, "\n")] = '\0';
  if (!id_is_good(j->engine_id)) {
    return weft_whyf(why, WEFT_E_PROTO,
                     "state directory: %s/engine_id holds no engine id; write the "
                     "engine's name into it",
                     j->path);
  }
  if (given && strcmp(j->engine_id, o->engine_id) != 0) {
    return weft_whyf(why, WEFT_E_INVAL,
                     "state directory %s is that of engine '%s', not of '%s'; choose "
                     "another directory or leave out the engine id",
                     j->path, j->engine_id, o->engine_id);
  }
  return WEFT_OK;
}

weft_err weft_journal_open(const weft_journal_opts *opts, weft_journal **out,
                           weft_why *why)
{
  if (opts->size != sizeof *opts || opts->boot_id == 0) {
    return weft_whyf(why, WEFT_E_INVAL, "weft_journal_opts: size or boot_id is wrong");
  }
  weft_journal *j = calloc(1, sizeof *j);
  if (j == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "journal: out of memory");
  }
  j->fd = -1;
  j->dir_fd = -1;
  j->lock_fd = -1;
  j->boot_id = opts->boot_id;
  j->segment_bytes = opts->segment_bytes == 0 ? 4u << 20 : opts->segment_bytes;
  j->keep_records = opts->keep_records == 0 ? 4096 : opts->keep_records;
  j->note = opts->note;
  j->note_arg = opts->note_arg;
  if (opts->ops != NULL) {
    j->ops = *opts->ops;
  } else {
    wefti_journal_system_ops(&j->ops);
  }
  weft_err err = take_dir(j, opts->dir, why);
  if (err == WEFT_OK) {
    err = take_lock(j, why);
  }
  if (err == WEFT_OK) {
    err = take_id(j, opts, why);
  }
  if (err == WEFT_OK) {
    sign_lock(j);
    err = wefti_journal_recover(j, opts, why);
  }
  if (err != WEFT_OK) {
    weft_journal_close(j);
    return err;
  }
  *out = j;
  return WEFT_OK;
}
