/* vector_file.h -- reads a committed pickle, and runs a function on each prefix and each
 * one-byte change of it, in memory of exactly its size.  Not a test itself. */
#ifndef WEFT_TEST_VECTOR_FILE_H
#define WEFT_TEST_VECTOR_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct vector {
  uint8_t *data;
  size_t len;
} vector;

__attribute__((unused)) static vector read_vector(const char *name)
{
  char path[512];
  (void)snprintf(path, sizeof path, "%s/%s", WEFT_TEST_VECTORS, name);
  FILE *f = fopen(path, "rb");
  vector v = { .data = malloc(1 << 20) };
  if (f == NULL || v.data == NULL) {
    fail_msg("cannot read %s", path);
  }
  v.len = fread(v.data, 1, 1 << 20, f);
  (void)fclose(f);
  return v;
}

typedef void bytes_fn(const uint8_t *data, size_t len);

/* Exact allocations: reading one byte too far is seen. */
__attribute__((unused)) static void with_copy(const uint8_t *data, size_t len,
                                              bytes_fn *fn)
{
  uint8_t *copy = malloc(len + (len == 0));
  if (copy == NULL) {
    abort();
  }
  memcpy(copy, data, len);
  fn(copy, len);
  free(copy);
}

__attribute__((unused)) static void each_damage(const vector *v, size_t step,
                                                bytes_fn *fn)
{
  for (size_t n = 0; n < v->len; n += step) {
    with_copy(v->data, n, fn);
  }
  uint8_t *copy = malloc(v->len + (v->len == 0));
  if (copy == NULL) {
    abort();
  }
  memcpy(copy, v->data, v->len);
  for (size_t i = 0; i < v->len; i += step) {
    for (unsigned flip = 0; flip < 4; flip++) {
      static const uint8_t by[] = { 0x01, 0x80, 0xff, 0x40 };
      copy[i] ^= by[flip];
      fn(copy, v->len);
      copy[i] = v->data[i];
    }
  }
  free(copy);
}

#endif /* WEFT_TEST_VECTOR_FILE_H */
