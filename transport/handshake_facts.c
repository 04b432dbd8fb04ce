#include "handshake.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What both ends of a handshake do with its facts. */

bool wefti_read_u32(const weft_json *o, const char *key, uint32_t *out)
{
  int64_t v;
  if (!weft_json_i64(weft_json_get(o, key), &v) || v < 0 || v > UINT32_MAX) {
    return false;
  }
  *out = (uint32_t)v;
  return true;
}

bool wefti_read_u64(const weft_json *o, const char *key, uint64_t *out)
{
  const char *s = weft_json_str(weft_json_get(o, key));
  uint64_t v = 0;
  if (s == NULL || s[0] == '\0') {
    return false;
  }
  for (; *s != '\0'; s++) {
    if (*s < '0' || *s > '9' || __builtin_mul_overflow(v, 10u, &v) ||
        __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v)) {
      return false;
    }
  }
  *out = v;
  return true;
}

void wefti_write_u64(weft_json_writer *w, const char *key, uint64_t v)
{
  char text[32];
  (void)snprintf(text, sizeof text, "%" PRIu64, v);
  weft_jw_str(w, key, text);
}

bool wefti_read_str(const weft_json *o, const char *key, char *out, size_t cap)
{
  const char *s = weft_json_str(weft_json_get(o, key));
  if (s == NULL || strlen(s) >= cap) {
    return false;
  }
  memcpy(out, s, strlen(s) + 1);
  return true;
}

bool wefti_handshake_prove(const wefti_handshake_kind *kind, const char *who,
                           const char *token, const wefti_nonces *nonces,
                           const void *facts, uint8_t out[WEFTI_PROOF])
{
  wefti_packed p = { .len = 0 };
  wefti_pack_str(&p, "weft 1");
  wefti_pack_str(&p, kind->verb);
  wefti_pack_str(&p, who);
  wefti_pack(&p, nonces->guest, WEFTI_NONCE);
  wefti_pack(&p, nonces->host, WEFTI_NONCE);
  kind->pack(&p, facts);
  return wefti_proof(token, &p, out);
}
