/* host_fixture.h -- what the tests of the host backend share: a folder of their own,
 * small safetensors files, a plan's buffers. */
#ifndef WEFT_HOST_FIXTURE_H
#define WEFT_HOST_FIXTURE_H

#include "weft_test.h"

#include "weft/safetensors.h"
#include "weft/transfer.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline uint8_t pattern(size_t tensor, uint64_t byte)
{
  return (uint8_t)(tensor * 37 + byte * 11 + (byte >> 8) * 3 + 1);
}

static inline char *make_folder(void)
{
  char *dir = strdup("/tmp/weft-host-XXXXXX");
  assert_non_null(dir);
  assert_non_null(mkdtemp(dir));
  return dir;
}

/* Tensors "t0" .. of these sizes (uint8), filled with pattern(). */
static inline void write_file(const char *path, const int64_t *sizes, size_t count)
{
  weft_st_spec *specs = calloc(count + 1, sizeof *specs);
  char(*names)[32] = calloc(count + 1, sizeof *names);
  assert_true(specs != NULL && names != NULL);
  for (size_t i = 0; i < count; i++) {
    (void)snprintf(names[i], sizeof names[i], "t%zu", i);
    specs[i] = (weft_st_spec){ names[i], WEFT_DTYPE_UINT8, 1, &sizes[i] };
  }
  const int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  weft_st_writer *w = NULL;
  assert_ok(weft_st_writer_create(fd, specs, count, &w, NULL));
  for (size_t i = 0; i < count; i++) {
    uint8_t *data = malloc((size_t)sizes[i] + 1);
    assert_non_null(data);
    for (int64_t b = 0; b < sizes[i]; b++) {
      data[b] = pattern(i, (uint64_t)b);
    }
    assert_ok(weft_st_writer_put(w, data, (uint64_t)sizes[i], NULL));
    free(data);
  }
  assert_ok(weft_st_writer_end(w, NULL));
  weft_st_writer_destroy(w);
  free(specs);
  free(names);
  assert_int_equal(close(fd), 0);
}

static inline void *open_host(const char *root, unsigned threads, uint64_t no_progress_ms)
{
  const weft_transfer_opts opts = { .size = sizeof opts,
                                    .weights_root = root,
                                    .threads = threads,
                                    .no_progress_ms = no_progress_ms };
  void *state = NULL;
  assert_ok(weft_transfer_host()->open(&opts, &state, NULL));
  return state;
}

typedef struct buffers {
  void **dst; /* [count] exact blocks, so that ASan sees their ends */
  weft_digest *digests;
  size_t count;
} buffers;

static inline buffers make_buffers(const weft_plan *plan)
{
  buffers b = { calloc(plan->count + 1, sizeof(void *)),
                calloc(plan->count + 1, sizeof(weft_digest)), plan->count };
  assert_true(b.dst != NULL && b.digests != NULL);
  for (size_t i = 0; i < plan->count; i++) {
    if (plan->tensors[i].bytes > 0) {
      b.dst[i] = malloc(plan->tensors[i].bytes);
      assert_non_null(b.dst[i]);
    }
  }
  return b;
}

static inline void free_buffers(buffers *b)
{
  for (size_t i = 0; i < b->count; i++) {
    free(b->dst[i]);
  }
  free(b->dst);
  free(b->digests);
}

/* Bytes and digests are those of pattern(); tensors are named t<index in the file>. */
static inline void check_buffers(const weft_plan *plan, const buffers *b)
{
  for (size_t i = 0; i < plan->count; i++) {
    const weft_plan_tensor *t = &plan->tensors[i];
    const size_t k = strtoul(t->name + 1, NULL, 10);
    const uint8_t *p = b->dst[i];
    for (uint64_t at = 0; at < t->bytes; at++) {
      if (p[at] != pattern(k, at)) {
        fail_msg("%s: byte %zu", t->name, (size_t)at);
      }
    }
    assert_true(weft_digest_equal(b->digests[i], weft_digest_of(p, t->bytes)));
  }
}

#endif /* WEFT_HOST_FIXTURE_H */
