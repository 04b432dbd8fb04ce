/* Whatever the pickle: nothing is read outside it, a refusal has a text, and what is
 * accepted lies inside its storage. */
#include "weft/pickle.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                                      \
  do {                                                                                   \
    if (!(cond)) {                                                                       \
      (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                   \
      abort();                                                                           \
    }                                                                                    \
  } while (0)

static void check_tensor(const weft_ipc_tensor *t)
{
  uint64_t bytes;
  CHECK(t->ndim <= WEFT_DIMS_MAX);
  CHECK(weft_dtype_bytes(t->dtype, t->ndim, t->shape, &bytes) == WEFT_OK);
  CHECK(bytes == t->bytes);
  CHECK(t->at <= t->storage_bytes);
  CHECK(!t->contiguous || bytes <= t->storage_bytes - t->at);
  CHECK(t->storage_bytes <= INT64_MAX && t->storage_at <= INT64_MAX - t->storage_bytes);
  CHECK(t->has_handle || t->storage_bytes == 0);
  CHECK(!t->event_sync || t->has_event);
  CHECK(t->counter_slot < WEFT_IPC_COUNTER_SLOTS);
  CHECK(t->counter[0] == '\0' || strncmp(t->counter, "/torch_", 7) == 0);
}

static void try_handles(const uint8_t *data, size_t size, const char *uuid)
{
  weft_ipc_handles h = { 0 };
  weft_why why = { 0 };
  const weft_err err = weft_ipc_handles_read(data, size, uuid, &h, &why);
  CHECK((err == WEFT_OK) == (h.tensors != NULL));
  CHECK(err == WEFT_OK || why.text[0] != '\0');
  for (size_t i = 0; h.tensors != NULL && i < h.count; i++) {
    check_tensor(&h.tensors[i]);
  }
  weft_ipc_handles_free(&h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  uint8_t id[WEFT_NCCL_ID];
  uint8_t out[WEFT_NCCL_ID_PICKLE_MAX];
  char text[WEFT_PICKLED_TEXT_MAX + 1];
  size_t len = 0;
  weft_why why = { 0 };
  const weft_err err = weft_nccl_id_read(data, size, id, &why);
  if (err == WEFT_OK) {
    uint8_t again[WEFT_NCCL_ID];
    CHECK(weft_nccl_id_write(WEFT_NCCL_MODULE_SGLANG, id, out, sizeof out, &len) ==
          WEFT_OK);
    CHECK(weft_nccl_id_read(out, len, again, NULL) == WEFT_OK);
    CHECK(memcmp(id, again, sizeof id) == 0);
  } else {
    CHECK(why.text[0] != '\0');
  }
  if (weft_pickled_text_read(data, size, text, NULL) == WEFT_OK) {
    char again[WEFT_PICKLED_TEXT_MAX + 1];
    CHECK(weft_pickled_text_write(text, out, sizeof out, &len) == WEFT_OK);
    CHECK(weft_pickled_text_read(out, len, again, NULL) == WEFT_OK);
    CHECK(strcmp(text, again) == 0);
  }
  try_handles(data, size, NULL);
  try_handles(data, size, "8e1b2f60-1111-2222-3333-444455556666");
  weft_ipc_handles h = { 0 };
  if (weft_ipc_handles_from_base64((const char *)data, size, NULL, &h, NULL) == WEFT_OK) {
    weft_ipc_handles_free(&h);
  }
  return 0;
}
