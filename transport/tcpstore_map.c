#define _GNU_SOURCE /* tsearch, tfind, tdelete */
#include "tcpstore_map.h"

#include "weft/checked.h"

#include <inttypes.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
  const wefti_key *x = a;
  const wefti_key *y = b;
  const size_t n = x->name_len < y->name_len ? x->name_len : y->name_len;
  const int c = n == 0 ? 0 : memcmp(x->name, y->name, n);
  return c != 0 ? c : (x->name_len > y->name_len) - (x->name_len < y->name_len);
}

weft_err wefti_map_charge(wefti_map *m, size_t more, size_t less)
{
  m->bytes -= less;
  if (more > m->bytes_max || m->bytes > m->bytes_max - more) {
    m->bytes += less;
    return WEFT_E_LIMIT;
  }
  m->bytes += more;
  return WEFT_OK;
}

wefti_key *wefti_map_find(const wefti_map *m, wefti_span name)
{
  const wefti_key like = { .name = name.at, .name_len = name.len };
  void *const *found = tfind(&like, &m->root, compare);
  return found == NULL ? NULL : *found;
}

weft_err wefti_map_want(wefti_map *m, wefti_span name, wefti_key **out)
{
  wefti_key *k = wefti_map_find(m, name);
  if (k != NULL) {
    *out = k;
    return WEFT_OK;
  }
  const size_t size = sizeof *k + name.len;
  if (m->entries >= m->keys_max || wefti_map_charge(m, size, 0) != WEFT_OK) {
    return WEFT_E_LIMIT;
  }
  k = calloc(1, size);
  if (k == NULL) {
    m->bytes -= size;
    return WEFT_E_NOMEM;
  }
  uint8_t *text = (uint8_t *)(k + 1);
  if (name.len > 0) {
    memcpy(text, name.at, name.len);
  }
  k->name = text;
  k->name_len = name.len;
  if (tsearch(k, &m->root, compare) == NULL) {
    m->bytes -= size;
    free(k);
    return WEFT_E_NOMEM;
  }
  k->next = m->first;
  if (m->first != NULL) {
    m->first->prev = k;
  }
  m->first = k;
  m->entries++;
  *out = k;
  return WEFT_OK;
}

void wefti_map_tidy(wefti_map *m, wefti_key *key)
{
  if (key->present || key->queue != NULL || key->waiters != NULL) {
    return;
  }
  (void)tdelete(key, &m->root, compare);
  if (key->prev != NULL) {
    key->prev->next = key->next;
  } else {
    m->first = key->next;
  }
  if (key->next != NULL) {
    key->next->prev = key->prev;
  }
  m->entries--;
  m->bytes -= sizeof *key + key->name_len;
  free(key);
}

void wefti_map_clear(wefti_map *m, wefti_key *key)
{
  if (key->present) {
    m->present--;
  }
  m->bytes -= key->len;
  free(key->value);
  key->value = NULL;
  key->len = 0;
  key->present = false;
}

weft_err wefti_map_set(wefti_map *m, wefti_key *key, wefti_span a, wefti_span b)
{
  size_t len;
  if (weft_size_add(a.len, b.len, &len) != WEFT_OK ||
      wefti_map_charge(m, len, key->len) != WEFT_OK) {
    return WEFT_E_LIMIT;
  }
  uint8_t *value = malloc(len + 1);
  if (value == NULL) {
    m->bytes = m->bytes - len + key->len;
    return WEFT_E_NOMEM;
  }
  if (a.len > 0) {
    memcpy(value, a.at, a.len);
  }
  if (b.len > 0) {
    memcpy(value + a.len, b.at, b.len);
  }
  free(key->value);
  if (!key->present) {
    m->present++;
  }
  key->value = value;
  key->len = len;
  key->present = true;
  return WEFT_OK;
}

bool wefti_map_number(const wefti_key *key, int64_t *out)
{
  const bool minus = key->len > 0 && key->value[0] == '-';
  uint64_t v = 0;
  if (key->len == (minus ? 1u : 0u) || key->len > 20) {
    return false;
  }
  for (size_t i = minus; i < key->len; i++) {
    const uint8_t c = key->value[i];
    if (c < '0' || c > '9' || __builtin_mul_overflow(v, (uint64_t)10, &v) ||
        __builtin_add_overflow(v, (uint64_t)(c - '0'), &v)) {
      return false;
    }
  }
  if (v > (uint64_t)INT64_MAX + (minus ? 1u : 0u)) {
    return false;
  }
  *out = minus ? (int64_t)(0 - v) : (int64_t)v;
  return true;
}

weft_err wefti_map_add(wefti_map *m, wefti_key *key, int64_t delta, int64_t *out)
{
  int64_t v = 0;
  if (key->present && !wefti_map_number(key, &v)) {
    return WEFT_E_PROTO;
  }
  if (__builtin_add_overflow(v, delta, &v)) {
    return WEFT_E_OVERFLOW;
  }
  char text[24];
  const int n = snprintf(text, sizeof text, "%" PRId64, v);
  const wefti_span digits = { .at = (const uint8_t *)text, .len = (size_t)n };
  const weft_err err = wefti_map_set(m, key, digits, (wefti_span){ 0 });
  if (err == WEFT_OK) {
    *out = v;
  }
  return err;
}

weft_err wefti_map_push(wefti_map *m, wefti_key *key, wefti_span value)
{
  const size_t size = sizeof(wefti_queued) + value.len;
  if (wefti_map_charge(m, size, 0) != WEFT_OK) {
    return WEFT_E_LIMIT;
  }
  wefti_queued *q = malloc(size);
  if (q == NULL) {
    m->bytes -= size;
    return WEFT_E_NOMEM;
  }
  q->next = NULL;
  q->len = value.len;
  if (value.len > 0) {
    memcpy(q->data, value.at, value.len);
  }
  if (key->queue == NULL) {
    key->queue = q;
  } else {
    key->queue_last->next = q;
  }
  key->queue_last = q;
  key->queue_len++;
  return WEFT_OK;
}

wefti_queued *wefti_map_pop(wefti_map *m, wefti_key *key)
{
  wefti_queued *q = key->queue;
  if (q != NULL) {
    key->queue = q->next;
    key->queue_len--;
    m->bytes -= sizeof *q + q->len;
  }
  return q;
}

/* Waiters are gone by then: their connections are closed first. */
void wefti_map_fini(wefti_map *m)
{
  while (m->first != NULL) {
    wefti_key *k = m->first;
    wefti_map_clear(m, k);
    wefti_queued *q;
    while ((q = wefti_map_pop(m, k)) != NULL) {
      free(q);
    }
    k->waiters = NULL;
    wefti_map_tidy(m, k);
  }
}
