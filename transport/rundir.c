#define _GNU_SOURCE
#include "env.h"
#include "weft/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  /* Room is left for "/worker-99999.sock~01234567" in the 108 bytes of a socket address.
   */
  RUNDIR_PATH_MAX = 80,
  LOCK_TRIES = 8,
  STALE_LOOK_MAX = 256 /* others' directories that are looked at, at a start */
};

struct weft_rundir {
  char path[PATH_MAX];
  int dir_fd, lock_fd;
  bool made; /* by us, so it is ours to remove */
};

static weft_err make_path(weft_rundir *d, const char *path, weft_why *why)
{
  if (path != NULL) {
    if (path[0] != '/' || strlen(path) > RUNDIR_PATH_MAX) {
      return weft_whyf(why, WEFT_E_INVAL,
                       "run directory \"%s\": want an absolute path of at most %d bytes",
                       path, RUNDIR_PATH_MAX);
    }
    (void)snprintf(d->path, sizeof d->path, "%s", path);
    d->made = mkdir(d->path, 0700) == 0;
    if (!d->made && errno != EEXIST) {
      return weft_whyf(why, WEFT_E_SYS, "cannot create run directory %s: errno %d", path,
                       errno);
    }
    return WEFT_OK;
  }
  const char *base = wefti_env_get("XDG_RUNTIME_DIR");
  if (base == NULL || base[0] != '/' || strlen(base) > RUNDIR_PATH_MAX - 40 ||
      access(base, W_OK | X_OK) != 0) {
    base = "/tmp";
  }
  uint64_t random;
  if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
    return weft_whyf(why, WEFT_E_SYS, "getrandom: errno %d", errno);
  }
  (void)snprintf(d->path, sizeof d->path, "%s/weft-%ld-%016llx", base, (long)getpid(),
                 (unsigned long long)random);
  d->made = mkdir(d->path, 0700) == 0;
  return d->made ? WEFT_OK
                 : weft_whyf(why, WEFT_E_SYS, "cannot create run directory %s: errno %d",
                             d->path, errno);
}

static weft_err check_dir(weft_rundir *d, weft_why *why)
{
  struct stat st;
  d->dir_fd = open(d->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (d->dir_fd < 0 || fstat(d->dir_fd, &st) != 0) {
    return weft_whyf(why, WEFT_E_SYS, "cannot open run directory %s: errno %d", d->path,
                     errno);
  }
  if (st.st_uid != geteuid() || (st.st_mode & 07777) != 0700) {
    return weft_whyf(
        why, WEFT_E_DENIED,
        "run directory %s: want mode 0700 and this user as owner, is %04o of "
        "user %ld",
        d->path, (unsigned)(st.st_mode & 07777), (long)st.st_uid);
  }
  return WEFT_OK;
}

/* The lock file may be removed by an engine that ends just now: then take the new one. */
static weft_err take_lock(weft_rundir *d, weft_why *why)
{
  for (int i = 0; i < LOCK_TRIES; i++) {
    struct stat mine;
    struct stat there;
    d->lock_fd =
        openat(d->dir_fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (d->lock_fd < 0) {
      return weft_whyf(why, WEFT_E_SYS, "cannot open %s/lock: errno %d", d->path, errno);
    }
    if (flock(d->lock_fd, LOCK_EX | LOCK_NB) != 0) {
      char pid[16] = "";
      const ssize_t n = pread(d->lock_fd, pid, sizeof pid - 1, 0);
      pid[n > 0 ? n : 0] = '\0';
      pid[strspn(pid, "0123456789")] = '\0';
      return weft_whyf(
          why, WEFT_E_EXISTS,
          "run directory %s is in use by a living engine (pid %s); stop it or "
          "choose another directory",
          d->path, pid[0] == '\0' ? "unknown" : pid);
    }
    if (fstat(d->lock_fd, &mine) == 0 &&
        fstatat(d->dir_fd, "lock", &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        mine.st_ino == there.st_ino && mine.st_dev == there.st_dev) {
      if (ftruncate(d->lock_fd, 0) == 0) { /* the pid is only for people */
        (void)dprintf(d->lock_fd, "%ld\n", (long)getpid());
      }
      return WEFT_OK;
    }
    (void)close(d->lock_fd);
    d->lock_fd = -1;
  }
  return weft_whyf(why, WEFT_E_UNAVAIL, "run directory %s: its lock keeps changing",
                   d->path);
}

/* Sockets are all that lives here; anything else somebody else has put there. */
static void remove_sockets(const weft_rundir *d)
{
  const int fd = openat(d->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  if (dir == NULL) {
    if (fd >= 0) {
      (void)close(fd);
    }
    return;
  }
  const struct dirent *e;
  while ((e = readdir(dir)) != NULL) { /* NOLINT(concurrency-mt-unsafe): own stream */
    struct stat st;
    if (fstatat(d->dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISSOCK(st.st_mode)) {
      (void)unlinkat(d->dir_fd, e->d_name, 0);
    }
  }
  (void)closedir(dir);
}

/* true: name is of a directory that make_path has made; it may be anybody's. */
static bool is_made_up(const char *name)
{
  if (strncmp(name, "weft-", 5) != 0) {
    return false;
  }
  const size_t pid = strspn(name + 5, "0123456789");
  const char *rest = name + 5 + pid;
  return pid > 0 && rest[0] == '-' && strlen(rest) == 17 &&
         strspn(rest + 1, "0123456789abcdef") == 16;
}

/* Whoever made it wrote its pid into the lock after it had locked it: when that is there
 * and nobody holds the lock, its process is gone. */
static bool take_dead_lock(weft_rundir *d)
{
  char pid;
  d->lock_fd = openat(d->dir_fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  return d->lock_fd >= 0 && pread(d->lock_fd, &pid, 1, 0) == 1 &&
         flock(d->lock_fd, LOCK_EX | LOCK_NB) == 0;
}

static void remove_stale(int base_fd, const char *name)
{
  struct stat st;
  weft_rundir d = { .lock_fd = -1 };
  d.dir_fd = openat(base_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (d.dir_fd >= 0 && fstat(d.dir_fd, &st) == 0 && st.st_uid == geteuid() &&
      (st.st_mode & 07777) == 0700 && take_dead_lock(&d)) {
    remove_sockets(&d);
    (void)unlinkat(d.dir_fd, "lock", 0);
    (void)unlinkat(base_fd, name, AT_REMOVEDIR); /* stays when something else is there */
  }
  if (d.lock_fd >= 0) {
    (void)close(d.lock_fd);
  }
  if (d.dir_fd >= 0) {
    (void)close(d.dir_fd);
  }
}

/* Those who were killed could not remove their directories; whoever makes one beside them
 * does. */
static void remove_stale_beside(const weft_rundir *d)
{
  char base[PATH_MAX];
  (void)snprintf(base, sizeof base, "%.*s", (int)(strrchr(d->path, '/') - d->path),
                 d->path);
  DIR *dir = opendir(base);
  if (dir == NULL) {
    return;
  }
  const struct dirent *e;
  unsigned looked = 0;
  while ((e = readdir(dir)) != NULL && looked < STALE_LOOK_MAX) { /* NOLINT: own stream */
    if (is_made_up(e->d_name)) {
      remove_stale(dirfd(dir), e->d_name);
      looked++;
    }
  }
  (void)closedir(dir);
}

weft_err weft_rundir_open(const char *path, weft_rundir **out, weft_why *why)
{
  weft_rundir *d = calloc(1, sizeof *d);
  if (d == NULL) {
    return weft_whyf(why, WEFT_E_NOMEM, "run directory: out of memory");
  }
  d->dir_fd = -1;
  d->lock_fd = -1;
  weft_err err = make_path(d, path, why);
  if (err == WEFT_OK) {
    err = check_dir(d, why);
  }
  if (err == WEFT_OK) {
    err = take_lock(d, why);
  }
  if (err != WEFT_OK) {
    if (d->lock_fd >= 0) {
      (void)close(d->lock_fd);
    }
    if (d->dir_fd >= 0) {
      (void)close(d->dir_fd);
    }
    free(d);
    return err;
  }
  remove_sockets(d); /* of an engine that was killed: we hold its lock */
  if (path == NULL) {
    remove_stale_beside(d);
  }
  *out = d;
  return WEFT_OK;
}

const char *weft_rundir_path(const weft_rundir *dir)
{
  return dir->path;
}

void weft_rundir_close(weft_rundir *dir)
{
  if (dir == NULL) {
    return;
  }
  remove_sockets(dir);
  (void)unlinkat(dir->dir_fd, "lock", 0); /* while it is held */
  if (dir->made) {
    (void)rmdir(dir->path); /* stays if somebody else has put something there */
  }
  (void)close(dir->lock_fd);
  (void)close(dir->dir_fd);
  free(dir);
}
