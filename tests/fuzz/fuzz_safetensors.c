/* Whatever the file says: an accepted header describes tensors that lie back to back
 * inside the file, and have the size that their shape and dtype ask for. */
#define _GNU_SOURCE /* memfd_create */
#include "weft/safetensors.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(cond)                                                                      \
  do {                                                                                   \
    if (!(cond)) {                                                                       \
      (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                   \
      abort();                                                                           \
    }                                                                                    \
  } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  const int fd = memfd_create("fuzz", MFD_CLOEXEC);
  CHECK(fd >= 0 && (size == 0 || write(fd, data, size) == (ssize_t)size));
  weft_safetensors *st = NULL;
  weft_why why = { 0 };
  const weft_err err = weft_safetensors_read(fd, "input", &st, &why);
  CHECK((err == WEFT_OK) == (st != NULL));
  CHECK(err == WEFT_OK || strncmp(why.text, "input: ", 7) == 0);
  if (st != NULL) {
    uint64_t at = st->data_at;
    for (size_t i = 0; i < st->count; i++) {
      const weft_st_tensor *t = &st->tensors[i];
      uint64_t bytes;
      CHECK(t->at == at);
      CHECK(weft_dtype_bytes(t->dtype, t->ndim, t->shape, &bytes) == WEFT_OK);
      CHECK(bytes == t->bytes);
      CHECK(weft_safetensors_find(st, t->name) == t);
      at += bytes;
    }
    CHECK(at == size);
  }
  weft_safetensors_free(st);
  (void)close(fd);
  return 0;
}
