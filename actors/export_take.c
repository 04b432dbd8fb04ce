#define _GNU_SOURCE
#include "assembly.h"
#include "device.h"
#include "exports.h"
#include "weft/checked.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The worker's end for what its last life left: asks the parent, takes descriptors in,
 * and makes cells of them. */

enum { OFFER_SLABS_MAX = 65536 };

typedef struct offer {
  wefti_export_msg msg; /* the last one */
  int table;            /* -1 = none */
  wefti_export_slab *slabs;
  int *fds; /* [slab_count] */
  size_t slab_count, slab_cap;
} offer;

struct wefti_taker {
  weft_runtime *rt;
  wefti_device *device;
  weft_actor_id worker;
  weft_lifeline *line; /* loop 0's, as is coming */
  offer *coming;
  pthread_mutex_t lock; /* over whole */
  offer *whole;         /* for the device thread */
  wefti_keeper keeper;
};

static void offer_free(offer *o)
{
  if (!o) {
    return;
  }
  for (size_t i = 0; i < o->slab_count; i++) {
    if (o->fds[i] >= 0) {
      (void)close(o->fds[i]);
    }
  }
  if (o->table >= 0) {
    (void)close(o->table);
  }
  free(o->slabs);
  free(o->fds);
  free(o);
}

static offer *swap_whole(wefti_taker *t, offer *with)
{
  (void)pthread_mutex_lock(&t->lock);
  offer *was = t->whole;
  t->whole = with;
  (void)pthread_mutex_unlock(&t->lock);
  return was;
}

/* ---- taking in; loop 0 */

static bool make_room(offer *o, size_t more)
{
  if (more > OFFER_SLABS_MAX - o->slab_count) {
    return false;
  }
  const size_t cap = o->slab_count + more;
  if (cap <= o->slab_cap) {
    return true;
  }
  wefti_export_slab *slabs = realloc(o->slabs, cap * sizeof *slabs);
  if (!slabs) {
    return false;
  }
  o->slabs = slabs;
  int *fds = realloc(o->fds, cap * sizeof *fds);
  if (!fds) {
    return false;
  }
  o->fds = fds;
  o->slab_cap = cap;
  return true;
}

/* fds that were taken are -1 then.  false: it is no offer. */
static bool take_in(offer *o, const wefti_export_msg *msg, int *fds, size_t nfds)
{
  const size_t table = msg->kind == WEFTI_EXPORT_OFFER ? 1 : 0;
  if (nfds != (size_t)msg->slab_count + table || !make_room(o, msg->slab_count)) {
    return false;
  }
  if (table) {
    if (!wefti_export_has_table(fds[0], msg)) {
      return false;
    }
    o->table = fds[0];
    fds[0] = -1;
  }
  for (size_t i = 0; i < msg->slab_count; i++) {
    o->slabs[o->slab_count] = msg->slabs[i];
    o->fds[o->slab_count++] = fds[table + i];
    fds[table + i] = -1;
  }
  o->msg = *msg;
  return true;
}

static void say_offer(const wefti_taker *t, bool found)
{
  const weft_kept_offer m = { .h.type = WEFT_MSG_KEPT_OFFER, .found = found };
  if (wefti_post(t->rt, t->worker, &m.h) != WEFT_OK) {
    return; /* the worker does not wait for ever */
  }
}

static void on_offer(wefti_taker *t, const wefti_export_msg *msg, int *fds, size_t nfds)
{
  if (!t->coming) {
    t->coming = calloc(1, sizeof *t->coming);
    if (t->coming) {
      t->coming->table = -1;
    }
  }
  const bool good = t->coming && take_in(t->coming, msg, fds, nfds);
  if (good && msg->kind == WEFTI_EXPORT_OFFER_SLABS) {
    return;
  }
  offer *old = good ? swap_whole(t, t->coming) : t->coming;
  t->coming = NULL;
  offer_free(old);
  if (msg->kind == WEFTI_EXPORT_OFFER) {
    say_offer(t, good);
  }
}

void wefti_taker_message(wefti_taker *t, const void *data, size_t len, int *fds,
                         size_t nfds)
{
  wefti_export_msg msg;
  if (wefti_export_read(data, len, &msg) &&
      (msg.kind == WEFTI_EXPORT_OFFER || msg.kind == WEFTI_EXPORT_OFFER_SLABS)) {
    on_offer(t, &msg, fds, nfds);
  }
  for (size_t i = 0; i < nfds; i++) {
    if (fds[i] >= 0) {
      (void)close(fds[i]);
    }
  }
}

/* ---- asking; loop 0 */

static weft_err say(const wefti_taker *t, const wefti_export_msg *msg)
{
  return t->line ? weft_lifeline_send(t->line, msg, wefti_export_len(msg), NULL, 0)
                 : WEFT_E_CLOSED;
}

static bool want(void *arg, uint64_t weights_sequence, const uint64_t digest[2],
                 bool not_own)
{
  wefti_taker *t = arg;
  const wefti_export_msg msg = { .magic = WEFTI_EXPORT_MAGIC,
                                 .version = WEFTI_EXPORT_VERSION,
                                 .kind = WEFTI_EXPORT_WANT,
                                 .digest_hi = digest[0],
                                 .digest_lo = digest[1],
                                 .weights_sequence = weights_sequence,
                                 .flags = not_own ? WEFTI_EXPORT_NOT_OWN : 0 };
  offer_free(t->coming);
  t->coming = NULL;
  offer_free(swap_whole(t, NULL));
  return say(t, &msg) == WEFT_OK;
}

static void had(void *arg, uint64_t weights_sequence, const uint64_t digest[2])
{
  wefti_taker *t = arg;
  const wefti_export_msg msg = { .magic = WEFTI_EXPORT_MAGIC,
                                 .version = WEFTI_EXPORT_VERSION,
                                 .kind = WEFTI_EXPORT_HAD,
                                 .epoch = WEFTI_RECALL_EPOCH,
                                 .digest_hi = digest[0],
                                 .digest_lo = digest[1],
                                 .weights_sequence = weights_sequence };
  if (say(t, &msg) != WEFT_OK) {
    return; /* it cannot be pinned from the parent before the next update, and that is all
             */
  }
}

/* ---- cells; the device thread */

typedef struct row {
  uint64_t slab, offset, bytes; /* as the table says */
  size_t at;
} row;

typedef struct taking {
  wefti_device *device;
  const offer *o;
  uint32_t *ids; /* [slab_count] of device->kept */
  wefti_entry *entries;
  row *rows;
  size_t count; /* of both, so far */
} taking;

static weft_err add_slabs(taking *k, weft_why *why)
{
  const bool alone = (k->o->msg.flags & WEFTI_EXPORT_ALONE) != 0;
  for (size_t i = 0; i < k->o->slab_count; i++) {
    const weft_err err = weft_memory_kept_add(
        k->device->kept, k->o->fds[i], k->o->slabs[i].bytes, alone, &k->ids[i], why);
    if (err != WEFT_OK) {
      return err;
    }
    k->o->fds[i] = -1;
  }
  return WEFT_OK;
}

/* Slabs are few, and neighbours share one. */
static uint32_t id_of(const taking *k, uint64_t slab, size_t *hint)
{
  for (size_t i = 0; i < k->o->slab_count; i++) {
    const size_t at = (*hint + i) % k->o->slab_count;
    if (k->o->slabs[at].id == slab) {
      *hint = at;
      return k->ids[at];
    }
  }
  return 0;
}

static weft_err lie(weft_why *why, size_t i)
{
  return weft_whyf(why, WEFT_E_FAILED,
                   "weights of the last life: row %zu of their table lies", i);
}

static weft_err cut(taking *k, const uint8_t *table, size_t i, size_t *hint,
                    weft_why *why)
{
  weft_tensor t;
  weft_extent e;
  wefti_export_record r;
  if (!wefti_export_row(table, k->o->msg.table_bytes, i, &r, &t)) {
    return lie(why, i);
  }
  const uint32_t id = r.bytes > 0 ? id_of(k, r.slab, hint) : 0;
  if (weft_memory_kept_at(k->device->kept, id, r.offset, r.bytes, &e) != WEFT_OK) {
    return lie(why, i);
  }
  const weft_err err = wefti_cell_create(&t, k->device->kept, &e, &k->entries[i]);
  if (err != WEFT_OK) {
    weft_memory_free(k->device->kept, &e);
    return weft_whyf(why, err, "weights of the last life: %s", weft_strerror(err));
  }
  k->rows[i] = (row){ .slab = r.slab, .offset = r.offset, .bytes = r.bytes, .at = i };
  k->count = i + 1;
  return WEFT_OK;
}

static weft_err cut_all(taking *k, weft_why *why)
{
  size_t hint = 0;
  uint8_t *table = wefti_export_table(k->o->table, k->o->msg.table_bytes);
  weft_err err =
      table ? add_slabs(k, why)
            : weft_whyf(why, WEFT_E_NOMEM,
                        "weights of the last life: no table of %" PRIu64 " bytes",
                        k->o->msg.table_bytes);
  for (size_t i = 0; i < k->o->msg.tensors && err == WEFT_OK; i++) {
    err = cut(k, table, i, &hint, why);
  }
  free(table);
  return err;
}

static int by_place(const void *left, const void *right)
{
  const row *a = left;
  const row *b = right;
  if (a->slab != b->slab) {
    return a->slab < b->slab ? -1 : 1;
  }
  if (a->offset != b->offset) {
    return a->offset < b->offset ? -1 : 1;
  }
  return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static weft_err copy_one(const taking *k, const wefti_entry *from, wefti_entry *out,
                         weft_why *why)
{
  weft_extent e;
  weft_memory *memory = k->device->memory;
  weft_err err = weft_memory_alloc(memory, from->t.bytes, &e, why);
  if (err != WEFT_OK) {
    return err;
  }
  err = weft_memory_write(memory, e.ptr, from->t.data, from->t.bytes, why);
  if (err == WEFT_OK) {
    err = wefti_cell_create(&from->t, memory, &e, out);
  }
  if (err != WEFT_OK) {
    weft_memory_free(memory, &e);
    return weft_whyf(why, err, "weights of another rank: %s", weft_strerror(err));
  }
  return WEFT_OK;
}

/* Somebody else's bytes may not be held on to: into memory of our own, and what is shared
 * there is shared here. */
static weft_err copy_all(taking *k, weft_why *why)
{
  qsort(k->rows, k->count, sizeof *k->rows, by_place);
  weft_err err = weft_memory_reserve(k->device->memory, k->o->msg.bytes, why);
  for (size_t i = 0; i < k->count && err == WEFT_OK; i++) {
    wefti_entry *entry = &k->entries[k->rows[i].at];
    wefti_entry own;
    const bool tied =
        i > 0 && k->rows[i].bytes > 0 && by_place(&k->rows[i - 1], &k->rows[i]) == 0;
    if (wefti_device_cancelled(k->device)) {
      return weft_whyf(why, WEFT_E_CANCELLED, "weights of another rank: cancelled");
    }
    if (tied) {
      wefti_entry as = k->entries[k->rows[i - 1].at];
      const weft_tensor of = entry->t; /* its own name, dtype and shape */
      const void *data = as.t.data;
      as.t = of;
      as.t.data = data;
      err = wefti_cell_alias(of.name, &as, &own);
    } else {
      err = copy_one(k, entry, &own, why);
    }
    if (err == WEFT_OK) {
      wefti_cell_unref(entry->cell);
      *entry = own;
    }
  }
  return err;
}

static weft_err room_for(taking *k, weft_why *why)
{
  const size_t tensors = k->o->msg.tensors; /* checked against the table's size */
  weft_err err = WEFT_OK;
  if (!k->device->kept) {
    err = weft_memory_kept_create(&k->device->kept);
    if (err == WEFT_OK) {
      k->device->kept->cancel = &k->device->cancel;
      if (k->device->inplace) {
        weft_memory_kept_writable(k->device->kept);
      }
    }
  }
  k->entries = calloc(tensors + 1, sizeof *k->entries);
  k->rows = calloc(tensors + 1, sizeof *k->rows);
  k->ids = calloc(k->o->slab_count + 1, sizeof *k->ids);
  if (!k->entries || !k->rows || !k->ids) {
    err = WEFT_E_NOMEM;
  }
  return err == WEFT_OK ? err
                        : weft_whyf(why, err, "weights of the last life: out of memory");
}

static weft_err take(void *arg, wefti_entry **entries, size_t *count, weft_why *why)
{
  wefti_taker *t = arg;
  offer *o = swap_whole(t, NULL);
  if (!o) {
    return weft_whyf(why, WEFT_E_STATE, "weights of the last life: none are offered");
  }
  taking k = { .device = t->device, .o = o };
  weft_err err = room_for(&k, why);
  if (err == WEFT_OK) {
    err = cut_all(&k, why);
  }
  if (err == WEFT_OK && (o->msg.flags & WEFTI_EXPORT_BORROWED) != 0) {
    err = copy_all(&k, why);
  }
  if (err != WEFT_OK) {
    for (size_t i = 0; i < k.count; i++) {
      wefti_cell_unref(k.entries[i].cell);
    }
    free(k.entries);
  } else {
    *entries = k.entries;
    *count = k.count;
  }
  if (t->device->kept) {
    weft_memory_kept_seal(t->device->kept);
  }
  free(k.rows);
  free(k.ids);
  offer_free(o);
  return err;
}

/* ---- life */

void wefti_taker_set_line(wefti_taker *t, weft_lifeline *line, weft_actor_id worker)
{
  t->line = line;
  t->worker = worker;
}

weft_err wefti_taker_create(weft_runtime *rt, wefti_device *device, wefti_taker **out)
{
  wefti_taker *t = calloc(1, sizeof *t);
  if (!t || pthread_mutex_init(&t->lock, NULL) != 0) {
    free(t);
    return WEFT_E_NOMEM;
  }
  t->rt = rt;
  t->device = device;
  t->keeper = (wefti_keeper){ .want = want, .take = take, .had = had, .arg = t };
  device->keeper = &t->keeper;
  *out = t;
  return WEFT_OK;
}

void wefti_taker_destroy(wefti_taker *t)
{
  if (!t) {
    return;
  }
  t->device->keeper = NULL;
  offer_free(t->coming);
  offer_free(t->whole);
  (void)pthread_mutex_destroy(&t->lock);
  free(t);
}
