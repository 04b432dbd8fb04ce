/* join_proof.h -- what a joining worker and the engine prove to each other.  Not the
 * conversation (join.c). */
#ifndef WEFT_TRANSPORT_JOIN_PROOF_H
#define WEFT_TRANSPORT_JOIN_PROOF_H

#include "weft/join.h"

#include <stdbool.h>

enum { WEFTI_NONCE = 32, WEFTI_PROOF = 32, WEFTI_HEX = 65 }; /* bytes; hex with its NUL */

typedef struct wefti_join_facts {
  weft_join_hello hello;
  uint8_t worker_nonce[WEFTI_NONCE], engine_nonce[WEFTI_NONCE];
} wefti_join_facts;

typedef enum wefti_join_role { WEFTI_JOIN_ENGINE, WEFTI_JOIN_WORKER } wefti_join_role;

/* HMAC-SHA256 with token (NULL = empty) over the role and all facts, each with its
 * length.  false: the library failed. */
bool wefti_join_proof(const char *token, wefti_join_role role,
                      const wefti_join_facts *facts, uint8_t out[WEFTI_PROOF]);
bool wefti_join_proof_same(const uint8_t a[WEFTI_PROOF], const uint8_t b[WEFTI_PROOF]);

bool wefti_nonce(uint8_t out[WEFTI_NONCE]);
void wefti_hex(const uint8_t in[WEFTI_NONCE], char out[WEFTI_HEX]);
/* false unless text is exactly 64 hex digits; NULL is allowed. */
bool wefti_unhex(const char *text, uint8_t out[WEFTI_NONCE]);

#endif /* WEFT_TRANSPORT_JOIN_PROOF_H */
