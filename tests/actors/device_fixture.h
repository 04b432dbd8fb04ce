/* device_fixture.h -- the real device actor behind a real worker actor, and the engine's
 * side of an update that comes from safetensors files.  Not here: what is tested. */
#ifndef WEFT_DEVICE_FIXTURE_H
#define WEFT_DEVICE_FIXTURE_H

#include "device_update.h"
#include "weft/json.h"
#include "weft/memory.h"
#include "worker_world.h"

#include <sys/stat.h>

typedef struct fixture {
  world *w;
  char dir[PATH_LEN];
  uint64_t epoch, sequence;
} fixture;

static inline fixture *begin_with(const wefti_device_opts *opts)
{
  fixture *f = calloc(1, sizeof *f);
  assert_non_null(f);
  strcpy(f->dir, "/tmp/weft-device-XXXXXX");
  assert_non_null(mkdtemp(f->dir));
  wefti_device *device = NULL;
  weft_why why = { 0 };
  if (wefti_device_create(opts, &device, &why) != WEFT_OK) {
    fail_msg("%s", why.text);
  }
  f->w = world_begin_with(1, device, false);
  const uint64_t none[2] = { 0, 0 };
  world_as(world_adopt(f->w, 0, none), w_state, W_STATE);
  return f;
}

static inline fixture *begin(void)
{
  const wefti_device_opts opts = { .size = sizeof opts, .backend = "host", .threads = 2 };
  return begin_with(&opts);
}

static inline void end(fixture *f)
{
  world_end(f->w); /* destroys the memory: all extents must be back */
  assert_int_equal(rmdir(f->dir), 0);
  free(f);
}

/* ---- the engine's side of an update */

static const weft_msg *start(fixture *f)
{
  wefti_store_state st;
  wefti_store_state_get(f->w->device->store, &st);
  return world_ask(f->w, w_start, W_START, ++f->epoch,
                   .base_sequence = st.weights_sequence, .base_digest_hi = st.digest_hi,
                   .base_digest_lo = st.digest_lo, .inplace = f->w->device->inplace,
                   .timeout_ms = 4000);
}

static const weft_msg *put_info(fixture *f, weft_transfer_what what, const char *text)
{
  weft_buf *info = weft_buf_create(text, strlen(text));
  assert_non_null(info);
  const weft_msg *m = world_ask(f->w, w_accept, W_ACCEPT, f->epoch, .what = what,
                                .timeout_ms = 60000, .info = info);
  weft_buf_unref(info);
  return m;
}

static const weft_msg *go(fixture *f, weft_transfer_what what)
{
  return world_ask(f->w, w_go, W_GO, f->epoch, .what = what, .timeout_ms = 60000);
}

static const weft_msg *finish(fixture *f, bool strict)
{
  return world_ask(f->w, w_finish, W_FINISH, f->epoch, .strict = strict,
                   .timeout_ms = 60000);
}

static const weft_msg *accept_file(fixture *f, const char *path)
{
  char info[2 * PATH_LEN];
  info_of_file(path, info);
  return put_info(f, WEFT_TRANSFER_UPDATE, info);
}

static inline void path_in(const fixture *f, char out[PATH_LEN])
{
  (void)snprintf(out, PATH_LEN, "%.100s/file.safetensors", f->dir);
}

/* Writes the tensors to a file and brings them in. */
static inline void update(fixture *f, const spec *specs, size_t count)
{
  char path[PATH_LEN];
  path_in(f, path);
  write_file(path, specs, count);
  world_as(accept_file(f, path), w_ok, W_OK);
  world_as(go(f, WEFT_TRANSFER_UPDATE), w_ok, W_OK);
  assert_int_equal(unlink(path), 0);
}

static inline void publish(fixture *f)
{
  world_as(world_ask(f->w, w_publish, W_PUBLISH, f->epoch, .sequence = ++f->sequence),
           w_ok, W_OK);
}

static inline weft_w_finished commit(fixture *f, const spec *specs, size_t count)
{
  world_as(start(f), w_ok, W_OK);
  update(f, specs, count);
  const weft_w_finished done = *world_as(finish(f, false), w_finished, W_FINISHED);
  publish(f);
  return done;
}

/* The first byte of a live tensor, after checking that all of its bytes are equal. */
static inline int live_fill(fixture *f, const char *name)
{
  const weft_snapshot *s;
  assert_ok(weft_store_pin(f->w->device->store, 0, &s));
  const weft_tensor *t = weft_snapshot_find(s, name);
  int fill = -1;
  if (t && t->bytes > 0) {
    const uint8_t *data = t->data;
    fill = data[0];
    for (uint64_t i = 1; i < t->bytes; i++) {
      assert_int_equal(data[i], fill);
    }
  }
  weft_store_unpin(f->w->device->store, s);
  return fill;
}

static inline weft_memory_stats memory_stats(fixture *f)
{
  weft_memory_stats st;
  weft_memory_stats_get(f->w->device->memory, &st);
  return st;
}

static const spec full[] = {
  { "model.b", WEFT_DTYPE_BFLOAT16, 2, { 64, 32 }, 1 },
  { "model.a", WEFT_DTYPE_FLOAT32, 1, { 1000 }, 2 },
  { "scalar", WEFT_DTYPE_INT64, 0, { 0 }, 3 },
  { "empty", WEFT_DTYPE_UINT8, 2, { 0, 7 }, 0 },
};
enum { FULL = sizeof full / sizeof full[0] };

#endif /* WEFT_DEVICE_FIXTURE_H */
