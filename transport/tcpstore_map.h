/* tcpstore_map.h -- the server's keys, values and queues within a budget of bytes.  Not
 * here: requests (tcpstore_peer.h). */
#ifndef WEFT_TRANSPORT_TCPSTORE_MAP_H
#define WEFT_TRANSPORT_TCPSTORE_MAP_H

#include "tcpstore_wire.h"

struct wefti_waiter;

typedef struct wefti_queued {
  struct wefti_queued *next;
  size_t len;
  uint8_t data[];
} wefti_queued;

/* Stays while it holds a value, a queue or waiters. */
typedef struct wefti_key {
  const uint8_t *name; /* behind the struct, or the one looked for */
  size_t name_len;
  struct wefti_key *prev;
  struct wefti_key *next;
  bool present; /* has a value */
  uint8_t *value;
  size_t len;
  wefti_queued *queue;
  wefti_queued *queue_last;
  int64_t queue_len;
  struct wefti_waiter *waiters;
} wefti_key;

typedef struct wefti_map {
  void *root; /* a balanced tree: no key can make it slow */
  wefti_key *first;
  size_t entries;
  size_t present;
  size_t bytes; /* in use: also what peers charge for their buffers */
  size_t keys_max;
  size_t bytes_max;
} wefti_map;

void wefti_map_fini(wefti_map *m);
weft_err wefti_map_charge(wefti_map *m, size_t more, size_t less); /* LIMIT */

wefti_key *wefti_map_find(const wefti_map *m, wefti_span name); /* NULL: none */
/* Finds or makes.  Errors: LIMIT, NOMEM. */
weft_err wefti_map_want(wefti_map *m, wefti_span name, wefti_key **out);
/* Frees key when it holds nothing any more. */
void wefti_map_tidy(wefti_map *m, wefti_key *key);

/* Value = a then b.  Neither may be of the key itself unless it is its whole value. */
weft_err wefti_map_set(wefti_map *m, wefti_key *key, wefti_span a, wefti_span b);
void wefti_map_clear(wefti_map *m, wefti_key *key); /* the value only */
/* Adds to a decimal value.  Errors: PROTO, OVERFLOW, LIMIT, NOMEM. */
weft_err wefti_map_add(wefti_map *m, wefti_key *key, int64_t delta, int64_t *out);
bool wefti_map_number(const wefti_key *key, int64_t *out);
weft_err wefti_map_push(wefti_map *m, wefti_key *key, wefti_span value);
wefti_queued *wefti_map_pop(wefti_map *m, wefti_key *key); /* caller frees; NULL: empty */

#endif /* WEFT_TRANSPORT_TCPSTORE_MAP_H */
