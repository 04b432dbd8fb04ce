#define _GNU_SOURCE /* memfd_create, fallocate, F_ADD_SEALS, MADV_* */
#include "slab.h"

#include "weft/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* Growing a file over RLIMIT_FSIZE is a signal (SIGXFSZ), so look first. */
static weft_err check_file_limit(uint64_t bytes, weft_why *why)
{
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      bytes > limit.rlim_cur) {
    return weft_whyf(why, WEFT_E_LIMIT,
                     "host memory: a slab of %zu bytes is over RLIMIT_FSIZE (%zu)",
                     (size_t)bytes, (size_t)limit.rlim_cur);
  }
  return WEFT_OK;
}

static weft_err sys_error(weft_why *why, const char *what, uint64_t bytes)
{
  const int e = errno;
  const weft_err err = e == ENOMEM || e == ENOSPC || e == EFAULT  ? WEFT_E_NOMEM
                       : e == EMFILE || e == ENFILE || e == EFBIG ? WEFT_E_LIMIT
                                                                  : WEFT_E_SYS;
  return weft_whyf(why, err, "host memory: %s for %zu bytes: errno %d", what,
                   (size_t)bytes, e);
}

/* ---- the mark */

/* In the last page of each slab.  Readers of other processes load it. */
typedef struct slab_mark {
  _Atomic uint32_t dirty; /* set before the first byte, cleared after the last */
} slab_mark;

bool weft_slab_dirty(const void *base, uint64_t bytes)
{
  if (bytes < WEFT_SLAB_MARK_BYTES) {
    return true; /* no slab of ours */
  }
  const void *at = (const uint8_t *)base + (bytes - WEFT_SLAB_MARK_BYTES);
  const slab_mark *mark = at;
  return atomic_load_explicit(&mark->dirty, memory_order_acquire) != 0;
}

void weft_slab_mark(void *base, uint64_t bytes, bool dirty)
{
  void *at = (uint8_t *)base + (bytes - WEFT_SLAB_MARK_BYTES);
  slab_mark *mark = at;
  /* seq_cst: no byte that follows may be seen before it. */
  atomic_store_explicit(&mark->dirty, dirty ? 1 : 0, memory_order_seq_cst);
}

/* ---- its file */

/* Its pages but the mark's are taken when they are needed. */
static weft_err take_mark(int fd, uint64_t bytes, weft_why *why)
{
  int r;
  do {
    r = fallocate(fd, 0, (off_t)(bytes - WEFT_SLAB_MARK_BYTES), WEFT_SLAB_MARK_BYTES);
  } while (r != 0 && errno == EINTR);
  return r == 0 ? WEFT_OK
                : sys_error(why, "no page for a slab's mark", WEFT_SLAB_MARK_BYTES);
}

static weft_err map_file(uint64_t bytes, int *fd, void **base, weft_why *why)
{
  weft_err err = check_file_limit(bytes, why);
  if (err != WEFT_OK) {
    return err;
  }
  *fd = memfd_create("weft-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (*fd < 0) {
    return sys_error(why, "memfd_create", bytes);
  }
  if (ftruncate(*fd, (off_t)bytes) != 0 || fchmod(*fd, S_IRUSR) != 0 ||
      fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    err = sys_error(why, "setting up a slab", bytes);
  } else {
    err = take_mark(*fd, bytes, why);
  }
  if (err == WEFT_OK) {
    *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (*base == MAP_FAILED) {
      err = sys_error(why, "mmap of a slab", bytes);
    }
  }
  if (err != WEFT_OK) {
    (void)close(*fd);
    return err;
  }
  (void)madvise(*base, bytes - WEFT_SLAB_MARK_BYTES,
                MADV_HUGEPAGE); /* where the kernel has it for shmem */
  return WEFT_OK;
}

weft_err wefti_slab_open(uint32_t id, uint64_t bytes, wefti_slab **out, weft_why *why)
{
  int fd;
  void *base = NULL;
  const weft_err err = map_file(bytes + WEFT_SLAB_MARK_BYTES, &fd, &base, why);
  if (err != WEFT_OK) {
    return err;
  }
  wefti_slab *s = calloc(1, sizeof *s + bytes / WEFTI_SLAB_GRANULE);
  if (s == NULL) {
    (void)munmap(base, bytes + WEFT_SLAB_MARK_BYTES);
    (void)close(fd);
    return weft_whyf(why, WEFT_E_NOMEM, "host memory: no memory for a slab's table");
  }
  s->id = id;
  s->fd = fd;
  s->base = base;
  s->bytes = bytes;
  *out = s;
  return WEFT_OK;
}

void wefti_slab_close(wefti_slab *s)
{
  (void)munmap(s->base, s->bytes + WEFT_SLAB_MARK_BYTES);
  (void)close(s->fd);
  free(s);
}

/* ---- its pages */

weft_err wefti_slab_take(wefti_slab *s, uint64_t at, uint64_t len, weft_why *why)
{
  int r;
  do {
    r = madvise(s->base + at, len, MADV_POPULATE_WRITE);
  } while (r != 0 && (errno == EINTR || errno == EAGAIN));
  if (r != 0 && errno == EINVAL) { /* an older kernel */
    do {
      r = fallocate(s->fd, 0, (off_t)at, (off_t)len);
    } while (r != 0 && errno == EINTR);
  }
  return r == 0 ? WEFT_OK : sys_error(why, "no pages", len);
}

bool wefti_slab_give(wefti_slab *s, uint64_t at, uint64_t len)
{
  return fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
                   (off_t)len) == 0;
}
