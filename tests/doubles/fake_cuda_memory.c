/* Memory of the cudart double.  A piece of device memory is a memfd, mapped twice: where
 * the program has its address nobody may read or write, with guard pages around, and the
 * bytes are somewhere else.  So a host access to device memory faults, as it should. */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, HANDLE_MAGIC = 0x77665431 };

typedef struct wire_handle {
  uint32_t magic;
  int32_t pid, fd, device;
  uint64_t inode, bytes;
} wire_handle;

_Static_assert(sizeof(wire_handle) <= FAKE_HANDLE, "handle");

fake_block *fake_find(const void *ptr, size_t n)
{
  for (fake_block *b = weft_fake_world()->blocks; b != NULL; b = b->next) {
    const char *p = ptr;
    if (p >= b->dev && p < b->dev + b->mapped) {
      const size_t at = (size_t)(p - b->dev);
      return at <= b->bytes && n <= b->bytes - at ? b : NULL;
    }
  }
  return NULL;
}

void *weft_fake_view(const void *ptr, size_t n)
{
  weft_fake_lock();
  const fake_block *b = fake_find(ptr, n);
  void *view = b != NULL ? b->view + ((const char *)ptr - b->dev) : NULL;
  weft_fake_unlock();
  return view;
}

static fake_block *map_block(int fd, size_t bytes, size_t mapped)
{
  fake_block *b = calloc(1, sizeof *b);
  void *view = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  char *dev = mmap(NULL, mapped + 2 * PAGE, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  struct stat st;
  if (b == NULL || view == MAP_FAILED || dev == (char *)MAP_FAILED ||
      fstat(fd, &st) != 0) {
    free(b);
    return NULL;
  }
  *b = (fake_block){ .dev = dev + PAGE,
                     .view = view,
                     .bytes = bytes,
                     .mapped = mapped,
                     .fd = fd,
                     .device = fake_device(),
                     .inode = st.st_ino };
  return b;
}

static void insert(fake_block *b)
{
  b->next = weft_fake_world()->blocks;
  weft_fake_world()->blocks = b;
}

static void unmap_block(fake_block *b)
{
  fake_block **at = &weft_fake_world()->blocks;
  while (*at != b) {
    at = &(*at)->next;
  }
  *at = b->next;
  (void)munmap(b->view, b->mapped);
  (void)munmap(b->dev - PAGE, b->mapped + 2 * PAGE);
  (void)close(b->fd);
  free(b);
}

FAKE_API int cudaMalloc(void **ptr, size_t bytes)
{
  fake_world *w = weft_fake_world();
  const int fault = weft_fake_fault("cudaMalloc");
  const long limit = weft_fake_number("WEFT_FAKE_GPU_BYTES", -1);
  if (fault != 0) {
    return fault;
  }
  if (bytes == 0) {
    *ptr = NULL;
    return 0;
  }
  /* Always something behind the end, to see who writes there. */
  const size_t mapped = (bytes + PAGE) & ~(size_t)(PAGE - 1);
  weft_fake_lock();
  const int fd = limit >= 0 && (bytes > (size_t)limit || w->used > (size_t)limit - bytes)
                     ? -1
                     : memfd_create("weft-fake-gpu", MFD_CLOEXEC);
  fake_block *b =
      fd >= 0 && ftruncate(fd, (off_t)mapped) == 0 ? map_block(fd, bytes, mapped) : NULL;
  if (b != NULL) {
    memset(b->view, FAKE_POISON, mapped);
    insert(b);
    w->used += bytes;
    *ptr = b->dev;
  } else if (fd >= 0) {
    (void)close(fd);
  }
  weft_fake_unlock();
  return b != NULL ? 0 : 2;
}

static void check_tail(const fake_block *b)
{
  for (size_t i = b->bytes; i < b->mapped; i++) {
    if ((unsigned char)b->view[i] != FAKE_POISON) {
      (void)fprintf(stderr,
                    "libfakecudart: byte %zu behind %zu of device memory was written\n",
                    i - b->bytes, b->bytes);
      abort();
    }
  }
}

FAKE_API int cudaFree(void *ptr)
{
  const int fault = weft_fake_fault("cudaFree");
  if (fault != 0 || ptr == NULL) {
    return fault;
  }
  fake_drain(); /* as the real one: it waits for the device */
  weft_fake_lock();
  fake_block *b = fake_find(ptr, 0);
  const bool ok = b != NULL && b->dev == (char *)ptr && b->opens == 0;
  if (ok) {
    check_tail(b);
    weft_fake_world()->used -= b->bytes;
    memset(b->view, FAKE_FREED, b->mapped); /* who still reads it shall see */
    unmap_block(b);
  }
  weft_fake_unlock();
  return ok ? 0 : 1;
}

FAKE_API int cudaMemGetInfo(size_t *left, size_t *all)
{
  const long limit = weft_fake_number("WEFT_FAKE_GPU_BYTES", 1L << 40);
  weft_fake_lock();
  *all = (size_t)limit;
  *left = (size_t)limit - weft_fake_world()->used;
  weft_fake_unlock();
  return 0;
}

FAKE_API int cudaHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
  (void)flags;
  const int fault = weft_fake_fault("cudaHostAlloc");
  if (fault != 0) {
    return fault;
  }
  if (posix_memalign(ptr, PAGE, bytes > 0 ? bytes : 1) != 0) {
    return 2;
  }
  memset(*ptr, FAKE_POISON, bytes);
  return 0;
}

FAKE_API int cudaFreeHost(void *ptr)
{
  fake_drain();
  free(ptr);
  return 0;
}

/* ---- other processes */

FAKE_API int cudaIpcGetMemHandle(fake_handle *handle, void *ptr)
{
  const int fault = weft_fake_fault("cudaIpcGetMemHandle");
  if (fault != 0) {
    return fault;
  }
  weft_fake_lock();
  const fake_block *b = fake_find(ptr, 0);
  const bool ok = b != NULL && b->opens == 0;
  if (ok) {
    const wire_handle w = { HANDLE_MAGIC, getpid(), b->fd, fake_visible(b->device),
                            b->inode,     b->bytes };
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &w, sizeof w);
  }
  weft_fake_unlock();
  return ok ? 0 : 1;
}

static fake_block *opened(const wire_handle *w)
{
  for (fake_block *b = weft_fake_world()->blocks; b != NULL; b = b->next) {
    if (b->inode == w->inode) {
      return b;
    }
  }
  return NULL;
}

static fake_block *import_block(const wire_handle *w)
{
  char path[64];
  (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", w->pid, w->fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  struct stat st;
  if (fd < 0) {
    return NULL;
  }
  fake_block *b = NULL;
  if (fstat(fd, &st) == 0 && st.st_ino == w->inode && w->bytes <= (uint64_t)st.st_size) {
    b = map_block(fd, w->bytes, (size_t)st.st_size);
  }
  if (b == NULL) {
    (void)close(fd); /* freed meanwhile, or another file by now */
    return NULL;
  }
  insert(b);
  return b;
}

FAKE_API int cudaIpcOpenMemHandle(void **ptr, fake_handle handle, unsigned flags)
{
  (void)flags;
  const int fault = weft_fake_fault("cudaIpcOpenMemHandle");
  wire_handle w;
  memcpy(&w, &handle, sizeof w);
  if (fault != 0 || w.magic != HANDLE_MAGIC || w.pid == getpid()) {
    return fault != 0 ? fault : 400;
  }
  weft_fake_lock();
  fake_block *b = opened(&w);
  b = b != NULL ? b : import_block(&w);
  if (b != NULL) {
    b->opens++;
    *ptr = b->dev;
  }
  weft_fake_unlock();
  return b != NULL ? 0 : 400;
}

FAKE_API int cudaIpcCloseMemHandle(void *ptr)
{
  fake_drain();
  weft_fake_lock();
  fake_block *b = fake_find(ptr, 0);
  const bool ok = b != NULL && b->opens > 0;
  if (ok && --b->opens == 0) {
    unmap_block(b);
  }
  weft_fake_unlock();
  return ok ? 0 : 1;
}
