#include "tcpstore_peer.h"

#include <stdlib.h>
#include <string.h>

enum { OUT_FULL = 64 << 10, HELD_FULL = 64 << 10 };

/* ---- waiting */

void wefti_peer_forget_waits(wefti_peer *p)
{
  while (p->waiters != NULL) {
    wefti_waiter *w = p->waiters;
    p->waiters = w->peer_next;
    wefti_waiter **at = &w->key->waiters;
    while (*at != w) {
      at = &(*at)->next;
    }
    *at = w->next;
    wefti_map_tidy(&p->store->map, w->key);
    p->store->map.bytes -= sizeof *w;
    free(w);
  }
  p->missing = 0;
}

weft_err wefti_peer_wait(wefti_peer *p, wefti_key *key, int64_t at_least)
{
  wefti_map *m = &p->store->map;
  weft_err err = wefti_map_charge(m, sizeof(wefti_waiter), 0);
  wefti_waiter *w = NULL;
  if (err == WEFT_OK) {
    w = malloc(sizeof *w);
    if (w == NULL) {
      m->bytes -= sizeof *w;
      err = WEFT_E_NOMEM;
    }
  }
  if (err != WEFT_OK) {
    wefti_map_tidy(m, key);
    return err;
  }
  *w = (wefti_waiter){ .next = key->waiters,
                       .peer_next = p->waiters,
                       .key = key,
                       .peer = p,
                       .at_least = at_least };
  key->waiters = w;
  p->waiters = w;
  p->missing++;
  return WEFT_OK;
}

static bool has_reached(const wefti_waiter *w)
{
  int64_t n;
  return w->at_least == 0 ||
         (w->key->present && wefti_map_number(w->key, &n) && n >= w->at_least);
}

static void end_wait(wefti_peer *p)
{
  wefti_store *s = p->store;
  if (!wefti_sb_u8(&p->out, WEFTI_ST_STOP_WAITING)) {
    p->err = WEFT_E_NOMEM;
  }
  if (!p->is_ready) {
    p->is_ready = true;
    p->ready_next = s->ready;
    s->ready = p;
  }
}

static void unlink_from_peer(wefti_waiter *w)
{
  wefti_waiter **at = &w->peer->waiters;
  while (*at != w) {
    at = &(*at)->peer_next;
  }
  *at = w->peer_next;
}

void wefti_store_wake(wefti_store *s, wefti_key *key)
{
  wefti_waiter **at = &key->waiters;
  while (*at != NULL) {
    wefti_waiter *w = *at;
    if (!has_reached(w)) {
      at = &w->next;
      continue;
    }
    *at = w->next;
    unlink_from_peer(w);
    if (--w->peer->missing == 0) {
      end_wait(w->peer);
    }
    s->map.bytes -= sizeof *w;
    free(w);
  }
  if (s->changed != NULL) {
    s->changed(s->changed_arg, (const char *)key->name, key->name_len);
  }
}

/* ---- bytes */

/* Buffers count as they are allocated. */
static weft_err charge(wefti_peer *p)
{
  const size_t now = p->in.room + p->out.room;
  const weft_err err = wefti_map_charge(&p->store->map, now, p->charged);
  if (err == WEFT_OK) {
    p->charged = now;
  }
  return err;
}

/* One request from the front of the input.  AGAIN: none that may be done now. */
static weft_err do_next(wefti_peer *p, size_t *used)
{
  const size_t left = p->in.len - *used;
  if (left == 0) {
    return WEFT_E_AGAIN;
  }
  const uint8_t *from = p->in.data + *used;
  size_t size = 0;
  if (p->missing > 0 && from[0] != WEFTI_ST_CANCEL_WAIT) {
    return WEFT_E_AGAIN; /* in its turn, when the wait is over */
  }
  if (!p->greeted && from[0] != WEFTI_ST_VALIDATE) {
    return WEFT_E_PROTO;
  }
  weft_err err = wefti_scan_request(&p->scan, from, left, &size);
  if (err == WEFT_OK) {
    wefti_walk w = { .at = from + 1, .end = from + size };
    err = wefti_peer_request(p, from[0], &w);
    p->scan = (wefti_scan){ 0 };
    *used += size;
  }
  return err;
}

static void run(wefti_peer *p)
{
  size_t used = 0;
  weft_err err = p->err;
  while (err == WEFT_OK && p->out.len - p->out_at < OUT_FULL) {
    err = do_next(p, &used);
  }
  wefti_sb_drop(&p->in, used);
  if (err == WEFT_OK || err == WEFT_E_AGAIN) {
    err = charge(p);
  }
  if (err != WEFT_OK) {
    p->err = err;
  }
  if (p->err != WEFT_OK || p->out.len > p->out_at) {
    p->store->news(p->store->news_arg, p);
  }
}

void wefti_store_settle(wefti_store *s)
{
  while (s->ready != NULL) {
    wefti_peer *p = s->ready;
    s->ready = p->ready_next;
    p->is_ready = false;
    run(p);
  }
}

void wefti_peer_init(wefti_peer *p, wefti_store *store, void *user)
{
  *p = (wefti_peer){ .store = store, .user = user };
}

void wefti_peer_fini(wefti_peer *p)
{
  wefti_peer_forget_waits(p);
  for (wefti_peer **at = &p->store->ready; *at != NULL;) {
    if (*at == p) {
      *at = p->ready_next;
    } else {
      at = &(*at)->ready_next;
    }
  }
  p->store->map.bytes -= p->charged;
  wefti_sb_fini(&p->in);
  wefti_sb_fini(&p->out);
  p->charged = 0;
}

void wefti_peer_feed(wefti_peer *p, const void *data, size_t n)
{
  if (p->err == WEFT_OK && !wefti_sb_put(&p->in, data, n)) {
    p->err = WEFT_E_NOMEM;
  }
  if (p->err == WEFT_OK) {
    p->err = charge(p);
  }
  run(p);
  wefti_store_settle(p->store);
}

void wefti_peer_sent(wefti_peer *p, size_t n)
{
  const bool was_full = wefti_peer_is_full(p);
  p->out_at += n;
  if (p->out_at >=
      p->out.len - p->out_at) { /* moving the rest costs less than was sent */
    wefti_sb_drop(&p->out, p->out_at);
    p->out_at = 0;
  }
  if (was_full && !wefti_peer_is_full(p)) {
    run(p);
    wefti_store_settle(p->store);
  }
}

bool wefti_peer_is_full(const wefti_peer *p)
{
  return p->out.len - p->out_at >= OUT_FULL || (p->missing > 0 && p->in.len >= HELD_FULL);
}
