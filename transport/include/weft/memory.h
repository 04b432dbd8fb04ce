/* weft/memory.h -- where weights live: large slabs that extents are cut from, behind a
 * small operation table.  Not a general allocator: few threads, large pieces, and every
 * failure (limit, no memory) is an error, never a signal. */
#ifndef WEFT_MEMORY_H
#define WEFT_MEMORY_H

#include "weft/atomics.h"
#include "weft/base.h"
#include "weft/device_table.h"
#include "weft/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

WEFT_BEGIN_DECLS

enum {
  WEFT_EXTENT_ALIGN = 64,     /* bytes */
  WEFT_SLAB_MARK_BYTES = 4096 /* at the end of a slab of host memory: not in extents */
};

/* A piece of a slab.  Plain value; whoever allocated it frees it once. */
typedef struct weft_extent {
  uint32_t slab;   /* id, never used twice by one memory; 0 = an extent of no bytes */
  uint64_t offset; /* bytes from the slab's start, a multiple of WEFT_EXTENT_ALIGN */
  uint64_t bytes;  /* as asked for */
  void *ptr;       /* [bytes]; NULL when bytes == 0 */
} weft_extent;

typedef struct weft_memory_stats {
  uint64_t slabs, extents;
  uint64_t mapped; /* bytes of address space */
  uint64_t backed; /* ... of them with pages behind */
  uint64_t used;   /* ... of them in extents, rounded up to the alignment */
  uint64_t fresh;  /* bytes of pages ever taken from the system: flat once warm */
} weft_memory_stats;

typedef struct weft_memory weft_memory;
typedef struct weft_memory_ops {
  const char *name;
  /* Owner thread.  Makes room for bytes more in one piece of address space, so that a
   * large update needs one slab and not many.  A hint: alloc works without. */
  weft_err (*reserve)(weft_memory *m, uint64_t bytes, weft_why *why);
  /* Owner thread (the device thread).  Content is undefined.  The pages are there when it
   * returns: touching them cannot fail.  Errors: NOMEM, LIMIT, SYS, CANCELLED. */
  weft_err (*alloc)(weft_memory *m, uint64_t bytes, weft_extent *out, weft_why *why);
  /* Any thread, short. */
  void (*free)(weft_memory *m, const weft_extent *extent);
  /* Owner thread.  Gives free pages beyond keep bytes back to the system: wholly free
   * slabs first, then holes in others.  Call it with the size of a full update when an
   * update has ended; 0 gives everything back. */
  void (*trim)(weft_memory *m, uint64_t keep);
  /* Any thread.  Borrowed descriptor of a live slab and its size, the mark's page
   * included; -1 where memory cannot be passed to another process. */
  int (*slab_fd)(weft_memory *m, uint32_t slab, uint64_t *bytes);
  void (*stats)(weft_memory *m, weft_memory_stats *out); /* any thread */
  /* Owner thread.  All extents must have been freed. */
  void (*destroy)(weft_memory *m);
  /* The rest is NULL where extents are the host's own memory. */
  int (*device)(const weft_memory *m); /* CUDA's index, any thread */
  /* Owner thread.  Copies n bytes between the host and [n] inside an extent.  Done when
   * it returns.  Errors: FAILED, NOMEM. */
  weft_err (*read)(weft_memory *m, void *to, const void *extent, uint64_t n,
                   weft_why *why);
  weft_err (*write)(weft_memory *m, void *extent, const void *from, uint64_t n,
                    weft_why *why);
  /* NULL where slabs cannot be shared.  Any thread.  Sets or clears the mark that lies in
   * slab itself (0 = in all of them): bytes that readers knew are being overwritten.
   * Whoever maps the slab sees it, also when this process is no more. */
  void (*mark)(weft_memory *m, uint32_t slab, bool dirty);
} weft_memory_ops;

struct weft_memory { /* first member of every implementation */
  const weft_memory_ops *ops;
  /* Borrowed; NULL = none.  Set to true by any thread it makes alloc fail with CANCELLED
   * and trim leave off, within some hundred MiB of pages.  Relaxed. */
  const atomic_bool *cancel;
};

static inline weft_err weft_memory_reserve(weft_memory *m, uint64_t bytes, weft_why *why)
{
  return m->ops->reserve(m, bytes, why);
}
WEFT_MUST_USE
static inline weft_err weft_memory_alloc(weft_memory *m, uint64_t bytes, weft_extent *out,
                                         weft_why *why)
{
  return m->ops->alloc(m, bytes, out, why);
}
static inline void weft_memory_free(weft_memory *m, const weft_extent *extent)
{
  m->ops->free(m, extent);
}
static inline void weft_memory_trim(weft_memory *m, uint64_t keep)
{
  m->ops->trim(m, keep);
}
static inline int weft_memory_slab_fd(weft_memory *m, uint32_t slab, uint64_t *bytes)
{
  return m->ops->slab_fd(m, slab, bytes);
}
static inline void weft_memory_stats_get(weft_memory *m, weft_memory_stats *out)
{
  m->ops->stats(m, out);
}
/* -1 = extents are the host's own memory, ptr may be read. */
static inline int weft_memory_device(const weft_memory *m)
{
  return m->ops->device != NULL ? m->ops->device(m) : -1;
}
WEFT_MUST_USE
static inline weft_err weft_memory_read(weft_memory *m, void *to, const void *extent,
                                        uint64_t n, weft_why *why)
{
  if (m->ops->read != NULL) {
    return m->ops->read(m, to, extent, n, why);
  }
  if (n > 0) {
    memcpy(to, extent, n);
  }
  return WEFT_OK;
}
WEFT_MUST_USE
static inline weft_err weft_memory_write(weft_memory *m, void *extent, const void *from,
                                         uint64_t n, weft_why *why)
{
  if (m->ops->write != NULL) {
    return m->ops->write(m, extent, from, n, why);
  }
  if (n > 0) {
    memcpy(extent, from, n);
  }
  return WEFT_OK;
}
static inline void weft_memory_mark(weft_memory *m, uint32_t slab, bool dirty)
{
  if (m->ops->mark != NULL) {
    m->ops->mark(m, slab, dirty);
  }
}
static inline void weft_memory_destroy(weft_memory *m) /* NULL is a no-op */
{
  if (m != NULL) {
    m->ops->destroy(m);
  }
}

typedef struct weft_memory_host_opts {
  size_t size;         /* sizeof(weft_memory_host_opts) */
  uint64_t slab_bytes; /* smallest slab, rounded up to 2 MiB; 0 = 64 MiB */
  uint64_t max_bytes;  /* of all slabs' pages together; 0 = no limit of ours */
} weft_memory_host_opts;

/* Host memory in memfd slabs (close-on-exec, sealed against shrinking and growing, mode
 * 0400).  Huge pages are asked for (MADV_HUGEPAGE); the kernel gives them only where
 * /sys/kernel/mm/transparent_hugepage/shmem_enabled is advise, within_size or always.
 * opts may be NULL. */
WEFT_API weft_err weft_memory_host_create(const weft_memory_host_opts *opts,
                                          weft_memory **out) WEFT_MUST_USE;

typedef struct weft_memory_cuda_opts {
  size_t size;             /* sizeof(weft_memory_cuda_opts) */
  weft_device_opts device; /* borrows for the call; nccl is not used */
  uint64_t max_bytes;      /* of all pieces together; 0 = no limit of ours */
} weft_memory_cuda_opts;

/* Device memory, one cudaMalloc per extent; slab is only a number.  Freed pieces are kept
 * and given out again by exact size, since one update looks like the last: once warm, an
 * update allocates nothing.  Pieces are given back to CUDA (which waits for the device)
 * by trim, destroy and an alloc that finds no room, on the owner thread only; free keeps.
 * slab_fd is -1.  Errors: as weft_device_probe. */
WEFT_API weft_err weft_memory_cuda_create(const weft_memory_cuda_opts *opts,
                                          weft_memory **out, weft_why *why) WEFT_MUST_USE;

/* Of a whole slab of host memory as it is mapped here, bytes as slab_fd says: was it
 * marked?  Its last page is for the mark alone.  Acquire: what was written before the
 * mark was cleared is seen.  Any thread. */
WEFT_API bool weft_slab_dirty(const void *base, uint64_t bytes);
WEFT_API void weft_slab_mark(void *base, uint64_t bytes, bool dirty);

/* Slabs that another process has filled and left, as they are: extents are cut where the
 * caller says, nothing is allocated, alloc is UNSUPPORTED.  They are mapped read-only
 * unless kept_writable was called.  trim gives the pages that no extent covers back to
 * the system where nobody else can read them. */
WEFT_API weft_err weft_memory_kept_create(weft_memory **out) WEFT_MUST_USE;
/* Before the first add: extents may be written over in place, and slabs bear their marks
 * on.  Of slabs of host memory, whole. */
WEFT_API void weft_memory_kept_writable(weft_memory *m);
/* Owner thread.  Takes fd on WEFT_OK: a file of at least bytes that is sealed against
 * shrinking, writable where trim is to work.  alone: nobody else reads what no extent
 * will cover.  *id differs from those of host memory.  Errors: INVAL, LIMIT, NOMEM, SYS.
 */
WEFT_API weft_err weft_memory_kept_add(weft_memory *m, int fd, uint64_t bytes, bool alone,
                                       uint32_t *id, weft_why *why) WEFT_MUST_USE;
/* Owner thread.  Extents may overlap and need not be aligned.  INVAL: not inside slab. */
WEFT_API weft_err weft_memory_kept_at(weft_memory *m, uint32_t id, uint64_t offset,
                                      uint64_t bytes, weft_extent *out) WEFT_MUST_USE;
/* Owner thread.  All extents have been cut: a slab without any goes, now or with its last
 * one, until the next add. */
WEFT_API void weft_memory_kept_seal(weft_memory *m);

WEFT_END_DECLS

#endif /* WEFT_MEMORY_H */
