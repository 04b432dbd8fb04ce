#include "ports.h"

#include "assembly.h"
#include "weft/messages.h"
#include "worker.h"

/* What a client says of itself, and not what only this process can know: that a start is
 * the restorer's. */
static bool is_a_clients(const weft_msg *msg)
{
  return msg->type != WEFT_MSG_CLIENT_START ||
         ((const weft_client_start *)msg)->restores == 0;
}

weft_port_opts wefti_control_port(const char *url, weft_actor_id to)
{
  return (weft_port_opts){ .size = sizeof(weft_port_opts),
                           .url = url,
                           .to = to,
                           .roles = UINT64_C(1) << WEFT_ROLE_ENGINE,
                           .from_roles = UINT64_C(1) << WEFT_ROLE_CLIENT,
                           .may_pass = is_a_clients,
                           .contexts = WEFTI_CONTROL_CONTEXTS,
                           .gone_type = WEFT_MSG_CLIENT_GONE };
}

weft_port_opts wefti_worker_port(const char *url, weft_actor_id to)
{
  return (weft_port_opts){ .size = sizeof(weft_port_opts),
                           .url = url,
                           .to = to,
                           .roles = UINT64_C(1) << WEFT_ROLE_WORKER,
                           .from_roles = UINT64_C(1) << WEFT_ROLE_ENGINE,
                           .contexts = WEFTI_WORKER_CONTEXTS };
}
