/* device_update.h -- updates from safetensors files, with or without an actor around the
 * device: the file, its update_info, and a whole session that the test drives itself. Not
 * here: what is tested. */
#ifndef WEFT_DEVICE_UPDATE_H
#define WEFT_DEVICE_UPDATE_H

#include "weft_test.h"

#include "device.h"
#include "weft/safetensors.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_LEN = 128 };

typedef struct spec {
  const char *name;
  weft_dtype dtype;
  unsigned ndim;
  int64_t shape[3];
  uint8_t fill;
} spec;

static inline uint64_t spec_bytes(const spec *s)
{
  uint64_t bytes;
  assert_ok(weft_dtype_bytes(s->dtype, s->ndim, s->shape, &bytes));
  return bytes;
}

static inline void write_file(const char *path, const spec *specs, size_t count)
{
  weft_st_spec st[16];
  assert_true(count <= 16);
  const int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  for (size_t i = 0; i < count; i++) {
    st[i] =
        (weft_st_spec){ specs[i].name, specs[i].dtype, specs[i].ndim, specs[i].shape };
  }
  weft_st_writer *writer;
  assert_ok(weft_st_writer_create(fd, st, count, &writer, NULL));
  for (size_t i = 0; i < count; i++) {
    const uint64_t bytes = spec_bytes(&specs[i]);
    uint8_t *data = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(data);
    memset(data, specs[i].fill, bytes);
    assert_ok(weft_st_writer_put(writer, data, bytes, NULL));
    free(data);
  }
  assert_ok(weft_st_writer_end(writer, NULL));
  weft_st_writer_destroy(writer);
  assert_int_equal(close(fd), 0);
}

static inline void info_of_file(const char *path, char out[2 * PATH_LEN])
{
  (void)snprintf(out, 2 * PATH_LEN,
                 "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"}}", path);
}

/* A file in a folder of its own, and what says that it is to be taken. */
typedef struct file_update {
  char dir[PATH_LEN], path[PATH_LEN];
  weft_buf *info;
} file_update;

static inline void file_update_make(file_update *u)
{
  char text[2 * PATH_LEN];
  strcpy(u->dir, "/tmp/weft-update-XXXXXX");
  assert_non_null(mkdtemp(u->dir));
  (void)snprintf(u->path, sizeof u->path, "%.100s/f", u->dir);
  info_of_file(u->path, text);
  u->info = weft_buf_create(text, strlen(text));
  assert_non_null(u->info);
}

static inline void file_update_end(file_update *u)
{
  assert_int_equal(unlink(u->path), 0);
  assert_int_equal(rmdir(u->dir), 0);
  weft_buf_unref(u->info);
}

/* A session up to the install, with that update so often. */
static inline weft_err file_update_run(const file_update *u, wefti_device *device,
                                       uint64_t epoch, unsigned times)
{
  wefti_device_session s = { .device = device };
  wefti_device_result result = { 0 };
  const weft_transfer_who who = { .epoch = epoch, .world_size = 1 };
  weft_why why = { 0 };
  weft_err err = wefti_session_open(&s, &(weft_device_run){ .epoch = epoch }, &why);
  for (unsigned i = 0; i < times && err == WEFT_OK; i++) {
    err = wefti_session_accept(&s, u->info, &who, &result, &why);
    if (err == WEFT_OK) {
      err = wefti_session_receive(&s, 0, &result, &why);
    }
  }
  if (err == WEFT_OK) {
    err = wefti_session_finish(&s, true, &result, &why);
  }
  weft_buf_unref(result.json);
  wefti_session_close(&s);
  if (err != WEFT_OK) {
    assert_true(why.text[0] != '\0');
  }
  return err;
}

#endif /* WEFT_DEVICE_UPDATE_H */
