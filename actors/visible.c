#include "visible.h"

#include <assert.h>
#include <string.h>

static_assert(WEFT_VERSION_MAX % sizeof(uint64_t) == 0, "a version's words fill it");

static void slot_write(wefti_visible_slot *slot, const wefti_visible *visible)
{
  uint64_t words[WEFTI_VERSION_WORDS] = { 0 };
  size_t len = strlen(visible->version);
  if (len > WEFT_VERSION_MAX) {
    len = WEFT_VERSION_MAX;
  }
  memcpy(words, visible->version, len);
  const uint32_t turn = atomic_load_explicit(&slot->turn, memory_order_relaxed);
  atomic_store_explicit(&slot->turn, turn + 1, memory_order_relaxed);
  /* Release on every store: none may be seen before the odd turn is. */
  atomic_store_explicit(&slot->weights_sequence, visible->weights_sequence,
                        memory_order_release);
  atomic_store_explicit(&slot->digest_hi, visible->digest_hi, memory_order_release);
  atomic_store_explicit(&slot->digest_lo, visible->digest_lo, memory_order_release);
  atomic_store_explicit(&slot->version_len, (uint32_t)len, memory_order_release);
  for (size_t i = 0; i * 8 < len; i++) {
    atomic_store_explicit(&slot->version[i], words[i], memory_order_release);
  }
  atomic_store_explicit(&slot->turn, turn + 2, memory_order_release);
}

/* One attempt; false = the writer was inside.  Acquire loads keep the second look at turn
 * behind them. */
static bool slot_read(wefti_visible_slot *slot, wefti_visible_at *out, char *version)
{
  const uint32_t turn = atomic_load_explicit(&slot->turn, memory_order_acquire);
  if (turn & 1) {
    return false;
  }
  out->weights_sequence =
      atomic_load_explicit(&slot->weights_sequence, memory_order_acquire);
  out->digest_hi = atomic_load_explicit(&slot->digest_hi, memory_order_acquire);
  out->digest_lo = atomic_load_explicit(&slot->digest_lo, memory_order_acquire);
  uint32_t len = atomic_load_explicit(&slot->version_len, memory_order_acquire);
  if (len > WEFT_VERSION_MAX) {
    return false;
  }
  for (size_t i = 0; i * 8 < len; i++) {
    const uint64_t word = atomic_load_explicit(&slot->version[i], memory_order_acquire);
    memcpy(version + i * 8, &word, sizeof word); /* whole words: there is room */
  }
  version[len] = '\0';
  return atomic_load_explicit(&slot->turn, memory_order_relaxed) == turn;
}

void wefti_visible_set(wefti_visible_ring *ring, const wefti_visible *visible)
{
  uint32_t at = atomic_load_explicit(&ring->current, memory_order_relaxed);
  wefti_visible_slot *slot = &ring->slots[at];
  const uint64_t held =
      atomic_load_explicit(&slot->weights_sequence, memory_order_relaxed);
  if (held != visible->weights_sequence) { /* else only the label has changed */
    at = (at + 1) % WEFTI_VISIBLE_KEPT;
    slot = &ring->slots[at];
  }
  slot_write(slot, visible);
  atomic_store_explicit(&ring->current, at, memory_order_release);
}

void wefti_visible_get(wefti_visible_ring *ring, wefti_visible_at *out, char *version)
{
  for (;;) { /* the writer is never inside for longer than a copy of 1 KiB */
    const uint32_t at = atomic_load_explicit(&ring->current, memory_order_acquire);
    if (slot_read(&ring->slots[at], out, version)) {
      return;
    }
  }
}

bool wefti_visible_find(wefti_visible_ring *ring, uint64_t weights_sequence,
                        wefti_visible_at *out, char *version)
{
  for (size_t i = 0; i < WEFTI_VISIBLE_KEPT; i++) {
    wefti_visible_slot *slot = &ring->slots[i];
    while (atomic_load_explicit(&slot->weights_sequence, memory_order_acquire) ==
           weights_sequence) {
      if (slot_read(slot, out, version) && out->weights_sequence == weights_sequence) {
        return true;
      }
    }
  }
  return false;
}
