/* A worker's INSTALL message and the table that comes with it: first the message's slab
 * count, tensors and table length (3 bytes), then the table.  Whatever comes, what can be
 * pinned afterwards lies inside the slab and has whole names. */
#define _GNU_SOURCE
#include "exports.h"
#include "weft/memory.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLAB_BYTES = 4096, FILE_BYTES = SLAB_BYTES + WEFT_SLAB_MARK_BYTES };

#define CHECK(cond)                                                                      \
  do {                                                                                   \
    if (!(cond)) {                                                                       \
      (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                   \
      abort();                                                                           \
    }                                                                                    \
  } while (0)

static void on_release(void *arg, uint32_t rank, uint64_t incarnation, uint64_t epoch)
{
  (void)arg;
  (void)rank;
  (void)incarnation;
  (void)epoch;
}

static int make_file(const void *data, size_t len)
{
  const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(fd >= 0 && write(fd, data, len) == (ssize_t)len);
  CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  return fd;
}

static void read_pinned(const weft_snapshot *s)
{
  volatile uint8_t sum = 0;
  for (size_t i = 0; i < s->tensor_count; i++) {
    const weft_tensor *t = &s->tensors[i];
    CHECK(t->dtype != NULL && t->ndim <= WEFT_NDIM_MAX);
    sum = (uint8_t)(sum + strlen(t->name));
    for (unsigned d = 0; d < t->ndim; d++) {
      sum = (uint8_t)(sum + (uint8_t)t->shape[d]);
    }
    CHECK(t->bytes <= SLAB_BYTES && (t->bytes == 0) == (t->data == NULL));
    if (t->bytes > 0) {
      sum = (uint8_t)(sum + ((const uint8_t *)t->data)[0] +
                      ((const uint8_t *)t->data)[t->bytes - 1]);
    }
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static const uint8_t slab[FILE_BYTES];
  if (size < 3) {
    return 0;
  }
  wefti_imports *imports;
  const wefti_imports_ops ops = { .release = on_release };
  weft_runtime *rt;
  const weft_runtime_opts one = { .size = sizeof one, .loops = 1 };
  CHECK(weft_runtime_create(&one, &rt) == WEFT_OK);
  CHECK(wefti_imports_create(rt, 1, &ops, &imports) == WEFT_OK);
  wefti_export_msg msg = { .magic = WEFTI_EXPORT_MAGIC,
                           .version = WEFTI_EXPORT_VERSION,
                           .kind = WEFTI_EXPORT_INSTALL,
                           .slab_count = data[0] % 3,
                           .epoch = 1,
                           .tensors = data[1],
                           .table_bytes = size - 3 + (data[2] > 250 ? data[2] : 0) };
  for (uint32_t i = 0; i < msg.slab_count; i++) {
    msg.slabs[i] = (wefti_export_slab){ .id = i + 1, .bytes = FILE_BYTES };
  }
  int fds[3] = { make_file(data + 3, size - 3), make_file(slab, FILE_BYTES),
                 make_file(slab, FILE_BYTES) };
  for (size_t i = msg.slab_count + 1; i < 3; i++) {
    (void)close(fds[i]);
  }
  const wefti_heard heard = {
    .data = &msg, .len = wefti_export_len(&msg), .fds = fds, .nfds = msg.slab_count + 1
  };
  wefti_imports_message(imports, 0, 1, &heard);
  wefti_imports_visible(imports, 1, (const uint64_t[2]){ msg.digest_hi, msg.digest_lo });
  const weft_snapshot *s;
  void *holder;
  if (wefti_imports_pin(imports, 0, 1, &s, &holder) == WEFT_OK) {
    read_pinned(s);
    wefti_imports_unpin(holder);
  }
  weft_runtime_destroy(rt); /* runs what was called: a sweep */
  wefti_imports_destroy(imports);
  return 0;
}
