#include "weft/messages.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/* F knows its field but not its struct.  Both passes over the table see each message on
 * the same line, so the line number is the name they share. */
#define OWNER_OF(line) owner_at_##line
#define OWNER_AT(line) OWNER_OF(line)
#define OWNER OWNER_AT(__LINE__)

#define F(kind, field)
#define MSG(lower, upper, fields, from, to, reply) typedef weft_##lower OWNER;
#include "weft/messages.def"
#undef MSG
#undef F

#define F(kind, field) { #field, WEFT_FIELD_##kind, offsetof(OWNER, field) },
#define MSG(lower, upper, fields, from, to, reply)                                       \
  static const weft_field fields_of_##lower[] = { fields };
#include "weft/messages.def"
#undef MSG
#undef F

#define F(kind, field)
#define MSG(lower, upper, fields, from, to, reply)                                       \
  [WEFT_MSG_##upper] = { #lower,                                                         \
                         sizeof(weft_##lower),                                           \
                         fields_of_##lower,                                              \
                         sizeof fields_of_##lower / sizeof fields_of_##lower[0],         \
                         WEFT_ROLE_##from,                                               \
                         WEFT_ROLE_##to,                                                 \
                         WEFT_MSG_##reply },
static const weft_msg_desc descs[WEFT_MSG_COUNT] = {
#include "weft/messages.def"
};
#undef MSG
#undef F

static_assert((int)WEFT_MSG_COUNT < (int)WEFT_MSG_USER_FIRST,
              "types keep to their range");

static const weft_catalogue catalogue = { descs, WEFT_MSG_COUNT };

const weft_catalogue *weft_messages(void)
{
  return &catalogue;
}

const char *weft_worker_phase_name(uint32_t phase)
{
  static const char *const names[] = {
    [WEFT_WORKER_IDLE] = "idle",           [WEFT_WORKER_OPEN] = "open",
    [WEFT_WORKER_ACCEPTING] = "accepting", [WEFT_WORKER_ACCEPTED] = "accepted",
    [WEFT_WORKER_RECEIVING] = "receiving", [WEFT_WORKER_FINISHING] = "finishing",
    [WEFT_WORKER_INSTALLED] = "installed", [WEFT_WORKER_ABORTING] = "aborting",
    [WEFT_WORKER_POISONED] = "poisoned",   [WEFT_WORKER_MAPPING] = "mapping",
  };
  return phase < sizeof names / sizeof names[0] ? names[phase] : "unknown";
}
