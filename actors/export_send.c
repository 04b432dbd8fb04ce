#define _GNU_SOURCE
#include "device.h"
#include "exports.h"
#include "weft/checked.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The worker's end: holds what it has told of. */

typedef struct held {
  struct held *next;
  uint64_t epoch;
  bool dropped, told; /* told: the parent has been sent it and will release it */
  const weft_snapshot *snapshot; /* shared: a reader of the store for as long */
  int table;
  wefti_export_msg msg; /* INSTALL, without slabs */
  wefti_export_slab *slabs;
  int *slab_fds; /* [slab_count] */
  size_t slab_count, slab_cap;
} held;

struct wefti_exporter {
  weft_runtime *rt;
  wefti_device *device;
  weft_lifeline *line;  /* loop 0's */
  pthread_mutex_t lock; /* over held */
  held *held;
};

static void close_slabs(held *h)
{
  for (size_t i = 0; i < h->slab_count; i++) {
    (void)close(h->slab_fds[i]);
  }
  h->slab_count = 0;
}

static void free_held(const wefti_exporter *x, held *h)
{
  close_slabs(h);
  if (h->table >= 0) {
    (void)close(h->table);
  }
  wefti_store_unshare(x->device->store, h->snapshot);
  free(h->slabs);
  free(h->slab_fds);
  free(h);
}

/* ---- the table */

static weft_err add_slab(held *h, const wefti_cell *cell)
{
  const uint32_t id = wefti_cell_extent(cell)->slab;
  for (size_t i = h->slab_count; i-- > 0;) { /* neighbours share a slab */
    if (h->slabs[i].id == id) {
      return WEFT_OK;
    }
  }
  if (h->slab_count == h->slab_cap) {
    const size_t cap = h->slab_cap ? 2 * h->slab_cap : 8;
    wefti_export_slab *slabs = realloc(h->slabs, cap * sizeof *slabs);
    if (!slabs) {
      return WEFT_E_NOMEM;
    }
    h->slabs = slabs;
    int *fds = realloc(h->slab_fds, cap * sizeof *fds);
    if (!fds) {
      return WEFT_E_NOMEM;
    }
    h->slab_fds = fds;
    h->slab_cap = cap;
  }
  uint64_t bytes = 0;
  const int fd = weft_memory_slab_fd(wefti_cell_memory(cell), id, &bytes);
  const int own = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
  if (own < 0) {
    return WEFT_E_SYS;
  }
  h->slabs[h->slab_count] = (wefti_export_slab){ .id = id, .bytes = bytes };
  h->slab_fds[h->slab_count++] = own;
  return WEFT_OK;
}

static weft_err table_size(const weft_snapshot *s, size_t *shapes_at, size_t *names_at,
                           size_t *total)
{
  size_t n;
  weft_err err = weft_size_mul(s->tensor_count, sizeof(wefti_export_record), shapes_at);
  *names_at = *shapes_at;
  for (size_t i = 0; i < s->tensor_count && err == WEFT_OK; i++) {
    err = weft_size_add(*names_at, s->tensors[i].ndim * sizeof(int64_t), names_at);
  }
  *total = *names_at;
  for (size_t i = 0; i < s->tensor_count && err == WEFT_OK; i++) {
    err = weft_size_add(strlen(s->tensors[i].name), 1, &n);
    if (err == WEFT_OK) {
      err = weft_size_add(*total, n, total);
    }
  }
  return err;
}

/* The table goes out in pieces: whole it would be larger than what it describes. */
typedef struct table_writer {
  int fd;
  bool failed;
  size_t len;
  uint8_t piece[1 << 14];
} table_writer;

static void put_flush(table_writer *w)
{
  size_t at = 0;
  while (!w->failed && at < w->len) {
    const ssize_t n = write(w->fd, w->piece + at, w->len - at);
    w->failed = n < 0 && errno != EINTR;
    at += n > 0 ? (size_t)n : 0;
  }
  w->len = 0;
}

static void put(table_writer *w, const void *data, size_t len)
{
  const uint8_t *from = data;
  while (len > 0) {
    const size_t room = sizeof w->piece - w->len;
    const size_t n = len < room ? len : room;
    memcpy(w->piece + w->len, from, n);
    w->len += n;
    from += n;
    len -= n;
    if (w->len == sizeof w->piece) {
      put_flush(w);
    }
  }
}

static void put_record(table_writer *w, const weft_tensor *t, const weft_extent *extent,
                       size_t *shape_at, size_t *name_at)
{
  wefti_export_record r = { .bytes = t->bytes,
                            .name_at = *name_at,
                            .shape_at = *shape_at,
                            .name_len = (uint32_t)strlen(t->name),
                            .ndim = t->ndim };
  if (t->bytes > 0) {
    r.slab = extent->slab;
    r.offset = extent->offset;
  }
  strncpy(r.dtype, t->dtype, sizeof r.dtype - 1);
  memcpy(r.digest, t->digest, sizeof r.digest);
  put(w, &r, sizeof r);
  *shape_at += t->ndim * sizeof(int64_t);
  *name_at += (size_t)r.name_len + 1;
}

/* Records, shapes, names; a descriptor or -1. */
static int write_table(const weft_snapshot *s, size_t shape_at, size_t name_at)
{
  table_writer w = { .fd = memfd_create("weft-table", MFD_CLOEXEC) };
  if (w.fd < 0) {
    return -1;
  }
  for (size_t i = 0; i < s->tensor_count; i++) {
    put_record(&w, &s->tensors[i], wefti_cell_extent(wefti_snapshot_cell(s, i)),
               &shape_at, &name_at);
  }
  for (size_t i = 0; i < s->tensor_count; i++) {
    put(&w, s->tensors[i].shape, s->tensors[i].ndim * sizeof(int64_t));
  }
  for (size_t i = 0; i < s->tensor_count; i++) {
    put(&w, s->tensors[i].name, strlen(s->tensors[i].name) + 1);
  }
  put_flush(&w);
  if (w.failed) {
    (void)close(w.fd);
    return -1;
  }
  return w.fd;
}

static weft_err describe(held *h, const weft_snapshot *s)
{
  size_t shape_at = 0;
  size_t name_at = 0;
  size_t total = 0;
  weft_err err = table_size(s, &shape_at, &name_at, &total);
  if (err != WEFT_OK) {
    return err;
  }
  for (size_t i = 0; i < s->tensor_count && err == WEFT_OK; i++) {
    if (s->tensors[i].bytes > 0) {
      err = add_slab(h, wefti_snapshot_cell(s, i));
    }
  }
  if (err == WEFT_OK) {
    h->table = write_table(s, shape_at, name_at);
    err = h->table >= 0 ? WEFT_OK : WEFT_E_SYS;
  }
  h->msg = (wefti_export_msg){ .magic = WEFTI_EXPORT_MAGIC,
                               .version = WEFTI_EXPORT_VERSION,
                               .kind = WEFTI_EXPORT_INSTALL,
                               .epoch = h->epoch,
                               .digest_hi = s->digest_hi,
                               .digest_lo = s->digest_lo,
                               .tensors = s->tensor_count,
                               .bytes = s->bytes,
                               .table_bytes = total };
  return err;
}

/* ---- sending; loop 0 */

static weft_err send_slabs(wefti_exporter *x, const held *h, size_t from, size_t n,
                           const wefti_export_msg *head, bool with_table)
{
  int fds[WEFTI_EXPORT_SLABS_MAX + 1];
  size_t count = 0;
  wefti_export_msg msg = *head;
  msg.slab_count = (uint32_t)n;
  if (with_table) {
    fds[count++] = h->table;
  }
  for (size_t i = 0; i < n; i++) {
    msg.slabs[i] = h->slabs[from + i];
    fds[count++] = h->slab_fds[from + i];
  }
  return weft_lifeline_send(x->line, &msg, wefti_export_len(&msg), fds, count);
}

static weft_err send_held(wefti_exporter *x, const held *h)
{
  wefti_export_msg head = h->msg;
  size_t at = 0;
  weft_err err = WEFT_OK;
  head.kind = WEFTI_EXPORT_SLABS;
  while (h->slab_count - at > WEFTI_EXPORT_SLABS_MAX && err == WEFT_OK) {
    err = send_slabs(x, h, at, WEFTI_EXPORT_SLABS_MAX, &head, false);
    at += WEFTI_EXPORT_SLABS_MAX;
  }
  return err == WEFT_OK ? send_slabs(x, h, at, h->slab_count - at, &h->msg, true) : err;
}

/* If it does not get through, the parent finds out with the next one that it takes. */
static void send_drop(wefti_exporter *x, const held *h)
{
  wefti_export_msg drop = h->msg;
  drop.kind = WEFTI_EXPORT_DROP;
  if (weft_lifeline_send(x->line, &drop, wefti_export_len(&drop), NULL, 0) != WEFT_OK) {
    return;
  }
}

/* Takes out what is to be freed: what could not be sent, and what was dropped. */
static void flush(void *arg)
{
  wefti_exporter *x = arg;
  held *ended = NULL;
  (void)pthread_mutex_lock(&x->lock);
  for (held **at = &x->held; *at;) {
    held *h = *at;
    bool over = h->dropped;
    if (over && h->told) {
      send_drop(x, h);
    } else if (!over && !h->told) {
      h->told = true;
      over = !x->line || send_held(x, h) != WEFT_OK;
      close_slabs(h);
      (void)close(h->table);
      h->table = -1;
    }
    if (over) {
      *at = h->next;
      h->next = ended;
      ended = h;
    } else {
      at = &h->next;
    }
  }
  (void)pthread_mutex_unlock(&x->lock);
  while (ended) {
    held *h = ended;
    ended = h->next;
    free_held(x, h);
  }
}

/* ---- the device thread's side */

static void on_install(void *arg, uint64_t epoch, const weft_snapshot *snapshot)
{
  wefti_exporter *x = arg;
  held *h = snapshot ? calloc(1, sizeof *h) : NULL;
  if (h) {
    h->epoch = epoch;
    h->snapshot = snapshot;
    wefti_store_share(x->device->store, snapshot);
    h->table = -1;
    if (describe(h, snapshot) != WEFT_OK) {
      free_held(x, h); /* it cannot be pinned from the parent, and that is all */
      h = NULL;
    }
  }
  (void)pthread_mutex_lock(&x->lock);
  for (held *old = x->held; old; old = old->next) {
    old->dropped = old->dropped || old->epoch == epoch;
  }
  if (h) {
    h->next = x->held;
    x->held = h;
  }
  (void)pthread_mutex_unlock(&x->lock);
  /* Before the device's answer: both go through the loop's one queue.  On an error the
   * loop has ended, and destroy frees everything. */
  if (weft_loop_call(weft_runtime_loop(x->rt, 0), flush, x) != WEFT_OK) {
    return;
  }
}

void wefti_exporter_message(wefti_exporter *x, const void *data, size_t len)
{
  wefti_export_msg msg;
  if (!wefti_export_read(data, len, &msg) || msg.kind != WEFTI_EXPORT_RELEASE) {
    return;
  }
  held *found = NULL;
  (void)pthread_mutex_lock(&x->lock);
  for (held **at = &x->held; *at; at = &(*at)->next) {
    if ((*at)->epoch == msg.epoch && (*at)->told) {
      found = *at;
      *at = found->next;
      break;
    }
  }
  (void)pthread_mutex_unlock(&x->lock);
  if (found) {
    free_held(x, found);
  }
}

/* What the parent let go of before it asked for more room may still lie in the socket. */
static void catch_up(void *arg)
{
  wefti_exporter *x = arg;
  if (x->line) {
    weft_lifeline_drain(x->line);
  }
}

void wefti_exporter_set_line(wefti_exporter *x, weft_lifeline *line)
{
  x->line = line;
}

weft_err wefti_exporter_create(weft_runtime *rt, wefti_device *device,
                               wefti_exporter **out)
{
  wefti_exporter *x = calloc(1, sizeof *x);
  if (!x || pthread_mutex_init(&x->lock, NULL) != 0) {
    free(x);
    return WEFT_E_NOMEM;
  }
  x->rt = rt;
  x->device = device;
  wefti_device_on_install(device, on_install, x);
  device->catch_up = catch_up;
  device->catch_up_arg = x;
  *out = x;
  return WEFT_OK;
}

void wefti_exporter_destroy(wefti_exporter *x)
{
  if (!x) {
    return;
  }
  wefti_device_on_install(x->device, NULL, NULL);
  x->device->catch_up = NULL;
  while (x->held) {
    held *h = x->held;
    x->held = h->next;
    free_held(x, h);
  }
  (void)pthread_mutex_destroy(&x->lock);
  free(x);
}
