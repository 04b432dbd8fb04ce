#include "pickle_ipc.h"

#include <string.h>

enum { ARGS = 15, LARGE_DEVICE = 4096 };

weft_err wefti_ipc_bad(wefti_ipc_reader *r, const char *field, const char *what,
                       wefti_pref found)
{
  char text[WEFTI_PTEXT];
  return weft_whyf(r->why, WEFT_E_PROTO, "IPC handle of parameter %zu: %s %s, found %s",
                   r->param, field, what, wefti_pdescribe(r->tree, found, text));
}

static const wefti_pnode *as(const wefti_ipc_reader *r, wefti_pref ref, wefti_pkind kind)
{
  return wefti_pnode_as(r->tree, ref, kind);
}

static bool none(const wefti_ipc_reader *r, wefti_pref ref)
{
  return as(r, ref, WEFTI_P_NONE) != NULL;
}

static weft_err want_global(wefti_ipc_reader *r, wefti_pref ref, wefti_pglobal g,
                            const char *field)
{
  const wefti_pnode *n = as(r, ref, WEFTI_P_GLOBAL);
  return n != NULL && n->global == (uint8_t)g
             ? WEFT_OK
             : wefti_ipc_bad(r, field, "is not the class that torch names there", ref);
}

static weft_err want_int(wefti_ipc_reader *r, wefti_pref ref, const char *field,
                         int64_t max, uint64_t *out)
{
  const wefti_pnode *n = as(r, ref, WEFTI_P_INT);
  if (n == NULL || n->u.integer < 0 || n->u.integer > max) {
    return wefti_ipc_bad(r, field, "is not an integer in range", ref);
  }
  *out = (uint64_t)n->u.integer;
  return WEFT_OK;
}

static weft_err want_ints(wefti_ipc_reader *r, wefti_pref ref, const char *field,
                          int64_t out[WEFT_DIMS_MAX], unsigned *ndim)
{
  const wefti_pnode *t = as(r, ref, WEFTI_P_TUPLE);
  if (t == NULL || t->count > WEFT_DIMS_MAX) {
    return wefti_ipc_bad(r, field, "is not a tuple of at most 8 integers", ref);
  }
  uint32_t at = t->u.cells.head;
  for (uint32_t i = 0; i < t->count; i++) {
    uint64_t v = 0;
    const weft_err err = want_int(r, r->tree->cells[at].node, field, INT64_MAX, &v);
    if (err != WEFT_OK) {
      return err;
    }
    out[i] = (int64_t)v;
    at = r->tree->cells[at].next;
  }
  *ndim = t->count;
  return WEFT_OK;
}

/* torch.Size((1, 2)), or the bare tuple. */
static weft_err want_shape(wefti_ipc_reader *r, wefti_pref ref, weft_ipc_tensor *t)
{
  const wefti_pnode *call = as(r, ref, WEFTI_P_CALL);
  wefti_pref tuple = ref;
  if (call != NULL) {
    const weft_err err = want_global(r, call->u.pair.a, WEFTI_G_SIZE, "tensor_size");
    if (err != WEFT_OK) {
      return err;
    }
    if (!wefti_ptuple(r->tree, call->u.pair.b, &tuple, 1)) {
      return wefti_ipc_bad(r, "tensor_size", "is not torch.Size of one tuple",
                           call->u.pair.b);
    }
  }
  return want_ints(r, tuple, "tensor_size", t->shape, &t->ndim);
}

static weft_err want_bool(wefti_ipc_reader *r, wefti_pref ref, const char *field,
                          bool may_be_none, bool *out)
{
  const wefti_pnode *n = as(r, ref, WEFTI_P_BOOL);
  if (n == NULL && !(may_be_none && none(r, ref))) {
    return wefti_ipc_bad(r, field, "is not a bool", ref);
  }
  *out = n != NULL && n->u.integer != 0;
  return WEFT_OK;
}

static weft_err read_handle(wefti_ipc_reader *r, wefti_pref ref, weft_ipc_tensor *t)
{
  if (none(r, ref)) {
    return WEFT_OK;
  }
  const wefti_pnode *n = as(r, ref, WEFTI_P_BYTES);
  if (n == NULL) {
    return wefti_ipc_bad(r, "storage_handle", "is not bytes", ref);
  }
  const uint8_t *p = n->u.bytes.at;
  const size_t len = n->u.bytes.len;
  t->has_handle = true;
  if (len == WEFT_IPC_HANDLE) { /* old torch */
    memcpy(t->handle, p, len);
    return WEFT_OK;
  }
  if (len < 2 || p[0] < 1 || p[0] > 3) {
    return weft_whyf(r->why, WEFT_E_UNSUPPORTED,
                     "IPC handle of parameter %zu: storage_handle of version %u and %zu "
                     "bytes; known are 64 bare bytes and versions 1 to 3",
                     r->param, len > 0 ? p[0] : 0u, len);
  }
  if (p[1] == 'e') {
    return weft_whyf(
        r->why, WEFT_E_UNSUPPORTED,
        "IPC handle of parameter %zu: the trainer's memory is in expandable "
        "segments, which other processes cannot open: set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False in the trainer, or "
        "let it send packed IPC from a plain cudaMalloc buffer",
        r->param);
  }
  if (p[1] != 'c' || len != 2 + WEFT_IPC_HANDLE) {
    return weft_whyf(r->why, WEFT_E_PROTO,
                     "IPC handle of parameter %zu: storage_handle of type 0x%02x and %zu "
                     "bytes; expected 'c' and 66",
                     r->param, p[1], len);
  }
  memcpy(t->handle, p + 2, WEFT_IPC_HANDLE);
  return WEFT_OK;
}

static size_t digits(const char *p)
{
  return strspn(p, "0123456789");
}

/* ^/torch_[0-9]+_[0-9]+_[0-9]+$: it becomes the name that we shm_open. */
static bool counter_name(const char *name)
{
  if (strncmp(name, "/torch_", 7) != 0) {
    return false;
  }
  const char *p = name + 7;
  for (unsigned i = 0; i < 3; i++) {
    const size_t n = digits(p);
    if (n == 0 || p[n] != (i < 2 ? '_' : '\0')) {
      return false;
    }
    p += n + 1;
  }
  return true;
}

static weft_err read_counter(wefti_ipc_reader *r, wefti_pref name, wefti_pref slot,
                             weft_ipc_tensor *t)
{
  uint64_t at;
  const weft_err err =
      want_int(r, slot, "ref_counter_offset", WEFT_IPC_COUNTER_SLOTS - 1, &at);
  if (err != WEFT_OK) {
    return err;
  }
  t->counter_slot = (unsigned)at;
  if (none(r, name)) {
    return WEFT_OK;
  }
  const wefti_pnode *n = as(r, name, WEFTI_P_BYTES);
  if (n == NULL || n->u.bytes.len > WEFT_IPC_COUNTER_MAX) {
    return wefti_ipc_bad(r, "ref_counter_handle", "is not a short name", name);
  }
  memcpy(t->counter, n->u.bytes.at, n->u.bytes.len);
  if (strlen(t->counter) != n->u.bytes.len || !counter_name(t->counter)) {
    return wefti_ipc_bad(r, "ref_counter_handle", "is not /torch_<n>_<n>_<n>", name);
  }
  return WEFT_OK;
}

static weft_err read_event(wefti_ipc_reader *r, wefti_pref event, wefti_pref sync,
                           weft_ipc_tensor *t)
{
  const wefti_pnode *n = as(r, event, WEFTI_P_BYTES);
  if (n != NULL ? n->u.bytes.len != WEFT_IPC_HANDLE : !none(r, event)) {
    return wefti_ipc_bad(r, "event_handle", "is not 64 bytes", event);
  }
  if (n != NULL) {
    t->has_event = true;
    memcpy(t->event, n->u.bytes.at, WEFT_IPC_HANDLE);
  }
  const weft_err err = want_bool(r, sync, "event_sync_required", true, &t->event_sync);
  if (err == WEFT_OK && t->event_sync && n == NULL) {
    return wefti_ipc_bad(r, "event_handle", "is needed, as event_sync_required is True",
                         event);
  }
  return err;
}

/* Elements from the first to behind the last; 0 for an empty tensor. */
static weft_err extent_of(weft_ipc_tensor *t, uint64_t *out)
{
  uint64_t extent = 1;
  int64_t dense = 1;
  t->contiguous = true;
  for (unsigned i = t->ndim; i-- > 0;) {
    uint64_t step;
    if (t->shape[i] == 0) {
      t->contiguous = true;
      *out = 0;
      return WEFT_OK;
    }
    if (__builtin_mul_overflow((uint64_t)t->shape[i] - 1, (uint64_t)t->stride[i],
                               &step) ||
        __builtin_add_overflow(extent, step, &extent)) {
      return WEFT_E_OVERFLOW;
    }
    t->contiguous = t->contiguous && (t->shape[i] == 1 || t->stride[i] == dense);
    if (__builtin_mul_overflow(dense, t->shape[i], &dense)) {
      return WEFT_E_OVERFLOW;
    }
  }
  *out = extent;
  return WEFT_OK;
}

static bool any_zero(const weft_ipc_tensor *t)
{
  for (unsigned i = 0; i < t->ndim; i++) {
    if (t->shape[i] == 0) {
      return true;
    }
  }
  return false;
}

/* Everything that is read lies inside the storage, and no sum of it wraps. */
static weft_err check_sizes(wefti_ipc_reader *r, uint64_t offset, weft_ipc_tensor *t)
{
  const uint64_t item = weft_dtype_bits(t->dtype) / 8;
  uint64_t extent = 0;
  uint64_t end = 0;
  weft_err err = any_zero(t) ? WEFT_OK : extent_of(t, &extent);
  t->contiguous = t->contiguous || any_zero(t);
  if (err == WEFT_OK) {
    err = weft_dtype_bytes(t->dtype, t->ndim, t->shape, &t->bytes);
  }
  if (err != WEFT_OK || __builtin_mul_overflow(offset, item, &t->at) ||
      __builtin_mul_overflow(extent, item, &end) ||
      __builtin_add_overflow(end, t->at, &end) ||
      t->storage_at > INT64_MAX - t->storage_bytes || end > t->storage_bytes) {
    return weft_whyf(
        r->why, WEFT_E_PROTO,
        "IPC handle of parameter %zu: the tensor does not fit its storage of "
        "%llu bytes",
        r->param, (unsigned long long)t->storage_bytes);
  }
  if (!t->has_handle && t->storage_bytes != 0) {
    return weft_whyf(
        r->why, WEFT_E_PROTO,
        "IPC handle of parameter %zu: no handle, but a storage of %llu bytes", r->param,
        (unsigned long long)t->storage_bytes);
  }
  return WEFT_OK;
}

static weft_err read_device(wefti_ipc_reader *r, wefti_pref ref)
{
  uint64_t index;
  return as(r, ref, WEFTI_P_TEXT) != NULL
             ? WEFT_OK /* SGLang: the sender's UUID */
             : want_int(r, ref, "storage_device", LARGE_DEVICE, &index);
}

static weft_err read_view(wefti_ipc_reader *r, const wefti_pref a[ARGS],
                          weft_ipc_tensor *t, uint64_t *offset)
{
  unsigned strides = 0;
  weft_err err = want_global(r, a[0], WEFTI_G_TENSOR, "tensor_cls");
  if (err == WEFT_OK) {
    err = want_shape(r, a[1], t);
  }
  if (err == WEFT_OK) {
    err = want_ints(r, a[2], "tensor_stride", t->stride, &strides);
  }
  if (err == WEFT_OK && strides != t->ndim) {
    err = wefti_ipc_bad(r, "tensor_stride", "has not one entry per dimension", a[2]);
  }
  if (err == WEFT_OK) {
    err = want_int(r, a[3], "tensor_offset", INT64_MAX, offset);
  }
  if (err == WEFT_OK) {
    err = want_global(r, a[4], WEFTI_G_STORAGE, "storage_cls");
  }
  if (err == WEFT_OK) {
    err = want_global(r, a[5], WEFTI_G_DTYPE, "dtype");
  }
  if (err == WEFT_OK) {
    t->dtype = (weft_dtype)wefti_pnode_at(r->tree, a[5])->dtype;
  }
  return err;
}

static weft_err read_storage(wefti_ipc_reader *r, const wefti_pref a[ARGS],
                             weft_ipc_tensor *t)
{
  bool requires_grad;
  weft_err err = read_device(r, a[6]);
  if (err == WEFT_OK) {
    err = read_handle(r, a[7], t);
  }
  if (err == WEFT_OK) {
    err = want_int(r, a[8], "storage_size_bytes", INT64_MAX, &t->storage_bytes);
  }
  if (err == WEFT_OK) {
    err = want_int(r, a[9], "storage_offset_bytes", INT64_MAX, &t->storage_at);
  }
  if (err == WEFT_OK) {
    err = want_bool(r, a[10], "requires_grad", false, &requires_grad);
  }
  if (err == WEFT_OK) {
    err = read_counter(r, a[11], a[12], t);
  }
  return err == WEFT_OK ? read_event(r, a[13], a[14], t) : err;
}

weft_err wefti_ipc_args(wefti_ipc_reader *r, wefti_pref ref, weft_ipc_tensor *t)
{
  wefti_pref pair[2];
  wefti_pref a[ARGS];
  wefti_pref args = ref;
  *t = (weft_ipc_tensor){ 0 };
  if (wefti_ptuple(r->tree, ref, pair, 2)) {
    const weft_err err = want_global(r, pair[0], WEFTI_G_REBUILD, "function");
    if (err != WEFT_OK) {
      return err;
    }
    args = pair[1];
  }
  if (!wefti_ptuple(r->tree, args, a, ARGS)) {
    return wefti_ipc_bad(r, "arguments", "are not the 15 of rebuild_cuda_tensor", args);
  }
  uint64_t offset = 0;
  weft_err err = read_view(r, a, t, &offset);
  if (err == WEFT_OK) {
    err = read_storage(r, a, t);
  }
  return err == WEFT_OK ? check_sizes(r, offset, t) : err;
}
