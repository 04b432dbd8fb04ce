/* A stranger's C program: an engine in this process takes a push and its weights are
 * read. */
#define _POSIX_C_SOURCE 200809L /* mkstemp */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <weft/weft.h>

static int fail(const char *what, weft_err err, const weft_why *why)
{
  fprintf(stderr, "%s: %s: %s\n", what, weft_err_name(err), why->text);
  return 1;
}

/* One tensor, w = [1, 2, 3, 4] as float32. */
static int write_file(const char *path)
{
  static const char head[] =
      "{\"w\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}} ";
  const float data[4] = { 1, 2, 3, 4 };
  const unsigned char length[8] = { (unsigned char)(sizeof head - 1) };
  FILE *f = fopen(path, "wb");
  const int ok = f != NULL && fwrite(length, 8, 1, f) == 1 &&
                 fwrite(head, sizeof head - 1, 1, f) == 1 &&
                 fwrite(data, sizeof data, 1, f) == 1;
  return (f == NULL || fclose(f) != 0 || !ok) ? 1 : 0;
}

static int push(weft_engine *engine, const char *path)
{
  weft_why why = { .text = "" };
  char info[512];
  weft_err err = weft_engine_start(engine, 0, &why);
  if (err != WEFT_OK) {
    return fail("start", err, &why);
  }
  snprintf(info, sizeof info, "{\"source\":{\"kind\":\"safetensors\",\"path\":\"%s\"}}",
           path);
  err = weft_engine_update(engine, info, 0, &why);
  if (err != WEFT_OK) {
    return fail("update", err, &why);
  }
  err = weft_engine_finish(engine, "consumer-1", 0, &why);
  return err != WEFT_OK ? fail("finish", err, &why) : 0;
}

static int read_back(weft_engine *engine)
{
  weft_why why = { .text = "" };
  weft_pinned pinned;
  float w[4] = { 0 };
  const weft_err err = weft_pin(engine, 1, 0, &pinned, &why);
  if (err != WEFT_OK) {
    return fail("pin", err, &why);
  }
  const weft_tensor *t = weft_snapshot_find(pinned.snapshot, "w");
  if (t != NULL && t->bytes == sizeof w) {
    memcpy(w, t->data, sizeof w);
  }
  printf("version %s: w = %g %g %g %g\n", pinned.version, (double)w[0], (double)w[1],
         (double)w[2], (double)w[3]);
  const int good = strcmp(pinned.version, "consumer-1") == 0 && w[0] == 1 && w[3] == 4;
  weft_unpin(&pinned);
  return good ? 0 : 1;
}

int main(void)
{
  char path[] = "/tmp/weft-consumer-XXXXXX";
  const weft_engine_opts opts = { .size = sizeof opts,
                                  .workers = WEFT_WORKERS_THREADS,
                                  .tp = 2 };
  weft_engine *engine = NULL;
  weft_why why = { .text = "" };
  const int fd = mkstemp(path);
  if (fd < 0 || close(fd) != 0 || write_file(path) != 0) {
    fprintf(stderr, "%s: cannot be written\n", path);
    return 1;
  }
  weft_err err = weft_engine_create(&opts, &engine, &why);
  if (err != WEFT_OK) {
    return fail("create", err, &why);
  }
  err = weft_engine_wait_ready(engine, 20000, &why);
  int rc = err != WEFT_OK ? fail("wait_ready", err, &why) : push(engine, path);
  rc = rc != 0 ? rc : read_back(engine);
  weft_engine_destroy(engine);
  remove(path);
  return rc;
}
