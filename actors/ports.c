#include "ports.h"

#include "assembly.h"
#include "weft/messages.h"
#include "worker.h"

weft_port_opts wefti_control_port(const char *url, weft_actor_id to)
{
  return (weft_port_opts){ .size = sizeof(weft_port_opts),
                           .url = url,
                           .to = to,
                           .roles = UINT64_C(1) << WEFT_ROLE_ENGINE,
                           .from_roles = UINT64_C(1) << WEFT_ROLE_CLIENT,
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
