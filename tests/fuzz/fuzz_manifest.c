/* Whatever the text says: an accepted manifest is sorted, its sizes are right, its groups
 * are whole, and what is written of it reads back as the same. */
#define _GNU_SOURCE
#include "manifest.h"
#include "weft/dtype.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(cond)                                                                      \
  do {                                                                                   \
    if (!(cond)) {                                                                       \
      (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                   \
      abort();                                                                           \
    }                                                                                    \
  } while (0)

static bool same_type(const weft_tensor *a, const weft_tensor *b)
{
  return strcmp(a->dtype, b->dtype) == 0 && a->ndim == b->ndim &&
         (a->ndim == 0 || memcmp(a->shape, b->shape, a->ndim * sizeof(int64_t)) == 0);
}

static void check_table(const wefti_manifest *m)
{
  size_t tied = 0;
  for (size_t i = 0; i < m->count; i++) {
    const weft_tensor *t = &m->tensors[i];
    uint64_t bytes;
    CHECK(t->name[0] != '\0' && (i == 0 || strcmp(m->tensors[i - 1].name, t->name) < 0));
    CHECK(wefti_manifest_find(m, t->name) == i);
    CHECK(weft_dtype_bytes(weft_dtype_parse(t->dtype), t->ndim, t->shape, &bytes) ==
          WEFT_OK);
    CHECK(bytes == t->bytes);
    if (m->tied[i] != WEFTI_UNTIED) {
      CHECK(m->tied[i] < m->count && m->tied[m->tied[i]] == m->tied[i]);
      CHECK(same_type(&m->tensors[m->tied[i]], t));
      tied++;
    }
  }
  CHECK(tied == m->tied_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  wefti_manifest *m = NULL;
  weft_why why = { 0 };
  const weft_err err = wefti_manifest_parse((const char *)data, size, "input", &m, &why);
  CHECK((err == WEFT_OK) == (m != NULL));
  if (err != WEFT_OK) {
    CHECK(err == WEFT_E_INVAL && strncmp(why.text, "input: ", 7) == 0);
    return 0;
  }
  check_table(m);
  if (m->tied_count > 0) { /* the rest is said by the lists alone */
    char path[64];
    (void)snprintf(path, sizeof path, "/tmp/weft-fuzz-manifest-%ld", (long)getpid());
    wefti_manifest *again = NULL;
    CHECK(wefti_manifest_save(m, path, NULL) == WEFT_OK);
    CHECK(wefti_manifest_load(path, &again, NULL) == WEFT_OK);
    CHECK(unlink(path) == 0);
    check_table(again);
    CHECK(again->count == m->count && again->tied_count == m->tied_count);
    for (size_t i = 0; i < m->count; i++) {
      CHECK(strcmp(again->tensors[i].name, m->tensors[i].name) == 0);
      CHECK(same_type(&again->tensors[i], &m->tensors[i]));
      CHECK((again->tied[i] == WEFTI_UNTIED) == (m->tied[i] == WEFTI_UNTIED));
    }
    wefti_manifest_free(again);
  }
  wefti_manifest_free(m);
  return 0;
}
