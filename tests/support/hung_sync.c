/* hung_sync.so -- for LD_PRELOAD under a scenario: while the file that WEFT_HUNG_SYNC
 * names is there, fsync and fdatasync do not come back, as of a disk that is gone.  No
 * part of weft. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

static void hang(void)
{
  struct stat there;
  const struct timespec nap = { .tv_nsec = 10000000 };
  const char *file = getenv("WEFT_HUNG_SYNC"); /* NOLINT(concurrency-mt-unsafe) */
  while (file != NULL && stat(file, &there) == 0) {
    (void)nanosleep(&nap, NULL);
  }
}

/* As of <unistd.h>, whose own names of the parameters are reserved ones. */
int fsync(int fd);
int fdatasync(int fd);

typedef int sync_fn(int);

static int real(const char *name, int fd)
{
  sync_fn *fn;
  *(void **)&fn = dlsym(RTLD_NEXT, name);
  return fn == NULL ? -1 : fn(fd);
}

__attribute__((visibility("default"))) int fsync(int fd)
{
  hang();
  return real("fsync", fd);
}

__attribute__((visibility("default"))) int fdatasync(int fd)
{
  hang();
  return real("fdatasync", fd);
}
