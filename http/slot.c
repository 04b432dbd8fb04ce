/* One slot per request that has no answer in its connection's out buffer yet.  An id is
 * the slot's index and the number of its use: found without a search, never given twice.
 */
#include "conn.h"

#include <stdlib.h>
#include <string.h>

enum { SLOT_BLOCK = 64, SLOTS_FIRST = 1024 };
static const uint64_t USES_MAX = UINT64_MAX >> WEFTI_SLOT_BITS;

static weft_err grow(weft_http *server)
{
  if (server->slot_count + SLOT_BLOCK > (size_t)1 << WEFTI_SLOT_BITS) {
    return WEFT_E_LIMIT;
  }
  if (server->slot_count == server->slot_cap) {
    const size_t cap = server->slot_cap == 0 ? SLOTS_FIRST : server->slot_cap * 2;
    wefti_slot **slots = realloc(server->slots, cap * sizeof(wefti_slot *));
    if (slots == NULL) {
      return WEFT_E_NOMEM;
    }
    server->slots = slots;
    server->slot_cap = cap;
  }
  wefti_slot *block = calloc(SLOT_BLOCK, sizeof *block);
  if (block == NULL) {
    return WEFT_E_NOMEM;
  }
  for (size_t i = 0; i < SLOT_BLOCK; i++) {
    block[i].index = (uint32_t)server->slot_count;
    block[i].next = server->slot_free;
    server->slot_free = &block[i];
    server->slots[server->slot_count++] = &block[i];
  }
  return WEFT_OK;
}

wefti_slot *wefti_slot_new(wefti_conn *c)
{
  weft_http *server = c->server;
  if (server->slot_free == NULL && grow(server) != WEFT_OK) {
    return NULL;
  }
  wefti_slot *slot = server->slot_free;
  server->slot_free = slot->next;
  slot->uses++;
  slot->id = slot->uses << WEFTI_SLOT_BITS | slot->index;
  slot->conn = c;
  slot->next = NULL;
  slot->reserved = 0;
  slot->state = WEFTI_WORKING;
  slot->head_only = slot->http10 = slot->want_continue = false;
  slot->keep = true;
  if (c->last == NULL) {
    c->first = slot;
  } else {
    c->last->next = slot;
  }
  c->last = slot;
  c->slots++;
  return slot;
}

wefti_slot *wefti_slot_find(weft_http *server, weft_http_id id)
{
  const size_t index = id & (((size_t)1 << WEFTI_SLOT_BITS) - 1);
  if (index >= server->slot_count) {
    return NULL;
  }
  wefti_slot *slot = server->slots[index];
  return slot->id == id && slot->state != WEFTI_FREE ? slot : NULL;
}

void wefti_slot_free(weft_http *server, wefti_slot *slot)
{
  server->stats.body_bytes_held -= slot->reserved;
  wefti_bytes_fini(&slot->answer);
  slot->state = WEFTI_FREE;
  slot->conn = NULL;
  slot->id = 0;
  if (slot->uses < USES_MAX) { /* else its ids are used up */
    slot->next = server->slot_free;
    server->slot_free = slot;
  }
}

void wefti_slots_fini(weft_http *server)
{
  for (size_t i = 0; i < server->slot_count; i += SLOT_BLOCK) {
    free(server->slots[i]); /* the block's first */
  }
  free(server->slots);
}

static void drop_first(wefti_conn *c)
{
  wefti_slot *slot = c->first;
  c->first = slot->next;
  if (c->first == NULL) {
    c->last = NULL;
  }
  c->slots--;
  wefti_slot_free(c->server, slot);
}

void wefti_slots_advance(wefti_conn *c)
{
  while (c->first != NULL && !c->dead && !c->closing) {
    wefti_slot *slot = c->first;
    weft_err err = wefti_bytes_add(&c->out, slot->answer.data, slot->answer.len);
    wefti_bytes_fini(&slot->answer);
    if (err == WEFT_OK && slot->want_continue) {
      static const char line[] = "HTTP/1.1 100 Continue\r\n\r\n";
      err = wefti_bytes_add(&c->out, line, sizeof line - 1);
      slot->want_continue = false;
    }
    if (err != WEFT_OK) {
      wefti_conn_kill(c);
      return;
    }
    if (slot->state != WEFTI_ANSWERED) {
      return;
    }
    c->closing = !slot->keep;
    drop_first(c);
  }
}
