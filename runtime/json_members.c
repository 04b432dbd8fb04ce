#define _GNU_SOURCE /* getrandom */
#include "json_priv.h"
#include "weft/checked.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static uint64_t rotl(uint64_t v, int by)
{
  return v << by | v >> (64 - by);
}

static void sip_round(uint64_t v[4])
{
  v[0] += v[1];
  v[1] = rotl(v[1], 13) ^ v[0];
  v[0] = rotl(v[0], 32);
  v[2] += v[3];
  v[3] = rotl(v[3], 16) ^ v[2];
  v[0] += v[3];
  v[3] = rotl(v[3], 21) ^ v[0];
  v[2] += v[1];
  v[1] = rotl(v[1], 17) ^ v[2];
  v[2] = rotl(v[2], 32);
}

/* SipHash-1-3.  Source: Aumasson, Bernstein, "SipHash: a fast short-input PRF". */
static uint64_t sip13(const uint64_t key[2], const char *p, size_t len)
{
  uint64_t v[4] = { key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
                    key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u };
  const uint64_t tail = (uint64_t)len << 56;
  for (; len >= 8; p += 8, len -= 8) {
    uint64_t w;
    memcpy(&w, p, 8);
    v[3] ^= w;
    sip_round(v);
    v[0] ^= w;
  }
  uint64_t w = 0;
  memcpy(&w, p, len);
  w |= tail;
  v[3] ^= w;
  sip_round(v);
  v[0] ^= w;
  v[2] ^= 0xff;
  for (int i = 0; i < 3; i++) {
    sip_round(v);
  }
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

weft_err wefti_json_members_init(wefti_json_members *m)
{
  memset(m, 0, sizeof *m);
  if (getrandom(m->key, sizeof m->key, GRND_NONBLOCK) != (ssize_t)sizeof m->key) {
    /* Early boot without entropy: addresses are the second best secret. */
    m->key[0] = (uint64_t)(uintptr_t)m;
    m->key[1] = (uint64_t)(uintptr_t)&m;
  }
  return WEFT_OK;
}

void wefti_json_members_fini(wefti_json_members *m)
{
  free(m->rows);
  free(m->slots);
  free(m->names);
  memset(m, 0, sizeof *m);
}

/* Doubles *p until it holds need items. */
static weft_err grow(void **p, size_t *cap, size_t need, size_t item)
{
  if (need <= *cap) {
    return WEFT_OK;
  }
  size_t to = *cap < 16 ? 16 : *cap;
  while (to < need) {
    if (weft_size_mul(to, 2, &to) != WEFT_OK) {
      return WEFT_E_NOMEM;
    }
  }
  size_t bytes;
  if (weft_size_mul(to, item, &bytes) != WEFT_OK) {
    return WEFT_E_NOMEM;
  }
  void *bigger = realloc(*p, bytes);
  if (bigger == NULL) {
    return WEFT_E_NOMEM;
  }
  *p = bigger;
  *cap = to;
  return WEFT_OK;
}

weft_err wefti_json_members_name(wefti_json_members *m, const char *raw, size_t len)
{
  size_t need;
  if (weft_size_add(m->names_len, len, &need) != WEFT_OK) {
    return WEFT_E_NOMEM;
  }
  void *p = m->names;
  const weft_err err = grow(&p, &m->names_cap, need, 1);
  m->names = p;
  if (err != WEFT_OK) {
    return err;
  }
  if (len > 0) {
    memcpy(m->names + m->names_len, raw, len);
  }
  m->names_len = need;
  return WEFT_OK;
}

/* Slot of the name, or the free slot where it belongs. */
static size_t probe(const wefti_json_members *m, uint64_t hash, const char *name,
                    size_t len)
{
  const size_t mask = m->slots_cap - 1;
  size_t at = (size_t)hash & mask;
  while (m->slots[at] != 0) {
    const wefti_json_member *row = &m->rows[m->slots[at] - 1];
    if (row->hash == hash && row->name_len == len &&
        (len == 0 || memcmp(m->names + row->name, name, len) == 0)) {
      break;
    }
    at = (at + 1) & mask;
  }
  return at;
}

static weft_err rehash(wefti_json_members *m)
{
  const size_t cap = m->slots_cap == 0 ? 32 : m->slots_cap * 2;
  uint32_t *slots = calloc(cap, sizeof *slots);
  if (slots == NULL) {
    return WEFT_E_NOMEM;
  }
  for (size_t i = 0; i < m->count; i++) {
    size_t at = (size_t)m->rows[i].hash & (cap - 1);
    while (slots[at] != 0) {
      at = (at + 1) & (cap - 1);
    }
    slots[at] = (uint32_t)i + 1;
  }
  free(m->slots);
  m->slots = slots;
  m->slots_cap = cap;
  return WEFT_OK;
}

weft_err wefti_json_members_add(wefti_json_members *m, size_t start)
{
  if (m->count >= UINT32_MAX / 4) {
    return WEFT_E_LIMIT;
  }
  if (m->count >= m->slots_cap / 2 && rehash(m) != WEFT_OK) {
    return WEFT_E_NOMEM;
  }
  void *p = m->rows;
  const weft_err err = grow(&p, &m->rows_cap, m->count + 1, sizeof *m->rows);
  m->rows = p;
  if (err != WEFT_OK) {
    return err;
  }
  char *name = m->names == NULL ? NULL : m->names + start;
  const size_t len =
      name == NULL ? 0 : wefti_json_unescape(name, name, m->names_len - start);
  m->names_len = start + len;
  const uint64_t hash = sip13(m->key, len == 0 ? "" : name, len);
  const size_t at = probe(m, hash, name, len);
  if (m->slots[at] != 0) {
    return WEFT_E_EXISTS;
  }
  m->rows[m->count++] =
      (wefti_json_member){ .name = start, .name_len = len, .hash = hash };
  m->slots[at] = (uint32_t)m->count;
  return WEFT_OK;
}

const wefti_json_member *wefti_json_members_find(const wefti_json_members *m,
                                                 const char *name, size_t len)
{
  if (m->slots_cap == 0) {
    return NULL;
  }
  const uint32_t slot = m->slots[probe(m, sip13(m->key, name, len), name, len)];
  return slot == 0 ? NULL : &m->rows[slot - 1];
}
