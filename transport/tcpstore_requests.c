#include "tcpstore_peer.h"

#include <stdlib.h>
#include <string.h>

typedef weft_err request_fn(wefti_peer *p, wefti_walk *w);

static weft_err sent(bool there_was_room)
{
  return there_was_room ? WEFT_OK : WEFT_E_NOMEM;
}

static wefti_key *find(const wefti_peer *p, wefti_walk *w)
{
  return wefti_map_find(&p->store->map, wefti_walk_str(w));
}

/* Something with a value or a queued item: what CHECK and WAIT mean. */
static bool is_there(const wefti_key *k)
{
  return k != NULL && (k->present || k->queue != NULL);
}

static weft_err on_validate(wefti_peer *p, wefti_walk *w)
{
  if (p->greeted || wefti_walk_int(w, 4) != WEFTI_ST_MAGIC) {
    return WEFT_E_PROTO;
  }
  p->greeted = true;
  return WEFT_OK;
}

/* Sets the key to a then b. */
static weft_err store_value(wefti_peer *p, wefti_span name, wefti_span a, wefti_span b)
{
  wefti_map *m = &p->store->map;
  wefti_key *k;
  weft_err err = wefti_map_want(m, name, &k);
  if (err != WEFT_OK) {
    return err;
  }
  err = wefti_map_set(m, k, a, b);
  if (err == WEFT_OK) {
    wefti_store_wake(p->store, k);
  } else {
    wefti_map_tidy(m, k);
  }
  return err;
}

static weft_err on_set(wefti_peer *p, wefti_walk *w)
{
  const wefti_span name = wefti_walk_str(w);
  return store_value(p, name, wefti_walk_str(w), (wefti_span){ 0 });
}

static weft_err on_append(wefti_peer *p, wefti_walk *w)
{
  const wefti_span name = wefti_walk_str(w);
  const wefti_span more = wefti_walk_str(w);
  const wefti_key *k = wefti_map_find(&p->store->map, name);
  wefti_span old = { 0 };
  if (k != NULL) {
    old = (wefti_span){ .at = k->value, .len = k->len };
  }
  return store_value(p, name, old, more);
}

static weft_err on_multi_set(wefti_peer *p, wefti_walk *w)
{
  weft_err err = WEFT_OK;
  for (uint64_t n = wefti_walk_int(w, 8); n > 0 && err == WEFT_OK; n--) {
    err = on_set(p, w);
  }
  return err;
}

/* Source: contracts, "absent and non-empty expected: stores nothing, returns expected".
 */
static weft_err on_compare_set(wefti_peer *p, wefti_walk *w)
{
  const wefti_span name = wefti_walk_str(w);
  const wefti_span expected = wefti_walk_str(w);
  const wefti_span desired = wefti_walk_str(w);
  const wefti_key *k = wefti_map_find(&p->store->map, name);
  wefti_span now = expected;
  bool store = expected.len == 0;
  if (k != NULL && k->present) {
    now = (wefti_span){ .at = k->value, .len = k->len };
    store = now.len == expected.len &&
            (now.len == 0 || memcmp(now.at, expected.at, now.len) == 0);
  }
  if (!store) {
    return sent(wefti_sb_str(&p->out, now.at, now.len));
  }
  const weft_err err = store_value(p, name, desired, (wefti_span){ 0 });
  return err != WEFT_OK ? err : sent(wefti_sb_str(&p->out, desired.at, desired.len));
}

static weft_err reply_value(wefti_peer *p, const wefti_key *k)
{
  if (k == NULL || !k->present) {
    return sent(wefti_sb_u64(&p->out, 0));
  }
  if (k->len > WEFTI_ST_REQUEST_MAX || p->out.len > (size_t)4 * WEFTI_ST_REQUEST_MAX) {
    return WEFT_E_LIMIT;
  }
  return sent(wefti_sb_str(&p->out, k->value, k->len));
}

static weft_err on_get(wefti_peer *p, wefti_walk *w)
{
  return reply_value(p, find(p, w));
}

static weft_err on_multi_get(wefti_peer *p, wefti_walk *w)
{
  weft_err err = WEFT_OK;
  for (uint64_t n = wefti_walk_int(w, 8); n > 0 && err == WEFT_OK; n--) {
    err = on_get(p, w);
  }
  return err;
}

static weft_err add(wefti_peer *p, wefti_span name, int64_t delta, int64_t *out,
                    wefti_key **key)
{
  wefti_map *m = &p->store->map;
  weft_err err = wefti_map_want(m, name, key);
  if (err != WEFT_OK) {
    return err;
  }
  err = wefti_map_add(m, *key, delta, out);
  if (err == WEFT_OK) {
    wefti_store_wake(p->store, *key);
  } else {
    wefti_map_tidy(m, *key);
  }
  return err;
}

static weft_err on_add(wefti_peer *p, wefti_walk *w)
{
  const wefti_span name = wefti_walk_str(w);
  int64_t v = 0;
  wefti_key *k;
  const weft_err err = add(p, name, (int64_t)wefti_walk_int(w, 8), &v, &k);
  return err != WEFT_OK ? err : sent(wefti_sb_u64(&p->out, (uint64_t)v));
}

static weft_err on_check(wefti_peer *p, wefti_walk *w)
{
  bool all = true;
  for (uint64_t n = wefti_walk_int(w, 8); n > 0; n--) {
    all = is_there(find(p, w)) && all;
  }
  return sent(wefti_sb_u8(&p->out, all ? WEFTI_ST_READY : WEFTI_ST_NOT_READY));
}

static weft_err on_wait(wefti_peer *p, wefti_walk *w)
{
  for (uint64_t n = wefti_walk_int(w, 8); n > 0; n--) {
    const wefti_span name = wefti_walk_str(w);
    wefti_key *k = wefti_map_find(&p->store->map, name);
    if (is_there(k)) {
      continue;
    }
    weft_err err = wefti_map_want(&p->store->map, name, &k);
    if (err == WEFT_OK) {
      err = wefti_peer_wait(p, k, 0);
    }
    if (err != WEFT_OK) {
      return err;
    }
  }
  return p->missing > 0 ? WEFT_OK : sent(wefti_sb_u8(&p->out, WEFTI_ST_STOP_WAITING));
}

static weft_err on_barrier(wefti_peer *p, wefti_walk *w)
{
  const wefti_span name = wefti_walk_str(w);
  const int64_t world = (int64_t)wefti_walk_int(w, 8);
  int64_t v = 0;
  wefti_key *k;
  const weft_err err = add(p, name, 1, &v, &k);
  if (err != WEFT_OK) {
    return err;
  }
  return v < world ? wefti_peer_wait(p, k, world)
                   : sent(wefti_sb_u8(&p->out, WEFTI_ST_STOP_WAITING));
}

static weft_err on_cancel_wait(wefti_peer *p, wefti_walk *w)
{
  (void)w;
  wefti_peer_forget_waits(p);
  return sent(wefti_sb_u8(&p->out, WEFTI_ST_WAIT_CANCELED));
}

static weft_err on_num_keys(wefti_peer *p, wefti_walk *w)
{
  (void)w;
  return sent(wefti_sb_u64(&p->out, p->store->map.present));
}

static weft_err on_delete(wefti_peer *p, wefti_walk *w)
{
  wefti_key *k = find(p, w);
  const bool there = k != NULL && k->present;
  if (there) {
    wefti_map_clear(&p->store->map, k);
    wefti_map_tidy(&p->store->map, k);
  }
  return sent(wefti_sb_u64(&p->out, there));
}

static weft_err on_ping(wefti_peer *p, wefti_walk *w)
{
  return sent(wefti_sb_put(&p->out, w->at, 4));
}

static weft_err on_queue_push(wefti_peer *p, wefti_walk *w)
{
  const wefti_span name = wefti_walk_str(w);
  wefti_map *m = &p->store->map;
  wefti_key *k;
  weft_err err = wefti_map_want(m, name, &k);
  if (err == WEFT_OK) {
    err = wefti_map_push(m, k, wefti_walk_str(w));
    if (err == WEFT_OK) {
      wefti_store_wake(p->store, k);
    } else {
      wefti_map_tidy(m, k);
    }
  }
  return err;
}

static weft_err on_queue_pop(wefti_peer *p, wefti_walk *w)
{
  wefti_key *k = find(p, w);
  bool room = wefti_sb_u64(&p->out, k == NULL ? 0 : (uint64_t)k->queue_len);
  wefti_queued *q = k == NULL ? NULL : wefti_map_pop(&p->store->map, k);
  if (q != NULL) {
    room = room && wefti_sb_str(&p->out, q->data, q->len);
    free(q);
    wefti_map_tidy(&p->store->map, k);
  }
  return sent(room);
}

static weft_err on_queue_len(wefti_peer *p, wefti_walk *w)
{
  const wefti_key *k = find(p, w);
  return sent(wefti_sb_u64(&p->out, k == NULL ? 0 : (uint64_t)k->queue_len));
}

static weft_err on_list_keys(wefti_peer *p, wefti_walk *w)
{
  (void)w;
  bool room = wefti_sb_u64(&p->out, p->store->map.present);
  for (const wefti_key *k = p->store->map.first; k != NULL && room; k = k->next) {
    room = !k->present || wefti_sb_str(&p->out, k->name, k->name_len);
  }
  return sent(room);
}

static request_fn *const requests[] = {
  [WEFTI_ST_VALIDATE] = on_validate,
  [WEFTI_ST_SET] = on_set,
  [WEFTI_ST_COMPARE_SET] = on_compare_set,
  [WEFTI_ST_GET] = on_get,
  [WEFTI_ST_ADD] = on_add,
  [WEFTI_ST_CHECK] = on_check,
  [WEFTI_ST_WAIT] = on_wait,
  [WEFTI_ST_GETNUMKEYS] = on_num_keys,
  [WEFTI_ST_DELETE_KEY] = on_delete,
  [WEFTI_ST_APPEND] = on_append,
  [WEFTI_ST_MULTI_GET] = on_multi_get,
  [WEFTI_ST_MULTI_SET] = on_multi_set,
  [WEFTI_ST_CANCEL_WAIT] = on_cancel_wait,
  [WEFTI_ST_PING] = on_ping,
  [WEFTI_ST_QUEUE_PUSH] = on_queue_push,
  [WEFTI_ST_QUEUE_POP] = on_queue_pop,
  [WEFTI_ST_QUEUE_LEN] = on_queue_len,
  [WEFTI_ST_LIST_KEYS] = on_list_keys,
  [WEFTI_ST_BARRIER] = on_barrier,
};
_Static_assert(sizeof requests / sizeof requests[0] == WEFTI_ST_OPS, "one each");

weft_err wefti_peer_request(wefti_peer *p, uint8_t op, wefti_walk *w)
{
  return requests[op](p, w);
}
