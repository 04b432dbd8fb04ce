#include "assembly_members.h"

#include <inttypes.h>
#include <string.h>

/* Pins by kind of worker.  Any thread. */

static void fill(weft_pinned *out, const weft_snapshot *snapshot,
                 uint64_t weights_sequence)
{
  out->weights_sequence = weights_sequence;
  out->digest_hi = snapshot->digest_hi;
  out->digest_lo = snapshot->digest_lo;
  out->tensor_count = snapshot->tensor_count;
  out->bytes = snapshot->bytes;
  out->tensors = snapshot->tensors;
  out->snapshot = snapshot;
}

static weft_err say_why(weft_why *why, weft_err err, uint32_t rank,
                        uint64_t weights_sequence)
{
  return weft_whyf(why, err, "rank %" PRIu32 ", weights %" PRIu64 ": %s", rank,
                   weights_sequence, weft_strerror(err));
}

weft_err wefti_members_pin(wefti_members *m, uint32_t rank, uint64_t weights_sequence,
                           weft_pinned *out, weft_why *why)
{
  const weft_snapshot *snapshot;
  if (atomic_load_explicit(&m->held, memory_order_relaxed)) {
    return weft_whyf(why, WEFT_E_UNAVAIL,
                     "rank %" PRIu32
                     ": readers are paused while weights are written over "
                     "in place; try again when a full update was committed",
                     rank);
  }
  if (m->kind != WEFT_WORKERS_THREADS && m->backend && strcmp(m->backend, "host") != 0) {
    return weft_whyf(
        why, WEFT_E_UNSUPPORTED,
        "rank %" PRIu32 " holds its weights in GPU memory of its own process", rank);
  }
  if (m->kind == WEFT_WORKERS_THREADS) {
    weft_store *store = m->threads[rank].store;
    const weft_err err = weft_store_pin(store, weights_sequence, &snapshot);
    if (err != WEFT_OK) {
      return say_why(why, err, rank, weights_sequence);
    }
    out->holder = store;
    out->mapped = false;
  } else if (m->kind == WEFT_WORKERS_PROCESSES) {
    const weft_err err =
        wefti_imports_pin(m->imports, rank, weights_sequence, &snapshot, &out->holder);
    if (err != WEFT_OK) {
      return say_why(why, err, rank, weights_sequence);
    }
    out->mapped = true;
  } else {
    return weft_whyf(why, WEFT_E_UNSUPPORTED,
                     "rank %" PRIu32
                     " was started by somebody else: its memory cannot be "
                     "mapped from here",
                     rank);
  }
  fill(out, snapshot, weights_sequence);
  return WEFT_OK;
}

void wefti_members_unpin(weft_pinned *pinned)
{
  if (pinned->mapped) {
    wefti_imports_unpin(pinned->holder);
  } else {
    weft_store_unpin(pinned->holder, pinned->snapshot);
  }
}

/* A pin of ours keeps what is visible until readers were sent to the next. */
static void keep(wefti_thread_worker *w, uint64_t weights_sequence)
{
  const weft_snapshot *snapshot;
  if (w->kept[0] && w->kept[0]->weights_sequence == weights_sequence) {
    return; /* only the label has changed */
  }
  if (weft_store_pin(w->store, weights_sequence, &snapshot) == WEFT_OK) {
    w->kept[1] = w->kept[0];
    w->kept[0] = snapshot;
  }
}

static void let_go(wefti_thread_worker *w, size_t which)
{
  if (w->kept[which]) {
    weft_store_unpin(w->store, w->kept[which]);
    w->kept[which] = NULL;
  }
}

void wefti_members_visible(wefti_members *m, const wefti_visible *visible)
{
  const uint64_t weights_sequence = visible->weights_sequence;
  /* In place nobody is served until it is visible, and nothing may be kept. */
  for (uint32_t r = 0;
       m->threads && !m->inplace && weights_sequence != 0 && r < m->world_size; r++) {
    keep(&m->threads[r], weights_sequence);
  }
  if (m->kind != WEFT_WORKERS_PROCESSES || weights_sequence == 0) {
    return;
  }
  /* What they sent before they confirmed may still lie in the sockets. */
  for (wefti_child *child = m->children; child; child = child->next) {
    if (!child->gone) {
      weft_process_drain(child->process);
    }
  }
  wefti_imports_visible(m->imports, weights_sequence,
                        (const uint64_t[2]){ visible->digest_hi, visible->digest_lo });
}

void wefti_members_settle(wefti_members *m, uint64_t weights_sequence)
{
  for (uint32_t r = 0; m->threads && r < m->world_size; r++) {
    let_go(&m->threads[r], 1);
  }
  if (m->kind == WEFT_WORKERS_PROCESSES) {
    wefti_imports_settle(m->imports, weights_sequence);
  }
}

void wefti_members_let_go(wefti_members *m)
{
  for (uint32_t r = 0; m->threads && r < m->world_size; r++) {
    let_go(&m->threads[r], 0);
    let_go(&m->threads[r], 1);
  }
}

void wefti_members_hold(wefti_members *m, bool held)
{
  atomic_store_explicit(&m->held, held, memory_order_relaxed);
  if (m->imports) {
    wefti_imports_hold(m->imports, held);
  }
}

uint32_t wefti_members_readers(wefti_members *m, char *text, size_t cap)
{
  text[0] = '\0'; /* of threads the worker itself knows */
  return m->imports ? wefti_imports_readers(m->imports, text, cap) : 0;
}
