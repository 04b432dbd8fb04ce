/* door_kind.h -- what a coordinator tells and proves to an engine that it invites.  Not
 * the conversation (handshake.h). */
#ifndef WEFT_TRANSPORT_DOOR_KIND_H
#define WEFT_TRANSPORT_DOOR_KIND_H

#include "handshake.h"
#include "weft/door.h"

extern const wefti_handshake_kind wefti_door_kind; /* facts: weft_invitation */

#endif /* WEFT_TRANSPORT_DOOR_KIND_H */
