/* What comes to a door or a join socket: first a byte that says which, then requests,
 * each behind its length.  Every request has an answer that is a JSON object, and without
 * the token nobody is a guest. */
#include "door_kind.h"
#include "join_kind.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(cond)                                                                      \
  do {                                                                                   \
    if (!(cond)) {                                                                       \
      (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                   \
      abort();                                                                           \
    }                                                                                    \
  } while (0)

static weft_err on_guest(void *arg, const void *facts, weft_why *why)
{
  (void)arg;
  (void)facts;
  (void)why;
  (void)fprintf(stderr, "a guest without the token\n");
  abort();
}

static void hear(wefti_host *host, uint64_t now_ms, const uint8_t *data, size_t len)
{
  weft_json_writer w;
  char *text = NULL;
  size_t n = 0;
  weft_json *o = NULL;
  weft_jw_init(&w);
  CHECK(wefti_host_hear(host, now_ms, data, len, &w));
  CHECK(weft_jw_take(&w, &text, &n) == WEFT_OK);
  CHECK(weft_json_parse(text, n, NULL, &o, NULL) == WEFT_OK);
  CHECK(weft_json_get(o, "error") != NULL || weft_json_get(o, "proof") != NULL);
  weft_json_free(o);
  free(text);
  weft_jw_fini(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  if (size == 0) {
    return 0;
  }
  wefti_host *host =
      wefti_host_create(data[0] % 2 == 0 ? &wefti_door_kind : &wefti_join_kind,
                        "a token that no input holds", on_guest, NULL);
  CHECK(host != NULL);
  uint64_t now_ms = 1;
  data++;
  size--;
  while (size >= 2) {
    const size_t said = (size_t)data[0] << 8 | data[1];
    const size_t len = said < size - 2 ? said : size - 2;
    hear(host, now_ms, data + 2, len);
    now_ms += len;
    data += 2 + len;
    size -= 2 + len;
  }
  wefti_host_destroy(host);
  return 0;
}
