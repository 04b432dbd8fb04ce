/* join_kind.h -- what a joining worker and the engine tell and prove to each other.  Not
 * the conversation (handshake.h). */
#ifndef WEFT_TRANSPORT_JOIN_KIND_H
#define WEFT_TRANSPORT_JOIN_KIND_H

#include "handshake.h"
#include "weft/join.h"

extern const wefti_handshake_kind wefti_join_kind; /* facts: weft_join_hello */

#endif /* WEFT_TRANSPORT_JOIN_KIND_H */
