#include "export_priv.h"

/* The parent's end for a rank that has lost its weights: what its last life left is kept,
 * and handed to the next one.  All on loop 0. */

static void close_for(export_import *im, unsigned how)
{
  atomic_fetch_or_explicit(&im->use, how, memory_order_relaxed);
}

/* What others than incarnation have left, but for keep. */
static void retire_left(export_seat *s, uint64_t incarnation, const export_import *keep)
{
  (void)pthread_mutex_lock(&s->lock);
  for (export_import *im = s->imports; im; im = im->next) {
    if (im->incarnation != incarnation && im != keep) {
      close_for(im, IMPORT_RETIRED | IMPORT_CLOSED);
    }
  }
  (void)pthread_mutex_unlock(&s->lock);
  export_sweep(s);
}

static void end_loan(export_seat *s)
{
  if (s->lent) {
    export_leave(s->lent, false);
    s->lent = NULL;
  }
}

void export_keep(export_seat *s, uint64_t incarnation)
{
  bool candidate = true; /* only the newest can become visible yet */
  if (s->lent && s->lent_to == incarnation) {
    end_loan(s);
  }
  (void)pthread_mutex_lock(&s->lock);
  for (export_import *im = s->imports; im; im = im->next) {
    const bool wanted = !export_is_retired(im) && im->snapshot.weights_sequence == 0
                            ? candidate
                            : !export_is_retired(im);
    candidate = false;
    if (im->incarnation == incarnation || !wanted) {
      close_for(im, wanted ? IMPORT_CLOSED : IMPORT_RETIRED | IMPORT_CLOSED);
    }
  }
  (void)pthread_mutex_unlock(&s->lock);
  export_sweep(s);
}

/* own: what an earlier life of the rank has left; else what the living one holds. */
static export_import *find(export_seat *s, uint64_t not_of, bool own,
                           const uint64_t digest[2])
{
  export_import *found = NULL;
  (void)pthread_mutex_lock(&s->lock);
  for (export_import *im = s->imports; im && !found; im = im->next) {
    const unsigned use = atomic_load_explicit(&im->use, memory_order_relaxed);
    const bool kept = (use & (IMPORT_CLOSED | IMPORT_RETIRED)) == IMPORT_CLOSED;
    const bool held = (use & (IMPORT_CLOSED | IMPORT_RETIRED)) == 0;
    if (im->incarnation != not_of && !export_is_dirty(im) &&
        export_has_digest(im, digest) &&
        (own ? kept : held && im->snapshot.weights_sequence != 0)) {
      found = im;
    }
  }
  (void)pthread_mutex_unlock(&s->lock);
  return found;
}

static bool read_by_others(export_seat *s, const export_import *but)
{
  bool found = false;
  (void)pthread_mutex_lock(&s->lock);
  for (const export_import *im = s->imports; im && !found; im = im->next) {
    found = im != but &&
            atomic_load_explicit(&im->use, memory_order_acquire) >= IMPORT_READER;
  }
  (void)pthread_mutex_unlock(&s->lock);
  return found;
}

/* ---- offers */

static weft_err send_part(const export_seat *s, uint64_t to, const export_import *im,
                          wefti_export_msg *msg, size_t from, size_t n)
{
  const wefti_imports_ops *ops = &s->all->ops;
  int fds[WEFTI_EXPORT_SLABS_MAX + 1];
  size_t count = 0;
  msg->slab_count = (uint32_t)n;
  if (msg->kind == WEFTI_EXPORT_OFFER) {
    fds[count++] = im->table_fd;
  }
  for (size_t i = 0; i < n; i++) {
    const export_mapping *m = im->mappings[from + i];
    msg->slabs[i] = (wefti_export_slab){ .id = m->id, .bytes = m->bytes };
    fds[count++] = m->fd;
  }
  return ops->send(ops->arg, s->rank, to, msg, fds, count);
}

static weft_err send_import(const export_seat *s, uint64_t to, const export_import *im,
                            uint64_t flags)
{
  wefti_export_msg msg = { .magic = WEFTI_EXPORT_MAGIC,
                           .version = WEFTI_EXPORT_VERSION,
                           .kind = WEFTI_EXPORT_OFFER_SLABS,
                           .digest_hi = im->snapshot.digest_hi,
                           .digest_lo = im->snapshot.digest_lo,
                           .tensors = im->snapshot.tensor_count,
                           .bytes = im->snapshot.bytes,
                           .table_bytes = im->table_bytes,
                           .flags = flags };
  size_t at = 0;
  weft_err err = WEFT_OK;
  while (im->mapping_count - at > WEFTI_EXPORT_SLABS_MAX && err == WEFT_OK) {
    err = send_part(s, to, im, &msg, at, WEFTI_EXPORT_SLABS_MAX);
    at += WEFTI_EXPORT_SLABS_MAX;
  }
  msg.kind = WEFTI_EXPORT_OFFER;
  return err == WEFT_OK ? send_part(s, to, im, &msg, at, im->mapping_count - at) : err;
}

static void send_none(const export_seat *s, uint64_t to, const uint64_t digest[2])
{
  const wefti_imports_ops *ops = &s->all->ops;
  const wefti_export_msg msg = { .magic = WEFTI_EXPORT_MAGIC,
                                 .version = WEFTI_EXPORT_VERSION,
                                 .kind = WEFTI_EXPORT_OFFER,
                                 .digest_hi = digest[0],
                                 .digest_lo = digest[1] };
  if (ops->send(ops->arg, s->rank, to, &msg, NULL, 0) != WEFT_OK) {
    return; /* it does not wait for ever */
  }
}

/* A living worker keeps its bytes for as long as somebody reads them. */
static void lend(export_seat *s, uint64_t to, export_import *im)
{
  atomic_fetch_add_explicit(&im->use, IMPORT_READER, memory_order_relaxed);
  s->lent = im;
  s->lent_to = to;
}

void export_want(export_seat *s, uint64_t incarnation, const wefti_export_msg *msg)
{
  const uint64_t digest[2] = { msg->digest_hi, msg->digest_lo };
  const bool own = msg->weights_sequence != 0 && (msg->flags & WEFTI_EXPORT_NOT_OWN) == 0;
  end_loan(s);
  export_import *found = own ? find(s, incarnation, true, digest) : NULL;
  retire_left(s, incarnation, found);
  if (msg->weights_sequence == 0 || !s->all->ops.send) {
    return;
  }
  if (found) {
    const uint64_t alone = read_by_others(s, found) ? 0 : WEFTI_EXPORT_ALONE;
    if (send_import(s, incarnation, found, alone) != WEFT_OK) {
      send_none(s, incarnation, digest);
    }
    return;
  }
  for (uint32_t r = 0; r < s->all->world_size && !found; r++) {
    export_seat *other = &s->all->seats[r];
    found = other == s ? NULL : find(other, 0, false, digest);
  }
  if (found) {
    lend(s, incarnation, found);
  }
  if (!found || send_import(s, incarnation, found, WEFTI_EXPORT_BORROWED) != WEFT_OK) {
    send_none(s, incarnation, digest);
  }
}

void export_had(export_seat *s, uint64_t incarnation, const wefti_export_msg *msg)
{
  const uint64_t digest[2] = { msg->digest_hi, msg->digest_lo };
  const uint64_t visible = atomic_load_explicit(&s->all->visible, memory_order_relaxed);
  end_loan(s);
  (void)pthread_mutex_lock(&s->lock);
  for (export_import *im = s->imports; im; im = im->next) {
    if (msg->weights_sequence != 0 && msg->weights_sequence == visible &&
        im->incarnation == incarnation && im->epoch == msg->epoch &&
        im->snapshot.weights_sequence == 0 && export_has_digest(im, digest)) {
      im->snapshot.weights_sequence = visible;
    }
  }
  (void)pthread_mutex_unlock(&s->lock);
  retire_left(s, incarnation, NULL); /* it holds them itself now, or they are no good */
}
