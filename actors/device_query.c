/* Questions about the live set, and the checker's reset. */
#include "device.h"
#include "weft/checked.h"
#include "weft/digest.h"
#include "weft/json.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 4 << 20 }; /* bytes between two looks at cancel */

weft_err wefti_json_buf(weft_json_writer *w, weft_buf **out)
{
  *out = weft_jw_take_buf(w);
  return *out != NULL ? WEFT_OK : WEFT_E_NOMEM;
}

weft_err wefti_entries_digest(const wefti_entry *entries, size_t count, uint64_t out[2])
{
  weft_hasher *hasher = weft_hasher_create();
  if (!hasher) {
    return WEFT_E_NOMEM;
  }
  weft_hasher_reset(hasher);
  for (size_t i = 0; i < count; i++) {
    const weft_tensor *t = &entries[i].t;
    weft_hasher_add_tensor(hasher, t->name, t->dtype, t->ndim, t->shape,
                           weft_digest_load(t->digest));
  }
  const weft_digest digest = weft_hasher_value(hasher);
  weft_hasher_destroy(hasher);
  out[0] = digest.hi;
  out[1] = digest.lo;
  return WEFT_OK;
}

/* Tensors of a draft model have a prefix that no client's name has. */
static void write_slice(const wefti_device *device, weft_json_writer *w, const char *name)
{
  static const char draft[] = "draft:";
  const size_t skip =
      strncmp(name, draft, sizeof draft - 1) == 0 && device->draft ? sizeof draft - 1 : 0;
  unsigned dim;
  if (!device->tp_plan || device->tp <= 1 ||
      !weft_tp_plan_find(device->tp_plan, name + skip, &dim)) {
    return;
  }
  weft_jw_object(w, "slice");
  weft_jw_u64(w, "dim", dim);
  weft_jw_u64(w, "index", device->rank % device->tp);
  weft_jw_u64(w, "of", device->tp);
  weft_jw_end(w);
}

static void write_tensor(const wefti_device *device, weft_json_writer *w,
                         const weft_tensor *t)
{
  char digest[WEFT_DIGEST_TEXT];
  weft_digest_text(weft_digest_load(t->digest), digest);
  weft_jw_object(w, NULL);
  weft_jw_str(w, "name", t->name);
  weft_jw_str(w, "dtype", t->dtype);
  weft_jw_array(w, "shape");
  for (unsigned i = 0; i < t->ndim; i++) {
    weft_jw_i64(w, NULL, t->shape[i]);
  }
  weft_jw_end(w);
  weft_jw_u64(w, "bytes", t->bytes);
  weft_jw_str(w, "digest", digest);
  write_slice(device, w, t->name);
  weft_jw_end(w);
}

weft_err wefti_device_weights(wefti_device *device, weft_buf **out, weft_why *why)
{
  weft_json_writer w;
  const weft_snapshot *live = wefti_store_base(device->store);
  weft_jw_init(&w);
  weft_jw_array(&w, NULL);
  weft_err err = WEFT_OK;
  for (size_t i = 0; live && i < live->tensor_count && err == WEFT_OK; i++) {
    write_tensor(device, &w, &live->tensors[i]);
    err = wefti_device_cancelled(device) ? WEFT_E_CANCELLED : WEFT_OK;
  }
  weft_jw_end(&w);
  weft_store_unpin(device->store, live);
  if (err == WEFT_OK) {
    err = wefti_json_buf(&w, out);
  } else {
    weft_jw_fini(&w);
  }
  return err == WEFT_OK ? WEFT_OK
                        : weft_whyf(why, err, "list of weights: %s", weft_strerror(err));
}

/* A host copy of t's bytes, to be freed; of host memory none is needed.  Device memory
 * costs a tensor of host memory for as long. */
static weft_err host_bytes(wefti_device *device, const weft_tensor *t, void **copy)
{
  *copy = NULL;
  if (weft_memory_device(device->memory) < 0 || t->bytes == 0) {
    return WEFT_OK;
  }
  *copy = malloc(t->bytes);
  const weft_err err =
      *copy ? weft_memory_read(device->memory, *copy, t->data, t->bytes, NULL)
            : WEFT_E_NOMEM;
  if (err != WEFT_OK) {
    free(*copy);
    *copy = NULL;
  }
  return err;
}

static weft_err write_checksum(wefti_device *device, weft_json_writer *w,
                               const weft_tensor *t, const char *prefix)
{
  uint8_t sha[WEFT_SHA256_BYTES];
  char text[WEFT_SHA256_TEXT];
  void *copy = NULL;
  size_t size;
  weft_err err = weft_size_add(strlen(prefix), strlen(t->name) + 1, &size);
  char *key = err == WEFT_OK ? malloc(size) : NULL;
  if (!key) {
    return WEFT_E_NOMEM;
  }
  (void)snprintf(key, size, "%s%s", prefix, t->name);
  err = host_bytes(device, t, &copy);
  if (err == WEFT_OK) {
    err = weft_sha256_until(copy ? copy : t->data, t->bytes, &device->cancel, sha, text);
  }
  if (err == WEFT_OK) {
    weft_jw_str(w, key, text);
  }
  free(copy);
  free(key);
  return err;
}

weft_err wefti_device_checksum(wefti_device *device, uint32_t rank, uint32_t dp_index,
                               weft_buf **out, weft_why *why)
{
  weft_json_writer w;
  weft_err err = WEFT_OK;
  char prefix[96];
  (void)snprintf(prefix, sizeof prefix,
                 "dp%" PRIu32 ":pp%" PRIu32 ":pcp0:tp%" PRIu32 ":ep0:", dp_index,
                 rank / device->tp, rank % device->tp);
  const weft_snapshot *live = wefti_store_base(device->store);
  weft_jw_init(&w);
  weft_jw_object(&w, NULL);
  for (size_t i = 0; live && i < live->tensor_count && err == WEFT_OK; i++) {
    err = wefti_device_cancelled(device) /* also where tensors have no bytes */
              ? WEFT_E_CANCELLED
              : write_checksum(device, &w, &live->tensors[i], prefix);
  }
  weft_jw_end(&w);
  weft_store_unpin(device->store, live);
  if (err == WEFT_OK) {
    err = wefti_json_buf(&w, out);
  } else {
    weft_jw_fini(&w);
  }
  return err == WEFT_OK ? WEFT_OK
                        : weft_whyf(why, err, "checksums: %s", weft_strerror(err));
}

/* ---- reset */

static weft_err invert_bytes(wefti_device *device, const uint8_t *in, uint8_t *out,
                             uint64_t bytes, weft_digest *digest)
{
  weft_hasher *hasher = weft_hasher_create();
  if (!hasher) {
    return WEFT_E_NOMEM;
  }
  uint64_t at = 0;
  while (at < bytes && !wefti_device_cancelled(device)) {
    const uint64_t end = bytes - at < PIECE ? bytes : at + PIECE;
    for (uint64_t i = at; i < end; i++) {
      out[i] = (uint8_t)~in[i];
    }
    weft_hasher_update(hasher, out + at, (size_t)(end - at));
    at = end;
  }
  *digest = weft_hasher_value(hasher);
  weft_hasher_destroy(hasher);
  return at < bytes ? WEFT_E_CANCELLED : WEFT_OK;
}

static weft_err write_inverted(wefti_device *device, const weft_tensor *from,
                               const weft_extent *extent, weft_digest *digest)
{
  void *copy = NULL;
  weft_err err = host_bytes(device, from, &copy);
  if (err != WEFT_OK) {
    return err;
  }
  err = copy ? invert_bytes(device, copy, copy, from->bytes, digest)
             : invert_bytes(device, from->data, extent->ptr, from->bytes, digest);
  if (err == WEFT_OK && copy) {
    err = weft_memory_write(device->memory, extent->ptr, copy, from->bytes, NULL);
  }
  free(copy);
  return err;
}

static weft_err invert(wefti_device *device, const weft_tensor *from, wefti_entry *to,
                       weft_why *why)
{
  weft_extent extent;
  weft_err err = weft_memory_alloc(device->memory, from->bytes, &extent, why);
  if (err != WEFT_OK) {
    return err;
  }
  weft_digest digest = { 0, 0 };
  err = write_inverted(device, from, &extent, &digest);
  if (err == WEFT_OK) {
    err = wefti_cell_create(from, device->memory, &extent, to);
  }
  if (err != WEFT_OK) {
    weft_memory_free(device->memory, &extent);
    return weft_whyf(why, err, "reset: %s", weft_strerror(err));
  }
  weft_digest_store(digest, to->t.digest);
  return WEFT_OK;
}

static weft_err swap_in(wefti_device *device, const wefti_entry *entries, size_t count,
                        weft_why *why)
{
  uint64_t digest[2];
  weft_err err = wefti_entries_digest(entries, count, digest);
  if (err == WEFT_OK) {
    err = wefti_store_swap(device->store, entries, count, digest);
  }
  return err == WEFT_OK ? WEFT_OK : weft_whyf(why, err, "reset: %s", weft_strerror(err));
}

weft_err wefti_device_reset(wefti_device *device, weft_buf **out, weft_why *why)
{
  const weft_snapshot *live = wefti_store_base(device->store);
  if (!live) {
    return weft_whyf(why, WEFT_E_NOT_YET, "reset: no weights are loaded");
  }
  const size_t count = live->tensor_count;
  wefti_entry *entries = calloc(count > 0 ? count : 1, sizeof(wefti_entry));
  if (!entries) {
    weft_store_unpin(device->store, live);
    return weft_whyf(why, WEFT_E_NOMEM, "reset: out of memory");
  }
  weft_err err = wefti_store_room(device->store, why);
  size_t made = 0;
  while (err == WEFT_OK && made < count) {
    err = wefti_device_cancelled(device)
              ? weft_whyf(why, WEFT_E_CANCELLED, "reset: cancelled")
              : invert(device, &live->tensors[made], &entries[made], why);
    made += err == WEFT_OK;
  }
  weft_buf *done = err == WEFT_OK ? weft_buf_create("{}", 2) : NULL;
  if (err == WEFT_OK) {
    err = done ? swap_in(device, entries, count, why)
               : weft_whyf(why, WEFT_E_NOMEM, "reset: out of memory");
  }
  if (err == WEFT_OK) {
    *out = done;
  } else {
    weft_buf_unref(done);
  }
  for (size_t i = 0; i < made; i++) {
    wefti_cell_unref(entries[i].cell);
  }
  free(entries);
  weft_store_unpin(device->store, live);
  wefti_store_reap(device->store);
  return err;
}
