#include "leader.h"

bool wefti_leader_is_former(const wefti_leader *l, uint64_t boot)
{
  for (unsigned i = 0; i < WEFTI_FORMER_MAX && i < l->former_count; i++) {
    if (l->former[i] == boot && boot != l->boot) {
      return true;
    }
  }
  return false;
}

bool wefti_leader_may_lead(const wefti_leader *l, uint64_t boot, uint64_t echo_ns)
{
  const bool lives = boot == l->proof_boot && echo_ns != 0 && echo_ns == l->proof_ns;
  return l->boot == 0 || boot == l->boot || lives;
}

bool wefti_leader_ask(wefti_leader *l, uint64_t boot, uint64_t stamp_ns)
{
  if (boot == l->boot) {
    return false;
  }
  l->proof_boot = boot;
  l->proof_ns = stamp_ns;
  return true;
}

void wefti_leader_follow(wefti_leader *l, uint64_t boot)
{
  if (boot == l->boot) {
    return;
  }
  if (l->boot != 0) {
    l->former[l->former_count++ % WEFTI_FORMER_MAX] = l->boot;
  }
  l->boot = boot;
  l->proof_boot = 0;
  l->proof_ns = 0;
}
