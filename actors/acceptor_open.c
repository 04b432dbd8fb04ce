/* Open addressing with linear probing; removal moves later entries back, so that there
 * are no tombstones and a table that has been full is as fast as a new one. */
#include "acceptor_priv.h"
#include "weft/checked.h"

enum { CAP_FIRST = 64 };

static size_t home_of(const wefti_open_table *table, uint64_t corr)
{
  return (size_t)((corr * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (table->cap - 1);
}

static void put(wefti_open_table *table, const wefti_open *open)
{
  size_t i = home_of(table, open->corr);
  while (table->slots[i].corr != 0) {
    i = (i + 1) & (table->cap - 1);
  }
  table->slots[i] = *open;
}

weft_err wefti_open_reserve(weft_ctx *ctx, wefti_open_table *table)
{
  if (table->count < table->cap / 4 * 3) {
    return WEFT_OK;
  }
  wefti_open_table bigger = { .cap = CAP_FIRST, .count = table->count };
  size_t bytes;
  if (table->cap > 0 && weft_size_mul(table->cap, 2, &bigger.cap) != WEFT_OK) {
    return WEFT_E_OVERFLOW;
  }
  if (weft_size_mul(bigger.cap, sizeof *bigger.slots, &bytes) != WEFT_OK) {
    return WEFT_E_OVERFLOW;
  }
  bigger.slots = weft_alloc(ctx, bytes);
  if (bigger.slots == NULL) {
    return WEFT_E_NOMEM;
  }
  for (size_t i = 0; i < table->cap; i++) {
    if (table->slots[i].corr != 0) {
      put(&bigger, &table->slots[i]);
    }
  }
  weft_free(ctx, table->slots);
  *table = bigger;
  return WEFT_OK;
}

void wefti_open_add(wefti_open_table *table, const wefti_open *open)
{
  put(table, open);
  table->count++;
}

static void close_gap(wefti_open_table *table, size_t gap)
{
  const size_t mask = table->cap - 1;
  for (size_t i = (gap + 1) & mask; table->slots[i].corr != 0; i = (i + 1) & mask) {
    const size_t home = home_of(table, table->slots[i].corr);
    /* It may move back to the gap unless its home lies between the gap and itself. */
    if (((i - home) & mask) >= ((i - gap) & mask)) {
      table->slots[gap] = table->slots[i];
      gap = i;
    }
  }
  table->slots[gap] = (wefti_open){ 0 };
}

bool wefti_open_take(wefti_open_table *table, uint64_t corr, wefti_open *out)
{
  if (table->count == 0 || corr == 0) {
    return false;
  }
  size_t i = home_of(table, corr);
  while (table->slots[i].corr != corr) {
    if (table->slots[i].corr == 0) {
      return false;
    }
    i = (i + 1) & (table->cap - 1);
  }
  *out = table->slots[i];
  close_gap(table, i);
  table->count--;
  return true;
}

bool wefti_open_mark_gone(wefti_open_table *table, uint64_t peer)
{
  bool found = false;
  for (size_t i = 0; i < table->cap; i++) {
    if (table->slots[i].corr != 0 && table->slots[i].peer == peer) {
      table->slots[i].gone = true;
      found = true;
    }
  }
  return found;
}

uint64_t wefti_open_next_gone(const wefti_open_table *table, size_t *at)
{
  while (*at < table->cap) {
    const wefti_open *open = &table->slots[(*at)++];
    if (open->corr != 0 && open->gone) {
      return open->peer;
    }
  }
  return 0;
}

void wefti_open_fini(weft_ctx *ctx, wefti_open_table *table)
{
  for (size_t i = 0; i < table->cap; i++) {
    weft_buf_unref(table->slots[i].echo);
  }
  weft_free(ctx, table->slots);
  *table = (wefti_open_table){ 0 };
}
