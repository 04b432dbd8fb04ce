#include "assembly_members.h"

#include <inttypes.h>

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
  if (m->kind == WEFT_WORKERS_THREADS) {
    weft_store *store = wefti_device_store(m->threads[rank].device);
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

void wefti_members_visible(wefti_members *m, uint64_t weights_sequence)
{
  if (m->kind != WEFT_WORKERS_PROCESSES || weights_sequence == 0) {
    return;
  }
  /* What they sent before they confirmed may still lie in the sockets. */
  for (wefti_child *child = m->children; child; child = child->next) {
    if (!child->gone) {
      weft_process_drain(child->process);
    }
  }
  wefti_imports_visible(m->imports, weights_sequence);
}
