/* A parent's OFFER of a last life's weights and the table that comes with it: first the
 * message's slab count (with the top bit: somebody else's slabs, to be copied), tensors
 * and table length (3 bytes), then the table.  Whatever comes, what is taken lies inside
 * the slab, or is a copy, and nothing is left over. */
#define _GNU_SOURCE
#include "device.h"
#include "exports.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLAB_BYTES = 4096, BORROWED = 0x80 };

#define CHECK(cond)                                                                      \
  do {                                                                                   \
    if (!(cond)) {                                                                       \
      (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                   \
      abort();                                                                           \
    }                                                                                    \
  } while (0)

static int make_file(const void *data, size_t len)
{
  const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(fd >= 0 && write(fd, data, len) == (ssize_t)len);
  CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  return fd;
}

static void read_taken(const wefti_entry *entries, size_t count)
{
  volatile uint8_t sum = 0;
  for (size_t i = 0; i < count; i++) {
    const weft_tensor *t = &entries[i].t;
    CHECK(t->dtype != NULL && t->ndim <= WEFT_NDIM_MAX && t->bytes <= SLAB_BYTES);
    CHECK((t->bytes == 0) == (t->data == NULL));
    sum = (uint8_t)(sum + strlen(t->name));
    for (uint64_t b = 0; b < t->bytes; b++) {
      sum = (uint8_t)(sum + ((const uint8_t *)t->data)[b]);
    }
  }
}

static void take(wefti_device *device)
{
  const uint64_t digest[2] = { 1, 2 };
  wefti_entry *entries = NULL;
  size_t count = 0;
  weft_why why;
  if (device->keeper->take(device->keeper->arg, &entries, &count, &why) == WEFT_OK) {
    read_taken(entries, count);
    for (size_t i = 0; i < count; i++) {
      wefti_cell_unref(entries[i].cell);
    }
    free(entries);
  }
  CHECK(wefti_device_recall(device, digest, &why) != WEFT_OK); /* it is taken once */
  if (device->kept != NULL) {
    weft_memory_stats st;
    weft_memory_stats_get(device->kept, &st);
    CHECK(st.slabs == 0 && st.extents == 0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static const uint8_t slab[SLAB_BYTES];
  if (size < 3) {
    return 0;
  }
  weft_runtime *rt;
  wefti_device *device;
  wefti_taker *taker;
  const weft_runtime_opts one = { .size = sizeof one, .loops = 1 };
  const wefti_device_opts opts = { .size = sizeof opts, .backend = "host" };
  CHECK(weft_runtime_create(&one, &rt) == WEFT_OK);
  CHECK(wefti_device_create(&opts, &device, NULL) == WEFT_OK);
  CHECK(wefti_taker_create(rt, device, &taker) == WEFT_OK);
  wefti_export_msg msg = { .magic = WEFTI_EXPORT_MAGIC,
                           .version = WEFTI_EXPORT_VERSION,
                           .kind = WEFTI_EXPORT_OFFER,
                           .slab_count = (uint32_t)(data[0] % BORROWED) % 3,
                           .tensors = data[1],
                           .flags = (data[0] & BORROWED) != 0 ? WEFTI_EXPORT_BORROWED
                                                              : WEFTI_EXPORT_ALONE,
                           .table_bytes = size - 3 + (data[2] > 250 ? data[2] : 0) };
  for (uint32_t i = 0; i < msg.slab_count; i++) {
    msg.slabs[i] = (wefti_export_slab){ .id = i + 1, .bytes = SLAB_BYTES };
  }
  int fds[3] = { make_file(data + 3, size - 3), make_file(slab, SLAB_BYTES),
                 make_file(slab, SLAB_BYTES) };
  for (size_t i = msg.slab_count + 1; i < 3; i++) {
    (void)close(fds[i]);
  }
  wefti_taker_message(taker, &msg, wefti_export_len(&msg), fds, msg.slab_count + 1);
  take(device);
  weft_runtime_destroy(rt);
  wefti_taker_destroy(taker);
  wefti_device_destroy(device);
  return 0;
}
