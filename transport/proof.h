/* proof.h -- nonces, their text, and what proves that both ends of a handshake know one
 * token: HMAC-SHA256 over nonces and facts.  Not the conversation (handshake.h). */
#ifndef WEFT_TRANSPORT_PROOF_H
#define WEFT_TRANSPORT_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  WEFTI_NONCE = 32, /* bytes */
  WEFTI_PROOF = 32, /* bytes */
  WEFTI_HEX = 65,   /* of either, with its NUL */
  WEFTI_PACKED_MAX = 896
};

/* What is proved: pieces, each behind its length, so that no two lists of them are the
 * same bytes.  {0} is empty. */
typedef struct wefti_packed {
  uint8_t bytes[WEFTI_PACKED_MAX];
  size_t len;
  bool overflow; /* a piece had no room: there is no proof of this */
} wefti_packed;
void wefti_pack(wefti_packed *p, const void *data, size_t len);
void wefti_pack_str(wefti_packed *p, const char *text);
void wefti_pack_u64(wefti_packed *p, uint64_t v);

/* HMAC-SHA256 with token (NULL = empty) over all that was packed.  false: the library
 * failed, or something had no room. */
bool wefti_proof(const char *token, const wefti_packed *packed, uint8_t out[WEFTI_PROOF]);
bool wefti_proof_same(const uint8_t a[WEFTI_PROOF], const uint8_t b[WEFTI_PROOF]);

bool wefti_nonce(uint8_t out[WEFTI_NONCE]);
void wefti_hex(const uint8_t in[WEFTI_NONCE], char out[WEFTI_HEX]);
/* false unless text is exactly 64 hex digits; NULL is allowed. */
bool wefti_unhex(const char *text, uint8_t out[WEFTI_NONCE]);

#endif /* WEFT_TRANSPORT_PROOF_H */
